//! Virtual character devices: the result of `open("/dev/infiniband/...")`.
//!
//! A virtual file consists of a *real* descriptor (a memfd, an eventfd, a socket) and an object.
//! The kernel knows the descriptor, so `mmap`, `poll`, `epoll`, `fcntl(O_NONBLOCK)`, `dup` and
//! inheritance work natively. The object answers the calls that only the driver can answer:
//! `write`, `ioctl`, and the device number in `fstat`.
//!
//! The interposed `open`, `dup*` and `close` write the registry. Every interposed call reads it. A
//! bitmap reduces the test for a descriptor that is not virtual to a single load.
//!
//! To add a device, implement [`VirtualFile`], create a descriptor that polls like the driver's (an
//! eventfd with EFD_SEMAPHORE is readable as long as events are pending), and pass both to
//! [`open`]. A blocking command must block by itself unless [`crate::host::sys::is_nonblocking`] is
//! true for its descriptor. A command must access user addresses only with
//! [`crate::host::mem::copy_from_user`] and [`crate::host::mem::copy_to_user`], which return EFAULT
//! where a kernel would.

use std::collections::HashMap;
use std::io;
use std::os::fd::{IntoRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use crate::host::sys;

/// The driver's side of one open virtual character device.
///
/// Calls come from any thread, also concurrently. Errors must carry an errno
/// ([`io::Error::from_raw_os_error`]); an error without an errno becomes EIO.
pub(crate) trait VirtualFile: Send + Sync {
    /// write(2) on `fd`: bytes taken.
    ///
    /// # Errors
    /// The errno the driver would give.
    fn write(&self, fd: RawFd, buf: &[u8]) -> io::Result<usize> {
        let _ = (fd, buf);
        Err(sys::errno(libc::EINVAL))
    }

    /// ioctl(2) on `fd`: the call's return value.
    ///
    /// # Errors
    /// The errno the driver would give.
    fn ioctl(&self, fd: RawFd, request: u64, arg: usize) -> io::Result<i32> {
        let _ = (fd, request, arg);
        Err(sys::errno(libc::ENOTTY))
    }

    /// Major and minor number that `fstat` reports; `None` leaves the descriptor's own answer.
    fn device_number(&self) -> Option<(u32, u32)> {
        None
    }

    /// The last descriptor of this file was closed by the program.
    fn released(&self) {}
}

/// Descriptors up to this number can be virtual.
const MAX_FD: usize = 1 << 16;

static IS_VIRTUAL: [AtomicU64; MAX_FD / 64] = [const { AtomicU64::new(0) }; MAX_FD / 64];
static FILES: RwLock<Option<HashMap<RawFd, Arc<dyn VirtualFile>>>> = RwLock::new(None);

/// True when `fd` is a virtual file. One load, safe in signal handlers.
#[inline]
pub(crate) fn is_virtual(fd: RawFd) -> bool {
    match usize::try_from(fd) {
        Ok(n) if n < MAX_FD => IS_VIRTUAL[n / 64].load(Ordering::Acquire) >> (n % 64) & 1 != 0,
        _ => false,
    }
}

/// The object behind `fd`, if it is a virtual file.
pub(crate) fn find(fd: RawFd) -> Option<Arc<dyn VirtualFile>> {
    if !is_virtual(fd) {
        return None;
    }
    FILES.read().unwrap_or_else(PoisonError::into_inner).as_ref()?.get(&fd).cloned()
}

/// The lock of the registry, for a thread that forks.
pub(crate) fn hold() -> impl Sized + 'static {
    FILES.write().unwrap_or_else(PoisonError::into_inner)
}

/// Makes `fd` a virtual file served by `file` and returns its number. The program owns the
/// descriptor from now on.
///
/// # Errors
/// EMFILE when the number is too large for the registry.
pub(crate) fn open(fd: OwnedFd, file: Arc<dyn VirtualFile>) -> io::Result<RawFd> {
    let raw = fd.into_raw_fd();
    if let Err(error) = register(raw, file) {
        sys::close_fd(raw);
        return Err(error);
    }
    Ok(raw)
}

fn register(raw: RawFd, file: Arc<dyn VirtualFile>) -> io::Result<()> {
    let slot = usize::try_from(raw).ok().filter(|&n| n < MAX_FD).ok_or_else(|| sys::errno(libc::EMFILE))?;
    // An entry that is replaced here belongs to a descriptor that a raw system call closed,
    // unnoticed. The old entry is dropped without `released`, because callers may hold locks that
    // `released` takes.
    let mut files = FILES.write().unwrap_or_else(PoisonError::into_inner);
    let _stale = files.get_or_insert_with(HashMap::new).insert(raw, file);
    IS_VIRTUAL[slot / 64].fetch_or(1 << (slot % 64), Ordering::Release);
    Ok(())
}

/// `new` became a duplicate of `old` (dup, dup2, dup3, fcntl).
pub(crate) fn duplicated(old: RawFd, new: RawFd) {
    forget(new);
    if let Some(file) = find(old) {
        // A number beyond the registry stays an ordinary descriptor.
        let _ = register(new, file);
    }
}

/// `fd` is about to be closed, or was replaced.
pub(crate) fn forget(fd: RawFd) {
    if !is_virtual(fd) {
        return;
    }
    let old = {
        let mut files = FILES.write().unwrap_or_else(PoisonError::into_inner);
        let slot = fd.unsigned_abs() as usize;
        IS_VIRTUAL[slot / 64].fetch_and(!(1 << (slot % 64)), Ordering::Release);
        files.as_mut().and_then(|files| files.remove(&fd))
    };
    release(old);
}

/// Calls `released` when no descriptor of the file is left. The registry is not locked here,
/// because `released` may close other files.
fn release(file: Option<Arc<dyn VirtualFile>>) {
    let Some(file) = file else { return };
    let still_open = FILES
        .read()
        .unwrap_or_else(PoisonError::into_inner)
        .as_ref()
        .is_some_and(|files| files.values().any(|other| Arc::ptr_eq(other, &file)));
    if !still_open {
        file.released();
    }
}
