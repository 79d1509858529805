//! Work requests that the device never completes, and the reset of a QP.

use super::EpInner;
use crate::Subtype;
use crate::event_data::Owner;
use crate::queue_pair::{Credit, Request};
use std::sync::Arc;

impl EpInner {
    /// Flushes a request of a DISCONNECTED EP: immediately, or after the requests that are still in
    /// progress. The ring has a place for it.
    pub(super) fn flush(self: &Arc<Self>, mut request: Request) {
        let mut requests = self.pair.requests.lock();
        requests.posted.add(request.op, request.length.into());
        if !requests.ring.is_empty() {
            request.keep_off_device();
            requests.ring.push(request);
            return;
        }
        requests.ring.hold_place();
        drop(requests);
        let credit = Credit::Request(self.pair.clone());
        self.request_evd.put_flushed(&self.pair, (request.cookie, request.owner()), request.op, credit);
    }

    /// Flushes work requests that the device will never complete: those posted after the connection
    /// had ended, or to a device that forgets them (rxe, for receives posted in error). Unless the
    /// device is known to have stopped, buffers of pools that are on the device are not returned to
    /// their pool: the device may still use them. The caller holds `ending`, and announces the
    /// completions later.
    pub(crate) fn flush_left(self: &Arc<Self>, stopped: bool) {
        let unsafe_to_lend = |owner, on_device| !stopped && on_device && matches!(owner, Owner::Pool(_));
        loop {
            let left = self.pair.receives.lock().ring.take_first();
            let Some(receive) = left else { break };
            if unsafe_to_lend(Owner::of_pool(receive.info.pool), receive.is_on_device()) {
                continue;
            }
            let op = self.pair.receive_op();
            self.recv_evd.put_flushed_quietly(
                &self.pair,
                receive.info.cookie_and_owner(),
                op,
                Credit::Nothing,
            );
        }
        loop {
            let mut requests = self.pair.requests.lock();
            let Some(request) = requests.take_first() else { break };
            requests.unstopped |= !stopped && request.is_on_device();
            requests.ring.hold_place();
            drop(requests);
            if !request.has_event(true) || unsafe_to_lend(request.owner(), request.is_on_device()) {
                self.pair.request_reaped();
                continue;
            }
            let credit = Credit::Request(self.pair.clone());
            self.request_evd.put_flushed_quietly(
                &self.pair,
                (request.cookie, request.owner()),
                request.op,
                credit,
            );
        }
    }

    /// Drops the work requests of an EP that is being freed (R172), so that nothing of the EP is left
    /// to wait for. The device is stopped first, unless the QP is in error and no buffer of a pool
    /// can be in use: destroying the QP stops it as well.
    ///
    /// Returns false if the device has to complete the work requests first: entries of an SRQ return
    /// only by completions, and a QP that cannot be reset may still use its buffers.
    pub(crate) fn drop_work(&self, in_error: bool) -> bool {
        if self.srq.is_some() {
            return false;
        }
        let ending = self.ending.lock().unwrap();
        if !(in_error && self.device.pools.is_empty()) {
            let qp = self.qp();
            if let Err(error) = qp.to_reset() {
                tracing::warn!(%error, ep = self.id.0, "the QP of an EP that is freed cannot be reset");
                return false;
            }
            self.recv_evd.clean(qp.num());
            self.request_evd.clean(qp.num());
            self.pair.abandon_pending(|owner, cookie| self.device.pools.return_unseen(owner, cookie));
        }
        self.control.lock().unwrap().drained = true;
        drop(ending);
        true
    }

    /// Returns the QP to its state before a connection that failed to start. In RESET a device
    /// forgets posted receives, so they are posted again. No request was posted.
    pub(crate) fn start_over(&self) -> crate::Result<()> {
        let qp = self.qp();
        self.recv_evd.while_not_harvested(|clean| {
            let mut receives = self.pair.receives.lock();
            qp.to_reset().map_err(|e| crate::Error::verb(Subtype::ResourceTep, e))?;
            // Removes completions of the old receives: none may be taken for a receive that is
            // posted again.
            clean(qp.num());
            self.device.to_init(&qp)?;
            receives.repeat().map_err(|error| {
                let text = format!("the receives of an EP could not be posted again: {error}");
                crate::Error::resources(Subtype::ResourceTep, text)
            })
        })
    }

    /// Resets the QP, so that the device forgets all work requests, and harvests what they have
    /// completed. The caller holds `ending`, and looks at both EVDs when it has released it.
    pub(crate) fn reset_qp(&self) -> crate::Result<()> {
        self.qp().to_reset().map_err(|e| crate::Error::verb(Subtype::ResourceTep, e))?;
        let harvested = self.recv_evd.harvest_quietly().and_then(|()| self.request_evd.harvest_quietly());
        // Without memory a harvest leaves completions behind.
        let qpn = self.qp().num();
        self.recv_evd.clean(qpn);
        self.request_evd.clean(qpn);
        harvested
    }
}
