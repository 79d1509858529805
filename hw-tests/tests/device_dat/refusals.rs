//! The log when an IA cannot be opened or used: one line, with the reason and the remedy.

use crate::own::{PROGRAMS, trial};
use crate::pair::{REFUSED_DATAGRAMS, Running};
use doorbell_hw_tests::dat;
use doorbell_hw_tests::devices;
use libtest_mimic::{Failed, Trial};
use std::path::Path;

pub(crate) fn trials() -> [Trial; 9] {
    let software = std::env::var_os("MLX5_EMU_SESSION").is_some();
    let here = |other| (!software).then_some(other);
    [
        trial("says_that_a_device_is_unknown_and_which_there_are".to_owned(), None, || {
            let device = devices().expect("there are devices").0;
            says(
                &["doorbell-none"],
                &[],
                dat::NAME_NOT_REGISTERED,
                &["doorbell-none", "no_such_device", &device],
            )
        }),
        trial("says_that_a_port_is_unknown".to_owned(), None, || {
            says(&["doorbell-port"], &[], dat::NAME_NOT_REGISTERED, &["doorbell-port", "77", "port"])
        }),
        trial(
            "says_that_there_is_no_device_at_all".to_owned(),
            here("this machine has devices; the software device can be taken away"),
            || {
                says(
                    &["doorbell-a"],
                    &[("LD_PRELOAD", ""), ("SYSFS_PATH", "")],
                    dat::NAME_NOT_REGISTERED,
                    &["ib_uverbs"],
                )
            },
        ),
        trial("says_that_descriptors_are_short".to_owned(), None, || {
            says(&["prlimit", "--nofile=7", "doorbell-a"], &[], dat::RESOURCE_DEVICE, &["ulimit -n"])
        }),
        trial(
            "says_that_memlock_is_too_small".to_owned(),
            here("root may lock what it likes here; device_faults shows it"),
            || {
                let limit = ["prlimit", "--memlock=65536", "doorbell-a"];
                let faults = [("MLX5_EMU_FAULTS", "cmd.reg_mr=12*0")];
                says(&limit, &faults, dat::RESOURCE_MEMORY_REGION, &["ulimit -l", "64 KiB"])
            },
        ),
        trial("says_that_memlock_is_nothing".to_owned(), here("root may lock what it likes here"), || {
            let faults = [("MLX5_EMU_FAULTS", "cmd.reg_mr=1*0")];
            let limit = ["prlimit", "--memlock=0", "doorbell-a"];
            says(&limit, &faults, dat::RESOURCE_MEMORY_REGION, &["ulimit -l", "0 KiB", "(EPERM)"])
        }),
        trial("says_that_a_setting_is_no_number".to_owned(), None, || {
            logs(
                &[("DOORBELL_RNR_RETRY", "often")],
                "doorbell-a",
                &["DOORBELL_RNR_RETRY=\"often\"", "0 to 7"],
            )
        }),
        trial("says_that_a_level_of_the_log_is_unknown_and_shows_errors".to_owned(), None, || {
            logs(&[("DOORBELL_LOG", "debgu")], "doorbell-none", &["DOORBELL_LOG=debgu", "no_such_device"])
        }),
        // Runs of programs are repeated after this line, so it has to be the provider's.
        trial("line_of_a_refused_datagram_request_is_the_providers".to_owned(), None, || {
            let source = include_str!("../../../provider/src/ud/resolve.rs");
            source
                .contains(REFUSED_DATAGRAMS)
                .then_some(())
                .ok_or_else(|| format!("the provider does not log {REFUSED_DATAGRAMS:?}").into())
        }),
    ]
}

/// Opens an IA in this environment: an error of the log has each of these texts.
fn logs(variables: &[(&str, &str)], ia: &str, reasons: &[&str]) -> Result<(), Failed> {
    let program = Path::new(PROGRAMS).join("opens").display().to_string();
    let (said, status) = Running::start_with(&program, &[ia.to_owned()], "both", variables).finish();
    let shown = |reason: &&str| said.lines().any(|line| line.contains("ERROR") && line.contains(reason));
    if status.success() && reasons.iter().all(shown) {
        return Ok(());
    }
    Err(format!("{status}, wanted {reasons:?}:\n{said}").into())
}

/// Opens the IA of the last word, by way of the words before it, in this environment. The last code
/// has to be this one, and the only line of the log has to have these words. Without the log,
/// nothing is printed.
fn says(words: &[&str], variables: &[(&str, &str)], code: u32, reasons: &[&str]) -> Result<(), Failed> {
    let program = Path::new(PROGRAMS).join("opens").display().to_string();
    let (ia, before) = words.split_last().expect("an IA is named");
    let command: Vec<_> = before.iter().copied().chain([program.as_str(), ia]).map(str::to_owned).collect();
    for log in ["", "off"] {
        let environment: Vec<_> = variables.iter().copied().chain([("DOORBELL_LOG", log)]).collect();
        let mut running = Running::start_with(&command[0], &command[1..], "both", &environment);
        let (said, status) = running.finish();
        let lines: Vec<_> = said.lines().filter(|line| line.contains("ERROR")).collect();
        let gave = said.lines().rev().find(|line| line.contains(" gave "));
        let as_expected = gave.is_some_and(|line| line.ends_with(&format!("gave {code:#010x}")))
            && status.success()
            && match lines[..] {
                [] => log == "off",
                [line] => log.is_empty() && reasons.iter().all(|reason| line.contains(reason)),
                _ => false,
            };
        if !as_expected {
            return Err(format!("{status}, wanted {code:#010x} and {reasons:?}:\n{said}").into());
        }
    }
    Ok(())
}
