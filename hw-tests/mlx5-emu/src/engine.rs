//! The engine: the hardware's work between a doorbell and a completion.

mod addressing;
mod blueflame;
mod card;
mod cqe;
mod datagram;
mod doorbell;
mod errors;
mod events;
mod groups;
mod held;
mod keys;
mod peers;
mod raw;
mod remote;
mod requester;
mod responder;
mod rwqe;
mod steps;
mod swqe;
mod timer;
mod umr;

pub(crate) use card::Card;
pub(crate) use requester::LOG_MAX_MEMCPY;
