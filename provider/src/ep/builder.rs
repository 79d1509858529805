//! The options with which a program creates EPs.

use super::make::EpSpec;
use super::{Ep, EpEvds};
use crate::srq::SrqInner;
use crate::types::{CompletionFlags, ServiceType};
use crate::{EpAttr, Evd, Ia, Pz, Result, RetryAttr, Srq};
use std::sync::Arc;

/// The options of a new EP: see [`Ep::builder`]. A copy of a builder makes another EP with the same
/// options.
#[derive(Clone, Debug)]
#[must_use = "nothing is created before `build` or `connect`"]
pub struct EpBuilder<'a> {
    ia: &'a Ia,
    pz: &'a Pz,
    evds: EpEvds<'a>,
    srq: Option<&'a Arc<SrqInner>>,
    attr: EpAttr,
    context: u64,
}

impl Ep {
    /// A builder of EPs. It begins with a receive queue of the EP's own, without EVDs, and with the
    /// attributes of [`EpAttr::default`]: a reliable connection, 16 receives and 16 requests of 4
    /// segments each, and 4 RDMA Reads each way.
    ///
    /// ```no_run
    /// # use doorbell::{Ep, Evd, EvdFlags, Ia, Pz, Srq};
    /// # use std::net::SocketAddr;
    /// # fn connect(server: SocketAddr) -> doorbell::Result<Ep> {
    /// let ia = Ia::open("mlx5_0")?;
    /// let pz = Pz::new(&ia)?;
    /// let srq = Srq::builder(&ia, &pz).build()?;
    /// let messages = Evd::new(&ia, 256, EvdFlags::DTO)?;
    /// let connections = Evd::new(&ia, 16, EvdFlags::CONNECTION)?;
    ///
    /// Ep::builder(&ia, &pz).srq(&srq).recv_evd(&messages).connect_evd(&connections).connect(server)
    /// # }
    /// ```
    pub fn builder<'a>(ia: &'a Ia, pz: &'a Pz) -> EpBuilder<'a> {
        EpBuilder { ia, pz, evds: EpEvds::default(), srq: None, attr: EpAttr::default(), context: 0 }
    }
}

impl<'a> EpBuilder<'a> {
    /// The EVD of receive completions. Without one, messages are received and discarded (R87).
    pub fn recv_evd(mut self, evd: &'a Evd) -> Self {
        self.evds.recv = Some(evd);
        self
    }

    /// The EVD of request completions. Without one, completions are discarded.
    pub fn request_evd(mut self, evd: &'a Evd) -> Self {
        self.evds.request = Some(evd);
        self
    }

    /// The EVD of connection events. Without one, there are no such events.
    pub fn connect_evd(mut self, evd: &'a Evd) -> Self {
        self.evds.connect = Some(evd);
        self
    }

    /// One EVD for the completions and the connection events.
    pub fn evd(self, evd: &'a Evd) -> Self {
        self.recv_evd(evd).request_evd(evd).connect_evd(evd)
    }

    /// All EVDs.
    #[doc(hidden)]
    pub fn evds(mut self, evds: EpEvds<'a>) -> Self {
        self.evds = evds;
        self
    }

    /// The EP takes its receive buffers from this SRQ (R127-R156).
    pub fn srq(self, srq: &'a Srq) -> Self {
        self.on_srq(&srq.inner)
    }

    /// As [`EpBuilder::srq`], for callers that do not own the posting part of the SRQ.
    #[doc(hidden)]
    pub fn on_srq(mut self, srq: &'a Arc<SrqInner>) -> Self {
        self.srq = Some(srq);
        self
    }

    /// All attributes at once, such as those of another EP ([`Ep::query`]).
    pub fn attributes(mut self, attr: &EpAttr) -> Self {
        self.attr = attr.clone();
        self
    }

    /// Connection or datagrams: [`EpAttr::service_type`].
    pub fn service_type(mut self, service_type: ServiceType) -> Self {
        self.attr.service_type = service_type;
        self
    }

    /// Room for at least this many receives: [`EpAttr::recv_depth`].
    pub fn recv_depth(mut self, receives: u32) -> Self {
        self.attr.recv_depth = receives;
        self
    }

    /// Room for at least this many requests: [`EpAttr::request_depth`].
    pub fn request_depth(mut self, requests: u32) -> Self {
        self.attr.request_depth = requests;
        self
    }

    /// At least this many segments in a receive: [`EpAttr::recv_segments`].
    pub fn recv_segments(mut self, segments: u32) -> Self {
        self.attr.recv_segments = segments;
        self
    }

    /// At least this many segments in a request: [`EpAttr::request_segments`].
    pub fn request_segments(mut self, segments: u32) -> Self {
        self.attr.request_segments = segments;
        self
    }

    /// The RDMA Reads of the peer that the EP answers at a time: [`EpAttr::rdma_reads_in`].
    pub fn rdma_reads_in(mut self, reads: u32) -> Self {
        self.attr.rdma_reads_in = reads;
        self
    }

    /// The RDMA Reads that the EP requests at a time: [`EpAttr::rdma_reads_out`].
    pub fn rdma_reads_out(mut self, reads: u32) -> Self {
        self.attr.rdma_reads_out = reads;
        self
    }

    /// At least this many segments in an RDMA Read: [`EpAttr::rdma_read_segments`].
    pub fn rdma_read_segments(mut self, segments: u32) -> Self {
        self.attr.rdma_read_segments = segments;
        self
    }

    /// At least this many segments in an RDMA Write: [`EpAttr::rdma_write_segments`].
    pub fn rdma_write_segments(mut self, segments: u32) -> Self {
        self.attr.rdma_write_segments = segments;
        self
    }

    /// Room for at least this many bytes of inline data: [`EpAttr::max_inline`].
    pub fn max_inline(mut self, bytes: u32) -> Self {
        self.attr.max_inline = bytes;
        self
    }

    /// How receive completions notify: [`EpAttr::recv_completion_flags`].
    pub fn recv_completion_flags(mut self, flags: CompletionFlags) -> Self {
        self.attr.recv_completion_flags = flags;
        self
    }

    /// How request completions notify: [`EpAttr::request_completion_flags`].
    pub fn request_completion_flags(mut self, flags: CompletionFlags) -> Self {
        self.attr.request_completion_flags = flags;
        self
    }

    /// The initial soft high watermark: [`Ep::set_watermark`].
    pub fn soft_high_watermark(mut self, buffers: u32) -> Self {
        self.attr.soft_high_watermark = Some(buffers);
        self
    }

    /// The program's own number for the EP, which all its events carry
    /// ([`DtoFields::ep_context`](crate::DtoFields::ep_context)): for example the index of the
    /// connection in a list, which is then found without a search. The default is 0.
    pub fn context(mut self, context: u64) -> Self {
        self.context = context;
        self
    }

    /// An event says when nothing of an ended connection is left on the device:
    /// [`Event::Drained`](crate::Event::Drained).
    pub fn tell_drained(mut self) -> Self {
        self.attr.tells_drained = true;
        self
    }

    /// How the connection deals with a peer that does not answer.
    pub fn retry(mut self, retry: RetryAttr) -> Self {
        self.attr.retry = retry;
        self
    }

    /// Creates the EP.
    ///
    /// # Errors
    /// - INVALID_HANDLE for the IA, for the PZ, for the SRQ (R130), or for an EVD that is freed,
    ///   belongs to another IA or lacks the stream.
    /// - INVALID_PARAMETER for attributes out of range (ARG6; ARG7 on an SRQ), against the sharing
    ///   rules (the EVD's argument), or (ARG2) for a PZ other than the SRQ's if the device requires
    ///   the same PZ (R136).
    /// - INVALID_STATE (SRQ_SHUTDOWN) while the SRQ is being freed (R31).
    /// - INSUFFICIENT_RESOURCES.
    ///
    /// # References
    /// dat_ep_create(3DAT), dat_ep_create_with_srq(3DAT).
    pub fn build(self) -> Result<Ep> {
        let attr_arg = if self.srq.is_some() { 7 } else { 6 };
        let spec = EpSpec::new(self.ia, &self.pz.inner, self.evds, self.srq, self.attr)?;
        let ep = Ep { inner: spec.make(attr_arg)? };
        ep.set_context(self.context);
        Ok(ep)
    }
}
