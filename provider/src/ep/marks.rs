//! How many receives an EP holds, and the high watermarks that look at that number.

use super::{EpInner, RecvCounts};
use crate::event::{AsyncEvent, AsyncKind, AsyncObject, reason};
use crate::types::{Count, EpState, VALUE_UNKNOWN};
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl EpInner {
    pub(crate) fn recv_counts(&self) -> RecvCounts {
        let n = if self.srq.is_none() {
            self.receives.lock().unwrap().ring.len() as Count
        } else {
            match self.state() {
                EpState::Connected | EpState::DisconnectPending => VALUE_UNKNOWN,
                EpState::Disconnected if !self.control.lock().unwrap().drained => VALUE_UNKNOWN,
                _ => 0,
            }
        };
        RecvCounts { buffers: n, span: n }
    }

    /// Whether a receive may mean more than its own completion: a mark to compare with, or a connection to confirm.
    pub(crate) fn watches_receives(&self) -> bool {
        self.marked.load(Ordering::Acquire) || self.state() == EpState::CompletionPending
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
