//! Posts in common cases: one segment, or a few for a Send, an RDMA Write or a receive, whose LMRs
//! [`QueueLmrs`] finds; or in the pool of the last post to the queue.
//!
//! Functions that return false have not posted. Then the functions of `ep/post.rs` and `ep/recv.rs`
//! make all checks, and post or give the error.
//!
//! [`QueueLmrs`]: crate::device::QueueLmrs

use super::RequestKind;
use super::post::send_flags;
use crate::datapath::{MOST_IN_BLOCK, Outgoing, Record, RecvQueue, SendQueue, WrInfo};
use crate::error::Direction;
use crate::hint::likely;
use crate::lmr::PoolMemory;
use crate::queue_pair::{LastPool, QueuePair, Receive, Receives, Request, Requests};
use crate::types::{CompletionFlags, DtoOp, LmrTriplet, RmrTriplet};
use rxe_fallback::{SendFlags, SendOp, Sge};

/// The flags that any EP takes, without BARRIER_FENCE: those that a request posted here may have.
pub(super) const FAST_FLAGS: CompletionFlags =
    CompletionFlags::SUPPRESS.union(CompletionFlags::SOLICITED_WAIT);

impl QueuePair {
    /// Posts a Send, RDMA Write or RDMA Read on either path, if it has one segment, and flags that
    /// any EP takes, once a request has passed all checks. Otherwise returns false without posting;
    /// then [`EpInner::post_request`] posts, or gives the error.
    ///
    /// Makes all checks, and may be called under a guard, as [`Requests::post_send_fast`].
    #[inline(always)]
    pub fn post_one_segment(
        &self,
        kind: RequestKind,
        segment: &LmrTriplet,
        cookie: u64,
        flags: CompletionFlags,
    ) -> bool {
        if !FAST_FLAGS.contains(flags) {
            return false;
        }
        self.requests.lock().post_one(kind, segment, cookie, flags)
    }

    /// As [`QueuePair::post_one_segment`], for a Send or an RDMA Write of two to four segments.
    #[inline(never)]
    pub fn post_few(
        &self,
        kind: RequestKind,
        segments: &[LmrTriplet],
        cookie: u64,
        flags: CompletionFlags,
    ) -> bool {
        match *segments {
            [a, b] => self.post_few_segments(kind, &[a, b], cookie, flags),
            [a, b, c] => self.post_few_segments(kind, &[a, b, c], cookie, flags),
            [a, b, c, d] => self.post_few_segments(kind, &[a, b, c, d], cookie, flags),
            _ => false,
        }
    }

    /// As [`QueuePair::post_few`], for a number of segments that the compiler knows.
    #[inline(never)]
    fn post_few_segments<const N: usize>(
        &self,
        kind: RequestKind,
        segments: &[LmrTriplet; N],
        cookie: u64,
        flags: CompletionFlags,
    ) -> bool {
        if !FAST_FLAGS.contains(flags) {
            return false;
        }
        self.requests.lock().post_few(kind, segments, cookie, flags)
    }

    /// As [`Requests::post_send_fast`], for a thread that shares the requests with others.
    #[inline(always)]
    pub fn post_send_shared(&self, segment: &LmrTriplet, cookie: u64, flags: CompletionFlags) -> bool {
        let Some(mut requests) = self.requests.try_lock_shared() else { return false };
        requests.post_send_fast(std::array::from_ref(segment), cookie, flags)
    }
}

impl Requests {
    /// Posts a Send in the most common case: the direct path, a thread that owns the lock, one to four
    /// segments whose LMRs `QueueLmrs` finds, no flag but SUPPRESS, and a span of the queue with
    /// blocks left. Otherwise returns false without posting; then [`QueuePair::post_one_segment`] or
    /// [`QueuePair::post_few`] may post.
    ///
    /// All checks are made. Calls no code of the program and takes no lock of an object, so a
    /// caller may hold the guard of a biased lock's fast path. Straight-line code without calls.
    #[inline(always)]
    pub fn post_send_fast<const N: usize>(
        &mut self,
        segments: &[LmrTriplet; N],
        cookie: u64,
        flags: CompletionFlags,
    ) -> bool {
        if !likely(CompletionFlags::SUPPRESS.contains(flags)) || (N > 1 && N > self.max_iov) {
            return false;
        }
        // Closed unless the EP is connected.
        let Some((segments, length)) = self.lmrs.segments(segments, Direction::Read) else { return false };
        if self.ring.room() == 0 {
            return false;
        }
        let SendQueue::Direct(queue) = &mut self.queue else { return false };
        let info = WrInfo { cookie, ..WrInfo::default() };
        if !queue.post_send(Request::new(&info, flags, DtoOp::Send, length), segments) {
            return false;
        }
        self.ring.count();
        self.posted.add(DtoOp::Send, length.into());
        true
    }

    /// As [`Requests::post_send_fast`], for an RDMA Write of one segment, or with `READ` for an RDMA Read
    /// of one segment that is as long as the remote one.
    #[inline(always)]
    pub fn post_rdma_fast<const READ: bool>(
        &mut self,
        segment: &LmrTriplet,
        remote: &RmrTriplet,
        cookie: u64,
        flags: CompletionFlags,
    ) -> bool {
        let (op, direction) =
            if READ { (DtoOp::RdmaRead, Direction::Write) } else { (DtoOp::RdmaWrite, Direction::Read) };
        if !likely(CompletionFlags::SUPPRESS.contains(flags)) {
            return false;
        }
        // Closed unless the EP is connected.
        let found = self.lmrs.segments(std::array::from_ref(segment), direction);
        let Some(([segment], length)) = found else { return false };
        let most = remote.segment_length;
        if !likely(if READ { length == most } else { length <= most }) || self.ring.room() == 0 {
            return false;
        }
        let SendQueue::Direct(queue) = &mut self.queue else { return false };
        let info = WrInfo { cookie, ..WrInfo::default() };
        let request = Request::new(&info, flags, op, length);
        if !queue.post_rdma::<READ>(request, segment, (remote.virtual_address, remote.rmr_context)) {
            return false;
        }
        self.ring.count();
        self.posted.add(op, length.into());
        true
    }

    /// Posts a Send, RDMA Write or RDMA Read if `QueueLmrs` finds the LMR and there is room. The flags
    /// are SUPPRESS and SOLICITED_WAIT at most.
    #[inline(always)]
    fn post_one(
        &mut self,
        kind: RequestKind,
        segment: &LmrTriplet,
        cookie: u64,
        flags: CompletionFlags,
    ) -> bool {
        // Closed unless the EP is connected.
        let Some(mut sge) = self.lmrs.sge(segment, kind.direction()) else { return false };
        if self.ring.room() == 0 {
            return false;
        }
        let mut send_flags = SendFlags::SIGNALLED;
        let (op, verb) = match kind {
            RequestKind::Send => {
                send_flags.set(SendFlags::SOLICITED, flags.contains(CompletionFlags::SOLICITED_WAIT));
                (DtoOp::Send, SendOp::Send)
            }
            RequestKind::Write(to) if sge.len <= to.segment_length => {
                (DtoOp::RdmaWrite, SendOp::Write { remote_addr: to.virtual_address, rkey: to.rmr_context })
            }
            RequestKind::Read(from) if (1..=sge.len).contains(&from.segment_length) => {
                sge.len = from.segment_length;
                (DtoOp::RdmaRead, SendOp::Read { remote_addr: from.virtual_address, rkey: from.rmr_context })
            }
            _ => return false,
        };
        let info = WrInfo { cookie, ..WrInfo::default() };
        let request = Request::new(&info, flags, op, sge.len);
        let record = Record { seq: self.ring.end(), request };
        if !self.queue.post_one(record, verb, sge, send_flags) {
            return false;
        }
        self.add(request);
        self.posted.add(op, sge.len.into());
        true
    }

    /// Posts a Send or an RDMA Write of several segments if `QueueLmrs` finds their LMRs and there is
    /// room. The flags are SUPPRESS and SOLICITED_WAIT at most.
    #[inline(always)]
    fn post_few<const N: usize>(
        &mut self,
        kind: RequestKind,
        segments: &[LmrTriplet; N],
        cookie: u64,
        flags: CompletionFlags,
    ) -> bool {
        if N > self.max_iov || self.ring.room() == 0 {
            return false;
        }
        // Closed unless the EP is connected.
        let Some((sges, length)) = self.lmrs.sges(segments, Direction::Read) else { return false };
        let (op, verb, solicits) = match kind {
            RequestKind::Send => (DtoOp::Send, SendOp::Send, true),
            RequestKind::Write(to) if length <= to.segment_length => {
                let verb = SendOp::Write { remote_addr: to.virtual_address, rkey: to.rmr_context };
                (DtoOp::RdmaWrite, verb, false)
            }
            _ => return false,
        };
        let request = Request::new(&WrInfo { cookie, ..WrInfo::default() }, flags, op, length);
        if let SendQueue::Direct(queue) = &mut self.queue
            && queue.post_few(request, verb, sges, send_flags(flags, solicits))
        {
            self.ring.count();
            self.posted.add(op, length.into());
            return true;
        }
        self.post(request, solicits, |queue, record, flags| {
            queue.post(&Outgoing { record, op: verb, sges: &sges, flags, to: None })
        })
        .is_ok()
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
        if !FAST_FLAGS.contains(flags) {
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
        let request = Request::new(info, flags, DtoOp::Send, sge.len);
        let record = Record { seq: requests.ring.end(), request };
        let few = copy.filter(|copy| copy.len() <= MOST_IN_BLOCK);
        let posted = match (&mut requests.queue, few) {
            (SendQueue::Direct(queue), Some(few)) => queue.post_block(request, few, send_flags),
            (queue, _) => queue.post_one(record, SendOp::Send, sge, send_flags),
        };
        if posted {
            requests.posted.add(DtoOp::Send, sge.len.into());
            requests.add(request);
        }
        posted
    }

    /// Posts a receive of one to four segments, once a receive has passed all checks. Otherwise
    /// returns false without posting; then [`EpInner::post_recv`] posts, or gives the error. All
    /// checks are made.
    ///
    /// Calls no code of the program and takes no lock of an object, so a caller may hold the guard
    /// of a biased lock's fast path.
    #[inline(never)]
    pub fn post_recv_short(&self, segments: &[LmrTriplet], cookie: u64) -> bool {
        match *segments {
            [a] => self.post_recv_few(&[a], cookie),
            [a, b] => self.post_recv_few(&[a, b], cookie),
            [a, b, c] => self.post_recv_few(&[a, b, c], cookie),
            [a, b, c, d] => self.post_recv_few(&[a, b, c, d], cookie),
            _ => false,
        }
    }

    /// As [`QueuePair::post_recv_short`], for a number of segments that the compiler knows.
    #[inline(never)]
    fn post_recv_few<const N: usize>(&self, segments: &[LmrTriplet; N], cookie: u64) -> bool {
        self.receives.lock().post_few(segments, cookie)
    }

    /// As [`QueuePair::post_recv_short`], for part of a pool's memory, which is written if
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
        if receives.ring.room() == 0 || !receives.queue.post_one(sge) {
            return false;
        }
        receives.add(sge.len, WrInfo { lmrs: [memory.number(), 0, 0, 0], ..*info });
        true
    }
}

impl Receives {
    /// Posts a receive of `N` segments if `QueueLmrs` finds their LMRs and there is room.
    #[inline(always)]
    fn post_few<const N: usize>(&mut self, segments: &[LmrTriplet; N], cookie: u64) -> bool {
        self.post_fast(segments, cookie) || self.post_by_verbs(segments, cookie)
    }

    /// As [`QueuePair::post_recv_few`], on the direct path. Straight-line code without calls.
    #[inline(always)]
    pub fn post_fast<const N: usize>(&mut self, segments: &[LmrTriplet; N], cookie: u64) -> bool {
        if !self.has_room_for::<N>() {
            return false;
        }
        let RecvQueue::Direct(queue) = &mut self.queue else { return false };
        // Closed unless the EP is connected and has no watermarks.
        let Some((found, length)) = self.lmrs.segments(segments, Direction::Write) else { return false };
        if !queue.post_few(found) {
            return false;
        }
        self.add(length, info_of(segments, cookie));
        true
    }

    /// As [`Receives::post_fast`], on the verbs path. Calls the device library only.
    #[inline(always)]
    pub fn post_by_verbs<const N: usize>(&mut self, segments: &[LmrTriplet; N], cookie: u64) -> bool {
        if !self.has_room_for::<N>() {
            return false;
        }
        let RecvQueue::Verbs(qp) = &self.queue else { return false };
        let Some((sges, length)) = self.lmrs.sges(segments, Direction::Write) else { return false };
        if !RecvQueue::post_few_by_verbs(qp, &sges) {
            return false;
        }
        self.add(length, info_of(segments, cookie));
        true
    }

    /// Whether there is room for a receive of `N` segments.
    #[inline(always)]
    fn has_room_for<const N: usize>(&self) -> bool {
        (N == 1 || N <= self.max_iov) && self.ring.room() > 0
    }

    /// Adds a receive of `length` bytes that was posted to the queue, for which there is room.
    #[inline(always)]
    fn add(&mut self, length: u32, info: WrInfo) {
        self.ring.push(Receive::new(info, CompletionFlags::empty()));
        self.posts += 1;
        self.bytes += u64::from(length);
    }
}

/// As [`WrInfo::over`], for segments of which none is empty.
#[inline(always)]
fn info_of<const N: usize>(segments: &[LmrTriplet; N], cookie: u64) -> WrInfo {
    let lmrs = std::array::from_fn(|n| segments.get(n).map_or(0, |segment| segment.lmr_context));
    WrInfo { cookie, pool: 0, lmrs }
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
