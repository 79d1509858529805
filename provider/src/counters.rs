//! Counters of IAs, EPs and EVDs.
//!
//! Counting is always on. On the data path, a counter is updated under a lock that is held there
//! anyway. Only one thread at a time updates it, so the update is a plain addition, to memory that
//! the same code has just used. A number that follows from other numbers is not counted. For
//! example, the number of freed objects follows from the numbers of created and existing objects.
//!
//! Counters are never set back. A reset stores the present values ([`Base`]), so that an increment
//! during the reset is not lost.
//!
//! # References
//! dat_ib_extensions.h: `dat_ia_counters`, `dat_ep_counters`, `dat_evd_counters`.

mod ep;
mod evd;
mod ia;
mod names;
mod port;

pub(crate) use ep::{Calls, Posted, Received, ReceivedAs};
pub(crate) use evd::EvdCounts;
pub(crate) use ia::IaCounts;
pub use names::{EpCounter, EvdCounter, IaCounter};
pub use port::PortCounters;

use std::marker::PhantomData;
use std::ops::Index;

mod sealed {
    pub trait Sealed {}
}

/// The counters of one kind of object: [`IaCounter`], [`EpCounter`] or [`EvdCounter`].
pub trait Counter: sealed::Sealed + Copy + 'static {
    /// All counters, in the order of the headers.
    const ALL: &'static [Self];

    /// The counter's index in [`Counter::ALL`], which is also its number in the headers.
    fn index(self) -> usize;

    /// The counter's name in the headers, for example `DCNT_EP_POST_SEND`.
    fn name(self) -> &'static str;
}

/// A snapshot of the counters of an object, indexed by counter.
#[derive(Clone, PartialEq, Eq)]
pub struct Counters<C> {
    values: Box<[u64]>,
    kind: PhantomData<C>,
}

impl<C: Counter> Counters<C> {
    pub(crate) fn zero() -> Self {
        Self { values: vec![0; C::ALL.len()].into(), kind: PhantomData }
    }

    pub(crate) fn set(&mut self, counter: C, value: u64) {
        self.values[counter.index()] = value;
    }

    /// Each counter with its value, in the order of the headers.
    pub fn iter(&self) -> impl Iterator<Item = (C, u64)> + '_ {
        C::ALL.iter().copied().zip(self.values.iter().copied())
    }

    /// The values, in the order of the headers.
    pub fn values(&self) -> &[u64] {
        &self.values
    }
}

impl<C: Counter> Index<C> for Counters<C> {
    type Output = u64;

    fn index(&self, counter: C) -> &u64 {
        &self.values[counter.index()]
    }
}

/// Shows the counters that are not 0.
impl<C: Counter> std::fmt::Debug for Counters<C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_map().entries(self.iter().filter(|(_, n)| *n != 0).map(|(c, n)| (c.name(), n))).finish()
    }
}

/// The values of counters at their last reset; empty before the first reset.
#[derive(Debug)]
pub(crate) struct Base<C: Counter>(Option<Counters<C>>);

impl<C: Counter> Default for Base<C> {
    fn default() -> Self {
        Self(None)
    }
}

impl<C: Counter> Base<C> {
    /// Returns these totals less the values at the last reset, then resets the counters in `reset`.
    pub(crate) fn read(&mut self, totals: Counters<C>, reset: &[C]) -> Counters<C> {
        let mut since = totals.clone();
        if let Some(base) = &self.0 {
            for (value, base) in since.values.iter_mut().zip(&base.values) {
                *value = value.saturating_sub(*base);
            }
        }
        for &counter in reset {
            self.0.get_or_insert_with(Counters::zero).set(counter, totals[counter]);
        }
        since
    }

    /// Drops the stored values of counters whose totals start at 0 again.
    pub(crate) fn forget(&mut self, counters: impl Iterator<Item = C>) {
        if let Some(base) = &mut self.0 {
            counters.for_each(|counter| base.set(counter, 0));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn totals(found: u64, waits: u64) -> Counters<EvdCounter> {
        let mut totals = Counters::zero();
        totals.set(EvdCounter::DequeueFound, found);
        totals.set(EvdCounter::Wait, waits);
        totals
    }

    #[test]
    fn a_reset_affects_one_counter() {
        let mut base = Base::default();
        assert_eq!(base.read(totals(5, 7), &[]), totals(5, 7));
        assert_eq!(base.read(totals(5, 7), &[EvdCounter::Wait]), totals(5, 7));
        assert_eq!(base.read(totals(6, 9), &[]), totals(6, 2));
        assert_eq!(base.read(totals(6, 9), EvdCounter::ALL), totals(6, 2));
        assert_eq!(base.read(totals(6, 9), &[]), Counters::zero());
        assert_eq!(base.read(totals(8, 9), &[])[EvdCounter::DequeueFound], 2);
    }

    #[test]
    fn counters_have_their_places() {
        fn check<C: Counter + PartialEq + std::fmt::Debug>(prefix: &str, count: usize) {
            assert_eq!(C::ALL.len(), count);
            for (place, counter) in C::ALL.iter().enumerate() {
                assert_eq!(counter.index(), place, "{counter:?}");
                assert!(counter.name().starts_with(prefix), "{counter:?}");
            }
        }
        check::<IaCounter>("DCNT_IA_", 85);
        check::<EpCounter>("DCNT_EP_", 24);
        check::<EvdCounter>("DCNT_EVD_", 10);
    }
}
