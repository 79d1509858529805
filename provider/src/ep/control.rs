//! The connection state of an EP, shared by the consumer's calls and the progress thread.
//!
//! A thread that moves the EP into another state holds the lock of its [`Control`]. [`crate::conn`]
//! explains the states and their order.

use crate::counters::Calls;
use crate::device::Tries;
use crate::types::{ConnQual, Count, WATERMARK_INFINITE};
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
    hard: Count,
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
    value: Count,
    armed: bool,
}

impl Control {
    pub(crate) fn new(soft: Count) -> Self {
        Self {
            local: None,
            remote: None,
            cm: None,
            tries: Tries::default(),
            service: None,
            private_data: Vec::new(),
            soft: Mark { value: soft, armed: soft != WATERMARK_INFINITE },
            hard: WATERMARK_INFINITE,
            last_wqe: false,
            drained: true,
            left: 0,
            calls: Calls::default(),
        }
    }

    pub(crate) fn set_marks(&mut self, soft: Count, hard: Count) {
        self.soft = Mark { value: soft, armed: soft != WATERMARK_INFINITE };
        self.hard = hard;
    }

    /// Whether a watermark is set.
    pub(crate) fn has_marks(&self) -> bool {
        self.soft.value != WATERMARK_INFINITE || self.hard != WATERMARK_INFINITE
    }

    /// Whether `n` receives exceed the soft watermark. True once per setting (R214).
    pub(crate) fn soft_trips(&mut self, n: Count) -> bool {
        let trips = self.soft.armed && n > self.soft.value;
        self.soft.armed &= !trips;
        trips
    }

    /// Whether `n` receives would exceed a watermark.
    pub(crate) fn exceeds(&self, n: Count) -> bool {
        self.soft.armed && n > self.soft.value || self.hard_trips(n)
    }

    pub(crate) fn hard_trips(&self, n: Count) -> bool {
        self.hard != WATERMARK_INFINITE && n > self.hard
    }
}
