//! Compiles the C programs of `c/` against libdat2, where its headers are installed; tests/device_dat runs them.

use std::path::{Path, PathBuf};
use std::process::Command;

const PROGRAMS: [&str; 3] = ["handles", "srq", "slots"];

fn main() {
    println!("cargo::rerun-if-changed=c");
    println!("cargo::rerun-if-changed=/usr/include/dat2/udat.h");
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    // Debian 13 has no uDAPL: the tests say so.
    let found =
        Path::new("/usr/include/dat2/udat.h").exists() && PROGRAMS.iter().all(|name| compile(name, &out));
    let folder = if found { out.display().to_string() } else { String::new() };
    println!("cargo::rustc-env=DOORBELL_C_PROGRAMS={folder}");
}

fn compile(name: &str, out: &Path) -> bool {
    let status = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()))
        .args(["-std=gnu11", "-Wall", "-Wextra", "-Wno-unused-function", "-O1", "-g", "-o"])
        .arg(out.join(name))
        .arg(format!("c/{name}.c"))
        .arg("-ldat2")
        .status();
    let compiled = status.is_ok_and(|status| status.success());
    if !compiled {
        println!("cargo::warning=c/{name}.c does not compile against libdat2 (libdapl-dev)");
    }
    compiled
}
