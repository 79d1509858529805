//! Running: sessions that connect, send on time and measure.

use super::traffic::{Message, Traffic};
use super::verify::{Ledger, Verified};
use crate::client::{Client, News};
use crate::login::{Login, Refusal, padded};
use crate::market::Listing;
use crate::naive::Naive;
use crate::ouch::{outbound, urn_of};
use crate::rules::Rules;
use anyhow::{Context, anyhow, bail};
use hdrhistogram::Histogram;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Where the load goes, and with what limits orders are checked there.
#[derive(Clone, Debug)]
pub struct Target {
    /// The device of the clients.
    pub device: String,
    /// The gateway.
    pub address: SocketAddr,
    /// The password.
    pub password: [u8; 10],
    /// Its limits.
    pub rules: Rules,
    /// Its symbols.
    pub listings: Vec<Listing>,
}

/// A rate of so many sessions, for some time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// The sessions that send, one after the other.
    pub sessions: usize,
    /// Messages a second, of all sessions together.
    pub rate: u64,
    /// Messages.
    pub messages: u64,
}

/// What was measured in a step.
#[derive(Clone, Debug)]
pub struct Measured {
    /// The step.
    pub step: Step,
    /// From the time when an order should have been sent to its answer, in nanoseconds.
    pub latency: Histogram<u64>,
    /// The messages a second that were sent.
    pub reached: f64,
    /// What was verified.
    pub verified: Verified,
}

#[derive(Debug, Default)]
struct Session {
    /// The number of the next message that comes.
    next: u64,
    /// URNs without an answer, and when their orders should have been sent.
    waiting: VecDeque<(u32, Instant)>,
    /// Messages that may have to be sent again after a reconnect.
    unanswered: VecDeque<Message>,
    answers: u32,
    refused: Option<Refusal>,
}

/// Sessions of one gateway.
#[derive(Debug)]
pub struct Load {
    client: Client,
    target: Target,
    sessions: Vec<Session>,
    traffic: Traffic,
    naive: Naive,
    ledger: Ledger,
    /// Whether messages are kept until they are answered.
    resends: bool,
}

/// How long the load waits for any one thing.
const PATIENCE: Duration = Duration::from_secs(60);

/// Orders of a session without an answer. Later ones wait, and their latencies count from their times
/// all the same. More answers than that would be cut off as those of a slow reader.
const WAITING: usize = 256;

/// How often idle sessions send a heartbeat.
const HEARTBEAT: Duration = Duration::from_secs(1);

/// The name of a session.
pub fn user(session: usize) -> [u8; 6] {
    padded(&format!("S{session:05}")).unwrap_or([b'?'; 6])
}

impl Load {
    /// Sessions that are not connected yet. The gateway must have had no orders before.
    ///
    /// # Errors
    /// Those of the device.
    pub fn open(target: Target, sessions: usize, seed: u64) -> doorbell::Result<Self> {
        let receives = 4096.max(sessions as u32 * 4);
        Ok(Self {
            client: Client::open(&target.device, sessions, receives)?,
            sessions: (0..sessions).map(|_| Session { next: 1, ..Session::default() }).collect(),
            traffic: Traffic::new(&target.listings, sessions, seed),
            naive: Naive::new(target.rules, &target.listings),
            ledger: Ledger::default(),
            resends: false,
            target,
        })
    }

    /// From now on messages are sent again after a reconnect if they may not have arrived.
    pub fn resend(&mut self) {
        self.resends = true;
    }

    /// The gateway was started again, and has this address now.
    pub fn go_to(&mut self, address: SocketAddr) {
        self.target.address = address;
    }

    /// The number of orders that are open now.
    pub fn open_orders(&self) -> usize {
        self.naive.open_orders()
    }

    /// Connects the sessions up to this number that are not connected.
    ///
    /// # Errors
    /// A session cannot be connected.
    pub fn connect(&mut self, sessions: usize) -> anyhow::Result<()> {
        // Some at a time: the queue of requests is short.
        const AT_A_TIME: usize = 16;
        let until = Instant::now() + PATIENCE + Duration::from_millis(50) * sessions as u32;
        let mut trying = Vec::new();
        let mut next = 0;
        loop {
            while trying.len() < AT_A_TIME && next < sessions {
                if !self.client.is_connected(next) {
                    self.dial(next)?;
                    trying.push(next);
                }
                next += 1;
            }
            if trying.is_empty() {
                return Ok(());
            }
            self.poll()?;
            for n in (0..trying.len()).rev() {
                let session = trying[n];
                if self.client.is_connected(session) {
                    trying.swap_remove(n);
                    for message in self.sessions[session].unanswered.clone() {
                        self.send_when_possible(session, message)?;
                    }
                } else if let Some(refusal) = self.sessions[session].refused.take() {
                    // The gateway may not have noticed yet that the last connection has ended.
                    if refusal != Refusal::Connected {
                        bail!("session {session}: {refusal}");
                    }
                    self.dial(session)?;
                }
            }
            if Instant::now() > until {
                bail!("session {}: no answer to the login", trying[0]);
            }
        }
    }

    fn dial(&mut self, session: usize) -> anyhow::Result<()> {
        let next = self.sessions[session].next;
        let login = Login::new(user(session), self.target.password, next, false);
        self.client.connect(session, self.target.address, &login).context("connecting")
    }

    /// Ends the connections of all sessions, or notices that they have ended.
    ///
    /// # Errors
    /// They do not end.
    pub fn hang_up(&mut self) -> anyhow::Result<()> {
        let until = Instant::now() + PATIENCE;
        (0..self.sessions.len()).for_each(|session| self.client.hang_up(session));
        while (0..self.sessions.len()).any(|session| self.client.is_connected(session)) {
            self.poll()?;
            if Instant::now() > until {
                bail!("connections do not end");
            }
        }
        Ok(())
    }

    /// Whether one of these sessions has no connection.
    pub fn has_lost(&self, sessions: usize) -> bool {
        (0..sessions).any(|session| !self.client.is_connected(session))
    }

    fn poll(&mut self) -> anyhow::Result<usize> {
        self.poll_into(&mut None)
    }

    /// Takes what has come, and measures it.
    #[inline]
    fn poll_into(&mut self, latency: &mut Option<Histogram<u64>>) -> anyhow::Result<usize> {
        let Self { client, sessions, ledger, resends, .. } = self;
        let count = client.poll(|number, news| {
            let session = &mut sessions[number];
            match news {
                News::Message(&[outbound::HEARTBEAT]) => {}
                News::Message(message) => {
                    session.next += 1;
                    ledger.got(number, message);
                    session.answer(message, latency, *resends);
                }
                // The first messages may come before it.
                News::Welcome(_) => {}
                News::Refused(reason, _) => session.refused = Some(reason),
                News::Unreachable => session.refused = Some(Refusal::Connected),
                News::Ended => {}
            }
        })?;
        Ok(count)
    }

    fn send_when_possible(&mut self, session: usize, message: Message) -> anyhow::Result<()> {
        let until = Instant::now() + PATIENCE;
        while !self.client.send(session, message.bytes())? {
            self.poll()?;
            if Instant::now() > until || !self.client.is_connected(session) {
                bail!("session {session}: the connection is full or has ended");
            }
        }
        Ok(())
    }

    /// Sends the messages of a step on time, waits for all answers and verifies them. `done` counts the
    /// messages.
    ///
    /// # Errors
    /// The gateway has ended a connection, does not answer, or is wrong.
    pub fn run(&mut self, step: Step, done: &AtomicU64) -> anyhow::Result<Measured> {
        self.connect(step.sessions)?;
        self.ledger =
            Ledger::with_capacity(step.messages as usize + 4 * step.sessions, 3 * step.messages as usize);
        let mut latency = Some(Histogram::new_with_bounds(1, 600_000_000_000, 3)?);
        let reached = self.send_on_time(step, &mut latency, done)?;
        self.settle(step.sessions, &mut latency)?;
        if self.client.has_lost_events() {
            bail!("events of the clients' device were lost");
        }
        if let Some(session) = (0..step.sessions).find(|&session| !self.client.is_connected(session)) {
            bail!("session {session}: the gateway has ended the connection; its log says why");
        }
        let verified = self.verify()?;
        let latency = latency.context("a histogram")?;
        Ok(Measured { step, latency, reached, verified })
    }

    /// Sends the messages of a step on time, until the end or until a connection is lost. Returns
    /// whether one was lost. [`Load::resend`] has been called before.
    ///
    /// # Errors
    /// The gateway takes no more messages.
    pub fn send_until_lost(&mut self, step: Step) -> anyhow::Result<bool> {
        self.connect(step.sessions)?;
        self.send_on_time(step, &mut None, &AtomicU64::new(0))?;
        Ok(self.has_lost(step.sessions))
    }

    /// Returns the rate that was reached. Ends early if a connection is lost.
    fn send_on_time(
        &mut self,
        step: Step,
        latency: &mut Option<Histogram<u64>>,
        done: &AtomicU64,
    ) -> anyhow::Result<f64> {
        let start = Instant::now();
        let time_of = |n: u64| {
            start + Duration::from_nanos((u128::from(n) * 1_000_000_000 / u128::from(step.rate)) as u64)
        };
        let mut last_progress = start;
        let mut next_heartbeat = start + HEARTBEAT;
        let mut n = 0;
        while n < step.messages {
            let mut now = Instant::now();
            let mut intended = time_of(n);
            // A few at a time, so that answers are looked at.
            for _ in 0..8 {
                if intended > now || n == step.messages {
                    break;
                }
                let session = (n % step.sessions as u64) as usize;
                if !self.client.is_connected(session) {
                    return Ok(0.0);
                }
                if !self.send_next(session, intended)? {
                    break;
                }
                last_progress = now;
                n += 1;
                intended = time_of(n);
                done.fetch_add(1, Ordering::Relaxed);
            }
            self.poll_into(latency)?;
            now = Instant::now();
            if now > next_heartbeat {
                next_heartbeat = now + HEARTBEAT;
                for session in step.sessions..self.sessions.len() {
                    self.client.send(session, b"R")?;
                }
            }
            if now - last_progress > PATIENCE && intended <= now {
                bail!("the gateway takes no more messages");
            }
        }
        Ok(step.messages as f64 / start.elapsed().as_secs_f64())
    }

    /// Sends the next order of a session, if there is room. The order is made when it is sent, so that
    /// none is lost.
    #[inline]
    fn send_next(&mut self, session: usize, intended: Instant) -> anyhow::Result<bool> {
        if !self.client.has_room(session) || self.sessions[session].waiting.len() >= WAITING {
            return Ok(false);
        }
        let message = self.traffic.next(session);
        let this = &mut self.sessions[session];
        if message.urn != 0 {
            this.waiting.push_back((message.urn, intended));
        }
        if self.resends {
            this.unanswered.push_back(message);
        }
        // If the connection has just ended, it is sent after the reconnect, in its turn all the same.
        self.ledger.sent(session, message);
        self.client.send(session, message.bytes())?;
        Ok(true)
    }

    /// Waits until everything is answered: each session asks twice. The first answer says that all
    /// its orders were handled; what they have meant for other sessions comes before the second.
    fn settle(&mut self, sessions: usize, latency: &mut Option<Histogram<u64>>) -> anyhow::Result<()> {
        for _ in 0..2 {
            for session in 0..sessions {
                self.sessions[session].answers = 0;
                if self.client.is_connected(session) {
                    self.ledger.sent(session, Message::query());
                    self.send_when_possible(session, Message::query())?;
                }
            }
            let until = Instant::now() + PATIENCE;
            while (0..sessions)
                .any(|session| self.sessions[session].answers == 0 && self.client.is_connected(session))
            {
                self.poll_into(latency)?;
                if Instant::now() > until {
                    bail!("a session gets no answer");
                }
            }
        }
        Ok(())
    }

    /// As the end of [`Load::run`], after reconnects.
    ///
    /// # Errors
    /// As [`Load::run`].
    pub fn settle_and_verify(&mut self) -> anyhow::Result<Verified> {
        self.settle(self.sessions.len(), &mut None)?;
        self.verify()
    }

    fn verify(&mut self) -> anyhow::Result<Verified> {
        self.ledger.verify(&mut self.naive, self.sessions.len()).map_err(|text| anyhow!(text))
    }
}

impl Session {
    /// A message has come: is it an answer to an order?
    #[inline]
    fn answer(&mut self, message: &[u8], latency: &mut Option<Histogram<u64>>, resends: bool) {
        if message[0] == outbound::ANSWER {
            self.answers += 1;
        }
        if resends {
            self.forget_answered(message);
        }
        if !matches!(message[0], outbound::ACCEPTED | outbound::REPLACED | outbound::REJECTED) {
            return;
        }
        let Some(urn) = urn_of(message) else { return };
        while let Some(&(waiting, intended)) = self.waiting.front()
            && waiting <= urn
        {
            self.waiting.pop_front();
            // Those before it were replaces of orders that were gone.
            if waiting == urn
                && let Some(latency) = latency
            {
                latency.saturating_record(intended.elapsed().as_nanos() as u64);
            }
        }
    }

    /// Forgets the messages up to the one that this is an answer to.
    fn forget_answered(&mut self, message: &[u8]) {
        match (message[0], urn_of(message)) {
            (outbound::ANSWER, _) => self.unanswered.clear(),
            (outbound::ACCEPTED | outbound::REPLACED | outbound::REJECTED, Some(urn)) => {
                if let Some(at) = self.unanswered.iter().position(|message| message.urn == urn) {
                    self.unanswered.drain(..=at);
                }
            }
            _ => {}
        }
    }
}
