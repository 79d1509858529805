//! Attacks by a program without `unsafe` on the memory of pools. Whatever values the program keeps,
//! forges, forgets or drops too early: nothing else may change the bytes of a guard.
//! provider/SOUNDNESS.md has the argument.
#![forbid(unsafe_code)]

mod forged;
mod lifetimes;
mod programs;
mod sends;
mod windows;

use doorbell::{CompletionFlags, Lmr, RmrTriplet};
use std::process::ExitCode;

/// Set in a process that only checks the memory of a pool: `true` if it is to stay mapped.
const POOL_STAYS: &str = "DOORBELL_SAFETY_POOL_STAYS";

fn main() -> ExitCode {
    if let Ok(stays) = std::env::var(POOL_STAYS) {
        lifetimes::memory_of_a_pool_stays_or_goes(stays == "true");
        return ExitCode::SUCCESS;
    }
    let emulated = std::env::var("LD_PRELOAD").is_ok_and(|libraries| libraries.contains("mlx5_emu"));
    let tests = &[forged::TESTS, lifetimes::TESTS, sends::TESTS, programs::TESTS, windows::TESTS].concat();
    let reason = |name: &str| match name {
        "memory_that_the_device_keeps_stays_mapped" if !emulated => {
            Some("only the software device refuses to deregister")
        }
        "a_bind_that_waits_keeps_the_buffer" if doorbell_hw_tests::on_rxe() => {
            Some("rxe executes a bind again when it repeats the request before, and breaks the connection")
        }
        "a_dropped_bind_that_waits_loses_the_buffer" if doorbell_hw_tests::on_rxe() => {
            Some("on rxe a bind need not wait for the Send before it")
        }
        _ => None,
    };
    doorbell_hw_tests::run_unless(tests, 4, reason).exit_code()
}

const NONE: CompletionFlags = CompletionFlags::empty();

fn remote(lmr: &Lmr, segment_length: u32) -> RmrTriplet {
    RmrTriplet { virtual_address: lmr.address(), segment_length, rmr_context: lmr.rmr_context() }
}
