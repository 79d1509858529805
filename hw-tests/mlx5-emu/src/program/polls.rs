//! The program's polls of CQs, which run the engine in place of the helper thread
//! ([`crate::program::helper`]).

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::host::wake;

static POLLS: AtomicU64 = AtomicU64::new(0);
/// The helper naps because the program polls without a pause.
static BESIDE_POLLS: AtomicBool = AtomicBool::new(false);

/// Records that the program polls. The helper then leaves the sockets of peers to the program.
/// Returns the number of polls so far.
#[inline]
pub(crate) fn note() -> u64 {
    let count = count().wrapping_add(1);
    POLLS.store(count, Ordering::Relaxed);
    count
}

/// The number of calls of [`note`] so far.
#[inline]
pub(crate) fn count() -> u64 {
    POLLS.load(Ordering::Relaxed)
}

/// The helper naps from now on because of the program's polls, or does so no longer.
pub(crate) fn set_nap(naps: bool) {
    BESIDE_POLLS.store(naps, Ordering::Relaxed);
}

/// The program armed a CQ, or sleeps: it may stop polling now, and the helper has to serve it.
#[inline]
pub(crate) fn pause() {
    if BESIDE_POLLS.load(Ordering::Relaxed) {
        wake::wake();
    }
}
