//! The work of the fuzz targets for a bounded time and from fixed seeds: arbitrary lists of
//! operations, and arbitrary bytes in the completion queue.

mod common;

use std::time::{Duration, Instant};

use common::{Rng, Session, complete_arbitrary_sends, ops_from_bytes, poll_arbitrary_entries};

const BUDGET: Duration = Duration::from_secs(3);

#[test]
fn arbitrary_operation_lists_keep_every_slot() {
    let start = Instant::now();
    for seed in 1.. {
        let mut rng = Rng(seed);
        let bytes: Vec<u8> = (0..rng.below(900)).map(|_| rng.next() as u8).collect();
        let slots = 2 << rng.below(9);
        let mut session = Session::new(slots, 32 << rng.below(3), 1 + rng.below(u64::from(slots) - 1) as u32);
        for op in ops_from_bytes(&bytes) {
            session.apply(&op);
        }
        session.check();
        session.wind_down();
        if start.elapsed() > BUDGET {
            return;
        }
    }
}

/// A faulty device: its entries are random bytes, some of them with the right owner bit.
fn random_entries(read: fn(&[u8]), op_own: u8) {
    let start = Instant::now();
    for seed in 1.. {
        let mut rng = Rng(seed * 77);
        let mut bytes: Vec<u8> = (0..rng.below(40_000)).map(|_| rng.next() as u8).collect();
        if seed % 2 == 0 {
            bytes
                .iter_mut()
                .skip(64)
                .step_by(64)
                .for_each(|byte| *byte = *byte & op_own | seed as u8 >> 1 & 1);
        }
        read(&bytes);
        if start.elapsed() > BUDGET {
            return;
        }
    }
}

#[test]
fn arbitrary_entries_neither_panic_nor_corrupt_the_ring() {
    random_entries(poll_arbitrary_entries, 0x7e);
}

/// Most entries are of requests: opcode 0 or 13, with a result in the entry or not.
#[test]
fn arbitrary_entries_release_each_request_once_and_in_order() {
    random_entries(complete_arbitrary_sends, 0x0c);
    random_entries(complete_arbitrary_sends, 0xd0);
}
