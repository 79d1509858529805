//! SRQs on the direct path: the ring of WQEs, and the state of its slots.
//!
//! [`DirectPoster`] belongs to the one thread that posts, and owns the ring. All other threads use
//! [`DirectSrq`]: they complete and release slots, and the poster learns of this through
//! [`RingSlots`].

use super::adopt::{self, Adopted};
use super::slots::{Counts, RingSlots};
use crate::datapath::completion::{SrqCounts, WrInfo};
use crate::datapath::fast::{Fast, PostSrq, Segment};
use crate::error::PostError;
use crate::types::{LmrTriplet, MAX_IOV};
use crate::{Error, Result, ReturnType, Subtype};
use mlx5_direct::{DataSeg, WqeIndex, wqe::KeyedSeg};
use rxe_fallback::{Sge, Srq};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// The most entries that a ring can have.
pub(crate) const MAX_DEPTH: u32 = mlx5_direct::wqe::MAX_WQE_COUNT - 1;

/// An SRQ of the device: the part that all threads share.
#[derive(Debug)]
pub(crate) struct DirectSrq {
    /// The ID that completions carry.
    pub(super) id: u32,
    pub(super) slots: Arc<RingSlots>,
    depth: AtomicU32,
    /// The largest depth that the SRQ can be given.
    pub(super) room: u32,
    verbs: Srq,
}

/// The part that posts: the ring.
#[derive(Debug)]
pub(crate) struct DirectPoster {
    ring: Adopted<mlx5_direct::Srq, Srq>,
    slots: Arc<RingSlots>,
    /// The largest outstanding count. The ring has room for more slots.
    depth: u32,
    /// The number of slots that were released although they were not posted.
    never_posted: u32,
    /// The number of words of 64 slots in the part of the ring that is used.
    words: u32,
    /// The slots in use do not fit in the processor's caches.
    far: bool,
    srq: u32,
}

impl DirectSrq {
    /// Takes over an SRQ to which nothing was posted. Its initial depth is `depth`.
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
        // The completion itself says why a receive failed, so the LMRs are not needed.
        Some(WrInfo { cookie, pool, ..WrInfo::default() })
    }

    #[inline]
    pub(crate) fn release(&self, entry: u32) {
        self.slots.release(entry);
    }

    pub(crate) fn depth(&self) -> u32 {
        self.depth.load(Ordering::Relaxed)
    }
}

impl PostSrq for DirectPoster {
    type Segment = KeyedSeg;

    /// Posts if the next slot is known and has room.
    #[inline(always)]
    fn push_fast(
        &mut self,
        iov: &[LmrTriplet],
        mut encode: impl FnMut(&LmrTriplet) -> Option<KeyedSeg>,
        cookie: u64,
    ) -> Fast {
        // `limit` has limited the run to the number of free entries.
        let posted = match iov {
            [one] => encode(one).and_then(|segment| self.ring.post_one_fast(segment, cookie)),
            _ => self.ring.post_list_fast(iov, encode, cookie),
        };
        if posted.is_some() { Fast::Posted } else { Fast::Nothing }
    }
}

impl DirectPoster {
    /// Posts any number of segments. Takes slots back first if the ring has no free slot.
    pub(crate) fn push(&mut self, segments: &[Sge], info: &WrInfo) -> Result<(), PostError> {
        let (given, most) = (segments.len() as u32, self.ring.max_segments());
        let too_many = PostError::TooManySegments { given, most };
        if given > most {
            return Err(too_many);
        }
        let full = PostError::Full(Subtype::ResourceSrq);
        if self.room() == 0 {
            return Err(full);
        }
        // Most buffers have few segments, and a small array is cleared in less time.
        const NONE: DataSeg = DataSeg::new(0, 0, 0);
        let (mut few, mut many) = ([NONE; 4], None);
        let encoded = match few.get_mut(..segments.len()) {
            Some(few) => few,
            None => many.insert([NONE; MAX_IOV]).get_mut(..segments.len()).ok_or(too_many)?,
        };
        for (to, from) in encoded.iter_mut().zip(segments) {
            *to = DataSeg::new(from.addr, from.len, from.lkey);
        }
        if info.pool != 0 {
            self.slots.mark_pool(self.ring.next_slot(), info.pool);
        }
        let next = self.ring.next_slots();
        let mut posted = self.ring.post(encoded, info.cookie).is_ok();
        if !posted {
            self.reclaim_some();
            posted = self.ring.post(encoded, info.cookie).is_ok();
        }
        if self.far && next.start() == next.end() && self.ring.plain_run() > 1 {
            // The prefetched cache lines arrive during the next `FAR_RUN` posts.
            self.ring.prefetch(FAR_RUN..2 * FAR_RUN);
        }
        self.limit();
        if !posted && info.pool != 0 {
            self.slots.mark_pool(self.ring.next_slot(), 0);
        }
        if posted { Ok(()) } else { Err(full) }
    }

    /// Posts a segment of a pool, if the next slot is known and has room.
    #[inline(always)]
    pub(crate) fn push_pool_fast(&mut self, segment: Sge, info: &WrInfo) -> bool {
        let slot = self.ring.next_slot();
        self.slots.mark_pool(slot, info.pool);
        if self.ring.post_one_fast(KeyedSeg::of_sge(segment), info.cookie).is_some() {
            return true;
        }
        self.slots.mark_pool(slot, 0);
        false
    }

    /// Limits the posts of [`DirectPoster::push_fast`] to the number of free entries.
    fn limit(&mut self) {
        let room = self.room();
        self.ring.limit_run(room);
    }

    /// The number of entries posted and not reaped, given the number of released slots.
    #[inline(always)]
    fn outstanding(&self, released: u32) -> u32 {
        let posted = self.ring.count().wrapping_add(self.never_posted);
        // The difference is negative only until `never_posted` is updated.
        (posted.wrapping_sub(released) as i32).max(0) as u32
    }

    /// The number of entries that can be posted now.
    #[inline(always)]
    fn room(&self) -> u32 {
        self.depth.saturating_sub(self.outstanding(self.slots.released()))
    }

    /// Takes some reaped slots back: a bounded number, so that a call costs the same at any depth.
    #[inline(never)]
    fn reclaim_some(&mut self) {
        // Taking many slots at once saves searches. If the slots are not in the cache, take fewer,
        // so that no call waits for many cache misses.
        let mut word = u32::from(self.ring.next_slot().0) / u64::BITS;
        for _ in 0..if self.far { 1 } else { SPARE / u64::BITS } {
            let Some(taken) = self.reclaim(word) else { return };
            word = taken + 1;
        }
    }

    /// Takes back the reaped slots of one word: the first word with any, searched round the ring
    /// from `start`. Returns the word's index.
    fn reclaim(&mut self, start: u32) -> Option<u32> {
        let (word, bits) = self.slots.take_returned(start, self.words)?;
        // A single slot may extend the ring's current run; then no search is needed.
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
        tracing::error!(%error, srq = self.srq, "a slot came back that was not posted: the device may be faulty");
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

    /// Sets a depth that is not below the outstanding count.
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
        // A smaller depth leaves the ring's size unchanged.
        self.words = self.words.max(slots / u64::BITS + 1);
        self.far |= slots > FAR;
        self.limit();
        srq.depth.store(depth, Ordering::Relaxed);
        Ok(())
    }
}

/// The number of ring slots for an SRQ of this depth, at most `max`. There are more slots than
/// entries, so that returned slots can be taken back many at a time.
fn slots_for(depth: u32, max: u32) -> u32 {
    ((depth + SPARE).next_multiple_of(u64::BITS) - 1).min(max)
}

/// The number of slots that may wait to be taken back.
const SPARE: u32 = 512;

/// The smallest number of slots that are prefetched. Their WQEs and cookies, 40 bytes per slot,
/// then fill a third of a second-level cache of 1 MiB.
const FAR: u32 = 8192;

/// The number of slots that are prefetched at once.
const FAR_RUN: u32 = 64;

fn no_memory() -> Error {
    Error::resources(Subtype::ResourceSrq, "no memory for the entries of the SRQ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ring_has_whole_words_beyond_the_depth() {
        for (depth, max, slots) in [(1, 32_767, 575), (64, 32_767, 575), (65, 32_767, 639), (16, 31, 31)] {
            assert_eq!(slots_for(depth, max), slots, "depth {depth} of {max}");
        }
        assert_eq!(slots_for(MAX_DEPTH, MAX_DEPTH), MAX_DEPTH);
    }
}
