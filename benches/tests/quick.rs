//! The comparison in quick mode, as `make bench QUICK=1` runs it: the report is complete and
//! plausible.

use std::{collections::BTreeSet, path::Path, process::Command};

use doorbell_benches::{
    count::TRAPPED_RUNS,
    dat::{DatPost, Stepper, library},
    plan::{CaseName, Spec, Subject, plan},
};
use libtest_mimic::{Arguments, Failed, Trial};
use serde_json::Value;

fn main() {
    let args = Arguments::from_args();
    let with_dat = Path::new("/usr/include/dat2/udat.h").exists();
    let why = if with_dat { "" } else { " (ignored: no libdat2; package libdapl-dev)" };
    let dat = format!("quick_mode_reports_dat_post_of_both_providers{why}");
    let steps = with_dat && cfg!(target_arch = "x86_64");
    let why = if steps { "" } else { " (ignored: no libdat2, package libdapl-dev, or not x86-64)" };
    let locked = format!("calls_of_one_thread_take_few_locked_instructions{why}");
    let why = match (steps, cfg!(debug_assertions)) {
        (true, false) => "",
        (true, true) => " (ignored: not optimised; cargo test --release)",
        (false, _) => " (ignored: no libdat2, package libdapl-dev, or not x86-64)",
    };
    let few = format!("calls_of_one_thread_take_few_instructions{why}");
    let why_not_verbs = match (cfg!(target_arch = "x86_64"), cfg!(debug_assertions)) {
        (true, false) => "",
        (true, true) => " (ignored: not optimised; cargo test --release)",
        (false, _) => " (ignored: not x86-64)",
    };
    let verbs = format!("calls_under_doorbell_run_take_few_instructions{why_not_verbs}");
    let rust = format!("calls_of_the_rust_api_take_few_instructions{why_not_verbs}");
    let own = format!("a_message_of_make_run_has_its_own_cost{why_not_verbs}");
    let with_dtest = with_dat && doorbell_benches::dtest::available();
    let why =
        if with_dtest { "" } else { " (ignored: no dtest or no libdat2; packages dapl2-utils, libdapl-dev)" };
    let dtest = format!("dtest_says_its_latencies_on_every_provider{why}");
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let why_not_cold = match (doorbell_benches::count::available(), cores > 1) {
        (true, true) => "",
        (false, _) => " (ignored: no valgrind)",
        (true, false) => " (ignored: one core)",
    };
    let trials = vec![
        Trial::test("quick_mode_reports_every_subject_and_case_once", move || whole(with_dat)),
        Trial::test(dat, dat_post).with_ignored_flag(!with_dat),
        Trial::test(locked, locked_instructions).with_ignored_flag(!steps),
        Trial::test(few, instructions_of_calls).with_ignored_flag(!steps || cfg!(debug_assertions)),
        Trial::test(verbs, instructions_under_doorbell_run).with_ignored_flag(!why_not_verbs.is_empty()),
        Trial::test(rust, instructions_of_the_rust_api).with_ignored_flag(!why_not_verbs.is_empty()),
        Trial::test(own, own_cost).with_ignored_flag(!why_not_verbs.is_empty()),
        Trial::test(dtest, dtest_latencies).with_ignored_flag(!with_dtest),
        Trial::test(format!("cold_lines_are_timed_and_counted{why_not_cold}"), cold_lines)
            .with_ignored_flag(!why_not_cold.is_empty()),
        Trial::test("an_unknown_subject_is_refused_with_the_names", unknown_subject),
        Trial::test("an_unknown_device_is_refused_by_name", no_such_device),
    ];
    libtest_mimic::run(&args, trials).exit();
}

fn compare() -> Command {
    Command::new(env!("CARGO_BIN_EXE_compare"))
}

/// Runs quick mode with further arguments; the report's rows.
fn quick(arguments: &[&str]) -> Result<Vec<Value>, Failed> {
    let folder = tempfile::tempdir()?;
    let report = folder.path().join("new/report.json");
    let output = compare().arg("--quick").args(arguments).arg("--out").arg(&report).output()?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned().into());
    }
    let chart = std::fs::read_to_string(report.with_file_name("time.svg"))?;
    assert!(chart.starts_with("<svg") && chart.trim_end().ends_with("</svg>"), "{chart}");
    let Value::Array(rows) = serde_json::from_str(&std::fs::read_to_string(&report)?)? else {
        return Err("the report is not a list".into());
    };
    for row in &rows {
        check(row);
    }
    Ok(rows)
}

/// A row has all keys; times are above zero, percentiles in order.
fn check(row: &Value) {
    let number = |key: &str| row[key].as_f64().unwrap_or_else(|| panic!("{key} of {row}"));
    for key in ["batch", "segments", "depth"] {
        assert!(number(key) >= 1.0, "{key} of {row}");
    }
    assert!(number("ns_per_op") > 0.0, "{row}");
    assert!(number("p50_ns") <= number("p99_ns") && number("p99_ns") <= number("p999_ns"), "{row}");
    assert!(row.get("instructions_per_op").is_some_and(|v| v.is_null() || v.is_f64()), "{row}");
}

fn names(row: &Value) -> (String, String, u64, u64, u64) {
    let text = |key: &str| row[key].as_str().unwrap().to_owned();
    let number = |key: &str| row[key].as_u64().unwrap();
    (text("case"), text("subject"), number("batch"), number("segments"), number("depth"))
}

fn whole(with_dat: bool) -> Result<(), Failed> {
    // `dat_post` is with instructions.
    let rows = quick(&["--rounds", "1", "--millis", "2", "--no-instructions"])?;
    let reported: Vec<_> = rows.iter().map(names).collect();
    let distinct: BTreeSet<_> = reported.iter().cloned().collect();
    assert_eq!(distinct.len(), reported.len(), "a row appears twice");
    let mut planned = BTreeSet::new();
    let with_ucx = Path::new("/usr/include/uct/api/uct.h").exists();
    for spec in plan(true).into_iter().filter(|spec| with_dat || !spec.case.through_libdat()) {
        let subjects = Subject::ALL.into_iter().filter(|subject| subject.does(&spec));
        for subject in subjects.filter(|subject| with_ucx || *subject != Subject::Ucx) {
            planned.insert((
                spec.case.name().to_owned(),
                subject.name().to_owned(),
                spec.batch.into(),
                spec.segments.into(),
                spec.depth.into(),
            ));
        }
    }
    assert_eq!(distinct, planned);
    let has = |case: &str, subject: &str| distinct.iter().any(|row| row.0 == case && row.1 == subject);
    for case in ["post", "post+free", "repost", "poll", "empty-poll", "random-completion"] {
        for subject in ["libmlx5-lock", "libmlx5-nolock", "mlx5-direct"] {
            assert!(has(case, subject), "{case} of {subject}");
        }
    }
    assert!(has("post", "verbs") && has("poll", "verbs") && has("message", "verbs"));
    for case in ["send", "send-wr", "send-fenced", "reap-send", "message"] {
        assert!(has(case, "libmlx5-lock") && has(case, "mlx5-direct"), "{case}");
    }
    assert!(has("post", "provider") && has("post+free", "provider") && has("poll", "provider"));
    Ok(())
}

fn dat_post() -> Result<(), Failed> {
    let rows = quick(&["--only", "dat-post", "--rounds", "1"])?;
    let subjects: BTreeSet<_> = rows.iter().map(|row| names(row).1).collect();
    assert_eq!(subjects, BTreeSet::from(["libdaplofa", "provider", "provider-verbs"].map(str::to_owned)));
    if cfg!(target_arch = "x86_64") {
        let counted = |row: &Value| row["instructions_per_op"].is_f64() && row["locked_per_op"].is_f64();
        assert!(rows.iter().all(counted), "not counted: {rows:?}");
    }
    Ok(())
}

/// Allows no locked instruction in an operation of one thread on the direct path. On some
/// processors (AMD EPYC of family 25) a locked instruction costs as much as twenty others, which a
/// count of all instructions does not show.
fn locked_instructions() -> Result<(), Failed> {
    let dat = DatPost::new()?;
    for case in [
        CaseName::DatPost,
        CaseName::DatPostFourLmrs,
        CaseName::DatReap,
        CaseName::DatSend,
        CaseName::DatSendFourLmrs,
        CaseName::DatReapSend,
        CaseName::DatRecv,
        CaseName::DatRecvFourLmrs,
        CaseName::DatReapRecv,
        CaseName::DatWait,
        CaseName::DatWrite,
        CaseName::DatAnswer,
    ] {
        let spec = Spec { case, batch: 1, segments: 1, depth: 1023 };
        let name = case.name();
        // A thread of the provider may use an object in between. The next operation then takes
        // locks as it does for several threads. So one of three counts has to be low.
        let mut counts = vec![];
        loop {
            let (steps, operations) = dat.steps(Subject::Provider, &spec, 1)?;
            assert!(
                steps.instructions >= 20 * u64::from(operations),
                "{name}: nothing was stepped through: {steps:?}"
            );
            // Some locked instructions happen once per run: symbol lookups, the return of a batch
            // of slots.
            if steps.locked <= u64::from(operations / 4) {
                break;
            }
            counts.push(steps.locked);
            assert!(counts.len() < 3, "{name}: {counts:?} in {operations} operations");
        }
        // libdaplofa takes two in a post: if none were found there, none could be found anywhere.
        if case == CaseName::DatPost {
            let (peer, operations) = dat.steps(Subject::Libdaplofa, &spec, 1)?;
            assert!(peer.locked >= u64::from(operations), "libdaplofa: {peer:?}");
        }
    }
    Ok(())
}

/// Limits the instructions of one thread's calls, with libdat2 and the loop of the C program. On
/// the verbs path the device library's are counted, too.
fn instructions_of_calls() -> Result<(), Failed> {
    let dat = DatPost::new()?;
    let direct = [
        (CaseName::DatPost, 1, 98.0),
        (CaseName::DatPost, 2, 189.0),
        (CaseName::DatPost, 4, 240.0),
        (CaseName::DatPostLmrs, 1, 98.0),
        (CaseName::DatPostLmrs, 2, 200.5),
        (CaseName::DatPostFourLmrs, 1, 98.0),
        (CaseName::DatReap, 1, 125.0),
        (CaseName::DatSend, 1, 139.0),
        (CaseName::DatSend, 2, 228.0),
        (CaseName::DatSendLmrs, 1, 142.0),
        (CaseName::DatSendLmrs, 2, 238.0),
        (CaseName::DatSendFourLmrs, 1, 142.0),
        (CaseName::DatReapSend, 1, 121.0),
        (CaseName::DatEmpty, 1, 70.0),
        (CaseName::DatEmptySends, 1, 63.0),
        (CaseName::DatAnswer, 1, 468.5),
        (CaseName::DatWrite, 1, 163.0),
        (CaseName::DatRecv, 1, 136.0),
        (CaseName::DatRecv, 2, 222.5),
        (CaseName::DatRecvLmrs, 1, 136.0),
        (CaseName::DatRecvLmrs, 2, 232.0),
        (CaseName::DatRecvFourLmrs, 1, 136.0),
        (CaseName::DatReapRecv, 1, 141.0),
        (CaseName::DatWait, 1, 480.0),
    ];
    let by_verbs = [
        (CaseName::DatPost, 1, 227.0),
        (CaseName::DatPost, 2, 350.0),
        (CaseName::DatPost, 4, 422.0),
        (CaseName::DatPostLmrs, 1, 227.0),
        (CaseName::DatPostLmrs, 2, 361.0),
        (CaseName::DatPostFourLmrs, 1, 227.0),
        (CaseName::DatReap, 1, 390.0),
        (CaseName::DatSend, 1, 462.0),
        (CaseName::DatSend, 2, 575.0),
        (CaseName::DatSendLmrs, 1, 465.0),
        (CaseName::DatSendLmrs, 2, 584.0),
        (CaseName::DatSendFourLmrs, 1, 465.0),
        (CaseName::DatReapSend, 1, 268.0),
        (CaseName::DatAnswer, 1, 1_345.0),
        (CaseName::DatWrite, 1, 483.0),
        (CaseName::DatRecv, 1, 278.0),
        (CaseName::DatRecv, 2, 377.0),
        (CaseName::DatRecvLmrs, 1, 278.0),
        (CaseName::DatRecvLmrs, 2, 386.0),
        (CaseName::DatRecvFourLmrs, 1, 278.0),
        (CaseName::DatReapRecv, 1, 310.0),
        (CaseName::DatWait, 1, 1_110.0),
    ];
    let direct = direct.map(|limit| (Subject::Provider, limit));
    let by_verbs = by_verbs.map(|limit| (Subject::ProviderVerbs, limit));
    let mut outside = Vec::new();
    for (subject, (case, segments, most)) in direct.into_iter().chain(by_verbs) {
        let spec = Spec { case, batch: 1, segments, depth: 1023 };
        // A thread of the provider may use an object in between. The next operation then takes a
        // slow function, which alone can exceed the limit of all. So the lowest of up to three
        // counts is compared.
        let mut each = f64::INFINITY;
        for _ in 0..3 {
            let (steps, operations) = dat.steps(subject, &spec, 4)?;
            each = each.min(steps.instructions as f64 / f64::from(operations));
            if each <= most {
                break;
            }
        }
        let line = format!("{} of {segments} by {}: {each:.1} of {most}", case.name(), subject.name());
        println!("{line}");
        if !(20.0..=most).contains(&each) {
            outside.push(line);
        }
    }
    assert!(outside.is_empty(), "instructions outside of 20 to the limit: {outside:#?}");
    Ok(())
}

/// Limits the instructions of the calls of verbs under `doorbell-run`, with the loop around them.
fn instructions_under_doorbell_run() -> Result<(), Failed> {
    limit_instructions(
        Subject::Verbs,
        &[
            (CaseName::Post, 1, 1, 86.5, 0.1),
            (CaseName::Post, 32, 1, 31.2, 0.1),
            (CaseName::Post, 1, 4, 218.0, 0.1),
            (CaseName::Poll, 1, 1, 288.0, 0.1),
            (CaseName::Poll, 16, 1, 115.0, 0.1),
            (CaseName::EmptyPoll, 1, 1, 113.5, 0.1),
            (CaseName::Send, 1, 1, 148.5, 0.1),
            (CaseName::Send, 32, 1, 98.5, 0.1),
            (CaseName::SendWr, 1, 1, 228.0, 0.1),
            (CaseName::SendWr, 32, 1, 143.0, 0.1),
            (CaseName::ReapSend, 1, 1, 218.0, 0.1),
        ],
    )
}

/// Limits the instructions of the Rust API, with the program's loop around the calls. A whole message
/// by pools takes a locked instruction to return its buffer, and another where a slot of the SRQ is
/// used for the first time, as all are here.
fn instructions_of_the_rust_api() -> Result<(), Failed> {
    limit_instructions(
        Subject::Provider,
        &[
            (CaseName::Poll, 1, 1, 178.0, 0.1),
            (CaseName::Poll, 32, 1, 195.0, 0.1),
            (CaseName::EmptyPoll, 1, 1, 93.0, 0.1),
            (CaseName::EpSend, 1, 1, 101.0, 0.1),
            (CaseName::EpSendInline, 1, 1, 225.0, 0.1),
            (CaseName::EpSendShared, 1, 1, 332.0, 0.1),
            (CaseName::PoolSend, 1, 1, 180.0, 0.2),
            (CaseName::PoolMessage, 1, 1, 815.0, 2.3),
        ],
    )
}

/// Fails if a case (name, batch, segments) of the subject takes more instructions than its limit, or
/// more locked ones.
fn limit_instructions(subject: Subject, limits: &[(CaseName, u32, u32, f64, f64)]) -> Result<(), Failed> {
    let (stepper, plan) = (Stepper::new()?, plan(false));
    let mut outside = vec![];
    for &(case, batch, segments, most, most_locked) in limits {
        let is_it = |spec: &Spec| {
            (spec.case, spec.batch, spec.segments) == (case, batch, segments)
                && matches!(spec.depth, 128 | 1023)
        };
        let index = plan.iter().position(is_it).ok_or("a case is not in the plan")?;
        let mut command = compare();
        command.args(["--subject", subject.name(), "--trap", &index.to_string()]);
        if subject == Subject::Verbs {
            command.env("LD_PRELOAD", library("libdoorbell_verbs.so")?);
        }
        let steps = stepper.steps(&command)?;
        let operations = doorbell_benches::cases::calls(&plan[index]) * batch * TRAPPED_RUNS;
        let [each, locked] = [steps.instructions, steps.locked].map(|n| n as f64 / f64::from(operations));
        let line =
            format!("{} of {batch}, {segments} segments: {each:.1} of {most}, {locked} locked", case.name());
        println!("{line}");
        // Fewer than four a call would be a count of nothing.
        if !(4.0..=most).contains(&each) || locked > most_locked {
            outside.push(line);
        }
    }
    assert!(outside.is_empty(), "instructions outside of 4 to the limit: {outside:#?}");
    Ok(())
}

fn dtest_latencies() -> Result<(), Failed> {
    let folder = tempfile::tempdir()?;
    let output = compare()
        .args(["--quick", "--only", "dtest", "--rounds", "1", "--out"])
        .arg(folder.path().join("report.json"))
        .output()?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned().into());
    }
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    let Value::Array(figures) =
        serde_json::from_str(&std::fs::read_to_string(folder.path().join("dtest.json"))?)?
    else {
        return Err("the figures are not a list".into());
    };
    // All figures of the client, and all but one of the server.
    assert_eq!(figures.len(), (17 + 16) * 3, "{printed}");
    for figure in &figures {
        let (name, us) = (figure["figure"].as_str().unwrap(), figure["us"].as_f64().unwrap());
        // Some calls take less than a microsecond, dtest's unit.
        assert!(us >= 0.0 && printed.contains(name), "{figure} in\n{printed}");
    }
    Ok(())
}

/// `make run` ends with these lines.
fn own_cost() -> Result<(), Failed> {
    let output = compare().args(["--own", "--quick"]).output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let instructions = |path: &str| -> Option<f64> {
        let line = text.lines().find(|line| line.contains(path))?;
        let (rest, _) = line.split_once(" instructions")?;
        assert!(rest.contains(" ns,"), "{line}");
        rest.rsplit(' ').next()?.parse().ok()
    };
    let [direct, verbs] = ["direct path", "standard verbs"].map(instructions);
    let direct = direct.ok_or_else(|| text.clone().into_owned())?;
    assert!(direct > 50.0 && verbs.is_some_and(|verbs| verbs > direct), "{text}");
    Ok(())
}

/// A short run of cold calls: each working set has a time, and the lines are counted. Their number is
/// that of an optimised build on the page only: here the stack has as many as the queues.
fn cold_lines() -> Result<(), Failed> {
    let folder = tempfile::tempdir()?;
    let report = folder.path().join("cold.json");
    let mut lines = vec![];
    for subject in [Subject::Libmlx5Lock, Subject::Mlx5Direct] {
        let output = Command::new(env!("CARGO_BIN_EXE_cold"))
            .args(["--only", "reap-send", "--subject", subject.name(), "--rounds", "1", "--millis", "1"])
            .arg("--out")
            .arg(&report)
            .output()?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).into_owned().into());
        }
        let rows: Vec<Value> = serde_json::from_slice(&std::fs::read(&report)?)?;
        let rows: Vec<&Value> = rows.iter().filter(|row| row["case"] == "reap-send").collect();
        let sets: Vec<_> = rows.iter().map(|row| row["set_bytes"].as_u64()).collect();
        assert_eq!(sets, [Some(0), Some(256 << 10), Some(4 << 20)]);
        // A walk of 4 MiB leaves no line in the inner caches.
        assert!(rows[2]["ns_per_op"].as_f64() > rows[0]["ns_per_op"].as_f64(), "{rows:?}");
        lines.push(rows[0]["lines_read"].as_f64().ok_or("no lines")?);
    }
    // The entry and the queue, at least.
    assert!(lines.iter().all(|read| (2.0..60.0).contains(read)), "{lines:?}");
    Ok(())
}

fn unknown_subject() -> Result<(), Failed> {
    let output = compare().args(["--subject", "libmlx4"]).output()?;
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert!(text.contains("libmlx5-nolock") && text.contains("libdaplofa"), "{text}");
    Ok(())
}

fn no_such_device() -> Result<(), Failed> {
    let output = compare().args(["--quick", "--device", "mlx5_77"]).output()?;
    assert!(!output.status.success());
    let text = String::from_utf8_lossy(&output.stderr);
    // Without any RDMA device the kernel's lack of them is the error.
    assert!(text.contains("mlx5_77") || text.contains("ib_uverbs"), "{text}");
    Ok(())
}
