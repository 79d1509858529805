//! A ring of bytes in memory that two processes share. One process writes, the other reads. There
//! is no system call while both are awake.
//!
//! The data is mapped twice in a row, so every range of the ring is contiguous. A process that is
//! about to sleep sets a flag in the ring ([`Ring::sleep`]) and looks at the ring once more. The
//! other side takes the flag ([`Ring::publish`], [`Ring::consumed`]) and wakes the sleeper with a
//! byte on the socket that passed the ring. The memory has no name, and is freed when both mappings
//! are gone.
#![expect(unsafe_code, reason = "shared memory, descriptors passed over a socket")]

use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use crate::host::sys;

/// Bytes of the ring.
pub(crate) const CAPACITY: usize = 2 << 20;
/// The page before the data: two counters and two words, each in a cache line of its own.
const HEADER: usize = 4096;
const HEAD: usize = 0;
const TAIL: usize = 128;
const READER_SLEEPS: usize = 256;
const WRITER_SLEEPS: usize = 384;

/// Which end of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Writer,
    Reader,
}

/// One end of a ring.
#[derive(Debug)]
pub(crate) struct Ring {
    base: *mut u8,
    end: End,
}

// SAFETY: the memory is shared between processes. The counters are atomics. The bytes between them
// belong to one end at a time.
unsafe impl Send for Ring {}

impl Ring {
    /// Makes a ring and sends it to the reader behind `socket`. Returns the writer's end.
    ///
    /// # Errors
    /// No memory, no address space, or no peer.
    pub(crate) fn offer(socket: RawFd) -> io::Result<Self> {
        let fd = sys::memfd(c"mlx5-emu-ring", (HEADER + CAPACITY) as u64)?;
        sys::seal(fd.as_raw_fd())?;
        let ring = Self::map(&fd, End::Writer)?;
        send_fd(socket, fd.as_raw_fd())?;
        Ok(ring)
    }

    /// The reader's end of the ring that the peer offers; `None` when it did not yet.
    ///
    /// # Errors
    /// The peer has gone, or sent something else: for example memory whose size it could change, so
    /// that a look at the ring would end this process.
    pub(crate) fn accept(socket: RawFd) -> io::Result<Option<Self>> {
        let Some(fd) = receive_fd(socket)? else { return Ok(None) };
        if !sys::is_sealed(fd.as_raw_fd(), (HEADER + CAPACITY) as u64) {
            return Err(sys::errno(libc::EPROTO));
        }
        Self::map(&fd, End::Reader).map(Some)
    }

    fn map(fd: &OwnedFd, end: End) -> io::Result<Self> {
        let place = |at: *mut libc::c_void, len, offset, fixed| {
            let (flags, fd) = match fixed {
                true => (libc::MAP_SHARED | libc::MAP_FIXED, fd.as_raw_fd()),
                false => (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE, -1),
            };
            let access = if fixed { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_NONE };
            // SAFETY: the first call maps anywhere, the others inside what it reserved.
            match unsafe { libc::mmap(at, len, access, flags, fd, offset) } {
                libc::MAP_FAILED => Err(io::Error::last_os_error()),
                at => Ok(at),
            }
        };
        let base = place(std::ptr::null_mut(), HEADER + 2 * CAPACITY, 0, false)?;
        let ring = Self { base: base.cast(), end };
        place(base, HEADER + CAPACITY, 0, true)?;
        // SAFETY: inside the reserved range.
        let second = unsafe { base.byte_add(HEADER + CAPACITY) };
        place(second, CAPACITY, HEADER as i64, true)?;
        Ok(ring)
    }

    fn counter(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: an aligned word of the header, mapped as long as the ring lives.
        unsafe { AtomicU64::from_ptr(self.base.add(offset).cast()) }
    }

    fn flag(&self, end: End) -> &AtomicU32 {
        let offset = if end == End::Reader { READER_SLEEPS } else { WRITER_SLEEPS };
        // SAFETY: an aligned word of the header, mapped as long as the ring lives.
        unsafe { AtomicU32::from_ptr(self.base.add(offset).cast()) }
    }

    /// Number of bytes written and not yet read. The other process also writes the counters and is
    /// not trusted, so the result is limited to the capacity.
    pub(crate) fn filled(&self) -> usize {
        let (head, tail) = (self.counter(HEAD), self.counter(TAIL));
        let filled = head.load(Ordering::Acquire).wrapping_sub(tail.load(Ordering::Acquire));
        (filled as usize).min(CAPACITY)
    }

    /// Free bytes.
    pub(crate) fn free(&self) -> usize {
        CAPACITY - self.filled()
    }

    fn data(&self, counter: u64) -> *mut u8 {
        // SAFETY: less than CAPACITY bytes after the header.
        unsafe { self.base.add(HEADER + (counter as usize & (CAPACITY - 1))) }
    }

    /// The writer's next `len` bytes, if there is room. The writer fills them, then publishes them.
    pub(crate) fn room(&mut self, len: usize) -> Option<&mut [u8]> {
        debug_assert_eq!(self.end, End::Writer);
        if self.free() < len {
            return None;
        }
        let at = self.data(self.counter(HEAD).load(Ordering::Relaxed));
        // SAFETY: `len` bytes from the head on are free, so they belong to the writer until it
        // publishes them. The double mapping makes them contiguous.
        Some(unsafe { std::slice::from_raw_parts_mut(at, len) })
    }

    /// Shows `len` bytes to the reader; true when it sleeps and has to be woken.
    #[must_use]
    pub(crate) fn publish(&mut self, len: usize) -> bool {
        let head = self.counter(HEAD);
        head.store(head.load(Ordering::Relaxed).wrapping_add(len as u64), Ordering::Release);
        self.other_sleeps()
    }

    /// The bytes to read.
    pub(crate) fn written(&self) -> &[u8] {
        debug_assert_eq!(self.end, End::Reader);
        let at = self.data(self.counter(TAIL).load(Ordering::Relaxed));
        // SAFETY: published bytes are the reader's until it consumes them; contiguous as in `room`.
        unsafe { std::slice::from_raw_parts(at, self.filled()) }
    }

    /// Returns `len` bytes to the writer. True when the writer sleeps and must be woken.
    #[must_use]
    pub(crate) fn consumed(&mut self, len: usize) -> bool {
        let tail = self.counter(TAIL);
        tail.store(tail.load(Ordering::Relaxed).wrapping_add(len as u64), Ordering::Release);
        self.other_sleeps()
    }

    fn other_sleeps(&self) -> bool {
        let other = self.flag(if self.end == End::Writer { End::Reader } else { End::Writer });
        // The counter is stored before the flag is read. The sleeper sets the flag before it reads
        // the counter.
        fence(Ordering::SeqCst);
        other.load(Ordering::Relaxed) != 0 && other.swap(0, Ordering::Relaxed) != 0
    }

    /// Announces that this end is about to sleep. It must look at the ring once more before it
    /// sleeps.
    pub(crate) fn sleep(&self) {
        self.flag(self.end).store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// This end does not sleep any more.
    pub(crate) fn awake(&self) {
        self.flag(self.end).store(0, Ordering::Relaxed);
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: mapped by `map`, used by nobody else.
        unsafe { libc::munmap(self.base.cast(), HEADER + 2 * CAPACITY) };
    }
}

/// Room for one descriptor in a control message, aligned.
type Control = [u64; 4];

fn message(byte: &mut libc::iovec, control: &mut Control) -> libc::msghdr {
    // SAFETY: all-zero is a valid message header.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    (message.msg_iov, message.msg_iovlen) = (byte, 1);
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of::<Control>();
    message
}

fn send_fd(socket: RawFd, fd: RawFd) -> io::Result<()> {
    let (mut data, mut control) = ([0u8], Control::default());
    let mut byte = libc::iovec { iov_base: data.as_mut_ptr().cast(), iov_len: 1 };
    let mut message = message(&mut byte, &mut control);
    // SAFETY: the control buffer has room for a header and one descriptor. All pointers are valid
    // during the call.
    let sent = unsafe {
        message.msg_controllen = libc::CMSG_SPACE(size_of::<RawFd>() as u32) as usize;
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        (*header).cmsg_level = libc::SOL_SOCKET;
        (*header).cmsg_type = libc::SCM_RIGHTS;
        (*header).cmsg_len = libc::CMSG_LEN(size_of::<RawFd>() as u32) as usize;
        libc::CMSG_DATA(header).cast::<RawFd>().write_unaligned(fd);
        libc::sendmsg(socket, &raw const message, libc::MSG_NOSIGNAL)
    };
    if sent == 1 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn receive_fd(socket: RawFd) -> io::Result<Option<OwnedFd>> {
    let (mut data, mut control) = ([0u8], Control::default());
    let mut byte = libc::iovec { iov_base: data.as_mut_ptr().cast(), iov_len: 1 };
    let mut message = message(&mut byte, &mut control);
    let flags = libc::MSG_CMSG_CLOEXEC | libc::MSG_DONTWAIT;
    // SAFETY: all pointers live through the call.
    let got = unsafe { libc::recvmsg(socket, &raw mut message, flags) };
    if got < 0 {
        let error = io::Error::last_os_error();
        return match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(None),
            _ => Err(error),
        };
    }
    // SAFETY: the kernel filled the control buffer in; a descriptor in it is new and ours.
    unsafe {
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        if got != 1 || header.is_null() || (*header).cmsg_type != libc::SCM_RIGHTS {
            return Err(sys::errno(libc::EPROTO));
        }
        let fd = libc::CMSG_DATA(header).cast::<RawFd>().read_unaligned();
        Ok(Some(OwnedFd::from_raw_fd(fd)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    fn pair() -> (Ring, Ring) {
        let (a, b) = UnixStream::pair().unwrap();
        let writer = Ring::offer(a.as_raw_fd()).unwrap();
        (writer, Ring::accept(b.as_raw_fd()).unwrap().unwrap())
    }

    #[test]
    fn bytes_come_out_as_they_went_in_across_the_end() {
        let (mut writer, mut reader) = pair();
        let mut next = (0u8, 0u8);
        for len in (1..3000).chain([CAPACITY / 2 + 1, CAPACITY, CAPACITY - 1, 7]) {
            let room = writer.room(len).unwrap();
            room.fill_with(|| {
                next.0 = next.0.wrapping_add(1);
                next.0
            });
            assert!(!writer.publish(len));
            for &byte in reader.written() {
                next.1 = next.1.wrapping_add(1);
                assert_eq!(byte, next.1);
            }
            assert_eq!(reader.filled(), len);
            assert!(!reader.consumed(len));
        }
    }

    #[test]
    fn a_full_ring_takes_no_more() {
        let (mut writer, mut reader) = pair();
        assert!(writer.room(CAPACITY).is_some());
        assert!(!writer.publish(CAPACITY));
        assert!(writer.room(1).is_none());
        assert!(!reader.consumed(8));
        assert!(writer.room(8).is_some() && writer.room(9).is_none());
    }

    #[test]
    fn a_sleeper_is_woken_once() {
        let (mut writer, mut reader) = pair();
        reader.sleep();
        assert!(writer.publish(8), "asleep");
        assert!(!writer.publish(8), "told already");
        writer.sleep();
        assert!(reader.consumed(8));
        writer.sleep();
        writer.awake();
        assert!(!reader.consumed(8));
    }

    #[test]
    fn a_ring_whose_size_can_change_is_refused() {
        let (a, b) = UnixStream::pair().unwrap();
        let offered = |len: usize, seal: bool| {
            let fd = sys::memfd(c"ring", len as u64).unwrap();
            if seal {
                sys::seal(fd.as_raw_fd()).unwrap();
            }
            send_fd(a.as_raw_fd(), fd.as_raw_fd()).unwrap();
            Ring::accept(b.as_raw_fd()).map(|ring| ring.is_some())
        };
        assert!(offered(HEADER + CAPACITY, true).unwrap());
        assert!(offered(HEADER + CAPACITY, false).is_err(), "not sealed");
        assert!(offered(HEADER, true).is_err(), "too short");
        send_fd(a.as_raw_fd(), a.as_raw_fd()).unwrap();
        assert!(Ring::accept(b.as_raw_fd()).is_err(), "no memory");
    }

    #[test]
    fn a_ring_that_is_not_offered_yet_or_never_is() {
        let (a, b) = UnixStream::pair().unwrap();
        assert!(Ring::accept(b.as_raw_fd()).unwrap().is_none());
        drop(a);
        assert!(Ring::accept(b.as_raw_fd()).is_err());
    }
}
