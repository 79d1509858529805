//! The constructor of a biased lock. It is apart from the protocol because loom's atomics have no
//! constant constructors.

use super::lock::BiasedLock;
use std::sync::atomic::{AtomicPtr, AtomicUsize};

impl<T: Send> BiasedLock<T> {
    /// A lock without an object. All its bytes are zero.
    pub(crate) const fn new() -> Self {
        let (bias, object) = (AtomicPtr::new(std::ptr::null_mut()), AtomicPtr::new(std::ptr::null_mut()));
        Self::from_parts(bias, object, AtomicUsize::new(0))
    }
}
