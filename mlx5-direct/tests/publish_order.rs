//! The protocol between software and device. loom explores every interleaving, and every outcome of
//! relaxed accesses that the memory model allows.
//!
//! The model has only the protocol's steps: WQE words and record are atomics, and fences stand for
//! the barriers. `to_device` orders stores before it and stores after it. The device's own fetch
//! order (record, then WQE) is the acquire side.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use loom::{
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64, fence},
    },
    thread,
};

/// Four slots: address, length, next; and the record.
struct Shared {
    addr: [AtomicU64; 4],
    next: [AtomicU32; 4],
    record: AtomicU32,
}

fn shared() -> Arc<Shared> {
    Arc::new(Shared {
        addr: std::array::from_fn(|_| AtomicU64::new(0)),
        next: std::array::from_fn(|_| AtomicU32::new(99)),
        record: AtomicU32::new(0),
    })
}

/// The WQEs that the device finds when it follows the list as far as the record allows.
fn fetch(shared: &Shared) -> Vec<(u64, u32)> {
    let count = shared.record.load(Relaxed);
    fence(Acquire);
    let mut at = 0;
    let mut seen = vec![];
    for _ in 0..count {
        let wqe = (shared.addr[at as usize].load(Relaxed), shared.next[at as usize].load(Relaxed));
        at = wqe.1;
        seen.push(wqe);
        if at > 3 {
            break;
        }
    }
    seen
}

/// Writes slot `slot` whose successor is `next`.
fn write(shared: &Shared, slot: usize, next: u32) {
    shared.next[slot].store(next, Relaxed);
    shared.addr[slot].store(100 + slot as u64, Relaxed);
}

/// Runs software against the device and returns whether the device ever saw an incomplete WQE.
fn torn(barrier: bool) -> bool {
    let torn = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let found = std::sync::Arc::clone(&torn);
    loom::model(move || {
        let shared = shared();
        let device = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || fetch(&shared))
        };
        // Two posts: one WQE, then a batch of two. Slot 2 is skipped, as if it were in use.
        write(&shared, 0, 1);
        if barrier {
            fence(Release);
        }
        shared.record.store(1, Relaxed);
        write(&shared, 1, 3);
        write(&shared, 3, 2);
        if barrier {
            fence(Release);
        }
        shared.record.store(3, Relaxed);
        let seen = device.join().unwrap();
        let right = [(100, 1), (101, 3), (103, 2)];
        if seen[..] != right[..seen.len()] {
            found.store(true, std::sync::atomic::Ordering::Relaxed);
        }
    });
    torn.load(std::sync::atomic::Ordering::Relaxed)
}

#[test]
fn whoever_sees_the_count_sees_the_wqes_and_their_links() {
    assert!(!torn(true));
}

#[test]
fn without_the_barrier_the_model_finds_a_torn_wqe() {
    assert!(torn(false), "the model is too weak to prove anything");
}

/// The other direction: the device writes an entry, then its owner bit; software tests the bit,
/// then reads the entry.
fn stale_entry(barrier: bool) -> bool {
    let stale = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let found = std::sync::Arc::clone(&stale);
    loom::model(move || {
        let entry = Arc::new((AtomicU32::new(0), AtomicU32::new(1)));
        let device = {
            let entry = Arc::clone(&entry);
            thread::spawn(move || {
                entry.0.store(42, Relaxed);
                // A device writes an entry in order.
                entry.1.store(0, Release);
            })
        };
        if entry.1.load(Relaxed) == 0 {
            if barrier {
                fence(Acquire);
            }
            if entry.0.load(Relaxed) != 42 {
                found.store(true, std::sync::atomic::Ordering::Relaxed);
            }
        }
        device.join().unwrap();
    });
    stale.load(std::sync::atomic::Ordering::Relaxed)
}

#[test]
fn the_barrier_makes_an_owned_entry_whole() {
    assert!(!stale_entry(true));
    assert!(stale_entry(false), "the model is too weak to prove anything");
}

/// What a send queue's device reads: two WQEs of two words, the record, and the two halves of the
/// register, of which each holds the number of the announced WQE and one word of its copy.
struct Sends {
    wqes: [[AtomicU64; 2]; 2],
    record: AtomicU32,
    halves: [[AtomicU64; 2]; 2],
}

/// Posts two WQEs by BlueFlame, into alternate halves. Returns whether the device ever saw a
/// register that announced a WQE which the record did not cover, or a WQE that was not written.
///
/// A half is one write-combining buffer, which leaves the processor as a whole: its last word is
/// stored with release order.
fn announced_too_early(flush: bool) -> bool {
    let early = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let found = std::sync::Arc::clone(&early);
    loom::model(move || {
        let pair = || [AtomicU64::new(0), AtomicU64::new(0)];
        let shared =
            Arc::new(Sends { wqes: [pair(), pair()], record: AtomicU32::new(0), halves: [pair(), pair()] });
        let device = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let mut wrong = false;
                for half in [1, 0] {
                    let announced = shared.halves[half][1].load(Acquire);
                    if announced == 0 {
                        continue;
                    }
                    let count = shared.record.load(Relaxed);
                    fence(Acquire);
                    let wqe = &shared.wqes[half];
                    let copied = shared.halves[half][0].load(Relaxed);
                    wrong |= u64::from(count) < announced || copied != 100 + announced;
                    wrong |= wqe[0].load(Relaxed) != announced || wqe[1].load(Relaxed) != 100 + announced;
                }
                wrong
            })
        };
        for n in 0..2u64 {
            shared.wqes[n as usize][0].store(n + 1, Relaxed);
            shared.wqes[n as usize][1].store(101 + n, Relaxed);
            fence(Release);
            shared.record.store(n as u32 + 1, Relaxed);
            if flush {
                fence(Release);
            }
            let [word, last] = &shared.halves[n as usize];
            word.store(101 + n, Relaxed);
            // Without the flush, the buffer may leave the processor before the record does.
            last.store(n + 1, if flush { Release } else { Relaxed });
        }
        if device.join().unwrap() {
            found.store(true, std::sync::atomic::Ordering::Relaxed);
        }
    });
    early.load(std::sync::atomic::Ordering::Relaxed)
}

#[test]
fn device_that_sees_the_register_sees_record_and_wqe() {
    assert!(!announced_too_early(true));
}

#[test]
fn without_the_flush_the_register_can_precede_its_record() {
    assert!(announced_too_early(false));
}

/// The doorbell of a queue of which the device reads the record only: the record alone must not run
/// ahead of the WQE, as without BlueFlame.
fn record_ahead_of_wqe(barrier: bool) -> bool {
    let ahead = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let found = std::sync::Arc::clone(&ahead);
    loom::model(move || {
        let shared = Arc::new((AtomicU64::new(0), AtomicU32::new(0)));
        let device = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let count = shared.1.load(Relaxed);
                fence(Acquire);
                count == 1 && shared.0.load(Relaxed) != 1
            })
        };
        shared.0.store(1, Relaxed);
        if barrier {
            fence(Release);
        }
        shared.1.store(1, Relaxed);
        if device.join().unwrap() {
            found.store(true, std::sync::atomic::Ordering::Relaxed);
        }
    });
    ahead.load(std::sync::atomic::Ordering::Relaxed)
}

/// A device that is busy with the queue reads the record again without a new ring.
#[test]
fn a_device_that_reads_the_record_again_sees_the_wqe() {
    assert!(!record_ahead_of_wqe(true));
    assert!(record_ahead_of_wqe(false), "the model is too weak to prove anything");
}
