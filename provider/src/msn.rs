//! Message sequence numbers of an EP's receives: how many buffers it holds and over what span (R197-R204).
//!
//! An in-order transport takes a buffer when a message starts and completes it before the next, so its count and span
//! are equal. This module does the arithmetic for transports that place messages in any order, too.

use std::collections::BTreeSet;

/// The receives of one EP, by message sequence number, from 1 on.
#[derive(Clone, Debug, Default)]
pub struct Window {
    /// Numbers with a buffer that have not been reported.
    held: BTreeSet<u64>,
    /// Of those, the ones whose message has arrived.
    arrived: BTreeSet<u64>,
    /// The highest number reported; all below it are too.
    reported: u64,
    highest: u64,
}

/// One consistent look at a [`Window`] (R203).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// Buffers that the EP holds.
    pub count: u64,
    /// Highest number with a buffer minus highest number reported.
    pub span: u64,
}

impl Window {
    /// A window after message number `reported` was reported.
    pub fn after(reported: u64) -> Self {
        Self { reported, highest: reported, ..Self::default() }
    }

    /// Message `msn` gets a buffer; false if it had one or was reported already.
    pub fn take(&mut self, msn: u64) -> bool {
        let new = msn > self.reported && self.held.insert(msn);
        if new {
            self.highest = self.highest.max(msn);
        }
        new
    }

    /// Message `msn` is complete; gives the numbers that can be reported now, in order. None is reported before all below
    /// it are (R201).
    pub fn complete(&mut self, msn: u64) -> Vec<u64> {
        if self.held.contains(&msn) {
            self.arrived.insert(msn);
        }
        let mut out = Vec::new();
        while self.arrived.remove(&(self.reported + 1)) {
            self.reported += 1;
            self.held.remove(&self.reported);
            out.push(self.reported);
        }
        out
    }

    /// Count and span.
    pub fn held(&self) -> Held {
        Held { count: self.held.len() as u64, span: self.highest - self.reported }
    }
}
