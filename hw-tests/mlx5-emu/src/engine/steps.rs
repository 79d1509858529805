//! When the engine runs, and what it does then.

use super::card::Card;

impl Card {
    /// Does all pending work: doorbells, send queues, timers, frames from other processes, waiting
    /// events.
    pub(crate) fn step(&mut self) {
        if self.dead {
            return;
        }
        self.scan_doorbells();
        self.run_ready();
        self.net.accept();
        self.background();
        if self.faults.active {
            self.release_held();
        }
    }

    /// Timers, other processes, waiting events, receive queues in error.
    #[inline]
    pub(crate) fn background(&mut self) {
        if !self.timers.is_empty() {
            self.run_timers();
            self.run_ready();
        }
        if self.net.active() {
            self.run_net();
            self.run_ready();
        }
        if self.backlogged {
            self.flush_backlog();
        }
        if !self.in_error.is_empty() {
            self.flush_late_receives();
        }
    }

    /// After a post to this QP.
    #[inline]
    pub(crate) fn send_step(&mut self, qpn: u32) {
        let Some(index) = self.qp_by_number(qpn) else { return };
        let (context, page) = (self.qps[index].context, self.qps[index].uar_page);
        self.scan_page(context, page);
        if let Some(slot) = self.contexts[context].uar_slot(page) {
            self.contexts[context].uar_pages[slot].hooked = true;
        }
        // Another thread's QP may have rung the same register since, which keeps one doorbell.
        if self.qps[index].was_rung() {
            self.mark_ready(index);
        }
        self.run_ready();
        self.background();
        self.hooked_steps = self.hooked_steps.wrapping_add(1);
    }

    /// After arming a CQ of this context.
    pub(crate) fn notify_step(&mut self, context: usize) {
        if self.contexts.get(context).is_none() {
            return;
        }
        self.scan_context(context);
        for page in &mut self.contexts[context].uar_pages {
            page.hooked = true;
        }
        self.run_ready();
        self.background();
    }

    /// When a poll found nothing.
    #[inline]
    pub(crate) fn poll_step(&mut self) {
        self.scan_doorbells();
        self.run_ready();
        self.background();
    }

    /// When a driver polls that rings its own doorbells. The pages of its doorbells need no
    /// watching while it does, if this driver's polls are to be relied on.
    pub(crate) fn driver_step(&mut self, reliable: bool) {
        for context in 0..self.contexts.capacity() {
            if !self.scan_context(context) || !reliable {
                continue;
            }
            for page in &mut self.contexts[context].uar_pages {
                page.hooked = true;
            }
            self.hooked_steps = self.hooked_steps.wrapping_add(1);
        }
        self.run_ready();
        self.background();
    }
}
