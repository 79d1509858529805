//! `doorbell-run [--stats] [--log] PROGRAM ARGS...`: runs a program with the preloaded library.

use std::{
    env,
    ffi::{OsStr, OsString},
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};

const USAGE: &str = "\
usage: doorbell-run [--stats] [--log] PROGRAM ARGUMENTS...

Runs PROGRAM with its verbs queues on the direct path of mlx5 devices.
  --stats  prints at exit how many contexts, CQs, SRQs and QPs were taken over
  --log    prints each object as it is created, and why it was left to its driver
The manual page is doorbell-run(1).";

const INSTALLED: &str = "libdoorbell-verbs.so";
const BUILT: &str = "libdoorbell_verbs.so";

/// The library: `DOORBELL_VERBS_LIBRARY`, or next to this program, or in the lib folder beside its
/// folder.
fn library() -> Result<PathBuf> {
    if let Some(named) = env::var_os("DOORBELL_VERBS_LIBRARY") {
        return Ok(named.into());
    }
    let program = env::current_exe().context("the path of doorbell-run")?;
    let folder = program.parent().unwrap_or(Path::new("/"));
    let places = [
        folder.join(BUILT),
        folder.join("../lib").join(INSTALLED),
        folder.join("../lib").join(format!("{}-linux-gnu", env::consts::ARCH)).join(INSTALLED),
        folder.join("../lib64").join(INSTALLED),
    ];
    let found = places.iter().find(|place| place.exists());
    found
        .cloned()
        .with_context(|| format!("no {INSTALLED} near {}: set DOORBELL_VERBS_LIBRARY", folder.display()))
}

/// `LD_PRELOAD` with the library behind what is there.
fn preload(before: Option<&OsStr>, library: &Path) -> OsString {
    let mut all = before.unwrap_or_default().to_os_string();
    if !all.is_empty() {
        all.push(":");
    }
    all.push(library);
    all
}

fn main() -> Result<()> {
    let mut arguments = env::args_os().skip(1).peekable();
    let (mut stats, mut log) = (false, false);
    while let Some(option) = arguments.next_if(|argument| argument.as_encoded_bytes().starts_with(b"-")) {
        match option.to_str() {
            Some("--stats") => stats = true,
            Some("--log") => log = true,
            Some("--help" | "-h") => {
                println!("{USAGE}");
                return Ok(());
            }
            Some("--") => break,
            _ => bail!("unknown option {}\n{USAGE}", option.display()),
        }
    }
    let Some(program) = arguments.next() else { bail!("{USAGE}") };
    let library = library()?;
    let mut command = Command::new(&program);
    command.args(arguments).env("LD_PRELOAD", preload(env::var_os("LD_PRELOAD").as_deref(), &library));
    if stats {
        command.env("DOORBELL_VERBS_STATS", "1");
    }
    if log {
        command.env("DOORBELL_LOG", "info");
    }
    Err(command.exec()).with_context(|| program.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_comes_behind_what_is_preloaded_already() {
        let library = Path::new("/lib/x.so");
        assert_eq!(preload(None, library), "/lib/x.so");
        assert_eq!(preload(Some(OsStr::new("")), library), "/lib/x.so");
        assert_eq!(preload(Some(OsStr::new("/lib/emu.so")), library), "/lib/emu.so:/lib/x.so");
    }
}
