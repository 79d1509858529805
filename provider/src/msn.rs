//! Message sequence numbers of an EP's receives: the number of buffers that the EP holds, and their
//! span (R197-R204).
//!
//! An in-order transport takes a buffer when a message starts, and completes the buffer before the
//! next message, so its count and span are equal. This module also covers transports that place
//! messages in any order.

use std::collections::BTreeSet;

/// The receives of one EP by message sequence number; the first number is 1.
#[derive(Clone, Debug, Default)]
pub struct MsnWindow {
    /// Numbers that have a buffer and are not reported.
    held: BTreeSet<u64>,
    /// The numbers in `held` whose message has arrived.
    arrived: BTreeSet<u64>,
    /// The highest number reported. All lower numbers are reported too.
    reported: u64,
    highest: u64,
}

/// A consistent snapshot of a [`MsnWindow`] (R203).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// The number of buffers that the EP holds.
    pub count: u64,
    /// The highest number with a buffer minus the highest number reported.
    pub span: u64,
}

impl MsnWindow {
    /// Creates a window in which all messages up to `reported` are reported.
    pub fn after(reported: u64) -> Self {
        Self { reported, highest: reported, ..Self::default() }
    }

    /// Gives message `msn` a buffer. Returns false if the message has had a buffer.
    pub fn take(&mut self, msn: u64) -> bool {
        let new = msn > self.reported && self.held.insert(msn);
        if new {
            self.highest = self.highest.max(msn);
        }
        new
    }

    /// Completes message `msn`. Returns the numbers that can be reported now, in order. A number is
    /// reported only after all lower numbers (R201).
    pub fn complete(&mut self, msn: u64) -> Vec<u64> {
        if self.held.contains(&msn) {
            self.arrived.insert(msn);
        }
        let mut out = Vec::new();
        while self.arrived.remove(&(self.reported + 1)) {
            self.reported += 1;
            self.held.remove(&self.reported);
            out.push(self.reported);
        }
        out
    }

    /// Returns count and span.
    pub fn held(&self) -> Held {
        Held { count: self.held.len() as u64, span: self.highest - self.reported }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn held(window: &MsnWindow) -> (u64, u64) {
        let held = window.held();
        (held.count, held.span)
    }

    /// The example of the manual page: 18 is complete; parts of 19, 22 and 23 have buffers.
    fn example() -> MsnWindow {
        let mut window = MsnWindow::after(18);
        for msn in [19, 22, 23] {
            assert!(window.take(msn));
        }
        window
    }

    /// The span reaches from the highest number completed to the highest number with a buffer, gaps
    /// included.
    #[test]
    fn r197_recv_query_span_definition() {
        let mut window = MsnWindow::default();
        assert_eq!(held(&window), (0, 0));
        window.take(4);
        assert_eq!(held(&window), (1, 4));
        window.take(1);
        assert_eq!(held(&window), (2, 4));
        assert_eq!(window.complete(1), [1]);
        assert_eq!(held(&window), (1, 3));
        // A message that arrived out of order is not reported, and still counts.
        assert!(window.complete(4).is_empty());
        assert_eq!(held(&window), (1, 3));
    }

    /// Three buffers over a span of five.
    #[test]
    fn r198_recv_query_example_19_22_23() {
        assert_eq!(held(&example()), (3, 5));
    }

    /// 20 and 21 get buffers as well: five over five.
    #[test]
    fn r199_recv_query_example_after_20_21() {
        let mut window = example();
        window.take(20);
        window.take(21);
        assert_eq!(held(&window), (5, 5));
    }

    /// 19 completes first instead: two over four.
    #[test]
    fn r200_recv_query_example_after_19_completes() {
        let mut window = example();
        assert_eq!(window.complete(19), [19]);
        assert_eq!(held(&window), (2, 4));
    }

    /// 22 and 23 are reported only after 20 and 21 have had buffers and are complete.
    #[test]
    fn r201_recv_query_example_no_early_delivery() {
        let mut window = example();
        assert_eq!(window.complete(19), [19]);
        assert!(window.complete(22).is_empty() && window.complete(23).is_empty());
        window.take(20);
        window.take(21);
        assert!(window.complete(21).is_empty());
        assert_eq!(window.complete(20), [20, 21, 22, 23]);
        assert_eq!(held(&window), (0, 0));
    }

    /// A provider may give 20 and 21 buffers as soon as 22 arrives. If a provider takes buffers in
    /// order, its count and span are always equal.
    #[test]
    fn r202_recv_query_eager_allocation_allowed() {
        let mut window = MsnWindow::after(18);
        for msn in 19..=23 {
            window.take(msn);
            assert_eq!(held(&window), (msn - 18, msn - 18));
        }
        for msn in 19..=23 {
            assert_eq!(window.complete(msn), [msn]);
            assert_eq!(held(&window), (23 - msn, 23 - msn));
        }
    }

    /// A number gets one buffer, once.
    #[test]
    fn a_number_takes_one_buffer_only() {
        let mut window = MsnWindow::after(18);
        assert!(window.take(19));
        assert!(!window.take(19));
        window.complete(19);
        assert!(!window.take(19));
        assert!(window.complete(21).is_empty());
        assert_eq!(held(&window), (0, 0));
    }

    proptest! {
        /// In any order of takes and completions, the count never exceeds the span. Every number is
        /// reported once, in order.
        #[test]
        fn r204_recv_query_count_never_exceeds_span(steps in proptest::collection::vec((any::<bool>(), 1u64..24), 0..200)) {
            let mut window = MsnWindow::default();
            let mut next = 1;
            for (take, ahead) in steps {
                let msn = next + ahead - 1;
                if take {
                    window.take(msn);
                } else {
                    for reported in window.complete(msn) {
                        prop_assert_eq!(reported, next);
                        next += 1;
                    }
                }
                let (count, span) = held(&window);
                prop_assert!(count <= span, "{} over {}", count, span);
            }
        }
    }
}
