//! The counters of the target, for Prometheus.

use crate::rdma::{Handle, Stats};
use crate::stats::HostStats;
use crate::target::Target;
use doorbell_service::metrics::label;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What the names of all metrics begin with.
pub const PREFIX: &str = "doorbell_nvmf";

/// Collects the counters of engines and hosts.
#[derive(Debug)]
pub struct Counters {
    /// The target, for its hosts.
    pub target: Arc<Target>,
    /// The engines of each device, by its name.
    pub engines: Vec<(String, Vec<Handle>)>,
}

type OfHost = fn(&HostStats) -> &AtomicU64;
type OfEngine = fn(&Stats) -> &AtomicU64;

const HOST_COUNTERS: &[(&str, &str, OfHost)] = &[
    ("reads", "Read commands", |stats| &stats.reads),
    ("writes", "Write commands", |stats| &stats.writes),
    ("other_commands", "I/O commands that neither read nor write", |stats| &stats.others),
    ("failed_commands", "I/O commands that failed", |stats| &stats.failed),
    ("read_bytes", "Bytes of Read commands", |stats| &stats.read_bytes),
    ("written_bytes", "Bytes of Write commands", |stats| &stats.written_bytes),
];

const ENGINE_COUNTERS: &[(&str, &str, OfEngine)] = &[
    ("accepted_connections", "Connections that were accepted", |stats| &stats.accepted),
    ("rejected_connections", "Connections that were rejected", |stats| &stats.rejected),
    ("broken_connections", "Connections that ended before a successful Connect", |stats| &stats.broken),
    ("statuses_with_errors", "Commands of all kinds that failed", |stats| &stats.failed_commands),
];

const ENGINE_GAUGES: &[(&str, &str, OfEngine)] = &[
    ("connections", "Connections", |stats| &stats.connections),
    ("commands", "Commands under way", |stats| &stats.commands),
    ("receives_posted", "Receive buffers in the SRQ", |stats| &stats.receives_posted),
    ("receives", "Receive buffers", |stats| &stats.receives),
    ("buffers_free", "Data buffers that are free", |stats| &stats.buffers_free),
    ("buffers_awaited", "Commands that wait for a data buffer", |stats| &stats.buffers_awaited),
    ("credits", "Commands that hosts may have under way", |stats| &stats.credits),
];

impl Counters {
    fn of_hosts(
        &self,
        mut metric: MetricEncoder<'_>,
        encode: impl Fn(&HostStats, MetricEncoder<'_>) -> fmt::Result,
    ) -> fmt::Result {
        for ((subsystem, host), stats) in self.target.hosts() {
            let labels = [("subsystem", label(&subsystem)), ("host", label(&host))];
            encode(&stats, metric.encode_family(&labels)?)?;
        }
        Ok(())
    }

    /// Encodes the sum of a counter of all engines of each device.
    fn of_devices(
        &self,
        mut metric: MetricEncoder<'_>,
        of: OfEngine,
        encode: impl Fn(u64, MetricEncoder<'_>) -> fmt::Result,
    ) -> fmt::Result {
        for (device, handles) in &self.engines {
            let sum = handles.iter().map(|handle| of(handle.stats()).load(Ordering::Relaxed)).sum();
            encode(sum, metric.encode_family(&[("device", label(device))])?)?;
        }
        Ok(())
    }
}

fn counter(value: u64, metric: MetricEncoder<'_>) -> fmt::Result {
    ConstCounter::new(value).encode(metric)
}

fn gauge(value: u64, metric: MetricEncoder<'_>) -> fmt::Result {
    ConstGauge::new(value as i64).encode(metric)
}

impl Collector for Counters {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        for (name, help, of) in HOST_COUNTERS {
            let metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            self.of_hosts(metric, |stats, metric| counter(of(stats).load(Ordering::Relaxed), metric))?;
        }
        let metric =
            encoder.encode_descriptor("in_flight", "I/O commands under way", None, MetricType::Gauge)?;
        self.of_hosts(metric, |stats, metric| gauge(stats.in_flight.load(Ordering::Relaxed), metric))?;
        let help = "Seconds from the arrival of an I/O command to its response";
        let metric = encoder.encode_descriptor("latency_seconds", help, None, MetricType::Histogram)?;
        self.of_hosts(metric, |stats, mut metric| {
            let counts = stats.latencies.iter().map(|count| count.load(Ordering::Relaxed));
            let last = stats.latencies.len() - 1;
            let bound = |n: usize| if n == last { f64::MAX } else { (1u64 << n) as f64 / 1e6 };
            let buckets: Vec<_> = counts.enumerate().map(|(n, count)| (bound(n), count)).collect();
            let count = buckets.iter().map(|(_, count)| count).sum();
            let sum = stats.latency_sum.load(Ordering::Relaxed) as f64 / 1e6;
            metric.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)
        })?;
        for (name, help, of) in ENGINE_COUNTERS {
            let metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            self.of_devices(metric, *of, counter)?;
        }
        for (name, help, of) in ENGINE_GAUGES {
            let metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            self.of_devices(metric, *of, gauge)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::IoOp;
    use crate::limits::Limits;
    use crate::stats::Tally;
    use doorbell_service::metrics;
    use prometheus_client::registry::Registry;

    #[test]
    fn a_page_has_the_counters_of_each_host() {
        let target = Arc::new(Target::new(Limits::default()));
        for (host, commands) in [("nqn.a", 3), ("nqn.b", 1)] {
            let stats = target.stats_of("nqn.x", host);
            let mut tally = Tally::default();
            for _ in 0..commands {
                tally.begin();
                tally.end(Some((IoOp::Read, 4096)), true, 100);
            }
            tally.flush(&stats);
        }
        let mut registry = Registry::with_prefix(PREFIX);
        registry.register_collector(Box::new(Counters { target, engines: vec![] }));
        let address = metrics::serve("127.0.0.1:0".parse().unwrap(), registry).unwrap();
        let page = metrics::read(address).unwrap();
        let value = |name: &str, host: &str, le: Option<&str>| {
            let is_it = |s: &&metrics::Sample| {
                s.name == format!("{PREFIX}_{name}") && s.label("host") == Some(host) && s.label("le") == le
            };
            page.iter().find(is_it).unwrap_or_else(|| panic!("{name} of {host}: {page:?}")).value
        };
        assert_eq!((value("reads_total", "nqn.a", None), value("reads_total", "nqn.b", None)), (3.0, 1.0));
        assert_eq!(value("read_bytes_total", "nqn.a", None), 12288.0);
        assert_eq!(value("in_flight", "nqn.a", None), 0.0);
        assert_eq!(value("latency_seconds_bucket", "nqn.a", Some("0.000064")), 0.0);
        assert_eq!(value("latency_seconds_bucket", "nqn.a", Some("0.000128")), 3.0);
        assert_eq!(value("latency_seconds_bucket", "nqn.a", Some("+Inf")), 3.0);
        assert_eq!(value("latency_seconds_count", "nqn.b", None), 1.0);
    }
}
