//! EVDs and CNOs in event loops: one descriptor that becomes readable when there may be an event,
//! and calls that take the event without blocking. With the feature `tokio`, [`AsyncEvd`] and
//! [`AsyncCno`] await it.

#[cfg(feature = "tokio")]
mod futures;

#[cfg(feature = "tokio")]
pub use self::futures::{AsyncCno, AsyncEvd};

use crate::evd::Wait;
use crate::types::EvdId;
use crate::{Cno, Error, Evd, Event, Result, ReturnType, Subtype};
use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};

/// Waits on an EVD without blocking the thread: a descriptor for poll(2), epoll(7) and the like.
///
/// ```no_run
/// # fn poll(_: impl std::os::fd::AsFd) {}
/// # fn handle(_: doorbell::Event) {}
/// # fn listen(evd: &doorbell::Evd) -> doorbell::Result<()> {
/// let mut listener = doorbell::EvdListener::new(evd)?;
/// loop {
///     while let Some(event) = listener.poll()? {
///         handle(event);
///     }
///     poll(&listener); // until the descriptor is readable
/// }
/// # }
/// ```
///
/// A poll that finds no event begins a wait, with the rules of [`Evd::wait`]: until a later poll or
/// dequeue of the listener returns an event or an error, or [`EvdListener::cancel`] or a drop ends
/// the wait, the listener is the EVD's only waiter (R248), the CNO is not triggered (R250), and the
/// CQ is armed.
#[derive(Debug)]
pub struct EvdListener {
    evd: Evd,
    /// Watches the descriptors of the EVD.
    epoll: Epoll,
    wait: Option<Wait>,
}

impl EvdListener {
    /// Makes a listener for this EVD. An EVD may have several, of which one can wait at a time.
    ///
    /// # Errors
    /// INVALID_HANDLE after the EVD was freed; INSUFFICIENT_RESOURCES where the process has no more
    /// descriptors.
    pub fn new(evd: &Evd) -> Result<Self> {
        evd.inner.check()?;
        let os = |e: Errno| Error::resources(Subtype::ResourceTevd, format!("epoll: {e}"));
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(os)?;
        let (wake, channel) = evd.inner.descriptors();
        for fd in [Some(wake), channel].into_iter().flatten() {
            epoll.add(fd, EpollEvent::new(EpollFlags::EPOLLIN, 0)).map_err(os)?;
        }
        Ok(Self { evd: evd.clone(), epoll, wait: None })
    }

    /// Takes the oldest event, if it or one behind it may wake a waiter. Without an event, returns
    /// `None`: poll again when the descriptor is readable, which may be for nothing.
    ///
    /// # Errors
    /// As [`Evd::wait`], but for INTERRUPTED_CALL. The wait is over then.
    pub fn poll(&mut self) -> Result<Option<Event>> {
        let inner = &self.evd.inner;
        let wait = match &mut self.wait {
            Some(wait) => wait,
            none => none.insert(inner.begin_wait(1)?),
        };
        let outcome = inner.poll_wait(wait);
        if !matches!(outcome, Ok(None)) {
            self.cancel();
        }
        Ok(outcome.map_err(|failed| failed.error)?.map(|(taken, _)| taken.into()))
    }

    /// Takes the oldest event as [`Evd::dequeue`], and ends the wait that a poll has begun: for a
    /// thread that looks again and again for a while before it sleeps.
    ///
    /// # Errors
    /// As [`Evd::dequeue`].
    pub fn dequeue(&mut self) -> Result<Option<Event>> {
        self.cancel();
        self.evd.dequeue()
    }

    /// Ends the wait that the last poll has left, if it has: other threads may dequeue and wait,
    /// and the CNO is triggered again. No event is lost.
    pub fn cancel(&mut self) {
        if let Some(wait) = self.wait.take() {
            self.evd.inner.cancel_wait(&wait);
        }
    }

    /// The EVD.
    pub fn evd(&self) -> &Evd {
        &self.evd
    }
}

impl Drop for EvdListener {
    fn drop(&mut self) {
        self.cancel();
    }
}

impl AsFd for EvdListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.0.as_fd()
    }
}

impl AsRawFd for EvdListener {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

/// A CNO with its descriptor.
#[derive(Clone, Debug)]
pub struct CnoListener {
    cno: Cno,
}

impl CnoListener {
    /// Makes a listener for this CNO.
    ///
    /// # Errors
    /// INVALID_PARAMETER if the CNO has no descriptor: [`Cno::with_fd`] makes one that has.
    pub fn new(cno: &Cno) -> Result<Self> {
        match cno.fd() {
            Some(_) => Ok(Self { cno: cno.clone() }),
            None => Err(Error::arg(1, "the CNO was created without a descriptor")),
        }
    }

    /// Takes the EVD that has triggered the CNO. Without one, returns `None`: poll again when the
    /// descriptor is readable.
    ///
    /// # Errors
    /// INVALID_STATE (CNO_DEAD) after the CNO was freed.
    pub fn poll(&self) -> Result<Option<EvdId>> {
        match self.cno.take() {
            Ok(evd) => Ok(Some(evd)),
            Err(error) if error.return_type() == ReturnType::QueueEmpty => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The CNO.
    pub fn cno(&self) -> &Cno {
        &self.cno
    }
}

impl AsFd for CnoListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.cno.fd().expect("`new` has checked that there is one")
    }
}

impl AsRawFd for CnoListener {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}
