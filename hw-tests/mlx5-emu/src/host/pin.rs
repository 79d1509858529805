//! Pinned pages, counted against RLIMIT_MEMLOCK as the kernel counts them. The count is per process
//! and covers regions, queue buffers and doorbell records. A page of doorbell records counts once
//! per context.
//!
//! Nothing is really locked. A process with CAP_IPC_LOCK (root, for example) has no limit.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::host::{config, sys};

const PAGE: u64 = 4096;

/// Pages pinned now.
static PAGES: AtomicU64 = AtomicU64::new(0);
/// How many queues have their record in a page of a context.
static RECORDS: Mutex<Option<HashMap<(usize, u64), u32>>> = Mutex::new(None);
/// Whether the limit counts: 0 no, 1 yes, 2 not decided.
static COUNTS: AtomicU8 = AtomicU8::new(2);

/// Sets whether RLIMIT_MEMLOCK limits later registrations. `MLX5_EMU_MEMLOCK` sets the same for
/// programs. By default the limit applies on a preloaded device.
pub fn set_memlock(counts: bool) {
    COUNTS.store(u8::from(counts), Ordering::Relaxed);
}

/// Reads the settings, so that the first registration does not.
pub(crate) fn start() {
    counts();
}

fn counts() -> bool {
    match COUNTS.load(Ordering::Relaxed) {
        0 => false,
        1 => true,
        _ => {
            let counts = config::memlock();
            set_memlock(counts);
            counts
        }
    }
}

/// Pages of a range; `None` when it wraps.
fn pages(address: u64, len: u64) -> Option<u64> {
    let end = address.checked_add(len)?.checked_add(PAGE - 1)? / PAGE;
    Some(end - address / PAGE)
}

/// Counts the pages of a range and returns how many they are, for [`release`].
///
/// # Errors
/// ENOMEM over the limit, EPERM when the limit is zero, EINVAL when the range wraps.
pub(crate) fn take(address: u64, len: u64) -> io::Result<u64> {
    let pages = pages(address, len).ok_or_else(|| sys::errno(libc::EINVAL))?;
    let limit = if counts() { sys::memlock_limit() } else { u64::MAX };
    let pinned = PAGES.fetch_add(pages, Ordering::Relaxed) + pages;
    if pinned > limit / PAGE && !sys::may_lock_all() {
        PAGES.fetch_sub(pages, Ordering::Relaxed);
        return Err(sys::errno(if limit == 0 { libc::EPERM } else { libc::ENOMEM }));
    }
    Ok(pages)
}

/// Undoes [`take`].
pub(crate) fn release(pages: u64) {
    let _ = PAGES.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |now| Some(now.saturating_sub(pages)));
}

/// The lock of the records, for a thread that forks.
pub(crate) fn hold() -> impl Sized + 'static {
    RECORDS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// In a forked child: nothing is pinned yet.
pub(crate) fn forget_in_child() {
    PAGES.store(0, Ordering::Relaxed);
    if let Ok(mut records) = RECORDS.try_lock() {
        *records = None;
    }
}

/// Pinned memory of a queue: its buffer, or the page of its doorbell record.
#[derive(Debug)]
pub(crate) struct Pin {
    pages: u64,
    record: Option<(usize, u64)>,
}

impl Pin {
    /// Pins a buffer.
    ///
    /// # Errors
    /// As [`take`].
    pub(crate) fn buffer(address: u64, len: usize) -> io::Result<Self> {
        Ok(Self { pages: take(address, len as u64)?, record: None })
    }

    /// Pins the page of a doorbell record, unless another queue of the context has its record in
    /// the same page.
    ///
    /// # Errors
    /// As [`take`].
    pub(crate) fn record(context: usize, address: u64) -> io::Result<Self> {
        let key = (context, address / PAGE);
        let mut records = RECORDS.lock().unwrap_or_else(PoisonError::into_inner);
        let users = records.get_or_insert_default().entry(key).or_insert(0);
        if *users == 0
            && let Err(error) = take(address & !(PAGE - 1), PAGE)
        {
            records.get_or_insert_default().remove(&key);
            return Err(error);
        }
        *users += 1;
        Ok(Self { pages: 0, record: Some(key) })
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        release(self.pages);
        let Some(key) = self.record else { return };
        let mut records = RECORDS.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(records) = records.as_mut()
            && let Some(users) = records.get_mut(&key)
        {
            *users -= 1;
            if *users == 0 {
                records.remove(&key);
                release(1);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_that_is_touched_counts() {
        assert_eq!(pages(0x1000, 1), Some(1));
        assert_eq!(pages(0x1fff, 2), Some(2));
        assert_eq!(pages(0x1000, 0x1000), Some(1));
        assert_eq!(pages(0x1001, 0x1000), Some(2));
        assert_eq!(pages(u64::MAX, 2), None);
    }
}
