//! The example in C compiles without warnings and runs on the software device, and the header
//! compiles as C++.
#![allow(missing_docs)]

use std::{
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
};

fn here(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// Runs a command and returns what it printed.
fn output(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{command:?}: {text}{}", String::from_utf8_lossy(&output.stderr));
    text
}

/// The library: a test does not build a cdylib of its package.
fn library() -> PathBuf {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--quiet", "--message-format=json", "-p", "mlx5-direct-c"]);
    let printed = output(cargo.current_dir(here(".")));
    let path = printed.split('"').find(|word| word.ends_with("/libmlx5_direct_c.so"));
    path.expect("the library's path").into()
}

#[test]
fn the_example_sends_and_receives_every_byte() {
    let folder = tempfile::tempdir().unwrap();
    // The name under which it is installed, and which programs look for.
    symlink(library(), folder.path().join("libmlx5-direct.so")).unwrap();
    let program = folder.path().join("loopback");
    output(
        Command::new("cc")
            .args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-I"])
            .arg(here("include"))
            .arg(here("examples/loopback.c"))
            .arg("-o")
            .arg(&program)
            .arg(format!("-L{}", folder.path().display()))
            .arg(format!("-Wl,-rpath,{}", folder.path().display()))
            .args(["-lmlx5-direct", "-libverbs"]),
    );
    let run = format!("{} mlx5_0", program.display());
    let text = output(Command::new(here("../../hw-tests/with-emu")).arg(run).env("MLX5_EMU_STRICT", "1"));
    let numbers: Vec<u32> =
        text.split(|c: char| !c.is_ascii_digit()).filter_map(|word| word.parse().ok()).collect();
    let [received, inside, sent, posted] = numbers[..] else { panic!("{text}") };
    assert_eq!((received, sent, posted), (1000, 1000, 16), "{text}");
    assert!(inside > 100 && inside < 900, "short messages come in completions: {text}");
}

#[test]
fn the_header_is_cxx_as_well() {
    let mut compiler = Command::new("c++");
    compiler.args(["-std=c++11", "-Wall", "-Werror", "-fsyntax-only", "-x", "c++"]);
    output(compiler.arg(here("include/doorbell/direct.h")));
}
