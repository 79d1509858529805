//! WQEs that wait outside the ring.
//!
//! One thread writes and reads this memory (`&mut self`); the device does not know of it. Each
//! request has a place of the same length: its cookie, its length, and the WQE. The first place
//! belongs to no request: what is written before the first request goes there.

use core::marker::PhantomData;
use std::collections::TryReserveError;

use crate::{
    memory::{Unit, Units, unit},
    table::table,
    wqe::{
        SEGMENT_BYTES,
        send::{BLOCK_UNITS, MAX_UNITS},
    },
};

/// What a place begins with.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C, align(16))]
pub(crate) struct StagedHead {
    pub(crate) cookie: u64,
    /// Units of the WQE.
    pub(crate) units: u32,
    /// What a fast path does not handle; 0 for most requests.
    pub(crate) special: u32,
    /// The control segment without number of units, QP number, block number and flags of the queue.
    pub(crate) ctrl: [u64; 2],
}

/// Units of a place before the WQE. The control segment is the second half of the head.
const BEFORE_WQE: usize = 1;
const _: () = assert!(size_of::<StagedHead>() == (BEFORE_WQE + 1) * SEGMENT_BYTES);

/// Places of requests.
#[derive(Debug)]
pub(crate) struct StagedMem {
    /// The place of the last request. One of `most + 1` places of `place_bytes` in `memory`.
    place: *mut u8,
    /// The number of requests, at most `most`; also the index of `place`.
    count: u32,
    most: u32,
    place_bytes: usize,
    /// Units of a WQE that fit into a place, at least a block.
    max_units: usize,
    memory: Box<[Unit]>,
}

// SAFETY: plain memory, which the value owns, without thread affinity.
unsafe impl Send for StagedMem {}
// SAFETY: a shared reference only reads.
unsafe impl Sync for StagedMem {}

impl StagedMem {
    /// Places for this many requests of this many blocks.
    pub(crate) fn new(most: u32, blocks: u32) -> Result<Self, TryReserveError> {
        let blocks = (blocks as usize).clamp(1, MAX_UNITS.div_ceil(BLOCK_UNITS));
        let place_units = BEFORE_WQE + blocks * BLOCK_UNITS;
        let mut memory = table((most as usize + 1) * place_units, |_| unit([0; 2]))?;
        Ok(Self {
            place: memory.as_mut_ptr().cast(),
            count: 0,
            most,
            place_bytes: place_units * SEGMENT_BYTES,
            max_units: (blocks * BLOCK_UNITS).min(MAX_UNITS),
            memory,
        })
    }

    /// Forgets all requests.
    #[inline(always)]
    pub(crate) fn clear(&mut self) {
        self.place = self.memory.as_mut_ptr().cast();
        self.count = 0;
    }

    /// The number of requests.
    #[inline(always)]
    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    /// Units of a WQE that fit into a place.
    #[inline(always)]
    pub(crate) fn max_units(&self) -> usize {
        self.max_units
    }

    /// Goes to the place of another request. Returns false, and stays, if there is none.
    #[inline(always)]
    pub(crate) fn next(&mut self) -> bool {
        if self.count == self.most {
            return false;
        }
        self.count += 1;
        self.place = self.place.wrapping_add(self.place_bytes);
        true
    }

    /// The head of the last request.
    #[inline(always)]
    pub(crate) fn head(&mut self) -> &mut StagedHead {
        // SAFETY: a place has this many bytes, is aligned to 16, and is initialised, with any bits
        // being valid; exclusive through `&mut self`.
        unsafe { &mut *self.place.cast::<StagedHead>() }
    }

    /// Room for the units of the last request from `from` on.
    #[inline(always)]
    pub(crate) fn body(&mut self, from: usize) -> Units<'_> {
        let from = from.min(self.max_units);
        let at = self.place.wrapping_add((BEFORE_WQE + from) * SEGMENT_BYTES);
        // SAFETY: the rest of the WQE in a place, aligned to 16; exclusive through `&mut self`.
        unsafe { Units::new(at, self.max_units - from) }
    }

    /// The requests, in order.
    #[inline(always)]
    pub(crate) fn requests(&self) -> StagedRequests<'_> {
        StagedRequests {
            // The place behind the one that belongs to no request.
            next: self.memory.as_ptr().cast::<u8>().wrapping_add(self.place_bytes),
            left: self.count,
            place_bytes: self.place_bytes,
            max_units: self.max_units,
            _memory: PhantomData,
        }
    }
}

/// Walks the requests of a [`StagedMem`].
pub(crate) struct StagedRequests<'a> {
    next: *const u8,
    left: u32,
    place_bytes: usize,
    max_units: usize,
    _memory: PhantomData<&'a StagedMem>,
}

impl<'a> Iterator for StagedRequests<'a> {
    type Item = StagedRequest<'a>;

    #[inline(always)]
    fn next(&mut self) -> Option<StagedRequest<'a>> {
        self.left = self.left.checked_sub(1)?;
        let place = self.next;
        self.next = place.wrapping_add(self.place_bytes);
        Some(StagedRequest { place, max_units: self.max_units, _memory: PhantomData })
    }
}

/// A request of a [`StagedMem`].
pub(crate) struct StagedRequest<'a> {
    /// A place of the memory.
    place: *const u8,
    max_units: usize,
    _memory: PhantomData<&'a StagedMem>,
}

impl<'a> StagedRequest<'a> {
    #[inline(always)]
    pub(crate) fn head(&self) -> &'a StagedHead {
        // SAFETY: as in `StagedMem::head`; shared, as the borrow of the memory is.
        unsafe { &*self.place.cast::<StagedHead>() }
    }

    /// The units behind the control segment, up to the end of the first block.
    #[inline(always)]
    pub(crate) fn first_body(&self) -> &'a [Unit; BLOCK_UNITS - 1] {
        let at = self.place.wrapping_add((BEFORE_WQE + 1) * SEGMENT_BYTES);
        // SAFETY: a place has at least one block, aligned to 16.
        unsafe { &*at.cast() }
    }

    /// All units behind the control segment, without padding to a block.
    pub(crate) fn body(&self) -> &'a [[u64; 2]] {
        let len = (self.head().units as usize).min(self.max_units).saturating_sub(1);
        let at = self.place.wrapping_add((BEFORE_WQE + 1) * SEGMENT_BYTES);
        // SAFETY: that many units are left in the place behind the control segment.
        unsafe { core::slice::from_raw_parts(at.cast(), len) }
    }
}
