//! `doorbell-nvmf top`: a live table of hosts and devices, from the page of counters.

use crate::metrics::PREFIX;
use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, Table};
use doorbell_service::metrics::Sample;
use std::collections::BTreeMap;

/// The samples of one moment by name and label.
struct Moment<'a>(BTreeMap<(&'a str, &'a str, &'a str, &'a str), f64>);

impl<'a> Moment<'a> {
    fn new(samples: &'a [Sample]) -> Self {
        let key = |sample: &'a Sample| {
            let label = |name| sample.label(name).unwrap_or_default();
            let object = if label("device").is_empty() { label("host") } else { label("device") };
            let name = sample.name.strip_prefix(PREFIX).unwrap_or(&sample.name).trim_start_matches('_');
            (name, object, label("subsystem"), label("le"))
        };
        Self(samples.iter().map(|sample| (key(sample), sample.value)).collect())
    }

    fn value(&self, name: &str, object: &str, subsystem: &str) -> f64 {
        self.0.get(&(name, object, subsystem, "")).copied().unwrap_or(0.0)
    }

    /// The upper bounds of latencies in seconds with the number of commands at or below each.
    fn latencies(&self, host: &str, subsystem: &str) -> Vec<(f64, f64)> {
        let of_host = self.0.iter().filter(|((name, object, of, _), _)| {
            (*name, *object, *of) == ("latency_seconds_bucket", host, subsystem)
        });
        let bound = |le: &str| le.parse().unwrap_or(f64::INFINITY);
        let mut buckets: Vec<_> = of_host.map(|((.., le), &count)| (bound(le), count)).collect();
        buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
        buckets
    }
}

/// The tables for what has happened between two readings of the page, some seconds apart.
pub fn tables(before: &[Sample], now: &[Sample], seconds: f64) -> String {
    let (old, new) = (Moment::new(before), Moment::new(now));
    let mut hosts = table(&[
        "host",
        "subsystem",
        "read/s",
        "write/s",
        "other/s",
        "MB/s read",
        "MB/s written",
        "failed/s",
        "in flight",
        "p50 us",
        "p99 us",
        "p99.9 us",
    ]);
    let keys = new.0.keys().filter(|(name, ..)| *name == "in_flight");
    for &(_, host, subsystem, _) in keys {
        let rate =
            |name: &str| (new.value(name, host, subsystem) - old.value(name, host, subsystem)) / seconds;
        let past: BTreeMap<_, _> = old
            .latencies(host, subsystem)
            .into_iter()
            .map(|(bound, count)| (bound.to_bits(), count))
            .collect();
        let buckets: Vec<_> = new
            .latencies(host, subsystem)
            .into_iter()
            .map(|(bound, count)| (bound, count - past.get(&bound.to_bits()).unwrap_or(&0.0)))
            .collect();
        let latency = |part: f64| {
            percentile(&buckets, part).map_or_else(|| "-".to_owned(), |s| format!("{:.0}", s * 1e6))
        };
        hosts.add_row(vec![
            host.to_owned(),
            subsystem.to_owned(),
            format!("{:.0}", rate("reads_total")),
            format!("{:.0}", rate("writes_total")),
            format!("{:.0}", rate("other_commands_total")),
            format!("{:.1}", rate("read_bytes_total") / 1e6),
            format!("{:.1}", rate("written_bytes_total") / 1e6),
            format!("{:.0}", rate("failed_commands_total")),
            format!("{:.0}", new.value("in_flight", host, subsystem)),
            latency(0.5),
            latency(0.99),
            latency(0.999),
        ]);
    }
    let mut devices = table(&[
        "device",
        "connections",
        "commands",
        "credits",
        "SRQ",
        "of",
        "buffers free",
        "awaited",
        "rejected",
    ]);
    for &(_, device, ..) in new.0.keys().filter(|(name, ..)| *name == "receives_posted") {
        let value = |name: &str| format!("{:.0}", new.value(name, device, ""));
        devices.add_row(vec![
            device.to_owned(),
            value("connections"),
            value("commands"),
            value("credits"),
            value("receives_posted"),
            value("receives"),
            value("buffers_free"),
            value("buffers_awaited"),
            value("rejected_connections_total"),
        ]);
    }
    format!("{devices}\n\n{hosts}\n")
}

fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_preset(NOTHING).set_header(header.to_vec());
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// The bound of the bucket in which this part of all commands ends. The buckets hold the commands at
/// or below their bounds.
fn percentile(buckets: &[(f64, f64)], part: f64) -> Option<f64> {
    let total = buckets.last().map(|(_, count)| *count).filter(|&count| count > 0.0)?;
    buckets.iter().find(|(_, count)| *count >= total * part).map(|(bound, _)| *bound)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(name: &str, labels: &[(&str, &str)], value: f64) -> Sample {
        let labels = labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Sample { name: format!("{PREFIX}_{name}"), labels, value }
    }

    #[test]
    fn rates_and_percentiles() {
        let host = [("subsystem", "nqn.x"), ("host", "nqn.h")];
        let bucket = |le, value| {
            sample("latency_seconds_bucket", &[("subsystem", "nqn.x"), ("host", "nqn.h"), ("le", le)], value)
        };
        let page = |reads, fast, all| {
            vec![
                sample("reads_total", &host, reads),
                sample("in_flight", &host, 5.0),
                bucket("0.0001", fast),
                bucket("0.001", all),
                bucket("+Inf", all),
                sample("receives_posted", &[("device", "mlx5_0")], 200.0),
                sample("receives", &[("device", "mlx5_0")], 256.0),
            ]
        };
        let text = tables(&page(1000.0, 1000.0, 1000.0), &page(3000.0, 2900.0, 3000.0), 2.0);
        let row = text.lines().find(|line| line.contains("nqn.h")).unwrap();
        let cells: Vec<_> = row.split_whitespace().collect();
        assert_eq!(
            cells,
            ["nqn.h", "nqn.x", "1000", "0", "0", "0.0", "0.0", "0", "5", "100", "1000", "1000"]
        );
        let row = text.lines().find(|line| line.contains("mlx5_0")).unwrap();
        assert_eq!(row.split_whitespace().collect::<Vec<_>>()[..6], ["mlx5_0", "0", "0", "0", "200", "256"]);
    }

    #[test]
    fn no_commands_have_no_percentiles() {
        assert_eq!(percentile(&[(1.0, 0.0), (2.0, 0.0)], 0.5), None);
        assert_eq!(percentile(&[], 0.5), None);
    }
}
