//! What events say, apart from the objects that some of them bring: plain data.

use crate::types::{AddressHandle, DtoOp, DtoStatus, EpId, EvdId, RmrId, SrqId};
use std::any::Any;

/// A completed DTO (`DAT_DTO_COMPLETION_EVENT_DATA`; R76, R77). It is read-only: a pool believes what it says about a buffer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct DtoCompletion(DtoFields);

/// What a [`DtoCompletion`] says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DtoFields {
    /// The EP it happened on, also where the buffer came from an SRQ.
    pub ep: EpId,
    /// The consumer context of that EP.
    pub ep_context: u64,
    /// The cookie given at the post.
    pub cookie: u64,
    /// How it ended; with anything but success the other fields and the buffer mean nothing (R82).
    pub status: DtoStatus,
    /// Bytes moved.
    pub length: u32,
    /// Which operation.
    pub op: DtoOp,
    /// Immediate data of a write or send with immediate, host byte order.
    pub immediate: Option<u32>,
    /// The rkey that a Send with invalidate has invalidated.
    pub invalidated: Option<u32>,
    /// The pool that posted the buffer, 0 for none.
    /// Of a datagram in nobody's pool, [`SOURCE`] and its sender's QP number.
    pub(crate) pool: u32,
}

/// No pool has a number with this bit.
pub(crate) const SOURCE: u32 = 1 << 31;

impl std::ops::Deref for DtoCompletion {
    type Target = DtoFields;

    #[inline(always)]
    fn deref(&self) -> &DtoFields {
        &self.0
    }
}

impl std::fmt::Debug for DtoCompletion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl DtoCompletion {
    #[inline(always)]
    pub(crate) fn new(fields: DtoFields) -> Self {
        Self(fields)
    }

    /// Whether the operation succeeded.
    pub fn is_success(&self) -> bool {
        self.status == DtoStatus::Success
    }

    /// The QP number of a datagram's sender; `None` for all else, and for a datagram in a buffer of a [`RecvPool`](crate::RecvPool).
    pub fn source_qpn(&self) -> Option<u32> {
        (self.pool & SOURCE != 0).then_some(self.pool & !SOURCE)
    }

    /// What stands in the pool's place for a datagram of this QP.
    pub(crate) fn from_source(pool: u32, qpn: u32) -> u32 {
        if pool == 0 && qpn != 0 { SOURCE | qpn } else { pool }
    }
}

/// A completed bind of an RMR (`DAT_RMR_BIND_COMPLETION_EVENT_DATA`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RmrBindCompletion {
    /// The RMR.
    pub rmr: RmrId,
    /// The EP that it was bound through.
    pub ep: EpId,
    /// The cookie given at the bind.
    pub cookie: u64,
    /// How it ended; with anything but success the RMR is bound to nothing that can be relied on, and the connection ends.
    pub status: DtoStatus,
}

/// A connection event (`DAT_CONNECTION_EVENT_DATA`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectionEvent {
    /// The EP.
    pub ep: EpId,
    /// The consumer context of that EP.
    pub ep_context: u64,
    /// What became of the connection.
    pub kind: ConnectionEventKind,
    /// The peer's private data, where the event carries any; padded by the transport.
    pub private_data: Vec<u8>,
}

/// What became of a connection; the numbers are `DAT_EVENT_NUMBER`s.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum ConnectionEventKind {
    /// It is up.
    Established = 0x4001,
    /// The peer's consumer said no.
    PeerRejected = 0x4002,
    /// Nobody listens there, or the peer's provider said no.
    NonPeerRejected = 0x4003,
    /// The connection could not be completed after an accept.
    AcceptCompletionError = 0x4004,
    /// It ended, by either side's wish.
    Disconnected = 0x4005,
    /// It broke.
    Broken = 0x4006,
    /// It did not come up in the time given.
    TimedOut = 0x4007,
    /// The peer's address cannot be reached.
    Unreachable = 0x4008,
}

impl ConnectionEventKind {
    /// Whether a connection that was up has ended.
    pub fn is_end(self) -> bool {
        matches!(self, Self::Disconnected | Self::Broken)
    }
}

/// What became of a UD EP's connect or accept (IB extension).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatagramEvent {
    /// The EP.
    pub ep: EpId,
    /// The consumer context of that EP.
    pub ep_context: u64,
    /// What happened.
    pub kind: DatagramEventKind,
    /// What the peer sent along: with its answer, which the transport pads with zeros; on the EP that answered, with its request.
    pub private_data: Vec<u8>,
    /// The CM handle that C frees; 0 for none.
    pub(crate) cm: u64,
}

/// Kinds of [`DatagramEvent`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DatagramEventKind {
    /// Datagrams can be sent.
    Established {
        /// To there.
        peer: AddressHandle,
        /// Whether this EP has asked, and not been asked.
        active: bool,
    },
    /// The peer's consumer said no.
    Rejected,
    /// Nobody listens there for datagrams, or nobody answered, or there is no way there.
    Failed(ConnectionEventKind),
}

impl DatagramEventKind {
    /// The event's number (`DAT_IB_EVENT_NUMBER`).
    pub(crate) fn number(self) -> u32 {
        match self {
            Self::Established { .. } => 0x4_0002,
            Self::Rejected => 0x4_0003,
            Self::Failed(_) => 0x4_0004,
        }
    }
}

/// An asynchronous event (`DAT_ASYNCH_ERROR_EVENT_DATA`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AsyncEvent {
    /// The class of event; its number is a `DAT_EVENT_NUMBER`.
    pub kind: AsyncKind,
    /// The object it happened to.
    pub object: AsyncObject,
    /// The consumer context of that object.
    pub context: u64,
    /// `DAT_*_ASYNC_ERROR_REASON`: see the constants in [`reason`].
    pub reason: u32,
}

/// Classes of asynchronous events; the numbers are `DAT_EVENT_NUMBER`s.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum AsyncKind {
    /// An EVD had no room for a completion (R252).
    EvdOverflow = 0x8001,
    /// The device is gone or has failed.
    IaCatastrophic = 0x8002,
    /// An SRQ EP's connection has ended and its last buffer is accounted for (R192).
    EpBroken = 0x8003,
    /// Everything else: watermarks (R121, R213), SRQ trouble (R9), ports. Object and reason tell which.
    ///
    /// No header gives watermark events a number. This one is `DAT_ASYNC_ERROR_PROVIDER_INTERNAL_ERROR`, the only
    /// asynchronous number that claims nothing about an EP, EVD or IA, and it stays.
    Notice = 0x8005,
}

/// What an asynchronous event is about (`dat_handle`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AsyncObject {
    /// The IA itself.
    Ia,
    /// An EP.
    Ep(EpId),
    /// An EVD.
    Evd(EvdId),
    /// An SRQ.
    Srq(SrqId),
}

/// Reasons of asynchronous events; to be read together with the object's type (erratum E4).
pub mod reason {
    /// SRQ: it went to the error state (R9).
    pub const SRQ_TRANSFER_TO_ERROR: u32 = 0;
    /// SRQ: other trouble.
    pub const SRQ_OTHER_ERROR: u32 = 1;
    /// SRQ: fewer buffers are available than the low watermark (R120).
    pub const SRQ_LOW_WATERMARK: u32 = 2;
    /// EP: it went to the error state.
    pub const EP_TRANSFER_TO_ERROR: u32 = 0;
    /// EP: it holds more receives than its soft high watermark (R213).
    pub const EP_SOFT_HIGH_WATERMARK: u32 = 2;
    /// EVD: overflow.
    pub const EVD_OVERFLOW: u32 = 0;
    /// IA: catastrophic.
    pub const IA_CATASTROPHIC: u32 = 0;
    /// IA: other trouble.
    pub const IA_OTHER: u32 = 1;
}

/// An event other than a completion, as an EVD queues it.
#[derive(Debug)]
pub(crate) enum Notice {
    Connection(ConnectionEvent),
    /// In a box, since it is large and rare.
    Datagram(Box<DatagramEvent>),
    Async(AsyncEvent),
    Software(u64),
    /// A connection request: a [`CrArrival`](crate::CrArrival), which holds objects that an EVD does
    /// not know. Dropping it rejects the request.
    Arrival(Box<dyn Any + Send>),
}

/// What a dequeue takes out of an EVD.
#[derive(Debug)]
pub(crate) enum Dequeued {
    /// A completion. That of a bind has the RMR's number in the pool's place.
    Dto(DtoCompletion),
    Notice(Notice),
}

impl DtoCompletion {
    /// The completion of a bind, if this is one.
    pub(crate) fn as_bind(&self) -> Option<RmrBindCompletion> {
        let DtoFields { ep, cookie, status, pool, op, .. } = **self;
        (op == DtoOp::RmrBind).then(|| RmrBindCompletion { rmr: RmrId(pool.into()), ep, cookie, status })
    }
}
