//! The event channel, and the lock of its ids.
#![expect(unsafe_code, reason = "calls into librdmacm")]

use std::ffi::c_void;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use doorbell_sys as sys;

use crate::error::{Error, Result};

/// The channel of rdma_cm events; cheap to clone, never blocks.
#[derive(Debug, Clone)]
pub struct EventChannel {
    inner: Arc<ChannelInner>,
}

#[derive(Debug)]
struct ChannelInner {
    raw: NonNull<sys::rdma_event_channel>,
    /// Held during each call into librdmacm that touches this channel or an id on it.
    lock: Mutex<()>,
}

// SAFETY: the channel is a descriptor that does not change; calls on it are made under `lock`.
unsafe impl Send for ChannelInner {}
// SAFETY: as above.
unsafe impl Sync for ChannelInner {}

impl EventChannel {
    /// Opens a channel and makes it non-blocking.
    ///
    /// # Errors
    /// ENODEV if there is no RDMA device or the kernel has no rdma_cm; EACCES if
    /// `/dev/infiniband/rdma_cm` is not accessible.
    ///
    /// # References
    /// rdma_create_event_channel(3)
    pub fn create() -> Result<Self> {
        // SAFETY: no arguments.
        let raw = unsafe { sys::rdma_create_event_channel() };
        let raw = NonNull::new(raw).ok_or_else(|| {
            let error = Error::last("rdma_create_event_channel");
            match error.errno() {
                libc::ENODEV | libc::ENOENT | libc::ENOSYS | libc::EPERM => {
                    error.with_detail("no RDMA device, or the kernel module rdma_ucm is not loaded")
                }
                libc::EACCES => error.with_detail("see the permissions of /dev/infiniband/rdma_cm"),
                _ => error,
            }
        })?;
        let channel = Self { inner: Arc::new(ChannelInner { raw, lock: Mutex::new(()) }) };
        crate::set_nonblocking(channel.as_fd())?;
        Ok(channel)
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, ()> {
        // Poisoning is ignored: the lock guards C data, which a Rust panic cannot leave half
        // written.
        self.inner.lock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The librdmacm object; valid while a clone of this channel, or an id on it, lives.
    #[must_use]
    pub fn as_raw(&self) -> *mut c_void {
        self.raw().cast()
    }

    pub(crate) fn raw(&self) -> *mut sys::rdma_event_channel {
        self.inner.raw.as_ptr()
    }

    pub(super) fn same(&self, other: &EventChannel) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }
}

impl AsFd for EventChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel owns the descriptor and is alive for the borrow.
        unsafe { BorrowedFd::borrow_raw((*self.raw()).fd) }
    }
}

impl Drop for ChannelInner {
    fn drop(&mut self) {
        // SAFETY: created by rdma_create_event_channel, freed only here; ids on it hold a clone, so
        // none is left.
        unsafe { sys::rdma_destroy_event_channel(self.raw.as_ptr()) };
    }
}
