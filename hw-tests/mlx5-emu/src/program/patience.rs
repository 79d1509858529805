//! When a program that polls in vain lets its peers in other processes run.
//!
//! A peer may wait for the processor on which the program spins. The program then gets nothing
//! before its time slice ends. A yield costs little when the peer has a processor of its own, and a
//! lot when a third program takes the slice. The number of polls before a yield therefore depends
//! on what the last yields were good for.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::device;

/// Polls in vain before a yield: minimum and maximum.
const YIELD_AFTER: (u32, u32) = (4, 64);
/// Polls in vain before the program sleeps until a peer wakes it.
const NAP_AFTER: u32 = 512;
const NAP: Duration = Duration::from_micros(100);
/// Duration of a yield to a peer that does its part and yields in turn. A shorter one gave the
/// processor to nobody, a longer one gave it to another program.
const TO_A_PEER: (Duration, Duration) = (Duration::from_micros(1), Duration::from_micros(200));

static VAIN_POLLS: AtomicU32 = AtomicU32::new(0);
static PATIENCE: AtomicU32 = AtomicU32::new(YIELD_AFTER.1);
/// A peer ran during a yield, and no poll has returned since.
static PEER_RAN: AtomicBool = AtomicBool::new(false);

/// The number of threads that yield between two polls.
static YIELDING: AtomicU32 = AtomicU32::new(0);

/// Whether a program that polls has yielded, and goes on polling as soon as it has a processor.
pub(crate) fn yields() -> bool {
    YIELDING.load(Ordering::Relaxed) > 0
}

/// The polls in vain before the next yield, after a yield that was worth it or was not.
fn next_patience(patience: u32, worth_it: bool) -> u32 {
    if worth_it { (patience / 2).max(YIELD_AFTER.0) } else { (patience * 2).min(YIELD_AFTER.1) }
}

fn learn(worth_it: bool) {
    PATIENCE.store(next_patience(PATIENCE.load(Ordering::Relaxed), worth_it), Ordering::Relaxed);
}

/// A poll found something.
#[inline(always)]
pub(crate) fn polled_well() {
    if VAIN_POLLS.load(Ordering::Relaxed) != 0 {
        VAIN_POLLS.store(0, Ordering::Relaxed);
        if PEER_RAN.load(Ordering::Relaxed) {
            PEER_RAN.store(false, Ordering::Relaxed);
            learn(true);
        }
    }
}

/// A poll found nothing, and the program has peers in other processes.
pub(crate) fn polled_in_vain() {
    let times = VAIN_POLLS.load(Ordering::Relaxed).wrapping_add(1);
    VAIN_POLLS.store(times, Ordering::Relaxed);
    if PEER_RAN.load(Ordering::Relaxed) {
        PEER_RAN.store(false, Ordering::Relaxed);
        learn(false);
    }
    if times < PATIENCE.load(Ordering::Relaxed) {
        return;
    }
    if times < NAP_AFTER {
        let before = Instant::now();
        YIELDING.fetch_add(1, Ordering::Relaxed);
        crate::host::sys::yield_now();
        YIELDING.fetch_sub(1, Ordering::Relaxed);
        if (TO_A_PEER.0..TO_A_PEER.1).contains(&before.elapsed()) {
            PEER_RAN.store(true, Ordering::Relaxed);
        } else {
            learn(false);
        }
        return;
    }
    let Some(mut device) = device::try_lock() else { return crate::host::sys::yield_now() };
    let Some(descriptors) = device.card.net.fall_asleep() else { return };
    drop(device);
    crate::host::sys::wait_for(&descriptors, NAP);
    device::lock().card.net.awake();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patience_stays_within_its_limits() {
        let after = |worth_it| (0..10).fold(16, |patience, _| next_patience(patience, worth_it));
        assert_eq!((after(true), after(false)), YIELD_AFTER);
    }
}
