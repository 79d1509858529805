//! Draining: how an ended connection gets its work requests completed by the device.

use super::end::LATE_ACK_TIME;
use crate::device::Timer;
use crate::ep::EpInner;
use crate::event_data::ConnectionEventKind;
use crate::types::EpState;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The longest time that the last completions of an ended connection may take.
const DRAIN_TIME: Duration = Duration::from_millis(500);

impl EpInner {
    /// Makes the progress thread check whether all completions have arrived.
    pub(crate) fn drain_soon(self: &Arc<Self>) {
        let timer = Timer::Drain(Instant::now());
        self.device.reactor.certainly_after(Duration::from_millis(20), Arc::downgrade(self), timer);
    }

    /// Looks at both EVDs again: flushed completions notify in every mode (R238), but not every
    /// device raises an event for them.
    pub(crate) fn recheck_notification(&self) {
        self.recv_evd.recheck_notification();
        self.request_evd.recheck_notification();
    }

    /// Checks whether all completions of an ended connection have arrived. Repeated until they
    /// have, or until a time limit.
    pub(crate) fn drain_step(self: &Arc<Self>, since: Instant) {
        if self.state() != EpState::Disconnected {
            return;
        }
        // Read before the harvest: then every completion before the event is harvested.
        let last_wqe = self.control.lock().unwrap().last_wqe;
        let _ = self.recv_evd.harvest_now();
        let _ = self.request_evd.harvest_now();
        let over = since.elapsed() > DRAIN_TIME;
        let is_quiet = || {
            // A UD QP holds no buffer of an SRQ: a datagram takes a whole buffer or none.
            self.pair.is_drained() && (self.srq.is_none() || last_wqe || self.is_ud())
        };
        if !self.finish_drain(is_quiet, over) {
            let timer = Timer::Drain(since);
            self.device.reactor.certainly_after(Duration::from_millis(10), Arc::downgrade(self), timer);
        }
    }

    /// Completes what an ended connection has left, if the device has completed all else
    /// (`is_quiet`) or has to be stopped (`over`). False: not yet.
    ///
    /// The program may see that the EP is DISCONNECTED, and reset it, before this. So all of it
    /// happens under a lock that a reset takes too, and nothing if the EP was reset since.
    pub(super) fn finish_drain(self: &Arc<Self>, is_quiet: impl FnOnce() -> bool, over: bool) -> bool {
        let ending = self.ending.lock().unwrap();
        let control = self.control.lock().unwrap();
        if control.drained || self.state() != EpState::Disconnected {
            return true;
        }
        let quiet = is_quiet();
        if !quiet && !over {
            return false;
        }
        drop(control);
        let stopped = quiet || self.stop_device();
        self.flush_left(stopped);
        let ended_on = self.srq.as_ref().filter(|srq| stopped && srq.ep_drained(self.id));
        self.control.lock().unwrap().drained = true;
        drop(ending);
        self.look_at_both();
        self.recheck_notification();
        if let Some(srq) = ended_on {
            srq.flush_lost();
        }
        if self.attr.lock().unwrap().tells_drained {
            self.event(ConnectionEventKind::Drained, Vec::new());
        }
        true
    }

    /// Does the work that harvests under `ending` have left.
    pub(super) fn look_at_both(&self) {
        let _ = self.recv_evd.harvest_now();
        let _ = self.request_evd.harvest_now();
    }

    /// Stops a device that has not completed all work requests in time: it has forgotten some, or
    /// it is slow. In RESET the device forgets them all and touches no memory. Returns false if the
    /// device may still be using buffers. The caller holds `ending`.
    fn stop_device(&self) -> bool {
        // On a direct SRQ, the device returns buffers only by completions.
        let all_by_completions = self.srq.as_ref().is_some_and(|srq| srq.recv.path.completes_all());
        if all_by_completions && self.pair.is_drained() {
            return true;
        }
        let outcome = self.reset_qp();
        if let Err(error) = &outcome {
            tracing::warn!(%error, ep = self.id.0, "a QP cannot be reset; buffers of pools that it has stay posted");
        }
        outcome.is_ok()
    }

    /// Waits, for a bounded time, until the device has completed all work requests of the EP.
    pub(super) fn drain(self: &Arc<Self>) {
        let since = Instant::now();
        let mut pause = Duration::from_micros(50);
        loop {
            self.drain_step(since);
            if self.control.lock().unwrap().drained || self.state() != EpState::Disconnected {
                return;
            }
            // Not every queue raises an event when all work requests are flushed. Check often at
            // first, then rarely.
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(5));
        }
    }

    /// Waits until posted datagrams are sent, including those with suppressed completions.
    pub(crate) fn let_datagrams_out(&self) {
        let since = Instant::now();
        while self.state() != EpState::Disconnected && since.elapsed() < LATE_ACK_TIME {
            if self.request_evd.harvest_now().is_err() || self.pair.requests_drained() {
                return;
            }
            std::thread::sleep(Duration::from_micros(200));
        }
    }
}
