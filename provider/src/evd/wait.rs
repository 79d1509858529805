//! Waiting: how a thread sleeps on an EVD, and what wakes it or triggers the CNO.

use super::{Aftermath, EvdInner, WaitError, Waited};
use crate::cno::CnoInner;
use crate::event::{Event, EventData};
use crate::types::{CompletionFlags, Count};
use crate::{Error, Result, ReturnType, Subtype};
use nix::poll::{PollFd, PollFlags};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

impl EvdInner {
    /// Queues an event that is no completion, and tells whoever waits for it.
    pub(crate) fn push(&self, event: EventData) {
        let mut queue = self.queue();
        if !self.live.load(Ordering::Acquire) {
            return;
        }
        queue.others.push_back(event);
        queue.notified = true;
        let cno = queue.cno_if_enabled();
        drop(queue);
        self.announce(cno);
    }

    /// A failed or flushed completion may be in the CQ of an EVD that waits for solicited ones only (R238): look again.
    pub(crate) fn poke(&self) {
        if self.waiting.load(Ordering::Acquire) {
            self.wake_waiter();
        } else if let Some(cno) = self.cno_with_news() {
            cno.trigger(self.id);
        }
    }

    /// The CNO, if something that may trigger it is in the queue, or in the CQ.
    fn cno_with_news(&self) -> Option<Arc<CnoInner>> {
        let mut queue = self.queue();
        let cno = queue.cno_if_enabled()?;
        let after = match self.harvest(&mut queue) {
            Ok(after) => after,
            Err(error) => {
                tracing::error!(%error, "could not look at an EVD");
                return None;
            }
        };
        let news = queue.notified && queue.len() > 0;
        drop(queue);
        self.settle(after);
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
        // Full (EAGAIN) means that a wake-up is already there.
        let _ = self.wake.write(1);
    }

    /// Tells the progress thread to watch the channel, or not, according to CNO and waiter. Without a DTO stream there is
    /// nothing to watch, nor is it known which completions notify.
    pub(super) fn watch(&self) -> Result<()> {
        let Some(channel) = &self.channel else { return Ok(()) };
        let queue = self.queue();
        let on =
            queue.cno.is_some() && queue.enabled && queue.has_dtos() && !self.waiting.load(Ordering::Acquire);
        let solicited = queue.has(CompletionFlags::SOLICITED_WAIT);
        drop(queue);
        self.ia.progress.watch_evd(self.id, channel.as_fd(), on)?;
        if on { self.arm(solicited) } else { Ok(()) }
    }

    /// The progress thread saw the channel readable: trigger the CNO, and arm again first so that nothing is missed.
    ///
    /// A waiter may have come and gone with what the channel told of, and unsignalled completions trigger nothing; which
    /// ones are solicited only the device knows.
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
        let Some(cno) = cno else { return };
        if let Err(error) = self.arm(solicited) {
            tracing::error!(%error, "could not arm a CQ");
        }
        if (told && solicited) || self.cno_with_news().is_some() {
            cno.trigger(self.id);
        }
    }

    pub(super) fn wait(&self, timeout: Option<Duration>, threshold: Count) -> Result<Waited, WaitError> {
        let bare = |error| WaitError { error, more: 0 };
        self.check().map_err(bare)?;
        let threshold = self.check_threshold(threshold).map_err(bare)?;
        if self.waiting.swap(true, Ordering::AcqRel) {
            let error = Error::state(Subtype::InvalidStateEvdWaiter, "another thread waits on this EVD");
            return Err(bare(error));
        }
        let has_cno = self.queue().cno.is_some();
        if has_cno && let Err(error) = self.watch() {
            self.waiting.store(false, Ordering::Release);
            return Err(bare(error));
        }
        let outcome = self.wait_inside(timeout, threshold);
        self.waiting.store(false, Ordering::Release);
        if has_cno && let Err(error) = self.watch() {
            tracing::error!(%error, "could not watch an EVD again");
        }
        outcome
    }

    fn arm(&self, solicited: bool) -> Result<()> {
        self.queue().cq.as_mut().map_or(Ok(()), |cq| cq.arm(solicited))
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

    fn wait_inside(&self, timeout: Option<Duration>, threshold: usize) -> Result<Waited, WaitError> {
        let bare = |error| WaitError { error, more: 0 };
        // A timeout too far away to be a date is for ever.
        let deadline = timeout.and_then(|t| Instant::now().checked_add(t));
        let mut after = Aftermath::default();
        // Whatever was there before the call counts, notifying or not (R246); so the first look is one at everything.
        let mut notified = true;
        self.drain_channel();
        let outcome = loop {
            let solicited = self.queue().has(CompletionFlags::SOLICITED_WAIT);
            if timeout != Some(Duration::ZERO)
                && let Err(error) = self.arm(solicited)
            {
                break Err(bare(error));
            }
            let mut queue = self.queue();
            if !self.live.load(Ordering::Acquire) {
                break Err(bare(Error::new(ReturnType::Abort, Subtype::None, "the EVD was freed")));
            }
            if !queue.waitable {
                let sub = Subtype::InvalidStateEvdUnwaitable;
                break Err(bare(Error::state(sub, "the EVD was made unwaitable")));
            }
            match self.harvest(&mut queue) {
                Ok(found) => after.merge(found),
                Err(error) => break Err(bare(error)),
            }
            notified |= std::mem::take(&mut queue.notified);
            if notified && queue.len() >= threshold {
                let more = queue.len() - 1;
                // The queue is not empty: the threshold is at least 1.
                if let Some(data) = queue.pop() {
                    break Ok(Waited { event: Event { evd: self.id, data }, more });
                }
            }
            // From here on a waiter returns only for something that notifies.
            notified = false;
            let more = queue.len();
            drop(queue);
            self.settle(std::mem::take(&mut after));
            let left = deadline.map(|d| d.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                let error = Error::new(ReturnType::TimeoutExpired, Subtype::None, "the time is over");
                break Err(WaitError { error, more });
            }
            match self.block(left) {
                Ok(device) => notified |= device && solicited,
                Err(error) => break Err(WaitError { error, more }),
            }
        };
        self.settle(after);
        outcome
    }

    fn drain_channel(&self) -> bool {
        let mut any = false;
        if let Some(channel) = &self.channel {
            while let Ok(Some(token)) = channel.next_event() {
                if let Some(cq) = &mut self.queue().cq {
                    cq.event(token);
                }
                any = true;
            }
        }
        any
    }

    /// Sleeps until the device or somebody of this process has news; true if the device had.
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
        let _ = self.wake.read();
        Ok(self.drain_channel())
    }
}
