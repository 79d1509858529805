//! What was taken over and what not: counts, and one line for each object that was left.
//!
//! `DOORBELL_LOG=info` (or `debug`, `trace`) prints a line for each object as it is created.
//! `DOORBELL_VERBS_STATS=1` prints the counts when the process exits. Both go to stderr. If the
//! value of `DOORBELL_VERBS_STATS` is an absolute path, the counts are appended to that file.

use std::{
    fmt,
    sync::{
        OnceLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

/// A class of objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    Context,
    Cq,
    Srq,
    Qp,
}

const NAMES: [&str; 4] = ["contexts", "CQs", "SRQs", "QPs"];

#[derive(Debug)]
struct Counts {
    taken: [AtomicU64; 4],
    left: [AtomicU64; 4],
    refused: AtomicU64,
}

static COUNTS: Counts = Counts {
    taken: [const { AtomicU64::new(0) }; 4],
    left: [const { AtomicU64::new(0) }; 4],
    refused: AtomicU64::new(0),
};

fn set(name: &str, values: &[&str]) -> bool {
    std::env::var(name).is_ok_and(|value| values.contains(&value.as_str()))
}

/// Whether the environment turns the library off.
pub(crate) fn is_off() -> bool {
    static OFF: OnceLock<bool> = OnceLock::new();
    *OFF.get_or_init(|| set("DOORBELL_VERBS", &["off", "0"]))
}

fn logs() -> bool {
    static LOGS: OnceLock<bool> = OnceLock::new();
    *LOGS.get_or_init(|| set("DOORBELL_LOG", &["info", "debug", "trace"]))
}

fn line(text: fmt::Arguments<'_>) {
    write(&mut std::io::stderr().lock(), text);
}

fn write(to: &mut impl std::io::Write, text: fmt::Arguments<'_>) {
    // One call, so that lines of several processes do not mix.
    let line = format!("doorbell-verbs[{}]: {text}\n", std::process::id());
    // A program may have closed its stderr, so the result is not used.
    let _ = to.write_all(line.as_bytes());
}

/// An object was taken over.
pub(crate) fn taken(class: Class, name: fmt::Arguments<'_>) {
    COUNTS.taken[class as usize].fetch_add(1, Relaxed);
    if logs() {
        line(format_args!("{name} taken over"));
    }
}

/// An object that had been taken over went back to libmlx5.
pub(crate) fn given_back(class: Class) {
    COUNTS.taken[class as usize].fetch_sub(1, Relaxed);
}

/// An object was left to its driver.
pub(crate) fn left(class: Class, name: fmt::Arguments<'_>, why: &dyn fmt::Display) {
    COUNTS.left[class as usize].fetch_add(1, Relaxed);
    if logs() {
        line(format_args!("{name} left to the driver: {why}"));
    }
}

/// A creation was refused. This line is always printed.
pub(crate) fn refused(what: &str, why: &dyn fmt::Display) {
    COUNTS.refused.fetch_add(1, Relaxed);
    line(format_args!("{what} refused (EOPNOTSUPP): {why}; without doorbell-run the program may use both"));
}

/// Prints the counts, if `DOORBELL_VERBS_STATS` asks for them.
pub(crate) fn print_at_exit() {
    let Some(to) = std::env::var_os("DOORBELL_VERBS_STATS") else { return };
    let file = std::path::Path::new(&to);
    if to != "1" && !file.is_absolute() {
        return;
    }
    let counts = NAMES.iter().enumerate().map(|(n, name)| {
        let (taken, left) = (COUNTS.taken[n].load(Relaxed), COUNTS.left[n].load(Relaxed));
        format!("{taken} of {} {name}", taken + left)
    });
    let counts: Vec<_> = counts.collect();
    let counts = format!("taken over: {}; refused: {}", counts.join(", "), COUNTS.refused.load(Relaxed));
    if to == "1" {
        line(format_args!("{counts}"));
    } else if let Ok(mut file) = std::fs::OpenOptions::new().create(true).append(true).open(file) {
        write(&mut file, format_args!("{counts}"));
    }
}
