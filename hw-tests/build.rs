//! Compiles the C programs: those of `c/` against libdat2, where its headers are installed; libdat.so.1 of provider/dat12, and
//! those of `c12/` against that. tests/device_dat runs them.

use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=c");
    println!("cargo::rerun-if-changed=/usr/include/dat2/udat.h");
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let names = programs("c");
    // Debian 13 has no uDAPL: the tests say so.
    let found =
        Path::new("/usr/include/dat2/udat.h").exists() && names.iter().all(|name| compile(name, &out));
    let folder = if found { out.display().to_string() } else { String::new() };
    println!("cargo::rustc-env=DOORBELL_C_PROGRAMS={folder}");
    println!("cargo::rustc-env=DOORBELL_C_NAMES={}", names.join(" "));
    dat12(&out.join("dat12"));
}

/// Programs of DAT 1.2 know nothing but its headers and `-ldat`.
fn dat12(out: &Path) {
    println!("cargo::rerun-if-changed=c12");
    println!("cargo::rerun-if-changed=c/common.h");
    println!("cargo::rerun-if-changed=../provider/dat12");
    let made = Command::new("make")
        .args(["--silent", "-C", "../provider/dat12"])
        .arg(format!("OUT={}", out.display()))
        .env_remove("MAKEFLAGS")
        .status();
    assert!(made.is_ok_and(|status| status.success()), "make -C provider/dat12 does not work");
    let names = programs("c12");
    for name in &names {
        let mut cc = cc(&format!("c12/{name}.c"), &out.join(name));
        cc.arg("-I../provider/dat12/include").arg(format!("-L{}", out.display()));
        cc.args(["-ldat", &format!("-Wl,-rpath,{}", out.display())]);
        assert!(cc.status().is_ok_and(|status| status.success()), "c12/{name}.c does not compile");
    }
    println!("cargo::rustc-env=DOORBELL_C12_PROGRAMS={}", out.display());
    println!("cargo::rustc-env=DOORBELL_C12_NAMES={}", names.join(" "));
}

/// Every `FOLDER/NAME.c` is a program.
fn programs(folder: &str) -> Vec<String> {
    let files = std::fs::read_dir(folder).expect("the folder is here");
    let mut names: Vec<String> = files
        .filter_map(|file| file.ok()?.file_name().to_str()?.strip_suffix(".c").map(str::to_owned))
        .collect();
    names.sort();
    names
}

fn cc(source: &str, program: &Path) -> Command {
    let mut cc = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()));
    cc.args(["-std=gnu11", "-Wall", "-Wextra", "-Wno-unused-function", "-O1", "-g", "-pthread", "-o"]);
    cc.arg(program).arg(source);
    cc
}

fn compile(name: &str, out: &Path) -> bool {
    let status = cc(&format!("c/{name}.c"), &out.join(name)).args(["-ldat2", "-ldl"]).status();
    let compiled = status.is_ok_and(|status| status.success());
    if !compiled {
        println!("cargo::warning=c/{name}.c does not compile against libdat2 (libdapl-dev)");
    }
    compiled
}
