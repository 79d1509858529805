//! Connections between two processes: a ring per direction ([`super::ring`]), and a stream socket
//! that passes the ring to the peer. It wakes a sleeping peer, and its end of file reports that the
//! peer has gone.

use std::io::{ErrorKind, Read as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::net::UnixStream;

use super::frame::{ALIGN, FRAME_LAST_PART, FRAME_PART, PART_HEAD, REQUEST_HEAD};
use super::ring::{CAPACITY, Ring};
use crate::host::sys;

/// The longest frame that travels whole; longer ones are cut into parts.
pub(super) const WHOLE: usize = CAPACITY / 4 * 3;
/// Data in a part of a frame.
const PART: usize = CAPACITY / 4;
/// The longest frame in parts: a request with the most payload that a card sends.
const LONGEST: usize = (1 << 30) + REQUEST_HEAD;

/// A connection that a peer made to us.
pub(crate) struct Incoming {
    pub(super) stream: UnixStream,
    pub(super) ring: Option<Ring>,
    /// The part of a frame that has arrived so far.
    parts: Vec<u8>,
    pub(super) open: bool,
}

impl Incoming {
    pub(super) fn new(stream: UnixStream) -> Self {
        Self { stream, ring: None, parts: Vec::new(), open: true }
    }

    /// Takes the ring that the peer offers, if it has none yet.
    pub(super) fn take_ring(&mut self) {
        if self.ring.is_none() {
            match Ring::accept(self.stream.as_raw_fd()) {
                Ok(ring) => self.ring = ring,
                Err(_) => self.open = false,
            }
        }
    }

    /// Takes the frames that have arrived.
    pub(crate) fn serve(&mut self, mut take: impl FnMut(&[u8])) {
        let Some(ring) = &mut self.ring else { return };
        if ring.filled() == 0 {
            return;
        }
        let mut done = 0;
        let written = ring.written();
        while let Some(&head) = written[done..].first_chunk::<4>() {
            let len = u32::from_le_bytes(head) as usize;
            let padded = len.next_multiple_of(ALIGN);
            if !(8..=WHOLE).contains(&len) {
                self.open = false;
                return;
            }
            if written.len() - done < padded {
                break;
            }
            let frame = &written[done + 4..done + len];
            match frame[0] {
                FRAME_PART | FRAME_LAST_PART if !is_room(&self.parts, frame.len(), LONGEST) => {
                    self.open = false;
                    return;
                }
                FRAME_PART => self.parts.extend_from_slice(&frame[PART_HEAD - 4..]),
                FRAME_LAST_PART => {
                    self.parts.extend_from_slice(&frame[PART_HEAD - 4..]);
                    let whole = std::mem::take(&mut self.parts);
                    take(whole.get(4..).unwrap_or(&[]));
                    self.parts = whole;
                    self.parts.clear();
                }
                _ => take(frame),
            }
            done += padded;
        }
        if ring.consumed(done) {
            wake(&self.stream);
        }
    }
}

/// A connection that we made to a peer.
pub(super) struct Outgoing {
    pub(super) stream: UnixStream,
    pub(super) ring: Ring,
    /// Frames that the ring had no room for.
    pub(super) queue: Vec<u8>,
    /// Bytes of `queue` that are in the ring.
    done: usize,
    /// A request waits for this many free bytes.
    pub(super) wanted: usize,
}

impl Outgoing {
    pub(super) fn new(stream: UnixStream, ring: Ring) -> Self {
        Self { stream, ring, queue: Vec::new(), done: 0, wanted: 0 }
    }

    /// True when there is room for the waiting data.
    pub(super) fn can_go_on(&self) -> bool {
        let free = self.ring.free();
        free >= if self.queue.is_empty() { self.wanted } else { ALIGN }
    }

    fn wake(&mut self, asleep: bool) {
        if asleep {
            wake(&self.stream);
        }
    }

    /// Moves waiting data into the ring as far as there is room.
    pub(super) fn advance(&mut self) {
        while self.done < self.queue.len() {
            let len = self.ring.free().min(self.queue.len() - self.done);
            let Some(room) = self.ring.room(len).filter(|room| !room.is_empty()) else { break };
            room.copy_from_slice(&self.queue[self.done..][..len]);
            self.done += len;
            let asleep = self.ring.publish(len);
            self.wake(asleep);
        }
        if self.done == self.queue.len() {
            self.queue.clear();
            self.done = 0;
        } else if self.done > self.queue.len() / 2 {
            self.queue.drain(..self.done);
            self.done = 0;
        }
    }

    /// Sends a frame of `len` bytes that `write` fills in.
    pub(super) fn frame(&mut self, len: usize, write: impl FnOnce(&mut [u8])) {
        let padded = len.next_multiple_of(ALIGN);
        if self.queue.is_empty()
            && padded <= WHOLE
            && let Some(room) = self.ring.room(padded)
        {
            write(&mut room[..len]);
            let asleep = self.ring.publish(padded);
            self.wake(asleep);
            return;
        }
        if padded <= WHOLE {
            let at = self.queue.len();
            self.queue.resize(at + padded, 0);
            write(&mut self.queue[at..at + len]);
        } else {
            let mut whole = vec![0; len];
            write(&mut whole);
            let count = len.div_ceil(PART);
            for (i, part) in whole.chunks(PART).enumerate() {
                let kind = if i + 1 == count { FRAME_LAST_PART } else { FRAME_PART };
                self.queue.extend_from_slice(&((PART_HEAD + part.len()) as u32).to_le_bytes());
                self.queue.extend_from_slice(&[kind, 0, 0, 0]);
                self.queue.extend_from_slice(part);
                self.queue.resize(self.queue.len().next_multiple_of(ALIGN), 0);
            }
        }
        self.advance();
        if !self.queue.is_empty() {
            crate::host::wake::wake();
        }
    }
}

/// Whether parts that have arrived can be continued with so many bytes.
fn is_room(parts: &[u8], more: usize, longest: usize) -> bool {
    parts.len() + more <= longest + PART_HEAD
}

/// Wakes a sleeper at the other end. A socket that is full of such bytes wakes the sleeper anyway.
pub(super) fn wake(stream: &UnixStream) {
    let _ = sys::send_packet(stream.as_raw_fd(), &[0]);
}

/// Reads the bytes of a socket that only wakes; false when the peer is gone.
pub(super) fn is_there(stream: &mut UnixStream) -> bool {
    loop {
        match stream.read(&mut [0; 64]) {
            Ok(0) => return false,
            Ok(64) => {}
            Ok(_) => return true,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return error.kind() == ErrorKind::WouldBlock,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The longest request of a card fits into its parts; endless parts do not.
    #[test]
    fn parts_are_bounded() {
        let part = PART_HEAD - 4 + PART;
        let before_last = vec![0; LONGEST / PART * PART];
        assert!(is_room(&before_last, PART_HEAD - 4 + LONGEST % PART, LONGEST));
        assert!(!is_room(&before_last, part, LONGEST));
    }
}
