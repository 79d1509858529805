//! A device gone mad: entries of arbitrary bytes. `cargo +nightly fuzz run entries`, in `mlx5-direct`.
#![no_main]

#[path = "../../tests/common/mod.rs"]
mod common;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| common::poll_arbitrary_entries(bytes));
