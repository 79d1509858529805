//! Arbitrary lists of operations against the model of the device. Run in `mlx5-direct`: `cargo
//! +nightly fuzz run operations`.
#![no_main]

#[path = "../../tests/common/mod.rs"]
mod common;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let [slots, stride, depth, rest @ ..] = bytes else { return };
    let slots = 2u32 << (slots % 9);
    let mut session = common::Session::new(slots, 32 << (stride % 3), 1 + u32::from(*depth) % (slots - 1).max(1));
    for op in common::ops_from_bytes(rest) {
        session.apply(&op);
    }
    session.check();
    session.wind_down();
});
