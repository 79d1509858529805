//! The reactor: one thread per open device, which waits for descriptors and for dates.
//!
//! It knows no object. A descriptor leads to a [`Source`], and so does a date; the device's own
//! descriptors lead to the device. Events of connections and of the device, time-outs and the ends
//! of connections run on this thread. Receives do not need it: whoever dequeues polls the CQ. The
//! thread polls a CQ in three cases: the EVD's channel raised an event for it, an EVD's CQ is armed
//! again, and a connection ends, which is over once its last completions are in.

use crate::sync::{Mutex, MutexGuard, rank};
use crate::{Error, Result, ReturnType, Subtype};
use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::collections::{BinaryHeap, HashMap};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::thread::{JoinHandle, ThreadId};
use std::time::{Duration, Instant};

const WAKE: u64 = u64::MAX;
/// The device's asynchronous events.
pub(super) const ASYNC: u64 = u64::MAX - 1;
/// The connection manager's events.
pub(super) const CM: u64 = u64::MAX - 2;

/// Whoever has something to do on the reactor's thread.
pub(crate) trait Source: Send + Sync {
    /// The descriptor that is watched under this number is readable.
    fn ready(self: Arc<Self>, _number: u64) {}

    /// A date has come.
    fn due(self: Arc<Self>, _timer: Timer) {}
}

/// What a date is for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Timer {
    /// The attempt, or the connection id, with this number is given up.
    GiveUp(u64),
    /// A graceful disconnect looks whether its requests are done.
    FinishRequests,
    /// The connection with this number, which the peer has ended, waits for acknowledgements no
    /// longer.
    LateAcksExpired(u64),
    /// A connection that has ended at this time looks whether it has given everything back.
    Drain(Instant),
    /// A CQ is armed again.
    Rearm,
}

impl Timer {
    /// Whoever asks for it can do without.
    fn is_refusable(self) -> bool {
        matches!(self, Self::GiveUp(_))
    }

    /// Makes the other one, of the same source, unnecessary.
    fn replaces(self, other: Self) -> bool {
        matches!(
            (self, other),
            (Self::FinishRequests, Self::FinishRequests)
                | (Self::Drain(_), Self::Drain(_))
                | (Self::Rearm, Self::Rearm)
        )
    }
}

/// The source of a date.
#[derive(Clone)]
enum To {
    Source(Weak<dyn Source>),
    /// That of a watched descriptor.
    Number(u64),
}

impl To {
    fn is(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Source(a), Self::Source(b)) => a.ptr_eq(b),
            (Self::Number(a), Self::Number(b)) => a == b,
            _ => false,
        }
    }
}

struct Date {
    at: Instant,
    to: To,
    timer: Timer,
}

impl PartialEq for Date {
    fn eq(&self, other: &Self) -> bool {
        self.at == other.at
    }
}

impl Eq for Date {}

impl PartialOrd for Date {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Date {
    /// The heap gives the largest first, which has to be the earliest.
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        other.at.cmp(&self.at)
    }
}

#[derive(Default)]
struct Dates {
    heap: BinaryHeap<Date>,
    /// How many of them can be refused.
    refusable: usize,
    /// Dates that there is memory for beyond those.
    kept: usize,
}

impl Dates {
    /// Memory for `more` dates beyond all that may be needed.
    fn reserve(&mut self, more: usize) -> Result<()> {
        let all = self.refusable + self.kept + more;
        Ok(self.heap.try_reserve(all.saturating_sub(self.heap.len()))?)
    }
}

/// Memory for the dates of one EP or EVD, while this lives: see [`Reactor::keep_dates`].
#[derive(Debug)]
pub(crate) struct KeptDates(Arc<Reactor>);

impl KeptDates {
    /// An EP or EVD waits for as many things at a time.
    const MANY: usize = 4;
}

impl Drop for KeptDates {
    fn drop(&mut self) {
        self.0.dates.lock().unwrap().kept -= Self::MANY;
    }
}

/// What other threads share with the reactor's thread.
pub(crate) struct Reactor {
    epoll: Epoll,
    wake: EventFd,
    dates: Mutex<{ rank::TABLE }, Dates>,
    sources: Mutex<{ rank::TABLE }, HashMap<u64, Weak<dyn Source>>>,
    stop: AtomicBool,
    /// The thread itself.
    thread: OnceLock<ThreadId>,
    handle: Mutex<{ rank::TABLE }, Option<JoinHandle<()>>>,
}

impl std::fmt::Debug for Reactor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reactor").field("epoll", &self.epoll).finish_non_exhaustive()
    }
}

fn os(what: &str, errno: Errno) -> Error {
    Error::new(ReturnType::InsufficientResources, Subtype::ResourceDevice, format!("{what}: {errno}"))
}

impl Reactor {
    pub(super) fn new(async_fd: BorrowedFd<'_>, cm_fd: BorrowedFd<'_>) -> Result<Arc<Self>> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(|e| os("epoll_create1", e))?;
        let wake = EventFd::from_value_and_flags(0, EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)
            .map_err(|e| os("eventfd", e))?;
        let add = |fd: BorrowedFd<'_>, data| {
            epoll.add(fd, EpollEvent::new(EpollFlags::EPOLLIN, data)).map_err(|e| os("epoll_ctl", e))
        };
        add(wake.as_fd(), WAKE)?;
        add(async_fd, ASYNC)?;
        add(cm_fd, CM)?;
        Ok(Arc::new(Self {
            epoll,
            wake,
            dates: Mutex::default(),
            sources: Mutex::default(),
            stop: AtomicBool::new(false),
            thread: OnceLock::new(),
            handle: Mutex::default(),
        }))
    }

    /// Starts the thread. It holds the device only while it works for it.
    pub(super) fn start(self: &Arc<Self>, device: Weak<dyn Source>) -> Result<()> {
        let reactor = self.clone();
        let thread = std::thread::Builder::new()
            .name("doorbell".to_owned())
            .spawn(move || reactor.run(&device))
            .map_err(|e| Error::resources(Subtype::ResourceDevice, format!("no thread: {e}")))?;
        *self.handle.lock().unwrap() = Some(thread);
        Ok(())
    }

    /// Keeps memory for the dates of one more EP or EVD that cannot be refused.
    ///
    /// # Errors
    /// No memory.
    pub(crate) fn keep_dates(self: &Arc<Self>) -> Result<KeptDates> {
        let mut dates = self.dates.lock().unwrap();
        dates.reserve(KeptDates::MANY)?;
        dates.kept += KeptDates::MANY;
        Ok(KeptDates(self.clone()))
    }

    /// After this time `to` hears that a time-out is over.
    ///
    /// # Errors
    /// No memory for another date; nothing will happen.
    pub(crate) fn after<S: Source + 'static>(&self, time: Duration, to: Weak<S>, timer: Timer) -> Result<()> {
        let mut dates = self.dates.lock().unwrap();
        dates.reserve(1)?;
        self.set(dates, time, To::Source(to), timer);
        Ok(())
    }

    /// The same for a date of an EP that cannot be refused.
    pub(crate) fn certainly_after<S: Source + 'static>(&self, time: Duration, to: Weak<S>, timer: Timer) {
        self.certainly(time, To::Source(to), timer);
    }

    /// The same for the source with this number, which an EVD is.
    pub(crate) fn certainly_after_at(&self, time: Duration, number: u64, timer: Timer) {
        self.certainly(time, To::Number(number), timer);
    }

    fn certainly(&self, time: Duration, to: To, timer: Timer) {
        let mut dates = self.dates.lock().unwrap();
        // An EP may ask for the same more than once, so there may be more dates than are kept for
        // them.
        if dates.heap.try_reserve(1).is_ok() {
            self.set(dates, time, to, timer);
        } else if !dates.heap.iter().any(|date| date.to.is(&to) && date.timer.replaces(timer)) {
            tracing::error!(
                ?timer,
                "no memory for a date: a connection may not end, or an EVD not tell of failures"
            );
        }
    }

    fn set(&self, mut dates: MutexGuard<'_, Dates>, time: Duration, to: To, timer: Timer) {
        let Some(at) = Instant::now().checked_add(time) else { return };
        dates.refusable += usize::from(timer.is_refusable());
        dates.heap.push(Date { at, to, timer });
        drop(dates);
        // The thread itself looks at the dates before it waits.
        if self.thread.get() != Some(&std::thread::current().id()) {
            self.wake();
        }
    }

    /// A source of descriptors and dates by this number.
    ///
    /// # Errors
    /// No memory for the table.
    pub(crate) fn add_source<S: Source + 'static>(&self, number: u64, source: &Arc<S>) -> Result<()> {
        let mut sources = self.sources.lock().unwrap();
        sources.try_reserve(1)?;
        let source: Weak<S> = Arc::downgrade(source);
        sources.insert(number, source);
        Ok(())
    }

    pub(crate) fn remove_source(&self, number: u64) {
        self.sources.lock().unwrap().remove(&number);
    }

    fn source(&self, number: u64) -> Option<Arc<dyn Source>> {
        self.sources.lock().unwrap().get(&number)?.upgrade()
    }

    /// Watches a descriptor for the source with this number, or stops watching it.
    pub(crate) fn watch(&self, number: u64, fd: BorrowedFd<'_>, on: bool) -> Result<()> {
        let outcome = if on {
            self.epoll.add(fd, EpollEvent::new(EpollFlags::EPOLLIN, number))
        } else {
            self.epoll.delete(fd)
        };
        match outcome {
            Ok(()) | Err(Errno::EEXIST | Errno::ENOENT) => Ok(()),
            Err(errno) => Err(os("epoll_ctl", errno)),
        }
    }

    /// In the child of a fork: if the thread itself has forked, it ends there; nobody else is
    /// woken.
    pub(super) fn disown(&self) {
        self.stop.store(true, Ordering::Release);
    }

    /// Ends the thread, and waits for it unless the caller is that thread.
    pub(super) fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.wake();
        let thread = self.handle.lock().unwrap().take();
        if let Some(thread) = thread
            && thread.thread().id() != std::thread::current().id()
        {
            // The thread never panics while it holds anything; what it says is of no interest.
            let _ = thread.join();
        }
    }

    fn wake(&self) {
        let _ = self.wake.write(1);
    }

    fn next_date(&self) -> EpollTimeout {
        let dates = self.dates.lock().unwrap();
        let Some(next) = dates.heap.peek() else { return EpollTimeout::NONE };
        let left = next.at.saturating_duration_since(Instant::now());
        // Up to the next millisecond, so that the date is past when the thread wakes.
        let millis = left.as_micros().div_ceil(1000);
        EpollTimeout::try_from(millis.min(60_000) as i32).unwrap_or(EpollTimeout::ZERO)
    }

    fn due(&self) -> Option<(To, Timer)> {
        let mut dates = self.dates.lock().unwrap();
        if dates.heap.peek()?.at > Instant::now() {
            return None;
        }
        let Date { to, timer, .. } = dates.heap.pop()?;
        dates.refusable -= usize::from(timer.is_refusable());
        Some((to, timer))
    }

    fn run(self: Arc<Self>, device: &Weak<dyn Source>) {
        let _ = self.thread.set(std::thread::current().id());
        let mut events = [EpollEvent::empty(); 32];
        // Looked at before each wait, too: the wake-up that goes with it may be read together with
        // an earlier one.
        while !self.stop.load(Ordering::Acquire) {
            let n = match self.epoll.wait(&mut events, self.next_date()) {
                Ok(n) => n,
                Err(Errno::EINTR) => 0,
                Err(errno) => {
                    tracing::error!(%errno, "the progress thread cannot wait and ends");
                    return;
                }
            };
            if self.stop.load(Ordering::Acquire) {
                return;
            }
            let Some(device) = device.upgrade() else { return };
            for event in &events[..n] {
                match event.data() {
                    WAKE => {
                        let _ = self.wake.read();
                    }
                    own @ (ASYNC | CM) => device.clone().ready(own),
                    number => {
                        if let Some(source) = self.source(number) {
                            source.ready(number);
                        }
                    }
                }
            }
            while let Some((to, timer)) = self.due() {
                let source = match to {
                    To::Source(source) => source.upgrade(),
                    To::Number(number) => self.source(number),
                };
                if let Some(source) = source {
                    source.due(timer);
                }
            }
        }
    }
}
