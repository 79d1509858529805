//! Locks.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// A lock whose contents are sound after a panic: every change under it is a single step.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
