//! What the poster of a ring and those who reap from it share: where each slot is, and which ones are back.
//!
//! The poster is one thread, reapers may be many, and neither waits for the other. A slot goes round: the poster marks it
//! *posted* before the device can know of it, a completion makes it *completed*, reaping the event makes it *free* and sets
//! its bit in the map of returned slots; the poster clears bits, a word of 64 at a time, and posts those slots again. So
//! whoever changes a mark is the only one who may at that time.

use mlx5_direct::WqeIndex;
use std::sync::Arc;
use std::sync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};

const BITS: u32 = u64::BITS;

/// A mark: where the slot is, and the number of the pool that posted it above these bits.
const POOL_SHIFT: u32 = 32;
const FREE: u64 = 0;
const POSTED: u64 = 1;
const COMPLETED: u64 = 2;

/// Halves of [`Slots::counts`].
const RELEASED_ONE: u64 = 1 << 32;
const UNREAPED_ONE: u64 = 1;

#[derive(Debug)]
pub(super) struct Slots {
    marks: Arc<[AtomicU64]>,
    /// Written by the poster before the slot is posted.
    cookies: Arc<[AtomicU64]>,
    /// A bit per slot that is back, and a bit per word of those that may not be 0.
    returned: Box<[AtomicU64]>,
    returned_words: Box<[AtomicU64]>,
    /// Slots released so far, modulo 2^32, above those completed and not released: one look at both.
    counts: AtomicU64,
}

/// What has become of slots so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Counts {
    /// Modulo 2^32.
    pub(super) released: u32,
    pub(super) unreaped: u32,
}

/// The poster is about to post this slot for this pool (0 for none). Of a slot that then is not posted after all nobody learns.
#[inline(always)]
pub(super) fn mark_posted(marks: &[AtomicU64], slot: WqeIndex, pool: u32) {
    if let Some(mark) = marks.get(usize::from(slot.0)) {
        mark.store(u64::from(pool) << POOL_SHIFT | POSTED, Release);
    }
}

fn zeroes(n: usize) -> Box<[AtomicU64]> {
    (0..n).map(|_| AtomicU64::new(0)).collect()
}

impl Slots {
    /// For the ring with these cookies, all slots free.
    pub(super) fn new(cookies: Arc<[AtomicU64]>) -> Self {
        let words = cookies.len().div_ceil(BITS as usize);
        Self {
            marks: zeroes(cookies.len()).into(),
            returned: zeroes(words),
            returned_words: zeroes(words.div_ceil(BITS as usize)),
            counts: AtomicU64::new(0),
            cookies,
        }
    }

    /// Bytes that this takes for a ring of so many slots.
    pub(super) const fn bytes(slots: usize) -> usize {
        slots * size_of::<u64>() + slots / 4
    }

    /// For the poster: a way to [`mark_posted`] that needs no look at this.
    pub(super) fn marks(&self) -> &Arc<[AtomicU64]> {
        &self.marks
    }

    /// A completion names this slot: gives its cookie and pool; `None` for one that is not posted.
    #[inline]
    pub(super) fn complete(&self, slot: u32) -> Option<(u64, u32)> {
        let mark = self.marks.get(slot as usize)?;
        let was = mark.load(Acquire);
        if was as u32 != POSTED as u32 {
            return None;
        }
        mark.store(COMPLETED, Relaxed);
        self.counts.fetch_add(UNREAPED_ONE, Relaxed);
        Some((self.cookies.get(slot as usize)?.load(Relaxed), (was >> POOL_SHIFT) as u32))
    }

    /// The completion was reaped or dropped; nothing happens for a slot that is not completed.
    #[inline]
    pub(super) fn release(&self, slot: u32) {
        let Some(mark) = self.marks.get(slot as usize) else { return };
        if mark.load(Relaxed) == COMPLETED {
            mark.store(FREE, Relaxed);
            self.give_back(slot, RELEASED_ONE - UNREAPED_ONE);
        }
    }

    /// [`Slots::complete`] and [`Slots::release`] in one, for a completion that is reaped at once.
    #[inline(always)]
    pub(super) fn reap(&self, slot: u32) -> Option<(u64, u32)> {
        let mark = self.marks.get(slot as usize)?;
        let was = mark.load(Acquire);
        if was as u32 != POSTED as u32 {
            return None;
        }
        let cookie = self.cookies.get(slot as usize)?.load(Relaxed);
        mark.store(FREE, Relaxed);
        self.give_back(slot, RELEASED_ONE);
        Some((cookie, (was >> POOL_SHIFT) as u32))
    }

    #[inline(always)]
    fn give_back(&self, slot: u32, counted: u64) {
        // First, so that whoever counts never finds fewer released than the poster has taken back.
        self.counts.fetch_add(counted, Relaxed);
        let word = (slot / BITS) as usize;
        if let Some(bits) = self.returned.get(word)
            && bits.fetch_or(1 << (slot % BITS), Release) == 0
            && let Some(words) = self.returned_words.get(word / BITS as usize)
        {
            words.fetch_or(1 << (word as u32 % BITS), Release);
        }
    }

    /// The poster takes returned slots of one word, the first at or after `slot`'s with any, round the ring: the word's index
    /// and its bits. `None` when there are none.
    #[inline]
    pub(super) fn take_returned(&self, slot: WqeIndex) -> Option<(u32, u64)> {
        let start = u32::from(slot.0) / BITS;
        let groups = self.returned_words.len();
        let group = (start / BITS) as usize;
        // The first group is looked at twice: its words from `start` on, and at last the others.
        for n in 0..=groups {
            let at = (group + n) % groups;
            let wanted = match n {
                0 => u64::MAX << (start % BITS),
                n if n == groups => !(u64::MAX << (start % BITS)),
                _ => u64::MAX,
            };
            let mut words = self.returned_words.get(at)?.load(Acquire) & wanted;
            while words != 0 {
                let bit = words.trailing_zeros();
                words &= words - 1;
                // This bit goes first: whoever returns a slot after the word was taken sees 0 there and sets it again.
                self.returned_words.get(at)?.fetch_and(!(1 << bit), Acquire);
                let word = at as u32 * BITS + bit;
                let bits = self.returned.get(word as usize)?.swap(0, Acquire);
                if bits != 0 {
                    return Some((word, bits));
                }
            }
        }
        None
    }

    pub(super) fn counts(&self) -> Counts {
        let both = self.counts.load(Acquire);
        Counts { released: (both >> 32) as u32, unreaped: both as u32 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn slots(n: usize) -> Slots {
        Slots::new((0..n as u64).map(|cookie| AtomicU64::new(cookie + 100)).collect())
    }

    #[test]
    fn a_slot_completes_once_and_comes_back_once() {
        let slots = slots(128);
        assert_eq!(slots.complete(70), None);
        mark_posted(&slots.marks, WqeIndex(70), 9);
        slots.release(70);
        assert_eq!(slots.take_returned(WqeIndex(0)), None);
        assert_eq!(slots.complete(70), Some((170, 9)));
        assert_eq!(slots.complete(70), None);
        assert_eq!(slots.counts(), Counts { released: 0, unreaped: 1 });
        slots.release(70);
        slots.release(70);
        assert_eq!(slots.counts(), Counts { released: 1, unreaped: 0 });
        assert_eq!(slots.take_returned(WqeIndex(0)), Some((1, 1 << 6)));
        assert_eq!(slots.take_returned(WqeIndex(0)), None);
    }

    #[test]
    fn reaping_at_once_is_completing_and_releasing() {
        let slots = slots(128);
        mark_posted(&slots.marks, WqeIndex(3), 4);
        assert_eq!(slots.reap(3), Some((103, 4)));
        assert_eq!((slots.reap(3), slots.complete(3), slots.reap(128)), (None, None, None));
        assert_eq!(slots.counts(), Counts { released: 1, unreaped: 0 });
        assert_eq!(slots.take_returned(WqeIndex(0)), Some((0, 1 << 3)));
    }

    #[test]
    fn slots_that_no_ring_has_change_nothing() {
        let slots = slots(64);
        mark_posted(&slots.marks, WqeIndex(64), 0);
        assert_eq!(slots.complete(64), None);
        slots.release(u32::MAX);
        assert_eq!(slots.counts(), Counts { released: 0, unreaped: 0 });
    }

    #[test]
    fn returned_slots_come_in_ring_order_from_where_the_poster_is() {
        let slots = slots(32_768);
        for slot in [5_u16, 70, 8_000, 32_000] {
            mark_posted(&slots.marks, WqeIndex(slot), 0);
            slots.complete(slot.into()).unwrap();
            slots.release(slot.into());
        }
        let taken: Vec<_> =
            std::iter::from_fn(|| slots.take_returned(WqeIndex(7_990))).map(|t| t.0).collect();
        assert_eq!(taken, [125, 500, 0, 1]);
    }

    #[test]
    fn the_count_of_released_slots_wraps_and_leaves_the_other_alone() {
        let slots = slots(64);
        slots.counts.store(u64::from(u32::MAX) << 32, Relaxed);
        mark_posted(&slots.marks, WqeIndex(1), 0);
        slots.complete(1).unwrap();
        slots.release(1);
        assert_eq!(slots.counts(), Counts { released: 0, unreaped: 0 });
    }

    /// One poster, several reapers that complete slots in any order: each slot comes back exactly once, and none is lost.
    #[test]
    fn nothing_is_lost_or_doubled_between_threads() {
        const RING: u16 = 256;
        const EACH: usize = 200_000;
        const REAPERS: usize = 2;
        let slots = slots(usize::from(RING));
        let (post, posted) = crossbeam_queue_pair(usize::from(RING));
        std::thread::scope(|scope| {
            for _ in 0..REAPERS {
                scope.spawn(|| {
                    while let Some(slot) = next(&posted) {
                        if slot % 2 == 0 {
                            assert!(slots.reap(slot.into()).is_some());
                            continue;
                        }
                        assert!(slots.complete(slot.into()).is_some());
                        slots.release(slot.into());
                    }
                });
            }
            let mut free: HashSet<u16> = (0..RING).collect();
            let mut order: Vec<u16> = free.iter().copied().collect();
            let mut done = 0;
            while done < EACH || free.len() < usize::from(RING) {
                if done < EACH
                    && let Some(slot) = order.pop()
                {
                    assert!(free.remove(&slot));
                    mark_posted(&slots.marks, WqeIndex(slot), 0);
                    post.push(Some(slot)).unwrap();
                    done += 1;
                    continue;
                }
                match slots.take_returned(WqeIndex(7)) {
                    Some((word, bits)) => {
                        for bit in (0..64).filter(|b| bits >> b & 1 == 1) {
                            let slot = (word * 64 + bit) as u16;
                            assert!(free.insert(slot), "slot {slot} came back twice");
                            order.push(slot);
                        }
                    }
                    None => std::thread::yield_now(),
                }
            }
            (0..REAPERS).for_each(|_| while post.push(None).is_err() {});
        });
        assert_eq!(slots.counts(), Counts { released: EACH as u32, unreaped: 0 });
    }

    type Queue = crossbeam_queue::ArrayQueue<Option<u16>>;

    fn crossbeam_queue_pair(n: usize) -> (Arc<Queue>, Arc<Queue>) {
        let queue = Arc::new(Queue::new(n + 8));
        (queue.clone(), queue)
    }

    fn next(queue: &Queue) -> Option<u16> {
        loop {
            match queue.pop() {
                Some(message) => return message,
                None => std::thread::yield_now(),
            }
        }
    }
}
