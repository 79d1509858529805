//! PSPs, RSPs and CSPs: where connection requests arrive.

use crate::cr::{CrInner, IncomingRequest, Refusal};
use crate::defaults::Defaults;
use crate::device::{Class, CmHandler, Device, Member};
use crate::ep::{EpInner, EpPlace};
use crate::evd::{EvdInner, Stream, StreamKind};
use crate::event::CrArrival;
use crate::fork;
use crate::memory::headroom;
use crate::sync::{Mutex, rank};
use crate::types::{CompletionFlags, ConnQual, EpState, EvdFlags, ServiceType, SpId, next_id, port_of};
use crate::ud::sidr::{ReplyCache, SidrRequester};
use crate::{Cr, Ep, EpId, Error, Evd, Ia, IaCounter, Refused, Result, ReturnType, Subtype};
use rxe_fallback::{CmEvent, CmEventKind, CmId, PortSpace};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, Weak};

/// Requests that may wait for an answer at one listener.
const BACKLOG: u32 = 1024;

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

/// Which connections a common service point is for (`DAT_COMM`), in the numbers of socket(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Comm {
    /// `AF_INET` or `AF_INET6`.
    pub domain: i32,
    /// `SOCK_STREAM`.
    pub kind: i32,
    /// `IPPROTO_TCP`, or 0 for the only one that there is.
    pub protocol: i32,
}

impl Comm {
    /// Reliable connections between addresses of this one's family.
    pub fn of(address: IpAddr) -> Self {
        let domain = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
        Self { domain, kind: libc::SOCK_STREAM, protocol: libc::IPPROTO_TCP }
    }
}

#[derive(Debug)]
pub(crate) struct ServicePoint {
    pub(crate) id: SpId,
    device: Arc<Device>,
    defaults: Arc<Defaults>,
    qual: ConnQual,
    evd: Arc<EvdInner>,
    policy: RequestPolicy,
    /// The EP of an RSP, until a request has come for it.
    reserved: Mutex<{ rank::RESERVED }, Option<Arc<EpPlace>>>,
    /// One for each port space that it listens in.
    listeners: Mutex<{ rank::TABLE }, Vec<(u64, Arc<CmId>)>>,
    /// Port spaces of the requests that it takes.
    services: &'static [PortSpace],
    live: AtomicBool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RequestPolicy {
    /// A PSP or CSP: requests come without an EP.
    Bare,
    /// A PSP: the provider makes an EP for each request.
    Provides,
    /// An RSP.
    Reserved,
}

impl Psp {
    /// Listens for requests; each becomes an event on `evd`. They may be for connections and, where
    /// the device has those, for datagrams ([`Cr::service_type`]).
    ///
    /// # Errors
    /// CONN_QUAL_IN_USE where somebody listens there already; INVALID_PARAMETER (ARG2) for
    /// qualifier 0; INVALID_HANDLE for the IA or an EVD without the CR stream.
    ///
    /// # References
    /// dat_psp_create(3DAT).
    pub fn create(ia: &Ia, qual: ConnQual, evd: &Evd) -> Result<Self> {
        Self::listen(ia, Some(qual), evd, RequestPolicy::Bare).map(|(psp, _)| psp)
    }

    /// Listens at a free connection qualifier, and returns that.
    ///
    /// # Errors
    /// CONN_QUAL_UNAVAILABLE when nothing is free; otherwise as [`Psp::create`].
    ///
    /// # References
    /// dat_psp_create_any(3DAT).
    pub fn create_any(ia: &Ia, evd: &Evd) -> Result<(Self, ConnQual)> {
        Self::listen(ia, None, evd, RequestPolicy::Bare)
    }

    /// As [`Psp::create`]; each request comes with an EP that the provider has made for it
    /// ([`CrArrival::ep`]).
    ///
    /// That EP is in TENTATIVE_CONNECTION_PENDING, without EVDs and in a PZ that no LMR is in:
    /// change it with [`Ep::modify`], then accept with it. It goes with its request if that is
    /// rejected or accepted with another EP.
    ///
    /// # Errors
    /// As [`Psp::create`].
    ///
    /// # References
    /// dat_psp_create(3DAT), `DAT_PSP_PROVIDER_FLAG`.
    pub fn create_providing(ia: &Ia, qual: ConnQual, evd: &Evd) -> Result<Self> {
        Self::listen(ia, Some(qual), evd, RequestPolicy::Provides).map(|(psp, _)| psp)
    }

    /// The same where nobody else listens.
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
        if qual == Some(0) {
            return Err(Error::arg(2, "connection qualifier 0 is none: use Psp::create_any"));
        }
        let at = ListenAt::Qualifier(qual);
        let inner = ServicePoint::listen(ia, at, &evd.inner, policy, None)?;
        let qual = inner.qual;
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

    /// Whether requests come with an EP.
    pub fn provides_eps(&self) -> bool {
        self.inner.policy == RequestPolicy::Provides
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
    /// Reserves an unconnected EP for the first request of its service type that comes (R154).
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
        let at = ListenAt::Qualifier(Some(qual));
        // Before the first request can come.
        ep.inner.set_state(EpState::Reserved);
        drop(control);
        let inner = ServicePoint::listen(ia, at, &evd.inner, RequestPolicy::Reserved, Some(&ep.inner))
            .inspect_err(|_| ep.inner.place.release(EpState::Reserved))?;
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

impl Csp {
    /// Listens at a port of the IA's address; port 0 is any that is free. Requests come from
    /// [`Ep::common_connect`], and from [`Ep::connect`] with the port for a qualifier.
    ///
    /// # Errors
    /// COMM_NOT_SUPPORTED for anything but reliable streams of the IA's address family;
    /// INVALID_ADDRESS for an address that is not the IA's; PORT_IN_USE where somebody listens
    /// there already; otherwise as [`Psp::create`].
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

    /// Names it in events.
    pub fn id(&self) -> SpId {
        self.inner.id
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        SocketAddr::new(self.inner.device.attr.ia_address, port_of(self.inner.qual))
    }

    /// What it listens for.
    pub fn comm(&self) -> Comm {
        Comm::of(self.inner.device.attr.ia_address)
    }

    /// Stops listening. Requests that are events already stay good.
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

/// Where to listen.
#[derive(Clone, Copy)]
enum ListenAt {
    /// At this one, or where nobody does.
    Qualifier(Option<ConnQual>),
    /// At this one; 0 is any.
    Port(u16),
}

impl ListenAt {
    fn port(self) -> u16 {
        match self {
            Self::Qualifier(qual) => qual.map_or(0, port_of),
            Self::Port(port) => port,
        }
    }

    /// The error of a bind or listen.
    fn refused(self, error: rxe_fallback::Error) -> Error {
        let in_use = error.errno() == libc::EADDRINUSE;
        let port = self.port();
        let (ty, text) = match self {
            Self::Qualifier(Some(qual)) if in_use => (
                ReturnType::ConnQualInUse,
                format!("somebody listens at connection qualifier {qual} (port {port}) already"),
            ),
            Self::Qualifier(Some(qual)) => {
                (ReturnType::InsufficientResources, format!("cannot listen at connection qualifier {qual}"))
            }
            Self::Qualifier(None) if error.errno() == libc::ENOMEM => {
                (ReturnType::InsufficientResources, "no memory to listen".to_owned())
            }
            Self::Qualifier(None) => {
                (ReturnType::ConnQualUnavailable, "no connection qualifier is free".to_owned())
            }
            Self::Port(_) if in_use => {
                (ReturnType::PortInUse, format!("somebody listens at port {port} already"))
            }
            Self::Port(_) => (ReturnType::InsufficientResources, format!("cannot listen at port {port}")),
        };
        Error::new(ty, Subtype::None, text).because(error)
    }
}

/// For connections and for datagrams, which have ports of their own.
const BOTH: &[PortSpace] = &[PortSpace::Tcp, PortSpace::Udp];
const TCP: &[PortSpace] = &[PortSpace::Tcp];
const UDP: &[PortSpace] = &[PortSpace::Udp];

/// Ports that are tried, if any port will do, until one is free in all the port spaces.
const TRIES: usize = 64;

/// Connection ids that are bound to one port, one for each of these port spaces.
fn bind(device: &Arc<Device>, at: ListenAt, services: &[PortSpace]) -> Result<Vec<(u64, Arc<CmId>)>> {
    let mut tries = TRIES;
    loop {
        let mut bound: Vec<(u64, Arc<CmId>)> = Vec::new();
        let mut port = at.port();
        let outcome = services.iter().try_for_each(|&space| {
            let (token, id) = device.cm.open_id(space, None)?;
            bound.push((token, id.clone()));
            let address = SocketAddr::new(device.attr.ia_address, port);
            id.bind(address).map_err(|error| {
                let taken = error.errno() == libc::EADDRINUSE;
                tries -= usize::from(taken);
                if taken && at.port() == 0 && tries > 0 { Bind::Again } else { Bind::No(at.refused(error)) }
            })?;
            port = id.local_addr().map_or(0, |addr| addr.port());
            Ok(())
        });
        match outcome {
            Ok(()) => return Ok(bound),
            Err(why) => {
                bound.iter().for_each(|(token, _)| device.cm.forget(*token));
                if let Bind::No(error) = why {
                    return Err(error);
                }
            }
        }
    }
}

fn space(service: ServiceType) -> PortSpace {
    match service {
        ServiceType::Rc => PortSpace::Tcp,
        ServiceType::Ud => PortSpace::Udp,
    }
}

/// Why there are no bound ids.
enum Bind {
    Again,
    No(Error),
}

impl From<Error> for Bind {
    fn from(error: Error) -> Self {
        Self::No(error)
    }
}

/// Service points of this process that listen, in the order in which they were made.
static LISTENING: Mutex<{ rank::TABLE }, Vec<Weak<ServicePoint>>> = Mutex::new(Vec::new());

fn listening() -> Vec<Arc<ServicePoint>> {
    let listening = LISTENING.lock().unwrap_or_else(PoisonError::into_inner);
    listening.iter().filter_map(Weak::upgrade).collect()
}

/// For a fork.
fn hold_listening() -> Vec<Box<dyn std::any::Any>> {
    vec![Box::new(LISTENING.hold())]
}

/// In a child: the service points are its parent's.
fn forget_listening() {
    LISTENING.lock().unwrap_or_else(PoisonError::into_inner).clear();
}

impl Cr {
    /// Hands the request on to the service point that listens at another qualifier; there it
    /// arrives as if the peer had asked there. An EP that the request had here is free again, or
    /// gone if the provider had made it.
    ///
    /// The service point is this IA's, or else that of another IA which this process has open on
    /// the same port of the same device: the same one opened twice, or under another name. From
    /// then on the request is the other IA's, which accepts it with an EP of its own. A connection
    /// stays with the device that its request came through, so nothing leads to another.
    ///
    /// # Errors
    /// INVALID_PARAMETER (ARG2) where nobody listens there, or only on another device or port, or
    /// an RSP there has had its request; ABORT when the peer has given up; INSUFFICIENT_RESOURCES
    /// where there is no EP for it or the connection manager does not let go of it. The request
    /// comes back with the error.
    ///
    /// # References
    /// dat_cr_handoff(3DAT), which asks for a service point of the same IA; rdma_migrate_id(3).
    pub fn hand_off(self, to: ConnQual) -> Result<(), Refused<Self>> {
        self.inner.hand_off(to).map_err(|error| Refused { object: self, error })
    }
}

impl CrInner {
    pub(crate) fn hand_off(&self, to: ConnQual) -> Result<()> {
        self.answer(|| {
            let (sp, arrival) =
                self.pass_on(|request| ServicePoint::take_anywhere(&self.device, to, request))?;
            sp.announce(arrival);
            Ok(())
        })
    }
}

impl Member for ServicePoint {
    fn ia_closed(self: Arc<Self>) {
        self.close();
    }
}

impl CmHandler for ServicePoint {
    fn on_cm(self: Arc<Self>, event: &mut CmEvent) {
        self.on_request(event);
    }
}

impl fork::Inherit for ServicePoint {
    fn disown(&self) {
        self.live.store(false, Ordering::Release);
    }
}

impl ServicePoint {
    fn listen(
        ia: &Ia,
        at: ListenAt,
        evd: &Arc<EvdInner>,
        policy: RequestPolicy,
        ep: Option<&Arc<EpInner>>,
    ) -> Result<Arc<Self>> {
        let device = &ia.device;
        device.check()?;
        evd.check_for(device, EvdFlags::CR, Subtype::InvalidHandleEvdCr)?;
        headroom()?;
        ReplyCache::share();
        fork::share(fork::Part::ServicePoints, hold_listening, forget_listening);
        let services = match (policy, &ep, at) {
            (_, Some(ep), _) if ep.is_ud() => UDP,
            (RequestPolicy::Reserved, ..) | (.., ListenAt::Port(_)) => TCP,
            _ if device.attr.datagrams => BOTH,
            _ => TCP,
        };
        let listeners = bind(device, at, services)?;
        let port = listeners.first().and_then(|(_, id)| id.local_addr()).map_or(0, |addr| addr.port());
        let qual = match at {
            ListenAt::Qualifier(Some(qual)) => qual,
            _ => port.into(),
        };
        let counter = match (at, policy) {
            (_, RequestPolicy::Reserved) => Some(IaCounter::RspCreate),
            (ListenAt::Qualifier(Some(_)), _) => Some(IaCounter::PspCreate),
            (ListenAt::Qualifier(None), _) => Some(IaCounter::PspCreateAny),
            (ListenAt::Port(_), _) => None,
        };
        let inner = Arc::new(Self {
            id: SpId(next_id()),
            device: device.clone(),
            defaults: ia.defaults.clone(),
            qual,
            evd: evd.clone(),
            policy,
            reserved: Mutex::new(ep.map(|ep| ep.place.clone())),
            listeners: Mutex::new(listeners.clone()),
            services,
            live: AtomicBool::new(true),
        });
        let close = |_: &Error| {
            inner.close();
        };
        evd.attach(&[inner.stream()], 0).inspect_err(close)?;
        let handler: Weak<Self> = Arc::downgrade(&inner);
        for (token, listener) in listeners {
            // Before the first request can come.
            device.cm.route(token, handler.clone());
            if let Err(error) = listener.listen(BACKLOG) {
                inner.close();
                return Err(at.refused(error));
            }
        }
        let counters: Vec<_> = [IaCounter::CmListen].into_iter().chain(counter).collect();
        inner.list().inspect_err(close)?;
        device.register(Class::ServicePoint, inner.id.0, &inner, &counters).inspect_err(close)?;
        Ok(inner)
    }

    fn listens_at(&self, qual: ConnQual, service: ServiceType) -> bool {
        self.qual == qual && self.services.contains(&space(service)) && self.live.load(Ordering::Acquire)
    }

    /// Service points are told apart from EPs by their ids, which no other object has.
    fn stream(&self) -> Stream {
        Stream { ep: EpId(self.id.0), kind: StreamKind::Service, flags: CompletionFlags::empty() }
    }

    /// A request has come; runs on the progress thread.
    fn on_request(self: &Arc<Self>, event: &mut CmEvent) {
        if event.kind != CmEventKind::ConnectRequest {
            return;
        }
        let Some(id) = event.new_id.take() else { return };
        let mut private_data = std::mem::take(&mut event.private_data);
        let mut requester = None;
        if id.port_space() == PortSpace::Udp {
            // Dropping the id rejects the request.
            let (Some(peer), Some((who, data))) = (id.peer_addr(), SidrRequester::decode(&private_data))
            else {
                tracing::debug!("somebody request for datagrams in other words than Doorbell's");
                return;
            };
            if let Some(answer) = ReplyCache::all().to(peer.ip(), who) {
                answer.repeat(&id);
                return;
            }
            (private_data, requester) = (data, Some(who));
        }
        let request = IncomingRequest { id: Arc::new(id), private_data, asked: event.conn, requester };
        match self.take(request) {
            Ok(arrival) => self.announce(arrival),
            Err(refusal) => {
                let (request, error) = *refusal;
                tracing::debug!(%error, "a request is rejected");
                if request.id.reject(&[]).is_ok() {
                    self.device.count(IaCounter::CmErrRejTx);
                }
            }
        }
    }

    /// Gives the request to whoever listens there: of this device, or of another IA of the process
    /// on the same port of the same device.
    fn take_anywhere(
        device: &Arc<Device>,
        qual: ConnQual,
        request: IncomingRequest,
    ) -> Result<(Arc<Self>, CrArrival), Refusal> {
        let (name, port) = (request.id.device_name(), request.id.port_num());
        let mut elsewhere = None;
        let is_here = |sp: &&Arc<Self>| Arc::ptr_eq(&sp.device, device);
        let all = listening();
        let all = all.iter().filter(is_here).chain(all.iter().filter(|sp| !is_here(sp)));
        for sp in all.filter(|sp| sp.listens_at(qual, request.service_type())) {
            let other = &sp.device;
            if name.as_deref() == Some(other.context.name()) && port == other.port {
                return sp.take(request).map(|arrival| (sp.clone(), arrival));
            }
            elsewhere = Some(format!("{} port {}", other.context.name(), other.port));
        }
        let text = match elsewhere {
            None => format!("nobody of this process waits for a request at connection qualifier {qual}"),
            Some(there) => format!(
                "connection qualifier {qual} is on {there}; the request came through {} port {port} and cannot leave it",
                name.as_deref().unwrap_or("no device")
            ),
        };
        Err(Box::new((request, Error::arg(2, text))))
    }

    /// Puts it on the list of those that listen in this process.
    fn list(self: &Arc<Self>) -> Result<()> {
        let mut listening = LISTENING.lock().unwrap_or_else(PoisonError::into_inner);
        listening.try_reserve(1)?;
        listening.push(Arc::downgrade(self));
        Ok(())
    }

    /// Makes the request one of this service point's, unless there is no EP for it.
    fn take(&self, mut request: IncomingRequest) -> Result<CrArrival, Refusal> {
        // Held until the request has the EP: a close meanwhile waits, and then finds no reserved
        // EP.
        let mut reserved = self.reserved.lock().unwrap();
        let is_reserved = |place: &EpPlace| place.get().is_some_and(|ep| ep.state() == EpState::Reserved);
        let ep = match (self.policy, &*reserved) {
            (RequestPolicy::Bare, _) => None,
            (RequestPolicy::Reserved, Some(place)) if is_reserved(place) => place.get(),
            // Or its EP has failed.
            (RequestPolicy::Reserved, _) => {
                let text = format!("the RSP at connection qualifier {} has had its request", self.qual);
                return Err(Box::new((request, Error::arg(2, text))));
            }
            (RequestPolicy::Provides, _) => {
                match Ep::provided(&self.device, &self.defaults, request.service_type(), &request.asked) {
                    Ok(ep) => Some(ep),
                    Err(error) => {
                        tracing::warn!(%error, "no EP for a request");
                        return Err(Box::new((request, error)));
                    }
                }
            }
        };
        let token = match request.move_to(&self.device) {
            Ok(token) => token,
            Err(error) => {
                ep.iter().filter(|_| self.policy == RequestPolicy::Provides).for_each(EpInner::close);
                return Err(Box::new((request, error)));
            }
        };
        if let Some(place) = reserved.take() {
            place.with(|ep, _| {
                if ep.state() == EpState::Reserved {
                    ep.set_state(EpState::PassiveConnectionPending);
                }
            });
        }
        let cr = CrInner::new(&self.device, token, request, ep.as_ref().map(|ep| ep.place.clone()));
        drop(reserved);
        let ep = ep.filter(|_| self.policy == RequestPolicy::Provides).map(|inner| Ep { inner });
        Ok(CrArrival { sp: self.id, conn_qual: self.qual, cr: Cr { inner: cr }, ep })
    }

    fn announce(&self, arrival: CrArrival) {
        self.device.count(IaCounter::SpCr);
        self.evd.push(arrival.into());
    }

    pub(crate) fn close(&self) -> bool {
        if !self.live.swap(false, Ordering::AcqRel) {
            return false;
        }
        let listeners = std::mem::take(&mut *self.listeners.lock().unwrap());
        for (token, id) in listeners {
            self.device.cm.forget(token);
            drop(id);
        }
        let reserved = self.reserved.lock().unwrap().take();
        if let Some(place) = reserved {
            place.release(EpState::Reserved);
        }
        self.evd.detach(EpId(self.id.0), 0);
        LISTENING
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .retain(|sp| !std::ptr::eq(sp.as_ptr(), self));
        self.device.registry.remove(Class::ServicePoint, self.id.0);
        true
    }
}
