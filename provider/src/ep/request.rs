//! The requests that can be posted to an EP.

use crate::error::Direction;
use crate::types::{Destination, RmrTriplet};

/// A request, with its parameters other than local segments.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RequestKind {
    Send,
    /// A message that invalidates one of the peer's RMR contexts.
    SendInvalidate(u32),
    Write(RmrTriplet),
    WriteImmediate(RmrTriplet, u32),
    Read(RmrTriplet),
    FetchAdd(RmrTriplet, u64),
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
