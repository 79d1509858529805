#![expect(unsafe_code, reason = "doorbell records are raw words that a device reads")]
//! Doorbell records: words in host memory that tell the device how far posting and polling got.
//!
//! Software writes these words; the device reads them. The functions that store execute the barrier
//! that must come before the store, so a caller cannot forget it. A record is not a device
//! register: those are in [`uar`](crate::uar).

use core::ptr::NonNull;

use crate::{barrier, memory::Keep};

/// The word of a doorbell record that holds the posted count: a running 16-bit count in a
/// big-endian 32-bit word. SRQs and receive queues count WQEs; send queues count blocks of 64
/// bytes.
#[derive(Debug)]
pub(crate) struct CounterDbRec {
    word: NonNull<u32>,
    _keep: Keep,
}

// SAFETY: the record is only stored to through `&mut self` and holds no state that belongs to a
// thread.
unsafe impl Send for CounterDbRec {}
// SAFETY: a shared reference only loads the word. Stores need `&mut self`, so none happens
// meanwhile.
unsafe impl Sync for CounterDbRec {}

impl CounterDbRec {
    /// # Safety
    ///
    /// `word` is 4-byte aligned and valid for reads and writes while the value lives, and only this
    /// value stores to it.
    pub(crate) unsafe fn new(word: NonNull<u32>, keep: Keep) -> Self {
        Self { word, _keep: keep }
    }

    /// The count in the record now; only for checks at creation.
    pub(crate) fn load(&self) -> u32 {
        // SAFETY: valid and aligned by the contract of `new`.
        u32::from_be(unsafe { self.word.as_ptr().read_volatile() })
    }

    /// Makes every WQE written so far visible, then tells the device that `count` WQEs or blocks
    /// were posted in total (mod 65,536).
    ///
    /// Stores the low half of the word, its last two bytes. The high half was 0 when the queue was
    /// taken over and stays 0.
    #[inline(always)]
    pub(crate) fn publish(&mut self, count: u16) {
        barrier::to_device();
        // SAFETY: inside the word, valid by the contract of `new`, and 2-byte aligned; exclusive
        // through `&mut self`.
        unsafe { self.word.cast::<u16>().as_ptr().add(1).write_volatile(count.to_be()) };
    }
}

/// A CQ's doorbell record: word 0 is the consumer index, word 1 the arm request.
#[derive(Debug)]
pub(crate) struct CqDbRec {
    words: NonNull<[u32; 2]>,
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
        Self { words, _keep: keep }
    }

    /// Returns every CQE before `consumer_index` (a 24-bit count) to the device.
    #[inline(always)]
    pub(crate) fn release(&mut self, consumer_index: u32) {
        barrier::release_to_device();
        // SAFETY: valid and aligned by the contract of `new`; exclusive through `&mut self`.
        unsafe { self.words.cast::<u32>().as_ptr().write_volatile((consumer_index & 0x00ff_ffff).to_be()) };
    }

    /// Writes the arm request. The register store that follows must come after a
    /// [`flush_write_combining`](barrier::flush_write_combining);
    /// [`Uar::arm_cq`](crate::uar::Uar::arm_cq) executes it.
    pub(crate) fn request_event(&mut self, request: u32) {
        // SAFETY: the second word is inside the two-word record of `new`; exclusive through `&mut
        // self`.
        unsafe { self.words.cast::<u32>().as_ptr().add(1).write_volatile(request.to_be()) };
    }
}
