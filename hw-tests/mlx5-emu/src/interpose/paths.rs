//! Replacements for the C library functions that take a path.
//!
//! This module answers calls for device nodes under `/dev/infiniband`. Some programs name paths of
//! the device under `/sys` without a look at SYSFS_PATH. Such paths are redirected into the tree of
//! `sysfs.rs`. Every other path goes to the real function unchanged, after a check of its
//! first bytes.
#![expect(unsafe_code, reason = "C entry points with raw pointers")]

use std::ffi::{CStr, CString};
use std::panic::catch_unwind;

use libc::{
    DIR, FILE, c_char, c_int, c_uint, c_void, mode_t, size_t, ssize_t, stat as StatBuf, statx as StatxBuf,
};

use crate::host::devices::{self, Node};
use crate::host::sys;
use crate::interpose::answer::{answer, fill_stat};
use crate::interpose::{nodes, sysfs};

/// Where a path leads.
enum Target {
    /// To a device node.
    Node(Node),
    /// To this file of the tree.
    Tree(CString),
    /// To something that is not the software device's.
    Elsewhere,
}

/// # Safety
/// `path` is null or a NUL-terminated string.
#[inline]
unsafe fn target(dir: c_int, path: *const c_char) -> Target {
    if path.is_null() {
        return Target::Elsewhere;
    }
    // SAFETY: by contract NUL-terminated.
    let bytes = unsafe { CStr::from_ptr(path) }.to_bytes();
    let absolute = bytes.starts_with(b"/dev/") || bytes.starts_with(b"/sys/");
    if !absolute && (dir == libc::AT_FDCWD || !devices::is_name(bytes)) {
        return Target::Elsewhere;
    }
    catch_unwind(|| {
        let node = if absolute { devices::node(bytes) } else { nodes::node_in(dir, bytes) };
        if let Some(node) = node {
            return Target::Node(node);
        }
        if !absolute {
            return Target::Elsewhere;
        }
        sysfs::rewrite(bytes).map_or(Target::Elsewhere, Target::Tree)
    })
    .unwrap_or(Target::Elsewhere)
}

/// # Safety
/// As openat(2).
unsafe fn open_any(dir: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    // SAFETY: the caller's promise about `path` is that of openat(2).
    match unsafe { target(dir, path) } {
        Target::Node(node) => answer(|| nodes::open(node)),
        // SAFETY: NUL-terminated.
        Target::Tree(path) => unsafe { sys::open(path.as_ptr(), flags, mode) },
        // SAFETY: arguments are handed on unchanged.
        Target::Elsewhere if dir == libc::AT_FDCWD => unsafe { sys::open(path, flags, mode) },
        // SAFETY: arguments are handed on unchanged.
        Target::Elsewhere => unsafe { sys::openat(dir, path, flags, mode) },
    }
}

entries!("open(2).",
    open open64, (path: *const c_char, flags: c_int, mode: mode_t) -> c_int,
    open_any(libc::AT_FDCWD, path, flags, mode));
entries!("open(2) of programs built with _FORTIFY_SOURCE.",
    __open_2 __open64_2, (path: *const c_char, flags: c_int) -> c_int,
    open_any(libc::AT_FDCWD, path, flags, 0));
entries!("openat(2).",
    openat openat64, (dir: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int,
    open_any(dir, path, flags, mode));
entries!("openat(2) of programs built with _FORTIFY_SOURCE.",
    __openat_2 __openat64_2, (dir: c_int, path: *const c_char, flags: c_int) -> c_int,
    open_any(dir, path, flags, 0));
entries!("fopen(3).",
fopen fopen64, (path: *const c_char, mode: *const c_char) -> *mut FILE,
match target(libc::AT_FDCWD, path) {
    Target::Tree(path) => sys::fopen(path.as_ptr(), mode),
    _ => sys::fopen(path, mode),
});

/// # Safety
/// As fstatat(2).
unsafe fn stat_any(dir: c_int, path: *const c_char, out: *mut StatBuf, flags: c_int) -> c_int {
    // SAFETY: the caller's promises are those of fstatat(2).
    unsafe {
        match target(dir, path) {
            Target::Node(node) => fill_stat(out, node.number()),
            Target::Tree(path) => sys::fstatat(libc::AT_FDCWD, path.as_ptr(), out, flags),
            Target::Elsewhere => sys::fstatat(dir, path, out, flags),
        }
    }
}

/// # Safety
/// As stat(2).
unsafe fn stat_plain(path: *const c_char, out: *mut StatBuf) -> c_int {
    // SAFETY: the caller's promises are those of stat(2).
    unsafe {
        match target(libc::AT_FDCWD, path) {
            Target::Node(node) => fill_stat(out, node.number()),
            Target::Tree(path) => sys::stat(path.as_ptr(), out),
            Target::Elsewhere => sys::stat(path, out),
        }
    }
}

/// # Safety
/// As lstat(2).
unsafe fn lstat_plain(path: *const c_char, out: *mut StatBuf) -> c_int {
    // SAFETY: the caller's promises are those of lstat(2).
    unsafe {
        match target(libc::AT_FDCWD, path) {
            Target::Node(node) => fill_stat(out, node.number()),
            Target::Tree(path) => sys::lstat(path.as_ptr(), out),
            Target::Elsewhere => sys::lstat(path, out),
        }
    }
}

entries!("stat(2).",
    stat stat64, (path: *const c_char, out: *mut StatBuf) -> c_int,
    stat_plain(path, out));
entries!("lstat(2).",
    lstat lstat64, (path: *const c_char, out: *mut StatBuf) -> c_int,
    lstat_plain(path, out));
entries!("fstatat(2).",
    fstatat fstatat64, (dir: c_int, path: *const c_char, out: *mut StatBuf, flags: c_int) -> c_int,
    stat_any(dir, path, out, flags));
entries!("stat(2) of programs built against a glibc older than 2.33.",
    __xstat __xstat64, (_version: c_int, path: *const c_char, out: *mut StatBuf) -> c_int,
    stat_plain(path, out));
entries!("lstat(2) of programs built against a glibc older than 2.33.",
    __lxstat __lxstat64, (_version: c_int, path: *const c_char, out: *mut StatBuf) -> c_int,
    lstat_plain(path, out));
entries!("fstatat(2) of programs built against a glibc older than 2.33.",
    __fxstatat __fxstatat64,
    (_version: c_int, dir: c_int, path: *const c_char, out: *mut StatBuf, flags: c_int) -> c_int,
    stat_any(dir, path, out, flags));
entries!("statx(2).",
statx,
(dir: c_int, path: *const c_char, flags: c_int, mask: c_uint, out: *mut StatxBuf) -> c_int,
match target(dir, path) {
    Target::Node(node) => fill_statx(out, node.number()),
    Target::Tree(path) => sys::statx(libc::AT_FDCWD, path.as_ptr(), flags, mask, out),
    Target::Elsewhere => sys::statx(dir, path, flags, mask, out),
});

/// As [`fill_stat`].
///
/// # Safety
/// `out` is null or valid for writing.
unsafe fn fill_statx(out: *mut StatxBuf, (major, minor): (u32, u32)) -> c_int {
    if out.is_null() {
        sys::set_errno(libc::EFAULT);
        return -1;
    }
    // SAFETY: valid by contract; all-zero is a valid statx.
    unsafe {
        out.write_bytes(0, 1);
        (*out).stx_mask = libc::STATX_TYPE | libc::STATX_MODE | libc::STATX_NLINK;
        (*out).stx_mode = (libc::S_IFCHR | 0o666) as u16;
        (*out).stx_nlink = 1;
        ((*out).stx_rdev_major, (*out).stx_rdev_minor) = (major, minor);
        (*out).stx_blksize = 4096;
    }
    0
}

/// Device nodes are for everybody, to read and to write.
fn node_access(mode: c_int) -> c_int {
    if mode & libc::X_OK == 0 {
        return 0;
    }
    sys::set_errno(libc::EACCES);
    -1
}

entries!("access(2).",
access, (path: *const c_char, mode: c_int) -> c_int,
match target(libc::AT_FDCWD, path) {
    Target::Node(_) => node_access(mode),
    Target::Tree(path) => sys::access(path.as_ptr(), mode),
    Target::Elsewhere => sys::access(path, mode),
});
entries!("faccessat(2).",
faccessat, (dir: c_int, path: *const c_char, mode: c_int, flags: c_int) -> c_int,
match target(dir, path) {
    Target::Node(_) => node_access(mode),
    Target::Tree(path) => sys::faccessat(libc::AT_FDCWD, path.as_ptr(), mode, flags),
    Target::Elsewhere => sys::faccessat(dir, path, mode, flags),
});
entries!("euidaccess(3).",
euidaccess eaccess, (path: *const c_char, mode: c_int) -> c_int,
match target(libc::AT_FDCWD, path) {
    Target::Node(_) => node_access(mode),
    Target::Tree(path) => sys::euidaccess(path.as_ptr(), mode),
    Target::Elsewhere => sys::euidaccess(path, mode),
});

/// # Safety
/// As readlinkat(2).
unsafe fn readlink_any(dir: c_int, path: *const c_char, out: *mut c_char, room: size_t) -> ssize_t {
    // SAFETY: the caller's promises are those of readlinkat(2).
    unsafe {
        match target(dir, path) {
            Target::Node(_) => {
                sys::set_errno(libc::EINVAL);
                -1
            }
            Target::Tree(path) => sys::readlink(path.as_ptr(), out, room),
            Target::Elsewhere if dir == libc::AT_FDCWD => sys::readlink(path, out, room),
            Target::Elsewhere => sys::readlinkat(dir, path, out, room),
        }
    }
}

entries!("readlink(2).",
    readlink, (path: *const c_char, out: *mut c_char, room: size_t) -> ssize_t,
    readlink_any(libc::AT_FDCWD, path, out, room));
entries!("readlink(2) of programs built with _FORTIFY_SOURCE.",
    __readlink_chk, (path: *const c_char, out: *mut c_char, room: size_t, size: size_t) -> ssize_t,
    readlink_any(libc::AT_FDCWD, path, out, room.min(size)));
entries!("readlinkat(2).",
    readlinkat, (dir: c_int, path: *const c_char, out: *mut c_char, room: size_t) -> ssize_t,
    readlink_any(dir, path, out, room));
entries!("readlinkat(2) of programs built with _FORTIFY_SOURCE.",
    __readlinkat_chk,
    (dir: c_int, path: *const c_char, out: *mut c_char, room: size_t, size: size_t) -> ssize_t,
    readlink_any(dir, path, out, room.min(size)));

/// Returns a path to the program: in the program's buffer of PATH_MAX bytes or, if `out` is null,
/// in memory from malloc.
///
/// # Safety
/// `out` is null or has room for PATH_MAX bytes.
unsafe fn hand_out(path: &CStr, out: *mut c_char) -> *mut c_char {
    let bytes = path.to_bytes_with_nul();
    if bytes.len() > libc::PATH_MAX as usize {
        sys::set_errno(libc::ENAMETOOLONG);
        return std::ptr::null_mut();
    }
    // SAFETY: the length was checked against the buffer. If malloc fails, strdup returns null, and
    // this function passes the null on.
    unsafe {
        if out.is_null() {
            return libc::strdup(path.as_ptr());
        }
        std::ptr::copy_nonoverlapping(path.as_ptr(), out, bytes.len());
    }
    out
}

/// # Safety
/// As realpath(3).
unsafe fn realpath_any(path: *const c_char, out: *mut c_char) -> *mut c_char {
    // SAFETY: the caller's promises are those of realpath(3).
    let found = unsafe {
        match target(libc::AT_FDCWD, path) {
            Target::Node(_) => return hand_out(CStr::from_ptr(path), out),
            Target::Tree(path) => sys::realpath(path.as_ptr(), std::ptr::null_mut()),
            Target::Elsewhere => sys::realpath(path, std::ptr::null_mut()),
        }
    };
    if found.is_null() {
        return found;
    }
    // SAFETY: a NUL-terminated string from malloc, freed once here or handed on.
    unsafe {
        let literal = catch_unwind(|| sysfs::literal(CStr::from_ptr(found).to_bytes())).ok().flatten();
        if literal.is_none() && out.is_null() {
            return found;
        }
        let result = hand_out(literal.as_deref().unwrap_or(CStr::from_ptr(found)), out);
        libc::free(found.cast());
        result
    }
}

entries!("realpath(3).",
    realpath, (path: *const c_char, out: *mut c_char) -> *mut c_char,
    realpath_any(path, out));
entries!("realpath(3) of programs built with _FORTIFY_SOURCE, which checked that there is room.",
    __realpath_chk, (path: *const c_char, out: *mut c_char, _size: size_t) -> *mut c_char,
    realpath_any(path, out));
entries!("canonicalize_file_name(3).",
    canonicalize_file_name, (path: *const c_char) -> *mut c_char,
    realpath_any(path, std::ptr::null_mut()));
entries!("opendir(3).",
opendir, (path: *const c_char) -> *mut DIR,
match target(libc::AT_FDCWD, path) {
    Target::Tree(path) => sys::opendir(path.as_ptr()),
    _ => sys::opendir(path),
});
entries!("scandir(3).",
scandir scandir64,
(path: *const c_char, list: *mut c_void, filter: *mut c_void, order: *mut c_void) -> c_int,
match target(libc::AT_FDCWD, path) {
    Target::Tree(path) => sys::scandir(path.as_ptr(), list, filter, order),
    _ => sys::scandir(path, list, filter, order),
});
entries!("getxattr(2): neither nodes nor sysfs have any.",
getxattr, (path: *const c_char, name: *const c_char, value: *mut c_void, room: size_t) -> ssize_t,
match target(libc::AT_FDCWD, path) {
    Target::Elsewhere => sys::getxattr(path, name, value, room),
    _ => {
        sys::set_errno(libc::ENOTSUP);
        -1
    }
});
entries!("lgetxattr(2): neither nodes nor sysfs have any.",
lgetxattr, (path: *const c_char, name: *const c_char, value: *mut c_void, room: size_t) -> ssize_t,
match target(libc::AT_FDCWD, path) {
    Target::Elsewhere => sys::lgetxattr(path, name, value, room),
    _ => {
        sys::set_errno(libc::ENOTSUP);
        -1
    }
});
