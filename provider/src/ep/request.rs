//! What an EP can be asked to do.

use crate::types::{Destination, RmrTriplet};

/// A request, with what goes beyond local segments.
#[derive(Clone, Copy)]
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
