//! The state of a command.

use super::memory::Buffer;
use crate::proto::{Cqe, Data, Sqe};
use crate::queue::Io;
use crate::subsystem::Namespace;
use doorbell::{LmrTriplet, RecvBuf};
use std::cmp::Ordering as Order;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

/// Where a command is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// The slot is free.
    Free,
    /// Waits for the connection to be established, for a place, or is being executed.
    Waiting,
    /// Waits for a data buffer.
    Buffer,
    /// An RDMA Read is under way.
    Reading,
    /// A backend has it.
    Backend,
    /// Its response is under way.
    Responding,
}

/// A command.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) stage: Stage,
    pub(super) connection: usize,
    pub(super) sqe: Sqe,
    pub(super) data: Data,
    /// The capsule, while its data are needed.
    pub(super) capsule: Option<RecvBuf>,
    pub(super) buffer: Option<Buffer>,
    pub(super) task: Task,
    /// The response, and the data to be written before.
    pub(super) cqe: Cqe,
    pub(super) write: Option<LmrTriplet>,
    /// An I/O command without a response, in the counters of its host.
    pub(super) counted: bool,
    /// When it has come, by the clock of the engine.
    pub(super) begun: u64,
}

impl Slot {
    /// A slot without a command.
    pub(super) fn new() -> Self {
        Self {
            stage: Stage::Free,
            connection: 0,
            sqe: Sqe::default(),
            data: Data::None,
            capsule: None,
            buffer: None,
            task: Task::None,
            cqe: Cqe::default(),
            write: None,
            counted: false,
            begun: 0,
        }
    }
}

/// What is done with a command's data once they are here.
#[derive(Debug)]
pub(super) enum Task {
    None,
    /// Give this many bytes to the queue.
    Data(u32),
    /// Send these to the host.
    Answer(Vec<u8>),
    /// Also while the response is under way: the device reads the namespace's memory.
    Io(Io),
    /// Deallocate these bytes, from the last to the first.
    Deallocate(Arc<Namespace>, Vec<Range<u64>>),
}

/// A command that goes on later: a faulty backend holds it, or others take their turn.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Delayed {
    pub(super) due: Instant,
    pub(super) slot: u32,
}

impl Ord for Delayed {
    /// The first to be due is the greatest.
    fn cmp(&self, other: &Self) -> Order {
        (other.due, other.slot).cmp(&(self.due, self.slot))
    }
}

impl PartialOrd for Delayed {
    fn partial_cmp(&self, other: &Self) -> Option<Order> {
        Some(self.cmp(other))
    }
}

/// What a completed request was, in the upper half of its cookie. The lower half is the slot.
pub(super) const READ: u64 = 1 << 32;
/// As [`READ`].
pub(super) const WRITE: u64 = 2 << 32;
/// As [`READ`].
pub(super) const SEND: u64 = 3 << 32;
