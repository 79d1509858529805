//! Protection domains.
#![expect(unsafe_code, reason = "calls into libibverbs")]

use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::Arc;

use doorbell_sys as sys;

use crate::device::Context;
use crate::error::{Error, Result};

/// A protection domain: MRs, SRQs and QPs work together only within one.
///
/// Cheap to clone; the PD is deallocated with its last clone and the last object created in it.
#[derive(Debug, Clone)]
pub struct Pd {
    inner: Arc<PdInner>,
}

#[derive(Debug)]
struct PdInner {
    raw: NonNull<sys::ibv_pd>,
    context: Context,
}

// SAFETY: libibverbs' calls on a PD may come from any thread at once, and the struct is not written
// after creation.
unsafe impl Send for PdInner {}
// SAFETY: as above.
unsafe impl Sync for PdInner {}

impl Pd {
    /// Allocates a PD on `context`.
    ///
    /// # Errors
    /// `ibv_alloc_pd`'s errno, ENOMEM when the device has no more.
    ///
    /// # References
    /// ibv_alloc_pd(3)
    pub fn alloc(context: &Context) -> Result<Self> {
        // SAFETY: the context is open for as long as `context` lives.
        let raw = unsafe { sys::ibv_alloc_pd(context.raw()) };
        let raw = NonNull::new(raw).ok_or_else(|| Error::last("ibv_alloc_pd"))?;
        Ok(Self { inner: Arc::new(PdInner { raw, context: context.clone() }) })
    }

    /// The device this PD is on.
    #[must_use]
    pub fn context(&self) -> &Context {
        &self.inner.context
    }

    /// The verbs object, for calls this crate does not have; valid while a clone of this PD lives.
    #[must_use]
    pub fn as_raw(&self) -> *mut c_void {
        self.raw().cast()
    }

    pub(crate) fn raw(&self) -> *mut sys::ibv_pd {
        self.inner.raw.as_ptr()
    }

    /// Whether there are clones of this PD: every object that was made in it has one.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        crate::is_shared(&self.inner)
    }

    /// Whether `other` is a clone of this PD.
    #[must_use]
    pub fn same(&self, other: &Pd) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }
}

impl Drop for PdInner {
    fn drop(&mut self) {
        // SAFETY: created by ibv_alloc_pd, freed only here; everything made in the PD holds a
        // clone, so nothing is left.
        let returned = unsafe { sys::ibv_dealloc_pd(self.raw.as_ptr()) };
        crate::log_failed_drop("ibv_dealloc_pd", returned);
    }
}
