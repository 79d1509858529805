//! libdoorbell.so under the stock libdat2: the C programs of hw-tests/c, and the programs of
//! dapl2-utils unmodified. Some run once more under the libdat2 of provider/dat2; all run under it
//! where the distribution has none, or with `DOORBELL_LIBDAT2=ours`.
//!
//! Both ends open an IA of the same name, each with a dat.conf of its own, since some clients take
//! the server's name. What counts is what programs print: those of dapl2-utils end with status 0
//! after failures too.

mod case;
mod dapltest;
mod own;
mod pair;
mod refusals;
mod stock;
mod tools;

use doorbell::Ia;
use doorbell_hw_tests::{devices, log};
use libtest_mimic::{Arguments, Failed, Trial};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};

/// The name of the IA in both dat.confs.
const IA: &str = "doorbell-test";

/// The paths and the address that all tests use.
struct Setting {
    /// The folder with the dat.confs.
    conf: PathBuf,
    /// The address of the server.
    server: IpAddr,
}

static SETTING: OnceLock<Setting> = OnceLock::new();

fn main() {
    log();
    let mut args = Arguments::from_args();
    // The second thread runs programs under valgrind, which only the software device allows.
    args.test_threads = Some(if own::no_valgrind().is_none() { 2 } else { 1 });
    let no_device = devices().is_none().then_some("no device: set DOORBELL_TEST_DEVICES");
    let no_programs = (!dapltest_exists()).then_some("no uDAPL programs: install dapl2-utils");
    let own = own::trials().into_iter().chain(refusals::trials()).chain(tools::trials());
    let others = case::trials(stock::cases).into_iter().chain(case::trials(dapltest::cases));
    let mut checked = own::trials_under_valgrind().into_iter().map(|trial| ignored_if(no_device, trial));
    let others: Vec<_> = own
        .map(|trial| ignored_if(no_device, trial))
        .chain(others.map(|trial| ignored_if(no_device.or(no_programs), trial)))
        .collect();
    // Tests under valgrind are spread over the list, so that one runs beside most of the others.
    let few = others.len() / (checked.len() + 1) + 1;
    let mut trials = Vec::new();
    for (n, trial) in others.into_iter().enumerate() {
        trials.push(trial);
        if n % few == 0 {
            trials.extend(checked.next());
        }
    }
    trials.extend(checked);
    let conclusion = libtest_mimic::run(&args, trials);
    if let Some(setting) = SETTING.get() {
        let _ = std::fs::remove_dir_all(&setting.conf);
    }
    conclusion.exit();
}

/// A test that runs while no other such test runs, because the programs listen on fixed ports. On the
/// software device, programs under valgrind have fabrics of their own and run beside them.
fn one_at_a_time(name: String, body: impl FnOnce() -> Result<(), Failed> + Send + 'static) -> Trial {
    static ALONE: Mutex<()> = Mutex::new(());
    Trial::test(name, move || {
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        body()
    })
}

fn ignored_if(missing: Option<&str>, trial: Trial) -> Trial {
    match missing {
        Some(reason) => trial.with_kind(reason).with_ignored_flag(true),
        None => trial,
    }
}

/// Whether dapl2-utils is installed.
fn dapltest_exists() -> bool {
    Path::new("/usr/bin/dapltest").exists()
}

/// libdoorbell.so, in the folder of the test executable.
fn library() -> PathBuf {
    let exe = std::env::current_exe().expect("a test has an executable");
    let deps = exe.parent().expect("an executable is in a folder");
    let library = deps.join("libdoorbell.so");
    assert!(library.exists(), "no {}: cargo build -p doorbell-capi", library.display());
    library
}

/// Writes the dat.confs, once: `a` and `b` for the two ends, `ofa-a` and `ofa-b` for libdaplofa at
/// those ends, and `both` with the IAs `doorbell-a`, `doorbell-b`, `ofa-a` and `ofa-b`.
fn setting() -> &'static Setting {
    SETTING.get_or_init(|| {
        let (a, b) = devices().expect("DOORBELL_TEST_DEVICES names the devices");
        let conf = std::env::temp_dir().join(format!("doorbell-dat-{}", std::process::id()));
        std::fs::create_dir_all(&conf).unwrap();
        let library = library();
        let line = |ia: &str, device: &str| {
            format!("{ia} u2.0 nonthreadsafe default {} doorbell.0.1 \"{device}\" \"\"\n", library.display())
        };
        let write = |name: &str, text: String| std::fs::write(conf.join(name), text).unwrap();
        write("a", line(IA, &a));
        write("b", line(IA, &b));
        let mut both = line("doorbell-a", &a)
            + &line("doorbell-b", &b)
            + &line("doorbell-none", "no_such_device")
            + &line("doorbell-port", &format!("{a} 77"));
        let server = Ia::open(&a).unwrap().address();
        let client = Ia::open(&b).unwrap().address();
        let ofa = |ia: &str, address: IpAddr| {
            format!("{ia} u2.0 nonthreadsafe default libdaplofa.so.2 dapl.2.0 \"{address} 0\" \"\"\n")
        };
        for (name, address) in [("ofa-a", server), ("ofa-b", client)] {
            write(name, ofa(IA, address));
            both += &ofa(name, address);
        }
        write("both", both);
        Setting { conf, server }
    })
}
