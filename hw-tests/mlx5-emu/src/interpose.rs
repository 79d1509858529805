//! The C library's functions that rdma-core calls, put in front of the real ones.
//!
//! Exported with their C names: in a cdylib they serve LD_PRELOAD, in an executable that links the rlib the linker
//! exports them for the shared libraries. Each looks whether the call concerns the software device and otherwise goes
//! on to the real function. What is not ours costs one comparison or one load.
#![expect(unsafe_code, reason = "C entry points with raw pointers")]

use std::ffi::CStr;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

use libc::{c_char, c_int, c_ulong, c_void, mode_t, size_t, ssize_t, stat as StatBuf};

use crate::{sys, vfile};

/// Runs the driver's side of a call; an error or a panic becomes -1 and an errno.
fn answer<T: From<i8>>(call: impl FnOnce() -> io::Result<T>) -> T {
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

/// The path as bytes when it may be one of ours.
///
/// # Safety
/// `path` is null or a NUL-terminated string.
unsafe fn our_path<'a>(path: *const c_char) -> Option<&'a [u8]> {
    if path.is_null() {
        return None;
    }
    // SAFETY: by contract NUL-terminated.
    let bytes = unsafe { CStr::from_ptr(path) }.to_bytes();
    (bytes.starts_with(b"/dev/infiniband/") || bytes.starts_with(b"/dev/char/")).then_some(bytes)
}

/// # Safety
/// As open(2).
unsafe fn open_any(path: *const c_char, otherwise: impl FnOnce() -> c_int) -> c_int {
    // SAFETY: the caller's promise about `path` is that of open(2).
    if let Some(bytes) = unsafe { our_path(path) }
        && let Some(opened) = crate::devices::open(bytes)
    {
        return answer(|| opened);
    }
    otherwise()
}

/// open(2).
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn open(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    // SAFETY: arguments are handed on unchanged.
    unsafe { open_any(path, || sys::open(path, flags, mode)) }
}

/// open64(2).
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn open64(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    // SAFETY: arguments are handed on unchanged.
    unsafe { open_any(path, || sys::open(path, flags, mode)) }
}

/// openat(2).
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn openat(dir: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    // SAFETY: arguments are handed on unchanged.
    unsafe { open_any(path, || sys::openat(dir, path, flags, mode)) }
}

/// openat64(2).
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn openat64(dir: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    // SAFETY: arguments are handed on unchanged.
    unsafe { open_any(path, || sys::openat(dir, path, flags, mode)) }
}

/// Fills in what a character device's stat says.
///
/// # Safety
/// `out` is valid for writing.
unsafe fn fill_stat(out: *mut StatBuf, (major, minor): (u32, u32)) -> c_int {
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

/// # Safety
/// As stat(2).
unsafe fn stat_any(path: *const c_char, out: *mut StatBuf) -> c_int {
    // SAFETY: the caller's promise about `path` is that of stat(2).
    if let Some(bytes) = unsafe { our_path(path) }
        && let Some(number) = crate::devices::number(bytes)
        && !out.is_null()
    {
        // SAFETY: `out` is the caller's stat buffer.
        return unsafe { fill_stat(out, number) };
    }
    // SAFETY: arguments are handed on unchanged.
    unsafe { sys::stat(path, out) }
}

/// # Safety
/// As fstat(2).
unsafe fn fstat_any(fd: c_int, out: *mut StatBuf) -> c_int {
    if let Some(number) = vfile::find(fd).and_then(|file| file.device_number())
        && !out.is_null()
    {
        // SAFETY: `out` is the caller's stat buffer.
        return unsafe { fill_stat(out, number) };
    }
    // SAFETY: arguments are handed on unchanged.
    unsafe { sys::fstat(fd, out) }
}

/// stat(2).
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stat(path: *const c_char, out: *mut StatBuf) -> c_int {
    // SAFETY: as promised by the caller.
    unsafe { stat_any(path, out) }
}

/// stat64(2); the same structure on 64-bit Linux.
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stat64(path: *const c_char, out: *mut StatBuf) -> c_int {
    // SAFETY: as promised by the caller.
    unsafe { stat_any(path, out) }
}

/// `stat` of programs built against a glibc older than 2.33.
///
/// # Safety
/// As stat(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __xstat(_version: c_int, path: *const c_char, out: *mut StatBuf) -> c_int {
    // SAFETY: as promised by the caller.
    unsafe { stat_any(path, out) }
}

/// fstat(2).
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fstat(fd: c_int, out: *mut StatBuf) -> c_int {
    // SAFETY: as promised by the caller.
    unsafe { fstat_any(fd, out) }
}

/// fstat64(2); the same structure on 64-bit Linux.
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fstat64(fd: c_int, out: *mut StatBuf) -> c_int {
    // SAFETY: as promised by the caller.
    unsafe { fstat_any(fd, out) }
}

/// `fstat` of programs built against a glibc older than 2.33.
///
/// # Safety
/// As fstat(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __fxstat(_version: c_int, fd: c_int, out: *mut StatBuf) -> c_int {
    // SAFETY: as promised by the caller.
    unsafe { fstat_any(fd, out) }
}

/// ioctl(2).
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ioctl(fd: c_int, request: c_ulong, arg: usize) -> c_int {
    match vfile::find(fd) {
        Some(file) => answer(|| file.ioctl(fd, request, arg)),
        // SAFETY: arguments are handed on unchanged.
        None => unsafe { sys::ioctl(fd, request, arg) },
    }
}

/// write(2).
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn write(fd: c_int, buf: *const c_void, len: size_t) -> ssize_t {
    let Some(file) = vfile::find(fd) else {
        // SAFETY: arguments are handed on unchanged.
        return unsafe { sys::write(fd, buf, len) };
    };
    let result: i64 = answer(|| {
        // No command is longer; a wild length must not become a wild allocation.
        if len > 1 << 20 {
            return Err(sys::errno(libc::EINVAL));
        }
        let mut command = vec![0; len];
        crate::mem::copy_from_user(buf as u64, &mut command)?;
        file.write(fd, &command).map(|taken| i64::try_from(taken).unwrap_or(i64::MAX))
    });
    result as ssize_t
}

/// close(2).
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn close(fd: c_int) -> c_int {
    if vfile::is_virtual(fd) {
        let _ = catch_unwind(|| vfile::forget(fd));
    }
    // SAFETY: arguments are handed on unchanged.
    unsafe { sys::close(fd) }
}

/// dup(2).
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dup(fd: c_int) -> c_int {
    // SAFETY: arguments are handed on unchanged.
    let new = unsafe { sys::dup(fd) };
    if new >= 0 && vfile::is_virtual(fd) {
        let _ = catch_unwind(|| vfile::duplicated(fd, new));
    }
    new
}

/// dup2(2).
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dup2(from: c_int, to: c_int) -> c_int {
    // SAFETY: arguments are handed on unchanged.
    let new = unsafe { sys::dup2(from, to) };
    if new >= 0 && from != to && (vfile::is_virtual(from) || vfile::is_virtual(to)) {
        let _ = catch_unwind(|| vfile::duplicated(from, to));
    }
    new
}

/// dup3(2).
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dup3(from: c_int, to: c_int, flags: c_int) -> c_int {
    // SAFETY: arguments are handed on unchanged.
    let new = unsafe { sys::dup3(from, to, flags) };
    if new >= 0 && (vfile::is_virtual(from) || vfile::is_virtual(to)) {
        let _ = catch_unwind(|| vfile::duplicated(from, to));
    }
    new
}

/// socket(2): the RDMA netlink family is reported missing, so that rdma-core discovers devices through sysfs.
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    const NETLINK_RDMA: c_int = 20;
    if domain == libc::AF_NETLINK && protocol == NETLINK_RDMA && crate::devices::present() {
        sys::set_errno(libc::EPROTONOSUPPORT);
        return -1;
    }
    // SAFETY: arguments are handed on unchanged.
    unsafe { sys::socket(domain, kind, protocol) }
}
