//! What the device tells the progress thread about an EVD on which no thread waits.
//!
//! A completion can cause events on other EVDs: a failed one breaks its connection, and a receive of
//! an EP with a high watermark may exceed that mark. A consumer who waits for those events may never
//! look at this EVD. The progress thread therefore watches the EVD's channel, and the CQ is armed:
//!
//! - for failures, once an EP is connected whose requests, or whose own receives, complete here. (The
//!   device reports a broken SRQ EP by an event of its own, LAST_WQE_REACHED.) This is what verbs call
//!   solicited events: failed completions, and messages whose sender asked for it. Other completions
//!   cost nothing.
//! - for every completion, while an EP here has a high watermark that its next receive exceeds, and on
//!   rxe, where a failed request is no solicited event.
//!
//! Where receives notify only if solicited, the CQ is armed for nothing else: a waiter could not tell
//! the one event from the other (R234). A message that exceeds a mark is then noticed with the next
//! solicited or failed receive. Nothing is armed before a connection, as until then
//! dat_ep_modify can still change how receives notify, and rxe cannot disarm a CQ.
//!
//! An event disarms the CQ. The progress thread then harvests, and arms the CQ again after
//! [`REARM_TIME`], so that traffic wakes the thread at most once in that time. Without completions
//! nothing happens at all. A thread that waits on the EVD sees every completion itself, so a wait that
//! blocks takes the channel away from the progress thread, and its end gives the channel back.
//!
//! An EVD that is too short needs no alert: it overflows when completions are harvested, and until then
//! they are safe in the CQ, which has room for all.

use super::EvdInner;
use super::queue::Armed;
use crate::Result;
use crate::device::Timer;
use crate::types::CompletionFlags;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How long a CQ stays disarmed after an event that only the progress thread wanted.
const REARM_TIME: Duration = Duration::from_millis(2);

impl EvdInner {
    /// Gives the channel to the progress thread and arms the CQ, as CNO, waiter and EPs require. Returns
    /// whether the CQ was armed for the progress thread alone: then completions that are there
    /// already raise no event.
    pub(super) fn watch(&self) -> Result<bool> {
        let Some(channel) = &self.channel else { return Ok(false) };
        let mut queue = self.queue();
        // Without a DTO stream it is not known which completions notify.
        let for_cno = queue.cno.is_some() && queue.enabled && queue.has_dtos();
        let wanted = if for_cno {
            Armed::to_notify(queue.has(CompletionFlags::SOLICITED_WAIT))
        } else {
            queue.wanted()
        };
        let on = wanted != Armed::Nothing && !self.waiting.load(Ordering::Acquire);
        if on != queue.alert.watched {
            self.ia.reactor.watch(self.id.0, channel.as_fd(), on)?;
            queue.alert.watched = on;
        }
        if !on || (!for_cno && queue.alert.armed >= wanted) {
            return Ok(false);
        }
        queue.arm(wanted)?;
        Ok(!for_cno)
    }

    /// Arms the CQ for a thread that is about to block, and takes the channel from the progress thread.
    pub(super) fn arm_to_wait(&self, solicited: bool) -> Result<()> {
        let Some(channel) = &self.channel else { return Ok(()) };
        let mut queue = self.queue();
        if queue.alert.watched {
            self.ia.reactor.watch(self.id.0, channel.as_fd(), false)?;
            queue.alert.watched = false;
        }
        queue.counts.notify += 1;
        self.interrupted.store(true, Ordering::Relaxed);
        queue.arm(Armed::to_notify(solicited))
    }

    /// A wait is over: if it has blocked, the progress thread takes the channel again.
    pub(super) fn waited(&self) {
        if self.interrupted.load(Ordering::Relaxed) {
            self.interrupted.store(false, Ordering::Relaxed);
            self.rearm_later();
        }
    }

    /// Lets the progress thread arm the CQ again, if that has to be armed.
    pub(super) fn rearm_later(&self) {
        let mut queue = self.queue();
        if queue.alert.scheduled || queue.wanted() == Armed::Nothing {
            return;
        }
        queue.alert.scheduled = true;
        drop(queue);
        self.ia.reactor.certainly_after_at(REARM_TIME, self.id.0, Timer::Rearm);
    }

    /// [`Timer::Rearm`]; runs on the progress thread.
    pub(crate) fn rearm(&self) {
        self.queue().alert.scheduled = false;
        // The end of a wait asks for this again.
        if !self.waiting.load(Ordering::Acquire) {
            self.watch_and_look();
        }
    }

    /// Watches the EVD, and looks for what completed before the CQ was armed.
    pub(crate) fn watch_and_look(&self) {
        match self.watch() {
            Ok(true) => self.look(),
            Ok(false) => {}
            Err(error) => tracing::error!(%error, "could not watch an EVD"),
        }
    }

    /// Harvests, for what the completions cause elsewhere.
    pub(super) fn look(&self) {
        if let Err(error) = self.harvest_now() {
            tracing::error!(%error, "could not look at an EVD");
        }
    }

    /// See [`Alert::mark`].
    pub(crate) fn mark(&self, qpn: u32, on: bool) {
        self.queue().alert.mark(qpn, on);
    }

    /// An EP connects that has no other way to learn of a failure than its completions here.
    pub(crate) fn expect_failures(&self) {
        self.queue().alert.expect_failures();
        self.watch_and_look();
    }
}
