//! A thread that ends by itself ends the service, and the others; its error is that of the service.
//!
//! Without the harness of Rust, whose threads would take the signal: here it is blocked before.

use doorbell_service::daemon::{Control, Threads};
use doorbell_service::signals::Signals;
use libtest_mimic::{Arguments, Trial};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

/// The last order.
#[derive(Clone, Default)]
struct Told(Arc<AtomicU8>);

impl Control for Told {
    fn drain(&self) {
        self.0.store(1, Ordering::SeqCst);
    }

    fn stop(&self) {
        self.0.store(2, Ordering::SeqCst);
    }

    fn is_ending(&self) -> bool {
        self.0.load(Ordering::SeqCst) != 0
    }
}

fn main() {
    let signals = Signals::block().unwrap();
    let test = move || {
        a_thread_that_fails_ends_the_service(&signals);
        Ok(())
    };
    let trial = Trial::test("a_thread_that_fails_ends_the_service", test);
    libtest_mimic::run(&Arguments::from_args(), vec![trial]).exit();
}

fn a_thread_that_fails_ends_the_service(signals: &Signals) {
    let mut threads = Threads::default();
    let (good, bad) = (Told::default(), Told::default());
    let own = good.clone();
    let wait = move || {
        while !own.is_ending() {
            std::thread::yield_now();
        }
        Ok(())
    };
    threads.start("good".into(), "device a".into(), good.clone(), wait).unwrap();
    threads.start("bad".into(), "device b".into(), bad, || anyhow::bail!("no cable")).unwrap();
    let error = threads.serve(signals, || ()).unwrap_err();
    assert_eq!(format!("{error:#}"), "device b: no cable");
    assert_eq!(good.0.load(Ordering::SeqCst), 2);
}
