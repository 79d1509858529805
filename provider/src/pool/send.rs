//! Send buffers.

use super::{Arena, Buffer, BufferState, Buffers};
use crate::datapath::with_path;
use crate::ep::PoolSend;
use crate::error::PostError;
use crate::event_data::Owner;
use crate::types::{CompletionFlags, MAX_IOV, MemPriv};
use crate::{ChainError, ChainRequest, DtoCompletion, Ep, Ia, Pz, Result, Subtype};
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut, Range};
use std::sync::Arc;

/// Send buffers. The consumer fills a buffer; the EP owns the buffer from the post until the
/// completion.
///
/// ```no_run
/// # use doorbell::*;
/// # fn greet(pool: &mut SendPool, ep: &mut Ep, requests: &Evd) -> std::result::Result<(), Box<dyn std::error::Error>> {
/// let mut buf = pool.take().ok_or("all buffers are under way")?;
/// buf[..5].copy_from_slice(b"hello");
/// pool.send(ep, buf, 5, CompletionFlags::empty()).map_err(|(_, e)| e)?;
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

/// A buffer to fill and send. Dropping an unsent `SendBuf` returns its buffer to the pool.
#[derive(Debug)]
pub struct SendBuf {
    buffer: Buffer,
}

impl SendPool {
    /// A pool of `buffers` buffers of `size` bytes.
    ///
    /// # Errors
    /// As [`RecvPool::new`](super::RecvPool::new).
    pub fn new(ia: &Ia, pz: &Pz, buffers: u32, size: usize) -> Result<Self> {
        Ok(Self {
            arena: Arena::new(ia, pz, buffers, size, MemPriv::LOCAL_READ)?,
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

    /// Sends the first `len` bytes.
    ///
    /// On the direct path, up to 44 bytes go to the device with the request, so that it reads no
    /// memory for them. The buffer nevertheless belongs to the EP until the completion.
    ///
    /// # Errors
    /// The error returns the buffer. As [`Request::post`](crate::Request::post); [`PostError::Flags`] for SUPPRESS,
    /// because only its completion returns a buffer; [`PostError::OutOfBounds`] if `len` exceeds
    /// the size, or if the buffer belongs to another pool.
    pub fn send(
        &mut self,
        ep: &mut Ep,
        buf: SendBuf,
        len: usize,
        flags: CompletionFlags,
    ) -> Result<(), (SendBuf, PostError)> {
        let (buffer, cookie) = self.start(buf, std::slice::from_ref(&(0..len)), flags)?;
        let (memory, info) = (&self.arena.registered, self.arena.info(cookie));
        let (bytes, copy) = (self.arena.bytes(buffer.index, 0, len), buffer.bytes().get(..len));
        let mut requests = ep.inner.pair.requests.lock();
        let path = requests.queue.path();
        if with_path!(path, P => requests.push_pool::<P>(memory, bytes, copy, &info, flags)) {
            drop(requests);
            return self.finish(buffer, Ok(()));
        }
        drop(requests);
        let posted = ep.inner.send_pool_slow(memory, std::iter::once(bytes), info, flags);
        self.finish(buffer, posted)
    }

    /// Sends a message gathered from these pieces of the buffer, in this order, one segment per
    /// piece.
    ///
    /// # Errors
    /// As [`SendPool::send`]; [`PostError::TooManySegments`] over 32 or the EP's limit.
    pub fn send_pieces(
        &mut self,
        ep: &mut Ep,
        buf: SendBuf,
        pieces: &[Range<usize>],
        flags: CompletionFlags,
    ) -> Result<(), (SendBuf, PostError)> {
        let (buffer, cookie) = self.start(buf, pieces, flags)?;
        let pieces = pieces.iter().map(|piece| self.arena.bytes(buffer.index, piece.start, piece.len()));
        let posted = ep.inner.send_pool_slow(&self.arena.registered, pieces, self.arena.info(cookie), flags);
        self.finish(buffer, posted)
    }

    /// Posts these requests to the EP, and the Send of the first `len` bytes behind them, with one
    /// doorbell: for example an RDMA Write of the data, and then the status. See [`Ep::chain`].
    ///
    /// ```no_run
    /// # use doorbell::*;
    /// # fn answer(pool: &mut SendPool, ep: &mut Ep, data: &[LmrTriplet], client: RmrTriplet)
    /// #     -> std::result::Result<(), Box<dyn std::error::Error>> {
    /// let mut status = pool.take().ok_or("all buffers are under way")?;
    /// status[0] = 0;
    /// let write = Request::write(data).to(client).cookie(7).suppress().into();
    /// pool.send_after(ep, &[write], status, 1, CompletionFlags::empty()).map_err(|(_, e)| e)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The error returns the buffer. As [`Ep::chain`], and as [`SendPool::send`] for the last
    /// request, whose number is that of `requests.len()`.
    pub fn send_after(
        &mut self,
        ep: &mut Ep,
        requests: &[ChainRequest<'_>],
        buf: SendBuf,
        len: usize,
        flags: CompletionFlags,
    ) -> Result<(), (SendBuf, ChainError)> {
        let (buffer, cookie) = self
            .start(buf, std::slice::from_ref(&(0..len)), flags)
            .map_err(|(buf, error)| (buf, ChainError { request: requests.len(), error }))?;
        let (memory, info) = (&self.arena.registered, self.arena.info(cookie));
        let send = PoolSend { memory, bytes: self.arena.bytes(buffer.index, 0, len), info, flags };
        let posted = ep.inner.chain(requests, Some(&send));
        self.finish(buffer, posted)
    }

    /// Checks a Send of these pieces and marks the buffer as posted. Returns the buffer and its
    /// cookie. If the post panics, nobody has the buffer: it is not dropped.
    fn start(
        &mut self,
        buf: SendBuf,
        pieces: &[Range<usize>],
        flags: CompletionFlags,
    ) -> Result<(ManuallyDrop<Buffer>, u64), (SendBuf, PostError)> {
        if flags.contains(CompletionFlags::SUPPRESS) {
            return Err((buf, PostError::Flags));
        }
        if pieces.len() > MAX_IOV {
            let given = u32::try_from(pieces.len()).unwrap_or(u32::MAX);
            return Err((buf, PostError::TooManySegments { given, most: MAX_IOV as u32 }));
        }
        if !Arc::ptr_eq(&buf.buffer.arena, &self.arena) {
            return Err((buf, PostError::OutOfBounds(0)));
        }
        let too_long = |piece: &Range<usize>| piece.start > piece.end || piece.end > self.arena.size;
        if let Some(i) = pieces.iter().position(too_long) {
            return Err((buf, PostError::OutOfBounds(i as u32)));
        }
        match self.buffers.mark(buf.buffer.index) {
            Some(cookie) => Ok((ManuallyDrop::new(buf.buffer), cookie)),
            None => Err((buf, PostError::Full(Subtype::ResourceMemory))),
        }
    }

    /// Ends what [`SendPool::start`] began: the EP has the buffer, or the error returns it.
    fn finish<E>(&mut self, buffer: ManuallyDrop<Buffer>, posted: Result<(), E>) -> Result<(), (SendBuf, E)> {
        let buffer = ManuallyDrop::into_inner(buffer);
        match posted {
            Ok(()) => {
                buffer.into_index();
                Ok(())
            }
            Err(error) => {
                self.buffers.take_back(buffer.index, BufferState::Out);
                Err((SendBuf { buffer }, error))
            }
        }
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
