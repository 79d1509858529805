//! `make test TEST=name`: builds and runs the tests whose names contain a text.

use crate::build::{Executable, Target};
use crate::job::{Job, Judge, Outcome, Step};
use crate::log::Counts;
use crate::plan::{Setting, has_one_path, is_device_test, listed};
use crate::{Run, pool, report};
use anyhow::{Result, bail};
use std::path::{Path, PathBuf};

pub(crate) fn run(run: &Run, name: &str, device: Option<&str>) -> Result<bool> {
    run.screen.title(&format!("tests whose name contains {name:?}"));
    let places = places(&run.root, name);
    let what = targets(&run.root, &run.workspace.targets, &places);
    if what.is_empty() {
        run.screen.say("no function has that name: building all tests to ask them");
    }
    let all = vec!["--tests".to_owned()];
    let executables = run.build(if what.is_empty() { &all } else { &what })?;
    let built = run.start.elapsed().as_secs_f64();
    let setting = run.setting(executables, device);
    // Tests of a C program are arguments of the program's own test.
    let programs: Vec<_> = places.iter().filter_map(|place| program(place)).collect();
    let mut jobs = Vec::new();
    for executable in &setting.executables {
        let mut filters = vec![name.to_owned()];
        if executable.name == "device_dat" {
            filters.extend(programs.iter().map(|program| format!("c_{program}_")));
        }
        for filter in filters {
            let tests = listed(&setting, &executable.path, &filter);
            if !tests.is_empty() {
                run.screen.say(&format!("{}: {}", executable.name, tests.join(", ")));
                jobs.extend(jobs_of(&setting, executable, &filter));
            }
        }
    }
    if jobs.is_empty() {
        bail!("no test has a name that contains {name:?}");
    }
    let outcomes = pool::run(jobs, crate::processors(), &run.logs, &run.screen);
    run.screen.end();
    if outcomes.iter().all(|outcome| outcome.counts == Counts::default()) {
        bail!("no test whose name contains {name:?} ran on any device");
    }
    shown(&outcomes, &run.logs);
    report::print(&outcomes, built, run.start.elapsed());
    Ok(outcomes.iter().all(|outcome| outcome.counts.failed == 0))
}

/// The lines of the tests that ran.
fn shown(outcomes: &[Outcome], logs: &Path) {
    for outcome in outcomes {
        println!("\n##### {}", outcome.name);
        if outcome.counts == Counts::default() {
            println!("no test of that name on this device");
        }
        let log = std::fs::read_to_string(crate::job::log_of(logs, &outcome.name)).unwrap_or_default();
        log.lines()
            .filter(|line| line.starts_with("test ") && line.contains(" ... "))
            .for_each(|line| println!("{line}"));
    }
}

/// Files with a test of such a name: `fn NAME(` or `TEST(NAME)`.
fn places(root: &Path, name: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for folder in ["provider", "mlx5-direct", "rxe-fallback", "benches", "hw-tests"] {
        sources(&root.join(folder), &mut files);
    }
    let defines = |text: &str| {
        text.lines().map(str::trim_start).any(|line| {
            let rest = line.strip_prefix("fn ").or_else(|| line.strip_prefix("TEST("));
            rest.is_some_and(|rest| rest.split(['(', ')', '<']).next().unwrap_or(rest).contains(name))
        })
    };
    files.retain(|file| std::fs::read_to_string(file).is_ok_and(|text| defines(&text)));
    files
}

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        let name = entry.file_name();
        if path.is_dir() && name != "target" && name != "cache" && name != "friends" {
            sources(&path, found);
        } else if path.extension().is_some_and(|ending| ending == "rs" || ending == "c") {
            found.push(path);
        }
    }
}

/// The program of hw-tests/c that this file is.
fn program(place: &Path) -> Option<&str> {
    let in_c =
        place.extension().is_some_and(|ending| ending == "c") && place.parent()?.ends_with("hw-tests/c");
    place.file_stem()?.to_str().filter(|_| in_c)
}

/// Options that have cargo build the targets to which these files belong; none if one belongs to no
/// target, or to a folder that several share.
fn targets(root: &Path, all: &[Target], places: &[PathBuf]) -> Vec<String> {
    let mut options = Vec::new();
    for place in places {
        let dat = program(place).map(|_| root.join("hw-tests/tests/device_dat/main.rs"));
        let place = dat.as_ref().unwrap_or(place);
        let owner = all
            .iter()
            .filter(|target| {
                let source = &target.source;
                let whole = source.ends_with("main.rs") || source.ends_with("lib.rs");
                source == place || (whole && source.parent().is_some_and(|folder| place.starts_with(folder)))
            })
            .max_by_key(|target| target.source.components().count());
        let Some(owner) = owner else { return Vec::new() };
        let option = match owner.kind.as_str() {
            "lib" => vec!["--lib".to_owned()],
            kind => vec![format!("--{kind}"), owner.name.clone()],
        };
        if !options.windows(option.len()).any(|window| window == option) {
            options.extend(option);
        }
    }
    options
}

fn jobs_of(setting: &Setting, executable: &Executable, filter: &str) -> Vec<Job> {
    let name = &executable.name;
    let job = |how: &str, step: Step| {
        // The tests of a device that cannot do what they need do not exist on it.
        let job = Job::new("tests", format!("{name} {filter}, {how}"), 10.0).may_be_empty();
        job.step(step.set("TEST_ARGS", filter))
    };
    if !is_device_test(executable) {
        let step = setting.plain(executable, &[filter]);
        return vec![job("without a device", step)];
    }
    if let Some(device) = &setting.device {
        let step = Step::new(Judge::Harness, &["hw-tests/run-device-tests"])
            .args([executable.path.display().to_string()])
            .set("DOORBELL_TEST_DEVICES", device.as_str());
        return vec![job(&format!("on {device}"), step)];
    }
    let mut jobs = vec![job("software device, direct path", setting.emulated(executable, false))];
    if !has_one_path(executable) {
        jobs.push(job("software device, by verbs", setting.emulated(executable, true)));
    }
    jobs.push(job("rxe, in the test machine", setting.on_rxe([executable])));
    jobs
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(name: &str, kind: &str, source: &str) -> Target {
        Target { name: name.into(), kind: kind.into(), source: source.into() }
    }

    #[test]
    fn files_lead_to_the_targets_that_have_them() {
        let all = [
            target("doorbell", "lib", "/r/provider/src/lib.rs"),
            target("device_srq", "test", "/r/hw-tests/tests/device_srq/main.rs"),
            target("device_dat", "test", "/r/hw-tests/tests/device_dat/main.rs"),
            target("rules", "test", "/r/hw-tests/tests/rules.rs"),
        ];
        let options = |places: &[&str]| {
            targets(Path::new("/r"), &all, &places.iter().map(PathBuf::from).collect::<Vec<_>>()).join(" ")
        };
        assert_eq!(options(&["/r/hw-tests/tests/device_srq/post.rs"]), "--test device_srq");
        assert_eq!(options(&["/r/provider/src/srq/post.rs", "/r/provider/src/ep.rs"]), "--lib");
        assert_eq!(
            options(&["/r/hw-tests/c/rmr.c", "/r/hw-tests/tests/rules.rs"]),
            "--test device_dat --test rules"
        );
        assert_eq!(
            options(&["/r/mlx5-direct/tests/common/rig.rs"]),
            "",
            "nobody knows which tests include it"
        );
    }
}
