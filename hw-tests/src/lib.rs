//! What device tests share: the devices to use, visible skips without a device, and a [`Rig`] of
//! two IAs with connections between them.

pub mod dat;
pub mod echo;
pub mod rig;
pub mod software;

pub use rig::{Pair, Rig, Side};

use libtest_mimic::{Arguments, Conclusion, Trial};

/// The devices to test on: server and client side. `DOORBELL_TEST_DEVICES` names them, separated by
/// a comma; one name stands for both.
pub fn devices() -> Option<(String, String)> {
    let names = std::env::var("DOORBELL_TEST_DEVICES").ok().filter(|names| !names.trim().is_empty())?;
    let mut names = names.split(',').map(|name| name.trim().to_owned());
    let server = names.next()?;
    let client = names.next().unwrap_or_else(|| server.clone());
    Some((server, client))
}

/// Whether the tests run on rxe devices.
pub fn on_rxe() -> bool {
    devices().is_some_and(|(device, _)| device.starts_with("rxe"))
}

/// Writes the log to standard error, as far as `DOORBELL_LOG` asks (`debug`, `doorbell=trace`,
/// ...).
pub fn log() {
    let filter = tracing_subscriber::EnvFilter::try_from_env("DOORBELL_LOG").unwrap_or_default();
    let _ = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).try_init();
}

/// One test: its name and what it does; it fails by panicking.
pub type Test = (&'static str, fn());

/// Names the tests after their functions: `tests![r39_first, r40_second]`.
#[macro_export]
macro_rules! tests {
    ($($name:ident),* $(,)?) => { &[$((stringify!($name), $name as fn())),*] };
}

/// Runs device tests with the usual command line; without a device each is shown as ignored, with
/// the reason.
pub fn run(tests: &[Test]) -> Conclusion {
    run_with_threads(tests, 4)
}

/// The same with at most this many tests at once, unless the command line says otherwise.
pub fn run_with_threads(tests: &[Test], threads: usize) -> Conclusion {
    run_unless(tests, threads, |_| None)
}

/// The same; tests for which `reason` has one are shown as ignored for it.
pub fn run_unless(
    tests: &[Test],
    threads: usize,
    reason: impl Fn(&str) -> Option<&'static str>,
) -> Conclusion {
    log();
    let mut args = Arguments::from_args();
    args.test_threads = args.test_threads.or(Some(threads));
    let missing = devices().is_none();
    let trials = tests
        .iter()
        .map(|&(name, test)| {
            let trial = Trial::test(name, move || {
                test();
                Ok(())
            });
            let reason = if missing { Some("no device: set DOORBELL_TEST_DEVICES") } else { reason(name) };
            match reason {
                Some(reason) => trial.with_kind(reason).with_ignored_flag(true),
                None => trial,
            }
        })
        .collect();
    libtest_mimic::run(&args, trials)
}
