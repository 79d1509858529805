//! Output of a run: progress on standard error, and a table at the end.

use super::Failure;
use super::wire::Counts;
use comfy_table::{CellAlignment, Table, presets};
use hdrhistogram::Histogram;
use indicatif::{HumanBytes, HumanCount, ProgressBar, ProgressStyle};
use std::io::IsTerminal as _;
use std::time::{Duration, Instant};

/// Lines of progress, where there is no terminal, come with the first message and then this often.
const LINE_TIME: Duration = Duration::from_secs(5);

/// What has come back, by size.
#[derive(Debug)]
pub(super) struct Tally {
    pub(super) verified: u64,
    pub(super) total: u64,
    sizes: Vec<(usize, Histogram<u64>)>,
    start: Instant,
    took: Option<Duration>,
}

impl Tally {
    pub(super) fn new(sizes: &[usize], total: u64) -> Self {
        // Nanoseconds up to ten minutes, to one in a thousand: always a legal range.
        let histogram = || Histogram::new_with_bounds(1, 600_000_000_000, 3).expect("a legal range");
        let sizes = sizes.iter().map(|&size| (size, histogram())).collect();
        Self { verified: 0, total, sizes, start: Instant::now(), took: None }
    }

    pub(super) fn begin(&mut self) {
        self.start = Instant::now();
    }

    pub(super) fn finish(&mut self) {
        self.took = Some(self.start.elapsed());
    }

    /// One message of the run's size number `size` is back, byte for byte.
    pub(super) fn add(&mut self, size: usize, latency: Duration) {
        self.verified += 1;
        self.sizes[size].1.saturating_record(latency.as_nanos() as u64);
    }

    fn bytes(&self) -> u64 {
        self.sizes.iter().map(|(size, latencies)| *size as u64 * latencies.len()).sum()
    }

    fn table(&self) -> Table {
        let took = self.took.unwrap_or_else(|| self.start.elapsed()).as_secs_f64().max(1e-9);
        let mut table =
            new_table(["size", "messages", "bytes", "msg/s", "MB/s", "p50", "p99", "p99.9", "max"]);
        let mut row = |name: String, bytes: u64, latencies: &Histogram<u64>| {
            let at = |quantile| human(latencies.value_at_quantile(quantile));
            table.add_row([
                name,
                HumanCount(latencies.len()).to_string(),
                HumanCount(bytes).to_string(),
                format!("{:.0}", latencies.len() as f64 / took),
                format!("{:.2}", bytes as f64 / 1e6 / took),
                at(0.5),
                at(0.99),
                at(0.999),
                human(latencies.max()),
            ]);
        };
        let mut all = Histogram::new_from(&self.sizes[0].1);
        for (size, latencies) in &self.sizes {
            row(size.to_string(), *size as u64 * latencies.len(), latencies);
            // The same range, so that this cannot fail.
            let _ = all.add(latencies);
        }
        row("all".to_owned(), self.bytes(), &all);
        table
    }
}

/// The server's SRQ before the first message and after the last; unknown while it has other
/// clients, too.
#[derive(Clone, Copy, Debug)]
pub(super) struct SrqCounts {
    pub(super) start: Counts,
    pub(super) end: Option<Counts>,
}

/// How a run ended.
#[derive(Debug)]
pub struct Outcome {
    pub(super) tally: Tally,
    pub(super) srq: Option<SrqCounts>,
    pub(super) server_rnr: Option<u64>,
    pub(super) client_rnr: Option<u64>,
    pub(super) failure: Option<Failure>,
}

impl Outcome {
    /// Whether every message came back as it should and the SRQ is as it was.
    pub fn is_good(&self) -> bool {
        let srq_is_back = self.srq.is_none_or(|srq| srq.end.is_none_or(|end| end == srq.start));
        self.failure.is_none() && self.tally.verified == self.tally.total && srq_is_back
    }

    /// Prints the tables, and as the last line how many messages were verified; what went wrong
    /// goes to standard error.
    pub fn print(&self) {
        let tally = &self.tally;
        println!("{}", tally.table());
        let mut table = new_table(["", "at the start", "at the end", "back"]);
        let show = |count: Option<u32>| count.map_or_else(|| "-".to_owned(), |n| n.to_string());
        let srq = |pick: fn(Counts) -> u32| {
            let start = self.srq.map(|srq| pick(srq.start));
            let end = self.srq.and_then(|srq| srq.end).map(pick);
            let back = match (start, end) {
                (Some(start), Some(end)) if start == end => "yes",
                (Some(_), Some(_)) => "no",
                _ => "-",
            };
            [show(start), show(end), back.to_owned()]
        };
        for (name, [start, end, back]) in [
            ("SRQ available", srq(|(available, _)| available)),
            ("SRQ outstanding", srq(|(_, outstanding)| outstanding)),
        ] {
            table.add_row([name, &start, &end, &back]);
        }
        println!("{table}");
        let rnr = |events: Option<u64>| events.map_or_else(|| "-".to_owned(), |n| n.to_string());
        println!(
            "RNR events: {} at the server's device, {} at the client's",
            rnr(self.server_rnr),
            rnr(self.client_rnr)
        );
        if let Some(failure) = &self.failure {
            eprintln!("doorbell-echo: {failure}");
        } else if !self.is_good() {
            eprintln!("doorbell-echo: the SRQ's counts are not what they were at the start");
        }
        println!("verified {} of {} messages", tally.verified, tally.total);
    }
}

fn new_table<const N: usize>(header: [&str; N]) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::ASCII_MARKDOWN).set_header(header);
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// A time in the unit that fits.
fn human(nanos: u64) -> String {
    match nanos as f64 {
        n if n < 1e6 => format!("{:.1} us", n / 1e3),
        n if n < 1e9 => format!("{:.2} ms", n / 1e6),
        n => format!("{:.2} s", n / 1e9),
    }
}

/// A progress bar on a terminal, otherwise a line from time to time.
#[derive(Debug)]
pub(super) struct Progress {
    bar: Option<ProgressBar>,
    last: Option<Instant>,
}

impl Progress {
    pub(super) fn new(total: u64) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let style =
                "{elapsed_precise} {wide_bar} {human_pos}/{human_len} messages, {per_sec}, {eta} left";
            let bar = ProgressBar::new(total);
            bar.set_style(
                ProgressStyle::with_template(style).unwrap_or_else(|_| ProgressStyle::default_bar()),
            );
            bar
        });
        Self { bar, last: None }
    }

    pub(super) fn show(&mut self, tally: &Tally) {
        if let Some(bar) = &self.bar {
            bar.set_position(tally.verified);
        } else if tally.verified > 0 && self.last.is_none_or(|last| last.elapsed() >= LINE_TIME) {
            self.last = Some(Instant::now());
            let percent = 100 * tally.verified / tally.total.max(1);
            let (verified, total) = (HumanCount(tally.verified), HumanCount(tally.total));
            eprintln!("{verified} of {total} messages ({percent} %), {}", HumanBytes(tally.bytes()));
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(verified: u64, srq: Option<SrqCounts>) -> Outcome {
        let mut tally = Tally::new(&[0, 64], 3);
        (0..verified).for_each(|i| tally.add(i as usize % 2, Duration::from_micros(i)));
        tally.finish();
        Outcome { tally, srq, server_rnr: None, client_rnr: Some(0), failure: None }
    }

    #[test]
    fn a_good_run_has_all_messages_and_buffers_back() {
        let back = SrqCounts { start: (8, 8), end: Some((8, 8)) };
        assert!(outcome(3, Some(back)).is_good());
        assert!(outcome(3, None).is_good());
        assert!(!outcome(2, Some(back)).is_good());
        assert!(!outcome(3, Some(SrqCounts { end: Some((7, 8)), ..back })).is_good());
        // Not reported, since there were other clients.
        assert!(outcome(3, Some(SrqCounts { end: None, ..back })).is_good());
    }

    #[test]
    fn the_table_has_a_row_per_size_and_a_total() {
        let table = outcome(3, None).tally.table().to_string();
        let rows: Vec<Vec<_>> = table.lines().map(|line| line.split('|').map(str::trim).collect()).collect();
        assert_eq!((rows[2][1], rows[2][2], rows[2][3]), ("0", "2", "0"));
        assert_eq!((rows[3][1], rows[3][2], rows[3][3]), ("64", "1", "64"));
        assert_eq!((rows[4][1], rows[4][2], rows[4][3]), ("all", "3", "64"));
    }
}
