//! Compiles the C programs of `c/` against libdat2, where its headers are installed; tests/device_dat runs them.

use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=c");
    println!("cargo::rerun-if-changed=/usr/include/dat2/udat.h");
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let names = programs();
    // Debian 13 has no uDAPL: the tests say so.
    let found =
        Path::new("/usr/include/dat2/udat.h").exists() && names.iter().all(|name| compile(name, &out));
    let folder = if found { out.display().to_string() } else { String::new() };
    println!("cargo::rustc-env=DOORBELL_C_PROGRAMS={folder}");
    println!("cargo::rustc-env=DOORBELL_C_NAMES={}", names.join(" "));
}

/// Every `c/NAME.c` is a program.
fn programs() -> Vec<String> {
    let files = std::fs::read_dir("c").expect("c/ is here");
    let mut names: Vec<String> = files
        .filter_map(|file| file.ok()?.file_name().to_str()?.strip_suffix(".c").map(str::to_owned))
        .collect();
    names.sort();
    names
}

fn compile(name: &str, out: &Path) -> bool {
    let status = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()))
        .args(["-std=gnu11", "-Wall", "-Wextra", "-Wno-unused-function", "-O1", "-g", "-pthread", "-o"])
        .arg(out.join(name))
        .arg(format!("c/{name}.c"))
        .args(["-ldat2", "-ldl"])
        .status();
    let compiled = status.is_ok_and(|status| status.success());
    if !compiled {
        println!("cargo::warning=c/{name}.c does not compile against libdat2 (libdapl-dev)");
    }
    compiled
}
