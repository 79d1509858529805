//! Service points, which listen for connection requests: public (PSP), reserved (RSP) and common
//! (CSP). [`service_point`] has what they share.

mod service_point;

use self::service_point::{ListenAt, RequestPolicy, ServicePoint};
use crate::cr::CrInner;
use crate::types::{ConnQual, EpState, SpId, port_of};
use crate::{Cr, Ep, Error, Evd, Ia, Refused, Result, ReturnType, Subtype};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

/// A public service point (`DAT_PSP_HANDLE`): listens until it is freed. Dropping it frees it.
#[derive(Debug)]
pub struct Psp {
    inner: Arc<ServicePoint>,
}

/// A reserved service point (`DAT_RSP_HANDLE`): one EP waits for one request. Dropping it frees it.
#[derive(Debug)]
pub struct Rsp {
    inner: Arc<ServicePoint>,
}

/// A common service point (`DAT_CSP_HANDLE`): listens at an address and port until it is freed.
/// Dropping it frees it.
#[derive(Debug)]
pub struct Csp {
    inner: Arc<ServicePoint>,
}

/// The kind of connection that a common service point accepts (`DAT_COMM`), with the constants of
/// socket(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Comm {
    /// `AF_INET` or `AF_INET6`.
    pub domain: i32,
    /// `SOCK_STREAM`.
    pub kind: i32,
    /// `IPPROTO_TCP`, or 0 for the default protocol.
    pub protocol: i32,
}

impl Comm {
    /// Reliable connections between addresses of the same family as `address`.
    pub fn of(address: IpAddr) -> Self {
        let domain = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
        Self { domain, kind: libc::SOCK_STREAM, protocol: libc::IPPROTO_TCP }
    }
}

impl Psp {
    /// Listens for connection requests. Each request becomes an event on `evd`. A request asks for
    /// a connection or, if the device supports UD, for datagrams ([`Cr::service_type`]).
    ///
    /// # Errors
    /// CONN_QUAL_IN_USE if another service point or program listens at the qualifier.
    /// INVALID_PARAMETER (ARG2) for qualifier 0. INVALID_HANDLE for a closed IA, or for an EVD
    /// without the CR stream.
    ///
    /// # References
    /// dat_psp_create(3DAT).
    pub fn create(ia: &Ia, qual: ConnQual, evd: &Evd) -> Result<Self> {
        Self::listen(ia, Some(qual), evd, RequestPolicy::Bare).map(|(psp, _)| psp)
    }

    /// Listens at a free connection qualifier and returns the qualifier.
    ///
    /// # Errors
    /// CONN_QUAL_UNAVAILABLE if no qualifier is free; otherwise as [`Psp::create`].
    ///
    /// # References
    /// dat_psp_create_any(3DAT).
    pub fn create_any(ia: &Ia, evd: &Evd) -> Result<(Self, ConnQual)> {
        Self::listen(ia, None, evd, RequestPolicy::Bare)
    }

    /// As [`Psp::create`], but the provider creates an EP for each request
    /// ([`CrArrival::ep`](crate::CrArrival::ep)).
    ///
    /// The EP is in TENTATIVE_CONNECTION_PENDING. It has no EVDs, and its PZ contains no LMR. The
    /// program changes the EP with [`Ep::modify`] and then accepts the request with it. The EP is
    /// freed if the request is rejected or accepted with another EP.
    ///
    /// # Errors
    /// As [`Psp::create`].
    ///
    /// # References
    /// dat_psp_create(3DAT), `DAT_PSP_PROVIDER_FLAG`.
    pub fn create_providing(ia: &Ia, qual: ConnQual, evd: &Evd) -> Result<Self> {
        Self::listen(ia, Some(qual), evd, RequestPolicy::Provides).map(|(psp, _)| psp)
    }

    /// As [`Psp::create_providing`], at a free connection qualifier, which is returned.
    ///
    /// # Errors
    /// As [`Psp::create_any`].
    ///
    /// # References
    /// dat_psp_create_any(3DAT).
    pub fn create_any_providing(ia: &Ia, evd: &Evd) -> Result<(Self, ConnQual)> {
        Self::listen(ia, None, evd, RequestPolicy::Provides)
    }

    fn listen(ia: &Ia, qual: Option<ConnQual>, evd: &Evd, policy: RequestPolicy) -> Result<(Self, ConnQual)> {
        check_qualifier(qual)?;
        let at = ListenAt::Qualifier(qual);
        let inner = ServicePoint::listen(ia, at, &evd.inner, policy, None)?;
        let qual = inner.qual;
        Ok((Self { inner }, qual))
    }

    /// The ID that names the service point in events.
    pub fn id(&self) -> SpId {
        self.inner.id
    }

    /// The connection qualifier at which the PSP listens.
    pub fn conn_qual(&self) -> ConnQual {
        self.inner.qual
    }

    /// Whether each request comes with an EP that the provider has created.
    pub fn provides_eps(&self) -> bool {
        self.inner.policy == RequestPolicy::Provides
    }

    /// Stops listening. Requests that are already events can still be answered.
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

/// Whether a service point can listen at this qualifier; `None` is any.
fn check_qualifier(qual: Option<ConnQual>) -> Result<()> {
    if qual == Some(0) {
        return Err(Error::arg(2, "0 is not a connection qualifier: use Psp::create_any for a free one"));
    }
    Ok(())
}

impl Drop for Psp {
    fn drop(&mut self) {
        self.inner.close();
    }
}

impl Rsp {
    /// Reserves an unconnected EP for the first request of the EP's service type (R154).
    ///
    /// # Errors
    /// INVALID_STATE unless the EP is UNCONNECTED; otherwise as [`Psp::create`].
    ///
    /// # References
    /// dat_rsp_create(3DAT).
    pub fn create(ia: &Ia, qual: ConnQual, ep: &Ep, evd: &Evd) -> Result<Self> {
        check_qualifier(Some(qual))?;
        ep.inner.check()?;
        let control = ep.inner.control.lock().unwrap();
        let state = ep.inner.state();
        if state != EpState::Unconnected {
            return Err(Error::state(state.subtype(), "only an unconnected EP can be reserved"));
        }
        let at = ListenAt::Qualifier(Some(qual));
        // Done before the first request can arrive.
        ep.inner.set_state(EpState::Reserved);
        drop(control);
        let inner = ServicePoint::listen(ia, at, &evd.inner, RequestPolicy::Reserved, Some(&ep.inner))
            .inspect_err(|_| ep.inner.cell.release(EpState::Reserved))?;
        Ok(Self { inner })
    }

    /// The ID that names the service point in events.
    pub fn id(&self) -> SpId {
        self.inner.id
    }

    /// Stops listening. If no request has arrived, the EP is UNCONNECTED again.
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

impl Csp {
    /// Listens at a port of the IA's address; port 0 selects a free port. Requests come from
    /// [`Ep::common_connect`], and from [`Ep::connect`] with the port as the qualifier.
    ///
    /// # Errors
    /// COMM_NOT_SUPPORTED for anything but reliable streams of the IA's address family.
    /// INVALID_ADDRESS for an address of another IA. PORT_IN_USE if another service point or
    /// program listens at the port. Otherwise as [`Psp::create`].
    ///
    /// # References
    /// dat.h, `dat_csp_create`.
    pub fn create(ia: &Ia, comm: Comm, at: SocketAddr, evd: &Evd) -> Result<Self> {
        ia.device.check()?;
        let own = ia.device.attr.ia_address;
        let can = Comm::of(own);
        if comm != can && comm != (Comm { protocol: 0, ..can }) {
            let text = format!("{comm:?} is not supported, {can:?} is");
            return Err(Error::new(ReturnType::CommNotSupported, Subtype::None, text));
        }
        if at.ip() != own && !at.ip().is_unspecified() {
            let text = format!("{} is not the address of this IA, {own}", at.ip());
            return Err(Error::new(ReturnType::InvalidAddress, Subtype::InvalidAddressUnsupported, text));
        }
        let inner =
            ServicePoint::listen(ia, ListenAt::Port(at.port()), &evd.inner, RequestPolicy::Bare, None)?;
        Ok(Self { inner })
    }

    /// The ID that names the service point in events.
    pub fn id(&self) -> SpId {
        self.inner.id
    }

    /// The address and port at which the CSP listens.
    pub fn address(&self) -> SocketAddr {
        SocketAddr::new(self.inner.device.attr.ia_address, port_of(self.inner.qual))
    }

    /// The kind of connection that the CSP accepts.
    pub fn comm(&self) -> Comm {
        Comm::of(self.inner.device.attr.ia_address)
    }

    /// Stops listening. Requests that are already events can still be answered.
    ///
    /// # Errors
    /// INVALID_HANDLE after the IA was closed.
    ///
    /// # References
    /// dat.h, `dat_csp_free`.
    pub fn free(self) -> Result<()> {
        if self.inner.close() { Ok(()) } else { Err(Error::handle(Subtype::InvalidHandleCsp, "CSP")) }
    }
}

impl Drop for Csp {
    fn drop(&mut self) {
        self.inner.close();
    }
}

impl Cr {
    /// Hands the request to the service point that listens at another qualifier. The request
    /// arrives there as if the peer had addressed that service point. An EP that was reserved for
    /// the request is UNCONNECTED again; an EP that the provider had created is freed.
    ///
    /// The service point belongs to this IA, or to another IA that this process has open on the
    /// same port of the same device. In the second case the request then belongs to the other IA
    /// and is accepted with an EP of that IA. A request cannot change its device, because a
    /// connection uses the device through which its request came.
    ///
    /// # Errors
    /// INVALID_PARAMETER (ARG2) if no service point of this process listens there on the same
    /// device and port, or if an RSP there has already had its request. ABORT if the peer has given
    /// up. INSUFFICIENT_RESOURCES if no EP can be created, or if rdma_cm cannot move the request.
    /// The error returns the request.
    ///
    /// # References
    /// dat_cr_handoff(3DAT), which asks for a service point of the same IA; rdma_migrate_id(3).
    pub fn hand_off(self, to: ConnQual) -> Result<(), Refused<Self>> {
        self.inner.hand_off(to).map_err(|error| Refused { object: self, error })
    }
}

impl CrInner {
    /// As [`Cr::hand_off`].
    ///
    /// # Errors
    /// As [`Cr::hand_off`].
    pub fn hand_off(&self, to: ConnQual) -> Result<()> {
        let (sp, arrival) =
            self.answer(|| self.pass_on(|request| ServicePoint::take_anywhere(&self.device, to, request)))?;
        sp.announce(arrival);
        Ok(())
    }
}
