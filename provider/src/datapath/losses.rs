//! Entries of buffers that the device has dropped without a completion.
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
//! Each EP keeps its [`CompletedUpTo`] for this. [`LostEntries`] looks for lost entries only after
//! an EP has ended while entries were on the SRQ. That EP is then a *suspect*.

use super::Lost;
use super::entries::{CompletedUpTo, SrqEntries};
use crate::sync::{Mutex, MutexGuard, rank};
use crate::types::ByNumber;
use std::collections::{TryReserveError, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Finds the entries of one SRQ that are lost with an ended EP.
#[derive(Default)]
pub(crate) struct LostEntries {
    /// Whether there are suspects now. Written under the lock of `losses`.
    has_suspects: AtomicBool,
    losses: Mutex<{ rank::LOSSES }, Losses>,
}

/// EPs that may hold an entry.
#[derive(Default)]
struct Losses {
    /// Live EPs.
    holders: ByNumber<u64, Arc<CompletedUpTo>>,
    /// Ended EPs that may have held an entry.
    suspects: Vec<Suspect>,
    /// While there are suspects: the posts that had not completed when the list was last filled,
    /// oldest first, with their entries. A post that has completed since leaves when it reaches the
    /// front.
    pending: VecDeque<(u64, u32)>,
    /// `pending` was filled with all posts before this one that had not completed.
    covered: u64,
}

/// An ended EP, and the range of posts of which it may have held one entry.
#[derive(Clone, Copy, Debug)]
struct Suspect {
    ep: u64,
    from: u64,
    before: u64,
}

impl LostEntries {
    fn losses(&self) -> MutexGuard<'_, Losses> {
        self.losses.lock().unwrap()
    }

    /// Records that this EP may take entries from now on.
    ///
    /// # Errors
    /// No memory for the tables; the EP must not take entries then.
    pub(crate) fn ep_connected(
        &self,
        ep: u64,
        completed: &Arc<CompletedUpTo>,
    ) -> Result<(), TryReserveError> {
        let mut losses = self.losses();
        losses.holders.try_reserve(1)?;
        // Each holder may become a suspect.
        let holders = losses.holders.len() + 1;
        losses.suspects.try_reserve(holders)?;
        completed.start();
        losses.holders.insert(ep, completed.clone());
        Ok(())
    }

    /// Records that this EP takes no more entries and that all its completions have been seen.
    /// Returns true if the EP may have held an entry. Then [`LostEntries::next`] may find that
    /// entry, as soon as every thread that completes entries has seen that there are suspects.
    pub(crate) fn ep_drained(&self, entries: &SrqEntries, ep: u64) -> bool {
        let mut losses = self.losses();
        let Some(completed) = losses.holders.remove(&ep) else { return false };
        let from = completed.end();
        entries.raise_completed_up_to(from);
        if entries.counts().available == 0 {
            return false;
        }
        let before = entries.posted();
        losses.suspects.push(Suspect { ep, from, before });
        if !self.has_suspects.load(Relaxed) {
            // The only long search. No other thread waits for it: a thread that completes an entry
            // takes the lock only once there are suspects.
            losses.find_pending(entries, 0, before);
            self.has_suspects.store(true, Relaxed);
        }
        true
    }

    /// Whether [`LostEntries::next`] may find an entry.
    #[inline]
    pub(crate) fn has_suspects(&self) -> bool {
        self.has_suspects.load(Relaxed)
    }

    /// The next entry known to be lost with an ended EP. The entry counts as completed from now on.
    #[inline]
    pub(crate) fn next(&self, entries: &SrqEntries) -> Option<Lost> {
        if self.has_suspects() { self.search(entries) } else { None }
    }

    #[inline(never)]
    fn search(&self, entries: &SrqEntries) -> Option<Lost> {
        let mut losses = self.losses();
        let lost = losses.next(entries);
        if losses.suspects.is_empty() {
            losses.pending = VecDeque::new();
            self.has_suspects.store(false, Relaxed);
        }
        lost
    }

    /// Whether there are no suspects and no memory is held for a search.
    #[cfg(test)]
    pub(super) fn is_idle(&self) -> bool {
        !self.has_suspects.load(Relaxed) && self.losses().pending.capacity() == 0
    }
}

impl Losses {
    /// Fills `pending` with the posts in `from..before`. Returns false without memory; the caller
    /// has to try again later.
    fn find_pending(&mut self, entries: &SrqEntries, from: u64, before: u64) -> bool {
        let found = entries.pending(from, before);
        self.covered = if found.is_ok() { before } else { from };
        let has_memory = found.is_ok();
        self.pending = found.unwrap_or_default().into();
        has_memory
    }

    fn next(&mut self, entries: &SrqEntries) -> Option<Lost> {
        let last_before = self.suspects.iter().map(|suspect| suspect.before).max()?;
        while !self.suspects.is_empty() {
            let Some(&(post, number)) = self.pending.front() else {
                if self.covered >= last_before {
                    // Every entry that the suspects could have held has completed.
                    self.suspects.clear();
                    return None;
                }
                if !self.find_pending(entries, self.covered, entries.posted()) {
                    return None;
                }
                continue;
            };
            if !entries.is_pending(number, post) {
                self.pending.pop_front();
                continue;
            }
            self.suspects.retain(|suspect| post < suspect.before);
            let youngest = self.holders.values().map(|holder| holder.get()).max().unwrap_or(0);
            if post + 1 > youngest.max(entries.completed_up_to())
                || self.holders.values().any(|holder| holder.get() <= post)
            {
                return None;
            }
            // Each suspect held at most one entry. Assign the entry to the suspect with the
            // smallest `before`: the other suspects remain for more of the younger entries.
            let fits = |&at: &usize| self.suspects[at].from <= post;
            let at = (0..self.suspects.len()).filter(fits).min_by_key(|&at| self.suspects[at].before)?;
            let Some(info) = entries.complete_lost(number, post) else { continue };
            let ep = self.suspects.swap_remove(at).ep;
            return Some(Lost { entry: number, info, ep });
        }
        None
    }
}

impl std::fmt::Debug for LostEntries {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LostEntries").field("has_suspects", &self.has_suspects).finish_non_exhaustive()
    }
}
