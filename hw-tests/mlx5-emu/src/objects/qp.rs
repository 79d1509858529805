//! Queue pairs.

use std::cmp::Ordering;
use std::collections::VecDeque;

use super::qp_state::{QpState, QpType};
use super::rss::Spread;
use crate::host::mem::Area;
use crate::host::pin::Pin;

/// Attributes of a QP, as MODIFY_QP set them.
#[derive(Clone, Debug, Default)]
pub(crate) struct QpAttr {
    pub(crate) qkey: u32,
    pub(crate) rq_psn: u32,
    pub(crate) sq_psn: u32,
    pub(crate) dest_qpn: u32,
    pub(crate) access: u32,
    pub(crate) pkey_index: u16,
    pub(crate) path_mtu: u8,
    pub(crate) path_mig_state: u8,
    pub(crate) max_rd_atomic: u8,
    pub(crate) max_dest_rd_atomic: u8,
    pub(crate) min_rnr_timer: u8,
    pub(crate) port: u8,
    pub(crate) timeout: u8,
    pub(crate) retry_cnt: u8,
    pub(crate) rnr_retry: u8,
    /// The 32 bytes of `ib_uverbs_qp_dest`.
    pub(crate) dest: [u8; 32],
    pub(crate) alt_dest: [u8; 32],
    pub(crate) alt_pkey_index: u16,
    pub(crate) alt_port: u8,
    pub(crate) alt_timeout: u8,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct QpCap {
    pub(crate) max_send_wr: u32,
    pub(crate) max_recv_wr: u32,
    pub(crate) max_send_sge: u32,
    pub(crate) max_recv_sge: u32,
    pub(crate) max_inline: u32,
}

/// Why a send queue stands still although it has work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Blocked {
    #[default]
    No,
    /// Until the timer of this generation fires.
    Timer,
    /// Until peers answered.
    Peer,
    /// For good: the last outstanding request has failed.
    Failed,
}

const SN_BITS: u32 = 24;
/// The bits of a sequence number.
pub(crate) const SN_MASK: u32 = (1 << SN_BITS) - 1;

/// Destination or source of the payload of an acknowledged request.
#[derive(Debug)]
pub(crate) struct Outstanding {
    /// [`Qp::request_number`] of the request.
    pub(crate) number: u32,
    /// Start index and size of its WQE in basic blocks.
    pub(crate) wqe_index: u16,
    pub(crate) blocks: u16,
    pub(crate) opcode: u8,
    pub(crate) signalled: bool,
    /// READ and atomics.
    pub(crate) reads: bool,
    /// The syndrome of a request that failed before it was sent; 0 for others.
    pub(crate) syndrome: u16,
}

#[derive(Debug, Default)]
pub(crate) struct Qp {
    pub(crate) qpn: u32,
    pub(crate) context: usize,
    pub(crate) pd: Option<usize>,
    pub(crate) kind: QpType,
    pub(crate) state: QpState,
    pub(crate) attr: QpAttr,
    pub(crate) cap: QpCap,
    pub(crate) user_handle: u64,
    pub(crate) send_cq: Option<usize>,
    pub(crate) recv_cq: Option<usize>,
    pub(crate) srq: Option<usize>,
    pub(crate) xrcd: Option<usize>,
    pub(crate) uidx: u32,
    /// A DC target's access key, folded.
    pub(crate) dc_key: u32,
    pub(crate) sig_all: bool,
    /// Does not receive what it sends to a group that it is attached to.
    pub(crate) block_own_multicast: bool,
    /// Maximum payload of a receive that may go into the CQE, in bytes.
    pub(crate) scatter_recv: u32,
    /// Maximum payload of a READ or an atomic that may go into the CQE, in bytes.
    pub(crate) scatter_send: u32,
    /// Send ring; basic blocks of 64 bytes.
    pub(crate) sq: Option<Area>,
    pub(crate) sq_count: u16,
    /// Receive ring.
    pub(crate) rq: Option<Area>,
    pub(crate) rq_count: u32,
    pub(crate) rq_shift: u32,
    /// Receive counter, send counter.
    pub(crate) record: Option<Area>,
    pub(crate) uar_page: u32,
    /// Next basic block to execute.
    pub(crate) sq_next: u16,
    /// Oldest basic block not completed.
    pub(crate) sq_done: u16,
    /// Send counter as last read.
    pub(crate) sq_posted: u16,
    /// Next receive WQE to use, as a running count.
    pub(crate) rq_next: u16,
    /// Receive counter as last read.
    pub(crate) rq_posted: u16,
    pub(crate) blocked: Blocked,
    /// Invalidates timers set earlier.
    pub(crate) timer_generation: u32,
    pub(crate) rnr_left: u8,
    pub(crate) retry_left: u8,
    pub(crate) queued: bool,
    pub(crate) comm_est: bool,
    pub(crate) async_events: u32,
    pub(crate) drained_event: bool,
    /// Sequence number of the next request to send, and of the next one expected.
    pub(crate) send_sn: u32,
    pub(crate) expect_sn: u32,
    /// How often requests were taken back to be sent again.
    pub(crate) attempt: u8,
    pub(crate) outstanding: VecDeque<Outstanding>,
    /// Handles open on it (OPEN_QP).
    pub(crate) opens: u32,
    /// Spreads frames over work queues instead of receiving them.
    pub(crate) spread: Option<Box<Spread>>,
    /// Buffer and record.
    pub(crate) _pins: Vec<Pin>,
}

impl Qp {
    /// A QP in RESET without rings, CQs and doorbell page.
    pub(crate) fn new(context: usize, kind: QpType) -> Self {
        Self { context, kind, uar_page: u32::MAX, opens: 1, ..Self::default() }
    }

    /// The number by which the answer to the next request will name that request: its sequence number,
    /// and above it the attempt. An answer to an earlier attempt names none that waits.
    #[inline]
    pub(crate) fn request_number(&self) -> u32 {
        u32::from(self.attempt) << SN_BITS | self.send_sn
    }

    /// Whether the send record covers the WQE at `at`, which is not executed yet.
    pub(crate) fn covers(&self, at: u16) -> bool {
        self.record.is_none_or(|record| {
            at.wrapping_sub(self.sq_next) < (record.be32_acquire(4) as u16).wrapping_sub(self.sq_next)
        })
    }

    /// Whether the program has announced requests that the engine does not know of.
    #[inline]
    pub(crate) fn was_rung(&self) -> bool {
        !self.queued
            && !self.state.ignores_sends()
            && self.record.is_some_and(|record| record.be32(4) as u16 != self.sq_posted)
    }
}

/// The access key of a DC target as requests carry it.
pub(crate) fn fold_key(key: u64) -> u32 {
    (key >> 32) as u32 ^ key as u32
}

/// A timer of a send queue; the heap's greatest element is the one due first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Timer {
    pub(crate) due_ns: u64,
    pub(crate) qp: usize,
    pub(crate) qpn: u32,
    pub(crate) generation: u32,
}

impl Ord for Timer {
    fn cmp(&self, other: &Self) -> Ordering {
        other.due_ns.cmp(&self.due_ns).then_with(|| other.qp.cmp(&self.qp))
    }
}

impl PartialOrd for Timer {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
