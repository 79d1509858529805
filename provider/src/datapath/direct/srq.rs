//! SRQs on the direct path: the ring of WQEs, and where its slots are.
//!
//! [`DirectPoster`] belongs to the one thread that posts and owns the ring. [`DirectSrq`] is for all
//! others: they complete slots and release them, which the poster sees in [`RingSlots`].

use super::adopt::{self, Adopted};
use super::slots::{Counts, RingSlots};
use crate::datapath::completion::{SrqCounts, WrInfo};
use crate::error::PostError;
use crate::types::MAX_IOV;
use crate::{Error, Result, ReturnType, Subtype};
use mlx5_direct::{DataSeg, WqeIndex};
use rxe_fallback::{Sge, Srq};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// The most entries that a ring can have.
pub(crate) const MAX_DEPTH: u32 = mlx5_direct::wqe::MAX_WQE_COUNT - 1;

/// An SRQ of the device: what all share.
#[derive(Debug)]
pub(crate) struct DirectSrq {
    /// Names it in completions.
    pub(super) id: u32,
    slots: Arc<RingSlots>,
    depth: AtomicU32,
    /// The most entries that it can be made to have.
    pub(super) room: u32,
    verbs: Srq,
}

/// The posting half: the ring itself.
#[derive(Debug)]
pub(crate) struct DirectPoster {
    ring: Adopted<mlx5_direct::Srq, Srq>,
    slots: Arc<RingSlots>,
    /// How many may be outstanding. The ring has room for more slots.
    depth: u32,
    /// Slots that were released although nobody had posted them.
    never_posted: u32,
    /// Words of 64 slots that the ring goes round.
    words: u32,
    /// Those are too many slots for the processor's caches.
    far: bool,
    srq: u32,
}

impl DirectSrq {
    /// Takes over an SRQ to which nothing was posted; up to `depth` entries of it are used at first.
    pub(crate) fn new(srq: Srq, id: u32, depth: u32) -> Result<(Self, DirectPoster)> {
        let verbs = srq.clone();
        let mut ring = adopt::srq(srq, depth)?;
        let goes_round = slots_for(depth, ring.max_depth());
        ring.set_depth(goes_round)
            .map_err(|error| Error::new(ReturnType::InternalError, Subtype::None, error.to_string()))?;
        let slots = Arc::new(RingSlots::new(ring.cookies().clone()).map_err(|_| no_memory())?);
        let poster = DirectPoster {
            slots: slots.clone(),
            depth,
            never_posted: 0,
            words: goes_round / u64::BITS + 1,
            far: goes_round > FAR,
            srq: id,
            ring,
        };
        Ok((Self { id, slots, depth: depth.into(), room: poster.ring.max_depth(), verbs }, poster))
    }

    pub(crate) fn verbs(&self) -> &Srq {
        &self.verbs
    }

    #[inline]
    pub(crate) fn complete(&self, entry: u32) -> Option<WrInfo> {
        let (cookie, pool) = self.slots.complete(entry)?;
        // Why a receive failed is in the completion itself: no need to know its LMRs.
        Some(WrInfo { cookie, pool, ..WrInfo::default() })
    }

    /// [`DirectSrq::complete`] and [`DirectSrq::release`] in one: cookie and pool.
    #[inline(always)]
    pub(crate) fn reap(&self, entry: u32) -> Option<(u64, u32)> {
        self.slots.reap(entry)
    }

    #[inline]
    pub(crate) fn release(&self, entry: u32) {
        self.slots.release(entry);
    }

    pub(crate) fn depth(&self) -> u32 {
        self.depth.load(Ordering::Relaxed)
    }
}

impl DirectPoster {
    /// Posts one segment of nobody's pool, where the next slot and the room for it are known; false, and nothing was done,
    /// otherwise.
    #[inline(always)]
    pub(crate) fn post_one_in_run(&mut self, addr: u64, len: u32, lkey: u32, cookie: u64) -> bool {
        // The run is as long as there is room: see `reserved`.
        self.ring.post_one_in_run(DataSeg::new(addr, len, lkey), cookie).is_some()
    }

    /// Looks at what was reaped since: true if [`DirectPoster::post_one_in_run`] had no room and now has.
    #[inline(always)]
    pub(crate) fn found_room(&mut self) -> bool {
        let room = self.room();
        self.ring.plain_run() == 0 && self.ring.limit_run(room) > 0
    }

    /// Posts one segment; false, and nothing was done, if the SRQ is full.
    #[inline]
    pub(crate) fn post_one(&mut self, addr: u64, len: u32, lkey: u32, cookie: u64, pool: u32) -> bool {
        let segment = DataSeg::new(addr, len, lkey);
        self.room() > 0 && self.post_with(pool, |ring| ring.post_one(segment, cookie)).is_ok()
    }

    /// Posts any number of segments.
    pub(crate) fn post(&mut self, segments: &[Sge], info: WrInfo) -> Result<(), PostError> {
        let mut encoded = [DataSeg::new(0, 0, 0); MAX_IOV];
        let given = segments.len() as u32;
        let too_many = PostError::TooManySegments { given, most: self.ring.max_segments() };
        let encoded = encoded.get_mut(..segments.len()).ok_or(too_many)?;
        for (to, from) in encoded.iter_mut().zip(segments) {
            *to = DataSeg::new(from.addr, from.len, from.lkey);
        }
        self.post_encoded(encoded, info.cookie, info.pool)
    }

    /// The same, in the device's form already.
    #[inline]
    pub(crate) fn post_encoded(
        &mut self,
        segments: &[DataSeg],
        cookie: u64,
        pool: u32,
    ) -> Result<(), PostError> {
        let (given, most) = (segments.len() as u32, self.ring.max_segments());
        if given > most {
            return Err(PostError::TooManySegments { given, most });
        }
        // The number of segments is not why.
        let full = PostError::Full(Subtype::ResourceSrq);
        if self.room() == 0 {
            return Err(full);
        }
        self.post_with(pool, |ring| ring.post(segments, cookie)).map(drop).map_err(|_| full)
    }

    /// Posts by `post` into the next slot, for which there is room; takes slots back if the ring has none.
    #[inline(always)]
    fn post_with<T, E>(
        &mut self,
        pool: u32,
        post: impl Fn(&mut mlx5_direct::Srq) -> Result<T, E>,
    ) -> Result<T, E> {
        let next = self.ring.next_slots();
        if pool != 0 {
            self.slots.mark_pool(self.ring.next_slot(), pool);
        }
        let mut outcome = post(&mut self.ring);
        if outcome.is_ok() && next.start() < next.end() {
            return outcome;
        }
        if outcome.is_err() {
            self.reclaim_some();
            outcome = post(&mut self.ring);
        }
        self.reserved();
        if outcome.is_err() && pool != 0 {
            self.slots.mark_pool(self.ring.next_slot(), 0);
        }
        outcome
    }

    /// The ring may have reserved other slots for the posts to come.
    fn reserved(&mut self) {
        if self.far && self.ring.plain_run() > 1 {
            // They have the time of as many posts to arrive.
            self.ring.prefetch(FAR_RUN..2 * FAR_RUN);
        }
        let room = self.room();
        self.ring.limit_run(room);
    }

    /// Entries that are occupied: posted and not reaped, when so many were released.
    #[inline(always)]
    fn outstanding(&self, released: u32) -> u32 {
        let posted = self.ring.count().wrapping_add(self.never_posted);
        // Below 0 only until `never_posted` is known.
        (posted.wrapping_sub(released) as i32).max(0) as u32
    }

    /// How many more can be posted.
    #[inline(always)]
    fn room(&self) -> u32 {
        self.depth.saturating_sub(self.outstanding(self.slots.released()))
    }

    /// Takes some slots back that were reaped, so that a call costs the same at any depth.
    #[inline(never)]
    fn reclaim_some(&mut self) {
        // Many at once are fewer searches; but where they have to be fetched from far away, a call should not wait for many.
        let mut word = u32::from(self.ring.next_slot().0) / u64::BITS;
        for _ in 0..if self.far { 1 } else { SPARE / u64::BITS } {
            let Some(taken) = self.reclaim(word) else { return };
            word = taken + 1;
        }
    }

    /// Takes slots back that were reaped: those of one word, from `start` on round the ring. Says which.
    fn reclaim(&mut self, start: u32) -> Option<u32> {
        let (word, bits) = self.slots.take_returned(start, self.words)?;
        // A lone slot may join the ring's run, and then needs no search.
        if bits.is_power_of_two()
            && self.ring.complete(WqeIndex((word * u64::BITS + bits.trailing_zeros()) as u16)).is_ok()
        {
            return Some(word);
        }
        if let Err(error) = self.ring.complete_word(word, bits) {
            self.reclaim_one_by_one(word, bits, error);
        }
        Some(word)
    }

    #[cold]
    fn reclaim_one_by_one(&mut self, word: u32, bits: u64, error: mlx5_direct::NotInUse) {
        tracing::error!(%error, srq = self.srq, "a slot came back that was not posted: is the device well?");
        let slots = (0..u64::BITS).filter(|bit| bits >> bit & 1 == 1);
        for slot in slots.map(|bit| WqeIndex((word * u64::BITS + bit) as u16)) {
            let refused = self.ring.complete(slot).is_err();
            self.never_posted = self.never_posted.wrapping_add(refused.into());
        }
    }

    /// Exact counts (R36, R37).
    pub(crate) fn counts(&self) -> SrqCounts {
        let Counts { released, unreaped } = self.slots.counts();
        let outstanding = self.outstanding(released);
        SrqCounts { depth: self.depth, available: outstanding.saturating_sub(unreaped), outstanding }
    }

    /// A new depth, not below what is outstanding.
    pub(crate) fn resize(&mut self, srq: &DirectSrq, depth: u32) -> Result<()> {
        let max = self.ring.max_depth();
        if depth > max {
            return Err(Error::resources(
                Subtype::ResourceMemory,
                format!("this device cannot deepen an SRQ, and this one has room for {max}"),
            ));
        }
        while self.reclaim(0).is_some() {}
        let slots = slots_for(depth, max).max(self.ring.posted());
        self.ring
            .set_depth(slots)
            .map_err(|error| Error::new(ReturnType::InvalidState, Subtype::None, error.to_string()))?;
        self.depth = depth;
        // A smaller depth leaves the ring as it was; so much of it is enough.
        self.words = self.words.max(slots / u64::BITS + 1);
        self.far |= slots > FAR;
        self.reserved();
        srq.depth.store(depth, Ordering::Relaxed);
        Ok(())
    }
}

/// Slots that an SRQ of this depth goes round, of at most `max`: more than it has entries, so that slots that come back are
/// taken back many at a time.
fn slots_for(depth: u32, max: u32) -> u32 {
    ((depth + SPARE).next_multiple_of(u64::BITS) - 1).min(max)
}

/// Slots that may wait to be taken back.
const SPARE: u32 = 512;

/// From so many slots on their WQEs and cookies, 40 bytes each, fill a third of a second-level cache of 1 MiB, and are fetched ahead.
const FAR: u32 = 8192;

/// As many are fetched at once.
const FAR_RUN: u32 = 64;

fn no_memory() -> Error {
    Error::resources(Subtype::ResourceSrq, "no memory for the entries of the SRQ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ring_has_whole_words_beyond_the_depth_where_the_device_has_them() {
        for (depth, max, slots) in [(1, 32_767, 575), (64, 32_767, 575), (65, 32_767, 639), (16, 31, 31)] {
            assert_eq!(slots_for(depth, max), slots, "depth {depth} of {max}");
        }
        assert_eq!(slots_for(MAX_DEPTH, MAX_DEPTH), MAX_DEPTH);
    }
}
