//! Fast posts of receives to an EP without an SRQ.

use super::last_pool;
use crate::datapath::{Path, PostReceives, WrInfo};
use crate::error::Direction;
use crate::lmr::PoolMemory;
use crate::queue_pair::{Receive, Receives};
use crate::types::{CompletionFlags, LmrTriplet};

impl Receives {
    /// Posts a receive.
    #[inline(always)]
    pub fn push_fast<P: Path>(&mut self, iov: &[LmrTriplet], cookie: u64) -> bool {
        match iov.len() {
            1 => self.push_segments::<P, 1>(iov, cookie),
            _ => self.push_several::<P>(iov, cookie),
        }
    }

    #[inline(never)]
    fn push_several<P: Path>(&mut self, iov: &[LmrTriplet], cookie: u64) -> bool {
        match iov.len() {
            2 => self.push_exactly::<P, 2>(iov, cookie),
            3 => self.push_exactly::<P, 3>(iov, cookie),
            4 => self.push_exactly::<P, 4>(iov, cookie),
            _ => false,
        }
    }

    #[inline(never)]
    fn push_exactly<P: Path, const N: usize>(&mut self, iov: &[LmrTriplet], cookie: u64) -> bool {
        self.push_segments::<P, N>(iov, cookie)
    }

    #[inline(always)]
    fn push_segments<P: Path, const N: usize>(&mut self, iov: &[LmrTriplet], cookie: u64) -> bool {
        if (N > 1 && N > self.max_iov) || self.ring.room() == 0 {
            return false;
        }
        let Some(iov) = iov.first_chunk::<N>() else { return false };
        // Closed also while the EP has a high watermark.
        let Some((segments, length)) = self.lmrs.segments(iov, Direction::Write) else { return false };
        self.put::<P, N>(segments, length, || {
            // As `WrInfo::over`: no segment is empty.
            let lmrs = std::array::from_fn(|n| iov.get(n).map_or(0, |segment| segment.lmr_context));
            WrInfo { cookie, pool: 0, lmrs }
        })
    }

    /// Posts a receive of `length` bytes that has passed all checks. There is room for it.
    #[inline(always)]
    fn put<P: Path, const N: usize>(
        &mut self,
        segments: [P::Segment; N],
        length: u32,
        info: impl FnOnce() -> WrInfo,
    ) -> bool {
        let Some(queue) = P::recv_queue(&mut self.queue) else { return false };
        if !queue.push_fast(segments) {
            return false;
        }
        self.ring.push(Receive::new(info(), CompletionFlags::empty()));
        self.posts += 1;
        self.bytes += u64::from(length);
        true
    }

    /// Posts part of a pool's memory, if the last receive from a pool was from this one. `bytes` is
    /// an offset and a length.
    #[inline(always)]
    pub(crate) fn push_pool<P: Path>(
        &mut self,
        memory: &PoolMemory,
        bytes: (usize, usize),
        info: &WrInfo,
    ) -> bool {
        if self.ring.room() == 0 {
            return false;
        }
        let Some((segment, length)) = last_pool::<P>(self.last_pool, memory, bytes, info) else {
            return false;
        };
        self.put::<P, 1>([segment], length, || WrInfo { lmrs: [memory.number(), 0, 0, 0], ..*info })
    }
}
