//! The C programs of hw-tests/c, each on both devices, and on mlx5 by both data paths.

use crate::pair::Running;
use doorbell_hw_tests::devices;
use libtest_mimic::{Failed, Trial};
use std::path::Path;

/// Where the build script put them; nothing without libdat2's headers.
const PROGRAMS: &str = env!("DOORBELL_C_PROGRAMS");
/// What they are called.
const NAMES: &str = env!("DOORBELL_C_NAMES");

/// Those that are called in their own ways.
const SPECIAL: &[&str] = &[];

pub(crate) fn trials() -> Vec<Trial> {
    let plain = NAMES.split(' ').filter(|name| !SPECIAL.contains(name));
    paths().iter().flat_map(|&path| plain.clone().map(move |name| plain_trial(name, path))).collect()
}

/// The data paths of the devices at hand.
fn paths() -> &'static [&'static str] {
    if devices().is_some_and(|(device, _)| device.starts_with("mlx5")) {
        &["direct", "verbs"]
    } else {
        &["verbs"]
    }
}

fn plain_trial(name: &'static str, path: &'static str) -> Trial {
    let trial = Trial::test(format!("c_{name}_by_{path}"), move || run(name, path));
    if PROGRAMS.is_empty() {
        trial.with_kind("no headers of libdat2: install libdapl-dev").with_ignored_flag(true)
    } else {
        trial
    }
}

fn run(name: &str, path: &str) -> Result<(), Failed> {
    let program = Path::new(PROGRAMS).join(name);
    let args = ["doorbell-a".to_owned(), "doorbell-b".to_owned()];
    let environment = [("DOORBELL_DATAPATH", path)];
    let mut running = Running::start_with(&program.display().to_string(), &args, "both", &environment);
    let (said, status) = running.finish();
    if status.success() && said.contains("checks passed") {
        Ok(())
    } else {
        Err(format!("{status}:\n{said}").into())
    }
}
