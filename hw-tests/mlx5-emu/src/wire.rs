//! Between two QPs, and between processes: requests and answers, their form, and what carries them.

mod frame;
pub(crate) mod groups;
mod net;
mod peer;
mod request;
mod ring;
#[cfg(test)]
mod sleeps;

pub(crate) use frame::{Frame, parse};
pub(crate) use net::{Net, Waiting};
pub(crate) use request::{Datagram, Op, Payload, Reply, Request, copy_segments};
