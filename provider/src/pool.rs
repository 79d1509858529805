//! Pools of fixed-size buffers, for receives ([`RecvPool`]) and sends ([`SendPool`]).
//!
//! A pool owns memory and its registration. Each buffer is in exactly one state: free, posted, or
//! out with the consumer. A slice of a buffer exists only while the buffer is out, so no thread
//! reads or writes a buffer that a device may use:
//!
//! * A completion releases a buffer only if it carries this pool's number and a cookie with the
//!   buffer's current generation. Every post renews the generation. Code outside this crate can
//!   write neither the number nor the generation, and no generation is used twice. An event
//!   therefore cannot give a buffer out twice, even if events are kept or copied.
//! * No LMR context names the memory ([`PoolMemory`]): only the pool can post it.
//! * A buffer counts as posted before the device is told, so that no error or panic in between
//!   leaves a guard for that buffer.
//! * A guard returns its buffer when it is dropped, on any thread, without a lock. The pool posts
//!   the buffer again at its next refill.
//! * A buffer whose completion no consumer sees (the EP was freed, the EVD was full) returns the
//!   same way.
//! * Guards keep the memory mapped, even after the pool and the IA are gone. The registered region
//!   does the same until the device has released it.
//!
//! SOUNDNESS.md has the whole argument.
#![expect(unsafe_code, reason = "slices of registered memory")]

use crate::bounded_queue::BoundedQueue;
use crate::datapath::WrInfo;
use crate::error::PostError;
use crate::lmr::PoolMemory;
use crate::memory::{headroom, list};
use crate::types::{CompletionFlags, MemPriv};
use crate::{DtoCompletion, DtoOp, Ep, EpId, Error, Evd, Event, EventData, Ia, Pz, Result, Srq};
use crate::{SrqParam, Subtype, WaitError};
use rxe_fallback::mr::Mapping;
use std::collections::TryReserveError;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// A queue that a pool can post to: an SRQ, or an EP with a receive queue of its own.
pub trait ReceiveQueue: sealed::Sealed {}

impl ReceiveQueue for Srq {}
impl ReceiveQueue for Ep {}

mod sealed {
    use super::{Ep, PoolMemory, PostError, Srq, WrInfo};

    pub trait Sealed {
        /// Posts these bytes, an offset and a length, of a pool's memory.
        #[expect(private_interfaces, reason = "only pools have memory and make work request contexts")]
        fn post(&mut self, memory: &PoolMemory, bytes: (usize, usize), info: WrInfo)
        -> Result<(), PostError>;
    }

    impl Sealed for Srq {
        #[expect(private_interfaces, reason = "only pools have memory and make work request contexts")]
        fn post(
            &mut self,
            memory: &PoolMemory,
            bytes: (usize, usize),
            info: WrInfo,
        ) -> Result<(), PostError> {
            self.post_pool(memory, bytes, info)
        }
    }

    impl Sealed for Ep {
        #[expect(private_interfaces, reason = "only pools have memory and make work request contexts")]
        fn post(
            &mut self,
            memory: &PoolMemory,
            bytes: (usize, usize),
            info: WrInfo,
        ) -> Result<(), PostError> {
            self.inner.post_recv_pool(memory, bytes, info)
        }
    }
}

/// The state of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BufferState {
    Free,
    Posted,
    Out,
}

/// The states of all buffers. A cookie holds the buffer's index in its low `bits` bits, and the
/// buffer's generation above.
#[derive(Debug)]
struct Buffers {
    slots: Vec<(BufferState, u64)>,
    free: Vec<u32>,
    posted: usize,
    /// The number of bits of a cookie that hold the buffer's index.
    bits: u32,
}

impl Buffers {
    fn new(n: u32) -> Result<Self, TryReserveError> {
        let bits = u32::BITS - (n - 1).leading_zeros();
        let (mut slots, mut free) = (list(n as usize)?, list(n as usize)?);
        slots.resize(n as usize, (BufferState::Free, 0));
        free.extend((0..n).rev());
        Ok(Self { slots, free, posted: 0, bits })
    }

    /// Marks a free buffer as posted and returns the buffer and its cookie.
    fn post(&mut self) -> Option<(u32, u64)> {
        while let Some(slot) = self.free.pop() {
            if let Some(cookie) = self.mark_posted(slot) {
                return Some((slot, cookie));
            }
        }
        None
    }

    /// Marks a buffer as posted. Returns `None` without a change if the generations of the buffer
    /// are used up: at least 2^32 of them, 2^54 in a pool of 1,024 buffers. Such a buffer is never
    /// posted again, so that a kept completion never matches a second time.
    fn mark_posted(&mut self, slot: u32) -> Option<u64> {
        let (place, generation) = &mut self.slots[slot as usize];
        let next = generation.checked_add(1).filter(|next| next.leading_zeros() >= self.bits)?;
        (*place, *generation) = (BufferState::Posted, next);
        self.posted += 1;
        Some(next << self.bits | u64::from(slot))
    }

    /// Undoes a refused post.
    fn unpost(&mut self, slot: u32, to: BufferState) {
        self.posted -= 1;
        self.slots[slot as usize].0 = to;
        if to == BufferState::Free {
            self.free.push(slot);
        }
    }

    /// Marks the buffer of a completion as out. `None` for a cookie that names no posted buffer.
    fn complete(&mut self, cookie: u64) -> Option<u32> {
        let slot = (cookie & ((1 << self.bits) - 1)) as u32;
        let entry = self.slots.get_mut(slot as usize)?;
        if *entry != (BufferState::Posted, cookie >> self.bits) {
            return None;
        }
        entry.0 = BufferState::Out;
        self.posted -= 1;
        Some(slot)
    }

    /// Frees a buffer that a guard has returned.
    fn give_back(&mut self, slot: u32) {
        self.slots[slot as usize].0 = BufferState::Free;
        self.free.push(slot);
    }

    /// Marks a free buffer as out.
    fn take(&mut self) -> Option<u32> {
        let slot = self.free.pop()?;
        self.slots[slot as usize].0 = BufferState::Out;
        Some(slot)
    }
}

/// Cookies of a pool's completions that no consumer has seen.
pub(crate) type ReturnQueue = BoundedQueue;

/// The address of a pool's first byte.
#[derive(Debug)]
struct Base(NonNull<u8>);

// SAFETY: only the arena uses the mapping, and the mapping moves with the arena. Only guards use
// the pointer, each for its own buffer, and each buffer has at most one guard at a time.
unsafe impl Send for Base {}
// SAFETY: as above: `&Base` gives no access to bytes.
unsafe impl Sync for Base {}

/// The memory of a pool, shared with its guards.
#[derive(Debug)]
struct Arena {
    registered: PoolMemory,
    base: Base,
    size: usize,
    returned: BoundedQueue,
    unseen: Arc<ReturnQueue>,
    number: u32,
    /// Keeps the memory mapped for guards; `registered` keeps it for the device.
    _memory: Arc<Mapping>,
}

/// A number that no other pool of this process has had. The numbers are unique because consumers
/// may keep and copy completions, and present them to any pool at any time.
fn new_number() -> Result<u32> {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    let next = |number: u32| (number < crate::event_data::SOURCE).then_some(number + 1);
    NEXT.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).map_err(|_| {
        let text = "this process has made 2^31 pools, which is all it can: start it anew";
        Error::resources(Subtype::ResourceMemoryRegion, text)
    })
}

impl Arena {
    fn new(ia: &Ia, pz: &Pz, buffers: u32, size: usize, privileges: MemPriv) -> Result<Arc<Self>> {
        if buffers == 0 || size == 0 || u32::try_from(size).is_err() {
            return Err(Error::arg(
                3,
                format!("a pool of {buffers} buffers of {size} bytes: 1 or more of 1 to 4 GiB"),
            ));
        }
        headroom()?;
        let out_of_memory = || {
            let text = format!("no memory for {buffers} buffers of {size} bytes");
            Error::resources(Subtype::ResourceMemory, text)
        };
        let len = size.checked_mul(buffers as usize).ok_or_else(out_of_memory)?;
        // Zeroed. The memory stays mapped while it has an owner: the region until it is
        // deregistered, and the arena for the guards.
        let memory = Arc::new(Mapping::new(len, false).map_err(|_| out_of_memory())?);
        let arena = Arc::new(Self {
            registered: PoolMemory::register(ia, pz, &memory, len, privileges)?,
            base: Base(NonNull::new(memory.as_ptr()).ok_or_else(out_of_memory)?),
            size,
            returned: BoundedQueue::new(buffers as usize)?,
            unseen: Arc::new(ReturnQueue::new(buffers as usize)?),
            number: new_number()?,
            _memory: memory,
        });
        ia.device.pools.add(arena.number, &arena.unseen)?;
        Ok(arena)
    }

    /// The offset and the length of part of a buffer, from `offset` on, in the pool's memory.
    fn bytes(&self, slot: u32, offset: usize, len: usize) -> (usize, usize) {
        (slot as usize * self.size + offset, len)
    }

    fn info(&self, cookie: u64) -> WrInfo {
        WrInfo { cookie, pool: self.number, ..WrInfo::default() }
    }

    /// Refuses a pool of the process that this one was forked from.
    fn check_inherited(&self) -> Result<(), PostError> {
        match self.registered.device().is_inherited() {
            true => Err(PostError::Stale(Subtype::InvalidHandleLmr)),
            false => Ok(()),
        }
    }

    fn collect(&self, slots: &mut Buffers) {
        while let Some(slot) = self.returned.pop() {
            slots.give_back(slot as u32);
        }
        while let Some(cookie) = self.unseen.pop() {
            if let Some(slot) = slots.complete(cookie) {
                slots.give_back(slot);
            }
        }
    }

    fn buffer(self: &Arc<Self>, slot: u32, len: usize) -> Buffer {
        Buffer { arena: self.clone(), slot, len: len.min(self.size) }
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        let device = self.registered.device();
        if !device.is_inherited() {
            device.pools.remove(self.number);
        }
    }
}

/// A buffer that is out with the consumer. Its bytes can be accessed only through this value.
#[derive(Debug)]
struct Buffer {
    arena: Arc<Arena>,
    slot: u32,
    len: usize,
}

impl Buffer {
    fn start(&self) -> *mut u8 {
        // SAFETY: slots are below the pool's buffer count, and the mapping has `size` bytes for
        // each slot.
        unsafe { self.arena.base.0.as_ptr().add(self.slot as usize * self.arena.size) }
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: in bounds because `len` is at most `size`; mapped because the arena holds the
        // mapping; zeroed at first. Not written meanwhile because the slot is out: no other guard
        // exists for the slot, no queue of a device has held the buffer since its completion came,
        // and only the pool can post it.
        unsafe { std::slice::from_raw_parts(self.start(), self.len) }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`, and exclusive through `&mut self`.
        unsafe { std::slice::from_raw_parts_mut(self.start(), self.len) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // The queue has room for every buffer, so this never fails.
        let _ = self.arena.returned.push(self.slot.into());
    }
}

/// Receive buffers for an SRQ, or for an EP with a receive queue of its own.
///
/// ```no_run
/// # use doorbell::*;
/// # fn serve(ia: &Ia, pz: &Pz, evd: &Evd) -> std::result::Result<(), Box<dyn std::error::Error>> {
/// let mut srq = Srq::create(ia, pz, SrqAttr::depth(256))?;
/// let mut pool = RecvPool::new(ia, pz, 256, 4096)?;
/// pool.refill(&mut srq)?;
/// // ... EPs on this SRQ connect ...
/// loop {
///     match pool.next(&mut srq, evd, None)? {
///         Received::Message(message) => println!("{} bytes from {:?}", message.len(), message.ep()),
///         Received::Failed(dto) => println!("{:?} on {:?}", dto.status, dto.ep),
///         Received::Other(event) => println!("{event:?}"),
///     }
/// }
/// # }
/// ```
#[derive(Debug)]
pub struct RecvPool {
    arena: Arc<Arena>,
    slots: Buffers,
    batch: usize,
}

/// A received message: exactly its bytes. Dropping a `RecvBuf` returns its buffer to the pool.
#[derive(Debug)]
pub struct RecvBuf {
    buffer: Buffer,
    dto: DtoCompletion,
}

/// The result of [`RecvPool::next`].
#[derive(Debug)]
pub enum Received {
    /// A message in a buffer of this pool.
    Message(RecvBuf),
    /// A receive of this pool failed or was flushed; its buffer is free again.
    Failed(DtoCompletion),
    /// An event that does not belong to this pool.
    Other(Event),
}

/// The number of a pool's buffers in each state, and the counts of its SRQ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gauges {
    /// Posted by this pool and not yet seen as completed.
    pub posted: usize,
    /// Out with the consumer.
    pub out: usize,
    /// Free, to be posted at the next refill.
    pub free: usize,
    /// Buffers that an EP could take now: all available buffers of the SRQ, including those of
    /// other pools.
    pub available: usize,
    /// Messages that have arrived and are not reaped.
    pub unreaped: usize,
}

impl RecvPool {
    /// Creates a pool of `buffers` free buffers of `size` bytes. [`RecvPool::refill`] posts them.
    ///
    /// # Errors
    /// INVALID_PARAMETER for no buffers, or a size of 0 or over 4 GiB; otherwise as
    /// [`Lmr::create`](crate::Lmr::create).
    pub fn new(ia: &Ia, pz: &Pz, buffers: u32, size: usize) -> Result<Self> {
        let arena = Arena::new(ia, pz, buffers, size, MemPriv::LOCAL_WRITE)?;
        Ok(Self { arena, slots: Buffers::new(buffers)?, batch: (buffers as usize / 4).clamp(1, 64) })
    }

    /// Posts every free or returned buffer for which the queue has room. Returns the number of
    /// buffers posted.
    ///
    /// # Errors
    /// The error of the post, except for a full queue. Buffers that were not posted stay free.
    pub fn refill<Q: ReceiveQueue>(&mut self, queue: &mut Q) -> Result<usize, PostError> {
        self.arena.check_inherited()?;
        self.arena.collect(&mut self.slots);
        let mut n = 0;
        while let Some((slot, cookie)) = self.slots.post() {
            let bytes = self.arena.bytes(slot, 0, self.arena.size);
            match queue.post(&self.arena.registered, bytes, self.arena.info(cookie)) {
                Ok(()) => n += 1,
                Err(error) => {
                    self.slots.unpost(slot, BufferState::Free);
                    if matches!(error, PostError::Full(_)) {
                        break;
                    }
                    return Err(error);
                }
            }
        }
        Ok(n)
    }

    /// Returns the buffer of a successful receive that this pool posted; `None` for any other
    /// completion. The buffer of a failed receive becomes free.
    pub fn take(&mut self, dto: &DtoCompletion) -> Option<RecvBuf> {
        match self.sort(dto)? {
            Received::Message(message) => Some(message),
            _ => None,
        }
    }

    fn sort(&mut self, dto: &DtoCompletion) -> Option<Received> {
        if dto.pool != self.arena.number {
            return None;
        }
        let slot = self.slots.complete(dto.cookie)?;
        if !dto.is_success() {
            self.slots.give_back(slot);
            return Some(Received::Failed(*dto));
        }
        // A write with immediate consumes a buffer and does not write to its bytes.
        let len = if dto.op == DtoOp::ReceiveRdmaWriteImmediate { 0 } else { dto.length as usize };
        Some(Received::Message(RecvBuf { buffer: self.arena.buffer(slot, len), dto: *dto }))
    }

    /// Refills when a batch of buffers has returned or few are posted, then waits for the next
    /// event of `evd`.
    ///
    /// # Errors
    /// As [`Evd::wait`]; a refill that the device refused.
    pub fn next<Q: ReceiveQueue>(
        &mut self,
        queue: &mut Q,
        evd: &Evd,
        timeout: Option<Duration>,
    ) -> Result<Received, WaitError> {
        if self.free(self.arena.unseen.len()) >= self.batch || self.posted() < self.batch {
            self.refill(queue).map_err(|e| WaitError { error: e.into(), more: 0 })?;
        }
        let event = match evd.dequeue() {
            Ok(event) => event,
            Err(_) => evd.wait(timeout, 1)?.event,
        };
        if let EventData::Dto(dto) = &event.data
            && let Some(received) = self.sort(dto)
        {
            return Ok(received);
        }
        Ok(Received::Other(event))
    }

    /// Returns the number of buffers in each state.
    ///
    /// # Errors
    /// As [`Srq::query`].
    pub fn gauges(&self, srq: &Srq) -> Result<Gauges> {
        let SrqParam { available, outstanding, .. } = srq.query()?;
        // Read once: more buffers may return meanwhile.
        let unseen = self.arena.unseen.len();
        let posted = self.slots.posted - unseen;
        let free = self.free(unseen);
        Ok(Gauges {
            posted,
            out: self.slots.slots.len() - posted - free,
            free,
            available: available as usize,
            unreaped: (outstanding - available) as usize,
        })
    }

    /// The number of buffers that this pool has posted and not yet seen as completed.
    pub fn posted(&self) -> usize {
        self.slots.posted - self.arena.unseen.len()
    }

    /// The number of buffers that the next refill can post. `unseen` buffers have returned unseen.
    fn free(&self, unseen: usize) -> usize {
        self.slots.free.len() + self.arena.returned.len() + unseen
    }

    /// The size of one buffer, in bytes.
    pub fn buffer_size(&self) -> usize {
        self.arena.size
    }
}

impl RecvBuf {
    /// The EP that received the message.
    pub fn ep(&self) -> EpId {
        self.dto.ep
    }

    /// The completion of the receive.
    pub fn completion(&self) -> &DtoCompletion {
        &self.dto
    }
}

impl Deref for RecvBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.buffer.bytes()
    }
}

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
    slots: Buffers,
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
    /// As [`RecvPool::new`].
    pub fn new(ia: &Ia, pz: &Pz, buffers: u32, size: usize) -> Result<Self> {
        Ok(Self {
            arena: Arena::new(ia, pz, buffers, size, MemPriv::LOCAL_READ)?,
            slots: Buffers::new(buffers)?,
        })
    }

    /// Returns a buffer to fill; its contents are those of its last use. `None` while all buffers
    /// are in use, and in a child of the process that created the pool.
    pub fn take(&mut self) -> Option<SendBuf> {
        self.arena.check_inherited().ok()?;
        self.arena.collect(&mut self.slots);
        let slot = self.slots.take()?;
        Some(SendBuf { buffer: self.arena.buffer(slot, self.arena.size) })
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
        const MOST: usize = crate::types::MAX_IOV;
        if flags.contains(CompletionFlags::SUPPRESS) {
            return Err((buf, PostError::Flags));
        }
        if pieces.len() > MOST {
            let given = u32::try_from(pieces.len()).unwrap_or(u32::MAX);
            return Err((buf, PostError::TooManySegments { given, most: MOST as u32 }));
        }
        if !Arc::ptr_eq(&buf.buffer.arena, &self.arena) {
            return Err((buf, PostError::OutOfBounds(0)));
        }
        let too_long = |piece: &Range<usize>| piece.start > piece.end || piece.end > self.arena.size;
        if let Some(i) = pieces.iter().position(too_long) {
            return Err((buf, PostError::OutOfBounds(i as u32)));
        }
        let slot = buf.buffer.slot;
        let Some(cookie) = self.slots.mark_posted(slot) else {
            return Err((buf, PostError::Full(Subtype::ResourceMemory)));
        };
        // Done before the post: if the post panics, no guard has the buffer.
        let slot = buf.into_slot();
        let pieces = pieces.iter().map(|piece| self.arena.bytes(slot, piece.start, piece.len()));
        let posted = ep.inner.post_send_pool(&self.arena.registered, pieces, self.arena.info(cookie), flags);
        posted.map_err(|error| {
            self.slots.unpost(slot, BufferState::Out);
            (SendBuf { buffer: self.arena.buffer(slot, self.arena.size) }, error)
        })
    }

    /// Frees the buffer of a completed send. Returns false for a completion that does not belong to
    /// this pool.
    pub fn completed(&mut self, dto: &DtoCompletion) -> bool {
        if dto.pool != self.arena.number {
            return false;
        }
        match self.slots.complete(dto.cookie) {
            Some(slot) => {
                self.slots.give_back(slot);
                true
            }
            None => false,
        }
    }

    /// The number of posted buffers.
    pub fn posted(&self) -> usize {
        self.slots.posted - self.arena.unseen.len()
    }

    /// The size of one buffer, in bytes.
    pub fn buffer_size(&self) -> usize {
        self.arena.size
    }
}

impl SendBuf {
    /// Ends the guard without returning the buffer, which has a new owner.
    fn into_slot(self) -> u32 {
        let buffer = ManuallyDrop::new(self.buffer);
        // SAFETY: read once, and `buffer` is never dropped. The arena's reference count is
        // therefore right, and `returned` gets nothing.
        drop(unsafe { std::ptr::read(&raw const buffer.arena) });
        buffer.slot
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_buffer_whose_generations_are_used_up_is_never_posted_again() {
        for n in [1, 2, 3, 1024, 1025] {
            let mut slots = Buffers::new(n).unwrap();
            let last = u64::MAX >> slots.bits;
            slots.slots[0].1 = last - 1;
            let (slot, cookie) = slots.post().unwrap();
            assert_eq!((slot, cookie >> slots.bits), (0, last));
            assert_eq!(slots.complete(cookie), Some(0));
            slots.give_back(0);
            // The other buffers are unaffected.
            let others: Vec<_> = std::iter::from_fn(|| slots.post()).map(|(slot, _)| slot).collect();
            assert_eq!(others, (1..n).collect::<Vec<_>>());
            assert_eq!(slots.complete(cookie), None);
        }
    }

    #[test]
    fn no_two_pools_have_the_same_number() {
        let numbers: std::collections::HashSet<_> = (0..100).map(|_| new_number().unwrap()).collect();
        assert_eq!(numbers.len(), 100);
        assert!(numbers.iter().all(|&number| number != 0 && number < crate::event_data::SOURCE));
    }

    #[test]
    fn an_old_cookie_gives_no_buffer_out() {
        let mut slots = Buffers::new(1).unwrap();
        let (slot, first) = slots.post().unwrap();
        assert_eq!(slots.complete(first), Some(slot));
        assert_eq!(slots.complete(first), None);
        slots.give_back(slot);
        let (_, second) = slots.post().unwrap();
        assert_eq!(slots.complete(first), None);
        assert_eq!(slots.complete(second), Some(slot));
    }

    proptest! {
        /// Whatever cookies arrive, no buffer is out twice or out and posted, and none is lost.
        #[test]
        fn every_buffer_is_in_one_place(steps in proptest::collection::vec((0u8..4, 0usize..64), 1..300)) {
            let mut slots = Buffers::new(8).unwrap();
            let mut seen = Vec::new();
            let mut out = Vec::new();
            for (what, pick) in steps {
                match what {
                    0 => if let Some((slot, cookie)) = slots.post() {
                        prop_assert!(!out.contains(&slot));
                        seen.push(cookie);
                    },
                    1 if !seen.is_empty() => if let Some(slot) = slots.complete(seen[pick % seen.len()]) {
                        prop_assert!(!out.contains(&slot));
                        out.push(slot);
                    },
                    2 if !out.is_empty() => slots.give_back(out.swap_remove(pick % out.len())),
                    3 => if let Some(slot) = slots.take() {
                        prop_assert!(!out.contains(&slot));
                        out.push(slot);
                    },
                    _ => {}
                }
                prop_assert_eq!(slots.posted + slots.free.len() + out.len(), 8);
            }
        }
    }
}
