//! The send queue and the receive queue of an EP on one of the paths.
//!
//! The two queues of a QP use the same path as the CQs of its EVDs. On the direct path nothing may
//! be posted to them through verbs.

use super::direct;
use super::request::{Outgoing, Record};
use super::{DataPath, WrId};
use crate::Result;
use mlx5_direct::DataSeg;
use rxe_fallback::{MwKind, PostError as Refusal, Qp, SendFlags, SendOp, SendWr, Sge, UdDest};

/// The send queue of an EP.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "a Send finds the queue's state without a pointer")]
pub(crate) enum SendQueue {
    Verbs(Qp),
    Direct(direct::DirectSends),
}

/// The receive queue of an EP without an SRQ. EPs on an SRQ have a queue that takes nothing.
#[derive(Debug)]
pub(crate) enum RecvQueue {
    Verbs(Qp),
    Direct(direct::DirectReceives),
}

impl DataPath {
    /// The queues of a new QP, to which nothing was posted. `on_srq`: it has no receive queue.
    ///
    /// # Errors
    /// No memory for the tables of the direct queues.
    pub(crate) fn queues(self, qp: &Qp, on_srq: bool) -> Result<(SendQueue, RecvQueue)> {
        let verbs = || RecvQueue::Verbs(qp.clone());
        Ok(match self {
            Self::Verbs => (SendQueue::Verbs(qp.clone()), verbs()),
            Self::Direct => {
                let sends = SendQueue::Direct(direct::DirectSends::new(qp)?);
                let receives =
                    if on_srq { verbs() } else { RecvQueue::Direct(direct::DirectReceives::new(qp)?) };
                (sends, receives)
            }
        })
    }
}

impl SendQueue {
    /// Posts one request.
    ///
    /// # Errors
    /// Nothing was posted.
    pub(crate) fn post(&mut self, request: &Outgoing<'_>) -> Result<(), Refusal> {
        let qp = match self {
            Self::Direct(queue) => return queue.post(request),
            Self::Verbs(qp) => qp,
        };
        let Outgoing { record, op, sges, flags, to } = *request;
        let wr_id = WrId::Request(record.seq).pack();
        match op {
            SendOp::BindMw(bind) if bind.mw.kind() == MwKind::Type1 => bind.mw.bind(qp, wr_id, &bind, flags),
            _ => {
                let ud = to.map(|(ah, qpn, qkey)| UdDest { ah, qpn, qkey });
                qp.post_send(&SendWr { wr_id, op, sges, flags, inline: None, ud })
            }
        }
    }

    /// Posts a Send or an RDMA Write of these bytes, which are copied. There are no more than the
    /// QP was made for.
    ///
    /// # Errors
    /// Nothing was posted.
    pub(crate) fn post_inline(
        &mut self,
        record: Record,
        op: SendOp<'_>,
        bytes: &[u8],
        flags: SendFlags,
    ) -> Result<(), Refusal> {
        match self {
            Self::Direct(queue) => queue.post_inline(record.request, op, bytes, flags),
            Self::Verbs(qp) => {
                let wr_id = WrId::Request(record.seq).pack();
                let inline = (!bytes.is_empty()).then_some(bytes);
                qp.post_send(&SendWr { wr_id, op, sges: &[], flags, inline, ud: None })
            }
        }
    }

    /// Posts several requests with one doorbell: all or, on the direct path, none. There are at
    /// most `MOST`. None is a datagram or about a window.
    ///
    /// # Errors
    /// The number of the request that was refused. By verbs, those before it are posted.
    pub(crate) fn post_list<const MOST: usize>(
        &mut self,
        requests: &[Outgoing<'_>],
    ) -> Result<(), (usize, Refusal)> {
        let qp = match self {
            Self::Direct(queue) => return queue.post_list(requests),
            Self::Verbs(qp) => qp,
        };
        let wrs: [SendWr<'_>; MOST] = std::array::from_fn(|n| match requests.get(n) {
            Some(&Outgoing { record, op, sges, flags, .. }) => {
                SendWr { flags, ..SendWr::new(WrId::Request(record.seq).pack(), op, sges) }
            }
            None => SendWr::send(0, &[]),
        });
        let posted = qp.post_send_list(wrs.get(..requests.len()).unwrap_or_default());
        posted.map_err(|stopped| (stopped.index, stopped.reason))
    }

    /// Posts a request of one segment to a connected QP: a Send, RDMA Write or RDMA Read, with
    /// SIGNALLED and SOLICITED at most. Returns false without posting if the queue does not take
    /// it.
    #[inline(always)]
    pub(crate) fn post_one(&mut self, record: Record, op: SendOp<'_>, sge: Sge, flags: SendFlags) -> bool {
        match self {
            Self::Direct(queue) => {
                queue.post_one(record.request, op, sge, flags) || {
                    queue.find_room();
                    queue.post_one(record.request, op, sge, flags)
                }
            }
            Self::Verbs(qp) => qp.post_send_few(WrId::Request(record.seq).pack(), op, &[sge], flags).is_ok(),
        }
    }

    /// Starts again after the QP was reset. Every completion of the requests before the reset was
    /// taken off its CQ.
    pub(crate) fn reset(&mut self) {
        if let Self::Direct(queue) = self {
            queue.reset();
        }
    }
}

impl RecvQueue {
    /// Posts one receive.
    ///
    /// # Errors
    /// Nothing was posted.
    pub(crate) fn post(&mut self, sges: &[Sge]) -> Result<(), Refusal> {
        match self {
            Self::Direct(queue) => queue.post(sges),
            // The consumer of a UD EP must leave 40 bytes in front of the message.
            Self::Verbs(qp) => qp.post_recv_raw(WrId::Recv(0).pack(), sges),
        }
    }

    /// Posts a receive of one segment, which is not empty. Returns false without posting if the queue
    /// does not take it.
    #[inline(always)]
    pub(crate) fn post_one(&mut self, sge: Sge) -> bool {
        match self {
            Self::Direct(queue) => queue.post_few([DataSeg::new(sge.addr, sge.len, sge.lkey).into()]),
            Self::Verbs(qp) => Self::post_few_by_verbs(qp, &[sge]),
        }
    }

    /// Posts a receive to the QP of a queue on the verbs path. Returns false without posting if the QP
    /// does not take it.
    #[inline(always)]
    pub(crate) fn post_few_by_verbs<const N: usize>(qp: &Qp, sges: &[Sge; N]) -> bool {
        qp.post_recv_raw(WrId::Recv(0).pack(), sges).is_ok()
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
