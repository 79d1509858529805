//! How many receives an EP holds, and the high watermarks that look at that number.

use super::Control;
use super::{EpInner, RecvCounts};
use crate::event_data::{AsyncEvent, AsyncKind, AsyncObject, reason};
use crate::types::{Count, EpState, VALUE_UNKNOWN};
use bitflags::bitflags;
use std::sync::Arc;
use std::sync::atomic::Ordering;

bitflags! {
    /// Why a receive may mean more than its own completion.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(super) struct RecvHooks: u8 {
        /// The next receive of this SRQ EP exceeds a high watermark.
        const MARKED = 1;
        /// The connection is accepted and not confirmed: a message confirms it.
        const UNCONFIRMED = 2;
        /// They are datagrams.
        const DATAGRAMS = 4;
    }
}

impl EpInner {
    pub(crate) fn recv_counts(&self) -> RecvCounts {
        let n = if self.srq.is_none() {
            self.receives.lock().unwrap().ring.len() as Count
        } else {
            match self.state() {
                EpState::Connected | EpState::DisconnectPending => VALUE_UNKNOWN,
                // Whole messages arrive at once, but between the device's two looks nobody can tell.
                EpState::Unconnected if self.is_ud() => VALUE_UNKNOWN,
                EpState::Disconnected if !self.control.lock().unwrap().drained => VALUE_UNKNOWN,
                _ => 0,
            }
        };
        RecvCounts { buffers: n, span: n }
    }

    /// Whether a receive may mean more than its own completion.
    pub(crate) fn watches_receives(&self) -> bool {
        self.watch.load(Ordering::Acquire) != 0
    }

    pub(super) fn set_hook(&self, why: RecvHooks, on: bool) {
        if on {
            self.watch.fetch_or(why.bits(), Ordering::AcqRel);
        } else {
            self.watch.fetch_and(!why.bits(), Ordering::AcqRel);
        }
    }

    /// Whether the next receive exceeds a high watermark. Of a plain EP, it is the post that may.
    pub(crate) fn is_marked(&self) -> bool {
        self.watch.load(Ordering::Acquire) & RecvHooks::MARKED.bits() != 0
    }

    /// The marks have changed, or one has been exceeded. An SRQ EP holds at most one buffer.
    pub(super) fn watch_marks(&self, control: &Control) {
        let on = self.srq.is_some() && control.exceeds(1);
        if on != self.is_marked() {
            self.set_hook(RecvHooks::MARKED, on);
            self.recv_evd.mark(self.qp().num(), on);
        }
    }

    /// A connection comes up. What breaks it is told by failed completions, and of an SRQ EP's receives by the device.
    pub(crate) fn expect_failures(&self) {
        if self.srq.is_none() {
            self.recv_evd.expect_failures();
        } else if self.is_marked() {
            self.recv_evd.watch_and_look();
        }
        self.request_evd.expect_failures();
    }

    /// An SRQ EP has completed a receive, so it held one.
    pub(crate) fn took_one(self: &Arc<Self>) {
        if self.srq.is_some() {
            self.count_reached(1);
        }
    }

    /// Compares the receive count of a plain EP with its marks.
    pub(crate) fn check_marks(self: &Arc<Self>) {
        if self.srq.is_none() {
            let n = self.receives.lock().unwrap().ring.len() as Count;
            self.count_reached(n);
        }
    }

    fn count_reached(self: &Arc<Self>, n: Count) {
        let mut control = self.control.lock().unwrap();
        let soft = control.soft_trips(n);
        let hard = control.hard_trips(n);
        self.watch_marks(&control);
        drop(control);
        if soft {
            self.ia.push_async(AsyncEvent {
                kind: AsyncKind::Notice,
                object: AsyncObject::Ep(self.id),
                context: self.context.load(Ordering::Relaxed),
                reason: reason::EP_SOFT_HIGH_WATERMARK,
            });
        }
        if hard {
            self.failed();
        }
    }
}
