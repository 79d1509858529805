//! The device's clock: the monotonic clock plus the time by which tests have advanced it.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Frequency of the device's clock in kHz: a cycle is a nanosecond.
pub(crate) const KHZ: u64 = 1_000_000;

static START: OnceLock<Instant> = OnceLock::new();
static ADVANCED_NS: AtomicU64 = AtomicU64::new(0);

/// Nanoseconds of device time.
pub(crate) fn now_ns() -> u64 {
    let real = START.get_or_init(Instant::now).elapsed();
    u64::try_from(real.as_nanos()).unwrap_or(u64::MAX).saturating_add(ADVANCED_NS.load(Ordering::Relaxed))
}

/// The real time since 1970, advanced as the device's.
pub(crate) fn real_time() -> Duration {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    now.saturating_add(Duration::from_nanos(ADVANCED_NS.load(Ordering::Relaxed)))
}

/// Moves device time forward. Timers (receiver not ready, transport) then expire without a wait.
pub fn advance(by: Duration) {
    ADVANCED_NS.fetch_add(u64::try_from(by.as_nanos()).unwrap_or(0), Ordering::Relaxed);
}
