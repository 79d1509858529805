#![expect(unsafe_code, reason = "stores to a device register page")]
//! The user access region: device registers mapped into the process.
//!
//! Posting to an SRQ does not touch it. Arming a CQ does: one 8-byte store at offset 0x20. The page may be mapped
//! write-combining, hence the flushes around the store.

use core::ptr::NonNull;

use crate::{barrier, queue_mem::Keep};

/// Offset of the CQ doorbell register in the page (`MLX5_CQ_DOORBELL`), in bytes.
pub(crate) const CQ_DOORBELL_OFFSET: usize = 0x20;

/// The register page through which a CQ is armed.
#[derive(Debug)]
pub(crate) struct Uar {
    page: NonNull<u8>,
    _keep: Keep,
}

// SAFETY: a register store is a single aligned 8-byte store, which the device takes from any thread.
unsafe impl Send for Uar {}

impl Uar {
    /// # Safety
    ///
    /// `page` is 8-byte aligned and valid for a store of 8 bytes at [`CQ_DOORBELL_OFFSET`] while the value lives.
    pub(crate) unsafe fn new(page: NonNull<u8>, keep: Keep) -> Self {
        Self { page, _keep: keep }
    }

    /// Rings the CQ doorbell with `request` (the word in the doorbell record) for CQ number `cqn`.
    pub(crate) fn arm_cq(&mut self, request: u32, cqn: u32) {
        let value = (u64::from(request) << 32 | u64::from(cqn)).to_be();
        barrier::flush_write_combining();
        // SAFETY: aligned and valid by the contract of `new` (0x20 keeps the page's alignment).
        unsafe { self.page.as_ptr().add(CQ_DOORBELL_OFFSET).cast::<u64>().write_volatile(value) };
        barrier::flush_write_combining();
    }
}
