//! A target for NVMe over Fabrics by RDMA. Each device has one polling thread with one shared
//! receive queue for all connections.
//!
//! From bottom to top: [`proto`] has the layouts; [`backend`] keeps the blocks; [`subsystem`]
//! has the subsystems, [`controller`] what a host has connected to, [`target`] all of both; [`queue`] executes the commands of one
//! connection and knows no transport; [`rdma`] moves capsules and data.

pub mod backend;
pub mod config;
pub mod controller;
pub mod host;
pub mod limits;
pub mod metrics;
pub mod proto;
pub mod queue;
pub mod rdma;
pub mod stats;
pub mod subsystem;
mod sync;
pub mod target;
pub mod top;
pub mod uring;
