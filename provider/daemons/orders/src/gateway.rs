//! The gateway: one thread with one shared receive queue for the connections of all sessions.
//!
//! This is the only file of the gateway that knows RDMA. The thread polls its EVDs. An order comes in a
//! buffer of the SRQ, goes through the market, and the answers leave as inline Sends, before the next
//! event is looked at. Nothing of that allocates memory, takes a lock or calls the system. The buffers
//! go back to the SRQ in batches.
//!
//! What bounds what:
//!
//! * A session has one connection at a time. A connection has a send queue of [`Options::sends`]
//!   requests; every 16th is signalled. Messages beyond wait in the outbox of the session.
//! * When more than [`Options::queue`] messages wait, the client reads too slowly: its connection is cut
//!   off. It can connect again and get them, as long as the outbox has them.
//! * A client that sends far beyond its rate, sends what is no message, or is silent, is cut off.

use crate::journal::{Journal, Record};
use crate::login::{Login, Refusal, Refused, Welcome};
use crate::market::{Market, Verdict};
use crate::ouch::{Inbound, LONGEST_IN, LONGEST_OUT, outbound};
use doorbell::{
    AsyncEvent, AsyncKind, CloseFlags, ConnectionEvent, ConnectionEventKind, Cr, DtoCompletion, Ep, EpState,
    Evd, EvdFlags, Event, Ia, PostError, Psp, Pz, Received, RecvBuf, RecvPool, RetryAttr, Srq,
};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};
use zerocopy::IntoBytes;

pub use doorbell_service::daemon::Control;

/// How a gateway works.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The device, as [`Ia::open`] takes it.
    pub device: String,
    /// The port to listen at; 0: any that is free.
    pub port: u16,
    /// What clients have to know, padded with spaces.
    pub password: [u8; 10],
    /// Receive buffers of all sessions together.
    pub receives: u32,
    /// Not 0: each connection has a receive queue of its own with so many buffers, and none takes
    /// buffers from the SRQ. For comparison.
    pub own_receives: u32,
    /// Requests in the send queue of a connection.
    pub sends: u32,
    /// Messages that may wait for a session.
    pub queue: u64,
    /// After this long without a message to a session, it gets a heartbeat.
    pub heartbeat: Duration,
    /// After this long without a message from a session, it is cut off.
    pub patience: Duration,
    /// After this long without an event, the thread sleeps; zero: never.
    pub idle: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            device: String::new(),
            port: 4840,
            password: [b' '; 10],
            receives: 4096,
            own_receives: 0,
            sends: 128,
            queue: 1024,
            heartbeat: Duration::from_secs(1),
            patience: Duration::from_secs(15),
            idle: Duration::ZERO,
        }
    }
}

/// Counters and gauges, written by the thread of the gateway alone.
#[derive(Debug, Default)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Stats {
    pub sessions: AtomicU64,
    pub connected: AtomicU64,
    pub messages_in: AtomicU64,
    pub messages_out: AtomicU64,
    pub accepted_orders: AtomicU64,
    pub executions: AtomicU64,
    pub open_orders: AtomicU64,
    pub refused_logins: AtomicU64,
    pub cut_off_slow: AtomicU64,
    pub cut_off_flood: AtomicU64,
    pub cut_off_garbage: AtomicU64,
    pub cut_off_silent: AtomicU64,
    pub receives_posted: AtomicU64,
    pub receives: AtomicU64,
    pub journal_behind: AtomicU64,
    /// How often the gauges were set.
    pub updates: AtomicU64,
}

#[inline]
fn add(counter: &AtomicU64, n: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
}

/// Orders: go on.
const RUN: u8 = 0;
/// Orders: end the day, send what waits, end.
const DRAIN: u8 = 1;
/// Orders: end.
const STOP: u8 = 2;

#[derive(Debug, Default)]
struct Shared {
    order: AtomicU8,
    stats: Stats,
}

/// What other threads may ask of a gateway.
#[derive(Clone, Debug)]
pub struct Handle {
    shared: Arc<Shared>,
    /// Where clients connect to.
    pub address: SocketAddr,
}

impl Handle {
    /// Counters and gauges.
    pub fn stats(&self) -> &Stats {
        &self.shared.stats
    }
}

impl Control for Handle {
    /// Ends the day: sends what waits, closes all connections and ends.
    fn drain(&self) {
        self.shared.order.fetch_max(DRAIN, Ordering::Relaxed);
    }

    /// Closes all connections and ends.
    fn stop(&self) {
        self.shared.order.store(STOP, Ordering::Relaxed);
    }

    fn is_ending(&self) -> bool {
        self.shared.order.load(Ordering::Relaxed) != RUN
    }
}

/// Why a gateway has ended that nobody has ended.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The device.
    #[error(transparent)]
    Device(#[from] doorbell::Error),
    /// More events came than the EVD has room for, which its length rules out.
    #[error("events of the device were lost")]
    EventsLost,
    /// Inputs are no longer recorded.
    #[error("the journal cannot be written")]
    Journal,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Not established yet: orders may come, nothing can be sent.
    Accepted,
    Live,
    /// It ends: nothing is taken from it or sent to it any more.
    Closing,
}

/// The connection of a session.
#[derive(Debug)]
struct Connection {
    ep: Ep,
    /// The buffers of its own receive queue, if it has one.
    own: Option<RecvPool>,
    state: State,
    /// The number of the next message to send.
    next: u64,
    /// Everything that was there at the login has been sent.
    has_caught_up: bool,
    /// Requests that were posted, and of these at least so many completed.
    posted: u64,
    completed: u64,
    /// When something came and was sent last, in ticks.
    heard: u64,
    sent: u64,
    /// Heartbeats that came in this second.
    heartbeats: u32,
    /// It is in [`Gateway::held`].
    is_held: bool,
}

/// The gateway and its thread.
#[derive(Debug)]
pub struct Gateway {
    market: Market,
    journal: Option<Journal>,
    options: Options,
    shared: Arc<Shared>,
    /// By the number of the session.
    connections: Vec<Option<Connection>>,
    /// How often each place of `connections` was used.
    generations: Vec<u32>,
    /// Sessions with messages that the journal has not written yet.
    held: Vec<u32>,
    written: u64,
    /// Buffers that were taken since the last refill.
    taken: u32,
    /// Nanoseconds since midnight, at the last events.
    now: u64,
    ticks: u64,
    has_ended_day: bool,
    address: SocketAddr,
    pool: RecvPool,
    srq: Srq,
    // Freed last.
    _service: Psp,
    /// Completions of receives, and of Sends; EVDs with nothing else are the fastest.
    received: Evd,
    sent: Evd,
    events: Evd,
    pz: Pz,
    ia: Ia,
}

/// How often the gateway looks at its timers.
const TICK: Duration = Duration::from_millis(10);
/// Ticks in a second.
const TICKS: u64 = (Duration::from_secs(1).as_nanos() / TICK.as_nanos()) as u64;
/// Events taken at a time.
const EVENTS: usize = 64;
/// Buffers are posted again when this many were taken, and at each tick.
const BATCH: u32 = 32;
/// One of so many Sends is signalled.
const SIGNAL: u64 = 16;
/// A client may send this many heartbeats a second.
const HEARTBEATS: u32 = 100;
/// Events of a connection that are not completions.
const CONNECTION_EVENTS: usize = 4;

impl Gateway {
    /// Opens the device and listens. `connected`: sessions that were connected when the journal ended.
    ///
    /// # Errors
    /// Those of the device.
    pub fn open(
        market: Market,
        journal: Option<Journal>,
        connected: &BTreeSet<u32>,
        options: Options,
    ) -> doorbell::Result<Self> {
        // Clients retry for ever when they find no receive posted, and so does this end.
        let ia = Ia::builder(&options.device).rnr_retry(7).rnr_timer(1).open()?;
        let pz = Pz::new(&ia)?;
        let receives = options.receives.min(ia.attributes().max_srq_depth);
        // An EVD that is too short loses events. Each receive and, when a connection ends, each request
        // can be one.
        let most = market.sessions.most();
        let evd = |length: usize, streams| {
            let length = u32::try_from(length).unwrap_or(u32::MAX);
            Evd::new(&ia, length.min(ia.attributes().max_evd_depth), streams)
        };
        let received = evd(receives as usize + most * options.own_receives as usize, EvdFlags::DTO)?;
        let sent = evd(most * options.sends as usize, EvdFlags::DTO)?;
        // And some logins.
        let events = evd(most * CONNECTION_EVENTS + 128, EvdFlags::CR | EvdFlags::CONNECTION)?;
        let mut srq = Srq::builder(&ia, &pz).depth(receives).build()?;
        // Two bytes more than the longest message: whatever is longer is no message either.
        let mut pool = RecvPool::new(&ia, &pz, receives, LONGEST_IN + 2)?;
        pool.refill(&mut srq)?;
        let service = Psp::builder(&ia, &events).port(options.port).build()?;
        let address = service.address();
        let mut gateway = Self {
            market,
            written: journal.as_ref().map_or(u64::MAX, Journal::written),
            journal,
            options,
            shared: Arc::default(),
            connections: (0..most).map(|_| None).collect(),
            generations: vec![0; most],
            held: Vec::with_capacity(most),
            taken: 0,
            now: clock(),
            ticks: 0,
            has_ended_day: false,
            address,
            pool,
            srq,
            _service: service,
            received,
            sent,
            events,
            pz,
            ia,
        };
        gateway.shared.stats.receives.store(receives.into(), Ordering::Relaxed);
        connected.iter().for_each(|&number| gateway.gone(number));
        Ok(gateway)
    }

    /// Sessions that have ever connected.
    pub fn sessions(&self) -> usize {
        self.market.sessions.all().len()
    }

    /// What other threads need.
    pub fn handle(&self) -> Handle {
        Handle { shared: self.shared.clone(), address: self.address }
    }

    /// Serves until the handle orders the end. Returns the market.
    ///
    /// # Errors
    /// After these nothing can be served.
    pub fn run(mut self) -> Result<Market, Error> {
        let mut now = Instant::now();
        let (mut next_tick, mut last_event) = (now, now);
        loop {
            let count = self.pass()?;
            now = Instant::now();
            if now >= next_tick {
                if self.tick()? {
                    return Ok(self.market);
                }
                next_tick = now + TICK;
            }
            let idle = self.options.idle;
            if count > 0 {
                last_event = now;
            } else if !idle.is_zero() && self.held.is_empty() && now - last_event > idle {
                self.sleep()?;
            } else {
                std::hint::spin_loop();
            }
        }
    }

    /// Takes the events that are there, and posts buffers again. Returns the number of events. What has
    /// to be done in time is left to [`Gateway::run`].
    ///
    /// # Errors
    /// Those of the device.
    // A function of its own, so that its instructions can be counted.
    #[inline(never)]
    pub fn pass(&mut self) -> doorbell::Result<usize> {
        let mut count = 0;
        while count < EVENTS
            && let Some(received) = self.next_received()?
        {
            if count == 0 {
                self.now = clock();
            }
            count += 1;
            self.on_received(received);
        }
        while let Some(event) = self.sent.dequeue()? {
            count += 1;
            self.on_event(event);
        }
        // What a client has sent before its connection ended comes first.
        if count == 0
            && let Some(event) = self.events.dequeue()?
        {
            self.now = clock();
            count = 1;
            self.on_event(event);
        }
        if self.taken >= BATCH {
            self.refill()?;
        }
        self.release();
        Ok(count)
    }

    /// Sleeps until a message comes or the next tick, which is soon enough for the other events.
    fn sleep(&mut self) -> doorbell::Result<()> {
        if let Some(received) = self.pool.next_for(&mut self.srq, &self.received, TICK)? {
            self.now = clock();
            self.on_received(received);
        }
        Ok(())
    }

    #[inline(always)]
    fn next_received(&mut self) -> doorbell::Result<Option<Received>> {
        match self.options.own_receives {
            0 => self.pool.dequeue(&self.received),
            _ => Ok(self.received.dequeue()?.map(Received::Other)),
        }
    }

    #[inline(always)]
    fn on_received(&mut self, received: Received) {
        match received {
            Received::Message(message) => self.on_message(&message),
            Received::Failed(_) => self.taken += 1,
            Received::Other(event) => self.on_event(event),
        }
    }

    /// Posts the buffers that came back.
    #[inline(never)]
    fn refill(&mut self) -> doorbell::Result<()> {
        self.taken = 0;
        if self.options.own_receives == 0 {
            self.pool.refill(&mut self.srq)?;
        }
        Ok(())
    }

    #[inline(never)]
    fn on_event(&mut self, event: Event) {
        match event {
            Event::Received(dto) => self.on_own_receive(&dto),
            Event::Failed(dto) if dto.op.is_receive() => self.on_own_receive(&dto),
            Event::Done(dto) | Event::Failed(dto) => self.on_sent(&dto),
            Event::Connected(event) | Event::Disconnected(event) | Event::NotConnected(event) => {
                self.on_connection(&event);
            }
            Event::ConnectionRequest(arrival) => self.on_login(arrival.cr),
            other => tracing::warn!(event = ?other, "an event that nobody has asked for"),
        }
    }

    /// The session of an EP's context.
    #[inline]
    fn session_of(&self, context: u64) -> Option<u32> {
        let (number, generation) = (context as u32, (context >> 32) as u32);
        let is_present = self.generations.get(number as usize) == Some(&generation)
            && self.connections[number as usize].is_some();
        is_present.then_some(number)
    }

    /// A message has come.
    #[inline]
    fn on_message(&mut self, message: &RecvBuf) {
        self.taken += 1;
        let Some(number) = self.session_of(message.completion().ep_context) else { return };
        let Some(connection) = &mut self.connections[number as usize] else { return };
        if connection.state == State::Closing || self.has_ended_day {
            return;
        }
        connection.heard = self.ticks;
        match Inbound::parse(message) {
            None => self.cut_off(number, "no message", |stats| &stats.cut_off_garbage),
            Some(Inbound::Heartbeat) => {
                connection.heartbeats += 1;
                if connection.heartbeats > HEARTBEATS {
                    self.cut_off(number, "too many heartbeats", |stats| &stats.cut_off_flood);
                }
            }
            Some(inbound) => {
                add(&self.shared.stats.messages_in, 1);
                let time = self.market.advance(self.now);
                self.record(|| Record::message(number, time, message));
                let verdict = self.market.handle(number, inbound);
                self.send_all();
                if verdict == Verdict::Flood {
                    self.cut_off(number, "too many messages", |stats| &stats.cut_off_flood);
                }
            }
        }
    }

    /// A receive of a connection's own receive queue has completed.
    #[inline]
    fn on_own_receive(&mut self, dto: &DtoCompletion) {
        let Some(number) = self.session_of(dto.ep_context) else { return };
        let Some(Connection { own: Some(own), .. }) = &mut self.connections[number as usize] else { return };
        let Some(message) = own.take(dto) else { return };
        self.on_message(&message);
        drop(message);
        if let Some(Connection { ep, own: Some(own), .. }) = &mut self.connections[number as usize]
            && let Err(error) = own.refill(ep)
        {
            tracing::debug!(%error, "receives of a connection that ends");
        }
    }

    /// Puts an input into the journal, before the market gets it.
    #[inline]
    fn record(&mut self, record: impl FnOnce() -> Record) {
        if let Some(journal) = &mut self.journal {
            self.market.sessions.position = journal.append(record());
        }
    }

    /// Sends the new messages of all sessions.
    #[inline]
    fn send_all(&mut self) {
        while let Some(number) = self.market.sessions.take_dirty() {
            self.send(number);
        }
    }

    /// Sends what waits for a session, as far as the journal and the send queue let it.
    #[inline]
    fn send(&mut self, number: u32) {
        let outbox = &self.market.sessions.get(number).outbox;
        let Some(connection) = &mut self.connections[number as usize] else { return };
        if connection.state != State::Live {
            return;
        }
        while let Some((message, position)) = outbox.get(connection.next) {
            if position > self.written {
                if !connection.is_held {
                    connection.is_held = true;
                    self.held.push(number);
                }
                break;
            }
            if !connection.has_room(self.options.sends) {
                break;
            }
            if let Err(error) = connection.post(message) {
                tracing::info!(%error, "a message was refused");
                return self.close(number, "a message was refused");
            }
            connection.next += 1;
            connection.sent = self.ticks;
            add(&self.shared.stats.messages_out, 1);
        }
        let waiting = outbox.next() - connection.next;
        connection.has_caught_up |= waiting == 0;
        let most = if connection.has_caught_up { self.options.queue } else { outbox.window() as u64 };
        if waiting > most {
            self.cut_off(number, "it reads too slowly", |stats| &stats.cut_off_slow);
        }
    }

    /// Sends the messages for which the journal was waited.
    #[inline]
    fn release(&mut self) {
        let Some(journal) = &self.journal else { return };
        let written = journal.written();
        if written == self.written {
            return;
        }
        self.written = written;
        for n in (0..self.held.len()).rev() {
            let number = self.held.swap_remove(n);
            if let Some(connection) = &mut self.connections[number as usize] {
                connection.is_held = false;
                self.send(number);
            }
        }
    }

    /// A Send has completed, or failed.
    #[inline]
    fn on_sent(&mut self, dto: &DtoCompletion) {
        let Some(number) = self.session_of(dto.ep_context) else { return };
        let Some(connection) = &mut self.connections[number as usize] else { return };
        if !dto.is_success() {
            return self.close(number, "a message was not delivered");
        }
        connection.completed = connection.completed.max(dto.cookie);
        self.send(number);
    }

    fn on_login(&mut self, request: Cr) {
        let peer = request.remote().map_or_else(|| "unknown".to_owned(), |address| address.to_string());
        let login = Login::parse(request.private_data());
        let made = login.ok_or((Refusal::NoLogin, 0)).and_then(|login| {
            let next = self.admit(&login)?;
            Ok((login, self.make()?, next))
        });
        let (login, (ep, own), next) = match made {
            Ok(made) => made,
            Err((reason, oldest)) => {
                add(&self.shared.stats.refused_logins, 1);
                tracing::info!(peer, %reason, "login refused");
                if let Err(error) = request.reject(Refused::new(reason, oldest).as_bytes()) {
                    tracing::debug!(peer, %error, "a client did not wait for its answer");
                }
                return;
            }
        };
        let time = self.market.advance(self.now);
        let cancel_at_end = login.cancel_at_end == 1;
        let number = self.market.sessions.find(login.user);
        let number = number.unwrap_or(self.market.sessions.all().len() as u32);
        self.record(|| Record::login(number, time, login.user, cancel_at_end));
        if self.market.login(login.user, cancel_at_end) != Some(number) {
            return tracing::error!("a session that was admitted found no room");
        }
        let place = number as usize;
        self.generations[place] = self.generations[place].wrapping_add(1);
        ep.set_context(u64::from(self.generations[place]) << 32 | u64::from(number));
        let session = self.market.sessions.get(number);
        let next = if next == 0 { session.outbox.next() } else { next };
        let welcome = Welcome::new(next, session.last_urn.saturating_add(1));
        let accepted = request.accept(&ep, welcome.as_bytes());
        self.connections[place] = Some(Connection {
            ep,
            own,
            state: State::Accepted,
            next,
            has_caught_up: false,
            posted: 0,
            completed: 0,
            heard: self.ticks,
            sent: self.ticks,
            heartbeats: 0,
            is_held: self.held.contains(&number),
        });
        tracing::debug!(peer, user = %login.user.escape_ascii(), next, "login");
        if let Err(refused) = accepted {
            tracing::info!(peer, error = %refused.error, "connection not accepted");
            self.end(number);
        }
    }

    /// Decides on a login. Returns the number of its first message.
    fn admit(&self, login: &Login) -> Result<u64, (Refusal, u64)> {
        if self.has_ended_day {
            return Err((Refusal::Ending, 0));
        }
        if login.password != self.options.password {
            return Err((Refusal::Password, 0));
        }
        let next = login.next.get();
        match self.market.sessions.find(login.user) {
            Some(number) => {
                let outbox = &self.market.sessions.get(number).outbox;
                if self.connections[number as usize].is_some() {
                    return Err((Refusal::Connected, 0));
                }
                if next > outbox.next() {
                    return Err((Refusal::Ahead, outbox.oldest()));
                }
                if next != 0 && next < outbox.oldest() {
                    return Err((Refusal::Forgotten, outbox.oldest()));
                }
            }
            None if !self.market.sessions.has_room() => return Err((Refusal::Full, 0)),
            None if next > 1 => return Err((Refusal::Ahead, 1)),
            None => {}
        }
        Ok(next)
    }

    /// An EP for a client, and its buffers if it has a receive queue of its own.
    fn make(&self) -> Result<(Ep, Option<RecvPool>), (Refusal, u64)> {
        let own = self.options.own_receives;
        let builder = Ep::builder(&self.ia, &self.pz)
            .recv_evd(&self.received)
            .request_evd(&self.sent)
            .connect_evd(&self.events)
            .request_depth(self.options.sends)
            .request_segments(1)
            .rdma_reads_in(0)
            .rdma_reads_out(0)
            .max_inline(LONGEST_OUT as u32)
            .retry(RetryAttr { rnr_retry: Some(7), ..RetryAttr::default() });
        let made = || -> doorbell::Result<_> {
            if own == 0 {
                return Ok((builder.srq(&self.srq).build()?, None));
            }
            let mut ep = builder.recv_depth(own).recv_segments(1).build()?;
            let mut pool = RecvPool::new(&self.ia, &self.pz, own, LONGEST_IN + 2)?;
            pool.refill(&mut ep)?;
            Ok((ep, Some(pool)))
        };
        made().map_err(|error| {
            tracing::warn!(%error, "no endpoint for a client");
            (Refusal::Full, 0)
        })
    }

    fn on_connection(&mut self, event: &ConnectionEvent) {
        let Some(number) = self.session_of(event.ep_context) else { return };
        if event.kind == ConnectionEventKind::Established {
            if let Some(connection) = &mut self.connections[number as usize]
                && connection.state == State::Accepted
            {
                connection.state = State::Live;
                self.send(number);
            }
        } else {
            tracing::debug!(kind = ?event.kind, "connection ended");
            self.end(number);
        }
    }

    /// Cuts a client off that does what it must not do.
    #[cold]
    fn cut_off(&mut self, number: u32, why: &'static str, counter: impl Fn(&Stats) -> &AtomicU64) {
        add(counter(&self.shared.stats), 1);
        tracing::warn!(user = %self.market.sessions.get(number).user.escape_ascii(), why, "cut off");
        self.close(number, why);
    }

    /// Ends a connection. It is forgotten when the device has ended it as well.
    #[cold]
    fn close(&mut self, number: u32, why: &'static str) {
        let Some(connection) = &mut self.connections[number as usize] else { return };
        if connection.state == State::Closing {
            return;
        }
        connection.state = State::Closing;
        tracing::info!(user = %self.market.sessions.get(number).user.escape_ascii(), why, "connection closed");
        if let Err(error) = connection.ep.disconnect(CloseFlags::Abrupt) {
            tracing::debug!(%error, "disconnect");
        }
        if matches!(connection.ep.state(), EpState::Disconnected | EpState::Unconnected) {
            self.end(number);
        }
    }

    /// Forgets a connection that has ended.
    fn end(&mut self, number: u32) {
        if self.connections[number as usize].take().is_some() {
            self.gone(number);
        }
    }

    /// Tells the market that a session is gone.
    fn gone(&mut self, number: u32) {
        let time = self.market.advance(self.now);
        self.record(|| Record::gone(number, time));
        self.market.gone(number);
        self.send_all();
    }

    /// Looks at timers. Returns whether the gateway shall end.
    fn tick(&mut self) -> Result<bool, Error> {
        self.ticks += 1;
        while let Ok(Some(event)) = self.ia.async_evd().dequeue() {
            if let Event::Async(AsyncEvent { kind: AsyncKind::EvdOverflow, .. }) = event {
                return Err(Error::EventsLost);
            }
            // Also for each connection that ends.
            tracing::debug!(?event, "an event of the device");
        }
        let ticks = |time: Duration| (time.as_nanos() / TICK.as_nanos()) as u64;
        let (heartbeat, patience) = (ticks(self.options.heartbeat), ticks(self.options.patience));
        for number in 0..self.connections.len() as u32 {
            let Some(connection) = &mut self.connections[number as usize] else { continue };
            if self.ticks.is_multiple_of(TICKS) {
                connection.heartbeats = 0;
            }
            if self.ticks - connection.heard > patience {
                self.cut_off(number, "nothing came from it", |stats| &stats.cut_off_silent);
            } else if connection.state == State::Live
                && self.ticks - connection.sent >= heartbeat
                && connection.has_room(self.options.sends)
            {
                connection.sent = self.ticks;
                if let Err(error) = connection.post(&[outbound::HEARTBEAT]) {
                    tracing::info!(%error, "a heartbeat was refused");
                    self.close(number, "a heartbeat was refused");
                }
            }
        }
        self.refill()?;
        self.publish_gauges();
        if self.journal.as_ref().is_some_and(Journal::has_failed) {
            return Err(Error::Journal);
        }
        match self.shared.order.load(Ordering::Relaxed) {
            RUN => return Ok(false),
            DRAIN => self.drain(),
            _ => (0..self.connections.len() as u32).for_each(|number| self.close(number, "the gateway ends")),
        }
        Ok(self.connections.iter().all(Option::is_none))
    }

    /// Ends the day, and the connections to which everything was sent.
    fn drain(&mut self) {
        if !self.has_ended_day {
            self.has_ended_day = true;
            let time = self.market.advance(clock());
            self.record(|| Record::end(time));
            self.market.end();
            self.send_all();
        }
        for (number, connection) in (0..).zip(&self.connections) {
            if let Some(connection) = connection
                && connection.next == self.market.sessions.get(number).outbox.next()
                // It waits for the messages that are under way.
                && let Err(error) = connection.ep.disconnect(CloseFlags::Graceful)
            {
                tracing::debug!(%error, "disconnect");
            }
        }
    }

    fn publish_gauges(&self) {
        let stats = &self.shared.stats;
        let set = |gauge: &AtomicU64, value: u64| gauge.store(value, Ordering::Relaxed);
        let (accepted, executions) = self.market.totals();
        set(&stats.sessions, self.sessions() as u64);
        set(&stats.connected, self.connections.iter().flatten().count() as u64);
        set(&stats.accepted_orders, accepted);
        set(&stats.executions, executions);
        set(&stats.open_orders, self.market.open_orders() as u64);
        set(&stats.receives_posted, self.pool.posted() as u64);
        set(&stats.journal_behind, self.journal.as_ref().map_or(0, Journal::behind));
        add(&stats.updates, 1);
    }
}

impl Connection {
    /// Whether another Send fits. The last ones may have completed unnoticed, as they are not signalled.
    #[inline]
    fn has_room(&self, sends: u32) -> bool {
        self.posted - self.completed < u64::from(sends)
    }

    #[inline]
    fn post(&mut self, message: &[u8]) -> Result<(), PostError> {
        self.posted += 1;
        let send = self.ep.send_inline(message).cookie(self.posted);
        let has_event = self.posted.is_multiple_of(SIGNAL);
        if has_event { send } else { send.suppress() }.post()
    }
}

/// Nanoseconds since midnight (UTC).
#[inline]
fn clock() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    since.as_secs() % 86_400 * 1_000_000_000 + u64::from(since.subsec_nanos())
}
