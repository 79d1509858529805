//! Programs that reach libibverbs otherwise than by linking to it, on the software device: the
//! library takes their objects over, too. The programs are in C (`hosts/`).
#![allow(missing_docs)]

use std::{
    ffi::OsStr,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use libtest_mimic::{Arguments, Completion, Failed, Trial};

#[path = "../../../hw-tests/mlx5-emu/tests/common/pairs.rs"]
#[allow(dead_code, reason = "pairs of programs are tested elsewhere")]
mod pairs;
#[path = "../../../hw-tests/mlx5-emu/tests/common/programs.rs"]
mod programs;

/// From this package's folder.
const WITH_EMU: &str = "../../hw-tests/with-emu";
const RUN: &str = env!("CARGO_BIN_EXE_doorbell-run");

type Outcome = Result<Completion, Failed>;

/// Compiles a C program of `hosts/`, or a library with `-shared`, and returns its path.
fn compiled(source: &str, name: &str, options: &[&str]) -> Result<PathBuf, Failed> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("hosts");
    std::fs::create_dir_all(&folder)?;
    let program = folder.join(name);
    let output = Command::new("cc")
        .args(["-O1", "-Wall", "-Werror", "-o"])
        .arg(&program)
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/hosts").join(source))
        .args(options)
        .output()?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into());
    }
    Ok(program)
}

/// Runs a command without and with the library, which then has to take over all of its CQs and this
/// many QPs.
fn both(command: &str, qps: u32) -> Outcome {
    let without = pairs::with_emu(&format!("timeout 60 {command}"))?;
    if without != "fine\n" {
        return Err(without.into());
    }
    let with = pairs::with_emu(&format!("timeout 60 {RUN} --stats {command}"))?;
    let cqs = qps / 2;
    let wanted = format!("{cqs} of {cqs} CQs, 0 of 0 SRQs, {qps} of {qps} QPs; refused: 0");
    if !with.starts_with("fine\n") || !with.contains(&wanted) {
        return Err(with.into());
    }
    Ok(Completion::Completed)
}

/// A plug-in has libibverbs, the program has not, and the plug-in is not in the global scope. The
/// second round is that of a plug-in that was unloaded and is loaded again.
fn plugin() -> Outcome {
    let plugin = compiled("plugin.c", "plugin.so", &["-shared", "-fPIC", "-libverbs"])?;
    let host = compiled("loads_plugin.c", "loads_plugin", &[])?;
    both(&format!("{} {}", host.display(), plugin.display()), 4)
}

/// A program loads libibverbs and gets each function by itself.
fn loads_all(by: &str) -> Outcome {
    let host = compiled("loads_all.c", &format!("loads_all_{by}"), &[])?;
    both(&format!("{} {by}", host.display()), 2)
}

/// Look-ups that have nothing to do with the library end as without it. Those of a function that
/// the library stands before find the library's, except in a library that wraps libibverbs, and of
/// the version that has structs of its own.
fn look_ups() -> Outcome {
    let wrapper = compiled("wrapper.c", "wrapper.so", &["-shared", "-fPIC"])?;
    let host = compiled("looks_up.c", "looks_up", &[])?;
    let run = |launcher: &[&str]| -> Result<Vec<String>, Failed> {
        let mut line = launcher.iter().map(OsStr::new).chain([host.as_os_str(), wrapper.as_os_str()]);
        let output = Command::new(line.next().ok_or("no program")?).args(line).output()?;
        if !output.status.success() || !output.stderr.is_empty() {
            return Err(format!("{output:?}").into());
        }
        Ok(String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect())
    };
    let without = run(&[])?;
    let with = run(&[RUN])?;
    let ours: Vec<_> = with.iter().map(|file| file == "libdoorbell_verbs.so").collect();
    assert_eq!(without.len(), 9, "{without:?}");
    assert!(!without.contains(&"libdoorbell_verbs.so".to_owned()), "{without:?}");
    assert_eq!(ours, [false, false, false, false, true, true, true, true, false], "{with:?}");
    for (n, (without, with)) in without.iter().zip(&with).enumerate() {
        assert!(ours[n] || without == with, "{n}: {without}, {with}");
    }
    Ok(Completion::Completed)
}

/// A program that forks while another of its threads is in a call that creates a QP.
fn forks() -> Outcome {
    let host = compiled("forks.c", "forks", &["-rdynamic", "-libverbs", "-pthread"])?;
    for launcher in ["", RUN, &format!("{RUN} --log")] {
        let output = pairs::with_emu(&format!("timeout 100 {launcher} {}", host.display()))?;
        let lines: Vec<_> = output.lines().filter(|line| !line.contains("doorbell-verbs")).collect();
        if lines != ["fine"] {
            return Err(output.into());
        }
    }
    Ok(Completion::Completed)
}

/// Nobody reads what the library logs: the program goes on, with SIGPIPE at its default.
fn unread_log() -> Outcome {
    let host = compiled("loads_all.c", "loads_all_unread", &[])?;
    // Each end is opened by a process of its own; the reader is gone before the program starts.
    let script = format!(
        "pipe=$(mktemp -u) && mkfifo $pipe || exit 3
         (exec 3<$pipe) & exec 4>$pipe; wait $!; rm $pipe
         timeout 60 {RUN} --log --stats {host} dlsym 2>&4 &&
             timeout 60 {RUN} --log --stats {host} dlsym 2>/dev/full &&
             {RUN} --log --stats {host} dlsym 2>&-",
        host = host.display()
    );
    let output = pairs::with_emu(&script)?;
    if output == "fine\n".repeat(3) { Ok(Completion::Completed) } else { Err(output.into()) }
}

/// One allocation of the library fails, each in turn. The program ends well, since what is not
/// taken over is libmlx5's; or a creation fails for want of memory, on a CQ that the library has.
/// No process is aborted.
fn shortage() -> Outcome {
    let host = compiled("shortage.c", "shortage", &["-rdynamic", "-libverbs"])?;
    let script = format!(
        "for n in $(seq 100); do
             output=$(timeout 30 {RUN} {} $n 2>&1)
             echo \"$n: $? $output\" | tr '\\n' ' '; echo
             [ \"$output\" != all ] || break
         done",
        host.display()
    );
    let output = pairs::with_emu(&script)?;
    let lines: Vec<_> =
        output.lines().map(|line| line.split_once(": ").map_or(line, |(_, what)| what)).collect();
    let Some((last, failures)) = lines.split_last() else { return Err("no output".into()) };
    let well = failures.iter().filter(|line| **line == "0 one ").count();
    let short = failures.iter().filter(|line| line.ends_with(": Cannot allocate memory ")).count();
    if *last != "0 all " || well < 10 || well + short != failures.len() {
        return Err(output.into());
    }
    Ok(Completion::Completed)
}

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    arguments.test_threads = arguments.test_threads.or(Some(1));
    let has_cc = programs::installed("cc");
    let test = |name: &str, test: fn() -> Outcome| {
        Trial::ignorable_test(name, move || {
            if has_cc { test() } else { Ok(Completion::ignored_with("cc is not installed")) }
        })
    };
    let trials = vec![
        test("objects_of_a_plug_in_are_taken_over", plugin),
        test("objects_of_a_program_that_uses_dlsym_are_taken_over", || loads_all("dlsym")),
        test("objects_of_a_program_that_uses_dlvsym_are_taken_over", || loads_all("dlvsym")),
        test("other_look_ups_end_as_without_the_library", look_ups),
        test("a_log_that_nobody_reads_ends_no_program", unread_log),
        test("a_failed_allocation_of_the_library_ends_no_program", shortage),
        test("children_of_a_fork_open_the_device_whatever_other_threads_do", forks),
    ];
    libtest_mimic::run(&arguments, trials).exit_code()
}
