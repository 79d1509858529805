//! Posts of receive buffers to an SRQ.
//!
//! [`Srq::post_fast`] is the fast function: one segment, in the LMR of the last post, on the direct
//! path. [`Srq::post_several_fast`] does the same for several segments. [`Srq::post_slow`] covers
//! all other posts and gives the errors. All end in the poster (`datapath/`), which writes the WQE
//! and the doorbell record.
//!
//! The thread that posts owns the [`SrqPoster`]. Threads that reap return entries to it without a
//! lock.

use super::Srq;
use crate::Subtype;
use crate::datapath::{SrqPoster, WrInfo, direct::DirectPoster, verbs::Staged};
use crate::defaults::Defaults;
use crate::device::{LkeyCache, Use};
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

    /// Posts one segment on the direct path if the LMR of the last post contains the segment and
    /// the ring's contiguous span has a slot left. Otherwise returns false without posting.
    ///
    /// All checks are made. The SRQ is alive if the LMR is, because a closed IA has no live LMR.
    /// Straight-line code without calls, so that the caller needs no stack frame.
    #[inline(always)]
    pub(crate) fn post_fast(&mut self, segment: &LmrTriplet, cookie: u64) -> bool {
        let SrqPoster::Direct(poster) = &mut self.poster else { return false };
        let Some(segment) = self.last.segment(segment) else { return false };
        poster.post_one_in_run(segment, cookie)
    }

    /// As [`Srq::post_fast`], for any number of segments.
    #[inline(always)]
    pub(crate) fn post_several_fast(&mut self, iov: &[LmrTriplet], cookie: u64) -> bool {
        let SrqPoster::Direct(poster) = &mut self.poster else { return false };
        post_several_in_run(poster, &self.last, self.inner.max_iov, iov, cookie)
    }

    /// Prepares what [`Srq::post_fast`] posts, on the verbs path. `None` if another function has to
    /// post.
    #[inline(always)]
    pub(crate) fn stage_by_verbs(&mut self, one: &LmrTriplet, cookie: u64) -> Option<Staged<'_>> {
        let SrqPoster::Verbs(poster) = &mut self.poster else { return None };
        if !self.last.live()?.contains(one) {
            return None;
        }
        poster.stage(0, one);
        poster.take_entry(1, &in_one_lmr(one, cookie))
    }

    /// As [`Srq::stage_by_verbs`], for two to four segments.
    #[inline(always)]
    pub(crate) fn stage_several_by_verbs(&mut self, iov: &[LmrTriplet], cookie: u64) -> Option<Staged<'_>> {
        let SrqPoster::Verbs(poster) = &mut self.poster else { return None };
        let lmr = self.last.live()?;
        if iov.len() > self.inner.max_iov as usize {
            return None;
        }
        let mut put = |at: usize, from: &LmrTriplet| {
            poster.stage(at, from);
            lmr.contains(from).then_some(())
        };
        // Straight-line code: a loop would count the segments.
        let [first, second, more @ ..] = iov else { return None };
        put(0, first)?;
        put(1, second)?;
        if let [third, more @ ..] = more {
            put(2, third)?;
            match more {
                [] => {}
                [fourth] => put(3, fourth)?,
                _ => return None,
            }
        }
        poster.take_entry(iov.len(), &in_one_lmr(first, cookie))
    }

    /// Posts any number of segments on either path, and says why a post is refused.
    #[inline(never)]
    fn post_slow(&mut self, iov: &[LmrTriplet], cookie: u64) -> Result<(), PostError> {
        self.post_or_harvest(|srq| srq.post_once(iov, cookie))
    }

    /// As [`Srq::post_slow`], without a harvest: calls no code of the program.
    #[inline(always)]
    pub(crate) fn post_once(&mut self, iov: &[LmrTriplet], cookie: u64) -> Result<(), PostError> {
        if self.post_from_last_lmr(iov, cookie) { Ok(()) } else { self.post_checked(iov, cookie) }
    }

    /// Where a harvest may release entries of a full SRQ.
    pub(crate) fn defaults(&self) -> &Arc<Defaults> {
        &self.inner.defaults
    }

    /// Posts segments if the LMR of the last post contains them. Otherwise, or if the SRQ is full,
    /// returns false without posting. It may also return false for more than [`FEW`] segments.
    ///
    /// Calls no code of the program and takes no lock of an object, so a caller may hold the guard
    /// of a biased lock's fast path.
    #[inline(always)]
    pub(crate) fn post_from_last_lmr(&mut self, iov: &[LmrTriplet], cookie: u64) -> bool {
        // Entries that were reaped since the last post may leave the span with room again.
        if let [one] = iov
            && self.poster.found_room()
            && self.post_fast(one, cookie)
        {
            return true;
        }
        let last = &self.last;
        let poster = match &mut self.poster {
            SrqPoster::Direct(poster) => poster,
            SrqPoster::Verbs(_) => return self.post_from_last_lmr_by_verbs(iov, cookie),
        };
        let [one] = iov else { return post_few(poster, last, self.inner.max_iov, iov, cookie) };
        let Some(segment) = last.segment(one) else { return false };
        poster.post_one(segment.into(), cookie, 0)
    }

    #[inline(never)]
    fn post_from_last_lmr_by_verbs(&mut self, iov: &[LmrTriplet], cookie: u64) -> bool {
        let SrqPoster::Verbs(poster) = &mut self.poster else { return false };
        let mut segments = [Sge::default(); FEW];
        few_by_verbs(&self.last, self.inner.max_iov, iov, cookie, &mut segments)
            .is_some_and(|(segments, info)| poster.post(segments, &info).is_ok())
    }

    /// Posts after a look at the LMR table. Remembers the LMR for the next post.
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
        if let Some(segment) = iov.iter().find(|segment| segment.segment_length > 0) {
            self.last.remember(&inner.device.lmrs, segment.lmr_context, u32::MAX);
            if let SrqPoster::Verbs(poster) = &mut self.poster {
                poster.set_lkey(self.last.lkey());
            }
        }
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

/// Posts one or more segments if the LMR `last` contains them, the next slot is known and the SRQ
/// has room. Otherwise returns false without posting.
#[inline(always)]
fn post_several_in_run(
    poster: &mut DirectPoster,
    last: &LkeyCache,
    max_iov: u32,
    iov: &[LmrTriplet],
    cookie: u64,
) -> bool {
    let Some(lmr) = last.live() else { return false };
    // Only a live LMR shows that the SRQ is alive, and a buffer without segments names none.
    if iov.is_empty() || iov.len() > max_iov as usize {
        return false;
    }
    poster.post_list_in_run(iov, |from| lmr.segment(from), cookie)
}

/// Posts two or more segments if they lie in the LMR `last`. Otherwise returns false without
/// posting. If the next slot is not known, returns false also for more than [`FEW`] segments.
#[inline(never)]
fn post_few(
    poster: &mut DirectPoster,
    last: &LkeyCache,
    max_iov: u32,
    iov: &[LmrTriplet],
    cookie: u64,
) -> bool {
    if post_several_in_run(poster, last, max_iov, iov, cookie) {
        return true;
    }
    let mut segments = [DataSeg::new(0, 0, 0); FEW];
    let encode = |from: &LmrTriplet, lkey| DataSeg::new(from.virtual_address, from.segment_length, lkey);
    let Some(segments) = few(last, max_iov, iov, &mut segments, encode) else { return false };
    poster.post_encoded(segments, cookie, 0).is_ok()
}

/// Converts segments that all lie in the LMR `last` for verbs. `None` if a segment lies elsewhere,
/// if there is no segment, or if there are too many.
#[inline(always)]
fn few_by_verbs<'a>(
    last: &LkeyCache,
    max_iov: u32,
    iov: &[LmrTriplet],
    cookie: u64,
    into: &'a mut [Sge; FEW],
) -> Option<(&'a [Sge], WrInfo)> {
    let key = last.keys()?;
    // Only a live LMR shows that the SRQ is alive, and a buffer without segments names none.
    let first = iov.first()?;
    if iov.len() > max_iov as usize {
        return None;
    }
    let into = into.get_mut(..iov.len())?;
    for (to, from) in into.iter_mut().zip(iov) {
        *to = sge(from, key(from)?);
    }
    Some((into, in_one_lmr(first, cookie)))
}

/// A segment with its lkey, for verbs.
#[inline(always)]
fn sge(from: &LmrTriplet, lkey: u32) -> Sge {
    Sge { addr: from.virtual_address, len: from.segment_length, lkey }
}

/// What is kept of a buffer whose segments all lie in the LMR of the first.
#[inline(always)]
fn in_one_lmr(first: &LmrTriplet, cookie: u64) -> WrInfo {
    WrInfo { cookie, pool: 0, lmrs: [first.lmr_context, 0, 0, 0] }
}

/// The largest number of segments that [`few`] converts.
const FEW: usize = 8;

/// Converts segments that all lie in the LMR `last` into the device's form. `None` if a segment
/// lies elsewhere, if there is no segment, or if there are too many.
#[inline(always)]
fn few<'a, T>(
    last: &LkeyCache,
    max_iov: u32,
    iov: &[LmrTriplet],
    into: &'a mut [T; FEW],
    form: impl Fn(&LmrTriplet, u32) -> T,
) -> Option<&'a [T]> {
    // Only a live LMR shows that the SRQ is alive, and a buffer without segments names none.
    if iov.is_empty() || iov.len() > max_iov as usize {
        return None;
    }
    let into = into.get_mut(..iov.len())?;
    for (to, from) in into.iter_mut().zip(iov) {
        *to = form(from, last.key(from)?);
    }
    Some(into)
}
