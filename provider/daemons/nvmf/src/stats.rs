//! Counters of hosts. Engines write them, the page of counters reads them.

use crate::backend::IoOp;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

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

impl HostStats {
    /// An I/O command has begun.
    pub(crate) fn begin(&self) {
        self.in_flight.fetch_add(1, Ordering::Relaxed);
    }

    /// An I/O command gets no response: its connection has ended.
    pub(crate) fn abandon(&self) {
        self.in_flight.fetch_sub(1, Ordering::Relaxed);
    }

    /// An I/O command gets its response.
    pub(crate) fn end(&self, op: Option<IoOp>, bytes: u32, success: bool, took: Duration) {
        let add = |counter: &AtomicU64, n: u64| {
            counter.fetch_add(n, Ordering::Relaxed);
        };
        self.in_flight.fetch_sub(1, Ordering::Relaxed);
        if !success {
            add(&self.failed, 1);
        }
        match op {
            Some(IoOp::Read) => {
                add(&self.reads, 1);
                add(&self.read_bytes, bytes.into());
            }
            Some(IoOp::Write) => {
                add(&self.writes, 1);
                add(&self.written_bytes, bytes.into());
            }
            _ => add(&self.others, 1),
        }
        let took = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let bucket = (u64::BITS - took.leading_zeros()) as usize;
        add(&self.latencies[bucket.min(BUCKETS - 1)], 1);
        add(&self.latency_sum, took);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latencies_are_in_their_buckets() {
        let stats = HostStats::default();
        for micros in [0, 1, 2, 3, 4, 1023, 1024, u64::MAX >> 1] {
            stats.begin();
            stats.end(Some(IoOp::Read), 512, true, Duration::from_micros(micros));
        }
        let counts: Vec<_> = stats.latencies.iter().map(|count| count.load(Ordering::Relaxed)).collect();
        assert_eq!(counts[..4], [1, 1, 2, 1]);
        assert_eq!((counts[10], counts[11], counts[BUCKETS - 1]), (1, 1, 1));
        assert_eq!(stats.reads.load(Ordering::Relaxed), 8);
        assert_eq!(stats.in_flight.load(Ordering::Relaxed), 0);
    }
}
