//! UCX's transport rc_mlx5, whose send path does without libmlx5: runs `c/uct_send.c`.

use std::{path::PathBuf, process::Command};

use anyhow::{Context, Result};

use crate::{
    case::GROUP,
    cold,
    count::{self, Steps},
    dat::{Stepper, compile, library, samples, session},
    device,
    plan::{CaseName, Spec},
    sample::{Effort, Timing},
};

/// The compiled program, and the device to preload.
#[derive(Debug)]
pub struct Uct {
    folder: tempfile::TempDir,
    device: PathBuf,
    stepper: Option<Stepper>,
}

impl Uct {
    /// Compiles the program against the installed UCX.
    ///
    /// # Errors
    ///
    /// A text that names what is missing: a compiler, UCX (package libucx-dev), or the library of
    /// the software device.
    pub fn new() -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let this = Self {
            device: library("libmlx5_emu.so")?,
            stepper: if cfg!(target_arch = "x86_64") { Some(Stepper::new()?) } else { None },
            folder,
        };
        compile("uct_send.c", &this.program(), &["-luct", "-lucs"])
            .context("cannot compile against UCX (package libucx-dev)")?;
        Ok(this)
    }

    fn program(&self) -> PathBuf {
        self.folder.path().join("uct_send")
    }

    fn command(&self, spec: &Spec, group: u32, millis: u128, samples: usize) -> Command {
        let mut command = Command::new(self.program());
        command
            .arg(device::name())
            .arg(if spec.case == CaseName::Message { "message" } else { "send" })
            .args([group.to_string(), millis.to_string(), samples.to_string()]);
        if device::named().is_none() {
            command
                .env("LD_PRELOAD", &self.device)
                .env("MLX5_EMU_MODE", "manual")
                .env("MLX5_EMU_SESSION", session());
        }
        command
    }

    /// Times a case.
    ///
    /// # Errors
    ///
    /// The error that the program printed.
    pub fn time(&self, spec: &Spec, effort: Effort) -> Result<Timing> {
        let mut command = self.command(spec, GROUP, effort.time.as_millis(), effort.samples);
        samples(&mut command, GROUP).with_context(|| format!("{} of ucx", spec.case.name()))
    }

    /// Times the operations of a case one by one, each after a walk over `set` bytes, with the device
    /// on another core.
    ///
    /// # Errors
    ///
    /// As [`Uct::time`].
    pub fn time_cold(&self, spec: &Spec, set: usize, effort: Effort) -> Result<Timing> {
        let mut command = self.command(spec, 1, effort.time.as_millis(), effort.samples);
        command.env("BENCH_SET", set.to_string());
        cold::samples(&mut command).with_context(|| format!("{} of ucx", spec.case.name()))
    }

    /// Counts the cache lines that a case fetches in `operations` operations, each with an empty
    /// cache: read and written.
    ///
    /// # Errors
    ///
    /// As [`count::lines`].
    pub fn lines(&self, spec: &Spec, set: usize, operations: usize) -> Result<[f64; 2]> {
        let mut command = self.command(spec, 1, 0, operations);
        command.env("BENCH_SET", set.to_string());
        let found = count::lines(&command, "measured", None)?;
        found.first().copied().context("no count")
    }

    /// Counts what a case executes in `groups` groups of operations. Also returns the number of
    /// operations.
    ///
    /// # Errors
    ///
    /// As [`count::steps`]; always on processors other than x86-64.
    pub fn steps(&self, spec: &Spec, groups: u32) -> Result<(Steps, u32)> {
        let stepper = self.stepper.as_ref().context("single steps are counted on x86-64 only")?;
        let mut command = self.command(spec, GROUP, 0, groups as usize);
        command.env("BENCH_TRAPS", "1");
        Ok((stepper.steps(&command)?, groups * GROUP))
    }
}
