//! Completion channels: a descriptor that becomes readable when an armed CQ gets a completion.
//!
//! Each event is acknowledged as soon as it is read. ibv_ack_cq_events(3) suggests batches because
//! each call takes a mutex; an uncontended mutex costs little compared with the read(2) that
//! fetched the event, and destroying a CQ then never waits for unacknowledged events.
//!
//! `ibv_get_cq_event` tells the driver of each event, since the driver has to count the events of a
//! CQ that it arms. A CQ whose memory somebody else polls and arms needs none of that:
//! [`CompChannel::create_without_driver`].
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
    /// The driver learns of the events.
    tells_driver: bool,
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
        Self::open(context, true)
    }

    /// As [`CompChannel::create`], for CQs that the driver neither arms nor polls: no function of
    /// the driver runs for their events. On such a channel a CQ that is armed through verbs misses
    /// events.
    ///
    /// # Errors
    /// As [`CompChannel::create`].
    pub fn create_without_driver(context: &Context) -> Result<Self> {
        Self::open(context, false)
    }

    fn open(context: &Context, tells_driver: bool) -> Result<Self> {
        // SAFETY: the context is open for as long as `context` lives.
        let raw = unsafe { sys::ibv_create_comp_channel(context.raw()) };
        let raw = NonNull::new(raw).ok_or_else(|| Error::last("ibv_create_comp_channel"))?;
        let channel = Self { inner: Arc::new(ChannelInner { raw, context: context.clone(), tells_driver }) };
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
        let event = if self.inner.tells_driver { self.get_event() } else { self.read_event() };
        let cq = match event {
            Ok(cq) => cq,
            Err(error) if matches!(error.errno(), libc::EAGAIN | libc::EINTR) => return Ok(None),
            Err(error) => return Err(error),
        };
        // SAFETY: the CQ is alive: ibv_destroy_cq waits until each event read was acknowledged,
        // which happens here once, after the token was read.
        let token = unsafe {
            let token = (*cq).cq_context;
            sys::ibv_ack_cq_events(cq, 1);
            token
        };
        Ok(Some(crate::token_from(token)))
    }

    fn get_event(&self) -> Result<*mut sys::ibv_cq> {
        let (mut cq, mut token) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the channel is alive; both places are written before a 0 is returned.
        let returned = unsafe { sys::ibv_get_cq_event(self.raw(), &mut cq, &mut token) };
        if returned == 0 { Ok(cq) } else { Err(Error::last("ibv_get_cq_event")) }
    }

    /// As `ibv_get_cq_event`, but the driver does not learn of the event. The kernel's event is the
    /// 64-bit handle that libibverbs gave to the CQ at its creation: the address of its `ibv_cq`.
    fn read_event(&self) -> Result<*mut sys::ibv_cq> {
        let mut handle = [0; size_of::<u64>()];
        match nix::unistd::read(self.as_fd(), &mut handle) {
            Ok(n) if n == handle.len() => {
                Ok(ptr::with_exposed_provenance_mut(u64::from_ne_bytes(handle) as usize))
            }
            Ok(_) => Err(Error::new("read of a completion channel", libc::EIO)),
            Err(errno) => Err(Error::new("read of a completion channel", errno as i32)),
        }
    }

    /// Whether there are clones of this channel: each of its CQs has one.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        crate::is_shared(&self.inner)
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
