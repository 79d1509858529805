//! Send queues on the direct path.
//!
//! Only the holder of the lock of the EP's requests uses the queue. It has the [`Request`] of each
//! request that it has posted. [`DirectSends::push_fast`](PostSends::push_fast) is the one function
//! of Sends, RDMA Writes and RDMA Reads of few segments; [`any`] has the others.

use super::adopt::{self, Adopted};
use crate::Result;
use crate::datapath::fast::PostSends;
use crate::datapath::request::Request;
use mlx5_direct::Sq;
use mlx5_direct::wqe::KeyedSeg;
use mlx5_direct::wr::{Data, Inline, Landing, Remote, Wr};
use rxe_fallback::{PostError as Refusal, Qp, SendFlags, SendOp};

mod any;
mod chained;

/// The send queue of a QP.
#[derive(Debug)]
pub(crate) struct DirectSends {
    queue: Adopted<Sq<Request>, Qp>,
}

#[inline(always)]
fn with_flags<D: Data>(mut wr: Wr<D>, flags: SendFlags) -> Wr<D> {
    if flags.contains(SendFlags::SIGNALLED) {
        wr = wr.signalled();
    }
    if flags.contains(SendFlags::SOLICITED) {
        wr = wr.solicited();
    }
    if flags.contains(SendFlags::FENCE) {
        wr = wr.fenced();
    }
    wr
}

/// The request for the device, if it is a Send with or without invalidation, an RDMA Write or an RDMA
/// Read.
#[inline(always)]
fn wr_of<D: Landing>(op: SendOp<'static>, data: D) -> Option<Wr<D>> {
    let remote = |addr, rkey| Remote { addr, rkey };
    match op {
        SendOp::Send => Some(Wr::send(data)),
        SendOp::SendInvalidate(rkey) => Some(Wr::send_inval(rkey, data)),
        SendOp::Write { remote_addr, rkey } => Some(Wr::write(remote(remote_addr, rkey), data)),
        SendOp::Read { remote_addr, rkey } => Some(Wr::read(remote(remote_addr, rkey), data)),
        _ => None,
    }
}

/// The number of bytes that a Send can carry in one block of 64 bytes, behind a control segment of
/// 16 and a length of 4.
const MOST_IN_BLOCK: usize = 44;

impl DirectSends {
    /// Takes over the send queue of a new QP.
    ///
    /// # Errors
    /// No memory for the queue's table.
    pub(crate) fn new(qp: &Qp) -> Result<Self> {
        Ok(Self { queue: adopt::send_queue(qp.clone())? })
    }

    pub(crate) fn find_room(&mut self) {
        self.queue.find_room();
    }

    /// Posts a request of one block, also if several queues share the register.
    #[inline(always)]
    fn post_any<D: Data>(&mut self, wr: &Wr<D>, request: Request) -> bool {
        self.queue.post_by_doorbell(wr, request) || self.queue.post_fast(wr, request)
    }

    /// Releases the request that a completion names, and all before it. Returns it, and how many
    /// they are; `None` if it is not posted.
    #[inline(always)]
    pub(crate) fn complete(&mut self, counter: u16) -> Option<(Request, u32)> {
        self.queue.complete(counter).ok().map(|released| (released.cookie, released.requests))
    }

    /// Releases the oldest request without a completion.
    pub(crate) fn release_oldest(&mut self) -> Option<Request> {
        self.queue.release_oldest()
    }

    /// The number of requests that the device has.
    pub(crate) fn len(&self) -> u32 {
        self.queue.posted()
    }

    /// Starts again after the QP was reset.
    pub(crate) fn reset(&mut self) {
        self.queue.reset();
    }
}

impl PostSends for DirectSends {
    type Segment = KeyedSeg;
    type Chain<'a, 'b> = mlx5_direct::Chain<'a, Request>;

    /// Returns false also if the request needs more than one block, or if the queue has to look for
    /// room first.
    #[inline(always)]
    fn push_fast<const N: usize>(
        &mut self,
        request: Request,
        op: SendOp<'static>,
        segments: [KeyedSeg; N],
        flags: SendFlags,
    ) -> bool {
        let Some(wr) = wr_of(op, segments) else { return false };
        self.queue.post_fast(&with_flags(wr, flags), request)
    }

    #[inline(always)]
    fn push_any<const N: usize>(
        &mut self,
        request: Request,
        op: SendOp<'static>,
        segments: [KeyedSeg; N],
        flags: SendFlags,
    ) -> bool {
        let Some(wr) = wr_of(op, segments) else { return false };
        self.post_any(&with_flags(wr, flags), request)
    }

    #[inline(always)]
    fn copy_fast<const ANY: bool>(&mut self, request: Request, bytes: &[u8], flags: SendFlags) -> bool {
        if bytes.len() > MOST_IN_BLOCK {
            return false;
        }
        let wr = with_flags(Wr::send(Inline(bytes)), flags);
        if ANY { self.post_any(&wr, request) } else { self.queue.post_fast(&wr, request) }
    }

    #[inline(always)]
    fn copy_long_fast(&mut self, request: Request, bytes: &[u8], flags: SendFlags) -> bool {
        self.queue.post_long_fast(&with_flags(Wr::send(Inline(bytes)), flags), request)
    }

    #[inline]
    fn copy_any(&mut self, request: Request, bytes: &[u8], flags: SendFlags) -> bool {
        let wr = with_flags(Wr::send(Inline(bytes)), flags);
        self.queue.post_long_by_doorbell(&wr, request) || self.queue.post(wr, request).is_ok()
    }

    #[inline(always)]
    fn complete_if<E>(&mut self, named: u64, accept: impl FnOnce(&Request) -> Option<E>) -> Option<(E, u32)> {
        // Without a copy of the request: no test is then left of whether `op` is an operation.
        self.queue.complete_if(named as u16, accept)
    }

    #[inline(always)]
    fn chain<'b, E>(
        &mut self,
        add: impl FnOnce(&mut Self::Chain<'_, 'b>) -> Result<(), E>,
    ) -> Result<Result<(), (usize, Refusal)>, E> {
        // Without `ring`, a chain takes its requests back.
        let mut chain = self.queue.chain();
        add(&mut chain)?;
        chain.ring_now();
        Ok(Ok(()))
    }
}
