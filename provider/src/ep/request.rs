//! The requests that can be posted to an EP.

use crate::error::Direction;
use crate::lmr::PoolMemory;
use crate::types::{Destination, DtoOp, RmrTriplet};
use rxe_fallback::SendOp;

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

/// Bytes of a pool's memory.
#[derive(Clone, Copy)]
pub(crate) struct PoolBytes<'a> {
    pub(crate) memory: &'a PoolMemory,
    /// Offset and length.
    pub(crate) at: (usize, usize),
    /// The same bytes, for an operation that copies.
    pub(crate) copy: Option<&'a [u8]>,
}

/// An operation of fast posts. A type of its own, not a [`RequestKind`]: a value of such an enum
/// would be in memory, and its loads would wait for the stores just before them.
pub trait Operation: Copy {
    /// As its completion has it.
    const OP: DtoOp;
    /// Which way its data moves.
    const DIRECTION: Direction;
    /// SOLICITED_WAIT has a meaning for the operation.
    const SOLICITS: bool;

    /// Whether local segments of this many bytes fit, and all of them are used.
    fn fits(self, length: u32) -> bool;
    /// For the device.
    fn verb(self) -> SendOp<'static>;
    /// For the slow function.
    fn kind(self) -> RequestKind;
}

/// A message.
#[derive(Clone, Copy)]
pub struct Send;

/// A message that ends the binding of the peer's window with this RMR context. Only for devices that
/// can: the fast functions do not check it.
#[derive(Clone, Copy)]
pub(super) struct SendInvalidate(pub(super) u32);

/// An RDMA Write to this memory.
#[derive(Clone, Copy)]
pub struct Write(pub RmrTriplet);

/// An RDMA Read of this memory.
#[derive(Clone, Copy)]
pub struct Read(pub RmrTriplet);

impl Operation for Send {
    const OP: DtoOp = DtoOp::Send;
    const DIRECTION: Direction = Direction::Read;
    const SOLICITS: bool = true;

    #[inline(always)]
    fn fits(self, _: u32) -> bool {
        true
    }

    #[inline(always)]
    fn verb(self) -> SendOp<'static> {
        SendOp::Send
    }

    fn kind(self) -> RequestKind {
        RequestKind::Send
    }
}

impl Operation for SendInvalidate {
    const OP: DtoOp = DtoOp::Send;
    const DIRECTION: Direction = Direction::Read;
    const SOLICITS: bool = true;

    #[inline(always)]
    fn fits(self, _: u32) -> bool {
        true
    }

    #[inline(always)]
    fn verb(self) -> SendOp<'static> {
        SendOp::SendInvalidate(self.0)
    }

    fn kind(self) -> RequestKind {
        RequestKind::SendInvalidate(self.0)
    }
}

impl Operation for Write {
    const OP: DtoOp = DtoOp::RdmaWrite;
    const DIRECTION: Direction = Direction::Read;
    const SOLICITS: bool = false;

    #[inline(always)]
    fn fits(self, length: u32) -> bool {
        length <= self.0.segment_length
    }

    #[inline(always)]
    fn verb(self) -> SendOp<'static> {
        SendOp::Write { remote_addr: self.0.virtual_address, rkey: self.0.rmr_context }
    }

    fn kind(self) -> RequestKind {
        RequestKind::Write(self.0)
    }
}

impl Operation for Read {
    const OP: DtoOp = DtoOp::RdmaRead;
    const DIRECTION: Direction = Direction::Write;
    const SOLICITS: bool = false;

    #[inline(always)]
    fn fits(self, length: u32) -> bool {
        length == self.0.segment_length
    }

    #[inline(always)]
    fn verb(self) -> SendOp<'static> {
        SendOp::Read { remote_addr: self.0.virtual_address, rkey: self.0.rmr_context }
    }

    fn kind(self) -> RequestKind {
        RequestKind::Read(self.0)
    }
}
