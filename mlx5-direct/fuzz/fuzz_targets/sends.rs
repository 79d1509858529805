//! A faulty device that completes requests: entries of arbitrary bytes. Run in `mlx5-direct`:
//! `cargo +nightly fuzz run sends`.
#![no_main]

#[path = "../../tests/common/mod.rs"]
mod common;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| common::complete_arbitrary_sends(bytes));
