//! A send queue's ring: software writes it, the device reads it.
//!
//! The ring is a power of two of 64-byte blocks. A WQE starts at a block and may wrap around the
//! end of the ring at any of its 16-byte units. A WQE that wraps is built outside the ring and
//! copied in two pieces, so that all other code sees contiguous memory. A table has one [`Posted`]
//! for each block; the one of a WQE's first block is used.

use core::{marker::PhantomData, ptr::NonNull};
use std::collections::TryReserveError;

use super::Keep;
use crate::{
    dbrec::CounterDbRec,
    table::table,
    uar::{SendRegister, Unit},
    wqe::{
        SEGMENT_BYTES,
        send::{BLOCK_BYTES, BLOCK_UNITS, INLINE_HEADER_BYTES, InlineHeader, MAX_UNITS, flags_word},
    },
};

/// The record of a request, stored at the number of its first block.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Posted {
    pub(crate) cookie: u64,
    /// Position of the queue behind the request: see [`Sq`](crate::Sq).
    pub(crate) after: u64,
}

/// The send queue's ring, and the record of each request. The ring is write-only, except for the
/// copies of BlueFlame.
#[derive(Debug)]
pub(crate) struct SqMem {
    /// Memory of the next request of one block, if `left` is not 0.
    next: *mut u8,
    /// Record of the same request.
    next_posted: *mut Posted,
    /// Requests of one block that may be posted without any other check. As many blocks of the
    /// ring, from `next` on, and as many records, from `next_posted` on, follow each other.
    left: u32,
    mask: u32,
    base: NonNull<u8>,
    /// `mask + 1` entries.
    posted: Box<[Posted]>,
    _keep: Keep,
}

// SAFETY: plain memory without thread affinity; every write to the ring goes through `&mut self`.
unsafe impl Send for SqMem {}
// SAFETY: a shared reference reads only; writes need `&mut self`.
unsafe impl Sync for SqMem {}

impl SqMem {
    /// # Safety
    ///
    /// `base` is 64-byte aligned and valid for reads and writes of `block_count` blocks while the
    /// value lives, and only this value writes there. The count is a power of two.
    pub(super) unsafe fn new(
        base: NonNull<u8>,
        block_count: u32,
        keep: Keep,
    ) -> Result<Self, TryReserveError> {
        let posted = table(block_count as usize, |_| Posted::default())?;
        let (next, next_posted) = (base.as_ptr(), core::ptr::null_mut());
        Ok(Self { next, next_posted, left: 0, mask: block_count - 1, base, posted, _keep: keep })
    }

    pub(crate) fn mask(&self) -> u32 {
        self.mask
    }

    /// The memory of a block; the number is masked into the ring.
    #[inline(always)]
    fn at(&self, block: u32) -> *mut u8 {
        // SAFETY: the masked number is below the number of blocks.
        unsafe { self.base.as_ptr().add((block & self.mask) as usize * BLOCK_BYTES) }
    }

    /// The record of the request at `block`; the number is masked into the ring.
    #[inline(always)]
    pub(crate) fn posted(&self, block: u32) -> &Posted {
        // SAFETY: the masked number is below `mask + 1`, the length of the table.
        unsafe { self.posted.get_unchecked((block & self.mask) as usize) }
    }

    #[inline(always)]
    pub(crate) fn set_posted(&mut self, block: u32, posted: Posted) {
        // SAFETY: as in `posted`.
        unsafe { *self.posted.get_unchecked_mut((block & self.mask) as usize) = posted };
    }

    /// Sets the place of the next request of one block. At most `most` requests may be posted
    /// without any other check, and none beyond the end of the ring.
    #[inline]
    pub(crate) fn aim(&mut self, block: u32, most: u32) {
        let BlocksMut { memory, posted } = self.span(block, most);
        let posted = posted.into_slice();
        (self.left, self.next_posted, self.next) = (posted.len() as u32, posted.as_mut_ptr(), memory);
    }

    /// The place of the next request of one block is not known until the next [`aim`](Self::aim).
    #[inline(always)]
    pub(crate) fn forget_next(&mut self) {
        self.left = 0;
    }

    /// Takes the place of the next request of one block, if one may be posted without any other
    /// check. Call [`aim`](Self::aim) after `None`, and after writing requests in any other way.
    #[inline(always)]
    pub(crate) fn next_block(&mut self, register: &SendRegister) -> Option<OneBlock<'_>> {
        // The price is 1, or more than any `left`.
        let (left, none) = self.left.overflowing_sub(register.price());
        self.left = left;
        if none {
            self.left = 0;
            return None;
        }
        let (wqe, posted) = (self.next, self.next_posted);
        // The additions wrap, since the addresses behind the last ones are computed as well.
        self.next = wqe.wrapping_add(BLOCK_BYTES);
        self.next_posted = posted.wrapping_add(1);
        Some(OneBlock { wqe, posted, _memory: PhantomData })
    }

    /// Neighbouring blocks from `block` on, not beyond the end of the ring and at most `most`:
    /// their number and their memory.
    #[inline(always)]
    pub(crate) fn span(&mut self, block: u32, most: u32) -> BlocksMut<'_> {
        let first = (block & self.mask) as usize;
        let len = (self.posted.len() - first).min(most as usize);
        // SAFETY: first + len is at most the number of blocks, and of entries of the table.
        let (memory, posted) = unsafe {
            (self.base.as_ptr().add(first * BLOCK_BYTES), self.posted.get_unchecked_mut(first..first + len))
        };
        BlocksMut { memory, posted: posted.iter_mut() }
    }

    /// Calls the writer of a WQE of `units` units at `block`. The WQE has at most [`MAX_UNITS`]
    /// units, and not more than the ring.
    #[inline(always)]
    pub(crate) fn write(&mut self, block: u32, units: usize, body: impl FnOnce(&mut Units<'_>)) {
        let room = (self.mask + 1 - (block & self.mask)) as usize * BLOCK_UNITS;
        if units <= room {
            let mut out = Units { at: self.at(block), left: units, _memory: PhantomData };
            return body(&mut out);
        }
        let mut beside = [[0u64; 2]; MAX_UNITS];
        let mut out =
            Units { at: beside.as_mut_ptr().cast(), left: units.min(MAX_UNITS), _memory: PhantomData };
        body(&mut out);
        self.write_wrapped(block, &beside[..units.min(MAX_UNITS)]);
    }

    /// Copies a WQE that wraps around the end of the ring.
    #[inline(never)]
    fn write_wrapped(&mut self, block: u32, units: &[[u64; 2]]) {
        for (n, unit) in units.iter().enumerate() {
            let at = self.at(block.wrapping_add((n / BLOCK_UNITS) as u32));
            // SAFETY: one of the four units of a block in the ring, aligned as the ring is;
            // exclusive through `&mut self`.
            unsafe { at.add(n % BLOCK_UNITS * SEGMENT_BYTES).cast::<[u64; 2]>().write(*unit) };
        }
    }

    /// The first 8 bytes of the WQE at `block`, in memory order: the value of an 8-byte doorbell.
    #[inline(always)]
    pub(crate) fn first_word(&self, block: u32) -> u64 {
        // SAFETY: inside the block, aligned; only this type writes there.
        unsafe { self.at(block).cast::<u64>().read() }
    }

    /// Size of the WQE at `block` in units, from its control segment.
    #[inline(always)]
    pub(crate) fn units_of(&self, block: u32) -> u32 {
        u64::from_be(self.first_word(block)) as u32 & MAX_UNITS as u32
    }

    /// Unit `unit` of the WQE at `block`, in memory order; wraps at the end of the ring. The device
    /// only reads posted requests, so the unit is as written.
    pub(crate) fn unit(&self, block: u32, unit: usize) -> [u64; 2] {
        let at = self.at(block.wrapping_add((unit / BLOCK_UNITS) as u32));
        // SAFETY: one of the four units of a block in the ring.
        unsafe { at.add(unit % BLOCK_UNITS * SEGMENT_BYTES).cast::<[u64; 2]>().read() }
    }

    /// Copies `blocks` blocks from `block` on to the register; wraps at the end of the ring.
    #[inline(always)]
    pub(crate) fn blueflame(&self, block: u32, blocks: u32, register: &mut SendRegister) {
        for n in 0..blocks {
            // SAFETY: a whole block of the ring, which only `&mut self` writes.
            unsafe { register.copy_block(n, self.at(block.wrapping_add(n))) };
        }
    }
}

/// The place of a request of one block, in a queue whose register has BlueFlame.
pub(crate) struct OneBlock<'a> {
    /// A block of the ring.
    wqe: *mut u8,
    /// Its record.
    posted: *mut Posted,
    _memory: PhantomData<&'a mut SqMem>,
}

impl OneBlock<'_> {
    /// Room for the WQE.
    #[inline(always)]
    pub(crate) fn units(&mut self) -> Units<'_> {
        Units { at: self.wqe, left: BLOCK_UNITS, _memory: PhantomData }
    }

    /// Hands the WQE to the device: barrier, record, flush, BlueFlame.
    #[inline(always)]
    pub(crate) fn ring(self, posted: Posted, dbrec: &mut CounterDbRec, register: &mut SendRegister) {
        // SAFETY: an entry of the table; exclusive through the borrow of the ring.
        unsafe { *self.posted = posted };
        dbrec.publish(posted.after as u16);
        // SAFETY: a whole block of the ring, which is 64-byte aligned.
        unsafe { register.ring_block(self.wqe) };
    }

    /// Writes a prepared WQE with this first word, and hands it to the device.
    #[inline(always)]
    pub(crate) fn ring_image(
        self,
        image: &WqeImage,
        word: u64,
        posted: Posted,
        dbrec: &mut CounterDbRec,
        register: &mut SendRegister,
    ) {
        let units = image.first_block(word);
        // SAFETY: four units of the block, aligned as the ring is, and an entry of the table;
        // exclusive through the borrow of the ring.
        unsafe {
            self.wqe.cast::<[Unit; 4]>().write(units);
            *self.posted = posted;
        }
        dbrec.publish(posted.after as u16);
        // SAFETY: `next_block` has checked that the register has BlueFlame.
        unsafe { register.ring_units(&units) };
    }
}

/// Neighbouring blocks of the ring, for WQEs of one block each.
pub(crate) struct BlocksMut<'a> {
    memory: *mut u8,
    /// One record for each block of `memory` that is left.
    posted: core::slice::IterMut<'a, Posted>,
}

impl<'a> Iterator for BlocksMut<'a> {
    type Item = (Units<'a>, &'a mut Posted);

    #[inline(always)]
    fn next(&mut self) -> Option<Self::Item> {
        let posted = self.posted.next()?;
        let at = self.memory;
        // The addition wraps, since the address behind the last block is computed as well.
        self.memory = at.wrapping_add(BLOCK_BYTES);
        Some((Units { at, left: BLOCK_UNITS, _memory: PhantomData }, posted))
    }
}

/// Units of a WQE that is being written, from front to back. Writes beyond them are left out.
#[derive(Debug)]
pub struct Units<'a> {
    at: *mut u8,
    /// Units that are valid for writes from `at` on.
    left: usize,
    _memory: PhantomData<&'a mut [u64; 2]>,
}

impl Units<'_> {
    /// Writes the next unit, in memory order.
    #[inline(always)]
    pub(crate) fn push(&mut self, [first, second]: [u64; 2]) {
        if self.left == 0 {
            return;
        }
        let at = self.at.cast::<u64>();
        // SAFETY: one more unit is valid for writes, aligned as blocks and the buffer outside the
        // ring are.
        unsafe {
            at.write(first);
            at.add(1).write(second);
        }
        self.skip(1);
    }

    /// Writes several units, in memory order.
    pub(crate) fn push_all(&mut self, words: &[u64]) {
        for pair in words.chunks_exact(2) {
            self.push([pair[0], pair[1]]);
        }
    }

    #[inline(always)]
    fn skip(&mut self, units: usize) {
        // The addition wraps, since the address behind the last unit is computed as well.
        self.at = self.at.wrapping_add(units * SEGMENT_BYTES);
        self.left -= units;
    }

    /// Writes an inline segment, or nothing if there are no bytes. The padding keeps the ring's old
    /// bytes.
    #[inline(always)]
    pub(crate) fn push_inline(&mut self, bytes: &[u8]) {
        let units = (INLINE_HEADER_BYTES + bytes.len()).div_ceil(SEGMENT_BYTES);
        if bytes.is_empty() || units > self.left {
            return;
        }
        // SAFETY: `units` units are valid for writes, and hold header and bytes.
        unsafe {
            self.at.cast::<u32>().write(InlineHeader::new(bytes.len() as u32).raw());
            self.at.add(INLINE_HEADER_BYTES).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
        }
        self.skip(units);
    }

    /// Writes an inline segment of several pieces, one after the other.
    #[inline(always)]
    pub(crate) fn push_inline_parts<'a>(&mut self, parts: impl Iterator<Item = &'a [u8]>) {
        let room = (self.left * SEGMENT_BYTES).saturating_sub(INLINE_HEADER_BYTES);
        let mut total = 0;
        for part in parts {
            if part.len() > room - total {
                return;
            }
            // SAFETY: that many bytes are left behind the header and the earlier pieces.
            unsafe {
                let to = self.at.add(INLINE_HEADER_BYTES + total);
                to.copy_from_nonoverlapping(part.as_ptr(), part.len());
            }
            total += part.len();
        }
        if total == 0 {
            return;
        }
        // SAFETY: there was room for a piece, so there is room for the header before it.
        unsafe { self.at.cast::<u32>().write(InlineHeader::new(total as u32).raw()) };
        self.skip((INLINE_HEADER_BYTES + total).div_ceil(SEGMENT_BYTES));
    }
}

/// A WQE of up to four blocks outside the ring, without QP number and block number.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
pub(crate) struct WqeImage {
    units: [[u64; 2]; WqeImage::UNITS],
    /// Where the inline bytes are, and how many: inside `units`.
    inline_at: usize,
    inline_len: usize,
}

impl WqeImage {
    /// Maximum number of units.
    pub(crate) const UNITS: usize = 4 * BLOCK_UNITS;

    pub(crate) fn new() -> Self {
        Self { units: [[0; 2]; Self::UNITS], inline_at: 0, inline_len: 0 }
    }

    /// Calls the writer of the WQE, which has `inline_len` inline bytes behind `head` units.
    pub(crate) fn write(
        &mut self,
        units: usize,
        (head, inline_len): (usize, usize),
        body: impl FnOnce(&mut Units<'_>),
    ) {
        let left = units.min(Self::UNITS);
        body(&mut Units { at: self.units.as_mut_ptr().cast(), left, _memory: PhantomData });
        self.set_inline_place(head, inline_len);
    }

    fn set_inline_place(&mut self, head: usize, inline_len: usize) {
        let inline_at = head * SEGMENT_BYTES + INLINE_HEADER_BYTES;
        assert!(inline_len == 0 || inline_at + inline_len <= size_of_val(&self.units));
        (self.inline_at, self.inline_len) = if inline_len > 0 { (inline_at, inline_len) } else { (0, 0) };
    }

    /// The units of the first block. The bits of `word`, in memory order, are added to the first 8
    /// bytes.
    #[inline(always)]
    pub(crate) fn first_block(&self, word: u64) -> [Unit; 4] {
        // SAFETY: four of the units of the image, which is 64-byte aligned; any bytes are valid.
        let mut units = unsafe { self.units.as_ptr().cast::<[Unit; 4]>().read() };
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        {
            use core::arch::x86_64::{_mm_cvtsi64_si128, _mm_or_si128};
            // SAFETY: every x86-64 processor has SSE2.
            units[0] = unsafe { _mm_or_si128(units[0], _mm_cvtsi64_si128(word.cast_signed())) };
        }
        #[cfg(any(not(target_arch = "x86_64"), miri))]
        {
            let mut bytes = [0; 16];
            bytes[..8].copy_from_slice(&word.to_ne_bytes());
            units[0] |= Unit::from_ne_bytes(bytes);
        }
        units
    }

    /// The control segment with QP number and block number filled in and these flags added.
    pub(crate) fn ctrl_words(&self, qpn_word: u64, block: u16, flags: u8) -> [u64; 2] {
        let [first, second] = self.units[0];
        [first | (qpn_word | u64::from(block) << 40).to_be(), second | flags_word(flags)]
    }

    /// Words of the units `first..end`.
    pub(crate) fn words(&self, first: usize, end: usize) -> &[u64] {
        self.units[first..end].as_flattened()
    }

    /// Changes a unit behind the control segment.
    pub(crate) fn set_unit(&mut self, unit: usize, words: [u64; 2]) {
        self.units[unit] = words;
    }

    /// The inline bytes; none if the WQE has segments.
    #[inline(always)]
    pub(crate) fn inline_bytes(&mut self) -> &mut [u8] {
        // SAFETY: inside `units`, as `set_inline_place` has checked; any bytes are valid integers;
        // exclusive through `&mut self`.
        unsafe {
            let first = self.units.as_mut_ptr().cast::<u8>().add(self.inline_at);
            core::slice::from_raw_parts_mut(first, self.inline_len)
        }
    }

    /// Whether the WQE has inline bytes.
    pub(crate) fn is_inline(&self) -> bool {
        self.inline_len > 0
    }

    /// Replaces the inline segment at `unit`, and sets the size of the WQE to `units`.
    pub(crate) fn set_inline(&mut self, unit: usize, bytes: &[u8], units: usize) {
        self.set_inline_place(unit, bytes.len());
        let left = Self::UNITS - unit;
        let at = self.units[unit..].as_mut_ptr().cast();
        Units { at, left, _memory: PhantomData }.push_inline(bytes);
        let size = MAX_UNITS as u64;
        let first = &mut self.units[0][0];
        *first = (u64::from_be(*first) & !size | units as u64 & size).to_be();
    }
}
