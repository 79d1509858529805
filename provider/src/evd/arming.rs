//! For which completions the CQs of an EVD are armed, and why.

use crate::types::Numbers;
use rxe_fallback::Context;
use std::collections::TryReserveError;

/// The completions for which a CQ is armed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Armed {
    #[default]
    Nothing,
    /// Failed or solicited completions.
    Failures,
    All,
}

impl Armed {
    /// The completions for which a consumer's wait or a CNO arms the CQ.
    pub(crate) fn to_notify(solicited: bool) -> Self {
        if solicited { Self::Failures } else { Self::All }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Alert {
    /// The completions that raise the next event. Every CQ of the EVD is armed for at least these.
    pub(crate) armed: Armed,
    /// How many events the channel holds or will get without another arming: one for each CQ that
    /// was armed since its last event. A CQ that was armed again just when it raised an event may
    /// raise a second one, which is not counted: it ends the next sleep in vain.
    expected: usize,
    /// The progress thread watches the channel.
    pub(crate) watched: bool,
    /// An EP is connected whose failures only its completions on this EVD report.
    pub(crate) failures: bool,
    /// `Timer::Rearm` is set.
    pub(crate) scheduled: bool,
    /// QP numbers of EPs whose next receive exceeds a high watermark.
    pub(crate) marked: Numbers<u32>,
    /// A failed request raises a solicited event, as the verbs specification requires.
    pub(crate) failures_are_solicited: bool,
}

impl Alert {
    pub(crate) fn new(device: &Context) -> Self {
        Self { failures_are_solicited: device.driver() != "rdma_rxe", ..Self::default() }
    }

    /// Records that all CQs have to be armed again.
    pub(crate) fn disarmed(&mut self) {
        self.armed = Armed::Nothing;
    }

    /// Whether the channel is expected to hold an event now or later. To read it in vain costs a
    /// system call.
    pub(crate) fn expects_event(&self) -> bool {
        self.expected > 0
    }

    /// Records that an event was read.
    pub(crate) fn event_read(&mut self) {
        self.disarmed();
        self.expected = self.expected.saturating_sub(1);
    }

    /// Records that all of the EVD's CQs, of which there are so many, were armed.
    pub(super) fn cqs_armed(&mut self, cqs: usize) {
        self.expected = cqs;
    }

    pub(crate) fn expect_failures(&mut self) {
        self.failures = true;
    }

    /// Reserves memory for the marks of `eps` EPs.
    pub(crate) fn reserve(&mut self, eps: usize) -> Result<(), TryReserveError> {
        self.marked.try_reserve(eps.saturating_sub(self.marked.len()))
    }

    /// Records whether the next receive of the EP with this QP exceeds one of its high watermarks.
    pub(crate) fn mark(&mut self, qpn: u32, on: bool) {
        if on {
            self.marked.insert(qpn);
        } else {
            self.marked.remove(&qpn);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The marks of as many EPs as the table was told of need no memory.
    #[test]
    fn marks_have_the_memory_that_was_reserved() {
        let mut alert = Alert::default();
        alert.reserve(1).unwrap();
        for eps in [1, 40, 41, 500] {
            alert.reserve(eps).unwrap();
            let room = alert.marked.capacity();
            assert!(room >= eps);
            for qpn in 0..eps as u32 {
                alert.mark(qpn, true);
            }
            assert_eq!((alert.marked.len(), alert.marked.capacity()), (eps, room));
        }
        // As many as there are marks already.
        let room = alert.marked.capacity();
        for eps in [0, 500] {
            alert.reserve(eps).unwrap();
            assert_eq!(alert.marked.capacity(), room);
        }
    }

    #[test]
    fn each_armed_cq_is_expected_to_raise_one_event() {
        let mut alert = Alert::default();
        assert!(!alert.expects_event());
        // Armed again before the event: a CQ that is armed stays armed.
        for _ in 0..3 {
            alert.cqs_armed(2);
        }
        for _ in 0..2 {
            assert!(alert.expects_event());
            alert.event_read();
        }
        assert!(!alert.expects_event());
        // An event that nobody expected.
        alert.event_read();
        assert!(!alert.expects_event());
    }
}
