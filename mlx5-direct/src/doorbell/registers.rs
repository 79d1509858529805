//! The send registers that queues of this process use: who may ring one by BlueFlame.

use core::ptr;
use std::{
    alloc::{Layout, alloc},
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
};

use crate::position::ONE_BLOCK;

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
pub(super) struct RegisterUser(&'static RegisterUse);

impl RegisterUser {
    /// The use of the register at this address; `None` without memory. A second user makes the
    /// register doorbell-only.
    pub(super) fn of(address: usize, doorbell_only: bool) -> Option<Self> {
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

    /// What a queue adds to its position: see [`SendRegister::step`](super::SendRegister::step).
    #[inline(always)]
    pub(super) fn step(&self) -> u64 {
        self.0.step.load(Relaxed)
    }

    /// From now on, every user rings the register by doorbells only.
    pub(super) fn stop_blueflame(&self) {
        self.0.step.store(DOORBELLS_ONLY, Relaxed);
    }
}

impl Drop for RegisterUser {
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
                drop(RegisterUser::of(0x200, false));
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
        drop(RegisterUser::of(0x300, false));
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
                    drop(RegisterUser::of(0x100, false));
                }
            });
            let ended = (0..FORKS).take_while(|_| child_ends()).count();
            stop.store(true, Relaxed);
            ended
        });
        assert_eq!(ended, FORKS, "children that ended");
    }
}
