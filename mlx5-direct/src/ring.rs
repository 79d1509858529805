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

    /// Takes the tail slot, finds the next tail and reserves the run that follows it; `None` when `depth` are in use.
    #[inline(always)]
    pub(crate) fn take_search(&mut self) -> Option<Advance> {
        debug_assert_eq!(self.tail, self.run_end);
        let free = self.free();
        if free == 0 {
            return None;
        }
        let slot = self.tail;
        let tail_word = word(slot);
        let (mut w, mut bits) = (tail_word, above(self.free.words[tail_word], slot as usize));
        if bits == 0 {
            // There is one: at most `depth` of the `depth + 1` or more slots are in use, the tail is the only other one.
            w = self.free.next_word(tail_word);
            bits = self.free.words[w];
        }
        let bit = bits.trailing_zeros() % 64;
        let next = w as u32 * 64 + bit;
        let link = self.links.get_mut(slot as usize)?;
        let relink = u32::from(*link) != next;
        if relink {
            *link = next as u16;
            let sequential = self.sequential[tail_word] & !(1 << (slot % 64));
            self.sequential[tail_word] = sequential | u64::from(next == slot + 1) << (slot % 64);
        }
        // Slots next+1 .. next+run are free, and next .. next+run-1 link to their neighbours, all within one word.
        let run = ((bits >> bit >> 1) & (self.sequential[w] >> bit)).trailing_ones().min(free - 1);
        let taken = (u64::MAX >> (63 - run % 64)) << bit;
        self.free.set_word(w, self.free.words[w] & !taken);
        let count = slot.wrapping_add(self.count_base).wrapping_add(1);
        self.tail = next;
        self.run_end = next + run;
        self.count_base = count.wrapping_sub(next);
        Some(Advance { slot, next: next as u16, relink })
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
            assert_eq!(sequential, u32::from(next) == slot + 1, "sequence bit of slot {slot}");
        }
    }
}
