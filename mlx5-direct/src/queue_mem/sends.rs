//! A send queue's ring: software writes it, the device reads it.
//!
//! The ring is a power of two of 64-byte blocks. A WQE starts at a block and may wrap around the
//! end of the ring at any of its 16-byte units. A WQE that wraps is built outside the ring and
//! copied in two pieces, so that all other code sees contiguous memory. A table has one [`Record`]
//! for each block; the one of a WQE's first block is used.

use core::{marker::PhantomData, ptr::NonNull};
use std::collections::TryReserveError;

use crate::{
    doorbell::SendRegister,
    memory::{Keep, Unit, Units, unit},
    position::ONE_BLOCK,
    table::table,
    wqe::{
        SEGMENT_BYTES,
        send::{BLOCK_BYTES, BLOCK_UNITS, MAX_UNITS},
    },
};

mod few_blocks;
mod one_block;

/// The record of a request, stored at the number of its first block.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Record<C = u64> {
    pub(crate) cookie: C,
    /// Position of the queue behind the request.
    pub(crate) after: u64,
}

impl<C> Record<C> {
    /// The size in units of eight bytes.
    const EIGHTHS: usize = {
        assert!(size_of::<Self>().is_multiple_of(8));
        size_of::<Self>() / 8
    };
}

/// What a queue stores with a request. See [`Sq::with_cookies_of`](crate::Sq::with_cookies_of).
///
/// Its size is a multiple of 8 bytes. [`Sq::post_batch`](crate::Sq::post_batch) compiles for 0, 8,
/// 24 and 56 bytes only: the cookie and 8 bytes more have to divide the 64 bytes of a block.
pub trait Cookie: Copy + Default + core::fmt::Debug {}

impl<C: Copy + Default + core::fmt::Debug> Cookie for C {}

/// What a prepared request adds to the position in addition to [`ONE_BLOCK`], where the position is
/// compared with the limit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extra(u64);

impl Extra {
    /// The request has one block.
    pub(crate) const NONE: Self = Self(0);
    /// The request needs another check. No limit is so far away.
    pub(crate) const CHECKED: Self = Self(1 << 61);
}

/// The send queue's ring, its position, and the record of each request. Software reads back what it
/// wrote for copies of BlueFlame and for doorbells, and the segments of a request whose result is
/// in its completion entry.
///
/// In this order, so that what a post needs is in 48 bytes: see [`Sq`](crate::Sq).
#[derive(Debug)]
#[repr(C)]
pub(crate) struct SqMem<C = u64> {
    /// Position of the next request.
    at: u64,
    /// Requests of one block may be posted up to this position without any other check. Their
    /// blocks follow each other in the ring, and their records in the table.
    limit: u64,
    /// The block with running number `n` is at `blocks + 64 * n`, from `at` to `limit`.
    blocks: *mut u8,
    /// The record of that block is `records[n]`.
    records: *mut Record<C>,
    /// What the control segments of all requests have in common: QP number and flags.
    common: Unit,
    /// `mask + 1` entries.
    table: Box<[Record<C>]>,
    mask: u32,
    base: NonNull<u8>,
    _keep: Keep,
}

// SAFETY: plain memory without thread affinity; every write to the ring goes through `&mut self`.
unsafe impl<C: Send> Send for SqMem<C> {}
// SAFETY: a shared reference reads only; writes need `&mut self`.
unsafe impl<C: Sync> Sync for SqMem<C> {}

impl<C: Cookie> SqMem<C> {
    /// # Safety
    ///
    /// `base` is 64-byte aligned and valid for reads and writes of `block_count` blocks while the
    /// value lives, and only this value writes there. The count is a power of two.
    pub(super) unsafe fn new(
        base: NonNull<u8>,
        block_count: u32,
        keep: Keep,
    ) -> Result<Self, TryReserveError> {
        let table = table(block_count as usize, |_| Record::default())?;
        Ok(Self {
            at: 0,
            limit: 0,
            blocks: base.as_ptr(),
            records: core::ptr::null_mut(),
            common: unit([0; 2]),
            mask: block_count - 1,
            base,
            table,
            _keep: keep,
        })
    }

    /// The same ring with records that have other cookies. All records begin anew, so nothing may
    /// be posted.
    pub(crate) fn with_cookies_of<D: Cookie>(self) -> Result<SqMem<D>, TryReserveError> {
        let Self { at, blocks, common, mask, base, table: old, _keep, .. } = self;
        let table = table(old.len(), |_| Record::default())?;
        let records = core::ptr::null_mut();
        Ok(SqMem { at, limit: at, blocks, records, common, mask, base, table, _keep })
    }

    /// Sets what the control segments of all requests have in common.
    /// `flags` are in memory order.
    pub(crate) fn set_common(&mut self, qpn: u32, flags: u64) {
        self.common = unit([u64::from(qpn << 8).to_be(), flags]);
    }

    /// Position of the next request.
    #[inline(always)]
    pub(crate) fn position(&self) -> u64 {
        self.at
    }

    /// Goes to another position. From now on until the next [`aim`](Self::aim), every request needs
    /// a check.
    #[inline(always)]
    pub(crate) fn set_position(&mut self, at: u64) {
        (self.at, self.limit) = (at, at);
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
    pub(crate) fn record(&self, block: u32) -> &Record<C> {
        // SAFETY: the masked number is below `mask + 1`, the length of the table.
        unsafe { self.table.get_unchecked((block & self.mask) as usize) }
    }

    #[inline(always)]
    pub(crate) fn set_record(&mut self, block: u32, record: Record<C>) {
        // SAFETY: as in `record`.
        unsafe { *self.table.get_unchecked_mut((block & self.mask) as usize) = record };
    }

    /// Lets at most `most` requests of one block, and none beyond the end of the ring, be posted
    /// without any other check.
    #[inline]
    pub(crate) fn aim(&mut self, most: u32) {
        let number = usize::from(self.at as u16);
        let (first, len) = self.run_at(number as u32, most);
        // Where block 0 and record 0 would be if running numbers were indices. Both places may be
        // outside the allocations, so the arithmetic wraps. A number from `at` to `limit` leads
        // inside again.
        let lap = number.wrapping_sub(first);
        self.blocks = self.base.as_ptr().wrapping_sub(lap.wrapping_mul(BLOCK_BYTES));
        self.records = self.table.as_mut_ptr().wrapping_sub(lap);
        self.limit = self.at.wrapping_add(len as u64 * ONE_BLOCK);
    }

    /// The index of the block with this number, and how many blocks follow each other from there
    /// on, not beyond the end of the ring and at most `most`.
    #[inline(always)]
    fn run_at(&self, number: u32, most: u32) -> (usize, usize) {
        let first = (number & self.mask) as usize;
        (first, (self.table.len() - first).min(most as usize))
    }

    /// Neighbouring blocks from the position on, not beyond the end of the ring and at most `most`.
    #[inline(always)]
    pub(crate) fn run(&mut self, most: u32) -> BlocksMut<'_, C> {
        let (first, len) = self.run_at(u32::from(self.at as u16), most);
        // SAFETY: first + len is at most the number of blocks, and of entries of the table.
        let (blocks, records) = unsafe {
            let end = first + len;
            (self.base.as_ptr().add(end * BLOCK_BYTES), self.table.as_mut_ptr().add(end))
        };
        let offset = -((len * size_of::<Record<C>>()) as isize);
        BlocksMut { blocks, records, offset, _memory: PhantomData }
    }

    /// Calls the writer of a WQE of `units` units at `block`. The WQE has at most [`MAX_UNITS`]
    /// units, and not more than the ring.
    #[inline(always)]
    pub(crate) fn write(&mut self, block: u32, units: usize, body: impl FnOnce(&mut Units<'_>)) {
        let room = (self.mask + 1 - (block & self.mask)) as usize * BLOCK_UNITS;
        if units <= room {
            // SAFETY: the units are inside the ring, aligned as it is; exclusive through `&mut
            // self`.
            return body(&mut unsafe { Units::new(self.at(block), units) });
        }
        let mut beside = [[0u64; 2]; MAX_UNITS];
        // SAFETY: inside the array, aligned for its words; nobody else uses it.
        body(&mut unsafe { Units::new(beside.as_mut_ptr().cast(), units.min(MAX_UNITS)) });
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

/// Neighbouring blocks of the ring, for WQEs of one block each.
pub(crate) struct BlocksMut<'a, C> {
    /// The address behind the last block.
    blocks: *mut u8,
    /// The address behind the last record; there is one for each block.
    records: *mut Record<C>,
    /// Offset of the next record from there, in bytes: negative, or 0 behind the last one.
    offset: isize,
    _memory: PhantomData<&'a mut Record<C>>,
}

impl<C> BlocksMut<'_, C> {
    /// The size of the records that are left, in bytes.
    #[inline(always)]
    pub(crate) fn left(&self) -> usize {
        self.offset.cast_unsigned().wrapping_neg()
    }
}

impl<'a, C> Iterator for BlocksMut<'a, C> {
    type Item = (Units<'a>, &'a mut Record<C>);

    #[inline(always)]
    fn next(&mut self) -> Option<Self::Item> {
        if self.offset == 0 {
            return None;
        }
        let offset = opaque(self.offset.cast_unsigned()).cast_signed();
        self.offset = offset + size_of::<Record<C>>() as isize;
        // A block has the size of two or four records.
        const { assert!(BLOCK_BYTES.is_multiple_of(size_of::<Record<C>>())) };
        let blocks = offset * const { (BLOCK_BYTES / size_of::<Record<C>>()) as isize };
        // SAFETY: at least one record before the end, so a block of the ring and an entry of the
        // table; each is given out once.
        unsafe {
            let wqe = Units::new(self.blocks.offset(blocks), BLOCK_UNITS);
            Some((wqe, &mut *self.records.byte_offset(offset)))
        }
    }
}

/// Hides a value from the optimiser, which would otherwise keep what is derived from it, such as
/// each multiple, in registers of its own.
#[inline(always)]
pub(crate) fn opaque(value: usize) -> usize {
    #[cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri)))]
    {
        let mut value = value;
        // SAFETY: there is no instruction.
        unsafe {
            core::arch::asm!("/* {0} */", inout(reg) value, options(pure, nomem, nostack, preserves_flags));
        };
        value
    }
    #[cfg(not(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri))))]
    value
}
