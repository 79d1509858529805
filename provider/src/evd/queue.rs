//! What the lock of an EVD guards: its CQ, its queued events, the streams that feed it, and the tables in
//! which completions find their queue pairs.
//!
//! Completions and notices wait in queues of their own: notices leave first, except that the end of a
//! connection waits for the completions that were queued before it (R185).

use crate::Result;
use crate::cno::CnoInner;
use crate::counters::EvdCounts;
use crate::datapath::{Completion, CqPath, Lost};
use crate::device::Device;
use crate::event_data::{Dequeued, DtoCompletion, Notice};
use crate::queue_pair::{Credit, QueuePair};
use crate::shared_recv::SharedRecv;
use crate::types::{CompletionFlags, DtoOp, EpId, NumberHasher};
use rxe_fallback::Context;
use std::collections::{HashMap, HashSet, TryReserveError, VecDeque};
use std::hash::BuildHasherDefault;
use std::sync::Arc;

pub(crate) const BATCH: usize = 32;

#[derive(Debug)]
pub(crate) struct Queue {
    /// Of an EVD that takes completions.
    pub(crate) cq: Option<CqPath>,
    pub(crate) slow_path: SlowPath,
    /// Completions on their way from the CQ, empty between harvests.
    pub(crate) batch: Vec<Completion>,
    pub(crate) qlen: usize,
    /// At most `qlen`, for which there is memory.
    pub(crate) dtos: VecDeque<Queued>,
    /// Everything but completions, in order of arrival.
    pub(crate) others: VecDeque<Notice>,
    /// Completions queued before the connection end at the front of `others` was first looked at: they go first (R185).
    pub(crate) before_end: Option<usize>,
    pub(crate) pairs: Numbered<QueuePair>,
    pub(crate) srqs: Numbered<SharedRecv>,
    pub(crate) streams: Vec<Stream>,
    /// Something arrived that may wake a waiter, since it last looked.
    pub(crate) notified: bool,
    pub(crate) waitable: bool,
    pub(crate) enabled: bool,
    pub(crate) cno: Option<Arc<CnoInner>>,
    pub(crate) alert: Alert,
    /// CQ entries that everything attached may need at once.
    pub(crate) demand: u32,
    pub(crate) counts: EvdCounts,
}

bitflags::bitflags! {
    /// Why a dequeue may have more to do than to take a receive out of a CQ.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct SlowPath: u8 {
        /// Something but receives from SRQs completes here.
        const REQUESTS = 1;
        /// A thread is in `wait`.
        const WAITED = 2;
        const CLOSED = 4;
    }
}

#[derive(Debug)]
pub(crate) struct Queued {
    pub(crate) dto: DtoCompletion,
    pub(crate) credit: Credit,
}

impl Queued {
    /// Nobody will see it: what it holds is free, and a pool's buffer finds its way back.
    pub(crate) fn abandon(self, ia: &Device, srqs: &Numbered<SharedRecv>) {
        // A bind has its RMR's number in the pool's place, and a cookie of the consumer's.
        if self.dto.op != DtoOp::RmrBind {
            ia.pools.return_unseen(self.dto.pool, self.dto.cookie);
        }
        self.credit.release(|number| srqs.get(&number));
    }
}

/// Objects by their number on this EVD, which is a QP's or an SRQ's: found once for each completion.
pub(crate) type Numbered<T> = HashMap<u32, Arc<T>, BuildHasherDefault<NumberHasher>>;

/// A stream that feeds this EVD, as the sharing rules see it (R149-R152).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stream {
    pub(crate) ep: EpId,
    pub(crate) kind: StreamKind,
    pub(crate) flags: CompletionFlags,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamKind {
    /// Receives; from an SRQ or not.
    Recv {
        srq: bool,
    },
    Request,
    Connection,
    /// A PSP or RSP.
    Service,
}

impl Queue {
    pub(crate) fn len(&self) -> usize {
        self.dtos.len() + self.others.len()
    }

    /// Makes it that long, or leaves it as it is.
    pub(crate) fn resize(&mut self, qlen: usize) -> Result<()> {
        if let Some(cq) = &mut self.cq {
            self.dtos.try_reserve(qlen.saturating_sub(self.dtos.len()))?;
            cq.ensure(self.demand.max(qlen as u32))?;
        }
        self.qlen = qlen;
        Ok(())
    }

    /// The next event: everything but completions first, in the order it came, except that the end of a connection
    /// waits for the completions that were there before it (R185).
    pub(crate) fn pop(&mut self) -> Option<Dequeued> {
        let end_next = matches!(self.others.front(), Some(Notice::Connection(event)) if event.kind.is_end());
        if end_next {
            let before = *self.before_end.get_or_insert(self.dtos.len());
            if before > 0 && !self.dtos.is_empty() {
                self.before_end = Some(before - 1);
                return self.pop_dto();
            }
            self.before_end = None;
        }
        self.others.pop_front().map(Dequeued::Notice).or_else(|| self.pop_dto())
    }

    #[inline]
    pub(crate) fn pop_dto(&mut self) -> Option<Dequeued> {
        let queued = self.dtos.pop_front()?;
        queued.credit.release(|number| self.srqs.get(&number));
        Some(Dequeued::Dto(queued.dto))
    }

    pub(crate) fn has_dtos(&self) -> bool {
        self.streams.iter().any(|s| is_dto(s.kind))
    }

    pub(crate) fn has(&self, flag: CompletionFlags) -> bool {
        self.streams.iter().any(|s| is_dto(s.kind) && s.flags.contains(flag))
    }
}

pub(crate) fn is_dto(kind: StreamKind) -> bool {
    matches!(kind, StreamKind::Recv { .. } | StreamKind::Request)
}

impl Queue {
    pub(crate) fn cno_if_enabled(&self) -> Option<Arc<CnoInner>> {
        self.cno.clone().filter(|_| self.enabled)
    }
}

/// For which completions a CQ is armed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Armed {
    #[default]
    Nothing,
    /// Failed or solicited ones.
    Failures,
    All,
}

impl Armed {
    /// What a consumer's wait or CNO arms for.
    pub(crate) fn to_notify(solicited: bool) -> Self {
        if solicited { Self::Failures } else { Self::All }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Alert {
    /// For which completions the next event comes. All CQs of the EVD are armed for these at least.
    pub(crate) armed: Armed,
    /// The progress thread watches the channel.
    pub(crate) watched: bool,
    /// An EP has connected whose failures only its completions here tell.
    pub(crate) failures: bool,
    /// `Timer::Rearm` is under way.
    pub(crate) scheduled: bool,
    /// QP numbers of EPs whose next receive exceeds a high watermark.
    pub(crate) marked: HashSet<u32>,
    /// A failed request raises a solicited event, as verbs have it.
    pub(crate) failures_are_solicited: bool,
}

impl Alert {
    pub(crate) fn new(device: &Context) -> Self {
        Self { failures_are_solicited: device.driver() != "rdma_rxe", ..Self::default() }
    }

    /// All CQs have to be armed again.
    pub(crate) fn disarmed(&mut self) {
        self.armed = Armed::Nothing;
    }

    pub(crate) fn expect_failures(&mut self) {
        self.failures = true;
    }

    /// Memory for marks of so many EPs.
    pub(crate) fn reserve(&mut self, eps: usize) -> Result<(), TryReserveError> {
        self.marked.try_reserve(eps.saturating_sub(self.marked.len()))
    }

    /// Whether the next receive of the EP with this QP exceeds one of its high watermarks.
    pub(crate) fn mark(&mut self, qpn: u32, on: bool) {
        if on {
            self.marked.insert(qpn);
        } else {
            self.marked.remove(&qpn);
        }
    }
}

impl Queue {
    /// For which completions the CQ has to be armed while no thread waits, without a CNO.
    pub(crate) fn wanted(&self) -> Armed {
        let Alert { failures, ref marked, failures_are_solicited, .. } = self.alert;
        let marked = !marked.is_empty();
        if self.slow_path.contains(SlowPath::CLOSED) || !(marked || failures) {
            Armed::Nothing
        } else if (marked || !failures_are_solicited) && !self.has(CompletionFlags::SOLICITED_WAIT) {
            Armed::All
        } else {
            Armed::Failures
        }
    }

    pub(crate) fn arm(&mut self, to: Armed) -> Result<()> {
        if let Some(cq) = &mut self.cq {
            cq.arm(to == Armed::Failures)?;
        }
        self.alert.armed = to;
        Ok(())
    }
}

/// What a harvest leaves to be done without the queue's lock.
#[derive(Default)]
#[must_use]
pub(crate) struct Deferred {
    pub(crate) failed: Vec<Arc<QueuePair>>,
    pub(crate) received: Vec<Arc<QueuePair>>,
    pub(crate) lost: Vec<(Arc<SharedRecv>, Lost)>,
    pub(crate) overflowed: bool,
}

impl Deferred {
    /// Of an event that was lost.
    pub(crate) fn overflow() -> Self {
        Self { overflowed: true, ..Self::default() }
    }

    #[inline]
    pub(crate) fn is_nothing(&self) -> bool {
        self.failed.is_empty() && self.received.is_empty() && self.lost.is_empty() && !self.overflowed
    }

    pub(crate) fn merge(&mut self, other: Self) {
        if self.is_nothing() {
            *self = other;
            return;
        }
        self.failed.extend(other.failed);
        self.received.extend(other.received);
        self.lost.extend(other.lost);
        self.overflowed |= other.overflowed;
    }

    /// Memory for what a batch of completions may leave, if others have left something already.
    pub(crate) fn reserve_batch(&mut self) -> Result<(), TryReserveError> {
        let Self { failed, received, lost, overflowed: _ } = self;
        let more = |len: usize| if len == 0 { 0 } else { BATCH };
        failed.try_reserve(more(failed.len()))?;
        received.try_reserve(more(received.len()))?;
        lost.try_reserve(more(lost.len()))
    }
}
