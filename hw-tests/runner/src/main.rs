//! Runs the tests of this repository: `make test`, `make test-all` and `make test TEST=name`.
//!
//! It builds all test executables, and runs them and the scripts beside them as jobs, as many at a
//! time as the machine has processors for (pool.rs). plan.rs has the jobs: those of the short form,
//! and the rest. The output of each job is a file of target/tests; failed tests are shown at the
//! end. The last line is `N passed, N failed, N skipped`, and the status is 1 if anything failed.

mod build;
mod job;
mod log;
mod one;
mod plan;
mod pool;
mod report;
mod screen;

use crate::build::Executable;
use crate::plan::{Form, Setting};
use crate::screen::Screen;
use anyhow::{Context as _, Result, bail};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

const USAGE: &str = "usage: run-tests short|rest|all [DEVICE[,DEVICE]]
       run-tests one NAME [DEVICE[,DEVICE]]
       run-tests list CARGO-OPTION...

short  what make test runs: every part, in about ten minutes
rest   what make test-all runs beside that
all    both
one    tests whose name contains NAME, on each device and by each data path to which they belong
list   builds the tests that cargo's options choose, and prints the executables that need a device

DEVICE is an RDMA device of this machine, in place of rxe and the software device.";

fn main() -> ExitCode {
    match run(&std::env::args().skip(1).collect::<Vec<_>>()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(e) => {
            // With the line that closes every run: it has failed.
            println!("{e:#}\n0 passed, 1 failed, 0 skipped");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &[String]) -> Result<bool> {
    let words: Vec<_> = arguments.iter().map(String::as_str).filter(|word| !word.is_empty()).collect();
    let (forms, device): (&[Form], _) = match words[..] {
        ["list", ref options @ ..] => return list(options),
        ["one", name] => return one::run(&Run::begin()?, name, None),
        ["one", name, device] => return one::run(&Run::begin()?, name, Some(device)),
        ["short", ref device @ ..] => (&[Form::Short], device),
        ["rest", ref device @ ..] => (&[Form::Rest], device),
        ["all", ref device @ ..] => (&[Form::Short, Form::Rest], device),
        _ => bail!("{USAGE}"),
    };
    if device.len() > 1 {
        bail!("{USAGE}");
    }
    everything(&Run::begin()?, forms, device.first().copied())
}

fn list(options: &[&str]) -> Result<bool> {
    let run = Run::begin()?;
    let options: Vec<_> = options.iter().map(|&option| option.to_owned()).collect();
    let executables = build::tests(&options, &job::log_of(&run.logs, "list"))?;
    for executable in executables.iter().filter(|executable| plan::is_device_test(executable)) {
        println!("{}", executable.path.display());
    }
    Ok(true)
}

/// One run: where everything is, and when it began.
pub(crate) struct Run {
    pub(crate) root: PathBuf,
    pub(crate) workspace: build::Workspace,
    /// The folder of the logs.
    pub(crate) logs: PathBuf,
    pub(crate) start: Instant,
    pub(crate) screen: Screen,
    /// How long each job took last time.
    seconds: HashMap<String, f64>,
}

impl Run {
    fn begin() -> Result<Self> {
        let start = Instant::now();
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize()?;
        std::env::set_current_dir(&root)?;
        let workspace = build::workspace()?;
        let logs = workspace.target.join("tests");
        std::fs::create_dir_all(&logs).with_context(|| logs.display().to_string())?;
        let seconds = report::last_seconds(&logs);
        Ok(Self { root, workspace, logs, start, screen: Screen::new(start), seconds })
    }

    /// Builds test executables, and the libraries and programs that tests use; `what` chooses targets.
    pub(crate) fn build(&self, what: &[String]) -> Result<Vec<Executable>> {
        let log = job::log_of(&self.logs, "build");
        std::fs::File::create(&log).with_context(|| log.display().to_string())?;
        let expected = self.seconds.get("build").copied().unwrap_or(170.0);
        self.screen.during("building the tests", expected, || {
            let executables = build::tests(what, &log)?;
            // Cargo builds no library for tests that preload it, and no program of another package.
            build::libraries(&["--lib", "--bin", "doorbell-info", "--bin", "doorbell-datconf"], &log)?;
            Ok(executables)
        })
    }

    pub(crate) fn setting(&self, executables: Vec<Executable>, device: Option<&str>) -> Setting {
        let mut setting = Setting {
            root: self.root.clone(),
            target: self.workspace.target.clone(),
            executables,
            device: device.map(str::to_owned),
            dat_tests: Vec::new(),
        };
        if let Some(dat) = setting.executables.iter().find(|exe| exe.name == "device_dat") {
            setting.dat_tests = plan::listed(&setting, &dat.path, "");
        }
        setting
    }
}

/// The load of jobs that run at the same time. More would break tests with limits of time.
pub(crate) fn processors() -> f64 {
    std::thread::available_parallelism().map_or(2, usize::from).clamp(2, 8) as f64
}

fn everything(run: &Run, forms: &[Form], device: Option<&str>) -> Result<bool> {
    run.screen.title("building");
    let executables = run.build(&["--tests".to_owned()])?;
    let built = run.start.elapsed().as_secs_f64();
    let setting = run.setting(executables, device);
    let mut outcomes = Vec::new();
    for form in forms {
        run.screen.title(match form {
            Form::Short => "tests",
            Form::Rest => "the rest of the tests",
        });
        let mut jobs = setting.jobs(*form);
        for job in &mut jobs {
            job.seconds = run.seconds.get(&job.name).copied().unwrap_or(job.seconds);
        }
        outcomes.extend(pool::run(jobs, processors(), &run.logs, &run.screen));
    }
    run.screen.end();
    report::remember(&run.logs, &run.seconds, built, &outcomes);
    report::print(&outcomes, built, run.start.elapsed());
    Ok(outcomes.iter().all(|outcome| outcome.counts.failed == 0))
}
