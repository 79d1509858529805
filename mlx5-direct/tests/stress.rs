//! Three threads at once: a device, a poster and a poller, ten million messages, on a completion
//! queue that is exactly as deep as the SRQ.
//!
//! The device takes the WQEs that the record covers, and completes them in random order. It panics
//! on a wrong post: a slot that it still holds or whose completion was not polled, a buffer that is
//! posted twice, more receives than the queue has room for. The poller counts every message once.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU8, Ordering::*, fence},
    },
    thread,
};

use mlx5_direct::{Completion, Cq, CqLayout, DataSeg, HeapMem, SlotReturner, Srq, SrqLayout, SrqPoster};

mod common;
use common::{Rng, seen_by_device, threads::run_three};

const MESSAGES: u64 = 10_000_000;
const SLOTS: usize = 1024;
/// Maximum number of slots that the device holds before it completes one of them.
const HELD: usize = 100;

/// The owner of a slot.
const FREE: u8 = 0;
const AT_DEVICE: u8 = 1;
const IN_CQ: u8 = 2;

struct Device {
    ring: Arc<HeapMem>,
    entries: Arc<HeapMem>,
    state: Arc<[AtomicU8]>,
    position: u16,
    taken: u16,
    /// Slot and address.
    held: Vec<(u16, u64)>,
    produced: u32,
    next_message: u64,
}

impl Device {
    /// Takes the WQEs that the record covers, while the device can hold more. Returns false if
    /// there were none.
    fn take(&mut self) -> bool {
        let posted = self.ring.load_be32(self.ring.dbrec_offset()) as u16;
        fence(Acquire);
        let ready = posted.wrapping_sub(self.taken);
        assert!(usize::from(ready) < SLOTS, "{ready} posted in a ring of {SLOTS}");
        for _ in 0..usize::from(ready).min(HELD - self.held.len()) {
            let (slot, at) = (self.position, usize::from(self.position) * 32);
            let before = self.state[usize::from(slot)].swap(AT_DEVICE, Relaxed);
            assert_eq!(before, FREE, "slot {slot} was posted while it was in use");
            let (len, lkey, addr) =
                (self.ring.load_be32(at + 16), self.ring.load_be32(at + 20), self.ring.load_be64(at + 24));
            assert_eq!((len, lkey), (4096, 0x77), "slot {slot}");
            assert_eq!(addr, self.next_message, "buffers are taken in the order they were posted");
            self.next_message += 1;
            self.held.push((slot, addr));
            self.position = self.ring.load_be16(at + 2);
            self.taken = self.taken.wrapping_add(1);
        }
        ready > 0
    }

    fn complete(&mut self, n: usize) {
        let consumed = self.entries.load_be32(self.entries.dbrec_offset());
        fence(Acquire);
        let waiting = self.produced.wrapping_sub(consumed) & 0x00ff_ffff;
        assert!((waiting as usize) < SLOTS, "the completion queue is overrun");
        let (slot, addr) = self.held.swap_remove(n);
        self.state[usize::from(slot)].store(IN_CQ, Relaxed);
        let at = self.produced as usize % SLOTS * 64;
        self.entries.store_be32(at + 36, addr as u32);
        self.entries.store_be32(at + 44, 100);
        self.entries.store_be32(at + 56, 0x42);
        self.entries.store_be16(at + 60, slot);
        fence(Release);
        self.entries.store_u8(at + 63, 0x30 | (self.produced as usize / SLOTS) as u8 & 1);
        self.produced = self.produced.wrapping_add(1);
    }

    fn run(mut self, failed: &AtomicBool) {
        let mut rng = Rng(2);
        let mut done = 0;
        while done < MESSAGES && !failed.load(Relaxed) {
            if !self.take() && self.held.is_empty() {
                thread::yield_now();
            }
            // Some slots stay with the device for long, so that posting has to skip them.
            let keep = if self.next_message == MESSAGES { 0 } else { rng.below(HELD as u64 / 2) as usize };
            while self.held.len() > keep {
                self.complete(rng.below(self.held.len() as u64) as usize);
                done += 1;
            }
        }
    }
}

fn post(mut poster: SrqPoster<mlx5_direct::AnySegments>, failed: &AtomicBool) {
    let seg = |message: u64| (DataSeg::new(message, 4096, 0x77), message);
    let mut posted = 0;
    let mut rng = Rng(3);
    while posted < MESSAGES && !failed.load(Relaxed) {
        if poster.reclaim() == 0 && poster.free() == 0 {
            thread::yield_now();
            continue;
        }
        let wanted = (rng.below(90) + 1).min(MESSAGES - posted);
        posted += match wanted {
            1..5 => u64::from(poster.post_one(seg(posted).0, posted).is_ok()),
            _ => u64::from(poster.post_batch((posted..posted + wanted).map(seg))),
        };
    }
    while poster.posted() > 0 && !failed.load(Relaxed) {
        poster.reclaim();
        thread::yield_now();
    }
    assert_eq!(poster.refused(), 0);
    poster.check();
    assert_eq!(poster.posted(), 0, "receives left in use");
}

fn poll(mut cq: Cq, mut returner: SlotReturner, state: &[AtomicU8], failed: &AtomicBool) {
    let mut seen = vec![0u64; MESSAGES as usize / 64];
    let mut received = 0;
    let mut batch = vec![];
    while received < MESSAGES && !failed.load(Relaxed) {
        let polled = cq.poll_each(64, |c| {
            let Completion::Recv(c) = c else { panic!("{c:?}") };
            batch.push((c.slot, c.immediate()));
        });
        if polled.expect("known entries") == 0 {
            thread::yield_now();
        }
        // The queue has no spare entry: return the entries first, then the slots.
        cq.release();
        for (slot, message) in batch.drain(..) {
            assert_eq!(
                state[usize::from(slot.0)].swap(FREE, Relaxed),
                IN_CQ,
                "slot {} completed twice",
                slot.0
            );
            let cookie = returner.complete(slot).expect("in use");
            assert_eq!(message, Some(cookie as u32), "the buffer of another message");
            let (word, bit) = (&mut seen[cookie as usize / 64], 1 << (cookie % 64));
            assert_eq!(*word & bit, 0, "message {cookie} came twice");
            *word |= bit;
            received += 1;
        }
    }
    assert!(seen.iter().all(|word| *word == u64::MAX), "messages were lost");
}

#[test]
fn ten_million_messages_between_three_threads_and_none_is_lost() {
    let (layout, ring) = SrqLayout::on_heap(SLOTS as u32, 32).unwrap();
    let (cq_layout, entries) = CqLayout::on_heap(SLOTS as u32, 64).unwrap();
    let (poster, returner) = Srq::new(layout, SLOTS as u32 - 1).unwrap().split().unwrap();
    let state: Arc<[AtomicU8]> = (0..SLOTS).map(|_| AtomicU8::new(FREE)).collect();
    let device = Device {
        ring: seen_by_device(ring),
        entries: seen_by_device(entries),
        state: Arc::clone(&state),
        position: 0,
        taken: 0,
        held: vec![],
        produced: 0,
        next_message: 0,
    };
    run_three(
        |failed| device.run(failed),
        |failed| poll(Cq::new(cq_layout), returner, &state, failed),
        |failed| post(poster, failed),
    );
}
