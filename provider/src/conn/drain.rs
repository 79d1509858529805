//! How an ended connection gets back from the device what it has posted.

use super::end::LATE_ACK_TIME;
use crate::device::Timer;
use crate::ep::EpInner;
use crate::types::EpState;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long the last completions of an ended connection may take.
const DRAIN_TIME: Duration = Duration::from_millis(500);

impl EpInner {
    /// The progress thread looks whether all completions are in.
    pub(crate) fn drain_soon(self: &Arc<Self>) {
        let timer = Timer::Drain(Instant::now());
        self.ia.reactor.certainly_after(Duration::from_millis(20), Arc::downgrade(self), timer);
    }

    /// Flushed completions notify, whatever the mode (R238); not every device says so.
    pub(crate) fn recheck_notification(&self) {
        self.recv_evd.recheck_notification();
        self.request_evd.recheck_notification();
    }

    /// Looks whether all completions of an ended connection are in; called until they are, or for a bounded time.
    pub(crate) fn drain_step(self: &Arc<Self>, since: Instant) {
        if self.state() != EpState::Disconnected {
            return;
        }
        // Read first: what completed before the event is then certain to be harvested.
        let last_wqe = self.control.lock().unwrap().last_wqe;
        let _ = self.recv_evd.harvest_now();
        let _ = self.request_evd.harvest_now();
        let over = since.elapsed() > DRAIN_TIME;
        let mut control = self.control.lock().unwrap();
        if control.drained {
            return;
        }
        // A UD QP holds no buffer of an SRQ: a message takes it whole or not at all.
        let quiet = self.pair.is_drained() && (self.srq.is_none() || last_wqe || self.is_ud());
        if quiet || over {
            control.drained = true;
            drop(control);
            self.recheck_notification();
            let stopped = quiet || self.stop_device();
            self.flush_left(stopped);
            if let Some(srq) = self.srq.as_ref().filter(|_| stopped) {
                srq.ep_drained(self.id);
            }
        } else {
            drop(control);
            let timer = Timer::Drain(since);
            self.ia.reactor.certainly_after(Duration::from_millis(10), Arc::downgrade(self), timer);
        }
    }

    /// The device has not given everything back in time: it has forgotten some of it, or it is slow. In RESET it forgets all and
    /// touches nothing any more. False if it may still be at work.
    pub(super) fn stop_device(&self) -> bool {
        // Of a direct SRQ nothing is given back but by completions.
        let all_by_completions = self.srq.as_ref().is_some_and(|srq| srq.recv.path.completes_all());
        if all_by_completions && self.pair.is_drained() {
            return true;
        }
        let outcome = self.qp().to_reset();
        if let Err(error) = &outcome {
            tracing::warn!(%error, ep = self.id.0, "a QP cannot be reset; buffers of pools that it has stay posted");
        }
        outcome.is_ok()
    }

    /// Waits, for a bounded time, until the device has given everything back that the EP held.
    pub(super) fn drain(self: &Arc<Self>) {
        let since = Instant::now();
        let mut pause = Duration::from_micros(50);
        loop {
            self.drain_step(since);
            if self.control.lock().unwrap().drained {
                return;
            }
            // The device has no event for "all flushed" on every queue; look often at first, then rarely.
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(5));
        }
    }

    /// What was posted is to be sent, also where nobody asked to hear of it. Devices send at once, but rxe in a kernel thread.
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
