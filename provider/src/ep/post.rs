//! Posting to an EP, and the rings that record posted work requests.

use super::{EpInner, RequestKind};
use crate::Subtype;
use crate::datapath::{Outgoing, SendQueue, WrInfo, verbs::refused};
use crate::device::Use;
use crate::error::{Direction, PostError};
use crate::lmr::PoolMemory;
use crate::queue_pair::{Credit, QueuePair, Receive, Request, Requests};
use crate::types::{CompletionFlags, Destination, DtoOp, EpState, LmrTriplet, MAX_IOV};
use rxe_fallback::{SendFlags, SendOp, Sge};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The size of the operand of an atomic operation, in bytes.
const ATOMIC_LEN: u64 = 8;

impl EpInner {
    pub(crate) fn post_recv(
        self: &Arc<Self>,
        iov: &[LmrTriplet],
        info: WrInfo,
        flags: CompletionFlags,
    ) -> Result<(), PostError> {
        self.post_recv_of(iov.len(), info.over(iov), flags, |sges| {
            let using = Use { pz: self.pz_number(), direction: Direction::Write };
            self.device.lmrs.check_all(iov, using, sges)
        })
    }

    /// Posts part of a pool's memory as a receive; `bytes` is an offset and a length.
    pub(crate) fn post_recv_pool(
        self: &Arc<Self>,
        memory: &PoolMemory,
        bytes: (usize, usize),
        info: WrInfo,
    ) -> Result<(), PostError> {
        let info = WrInfo { lmrs: [memory.number(), 0, 0, 0], ..info };
        self.post_recv_of(1, info, CompletionFlags::empty(), |sges| {
            sges[0] = memory.segment(0, bytes, &self.pz(), Direction::Write)?;
            Ok(1)
        })
    }

    /// Posts a receive of `segments` segments. `check` checks and writes them, and returns how many
    /// remain.
    fn post_recv_of(
        self: &Arc<Self>,
        segments: usize,
        info: WrInfo,
        flags: CompletionFlags,
        check: impl FnOnce(&mut [Sge]) -> Result<usize, PostError>,
    ) -> Result<(), PostError> {
        if !self.live.load(Ordering::Acquire) {
            return Err(PostError::Stale(Subtype::InvalidHandleEp));
        }
        if self.srq.is_some() {
            return Err(PostError::UsesSrq);
        }
        if !self.flags_fit(flags, CompletionFlags::UNSIGNALLED, self.pair.recv_flags()) {
            return Err(PostError::Flags);
        }
        let mut receives = self.pair.receives.lock();
        if segments > receives.max_iov {
            return Err(too_many(segments, receives.max_iov));
        }
        let mut sges = [Sge::default(); MAX_IOV];
        let n = check(&mut sges)?;
        if receives.ring.len() >= receives.capacity {
            drop(receives);
            // Only completed receives make room.
            let _ = self.recv_evd.harvest_now();
            receives = self.pair.receives.lock();
            if receives.ring.len() >= receives.capacity {
                return Err(PostError::Full(Subtype::ResourceTep));
            }
        }
        let state = self.state();
        if state == EpState::Disconnected {
            receives.count(&sges[..n]);
            if !receives.ring.is_empty() {
                receives.ring.push_back(Receive { info, flags, on_device: false });
                return Ok(());
            }
            drop(receives);
            self.recv_evd.put_flushed(&self.pair, info, self.pair.receive_op(), Credit::Nothing);
            return Ok(());
        }
        // Datagrams may arrive at any time.
        let keep = state.is_before_connection() && !self.is_ud();
        if keep {
            receives.preposted.reserve(&sges[..n]).map_err(|_| PostError::Full(Subtype::ResourceMemory))?;
        }
        receives.queue.post(&sges[..n]).map_err(refused)?;
        receives.ring.push_back(Receive { info, flags, on_device: true });
        if keep {
            receives.preposted.push(&sges[..n]);
        }
        receives.count(&sges[..n]);
        drop(receives);
        self.check_marks();
        Ok(())
    }

    fn flags_fit(&self, flags: CompletionFlags, allowed: CompletionFlags, mode: CompletionFlags) -> bool {
        (allowed | CompletionFlags::EVD_THRESHOLD).contains(flags)
            && (!flags.contains(CompletionFlags::UNSIGNALLED) || mode.contains(CompletionFlags::UNSIGNALLED))
    }

    /// Whether a request with these flags can be posted. Returns the EP's state.
    #[inline]
    pub(super) fn takes_requests(&self, flags: CompletionFlags) -> Result<EpState, PostError> {
        self.takes_flags(flags)?;
        // On a DISCONNECTED EP, the request is flushed without the device, which may forget it:
        // immediately, or after the requests that are still in progress.
        let state = self.state();
        if state == EpState::Connected || state == EpState::Disconnected && !self.is_ud() {
            return Ok(state);
        }
        Err(PostError::EpState(state.subtype()))
    }

    #[inline]
    fn takes_flags(&self, flags: CompletionFlags) -> Result<(), PostError> {
        if !self.live.load(Ordering::Acquire) {
            return Err(PostError::Stale(Subtype::InvalidHandleEp));
        }
        let allowed = CompletionFlags::SUPPRESS
            | CompletionFlags::SOLICITED_WAIT
            | CompletionFlags::UNSIGNALLED
            | CompletionFlags::BARRIER_FENCE;
        if !self.flags_fit(flags, allowed, self.pair.request_flags()) {
            return Err(PostError::Flags);
        }
        Ok(())
    }

    pub(crate) fn post_request(
        self: &Arc<Self>,
        kind: RequestKind,
        iov: &[LmrTriplet],
        info: WrInfo,
        flags: CompletionFlags,
    ) -> Result<(), PostError> {
        self.post_request_of(kind, iov.len(), info, flags, |direction, sges| {
            let using = Use { pz: self.pz_number(), direction };
            self.device.lmrs.check_all(iov, using, sges)
        })?;
        // An empty segment was not checked.
        if let (RequestKind::Send | RequestKind::Write(_) | RequestKind::Read(_), [one]) = (kind, iov)
            && one.segment_length > 0
        {
            let longest = self.device.attr.max_message_size;
            self.pair.remember(&self.device.lmrs, one.lmr_context, longest);
        }
        Ok(())
    }

    /// Sends pieces of a pool's memory; each piece is an offset and a length.
    pub(crate) fn post_send_pool(
        self: &Arc<Self>,
        memory: &PoolMemory,
        pieces: impl ExactSizeIterator<Item = (usize, usize)>,
        info: WrInfo,
        flags: CompletionFlags,
    ) -> Result<(), PostError> {
        self.post_request_of(RequestKind::Send, pieces.len(), info, flags, |direction, sges| {
            let pz = self.pz();
            let mut n = 0;
            // A segment of length 0 contributes no bytes, as with triplets (R52).
            for (i, piece) in (0..).zip(pieces).filter(|(_, (_, len))| *len > 0) {
                sges[n] = memory.segment(i, piece, &pz, direction)?;
                n += 1;
            }
            Ok(n)
        })
    }

    /// Posts a request of `segments` segments. `check` checks and writes them, and returns how many
    /// remain.
    #[inline(always)]
    fn post_request_of(
        self: &Arc<Self>,
        kind: RequestKind,
        segments: usize,
        info: WrInfo,
        flags: CompletionFlags,
        check: impl FnOnce(Direction, &mut [Sge]) -> Result<usize, PostError>,
    ) -> Result<(), PostError> {
        let state = match kind {
            RequestKind::SendUd(_) => {
                self.takes_flags(flags)?;
                self.takes_datagrams()?
            }
            _ => self.takes_requests(flags)?,
        };
        let direction = match kind {
            RequestKind::Send
            | RequestKind::SendInvalidate(_)
            | RequestKind::SendUd(_)
            | RequestKind::Write(_)
            | RequestKind::WriteImmediate(..) => Direction::Read,
            RequestKind::Read(_) | RequestKind::FetchAdd(..) | RequestKind::CompareSwap(..) => {
                Direction::Write
            }
        };
        let mut sges = [Sge::default(); MAX_IOV];
        if segments > MAX_IOV {
            return Err(too_many(segments, MAX_IOV));
        }
        let mut n = check(direction, &mut sges)?;
        let mut length: u64 = sges[..n].iter().map(|sge| u64::from(sge.len)).sum();
        let (op, verb) = match kind {
            RequestKind::SendUd(to) => {
                return self.post_request_ud(state, to, &sges[..n], length, info, flags, segments);
            }
            RequestKind::Send => (DtoOp::Send, SendOp::Send),
            RequestKind::SendInvalidate(_) if !self.device.attr.remote_invalidate => {
                return Err(PostError::NotSupported);
            }
            RequestKind::SendInvalidate(rmr_context) => (DtoOp::Send, SendOp::SendInvalidate(rmr_context)),
            RequestKind::Write(to) | RequestKind::WriteImmediate(to, _)
                if length > u64::from(to.segment_length) =>
            {
                return Err(PostError::Length);
            }
            RequestKind::Write(to) => {
                (DtoOp::RdmaWrite, SendOp::Write { remote_addr: to.virtual_address, rkey: to.rmr_context })
            }
            RequestKind::WriteImmediate(to, imm) => (
                DtoOp::RdmaWriteImmediate,
                SendOp::WriteImm { remote_addr: to.virtual_address, rkey: to.rmr_context, imm },
            ),
            RequestKind::Read(from) => {
                let want = u64::from(from.segment_length);
                if want > length {
                    return Err(PostError::Length);
                }
                n = cut(&mut sges[..n], from.segment_length);
                length = want;
                (DtoOp::RdmaRead, SendOp::Read { remote_addr: from.virtual_address, rkey: from.rmr_context })
            }
            RequestKind::FetchAdd(at, _) | RequestKind::CompareSwap(at, ..)
                if length != ATOMIC_LEN || at.virtual_address % ATOMIC_LEN != 0 =>
            {
                return Err(PostError::Length);
            }
            RequestKind::FetchAdd(..) | RequestKind::CompareSwap(..) if !self.device.attr.atomics => {
                return Err(PostError::NotSupported);
            }
            RequestKind::FetchAdd(at, add) => (
                DtoOp::FetchAndAdd,
                SendOp::FetchAdd { remote_addr: at.virtual_address, rkey: at.rmr_context, add },
            ),
            RequestKind::CompareSwap(at, compare, swap) => (
                DtoOp::CompareAndSwap,
                SendOp::CmpSwap { remote_addr: at.virtual_address, rkey: at.rmr_context, compare, swap },
            ),
        };
        if length > u64::from(self.device.attr.max_message_size) {
            return Err(PostError::Length);
        }
        let solicits = matches!(
            kind,
            RequestKind::Send | RequestKind::SendInvalidate(_) | RequestKind::WriteImmediate(..)
        );
        let request = Request::new(&info, flags, op, length as u32);
        self.submit(state, request, solicits, segments, |queue, seq, flags| {
            queue.post(&Outgoing { seq, op: verb, sges: &sges[..n], flags, to: None })
        })
    }

    /// The rest of [`EpInner::post_request`] for a datagram.
    #[expect(
        clippy::too_many_arguments,
        reason = "one caller; a function of its own keeps the code of other requests short"
    )]
    fn post_request_ud(
        self: &Arc<Self>,
        state: EpState,
        to: Destination,
        sges: &[Sge],
        length: u64,
        info: WrInfo,
        flags: CompletionFlags,
        segments: usize,
    ) -> Result<(), PostError> {
        let ah = self.route_to(to, self.pz_number())?;
        if length > u64::from(self.device.attr.mtu) {
            return Err(PostError::Length);
        }
        let request = Request::new(&info, flags, DtoOp::SendUd, length as u32);
        self.submit(state, request, true, segments, |queue, seq, flags| {
            self.post_datagram(queue, seq, sges, flags, (&ah, to.qpn))
        })?;
        self.drop_handles_of_done_sends();
        Ok(())
    }

    /// Adds a checked request to the ring and passes it to the device by `post`. On a DISCONNECTED
    /// EP, the request is flushed instead.
    #[inline]
    pub(super) fn submit(
        self: &Arc<Self>,
        state: EpState,
        mut request: Request,
        solicits: bool,
        segments: usize,
        post: impl FnOnce(&mut SendQueue, u64, SendFlags) -> Result<(), rxe_fallback::PostError>,
    ) -> Result<(), PostError> {
        let mut requests = self.pair.requests.lock();
        if segments > requests.max_iov {
            return Err(too_many(segments, requests.max_iov));
        }
        if requests.ring.room() == 0 {
            drop(requests);
            // Finished suppressed requests free their places in the ring here.
            let _ = self.request_evd.harvest_now();
            requests = self.pair.requests.lock();
            if requests.ring.room() == 0 {
                return Err(PostError::Full(Subtype::ResourceCredits));
            }
        }
        if state == EpState::Disconnected {
            requests.posted.add(request.op, request.length.into());
            if !requests.ring.is_empty() {
                request.on_device = false;
                requests.ring.push(request);
                return Ok(());
            }
            requests.ring.hold_place();
            drop(requests);
            self.request_evd.put_flushed(
                &self.pair,
                request.info(),
                request.op,
                Credit::Request(self.pair.clone()),
            );
            return Ok(());
        }
        // Every request is signalled, even if its event is suppressed. The provider therefore
        // always knows which requests are done, and frees their places one by one.
        let mut flags = SendFlags::SIGNALLED;
        flags.set(SendFlags::SOLICITED, solicits && request.flags.contains(CompletionFlags::SOLICITED_WAIT));
        flags.set(SendFlags::FENCE, request.flags.contains(CompletionFlags::BARRIER_FENCE));
        let seq = requests.ring.end();
        post(&mut requests.queue, seq, flags).map_err(refused)?;
        requests.posted.add(request.op, request.length.into());
        requests.ring.push(request);
        Ok(())
    }

    /// Flushes work requests that the device will never complete: those posted after the connection
    /// had ended, or to a device that forgets them (rxe, for receives posted in error). Unless the
    /// device is known to have stopped, buffers of pools that are on the device are not returned to
    /// their pool: the device may still use them.
    pub(crate) fn flush_left(self: &Arc<Self>, stopped: bool) {
        let unsafe_to_lend = |info: &WrInfo, on_device| !stopped && on_device && info.pool != 0;
        loop {
            let left = self.pair.receives.lock().ring.pop_front();
            let Some(receive) = left else { break };
            if unsafe_to_lend(&receive.info, receive.on_device) {
                continue;
            }
            self.recv_evd.put_flushed(&self.pair, receive.info, self.pair.receive_op(), Credit::Nothing);
        }
        loop {
            let mut requests = self.pair.requests.lock();
            let Some(request) = requests.ring.take_first() else { break };
            requests.ring.hold_place();
            drop(requests);
            if unsafe_to_lend(&request.info(), request.on_device) && request.op != DtoOp::RmrBind {
                self.pair.request_reaped();
                continue;
            }
            self.request_evd.put_flushed(
                &self.pair,
                request.info(),
                request.op,
                Credit::Request(self.pair.clone()),
            );
        }
    }

    /// Returns the QP to its state before a connection that failed to start. In RESET a device
    /// forgets posted receives, so they are posted again. No request was posted.
    pub(crate) fn start_over(&self) -> crate::Result<()> {
        let qp = self.qp();
        self.recv_evd.while_not_harvested(|clean| {
            let mut receives = self.pair.receives.lock();
            qp.to_reset().map_err(|e| crate::Error::verb(Subtype::ResourceTep, e))?;
            // Removes completions of the old receives: none may be taken for a receive that is
            // posted again.
            clean(qp.num());
            self.device.to_init(&qp)?;
            receives.post_preposted_again().map_err(|error| {
                let text = format!("the receives of an EP could not be posted again: {error}");
                crate::Error::resources(Subtype::ResourceTep, text)
            })
        })
    }

    /// Resets the QP, so that the device forgets all work requests, and harvests what they have
    /// completed. The caller must not hold the lock of `control`.
    pub(crate) fn reset_qp(&self) -> crate::Result<()> {
        self.qp().to_reset().map_err(|e| crate::Error::verb(Subtype::ResourceTep, e))?;
        let harvested = self.recv_evd.harvest_now().and_then(|()| self.request_evd.harvest_now());
        // Without memory a harvest leaves completions behind.
        let qpn = self.qp().num();
        self.recv_evd.clean(qpn);
        self.request_evd.clean(qpn);
        harvested
    }
}

impl QueuePair {
    /// Posts a Send in the most common case: the direct path, a thread that owns the lock, one
    /// segment in the LMR of the last request, no flag but SUPPRESS, and a span of the queue with
    /// blocks left. Otherwise returns false without posting; then [`QueuePair::post_one_segment`]
    /// may post.
    ///
    /// All checks are made. Calls no code of the program and takes no lock of an object, so a
    /// caller may hold the guard of a biased lock's fast path. Straight-line code without calls.
    #[inline(always)]
    pub(crate) fn post_send_fast(&self, segment: &LmrTriplet, cookie: u64, flags: CompletionFlags) -> bool {
        if !CompletionFlags::SUPPRESS.contains(flags) {
            return false;
        }
        let Some(mut requests) = self.requests.try_lock_fast() else { return false };
        requests.post_one::<true>(RequestKind::Send, segment, cookie, flags)
    }

    /// Posts a Send, RDMA Write or RDMA Read on either path, if it has one segment in the LMR of
    /// the last request, and flags that any EP takes. Otherwise returns false without posting; then
    /// [`EpInner::post_request`] posts, or gives the error.
    ///
    /// Makes all checks, and may be called under a guard, as [`QueuePair::post_send_fast`].
    #[inline(always)]
    pub(crate) fn post_one_segment(
        &self,
        kind: RequestKind,
        segment: &LmrTriplet,
        cookie: u64,
        flags: CompletionFlags,
    ) -> bool {
        if !(CompletionFlags::SUPPRESS | CompletionFlags::SOLICITED_WAIT).contains(flags) {
            return false;
        }
        self.requests.lock().post_one::<false>(kind, segment, cookie, flags)
    }
}

impl Requests {
    /// Posts a Send, RDMA Write or RDMA Read if the LMR of the last request contains the segment,
    /// and if there is room. The flags are SUPPRESS and SOLICITED_WAIT at most.
    ///
    /// `IN_SPAN`: only on the direct path, without a look for room, and without SOLICITED_WAIT.
    #[inline(always)]
    fn post_one<const IN_SPAN: bool>(
        &mut self,
        kind: RequestKind,
        segment: &LmrTriplet,
        cookie: u64,
        flags: CompletionFlags,
    ) -> bool {
        // There is an LMR only while the EP is connected, and a key only up to the length of the
        // longest message.
        let Some(lkey) = self.last.key(segment) else { return false };
        if self.ring.room() == 0 {
            return false;
        }
        let mut length = segment.segment_length;
        let mut send_flags = SendFlags::SIGNALLED;
        let (op, verb) = match kind {
            RequestKind::Send => {
                let solicited = !IN_SPAN && flags.contains(CompletionFlags::SOLICITED_WAIT);
                send_flags.set(SendFlags::SOLICITED, solicited);
                (DtoOp::Send, SendOp::Send)
            }
            RequestKind::Write(to) if length <= to.segment_length => {
                (DtoOp::RdmaWrite, SendOp::Write { remote_addr: to.virtual_address, rkey: to.rmr_context })
            }
            RequestKind::Read(from)
                if (1..=length).contains(&from.segment_length) && self.last.is_writable() =>
            {
                length = from.segment_length;
                (DtoOp::RdmaRead, SendOp::Read { remote_addr: from.virtual_address, rkey: from.rmr_context })
            }
            _ => return false,
        };
        let sge = Sge { addr: segment.virtual_address, len: length, lkey };
        let seq = self.ring.end();
        let posted = match &mut self.queue {
            SendQueue::Direct(queue) if IN_SPAN => queue.post_one(seq, verb, sge, send_flags),
            SendQueue::Verbs(_) if IN_SPAN => false,
            queue => queue.post_one(seq, verb, sge, send_flags),
        };
        if !posted {
            return false;
        }
        self.posted.add(op, length.into());
        let info = WrInfo { cookie, ..WrInfo::default() };
        self.ring.push(Request::new(&info, flags, op, length));
        true
    }
}

fn too_many(given: usize, most: usize) -> PostError {
    PostError::TooManySegments { given: u32::try_from(given).unwrap_or(u32::MAX), most: most as u32 }
}

/// Shortens segments to `len` bytes in total. Returns how many segments remain.
fn cut(sges: &mut [Sge], mut len: u32) -> usize {
    for (i, sge) in sges.iter_mut().enumerate() {
        if len == 0 {
            return i;
        }
        sge.len = sge.len.min(len);
        len -= sge.len;
    }
    sges.len()
}
