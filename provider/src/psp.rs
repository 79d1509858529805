//! PSPs and RSPs: where connection requests arrive.

use crate::cr::CrInner;
use crate::ep::EpInner;
use crate::evd::{EvdInner, Stream, StreamKind};
use crate::event::{CrArrival, EventData};
use crate::ia::{CmTarget, IaInner};
use crate::types::{CompletionFlags, ConnQual, EpState, EvdFlags, SpId, next_id, port_of};
use crate::{Cr, Ep, EpId, Error, Evd, Ia, Result, ReturnType, Subtype};
use rxe_fallback::{CmEvent, CmEventKind, CmId};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// Requests that may wait to be answered at one listener.
const BACKLOG: u32 = 1024;

/// A public service point (`DAT_PSP_HANDLE`): listens until it is freed. Dropping it frees it.
#[derive(Debug)]
pub struct Psp {
    inner: Arc<SpInner>,
}

/// A reserved service point (`DAT_RSP_HANDLE`): one EP waits for one request. Dropping it frees it.
#[derive(Debug)]
pub struct Rsp {
    inner: Arc<SpInner>,
}

#[derive(Debug)]
pub(crate) struct SpInner {
    pub(crate) id: SpId,
    ia: Arc<IaInner>,
    qual: ConnQual,
    evd: Arc<EvdInner>,
    /// The EP of an RSP, until a request has come for it.
    reserved: Mutex<Option<Arc<EpInner>>>,
    is_rsp: bool,
    listener: Mutex<Option<(u64, Arc<CmId>)>>,
    live: AtomicBool,
}

impl Psp {
    /// Listens for requests; each becomes an event on `evd`.
    ///
    /// # Errors
    /// CONN_QUAL_IN_USE where somebody listens there already; INVALID_PARAMETER (ARG2) for qualifier 0; INVALID_HANDLE for the IA
    /// or an EVD without the CR stream.
    ///
    /// # References
    /// dat_psp_create(3DAT).
    pub fn create(ia: &Ia, qual: ConnQual, evd: &Evd) -> Result<Self> {
        if qual == 0 {
            return Err(Error::arg(2, "connection qualifier 0 is none: use Psp::create_any"));
        }
        let (inner, _) = SpInner::listen(ia, Some(qual), evd, None)?;
        Ok(Self { inner })
    }

    /// Listens where nobody else does, and tells where.
    ///
    /// # Errors
    /// CONN_QUAL_UNAVAILABLE when nothing is free; otherwise as [`Psp::create`].
    ///
    /// # References
    /// dat_psp_create_any(3DAT).
    pub fn create_any(ia: &Ia, evd: &Evd) -> Result<(Self, ConnQual)> {
        let (inner, qual) = SpInner::listen(ia, None, evd, None)?;
        Ok((Self { inner }, qual))
    }

    /// Names it in events.
    pub fn id(&self) -> SpId {
        self.inner.id
    }

    /// Where it listens.
    pub fn conn_qual(&self) -> ConnQual {
        self.inner.qual
    }

    /// Stops listening. Requests that are events already stay good.
    ///
    /// # Errors
    /// INVALID_HANDLE after the IA was closed.
    ///
    /// # References
    /// dat_psp_free(3DAT).
    pub fn free(self) -> Result<()> {
        if self.inner.close() { Ok(()) } else { Err(Error::handle(Subtype::InvalidHandlePsp, "PSP")) }
    }
}

impl Drop for Psp {
    fn drop(&mut self) {
        self.inner.close();
    }
}

impl Rsp {
    /// Reserves an unconnected EP for the first request that comes (R154).
    ///
    /// # Errors
    /// INVALID_STATE unless the EP is UNCONNECTED; otherwise as [`Psp::create`].
    ///
    /// # References
    /// dat_rsp_create(3DAT).
    pub fn create(ia: &Ia, qual: ConnQual, ep: &Ep, evd: &Evd) -> Result<Self> {
        ep.inner.check()?;
        let control = ep.inner.control.lock().unwrap();
        let state = ep.inner.state();
        if state != EpState::Unconnected {
            return Err(Error::state(state.subtype(), "only an unconnected EP can be reserved"));
        }
        let (inner, _) = SpInner::listen(ia, Some(qual), evd, Some(ep.inner.clone()))?;
        ep.inner.set_state(EpState::Reserved);
        drop(control);
        Ok(Self { inner })
    }

    /// Names it in events.
    pub fn id(&self) -> SpId {
        self.inner.id
    }

    /// Stops listening; an EP that no request has come for is UNCONNECTED again.
    ///
    /// # Errors
    /// INVALID_HANDLE after the IA was closed.
    ///
    /// # References
    /// dat_rsp_free(3DAT).
    pub fn free(self) -> Result<()> {
        if self.inner.close() { Ok(()) } else { Err(Error::handle(Subtype::InvalidHandleRsp, "RSP")) }
    }
}

impl Drop for Rsp {
    fn drop(&mut self) {
        self.inner.close();
    }
}

impl SpInner {
    fn listen(
        ia: &Ia,
        qual: Option<ConnQual>,
        evd: &Evd,
        ep: Option<Arc<EpInner>>,
    ) -> Result<(Arc<Self>, ConnQual)> {
        let ia = &ia.inner;
        ia.check()?;
        evd.inner.check_for(ia, EvdFlags::CR, Subtype::InvalidHandleEvdCr)?;
        let (token, listener) = ia.new_cm_id(CmTarget::Retired)?;
        let outcome = (|| {
            listener.bind(SocketAddr::new(ia.attr.ia_address, qual.map_or(0, port_of)))?;
            listener.listen(BACKLOG)
        })();
        if let Err(error) = outcome {
            ia.forget_cm(token);
            let (ty, text) = match (error.errno(), qual) {
                (libc::EADDRINUSE, Some(qual)) => (
                    ReturnType::ConnQualInUse,
                    format!(
                        "somebody listens at connection qualifier {qual} (port {}) already",
                        port_of(qual)
                    ),
                ),
                (_, Some(qual)) => (
                    ReturnType::InsufficientResources,
                    format!("cannot listen at connection qualifier {qual}"),
                ),
                (_, None) => (ReturnType::ConnQualUnavailable, "no connection qualifier is free".to_owned()),
            };
            return Err(Error::new(ty, Subtype::None, text).because(error));
        }
        let port = listener.local_addr().map_or(0, |addr| addr.port());
        let qual = qual.unwrap_or_else(|| ConnQual::from(port));
        let inner = Arc::new(Self {
            id: SpId(next_id()),
            ia: ia.clone(),
            qual,
            evd: evd.inner.clone(),
            is_rsp: ep.is_some(),
            reserved: Mutex::new(ep),
            listener: Mutex::new(Some((token, listener))),
            live: AtomicBool::new(true),
        });
        evd.inner.attach(&[inner.stream()], 0)?;
        ia.retarget_cm(token, CmTarget::Listener(Arc::downgrade(&inner)));
        ia.objects.lock().unwrap().sps.insert(inner.id.0, Arc::downgrade(&inner));
        Ok((inner, qual))
    }

    /// Service points are told apart from EPs by their ids, which no other object has.
    fn stream(&self) -> Stream {
        Stream { ep: EpId(self.id.0), kind: StreamKind::Service, flags: CompletionFlags::empty() }
    }

    /// A request has come; runs on the progress thread.
    pub(crate) fn on_request(self: &Arc<Self>, event: &mut CmEvent) {
        if event.kind != CmEventKind::ConnectRequest {
            return;
        }
        let Some(id) = event.new_id.take() else { return };
        // Held until the request is known: an EP that is made anew meanwhile finds its holder.
        let mut reserved = self.reserved.lock().unwrap();
        let ep = if self.is_rsp {
            let Some(ep) = reserved.take() else {
                // An RSP takes one request; this is another.
                let _ = id.reject(&[]);
                return;
            };
            ep.set_state(EpState::PassiveConnectionPending);
            Some(ep)
        } else {
            None
        };
        let cr = CrInner::new(&self.ia, id, event, ep);
        drop(reserved);
        self.evd.push(EventData::ConnectionRequest(CrArrival {
            sp: self.id,
            conn_qual: self.qual,
            cr: Cr { inner: cr },
        }));
    }

    pub(crate) fn replace_reserved(&self, old: &Arc<EpInner>, new: &Arc<EpInner>) {
        let mut reserved = self.reserved.lock().unwrap();
        if reserved.as_ref().is_some_and(|ep| Arc::ptr_eq(ep, old)) {
            *reserved = Some(new.clone());
        }
    }

    pub(crate) fn close(&self) -> bool {
        if !self.live.swap(false, Ordering::AcqRel) {
            return false;
        }
        if let Some((token, id)) = self.listener.lock().unwrap().take() {
            self.ia.forget_cm(token);
            drop(id);
        }
        if let Some(ep) = self.reserved.lock().unwrap().take() {
            ep.set_state(EpState::Unconnected);
        }
        self.evd.detach(EpId(self.id.0), 0);
        self.ia.objects.lock().unwrap().sps.remove(&self.id.0);
        true
    }
}
