//! Channels of events.

use std::collections::VecDeque;
use std::os::fd::{OwnedFd, RawFd};

/// Numbers of `enum ibv_event_type`.
pub(crate) mod event {
    pub(crate) const CQ_ERR: u32 = 0;
    pub(crate) const QP_FATAL: u32 = 1;
    pub(crate) const QP_REQ_ERR: u32 = 2;
    pub(crate) const QP_ACCESS_ERR: u32 = 3;
    pub(crate) const COMM_EST: u32 = 4;
    pub(crate) const SQ_DRAINED: u32 = 5;
    pub(crate) const DEVICE_FATAL: u32 = 8;
    pub(crate) const PORT_ACTIVE: u32 = 9;
    pub(crate) const PORT_ERR: u32 = 10;
    pub(crate) const SRQ_ERR: u32 = 14;
    pub(crate) const SRQ_LIMIT_REACHED: u32 = 15;
    pub(crate) const QP_LAST_WQE_REACHED: u32 = 16;
}

/// One channel.
#[derive(Debug)]
pub(crate) struct Channel {
    pub(crate) ours: OwnedFd,
    /// Duplicate of the program's end, to take unread events back.
    pub(crate) theirs: OwnedFd,
    pub(crate) fd: RawFd,
    pub(crate) backlog: VecDeque<Vec<u8>>,
    pub(crate) closed: bool,
    pub(crate) users: u32,
}
