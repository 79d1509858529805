//! What the protocol takes from the machine: fences, the thread's number, and a place for unused
//! biases.

#![expect(unsafe_code, reason = "a system call, and a load of the thread pointer")]

use crate::sync::{Mutex, MutexGuard, rank};
use std::any::Any;
use std::collections::HashMap;
use std::sync::{LazyLock, OnceLock, PoisonError};
// The loom model has a module of this name with loom's.
pub(super) use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize};
pub(super) use std::thread::yield_now;

/// Owners that a lock may have in turn before it becomes a spin lock.
pub(super) const MAX_BIASES: u32 = 16;

const MEMBARRIER_PRIVATE_EXPEDITED: libc::c_long = 1 << 3;
const MEMBARRIER_REGISTER_PRIVATE_EXPEDITED: libc::c_long = 1 << 4;

/// Whether the kernel executed the command.
fn membarrier(command: libc::c_long) -> bool {
    // SAFETY: the system call takes three integers and accesses no memory of this process.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}

/// Whether [`heavy_fence`] works in this process.
pub(super) fn has_heavy_fence() -> bool {
    static REGISTERED: OnceLock<bool> = OnceLock::new();
    *REGISTERED.get_or_init(|| membarrier(MEMBARRIER_REGISTER_PRIVATE_EXPEDITED))
}

/// Executes a full memory barrier in every running thread of this process. A thread that is not
/// running executed one when it was scheduled out.
pub(super) fn heavy_fence() {
    if !membarrier(MEMBARRIER_PRIVATE_EXPEDITED) {
        // The call worked when the lock was made, so a sandbox has forbidden it since. A
        // processor's store buffer drains within far less than this time.
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}

/// The owner's side of [`heavy_fence`]: the compiler keeps the order of the accesses around it.
#[inline(always)]
pub(super) fn light_fence() {
    std::sync::atomic::compiler_fence(std::sync::atomic::Ordering::SeqCst);
}

/// A number that no other live thread has; never 0.
#[inline(always)]
pub(super) fn thread_id() -> usize {
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

/// A bias; its type belongs to the protocol.
type AnyBias = &'static (dyn Any + Send + Sync);

/// Biases that no lock uses, by their thread.
static UNUSED: LazyLock<Mutex<{ rank::TABLE }, HashMap<usize, Vec<AnyBias>>>> = LazyLock::new(Mutex::default);

fn unused() -> MutexGuard<'static, HashMap<usize, Vec<AnyBias>>> {
    UNUSED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An unused bias of this thread.
pub(super) fn reuse_bias(thread: usize) -> Option<AnyBias> {
    unused().get_mut(&thread).and_then(Vec::pop)
}

/// Keeps biases that their lock no longer uses. A thread that gets the ID of an ended thread gets
/// its biases, too.
pub(super) fn keep_biases(biases: impl Iterator<Item = (usize, AnyBias)>) {
    let mut unused = unused();
    biases.for_each(|(thread, bias)| unused.entry(thread).or_default().push(bias));
}

/// Locks the table of unused biases for a fork.
pub(crate) fn hold_shared_locks() -> Vec<Box<dyn std::any::Any>> {
    vec![Box::new(UNUSED.hold())]
}
