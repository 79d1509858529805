//! Posting on one thread, polling on another.
//!
//! [`Srq::split`] leaves posting with the [`SrqPoster`] and gives the polling thread a
//! [`SlotReturner`]. Completed slots go back through a lock-free queue with one producer and one
//! consumer. The queue has room for every slot, so returning a slot never waits. If a faulty device
//! completes a slot twice, the poster notices when it takes the slot back.

use std::{
    collections::TryReserveError,
    ops::{Deref, DerefMut},
    sync::{
        Arc,
        atomic::{
            AtomicU16, AtomicU32,
            Ordering::{Acquire, Relaxed, Release},
        },
    },
};

use crossbeam_utils::CachePadded;

use crate::{queue_mem::Cookies, srq::Srq, table::table, wqe::WqeIndex};

/// The queue between the two threads. The poller writes `returned`, the poster writes `taken`.
#[derive(Debug)]
struct Shared {
    slots: Box<[AtomicU16]>,
    returned: CachePadded<AtomicU32>,
    taken: CachePadded<AtomicU32>,
}

/// Why a slot could not be returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReturnError {
    /// The slot is not in the SRQ's ring.
    #[error("slot {} is outside the ring", .0.0)]
    OutsideRing(WqeIndex),
    /// More slots are in the queue between the threads than the SRQ has: a slot was completed twice.
    #[error("more slots returned than the ring has: slot {} was completed twice", .0.0)]
    TooMany(WqeIndex),
}

/// The posting half. Dereferences to [`Srq`] for everything that posts.
#[derive(Debug)]
pub struct SrqPoster<M> {
    srq: Srq<M>,
    shared: Arc<Shared>,
    refused: u64,
}

/// The returning half, for the thread that polls.
#[derive(Debug)]
pub struct SlotReturner {
    cookies: Cookies,
    shared: Arc<Shared>,
    /// The poller's own copy of `returned`, and the position up to which the queue is known to be
    /// free.
    next: u32,
    room_until: u32,
}

impl<M> Srq<M> {
    /// Splits into a posting half and a returning half, for two threads.
    ///
    /// # Errors
    ///
    /// There is no memory for the queue between the threads, two bytes per slot. The SRQ is dropped
    /// then.
    pub fn split(self) -> Result<(SrqPoster<M>, SlotReturner), TryReserveError> {
        let cookies = self.cookies().clone();
        let shared = Arc::new(Shared {
            slots: table(cookies.len(), |_| AtomicU16::new(0))?,
            returned: CachePadded::default(),
            taken: CachePadded::default(),
        });
        let room_until = cookies.len() as u32;
        let poster = SrqPoster { srq: self, shared: Arc::clone(&shared), refused: 0 };
        Ok((poster, SlotReturner { cookies, shared, next: 0, room_until }))
    }
}

impl<M> SrqPoster<M> {
    /// Takes back every slot that was returned so far; returns how many can be posted again. Call
    /// this before a batch, or when the SRQ is full. O(slots returned).
    pub fn reclaim(&mut self) -> u32 {
        let from = self.shared.taken.load(Relaxed);
        let until = self.shared.returned.load(Acquire);
        let mask = self.shared.slots.len() as u32 - 1;
        let mut reclaimed = 0;
        for n in 0..until.wrapping_sub(from) {
            let at = (from.wrapping_add(n) & mask) as usize;
            match self.srq.complete(WqeIndex(self.shared.slots[at].load(Relaxed))) {
                Ok(_) => reclaimed += 1,
                Err(_) => self.refused += 1,
            }
        }
        self.shared.taken.store(until, Release);
        reclaimed
    }

    /// Slots that came back without being in use. Only a faulty device, or a poller that returns a
    /// slot twice, makes this more than 0.
    pub fn refused(&self) -> u64 {
        self.refused
    }
}

impl<M> Deref for SrqPoster<M> {
    type Target = Srq<M>;

    fn deref(&self) -> &Srq<M> {
        &self.srq
    }
}

impl<M> DerefMut for SrqPoster<M> {
    fn deref_mut(&mut self) -> &mut Srq<M> {
        &mut self.srq
    }
}

impl SlotReturner {
    /// Passes a completed slot to the poster and returns its cookie. Never waits.
    ///
    /// # Errors
    ///
    /// [`ReturnError`] for a slot that cannot be in use; nothing is passed on.
    #[inline]
    pub fn complete(&mut self, slot: WqeIndex) -> Result<u64, ReturnError> {
        let cookie = self.cookies.get(slot.0 as usize).ok_or(ReturnError::OutsideRing(slot))?.load(Relaxed);
        if self.next == self.room_until {
            self.room_until = self.shared.taken.load(Acquire).wrapping_add(self.shared.slots.len() as u32);
            if self.next == self.room_until {
                return Err(ReturnError::TooMany(slot));
            }
        }
        let mask = self.shared.slots.len() - 1;
        self.shared.slots[self.next as usize & mask].store(slot.0, Relaxed);
        self.next = self.next.wrapping_add(1);
        self.shared.returned.store(self.next, Release);
        Ok(cookie)
    }
}
