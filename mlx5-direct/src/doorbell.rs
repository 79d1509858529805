#![expect(unsafe_code, reason = "doorbell records and registers are raw words of a device")]
//! Doorbells of work queues: how the device learns of posted WQEs.
//!
//! | queue | doorbell record | register |
//! |---|---|---|
//! | SRQ, receive queue | [`CounterDbRec::publish`] | none |
//! | send queue | the same, first | [`SendRegister`]: a BlueFlame copy of the WQE, or 8 bytes of it |
//!
//! A record is a word in host memory: software stores to it, the device reads it. A register is in
//! a page of the device that is mapped into the process, perhaps write-combining, so there is a
//! flush before each ring, and one behind all but BlueFlame copies. The functions that store
//! execute the barrier that must come first, so a caller cannot forget it. The doorbells of CQs are
//! in [`cq`].

use core::ptr::NonNull;

use volatile::{VolatilePtr, access::WriteOnly};

use crate::{
    barrier,
    be::{Be16, Be32},
    memory::{Keep, Unit},
    position::ONE_BLOCK,
};

mod cq;
mod registers;

pub(crate) use cq::{CqDbRec, Uar};
use registers::RegisterUser;
pub use registers::{HeldRegisters, hold_registers};

/// The word of a doorbell record that holds the posted count: a running 16-bit count in a
/// big-endian 32-bit word. SRQs and receive queues count WQEs; send queues count blocks of 64
/// bytes.
#[derive(Debug)]
#[repr(C)]
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

/// One store of a BlueFlame copy of a block in memory.
#[cfg(all(target_arch = "x86_64", target_feature = "avx", not(miri)))]
type Wide = core::arch::x86_64::__m256i;
/// One store of a BlueFlame copy of a block in memory.
#[cfg(not(all(target_arch = "x86_64", target_feature = "avx", not(miri))))]
type Wide = Unit;

/// Bytes of one half of a BlueFlame register; the other half follows it.
pub(crate) const BLUEFLAME_BYTES: u32 = 256;

/// The register that rings a send queue: two halves that are used in turn.
///
/// A ring is either an 8-byte doorbell or, with BlueFlame, a copy of the WQE in blocks of 64 bytes.
/// If another queue rings the register during such a copy, the device may see a torn copy. So a
/// register that two queues of this crate share takes doorbells only.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct SendRegister {
    /// The half that the next ring uses.
    half: VolatilePtr<'static, u8, WriteOnly>,
    user: RegisterUser,
    /// Distance of the halves, as a bit of their addresses; 0 if there is one half only.
    toggle: usize,
    _keep: Keep,
}

// SAFETY: as for `Uar`; copies come from one thread at a time through `&mut self`. A copy that the
// thread before left in its write-combining buffer goes to the other half, whole.
unsafe impl Send for SendRegister {}
// SAFETY: a shared reference only reads an atomic.
unsafe impl Sync for SendRegister {}

impl SendRegister {
    /// `None` without memory.
    ///
    /// # Safety
    ///
    /// While the value lives, `register` is aligned to twice `bytes`, at least to 8, and valid for
    /// stores to two halves of `bytes` bytes each, or of 8 bytes if `bytes` is 0. Only values of
    /// this type store there.
    pub(crate) unsafe fn new(register: NonNull<u8>, bytes: u32, blueflame: bool, keep: Keep) -> Option<Self> {
        let user = RegisterUser::of(register.addr().get(), bytes == 0 || !blueflame)?;
        // SAFETY: valid by contract.
        let half = unsafe { VolatilePtr::new_restricted(WriteOnly, register) };
        Some(Self { half, toggle: bytes as usize, user, _keep: keep })
    }

    /// Whether BlueFlame may be used now.
    #[inline(always)]
    pub(crate) fn takes_blueflame(&self) -> bool {
        self.step() == ONE_BLOCK
    }

    /// What a queue adds to its position for a request of one block, before it compares the
    /// position with its limit. If the register takes doorbells only, this is 2^62: then no request
    /// is within the limit, and BlueFlame is not used.
    #[inline(always)]
    pub(crate) fn step(&self) -> u64 {
        self.user.step()
    }

    /// From now on, every queue that has the register rings it by doorbells only.
    pub(crate) fn stop_blueflame(&self) {
        self.user.stop_blueflame();
    }

    /// Call this before a ring: the record, and earlier stores to the register, become visible
    /// first.
    #[inline(always)]
    pub(crate) fn begin(&mut self) {
        barrier::flush_write_combining();
    }

    /// Copies the `n`-th block of a WQE into the half, with stores of 16 bytes (32 bytes if the
    /// program is compiled for AVX) in ascending order.
    ///
    /// # Safety
    ///
    /// `block` is 64-byte aligned and valid for reads of 64 bytes. `n` is below 4, and the register
    /// has BlueFlame.
    #[inline(always)]
    pub(crate) unsafe fn copy_block(&mut self, n: u32, block: *const u8) {
        const STORES: usize = 64 / size_of::<Wide>();
        for at in 0..STORES {
            // SAFETY: inside the block, and inside the half, by contract; aligned as both are.
            unsafe { self.store::<Wide>(n as usize * STORES + at, block.cast::<Wide>().add(at).read()) };
        }
    }

    /// Rings with a WQE of one block, given in registers: flush, copy, and change of the half.
    ///
    /// # Safety
    ///
    /// The register has BlueFlame.
    #[inline(always)]
    pub(crate) unsafe fn ring_units(&mut self, units: &[Unit; 4]) {
        self.begin();
        for (n, unit) in units.iter().enumerate() {
            // SAFETY: the first four units of the half.
            unsafe { self.store(n, *unit) };
        }
        self.end();
    }

    /// Rings with a WQE of one block whose first unit is in a register and whose others are in
    /// memory: flush, copy, and change of the half.
    ///
    /// # Safety
    ///
    /// `body` is 16-byte aligned and valid for reads. The register has BlueFlame.
    #[inline(always)]
    pub(crate) unsafe fn ring_block(&mut self, ctrl: Unit, body: *const [Unit; 3]) {
        // The units are read between the stores, so that two registers are enough.
        self.begin();
        // SAFETY: the first four units of the half; `body` is valid by contract.
        unsafe {
            self.store(0, ctrl);
            for n in 0..3 {
                self.store(n + 1, body.cast::<Unit>().add(n).read());
            }
        }
        self.end();
    }

    /// After the copy: changes to the other half. There is no flush, as in UCX (`BF_POST`). A
    /// processor sends out a full write-combining buffer by itself, the next ring begins with a
    /// flush, and until then no copy goes to this half.
    #[inline(always)]
    pub(crate) fn end(&mut self) {
        barrier::end_write_combining();
        self.change_half(BLUEFLAME_BYTES as usize);
    }

    /// Rings with the first 8 bytes of the last WQE, in memory order, by one store.
    #[inline(always)]
    pub(crate) fn doorbell(&mut self, word: u64) {
        barrier::flush_write_combining();
        // SAFETY: the first word of the half.
        unsafe { self.store(0, word) };
        barrier::flush_write_combining();
        self.change_half(self.toggle);
    }

    /// `distance` is that of the halves, or 0.
    #[inline(always)]
    fn change_half(&mut self, distance: usize) {
        let other = self.half.as_raw_ptr().as_ptr().map_addr(|address| address ^ distance);
        // SAFETY: the address of a half of the register, which is not null.
        self.half = unsafe { VolatilePtr::new_restricted(WriteOnly, NonNull::new_unchecked(other)) };
    }

    /// Stores the `n`-th value of this size of the half.
    ///
    /// # Safety
    ///
    /// The value is inside the half.
    #[inline(always)]
    unsafe fn store<T: Copy>(&mut self, n: usize, value: T) {
        // SAFETY: inside the half by contract, aligned as it is.
        unsafe { self.half.map(|half| half.cast::<T>().add(n)) }.write(value);
    }
}
