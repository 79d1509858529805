//! What the daemons of Doorbell share.

#![forbid(unsafe_code)]

pub mod config;
pub mod daemon;
pub mod log;
pub mod metrics;
pub mod notify;
pub mod signals;
