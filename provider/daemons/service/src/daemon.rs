//! The command line and the life of a service: its threads work until a signal ends them.

use crate::notify;
use crate::signals::{Order, Signals, raise_end};
use anyhow::{Context, bail};
use clap::Subcommand;
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The commands that every service has.
#[derive(Subcommand)]
pub enum Command {
    /// Serves until SIGTERM. SIGHUP: reads the configuration again, as far as that is possible.
    Serve {
        /// The configuration.
        file: PathBuf,
    },
    /// Checks a configuration and says what is wrong with it.
    Check {
        /// The configuration.
        file: PathBuf,
    },
    /// Shows what a running service does, once a second.
    Top {
        /// The address of the page of counters: `listen` of the table `metrics` in its configuration.
        address: Option<SocketAddr>,
        /// Show this many tables; 0: until the end.
        #[arg(long, short = 'n', default_value_t = 0)]
        count: u32,
        /// Seconds between two tables.
        #[arg(long, short, default_value_t = 1.0)]
        interval: f64,
    },
}

/// Runs a program of this name. An error is printed.
pub fn main(name: &str, run: impl FnOnce() -> anyhow::Result<()>) -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{name}: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// How a thread of a service is told to end.
pub trait Control: Clone + Send + 'static {
    /// It ends when what is under way is done.
    fn drain(&self);
    /// It ends at once.
    fn stop(&self);
    /// It was told to end.
    fn is_ending(&self) -> bool;
}

struct Working<C> {
    what: String,
    control: C,
    thread: JoinHandle<anyhow::Result<()>>,
}

/// The threads of a service.
pub struct Threads<C> {
    working: Vec<Working<C>>,
    ended: mpsc::Sender<()>,
    ends: mpsc::Receiver<()>,
}

impl<C> Default for Threads<C> {
    fn default() -> Self {
        let (ended, ends) = mpsc::channel();
        Self { working: Vec::new(), ended, ends }
    }
}

/// How long what is under way may take when the service is to end.
const DRAIN: Duration = Duration::from_secs(5);

impl<C: Control> Threads<C> {
    /// Starts a thread. If its work ends and nobody has told it so, the service ends. `what` is its
    /// work, in errors.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn start(
        &mut self,
        name: String,
        what: String,
        control: C,
        work: impl FnOnce() -> anyhow::Result<()> + Send + 'static,
    ) -> anyhow::Result<()> {
        let (ended, own) = (self.ended.clone(), control.clone());
        let thread = std::thread::Builder::new().name(name).spawn(move || {
            let outcome = work();
            if !own.is_ending() {
                raise_end();
            }
            // Nobody listens before the end.
            let _ = ended.send(());
            outcome
        });
        self.working.push(Working { what, control, thread: thread.context("starting a thread")? });
        Ok(())
    }

    /// Says that the service is ready, and serves until SIGTERM. `reload` is called for SIGHUP.
    ///
    /// # Errors
    /// Those of the threads.
    pub fn serve(self, signals: &Signals, mut reload: impl FnMut()) -> anyhow::Result<()> {
        println!("ready");
        notify::ready();
        while let Order::Reload = signals.wait().context("waiting for signals")? {
            notify::reloading();
            reload();
            notify::ready();
        }
        notify::stopping();
        tracing::info!("ending");
        self.working.iter().for_each(|working| working.control.drain());
        let until = Instant::now() + DRAIN;
        for _ in &self.working {
            if self.ends.recv_timeout(until.saturating_duration_since(Instant::now())).is_err() {
                tracing::warn!("not all that was under way is done");
                break;
            }
        }
        self.working.iter().for_each(|working| working.control.stop());
        for Working { what, thread, .. } in self.working {
            match thread.join() {
                Ok(outcome) => outcome.context(what)?,
                Err(_) => bail!("{what}: the thread has panicked"),
            }
        }
        Ok(())
    }
}

/// Keeps this thread on a processor.
///
/// # Errors
/// There is none of this number, or the process may not use it.
pub fn pin(processor: usize) -> anyhow::Result<()> {
    let mut set = CpuSet::new();
    let pinned = set.set(processor).and_then(|()| sched_setaffinity(Pid::from_raw(0), &set));
    pinned.with_context(|| format!("processor {processor}"))
}
