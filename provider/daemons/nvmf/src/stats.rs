//! Counters of hosts. Engines count what each queue does and add it now and then; the page of
//! counters reads them.

use crate::backend::IoOp;
use std::sync::atomic::{AtomicU64, Ordering};

/// The buckets of latencies: bucket `n` has those below 2 to the power of `n` microseconds, the last
/// one all others.
pub const BUCKETS: usize = 26;

/// What a host has done with a subsystem.
#[derive(Debug, Default)]
#[expect(missing_docs, reason = "the names say it")]
pub struct HostStats {
    pub reads: AtomicU64,
    pub writes: AtomicU64,
    /// I/O commands that are neither.
    pub others: AtomicU64,
    pub failed: AtomicU64,
    pub read_bytes: AtomicU64,
    pub written_bytes: AtomicU64,
    /// I/O commands without a response.
    pub in_flight: AtomicU64,
    /// From the capsule's arrival to the response.
    pub latencies: [AtomicU64; BUCKETS],
    /// The sum of all latencies in microseconds.
    pub latency_sum: AtomicU64,
}

/// What one queue has done since `flush` was called. Its thread counts with plain additions.
#[derive(Debug, Default)]
pub struct Tally {
    reads: u64,
    writes: u64,
    others: u64,
    failed: u64,
    read_bytes: u64,
    written_bytes: u64,
    latencies: [u64; BUCKETS],
    latency_sum: u64,
    in_flight: u64,
    /// The `in_flight` that the host's counters have.
    shown: u64,
    is_empty: bool,
}

impl Tally {
    /// An I/O command has begun.
    #[inline]
    pub(crate) fn begin(&mut self) {
        self.in_flight += 1;
        self.is_empty = false;
    }

    /// An I/O command gets no response: its connection has ended.
    pub(crate) fn abandon(&mut self) {
        self.in_flight -= 1;
        self.is_empty = false;
    }

    /// An I/O command gets its response: an operation on so many bytes, or another one.
    #[inline]
    pub(crate) fn end(&mut self, op: Option<(IoOp, u32)>, success: bool, microseconds: u64) {
        self.in_flight -= 1;
        self.is_empty = false;
        self.failed += u64::from(!success);
        match op {
            Some((IoOp::Read, bytes)) => {
                self.reads += 1;
                self.read_bytes += u64::from(bytes);
            }
            Some((IoOp::Write, bytes)) => {
                self.writes += 1;
                self.written_bytes += u64::from(bytes);
            }
            _ => self.others += 1,
        }
        let bucket = (u64::BITS - microseconds.leading_zeros()) as usize;
        self.latencies[bucket.min(BUCKETS - 1)] += 1;
        self.latency_sum += microseconds;
    }

    /// Adds everything to the counters of the host.
    pub(crate) fn flush(&mut self, stats: &HostStats) {
        if self.is_empty {
            return;
        }
        for (counter, count) in [
            (&stats.reads, self.reads),
            (&stats.writes, self.writes),
            (&stats.others, self.others),
            (&stats.failed, self.failed),
            (&stats.read_bytes, self.read_bytes),
            (&stats.written_bytes, self.written_bytes),
            (&stats.latency_sum, self.latency_sum),
            // Atomic additions wrap, so a number that has become smaller is subtracted.
            (&stats.in_flight, self.in_flight.wrapping_sub(self.shown)),
        ]
        .into_iter()
        .chain(stats.latencies.iter().zip(self.latencies))
        {
            counter.fetch_add(count, Ordering::Relaxed);
        }
        let in_flight = self.in_flight;
        *self = Self { in_flight, shown: in_flight, is_empty: true, ..Self::default() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latencies_are_in_their_buckets() {
        let stats = HostStats::default();
        let mut tally = Tally::default();
        for micros in [0, 1, 2, 3, 4, 1023, 1024, u64::MAX >> 1] {
            tally.begin();
            tally.end(Some((IoOp::Read, 512)), true, micros);
        }
        tally.flush(&stats);
        let counts: Vec<_> = stats.latencies.iter().map(|count| count.load(Ordering::Relaxed)).collect();
        assert_eq!(counts[..4], [1, 1, 2, 1]);
        assert_eq!((counts[10], counts[11], counts[BUCKETS - 1]), (1, 1, 1));
        assert_eq!(stats.reads.load(Ordering::Relaxed), 8);
        assert_eq!(stats.in_flight.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn the_tallies_of_several_queues_add_up() {
        let stats = HostStats::default();
        let mut tallies = [Tally::default(), Tally::default()];
        let in_flight = || stats.in_flight.load(Ordering::Relaxed);
        for tally in &mut tallies {
            (0..3).for_each(|_| tally.begin());
            tally.flush(&stats);
        }
        assert_eq!(in_flight(), 6);
        for tally in &mut tallies {
            tally.end(Some((IoOp::Write, 4096)), true, 5);
            tally.end(None, false, 5);
            tally.abandon();
            // Twice: the second time adds nothing.
            tally.flush(&stats);
            tally.flush(&stats);
        }
        assert_eq!(in_flight(), 0);
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        assert_eq!((count(&stats.writes), count(&stats.others), count(&stats.failed)), (2, 2, 2));
        assert_eq!((count(&stats.written_bytes), count(&stats.latency_sum)), (8192, 20));
    }
}
