//! The next block of a send queue's ring: taken, written, and handed to the device.
//!
//! A request of one block goes through here, however it is posted.

use core::marker::PhantomData;

use super::{super::WqeImage, Cookie, Extra, Record, SqMem, opaque};
use crate::{
    doorbell::{CounterDbRec, SendRegister},
    memory::{Registers, Unit, Units, add_units, or_units, unit},
    position::ONE_BLOCK,
    wqe::{SEGMENT_BYTES, send::BLOCK_UNITS},
};

impl<C: Cookie> SqMem<C> {
    /// Takes the place of the next request, which has one block, and records its cookie, if the
    /// request may be posted without any other check. Otherwise changes nothing.
    #[inline(always)]
    pub(crate) fn next_block(&mut self, cookie: C, register: &SendRegister) -> Option<OneBlock<'_>> {
        // One sum for two checks: a register without BlueFlame brings the position beyond any
        // limit.
        self.block_up_to(self.at.wrapping_add(register.step()), cookie)
    }

    /// As [`next_block`](Self::next_block), if the request has one block.
    #[inline(always)]
    pub(crate) fn next_block_for(
        &mut self,
        extra: Extra,
        cookie: C,
        register: &SendRegister,
    ) -> Option<OneBlock<'_>> {
        self.block_up_to(self.at.wrapping_add(register.step()).wrapping_add(extra.0), cookie)
    }

    /// As [`next_block`](Self::next_block), for a request of one block that is rung later.
    #[inline(always)]
    pub(crate) fn next_block_of_chain(&mut self, cookie: C) -> Option<OneBlock<'_>> {
        self.block_up_to(self.at.wrapping_add(ONE_BLOCK), cookie)
    }

    /// Whether a request of one block may be posted without any other check.
    #[inline(always)]
    pub(crate) fn has_block(&self) -> bool {
        self.limit.wrapping_sub(self.at.wrapping_add(ONE_BLOCK)).cast_signed() >= 0
    }

    /// The block at the position, if the position `after` is within the limit.
    #[inline(always)]
    fn block_up_to(&mut self, after: u64, cookie: C) -> Option<OneBlock<'_>> {
        let at = self.at;
        if self.limit.wrapping_sub(after).cast_signed() < 0 {
            return None;
        }
        self.at = after;
        // Multiplied by 8 here, so that the factors 8 (blocks) and 2 or 4 (records) remain, which
        // an x86 address can have.
        let offset = opaque(usize::from(at as u16) * 8);
        let wqe = self.blocks.wrapping_byte_add(offset * 8);
        let record = self.records.wrapping_byte_add(offset * const { Record::<C>::EIGHTHS });
        // From the position, which is in a register. A block number that the post before had stored
        // could not be loaded with the rest of the segment until that store had left the processor.
        let number = unit([(u64::from(at as u16) << 40).to_be(), 0]);
        let ctrl = add_units(number, self.common);
        // SAFETY: the sum was within the limit, so the step was one block, and the request's number
        // is one of those for which `aim` has set the pointers.
        unsafe { *record = Record { cookie, after } };
        Some(OneBlock { wqe, ctrl, count: after as u16, _memory: PhantomData })
    }
}

/// The place of a request of one block. From [`SqMem::next_block`], the queue's register has
/// BlueFlame.
pub(crate) struct OneBlock<'a> {
    /// A block of the ring.
    wqe: *mut u8,
    /// The control segment, without what the request itself says.
    ctrl: Unit,
    /// The count of the doorbell record.
    count: u16,
    _memory: PhantomData<&'a mut u8>,
}

impl OneBlock<'_> {
    /// The control segment, with what the request itself says.
    #[inline(always)]
    pub(crate) fn ctrl(&self, ctrl: [u64; 2]) -> Unit {
        or_units(self.ctrl, unit(ctrl))
    }

    /// Room for the units behind the control segment, to be written before
    /// [`ring_written`](Self::ring_written).
    #[inline(always)]
    pub(crate) fn body(&mut self) -> Units<'_> {
        // SAFETY: the last three of four units of a block of the ring, which is 64-byte aligned;
        // exclusive through the borrow of the ring.
        unsafe { Units::new(self.wqe.add(SEGMENT_BYTES), BLOCK_UNITS - 1) }
    }

    /// Writes the control segment. A later doorbell hands the WQE to the device.
    #[inline(always)]
    pub(crate) fn keep(self, ctrl: Unit) {
        // SAFETY: the first unit of a block of the ring, which is 64-byte aligned; exclusive
        // through the borrow of the ring.
        unsafe { self.wqe.cast::<Unit>().write(ctrl) };
    }

    /// Writes the control segment, and hands the WQE to the device: barrier, record, flush,
    /// BlueFlame. The body is copied from the ring.
    #[inline(always)]
    pub(crate) fn ring_written(self, ctrl: Unit, dbrec: &mut CounterDbRec, register: &mut SendRegister) {
        // SAFETY: the first unit of a block of the ring, which is 64-byte aligned; exclusive
        // through the borrow of the ring.
        unsafe { self.wqe.cast::<Unit>().write(ctrl) };
        dbrec.publish(self.count);
        // SAFETY: the other units of the block; and `next_block` has checked that the register has
        // BlueFlame.
        unsafe { register.ring_block(ctrl, self.wqe.add(SEGMENT_BYTES).cast()) };
    }

    /// Writes a WQE that is in registers of the processor, and hands it to the device.
    #[inline(always)]
    pub(crate) fn ring_registers(
        self,
        wqe: &Registers,
        dbrec: &mut CounterDbRec,
        register: &mut SendRegister,
    ) {
        for (n, unit) in wqe.units().iter().enumerate() {
            // SAFETY: one of four units of a block of the ring, which is 64-byte aligned; exclusive
            // through the borrow of the ring.
            unsafe { self.wqe.cast::<Unit>().add(n).write(*unit) };
        }
        dbrec.publish(self.count);
        // SAFETY: `next_block` has checked that the register has BlueFlame.
        unsafe { register.ring_units(wqe.block()) };
    }

    /// Writes a whole block. A later doorbell hands the WQE to the device.
    #[inline(always)]
    pub(crate) fn keep_block(self, ctrl: Unit, body: &[Unit; BLOCK_UNITS - 1]) {
        // SAFETY: four units of a block of the ring, which is 64-byte aligned; exclusive through
        // the borrow of the ring.
        unsafe { self.wqe.cast::<[Unit; 4]>().write([ctrl, body[0], body[1], body[2]]) };
    }

    /// Writes a whole block, and hands the WQE to the device.
    #[inline(always)]
    pub(crate) fn ring_block(
        self,
        ctrl: Unit,
        body: &[Unit; BLOCK_UNITS - 1],
        dbrec: &mut CounterDbRec,
        register: &mut SendRegister,
    ) {
        let units = [ctrl, body[0], body[1], body[2]];
        // SAFETY: as in `keep_block`.
        unsafe { self.wqe.cast::<[Unit; 4]>().write(units) };
        dbrec.publish(self.count);
        // SAFETY: `next_block` has checked that the register has BlueFlame.
        unsafe { register.ring_units(&units) };
    }

    /// Writes a prepared WQE, and hands it to the device.
    #[inline(always)]
    pub(crate) fn ring_image(self, image: &WqeImage, dbrec: &mut CounterDbRec, register: &mut SendRegister) {
        self.ring_image_with(image, [unit([0; 2]); BLOCK_UNITS], dbrec, register);
    }

    /// Writes a prepared WQE with the bits of `others` as well, and hands it to the device.
    #[inline(always)]
    pub(crate) fn ring_image_with(
        self,
        image: &WqeImage,
        others: [Unit; BLOCK_UNITS],
        dbrec: &mut CounterDbRec,
        register: &mut SendRegister,
    ) {
        let mut units = image.first_block();
        units[0] = or_units(units[0], self.ctrl);
        for (unit, other) in units.iter_mut().zip(others) {
            *unit = or_units(*unit, other);
        }
        // SAFETY: four units of a block of the ring, which is 64-byte aligned; exclusive through
        // the borrow of the ring.
        unsafe { self.wqe.cast::<[Unit; 4]>().write(units) };
        dbrec.publish(self.count);
        // SAFETY: `next_block` has checked that the register has BlueFlame.
        unsafe { register.ring_units(&units) };
    }
}
