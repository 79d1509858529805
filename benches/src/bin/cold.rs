//! Measures the data paths with cold cache lines, as `make bench COLD=1` does.

use std::{fs, path::PathBuf, process::Command, time::Duration};

use anyhow::{Context, Result, bail, ensure};
use clap::Parser;
use doorbell_benches::{
    build, build_empty,
    cold::{self, COUNTED_CALLS, Lines, Row, SETS},
    count,
    dat::{DatPost, library},
    host, page,
    plan::{Spec, Subject},
    report,
    sample::{Effort, Timing},
    uct::Uct,
};

/// Measures calls whose cache lines are cold, on queues of the software device.
#[derive(Parser)]
struct Args {
    /// Only cases whose name contains this.
    #[arg(long, default_value = "")]
    only: String,
    /// Only this subject, by its name in the report.
    #[arg(long, value_parser = subject)]
    subject: Option<Subject>,
    /// Rounds over all cases and subjects; each figure is the median of its rounds.
    #[arg(long, default_value = "5")]
    rounds: usize,
    /// Milliseconds to sample a case with each working set in each round, at least.
    #[arg(long, default_value = "50")]
    millis: u64,
    /// The libdoorbell.so to measure, instead of the one beside this program.
    #[arg(long, value_name = "FILE")]
    libdoorbell: Option<PathBuf>,
    /// Do not count cache lines.
    #[arg(long)]
    no_lines: bool,
    /// Where to write the report; the page of results and the charts go beside it.
    #[arg(long, default_value = "target/bench/cold.json")]
    out: PathBuf,
    /// In a separate process: time the n-th case.
    #[arg(long, value_name = "N", hide = true)]
    time: Option<usize>,
    /// With --time: the bytes that are walked between two calls.
    #[arg(long, value_name = "BYTES", hide = true, default_value = "0")]
    set: usize,
    /// In a separate process: run these cases for a simulator of caches.
    #[arg(long, value_name = "N", hide = true, num_args = 1..)]
    count: Vec<usize>,
    /// With --count: use a data path that does nothing.
    #[arg(long, hide = true)]
    empty: bool,
}

fn subject(name: &str) -> Result<Subject, String> {
    Subject::by_name(name)
        .ok_or_else(|| format!("it is one of {}", Subject::ALL.map(Subject::name).join(", ")))
}

fn main() -> Result<()> {
    let args = Args::parse();
    if let Some(n) = args.time {
        return time_here(&args, n);
    }
    if !args.count.is_empty() {
        return count_here(&args);
    }
    measure(&args)
}

fn case(n: usize) -> Result<Spec> {
    cold::plan().get(n).copied().context("no such case")
}

/// Times a case, as the parent process asks.
fn time_here(args: &Args, n: usize) -> Result<()> {
    let (subject, spec) = (args.subject.context("--time needs --subject")?, case(n)?);
    cold::start_writer()?;
    let mut case = build(subject, &spec)?;
    let time = Duration::from_millis(args.millis);
    let Timing { mean, p50, p99, p999 } = cold::time(case.as_mut(), spec.batch, args.set, time);
    println!("{mean} {p50} {p99} {p999}");
    Ok(())
}

fn count_here(args: &Args) -> Result<()> {
    let subject = args.subject.context("--count needs --subject")?;
    for n in &args.count {
        let spec = case(*n)?;
        let mut case = if args.empty { build_empty(&spec) } else { build(subject, &spec)? };
        // Work that happens only once.
        case.prepare();
        case.run();
        cold::counted_calls(case.as_mut(), COUNTED_CALLS);
        // The queues are not destroyed, so that the count has no commands to a device.
        std::mem::forget(case);
    }
    Ok(())
}

fn again(subject: Subject) -> Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["--subject", subject.name()]).envs(subject.environment().iter().copied());
    if subject == Subject::Verbs {
        command.env("LD_PRELOAD", library("libdoorbell_verbs.so")?);
    }
    Ok(command)
}

/// Times a case in a separate process.
fn time_elsewhere(args: &Args, subject: Subject, n: usize, set: usize) -> Result<Timing> {
    let mut command = again(subject)?;
    command.args(["--time", &n.to_string(), "--set", &set.to_string()]);
    command.args(["--millis", &args.millis.to_string()]);
    let output = command.output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let figures: Vec<f64> = text.split_whitespace().map_while(|word| word.parse().ok()).collect();
    let ([mean, p50, p99, p999], true) = (&figures[..], output.status.success()) else {
        let name = case(n)?.case.name();
        bail!("{name} of {}: {}", subject.name(), String::from_utf8_lossy(&output.stderr));
    };
    Ok(Timing { mean: *mean, p50: *p50, p99: *p99, p999: *p999 })
}

/// Lines for each operation of these cases, without those of the runner.
fn lines(subject: Subject, cases: &[usize]) -> Result<Vec<Lines>> {
    let count = |empty: bool| {
        let mut command = again(subject)?;
        command.arg("--count").args(cases.iter().map(usize::to_string));
        command.args(empty.then_some("--empty"));
        let measured = "doorbell_benches::case::measured_call";
        let found = count::lines(&command, measured, Some("doorbell_benches::cold::counted_calls"))?;
        if found.len() < cases.len() {
            bail!("callgrind counted {} of {} cases of {}", found.len(), cases.len(), subject.name());
        }
        Ok(found)
    };
    let (all, around) = (count(false)?, count(true)?);
    let of = |((n, all), around): ((&usize, [f64; 2]), [f64; 2])| {
        let operations = f64::from(COUNTED_CALLS * case(*n)?.batch);
        let [read, written] = [0, 1].map(|event| (all[event] - around[event]) / operations);
        ensure!(read > 0.0, "the simulator has seen no line of {}", subject.name());
        Ok(Lines { read, written })
    };
    cases.iter().zip(all).zip(around).map(of).collect()
}

/// What runs the cases that are not run by this program.
struct Others {
    dat: Option<DatPost>,
    uct: Option<Uct>,
}

impl Others {
    fn new(args: &Args) -> Self {
        let dat = match &args.libdoorbell {
            Some(file) => file.canonicalize().map_err(Into::into).and_then(DatPost::with),
            None => DatPost::new(),
        };
        Self {
            dat: dat.map_err(|e| println!("cases through libdat2 are left out: {e:#}")).ok(),
            uct: Uct::new().map_err(|e| println!("the subject ucx is left out: {e:#}")).ok(),
        }
    }

    /// The program of a case of a subject.
    fn of(&self, job: &Job) -> Runner<'_> {
        match (&self.dat, &self.uct) {
            (Some(dat), _) if job.spec.case.through_libdat() => Runner::Dat(dat),
            (_, Some(uct)) if job.subject == Subject::Ucx => Runner::Uct(uct),
            _ => Runner::Here,
        }
    }

    fn can(&self, subject: Subject, spec: &Spec) -> bool {
        let here = !spec.case.through_libdat() && subject != Subject::Ucx;
        here || (spec.case.through_libdat() && self.dat.is_some())
            || (subject == Subject::Ucx && self.uct.is_some())
    }
}

enum Runner<'a> {
    Here,
    Dat(&'a DatPost),
    Uct(&'a Uct),
}

/// A case and a subject that takes part.
#[derive(Clone, Copy)]
struct Job {
    index: usize,
    spec: Spec,
    subject: Subject,
}

fn measure(args: &Args) -> Result<()> {
    let others = Others::new(args);
    let verbs = library("libdoorbell_verbs.so").map_err(|e| println!("the subject verbs is left out: {e:#}"));
    let mut jobs = vec![];
    for (index, spec) in cold::plan().into_iter().enumerate() {
        let subjects = Subject::ALL.into_iter().filter(|s| args.subject.is_none_or(|only| only == *s));
        let subjects = subjects.filter(|s| *s != Subject::Verbs || verbs.is_ok());
        // The provider's Rust calls have no cold form.
        let subjects = subjects.filter(|s| {
            spec.case.through_libdat() || !matches!(s, Subject::Provider | Subject::ProviderVerbs)
        });
        let subjects = subjects.filter(|s| others.can(*s, &spec) && s.does(&spec));
        let wanted = spec.case.name().contains(&args.only);
        jobs.extend(subjects.filter(|_| wanted).map(|subject| Job { index, spec, subject }));
    }
    let mut timings = vec![[const { vec![] }; SETS.len()]; jobs.len()];
    let rounds = args.rounds.max(1);
    let effort = Effort { time: Duration::from_millis(args.millis), samples: cold::SAMPLES };
    for round in 1..=rounds {
        eprintln!("round {round} of {rounds}: {} measurements", jobs.len() * SETS.len());
        for (job, timings) in jobs.iter().zip(&mut timings) {
            for (set, timings) in SETS.into_iter().zip(timings) {
                timings.push(match others.of(job) {
                    Runner::Here => time_elsewhere(args, job.subject, job.index, set)?,
                    Runner::Dat(dat) => dat.time_cold(job.subject, &job.spec, set, effort)?,
                    Runner::Uct(uct) => uct.time_cold(&job.spec, set, effort)?,
                });
            }
        }
    }
    let mut found = vec![None; jobs.len()];
    if !args.no_lines && count::available() {
        eprintln!("counting cache lines");
        count_lines(&others, &jobs, &mut found)?;
    }
    let rows: Vec<Row> = jobs
        .into_iter()
        .zip(timings)
        .zip(found)
        .map(|((Job { spec, subject, .. }, timings), lines)| Row {
            spec,
            subject,
            timings: timings.map(|rounds| Timing::median(&rounds)),
            lines,
        })
        .collect();
    let table = cold::to_table(&rows);
    println!("{table}");
    if let Ok(load) = fs::read_to_string("/proc/loadavg") {
        println!("load now: {}", load.trim());
    }
    let folder = args.out.parent().context("a report is in a folder")?;
    cold::write_json(&rows, &args.out)?;
    let memory = host::pages_taken(Duration::from_secs(1)).to_string();
    report::write_json(&page::Run::here("in software", &memory), &folder.join("cold-run.json"))?;
    page::write(&args.out.with_file_name("report.json"), &args.out)?;
    println!("written: {} and, beside it, RESULTS.md and the charts", args.out.display());
    Ok(())
}

fn count_lines(others: &Others, jobs: &[Job], found: &mut [Option<Lines>]) -> Result<()> {
    for subject in Subject::ALL {
        let is_here = |job: &Job| matches!(others.of(job), Runner::Here);
        let own: Vec<usize> =
            (0..jobs.len()).filter(|at| jobs[*at].subject == subject && is_here(&jobs[*at])).collect();
        if own.is_empty() {
            continue;
        }
        let cases: Vec<usize> = own.iter().map(|at| jobs[*at].index).collect();
        for (at, lines) in own.into_iter().zip(lines(subject, &cases)?) {
            found[at] = Some(lines);
        }
    }
    let (set, operations) = (SETS[1], COUNTED_CALLS as usize);
    for (job, found) in jobs.iter().zip(found) {
        // The programs count the operations by which they warm up, too.
        let (counted, warm) = match others.of(job) {
            Runner::Here => continue,
            Runner::Dat(dat) => (dat.lines(job.subject, &job.spec, set, operations), 1),
            Runner::Uct(uct) => (uct.lines(&job.spec, set, operations), 16),
        };
        match counted {
            Ok(all) => {
                let [read, written] = all.map(|lines| lines / (operations + warm) as f64);
                *found = Some(Lines { read, written });
            }
            Err(e) => println!("no lines of {} of {}: {e:#}", job.spec.case.name(), job.subject.name()),
        }
    }
    Ok(())
}
