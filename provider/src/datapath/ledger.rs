//! Where every SRQ entry is: free, on the SRQ, or completed and not reaped.
//!
//! The third place of the model, "at an EP", can't be seen on an in-order transport: a buffer that an EP has taken
//! shows only when its completion does. Until then it counts as available, and one EP holds at most one.
//!
//! Some devices (rxe up to Linux 6.12 at least) drop the buffer of a half-received message when its EP fails, without
//! a completion. Such an entry would be outstanding for ever. It can be told, later: devices take buffers in the order
//! in which they were posted, so once a younger entry has completed, an older one that has not is *held*; an EP
//! that has since completed a younger one does not hold it; so when no live EP can, an ended one did, and the entry
//! is [`Lost`].

use crate::types::{LmrTriplet, NumberHasher};
use std::collections::{HashMap, VecDeque};
use std::hash::BuildHasherDefault;

/// What a buffer is known by to those who posted it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tag {
    pub(crate) cookie: u64,
    /// The pool that posted it; 0 for none. Only a pool can post with its own number.
    pub(crate) pool: u32,
    /// LMRs of the first segments, for telling why a receive failed: see [`Tag::over`].
    pub(crate) lmrs: [u32; 4],
}

impl Tag {
    /// With the LMRs that a buffer of these segments lies in. More than four segments are rare, and the first four say
    /// enough.
    pub(crate) fn over(mut self, iov: &[LmrTriplet]) -> Self {
        for (lmr, segment) in
            self.lmrs.iter_mut().zip(iov.iter().filter(|segment| segment.segment_length > 0))
        {
            *lmr = segment.lmr_context;
        }
        self
    }
}

/// An entry that a device swallowed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Lost {
    pub(crate) entry: u32,
    pub(crate) tag: Tag,
    /// The ended EP that must have held it.
    pub(crate) ep: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Free,
    Posted,
    Completed,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    tag: Tag,
    seq: u64,
    place: Place,
}

/// An ended EP, and the entries (by `seq`) of which it may have held one.
#[derive(Clone, Copy, Debug)]
struct Suspect {
    ep: u64,
    from: u64,
    before: u64,
}

/// The entries of one SRQ.
pub(crate) struct Ledger {
    limit: u32,
    entries: Vec<Entry>,
    free: Vec<u32>,
    available: u32,
    outstanding: u32,
    next_seq: u64,
    /// The youngest entry known to have been taken, as `seq + 1`; 0 before the first.
    taken: u64,
    /// Posted entries, oldest first; completed ones leave when they reach the front.
    order: VecDeque<(u64, u32)>,
    /// Live EPs, each with the youngest entry it has completed, as `seq + 1`.
    holders: HashMap<u64, u64, BuildHasherDefault<NumberHasher>>,
    /// Ended EPs that may have held an entry.
    suspects: Vec<Suspect>,
}

impl Ledger {
    pub(crate) fn new(limit: u32) -> Self {
        Self {
            limit,
            entries: Vec::new(),
            free: Vec::new(),
            available: 0,
            outstanding: 0,
            next_seq: 0,
            taken: 0,
            order: VecDeque::new(),
            holders: HashMap::default(),
            suspects: Vec::new(),
        }
        .with_room(limit)
    }

    fn with_room(mut self, limit: u32) -> Self {
        self.grow(limit);
        self
    }

    fn grow(&mut self, limit: u32) {
        let old = self.entries.len() as u32;
        if limit > old {
            self.entries.resize(limit as usize, Entry { tag: Tag::default(), seq: 0, place: Place::Free });
            self.free.reserve(limit as usize - self.free.len());
            self.free.extend((old..limit).rev());
            self.order.reserve((2 * limit as usize).saturating_sub(self.order.len()));
        }
    }

    pub(crate) fn limit(&self) -> u32 {
        self.limit
    }

    pub(crate) fn available(&self) -> u32 {
        self.available
    }

    pub(crate) fn outstanding(&self) -> u32 {
        self.outstanding
    }

    /// A new depth; the caller has checked it against `outstanding`.
    pub(crate) fn set_limit(&mut self, limit: u32) {
        self.limit = limit;
        self.grow(limit);
    }

    /// Takes a free entry for a buffer about to be posted; `None` when full (R61, R62).
    pub(crate) fn post(&mut self, tag: Tag) -> Option<u32> {
        if self.outstanding >= self.limit {
            return None;
        }
        let entry = self.free.pop()?;
        let seq = self.next_seq;
        self.next_seq += 1;
        self.entries[entry as usize] = Entry { tag, seq, place: Place::Posted };
        while let Some(&oldest) = self.order.front()
            && !is_posted(&self.entries, oldest)
        {
            self.order.pop_front();
        }
        // Behind a buffer that is held for long, completed entries pile up; clearing them away now and then keeps this
        // constant on average and never allocates.
        if self.order.len() >= 2 * self.entries.len() {
            self.order.retain(|&at| is_posted(&self.entries, at));
        }
        self.order.push_back((seq, entry));
        self.available += 1;
        self.outstanding += 1;
        Some(entry)
    }

    /// Undoes the latest [`Ledger::post`], which the device refused.
    pub(crate) fn unpost(&mut self, entry: u32) {
        self.order.pop_back();
        self.next_seq -= 1;
        self.available -= 1;
        self.outstanding -= 1;
        self.entries[entry as usize].place = Place::Free;
        self.free.push(entry);
    }

    /// A completion names this entry; gives its tag. `None` for one that is not posted.
    pub(crate) fn complete(&mut self, entry: u32, ep: u64) -> Option<Tag> {
        let slot = self.entries.get_mut(entry as usize)?;
        if slot.place != Place::Posted {
            return None;
        }
        slot.place = Place::Completed;
        let (tag, seq) = (slot.tag, slot.seq);
        self.available -= 1;
        self.taken = self.taken.max(seq + 1);
        if let Some(last) = self.holders.get_mut(&ep) {
            *last = (*last).max(seq + 1);
        }
        Some(tag)
    }

    /// The consumer has reaped the completion, or it was dropped: the entry is free.
    pub(crate) fn release(&mut self, entry: u32) {
        let slot = &mut self.entries[entry as usize];
        if slot.place == Place::Completed {
            slot.place = Place::Free;
            self.outstanding -= 1;
            self.free.push(entry);
        }
    }

    /// This EP may take entries from now on.
    pub(crate) fn ep_connected(&mut self, ep: u64) {
        self.holders.insert(ep, 0);
    }

    /// This EP takes no more, and all its completions have been seen.
    pub(crate) fn ep_drained(&mut self, ep: u64) {
        if let Some(from) = self.holders.remove(&ep)
            && self.available > 0
        {
            self.suspects.push(Suspect { ep, from, before: self.next_seq });
        }
    }

    /// Whether there may be one, now or later.
    pub(crate) fn has_suspects(&self) -> bool {
        !self.suspects.is_empty()
    }

    /// The next entry known to have been swallowed with an ended EP; it counts as completed from now on.
    pub(crate) fn next_lost(&mut self) -> Option<Lost> {
        while !self.suspects.is_empty() {
            let &(seq, entry) = self.order.front()?;
            let slot = self.entries[entry as usize];
            if slot.place != Place::Posted || slot.seq != seq {
                self.order.pop_front();
                continue;
            }
            self.suspects.retain(|suspect| seq < suspect.before);
            if seq + 1 > self.taken || self.holders.values().any(|&last| last <= seq) {
                return None;
            }
            // Each suspect held one at most. The one with the fewest younger entries to answer for takes this, so that
            // none is left without a suspect.
            let fits = |&at: &usize| self.suspects[at].from <= seq;
            let at = (0..self.suspects.len()).filter(fits).min_by_key(|&at| self.suspects[at].before)?;
            let ep = self.suspects.swap_remove(at).ep;
            self.entries[entry as usize].place = Place::Completed;
            self.available -= 1;
            return Some(Lost { entry, tag: slot.tag, ep });
        }
        None
    }
}

impl std::fmt::Debug for Ledger {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ledger")
            .field("limit", &self.limit)
            .field("available", &self.available)
            .field("outstanding", &self.outstanding)
            .finish_non_exhaustive()
    }
}

/// Whether the entry that this post went to still waits for its completion.
fn is_posted(entries: &[Entry], (seq, entry): (u64, u32)) -> bool {
    let slot = entries[entry as usize];
    slot.place == Place::Posted && slot.seq == seq
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn tag(cookie: u64) -> Tag {
        Tag { cookie, ..Tag::default() }
    }

    fn posted(n: u32) -> Ledger {
        let mut ledger = Ledger::new(n);
        for i in 0..n {
            ledger.post(tag(u64::from(i) + 100)).unwrap();
        }
        ledger
    }

    #[test]
    fn full_until_a_completion_is_reaped() {
        let mut ledger = posted(3);
        assert_eq!(ledger.post(tag(9)), None);
        let entry = 1;
        ledger.complete(entry, 7);
        assert_eq!((ledger.available(), ledger.outstanding()), (2, 3));
        assert_eq!(ledger.post(tag(9)), None);
        ledger.release(entry);
        assert_eq!((ledger.available(), ledger.outstanding()), (2, 2));
        assert!(ledger.post(tag(9)).is_some());
        assert_eq!(ledger.post(tag(9)), None);
    }

    /// While one EP holds a buffer for a long time, the others go round and round without needing more memory.
    #[test]
    fn r50_srq_post_nonblocking_while_a_buffer_is_held() {
        let mut ledger = posted(4);
        let capacity = ledger.order.capacity();
        let held = ledger.order[0].1;
        for _ in 0..1000 {
            let next = ledger.order.iter().find(|&&at| at.1 != held && is_posted(&ledger.entries, at));
            let next = next.unwrap().1;
            ledger.complete(next, 2).unwrap();
            ledger.release(next);
            ledger.post(Tag::default()).unwrap();
        }
        assert_eq!(ledger.order.capacity(), capacity);
        assert_eq!(ledger.complete(held, 1).map(|tag| tag.cookie), Some(100));
    }

    #[test]
    fn a_buffer_swallowed_with_its_ep_is_found_when_younger_ones_complete() {
        let mut ledger = posted(4);
        ledger.ep_connected(1);
        ledger.ep_connected(2);
        // EP 1 takes the first buffer and dies half-way.
        ledger.ep_drained(1);
        assert_eq!(ledger.next_lost(), None);
        let second = ledger.order[1].1;
        ledger.complete(second, 2).unwrap();
        let lost = ledger.next_lost().unwrap();
        assert_eq!((lost.ep, lost.tag), (1, tag(100)));
        ledger.release(lost.entry);
        ledger.release(second);
        assert_eq!((ledger.available(), ledger.outstanding()), (2, 2));
        assert_eq!(ledger.next_lost(), None);
    }

    #[test]
    fn buffers_that_nobody_is_known_to_have_taken_are_not_lost_with_the_last_ep() {
        let mut ledger = posted(3);
        ledger.ep_connected(1);
        let first = ledger.order[0].1;
        ledger.complete(first, 1).unwrap();
        ledger.ep_drained(1);
        assert_eq!(ledger.next_lost(), None);
        assert_eq!(ledger.available(), 2);
    }

    #[test]
    fn a_buffer_that_a_live_ep_may_still_fill_is_not_lost() {
        let mut ledger = posted(4);
        for ep in 1..=3 {
            ledger.ep_connected(ep);
        }
        ledger.ep_drained(1);
        let second = ledger.order[1].1;
        ledger.complete(second, 2).unwrap();
        // EP 3 may be the one that holds the first.
        assert_eq!(ledger.next_lost(), None);
        let first = ledger.order[0].1;
        assert_eq!(ledger.complete(first, 3), Some(tag(100)));
        assert_eq!(ledger.next_lost(), None);
    }

    proptest! {
        /// EPs take in posting order, complete in any order across EPs, sometimes die holding one. No entry is ever
        /// declared lost that was not, no cookie is mixed up, the counts stay within their bounds, and when the
        /// survivors have gone through the whole SRQ once more everything is found.
        #[test]
        fn every_entry_is_accounted_for(steps in proptest::collection::vec((0u8..5, 0usize..4), 1..400)) {
            const DEPTH: u32 = 8;
            let mut ledger = Ledger::new(DEPTH);
            let mut queue: VecDeque<(u32, u64)> = VecDeque::new();
            let mut held: HashMap<u64, (u32, u64)> = HashMap::new();
            let mut live: Vec<u64> = (1..=4).collect();
            let mut swallowed: HashMap<u32, u64> = HashMap::new();
            let mut next_ep = 5;
            let mut cookie = 0;
            for &ep in &live { ledger.ep_connected(ep); }
            for (what, pick) in steps {
                let ep = live[pick % live.len()];
                match what {
                    0 | 1 => {
                        cookie += 1;
                        match ledger.post(tag(cookie)) {
                            Some(entry) => queue.push_back((entry, cookie)),
                            None => prop_assert_eq!(ledger.outstanding(), DEPTH),
                        }
                    }
                    2 => if let std::collections::hash_map::Entry::Vacant(none) = held.entry(ep)
                        && let Some(taken) = queue.pop_front()
                    {
                        none.insert(taken);
                    },
                    3 => if let Some((entry, cookie)) = held.remove(&ep) {
                        prop_assert_eq!(ledger.complete(entry, ep), Some(tag(cookie)));
                        ledger.release(entry);
                    },
                    _ => {
                        if let Some((entry, cookie)) = held.remove(&ep) { swallowed.insert(entry, cookie); }
                        ledger.ep_drained(ep);
                        live.retain(|&l| l != ep);
                        live.push(next_ep);
                        ledger.ep_connected(next_ep);
                        next_ep += 1;
                    }
                }
                while let Some(lost) = ledger.next_lost() {
                    prop_assert_eq!(swallowed.remove(&lost.entry), Some(lost.tag.cookie));
                    ledger.release(lost.entry);
                }
                prop_assert!(ledger.available() <= ledger.outstanding() && ledger.outstanding() <= DEPTH);
            }
            // Everybody finishes; then each live EP takes and completes once more.
            for (ep, (entry, cookie)) in held.drain() {
                prop_assert_eq!(ledger.complete(entry, ep), Some(tag(cookie)));
                ledger.release(entry);
            }
            if swallowed.len() < DEPTH as usize {
                for &ep in &live {
                    while queue.is_empty() {
                        cookie += 1;
                        queue.push_back((ledger.post(tag(cookie)).unwrap(), cookie));
                    }
                    let (entry, cookie) = queue.pop_front().unwrap();
                    prop_assert_eq!(ledger.complete(entry, ep), Some(tag(cookie)));
                    ledger.release(entry);
                    while let Some(lost) = ledger.next_lost() {
                        prop_assert_eq!(swallowed.remove(&lost.entry), Some(lost.tag.cookie));
                        ledger.release(lost.entry);
                    }
                }
                prop_assert!(swallowed.is_empty());
                prop_assert_eq!(ledger.outstanding() as usize, queue.len());
            }
        }
    }
}
