//! Creating EPs: checks, the QP, and the tables that refer to the EP.

use super::Control;
use super::checks::{check_attr, pair_fits, request_mode};
use super::ud_state::UdState;
use super::{EpCell, EpEvds, EpInner, Room};
use crate::counters::Posted;
use crate::datapath::{RecvQueue, SendQueue};
use crate::defaults::Defaults;
use crate::device::{Class, Device, QueueLmrs, ReservedTimers};
use crate::evd::{EvdInner, Stream, StreamKind};
use crate::memory::headroom;
use crate::pz::PzInner;
use crate::queue_pair::{
    LastPool, Modes, PrePosted, QueuePair, Receive, Receives, RecvHooks, Request, Requests, Ring,
};
use crate::srq::SrqInner;
use crate::sync::Mutex;
use crate::types::{CompletionFlags, EpId, EpState, EvdFlags, MAX_IOV, ServiceType, next_id};
use crate::{Ep, EpAttr, Error, Evd, Ia, IaCounter, Result, Subtype};
use rxe_fallback::cm::ConnInfo;
use rxe_fallback::{Cq, Qp, QpInit, QpKind};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

/// The properties of an EP that is about to be created.
pub(super) struct EpSpec {
    pub(super) device: Arc<Device>,
    pub(super) defaults: Arc<Defaults>,
    pub(super) pz: Arc<PzInner>,
    pub(super) recv: Option<Arc<EvdInner>>,
    pub(super) request: Option<Arc<EvdInner>>,
    pub(super) connect: Option<Arc<EvdInner>>,
    pub(super) srq: Option<Arc<SrqInner>>,
    pub(super) attr: EpAttr,
}

/// The numbers of the EVD arguments of the present call, for its errors.
#[derive(Clone, Copy)]
pub(super) struct ArgNumbers {
    pub(super) recv: u16,
    pub(super) request: u16,
}

/// A new QP, with the EVDs that take its completions.
pub(super) struct EpQueues {
    pub(super) recv: Arc<EvdInner>,
    pub(super) request: Arc<EvdInner>,
    pub(super) qp: Arc<Qp>,
    pub(super) sends: SendQueue,
    pub(super) recvs: RecvQueue,
    pub(super) room: Room,
    requests: Ring<Request>,
    receives: Ring<Receive>,
    ud: Option<Box<UdState>>,
    timers: ReservedTimers,
}

impl EpSpec {
    /// Checks the handles. Each EVD is optional.
    pub(super) fn new(
        ia: &Ia,
        pz: &Arc<PzInner>,
        evds: EpEvds<'_>,
        srq: Option<&Arc<SrqInner>>,
        attr: EpAttr,
    ) -> Result<Self> {
        Self::new_on((&ia.device, &ia.defaults), pz, evds, srq, attr)
    }

    fn new_on(
        (device, defaults): (&Arc<Device>, &Arc<Defaults>),
        pz: &Arc<PzInner>,
        evds: EpEvds<'_>,
        srq: Option<&Arc<SrqInner>>,
        attr: EpAttr,
    ) -> Result<Self> {
        device.check()?;
        pz.check(device)?;
        let recv = dto_evd(device, evds.recv, Subtype::InvalidHandleEvdRecv)?;
        let request = dto_evd(device, evds.request, Subtype::InvalidHandleEvdRequest)?;
        let connect = connect_evd(device, evds.connect, srq.is_some())?;
        if let Some(srq) = srq {
            srq.check_for(device)?;
        }
        Ok(Self {
            device: device.clone(),
            defaults: defaults.clone(),
            pz: pz.clone(),
            recv,
            request,
            connect,
            srq: srq.cloned(),
            attr,
        })
    }

    /// Creates a new EP. Attributes are argument `attr_arg` of the call.
    pub(super) fn make(self, attr_arg: u16) -> Result<Arc<EpInner>> {
        check_attr(&self.device, &self.attr, attr_arg, self.srq.is_some())?;
        let id = EpId(next_id());
        self.check(None, id, ArgNumbers { recv: 3, request: 4 })?;
        let queues = self.open_queues(id)?;
        if let Some(evd) = &self.connect {
            let flags = CompletionFlags::empty();
            let stream = Stream { ep: id, kind: StreamKind::Connection, flags };
            evd.attach(&[stream], 0).inspect_err(|_| self.close_queues(id, &queues))?;
        }
        let control = Control::new(self.attr.soft_high_watermark);
        self.pz.enter();
        let made = self.assemble(id, queues, control, EpState::Unconnected, Arc::default());
        let inner = made.map_err(|(inner, error)| {
            inner.live.store(false, Ordering::Release);
            inner.detach();
            error
        })?;
        inner.cell.set(&inner);
        Ok(inner)
    }

    /// Checks that PZ, SRQ and EVDs fit together. Streams of an EP that is being changed do not
    /// count.
    pub(super) fn check(&self, but_not: Option<EpId>, id: EpId, args: ArgNumbers) -> Result<()> {
        if let Some(srq) = &self.srq
            && !self.device.provider_attr.srq_ep_pz_difference_supported
            && srq.pz.number != self.pz.number
        {
            return Err(Error::arg(2, "this device takes SRQ buffers from the EP's own PZ only"));
        }
        let (recv_stream, request_stream) = (self.recv_stream(id), self.request_stream(id));
        if let Some(evd) = &self.recv {
            evd.may_feed(recv_stream, but_not, args.recv)?;
        }
        if let Some(evd) = &self.request {
            evd.may_feed(request_stream, but_not, args.request)?;
            if self.recv.as_ref().is_some_and(|recv| Arc::ptr_eq(recv, evd)) {
                pair_fits(recv_stream, request_stream)?;
            }
        }
        Ok(())
    }

    fn recv_stream(&self, ep: EpId) -> Stream {
        let kind = StreamKind::Recv { srq: self.srq.is_some() };
        Stream { ep, kind, flags: self.attr.recv_completion_flags }
    }

    fn request_stream(&self, ep: EpId) -> Stream {
        Stream { ep, kind: StreamKind::Request, flags: request_mode(self.attr.request_completion_flags) }
    }

    /// Creates the QP, reserves CQ entries for it, and attaches its streams to the EVDs.
    pub(super) fn open_queues(&self, id: EpId) -> Result<EpQueues> {
        headroom()?;
        let timers = self.device.reactor.reserve_timers()?;
        let or_discards = |evd: &Option<Arc<_>>| evd.clone().map_or_else(|| self.defaults.discards(), Ok);
        let (recv, request) = (or_discards(&self.recv)?, or_discards(&self.request)?);
        if let Some(srq) = &self.srq {
            srq.attach(&recv)?;
        }
        let detach_srq = || self.srq.iter().for_each(|srq| srq.detach(&recv));
        let (qp, room) = self.make_qp(&recv, &request, id).inspect_err(|_| detach_srq())?;
        let undo = || {
            room.give_back(&qp, &recv, &request);
            detach_srq();
        };
        let memory = || -> Result<_> {
            self.device.to_init(&qp)?;
            let queues = self.device.path.queues(&qp, room.request as usize, self.srq.is_some())?;
            let sends = room.request as usize;
            let ud = self.attr.service_type == ServiceType::Ud;
            let ud = if ud {
                self.device.sends_datagrams.store(true, Ordering::Release);
                Some(Box::new(UdState::new(sends)?))
            } else {
                None
            };
            Ok((queues, Ring::of_requests(sends)?, Ring::zeroed(room.recv as usize)?, ud))
        };
        let ((sends, recvs), requests, receives, ud) = memory().inspect_err(|_| undo())?;
        let streams = self.recv.is_some().then(|| self.recv_stream(id));
        recv.attach(streams.as_slice(), room.recv).inspect_err(|_| undo())?;
        let streams = self.request.is_some().then(|| self.request_stream(id));
        request.attach(streams.as_slice(), room.request).inspect_err(|_| {
            recv.detach_one(self.recv.is_some().then(|| self.recv_stream(id)), room.recv);
            undo();
        })?;
        Ok(EpQueues { recv, request, qp: Arc::new(qp), sends, recvs, room, requests, receives, ud, timers })
    }

    /// Undoes [`EpSpec::open_queues`]. Old streams of an EP that is being changed stay.
    pub(super) fn close_queues(&self, id: EpId, queues: &EpQueues) {
        queues.recv.detach_one(self.recv.is_some().then(|| self.recv_stream(id)), queues.room.recv);
        queues
            .request
            .detach_one(self.request.is_some().then(|| self.request_stream(id)), queues.room.request);
        queues.room.give_back(&queues.qp, &queues.recv, &queues.request);
        self.srq.iter().for_each(|srq| srq.detach(&queues.recv));
    }

    /// Creates the QP, with the room in the CQs that its work requests need.
    fn make_qp(&self, recv: &EvdInner, request: &EvdInner, id: EpId) -> Result<(Qp, Room)> {
        let attr = &self.attr;
        let on_srq = self.srq.is_some();
        let max_send_wr = attr.request_depth.max(1);
        let max_recv_wr = if on_srq { 0 } else { attr.recv_depth.max(1) };
        // The device rounds the queues up. The difference goes back below.
        let most = Room {
            request: max_send_wr.saturating_mul(2),
            recv: if on_srq { 0 } else { max_recv_wr.saturating_mul(2).max(4) },
        };
        let (send_cq, recv_cq) = self.borrow_room(recv, request, most)?;
        let give_back = |room: Room| {
            request.repay(&send_cq, room.request);
            recv.repay(&recv_cq, room.recv);
        };
        let ud = attr.service_type == ServiceType::Ud;
        let rdma_iov = if ud { 0 } else { attr.rdma_read_segments.max(attr.rdma_write_segments) };
        let iov = attr.request_segments.max(rdma_iov).max(1);
        let init = QpInit {
            kind: if ud { QpKind::Ud } else { QpKind::Rc },
            send_cq: &send_cq,
            recv_cq: &recv_cq,
            srq: self.srq.as_ref().map(|srq| srq.recv.path.verbs()),
            max_send_wr,
            max_send_sge: iov,
            max_recv_wr,
            max_recv_sge: if on_srq { 0 } else { attr.recv_segments.max(1) },
            max_inline: attr.max_inline,
            signal_all: false,
            token: id.0,
        };
        let qp = self.device.path.qp(&self.pz.pd, &init).map_err(|e| {
            give_back(most);
            Error::verb(Subtype::ResourceTep, e)
        })?;
        let room = Room {
            request: qp.caps().max_send_wr.min(most.request),
            recv: if on_srq { 0 } else { qp.caps().max_recv_wr.min(most.recv) },
        };
        give_back(Room { request: most.request - room.request, recv: most.recv - room.recv });
        Ok((qp, room))
    }

    /// The CQs for a QP that needs this room in them.
    fn borrow_room(&self, recv: &EvdInner, request: &EvdInner, room: Room) -> Result<(Cq, Cq)> {
        let no_cq = || Error::handle(Subtype::InvalidHandleEvdRecv, "EVD");
        if self.srq.is_none() && std::ptr::eq(recv, request) {
            // In one CQ, the requests and receives of an EP are in the order of their completion.
            let cq = request.lend(room.request.saturating_add(room.recv))?.ok_or_else(no_cq)?;
            return Ok((cq.clone(), cq));
        }
        let send_cq = request.lend(room.request)?.ok_or_else(no_cq)?;
        let recv_cq = match &self.srq {
            Some(srq) => Ok(recv.receive_cq(srq.recv.number)),
            None => recv.lend(room.recv),
        };
        match recv_cq.and_then(|cq| cq.ok_or_else(no_cq)) {
            Ok(recv_cq) => Ok((send_cq, recv_cq)),
            Err(error) => {
                request.repay(&send_cq, room.request);
                Err(error)
            }
        }
    }

    /// Creates the EP with the real sizes of the QP, and adds it to the tables of its EVDs and its
    /// IA.
    ///
    /// # Errors
    /// No memory for those tables. The error returns the EP, which the caller must detach. An EP
    /// that is in the tables already, with this QP, needs no memory.
    pub(super) fn assemble(
        self,
        id: EpId,
        queues: EpQueues,
        mut control: Control,
        state: EpState,
        cell: Arc<EpCell>,
    ) -> Result<Arc<EpInner>, (Arc<EpInner>, Error)> {
        let EpQueues { recv, request, qp, sends, recvs, room, requests, receives, ud, timers } = queues;
        let mut attr = self.attr;
        // The QP of a UD EP receives from now on.
        control.drained = ud.is_none();
        let mut hooks = RecvHooks::empty();
        hooks.set(RecvHooks::MARKED, self.srq.is_some() && control.exceeds(1));
        hooks.set(RecvHooks::DATAGRAMS, ud.is_some());
        attr.request_depth = room.request;
        attr.request_segments = qp.caps().max_send_sge.min(MAX_IOV as u32);
        attr.max_inline = qp.caps().max_inline;
        if self.srq.is_none() {
            attr.recv_depth = room.recv;
            attr.recv_segments = qp.caps().max_recv_sge.min(MAX_IOV as u32);
        }
        let qpn = qp.num();
        let requests = Requests {
            qp,
            queue: sends,
            ring: requests,
            max_iov: attr.request_segments as usize,
            lmrs: QueueLmrs::closed(self.device.lmrs, self.pz.number),
            last_pool: LastPool::default(),
            most_inline: 0,
            unstopped: false,
            posted: Posted::default(),
        };
        let receives = Receives {
            queue: recvs,
            ring: receives,
            max_iov: attr.recv_segments as usize,
            lmrs: QueueLmrs::closed(self.device.lmrs, self.pz.number),
            last_pool: LastPool::default(),
            preposted: PrePosted::default(),
            posts: 0,
            bytes: 0,
        };
        let modes =
            Modes { recv: attr.recv_completion_flags, request: request_mode(attr.request_completion_flags) };
        let srq = self.srq.as_ref().map(|srq| srq.recv.clone());
        let pair = Arc::new(QueuePair::new(id, self.pz.number, srq, hooks, modes, (requests, receives)));
        let inner = Arc::new(EpInner {
            id,
            device: self.device,
            defaults: self.defaults,
            cell,
            attempt: AtomicU64::new(0),
            pair,
            srq: self.srq,
            live: AtomicBool::new(true),
            must_start_over: AtomicBool::new(false),
            state: AtomicU8::new(state as u8),
            ud,
            ending: Mutex::new(()),
            control: Mutex::new(control),
            pz: Mutex::new(self.pz),
            attr: Mutex::new(attr),
            room,
            recv_evd: recv,
            request_evd: request,
            connect_evd: Mutex::new(self.connect),
            _timers: timers,
        });
        let owner: Weak<EpInner> = Arc::downgrade(&inner);
        inner.pair.set_owner(owner);
        let known = (inner.recv_evd)
            .register(qpn, &inner.pair, true)
            .and_then(|()| {
                inner.request_evd.register(qpn, &inner.pair, Arc::ptr_eq(&inner.recv_evd, &inner.request_evd))
            })
            .and_then(|()| inner.device.register(Class::Ep, id.0, &inner, &[IaCounter::EpCreate]));
        match known {
            Ok(()) => Ok(inner),
            Err(error) => Err((inner, error)),
        }
    }
}

impl Room {
    /// Gives the room in the CQs of this QP back to the EVDs.
    pub(super) fn give_back(self, qp: &Qp, recv: &EvdInner, request: &EvdInner) {
        recv.repay(qp.recv_cq(), self.recv);
        request.repay(qp.send_cq(), self.request);
    }
}

impl Ep {
    /// Creates an EP for a connection request whose service point asks for one. The consumer later
    /// gives the EP a PZ and EVDs.
    pub(crate) fn provided(
        device: &Arc<Device>,
        defaults: &Arc<Defaults>,
        service_type: ServiceType,
        asked: &ConnInfo,
    ) -> Result<Arc<EpInner>> {
        let a = &device.attr;
        let attr = EpAttr {
            service_type,
            max_message_size: if service_type == ServiceType::Ud { a.mtu } else { a.max_message_size },
            max_rdma_size: a.max_rdma_size,
            rdma_reads_in: u32::from(asked.responder_resources).min(a.max_rdma_reads_in),
            rdma_reads_out: u32::from(asked.initiator_depth).min(a.max_rdma_reads_out),
            ..EpAttr::default()
        };
        let pz = defaults.pz()?;
        let evds = EpEvds::default();
        let inner = EpSpec::new_on((device, defaults), &pz, evds, None, attr)?.make(1)?;
        inner.set_state(EpState::TentativeConnectionPending);
        Ok(inner)
    }
}

/// The EVD for completions, if one is given.
pub(super) fn dto_evd(
    device: &Arc<Device>,
    evd: Option<&Evd>,
    sub: Subtype,
) -> Result<Option<Arc<EvdInner>>> {
    evd.map(|evd| evd.inner.check_for(device, EvdFlags::DTO, sub).map(|()| evd.inner.clone())).transpose()
}

/// The EVD for connection events, if one is given. For an EP without an SRQ, the EVD may belong to
/// another IA: dapltest's limit test uses one EVD for all IAs, and connection events need no
/// device.
pub(super) fn connect_evd(
    device: &Arc<Device>,
    evd: Option<&Evd>,
    on_srq: bool,
) -> Result<Option<Arc<EvdInner>>> {
    let Some(evd) = evd else { return Ok(None) };
    let of = if on_srq { device } else { &evd.inner.device };
    evd.inner.check_for(of, EvdFlags::CONNECTION, Subtype::InvalidHandleEvdConn)?;
    Ok(Some(evd.inner.clone()))
}
