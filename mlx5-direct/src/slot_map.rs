//! Which slot is next: ring order, with slots in use skipped, at constant cost.
//!
//! The device starts at slot 0 and follows the links. A slot that the doorbell record counts must
//! already have its final link. So one slot, the *tail*, is always linked but not posted: a post
//! fills the tail, links it to the slot that will be the next tail, and moves on. Slots are taken
//! in ring order; slots still in use are skipped. As long as no slot stays in use for a whole lap,
//! every link already says "the slot after this one" and is not written again, and the device can
//! prefetch neighbouring WQEs.
//!
//! Every slot below `window` is in exactly one state:
//!
//! | state | where |
//! |---|---|
//! | free | its bit in [`FreeMap`] |
//! | reserved | in the *run*, `tail < slot <= run_end`: linked in order, not in the map |
//! | tail | `slot == tail` |
//! | in use | none of these: on the SRQ, at a QP, or completed and not yet returned |
//!
//! The run makes the common post cheap: while there is a run, the next tail is `tail + 1`. A search
//! reserves neighbours as a run. A slot that is returned right behind the run, as happens when
//! receives complete in order, joins the run and never goes through the map. Tail and run are
//! stored with the slots, in [`WqeMem`](crate::queue_mem::WqeMem); the maps are here.

use std::collections::TryReserveError;

use crate::{table::fixed, wqe::MAX_WQE_COUNT};

/// Words of a bit map of slots. The number is fixed and indices are masked to it, so that no access
/// needs a bounds check. A small ring touches the first words only.
const WORDS: usize = MAX_WQE_COUNT as usize / 64;

/// Words that a run may touch. The limit makes a search cost the same whatever the size of the
/// ring.
const RUN_WORDS: usize = 4;

/// The word that holds a slot's bit.
#[inline(always)]
fn word(slot: u32) -> usize {
    slot as usize / 64 % WORDS
}

/// One bit per free slot, one bit per word with a free slot, and one bit per summary word with a
/// bit set.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct FreeMap {
    words: Box<[u64; WORDS]>,
    /// Covers at most eight summary words, so that the search is one path without a loop.
    top: u64,
    summary: [u64; WORDS / 64],
}

/// The bits of `map` above bit `n % 64`.
#[inline(always)]
fn above(map: u64, n: usize) -> u64 {
    map & (u64::MAX << (n % 64) << 1)
}

impl FreeMap {
    pub(crate) fn new() -> Result<Self, TryReserveError> {
        Ok(Self { words: fixed(0)?, summary: [0; WORDS / 64], top: 0 })
    }

    /// Marks `slot` free. Returns false, without a change, if the slot was free already.
    #[inline(always)]
    pub(crate) fn insert(&mut self, slot: u32) -> bool {
        let (w, bit) = (word(slot), 1 << (slot % 64));
        let before = self.words[w];
        self.words[w] = before | bit;
        if before == 0 {
            self.summary[w / 64] |= 1 << (w % 64);
            self.top |= 1 << (w / 64);
        }
        before & bit == 0
    }

    #[inline(always)]
    pub(crate) fn contains(&self, slot: u32) -> bool {
        self.words[word(slot)] >> (slot % 64) & 1 == 1
    }

    /// The first word after `w` with a free slot, or else the first such word of the map. There
    /// must be a free slot.
    #[inline(always)]
    fn next_word(&self, w: usize) -> usize {
        let mut s = w / 64;
        let mut with_free = above(self.summary[s], w);
        if with_free == 0 {
            let later = above(self.top, s);
            s = (if later == 0 { self.top } else { later }).trailing_zeros() as usize % (WORDS / 64);
            with_free = self.summary[s];
        }
        (s * 64 + with_free.trailing_zeros() as usize) % WORDS
    }

    /// Leaves only `left` of the free slots of word `w`. There is no branch on whether the word
    /// runs empty, as that is hard to predict.
    #[inline(always)]
    fn set_word(&mut self, w: usize, left: u64) {
        self.words[w] = left;
        let s = w / 64;
        let summary = self.summary[s] & !(u64::from(left == 0) << (w % 64));
        self.summary[s] = summary;
        self.top &= !(u64::from(summary == 0) << s);
    }

    pub(crate) fn count(&self) -> u32 {
        self.words.iter().map(|w| w.count_ones()).sum()
    }
}

/// A slot that a search took out of the map.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Step {
    /// The next tail.
    pub(crate) next: u32,
    /// How many neighbours after it were taken as well.
    pub(crate) run: u32,
    /// Whether the link of the previous tail may have to be written.
    pub(crate) relink: bool,
}

/// A search that goes from free slot to free slot, in ring order.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Walk {
    /// The current word.
    w: usize,
    /// The free slots of the word that come next. The word has others if the search began in its
    /// middle.
    bits: u64,
    /// Whether these slots have a run that is worth reserving in a batch.
    runs: bool,
}

/// Takes free slots of one word, in order. Each is linked to by the one before it, whatever the
/// link said. The drop of this value records what was taken: once for all slots of the word.
#[derive(Debug)]
pub(crate) struct Singles<'a> {
    map: &'a mut SlotMap,
    w: usize,
    /// The slots that can be taken, and those of them that are left.
    all: u64,
    left: u64,
    /// The tail that links to the first slot.
    tail: u32,
}

impl Singles<'_> {
    /// The next slot; `None` if all slots of the word were taken.
    #[inline(always)]
    pub(crate) fn next(&self) -> Option<u32> {
        let next = self.w as u32 * 64 + self.left.trailing_zeros() % 64;
        (self.left != 0).then_some(next)
    }

    #[inline(always)]
    pub(crate) fn take_next(&mut self) {
        self.left &= self.left.wrapping_sub(1);
    }
}

impl Drop for Singles<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        let Self { w, tail, .. } = *self;
        let taken = self.all ^ self.left;
        if taken == 0 {
            return;
        }
        let first = w as u32 * 64 + taken.trailing_zeros() % 64;
        let map = &mut *self.map;
        let links = &mut map.sequential[word(tail)];
        *links = *links & !(1 << (tail % 64)) | u64::from(first == tail + 1) << (tail % 64);
        // The last slot is the new tail: its link stays as it is.
        let linked = taken ^ 1 << (63 - taken.leading_zeros() % 64);
        let links = &mut map.sequential[w % WORDS];
        *links = *links & !linked | linked & taken >> 1;
        map.free.set_word(w % WORDS, map.free.words[w % WORDS] & !taken);
    }
}

/// Records which slots are free and which links are in sequence, and counts the slots in each
/// state. Does not touch queue memory: the caller writes WQEs and links.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct SlotMap {
    /// Running count of returned slots.
    returned: u32,
    /// How many slots may be in use at a time.
    depth: u32,
    /// Only slots `0..window` are used.
    window: u32,
    /// One bit per slot: its link says "the slot after this one".
    sequential: Box<[u64; WORDS]>,
    free: FreeMap,
}

impl Walk {
    /// Whether the word has so many neighbours that taking them together is cheaper than one by
    /// one.
    #[inline(always)]
    pub(crate) fn has_runs(&self) -> bool {
        self.runs
    }
}

impl SlotMap {
    /// A ring whose links all say "the next slot" (the last one "slot 0"), and whose tail is slot
    /// 0. `depth` is at most `slots - 1`.
    pub(crate) fn new(slots: u32, depth: u32) -> Result<Self, TryReserveError> {
        debug_assert!(slots.is_power_of_two() && (1..slots).contains(&depth));
        let mut map =
            Self { returned: 0, depth, window: 1, free: FreeMap::new()?, sequential: fixed(u64::MAX)? };
        map.sequential[word(slots - 1)] &= !(1 << ((slots - 1) % 64));
        map.open_to(depth + 1);
        Ok(map)
    }

    fn open_to(&mut self, window: u32) {
        for slot in self.window..window {
            self.free.insert(slot);
        }
        self.window = self.window.max(window);
    }

    /// Slots in use, if `count` were posted in total.
    #[inline(always)]
    pub(crate) fn posted(&self, count: u32) -> u32 {
        count.wrapping_sub(self.returned)
    }

    pub(crate) fn depth(&self) -> u32 {
        self.depth
    }

    pub(crate) fn window(&self) -> u32 {
        self.window
    }

    /// Slots that can be posted now, if `count` were posted in total.
    #[inline(always)]
    pub(crate) fn room(&self, count: u32) -> u32 {
        self.depth.wrapping_add(self.returned).wrapping_sub(count)
    }

    /// Begins a search behind `tail`. There must be room. Then there is a free slot: at most
    /// `depth` of the `depth + 1` or more slots are in use, and besides them only the tail is not
    /// free.
    #[inline(always)]
    pub(crate) fn walk(&self, tail: u32) -> Walk {
        let w = word(tail);
        match above(self.free.words[w], tail as usize) {
            0 => self.enter_after(w),
            bits => self.enter(w, bits),
        }
    }

    /// Takes slots of the whole words behind word `w`, whose last slot was taken last. The slots
    /// must be free and linked in sequence; takes at most `most` slots, from a limited number of
    /// words. Returns how many.
    #[inline(always)]
    fn take_words(&mut self, w: usize, most: u32) -> u32 {
        let mut run = 0;
        for next in w + 1..(w + RUN_WORDS).min(WORDS) {
            let in_sequence =
                self.sequential[next - 1] >> 63 == 1 && self.sequential[next] | 1 << 63 == u64::MAX;
            if run == most || !in_sequence || self.free.words[next] != u64::MAX {
                break;
            }
            let n = (most - run).min(64);
            self.free.set_word(next, if n == 64 { 0 } else { u64::MAX << n });
            run += n;
        }
        run
    }

    /// Goes on to the next word that has free slots, after all slots of this one were taken. There
    /// must be one.
    #[inline(always)]
    pub(crate) fn next_word(&self, walk: Walk) -> Walk {
        self.enter_after(walk.w)
    }

    #[inline(always)]
    fn enter_after(&self, w: usize) -> Walk {
        let w = self.free.next_word(w);
        self.enter(w, self.free.words[w])
    }

    #[inline(always)]
    fn enter(&self, w: usize, bits: u64) -> Walk {
        // From eight neighbours on, posting a run is cheaper than linking its slots again.
        let pairs = bits & bits >> 1 & self.sequential[w];
        let threes = pairs & pairs >> 1;
        let fives = threes & threes >> 2;
        Walk { w, bits, runs: fives & fives >> 3 != 0 }
    }

    /// Takes the next free slot, and up to `most` free neighbours that follow it and are linked in
    /// sequence. Records that `tail` links to the slot.
    #[inline(always)]
    pub(crate) fn step(&mut self, walk: Walk, tail: u32, most: u32) -> Step {
        let Walk { w, bits, .. } = walk;
        let bit = bits.trailing_zeros() % 64;
        let next = w as u32 * 64 + bit;
        let mut run = (bits >> bit >> 1 & self.sequential[w] >> bit).trailing_ones().min(most);
        // At most 63 bits above `bit`.
        let left = bits & bits.wrapping_sub(1) & u64::MAX << (run % 64) << bit << 1;
        if bit + run == 63 {
            run += self.take_words(w, most - run);
        }
        self.free.set_word(w, self.free.words[w] & !(bits ^ left));
        let links = &mut self.sequential[word(tail)];
        let (before, in_sequence) = (*links, next == tail + 1);
        *links = before & !(1 << (tail % 64)) | u64::from(in_sequence) << (tail % 64);
        Step { next, run, relink: !in_sequence || before >> (tail % 64) & 1 == 0 }
    }

    /// Begins to take the free slots of the walk's word one by one. `tail` will link to the first.
    #[inline(always)]
    pub(crate) fn singles(&mut self, walk: Walk, tail: u32) -> Singles<'_> {
        Singles { map: self, w: walk.w, all: walk.bits, left: walk.bits, tail }
    }

    /// Whether `slot` is in use. The slot must be outside `tail..=run_end`.
    #[inline(always)]
    pub(crate) fn in_use(&self, slot: u32, tail: u32, run_end: u32) -> bool {
        slot < self.window && !(tail..=run_end).contains(&slot) && !self.free.contains(slot)
    }

    /// Counts a slot that was in use and joined the run instead of the map.
    #[inline(always)]
    pub(crate) fn count_returned(&mut self) {
        self.returned = self.returned.wrapping_add(1);
    }

    /// Returns a slot that is in use to the map. Returns false, without a change, if the slot is
    /// not in use.
    #[inline(always)]
    pub(crate) fn put(&mut self, slot: u32, tail: u32, run_end: u32) -> bool {
        if slot >= self.window || slot.wrapping_sub(tail) <= run_end - tail || !self.free.insert(slot) {
            return false;
        }
        self.count_returned();
        true
    }

    /// Returns the slots of a word whose bits are set. If one of them is not in use, returns the
    /// first such slot and changes nothing.
    #[inline]
    pub(crate) fn put_word(&mut self, at: u32, slots: u64, tail: u32, run_end: u32) -> Result<u32, u32> {
        let first = at.saturating_mul(64);
        let w = word(first);
        // The tail and the slots of the run.
        let ahead = |slot: u32| {
            if slot >= first { u64::MAX.checked_shl(slot - first).unwrap_or(0) } else { u64::MAX }
        };
        let reserved = ahead(tail) & !ahead(run_end + 1);
        let refused = slots & (self.free.words[w] | reserved | ahead(self.window));
        if refused != 0 {
            return Err(first.saturating_add(refused.trailing_zeros()));
        }
        let before = self.free.words[w];
        self.free.words[w] = before | slots;
        if before == 0 && slots != 0 {
            self.free.summary[w / 64] |= 1 << (w % 64);
            self.free.top |= 1 << (w / 64);
        }
        self.returned = self.returned.wrapping_add(slots.count_ones());
        Ok(slots.count_ones())
    }

    /// The last of the slots from `run_end` on that are in use and linked in sequence, within one
    /// word. A slot up to there can join the run when it is returned, as long as no other slot was
    /// returned before it.
    pub(crate) fn joinable_end_from(&self, run_end: u32) -> u32 {
        let (w, bit) = (word(run_end), run_end % 64);
        let in_use = match bit {
            63 if run_end + 1 < self.window => u64::from(!self.free.contains(run_end + 1)),
            _ => !self.free.words[w] >> bit >> 1,
        };
        let joinable = (in_use & self.sequential[w] >> bit).trailing_ones();
        (run_end + joinable).min(self.window - 1)
    }

    /// Changes how many slots may be in use. Returns false, without a change, if `depth` is below
    /// the slots in use now or beyond the ring, whose last slot is `last`. The caller cut the run,
    /// `tail + 1..=run_end`, to the old depth; its slots go back to the map.
    pub(crate) fn set_depth(
        &mut self,
        depth: u32,
        posted: u32,
        last: u32,
        run: core::ops::RangeInclusive<u32>,
    ) -> bool {
        if depth < posted || depth == 0 || depth > last {
            return false;
        }
        for slot in run {
            self.free.insert(slot);
        }
        self.depth = depth;
        self.open_to(depth + 1);
        true
    }

    /// Counts the slots in each state and compares the counts. For tests.
    pub(crate) fn check(&self, count: u32, tail: u32, run_end: u32) {
        let used = (0..self.window).filter(|s| self.in_use(*s, tail, run_end)).count() as u32;
        assert_eq!(used, self.posted(count), "slots in use against the counters");
        let reserved = run_end - tail;
        assert!(reserved <= self.room(count), "the run is longer than there is room");
        assert_eq!(used + self.free.count() + reserved + 1, self.window, "every slot is in one state");
        for (w, word) in self.free.words.iter().enumerate() {
            assert_eq!(*word != 0, self.free.summary[w / 64] >> (w % 64) & 1 == 1, "summary of word {w}");
        }
        for (s, summary) in self.free.summary.iter().enumerate() {
            assert_eq!(*summary != 0, self.free.top >> s & 1 == 1, "top bit of summary {s}");
        }
        for slot in tail..run_end {
            assert_eq!(self.sequential[word(slot)] >> (slot % 64) & 1, 1, "the run is linked at slot {slot}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returning slots by words accepts and refuses the same slots as returning them one by one.
    #[test]
    fn a_word_returns_the_same_slots_as_single_returns() {
        let mut seed = 1_u64;
        let mut random = || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            seed >> 20
        };
        for round in 0..400 {
            let (mut one, mut many) = (SlotMap::new(256, 200).unwrap(), SlotMap::new(256, 200).unwrap());
            let (mut tail, mut run_end, mut count) = (0, 0, 0);
            for _ in 0..random() % 100 {
                let step = |map: &mut SlotMap| {
                    let walk = map.walk(tail);
                    map.step(walk, tail, map.room(count) - 1)
                };
                let Step { next, run, .. } = step(&mut one);
                assert_eq!((next, run), {
                    let s = step(&mut many);
                    (s.next, s.run)
                });
                count += 1;
                (tail, run_end) = (next, next + run);
                let pass = (random() as u32 % 70).min(run);
                (tail, count) = (tail + pass, count + pass);
                if one.room(count) == 0 || tail < run_end {
                    break;
                }
            }
            for _ in 0..6 {
                let at = (random() % 5) as u32;
                let slots =
                    (random() | random() << 32) & (random() | random() << 32) & (u64::MAX >> (random() % 64));
                let wanted = (0..64).filter(|n| slots >> n & 1 == 1).map(|n| at * 64 + n);
                let refused = wanted.clone().find(|s| *s >= 256 || !one.in_use(*s, tail, run_end));
                match many.put_word(at, slots, tail, run_end) {
                    Ok(n) => {
                        assert_eq!(refused, None, "round {round}");
                        assert_eq!(wanted.filter(|s| one.put(*s, tail, run_end)).count() as u32, n);
                    }
                    Err(slot) if at < 4 => assert_eq!(refused, Some(slot), "round {round}"),
                    Err(_) => assert_eq!(at, 4),
                }
                one.check(count, tail, run_end);
                many.check(count, tail, run_end);
                assert_eq!(one.posted(count), many.posted(count));
            }
        }
    }

    /// A sequence bit that is set wrongly would send the device to the wrong slot. A bit that is
    /// missing would make later posts slower.
    #[test]
    fn whatever_is_taken_every_link_is_known() {
        for (wanted, third) in (0..60).flat_map(|n| [(n, 3), (n, 70), (n, 7)]) {
            let mut map = SlotMap::new(128, 127).unwrap();
            let mut links: Vec<u32> = (1..128).chain([0]).collect();
            let mut tail = 0;
            let mut take = |map: &mut SlotMap, tail: &mut u32, n: u32| {
                let mut taken = 0;
                while taken < n {
                    let walk = map.walk(*tail);
                    let mut singles = map.singles(walk, *tail);
                    while let Some(next) = singles.next()
                        && taken < n
                    {
                        singles.take_next();
                        links[*tail as usize] = next;
                        *tail = next;
                        taken += 1;
                    }
                }
            };
            take(&mut map, &mut tail, 127);
            for slot in (0..127).filter(|s| s % third != 0) {
                assert!(map.put(slot, tail, tail));
            }
            take(&mut map, &mut tail, wanted);
            let put = (0..127).filter(|s| s % third != 0).count() as u32;
            map.check(127 + wanted, tail, tail);
            assert_eq!(map.posted(127 + wanted), 127 - put + wanted);
            for (slot, next) in links.iter().enumerate() {
                let known = map.sequential[slot / 64] >> (slot % 64) & 1 == 1;
                assert_eq!(known, *next == slot as u32 + 1, "slot {slot} after {wanted} were taken");
            }
        }
    }
}
