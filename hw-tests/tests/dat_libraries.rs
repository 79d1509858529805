//! libdat2.so.2 of provider/dat2 and libdat.so.1 of provider/dat12 without a device: their checks
//! in C, run by their own Makefiles. Debian's libdat2 takes the checks of ours, too, where it is
//! installed.

use libtest_mimic::{Arguments, Failed, Trial};
use std::path::Path;
use std::process::Command;

/// For `DAT2=` of dat12's Makefile: libdat2 of provider/dat2, or the installed one.
const OURS: &str = concat!("DAT2=", env!("DOORBELL_OUR_LIBDAT2"));
const INSTALLED: &str = "DAT2=";

fn main() {
    let headers = Path::new("/usr/include/dat2/udat.h").exists();
    let missing = (!headers).then_some("no headers of libdat2: install libdapl-dev");
    let dat2 = |name, target, says| trial(name, "dat2", target, says, INSTALLED);
    let dat12 = |name, target, says, dat2| trial(name, "dat12", target, says, dat2);
    let trials = vec![
        dat2("the_headers_have_the_layouts_and_numbers_of_dat_2_0", "check-headers", "facts hold"),
        dat2("libdat2_exports_what_debians_does", "check-symbols", "libdat2.so.2"),
        dat2("dat_conf_is_read_as_by_debians_libdat2", "check-conf", "all passed"),
        dat2("every_call_arrives_at_its_provider", "check-registry", "all passed"),
        dat12("the_headers_have_the_layouts_and_numbers_of_dat_1_2", "check-layout", "facts hold", INSTALLED),
        dat12(
            "every_function_and_field_arrives_at_a_provider_of_dat_2_0",
            "check-mock",
            "checks passed",
            INSTALLED,
        )
        .with_kind(missing.unwrap_or_default())
        .with_ignored_flag(missing.is_some()),
        dat12("and_through_the_libdat2_of_this_project", "check-mock", "checks passed", OURS),
    ];
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}

fn trial(
    name: &str,
    folder: &'static str,
    target: &'static str,
    says: &'static str,
    dat2: &'static str,
) -> Trial {
    Trial::test(name, move || make(folder, target, says, dat2))
}

fn make(folder: &str, target: &str, says: &str, dat2: &str) -> Result<(), Failed> {
    let registry = if dat2 == OURS { "-ours" } else { "" };
    let output = Command::new("make")
        .arg("-C")
        .arg(format!("{}/../provider/{folder}", env!("CARGO_MANIFEST_DIR")))
        .args([target, dat2])
        .arg(format!("OUT={}/{folder}-{target}{registry}", env!("CARGO_TARGET_TMPDIR")))
        .env_remove("MAKEFLAGS")
        .output()?;
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    if output.status.success() && said.contains(says) { Ok(()) } else { Err(said.into()) }
}
