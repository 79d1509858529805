//! Verification: from what the sessions have sent and got, whether the gateway was right.
//!
//! The messages out that one message in has brought about carry the same time, which no other has. So
//! the messages of all sessions, sorted by time, fall into groups, one for each message in that was
//! answered. The first message of its sender in a group is never an execution, so the sender is known.
//! It handles its messages in order, so those that it sent before were answered, or were to be ignored:
//! the slow market, which gets them now, must ignore them as well.

use super::traffic::Message;
use crate::naive::{Naive, Out};
use crate::ouch::{CancelReason, Inbound, LONGEST_OUT, outbound, time_of};
use std::collections::VecDeque;

/// A message that a session has got.
#[derive(Clone, Copy, Debug)]
struct Got {
    time: u64,
    session: u32,
    length: u8,
    bytes: [u8; LONGEST_OUT],
}

impl Got {
    fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }
}

/// What the sessions have sent and got since the last verification.
#[derive(Debug, Default)]
pub struct Ledger {
    sent: Vec<(u32, Message)>,
    got: Vec<Got>,
}

/// What was verified.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verified {
    /// Messages in that were answered.
    pub answered: u64,
    /// Messages in that had to be ignored: they were about orders that were gone.
    pub ignored: u64,
    /// Messages out.
    pub got: u64,
    /// Executions.
    pub executions: u64,
    /// Orders that were rejected as they had to be.
    pub rejected: u64,
}

impl Ledger {
    /// A ledger that does not allocate for this many messages in and out.
    pub fn with_capacity(sent: usize, got: usize) -> Self {
        Self { sent: Vec::with_capacity(sent), got: Vec::with_capacity(got) }
    }

    /// A session sends a message, now or after a reconnect, and perhaps again: the gateway ignores
    /// what it has had.
    #[inline]
    pub fn sent(&mut self, session: usize, message: Message) {
        self.sent.push((session as u32, message));
    }

    /// A session has got a message with a sequence number.
    #[inline]
    pub fn got(&mut self, session: usize, message: &[u8]) {
        let mut bytes = [0; LONGEST_OUT];
        let length = message.len().min(LONGEST_OUT);
        bytes[..length].copy_from_slice(&message[..length]);
        let time = time_of(message).unwrap_or(0);
        self.got.push(Got { time, session: session as u32, length: length as u8, bytes });
    }

    /// Compares everything with this market, which has had what was before. Empties the ledger.
    ///
    /// # Errors
    /// The first difference.
    pub fn verify(&mut self, naive: &mut Naive, sessions: usize) -> Result<Verified, String> {
        let mut verified = Verified::default();
        let mut sent = vec![VecDeque::new(); sessions];
        for (session, message) in self.sent.drain(..) {
            sent[session as usize].push_back(message);
        }
        for pair in self.got.windows(2) {
            if pair[0].session == pair[1].session && pair[0].time > pair[1].time {
                return Err(format!("session {}: times go back", pair[0].session));
            }
        }
        // Stable: the messages of a session stay in their order.
        self.got.sort_by_key(|got| got.time);
        for group in self.got.chunk_by(|a, b| a.time == b.time) {
            verify_group(group, naive, &mut sent, &mut verified)?;
        }
        self.got.clear();
        for (session, messages) in (0..).zip(sent) {
            for message in messages {
                let expected = apply(naive, u64::MAX, session, &message)?;
                if !expected.is_empty() {
                    return Err(format!("session {session}: no answer to {}", text(message.bytes())));
                }
                verified.ignored += 1;
            }
        }
        Ok(verified)
    }
}

fn apply(naive: &mut Naive, time: u64, session: u32, message: &Message) -> Result<Out, String> {
    let parsed = Inbound::parse(message.bytes()).ok_or_else(|| text(message.bytes()))?;
    Ok(naive.apply(time, session, parsed))
}

fn verify_group(
    group: &[Got],
    naive: &mut Naive,
    sent: &mut [VecDeque<Message>],
    verified: &mut Verified,
) -> Result<(), String> {
    let first_of = |session| group.iter().find(|got| got.session == session).map(Got::bytes);
    let is_sender = |got: &&Got| first_of(got.session).is_some_and(|first| first[0] != outbound::EXECUTED);
    let time = group[0].time;
    let shown = || {
        group.iter().map(|got| format!("\n  to {}: {}", got.session, text(got.bytes()))).collect::<String>()
    };
    let Some(sender) = group.iter().find(is_sender) else {
        return Err(format!("executions without an order:{}", shown()));
    };
    let expected = match sender.bytes() {
        [outbound::SYSTEM, ..] => return Ok(()),
        [outbound::CANCELED, .., reason] if *reason == CancelReason::Supervisory as u8 => {
            naive.cancel_all(time, sender.session)
        }
        _ => loop {
            let Some(message) = sent[sender.session as usize].pop_front() else {
                return Err(format!("session {} has sent nothing, but got:{}", sender.session, shown()));
            };
            let expected = apply(naive, time, sender.session, &message)?;
            if !expected.is_empty() {
                verified.answered += 1;
                break expected;
            }
            verified.ignored += 1;
        },
    };
    // To each session the same, in the same order.
    let mut expected: Vec<_> = expected.iter().map(|(session, bytes)| (*session, &bytes[..])).collect();
    let mut got: Vec<_> = group.iter().map(|got| (got.session, got.bytes())).collect();
    expected.sort_by_key(|(session, _)| *session);
    got.sort_by_key(|(session, _)| *session);
    if expected != got {
        let expected: String =
            expected.iter().map(|(session, bytes)| format!("\n  to {session}: {}", text(bytes))).collect();
        return Err(format!("expected:{expected}\ngot:{}", shown()));
    }
    verified.got += got.len() as u64;
    for (_, bytes) in got {
        verified.executions += u64::from(bytes[0] == outbound::EXECUTED);
        verified.rejected += u64::from(bytes[0] == outbound::REJECTED);
    }
    // Both sides have a message about it.
    verified.executions -= group.iter().filter(|got| got.bytes[0] == outbound::EXECUTED).count() as u64 / 2;
    Ok(())
}

fn text(message: &[u8]) -> String {
    message.escape_ascii().to_string()
}
