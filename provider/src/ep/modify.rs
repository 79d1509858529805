//! Changing an EP before it connects.
//!
//! Flags, limits that only the connection needs, and the connect EVD change in place. The
//! properties with which the QP was created (PZ, the EVDs of completions, queue sizes) need another
//! QP. The EP is then recreated around a new QP under its old ID, and takes the old EP's place
//! ([`EpCell`](super::EpCell)) for all its users. Posted receives are posted to the new QP in
//! their order. The old QP has used none of them, because a QP that was never connected receives
//! nothing.

use super::Control;
use super::checks::{check_attr, check_flags, request_mode};
use super::make::{ArgNumbers, EpQueues, EpSpec, connect_evd, dto_evd};
use super::{Ep, EpInner};
use crate::evd::{EvdInner, Stream, StreamKind};
use crate::queue_pair::Modes;
use crate::types::{CompletionFlags, EpState, Qos, ServiceType};
use crate::{EpAttr, Error, Evd, Pz, Result, RetryAttr, Subtype};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Changes to an EP before it connects (`dat_ep_modify`). A value of `None` leaves the property
/// unchanged.
#[derive(Clone, Copy, Debug, Default)]
pub struct EpChange<'a> {
    /// Another PZ (R163).
    pub pz: Option<&'a Pz>,
    /// Another EVD for receive completions, or none.
    pub recv: Option<Option<&'a Evd>>,
    /// Another EVD for request completions, or none.
    pub request: Option<Option<&'a Evd>>,
    /// Another EVD for connection events, or none.
    pub connect: Option<Option<&'a Evd>>,
    /// Another service type. Refused unless it equals the EP's.
    pub service_type: Option<ServiceType>,
    /// Another [`EpAttr::max_message_size`].
    #[doc(hidden)]
    pub max_message_size: Option<u32>,
    /// Another [`EpAttr::max_rdma_size`].
    #[doc(hidden)]
    pub max_rdma_size: Option<u32>,
    /// Another [`EpAttr::qos`].
    #[doc(hidden)]
    pub qos: Option<Qos>,
    /// Another notification mode for receives (R165).
    pub recv_completion_flags: Option<CompletionFlags>,
    /// Another [`EpAttr::request_completion_flags`].
    pub request_completion_flags: Option<CompletionFlags>,
    /// Room for at least this many receives.
    pub recv_depth: Option<u32>,
    /// Room for at least this many requests.
    pub request_depth: Option<u32>,
    /// At least this many segments per receive.
    pub recv_segments: Option<u32>,
    /// At least this many segments per request.
    pub request_segments: Option<u32>,
    /// Another [`EpAttr::rdma_reads_in`].
    pub rdma_reads_in: Option<u32>,
    /// Another [`EpAttr::rdma_reads_out`].
    pub rdma_reads_out: Option<u32>,
    /// Another [`EpAttr::rdma_read_segments`].
    pub rdma_read_segments: Option<u32>,
    /// Another [`EpAttr::rdma_write_segments`].
    pub rdma_write_segments: Option<u32>,
    /// Another [`EpAttr::retry`].
    pub retry: Option<RetryAttr>,
    /// Room for at least this many bytes of inline data.
    pub max_inline: Option<u32>,
}

/// Attributes that every IA supports.
const NOTHING: EpAttr = EpAttr {
    service_type: ServiceType::Rc,
    max_message_size: 0,
    max_rdma_size: 0,
    qos: Qos::BestEffort,
    recv_completion_flags: CompletionFlags::empty(),
    request_completion_flags: CompletionFlags::empty(),
    recv_depth: 0,
    request_depth: 0,
    recv_segments: 0,
    request_segments: 0,
    rdma_reads_in: 0,
    rdma_reads_out: 0,
    soft_high_watermark: None,
    rdma_read_segments: 0,
    rdma_write_segments: 0,
    retry: RetryAttr { rnr_retry: None, rnr_timer: None, retry_count: None, timeout: None },
    max_inline: 0,
    tells_drained: false,
};

impl EpChange<'_> {
    /// Returns the attributes after the change.
    fn apply(&self, old: &EpAttr) -> EpAttr {
        let mut new = old.clone();
        let set = |field: &mut u32, to: Option<u32>| *field = to.unwrap_or(*field);
        set(&mut new.recv_depth, self.recv_depth);
        set(&mut new.request_depth, self.request_depth);
        set(&mut new.recv_segments, self.recv_segments);
        set(&mut new.request_segments, self.request_segments);
        set(&mut new.rdma_reads_in, self.rdma_reads_in);
        set(&mut new.rdma_reads_out, self.rdma_reads_out);
        set(&mut new.rdma_read_segments, self.rdma_read_segments);
        set(&mut new.rdma_write_segments, self.rdma_write_segments);
        set(&mut new.max_inline, self.max_inline);
        new.max_message_size = self.max_message_size.unwrap_or(old.max_message_size);
        new.max_rdma_size = self.max_rdma_size.unwrap_or(old.max_rdma_size);
        new.qos = self.qos.unwrap_or(old.qos);
        new.retry = self.retry.unwrap_or(old.retry);
        new.recv_completion_flags = self.recv_completion_flags.unwrap_or(old.recv_completion_flags);
        new.request_completion_flags = self.request_completion_flags.unwrap_or(old.request_completion_flags);
        new
    }
}

impl Ep {
    /// Changes properties that may change before a connection. The call changes all of them, or on
    /// an error none.
    ///
    /// Queue sizes become at least the requested sizes, as at creation. A size below the EP's
    /// present size leaves the size unchanged. Posted receives stay in their order, and complete on
    /// the new EVD. A posted receive whose LMR is not in a new PZ fails with LOCAL_PROTECTION when
    /// a message takes it.
    ///
    /// # Errors
    /// - INVALID_PARAMETER (ARG2) for illegal flags, modes that cannot share an EVD, or a PZ other
    ///   than the SRQ's if the device does not support that (R164).
    /// - INVALID_PARAMETER (ARG3) for sizes or retries out of range, or for another service type.
    /// - INVALID_HANDLE for a PZ or an EVD.
    /// - INVALID_STATE for a PZ outside UNCONNECTED and TENTATIVE_CONNECTION_PENDING (R163); for
    ///   any change once the EP is connecting; for receive flags once a receive is posted (R165);
    ///   for a queue that is too small for the posted receives; and for a change that needs another
    ///   QP once a UD EP has posted receives, or has sent or answered a connect request.
    /// - INSUFFICIENT_RESOURCES.
    ///
    /// # References
    /// dat_ep_modify(3DAT).
    pub fn modify(&mut self, change: EpChange<'_>) -> Result<()> {
        if let Some(new) = self.inner.modify(&change)? {
            self.inner = new;
        }
        Ok(())
    }
}

impl EpInner {
    /// Returns the recreated EP, if the EP had to be recreated.
    fn modify(self: &Arc<Self>, change: &EpChange<'_>) -> Result<Option<Arc<Self>>> {
        self.check()?;
        let mut control = self.control.lock().unwrap();
        // A connection request that brought the EP may have closed it meanwhile.
        self.check()?;
        let state = self.state();
        let quiescent = matches!(state, EpState::Unconnected | EpState::TentativeConnectionPending);
        if !state.is_before_connection() || (change.pz.is_some() && !quiescent) {
            return Err(Error::state(state.subtype(), "this can be changed only before a connection"));
        }
        if let Some(pz) = change.pz {
            pz.inner.check(&self.device)?;
        }
        let on_srq = self.srq.is_some();
        let recv =
            change.recv.map(|evd| dto_evd(&self.device, evd, Subtype::InvalidHandleEvdRecv)).transpose()?;
        let request = change
            .request
            .map(|evd| dto_evd(&self.device, evd, Subtype::InvalidHandleEvdRequest))
            .transpose()?;
        let connect = change.connect.map(|evd| connect_evd(&self.device, evd, on_srq)).transpose()?;
        let old = self.attr.lock().unwrap().clone();
        if change.service_type.is_some_and(|service_type| service_type != old.service_type) {
            return Err(Error::arg(3, "the service type of an EP cannot be changed: create another EP"));
        }
        let new = change.apply(&old);
        check_flags(new.recv_completion_flags, true, 2)?;
        check_flags(new.request_completion_flags, false, 2)?;
        // Unchanged attributes may exceed the limits of a request, because devices round up.
        check_attr(
            &self.device,
            &change.apply(&EpAttr { service_type: old.service_type, ..NOTHING }),
            3,
            on_srq,
        )?;
        let given = |evd: &Arc<EvdInner>| (!evd.discards).then(|| evd.clone());
        let spec = EpSpec {
            device: self.device.clone(),
            defaults: self.defaults.clone(),
            pz: change.pz.map_or_else(|| self.pz.lock().unwrap().clone(), |pz| pz.inner.clone()),
            recv: recv.unwrap_or_else(|| given(&self.recv_evd)),
            request: request.unwrap_or_else(|| given(&self.request_evd)),
            connect: connect.unwrap_or_else(|| self.connect_evd()),
            srq: self.srq.clone(),
            attr: new,
        };
        spec.check(Some(self.id), self.id, ArgNumbers { recv: 2, request: 2 })?;
        self.check_posted(change, &old)?;
        let anew = self.needs_another_qp(&spec, &old);
        if anew && self.is_ud() {
            self.check_unused(state)?;
        }
        if anew {
            return self.recreate(spec, &mut control, state).map(Some);
        }
        self.change_connect_evd(spec.connect.as_ref())?;
        let mode = request_mode(spec.attr.request_completion_flags);
        self.pair.set_modes(Modes { recv: spec.attr.recv_completion_flags, request: mode });
        self.recv_evd.change_stream(self.id, true, spec.attr.recv_completion_flags);
        self.request_evd.change_stream(self.id, false, mode);
        let kept = EpAttr {
            request_depth: old.request_depth,
            request_segments: old.request_segments,
            max_inline: old.max_inline,
            recv_depth: if on_srq { spec.attr.recv_depth } else { old.recv_depth },
            recv_segments: if on_srq { spec.attr.recv_segments } else { old.recv_segments },
            ..spec.attr
        };
        *self.attr.lock().unwrap() = kept;
        Ok(None)
    }

    /// Whether the posted receives allow the change.
    fn check_posted(&self, change: &EpChange<'_>, old: &EpAttr) -> Result<()> {
        let receives = self.pair.receives.lock();
        let (posted, most) = (receives.ring.len(), receives.preposted.most());
        drop(receives);
        let refuse = |text: String| Err(Error::state(self.state().subtype(), text));
        let fewer = |to: Option<u32>, than: usize| to.filter(|&to| (to as usize) < than);
        if posted > 0 && change.recv_completion_flags.is_some_and(|flags| flags != old.recv_completion_flags)
        {
            return refuse(format!("{posted} receives are posted: too late for other flags of theirs"));
        }
        if self.srq.is_some() {
            return Ok(());
        }
        if let Some(to) = fewer(change.recv_depth, posted) {
            return refuse(format!("{posted} receives are posted: a queue for {to} does not hold them"));
        }
        if let Some(to) = fewer(change.recv_segments, most) {
            return refuse(format!("a receive of {most} segments is posted: it does not fit into {to}"));
        }
        Ok(())
    }

    /// Whether the QP of a UD EP is unused. Such a QP receives from its creation on.
    fn check_unused(&self, state: EpState) -> Result<()> {
        if !self.pair.receives.lock().ring.is_empty() {
            let text = "receives are posted, and datagrams may be taking them: too late for another queue";
            return Err(Error::state(state.subtype(), text));
        }
        if self.is_known_to_peers() {
            return Err(Error::state(state.subtype(), "peers know this EP's QP: too late for another queue"));
        }
        Ok(())
    }

    fn needs_another_qp(&self, spec: &EpSpec, old: &EpAttr) -> bool {
        let same = |now: &Arc<EvdInner>, new: &Option<Arc<EvdInner>>| match new {
            Some(new) => Arc::ptr_eq(now, new),
            None => now.discards,
        };
        let new = &spec.attr;
        let rdma = if self.is_ud() { 0 } else { new.rdma_read_segments.max(new.rdma_write_segments) };
        let room = new.request_segments.max(rdma);
        spec.pz.number != self.pz_number()
            || !same(&self.recv_evd, &spec.recv)
            || !same(&self.request_evd, &spec.request)
            || new.request_depth > old.request_depth
            || room > old.request_segments
            || new.max_inline > old.max_inline
            || self.srq.is_none()
                && (new.recv_depth > old.recv_depth || new.recv_segments > old.recv_segments)
    }

    fn change_connect_evd(&self, to: Option<&Arc<EvdInner>>) -> Result<()> {
        let mut connect = self.connect_evd.lock().unwrap();
        let same = match (&*connect, to) {
            (Some(now), Some(to)) => Arc::ptr_eq(now, to),
            (now, to) => now.is_none() && to.is_none(),
        };
        if same {
            return Ok(());
        }
        let stream = Stream { ep: self.id, kind: StreamKind::Connection, flags: CompletionFlags::empty() };
        if let Some(evd) = to {
            evd.attach(&[stream], 0)?;
        }
        if let Some(evd) = &*connect {
            evd.detach_one(Some(stream), 0);
        }
        *connect = to.cloned();
        Ok(())
    }

    /// Assigns completions of this QP to the EP.
    fn known_by(self: &Arc<Self>, queues: &EpQueues) -> Result<()> {
        let qpn = queues.qp.num();
        queues
            .recv
            .register(qpn, &self.pair, Arc::ptr_eq(&queues.recv, &self.recv_evd))
            .and_then(|()| {
                queues.request.register(qpn, &self.pair, Arc::ptr_eq(&queues.request, &self.recv_evd))
            })
            .inspect_err(|_| {
                queues.recv.forget(qpn);
                queues.request.forget(qpn);
            })
    }

    /// Recreates the EP with a QP of another specification. IDs, watermarks and posted receives are
    /// kept.
    fn recreate(self: &Arc<Self>, spec: EpSpec, control: &mut Control, state: EpState) -> Result<Arc<Self>> {
        let before = self.connect_evd();
        self.change_connect_evd(spec.connect.as_ref())?;
        // No other thread posts: the one thread that may post is in this call.
        let queues = spec.open_queues(self.id).and_then(|mut queues| {
            let receives = self.pair.receives.lock();
            let posted = receives.repeat_on(&mut queues.recvs).map_err(|error| {
                let text = format!("the receives of an EP could not be posted to a new queue: {error}");
                Error::resources(Subtype::ResourceTep, text)
            });
            drop(receives);
            // Completions of the new QP find the old EP until they find the new EP, in the same
            // place.
            match posted.and_then(|()| self.known_by(&queues)) {
                Ok(()) => Ok(queues),
                Err(error) => {
                    spec.close_queues(self.id, &queues);
                    Err(error)
                }
            }
        });
        let queues = queues.inspect_err(|_| {
            if let Err(error) = self.change_connect_evd(before.as_ref()) {
                tracing::error!(%error, ep = self.id.0, "cannot restore the connect EVD of an EP");
            }
        })?;
        // Remove the EP's own streams once: the new streams may be on the same EVDs.
        let stream = |kind, flags: CompletionFlags| Stream { ep: self.id, kind, flags };
        let recv = stream(StreamKind::Recv { srq: self.srq.is_some() }, self.pair.recv_flags());
        let request = stream(StreamKind::Request, self.pair.request_flags());
        let qp = self.qp();
        let qpn = qp.num();
        self.device.rkeys.ep_gone(self.id);
        for (evd, stream, room) in
            [(&self.recv_evd, recv, self.room.recv), (&self.request_evd, request, self.room.request)]
        {
            evd.forget(qpn);
            evd.detach_one((!evd.discards).then_some(stream), room);
        }
        self.room.give_back(&qp, &self.recv_evd, &self.request_evd);
        if let Some(srq) = &self.srq {
            srq.detach(&self.recv_evd);
        }
        spec.pz.enter();
        self.pz.lock().unwrap().leave();
        let control = std::mem::replace(control, Control::new(None));
        let made = spec.assemble(self.id, queues, control, state, self.cell.clone());
        let inner = made.unwrap_or_else(|(inner, error)| {
            tracing::error!(%error, ep = self.id.0, "a recreated EP is missing from a table");
            inner
        });
        let preposted = std::mem::take(&mut self.pair.receives.lock().preposted);
        inner.pair.receives.lock().preposted = preposted;
        loop {
            // Neither lock is taken under the other.
            let receive = self.pair.receives.lock().ring.take_first();
            let Some(receive) = receive else { break };
            inner.pair.receives.lock().ring.push(receive);
        }
        inner.pair.context.store(self.pair.context(), Ordering::Relaxed);
        inner.pair.follow_counts(&self.pair);
        inner.attempt.store(self.attempt(), Ordering::Release);
        // Service points and requests find the new EP. Threads that still hold this EP find it
        // closed.
        self.cell.set(&inner);
        self.live.store(false, Ordering::Release);
        Ok(inner)
    }
}
