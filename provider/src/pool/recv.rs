//! Receive buffers.

use super::post::sealed::Parts;
use super::post::{PoolBuf, SendBuf};
use super::{Arena, Buffer, BufferState, Buffers};
use crate::datapath::{WrInfo, with_path};
use crate::error::PostError;
use crate::event_data::Owner;
use crate::lmr::PoolMemory;
use crate::types::MemPriv;
use crate::{
    DtoCompletion, DtoOp, Ep, EpId, Evd, Event, Ia, Pz, Request, Result, Srq, SrqParam, WaitError, op,
};
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

/// A queue that a pool can post to: an SRQ, or an EP with a receive queue of its own.
pub trait ReceiveQueue: sealed::Sealed {}

impl ReceiveQueue for Srq {}
impl ReceiveQueue for Ep {}

mod sealed {
    use super::{Ep, PoolMemory, PostError, Srq, WrInfo, with_path};

    pub trait Sealed {
        /// Posts these bytes, an offset and a length, of a pool's memory.
        #[expect(private_interfaces, reason = "only pools have memory and make work request contexts")]
        fn push(&mut self, memory: &PoolMemory, bytes: (usize, usize), info: WrInfo)
        -> Result<(), PostError>;
    }

    impl Sealed for Srq {
        #[expect(private_interfaces, reason = "only pools have memory and make work request contexts")]
        fn push(
            &mut self,
            memory: &PoolMemory,
            bytes: (usize, usize),
            info: WrInfo,
        ) -> Result<(), PostError> {
            self.push_pool(memory, bytes, info)
        }
    }

    impl Sealed for Ep {
        #[expect(private_interfaces, reason = "only pools have memory and make work request contexts")]
        fn push(
            &mut self,
            memory: &PoolMemory,
            bytes: (usize, usize),
            info: WrInfo,
        ) -> Result<(), PostError> {
            let mut receives = self.inner.pair.receives.lock();
            let path = receives.queue.path();
            if with_path!(path, P => receives.push_pool::<P>(memory, bytes, &info)) {
                return Ok(());
            }
            drop(receives);
            self.inner.recv_pool_slow(memory, bytes, info)
        }
    }
}

/// Receive buffers for an SRQ, or for an EP with a receive queue of its own.
///
/// ```no_run
/// # use doorbell::*;
/// # fn serve(ia: &Ia, pz: &Pz, evd: &Evd) -> std::result::Result<(), Box<dyn std::error::Error>> {
/// let mut srq = Srq::builder(ia, pz).depth(256).build()?;
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
    buffers: Buffers,
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

impl Parts for RecvPool {
    #[expect(private_interfaces, reason = "only pools have buffers")]
    #[inline(always)]
    fn parts(&mut self) -> (&Arc<Arena>, &mut Buffers) {
        (&self.arena, &mut self.buffers)
    }
}

impl RecvPool {
    /// Creates a pool of `buffers` free buffers of `size` bytes. [`RecvPool::refill`] posts them.
    ///
    /// # Errors
    /// INVALID_PARAMETER for no buffers, or a size of 0 or over 4 GiB; otherwise as
    /// [`LmrBuilder::allocate`](crate::LmrBuilder::allocate).
    pub fn new(ia: &Ia, pz: &Pz, buffers: u32, size: usize) -> Result<Self> {
        let arena = Arena::new(ia, pz, buffers, size, MemPriv::LOCAL_READ | MemPriv::LOCAL_WRITE)?;
        Ok(Self { arena, buffers: Buffers::new(buffers)?, batch: (buffers as usize / 4).clamp(1, 64) })
    }

    /// Posts every free or returned buffer for which the queue has room. Returns the number of
    /// buffers posted.
    ///
    /// # Errors
    /// The error of the post, except for a full queue. Buffers that were not posted stay free.
    pub fn refill<Q: ReceiveQueue>(&mut self, queue: &mut Q) -> Result<usize, PostError> {
        self.arena.check_inherited()?;
        self.arena.collect(&mut self.buffers);
        let mut n = 0;
        while let Some((index, cookie)) = self.buffers.next_free() {
            let bytes = self.arena.bytes(index, 0, self.arena.size);
            match queue.push(&self.arena.registered, bytes, self.arena.info(cookie)) {
                Ok(()) => n += 1,
                Err(error) => {
                    self.buffers.take_back(index, BufferState::Free);
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
        if dto.owner != Owner::Pool(self.arena.number) {
            return None;
        }
        let index = self.buffers.complete(dto.cookie)?;
        if !dto.op.is_receive() {
            self.buffers.give_back(index);
            return None;
        }
        if !dto.is_success() {
            self.buffers.give_back(index);
            return Some(Received::Failed(*dto));
        }
        // A write with immediate consumes a buffer and does not write to its bytes.
        let len = if dto.op == DtoOp::ReceiveRdmaWriteImmediate { 0 } else { dto.length as usize };
        Some(Received::Message(RecvBuf { buffer: self.arena.buffer(index, len), dto: *dto }))
    }

    /// A message of the bytes of this one, for example its echo: without a copy. The buffer belongs
    /// to the EP until the completion, which [`RecvPool::next`] and [`RecvPool::take`] see like that
    /// of a receive: give them the completions of the EP's requests as well. `next` returns it as
    /// [`Received::Other`].
    #[inline(always)]
    pub fn send(&mut self, message: RecvBuf) -> Request<PoolBuf, op::Send, &mut Self> {
        let len = message.len();
        Request::new(self, PoolBuf { buf: SendBuf { buffer: message.buffer }, len }, op::Send)
    }

    /// Refills when a batch of buffers has returned or few are posted, then waits for the next
    /// event of `evd`. While a connection with a receive queue of its own ends, use [`Evd::wait`] and
    /// [`RecvPool::take`] instead, since a refill posts flushed buffers again.
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
            Ok(Some(event)) => event,
            _ => evd.wait_threshold(1, timeout)?.event,
        };
        if let Some(dto) = event.completion()
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
        let posted = self.buffers.posted - unseen;
        let free = self.free(unseen);
        Ok(Gauges {
            posted,
            out: self.buffers.states.len() - posted - free,
            free,
            available: available as usize,
            unreaped: (outstanding - available) as usize,
        })
    }

    /// The number of buffers that this pool has posted and not yet seen as completed.
    pub fn posted(&self) -> usize {
        self.buffers.posted - self.arena.unseen.len()
    }

    /// The number of buffers that the next refill can post. `unseen` buffers have returned unseen.
    fn free(&self, unseen: usize) -> usize {
        self.buffers.free.len() + self.arena.returned.len() + unseen
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
