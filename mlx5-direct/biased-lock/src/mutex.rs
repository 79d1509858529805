//! A mutex that is biased towards one thread.

#![expect(unsafe_code, reason = "a value that a protocol of atomics protects")]

// tests/model.rs includes this file with a platform of its own.
use super::door::Door;
use super::lock::{keep, reuse};
use super::platform::AtomicPtr;
use super::raw::{Bias, Guard, Raw, Reuse, SecondWord, no_reuse};
use std::cell::UnsafeCell;
use std::sync::atomic::Ordering;

/// A mutex whose owner locks it without an atomic read-modify-write instruction. The crate's
/// documentation says which thread is the owner.
// In this order, so that the bias is at the start: in a structure, beside the fields before the mutex.
#[repr(C)]
pub struct BiasedMutex<T> {
    raw: Raw,
    /// The word of the door, or NULL. Changes under the ordinary lock.
    door: AtomicPtr<AtomicPtr<Bias>>,
    /// The biases are not freed with the mutex, but kept for other locks: see [`Door`].
    keeps_biases: bool,
    value: UnsafeCell<T>,
}

// SAFETY: a shared mutex gives each thread access to the value in turn, which is what sending the
// value to that thread does.
unsafe impl<T: Send> Sync for BiasedMutex<T> {}

impl<T> BiasedMutex<T> {
    /// A mutex in this state; the initial one is NULL and 0.
    pub(super) const fn from_parts(
        raw: Raw,
        door: AtomicPtr<AtomicPtr<Bias>>,
        keeps_biases: bool,
        value: T,
    ) -> Self {
        Self { raw, keeps_biases, door, value: UnsafeCell::new(value) }
    }

    fn reuse(&self) -> Reuse {
        if self.keeps_biases { reuse } else { no_reuse }
    }

    /// The word of the door, if there is one. Under the ordinary lock.
    fn second_word(&self) -> Option<SecondWord> {
        // SAFETY: NULL, or the word of a door that lives for ever.
        let word = unsafe { self.door.load(Ordering::Relaxed).as_ref() }?;
        Some(SecondWord { word, value: self.value.get().cast() })
    }

    /// Allocates what the locks need until a third thread becomes the owner. For a new mutex that
    /// is locked where nothing may be allocated.
    pub fn reserve(&mut self) {
        self.raw.reserve(2, self.reuse());
    }

    /// From now on, the owner can enter by this door as well. Without an effect on a mutex that was
    /// not made by [`BiasedMutex::with_doors`]. A mutex has one door at a time: an earlier one is
    /// closed.
    ///
    /// # Safety
    ///
    /// The mutex is not moved from now on, and it is dropped before its memory is used for anything
    /// else.
    ///
    /// # Panics
    /// If this thread holds a guard of this mutex.
    pub unsafe fn open_door(&self, door: &'static Door<T>)
    where
        T: Send,
    {
        if !self.keeps_biases {
            return;
        }
        let slow = self.raw.hold();
        assert!(slow.is_ok(), "a thread opens the door of a mutex that it holds");
        self.forget_door();
        let word = door.word();
        self.door.store(std::ptr::from_ref(word).cast_mut(), Ordering::Relaxed);
        self.raw.show_in(SecondWord { word, value: self.value.get().cast() });
    }

    /// Closes the door. Waits until no other thread is inside that has entered by it.
    ///
    /// # Panics
    /// If this thread holds a guard of this mutex.
    pub fn close_door(&self) {
        assert!(self.has_closed_door(), "a thread closes the door of a mutex that it holds");
    }

    /// Closes the door. False if this thread holds a guard.
    fn has_closed_door(&self) -> bool {
        let slow = self.raw.hold();
        if slow.is_ok() {
            self.forget_door();
        }
        slow.is_ok()
    }

    /// Closes the door. Under the ordinary lock, and not from inside.
    fn forget_door(&self) {
        if let Some(second) = self.second_word() {
            self.raw.hide_in(self.reuse(), second);
            self.door.store(std::ptr::null_mut(), Ordering::Relaxed);
        }
    }

    /// Closes the door of a mutex that nobody else refers to, but threads that have entered by it.
    fn shut(&mut self) {
        if !self.door.load(Ordering::Relaxed).is_null() && !self.has_closed_door() {
            // The guard of this thread, which came through the door, would outlive the value.
            std::process::abort();
        }
    }

    /// The value, if this thread is the owner and holds no guard.
    #[inline(always)]
    pub fn try_lock_fast(&self) -> Option<Guard<'_, T>> {
        self.try_lock_fast_in::<0>()
    }

    /// [`BiasedMutex::try_lock_fast`] with one instruction less where `OFFSET` is the offset of the
    /// mutex in a structure whose address is in a register. It has no other effect.
    #[inline(always)]
    pub fn try_lock_fast_in<const OFFSET: usize>(&self) -> Option<Guard<'_, T>> {
        self.try_lock_fast_after::<OFFSET>(|| ())
    }

    /// [`BiasedMutex::try_lock_fast`] with code in the middle, for tests.
    #[inline(always)]
    pub(super) fn try_lock_fast_after<const OFFSET: usize>(
        &self,
        between: impl FnOnce(),
    ) -> Option<Guard<'_, T>> {
        self.raw.try_enter::<OFFSET>(between).map(|entered| Guard::new(self.value.get(), entered))
    }

    /// The value, if the lock is in shared mode and no thread uses the value.
    #[inline(always)]
    pub fn try_lock_shared(&self) -> Option<Guard<'_, T>> {
        let entered = self.raw.try_enter_shared(self.reuse(), || self.second_word())?;
        Some(Guard::new(self.value.get(), entered))
    }

    /// Waits until no other thread uses the value.
    ///
    /// # Panics
    /// If this thread holds a guard of this mutex.
    #[inline]
    pub fn lock(&self) -> Guard<'_, T> {
        self.try_lock_fast().unwrap_or_else(|| self.lock_slow())
    }

    /// As [`lock`](Self::lock); `None` if this thread holds a guard of this mutex.
    #[inline]
    pub fn lock_unless_held(&self) -> Option<Guard<'_, T>> {
        self.try_lock_fast().or_else(|| self.try_lock_slow())
    }

    #[inline(never)]
    fn lock_slow(&self) -> Guard<'_, T> {
        let guard = self.try_lock_slow();
        assert!(guard.is_some(), "a thread locks a mutex that it holds");
        guard.unwrap_or_else(|| unreachable!("refused above"))
    }

    #[inline(never)]
    fn try_lock_slow(&self) -> Option<Guard<'_, T>> {
        let slow = self.raw.hold().ok()?;
        // The door is looked up under the ordinary lock.
        let entered = self.raw.enter(slow, self.reuse(), self.second_word());
        Some(Guard::new(self.value.get(), entered))
    }

    /// Where the value is. To use it, lock the mutex.
    pub fn as_ptr(&self) -> *mut T {
        self.value.get()
    }

    /// The value, which nobody else uses.
    pub fn get_mut(&mut self) -> &mut T {
        self.shut();
        self.value.get_mut()
    }

    /// Makes the lock free, and closes its door without waiting.
    ///
    /// # Safety
    /// No other thread uses the mutex, and no guard of it is dropped later. So it is in the child
    /// of a fork, where the guards belonged to threads that do not exist; what such a thread was
    /// changing may be half changed.
    pub unsafe fn force_unlock(&self) {
        if let Some(second) = self.second_word() {
            second.hide();
            self.door.store(std::ptr::null_mut(), Ordering::Relaxed);
        }
        self.raw.forget();
    }

    /// Whether a thread is parked, or about to be.
    #[cfg(test)]
    pub(super) fn has_parked(&self) -> bool {
        self.raw.has_parked()
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
        self.shut();
        if self.keeps_biases {
            keep(&mut self.raw.biases());
            return;
        }
        self.raw.empty(|bias| {
            // SAFETY: `Bias::allocate` made it from a box, for this lock alone, which nobody uses
            // any more.
            drop(unsafe { Box::from_raw(bias) });
        });
    }
}
