//! Builds the test executables and says where they are.

use anyhow::{Context as _, Result, bail};
use serde_json::Value;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A test executable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Executable {
    pub(crate) package: String,
    /// Of the target: `device_srq`, or the name of a crate for its unit tests.
    pub(crate) name: String,
    /// Its unit tests, not a file of `tests/`.
    pub(crate) unit: bool,
    pub(crate) path: PathBuf,
    /// The folder in which its tests run.
    pub(crate) folder: PathBuf,
}

/// A target of the workspace that cargo can build for tests.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) name: String,
    /// `lib`, `bin` or `test`.
    pub(crate) kind: String,
    pub(crate) source: PathBuf,
}

/// What cargo knows of the workspace.
pub(crate) struct Workspace {
    pub(crate) target: PathBuf,
    pub(crate) targets: Vec<Target>,
}

pub(crate) fn cargo() -> Command {
    Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

/// `--locked` in continuous integration: a lock file that is not current is a failure there.
pub(crate) fn locked() -> Option<&'static str> {
    std::env::var_os("CI").map(|_| "--locked")
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

pub(crate) fn workspace() -> Result<Workspace> {
    let output = cargo()
        .args(["metadata", "--no-deps", "--format-version", "1"])
        .stderr(Stdio::inherit())
        .output()
        .context("cargo metadata")?;
    if !output.status.success() {
        bail!("cargo metadata ended with {}", output.status);
    }
    let metadata: Value = serde_json::from_slice(&output.stdout).context("what cargo metadata says")?;
    let mut targets = Vec::new();
    for package in list(&metadata["packages"]) {
        for target in list(&package["targets"]) {
            let kinds = list(&target["kind"]).iter().map(text);
            let kind = kinds
                .map(|kind| if kind.ends_with("lib") { "lib".to_owned() } else { kind })
                .find(|kind| matches!(kind.as_str(), "lib" | "bin" | "test"));
            if let Some(kind) = kind.filter(|_| target["test"] == true) {
                let (name, source) = (text(&target["name"]), text(&target["src_path"]).into());
                targets.push(Target { name, kind, source });
            }
        }
    }
    Ok(Workspace { target: text(&metadata["target_directory"]).into(), targets })
}

/// Builds tests of the workspace; `what` chooses targets. Fails with the end of cargo's output.
pub(crate) fn tests(what: &[String], log: &Path) -> Result<Vec<Executable>> {
    let mut command = cargo();
    command.args(["test", "--no-run", "--workspace", "--message-format=json-render-diagnostics"]);
    command.args(locked()).args(what);
    let output = built(command, log)?;
    let mut executables = Vec::new();
    for line in output.lines() {
        let Ok(message) = serde_json::from_str::<Value>(line) else { continue };
        if message["reason"] != "compiler-artifact" || message["profile"]["test"] != true {
            continue;
        }
        let (Some(path), target) = (message["executable"].as_str(), &message["target"]) else { continue };
        let manifest = PathBuf::from(text(&message["manifest_path"]));
        executables.push(Executable {
            package: package_of(&manifest)?,
            name: text(&target["name"]),
            unit: list(&target["kind"]).iter().all(|kind| kind != "test"),
            path: path.into(),
            folder: manifest.parent().context("a manifest is in a folder")?.to_owned(),
        });
    }
    Ok(executables)
}

/// Builds libraries and programs of the workspace.
pub(crate) fn libraries(options: &[&str], log: &Path) -> Result<()> {
    let mut command = cargo();
    command.args(["build", "--workspace"]).args(locked()).args(options);
    built(command, log).map(drop)
}

fn built(mut command: Command, log: &Path) -> Result<String> {
    let output = command
        .stdin(Stdio::null())
        .stderr(
            File::options().append(true).create(true).open(log).with_context(|| log.display().to_string())?,
        )
        .output()
        .context("cargo")?;
    if !output.status.success() {
        let said = std::fs::read_to_string(log).unwrap_or_default();
        bail!("{command:?} ended with {}:\n{}", output.status, crate::log::last_lines(&said, 60).join("\n"));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The name in a manifest.
fn package_of(manifest: &Path) -> Result<String> {
    let text = std::fs::read_to_string(manifest).with_context(|| manifest.display().to_string())?;
    let name = text.lines().find_map(|line| line.strip_prefix("name = \"")?.strip_suffix('"'));
    Ok(name.with_context(|| format!("no name in {}", manifest.display()))?.to_owned())
}
