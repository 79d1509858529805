//! A lock around an object that can be put in and taken out, for static memory.

#![expect(unsafe_code, reason = "an object that a protocol of atomics protects")]

// tests/model.rs includes this file with a platform of its own.
use super::platform::{AtomicPtr, keep_biases, reuse_bias};
use super::raw::{Bias, Guard, Raw};
use std::sync::atomic::Ordering;

/// A biased lock around an object, or around nothing. The crate's documentation says when it is
/// fast.
#[derive(Debug)]
pub struct BiasedLock<T> {
    raw: Raw,
    object: AtomicPtr<T>,
}

/// Why [`BiasedLock::lock`] gives no access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockError {
    /// There is no object.
    Empty,
    /// This thread holds a guard already.
    Reentrant,
}

/// A bias that another lock has kept. For locks that keep theirs.
pub(super) fn reuse(thread: usize) -> Option<&'static Bias> {
    reuse_bias(thread)?.downcast_ref()
}

/// Keeps biases for [`reuse`].
pub(super) fn keep(biases: &mut dyn Iterator<Item = &'static Bias>) {
    keep_biases(&mut biases.map(|bias| (bias.thread(), bias as _)));
}

impl<T: Send> BiasedLock<T> {
    /// A lock in this state; the initial one is all NULL and 0.
    pub(super) const fn from_parts(raw: Raw, object: AtomicPtr<T>) -> Self {
        Self { raw, object }
    }

    /// Puts an object in and returns the previous one.
    pub fn put(&self, object: Box<T>) -> Option<Box<T>> {
        let previous = self.take();
        self.object.store(Box::into_raw(object), Ordering::SeqCst);
        previous
    }

    /// Waits until no other thread uses the object and takes it out. Returns `None`, and leaves the
    /// object where it is, if this thread holds a guard.
    pub fn take(&self) -> Option<Box<T>> {
        let _slow = self.raw.exclude(|unused| keep(unused)).ok()?;
        let object = self.object.swap(std::ptr::null_mut(), Ordering::SeqCst);
        // SAFETY: `put` made the pointer from a box. The swap gave it to this call alone, and no
        // thread is inside.
        (!object.is_null()).then(|| unsafe { Box::from_raw(object) })
    }

    /// Empties the lock without dropping the object or waiting. For a forked child, where the
    /// users of the object are threads of the parent.
    pub fn forget(&self) {
        self.raw.forget();
        self.object.store(std::ptr::null_mut(), Ordering::SeqCst);
    }

    /// The object, if this thread is the owner and holds no guard.
    #[inline(always)]
    pub fn try_lock_fast(&self) -> Option<Guard<'_, T>> {
        self.try_lock_fast_in::<0>()
    }

    /// [`BiasedLock::try_lock_fast`] with one instruction less where `OFFSET` is the offset of the
    /// lock in a structure whose address is in a register. It has no other effect.
    #[inline(always)]
    pub fn try_lock_fast_in<const OFFSET: usize>(&self) -> Option<Guard<'_, T>> {
        self.try_lock_fast_after::<OFFSET>(|| ())
    }

    /// [`BiasedLock::try_lock_fast`] with code in the middle, for tests.
    #[inline(always)]
    pub(super) fn try_lock_fast_after<const OFFSET: usize>(
        &self,
        between: impl FnOnce(),
    ) -> Option<Guard<'_, T>> {
        let entered = self.raw.try_enter::<OFFSET>(between)?;
        // A lock with an owner has an object: `take` leaves no owner.
        Some(Guard::new(self.object.load(Ordering::Relaxed), entered))
    }

    /// The object, if the lock is in shared mode and no thread uses the object.
    #[inline(always)]
    pub fn try_lock_shared(&self) -> Option<Guard<'_, T>> {
        let entered = self.raw.try_enter_shared(reuse, || None)?;
        // A lock in shared mode has an object, as one with an owner.
        Some(Guard::new(self.object.load(Ordering::Relaxed), entered))
    }

    /// Waits until no other thread uses the object.
    ///
    /// # Errors
    /// There is no object, or this thread holds a guard.
    pub fn lock(&self) -> Result<Guard<'_, T>, LockError> {
        let slow = self.raw.hold().map_err(|_| LockError::Reentrant)?;
        let object = self.object.load(Ordering::Acquire);
        if object.is_null() {
            return Err(LockError::Empty);
        }
        // The object stays: `take` needs the ordinary lock, and then waits for the owner.
        Ok(Guard::new(object, self.raw.enter(slow, reuse, None)))
    }

    /// Whether the lock is in shared mode.
    #[cfg(test)]
    pub(super) fn is_shared(&self) -> bool {
        self.raw.is_shared()
    }
}

impl<T> Drop for BiasedLock<T> {
    fn drop(&mut self) {
        keep(&mut self.raw.biases());
        let object = self.object.swap(std::ptr::null_mut(), Ordering::Relaxed);
        if !object.is_null() {
            // SAFETY: `put` made the pointer from a box, and nobody else has this lock any more.
            drop(unsafe { Box::from_raw(object) });
        }
    }
}
