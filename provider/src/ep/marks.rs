//! The number of receives that an EP holds, and the high watermarks that apply to that number.

use super::Control;
use super::{EpInner, RecvCounts};
use crate::event_data::{AsyncEvent, AsyncKind, AsyncObject, reason};
use crate::queue_pair::RecvHooks;
use crate::types::EpState;
use std::sync::Arc;

impl EpInner {
    pub(crate) fn recv_counts(&self) -> RecvCounts {
        let n = if self.srq.is_none() {
            Some(self.pair.receives.lock().ring.len() as u32)
        } else {
            match self.state() {
                EpState::Connected | EpState::DisconnectPending => None,
                // Whole datagrams arrive at once, but their count is unknown between two harvests.
                EpState::Unconnected if self.is_ud() => None,
                EpState::Disconnected if !self.control.lock().unwrap().drained => None,
                _ => Some(0),
            }
        };
        RecvCounts { buffers: n, span: n }
    }

    /// Handles a change of the watermarks, and an exceeded watermark. An SRQ EP holds at most one
    /// buffer.
    pub(super) fn watch_marks(&self, control: &Control) {
        let on = self.srq.is_some() && control.exceeds(1);
        if on != self.pair.is_marked() {
            self.pair.set_hook(RecvHooks::MARKED, on);
            self.recv_evd.mark(self.pair.qp().num(), on);
        }
    }

    /// Prepares for failures when a connection starts. Failed completions report a broken
    /// connection; for receives of an SRQ EP, a device event does.
    pub(crate) fn expect_failures(&self) {
        if self.srq.is_none() {
            self.recv_evd.expect_failures();
        } else if self.pair.is_marked() {
            self.recv_evd.watch_and_look();
        }
        self.request_evd.expect_failures();
    }

    /// An SRQ EP has completed a receive, so it held one buffer.
    pub(crate) fn took_one(self: &Arc<Self>) {
        if self.srq.is_some() {
            self.count_reached(1);
        }
    }

    /// Compares the receive count of an EP without an SRQ with its watermarks.
    pub(crate) fn check_marks(self: &Arc<Self>) {
        if self.srq.is_none() {
            let n = self.pair.receives.lock().ring.len() as u32;
            self.count_reached(n);
        }
    }

    fn count_reached(self: &Arc<Self>, n: u32) {
        let mut control = self.control.lock().unwrap();
        let soft = control.soft_trips(n);
        let hard = control.hard_trips(n);
        self.watch_marks(&control);
        drop(control);
        if soft {
            let event = AsyncEvent {
                kind: AsyncKind::Notice,
                object: AsyncObject::Ep(self.id),
                context: self.pair.context(),
                reason: reason::EP_SOFT_HIGH_WATERMARK,
            };
            self.device.push_async_of(|| self.exists(), event);
        }
        if hard {
            self.failed();
        }
    }
}
