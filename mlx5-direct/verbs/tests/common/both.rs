//! A program of a test, run without and with the library.

use libtest_mimic::Failed;

#[path = "../../../../hw-tests/mlx5-emu/tests/common/pairs.rs"]
#[allow(dead_code, reason = "pairs of programs are tested elsewhere")]
pub(crate) mod pairs;
#[path = "../../../../hw-tests/mlx5-emu/tests/common/programs.rs"]
mod programs;
#[path = "../../../tests/common/rig.rs"]
pub(crate) mod rig;
#[allow(dead_code, reason = "a test uses a part")]
pub(crate) mod sessions;

/// From this package's folder.
const WITH_EMU: &str = "../../hw-tests/with-emu";
pub(crate) const RUN: &str = env!("CARGO_BIN_EXE_doorbell-run");

/// Which objects of a program the library has to take over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(dead_code, reason = "a test uses a part")]
pub(crate) enum Taken {
    /// All CQs and QPs, and at least one of each. Otherwise nothing would be compared.
    All,
    /// None of its CQs and QPs.
    None,
}

impl Taken {
    /// Whether this report says so.
    fn is_in(self, report: &str) -> bool {
        let is_so = |kind: &str| {
            let share = report.split([',', ';', ':']).find(|share| share.ends_with(kind)).unwrap_or_default();
            match share.split_whitespace().collect::<Vec<_>>()[..] {
                [taken, "of", seen, _] => match self {
                    Self::All => taken == seen && taken != "0",
                    Self::None => taken == "0" && seen != "0",
                },
                _ => false,
            }
        };
        is_so(" CQs") && is_so(" QPs")
    }
}

/// What the program of this name prints, without and with the library.
pub(crate) fn outputs(name: &str, objects: Taken) -> Result<[Vec<String>; 2], Failed> {
    let program = std::env::current_exe()?;
    let command = format!("timeout 120 {} program {name}", program.display());
    let mut all = vec![];
    for launcher in ["", &format!("{RUN} --stats ")] {
        let output = pairs::with_emu(&format!("{launcher}{command}"))?;
        let (report, lines): (Vec<_>, Vec<_>) =
            output.lines().map(str::to_owned).partition(|line| line.contains("doorbell-verbs"));
        if !launcher.is_empty() && !report.iter().any(|line| objects.is_in(line)) {
            return Err(format!("{report:?}").into());
        }
        all.push(lines);
    }
    let with = all.pop().ok_or("no output")?;
    let without = all.pop().ok_or("no output")?;
    if without.len() < 3 {
        return Err(format!("{without:?}").into());
    }
    Ok([without, with])
}

/// The program prints the same without and with the library.
pub(crate) fn same(name: &str, objects: Taken) -> Result<(), Failed> {
    let [without, with] = outputs(name, objects)?;
    match without.iter().zip(&with).find(|(a, b)| a != b) {
        None if without.len() == with.len() => Ok(()),
        None => Err(format!("{} lines without the library, {} with it", without.len(), with.len()).into()),
        Some((a, b)) => Err(format!("without: {a}\nwith:    {b}").into()),
    }
}
