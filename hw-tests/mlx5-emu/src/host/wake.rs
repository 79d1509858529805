//! What ends the sleep of the helper thread ([`crate::program::helper`]).

use std::os::fd::{AsRawFd as _, OwnedFd, RawFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::host::sys;

static SLEEPING: AtomicBool = AtomicBool::new(false);
/// Calls of [`wake`].
static WAKES: AtomicU64 = AtomicU64::new(0);
static EVENT: OnceLock<Option<OwnedFd>> = OnceLock::new();

/// Makes the descriptor on which the thread sleeps. Without one the sleeps only end in time.
pub(crate) fn start() {
    EVENT.get_or_init(|| sys::eventfd(libc::EFD_NONBLOCK).ok());
}

/// The number of calls of [`wake`] so far.
pub(crate) fn count() -> u64 {
    WAKES.load(Ordering::SeqCst)
}

/// Ends the helper's sleep. A helper that is about to sleep looks for work once more instead.
pub(crate) fn wake() {
    WAKES.fetch_add(1, Ordering::SeqCst);
    if SLEEPING.load(Ordering::SeqCst)
        && let Some(Some(fd)) = EVENT.get()
    {
        sys::ring(fd);
    }
}

/// Waits for a descriptor, a wake-up or the end of `time`. Returns false if the time ended the
/// wait. `wakes` is what [`count`] returned before the caller looked for work.
pub(crate) fn sleep(descriptors: &[RawFd], time: Duration, wakes: u64) -> bool {
    let event = EVENT.get().and_then(Option::as_ref);
    let mut list = descriptors.to_vec();
    list.extend(event.map(|fd| fd.as_raw_fd()));
    SLEEPING.store(true, Ordering::SeqCst);
    let awoken = count() != wakes || sys::wait_for(&list, time);
    SLEEPING.store(false, Ordering::SeqCst);
    if awoken && let Some(fd) = event {
        sys::silence(fd);
    }
    awoken
}
