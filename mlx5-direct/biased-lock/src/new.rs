//! The constructors. They are apart from the protocol because loom's atomics have no constant
//! constructors.

use super::door::Door;
use super::lock::BiasedLock;
use super::mutex::BiasedMutex;
use super::raw::Raw;
use std::sync::atomic::{AtomicPtr, AtomicUsize};

impl Raw {
    const fn new() -> Self {
        Self::from_parts(AtomicPtr::new(std::ptr::null_mut()), AtomicUsize::new(0))
    }
}

impl<T: Send> BiasedLock<T> {
    /// A lock without an object. All its bytes are zero.
    #[expect(clippy::new_without_default, reason = "for static memory")]
    pub const fn new() -> Self {
        Self::from_parts(Raw::new(), AtomicPtr::new(std::ptr::null_mut()))
    }
}

impl<T> BiasedMutex<T> {
    /// A mutex with this value.
    pub const fn new(value: T) -> Self {
        Self::from_parts(Raw::new(), AtomicPtr::new(std::ptr::null_mut()), false, value)
    }

    /// A mutex with this value that can open a [`Door`]. What its locks need is allocated as by
    /// [`BiasedMutex::reserve`].
    #[inline(always)]
    pub fn with_doors(value: T) -> Self {
        let null = AtomicPtr::new(std::ptr::null_mut());
        let mut mutex = Self::from_parts(Raw::new(), null, true, value);
        mutex.reserve();
        mutex
    }
}

impl<T> Door<T> {
    /// A door that no mutex has opened. All its bytes are zero.
    #[expect(clippy::new_without_default, reason = "for static memory")]
    pub const fn new() -> Self {
        Self::from_parts(AtomicPtr::new(std::ptr::null_mut()))
    }
}
