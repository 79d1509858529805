//! The page of results: where and when, a table for each subject with the losses first, two charts.

use std::{collections::BTreeMap, fmt::Write as _, fs, path::Path, process::Command};

use anyhow::{Context, Result};

use crate::{
    chart::{self, Bar, Group, grouped},
    cold, dtest, libmlx5,
    plan::{CaseName, Spec, Subject},
    report::{self, Row, find},
    storage,
};

/// Where and when a report was measured, as the page says it.
#[derive(Clone, Debug, Default, serde::Deserialize, serde::Serialize)]
pub struct Run {
    /// The day.
    pub date: String,
    /// Processor and number of cores.
    pub machine: String,
    /// Distribution, rdma-core, compiler.
    pub versions: String,
    /// Device, load, and what the host took of the memory.
    pub state: String,
}

impl Run {
    /// This machine, now.
    #[must_use]
    pub fn here(device: &str, memory: &str) -> Self {
        let said = |program: &str, arguments: &[&str]| {
            let output = Command::new(program).args(arguments).env("LC_ALL", "C").output().ok();
            output.map_or_else(String::new, |out| String::from_utf8_lossy(&out.stdout).trim().to_owned())
        };
        let field = |file: &str, name: &str| {
            let text = fs::read_to_string(file).unwrap_or_default();
            let line = text.lines().find(|line| line.trim_start().starts_with(name));
            let value = line.and_then(|line| line.split([':', '=']).nth(1));
            value.unwrap_or("unknown").trim().trim_matches('"').to_owned()
        };
        let cpu = |name| field("/proc/cpuinfo", name);
        let cores = std::thread::available_parallelism().map_or(0, usize::from);
        let rdma = libmlx5::version().map_or("unknown".to_owned(), |version| version.to_string());
        let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
        Self {
            date: said("date", &["-u", "+%-d %B %Y"]),
            machine: format!(
                "{}, family {}, model {}; {cores} processors used",
                cpu("model name"),
                cpu("cpu family"),
                cpu("model\t")
            ),
            versions: format!(
                "{}, rdma-core {rdma}, {}",
                field("/etc/os-release", "PRETTY_NAME"),
                said("rustc", &["--version"])
            ),
            state: format!("device {device}; load {}; {memory}", load.split(' ').next().unwrap_or("unknown")),
        }
    }
}

/// What one table compares.
struct Table {
    heading: &'static str,
    ours: Subject,
    peer: Subject,
}

const TABLES: [Table; 6] = [
    Table { heading: "DAT programs, direct path", ours: Subject::Provider, peer: Subject::Libdaplofa },
    Table {
        heading: "DAT programs, standard verbs",
        ours: Subject::ProviderVerbs,
        peer: Subject::Libdaplofa,
    },
    Table { heading: "`mlx5-direct` alone", ours: Subject::Mlx5Direct, peer: Subject::Libmlx5Lock },
    Table {
        heading: "Verbs programs under `doorbell-run`",
        ours: Subject::Verbs,
        peer: Subject::Libmlx5Lock,
    },
    Table { heading: "`mlx5-direct` and UCX", ours: Subject::Mlx5Direct, peer: Subject::Ucx },
    Table {
        heading: "The Rust API and the same calls in C",
        ours: Subject::Provider,
        peer: Subject::Provider,
    },
];

/// The call through libdat2 that means the same as a case of the Rust API.
fn in_c(case: CaseName) -> Option<CaseName> {
    Some(match case {
        CaseName::EpSend | CaseName::PoolSend => CaseName::DatSend,
        CaseName::PoolMessage => CaseName::DatAnswer,
        CaseName::EpRecv => CaseName::DatRecv,
        CaseName::Post => CaseName::DatPost,
        CaseName::Poll => CaseName::DatReap,
        CaseName::EmptyPoll => CaseName::DatEmpty,
        _ => return None,
    })
}

impl Table {
    fn is_of_rust(&self) -> bool {
        self.ours == self.peer
    }

    /// The row that ours is compared with.
    fn peer<'a>(&self, rows: &'a [Row], ours: &Row) -> Option<&'a Row> {
        let spec = ours.spec;
        if !self.is_of_rust() {
            return find(rows, self.peer, spec);
        }
        let case = in_c(spec.case).filter(|_| (spec.batch, spec.segments) == (1, 1))?;
        find(rows, self.peer, Spec { case, depth: 1023, ..spec })
    }

    /// The heads of the peer's column and of ours.
    fn columns(&self) -> [&'static str; 2] {
        if self.is_of_rust() { ["C", "Rust"] } else { [self.peer, self.ours].map(column) }
    }

    /// The pairs of this table with cold lines, ours and the peer's.
    fn cold_pairs<'a>(&self, rows: &'a [cold::Row]) -> Vec<(&'a cold::Row, &'a cold::Row)> {
        let ours = rows.iter().filter(|row| row.subject == self.ours && !self.is_of_rust());
        let peer = |spec| rows.iter().find(|row| row.subject == self.peer && row.spec == spec);
        ours.filter_map(|row| Some((row, peer(row.spec)?))).collect()
    }

    /// The pairs of this table, ours and the peer's.
    fn pairs<'a>(&self, rows: &'a [Row]) -> Vec<(&'a Row, &'a Row)> {
        let ours = rows.iter().filter(|row| row.subject == self.ours && on_page(row.spec));
        ours.filter_map(|row| Some((row, self.peer(rows, row)?))).collect()
    }
}

/// Whether the page has this shape. The report has all.
fn on_page(Spec { case, batch, depth, .. }: Spec) -> bool {
    use CaseName::*;
    let usual = matches!(depth, 128 | 1023 | 4095) && !(case.is_random() && depth != 1023);
    usual && matches!(batch, 1 | 32) && !matches!(case, PostEncoded | PostAddress | SendFenced)
}

/// What is timed, in words.
fn what(Spec { case, batch, segments, .. }: Spec) -> String {
    use CaseName::*;
    let mut text = match case {
        Post => "post a receive",
        PostFree => "post and free, full SRQ",
        Repost => "post again what a slot keeps",
        Poll => "poll a receive",
        PollFree => "poll and free",
        EmptyPoll => "poll, nothing there",
        RandomCompletion => "post, completed out of order",
        RandomCompletionFree => "post, poll, free, out of order",
        Send => "send, 32 bytes inline",
        SendGather => "send, 64 bytes in a segment",
        SendWr => "send by ibv_wr_*",
        ReapSend => "poll a send",
        Message => "a message and its answer",
        MessageInBuffer => "a message in its buffer",
        MessageLarge => "a message of 512 bytes",
        EpSend => "Ep: send",
        EpSendInline => "Ep: send, 64 bytes inline",
        EpSendShared => "Ep: send, 64 bytes inline, shared register",
        EpRecv => "Ep: receive",
        PoolSend => "SendPool: take and send",
        PoolMessage => "a message by the pools",
        DatPost => "dat_srq_post_recv",
        DatPostLmrs => "dat_srq_post_recv, 2 LMRs",
        DatPostFourLmrs => "dat_srq_post_recv, 4 LMRs",
        DatReap => "dequeue of a receive",
        DatWait => "dat_evd_wait, 256 waiting",
        DatMessage => "dequeue and post",
        DatSend => "dat_ep_post_send",
        DatSendLmrs => "dat_ep_post_send, 2 LMRs",
        DatSendFourLmrs => "dat_ep_post_send, 4 LMRs",
        DatWrite => "dat_ep_post_rdma_write",
        DatRecv => "dat_ep_post_recv",
        DatRecvLmrs => "dat_ep_post_recv, 2 LMRs",
        DatRecvFourLmrs => "dat_ep_post_recv, 4 LMRs",
        DatReapRecv => "dequeue of a receive, no SRQ",
        DatReapSend => "dequeue of a send",
        DatEmpty => "dequeue, no receive there",
        DatEmptySends => "dequeue, no send there",
        DatAnswer => "a message and its answer",
        DatEpCreate => "dat_ep_create",
        DatEpFree => "dat_ep_free",
        DatThread => "post and send, 1 thread",
        DatTwoThreads => "post and send, 2 threads",
        DatFourThreads => "post and send, 4 threads",
        other => other.name(),
    }
    .to_owned();
    if segments > 1 {
        let _ = write!(text, ", {segments} segments");
    }
    if batch > 1 {
        let _ = write!(text, ", {batch} a call");
    }
    text
}

/// Three digits, or all digits before the point.
fn short(number: f64) -> String {
    match number {
        n if n < 9.995 => format!("{n:.2}"),
        n if n < 99.95 => format!("{n:.1}"),
        n => grouped(n),
    }
}

/// Ours by the peer's; a loss is bold.
fn ratio(ours: f64, peer: f64) -> String {
    let ratio = format!("{:.2}", ours / peer);
    if ours > peer { format!("**{ratio}**") } else { ratio }
}

/// The head of a subject's column.
fn column(subject: Subject) -> &'static str {
    match subject {
        Subject::Provider | Subject::ProviderVerbs => "Doorbell",
        Subject::Libmlx5Lock => "libmlx5",
        Subject::Verbs => "doorbell-run",
        other => other.name(),
    }
}

fn table(out: &mut String, table: &Table, rows: &[Row]) {
    let mut pairs = table.pairs(rows);
    if pairs.is_empty() {
        return;
    }
    let times = |(ours, peer): &(&Row, &Row)| ours.timing.mean / peer.timing.mean;
    pairs.sort_by(|a, b| times(b).total_cmp(&times(a)));
    let [peer, ours] = table.columns();
    let _ = writeln!(
        out,
        "\n## {}\n\n| case | {peer} | {ours} | ratio | instructions |\n|---|---|---|---|---|",
        table.heading
    );
    for (ours, peer) in pairs {
        let count = |row: &Row| row.instructions.map_or("-".to_owned(), grouped);
        let counts = match (peer.instructions, ours.instructions) {
            (None, None) => "-".to_owned(),
            _ => format!("{} / {}", count(peer), count(ours)),
        };
        let (theirs, own) = (peer.timing.mean, ours.timing.mean);
        let _ = writeln!(
            out,
            "| {} | {} | {} | {} | {counts} |",
            what(ours.spec),
            short(theirs),
            short(own),
            ratio(own, theirs)
        );
    }
}

/// The size of the program's own table in the figures with cold lines, of [`cold::SETS`].
const SET: usize = 2;

fn cold_time(row: &cold::Row) -> f64 {
    row.timings[SET].mean
}

fn cold_table(out: &mut String, table: &Table, rows: &[cold::Row]) {
    let mut pairs = table.cold_pairs(rows);
    if pairs.is_empty() {
        return;
    }
    let times = |(ours, peer): &(&cold::Row, &cold::Row)| cold_time(ours) / cold_time(peer);
    pairs.sort_by(|a, b| times(b).total_cmp(&times(a)));
    let [peer, ours] = table.columns();
    let _ = writeln!(
        out,
        "\n### {}\n\n| case | {peer} | {ours} | ratio | 256 KiB | no table | lines |\n|---|---|---|---|---|---|---|",
        table.heading
    );
    for (ours, peer) in pairs {
        let at = |set: usize| ratio(ours.timings[set].mean, peer.timings[set].mean);
        let lines = |row: &cold::Row| row.lines.map_or("-".to_owned(), |l| short(l.read + l.written));
        let _ = writeln!(
            out,
            "| {} | {} | {} | {} | {} | {} | {} / {} |",
            what(ours.spec),
            short(cold_time(peer)),
            short(cold_time(ours)),
            at(SET),
            at(1),
            at(0),
            lines(peer),
            lines(ours)
        );
    }
}

/// The part with cold cache lines.
fn cold_part(out: &mut String, Cold { run, rows }: &Cold) {
    let _ = write!(
        out,
        "\n## Cold cache lines\n\n\
         Written by `make bench COLD=1`. [METHOD.md](METHOD.md#cold) says what is cold.\n\n\
         - {}\n- {}\n- {}\n- {}\n\n\
         Nanoseconds of an operation after the program has read 4 MiB of its own; the ratios behind are after 256 KiB\n\
         and after nothing. Lines are the cache lines that an operation fetches if none is in a cache, the peer's and ours.\n",
        run.date, run.machine, run.versions, run.state
    );
    for of in &TABLES {
        cold_table(out, of, rows);
    }
}

/// dtest's figures: medians in microseconds, the slowest of ours first.
fn latencies(out: &mut String, lines: &[dtest::Line]) {
    let mut figures: BTreeMap<(&str, &str), [Option<f64>; 3]> = BTreeMap::new();
    for line in lines {
        if let Some(n) = dtest::SUBJECTS.iter().position(|subject| subject.name() == line.subject) {
            figures.entry((&line.figure, &line.end)).or_default()[n] = Some(line.us);
        }
    }
    let whole =
        figures.into_iter().filter_map(|(key, [peer, direct, verbs])| Some((key, peer?, direct?, verbs?)));
    let mut whole: Vec<_> = whole.collect();
    whole.sort_by(|(_, p, d, v), (_, q, e, w)| (e.max(*w) / q).total_cmp(&(d.max(*v) / p)));
    if whole.is_empty() {
        return;
    }
    let _ = writeln!(
        out,
        "\n## dtest\n\nMicroseconds, medians of the rounds of `dtest -b 4096 -t`.\n\n\
         | figure | libdaplofa | direct | ratio | verbs | ratio |\n|---|---|---|---|---|---|"
    );
    for ((figure, end), peer, direct, verbs) in whole {
        let (first, second) = (ratio(direct, peer), ratio(verbs, peer));
        // Calls are timed in whole microseconds, means of many are not.
        let [peer, direct, verbs] =
            [peer, direct, verbs].map(|us| if us.fract() == 0.0 { grouped(us) } else { short(us) });
        let _ = writeln!(out, "| {figure}, {end} | {peer} | {direct} | {first} | {verbs} | {second} |");
    }
}

/// Figures with cold cache lines, and where and when they were measured.
struct Cold {
    run: Run,
    rows: Vec<cold::Row>,
}

/// What was measured.
#[derive(Default)]
struct Results {
    run: Run,
    rows: Vec<Row>,
    lines: Vec<dtest::Line>,
    cold: Option<Cold>,
}

/// The page.
fn page(Results { run, rows, lines, cold }: &Results) -> String {
    let mut out = String::new();
    if rows.is_empty() {
        out += "# Results\n\n![Time of each call relative to the peer's](time.svg)\n";
    } else {
        warm_head(&mut out, run);
    }
    for of in &TABLES {
        table(&mut out, of, rows);
    }
    latencies(&mut out, lines);
    if let Some(cold) = cold {
        cold_part(&mut out, cold);
    }
    out
}

fn warm_head(out: &mut String, run: &Run) {
    let _ = write!(
        out,
        "# Results\n\n\
         Written by `make bench`. [METHOD.md](METHOD.md) says how it is measured, what it leaves out, and what\n\
         bounds each loss.\n\n\
         - {}\n- {}\n- {}\n- {}\n\n\
         Nanoseconds of an operation. The ratio is ours divided by the peer's: above 1 (bold) Doorbell is slower. Losses\n\
         come first. Instructions are the peer's and ours, `-` if they were not counted.\n\n\
         ![Time of each call relative to the peer's](time.svg)\n\n\
         ![Instructions of each call relative to the peer's](instructions.svg)\n",
        run.date, run.machine, run.versions, run.state
    );
}

/// The cases of the charts.
fn drawn(spec: Spec) -> bool {
    use CaseName::*;
    match spec.case {
        Post => (spec.batch, spec.segments) != (32, 4),
        Send | SendWr => true,
        RandomCompletion => (spec.batch, spec.segments) == (32, 1),
        DatPost | DatSend | DatRecv => spec.segments != 2,
        Poll | EmptyPoll | ReapSend | Message | EpSend | EpRecv | PoolSend | PoolMessage => spec.batch == 1,
        DatReap | DatEmpty | DatWait | DatWrite | DatReapSend | DatAnswer | DatThread | DatTwoThreads => true,
        _ => false,
    }
}

fn nanoseconds(own: f64, theirs: f64) -> String {
    format!("{} of {} ns", short(own), short(theirs))
}

/// The groups of a chart of this figure; of rows with cold lines, it is the time.
fn groups(
    rows: &[Row],
    figure: fn(&Row) -> Option<f64>,
    label: fn(f64, f64) -> String,
    cold: &[cold::Row],
) -> Vec<Group> {
    let group = |heading, series, tables: &[&Table]| {
        let mut found: Vec<(String, Vec<Bar>)> = vec![];
        for (series, table) in tables.iter().enumerate() {
            let warm = table
                .pairs(rows)
                .into_iter()
                .filter_map(|(ours, peer)| Some((ours.spec, false, figure(ours)?, figure(peer)?)));
            let cold = table.cold_pairs(cold).into_iter();
            let cold = cold.map(|(ours, peer)| (ours.spec, true, cold_time(ours), cold_time(peer)));
            for (spec, cold, own, theirs) in warm.chain(cold).filter(|(spec, ..)| drawn(*spec)) {
                let bar = Bar { series, cold, ratio: own / theirs, label: label(own, theirs) };
                let name = what(spec);
                match found.iter_mut().find(|(known, _)| *known == name) {
                    Some((_, bars)) => bars.push(bar),
                    None => found.push((name, vec![bar])),
                }
            }
        }
        Group { heading, series, rows: found }
    };
    let [direct, verbs, alone, run, _, rust] = &TABLES;
    vec![
        group(
            "DAT calls through libdat2; the peer is libdaplofa",
            ["Doorbell, direct path", "Doorbell, standard verbs"],
            &[direct, verbs],
        ),
        group("Calls of verbs; the peer is libmlx5", ["mlx5-direct", "doorbell-run"], &[alone, run]),
        group("The Rust API; the peer is the same call in C, of Doorbell", ["doorbell in Rust", ""], &[rust]),
    ]
}

/// Reads the reports of `compare` and of `cold`, and the section of the storage daemon, as far as they
/// are there, and writes RESULTS.md, time.svg, instructions.svg and nvmf.svg into their folder.
///
/// # Errors
///
/// Those of the file system; a text if a file is no report.
pub fn write(report: &Path, cold: &Path) -> Result<()> {
    let folder = report.parent().context("a report is in a folder")?;
    let mut results = Results::default();
    if report.exists() {
        results.rows = report::read(report)?;
        results.run = report::read_json(&folder.join("run.json"))?;
        results.lines = report::read_json(&folder.join("dtest.json"))?;
    }
    if cold.exists() {
        let run = report::read_json(&folder.join("cold-run.json"))?;
        results.cold = Some(Cold { run, rows: cold::read_json(cold)? });
    }
    let rows = &results.rows;
    let cold = results.cold.as_ref().map_or(&[][..], |cold| &cold.rows);
    let time = groups(rows, |row| Some(row.timing.mean), nanoseconds, cold);
    let counted = |own, theirs| format!("{} of {}", grouped(own), grouped(theirs));
    let instructions = groups(rows, |row| row.instructions, counted, &[]);
    let mut files = vec![
        ("RESULTS.md", page(&results)),
        ("time.svg", chart::svg("Time of a call, relative to the peer's (less is better)", &time)),
        ("instructions.svg", chart::svg("Instructions of a call, relative to the peer's", &instructions)),
    ];
    // Sections that hw-tests/nvmf/bench and hw-tests/orders-bench have written.
    let sections = ["nvmf.md", "orders.md"].map(|name| fs::read_to_string(folder.join(name)).ok());
    for section in sections.iter().flatten() {
        files[0].1 += &format!("\n{section}");
    }
    if let Some(section) = &sections[0] {
        let reads = storage::group(section);
        files.push((
            "nvmf.svg",
            chart::svg("Time of a read, relative to the peer's (less is better)", &[reads]),
        ));
    }
    for (name, text) in files {
        let path = folder.join(name);
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::Timing;

    fn row(subject: Subject, case: CaseName, ns: f64) -> Row {
        let timing = Timing { mean: ns, p50: ns, p99: ns, p999: ns };
        let spec = Spec { case, batch: 1, segments: 1, depth: 1023 };
        Row { spec, subject, timing, instructions: Some(10.0 * ns), locked: None }
    }

    #[test]
    fn losses_come_first_and_are_bold() {
        let rows = [
            row(Subject::Libdaplofa, CaseName::DatPost, 20.0),
            row(Subject::Provider, CaseName::DatPost, 5.0),
            row(Subject::Libdaplofa, CaseName::DatWait, 20.0),
            row(Subject::Provider, CaseName::DatWait, 30.0),
        ];
        let page = page(&Results { rows: rows.to_vec(), ..Results::default() });
        let lines: Vec<_> = page.lines().filter(|line| line.starts_with("| dat_")).collect();
        let expected = [
            "| dat_evd_wait, 256 waiting | 20.0 | 30.0 | **1.50** | 200 / 300 |",
            "| dat_srq_post_recv | 20.0 | 5.00 | 0.25 | 200 / 50 |",
        ];
        assert_eq!(lines, expected, "{page}");
        assert!(!page.contains("Verbs programs"), "a table without rows is left out: {page}");
    }

    #[test]
    fn rust_is_compared_with_the_call_in_c() {
        let rows = [
            row(Subject::Provider, CaseName::EmptyPoll, 3.0),
            row(Subject::Provider, CaseName::DatEmpty, 2.0),
        ];
        let page = page(&Results { rows: rows.to_vec(), ..Results::default() });
        assert!(page.contains("| poll, nothing there | 2.00 | 3.00 | **1.50** |"), "{page}");
        let groups = groups(&rows, |row| Some(row.timing.mean), nanoseconds, &[]);
        assert_eq!(groups[2].rows[0].1[0].label, "3.00 of 2.00 ns");
    }

    #[test]
    fn cold_figures_have_tables_and_bars_of_their_own() {
        let cold = |subject, ns: f64, lines| {
            let at = |mean| Timing { mean, p50: mean, p99: mean, p999: mean };
            let spec = Spec { case: CaseName::Poll, batch: 1, segments: 1, depth: 1023 };
            let lines = Some(cold::Lines { read: lines, written: 1.0 });
            cold::Row { spec, subject, timings: [at(10.0), at(20.0), at(ns)], lines }
        };
        let rows = vec![cold(Subject::Libmlx5Lock, 100.0, 8.0), cold(Subject::Verbs, 80.0, 9.0)];
        let warm =
            [row(Subject::Libmlx5Lock, CaseName::Poll, 20.0), row(Subject::Verbs, CaseName::Poll, 10.0)];
        let groups = groups(&warm, |row| Some(row.timing.mean), nanoseconds, &rows);
        let (name, bars) = &groups[1].rows[0];
        assert_eq!(name, "poll a receive");
        let bars: Vec<_> = bars.iter().map(|bar| (bar.series, bar.cold, bar.label.as_str())).collect();
        assert_eq!(bars, [(1, false, "10.0 of 20.0 ns"), (1, true, "80.0 of 100 ns")]);
        let cold = Some(Cold { run: Run::default(), rows });
        let page = page(&Results { rows: warm.to_vec(), cold, ..Results::default() });
        assert!(
            page.contains("| poll a receive | 100 | 80.0 | 0.80 | 1.00 | 1.00 | 9.00 / 10.0 |"),
            "{page}"
        );
    }

    #[test]
    fn numbers_have_three_digits() {
        let all = [0.091, 9.99, 9.999, 10.04, 123.4, 1234.5, 106_789.0].map(short);
        assert_eq!(all, ["0.09", "9.99", "10.0", "10.0", "123", "1,234", "106,789"]);
    }
}
