//! Doorbells of CQs: the record, which returns CQEs to the device and asks for an event, and the
//! register that arms the CQ.

use core::ptr::NonNull;

use volatile::{VolatilePtr, access::WriteOnly};

use crate::{
    barrier,
    be::{Be32, Be64},
    memory::Keep,
};

/// A CQ's doorbell record: word 0 is the consumer index, word 1 the arm request.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct CqDbRec {
    words: VolatilePtr<'static, [Be32; 2], WriteOnly>,
    _keep: Keep,
}

// SAFETY: as for `CounterDbRec`.
unsafe impl Send for CqDbRec {}

impl CqDbRec {
    /// # Safety
    ///
    /// `words` is 4-byte aligned and valid for writes while the value lives, and only this value
    /// stores to it.
    pub(crate) unsafe fn new(words: NonNull<[u32; 2]>, keep: Keep) -> Self {
        // SAFETY: valid and aligned by contract.
        let words = unsafe { VolatilePtr::new_restricted(WriteOnly, words.cast()) };
        Self { words, _keep: keep }
    }

    /// Returns every CQE before `consumer_index` (a 24-bit count) to the device.
    #[inline(always)]
    pub(crate) fn release(&mut self, consumer_index: u32) {
        barrier::release_to_device();
        // SAFETY: the first of two words.
        unsafe { self.words.map(NonNull::cast::<Be32>) }.write(Be32::new(consumer_index & 0x00ff_ffff));
    }

    /// Writes the arm request. The register store that follows must come after a
    /// [`flush_write_combining`](barrier::flush_write_combining);
    /// [`Uar::arm_cq`] executes it.
    pub(crate) fn request_event(&mut self, request: u32) {
        // SAFETY: the second of two words.
        unsafe { self.words.map(|words| words.cast::<Be32>().add(1)) }.write(Be32::new(request));
    }
}

/// Offset of the CQ doorbell register in the page (`MLX5_CQ_DOORBELL`), in bytes.
const CQ_DOORBELL_OFFSET: usize = 0x20;

/// The register through which a CQ is armed.
#[derive(Debug)]
pub(crate) struct Uar {
    doorbell: VolatilePtr<'static, Be64, WriteOnly>,
    _keep: Keep,
}

// SAFETY: a ring is a single aligned 8-byte store, which the device accepts from any thread.
unsafe impl Send for Uar {}

impl Uar {
    /// # Safety
    ///
    /// `page` is 8-byte aligned and valid for a store of 8 bytes at [`CQ_DOORBELL_OFFSET`] while
    /// the value lives.
    pub(crate) unsafe fn new(page: NonNull<u8>, keep: Keep) -> Self {
        // SAFETY: valid and aligned by contract (0x20 keeps the page's alignment).
        let doorbell = unsafe { VolatilePtr::new_restricted(WriteOnly, page.add(CQ_DOORBELL_OFFSET).cast()) };
        Self { doorbell, _keep: keep }
    }

    /// Rings the CQ doorbell with `request` (the word in the doorbell record) for CQ number `cqn`.
    pub(crate) fn arm_cq(&mut self, request: u32, cqn: u32) {
        barrier::flush_write_combining();
        self.doorbell.write(Be64::new(u64::from(request) << 32 | u64::from(cqn)));
        barrier::flush_write_combining();
    }
}
