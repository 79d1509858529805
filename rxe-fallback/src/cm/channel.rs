//! The event channel, and the lock of its ids.
#![expect(unsafe_code, reason = "calls into librdmacm")]

use std::ffi::c_void;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use doorbell_sys as sys;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::event::CmEvent;
use crate::error::{Error, Result, check_errno};

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

    /// The next event, acknowledged; `None` when there is none.
    ///
    /// # Errors
    /// `rdma_get_cm_event`'s errno.
    ///
    /// # References
    /// rdma_get_cm_event(3)
    pub fn next_event(&self) -> Result<Option<CmEvent>> {
        let _guard = self.lock();
        let mut raw = ptr::null_mut();
        // SAFETY: the channel is alive; the event is written before a 0 is returned. The lock keeps
        // every other call on ids of this channel out while their fields are written.
        let returned = unsafe { sys::rdma_get_cm_event(self.raw(), &mut raw) };
        if let Err(error) = check_errno("rdma_get_cm_event", returned) {
            return match error.errno() {
                libc::EAGAIN | libc::EINTR => Ok(None),
                _ => Err(error),
            };
        }
        // SAFETY: an event just read; its ids are alive because destroying them takes the lock held
        // here.
        let event = unsafe { CmEvent::copy_out(&*raw, self) };
        // SAFETY: acknowledged once, after everything was copied out.
        unsafe { sys::rdma_ack_cm_event(raw) };
        Ok(Some(event))
    }

    /// The next event, waiting for it for at most `timeout`.
    ///
    /// # Errors
    /// As [`EventChannel::next_event`].
    pub fn next_event_timeout(&self, timeout: Duration) -> Result<Option<CmEvent>> {
        let deadline = Instant::now() + timeout;
        loop {
            if let Some(event) = self.next_event()? {
                return Ok(Some(event));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            let millis = left.as_millis().saturating_add(1).min(i32::MAX as u128) as i32;
            let mut fds = [PollFd::new(self.as_fd(), PollFlags::POLLIN)];
            match poll(&mut fds, PollTimeout::try_from(millis).unwrap_or(PollTimeout::MAX)) {
                Ok(_) | Err(nix::errno::Errno::EINTR) => {}
                Err(errno) => return Err(Error::new("poll", errno as i32)),
            }
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn channel_opens_or_says_what_is_missing() {
        match EventChannel::create() {
            Ok(channel) => assert!(channel.next_event().unwrap().is_none()),
            Err(error) => assert!(error.detail().is_some(), "{error}"),
        }
    }
}
