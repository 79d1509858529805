//! libdat.so.1 of provider/dat12 without a device: its checks in C, run by its own Makefile.

use libtest_mimic::{Arguments, Failed, Trial};
use std::path::Path;
use std::process::Command;

fn main() {
    let headers = Path::new("/usr/include/dat2/udat.h").exists();
    let missing = (!headers).then_some("no headers of libdat2: install libdapl-dev");
    let trials = vec![
        Trial::test("the_headers_have_the_layouts_and_numbers_of_dat_1_2", || {
            make("check-layout", "facts hold")
        }),
        Trial::test("every_function_and_field_arrives_at_a_provider_of_dat_2_0", || {
            make("check-mock", "checks passed")
        })
        .with_kind(missing.unwrap_or_default())
        .with_ignored_flag(missing.is_some()),
    ];
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}

fn make(target: &str, says: &str) -> Result<(), Failed> {
    let output = Command::new("make")
        .args(["-C", concat!(env!("CARGO_MANIFEST_DIR"), "/../provider/dat12"), target])
        .arg(format!("OUT={}/dat12-{target}", env!("CARGO_TARGET_TMPDIR")))
        .env_remove("MAKEFLAGS")
        .output()?;
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    if output.status.success() && said.contains(says) { Ok(()) } else { Err(said.into()) }
}
