//! Connection requests.

use crate::ep::EpInner;
use crate::ia::{CmTarget, IaInner};
use crate::types::{ConnQual, EpState};
use crate::{Ep, Error, Result, ReturnType, Subtype};
use rxe_fallback::CmId;
use rxe_fallback::cm::ConnInfo;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

/// Private data that a reject can carry.
pub(crate) const MAX_REJECT_DATA: usize = 148;

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
    /// The id, until the request is answered or the peer has given up; and the EP of an RSP.
    open: Mutex<Option<Open>>,
}

/// What a request brings.
pub(crate) struct Asks {
    pub(crate) id: Arc<CmId>,
    pub(crate) private_data: Vec<u8>,
    pub(crate) asked: ConnInfo,
}

#[derive(Debug)]
struct Open {
    id: Arc<CmId>,
    ep: Option<Arc<EpInner>>,
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

    /// The consumer context of the EP that an RSP has reserved for it.
    pub(crate) fn reserved_context(&self) -> Option<u64> {
        let open = self.inner.open.lock().unwrap();
        Some(open.as_ref()?.ep.as_ref()?.context.load(std::sync::atomic::Ordering::Relaxed))
    }

    /// Accepts with this EP; ESTABLISHED on its connect EVD follows.
    ///
    /// # Errors
    /// INVALID_STATE unless the EP is UNCONNECTED; INVALID_HANDLE for an EP of another IA; ABORT when the peer has given up. The
    /// request comes back with the error, to be tried with another EP or rejected.
    ///
    /// # References
    /// dat_cr_accept(3DAT).
    pub fn accept(self, ep: &Ep, private_data: &[u8]) -> Result<(), crate::Refused<Self>> {
        match self.inner.accept(&ep.inner, private_data) {
            Ok(()) => Ok(()),
            Err(error) => Err(crate::Refused { object: self, error }),
        }
    }

    /// Accepts with the EP that an RSP had reserved, or that the provider has made.
    ///
    /// # Errors
    /// INVALID_HANDLE where the request came without an EP; otherwise as [`Cr::accept`].
    ///
    /// # References
    /// dat_cr_accept(3DAT), dat_rsp_create(3DAT).
    pub fn accept_reserved(self, private_data: &[u8]) -> Result<(), crate::Refused<Self>> {
        let ep = self.inner.open.lock().unwrap().as_ref().and_then(|open| open.ep.clone());
        let outcome = match ep {
            Some(ep) => self.inner.accept(&ep, private_data),
            None => Err(Error::handle(Subtype::InvalidHandleEp, "EP (the request has none)")),
        };
        outcome.map_err(|error| crate::Refused { object: self, error })
    }

    /// Hands the request on to the service point of this IA that listens at another qualifier; there it arrives as if the
    /// peer had asked there. An EP that the request had here is free again, or gone if the provider had made it.
    ///
    /// # Errors
    /// INVALID_PARAMETER (ARG2) where nobody of this IA listens there, or an RSP there has had its request; ABORT when the peer
    /// has given up. The request comes back with the error.
    ///
    /// # References
    /// dat_cr_handoff(3DAT).
    pub fn hand_off(self, to: ConnQual) -> Result<(), crate::Refused<Self>> {
        match self.inner.hand_off(to) {
            Ok(()) => Ok(()),
            Err(error) => Err(crate::Refused { object: self, error }),
        }
    }

    /// Says no; the peer gets PEER_REJECTED with the private data.
    ///
    /// # Errors
    /// INVALID_PARAMETER (ARG2) for over 148 bytes of private data; ABORT when the peer has given up.
    ///
    /// # References
    /// dat_cr_reject(3DAT).
    pub fn reject(self, private_data: &[u8]) -> Result<()> {
        if private_data.len() > MAX_REJECT_DATA {
            let text = format!("{} bytes of private data, at most {MAX_REJECT_DATA} fit", private_data.len());
            return Err(Error::arg(2, text));
        }
        let open = self.inner.open.lock().unwrap().take().ok_or_else(gone)?;
        let outcome = open.id.reject(private_data);
        self.inner.release(open);
        outcome.map_err(|e| gone().because(e))
    }
}

/// Nobody waits for an answer any more.
pub(crate) fn gone() -> Error {
    Error::new(ReturnType::Abort, Subtype::None, "the peer has given up")
}

impl CrInner {
    pub(crate) fn new(ia: &Arc<IaInner>, asks: Asks, ep: Option<Arc<EpInner>>) -> Arc<Self> {
        let Asks { id, private_data, asked } = asks;
        let token = crate::types::next_id();
        let inner = Arc::new(Self {
            ia: ia.clone(),
            token,
            remote: id.peer_addr(),
            private_data,
            asked,
            open: Mutex::new(Some(Open { id: id.clone(), ep })),
        });
        ia.retarget_cm(token, CmTarget::Request(Arc::downgrade(&inner)));
        id.set_token(token);
        inner
    }

    fn accept(&self, ep: &Arc<EpInner>, private_data: &[u8]) -> Result<()> {
        if !Arc::ptr_eq(&ep.ia, &self.ia) {
            return Err(Error::handle(Subtype::InvalidHandleEp, "EP"));
        }
        let (id, own) = {
            let open = self.open.lock().unwrap();
            let open = open.as_ref().ok_or_else(gone)?;
            (open.id.clone(), open.ep.as_ref().is_some_and(|own| Arc::ptr_eq(own, ep)))
        };
        let state = ep.state();
        if !own && matches!(state, EpState::PassiveConnectionPending | EpState::TentativeConnectionPending) {
            return Err(Error::state(state.subtype(), "this EP waits for the answer to another request"));
        }
        ep.accept(self.token, id, &self.asked, private_data)?;
        // An EP that it had and did not need is free again.
        let open = self.open.lock().unwrap().take();
        if let Some(Open { ep: Some(ep), .. }) = open {
            Self::let_go(&ep);
        }
        Ok(())
    }

    /// The EP of a request that did not take it.
    fn let_go(ep: &Arc<EpInner>) {
        match ep.state() {
            EpState::PassiveConnectionPending => ep.set_state(EpState::Unconnected),
            EpState::TentativeConnectionPending => ep.close(),
            _ => {}
        }
    }

    fn hand_off(&self, to: ConnQual) -> Result<()> {
        let nobody = || {
            let text = format!("nobody of this IA waits for a request at connection qualifier {to}");
            Error::arg(2, text)
        };
        let sp = self.ia.service_point(to).ok_or_else(nobody)?;
        let mut open = self.open.lock().unwrap();
        let id = open.as_ref().ok_or_else(gone)?.id.clone();
        let asks = Asks { id, private_data: self.private_data.clone(), asked: self.asked };
        let arrival = sp.take(asks).map_err(|_| nobody())?;
        let left = open.take();
        drop(open);
        self.ia.forget_cm(self.token);
        if let Some(Open { ep: Some(ep), .. }) = left {
            Self::let_go(&ep);
        }
        sp.announce(arrival);
        Ok(())
    }

    pub(crate) fn replace_reserved(&self, old: &Arc<EpInner>, new: &Arc<EpInner>) {
        if let Some(open) = self.open.lock().unwrap().as_mut()
            && open.ep.as_ref().is_some_and(|ep| Arc::ptr_eq(ep, old))
        {
            // A request that came meanwhile has told the old one.
            new.set_state(old.state());
            open.ep = Some(new.clone());
        }
    }

    /// The peer has given up before an answer; runs on the progress thread.
    pub(crate) fn peer_gone(&self) {
        if let Some(open) = self.open.lock().unwrap().take() {
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
        if let Some(open) = self.open.get_mut().ok().and_then(Option::take) {
            let _ = open.id.reject(&[]);
            self.release(open);
        }
    }
}
