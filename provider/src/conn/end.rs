//! How a connection ends: disconnect, failure, reset, free.

use crate::device::Timer;
use crate::ep::{EpInner, EpPlace};
use crate::event_data::{AsyncEvent, AsyncKind, AsyncObject, ConnectionEventKind, reason};
use crate::types::{CloseFlags, EpState};
use crate::{Error, IaCounter, Result, Subtype};
use rxe_fallback::QpState;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// rxe writes a receive's completion (and an RDMA Write's last byte) before it sends the acknowledgement, in a kernel thread
/// that can be interrupted in between. A QP that is in error by then sends none, so that the peer's last request is
/// flushed although it has arrived. No event tells; this long a pause lets the kernel thread go on.
const ACKNOWLEDGE_TIME: Duration = Duration::from_millis(1);

/// The other half of it: rxe reads acknowledgements in a kernel thread, too, and where programs poll on every processor the peer's
/// goodbye overtakes them. Requests under way get this long to finish then, and datagrams before their EP goes.
pub(super) const LATE_ACK_TIME: Duration = Duration::from_millis(100);

impl EpInner {
    pub(crate) fn disconnect(self: &Arc<Self>, how: CloseFlags) -> Result<()> {
        self.check()?;
        let mut control = self.control.lock().unwrap();
        let state = self.state();
        match (state, how) {
            (EpState::Disconnected, _) | (EpState::DisconnectPending, CloseFlags::Graceful) => Ok(()),
            (EpState::ActiveConnectionPending | EpState::CompletionPending, _) => {
                let cm = control.cm.take();
                self.set_state(EpState::Disconnected);
                control.drained = self.srq.is_some();
                drop(control);
                self.give_up_setup(cm);
                self.event(ConnectionEventKind::Disconnected, Vec::new());
                Ok(())
            }
            (EpState::Connected, CloseFlags::Graceful) => {
                self.set_state(EpState::DisconnectPending);
                drop(control);
                self.request_evd.harvest_now()?;
                self.finish_graceful();
                Ok(())
            }
            (EpState::Connected | EpState::DisconnectPending, _) => {
                drop(control);
                self.let_acknowledge();
                self.end(ConnectionEventKind::Disconnected);
                Ok(())
            }
            _ => Err(Error::state(state.subtype(), "there is no connection to end")),
        }
    }

    /// Acknowledgements are a matter of a kernel thread, not of the device.
    fn acknowledges_late(&self) -> bool {
        self.ia.context.driver() == "rdma_rxe"
    }

    /// What has arrived should be acknowledged, too, before a connection ends at this end's wish.
    fn let_acknowledge(&self) {
        if self.acknowledges_late() {
            std::thread::sleep(ACKNOWLEDGE_TIME);
        }
    }

    /// Ends a graceful disconnect once all requests are done; else looks again a little later.
    pub(crate) fn finish_graceful(self: &Arc<Self>) {
        if self.state() != EpState::DisconnectPending {
            return;
        }
        if self.pair.requests_drained() {
            self.let_acknowledge();
            self.end(ConnectionEventKind::Disconnected);
        } else {
            let pause = Duration::from_millis(1);
            self.ia.reactor.certainly_after(pause, Arc::downgrade(self), Timer::FinishRequests);
        }
    }

    /// The peer ended the connection, or its process did.
    pub(super) fn peer_disconnected(self: &Arc<Self>, token: u64) {
        let mut control = self.control.lock().unwrap();
        let known = control.cm.as_ref().is_some_and(|(now, _)| *now == token);
        if known {
            control.left = self.attempt();
        }
        drop(control);
        if !known {
            return;
        }
        match self.state() {
            EpState::Connected | EpState::DisconnectPending => {
                // A QP that is in error already has failed before the peer took its leave.
                let broke = matches!(self.qp().state(), Ok(QpState::Error | QpState::Sqe));
                if self.acknowledges_late() && !broke {
                    self.wait_for_acknowledgements();
                    return;
                }
                let kind =
                    if broke { ConnectionEventKind::Broken } else { ConnectionEventKind::Disconnected };
                self.end(kind);
            }
            _ => self.setup_failed(token, ConnectionEventKind::NonPeerRejected, Vec::new()),
        }
    }

    /// The peer has gone, and acknowledgements that it sent before may not have been read yet.
    fn wait_for_acknowledgements(self: &Arc<Self>) {
        let control = self.control.lock().unwrap();
        if self.state() == EpState::Connected {
            self.set_state(EpState::DisconnectPending);
        }
        let attempt = self.attempt();
        drop(control);
        let _ = self.request_evd.harvest_now();
        self.finish_graceful();
        let timer = Timer::LateAcksExpired(attempt);
        self.ia.reactor.certainly_after(LATE_ACK_TIME, Arc::downgrade(self), timer);
    }

    /// They did not come.
    pub(crate) fn late_acks_expired(self: &Arc<Self>, attempt: u64) {
        if self.attempt() == attempt && self.state() == EpState::DisconnectPending {
            self.end(ConnectionEventKind::Disconnected);
        }
    }

    /// A completion or the device says that the connection is broken.
    pub(crate) fn failed(self: &Arc<Self>) {
        if self.is_ud() {
            return self.datagrams_failed();
        }
        if matches!(self.state(), EpState::Connected | EpState::DisconnectPending) {
            self.end(ConnectionEventKind::Broken);
        }
    }

    /// The one way out of a connection: QP to error, the peer told, one event, and for an SRQ EP the asynchronous one that stock
    /// programs wait for (R192).
    fn end(self: &Arc<Self>, kind: ConnectionEventKind) {
        let mut control = self.control.lock().unwrap();
        if !matches!(self.state(), EpState::Connected | EpState::DisconnectPending) {
            return;
        }
        let qp = self.qp();
        if let Err(error) = qp.to_error() {
            tracing::warn!(%error, ep = self.id.0, "could not move a QP to the error state");
        }
        self.set_state(EpState::Disconnected);
        let cm = control.cm.take();
        let answer = control.left == self.attempt();
        // Events of one EP's end stay in one order on both EVDs: pushed under the lock of nobody but in one place.
        drop(control);
        if let Some((token, id)) = cm {
            // First: the answer may be here before the call is back.
            self.ia.linger(token, id.clone());
            let said = id.disconnect();
            self.ia.count_disconnect(said.is_ok(), answer);
            if let Err(error) = said {
                tracing::debug!(%error, ep = self.id.0, "the peer was gone before us");
            }
        }
        if kind == ConnectionEventKind::Broken {
            self.ia.count(IaCounter::CmErrReset);
        }
        self.ia.in_order(|| {
            self.event(kind, Vec::new());
            if self.srq.is_some() {
                self.tell_broken();
            }
        });
        self.recheck_notification();
        self.drain_soon();
    }

    pub(crate) fn tell_broken(&self) {
        self.ia.push_async(AsyncEvent {
            kind: AsyncKind::EpBroken,
            object: AsyncObject::Ep(self.id),
            context: self.pair.context(),
            reason: reason::EP_TRANSFER_TO_ERROR,
        });
    }

    /// The device says that an SRQ EP has taken its last buffer.
    pub(crate) fn last_wqe(self: &Arc<Self>) {
        // That of a UD QP is not waited for, so it may come after a reset.
        if self.is_ud() {
            return;
        }
        self.control.lock().unwrap().last_wqe = true;
        // Only a QP in error gets there: if nobody ended the connection, it broke.
        self.failed();
    }

    pub(super) fn reset(self: &Arc<Self>) -> Result<()> {
        self.check()?;
        match self.state() {
            EpState::Unconnected => return Ok(()),
            EpState::Disconnected => {}
            state => return Err(Error::state(state.subtype(), "only a disconnected EP can be reset")),
        }
        self.drain();
        let failed = |e| Error::verb(Subtype::ResourceTep, e);
        let qp = self.qp();
        qp.to_reset().map_err(failed)?;
        self.pair.forget_pending();
        self.ia.to_init(&qp)?;
        let mut control = self.control.lock().unwrap();
        control.remote = None;
        control.service = None;
        // A UD QP receives again.
        control.drained = !self.is_ud();
        self.set_state(EpState::Unconnected);
        Ok(())
    }

    /// Ends whatever it is doing and takes it out of everything that knows it.
    pub(crate) fn close(self: &Arc<Self>) {
        Self::close_if(&self.place, |_| true);
    }

    /// Closes the EP that this leads to, if it is as wanted. Whoever changes or accepts with it meanwhile either has done so, and the
    /// EP closes as it is then, or finds it closed.
    pub(crate) fn close_if(place: &EpPlace, wanted: impl FnOnce(&Self) -> bool) {
        let closes = place.with(|ep, _| {
            let closes = wanted(ep) && ep.live.swap(false, Ordering::AcqRel);
            closes.then(|| ep.clone())
        });
        if let Some(Some(ep)) = closes {
            ep.end_and_detach();
        }
    }

    fn end_and_detach(self: &Arc<Self>) {
        if self.is_ud() {
            self.let_datagrams_out();
        }
        let mut control = self.control.lock().unwrap();
        let state = self.state();
        let used = !control.drained || !self.pair.is_drained();
        let cm = control.cm.take();
        let answer = control.left == self.attempt();
        self.set_state(EpState::Disconnected);
        control.drained = !used;
        drop(control);
        if used {
            let _ = self.qp().to_error();
        }
        if let Some((token, id)) = cm {
            if matches!(state, EpState::Connected | EpState::DisconnectPending) {
                self.ia.linger(token, id.clone());
                self.ia.count_disconnect(id.disconnect().is_ok(), answer);
            } else {
                self.ia.cm.forget(token);
            }
        }
        if used {
            self.drain();
        }
        self.close_datagrams();
        self.detach();
    }
}
