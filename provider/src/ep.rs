//! EPs: creation, attributes, posting. How they connect and end is in [`crate::conn`].

mod marks;
mod post;
mod window;

pub(crate) use post::What;
use post::{Receives, Requests};
pub(crate) use window::Window;

use crate::conn::Control;
use crate::datapath::ledger::Tag;
use crate::error::PostError;
use crate::evd::{EvdInner, Stream, StreamKind};
use crate::ia::IaInner;
use crate::pz::PzInner;
use crate::srq::{MAX_IOV, SrqInner};
use crate::types::{
    CompletionFlags, Count, EpId, EpState, EvdFlags, LmrTriplet, RmrTriplet, WATERMARK_INFINITE, next_id,
};
use crate::{EpAttr, Error, Evd, Ia, Pz, Result, Srq, SrqId, Subtype};
use rxe_fallback::{Qp, QpInit, QpKind};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// An endpoint (`DAT_EP_HANDLE`): one end of a reliable connection.
///
/// One thread at a time posts, which `&mut self` says. Dropping it ends its connection and frees it.
#[derive(Debug)]
pub struct Ep {
    pub(crate) inner: Arc<EpInner>,
}

/// The EVDs of a new EP; each may be left out (R134).
#[derive(Clone, Copy, Debug, Default)]
pub struct EpEvds<'a> {
    /// Receive completions; without it messages arrive and are forgotten (R87).
    pub recv: Option<&'a Evd>,
    /// Request completions.
    pub request: Option<&'a Evd>,
    /// Connection events.
    pub connect: Option<&'a Evd>,
}

/// What a query tells (`DAT_EP_PARAM`).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct EpParam {
    /// State.
    pub state: EpState,
    /// Address and port at this end; known once connecting.
    pub local: Option<SocketAddr>,
    /// Address and port of the peer; known once connecting.
    pub remote: Option<SocketAddr>,
    /// The SRQ it takes buffers from (R159).
    pub srq: Option<SrqId>,
    /// Its attributes; queue sizes are the real ones (R139).
    pub attr: EpAttr,
}

/// Receives that an EP holds (`dat_ep_recv_query`); each is [`VALUE_UNKNOWN`](crate::VALUE_UNKNOWN) where it cannot be known at this instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecvCounts {
    /// Buffers held.
    pub buffers: Count,
    /// Completions it could still make.
    pub span: Count,
}

/// What [`Ep::status`] tells (`dat_ep_get_status`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EpStatus {
    /// State.
    pub state: EpState,
    /// It holds no receive; buffers on an SRQ do not count (R173).
    pub recv_idle: bool,
    /// No request is under way.
    pub request_idle: bool,
}

/// Changes to an EP before it connects (`dat_ep_modify`).
#[derive(Clone, Copy, Debug, Default)]
pub struct EpChange<'a> {
    /// Another PZ (R163).
    pub pz: Option<&'a Pz>,
    /// Another notification mode for receives (R165).
    pub recv_completion_flags: Option<CompletionFlags>,
    /// Another notification mode for requests.
    pub request_completion_flags: Option<CompletionFlags>,
    /// Another SRQ: always refused (R162); it is here so that the mask bit has somewhere to go.
    pub srq: Option<SrqId>,
    /// Another soft high watermark: always refused (R166); use [`Ep::set_watermark`].
    pub srq_soft_hw: Option<Count>,
}

#[derive(Debug)]
pub(crate) struct EpInner {
    pub(crate) id: EpId,
    pub(crate) ia: Arc<IaInner>,
    pub(crate) context: AtomicU64,
    pub(crate) recv_evd: Arc<EvdInner>,
    pub(crate) request_evd: Arc<EvdInner>,
    pub(crate) connect_evd: Option<Arc<EvdInner>>,
    pub(crate) srq: Option<Arc<SrqInner>>,
    pub(crate) control: Mutex<Control>,
    pub(crate) live: AtomicBool,
    state: AtomicU8,
    /// A high watermark is set.
    pub(crate) marked: AtomicBool,
    recv_flags: AtomicU32,
    request_flags: AtomicU32,
    pz: Mutex<Arc<PzInner>>,
    attr: Mutex<EpAttr>,
    requests: Mutex<Requests>,
    receives: Mutex<Receives>,
    /// Room in the CQs that goes back with the EP.
    room: Room,
}

#[derive(Clone, Copy, Debug)]
struct Room {
    recv: u32,
    request: u32,
}

impl Ep {
    /// Makes an EP with a receive queue of its own; no attributes means [`EpAttr::default`].
    ///
    /// # Errors
    /// INVALID_HANDLE for the IA, the PZ, or an EVD that is freed, another IA's or without the stream; INVALID_PARAMETER for
    /// attributes out of range (ARG6) or against the sharing rules (the EVD's argument); INSUFFICIENT_RESOURCES.
    ///
    /// # References
    /// dat_ep_create(3DAT).
    pub fn create(ia: &Ia, pz: &Pz, evds: EpEvds<'_>, attr: Option<&EpAttr>) -> Result<Self> {
        let default = EpAttr::default();
        Self::build(ia, pz, evds, None, attr.unwrap_or(&default), 6)
    }

    /// Makes an EP that takes its buffers from an SRQ (R127-R156).
    ///
    /// # Errors
    /// As [`Ep::create`], with ARG7 for attributes; INVALID_HANDLE for the SRQ (R130); INVALID_PARAMETER (ARG2) for a PZ
    /// other than the SRQ's where the device cannot keep them apart (R136); INVALID_STATE (SRQ_SHUTDOWN) while it is
    /// being freed (R31).
    ///
    /// # References
    /// dat_ep_create_with_srq(3DAT).
    pub fn create_with_srq(ia: &Ia, pz: &Pz, evds: EpEvds<'_>, srq: &Srq, attr: &EpAttr) -> Result<Self> {
        Self::build(ia, pz, evds, Some(&srq.inner), attr, 7)
    }

    fn build(
        ia: &Ia,
        pz: &Pz,
        evds: EpEvds<'_>,
        srq: Option<&Arc<SrqInner>>,
        attr: &EpAttr,
        attr_arg: u16,
    ) -> Result<Self> {
        let ia = &ia.inner;
        ia.check()?;
        pz.inner.check(ia)?;
        let given = |evd: Option<&Evd>, flag, sub| {
            evd.map(|evd| evd.inner.check_for(ia, flag, sub).map(|()| evd.inner.clone())).transpose()
        };
        let recv = given(evds.recv, EvdFlags::DTO, Subtype::InvalidHandleEvdRecv)?;
        let request = given(evds.request, EvdFlags::DTO, Subtype::InvalidHandleEvdRequest)?;
        // Of a plain EP it may be another IA's: dapltest's limit test has one for all, and connection events need no device.
        let connect_ia = |evd: &Evd| if srq.is_some() { ia.clone() } else { evd.inner.ia.clone() };
        if let Some(evd) = evds.connect {
            evd.inner.check_for(&connect_ia(evd), EvdFlags::CONNECTION, Subtype::InvalidHandleEvdConn)?;
        }
        let connect = evds.connect.map(|evd| evd.inner.clone());
        if let Some(srq) = srq {
            srq.check_for(ia)?;
        }
        check_attr(ia, attr, attr_arg, srq.is_some())?;
        if let Some(srq) = srq
            && !ia.provider_attr.srq_ep_pz_difference_supported
            && srq.pz.number != pz.inner.number
        {
            return Err(Error::arg(2, "this device takes SRQ buffers from the EP's own PZ only"));
        }
        let id = EpId(next_id());
        let recv_stream = Stream {
            ep: id,
            kind: StreamKind::Recv { srq: srq.is_some() },
            flags: attr.recv_completion_flags,
        };
        let request_stream =
            Stream { ep: id, kind: StreamKind::Request, flags: attr.request_completion_flags };
        if let Some(evd) = &recv {
            evd.may_feed(recv_stream, None, 3)?;
        }
        if let Some(evd) = &request {
            evd.may_feed(request_stream, None, 4)?;
            if recv.as_ref().is_some_and(|r| Arc::ptr_eq(r, evd)) {
                pair_fits(recv_stream, request_stream)?;
            }
        }
        let discards = ia.discards()?;
        let recv_evd = recv.clone().unwrap_or_else(|| discards.clone());
        let request_evd = request.clone().unwrap_or(discards);
        if let Some(srq) = srq {
            srq.tie(&recv_evd)?;
        }
        let untie = || srq.into_iter().for_each(|srq| srq.untie(&recv_evd));
        let qp = make_qp(ia, &pz.inner, &recv_evd, &request_evd, srq, attr, id).inspect_err(|_| untie())?;
        let qp = Arc::new(qp);
        let room = Room {
            recv: if srq.is_some() { 0 } else { qp.caps().max_recv_wr },
            request: qp.caps().max_send_wr,
        };
        recv_evd
            .attach(recv.is_some().then_some(recv_stream).as_slice(), room.recv)
            .inspect_err(|_| untie())?;
        request_evd
            .attach(request.is_some().then_some(request_stream).as_slice(), room.request)
            .inspect_err(|_| {
                recv_evd.detach(id, room.recv);
                untie();
            })?;
        if let Some(evd) = &connect {
            let flags = CompletionFlags::empty();
            evd.attach(&[Stream { ep: id, kind: StreamKind::Connection, flags }], 0)?;
        }
        let mut attr = attr.clone();
        attr.max_request_dtos = qp.caps().max_send_wr as Count;
        attr.max_request_iov = qp.caps().max_send_sge.min(MAX_IOV as u32) as Count;
        if srq.is_none() {
            attr.max_recv_dtos = qp.caps().max_recv_wr as Count;
            attr.max_recv_iov = qp.caps().max_recv_sge.min(MAX_IOV as u32) as Count;
        }
        let inner = Arc::new(EpInner {
            id,
            ia: ia.clone(),
            context: AtomicU64::new(0),
            srq: srq.cloned(),
            control: Mutex::new(Control::new(attr.srq_soft_hw)),
            live: AtomicBool::new(true),
            state: AtomicU8::new(EpState::Unconnected as u8),
            marked: AtomicBool::new(attr.srq_soft_hw != WATERMARK_INFINITE),
            recv_flags: AtomicU32::new(attr.recv_completion_flags.bits()),
            request_flags: AtomicU32::new(attr.request_completion_flags.bits()),
            pz: Mutex::new(pz.inner.clone()),
            requests: Mutex::new(Requests {
                qp: qp.clone(),
                ring: VecDeque::with_capacity(attr.max_request_dtos as usize),
                first: 0,
                capacity: attr.max_request_dtos as usize,
                max_iov: attr.max_request_iov as usize,
                unreaped: 0,
            }),
            receives: Mutex::new(Receives {
                qp: qp.clone(),
                ring: VecDeque::with_capacity(room.recv as usize),
                capacity: room.recv as usize,
                max_iov: attr.max_recv_iov.max(0) as usize,
            }),
            attr: Mutex::new(attr),
            room,
            recv_evd,
            request_evd,
            connect_evd: connect,
        });
        pz.inner.enter();
        inner.recv_evd.register(qp.num(), &inner);
        inner.request_evd.register(qp.num(), &inner);
        ia.objects.lock().unwrap().eps.insert(id.0, Arc::downgrade(&inner));
        Ok(Self { inner })
    }

    /// Names it in events.
    pub fn id(&self) -> EpId {
        self.inner.id
    }

    /// A number of the consumer's, 0 at first; it comes back in this EP's events.
    pub fn set_context(&self, context: u64) {
        self.inner.context.store(context, Ordering::Relaxed);
    }

    /// Its state.
    pub fn state(&self) -> EpState {
        self.inner.state()
    }

    /// What it is like.
    ///
    /// # Errors
    /// INVALID_HANDLE after the IA was closed.
    ///
    /// # References
    /// dat_ep_query(3DAT).
    pub fn query(&self) -> Result<EpParam> {
        self.inner.check()?;
        let control = self.inner.control.lock().unwrap();
        Ok(EpParam {
            state: self.inner.state(),
            local: control.local,
            remote: control.remote,
            srq: self.inner.srq.as_ref().map(|srq| srq.id),
            attr: self.inner.attr.lock().unwrap().clone(),
        })
    }

    /// State, and whether anything is under way.
    ///
    /// # Errors
    /// INVALID_HANDLE after the IA was closed.
    ///
    /// # References
    /// dat_ep_get_status(3DAT).
    pub fn status(&self) -> Result<EpStatus> {
        let inner = &self.inner;
        inner.check()?;
        inner.recv_evd.harvest_now()?;
        inner.request_evd.harvest_now()?;
        Ok(EpStatus {
            state: inner.state(),
            recv_idle: inner.receives.lock().unwrap().ring.is_empty(),
            request_idle: inner.requests.lock().unwrap().ring.is_empty(),
        })
    }

    /// Changes what may be changed before a connection.
    ///
    /// # Errors
    /// INVALID_PARAMETER (ARG2) for the SRQ (R162), the soft watermark (R166), illegal flags, or a PZ other than the SRQ's
    /// where that is not supported (R164); INVALID_STATE for a PZ outside UNCONNECTED (R163), for flags once a receive
    /// is posted or the EP is connecting (R165). Nothing is changed then.
    ///
    /// # References
    /// dat_ep_modify(3DAT).
    pub fn modify(&mut self, change: EpChange<'_>) -> Result<()> {
        self.inner.modify(change)
    }

    /// How many receives it holds. On a plain EP exact; on an SRQ EP 0 and 0 while it can hold none, else unknown, since an
    /// in-order device shows a buffer only when it is complete.
    ///
    /// # Errors
    /// INVALID_HANDLE after the IA was closed (R209).
    ///
    /// # References
    /// dat_ep_recv_query(3DAT), R194-R210.
    pub fn recv_query(&self) -> Result<RecvCounts> {
        self.inner.check()?;
        self.inner.recv_evd.harvest_now()?;
        Ok(self.inner.recv_counts())
    }

    /// Sets both high watermarks; -1 is off.
    ///
    /// Over `soft` an event comes ([`AsyncKind::Notice`](crate::AsyncKind::Notice), [`EP_SOFT_HIGH_WATERMARK`](crate::reason::EP_SOFT_HIGH_WATERMARK)), once per setting; over `hard`
    /// the connection breaks.
    ///
    /// # Errors
    /// INVALID_PARAMETER (ARG2 or ARG3) for a value below -1 (R225).
    ///
    /// # References
    /// dat_ep_set_watermark(3DAT), R211-R229.
    pub fn set_watermark(&mut self, soft: Count, hard: Count) -> Result<()> {
        self.inner.check()?;
        for (arg, value) in [(2, soft), (3, hard)] {
            if value < WATERMARK_INFINITE {
                return Err(Error::arg(arg, format!("a high watermark is -1 (off) or more, not {value}")));
            }
        }
        self.inner.recv_evd.harvest_now()?;
        self.inner.control.lock().unwrap().set_marks(soft, hard);
        let marked = soft != WATERMARK_INFINITE || hard != WATERMARK_INFINITE;
        self.inner.marked.store(marked, Ordering::Release);
        self.inner.check_marks();
        Ok(())
    }

    /// Posts a receive to a plain EP.
    ///
    /// # Errors
    /// [`PostError::UsesSrq`] on an SRQ EP, whatever the rest of the call says (R157, R158).
    ///
    /// # References
    /// dat_ep_post_recv(3DAT).
    pub fn post_recv(
        &mut self,
        iov: &[LmrTriplet],
        cookie: u64,
        flags: CompletionFlags,
    ) -> Result<(), PostError> {
        self.inner.post_recv(iov, Tag { cookie, ..Tag::default() }, flags)
    }

    /// Sends a message gathered from these segments.
    ///
    /// # Errors
    /// See [`PostError`].
    ///
    /// # References
    /// dat_ep_post_send(3DAT).
    pub fn post_send(
        &mut self,
        iov: &[LmrTriplet],
        cookie: u64,
        flags: CompletionFlags,
    ) -> Result<(), PostError> {
        self.inner.post_request(What::Send, iov, Tag { cookie, ..Tag::default() }, flags)
    }

    /// Sends, and takes one of the peer's RMR contexts back: with the receive of this message it is dead, and the peer's
    /// completion says so ([`DtoCompletion::invalidated`](crate::DtoCompletion::invalidated)).
    ///
    /// The context has to be that of an RMR bound through the peer's end of this connection;
    /// another breaks the connection.
    ///
    /// # Errors
    /// See [`PostError`]; [`PostError::NotSupported`] where the device cannot.
    ///
    /// # References
    /// dat.h, `dat_ep_post_send_with_invalidate`.
    pub fn post_send_with_invalidate(
        &mut self,
        iov: &[LmrTriplet],
        cookie: u64,
        rmr_context: u32,
        flags: CompletionFlags,
    ) -> Result<(), PostError> {
        let tag = Tag { cookie, ..Tag::default() };
        self.inner.post_request(What::SendInvalidate(rmr_context), iov, tag, flags)
    }

    /// Writes these segments into the peer's memory.
    ///
    /// # Errors
    /// See [`PostError`]; [`PostError::Length`] where the remote segment is shorter than the local ones.
    ///
    /// # References
    /// dat_ep_post_rdma_write(3DAT).
    pub fn post_rdma_write(
        &mut self,
        iov: &[LmrTriplet],
        cookie: u64,
        remote: RmrTriplet,
        flags: CompletionFlags,
    ) -> Result<(), PostError> {
        self.inner.post_request(What::Write(remote), iov, Tag { cookie, ..Tag::default() }, flags)
    }

    /// Writes, and takes a receive at the peer, whose completion carries `immediate` (IB extension; R276-R279).
    ///
    /// # Errors
    /// As [`Ep::post_rdma_write`].
    ///
    /// # References
    /// dat_ib_extensions.h, `dat_ib_post_rdma_write_immed`.
    pub fn post_rdma_write_immediate(
        &mut self,
        iov: &[LmrTriplet],
        cookie: u64,
        remote: RmrTriplet,
        immediate: u32,
        flags: CompletionFlags,
    ) -> Result<(), PostError> {
        self.inner.post_request(
            What::WriteImmediate(remote, immediate),
            iov,
            Tag { cookie, ..Tag::default() },
            flags,
        )
    }

    /// Reads the peer's memory into these segments.
    ///
    /// # Errors
    /// See [`PostError`]; [`PostError::Length`] where the local segments are shorter than the remote one.
    ///
    /// # References
    /// dat_ep_post_rdma_read(3DAT).
    pub fn post_rdma_read(
        &mut self,
        iov: &[LmrTriplet],
        cookie: u64,
        remote: RmrTriplet,
        flags: CompletionFlags,
    ) -> Result<(), PostError> {
        self.inner.post_request(What::Read(remote), iov, Tag { cookie, ..Tag::default() }, flags)
    }

    /// Reads the peer's memory into memory of this side that is named as for a peer: by the RMR context of an LMR, or of a bound
    /// RMR, with remote write privilege.
    ///
    /// # Errors
    /// As [`Ep::post_rdma_read`]; [`PostError::NoSuchLmr`] for a context that names neither, [`PostError::Privilege`] without the
    /// privilege.
    ///
    /// # References
    /// dat.h, `dat_ep_post_rdma_read_to_rmr`.
    pub fn post_rdma_read_to_rmr(
        &mut self,
        local: RmrTriplet,
        cookie: u64,
        remote: RmrTriplet,
        flags: CompletionFlags,
    ) -> Result<(), PostError> {
        let local = self.inner.local_segment(local)?;
        self.post_rdma_read(&[local], cookie, remote, flags)
    }

    /// Adds to 8 bytes of the peer's memory, at a multiple of 8; the old value arrives in these 8 bytes (IB extension).
    ///
    /// # Errors
    /// See [`PostError`]; [`PostError::NotSupported`] where the device has no atomics, [`PostError::Length`] for other sizes.
    ///
    /// # References
    /// dat_ib_extensions.h, `dat_ib_post_fetch_and_add`.
    pub fn post_fetch_and_add(
        &mut self,
        local: LmrTriplet,
        cookie: u64,
        remote: RmrTriplet,
        add: u64,
        flags: CompletionFlags,
    ) -> Result<(), PostError> {
        let tag = Tag { cookie, ..Tag::default() };
        self.inner.post_request(What::FetchAdd(remote, add), &[local], tag, flags)
    }

    /// Puts `swap` into 8 bytes of the peer's memory, at a multiple of 8, if `compare` is there; the old value arrives in these
    /// 8 bytes (IB extension).
    ///
    /// # Errors
    /// As [`Ep::post_fetch_and_add`].
    ///
    /// # References
    /// dat_ib_extensions.h, `dat_ib_post_cmp_and_swap`.
    pub fn post_compare_and_swap(
        &mut self,
        local: LmrTriplet,
        cookie: u64,
        remote: RmrTriplet,
        compare: u64,
        swap: u64,
        flags: CompletionFlags,
    ) -> Result<(), PostError> {
        let tag = Tag { cookie, ..Tag::default() };
        self.inner.post_request(What::CompareSwap(remote, compare, swap), &[local], tag, flags)
    }
}

fn check_attr(ia: &IaInner, attr: &EpAttr, arg: u16, on_srq: bool) -> Result<()> {
    let a = &ia.attr;
    let within = |name: &str, value: Count, most: Count| {
        if (0..=most).contains(&value) {
            Ok(())
        } else {
            Err(Error::arg(arg, format!("{name} is 0 to {most} here, not {value}")))
        }
    };
    if !legal_flags(attr.recv_completion_flags, true) {
        return Err(Error::arg(
            arg,
            format!("illegal receive flags {:#x}", attr.recv_completion_flags.bits()),
        ));
    }
    if !legal_flags(attr.request_completion_flags, false) {
        return Err(Error::arg(
            arg,
            format!("illegal request flags {:#x}", attr.request_completion_flags.bits()),
        ));
    }
    if attr.srq_soft_hw < WATERMARK_INFINITE {
        return Err(Error::arg(arg, format!("srq_soft_hw is -1 or more, not {}", attr.srq_soft_hw)));
    }
    if !on_srq {
        within("max_recv_dtos", attr.max_recv_dtos, a.max_dto_per_ep)?;
        within("max_recv_iov", attr.max_recv_iov, a.max_iov_segments_per_dto)?;
    }
    within("max_request_dtos", attr.max_request_dtos, a.max_dto_per_ep)?;
    within("max_request_iov", attr.max_request_iov, a.max_iov_segments_per_dto)?;
    within("max_rdma_read_in", attr.max_rdma_read_in, a.max_rdma_read_per_ep_in)?;
    within("max_rdma_read_out", attr.max_rdma_read_out, a.max_rdma_read_per_ep_out)?;
    within("max_rdma_read_iov", attr.max_rdma_read_iov, a.max_iov_segments_per_rdma_read)?;
    within("max_rdma_write_iov", attr.max_rdma_write_iov, a.max_iov_segments_per_rdma_write)
}

/// A stream's mode is one of a few (R148).
fn legal_flags(flags: CompletionFlags, recv: bool) -> bool {
    flags.is_empty()
        || flags == CompletionFlags::UNSIGNALLED
        || flags == CompletionFlags::EVD_THRESHOLD
        || (recv && flags == CompletionFlags::SOLICITED_WAIT)
}

/// Both streams of one EP on one EVD: the sharing rules between the two (R149-R151).
fn pair_fits(recv: Stream, request: Stream) -> Result<()> {
    let differ = |flag| recv.flags.contains(flag) != request.flags.contains(flag);
    let threshold_srq = matches!(recv.kind, StreamKind::Recv { srq: true });
    if differ(CompletionFlags::UNSIGNALLED)
        || recv.flags.contains(CompletionFlags::SOLICITED_WAIT)
        || (threshold_srq
            && recv.flags.contains(CompletionFlags::EVD_THRESHOLD)
            && differ(CompletionFlags::EVD_THRESHOLD))
    {
        return Err(Error::arg(3, "these receive and request modes cannot share one EVD"));
    }
    Ok(())
}

fn make_qp(
    ia: &IaInner,
    pz: &PzInner,
    recv: &EvdInner,
    request: &EvdInner,
    srq: Option<&Arc<SrqInner>>,
    attr: &EpAttr,
    id: EpId,
) -> Result<Qp> {
    let no_cq = || Error::handle(Subtype::InvalidHandleEvdRecv, "EVD");
    let (Some(recv_path), Some(request_path)) = (&recv.cq, &request.cq) else { return Err(no_cq()) };
    let recv_cq = match srq {
        Some(srq) => recv_path.receives(srq.token()).ok_or_else(no_cq)?,
        None => recv_path.verbs().clone(),
    };
    let on_srq = srq.is_some();
    let iov = attr.max_request_iov.max(attr.max_rdma_read_iov).max(attr.max_rdma_write_iov).max(1);
    let init = QpInit {
        kind: QpKind::Rc,
        send_cq: request_path.verbs(),
        recv_cq: &recv_cq,
        srq: srq.map(|srq| srq.path.verbs()),
        max_send_wr: attr.max_request_dtos.max(1) as u32,
        max_send_sge: iov as u32,
        max_recv_wr: if on_srq { 0 } else { attr.max_recv_dtos.max(1) as u32 },
        max_recv_sge: if on_srq { 0 } else { attr.max_recv_iov.max(1) as u32 },
        max_inline: 0,
        signal_all: false,
        token: id.0,
    };
    let qp = ia.kind.qp(&pz.pd, &init).map_err(|e| Error::verb(Subtype::ResourceTep, e))?;
    ia.to_init(&qp)?;
    Ok(qp)
}

impl EpInner {
    pub(crate) fn check(&self) -> Result<()> {
        if self.live.load(Ordering::Acquire) {
            Ok(())
        } else {
            Err(Error::handle(Subtype::InvalidHandleEp, "EP"))
        }
    }

    pub(crate) fn state(&self) -> EpState {
        EpState::from_u8(self.state.load(Ordering::Acquire))
    }

    pub(crate) fn set_state(&self, state: EpState) {
        self.state.store(state as u8, Ordering::Release);
    }

    pub(crate) fn recv_flags(&self) -> CompletionFlags {
        CompletionFlags::from_bits_retain(self.recv_flags.load(Ordering::Relaxed))
    }

    pub(crate) fn qp(&self) -> Arc<Qp> {
        self.requests.lock().unwrap().qp.clone()
    }

    /// Counts its connections.
    pub(crate) fn attempt(&self) -> u64 {
        self.control.lock().unwrap().attempt()
    }

    pub(crate) fn pz_number(&self) -> u32 {
        self.pz.lock().unwrap().number
    }

    pub(crate) fn rdma_reads(&self) -> (u8, u8) {
        let attr = self.attr.lock().unwrap();
        (attr.max_rdma_read_in.clamp(0, 255) as u8, attr.max_rdma_read_out.clamp(0, 255) as u8)
    }

    fn modify(&self, change: EpChange<'_>) -> Result<()> {
        self.check()?;
        if change.srq.is_some() {
            return Err(Error::arg(2, "the SRQ of an EP cannot be changed: make another EP"));
        }
        if change.srq_soft_hw.is_some() {
            return Err(Error::arg(2, "the soft high watermark is changed with set_watermark"));
        }
        let _control = self.control.lock().unwrap();
        let state = self.state();
        let before =
            matches!(state, EpState::Unconnected | EpState::Reserved | EpState::PassiveConnectionPending);
        if !before || (change.pz.is_some() && state != EpState::Unconnected) {
            return Err(Error::state(state.subtype(), "this can be changed only before a connection"));
        }
        if let Some(pz) = change.pz {
            pz.inner.check(&self.ia)?;
            if let Some(srq) = &self.srq
                && !self.ia.provider_attr.srq_ep_pz_difference_supported
                && srq.pz.number != pz.inner.number
            {
                return Err(Error::arg(2, "this device takes SRQ buffers from the EP's own PZ only"));
            }
        }
        let posted = !self.receives.lock().unwrap().ring.is_empty();
        let stream = |kind, flags| Stream { ep: self.id, kind, flags };
        if let Some(flags) = change.recv_completion_flags {
            if !legal_flags(flags, true) {
                return Err(Error::arg(2, format!("illegal receive flags {:#x}", flags.bits())));
            }
            if posted {
                return Err(Error::state(state.subtype(), "receives are posted: too late for other flags"));
            }
            let kind = StreamKind::Recv { srq: self.srq.is_some() };
            self.recv_evd.may_feed(stream(kind, flags), Some(self.id), 2)?;
        }
        if let Some(flags) = change.request_completion_flags {
            if !legal_flags(flags, false) {
                return Err(Error::arg(2, format!("illegal request flags {:#x}", flags.bits())));
            }
            self.request_evd.may_feed(stream(StreamKind::Request, flags), Some(self.id), 2)?;
        }
        let mut attr = self.attr.lock().unwrap();
        let mut new = attr.clone();
        if let Some(flags) = change.recv_completion_flags {
            new.recv_completion_flags = flags;
        }
        if let Some(flags) = change.request_completion_flags {
            new.request_completion_flags = flags;
        }
        if Arc::ptr_eq(&self.recv_evd, &self.request_evd) {
            pair_fits(
                stream(StreamKind::Recv { srq: self.srq.is_some() }, new.recv_completion_flags),
                stream(StreamKind::Request, new.request_completion_flags),
            )?;
        }
        if let Some(pz) = change.pz {
            if posted {
                return Err(Error::state(state.subtype(), "receives are posted: too late for another PZ"));
            }
            self.move_to(&pz.inner, &new)?;
        }
        self.recv_flags.store(new.recv_completion_flags.bits(), Ordering::Relaxed);
        self.request_flags.store(new.request_completion_flags.bits(), Ordering::Relaxed);
        self.recv_evd.change_stream(self.id, true, new.recv_completion_flags);
        self.request_evd.change_stream(self.id, false, new.request_completion_flags);
        *attr = new;
        Ok(())
    }

    /// Another PZ is another protection domain, and so another QP.
    fn move_to(&self, pz: &Arc<PzInner>, attr: &EpAttr) -> Result<()> {
        let qp = make_qp(&self.ia, pz, &self.recv_evd, &self.request_evd, self.srq.as_ref(), attr, self.id)?;
        let qp = Arc::new(qp);
        let old = std::mem::replace(&mut self.requests.lock().unwrap().qp, qp.clone());
        self.receives.lock().unwrap().qp = qp.clone();
        self.recv_evd.rename(old.num(), qp.num());
        self.request_evd.rename(old.num(), qp.num());
        self.ia.leave_windows(self.id);
        let mut current = self.pz.lock().unwrap();
        pz.enter();
        current.leave();
        *current = pz.clone();
        Ok(())
    }

    /// Takes it out of everything that knows it. Its QP goes with the last reference.
    pub(crate) fn detach(&self) {
        self.ia.leave_windows(self.id);
        let qpn = self.qp().num();
        self.recv_evd.unregister(qpn, self);
        self.request_evd.unregister(qpn, self);
        self.recv_evd.detach(self.id, self.room.recv);
        self.request_evd.detach(self.id, self.room.request);
        if let Some(evd) = &self.connect_evd {
            evd.detach(self.id, 0);
        }
        if let Some(srq) = &self.srq {
            srq.untie(&self.recv_evd);
        }
        self.pz.lock().unwrap().leave();
        self.ia.objects.lock().unwrap().eps.remove(&self.id.0);
    }
}
