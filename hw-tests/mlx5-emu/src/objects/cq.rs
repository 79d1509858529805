//! Completion queues.

use crate::host::mem::Area;
use crate::host::pin::Pin;

#[derive(Debug)]
pub(crate) struct Cq {
    pub(crate) cqn: u32,
    pub(crate) context: usize,
    pub(crate) user_handle: u64,
    pub(crate) handle: u32,
    pub(crate) buf: Area,
    pub(crate) log_count: u32,
    pub(crate) cqe_size: u32,
    pub(crate) record: Area,
    pub(crate) channel: Option<usize>,
    /// CQEs written, modulo 2^32.
    pub(crate) pi: u32,
    /// Consumer index as last read from the record, extended.
    pub(crate) ci: u32,
    /// Index of the last CQE that was solicited (or an error), plus one.
    pub(crate) solicited_pi: u32,
    /// CQEs that events announced: as many as there were when the last one was generated.
    pub(crate) notified_pi: u32,
    pub(crate) armed: Armed,
    /// Events generated: the sequence number the next arm must carry.
    pub(crate) arm_sn: u32,
    /// The arm word as last acted upon.
    pub(crate) arm_seen: u32,
    pub(crate) users: u32,
    pub(crate) overrun: bool,
    pub(crate) ignore_overrun: bool,
    pub(crate) stamps: Stamps,
    pub(crate) comp_events: u32,
    pub(crate) async_events: u32,
    /// Buffer and record.
    pub(crate) pins: [Pin; 2],
}

/// Timestamps that a CQ's completions carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stamps {
    No,
    /// Cycles of the device's clock.
    Cycles,
    /// Seconds of the real time in the upper half, nanoseconds in the lower one.
    RealTime,
}

/// Which completions generate an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Armed {
    No,
    Solicited,
    Any,
}
