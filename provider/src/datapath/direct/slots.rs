//! State that the poster of a ring and the reapers share: the state of each slot, and which slots
//! have returned.
//!
//! The poster is one thread; any number of threads reap; none of them waits for another. A slot
//! passes through these states: the poster posts the slot, a completion marks the slot as
//! *completed*, and reaping the event sets the slot's bit in the map of *returned* slots. The
//! poster clears bits, a word of 64 at a time, and posts those slots again. A completion that is
//! reaped immediately skips the completed state: then only the slot's bit and a counter are written.
//!
//! There are two maps of returned slots. Any thread may set bits of the shared map
//! ([`RingSlots::release`], [`RingSlots::reap`]), with atomic read-modify-write instructions. One
//! CQ may have a map of its own ([`RingSlots::claim`], [`RingSlots::reap_alone`]), which takes
//! plain stores, because only one thread at a time polls a CQ. This map consists of two words
//! with one writer each: a bit of `given` changes when the CQ's slot returns, a bit of `taken` when
//! the poster takes the slot, and a slot has returned where the two differ.
//!
//! The mark or the bit reveals a device that completes a slot twice. A completion of a slot that
//! was not posted is accepted here; the ring refuses the slot when the poster takes it back.

// The parent module chooses the atomics and the memory: tests/slots_order.rs includes this file
// with loom's atomics.
use super::{AtomicBool, AtomicU32, AtomicU64, Cookies, table};
use mlx5_direct::WqeIndex;
use std::collections::TryReserveError;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

const BITS: u32 = u64::BITS;

/// A mark holds, above these bits, the number of the pool that posted the slot. A mark is
/// [`COMPLETED`] for a completed slot and 0 otherwise.
const POOL_SHIFT: u32 = 32;
const COMPLETED: u64 = 1;

/// One unit in each half of [`RingSlots::counts`].
const RELEASED_ONE: u64 = 1 << 32;
const UNREAPED_ONE: u64 = 1;

// In this order, so that the first cache line has all that the CQ with a map of its own needs.
#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct RingSlots {
    /// The slots, 64 a word.
    words: Box<[Word]>,
    /// Written by the poster before the slot is posted.
    cookies: Cookies,
    alone: Alone,
    marks: Box<[AtomicU64]>,
    /// One bit per word in which a slot may have returned.
    returned_words: Box<[AtomicU64]>,
    /// High half: slots released so far, modulo 2^32. Low half: slots completed and not released.
    /// One load reads both.
    counts: AtomicU64,
}

/// Which of 64 slots have returned, and which may have a mark: one bit per slot in each map. The
/// maps of a word are together, so that a reaper finds them by one look-up.
#[derive(Debug)]
struct Word {
    /// The map that all threads share: the returned slots.
    returned: AtomicU64,
    /// The map of the CQ that has one of its own, which writes `given`. The poster writes `taken`.
    given: AtomicU64,
    taken: AtomicU64,
    /// The slots whose mark may be other than 0. Set before the mark. A slot that pools post keeps
    /// its bit until it completes by [`RingSlots::complete`].
    marked: AtomicU64,
}

impl Word {
    fn new(marked: u64) -> Self {
        let none = || AtomicU64::new(0);
        Self { returned: none(), given: none(), taken: none(), marked: AtomicU64::new(marked) }
    }

    /// Records that the slot with this bit may have a mark.
    #[inline]
    fn expect_mark(&self, bit: u64) {
        if self.marked.load(Relaxed) & bit == 0 {
            self.marked.fetch_or(bit, Release);
        }
    }

    /// The slots that have returned through the map of the CQ.
    #[inline(always)]
    fn returned_alone(&self) -> u64 {
        self.given.load(Relaxed) ^ self.taken.load(Relaxed)
    }

    /// The slots that have returned through either map.
    #[inline(always)]
    fn all_returned(&self) -> u64 {
        self.returned_alone() | self.returned.load(Relaxed)
    }
}

/// The CQ that has a map of its own.
#[derive(Debug)]
struct Alone {
    /// A CQ has the map. It alone writes `Word::given`, `current` and `released`.
    claimed: AtomicBool,
    /// The word whose `given` changed last. Every other word where a slot has returned has its
    /// bit in `returned_words`.
    current: AtomicU32,
    /// Slots released so far, modulo 2^32.
    released: AtomicU32,
}

/// What the CQ that has a map of its own keeps of the word whose `given` it changed last.
#[derive(Debug)]
pub(super) struct Current {
    word: u32,
    /// Slots that had neither returned nor a mark when the CQ has read the maps last, without those
    /// that it has returned since then.
    ready: u64,
    /// [`Word::given`] ^ `ready`: the value stays when both change in the same bit.
    given: u64,
}

impl Current {
    /// No word.
    pub(super) const NONE: Self = Self { word: u32::MAX, ready: 0, given: 0 };

    /// Records what the maps of the word say now.
    #[inline(always)]
    fn see(&mut self, ready: u64, given: u64) {
        (self.ready, self.given) = (ready, given ^ ready);
    }
}

/// The number of slots released so far, and of slots not reaped now.
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
    /// Creates the state for the ring with these cookies. All slots are free.
    pub(super) fn new(cookies: Cookies) -> Result<Self, TryReserveError> {
        let slots = cookies.len();
        let words = slots.div_ceil(BITS as usize);
        // The places behind the last slot are never ready.
        let beyond = |word: usize| match slots - word * BITS as usize {
            left @ 0..64 => u64::MAX << left,
            _ => 0,
        };
        Ok(Self {
            marks: zeroes(slots)?,
            words: table(words, |word| Word::new(beyond(word)))?,
            returned_words: zeroes(words.div_ceil(BITS as usize))?,
            counts: AtomicU64::new(0),
            alone: Alone {
                claimed: AtomicBool::new(false),
                current: AtomicU32::new(0),
                released: AtomicU32::new(0),
            },
            cookies,
        })
    }

    /// Records the pool for which the poster is about to post this slot. 0 clears the record; a
    /// slot without a pool needs no call.
    #[inline]
    pub(super) fn mark_pool(&self, slot: WqeIndex, pool: u32) {
        let word = self.words.get(usize::from(slot.0) / BITS as usize);
        if let (Some(mark), Some(word)) = (self.marks.get(usize::from(slot.0)), word) {
            word.expect_mark(1 << (u32::from(slot.0) % BITS));
            mark.store(u64::from(pool) << POOL_SHIFT, Release);
        }
    }

    /// Completes the slot that a completion names. Returns its cookie and pool; `None` if the slot
    /// has already completed.
    #[inline]
    pub(super) fn complete(&self, slot: u32) -> Option<(u64, u32)> {
        let mark = self.marks.get(slot as usize)?;
        let was = mark.load(Acquire);
        let word = self.words.get((slot / BITS) as usize)?;
        let returned = word.all_returned();
        if was == COMPLETED || returned >> (slot % BITS) & 1 == 1 {
            return None;
        }
        word.expect_mark(1 << (slot % BITS));
        mark.store(COMPLETED, Relaxed);
        self.counts.fetch_add(UNREAPED_ONE, Relaxed);
        Some((self.cookies.get(slot as usize)?.load(Relaxed), (was >> POOL_SHIFT) as u32))
    }

    /// Releases a slot whose completion was reaped or dropped. Does nothing for a slot that is not
    /// completed.
    #[inline]
    pub(super) fn release(&self, slot: u32) {
        let Some(mark) = self.marks.get(slot as usize) else { return };
        if mark.load(Relaxed) == COMPLETED {
            mark.store(0, Relaxed);
            if let Some(word) = self.words.get((slot / BITS) as usize) {
                word.marked.fetch_and(!(1 << (slot % BITS)), Relaxed);
            }
            self.give_back(slot, RELEASED_ONE - UNREAPED_ONE);
        }
    }

    /// Does [`RingSlots::complete`] and [`RingSlots::release`] in one step, for a completion that
    /// is reaped immediately.
    #[inline(always)]
    pub(super) fn reap(&self, slot: u32) -> Option<(u64, u32)> {
        let info = self.completes_unmarked(slot)?;
        self.give_back(slot, RELEASED_ONE).then_some(info)
    }

    /// Does the work of [`RingSlots::reap`] with plain stores. For the CQ that has the map, and for
    /// one thread at a time; the caller's lock orders these threads.
    #[inline(always)]
    pub(super) fn reap_alone(&self, current: &mut Current, slot: u32) -> Option<(u64, u32)> {
        let word = slot / BITS;
        if current.word != word && (word as usize) < self.words.len() {
            self.change_word(current, word);
        }
        self.reap_in_word(current, slot)
    }

    /// Does the work of [`RingSlots::reap_alone`] for a slot of the current word. `None` for a slot
    /// of another word, too.
    #[inline(always)]
    pub(super) fn reap_in_word(&self, current: &mut Current, slot: u32) -> Option<(u64, u32)> {
        if current.word != slot / BITS {
            return None;
        }
        let word = self.words.get((slot / BITS) as usize)?;
        let bit = 1 << (slot % BITS);
        let returned = word.all_returned();
        let marked = word.marked.load(Acquire);
        // The last look-up that may fail, and the cookie, come here: fewer values are in use then.
        let info = if (returned | marked) & bit == 0 {
            (self.cookies.get(slot as usize)?.load(Relaxed), 0)
        } else if returned & bit == 0 {
            self.completes_unmarked(slot)?
        } else {
            return None;
        };
        let given = word.given.load(Relaxed) ^ bit;
        current.see(!(returned | marked | bit), given);
        self.give_back_alone(word, given);
        Some(info)
    }

    /// Does the work of [`RingSlots::reap_in_word`] for a slot of no pool, and returns its cookie.
    /// `None` also for a slot that had a mark or had returned when `reap_in_word` has seen its word
    /// last, and for one that was reaped since then. Only for a program without pools: this
    /// function does not notice a mark that was set since then.
    #[inline(always)]
    pub(super) fn reap_ready(&self, current: &mut Current, slot: u32) -> Option<u64> {
        if current.word != slot / BITS {
            return None;
        }
        if current.ready >> (slot % BITS) & 1 == 0 {
            return None;
        }
        // The look-ups do not fail: every ready slot has a word and a cookie.
        current.ready &= (!1_u64).rotate_left(slot);
        let word = self.words.get((slot / BITS) as usize)?;
        self.give_back_alone(word, current.ready ^ current.given);
        Some(self.cookies.get(slot as usize)?.load(Relaxed))
    }

    /// Returns a slot through the map of the CQ. `given` is the word of this map with the slot's
    /// bit changed.
    #[inline(always)]
    fn give_back_alone(&self, word: &Word, given: u64) {
        word.given.store(given, Release);
        self.alone.released.store(self.alone.released.load(Relaxed).wrapping_add(1), Release);
    }

    /// Makes this the current word. The poster finds the former one by its bit from now on.
    #[inline(never)]
    fn change_word(&self, current: &mut Current, word: u32) {
        *current = Current { word, ..Current::NONE };
        let former = self.alone.current.load(Relaxed);
        if former == word {
            return;
        }
        if let Some(words) = self.returned_words.get((former / BITS) as usize) {
            words.fetch_or(1 << (former % BITS), Release);
        }
        self.alone.current.store(word, Release);
    }

    /// Gives the map of its own to a CQ. False if another CQ has it.
    pub(super) fn claim(&self) -> bool {
        !self.alone.claimed.swap(true, Acquire)
    }

    /// Takes the map back from the CQ that has it.
    pub(super) fn unclaim(&self) {
        self.alone.claimed.store(false, Release);
    }

    /// Clears the mark of a slot that completes and is released in one step. Returns its cookie and
    /// pool; `None` if it has already completed.
    #[inline(always)]
    fn completes_unmarked(&self, slot: u32) -> Option<(u64, u32)> {
        let mark = self.marks.get(slot as usize)?;
        let cookie = self.cookies.get(slot as usize)?.load(Relaxed);
        let was = mark.load(Acquire);
        if was != 0 {
            if was == COMPLETED {
                return None;
            }
            mark.store(0, Relaxed);
        }
        Some((cookie, (was >> POOL_SHIFT) as u32))
    }

    /// Returns false without a change for a slot that has already returned.
    #[inline(always)]
    fn give_back(&self, slot: u32, counted: u64) -> bool {
        let at = (slot / BITS) as usize;
        let Some(word) = self.words.get(at) else { return false };
        let bit = 1 << (slot % BITS);
        if word.returned_alone() & bit != 0 {
            return false;
        }
        let before = word.returned.fetch_or(bit, Release);
        if before & bit != 0 {
            return false;
        }
        if before == 0
            && let Some(words) = self.returned_words.get(at / BITS as usize)
        {
            words.fetch_or(1 << (at as u32 % BITS), Release);
        }
        self.counts.fetch_add(counted, Release);
        true
    }

    /// Lets the poster take the returned slots of one word: the first word from `start` on that has
    /// any, searched round the ring of `words` words. Returns the word's index and its bits, or
    /// `None` if no slot has returned.
    #[inline]
    pub(super) fn take_returned(&self, start: u32, words: u32) -> Option<(u32, u64)> {
        let start = if start < words { start } else { 0 };
        let next = if start + 1 < words { start + 1 } else { 0 };
        // If slots return in order, this word or the next one has the bits, and no search is
        // needed.
        for word in [start, next] {
            // The word's bit in `returned_words` stays set, which is allowed: that bit means "may
            // be nonzero".
            if let Some(bits) = self.take_word(word) {
                return Some((word, bits));
            }
        }
        // Read before the search: a word that has ceased to be current has its bit by then.
        let current = self.alone.current.load(Acquire);
        self.search_returned(start).or_else(|| Some((current, self.take_word(current)?)))
    }

    /// Takes the returned slots of this word from both maps. `None` if there is none.
    #[inline]
    fn take_word(&self, word: u32) -> Option<u64> {
        let Word { returned: shared, given, taken, .. } = self.words.get(word as usize)?;
        let given = given.load(Acquire);
        let mut bits = given ^ taken.load(Relaxed);
        if bits != 0 {
            taken.store(given, Release);
        }
        if shared.load(Relaxed) != 0 {
            bits |= shared.swap(0, Acquire);
        }
        (bits != 0).then_some(bits)
    }

    fn search_returned(&self, start: u32) -> Option<(u32, u64)> {
        let groups = self.returned_words.len();
        let group = (start / BITS) as usize;
        // The first group is searched twice: first its words from `start` on, and last its other
        // words.
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
                // Clear this bit first. A thread that returns a slot after the swap below then sees
                // 0 in the word and sets this bit again.
                self.returned_words.get(at)?.fetch_and(!(1 << bit), Acquire);
                let word = at as u32 * BITS + bit;
                if let Some(bits) = self.take_word(word) {
                    return Some((word, bits));
                }
            }
        }
        None
    }

    /// Returns [`Counts::released`].
    #[inline(always)]
    pub(super) fn released(&self) -> u32 {
        let shared = (self.counts.load(Acquire) >> 32) as u32;
        shared.wrapping_add(self.alone.released.load(Acquire))
    }

    pub(super) fn counts(&self) -> Counts {
        let both = self.counts.load(Acquire);
        let released = ((both >> 32) as u32).wrapping_add(self.alone.released.load(Acquire));
        Counts { released, unreaped: both as u32 }
    }
}

#[cfg(test)]
#[path = "slots/tests.rs"]
mod tests;
