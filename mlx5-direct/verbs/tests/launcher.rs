//! `doorbell-run` itself: a program that it starts gets what it would have got without, and what is
//! wrong is said. No device is needed.
#![allow(missing_docs)]
#![expect(unsafe_code, reason = "the user's number")]

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Command, ExitCode, Output},
};

use libtest_mimic::{Arguments, Completion, Failed, Trial};

const RUN: &str = env!("CARGO_BIN_EXE_doorbell-run");

type Outcome = Result<Completion, Failed>;

/// A folder of this test, empty.
fn folder(name: &str) -> Result<PathBuf, Failed> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("launcher").join(name);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder)?;
    Ok(folder)
}

/// Compiles a C program of `hosts/`.
fn compiled(source: &str, to: &Path, options: &[&str]) -> Result<(), Failed> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/hosts").join(source);
    let mut cc = Command::new("cc");
    let output = cc.args(["-O1", "-Wall", "-Werror", "-o"]).arg(to).arg(source).args(options).output()?;
    if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).into()) }
}

/// Runs a script of bash.
fn bash(script: &str) -> Result<Output, Failed> {
    Ok(Command::new("bash").args(["-c", script]).output()?)
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Fails unless the script ends with this status and its stderr has these words.
fn expect(script: &str, status: i32, words: &[&str]) -> Result<String, Failed> {
    let output = bash(script)?;
    let said = stderr(&output);
    if output.status.code() != Some(status) || !words.iter().all(|word| said.contains(word)) {
        return Err(format!("{script}\nwanted: {status} {words:?}\n{output:?}").into());
    }
    Ok(said)
}

fn inherits() -> Outcome {
    let folder = folder("inherits")?;
    let host = folder.join("inherits");
    compiled("inherits.c", &host, &[])?;
    let out = folder.join("out");
    let situations = [
        "",
        "trap '' PIPE; ",
        "trap '' PIPE HUP USR1; ",
        "exec <&-; ",
        "exec >&-; ",
        "exec 2>&-; ",
        "exec <&- >&- 2>&-; ",
        "exec 2>&- 7</dev/null; trap '' TERM; ",
    ];
    for situation in situations {
        let run = |launcher: &str| -> Result<String, Failed> {
            let _ = fs::remove_file(&out);
            let script = format!("{situation}exec {launcher} {} {}", host.display(), out.display());
            // The descriptors of both runs are the same files.
            let status = Command::new("bash").args(["-c", &script]).status()?;
            if status.success() {
                Ok(fs::read_to_string(&out)?)
            } else {
                Err(format!("{script}: {status}").into())
            }
        };
        let (without, with) = (run("")?, run(RUN)?);
        assert!(without.lines().count() >= 10, "{without}");
        if without != with {
            return Err(format!("{situation}\nwithout:\n{without}\nwith:\n{with}").into());
        }
    }
    Ok(Completion::Completed)
}

fn statuses() -> Outcome {
    let folder = folder("statuses")?;
    let (plain, text) = (folder.join("plain"), folder.join("text.so"));
    fs::write(&plain, "no program\n")?;
    fs::write(&text, "no library\n")?;
    fs::set_permissions(&plain, fs::Permissions::from_mode(0o644))?;
    let plain = plain.display();
    for (command, words) in [
        ("no-such-program-anywhere", vec!["no-such-program-anywhere", "No such file"]),
        ("/nonexistent/program", vec!["/nonexistent/program", "No such file"]),
        (&*plain.to_string(), vec!["Permission denied"]),
        ("sh -c 'exit 7'", vec![]),
        ("sh -c 'kill -9 $$'", vec![]),
    ] {
        let status = bash(&format!("env {command}"))?.status;
        let status = status.code().unwrap_or(-1);
        let mine = bash(&format!("{RUN} {command}"))?;
        let said = stderr(&mine);
        if mine.status.code().unwrap_or(-1) != status || !words.iter().all(|word| said.contains(word)) {
            return Err(format!("{command}: {mine:?}, env: {status}").into());
        }
    }
    expect(&format!("{RUN} --nonsense true"), 125, &["--nonsense", "usage:"])?;
    expect(RUN, 125, &["no program", "usage:"])?;
    expect(
        &format!("DOORBELL_VERBS_LIBRARY=/nonexistent/x.so {RUN} true"),
        127,
        &["/nonexistent/x.so", "No such file"],
    )?;
    let named = format!("DOORBELL_VERBS_LIBRARY={} {RUN} true", text.display());
    expect(&named, 126, &["text.so", "not a shared library"])?;
    Ok(Completion::Completed)
}

/// The library of this build.
fn built() -> PathBuf {
    Path::new(RUN).with_file_name("libdoorbell_verbs.so")
}

fn paths() -> Outcome {
    let folder = folder("paths")?;
    let library = built();
    for name in ["a blank.so", "a:colon.so"] {
        let link = folder.join(name);
        std::os::unix::fs::symlink(&library, &link)?;
        let script = format!("DOORBELL_VERBS_LIBRARY='{}' {RUN} true", link.display());
        expect(&script, 126, &[name, "cannot be preloaded", "DOORBELL_VERBS_LIBRARY"])?;
    }
    // The library comes behind what is preloaded already.
    let output = bash(&format!("LD_PRELOAD=libm.so.6 {RUN} bash -c 'echo $LD_PRELOAD'"))?;
    assert_eq!(
        String::from_utf8_lossy(&output.stdout).trim_end(),
        format!("libm.so.6:{}", library.display())
    );
    // A relative path is that of the folder where doorbell-run starts.
    std::os::unix::fs::symlink(&library, folder.join("link.so"))?;
    for named in ["link.so", "./link.so"] {
        let print = "cd /; echo \"$LD_PRELOAD\"; grep -c doorbell_verbs /proc/self/maps";
        let script =
            format!("cd '{}'; DOORBELL_VERBS_LIBRARY={named} {RUN} bash -c '{print}'", folder.display());
        let output = bash(&script)?;
        let printed = String::from_utf8_lossy(&output.stdout);
        let lines: Vec<_> = printed.lines().collect();
        if lines.len() != 2 || !lines[0].starts_with('/') || lines[1] == "0" || !output.stderr.is_empty() {
            return Err(format!("{output:?}").into());
        }
    }
    Ok(Completion::Completed)
}

/// Programs into which the dynamic linker preloads nothing run, with a warning; scripts are those
/// of their interpreter.
fn not_preloaded() -> Outcome {
    let folder = folder("not_preloaded")?;
    let source = folder.join("said.c");
    fs::write(&source, "#include <stdio.h>\nint main(void) { return puts(\"ran\") < 0; }\n")?;
    let [dynamic, fixed, owned, script] =
        ["dynamic", "fixed", "owned", "script"].map(|name| folder.join(name));
    let source = source.display().to_string();
    compiled(&source, &dynamic, &[])?;
    expect(&format!("{RUN} {} | grep -q ran", dynamic.display()), 0, &[])?;
    let quiet = stderr(&bash(&format!("{RUN} {}", dynamic.display()))?);
    assert_eq!(quiet, "");
    if compiled(&source, &fixed, &["-static"]).is_err() {
        return Ok(Completion::ignored_with("no static libc"));
    }
    let warned = ["runs without the library", "linked statically"];
    expect(&format!("{RUN} {} | grep -q ran", fixed.display()), 0, &warned)?;
    expect(&format!("PATH={}:$PATH {RUN} fixed | grep -q ran", folder.display()), 0, &warned)?;
    fs::write(&script, format!("#!{}\n", fixed.display()))?;
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755))?;
    expect(&format!("{RUN} {} | grep -q ran", script.display()), 0, &warned)?;
    // SAFETY: a call without arguments.
    if unsafe { libc::geteuid() } != 0 {
        return Ok(Completion::ignored_with("setuid: only root can make a program of another user"));
    }
    fs::copy(&dynamic, &owned)?;
    std::os::unix::fs::chown(&owned, Some(65534), None)?;
    fs::set_permissions(&owned, fs::Permissions::from_mode(0o4755))?;
    expect(&format!("{RUN} {} | grep -q ran", owned.display()), 0, &["runs without the library", "setuid"])?;
    Ok(Completion::Completed)
}

fn help() -> Outcome {
    let output = bash(&format!("{RUN} --help"))?;
    assert!(output.status.success() && String::from_utf8_lossy(&output.stdout).starts_with("usage:"));
    for to in [">/dev/full", ">&-"] {
        let said = expect(&format!("{RUN} --help {to}"), 125, &["stdout"])?;
        assert!(!said.contains("panicked"), "{said}");
    }
    // Nobody reads what is said.
    expect(&format!("{RUN} --nonsense 2>/dev/full"), 125, &[])?;
    expect(&format!("{RUN} --nonsense 2>&-"), 125, &[])?;
    Ok(Completion::Completed)
}

fn main() -> ExitCode {
    let has_cc = Command::new("cc").arg("--version").output().is_ok();
    let with_cc = |name: &str, test: fn() -> Outcome| {
        Trial::ignorable_test(name, move || {
            if has_cc { test() } else { Ok(Completion::ignored_with("cc is not installed")) }
        })
    };
    let trials = vec![
        with_cc("a_program_inherits_what_it_would_without", inherits),
        Trial::ignorable_test("statuses_are_those_of_env", statuses),
        Trial::ignorable_test("a_library_that_cannot_be_preloaded_is_refused", paths),
        with_cc("a_program_without_preloading_is_warned_of", not_preloaded),
        Trial::ignorable_test("what_cannot_be_written_is_an_error", help),
    ];
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}
