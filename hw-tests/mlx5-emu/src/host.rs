//! What the device needs of the machine: system calls, memory, threads, settings.

pub(crate) mod clock;
pub(crate) mod complaints;
pub(crate) mod config;
pub(crate) mod devices;
pub mod gids;
mod ifaddrs;
pub(crate) mod mem;
pub(crate) mod pin;
pub(crate) mod slab;
pub(crate) mod sys;
pub(crate) mod threads;
pub(crate) mod vfile;
pub(crate) mod wake;
