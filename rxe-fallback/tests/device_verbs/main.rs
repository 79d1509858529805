//! Verbs and rdma_cm on real devices.
//!
//! `DOORBELL_TEST_DEVICES` names one device (both ends on it) or two that reach each other:
//! `rxeA,rxeB`. Without it every test is reported as ignored.

mod cm;
mod cq;
mod device;
mod drops;
mod memory;
mod rc;
mod srq;
mod support;
mod ud;

use libtest_mimic::{Arguments, Failed, Trial};

use support::Ends;

/// What a test body is.
type Body = fn(&Ends) -> Result<(), Failed>;

/// Tests of one module: names, bodies, and where needed why they cannot run here.
struct Suite(Vec<(&'static str, Body, Option<&'static str>)>);

/// Names each function after itself.
macro_rules! suite {
    ($($test:ident),* $(,)?) => {
        $crate::Suite(vec![$((stringify!($test), $test as $crate::Body, None),)*])
    };
}
pub(crate) use suite;

fn main() {
    if let Some(device) = std::env::var_os(memory::CHILD) {
        memory::child(&device.to_string_lossy());
    }
    let mut arguments = Arguments::from_args();
    // Descriptors are counted, and events of the device belong to whoever waits: one test at a
    // time.
    arguments.test_threads = Some(1);
    let devices = std::env::var("DOORBELL_TEST_DEVICES").unwrap_or_default();
    let names: Vec<String> =
        devices.split(',').map(|s| s.trim().to_owned()).filter(|s| !s.is_empty()).collect();
    let suites = [
        ("device", device::suite(&names)),
        ("memory", memory::suite(&names)),
        ("cq", cq::suite()),
        ("srq", srq::suite()),
        ("rc", rc::suite()),
        ("ud", ud::suite()),
        ("cm", cm::suite()),
        ("drops", drops::suite()),
    ];
    let mut trials = Vec::new();
    for (module, Suite(tests)) in suites {
        for (name, body, obstacle) in tests {
            let names = names.clone();
            let reason =
                if names.is_empty() { Some("no device: set DOORBELL_TEST_DEVICES") } else { obstacle };
            let trial = Trial::test(format!("{module}::{name}"), move || body(&Ends::open(&names)?));
            trials.push(match reason {
                Some(reason) => trial.with_kind(reason).with_ignored_flag(true),
                None => trial.with_kind("verbs"),
            });
        }
    }
    libtest_mimic::run(&arguments, trials).exit();
}
