//! Compiles the libraries of provider/dat2 and provider/dat12 and the C programs: those of `c/` and
//! `guest/` against libdat2, those of `c12/` against libdat.so.1. tests/device_dat and
//! tests/device_guest.rs run them.
//!
//! `c/` and `guest/` get the installed headers of libdat2, and those of provider/dat2 where there
//! are none, or if `DOORBELL_LIBDAT2=ours` is set.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

const INSTALLED: &str = "/usr/include/dat2/udat.h";

fn main() {
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    dat2(&out, &out.join("dat2"));
    dat12(&out.join("dat12"));
}

fn dat2(out: &Path, ours: &Path) {
    println!("cargo::rerun-if-changed=c");
    println!("cargo::rerun-if-changed=guest");
    println!("cargo::rerun-if-changed=../provider/dat2");
    println!("cargo::rerun-if-changed={INSTALLED}");
    println!("cargo::rerun-if-env-changed=DOORBELL_LIBDAT2");
    library("dat2", ours);
    let only_ours = !Path::new(INSTALLED).exists()
        || std::env::var_os("DOORBELL_LIBDAT2").is_some_and(|which| which == "ours");
    let guests = out.join("guest");
    std::fs::create_dir_all(&guests).expect("there is a folder for the programs");
    let mut names = Vec::new();
    for (folder, out) in [("guest", guests.as_path()), ("c", out)] {
        names = programs(folder);
        compile(folder, &names, out, |name, cc| {
            if only_ours {
                cc.arg("-I../provider/dat2/include").arg(format!("-L{}", ours.display()));
            }
            // A program with privileges takes no libdat2 that the environment names.
            if name == "privileges" {
                cc.arg("-I../provider/dat2/include").arg(format!("-L{}", ours.display()));
                cc.arg(format!("-Wl,-rpath,{}", ours.display()));
            }
            cc.args(["-ldat2", "-ldl"]);
        });
    }
    println!("cargo::rustc-env=DOORBELL_GUESTS={}", guests.display());
    println!("cargo::rustc-env=DOORBELL_C_PROGRAMS={}", out.display());
    println!("cargo::rustc-env=DOORBELL_C_NAMES={}", names.join(" "));
    println!("cargo::rustc-env=DOORBELL_OUR_LIBDAT2={}", ours.display());
    println!("cargo::rustc-env=DOORBELL_ONLY_OUR_LIBDAT2={only_ours}");
}

/// Makes a library of provider/.
fn library(folder: &str, out: &Path) {
    let made = Command::new("make")
        .args(["--silent", "-C", &format!("../provider/{folder}")])
        .arg(format!("OUT={}", out.display()))
        .env_remove("MAKEFLAGS")
        .status();
    assert!(made.is_ok_and(|status| status.success()), "make -C provider/{folder} does not work");
}

/// Programs of DAT 1.2 know nothing but its headers and `-ldat`.
fn dat12(out: &Path) {
    println!("cargo::rerun-if-changed=c12");
    println!("cargo::rerun-if-changed=c/common.h");
    println!("cargo::rerun-if-changed=../provider/dat12");
    library("dat12", out);
    let names = programs("c12");
    compile("c12", &names, out, |_, cc| {
        cc.arg("-I../provider/dat12/include").arg(format!("-L{}", out.display()));
        cc.args(["-ldat", &format!("-Wl,-rpath,{}", out.display())]);
    });
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

/// Compiles the programs of a folder, as many at a time as the machine has processors.
fn compile(folder: &str, names: &[String], out: &Path, options: impl Fn(&str, &mut Command) + Sync) {
    let next = AtomicUsize::new(0);
    let some = || {
        while let Some(name) = names.get(next.fetch_add(1, Ordering::Relaxed)) {
            let mut cc = cc(&format!("{folder}/{name}.c"), &out.join(name));
            options(name, &mut cc);
            assert!(cc.status().is_ok_and(|status| status.success()), "{folder}/{name}.c does not compile");
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(some);
        }
    });
}

fn cc(source: &str, program: &Path) -> Command {
    let mut cc = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()));
    cc.args(["-std=gnu11", "-Wall", "-Wextra", "-Wno-unused-function", "-O1", "-g", "-pthread", "-o"]);
    cc.arg(program).arg(source);
    cc
}
