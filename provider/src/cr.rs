//! Connection requests.

use crate::datagram::ask::{Answer, Answers, Asker};
use crate::ep::{EpInner, EpPlace};
use crate::ia::{CmTarget, IaInner};
use crate::psp::SpInner;
use crate::sync::{Mutex, rank};
use crate::types::{ConnQual, EpState, ServiceType};
use crate::{Ep, Error, IaCounter, Result, ReturnType, Subtype};
use rxe_fallback::CmId;
use rxe_fallback::cm::ConnInfo;
use std::net::SocketAddr;
use std::sync::Arc;

/// Private data that a reject can carry.
pub(crate) const MAX_REJECT_DATA: usize = 148;
/// The same where datagrams were asked for.
const MAX_UD_REJECT_DATA: usize = 136;

/// A request to connect (`DAT_CR_HANDLE`). Accepting or rejecting it uses it up; dropping it rejects.
#[derive(Debug)]
pub struct Cr {
    pub(crate) inner: Arc<CrInner>,
}

#[derive(Debug)]
pub(crate) struct CrInner {
    ia: Arc<IaInner>,
    token: u64,
    remote: Option<SocketAddr>,
    private_data: Vec<u8>,
    asked: ConnInfo,
    /// Who asks for datagrams.
    asker: Option<Asker>,
    /// The id, until the request is answered or the peer has given up; and the EP of an RSP.
    open: Mutex<{ rank::OPEN }, Option<Open>>,
    /// Held while it is being answered; true once it was.
    answered: Mutex<{ rank::ANSWERED }, bool>,
}

/// What a request brings.
pub(crate) struct Asks {
    pub(crate) id: Arc<CmId>,
    pub(crate) private_data: Vec<u8>,
    pub(crate) asked: ConnInfo,
    /// Who asks, if it is for datagrams.
    pub(crate) asker: Option<Asker>,
}

impl Asks {
    pub(crate) fn service_type(&self) -> ServiceType {
        if self.asker.is_some() { ServiceType::Ud } else { ServiceType::Rc }
    }
}

#[derive(Debug)]
struct Open {
    id: Arc<CmId>,
    ep: Option<Arc<EpPlace>>,
}

impl Cr {
    /// Where the request comes from.
    pub fn remote(&self) -> Option<SocketAddr> {
        self.inner.remote
    }

    /// The peer's private data; the transport pads it with zeros.
    pub fn private_data(&self) -> &[u8] {
        &self.inner.private_data
    }

    /// What it asks for; an EP of the same service type can accept it.
    pub fn service_type(&self) -> ServiceType {
        if self.inner.asker.is_some() { ServiceType::Ud } else { ServiceType::Rc }
    }

    /// The consumer context of the EP that an RSP has reserved for it.
    pub(crate) fn reserved_context(&self) -> Option<u64> {
        if self.inner.ia.is_inherited() {
            return None;
        }
        let ep = self.inner.reserved()?.get()?;
        Some(ep.context.load(std::sync::atomic::Ordering::Relaxed))
    }

    /// Accepts with this EP; ESTABLISHED on its connect EVD follows. A UD EP can accept any number of requests for datagrams, and gets
    /// a [`DatagramEvent`](crate::DatagramEvent) for each.
    ///
    /// # Errors
    /// INVALID_PARAMETER (ARG2) for an EP of another service type than the request's; INVALID_STATE unless the EP is
    /// UNCONNECTED; INVALID_HANDLE for an EP of another IA; ABORT when the peer has given up. The
    /// request comes back with the error, to be tried with another EP or rejected.
    ///
    /// # References
    /// dat_cr_accept(3DAT).
    pub fn accept(self, ep: &Ep, private_data: &[u8]) -> Result<(), crate::Refused<Self>> {
        let outcome = self.inner.accept(&ep.inner, private_data);
        outcome.map_err(|error| crate::Refused { object: self, error })
    }

    /// Accepts with the EP that an RSP had reserved, or that the provider has made.
    ///
    /// # Errors
    /// INVALID_HANDLE where the request came without an EP; otherwise as [`Cr::accept`].
    ///
    /// # References
    /// dat_cr_accept(3DAT), dat_rsp_create(3DAT).
    pub fn accept_reserved(self, private_data: &[u8]) -> Result<(), crate::Refused<Self>> {
        let outcome = self.inner.accept_reserved(private_data);
        outcome.map_err(|error| crate::Refused { object: self, error })
    }

    /// Hands the request on to the service point that listens at another qualifier; there it arrives as if the peer had asked
    /// there. An EP that the request had here is free again, or gone if the provider had made it.
    ///
    /// The service point is this IA's, or else that of another IA which this process has open on the same port of the same
    /// device: the same one opened twice, or under another name. From then on the request is the other IA's, which accepts it
    /// with an EP of its own. A connection stays with the device that its request came through, so nothing leads to another.
    ///
    /// # Errors
    /// INVALID_PARAMETER (ARG2) where nobody listens there, or only on another device or port, or an RSP there has had its
    /// request; ABORT when the peer has given up; INSUFFICIENT_RESOURCES where there is no EP for it or the connection manager
    /// does not let go of it. The request comes back with the error.
    ///
    /// # References
    /// dat_cr_handoff(3DAT), which asks for a service point of the same IA; rdma_migrate_id(3).
    pub fn hand_off(self, to: ConnQual) -> Result<(), crate::Refused<Self>> {
        let outcome = self.inner.hand_off(to);
        outcome.map_err(|error| crate::Refused { object: self, error })
    }

    /// Says no; the peer gets PEER_REJECTED with the private data.
    ///
    /// # Errors
    /// INVALID_PARAMETER (ARG2) for over 148 bytes of private data (136 for datagrams); ABORT when the peer has given up.
    ///
    /// # References
    /// dat_cr_reject(3DAT).
    pub fn reject(self, private_data: &[u8]) -> Result<()> {
        self.inner.reject(private_data)
    }
}

impl Asks {
    /// From now on this IA hears what becomes of the request.
    ///
    /// Gives the token that it will be known by there.
    pub(crate) fn move_to(&mut self, ia: &IaInner) -> Result<u64> {
        let busy = || Error::new(ReturnType::InternalError, Subtype::None, "the request is in use");
        let id = Arc::get_mut(&mut self.id).ok_or_else(busy)?;
        let token = crate::types::next_id();
        ia.expect_cm(token, CmTarget::Retired)?;
        if let Err(error) = id.migrate(&ia.cm) {
            ia.forget_cm(token);
            return Err(Error::verb(Subtype::None, error));
        }
        Ok(token)
    }
}

/// Nobody waits for an answer any more.
pub(crate) fn gone() -> Error {
    Error::new(ReturnType::Abort, Subtype::None, "the peer has given up")
}

impl CrInner {
    pub(crate) fn new(ia: &Arc<IaInner>, token: u64, asks: Asks, ep: Option<Arc<EpPlace>>) -> Arc<Self> {
        let Asks { id, private_data, asked, asker } = asks;
        let inner = Arc::new(Self {
            ia: ia.clone(),
            token,
            remote: id.peer_addr(),
            private_data,
            asked,
            asker,
            open: Mutex::new(Some(Open { id: id.clone(), ep })),
            answered: Mutex::new(false),
        });
        ia.retarget_cm(token, CmTarget::Request(Arc::downgrade(&inner)));
        id.set_token(token);
        inner
    }

    /// One answer at a time, and one in all: another that comes meanwhile waits, and finds the request gone or as it was.
    fn answer(&self, how: impl FnOnce() -> Result<()>) -> Result<()> {
        self.ia.check_inherited(Subtype::InvalidHandleCr, "CR")?;
        let mut answered = self.answered.lock().unwrap();
        if *answered {
            return Err(Error::handle(Subtype::InvalidHandleCr, "CR (it has been answered)"));
        }
        how()?;
        *answered = true;
        Ok(())
    }

    pub(crate) fn accept(&self, ep: &Arc<EpInner>, private_data: &[u8]) -> Result<()> {
        self.answer(|| self.accept_with(ep, private_data))
    }

    pub(crate) fn accept_reserved(&self, private_data: &[u8]) -> Result<()> {
        self.answer(|| {
            let none = || match self.is_open() {
                true => Error::handle(Subtype::InvalidHandleEp, "EP (the request has none)"),
                false => gone(),
            };
            let place = self.reserved().ok_or_else(none)?;
            loop {
                let ep = place.get().ok_or_else(none)?;
                let outcome = self.accept_with(&ep, private_data);
                let is_same = place.get().is_none_or(|now| Arc::ptr_eq(&now, &ep));
                // An EP that is made anew meanwhile is another try.
                if outcome.is_ok() || is_same {
                    return outcome;
                }
            }
        })
    }

    /// The request is used up, also where nobody waits for the answer any more.
    pub(crate) fn reject(&self, private_data: &[u8]) -> Result<()> {
        let most = if self.asker.is_some() { MAX_UD_REJECT_DATA } else { MAX_REJECT_DATA };
        if private_data.len() > most {
            let text = format!("{} bytes of private data, at most {most} fit", private_data.len());
            return Err(Error::arg(2, text));
        }
        let mut outcome = Err(gone());
        self.answer(|| {
            let open = self.open.lock().unwrap().take();
            if let Some(open) = open {
                self.remember_rejection(private_data);
                outcome = open.id.reject(private_data).map_err(|e| gone().because(e));
                if outcome.is_ok() {
                    self.ia.count(IaCounter::SpCrRejected);
                    self.ia.count(IaCounter::CmUserRejTx);
                }
                self.release(open);
            }
            Ok(())
        })?;
        outcome
    }

    pub(crate) fn hand_off(&self, to: ConnQual) -> Result<()> {
        self.answer(|| self.move_on(to))
    }

    fn accept_with(&self, ep: &Arc<EpInner>, private_data: &[u8]) -> Result<()> {
        if !Arc::ptr_eq(&ep.ia, &self.ia) {
            return Err(Error::handle(Subtype::InvalidHandleEp, "EP"));
        }
        let (id, own) = {
            let open = self.open.lock().unwrap();
            let open = open.as_ref().ok_or_else(gone)?;
            (open.id.clone(), open.ep.as_ref().is_some_and(|own| Arc::ptr_eq(own, &ep.place)))
        };
        if self.asker.is_some() != ep.is_ud() {
            let text = if ep.is_ud() {
                "the request is for a connection, and this EP for datagrams"
            } else {
                "the request is for datagrams, and this EP for a connection"
            };
            return Err(Error::arg(2, text));
        }
        let state = ep.state();
        if !own && matches!(state, EpState::PassiveConnectionPending | EpState::TentativeConnectionPending) {
            return Err(Error::state(state.subtype(), "this EP waits for the answer to another request"));
        }
        match self.asker {
            Some(asker) => {
                ep.accept_datagrams(&id, asker, &self.private_data, private_data)?;
                self.ia.forget_cm(self.token);
            }
            None => {
                let outcome = ep.accept(self.token, id, &self.asked, private_data);
                outcome.map_err(|error| if self.is_open() { error } else { gone() })?;
            }
        }
        self.ia.count(IaCounter::SpCrAccepted);
        // An EP that it had and did not need is free again.
        let open = self.open.lock().unwrap().take();
        if let Some(Open { ep: Some(ep), .. }) = open {
            Self::let_go(&ep);
        }
        Ok(())
    }

    /// The EP of a request that did not take it. Nobody holds a lock of the request's meanwhile: closing an EP may take its time.
    fn let_go(place: &EpPlace) {
        place.release(EpState::PassiveConnectionPending);
        EpInner::close_if(place, |ep| ep.state() == EpState::TentativeConnectionPending);
    }

    /// The EP that an RSP had reserved, or that the provider has made.
    fn reserved(&self) -> Option<Arc<EpPlace>> {
        self.open.lock().unwrap().as_ref()?.ep.clone()
    }

    fn is_open(&self) -> bool {
        self.open.lock().unwrap().is_some()
    }

    fn move_on(&self, to: ConnQual) -> Result<()> {
        let mut open = self.open.lock().unwrap();
        let Open { id, ep } = open.take().ok_or_else(gone)?;
        let private_data = self.private_data.clone();
        let asks = Asks { id, private_data, asked: self.asked, asker: self.asker };
        let (sp, arrival) = match SpInner::take_anywhere(&self.ia, to, asks) {
            Ok(taken) => taken,
            Err(refusal) => {
                let (asks, error) = *refusal;
                *open = Some(Open { id: asks.id, ep });
                return Err(error);
            }
        };
        drop(open);
        self.ia.forget_cm(self.token);
        if let Some(ep) = ep {
            Self::let_go(&ep);
        }
        sp.announce(arrival);
        Ok(())
    }

    /// A peer that does not get to know asks again.
    fn remember_rejection(&self, private_data: &[u8]) {
        if let (Some(asker), Some(peer)) = (self.asker, self.remote) {
            let answer = Answer::Rejected(private_data.to_vec());
            Answers::all().remember(peer.ip(), asker, answer);
        }
    }

    /// The peer has given up before an answer; runs on the progress thread.
    pub(crate) fn peer_gone(&self) {
        let open = self.open.lock().unwrap().take();
        if let Some(open) = open {
            self.release(open);
        }
    }

    fn release(&self, open: Open) {
        self.ia.forget_cm(self.token);
        if let Some(ep) = open.ep {
            Self::let_go(&ep);
        }
    }
}

impl Drop for CrInner {
    fn drop(&mut self) {
        if self.ia.is_inherited() {
            // It is the parent's to answer.
            std::mem::forget(self.open.get_mut().ok().and_then(Option::take));
            return;
        }
        if let Some(open) = self.open.get_mut().ok().and_then(Option::take) {
            self.remember_rejection(&[]);
            if open.id.reject(&[]).is_ok() {
                self.ia.count(IaCounter::CmErrRejTx);
            }
            self.release(open);
        }
    }
}
