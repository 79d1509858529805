//! Chains in the most common case: Sends and RDMA Writes of one segment each.
//!
//! All checks of a request are made here: `QueueLmrs` and the last pool are closed unless the EP is
//! connected.

use super::{ChainError, ChainRequest, Operation, PoolSend};
use crate::datapath::verbs::refused;
use crate::datapath::{SendQueue, WrId, WrInfo};
use crate::ep::Ep;
use crate::ep::fast::{FAST_FLAGS, known_segment};
use crate::ep::post::send_flags;
use crate::error::Direction;
use crate::queue_pair::{QueuePair, Request, Requests};
use crate::types::{DtoOp, LmrTriplet};
use rxe_fallback::{SendOp, SendWr, Sge};

/// The longest chain that is posted by verbs here: work requests in an array of this size.
const MOST_BY_VERBS: usize = 4;

/// The operations of a chain, and their bytes.
#[derive(Default)]
struct Sums {
    sends: (u32, u64),
    writes: (u32, u64),
}

impl Sums {
    #[inline(always)]
    fn add(&mut self, op: DtoOp, length: u32) {
        let (posts, bytes) = if op == DtoOp::Send { &mut self.sends } else { &mut self.writes };
        *posts += 1;
        *bytes += u64::from(length);
    }
}

impl QueuePair {
    /// Posts a chain of Sends and RDMA Writes of one segment each, if `QueueLmrs` finds their LMRs,
    /// they have no flags but [`FAST_FLAGS`], a Send from a pool at the end is from the pool that the
    /// EP has sent from last, and the queue has room for all. Otherwise returns false without
    /// posting; then [`EpInner::post_checked_chain`](crate::ep::EpInner) posts, or gives the error.
    ///
    /// # Errors
    /// The device has refused a request; those before it are posted.
    #[inline(never)]
    pub(super) fn post_ones(
        &self,
        requests: &[ChainRequest<'_>],
        last: Option<&PoolSend<'_>>,
    ) -> Result<bool, ChainError> {
        let mut locked = self.requests.lock();
        let count = requests.len() + usize::from(last.is_some());
        if count > Ep::MAX_CHAIN.min(locked.ring.room()) {
            return Ok(false);
        }
        match locked.queue {
            SendQueue::Direct(_) => Ok(locked.post_ones(requests, last).is_some()),
            SendQueue::Verbs(_) if count <= MOST_BY_VERBS => {
                locked.post_ones_by_verbs(requests, last).map_or(Ok(false), |posted| posted.map(|()| true))
            }
            SendQueue::Verbs(_) => Ok(false),
        }
    }
}

/// The operation of a request of `length` bytes. `None` for operations other than Sends and RDMA
/// Writes, and for a write that is longer than its target.
#[inline(always)]
fn operation(request: &ChainRequest<'_>, length: u32) -> Option<(DtoOp, SendOp<'static>)> {
    let to = request.remote;
    match request.operation {
        Operation::Send => Some((DtoOp::Send, SendOp::Send)),
        Operation::Write if length <= to.segment_length => {
            let verb = SendOp::Write { remote_addr: to.virtual_address, rkey: to.rmr_context };
            Some((DtoOp::RdmaWrite, verb))
        }
        _ => None,
    }
}

#[inline(always)]
fn one(iov: &[LmrTriplet]) -> Option<&[LmrTriplet; 1]> {
    iov.try_into().ok()
}

impl Requests {
    /// [`QueuePair::post_ones`] on the direct path.
    #[inline(always)]
    fn post_ones(&mut self, requests: &[ChainRequest<'_>], last: Option<&PoolSend<'_>>) -> Option<()> {
        let SendQueue::Direct(queue) = &mut self.queue else { return None };
        // Takes its requests back if one of them is refused.
        let mut ones = queue.ones();
        let mut sums = Sums::default();
        for given in requests {
            let ChainRequest { iov, cookie, flags, .. } = *given;
            let ([segment], length) = self.lmrs.segments(one(iov)?, Direction::Read)?;
            let (dto, verb) = operation(given, length)?;
            let request = || Request::new(&WrInfo { cookie, ..WrInfo::default() }, flags, dto, length);
            let solicits = dto == DtoOp::Send;
            if !FAST_FLAGS.contains(flags) || !ones.push(request, verb, segment, send_flags(flags, solicits))
            {
                return None;
            }
            sums.add(dto, length);
        }
        if let Some(PoolSend { memory, bytes, info, flags }) = last {
            let Sge { addr, len, lkey } = known_segment(self.last_pool, memory, *bytes, info)?;
            let segment = mlx5_direct::DataSeg::new(addr, len, lkey).into();
            let request = || Request::new(info, *flags, DtoOp::Send, len);
            if !FAST_FLAGS.contains(*flags)
                || !ones.push(request, SendOp::Send, segment, send_flags(*flags, true))
            {
                return None;
            }
            sums.add(DtoOp::Send, len);
        }
        ones.ring();
        let Sums { sends, writes } = sums;
        self.ring.count_all(sends.0 + writes.0);
        self.posted.add_all(DtoOp::Send, sends);
        self.posted.add_all(DtoOp::RdmaWrite, writes);
        Some(())
    }

    /// [`QueuePair::post_ones`] by verbs, for at most [`MOST_BY_VERBS`] requests. If the device
    /// refuses one, those before it are posted.
    ///
    /// Without a [`Plan`](super::Plan), which would cost a chain of two 440 instructions.
    #[inline(always)]
    fn post_ones_by_verbs(
        &mut self,
        requests: &[ChainRequest<'_>],
        last: Option<&PoolSend<'_>>,
    ) -> Option<Result<(), ChainError>> {
        let SendQueue::Verbs(qp) = &self.queue else { return None };
        let mut sges = [Sge::default(); MOST_BY_VERBS];
        let mut posted = [Request::NONE; MOST_BY_VERBS];
        let mut verbs = [SendOp::Send; MOST_BY_VERBS];
        let mut places = sges.iter_mut().zip(&mut posted).zip(&mut verbs);
        for given in requests {
            let ChainRequest { iov, cookie, flags, .. } = *given;
            let [segment] = one(iov)?;
            let ((sge, request), verb) = places.next()?;
            *sge = self.lmrs.sge(segment, Direction::Read)?;
            let dto;
            (dto, *verb) = operation(given, sge.len)?;
            if !FAST_FLAGS.contains(flags) {
                return None;
            }
            *request = Request::new(&WrInfo { cookie, ..WrInfo::default() }, flags, dto, sge.len);
        }
        if let Some(PoolSend { memory, bytes, info, flags }) = last {
            let ((sge, request), _) = places.next()?;
            *sge = known_segment(self.last_pool, memory, *bytes, info)?;
            if !FAST_FLAGS.contains(*flags) {
                return None;
            }
            *request = Request::new(info, *flags, DtoOp::Send, sge.len);
        }
        let count = requests.len() + usize::from(last.is_some());
        let first = self.ring.end();
        let wrs: [SendWr<'_>; MOST_BY_VERBS] = std::array::from_fn(|n| {
            let flags = send_flags(posted[n].flags(), posted[n].op == DtoOp::Send);
            let wr_id = WrId::Request(first + n as u64).pack();
            SendWr { flags, ..SendWr::new(wr_id, verbs[n], std::slice::from_ref(&sges[n])) }
        });
        let outcome = qp.post_send_list(&wrs[..count]);
        let done = outcome.map_or_else(|stopped| stopped.index, |()| count);
        for request in &posted[..done] {
            self.posted.add(request.op, request.length.into());
            self.ring.push(*request);
        }
        Some(outcome.map_err(|stopped| ChainError { request: stopped.index, error: refused(stopped.reason) }))
    }
}
