//! Flags, states and small values, with the numbers of the DAT 2.0 headers.

use bitflags::bitflags;
use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};
use std::net::IpAddr;

/// The largest number of segments of a buffer, even if the device allows more.
pub const MAX_IOV: usize = 32;

/// The largest size of a connection request's private data, in bytes, as the transport allows.
pub const MAX_PRIVATE_DATA: usize = 56;

/// The address of a service point (`DAT_CONN_QUAL`). Values up to 0xffff are rdma_cm ports. Larger
/// values are mapped to the ports from 33,534 on, as libdaplofa does, so that both providers
/// interoperate.
pub type ConnQual = u64;

/// The rdma_cm port of a connection qualifier.
pub(crate) fn port_of(qual: ConnQual) -> u16 {
    const MOD: u64 = 32_001;
    const BASE: u64 = 65_535 - MOD;
    // Both branches fit: the second is below 65,535.
    if qual > 0xffff { (qual % MOD + BASE) as u16 } else { qual as u16 }
}

bitflags! {
    /// Completion flags of a DTO or of an EP's streams (`DAT_COMPLETION_FLAGS`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct CompletionFlags: u32 {
        /// No event for a successful completion.
        const SUPPRESS = 0x01;
        /// On a Send: the receiver is notified. On an EP's receive stream: only such messages
        /// notify.
        const SOLICITED_WAIT = 0x02;
        /// The completion is an event without a notification.
        const UNSIGNALLED = 0x04;
        /// The operation waits for earlier RDMA Reads.
        const BARRIER_FENCE = 0x08;
        /// Threshold-based notification: a waiter returns when its threshold is reached.
        const EVD_THRESHOLD = 0x10;
    }
}

bitflags! {
    /// Memory privileges of an LMR (`DAT_MEM_PRIV_FLAGS`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct MemPriv: u32 {
        /// Source of Sends and RDMA Writes. Always allowed, because devices cannot refuse local
        /// reads.
        const LOCAL_READ = 0x01;
        /// Target of a peer's RDMA Reads.
        const REMOTE_READ = 0x02;
        /// Target of receives and of own RDMA Reads.
        const LOCAL_WRITE = 0x10;
        /// Target of a peer's RDMA Writes.
        const REMOTE_WRITE = 0x20;
        /// Target of a peer's atomics (IB extension).
        const REMOTE_ATOMIC = 0x40;
    }
}

bitflags! {
    /// Which streams an EVD takes (`DAT_EVD_FLAGS`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct EvdFlags: u32 {
        /// Software events, which the program posts.
        const SOFTWARE = 0x001;
        /// Connection requests.
        const CR = 0x010;
        /// Data transfer completions.
        const DTO = 0x020;
        /// Connection events.
        const CONNECTION = 0x040;
        /// RMR bind completions.
        const RMR_BIND = 0x080;
        /// Asynchronous errors.
        const ASYNC = 0x100;
    }
}

/// How to end a connection or close an IA (`DAT_CLOSE_FLAGS`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloseFlags {
    /// At once.
    Abrupt,
    /// After the requests under way; for an IA: only if no object is left.
    Graceful,
}

/// State of an EP (`DAT_EP_STATE`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum EpState {
    /// Not connected; may connect, or be used for a CR or RSP.
    Unconnected = 0,
    /// Reserved by an RSP.
    Reserved = 2,
    /// A request for its RSP has arrived.
    PassiveConnectionPending = 4,
    /// Connecting.
    ActiveConnectionPending = 6,
    /// Created by the provider for a connection request.
    TentativeConnectionPending = 7,
    /// Connected.
    Connected = 9,
    /// A graceful disconnect is finishing requests.
    DisconnectPending = 0xA,
    /// The connection has ended; the EP can be reset or freed.
    Disconnected = 0xB,
    /// A CR has been accepted, the peer has not confirmed yet.
    CompletionPending = 0xC,
}

impl EpState {
    pub(crate) fn from_u8(v: u8) -> Self {
        match v {
            0 => Self::Unconnected,
            2 => Self::Reserved,
            4 => Self::PassiveConnectionPending,
            6 => Self::ActiveConnectionPending,
            7 => Self::TentativeConnectionPending,
            9 => Self::Connected,
            0xA => Self::DisconnectPending,
            0xC => Self::CompletionPending,
            _ => Self::Disconnected,
        }
    }

    /// Whether the EP has neither connected nor tried to since the last reset: the device has used
    /// none of its posted buffers.
    pub(crate) fn is_before_connection(self) -> bool {
        matches!(
            self,
            Self::Unconnected
                | Self::Reserved
                | Self::PassiveConnectionPending
                | Self::TentativeConnectionPending
        )
    }

    /// Whether there is a connection: it is up, about to be confirmed or about to end. The QP can
    /// execute requests.
    pub(crate) fn has_connection(self) -> bool {
        matches!(self, Self::Connected | Self::CompletionPending | Self::DisconnectPending)
    }

    /// The `INVALID_STATE` subtype that names this state.
    pub(crate) fn subtype(self) -> crate::Subtype {
        use crate::Subtype as S;
        match self {
            Self::Unconnected => S::InvalidStateEpUnconnected,
            Self::Reserved => S::InvalidStateEpReserved,
            Self::PassiveConnectionPending => S::InvalidStateEpPassconnpending,
            Self::ActiveConnectionPending => S::InvalidStateEpActconnpending,
            Self::TentativeConnectionPending => S::InvalidStateEpTentconnpending,
            Self::Connected => S::InvalidStateEpConnected,
            Self::DisconnectPending => S::InvalidStateEpDiscpending,
            Self::Disconnected => S::InvalidStateEpDisconnected,
            Self::CompletionPending => S::InvalidStateEpComplpending,
        }
    }
}

/// State of an SRQ (`DAT_SRQ_STATE`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum SrqState {
    /// The device has reported an error of the SRQ.
    Error = 0,
    /// Normal.
    Operational = 1,
    /// The SRQ is being freed.
    Shutdown = 2,
}

/// How a DTO ended (`DAT_DTO_COMPLETION_STATUS`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum DtoStatus {
    /// Done.
    Success = 0,
    /// Not done because the connection ended.
    Flushed = 1,
    /// The message is longer than the buffer.
    LocalLength = 2,
    /// An internal inconsistency of the local EP.
    LocalEp = 3,
    /// A local segment names memory without the necessary registration or privilege.
    LocalProtection = 4,
    /// The peer sent an unexpected response.
    BadResponse = 5,
    /// The peer's memory does not allow the access.
    RemoteAccess = 6,
    /// The peer could not execute the operation.
    RemoteResponder = 7,
    /// The transport gave up (retries exhausted).
    Transport = 8,
    /// The peer had no receive posted until the retries ended.
    ReceiverNotReady = 9,
    /// A packet was truncated.
    PartialPacket = 0xA,
    /// A memory window operation failed.
    RmrOperationFailed = 0xB,
}

/// Which operation completed (`DAT_DTOS`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum DtoOp {
    /// Send.
    Send = 0,
    /// RDMA Write.
    RdmaWrite = 1,
    /// RDMA Read.
    RdmaRead = 2,
    /// Receive.
    Receive = 3,
    /// Receive of a Send with invalidate.
    ReceiveWithInvalidate = 4,
    /// Bind of an RMR; its completion is an event of its own, [`Event::Bound`](crate::Event::Bound).
    RmrBind = 5,
    /// RDMA Write with immediate, at the requester (IB extension).
    RdmaWriteImmediate = 8,
    /// RDMA Write with immediate, at the target (IB extension).
    ReceiveRdmaWriteImmediate = 9,
    /// Fetch and add (IB extension).
    FetchAndAdd = 10,
    /// Compare and swap (IB extension).
    CompareAndSwap = 11,
    /// Receive of a Send with immediate (IB extension).
    ReceiveImmediate = 12,
    /// Send of a datagram (IB extension).
    SendUd = 13,
    /// Receive of a datagram; 40 bytes of header area come first, and the length counts them (IB
    /// extension).
    ReceiveUd = 14,
    /// Receive of a datagram with immediate (IB extension).
    ReceiveUdImmediate = 15,
}

impl DtoOp {
    /// Whether the operation belongs to the IB extension.
    pub fn is_extension(self) -> bool {
        self as u32 >= Self::RdmaWriteImmediate as u32
    }

    /// Whether it is a receive, which has used up a buffer.
    pub fn is_receive(self) -> bool {
        match self {
            Self::Receive
            | Self::ReceiveWithInvalidate
            | Self::ReceiveRdmaWriteImmediate
            | Self::ReceiveImmediate
            | Self::ReceiveUd
            | Self::ReceiveUdImmediate => true,
            Self::Send
            | Self::RdmaWrite
            | Self::RdmaRead
            | Self::RmrBind
            | Self::RdmaWriteImmediate
            | Self::FetchAndAdd
            | Self::CompareAndSwap
            | Self::SendUd => false,
        }
    }
}

/// The service type of an EP (`DAT_SERVICE_TYPE`, `DAT_IB_SERVICE_TYPE`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[repr(u32)]
pub enum ServiceType {
    /// One reliable connection.
    #[default]
    Rc = 0,
    /// Datagrams to and from any number of peers (IB extension).
    Ud = 1,
}

/// Quality of service (`DAT_QOS`). Connections are best effort. An EP stores another value as an
/// attribute, which has no effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(u32)]
pub enum Qos {
    /// The default.
    #[default]
    BestEffort = 0,
    /// Throughput before latency.
    HighThroughput = 1,
    /// Latency before throughput.
    LowLatency = 2,
    /// Economy.
    Economy = 4,
    /// Premium.
    Premium = 8,
}

/// The base of the addresses of registered memory (`DAT_VA_TYPE`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(u32)]
pub enum VaType {
    /// Virtual addresses of this process.
    #[default]
    Virtual = 0,
    /// Zero-based: the memory starts at address 0.
    ZeroBased = 1,
}

/// A piece of local memory: address, length in bytes and the context of the LMR that covers it
/// (`DAT_LMR_TRIPLET`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(C)]
pub struct LmrTriplet {
    /// Start address.
    pub virtual_address: u64,
    /// Length in bytes; with 0 the other two fields are not checked (R52).
    pub segment_length: u32,
    /// From [`crate::Lmr::context`].
    pub lmr_context: u32,
}

/// A piece of a peer's memory: address, length in bytes and the peer's RMR context, a real rkey
/// (`DAT_RMR_TRIPLET`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(C)]
pub struct RmrTriplet {
    /// Start address at the peer.
    pub virtual_address: u64,
    /// Length in bytes.
    pub segment_length: u32,
    /// The peer's rkey.
    pub rmr_context: u32,
}

impl RmrTriplet {
    /// `len` bytes of it, from `offset` on. `None` if it has not so many.
    #[must_use]
    pub fn part(self, offset: usize, len: usize) -> Option<Self> {
        let end = offset.checked_add(len)? as u64;
        if end > self.segment_length.into() {
            return None;
        }
        // The triplet may come from a peer, with any address.
        let virtual_address = self.virtual_address.checked_add(offset as u64)?;
        Some(Self { virtual_address, segment_length: len as u32, ..self })
    }

    /// For private data or a message to the peer: address, length and RMR context, little-endian.
    pub fn to_bytes(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.virtual_address.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.segment_length.to_le_bytes());
        bytes[12..].copy_from_slice(&self.rmr_context.to_le_bytes());
        bytes
    }

    /// From what [`to_bytes`](Self::to_bytes) has made, with or without more bytes behind it: the
    /// transport pads private data. `None` for less than 16 bytes.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (address, rest) = bytes.split_first_chunk()?;
        let (length, rest) = rest.split_first_chunk()?;
        let (context, _) = rest.split_first_chunk()?;
        Some(Self {
            virtual_address: u64::from_le_bytes(*address),
            segment_length: u32::from_le_bytes(*length),
            rmr_context: u32::from_le_bytes(*context),
        })
    }
}

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(#[doc(hidden)] pub u64);
    )*};
}

ids! {
    /// Names an EP in events; never used twice in a process.
    EpId,
    /// Names an EVD in events; never used twice in a process.
    EvdId,
    /// Names an SRQ in events; never used twice in a process.
    SrqId,
    /// Names a PSP, RSP or CSP in events; never used twice in a process.
    SpId,
    /// Names an RMR in events.
    RmrId,
}

/// A number that no other object of this process ever has.
pub(crate) fn next_id() -> u64 {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// A hasher for numbers that a device or this process assigns. It spreads them and does not resist
/// chosen collisions, which cannot occur.
#[derive(Debug, Default)]
pub struct NumberHasher(u64);

impl Hasher for NumberHasher {
    fn finish(&self) -> u64 {
        // Tables take the index from the lower bits, and only the upper ones depend on all bits of
        // the number.
        self.0.rotate_left(32)
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(self.0 ^ u64::from(byte));
        }
    }

    #[inline]
    fn write_u64(&mut self, number: u64) {
        // 2^64 divided by the golden ratio.
        self.0 = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    #[inline]
    fn write_u32(&mut self, number: u32) {
        self.write_u64(number.into());
    }
}

/// A table of what has these numbers.
pub type ByNumber<N, T> = HashMap<N, T, BuildHasherDefault<NumberHasher>>;

/// A set of numbers.
pub(crate) type Numbers<N> = HashSet<N, BuildHasherDefault<NumberHasher>>;

/// The destination of datagrams: a peer's EP (`DAT_IB_ADDR_HANDLE`).
///
/// An address handle is the route to the peer's port and the number of a QP there. Copies are the
/// same handle. It can be used with every UD EP of its IA and PZ, until
/// [`Ep::free_address_handle`](crate::Ep::free_address_handle) or the free of the EP that resolved
/// it.
///
/// # References
/// dat_ib_extensions.h, `DAT_IB_ADDR_HANDLE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AddressHandle {
    /// The peer's QP number, 24 bits.
    pub qpn: u32,
    /// The peer's address.
    pub address: IpAddr,
    /// The number of the route; never 0.
    #[doc(hidden)]
    pub token: u64,
}

impl AddressHandle {
    /// The same route, to another QP of the same port.
    #[must_use]
    pub fn with_qpn(self, qpn: u32) -> Self {
        Self { qpn, ..self }
    }
}

/// The destination of a datagram: the number of the route, and the QP number.
#[derive(Clone, Copy, Debug)]
pub struct Destination {
    /// The number of the route.
    pub token: u64,
    /// The peer's QP number.
    pub qpn: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_a_remote_segment_lies_inside() {
        let whole = RmrTriplet { virtual_address: u64::MAX - 99, segment_length: 100, rmr_context: 7 };
        let part =
            |start, len| Some(RmrTriplet { virtual_address: start, segment_length: len, rmr_context: 7 });
        assert_eq!(whole.part(0, 100), Some(whole));
        assert_eq!(whole.part(99, 1), part(u64::MAX, 1));
        assert_eq!(whole.part(10, 0), part(u64::MAX - 89, 0));
        for (offset, len) in [(0, 101), (100, 1), (101, 0), (usize::MAX, 1), (1, usize::MAX), (usize::MAX, 0)]
        {
            assert_eq!(whole.part(offset, len), None, "{offset}, {len}");
        }
        let forged = RmrTriplet { virtual_address: u64::MAX, ..whole };
        assert_eq!(forged.part(1, 1), None);
    }

    #[test]
    fn large_connection_qualifiers_fold_as_libdaplofa_folds_them() {
        assert_eq!(port_of(45_248), 45_248);
        assert_eq!(port_of(0xffff), 0xffff);
        assert_eq!(port_of(0x1_0000), (65_536 % 32_001 + 33_534) as u16);
        assert_eq!(port_of(u64::MAX), (u64::MAX % 32_001) as u16 + 33_534);
    }

    #[test]
    fn ep_states_survive_the_round_trip() {
        for state in [
            EpState::Unconnected,
            EpState::Reserved,
            EpState::PassiveConnectionPending,
            EpState::ActiveConnectionPending,
            EpState::TentativeConnectionPending,
            EpState::Connected,
            EpState::DisconnectPending,
            EpState::Disconnected,
            EpState::CompletionPending,
        ] {
            assert_eq!(EpState::from_u8(state as u8), state);
        }
    }
}
