//! What all service points share: CM ids that listen, and the way of a connection request to its
//! EVD.

use crate::cr::{CrInner, IncomingRequest, Refusal};
use crate::defaults::Defaults;
use crate::device::{Class, CmHandler, Device, Member};
use crate::ep::{EpCell, EpInner};
use crate::evd::{EvdInner, Stream, StreamKind};
use crate::event::CrArrival;
use crate::fork;
use crate::memory::headroom;
use crate::sync::{Mutex, rank};
use crate::types::{CompletionFlags, ConnQual, EpState, EvdFlags, ServiceType, SpId, next_id, port_of};
use crate::ud::sidr::{ReplyCache, SidrRequester};
use crate::{Cr, Ep, EpId, Error, Ia, IaCounter, Result, ReturnType, Subtype};
use rxe_fallback::{CmEvent, CmEventKind, CmId, PortSpace};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, Weak};

/// The number of requests at one listener that rdma_cm holds until they are reported.
const BACKLOG: u32 = 1024;

/// A PSP, RSP or CSP.
#[derive(Debug)]
pub(crate) struct ServicePoint {
    pub(crate) id: SpId,
    pub(super) device: Arc<Device>,
    defaults: Arc<Defaults>,
    pub(super) qual: ConnQual,
    evd: Arc<EvdInner>,
    pub(super) policy: RequestPolicy,
    /// The EP of an RSP, until a request has arrived for it.
    reserved: Mutex<{ rank::RESERVED }, Option<Arc<EpCell>>>,
    /// A CM id and its token for each port space in which the service point listens.
    listeners: Mutex<{ rank::TABLE }, Vec<(u64, Arc<CmId>)>>,
    /// The port spaces whose requests the service point takes.
    services: &'static [PortSpace],
    live: AtomicBool,
}

/// How a request gets its EP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestPolicy {
    /// PSP or CSP: the program accepts the request with an EP of its own.
    Bare,
    /// PSP: the provider creates an EP for each request.
    Provides,
    /// RSP: an EP is reserved for one request.
    Reserved,
}

/// Where to listen.
#[derive(Clone, Copy)]
pub(super) enum ListenAt {
    /// At this connection qualifier; `None` selects a free one.
    Qualifier(Option<ConnQual>),
    /// At this port; 0 selects a free port.
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
                format!("connection qualifier {qual} (port {port}) is in use by another listener"),
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
                (ReturnType::PortInUse, format!("port {port} is in use by another listener"))
            }
            Self::Port(_) => (ReturnType::InsufficientResources, format!("cannot listen at port {port}")),
        };
        Error::new(ty, Subtype::None, text).because(error)
    }
}

/// Connections, datagrams, or both. Each port space has ports of its own.
const BOTH: &[PortSpace] = &[PortSpace::Tcp, PortSpace::Udp];
const TCP: &[PortSpace] = &[PortSpace::Tcp];
const UDP: &[PortSpace] = &[PortSpace::Udp];

/// How many ports are tried to find one that is free in all port spaces.
const TRIES: usize = 64;

/// Creates a CM id for each of these port spaces, all bound to the same port.
fn bind(device: &Arc<Device>, at: ListenAt, services: &[PortSpace]) -> Result<Vec<(u64, Arc<CmId>)>> {
    let mut tries = TRIES;
    loop {
        let mut bound: Vec<(u64, Arc<CmId>)> = Vec::new();
        let mut port = at.port();
        let outcome = services.iter().try_for_each(|&space| {
            let (token, id) = device.cm.open_id(space, None)?;
            bound.push((token, id.clone()));
            let address = SocketAddr::new(device.attr.address, port);
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

/// Why the CM ids could not be bound.
enum Bind {
    Again,
    No(Error),
}

impl From<Error> for Bind {
    fn from(error: Error) -> Self {
        Self::No(error)
    }
}

/// The service points of this process that listen, in the order of their creation.
static LISTENING: Mutex<{ rank::TABLE }, Vec<Weak<ServicePoint>>> = Mutex::new(Vec::new());

fn listening() -> Vec<Arc<ServicePoint>> {
    let listening = LISTENING.lock().unwrap_or_else(PoisonError::into_inner);
    listening.iter().filter_map(Weak::upgrade).collect()
}

/// Locks the list for a fork.
fn hold_listening() -> Vec<Box<dyn std::any::Any>> {
    vec![Box::new(LISTENING.hold())]
}

/// In a forked child: forgets the service points, which belong to the parent.
fn forget_listening() {
    LISTENING.lock().unwrap_or_else(PoisonError::into_inner).clear();
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
    pub(super) fn listen(
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
            reserved: Mutex::new(ep.map(|ep| ep.cell.clone())),
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
            // Done before the first request can arrive.
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

    /// The address and port at which it listens.
    pub(super) fn address(&self) -> SocketAddr {
        SocketAddr::new(self.device.attr.address, port_of(self.qual))
    }

    fn listens_at(&self, qual: ConnQual, service: ServiceType) -> bool {
        self.qual == qual && self.services.contains(&space(service)) && self.live.load(Ordering::Acquire)
    }

    /// The stream that the service point occupies on its EVD. Its `ep` is the ID of the service
    /// point, which no EP has.
    fn stream(&self) -> Stream {
        Stream { ep: EpId(self.id.0), kind: StreamKind::Service, flags: CompletionFlags::empty() }
    }

    /// Handles a request. Runs on the progress thread.
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
                tracing::debug!("a datagram request is not from Doorbell and is rejected");
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
                tracing::debug!(%error, "a connection request is rejected");
                if request.id.reject(&[]).is_ok() {
                    self.device.count(IaCounter::CmErrRejTx);
                }
                if !self.evd.has_room() {
                    self.evd.refuse_request();
                }
            }
        }
    }

    /// Gives the request to the service point at `qual`, which belongs to this IA or to another IA
    /// of the process on the same port of the same device.
    pub(super) fn take_anywhere(
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
            None => format!("no service point of this process listens at connection qualifier {qual}"),
            Some(there) => format!(
                "connection qualifier {qual} is on {there}; the request came through {} port {port} and cannot change its device",
                name.as_deref().unwrap_or("no device")
            ),
        };
        Err(Box::new((request, Error::arg(2, text))))
    }

    /// Adds the service point to [`LISTENING`].
    fn list(self: &Arc<Self>) -> Result<()> {
        let mut listening = LISTENING.lock().unwrap_or_else(PoisonError::into_inner);
        listening.try_reserve(1)?;
        listening.push(Arc::downgrade(self));
        Ok(())
    }

    /// Takes the request and assigns an EP to it as [`RequestPolicy`] says.
    fn take(&self, mut request: IncomingRequest) -> Result<CrArrival, Refusal> {
        if !self.evd.has_room() {
            let text = "the EVD of the service point is full";
            return Err(Box::new((request, Error::resources(Subtype::ResourceTevd, text))));
        }
        // Held until the request has the EP. A concurrent close waits, and then finds no reserved
        // EP.
        let mut reserved = self.reserved.lock().unwrap();
        let is_reserved = |cell: &EpCell| cell.get().is_some_and(|ep| ep.state() == EpState::Reserved);
        let ep = match (self.policy, &*reserved) {
            (RequestPolicy::Bare, _) => None,
            (RequestPolicy::Reserved, Some(cell)) if is_reserved(cell) => cell.get(),
            // The request has arrived before, or the EP has failed.
            (RequestPolicy::Reserved, _) => {
                let text =
                    format!("the RSP at connection qualifier {} has already had its request", self.qual);
                return Err(Box::new((request, Error::arg(2, text))));
            }
            (RequestPolicy::Provides, _) => {
                match Ep::provided(&self.device, &self.defaults, request.service_type(), &request.asked) {
                    Ok(ep) => Some(ep),
                    Err(error) => {
                        tracing::warn!(%error, "cannot create an EP for a connection request");
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
        if let Some(cell) = reserved.take() {
            cell.with(|ep, _| {
                if ep.state() == EpState::Reserved {
                    ep.set_state(EpState::PassiveConnectionPending);
                }
            });
        }
        let cr = CrInner::new(&self.device, token, request, ep.as_ref().map(|ep| ep.cell.clone()));
        drop(reserved);
        let ep = ep.filter(|_| self.policy == RequestPolicy::Provides).map(|inner| Ep { inner });
        Ok(CrArrival { sp: self.id, conn_qual: self.qual, cr: Cr { inner: cr }, ep })
    }

    /// Queues the connection request event. If the service point was closed meanwhile, the request
    /// is rejected.
    pub(super) fn announce(&self, arrival: CrArrival) {
        self.device.count(IaCounter::SpCr);
        let mut event = Some(arrival.into());
        let put = || event.take().and_then(|event| self.evd.put_notice(event));
        let lost = self.device.tell_of(|| self.live.load(Ordering::Acquire), put);
        match lost {
            Some(lost) => self.evd.announce_notice(lost),
            // Dropping the request rejects it.
            None => drop(event),
        }
    }

    /// Stops listening. Returns false if the service point was closed before.
    pub(crate) fn close(&self) -> bool {
        if !self.live.swap(false, Ordering::AcqRel) {
            return false;
        }
        self.device.finish_telling();
        let listeners = std::mem::take(&mut *self.listeners.lock().unwrap());
        for (token, id) in listeners {
            self.device.cm.forget(token);
            drop(id);
        }
        let reserved = self.reserved.lock().unwrap().take();
        if let Some(cell) = reserved {
            cell.release(EpState::Reserved);
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
