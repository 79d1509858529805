//! Connection requests.

use crate::device::{CmHandler, Device};
use crate::ep::{EpCell, EpInner};
use crate::sync::{Mutex, rank};
use crate::types::{EpState, ServiceType};
use crate::ud::sidr::{Reply, ReplyCache, SidrRequester};
use crate::{Ep, Error, IaCounter, Result, ReturnType, Subtype};
use rxe_fallback::cm::ConnInfo;
use rxe_fallback::{CmEvent, CmEventKind, CmId};
use std::net::SocketAddr;
use std::sync::{Arc, Weak};

/// The largest private data of a reject, in bytes.
pub(crate) const MAX_REJECT_DATA: usize = 148;
/// The largest private data of a reject of a request for datagrams, in bytes.
const MAX_UD_REJECT_DATA: usize = 136;

/// A connection request (`DAT_CR_HANDLE`). Accepting or rejecting consumes the request. Dropping it
/// rejects it.
pub struct Cr {
    #[doc(hidden)]
    pub inner: Arc<CrInner>,
}

impl std::fmt::Debug for Cr {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (remote, service) = (self.remote(), self.service_type());
        f.debug_struct("Cr").field("remote", &remote).field("service_type", &service).finish_non_exhaustive()
    }
}

/// The object behind a [`Cr`].
#[derive(Debug)]
pub struct CrInner {
    pub(crate) device: Arc<Device>,
    token: u64,
    remote: Option<SocketAddr>,
    private_data: Vec<u8>,
    asked: ConnInfo,
    /// The peer that asks for datagrams.
    requester: Option<SidrRequester>,
    /// The connection ID, until the request is answered or the peer has given up; and the EP of an
    /// RSP.
    open: Mutex<{ rank::OPEN }, Option<Open>>,
    /// Held while the request is being answered; true once it is answered.
    answered: Mutex<{ rank::ANSWERED }, bool>,
}

/// The data that comes with a request.
pub(crate) struct IncomingRequest {
    pub(crate) id: Arc<CmId>,
    pub(crate) private_data: Vec<u8>,
    pub(crate) asked: ConnInfo,
    /// The requesting peer, if the request is for datagrams.
    pub(crate) requester: Option<SidrRequester>,
}

impl IncomingRequest {
    pub(crate) fn service_type(&self) -> ServiceType {
        if self.requester.is_some() { ServiceType::Ud } else { ServiceType::Rc }
    }
}

/// What an accept leaves to be done.
struct Accepted {
    /// The EP that the request had, if another was taken: it is free again.
    unused: Option<Arc<EpCell>>,
    /// The route back to the requester of datagrams cannot be resolved.
    unreachable: bool,
}

#[derive(Debug)]
struct Open {
    id: Arc<CmId>,
    ep: Option<Arc<EpCell>>,
}

impl Cr {
    /// The address that the request comes from.
    pub fn remote(&self) -> Option<SocketAddr> {
        self.inner.remote
    }

    /// The peer's private data; the transport pads it with zeros.
    pub fn private_data(&self) -> &[u8] {
        &self.inner.private_data
    }

    /// The requested service type. An EP of the same service type can accept the request.
    pub fn service_type(&self) -> ServiceType {
        if self.inner.requester.is_some() { ServiceType::Ud } else { ServiceType::Rc }
    }

    /// The number of the peer's RDMA Reads that it wants this side to answer at a time. An EP that
    /// accepts with fewer ([`EpAttr::rdma_reads_in`](crate::EpAttr::rdma_reads_in)) makes the peer's
    /// Reads wait.
    pub fn rdma_reads_in(&self) -> u32 {
        self.inner.asked.responder_resources.into()
    }

    /// The number of this side's RDMA Reads that the peer can answer at a time.
    pub fn rdma_reads_out(&self) -> u32 {
        self.inner.asked.initiator_depth.into()
    }

    /// The consumer context of the EP that an RSP has reserved for the request.
    #[doc(hidden)]
    pub fn reserved_context(&self) -> Option<u64> {
        if self.inner.device.is_inherited() {
            return None;
        }
        let ep = self.inner.reserved()?.get()?;
        Some(ep.pair.context())
    }

    /// Accepts the request with this EP. ESTABLISHED follows on the EP's connect EVD. A UD EP can
    /// accept any number of requests for datagrams, and gets one
    /// [`DatagramEvent`](crate::DatagramEvent) per request.
    ///
    /// The EP can post requests once [`Event::Connected`](crate::Event::Connected) or a message of the
    /// peer has been reaped, whichever comes first: a message that comes before the event can be
    /// answered at once.
    ///
    /// If this call fails because the peer has given up, the EP gets no event. If the peer gives up
    /// later, [`Event::NotConnected`](crate::Event::NotConnected) comes.
    ///
    /// # Errors
    /// INVALID_PARAMETER (ARG2) for an EP whose service type differs from the request's, (ARG3) for
    /// more than [`MAX_PRIVATE_DATA`](crate::MAX_PRIVATE_DATA) bytes of private data;
    /// INVALID_STATE unless the EP is UNCONNECTED; INVALID_HANDLE for an EP of another IA; ABORT if
    /// the peer has given up. The error returns the request, which can be tried with another EP or
    /// rejected.
    ///
    /// # References
    /// dat_cr_accept(3DAT).
    pub fn accept(self, ep: &Ep, private_data: &[u8]) -> Result<(), crate::Refused<Self>> {
        let outcome = self.inner.accept(&ep.inner, private_data);
        outcome.map_err(|error| crate::Refused { object: self, error })
    }

    /// Accepts the request with the EP that an RSP has reserved, or that the provider has created.
    ///
    /// # Errors
    /// INVALID_HANDLE if the request came without an EP; otherwise as [`Cr::accept`].
    ///
    /// # References
    /// dat_cr_accept(3DAT), dat_rsp_create(3DAT).
    pub fn accept_reserved(self, private_data: &[u8]) -> Result<(), crate::Refused<Self>> {
        let outcome = self.inner.accept_reserved(private_data);
        outcome.map_err(|error| crate::Refused { object: self, error })
    }

    /// Rejects the request. The peer gets PEER_REJECTED with the private data.
    ///
    /// # Errors
    /// INVALID_PARAMETER (ARG2) for more than 148 bytes of private data (136 for datagrams); ABORT
    /// if the peer has given up.
    ///
    /// # References
    /// dat_cr_reject(3DAT).
    pub fn reject(self, private_data: &[u8]) -> Result<()> {
        self.inner.reject(private_data)
    }
}

impl IncomingRequest {
    /// Moves the connection ID to this IA, which then gets the ID's events.
    ///
    /// Returns the ID's token on that IA.
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

/// A request that was not taken, and the reason.
pub(crate) type Refusal = Box<(IncomingRequest, Error)>;

impl CrInner {
    pub(crate) fn new(
        device: &Arc<Device>,
        token: u64,
        request: IncomingRequest,
        ep: Option<Arc<EpCell>>,
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

    /// Answers the request. Only one answer at a time is possible, and only one can succeed. A
    /// second answer waits for the first, and then finds the request gone or unchanged.
    ///
    /// `how` announces no event, since an agent may answer requests: the caller does, with what
    /// `how` returned.
    pub(crate) fn answer<T>(&self, how: impl FnOnce() -> Result<T>) -> Result<T> {
        self.device.check_inherited(Subtype::InvalidHandleCr, "CR")?;
        let mut answered = self.answered.lock().unwrap();
        if *answered {
            return Err(Error::handle(Subtype::InvalidHandleCr, "CR (it has been answered)"));
        }
        let outcome = how()?;
        *answered = true;
        Ok(outcome)
    }

    /// As [`Cr::accept`].
    ///
    /// # Errors
    /// As [`Cr::accept`].
    pub fn accept(&self, ep: &Arc<EpInner>, private_data: &[u8]) -> Result<()> {
        let accepted = self.answer(|| self.accept_with(ep, private_data))?;
        self.after_accept(ep, accepted);
        Ok(())
    }

    /// Accepts with the EP of the RSP.
    ///
    /// # Errors
    /// As [`Cr::accept`].
    pub fn accept_reserved(&self, private_data: &[u8]) -> Result<()> {
        let (ep, accepted) = self.answer(|| {
            let none = || match self.is_open() {
                true => Error::handle(Subtype::InvalidHandleEp, "EP (the request has none)"),
                false => Error::request_gone(),
            };
            let cell = self.reserved().ok_or_else(none)?;
            loop {
                let ep = cell.get().ok_or_else(none)?;
                let outcome = self.accept_with(&ep, private_data);
                let is_same = cell.get().is_none_or(|now| Arc::ptr_eq(&now, &ep));
                // If the EP was recreated meanwhile, try again.
                if outcome.is_ok() || is_same {
                    return outcome.map(|accepted| (ep, accepted));
                }
            }
        })?;
        self.after_accept(&ep, accepted);
        Ok(())
    }

    /// What may run an agent, or take time, is done without a lock.
    fn after_accept(&self, ep: &EpInner, Accepted { unused, unreachable }: Accepted) {
        if unreachable {
            ep.requester_is_unreachable(&self.private_data);
        }
        if self.requester.is_none() {
            ep.expect_failures();
        }
        if let Some(unused) = unused {
            Self::let_go(&unused);
        }
    }

    /// Rejects and consumes the request, even if the peer has given up.
    ///
    /// # Errors
    /// As [`Cr::reject`].
    pub fn reject(&self, private_data: &[u8]) -> Result<()> {
        let most = if self.requester.is_some() { MAX_UD_REJECT_DATA } else { MAX_REJECT_DATA };
        if private_data.len() > most {
            let text = format!("{} bytes of private data, at most {most} fit", private_data.len());
            return Err(Error::arg(2, text));
        }
        let mut outcome = Err(Error::request_gone());
        self.answer(|| {
            let open = self.open.lock().unwrap().take();
            if let Some(open) = open {
                self.cache_rejection(private_data);
                outcome = open.id.reject(private_data).map_err(|e| Error::request_gone().because(e));
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

    /// The caller calls [`CrInner::after_accept`] with the result once it holds no lock.
    fn accept_with(&self, ep: &Arc<EpInner>, private_data: &[u8]) -> Result<Accepted> {
        if !Arc::ptr_eq(&ep.device, &self.device) {
            return Err(Error::handle(Subtype::InvalidHandleEp, "EP"));
        }
        let (id, own) = {
            let open = self.open.lock().unwrap();
            let open = open.as_ref().ok_or_else(Error::request_gone)?;
            (open.id.clone(), open.ep.as_ref().is_some_and(|own| Arc::ptr_eq(own, &ep.cell)))
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
        let unreachable = match self.requester {
            Some(requester) => {
                let reachable = ep.accept_datagrams(&id, requester, &self.private_data, private_data)?;
                self.device.cm.forget(self.token);
                !reachable
            }
            None => {
                let outcome = ep.accept(self.token, id, &self.asked, private_data);
                outcome.map_err(|error| if self.is_open() { error } else { Error::request_gone() })?;
                false
            }
        };
        self.device.count(IaCounter::SpCrAccepted);
        let unused = self.open.lock().unwrap().take().and_then(|open| open.ep).filter(|_| !own);
        Ok(Accepted { unused, unreachable })
    }

    /// Releases the EP of a request that did not use the EP. The caller holds no lock of the
    /// request, because closing an EP may take time.
    fn let_go(cell: &EpCell) {
        cell.release(EpState::PassiveConnectionPending);
        EpInner::close_if(cell, |ep| ep.state() == EpState::TentativeConnectionPending);
    }

    /// The EP that an RSP has reserved, or that the provider has created.
    fn reserved(&self) -> Option<Arc<EpCell>> {
        self.open.lock().unwrap().as_ref()?.ep.clone()
    }

    fn is_open(&self) -> bool {
        self.open.lock().unwrap().is_some()
    }

    /// Passes the request to another service point by `take`. If `take` refuses, the request is
    /// unchanged.
    pub(crate) fn pass_on<T>(&self, take: impl FnOnce(IncomingRequest) -> Result<T, Refusal>) -> Result<T> {
        let mut open = self.open.lock().unwrap();
        let Open { id, ep } = open.take().ok_or_else(Error::request_gone)?;
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

    /// Keeps the rejection: a peer that misses the answer asks again.
    fn cache_rejection(&self, private_data: &[u8]) {
        if let (Some(requester), Some(peer)) = (self.requester, self.remote) {
            let answer = Reply::Rejected(private_data.to_vec());
            ReplyCache::all().remember(peer.ip(), requester, answer);
        }
    }

    /// Handles a peer that gave up before an answer. Runs on the progress thread.
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
            // The parent process answers the request.
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
