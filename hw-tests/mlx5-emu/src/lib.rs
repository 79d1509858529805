//! A software ConnectX under unmodified rdma-core.
//!
//! The crate is linked into a test program or preloaded into any program. It answers the system
//! calls of libibverbs, libmlx5 and librdmacm, so that these libraries find an `mlx5_0` on a
//! machine without a ConnectX. The queues, doorbell records and completions are libmlx5's own, in
//! the formats of the hardware. A small engine reads and writes them.
//!
//! The device is a model for testing drivers and for first steps. It does not model the speed of a
//! network card.

mod answer;
mod clock;
mod commands;
mod complaints;
mod config;
mod control;
pub mod dat;
mod device;
pub mod devices;
mod engine;
mod fork;
pub mod gids;
mod helper;
mod hooks;
mod ifaddrs;
pub mod interpose;
pub mod mem;
mod nodes;
mod objects;
mod orders;
pub mod paths;
mod patience;
mod pin;
mod polls;
mod slab;
mod start;
pub mod sys;
mod sysfs;
mod threads;
mod trust;
pub mod ucma;
pub mod ucx;
mod uverbs;
pub mod vfile;
pub mod waits;
mod wake;
mod watch;
mod wire;

pub use clock::advance as advance_clock;
pub use complaints::{Complaint, Kind as ComplaintKind, complaint_count, complaints, take_complaints};
pub use config::{Mode, mode, set_cqe_version};
pub use control::{
    QpInfo, fatal_error, inject, no_faults, qp_info, release_late, remove_device, set_mode, set_port, step,
};
pub use mem::set_checked as set_checked_memory;
pub use objects::QpState;
pub use objects::faults::{Fault, Rule};
pub use pin::set_memlock;
pub use start::init;
