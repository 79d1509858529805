//! A device, a poster and a poller in threads of their own, and a send queue whose ring and CQ are
//! just large enough.
//!
//! The device executes the WQEs that the record covers, in order, and completes the signalled ones.
//! It panics on a wrong post: another message than the next, or more WQEs than the ring holds. The
//! poller passes each completion on to the poster, which releases the requests.
//!
//! `SENDS` is the number of messages; `make soak PART=sends` runs ten million.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::*, fence},
        mpsc::{Receiver, Sender, channel},
    },
    thread,
};

use mlx5_direct::{Completion, Cq, CqLayout, HeapMem, Sq, SqLayout, Wr, wr::Inline};

mod common;
use common::{Rng, complete_each, seen_by_device, threads::run_three};

const BLOCKS: usize = 256;
const REQUESTS: u32 = 100;
const ENTRIES: usize = 128;

fn messages() -> u64 {
    std::env::var("SENDS").map_or(300_000, |n| n.parse().expect("a number"))
}

/// Length of a message, which has its number in each 8 bytes.
fn length(message: u64) -> usize {
    8 * (1 + message as usize % 9)
}

struct Device {
    ring: Arc<HeapMem>,
    entries: Arc<HeapMem>,
    /// Blocks executed.
    at: u16,
    message: u64,
    produced: u32,
}

impl Device {
    fn byte_offset(&self, block: u16, offset: usize) -> usize {
        (usize::from(block) * 64 + offset) % (BLOCKS * 64)
    }

    /// Executes a WQE; returns its blocks.
    fn execute(&mut self, block: u16) -> u16 {
        let word = |n: usize| self.ring.load_be32(self.byte_offset(block, n * 4));
        assert_eq!(word(0), u32::from(block) << 8 | 0x0a, "opcode and number of block {block}");
        assert_eq!(word(1) >> 8, 0x42, "the QP");
        let (units, signalled) = (word(1) & 0xff, word(2) & 8 != 0);
        let len = length(self.message);
        assert_eq!(units as usize, 1 + (4 + len).div_ceil(16), "message {}", self.message);
        assert_eq!(word(4), 0x8000_0000 | len as u32);
        for n in 0..len / 4 {
            assert_eq!(word(5 + n), self.message as u32, "message {} at {n}", self.message);
        }
        self.message += 1;
        if signalled {
            self.complete(block);
        }
        units.div_ceil(4) as u16
    }

    fn complete(&mut self, block: u16) {
        let consumed = self.entries.load_be32(self.entries.dbrec_offset());
        fence(Acquire);
        let waiting = self.produced.wrapping_sub(consumed) & 0x00ff_ffff;
        assert!((waiting as usize) < ENTRIES, "the completion queue is overrun");
        let at = self.produced as usize % ENTRIES * 64;
        self.entries.store_be32(at + 56, 0x0a00_0042);
        self.entries.store_be16(at + 60, block);
        fence(Release);
        self.entries.store_u8(at + 63, (self.produced as usize / ENTRIES) as u8 & 1);
        self.produced = self.produced.wrapping_add(1);
    }

    fn run(mut self, messages: u64, failed: &AtomicBool) {
        while self.message < messages && !failed.load(Relaxed) {
            let posted = self.ring.load_be32(self.ring.dbrec_offset()) as u16;
            fence(Acquire);
            let ready = posted.wrapping_sub(self.at);
            assert!(usize::from(ready) <= BLOCKS, "{ready} blocks posted in a ring of {BLOCKS}");
            if ready == 0 {
                thread::yield_now();
            }
            while self.at != posted {
                self.at = self.at.wrapping_add(self.execute(self.at));
            }
        }
    }
}

/// Polls until the last message completed.
fn poll(mut cq: Cq, counters: &Sender<u16>, last: &AtomicBool, failed: &AtomicBool) {
    while !last.load(Relaxed) && !failed.load(Relaxed) {
        match cq.poll().expect("known entries") {
            Some(Completion::Send(send)) => {
                // The entry goes back before the requests do, so the queue needs no spare entries.
                cq.release();
                counters.send(send.wqe_counter).expect("the poster lives");
            }
            Some(other) => panic!("{other:?}"),
            None => thread::yield_now(),
        }
    }
}

/// A message in each way to post it.
fn post(sq: &mut Sq, rng: &mut Rng, posted: u64, messages: u64) -> u64 {
    let room = u64::from(sq.free()).min(messages - posted);
    let texts: Vec<Vec<u8>> =
        (posted..posted + room.min(20)).map(|n| (n as u32).to_be_bytes().repeat(length(n) / 4)).collect();
    // The last request that fits is signalled, so that the queue never stays full.
    let signalled = |n: u64| n + 1 == posted + room || n + 1 == messages || n.is_multiple_of(7);
    let request = |n: u64| {
        let wr = Wr::send(Inline(&texts[(n - posted) as usize]));
        if signalled(n) { wr.signalled() } else { wr }
    };
    let offered = posted..posted + texts.len() as u64;
    match rng.below(3) {
        0 => u64::from(sq.post(request(posted), posted).is_ok()),
        1 => u64::from(sq.post_batch(offered.map(|n| (request(n), n))).expect("room")),
        _ => {
            let mut chain = sq.chain();
            offered.take(3).for_each(|n| chain.push(request(n), n).expect("room"));
            u64::from(chain.ring())
        }
    }
}

fn send(mut sq: Sq, counters: &Receiver<u16>, messages: u64, failed: &AtomicBool) {
    let (mut posted, mut released, mut rng) = (0, 0, Rng(4));
    while released < messages && !failed.load(Relaxed) {
        for counter in counters.try_iter() {
            let each = |cookie| {
                assert_eq!(cookie, released, "released once, and in order");
                released += 1;
            };
            complete_each(&mut sq, counter, each).expect("posted");
        }
        if posted < messages && sq.free() > 0 {
            posted += post(&mut sq, &mut rng, posted, messages);
        } else {
            thread::yield_now();
        }
    }
    assert_eq!(sq.posted(), 0);
}

#[test]
fn messages_pass_between_three_threads_and_each_is_released_once() {
    let messages = messages();
    let (layout, ring) = SqLayout::on_heap(BLOCKS as u32, REQUESTS).unwrap();
    let (cq_layout, entries) = CqLayout::on_heap(ENTRIES as u32, 64).unwrap();
    let (counters, completed) = channel();
    let device = Device {
        ring: seen_by_device(ring),
        entries: seen_by_device(entries),
        at: 0,
        message: 0,
        produced: 0,
    };
    let last = AtomicBool::new(false);
    run_three(
        |failed| device.run(messages, failed),
        |failed| poll(Cq::new(cq_layout), &counters, &last, failed),
        |failed| {
            send(Sq::new(layout), &completed, messages, failed);
            last.store(true, Relaxed);
        },
    );
}
