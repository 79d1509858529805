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

mod post;
mod recv;
mod send;

pub use self::post::{BufferPool, PoolBuf, SendBuf};
pub use self::recv::{Gauges, ReceiveQueue, Received, RecvBuf, RecvPool};
pub use self::send::SendPool;
use crate::bounded_queue::BoundedQueue;
use crate::datapath::WrInfo;
use crate::error::PostError;
use crate::event_data::Owner;
use crate::lmr::PoolMemory;
use crate::memory::{headroom, list};
use crate::types::MemPriv;
use crate::{Error, Ia, Pz, Result, Subtype};
use rxe_fallback::mr::Mapping;
use std::collections::TryReserveError;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

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
    fn give_back(&mut self, index: u32) {
        self.states[index as usize].0 = BufferState::Free;
        self.free.push(index);
    }

    /// Marks a free buffer as out.
    fn take(&mut self) -> Option<u32> {
        let index = self.free.pop()?;
        self.states[index as usize].0 = BufferState::Out;
        Some(index)
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
    let next = |number: u32| (number < Owner::POOL_NUMBERS).then_some(number + 1);
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
    fn bytes(&self, index: u32, offset: usize, len: usize) -> (usize, usize) {
        (index as usize * self.size + offset, len)
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

    fn collect(&self, buffers: &mut Buffers) {
        while let Some(index) = self.returned.pop() {
            buffers.give_back(index as u32);
        }
        while let Some(cookie) = self.unseen.pop() {
            if let Some(index) = buffers.complete(cookie) {
                buffers.give_back(index);
            }
        }
    }

    fn buffer(self: &Arc<Self>, index: u32, len: usize) -> Buffer {
        Buffer { arena: self.clone(), index, len: len.min(self.size) }
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

    /// Ends the guard without returning the buffer, which is about to be posted.
    fn into_index(self) -> u32 {
        let buffer = ManuallyDrop::new(self);
        // SAFETY: read once, and `buffer` is never dropped. The arena's reference count is
        // therefore right, and `returned` gets nothing.
        drop(unsafe { std::ptr::read(&raw const buffer.arena) });
        buffer.index
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // The queue has room for every buffer, so this never fails.
        let _ = self.arena.returned.push(self.index.into());
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
