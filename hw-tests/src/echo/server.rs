//! The server: sends every message back to its sender.

use super::counters::RnrCounter;
use super::end::{End, Line};
use super::wire::{Counts, Note, Purpose};
use super::{DEFAULT_PORT, Failure};
use doorbell::{
    ConnectionEvent, Cr, DtoCompletion, DtoOp, Ep, EpAttr, EpId, EpState, Error, Event, PostError, Psp,
    RecvBuf, RecvPool, Refused, SendPool, Srq,
};
use std::collections::{HashMap, VecDeque};
use std::convert::Infallible;
use std::time::{Duration, Instant};

/// Buffers that connections held which have just ended come back within this time.
const SETTLE_TIME: Duration = Duration::from_secs(20);

/// How to serve.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// The RDMA device: a name, a network interface or an address [default: the first one]
    #[arg(long)]
    pub device: Option<String>,
    /// Where to listen: a port, 0 for any that is free
    #[arg(long, value_name = "QUAL", default_value_t = DEFAULT_PORT)]
    pub bind: u16,
    /// Where messages arrive.
    #[command(flatten)]
    pub buffers: Buffers,
    /// The longest message in bytes
    #[arg(long, value_name = "BYTES", default_value_t = 1 << 20, value_parser = clap::value_parser!(u32).range(..=1 << 30))]
    pub largest: u32,
    /// End when the process that started this one does
    #[arg(long, hide = true)]
    pub with_parent: bool,
}

/// Where messages arrive.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct Buffers {
    /// Receive buffers, for all clients together [default: 256, or 64 for messages over 256 KiB]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub srq_depth: Option<u32>,
    /// No SRQ: each connection has receives of its own
    #[arg(long)]
    pub plain: bool,
}

impl Buffers {
    fn depth(self, largest: u32) -> u32 {
        self.srq_depth.unwrap_or(if largest > 256 << 10 { 64 } else { 256 })
    }
}

/// Where a connection's messages arrive: in its own receives, or in the SRQ that all share.
struct Connection {
    ep: Ep,
    own: Option<RecvPool>,
    /// The first message can arrive before the connection is established; the answer has to wait
    /// for that event.
    up: bool,
    /// Messages to send back, oldest first.
    waiting: VecDeque<RecvBuf>,
    /// Sends under way, and how many may be.
    sends: u32,
    most: u32,
    events: u32,
}

/// A client, known by its control connection.
struct Client {
    line: Line,
    up: bool,
    /// A control message that came before the connection was established.
    early: Option<Note>,
    name: String,
    credits: u32,
    rnr: RnrCounter,
}

struct Server {
    connections: HashMap<EpId, Connection>,
    clients: HashMap<EpId, Client>,
    /// Notes whose answer tells the SRQ's counts, and when it has to go out.
    notes: VecDeque<(EpId, Note, Instant)>,
    /// Connections with messages to send back.
    busy: VecDeque<EpId>,
    shared: Option<(Srq, RecvPool)>,
    sends: SendPool,
    _psp: Psp,
    depth: u32,
    largest: u32,
    granted: u32,
    device: String,
    end: End,
}

/// Serves until the process is ended.
///
/// # Errors
/// [`Failure::Setup`] if the device, the port or the memory is not available; [`Failure::Run`]
/// when the device fails later.
pub fn serve(options: &Options) -> Result<Infallible, Failure> {
    let mut server = Server::new(options)?;
    server.run().map_err(|e| Failure::run("the device failed", e))
}

fn first_device() -> Result<String, Failure> {
    let devices = rxe_fallback::devices().map_err(|e| Failure::setup("no RDMA device", e))?;
    let first = devices.into_iter().next();
    first
        .map(|device| device.name)
        .ok_or_else(|| Failure::Setup("this machine has no RDMA device".to_owned()))
}

impl Server {
    fn new(options: &Options) -> Result<Self, Failure> {
        let device = options.device.clone().map_or_else(first_device, Ok)?;
        let mut end = End::open(&device)?;
        let depth = options.buffers.depth(options.largest);
        let size = (options.largest as usize).max(1);
        let buffers = |e| Failure::setup(&format!("{depth} receive buffers of {size} bytes"), e);
        let shared = if options.buffers.plain {
            None
        } else {
            let mut srq = Srq::builder(&end.ia, &end.pz).depth(depth).build().map_err(buffers)?;
            let mut pool = RecvPool::new(&end.ia, &end.pz, depth, size).map_err(buffers)?;
            pool.refill(&mut srq).map_err(|e| buffers(e.into()))?;
            Some((srq, pool))
        };
        let sends = SendPool::new(&end.ia, &end.pz, depth, size)
            .map_err(|e| Failure::setup(&format!("{depth} send buffers of {size} bytes"), e))?;
        end.expect(depth).map_err(buffers)?;
        let psp = Psp::builder(&end.ia, &end.evd).port(options.bind).build();
        let psp = psp.map_err(|e| Failure::setup("cannot listen", e))?;
        let port = psp.port();
        let queue = if shared.is_some() { "one SRQ" } else { "receives of each connection" };
        println!(
            "listening on {}, address {}, port {port}: {depth} buffers of {size} bytes, {queue}",
            end.ia.attributes().device_name,
            end.ia.address()
        );
        Ok(Self {
            connections: HashMap::new(),
            clients: HashMap::new(),
            notes: VecDeque::new(),
            busy: VecDeque::new(),
            shared,
            sends,
            _psp: psp,
            depth,
            largest: options.largest,
            granted: 0,
            device,
            end,
        })
    }

    fn run(&mut self) -> Result<Infallible, Error> {
        loop {
            let due = self.notes.front().map(|(.., due)| due.saturating_duration_since(Instant::now()));
            if let Some(event) = self.end.next(due)? {
                self.on(event)?;
            }
            // Handle what else has arrived, then answer, so that no client waits for long.
            for _ in 0..self.depth {
                let Some(event) = self.end.evd.dequeue()? else { break };
                self.on(event)?;
            }
            self.answer()?;
            self.answer_notes()?;
        }
    }

    fn on(&mut self, event: Event) -> Result<(), Error> {
        match event {
            Event::Received(dto) | Event::Done(dto) | Event::Failed(dto) => self.completed(&dto),
            Event::ConnectionRequest(arrival) => {
                if let Err(error) = self.admit(arrival.cr) {
                    eprintln!("a connection was refused: {error}");
                }
            }
            Event::Connected(event) => self.up(event.ep),
            Event::Disconnected(event) | Event::NotConnected(event) => return self.gone(&event),
            _ => {}
        }
        Ok(())
    }

    fn completed(&mut self, dto: &DtoCompletion) {
        if let Some(client) = self.clients.get_mut(&dto.ep) {
            match client.line.on(dto) {
                Some(note) if client.up => self.heard(dto.ep, note),
                note => client.early = note.or(client.early),
            }
            return;
        }
        if dto.op == DtoOp::Send {
            self.sends.completed(dto);
            if let Some(connection) = self.connections.get_mut(&dto.ep) {
                connection.sends -= 1;
            }
            return;
        }
        let Some(connection) = self.connections.get_mut(&dto.ep) else { return };
        let pool = match (&mut connection.own, &mut self.shared) {
            (Some(own), _) => own,
            (None, Some((_, pool))) => pool,
            (None, None) => return,
        };
        // The buffer of a failed receive is free again; another event reports the end of the
        // connection.
        if let Some(message) = pool.take(dto) {
            if connection.up && connection.waiting.is_empty() {
                self.busy.push_back(dto.ep);
            }
            connection.waiting.push_back(message);
        }
    }

    /// Sends back all messages that can be sent now.
    fn answer(&mut self) -> Result<(), Error> {
        for _ in 0..self.busy.len() {
            let Some(id) = self.busy.pop_front() else { break };
            let Some(connection) = self.connections.get_mut(&id) else { continue };
            while connection.sends < connection.most
                && !connection.waiting.is_empty()
                && let Some(mut buf) = self.sends.take()
                && let Some(message) = connection.waiting.pop_front()
            {
                let len = message.len();
                buf[..len].copy_from_slice(&message);
                drop(message);
                // The answer returns a credit, so a buffer has to be posted before it.
                refill(&mut self.shared, connection)?;
                match self.sends.send(buf).len(len).post(&mut connection.ep) {
                    Ok(()) => connection.sends += 1,
                    Err(Refused { error, .. }) => {
                        // If the connection has ended, an event reports that.
                        if connection.ep.state() == EpState::Connected {
                            return Err(error.into());
                        }
                        break;
                    }
                }
            }
            if !connection.waiting.is_empty() {
                self.busy.push_back(id);
            }
        }
        if let Some((srq, pool)) = &mut self.shared {
            pool.refill(srq)?;
        }
        Ok(())
    }

    fn admit(&mut self, cr: Cr) -> Result<(), Error> {
        match Purpose::decode(cr.private_data()) {
            Some(Purpose::Control) => {
                self.end.expect(Line::EVENTS)?;
                let line = Line::new(&self.end)?;
                let name = cr.remote().map_or_else(|| "?".to_owned(), |remote| remote.to_string());
                cr.accept(&line.ep, &[])?;
                let rnr = RnrCounter::new(&self.device, &self.end.ia.attributes().device_name);
                self.clients
                    .insert(line.ep.id(), Client { line, up: false, early: None, name, credits: 0, rnr });
            }
            Some(Purpose::Messages { window }) => {
                let window = window.min(self.depth);
                // The acknowledgement of an answer may come later than the next message.
                let most = 2 * window + 2;
                let events = most + window + 1;
                let attr = EpAttr { request_depth: most, request_segments: 1, ..EpAttr::default() };
                let end = &mut self.end;
                end.expect(events)?;
                let (ep, own) = match &self.shared {
                    Some((srq, _)) => (
                        Ep::builder(&end.ia, &end.pz).evd(&end.evd).srq(srq).attributes(&attr).build()?,
                        None,
                    ),
                    None => {
                        let attr = EpAttr { recv_depth: window, ..attr };
                        let own = RecvPool::new(&end.ia, &end.pz, window, (self.largest as usize).max(1))?;
                        (Ep::builder(&end.ia, &end.pz).evd(&end.evd).attributes(&attr).build()?, Some(own))
                    }
                };
                let waiting = VecDeque::with_capacity(window as usize);
                let mut connection = Connection { ep, own, up: false, waiting, sends: 0, most, events };
                refill(&mut self.shared, &mut connection)?;
                cr.accept(&connection.ep, &[])?;
                self.connections.insert(connection.ep.id(), connection);
            }
            None => cr.reject(b"this is a doorbell-echo server")?,
        }
        Ok(())
    }

    fn heard(&mut self, id: EpId, note: Note) {
        self.notes.push_back((id, note, Instant::now() + SETTLE_TIME));
    }

    /// Answers the notes that can be answered now.
    fn answer_notes(&mut self) -> Result<(), Error> {
        while let Some(&(id, note, due)) = self.notes.front() {
            let srq = match self.counts()? {
                // With other clients, the counts say nothing about this one.
                _ if self.clients.len() > 1 => None,
                Some((available, outstanding))
                    if (available, outstanding) != (self.depth, self.depth) && Instant::now() < due =>
                {
                    break;
                }
                counts => counts,
            };
            self.notes.pop_front();
            if let Err(error) = self.answer_note(id, note, srq) {
                eprintln!("a control message was not answered: {error}");
            }
        }
        Ok(())
    }

    fn answer_note(&mut self, id: EpId, note: Note, srq: Option<Counts>) -> Result<(), Error> {
        let Some(client) = self.clients.get_mut(&id) else { return Ok(()) };
        let answer = match note {
            Note::Hello { largest, .. } if largest > self.largest => Note::TooLarge { largest: self.largest },
            Note::Hello { connections, window, .. } => {
                self.granted -= std::mem::take(&mut client.credits);
                let free = self.depth - self.granted;
                let connections = connections.max(1);
                let window = if window == 0 { (free / connections).max(1) } else { window.min(free) };
                let credits = free.min(window.saturating_mul(connections));
                if credits == 0 {
                    Note::Busy
                } else {
                    println!("{}: {connections} connections, {credits} credits{}", client.name, shown(srq));
                    client.credits = credits;
                    self.granted += credits;
                    Note::Welcome { credits, window, srq }
                }
            }
            Note::Finish => {
                println!("{}: finished{}", client.name, shown(srq));
                let rnr = client.rnr.events().map(|n| u32::try_from(n).unwrap_or(u32::MAX - 1));
                Note::Summary { srq, rnr }
            }
            _ => return Ok(()),
        };
        client.line.say(answer)
    }

    fn counts(&mut self) -> Result<Option<Counts>, Error> {
        let Some((srq, pool)) = &mut self.shared else { return Ok(None) };
        pool.refill(srq)?;
        let param = srq.query()?;
        Ok(Some((param.available, param.outstanding)))
    }

    fn up(&mut self, id: EpId) {
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.up = true;
            if !connection.waiting.is_empty() {
                self.busy.push_back(id);
            }
        }
        if let Some(client) = self.clients.get_mut(&id) {
            client.up = true;
            if let Some(note) = client.early.take() {
                self.heard(id, note);
            }
        }
    }

    fn gone(&mut self, event: &ConnectionEvent) -> Result<(), Error> {
        if let Some(client) = self.clients.remove(&event.ep) {
            self.granted -= client.credits;
            self.end.forget(Line::EVENTS);
            println!("{}: gone", client.name);
        }
        if let Some(connection) = self.connections.remove(&event.ep) {
            self.end.forget(connection.events);
            drop(connection);
            if let Some((srq, pool)) = &mut self.shared {
                pool.refill(srq)?;
            }
        }
        Ok(())
    }
}

/// Posts the buffers that came back. A connection that has ended takes no more receives.
fn refill(shared: &mut Option<(Srq, RecvPool)>, connection: &mut Connection) -> Result<(), PostError> {
    match (shared, &mut connection.own) {
        (Some((srq, pool)), _) => pool.refill(srq).map(drop),
        (None, Some(own)) => own.refill(&mut connection.ep).map(drop).or(Ok(())),
        (None, None) => Ok(()),
    }
}

fn shown(srq: Option<Counts>) -> String {
    srq.map_or_else(String::new, |(available, outstanding)| {
        format!(", SRQ {available} available, {outstanding} outstanding")
    })
}
