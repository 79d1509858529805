//! The SRQ's slots: written by us, read by the device, never read back.

use core::ptr::NonNull;
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use super::Keep;
use crate::{
    be::Be16,
    wqe::{self, DataSeg, WqeIndex},
};

/// The SRQ's ring of slots, write-only, and beside it one cookie per slot.
#[derive(Debug)]
pub(crate) struct WqeMem {
    pub(super) base: NonNull<u8>,
    pub(super) mask: u32,
    pub(super) stride_bytes: u32,
    /// `mask + 1` of them.
    pub(super) cookies: Arc<[AtomicU64]>,
    pub(super) _keep: Keep,
}

// SAFETY: plain memory without thread affinity; every write to the ring goes through `&mut self`.
unsafe impl Send for WqeMem {}

impl WqeMem {
    pub(crate) fn mask(&self) -> u32 {
        self.mask
    }

    pub(crate) fn max_segments(&self) -> u32 {
        wqe::max_segments(self.stride_bytes)
    }

    /// All cookies, by slot.
    pub(crate) fn cookies(&self) -> &Arc<[AtomicU64]> {
        &self.cookies
    }

    /// The cookie of a slot; the index is masked into the ring.
    #[inline(always)]
    pub(crate) fn cookie(&self, index: u32) -> &AtomicU64 {
        // SAFETY: the masked index is below `mask + 1`, the number of cookies.
        unsafe { self.cookies.get_unchecked((index & self.mask) as usize) }
    }

    /// A slot, to write it; the index is masked into the ring.
    #[inline(always)]
    pub(crate) fn slot(&mut self, index: u32) -> SlotMut<'_> {
        let masked = index & self.mask;
        // SAFETY: in bounds because the masked index is below `mask + 1`: the ring has that many strides, and there are
        // that many cookies.
        unsafe {
            let wqe = self.base.as_ptr().add(masked as usize * self.stride_bytes as usize);
            let cookie = self.cookies.get_unchecked(masked as usize);
            SlotMut { wqe, stride_bytes: self.stride_bytes, cookie }
        }
    }

    /// Up to `n` neighbouring slots from `first` on, cut at the end of the ring.
    #[inline(always)]
    pub(crate) fn run(&mut self, first: u32, n: u32) -> RunMut<'_> {
        let first = first & self.mask;
        let n = n.min(self.mask + 1 - first) as usize;
        // SAFETY: first + n is at most `mask + 1`, as in `slot`.
        unsafe {
            let wqe = self.base.as_ptr().add(first as usize * self.stride_bytes as usize);
            let cookies = self.cookies.get_unchecked(first as usize..first as usize + n);
            RunMut { wqe, stride_bytes: self.stride_bytes, cookies }
        }
    }
}

/// Neighbouring slots that are not posted: a stride of queue memory for each of `cookies`, from `wqe` on.
pub(crate) struct RunMut<'a> {
    wqe: *mut u8,
    stride_bytes: u32,
    cookies: &'a [AtomicU64],
}

impl RunMut<'_> {
    /// Fills slots from the iterator until either ends; returns how many.
    #[inline(always)]
    pub(crate) fn fill<T: Body>(self, bufs: impl Iterator<Item = (T, u64)>) -> u32 {
        let (mut filled, mut wqe) = (0, self.wqe);
        for (cookie, (body, value)) in self.cookies.iter().zip(bufs) {
            SlotMut { wqe, stride_bytes: self.stride_bytes, cookie }.fill(body, value);
            // Wrapping, since it ends one stride past the last slot.
            wqe = wqe.wrapping_add(self.stride_bytes as usize);
            filled += 1;
        }
        filled
    }
}

/// One slot that is not posted: `stride_bytes` of queue memory from `wqe` on, and its cookie.
pub(crate) struct SlotMut<'a> {
    wqe: *mut u8,
    stride_bytes: u32,
    cookie: &'a AtomicU64,
}

impl SlotMut<'_> {
    #[inline(always)]
    pub(crate) fn set_cookie(&self, cookie: u64) {
        self.cookie.store(cookie, Relaxed);
    }

    #[inline(always)]
    pub(crate) fn fill(mut self, body: impl Body, cookie: u64) {
        body.write(&mut self);
        self.set_cookie(cookie);
    }

    /// Sets where the device goes after this slot.
    #[inline(always)]
    pub(crate) fn write_next(&mut self, next: WqeIndex) {
        let field = self.wqe.wrapping_add(wqe::NEXT_INDEX_OFFSET).cast::<Be16>();
        // SAFETY: inside the slot's first 16 bytes, 2-byte aligned; exclusive through `&mut WqeMem`.
        unsafe { field.write(Be16::new(next.0)) };
    }

    /// Writes the only data segment, and the terminator where the slot has room for more than one.
    #[inline(always)]
    pub(crate) fn write_one(&mut self, seg: DataSeg) {
        // SAFETY: the stride is at least 32 bytes, so one segment always fits.
        unsafe { self.write_segment(0, seg) };
        if self.stride_bytes > wqe::MIN_STRIDE_BYTES {
            // SAFETY: strides are powers of two, so this one is at least 64 bytes and a second segment fits.
            unsafe { self.write_segment(1, DataSeg::TERMINATOR) };
        }
    }

    /// Writes all data segments, and the terminator where they are fewer than fit. Extra segments are left out.
    #[inline(always)]
    pub(crate) fn write_all(&mut self, segs: impl Iterator<Item = DataSeg>) {
        let room = wqe::max_segments(self.stride_bytes) as usize;
        let mut used = 0;
        for seg in segs.take(room) {
            // SAFETY: used < room segments fit after the next segment.
            unsafe { self.write_segment(used, seg) };
            used += 1;
        }
        if used < room {
            // SAFETY: used < room, so one more segment fits.
            unsafe { self.write_segment(used, DataSeg::TERMINATOR) };
        }
    }

    /// # Safety
    ///
    /// `n` is below the number of data segments that fit into the stride.
    #[inline(always)]
    unsafe fn write_segment(&mut self, n: usize, seg: DataSeg) {
        let at = self.wqe.wrapping_add(wqe::FIRST_SEG_OFFSET + n * wqe::SEGMENT_BYTES).cast::<u64>();
        let [first, second] = seg.to_words();
        // SAFETY: 16 bytes inside the slot by contract, 16-byte aligned since ring and stride are; exclusive through
        // `&mut WqeMem`.
        unsafe {
            at.write(first);
            at.add(1).write(second);
        }
    }

    /// Writes the address of the first data segment and nothing else.
    #[inline(always)]
    pub(crate) fn write_address(&mut self, addr: u64) {
        let field = self.wqe.wrapping_add(wqe::FIRST_ADDR_OFFSET).cast::<u64>();
        // SAFETY: bytes 24..32 of a slot of at least 32 bytes, 8-byte aligned; exclusive through `&mut WqeMem`.
        unsafe { field.write(addr.to_be()) };
    }
}

/// What a post writes into a slot.
pub(crate) trait Body: Copy {
    fn write(self, slot: &mut SlotMut<'_>);

    /// As two words, which a call passes in registers; a struct it would pass through the stack.
    fn to_words(self) -> [u64; 2];
    fn from_words(words: [u64; 2]) -> Self;
}

impl Body for DataSeg {
    #[inline(always)]
    fn write(self, slot: &mut SlotMut<'_>) {
        slot.write_one(self);
    }

    #[inline(always)]
    fn to_words(self) -> [u64; 2] {
        DataSeg::to_words(self)
    }

    #[inline(always)]
    fn from_words(words: [u64; 2]) -> Self {
        DataSeg::from_words(words)
    }
}

/// An address, where length and lkey are in place.
impl Body for u64 {
    #[inline(always)]
    fn write(self, slot: &mut SlotMut<'_>) {
        slot.write_address(self);
    }

    #[inline(always)]
    fn to_words(self) -> [u64; 2] {
        [self, 0]
    }

    #[inline(always)]
    fn from_words(words: [u64; 2]) -> Self {
        words[0]
    }
}
