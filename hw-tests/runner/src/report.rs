//! The end of a run: a table of parts, what was skipped, what failed.

use crate::job::{Outcome, clock};
use crate::log::{Counts, Failure};
use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::time::Duration;

/// Failed tests that are named at the very end.
const NAMED: usize = 15;

/// The file of `logs` with a line `SECONDS JOB` for each job.
const SECONDS: &str = "seconds";

/// How long each job took when it ran last.
pub(crate) fn last_seconds(logs: &Path) -> HashMap<String, f64> {
    let text = std::fs::read_to_string(logs.join(SECONDS)).unwrap_or_default();
    let lines = text.lines().filter_map(|line| line.split_once(' '));
    lines.filter_map(|(seconds, job)| Some((job.to_owned(), seconds.parse().ok()?))).collect()
}

pub(crate) fn remember(logs: &Path, last: &HashMap<String, f64>, built: f64, outcomes: &[Outcome]) {
    let mut all: BTreeMap<&str, f64> = last.iter().map(|(job, seconds)| (job.as_str(), *seconds)).collect();
    all.extend(outcomes.iter().map(|outcome| (outcome.name.as_str(), outcome.seconds)));
    // A build that had little to do says nothing about the next one.
    all.entry("build").and_modify(|last| *last = last.max(built)).or_insert(built);
    let lines: String = all.iter().map(|(job, seconds)| format!("{seconds:.1} {job}\n")).collect();
    // Only estimates get lost.
    let _ = std::fs::write(logs.join(SECONDS), lines);
}

pub(crate) fn print(outcomes: &[Outcome], built: f64, time: Duration) {
    let mut skipped: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for (job, test) in outcomes.iter().flat_map(|o| o.skipped.iter().map(|test| (&o.name, test.as_str()))) {
        let (reason, test) = reason_and_test(test);
        skipped.entry(format!("{job}: {reason}")).or_default().push(test);
    }
    if !skipped.is_empty() {
        println!("\n##### skipped");
        for (reason, tests) in &skipped {
            println!("{reason}: {}", tests.join(", "));
        }
    }
    let failures: Vec<_> = outcomes
        .iter()
        .flat_map(|outcome| outcome.failures.iter().map(move |f| (&outcome.name, f)))
        .collect();
    if !failures.is_empty() {
        println!("\n##### failed");
        for (job, Failure { test, lines }) in &failures {
            println!("{job}: {test}");
            lines.iter().for_each(|line| println!("    {line}"));
        }
    }
    table(outcomes, built, time);
    for note in outcomes.iter().flat_map(|outcome| &outcome.notes) {
        println!("note: {note}");
    }
    for (job, Failure { test, .. }) in failures.iter().take(NAMED) {
        println!("failed: {job}: {test}");
    }
    if failures.len() > NAMED {
        println!("failed: and {} more, above", failures.len() - NAMED);
    }
    let Counts { passed, failed, skipped } = sum(outcomes.iter());
    println!("{passed} passed, {failed} failed, {skipped} skipped");
}

/// `[REASON] TEST`, as libtest-mimic shows the kind of a test, or `TEST: REASON`.
fn reason_and_test(line: &str) -> (&str, &str) {
    let kind = line.rfind('[').and_then(|at| line[at + 1..].split_once("] "));
    let named = || line.split_once(" (ignored: ").map(|(test, reason)| (reason.trim_end_matches(')'), test));
    kind.or_else(named).unwrap_or(("ignored", line))
}

fn sum<'a>(outcomes: impl Iterator<Item = &'a Outcome>) -> Counts {
    outcomes.fold(Counts::default(), |mut all, outcome| {
        all += outcome.counts;
        all
    })
}

/// Parts run side by side, so their seconds are more than the time that passed.
fn table(outcomes: &[Outcome], built: f64, time: Duration) {
    println!("\n##### parts, in the order of their time\n");
    let mut parts: Vec<(&str, f64, Counts)> = Vec::new();
    for outcome in outcomes {
        if !parts.iter().any(|part| part.0 == outcome.part) {
            let of_part = || outcomes.iter().filter(|other| other.part == outcome.part);
            parts.push((outcome.part, of_part().map(|o| o.seconds).sum(), sum(of_part())));
        }
    }
    parts.sort_by(|a, b| b.1.total_cmp(&a.1));
    println!("{:<34} {:>7} {:>7} {:>7} {:>8}", "part", "seconds", "passed", "failed", "skipped");
    println!("{:<34} {built:>7.0}", "building");
    for (part, seconds, Counts { passed, failed, skipped }) in &parts {
        println!("{part:<34} {seconds:>7.0} {passed:>7} {failed:>7} {skipped:>8}");
    }
    println!("{:<34} {:>7}\n", "all together, side by side", clock(time));
}
