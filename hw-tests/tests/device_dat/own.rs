//! The C programs of hw-tests/c, each on both devices.

use crate::pair::Running;
use libtest_mimic::{Failed, Trial};
use std::path::Path;

/// Where the build script put them; nothing without libdat2's headers.
const PROGRAMS: &str = env!("DOORBELL_C_PROGRAMS");

pub(crate) fn trials() -> Vec<Trial> {
    ["handles", "srq", "slots"]
        .into_iter()
        .map(|name| {
            let trial = Trial::test(format!("c_{name}"), move || run(name));
            if PROGRAMS.is_empty() {
                trial.with_kind("no headers of libdat2: install libdapl-dev").with_ignored_flag(true)
            } else {
                trial
            }
        })
        .collect()
}

fn run(name: &str) -> Result<(), Failed> {
    let program = Path::new(PROGRAMS).join(name);
    let ias = ["doorbell-a".to_owned(), "doorbell-b".to_owned()];
    let mut running = Running::start(&program.display().to_string(), &ias, "both");
    let (said, status) = running.finish();
    if status.success() && said.contains("checks passed") {
        Ok(())
    } else {
        Err(format!("{status}:\n{said}").into())
    }
}
