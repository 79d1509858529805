//! What a person sees while tests run: a line for each job that has ended, and below them what runs.

use crate::job::{Outcome, Running, clock, log_of};
use crate::log::Counts;
use indicatif::{ProgressBar, ProgressStyle};
use std::fs::File;
use std::io::{IsTerminal, Read, Seek, SeekFrom};
use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Without a terminal, time between two lines about what runs.
const QUIET: Duration = Duration::from_secs(30);

pub(crate) struct Screen {
    start: Instant,
    /// On a terminal: the last line.
    live: Option<ProgressBar>,
    spoken: Mutex<Instant>,
}

impl Screen {
    pub(crate) fn new(start: Instant) -> Self {
        let live = std::io::stdout().is_terminal().then(|| {
            let bar = ProgressBar::no_length();
            bar.set_style(ProgressStyle::with_template("{wide_msg}").expect("a template"));
            bar
        });
        Self { start, live, spoken: Mutex::new(start) }
    }

    pub(crate) fn say(&self, line: &str) {
        match &self.live {
            Some(bar) => bar.suspend(|| println!("{line}")),
            None => println!("{line}"),
        }
    }

    pub(crate) fn title(&self, title: &str) {
        self.say(&format!("\n##### {title} ({})", clock(self.start.elapsed())));
    }

    pub(crate) fn ended(&self, outcome: &Outcome) {
        let Counts { passed, failed, skipped } = outcome.counts;
        let word = if failed > 0 { "FAILED" } else { "ok    " };
        let mut line = format!("{} {word} {}: {passed} passed", clock(self.start.elapsed()), outcome.name);
        for (number, what) in [(failed, "failed"), (skipped, "skipped")] {
            if number > 0 {
                line += &format!(", {number} {what}");
            }
        }
        self.say(&format!("{line} ({:.0} s)", outcome.seconds));
        for failure in &outcome.failures {
            self.say(&format!("     failed: {}", failure.test));
        }
    }

    /// Says what runs, since when, and about how long all takes from now on.
    pub(crate) fn runs(&self, running: &[Running], logs: &Path, left: f64) {
        if running.is_empty() {
            return;
        }
        let mut longest: Vec<_> = running.iter().collect();
        longest.sort_by_key(|running| running.since);
        let job = |running: &Running| {
            let inside = inside(&log_of(logs, &running.name)).map(|name| format!(": {name}"));
            format!(
                "{}{} ({} s)",
                running.name,
                inside.unwrap_or_default(),
                running.since.elapsed().as_secs()
            )
        };
        self.line(|| {
            let jobs: Vec<_> = longest.into_iter().map(job).collect();
            format!("about {} left; running: {}", duration(left), jobs.join(", "))
        });
    }

    /// The last line of a terminal, or now and then a line.
    fn line(&self, text: impl FnOnce() -> String) {
        let time = clock(self.start.elapsed());
        if let Some(bar) = &self.live {
            bar.set_message(format!("{time} {}", text()));
            return;
        }
        let mut spoken = self.spoken.lock().expect("no holder panics");
        if spoken.elapsed() >= QUIET {
            *spoken = Instant::now();
            println!("{time} {}", text());
        }
    }

    /// Does something that takes about this long, and says so meanwhile.
    pub(crate) fn during<T: Send>(&self, what: &str, seconds: f64, work: impl FnOnce() -> T + Send) -> T {
        let since = Instant::now();
        std::thread::scope(|scope| {
            let work = scope.spawn(work);
            while !work.is_finished() {
                std::thread::park_timeout(Duration::from_millis(250));
                let spent = since.elapsed().as_secs_f64();
                let left = (seconds - spent).max(1.0);
                self.line(|| format!("{what} ({spent:.0} s), about {} left", duration(left)));
            }
            work.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    pub(crate) fn end(&self) {
        if let Some(bar) = &self.live {
            bar.finish_and_clear();
        }
    }
}

/// The executable or part that a job with several of them runs: of the last line `=== NAME, ...` or
/// `=== NAME (...)` of its log.
fn inside(log: &Path) -> Option<String> {
    const END: u64 = 64 << 10;
    let mut file = File::open(log).ok()?;
    let len = file.metadata().ok()?.len();
    file.seek(SeekFrom::Start(len.saturating_sub(END))).ok()?;
    let mut text = Vec::new();
    file.read_to_end(&mut text).ok()?;
    let text = String::from_utf8_lossy(&text);
    let title = text.lines().rev().find_map(|line| line.strip_prefix("=== "))?;
    let name = title.split([',', '(', ' ']).next()?;
    (!name.is_empty()).then(|| name.to_owned())
}

fn duration(seconds: f64) -> String {
    if seconds < 90.0 { format!("{seconds:.0} s") } else { format!("{:.0} min", seconds / 60.0) }
}
