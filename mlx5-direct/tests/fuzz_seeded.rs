//! The fuzz target's work for a bounded time and from fixed seeds: arbitrary lists of operations, and arbitrary bytes in
//! the completion queue.

mod common;

use std::time::{Duration, Instant};

use common::{Rng, Session, ops_from_bytes};
use mlx5_direct::{Cq, CqLayout, DataSeg, Srq, SrqLayout};

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

/// A device gone mad: entries are random bytes. Polling ends, and no slot is freed that was not in use.
#[test]
fn arbitrary_entries_neither_panic_nor_corrupt_the_ring() {
    let start = Instant::now();
    for seed in 1.. {
        let mut rng = Rng(seed * 77);
        let (layout, _ring) = SrqLayout::on_heap(64, 32).unwrap();
        let mut srq = Srq::new(layout, 63).unwrap();
        let (layout, mem) = CqLayout::on_heap(64, if seed % 2 == 0 { 64 } else { 128 }).unwrap();
        let mut cq = Cq::new(layout);
        let mut posted = 0u32;
        let mut returned = 0u32;
        for _ in 0..20 {
            posted += srq.post_batch((0..rng.below(20)).map(|n| (DataSeg::new(n, 1, 1), n)));
            for offset in 0..mem.dbrec_offset() {
                mem.store_u8(offset, rng.next() as u8);
            }
            for _ in 0..200 {
                if let Ok(Some(c)) = cq.poll() {
                    let slot = c.slot().filter(|s| srq.complete(*s).is_ok());
                    returned += u32::from(slot.is_some());
                }
            }
            srq.check();
            assert_eq!(srq.posted(), posted - returned);
        }
        if start.elapsed() > BUDGET {
            return;
        }
    }
}
