//! The reactor: the progress thread of an open device, which waits for descriptors and timers.
//!
//! The reactor does not depend on the objects. A descriptor or a timer leads to a [`Source`]; the
//! device's own descriptors lead to the device. Connection events, device events, time-outs and the
//! ends of connections are handled on this thread. A receive does not need the thread, because the
//! thread that dequeues polls the CQ. ARCHITECTURE.md (Threads) lists the cases in which the
//! progress thread polls a CQ.

use super::wake::Wake;
use crate::descriptor::Descriptor;
use crate::process::Uncancelled;
use crate::sync::{Mutex, MutexGuard, rank};
use crate::types::ByNumber;
use crate::{Error, Result, ReturnType, Subtype};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::signal::{SigSet, SigmaskHow};
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use nix::unistd::{Pid, gettid};
use std::collections::BinaryHeap;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::sync::{Arc, OnceLock, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The number of the descriptor of the timer.
const TIMER: u64 = u64::MAX;
/// The number of the descriptor of asynchronous device events.
pub(super) const ASYNC: u64 = u64::MAX - 1;
/// The number of the descriptor of rdma_cm events.
pub(super) const CM: u64 = u64::MAX - 2;

/// How long [`Reactor::stop`] waits for a thread that it cannot wake.
const UNWOKEN: Duration = Duration::from_secs(2);

/// How long [`Reactor::finish_turn`] waits for a turn, in which an agent of the program may run.
const TURN: Duration = Duration::from_secs(1);

/// An object with work for the progress thread.
pub(crate) trait Source: Send + Sync {
    /// Called when the descriptor that is watched under this number is readable.
    fn ready(self: Arc<Self>, _number: u64) {}

    /// Called when a timer has expired.
    fn due(self: Arc<Self>, _timer: Timer) {}
}

/// What a timer is for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Timer {
    /// Gives up the connection attempt or the CM id with this number.
    GiveUp(u64),
    /// A graceful disconnect checks whether its requests have completed.
    FinishRequests,
    /// The connection with this number, which the peer has ended, stops waiting for late
    /// acknowledgements.
    LateAcksExpired(u64),
    /// A connection that ended at this time checks whether it is drained.
    Drain(Instant),
    /// Arms a CQ again.
    Rearm,
}

impl Timer {
    /// Whether the timer may be refused for lack of memory.
    fn is_refusable(self) -> bool {
        matches!(self, Self::GiveUp(_))
    }

    /// Whether this timer makes `other`, of the same source, unnecessary.
    fn replaces(self, other: Self) -> bool {
        matches!(
            (self, other),
            (Self::FinishRequests, Self::FinishRequests)
                | (Self::Drain(_), Self::Drain(_))
                | (Self::Rearm, Self::Rearm)
        )
    }
}

/// The source that a timer leads to.
#[derive(Clone)]
enum To {
    Source(Weak<dyn Source>),
    /// The source with this number.
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

struct Deadline {
    at: Instant,
    to: To,
    timer: Timer,
}

impl PartialEq for Deadline {
    fn eq(&self, other: &Self) -> bool {
        self.at == other.at
    }
}

impl Eq for Deadline {}

impl PartialOrd for Deadline {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Deadline {
    /// Reversed: the heap returns the largest element first, which has to be the earliest deadline.
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        other.at.cmp(&self.at)
    }
}

#[derive(Default)]
struct Deadlines {
    heap: BinaryHeap<Deadline>,
    /// The number of elements that may be refused.
    refusable: usize,
    /// The number of further elements for which memory is reserved.
    reserved: usize,
    /// When the timer expires, if it is set.
    wakes_at: Option<Instant>,
}

impl Deadlines {
    /// Reserves memory for `more` elements beyond those that may be needed already.
    fn reserve(&mut self, more: usize) -> Result<()> {
        let all = self.refusable + self.reserved + more;
        Ok(self.heap.try_reserve(all.saturating_sub(self.heap.len()))?)
    }
}

/// Reserved memory for the timers of one EP or EVD: see [`Reactor::reserve_timers`]. Dropping it
/// ends the reservation.
#[derive(Debug)]
pub(crate) struct ReservedTimers(Arc<Reactor>);

impl ReservedTimers {
    /// The largest number of timers that an EP or EVD has at a time.
    const EACH: usize = 4;
}

impl Drop for ReservedTimers {
    fn drop(&mut self) {
        self.0.deadlines.lock().unwrap().reserved -= Self::EACH;
    }
}

/// The reactor, shared by the progress thread and all others.
pub(crate) struct Reactor {
    epoll: Descriptor<Epoll>,
    /// Wakes the thread for the earliest deadline. Setting it does not wake the thread: a program
    /// starts timers while it connects and disconnects, and a thread that wakes then takes a
    /// processor from it.
    timer: Descriptor<TimerFd>,
    deadlines: Mutex<{ rank::TABLE }, Deadlines>,
    sources: Mutex<{ rank::TABLE }, ByNumber<u64, Weak<dyn Source>>>,
    stop: AtomicBool,
    /// Odd while the thread handles events, and may hold references to objects.
    turns: AtomicU64,
    /// Wakes the thread to stop.
    wake: Wake,
    /// The ID of the progress thread, once it has what it needs.
    thread: OnceLock<Pid>,
    handle: Mutex<{ rank::TABLE }, Option<JoinHandle<()>>>,
}

impl std::fmt::Debug for Reactor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reactor").field("epoll", &*self.epoll).finish_non_exhaustive()
    }
}

fn os(what: &str, errno: Errno) -> Error {
    Error::new(ReturnType::InsufficientResources, Subtype::ResourceDevice, format!("{what}: {errno}"))
}

impl Reactor {
    pub(super) fn new(async_fd: BorrowedFd<'_>, cm_fd: BorrowedFd<'_>) -> Result<Arc<Self>> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map(Descriptor::epoll);
        let epoll = epoll.map_err(|e| os("epoll_create1", e))?;
        let flags = TimerFlags::TFD_NONBLOCK | TimerFlags::TFD_CLOEXEC;
        let timer = TimerFd::new(ClockId::CLOCK_MONOTONIC, flags).map(Descriptor::new);
        let timer = timer.map_err(|e| os("timerfd_create", e))?;
        let add = |fd: BorrowedFd<'_>, data| {
            epoll.add(fd, EpollEvent::new(EpollFlags::EPOLLIN, data)).map_err(|e| os("epoll_ctl", e))
        };
        add(timer.as_fd(), TIMER)?;
        add(async_fd, ASYNC)?;
        add(cm_fd, CM)?;
        Ok(Arc::new(Self {
            epoll,
            timer,
            deadlines: Mutex::default(),
            sources: Mutex::default(),
            stop: AtomicBool::new(false),
            turns: AtomicU64::new(0),
            wake: Wake::new().map_err(|e| os("pipe2", e))?,
            thread: OnceLock::new(),
            handle: Mutex::default(),
        }))
    }

    /// Starts the thread, and waits until the thread has what it needs. The thread holds a reference
    /// to the device only while it handles events.
    pub(super) fn start(self: &Arc<Self>, device: Weak<dyn Source>) -> Result<()> {
        let reactor = self.clone();
        // The thread inherits the mask. Signals are for the threads of the program.
        let mask = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK).map_err(|e| os("sigmask", e))?;
        let spawned =
            std::thread::Builder::new().name("doorbell".to_owned()).spawn(move || reactor.run(&device));
        let restored = mask.thread_set_mask();
        let thread = spawned.map_err(|e| {
            Error::resources(Subtype::ResourceDevice, format!("cannot create the progress thread: {e}"))
        })?;
        *self.handle.lock().unwrap() = Some(thread);
        self.thread.wait();
        restored.map_err(|e| os("sigmask", e))
    }

    /// Reserves memory for the timers of one more EP or EVD, so that they cannot be refused.
    ///
    /// # Errors
    /// No memory.
    pub(crate) fn reserve_timers(self: &Arc<Self>) -> Result<ReservedTimers> {
        let mut deadlines = self.deadlines.lock().unwrap();
        deadlines.reserve(ReservedTimers::EACH)?;
        deadlines.reserved += ReservedTimers::EACH;
        Ok(ReservedTimers(self.clone()))
    }

    /// Starts a timer: after `time`, [`Source::due`] of `to` is called.
    ///
    /// # Errors
    /// No memory for another timer; no timer was started.
    pub(crate) fn after<S: Source + 'static>(&self, time: Duration, to: Weak<S>, timer: Timer) -> Result<()> {
        let mut deadlines = self.deadlines.lock().unwrap();
        deadlines.reserve(1)?;
        self.set(deadlines, time, To::Source(to), timer);
        Ok(())
    }

    /// As [`Reactor::after`], for a timer of an EP, whose memory is reserved.
    pub(crate) fn certainly_after<S: Source + 'static>(&self, time: Duration, to: Weak<S>, timer: Timer) {
        self.certainly(time, To::Source(to), timer);
    }

    /// As [`Reactor::certainly_after`], for the EVD that is the source with this number.
    pub(crate) fn certainly_after_at(&self, time: Duration, number: u64, timer: Timer) {
        self.certainly(time, To::Number(number), timer);
    }

    fn certainly(&self, time: Duration, to: To, timer: Timer) {
        let mut deadlines = self.deadlines.lock().unwrap();
        // An EP may start the same timer more than once, so more memory than the reserved may be
        // needed.
        if deadlines.heap.try_reserve(1).is_ok() {
            self.set(deadlines, time, to, timer);
        } else if !deadlines.heap.iter().any(|deadline| deadline.to.is(&to) && deadline.timer.replaces(timer))
        {
            tracing::error!(
                ?timer,
                "no memory for a timer: a connection may not end, or an EVD may not report failures"
            );
        }
    }

    fn set(&self, mut deadlines: MutexGuard<'_, Deadlines>, time: Duration, to: To, timer: Timer) {
        let Some(at) = Instant::now().checked_add(time) else { return };
        deadlines.refusable += usize::from(timer.is_refusable());
        deadlines.heap.push(Deadline { at, to, timer });
        self.wake_at(&mut deadlines, at);
    }

    /// Wakes the thread at this time, or earlier.
    fn wake_at(&self, deadlines: &mut Deadlines, at: Instant) {
        if deadlines.wakes_at.is_some_and(|earlier| earlier <= at) {
            return;
        }
        // A time of zero would stop the timer.
        let left = at.saturating_duration_since(Instant::now()).max(Duration::from_nanos(1));
        let left = Expiration::OneShot(TimeSpec::from_duration(left));
        match self.timer.set(left, TimerSetTimeFlags::empty()) {
            Ok(()) => deadlines.wakes_at = Some(at),
            Err(errno) => tracing::error!(%errno, "timerfd_settime failed: timers do not expire"),
        }
    }

    /// Adds a source of descriptors and timers under this number.
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

    /// In a forked child: ends the progress thread if that thread has forked. No other thread
    /// exists there.
    pub(super) fn disown(&self) {
        self.stop.store(true, Ordering::Release);
    }

    /// Ends the thread, and waits for it unless the caller is that thread.
    pub(super) fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        let woken = self.wake.send();
        let Some(thread) = self.handle.lock().unwrap().take() else { return };
        if self.thread.get() == Some(&gettid()) {
            return;
        }
        thread.thread().unpark();
        // Without its descriptors, the thread may sleep for as long as a child of the process has
        // copies of them.
        let until = Instant::now() + UNWOKEN;
        while !woken && !thread.is_finished() {
            if Instant::now() > until {
                tracing::error!("the program has closed descriptors of the library: a thread is left");
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        // A panic of the thread has been reported on standard error; the other threads go on.
        let _ = thread.join();
    }

    /// Waits until the thread has released the objects that it is working on, unless the caller is
    /// that thread. An object whose last other reference was dropped before the call is gone then,
    /// unless the thread needs longer than [`TURN`].
    pub(crate) fn finish_turn(&self) {
        // With that in `work`: the thread finds the object gone, or this finds the turn.
        fence(Ordering::SeqCst);
        let turn = self.turns.load(Ordering::Acquire);
        if turn.is_multiple_of(2) || self.thread.get() == Some(&gettid()) {
            return;
        }
        let until = Instant::now() + TURN;
        while self.turns.load(Ordering::Acquire) == turn && Instant::now() < until {
            std::thread::sleep(Duration::from_micros(50));
        }
    }

    fn timer_expired(&self) {
        // EAGAIN: another thread has set the timer again.
        let _ = self.timer.wait();
        self.deadlines.lock().unwrap().wakes_at = None;
    }

    /// Takes the timer that is due. If there is none, the thread will wake for the next.
    fn due(&self) -> Option<(To, Timer)> {
        let mut deadlines = self.deadlines.lock().unwrap();
        let next = deadlines.heap.peek()?.at;
        if next > Instant::now() {
            self.wake_at(&mut deadlines, next);
            return None;
        }
        let Deadline { to, timer, .. } = deadlines.heap.pop()?;
        deadlines.refusable -= usize::from(timer.is_refusable());
        Some((to, timer))
    }

    fn run(self: Arc<Self>, device: &Weak<dyn Source>) {
        let _uncancelled = Uncancelled::begin();
        // Queues belong to the threads of the program that post and dequeue.
        biased_lock::visit_only();
        // The first allocation of a thread makes an arena. A program that replaces functions of libc
        // while it starts up does so when the thread has ended this.
        drop(std::hint::black_box(Box::new(0_u64)));
        let _ = self.thread.set(gettid());
        let Err(errno) = self.work(device) else { return };
        tracing::error!(%errno, "the progress thread has lost its descriptors: connections make no progress");
        while !self.stop.load(Ordering::Acquire) {
            std::thread::park();
        }
    }

    /// Handles events until the thread is to stop.
    ///
    /// # Errors
    /// The program has closed the descriptors.
    fn work(&self, device: &Weak<dyn Source>) -> Result<(), Errno> {
        let mut events = [EpollEvent::empty(); 32];
        while !self.stop.load(Ordering::Acquire) {
            self.sleep()?;
            let n = match self.epoll.wait(&mut events, EpollTimeout::ZERO) {
                Ok(n) => n,
                Err(Errno::EINTR) => 0,
                Err(errno) => return Err(errno),
            };
            if self.stop.load(Ordering::Acquire) {
                break;
            }
            self.turns.fetch_add(1, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            let exists = self.turn(device, &events[..n]);
            self.turns.fetch_add(1, Ordering::Release);
            if !exists {
                break;
            }
        }
        Ok(())
    }

    /// Handles these events, and the timers that are due. False if the device is gone.
    fn turn(&self, device: &Weak<dyn Source>, events: &[EpollEvent]) -> bool {
        let Some(device) = device.upgrade() else { return false };
        for event in events {
            match event.data() {
                TIMER => self.timer_expired(),
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
        true
    }

    /// Sleeps until there is an event, or until [`Wake::send`].
    ///
    /// poll(2) holds its descriptors open, also if another thread closes them, as closefrom(3)
    /// does. The other end of [`Wake`] is then gone, which wakes this thread. A thread that sleeps
    /// in epoll_wait(2) would sleep for ever.
    fn sleep(&self) -> Result<(), Errno> {
        let epoll = self.epoll.0.as_fd();
        let mut fds = [epoll, self.wake.as_fd()].map(|fd| PollFd::new(fd, PollFlags::POLLIN));
        match poll(&mut fds, PollTimeout::NONE) {
            Ok(_) => {}
            Err(Errno::EINTR) => return Ok(()),
            Err(errno) => return Err(errno),
        }
        let gone = PollFlags::POLLHUP | PollFlags::POLLNVAL | PollFlags::POLLERR;
        let lost = fds.iter().any(|fd| fd.revents().is_some_and(|events| events.intersects(gone)));
        if lost { Err(Errno::EBADF) } else { Ok(()) }
    }
}
