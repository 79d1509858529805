//! Whether doorbells of drivers that ring them without libmlx5 are left to the sleeps of
//! [`crate::program::waits`].

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// True while threads that ring doorbells sleep in [`crate::program::waits`] soon after, and take
/// them then. The doorbell pages need no watching meanwhile.
static TRUSTED: AtomicBool = AtomicBool::new(true);

/// The helper thread's record of doorbells that no wait took. It decides [`are_trusted`].
pub(crate) struct Trust {
    /// A bit for each of the helper's last eight looks at the doorbell pages: one was rung.
    looks: u8,
    /// Until then the pages are watched in spite of waits.
    until: Option<Instant>,
    /// How long they are watched next time.
    doubt: Duration,
}

impl Trust {
    /// So many of the last eight looks may find a doorbell that is about to be taken by a wait.
    const BY_CHANCE: u32 = 3;
    /// How long the pages are watched in spite of waits: initial value and maximum. The time
    /// doubles up to the maximum.
    const DOUBT: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(10));

    pub(crate) fn new() -> Self {
        TRUSTED.store(true, Ordering::Relaxed);
        Self { looks: 0, until: None, doubt: Self::DOUBT.0 }
    }

    /// The helper looked for doorbells while a thread of the program serves the device.
    pub(crate) fn looked(&mut self, found: bool) {
        let now = Instant::now();
        if !are_trusted() {
            // The pages are watched or polled now, so what is found there means nothing.
            TRUSTED.store(self.until.is_none_or(|until| now >= until), Ordering::Relaxed);
            return;
        }
        self.looks = self.looks << 1 | u8::from(found);
        if self.looks.count_ones() > Self::BY_CHANCE {
            self.looks = 0;
            if self.until.is_some_and(|until| now > until + 10 * self.doubt) {
                self.doubt = Self::DOUBT.0;
            }
            self.until = Some(now + self.doubt);
            self.doubt = (self.doubt * 2).min(Self::DOUBT.1);
            TRUSTED.store(false, Ordering::Relaxed);
        }
    }
}

/// True when the pages of doorbells may be left to waits.
pub(crate) fn are_trusted() -> bool {
    TRUSTED.load(Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_doorbell_now_and_then_is_chance_and_one_after_another_is_not() {
        let mut trust = Trust::new();
        for look in 0..100 {
            trust.looked(look % 3 == 0);
            assert!(are_trusted(), "look {look}");
        }
        for _ in 0..8 {
            trust.looked(true);
        }
        assert!(!are_trusted());
        trust.looked(true);
        assert!(!are_trusted(), "for a while");
        std::thread::sleep(Trust::DOUBT.0);
        trust.looked(true);
        assert!(are_trusted());
    }
}
