//! The next few blocks of a send queue's ring, for a request that is longer than one block: taken,
//! written, and handed to the device.

use core::marker::PhantomData;

use super::{Cookie, Record, SqMem, opaque};
use crate::{
    doorbell::{BLUEFLAME_BYTES, CounterDbRec, SendRegister},
    memory::{Unit, Units, add_units, or_units, unit},
    position::{ONE_BLOCK, REQUEST},
    wqe::{
        SEGMENT_BYTES,
        send::{BLOCK_BYTES, BLOCK_UNITS},
    },
};

/// The most blocks that BlueFlame copies.
const MOST: usize = BLUEFLAME_BYTES as usize / BLOCK_BYTES;

impl<C: Cookie> SqMem<C> {
    /// Takes the place of the next request, which has `count` blocks, and records its cookie, if the
    /// request may be posted without any other check and BlueFlame copies so many. Otherwise
    /// changes nothing. The queue was made for requests of `count` blocks.
    #[inline(always)]
    pub(crate) fn next_blocks(
        &mut self,
        count: usize,
        cookie: C,
        register: &SendRegister,
    ) -> Option<FewBlocks<'_>> {
        self.blocks_after(register.step(), count, cookie)
    }

    /// As [`next_blocks`](Self::next_blocks), for a request that a doorbell hands to the device.
    #[inline(always)]
    pub(crate) fn next_blocks_of_doorbell(&mut self, count: usize, cookie: C) -> Option<FewBlocks<'_>> {
        self.blocks_after(ONE_BLOCK, count, cookie)
    }

    /// The blocks at the position, if they are within the limit after this step for the first one.
    #[inline(always)]
    fn blocks_after(&mut self, step: u64, count: usize, cookie: C) -> Option<FewBlocks<'_>> {
        if !(1..=MOST).contains(&count) {
            return None;
        }
        let (at, more) = (self.at, count as u64 - 1);
        // As if each block were a request: all are in the run then.
        let last = at.wrapping_add(step).wrapping_add(more * ONE_BLOCK);
        if self.limit.wrapping_sub(last).cast_signed() < 0 {
            return None;
        }
        let after = at.wrapping_add(REQUEST + 1 + more);
        self.at = after;
        // What is left of the run is as many requests as blocks again.
        self.limit = self.limit.wrapping_sub(more * REQUEST);
        let number = usize::from(at as u16);
        let offset = opaque(number * 8);
        let wqe = self.blocks.wrapping_byte_add(offset * 8);
        let record = self.records.wrapping_byte_add(offset * const { Record::<C>::EIGHTHS });
        let ctrl = add_units(unit([((number as u64) << 40).to_be(), 0]), self.common);
        // SAFETY: the last of the blocks was within the limit, so the numbers of all of them are
        // among those for which `aim` has set the pointers.
        unsafe { *record = Record { cookie, after } };
        Some(FewBlocks { wqe, blocks: count, ctrl, count: after as u16, _memory: PhantomData })
    }
}

/// The place of a request of one block or a few. From [`SqMem::next_blocks`], the queue's register
/// has BlueFlame.
pub(crate) struct FewBlocks<'a> {
    /// Neighbouring blocks of the ring.
    wqe: *mut u8,
    /// 1 to [`MOST`].
    blocks: usize,
    /// The control segment, without what the request itself says.
    ctrl: Unit,
    /// The count of the doorbell record.
    count: u16,
    _memory: PhantomData<&'a mut u8>,
}

impl FewBlocks<'_> {
    /// Room for the units behind the control segment, to be written before it.
    #[inline(always)]
    pub(crate) fn body(&mut self) -> Units<'_> {
        // SAFETY: all but the first unit of these blocks of the ring, which is 64-byte aligned;
        // exclusive through the borrow of the ring.
        unsafe { Units::new(self.wqe.add(SEGMENT_BYTES), self.blocks * BLOCK_UNITS - 1) }
    }

    /// Writes the control segment with what the request itself says. A later doorbell hands the WQE
    /// to the device.
    #[inline(always)]
    pub(crate) fn keep(&mut self, ctrl: [u64; 2]) {
        // SAFETY: the first unit of a block of the ring, which is 64-byte aligned; exclusive
        // through the borrow of the ring.
        unsafe { self.wqe.cast::<Unit>().write(or_units(self.ctrl, unit(ctrl))) };
    }

    /// Writes the control segment with what the request itself says, and hands the WQE to the
    /// device: barrier, record, flush, BlueFlame.
    #[inline(always)]
    pub(crate) fn ring(mut self, ctrl: [u64; 2], dbrec: &mut CounterDbRec, register: &mut SendRegister) {
        self.keep(ctrl);
        dbrec.publish(self.count);
        register.begin();
        for n in 0..self.blocks {
            // SAFETY: one of the blocks, of which there are four at most; and `next_blocks` has
            // checked that the register has BlueFlame.
            unsafe { register.copy_block(n as u32, self.wqe.add(n * BLOCK_BYTES)) };
        }
        register.end();
    }
}
