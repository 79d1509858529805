//! Send buffers.

use super::Pool;
use super::post::sealed::Inside;
use super::post::{PoolBuf, SendBuf, finish, start};
use crate::ep::RequestKind;
use crate::error::PostError;
use crate::event_data::Owner;
use crate::types::CompletionFlags;
use crate::{DtoCompletion, Ep, Error, Ia, Pz, Refused, Request, Result, Subtype, op};
use std::ops::Range;

/// Send buffers. The consumer fills a buffer; the EP owns the buffer from the post until the
/// completion.
///
/// ```no_run
/// # use doorbell::*;
/// # fn greet(pool: &mut SendPool, ep: &mut Ep, requests: &Evd) -> std::result::Result<(), Box<dyn std::error::Error>> {
/// let mut buf = pool.take().ok_or("all buffers are under way")?;
/// buf[..5].copy_from_slice(b"hello");
/// pool.send(buf).len(5).post(ep)?;
/// if let Event::Done(sent) = requests.wait()? {
///     assert!(pool.completed(&sent));
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct SendPool {
    pool: Pool,
}

impl Inside for SendPool {
    #[expect(private_interfaces, reason = "only pools have buffers")]
    #[inline(always)]
    fn inside(&mut self, _: &SendBuf) -> &mut Pool {
        &mut self.pool
    }
}

impl SendPool {
    /// A pool of `buffers` buffers of `size` bytes.
    ///
    /// # Errors
    /// As [`RecvPool::new`](super::RecvPool::new).
    pub fn new(ia: &Ia, pz: &Pz, buffers: u32, size: usize) -> Result<Self> {
        Ok(Self { pool: Pool::new(ia, pz, buffers, size)? })
    }

    /// Returns a buffer to fill; its contents are those of its last use. `None` while all buffers
    /// are in use, and in a child of the process that created the pool.
    #[inline]
    pub fn take(&mut self) -> Option<SendBuf> {
        let pool = &mut self.pool;
        if pool.arena.is_inherited() {
            return None;
        }
        if pool.buffers.free.is_empty() {
            pool.collect();
        }
        let index = pool.buffers.take()?;
        Some(SendBuf { buffer: pool.lend(index, usize::MAX) })
    }

    /// A message of this buffer: see [`Request::len`] and [`Request::post`].
    #[inline(always)]
    pub fn send(&mut self, buf: SendBuf) -> Request<PoolBuf, op::Send, &mut Self> {
        self.request(buf, op::Send)
    }

    /// An RDMA Write of this buffer: see [`Request::to`].
    #[inline(always)]
    pub fn write(&mut self, buf: SendBuf) -> Request<PoolBuf, op::WriteTo, &mut Self> {
        self.request(buf, op::WriteTo)
    }

    /// An RDMA Read into this buffer: see [`Request::from`]. [`SendPool::take_done`] gives the
    /// buffer back with what was read.
    ///
    /// ```no_run
    /// # use doorbell::*;
    /// # fn fetch(pool: &mut SendPool, ep: &mut Ep, requests: &Evd, table: RmrTriplet) -> std::result::Result<(), Box<dyn std::error::Error>> {
    /// let buf = pool.take().ok_or("all buffers are under way")?;
    /// let record = table.part(0, 64).ok_or("too short")?; // `table` came in a message of the peer
    /// pool.read(buf).from(record).post(ep)?;
    /// if let Event::Done(read) = requests.wait()? {
    ///     let buf = pool.take_done(&read).ok_or("not a request of this pool")?;
    ///     println!("{:?}", &buf[..64]);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[inline(always)]
    pub fn read(&mut self, buf: SendBuf) -> Request<PoolBuf, op::ReadFrom, &mut Self> {
        self.request(buf, op::ReadFrom)
    }

    /// As [`Ep::fetch_add`]. The old value comes into the first 8 bytes of this buffer.
    #[inline(always)]
    pub fn fetch_add(&mut self, buf: SendBuf, add: u64) -> Request<PoolBuf, op::FetchAddAt, &mut Self> {
        self.request(buf, op::FetchAddAt(add)).len(8)
    }

    /// As [`Ep::compare_swap`]. The old value comes into the first 8 bytes of this buffer.
    #[inline(always)]
    pub fn compare_swap(
        &mut self,
        buf: SendBuf,
        compare: u64,
        swap: u64,
    ) -> Request<PoolBuf, op::CompareSwapAt, &mut Self> {
        self.request(buf, op::CompareSwapAt(compare, swap)).len(8)
    }

    #[inline(always)]
    fn request<O>(&mut self, buf: SendBuf, op: O) -> Request<PoolBuf, O, &mut Self> {
        let len = buf.buffer.len;
        Request::new(self, PoolBuf { buf, len }, op)
    }

    /// Sends a message gathered from these pieces of the buffer, in this order, one segment per
    /// piece.
    ///
    /// # Errors
    /// As [`Request::post`]; [`PostError::TooManySegments`] over 32 or the EP's limit.
    pub fn send_pieces(
        &mut self,
        ep: &mut Ep,
        buf: SendBuf,
        pieces: &[Range<usize>],
        flags: CompletionFlags,
    ) -> Result<(), Refused<SendBuf, PostError>> {
        let pool = &mut self.pool;
        let (buffer, cookie) = start(pool, buf, pieces, flags)?;
        let arena = &pool.arena;
        let pieces = pieces.iter().map(|piece| arena.bytes(buffer.index, piece.start, piece.len()));
        let info = arena.info(cookie);
        let posted = ep.inner.request_pool_slow(RequestKind::Send, &arena.registered, pieces, info, flags);
        finish(pool, buffer, posted)
    }

    /// Returns the buffer of a request that has succeeded, with the bytes that an RDMA Read or an
    /// atomic has brought. `None` for a completion that does not belong to this pool; the buffer of
    /// a failed request becomes free.
    pub fn take_done(&mut self, dto: &DtoCompletion) -> Option<SendBuf> {
        let index = self.complete(dto)?;
        if !dto.is_success() {
            self.pool.buffers.give_back(index);
            return None;
        }
        Some(SendBuf { buffer: self.pool.lend(index, usize::MAX) })
    }

    /// Frees the buffer of a completed send. Returns false for a completion that does not belong to
    /// this pool.
    #[inline]
    pub fn completed(&mut self, dto: &DtoCompletion) -> bool {
        let index = self.complete(dto);
        if let Some(index) = index {
            self.pool.buffers.give_back(index);
        }
        index.is_some()
    }

    /// The buffer of this completion, which is out now.
    #[inline(always)]
    fn complete(&mut self, dto: &DtoCompletion) -> Option<u32> {
        if dto.owner != Owner::Pool(self.pool.arena.number) {
            return None;
        }
        self.pool.buffers.complete(dto.cookie)
    }

    /// Frees the pool and its memory, if all buffers are free.
    ///
    /// Dropping a pool ends it in any case, and deregisters its memory unless a buffer is out. A
    /// request that is still under way then fails, and breaks its connection: drop the pool after the
    /// completions of its requests, or after their EPs. (The program takes these completions, so once
    /// the pool is gone nobody could tell when the last request has ended and the memory may be
    /// deregistered.) The memory itself stays mapped until no device uses it.
    ///
    /// # Errors
    /// INVALID_STATE while a buffer is posted or out. The error returns the pool.
    #[expect(clippy::result_large_err, reason = "the error returns the pool")]
    pub fn close(mut self) -> Result<(), Refused<Self>> {
        let posted = self.posted();
        let outcome = match self.pool.check_none_out() {
            Ok(()) if posted > 0 => {
                let text = format!("{posted} buffers are posted: reap their completions, or close their EPs");
                Err(Error::state(Subtype::None, text))
            }
            outcome => outcome,
        };
        outcome.map_err(|error| Refused { object: self, error })
    }

    /// The number of posted buffers.
    pub fn posted(&self) -> usize {
        self.pool.posted()
    }

    /// The size of one buffer, in bytes.
    pub fn buffer_size(&self) -> usize {
        self.pool.arena.size
    }
}
