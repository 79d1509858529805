//! Send buffers.

use super::{Arena, Buffer, BufferState, Buffers};
use crate::error::PostError;
use crate::types::{CompletionFlags, MAX_IOV, MemPriv};
use crate::{DtoCompletion, Ep, Ia, Pz, Result, Subtype};
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
/// if let EventData::Dto(dto) = requests.wait(None, 1)?.event.data {
///     assert!(pool.completed(&dto));
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
    /// # Errors
    /// The error returns the buffer. As [`Ep::post_send`]; [`PostError::Flags`] for SUPPRESS,
    /// because only its completion returns a buffer; [`PostError::OutOfBounds`] if `len` exceeds
    /// the size, or if the buffer belongs to another pool.
    pub fn send(
        &mut self,
        ep: &mut Ep,
        buf: SendBuf,
        len: usize,
        flags: CompletionFlags,
    ) -> Result<(), (SendBuf, PostError)> {
        self.send_pieces(ep, buf, std::slice::from_ref(&(0..len)), flags)
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
        let index = buf.buffer.index;
        let Some(cookie) = self.buffers.mark_posted(index) else {
            return Err((buf, PostError::Full(Subtype::ResourceMemory)));
        };
        // Done before the post: if the post panics, no guard has the buffer.
        let index = buf.buffer.into_index();
        let pieces = pieces.iter().map(|piece| self.arena.bytes(index, piece.start, piece.len()));
        let posted = ep.inner.post_send_pool(&self.arena.registered, pieces, self.arena.info(cookie), flags);
        posted.map_err(|error| {
            self.buffers.unpost(index, BufferState::Out);
            (SendBuf { buffer: self.arena.buffer(index, self.arena.size) }, error)
        })
    }

    /// Frees the buffer of a completed send. Returns false for a completion that does not belong to
    /// this pool.
    pub fn completed(&mut self, dto: &DtoCompletion) -> bool {
        if dto.pool != self.arena.number {
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
