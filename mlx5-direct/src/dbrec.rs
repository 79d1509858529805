#![expect(unsafe_code, reason = "doorbell records are raw words that a device reads")]
//! Doorbell records: words in host memory that tell the device how far posting and polling got.
//!
//! Software writes these words; the device reads them. The functions that store execute the barrier
//! that must come before the store, so a caller cannot forget it. A record is not a device
//! register: those are in [`uar`](crate::uar).

use core::ptr::NonNull;

use volatile::{VolatilePtr, access::WriteOnly};

use crate::{
    barrier,
    be::{Be16, Be32},
    memory::Keep,
};

/// The word of a doorbell record that holds the posted count: a running 16-bit count in a
/// big-endian 32-bit word. SRQs and receive queues count WQEs; send queues count blocks of 64
/// bytes.
#[derive(Debug)]
pub(crate) struct CounterDbRec {
    /// The halves of the word. The second holds the count; the first was 0 when the queue was taken
    /// over and stays 0.
    halves: VolatilePtr<'static, [Be16; 2], WriteOnly>,
    _keep: Keep,
}

// SAFETY: the record is only stored to through `&mut self` and holds no state that belongs to a
// thread.
unsafe impl Send for CounterDbRec {}
// SAFETY: a shared reference gives no access to the word.
unsafe impl Sync for CounterDbRec {}

impl CounterDbRec {
    /// A record of which nothing was posted. Otherwise the count is the error.
    ///
    /// # Safety
    ///
    /// `word` is 4-byte aligned and valid for reads and writes while the value lives, and only this
    /// value stores to it.
    pub(crate) unsafe fn new(word: NonNull<u32>, keep: Keep) -> Result<Self, u32> {
        // SAFETY: valid and aligned by contract.
        let count = unsafe { VolatilePtr::new_read_only(word.cast::<Be32>()) }.read().get();
        if count != 0 {
            return Err(count);
        }
        // SAFETY: as above.
        let halves = unsafe { VolatilePtr::new_restricted(WriteOnly, word.cast()) };
        Ok(Self { halves, _keep: keep })
    }

    /// Makes every WQE written so far visible, then tells the device that `count` WQEs or blocks
    /// were posted in total (mod 65,536).
    #[inline(always)]
    pub(crate) fn publish(&mut self, count: u16) {
        barrier::to_device();
        // SAFETY: the second of two halves.
        unsafe { self.halves.map(|halves| halves.cast::<Be16>().add(1)) }.write(Be16::new(count));
    }
}

/// A CQ's doorbell record: word 0 is the consumer index, word 1 the arm request.
#[derive(Debug)]
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
    /// [`Uar::arm_cq`](crate::uar::Uar::arm_cq) executes it.
    pub(crate) fn request_event(&mut self, request: u32) {
        // SAFETY: the second of two words.
        unsafe { self.words.map(|words| words.cast::<Be32>().add(1)) }.write(Be32::new(request));
    }
}
