//! Connection requests.

use crate::device::{CmHandler, Device};
use crate::ep::{EpInner, EpPlace};
use crate::sync::{Mutex, rank};
use crate::types::{EpState, ServiceType};
use crate::ud::sidr::{Reply, ReplyCache, SidrRequester};
use crate::{Ep, Error, IaCounter, Result, ReturnType, Subtype};
use rxe_fallback::cm::ConnInfo;
use rxe_fallback::{CmEvent, CmEventKind, CmId};
use std::net::SocketAddr;
use std::sync::{Arc, Weak};

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
    pub(crate) device: Arc<Device>,
    token: u64,
    remote: Option<SocketAddr>,
    private_data: Vec<u8>,
    asked: ConnInfo,
    /// Who asks for datagrams.
    requester: Option<SidrRequester>,
    /// The id, until the request is answered or the peer has given up; and the EP of an RSP.
    open: Mutex<{ rank::OPEN }, Option<Open>>,
    /// Held while it is being answered; true once it was.
    answered: Mutex<{ rank::ANSWERED }, bool>,
}

/// What a request brings.
pub(crate) struct IncomingRequest {
    pub(crate) id: Arc<CmId>,
    pub(crate) private_data: Vec<u8>,
    pub(crate) asked: ConnInfo,
    /// Who asks, if it is for datagrams.
    pub(crate) requester: Option<SidrRequester>,
}

impl IncomingRequest {
    pub(crate) fn service_type(&self) -> ServiceType {
        if self.requester.is_some() { ServiceType::Ud } else { ServiceType::Rc }
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
        if self.inner.requester.is_some() { ServiceType::Ud } else { ServiceType::Rc }
    }

    /// The consumer context of the EP that an RSP has reserved for it.
    pub(crate) fn reserved_context(&self) -> Option<u64> {
        if self.inner.device.is_inherited() {
            return None;
        }
        let ep = self.inner.reserved()?.get()?;
        Some(ep.pair.context())
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

impl IncomingRequest {
    /// From now on this IA hears what becomes of the request.
    ///
    /// Gives the token that it will be known by there.
    pub(crate) fn move_to(&mut self, device: &Device) -> Result<u64> {
        let busy = || Error::new(ReturnType::InternalError, Subtype::None, "the request is in use");
        let id = Arc::get_mut(&mut self.id).ok_or_else(busy)?;
        let token = device.cm.expect(None)?;
        if let Err(error) = id.migrate(device.cm.channel()) {
            device.cm.forget(token);
            return Err(Error::verb(Subtype::None, error));
        }
        Ok(token)
    }
}

/// A request that was not taken, and why.
pub(crate) type Refusal = Box<(IncomingRequest, Error)>;

/// Nobody waits for an answer any more.
pub(crate) fn gone() -> Error {
    Error::new(ReturnType::Abort, Subtype::None, "the peer has given up")
}

impl CrInner {
    pub(crate) fn new(
        device: &Arc<Device>,
        token: u64,
        request: IncomingRequest,
        ep: Option<Arc<EpPlace>>,
    ) -> Arc<Self> {
        let IncomingRequest { id, private_data, asked, requester } = request;
        let inner = Arc::new(Self {
            device: device.clone(),
            token,
            remote: id.peer_addr(),
            private_data,
            asked,
            requester,
            open: Mutex::new(Some(Open { id: id.clone(), ep })),
            answered: Mutex::new(false),
        });
        let handler: Weak<Self> = Arc::downgrade(&inner);
        device.cm.route(token, handler);
        id.set_token(token);
        inner
    }

    /// One answer at a time, and one in all: another that comes meanwhile waits, and finds the request gone or as it was.
    pub(crate) fn answer(&self, how: impl FnOnce() -> Result<()>) -> Result<()> {
        self.device.check_inherited(Subtype::InvalidHandleCr, "CR")?;
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
        let most = if self.requester.is_some() { MAX_UD_REJECT_DATA } else { MAX_REJECT_DATA };
        if private_data.len() > most {
            let text = format!("{} bytes of private data, at most {most} fit", private_data.len());
            return Err(Error::arg(2, text));
        }
        let mut outcome = Err(gone());
        self.answer(|| {
            let open = self.open.lock().unwrap().take();
            if let Some(open) = open {
                self.cache_rejection(private_data);
                outcome = open.id.reject(private_data).map_err(|e| gone().because(e));
                if outcome.is_ok() {
                    self.device.count(IaCounter::SpCrRejected);
                    self.device.count(IaCounter::CmUserRejTx);
                }
                self.release(open);
            }
            Ok(())
        })?;
        outcome
    }

    fn accept_with(&self, ep: &Arc<EpInner>, private_data: &[u8]) -> Result<()> {
        if !Arc::ptr_eq(&ep.ia, &self.device) {
            return Err(Error::handle(Subtype::InvalidHandleEp, "EP"));
        }
        let (id, own) = {
            let open = self.open.lock().unwrap();
            let open = open.as_ref().ok_or_else(gone)?;
            (open.id.clone(), open.ep.as_ref().is_some_and(|own| Arc::ptr_eq(own, &ep.place)))
        };
        if self.requester.is_some() != ep.is_ud() {
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
        match self.requester {
            Some(requester) => {
                ep.accept_datagrams(&id, requester, &self.private_data, private_data)?;
                self.device.cm.forget(self.token);
            }
            None => {
                let outcome = ep.accept(self.token, id, &self.asked, private_data);
                outcome.map_err(|error| if self.is_open() { error } else { gone() })?;
            }
        }
        self.device.count(IaCounter::SpCrAccepted);
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

    /// Gives the request to another service point, by `take`; as it was if that refuses.
    pub(crate) fn pass_on<T>(&self, take: impl FnOnce(IncomingRequest) -> Result<T, Refusal>) -> Result<T> {
        let mut open = self.open.lock().unwrap();
        let Open { id, ep } = open.take().ok_or_else(gone)?;
        let private_data = self.private_data.clone();
        let request = IncomingRequest { id, private_data, asked: self.asked, requester: self.requester };
        let taken = match take(request) {
            Ok(taken) => taken,
            Err(refusal) => {
                let (request, error) = *refusal;
                *open = Some(Open { id: request.id, ep });
                return Err(error);
            }
        };
        drop(open);
        self.device.cm.forget(self.token);
        if let Some(ep) = ep {
            Self::let_go(&ep);
        }
        Ok(taken)
    }

    /// A peer that does not get to know asks again.
    fn cache_rejection(&self, private_data: &[u8]) {
        if let (Some(requester), Some(peer)) = (self.requester, self.remote) {
            let answer = Reply::Rejected(private_data.to_vec());
            ReplyCache::all().remember(peer.ip(), requester, answer);
        }
    }

    /// The peer has given up before an answer; runs on the progress thread.
    fn peer_gone(&self) {
        let open = self.open.lock().unwrap().take();
        if let Some(open) = open {
            self.release(open);
        }
    }

    fn release(&self, open: Open) {
        self.device.cm.forget(self.token);
        if let Some(ep) = open.ep {
            Self::let_go(&ep);
        }
    }
}

impl CmHandler for CrInner {
    fn on_cm(self: Arc<Self>, event: &mut CmEvent) {
        use CmEventKind as K;
        if matches!(event.kind, K::Disconnected | K::ConnectError | K::Unreachable | K::Rejected) {
            self.peer_gone();
        }
    }
}

impl Drop for CrInner {
    fn drop(&mut self) {
        if self.device.is_inherited() {
            // It is the parent's to answer.
            std::mem::forget(self.open.get_mut().ok().and_then(Option::take));
            return;
        }
        if let Some(open) = self.open.get_mut().ok().and_then(Option::take) {
            self.cache_rejection(&[]);
            if open.id.reject(&[]).is_ok() {
                self.device.count(IaCounter::CmErrRejTx);
            }
            self.release(open);
        }
    }
}
