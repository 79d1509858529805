//! The device that is measured: the software device that is linked in, or a device of this machine.

use std::sync::{Once, OnceLock};

static NAMED: OnceLock<String> = OnceLock::new();

/// Selects a device of this machine. Call this once, before anything else; without this call the
/// software device is used.
pub fn choose(name: String) {
    assert!(NAMED.set(name).is_ok(), "the device is chosen once");
}

/// The device of this machine that was selected, if any.
pub fn named() -> Option<&'static str> {
    NAMED.get().map(String::as_str)
}

/// The name of the device.
pub fn name() -> &'static str {
    named().unwrap_or("mlx5_0")
}

/// Starts the software device, unless another device was selected.
pub fn start() {
    static STARTED: Once = Once::new();
    if named().is_none() {
        STARTED.call_once(|| {
            mlx5_emu::set_mode(mlx5_emu::Mode::Manual);
            mlx5_emu::init();
        });
    }
}

/// Lets the software device work. A real device works by itself.
pub fn step() {
    if named().is_none() {
        mlx5_emu::step();
    }
}
