//! The C programs of hw-tests/c, and those of hw-tests/c12, which speak DAT 1.2, each on both
//! devices, on mlx5 by both data paths, and on the software device under valgrind.

use crate::pair::{Running, only_ours, our_libdat2};
use crate::{ignored_if, one_at_a_time};
use doorbell_hw_tests::devices;
use libtest_mimic::{Failed, Trial};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

/// The folder into which the build script compiled the programs.
pub(crate) const PROGRAMS: &str = env!("DOORBELL_C_PROGRAMS");
/// The names of the programs.
const NAMES: &str = env!("DOORBELL_C_NAMES");
/// The programs of DAT 1.2, which use libdat.so.1.
const PROGRAMS12: &str = env!("DOORBELL_C12_PROGRAMS");
const NAMES12: &str = env!("DOORBELL_C12_NAMES");

const VALGRIND: &str = "/usr/bin/valgrind";
/// Memory errors and lost memory are failures, except those of other libraries that
/// `c/valgrind.supp` lists. Valgrind runs one thread at a time. Without fair scheduling, threads that
/// post without a pause delay the thread that takes the messages, for minutes on a busy machine.
const MEMCHECK: [&str; 7] = [
    "-q",
    "--error-exitcode=99",
    "--fair-sched=try",
    "--leak-check=full",
    "--show-leak-kinds=definite",
    "--errors-for-leak-kinds=definite",
    concat!("--suppressions=", env!("CARGO_MANIFEST_DIR"), "/c/valgrind.supp"),
];
/// Programs that do not run under valgrind: they wait for wall clock time, start processes outside
/// of valgrind, need threads that run at once, replace malloc, as valgrind does, or read stacks that
/// have ended.
const NOT_UNDER_VALGRIND: &[&str] = &["faults", "no_memory", "processes", "refused", "stacks"];
/// Programs that run once more under the libdat2 of provider/dat2 if the system has another: with
/// `DOORBELL_LIBDAT2=ours`, all do.
const UNDER_OURS: &[&str] = &["handles", "rules_srq", "service", "ud", "whole"];
/// For `LD_LIBRARY_PATH`: the folder of the libdat2 to use.
const SYSTEM: &str = "";
/// Programs that other tests run.
const SPECIAL: &[&str] = &["opens"];

/// The IAs of the two ends.
const OURS: [&str; 2] = ["doorbell-a", "doorbell-b"];

/// Seconds and seed of the fuzzing; `DOORBELL_FUZZ="600 7"` sets them.
fn fuzzing() -> Vec<String> {
    let words = std::env::var("DOORBELL_FUZZ").unwrap_or_else(|_| "10 1".to_owned());
    words.split_whitespace().map(str::to_owned).collect()
}

pub(crate) fn trials() -> Vec<Trial> {
    let names = || NAMES.split(' ').filter(|name| !SPECIAL.contains(name));
    let plain = paths().iter().flat_map(|&path| {
        names().map(move |name| {
            trial(format!("c_{name}_by_{path}"), None, move || run(name, path, false, SYSTEM))
        })
    });
    let under_ours = UNDER_OURS.iter().filter(|_| !only_ours()).map(|&name| {
        let test = format!("c_{name}_under_our_libdat2");
        trial(test, None, move || run(name, "auto", false, &our_libdat2()))
    });
    let loader = trial("programs_find_our_libdat2".to_owned(), None, find_our_libdat2);
    plain.chain(under_ours).chain([loader]).chain(trials12()).collect()
}

/// The programs under valgrind, each in a fabric of its own.
pub(crate) fn trials_under_valgrind() -> Vec<Trial> {
    let names = NAMES.split(' ').filter(|name| !SPECIAL.contains(name) && !NOT_UNDER_VALGRIND.contains(name));
    let own = names
        .map(|name| Trial::test(format!("c_{name}_under_valgrind"), move || run(name, "auto", true, SYSTEM)));
    let of12 = NAMES12.split(' ').map(|name| {
        Trial::test(format!("c12_{name}_under_valgrind"), move || run12(name, OURS, "auto", true))
    });
    own.chain(of12).map(|trial| ignored_if(no_valgrind(), trial)).collect()
}

/// Whether the tests for the libdat2 of provider/dat2 do run under it.
fn find_our_libdat2() -> Result<(), Failed> {
    let program = Path::new(PROGRAMS).join("whole");
    let output = Command::new("ldd").arg(program).env("LD_LIBRARY_PATH", our_libdat2()).output()?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = said.lines().find(|line| line.contains("libdat2.so.2"));
    let found = line.is_some_and(|line| line.contains(concat!(env!("DOORBELL_OUR_LIBDAT2"), "/")));
    if found { Ok(()) } else { Err(said.into()) }
}

/// One of these programs also runs on libdaplofa, and with libdaplofa at either end.
fn trials12() -> Vec<Trial> {
    let mut trials = Vec::new();
    let mut add = |name: &'static str, how: String, missing, ias: [&'static str; 2], path: &'static str| {
        trials.push(trial(format!("c12_{name}_{how}"), missing, move || run12(name, ias, path, false)));
    };
    for name in NAMES12.split(' ') {
        for &path in paths() {
            add(name, format!("by_{path}"), None, OURS, path);
        }
    }
    let ofa = Path::new("/usr/lib/x86_64-linux-gnu/libdaplofa.so.2").exists();
    let no_ofa = (!ofa).then_some("no libdaplofa: install libdapl2");
    for ias in [["ofa-a", "ofa-b"], ["doorbell-a", "ofa-b"], ["ofa-a", "doorbell-b"]] {
        add("transfer", format!("between_{}_and_{}", ias[0], ias[1]), no_ofa, ias, "auto");
    }
    trials
}

pub(crate) fn trial(
    name: String,
    missing: Option<&'static str>,
    body: impl FnOnce() -> Result<(), Failed> + Send + 'static,
) -> Trial {
    ignored_if(missing, one_at_a_time(name, body))
}

/// The data paths of the devices at hand.
fn paths() -> &'static [&'static str] {
    if devices().is_some_and(|(device, _)| device.starts_with("mlx5")) {
        &["direct", "verbs"]
    } else {
        &["verbs"]
    }
}

/// Why programs do not run under valgrind here, or `None` if they do.
pub(crate) fn no_valgrind() -> Option<&'static str> {
    if std::env::var_os("MLX5_EMU_SESSION").is_none() {
        // valgrind sees the writes of the software device, but not those of a kernel and its
        // devices.
        Some("under valgrind on the software device only")
    } else if !Path::new(VALGRIND).exists() {
        Some("no valgrind: install valgrind")
    } else {
        None
    }
}

fn run12(name: &str, ias: [&str; 2], path: &str, checked: bool) -> Result<(), Failed> {
    let program = Path::new(PROGRAMS12).join(name).display().to_string();
    execute(&program, ias.map(str::to_owned).to_vec(), path, checked, SYSTEM)
}

fn run(name: &str, path: &str, checked: bool, libraries: &str) -> Result<(), Failed> {
    let program = Path::new(PROGRAMS).join(name).display().to_string();
    let mut args = OURS.map(str::to_owned).to_vec();
    if name == "fuzz" {
        args.extend(fuzzing());
    }
    execute(&program, args, path, checked, libraries)
}

fn execute(
    program: &str,
    mut args: Vec<String>,
    path: &str,
    checked: bool,
    libraries: &str,
) -> Result<(), Failed> {
    let mut command = program;
    // An empty variable is not set.
    let under_valgrind = if checked { "1" } else { "" };
    let mut fabric = std::env::var("MLX5_EMU_SESSION").unwrap_or_default();
    if checked {
        // Two programs may have the same name, one in c and one in c12.
        static FABRICS: AtomicU32 = AtomicU32::new(0);
        fabric += &format!("/{}", FABRICS.fetch_add(1, Ordering::Relaxed));
        let memcheck = MEMCHECK.iter().map(|&option| option.to_owned());
        args = memcheck.chain([program.to_owned()]).chain(args).collect();
        command = VALGRIND;
    }
    let mut variables =
        vec![("DOORBELL_DATAPATH", path), ("UNDER_VALGRIND", under_valgrind), ("MLX5_EMU_SESSION", &fabric)];
    if libraries != SYSTEM {
        variables.push(("LD_LIBRARY_PATH", libraries));
    }
    let mut running = Running::start_with(command, &args, "both", &variables);
    let (said, status) = running.finish();
    if status.success() && said.contains("checks passed") {
        Ok(())
    } else {
        Err(format!("{status}:\n{said}").into())
    }
}
