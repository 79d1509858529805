//! Send buffers.

use super::post::sealed::Parts;
use super::post::{PoolBuf, SendBuf, finish, start};
use super::{Arena, Buffers};
use crate::ep::RequestKind;
use crate::error::PostError;
use crate::event_data::Owner;
use crate::types::{CompletionFlags, MemPriv};
use crate::{DtoCompletion, Ep, Ia, Pz, Refused, Request, Result, op};
use std::ops::Range;
use std::sync::Arc;

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
    arena: Arc<Arena>,
    buffers: Buffers,
}

impl Parts for SendPool {
    #[expect(private_interfaces, reason = "only pools have buffers")]
    #[inline(always)]
    fn parts(&mut self) -> (&Arc<Arena>, &mut Buffers) {
        (&self.arena, &mut self.buffers)
    }
}

impl SendPool {
    /// A pool of `buffers` buffers of `size` bytes.
    ///
    /// # Errors
    /// As [`RecvPool::new`](super::RecvPool::new).
    pub fn new(ia: &Ia, pz: &Pz, buffers: u32, size: usize) -> Result<Self> {
        Ok(Self {
            arena: Arena::new(ia, pz, buffers, size, MemPriv::LOCAL_READ | MemPriv::LOCAL_WRITE)?,
            buffers: Buffers::new(buffers)?,
        })
    }

    /// Returns a buffer to fill; its contents are those of its last use. `None` while all buffers
    /// are in use, and in a child of the process that created the pool.
    pub fn take(&mut self) -> Option<SendBuf> {
        self.arena.check_inherited().ok()?;
        self.arena.collect(&mut self.buffers);
        let index = self.buffers.take()?;
        Some(SendBuf { buffer: self.arena.buffer(index, self.arena.size) })
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
        let Self { arena, buffers } = self;
        let (buffer, cookie) = start(arena, buffers, buf, pieces, flags)?;
        let pieces = pieces.iter().map(|piece| arena.bytes(buffer.index, piece.start, piece.len()));
        let info = arena.info(cookie);
        let posted = ep.inner.request_pool_slow(RequestKind::Send, &arena.registered, pieces, info, flags);
        finish(buffers, buffer, posted)
    }

    /// Returns the buffer of a request that has succeeded, with the bytes that an RDMA Read or an
    /// atomic has brought. `None` for a completion that does not belong to this pool; the buffer of
    /// a failed request becomes free.
    pub fn take_done(&mut self, dto: &DtoCompletion) -> Option<SendBuf> {
        if dto.owner != Owner::Pool(self.arena.number) {
            return None;
        }
        let index = self.buffers.complete(dto.cookie)?;
        if !dto.is_success() {
            self.buffers.give_back(index);
            return None;
        }
        Some(SendBuf { buffer: self.arena.buffer(index, self.arena.size) })
    }

    /// Frees the buffer of a completed send. Returns false for a completion that does not belong to
    /// this pool.
    pub fn completed(&mut self, dto: &DtoCompletion) -> bool {
        if dto.owner != Owner::Pool(self.arena.number) {
            return false;
        }
        match self.buffers.complete(dto.cookie) {
            Some(index) => {
                self.buffers.give_back(index);
                true
            }
            None => false,
        }
    }

    /// The number of posted buffers.
    pub fn posted(&self) -> usize {
        self.buffers.posted - self.arena.unseen.len()
    }

    /// The size of one buffer, in bytes.
    pub fn buffer_size(&self) -> usize {
        self.arena.size
    }
}
