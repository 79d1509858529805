//! How a connection is set up: address, route, request, answer and confirmation; and how the setup
//! fails.

use super::check_private_data;
use crate::device::{ROUTE_TIME, Timer, Tries};
use crate::ep::{Control, EpInner};
use crate::event_data::ConnectionEventKind;
use crate::memory::headroom;
use crate::sync::MutexGuard;
use crate::types::{ConnQual, EpState, port_of};
use crate::{Error, IaCounter, Result, ReturnType, Subtype};
use rxe_fallback::cm::ConnInfo;
use rxe_fallback::{CmEvent, CmEventKind, CmId, ConnParam, PortSpace};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The longest time that an accepted connection may stay unconfirmed.
const ACCEPT_TIME: Duration = Duration::from_secs(30);

impl EpInner {
    /// As [`Ep::connect_with`](crate::Ep::connect_with), to a connection qualifier.
    ///
    /// # Errors
    /// As [`Ep::connect_with`](crate::Ep::connect_with).
    pub fn connect(
        self: &Arc<Self>,
        remote: IpAddr,
        qual: ConnQual,
        timeout: Option<Duration>,
        private_data: &[u8],
    ) -> Result<()> {
        self.check()?;
        check_private_data(private_data, 5)?;
        if let Some(ud) = &self.ud {
            return self.connect_datagrams(ud, remote, qual, timeout, private_data);
        }
        self.ensure_started_over()?;
        let mut control = self.control.lock().unwrap();
        let state = self.state();
        if state != EpState::Unconnected {
            return Err(Error::state(state.subtype(), "only an unconnected EP can connect"));
        }
        let device = &self.device;
        headroom()?;
        let attempt = self.next_attempt();
        if let Some(timeout) = timeout {
            device.reactor.after(timeout, Arc::downgrade(self), Timer::GiveUp(attempt))?;
        }
        let (token, id) = device.cm.open_id(PortSpace::Tcp, Some(self.cm_handler()))?;
        let to = SocketAddr::new(remote, port_of(qual));
        let from = SocketAddr::new(device.attr.address, 0);
        let (tries, limit) = Tries::begin();
        if let Err(error) = id.resolve_addr(Some(from), to, limit) {
            device.cm.forget(token);
            if error.errno() == libc::ENOMEM {
                return Err(Error::verb(Subtype::ResourceMemory, error));
            }
            let malformed = matches!(error.errno(), libc::EINVAL | libc::EAFNOSUPPORT);
            if malformed {
                let sub = Subtype::InvalidAddressUnsupported;
                let text = format!("{remote} cannot be reached from {}", from.ip());
                return Err(Error::new(ReturnType::InvalidAddress, sub, text).because(error));
            }
            // Without a route, the attempt fails: an event reports this.
            device.count(IaCounter::CmErr);
            control.calls.connects += 1;
            self.give_up_setup(control, ConnectionEventKind::Unreachable, Vec::new());
            return Ok(());
        }
        control.cm = Some((token, id));
        control.tries = tries;
        control.remote = Some(to);
        control.local = Some(from);
        control.service = Some((remote, qual));
        control.private_data = private_data.to_vec();
        control.calls.connects += 1;
        self.set_state(EpState::ActiveConnectionPending);
        self.pair.drop_preposted();
        Ok(())
    }

    /// Answers a connection request with this EP.
    ///
    /// The caller calls [`EpInner::expect_failures`] once it holds no lock: this looks for
    /// completions, which may run an agent.
    pub(crate) fn accept(
        self: &Arc<Self>,
        token: u64,
        id: Arc<CmId>,
        asked: &ConnInfo,
        private_data: &[u8],
    ) -> Result<()> {
        check_private_data(private_data, 3)?;
        self.ensure_started_over()?;
        let mut control = self.control.lock().unwrap();
        // With the lock: the EP may be recreated or closed at any time.
        self.check()?;
        let state = self.state();
        let takes_part = matches!(
            state,
            EpState::Unconnected | EpState::PassiveConnectionPending | EpState::TentativeConnectionPending
        );
        if !takes_part {
            return Err(Error::state(state.subtype(), "a request needs an unconnected EP, or its own"));
        }
        headroom()?;
        let timer = Timer::GiveUp(self.next_attempt());
        self.device.reactor.after(ACCEPT_TIME, Arc::downgrade(self), timer)?;
        let qp = self.qp();
        let failed = |e| Error::verb(Subtype::ResourceTep, e);
        let (reads_in, reads_out) = self.rdma_reads();
        let reads_in = reads_in.min(asked.responder_resources);
        let reads_out = reads_out.min(asked.initiator_depth);
        // Done first: once the device is ready, it may take a buffer. That buffer must not be
        // counted as lost with another EP.
        self.may_take_buffers()?;
        if let Err(error) = self.device.to_ready(&qp, &id, Some((reads_in, reads_out)), &self.retry()) {
            self.start_over_after_all(control);
            // An ID that has no QP attributes no longer waits for an answer.
            let gone = error.verb() == "rdma_init_qp_attr" && error.errno() == libc::EINVAL;
            return Err(if gone { Error::request_gone().because(error) } else { failed(error) });
        }
        let param = ConnParam {
            qp_num: qp.num(),
            private_data,
            responder_resources: reads_in,
            initiator_depth: reads_out,
            srq: self.srq.is_some(),
            ..self.device.conn_param()
        };
        // Before the peer can answer: route the ID's events to the EP, and let another thread answer
        // a message.
        self.device.cm.route(token, self.cm_handler());
        self.set_state(EpState::CompletionPending);
        if let Err(error) = id.accept(&param) {
            self.set_state(state);
            self.device.count(IaCounter::CmErr);
            self.device.cm.forget(token);
            self.start_over_after_all(control);
            return Err(failed(error));
        }
        self.device.count(IaCounter::CmRepTx);
        control.local = id.local_addr();
        control.remote = id.peer_addr();
        control.cm = Some((token, id));
        control.drained = false;
        self.pair.drop_preposted();
        Ok(())
    }

    /// Undoes a failed accept: the EP is as before.
    fn start_over_after_all(&self, control: MutexGuard<'_, Control>) {
        self.must_start_over.store(true, Ordering::Release);
        if let Err(error) = self.start_over_under(control) {
            tracing::warn!(%error, ep = self.id.0, "an EP has to start over before its next use");
        }
    }

    /// Returns the QP to its state before an accept that failed, if that is still to be done.
    ///
    /// # Errors
    /// The device refuses again.
    pub(crate) fn ensure_started_over(&self) -> Result<()> {
        if !self.must_start_over.load(Ordering::Acquire) {
            return Ok(());
        }
        let control = self.control.lock().unwrap();
        if !self.must_start_over.load(Ordering::Acquire) {
            return Ok(()); // another thread was faster
        }
        self.start_over_under(control)
    }

    /// Returns the QP to its state before the accept. Then, without the lock, flushes the buffers of
    /// the SRQ that the device lost with ended EPs.
    fn start_over_under(&self, control: MutexGuard<'_, Control>) -> Result<()> {
        self.start_over()?;
        self.must_start_over.store(false, Ordering::Release);
        // The QP was in RESET, so it holds no buffer.
        let ended_on = self.srq.as_ref().filter(|srq| srq.ep_drained(self.id));
        drop(control);
        if let Some(srq) = ended_on {
            srq.flush_lost();
        }
        Ok(())
    }

    /// Records that this EP may take buffers of the SRQ from now on.
    ///
    /// # Errors
    /// No memory for the record.
    fn may_take_buffers(&self) -> Result<()> {
        self.srq.iter().try_for_each(|srq| srq.recv.path.ep_connected(self.id.0, &self.pair.completed_up_to))
    }

    /// Handles an event of the connection manager. Runs on the progress thread.
    pub(crate) fn on_cm(self: &Arc<Self>, event: &CmEvent) {
        use CmEventKind as K;
        if let Some(ud) = &self.ud {
            return self.on_datagram_cm(ud, event);
        }
        let outcome = match event.kind {
            K::AddrResolved => self.address_resolved(event.token),
            K::RouteResolved => self.route_resolved(event.token),
            K::ConnectResponse => self.response(event),
            K::Established => {
                self.established(event.token, event.private_data.clone());
                Ok(())
            }
            K::AddrError if event.status == -libc::ETIMEDOUT => {
                self.address_unanswered(event.token);
                Ok(())
            }
            K::AddrError | K::RouteError | K::Unreachable => {
                self.setup_failed(event.token, ConnectionEventKind::Unreachable, Vec::new());
                Ok(())
            }
            K::Rejected => {
                // 28 means that the peer's consumer rejected the request. Every other status comes
                // from lower layers.
                const CONSUMER_DEFINED: i32 = 28;
                let kind = if event.status == CONSUMER_DEFINED {
                    ConnectionEventKind::PeerRejected
                } else {
                    ConnectionEventKind::NonPeerRejected
                };
                self.setup_failed(event.token, kind, event.private_data.clone());
                Ok(())
            }
            K::ConnectError => {
                self.setup_failed(event.token, ConnectionEventKind::NonPeerRejected, Vec::new());
                Ok(())
            }
            K::Disconnected => {
                self.peer_disconnected(event.token);
                Ok(())
            }
            K::DeviceRemoval => {
                self.failed();
                Ok(())
            }
            _ => Ok(()),
        };
        if let Err(error) = outcome {
            tracing::warn!(%error, ep = self.id.0, "connection set-up failed");
            self.device.count(IaCounter::CmErr);
            self.setup_failed(event.token, ConnectionEventKind::NonPeerRejected, Vec::new());
        }
    }

    /// Returns the ID of the current connection, if the event belongs to that connection.
    fn current(&self, token: u64, want: EpState) -> Option<Arc<CmId>> {
        let control = self.control.lock().unwrap();
        let (now, id) = control.cm.as_ref()?;
        (*now == token && self.state() == want).then(|| id.clone())
    }

    fn address_resolved(self: &Arc<Self>, token: u64) -> Result<(), rxe_fallback::Error> {
        let Some(id) = self.current(token, EpState::ActiveConnectionPending) else { return Ok(()) };
        if id.device_name().is_some_and(|name| name != self.device.context.name()) {
            self.device.count(IaCounter::CmErr);
            self.setup_failed(token, ConnectionEventKind::Unreachable, Vec::new());
            return Ok(());
        }
        id.resolve_route(ROUTE_TIME)
    }

    /// No host has answered in time: tries again, or gives up.
    fn address_unanswered(self: &Arc<Self>, token: u64) {
        let Some(id) = self.current(token, EpState::ActiveConnectionPending) else { return };
        let mut control = self.control.lock().unwrap();
        let (from, to, limit) = (control.local, control.remote, control.tries.next_limit());
        drop(control);
        if let (Some(to), Some(limit)) = (to, limit)
            && id.resolve_addr(from, to, limit).is_ok()
        {
            return;
        }
        self.device.count(IaCounter::CmErrTimeout);
        self.setup_failed(token, ConnectionEventKind::Unreachable, Vec::new());
    }

    fn route_resolved(&self, token: u64) -> Result<(), rxe_fallback::Error> {
        let Some(id) = self.current(token, EpState::ActiveConnectionPending) else { return Ok(()) };
        let (reads_in, reads_out) = self.rdma_reads();
        let mut control = self.control.lock().unwrap();
        control.local = id.local_addr();
        let private_data = std::mem::take(&mut control.private_data);
        drop(control);
        id.connect(&ConnParam {
            qp_num: self.qp().num(),
            private_data: &private_data,
            responder_resources: reads_in,
            initiator_depth: reads_out,
            srq: self.srq.is_some(),
            ..self.device.conn_param()
        })?;
        self.device.count(IaCounter::CmReqTx);
        Ok(())
    }

    fn response(self: &Arc<Self>, event: &CmEvent) -> Result<(), rxe_fallback::Error> {
        let Some(id) = self.current(event.token, EpState::ActiveConnectionPending) else { return Ok(()) };
        let no_memory = |_| rxe_fallback::Error::new("rdma_establish", libc::ENOMEM);
        self.may_take_buffers().map_err(no_memory)?;
        self.device.to_ready(&self.qp(), &id, None, &self.retry())?;
        let mut control = self.control.lock().unwrap();
        if self.state() != EpState::ActiveConnectionPending {
            return Ok(());
        }
        control.drained = false;
        // First: the peer may send as soon as it has the confirmation, and another thread may answer.
        self.set_state(EpState::Connected);
        if let Err(error) = id.establish() {
            self.set_state(EpState::ActiveConnectionPending);
            return Err(error);
        }
        drop(control);
        self.device.count(IaCounter::CmRtuTx);
        self.expect_failures();
        self.device.count(IaCounter::CmActiveEst);
        self.event(ConnectionEventKind::Established, event.private_data.clone());
        self.check_marks();
        Ok(())
    }

    fn established(self: &Arc<Self>, token: u64, private_data: Vec<u8>) {
        let control = self.control.lock().unwrap();
        if self.state() != EpState::CompletionPending || control.cm.as_ref().is_none_or(|(t, _)| *t != token)
        {
            return;
        }
        self.set_state(EpState::Connected);
        drop(control);
        self.device.count(IaCounter::CmPassiveEst);
        self.event(ConnectionEventKind::Established, private_data);
        self.check_marks();
    }

    /// The first message can arrive before the confirmation. Such a message confirms the connection
    /// too.
    pub(crate) fn message_before_confirmation(&self) {
        let control = self.control.lock().unwrap();
        if let Some((_, id)) = &control.cm
            && self.state() == EpState::CompletionPending
        {
            let id = id.clone();
            drop(control);
            if let Err(error) = id.notify_comm_established() {
                tracing::debug!(%error, "the connection manager did not want to know");
            }
        }
    }

    /// A message has been reaped. If the confirmation is still on its way, the connection is
    /// established nevertheless: a consumer that sees the message may answer.
    pub(crate) fn confirmed_by_message(self: &Arc<Self>) {
        if self.state() != EpState::CompletionPending {
            return;
        }
        self.message_before_confirmation();
        let token = self.control.lock().unwrap().cm.as_ref().map(|(token, _)| *token);
        if let Some(token) = token {
            self.established(token, Vec::new());
        }
    }

    /// Ends a connection attempt that failed.
    pub(super) fn setup_failed(
        self: &Arc<Self>,
        token: u64,
        kind: ConnectionEventKind,
        private_data: Vec<u8>,
    ) {
        let control = self.control.lock().unwrap();
        let state = self.state();
        if control.cm.as_ref().is_none_or(|(now, _)| *now != token) {
            return;
        }
        let timed_out = kind == ConnectionEventKind::TimedOut;
        let kind = match state {
            EpState::ActiveConnectionPending => kind,
            EpState::CompletionPending => ConnectionEventKind::AcceptCompletionError,
            _ => return,
        };
        if timed_out {
            self.device.count(IaCounter::CmErrTimeout);
        }
        self.give_up_setup(control, kind, private_data);
    }

    /// Ends a failed setup, with this event. Receives of an EP without an SRQ are flushed; an SRQ EP
    /// has none (R189).
    pub(super) fn give_up_setup(
        self: &Arc<Self>,
        mut control: MutexGuard<'_, Control>,
        kind: ConnectionEventKind,
        private_data: Vec<u8>,
    ) {
        self.set_state(EpState::Disconnected);
        control.drained = false;
        let cm = control.cm.take();
        let _ = self.qp().to_error();
        drop(control);
        if let Some((token, _id)) = cm {
            self.device.cm.forget(token);
        }
        if self.srq.is_some() {
            // The first message of the connection may have arrived already.
            let _ = self.recv_evd.harvest_now();
            self.never_up(kind, private_data);
            self.finish_drain(|| false, true);
        } else {
            self.never_up(kind, private_data);
            self.drain_soon();
        }
        self.recheck_notification();
    }

    pub(crate) fn connect_timed_out(self: &Arc<Self>, attempt: u64) {
        let control = self.control.lock().unwrap();
        let token = control.cm.as_ref().map(|(token, _)| *token);
        let same = self.attempt() == attempt;
        drop(control);
        if let Some(token) = token
            && same
        {
            self.setup_failed(token, ConnectionEventKind::TimedOut, Vec::new());
        }
    }
}
