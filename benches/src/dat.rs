//! The data path calls of C programs through libdat2, with any provider: runs `c/dat_post.c` and
//! `c/dat_threads.c`.

use std::{
    ffi::{OsStr, OsString},
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::atomic::{AtomicU32, Ordering},
};

use anyhow::{Context, Result, bail};

use crate::{
    cold,
    count::{self, Steps},
    device,
    plan::{CaseName, Spec, Subject},
    sample::{Effort, Timing, clock_cost},
};

/// The compiled programs, a dat.conf with both providers, and the device to preload.
#[derive(Debug)]
pub struct DatPost {
    folder: tempfile::TempDir,
    device: PathBuf,
    provider: PathBuf,
    stepper: Option<Stepper>,
}

/// Operations of each thread in a sample of several threads: so many that the threads run at the
/// same time for most of it.
const EACH: u32 = 256;

/// The compiled program that counts by single steps.
#[derive(Debug)]
pub struct Stepper {
    folder: tempfile::TempDir,
}

impl Stepper {
    /// Compiles the program, which is for x86-64 only.
    ///
    /// # Errors
    ///
    /// The errors of the compiler.
    pub fn new() -> Result<Self> {
        let this = Self { folder: tempfile::tempdir()? };
        compile("steps.c", &this.program(), &[])?;
        Ok(this)
    }

    fn program(&self) -> PathBuf {
        self.folder.path().join("steps")
    }

    /// What a program executes between its breakpoint traps.
    ///
    /// # Errors
    ///
    /// As [`count::steps`].
    pub fn steps(&self, command: &Command) -> Result<Steps> {
        count::steps(&self.program(), command)
    }
}

impl DatPost {
    /// Compiles the programs against the installed libdat2. They use the libdoorbell.so beside this
    /// program.
    ///
    /// # Errors
    ///
    /// A text that names what is missing: a compiler, libdat2 (package libdapl-dev), or a library
    /// of this workspace.
    pub fn new() -> Result<Self> {
        Self::with(library("libdoorbell.so")?)
    }

    /// As [`DatPost::new`] with this libdoorbell.so.
    ///
    /// # Errors
    ///
    /// As [`DatPost::new`].
    pub fn with(provider: PathBuf) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let this = Self {
            device: library("libmlx5_emu.so")?,
            provider,
            stepper: if cfg!(target_arch = "x86_64") { Some(Stepper::new()?) } else { None },
            folder,
        };
        compile("dat_post.c", &this.program(), &["-ldat2"])
            .context("cannot compile against libdat2 (package libdapl-dev)")?;
        compile("dat_threads.c", &this.threads(), &["-ldat2", "-lpthread"])?;
        compile("short_sleep.c", &this.short_sleep(), &["-shared", "-fPIC"])?;
        // The software device is below the loopback interface.
        let address = match device::named() {
            Some(name) => doorbell::Ia::open(name)?.address().to_string(),
            None => "lo".to_owned(),
        };
        let conf = format!(
            "libdaplofa u2.0 nonthreadsafe default libdaplofa.so.2 dapl.2.0 \"{address} 0\" \"\"\n\
             provider u2.0 nonthreadsafe default {} doorbell.0.1 \"{}\" \"\"\n",
            this.provider.display(),
            device::name()
        );
        fs::write(this.conf(), conf)?;
        Ok(this)
    }

    fn program(&self) -> PathBuf {
        self.folder.path().join("dat_post")
    }

    /// The program of several threads.
    fn threads(&self) -> PathBuf {
        self.folder.path().join("dat_threads")
    }

    /// The library to preload under dtest.
    fn short_sleep(&self) -> PathBuf {
        self.folder.path().join("short_sleep.so")
    }

    fn conf(&self) -> PathBuf {
        self.folder.path().join("dat.conf")
    }

    /// Operations of a sample: enough to warm the caches, and no more than an SRQ holds. For several
    /// threads, those of one of them.
    fn group(spec: &Spec) -> u32 {
        match spec.case.threads() {
            Some(_) => EACH,
            None if spec.case.is_control() => 16,
            None => spec.depth.min(256),
        }
    }

    /// Environment variables for DAT programs that the shell starts: the provider's dat.conf and
    /// its IA, the library of the device to preload (empty for a real device), the library that
    /// shortens sleeps, and a fabric of their own.
    pub fn environment(&self, subject: Subject) -> Vec<(&'static str, OsString)> {
        let device = if device::named().is_none() { self.device.as_os_str() } else { OsStr::new("") };
        let mut all = vec![
            ("DAT_OVERRIDE", self.conf().into_os_string()),
            ("IA", ia(subject).into()),
            ("DEVICE_LIBRARY", device.to_owned()),
            ("SHORT_SLEEP", self.short_sleep().into_os_string()),
            ("SERVER_OUTPUT", self.server_output().into_os_string()),
            ("MLX5_EMU_SESSION", session().into()),
        ];
        all.extend(subject.environment().iter().map(|(name, value)| (*name, OsString::from(value))));
        all
    }

    /// The file that takes what dtest's server prints.
    pub fn server_output(&self) -> PathBuf {
        self.folder.path().join("server")
    }

    /// The program for a subject, in a fabric of its own. In the mode `stepped` the device runs
    /// only when the program sends or polls. For a case whose timed part sends, or polls in vain, the
    /// device has a thread of its own instead.
    fn command(&self, subject: Subject, spec: &Spec, group: u32, millis: u128, samples: usize) -> Command {
        let threads = spec.case.threads();
        let mut command = Command::new(threads.map_or(self.program(), |_| self.threads()));
        command.arg(ia(subject));
        match threads {
            Some(threads) => command.args([threads, spec.depth, EACH].map(|n| n.to_string())),
            None => {
                let (work, endpoints) = work(spec.case).expect("a case of dat_post.c");
                command.arg(work).args([spec.segments, spec.depth, group, endpoints].map(|n| n.to_string()))
            }
        };
        command
            .args([millis.to_string(), samples.to_string()])
            .env("DAT_OVERRIDE", self.conf())
            .envs(subject.environment().iter().copied());
        if device::named().is_none() {
            command
                .env("LD_PRELOAD", &self.device)
                .env("MLX5_EMU_MODE", if spec.case.needs_device_thread() { "thread" } else { "stepped" })
                .env("MLX5_EMU_SESSION", session());
        }
        command
    }

    /// Times a case of a subject.
    ///
    /// # Errors
    ///
    /// The error that the program printed.
    pub fn time(&self, subject: Subject, spec: &Spec, effort: Effort) -> Result<Timing> {
        // Threads that take turns on few cores take milliseconds for a sample.
        let samples = if spec.case.threads().is_some() { effort.samples / 10 } else { effort.samples };
        let mut command = self.command(subject, spec, Self::group(spec), effort.time.as_millis(), samples);
        self::samples(&mut command, Self::group(spec))
            .with_context(|| format!("{} of {}", spec.case.name(), subject.name()))
    }

    /// Times the operations of a case one by one, each after a walk over `set` bytes, with the device
    /// on another core.
    ///
    /// # Errors
    ///
    /// As [`DatPost::time`].
    pub fn time_cold(&self, subject: Subject, spec: &Spec, set: usize, effort: Effort) -> Result<Timing> {
        let mut command = self.cold(subject, spec, set, effort.time.as_millis(), effort.samples);
        cold::samples(&mut command).with_context(|| format!("{} of {}", spec.case.name(), subject.name()))
    }

    /// Counts the cache lines that a case fetches in `operations` operations, each with an empty
    /// cache: read and written.
    ///
    /// # Errors
    ///
    /// As [`count::lines`].
    pub fn lines(&self, subject: Subject, spec: &Spec, set: usize, operations: usize) -> Result<[f64; 2]> {
        let command = self.cold(subject, spec, set, 0, operations);
        count::lines(&command, "measured", None)?.first().copied().context("no count")
    }

    fn cold(&self, subject: Subject, spec: &Spec, set: usize, millis: u128, samples: usize) -> Command {
        let mut command = self.command(subject, spec, 1, millis, samples);
        command.env("BENCH_SET", set.to_string());
        if device::named().is_none() {
            // The device's thread writes, not a hook of this program's.
            command.env("MLX5_EMU_MODE", "thread");
        }
        command
    }

    /// Counts what a case of a subject executes in `groups` groups of operations. Also returns the
    /// number of operations.
    ///
    /// # Errors
    ///
    /// As [`count::steps`]; always on processors other than x86-64, and for several threads.
    pub fn steps(&self, subject: Subject, spec: &Spec, groups: u32) -> Result<(Steps, u32)> {
        let stepper = self.stepper.as_ref().context("single steps are counted on x86-64 only")?;
        // A single step takes microseconds, so the groups are small.
        const GROUP: u32 = 16;
        let mut command = self.command(subject, spec, GROUP, 0, groups as usize);
        command.env("DAT_POST_TRAPS", "1");
        Ok((stepper.steps(&command)?, groups * GROUP))
    }
}

/// The CASE of `dat_post.c`, and the number of further endpoints on the SRQ.
fn work(case: CaseName) -> Option<(&'static str, u32)> {
    Some(match case {
        CaseName::DatPost => ("post", 0),
        CaseName::DatPostCrowd => ("post", 10_000),
        CaseName::DatPostLmrs => ("post-lmrs", 0),
        CaseName::DatPostFourLmrs => ("post-lmrs-4", 0),
        CaseName::DatReap => ("reap", 0),
        CaseName::DatWait => ("wait", 0),
        CaseName::DatMessage => ("both", 0),
        CaseName::DatSend => ("send", 0),
        CaseName::DatSendLmrs => ("send-lmrs", 0),
        CaseName::DatSendFourLmrs => ("send-lmrs-4", 0),
        CaseName::DatWrite => ("write", 0),
        CaseName::DatRecv => ("recv", 0),
        CaseName::DatRecvLmrs => ("recv-lmrs", 0),
        CaseName::DatRecvFourLmrs => ("recv-lmrs-4", 0),
        CaseName::DatReapRecv => ("reap-recv", 0),
        CaseName::DatReapSend => ("reap-send", 0),
        CaseName::DatEmpty => ("empty", 0),
        CaseName::DatEmptySends => ("empty-send", 0),
        CaseName::DatAnswer => ("answer", 0),
        CaseName::DatEpCreate => ("ep-create", 0),
        CaseName::DatEpFree => ("ep-free", 0),
        _ => return None,
    })
}

/// Runs a program that prints the nanoseconds of each of its groups of `group` operations.
///
/// # Errors
///
/// The error that the program printed.
pub fn samples(command: &mut Command, group: u32) -> Result<Timing> {
    let output = command.output()?;
    if !output.status.success() {
        bail!("{}", String::from_utf8_lossy(&output.stderr));
    }
    let clock = clock_cost().as_nanos() as u64;
    let text = String::from_utf8_lossy(&output.stdout);
    let samples = text.lines().map(|line| Ok(line.parse::<u64>()?.saturating_sub(clock)));
    Ok(Timing::of(samples.collect::<Result<_>>()?, group))
}

/// Compiles a program of `benches/c`.
///
/// # Errors
///
/// The errors of the compiler.
pub fn compile(source: &str, program: &Path, libraries: &[&str]) -> Result<()> {
    let output = Command::new("cc")
        .args(["-std=gnu11", "-O2", "-Wall", "-Wextra", "-o"])
        .arg(program)
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("c").join(source))
        .args(libraries)
        .output()
        .context("cannot run cc")?;
    if !output.status.success() {
        bail!("{source}: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(())
}

/// The IA of a subject in the dat.conf of this crate.
fn ia(subject: Subject) -> &'static str {
    if subject == Subject::Libdaplofa { "libdaplofa" } else { "provider" }
}

/// Names a fabric that nobody else uses.
pub fn session() -> String {
    static RUN: AtomicU32 = AtomicU32::new(0);
    format!("bench-{}-{}", std::process::id(), RUN.fetch_add(1, Ordering::Relaxed))
}

/// A library that was built with this program.
///
/// # Errors
///
/// A text that names the packages to build.
pub fn library(name: &str) -> Result<PathBuf> {
    let program = std::env::current_exe()?;
    let folders = program.ancestors().skip(1).take(2);
    let found = folders.flat_map(|f| [f.join(name), f.join("deps").join(name)]).find(|path| path.exists());
    found.with_context(|| {
        format!(
            "no {name} near {}: build doorbell-capi, mlx5-emu and doorbell-verbs as well",
            program.display()
        )
    })
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::work;
    use crate::plan::plan;

    #[test]
    fn each_case_has_work_of_its_own() {
        let names: HashSet<_> = plan(false)
            .into_iter()
            .filter(|spec| spec.case.through_libdat() && spec.case.threads().is_none())
            .map(|spec| (spec.case.name(), work(spec.case)))
            .collect();
        let works: HashSet<_> = names.iter().filter_map(|(_, work)| *work).collect();
        assert!(works.len() > 15 && works.len() == names.len(), "{names:?}");
    }
}
