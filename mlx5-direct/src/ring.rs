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

/// A bit per slot, and a bit per 64 slots that says whether any of them is free.
#[derive(Debug)]
pub(crate) struct FreeMap {
    words: Box<[u64]>,
    summary: Box<[u64]>,
}

impl FreeMap {
    pub(crate) fn new(slots: u32) -> Self {
        let words = slots.div_ceil(64) as usize;
        Self { words: vec![0; words].into(), summary: vec![0; words.div_ceil(64)].into() }
    }

    /// Marks `slot` free; false, and no change, if it was free already or is out of range.
    #[inline(always)]
    pub(crate) fn insert(&mut self, slot: u32) -> bool {
        let (w, bit) = (slot as usize >> 6, 1 << (slot & 63));
        let Some(word) = self.words.get_mut(w) else { return false };
        let before = *word;
        *word = before | bit;
        if before == 0
            && let Some(s) = self.summary.get_mut(w >> 6)
        {
            *s |= 1 << (w & 63);
        }
        before & bit == 0
    }

    pub(crate) fn contains(&self, slot: u32) -> bool {
        self.words.get(slot as usize >> 6).is_some_and(|w| w >> (slot & 63) & 1 == 1)
    }

    /// The first free slot at or after `from`, else the first one of all.
    #[inline(always)]
    fn next(&self, from: u32) -> Option<u32> {
        let w = from as usize >> 6;
        let rest = self.words.get(w).map_or(0, |word| word >> (from & 63));
        if rest != 0 {
            return Some(from + rest.trailing_zeros());
        }
        self.next_by_summary(w + 1)
    }

    /// The first free slot in word `w` or later, else the first one of all. At most ten words are looked at.
    fn next_by_summary(&self, w: usize) -> Option<u32> {
        let at = w >> 6;
        let here = self.summary.get(at).map_or(0, |s| s & (u64::MAX << (w & 63)));
        let (s, bits) = if here != 0 {
            (at, here)
        } else {
            let later = self.summary.iter().enumerate().skip(at + 1);
            later
                .chain(self.summary.iter().enumerate())
                .find(|(_, s)| **s != 0)
                .map(|(s, bits)| (s, *bits))?
        };
        let word = s << 6 | bits.trailing_zeros() as usize;
        Some((word << 6) as u32 + self.words.get(word)?.trailing_zeros())
    }

    /// Takes the bits `mask` out of word `w`.
    #[inline(always)]
    fn remove(&mut self, w: usize, mask: u64) {
        if let Some(word) = self.words.get_mut(w) {
            *word &= !mask;
            if *word == 0
                && let Some(s) = self.summary.get_mut(w >> 6)
            {
                *s &= !(1 << (w & 63));
            }
        }
    }

    pub(crate) fn count(&self) -> u32 {
        self.words.iter().map(|w| w.count_ones()).sum()
    }
}

/// A post that did not take a reserved slot: where to go, and whether the link in queue memory must change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Advance {
    /// The slot to fill: the tail until now.
    pub(crate) slot: u32,
    /// The link to write into it, if it does not hold it yet.
    pub(crate) relink: Option<u16>,
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
    sequential: Box<[u64]>,
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
            free: FreeMap::new(slots),
            sequential: vec![u64::MAX; slots.div_ceil(64) as usize].into(),
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
        let word = &mut self.sequential[slot as usize >> 6];
        *word = *word & !(1 << (slot & 63)) | u64::from(yes) << (slot & 63);
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
    #[inline]
    pub(crate) fn take_search(&mut self) -> Option<Advance> {
        debug_assert_eq!(self.tail, self.run_end);
        let free = self.free();
        if free == 0 {
            return None;
        }
        let slot = self.tail;
        let next = self.free.next(slot + 1)?;
        let link = self.links.get_mut(slot as usize)?;
        let relink = if u32::from(*link) == next {
            None
        } else {
            *link = next as u16;
            self.set_sequential(slot, next == slot + 1);
            Some(next as u16)
        };
        // Slots next+1 .. next+run are free, and next .. next+run-1 link to their neighbours, all within one word.
        let (w, shift) = (next as usize >> 6, next & 63);
        let neighbours = self.free.words.get(w).map_or(0, |word| word >> shift) >> 1;
        let in_sequence = self.sequential.get(w).map_or(0, |word| word >> shift);
        let run = (neighbours & in_sequence).trailing_ones().min(free - 1);
        self.free.remove(w, (u64::MAX >> (63 - run)) << shift);
        let count = slot.wrapping_add(self.count_base).wrapping_add(1);
        self.tail = next;
        self.run_end = next + run;
        self.count_base = count.wrapping_sub(next);
        Some(Advance { slot, relink })
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
            assert_eq!(*word != 0, self.free.summary[w >> 6] >> (w & 63) & 1 == 1, "summary of word {w}");
        }
        for (slot, next) in self.links() {
            let sequential = self.sequential[slot as usize >> 6] >> (slot & 63) & 1 == 1;
            assert_eq!(sequential, u32::from(next) == slot + 1, "sequence bit of slot {slot}");
        }
    }
}
