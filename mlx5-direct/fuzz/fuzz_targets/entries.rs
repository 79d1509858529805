//! A faulty device: entries of arbitrary bytes. Run in `mlx5-direct`: `cargo +nightly fuzz run
//! entries`.
#![no_main]

#[path = "../../tests/common/mod.rs"]
mod common;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| common::poll_arbitrary_entries(bytes));
