//! The send queue and the receive queue of an EP on one of the paths.
//!
//! The two queues of a QP use the same path as the CQs of its EVDs. On the direct path nothing may
//! be posted to them through verbs. A send queue has the [`Request`] of each request that the
//! device has.

use super::direct::{DirectReceives, DirectSends};
use super::on_path::{DataPath, OnPath};
use super::request::{Outgoing, Request};
use super::verbs::{VerbsReceives, VerbsSends};
use crate::Result;
use rxe_fallback::{PostError as Refusal, Qp, SendFlags, SendOp, Sge};

/// The send queue of an EP.
pub(crate) type SendQueue = OnPath<DirectSends, VerbsSends>;

/// The receive queue of an EP without an SRQ. EPs on an SRQ have a queue that takes nothing.
pub(crate) type RecvQueue = OnPath<DirectReceives, VerbsReceives>;

impl DataPath {
    /// The queues of a new QP, to which nothing was posted, for this number of requests. `on_srq`:
    /// it has no receive queue.
    ///
    /// # Errors
    /// No memory for the tables of the queues.
    pub(crate) fn queues(self, qp: &Qp, requests: usize, on_srq: bool) -> Result<(SendQueue, RecvQueue)> {
        let by_verbs = || RecvQueue::Verbs(VerbsReceives::new(qp));
        Ok(match self {
            Self::Verbs => (SendQueue::Verbs(VerbsSends::new(qp, requests)?), by_verbs()),
            Self::Direct => {
                let sends = SendQueue::Direct(DirectSends::new(qp)?);
                (sends, if on_srq { by_verbs() } else { RecvQueue::Direct(DirectReceives::new(qp)?) })
            }
        })
    }
}

impl SendQueue {
    /// Posts one request.
    ///
    /// # Errors
    /// Nothing was posted.
    pub(crate) fn push(&mut self, request: &Outgoing<'_>) -> Result<(), Refusal> {
        match self {
            Self::Direct(queue) => queue.push(request),
            Self::Verbs(queue) => queue.push(request),
        }
    }

    /// Looks for room for the next fast posts.
    pub(crate) fn find_room(&mut self) {
        if let Self::Direct(queue) = self {
            queue.find_room();
        }
    }

    /// Posts a Send or an RDMA Write of these bytes, which are copied. There are no more than the
    /// QP was made for.
    ///
    /// # Errors
    /// Nothing was posted.
    pub(crate) fn copy(
        &mut self,
        request: Request,
        op: SendOp<'_>,
        bytes: &[u8],
        flags: SendFlags,
    ) -> Result<(), Refusal> {
        match self {
            Self::Direct(queue) => queue.copy(request, op, bytes, flags),
            Self::Verbs(queue) => queue.copy(request, op, bytes, flags),
        }
    }

    /// Releases the request that a completion names, and all before it. Returns it, and how many
    /// they are; `None` if it is not posted.
    #[inline(always)]
    pub(crate) fn complete(&mut self, named: u64) -> Option<(Request, u32)> {
        match self {
            Self::Direct(queue) => queue.complete(named as u16),
            Self::Verbs(queue) => queue.complete(named),
        }
    }

    /// Releases the oldest request without a completion.
    pub(crate) fn release_oldest(&mut self) -> Option<Request> {
        match self {
            Self::Direct(queue) => queue.release_oldest(),
            Self::Verbs(queue) => queue.release_oldest(),
        }
    }

    /// The number of requests that the device has.
    pub(crate) fn len(&self) -> u32 {
        match self {
            Self::Direct(queue) => queue.len(),
            Self::Verbs(queue) => queue.len(),
        }
    }

    /// Starts again after the QP was reset. Every completion of the requests before the reset was
    /// taken off its CQ.
    pub(crate) fn reset(&mut self) {
        match self {
            Self::Direct(queue) => queue.reset(),
            Self::Verbs(queue) => queue.reset(),
        }
    }
}

impl RecvQueue {
    /// Posts one receive.
    ///
    /// # Errors
    /// Nothing was posted.
    pub(crate) fn push(&mut self, sges: &[Sge]) -> Result<(), Refusal> {
        match self {
            Self::Direct(queue) => queue.push(sges),
            Self::Verbs(queue) => queue.push(sges),
        }
    }

    /// Releases the slot that a completion names. False if no receive is posted there.
    #[inline(always)]
    pub(crate) fn complete(&mut self, slot: u16) -> bool {
        match self {
            Self::Direct(queue) => queue.complete(slot),
            Self::Verbs(_) => true,
        }
    }

    /// As [`SendQueue::reset`].
    pub(crate) fn reset(&mut self) {
        if let Self::Direct(queue) = self {
            queue.reset();
        }
    }
}
