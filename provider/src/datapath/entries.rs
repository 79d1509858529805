//! The state of every SRQ entry: free, on the SRQ, or completed and not reaped.
//!
//! The model has a further state, "at an EP", that an in-order transport does not show: a buffer
//! taken by an EP becomes visible only by its completion. Until then the entry counts as available.
//! One EP holds at most one such entry.
//!
//! One thread posts ([`EntryPoster`]), and any number of threads reap; none of them waits for
//! another. [`Entry::state`] holds the number of the post that the entry belongs to, counted from
//! the first post. Reaping gives the entry back to the poster, in one of two ways:
//!
//! - By the queue of one EVD ([`SrqEntries::claim`]), which takes plain stores: the EVD's lock
//!   admits one thread at a time to the queue's end ([`Alone`]), and the poster alone takes entries
//!   from its front. The entry at the front is never taken, so that both sides always have one.
//! - By a list that all threads share ([`SrqEntries::free`]). The poster takes the whole list when
//!   it finds no free entry elsewhere.
//!
//! [`losses`](super::losses) finds entries whose buffers a device has dropped without a completion.

use super::WrInfo;
use crate::event_data::Owner;
use crate::memory::list;
use std::collections::TryReserveError;
use std::sync::OnceLock;
use std::sync::atomic::{
    AtomicBool, AtomicU32, AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};

/// Special values of [`Entry::state`]: the entry has completed and is not reaped, or the entry is
/// free. A smaller value is the number of the entry's post.
const COMPLETED: u64 = u64::MAX - 1;
const FREE: u64 = u64::MAX;

/// The end of a list of entries.
const NONE: u32 = u32::MAX;

/// Chunks behind the first. Each doubles the table.
const LATER: usize = 24;

/// The table has at least this many more entries than the SRQ is deep.
const SPARE: u32 = 256;

#[derive(Debug)]
struct Entry {
    state: AtomicU64,
    cookie: AtomicU64,
    /// Low half: the first LMR. High half: the pool, and [`MORE`] if `lmrs` has further LMRs.
    tag: AtomicU64,
    lmrs: [AtomicU32; 3],
    /// The next entry of the list or queue of free entries that holds this entry.
    next: AtomicU32,
}

/// A bit that no pool number has set.
const MORE: u32 = Owner::POOL_NUMBERS;

impl Entry {
    #[inline(always)]
    fn set_info(&self, info: &WrInfo) {
        let [first, more @ ..] = info.lmrs;
        let mut high = info.pool;
        if more != [0; 3] {
            high |= MORE;
            for (to, lmr) in self.lmrs.iter().zip(more) {
                to.store(lmr, Relaxed);
            }
        }
        self.cookie.store(info.cookie, Relaxed);
        self.tag.store(u64::from(first) | u64::from(high) << 32, Relaxed);
    }

    fn info(&self) -> WrInfo {
        let tag = self.tag.load(Relaxed);
        let more = tag & u64::from(MORE) << 32 != 0;
        let [b, c, d] = self.lmrs.each_ref().map(|lmr| if more { lmr.load(Relaxed) } else { 0 });
        let (cookie, pool) = self.cookie_and_pool();
        WrInfo { cookie, pool, lmrs: [tag as u32, b, c, d] }
    }

    #[inline(always)]
    fn cookie_and_pool(&self) -> (u64, u32) {
        (self.cookie.load(Relaxed), (self.tag.load(Relaxed) >> 32) as u32 & !MORE)
    }
}

/// The youngest entry that an EP has completed since it connected, as the number of the entry's
/// post + 1. The EP keeps it for the entry table of its SRQ. Written under the lock of the EP's
/// receive EVD.
#[derive(Debug)]
pub(crate) struct CompletedUpTo {
    post: AtomicU64,
    /// The EP's receive EVD has claimed the queue of returned entries.
    alone: AtomicBool,
}

impl CompletedUpTo {
    /// The value of an EP that cannot hold an entry.
    const NOBODYS: u64 = u64::MAX;

    /// Records that the EP may hold entries from now on.
    pub(super) fn start(&self) {
        self.post.store(0, Relaxed);
    }

    /// Records that the EP can hold no entry any more. Returns the last value.
    pub(super) fn end(&self) -> u64 {
        self.post.swap(Self::NOBODYS, Relaxed)
    }

    #[inline(always)]
    pub(super) fn get(&self) -> u64 {
        self.post.load(Relaxed)
    }

    /// Records whether the EVD on which the EP's receives complete has claimed the queue of
    /// returned entries. Called under the lock of that EVD.
    pub(crate) fn set_alone(&self, alone: bool) {
        self.alone.store(alone, Relaxed);
    }
}

impl Default for CompletedUpTo {
    fn default() -> Self {
        Self { post: AtomicU64::new(Self::NOBODYS), alone: AtomicBool::new(false) }
    }
}

/// The entries of one SRQ: the part that all threads share.
pub(crate) struct SrqEntries {
    /// Holds all entries until the SRQ is made deeper. Its length is a power of two.
    first: Box<[Entry]>,
    later: [OnceLock<Box<[Entry]>>; LATER],
    /// The number of posts so far. Written by the poster.
    posted: AtomicU64,
    /// The number of completions so far, without those of [`Alone::reaped`], modulo 2^32.
    completed: AtomicU32,
    /// High half: the number of entries reaped so far, without those of [`Alone::reaped`], modulo
    /// 2^32. Low half: the first entry of the list of reaped entries that the poster has not taken
    /// yet.
    returned: AtomicU64,
    alone: Alone,
    /// [`CompletedUpTo`] of all completions whose EP keeps none.
    completed_up_to: AtomicU64,
}

/// The end of the queue of returned entries. One EVD claims it, and writes it under its lock.
#[derive(Debug)]
struct Alone {
    /// The EVD; 0 for none.
    evd: AtomicU64,
    /// The entry that was reaped last, or the one that the queue began with.
    last: AtomicU32,
    /// The number of entries completed and reaped in one step so far, modulo 2^32.
    reaped: AtomicU32,
}

/// The part of the table that only the poster uses.
#[derive(Debug)]
pub(crate) struct EntryPoster {
    limit: u32,
    /// The number of entries in the table.
    entries: u32,
    /// The first entry of the queue of returned entries. It is free once it has a successor.
    front: u32,
    /// The first entry of a list of free entries.
    free: u32,
    /// The number of posts for which there was room when the poster looked last.
    stop: u64,
}

/// The number of entries in each state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EntryCounts {
    pub(crate) available: u32,
    pub(crate) outstanding: u32,
}

/// Entries from this number on, for one chunk, in a list that ends with `then`.
fn chunk(numbers: std::ops::Range<u32>, then: u32) -> Result<Box<[Entry]>, TryReserveError> {
    let mut entries = Vec::new();
    entries.try_reserve_exact(numbers.len())?;
    let end = numbers.end;
    entries.extend(numbers.map(|number| Entry {
        state: AtomicU64::new(FREE),
        cookie: AtomicU64::new(0),
        tag: AtomicU64::new(0),
        lmrs: [const { AtomicU32::new(0) }; 3],
        next: AtomicU32::new(if number + 1 < end { number + 1 } else { then }),
    }));
    Ok(entries.into())
}

impl SrqEntries {
    /// Creates the table for an SRQ of depth `limit`.
    pub(crate) fn new(limit: u32) -> Result<(Self, EntryPoster), TryReserveError> {
        let size = limit.saturating_add(SPARE).checked_next_power_of_two().unwrap_or(1 << 31);
        let first = chunk(0..size, NONE)?;
        // The queue of returned entries begins with entry 0.
        first[0].next.store(NONE, Relaxed);
        let entries = Self {
            first,
            later: [const { OnceLock::new() }; LATER],
            posted: AtomicU64::new(0),
            completed: AtomicU32::new(0),
            returned: AtomicU64::new(NONE.into()),
            alone: Alone { evd: AtomicU64::new(0), last: AtomicU32::new(0), reaped: AtomicU32::new(0) },
            completed_up_to: AtomicU64::new(0),
        };
        Ok((entries, EntryPoster { limit, entries: size, front: 0, free: 1, stop: 0 }))
    }

    #[inline(always)]
    fn entry(&self, number: u32) -> Option<&Entry> {
        match self.first.get(number as usize) {
            Some(entry) => Some(entry),
            None => self.later_entry(number),
        }
    }

    /// Chunk n begins at the length of the first chunk * 2^n.
    #[inline(never)]
    fn later_entry(&self, number: u32) -> Option<&Entry> {
        let first = self.first.len();
        let n = (number as usize / first).checked_ilog2()? as usize;
        self.later.get(n)?.get()?.get(number as usize - (first << n))
    }

    /// Assigns a free entry to this post, which is the next.
    #[inline(always)]
    fn occupy(&self, entry: &Entry, post: u64, info: &WrInfo) {
        entry.set_info(info);
        entry.state.store(post, Release);
        self.posted.store(post + 1, Release);
    }

    /// The number of entries that were reaped so far, modulo 2^32.
    #[inline(always)]
    fn reaped(&self) -> u32 {
        let shared = (self.returned.load(Acquire) >> 32) as u32;
        shared.wrapping_add(self.alone.reaped.load(Acquire))
    }

    /// Returns the counts. They are consistent while other threads work: the reaped count is read
    /// first and the posted count last, so reaped <= completed <= posted.
    pub(crate) fn counts(&self) -> EntryCounts {
        let reaped = self.reaped();
        let completed = self.completed.load(Acquire).wrapping_add(self.alone.reaped.load(Acquire));
        let posted = self.posted.load(Acquire) as u32;
        EntryCounts { available: posted.wrapping_sub(completed), outstanding: posted.wrapping_sub(reaped) }
    }

    /// Gives the queue of returned entries to this EVD, unless another EVD has it. Returns whether
    /// this EVD has it.
    pub(crate) fn claim(&self, evd: u64) -> bool {
        match self.alone.evd.compare_exchange(0, evd, AcqRel, Acquire) {
            Ok(_) => true,
            Err(now) => now == evd,
        }
    }

    /// Completes the entry that a completion names and returns its info. `None` for an entry that
    /// is not posted.
    #[inline]
    pub(crate) fn complete(&self, entry: u32, ep: Option<&CompletedUpTo>) -> Option<WrInfo> {
        let entry = self.entry(entry)?;
        self.completed(entry, ep)?;
        Some(entry.info())
    }

    /// Counts the completion of an entry. `None` for an entry that is not posted.
    #[inline(always)]
    fn completed(&self, entry: &Entry, ep: Option<&CompletedUpTo>) -> Option<()> {
        let post = entry.state.load(Acquire);
        if post >= COMPLETED {
            return None;
        }
        entry.state.store(COMPLETED, Relaxed);
        self.completed.fetch_add(1, Release);
        self.raise(ep, post);
        Some(())
    }

    /// Records that the EP has completed this post.
    #[inline(always)]
    fn raise(&self, ep: Option<&CompletedUpTo>, post: u64) {
        match ep {
            Some(ep) if ep.get() != CompletedUpTo::NOBODYS => {
                if ep.get() <= post {
                    ep.post.store(post + 1, Relaxed);
                }
            }
            _ => {
                self.completed_up_to.fetch_max(post + 1, Relaxed);
            }
        }
    }

    /// Frees an entry whose completion was reaped or dropped.
    #[inline]
    pub(crate) fn release(&self, number: u32) {
        let Some(entry) = self.entry(number) else { return };
        if entry.state.load(Relaxed) == COMPLETED {
            self.free(entry, number);
        }
    }

    /// Puts a completed entry on the list of returned entries.
    #[inline(always)]
    fn free(&self, entry: &Entry, number: u32) {
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

    /// Does the work of [`SrqEntries::complete`] and [`SrqEntries::release`] in one step, for a
    /// completion that is reaped immediately. Returns its cookie and pool. The caller holds the
    /// lock of the EP's receive EVD.
    #[inline(always)]
    pub(crate) fn reap(&self, number: u32, ep: &CompletedUpTo) -> Option<(u64, u32)> {
        let entry = self.entry(number)?;
        if !ep.alone.load(Relaxed) {
            return self.reap_shared(entry, number, ep);
        }
        let post = entry.state.load(Acquire);
        let last = self.entry(self.alone.last.load(Relaxed))?;
        if post >= COMPLETED {
            return None;
        }
        self.raise(Some(ep), post);
        let info = entry.cookie_and_pool();
        entry.state.store(FREE, Relaxed);
        entry.next.store(NONE, Relaxed);
        // From here on the poster may take `last`, and writes this entry only once it has a
        // successor.
        last.next.store(number, Release);
        self.alone.last.store(number, Relaxed);
        self.alone.reaped.store(self.alone.reaped.load(Relaxed).wrapping_add(1), Release);
        Some(info)
    }

    #[inline(never)]
    fn reap_shared(&self, entry: &Entry, number: u32, ep: &CompletedUpTo) -> Option<(u64, u32)> {
        self.completed(entry, Some(ep))?;
        let info = entry.cookie_and_pool();
        self.free(entry, number);
        Some(info)
    }

    /// The number of posts so far.
    pub(super) fn posted(&self) -> u64 {
        self.posted.load(Acquire)
    }

    /// [`CompletedUpTo`] of all completions whose EP keeps none.
    pub(super) fn completed_up_to(&self) -> u64 {
        self.completed_up_to.load(Relaxed)
    }

    /// Takes over the [`CompletedUpTo`] of an EP that has ended.
    pub(super) fn raise_completed_up_to(&self, value: u64) {
        self.completed_up_to.fetch_max(value, Relaxed);
    }

    /// The posts in `from..before` that have not completed, in order, with their entries.
    pub(super) fn pending(&self, from: u64, before: u64) -> Result<Vec<(u64, u32)>, TryReserveError> {
        let all = || {
            let entries = self.first.iter().chain(self.later.iter().map_while(OnceLock::get).flatten());
            (0..)
                .zip(entries)
                .map(|(number, entry)| (entry.state.load(Acquire), number))
                .filter(|(post, _)| (from..before).contains(post))
        };
        // Between the two passes posts may complete, but no further post can match.
        let mut found = list(all().count())?;
        found.extend(all());
        found.sort_unstable();
        Ok(found)
    }

    /// Whether this post of the entry has not completed.
    pub(super) fn is_pending(&self, number: u32, post: u64) -> bool {
        self.entry(number).is_some_and(|entry| entry.state.load(Acquire) == post)
    }

    /// Completes an entry that the device has lost, and returns its info. `None` if this post of
    /// the entry has completed meanwhile.
    pub(super) fn complete_lost(&self, number: u32, post: u64) -> Option<WrInfo> {
        let entry = self.entry(number)?;
        entry.state.compare_exchange(post, COMPLETED, AcqRel, Relaxed).ok()?;
        self.completed.fetch_add(1, Release);
        Some(entry.info())
    }
}

impl EntryPoster {
    pub(crate) fn limit(&self) -> u32 {
        self.limit
    }

    /// Sets a depth for which there is room. The caller has compared it with the outstanding count.
    pub(crate) fn limit_to(&mut self, entries: &SrqEntries, limit: u32) {
        self.limit = limit;
        self.stop = entries.posted.load(Relaxed);
    }

    /// Sets a depth, and allocates the entries for it.
    pub(crate) fn set_limit(&mut self, entries: &SrqEntries, limit: u32) -> Result<(), TryReserveError> {
        for later in &entries.later {
            if self.entries >= limit.saturating_add(SPARE) {
                break;
            }
            if later.get().is_some() {
                continue;
            }
            let end = self.entries.saturating_mul(2);
            let chunk = chunk(self.entries..end, self.free)?;
            // The chunk was not set, and only the poster sets chunks.
            let _ = later.set(chunk);
            self.free = self.entries;
            self.entries = end;
        }
        self.limit_to(entries, limit);
        Ok(())
    }

    /// Takes a free entry for a buffer that is about to be posted. `None` when the SRQ is full
    /// (R61, R62).
    pub(crate) fn take(&mut self, entries: &SrqEntries, info: &WrInfo) -> Option<u32> {
        if let Some(number) = self.take_at_hand(entries, info) {
            return Some(number);
        }
        let post = self.next_number(entries)?;
        let number = self.take_listed(entries);
        entries.occupy(entries.entry(number)?, post, info);
        Some(number)
    }

    /// Does the work of [`EntryPoster::take`] if the claimed queue has returned an entry of the first
    /// chunk, or if such an entry is the next of the poster's own list. Otherwise, or if the SRQ is
    /// full, `None`. Straight-line code without calls.
    #[inline(always)]
    pub(crate) fn take_at_hand(&mut self, entries: &SrqEntries, info: &WrInfo) -> Option<u32> {
        let post = self.next_number(entries)?;
        let mut number = self.front;
        let mut entry = entries.first.get(number as usize)?;
        let next = entry.next.load(Acquire);
        if next == NONE {
            number = self.free;
            entry = entries.first.get(number as usize)?;
            self.free = entry.next.load(Relaxed);
        } else {
            self.front = next;
        }
        entries.occupy(entry, post, info);
        Some(number)
    }

    /// The number of the next post. `None` if the SRQ is full. Looks how many entries were reaped
    /// only if it was full when the poster looked last.
    #[inline(always)]
    fn next_number(&mut self, entries: &SrqEntries) -> Option<u64> {
        let post = entries.posted.load(Relaxed);
        if post == self.stop {
            let outstanding = (post as u32).wrapping_sub(entries.reaped());
            let room = self.limit.saturating_sub(outstanding);
            self.stop = post + u64::from(room);
            if room == 0 {
                return None;
            }
        }
        Some(post)
    }

    /// Takes an entry from the queue, from the poster's own list, or from the list of all threads.
    #[inline(never)]
    fn take_listed(&mut self, entries: &SrqEntries) -> u32 {
        if let Some(entry) = entries.entry(self.front) {
            let next = entry.next.load(Acquire);
            if next != NONE {
                return std::mem::replace(&mut self.front, next);
            }
        }
        if self.free == NONE {
            self.free = take_returned(entries);
        }
        let number = self.free;
        if let Some(entry) = entries.entry(number) {
            self.free = entry.next.load(Relaxed);
        }
        number
    }

    /// Undoes the latest [`EntryPoster::take`], which the device refused.
    #[cold]
    pub(crate) fn take_back(&mut self, entries: &SrqEntries, number: u32) {
        let Some(entry) = entries.entry(number) else { return };
        entry.state.store(FREE, Relaxed);
        entry.next.store(self.free, Relaxed);
        self.free = number;
        entries.posted.store(entries.posted.load(Relaxed) - 1, Release);
    }
}

/// Takes the list of all entries that were given back to it since the last call.
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
mod tests;
