//! A lane: how one thread at a time uses an object without a lock, while another may take the object away.
//!
//! C promises that one thread at a time uses an SRQ; but the IA may be closed by another thread meanwhile. So whoever uses
//! the object says so in a flag, with plain stores, and whoever takes it away clears the pointer, makes every running thread
//! of the process pass a memory barrier (membarrier(2)), and waits for the flag. All the cost is with the latter. Where
//! the kernel has no such barrier, or a sandbox forbids it, the flag is a spin lock.
//!
//! Proof, with U: `state = BUSY; read at`, and T: `at = NULL; barrier in U's thread; read state`. The barrier comes either after U's
//! store, which T then sees and waits for, or before it, and then U reads `at` after the barrier, so NULL. On a compiler
//! both orders are kept by the fences.

#![expect(unsafe_code, reason = "an object shared by agreement instead of a lock")]

use std::ops::{Deref, DerefMut};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, AtomicU8, Ordering, compiler_fence};

const MEMBARRIER_PRIVATE_EXPEDITED: libc::c_long = 1 << 3;
const MEMBARRIER_REGISTER_PRIVATE_EXPEDITED: libc::c_long = 1 << 4;

/// Whether the kernel did it.
fn membarrier(command: libc::c_long) -> bool {
    // SAFETY: three integers, and no memory of ours.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}

/// Every thread of this process that runs passes a memory barrier before this returns.
fn barrier_for_all() {
    if !membarrier(MEMBARRIER_PRIVATE_EXPEDITED) {
        // It was there when the lane was made, so a sandbox put up since is in the way. Stores leave a processor's buffer
        // within far less than this.
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}

/// States of a lane. Those above `BUSY` are of a lane that is a spin lock.
const IDLE: u8 = 0;
const BUSY: u8 = 1;
const UNLOCKED: u8 = 2;
const LOCKED: u8 = 3;

/// Holds an object or nothing.
#[derive(Debug)]
pub(super) struct Lane<T> {
    state: AtomicU8,
    at: AtomicPtr<T>,
}

/// The object, for as long as this lives.
#[derive(Debug)]
pub(super) struct InUse<'a, T> {
    lane: &'a Lane<T>,
    at: *mut T,
    /// The state to go back to.
    rest: u8,
}

impl<T: Send> Lane<T> {
    pub(super) const fn new() -> Self {
        Self { state: AtomicU8::new(IDLE), at: AtomicPtr::new(std::ptr::null_mut()) }
    }

    /// Puts an object in; what was there before comes out.
    pub(super) fn put(&self, object: Box<T>) -> Option<Box<T>> {
        static BARRIERS: OnceLock<bool> = OnceLock::new();
        let before = self.take();
        if !*BARRIERS.get_or_init(|| membarrier(MEMBARRIER_REGISTER_PRIVATE_EXPEDITED)) {
            self.lock_always();
        }
        self.at.store(Box::into_raw(object), Ordering::SeqCst);
        before
    }

    /// From now on this lane is a spin lock. Only while it is empty.
    fn lock_always(&self) {
        self.state.store(UNLOCKED, Ordering::SeqCst);
    }

    /// Takes the object out, once nobody uses it any more.
    pub(super) fn take(&self) -> Option<Box<T>> {
        let at = self.at.swap(std::ptr::null_mut(), Ordering::SeqCst);
        if at.is_null() {
            return None;
        }
        barrier_for_all();
        while matches!(self.state.load(Ordering::SeqCst), BUSY | LOCKED) {
            std::thread::yield_now();
        }
        // SAFETY: `put` made it from a box; the swap gave it to this call alone, and by the proof above nobody uses it.
        Some(unsafe { Box::from_raw(at) })
    }

    /// Lets go of the object without dropping it, whoever uses it: in a forked child that is a thread of the parent's.
    pub(super) fn forget(&self) {
        self.at.store(std::ptr::null_mut(), Ordering::SeqCst);
    }

    /// The object, if there is one, no other call is using it, and the lane is no lock: the quick way.
    #[inline(always)]
    pub(super) fn enter(&self) -> Option<InUse<'_, T>> {
        if self.state.load(Ordering::Relaxed) != IDLE {
            return None;
        }
        self.state.store(BUSY, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        self.entered(IDLE)
    }

    /// The object, if there is one, once no other call is using it.
    pub(super) fn enter_patiently(&self) -> Option<InUse<'_, T>> {
        loop {
            match self.state.load(Ordering::Acquire) {
                IDLE => return self.enter(),
                UNLOCKED => {
                    let exchanged =
                        self.state.compare_exchange(UNLOCKED, LOCKED, Ordering::SeqCst, Ordering::Relaxed);
                    if exchanged.is_ok() {
                        return self.entered(UNLOCKED);
                    }
                }
                _ => std::thread::yield_now(),
            }
        }
    }

    #[inline(always)]
    fn entered(&self, rest: u8) -> Option<InUse<'_, T>> {
        let at = self.at.load(Ordering::SeqCst);
        let in_use = InUse { lane: self, at, rest };
        (!at.is_null()).then_some(in_use)
    }
}

impl<T> Drop for InUse<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        self.lane.state.store(self.rest, Ordering::Release);
    }
}

impl<T> Deref for InUse<'_, T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: as in `deref_mut`.
        unsafe { &*self.at }
    }
}

impl<T> DerefMut for InUse<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: not NULL, as `entered` checked, and not taken away while the state says so (proof above). Exclusive because C
        // promises that one thread at a time uses the object, and because a second call in the same thread finds the state.
        unsafe { &mut *self.at }
    }
}

impl<T> Drop for Lane<T> {
    fn drop(&mut self) {
        let at = *self.at.get_mut();
        if !at.is_null() {
            // SAFETY: `put` made it from a box, and nobody else has this lane any more.
            drop(unsafe { Box::from_raw(at) });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, AtomicU64};

    struct Object {
        taken: AtomicBool,
        uses: u64,
    }

    fn object() -> Box<Object> {
        Box::new(Object { taken: AtomicBool::new(false), uses: 0 })
    }

    #[test]
    fn one_use_at_a_time() {
        let lane = Lane::new();
        assert!(lane.enter().is_none());
        assert!(lane.put(Box::new(5)).is_none());
        let mut first = lane.enter_patiently().unwrap();
        *first += 1;
        assert!(lane.enter().is_none());
        drop(first);
        assert_eq!(lane.enter_patiently().as_deref(), Some(&6));
        assert_eq!(lane.put(Box::new(7)).as_deref(), Some(&6));
        assert_eq!(lane.take().as_deref(), Some(&7));
        assert!(lane.take().is_none());
        assert!(lane.enter().is_none());
        assert!(lane.enter_patiently().is_none());
    }

    #[test]
    fn nothing_is_used_after_it_was_taken() {
        takes_and_uses(&Lane::new());
    }

    #[test]
    fn nothing_is_used_after_it_was_taken_where_lanes_are_locks() {
        let lane = Lane::new();
        lane.lock_always();
        takes_and_uses(&lane);
        assert!(lane.enter().is_none(), "a lock has no quick way");
    }

    /// One thread uses the object all the time, another takes it away and puts a new one in: what was taken is never used.
    fn takes_and_uses(lane: &Lane<Object>) {
        const ROUNDS: u64 = 20_000;
        lane.put(object());
        let (mut entered, done) = (0, AtomicU64::new(0));
        let mut uses = 0;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 0..ROUNDS {
                    let old = lane.take().expect("only this thread takes");
                    old.taken.store(true, Ordering::SeqCst);
                    uses += old.uses;
                    lane.put(object());
                    done.store(round + 1, Ordering::Release);
                }
            });
            while done.load(Ordering::Acquire) < ROUNDS || entered == 0 {
                if let Some(mut object) = lane.enter_patiently() {
                    assert!(!object.taken.load(Ordering::SeqCst), "used after it was taken");
                    object.uses += 1;
                    entered += 1;
                }
            }
        });
        uses += lane.take().unwrap().uses;
        assert_eq!(uses, entered, "a use went to an object that was gone");
    }
}
