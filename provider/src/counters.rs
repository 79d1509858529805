//! Counters of IAs, EPs and EVDs: what has happened, by kind.
//!
//! They are always on. Whatever is counted where data passes is counted under a lock that is held there anyway, so by one
//! thread at a time: a plain addition, next to data that the same code has just used. Numbers that follow from others are not
//! counted at all: how many objects were freed, for example, follows from how many were made and how many there are.
//!
//! Nobody ever sets a count back. A reset remembers where it stood ([`Base`]), so that none that comes meanwhile gets lost.
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
    /// All of them, in the order of the headers.
    const ALL: &'static [Self];

    /// Its place in [`Counter::ALL`], and its number in the headers.
    fn index(self) -> usize;

    /// Its name in the headers, as in `DCNT_EP_POST_SEND`.
    fn name(self) -> &'static str;
}

/// What the counters of an object said at one moment; indexed by counter.
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

/// Those that are not 0.
impl<C: Counter> std::fmt::Debug for Counters<C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_map().entries(self.iter().filter(|(_, n)| *n != 0).map(|(c, n)| (c.name(), n))).finish()
    }
}

/// Where counters stood when they were reset last; nothing before the first reset.
#[derive(Debug)]
pub(crate) struct Base<C: Counter>(Option<Counters<C>>);

impl<C: Counter> Default for Base<C> {
    fn default() -> Self {
        Self(None)
    }
}

impl<C: Counter> Base<C> {
    /// These totals as they count since the last reset; those of `reset` count from now on.
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

    /// These totals begin at 0 by themselves.
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
    fn a_reset_counter_counts_from_there_and_the_others_go_on() {
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
