#![expect(unsafe_code, reason = "stores to a device register page")]
//! The user access region: device registers mapped into the process.
//!
//! Posting to an SRQ stores to no register. Arming a CQ does: one 8-byte store at offset 0x20.
//! Posting to a send queue does as well: it rings a [`SendRegister`]. The page may be mapped
//! write-combining, so there is a flush before each ring, and one behind all but BlueFlame copies.

use core::ptr::{self, NonNull};
use std::{
    alloc::{Layout, alloc},
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
};

use volatile::{VolatilePtr, access::WriteOnly};

use crate::{
    barrier,
    be::Be64,
    memory::{Keep, Unit},
    position::ONE_BLOCK,
};

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

/// One store of a BlueFlame copy of a block in memory.
#[cfg(all(target_arch = "x86_64", target_feature = "avx", not(miri)))]
type Wide = core::arch::x86_64::__m256i;
/// One store of a BlueFlame copy of a block in memory.
#[cfg(not(all(target_arch = "x86_64", target_feature = "avx", not(miri))))]
type Wide = Unit;

/// Bytes of one half of a BlueFlame register; the other half follows it.
pub(crate) const BLUEFLAME_BYTES: u32 = 256;

/// How queues use a send register.
#[derive(Debug)]
#[repr(C)]
struct RegisterUse {
    address: usize,
    /// The queues that have the register. Changed under the lock of the list.
    queues: AtomicUsize,
    /// What a queue adds to its position for a request of one block, before it compares the
    /// position with its limit: [`ONE_BLOCK`], or [`DOORBELLS_ONLY`] as soon as several queues have
    /// the register, or if the register has no BlueFlame.
    step: AtomicU64,
}

/// No limit is so far away.
const DOORBELLS_ONLY: u64 = 1 << 62;

/// Every send register of the process that queues of this crate use.
static REGISTERS: Mutex<Vec<&RegisterUse>> = Mutex::new(Vec::new());

/// The list of the process's send registers, locked until this is dropped; see [`hold_registers`].
#[derive(Debug)]
pub struct HeldRegisters {
    _registers: MutexGuard<'static, Vec<&'static RegisterUse>>,
}

/// Locks the list of send registers, which is the only lock that all queues of the process share: a
/// send queue is looked up there when it is taken over. The child of a fork begins with a list of
/// its own, whoever holds the lock of the parent's. So a program need not call this.
#[must_use]
pub fn hold_registers() -> HeldRegisters {
    HeldRegisters { _registers: registers() }
}

/// Sees to it that the child of a fork begins with an empty list: another thread may have had the
/// lock at the fork, and may have been about to change the list. The parent's registers are not
/// mapped in the child.
fn watch_forks() {
    static WATCHED: AtomicBool = AtomicBool::new(false);
    extern "C" fn in_child() {
        // SAFETY: the child has one thread. A guard that it has from before the fork unlocks the
        // new lock, which changes nothing. The parent's list is not freed.
        unsafe { ptr::from_ref(&REGISTERS).cast_mut().write(Mutex::new(Vec::new())) };
    }
    // Of several threads that come here first, each may register the handler.
    if !WATCHED.load(Relaxed) {
        // SAFETY: the handler is a function of this library, which takes it back when it is
        // unloaded.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        WATCHED.store(true, Relaxed);
    }
}

fn registers() -> MutexGuard<'static, Vec<&'static RegisterUse>> {
    REGISTERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One queue's use of a register.
#[derive(Debug)]
struct User(&'static RegisterUse);

impl User {
    /// The use of the register at this address; `None` without memory. A second user makes the
    /// register doorbell-only.
    fn of(address: usize, doorbell_only: bool) -> Option<Self> {
        watch_forks();
        let mut registers = registers();
        if let Some(known) = registers.iter().find(|known| known.address == address) {
            known.queues.fetch_add(1, Relaxed);
            known.step.store(DOORBELLS_ONLY, Relaxed);
            return Some(Self(known));
        }
        registers.try_reserve(1).ok()?;
        let step = if doorbell_only { DOORBELLS_ONLY } else { ONE_BLOCK };
        // SAFETY: the size is not zero. The memory is new, and has room and alignment for the
        // value.
        let new = unsafe {
            let new = alloc(Layout::new::<RegisterUse>()).cast::<RegisterUse>();
            if new.is_null() {
                return None;
            }
            new.write(RegisterUse { address, queues: AtomicUsize::new(1), step: AtomicU64::new(step) });
            &*new
        };
        registers.push(new);
        Some(Self(new))
    }
}

impl Drop for User {
    fn drop(&mut self) {
        let mut registers = registers();
        // The child of a fork does not find what is its parent's.
        let Some(at) = registers.iter().position(|known| ptr::eq(*known, self.0)) else { return };
        if self.0.queues.fetch_sub(1, Relaxed) == 1 {
            registers.swap_remove(at);
            // SAFETY: made in `of` as a box is; it was the last user, and the list has it no more.
            drop(unsafe { Box::from_raw(ptr::from_ref(self.0).cast_mut()) });
        }
    }
}

/// The register that rings a send queue: two halves that are used in turn.
///
/// A ring is either an 8-byte doorbell or, with BlueFlame, a copy of the WQE in blocks of 64 bytes.
/// If another queue rings the register during such a copy, the device may see a torn copy. So a
/// register that two queues of this crate share takes doorbells only.
#[derive(Debug)]
pub(crate) struct SendRegister {
    /// The half that the next ring uses.
    half: VolatilePtr<'static, u8, WriteOnly>,
    /// Distance of the halves, as a bit of their addresses; 0 if there is one half only.
    toggle: usize,
    user: User,
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
        let user = User::of(register.addr().get(), bytes == 0 || !blueflame)?;
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
        self.user.0.step.load(Relaxed)
    }

    /// From now on, every queue that has the register rings it by doorbells only.
    pub(crate) fn stop_blueflame(&self) {
        self.user.0.step.store(DOORBELLS_ONLY, Relaxed);
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;

    /// The child of a fork ends, in which a queue is taken over.
    fn child_ends() -> bool {
        // SAFETY: the child leaves by _exit or by the signal of its alarm. It allocates, which
        // glibc allows in the child of a process with threads.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                libc::alarm(30);
                drop(User::of(0x200, false));
                libc::_exit(0);
            }
            let mut status = 0;
            assert!(child > 0 && libc::waitpid(child, &raw mut status, 0) == child);
            libc::WIFEXITED(status)
        }
    }

    /// Another thread has the lock at the fork, or the thread that forks has it.
    #[test]
    fn a_child_does_not_wait_for_the_lock_of_its_parent() {
        drop(User::of(0x300, false));
        let (locked, forked) = (Barrier::new(2), Barrier::new(2));
        let ended = std::thread::scope(|scope| {
            scope.spawn(|| {
                let _held = hold_registers();
                locked.wait();
                forked.wait();
            });
            locked.wait();
            let ended = child_ends();
            forked.wait();
            ended
        });
        assert!(ended, "another thread has the lock");
        let _held = hold_registers();
        assert!(child_ends(), "the thread that forks has the lock");
    }

    /// Another thread takes over queues all the time; a child takes one over for itself.
    #[test]
    fn a_child_can_take_over_a_queue() {
        const FORKS: usize = 500;
        let stop = AtomicBool::new(false);
        let ended = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Relaxed) {
                    drop(User::of(0x100, false));
                }
            });
            let ended = (0..FORKS).take_while(|_| child_ends()).count();
            stop.store(true, Relaxed);
            ended
        });
        assert_eq!(ended, FORKS, "children that ended");
    }
}
