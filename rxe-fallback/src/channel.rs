//! Completion channels: a descriptor that becomes readable when an armed CQ gets a completion.
//!
//! Each event is acknowledged as soon as it is read. ibv_ack_cq_events(3) suggests batches because
//! each call takes a mutex; an uncontended mutex costs little compared with the read(2) that
//! fetched the event, and destroying a CQ then never waits for unacknowledged events.
#![expect(unsafe_code, reason = "calls into libibverbs")]

use std::ffi::c_void;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;

use doorbell_sys as sys;

use crate::device::Context;
use crate::error::{Error, Result};

/// A completion channel; cheap to clone, never blocks.
#[derive(Debug, Clone)]
pub struct CompChannel {
    inner: Arc<ChannelInner>,
}

#[derive(Debug)]
struct ChannelInner {
    raw: NonNull<sys::ibv_comp_channel>,
    context: Context,
}

// SAFETY: ibv_get_cq_event reads a descriptor and may be called by any thread; the struct's fields
// used here do not change after creation (refcnt is guarded by the context's mutex inside
// libibverbs).
unsafe impl Send for ChannelInner {}
// SAFETY: as above.
unsafe impl Sync for ChannelInner {}

impl CompChannel {
    /// Opens a channel on `context` and makes it non-blocking.
    ///
    /// # Errors
    /// `ibv_create_comp_channel`'s errno, EMFILE when the process has too many descriptors.
    ///
    /// # References
    /// ibv_create_comp_channel(3)
    pub fn create(context: &Context) -> Result<Self> {
        // SAFETY: the context is open for as long as `context` lives.
        let raw = unsafe { sys::ibv_create_comp_channel(context.raw()) };
        let raw = NonNull::new(raw).ok_or_else(|| Error::last("ibv_create_comp_channel"))?;
        let channel = Self { inner: Arc::new(ChannelInner { raw, context: context.clone() }) };
        crate::set_nonblocking(channel.as_fd())?;
        Ok(channel)
    }

    /// The next event, as the token of its CQ; `None` without an event.
    ///
    /// # Errors
    /// `ibv_get_cq_event`'s errno, EIO when the device has been removed.
    ///
    /// # References
    /// ibv_get_cq_event(3)
    pub fn next_event(&self) -> Result<Option<u64>> {
        let mut cq = ptr::null_mut();
        let mut token = ptr::null_mut();
        // SAFETY: the channel is alive; both places are written before a 0 is returned.
        let returned = unsafe { sys::ibv_get_cq_event(self.raw(), &mut cq, &mut token) };
        if returned != 0 {
            let error = Error::last("ibv_get_cq_event");
            return match error.errno() {
                libc::EAGAIN | libc::EINTR => Ok(None),
                _ => Err(error),
            };
        }
        // SAFETY: the CQ is alive: ibv_destroy_cq waits until each event read was acknowledged,
        // which happens here once.
        unsafe { sys::ibv_ack_cq_events(cq, 1) };
        Ok(Some(crate::token_from(token)))
    }

    /// The device of the channel.
    #[must_use]
    pub fn context(&self) -> &Context {
        &self.inner.context
    }

    /// The verbs object; valid while a clone of this channel lives.
    #[must_use]
    pub fn as_raw(&self) -> *mut c_void {
        self.raw().cast()
    }

    pub(crate) fn raw(&self) -> *mut sys::ibv_comp_channel {
        self.inner.raw.as_ptr()
    }
}

impl AsFd for CompChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel owns the descriptor and is alive for the borrow.
        unsafe { BorrowedFd::borrow_raw((*self.raw()).fd) }
    }
}

impl Drop for ChannelInner {
    fn drop(&mut self) {
        // SAFETY: created by ibv_create_comp_channel, freed only here; each CQ on it holds a clone,
        // so none is left.
        let returned = unsafe { sys::ibv_destroy_comp_channel(self.raw.as_ptr()) };
        crate::log_failed_drop("ibv_destroy_comp_channel", returned);
    }
}
