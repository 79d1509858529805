//! Functions that take a descriptor, and socket(2).
#![expect(unsafe_code, reason = "C entry points with raw pointers")]

use std::io;
use std::panic::catch_unwind;

use libc::{c_int, c_ulong, c_void, size_t, ssize_t, stat as StatBuf};

use crate::host::vfile::{self, VirtualFile};
use crate::host::{devices, mem, sys};
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

entries!("fstat(2), with the same structure in both forms on 64-bit Linux.",
    fstat fstat64, (fd: c_int, out: *mut StatBuf) -> c_int,
    fstat_any(fd, out));
entries!("`fstat` of programs built against a glibc older than 2.33.",
    __fxstat, (_version: c_int, fd: c_int, out: *mut StatBuf) -> c_int,
    fstat_any(fd, out));
entries!("ioctl(2).",
ioctl, (fd: c_int, request: c_ulong, arg: usize) -> c_int,
match vfile::find(fd) {
    Some(file) => answer(|| file.ioctl(fd, request, arg)),
    None => sys::ioctl(fd, request, arg),
});
entries!("write(2).",
write, (fd: c_int, buf: *const c_void, len: size_t) -> ssize_t,
match vfile::find(fd) {
    Some(file) => answer(|| write_to(&*file, fd, buf as u64, len)) as ssize_t,
    None => sys::write(fd, buf, len),
});

/// A command that a program writes to a virtual file.
fn write_to(file: &dyn VirtualFile, fd: c_int, buf: u64, len: usize) -> io::Result<i64> {
    // No command is longer; a wild length must not become a wild allocation.
    if len > 1 << 20 {
        return Err(sys::errno(libc::EINVAL));
    }
    let mut command = vec![0; len];
    mem::copy_from_user(buf, &mut command)?;
    file.write(fd, &command).map(|taken| i64::try_from(taken).unwrap_or(i64::MAX))
}

/// # Safety
/// As close(2).
unsafe fn close_any(fd: c_int) -> c_int {
    if vfile::is_virtual(fd) {
        let _ = catch_unwind(|| vfile::forget(fd));
    }
    // SAFETY: the argument is handed on unchanged.
    unsafe { sys::close(fd) }
}

/// Notes that a duplicate of a virtual file was made, or that one was replaced. Returns the new
/// descriptor.
fn duplicated(old: c_int, new: c_int) -> c_int {
    if new >= 0 && old != new && (vfile::is_virtual(old) || vfile::is_virtual(new)) {
        let _ = catch_unwind(|| vfile::duplicated(old, new));
    }
    new
}

/// # Safety
/// As fcntl(2).
unsafe fn fcntl_any(fd: c_int, command: c_int, arg: usize) -> c_int {
    // SAFETY: arguments are handed on unchanged.
    let result = unsafe { sys::fcntl(fd, command, arg) };
    match command {
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => duplicated(fd, result),
        _ => result,
    }
}

/// # Safety
/// As socket(2).
unsafe fn socket_any(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    const NETLINK_RDMA: c_int = 20;
    if domain == libc::AF_NETLINK && protocol == NETLINK_RDMA && devices::present() {
        sys::set_errno(libc::EPROTONOSUPPORT);
        return -1;
    }
    // SAFETY: arguments are handed on unchanged.
    unsafe { sys::socket(domain, kind, protocol) }
}

entries!("close(2).", close, (fd: c_int) -> c_int, close_any(fd));
entries!("dup(2).", dup, (fd: c_int) -> c_int, duplicated(fd, sys::dup(fd)));
entries!("dup2(2).", dup2, (from: c_int, to: c_int) -> c_int, duplicated(from, sys::dup2(from, to)));
entries!("dup3(2).",
    dup3, (from: c_int, to: c_int, flags: c_int) -> c_int,
    duplicated(from, sys::dup3(from, to, flags)));
entries!("fcntl(2): duplicates of virtual files are virtual.",
    fcntl fcntl64, (fd: c_int, command: c_int, arg: usize) -> c_int,
    fcntl_any(fd, command, arg));
entries!("socket(2). Reports the RDMA netlink family as missing, so that rdma-core discovers devices
through sysfs.",
    socket, (domain: c_int, kind: c_int, protocol: c_int) -> c_int,
    socket_any(domain, kind, protocol));
