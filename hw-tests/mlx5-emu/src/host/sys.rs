//! The C library's own versions of the functions that this crate replaces.
//!
//! [`crate::interpose`] defines `open`, `ioctl` and other functions. A call that does not concern
//! the device goes to the pointers found here with `dlsym(RTLD_NEXT, ...)`.
#![expect(unsafe_code, reason = "calls into libc through dlsym")]

use std::ffi::{CStr, OsString};
use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use libc::{DIR, FILE};
use libc::{c_char, c_int, c_uint, c_ulong, c_void, dev_t, mode_t, size_t, ssize_t, stat as StatBuf};

/// The address of the next definition of this function, or of that in a library that is loaded;
/// null if there is none. The caller stands in front of the function for a program that needs the
/// library and keeps it loaded.
pub(crate) fn of_loaded(library: &CStr, name: &CStr) -> *mut c_void {
    // SAFETY: the names are NUL-terminated. RTLD_NOLOAD only finds a library that is loaded, and
    // the program keeps it loaded.
    unsafe {
        let next = libc::dlsym(libc::RTLD_NEXT, name.as_ptr());
        if !next.is_null() {
            return next;
        }
        // The program loaded it with dlopen(3), outside the scope of RTLD_NEXT.
        let library = libc::dlopen(library.as_ptr(), libc::RTLD_NOLOAD | libc::RTLD_LAZY);
        if library.is_null() {
            return library;
        }
        let found = libc::dlsym(library, name.as_ptr());
        libc::dlclose(library);
        found
    }
}

/// A function of the C library, looked up on first use.
struct Next {
    name: &'static CStr,
    address: AtomicUsize,
}

impl Next {
    const fn new(name: &'static CStr) -> Self {
        Self { name, address: AtomicUsize::new(0) }
    }

    /// Address of the next definition of this symbol; aborts when the C library has none.
    fn get(&self) -> usize {
        let known = self.address.load(Ordering::Relaxed);
        if known != 0 {
            return known;
        }
        // SAFETY: the name is a NUL-terminated static string; RTLD_NEXT is a valid pseudo handle.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) } as usize;
        if found == 0 {
            // Going on would call address 0; nothing that works can be returned instead.
            std::process::abort();
        }
        self.address.store(found, Ordering::Relaxed);
        found
    }
}

macro_rules! next_function {
    ($(#[$doc:meta])* $name:ident as $symbol:literal ( $($arg:ident : $ty:ty),* ) -> $ret:ty) => {
        $(#[$doc])*
        ///
        /// # Safety
        /// As the C function of the same name.
        pub(crate) unsafe fn $name($($arg: $ty),*) -> $ret {
            static NEXT: Next = Next::new($symbol);
            type Function = unsafe extern "C-unwind" fn($($ty),*) -> $ret;
            // SAFETY: the symbol is the C library's function with this prototype. Variadic integer
            // arguments travel in the same registers on x86-64 and aarch64 Linux. A thread that is
            // cancelled in the function unwinds.
            let function: Function = unsafe { std::mem::transmute(NEXT.get()) };
            // SAFETY: passed on to the caller.
            unsafe { function($($arg),*) }
        }
    };
}

next_function!(/// open(2).
    open as c"open64" (path: *const c_char, flags: c_int, mode: mode_t) -> c_int);
next_function!(/// openat(2).
    openat as c"openat64" (dir: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int);
next_function!(/// stat(2).
    stat as c"stat" (path: *const c_char, out: *mut StatBuf) -> c_int);
next_function!(/// lstat(2).
    lstat as c"lstat" (path: *const c_char, out: *mut StatBuf) -> c_int);
next_function!(/// fstatat(2).
    fstatat as c"fstatat" (dir: c_int, path: *const c_char, out: *mut StatBuf, flags: c_int) -> c_int);
next_function!(/// statx(2).
    statx as c"statx"
    (dir: c_int, path: *const c_char, flags: c_int, mask: c_uint, out: *mut libc::statx) -> c_int);
next_function!(/// access(2).
    access as c"access" (path: *const c_char, mode: c_int) -> c_int);
next_function!(/// faccessat(2).
    faccessat as c"faccessat" (dir: c_int, path: *const c_char, mode: c_int, flags: c_int) -> c_int);
next_function!(/// euidaccess(3).
    euidaccess as c"euidaccess" (path: *const c_char, mode: c_int) -> c_int);
next_function!(/// readlink(2).
    readlink as c"readlink" (path: *const c_char, out: *mut c_char, room: size_t) -> ssize_t);
next_function!(/// readlinkat(2).
    readlinkat as c"readlinkat"
    (dir: c_int, path: *const c_char, out: *mut c_char, room: size_t) -> ssize_t);
next_function!(/// realpath(3).
    realpath as c"realpath" (path: *const c_char, out: *mut c_char) -> *mut c_char);
next_function!(/// fopen(3).
    fopen as c"fopen64" (path: *const c_char, mode: *const c_char) -> *mut FILE);
next_function!(/// opendir(3).
    opendir as c"opendir" (path: *const c_char) -> *mut DIR);
next_function!(/// scandir(3).
    scandir as c"scandir"
    (path: *const c_char, list: *mut c_void, filter: *mut c_void, order: *mut c_void) -> c_int);
next_function!(/// getxattr(2).
    getxattr as c"getxattr"
    (path: *const c_char, name: *const c_char, value: *mut c_void, room: size_t) -> ssize_t);
next_function!(/// lgetxattr(2).
    lgetxattr as c"lgetxattr"
    (path: *const c_char, name: *const c_char, value: *mut c_void, room: size_t) -> ssize_t);
next_function!(/// fstat(2).
    fstat as c"fstat" (fd: c_int, out: *mut StatBuf) -> c_int);
next_function!(/// ioctl(2).
    ioctl as c"ioctl" (fd: c_int, request: c_ulong, arg: usize) -> c_int);
next_function!(/// write(2).
    write as c"write" (fd: c_int, buf: *const c_void, len: size_t) -> ssize_t);
next_function!(/// close(2).
    close as c"close" (fd: c_int) -> c_int);
next_function!(/// dup(2).
    dup as c"dup" (fd: c_int) -> c_int);
next_function!(/// dup2(2).
    dup2 as c"dup2" (from: c_int, to: c_int) -> c_int);
next_function!(/// fcntl(2).
    fcntl as c"fcntl64" (fd: c_int, command: c_int, arg: usize) -> c_int);
next_function!(/// dup3(2).
    dup3 as c"dup3" (from: c_int, to: c_int, flags: c_int) -> c_int);
next_function!(/// poll(2).
    poll as c"poll" (list: *mut libc::pollfd, count: libc::nfds_t, timeout: c_int) -> c_int);
next_function!(/// ppoll(2).
    ppoll as c"ppoll"
    (list: *mut libc::pollfd, count: libc::nfds_t, time: *const libc::timespec,
     mask: *const libc::sigset_t) -> c_int);
next_function!(/// socket(2).
    socket as c"socket" (domain: c_int, kind: c_int, protocol: c_int) -> c_int);

/// Writes a line to stderr, with one write(2). Whatever becomes of it, the program goes on: stderr
/// may be closed, a full file system, or a pipe that nobody reads. Takes no lock and uses no
/// thread-local value, so it works while a process forks and at the end of a thread.
macro_rules! say {
    ($($words:tt)*) => { crate::host::sys::write_line(format!($($words)*)) };
}
pub(crate) use say;

/// What [`say`] expands to.
#[cold]
pub(crate) fn write_line(mut line: String) {
    line.push('\n');
    // SAFETY: the sets and the time are valid places, and pointer and length describe `line`.
    // SIGPIPE is blocked in this thread during the call, and a new one is taken back.
    unsafe {
        let mut pipe = std::mem::zeroed::<libc::sigset_t>();
        let (mut old, mut pending) = (pipe, pipe);
        libc::sigemptyset(&raw mut pipe);
        libc::sigaddset(&raw mut pipe, libc::SIGPIPE);
        libc::sigpending(&raw mut pending);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const pipe, &raw mut old);
        let written = libc::syscall(libc::SYS_write, libc::STDERR_FILENO, line.as_ptr(), line.len());
        let broken = written < 0 && *libc::__errno_location() == libc::EPIPE;
        if broken && libc::sigismember(&raw const pending, libc::SIGPIPE) == 0 {
            let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
            libc::sigtimedwait(&raw const pipe, std::ptr::null_mut(), &raw const now);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const old, std::ptr::null_mut());
    }
}

/// Sets `errno` of the calling thread.
pub(crate) fn set_errno(value: c_int) {
    // SAFETY: __errno_location returns the calling thread's own, always valid errno.
    unsafe { *libc::__errno_location() = value };
}

/// The errno that stands for `error`; EIO when it has none.
pub(crate) fn errno_of(error: &io::Error) -> c_int {
    error.raw_os_error().unwrap_or(libc::EIO)
}

/// An error with the given errno.
pub(crate) fn errno(value: c_int) -> io::Error {
    io::Error::from_raw_os_error(value)
}

/// Turns a character-device pair into a `dev_t`.
pub(crate) fn makedev(major: u32, minor: u32) -> dev_t {
    libc::makedev(major, minor)
}

/// Closes a descriptor without going through the interposed `close`.
pub(crate) fn close_fd(fd: RawFd) {
    // SAFETY: closing a descriptor number is memory safe; the caller owns it.
    unsafe { close(fd) };
}

/// The owner of a descriptor that a system call has just made.
///
/// # Errors
/// What the call says, if it failed.
pub(crate) fn owned(fd: c_int) -> io::Result<OwnedFd> {
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a descriptor just made by the kernel, owned by nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// A sparse memory file of `len` bytes, close-on-exec.
///
/// # Errors
/// What memfd_create(2) or ftruncate(2) say.
pub(crate) fn memfd(name: &CStr, len: u64) -> io::Result<OwnedFd> {
    // SAFETY: the name is NUL-terminated.
    let fd =
        owned(unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) })?;
    // SAFETY: the descriptor is open.
    if unsafe { libc::ftruncate(fd.as_raw_fd(), len.cast_signed()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(fd)
}

/// A connected pair of SOCK_SEQPACKET sockets, close-on-exec.
///
/// # Errors
/// What socketpair(2) says.
pub(crate) fn seqpacket_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut fds = [0; 2];
    // SAFETY: `fds` has room for two descriptors.
    let rc = unsafe {
        libc::socketpair(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0, fds.as_mut_ptr())
    };
    if rc != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok((owned(fds[0])?, owned(fds[1])?))
}

/// An eventfd with the given flags (EFD_CLOEXEC is added).
///
/// # Errors
/// What eventfd(2) says.
pub(crate) fn eventfd(flags: c_int) -> io::Result<OwnedFd> {
    // SAFETY: no pointers involved.
    owned(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | flags) })
}

/// Wakes who waits for an eventfd.
pub(crate) fn ring(fd: &OwnedFd) {
    // SAFETY: no pointers to our memory are kept; eventfd_write takes a number.
    unsafe { libc::eventfd_write(fd.as_raw_fd(), 1) };
}

/// Resets an eventfd that does not block.
pub(crate) fn silence(fd: &OwnedFd) {
    let mut count = 0;
    // SAFETY: `count` is a valid place.
    unsafe { libc::eventfd_read(fd.as_raw_fd(), &raw mut count) };
}

/// A pipe: its reading and its writing end.
pub(crate) fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut ends = [-1; 2];
    // SAFETY: two integers.
    if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok((owned(ends[0])?, owned(ends[1])?))
}

/// Duplicates a descriptor, close-on-exec, past the registry of virtual files.
///
/// # Errors
/// What fcntl(2) says.
pub(crate) fn dup_cloexec(fd: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: no pointers involved.
    owned(unsafe { fcntl(fd, libc::F_DUPFD_CLOEXEC, 0) })
}

/// Sends one packet without blocking and without SIGPIPE.
///
/// # Errors
/// What send(2) says; EAGAIN when the queue is full.
pub(crate) fn send_packet(fd: RawFd, packet: &[u8]) -> io::Result<()> {
    // SAFETY: pointer and length describe `packet`.
    let n = unsafe {
        libc::send(fd, packet.as_ptr().cast(), packet.len(), libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL)
    };
    if n < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Receives one packet without blocking; `None` when there is none.
pub(crate) fn recv_packet(fd: RawFd, buf: &mut [u8]) -> Option<usize> {
    // SAFETY: pointer and length describe `buf`.
    let n = unsafe { libc::recv(fd, buf.as_mut_ptr().cast(), buf.len(), libc::MSG_DONTWAIT) };
    usize::try_from(n).ok().filter(|&n| n > 0)
}

/// True when O_NONBLOCK is set on the open file behind `fd`.
pub(crate) fn is_nonblocking(fd: RawFd) -> bool {
    // SAFETY: no pointers involved.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    flags >= 0 && flags & libc::O_NONBLOCK != 0
}

/// Sets an environment variable of this process; for constructors, before any thread exists.
pub(crate) fn setenv(name: &CStr, value: &CStr) {
    // SAFETY: both are NUL-terminated. setenv copies them.
    unsafe { libc::setenv(name.as_ptr(), value.as_ptr(), 1) };
}

/// sched_yield(2), past the device's own function of this name.
pub(crate) fn yield_now() {
    // SAFETY: no arguments, cannot fail.
    unsafe { libc::syscall(libc::SYS_sched_yield) };
}

/// Waits until a descriptor can be read; false when the time was up first.
pub(crate) fn wait_for(descriptors: &[RawFd], time: Duration) -> bool {
    let mut list: Vec<libc::pollfd> =
        descriptors.iter().map(|&fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 }).collect();
    let time =
        libc::timespec { tv_sec: time.as_secs().cast_signed(), tv_nsec: i64::from(time.subsec_nanos()) };
    // SAFETY: pointer and length describe `list`; the time is valid.
    unsafe { ppoll(list.as_mut_ptr(), list.len() as u64, &raw const time, std::ptr::null()) > 0 }
}

/// Device and inode number of a file.
pub(crate) type FileId = (u64, u64);

/// Device and inode number of an open file.
///
/// # Errors
/// EBADF when the descriptor is not open.
pub(crate) fn inode_of(fd: RawFd) -> io::Result<FileId> {
    let mut out = std::mem::MaybeUninit::<StatBuf>::zeroed();
    // SAFETY: `out` is a valid place for the answer.
    if unsafe { fstat(fd, out.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: filled in by fstat, and all-zero is valid too.
    let out = unsafe { out.assume_init() };
    Ok((out.st_dev, out.st_ino))
}

/// The process at the other end of a connected Unix socket: when it connected, or began to listen.
/// Process 0 is not visible from here.
pub(crate) fn peer_of(socket: RawFd) -> Option<libc::ucred> {
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: pointer and length describe `peer`.
    let status = unsafe {
        libc::getsockopt(socket, libc::SOL_SOCKET, libc::SO_PEERCRED, (&raw mut peer).cast(), &raw mut len)
    };
    (status == 0).then_some(peer)
}

/// Whether the process at the other end of a Unix socket belongs to the user of this process. Names
/// of sockets are open to everybody on the machine. Says so the first time that it does not.
pub(crate) fn is_own_peer(socket: RawFd) -> bool {
    static TOLD: AtomicBool = AtomicBool::new(false);
    let own = effective_uid();
    let peer = peer_of(socket);
    let is_own = peer.is_some_and(|peer| peer.uid == own);
    if !is_own && !TOLD.swap(true, Ordering::Relaxed) {
        let (pid, uid) = peer.map_or((0, u32::MAX), |peer| (peer.pid, peer.uid));
        say!(
            "mlx5-emu: refused process {pid}: it belongs to user {uid}, not {own}; the processes of a session have one user"
        );
    }
    is_own
}

/// Forbids everybody to change the size of a memory file.
///
/// # Errors
/// What fcntl(2) says.
pub(crate) fn seal(fd: RawFd) -> io::Result<()> {
    // SAFETY: no pointers involved.
    let status = unsafe { fcntl(fd, libc::F_ADD_SEALS, SEALS as usize) };
    if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The seals of [`seal`].
const SEALS: c_int = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;

/// Whether this is a memory file of `len` bytes whose size nobody can change.
pub(crate) fn is_sealed(fd: RawFd, len: u64) -> bool {
    // SAFETY: no pointers involved.
    let seals = unsafe { fcntl(fd, libc::F_GET_SEALS, 0) };
    let mut out = std::mem::MaybeUninit::<StatBuf>::zeroed();
    // SAFETY: `out` is a valid place for the answer, and all-zero is valid too.
    let size = unsafe {
        fstat(fd, out.as_mut_ptr());
        out.assume_init().st_size
    };
    seals >= 0 && seals & SEALS == SEALS && size == len.cast_signed()
}

/// Effective user id of this process.
pub(crate) fn effective_uid() -> u32 {
    // SAFETY: no arguments, cannot fail.
    unsafe { libc::geteuid() }
}

/// User id of this process.
pub(crate) fn uid() -> u32 {
    // SAFETY: no arguments, cannot fail.
    unsafe { libc::getuid() }
}

/// True when the machine itself has a file at this path.
pub(crate) fn is_there(path: &[u8]) -> bool {
    let Ok(path) = std::ffi::CString::new(path) else { return false };
    // SAFETY: NUL-terminated.
    unsafe { access(path.as_ptr(), libc::F_OK) == 0 }
}

/// RLIMIT_MEMLOCK of this process in bytes.
pub(crate) fn memlock_limit() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is a valid place for the answer.
    if unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &raw mut limit) } == 0 {
        limit.rlim_cur
    } else {
        u64::MAX
    }
}

/// True when the calling thread has CAP_IPC_LOCK in effect.
pub(crate) fn may_lock_all() -> bool {
    const CAP_IPC_LOCK: u32 = 14;
    may(CAP_IPC_LOCK)
}

/// Number of the capability to send and receive raw packets.
pub(crate) const CAP_NET_RAW: u32 = 13;

/// True when the calling thread has a capability.
pub(crate) fn may(capability: u32) -> bool {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))
        .and_then(|set| u64::from_str_radix(set.trim(), 16).ok())
        .is_some_and(|set| set >> capability & 1 != 0)
}

/// A random number that no other process can know.
pub(crate) fn random() -> u64 {
    let mut bytes = [0u8; 8];
    // SAFETY: pointer and length describe `bytes`. The kernel fills in so few bytes at once.
    unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    u64::from_ne_bytes(bytes)
}

/// Makes a folder with a new name below `base`, which only this user can enter.
///
/// # Errors
/// What mkdtemp(3) says.
pub(crate) fn new_folder(base: &Path, prefix: &str) -> io::Result<PathBuf> {
    let mut name = base.join(format!("{prefix}XXXXXX")).into_os_string().into_vec();
    name.push(0);
    // SAFETY: NUL-terminated, and long enough: the function only replaces the last six characters.
    if unsafe { libc::mkdtemp(name.as_mut_ptr().cast()) }.is_null() {
        return Err(io::Error::last_os_error());
    }
    name.pop();
    Ok(OsString::from_vec(name).into())
}

/// Locks a file as flock(2); false when that fails or another holds it.
pub(crate) fn flock(file: &std::fs::File, operation: c_int) -> bool {
    // SAFETY: the descriptor is open as long as `file` lives.
    unsafe { libc::flock(std::os::fd::AsRawFd::as_raw_fd(file), operation) == 0 }
}
