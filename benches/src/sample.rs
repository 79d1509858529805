//! Timing a case.

use std::time::{Duration, Instant};

use crate::case::{Case, measured};

/// Nanoseconds per operation.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// Mean of all samples but the slowest thousandth, which belongs to the scheduler.
    pub mean: f64,
    /// Median.
    pub p50: f64,
    /// 99th percentile.
    pub p99: f64,
    /// 99.9th percentile.
    pub p999: f64,
}

/// What reading the clock twice costs: the median of many.
pub fn clock_cost() -> Duration {
    let mut costs: Vec<_> = (0..10_001).map(|_| Instant::now().elapsed()).collect();
    costs.sort_unstable();
    costs[costs.len() / 2]
}

/// Samples a case for about `time`, after a tenth of it to warm up. At least 1,000 samples.
pub fn time(case: &mut dyn Case, time: Duration) -> Timing {
    let clock = clock_cost();
    let mut samples = Vec::with_capacity(1 << 16);
    let start = Instant::now();
    let mut warm = false;
    loop {
        case.prepare();
        let before = Instant::now();
        measured(case);
        let took = before.elapsed();
        if !warm {
            warm = start.elapsed() * 10 > time;
            continue;
        }
        samples.push(took.saturating_sub(clock));
        if samples.len() >= 1000 && start.elapsed() > time {
            break;
        }
    }
    samples.sort_unstable();
    let per_operation = |d: Duration| d.as_nanos() as f64 / f64::from(case.operations());
    let at = |q: f64| per_operation(samples[((samples.len() - 1) as f64 * q) as usize]);
    let kept = &samples[..samples.len() - samples.len() / 1000];
    let mean = per_operation(kept.iter().sum()) / kept.len() as f64;
    Timing { mean, p50: at(0.5), p99: at(0.99), p999: at(0.999) }
}
