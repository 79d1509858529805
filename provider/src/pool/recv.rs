//! Receive buffers.

use super::post::sealed::Inside;
use super::post::{PoolBuf, SendBuf};
use super::{Buffer, BufferState, Pool};
use crate::datapath::{WrInfo, with_path};
use crate::error::PostError;
use crate::event_data::Owner;
use crate::lmr::PoolMemory;
use crate::{
    DtoCompletion, DtoOp, Ep, EpId, Error, Evd, Event, Ia, Pz, Refused, Request, Result, Srq, SrqParam,
    Subtype, op,
};
use std::iter;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

/// A queue that a pool can post to: an SRQ, or an EP with a receive queue of its own.
pub trait ReceiveQueue: sealed::Sealed {}

impl ReceiveQueue for Srq {}
impl ReceiveQueue for Ep {}

mod sealed {
    use super::{Ep, PoolMemory, PostError, Srq, WrInfo, with_path};

    /// Posts of a pool's memory; `bytes` are an offset and a length.
    #[expect(private_interfaces, reason = "only pools have memory and make work request contexts")]
    pub trait Sealed {
        /// Whether the memory has passed the checks for [`Sealed::push_fast`].
        fn takes(&self, _memory: &PoolMemory) -> bool {
            false
        }

        /// Posts these bytes, if that needs no search.
        fn push_fast(&mut self, _memory: &PoolMemory, _bytes: (usize, usize), _info: &WrInfo) -> bool {
            false
        }

        /// Makes all checks, and posts these bytes.
        fn push(&mut self, memory: &PoolMemory, bytes: (usize, usize), info: WrInfo)
        -> Result<(), PostError>;
    }

    #[expect(private_interfaces, reason = "only pools have memory and make work request contexts")]
    impl Sealed for Srq {
        #[inline]
        fn takes(&self, memory: &PoolMemory) -> bool {
            self.takes_pool(memory)
        }

        #[inline(always)]
        fn push_fast(&mut self, memory: &PoolMemory, bytes: (usize, usize), info: &WrInfo) -> bool {
            self.push_pool_fast(memory, bytes, info)
        }

        fn push(
            &mut self,
            memory: &PoolMemory,
            bytes: (usize, usize),
            info: WrInfo,
        ) -> Result<(), PostError> {
            self.push_pool(memory, bytes, info)
        }
    }

    #[expect(private_interfaces, reason = "only pools have memory and make work request contexts")]
    impl Sealed for Ep {
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
///     match pool.next(&mut srq, evd)? {
///         Received::Message(message) => println!("{} bytes from {:?}", message.len(), message.ep()),
///         Received::Failed(dto) => println!("{:?} on {:?}", dto.status, dto.ep),
///         Received::Other(event) => println!("{event:?}"),
///     }
/// }
/// # }
/// ```
#[derive(Debug)]
pub struct RecvPool {
    pool: Pool,
    /// What [`RecvPool::grow`] has added: each with memory and accounts of its own.
    more: Vec<Pool>,
    batch: usize,
}

/// How many buffers a refill of a pool of this many waits for.
fn batch_of(buffers: usize) -> usize {
    (buffers / 4).clamp(1, 64)
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

impl Inside for RecvPool {
    #[expect(private_interfaces, reason = "only pools have buffers")]
    #[inline(always)]
    fn inside(&mut self, buf: &SendBuf) -> &mut Pool {
        let arena = &*buf.buffer.arena;
        let of = |pool: &Pool| Arc::ptr_eq(&pool.arena, arena);
        match self.more.iter().position(of) {
            Some(n) => &mut self.more[n],
            None => &mut self.pool,
        }
    }
}

impl RecvPool {
    /// Creates a pool of `buffers` free buffers of `size` bytes. [`RecvPool::refill`] posts them.
    ///
    /// # Errors
    /// INVALID_PARAMETER for no buffers, or a size of 0 or over 4 GiB; otherwise as
    /// [`LmrBuilder::allocate`](crate::LmrBuilder::allocate).
    pub fn new(ia: &Ia, pz: &Pz, buffers: u32, size: usize) -> Result<Self> {
        let pool = Pool::new(ia, pz, buffers, size)?;
        Ok(Self { pool, more: Vec::new(), batch: batch_of(buffers as usize) })
    }

    /// Adds `buffers` free buffers, which the next refill posts. Gives the SRQ as many entries as the
    /// pool has buffers then, if it has fewer. Each call registers memory of its own, so add many
    /// buffers at a time: for example as many as there are.
    ///
    /// ```no_run
    /// # use doorbell::*;
    /// # fn reinforce(pool: &mut RecvPool, srq: &mut Srq, event: &Event) -> Result<()> {
    /// if matches!(event, Event::Async(AsyncEvent { reason: reason::SRQ_LOW_WATERMARK, .. })) {
    ///     pool.grow(srq, pool.buffers())?;
    ///     pool.refill(srq)?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`RecvPool::new`] and [`Srq::resize`]; the pool and the SRQ have not changed then.
    pub fn grow(&mut self, srq: &mut Srq, buffers: u32) -> Result<()> {
        let all = self.buffers().checked_add(buffers).ok_or_else(|| {
            Error::arg(2, format!("{} buffers and {buffers} more: a pool has 2^32 at most", self.buffers()))
        })?;
        self.more.try_reserve(1)?;
        let more = self.pool.like(buffers)?;
        if srq.inner.recv.path.depth() < all {
            srq.resize(all)?;
        }
        self.more.push(more);
        self.batch = batch_of(all as usize);
        Ok(())
    }

    /// The number of buffers.
    pub fn buffers(&self) -> u32 {
        self.pools().map(|pool| pool.buffers.states.len() as u32).sum()
    }

    fn pools(&self) -> impl Iterator<Item = &Pool> {
        iter::once(&self.pool).chain(&self.more)
    }

    /// Posts every free or returned buffer for which the queue has room. Returns the number of
    /// buffers posted.
    ///
    /// # Errors
    /// The error of the post, except for a full queue. Buffers that were not posted stay free.
    pub fn refill<Q: ReceiveQueue>(&mut self, queue: &mut Q) -> Result<usize, PostError> {
        let (mut n, mut room) = refill(&mut self.pool, queue)?;
        for pool in &mut self.more {
            if !room {
                break;
            }
            let (posted, more_room) = refill(pool, queue)?;
            (n, room) = (n + posted, more_room);
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

    #[inline(always)]
    fn sort(&mut self, dto: &DtoCompletion) -> Option<Received> {
        let pool = match dto.owner {
            Owner::Pool(number) if number == self.pool.arena.number => &mut self.pool,
            Owner::Pool(number) => self.more.iter_mut().find(|pool| pool.arena.number == number)?,
            _ => return None,
        };
        let index = pool.buffers.complete(dto.cookie)?;
        if !dto.op.is_receive() {
            pool.buffers.give_back(index);
            return None;
        }
        if !dto.is_success() {
            pool.buffers.give_back(index);
            return Some(Received::Failed(*dto));
        }
        // A write with immediate consumes a buffer and does not write to its bytes.
        let len = if dto.op == DtoOp::ReceiveRdmaWriteImmediate { 0 } else { dto.length as usize };
        Some(Received::Message(RecvBuf { buffer: pool.lend(index, len), dto: *dto }))
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
    /// As [`Evd::wait`], with INTERRUPTED_CALL after a signal's handler has run: call again. A refill
    /// that the device refused.
    #[inline]
    pub fn next<Q: ReceiveQueue>(&mut self, queue: &mut Q, evd: &Evd) -> Result<Received> {
        self.refill_some(queue)?;
        match self.take_message(evd) {
            Some(message) => Ok(message),
            None => evd.next().map(|event| self.received(event)),
        }
    }

    /// As [`RecvPool::next`], but waits not longer than `timeout`. `None` if no event has come.
    ///
    /// # Errors
    /// As [`RecvPool::next`].
    pub fn next_for<Q: ReceiveQueue>(
        &mut self,
        queue: &mut Q,
        evd: &Evd,
        timeout: Duration,
    ) -> Result<Option<Received>> {
        self.refill_some(queue)?;
        match self.take_message(evd) {
            Some(message) => Ok(Some(message)),
            None => Ok(evd.next_for(timeout)?.map(|event| self.received(event))),
        }
    }

    /// Takes the next event of `evd` without waiting; `None` if there is none. Does not refill: for a
    /// program that takes what is there, and then refills once.
    ///
    /// # Errors
    /// As [`Evd::dequeue`].
    #[inline]
    pub fn dequeue(&mut self, evd: &Evd) -> Result<Option<Received>> {
        match self.take_message(evd) {
            Some(message) => Ok(Some(message)),
            None => Ok(evd.dequeue()?.map(|event| self.received(event))),
        }
    }

    #[inline(always)]
    fn refill_some<Q: ReceiveQueue>(&mut self, queue: &mut Q) -> Result<()> {
        let (posted, free) = self.counts();
        if free >= self.batch || posted < self.batch {
            self.refill(queue)?;
        }
        Ok(())
    }

    /// The next event, if that is a message that the fast dequeue takes.
    #[inline(always)]
    fn take_message(&mut self, evd: &Evd) -> Option<Received> {
        let dto = evd.inner.message_fast()?;
        Some(self.sort(&dto).unwrap_or_else(|| Received::Other(dto.into())))
    }

    /// An event of any kind, sorted.
    fn received(&mut self, event: Event) -> Received {
        let sorted = event.completion().and_then(|dto| self.sort(dto));
        sorted.unwrap_or(Received::Other(event))
    }

    /// Returns the number of buffers in each state.
    ///
    /// # Errors
    /// As [`Srq::query`].
    pub fn gauges(&self, srq: &Srq) -> Result<Gauges> {
        let SrqParam { available, outstanding, .. } = srq.query()?;
        let (posted, free) = self.counts();
        Ok(Gauges {
            posted,
            out: self.buffers() as usize - posted - free,
            free,
            available: available as usize,
            unreaped: (outstanding - available) as usize,
        })
    }

    /// Frees the pool and its memory, if no buffer is out. Close the SRQ, or the EP, first: a message
    /// that finds a buffer of a pool that is gone fails. Dropping a pool ends it in any case; its
    /// memory stays while a buffer is out.
    ///
    /// # Errors
    /// INVALID_STATE while a buffer is out. The error returns the pool.
    #[expect(clippy::result_large_err, reason = "the error returns the pool")]
    pub fn close(mut self) -> Result<(), Refused<Self>> {
        match iter::once(&mut self.pool).chain(&mut self.more).try_for_each(Pool::check_none_out) {
            Ok(()) => Ok(()),
            Err(error) => Err(Refused { object: self, error }),
        }
    }

    /// The number of buffers that this pool has posted and not yet seen as completed.
    #[inline]
    pub fn posted(&self) -> usize {
        self.counts().0
    }

    /// The numbers of posted and of free buffers.
    #[inline(always)]
    fn counts(&self) -> (usize, usize) {
        let mut all = self.pool.counts();
        for pool in &self.more {
            let (posted, free) = pool.counts();
            all = (all.0 + posted, all.1 + free);
        }
        all
    }

    /// The size of one buffer, in bytes.
    pub fn buffer_size(&self) -> usize {
        self.pool.arena.size
    }
}

/// Posts the free buffers of this pool for which the queue has room. Returns their number, and
/// whether the queue had room for all.
fn refill<Q: ReceiveQueue>(pool: &mut Pool, queue: &mut Q) -> Result<(usize, bool), PostError> {
    if pool.arena.is_inherited() {
        return Err(PostError::Stale(Subtype::InvalidHandleLmr));
    }
    pool.collect();
    let Pool { arena, buffers, .. } = pool;
    let fast = queue.takes(&arena.registered);
    let mut n = 0;
    while let Some((index, cookie)) = buffers.next_free() {
        let (bytes, info) = (arena.bytes(index, 0, arena.size), arena.info(cookie));
        if fast && queue.push_fast(&arena.registered, bytes, &info) {
            n += 1;
            continue;
        }
        match queue.push(&arena.registered, bytes, info) {
            Ok(()) => n += 1,
            Err(error) => {
                buffers.take_back(index, BufferState::Free);
                if matches!(error, PostError::Full(_)) {
                    return Ok((n, false));
                }
                return Err(error);
            }
        }
    }
    Ok((n, true))
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
