//! The threads of the program that run the engine, and the helper thread that does for them.

pub mod dat;
pub(crate) mod helper;
pub(crate) mod hooks;
mod patience;
mod polls;
mod trust;
pub mod ucx;
pub mod waits;
mod watch;
