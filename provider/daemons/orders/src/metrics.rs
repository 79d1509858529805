//! The counters of a gateway: on a page for Prometheus, and as the table of `top`.

use crate::gateway::{Handle, Stats};
use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, Table};
use doorbell_service::metrics::Sample;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use std::sync::atomic::{AtomicU64, Ordering};

/// The first part of all names.
pub const PREFIX: &str = "doorbell_orders";

type Of = fn(&Stats) -> &AtomicU64;

const GAUGES: [(&str, &str, Of); 6] = [
    ("sessions", "Sessions that have ever connected", |s| &s.sessions),
    ("connected_sessions", "Sessions that are connected", |s| &s.connected),
    ("open_orders", "Orders in books", |s| &s.open_orders),
    ("receives_posted", "Receive buffers in the SRQ", |s| &s.receives_posted),
    ("receives", "Receive buffers", |s| &s.receives),
    ("journal_records_behind", "Records that are not in the file", |s| &s.journal_behind),
];

const COUNTERS: [(&str, &str, Of); 9] = [
    ("messages_in", "Messages from sessions", |s| &s.messages_in),
    ("messages_out", "Messages to sessions", |s| &s.messages_out),
    ("accepted_orders", "Orders and replaces that were accepted", |s| &s.accepted_orders),
    ("executions", "Executions", |s| &s.executions),
    ("refused_logins", "Logins that were refused", |s| &s.refused_logins),
    ("slow_sessions", "Sessions cut off because they read too slowly", |s| &s.cut_off_slow),
    ("flooding_sessions", "Sessions cut off because they sent too much", |s| &s.cut_off_flood),
    ("garbage_sessions", "Sessions cut off because they sent what is no message", |s| &s.cut_off_garbage),
    ("silent_sessions", "Sessions cut off because nothing came from them", |s| &s.cut_off_silent),
];

/// What the page has.
#[derive(Debug)]
pub struct Counters(pub Handle);

impl Collector for Counters {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> std::fmt::Result {
        let value = |of: Of| of(self.0.stats()).load(Ordering::Relaxed);
        for (name, help, of) in GAUGES {
            let gauge = ConstGauge::new(value(of));
            gauge.encode(encoder.encode_descriptor(name, help, None, gauge.metric_type())?)?;
        }
        for (name, help, of) in COUNTERS {
            let counter = ConstCounter::new(value(of));
            counter.encode(encoder.encode_descriptor(name, help, None, counter.metric_type())?)?;
        }
        Ok(())
    }
}

/// What has happened between two readings of the page.
pub fn table(before: &[Sample], now: &[Sample], seconds: f64) -> String {
    let value = |page: &[Sample], name: &str| {
        let name = format!("{PREFIX}_{name}");
        page.iter().find(|sample| sample.name == name).map_or(0.0, |sample| sample.value)
    };
    let mut table = Table::new();
    table.load_preset(NOTHING);
    for (name, ..) in GAUGES {
        table.add_row([name.replace('_', " "), format!("{:.0}", value(now, name)), String::new()]);
    }
    for (name, ..) in COUNTERS {
        let total = format!("{name}_total");
        let (new, old) = (value(now, &total), value(before, &total));
        table.add_row([
            name.replace('_', " "),
            format!("{new:.0}"),
            format!("{:.0}/s", (new - old) / seconds),
        ]);
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_and_levels() {
        let page = |messages, connected| {
            let sample =
                |name: &str, value| Sample { name: format!("{PREFIX}_{name}"), labels: vec![], value };
            vec![sample("messages_in_total", messages), sample("connected_sessions", connected)]
        };
        let text = table(&page(1000.0, 3.0), &page(3000.0, 4.0), 2.0);
        let row = |start: &str| {
            let line = text.lines().find(|line| line.trim_start().starts_with(start)).unwrap();
            line.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(row("messages in"), ["messages", "in", "3000", "1000/s"]);
        assert_eq!(row("connected"), ["connected", "sessions", "4"]);
    }
}
