//! The client: sends messages over many connections, keeps as many under way as it has credits for,
//! and checks what comes back.

use super::counters::RnrCounter;
use super::end::{End, Line};
use super::pattern::{MAX_SEGMENTS, Pattern};
use super::report::{Outcome, Progress, SrqCounts, Tally};
use super::wire::{Counts, Note, Purpose};
use super::{DEFAULT_SIZES, Failure};
use doorbell::{
    CloseFlags, CompletionFlags, ConnectOptions, ConnectionEventKind, DtoCompletion, DtoOp, DtoStatus, Ep,
    EpAttr, Event, RecvPool, SendPool, Srq,
};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// A connection is given up after this time, and an answer on the control connection.
const CONNECT_TIME: Duration = Duration::from_secs(30);

/// A run in which nothing happens for this long has failed.
const STALL_TIME: Duration = Duration::from_secs(60);

/// Events looked at before messages are sent again.
const BATCH: usize = 32;

/// What to send.
#[derive(Clone, Debug, clap::Args)]
pub struct Load {
    /// Connections
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub connections: u32,
    /// Messages on each connection
    #[arg(long, value_name = "M", default_value_t = 500, value_parser = clap::value_parser!(u64).range(1..))]
    pub messages: u64,
    /// Message sizes in bytes; the larger, the rarer
    #[arg(long, value_name = "BYTES,...", value_delimiter = ',', default_values_t = DEFAULT_SIZES, value_parser = size)]
    pub sizes: Vec<usize>,
    /// Messages under way on each connection at most [default: all credits, shared out]
    #[arg(long, value_name = "W", value_parser = clap::value_parser!(u32).range(1..))]
    pub window: Option<u32>,
    /// Which sizes, bytes and segments
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

impl Load {
    /// The longest message.
    pub fn largest(&self) -> usize {
        self.sizes.iter().copied().max().unwrap_or(0)
    }
}

fn size(text: &str) -> Result<usize, String> {
    match text.trim().parse() {
        Ok(size) if size <= 1 << 30 => Ok(size),
        _ => Err("a size is 0 to 1073741824".to_owned()),
    }
}

/// One connection.
struct Stream {
    ep: Ep,
    /// Messages sent, and messages that came back as they should.
    sent: u64,
    back: u64,
    /// When each message under way was sent, oldest first.
    under_way: VecDeque<Instant>,
    /// Sends that have not completed.
    sends: u32,
    /// In the queue of those that may send.
    ready: bool,
}

struct Client<'a> {
    streams: Vec<Stream>,
    ready: VecDeque<usize>,
    srq: Srq,
    received: RecvPool,
    to_send: SendPool,
    line: Line,
    pattern: &'a Pattern,
    load: &'a Load,
    credits: u32,
    window: u32,
    most_sends: u32,
    tally: &'a mut Tally,
    end: End,
}

/// Runs the load against a server.
///
/// # Errors
/// [`Failure::Setup`] where no message could be sent; what fails later is in the outcome.
pub fn run(device: &str, server: SocketAddr, load: &Load) -> Result<Outcome, Failure> {
    let pattern = Pattern::new(load.seed, &load.sizes);
    let mut tally = Tally::new(pattern.sizes(), u64::from(load.connections) * load.messages);
    let mut end = End::open(device)?;
    let rnr = RnrCounter::new(device, &end.ia.attributes().device_name);
    let (line, credits, window, srq_start) = introduce(&mut end, server, load)?;
    let mut client = Client::new(end, line, server, load, &pattern, (credits, window), &mut tally)?;
    let ended = client.exchange().and_then(|()| client.finish());
    client.leave();
    drop(client);
    let client_rnr = rnr.events();
    let (srq_end, server_rnr, failure) = match ended {
        Ok((srq, rnr)) => (srq, rnr, None),
        Err(failure) => (None, None, Some(failure)),
    };
    let srq = srq_start.map(|start| SrqCounts { start, end: srq_end });
    Ok(Outcome { tally, srq, server_rnr, client_rnr, failure })
}

/// Opens the control connection and is told credits, window and the SRQ's counts.
fn introduce(
    end: &mut End,
    server: SocketAddr,
    load: &Load,
) -> Result<(Line, u32, u32, Option<Counts>), Failure> {
    let whom = format!("server {server}");
    let failed = |e: &dyn std::fmt::Display| Failure::setup(&whom, e);
    end.expect(Line::EVENTS).map_err(|e| failed(&e))?;
    let mut line = Line::new(end).map_err(|e| failed(&e))?;
    connect(&line.ep, server, Purpose::Control).map_err(|e| failed(&e))?;
    established(end, 1).map_err(|e| failed(&e))?;
    let window = load.window.unwrap_or(0);
    line.say(Note::Hello { connections: load.connections, window, largest: load.largest() as u32 })
        .map_err(|e| failed(&e))?;
    loop {
        match answer(end, &mut line, CONNECT_TIME).map_err(|e| failed(&e))? {
            Note::Welcome { credits, window, srq } => return Ok((line, credits, window, srq)),
            Note::Busy => return Err(failed(&"other clients have all its buffers: try again later")),
            Note::TooLarge { largest } => {
                let text = format!(
                    "takes messages of up to {largest} bytes: start it with --largest {}",
                    load.largest()
                );
                return Err(failed(&text));
            }
            _ => {}
        }
    }
}

fn connect(ep: &Ep, server: SocketAddr, purpose: Purpose) -> doorbell::Result<()> {
    ep.connect_with(server, ConnectOptions::new().timeout(CONNECT_TIME).private_data(&purpose.encode()))
}

/// Waits until this many connections are up.
fn established(end: &End, connections: usize) -> Result<(), String> {
    let mut left = connections;
    while left > 0 {
        // The provider ends each attempt in time; this is for the worst case.
        let event = end.next(Some(2 * CONNECT_TIME)).map_err(|e| e.to_string())?;
        let Some(event) = event else { return Err("cannot connect: the device does not answer".to_owned()) };
        // A failed connection flushes receives too.
        let Some(event) = event.connection() else { continue };
        if event.kind != ConnectionEventKind::Established {
            return Err(format!("cannot connect: {}", why(event.kind)));
        }
        left -= 1;
    }
    Ok(())
}

fn why(kind: ConnectionEventKind) -> &'static str {
    match kind {
        ConnectionEventKind::PeerRejected => "it said no",
        ConnectionEventKind::NonPeerRejected => "nobody listens there, or the peer is out of resources",
        ConnectionEventKind::TimedOut => "no answer in time",
        ConnectionEventKind::Unreachable => "the address cannot be reached from this device",
        ConnectionEventKind::Disconnected => "the server ended it",
        ConnectionEventKind::Broken => "it broke",
        _ => "the connection manager failed",
    }
}

/// The next note.
fn answer(end: &End, line: &mut Line, limit: Duration) -> Result<Note, String> {
    loop {
        match end.next(Some(limit)).map_err(|e| e.to_string())? {
            None => return Err("no answer in time".to_owned()),
            Some(event) => {
                if let Some(change) = event.connection() {
                    return Err(format!("the connection has ended: {}", why(change.kind)));
                }
                if let Some(note) = event.completion().and_then(|dto| line.on(dto)) {
                    return Ok(note);
                }
            }
        }
    }
}

impl<'a> Client<'a> {
    fn new(
        mut end: End,
        line: Line,
        server: SocketAddr,
        load: &'a Load,
        pattern: &'a Pattern,
        (credits, window): (u32, u32),
        tally: &'a mut Tally,
    ) -> Result<Self, Failure> {
        let size = pattern.largest().max(1);
        let failed = |e| Failure::setup(&format!("{credits} buffers of {size} bytes each way"), e);
        let (ia, pz) = (&end.ia, &end.pz);
        let mut srq = Srq::builder(ia, pz).depth(credits).build().map_err(failed)?;
        let mut received = RecvPool::new(ia, pz, credits, size).map_err(failed)?;
        received.refill(&mut srq).map_err(|e| failed(e.into()))?;
        let to_send = SendPool::new(ia, pz, credits, size).map_err(failed)?;
        // The acknowledgement of a send may come later than its echo.
        let most_sends = 2 * window + 2;
        let attr =
            EpAttr { request_depth: most_sends, request_segments: MAX_SEGMENTS as u32, ..EpAttr::default() };
        let failed = |e| Failure::setup(&format!("{} connections", load.connections), e);
        end.expect(credits + load.connections * (most_sends + 1)).map_err(failed)?;
        let mut streams = Vec::with_capacity(load.connections as usize);
        for i in 0..load.connections {
            let ep = Ep::builder(&end.ia, &end.pz)
                .evd(&end.evd)
                .srq(&srq)
                .attributes(&attr)
                .build()
                .map_err(failed)?;
            ep.set_context(1 + u64::from(i));
            let under_way = VecDeque::with_capacity(window as usize);
            streams.push(Stream { ep, sent: 0, back: 0, under_way, sends: 0, ready: true });
        }
        // A few at a time, so that no connection attempt waits for others longer than its own
        // timeout.
        for some in streams.chunks(16) {
            for stream in some {
                connect(&stream.ep, server, Purpose::Messages { window }).map_err(failed)?;
            }
            established(&end, some.len()).map_err(|text| Failure::setup("a data connection", text))?;
        }
        Ok(Self {
            ready: (0..streams.len()).collect(),
            streams,
            srq,
            received,
            to_send,
            line,
            pattern,
            load,
            credits,
            window,
            most_sends,
            tally,
            end,
        })
    }

    /// Sends everything and waits for all of it to come back.
    fn exchange(&mut self) -> Result<(), Failure> {
        let failed = |e| Failure::run("the device failed", e);
        let mut progress = Progress::new(self.tally.total);
        self.tally.begin();
        while self.tally.verified < self.tally.total {
            self.send_what_may_be_sent()?;
            match self.end.next(Some(STALL_TIME)).map_err(failed)? {
                Some(event) => self.on(&event)?,
                None => {
                    return Err(Failure::Run(format!("no message came back for {} s", STALL_TIME.as_secs())));
                }
            }
            for _ in 1..BATCH {
                let Some(event) = self.end.evd.dequeue().map_err(failed)? else { break };
                self.on(&event)?;
            }
            progress.show(self.tally);
            self.received.refill(&mut self.srq).map_err(|e| failed(e.into()))?;
        }
        self.tally.finish();
        Ok(())
    }

    fn may_send(&self, stream: &Stream) -> bool {
        stream.sent < self.load.messages
            && stream.under_way.len() < self.window as usize
            && stream.sends < self.most_sends
    }

    fn queue(&mut self, at: usize) {
        if !self.streams[at].ready && self.may_send(&self.streams[at]) {
            self.streams[at].ready = true;
            self.ready.push_back(at);
        }
    }

    fn send_what_may_be_sent(&mut self) -> Result<(), Failure> {
        while self.credits > 0
            && !self.ready.is_empty()
            && let Some(mut buf) = self.to_send.take()
            && let Some(at) = self.ready.pop_front()
        {
            let stream = &mut self.streams[at];
            let message = self.pattern.message(at, stream.sent);
            let (pieces, n) = message.lay_out(&mut buf);
            let now = Instant::now();
            self.to_send
                .send_pieces(&mut stream.ep, buf, &pieces[..n], CompletionFlags::empty())
                .map_err(|e| Failure::run(&format!("connection {at}, message {}", stream.sent), e.error))?;
            stream.under_way.push_back(now);
            stream.sent += 1;
            stream.sends += 1;
            stream.ready = false;
            self.credits -= 1;
            self.queue(at);
        }
        Ok(())
    }

    fn on(&mut self, event: &Event) -> Result<(), Failure> {
        if let Some(event) = event.connection() {
            return Err(Failure::Run(format!("{}: {}", of(event.ep_context), why(event.kind))));
        }
        event.completion().map_or(Ok(()), |dto| self.completed(dto))
    }

    fn completed(&mut self, dto: &DtoCompletion) -> Result<(), Failure> {
        let Some(at) = (dto.ep_context as usize).checked_sub(1) else {
            self.line.on(dto);
            return Ok(());
        };
        if dto.status != DtoStatus::Success {
            let what = if dto.op == DtoOp::Send { "a send" } else { "a receive" };
            return Err(Failure::Run(format!("{}: {what} ended with {:?}", of(dto.ep_context), dto.status)));
        }
        if dto.op == DtoOp::Send {
            self.to_send.completed(dto);
            self.streams[at].sends -= 1;
            self.queue(at);
            return Ok(());
        }
        let stream = &mut self.streams[at];
        let wrong = |text: String| Failure::Run(format!("connection {at}, message {}: {text}", stream.back));
        let message =
            self.received.take(dto).ok_or_else(|| wrong("came in a buffer that nobody posted".to_owned()))?;
        let sent =
            stream.under_way.pop_front().ok_or_else(|| wrong("came back without being sent".to_owned()))?;
        let expected = self.pattern.message(at, stream.back);
        if message.len() != expected.bytes.len() {
            return Err(wrong(format!("{} bytes came back, not {}", message.len(), expected.bytes.len())));
        }
        if let Some(byte) = message.iter().zip(expected.bytes).position(|(a, b)| a != b) {
            return Err(wrong(format!("byte {byte} of {} is wrong", message.len())));
        }
        stream.back += 1;
        self.tally.add(expected.size, sent.elapsed());
        self.credits += 1;
        self.queue(at);
        Ok(())
    }

    /// Reports the end of the run and gets the server's final counts.
    fn finish(&mut self) -> Result<(Option<Counts>, Option<u64>), Failure> {
        self.line.say(Note::Finish).map_err(|e| Failure::run("the control connection", e))?;
        loop {
            let event =
                self.end.next(Some(CONNECT_TIME)).map_err(|e| Failure::run("the device failed", e))?;
            let Some(event) = event else {
                return Err(Failure::Run("the server reported no final state".to_owned()));
            };
            let Some(dto) = event.completion().filter(|dto| dto.ep_context == 0) else {
                self.on(&event)?;
                continue;
            };
            if let Some(Note::Summary { srq, rnr }) = self.line.on(dto) {
                return Ok((srq, rnr.map(u64::from)));
            }
        }
    }

    /// Ends all connections at once, so that they need not be waited for one by one.
    fn leave(&mut self) {
        let eps = || self.streams.iter().map(|stream| &stream.ep).chain([&self.line.ep]);
        for ep in eps() {
            // A connection that has ended already needs no disconnect.
            let _ = ep.disconnect(CloseFlags::Abrupt);
        }
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(1)
            && !self.streams.iter().all(|stream| stream.ep.status().is_ok_and(|status| status.requests == 0))
        {
            let _ = self.end.next(Some(Duration::from_millis(10)));
        }
    }
}

fn of(context: u64) -> String {
    if context == 0 { "the control connection".to_owned() } else { format!("connection {}", context - 1) }
}
