//! A small initiator for tests and measurements. It does what it is told, also what a host must not
//! do.

use crate::proto::fabrics::{self, ConnectData, ConnectParameters, RequestData};
use crate::proto::{Cqe, SQE_LEN, Sqe};
use doorbell::{
    CloseFlags, CompletionFlags, ConnectOptions, ConnectionEventKind, DtoCompletion, DtoOp, Ep, Evd,
    EvdFlags, Event, Ia, Lmr, MemPriv, Pz, RetryAttr, Rmr, RmrBind, RmrScope, VaType,
};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use zerocopy::{FromBytes, IntoBytes};

/// How long the initiator waits for any one event.
const PATIENCE: Duration = Duration::from_secs(30);

/// The place of a response.
const RESPONSE: usize = 64;

/// Where an initiator connects from.
#[derive(Debug)]
pub struct Host {
    ia: Ia,
    pz: Arc<Pz>,
}

/// What went wrong.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The target has rejected the connection, with these private data.
    #[error("rejected: {0:?}")]
    Rejected(Vec<u8>),
    /// The connection has ended.
    #[error("ended: {0:?}")]
    Ended(ConnectionEventKind),
    /// Nothing came in time.
    #[error("nothing has come")]
    Silence,
    /// The device.
    #[error(transparent)]
    Device(#[from] doorbell::Error),
}

/// How a connection is made.
#[derive(Clone, Copy, Debug)]
pub struct Dial<'a> {
    /// The private data.
    pub private_data: &'a [u8],
    /// Commands at a time.
    pub entries: u16,
    /// Receives that are posted.
    pub receives: u16,
    /// The most receives that can be posted.
    pub room: u16,
    /// The bytes of memory for data.
    pub data: usize,
    /// The bytes of the longest capsule.
    pub capsule: usize,
    /// RDMA Reads of the target at a time.
    pub reads: u32,
}

impl Dial<'_> {
    /// The usual connection of this many commands.
    pub fn new(private_data: &[u8], entries: u16) -> Dial<'_> {
        Dial {
            private_data,
            entries,
            receives: entries,
            room: entries,
            data: 1 << 20,
            capsule: SQE_LEN + 8192,
            reads: 16,
        }
    }
}

/// A connection.
#[derive(Debug)]
pub struct Connection {
    ep: Ep,
    events: Evd,
    memory: Lmr,
    pz: Arc<Pz>,
    capsule: usize,
    data: usize,
    /// How many capsules can be under way, and where there is room for one.
    capsules: usize,
    free: Vec<usize>,
    responses: VecDeque<(Cqe, Option<u32>)>,
    ended: Option<ConnectionEventKind>,
    next: u16,
}

/// The kind of a request, in its cookie.
const SEND: u64 = 1 << 32;
const RECEIVE: u64 = 2 << 32;

impl Host {
    /// Opens the device.
    ///
    /// # Errors
    /// As [`Ia::open`].
    pub fn open(device: &str) -> doorbell::Result<Self> {
        let ia = Ia::builder(device).rnr_retry(7).rnr_timer(12).open()?;
        let pz = Arc::new(Pz::new(&ia)?);
        Ok(Self { ia, pz })
    }

    /// Makes a connection.
    ///
    /// # Errors
    /// The target has rejected it, or the device cannot.
    pub fn dial(&self, to: SocketAddr, how: Dial<'_>) -> Result<Connection, Error> {
        let streams = EvdFlags::DTO | EvdFlags::CONNECTION | EvdFlags::RMR_BIND;
        let events = Evd::new(&self.ia, 4 * u32::from(how.entries) + 64, streams)?;
        let ep = Ep::builder(&self.ia, &self.pz)
            .evd(&events)
            .recv_depth(u32::from(how.room.max(1)))
            .request_depth(u32::from(how.entries.max(1)))
            .rdma_reads_in(how.reads.min(self.ia.attributes().max_rdma_reads_in))
            .rdma_reads_out(0)
            .retry(RetryAttr { rnr_retry: Some(7), ..RetryAttr::default() })
            .build()?;
        let privileges =
            MemPriv::LOCAL_READ | MemPriv::LOCAL_WRITE | MemPriv::REMOTE_READ | MemPriv::REMOTE_WRITE;
        let responses = usize::from(how.room) * RESPONSE;
        let capsules = usize::from(how.entries) * how.capsule;
        let memory = Lmr::builder(&self.ia, &self.pz)
            .privileges(privileges)
            .allocate(responses + capsules + how.data)?;
        let mut connection = Connection {
            ep,
            events,
            memory,
            pz: self.pz.clone(),
            capsule: how.capsule,
            data: responses + capsules,
            capsules: how.entries.into(),
            free: (0..usize::from(how.entries)).map(|n| responses + n * how.capsule).rev().collect(),
            responses: VecDeque::new(),
            ended: None,
            next: 0,
        };
        connection.post_receives(how.receives);
        connection
            .ep
            .connect_with(to, ConnectOptions::new().timeout(PATIENCE).private_data(how.private_data))?;
        loop {
            return match connection.events.wait_for(PATIENCE)? {
                None => Err(Error::Silence),
                Some(Event::Connected(_)) => Ok(connection),
                Some(Event::Disconnected(end) | Event::NotConnected(end)) => Err(match end.kind {
                    ConnectionEventKind::PeerRejected => Error::Rejected(end.private_data),
                    kind => Error::Ended(kind),
                }),
                // Receives of a rejected connection are flushed.
                Some(_) => continue,
            };
        }
    }

    /// Makes the connection of a queue and sends Connect.
    ///
    /// # Errors
    /// As [`Host::dial`].
    pub fn connect(&self, to: SocketAddr, queue: Queue<'_>) -> Result<(Connection, Cqe), Error> {
        let Queue { number, entries, controller, subsystem, host, keep_alive } = queue;
        let private_data = RequestData::new(number, entries, if number == 0 { 0 } else { controller });
        let mut connection = self.dial(to, Dial::new(private_data.as_bytes(), entries))?;
        let mut sqe =
            Sqe { opcode: fabrics::OPCODE, nsid: u32::from(fabrics::CONNECT).into(), ..Sqe::default() };
        sqe.as_mut_bytes()[40..]
            .copy_from_slice(ConnectParameters::new(number, entries, keep_alive).as_bytes());
        let data = ConnectData::new([7; 16], controller, subsystem, host);
        connection.write(0, data.as_bytes())?;
        connection.keyed(&mut sqe, 0, size_of::<ConnectData>() as u32);
        let cqe = connection.execute(sqe)?;
        Ok((connection, cqe))
    }
}

/// A queue to connect.
#[derive(Clone, Copy, Debug)]
pub struct Queue<'a> {
    /// Its number.
    pub number: u16,
    /// Its entries.
    pub entries: u16,
    /// The controller; 0xffff on an admin queue.
    pub controller: u16,
    /// The subsystem.
    pub subsystem: &'a str,
    /// The host's name.
    pub host: &'a str,
    /// The keep-alive timeout in milliseconds.
    pub keep_alive: u32,
}

impl Connection {
    fn post_receive(&mut self, n: usize) {
        let to = self.memory.triplet(n * RESPONSE, RESPONSE);
        // Refused once the connection has ended.
        let _ = self.ep.post_recv(&[to], RECEIVE | n as u64, CompletionFlags::empty());
    }

    /// Posts this many receives, of a connection that has none yet.
    pub fn post_receives(&mut self, receives: u16) {
        (0..usize::from(receives)).for_each(|n| self.post_receive(n));
    }

    /// Writes to the memory for data.
    ///
    /// # Errors
    /// As [`Lmr::write`].
    pub fn write(&self, offset: usize, bytes: &[u8]) -> doorbell::Result<()> {
        self.memory.write(self.data + offset, bytes)
    }

    /// Reads from the memory for data.
    ///
    /// # Errors
    /// As [`Lmr::read`].
    pub fn read(&self, offset: usize, length: usize) -> doorbell::Result<Vec<u8>> {
        let mut bytes = vec![0; length];
        self.memory.read(self.data + offset, &mut bytes)?;
        Ok(bytes)
    }

    /// Whether the device of the host lets peers invalidate keys.
    pub fn can_invalidate(host: &Host) -> bool {
        let attributes = host.ia.attributes();
        attributes.remote_invalidate && attributes.max_rmrs > 0
    }

    /// The key of this connection's memory.
    pub fn key(&self) -> u32 {
        self.memory.rmr_context()
    }

    /// Points a command at the memory for data.
    pub fn keyed(&self, sqe: &mut Sqe, offset: usize, length: u32) {
        point(sqe, self.address(offset), length, self.key(), 0x40);
    }

    /// A key for part of the memory for data, which the target can invalidate.
    ///
    /// # Errors
    /// The device has no memory windows, or the bind fails.
    pub fn bind(&mut self, offset: usize, length: u32) -> Result<(Rmr, u32), Error> {
        let mut window = Rmr::new(&self.pz, RmrScope::Ep)?;
        let bind = RmrBind {
            lmr: &self.memory,
            privileges: MemPriv::REMOTE_READ | MemPriv::REMOTE_WRITE,
            segment: self.memory.triplet(self.data + offset, length as usize),
            va_type: VaType::Virtual,
        };
        let key = window.bind(&mut self.ep, bind, 0, CompletionFlags::empty())?;
        Ok((window, key))
    }

    /// The host's address of a place in the memory for data.
    pub fn address(&self, offset: usize) -> u64 {
        self.memory.address() + (self.data + offset) as u64
    }

    /// Sends a capsule. Its command gets no number.
    ///
    /// # Errors
    /// The connection has ended, or nothing moves.
    pub fn send(&mut self, capsule: &[u8]) -> Result<(), Error> {
        let start = loop {
            match self.free.pop() {
                Some(start) => break start,
                None => self.turn()?,
            }
        };
        self.memory.write(start, capsule)?;
        let from = self.memory.triplet(start, capsule.len().min(self.capsule));
        let sent = self.ep.send(&[from]).cookie(SEND | start as u64).post();
        Ok(sent.map_err(doorbell::Error::from)?)
    }

    /// Sends a command without data in its capsule. Returns its number.
    ///
    /// # Errors
    /// As [`Connection::send`].
    pub fn submit(&mut self, mut sqe: Sqe) -> Result<u16, Error> {
        let number = self.next;
        self.next = self.next.wrapping_add(1);
        sqe.command_id = number.into();
        if sqe.data == [0; 16] {
            sqe.data[15] = 0x40;
        }
        self.send(sqe.as_bytes())?;
        Ok(number)
    }

    /// Waits until all capsules have arrived at the target.
    ///
    /// # Errors
    /// As [`Connection::send`].
    pub fn arrived(&mut self) -> Result<(), Error> {
        while self.free.len() < self.capsules {
            self.turn()?;
        }
        Ok(())
    }

    /// The next response, with the key that it has invalidated.
    ///
    /// # Errors
    /// The connection has ended, or nothing came.
    pub fn response(&mut self) -> Result<(Cqe, Option<u32>), Error> {
        loop {
            match self.responses.pop_front() {
                Some(response) => return Ok(response),
                None => self.turn()?,
            }
        }
    }

    /// Sends a command and waits for its response. No other command may be under way.
    ///
    /// # Errors
    /// As [`Connection::send`] and [`Connection::response`].
    pub fn execute(&mut self, sqe: Sqe) -> Result<Cqe, Error> {
        self.submit(sqe)?;
        Ok(self.response()?.0)
    }

    /// Waits for the end of the connection.
    ///
    /// # Errors
    /// It does not end.
    pub fn end(&mut self) -> Result<ConnectionEventKind, Error> {
        loop {
            match self.turn() {
                Ok(()) => {}
                Err(Error::Ended(kind)) => return Ok(kind),
                Err(error) => return Err(error),
            }
        }
    }

    /// Ends the connection.
    pub fn close(mut self) {
        let _ = self.ep.disconnect(CloseFlags::Abrupt);
        let _ = self.end();
    }

    /// Handles the next event.
    fn turn(&mut self) -> Result<(), Error> {
        if let Some(kind) = self.ended {
            return Err(Error::Ended(kind));
        }
        match self.events.wait_for(PATIENCE)?.ok_or(Error::Silence)? {
            Event::Received(dto) | Event::Done(dto) => self.completed(&dto),
            Event::Disconnected(end) => self.ended = Some(end.kind),
            // Flushed; the end of the connection follows.
            _ => {}
        }
        Ok(())
    }

    fn completed(&mut self, dto: &DtoCompletion) {
        let n = dto.cookie as u32 as usize;
        if matches!(dto.op, DtoOp::Receive | DtoOp::ReceiveWithInvalidate) {
            let mut cqe = [0; size_of::<Cqe>()];
            if self.memory.read(n * RESPONSE, &mut cqe).is_ok() {
                let cqe = Cqe::read_from_bytes(&cqe).expect("16 bytes");
                self.responses.push_back((cqe, dto.invalidated));
            }
            self.post_receive(n);
        } else {
            self.free.push(n);
        }
    }
}

/// Points a command at memory of the host.
pub fn point(sqe: &mut Sqe, address: u64, length: u32, key: u32, kind: u8) {
    sqe.data[..8].copy_from_slice(&address.to_le_bytes());
    sqe.data[8..11].copy_from_slice(&length.to_le_bytes()[..3]);
    sqe.data[11..15].copy_from_slice(&key.to_le_bytes());
    sqe.data[15] = kind;
}
