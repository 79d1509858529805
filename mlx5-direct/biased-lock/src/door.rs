//! A word in static memory by which the owner of a mutex enters.

// tests/model.rs includes this file with a platform of its own.
use super::platform::AtomicPtr;
use super::raw::{Bias, OwnerGuard, try_enter_by};
use std::marker::PhantomData;

/// Leads the owner of a [`BiasedMutex`](super::BiasedMutex), and no other thread, into the mutex,
/// while the mutex exists. So a place that outlives the mutex needs no lock of its own to find it.
///
/// The mutex opens its door and closes it:
/// [`BiasedMutex::open_door`](super::BiasedMutex::open_door).
pub struct Door<T> {
    /// The bias of the mutex, while it has an owner, or NULL.
    bias: AtomicPtr<Bias>,
    _value: PhantomData<fn() -> T>,
}

impl<T> Door<T> {
    /// A door in this state; the initial one is NULL.
    pub(super) const fn from_parts(bias: AtomicPtr<Bias>) -> Self {
        Self { bias, _value: PhantomData }
    }

    pub(super) fn word(&'static self) -> &'static AtomicPtr<Bias> {
        &self.bias
    }

    /// The value of the mutex, if a mutex has opened this door, this thread is the owner of that
    /// mutex, and it holds no guard of it.
    #[inline(always)]
    pub fn try_lock_fast(&'static self) -> Option<OwnerGuard<T>> {
        self.try_lock_fast_in::<0>()
    }

    /// [`Door::try_lock_fast`] with one instruction less where `OFFSET` is the offset of the door
    /// in a structure whose address is in a register. It has no other effect.
    #[inline(always)]
    pub fn try_lock_fast_in<const OFFSET: usize>(&'static self) -> Option<OwnerGuard<T>> {
        self.try_lock_fast_after::<OFFSET>(|| ())
    }

    /// [`Door::try_lock_fast`] with code in the middle, for tests.
    #[inline(always)]
    pub(super) fn try_lock_fast_after<const OFFSET: usize>(
        &'static self,
        between: impl FnOnce(),
    ) -> Option<OwnerGuard<T>> {
        // Only a mutex with a `T` opens this door.
        try_enter_by::<OFFSET>(&self.bias, between).map(OwnerGuard::new)
    }
}

impl<T> std::fmt::Debug for Door<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Door").finish_non_exhaustive()
    }
}
