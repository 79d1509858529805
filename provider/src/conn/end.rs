//! How a connection ends: disconnect, failure, reset, free.

use crate::device::Timer;
use crate::ep::{EpCell, EpInner};
use crate::event_data::{AsyncEvent, AsyncKind, AsyncObject, ConnectionEventKind, reason};
use crate::types::{CloseFlags, EpState};
use crate::{Error, IaCounter, Result};
use rxe_fallback::QpState;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Time for rxe to send an acknowledgement. rxe writes a receive's completion (and an RDMA Write's
/// last byte) before it sends the acknowledgement. Both happen in a kernel thread that can be
/// interrupted in between. If the QP is in error by then, rxe sends no acknowledgement, and the
/// peer's last request is flushed although it has arrived. No event reports this; the pause lets
/// the kernel thread continue.
const ACKNOWLEDGE_TIME: Duration = Duration::from_millis(1);

/// Time for rxe to read acknowledgements, which it also does in a kernel thread. If programs poll
/// on every processor, the peer's disconnect request overtakes the acknowledgements. Requests in
/// progress then get this time to finish. Datagrams get the same time before their EP is freed.
pub(super) const LATE_ACK_TIME: Duration = Duration::from_millis(100);

impl EpInner {
    pub(crate) fn disconnect(self: &Arc<Self>, how: CloseFlags) -> Result<()> {
        self.check()?;
        let control = self.control.lock().unwrap();
        let (state, life) = (self.state(), self.pair.life());
        match (state, how) {
            (EpState::Disconnected, _) | (EpState::DisconnectPending, CloseFlags::Graceful) => Ok(()),
            (EpState::ActiveConnectionPending | EpState::CompletionPending, _) => {
                self.give_up_setup(control, ConnectionEventKind::Disconnected, Vec::new());
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
                self.end_in(Some(life), ConnectionEventKind::Disconnected);
                Ok(())
            }
            _ => Err(Error::state(state.subtype(), "there is no connection to end")),
        }
    }

    /// Whether a kernel thread, and not the device, sends and reads acknowledgements.
    fn acknowledges_late(&self) -> bool {
        self.device.context.driver() == "rdma_rxe"
    }

    /// Lets the kernel acknowledge received messages before this side ends the connection.
    fn let_acknowledge(&self) {
        if self.acknowledges_late() {
            std::thread::sleep(ACKNOWLEDGE_TIME);
        }
    }

    /// Ends a graceful disconnect once all requests are done; otherwise checks again later.
    pub(crate) fn finish_graceful(self: &Arc<Self>) {
        // Read first: while this thread pauses, another may end the connection and reset the EP.
        let life = self.pair.life();
        if self.state() != EpState::DisconnectPending {
            return;
        }
        if self.pair.requests_drained() {
            self.let_acknowledge();
            self.end_in(Some(life), ConnectionEventKind::Disconnected);
        } else {
            let pause = Duration::from_millis(1);
            self.device.reactor.certainly_after(pause, Arc::downgrade(self), Timer::FinishRequests);
        }
    }

    /// The peer, or the end of the peer's process, has ended the connection.
    pub(super) fn peer_disconnected(self: &Arc<Self>, token: u64) {
        let mut control = self.control.lock().unwrap();
        let known = control.cm.as_ref().is_some_and(|(now, _)| *now == token);
        if known {
            control.left = self.attempt();
        }
        let life = self.pair.life();
        drop(control);
        if !known {
            return;
        }
        match self.state() {
            EpState::Connected | EpState::DisconnectPending => {
                // A QP that is in error already failed before the peer disconnected.
                let broke = matches!(self.qp().state(), Ok(QpState::Error | QpState::Sqe));
                if self.acknowledges_late() && !broke {
                    self.wait_for_acknowledgements(life);
                    return;
                }
                let kind =
                    if broke { ConnectionEventKind::Broken } else { ConnectionEventKind::Disconnected };
                self.end_in(Some(life), kind);
            }
            _ => self.setup_failed(token, ConnectionEventKind::NonPeerRejected, Vec::new()),
        }
    }

    /// The peer has disconnected. Acknowledgements that it sent before may not have been read yet.
    fn wait_for_acknowledgements(self: &Arc<Self>, life: u64) {
        let control = self.control.lock().unwrap();
        if self.pair.life() != life {
            return;
        }
        if self.state() == EpState::Connected {
            self.set_state(EpState::DisconnectPending);
        }
        let attempt = self.attempt();
        drop(control);
        let _ = self.request_evd.harvest_now();
        self.finish_graceful();
        let timer = Timer::LateAcksExpired(attempt);
        self.device.reactor.certainly_after(LATE_ACK_TIME, Arc::downgrade(self), timer);
    }

    /// The awaited acknowledgements did not come.
    pub(crate) fn late_acks_expired(self: &Arc<Self>, attempt: u64) {
        let life = self.pair.life();
        if self.attempt() == attempt && self.state() == EpState::DisconnectPending {
            self.end_in(Some(life), ConnectionEventKind::Disconnected);
        }
    }

    /// A completion or the device reports that the connection is broken.
    pub(crate) fn failed(self: &Arc<Self>) {
        self.failed_in(None);
    }

    /// The same of one life of the QP. If the EP was reset since, this has no effect: the thread
    /// that harvested the completion can be late.
    pub(crate) fn failed_in(self: &Arc<Self>, life: Option<u64>) {
        if self.is_ud() {
            return self.datagrams_failed(life);
        }
        if matches!(self.state(), EpState::Connected | EpState::DisconnectPending) {
            self.end_in(life, ConnectionEventKind::Broken);
        }
    }

    /// Lets the kernel answer a message that failed here. rxe writes the completion first, then
    /// sends the negative acknowledgement, then moves the QP to the error state. Without the
    /// acknowledgement, the peer would learn of a disconnect only, and not that its request failed
    /// (R84).
    fn let_answer_failure(&self) {
        let since = Instant::now();
        while self.acknowledges_late() && !self.may_be_in_error() && since.elapsed() < LATE_ACK_TIME {
            std::thread::sleep(Duration::from_micros(50));
        }
    }

    /// A completion reports a failure in this life of the QP.
    pub(crate) fn completed_in_failure(self: &Arc<Self>, life: u64) {
        if !self.is_ud() && self.state() == EpState::Connected {
            self.let_answer_failure();
        }
        self.failed_in(Some(life));
    }

    /// Whether the QP is in the error state or cannot be asked.
    pub(crate) fn may_be_in_error(&self) -> bool {
        self.qp().state().map_or(true, |state| matches!(state, QpState::Error | QpState::Sqe))
    }

    /// Ends a connection; every end passes through this function, except that by a free
    /// ([`EpInner::end_and_detach`]). Moves the QP to error, tells the peer, and pushes one event.
    /// For an SRQ EP, also pushes the asynchronous event that stock programs wait for (R192).
    /// Nothing happens if the QP is not in this life.
    fn end_in(self: &Arc<Self>, life: Option<u64>, kind: ConnectionEventKind) {
        let mut control = self.control.lock().unwrap();
        let ended = !matches!(self.state(), EpState::Connected | EpState::DisconnectPending);
        if ended || life.is_some_and(|life| life != self.pair.life()) {
            return;
        }
        let qp = self.qp();
        if let Err(error) = qp.to_error() {
            tracing::warn!(%error, ep = self.id.0, "could not move a QP to the error state");
        }
        self.set_state(EpState::Disconnected);
        let cm = control.cm.take();
        let answer = control.left == self.attempt();
        // Events are queued after the lock is released. `tell_of` below keeps the events of one
        // EP's end in the same order on both EVDs.
        drop(control);
        if let Some((token, id)) = cm {
            // Done before the call: the answer may arrive before the call returns.
            self.device.linger(token, id.clone());
            let said = id.disconnect();
            self.device.count_disconnect(said.is_ok(), answer);
            if let Err(error) = said {
                tracing::debug!(%error, ep = self.id.0, "the peer was gone before us");
            }
        }
        if kind == ConnectionEventKind::Broken {
            self.device.count(IaCounter::CmErrReset);
        }
        let breaks = self.srq.is_some();
        let connect_evd = self.connect_evd();
        let put = || {
            let event = self.notice_of(kind, Vec::new(), false);
            let lost = connect_evd.as_ref().and_then(|evd| evd.put_notice(event));
            if breaks {
                self.device.put_async(self.broken());
            }
            lost
        };
        // An agent of either EVD may end another connection, so it runs outside `tell_of`.
        if let Some(lost) = self.device.tell_of(|| self.exists(), put) {
            if let Some(evd) = connect_evd {
                evd.announce_notice(lost);
            }
            if breaks {
                self.device.announce_async();
            }
        }
        self.recheck_notification();
        self.drain_soon();
    }

    pub(crate) fn tell_broken(&self) {
        self.device.push_async_of(|| self.exists(), self.broken());
    }

    fn broken(&self) -> AsyncEvent {
        AsyncEvent {
            kind: AsyncKind::EpBroken,
            object: AsyncObject::Ep(self.id),
            context: self.pair.context(),
            reason: reason::EP_TRANSFER_TO_ERROR,
        }
    }

    /// The device reports that an SRQ EP has taken its last buffer in this life of its QP.
    pub(crate) fn last_wqe(self: &Arc<Self>, life: u64) {
        // No code waits for the event of a UD QP, so the event may come after a reset.
        if self.is_ud() {
            return;
        }
        let mut control = self.control.lock().unwrap();
        if life != self.pair.life() {
            return;
        }
        control.last_wqe = true;
        drop(control);
        // Only a QP in error raises this event: if neither side ended the connection, it broke.
        self.failed_in(Some(life));
    }

    pub(super) fn reset(self: &Arc<Self>) -> Result<()> {
        self.check()?;
        match self.state() {
            EpState::Unconnected => return Ok(()),
            EpState::Disconnected => {}
            state => return Err(Error::state(state.subtype(), "only a disconnected EP can be reset")),
        }
        self.drain();
        let outcome = self.reset_drained();
        self.look_at_both();
        outcome
    }

    fn reset_drained(&self) -> Result<()> {
        let _ending = self.ending.lock().unwrap();
        if self.state() != EpState::Disconnected {
            return Ok(()); // another thread was faster
        }
        self.reset_qp()?;
        self.pair.forget_pending();
        self.pair.begin_life();
        self.device.to_init(&self.qp())?;
        let mut control = self.control.lock().unwrap();
        control.remote = None;
        control.service = None;
        control.last_wqe = false;
        // A UD QP receives again after the reset.
        control.drained = !self.is_ud();
        self.set_state(EpState::Unconnected);
        Ok(())
    }

    /// Ends the connection, and removes the EP from every table that refers to it.
    pub(crate) fn close(self: &Arc<Self>) {
        Self::close_if(&self.cell, |_| true);
    }

    /// Closes the EP in this cell if `wanted` accepts it. A concurrent change or accept of the EP
    /// either finishes first, and the EP closes in its new state, or finds the EP closed.
    pub(crate) fn close_if(cell: &EpCell, wanted: impl FnOnce(&Self) -> bool) {
        let closes = cell.with(|ep, _| {
            let closes = wanted(ep) && ep.live.swap(false, Ordering::AcqRel);
            closes.then(|| ep.clone())
        });
        if let Some(Some(ep)) = closes {
            ep.device.finish_telling();
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
        let waits = used && !self.drop_work(state == EpState::Disconnected);
        if waits {
            let _ = self.qp().to_error();
        }
        if let Some((token, id)) = cm {
            if matches!(state, EpState::Connected | EpState::DisconnectPending) {
                self.device.linger(token, id.clone());
                self.device.count_disconnect(id.disconnect().is_ok(), answer);
            } else {
                self.device.cm.forget(token);
            }
        }
        if waits {
            self.drain();
        }
        self.close_datagrams();
        self.detach();
    }
}
