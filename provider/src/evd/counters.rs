//! The counters of an EVD.

use crate::{Counters, Evd, EvdCounter, Result};

impl Evd {
    /// Returns the EVD's counters.
    ///
    /// # Errors
    /// INVALID_HANDLE after the EVD was freed.
    pub fn counters(&self) -> Result<Counters<EvdCounter>> {
        self.take_counters(&[])
    }

    /// Returns the counters, and resets those in `reset` to 0.
    ///
    /// # Errors
    /// As [`Evd::counters`].
    pub fn take_counters(&self, reset: &[EvdCounter]) -> Result<Counters<EvdCounter>> {
        self.inner.check()?;
        Ok(self.inner.read_counts(reset))
    }
}
