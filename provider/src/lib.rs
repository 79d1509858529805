//! Doorbell: a uDAPL provider centred on the shared receive queue.
//!
//! The objects are those of DAT 2.0:
//!
//! - [`Ia`]: an open device.
//! - [`Pz`]: a protection zone, which decides what objects may use which memory.
//! - [`Lmr`]: registered memory.
//! - [`Evd`]: a queue of events.
//! - [`Cno`]: an object on which a thread can wait for many EVDs.
//! - [`Ep`]: one end of a reliable connection, made through a [`Psp`] and a [`Cr`]. An EP of
//!   service type [`ServiceType::Ud`] exchanges datagrams with any number of other EPs.
//! - [`Srq`]: a queue of receive buffers that many EPs take from.
//!
//! What has no options is made by `new`, such as [`Pz::new`]; what has, by a builder with documented
//! defaults, such as [`Ep::builder`]. A drop always ends an object. `close` ends it where that can be
//! refused, and then gives it back ([`Refused`]).
//!
//! [`EvdListener`] and [`CnoListener`] have a descriptor for event loops; with the feature `tokio`,
//! tasks await events with `AsyncEvd` and `AsyncCno`.
//!
//! [`RecvPool`] and [`SendPool`] manage buffers that either the program or the device can access,
//! never both at a time.
//!
//! Safe programs cannot make a device access memory that they use otherwise. [`soundness`] explains
//! why, and what callers of the two `unsafe` functions must ensure.
//!
//! IAs, EPs and EVDs count what happens on them: [`Ia::counters`], [`Ep::counters`],
//! [`Evd::counters`].
//!
//! After fork(2), all objects belong to the parent process. In the child, every call on them fails
//! with INVALID_HANDLE or INVALID_STATE, and neither calls nor drops touch the device. The child
//! can open its own [`Ia`].
//!
//! Rule numbers (R1 to R279) in these pages and in the names of tests refer to the table in
//! hw-tests/RULES.md. [`Error::code`] and [`PostError::code`] return `DAT_RETURN` values.
//!
//! The library writes its log with `tracing`; install a subscriber to see the log.

mod attr;
mod bounded_queue;
mod cno;
mod conn;
mod counters;
mod cr;
mod datapath;
mod defaults;
mod descriptor;
mod device;
mod ep;
mod error;
mod evd;
mod event;
mod event_data;
mod fork;
mod hint;
mod ia;
mod listener;
mod lmr;
mod log;
mod memory;
mod pool;
mod process;
mod psp;
mod pz;
mod queue_pair;
mod rmr;
mod shared_recv;
mod srq;
mod sync;
mod types;
mod ud;

pub use attr::{ConnectionAttr, EpAttr, IaAttr, ProviderAttr, RetryAttr};
pub use cno::Cno;
pub use conn::ConnectOptions;
pub use counters::{Counter, Counters, EpCounter, EvdCounter, IaCounter, PortCounters};
pub use cr::Cr;
pub use ep::{
    ChainError, ChainRequest, Ep, EpBuilder, EpChange, EpParam, EpStatus, Inline, OfRmr, Op, RecvCounts,
    Request, Segments, op,
};
pub use error::{CLASS_ERROR, Direction, Error, PostError, Result, ReturnType, Subtype};
pub use evd::{Evd, EvdParam, WaitError};
pub use event::{CrArrival, Drain, Event, Waited};
pub use event_data::{
    AsyncEvent, AsyncKind, AsyncObject, ConnectionEvent, ConnectionEventKind, DatagramEvent,
    DatagramEventKind, DtoCompletion, DtoFields, RmrBindCompletion, reason,
};
pub use ia::{Ia, IaBuilder};
#[cfg(feature = "tokio")]
pub use listener::{AsyncCno, AsyncEvd};
pub use listener::{CnoListener, EvdListener};
pub use lmr::{Lmr, LmrBuilder};
#[doc(hidden)]
pub use log::to_stderr as log_to_stderr;
pub use pool::{
    BufferPool, Gauges, Opening, PoolBuf, ReceiveQueue, Received, RecvBuf, RecvPool, SendBuf, SendPool,
    WindowBuf,
};
pub use psp::{Psp, PspBuilder, Rsp};
pub use pz::Pz;
pub use rmr::{Rmr, RmrBind, RmrParam, RmrScope};
pub use srq::{Srq, SrqBuilder, SrqParam};
#[cfg(debug_assertions)]
#[doc(hidden)]
pub use sync::hook as lock_hook;
pub use types::{
    AddressHandle, CloseFlags, CompletionFlags, DtoOp, DtoStatus, EpId, EpState, EvdFlags, EvdId, LmrTriplet,
    MAX_PRIVATE_DATA, MemPriv, RmrId, RmrTriplet, ServiceType, SpId, SrqId, SrqState, VaType,
};

pub use ud::GRH_LEN;

/// What the C library in `provider/capi` uses of this crate's inside. Not part of the API: any
/// version may change it, and safe programs that use it can make a device access their memory.
#[doc(hidden)]
pub mod inside {
    pub use crate::cno::{CnoInner, Upcall};
    pub use crate::cr::CrInner;
    pub use crate::datapath::{DataPath, Direct, Fast, Feed, Path, Verbs, WrInfo};
    pub use crate::defaults::Defaults;
    pub use crate::device::Device;
    pub use crate::ep::{EpEvds, EpInner, Operation, Read, RequestKind, Send, Write};
    pub use crate::error::code;
    pub use crate::evd::{EvdInner, Polled, Queue, Take};
    pub use crate::event_data::{Dequeued, Notice, Success};
    pub use crate::hint::likely;
    pub use crate::lmr::LmrInner;
    pub use crate::memory::table;
    pub use crate::process::Uncancelled;
    pub use crate::psp::{Comm, Csp};
    pub use crate::queue_pair::{QueuePair, Receives, Request, Requests};
    pub use crate::rmr::{RmrInner, Target};
    pub use crate::shared_recv::SharedRecv;
    pub use crate::srq::SrqInner;
    pub use crate::types::{ByNumber, ConnQual, Destination, MAX_IOV, NumberHasher, Qos};

    /// Forks of the process.
    pub mod fork {
        pub use crate::fork::{Part, share, watch};
    }

    /// Locks with ranks.
    pub mod sync {
        pub use crate::sync::{
            BiasedMutex, BiasedMutexGuard, Door, DoorGuard, Mutex, MutexGuard, RwLock, RwLockReadGuard,
            RwLockWriteGuard, rank,
        };
    }
}

#[doc = include_str!("../SOUNDNESS.md")]
pub mod soundness {}

#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
mod readme {}

/// The pages of the book that have programs.
#[cfg(doctest)]
mod book {
    #[doc = include_str!("../../book/src/rust.md")]
    mod rust {}
    #[doc = include_str!("../../book/src/storage.md")]
    mod storage {}
    #[doc = include_str!("../../book/src/trading.md")]
    mod trading {}
    #[doc = include_str!("../../book/src/event-loops.md")]
    mod event_loops {}
}

/// The error of a call that consumes an object. The call did not consume the object, and returns it
/// with the reason.
pub struct Refused<T, E = Error>
where
    E: std::error::Error + 'static,
{
    /// The unchanged object.
    pub object: T,
    /// The reason.
    pub error: E,
}

/// Says the reason, and nothing of the object.
impl<T, E: std::error::Error + 'static> std::fmt::Debug for Refused<T, E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Refused").field("error", &self.error).finish_non_exhaustive()
    }
}

impl<T, E: std::error::Error + 'static> std::fmt::Display for Refused<T, E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(&self.error, f)
    }
}

/// The source is that of the reason, whose text this error has already.
impl<T, E: std::error::Error + 'static> std::error::Error for Refused<T, E> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.error.source()
    }
}

impl<T, E: Into<Self> + std::error::Error + 'static> From<Refused<T, E>> for Error {
    fn from(refused: Refused<T, E>) -> Self {
        refused.error.into()
    }
}
