//! The contents of events as plain data, without the objects that some events carry.

use crate::types::{AddressHandle, DtoOp, DtoStatus, EpId, EvdId, RmrId, SrqId};
use std::any::Any;

/// A completed DTO (`DAT_DTO_COMPLETION_EVENT_DATA`; R76, R77). The type is read-only because a
/// pool trusts a completion to identify its buffer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct DtoCompletion(DtoFields);

/// The fields of a [`DtoCompletion`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DtoFields {
    /// The EP of the operation, even if the buffer came from an SRQ.
    pub ep: EpId,
    /// The program's number for that EP ([`EpBuilder::context`](crate::EpBuilder::context)): with it,
    /// a program finds its own value for the connection.
    pub ep_context: u64,
    /// The cookie given at the post.
    pub cookie: u64,
    /// The status. Unless it is success, only `ep`, `ep_context` and `cookie` have a meaning beside it;
    /// what the buffer contains has none (R82). Pools find the buffer of a failed operation as well.
    pub status: DtoStatus,
    /// The number of bytes transferred.
    pub length: u32,
    /// The operation.
    pub op: DtoOp,
    /// Immediate data of a write or send with immediate, host byte order.
    pub immediate: Option<u32>,
    /// The rkey that a Send with invalidate has invalidated.
    pub invalidated: Option<u32>,
    pub(crate) owner: Owner,
}

/// Who has posted a work request, and what its completion says beyond that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// The program.
    Program,
    /// The pool of this number, which owns the buffer.
    Pool(u32),
    /// The program: a bind of the RMR of this number.
    Bind(u32),
    /// The program: the buffer has a datagram from the QP of this number.
    Datagram(u32),
}

impl Owner {
    /// Numbers of pools are below this.
    pub(crate) const POOL_NUMBERS: u32 = 1 << 31;

    /// The owner of a buffer of this pool. Pool 0 is no pool.
    #[inline(always)]
    pub(crate) fn of_pool(number: u32) -> Self {
        if number == 0 { Self::Program } else { Self::Pool(number) }
    }
}

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

    /// The QP number of a datagram's sender. `None` for other completions, and for a datagram in a
    /// buffer of a [`RecvPool`](crate::RecvPool).
    pub fn source_qpn(&self) -> Option<u32> {
        if let Owner::Datagram(qpn) = self.owner { Some(qpn) } else { None }
    }
}

/// The event of a success that has no effect when the consumer takes it.
#[derive(Clone, Copy, Debug)]
pub struct Success {
    pub(crate) ep: EpId,
    /// The consumer's context of the EP.
    pub ep_context: u64,
    /// As given with the work request.
    pub cookie: u64,
    /// The pool of the buffer; 0 for none.
    pub(crate) pool: u32,
    /// The number of bytes moved.
    pub length: u32,
    /// What has completed.
    pub op: DtoOp,
}

impl From<Success> for DtoCompletion {
    #[inline(always)]
    fn from(success: Success) -> Self {
        let Success { ep, ep_context, cookie, pool, length, op } = success;
        Self(DtoFields {
            ep,
            ep_context,
            cookie,
            owner: Owner::of_pool(pool),
            status: DtoStatus::Success,
            length,
            op,
            immediate: None,
            invalidated: None,
        })
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
    /// The status. Unless it is success, the RMR's binding is undefined, and the connection ends.
    pub status: DtoStatus,
}

/// A connection event (`DAT_CONNECTION_EVENT_DATA`).
#[derive(Clone, PartialEq, Eq)]
pub struct ConnectionEvent {
    /// The EP.
    pub ep: EpId,
    /// The consumer context of that EP.
    pub ep_context: u64,
    /// The change of the connection.
    pub kind: ConnectionEventKind,
    /// The peer's private data, if the event carries any; padded by the transport.
    pub private_data: Vec<u8>,
    /// The connection was never up.
    pub(crate) never_up: bool,
}

impl std::fmt::Debug for ConnectionEvent {
    /// Without the zeros at the end of the private data, with which the transport pads it.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { ep, ep_context, kind, private_data, never_up: _ } = self;
        let len = private_data.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
        f.debug_struct("ConnectionEvent")
            .field("ep", ep)
            .field("ep_context", ep_context)
            .field("kind", kind)
            .field("private_data", &format_args!("b\"{}\"", private_data[..len].escape_ascii()))
            .finish()
    }
}

/// Changes of a connection. The values are `DAT_EVENT_NUMBER`s.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum ConnectionEventKind {
    /// The connection is established.
    Established = 0x4001,
    /// The peer's consumer rejected the request.
    PeerRejected = 0x4002,
    /// No service listens at that address, or the peer's provider rejected the request.
    NonPeerRejected = 0x4003,
    /// The connection could not be completed after an accept.
    AcceptCompletionError = 0x4004,
    /// Either side ended the connection, or this side a connection that was not up yet
    /// ([`Event::NotConnected`](crate::Event::NotConnected)).
    Disconnected = 0x4005,
    /// The connection broke.
    Broken = 0x4006,
    /// The connection was not established in the given time.
    TimedOut = 0x4007,
    /// The peer's address cannot be reached.
    Unreachable = 0x4008,
    /// Nothing of an ended connection is left on the device
    /// ([`EpBuilder::tell_drained`](crate::EpBuilder::tell_drained)). DAT has no such event.
    Drained = 0x4_0100,
}

impl ConnectionEventKind {
    /// Whether a connection has ended: one that was up, or one whose set-up this side has ended with
    /// [`Ep::disconnect`](crate::Ep::disconnect). [`Event`](crate::Event) tells them apart.
    pub fn is_end(self) -> bool {
        matches!(self, Self::Disconnected | Self::Broken)
    }

    /// Whether the event leaves its EVD behind the completions that were queued before it.
    pub(crate) fn follows_completions(self) -> bool {
        self.is_end() || self == Self::Drained
    }
}

/// The result of a UD EP's connect or accept (IB extension).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatagramEvent {
    /// The EP.
    pub ep: EpId,
    /// The consumer context of that EP.
    pub ep_context: u64,
    /// What happened.
    pub kind: DatagramEventKind,
    /// The peer's private data. On the EP that asked, it comes with the answer, and the transport
    /// pads it with zeros. On the EP that answered, it comes with the request.
    pub private_data: Vec<u8>,
    /// The CM handle that the C consumer frees; 0 for none.
    #[doc(hidden)]
    pub cm: u64,
}

/// Kinds of [`DatagramEvent`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DatagramEventKind {
    /// Datagrams can be sent.
    Established {
        /// The destination.
        peer: AddressHandle,
        /// Whether this EP asked. If false, the peer asked.
        active: bool,
    },
    /// The peer's consumer rejected the request.
    Rejected,
    /// No service listens there for datagrams, no answer came, or there is no route.
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
    /// The class of event. Its value is a `DAT_EVENT_NUMBER`.
    pub kind: AsyncKind,
    /// The object that the event concerns.
    pub object: AsyncObject,
    /// The consumer context of that object.
    pub context: u64,
    /// The `DAT_*_ASYNC_ERROR_REASON`: see the constants in [`reason`].
    pub reason: u32,
}

/// Classes of asynchronous events. The values are `DAT_EVENT_NUMBER`s.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum AsyncKind {
    /// An EVD had no room for a completion (R252).
    EvdOverflow = 0x8001,
    /// The device is gone or has failed.
    IaCatastrophic = 0x8002,
    /// An SRQ EP's connection that was up has ended, gracefully or not (R192).
    /// [`Event::Drained`](crate::Event::Drained) says when nothing of it is left on the device.
    ///
    /// The connection event says the same, so a program need not take this one: when the EVD of
    /// asynchronous events is full, the oldest of this kind is dropped for a newer event.
    EpBroken = 0x8003,
    /// All other events: watermarks (R121, R213), SRQ errors (R9), ports. The object and the reason
    /// identify the event.
    ///
    /// No header assigns a number to watermark events. This number is
    /// `DAT_ASYNC_ERROR_PROVIDER_INTERNAL_ERROR`, the only asynchronous number that does not imply
    /// the failure of an EP, EVD or IA. The number will not change.
    Notice = 0x8005,
}

/// The object of an asynchronous event (`dat_handle`).
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

/// Reasons of asynchronous events. A reason has a meaning only with the object's type (erratum E4).
pub mod reason {
    /// SRQ: transition to the error state (R9).
    pub const SRQ_TRANSFER_TO_ERROR: u32 = 0;
    /// SRQ: another error.
    pub const SRQ_OTHER_ERROR: u32 = 1;
    /// SRQ: fewer buffers are available than the low watermark (R120).
    pub const SRQ_LOW_WATERMARK: u32 = 2;
    /// EP: transition to the error state.
    pub const EP_TRANSFER_TO_ERROR: u32 = 0;
    /// EP: the EP holds more receives than its soft high watermark (R213).
    pub const EP_SOFT_HIGH_WATERMARK: u32 = 2;
    /// EVD: overflow.
    pub const EVD_OVERFLOW: u32 = 0;
    /// IA: the device has failed.
    pub const IA_CATASTROPHIC: u32 = 0;
    /// IA: another error.
    pub const IA_OTHER: u32 = 1;
}

/// An event other than a completion, as an EVD queues it.
#[derive(Debug)]
pub enum Notice {
    /// Of a connection.
    Connection(ConnectionEvent),
    /// Of datagrams. Boxed because the event is large and rare.
    Datagram(Box<DatagramEvent>),
    /// Of the device or an object.
    Async(AsyncEvent),
    /// Posted by the program: its context.
    Software(u64),
    /// A connection request: a [`CrArrival`](crate::CrArrival), which holds objects that an EVD
    /// does not know. Dropping it rejects the request.
    Arrival(Box<dyn Any + Send>),
}

/// An event or completion that a dequeue takes from an EVD.
#[derive(Debug)]
pub enum Dequeued {
    /// A completion, of a bind as well.
    Dto(DtoCompletion),
    /// Any other event.
    Notice(Notice),
}

impl DtoCompletion {
    /// The completion of a bind, if this is one.
    pub(crate) fn as_bind(&self) -> Option<RmrBindCompletion> {
        let DtoFields { ep, cookie, status, owner, .. } = **self;
        match owner {
            Owner::Bind(rmr) => Some(RmrBindCompletion { rmr: RmrId(rmr.into()), ep, cookie, status }),
            Owner::Program | Owner::Pool(_) | Owner::Datagram(_) => None,
        }
    }
}
