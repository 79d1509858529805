//! Standard verbs and rdma_cm with safe ownership, for any verbs device.
//!
//! Each verbs object is a handle that keeps the objects alive on which it depends: a QP holds its
//! PD, CQs and SRQ, a CQ holds its channel, every object holds its device. Handles can be dropped
//! in any order. The verbs object is destroyed with its last handle and the last object that needs
//! it. Errors carry the verb's name and errno ([`Error`]).
//!
//! Nothing here blocks unless its name ends in `_timeout`: event sources are non-blocking
//! descriptors ([`CompChannel`], [`Context::async_fd`], [`EventChannel`]), and events are
//! acknowledged when they are read.
//!
//! Objects that raise events are created with a `token`, a number that the caller chooses and that
//! each event carries.
//!
//! ```no_run
//! use rxe_fallback::{Access, Context, Cq, Mr, Pd, RecvWr, Srq, SrqInit};
//!
//! # fn main() -> rxe_fallback::Result<()> {
//! let (context, port, address) = Context::open_selected(&"rxe0".parse().unwrap())?;
//! println!("{} port {port}: {address:?}", context.name());
//!
//! let pd = Pd::alloc(&context)?;
//! let cq = Cq::create(&context, 64, None, 0, 1)?;
//! let srq = Srq::create(&pd, SrqInit { max_wr: 16, max_sge: 1, token: 2 })?;
//! let mr = Mr::register_owned(&pd, 16 * 1024, Access::LOCAL_WRITE, false)?;
//!
//! let sges: Vec<_> = (0..16).map(|i| mr.sge(i * 1024, 1024)).collect::<Result<_, _>>()?;
//! let list: Vec<_> =
//!     sges.iter().zip(0..).map(|(sge, wr_id)| RecvWr { wr_id, sges: std::slice::from_ref(sge) }).collect();
//! if let Err(stopped) = srq.post_list(&list) {
//!     println!("posted {} of {}: {}", stopped.index, list.len(), stopped.reason);
//! }
//!
//! let mut completions = [Default::default(); 16];
//! let n = cq.poll(&mut completions)?;
//! for completion in &completions[..n] {
//!     println!("{} {:?} {} bytes", completion.wr_id, completion.status, completion.byte_len);
//! }
//! # Ok(())
//! # }
//! ```

pub mod ah;
pub mod channel;
pub mod cm;
pub mod cq;
pub mod device;
pub mod error;
mod kind;
pub mod mr;
pub mod mw;
pub mod pd;
pub mod qp;
pub mod srq;
pub mod ud;
mod util;
pub mod wr;

/// The bindings, for calls that this crate does not wrap, with conversions from and to the types of
/// the crate `rdma-sys`.
#[cfg(feature = "rdma-sys")]
pub use doorbell_sys as sys;

pub use ah::{Ah, AhAttr};
pub use channel::CompChannel;
pub use cm::{CmEvent, CmEventKind, CmId, ConnParam, DatagramPeer, EventChannel, PortSpace};
pub use cq::{Completion, Cq, Plain, Polled, WcOpcode, WcStatus};
pub use device::{
    AsyncEvent, AsyncKind, AsyncObject, AtomicCap, Context, DeviceAttr, DeviceInfo, Gid, GidEntry, GidKind,
    LinkLayer, NodeType, PortAttr, PortState, Selector, Transport, devices,
};
pub use error::{Error, Result};
pub use mr::{Access, Mr};
pub use mw::{BindMw, FreeError, Mw, MwKind};
pub use pd::Pd;
pub use qp::{
    AttrMask, Qp, QpAttr, QpCaps, QpInit, QpKind, QpState, RtrAttr, RtsAttr, SendFlags, SendList, SendOp,
    SendWr, UdDest,
};
pub use srq::{MOST_STAGED, Srq, SrqAttr, SrqInit, StagedRecv};
pub use ud::{GRH_LEN, UdRecvBuffer, UdRecvWr};
pub use wr::{PostError, PostListError, Receive, RecvWr, Sge};

pub(crate) use util::{is_shared, log_failed_drop, set_nonblocking, token_from, token_into};
