//! Posts of receive buffers to an SRQ.
//!
//! [`Srq::push_fast`] posts if [`QueueLmrs`](crate::device::QueueLmrs) finds the LMRs and the poster
//! has an entry at hand. [`Srq::push_slow`] makes all checks, posts everything else, and says why a
//! post is refused. Both end in the poster (`datapath/`), which writes the WQE and the doorbell
//! record, or calls the device library.
//!
//! The thread that posts owns the poster. Threads that reap return entries to it without a lock.

use super::Srq;
use crate::Subtype;
use crate::datapath::{Fast, Path, PostSrq, WrInfo, with_path};
use crate::defaults::Defaults;
use crate::device::Use;
use crate::error::{Direction, PostError};
use crate::lmr::PoolMemory;
use crate::types::{LmrTriplet, MAX_IOV};
use rxe_fallback::Sge;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Srq {
    /// Posts one buffer of up to `recv_segments` segments; a buffer without segments receives a
    /// zero-byte message. The completion carries the cookie. The call posts the whole buffer or
    /// nothing (R60), and never blocks.
    ///
    /// # Errors
    /// See [`PostError`]. The order of checks is: handle, segment count, each segment (alive,
    /// privilege, PZ, bounds), capacity.
    ///
    /// # References
    /// dat_srq_post_recv(3DAT), R48-R71.
    #[inline]
    pub fn post_recv(&mut self, iov: &[LmrTriplet], cookie: u64) -> Result<(), PostError> {
        match with_path!(self.poster.path(), P => self.push_fast::<P>(iov, cookie)) {
            Fast::Posted => Ok(()),
            Fast::Nothing => self.or_harvest(|srq| srq.push_slow(iov, cookie)),
            Fast::Refused(error) => Err(error),
        }
    }

    /// Whether the pool's memory can be posted.
    pub(crate) fn takes_pool(&self, memory: &PoolMemory) -> bool {
        let inner = &self.inner;
        inner.live.load(Ordering::Acquire) && memory.segment(0, (0, 0), &inner.pz, Direction::Write).is_ok()
    }

    /// Posts part of the memory of a pool that [`Srq::takes_pool`], on the direct path, if that needs
    /// no search; `bytes` is an offset and a length.
    #[inline(always)]
    pub(crate) fn push_pool_fast(
        &mut self,
        memory: &PoolMemory,
        bytes: (usize, usize),
        info: &WrInfo,
    ) -> bool {
        memory.live_segment(bytes).is_some_and(|segment| self.poster.push_pool_fast(segment, info))
    }

    /// Posts part of a pool's memory; `bytes` is an offset and a length.
    pub(crate) fn push_pool(
        &mut self,
        memory: &PoolMemory,
        bytes: (usize, usize),
        info: WrInfo,
    ) -> Result<(), PostError> {
        let inner = &self.inner;
        if !inner.live.load(Ordering::Acquire) {
            return Err(PostError::Stale(Subtype::InvalidHandleSrq));
        }
        let sge = memory.segment(0, bytes, &inner.pz, Direction::Write)?;
        let info = WrInfo { lmrs: [memory.number(), 0, 0, 0], ..info };
        self.or_harvest(|srq| srq.poster.push(&[sge], &info))
    }

    /// Posts one buffer if that needs no search and every segment passes its checks.
    ///
    /// All checks are made. The SRQ is alive if the LMR is, because a closed IA has no live LMR.
    /// Calls no code of the program and takes no lock of an object, so a caller may hold the guard
    /// of a biased lock's fast path. On the direct path this is straight-line code without calls.
    #[doc(hidden)]
    #[inline(always)]
    pub fn push_fast<P: Path>(&mut self, iov: &[LmrTriplet], cookie: u64) -> Fast {
        let Some(poster) = P::srq_queue(&mut self.poster) else { return Fast::Nothing };
        // Only a live LMR shows that the SRQ is alive, and a buffer without segments names none.
        if iov.is_empty() || (iov.len() > 1 && iov.len() > self.inner.max_iov as usize) {
            return Fast::Nothing;
        }
        let mut finder = self.lmrs.finder(Direction::Write);
        poster.push_fast(iov, |segment| finder.segment(segment), cookie)
    }

    /// Posts any buffer on either path, and says why a post is refused. Does not harvest: calls no
    /// code of the program.
    ///
    /// # Errors
    /// As [`Srq::post_recv`].
    #[doc(hidden)]
    #[inline(never)]
    pub fn push_slow(&mut self, iov: &[LmrTriplet], cookie: u64) -> Result<(), PostError> {
        let inner = &self.inner;
        if !inner.live.load(Ordering::Acquire) {
            return Err(PostError::Stale(Subtype::InvalidHandleSrq));
        }
        let most = inner.max_iov;
        let given = u32::try_from(iov.len()).unwrap_or(u32::MAX);
        let too_many = PostError::TooManySegments { given, most };
        if given > most {
            return Err(too_many);
        }
        // Most buffers have few segments, and a small array is cleared in less time.
        let (mut few, mut many) = ([Sge::default(); 4], None);
        let sges = match few.get_mut(..iov.len()) {
            Some(few) => few,
            None => many.insert([Sge::default(); MAX_IOV]).get_mut(..iov.len()).ok_or(too_many)?,
        };
        let using = Use { pz: inner.pz.number, direction: Direction::Write };
        let n = inner.device.lmrs.check_all(iov, using, sges)?;
        self.poster.push(&sges[..n], &WrInfo { cookie, ..WrInfo::default() }.over(iov))
    }

    /// Where a harvest may release entries of a full SRQ.
    #[doc(hidden)]
    pub fn defaults(&self) -> &Arc<Defaults> {
        &self.inner.defaults
    }

    /// Runs `post`. If the SRQ is full, harvests the EVD of the EPs that were given no receive EVD,
    /// which releases the entries of their completions, and runs `post` again.
    fn or_harvest(&mut self, post: impl Fn(&mut Self) -> Result<(), PostError>) -> Result<(), PostError> {
        match post(self) {
            Err(PostError::Full(_)) if self.inner.defaults.harvest_discards() => post(self),
            outcome => outcome,
        }
    }
}
