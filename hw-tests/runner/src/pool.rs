//! Runs jobs side by side, as far as the machine has processors for them.

use crate::job::{Job, Outcome, Running};
use crate::screen::Screen;
use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

/// Whether this job may start beside those that run.
fn fits(job: &Job, running: &[Running], processors: f64, done: &HashSet<String>) -> bool {
    let load: f64 = running.iter().map(|running| running.load).sum();
    // A job of more load than the machine has processors runs by itself.
    let room = running.is_empty() || load + job.load <= processors;
    let ready = job.after.is_none_or(|first| done.contains(first));
    let free = job.alone.is_none_or(|word| running.iter().all(|running| running.alone != Some(word)));
    room && ready && free
}

/// About how many seconds the jobs need from now on: what is left of them, spread over the
/// processors, and at least the longest one.
pub(crate) fn left(waiting: &[Job], running: &[Running], processors: f64) -> f64 {
    let of_running = |running: &Running| (running.seconds - running.since.elapsed().as_secs_f64()).max(1.0);
    let work = waiting.iter().map(|job| job.seconds * job.load).sum::<f64>()
        + running.iter().map(|running| of_running(running) * running.load).sum::<f64>();
    let longest =
        waiting.iter().map(|job| job.seconds).chain(running.iter().map(of_running)).fold(0.0, f64::max);
    (work / processors).max(longest)
}

/// The longest jobs come first. A job for which others wait counts as long as it takes with them.
fn sort(jobs: &mut [Job]) {
    let with_those_after: HashMap<_, f64> = jobs
        .iter()
        .map(|job| {
            let after = jobs.iter().filter(|other| other.after == Some(&job.name)).map(|other| other.seconds);
            (job.name.clone(), job.seconds + after.sum::<f64>())
        })
        .collect();
    jobs.sort_by(|a, b| with_those_after[&b.name].total_cmp(&with_those_after[&a.name]));
}

/// Runs all jobs, the longest first.
pub(crate) fn run(mut waiting: Vec<Job>, processors: f64, logs: &Path, screen: &Screen) -> Vec<Outcome> {
    sort(&mut waiting);
    let names: HashSet<_> = waiting.iter().map(|job| job.name.clone()).collect();
    // A job that is not in this list is done or not asked for.
    let mut done: HashSet<_> = waiting
        .iter()
        .filter_map(|job| job.after)
        .filter(|first| !names.contains(*first))
        .map(str::to_owned)
        .collect();
    let mut running: Vec<Running> = Vec::new();
    let mut outcomes = Vec::new();
    let (sender, ended) = mpsc::channel();
    loop {
        while let Some(at) = waiting.iter().position(|job| fits(job, &running, processors, &done)) {
            let job = waiting.remove(at);
            let (name, since, seconds) = (job.name.clone(), Instant::now(), job.seconds);
            running.push(Running { name, since, seconds, load: job.load, alone: job.alone });
            let (sender, logs) = (sender.clone(), logs.to_owned());
            std::thread::spawn(move || {
                // The receiver outlives all jobs.
                let _ = sender.send(job.run(&logs));
            });
        }
        if running.is_empty() {
            assert!(waiting.is_empty(), "jobs wait for each other: {waiting:?}");
            return outcomes;
        }
        match ended.recv_timeout(Duration::from_secs(1)) {
            Ok(outcome) => {
                running.retain(|running| running.name != outcome.name);
                done.insert(outcome.name.clone());
                screen.ended(&outcome);
                outcomes.push(outcome);
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => unreachable!("this function has a sender"),
        }
        screen.runs(&running, logs, left(&waiting, &running, processors));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(name: &str, load: f64) -> Job {
        Job::new("", name, 10.0).load(load)
    }

    fn running(load: f64, alone: Option<&'static str>) -> Running {
        Running { name: String::new(), since: Instant::now(), seconds: 10.0, load, alone }
    }

    #[test]
    fn a_job_starts_if_there_is_room_and_what_it_needs_is_done() {
        let none = HashSet::new();
        assert!(fits(&job("a", 1.0), &[running(1.0, None)], 2.0, &none));
        assert!(!fits(&job("a", 1.5), &[running(1.0, None)], 2.0, &none));
        assert!(fits(&job("a", 3.0), &[], 2.0, &none), "alone it has to run at some time");
        assert!(!fits(&job("a", 1.0).alone("ports"), &[running(0.1, Some("ports"))], 2.0, &none));
        assert!(fits(&job("a", 1.0).alone("ports"), &[running(0.1, Some("other"))], 2.0, &none));
        assert!(!fits(&job("a", 1.0).after("build"), &[], 2.0, &none));
        assert!(fits(&job("a", 1.0).after("build"), &[], 2.0, &HashSet::from(["build".to_owned()])));
    }

    #[test]
    fn long_jobs_and_those_that_others_need_come_first() {
        let seconds = |name: &str, seconds| Job { seconds, ..job(name, 1.0) };
        let mut jobs = [
            seconds("short", 1.0),
            seconds("build", 5.0),
            seconds("long", 20.0).after("build"),
            seconds("other", 21.0),
        ];
        sort(&mut jobs);
        let names: Vec<_> = jobs.iter().map(|job| job.name.as_str()).collect();
        assert_eq!(names, ["build", "other", "long", "short"]);
    }

    #[test]
    fn the_time_left_is_that_of_the_longest_job_or_of_all_together() {
        assert_eq!(left(&[job("a", 1.0), job("b", 1.0), job("c", 1.0)], &[], 1.0), 30.0);
        assert_eq!(left(&[job("a", 0.1)], &[], 2.0), 10.0);
    }
}
