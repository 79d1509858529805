//! Posts of receive buffers to an SRQ.
//!
//! [`Srq::post_fast`] is the fast function: one segment, whose LMR [`QueueLmrs`] finds, on the direct
//! path. [`Srq::post_several_fast`] does the same for several segments. [`Srq::post_slow`] covers
//! all other posts and gives the errors. All end in the poster (`datapath/`), which writes the WQE
//! and the doorbell record.
//!
//! The thread that posts owns the [`SrqPoster`]. Threads that reap return entries to it without a
//! lock.

use super::Srq;
use crate::Subtype;
use crate::datapath::{
    SrqPoster, WrInfo,
    direct::DirectPoster,
    verbs::{Refused, Staged, VerbsPoster},
};
use crate::defaults::Defaults;
use crate::device::{QueueLmrs, Use};
use crate::error::{Direction, PostError};
use crate::lmr::PoolMemory;
use crate::types::{LmrTriplet, MAX_IOV};
use mlx5_direct::DataSeg;
use rxe_fallback::Sge;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Srq {
    /// Posts one buffer of up to `max_recv_iov` segments; a buffer without segments receives a
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
        if let [segment] = iov
            && self.post_fast(segment, cookie)
        {
            return Ok(());
        }
        self.post_slow(iov, cookie)
    }

    /// Posts part of a pool's memory; `bytes` is an offset and a length.
    #[inline]
    pub(crate) fn post_pool(
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
        if let SrqPoster::Direct(poster) = &mut self.poster
            && poster.post_one(DataSeg::new(sge.addr, sge.len, sge.lkey), info.cookie, info.pool)
        {
            return Ok(());
        }
        let info = WrInfo { lmrs: [memory.number(), 0, 0, 0], ..info };
        self.post_or_harvest(|srq| srq.poster.post(&[sge], info))
    }

    /// Posts one segment on the direct path if [`QueueLmrs`] finds its LMR and the ring's contiguous
    /// span has a slot left. Otherwise returns false without posting.
    ///
    /// All checks are made. The SRQ is alive if the LMR is, because a closed IA has no live LMR.
    /// Straight-line code without calls, so that the caller needs no stack frame.
    #[doc(hidden)]
    #[inline(always)]
    pub fn post_fast(&mut self, segment: &LmrTriplet, cookie: u64) -> bool {
        let SrqPoster::Direct(poster) = &mut self.poster else { return false };
        let Some(segment) = self.lmrs.segment(segment, Direction::Write) else { return false };
        poster.post_one_in_run(segment, cookie)
    }

    /// As [`Srq::post_fast`], for any number of segments.
    #[doc(hidden)]
    #[inline(always)]
    pub fn post_several_fast(&mut self, iov: &[LmrTriplet], cookie: u64) -> bool {
        let SrqPoster::Direct(poster) = &mut self.poster else { return false };
        // Only a live LMR shows that the SRQ is alive, and a buffer without segments names none.
        if iov.is_empty() || iov.len() > self.inner.max_iov as usize {
            return false;
        }
        let mut finder = self.lmrs.finder(Direction::Write);
        poster.post_list_in_run(iov, |from| finder.segment(from), cookie)
    }

    /// Prepares what [`Srq::post_fast`] posts, on the verbs path. `None` if another function has to
    /// post.
    #[doc(hidden)]
    #[inline(always)]
    pub fn stage_by_verbs(&mut self, one: &LmrTriplet, cookie: u64) -> Option<Staged<'_>> {
        let SrqPoster::Verbs(poster) = &mut self.poster else { return None };
        poster.stage(0, self.lmrs.sge(one, Direction::Write)?);
        poster.take_entry(1, &WrInfo { cookie, pool: 0, lmrs: [one.lmr_context, 0, 0, 0] })
    }

    /// As [`Srq::stage_by_verbs`], for two to four segments.
    #[doc(hidden)]
    #[inline(always)]
    pub fn stage_several_by_verbs<const N: usize>(
        &mut self,
        segments: &[LmrTriplet; N],
        cookie: u64,
    ) -> Option<Staged<'_>> {
        let SrqPoster::Verbs(poster) = &mut self.poster else { return None };
        if N > self.inner.max_iov as usize {
            return None;
        }
        let mut finder = self.lmrs.finder(Direction::Write);
        // As `WrInfo::over`: no segment is empty.
        let mut lmrs = [0; 4];
        for (n, segment) in segments.iter().enumerate() {
            poster.stage(n, finder.sge(segment)?);
            lmrs[n] = segment.lmr_context;
        }
        poster.take_entry(N, &WrInfo { cookie, pool: 0, lmrs })
    }

    /// Posts any number of segments on either path, and says why a post is refused.
    #[inline(never)]
    fn post_slow(&mut self, iov: &[LmrTriplet], cookie: u64) -> Result<(), PostError> {
        self.post_or_harvest(|srq| srq.post_once(iov, cookie))
    }

    /// As [`Srq::post_slow`], without a harvest: calls no code of the program.
    #[doc(hidden)]
    #[inline(always)]
    pub fn post_once(&mut self, iov: &[LmrTriplet], cookie: u64) -> Result<(), PostError> {
        if self.post_short(iov, cookie) { Ok(()) } else { self.post_checked(iov, cookie) }
    }

    /// Where a harvest may release entries of a full SRQ.
    #[doc(hidden)]
    pub fn defaults(&self) -> &Arc<Defaults> {
        &self.inner.defaults
    }

    /// Posts segments without the slow function, if [`QueueLmrs`] finds their LMRs. If the SRQ is full,
    /// returns false without posting. It may also return false for more than [`FEW`] segments.
    ///
    /// Calls no code of the program and takes no lock of an object, so a caller may hold the guard
    /// of a biased lock's fast path.
    #[doc(hidden)]
    #[inline(always)]
    pub fn post_short(&mut self, iov: &[LmrTriplet], cookie: u64) -> bool {
        if let [one] = iov {
            // Entries that were reaped since the last post may leave the span with room again.
            if self.poster.found_room() && self.post_fast(one, cookie) {
                return true;
            }
            if let Some(staged) = self.stage_by_verbs(one, cookie) {
                return staged.post().map_err(Refused::take_back).is_ok();
            }
        }
        let max_iov = self.inner.max_iov;
        match (&mut self.poster, iov) {
            (SrqPoster::Direct(poster), [one]) => {
                let Some(segment) = self.lmrs.segment(one, Direction::Write) else { return false };
                poster.post_one(segment.into(), cookie, 0)
            }
            (SrqPoster::Direct(poster), _) => post_few(poster, &self.lmrs, max_iov, iov, cookie),
            (SrqPoster::Verbs(poster), _) => post_few_by_verbs(poster, &self.lmrs, max_iov, iov, cookie),
        }
    }

    /// Posts after all checks.
    #[inline(never)]
    fn post_checked(&mut self, iov: &[LmrTriplet], cookie: u64) -> Result<(), PostError> {
        let inner = &self.inner;
        if !inner.live.load(Ordering::Acquire) {
            return Err(PostError::Stale(Subtype::InvalidHandleSrq));
        }
        if iov.len() > inner.max_iov as usize {
            return Err(PostError::TooManySegments {
                given: u32::try_from(iov.len()).unwrap_or(u32::MAX),
                most: inner.max_iov,
            });
        }
        let using = Use { pz: inner.pz.number, direction: Direction::Write };
        let mut sges = [Sge::default(); MAX_IOV];
        let n = inner.device.lmrs.check_all(iov, using, &mut sges)?;
        self.poster.post(&sges[..n], WrInfo { cookie, ..WrInfo::default() }.over(iov))
    }

    /// Runs `post`. If the SRQ is full, harvests the EVD of the EPs that were given no receive EVD,
    /// which releases the entries of their completions, and runs `post` again.
    #[inline(always)]
    fn post_or_harvest(
        &mut self,
        post: impl Fn(&mut Self) -> Result<(), PostError>,
    ) -> Result<(), PostError> {
        match post(self) {
            Err(PostError::Full(_)) if self.inner.defaults.harvest_discards() => post(self),
            outcome => outcome,
        }
    }
}

/// Posts two or more segments. Returns false without posting if [`QueueLmrs`] does not find an LMR.
/// If the next slot is not known, returns false also for more than [`FEW`] segments.
#[inline(never)]
fn post_few(
    poster: &mut DirectPoster,
    lmrs: &QueueLmrs,
    max_iov: u32,
    iov: &[LmrTriplet],
    cookie: u64,
) -> bool {
    // Only a live LMR shows that the SRQ is alive, and a buffer without segments names none.
    if iov.is_empty() || iov.len() > max_iov as usize {
        return false;
    }
    if poster.post_list_in_run(iov, |from| lmrs.segment(from, Direction::Write), cookie) {
        return true;
    }
    let mut segments = [DataSeg::new(0, 0, 0); FEW];
    few(iov, &mut segments, |from| Some(lmrs.segment(from, Direction::Write)?.into()))
        .is_some_and(|segments| poster.post_encoded(segments, cookie, 0).is_ok())
}

/// As [`post_few`], on the verbs path, for one to [`FEW`] segments.
#[inline(never)]
fn post_few_by_verbs(
    poster: &mut VerbsPoster,
    lmrs: &QueueLmrs,
    max_iov: u32,
    iov: &[LmrTriplet],
    cookie: u64,
) -> bool {
    // As in `post_few`.
    if iov.is_empty() || iov.len() > max_iov as usize {
        return false;
    }
    let mut segments = [Sge::default(); FEW];
    let info = WrInfo { cookie, ..WrInfo::default() }.over(iov);
    few(iov, &mut segments, |from| lmrs.sge(from, Direction::Write))
        .is_some_and(|segments| poster.post(segments, &info).is_ok())
}

/// The largest number of segments that [`few`] converts.
const FEW: usize = 8;

/// Converts segments. `None` if `form` refuses one, or if there are too many.
#[inline(always)]
fn few<'a, T>(
    iov: &[LmrTriplet],
    into: &'a mut [T; FEW],
    form: impl Fn(&LmrTriplet) -> Option<T>,
) -> Option<&'a [T]> {
    let into = into.get_mut(..iov.len())?;
    for (to, from) in into.iter_mut().zip(iov) {
        *to = form(from)?;
    }
    Some(into)
}
