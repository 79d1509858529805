//! What the poster of a ring and those who reap from it share: where each slot is, and which ones are back.
//!
//! The poster is one thread, reapers may be many, and neither waits for the other. A slot goes round: the poster posts it, a
//! completion makes it *completed*, reaping the event sets its bit in the map of *returned* slots; the poster clears bits, a
//! word of 64 at a time, and posts those slots again. A completion that is reaped at once skips the second state, so that
//! the common way of a slot writes nothing here but that bit and a count.
//!
//! A device that completes a slot twice is found out by the mark or the bit. One that completes what nobody has posted is
//! believed until the poster takes the slot back, which the ring refuses.

// The parent module chooses the atomics and the memory: tests/slots_order.rs includes this file with loom's atomics.
use super::{AtomicU64, Cookies, table};
use mlx5_direct::WqeIndex;
use std::collections::TryReserveError;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

const BITS: u32 = u64::BITS;

/// A mark: the number of the pool that posted the slot above these bits, or [`COMPLETED`]; 0 otherwise.
const POOL_SHIFT: u32 = 32;
const COMPLETED: u64 = 1;

/// Halves of [`RingSlots::counts`].
const RELEASED_ONE: u64 = 1 << 32;
const UNREAPED_ONE: u64 = 1;

#[derive(Debug)]
pub(super) struct RingSlots {
    marks: Box<[AtomicU64]>,
    /// Written by the poster before the slot is posted.
    cookies: Cookies,
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

fn zeroes(n: usize) -> Result<Box<[AtomicU64]>, TryReserveError> {
    table(n, |_| AtomicU64::new(0))
}

impl RingSlots {
    /// For the ring with these cookies, all slots free.
    pub(super) fn new(cookies: Cookies) -> Result<Self, TryReserveError> {
        let words = cookies.len().div_ceil(BITS as usize);
        Ok(Self {
            marks: zeroes(cookies.len())?,
            returned: zeroes(words)?,
            returned_words: zeroes(words.div_ceil(BITS as usize))?,
            counts: AtomicU64::new(0),
            cookies,
        })
    }

    /// The poster is about to post this slot for this pool; 0, which need not be said, takes that back.
    pub(super) fn mark_pool(&self, slot: WqeIndex, pool: u32) {
        if let Some(mark) = self.marks.get(usize::from(slot.0)) {
            mark.store(u64::from(pool) << POOL_SHIFT, Release);
        }
    }

    /// A completion names this slot: gives its cookie and pool; `None` for one that has completed.
    #[inline]
    pub(super) fn complete(&self, slot: u32) -> Option<(u64, u32)> {
        let mark = self.marks.get(slot as usize)?;
        let was = mark.load(Acquire);
        let returned = self.returned.get((slot / BITS) as usize)?.load(Relaxed);
        if was == COMPLETED || returned >> (slot % BITS) & 1 == 1 {
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
            mark.store(0, Relaxed);
            self.give_back(slot, RELEASED_ONE - UNREAPED_ONE);
        }
    }

    /// [`RingSlots::complete`] and [`RingSlots::release`] in one, for a completion that is reaped at once.
    #[inline(always)]
    pub(super) fn reap(&self, slot: u32) -> Option<(u64, u32)> {
        let mark = self.marks.get(slot as usize)?;
        let cookie = self.cookies.get(slot as usize)?.load(Relaxed);
        let was = mark.load(Acquire);
        if was != 0 {
            if was == COMPLETED {
                return None;
            }
            mark.store(0, Relaxed);
        }
        self.give_back(slot, RELEASED_ONE).then_some((cookie, (was >> POOL_SHIFT) as u32))
    }

    /// False, and nothing happens, for a slot that was given back already.
    #[inline(always)]
    fn give_back(&self, slot: u32, counted: u64) -> bool {
        let word = (slot / BITS) as usize;
        let Some(bits) = self.returned.get(word) else { return false };
        let (bit, before) = (1 << (slot % BITS), bits.fetch_or(1 << (slot % BITS), Release));
        if before & bit != 0 {
            return false;
        }
        if before == 0
            && let Some(words) = self.returned_words.get(word / BITS as usize)
        {
            words.fetch_or(1 << (word as u32 % BITS), Release);
        }
        self.counts.fetch_add(counted, Release);
        true
    }

    /// The poster takes returned slots of one word, the first from word `start` on with any, round the `words` that it goes
    /// round: the word's index and its bits. `None` when there are none.
    #[inline]
    pub(super) fn take_returned(&self, start: u32, words: u32) -> Option<(u32, u64)> {
        let start = if start < words { start } else { 0 };
        let next = if start + 1 < words { start + 1 } else { 0 };
        // In order, it is this word or the next: no need to look for it.
        for word in [start, next] {
            if let Some(bits) = self.returned.get(word as usize)
                && bits.load(Relaxed) != 0
            {
                // Its bit among the words stays: that word may not be 0, it says.
                return Some((word, bits.swap(0, Acquire)));
            }
        }
        self.search_returned(start)
    }

    fn search_returned(&self, start: u32) -> Option<(u32, u64)> {
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

    /// [`Counts::released`].
    #[inline(always)]
    pub(super) fn released(&self) -> u32 {
        (self.counts.load(Acquire) >> 32) as u32
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
    use std::sync::Arc;

    fn slots(n: usize) -> RingSlots {
        let cookies: Box<[_]> = (0..n as u64).map(|cookie| AtomicU64::new(cookie + 100)).collect();
        RingSlots::new(Cookies::from(cookies)).unwrap()
    }

    #[test]
    fn a_slot_completes_once_and_comes_back_once() {
        let slots = slots(128);
        slots.mark_pool(WqeIndex(70), 9);
        slots.release(70);
        assert_eq!(slots.take_returned(0, 512), None);
        assert_eq!(slots.complete(70), Some((170, 9)));
        assert_eq!(slots.complete(70), None);
        assert_eq!(slots.counts(), Counts { released: 0, unreaped: 1 });
        slots.release(70);
        slots.release(70);
        assert_eq!(slots.complete(70), None);
        assert_eq!(slots.reap(70), None);
        assert_eq!(slots.counts(), Counts { released: 1, unreaped: 0 });
        assert_eq!(slots.take_returned(0, 512), Some((1, 1 << 6)));
        assert_eq!(slots.take_returned(0, 512), None);
    }

    #[test]
    fn reaping_at_once_is_completing_and_releasing() {
        let slots = slots(128);
        slots.mark_pool(WqeIndex(3), 4);
        assert_eq!(slots.reap(3), Some((103, 4)));
        assert_eq!((slots.reap(3), slots.complete(3), slots.reap(128)), (None, None, None));
        assert_eq!(slots.counts(), Counts { released: 1, unreaped: 0 });
        assert_eq!(slots.take_returned(0, 512), Some((0, 1 << 3)));
    }

    #[test]
    fn slots_that_no_ring_has_change_nothing() {
        let slots = slots(64);
        slots.mark_pool(WqeIndex(64), 1);
        assert_eq!((slots.complete(64), slots.reap(64)), (None, None));
        slots.release(u32::MAX);
        assert_eq!(slots.counts(), Counts { released: 0, unreaped: 0 });
    }

    #[test]
    fn returned_slots_come_in_ring_order_from_where_the_poster_is() {
        let slots = slots(32_768);
        for slot in [5_u16, 70, 8_000, 32_000] {
            slots.complete(slot.into()).unwrap();
            slots.release(slot.into());
        }
        let taken: Vec<_> =
            std::iter::from_fn(|| slots.take_returned(7_990 / BITS, 512)).map(|t| t.0).collect();
        assert_eq!(taken, [125, 500, 0, 1]);
    }

    #[test]
    fn the_count_of_released_slots_wraps_and_leaves_the_other_alone() {
        let slots = slots(64);
        slots.counts.store(u64::from(u32::MAX) << 32, Relaxed);
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
                    post.push(Some(slot)).unwrap();
                    done += 1;
                    continue;
                }
                match slots.take_returned(0, 512) {
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
