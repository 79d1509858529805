#![expect(unsafe_code, reason = "fork handlers, and a lock that is made again")]
//! What happens when the process forks.
//!
//! Another thread may be in a call of verbs that creates or ends an object, and have the control
//! lock; in the child, no thread would release it. So the child makes the lock again. What the lock
//! protects needs no repair there: an entry of a table becomes valid by its last store, and the
//! objects belong to contexts of the parent, which the child does not use. The locks of biased-lock
//! that all objects share are held for some instructions only: the thread that forks has them
//! during the fork, in both processes. Those of mlx5-direct do the same by themselves.
//!
//! The library has no other lock of the whole process, and no thread waits for another by anything
//! else than a word of memory and futex(2).

use core::{cell::UnsafeCell, ptr};
use std::sync::{Mutex, MutexGuard, PoisonError};

use biased_lock::SharedLocks;

static CONTROL: Mutex<()> = Mutex::new(());

/// The control lock, which serialises all decisions about who drives which object.
pub(crate) fn control() -> MutexGuard<'static, ()> {
    lock(&CONTROL)
}

/// Takes a lock. A panic ends the process, so that no lock stays poisoned.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What the thread that forks holds from before the fork until after it.
struct Held(UnsafeCell<Option<SharedLocks>>);

// SAFETY: used only by the thread that has the locks which the value stands for.
unsafe impl Sync for Held {}

static HELD: Held = Held(UnsafeCell::new(None));

extern "C" fn before() {
    let locks = biased_lock::hold_shared_locks();
    // SAFETY: this thread has the locks now.
    unsafe { *HELD.0.get() = Some(locks) };
}

extern "C" fn in_parent() {
    // SAFETY: this thread has the locks since `before`. The value is taken out before they are
    // released.
    let locks = unsafe { (*HELD.0.get()).take() };
    drop(locks);
}

extern "C" fn in_child() {
    in_parent();
    biased_lock::forget_parked();
    // SAFETY: the child has one thread. A guard that it has from before the fork unlocks the new
    // lock, which changes nothing.
    unsafe { ptr::from_ref(&CONTROL).cast_mut().write(Mutex::new(())) };
}

/// Registers the handlers when the library is loaded.
#[used]
#[unsafe(link_section = ".init_array")]
static WATCH: extern "C" fn() = {
    extern "C" fn watch() {
        // SAFETY: functions of this library, which stays loaded.
        unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
    }
    watch
};
