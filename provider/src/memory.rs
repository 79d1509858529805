//! Memory that may be short: a call that needs it fails with INSUFFICIENT_RESOURCES then, and
//! leaves everything as it was.
//!
//! Whatever grows with what a consumer asks for is allocated fallibly: queues and rings by their
//! lengths, tables by the number of objects, pools by their buffers. So are the large tables of a
//! fixed size. What remains is allocated as everywhere in Rust, and ends the process where there is
//! no memory:
//!
//! - the object itself behind its `Arc` or `Box`, at most 2 KiB (an IA, an EVD, an EP; less for all
//!   others),
//! - what names an object of the kernel's or of libibverbs' (less than 256 bytes each),
//! - private data and texts of errors (less than 512 bytes), names of devices and files, and what
//!   is read from sysfs,
//! - what the standard library needs to start a thread, apart from its stack (less than 256 bytes),
//! - lists of objects that a single event or completion is about, and of the GIDs that have one
//!   address.
//!
//! To make that unlikely, calls that create an object ask for [`HEADROOM`] first ([`headroom`]):
//! where that is missing, the call fails, and where it was there, it is left to the small
//! allocations of the same call.

use crate::{Error, Result, Subtype};
use std::collections::{TryReserveError, VecDeque};

/// More than all small allocations of one call take.
const HEADROOM: usize = 16 << 10;

/// Fails where the small allocations of a call that creates an object may have no memory.
pub(crate) fn headroom() -> Result<()> {
    let memory = list::<u8>(HEADROOM)?;
    // The compiler may leave out an allocation that nobody looks at.
    std::hint::black_box(&memory);
    Ok(())
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
pub(crate) fn table<T>(n: usize, entry: impl FnMut(usize) -> T) -> Result<Box<[T]>, TryReserveError> {
    let mut table = list(n)?;
    table.extend((0..n).map(entry));
    // As long as its memory, so that nothing is allocated again.
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
