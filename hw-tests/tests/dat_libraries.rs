//! libdat2.so.2 of provider/dat2 and libdat.so.1 of provider/dat12 without a device: their checks in
//! C, run by their own Makefiles. Debian's libdat2 takes the checks of ours, too, where it is
//! installed.

use libtest_mimic::{Arguments, Failed, Trial};
use std::path::Path;
use std::process::Command;

fn main() {
    let headers = Path::new("/usr/include/dat2/udat.h").exists();
    let missing = (!headers).then_some("no headers of libdat2: install libdapl-dev");
    let trials = vec![
        trial("the_headers_have_the_layouts_and_numbers_of_dat_2_0", "dat2", "check-headers", "facts hold"),
        trial("libdat2_exports_what_debians_does", "dat2", "check-symbols", "libdat2.so.2"),
        trial("dat_conf_is_read_as_by_debians_libdat2", "dat2", "check-conf", "all passed"),
        trial("every_call_arrives_at_its_provider", "dat2", "check-registry", "all passed"),
        trial("the_headers_have_the_layouts_and_numbers_of_dat_1_2", "dat12", "check-layout", "facts hold"),
        trial(
            "every_function_and_field_arrives_at_a_provider_of_dat_2_0",
            "dat12",
            "check-mock",
            "checks passed",
        )
        .with_kind(missing.unwrap_or_default())
        .with_ignored_flag(missing.is_some()),
    ];
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}

fn trial(name: &str, folder: &'static str, target: &'static str, says: &'static str) -> Trial {
    Trial::test(name, move || make(folder, target, says))
}

fn make(folder: &str, target: &str, says: &str) -> Result<(), Failed> {
    let output = Command::new("make")
        .arg("-C")
        .arg(format!("{}/../provider/{folder}", env!("CARGO_MANIFEST_DIR")))
        .arg(target)
        .arg(format!("OUT={}/{folder}-{target}", env!("CARGO_TARGET_TMPDIR")))
        .env_remove("MAKEFLAGS")
        .output()?;
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    if output.status.success() && said.contains(says) { Ok(()) } else { Err(said.into()) }
}
