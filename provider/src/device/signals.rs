//! The eventfds that end the sleep of threads that wait on EVDs.
//!
//! An open device keeps some eventfds for its next EVDs, and freed EVDs leave theirs here. To make
//! and to close an eventfd takes longer than the rest of the creation and freeing of an EVD without
//! a CQ.

use crate::descriptor::Descriptor;
use crate::sync::{Mutex, rank};
use crate::{Error, Result, Subtype};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::resource::{Resource, getrlimit};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The number of eventfds that a device keeps. It has more only while EVDs use more.
const KEPT: usize = 8;

/// Descriptors that what is kept leaves to others.
const FOR_OTHERS: u64 = 64;

/// The highest descriptor that may be kept, so that the process has [`FOR_OTHERS`] left: the kernel
/// gives the lowest number that is free. `None`: none may be kept.
pub(super) fn highest_kept() -> Option<u64> {
    let limit = getrlimit(Resource::RLIMIT_NOFILE).map_or(0, |(soft, _)| soft);
    limit.checked_sub(FOR_OTHERS)
}

type Eventfd = Descriptor<EventFd>;

fn eventfd() -> nix::Result<Eventfd> {
    EventFd::from_value_and_flags(0, EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC).map(Descriptor::new)
}

/// The eventfds of a device.
#[derive(Debug)]
pub(crate) struct Signals(Mutex<{ rank::TABLE }, Eventfds>);

#[derive(Debug)]
struct Eventfds {
    /// Those that no EVD uses.
    spare: Vec<Eventfd>,
    /// The number of all.
    all: usize,
}

impl Signals {
    /// Without eventfds.
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self(Mutex::new(Eventfds { spare: Vec::with_capacity(KEPT), all: 0 })))
    }

    /// Makes eventfds until there are [`KEPT`], or until the process has few descriptors left.
    pub(crate) fn fill(&self) {
        let highest = highest_kept();
        let mut eventfds = self.0.lock().unwrap();
        while eventfds.all < KEPT {
            let Ok(fd) = eventfd() else { return };
            if Some(fd.as_fd().as_raw_fd() as u64) > highest {
                return;
            }
            eventfds.spare.push(fd);
            eventfds.all += 1;
        }
    }

    /// A signal that was not sent.
    ///
    /// # Errors
    /// The process has no more descriptors.
    pub(crate) fn take(self: &Arc<Self>) -> Result<Signal> {
        let mut eventfds = self.0.lock().unwrap();
        let fd = match eventfds.spare.pop() {
            Some(fd) => fd,
            None => {
                let made = eventfd();
                let fd =
                    made.map_err(|e| Error::resources(Subtype::ResourceTevd, format!("eventfd: {e}")))?;
                eventfds.all += 1;
                fd
            }
        };
        Ok(Signal { fd: Some(fd), sent: AtomicBool::new(false), from: self.clone() })
    }
}

/// Wakes the thread that waits on an EVD.
#[derive(Debug)]
pub(crate) struct Signal {
    /// Always present, except while the signal is dropped.
    fd: Option<Eventfd>,
    /// The signal was sent at least once.
    sent: AtomicBool,
    from: Arc<Signals>,
}

impl Signal {
    /// Makes the descriptor readable.
    pub(crate) fn send(&self) {
        self.sent.store(true, Ordering::Relaxed);
        if let Some(fd) = &self.fd {
            // EAGAIN means that a signal is already pending.
            let _ = fd.write(1);
        }
    }

    /// Makes the descriptor unreadable.
    pub(crate) fn clear(&self) {
        if let Some(fd) = &self.fd {
            // EAGAIN: no thread of this process has signalled.
            let _ = fd.read();
        }
    }
}

impl AsFd for Signal {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_ref().expect("a signal has its descriptor until it is dropped").as_fd()
    }
}

impl Drop for Signal {
    fn drop(&mut self) {
        if *self.sent.get_mut() {
            self.clear();
        }
        let mut eventfds = self.from.0.lock().unwrap();
        if eventfds.all > KEPT {
            eventfds.all -= 1;
        } else {
            eventfds.spare.extend(self.fd.take());
        }
        // If `fd` is still there, it is closed without the lock.
        drop(eventfds);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

    fn is_readable(signal: &Signal) -> bool {
        let mut fds = [PollFd::new(signal.as_fd(), PollFlags::POLLIN)];
        poll(&mut fds, PollTimeout::ZERO).unwrap() == 1
    }

    #[test]
    fn a_signal_is_new_although_another_evd_has_sent_it() {
        let signals = Signals::new();
        signals.fill();
        let first = signals.take().unwrap();
        first.send();
        assert!(is_readable(&first));
        let number = first.as_fd().as_raw_fd();
        drop(first);
        let second = signals.take().unwrap();
        assert_eq!(second.as_fd().as_raw_fd(), number, "the spare one");
        assert!(!is_readable(&second));
        second.send();
        second.clear();
        assert!(!is_readable(&second));
    }

    #[test]
    fn a_device_keeps_no_more_than_it_began_with() {
        let signals = Signals::new();
        let counts = || {
            let eventfds = signals.0.lock().unwrap();
            (eventfds.spare.len(), eventfds.all)
        };
        let early = signals.take().unwrap();
        assert_eq!(counts(), (0, 1));
        signals.fill();
        assert_eq!(counts(), (KEPT - 1, KEPT));
        drop(early);
        assert_eq!(counts(), (KEPT, KEPT));
        let mut taken: Vec<_> = (0..KEPT + 2).map(|_| signals.take().unwrap()).collect();
        assert_eq!(counts(), (0, KEPT + 2));
        taken.truncate(KEPT);
        assert_eq!(counts(), (0, KEPT));
        taken.clear();
        assert_eq!(counts(), (KEPT, KEPT));
    }
}
