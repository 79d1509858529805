//! The RDMA transport: one or more engines a device. An engine is one thread with one SRQ; it takes
//! connections, moves capsules and data, and executes commands on backends. Of several engines of a
//! device, the first one listens and gives each connection to the one that has the fewest.
//!
//! What bounds what:
//!
//! * A connection is accepted with the credit that its host asks for, or rejected: the credits of
//!   all I/O queues are at most [`Options::credits`], those of admin queues at most
//!   [`Options::admin_credits`]. A host that sends beyond its credit loses the connection.
//! * A command has a slot from its arrival to the completion of its response, or until its
//!   connection is drained. A connection has at most as many responses under way as credits, so it
//!   has at most two slots a credit.
//! * Each request of a connection has a place in its send queue: one for each RDMA Read and two for
//!   each response. A command whose response finds no place waits in its connection.
//! * The responses of one pass, up to 16 of a connection, are posted with one doorbell and have one
//!   completion. None waits longer than until the events that are there have been taken.
//! * Data buffers are shared; commands wait for them in order. Admin commands and Connect have
//!   buffers of their own.

mod command;
mod connection;
mod engine;
mod execute;
mod files;
mod memory;
mod receives;
mod requests;
mod respond;
mod run;
mod slot;

pub use self::engine::{Engine, Handle, Options, Stats};
pub use self::memory::Counts;
pub use doorbell_service::daemon::Control;
