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

/// The options of a new PSP: see [`Psp::builder`].
#[derive(Clone, Copy, Debug)]
#[must_use = "nothing listens before `build`"]
pub struct PspBuilder<'a> {
    ia: &'a Ia,
    evd: &'a Evd,
    qual: Option<ConnQual>,
    policy: RequestPolicy,
}

impl PspBuilder<'_> {
    /// Listens at this port. 0, the default, selects a free port: [`Psp::port`] tells which.
    pub fn port(self, port: u16) -> Self {
        Self { qual: (port != 0).then_some(port.into()), ..self }
    }

    /// Listens at this connection qualifier.
    #[doc(hidden)]
    pub fn conn_qual(self, qual: ConnQual) -> Self {
        Self { qual: Some(qual), ..self }
    }

    /// The provider creates an EP for each request ([`CrArrival::ep`](crate::CrArrival::ep)).
    ///
    /// The EP is in TENTATIVE_CONNECTION_PENDING. It has no EVDs, and its PZ contains no LMR. The
    /// program changes the EP with [`Ep::modify`] and then accepts the request with it. The EP is
    /// freed if the request is rejected or accepted with another EP.
    ///
    /// # References
    /// dat_psp_create(3DAT), `DAT_PSP_PROVIDER_FLAG`.
    pub fn provide_eps(self) -> Self {
        Self { policy: RequestPolicy::Provides, ..self }
    }

    /// Begins to listen.
    ///
    /// # Errors
    /// CONN_QUAL_IN_USE if another service point or program listens at the port;
    /// CONN_QUAL_UNAVAILABLE if no port is free. INVALID_HANDLE for a closed IA, or for an EVD
    /// without the CR stream.
    ///
    /// # References
    /// dat_psp_create(3DAT), dat_psp_create_any(3DAT).
    pub fn build(self) -> Result<Psp> {
        check_qualifier(self.qual)?;
        let at = ListenAt::Qualifier(self.qual);
        Ok(Psp { inner: ServicePoint::listen(self.ia, at, &self.evd.inner, self.policy, None)? })
    }
}

impl Psp {
    /// A builder of PSPs. It begins with a free port, and with requests that come without an EP.
    ///
    /// Each connection request becomes an event on `evd`, which has the stream
    /// [`EvdFlags::CR`](crate::EvdFlags::CR). A request asks for a connection or, if the device
    /// supports UD, for datagrams ([`Cr::service_type`]).
    ///
    /// ```no_run
    /// # use doorbell::{Evd, EvdFlags, Ia, Psp};
    /// # fn main() -> doorbell::Result<()> {
    /// let ia = Ia::open("mlx5_0")?;
    /// let requests = Evd::new(&ia, 16, EvdFlags::CR)?;
    /// let service = Psp::builder(&ia, &requests).port(4711).build()?;
    /// println!("listening at {}", service.address());
    /// # Ok(())
    /// # }
    /// ```
    pub fn builder<'a>(ia: &'a Ia, evd: &'a Evd) -> PspBuilder<'a> {
        PspBuilder { ia, evd, qual: None, policy: RequestPolicy::Bare }
    }

    /// The ID that names the service point in events.
    pub fn id(&self) -> SpId {
        self.inner.id
    }

    /// The port at which the PSP listens.
    pub fn port(&self) -> u16 {
        port_of(self.inner.qual)
    }

    /// The address and port at which the PSP listens.
    pub fn address(&self) -> SocketAddr {
        self.inner.address()
    }

    /// The connection qualifier at which the PSP listens.
    #[doc(hidden)]
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
    pub fn close(self) -> Result<(), Refused<Self>> {
        if self.inner.close() {
            return Ok(());
        }
        let error = Error::handle(Subtype::InvalidHandlePsp, "PSP");
        Err(Refused { object: self, error })
    }
}

/// Whether a service point can listen at this qualifier; `None` is any.
fn check_qualifier(qual: Option<ConnQual>) -> Result<()> {
    if qual == Some(0) {
        return Err(Error::arg(2, "0 is not a connection qualifier"));
    }
    Ok(())
}

impl Drop for Psp {
    fn drop(&mut self) {
        self.inner.close();
    }
}

impl Rsp {
    /// Reserves an unconnected EP for the first request of the EP's service type (R154). Port 0
    /// selects a free port.
    ///
    /// # Errors
    /// INVALID_STATE unless the EP is UNCONNECTED; otherwise as [`PspBuilder::build`].
    ///
    /// # References
    /// dat_rsp_create(3DAT).
    pub fn new(ia: &Ia, port: u16, ep: &Ep, evd: &Evd) -> Result<Self> {
        Self::listen(ia, (port != 0).then_some(port.into()), ep, evd)
    }

    /// Listens at this connection qualifier.
    #[doc(hidden)]
    pub fn at_conn_qual(ia: &Ia, qual: ConnQual, ep: &Ep, evd: &Evd) -> Result<Self> {
        Self::listen(ia, Some(qual), ep, evd)
    }

    fn listen(ia: &Ia, qual: Option<ConnQual>, ep: &Ep, evd: &Evd) -> Result<Self> {
        check_qualifier(qual)?;
        ep.inner.check()?;
        let control = ep.inner.control.lock().unwrap();
        let state = ep.inner.state();
        if state != EpState::Unconnected {
            return Err(Error::state(state.subtype(), "only an unconnected EP can be reserved"));
        }
        let at = ListenAt::Qualifier(qual);
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

    /// The port at which the RSP listens.
    pub fn port(&self) -> u16 {
        port_of(self.inner.qual)
    }

    /// Stops listening. If no request has arrived, the EP is UNCONNECTED again.
    ///
    /// # Errors
    /// INVALID_HANDLE after the IA was closed.
    ///
    /// # References
    /// dat_rsp_free(3DAT).
    pub fn close(self) -> Result<(), Refused<Self>> {
        if self.inner.close() {
            return Ok(());
        }
        let error = Error::handle(Subtype::InvalidHandleRsp, "RSP");
        Err(Refused { object: self, error })
    }
}

impl Drop for Rsp {
    fn drop(&mut self) {
        self.inner.close();
    }
}

impl Csp {
    /// Listens at a port of the IA's address; port 0 selects a free port. Unlike a PSP, a CSP takes
    /// connections only, no datagrams.
    ///
    /// # Errors
    /// COMM_NOT_SUPPORTED for anything but reliable streams of the IA's address family.
    /// INVALID_ADDRESS for an address of another IA. PORT_IN_USE if another service point or
    /// program listens at the port. Otherwise as [`PspBuilder::build`].
    ///
    /// # References
    /// dat.h, `dat_csp_create`.
    pub fn new(ia: &Ia, comm: Comm, at: SocketAddr, evd: &Evd) -> Result<Self> {
        ia.device.check()?;
        let own = ia.device.attr.address;
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
        self.inner.address()
    }

    /// The kind of connection that the CSP accepts.
    pub fn comm(&self) -> Comm {
        Comm::of(self.inner.device.attr.address)
    }

    /// Stops listening. Requests that are already events can still be answered.
    ///
    /// # Errors
    /// INVALID_HANDLE after the IA was closed.
    ///
    /// # References
    /// dat.h, `dat_csp_free`.
    pub fn close(self) -> Result<(), Refused<Self>> {
        if self.inner.close() {
            return Ok(());
        }
        let error = Error::handle(Subtype::InvalidHandleCsp, "CSP");
        Err(Refused { object: self, error })
    }
}

impl Drop for Csp {
    fn drop(&mut self) {
        self.inner.close();
    }
}

impl Cr {
    /// Hands the request to the service point that listens at another port. The request
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
    pub fn hand_off(self, port: u16) -> Result<(), Refused<Self>> {
        self.inner.hand_off(port.into()).map_err(|error| Refused { object: self, error })
    }
}

impl CrInner {
    /// As [`Cr::hand_off`], to the service point at this connection qualifier.
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
