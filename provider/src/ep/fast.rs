//! Fast posts to an EP: the thread that owns the lock of the queue, one to four segments whose LMRs
//! [`QueueLmrs`] finds, or part of a pool's memory, and no flag but SUPPRESS and SOLICITED_WAIT.
//!
//! All checks are made: the LMRs of a queue are closed unless the EP is connected, and `last_pool`
//! is none then. Functions that return false have not posted. Then those of `ep/post.rs` and
//! `ep/recv.rs` post, or give the error.
//!
//! They call no code of the program and take no lock of an object, so a caller may hold the guard
//! of a biased lock's fast path. On the direct path, and for one segment, they are straight-line
//! code without calls. They are generic over the path and the operation, and compiled once for each
//! number of segments.
//!
//! [`QueueLmrs`]: crate::device::QueueLmrs

use super::post::send_flags;
use super::request::{Operation, PoolBytes};
use crate::datapath::{Path, PostSends, Segment, WrInfo};
use crate::hint::likely;
use crate::lmr::PoolMemory;
use crate::queue_pair::{LastPool, Request, Requests};
use crate::types::{CompletionFlags, DtoOp, LmrTriplet};
use rxe_fallback::SendFlags;

mod receives;

/// Whether a request posted here may have these flags, which any EP takes.
#[inline(always)]
pub(super) fn takes<const SOLICITED: bool>(flags: CompletionFlags) -> bool {
    let solicited = if SOLICITED { CompletionFlags::SOLICITED_WAIT } else { CompletionFlags::empty() };
    CompletionFlags::SUPPRESS.union(solicited).contains(flags)
}

impl Requests {
    /// Posts a Send, RDMA Write or RDMA Read. `SOLICITED`: also with SOLICITED_WAIT, which costs
    /// some instructions.
    #[inline(always)]
    pub fn push_fast<P: Path, O: Operation, const SOLICITED: bool>(
        &mut self,
        op: O,
        iov: &[LmrTriplet],
        cookie: u64,
        flags: CompletionFlags,
    ) -> bool {
        match iov.len() {
            1 => self.push_segments::<P, O, SOLICITED, false, 1>(op, iov, cookie, flags),
            _ => self.push_several::<P, O, SOLICITED, false>(op, iov, cookie, flags),
        }
    }

    #[inline(never)]
    fn push_several<P: Path, O: Operation, const SOLICITED: bool, const ANY: bool>(
        &mut self,
        op: O,
        iov: &[LmrTriplet],
        cookie: u64,
        flags: CompletionFlags,
    ) -> bool {
        match iov.len() {
            2 => self.push_exactly::<P, O, SOLICITED, ANY, 2>(op, iov, cookie, flags),
            3 => self.push_exactly::<P, O, SOLICITED, ANY, 3>(op, iov, cookie, flags),
            4 => self.push_exactly::<P, O, SOLICITED, ANY, 4>(op, iov, cookie, flags),
            _ => false,
        }
    }

    // Not inline: each copy needs a frame of its own, and threads with small stacks make these calls.
    #[inline(never)]
    fn push_exactly<P: Path, O: Operation, const SOLICITED: bool, const ANY: bool, const N: usize>(
        &mut self,
        op: O,
        iov: &[LmrTriplet],
        cookie: u64,
        flags: CompletionFlags,
    ) -> bool {
        self.push_segments::<P, O, SOLICITED, ANY, N>(op, iov, cookie, flags)
    }

    /// As [`Requests::push_fast`], also for a queue that has to look for room first, or that shares its
    /// register with others, as those of many EPs do.
    #[inline(always)]
    pub fn push_any<P: Path, O: Operation>(
        &mut self,
        op: O,
        iov: &[LmrTriplet],
        cookie: u64,
        flags: CompletionFlags,
    ) -> bool {
        // Before the request is in registers, which a call would have to store.
        self.queue.find_room();
        match iov.len() {
            1 => self.push_segments::<P, O, true, true, 1>(op, iov, cookie, flags),
            _ => self.push_several::<P, O, true, true>(op, iov, cookie, flags),
        }
    }

    /// `ANY`: as [`Requests::push_any`].
    #[inline(always)]
    fn push_segments<P: Path, O: Operation, const SOLICITED: bool, const ANY: bool, const N: usize>(
        &mut self,
        op: O,
        iov: &[LmrTriplet],
        cookie: u64,
        flags: CompletionFlags,
    ) -> bool {
        if !likely(takes::<SOLICITED>(flags)) || (N > 1 && N > self.max_iov) {
            return false;
        }
        let Some(iov) = iov.first_chunk::<N>() else { return false };
        let Some((segments, length)) = self.lmrs.segments(iov, O::DIRECTION) else { return false };
        let info = WrInfo { cookie, ..WrInfo::default() };
        let request = Request::new(&info, flags, O::OP, length);
        let flags = send_flags(flags, O::SOLICITS && SOLICITED);
        likely(op.fits(length)) && self.put::<P, O, ANY, N>(op, request, segments, flags)
    }

    /// Posts a request that has passed all checks.
    #[inline(always)]
    fn put<P: Path, O: Operation, const ANY: bool, const N: usize>(
        &mut self,
        op: O,
        request: Request,
        segments: [P::Segment; N],
        flags: SendFlags,
    ) -> bool {
        if self.ring.room() == 0 {
            return false;
        }
        let Some(queue) = P::send_queue(&mut self.queue) else { return false };
        let posted = if ANY {
            queue.push_any(request, op.verb(), segments, flags)
        } else {
            queue.push_fast(request, op.verb(), segments, flags)
        };
        if !posted {
            return false;
        }
        self.count(O::OP, request.length);
        true
    }

    /// Posts a request of part of a pool's memory, if the last request from a pool was from this one.
    /// `ANY`: as [`Requests::push_any`].
    #[inline(always)]
    pub(crate) fn push_pool<P: Path, O: Operation, const ANY: bool>(
        &mut self,
        op: O,
        PoolBytes { memory, at, copy }: PoolBytes<'_>,
        info: &WrInfo,
        flags: CompletionFlags,
    ) -> bool {
        if !takes::<true>(flags) || self.ring.room() == 0 {
            return false;
        }
        if ANY {
            self.queue.find_room();
        }
        let Some((segment, length)) = last_pool::<P>(self.last_pool, memory, at, info) else {
            return false;
        };
        if !op.fits(length) {
            return false;
        }
        let request = Request::new(info, flags, O::OP, length);
        let flags = send_flags(flags, O::SOLICITS);
        if let Some(copy) = copy
            && let Some(queue) = P::send_queue(&mut self.queue)
            && queue.copy_fast::<ANY>(request, copy, flags)
        {
            self.count(O::OP, length);
            return true;
        }
        self.put::<P, O, ANY, 1>(op, request, [segment], flags)
    }
}

impl Requests {
    /// Posts a Send of these bytes, which are copied.
    #[inline(always)]
    pub(crate) fn push_copy<P: Path>(&mut self, bytes: &[u8], cookie: u64, flags: CompletionFlags) -> bool {
        self.push_copy_by::<P>(bytes, cookie, flags, |queue, request, flags| {
            queue.copy_fast::<false>(request, bytes, flags) || queue.copy_long_fast(request, bytes, flags)
        })
    }

    #[inline(always)]
    fn push_copy_by<P: Path>(
        &mut self,
        bytes: &[u8],
        cookie: u64,
        flags: CompletionFlags,
        copy: impl FnOnce(&mut P::SendQueue, Request, SendFlags) -> bool,
    ) -> bool {
        // True for 1 to `most_inline`; no length is while the queue is closed.
        let fits = bytes.len().wrapping_sub(1) < self.most_inline as usize;
        if !likely(fits && takes::<true>(flags)) || self.ring.room() == 0 {
            return false;
        }
        let length = bytes.len() as u32;
        let request = Request::new(&WrInfo { cookie, ..WrInfo::default() }, flags, DtoOp::Send, length);
        let Some(queue) = P::send_queue(&mut self.queue) else { return false };
        let flags = send_flags(flags, true);
        if !copy(queue, request, flags) {
            return false;
        }
        self.count(DtoOp::Send, length);
        true
    }

    /// As [`Requests::push_copy`], also for a queue that has to look for room first, or that shares its
    /// register with others, as those of many EPs do.
    pub(crate) fn push_copy_any<P: Path>(
        &mut self,
        bytes: &[u8],
        cookie: u64,
        flags: CompletionFlags,
    ) -> bool {
        self.push_copy_by::<P>(bytes, cookie, flags, |queue, request, flags| {
            queue.copy_any(request, bytes, flags)
        })
    }
}

/// The segment of these bytes of a pool's memory, and its length, if the pool is the last of its
/// queue. It was checked for the queue then; only its memory may have been freed since.
#[inline(always)]
pub(super) fn last_pool<P: Path>(
    last: LastPool,
    memory: &PoolMemory,
    bytes: (usize, usize),
    info: &WrInfo,
) -> Option<(P::Segment, u32)> {
    // True for 1 to `longest`; no length is, if there is no last pool.
    let fits = bytes.1.wrapping_sub(1) < last.longest as usize;
    if info.pool != last.number || !fits {
        return None;
    }
    let sge = memory.live_segment(bytes)?;
    Some((P::Segment::of_sge(sge), sge.len))
}
