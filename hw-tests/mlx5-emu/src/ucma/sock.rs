//! Abstract SOCK_SEQPACKET sockets and epoll: the few system calls of the connection manager.
#![expect(unsafe_code, reason = "socket and epoll system calls")]

use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd, RawFd};

use libc::{c_int, sockaddr_un, socklen_t};

use crate::host::sys;

fn check(result: c_int) -> io::Result<c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// The address of an abstract name.
fn address(name: &str) -> io::Result<(sockaddr_un, socklen_t)> {
    // SAFETY: all-zero is a valid sockaddr_un.
    let mut out: sockaddr_un = unsafe { std::mem::zeroed() };
    out.sun_family = libc::AF_UNIX as libc::sa_family_t;
    if name.len() >= out.sun_path.len() {
        return Err(io::Error::from_raw_os_error(libc::ENAMETOOLONG));
    }
    // The leading NUL that is already there makes the name abstract.
    for (slot, byte) in out.sun_path[1..].iter_mut().zip(name.bytes()) {
        *slot = byte.cast_signed() as libc::c_char;
    }
    let len = std::mem::offset_of!(sockaddr_un, sun_path) + 1 + name.len();
    Ok((out, len as socklen_t))
}

/// A non-blocking, close-on-exec SOCK_SEQPACKET socket.
pub(super) fn socket() -> io::Result<OwnedFd> {
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: no pointers involved.
    sys::owned(unsafe { libc::socket(libc::AF_UNIX, kind, 0) })
}

/// A close-on-exec SOCK_DGRAM socket. Its names are apart from those of [`socket`]; a name that is
/// bound can be connected to, and its owner does not notice.
pub(super) fn datagrams() -> io::Result<OwnedFd> {
    let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: no pointers involved.
    sys::owned(unsafe { libc::socket(libc::AF_UNIX, kind, 0) })
}

/// Takes the abstract name.
pub(super) fn bind(fd: &OwnedFd, name: &str) -> io::Result<()> {
    let (addr, len) = address(name)?;
    // SAFETY: pointer and length describe `addr`.
    check(unsafe { libc::bind(fd.as_raw_fd(), (&raw const addr).cast(), len) }).map(drop)
}

/// Lets others connect.
pub(super) fn listen(fd: &OwnedFd) -> io::Result<()> {
    // SAFETY: no pointers involved.
    check(unsafe { libc::listen(fd.as_raw_fd(), 4096) }).map(drop)
}

/// Connects to the abstract name; EAGAIN when the listener has too many unanswered calls.
pub(super) fn connect(fd: &OwnedFd, name: &str) -> io::Result<()> {
    let (addr, len) = address(name)?;
    // SAFETY: pointer and length describe `addr`.
    check(unsafe { libc::connect(fd.as_raw_fd(), (&raw const addr).cast(), len) }).map(drop)
}

/// The next connection on a listening socket; EAGAIN when there is none.
pub(super) fn accept(fd: &OwnedFd) -> io::Result<OwnedFd> {
    let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: null address and length are allowed: the caller's name is not asked for.
    sys::owned(unsafe { libc::accept4(fd.as_raw_fd(), std::ptr::null_mut(), std::ptr::null_mut(), flags) })
}

/// Process id at the other end; 0 when it is not visible from here.
pub(super) fn peer_pid(fd: &OwnedFd) -> i32 {
    sys::peer_of(fd.as_raw_fd()).map_or(0, |peer| peer.pid)
}

/// Receives one packet: 0 bytes when the other side is gone, EAGAIN when there is none.
pub(super) fn receive(fd: RawFd, buf: &mut [u8], flags: c_int) -> io::Result<usize> {
    // SAFETY: pointer and length describe `buf`.
    let n = unsafe { libc::recv(fd, buf.as_mut_ptr().cast(), buf.len(), flags) };
    usize::try_from(n).map_err(|_| io::Error::last_os_error())
}

/// A set of descriptors to wait for.
pub(super) struct Poll(OwnedFd);

impl Poll {
    pub(super) fn new() -> io::Result<Self> {
        // SAFETY: no pointers involved.
        sys::owned(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) }).map(Self)
    }

    pub(super) fn raw(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    fn control(&self, operation: c_int, fd: RawFd, token: u64, writable: bool) -> io::Result<()> {
        let mut event = libc::epoll_event { events: libc::EPOLLIN.cast_unsigned(), u64: token };
        if writable {
            event.events |= libc::EPOLLOUT.cast_unsigned();
        }
        // SAFETY: `event` is valid for the call.
        check(unsafe { libc::epoll_ctl(self.raw(), operation, fd, &raw mut event) }).map(drop)
    }

    /// Reports `token` when the descriptor is readable. Closing the descriptor ends it.
    pub(super) fn add(&self, fd: RawFd, token: u64) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, fd, token, false)
    }

    /// Reports it also when it is writable, or no longer.
    pub(super) fn set_writable(&self, fd: RawFd, token: u64, writable: bool) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_MOD, fd, token, writable)
    }
}

/// Waits on the set `poll` and returns the tokens. The result is empty after `timeout_ms` (-1:
/// never) or a signal.
pub(super) fn wait(poll: RawFd, timeout_ms: c_int) -> io::Result<Vec<u64>> {
    let mut events = [libc::epoll_event { events: 0, u64: 0 }; 64];
    // SAFETY: pointer and length describe `events`.
    let n = unsafe { libc::epoll_wait(poll, events.as_mut_ptr(), 64, timeout_ms) };
    match check(n) {
        Ok(n) => Ok(events[..n.unsigned_abs() as usize].iter().map(|event| event.u64).collect()),
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}
