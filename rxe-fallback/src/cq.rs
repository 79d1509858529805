//! Completion queues.
#![expect(unsafe_code, reason = "calls into libibverbs")]

use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use doorbell_sys as sys;

use crate::channel::CompChannel;
use crate::device::Context;
use crate::error::{Error, Result, check, memlock_hint};

mod completion;
mod polled;

pub use completion::{Completion, WcOpcode, WcStatus};
pub use polled::{Plain, Polled};

/// A completion queue; cheap to clone.
#[derive(Debug, Clone)]
pub struct Cq {
    inner: Arc<CqInner>,
}

#[derive(Debug)]
struct CqInner {
    raw: NonNull<sys::ibv_cq>,
    depth: AtomicU32,
    token: u64,
    invalidate_flags: u32,
    /// The channel has to outlive the CQ.
    _channel: Option<CompChannel>,
    context: Context,
}

// SAFETY: polling, arming and resizing one CQ from several threads is allowed: providers lock
// inside.
unsafe impl Send for CqInner {}
// SAFETY: as above.
unsafe impl Sync for CqInner {}

/// Completions fetched by one call of `ibv_poll_cq`.
const BATCH: usize = 16;

impl Cq {
    /// Creates a CQ for at least `depth` completions, which reports to `channel` when armed.
    ///
    /// `comp_vector` selects one of the device's interrupt vectors. [`CompChannel::next_event`] and
    /// asynchronous events return `token`.
    ///
    /// # Errors
    /// EINVAL if `depth` is 0 or above the device's limit (the text says so), or if the vector does
    /// not exist.
    ///
    /// # References
    /// ibv_create_cq(3)
    pub fn create(
        context: &Context,
        depth: u32,
        channel: Option<&CompChannel>,
        comp_vector: u32,
        token: u64,
    ) -> Result<Self> {
        let verb = "ibv_create_cq";
        let max = context.attributes().max_cqe;
        if depth == 0 || depth > max {
            return Err(Error::invalid(
                verb,
                format!("a CQ of {} has 1 to {max} entries, not {depth}", context.name()),
            ));
        }
        let vectors = context.comp_vectors();
        if comp_vector >= vectors {
            let text = format!(
                "{} has completion vectors 0 to {}, not {comp_vector}",
                context.name(),
                vectors.max(1) - 1
            );
            return Err(Error::invalid(verb, text));
        }
        if let Some(channel) = channel
            && !channel.context().same(context)
        {
            return Err(Error::invalid(verb, "the channel is on another device"));
        }
        let raw_channel = channel.map_or(ptr::null_mut(), CompChannel::raw);
        // SAFETY: the context is open, the channel (or NULL) is alive and on it; both are held as
        // long as the CQ lives.
        let raw = unsafe {
            sys::ibv_create_cq(
                context.raw(),
                depth as i32,
                crate::token_into(token),
                raw_channel,
                comp_vector as i32,
            )
        };
        let raw = NonNull::new(raw).ok_or_else(|| create_failed(verb))?;
        // SAFETY: just created; nobody else writes the field yet.
        let actual = unsafe { (*raw.as_ptr()).cqe };
        let depth = AtomicU32::new(u32::try_from(actual).unwrap_or(depth));
        let invalidate_flags = completion::invalidate_flags(context.driver());
        let inner = CqInner {
            raw,
            depth,
            token,
            invalidate_flags,
            _channel: channel.cloned(),
            context: context.clone(),
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Moves completions to `into`, oldest first. Returns their number; 0 if there are none.
    ///
    /// # Errors
    /// `ibv_poll_cq` failing: the CQ is broken (overrun).
    ///
    /// # References
    /// ibv_poll_cq(3)
    pub fn poll(&self, into: &mut [Completion]) -> Result<usize> {
        let most = into.len();
        let mut out = into.iter_mut();
        self.poll_each(most, |completion| {
            if let Some(place) = out.next() {
                *place = completion;
            }
        })
    }

    /// Calls `each` with up to `most` completions, oldest first. Returns their number; 0 if there
    /// are none.
    ///
    /// # Errors
    /// As [`Cq::poll`].
    ///
    /// # References
    /// ibv_poll_cq(3)
    #[inline]
    pub fn poll_each(&self, most: usize, mut each: impl FnMut(Completion)) -> Result<usize> {
        let mut batch = [const { MaybeUninit::<sys::ibv_wc>::uninit() }; BATCH];
        let mut total = 0;
        while total < most {
            let want = BATCH.min(most - total);
            // SAFETY: the CQ is alive and `batch` has room for `want` entries.
            let got = unsafe { sys::ibv_poll_cq(self.raw(), want as i32, batch.as_mut_ptr().cast()) };
            let Ok(got) = usize::try_from(got) else {
                // Return the completions that were moved; the next call reports the error again.
                return if total > 0 { Ok(total) } else { Err(poll_failed(got)) };
            };
            for wc in &batch[..got.min(want)] {
                // SAFETY: the device library has written the first `got` entries.
                each(Completion::from_wc(unsafe { wc.assume_init_ref() }, self.inner.invalidate_flags));
            }
            total += got.min(want);
            if got < want {
                break;
            }
        }
        Ok(total)
    }

    /// Asks for one event on the channel at the next completion, or only at the next solicited or
    /// failed one.
    ///
    /// Poll once more after arming: a completion that came in between raises no event.
    ///
    /// # Errors
    /// `ibv_req_notify_cq`'s errno.
    ///
    /// # References
    /// ibv_req_notify_cq(3)
    pub fn arm(&self, solicited_only: bool) -> Result<()> {
        // SAFETY: the CQ is alive.
        let returned = unsafe { sys::ibv_req_notify_cq(self.raw(), i32::from(solicited_only)) };
        check("ibv_req_notify_cq", returned)
    }

    /// Makes room for at least `depth` completions. Waiting completions stay.
    ///
    /// # Errors
    /// EINVAL if `depth` is 0, above the device's limit, or below the number of waiting
    /// completions; EOPNOTSUPP if the device cannot resize CQs.
    ///
    /// # References
    /// ibv_resize_cq(3)
    pub fn resize(&self, depth: u32) -> Result<()> {
        let max = self.inner.context.attributes().max_cqe;
        if depth == 0 || depth > max {
            let text = format!("a CQ of {} has 1 to {max} entries, not {depth}", self.inner.context.name());
            return Err(Error::invalid("ibv_resize_cq", text));
        }
        // SAFETY: the CQ is alive.
        let returned = unsafe { sys::ibv_resize_cq(self.raw(), depth as i32) };
        check("ibv_resize_cq", returned).map_err(|error| match error.errno() {
            libc::ENOSYS | libc::EOPNOTSUPP => {
                Error::unsupported("ibv_resize_cq", "this device cannot resize a CQ")
            }
            _ => error,
        })?;
        // The verb writes the actual depth to the struct, and another thread may be resizing the CQ
        // now. So the requested depth is reported.
        self.inner.depth.store(depth, Ordering::Relaxed);
        Ok(())
    }

    /// The number of completions for which there is room, at least.
    #[must_use]
    pub fn depth(&self) -> u32 {
        self.inner.depth.load(Ordering::Relaxed)
    }

    /// The token that was given at creation.
    #[must_use]
    pub fn token(&self) -> u64 {
        self.inner.token
    }

    /// The device of the CQ.
    #[must_use]
    pub fn context(&self) -> &Context {
        &self.inner.context
    }

    /// The verbs object; valid while a clone of this CQ, or a QP on it, lives.
    #[must_use]
    pub fn as_raw(&self) -> *mut c_void {
        self.raw().cast()
    }

    pub(crate) fn raw(&self) -> *mut sys::ibv_cq {
        self.inner.raw.as_ptr()
    }

    /// Whether `other` is a clone of this CQ.
    #[must_use]
    pub fn same(&self, other: &Cq) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }
}

impl Drop for CqInner {
    fn drop(&mut self) {
        // SAFETY: created by ibv_create_cq, freed only here; QPs on it hold a clone, so none is
        // left. Events read were acknowledged at once, so this does not wait.
        let returned = unsafe { sys::ibv_destroy_cq(self.raw.as_ptr()) };
        crate::log_failed_drop("ibv_destroy_cq", returned);
    }
}

/// A hint for errors of objects whose queues are pinned memory.
pub(crate) fn create_failed(verb: &'static str) -> Error {
    let error = Error::last(verb);
    match memlock_hint(error.errno(), None) {
        Some(hint) => error.with_detail(format!("too many or too large; {hint}")),
        None => error,
    }
}

fn poll_failed(returned: i32) -> Error {
    let errno = match returned {
        -1 | 0.. => libc::EIO,
        other => other.saturating_abs(),
    };
    Error::new("ibv_poll_cq", errno).with_detail("the CQ is broken; was it overrun?")
}
