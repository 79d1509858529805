//! The objects of commands: PDs, keys, CQs, SRQs, QPs, address handles, XRC domains.

use std::collections::VecDeque;

use crate::engine::rss::Spread;
use crate::mem::Area;
use crate::pin::Pin;
use crate::qp_state::{QpState, QpType};

/// Access bits of a region (`enum ibv_access_flags`).
pub(crate) mod access {
    pub(crate) const LOCAL_WRITE: u32 = 1;
    pub(crate) const REMOTE_WRITE: u32 = 2;
    pub(crate) const REMOTE_READ: u32 = 4;
    pub(crate) const REMOTE_ATOMIC: u32 = 8;
    pub(crate) const MW_BIND: u32 = 16;
    pub(crate) const ZERO_BASED: u32 = 32;
    pub(crate) const ON_DEMAND: u32 = 64;
    pub(crate) const HUGETLB: u32 = 128;
    pub(crate) const RELAXED_ORDERING: u32 = 1 << 20;
}

/// A piece of program memory after translation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Seg {
    pub(crate) addr: u64,
    pub(crate) len: u32,
}

#[derive(Debug, Default)]
pub(crate) struct Pd {
    pub(crate) users: u32,
}

/// The object behind a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyKind {
    /// A memory region.
    Region,
    /// A memory window. It is bound when `len` is not zero. A `type2` window is bound by a work
    /// request and may be invalidated remotely.
    Window { type2: bool, bound: bool, region: u32, qpn: u32 },
    /// Pieces of other regions in a row ([`Layout`]); `free` when no work request has given it any.
    Indirect { entries: u32, free: bool, remote_invalidate: bool },
}

/// A memory region or window.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mkey {
    /// The full key: index << 8 | variant.
    pub(crate) key: u32,
    pub(crate) pd: usize,
    /// First address, in the address space of work requests.
    pub(crate) iova: u64,
    /// Where that is in the program's memory.
    pub(crate) start: u64,
    pub(crate) len: u64,
    pub(crate) access: u32,
    pub(crate) kind: KeyKind,
    /// Windows bound to this region.
    pub(crate) windows: u32,
    /// Pages pinned for it.
    pub(crate) pinned: u64,
    /// The device memory that it covers, instead of memory of the program.
    pub(crate) dm: Option<usize>,
}

impl Mkey {
    /// A key without memory; `new_key` assigns its number.
    pub(crate) fn new(pd: usize, kind: KeyKind) -> Self {
        let (iova, start, len) = (0, 0, 0);
        Self { key: 0, pd, iova, start, len, access: 0, kind, windows: 0, pinned: 0, dm: None }
    }

    /// Translates `[addr, addr + len)`; `None` when it leaves the region.
    #[inline(always)]
    pub(crate) fn translate(&self, addr: u64, len: u64) -> Option<u64> {
        let offset = addr.wrapping_sub(self.iova);
        if offset > self.len || self.len - offset < len {
            return None;
        }
        Some(self.start.wrapping_add(offset))
    }
}

#[derive(Debug)]
pub(crate) struct Cq {
    pub(crate) cqn: u32,
    pub(crate) context: usize,
    pub(crate) user_handle: u64,
    pub(crate) handle: u32,
    pub(crate) buf: Area,
    pub(crate) log_count: u32,
    pub(crate) cqe_size: u32,
    pub(crate) record: Area,
    pub(crate) channel: Option<usize>,
    /// CQEs written, modulo 2^32.
    pub(crate) pi: u32,
    /// Consumer index as last read from the record, extended.
    pub(crate) ci: u32,
    /// Index of the last CQE that was solicited (or an error), plus one.
    pub(crate) solicited_pi: u32,
    /// CQEs that events announced: as many as there were when the last one was generated.
    pub(crate) notified_pi: u32,
    pub(crate) armed: Armed,
    /// Events generated: the sequence number the next arm must carry.
    pub(crate) arm_sn: u32,
    /// The arm word as last acted upon.
    pub(crate) arm_seen: u32,
    pub(crate) users: u32,
    pub(crate) overrun: bool,
    pub(crate) ignore_overrun: bool,
    pub(crate) stamps: Stamps,
    pub(crate) comp_events: u32,
    pub(crate) async_events: u32,
    /// Buffer and record.
    pub(crate) pins: [Pin; 2],
}

/// Timestamps that a CQ's completions carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stamps {
    No,
    /// Cycles of the device's clock.
    Cycles,
    /// Seconds of the real time in the upper half, nanoseconds in the lower one.
    RealTime,
}

/// Which completions generate an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Armed {
    No,
    Solicited,
    Any,
}

#[derive(Debug)]
pub(crate) struct Srq {
    pub(crate) srqn: u32,
    pub(crate) context: usize,
    pub(crate) pd: usize,
    pub(crate) user_handle: u64,
    pub(crate) buf: Area,
    pub(crate) log_count: u32,
    pub(crate) log_stride: u32,
    pub(crate) max_sge: u32,
    pub(crate) record: Area,
    pub(crate) uidx: u32,
    /// XRC: where completions go and which domain.
    pub(crate) xrc: Option<(usize, usize)>,
    /// Next WQE to use.
    pub(crate) head: u16,
    /// Next WQE to take over when the record covers more.
    pub(crate) tail: u16,
    /// WQEs taken over, as the record counts.
    pub(crate) posted: u16,
    /// WQEs that the device owns and has not used.
    pub(crate) available: u32,
    /// `next` of each WQE that the device owns, as read at takeover; FREE for other WQEs.
    pub(crate) links: Vec<u32>,
    pub(crate) limit: u32,
    pub(crate) users: u32,
    pub(crate) async_events: u32,
    pub(crate) error: bool,
    /// Buffer and record.
    pub(crate) _pins: [Pin; 2],
}

/// Marker in [`Srq::links`] for a slot that the program owns.
pub(crate) const FREE: u32 = u32::MAX;

/// Memory behind an indirect key: pieces in a row, repeated `repeat` times.
#[derive(Clone, Debug, Default)]
pub(crate) struct Layout {
    pub(crate) pieces: Vec<Piece>,
    pub(crate) repeat: u32,
}

/// A piece of a region. Its address moves by `stride` with each repetition.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    pub(crate) key: u32,
    pub(crate) addr: u64,
    pub(crate) len: u32,
    pub(crate) stride: u32,
}

/// A piece of device memory: pages of its context's shared memory.
#[derive(Debug)]
pub(crate) struct Dm {
    pub(crate) context: usize,
    /// First page, counted from the start of the area for device memory.
    pub(crate) page: u16,
    pub(crate) pages: u16,
    pub(crate) len: u64,
    /// Regions registered on it.
    pub(crate) users: u32,
}

#[derive(Debug, Default, Clone)]
pub(crate) struct Ah {
    pub(crate) pd: usize,
}

/// Work queues that a QP spreads its frames over.
#[derive(Debug, Default)]
pub(crate) struct IndirectionTable {
    /// Indices of the work queues, which are QPs without a send queue; a power of two of them.
    pub(crate) queues: Vec<usize>,
    /// QPs that use it.
    pub(crate) users: u32,
}

#[derive(Debug, Default)]
pub(crate) struct Xrcd {
    /// Device and inode of the file it was opened with.
    pub(crate) inode: Option<crate::sys::FileId>,
    /// Handles open on it.
    pub(crate) opens: u32,
    pub(crate) users: u32,
}

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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Blocked {
    No,
    /// Until the timer of this generation fires.
    Timer,
    /// Until peers answered.
    Peer,
    /// For good: the last outstanding request has failed.
    Failed,
}

/// Destination or source of the payload of an acknowledged request.
#[derive(Debug)]
pub(crate) struct Outstanding {
    /// Sequence number of the request.
    pub(crate) sn: u32,
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

#[derive(Debug)]
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
        Self {
            qpn: 0,
            context,
            pd: None,
            kind,
            state: QpState::Reset,
            attr: QpAttr::default(),
            cap: QpCap::default(),
            user_handle: 0,
            send_cq: None,
            recv_cq: None,
            srq: None,
            xrcd: None,
            uidx: 0,
            dc_key: 0,
            sig_all: false,
            block_own_multicast: false,
            scatter_recv: 0,
            scatter_send: 0,
            sq: None,
            sq_count: 0,
            rq: None,
            rq_count: 0,
            rq_shift: 0,
            record: None,
            uar_page: u32::MAX,
            sq_next: 0,
            sq_done: 0,
            sq_posted: 0,
            rq_next: 0,
            rq_posted: 0,
            blocked: Blocked::No,
            timer_generation: 0,
            rnr_left: 0,
            retry_left: 0,
            queued: false,
            comm_est: false,
            async_events: 0,
            drained_event: false,
            send_sn: 0,
            expect_sn: 0,
            outstanding: VecDeque::new(),
            opens: 1,
            spread: None,
            _pins: Vec::new(),
        }
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
