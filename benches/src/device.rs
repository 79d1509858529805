//! Which device is measured: the software device that is linked in, or one of this machine.

use std::sync::{Once, OnceLock};

static NAMED: OnceLock<String> = OnceLock::new();

/// Measures on this device of the machine. Once, before anything else; without it the software device is used.
pub fn choose(name: String) {
    assert!(NAMED.set(name).is_ok(), "the device is chosen once");
}

/// The device of this machine that was named, if one was.
pub fn named() -> Option<&'static str> {
    NAMED.get().map(String::as_str)
}

/// What the device is called.
pub fn name() -> &'static str {
    named().unwrap_or("mlx5_0")
}

/// Makes the software device there, where no other was named.
pub fn start() {
    static STARTED: Once = Once::new();
    if named().is_none() {
        STARTED.call_once(|| {
            mlx5_emu::set_mode(mlx5_emu::Mode::Manual);
            mlx5_emu::init();
        });
    }
}

/// Lets the software device work; a real one does so by itself.
pub fn step() {
    if named().is_none() {
        mlx5_emu::step();
    }
}
