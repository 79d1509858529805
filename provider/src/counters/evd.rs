//! The counters of an EVD, under the lock of its queue.

use super::{Base, Counters, EvdCounter};

#[derive(Debug, Default)]
pub(crate) struct EvdCounts {
    /// Dequeues that found a completion in the CQ. Those that took the event straight off a CQ are
    /// counted there, and added before the counters are read.
    pub(crate) polled: u64,
    /// Dequeues that found nothing.
    pub(crate) not_found: u64,
    /// Dequeues that found an event in the queue.
    pub(crate) found: u64,
    pub(crate) waits: u64,
    /// Completions that waits took straight off a CQ, where they were counted.
    pub(crate) not_dequeued: u64,
    pub(crate) blocked: u64,
    pub(crate) notify: u64,
    pub(crate) connection: u64,
    pub(crate) completion: u64,
    base: Base<EvdCounter>,
}

impl EvdCounts {
    /// Counts a finished dequeue: whether it found an event, and whether the queue was empty
    /// before.
    #[inline]
    pub(crate) fn dequeued(&mut self, found: bool, was_empty: bool) {
        if !found {
            self.not_found += 1;
        } else if was_empty {
            self.polled += 1;
        } else {
            self.found += 1;
        }
    }

    /// `cq`: whether the EVD has a CQ. Every dequeue that finds the queue empty polls the CQ.
    pub(crate) fn read(&mut self, cq: bool, reset: &[EvdCounter]) -> Counters<EvdCounter> {
        use EvdCounter as C;
        let mut totals = Counters::zero();
        for (counter, value) in [
            (C::Wait, self.waits),
            (C::WaitBlocked, self.blocked),
            (C::WaitNotify, self.notify),
            (C::Dequeue, self.found + self.polled + self.not_found),
            (C::DequeueFound, self.found),
            (C::DequeueNotFound, self.not_found),
            (C::DequeuePoll, if cq { self.polled + self.not_found } else { 0 }),
            (C::DequeuePollFound, self.polled),
            (C::ConnCallback, self.connection),
            (C::DtoCallback, self.completion),
        ] {
            totals.set(counter, value);
        }
        self.base.read(totals, reset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Counter;

    #[test]
    fn every_dequeue_is_one_of_three() {
        let mut counts = EvdCounts::default();
        counts.dequeued(true, false);
        counts.dequeued(true, true);
        counts.dequeued(false, true);
        counts.dequeued(true, true);
        counts.dequeued(true, false);
        let read = |counts: &mut EvdCounts, cq| {
            let now = counts.read(cq, &[]);
            EvdCounter::ALL[3..8].iter().map(|&counter| now[counter]).collect::<Vec<_>>()
        };
        assert_eq!(read(&mut counts, true), [5, 2, 1, 3, 2]);
        assert_eq!(read(&mut counts, false)[3], 0);
    }
}
