//! Orders to the software device (mlx5-emu/src/orders.rs).
#![expect(unsafe_code, reason = "a C function that dlsym finds")]

use std::ffi::{CString, c_char};

/// The software device's answer to an order; -1 on other devices.
pub fn order(text: &str) -> i64 {
    type Control = unsafe extern "C" fn(*const c_char) -> i64;
    let text = CString::new(text).expect("an order has no NUL");
    // SAFETY: the name is a string with a NUL.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"mlx5_emu_control".as_ptr()) };
    if found.is_null() {
        return -1;
    }
    // SAFETY: the device's function of this name has this type.
    let control = unsafe { std::mem::transmute::<*mut libc::c_void, Control>(found) };
    // SAFETY: a string with a NUL.
    unsafe { control(text.as_ptr()) }
}
