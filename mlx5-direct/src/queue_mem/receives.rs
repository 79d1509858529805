//! The receive ring of a QP: software writes it, the device reads it.
//!
//! A slot is a list of data segments that starts at the slot's first byte. If the list is shorter
//! than the slot, a terminator ends it.

use core::ptr::NonNull;
use std::collections::TryReserveError;

use crate::{
    memory::Keep,
    table::table,
    wqe::{DataSeg, KeyedSeg, SEGMENT_BYTES},
};

/// The ring of slots, and one cookie per slot.
#[derive(Debug)]
pub(crate) struct RqMem {
    base: NonNull<u8>,
    /// `mask + 1` entries.
    cookies: Box<[u64]>,
    mask: u32,
    stride_bytes: u32,
    _keep: Keep,
}

// SAFETY: plain memory without thread affinity; every write to the ring goes through `&mut self`.
unsafe impl Send for RqMem {}
// SAFETY: a shared reference reads only; writes need `&mut self`.
unsafe impl Sync for RqMem {}

impl RqMem {
    /// # Safety
    ///
    /// `base` is 16-byte aligned and valid for reads and writes of `wqe_count * stride_bytes` bytes
    /// while the value lives, and only this value writes there. Both numbers are powers of two, the
    /// stride at least 16.
    pub(super) unsafe fn new(
        base: NonNull<u8>,
        wqe_count: u32,
        stride_bytes: u32,
        keep: Keep,
    ) -> Result<Self, TryReserveError> {
        let cookies = table(wqe_count as usize, |_| 0)?;
        Ok(Self { base, cookies, mask: wqe_count - 1, stride_bytes, _keep: keep })
    }

    pub(crate) fn mask(&self) -> u32 {
        self.mask
    }

    #[inline(always)]
    pub(crate) fn max_segments(&self) -> u32 {
        self.stride_bytes / SEGMENT_BYTES as u32
    }

    /// The cookie of a slot; the index is masked into the ring.
    #[inline(always)]
    pub(crate) fn cookie(&self, index: u32) -> u64 {
        // SAFETY: the masked index is below the number of cookies.
        *unsafe { self.cookies.get_unchecked((index & self.mask) as usize) }
    }

    /// The first segment of a slot, whose cookie is set; the index is masked into the ring.
    #[inline(always)]
    fn begin(&mut self, index: u32, cookie: u64) -> *mut [u64; 2] {
        let index = (index & self.mask) as usize;
        // SAFETY: the masked index is below the number of slots and of cookies.
        unsafe {
            *self.cookies.get_unchecked_mut(index) = cookie;
            self.base.as_ptr().add(index * self.stride_bytes as usize).cast()
        }
    }

    /// As [`RqMem::write`], for segments that are not empty. Writes nothing if they do not fit.
    #[inline(always)]
    pub(crate) fn write_few<const N: usize>(&mut self, index: u32, segs: [KeyedSeg; N], cookie: u64) {
        let room = self.max_segments() as usize;
        if N > 1 && N > room {
            return;
        }
        let slot = self.begin(index, cookie);
        for (n, seg) in segs.into_iter().enumerate() {
            // SAFETY: n < N segments fit into the slot, of which the first always does, aligned as
            // ring and stride are; exclusive through `&mut self`.
            unsafe { slot.add(n).write(seg.to_words()) };
        }
        if N < room {
            // SAFETY: as above, for one more segment.
            unsafe { slot.add(N).write(DataSeg::TERMINATOR.to_words()) };
        }
    }

    /// Writes a slot; the index is masked into the ring. Leaves out empty segments and those that
    /// do not fit.
    #[inline(always)]
    pub(crate) fn write(&mut self, index: u32, segs: impl Iterator<Item = DataSeg>, cookie: u64) {
        let slot = self.begin(index, cookie);
        let room = self.max_segments() as usize;
        let mut used = 0;
        for seg in segs.filter(|seg| seg.byte_count() != 0) {
            if used == room {
                return;
            }
            // SAFETY: used < room segments fit into the slot, aligned as ring and stride are;
            // exclusive through `&mut self`.
            unsafe { slot.add(used).write(seg.to_words()) };
            used += 1;
        }
        if used < room {
            // SAFETY: as above.
            unsafe { slot.add(used).write(DataSeg::TERMINATOR.to_words()) };
        }
    }

    /// The n-th segment of a slot, `None` behind the last. The device only reads the slot, so the
    /// segment is as written.
    pub(crate) fn segment(&self, index: u32, n: u32) -> Option<DataSeg> {
        if n >= self.max_segments() {
            return None;
        }
        let index = (index & self.mask) as usize;
        // SAFETY: the masked index is below the number of slots, and n below that of segments of a
        // slot.
        let words = unsafe {
            let slot = self.base.as_ptr().add(index * self.stride_bytes as usize).cast::<[u64; 2]>();
            slot.add(n as usize).read()
        };
        let seg = DataSeg::from_words(words);
        (seg.lkey() != DataSeg::TERMINATOR.lkey()).then_some(seg)
    }
}
