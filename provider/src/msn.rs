//! Message sequence numbers of an EP's receives: how many buffers it holds and over what span (R197-R204).
//!
//! An in-order transport takes a buffer when a message starts and completes it before the next, so its count and span
//! are equal. This module does the arithmetic for transports that place messages in any order, too.

use std::collections::BTreeSet;

/// The receives of one EP, by message sequence number, from 1 on.
#[derive(Clone, Debug, Default)]
pub struct Window {
    /// Numbers with a buffer that have not been reported.
    held: BTreeSet<u64>,
    /// Of those, the ones whose message has arrived.
    arrived: BTreeSet<u64>,
    /// The highest number reported; all below it are too.
    reported: u64,
    highest: u64,
}

/// One consistent look at a [`Window`] (R203).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// Buffers that the EP holds.
    pub count: u64,
    /// Highest number with a buffer minus highest number reported.
    pub span: u64,
}

impl Window {
    /// A window after message number `reported` was reported.
    pub fn after(reported: u64) -> Self {
        Self { reported, highest: reported, ..Self::default() }
    }

    /// Message `msn` gets a buffer; false if it had one or was reported already.
    pub fn take(&mut self, msn: u64) -> bool {
        let new = msn > self.reported && self.held.insert(msn);
        if new {
            self.highest = self.highest.max(msn);
        }
        new
    }

    /// Message `msn` is complete; gives the numbers that can be reported now, in order. None is reported before all below
    /// it are (R201).
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

    /// Count and span.
    pub fn held(&self) -> Held {
        Held { count: self.held.len() as u64, span: self.highest - self.reported }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn held(window: &Window) -> (u64, u64) {
        let held = window.held();
        (held.count, held.span)
    }

    /// The page's example: 18 is complete, parts of 19, 22 and 23 have buffers.
    fn example() -> Window {
        let mut window = Window::after(18);
        for msn in [19, 22, 23] {
            assert!(window.take(msn));
        }
        window
    }

    /// The span runs from the highest number completed to the highest with a buffer, gaps included.
    #[test]
    fn r197_recv_query_span_definition() {
        let mut window = Window::default();
        assert_eq!(held(&window), (0, 0));
        window.take(4);
        assert_eq!(held(&window), (1, 4));
        window.take(1);
        assert_eq!(held(&window), (2, 4));
        assert_eq!(window.complete(1), [1]);
        assert_eq!(held(&window), (1, 3));
        // What has arrived out of order is neither reported nor out of the count.
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

    /// A provider may give 20 and 21 buffers as soon as 22 shows up; one that takes buffers in order has count and span
    /// equal throughout.
    #[test]
    fn r202_recv_query_eager_allocation_allowed() {
        let mut window = Window::after(18);
        for msn in 19..=23 {
            window.take(msn);
            assert_eq!(held(&window), (msn - 18, msn - 18));
        }
        for msn in 19..=23 {
            assert_eq!(window.complete(msn), [msn]);
            assert_eq!(held(&window), (23 - msn, 23 - msn));
        }
    }

    /// A number has one buffer, once.
    #[test]
    fn a_number_takes_one_buffer_only() {
        let mut window = Window::after(18);
        assert!(window.take(19));
        assert!(!window.take(19));
        window.complete(19);
        assert!(!window.take(19));
        assert!(window.complete(21).is_empty());
        assert_eq!(held(&window), (0, 0));
    }

    proptest! {
        /// The count is never over the span, whatever takes and completes, and what is reported is every number
        /// once, in order.
        #[test]
        fn r204_recv_query_count_never_exceeds_span(steps in proptest::collection::vec((any::<bool>(), 1u64..24), 0..200)) {
            let mut window = Window::default();
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
