//! The progress thread: one per IA, waits for the async, completion and connection descriptors and for dates.
//!
//! It makes events and wakes waiters. Receives never need it: whoever reaps polls the CQ itself. Completions that cause
//! events on other EVDs are the exception, see [`crate::evd`].

use crate::datapath::direct;
use crate::ep::EpInner;
use crate::event::{AsyncEvent, AsyncKind, AsyncObject, ConnectionEventKind, reason};
use crate::ia::{CmTarget, IaInner};
use crate::sync::{Mutex, MutexGuard, rank};
use crate::types::EvdId;
use crate::{Error, Result, ReturnType, Subtype};
use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};
use rxe_fallback::{AsyncKind as Device, AsyncObject as Object, CmEvent};
use std::collections::BinaryHeap;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

const WAKE: u64 = u64::MAX;
const ASYNC: u64 = u64::MAX - 1;
const CM: u64 = u64::MAX - 2;

/// Something to be done at a date.
#[derive(Debug)]
pub(crate) enum Task {
    /// Give up a connection attempt, if it is still this one.
    ConnectTimeout(Weak<EpInner>, u64),
    /// See whether a graceful disconnect can finish.
    Graceful(Weak<EpInner>),
    /// End a connection whose peer has gone.
    Overtaken(Weak<EpInner>, u64),
    /// See whether an ended connection has given everything back; it ended then.
    Drain(Weak<EpInner>, Instant),
    /// Give up a UD EP's question, by its token.
    DatagramTimeout(Weak<EpInner>, u64),
    /// Let go of a connection id whose peer never answered.
    Forget(u64),
    /// Arm the CQ of an EVD again, after an event that only this thread wanted.
    Rearm(EvdId),
}

#[derive(Debug)]
struct Timer {
    at: Instant,
    task: Task,
}

#[derive(Debug, Default)]
struct Timers {
    dates: BinaryHeap<Timer>,
    /// How many of them stand for tasks that may be refused.
    refusable: usize,
    /// Dates that there is memory for beyond those.
    kept: usize,
}

impl Timers {
    /// Memory for `more` dates beyond all that may be needed.
    fn reserve(&mut self, more: usize) -> Result<()> {
        let all = self.refusable + self.kept + more;
        Ok(self.dates.try_reserve(all.saturating_sub(self.dates.len()))?)
    }
}

/// Memory for the dates of one EP or EVD, while this lives: see [`Progress::keep_dates`].
#[derive(Debug)]
pub(crate) struct Dates(Arc<Progress>);

impl Dates {
    /// An EP or EVD waits for as many things at a time.
    const MANY: usize = 4;
}

impl Drop for Dates {
    fn drop(&mut self) {
        self.0.timers.lock().unwrap().kept -= Self::MANY;
    }
}

impl Task {
    /// Whoever asks for it can do without.
    fn is_refusable(&self) -> bool {
        match self {
            Self::ConnectTimeout(..) | Self::DatagramTimeout(..) | Self::Forget(_) => true,
            Self::Graceful(_) | Self::Overtaken(..) | Self::Drain(..) | Self::Rearm(_) => false,
        }
    }

    /// A task that makes the other one unnecessary.
    fn replaces(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Graceful(a), Self::Graceful(b)) | (Self::Drain(a, _), Self::Drain(b, _)) => a.ptr_eq(b),
            (Self::Rearm(a), Self::Rearm(b)) => a == b,
            _ => false,
        }
    }
}

impl PartialEq for Timer {
    fn eq(&self, other: &Self) -> bool {
        self.at == other.at
    }
}

impl Eq for Timer {}

impl PartialOrd for Timer {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Timer {
    /// The heap gives the largest first: that is to be the earliest.
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        other.at.cmp(&self.at)
    }
}

/// What other threads share with the progress thread.
#[derive(Debug)]
pub(crate) struct Progress {
    epoll: Epoll,
    wake: EventFd,
    timers: Mutex<{ rank::TABLE }, Timers>,
    stop: AtomicBool,
    /// The thread itself.
    thread: OnceLock<ThreadId>,
}

fn os(what: &str, errno: Errno) -> Error {
    Error::new(ReturnType::InsufficientResources, Subtype::ResourceDevice, format!("{what}: {errno}"))
}

impl Progress {
    pub(crate) fn new(async_fd: BorrowedFd<'_>, cm_fd: BorrowedFd<'_>) -> Result<Arc<Self>> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(|e| os("epoll_create1", e))?;
        let wake = EventFd::from_value_and_flags(0, EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)
            .map_err(|e| os("eventfd", e))?;
        let add = |fd: BorrowedFd<'_>, data| {
            epoll.add(fd, EpollEvent::new(EpollFlags::EPOLLIN, data)).map_err(|e| os("epoll_ctl", e))
        };
        add(std::os::fd::AsFd::as_fd(&wake), WAKE)?;
        add(async_fd, ASYNC)?;
        add(cm_fd, CM)?;
        let (stop, thread) = (AtomicBool::new(false), OnceLock::new());
        Ok(Arc::new(Self { epoll, wake, timers: Mutex::default(), stop, thread }))
    }

    /// Keeps memory for the tasks of one more EP or EVD that cannot be refused.
    ///
    /// # Errors
    /// No memory.
    pub(crate) fn keep_dates(self: &Arc<Self>) -> Result<Dates> {
        let mut timers = self.timers.lock().unwrap();
        timers.reserve(Dates::MANY)?;
        timers.kept += Dates::MANY;
        Ok(Dates(self.clone()))
    }

    /// Runs `task`, a time-out, after this time, on the progress thread.
    ///
    /// # Errors
    /// No memory for another date; the task is gone.
    pub(crate) fn after(&self, time: Duration, task: Task) -> Result<()> {
        let mut timers = self.timers.lock().unwrap();
        timers.reserve(1)?;
        self.set(timers, time, task);
        Ok(())
    }

    /// The same for a task of an EP or EVD that cannot be refused.
    pub(crate) fn certainly_after(&self, time: Duration, task: Task) {
        let mut timers = self.timers.lock().unwrap();
        // An EP may ask for the same more than once, so there may be more dates than are kept for them.
        if timers.dates.try_reserve(1).is_ok() {
            self.set(timers, time, task);
        } else if !timers.dates.iter().any(|timer| timer.task.replaces(&task)) {
            tracing::error!(
                ?task,
                "no memory for a date: a connection may not end, or an EVD not tell of failures"
            );
        }
    }

    fn set(&self, mut timers: MutexGuard<'_, Timers>, time: Duration, task: Task) {
        let Some(at) = Instant::now().checked_add(time) else { return };
        timers.refusable += usize::from(task.is_refusable());
        timers.dates.push(Timer { at, task });
        drop(timers);
        // The thread itself looks at the dates before it waits.
        if self.thread.get() != Some(&std::thread::current().id()) {
            self.wake();
        }
    }

    /// Watches an EVD's channel, or stops watching it.
    pub(crate) fn watch_evd(&self, evd: EvdId, fd: BorrowedFd<'_>, on: bool) -> Result<()> {
        let outcome = if on {
            self.epoll.add(fd, EpollEvent::new(EpollFlags::EPOLLIN, evd.0))
        } else {
            self.epoll.delete(fd)
        };
        match outcome {
            Ok(()) | Err(Errno::EEXIST | Errno::ENOENT) => Ok(()),
            Err(errno) => Err(os("epoll_ctl", errno)),
        }
    }

    /// In the child of a fork: if the thread itself has forked, it ends there; nobody else is woken.
    pub(crate) fn disown(&self) {
        self.stop.store(true, Ordering::Release);
    }

    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.wake();
    }

    fn wake(&self) {
        let _ = self.wake.write(1);
    }

    fn next_date(&self) -> EpollTimeout {
        let timers = self.timers.lock().unwrap();
        let Some(next) = timers.dates.peek() else { return EpollTimeout::NONE };
        let left = next.at.saturating_duration_since(Instant::now());
        // Up to the next millisecond, so that the date is past when the thread wakes.
        let millis = left.as_micros().div_ceil(1000);
        EpollTimeout::try_from(millis.min(60_000) as i32).unwrap_or(EpollTimeout::ZERO)
    }

    fn due(&self) -> Option<Task> {
        let mut timers = self.timers.lock().unwrap();
        if timers.dates.peek()?.at > Instant::now() {
            return None;
        }
        let task = timers.dates.pop()?.task;
        timers.refusable -= usize::from(task.is_refusable());
        Some(task)
    }

    /// The thread. It holds the IA only while it works for it.
    pub(crate) fn run(self: Arc<Self>, ia: Weak<IaInner>) {
        let _ = self.thread.set(std::thread::current().id());
        let mut events = [EpollEvent::empty(); 32];
        // Looked at before each wait, too: the wake-up that goes with it may be read together with an earlier one.
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
            let Some(ia) = ia.upgrade() else { return };
            for event in &events[..n] {
                match event.data() {
                    WAKE => {
                        let _ = self.wake.read();
                    }
                    ASYNC => ia.async_ready(),
                    CM => ia.cm_ready(),
                    evd => {
                        if let Some(evd) = ia.evd(EvdId(evd)) {
                            evd.channel_ready();
                        }
                    }
                }
            }
            while let Some(task) = self.due() {
                ia.run_task(task);
            }
        }
    }
}

impl IaInner {
    fn run_task(&self, task: Task) {
        match task {
            Task::ConnectTimeout(ep, attempt) => {
                if let Some(ep) = ep.upgrade() {
                    ep.connect_timed_out(attempt);
                }
            }
            Task::Overtaken(ep, attempt) => {
                if let Some(ep) = ep.upgrade() {
                    ep.overtaken(attempt);
                }
            }
            Task::Graceful(ep) => {
                if let Some(ep) = ep.upgrade() {
                    if let Err(error) = ep.request_evd.harvest_now() {
                        tracing::error!(%error, "could not look at an EVD");
                    }
                    ep.finish_graceful();
                }
            }
            Task::Drain(ep, since) => {
                if let Some(ep) = ep.upgrade() {
                    ep.drain_step(since);
                }
            }
            Task::DatagramTimeout(ep, token) => {
                if let Some(ep) = ep.upgrade() {
                    ep.datagrams_unanswered(token, ConnectionEventKind::TimedOut);
                }
            }
            Task::Forget(token) => self.forget_cm(token),
            Task::Rearm(evd) => {
                if let Some(evd) = self.evd(evd) {
                    evd.rearm();
                }
            }
        }
    }

    fn cm_ready(&self) {
        loop {
            match self.cm.next_event() {
                Ok(Some(event)) => self.on_cm_event(event),
                Ok(None) => return,
                Err(error) => {
                    tracing::error!(%error, "the connection manager's channel failed");
                    return;
                }
            }
        }
    }

    fn on_cm_event(&self, mut event: CmEvent) {
        use rxe_fallback::CmEventKind as K;
        tracing::debug!(kind = ?event.kind, status = event.status, token = event.token, "connection manager");
        let token = if event.kind == K::ConnectRequest {
            event.listener_token.unwrap_or(event.token)
        } else {
            event.token
        };
        let target = self.cm_target(token);
        self.count_cm(&event, target.as_ref());
        match target {
            Some(CmTarget::Ep(ep)) => {
                if let Some(ep) = ep.upgrade() {
                    ep.on_cm(&event);
                }
            }
            Some(CmTarget::Listener(sp)) => {
                if let Some(sp) = sp.upgrade() {
                    sp.on_request(&mut event);
                }
            }
            Some(CmTarget::Request(cr)) => {
                if let Some(cr) = cr.upgrade()
                    && matches!(event.kind, K::Disconnected | K::ConnectError | K::Unreachable | K::Rejected)
                {
                    cr.peer_gone();
                }
            }
            Some(CmTarget::Retired) => {
                if matches!(event.kind, K::Disconnected | K::TimewaitExit) {
                    self.forget_cm(token);
                }
            }
            None => {}
        }
    }

    fn async_ready(&self) {
        loop {
            match self.context.next_async_event() {
                Ok(Some(event)) => self.on_async_event(event),
                Ok(None) => return,
                Err(error) => {
                    tracing::error!(%error, "the device's event channel failed");
                    return;
                }
            }
        }
    }

    fn on_async_event(&self, event: rxe_fallback::AsyncEvent) {
        tracing::debug!(?event, "device");
        self.count_async(&event);
        match event.object {
            Object::Qp(_, token) => {
                let Some(ep) = self.objects.lock().unwrap().eps.get(&token).and_then(Weak::upgrade) else {
                    return;
                };
                match event.kind {
                    Device::QpLastWqeReached => ep.last_wqe(),
                    Device::QpFatal | Device::QpRequestError | Device::QpAccessError => ep.failed(),
                    Device::CommunicationEstablished => ep.message_before_confirmation(),
                    _ => {}
                }
            }
            Object::Srq(token) => {
                let srq = self.objects.lock().unwrap().srqs.get(&token).and_then(Weak::upgrade);
                match (srq, event.kind) {
                    (Some(srq), Device::SrqLimitReached) => srq.limit_reached(),
                    (Some(srq), _) => srq.device_failed(),
                    (None, _) => {}
                }
            }
            Object::Cq(token) => {
                let evd =
                    self.objects.lock().unwrap().evds.get(&direct::evd_of(token)).and_then(Weak::upgrade);
                if let Some(evd) = evd {
                    self.push_async(AsyncEvent {
                        kind: AsyncKind::EvdOverflow,
                        object: AsyncObject::Evd(evd.id),
                        context: evd.context.load(Ordering::Relaxed),
                        reason: reason::EVD_OVERFLOW,
                    });
                }
            }
            Object::Device => self.push_async(AsyncEvent {
                kind: AsyncKind::IaCatastrophic,
                object: AsyncObject::Ia,
                context: self.consumer_context(),
                reason: reason::IA_CATASTROPHIC,
            }),
            Object::Port(port) if port == self.port && event.kind == Device::PortError => {
                self.push_async(AsyncEvent {
                    kind: AsyncKind::Notice,
                    object: AsyncObject::Ia,
                    context: self.consumer_context(),
                    reason: reason::IA_OTHER,
                });
            }
            Object::Port(_) => {}
        }
    }
}
