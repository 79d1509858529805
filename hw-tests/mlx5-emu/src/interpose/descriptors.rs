//! Functions that take a descriptor, and socket(2).
#![expect(unsafe_code, reason = "C entry points with raw pointers")]

use std::panic::catch_unwind;

use libc::{c_int, c_ulong, c_void, size_t, ssize_t, stat as StatBuf};

use crate::host::{sys, vfile};
use crate::interpose::answer::{answer, fill_stat};

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
        crate::host::mem::copy_from_user(buf as u64, &mut command)?;
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

/// fcntl(2): duplicates of virtual files are virtual.
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcntl(fd: c_int, command: c_int, arg: usize) -> c_int {
    // SAFETY: arguments are handed on unchanged.
    let result = unsafe { sys::fcntl(fd, command, arg) };
    if result >= 0 && matches!(command, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC) && vfile::is_virtual(fd) {
        let _ = catch_unwind(|| vfile::duplicated(fd, result));
    }
    result
}

/// fcntl64(2); the same function on 64-bit Linux.
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcntl64(fd: c_int, command: c_int, arg: usize) -> c_int {
    // SAFETY: as promised by the caller.
    unsafe { fcntl(fd, command, arg) }
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

/// socket(2). Reports the RDMA netlink family as missing, so that rdma-core discovers devices
/// through sysfs.
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    const NETLINK_RDMA: c_int = 20;
    if domain == libc::AF_NETLINK && protocol == NETLINK_RDMA && crate::host::devices::present() {
        sys::set_errno(libc::EPROTONOSUPPORT);
        return -1;
    }
    // SAFETY: arguments are handed on unchanged.
    unsafe { sys::socket(domain, kind, protocol) }
}
