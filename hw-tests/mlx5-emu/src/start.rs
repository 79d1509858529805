//! Plugging the device in: at load time in a cdylib, by [`init`] in a test program.
#![expect(unsafe_code, reason = "constructor and exit hook")]

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt as _;
use std::sync::Once;

use crate::host::{complaints, config, devices, sys};
use crate::interpose::sysfs;
use crate::program::hooks::Hooks;
use crate::{device, fork};

static ONCE: Once = Once::new();

/// Makes the software device visible to this process. The function is idempotent. Call it before
/// the first verbs call of the process, because libibverbs reads SYSFS_PATH once.
///
/// A constructor does the same when the crate is loaded. A call is therefore needed only to make
/// sure that the linker keeps the crate.
pub fn init() {
    ONCE.call_once(|| {
        if let Err(error) = plug() {
            crate::host::sys::say!("mlx5-emu: cannot plug in the software device: {error}");
        }
    });
}

fn plug() -> std::io::Result<()> {
    fork::start();
    device::observe(&Hooks);
    let path = sysfs::create()?;
    let path = CString::new(path.as_os_str().as_bytes())?;
    sys::setenv(c"SYSFS_PATH", &path);
    // SAFETY: registers a function that lives as long as the program. A library with this code is
    // never unloaded.
    unsafe { libc::atexit(unplug) };
    complaints::print_as_they_come(config::preloaded());
    devices::set_present(true);
    Ok(())
}

/// Exit status of a preloaded program that broke a rule, when MLX5_EMU_STRICT=1.
const BROKEN_RULES: i32 = 86;

extern "C" fn unplug() {
    let _ = std::panic::catch_unwind(|| {
        if device::exists() {
            device::lock().card.net.linger();
        }
        sysfs::remove();
    });
    let count = complaints::complaint_count();
    if config::preloaded() && count > 0 {
        crate::host::sys::say!("mlx5-emu: {count} complaints: real hardware would not accept these actions");
        if config::strict() {
            // SAFETY: ends the process at once. Handlers that were registered earlier are skipped
            // on purpose; handlers that were registered later have already run. Buffered output is
            // written first.
            unsafe {
                libc::fflush(std::ptr::null_mut());
                libc::_exit(BROKEN_RULES);
            }
        }
    }
}

extern "C" fn constructor() {
    let _ = std::panic::catch_unwind(init);
}

#[used]
// SAFETY: the section holds pointers to functions without arguments, and `constructor` is such a
// function. It runs once before main.
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn() = constructor;
