#![expect(unsafe_code, reason = "work that borrows, on another thread")]
//! Figures with cold cache lines.
//!
//! A thread on another core does the device's work, so that this core has to fetch each line that a
//! device writes: completion entries and payload. Before each call, the program walks a table of
//! its own, which drives the queues out of the inner caches. Each call is timed alone. METHOD.md
//! says what this stands for, and what it leaves out.

use std::{
    hint::black_box,
    path::Path,
    process::Command,
    sync::{
        Mutex, OnceLock, PoisonError,
        mpsc::{Receiver, Sender, channel},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use comfy_table::Table;
use nix::{
    sched::{CpuSet, sched_getaffinity, sched_setaffinity},
    unistd::Pid,
};

use crate::{
    case::{Case, measured_call},
    plan::{CaseName, Spec, Subject},
    report::{self, table},
    sample::Timing,
};

/// Bytes of the table that is walked between two calls.
pub const SETS: [usize; 3] = [0, 256 << 10, 4 << 20];

/// Bytes of a cache line.
const LINE: usize = 64;

/// The cases that are measured with cold lines.
pub fn plan() -> Vec<Spec> {
    use CaseName::*;
    let spec = |case, batch, depth| Spec { case, batch, segments: 1, depth };
    let mut plan = vec![];
    plan.extend([1, 32].map(|batch| spec(Post, batch, 1023)));
    plan.extend([1, 16].map(|batch| spec(Poll, batch, 1023)));
    plan.extend([1, 16].map(|batch| spec(PollFree, batch, 1023)));
    plan.extend([1, 32].map(|batch| spec(RandomCompletion, batch, 1023)));
    plan.extend([Send, ReapSend, Message, MessageInBuffer, MessageLarge].map(|case| spec(case, 1, 128)));
    plan.extend([DatPost, DatReap, DatSend, DatReapSend, DatAnswer].map(|case| spec(case, 1, 1023)));
    plan
}

type Work = Box<dyn FnOnce() + std::marker::Send>;

/// The thread on the other core.
struct Writer {
    work: Mutex<Sender<Work>>,
    done: Mutex<Receiver<()>>,
}

static WRITER: OnceLock<Writer> = OnceLock::new();

/// Work that one thread hands to another, and waits for.
struct Lent<F>(F);

// SAFETY: `elsewhere` waits for the end of the work, so only one of the two threads uses what the
// work borrows.
unsafe impl<F> std::marker::Send for Lent<F> {}

impl<F: FnOnce()> Lent<F> {
    /// By a method, so that a closure captures the whole value.
    fn run(self) {
        (self.0)();
    }
}

/// Does the work of the device: on the other core if there is one, otherwise here.
pub fn elsewhere(work: impl FnOnce()) {
    let Some(writer) = WRITER.get() else { return work() };
    let lent = Lent(work);
    let work: Box<dyn FnOnce() + std::marker::Send + '_> = Box::new(move || lent.run());
    // SAFETY: the work has ended, and what it borrows is no longer used, when this function returns;
    // if the writer's thread is gone, the process ends.
    let work = unsafe { std::mem::transmute::<Box<dyn FnOnce() + std::marker::Send + '_>, Work>(work) };
    let sent = writer.work.lock().unwrap_or_else(PoisonError::into_inner).send(work).is_ok();
    let done = writer.done.lock().unwrap_or_else(PoisonError::into_inner).recv().is_ok();
    if !(sent && done) {
        std::process::abort();
    }
}

/// Keeps the calling thread on one core.
fn stay_on(cpu: usize) -> Result<()> {
    let mut one = CpuSet::new();
    one.set(cpu)?;
    sched_setaffinity(Pid::from_raw(0), &one).context("sched_setaffinity")
}

/// Starts the thread on the other core, and keeps this thread on its own.
///
/// # Errors
///
/// This process may use one core only.
pub fn start_writer() -> Result<()> {
    let allowed = sched_getaffinity(Pid::from_raw(0))?;
    let cpus: Vec<usize> = (0..CpuSet::count()).filter(|cpu| allowed.is_set(*cpu) == Ok(true)).collect();
    ensure!(cpus.len() > 1, "cold lines need two cores, one for the writer");
    let (work, works) = channel::<Work>();
    let (ready, done) = channel();
    let other = cpus[1];
    thread::Builder::new().name("writer".to_owned()).spawn(move || {
        if stay_on(other).is_err() {
            return;
        }
        for work in works {
            work();
            if ready.send(()).is_err() {
                return;
            }
        }
    })?;
    let writer = Writer { work: Mutex::new(work), done: Mutex::new(done) };
    ensure!(WRITER.set(writer).is_ok(), "the writer was started before");
    stay_on(cpus[0])
}

/// Data of the program's own.
pub struct WorkingSet(Vec<u64>);

impl WorkingSet {
    /// A table of this size.
    pub fn new(bytes: usize) -> Self {
        Self((0..bytes as u64 / 8).collect())
    }

    /// Reads a word of each line.
    #[inline(never)]
    pub fn walk(&self) {
        let sum = self.0.iter().step_by(LINE / 8).fold(0, |sum: u64, word| sum.wrapping_add(*word));
        black_box(sum);
    }
}

/// A clock for single calls: what is before a reading ends before it, and what is behind it begins
/// after it.
struct Clock {
    /// Nanoseconds of a call that does nothing.
    cost: f64,
    ns_per_tick: f64,
}

/// A case of which each call does nothing.
struct Nothing;

impl Case for Nothing {
    fn operations(&self) -> u32 {
        1
    }

    fn prepare(&mut self) {}

    fn run(&mut self) {}
}

impl Clock {
    fn new() -> Self {
        let (instant, start) = (Instant::now(), Self::ticks());
        while instant.elapsed() < Duration::from_millis(20) {}
        let ns_per_tick = instant.elapsed().as_nanos() as f64 / (Self::ticks() - start) as f64;
        let mut clock = Self { cost: 0.0, ns_per_tick };
        // A reading of the clock may be a multiple of 10 ns, so only means are exact.
        let costs = (0..10_000).map(|_| clock.time(&mut Nothing, 0)).collect();
        clock.cost = timing(costs, 1).mean;
        clock
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn ticks() -> u64 {
        use core::arch::x86_64::{_mm_lfence, _rdtsc};
        // SAFETY: instructions of every x86-64 processor.
        unsafe {
            _mm_lfence();
            let ticks = _rdtsc();
            _mm_lfence();
            ticks
        }
    }

    #[cfg(not(target_arch = "x86_64"))]
    #[inline(always)]
    fn ticks() -> u64 {
        static START: OnceLock<Instant> = OnceLock::new();
        START.get_or_init(Instant::now).elapsed().as_nanos() as u64
    }

    #[inline(always)]
    fn ticks_of(case: &mut dyn Case, n: u32) -> u64 {
        let before = Self::ticks();
        measured_call(case, n);
        Self::ticks() - before
    }

    /// Nanoseconds of a call; below 0 where the clock's steps are longer than the call.
    fn time(&self, case: &mut dyn Case, n: u32) -> f64 {
        Self::ticks_of(case, n) as f64 * self.ns_per_tick - self.cost
    }
}

/// From nanoseconds of calls of this many operations. The mean is without the slowest tenth, in
/// which another program or the scheduler came between.
pub fn timing(mut calls: Vec<f64>, batch: u32) -> Timing {
    calls.sort_by(f64::total_cmp);
    let batch = f64::from(batch);
    let at = |q: f64| calls[((calls.len() - 1) as f64 * q) as usize] / batch;
    let kept = &calls[..calls.len() - calls.len() / 10];
    let mean = kept.iter().sum::<f64>() / kept.len() as f64 / batch;
    Timing { mean, p50: at(0.5), p99: at(0.99), p999: at(0.999) }
}

/// Calls that are timed, at least.
pub const SAMPLES: usize = 256;

/// Times the calls of a case one by one, each after a walk.
pub fn time(case: &mut dyn Case, batch: u32, set: usize, time: Duration) -> Timing {
    let clock = Clock::new();
    let set = WorkingSet::new(set);
    let (mut samples, start) = (vec![], Instant::now());
    let mut warm = false;
    while samples.len() < SAMPLES || start.elapsed() < time {
        case.prepare();
        for n in 0..case.calls() {
            set.walk();
            let took = clock.time(case, n);
            if warm {
                samples.push(took);
            }
        }
        warm = warm || start.elapsed() * 10 > time;
    }
    timing(samples, batch)
}

/// Runs a program of `benches/c` that prints the picoseconds of a call on each line (`cold.h`).
///
/// # Errors
///
/// The error that the program printed.
pub fn samples(command: &mut Command) -> Result<Timing> {
    let output = command.output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8_lossy(&output.stdout);
    let calls: Vec<f64> =
        text.lines().map(|line| Ok(line.parse::<f64>()? / 1000.0)).collect::<Result<_>>()?;
    ensure!(!calls.is_empty(), "the program has timed nothing");
    Ok(timing(calls, 1))
}

/// Calls that are counted in each case.
pub const COUNTED_CALLS: u32 = 256;

/// Runs calls, each with empty caches, for a simulator of caches.
#[inline(never)]
pub fn counted_calls(case: &mut dyn Case, calls: u32) {
    let set = WorkingSet::new(SETS[1]);
    let mut done = 0;
    while done < calls {
        case.prepare();
        for n in 0..case.calls() {
            set.walk();
            measured_call(case, n);
            done += 1;
        }
    }
}

/// Lines that a call fetches, for each operation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Lines {
    /// Lines that are read before they are written.
    pub read: f64,
    /// Lines that are written without a read before.
    pub written: f64,
}

/// A measured case of a subject.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// Case and shape.
    pub spec: Spec,
    /// The measured subject.
    pub subject: Subject,
    /// For each of [`SETS`].
    pub timings: [Timing; 3],
    /// `None` if they were not counted.
    pub lines: Option<Lines>,
}

/// The subject that the others of a case are compared with.
fn reference(spec: &Spec) -> Subject {
    if spec.case.through_libdat() { Subject::Libdaplofa } else { Subject::Libmlx5Lock }
}

/// How many times faster than the reference a row is, for each of [`SETS`].
fn times_faster(rows: &[Row], row: &Row) -> Option<[f64; 3]> {
    let reference = reference(&row.spec);
    let other = rows.iter().find(|other| other.subject == reference && other.spec == row.spec)?;
    let times = |n: usize| other.timings[n].mean / row.timings[n].mean;
    (row.subject != reference).then(|| [0, 1, 2].map(times))
}

/// The rows as a table: case by case, the slowest against libmlx5 or libdaplofa first.
pub fn to_table(rows: &[Row]) -> Table {
    let sizes = ["0", "256 KiB", "4 MiB"];
    let mut heads = vec!["case", "subject", "batch"];
    let columns: Vec<String> = sizes.iter().map(|size| format!("ns, {size}")).collect();
    let ratios: Vec<String> = sizes.iter().map(|size| format!("x, {size}")).collect();
    heads.extend(columns.iter().map(String::as_str));
    heads.extend(ratios.iter().map(String::as_str));
    heads.extend(["p99, 4 MiB", "read", "written"]);
    let mut table = table(&heads, 2);
    for row in sorted(rows) {
        let mut cells =
            vec![row.spec.case.name().to_owned(), row.subject.name().to_owned(), row.spec.batch.to_string()];
        cells.extend(row.timings.iter().map(|timing| format!("{:.1}", timing.mean)));
        match times_faster(rows, row) {
            Some(times) => cells.extend(times.map(|times| format!("{times:.2}"))),
            None => cells.extend(["-"; 3].map(str::to_owned)),
        }
        cells.push(format!("{:.1}", row.timings[2].p99));
        let count =
            |of: fn(&Lines) -> f64| row.lines.as_ref().map_or("-".to_owned(), |l| format!("{:.2}", of(l)));
        cells.extend([count(|lines| lines.read), count(|lines| lines.written)]);
        table.add_row(cells);
    }
    table
}

/// The case with the worst ratio of this project's fastest subject first.
fn sorted(rows: &[Row]) -> Vec<&Row> {
    let worst = |row: &Row| {
        let of_case = rows.iter().filter(|other| other.spec == row.spec);
        let ratios = of_case.filter(|other| matches!(other.subject, Subject::Mlx5Direct | Subject::Provider));
        ratios
            .filter_map(|other| times_faster(rows, other))
            .map(|times| times[2])
            .fold(f64::INFINITY, f64::min)
    };
    let mut sorted: Vec<&Row> = rows.iter().collect();
    sorted.sort_by(|a, b| worst(a).total_cmp(&worst(b)));
    sorted
}

/// A row as the report has it.
#[derive(serde::Deserialize, serde::Serialize)]
struct Entry {
    case: String,
    subject: String,
    batch: u32,
    depth: u32,
    set_bytes: usize,
    ns_per_op: f64,
    p50_ns: f64,
    p99_ns: f64,
    lines_read: Option<f64>,
    lines_written: Option<f64>,
}

/// Writes the rows, one entry for each size of the table.
///
/// # Errors
///
/// Those of the file system.
pub fn write_json(rows: &[Row], path: &Path) -> Result<()> {
    let entries: Vec<Entry> = rows
        .iter()
        .flat_map(|row| {
            SETS.iter().zip(row.timings).map(|(set, timing)| Entry {
                case: row.spec.case.name().to_owned(),
                subject: row.subject.name().to_owned(),
                batch: row.spec.batch,
                depth: row.spec.depth,
                set_bytes: *set,
                ns_per_op: timing.mean,
                p50_ns: timing.p50,
                p99_ns: timing.p99,
                lines_read: row.lines.map(|lines| lines.read),
                lines_written: row.lines.map(|lines| lines.written),
            })
        })
        .collect();
    report::write_json(&entries, path)
}

/// The rows of a report that [`write_json`] has written.
///
/// # Errors
///
/// The error of the file system; a text if it is no report.
pub fn read_json(path: &Path) -> Result<Vec<Row>> {
    let entries: Vec<Entry> = report::read_json(path)?;
    // A row has an entry for each size of the table.
    let rows = entries.chunks_exact(SETS.len()).filter_map(|entries| {
        let Entry { batch, depth, .. } = entries[0];
        let case = plan().into_iter().map(|spec| spec.case).find(|case| case.name() == entries[0].case)?;
        let timing = |n: usize| {
            let Entry { ns_per_op, p50_ns, p99_ns, .. } = entries[n];
            Timing { mean: ns_per_op, p50: p50_ns, p99: p99_ns, p999: p99_ns }
        };
        Some(Row {
            spec: Spec { case, batch, segments: 1, depth },
            subject: Subject::by_name(&entries[0].subject)?,
            timings: [0, 1, 2].map(timing),
            lines: entries[0]
                .lines_read
                .zip(entries[0].lines_written)
                .map(|(read, written)| Lines { read, written }),
        })
    });
    Ok(rows.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mean_is_without_the_slowest_tenth() {
        let calls: Vec<f64> = (0..100).rev().map(|n| if n < 90 { 10.0 } else { 1e6 }).collect();
        let Timing { mean, p50, p99, .. } = timing(calls, 2);
        assert_eq!((mean, p50, p99), (5.0, 5.0, 5e5));
    }

    #[test]
    fn a_report_is_read_as_it_was_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cold.json");
        let spec = Spec { case: CaseName::Poll, batch: 16, segments: 1, depth: 1023 };
        let at = |ns: f64| Timing { mean: ns, p50: ns, p99: 2.0 * ns, p999: 2.0 * ns };
        let timings = [at(1.5), at(20.25), at(300.0)];
        let lines = Some(Lines { read: 5.0, written: 1.0 });
        let rows = [
            Row { spec, subject: Subject::Ucx, timings, lines },
            Row { spec, subject: Subject::Verbs, timings, lines: None },
        ];
        write_json(&rows, &path).unwrap();
        assert_eq!(format!("{:?}", read_json(&path).unwrap()), format!("{rows:?}"));
    }

    #[test]
    fn the_worst_case_comes_first() {
        let spec = |case| Spec { case, batch: 1, segments: 1, depth: 128 };
        let at = |ns: f64| Timing { mean: ns, p50: ns, p99: ns, p999: ns };
        let row = |case, subject, ns| Row { spec: spec(case), subject, timings: [at(ns); 3], lines: None };
        let rows = [
            row(CaseName::Send, Subject::Libmlx5Lock, 30.0),
            row(CaseName::Send, Subject::Mlx5Direct, 10.0),
            row(CaseName::Message, Subject::Libmlx5Lock, 30.0),
            row(CaseName::Message, Subject::Mlx5Direct, 20.0),
        ];
        let order: Vec<CaseName> = sorted(&rows).iter().map(|row| row.spec.case).collect();
        assert_eq!(order, [CaseName::Message, CaseName::Message, CaseName::Send, CaseName::Send]);
        assert_eq!(times_faster(&rows, &rows[3]), Some([1.5; 3]));
        assert_eq!(times_faster(&rows, &rows[2]), None);
    }
}
