//! Completions of successes without an effect, whose events the consumer takes at once.

use super::{IN_ARC, QueuePair, Request};
use crate::datapath::Path;
use crate::event_data::Success;
use crate::types::DtoOp;
use std::mem::offset_of;

impl QueuePair {
    /// The event of a message that a Send without immediate data has brought.
    #[inline(always)]
    pub(crate) fn message(&self, (cookie, pool): (u64, u32), length: u32) -> Success {
        self.received.add_plain(length);
        Success { ep: self.ep, ep_context: self.context(), cookie, pool, length, op: DtoOp::Receive }
    }

    /// The event of a plain request.
    #[inline(always)]
    pub(crate) fn success(&self, request: &Request) -> Success {
        let Request { cookie, length, op, .. } = *request;
        let pool = request.plain_pool();
        Success { ep: self.ep, ep_context: self.context(), cookie, pool, length, op }
    }

    /// Completes the request that a completion names, and releases its place, if it has an event
    /// without an effect, and is not of the extension. Returns what `event` makes of it; otherwise
    /// `None`, and nothing has changed. Requests before it are suppressed ones of its chain, which
    /// are not signalled: they end with it. `fast`: also `None` if this thread does not own the lock
    /// of the requests.
    #[inline(always)]
    pub(crate) fn reap_request<P: Path, E>(
        &self,
        fast: bool,
        named: u64,
        event: impl FnOnce(&Request) -> E,
    ) -> Option<E> {
        // Without a common drop of the guard, no test is left of whether there is a request.
        let mut requests = if fast {
            self.requests.try_lock_fast_in::<{ IN_ARC + offset_of!(Self, requests) }>()?
        } else {
            self.requests.lock()
        };
        let event = requests.complete_plain::<P, E>(named, event)?;
        drop(requests);
        Some(event)
    }

    /// Completes the request that a success names, if the request is suppressed. Otherwise returns
    /// false, and nothing has changed.
    #[inline(always)]
    pub(crate) fn pass_suppressed<P: Path>(&self, named: u64) -> bool {
        self.requests.lock().complete_suppressed::<P>(named)
    }

    /// Completes the oldest receive of an EP without an SRQ, which the completion names by its
    /// slot. Returns its cookie and pool; `None` for another receive, and nothing has changed.
    /// `fast`: also `None` if this thread does not own the lock of the receives.
    #[inline(always)]
    pub(crate) fn reap_receive(&self, fast: bool, slot: u16) -> Option<(u64, u32)> {
        let mut receives = if fast {
            self.receives.try_lock_fast_in::<{ IN_ARC + offset_of!(Self, receives) }>()?
        } else {
            self.receives.lock()
        };
        let receive = receives.complete(slot)?;
        Some((receive.info.cookie, receive.info.pool))
    }
}
