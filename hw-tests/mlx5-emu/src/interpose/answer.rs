//! Answers to calls of the program that concern the device, in the form of the C library.
#![expect(unsafe_code, reason = "a C structure behind a raw pointer")]

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

use libc::{c_int, stat as StatBuf};

use crate::host::sys;

/// Runs the driver's side of a call; an error or a panic becomes -1 and an errno.
pub(crate) fn answer<T: From<i8>>(call: impl FnOnce() -> io::Result<T>) -> T {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(value)) => value,
        Ok(Err(error)) => {
            sys::set_errno(sys::errno_of(&error));
            T::from(-1)
        }
        Err(_) => {
            sys::set_errno(libc::EIO);
            T::from(-1)
        }
    }
}

/// Fills in the stat of a character device.
///
/// # Safety
/// `out` is null or valid for writing.
pub(crate) unsafe fn fill_stat(out: *mut StatBuf, (major, minor): (u32, u32)) -> c_int {
    if out.is_null() {
        sys::set_errno(libc::EFAULT);
        return -1;
    }
    // SAFETY: valid by contract; all-zero is a valid stat.
    unsafe {
        out.write_bytes(0, 1);
        (*out).st_mode = libc::S_IFCHR | 0o666;
        (*out).st_nlink = 1;
        (*out).st_rdev = sys::makedev(major, minor);
        (*out).st_blksize = 4096;
    }
    0
}
