//! Measures every case of every subject in one run and writes the report.

use std::{
    fmt::Write as _,
    path::PathBuf,
    process::Command,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use anyhow::{Context, Result, anyhow, bail};
use clap::Parser;
use doorbell_benches::{
    aims, build, build_empty,
    case::{COUNTED_RUNS, counted, trapped},
    count::{self, Executed},
    dat::{DatPost, Stepper, library},
    device, dtest, host, libmlx5, page,
    plan::{CaseName, Spec, Subject, plan},
    report,
    report::Row,
    sample::{self, Effort, Timing},
    uct::Uct,
};

/// Measures the data paths on queues of the software device, or of a real one.
#[derive(Parser)]
struct Args {
    /// Few shapes, short samples, instruction counts only of cases through libdat2: under a minute.
    #[arg(long)]
    quick: bool,
    /// Only cases whose name contains this; dtest's latencies are the case `dtest`.
    #[arg(long, default_value = "")]
    only: String,
    /// Only this subject: libmlx5-lock, libmlx5-nolock, verbs, mlx5-direct, ucx, provider,
    /// provider-verbs or libdaplofa.
    #[arg(long, value_parser = subject)]
    subject: Option<Subject>,
    /// Rounds over all cases and subjects; each figure is the median of its rounds.
    #[arg(long)]
    rounds: Option<usize>,
    /// Milliseconds to sample a case in each round.
    #[arg(long)]
    millis: Option<u64>,
    /// An mlx5 device of this machine instead of the software device. Leaves out the cases that
    /// complete at random.
    #[arg(long)]
    device: Option<String>,
    /// The libdoorbell.so to measure, instead of the one beside this program.
    #[arg(long, value_name = "FILE")]
    libdoorbell: Option<PathBuf>,
    /// Do not count instructions.
    #[arg(long)]
    no_instructions: bool,
    /// Measure nothing: write page and charts of the report that is there.
    #[arg(long)]
    page: bool,
    /// Write nothing: print what a message by the pools costs, by both data paths.
    #[arg(long)]
    own: bool,
    /// Where to write the report; the page of results and the charts go beside it.
    #[arg(long, default_value = "target/bench/report.json")]
    out: PathBuf,
    /// In a separate process: time the n-th case of the plan.
    #[arg(long, value_name = "N", hide = true)]
    time: Option<usize>,
    /// In a separate process: run these cases of the plan for an instruction counter.
    #[arg(long, value_name = "N", hide = true, num_args = 1..)]
    count: Vec<usize>,
    /// In a separate process: run the n-th case of the plan with a breakpoint trap at each end of
    /// each group.
    #[arg(long, value_name = "N", hide = true)]
    trap: Option<usize>,
    /// With --trap: how many groups.
    #[arg(long, value_name = "N", hide = true, default_value_t = count::TRAPPED_RUNS)]
    runs: u32,
    /// With --count or --time: use a data path that does nothing.
    #[arg(long, hide = true)]
    empty: bool,
}

fn subject(name: &str) -> Result<Subject, String> {
    Subject::by_name(name).ok_or_else(|| {
        let names: Vec<_> = Subject::ALL.iter().map(|subject| subject.name()).collect();
        format!("it is one of {}", names.join(", "))
    })
}

impl Args {
    fn effort(&self) -> Effort {
        let millis = self.millis.unwrap_or(if self.quick { 20 } else { 50 });
        Effort { time: Duration::from_millis(millis), samples: if self.quick { 200 } else { 1000 } }
    }

    fn rounds(&self) -> usize {
        self.rounds.unwrap_or(if self.quick { 3 } else { 5 }).max(1)
    }
}

fn main() -> Result<()> {
    let args = Args::parse();
    if let Some(name) = &args.device {
        device::choose(name.clone());
    }
    if let Some(n) = args.time {
        return time_here(&args, n);
    }
    if !args.count.is_empty() {
        return count_here(&args);
    }
    if let Some(n) = args.trap {
        return trap_here(&args, n);
    }
    match args {
        Args { page: true, .. } => write_page(&args),
        Args { own: true, .. } => own(&args),
        _ => measure(&args),
    }
}

/// Prints the time and instructions of a message by the pools, without the device: what a program
/// spends in the provider.
fn own(args: &Args) -> Result<()> {
    let whole = plan(args.quick).into_iter().enumerate();
    let (index, spec) =
        { whole }.find(|(_, spec)| spec.case == CaseName::PoolMessage).context("no such case")?;
    let stepper = if cfg!(target_arch = "x86_64") { Some(Stepper::new()?) } else { None };
    println!("In Doorbell: receive, post of the buffer, answer of 32 bytes, completion of the answer:");
    for (name, subject) in [("direct path", Subject::Provider), ("standard verbs", Subject::ProviderVerbs)] {
        let job = Job { index, spec, subject };
        let timings: Result<Vec<_>> =
            (0..args.rounds()).map(|_| time_elsewhere(args, job, &mut None)).collect();
        let mut line = format!("  {name:15} {:6.0} ns", Timing::median(&timings?).mean);
        if let Some(stepper) = &stepper {
            let mut command = again(subject)?;
            command.args(["--trap", &index.to_string()]).args(args.quick.then_some("--quick"));
            let operations = operations(&spec) * count::TRAPPED_RUNS;
            let each = stepper.steps(&command)?.instructions / u64::from(operations);
            let _ = write!(line, ", {each:5} instructions");
        }
        println!("{line}");
    }
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    println!(
        "The rest of p50 above is the software device: its engine, and two processes that take turns on \
         {processors} processors;\nmessages that wait behind others; and the check of each byte. On a card, the \
         card is the device:\nmake hw-test DEVICE=mlx5_0"
    );
    Ok(())
}

/// Writes the page and the charts of the report that is there.
fn write_page(args: &Args) -> Result<()> {
    page::write(&args.out, &args.out.with_file_name("cold.json"))
}

/// Times one case of one subject, as the parent process asks.
fn time_here(args: &Args, n: usize) -> Result<()> {
    let subject = args.subject.context("--time needs --subject")?;
    let spec = *plan(args.quick).get(n).context("no such case")?;
    let mut case = if args.empty { build_empty(&spec) } else { build(subject, &spec)? };
    let Timing { mean, p50, p99, p999 } = sample::time(case.as_mut(), args.effort());
    println!("{mean} {p50} {p99} {p999} {}", case.data_path().unwrap_or("-"));
    Ok(())
}

fn count_here(args: &Args) -> Result<()> {
    let subject = args.subject.context("--count needs --subject")?;
    let plan = plan(args.quick);
    for n in &args.count {
        let spec = plan.get(*n).context("no such case")?;
        let mut case = if args.empty { build_empty(spec) } else { build(subject, spec)? };
        // Work that happens only once.
        case.prepare();
        case.run();
        counted(case.as_mut(), COUNTED_RUNS);
        println!("{}", case.operations());
        // The queues are not destroyed, so that the count has no commands to a device.
        std::mem::forget(case);
    }
    Ok(())
}

/// Runs one case of one subject for a program that counts by single steps.
fn trap_here(args: &Args, n: usize) -> Result<()> {
    let subject = args.subject.context("--trap needs --subject")?;
    let spec = *plan(args.quick).get(n).context("no such case")?;
    let mut case = build(subject, &spec)?;
    // Work that happens only once, and the first entries of locks.
    for _ in 0..4 {
        case.prepare();
        case.run();
    }
    trapped(case.as_mut(), args.runs);
    std::mem::forget(case);
    Ok(())
}

/// A case of the plan and a subject that takes part.
#[derive(Clone, Copy)]
struct Job {
    index: usize,
    spec: Spec,
    subject: Subject,
}

impl Job {
    fn through_libdat(&self) -> bool {
        self.spec.case.through_libdat()
    }

    /// Whether this program runs the case, and not a program in C.
    fn is_here(&self) -> bool {
        !self.through_libdat() && self.subject != Subject::Ucx
    }
}

fn measure(args: &Args) -> Result<()> {
    if let Some(name) = device::named() {
        // Reports a provider that does not work before a hundred processes fail.
        doorbell::Ia::open(name)?;
    }
    let dat = match &args.libdoorbell {
        Some(file) => {
            let named = file.canonicalize();
            DatPost::with(named.with_context(|| format!("cannot measure {}", file.display()))?)
        }
        None => DatPost::new(),
    };
    let dat = dat.map_err(|e| println!("cases through libdat2 are left out: {e:#}")).ok();
    let uct = Uct::new().map_err(|e| println!("the subject ucx is left out: {e:#}")).ok();
    let verbs = library("libdoorbell_verbs.so").map_err(|e| println!("the subject verbs is left out: {e:#}"));
    let mut jobs = vec![];
    for (index, spec) in plan(args.quick).into_iter().enumerate() {
        let wanted = spec.case.name().contains(&args.only) && (!spec.case.through_libdat() || dat.is_some());
        // A real device completes the receives of an SRQ in order.
        let possible = device::named().is_none() || !spec.case.is_random();
        let wanted = wanted && possible;
        let subjects = Subject::ALL.into_iter().filter(|s| args.subject.is_none_or(|only| only == *s));
        let subjects = subjects.filter(|s| *s != Subject::Verbs || verbs.is_ok());
        let subjects = subjects.filter(|s| *s != Subject::Ucx || uct.is_some());
        jobs.extend(subjects.filter(|s| wanted && s.does(&spec)).map(|subject| Job { index, spec, subject }));
    }
    let with_dtest = "dtest".contains(&args.only) && args.subject.is_none();
    if with_dtest && !dtest::available() {
        println!("dtest's latencies are left out: no dtest (package dapl2-utils)");
    }
    let with_dtest = with_dtest && dtest::available();
    let mut latencies = dtest::Latencies::default();
    // Each round runs all cases, so that a temporary load on the machine affects all subjects of a
    // case.
    let mut timings = vec![vec![]; jobs.len()];
    let mut data_path = None;
    for round in 1..=args.rounds() {
        eprintln!("round {round} of {}: {} measurements", args.rounds(), jobs.len());
        for (job, timings) in jobs.iter().zip(&mut timings) {
            let timing = match (&dat, &uct) {
                (Some(dat), _) if job.through_libdat() => dat.time(job.subject, &job.spec, args.effort())?,
                (_, Some(uct)) if job.subject == Subject::Ucx => uct.time(&job.spec, args.effort())?,
                _ => time_elsewhere(args, *job, &mut data_path)?,
            };
            timings.push(timing);
        }
        if let Some(dat) = dat.as_ref().filter(|_| with_dtest) {
            latencies.measure(dat, round)?;
        }
    }
    let mut counts = vec![Count::default(); jobs.len()];
    if !args.no_instructions {
        eprintln!("counting instructions");
        let mut works = vec![];
        if !args.quick && count::available() {
            works.extend(count_queues(&jobs));
        }
        if cfg!(target_arch = "x86_64") {
            let groups = if args.quick { 1 } else { 4 };
            works.extend(dat.as_ref().map(|dat| count_dat(&jobs, dat, groups)).into_iter().flatten());
            works.extend(uct.as_ref().map(|uct| count_uct(&jobs, uct, groups)).into_iter().flatten());
        }
        for (job, count) in side_by_side(works)?.into_iter().flatten() {
            counts[job] = count;
        }
    }
    let rows: Vec<Row> = jobs
        .iter()
        .zip(timings)
        .zip(counts)
        .map(|((job, timings), Count { instructions, locked })| Row {
            spec: job.spec,
            subject: job.subject,
            timing: Timing::median(&timings),
            instructions,
            locked,
        })
        .collect();

    println!("{}", report::to_table(&rows));
    let installed = libmlx5::version();
    let searches = installed.is_some_and(|version| version >= 48);
    println!("{}", aims::to_table(&rows, searches));
    if with_dtest {
        println!("{}", latencies.to_table());
    }
    let version = installed.map_or("unknown".to_owned(), |v| v.to_string());
    println!("device: {}", device::named().unwrap_or("mlx5_0, in software"));
    println!(
        "libmlx5 of rdma-core {version}; data path of the provider: {}",
        data_path.as_deref().unwrap_or("-")
    );
    if let Ok(load) = std::fs::read_to_string("/proc/loadavg") {
        println!("load now: {}", load.trim());
    }
    let memory = host::pages_taken(Duration::from_secs(1)).to_string();
    println!("{memory}");
    let folder = args.out.parent().context("a report is in a folder")?;
    report::write(&rows, &args.out)?;
    report::write_json(
        &page::Run::here(device::named().unwrap_or("in software"), &memory),
        &folder.join("run.json"),
    )?;
    report::write_json(&latencies.lines(), &folder.join("dtest.json"))?;
    write_page(args)?;
    println!("written: {} and, beside it, RESULTS.md and the charts", args.out.display());
    Ok(())
}

fn again(subject: Subject) -> Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["--subject", subject.name()]).envs(subject.environment().iter().copied());
    command.args(device::named().map(|name| ["--device", name]).into_iter().flatten());
    if subject == Subject::Verbs {
        command.env("LD_PRELOAD", library("libdoorbell_verbs.so")?);
    }
    Ok(command)
}

/// Times a case in a separate process.
fn time_elsewhere(args: &Args, job: Job, data_path: &mut Option<String>) -> Result<Timing> {
    let mut command = again(job.subject)?;
    command.args(["--time", &job.index.to_string()]);
    command.args(args.quick.then_some("--quick"));
    if let Some(millis) = args.millis {
        command.args(["--millis", &millis.to_string()]);
    }
    let output = command.output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let words: Vec<&str> = text.split_whitespace().collect();
    let figures: Vec<f64> = words.iter().map_while(|w| w.parse().ok()).collect();
    let ([mean, p50, p99, p999], true) = (&figures[..], output.status.success()) else {
        bail!(
            "{} of {}: {}",
            job.spec.case.name(),
            job.subject.name(),
            String::from_utf8_lossy(&output.stderr)
        );
    };
    if job.subject == Subject::Provider {
        *data_path = words.last().map(|w| (*w).to_owned());
    }
    Ok(Timing { mean: *mean, p50: *p50, p99: *p99, p999: *p999 })
}

/// The counts per operation, as far as they were taken.
#[derive(Clone, Copy, Debug, Default)]
struct Count {
    instructions: Option<f64>,
    locked: Option<f64>,
}

impl Count {
    /// What was stepped through, in this number of operations.
    fn of((steps, operations): (count::Steps, u32)) -> Self {
        let per_operation = |n: u64| Some(n as f64 / f64::from(operations));
        Self { instructions: per_operation(steps.instructions), locked: per_operation(steps.locked) }
    }
}

/// Counts some of the jobs, which it names by their indexes.
type Work<'a> = Box<dyn FnOnce() -> Result<Vec<(usize, Count)>> + Send + 'a>;

/// Does all of the works, as many at a time as there are processors.
fn side_by_side(works: Vec<Work<'_>>) -> Result<Vec<Vec<(usize, Count)>>> {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let works = Mutex::new(works.into_iter());
    let next = || works.lock().unwrap_or_else(PoisonError::into_inner).next();
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..processors)
            .map(|_| scope.spawn(|| std::iter::from_fn(next).map(|work| work()).collect::<Result<Vec<_>>>()))
            .collect();
        let mut all = vec![];
        for thread in threads {
            all.extend(thread.join().map_err(|_| anyhow!("a count has panicked"))??);
        }
        Ok(all)
    })
}

/// Instructions and locked instructions per operation of the jobs that run in this program: for each
/// subject, one run under callgrind, and one of the runner alone.
fn count_queues(jobs: &[Job]) -> Vec<Work<'_>> {
    let mut works: Vec<Work<'_>> = vec![];
    for subject in Subject::ALL {
        let own: Vec<usize> =
            (0..jobs.len()).filter(|n| jobs[*n].subject == subject && jobs[*n].is_here()).collect();
        if !own.is_empty() {
            works.push(Box::new(move || count_own(jobs, subject, own)));
        }
    }
    works
}

/// The counts of these jobs of one subject.
fn count_own(jobs: &[Job], subject: Subject, own: Vec<usize>) -> Result<Vec<(usize, Count)>> {
    let cases: Vec<usize> = own.iter().map(|n| jobs[*n].index).collect();
    let (all, around) = (count(subject, &cases, false)?, count(subject, &cases, true)?);
    let of = |(n, (all, around)): (usize, (Executed, Executed))| {
        let operations = f64::from(operations(&jobs[n].spec) * COUNTED_RUNS);
        let per_operation = |of: fn(&Executed) -> f64| (of(&all) - of(&around)) / operations;
        let instructions = Some(per_operation(|executed| executed.instructions));
        let locked = cfg!(target_arch = "x86_64").then(|| per_operation(|executed| executed.locked));
        (n, Count { instructions, locked })
    };
    Ok(own.into_iter().zip(all.into_iter().zip(around)).map(of).collect())
}

/// Instructions and locked instructions per operation of the jobs that go through libdat2, counted
/// by single steps in `groups` groups of operations.
fn count_dat<'a>(jobs: &'a [Job], dat: &'a DatPost, groups: u32) -> Vec<Work<'a>> {
    let mut works: Vec<Work<'_>> = vec![];
    for (n, job) in jobs.iter().enumerate() {
        let case = job.spec.case;
        if case.through_libdat() && case.threads().is_none() && !case.is_control() {
            works
                .push(Box::new(move || Ok(vec![(n, Count::of(dat.steps(job.subject, &job.spec, groups)?))])));
        }
    }
    works
}

/// As [`count_dat`], of the jobs of UCX.
fn count_uct<'a>(jobs: &'a [Job], uct: &'a Uct, groups: u32) -> Vec<Work<'a>> {
    let mut works: Vec<Work<'_>> = vec![];
    for (n, job) in jobs.iter().enumerate().filter(|(_, job)| job.subject == Subject::Ucx) {
        works.push(Box::new(move || Ok(vec![(n, Count::of(uct.steps(&job.spec, groups)?))])));
    }
    works
}

/// What cases of the plan execute for one subject; if `empty`, the runner alone.
fn count(subject: Subject, cases: &[usize], empty: bool) -> Result<Vec<Executed>> {
    let mut command = again(subject)?;
    command.arg("--count").args(cases.iter().map(usize::to_string));
    command.args(empty.then_some("--empty"));
    let totals = count::executed(
        &command,
        "doorbell_benches::case::measured",
        Some("doorbell_benches::case::counted"),
    )?;
    if totals.len() < cases.len() {
        bail!("callgrind counted {} of {} cases of {}", totals.len(), cases.len(), subject.name());
    }
    Ok(totals)
}

/// Operations of a sample.
fn operations(spec: &Spec) -> u32 {
    doorbell_benches::cases::calls(spec) * spec.batch
}
