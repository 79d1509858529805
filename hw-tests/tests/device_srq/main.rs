//! SRQs: creation, counts, posting, resizing, low watermark (sections A to E, H and I of the rules).

mod create;
mod free;
mod low_watermark;
mod post;
mod query;
mod resize;

use doorbell::{Ep, Error, Evd, EvdFlags, PostError};
use doorbell_hw_tests::{Side, devices};
use std::fmt::Debug;

fn main() {
    let tests = [create::TESTS, free::TESTS, query::TESTS, post::TESTS, resize::TESTS, low_watermark::TESTS];
    doorbell_hw_tests::run(&tests.concat()).exit();
}

/// One end alone, for what needs no connection.
fn server() -> Side {
    Side::open(&devices().expect("DOORBELL_TEST_DEVICES names the devices").0)
}

/// Another EVD for completions.
fn dto_evd(side: &Side) -> Evd {
    Evd::create(&side.ia, 64, None, EvdFlags::DTO).unwrap()
}

/// The code of a call that has to fail.
fn refused<T: Debug>(outcome: Result<T, Error>) -> u32 {
    outcome.expect_err("this has to be refused").code()
}

/// The code of a post that has to fail.
fn post_refused(outcome: Result<(), PostError>) -> u32 {
    outcome.expect_err("this has to be refused").code()
}

// Codes of the rule table.
const INVALID_HANDLE_PZ: u32 = 0x8005_000F;
const INVALID_HANDLE_SRQ: u32 = 0x8005_0019;
const INVALID_ARG2: u32 = 0x8006_0026;
const INVALID_ARG3: u32 = 0x8006_0027;
const INVALID_STATE: u32 = 0x8007_0000;
const SRQ_IN_USE: u32 = 0x8007_0057;
const NO_SRQ: u32 = 0x8003_000A;
const NO_MEMORY: u32 = 0x8003_0002;
const PROTECTION_WRITE: u32 = 0x800C_005E;
const PRIVILEGES_WRITE: u32 = 0x800B_005A;
const TIMEOUT_EXPIRED: u32 = 0x800F_0000;
