//! A job: commands that run one after the other, and what came out of them.

use crate::log::{self, Counts, Failure};
use std::fs::{self, File, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// How the output of a command says which tests passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Judge {
    /// The `test result` lines of cargo's test harness, or of libtest-mimic.
    Harness,
    /// A script: its last line is `N passed, N failed, N skipped`.
    Script,
    /// A program that checks its own work: its exit status is one test.
    Program,
    /// It prepares what other jobs need, and counts only if it fails.
    Step,
}

/// One command of a job.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    pub(crate) command: Vec<String>,
    pub(crate) variables: Vec<(String, String)>,
    /// The working directory; the root of the repository if there is none.
    pub(crate) folder: Option<PathBuf>,
    pub(crate) judge: Judge,
}

impl Step {
    pub(crate) fn new(judge: Judge, command: &[&str]) -> Self {
        let command = command.iter().map(|&word| word.to_owned()).collect();
        Self { command, variables: Vec::new(), folder: None, judge }
    }

    pub(crate) fn args(mut self, args: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.command.extend(args.into_iter().map(Into::into));
        self
    }

    pub(crate) fn set(mut self, name: &str, value: impl Into<String>) -> Self {
        self.variables.push((name.to_owned(), value.into()));
        self
    }
}

/// Commands that run one after the other.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    /// The row of the final table to which it belongs.
    pub(crate) part: &'static str,
    /// Unique.
    pub(crate) name: String,
    pub(crate) steps: Vec<Step>,
    /// Jobs with the same word do not run at the same time: their programs use the same ports.
    pub(crate) alone: Option<&'static str>,
    /// The name of a job that has to end first.
    pub(crate) after: Option<&'static str>,
    /// The processors that it keeps busy. A job that mostly waits uses a part of one.
    pub(crate) load: f64,
    /// No test of it may match its filter.
    pub(crate) may_be_empty: bool,
    /// About how long it takes.
    pub(crate) seconds: f64,
}

/// What came out of a job.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) part: &'static str,
    pub(crate) name: String,
    pub(crate) counts: Counts,
    pub(crate) failures: Vec<Failure>,
    /// The tests that were skipped, with the reason.
    pub(crate) skipped: Vec<String>,
    /// What the reader has to know although nothing failed.
    pub(crate) notes: Vec<String>,
    pub(crate) seconds: f64,
}

/// A job that runs.
pub(crate) struct Running {
    pub(crate) name: String,
    pub(crate) since: Instant,
    pub(crate) seconds: f64,
    pub(crate) load: f64,
    pub(crate) alone: Option<&'static str>,
}

/// Where the output of a job goes.
pub(crate) fn log_of(folder: &Path, job: &str) -> PathBuf {
    let name: String = job.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    folder.join(name + ".log")
}

impl Job {
    pub(crate) fn new(part: &'static str, name: impl Into<String>, seconds: f64) -> Self {
        let (steps, alone, after) = (Vec::new(), None, None);
        Self { part, name: name.into(), steps, alone, after, load: 1.0, may_be_empty: false, seconds }
    }

    pub(crate) fn step(mut self, step: Step) -> Self {
        self.steps.push(step);
        self
    }

    pub(crate) fn alone(self, word: &'static str) -> Self {
        Self { alone: Some(word), ..self }
    }

    pub(crate) fn load(self, load: f64) -> Self {
        Self { load, ..self }
    }

    pub(crate) fn may_be_empty(self) -> Self {
        Self { may_be_empty: true, ..self }
    }

    pub(crate) fn after(self, job: &'static str) -> Self {
        Self { after: Some(job), ..self }
    }

    /// Runs all steps, also after one has failed.
    pub(crate) fn run(self, logs: &Path) -> Outcome {
        let start = Instant::now();
        let log = log_of(logs, &self.name);
        let mut outcome = Outcome {
            part: self.part,
            name: self.name.clone(),
            counts: Counts::default(),
            failures: Vec::new(),
            skipped: Vec::new(),
            notes: Vec::new(),
            seconds: 0.0,
        };
        if let Err(e) = File::create(&log) {
            outcome.fail(&self.name, format!("no log file {}: {e}", log.display()));
        }
        for step in &self.steps {
            outcome.add(step, &self.name, &log);
        }
        let judges = self.steps.iter().any(|step| step.judge != Judge::Step);
        if judges && outcome.counts == Counts::default() && !self.may_be_empty {
            outcome.fail(&self.name, "no test ran".to_owned());
        }
        outcome.seconds = start.elapsed().as_secs_f64();
        outcome
    }
}

impl Outcome {
    fn fail(&mut self, test: &str, why: String) {
        self.counts.failed += 1;
        self.failures
            .push(Failure { test: test.to_owned(), lines: why.lines().map(str::to_owned).collect() });
    }

    fn add(&mut self, step: &Step, job: &str, log: &Path) {
        match execute(step, log) {
            Ok((output, 0)) if step.judge == Judge::Step => drop(output),
            Ok((_, 0)) if step.judge == Judge::Program => self.counts.passed += 1,
            Ok((output, status)) => {
                let found = match step.judge {
                    Judge::Harness => log::harness(&output),
                    Judge::Script => log::script(&output),
                    Judge::Program | Judge::Step => log::Found::default(),
                };
                let silent = status != 0 && found.counts.failed == 0;
                self.counts += found.counts;
                self.failures.extend(found.failures);
                self.skipped.extend(found.skipped);
                self.notes.extend(found.notes);
                if silent {
                    let last = log::last_lines(&output, 30).join("\n");
                    self.fail(job, format!("ended with status {status}:\n{last}"));
                }
            }
            Err(e) => self.fail(job, format!("{}: {e}", step.command.join(" "))),
        }
    }
}

/// Runs a command with its output at the end of the log. Returns that output and the exit status.
fn execute(step: &Step, log: &Path) -> std::io::Result<(String, i32)> {
    let before = fs::metadata(log).map_or(0, |file| file.len() as usize);
    let file = OpenOptions::new().append(true).create(true).open(log)?;
    let mut command = Command::new(&step.command[0]);
    if let Some(folder) = &step.folder {
        command.current_dir(folder);
    }
    let status = command
        .args(&step.command[1..])
        .envs(step.variables.iter().map(|(name, value)| (name, value)))
        .stdin(Stdio::null())
        .stdout(file.try_clone()?)
        .stderr(file)
        .status()?;
    let all = fs::read(log)?;
    let output = String::from_utf8_lossy(all.get(before..).unwrap_or_default()).into_owned();
    Ok((output, status.code().unwrap_or(128)))
}

/// Minutes and seconds.
pub(crate) fn clock(time: Duration) -> String {
    let seconds = time.as_secs();
    format!("{}:{:02}", seconds / 60, seconds % 60)
}
