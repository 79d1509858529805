//! The state of every SRQ entry: free, on the SRQ, or completed and not reaped.
//!
//! The model has a further state, "at an EP", that an in-order transport does not show: a buffer
//! taken by an EP becomes visible only by its completion. Until then the entry counts as available.
//! One EP holds at most one such entry.
//!
//! One thread posts ([`EntryPoster`]), and any number of threads reap; none of them waits for
//! another. [`Entry::state`] holds the number of the post that the entry belongs to, counted from
//! the first post. Reaping puts the entry on a list. The poster takes the whole list when it has no
//! free entry left. There are more entries than the SRQ is deep, so the poster seldom takes the
//! list.
//!
//! Some devices (rxe, at least up to Linux 6.12) drop the buffer of a half-received message without
//! a completion when its EP fails. The entry of that buffer would stay outstanding for ever. Later
//! completions reveal such an entry:
//!
//! - Devices take buffers in the order in which they were posted. Once a younger entry has
//!   completed, an older entry without a completion is *held* by an EP.
//! - An EP that has completed a younger entry does not hold the older one.
//! - So if no live EP can hold the entry, an ended EP held it, and the entry is [`Lost`].
//!
//! Each EP keeps its [`CompletedUpTo`] for this. The table looks for lost entries only after an EP
//! has ended while entries were on the SRQ ([`Losses`]).

use super::{Lost, WrInfo};
use crate::memory::list;
use crate::sync::{Mutex, MutexGuard, rank};
use crate::types::NumberHasher;
use std::collections::{HashMap, TryReserveError, VecDeque};
use std::hash::BuildHasherDefault;
use std::sync::atomic::{
    AtomicBool, AtomicU32, AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};
use std::sync::{Arc, OnceLock};

/// Special values of [`Entry::state`]: the entry has completed and is not reaped, or the entry is
/// free. A smaller value is the number of the entry's post.
const COMPLETED: u64 = u64::MAX - 1;
const FREE: u64 = u64::MAX;

/// The end of a list of entries.
const NONE: u32 = u32::MAX;

/// The number of entries in the first chunk. Each further chunk is twice as large as the one
/// before.
const CHUNK: u32 = 1024;
const CHUNKS: usize = 22;

/// The table has at least this many more entries than the SRQ is deep.
const SPARE: u32 = 256;

#[derive(Debug)]
struct Entry {
    state: AtomicU64,
    cookie: AtomicU64,
    lmrs: [AtomicU32; 4],
    pool: AtomicU32,
    /// The next entry of the list of free entries that holds this entry.
    next: AtomicU32,
}

impl Entry {
    fn info(&self) -> WrInfo {
        WrInfo {
            cookie: self.cookie.load(Relaxed),
            pool: self.pool.load(Relaxed),
            lmrs: self.lmrs.each_ref().map(|lmr| lmr.load(Relaxed)),
        }
    }
}

/// The youngest entry that an EP has completed since it connected, as the number of the entry's
/// post + 1. The EP keeps it for the entry table of its SRQ. Written under the lock of the EP's
/// receive EVD.
#[derive(Debug)]
pub(crate) struct CompletedUpTo(AtomicU64);

impl CompletedUpTo {
    /// The value of an EP that cannot hold an entry.
    const NOBODYS: u64 = u64::MAX;
}

impl Default for CompletedUpTo {
    fn default() -> Self {
        Self(AtomicU64::new(Self::NOBODYS))
    }
}

/// The entries of one SRQ: the part that all threads share.
pub(crate) struct SrqEntries {
    chunks: [OnceLock<Box<[Entry]>>; CHUNKS],
    /// The number of posts so far.
    posted: AtomicU64,
    /// The number of completions so far, modulo 2^32.
    completed: AtomicU32,
    /// High half: the number of entries reaped so far, modulo 2^32. Low half: the first entry of
    /// the list of reaped entries that the poster has not taken yet.
    returned: AtomicU64,
    /// [`CompletedUpTo`] of all completions whose EP keeps none.
    progress: AtomicU64,
    /// Whether there are suspects now. Written under the lock of `losses`.
    suspects: AtomicBool,
    losses: Mutex<{ rank::LOSSES }, Losses>,
}

/// The part of the table that only the poster uses.
#[derive(Debug)]
pub(crate) struct EntryPoster {
    limit: u32,
    /// The number of entries in the table.
    entries: u32,
    /// The first entry of a list of free entries.
    free: u32,
    posted: u64,
}

/// The number of entries in each state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EntryCounts {
    pub(crate) available: u32,
    pub(crate) outstanding: u32,
}

/// EPs that may hold an entry.
#[derive(Default)]
struct Losses {
    /// Live EPs.
    holders: HashMap<u64, Arc<CompletedUpTo>, BuildHasherDefault<NumberHasher>>,
    /// Ended EPs that may have held an entry.
    suspects: Vec<Suspect>,
    /// While there are suspects: the posts that had not completed when the list was last filled,
    /// oldest first, with their entries. A post that has completed since leaves when it reaches the
    /// front.
    order: VecDeque<(u64, u32)>,
    /// `order` covers the posts before this one: all of them that had not completed.
    ordered: u64,
}

/// An ended EP, and the range of posts of which it may have held one entry.
#[derive(Clone, Copy, Debug)]
struct Suspect {
    ep: u64,
    from: u64,
    before: u64,
}

impl SrqEntries {
    /// Creates the table for an SRQ of depth `limit`.
    pub(crate) fn new(limit: u32) -> Result<(Self, EntryPoster), TryReserveError> {
        let entries = Self {
            chunks: [const { OnceLock::new() }; CHUNKS],
            posted: AtomicU64::new(0),
            completed: AtomicU32::new(0),
            returned: AtomicU64::new(NONE.into()),
            progress: AtomicU64::new(0),
            suspects: AtomicBool::new(false),
            losses: Mutex::default(),
        };
        let mut poster = EntryPoster { limit: 0, entries: 0, free: NONE, posted: 0 };
        poster.set_limit(&entries, limit)?;
        Ok((entries, poster))
    }

    #[inline(always)]
    fn entry(&self, entry: u32) -> Option<&Entry> {
        // Chunk n begins at CHUNK * (2^n - 1).
        let from_one = u64::from(entry) + u64::from(CHUNK);
        let chunk = from_one.ilog2() - CHUNK.ilog2();
        let at = from_one - (u64::from(CHUNK) << chunk);
        self.chunks.get(chunk as usize)?.get()?.get(at as usize)
    }

    /// Returns the counts. They are consistent while other threads work: the reaped count is read
    /// first and the posted count last, so reaped <= completed <= posted.
    pub(crate) fn counts(&self) -> EntryCounts {
        let reaped = (self.returned.load(Acquire) >> 32) as u32;
        let completed = self.completed.load(Acquire);
        let posted = self.posted.load(Acquire) as u32;
        EntryCounts { available: posted.wrapping_sub(completed), outstanding: posted.wrapping_sub(reaped) }
    }

    /// Completes the entry that a completion names and returns its info. `None` for an entry that
    /// is not posted.
    #[inline]
    pub(crate) fn complete(&self, entry: u32, ep: Option<&CompletedUpTo>) -> Option<WrInfo> {
        let entry = self.entry(entry)?;
        let post = entry.state.load(Acquire);
        if post >= COMPLETED {
            return None;
        }
        entry.state.store(COMPLETED, Relaxed);
        self.completed.fetch_add(1, Release);
        match ep {
            Some(ep) if ep.0.load(Relaxed) != CompletedUpTo::NOBODYS => {
                if ep.0.load(Relaxed) <= post {
                    ep.0.store(post + 1, Relaxed);
                }
            }
            _ => {
                self.progress.fetch_max(post + 1, Relaxed);
            }
        }
        Some(entry.info())
    }

    /// Frees an entry whose completion was reaped or dropped.
    #[inline]
    pub(crate) fn release(&self, number: u32) {
        let Some(entry) = self.entry(number) else { return };
        if entry.state.load(Relaxed) != COMPLETED {
            return;
        }
        entry.state.store(FREE, Relaxed);
        let mut returned = self.returned.load(Relaxed);
        loop {
            entry.next.store(returned as u32, Relaxed);
            let new = u64::from(((returned >> 32) as u32).wrapping_add(1)) << 32 | u64::from(number);
            match self.returned.compare_exchange_weak(returned, new, Release, Relaxed) {
                Ok(_) => return,
                Err(now) => returned = now,
            }
        }
    }

    fn losses(&self) -> MutexGuard<'_, Losses> {
        self.losses.lock().unwrap()
    }

    /// Records that this EP may take entries from now on.
    ///
    /// # Errors
    /// No memory for the tables; the EP must not take entries then.
    pub(crate) fn ep_connected(&self, ep: u64, progress: &Arc<CompletedUpTo>) -> Result<(), TryReserveError> {
        let mut losses = self.losses();
        losses.holders.try_reserve(1)?;
        // Each holder may become a suspect.
        let holders = losses.holders.len() + 1;
        losses.suspects.try_reserve(holders)?;
        progress.0.store(0, Relaxed);
        losses.holders.insert(ep, progress.clone());
        Ok(())
    }

    /// Records that this EP takes no more entries and that all its completions have been seen.
    /// Returns true if the EP may have held an entry. Then [`SrqEntries::next_lost`] may find that
    /// entry, as soon as every thread that completes entries has seen that there are suspects.
    pub(crate) fn ep_drained(&self, ep: u64) -> bool {
        let mut losses = self.losses();
        let Some(progress) = losses.holders.remove(&ep) else { return false };
        let from = progress.0.swap(CompletedUpTo::NOBODYS, Relaxed);
        self.progress.fetch_max(from, Relaxed);
        if self.counts().available == 0 {
            return false;
        }
        let before = self.posted.load(Acquire);
        losses.suspects.push(Suspect { ep, from, before });
        if !self.suspects.load(Relaxed) {
            // The only long search. No other thread waits for it: a thread that completes an entry
            // takes the lock only once there are suspects.
            losses.look(self, 0, before);
            self.suspects.store(true, Relaxed);
        }
        true
    }

    /// The next entry known to be lost with an ended EP. The entry counts as completed from now on.
    #[inline]
    pub(crate) fn next_lost(&self) -> Option<Lost> {
        if self.suspects.load(Relaxed) { self.look_for_lost() } else { None }
    }

    #[inline(never)]
    fn look_for_lost(&self) -> Option<Lost> {
        let mut losses = self.losses();
        let lost = losses.next(self);
        if losses.suspects.is_empty() {
            losses.order = VecDeque::new();
            self.suspects.store(false, Relaxed);
        }
        lost
    }

    /// The posts in `from..before` that have not completed, in order.
    fn pending(&self, from: u64, before: u64) -> Result<VecDeque<(u64, u32)>, TryReserveError> {
        let all = || {
            let entries = self.chunks.iter().map_while(OnceLock::get).flatten();
            (0..)
                .zip(entries)
                .map(|(number, entry)| (entry.state.load(Acquire), number))
                .filter(|(post, _)| (from..before).contains(post))
        };
        // Between the two passes posts may complete, but no further post can match.
        let mut found = list(all().count())?;
        found.extend(all());
        found.sort_unstable();
        Ok(found.into())
    }
}

impl Losses {
    /// Fills `order` with the posts in `from..before`. Returns false without memory; the caller has
    /// to try again later.
    fn look(&mut self, entries: &SrqEntries, from: u64, before: u64) -> bool {
        let found = entries.pending(from, before);
        self.ordered = if found.is_ok() { before } else { from };
        let looked = found.is_ok();
        self.order = found.unwrap_or_default();
        looked
    }

    fn next(&mut self, entries: &SrqEntries) -> Option<Lost> {
        let last_before = self.suspects.iter().map(|suspect| suspect.before).max()?;
        while !self.suspects.is_empty() {
            let Some(&(post, number)) = self.order.front() else {
                if self.ordered >= last_before {
                    // Every entry that the suspects could have held has completed.
                    self.suspects.clear();
                    return None;
                }
                let posted = entries.posted.load(Acquire);
                if !self.look(entries, self.ordered, posted) {
                    return None;
                }
                continue;
            };
            let entry = entries.entry(number)?;
            if entry.state.load(Acquire) != post {
                self.order.pop_front();
                continue;
            }
            self.suspects.retain(|suspect| post < suspect.before);
            let progress = |holder: &Arc<CompletedUpTo>| holder.0.load(Relaxed);
            let youngest = self.holders.values().map(progress).max().unwrap_or(0);
            if post + 1 > youngest.max(entries.progress.load(Relaxed))
                || self.holders.values().any(|holder| progress(holder) <= post)
            {
                return None;
            }
            // Each suspect held at most one entry. Assign the entry to the suspect with the
            // smallest `before`: the other suspects remain for more of the younger entries.
            let fits = |&at: &usize| self.suspects[at].from <= post;
            let at = (0..self.suspects.len()).filter(fits).min_by_key(|&at| self.suspects[at].before)?;
            if entry.state.compare_exchange(post, COMPLETED, AcqRel, Relaxed).is_err() {
                continue;
            }
            entries.completed.fetch_add(1, Release);
            let ep = self.suspects.swap_remove(at).ep;
            return Some(Lost { entry: number, info: entry.info(), ep });
        }
        None
    }
}

impl EntryPoster {
    pub(crate) fn limit(&self) -> u32 {
        self.limit
    }

    /// Sets a depth for which there is room. The caller has compared it with the outstanding count.
    pub(crate) fn limit_to(&mut self, limit: u32) {
        self.limit = limit;
    }

    /// Sets a depth, and allocates the entries for it.
    pub(crate) fn set_limit(&mut self, entries: &SrqEntries, limit: u32) -> Result<(), TryReserveError> {
        for (n, chunk) in entries.chunks.iter().enumerate() {
            if self.entries >= limit.saturating_add(SPARE) {
                break;
            }
            if chunk.get().is_some() {
                continue;
            }
            let size = CHUNK << n;
            let end = self.entries.saturating_add(size);
            let mut entries = Vec::new();
            entries.try_reserve_exact(size as usize)?;
            entries.extend((self.entries..end).map(|number| Entry {
                state: AtomicU64::new(FREE),
                cookie: AtomicU64::new(0),
                lmrs: [const { AtomicU32::new(0) }; 4],
                pool: AtomicU32::new(0),
                next: AtomicU32::new(if number + 1 < end { number + 1 } else { self.free }),
            }));
            // The chunk was not set, and only the poster sets chunks.
            let _ = chunk.set(entries.into());
            self.free = self.entries;
            self.entries = end;
        }
        self.limit = limit;
        Ok(())
    }

    /// Takes a free entry for a buffer that is about to be posted. `None` when the SRQ is full
    /// (R61, R62).
    #[inline(always)]
    pub(crate) fn post(&mut self, entries: &SrqEntries, info: WrInfo) -> Option<u32> {
        let reaped = (entries.returned.load(Acquire) >> 32) as u32;
        if (self.posted as u32).wrapping_sub(reaped) >= self.limit {
            return None;
        }
        if self.free == NONE {
            self.free = take_returned(entries);
        }
        let number = self.free;
        let entry = entries.entry(number)?;
        self.free = entry.next.load(Relaxed);
        entry.cookie.store(info.cookie, Relaxed);
        entry.pool.store(info.pool, Relaxed);
        for (to, lmr) in entry.lmrs.iter().zip(info.lmrs) {
            to.store(lmr, Relaxed);
        }
        entry.state.store(self.posted, Release);
        self.posted += 1;
        entries.posted.store(self.posted, Release);
        Some(number)
    }

    /// Undoes the latest [`EntryPoster::post`], which the device refused.
    #[cold]
    pub(crate) fn unpost(&mut self, entries: &SrqEntries, number: u32) {
        let Some(entry) = entries.entry(number) else { return };
        entry.state.store(FREE, Relaxed);
        entry.next.store(self.free, Relaxed);
        self.free = number;
        self.posted -= 1;
        entries.posted.store(self.posted, Release);
    }
}

/// Takes the list of all entries that were reaped since the last call.
#[inline(never)]
fn take_returned(entries: &SrqEntries) -> u32 {
    let none = |returned: u64| returned | u64::from(NONE);
    let before = entries.returned.fetch_update(Acquire, Relaxed, |returned| Some(none(returned)));
    before.unwrap_or_else(none) as u32
}

impl std::fmt::Debug for SrqEntries {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SrqEntries").field("counts", &self.counts()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn info(cookie: u64) -> WrInfo {
        WrInfo { cookie, ..WrInfo::default() }
    }

    /// Both parts of the table, and the `CompletedUpTo` of the EPs.
    struct Both {
        entries: SrqEntries,
        poster: EntryPoster,
        eps: HashMap<u64, Arc<CompletedUpTo>>,
    }

    impl Both {
        fn new(limit: u32) -> Self {
            let (entries, poster) = SrqEntries::new(limit).unwrap();
            Self { entries, poster, eps: HashMap::new() }
        }

        /// A table with `n` posted buffers, whose cookies count from 100.
        fn posted(n: u32) -> (Self, Vec<u32>) {
            let mut both = Self::new(n);
            let entries = (0..n).map(|i| both.post(u64::from(i) + 100).unwrap()).collect();
            (both, entries)
        }

        fn post(&mut self, cookie: u64) -> Option<u32> {
            self.poster.post(&self.entries, info(cookie))
        }

        /// The EP completes the oldest entry, and a new buffer is posted.
        fn go_on(&mut self, entries: &mut Vec<u32>, ep: u64, cookie: u64) {
            let oldest = entries.remove(0);
            self.complete(oldest, ep).unwrap();
            self.entries.release(oldest);
            entries.push(self.post(cookie).unwrap());
        }

        fn connect(&mut self, ep: u64) {
            self.entries.ep_connected(ep, self.eps.entry(ep).or_default()).unwrap();
        }

        fn complete(&self, entry: u32, ep: u64) -> Option<u64> {
            self.entries.complete(entry, self.eps.get(&ep).map(|ep| &**ep)).map(|info| info.cookie)
        }

        /// The available and outstanding counts.
        fn counts(&self) -> (u32, u32) {
            let EntryCounts { available, outstanding } = self.entries.counts();
            (available, outstanding)
        }
    }

    #[test]
    fn full_until_a_completion_is_reaped() {
        let (mut both, entries) = Both::posted(3);
        assert_eq!(both.post(9), None);
        assert_eq!(both.complete(entries[1], 7), Some(101));
        assert_eq!(both.counts(), (2, 3));
        assert_eq!(both.post(9), None);
        both.entries.release(entries[1]);
        assert_eq!(both.counts(), (2, 2));
        assert!(both.post(9).is_some());
        assert_eq!(both.post(9), None);
    }

    #[test]
    fn an_entry_completes_once_and_comes_back_once() {
        let (both, entries) = Both::posted(2);
        both.entries.release(entries[0]);
        assert_eq!(both.counts(), (2, 2));
        assert_eq!(both.complete(entries[0], 1), Some(100));
        assert_eq!((both.complete(entries[0], 1), both.complete(NONE, 1)), (None, None));
        both.entries.release(entries[0]);
        both.entries.release(entries[0]);
        assert_eq!((both.counts(), both.complete(entries[0], 1)), ((1, 1), None));
    }

    #[test]
    fn a_post_that_is_undone_was_never_there() {
        let mut both = Both::new(1);
        let entry = both.post(1).unwrap();
        both.poster.unpost(&both.entries, entry);
        assert_eq!((both.counts(), both.complete(entry, 1)), ((0, 0), None));
        let entry = both.post(2).unwrap();
        assert_eq!(both.complete(entry, 1), Some(2));
    }

    #[test]
    fn a_deeper_ledger_keeps_its_entries_and_a_flatter_one_holds_no_more() {
        let (mut both, entries) = Both::posted(4);
        both.poster.set_limit(&both.entries, 5_000).unwrap();
        let more: Vec<_> = (0..4_996).map(|i| both.post(i + 104).unwrap()).collect();
        assert_eq!((both.post(0), both.counts()), (None, (5_000, 5_000)));
        for (cookie, &entry) in (100..).zip(entries.iter().chain(&more)) {
            assert_eq!(both.complete(entry, 1), Some(cookie));
            both.entries.release(entry);
        }
        both.poster.limit_to(2);
        assert!(both.post(1).is_some() && both.post(2).is_some() && both.post(3).is_none());
    }

    /// While one EP holds a buffer for a long time, the other entries are reused without more
    /// memory.
    #[test]
    fn r50_srq_post_nonblocking_while_a_buffer_is_held() {
        let (mut both, mut entries) = Both::posted(4);
        let held = entries.remove(0);
        let chunks = |both: &Both| both.entries.chunks.iter().filter(|chunk| chunk.get().is_some()).count();
        let before = chunks(&both);
        for n in 0..10_000 {
            both.go_on(&mut entries, 2, n);
        }
        assert_eq!((chunks(&both), both.entries.losses().order.capacity()), (before, 0));
        assert_eq!(both.complete(held, 1), Some(100));
    }

    #[test]
    fn a_buffer_swallowed_with_its_ep_is_found_when_younger_ones_complete() {
        let (mut both, entries) = Both::posted(4);
        both.connect(1);
        both.connect(2);
        // EP 1 takes the first buffer and fails during the message.
        assert!(both.entries.ep_drained(1));
        assert_eq!(both.entries.next_lost(), None);
        both.complete(entries[1], 2).unwrap();
        let lost = both.entries.next_lost().unwrap();
        assert_eq!((lost.ep, lost.info), (1, info(100)));
        both.entries.release(lost.entry);
        both.entries.release(entries[1]);
        assert_eq!(both.counts(), (2, 2));
        assert_eq!(both.entries.next_lost(), None);
    }

    /// UD EPs hold no entry themselves, so their completions reveal lost entries too.
    #[test]
    fn a_swallowed_buffer_is_found_by_completions_of_those_who_hold_none() {
        let (mut both, entries) = Both::posted(4);
        both.connect(1);
        assert!(both.entries.ep_drained(1));
        both.eps.insert(2, Arc::default());
        both.complete(entries[1], 2).unwrap();
        assert_eq!(both.entries.next_lost().map(|lost| lost.ep), Some(1));
    }

    #[test]
    fn buffers_that_nobody_is_known_to_have_taken_are_not_lost_with_the_last_ep() {
        let (mut both, entries) = Both::posted(3);
        both.connect(1);
        both.complete(entries[0], 1).unwrap();
        both.entries.ep_drained(1);
        assert_eq!(both.entries.next_lost(), None);
        assert_eq!(both.counts().0, 2);
    }

    #[test]
    fn a_buffer_that_a_live_ep_may_still_fill_is_not_lost() {
        let (mut both, entries) = Both::posted(4);
        for ep in 1..=3 {
            both.connect(ep);
        }
        both.entries.ep_drained(1);
        both.complete(entries[1], 2).unwrap();
        // EP 3 may hold the first entry.
        assert_eq!(both.entries.next_lost(), None);
        assert_eq!(both.complete(entries[0], 3), Some(100));
        assert_eq!(both.entries.next_lost(), None);
    }

    /// An ended EP that held no entry is a suspect only until the posts of that time have
    /// completed.
    #[test]
    fn suspicion_ends_after_one_lap() {
        let (mut both, mut entries) = Both::posted(4);
        both.connect(1);
        both.connect(2);
        assert!(both.entries.ep_drained(1));
        for n in 0..4 {
            both.go_on(&mut entries, 2, n);
            assert_eq!(both.entries.next_lost(), None);
        }
        assert!(!both.entries.suspects.load(Relaxed));
        // A further suspect can be found again.
        both.connect(3);
        assert!(both.entries.ep_drained(3));
        both.complete(entries[1], 2).unwrap();
        assert_eq!(both.entries.next_lost().map(|lost| (lost.ep, lost.info.cookie)), Some((3, 0)));
    }

    /// An EP that ended before a buffer was posted cannot have taken that one.
    #[test]
    fn a_swallowed_buffer_is_not_put_on_an_ep_that_ended_before_its_post() {
        let (mut both, mut entries) = Both::posted(4);
        for ep in 1..=3 {
            both.connect(ep);
        }
        assert!(both.entries.ep_drained(1));
        // No thread looks for lost entries meanwhile, so the first EP is still a suspect.
        for n in 0..4 {
            both.go_on(&mut entries, 3, n);
        }
        // EP 2 takes the first of the new entries.
        assert!(both.entries.ep_drained(2));
        both.complete(entries[1], 3).unwrap();
        assert_eq!(both.entries.next_lost().map(|lost| (lost.ep, lost.info.cookie)), Some((2, 0)));
    }

    /// One poster, and several reapers that complete entries in any order: each cookie returns
    /// once, and no entry is lost or used twice.
    #[test]
    fn nothing_is_lost_or_doubled_between_threads() {
        const DEPTH: u32 = 300;
        const EACH: u64 = 200_000;
        const REAPERS: usize = 2;
        let (entries, mut poster) = SrqEntries::new(DEPTH).unwrap();
        let device = crossbeam_queue::ArrayQueue::new(DEPTH as usize + REAPERS);
        let seen = std::thread::scope(|scope| {
            let reapers: Vec<_> = (0..REAPERS)
                .map(|_| {
                    scope.spawn(|| {
                        let (mut sum, mut n) = (0, 0);
                        loop {
                            match device.pop() {
                                Some(NONE) => return (sum, n),
                                Some(entry) => {
                                    sum += entries.complete(entry, None).unwrap().cookie;
                                    n += 1;
                                    entries.release(entry);
                                }
                                None => std::thread::yield_now(),
                            }
                        }
                    })
                })
                .collect();
            for cookie in 0..EACH {
                let entry = loop {
                    match poster.post(&entries, info(cookie)) {
                        Some(entry) => break entry,
                        None => std::thread::yield_now(),
                    }
                };
                device.push(entry).unwrap();
            }
            (0..REAPERS).for_each(|_| while device.push(NONE).is_err() {});
            reapers
                .into_iter()
                .map(|reaper| reaper.join().unwrap())
                .fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1))
        });
        assert_eq!(seen, (EACH * (EACH - 1) / 2, EACH));
        assert_eq!(entries.counts(), EntryCounts { available: 0, outstanding: 0 });
        // All entries are free again.
        assert!((0..DEPTH).all(|_| poster.post(&entries, info(0)).is_some()));
    }

    proptest! {
        /// EPs take entries in posting order, complete them in any order across EPs, and sometimes
        /// end while they hold one. No entry is declared lost wrongly, no cookie is mixed up, and
        /// the counts stay within their bounds. When the surviving EPs have gone through the whole
        /// SRQ once more, every entry is found.
        #[test]
        fn every_entry_is_accounted_for(steps in proptest::collection::vec((0u8..5, 0usize..4), 1..400)) {
            const DEPTH: u32 = 8;
            let mut both = Both::new(DEPTH);
            let mut queue: VecDeque<(u32, u64)> = VecDeque::new();
            let mut held: HashMap<u64, (u32, u64)> = HashMap::new();
            let mut live: Vec<u64> = (1..=4).collect();
            let mut swallowed: HashMap<u32, u64> = HashMap::new();
            let mut next_ep = 5;
            let mut cookie = 0;
            for &ep in &live { both.connect(ep); }
            for (what, pick) in steps {
                let ep = live[pick % live.len()];
                match what {
                    0 | 1 => {
                        cookie += 1;
                        match both.post(cookie) {
                            Some(entry) => queue.push_back((entry, cookie)),
                            None => prop_assert_eq!(both.counts().1, DEPTH),
                        }
                    }
                    2 => if let std::collections::hash_map::Entry::Vacant(none) = held.entry(ep)
                        && let Some(taken) = queue.pop_front()
                    {
                        none.insert(taken);
                    },
                    3 => if let Some((entry, cookie)) = held.remove(&ep) {
                        prop_assert_eq!(both.complete(entry, ep), Some(cookie));
                        both.entries.release(entry);
                    },
                    _ => {
                        if let Some((entry, cookie)) = held.remove(&ep) { swallowed.insert(entry, cookie); }
                        both.entries.ep_drained(ep);
                        live.retain(|&l| l != ep);
                        live.push(next_ep);
                        both.connect(next_ep);
                        next_ep += 1;
                    }
                }
                while let Some(lost) = both.entries.next_lost() {
                    prop_assert_eq!(swallowed.remove(&lost.entry), Some(lost.info.cookie));
                    both.entries.release(lost.entry);
                }
                let (available, outstanding) = both.counts();
                prop_assert!(available <= outstanding && outstanding <= DEPTH);
            }
            // All EPs finish; then each live EP takes and completes one more entry.
            for (ep, (entry, cookie)) in held.drain() {
                prop_assert_eq!(both.complete(entry, ep), Some(cookie));
                both.entries.release(entry);
            }
            if swallowed.len() < DEPTH as usize {
                for &ep in &live {
                    while queue.is_empty() {
                        cookie += 1;
                        queue.push_back((both.post(cookie).unwrap(), cookie));
                    }
                    let (entry, cookie) = queue.pop_front().unwrap();
                    prop_assert_eq!(both.complete(entry, ep), Some(cookie));
                    both.entries.release(entry);
                    while let Some(lost) = both.entries.next_lost() {
                        prop_assert_eq!(swallowed.remove(&lost.entry), Some(lost.info.cookie));
                        both.entries.release(lost.entry);
                    }
                }
                prop_assert!(swallowed.is_empty());
                prop_assert_eq!(both.counts().1 as usize, queue.len());
            }
        }
    }
}
