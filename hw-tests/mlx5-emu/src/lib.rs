//! A software ConnectX under unmodified rdma-core.
//!
//! The crate is linked into a test program or preloaded into any program. It answers the system
//! calls of libibverbs, libmlx5 and librdmacm, so that these libraries find an `mlx5_0` on a
//! machine without a ConnectX. The queues, doorbell records and completions are libmlx5's own, in
//! the formats of the hardware. A small engine reads and writes them.
//!
//! The device is a model for testing drivers and for first steps. It does not model the speed of a
//! network card.
//!
//! README.md has the layers, from the functions of the C library down to system calls.

mod control;
mod device;
mod engine;
mod fork;
mod host;
pub mod interpose;
mod objects;
mod orders;
pub mod program;
mod start;
mod ucma;
mod uverbs;
mod wire;

pub use control::{
    QpInfo, fatal_error, inject, no_faults, qp_info, release_late, remove_device, set_mode, set_port, step,
};
pub use host::clock::advance as advance_clock;
pub use host::complaints::{Complaint, Kind as ComplaintKind, complaint_count, complaints, take_complaints};
pub use host::config::{Mode, mode, set_cqe_version};
pub use host::gids;
pub use host::mem::set_checked as set_checked_memory;
pub use host::pin::set_memlock;
pub use objects::QpState;
pub use objects::faults::{Fault, Rule};
pub use start::init;
