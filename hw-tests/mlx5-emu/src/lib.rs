//! A software ConnectX under unmodified rdma-core.
//!
//! Linked into a test program, or preloaded into any program, this crate answers the system calls that libibverbs, libmlx5
//! and librdmacm make, so that they find an `mlx5_0` on a machine that has none. The queues, doorbell records and
//! completions are libmlx5's own, in the formats of the hardware; a small engine reads and writes them.
//!
//! It is a model for testing drivers and for first steps, not a model of a network card's speed.

pub mod devices;
pub mod gids;
mod ifaddrs;
pub mod interpose;
pub mod mem;
mod start;
pub mod sys;
mod sysfs;
pub mod ucma;
mod uverbs;
pub mod vfile;

pub use start::init;
