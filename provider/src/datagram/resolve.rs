//! How UD EPs find out about each other: rdma_cm ids of the UDP port space, each good for one question.
//!
//! The side that asks learns the peer's QP and the way to it from the answer. The side that answers knows the peer's QP from the
//! request, and its address; the way back it resolves with an id of its own, after the answer has gone out.

use super::ask::{Answer, Answers, Asker};
use super::state::{PendingResolve, Side, Ud};
use crate::conn::{RESOLVE_TIME, check_private_data};
use crate::device::Timer;
use crate::ep::EpInner;
use crate::event_data::{ConnectionEventKind as Failure, DatagramEventKind as Kind};
use crate::memory::headroom;
use crate::types::{ConnQual, EpState, port_of};
use crate::{Error, IaCounter, Result, ReturnType, Subtype};
use rxe_fallback::{Ah, AhAttr, CmEvent, CmEventKind, CmId, PortSpace};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

impl EpInner {
    /// Asks where the EP behind this service is.
    pub(crate) fn connect_datagrams(
        self: &Arc<Self>,
        ud: &Ud,
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
        match self.ask(ud, to, Side::Active(private_data.to_vec())) {
            Ok(token) => {
                if let Some(timeout) = timeout {
                    let timer = Timer::GiveUp(token);
                    if let Err(error) = self.ia.reactor.after(timeout, Arc::downgrade(self), timer) {
                        drop(self.take_question(ud, token));
                        return Err(error);
                    }
                }
            }
            Err(Unasked::No(error)) => return Err(error),
            // No route: an outcome, told by event.
            Err(Unasked::Unreachable) => {
                self.ia.count(IaCounter::CmErr);
                self.datagram_event(Kind::Failed(Failure::Unreachable), Vec::new(), 0);
            }
        }
        self.control.lock().unwrap().calls.connects += 1;
        Ok(())
    }

    /// Answers a request with this EP's QP, and looks for the way to who asked.
    pub(crate) fn accept_datagrams(
        self: &Arc<Self>,
        id: &CmId,
        asker: Asker,
        asked: &[u8],
        private_data: &[u8],
    ) -> Result<()> {
        self.check()?;
        check_private_data(private_data, 3)?;
        headroom()?;
        let control = self.control.lock().unwrap();
        let state = self.state();
        let Some(ud) =
            self.ud.as_ref().filter(|_| state != EpState::Disconnected && state != EpState::Reserved)
        else {
            return Err(Error::state(state.subtype(), "a request needs an unconnected EP, or its own"));
        };
        let gone = || crate::cr::gone();
        let peer = id.peer_addr().ok_or_else(gone)?;
        id.accept(&self.datagram_param(private_data)).map_err(|error| gone().because(error))?;
        let answer = Answer::Accepted(Arc::downgrade(self), private_data.to_vec());
        Answers::all().remember(peer.ip(), asker, answer);
        self.set_state(EpState::Unconnected);
        drop(control);
        let side = Side::Passive(asker.qpn, asked.to_vec());
        if let Err(error) = self.ask(ud, peer, side) {
            tracing::warn!(?error, %peer, ep = self.id.0, "no way back to who asked");
            self.ia.count(IaCounter::CmErr);
            self.datagram_event(Kind::Failed(Failure::Unreachable), asked.to_vec(), 0);
        }
        Ok(())
    }

    /// Starts a question; gives its token.
    fn ask(self: &Arc<Self>, ud: &Ud, to: SocketAddr, side: Side) -> Result<u64, Unasked> {
        headroom().map_err(Unasked::No)?;
        let opened = self.ia.cm.open_id(PortSpace::Udp, Some(self.cm_handler()));
        let (token, id) = opened.map_err(Unasked::No)?;
        let from = SocketAddr::new(self.ia.attr.ia_address, 0);
        // Held until the question is known: its first event may be here before this call is back.
        let mut state = ud.0.lock().unwrap();
        if let Err(error) = state.asking.try_reserve(1) {
            drop(state);
            self.ia.cm.forget(token);
            return Err(Unasked::No(error.into()));
        }
        if let Err(error) = id.resolve_addr(Some(from), to, RESOLVE_TIME) {
            drop(state);
            self.ia.cm.forget(token);
            if error.errno() == libc::ENOMEM {
                return Err(Unasked::No(Error::verb(Subtype::ResourceMemory, error)));
            }
            if matches!(error.errno(), libc::EINVAL | libc::EAFNOSUPPORT) {
                let sub = Subtype::InvalidAddressUnsupported;
                let text = format!("{} cannot be reached from {}", to.ip(), from.ip());
                return Err(Unasked::No(Error::new(ReturnType::InvalidAddress, sub, text).because(error)));
            }
            tracing::debug!(%error, %to, "no route");
            return Err(Unasked::Unreachable);
        }
        state.known = true;
        state.asking.insert(token, PendingResolve { id, remote: to.ip(), side });
        Ok(token)
    }

    /// An event about one of the questions; runs on the progress thread.
    pub(crate) fn on_datagram_cm(self: &Arc<Self>, ud: &Ud, event: &CmEvent) {
        use CmEventKind as K;
        let id = match ud.0.lock().unwrap().asking.get(&event.token) {
            Some(asking) => asking.id.clone(),
            None => return,
        };
        let outcome = match event.kind {
            K::AddrResolved => match id.device_name() {
                Some(name) if name != self.ia.context.name() => {
                    self.datagrams_unanswered(event.token, Failure::Unreachable);
                    Ok(())
                }
                _ => id.resolve_route(RESOLVE_TIME),
            },
            K::RouteResolved => self.way_known(ud, event.token, &id),
            K::Established => match event.datagrams {
                Some(peer) => self.answered(ud, event.token, &peer.path, peer.qp_num, &event.private_data),
                None => Ok(()),
            },
            K::Unreachable if event.rejected_by_consumer() => {
                if self.take_question(ud, event.token).is_some() {
                    self.ia.count(IaCounter::CmUserRejRx);
                    self.datagram_event(Kind::Rejected, event.private_data.clone(), 0);
                }
                Ok(())
            }
            K::Unreachable if event.status == -libc::ETIMEDOUT => {
                self.datagrams_unanswered(event.token, Failure::TimedOut);
                Ok(())
            }
            // Nobody listens there, or not for this.
            K::Unreachable | K::Rejected | K::ConnectError => {
                tracing::info!(
                    ep = self.id.0,
                    status = event.status,
                    "nobody takes requests for datagrams there"
                );
                self.datagrams_unanswered(event.token, Failure::NonPeerRejected);
                Ok(())
            }
            K::AddrError | K::RouteError => {
                self.datagrams_unanswered(event.token, Failure::Unreachable);
                Ok(())
            }
            K::DeviceRemoval => {
                self.datagrams_unanswered(event.token, Failure::Unreachable);
                self.failed();
                Ok(())
            }
            _ => Ok(()),
        };
        if let Err(error) = outcome {
            tracing::warn!(%error, ep = self.id.0, "a peer's address could not be found out");
            self.datagrams_unanswered(event.token, Failure::NonPeerRejected);
        }
    }

    /// The way is known: the side that asks goes on, the other has what it wants.
    fn way_known(self: &Arc<Self>, ud: &Ud, token: u64, id: &CmId) -> Result<(), rxe_fallback::Error> {
        let mut state = ud.0.lock().unwrap();
        let Some(asking) = state.asking.get_mut(&token) else { return Ok(()) };
        match &mut asking.side {
            Side::Active(data) => {
                let data = std::mem::take(data);
                drop(state);
                let request = Asker::new(self.qp().num()).encode(&data);
                id.connect(&self.datagram_param(&request))?;
                self.ia.count(IaCounter::CmAhReqTx);
                Ok(())
            }
            Side::Passive(qpn, _) => {
                let qpn = *qpn;
                drop(state);
                self.answered(ud, token, &id.path(&self.ia.context)?, qpn, &[])
            }
        }
    }

    /// All that datagrams to the peer need is known.
    fn answered(
        self: &Arc<Self>,
        ud: &Ud,
        token: u64,
        path: &AhAttr,
        qpn: u32,
        answer: &[u8],
    ) -> Result<(), rxe_fallback::Error> {
        let pd = self.pd();
        let ah = Ah::create(&pd, path)?;
        let Some(PendingResolve { remote, side, .. }) = self.take_question(ud, token) else { return Ok(()) };
        let (active, private_data) = match side {
            Side::Active(_) => (true, answer.to_vec()),
            Side::Passive(_, data) => (false, data),
        };
        let handed_out = self.hand_out(ah, qpn, remote, token);
        // An EP that was closed meanwhile has cleared its tables already.
        if self.check().is_err() {
            self.close_datagrams();
            return Ok(());
        }
        let peer = match handed_out {
            Ok(peer) => peer,
            Err(error) => {
                tracing::error!(%error, ep = self.id.0, "no memory for an address handle");
                self.ia.count(IaCounter::CmErr);
                self.datagram_event(Kind::Failed(Failure::NonPeerRejected), private_data, 0);
                return Ok(());
            }
        };
        self.ia.count(IaCounter::CmAhResolved);
        self.datagram_event(Kind::Established { peer, active }, private_data, token);
        Ok(())
    }

    /// The question, which is over.
    fn take_question(&self, ud: &Ud, token: u64) -> Option<PendingResolve> {
        let asking = ud.0.lock().unwrap().asking.remove(&token);
        if asking.is_some() {
            self.ia.cm.forget(token);
        }
        asking
    }

    /// A question that nobody answered in time, or that could not be asked.
    pub(crate) fn datagrams_unanswered(self: &Arc<Self>, token: u64, why: Failure) {
        if let Some(ud) = &self.ud
            && let Some(asking) = self.take_question(ud, token)
        {
            let private_data = match asking.side {
                Side::Active(_) => Vec::new(),
                Side::Passive(_, data) => data,
            };
            self.ia.count(match why {
                Failure::TimedOut => IaCounter::CmErrTimeout,
                Failure::NonPeerRejected => IaCounter::CmErrRefused,
                _ => IaCounter::CmErr,
            });
            self.datagram_event(Kind::Failed(why), private_data, 0);
        }
    }
}

/// Why a question could not be asked.
#[derive(Debug)]
enum Unasked {
    No(Error),
    Unreachable,
}
