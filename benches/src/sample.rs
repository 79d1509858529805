//! Timing a case.

use std::time::{Duration, Instant};

use crate::case::{Case, measured};

/// Nanoseconds per operation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Timing {
    /// Mean of all samples without the slowest hundredth, which the scheduler causes.
    pub mean: f64,
    /// Median.
    pub p50: f64,
    /// 99th percentile.
    pub p99: f64,
    /// 99.9th percentile.
    pub p999: f64,
}

/// How long to sample.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Approximate time to sample; warming up takes a tenth of it before.
    pub time: Duration,
    /// Minimum number of samples.
    pub samples: usize,
}

impl Timing {
    /// From samples in nanoseconds; each sample has `operations` operations.
    pub fn of(mut samples: Vec<u64>, operations: u32) -> Self {
        samples.sort_unstable();
        let per_operation = |ns: u64| ns as f64 / f64::from(operations);
        let at = |q: f64| per_operation(samples[((samples.len() - 1) as f64 * q) as usize]);
        let kept = &samples[..samples.len() - samples.len() / 100];
        let mean = per_operation(kept.iter().sum()) / kept.len() as f64;
        Self { mean, p50: at(0.5), p99: at(0.99), p999: at(0.999) }
    }

    /// Each figure's median over several rounds.
    pub fn median(rounds: &[Self]) -> Self {
        let median = |figure: fn(&Self) -> f64| {
            let mut all: Vec<f64> = rounds.iter().map(figure).collect();
            all.sort_by(f64::total_cmp);
            (all[(all.len() - 1) / 2] + all[all.len() / 2]) / 2.0
        };
        Self {
            mean: median(|t| t.mean),
            p50: median(|t| t.p50),
            p99: median(|t| t.p99),
            p999: median(|t| t.p999),
        }
    }
}

/// The cost of reading the clock twice: the median of many measurements.
pub fn clock_cost() -> Duration {
    let mut costs: Vec<_> = (0..1001).map(|_| Instant::now().elapsed()).collect();
    costs.sort_unstable();
    costs[costs.len() / 2]
}

/// Samples a case.
pub fn time(case: &mut dyn Case, effort: Effort) -> Timing {
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
            warm = start.elapsed() * 10 > effort.time;
            continue;
        }
        samples.push(took.saturating_sub(clock).as_nanos() as u64);
        if samples.len() >= effort.samples && start.elapsed() > effort.time {
            break;
        }
    }
    Timing::of(samples, case.operations())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_samples_and_per_operation() {
        let timing = Timing::of((1..=1000).rev().collect(), 2);
        assert_eq!((timing.p50, timing.p99, timing.p999), (250.0, 495.0, 499.5));
        assert_eq!(timing.mean, 247.75);
    }

    #[test]
    fn one_slow_round_moves_no_figure() {
        let at = |ns: f64| Timing { mean: ns, p50: ns, p99: ns, p999: ns };
        assert_eq!(Timing::median(&[at(2.0), at(900.0), at(1.0)]), at(2.0));
        assert_eq!(Timing::median(&[at(2.0), at(4.0)]), at(3.0));
    }
}
