//! The client side: the connections of many sessions from one device, as the load generator and the
//! tests have them. This is the only other file that knows RDMA.

use crate::login::{Login, Refusal, Refused, Welcome};
use crate::ouch::{LONGEST_IN, LONGEST_OUT};
use doorbell::{
    AsyncEvent, AsyncKind, CloseFlags, ConnectOptions, ConnectionEvent, ConnectionEventKind, DtoCompletion,
    Ep, Evd, EvdFlags, Event, Ia, PostError, Pz, RecvPool, RetryAttr, Srq,
};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;
use zerocopy::IntoBytes;

/// How long a connection may take.
const PATIENCE: Duration = Duration::from_secs(30);
/// Requests in the send queue of a connection.
const SENDS: u32 = 64;
/// One of so many Sends is signalled.
const SIGNAL: u64 = 16;
/// Events of a connection that are not completions.
const CONNECTION_EVENTS: usize = 4;
/// Events taken at a time.
const EVENTS: usize = 64;

/// What comes from the gateway.
#[derive(Debug)]
pub enum News<'a> {
    /// The login was accepted.
    Welcome(Welcome),
    /// The login was refused, and which messages are left.
    Refused(Refusal, u64),
    /// There is no gateway, or no connection to it.
    Unreachable,
    /// A message.
    Message(&'a [u8]),
    /// The connection has ended.
    Ended,
}

#[derive(Debug)]
struct Link {
    ep: Ep,
    is_connected: bool,
    posted: u64,
    completed: u64,
}

impl Link {
    #[inline]
    fn has_room(&self) -> bool {
        self.is_connected && self.posted - self.completed < u64::from(SENDS)
    }
}

/// A device, and the connections from it.
#[derive(Debug)]
pub struct Client {
    links: Vec<Option<Link>>,
    generations: Vec<u32>,
    /// Whether buffers are posted again.
    reads: bool,
    pool: RecvPool,
    srq: Srq,
    // Freed last.
    events: Evd,
    pz: Pz,
    ia: Ia,
}

impl Client {
    /// Opens a device for this many sessions, with so many receive buffers for all of them.
    ///
    /// # Errors
    /// Those of the device.
    pub fn open(device: &str, sessions: usize, receives: u32) -> doorbell::Result<Self> {
        let ia = Ia::builder(device).rnr_retry(7).rnr_timer(1).open()?;
        let pz = Pz::new(&ia)?;
        let streams = EvdFlags::DTO | EvdFlags::CONNECTION;
        let receives = receives.min(ia.attributes().max_srq_depth);
        // An EVD that is too short loses events.
        let length = receives as usize + sessions * (SENDS as usize + CONNECTION_EVENTS);
        let length = u32::try_from(length).unwrap_or(u32::MAX);
        let events = Evd::new(&ia, length.min(ia.attributes().max_evd_depth), streams)?;
        let mut srq = Srq::builder(&ia, &pz).depth(receives).build()?;
        let mut pool = RecvPool::new(&ia, &pz, receives, LONGEST_OUT)?;
        pool.refill(&mut srq)?;
        let links = (0..sessions).map(|_| None).collect();
        Ok(Self { links, generations: vec![0; sessions], reads: true, pool, srq, events, pz, ia })
    }

    /// The address of the device.
    pub fn address(&self) -> IpAddr {
        self.ia.address()
    }

    /// From now on, no buffer is posted again.
    pub fn stop_reading(&mut self) {
        self.reads = false;
    }

    /// Connects a session. [`News::Welcome`] or another answer follows.
    ///
    /// # Errors
    /// Those of the device.
    pub fn connect(&mut self, session: usize, to: SocketAddr, login: &Login) -> doorbell::Result<()> {
        let ep = Ep::builder(&self.ia, &self.pz)
            .srq(&self.srq)
            .evd(&self.events)
            .request_depth(SENDS)
            .request_segments(1)
            .rdma_reads_in(0)
            .rdma_reads_out(0)
            .max_inline(LONGEST_IN as u32)
            .retry(RetryAttr { rnr_retry: Some(7), ..RetryAttr::default() })
            .build()?;
        self.generations[session] += 1;
        ep.set_context(u64::from(self.generations[session]) << 32 | session as u64);
        ep.connect_with(to, ConnectOptions::new().timeout(PATIENCE).private_data(login.as_bytes()))?;
        self.links[session] = Some(Link { ep, is_connected: false, posted: 0, completed: 0 });
        Ok(())
    }

    /// Whether a session is connected.
    pub fn is_connected(&self, session: usize) -> bool {
        self.links[session].as_ref().is_some_and(|link| link.is_connected)
    }

    /// Whether a Send of this session fits.
    #[inline]
    pub fn has_room(&self, session: usize) -> bool {
        self.links[session].as_ref().is_some_and(Link::has_room)
    }

    /// Sends bytes, up to those of the longest message. Returns false if there is no room at the moment,
    /// or no connection.
    ///
    /// # Errors
    /// The post was refused.
    #[inline]
    pub fn send(&mut self, session: usize, bytes: &[u8]) -> Result<bool, PostError> {
        let Some(link) = &mut self.links[session] else { return Ok(false) };
        if !link.has_room() {
            return Ok(false);
        }
        link.posted += 1;
        let send = link.ep.send_inline(bytes).cookie(link.posted);
        let has_event = link.posted.is_multiple_of(SIGNAL);
        match if has_event { send } else { send.suppress() }.post() {
            Ok(()) => Ok(true),
            // The connection has just ended; the event is on its way.
            Err(PostError::EpState(_)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Ends the connection of a session. [`News::Ended`] follows if there is one.
    pub fn hang_up(&mut self, session: usize) {
        if let Some(link) = &self.links[session]
            && let Err(error) = link.ep.disconnect(CloseFlags::Abrupt)
        {
            tracing::debug!(%error, "disconnect");
        }
    }

    /// Whether more events came than the EVD has room for, which its length rules out.
    pub fn has_lost_events(&self) -> bool {
        std::iter::from_fn(|| self.ia.async_evd().dequeue().ok().flatten())
            .any(|event| matches!(event, Event::Async(AsyncEvent { kind: AsyncKind::EvdOverflow, .. })))
    }

    /// Takes what has come. Returns the number of events.
    ///
    /// # Errors
    /// Those of the device.
    #[inline]
    pub fn poll(&mut self, mut on: impl FnMut(usize, News<'_>)) -> doorbell::Result<usize> {
        let mut count = 0;
        while count < EVENTS
            && let Some(event) = self.events.dequeue()?
        {
            self.on_event(event, &mut on);
            count += 1;
        }
        if self.reads && count > 0 {
            self.pool.refill(&mut self.srq)?;
        }
        Ok(count)
    }

    #[inline]
    fn on_event(&mut self, event: Event, on: &mut impl FnMut(usize, News<'_>)) {
        match event {
            Event::Received(dto) => {
                if let Some(message) = self.pool.take(&dto)
                    && let Some(session) = self.session_of(dto.ep_context)
                {
                    on(session, News::Message(&message));
                }
            }
            Event::Failed(dto) if dto.op.is_receive() => drop(self.pool.take(&dto)),
            Event::Done(dto) | Event::Failed(dto) => self.on_sent(&dto),
            Event::Connected(event) | Event::Disconnected(event) | Event::NotConnected(event) => {
                self.on_connection(&event, on);
            }
            other => tracing::warn!(event = ?other, "an event that nobody has asked for"),
        }
    }

    #[inline]
    fn session_of(&self, context: u64) -> Option<usize> {
        let (session, generation) = (context as u32 as usize, (context >> 32) as u32);
        (self.generations.get(session) == Some(&generation) && self.links[session].is_some())
            .then_some(session)
    }

    fn on_sent(&mut self, dto: &DtoCompletion) {
        if let Some(session) = self.session_of(dto.ep_context)
            && let Some(link) = &mut self.links[session]
        {
            link.completed = link.completed.max(if dto.is_success() { dto.cookie } else { 0 });
        }
    }

    fn on_connection(&mut self, event: &ConnectionEvent, on: &mut impl FnMut(usize, News<'_>)) {
        let Some(session) = self.session_of(event.ep_context) else { return };
        let news = match event.kind {
            ConnectionEventKind::Established => {
                if let Some(link) = &mut self.links[session] {
                    link.is_connected = true;
                }
                match Welcome::parse(&event.private_data) {
                    Some(welcome) => return on(session, News::Welcome(welcome)),
                    None => News::Unreachable,
                }
            }
            kind if kind.is_end() => News::Ended,
            ConnectionEventKind::PeerRejected => match Refused::parse(&event.private_data) {
                Some((reason, oldest)) => News::Refused(reason, oldest),
                None => News::Unreachable,
            },
            _ => News::Unreachable,
        };
        self.links[session] = None;
        on(session, news);
    }
}
