//! Connection requests.

use crate::ep::EpInner;
use crate::ia::{CmTarget, IaInner};
use crate::types::EpState;
use crate::{Ep, Error, Result, ReturnType, Subtype};
use rxe_fallback::cm::ConnInfo;
use rxe_fallback::{CmEvent, CmId};
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

    /// Accepts with the EP that an RSP had reserved.
    ///
    /// # Errors
    /// INVALID_HANDLE where the request came through a PSP; otherwise as [`Cr::accept`].
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

fn gone() -> Error {
    Error::new(ReturnType::Abort, Subtype::None, "the peer has given up")
}

impl CrInner {
    pub(crate) fn new(ia: &Arc<IaInner>, id: CmId, event: &CmEvent, ep: Option<Arc<EpInner>>) -> Arc<Self> {
        let id = Arc::new(id);
        let token = crate::types::next_id();
        id.set_token(token);
        let inner = Arc::new(Self {
            ia: ia.clone(),
            token,
            remote: id.peer_addr(),
            private_data: event.private_data.clone(),
            asked: event.conn,
            open: Mutex::new(Some(Open { id, ep })),
        });
        ia.retarget_cm(token, CmTarget::Request(Arc::downgrade(&inner)));
        inner
    }

    fn accept(&self, ep: &Arc<EpInner>, private_data: &[u8]) -> Result<()> {
        if !Arc::ptr_eq(&ep.ia, &self.ia) {
            return Err(Error::handle(Subtype::InvalidHandleEp, "EP"));
        }
        let id = self.open.lock().unwrap().as_ref().map(|open| open.id.clone()).ok_or_else(gone)?;
        ep.accept(self.token, id, &self.asked, private_data)?;
        self.open.lock().unwrap().take();
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
        if let Some(ep) = open.ep
            && ep.state() == EpState::PassiveConnectionPending
        {
            ep.set_state(EpState::Unconnected);
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
