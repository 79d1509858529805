//! The load generator: an open loop. Each message has its time, which does not depend on answers, and
//! latencies count from that time. So a gateway that stalls is charged for everything that should have
//! been sent meanwhile (no coordinated omission).
//!
//! Afterwards the answers of all sessions are compared with those of a market that is obviously right
//! ([`naive`](crate::naive)).

pub mod report;
pub mod run;
pub mod traffic;
pub mod verify;
