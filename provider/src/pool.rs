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
//! * A buffer with an open window has no guard: [`WindowBuf`] has it.
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

mod post;
mod recv;
mod send;
mod window;

pub use self::post::{BufferPool, PoolBuf, SendBuf};
pub use self::recv::{Gauges, ReceiveQueue, Received, RecvBuf, RecvPool};
pub use self::send::SendPool;
pub use self::window::{Opening, WindowBuf};
use crate::bounded_queue::BoundedQueue;
use crate::datapath::WrInfo;
use crate::event_data::Owner;
use crate::lmr::PoolMemory;
use crate::memory::{headroom, list, table};
use crate::pz::PzInner;
use crate::sync::{Mutex, rank};
use crate::types::ByNumber;
use crate::{Error, Ia, Pz, Result, Subtype};
use rxe_fallback::mr::Mapping;
use std::collections::TryReserveError;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

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
    states: Vec<(BufferState, u64)>,
    free: Vec<u32>,
    posted: usize,
    /// The number of bits of a cookie that hold the buffer's index.
    bits: u32,
}

impl Buffers {
    fn new(n: u32) -> Result<Self, TryReserveError> {
        let bits = u32::BITS - (n - 1).leading_zeros();
        let (mut states, mut free) = (list(n as usize)?, list(n as usize)?);
        states.resize(n as usize, (BufferState::Free, 0));
        free.extend((0..n).rev());
        Ok(Self { states, free, posted: 0, bits })
    }

    /// Marks a free buffer as posted and returns the buffer and its cookie.
    #[inline]
    fn next_free(&mut self) -> Option<(u32, u64)> {
        while let Some(index) = self.free.pop() {
            if let Some(cookie) = self.mark(index) {
                return Some((index, cookie));
            }
        }
        None
    }

    /// Marks a buffer as posted. Returns `None` without a change if the generations of the buffer
    /// are used up: at least 2^32 of them, 2^54 in a pool of 1,024 buffers. Such a buffer is never
    /// posted again, so that a kept completion never matches a second time.
    #[inline]
    fn mark(&mut self, index: u32) -> Option<u64> {
        let (state, generation) = &mut self.states[index as usize];
        let next = generation.checked_add(1).filter(|next| next.leading_zeros() >= self.bits)?;
        (*state, *generation) = (BufferState::Posted, next);
        self.posted += 1;
        Some(next << self.bits | u64::from(index))
    }

    /// Undoes a refused post.
    fn take_back(&mut self, index: u32, to: BufferState) {
        self.posted -= 1;
        self.states[index as usize].0 = to;
        if to == BufferState::Free {
            self.free.push(index);
        }
    }

    /// Marks the buffer of a completion as out. `None` for a cookie that names no posted buffer.
    #[inline]
    fn complete(&mut self, cookie: u64) -> Option<u32> {
        let index = (cookie & ((1 << self.bits) - 1)) as u32;
        let entry = self.states.get_mut(index as usize)?;
        if *entry != (BufferState::Posted, cookie >> self.bits) {
            return None;
        }
        entry.0 = BufferState::Out;
        self.posted -= 1;
        Some(index)
    }

    /// Frees a buffer that a guard has returned.
    #[inline]
    fn give_back(&mut self, index: u32) {
        self.states[index as usize].0 = BufferState::Free;
        self.free.push(index);
    }

    /// Marks a free buffer as out.
    #[inline]
    fn take(&mut self) -> Option<u32> {
        let index = self.free.pop()?;
        self.states[index as usize].0 = BufferState::Out;
        Some(index)
    }
}

/// Cookies of a pool's completions that no consumer has seen.
pub(crate) type ReturnQueue = BoundedQueue;

/// The buffers that guards have returned: a stack, linked by index. Any thread puts a buffer on it;
/// the pool takes all. A returned buffer leaves its guard's reference to the arena to the pool.
#[derive(Debug)]
struct Returned {
    /// The number of buffers in the high half; the index of the top one plus 1 in the low half.
    /// [`CLOSED`] once the pool is gone.
    top: AtomicU64,
    /// By index: the low half of `top` below this buffer.
    below: Box<[AtomicU32]>,
}

/// No pool takes buffers any more. A pool has at most [`MOST`] buffers, so this is no stack.
const CLOSED: u64 = u64::MAX;

/// The most buffers of a pool.
const MOST: u32 = 1 << 31;

impl Returned {
    fn new(buffers: u32) -> Result<Self, TryReserveError> {
        Ok(Self { top: AtomicU64::new(0), below: table(buffers as usize, |_| AtomicU32::new(0))? })
    }

    /// Takes all buffers, the last one first.
    fn take_all(&self, mut each: impl FnMut(u32)) {
        if self.len() == 0 {
            return;
        }
        let mut next = self.top.swap(0, Ordering::Acquire) as u32;
        while let Some(index) = next.checked_sub(1) {
            next = self.below[index as usize].load(Ordering::Relaxed);
            each(index);
        }
    }

    /// Refuses buffers from now on, and forgets those on the stack. Returns their number.
    fn close(&self) -> usize {
        (self.top.swap(CLOSED, Ordering::Acquire) >> u32::BITS) as usize
    }

    #[inline]
    fn len(&self) -> usize {
        (self.top.load(Ordering::Relaxed) >> u32::BITS) as usize
    }
}

/// Puts the buffer with this index and this place in [`Returned::below`] on the stack. False if the
/// stack is closed. The references are to atomics only, because another thread may free them as soon
/// as the buffer is on the stack.
fn push(top: &AtomicU64, below: &AtomicU32, index: u32) -> bool {
    let mut now = top.load(Ordering::Relaxed);
    while now != CLOSED {
        below.store(now as u32, Ordering::Relaxed);
        let next = ((now >> u32::BITS) + 1) << u32::BITS | u64::from(index + 1);
        match top.compare_exchange_weak(now, next, Ordering::Release, Ordering::Relaxed) {
            Ok(_) => return true,
            Err(changed) => now = changed,
        }
    }
    false
}

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
    returned: Returned,
    unseen: Arc<ReturnQueue>,
    number: u32,
    /// Keeps the memory mapped for guards; `registered` keeps it for the device.
    memory: Arc<Mapping>,
    /// The regions of buffers that have had a window, by their indices.
    windows: Mutex<{ rank::TABLE }, ByNumber<u32, Arc<PoolMemory>>>,
}

/// A number that no other pool of this process has had. The numbers are unique because consumers
/// may keep and copy completions, and present them to any pool at any time.
fn new_number() -> Result<u32> {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    let next = |number: u32| (number < Owner::POOL_NUMBERS).then_some(number + 1);
    NEXT.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).map_err(|_| {
        let text = "this process has made 2^31 pools, which is all it can: start it anew";
        Error::resources(Subtype::ResourceMemoryRegion, text)
    })
}

impl Arena {
    fn new(pz: &Arc<PzInner>, buffers: u32, size: usize) -> Result<Arc<Self>> {
        if !(1..=MOST).contains(&buffers) || size == 0 || u32::try_from(size).is_err() {
            return Err(Error::arg(
                3,
                format!("a pool of {buffers} buffers of {size} bytes: 1 to 2^31 of 1 byte to 4 GiB"),
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
            registered: PoolMemory::register(pz, &memory, len)?,
            base: Base(NonNull::new(memory.as_ptr()).ok_or_else(out_of_memory)?),
            size,
            returned: Returned::new(buffers)?,
            unseen: Arc::new(ReturnQueue::new(buffers as usize)?),
            number: new_number()?,
            memory,
            windows: Mutex::default(),
        });
        pz.device.pools.add(arena.number, &arena.unseen)?;
        Ok(arena)
    }

    /// The offset and the length of part of a buffer, from `offset` on, in the pool's memory.
    #[inline]
    fn bytes(&self, index: u32, offset: usize, len: usize) -> (usize, usize) {
        (index as usize * self.size + offset, len)
    }

    /// The region of this buffer alone, for windows. Each has a region of its own, because rxe
    /// compares the addresses that peers use with those of the region, not with those of the window.
    ///
    /// # Errors
    /// As [`LmrBuilder::allocate`](crate::LmrBuilder::allocate).
    fn region(&self, index: u32) -> Result<Arc<PoolMemory>> {
        if let Some(region) = self.windows.lock().unwrap().get(&index) {
            return Ok(region.clone());
        }
        let start = index as usize * self.size;
        let region = Arc::new(self.registered.for_window(&self.memory, start..start + self.size)?);
        let mut windows = self.windows.lock().unwrap();
        windows.try_reserve(1)?;
        windows.insert(index, region.clone());
        Ok(region)
    }

    #[inline]
    fn info(&self, cookie: u64) -> WrInfo {
        WrInfo { cookie, pool: self.number, ..WrInfo::default() }
    }

    /// Whether the pool belongs to the process that this one was forked from.
    #[inline]
    fn is_inherited(&self) -> bool {
        self.registered.device().is_inherited()
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        if !self.is_inherited() {
            self.registered.device().pools.remove(self.number);
        }
    }
}

/// A pool of either kind.
#[derive(Debug)]
pub(crate) struct Pool {
    arena: Arc<Arena>,
    buffers: Buffers,
    /// References to the arena that are counted and that no guard has: those of returned and posted
    /// buffers. The next guards get them, so that no count changes.
    spare: usize,
}

impl Pool {
    /// Creates a pool of free buffers.
    fn new(ia: &Ia, pz: &Pz, buffers: u32, size: usize) -> Result<Self> {
        ia.device.check()?;
        pz.inner.check(&ia.device)?;
        Self::in_pz(&pz.inner, buffers, size)
    }

    fn in_pz(pz: &Arc<PzInner>, buffers: u32, size: usize) -> Result<Self> {
        let arena = Arena::new(pz, buffers, size)?;
        Ok(Self { arena, buffers: Buffers::new(buffers)?, spare: 0 })
    }

    /// A pool of free buffers of the same size, in the same PZ.
    fn like(&self, buffers: u32) -> Result<Self> {
        Self::in_pz(self.arena.registered.pz(), buffers, self.arena.size)
    }

    /// The guard of a buffer that is out, for its first `len` bytes.
    #[inline(always)]
    fn lend(&mut self, index: u32, len: usize) -> Buffer {
        match self.spare.checked_sub(1) {
            Some(left) => self.spare = left,
            None => std::mem::forget(self.arena.clone()),
        }
        // SAFETY: the pointer is that of an `Arc`, and one counted reference, just taken out of the
        // spare ones or made, is now this value's.
        let arena = ManuallyDrop::new(unsafe { Arc::from_raw(Arc::as_ptr(&self.arena)) });
        Buffer { len: len.min(arena.size), arena, index }
    }

    /// Ends the guard of a buffer that is posted now.
    #[inline(always)]
    fn keep(&mut self, buffer: ManuallyDrop<Buffer>) {
        debug_assert!(Arc::ptr_eq(&self.arena, &buffer.arena));
        self.spare += 1;
    }

    /// Takes back the buffers that guards have returned, and those that came back without a
    /// completion.
    fn collect(&mut self) {
        let (buffers, spare) = (&mut self.buffers, &mut self.spare);
        self.arena.returned.take_all(|index| {
            buffers.give_back(index);
            *spare += 1;
        });
        while let Some(cookie) = self.arena.unseen.pop() {
            if let Some(index) = self.buffers.complete(cookie) {
                self.buffers.give_back(index);
            }
        }
    }

    /// Checks that no buffer is out.
    fn check_none_out(&mut self) -> Result<()> {
        self.collect();
        let Buffers { states, free, posted, .. } = &self.buffers;
        match states.len() - free.len() - posted {
            0 => Ok(()),
            out => Err(Error::state(Subtype::None, format!("{out} buffers are out: drop them first"))),
        }
    }

    /// The number of posted buffers.
    #[inline]
    fn posted(&self) -> usize {
        self.counts().0
    }

    /// The numbers of posted and of free buffers. Those that have returned are free.
    #[inline]
    fn counts(&self) -> (usize, usize) {
        // Read once: more buffers may return meanwhile.
        let unseen = self.arena.unseen.len();
        (self.buffers.posted - unseen, self.buffers.free.len() + self.arena.returned.len() + unseen)
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // From now on, guards drop their references.
        for _ in 0..self.spare + self.arena.returned.close() {
            // SAFETY: the pointer is that of an `Arc`. The reference is counted, and nobody else has
            // it: it is a spare one, or that of a buffer on the stack, which was closed in one step.
            unsafe { Arc::decrement_strong_count(Arc::as_ptr(&self.arena)) };
        }
    }
}

/// A buffer that is out with the consumer. Its bytes can be accessed only through this value.
#[derive(Debug)]
struct Buffer {
    /// A counted reference. Dropped by hand, because a returned buffer leaves it to the pool.
    arena: ManuallyDrop<Arc<Arena>>,
    index: u32,
    len: usize,
}

impl Buffer {
    fn start(&self) -> *mut u8 {
        // SAFETY: the index is below the pool's buffer count, and the mapping has `size` bytes for
        // each buffer.
        unsafe { self.arena.base.0.as_ptr().add(self.index as usize * self.arena.size) }
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: in bounds because `len` is at most `size`; mapped because the arena holds the
        // mapping; zeroed at first. Not written meanwhile because the buffer is out: the buffer has
        // no other guard, no queue of a device has held the buffer since its completion came, and
        // only the pool can post it. Or a pool is posting the buffer for a Send: then this value is
        // with the pool, and devices only read its memory.
        unsafe { std::slice::from_raw_parts(self.start(), self.len) }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`, and exclusive through `&mut self`.
        unsafe { std::slice::from_raw_parts_mut(self.start(), self.len) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let Returned { top, below } = &self.arena.returned;
        if !push(top, &below[self.index as usize], self.index) {
            // SAFETY: not used after this, and the pool has not got the reference.
            unsafe { ManuallyDrop::drop(&mut self.arena) };
        }
        // Once the buffer is on the stack, the pool has the reference, and may free the arena.
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_buffer_without_generations_is_never_posted_again() {
        for n in [1, 2, 3, 1024, 1025] {
            let mut buffers = Buffers::new(n).unwrap();
            let last = u64::MAX >> buffers.bits;
            buffers.states[0].1 = last - 1;
            let (index, cookie) = buffers.next_free().unwrap();
            assert_eq!((index, cookie >> buffers.bits), (0, last));
            assert_eq!(buffers.complete(cookie), Some(0));
            buffers.give_back(0);
            // The other buffers are unaffected.
            let others: Vec<_> = std::iter::from_fn(|| buffers.next_free()).map(|(index, _)| index).collect();
            assert_eq!(others, (1..n).collect::<Vec<_>>());
            assert_eq!(buffers.complete(cookie), None);
        }
    }

    #[test]
    fn buffers_come_back_once_from_any_thread_until_the_stack_is_closed() {
        const EACH: usize = 4;
        const ROUNDS: usize = 20_000;
        let returned = Returned::new(4 * EACH as u32).unwrap();
        let put = |index: usize| push(&returned.top, &returned.below[index], index as u32);
        let out: Vec<_> = (0..4 * EACH).map(|_| AtomicU32::new(1)).collect();
        std::thread::scope(|scope| {
            for mine in out.chunks(EACH).enumerate() {
                let put = &put;
                scope.spawn(move || {
                    let (mut left, (thread, mine)) = (ROUNDS, mine);
                    while left > 0 {
                        for (n, out) in mine.iter().enumerate().take(left) {
                            if out.swap(0, Ordering::Acquire) == 1 {
                                assert!(put(thread * EACH + n));
                                left -= 1;
                            }
                        }
                        std::thread::yield_now();
                    }
                });
            }
            let mut taken = 0;
            while taken < 4 * ROUNDS {
                returned.take_all(|index| {
                    assert_eq!(out[index as usize].swap(1, Ordering::Release), 0, "taken twice");
                    taken += 1;
                });
                std::thread::yield_now();
            }
        });
        assert_eq!(returned.len(), 0);
        assert!(put(1) && put(3));
        assert_eq!((returned.len(), returned.close()), (2, 2));
        assert!(!put(0));
    }

    #[test]
    fn no_two_pools_have_the_same_number() {
        let numbers: std::collections::HashSet<_> = (0..100).map(|_| new_number().unwrap()).collect();
        assert_eq!(numbers.len(), 100);
        assert!(numbers.iter().all(|&number| number != 0 && number < Owner::POOL_NUMBERS));
    }

    #[test]
    fn an_old_cookie_gives_no_buffer_out() {
        let mut buffers = Buffers::new(1).unwrap();
        let (index, first) = buffers.next_free().unwrap();
        assert_eq!(buffers.complete(first), Some(index));
        assert_eq!(buffers.complete(first), None);
        buffers.give_back(index);
        let (_, second) = buffers.next_free().unwrap();
        assert_eq!(buffers.complete(first), None);
        assert_eq!(buffers.complete(second), Some(index));
    }

    proptest! {
        /// Whatever cookies arrive, no buffer is out twice or out and posted, and none is lost.
        #[test]
        fn every_buffer_is_in_one_place(steps in proptest::collection::vec((0u8..4, 0usize..64), 1..300)) {
            let mut buffers = Buffers::new(8).unwrap();
            let mut seen = Vec::new();
            let mut out = Vec::new();
            for (what, pick) in steps {
                match what {
                    0 => if let Some((index, cookie)) = buffers.next_free() {
                        prop_assert!(!out.contains(&index));
                        seen.push(cookie);
                    },
                    1 if !seen.is_empty() => if let Some(index) = buffers.complete(seen[pick % seen.len()]) {
                        prop_assert!(!out.contains(&index));
                        out.push(index);
                    },
                    2 if !out.is_empty() => buffers.give_back(out.swap_remove(pick % out.len())),
                    3 => if let Some(index) = buffers.take() {
                        prop_assert!(!out.contains(&index));
                        out.push(index);
                    },
                    _ => {}
                }
                prop_assert_eq!(buffers.posted + buffers.free.len() + out.len(), 8);
            }
        }
    }
}
