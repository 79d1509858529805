//! Runs every case of every subject and writes the report.

use std::{path::PathBuf, process::Command, time::Duration};

use anyhow::{Context, Result, bail};
use clap::Parser;
use doorbell_benches::{
    case::{Case, measured},
    direct, libmlx5, report,
    report::Row,
    sample::{self, Timing},
};

/// Measures the data paths and writes target/bench/report.json.
#[derive(Parser)]
struct Args {
    /// Only cases whose name contains this.
    #[arg(long, default_value = "")]
    only: String,
    /// Only this subject: direct, libmlx5 or libmlx5_unlocked.
    #[arg(long)]
    subject: Option<String>,
    /// Milliseconds to sample each case.
    #[arg(long, default_value_t = 300)]
    millis: u64,
    /// Do not count instructions (counting needs valgrind).
    #[arg(long)]
    no_instructions: bool,
    /// Where to write the report.
    #[arg(long, default_value = "target/bench/report.json")]
    out: PathBuf,
    /// Time the n-th case of the subject and print the figures: a process of its own for each subject.
    #[arg(long, value_name = "N", hide = true)]
    time: Option<usize>,
    /// Run the n-th case of the subject under an instruction counter.
    #[arg(long, value_name = "N", hide = true)]
    count: Option<usize>,
}

/// Who is measured, and the environment that libmlx5 reads once, when it starts.
const SUBJECTS: [(&str, &[(&str, &str)]); 3] =
    [("direct", &[]), ("libmlx5", &[]), ("libmlx5_unlocked", &[("MLX5_SINGLE_THREADED", "1")])];

/// Runs of a case under the instruction counter.
const COUNTED_RUNS: u32 = 500;

fn cases(subject: &str) -> Result<Vec<Box<dyn Case>>> {
    Ok(match subject {
        "direct" => direct::cases(),
        "libmlx5" => libmlx5::cases("libmlx5"),
        "libmlx5_unlocked" => libmlx5::cases("libmlx5_unlocked"),
        other => bail!("no subject {other}: direct, libmlx5 or libmlx5_unlocked"),
    })
}

fn main() -> Result<()> {
    let args = Args::parse();
    let subject = args.subject.as_deref();
    if let Some(n) = args.time.or(args.count) {
        let mut cases = cases(subject.context("--time and --count need --subject")?)?;
        let case = cases.get_mut(n).context("no such case")?;
        if args.count.is_some() {
            for _ in 0..COUNTED_RUNS {
                case.prepare();
                measured(case.as_mut());
            }
        } else {
            let Timing { mean, p50, p99, p999 } =
                sample::time(case.as_mut(), Duration::from_millis(args.millis));
            println!("{mean} {p50} {p99} {p999}");
        }
        return Ok(());
    }
    let mut rows = vec![];
    for (name, environment) in SUBJECTS.iter().filter(|(name, _)| subject.is_none_or(|s| s == *name)) {
        for (n, case) in cases(name)?.iter().enumerate() {
            if !case.key().case.contains(&args.only) {
                continue;
            }
            let timing = time(name, environment, n, args.millis)?;
            let instructions = if args.no_instructions {
                None
            } else {
                Some(count(name, environment, n, f64::from(case.operations()))?)
            };
            rows.push(Row { key: case.key(), timing, instructions });
        }
    }
    // Rows that compare stand together.
    let order: Vec<_> = rows.iter().map(|r| r.key.case).collect();
    rows.sort_by_key(|r| {
        (order.iter().position(|c| *c == r.key.case), r.key.batch, r.key.depth, r.key.segments)
    });
    println!("{}", report::to_table(&rows));
    report::write_json(&rows, &args.out).with_context(|| format!("cannot write {}", args.out.display()))?;
    println!("written to {}", args.out.display());
    Ok(())
}

/// Times a case in a process of its own.
fn time(subject: &str, environment: &[(&str, &str)], case: usize, millis: u64) -> Result<Timing> {
    let output = Command::new(std::env::current_exe()?)
        .args(["--subject", subject, "--time", &case.to_string(), "--millis", &millis.to_string()])
        .envs(environment.iter().copied())
        .output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let figures: Vec<f64> = text.split_whitespace().filter_map(|f| f.parse().ok()).collect();
    let [mean, p50, p99, p999] = figures[..] else {
        bail!("{subject}, case {case}: {}", String::from_utf8_lossy(&output.stderr));
    };
    Ok(Timing { mean, p50, p99, p999 })
}

/// Instructions per operation, from callgrind: everything below [`measured`].
fn count(subject: &str, environment: &[(&str, &str)], case: usize, operations: f64) -> Result<f64> {
    let output = Command::new("valgrind")
        .args([
            "--tool=callgrind",
            "--callgrind-out-file=/dev/null",
            "--toggle-collect=doorbell_benches::case::measured",
        ])
        .arg(std::env::current_exe()?)
        .args(["--subject", subject, "--count", &case.to_string()])
        .envs(environment.iter().copied())
        .output()
        .context("cannot run valgrind: install it, or pass --no-instructions")?;
    let text = String::from_utf8_lossy(&output.stderr);
    let collected = text.lines().find_map(|line| line.split("Collected :").nth(1));
    let Some(instructions) = collected.and_then(|n| n.trim().parse::<f64>().ok()) else {
        bail!("valgrind did not report a count:\n{text}");
    };
    Ok(instructions / (operations * f64::from(COUNTED_RUNS)))
}
