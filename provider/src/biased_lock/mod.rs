//! A biased lock: one thread, the owner, uses an object without an atomic read-modify-write
//! instruction. Other threads can take over the ownership or take the object away.
//!
//! Nearly always one thread posts to an SRQ, so the lock is biased towards that thread. The owner
//! marks its use of the object with plain stores ([`BiasedLock::try_lock_fast`]). Another thread
//! that needs the object first makes itself the owner ([`BiasedLock::lock`]): it replaces the
//! owner's [`Bias`], executes a memory barrier in all running threads of the process
//! (membarrier(2)), and waits until the previous owner has left. The thread that takes over pays
//! the whole cost. After [`MAX_BIASES`] changes of owner the lock is a spin lock until the next
//! object is put in. The lock is a spin lock from the start where the kernel lacks membarrier or a
//! sandbox forbids it.
//!
//! # Proof of mutual exclusion
//!
//! The owner executes: store `busy = 1`; light fence; load `bias`. The owner enters only if the
//! loaded bias is still the owner's own. The thread that takes over executes: store the new `bias`;
//! heavy fence; load the old owner's `busy` until it is 0. The light fence only keeps the compiler
//! from reordering. The heavy fence executes a full memory barrier in the owner's thread at some
//! point of the owner's program:
//!
//! - after the store of `busy`: the store is visible before the heavy fence returns, so the thread
//!   that takes over reads `busy == 1` and waits;
//! - before the store of `busy`: the load of `bias` comes after the barrier, so the owner reads the
//!   new bias and does not enter.
//!
//! The owner may have loaded `bias` long before it stores `busy`. That is safe, because only one
//! thread ever stores to the `busy` of a given [`Bias`], and a `Bias` is never freed: a late store
//! cannot be taken for another thread's. A signal handler runs in the interrupted thread and would
//! pass for the owner; DAT calls are not async-signal-safe, so no handler makes them.
//!
//! The object's memory is visible to the next user: each user leaves with a release store (of
//! `busy`, or of `slow_holder` for a spin lock), which the next user reads with acquire before it
//! enters.
//!
//! `tests/biased_lock_model.rs` explores this file's [`lock`] with loom and says what the model
//! covers.

#![expect(unsafe_code, reason = "a system call, and a load of the thread pointer")]

mod lock;
#[cfg(test)]
mod tests;

pub(crate) use self::lock::{BiasedLock, Guard, LockError};

use self::lock::Bias;
use crate::sync::{Mutex, MutexGuard, rank};
use std::collections::HashMap;
// The atomics that `lock` uses. The loom model includes the file `lock.rs` with loom's.
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize};
use std::sync::{LazyLock, OnceLock, PoisonError};
use std::thread::yield_now;

/// Owners that a lock may have in turn before it becomes a spin lock.
const MAX_BIASES: u32 = 16;

impl<T: Send> BiasedLock<T> {
    /// A lock without an object. All its bytes are zero.
    pub(crate) const fn new() -> Self {
        let (bias, object) = (AtomicPtr::new(std::ptr::null_mut()), AtomicPtr::new(std::ptr::null_mut()));
        Self::from_parts(bias, object, AtomicUsize::new(0))
    }
}

const MEMBARRIER_PRIVATE_EXPEDITED: libc::c_long = 1 << 3;
const MEMBARRIER_REGISTER_PRIVATE_EXPEDITED: libc::c_long = 1 << 4;

/// Whether the kernel executed the command.
fn membarrier(command: libc::c_long) -> bool {
    // SAFETY: the system call takes three integers and accesses no memory of this process.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}

/// Whether [`heavy_fence`] works in this process.
fn has_heavy_fence() -> bool {
    static REGISTERED: OnceLock<bool> = OnceLock::new();
    *REGISTERED.get_or_init(|| membarrier(MEMBARRIER_REGISTER_PRIVATE_EXPEDITED))
}

/// Executes a full memory barrier in every running thread of this process. A thread that is not
/// running executed one when it was scheduled out.
fn heavy_fence() {
    if !membarrier(MEMBARRIER_PRIVATE_EXPEDITED) {
        // The call worked when the lock was made, so a sandbox has forbidden it since. A
        // processor's store buffer drains within far less than this time.
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}

/// The owner's side of [`heavy_fence`]: the compiler keeps the order of the accesses around it.
#[inline(always)]
fn light_fence() {
    std::sync::atomic::compiler_fence(std::sync::atomic::Ordering::SeqCst);
}

/// A number that no other live thread has; never 0.
#[inline(always)]
fn thread_id() -> usize {
    #[cfg(target_arch = "x86_64")]
    {
        let thread: usize;
        // SAFETY: loads the thread pointer from where the ABI stores a copy of it (System V,
        // x86-64, variant II of TLS).
        unsafe {
            std::arch::asm!("mov {}, fs:[0]", out(reg) thread, options(pure, readonly, nostack, preserves_flags));
        }
        thread
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        thread_local!(static HERE: u8 = const { 0 });
        HERE.with(|here| std::ptr::from_ref(here) as usize)
    }
}

/// Biases that no lock uses, by their thread.
static UNUSED: LazyLock<Mutex<{ rank::TABLE }, HashMap<usize, Vec<&'static Bias>>>> =
    LazyLock::new(Mutex::default);

fn unused() -> MutexGuard<'static, HashMap<usize, Vec<&'static Bias>>> {
    UNUSED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An unused bias of this thread.
fn reuse_bias(thread: usize) -> Option<&'static Bias> {
    unused().get_mut(&thread).and_then(Vec::pop)
}

/// Keeps biases that their lock no longer uses. A thread that gets the ID of an ended thread gets
/// its biases, too.
fn keep_biases(biases: impl Iterator<Item = &'static Bias>) {
    let mut unused = unused();
    biases.for_each(|bias| unused.entry(bias.thread()).or_default().push(bias));
}

/// Locks the table of unused biases for a fork.
pub(crate) fn hold_shared_locks() -> Vec<Box<dyn std::any::Any>> {
    vec![Box::new(UNUSED.hold())]
}
