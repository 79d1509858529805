//! How long a wait polls before it sleeps.
//!
//! To sleep and to be woken took 40 µs on a virtual machine of two cores. Many answers come sooner, so
//! a wait polls for a short time first ([`IaBuilder::poll_time`](crate::IaBuilder::poll_time)).
//! After a wait that polled in vain, the next waits sleep at once: none after the first time, one
//! after the second in a row, then 2, 4, and so on up to [`MOST`]. A program that waits for rare
//! events hardly ever polls.
//!
//! A wait yields the processor between its polls, because a thread on the same processor may have to
//! run before the event comes. If an unrelated thread takes a whole time slice instead, polling costs
//! more than a sleep, because a thread that is woken preempts such a thread. After one such yield,
//! [`MOST`] waits sleep at once.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// The most waits in a row that sleep at once.
const MOST: u32 = 1024;

/// A wait that looks at the clock later than this many poll times after the end of its polling has
/// lost the processor to another program.
const TIME_SLICE: u32 = 8;

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

    /// A wait has stopped polling at `now`; it was allowed to poll until `end`. `found`: its event has
    /// come.
    pub(super) fn ended(&self, found: bool, now: Instant, end: Instant, poll_time: Duration) {
        let next = self.next.load(Ordering::Relaxed);
        let (skip, then) = if now.saturating_duration_since(end) > poll_time.saturating_mul(TIME_SLICE) {
            (MOST, MOST)
        } else if found && now < end {
            (0, 0)
        } else {
            (next, (next * 2).clamp(1, MOST))
        };
        self.skip.store(skip, Ordering::Relaxed);
        self.next.store(then, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLL_TIME: Duration = Duration::from_micros(50);

    /// How many waits sleep at once before the next that polls.
    fn sleeps(patience: &Patience) -> u32 {
        let polls = || patience.begin(Instant::now(), POLL_TIME).is_some();
        (0..).find(|_| polls()).unwrap()
    }

    /// A wait polls, and stops this long after the end of the time to poll.
    fn stop(patience: &Patience, found: bool, late: Duration) {
        let end = Instant::now();
        patience.ended(found, end + late, end, POLL_TIME);
    }

    fn find(patience: &Patience) {
        let now = Instant::now();
        patience.ended(true, now, now + POLL_TIME, POLL_TIME);
    }

    #[test]
    fn waits_in_vain_make_polling_rare_up_to_a_limit() {
        let patience = Patience::default();
        let mut before = Vec::new();
        for _ in 0..14 {
            before.push(sleeps(&patience));
            stop(&patience, false, Duration::ZERO);
        }
        assert_eq!(before, [0, 0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 1024]);
    }

    #[test]
    fn an_event_in_time_makes_the_next_wait_poll() {
        let patience = Patience::default();
        for found in [false, true, false, true, false] {
            sleeps(&patience);
            // An event that comes after the end does not count.
            stop(&patience, found, POLL_TIME);
        }
        assert_eq!(sleeps(&patience), 8);
        find(&patience);
        assert_eq!(sleeps(&patience), 0);
        stop(&patience, false, Duration::ZERO);
        assert_eq!(sleeps(&patience), 0);
    }

    #[test]
    fn a_time_slice_of_another_program_makes_polling_rare_at_once() {
        for found in [false, true] {
            let patience = Patience::default();
            stop(&patience, found, Duration::from_millis(3));
            assert_eq!(sleeps(&patience), MOST);
        }
    }

    #[test]
    fn without_a_time_no_wait_polls() {
        assert_eq!(Patience::default().begin(Instant::now(), Duration::ZERO), None);
    }
}
