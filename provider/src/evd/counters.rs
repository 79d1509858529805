//! The counters of an EVD.

use crate::{Counters, Evd, EvdCounter, Result};

impl Evd {
    /// What has happened on it.
    ///
    /// # Errors
    /// INVALID_HANDLE after it was freed.
    pub fn counters(&self) -> Result<Counters<EvdCounter>> {
        self.take_counters(&[])
    }

    /// The same, and these counters start at 0 again.
    ///
    /// # Errors
    /// As [`Evd::counters`].
    pub fn take_counters(&self, reset: &[EvdCounter]) -> Result<Counters<EvdCounter>> {
        self.inner.check()?;
        Ok(self.inner.read_counts(reset))
    }
}
