//! Events that the device raises for the progress thread about an EVD on which no thread waits.
//!
//! A completion can cause events on other EVDs: a failed completion breaks its connection, and a
//! receive of an EP with a high watermark may exceed that watermark. A consumer that waits for
//! those events may never look at this EVD. The progress thread therefore watches the EVD's
//! channel. The CQ is armed:
//!
//! - for failures, once an EP is connected whose requests, or whose receives without an SRQ,
//!   complete here. (The device reports a broken SRQ EP by a separate event, LAST_WQE_REACHED.)
//!   Failed completions raise what verbs call solicited events. So do messages whose sender asked
//!   for such an event. Other completions cost nothing.
//! - for every completion, while an EP here has a high watermark that its next receive exceeds. The
//!   same holds on rxe, where a failed request does not raise a solicited event.
//!
//! If receives here notify only when solicited, the CQ is armed only for solicited events: a waiter
//! could not tell the two kinds of event apart (R234). A message that exceeds a watermark is then
//! noticed with the next solicited or failed receive. The CQ is not armed before a connection:
//! dat_ep_modify can still change how receives notify, and rxe cannot disarm a CQ.
//!
//! An event disarms the CQ. The progress thread then harvests, and arms the CQ again after
//! [`REARM_TIME`]. Traffic therefore wakes the thread at most once in that time; without
//! completions the thread sleeps. A thread that waits on the EVD sees every completion itself, so a
//! wait that blocks takes the channel from the progress thread. The end of the wait gives the
//! channel back.
//!
//! An EVD that is too short needs no such event: it overflows only when completions are harvested.
//! Until then the completions stay in the CQ, which has room for all of them.

use super::EvdInner;
use super::arming::Armed;
use crate::Result;
use crate::device::Timer;
use crate::types::CompletionFlags;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How long a CQ stays disarmed after an event that only the progress thread wanted.
const REARM_TIME: Duration = Duration::from_millis(2);

impl EvdInner {
    /// Gives the channel to the progress thread and arms the CQ as the CNO, the waiter and the EPs
    /// require. Returns true if the CQ was armed for the progress thread alone: completions that
    /// are in the CQ already then raise no event.
    pub(super) fn watch(&self) -> Result<bool> {
        let Some(channel) = &self.channel else { return Ok(false) };
        let mut queue = self.queue();
        // Without a DTO stream, it is unknown which completions notify.
        let for_cno = queue.cno.is_some() && queue.enabled && queue.has_dtos();
        let wanted = if for_cno {
            Armed::to_notify(queue.has(CompletionFlags::SOLICITED_WAIT))
        } else {
            queue.wanted()
        };
        let on = wanted != Armed::Nothing && !self.waiting.load(Ordering::Acquire);
        if on != queue.alert.watched {
            self.device.reactor.watch(self.id.0, channel.as_fd(), on)?;
            queue.alert.watched = on;
        }
        if !on || (!for_cno && queue.alert.armed >= wanted) {
            return Ok(false);
        }
        queue.arm(wanted)?;
        Ok(!for_cno)
    }

    /// Arms the CQ for a thread that is about to block, and takes the channel from the progress
    /// thread.
    pub(super) fn arm_to_wait(&self, solicited: bool) -> Result<()> {
        let Some(channel) = &self.channel else { return Ok(()) };
        let mut queue = self.queue();
        if queue.alert.watched {
            self.device.reactor.watch(self.id.0, channel.as_fd(), false)?;
            queue.alert.watched = false;
        }
        queue.counts.notify += 1;
        self.interrupted.store(true, Ordering::Relaxed);
        queue.arm(Armed::to_notify(solicited))
    }

    /// Ends a wait. If the wait armed the CQ, the progress thread takes the channel again.
    pub(super) fn waited(&self) {
        if self.interrupted.load(Ordering::Relaxed) {
            self.interrupted.store(false, Ordering::Relaxed);
            self.rearm_later();
        }
    }

    /// Makes the progress thread arm the CQ after [`REARM_TIME`], if the EVD needs an armed CQ.
    pub(super) fn rearm_later(&self) {
        let mut queue = self.queue();
        if queue.alert.scheduled || queue.wanted() == Armed::Nothing {
            return;
        }
        queue.alert.scheduled = true;
        drop(queue);
        self.device.reactor.certainly_after_at(REARM_TIME, self.id.0, Timer::Rearm);
    }

    /// Handles [`Timer::Rearm`]; runs on the progress thread.
    pub(crate) fn rearm(&self) {
        self.queue().alert.scheduled = false;
        // The end of a wait sets the timer again.
        if !self.waiting.load(Ordering::Acquire) {
            self.watch_and_look();
        }
    }

    /// Watches the EVD, and harvests the completions that finished before the CQ was armed.
    pub(crate) fn watch_and_look(&self) {
        match self.watch() {
            Ok(true) => self.look(),
            Ok(false) => {}
            Err(error) => tracing::error!(%error, "cannot arm or watch an EVD"),
        }
    }

    /// Harvests, so that completions cause their events on other EVDs.
    pub(super) fn look(&self) {
        if let Err(error) = self.harvest_now() {
            tracing::error!(%error, "cannot harvest an EVD");
        }
    }

    /// See [`Alert::mark`].
    pub(crate) fn mark(&self, qpn: u32, on: bool) {
        self.queue().alert.mark(qpn, on);
    }

    /// Called when an EP connects that reports failures only by its completions on this EVD.
    pub(crate) fn expect_failures(&self) {
        self.queue().alert.expect_failures();
        self.watch_and_look();
    }
}
