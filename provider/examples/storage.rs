//! A server that stays up whatever its clients do, and that ends without losing anything: a table
//! of records that clients write by messages and read by RDMA Read.
//!
//! ```sh
//! cargo run -p doorbell --example storage server mlx5_0                 # SIGTERM or Ctrl-C ends it
//! cargo run -p doorbell --example storage client mlx5_0 ADDRESS PORT    # second terminal
//! ```
//!
//! Without RDMA hardware, run both commands on the software device:
//! `hw-tests/with-emu 'bash'` opens a shell in which `mlx5_0` exists.
//!
//! - A client can vanish at any time. If it vanishes while it connects, the accept fails or
//!   [`Event::NotConnected`] comes; later, [`Event::Disconnected`] comes. In all cases but the first,
//!   [`Event::Drained`] is the last event of its EP: there, and only there, the server drops the EP.
//! - Answers are inline: no client can hold a buffer of the server by not receiving its answer.
//! - A signal becomes an event of the server's one EVD. The server then says goodbye to its clients,
//!   and disconnects those that do not leave.
//! - A record ends with a checksum: a client that reads it while the server writes it notices, and
//!   reads it again.

use doorbell::{
    AsyncEvent, AsyncKind, AsyncObject, CloseFlags, ConnectOptions, CrArrival, DtoOp, Ep, EpId, Evd,
    EvdFlags, Event, Ia, Lmr, MemPriv, PostError, Psp, Pz, Received, RecvPool, ReturnType, RmrTriplet,
    SendPool, Srq, reason,
};
use nix::sys::signal::{SigSet, Signal};
use std::collections::HashMap;
use std::error::Error;
use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

/// Receive buffers for all clients. An event comes when fewer than `LOW` are left.
const BUFFERS: u32 = 64;
const LOW: u32 = 16;

/// More clients are rejected.
const MAX_CLIENTS: usize = 200;
/// Answers that are under way to one client at most.
const ANSWERS: u32 = 8;
/// The server's EVD never overflows: all receives; for each of 200 clients its answers, and at most
/// six other events; and connection requests that wait.
const EVENTS: u32 = 64 + 200 * (8 + 6) + 1024;

/// The table has this many records, each with a value and a checksum of 8 bytes.
const RECORDS: usize = 64;
const VALUE: usize = 56;
const RECORD: usize = VALUE + 8;

/// A request is the number of a record and its new value. The answer is the number of the record,
/// or one of these.
const GOODBYE: u32 = u32::MAX;
const BAD: u32 = u32::MAX - 1;

/// How long clients have to leave after the goodbye, after a disconnect, and after an abrupt one.
const GRACE: Duration = Duration::from_secs(2);
/// How long a client waits for any one event.
const PATIENCE: Duration = Duration::from_secs(20);

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["server", device] => serve(device),
        ["client", device, address, port] => {
            Client::connect(device, SocketAddr::new(address.parse()?, port.parse()?), PATIENCE)?.run()
        }
        ["client", device, address, port, milliseconds] => {
            let patience = Duration::from_millis(milliseconds.parse()?);
            Client::connect(device, SocketAddr::new(address.parse()?, port.parse()?), patience)?.run()
        }
        _ => Err("usage: storage server DEVICE | client DEVICE ADDRESS PORT [MILLISECONDS]".into()),
    }
}

/// A record as the table has it.
fn record(number: u32, value: &[u8; VALUE]) -> [u8; RECORD] {
    let mut record = [0; RECORD];
    record[..VALUE].copy_from_slice(value);
    record[VALUE..].copy_from_slice(&checksum(number, value).to_le_bytes());
    record
}

/// FNV-1a of the number and the value.
fn checksum(number: u32, value: &[u8]) -> u64 {
    let step = |sum: u64, byte: &u8| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    number.to_le_bytes().iter().chain(value).fold(0xcbf2_9ce4_8422_2325, step)
}

/// Where record `number` begins, if there is one.
fn offset(number: u32) -> Option<usize> {
    usize::try_from(number).ok().filter(|number| *number < RECORDS).map(|number| number * RECORD)
}

struct Server {
    clients: HashMap<EpId, Ep>,
    table: Lmr,
    events: Evd,
    pz: Pz,
    /// When the signal came, and how often clients were disconnected since.
    ending: Option<(Instant, u32)>,
    stored: u64,
    connected: u64,
    not_accepted: u64,
    not_connected: u64,
}

fn serve(device: &str) -> Result<()> {
    // Before any other thread begins, so that all have the signals blocked.
    let signals = SigSet::from_iter([Signal::SIGINT, Signal::SIGTERM]);
    signals.thread_block()?;

    let ia = Ia::builder(device).rnr_retry(7).rnr_timer(12).open()?;
    let pz = Pz::new(&ia)?;
    let streams = EvdFlags::CR | EvdFlags::CONNECTION | EvdFlags::DTO | EvdFlags::SOFTWARE | EvdFlags::ASYNC;
    let events = Evd::new(&ia, EVENTS, streams)?;
    ia.send_async_events_to(&events)?;
    let privileges = MemPriv::LOCAL_READ | MemPriv::LOCAL_WRITE | MemPriv::REMOTE_READ;
    let table = Lmr::builder(&ia, &pz).privileges(privileges).allocate(RECORDS * RECORD)?;
    let mut srq = Srq::builder(&ia, &pz).depth(BUFFERS).build()?;
    let mut pool = RecvPool::new(&ia, &pz, BUFFERS, 4 + VALUE)?;
    pool.refill(&mut srq)?;
    srq.set_low_watermark(LOW)?;

    let evd = events.clone();
    let watcher = thread::spawn(move || {
        signals.wait().map_err(|error| error.to_string())?;
        evd.post_software_event(0).map_err(|error| error.to_string())
    });

    let mut service = Some(Psp::builder(&ia, &events).build()?);
    if let Some(service) = &service {
        println!("listening at {} {}", ia.address(), service.port());
    }
    let mut server = Server {
        clients: HashMap::new(),
        table,
        events: events.clone(),
        pz,
        ending: None,
        stored: 0,
        connected: 0,
        not_accepted: 0,
        not_connected: 0,
    };
    loop {
        match pool.next_for(&mut srq, &events, Duration::from_millis(500)) {
            Ok(None) => {}
            Ok(Some(Received::Message(message))) => server.message(message.ep(), &message)?,
            Ok(Some(Received::Failed(_))) => {} // flushed: its connection has ended
            Ok(Some(Received::Other(Event::ConnectionRequest(request)))) => {
                server.request(&ia, &srq, request)?;
            }
            Ok(Some(Received::Other(Event::Async(AsyncEvent {
                object: AsyncObject::Srq(_),
                reason: reason::SRQ_LOW_WATERMARK,
                ..
            })))) => {
                println!("few buffers are left: {:?}", pool.gauges(&srq)?);
                pool.refill(&mut srq)?;
                srq.set_low_watermark(LOW)?; // the event comes once for each call
            }
            Ok(Some(Received::Other(event))) => server.event(&event)?,
            Err(error) if error.return_type() == ReturnType::InterruptedCall => {} // a signal's handler ran
            Err(error) => return Err(error.into()),
        }
        if server.ending.is_some() {
            if let Some(service) = service.take() {
                service.close()?;
            }
            if server.has_ended()? {
                break;
            }
        }
    }

    watcher.join().map_err(|_| "the thread for signals has panicked")??;
    pool.refill(&mut srq)?;
    let gauges = pool.gauges(&srq)?;
    if gauges.out != 0 || gauges.free != 0 || gauges.unreaped != 0 {
        return Err(format!("a buffer is missing: {gauges:?}").into());
    }
    let Server { table, pz, stored, connected, not_accepted, not_connected, .. } = server;
    // First what uses, then what is used.
    srq.close()?;
    pool.close()?;
    table.close()?;
    events.close()?;
    pz.close()?;
    ia.close()?;
    println!(
        "{stored} stored, {connected} connected, {not_accepted} not accepted, {not_connected} not connected"
    );
    Ok(())
}

impl Server {
    fn request(&mut self, ia: &Ia, srq: &Srq, request: CrArrival) -> Result<()> {
        if self.ending.is_some() || self.clients.len() >= MAX_CLIENTS {
            // An error says that the client has gone.
            let _ = request.cr.reject(b"no room");
            return Ok(());
        }
        let ep = Ep::builder(ia, &self.pz)
            .srq(srq)
            .evd(&self.events)
            .request_depth(ANSWERS)
            .max_inline(4)
            .tell_drained()
            .build()?;
        let table = self.table.remote(0, self.table.len());
        match request.cr.accept(&ep, &table.to_bytes()) {
            Ok(()) => drop(self.clients.insert(ep.id(), ep)),
            // The client has gone: it gets no event, and dropping the EP frees it.
            Err(refused) => {
                println!("not accepted: {}", refused.error);
                self.not_accepted += 1;
            }
        }
        Ok(())
    }

    /// A message can come before its client's Connected event, and can be answered then as well.
    fn message(&mut self, from: EpId, message: &[u8]) -> Result<()> {
        let answer = self.store(message)?.unwrap_or(BAD);
        self.answer(from, answer)
    }

    fn store(&mut self, message: &[u8]) -> Result<Option<u32>> {
        let Some((number, value)) = message.split_first_chunk() else { return Ok(None) };
        let number = u32::from_le_bytes(*number);
        let (Some(offset), Ok(value)) = (offset(number), value.try_into()) else { return Ok(None) };
        self.table.write(offset, &record(number, value))?;
        self.stored += 1;
        Ok(Some(number))
    }

    fn answer(&mut self, to: EpId, answer: u32) -> Result<()> {
        let Some(ep) = self.clients.get_mut(&to) else { return Ok(()) };
        match ep.send_inline(&answer.to_le_bytes()).suppress().post() {
            Ok(()) => {}
            Err(PostError::EpState(_)) => {} // it is not connected yet, or is about to leave
            Err(PostError::Full(_)) => ep.disconnect(CloseFlags::Abrupt)?, // it does not take its answers
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    fn event(&mut self, event: &Event) -> Result<()> {
        match event {
            Event::Connected(client) => {
                self.connected += 1;
                if self.ending.is_some() {
                    self.answer(client.ep, GOODBYE)?;
                }
            }
            Event::NotConnected(_) => self.not_connected += 1,
            Event::Drained(client) => drop(self.clients.remove(&client.ep)),
            Event::Software(_) => {
                self.ending = Some((Instant::now(), 0));
                let clients: Vec<EpId> = self.clients.keys().copied().collect();
                for client in clients {
                    self.answer(client, GOODBYE)?;
                }
            }
            // An answer that fails ends its connection. Drained follows Disconnected.
            Event::Failed(_) | Event::Disconnected(_) => {}
            Event::Async(AsyncEvent { kind: AsyncKind::EpBroken, .. }) => {} // Disconnected says so, too
            other => println!("{other:?}"),
        }
        Ok(())
    }

    /// Whether all clients have left. Disconnects those that stay.
    fn has_ended(&mut self) -> Result<bool> {
        if let Some((since, tries)) = &mut self.ending
            && !self.clients.is_empty()
            && since.elapsed() > GRACE
        {
            let how = match *tries {
                0 => CloseFlags::Graceful, // answers under way arrive first
                1 => CloseFlags::Abrupt,
                _ => return Err("connections have ended, and the device keeps them".into()),
            };
            println!("{how:?} disconnect of {} clients", self.clients.len());
            for ep in self.clients.values() {
                ep.disconnect(how)?;
            }
            (*since, *tries) = (Instant::now(), *tries + 1);
        }
        Ok(self.clients.is_empty())
    }
}

struct Client {
    ep: Ep,
    events: Evd,
    /// For answers.
    answers: RecvPool,
    /// For requests, and for what RDMA Reads bring.
    buffers: SendPool,
    table: RmrTriplet,
    // Fields are dropped in this order: first what uses, then what is used.
    _pz: Pz,
    _ia: Ia,
}

/// What a client waits for.
#[derive(Debug)]
enum Step {
    /// A request has left its buffer.
    Sent,
    /// An RDMA Read has brought these bytes.
    Read(Vec<u8>),
    Answer(u32),
    Disconnected,
}

impl Client {
    fn connect(device: &str, server: SocketAddr, patience: Duration) -> Result<Self> {
        let ia = Ia::open(device)?;
        let pz = Pz::new(&ia)?;
        let events = Evd::new(&ia, 64, EvdFlags::CONNECTION | EvdFlags::DTO)?;
        let mut answers = RecvPool::new(&ia, &pz, 8, 4)?;
        let buffers = SendPool::new(&ia, &pz, 4, RECORD)?;
        let mut ep = Ep::builder(&ia, &pz).evd(&events).recv_depth(8).build()?;
        answers.refill(&mut ep)?;
        ep.connect_with(server, ConnectOptions::new().timeout(patience))?;
        println!("connecting");
        match events.wait_for(PATIENCE)? {
            Some(Event::Connected(answer)) => {
                let table = RmrTriplet::from_bytes(&answer.private_data).ok_or("the answer is too short")?;
                Ok(Self { ep, events, answers, buffers, table, _pz: pz, _ia: ia })
            }
            other => Err(format!("no connection: {other:?}").into()),
        }
    }

    fn run(mut self) -> Result<()> {
        for number in 0..u32::try_from(RECORDS)? {
            let value = [u8::try_from(number + 1)?; VALUE];
            self.store(number, &value)?;
            if self.read(number)? != value {
                return Err(format!("record {number} has another value").into());
            }
        }
        println!("stored and read {RECORDS} records");
        loop {
            match self.step(Duration::MAX)? {
                Step::Answer(GOODBYE) => self.ep.disconnect(CloseFlags::Graceful)?,
                Step::Disconnected => break,
                other => return Err(format!("neither a goodbye nor the end: {other:?}").into()),
            }
        }
        println!("left");
        Ok(())
    }

    fn store(&mut self, number: u32, value: &[u8; VALUE]) -> Result<()> {
        let mut buffer = self.buffers.take().ok_or("no buffer is free")?;
        buffer[..4].copy_from_slice(&number.to_le_bytes());
        buffer[4..4 + VALUE].copy_from_slice(value);
        self.buffers.send(buffer).len(4 + VALUE).post(&mut self.ep)?;
        let (mut sent, mut answered) = (false, false);
        while !sent || !answered {
            match self.step(PATIENCE)? {
                Step::Sent => sent = true,
                Step::Answer(answer) if answer == number => answered = true,
                other => return Err(format!("not the answer: {other:?}").into()),
            }
        }
        Ok(())
    }

    /// The value of a record, as no write had it half done.
    fn read(&mut self, number: u32) -> Result<Vec<u8>> {
        let at = offset(number).ok_or("no such record")?;
        loop {
            let buffer = self.buffers.take().ok_or("no buffer is free")?;
            let record = self.table.part(at, RECORD).ok_or("the table is too short")?;
            self.buffers.read(buffer).from(record).post(&mut self.ep)?;
            let Step::Read(mut record) = self.step(PATIENCE)? else { return Err("not what was read".into()) };
            let sum = record.split_off(VALUE);
            if sum == checksum(number, &record).to_le_bytes() {
                return Ok(record);
            }
        }
    }

    fn step(&mut self, patience: Duration) -> Result<Step> {
        loop {
            match self.events.wait_for(patience)?.ok_or("no event has come")? {
                Event::Received(dto) => {
                    let message = self.answers.take(&dto).ok_or("an unknown buffer")?;
                    let answer = u32::from_le_bytes(message[..].try_into()?);
                    drop(message);
                    self.answers.refill(&mut self.ep)?;
                    return Ok(Step::Answer(answer));
                }
                Event::Done(dto) => {
                    let buffer = self.buffers.take_done(&dto).ok_or("an unknown request")?;
                    let is_read = dto.op == DtoOp::RdmaRead;
                    return Ok(if is_read { Step::Read(buffer.to_vec()) } else { Step::Sent });
                }
                Event::Failed(_) => {} // Disconnected follows
                Event::Disconnected(_) => return Ok(Step::Disconnected),
                other => return Err(format!("unexpected: {other:?}").into()),
            }
        }
    }
}
