//! What an IA counts: what happens once per call or event of a connection, never where data passes.

use super::port::{PortCounters, Samples};
use super::{Base, Counter, Counters, IaCounter};
use crate::sync::{Mutex, rank};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

#[derive(Debug)]
pub(crate) struct IaCounts {
    counts: Box<[AtomicU64]>,
    read: Mutex<{ rank::TABLE }, Read>,
}

#[derive(Debug)]
struct Read {
    base: Base<IaCounter>,
    samples: Samples,
}

impl IaCounts {
    /// `device` is its folder in sysfs.
    pub(crate) fn new(device: std::path::PathBuf, port: u8) -> Self {
        Self {
            counts: IaCounter::ALL.iter().map(|_| AtomicU64::new(0)).collect(),
            read: Mutex::new(Read { base: Base::default(), samples: Samples::new(device, port) }),
        }
    }

    /// Back to 0, before anybody looks.
    pub(crate) fn clear(&self) {
        self.counts.iter().for_each(|count| count.store(0, Relaxed));
    }

    /// One more.
    pub(crate) fn count(&self, counter: IaCounter) {
        self.counts[counter.index()].fetch_add(1, Relaxed);
    }

    /// Everything that was counted since the IA was opened.
    pub(crate) fn totals(&self) -> Counters<IaCounter> {
        let mut totals = Counters::zero();
        for (&counter, count) in IaCounter::ALL.iter().zip(&self.counts) {
            totals.set(counter, count.load(Relaxed));
        }
        totals
    }

    /// These totals, with the counters of the port, as they count since the last reset; those of
    /// `reset` count from now on.
    pub(crate) fn read(&self, mut totals: Counters<IaCounter>, reset: &[IaCounter]) -> Counters<IaCounter> {
        let mut read = self.read.lock().unwrap();
        for (counter, value) in read.samples.read() {
            totals.set(counter, value);
        }
        read.base.read(totals, reset)
    }

    /// Starts a group of counters of the port at 0.
    pub(crate) fn start(&self, group: PortCounters) {
        let mut read = self.read.lock().unwrap();
        read.samples.start(group);
        read.base.forget(group.counters());
    }

    /// Stops a group; its counters keep what they say.
    pub(crate) fn stop(&self, group: PortCounters) {
        self.read.lock().unwrap().samples.stop(group);
    }
}
