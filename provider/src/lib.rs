//! Doorbell: a uDAPL provider whose centre is the shared receive queue.

mod attr;
mod cno;
mod conn;
mod cr;
mod datapath;
mod ep;
mod error;
mod evd;
mod event;
mod ia;
mod lmr;
pub mod msn;
mod pool;
mod progress;
mod psp;
mod pz;
mod srq;
mod types;

pub use attr::{EpAttr, IaAttr, ProviderAttr, SrqAttr};
pub use cno::Cno;
pub use cr::Cr;
pub use ep::{Ep, EpChange, EpEvds, EpParam, EpStatus, RecvCounts};
pub use error::{CLASS_ERROR, Direction, Error, PostError, Result, ReturnType, Subtype};
pub use evd::{Evd, EvdParam, WaitError, Waited};
pub use event::{
    AsyncEvent, AsyncKind, AsyncObject, ConnectionEvent, ConnectionEventKind, CrArrival, DtoCompletion,
    Event, EventData, reason,
};
pub use ia::{Ia, IaSettings};
pub use lmr::Lmr;
pub use pool::{Gauges, ReceiveQueue, Received, RecvBuf, RecvPool, SendBuf, SendPool};
pub use psp::{Psp, Rsp};
pub use pz::Pz;
pub use srq::{Srq, SrqParam};
pub use types::{
    CloseFlags, CompletionFlags, ConnQual, Count, DtoOp, DtoStatus, EpId, EpState, EvdFlags, EvdId,
    LmrTriplet, MemPriv, Qos, RmrTriplet, SRQ_LW_DEFAULT, SpId, SrqId, SrqState, VALUE_UNKNOWN,
    WATERMARK_INFINITE, port_of,
};

/// A call that would have used an object up, and did not: the object comes back with the reason.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct Refused<T> {
    /// Still as it was.
    pub object: T,
    /// Why.
    #[source]
    pub error: Error,
}

impl<T> From<Refused<T>> for Error {
    fn from(refused: Refused<T>) -> Self {
        refused.error
    }
}
