//! Allocations that may fail: a call without memory answers INSUFFICIENT_RESOURCES and leaves
//! everything as it was.
//!
//! Every allocation whose size a consumer decides is fallible: queues and rings by their lengths,
//! tables by the number of objects, pools by their buffers. So are the large tables of a fixed
//! size. Failed allocations inside libibverbs, libmlx5 and librdmacm, and a failed pthread_create,
//! come back as errors of those libraries and give the same answer.
//!
//! The remaining allocations are those of ordinary Rust code. Without memory they end the process
//! (SIGABRT). Each is smaller than 2.5 KiB:
//!
//! - the object itself behind its `Arc` or `Box` (an IA, an EVD, an EP; less for all others),
//! - what names an object of the kernel or of libibverbs (less than 256 bytes each),
//! - private data and texts of errors (less than 512 bytes), names of devices and files, and what
//!   is read from sysfs,
//! - what the standard library needs to start a thread, apart from its stack (less than 256 bytes),
//! - lists of objects that a single event or completion is about, and of the GIDs that have one
//!   address.
//!
//! To make that unlikely, calls that create an object allocate and free [`HEADROOM`] first
//! ([`headroom`]). If that fails, the call fails; if it succeeds, the memory is left to the small
//! allocations of the same call.
//!
//! hw-tests/tests/device_memory/ (Rust) and hw-tests/c/no_memory.c (C) fail each allocation of
//! 2.5 KiB and more, one after the other, in every call that creates something.

use crate::{Error, Result, Subtype};
use std::collections::{TryReserveError, VecDeque};

/// More than the small allocations of one call add up to.
const HEADROOM: usize = 16 << 10;

/// More than the small allocations for a PZ add up to.
const SMALL_HEADROOM: usize = 2560;

/// Fails if there may be no memory for the small allocations of a call that creates an object.
pub(crate) fn headroom() -> Result<()> {
    have(HEADROOM)
}

/// More than the small allocations for an EVD without a CQ add up to.
const NOTICES_HEADROOM: usize = 4 << 10;

/// As [`headroom`], for an EVD without a CQ.
pub(crate) fn headroom_of_notices() -> Result<()> {
    have(NOTICES_HEADROOM)
}

/// As [`headroom`], for a PZ. For a larger block the allocator would touch more memory than the call.
pub(crate) fn small_headroom() -> Result<()> {
    have(SMALL_HEADROOM)
}

fn have(bytes: usize) -> Result<()> {
    let memory = list::<u8>(bytes)?;
    // Keeps the compiler from removing an unused allocation.
    std::hint::black_box(&memory);
    Ok(())
}

/// Memory that the heap has ready for the first objects of an IA.
const READY: usize = 96 << 10;

/// The size of a block that glibc, by default, maps by itself instead of taking it from its heap.
const MAPPED: usize = 256 << 10;

/// Writes to memory that the heap then has for later calls. A page that the process has not used
/// costs these a page fault, which takes longer than the rest of the creation of a small object.
pub(crate) fn ready() {
    // When glibc frees such a block, it raises two thresholds (mallopt(3), M_MMAP_THRESHOLD). One is
    // the free memory at the end of the heap from which glibc returns it to the kernel: from 128 KiB
    // to twice the size of the block. With the lower one, the free of an EP could return the pages
    // written below, by a brk(2) that interrupts the other processors.
    let _ = have(MAPPED);
    if let Ok(mut memory) = list::<u8>(READY) {
        memory.resize(READY, 0);
        std::hint::black_box(&memory);
    }
}

/// An empty list with room for `n` entries.
pub(crate) fn list<T>(n: usize) -> Result<Vec<T>, TryReserveError> {
    let mut list = Vec::new();
    list.try_reserve_exact(n)?;
    Ok(list)
}

/// An empty queue with room for `n` entries.
pub(crate) fn queue<T>(n: usize) -> Result<VecDeque<T>, TryReserveError> {
    let mut queue = VecDeque::new();
    queue.try_reserve_exact(n)?;
    Ok(queue)
}

/// A table of `n` entries, made by their numbers.
///
/// # Errors
/// No memory.
pub fn table<T>(n: usize, entry: impl FnMut(usize) -> T) -> Result<Box<[T]>, TryReserveError> {
    let mut table = list(n)?;
    table.extend((0..n).map(entry));
    // The length is the capacity, so nothing is reallocated.
    Ok(table.into_boxed_slice())
}

impl From<TryReserveError> for Error {
    fn from(_: TryReserveError) -> Self {
        Self::resources(
            Subtype::ResourceMemory,
            "no memory: free objects that are not needed, or raise the limit",
        )
    }
}
