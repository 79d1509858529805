//! A connection.

use crate::queue::Queue;
use crate::stats::{HostStats, Tally};
use doorbell::Ep;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

/// A connection with its queue.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) ep: Ep,
    pub(super) queue: Queue,
    pub(super) state: State,
    /// The commands that the host may have under way.
    pub(super) credits: u16,
    /// Commands without a response.
    pub(super) outstanding: u16,
    /// RDMA Reads under way, and the most at a time.
    pub(super) reads: u8,
    pub(super) most_reads: u8,
    /// Commands that came before the connection was established.
    pub(super) early: Vec<u32>,
    pub(super) reads_waiting: VecDeque<u32>,
    pub(super) sends_waiting: VecDeque<u32>,
    /// Responses under way, in the order of their posts.
    pub(super) sends_posted: VecDeque<u32>,
    /// Slots in use.
    pub(super) slots: usize,
    /// What the counters of the host do not have yet, and those counters once the queue is closed.
    pub(super) tally: Tally,
    pub(super) stats: Option<Arc<HostStats>>,
    /// When the request came.
    pub(super) since: Instant,
    pub(super) peer: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Accepted,
    Live,
    /// The connection ends: no request is posted any more.
    Closing,
    /// The device has ended it as well.
    Ended,
}

impl Connection {
    pub(super) fn is_admin(&self) -> bool {
        self.queue.number() == 0
    }

    pub(super) fn is_live(&self) -> bool {
        self.state == State::Live
    }

    /// How many responses can be posted.
    pub(super) fn room(&self) -> usize {
        if self.is_live() { usize::from(self.credits) - self.sends_posted.len() } else { 0 }
    }

    /// Adds what it has counted to the counters of its host.
    pub(super) fn flush_tally(&mut self) {
        let of_controller = self.queue.controller().map(|controller| &controller.stats);
        if let Some(stats) = of_controller.or(self.stats.as_ref()) {
            self.tally.flush(stats);
        }
    }

    pub(super) fn is_closing(&self) -> bool {
        matches!(self.state, State::Closing | State::Ended)
    }
}

/// The context of an EP: the place of its connection and how often that was used.
pub(super) fn context(index: usize, generation: u32) -> u64 {
    u64::from(generation) << 32 | index as u64
}
