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
//! [`losses`](super::losses) finds entries whose buffers a device has dropped without a completion.

use super::WrInfo;
use crate::memory::list;
use std::collections::TryReserveError;
use std::sync::OnceLock;
use std::sync::atomic::{
    AtomicU32, AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};

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

    /// Records that the EP may hold entries from now on.
    pub(super) fn start(&self) {
        self.0.store(0, Relaxed);
    }

    /// Records that the EP can hold no entry any more. Returns the last value.
    pub(super) fn end(&self) -> u64 {
        self.0.swap(Self::NOBODYS, Relaxed)
    }

    pub(super) fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
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
    completed_up_to: AtomicU64,
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

impl SrqEntries {
    /// Creates the table for an SRQ of depth `limit`.
    pub(crate) fn new(limit: u32) -> Result<(Self, EntryPoster), TryReserveError> {
        let entries = Self {
            chunks: [const { OnceLock::new() }; CHUNKS],
            posted: AtomicU64::new(0),
            completed: AtomicU32::new(0),
            returned: AtomicU64::new(NONE.into()),
            completed_up_to: AtomicU64::new(0),
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
        match ep {
            Some(ep) if ep.0.load(Relaxed) != CompletedUpTo::NOBODYS => {
                if ep.0.load(Relaxed) <= post {
                    ep.0.store(post + 1, Relaxed);
                }
            }
            _ => {
                self.completed_up_to.fetch_max(post + 1, Relaxed);
            }
        }
        Some(())
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
    /// completion that is reaped immediately. Returns its cookie and pool.
    #[inline]
    pub(crate) fn reap(&self, number: u32, ep: &CompletedUpTo) -> Option<(u64, u32)> {
        let entry = self.entry(number)?;
        self.completed(entry, Some(ep))?;
        let info = (entry.cookie.load(Relaxed), entry.pool.load(Relaxed));
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
mod tests;
