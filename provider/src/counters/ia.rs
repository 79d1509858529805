//! The counters of an IA. They count calls and connection events, never operations of the data
//! path.

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
    /// `device` is the device's folder in sysfs.
    pub(crate) fn new(device: std::path::PathBuf, port: u8) -> Self {
        Self {
            counts: IaCounter::ALL.iter().map(|_| AtomicU64::new(0)).collect(),
            read: Mutex::new(Read { base: Base::default(), samples: Samples::new(device, port) }),
        }
    }

    /// Sets the counters to 0. Call before any thread reads them.
    pub(crate) fn clear(&self) {
        self.counts.iter().for_each(|count| count.store(0, Relaxed));
    }

    /// Adds one.
    pub(crate) fn count(&self, counter: IaCounter) {
        self.counts[counter.index()].fetch_add(1, Relaxed);
    }

    /// The counts since the IA was opened.
    pub(crate) fn totals(&self) -> Counters<IaCounter> {
        let mut totals = Counters::zero();
        for (&counter, count) in IaCounter::ALL.iter().zip(&self.counts) {
            totals.set(counter, count.load(Relaxed));
        }
        totals
    }

    /// These totals and the counters of the port, since the last reset. Resets the counters in
    /// `reset`.
    pub(crate) fn read(&self, mut totals: Counters<IaCounter>, reset: &[IaCounter]) -> Counters<IaCounter> {
        let mut read = self.read.lock().unwrap();
        for (counter, value) in read.samples.read() {
            totals.set(counter, value);
        }
        read.base.read(totals, reset)
    }

    /// Starts a group of port counters at 0.
    pub(crate) fn start(&self, group: PortCounters) {
        let mut read = self.read.lock().unwrap();
        read.samples.start(group);
        read.base.forget(group.counters());
    }

    /// Stops a group. Its counters keep their values.
    pub(crate) fn stop(&self, group: PortCounters) {
        self.read.lock().unwrap().samples.stop(group);
    }
}
