//! The CQ's entries: written by the device, read by us once they are ours.

use core::{marker::PhantomData, mem::offset_of, ptr::NonNull};

use super::Keep;
use crate::{
    barrier,
    cqe::{CqeFields, RawCqe},
};

/// The CQ's ring of entries. Read-only.
#[derive(Debug)]
pub(crate) struct CqeMem {
    pub(super) base: NonNull<u8>,
    pub(super) mask: u32,
    pub(super) cqe_bytes: u32,
    pub(super) _keep: Keep,
}

// SAFETY: plain memory without thread affinity, only read from here.
unsafe impl Send for CqeMem {}

impl CqeMem {
    pub(crate) fn mask(&self) -> u32 {
        self.mask
    }

    /// Which value of the owner bit says "yours" on this lap.
    #[inline(always)]
    pub(crate) fn lap(&self, consumer_index: u32) -> u8 {
        u8::from(consumer_index & (self.mask + 1) != 0)
    }

    /// The entry at `consumer_index` and its `op_own`, if the device has handed it over on this lap. Holds the ownership
    /// test and the load barrier.
    #[inline(always)]
    pub(crate) fn ready(&self, consumer_index: u32, lap: u8) -> Option<(CqeRef<'_>, u8)> {
        let cqe = self.entry(consumer_index);
        let op_own = cqe.op_own();
        if (op_own ^ lap) & 1 != 0 || op_own >= 0xf0 {
            return None;
        }
        barrier::from_device();
        Some((cqe, op_own))
    }

    /// The entry at `index` without a test.
    #[inline(always)]
    pub(crate) fn entry(&self, index: u32) -> CqeRef<'_> {
        let end = ((index & self.mask) as usize + 1) * self.cqe_bytes as usize;
        // SAFETY: in bounds because the masked index is below the entry count; an entry ends with the 64 bytes that carry
        // the fields, so `end - 64` is inside it.
        CqeRef { fields: unsafe { self.base.as_ptr().add(end - 64) }, _mem: PhantomData }
    }

    /// Copies payload that the device scattered into the entry at `index`: its first 32 bytes, or the 64 bytes before
    /// the fields of a 128-byte entry. Returns the bytes copied; 0 where a 64-byte entry claims the latter.
    pub(crate) fn copy_scattered(&self, index: u32, wide: bool, out: &mut [u8]) -> usize {
        let fields = self.entry(index).fields;
        let (from, room) = match (wide, self.cqe_bytes) {
            (false, _) => (fields, 32),
            (true, 128) => (fields.wrapping_sub(64), 64),
            (true, _) => return 0,
        };
        let len = out.len().min(room);
        for (n, byte) in out[..len].iter_mut().enumerate() {
            // SAFETY: n < room, and `room` bytes from `from` are inside the entry in each of the cases above.
            *byte = unsafe { from.add(n).read_volatile() };
        }
        len
    }
}

/// One completion queue entry in place.
#[derive(Clone, Copy)]
pub(crate) struct CqeRef<'a> {
    fields: *const u8,
    _mem: PhantomData<&'a CqeMem>,
}

macro_rules! cqe_field {
    ($name:ident, $field:ident, $raw:ty => $host:ty, $get:expr) => {
        #[inline(always)]
        fn $name(&self) -> $host {
            let field = self.fields.wrapping_add(offset_of!(RawCqe, $field)).cast::<$raw>();
            // SAFETY: a field of the 64 bytes that `entry` checked, aligned since those are 64-byte aligned; volatile
            // because the device writes here.
            $get(unsafe { field.read_volatile() })
        }
    };
}

impl CqeFields for CqeRef<'_> {
    cqe_field!(op_own, op_own, u8 => u8, core::convert::identity);
    cqe_field!(wqe_counter, wqe_counter, u16 => u16, u16::from_be);
    cqe_field!(sop_drop_qpn, sop_drop_qpn, u32 => u32, u32::from_be);
    cqe_field!(byte_count, byte_cnt, u32 => u32, u32::from_be);
    cqe_field!(imm_inval_pkey, imm_inval_pkey, u32 => u32, u32::from_be);
    cqe_field!(srqn_uidx, srqn_uidx, u32 => u32, u32::from_be);
    cqe_field!(timestamp, timestamp, u64 => u64, u64::from_be);

    #[inline(always)]
    fn error_syndromes(&self) -> (u8, u8) {
        let at = self.fields.wrapping_add(crate::cqe::VENDOR_SYNDROME_OFFSET);
        // SAFETY: bytes 54 and 55 of the 64 that `entry` checked.
        unsafe { (at.add(1).read_volatile(), at.read_volatile()) }
    }
}
