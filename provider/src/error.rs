//! Return codes: the type, the subtype and the text that goes with them.
//!
//! A `DAT_RETURN` is class | type | subtype, 32 bits (dat_error.h). Inside the crate an error keeps
//! the two parts as enums and a sentence for people; [`Error::code`] makes the number that a C
//! consumer sees. The hot path uses [`PostError`], which is `Copy` and holds no text.

use std::borrow::Cow;
use std::fmt;

/// The type part of a `DAT_RETURN` (dat_error.h, `DAT_RETURN_TYPE`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum ReturnType {
    /// `DAT_ABORT`.
    Abort = 0x00010000,
    /// `DAT_CONN_QUAL_IN_USE`.
    ConnQualInUse = 0x00020000,
    /// `DAT_INSUFFICIENT_RESOURCES`.
    InsufficientResources = 0x00030000,
    /// `DAT_INTERNAL_ERROR`.
    InternalError = 0x00040000,
    /// `DAT_INVALID_HANDLE`.
    InvalidHandle = 0x00050000,
    /// `DAT_INVALID_PARAMETER`.
    InvalidParameter = 0x00060000,
    /// `DAT_INVALID_STATE`.
    InvalidState = 0x00070000,
    /// `DAT_LENGTH_ERROR`.
    LengthError = 0x00080000,
    /// `DAT_MODEL_NOT_SUPPORTED`.
    ModelNotSupported = 0x00090000,
    /// `DAT_PROVIDER_NOT_FOUND`.
    ProviderNotFound = 0x000A0000,
    /// `DAT_PRIVILEGES_VIOLATION`.
    PrivilegesViolation = 0x000B0000,
    /// `DAT_PROTECTION_VIOLATION`.
    ProtectionViolation = 0x000C0000,
    /// `DAT_QUEUE_EMPTY`.
    QueueEmpty = 0x000D0000,
    /// `DAT_QUEUE_FULL`.
    QueueFull = 0x000E0000,
    /// `DAT_TIMEOUT_EXPIRED`.
    TimeoutExpired = 0x000F0000,
    /// `DAT_PROVIDER_ALREADY_REGISTERED`.
    ProviderAlreadyRegistered = 0x00100000,
    /// `DAT_PROVIDER_IN_USE`.
    ProviderInUse = 0x00110000,
    /// `DAT_INVALID_ADDRESS`.
    InvalidAddress = 0x00120000,
    /// `DAT_INTERRUPTED_CALL`.
    InterruptedCall = 0x00130000,
    /// `DAT_CONN_QUAL_UNAVAILABLE`.
    ConnQualUnavailable = 0x00140000,
    /// `DAT_RESERVED_LMR`.
    ReservedLmr = 0x00150000,
    /// `DAT_PORT_IN_USE`.
    PortInUse = 0x00160000,
    /// `DAT_COMM_NOT_SUPPORTED`.
    CommNotSupported = 0x00170000,
    /// `DAT_NOT_IMPLEMENTED`.
    NotImplemented = 0x3FFF0000,
}

/// The subtype part of a `DAT_RETURN` (dat_error.h, `DAT_RETURN_SUBTYPE`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[repr(u16)]
pub enum Subtype {
    /// No subtype.
    #[default]
    None = 0,
    /// `DAT_SUB_INTERRUPTED`.
    SubInterrupted = 1,
    /// `DAT_RESOURCE_MEMORY`.
    ResourceMemory = 2,
    /// `DAT_RESOURCE_DEVICE`.
    ResourceDevice = 3,
    /// `DAT_RESOURCE_TEP`.
    ResourceTep = 4,
    /// `DAT_RESOURCE_TEVD`.
    ResourceTevd = 5,
    /// `DAT_RESOURCE_PROTECTION_DOMAIN`.
    ResourceProtectionDomain = 6,
    /// `DAT_RESOURCE_MEMORY_REGION`.
    ResourceMemoryRegion = 7,
    /// `DAT_RESOURCE_ERROR_HANDLER`.
    ResourceErrorHandler = 8,
    /// `DAT_RESOURCE_CREDITS`.
    ResourceCredits = 9,
    /// `DAT_RESOURCE_SRQ`.
    ResourceSrq = 10,
    /// `DAT_INVALID_HANDLE_IA`.
    InvalidHandleIa = 11,
    /// `DAT_INVALID_HANDLE_EP`.
    InvalidHandleEp = 12,
    /// `DAT_INVALID_HANDLE_LMR`.
    InvalidHandleLmr = 13,
    /// `DAT_INVALID_HANDLE_RMR`.
    InvalidHandleRmr = 14,
    /// `DAT_INVALID_HANDLE_PZ`.
    InvalidHandlePz = 15,
    /// `DAT_INVALID_HANDLE_PSP`.
    InvalidHandlePsp = 16,
    /// `DAT_INVALID_HANDLE_RSP`.
    InvalidHandleRsp = 17,
    /// `DAT_INVALID_HANDLE_CR`.
    InvalidHandleCr = 18,
    /// `DAT_INVALID_HANDLE_CNO`.
    InvalidHandleCno = 19,
    /// `DAT_INVALID_HANDLE_EVD_CR`.
    InvalidHandleEvdCr = 20,
    /// `DAT_INVALID_HANDLE_EVD_REQUEST`.
    InvalidHandleEvdRequest = 21,
    /// `DAT_INVALID_HANDLE_EVD_RECV`.
    InvalidHandleEvdRecv = 22,
    /// `DAT_INVALID_HANDLE_EVD_CONN`.
    InvalidHandleEvdConn = 23,
    /// `DAT_INVALID_HANDLE_EVD_ASYNC`.
    InvalidHandleEvdAsync = 24,
    /// `DAT_INVALID_HANDLE_SRQ`.
    InvalidHandleSrq = 25,
    /// `DAT_INVALID_HANDLE_CSP`.
    InvalidHandleCsp = 26,
    /// `DAT_INVALID_HANDLE1`.
    InvalidHandle1 = 27,
    /// `DAT_INVALID_HANDLE2`.
    InvalidHandle2 = 28,
    /// `DAT_INVALID_HANDLE3`.
    InvalidHandle3 = 29,
    /// `DAT_INVALID_HANDLE4`.
    InvalidHandle4 = 30,
    /// `DAT_INVALID_HANDLE5`.
    InvalidHandle5 = 31,
    /// `DAT_INVALID_HANDLE6`.
    InvalidHandle6 = 32,
    /// `DAT_INVALID_HANDLE7`.
    InvalidHandle7 = 33,
    /// `DAT_INVALID_HANDLE8`.
    InvalidHandle8 = 34,
    /// `DAT_INVALID_HANDLE9`.
    InvalidHandle9 = 35,
    /// `DAT_INVALID_HANDLE10`.
    InvalidHandle10 = 36,
    /// `DAT_INVALID_ARG1`.
    InvalidArg1 = 37,
    /// `DAT_INVALID_ARG2`.
    InvalidArg2 = 38,
    /// `DAT_INVALID_ARG3`.
    InvalidArg3 = 39,
    /// `DAT_INVALID_ARG4`.
    InvalidArg4 = 40,
    /// `DAT_INVALID_ARG5`.
    InvalidArg5 = 41,
    /// `DAT_INVALID_ARG6`.
    InvalidArg6 = 42,
    /// `DAT_INVALID_ARG7`.
    InvalidArg7 = 43,
    /// `DAT_INVALID_ARG8`.
    InvalidArg8 = 44,
    /// `DAT_INVALID_ARG9`.
    InvalidArg9 = 45,
    /// `DAT_INVALID_ARG10`.
    InvalidArg10 = 46,
    /// `DAT_INVALID_STATE_EP_UNCONNECTED`.
    InvalidStateEpUnconnected = 47,
    /// `DAT_INVALID_STATE_EP_ACTCONNPENDING`.
    InvalidStateEpActconnpending = 48,
    /// `DAT_INVALID_STATE_EP_PASSCONNPENDING`.
    InvalidStateEpPassconnpending = 49,
    /// `DAT_INVALID_STATE_EP_TENTCONNPENDING`.
    InvalidStateEpTentconnpending = 50,
    /// `DAT_INVALID_STATE_EP_CONNECTED`.
    InvalidStateEpConnected = 51,
    /// `DAT_INVALID_STATE_EP_DISCONNECTED`.
    InvalidStateEpDisconnected = 52,
    /// `DAT_INVALID_STATE_EP_RESERVED`.
    InvalidStateEpReserved = 53,
    /// `DAT_INVALID_STATE_EP_COMPLPENDING`.
    InvalidStateEpComplpending = 54,
    /// `DAT_INVALID_STATE_EP_DISCPENDING`.
    InvalidStateEpDiscpending = 55,
    /// `DAT_INVALID_STATE_EP_PROVIDERCONTROL`.
    InvalidStateEpProvidercontrol = 56,
    /// `DAT_INVALID_STATE_EP_NOTREADY`.
    InvalidStateEpNotready = 57,
    /// `DAT_INVALID_STATE_EP_RECV_WATERMARK`.
    InvalidStateEpRecvWatermark = 58,
    /// `DAT_INVALID_STATE_EP_PZ`.
    InvalidStateEpPz = 59,
    /// `DAT_INVALID_STATE_EP_EVD_REQUEST`.
    InvalidStateEpEvdRequest = 60,
    /// `DAT_INVALID_STATE_EP_EVD_RECV`.
    InvalidStateEpEvdRecv = 61,
    /// `DAT_INVALID_STATE_EP_EVD_CONNECT`.
    InvalidStateEpEvdConnect = 62,
    /// `DAT_INVALID_STATE_EP_UNCONFIGURED`.
    InvalidStateEpUnconfigured = 63,
    /// `DAT_INVALID_STATE_EP_UNCONFRESERVED`.
    InvalidStateEpUnconfreserved = 64,
    /// `DAT_INVALID_STATE_EP_UNCONFPASSIVE`.
    InvalidStateEpUnconfpassive = 65,
    /// `DAT_INVALID_STATE_EP_UNCONFTENTATIVE`.
    InvalidStateEpUnconftentative = 66,
    /// `DAT_INVALID_STATE_CNO_IN_USE`.
    InvalidStateCnoInUse = 67,
    /// `DAT_INVALID_STATE_CNO_DEAD`.
    InvalidStateCnoDead = 68,
    /// `DAT_INVALID_STATE_EVD_OPEN`.
    InvalidStateEvdOpen = 69,
    /// `DAT_INVALID_STATE_EVD_ENABLED`.
    InvalidStateEvdEnabled = 70,
    /// `DAT_INVALID_STATE_EVD_DISABLED`.
    InvalidStateEvdDisabled = 71,
    /// `DAT_INVALID_STATE_EVD_WAITABLE`.
    InvalidStateEvdWaitable = 72,
    /// `DAT_INVALID_STATE_EVD_UNWAITABLE`.
    InvalidStateEvdUnwaitable = 73,
    /// `DAT_INVALID_STATE_EVD_IN_USE`.
    InvalidStateEvdInUse = 74,
    /// `DAT_INVALID_STATE_EVD_CONFIG_NOTIFY`.
    InvalidStateEvdConfigNotify = 75,
    /// `DAT_INVALID_STATE_EVD_CONFIG_SOLICITED`.
    InvalidStateEvdConfigSolicited = 76,
    /// `DAT_INVALID_STATE_EVD_CONFIG_THRESHOLD`.
    InvalidStateEvdConfigThreshold = 77,
    /// `DAT_INVALID_STATE_EVD_WAITER`.
    InvalidStateEvdWaiter = 78,
    /// `DAT_INVALID_STATE_EVD_ASYNC`.
    InvalidStateEvdAsync = 79,
    /// `DAT_INVALID_STATE_IA_IN_USE`.
    InvalidStateIaInUse = 80,
    /// `DAT_INVALID_STATE_LMR_IN_USE`.
    InvalidStateLmrInUse = 81,
    /// `DAT_INVALID_STATE_LMR_FREE`.
    InvalidStateLmrFree = 82,
    /// `DAT_INVALID_STATE_PZ_IN_USE`.
    InvalidStatePzInUse = 83,
    /// `DAT_INVALID_STATE_PZ_FREE`.
    InvalidStatePzFree = 84,
    /// `DAT_INVALID_STATE_SRQ_OPERATIONAL`.
    InvalidStateSrqOperational = 85,
    /// `DAT_INVALID_STATE_SRQ_ERROR`.
    InvalidStateSrqError = 86,
    /// `DAT_INVALID_STATE_SRQ_IN_USE`.
    InvalidStateSrqInUse = 87,
    /// `DAT_INVALID_STATE_SRQ_SHUTDOWN`.
    InvalidStateSrqShutdown = 88,
    /// `DAT_PRIVILEGES_READ`.
    PrivilegesRead = 89,
    /// `DAT_PRIVILEGES_WRITE`.
    PrivilegesWrite = 90,
    /// `DAT_PRIVILEGES_RDMA_READ`.
    PrivilegesRdmaRead = 91,
    /// `DAT_PRIVILEGES_RDMA_WRITE`.
    PrivilegesRdmaWrite = 92,
    /// `DAT_PROTECTION_READ`.
    ProtectionRead = 93,
    /// `DAT_PROTECTION_WRITE`.
    ProtectionWrite = 94,
    /// `DAT_PROTECTION_RDMA_READ`.
    ProtectionRdmaRead = 95,
    /// `DAT_PROTECTION_RDMA_WRITE`.
    ProtectionRdmaWrite = 96,
    /// `DAT_INVALID_ADDRESS_UNSUPPORTED`.
    InvalidAddressUnsupported = 97,
    /// `DAT_INVALID_ADDRESS_UNREACHABLE`.
    InvalidAddressUnreachable = 98,
    /// `DAT_INVALID_ADDRESS_MALFORMED`.
    InvalidAddressMalformed = 99,
    /// `DAT_NAME_NOT_REGISTERED`.
    NameNotRegistered = 100,
    /// `DAT_MAJOR_NOT_FOUND`.
    MajorNotFound = 101,
    /// `DAT_MINOR_NOT_FOUND`.
    MinorNotFound = 102,
    /// `DAT_THREAD_SAFETY_NOT_FOUND`.
    ThreadSafetyNotFound = 103,
}
/// Result of a control-path call.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The error class bit of a `DAT_RETURN`.
pub const CLASS_ERROR: u32 = 0x8000_0000;

/// The error of a control-path call: the DAT code, a sentence, and the failed verb, if any.
#[derive(Debug)]
pub struct Error {
    ty: ReturnType,
    sub: Subtype,
    text: Cow<'static, str>,
    source: Option<rxe_fallback::Error>,
}

impl Error {
    /// An error of this type and subtype; `text` says what was wrong and what to do.
    pub fn new(ty: ReturnType, sub: Subtype, text: impl Into<Cow<'static, str>>) -> Self {
        Self { ty, sub, text: text.into(), source: None }
    }

    /// The same with the failed verb as its source.
    #[must_use]
    pub fn because(mut self, source: rxe_fallback::Error) -> Self {
        self.source = Some(source);
        self
    }

    /// The type part.
    pub fn return_type(&self) -> ReturnType {
        self.ty
    }

    /// The subtype part.
    pub fn subtype(&self) -> Subtype {
        self.sub
    }

    /// The complete `DAT_RETURN`: class bit, type and subtype.
    pub fn code(&self) -> u32 {
        code(self.ty, self.sub)
    }

    pub(crate) fn handle(sub: Subtype, what: &str) -> Self {
        let text = if crate::fork::is_child() {
            format!(
                "this {what} belongs to the parent process, which made it before the fork, or has been freed"
            )
        } else {
            format!("this {what} has been freed or belongs to another IA")
        };
        Self::new(ReturnType::InvalidHandle, sub, text)
    }

    pub(crate) fn arg(n: u16, text: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ReturnType::InvalidParameter, Subtype::arg(n), text)
    }

    pub(crate) fn state(sub: Subtype, text: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ReturnType::InvalidState, sub, text)
    }

    pub(crate) fn resources(sub: Subtype, text: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ReturnType::InsufficientResources, sub, text)
    }

    /// The error for a connection request whose peer has given up.
    pub(crate) fn request_gone() -> Self {
        Self::new(ReturnType::Abort, Subtype::None, "the peer has given up")
    }

    /// A verb failed where nothing but a shortage or a fault of the device can be the cause.
    pub(crate) fn verb(sub: Subtype, source: rxe_fallback::Error) -> Self {
        let ty = match source.errno() {
            // EPERM: a memlock limit of 0.
            libc::ENOMEM
            | libc::EAGAIN
            | libc::ENOSPC
            | libc::EMFILE
            | libc::ENFILE
            | libc::EINVAL
            | libc::EPERM => ReturnType::InsufficientResources,
            _ => ReturnType::InternalError,
        };
        let sub = if ty == ReturnType::InternalError { Subtype::None } else { sub };
        Self::new(ty, sub, "the device refused").because(source)
    }
}

/// `DAT_RETURN`.
pub fn code(ty: ReturnType, sub: Subtype) -> u32 {
    CLASS_ERROR | ty as u32 | u32::from(sub as u16)
}

impl Subtype {
    /// `DAT_INVALID_ARG1` to `DAT_INVALID_ARG10`.
    pub fn arg(n: u16) -> Self {
        const ARGS: [Subtype; 10] = [
            Subtype::InvalidArg1,
            Subtype::InvalidArg2,
            Subtype::InvalidArg3,
            Subtype::InvalidArg4,
            Subtype::InvalidArg5,
            Subtype::InvalidArg6,
            Subtype::InvalidArg7,
            Subtype::InvalidArg8,
            Subtype::InvalidArg9,
            Subtype::InvalidArg10,
        ];
        ARGS[usize::from(n) - 1]
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.ty)?;
        if self.sub != Subtype::None {
            write!(f, " ({:?})", self.sub)?;
        }
        write!(f, ": {}", self.text)?;
        match &self.source {
            Some(source) => write!(f, ": {source}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|source| source as _)
    }
}

/// Why a post was refused; nothing of it took place (R60).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PostError {
    /// The object has been freed, or belongs to the process that this one was forked from.
    #[error("the handle is stale: the object has been freed, or belongs to the parent process")]
    Stale(Subtype),
    /// More segments than the queue was created for (R54), or a negative count in the C interface
    /// (R53).
    #[error("{given} segments, the queue was made for at most {most}")]
    TooManySegments {
        /// Segments in the call.
        given: u32,
        /// The queue's limit.
        most: u32,
    },
    /// A segment leaves its LMR (R56).
    #[error("segment {0} leaves its LMR")]
    OutOfBounds(u32),
    /// A segment's LMR is in another PZ (R57).
    #[error("the LMR of segment {0} belongs to another PZ")]
    ProtectionZone(u32, Direction),
    /// A segment's LMR context names no live LMR (R58).
    #[error("the context of segment {0} names no live LMR")]
    NoSuchLmr(u32, Direction),
    /// A segment's LMR lacks the privilege (R59).
    #[error("the LMR of segment {0} lacks the local privilege that the operation needs")]
    Privilege(u32, Direction),
    /// The queue is full: every entry is posted, taken or completed and not reaped (R61, R62).
    #[error("the queue is full: reap completions or make it deeper")]
    Full(Subtype),
    /// A receive on an EP that takes its buffers from an SRQ (R157).
    #[error("the EP receives through its SRQ: post there")]
    UsesSrq,
    /// The EP is not in a state for this operation. Requests need a connection: they are possible once
    /// [`Event::Connected`](crate::Event::Connected) or, at the end that has accepted, a message of the
    /// peer has been reaped. On a DISCONNECTED EP, also after [`Event::Drained`](crate::Event::Drained),
    /// each completes as flushed.
    #[error("not possible in this EP state")]
    EpState(Subtype),
    /// Flags that the EP's mode or the operation does not allow (R241).
    #[error("these completion flags are not allowed here")]
    Flags,
    /// An address handle that is freed, belongs to another IA or PZ, or names a QP number over 24
    /// bits.
    #[error("no such address handle in this IA and PZ, or its QP number has more than 24 bits")]
    AddressHandle,
    /// More bytes than the IA can carry in a message, or than the memory has that they go to: the
    /// peer's in an RDMA Write, the local in an RDMA Read. Fewer bytes are possible. Or an atomic that
    /// is not of 8 aligned bytes.
    #[error("the length does not fit")]
    Length,
    /// More bytes than the EP takes into a request
    /// ([`EpBuilder::max_inline`](crate::EpBuilder::max_inline)).
    #[error("{given} bytes inline, the EP was made for at most {most}")]
    TooLongInline {
        /// Bytes in the call.
        given: usize,
        /// The EP's limit.
        most: u32,
    },
    /// The device has no such operation.
    #[error("this device has no such operation")]
    NotSupported,
    /// The device refused with this errno.
    #[error("the device refused: errno {0}")]
    Device(i32),
}

/// Which way data moves, as seen from local memory; picks the subtype of violations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Local memory is read (Send, RDMA Write).
    Read,
    /// Local memory is written (receive, RDMA Read).
    Write,
}

impl From<PostError> for Error {
    fn from(error: PostError) -> Self {
        let (ty, sub) = error.parts();
        Self::new(ty, sub, error.to_string())
    }
}

impl PostError {
    /// The `DAT_RETURN` for a call whose count and IOV are arguments 2 and 3 (all posts except
    /// extensions).
    pub fn code(self) -> u32 {
        let (ty, sub) = self.parts();
        code(ty, sub)
    }

    pub(crate) fn parts(self) -> (ReturnType, Subtype) {
        use ReturnType as T;
        match self {
            Self::Stale(sub) => (T::InvalidHandle, sub),
            Self::TooManySegments { .. } => (T::InvalidParameter, Subtype::InvalidArg2),
            Self::OutOfBounds(_) => (T::InvalidParameter, Subtype::InvalidArg3),
            Self::ProtectionZone(_, Direction::Write) => (T::ProtectionViolation, Subtype::ProtectionWrite),
            Self::ProtectionZone(_, Direction::Read) => (T::ProtectionViolation, Subtype::ProtectionRead),
            Self::NoSuchLmr(_, Direction::Write) | Self::Privilege(_, Direction::Write) => {
                (T::PrivilegesViolation, Subtype::PrivilegesWrite)
            }
            Self::NoSuchLmr(_, Direction::Read) | Self::Privilege(_, Direction::Read) => {
                (T::PrivilegesViolation, Subtype::PrivilegesRead)
            }
            Self::Full(sub) => (T::InsufficientResources, sub),
            Self::UsesSrq => (T::InvalidState, Subtype::InvalidStateSrqInUse),
            Self::EpState(sub) => (T::InvalidState, sub),
            Self::Flags => (T::InvalidParameter, Subtype::InvalidArg5),
            Self::AddressHandle => (T::InvalidParameter, Subtype::InvalidArg4),
            Self::Length | Self::TooLongInline { .. } => (T::LengthError, Subtype::None),
            Self::NotSupported => (T::ModelNotSupported, Subtype::None),
            Self::Device(libc::ENOMEM) => (T::InsufficientResources, Subtype::ResourceMemory),
            Self::Device(_) => (T::InternalError, Subtype::None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_those_of_the_return_code_table() {
        assert_eq!(Error::arg(3, "").code(), 0x8006_0027);
        assert_eq!(Error::handle(Subtype::InvalidHandleSrq, "SRQ").code(), 0x8005_0019);
        assert_eq!(Error::state(Subtype::InvalidStateSrqInUse, "").code(), 0x8007_0057);
        assert_eq!(PostError::ProtectionZone(0, Direction::Write).code(), 0x800C_005E);
        assert_eq!(PostError::NoSuchLmr(0, Direction::Write).code(), 0x800B_005A);
        assert_eq!(PostError::Full(Subtype::ResourceSrq).code(), 0x8003_000A);
        assert_eq!(PostError::UsesSrq.code(), 0x8007_0057);
        assert_eq!(Error::new(ReturnType::TimeoutExpired, Subtype::None, "").code(), 0x800F_0000);
    }
}
