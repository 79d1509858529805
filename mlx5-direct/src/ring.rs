//! Which slot comes next: ring order with holes skipped, at a cost that depends on nothing.
//!
//! The device starts at slot 0 and follows the links. A slot that the doorbell record counts must already have its final
//! link, so one slot, the *tail*, is always linked but not posted: posting fills the tail, links it to the slot that will
//! be the next tail, and moves on. Slots are taken in ring order; those still in use are skipped. As long as nobody holds
//! a slot for a whole lap, every link already says "the slot after this one" and is not written again, and the device
//! can fetch neighbouring WQEs ahead.
//!
//! Every slot below `window` is in exactly one state:
//!
//! | state | where |
//! |---|---|
//! | free | its bit in [`FreeMap`] |
//! | reserved | `tail < slot <= run_end`: taken out of the map, linked in sequence, next to be posted |
//! | tail | `slot == tail` |
//! | in use | none of these: on the SRQ, at a QP, or completed and not yet returned |
//!
//! Reserving a run of neighbours at once is what makes the common post cheap: while `tail != run_end`, posting is
//! `tail + 1`.

use crate::wqe::MAX_WQE_COUNT;

/// Words of a bit map of slots. Fixed, and indices are cut to it, so that no access needs a bounds check; a small ring
/// touches the first words only.
const WORDS: usize = MAX_WQE_COUNT as usize / 64;

/// Which word holds a slot's bit.
#[inline(always)]
fn word(slot: u32) -> usize {
    slot as usize / 64 % WORDS
}

/// A bit per free slot, a bit per word with a free slot, and a bit per word of those.
#[derive(Debug)]
pub(crate) struct FreeMap {
    words: Box<[u64; WORDS]>,
    summary: [u64; WORDS / 64],
    /// Over at most eight summary words, so that the search is one path without a loop.
    top: u64,
}

/// The bits of `map` above bit `n % 64`.
#[inline(always)]
fn above(map: u64, n: usize) -> u64 {
    map & (u64::MAX << (n % 64) << 1)
}

impl FreeMap {
    pub(crate) fn new() -> Self {
        Self { words: Box::new([0; WORDS]), summary: [0; WORDS / 64], top: 0 }
    }

    /// Marks `slot` free; false, and no change, if it was free already.
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

    /// The first word after `w` with a free slot, else the first one of all. There must be one.
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

    /// Leaves `left` of the free slots of word `w`. Whether a word runs empty is anyone's guess, hence no branch on it.
    #[inline(always)]
    fn set_word(&mut self, w: usize, left: u64) {
        self.words[w] = left;
        let s = w / 64;
        self.summary[s] &= !(u64::from(left == 0) << (w % 64));
        if self.summary[s] == 0 {
            self.top &= !(1 << s);
        }
    }

    pub(crate) fn count(&self) -> u32 {
        self.words.iter().map(|w| w.count_ones()).sum()
    }
}

/// A post that did not take a reserved slot: which slot to fill, and its link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Advance {
    /// The slot to fill: the tail until now.
    pub(crate) slot: u32,
    /// The slot after it.
    pub(crate) next: u16,
    /// The slot's link in queue memory says something else.
    pub(crate) relink: bool,
}

/// Free slots that come next: the bits of one word.
#[derive(Debug, Clone, Copy)]
struct Ahead {
    w: usize,
    bits: u64,
}

/// Scattered slots being taken: see [`Ring::take_many`].
#[derive(Debug)]
pub(crate) struct Gather {
    ahead: Ahead,
    /// The sequence bits of that word before.
    sequential: u64,
    /// Those of `ahead` not taken yet.
    left: u64,
    /// The slot to take next: the tail, then the slot that the last one taken links to.
    slot: u32,
    taken: u32,
}

impl Gather {
    /// The word has no more.
    #[inline(always)]
    pub(crate) fn is_done(&self) -> bool {
        self.left == 0
    }
}

/// What a batch takes next.
#[derive(Debug)]
pub(crate) enum Many {
    Run(Advance),
    Scattered(Gather),
}

/// Slot order and counts of one SRQ. Knows nothing of memory: the caller writes WQEs and links.
#[derive(Debug)]
pub(crate) struct Ring {
    tail: u32,
    run_end: u32,
    /// Running posted count minus `tail`: constant while a run lasts.
    count_base: u32,
    /// Running count of returned slots.
    returned: u32,
    /// How many may be in use at a time.
    depth: u32,
    /// Slots `0..window` take part.
    window: u32,
    free: FreeMap,
    /// A bit per slot: its link says "the slot after this one".
    sequential: Box<[u64; WORDS]>,
    /// What each slot's link says in queue memory, which is never read.
    links: Box<[u16]>,
}

impl Ring {
    /// A ring whose links all say "the next slot", the last one "slot 0". `depth` is at most `slots - 1`.
    pub(crate) fn new(slots: u32, depth: u32) -> Self {
        debug_assert!(slots.is_power_of_two() && (1..slots).contains(&depth));
        let mut ring = Self {
            tail: 0,
            run_end: 0,
            count_base: 0,
            returned: 0,
            depth,
            window: 1,
            free: FreeMap::new(),
            sequential: Box::new([u64::MAX; WORDS]),
            links: (1..slots).map(|n| n as u16).chain([0]).collect(),
        };
        ring.set_sequential(slots - 1, false);
        ring.open_to(depth + 1);
        ring
    }

    fn open_to(&mut self, window: u32) {
        for slot in self.window..window {
            self.free.insert(slot);
        }
        self.window = self.window.max(window);
    }

    fn set_sequential(&mut self, slot: u32, yes: bool) {
        let w = word(slot);
        self.sequential[w] = self.sequential[w] & !(1 << (slot % 64)) | u64::from(yes) << (slot % 64);
    }

    /// What the links in queue memory must say before the first post.
    pub(crate) fn links(&self) -> impl Iterator<Item = (u32, u16)> + '_ {
        self.links.iter().enumerate().map(|(slot, next)| (slot as u32, *next))
    }

    /// Running count of posted slots, for the doorbell record.
    #[inline(always)]
    pub(crate) fn count(&self) -> u16 {
        self.tail.wrapping_add(self.count_base) as u16
    }

    /// Slots in use.
    #[inline(always)]
    pub(crate) fn posted(&self) -> u32 {
        self.tail.wrapping_add(self.count_base).wrapping_sub(self.returned)
    }

    pub(crate) fn depth(&self) -> u32 {
        self.depth
    }

    pub(crate) fn window(&self) -> u32 {
        self.window
    }

    /// Slots that can be posted now.
    #[inline(always)]
    pub(crate) fn free(&self) -> u32 {
        self.depth - self.posted()
    }

    /// The slot that the next post fills.
    #[inline(always)]
    pub(crate) fn tail(&self) -> u32 {
        self.tail
    }

    /// How many of the next posts need no link and no search.
    #[inline(always)]
    pub(crate) fn run(&self) -> u32 {
        self.run_end - self.tail
    }

    /// Takes `n <= run()` slots at once; their WQEs are linked already.
    #[inline(always)]
    pub(crate) fn take_run(&mut self, n: u32) -> u32 {
        debug_assert!(n <= self.run());
        let slot = self.tail;
        self.tail += n;
        slot
    }

    /// Takes the tail slot if a run is reserved: the cheap case.
    #[inline(always)]
    pub(crate) fn take_in_run(&mut self) -> Option<u32> {
        (self.tail != self.run_end).then(|| self.take_run(1))
    }

    /// The free slots that come after the tail, as far as one word has them. There must be one: at most `depth` of the
    /// `depth + 1` or more slots are in use, and the tail is the only other one.
    #[inline(always)]
    fn look(&self) -> Ahead {
        let tail_word = word(self.tail);
        let (mut w, mut bits) = (tail_word, above(self.free.words[tail_word], self.tail as usize));
        if bits == 0 {
            w = self.free.next_word(tail_word);
            bits = self.free.words[w];
        }
        Ahead { w, bits }
    }

    /// Slots after the first of `ahead` that are free, and linked in sequence from there.
    #[inline(always)]
    fn run_ahead(&self, ahead: &Ahead) -> u32 {
        let bit = ahead.bits.trailing_zeros() % 64;
        ((ahead.bits >> bit >> 1) & (self.sequential[ahead.w] >> bit)).trailing_ones()
    }

    /// Takes the tail slot, finds the next tail and reserves the run that follows it; `None` when `depth` are in use.
    #[inline(always)]
    pub(crate) fn take_search(&mut self) -> Option<Advance> {
        debug_assert_eq!(self.tail, self.run_end);
        let free = self.free();
        if free == 0 {
            return None;
        }
        let ahead = self.look();
        let run = self.run_ahead(&ahead);
        self.advance(ahead, run.min(free - 1))
    }

    #[inline(always)]
    fn advance(&mut self, Ahead { w, bits }: Ahead, run: u32) -> Option<Advance> {
        let slot = self.tail;
        let bit = bits.trailing_zeros() % 64;
        let next = w as u32 * 64 + bit;
        let link = self.links.get_mut(slot as usize)?;
        let relink = u32::from(*link) != next;
        if relink {
            *link = next as u16;
            self.set_sequential(slot, next == slot + 1);
        }
        // Slots next+1 .. next+run are free, and next .. next+run-1 link to their neighbours, all within one word.
        let taken = (u64::MAX >> (63 - run % 64)) << bit;
        self.free.set_word(w, self.free.words[w] & !taken);
        let count = slot.wrapping_add(self.count_base).wrapping_add(1);
        self.tail = next;
        self.run_end = next + run;
        self.count_base = count.wrapping_sub(next);
        Some(Advance { slot, next: next as u16, relink })
    }

    /// For a batch, when no run is reserved: either one slot and the run after it, as [`take_search`](Self::take_search)
    /// would take, or the scattered free slots of one word, to be linked one after the other.
    ///
    /// `None` when `depth` are in use. At most [`free`](Self::free) slots may be taken from a [`Gather`].
    #[inline(always)]
    pub(crate) fn take_many(&mut self) -> Option<Many> {
        /// From here on it is cheaper to post a run as such than to link its slots again.
        const WORTH_A_RUN: u32 = 8;
        debug_assert_eq!(self.tail, self.run_end);
        let free = self.free();
        if free == 0 {
            return None;
        }
        let ahead = self.look();
        let run = self.run_ahead(&ahead);
        // Of a lone slot there is nothing to gather.
        let single = ahead.bits & ahead.bits.wrapping_sub(1) == 0;
        if run >= WORTH_A_RUN || single {
            return self.advance(ahead, run.min(free - 1)).map(Many::Run);
        }
        // Until `finish_gather` says what became of them, none of these links counts as sequential: wherever the caller
        // stops, even by a panic, the maps are right.
        let sequential = self.sequential[ahead.w];
        self.sequential[ahead.w] = sequential & !ahead.bits;
        self.set_sequential(self.tail, false);
        Some(Many::Scattered(Gather { ahead, sequential, left: ahead.bits, slot: self.tail, taken: 0 }))
    }

    /// The next slot of a gather and its link, which is to be written in any case; `None` when the word has no more.
    #[inline(always)]
    pub(crate) fn gather(&mut self, gather: &mut Gather) -> Option<Advance> {
        if gather.left == 0 {
            return None;
        }
        let slot = gather.slot;
        let next = gather.ahead.w as u32 * 64 + gather.left.trailing_zeros();
        gather.left &= gather.left - 1;
        *self.links.get_mut(slot as usize)? = next as u16;
        gather.slot = next;
        gather.taken += 1;
        Some(Advance { slot, next: next as u16, relink: true })
    }

    /// Accounts for what was taken.
    #[inline(always)]
    pub(crate) fn finish_gather(&mut self, gather: Gather) {
        let Gather { ahead: Ahead { w, bits }, sequential, left, slot: new_tail, taken: count } = gather;
        let taken = bits & !left;
        // Each slot taken but the last, which is the new tail, now links to the next one taken. The others link as before.
        let linked = taken & !(1 << (new_tail % 64));
        self.sequential[w] = sequential & !linked | linked & (taken >> 1);
        let first = self.links.get(self.tail as usize).map_or(0, |next| u32::from(*next));
        self.set_sequential(self.tail, first == self.tail + 1);
        self.free.set_word(w, self.free.words[w] & !taken);
        let posted = self.tail.wrapping_add(self.count_base).wrapping_add(count);
        self.tail = new_tail;
        self.run_end = new_tail;
        self.count_base = posted.wrapping_sub(new_tail);
    }

    /// Whether `slot` is in use.
    #[inline(always)]
    pub(crate) fn in_use(&self, slot: u32) -> bool {
        slot < self.window && slot.wrapping_sub(self.tail) > self.run() && !self.free.contains(slot)
    }

    /// Returns a slot that is in use; false, and no change, if it is not.
    #[inline(always)]
    pub(crate) fn put(&mut self, slot: u32) -> bool {
        if slot >= self.window || slot.wrapping_sub(self.tail) <= self.run() || !self.free.insert(slot) {
            return false;
        }
        self.returned = self.returned.wrapping_add(1);
        true
    }

    /// Changes how many may be in use; false, and no change, below what is in use now or beyond the ring.
    pub(crate) fn set_depth(&mut self, depth: u32) -> bool {
        if depth < self.posted() || depth == 0 || depth as usize >= self.links.len() {
            return false;
        }
        // The run was cut to the old depth: give it back, so that the next search cuts it to the new one.
        for slot in self.tail + 1..=self.run_end {
            self.free.insert(slot);
        }
        self.run_end = self.tail;
        self.depth = depth;
        self.open_to(depth + 1);
        true
    }

    /// Counts slots state by state and compares: for tests.
    pub(crate) fn check(&self) {
        let used = (0..self.window).filter(|s| self.in_use(*s)).count() as u32;
        assert_eq!(used, self.posted(), "slots in use against the counters");
        assert_eq!(used + self.free.count() + self.run() + 1, self.window, "every slot is in one state");
        for (w, word) in self.free.words.iter().enumerate() {
            assert_eq!(*word != 0, self.free.summary[w / 64] >> (w % 64) & 1 == 1, "summary of word {w}");
        }
        for (s, summary) in self.free.summary.iter().enumerate() {
            assert_eq!(*summary != 0, self.free.top >> s & 1 == 1, "top bit of summary {s}");
        }
        for (slot, next) in self.links() {
            let sequential = self.sequential[word(slot)] >> (slot % 64) & 1 == 1;
            assert!(!sequential || u32::from(next) == slot + 1, "sequence bit of slot {slot}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sequence bits that are too low would not be wrong, but cost the cheap way from then on.
    #[test]
    fn a_gather_that_stops_early_leaves_every_link_known() {
        for wanted in 0..20 {
            let mut ring = Ring::new(128, 127);
            while ring.take_in_run().is_some() || ring.take_search().is_some() {}
            for slot in (0..127).filter(|s| s % 3 != 0) {
                assert!(ring.put(slot));
            }
            let Some(Many::Scattered(mut gather)) = ring.take_many() else {
                panic!("the slots lie scattered")
            };
            let mut taken = 0;
            while taken < wanted && ring.gather(&mut gather).is_some() {
                taken += 1;
            }
            ring.finish_gather(gather);
            ring.check();
            assert_eq!(ring.posted(), 127 - 84 + taken);
            for (slot, next) in ring.links() {
                let known = ring.sequential[word(slot)] >> (slot % 64) & 1 == 1;
                assert_eq!(known, u32::from(next) == slot + 1, "slot {slot} after {taken} were taken");
            }
        }
    }
}
