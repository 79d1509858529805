//! Waiting: how a thread sleeps on an EVD, and what wakes the thread or triggers the CNO.

use super::queue::{Deferred, SlowPath};
use super::{EvdInner, WaitError};
use crate::cno::CnoInner;
use crate::event_data::{Dequeued, Notice};
use crate::types::{CompletionFlags, Count, EvdFlags};
use crate::{Error, Result, ReturnType, Subtype};
use nix::poll::{PollFd, PollFlags};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

impl EvdInner {
    /// Queues an event other than a completion, then wakes the waiter or triggers the CNO.
    pub(crate) fn push(&self, event: Notice) {
        let mut queue = self.queue();
        if !self.live.load(Ordering::Acquire) {
            return;
        }
        if queue.others.try_reserve(1).is_err() {
            drop(queue);
            self.lose(event);
            return;
        }
        queue.counts.connection += u64::from(matches!(event, Notice::Connection(_) | Notice::Datagram(_)));
        queue.others.push_back(event);
        queue.notified = true;
        let cno = queue.cno_if_enabled();
        drop(queue);
        self.announce(cno);
    }

    /// Handles an event for which there is no memory: the EVD overflows. A lost connection request
    /// is rejected.
    #[cold]
    fn lose(&self, event: Notice) {
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
            cno.trigger(self.id);
        }
    }

    /// Returns the CNO if the queue or the CQ holds an event that may trigger the CNO.
    fn cno_with_news(&self) -> Option<Arc<CnoInner>> {
        let mut queue = self.queue();
        let cno = queue.cno_if_enabled()?;
        let deferred = match self.harvest(&mut queue) {
            Ok(after) => after,
            Err(error) => {
                tracing::error!(%error, "could not look at an EVD");
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
            cno.trigger(self.id);
        }
    }

    pub(super) fn wake_waiter(&self) {
        // EAGAIN means that a wake-up is already pending.
        let _ = self.wake.write(1);
    }

    /// Handles a readable channel on the progress thread: arms the CQ again, so that no completion
    /// is missed, and then triggers the CNO.
    ///
    /// The CNO is not triggered without a check: a waiter may already have taken the completions
    /// that the channel reported, and unsignalled completions trigger nothing. Only the device
    /// knows which completions are solicited. Without a CNO the event is for the progress thread
    /// itself.
    pub(crate) fn channel_ready(&self) {
        let told = self.drain_channel();
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
            tracing::error!(%error, "could not arm a CQ");
        }
        if (told && solicited) || self.cno_with_news().is_some() {
            cno.trigger(self.id);
        }
    }

    pub(crate) fn wait(
        &self,
        timeout: Option<Duration>,
        threshold: Count,
    ) -> Result<(Dequeued, usize), WaitError> {
        let bare = |error| WaitError { error, more: 0 };
        self.check().map_err(bare)?;
        let threshold = self.check_threshold(threshold).map_err(bare)?;
        if self.waiting.swap(true, Ordering::AcqRel) {
            let error = Error::state(Subtype::InvalidStateEvdWaiter, "another thread waits on this EVD");
            return Err(bare(error));
        }
        let mut queue = self.queue();
        queue.slow_path |= SlowPath::WAITED;
        queue.counts.waits += 1;
        let has_cno = queue.cno.is_some();
        drop(queue);
        let watched = if has_cno { self.watch() } else { Ok(false) };
        let outcome = match watched {
            Ok(_) => self.wait_inside(timeout, threshold),
            Err(error) => Err(bare(error)),
        };
        if outcome.is_err() {
            self.queue().slow_path -= SlowPath::WAITED;
        }
        self.waiting.store(false, Ordering::Release);
        if has_cno && let Err(error) = self.watch() {
            tracing::error!(%error, "could not watch an EVD again");
        }
        self.waited();
        outcome.inspect(|(event, _)| self.on_dequeued(event))
    }

    fn check_threshold(&self, threshold: Count) -> Result<usize> {
        let queue = self.queue();
        if !queue.waitable {
            return Err(Error::state(Subtype::InvalidStateEvdUnwaitable, "this EVD is unwaitable"));
        }
        if threshold < 1 || threshold as usize > queue.qlen {
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
        Ok(threshold as usize)
    }

    fn wait_inside(
        &self,
        timeout: Option<Duration>,
        threshold: usize,
    ) -> Result<(Dequeued, usize), WaitError> {
        let bare = |error| WaitError { error, more: 0 };
        // A timeout that no `Instant` can represent never expires.
        let deadline = timeout.and_then(|t| Instant::now().checked_add(t));
        let mut deferred = Deferred::default();
        // Events that were queued before the call count, whether they notify or not (R246). The
        // first looks therefore consider all events.
        let mut notified = true;
        let mut armed = false;
        let outcome = loop {
            let mut queue = self.queue();
            if !self.live.load(Ordering::Acquire) {
                break Err(bare(Error::new(ReturnType::Abort, Subtype::None, "the EVD was freed")));
            }
            if !queue.waitable {
                let sub = Subtype::InvalidStateEvdUnwaitable;
                break Err(bare(Error::state(sub, "the EVD was made unwaitable")));
            }
            match self.harvest(&mut queue) {
                Ok(found) => deferred.merge(found),
                Err(error) => break Err(bare(error)),
            }
            notified |= std::mem::take(&mut queue.notified);
            if notified && queue.len() >= threshold {
                let more = queue.len() - 1;
                // The queue is not empty: the threshold is at least 1.
                if let Some(event) = queue.pop() {
                    queue.slow_path -= SlowPath::WAITED;
                    queue.counts.polling = false;
                    break Ok((event, more));
                }
            }
            let more = queue.len();
            let solicited = queue.has(CompletionFlags::SOLICITED_WAIT);
            drop(queue);
            self.run_deferred(std::mem::take(&mut deferred));
            let left = deadline.map(|d| d.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                let error = Error::new(ReturnType::TimeoutExpired, Subtype::None, "the time is over");
                break Err(WaitError { error, more });
            }
            if !armed {
                // Only a wait that finds nothing arms the CQ. It then looks once more, because
                // completions that finished before the CQ was armed raise no event.
                let told = self.drain_channel();
                notified |= told && solicited;
                if let Err(error) = self.arm_to_wait(solicited) {
                    break Err(bare(error));
                }
                armed = true;
                continue;
            }
            // From here on only an event that notifies ends the wait.
            notified = false;
            self.queue().counts.blocked += 1;
            match self.block(left) {
                Ok(device) => notified |= device && solicited,
                Err(error) => break Err(WaitError { error, more }),
            }
            armed = false;
        };
        self.run_deferred(deferred);
        outcome
    }

    fn drain_channel(&self) -> bool {
        let mut any = false;
        if let Some(channel) = &self.channel {
            while let Ok(Some(token)) = channel.next_event() {
                let mut queue = self.queue();
                queue.alert.disarmed();
                let for_consumer =
                    queue.cno.is_some() && queue.enabled || self.waiting.load(Ordering::Acquire);
                queue.counts.completion += u64::from(for_consumer);
                if let Some(cq) = &mut queue.cq {
                    cq.event(token);
                }
                any = true;
            }
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
                return Err(Error::new(ReturnType::InterruptedCall, Subtype::None, "a signal came"));
            }
            Err(errno) => {
                let text = format!("ppoll: {errno}");
                return Err(Error::new(ReturnType::InternalError, Subtype::None, text));
            }
        }
        let readable = |fd: &PollFd<'_>| fd.any().unwrap_or(true);
        let (woken, device) = (readable(&fds[0]), fds.get(1).is_some_and(readable));
        if woken {
            let _ = self.wake.read();
        }
        Ok(device && self.drain_channel())
    }
}
