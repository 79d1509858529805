//! Random calls of verbs by several threads return and complete the same with and without the
//! library, on the software device.
#![allow(missing_docs)]

use std::process::ExitCode;

use libtest_mimic::{Arguments, Failed, Trial};

#[path = "../../../hw-tests/mlx5-emu/tests/common/pairs.rs"]
#[allow(dead_code, reason = "pairs of programs are tested elsewhere")]
mod pairs;
#[path = "../../../hw-tests/mlx5-emu/tests/common/programs.rs"]
#[allow(dead_code, reason = "pairs of programs are tested elsewhere")]
mod programs;
#[path = "../../tests/common/rig.rs"]
mod rig;
#[path = "common/threads/mod.rs"]
mod threads;

/// From this package's folder.
const WITH_EMU: &str = "../../hw-tests/with-emu";
const RUN: &str = env!("CARGO_BIN_EXE_doorbell-run");

/// `DOORBELL_THREADS_SEEDS=FIRST..END` names other seeds.
fn seeds() -> std::ops::Range<u64> {
    let Ok(text) = std::env::var("DOORBELL_THREADS_SEEDS") else { return 1..9 };
    let ends = text.split_once("..").and_then(|(first, end)| Some(first.parse().ok()?..end.parse().ok()?));
    ends.expect("DOORBELL_THREADS_SEEDS=FIRST..END")
}

fn main() -> ExitCode {
    if let [_, mode, seed, rounds] = &std::env::args().collect::<Vec<_>>()[..]
        && mode == "random-calls"
    {
        threads::run(seed.parse().expect("a number"), rounds.parse().expect("a number"));
        return ExitCode::SUCCESS;
    }
    let mut arguments = Arguments::from_args();
    arguments.test_threads = arguments.test_threads.or(Some(1));
    let trial = |seed| {
        let name = format!("random_calls_of_threads_end_as_with_libmlx5_{seed}");
        Trial::test(name, move || same_as_libmlx5(seed))
    };
    libtest_mimic::run(&arguments, seeds().map(trial).collect()).exit_code()
}

fn same_as_libmlx5(seed: u64) -> Result<(), Failed> {
    let program = std::env::current_exe()?;
    let command = format!("timeout 120 {} random-calls {seed} 12", program.display());
    // Some requests name a key that does not exist, so that they fail. The device complains of
    // these. Of libmlx5 it complains more often: for example, it rings with the WQE of a request
    // that it refuses in the middle of a list.
    let without = pairs::with_emu(&format!("MLX5_EMU_STRICT=0 {command}"))?;
    let with = pairs::with_emu(&format!("MLX5_EMU_STRICT=0 {RUN} --stats {command}"))?;
    let other = |line: &&str| line.starts_with("mlx5-emu: complaint: ") && !line.contains("UnknownKey");
    if let Some(complaint) = with.lines().find(other) {
        return Err(complaint.into());
    }
    let (with, report): (Vec<_>, Vec<_>) = with
        .lines()
        .filter(|line| !line.starts_with("mlx5-emu: "))
        .partition(|line| !line.contains("doorbell-verbs"));
    // With a queue that is left to libmlx5, its own work would be compared with itself.
    let whole = |share: &str| {
        let words: Vec<_> = share.split_whitespace().collect();
        matches!(words[..], [taken, "of", seen, _] if taken == seen && taken != "0")
    };
    let line = report.last().ok_or("the library reported nothing")?;
    let counts: Vec<_> = line.split([',', ';', ':']).filter(|share| share.contains(" of ")).collect();
    if counts.len() != 4 || !counts.iter().all(|share| whole(share)) {
        return Err(format!("not all was taken over: {report:?}").into());
    }
    let lines: Vec<_> = without.lines().filter(|line| !line.starts_with("mlx5-emu: ")).collect();
    match lines.iter().zip(&with).position(|(a, b)| a != b) {
        None if lines.len() == with.len() && lines.len() > 200 => Ok(()),
        None => Err(format!("{} lines without the library, {} with it", lines.len(), with.len()).into()),
        Some(at) => {
            let before = lines[at.saturating_sub(8)..at].join("\n");
            Err(format!("{before}\nwithout: {}\nwith:    {}", lines[at], with[at]).into())
        }
    }
}
