//! Counting instructions, with callgrind or by single steps.

use std::{collections::HashMap, ffi::OsStr, ffi::OsString, fs, path::Path, process::Command};

use anyhow::{Context, Result, bail};

mod code;

use code::Object;

/// Whether valgrind is installed.
pub fn available() -> bool {
    Command::new("valgrind").arg("--version").output().is_ok_and(|out| out.status.success())
}

/// What callgrind counted below a function.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Executed {
    /// Instructions of any kind.
    pub instructions: f64,
    /// Instructions that lock a cache line, as in [`Steps::locked`]. Of x86-64 only.
    pub locked: f64,
}

/// Runs a program under callgrind and returns what was executed below the function `measured`: in
/// order, one count for each time that the function `dumped` ended, or one count for the whole run
/// if `dumped` is `None`.
///
/// # Errors
///
/// The program fails, or valgrind writes no counts.
pub fn executed(command: &Command, measured: &str, dumped: Option<&str>) -> Result<Vec<Executed>> {
    // Addresses and names in full, so that each line can be read alone.
    let options = ["--dump-instr=yes", "--compress-pos=no", "--compress-strings=no"];
    let mut objects = HashMap::new();
    let texts = callgrind(command, measured, dumped, &options)?;
    texts.iter().map(|text| by_address(text, &mut objects)).collect()
}

/// Adds up the lines of a callgrind file that has a line for each instruction.
fn by_address(text: &str, objects: &mut HashMap<String, Object>) -> Result<Executed> {
    let mut sum = Executed::default();
    let (mut object, mut is_call) = ("", false);
    for line in text.lines() {
        if let Some(name) = line.strip_prefix("ob=") {
            object = name;
        } else if line.starts_with("calls=") {
            is_call = true;
        } else if let Some(line) = line.strip_prefix("0x") {
            // Behind `calls=`, what the called function costs, which has lines of its own.
            if std::mem::take(&mut is_call) {
                continue;
            }
            let mut words = line.split_whitespace();
            let address = words.next().and_then(|word| u64::from_str_radix(word, 16).ok());
            // The second word is a line of the source.
            let times = words.nth(1).and_then(|word| word.parse::<f64>().ok());
            let (Some(address), Some(times)) = (address, times) else { continue };
            sum.instructions += times;
            if cfg!(target_arch = "x86_64") {
                if !objects.contains_key(object) {
                    objects.insert(object.to_owned(), Object::read(Path::new(object))?);
                }
                sum.locked += times * f64::from(u8::from(code::is_locked(objects[object].at(address))));
            }
        }
    }
    Ok(sum)
}

/// As [`executed`], but counts the cache lines that the function fetches for a read and for a
/// write. The program sees to it that the simulated cache, of 64 KiB, is empty at each entry.
///
/// # Errors
///
/// As [`executed`].
pub fn lines(command: &Command, measured: &str, dumped: Option<&str>) -> Result<Vec<[f64; 2]>> {
    // "Ir Dr Dw I1mr D1mr D1mw ILmr DLmr DLmw"
    const READ: usize = 4;
    const WRITTEN: usize = 5;
    let cache = ["--cache-sim=yes", "--I1=32768,8,64", "--D1=65536,16,64", "--LL=33554432,16,64"];
    // Callgrind leaves out zeros at the end.
    let of = |events: &Vec<f64>| [READ, WRITTEN].map(|event| events.get(event).copied().unwrap_or(0.0));
    callgrind(command, measured, dumped, &cache)?.iter().map(|text| Ok(of(&total(text)?))).collect()
}

/// The files that callgrind writes.
fn callgrind(
    command: &Command,
    measured: &str,
    dumped: Option<&str>,
    options: &[&str],
) -> Result<Vec<String>> {
    let folder = tempfile::tempdir()?;
    let out = folder.path().join("counts");
    let mut valgrind = Command::new("valgrind");
    valgrind.args(["--tool=callgrind", "--quiet"]).args(options).arg(format!("--toggle-collect={measured}"));
    valgrind.arg(format!("--callgrind-out-file={}", out.display()));
    if let Some(dumped) = dumped {
        valgrind.arg(format!("--dump-after={dumped}"));
    }
    valgrind.arg(command.get_program()).args(command.get_args());
    valgrind.envs(command.get_envs().filter_map(|(name, value): (&OsStr, _)| Some((name, value?))));
    let output = valgrind.output().context("cannot run valgrind")?;
    if !output.status.success() {
        bail!("{command:?} under valgrind: {}", String::from_utf8_lossy(&output.stderr));
    }
    if dumped.is_none() {
        return Ok(vec![read(&out)?]);
    }
    (1..)
        .map(|n| folder.path().join(format!("counts.{n}")))
        .take_while(|path| path.exists())
        .map(|path| read(&path))
        .collect()
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("{}", path.display()))
}

/// The totals of callgrind's events in one of its files, in its order.
fn total(text: &str) -> Result<Vec<f64>> {
    let found = text.lines().find_map(|line| {
        let rest = line.strip_prefix("summary:").or_else(|| line.strip_prefix("totals:"))?;
        rest.split_whitespace().map(|n| n.parse().ok()).collect()
    });
    found.context("a file of callgrind has no total")
}

/// Runs of a case by single steps.
pub const TRAPPED_RUNS: u32 = 4;

/// What a program executed between its breakpoint traps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Steps {
    /// Instructions of any kind.
    pub instructions: u64,
    /// Instructions that lock a cache line: a LOCK prefix, or XCHG with memory.
    pub locked: u64,
    /// MFENCE, LFENCE and SFENCE.
    pub fences: u64,
    /// System calls.
    pub calls: u64,
}

/// Runs a program with `c/steps.c`, compiled to `steps`: single steps between the program's traps.
/// Other threads run freely.
///
/// # Errors
///
/// The program fails, or executes no trap.
pub fn steps(steps: &Path, command: &Command) -> Result<Steps> {
    let folder = tempfile::tempdir()?;
    let out = folder.path().join("steps");
    // The libraries to preload are for the program only, not for `steps`.
    let mut stepped = Command::new(steps);
    stepped.arg(&out).arg("env");
    stepped.args(command.get_envs().filter_map(|(name, value)| {
        let mut both = OsString::from(name);
        both.push("=");
        both.push(value?);
        Some(both)
    }));
    stepped.arg(command.get_program()).args(command.get_args());
    let output = stepped.output().context("cannot run steps")?;
    if !output.status.success() {
        bail!("{command:?} by single steps: {}", String::from_utf8_lossy(&output.stderr));
    }
    let text = fs::read_to_string(&out)?;
    let value = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
        line.with_context(|| format!("no count of {name} in {text}"))
    };
    Ok(Steps {
        instructions: value("instructions ")?,
        locked: value("locked ")?,
        fences: value("fences ")?,
        calls: value("calls ")?,
    })
}
