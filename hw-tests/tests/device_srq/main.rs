//! SRQs: what the C tests of sections A to I of the rules (`c/rules_srq*.c`, `c/rules_recv.c`) do not
//! show.

mod low_watermark;
mod post;
mod resize;

use doorbell::{Ep, Error, Evd, EvdFlags, PostError};
use doorbell_hw_tests::{Side, devices};
use std::fmt::Debug;

fn main() {
    let tests = [post::TESTS, resize::TESTS, low_watermark::TESTS];
    doorbell_hw_tests::run(&tests.concat()).exit();
}

/// One end alone, for what needs no connection.
fn server() -> Side {
    Side::open(&devices().expect("DOORBELL_TEST_DEVICES names the devices").0)
}

/// Another EVD for completions.
fn dto_evd(side: &Side) -> Evd {
    Evd::new(&side.ia, 64, EvdFlags::DTO).unwrap()
}

/// The code of a call that has to fail.
fn refused<T: Debug>(outcome: Result<T, Error>) -> u32 {
    outcome.expect_err("this has to be refused").code()
}

/// The code of a post that has to fail.
fn post_refused(outcome: Result<(), PostError>) -> u32 {
    outcome.expect_err("this has to be refused").code()
}
