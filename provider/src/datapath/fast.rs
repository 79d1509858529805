//! What the fast functions of posts and dequeues do with the queues of a path.

use super::request::{Outgoing, Request};
use crate::error::PostError;
use crate::types::LmrTriplet;
use mlx5_direct::DataSeg;
use mlx5_direct::wqe::{KeyedSeg, SegmentKey};
use rxe_fallback::{PostError as Refusal, SendFlags, SendOp, Sge};

/// A data segment as the queues of a path take it.
pub(crate) trait Segment: Copy {
    const NONE: Self;

    /// `len` bytes at `addr`. `lkey` is the key of their memory; `key_word` is the same as a word
    /// of [`SegmentKey`].
    fn new(addr: u64, len: u32, lkey: impl FnOnce() -> u32, key_word: impl FnOnce() -> u64) -> Self;
    fn of_sge(sge: Sge) -> Self;
}

impl Segment for Sge {
    const NONE: Self = Self { addr: 0, len: 0, lkey: 0 };

    #[inline(always)]
    fn new(addr: u64, len: u32, lkey: impl FnOnce() -> u32, _: impl FnOnce() -> u64) -> Self {
        Self { addr, len, lkey: lkey() }
    }

    #[inline(always)]
    fn of_sge(sge: Sge) -> Self {
        sge
    }
}

impl Segment for KeyedSeg {
    const NONE: Self = KeyedSeg::new(0, 0, SegmentKey::new(0));

    #[inline(always)]
    fn new(addr: u64, len: u32, _: impl FnOnce() -> u32, key_word: impl FnOnce() -> u64) -> Self {
        KeyedSeg::new(addr, len, SegmentKey::from_word(key_word()))
    }

    #[inline(always)]
    fn of_sge(Sge { addr, len, lkey }: Sge) -> Self {
        DataSeg::new(addr, len, lkey).into()
    }
}

/// What a fast post to an SRQ has done.
pub enum Fast {
    /// The buffer is posted.
    Posted,
    /// Nothing: the slow function posts, or says why it does not.
    Nothing,
    /// Nothing: the device library has refused the buffer, which had passed all checks.
    Refused(PostError),
}

/// What fast functions do with an SRQ.
pub(crate) trait PostSrq {
    type Segment: Segment;

    /// Posts the segments that `encode` makes of `iov`, unless it refuses one. There are one or
    /// more, and no more than the SRQ takes. They are of no pool.
    fn push_fast(
        &mut self,
        iov: &[LmrTriplet],
        encode: impl FnMut(&LmrTriplet) -> Option<Self::Segment>,
        cookie: u64,
    ) -> Fast;
}

/// What fast functions and chains do with a send queue.
pub(crate) trait PostSends {
    type Segment: Segment;
    /// Requests that borrow the bytes which they copy (`'b`).
    type Chain<'a, 'b>: Chain<'b, Segment = Self::Segment>;

    /// Posts a Send, RDMA Write or RDMA Read to a connected QP, with SIGNALLED and SOLICITED at
    /// most. No segment is empty. Returns false without posting if the slow function has to post.
    fn push_fast<const N: usize>(
        &mut self,
        request: Request,
        op: SendOp<'static>,
        segments: [Self::Segment; N],
        flags: SendFlags,
    ) -> bool;

    /// As [`PostSends::push_fast`], also where several queues share the register.
    fn push_any<const N: usize>(
        &mut self,
        request: Request,
        op: SendOp<'static>,
        segments: [Self::Segment; N],
        flags: SendFlags,
    ) -> bool;

    /// As [`PostSends::push_fast`], for a Send of these bytes, which the device gets with the
    /// request. `ANY`: as [`PostSends::push_any`].
    fn copy_fast<const ANY: bool>(&mut self, request: Request, bytes: &[u8], flags: SendFlags) -> bool;

    /// As [`PostSends::copy_fast`], for 16 bytes or more, which the queue was made for.
    fn copy_long_fast(&mut self, request: Request, bytes: &[u8], flags: SendFlags) -> bool;

    /// As [`PostSends::copy_fast`], for any bytes that the queue was made for, also where the queue has
    /// to look for room first or several queues share the register. Returns false without posting if
    /// the queue is full.
    fn copy_any(&mut self, request: Request, bytes: &[u8], flags: SendFlags) -> bool;

    /// As [`SendQueue::complete`], if `accept` makes something of the request. Returns that, and the
    /// number of requests released; otherwise `None`, and nothing has changed.
    fn complete_if<E>(&mut self, named: u64, accept: impl FnOnce(&Request) -> Option<E>) -> Option<(E, u32)>;

    /// Hands the requests that `add` adds to the device, with one doorbell. An error of `add` takes
    /// them back.
    ///
    /// # Errors
    /// Those of `add`. The inner error is the number of a request that the device library has
    /// refused; those before it are posted.
    fn chain<'b, E>(
        &mut self,
        add: impl FnOnce(&mut Self::Chain<'_, 'b>) -> Result<(), E>,
    ) -> Result<Result<(), (usize, Refusal)>, E>;
}

/// Requests that one doorbell hands to the device.
pub(crate) trait Chain<'b> {
    type Segment: Segment;

    /// As [`PostSends::push_fast`], also if the queue has to look for room first.
    fn add_fast(
        &mut self,
        request: impl Fn() -> Request,
        op: SendOp<'static>,
        segment: Self::Segment,
        flags: SendFlags,
    ) -> bool;

    /// As [`Chain::add_fast`], for a Send of these bytes, which the device gets with the request.
    /// The queue was made for so many.
    fn copy_fast(
        &mut self,
        request: impl Fn() -> Request,
        op: SendOp<'static>,
        bytes: &'b [u8],
        flags: SendFlags,
    ) -> bool;

    /// Adds a request that is neither a datagram nor about a window.
    ///
    /// # Errors
    /// The queue does not take it.
    fn add(&mut self, request: &Outgoing<'_>) -> Result<(), Refusal>;

    /// Adds a Send or an RDMA Write of these bytes, which the device gets with the request. There
    /// are no more than the queue was made for.
    ///
    /// # Errors
    /// The queue does not take it.
    fn copy(
        &mut self,
        request: Request,
        op: SendOp<'static>,
        bytes: &'b [u8],
        flags: SendFlags,
    ) -> Result<(), Refusal>;
}

/// What fast functions do with a receive queue.
pub(crate) trait PostReceives {
    type Segment: Segment;

    /// Posts a receive. No segment is empty. Returns false without posting if the slow function has
    /// to post.
    fn push_fast<const N: usize>(&mut self, segments: [Self::Segment; N]) -> bool;
}
