//! The counters of an EP.

use super::EpInner;
use crate::{Counters, Ep, EpCounter, Result};

impl Ep {
    /// Returns the EP's counters. Messages that have arrived and are not reaped are included.
    ///
    /// # Errors
    /// INVALID_HANDLE after the IA was closed.
    pub fn counters(&self) -> Result<Counters<EpCounter>> {
        self.take_counters(&[])
    }

    /// Returns the counters, and resets those in `reset` to 0.
    ///
    /// # Errors
    /// As [`Ep::counters`].
    pub fn take_counters(&self, reset: &[EpCounter]) -> Result<Counters<EpCounter>> {
        self.inner.check()?;
        self.inner.recv_evd.harvest_now()?;
        Ok(self.inner.read_counts(reset))
    }
}

impl EpInner {
    fn read_counts(&self, reset: &[EpCounter]) -> Counters<EpCounter> {
        let posted = self.pair.posted();
        self.control.lock().unwrap().calls.read(&posted, &self.pair.received, reset)
    }
}
