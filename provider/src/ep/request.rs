//! The requests that can be posted to an EP.

use crate::error::Direction;
use crate::types::{Destination, RmrTriplet};

/// A request, with its parameters other than local segments.
#[derive(Clone, Copy, Debug)]
pub enum RequestKind {
    /// A message.
    Send,
    /// A message that invalidates one of the peer's RMR contexts.
    SendInvalidate(u32),
    /// An RDMA Write to this memory of the peer.
    Write(RmrTriplet),
    /// An RDMA Write, with immediate data for a receive of the peer.
    WriteImmediate(RmrTriplet, u32),
    /// An RDMA Read of this memory of the peer.
    Read(RmrTriplet),
    /// An atomic addition of this number.
    FetchAdd(RmrTriplet, u64),
    /// An atomic comparison with the first number, which the second one replaces if it is equal.
    CompareSwap(RmrTriplet, u64, u64),
    /// A datagram.
    SendUd(Destination),
}

impl RequestKind {
    /// Which way the data of the request moves.
    #[inline]
    pub(super) fn direction(self) -> Direction {
        match self {
            Self::Send
            | Self::SendInvalidate(_)
            | Self::SendUd(_)
            | Self::Write(_)
            | Self::WriteImmediate(..) => Direction::Read,
            Self::Read(_) | Self::FetchAdd(..) | Self::CompareSwap(..) => Direction::Write,
        }
    }
}
