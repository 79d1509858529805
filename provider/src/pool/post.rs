//! Requests from and into the memory of a pool.

use super::{Buffer, BufferState, Pool};
use crate::ep::{Links, PoolBytes, PoolSend};
use crate::error::PostError;
use crate::types::{CompletionFlags, MAX_IOV};
use crate::{ChainError, ChainRequest, Ep, Op, Refused, Request, Subtype};
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut, Range};
use std::slice;
use std::sync::Arc;

/// A pool whose buffers requests can use.
pub trait BufferPool: sealed::Inside {}

impl<P: sealed::Inside> BufferPool for P {}

pub(super) mod sealed {
    use super::{Pool, SendBuf};

    /// Where the accounts of a buffer are. A buffer of another pool is refused later.
    pub trait Inside {
        #[expect(private_interfaces, reason = "only pools have buffers")]
        fn inside(&mut self, buf: &SendBuf) -> &mut Pool;
    }
}

/// A buffer to fill and send. Dropping an unsent `SendBuf` returns its buffer to the pool.
#[derive(Debug)]
pub struct SendBuf {
    pub(super) buffer: Buffer,
}

/// The first bytes of a buffer, as the local memory of a [`Request`].
#[derive(Debug)]
pub struct PoolBuf {
    pub(super) buf: SendBuf,
    pub(super) len: usize,
}

impl<O, P> Request<PoolBuf, O, P> {
    /// Uses the first `len` bytes of the buffer. The default is all, or all of a message.
    #[inline(always)]
    pub fn len(mut self, len: usize) -> Self {
        self.local.len = len;
        self
    }
}

impl<O: Op, P: BufferPool> Request<PoolBuf, O, &mut P> {
    /// Posts the request to this EP, which owns the buffer until the completion.
    ///
    /// On the direct path, up to 44 bytes of a Send go to the device with the request, so that it
    /// reads no memory for them.
    ///
    /// # Errors
    /// The error returns the buffer. As for other local memory; [`PostError::Flags`] for SUPPRESS,
    /// because only its completion returns a buffer; [`PostError::OutOfBounds`] if the length
    /// exceeds the size, or if the buffer belongs to another pool.
    #[inline(always)]
    pub fn post(self, ep: &mut Ep) -> Result<(), Refused<SendBuf, PostError>> {
        let Self { ep: pool, local: PoolBuf { buf, len }, op, flags, .. } = self;
        let pool = pool.inside(&buf);
        let (buffer, cookie) = start(pool, buf, slice::from_ref(&(0..len)), flags)?;
        let arena = &pool.arena;
        // The device may write to the buffer of any other operation.
        let copy = if O::COPIES { buffer.bytes().get(..len) } else { None };
        let bytes = PoolBytes { memory: &arena.registered, at: arena.bytes(buffer.index, 0, len), copy };
        let posted = op.post_pool(ep, bytes, arena.info(cookie), flags);
        finish(pool, buffer, posted)
    }

    /// Posts these requests to the EP, and this one behind them, with one doorbell: for example an
    /// RDMA Write of the data, and then the status. See [`Ep::chain`].
    ///
    /// ```no_run
    /// # use doorbell::*;
    /// # fn answer(pool: &mut SendPool, ep: &mut Ep, data: &[LmrTriplet], client: RmrTriplet)
    /// #     -> std::result::Result<(), Box<dyn std::error::Error>> {
    /// let mut status = pool.take().ok_or("all buffers are under way")?;
    /// status[0] = 0;
    /// let write = Request::write(data).to(client).cookie(7).suppress().into();
    /// pool.send(status).len(1).post_after(ep, &[write])?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The error returns the buffer. As [`Ep::chain`], and as [`Request::post`] for the last
    /// request, whose number is that of `requests.len()`.
    pub fn post_after(
        self,
        ep: &mut Ep,
        requests: &[ChainRequest<'_>],
    ) -> Result<(), Refused<SendBuf, ChainError>> {
        self.post_between(ep, requests, &[]).map_err(|Refused { object, error }| {
            let object = object.expect("a refused chain has not posted its last request");
            Refused { object, error }
        })
    }

    /// As [`Request::post_after`], with more requests behind this one: for example the data from a
    /// pool, and then the status.
    ///
    /// ```no_run
    /// # use doorbell::*;
    /// # fn answer(pool: &mut SendPool, ep: &mut Ep, data: SendBuf, status: [u8; 16], client: RmrTriplet)
    /// #     -> std::result::Result<(), Box<dyn std::error::Error>> {
    /// let status = Request::send_inline(&status).cookie(8).into();
    /// pool.write(data).to(client).post_between(ep, &[], &[status])?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The error returns the buffer; `None` if the EP has it although a request of `after` was
    /// refused, by a device driven by standard verbs (see [`Ep::chain`]). As [`Request::post_after`].
    pub fn post_between(
        self,
        ep: &mut Ep,
        before: &[ChainRequest<'_>],
        after: &[ChainRequest<'_>],
    ) -> Result<(), Refused<Option<SendBuf>, ChainError>> {
        let Self { ep: pool, local: PoolBuf { buf, len }, op, flags, .. } = self;
        let pool = pool.inside(&buf);
        let (buffer, cookie) =
            start(pool, buf, slice::from_ref(&(0..len)), flags).map_err(|Refused { object, error }| {
                Refused { object: Some(object), error: ChainError { request: before.len(), error } }
            })?;
        let arena = &pool.arena;
        let (memory, bytes) = (&arena.registered, arena.bytes(buffer.index, 0, len));
        let send = PoolSend { kind: op.kind(), memory, bytes, info: arena.info(cookie), flags };
        match ep.inner.chain::<true>(Links { before, pool: Some(&send), after }) {
            Err(stopped) if stopped.posted > before.len() => {
                pool.keep(buffer);
                Err(Refused { object: None, error: stopped.error })
            }
            posted => finish(pool, buffer, posted.map_err(|stopped| stopped.error))
                .map_err(|Refused { object, error }| Refused { object: Some(object), error }),
        }
    }
}

/// Checks a request of these pieces and marks the buffer as posted. Returns the buffer and its
/// cookie. If the post panics, nobody has the buffer: it is not dropped.
#[inline(always)]
pub(super) fn start(
    pool: &mut Pool,
    buf: SendBuf,
    pieces: &[Range<usize>],
    flags: CompletionFlags,
) -> Result<(ManuallyDrop<Buffer>, u64), Refused<SendBuf, PostError>> {
    let refuse = |object, error| Err(Refused { object, error });
    if flags.contains(CompletionFlags::SUPPRESS) {
        return refuse(buf, PostError::Flags);
    }
    if pieces.len() > MAX_IOV {
        let given = u32::try_from(pieces.len()).unwrap_or(u32::MAX);
        return refuse(buf, PostError::TooManySegments { given, most: MAX_IOV as u32 });
    }
    if !Arc::ptr_eq(&buf.buffer.arena, &pool.arena) {
        return refuse(buf, PostError::OutOfBounds(0));
    }
    let too_long = |piece: &Range<usize>| piece.start > piece.end || piece.end > pool.arena.size;
    if let Some(i) = pieces.iter().position(too_long) {
        return refuse(buf, PostError::OutOfBounds(i as u32));
    }
    match pool.buffers.mark(buf.buffer.index) {
        Some(cookie) => Ok((ManuallyDrop::new(buf.buffer), cookie)),
        None => refuse(buf, PostError::Full(Subtype::ResourceMemory)),
    }
}

/// Ends what [`start`] began: the EP has the buffer, or the error returns it.
#[inline(always)]
pub(super) fn finish<E: std::error::Error + 'static>(
    pool: &mut Pool,
    buffer: ManuallyDrop<Buffer>,
    posted: Result<(), E>,
) -> Result<(), Refused<SendBuf, E>> {
    match posted {
        Ok(()) => {
            pool.keep(buffer);
            Ok(())
        }
        Err(error) => {
            pool.buffers.take_back(buffer.index, BufferState::Out);
            Err(Refused { object: SendBuf { buffer: ManuallyDrop::into_inner(buffer) }, error })
        }
    }
}

impl Deref for SendBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.buffer.bytes()
    }
}

impl DerefMut for SendBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.buffer.bytes_mut()
    }
}
