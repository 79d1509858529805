//! Waiting: how a thread sleeps on an EVD, and what wakes the thread or triggers the CNO.

use super::deferred::Deferred;
use super::dequeue::Take;
use super::queue::{Queue, State};
use super::{EvdInner, WaitError};
use crate::cno::CnoInner;
use crate::device::Class;
use crate::event_data::{AsyncKind, Dequeued, Notice};
use crate::types::{CompletionFlags, EvdFlags};
use crate::{Error, Result, ReturnType, Subtype};
use nix::poll::{PollFd, PollFlags};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// One wait, from [`EvdInner::begin_wait`] on.
#[derive(Debug)]
pub(crate) struct Wait {
    /// How many events have to be queued.
    threshold: usize,
    /// An event that notifies has come. Events that were queued before the wait began count,
    /// whether they notify or not (R246): this is true at first.
    notified: bool,
    /// The CQ was armed after the wait had last found nothing.
    armed: bool,
    /// When the queue was last seen, its receives notified only when solicited.
    solicited: bool,
}

/// Whether a wait polls.
#[derive(Clone, Copy)]
enum Polling {
    /// Not yet.
    Not,
    /// Until this time.
    Until(Instant),
    /// Not any more: it sleeps.
    Over,
}

fn bare(error: Error) -> WaitError {
    WaitError { error, more: 0 }
}

impl EvdInner {
    /// Queues an event other than a completion, then wakes the waiter or triggers the CNO. An agent
    /// of the CNO runs here: the caller holds no lock.
    pub(crate) fn push(&self, event: Notice) {
        let lost = self.put_notice(event);
        self.announce_notice(lost);
    }

    /// Queues an event other than a completion. The caller may hold locks, and calls
    /// [`EvdInner::announce_notice`] with the result once it holds none.
    #[must_use = "what is returned goes to `announce_notice`"]
    pub(crate) fn put_notice(&self, event: Notice) -> Option<Notice> {
        let mut queue = self.queue();
        if !self.live.load(Ordering::Acquire) {
            return None;
        }
        if matches!(event, Notice::Async(_)) && queue.others.len() >= queue.qlen {
            self.drop_oldest_async(&mut queue);
        }
        if queue.others.try_reserve(1).is_err() {
            return Some(event);
        }
        queue.refuses &= !matches!(event, Notice::Arrival(_));
        queue.counts.connection += u64::from(matches!(event, Notice::Connection(_) | Notice::Datagram(_)));
        queue.push_notice(event);
        queue.notified = true;
        None
    }

    /// Makes room for an asynchronous event. A program may never look at them, and each connection
    /// that ends can leave one: EP_BROKEN, which goes first, since the connection event says the
    /// same. There is room for one of each EP (R193).
    #[cold]
    fn drop_oldest_async(&self, queue: &mut Queue) {
        if queue.others.len() < self.device.registry.len(Class::Ep) {
            return;
        }
        let broken =
            |notice: &Notice| matches!(notice, Notice::Async(event) if event.kind == AsyncKind::EpBroken);
        let any = |notice: &Notice| matches!(notice, Notice::Async(_));
        let oldest = queue.others.iter().position(broken).or_else(|| queue.others.iter().position(any));
        if let Some(dropped) = oldest.and_then(|n| queue.others.remove(n)) {
            tracing::debug!(event = ?dropped, evd = ?self.id, "an asynchronous event gives way to a newer one");
        }
    }

    /// Whether a connection request fits into the EVD. Peers can send any number of requests, and
    /// each holds memory until the program answers it.
    pub(crate) fn has_room(&self) -> bool {
        let queue = self.queue();
        queue.len() < queue.qlen
    }

    /// A connection request was rejected for lack of room: the EVD overflows. The program learns it
    /// once, until the EVD has had room again. The caller holds no lock.
    pub(crate) fn refuse_request(&self) {
        let mut queue = self.queue();
        let known = std::mem::replace(&mut queue.refuses, true);
        drop(queue);
        if !known {
            self.tell_of_overflow();
        }
    }

    /// Wakes the waiter or triggers the CNO after [`EvdInner::put_notice`]. `lost`: the event for
    /// which there was no memory.
    pub(crate) fn announce_notice(&self, lost: Option<Notice>) {
        if let Some(event) = lost {
            return self.lose(event);
        }
        if self.live.load(Ordering::Acquire) {
            let cno = self.queue().cno_if_enabled();
            self.announce(cno);
        }
    }

    /// Handles an event for which there is no memory: the EVD overflows. A lost connection request
    /// is rejected.
    #[cold]
    pub(super) fn lose(&self, event: Notice) {
        tracing::error!(?event, evd = ?self.id, "no memory for an event");
        drop(event);
        // An asynchronous EVD without memory cannot report its own overflow.
        if !self.flags.contains(EvdFlags::ASYNC) {
            self.run_deferred(Deferred::overflow());
        }
    }

    /// Looks at the CQ again: the CQ may hold a failed or flushed completion while the EVD waits
    /// for solicited completions only (R238).
    pub(crate) fn recheck_notification(&self) {
        if self.waiting.load(Ordering::Acquire) {
            self.wake_waiter();
        } else if let Some(cno) = self.cno_with_news() {
            self.trigger(&cno);
        }
    }

    /// Returns the CNO if the queue or the CQ holds an event that may trigger the CNO.
    fn cno_with_news(&self) -> Option<Arc<CnoInner>> {
        let mut queue = self.queue();
        let cno = queue.cno_if_enabled()?;
        let deferred = match self.harvest(&mut queue) {
            Ok(after) => after,
            Err(error) => {
                tracing::error!(%error, "cannot harvest an EVD");
                return None;
            }
        };
        let news = queue.notified && queue.len() > 0;
        drop(queue);
        self.run_deferred(deferred);
        news.then_some(cno)
    }

    pub(super) fn announce(&self, cno: Option<Arc<CnoInner>>) {
        if self.waiting.load(Ordering::Acquire) {
            self.wake_waiter();
        } else if let Some(cno) = cno {
            self.trigger(&cno);
        }
    }

    /// Triggers the CNO, unless the EVD was freed. The agent runs here: the caller holds no lock.
    fn trigger(&self, cno: &CnoInner) {
        let exists = || self.live.load(Ordering::Acquire);
        if self.device.tell_of(exists, || cno.trigger(self.id)).is_some() {
            cno.call_agent(self.id);
        }
    }

    pub(super) fn wake_waiter(&self) {
        self.wake.send();
    }

    /// Handles a readable channel on the progress thread: arms the CQ again, so that no completion
    /// is missed, and then triggers the CNO.
    ///
    /// The CNO is not triggered without a check: a waiter may already have taken the completions
    /// that the channel reported, and unsignalled completions trigger nothing. Only the device
    /// knows which completions are solicited. Without a CNO the event is for the progress thread
    /// itself.
    pub(crate) fn channel_ready(&self) {
        let told = self.drain_channel(true);
        let mut queue = self.queue();
        let solicited = queue.has(CompletionFlags::SOLICITED_WAIT);
        if self.waiting.load(Ordering::Acquire) {
            queue.notified |= told && solicited;
            drop(queue);
            self.wake_waiter();
            return;
        }
        let cno = queue.cno_if_enabled();
        drop(queue);
        let Some(cno) = cno else {
            self.look();
            return self.rearm_later();
        };
        if let Err(error) = self.watch() {
            tracing::error!(%error, "cannot arm a CQ");
        }
        if (told && solicited) || self.cno_with_news().is_some() {
            self.trigger(&cno);
        }
    }

    /// [`Queue::wait_fast`](super::Queue::wait_fast), if this thread owns the lock of the queue.
    pub(crate) fn wait_fast<T: Take>(&self, take: T) -> Option<(T::Event, usize)> {
        let (event, left) = self.queue.try_lock_fast()?.wait_fast(take)?;
        Some((event, left.unwrap_or_else(|| self.harvest_and_count())))
    }

    /// The number of events that the consumer can take.
    pub fn harvest_and_count(&self) -> usize {
        if let Err(error) = self.harvest_now() {
            tracing::error!(%error, "cannot harvest an EVD");
        }
        self.queue().len()
    }

    pub(crate) fn wait(
        &self,
        timeout: Option<Duration>,
        threshold: usize,
    ) -> Result<(Dequeued, usize), WaitError> {
        let mut wait = self.begin_wait(threshold).map_err(bare)?;
        let outcome = self.wait_inside(timeout, &mut wait);
        self.end_wait();
        outcome.inspect(|(event, _)| self.on_dequeued(event))
    }

    /// Makes the caller the EVD's only waiter, until [`EvdInner::end_wait`].
    ///
    /// # Errors
    /// As [`crate::Evd::wait`].
    pub(crate) fn begin_wait(&self, threshold: usize) -> Result<Wait> {
        self.check()?;
        self.check_threshold(threshold)?;
        if self.waiting.swap(true, Ordering::AcqRel) {
            return Err(Error::state(Subtype::InvalidStateEvdWaiter, "another thread waits on this EVD"));
        }
        let mut queue = self.queue();
        queue.state |= State::WAITED;
        queue.counts.waits += 1;
        let has_cno = queue.cno.is_some();
        drop(queue);
        if has_cno && let Err(error) = self.watch() {
            self.end_wait();
            return Err(error);
        }
        Ok(Wait { threshold, notified: true, armed: false, solicited: false })
    }

    /// Ends the caller's time as the waiter.
    pub(crate) fn end_wait(&self) {
        // Other threads may dequeue as soon as `waiting` is false.
        let mut queue = self.queue();
        queue.state -= State::WAITED;
        let has_cno = queue.cno.is_some();
        drop(queue);
        self.waiting.store(false, Ordering::Release);
        if !self.live.load(Ordering::Acquire) {
            return;
        }
        if has_cno && let Err(error) = self.watch() {
            tracing::error!(%error, "cannot arm or watch an EVD after a wait");
        }
        self.waited();
    }

    /// Ends a wait after a step that may have armed the CQ. A signal that was sent in the meantime
    /// does not wake the next wait, whose first step looks at the queue.
    pub(crate) fn cancel_wait(&self, wait: &Wait) {
        if wait.armed {
            self.wake.clear();
        }
        self.end_wait();
    }

    /// The step of a wait that does not block its thread: takes the event that ends the wait, or
    /// arms the CQ. Without an event, one of [`EvdInner::descriptors`] becomes readable when the
    /// next step may find one.
    pub(crate) fn poll_wait(&self, wait: &mut Wait) -> Result<Option<(Dequeued, usize)>, WaitError> {
        if wait.armed {
            self.wake.clear();
            // Until it is empty, because the caller may be told of a change only.
            while self.drain_channel(true) {
                wait.notified |= wait.solicited;
            }
            wait.armed = false;
        }
        loop {
            if let Ok(found) = self.take_for(wait).map_err(bare)? {
                self.on_dequeued(&found.0);
                return Ok(Some(found));
            }
            if wait.armed {
                self.is_blocked(wait);
                return Ok(None);
            }
            self.arm_for(wait).map_err(bare)?;
        }
    }

    /// What a waiter sleeps on: a signal of this process, and an event of the device.
    pub(crate) fn descriptors(&self) -> (BorrowedFd<'_>, Option<BorrowedFd<'_>>) {
        (self.wake.as_fd(), self.channel.as_ref().map(|channel| channel.as_fd()))
    }

    fn check_threshold(&self, threshold: usize) -> Result<()> {
        let queue = self.queue();
        if !queue.waitable {
            return Err(Error::state(Subtype::InvalidStateEvdUnwaitable, "this EVD is unwaitable"));
        }
        if threshold < 1 || threshold > queue.qlen {
            return Err(Error::arg(3, format!("the threshold is 1 to {}, not {threshold}", queue.qlen)));
        }
        if threshold > 1 && queue.has(CompletionFlags::UNSIGNALLED) {
            let sub = Subtype::InvalidStateEvdConfigNotify;
            return Err(Error::state(sub, "with unsignalled streams the threshold has to be 1"));
        }
        if threshold > 1 && queue.has(CompletionFlags::SOLICITED_WAIT) {
            let sub = Subtype::InvalidStateEvdConfigSolicited;
            return Err(Error::state(sub, "with solicited wait streams the threshold has to be 1"));
        }
        Ok(())
    }

    fn wait_inside(
        &self,
        timeout: Option<Duration>,
        wait: &mut Wait,
    ) -> Result<(Dequeued, usize), WaitError> {
        // A timeout that no `Instant` can represent never expires.
        let deadline = timeout.and_then(|t| Instant::now().checked_add(t));
        let mut polling = Polling::Not;
        loop {
            let more = match self.take_for(wait).map_err(bare)? {
                Ok(found) => {
                    self.has_ended(polling, true);
                    return Ok(found);
                }
                Err(more) => more,
            };
            let now = Instant::now();
            let left = deadline.map(|d| d.saturating_duration_since(now));
            if left == Some(Duration::ZERO) {
                self.has_ended(polling, false);
                let error = Error::new(ReturnType::TimeoutExpired, Subtype::None, "the timeout has expired");
                return Err(WaitError { error, more });
            }
            if !wait.armed {
                polling = self.next_polling(polling, wait, now);
                match polling {
                    // Another thread may have to run before the event comes.
                    Polling::Until(_) => std::thread::yield_now(),
                    _ => self.arm_for(wait).map_err(bare)?,
                }
                continue;
            }
            self.is_blocked(wait);
            let device = self.block(left).map_err(|error| WaitError { error, more })?;
            wait.notified |= device && wait.solicited;
            wait.armed = false;
        }
    }

    /// Tells [`Patience`](super::patience::Patience) how a wait ended that has polled.
    fn has_ended(&self, polling: Polling, found: bool) {
        if let Polling::Until(end) = polling {
            self.patience.ended(found, Instant::now(), end, self.device.settings.poll_time);
        }
    }

    /// Whether a wait polls on after it has found nothing. Events other than completions come too
    /// rarely to poll for. Which completions are solicited is known only from an armed CQ.
    fn next_polling(&self, polling: Polling, wait: &Wait, now: Instant) -> Polling {
        match polling {
            Polling::Not if self.channel.is_some() && !wait.solicited => {
                let end = self.patience.begin(now, self.device.settings.poll_time);
                end.map_or(Polling::Over, Polling::Until)
            }
            Polling::Until(end) if now >= end => {
                self.has_ended(polling, false);
                Polling::Over
            }
            Polling::Until(_) => polling,
            Polling::Not | Polling::Over => Polling::Over,
        }
    }

    /// Takes the oldest event if enough events are queued and one of them notifies. Otherwise
    /// returns how many are queued.
    fn take_for(&self, wait: &mut Wait) -> Result<Result<(Dequeued, usize), usize>> {
        let mut queue = self.queue();
        if !self.live.load(Ordering::Acquire) {
            return Err(Error::new(ReturnType::Abort, Subtype::None, "the EVD was freed"));
        }
        if !queue.waitable {
            let sub = Subtype::InvalidStateEvdUnwaitable;
            return Err(Error::state(sub, "the EVD was made unwaitable"));
        }
        let deferred = self.harvest(&mut queue)?;
        wait.notified |= std::mem::take(&mut queue.notified);
        let enough = wait.notified && queue.len() >= wait.threshold;
        // The queue is not empty then: the threshold is at least 1.
        let event = if enough { queue.pop() } else { None };
        if event.is_some() {
            queue.state -= State::WAITED;
        }
        let more = queue.len();
        wait.solicited = queue.has(CompletionFlags::SOLICITED_WAIT);
        drop(queue);
        self.run_deferred(deferred);
        Ok(event.map(|event| (event, more)).ok_or(more))
    }

    /// Arms the CQ for a wait that has found nothing. The wait has to look once more, because
    /// completions that finished before the CQ was armed raise no event.
    fn arm_for(&self, wait: &mut Wait) -> Result<()> {
        wait.notified |= self.drain_channel(false) && wait.solicited;
        self.arm_to_wait(wait.solicited)?;
        wait.armed = true;
        Ok(())
    }

    /// From here on only an event that notifies ends the wait.
    fn is_blocked(&self, wait: &mut Wait) {
        wait.notified = false;
        self.queue().counts.blocked += 1;
    }

    /// Reads the events of the channel that are expected. True if there was one. Reads at least once
    /// if `readable`: poll(2) has said that there is an event.
    fn drain_channel(&self, readable: bool) -> bool {
        let Some(channel) = &self.channel else { return false };
        let mut any = false;
        let mut more = readable || self.queue().alert.expects_event();
        while more {
            let Ok(Some(token)) = channel.next_event() else { break };
            let mut queue = self.queue();
            queue.alert.event_read();
            let for_consumer = queue.cno.is_some() && queue.enabled || self.waiting.load(Ordering::Acquire);
            queue.counts.completion += u64::from(for_consumer);
            if let Some(cq) = &mut queue.cq {
                cq.event(token);
            }
            any = true;
            more = queue.alert.expects_event();
        }
        any
    }

    /// Sleeps until the device or a thread of this process signals. Returns true if the device
    /// signalled.
    fn block(&self, left: Option<Duration>) -> Result<bool> {
        let mut fds = vec![PollFd::new(self.wake.as_fd(), PollFlags::POLLIN)];
        if let Some(channel) = &self.channel {
            fds.push(PollFd::new(channel.as_fd(), PollFlags::POLLIN));
        }
        match nix::poll::ppoll(&mut fds, left.map(Into::into), None) {
            Ok(_) => {}
            Err(nix::errno::Errno::EINTR) => {
                return Err(Error::new(
                    ReturnType::InterruptedCall,
                    Subtype::None,
                    "a signal interrupted the wait",
                ));
            }
            Err(errno) => {
                let text = format!("ppoll: {errno}");
                return Err(Error::new(ReturnType::InternalError, Subtype::None, text));
            }
        }
        let readable = |fd: &PollFd<'_>| fd.any().unwrap_or(true);
        let (woken, device) = (readable(&fds[0]), fds.get(1).is_some_and(readable));
        if woken {
            self.wake.clear();
        }
        Ok(device && self.drain_channel(true))
    }
}
