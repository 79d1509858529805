//! A lock-free queue of numbers for any number of threads. All its memory is allocated when it is
//! created, and that allocation may fail.
//!
//! The slots form a ring. The stamp of a slot says which operation may use the slot: `n` if push
//! number `n` may write it, `n + 1` if pop number `n` may read it. A push or pop takes its number
//! by a compare-exchange. It then owns the slot, and passes the slot on by writing the stamp.

use crate::memory::table;
use std::collections::TryReserveError;
use std::sync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};

#[derive(Debug)]
struct Slot {
    stamp: AtomicU64,
    value: AtomicU64,
}

/// The queue; see the module.
#[derive(Debug)]
pub(crate) struct BoundedQueue {
    /// The number of slots is a power of two.
    slots: Box<[Slot]>,
    pushes: AtomicU64,
    pops: AtomicU64,
}

impl BoundedQueue {
    /// Creates a queue with room for at least `most` numbers.
    pub(crate) fn new(most: usize) -> Result<Self, TryReserveError> {
        let slot = |n| Slot { stamp: AtomicU64::new(n as u64), value: AtomicU64::new(0) };
        let slots = table(most.max(1).next_power_of_two(), slot)?;
        Ok(Self { slots, pushes: AtomicU64::new(0), pops: AtomicU64::new(0) })
    }

    fn slot(&self, number: u64) -> &Slot {
        &self.slots[number as usize & (self.slots.len() - 1)]
    }

    /// Adds a number at the end. Returns the number if the queue is full.
    pub(crate) fn push(&self, value: u64) -> Result<(), u64> {
        let mut number = self.pushes.load(Relaxed);
        loop {
            let slot = self.slot(number);
            let stamp = slot.stamp.load(Acquire);
            if stamp == number {
                match self.pushes.compare_exchange_weak(number, number + 1, Relaxed, Relaxed) {
                    Ok(_) => {
                        slot.value.store(value, Relaxed);
                        slot.stamp.store(number + 1, Release);
                        return Ok(());
                    }
                    Err(now) => number = now,
                }
            } else if stamp < number {
                return Err(value);
            } else {
                number = self.pushes.load(Relaxed);
            }
        }
    }

    /// The length of the queue; exact only while no thread pushes or pops.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        let pops = self.pops.load(Relaxed);
        self.pushes.load(Relaxed).saturating_sub(pops) as usize
    }

    /// Takes the oldest number.
    pub(crate) fn pop(&self) -> Option<u64> {
        let mut number = self.pops.load(Relaxed);
        loop {
            let slot = self.slot(number);
            let stamp = slot.stamp.load(Acquire);
            if stamp == number + 1 {
                match self.pops.compare_exchange_weak(number, number + 1, Relaxed, Relaxed) {
                    Ok(_) => {
                        let value = slot.value.load(Relaxed);
                        slot.stamp.store(number + self.slots.len() as u64, Release);
                        return Some(value);
                    }
                    Err(now) => number = now,
                }
            } else if stamp <= number {
                return None;
            } else {
                number = self.pops.load(Relaxed);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_their_order_and_a_full_queue_refuses() {
        let queue = BoundedQueue::new(3).unwrap();
        for lap in 0..5 {
            assert_eq!(queue.pop(), None);
            for n in 0..4 {
                assert_eq!(queue.push(lap * 10 + n), Ok(()));
                assert_eq!(queue.len() as u64, n + 1);
            }
            assert_eq!(queue.push(99), Err(99));
            for n in 0..4 {
                assert_eq!(queue.pop(), Some(lap * 10 + n));
            }
        }
    }

    #[test]
    fn every_number_comes_out_once_whichever_threads_push_and_pop() {
        const EACH: u64 = 20_000;
        let queue = BoundedQueue::new(8).unwrap();
        let seen: Vec<AtomicU64> = (0..4 * EACH).map(|_| AtomicU64::new(0)).collect();
        let left = AtomicU64::new(4 * EACH);
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let queue = &queue;
                scope.spawn(move || {
                    for n in 0..EACH {
                        while queue.push(thread * EACH + n).is_err() {
                            std::thread::yield_now();
                        }
                    }
                });
            }
            for _ in 0..2 {
                scope.spawn(|| {
                    while left.load(Relaxed) > 0 {
                        match queue.pop() {
                            Some(n) => {
                                seen[n as usize].fetch_add(1, Relaxed);
                                left.fetch_sub(1, Relaxed);
                            }
                            None => std::thread::yield_now(),
                        }
                    }
                });
            }
        });
        assert!(seen.iter().all(|times| times.load(Relaxed) == 1));
        assert_eq!(queue.pop(), None);
    }
}
