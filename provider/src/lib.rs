//! Doorbell: a uDAPL provider whose centre is the shared receive queue.
//!
//! The objects are those of DAT 2.0: an [`Ia`] is an open device; a [`Pz`] says which memory goes with which objects; an
//! [`Lmr`] is registered memory; an [`Evd`] is a queue of events, a [`Cno`] a place to wait for many of them; an [`Ep`] is
//! one end of a reliable connection, made through a [`Psp`] and a [`Cr`], or, of [`ServiceType::Ud`], exchanges datagrams with any
//! number of others; an [`Srq`] is a pool of receive buffers that many EPs take from. [`RecvPool`] and [`SendPool`] put buffers that only one side can touch at a time on top.
//!
//! Programs without `unsafe` cannot make a device touch memory that they use otherwise: [`soundness`] says why, and what the
//! two `unsafe` functions oblige their callers to.
//!
//! What has happened on an IA, EP or EVD is counted by kind: [`Ia::counters`], [`Ep::counters`], [`Evd::counters`].
//!
//! After fork(2) all objects belong to the parent process. In the child each call on them fails with
//! INVALID_HANDLE or INVALID_STATE, and neither calls nor drops touch the device; the child can open
//! an [`Ia`] of its own.
//!
//! Rule numbers (R1 to R279) in these pages and in the names of tests are those of the table in hw-tests/RULES.md.
//! `DAT_RETURN` values are at hand through [`Error::code`] and [`PostError::code`].
//!
//! The program writes its log with `tracing`; install a subscriber to see it.

mod attr;
mod biased_lock;
mod bounded_queue;
mod capi;
mod cno;
mod conn;
mod counters;
mod cr;
mod datapath;
mod defaults;
mod device;
mod ep;
mod error;
mod evd;
mod event;
mod event_data;
mod fork;
mod ia;
mod lmr;
mod memory;
pub mod msn;
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

pub use attr::{EpAttr, IaAttr, ProviderAttr, SrqAttr};
pub use cno::Cno;
pub use counters::{Counter, Counters, EpCounter, EvdCounter, IaCounter, PortCounters};
pub use cr::Cr;
pub use device::IaSettings;
pub use ep::{Ep, EpChange, EpEvds, EpParam, EpStatus, RecvCounts};
pub use error::{CLASS_ERROR, Direction, Error, PostError, Result, ReturnType, Subtype};
pub use evd::{Evd, EvdParam, WaitError};
pub use event::{CrArrival, Event, EventData, Waited};
pub use event_data::{
    AsyncEvent, AsyncKind, AsyncObject, ConnectionEvent, ConnectionEventKind, DatagramEvent,
    DatagramEventKind, DtoCompletion, DtoFields, RmrBindCompletion, reason,
};
pub use ia::Ia;
pub use lmr::Lmr;
pub use pool::{Gauges, ReceiveQueue, Received, RecvBuf, RecvPool, SendBuf, SendPool};
pub use psp::{Comm, Csp, Psp, Rsp};
pub use pz::Pz;
pub use rmr::{Rmr, RmrBind, RmrParam, RmrScope};
pub use srq::{Srq, SrqParam};
#[cfg(debug_assertions)]
#[doc(hidden)]
pub use sync::hook as lock_hook;
pub use types::{
    AddressHandle, CloseFlags, CompletionFlags, ConnQual, Count, DtoOp, DtoStatus, EpId, EpState, EvdFlags,
    EvdId, LmrTriplet, MemPriv, Qos, RmrId, RmrTriplet, SRQ_LW_DEFAULT, ServiceType, SpId, SrqId, SrqState,
    VALUE_UNKNOWN, VaType, WATERMARK_INFINITE, port_of,
};

pub use ud::GRH_LEN;

#[doc = include_str!("../SOUNDNESS.md")]
pub mod soundness {}

#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
mod readme {}

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
