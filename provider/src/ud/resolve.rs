//! How UD EPs resolve each other: rdma_cm ids of the UDP port space, one for each request.
//!
//! The active side learns the peer's QP and the route from the answer. The passive side knows the
//! peer's QP and address from the request. After it has sent its answer, it resolves the route back
//! with a CM id of its own.

use super::sidr::{Reply, ReplyCache, SidrRequester};
use crate::conn::check_private_data;
use crate::device::{ROUTE_TIME, Timer, Tries};
use crate::ep::EpInner;
use crate::ep::ud_state::{PendingResolve, Side, UdState};
use crate::event_data::{ConnectionEventKind as Failure, DatagramEventKind as Kind};
use crate::memory::headroom;
use crate::types::{ConnQual, EpState, port_of};
use crate::{Error, IaCounter, Result, ReturnType, Subtype};
use rxe_fallback::{Ah, AhAttr, CmEvent, CmEventKind, CmId, PortSpace};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

impl EpInner {
    /// Sends a datagram request to a service point, to learn the QP of a peer's EP.
    pub(crate) fn connect_datagrams(
        self: &Arc<Self>,
        ud: &UdState,
        remote: IpAddr,
        qual: ConnQual,
        timeout: Option<Duration>,
        private_data: &[u8],
    ) -> Result<()> {
        let state = self.state();
        if state != EpState::Unconnected {
            return Err(Error::state(state.subtype(), "only an unconnected EP can connect"));
        }
        let to = SocketAddr::new(remote, port_of(qual));
        match self.start_resolve(ud, to, Side::Active(private_data.to_vec())) {
            Ok(token) => {
                if let Some(timeout) = timeout {
                    let timer = Timer::GiveUp(token);
                    if let Err(error) = self.device.reactor.after(timeout, Arc::downgrade(self), timer) {
                        drop(self.take_pending(ud, token));
                        return Err(error);
                    }
                }
            }
            Err(NotStarted::No(error)) => return Err(error),
            // A missing route is reported by an event, not as an error of the call.
            Err(NotStarted::Unreachable) => {
                self.device.count(IaCounter::CmErr);
                self.datagram_event(Kind::Failed(Failure::Unreachable), Vec::new(), 0);
            }
        }
        self.control.lock().unwrap().calls.connects += 1;
        Ok(())
    }

    /// Answers a request with this EP's QP, and resolves the route to the requester.
    ///
    /// Returns false if the route cannot be resolved: the caller then calls
    /// [`EpInner::requester_is_unreachable`].
    pub(crate) fn accept_datagrams(
        self: &Arc<Self>,
        id: &CmId,
        requester: SidrRequester,
        requested: &[u8],
        private_data: &[u8],
    ) -> Result<bool> {
        self.check()?;
        check_private_data(private_data, 3)?;
        headroom()?;
        let control = self.control.lock().unwrap();
        let state = self.state();
        let Some(ud) =
            self.ud.as_ref().filter(|_| state != EpState::Disconnected && state != EpState::Reserved)
        else {
            return Err(Error::state(
                state.subtype(),
                "a datagram request is accepted with an unconnected EP, or with the EP that came with it",
            ));
        };
        let peer = id.peer_addr().ok_or_else(Error::request_gone)?;
        id.accept(&self.datagram_param(private_data))
            .map_err(|error| Error::request_gone().because(error))?;
        let answer = Reply::Accepted(Arc::downgrade(self), private_data.to_vec());
        ReplyCache::all().remember(peer.ip(), requester, answer);
        self.set_state(EpState::Unconnected);
        drop(control);
        let side = Side::Passive(requester.qpn, requested.to_vec());
        let resolving = self.start_resolve(ud, peer, side);
        if let Err(error) = &resolving {
            tracing::warn!(?error, %peer, ep = self.id.0, "cannot resolve the route back to the requester");
            self.device.count(IaCounter::CmErr);
        }
        Ok(resolving.is_ok())
    }

    /// Reports that the route back to the requester cannot be resolved. An agent may run here: the
    /// caller holds no lock.
    pub(crate) fn requester_is_unreachable(&self, requested: &[u8]) {
        self.datagram_event(Kind::Failed(Failure::Unreachable), requested.to_vec(), 0);
    }

    /// Starts to resolve the route. Returns the token of the CM id.
    fn start_resolve(self: &Arc<Self>, ud: &UdState, to: SocketAddr, side: Side) -> Result<u64, NotStarted> {
        headroom().map_err(NotStarted::No)?;
        let opened = self.device.cm.open_id(PortSpace::Udp, Some(self.cm_handler()));
        let (token, id) = opened.map_err(NotStarted::No)?;
        let from = SocketAddr::new(self.device.attr.address, 0);
        // Held until the CM id is in the table, because its first event may arrive before this call
        // returns.
        let mut state = ud.0.lock().unwrap();
        if let Err(error) = state.pending.try_reserve(1) {
            drop(state);
            self.device.cm.forget(token);
            return Err(NotStarted::No(error.into()));
        }
        let (tries, limit) = Tries::begin();
        if let Err(error) = id.resolve_addr(Some(from), to, limit) {
            drop(state);
            self.device.cm.forget(token);
            if error.errno() == libc::ENOMEM {
                return Err(NotStarted::No(Error::verb(Subtype::ResourceMemory, error)));
            }
            if matches!(error.errno(), libc::EINVAL | libc::EAFNOSUPPORT) {
                let sub = Subtype::InvalidAddressUnsupported;
                let text = format!("{} cannot be reached from {}", to.ip(), from.ip());
                return Err(NotStarted::No(Error::new(ReturnType::InvalidAddress, sub, text).because(error)));
            }
            tracing::debug!(%error, %to, "no route");
            return Err(NotStarted::Unreachable);
        }
        state.known = true;
        state.pending.insert(token, PendingResolve { id, remote: to, tries, side });
        Ok(token)
    }

    /// Handles an event of one of the CM ids. Runs on the progress thread.
    pub(crate) fn on_datagram_cm(self: &Arc<Self>, ud: &UdState, event: &CmEvent) {
        use CmEventKind as K;
        let id = match ud.0.lock().unwrap().pending.get(&event.token) {
            Some(pending) => pending.id.clone(),
            None => return,
        };
        let outcome = match event.kind {
            K::AddrResolved => match id.device_name() {
                Some(name) if name != self.device.context.name() => {
                    self.resolve_failed(event.token, Failure::Unreachable);
                    Ok(())
                }
                _ => id.resolve_route(ROUTE_TIME),
            },
            K::RouteResolved => self.route_known(ud, event.token, &id),
            K::Established => match event.datagrams {
                Some(peer) => self.resolved(ud, event.token, &peer.path, peer.qp_num, &event.private_data),
                None => Ok(()),
            },
            K::Unreachable if event.rejected_by_consumer() => {
                if self.take_pending(ud, event.token).is_some() {
                    self.device.count(IaCounter::CmUserRejRx);
                    self.datagram_event(Kind::Rejected, event.private_data.clone(), 0);
                }
                Ok(())
            }
            K::Unreachable if event.status == -libc::ETIMEDOUT => {
                self.resolve_failed(event.token, Failure::TimedOut);
                Ok(())
            }
            // No service point listens there, or none for datagrams.
            K::Unreachable | K::Rejected | K::ConnectError => {
                tracing::info!(
                    ep = self.id.0,
                    status = event.status,
                    "no service point takes datagram requests there"
                );
                self.resolve_failed(event.token, Failure::NonPeerRejected);
                Ok(())
            }
            K::AddrError if event.status == -libc::ETIMEDOUT => {
                self.peer_unanswered(ud, event.token, &id);
                Ok(())
            }
            K::AddrError | K::RouteError => {
                self.resolve_failed(event.token, Failure::Unreachable);
                Ok(())
            }
            K::DeviceRemoval => {
                self.resolve_failed(event.token, Failure::Unreachable);
                self.failed();
                Ok(())
            }
            _ => Ok(()),
        };
        if let Err(error) = outcome {
            tracing::warn!(%error, ep = self.id.0, "cannot resolve a peer");
            self.resolve_failed(event.token, Failure::NonPeerRejected);
        }
    }

    /// No host has answered in time: tries again, or gives up.
    fn peer_unanswered(self: &Arc<Self>, ud: &UdState, token: u64, id: &CmId) {
        let mut state = ud.0.lock().unwrap();
        let Some(pending) = state.pending.get_mut(&token) else { return };
        let (to, limit) = (pending.remote, pending.tries.next_limit());
        drop(state);
        let from = SocketAddr::new(self.device.attr.address, 0);
        if limit.is_none_or(|limit| id.resolve_addr(Some(from), to, limit).is_err()) {
            self.resolve_failed(token, Failure::Unreachable);
        }
    }

    /// The route is resolved. The active side now sends its request; the passive side is done.
    fn route_known(self: &Arc<Self>, ud: &UdState, token: u64, id: &CmId) -> Result<(), rxe_fallback::Error> {
        let mut state = ud.0.lock().unwrap();
        let Some(pending) = state.pending.get_mut(&token) else { return Ok(()) };
        match &mut pending.side {
            Side::Active(data) => {
                let data = std::mem::take(data);
                drop(state);
                let request = SidrRequester::new(self.qp().num()).encode(&data);
                id.connect(&self.datagram_param(&request))?;
                self.device.count(IaCounter::CmAhReqTx);
                Ok(())
            }
            Side::Passive(qpn, _) => {
                let qpn = *qpn;
                drop(state);
                self.resolved(ud, token, &id.path(&self.device.context)?, qpn, &[])
            }
        }
    }

    /// Reports the address handle, once the peer's QP and the route are known.
    fn resolved(
        self: &Arc<Self>,
        ud: &UdState,
        token: u64,
        path: &AhAttr,
        qpn: u32,
        answer: &[u8],
    ) -> Result<(), rxe_fallback::Error> {
        let pd = self.pd();
        let ah = Ah::create(&pd, path)?;
        let Some(PendingResolve { remote, side, .. }) = self.take_pending(ud, token) else { return Ok(()) };
        let (active, private_data) = match side {
            Side::Active(_) => (true, answer.to_vec()),
            Side::Passive(_, data) => (false, data),
        };
        let issued = self.issue_address_handle(ah, qpn, remote.ip(), token);
        // An EP that was closed meanwhile has cleared its tables before this.
        if self.check().is_err() {
            self.close_datagrams();
            return Ok(());
        }
        let peer = match issued {
            Ok(peer) => peer,
            Err(error) => {
                tracing::error!(%error, ep = self.id.0, "no memory for an address handle");
                self.device.count(IaCounter::CmErr);
                self.datagram_event(Kind::Failed(Failure::NonPeerRejected), private_data, 0);
                return Ok(());
            }
        };
        self.device.count(IaCounter::CmAhResolved);
        self.datagram_event(Kind::Established { peer, active }, private_data, token);
        Ok(())
    }

    /// Removes a resolution that has ended from the table.
    fn take_pending(&self, ud: &UdState, token: u64) -> Option<PendingResolve> {
        let pending = ud.0.lock().unwrap().pending.remove(&token);
        if pending.is_some() {
            self.device.cm.forget(token);
        }
        pending
    }

    /// Reports that the peer has not answered in time, or that the request could not be sent.
    pub(crate) fn resolve_failed(self: &Arc<Self>, token: u64, why: Failure) {
        if let Some(ud) = &self.ud
            && let Some(pending) = self.take_pending(ud, token)
        {
            let private_data = match pending.side {
                Side::Active(_) => Vec::new(),
                Side::Passive(_, data) => data,
            };
            self.device.count(match why {
                Failure::TimedOut => IaCounter::CmErrTimeout,
                Failure::NonPeerRejected => IaCounter::CmErrRefused,
                _ => IaCounter::CmErr,
            });
            self.datagram_event(Kind::Failed(why), private_data, 0);
        }
    }
}

/// Why the resolution could not be started.
#[derive(Debug)]
enum NotStarted {
    No(Error),
    Unreachable,
}
