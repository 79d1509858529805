//! Plugging the device in: at load time in a cdylib, by [`init`] in a test program.
#![expect(unsafe_code, reason = "constructor and exit hook")]

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt as _;
use std::sync::Once;

use crate::{complaints, config, device, devices, sys, sysfs};

static ONCE: Once = Once::new();

/// Makes the software device visible to this process. Idempotent; call it before the first verbs call of the process, since
/// libibverbs reads SYSFS_PATH once.
///
/// A constructor does the same when the crate is loaded, so a call is only needed to be sure that the linker kept it.
pub fn init() {
    ONCE.call_once(|| {
        if let Err(error) = plug() {
            eprintln!("mlx5-emu: cannot plug in the software device: {error}");
        }
    });
}

fn plug() -> std::io::Result<()> {
    let path = sysfs::create()?;
    let path = CString::new(path.as_os_str().as_bytes())?;
    sys::setenv(c"SYSFS_PATH", &path);
    // SAFETY: registers a function that lives as long as the program (or the library, which is never unloaded).
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
            device::lock().net.linger();
        }
        sysfs::remove();
    });
    let count = complaints::complaint_count();
    if config::preloaded() && count > 0 {
        eprintln!("mlx5-emu: {count} complaints: real hardware would not have put up with this");
        if config::strict() {
            // SAFETY: ends the process at once; handlers that were registered earlier are skipped on purpose, the ones
            // registered later ran already. Buffered output is written first.
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
// SAFETY: the section holds pointers to functions without arguments, which is what this is; it runs once before main.
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn() = constructor;
