//! The connection state of an EP, shared by the consumer's calls and the progress thread.
//!
//! A thread that moves the EP into another state holds the lock of its [`Control`]. [`crate::conn`]
//! explains the states and their order.

use crate::counters::Calls;
use crate::device::Tries;
use crate::types::ConnQual;
use rxe_fallback::CmId;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

/// The part of an EP that the consumer's calls and the progress thread share.
#[derive(Debug)]
pub(crate) struct Control {
    pub(crate) local: Option<SocketAddr>,
    pub(crate) remote: Option<SocketAddr>,
    pub(crate) cm: Option<(u64, Arc<CmId>)>,
    /// The tries to resolve the address of the peer.
    pub(crate) tries: Tries,
    /// The remote service, for `dup_connect`.
    pub(crate) service: Option<(IpAddr, ConnQual)>,
    pub(crate) private_data: Vec<u8>,
    soft: Mark,
    hard: Option<u32>,
    /// The device has reported that an SRQ EP takes no more buffers.
    pub(crate) last_wqe: bool,
    /// No completion of an earlier connection is awaited: there was none, all were harvested, or
    /// the time for them is over.
    pub(crate) drained: bool,
    /// The number of the connection attempt that the peer has ended.
    pub(crate) left: u64,
    pub(crate) calls: Calls,
}

/// A watermark that raises one event.
#[derive(Debug, Clone, Copy)]
struct Mark {
    value: Option<u32>,
    armed: bool,
}

impl Mark {
    fn trips(self, n: u32) -> bool {
        self.armed && self.value.is_some_and(|most| n > most)
    }
}

impl Control {
    pub(crate) fn new(soft: Option<u32>) -> Self {
        Self {
            local: None,
            remote: None,
            cm: None,
            tries: Tries::default(),
            service: None,
            private_data: Vec::new(),
            soft: Mark { value: soft, armed: soft.is_some() },
            hard: None,
            last_wqe: false,
            drained: true,
            left: 0,
            calls: Calls::default(),
        }
    }

    pub(crate) fn set_marks(&mut self, soft: Option<u32>, hard: Option<u32>) {
        self.soft = Mark { value: soft, armed: soft.is_some() };
        self.hard = hard;
    }

    /// Whether a watermark is set.
    pub(crate) fn has_marks(&self) -> bool {
        self.soft.value.is_some() || self.hard.is_some()
    }

    /// Whether `n` receives exceed the soft watermark. True once per setting (R214).
    pub(crate) fn soft_trips(&mut self, n: u32) -> bool {
        let trips = self.soft.trips(n);
        self.soft.armed &= !trips;
        trips
    }

    /// Whether `n` receives would exceed a watermark.
    pub(crate) fn exceeds(&self, n: u32) -> bool {
        self.soft.trips(n) || self.hard_trips(n)
    }

    pub(crate) fn hard_trips(&self, n: u32) -> bool {
        self.hard.is_some_and(|most| n > most)
    }
}
