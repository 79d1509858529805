//! How long a wait polls before it sleeps.
//!
//! To sleep and to be woken took 40 µs on a virtual machine of two cores. Many answers come sooner, so
//! a wait polls for a short time first ([`IaSettings::poll_time`](crate::IaSettings::poll_time)).
//! After a wait that polled in vain, the next waits sleep at once: none after the first time, one
//! after the second in a row, then 2, 4, and so on up to [`MOST`]. A program that waits for rare
//! events hardly ever polls.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// The most waits in a row that sleep at once.
const MOST: u32 = 1024;

/// What the waits of an EVD have learned. Only the EVD's waiter uses it.
#[derive(Debug, Default)]
pub(super) struct Patience {
    /// The number of next waits that sleep at once.
    skip: AtomicU32,
    /// What `skip` becomes when the next wait that polls does so in vain.
    next: AtomicU32,
}

impl Patience {
    /// Until when a wait that begins at `now` may poll. `None`: it sleeps at once.
    pub(super) fn begin(&self, now: Instant, poll_time: Duration) -> Option<Instant> {
        if poll_time.is_zero() {
            return None;
        }
        let skip = self.skip.load(Ordering::Relaxed);
        if skip > 0 {
            self.skip.store(skip - 1, Ordering::Relaxed);
            return None;
        }
        now.checked_add(poll_time)
    }

    /// A wait has stopped polling. `useful`: its event came in time.
    pub(super) fn ended(&self, useful: bool) {
        let next = if useful { 0 } else { self.next.load(Ordering::Relaxed) };
        self.skip.store(next, Ordering::Relaxed);
        let then = if useful { 0 } else { (next * 2).clamp(1, MOST) };
        self.next.store(then, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many waits sleep at once before the next that polls.
    fn sleeps(patience: &Patience) -> u32 {
        let polls = || patience.begin(Instant::now(), Duration::from_micros(50)).is_some();
        (0..).find(|_| polls()).unwrap()
    }

    #[test]
    fn waits_in_vain_make_polling_rare_up_to_a_limit() {
        let patience = Patience::default();
        let mut before = Vec::new();
        for _ in 0..14 {
            before.push(sleeps(&patience));
            patience.ended(false);
        }
        assert_eq!(before, [0, 0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 1024]);
    }

    #[test]
    fn an_event_in_time_makes_the_next_wait_poll() {
        let patience = Patience::default();
        for _ in 0..5 {
            sleeps(&patience);
            patience.ended(false);
        }
        assert_eq!(sleeps(&patience), 8);
        patience.ended(true);
        assert_eq!(sleeps(&patience), 0);
        patience.ended(false);
        assert_eq!(sleeps(&patience), 0);
    }

    #[test]
    fn without_a_time_no_wait_polls() {
        assert_eq!(Patience::default().begin(Instant::now(), Duration::ZERO), None);
    }
}
