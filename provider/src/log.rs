//! The log on standard error: the subscriber of `tracing` in `libdoorbell.so` and in the tools.
//!
//! The library is a guest in the program's process, so nothing that the log does ends or blocks the
//! program. An event becomes one line in a buffer on the stack, and one write(2) to descriptor 2,
//! whose errors are ignored. There is no lock, no memory is allocated, no thread-local is used, and
//! the thread is not cancelled. Nothing is written to a pipe that is full or that nobody reads.

use crate::process::{self, Uncancelled};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::fmt::{self, Write};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// The longest line, with the line feed. A longer one is cut.
const LONGEST: usize = 1024;

/// Writes the log to standard error from now on, as far as `DOORBELL_LOG` asks. Only the first call
/// of a process has an effect, and none if the program has installed a subscriber of its own.
pub fn to_stderr() {
    static DONE: AtomicBool = AtomicBool::new(false);
    // No `Once`: a child would wait for a thread of the parent that was in it.
    if !DONE.swap(true, Ordering::Relaxed) {
        let asked = process::variable("DOORBELL_LOG").unwrap_or_default();
        let (filter, wrong) = Filter::parse(&asked);
        let _ = tracing::subscriber::set_global_default(Log { filter, write: to_descriptor_2 });
        if let Some(wrong) = wrong {
            tracing::error!(
                "DOORBELL_LOG={asked}: {wrong:?} is not a level; give off, error, warn, info, debug or trace, \
                 or a level for each target, as in doorbell=trace,error. Only errors are shown."
            );
        }
    }
}

/// One write(2), if it neither blocks nor raises SIGPIPE.
fn to_descriptor_2(line: &[u8]) {
    let _uncancelled = Uncancelled::begin();
    let stderr = std::io::stderr();
    let mut fds = [PollFd::new(stderr.as_fd(), PollFlags::POLLOUT)];
    let _ = poll(&mut fds, PollTimeout::ZERO);
    if fds[0].revents() == Some(PollFlags::POLLOUT) {
        let _ = nix::unistd::write(stderr.as_fd(), line);
    }
}

/// What is shown.
#[derive(Debug, PartialEq, Eq)]
struct Filter {
    /// The level of targets that are not named.
    others: LevelFilter,
    /// Levels by the beginning of a target, the longest first.
    targets: Vec<(String, LevelFilter)>,
}

impl Filter {
    /// What these words ask for (`debug`, `doorbell=trace`, `off`). Errors only, if there are no
    /// words; and if one is wrong, which is the second value.
    fn parse(asked: &str) -> (Self, Option<&str>) {
        let errors = Self { others: LevelFilter::ERROR, targets: Vec::new() };
        if asked.is_empty() {
            return (errors, None);
        }
        let mut filter = Self { others: LevelFilter::OFF, targets: Vec::new() };
        for word in asked.split(',') {
            let (target, level) = match word.split_once('=') {
                Some((target, level)) => (Some(target.trim()), level.trim()),
                None => (None, word.trim()),
            };
            let Ok(level) = level.parse() else { return (errors, Some(word)) };
            match target {
                Some(target) => filter.targets.push((target.to_owned(), level)),
                None => filter.others = level,
            }
        }
        filter.targets.sort_by_key(|(target, _)| std::cmp::Reverse(target.len()));
        (filter, None)
    }

    fn of(&self, target: &str) -> LevelFilter {
        let named = self.targets.iter().find(|(named, _)| target.starts_with(named.as_str()));
        named.map_or(self.others, |(_, level)| *level)
    }

    fn most(&self) -> LevelFilter {
        self.targets.iter().map(|(_, level)| *level).fold(self.others, LevelFilter::max)
    }
}

/// The subscriber. It has no spans: no code of the library opens one.
struct Log {
    filter: Filter,
    write: fn(&[u8]),
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && *metadata.level() <= self.filter.of(metadata.target())
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(self.filter.most())
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line::new();
        let _ = write!(line, "{:>5}", event.metadata().level());
        event.record(&mut line);
        (self.write)(line.finish());
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// A line of the log. What does not fit is left out.
struct Line {
    bytes: [u8; LONGEST],
    len: usize,
}

impl Line {
    fn new() -> Self {
        Self { bytes: [0; LONGEST], len: 0 }
    }

    fn finish(&mut self) -> &[u8] {
        self.bytes[self.len] = b'\n';
        &self.bytes[..=self.len]
    }
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        // The line feed has room.
        let room = (LONGEST - 1 - self.len).min(text.len());
        let fits = (0..=room).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
        self.bytes[self.len..self.len + fits].copy_from_slice(&text.as_bytes()[..fits]);
        self.len += fits;
        if fits == text.len() { Ok(()) } else { Err(fmt::Error) }
    }
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let _ = match field.name() {
            "message" => write!(self, " {value:?}"),
            name => write!(self, " {name}={value:?}"),
        };
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use tracing::Level;

    /// The levels of the library, and of others, that are shown.
    fn shown(asked: &str) -> [LevelFilter; 2] {
        let (filter, _) = Filter::parse(asked);
        ["doorbell::evd", "others"].map(|target| filter.of(target))
    }

    #[test]
    fn the_log_shows_what_is_asked_for() {
        use LevelFilter as L;
        assert_eq!(shown(""), [L::ERROR, L::ERROR]);
        assert_eq!(shown("debug"), [L::DEBUG, L::DEBUG]);
        assert_eq!(shown("off"), [L::OFF, L::OFF]);
        assert_eq!(shown("doorbell=debug"), [L::DEBUG, L::OFF]);
        assert_eq!(shown("doorbell::evd=Debug, error"), [L::DEBUG, L::ERROR]);
        assert_eq!(shown("doorbell=off,doorbell::evd=4,warn"), [L::DEBUG, L::WARN]);
        assert_eq!(Filter::parse("doorbell=off,doorbell::evd=debug,warn").0.most(), L::DEBUG);
    }

    #[test]
    fn wrong_words_show_errors_and_are_told() {
        assert_eq!(Filter::parse("doorbell=trace").1, None);
        for wrong in ["debgu", "doorbell=loud", "error,debgu", "doorbell"] {
            let (filter, told) = Filter::parse(wrong);
            assert_eq!(filter.others, LevelFilter::ERROR, "{wrong}");
            assert!(told.is_some_and(|told| wrong.contains(told)), "{wrong}");
        }
    }

    /// What a log of all levels writes while `body` runs on this thread.
    pub(crate) fn logged(body: impl FnOnce()) -> String {
        use std::cell::RefCell;
        thread_local!(static SEEN: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) });
        fn write(line: &[u8]) {
            SEEN.with_borrow_mut(|seen| seen.extend_from_slice(line));
        }
        let filter = Filter { others: LevelFilter::TRACE, targets: Vec::new() };
        tracing::subscriber::with_default(Log { filter, write }, body);
        String::from_utf8(SEEN.take()).unwrap()
    }

    #[test]
    fn an_event_is_one_line_with_its_level_and_its_fields() {
        let error = "no such file";
        let said = logged(|| {
            tracing::warn!(%error, ep = 7, name = "a b", "cannot {}", "open");
            tracing::event!(Level::DEBUG, bare = ?Some(1));
        });
        assert_eq!(said, " WARN cannot open error=no such file ep=7 name=\"a b\"\nDEBUG bare=Some(1)\n");
    }

    #[test]
    fn a_line_that_is_too_long_is_cut_between_characters() {
        let said = logged(|| tracing::error!("{}", "\u{20ac}".repeat(LONGEST)));
        assert!(said.ends_with("\u{20ac}\n") && said.len() > LONGEST - 4 && said.len() <= LONGEST, "{said}");
    }
}
