//! Posting to an EP, and the rings that record posted work requests.

use super::{EpInner, RequestKind};
use crate::Subtype;
use crate::datapath::{MOST_IN_BLOCK, Outgoing, SendQueue, WrInfo, verbs::refused};
use crate::device::Use;
use crate::error::{Direction, PostError};
use crate::lmr::PoolMemory;
use crate::queue_pair::{Credit, LastPool, QueuePair, Receive, Receives, Request, Requests};
use crate::types::{CompletionFlags, Destination, DtoOp, EpState, LmrTriplet, MAX_IOV};
use rxe_fallback::{SendFlags, SendOp, Sge};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The size of the operand of an atomic operation, in bytes.
const ATOMIC_LEN: u64 = 8;

/// A request that has passed all checks but those of the queue.
#[derive(Clone, Copy)]
pub(super) struct Checked {
    pub(super) request: Request,
    pub(super) verb: SendOp<'static>,
    /// SOLICITED_WAIT has a meaning for the operation.
    pub(super) solicits: bool,
    /// The number of its segments.
    pub(super) segments: usize,
}

impl Checked {
    pub(super) const NOTHING: Self =
        Self { request: Request::NONE, verb: SendOp::Send, solicits: false, segments: 0 };

    /// The flags for the device.
    pub(super) fn send_flags(&self) -> SendFlags {
        send_flags(self.request.flags(), self.solicits)
    }
}

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
        })?;
        // An empty segment was not checked.
        if let [one] = iov
            && one.segment_length > 0
        {
            self.remember(|receives| receives.last.remember(&self.device.lmrs, one.lmr_context, u32::MAX));
        }
        Ok(())
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
        })?;
        self.remember(|receives| receives.last_pool = LastPool { number: info.pool, longest: u32::MAX });
        Ok(())
    }

    /// Remembers the memory of a receive, which was checked, for the next receives. They need no
    /// other check if the EP is connected and has no high watermark.
    fn remember(&self, how: impl FnOnce(&mut Receives)) {
        // Who changes the state or the watermarks holds this lock, and then forgets the memory.
        let control = self.control.lock().unwrap();
        if self.state() == EpState::Connected && !control.has_marks() {
            how(&mut self.pair.receives.lock());
        }
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

    /// Whether the EP is live and connected: it takes requests with flags that any EP takes.
    #[inline]
    pub(super) fn is_connected(&self) -> bool {
        self.live.load(Ordering::Acquire) && self.state() == EpState::Connected
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
        let pool = info.pool;
        let mut checked = false;
        self.post_request_of(RequestKind::Send, pieces.len(), info, flags, |direction, sges| {
            let pz = self.pz();
            let mut n = 0;
            // A segment of length 0 contributes no bytes, as with triplets (R52).
            for (i, piece) in (0..).zip(pieces).filter(|(_, (_, len))| *len > 0) {
                sges[n] = memory.segment(i, piece, &pz, direction)?;
                n += 1;
                checked = true;
            }
            Ok(n)
        })?;
        // An empty segment was not checked.
        if checked {
            self.pair.remember_pool(LastPool { number: pool, longest: self.device.attr.max_message_size });
        }
        Ok(())
    }

    /// Posts a Send or an RDMA Write of these bytes, which are copied.
    pub(super) fn post_inline(
        self: &Arc<Self>,
        kind: RequestKind,
        bytes: &[u8],
        cookie: u64,
        flags: CompletionFlags,
    ) -> Result<(), PostError> {
        let state = self.takes_requests(flags)?;
        let info = WrInfo { cookie, ..WrInfo::default() };
        // The bytes as a segment: checks of the length are the same.
        let len = u32::try_from(bytes.len()).map_err(|_| PostError::Length)?;
        let Checked { request, verb, solicits, .. } =
            self.checked(kind, &mut [Sge { len, ..Sge::default() }], &info, flags)?;
        if bytes.len() > self.pair.qp().caps().max_inline as usize {
            return Err(PostError::Length);
        }
        self.submit(state, request, solicits, 0, |queue, seq, flags| {
            queue.post_inline(seq, verb, bytes, flags)
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
        let mut sges = [Sge::default(); MAX_IOV];
        if segments > MAX_IOV {
            return Err(too_many(segments, MAX_IOV));
        }
        let n = check(kind.direction(), &mut sges)?;
        if let RequestKind::SendUd(to) = kind {
            let length = total(&sges[..n]);
            return self.post_request_ud(state, to, &sges[..n], length, info, flags, segments);
        }
        let Checked { request, verb, solicits, segments: n } =
            self.checked(kind, &mut sges[..n], &info, flags)?;
        self.submit(state, request, solicits, segments, |queue, seq, flags| {
            queue.post(&Outgoing { seq, op: verb, sges: &sges[..n], flags, to: None })
        })
    }

    /// Checks a request whose segments have passed their checks, except a datagram: its lengths,
    /// and whether the device has the operation. May shorten the segments.
    #[inline]
    pub(super) fn checked(
        &self,
        kind: RequestKind,
        sges: &mut [Sge],
        info: &WrInfo,
        flags: CompletionFlags,
    ) -> Result<Checked, PostError> {
        let mut n = sges.len();
        let mut length = total(sges);
        let (op, verb) = match kind {
            RequestKind::SendUd(_) => return Err(PostError::NotSupported),
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
                n = cut(sges, from.segment_length);
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
        let request = Request::new(info, flags, op, length as u32);
        Ok(Checked { request, verb, solicits, segments: n })
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
        request: Request,
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
            drop(requests);
            self.flush(request);
            return Ok(());
        }
        requests.post(request, solicits, post)
    }

    /// Flushes a request of a DISCONNECTED EP: immediately, or after the requests that are still in
    /// progress. The ring has a place for it.
    pub(super) fn flush(self: &Arc<Self>, mut request: Request) {
        let mut requests = self.pair.requests.lock();
        requests.posted.add(request.op, request.length.into());
        if !requests.ring.is_empty() {
            request.keep_off_device();
            requests.ring.push(request);
            return;
        }
        requests.ring.hold_place();
        drop(requests);
        let credit = Credit::Request(self.pair.clone());
        self.request_evd.put_flushed(&self.pair, request.info(), request.op, credit);
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
            if unsafe_to_lend(&request.info(), request.is_on_device()) && request.op != DtoOp::RmrBind {
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
    /// Posts a Send, RDMA Write or RDMA Read on either path, if it has one segment in the LMR of
    /// the last request, and flags that any EP takes. Otherwise returns false without posting; then
    /// [`EpInner::post_request`] posts, or gives the error.
    ///
    /// Makes all checks, and may be called under a guard, as [`Requests::post_send_fast`].
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
    /// Passes a checked request to the device by `post` and adds it to the ring. The caller has
    /// checked that there is a place.
    #[inline(always)]
    pub(super) fn post(
        &mut self,
        request: Request,
        solicits: bool,
        post: impl FnOnce(&mut SendQueue, u64, SendFlags) -> Result<(), rxe_fallback::PostError>,
    ) -> Result<(), PostError> {
        let flags = send_flags(request.flags(), solicits);
        let seq = self.ring.end();
        post(&mut self.queue, seq, flags).map_err(refused)?;
        self.posted.add(request.op, request.length.into());
        self.ring.push(request);
        Ok(())
    }

    /// Posts a Send in the most common case: the direct path, a thread that owns the lock, one
    /// segment in the LMR of the last request, no flag but SUPPRESS, and a span of the queue with
    /// blocks left. Otherwise returns false without posting; then [`QueuePair::post_one_segment`]
    /// may post.
    ///
    /// All checks are made. Calls no code of the program and takes no lock of an object, so a
    /// caller may hold the guard of a biased lock's fast path. Straight-line code without calls.
    #[inline(always)]
    pub(crate) fn post_send_fast(
        &mut self,
        segment: &LmrTriplet,
        cookie: u64,
        flags: CompletionFlags,
    ) -> bool {
        CompletionFlags::SUPPRESS.contains(flags)
            && self.post_one::<true>(RequestKind::Send, segment, cookie, flags)
    }

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

impl QueuePair {
    /// Posts a Send of part of a pool's memory, on either path, if the last Send from a pool was
    /// from this one, with flags that any EP takes. `bytes` is an offset and a length, which lie
    /// inside. Otherwise returns false without posting; then [`EpInner::post_send_pool`] posts, or
    /// gives the error.
    ///
    /// `copy`: the same bytes. On the direct path, few bytes go to the device with the request.
    #[inline(always)]
    pub(crate) fn post_send_from_last_pool(
        &self,
        memory: &PoolMemory,
        bytes: (usize, usize),
        copy: Option<&[u8]>,
        info: &WrInfo,
        flags: CompletionFlags,
    ) -> bool {
        if !(CompletionFlags::SUPPRESS | CompletionFlags::SOLICITED_WAIT).contains(flags) {
            return false;
        }
        let mut requests = self.requests.lock();
        let Some(sge) = known_segment(requests.last_pool, memory, bytes, info) else { return false };
        let mut send_flags = SendFlags::SIGNALLED;
        send_flags.set(SendFlags::SOLICITED, flags.contains(CompletionFlags::SOLICITED_WAIT));
        let requests = &mut *requests;
        if requests.ring.room() == 0 {
            return false;
        }
        let seq = requests.ring.end();
        let few = copy.filter(|copy| copy.len() <= MOST_IN_BLOCK);
        let posted = match (&mut requests.queue, few) {
            (SendQueue::Direct(queue), Some(few)) => queue.post_block(seq, few, send_flags),
            (queue, _) => queue.post_one(seq, SendOp::Send, sge, send_flags),
        };
        if posted {
            requests.posted.add(DtoOp::Send, sge.len.into());
            requests.ring.push(Request::new(info, flags, DtoOp::Send, sge.len));
        }
        posted
    }

    /// Posts a receive if the LMR of the last receive contains the segment. Otherwise returns false
    /// without posting; then [`EpInner::post_recv`] posts, or gives the error. All checks are made.
    ///
    /// Calls no code of the program and takes no lock of an object, so a caller may hold the guard
    /// of a biased lock's fast path.
    #[inline(always)]
    pub(crate) fn post_recv_from_last_lmr(&self, segment: &LmrTriplet, cookie: u64) -> bool {
        let mut receives = self.receives.lock();
        // There is an LMR only while the EP is connected and has no watermarks.
        let Some(lkey) = receives.last.key(segment) else { return false };
        let sge = Sge { addr: segment.virtual_address, len: segment.segment_length, lkey };
        receives.post_sge(sge, WrInfo { cookie, pool: 0, lmrs: [segment.lmr_context, 0, 0, 0] })
    }

    /// As [`QueuePair::post_recv_from_last_lmr`], for part of a pool's memory, which is written if
    /// the last receive from a pool was from this one.
    #[inline(always)]
    pub(crate) fn post_recv_from_last_pool(
        &self,
        memory: &PoolMemory,
        bytes: (usize, usize),
        info: &WrInfo,
    ) -> bool {
        let mut receives = self.receives.lock();
        let Some(sge) = known_segment(receives.last_pool, memory, bytes, info) else { return false };
        receives.post_sge(sge, WrInfo { lmrs: [memory.number(), 0, 0, 0], ..*info })
    }
}

impl Receives {
    /// Posts a checked receive of a connected EP if there is room.
    #[inline(always)]
    fn post_sge(&mut self, sge: Sge, info: WrInfo) -> bool {
        if self.ring.len() >= self.capacity || !self.queue.post_one(sge) {
            return false;
        }
        self.ring.push_back(Receive { info, flags: CompletionFlags::empty(), on_device: true });
        self.posts += 1;
        self.bytes += u64::from(sge.len);
        true
    }
}

/// The segment of these bytes of a pool's memory, if the pool is the last of its queue. It was
/// checked for the queue then; only its memory may have been freed since.
#[inline(always)]
pub(super) fn known_segment(
    last: LastPool,
    memory: &PoolMemory,
    bytes: (usize, usize),
    info: &WrInfo,
) -> Option<Sge> {
    // True for 1 to `longest`; no length is, if there is no last pool.
    let fits = bytes.1.wrapping_sub(1) < last.longest as usize;
    if info.pool == last.number && fits { memory.live_segment(bytes) } else { None }
}

/// The flags of a request for the device. Every request is signalled, even if its event is
/// suppressed. The provider therefore always knows which requests are done, and frees their places
/// one by one.
#[inline]
pub(super) fn send_flags(given: CompletionFlags, solicits: bool) -> SendFlags {
    let mut flags = SendFlags::SIGNALLED;
    flags.set(SendFlags::SOLICITED, solicits && given.contains(CompletionFlags::SOLICITED_WAIT));
    flags.set(SendFlags::FENCE, given.contains(CompletionFlags::BARRIER_FENCE));
    flags
}

/// The bytes of all segments.
fn total(sges: &[Sge]) -> u64 {
    sges.iter().map(|sge| u64::from(sge.len)).sum()
}

pub(super) fn too_many(given: usize, most: usize) -> PostError {
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
