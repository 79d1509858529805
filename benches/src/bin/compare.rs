//! Runs every case and writes the report.

use std::{path::PathBuf, process::Command, time::Duration};

use anyhow::{Context, Result, bail};
use clap::Parser;
use doorbell_benches::{
    case::{Case, measured},
    direct, report,
    report::Row,
    sample,
};

/// Measures the data paths and writes target/bench/report.json.
#[derive(Parser)]
struct Args {
    /// Only cases whose name contains this.
    #[arg(long, default_value = "")]
    only: String,
    /// Milliseconds to sample each case.
    #[arg(long, default_value_t = 300)]
    millis: u64,
    /// Do not count instructions (counting needs valgrind).
    #[arg(long)]
    no_instructions: bool,
    /// Where to write the report.
    #[arg(long, default_value = "target/bench/report.json")]
    out: PathBuf,
    /// Run the n-th case this many times and nothing else: for an instruction counter around this program.
    #[arg(long, num_args = 2, value_names = ["N", "RUNS"], hide = true)]
    count: Option<Vec<u32>>,
}

fn cases() -> Vec<Box<dyn Case>> {
    direct::cases()
}

/// Runs of a case under the instruction counter.
const COUNTED_RUNS: u32 = 500;

fn main() -> Result<()> {
    let args = Args::parse();
    let mut cases = cases();
    if let Some([n, runs]) = args.count.as_deref() {
        let case = cases.get_mut(*n as usize).context("no such case")?;
        for _ in 0..*runs {
            case.prepare();
            measured(case.as_mut());
        }
        return Ok(());
    }
    let mut rows = vec![];
    for (n, case) in cases.iter_mut().enumerate() {
        if !case.key().case.contains(&args.only) {
            continue;
        }
        let timing = sample::time(case.as_mut(), Duration::from_millis(args.millis));
        let instructions =
            if args.no_instructions { None } else { Some(count(n, f64::from(case.operations()))?) };
        rows.push(Row { key: case.key(), timing, instructions });
    }
    println!("{}", report::to_table(&rows));
    report::write_json(&rows, &args.out).with_context(|| format!("cannot write {}", args.out.display()))?;
    println!("written to {}", args.out.display());
    Ok(())
}

/// Instructions per operation, from callgrind: everything below [`measured`].
fn count(case: usize, operations: f64) -> Result<f64> {
    let output = Command::new("valgrind")
        .args([
            "--tool=callgrind",
            "--callgrind-out-file=/dev/null",
            "--toggle-collect=doorbell_benches::case::measured",
        ])
        .arg(std::env::current_exe()?)
        .args(["--count", &case.to_string(), &COUNTED_RUNS.to_string()])
        .output()
        .context("cannot run valgrind: install it, or pass --no-instructions")?;
    let text = String::from_utf8_lossy(&output.stderr);
    let collected = text.lines().find_map(|line| line.split("Collected :").nth(1));
    let Some(instructions) = collected.and_then(|n| n.trim().parse::<f64>().ok()) else {
        bail!("valgrind did not report a count:\n{text}");
    };
    Ok(instructions / (operations * f64::from(COUNTED_RUNS)))
}
