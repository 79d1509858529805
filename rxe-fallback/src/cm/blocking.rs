//! Connecting and accepting with a timeout, for programs without an event loop.
//!
//! Each connection has its own event channel.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::channel::EventChannel;
use super::event::{CmEvent, CmEventKind, ConnInfo};
use super::id::CmId;
use super::param::ConnParam;
use crate::error::{Error, Result};
use crate::qp::Qp;

/// A listening id.
#[derive(Debug)]
pub struct Listener {
    id: CmId,
}

/// A connection request, to be accepted or rejected; dropping it rejects.
#[derive(Debug)]
pub struct Incoming {
    id: CmId,
    /// The peer's private data, padded with zeroes.
    pub private_data: Vec<u8>,
    /// The peer's parameters.
    pub conn: ConnInfo,
}

/// A peer whose address and route are known: the device is known too, so that a QP can be created.
#[derive(Debug)]
pub struct Resolved {
    id: CmId,
}

/// One end of a connection.
#[derive(Debug)]
pub struct Connection {
    id: CmId,
    /// The private data of the peer's answer, padded with zeroes; empty on the passive side.
    pub private_data: Vec<u8>,
    /// The peer's parameters.
    pub conn: ConnInfo,
}

impl Listener {
    /// Listens on `address`; port 0 selects a free port.
    ///
    /// # Errors
    /// As [`EventChannel::create`], [`CmId::bind`] and [`CmId::listen`].
    pub fn bind(address: SocketAddr, backlog: u32) -> Result<Self> {
        let id = CmId::create(&EventChannel::create()?, 0)?;
        id.bind(address)?;
        id.listen(backlog)?;
        Ok(Self { id })
    }

    /// The address on which it listens.
    #[must_use]
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.id.local_addr()
    }

    /// The next connection request.
    ///
    /// # Errors
    /// ETIMEDOUT if none arrives within `timeout`; ENODEV if the device is removed.
    pub fn accept_timeout(&self, timeout: Duration) -> Result<Incoming> {
        let wanted = [CmEventKind::ConnectRequest];
        let event = wait(self.id.channel(), "rdma_listen", &wanted, Instant::now() + timeout)?;
        let mut id = event.new_id.ok_or_else(|| Error::new("rdma_get_cm_event", libc::EPROTO))?;
        id.migrate(&EventChannel::create()?)?;
        Ok(Incoming { id, private_data: event.private_data, conn: event.conn })
    }
}

impl Incoming {
    /// The connection's id: device, port, addresses, `qp_to_init` for receives posted before
    /// accepting.
    #[must_use]
    pub fn id(&self) -> &CmId {
        &self.id
    }

    /// Moves `qp` to ready-to-send, accepts, and waits until the connection is established.
    ///
    /// # Errors
    /// As [`CmId::qp_to_rts`] and [`CmId::accept`]; ETIMEDOUT when the peer does not answer within
    /// `timeout`.
    pub fn accept_timeout(self, qp: &Qp, param: &ConnParam<'_>, timeout: Duration) -> Result<Connection> {
        let deadline = Instant::now() + timeout;
        self.id.qp_to_rts(qp, Some(param.responder_resources), Some(param.initiator_depth))?;
        self.id.accept(param)?;
        wait(self.id.channel(), "rdma_accept", &[CmEventKind::Established], deadline)?;
        Ok(Connection { id: self.id, private_data: Vec::new(), conn: self.conn })
    }

    /// Rejects the request.
    ///
    /// # Errors
    /// As [`CmId::reject`].
    pub fn reject(self, private_data: &[u8]) -> Result<()> {
        self.id.reject(private_data)
    }
}

/// The time limit of the first try to resolve an address.
const FIRST_TRY: Duration = Duration::from_millis(50);

impl Resolved {
    /// Resolves address and route to `dst`, from `src` if given.
    ///
    /// # Errors
    /// ENODEV if no RDMA device reaches `dst`; EHOSTUNREACH or ETIMEDOUT without an answer within
    /// `timeout`.
    pub fn resolve_timeout(src: Option<SocketAddr>, dst: SocketAddr, timeout: Duration) -> Result<Self> {
        let deadline = Instant::now() + timeout;
        let channel = EventChannel::create()?;
        let id = CmId::create(&channel, 0)?;
        // In several tries, of which the first are short: see `CmId::resolve_addr`.
        let mut limit = FIRST_TRY;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            id.resolve_addr(src, dst, limit.min(left))?;
            match wait(&channel, "rdma_resolve_addr", &[CmEventKind::AddrResolved], deadline) {
                Ok(_) => break,
                Err(error) if error.errno() == libc::ETIMEDOUT && Instant::now() < deadline => limit *= 2,
                Err(error) => return Err(error),
            }
        }
        id.resolve_route(deadline.saturating_duration_since(Instant::now()))?;
        wait(&channel, "rdma_resolve_route", &[CmEventKind::RouteResolved], deadline)?;
        Ok(Self { id })
    }

    /// The connection's id: device, port, addresses, `qp_to_init` for receives posted before
    /// connecting.
    #[must_use]
    pub fn id(&self) -> &CmId {
        &self.id
    }

    /// Connects, moves `qp` to ready-to-send, and confirms (RTU).
    ///
    /// # Errors
    /// ECONNREFUSED if the peer rejects or does not listen; EHOSTUNREACH or ETIMEDOUT without an
    /// answer; otherwise as [`CmId::connect`] and [`CmId::qp_to_rts`].
    pub fn connect_timeout(self, qp: &Qp, param: &ConnParam<'_>, timeout: Duration) -> Result<Connection> {
        let deadline = Instant::now() + timeout;
        self.id.connect(param)?;
        let event = wait(self.id.channel(), "rdma_connect", &[CmEventKind::ConnectResponse], deadline)?;
        self.id.qp_to_rts(qp, None, None)?;
        self.id.establish()?;
        Ok(Connection { id: self.id, private_data: event.private_data, conn: event.conn })
    }
}

impl Connection {
    /// The connection's id.
    #[must_use]
    pub fn id(&self) -> &CmId {
        &self.id
    }

    /// Ends the connection. The caller moves the QP to the error state (`to_error`).
    ///
    /// # Errors
    /// As [`CmId::disconnect`].
    pub fn disconnect(&self) -> Result<()> {
        self.id.disconnect()
    }

    /// Waits until either side has ended the connection, and answers the peer's disconnect.
    ///
    /// # Errors
    /// ETIMEDOUT if the connection has not ended within `timeout`.
    pub fn wait_disconnected_timeout(&self, timeout: Duration) -> Result<()> {
        let wanted = [CmEventKind::Disconnected, CmEventKind::TimewaitExit, CmEventKind::DeviceRemoval];
        wait(self.id.channel(), "rdma_disconnect", &wanted, Instant::now() + timeout)?;
        // The peer waits for an answer. If this side disconnected first, the call fails; the error
        // is ignored.
        let _ = self.id.disconnect();
        Ok(())
    }
}

/// Waits for the next event of one of the kinds in `wanted`; any error event ends the wait.
fn wait(
    channel: &EventChannel,
    verb: &'static str,
    wanted: &[CmEventKind],
    deadline: Instant,
) -> Result<CmEvent> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let Some(event) = channel.next_event_timeout(left)? else {
            return Err(Error::new(verb, libc::ETIMEDOUT)
                .with_detail(format!("{:?} did not arrive in time", wanted[0])));
        };
        if wanted.contains(&event.kind) {
            return Ok(event);
        }
        match event.errno() {
            0 => {}
            errno => return Err(Error::new(verb, errno).with_detail(describe(&event))),
        }
    }
}

fn describe(event: &CmEvent) -> String {
    match event.kind {
        CmEventKind::Rejected if event.rejected_by_consumer() => {
            "the peer has rejected the connection".to_owned()
        }
        CmEventKind::Rejected if event.nobody_listens() => "the peer does not listen at that port".to_owned(),
        kind => format!("{kind:?} with status {}", event.status),
    }
}
