//! A mutex that is biased towards one thread.

#![expect(unsafe_code, reason = "a value that a protocol of atomics protects")]

// tests/model.rs includes this file with a platform of its own.
use super::raw::{Bias, Guard, Raw};
use std::cell::UnsafeCell;

/// A mutex whose owner locks it without an atomic read-modify-write instruction. The crate's
/// documentation says which thread is the owner.
pub struct BiasedMutex<T> {
    raw: Raw,
    value: UnsafeCell<T>,
}

// SAFETY: a shared mutex gives each thread access to the value in turn, which is what sending the
// value to that thread does.
unsafe impl<T: Send> Sync for BiasedMutex<T> {}

impl<T> BiasedMutex<T> {
    /// A mutex in this state; the initial one is NULL and 0.
    pub(super) const fn from_parts(raw: Raw, value: T) -> Self {
        Self { raw, value: UnsafeCell::new(value) }
    }

    /// Allocates what the locks need until a third thread becomes the owner. For a new mutex that
    /// is locked where nothing may be allocated.
    pub fn reserve(&mut self) {
        self.raw.reserve(2, Bias::allocate);
    }

    /// The value, if this thread is the owner and holds no guard.
    #[inline(always)]
    pub fn try_lock_fast(&self) -> Option<Guard<'_, T>> {
        self.try_lock_fast_after(|| ())
    }

    /// [`BiasedMutex::try_lock_fast`] with code in the middle, for tests.
    #[inline(always)]
    pub(super) fn try_lock_fast_after(&self, between: impl FnOnce()) -> Option<Guard<'_, T>> {
        self.raw.try_enter(between).map(|entered| Guard::new(self.value.get(), entered))
    }

    /// Waits until no other thread uses the value.
    ///
    /// # Panics
    /// If this thread holds a guard of this mutex.
    #[inline]
    pub fn lock(&self) -> Guard<'_, T> {
        self.try_lock_fast().unwrap_or_else(|| self.lock_slow())
    }

    #[inline(never)]
    fn lock_slow(&self) -> Guard<'_, T> {
        let slow = self.raw.hold();
        assert!(slow.is_ok(), "a thread locks a mutex that it holds");
        let entered = slow.map(|slow| self.raw.enter(slow, Bias::allocate));
        match entered {
            Ok(entered) => Guard::new(self.value.get(), entered),
            Err(_) => unreachable!("refused above"),
        }
    }

    /// The value, which nobody else uses.
    pub fn get_mut(&mut self) -> &mut T {
        self.value.get_mut()
    }

    /// Makes the lock free.
    ///
    /// # Safety
    /// No other thread uses the mutex, and no guard of it is dropped later. So it is in the child
    /// of a fork, where the guards belonged to threads that do not exist; what such a thread was
    /// changing may be half changed.
    pub unsafe fn force_unlock(&self) {
        self.raw.forget();
    }

    /// Whether the lock is in shared mode.
    #[cfg(test)]
    pub(super) fn is_shared(&self) -> bool {
        self.raw.is_shared()
    }
}

impl<T> std::fmt::Debug for BiasedMutex<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BiasedMutex").finish_non_exhaustive()
    }
}

impl<T> Drop for BiasedMutex<T> {
    fn drop(&mut self) {
        let biases: Vec<*mut Bias> = self.raw.biases().map(Bias::address).collect();
        for bias in biases {
            // SAFETY: `Bias::allocate` made it from a box, for this lock alone, which nobody uses
            // any more.
            drop(unsafe { Box::from_raw(bias) });
        }
    }
}
