//! The direct data path on heap queues: no device takes cache lines away, so these are lower bounds.

use std::{hint::black_box, sync::Arc};

use mlx5_direct::{
    AddressOnly, AnySegments, Bound, Completion, Cq, CqLayout, DataSeg, HeapMem, Srq, SrqLayout, WqeIndex,
};

use crate::case::{Case, Key, Rng};

const SUBJECT: &str = "direct";

/// All cases of the direct path.
pub fn cases() -> Vec<Box<dyn Case>> {
    let mut cases: Vec<Box<dyn Case>> = vec![
        Box::new(PostOne::new(1023, 32)),
        Box::new(PostOne::new(1023, 64)),
        Box::new(PostOneAddress::new(1023)),
    ];
    for batch in [16, 32, 64] {
        cases.push(Box::new(PostBatch::new(1023, batch, 32)));
        cases.push(Box::new(PostBatch::new(1023, batch, 64)));
        cases.push(Box::new(PostSlice::new(1023, batch)));
        cases.push(Box::new(PostAddresses::new(1023, batch)));
        cases.push(Box::new(Repost::new(1023, batch)));
        cases.push(Box::new(PollAndPost::new("poll_and_post_in_order", 1023, batch)));
    }
    for depth in [255, 1023, 4095, 32_767] {
        cases.push(Box::new(PollAndPost::new("post_out_of_order", depth, 32)));
        cases.push(Box::new(PollAndPost::new("poll_and_post_out_of_order", depth, 32)));
    }
    for batch in [1, 16, 32] {
        cases.push(Box::new(Poll::new(batch)));
    }
    cases.push(Box::new(PollEmpty::new()));
    cases
}

fn srq(depth: u32, stride: u32) -> (Srq<AnySegments>, Arc<HeapMem>) {
    let (layout, mem) = SrqLayout::on_heap((depth + 1).next_power_of_two(), stride).expect("a valid ring");
    (Srq::new(layout, depth).expect("a valid depth"), mem)
}

fn key(case: &'static str, batch: u32, stride: u32, depth: u32) -> Key {
    Key { case, subject: SUBJECT, batch, segments: stride / 16 - 1, depth }
}

/// Buffers whose addresses differ, as a pool hands them out.
fn addresses(n: u32) -> Vec<(u64, u64)> {
    (0..u64::from(n)).map(|n| (0x10_0000 + n * 4096, n)).collect()
}

fn segments(n: u32) -> Vec<(DataSeg, u64)> {
    addresses(n).into_iter().map(|(addr, cookie)| (DataSeg::new(addr, 4096, 0x77), cookie)).collect()
}

/// The slots that an idle device would take next, in order, are the ones to return.
fn return_all<M>(srq: &mut Srq<M>) {
    let used: Vec<WqeIndex> = srq.in_use().map(|(slot, _)| slot).collect();
    for slot in used {
        srq.complete(slot).expect("in use");
    }
}

macro_rules! post_case {
    ($(#[$doc:meta])* $name:ident, $mode:ty, $buf:ty, $calls:expr, |$s:ident| $run:block) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub struct $name {
            srq: Srq<$mode>,
            key: Key,
            bufs: Vec<($buf, u64)>,
            _mem: Arc<HeapMem>,
        }

        impl Case for $name {
            fn key(&self) -> Key {
                self.key.clone()
            }
            fn calls(&self) -> u32 {
                $calls
            }
            fn prepare(&mut self) {
                return_all(&mut self.srq);
            }
            fn run(&mut self) {
                let $s = self;
                $run
            }
        }
    };
}

post_case!(
    /// One new buffer a call: address, length, lkey and cookie are new.
    PostOne, AnySegments, u64, 32, |s| {
        for &(addr, cookie) in black_box(&s.bufs) {
            black_box(s.srq.post_one(DataSeg::new(addr, 4096, 0x77), cookie).is_ok());
        }
    }
);
post_case!(
    /// One new buffer a call: address and cookie are new.
    PostOneAddress, AddressOnly, u64, 32, |s| {
        for &(addr, cookie) in black_box(&s.bufs) {
            black_box(s.srq.post(addr, cookie).is_ok());
        }
    }
);
post_case!(
    /// A batch of new buffers through an iterator that builds their segments.
    PostBatch, AnySegments, u64, 1, |s| {
        let bufs = black_box(&s.bufs);
        black_box(s.srq.post_batch(bufs.iter().map(|&(addr, c)| (DataSeg::new(addr, 4096, 0x77), c))));
    }
);
post_case!(
    /// A batch of new buffers from a slice of encoded segments.
    PostSlice, AnySegments, DataSeg, 1, |s| {
        black_box(s.srq.post_slice(black_box(&s.bufs)));
    }
);
post_case!(
    /// A batch of new buffers, by address.
    PostAddresses, AddressOnly, u64, 1, |s| {
        black_box(s.srq.post_slice(black_box(&s.bufs)));
    }
);
impl PostOne {
    fn new(depth: u32, stride: u32) -> Self {
        let (srq, mem) = srq(depth, stride);
        let key = key("post_new", 1, stride, depth);
        Self { srq, key, bufs: addresses(32), _mem: mem }
    }
}

impl PostOneAddress {
    fn new(depth: u32) -> Self {
        let (srq, mem) = srq(depth, 32);
        let srq = srq.address_only(4096, 0x77).expect("idle");
        let key = key("post_new_address_only", 1, 32, depth);
        Self { srq, key, bufs: addresses(32), _mem: mem }
    }
}

impl PostBatch {
    fn new(depth: u32, batch: u32, stride: u32) -> Self {
        let (srq, mem) = srq(depth, stride);
        let key = key("post_new", batch, stride, depth);
        Self { srq, key, bufs: addresses(batch), _mem: mem }
    }
}

impl PostSlice {
    fn new(depth: u32, batch: u32) -> Self {
        let (srq, mem) = srq(depth, 32);
        let key = key("post_new_encoded", batch, 32, depth);
        Self { srq, key, bufs: segments(batch), _mem: mem }
    }
}

impl PostAddresses {
    fn new(depth: u32, batch: u32) -> Self {
        let (srq, mem) = srq(depth, 32);
        let srq = srq.address_only(4096, 0x77).expect("idle");
        let key = key("post_new_address_only", batch, 32, depth);
        Self { srq, key, bufs: addresses(batch), _mem: mem }
    }
}

/// A batch of slots that have their buffers.
#[derive(Debug)]
pub struct Repost {
    srq: Srq<Bound>,
    key: Key,
    _mem: Arc<HeapMem>,
}

impl Repost {
    fn new(depth: u32, batch: u32) -> Self {
        let (srq, mem) = srq(depth, 32);
        let own = |slot: WqeIndex| (DataSeg::new(u64::from(slot.0) * 4096, 4096, 0x77), u64::from(slot.0));
        let srq = srq.bind(own).expect("idle");
        Self { srq, key: key("repost_slot_bound", batch, 32, depth), _mem: mem }
    }
}

impl Case for Repost {
    fn key(&self) -> Key {
        self.key.clone()
    }
    fn calls(&self) -> u32 {
        1
    }
    fn prepare(&mut self) {
        return_all(&mut self.srq);
    }
    fn run(&mut self) {
        black_box(self.srq.repost(black_box(self.key.batch)));
    }
}

/// A full SRQ: completions are polled, in order or at random, and as many buffers are posted. Of a random one the device
/// holds 256 slots (or half, of a small one).
#[derive(Debug)]
pub struct PollAndPost {
    srq: Srq<AnySegments>,
    cq: Cq,
    key: Key,
    ring: Arc<HeapMem>,
    entries: Arc<HeapMem>,
    produced: u32,
    position: u16,
    held: Vec<u16>,
    slots: Vec<u16>,
    segments: Vec<(DataSeg, u64)>,
    rng: Rng,
}

impl PollAndPost {
    fn new(case: &'static str, depth: u32, batch: u32) -> Self {
        let (mut srq, ring) = srq(depth, 32);
        assert_eq!(srq.post_slice(&segments(depth)), depth);
        let (layout, entries) = CqLayout::on_heap(CQ_ENTRIES, 64).expect("a valid queue");
        let mut this = Self {
            srq,
            cq: Cq::new(layout),
            key: key(case, batch, 32, depth),
            ring,
            entries,
            produced: 0,
            position: 0,
            held: vec![],
            slots: vec![],
            segments: segments(batch),
            rng: Rng::new(0x1234_5678_9abc_def1),
        };
        if this.at_random() {
            this.take(256.min(depth as usize / 2));
            // Bring the order of the ring to its steady state: several times around.
            for _ in 0..depth * 4 / batch {
                this.prepare();
                this.run();
            }
        }
        this
    }

    fn at_random(&self) -> bool {
        self.key.case.ends_with("out_of_order")
    }

    fn poll_is_timed(&self) -> bool {
        self.key.case.starts_with("poll")
    }

    /// The device takes slots by following the list.
    fn take(&mut self, n: usize) {
        for _ in 0..n {
            self.held.push(self.position);
            self.position = self.ring.load_be16(self.position as usize * 32 + 2);
        }
    }

    fn poll_all(&mut self) {
        let srq = &mut self.srq;
        let each = |c: Completion| {
            if let Completion::Recv(c) = c {
                black_box(c.qpn);
                black_box(srq.complete(c.slot).is_ok());
                black_box(c.byte_count);
            }
        };
        assert_eq!(self.cq.poll_each(self.key.batch, each), Ok(self.key.batch));
    }
}

impl Case for PollAndPost {
    fn key(&self) -> Key {
        self.key.clone()
    }
    fn calls(&self) -> u32 {
        1
    }
    fn prepare(&mut self) {
        let batch = self.key.batch as usize;
        if !self.at_random() {
            self.take(batch);
        }
        self.slots.clear();
        for _ in 0..batch {
            let n = if self.at_random() { self.rng.below(self.held.len()) } else { 0 };
            let slot = if self.at_random() { self.held.swap_remove(n) } else { self.held.remove(n) };
            self.slots.push(slot);
        }
        if self.at_random() {
            self.take(batch);
        }
        for slot in &self.slots {
            deliver(&self.entries, &mut self.produced, *slot);
        }
        if !self.poll_is_timed() {
            self.poll_all();
        }
    }
    fn run(&mut self) {
        if self.poll_is_timed() {
            self.poll_all();
        }
        assert_eq!(self.srq.post_slice(black_box(&self.segments)), self.key.batch);
    }
}

/// The device writes the entry of a receive.
fn deliver(entries: &HeapMem, produced: &mut u32, slot: u16) {
    let at = (*produced % CQ_ENTRIES) as usize * 64;
    entries.store_be32(at + 44, 100);
    entries.store_be32(at + 56, 0x42);
    entries.store_be16(at + 60, slot);
    entries.store_u8(at + 63, 0x20 | ((*produced / CQ_ENTRIES) & 1) as u8);
    *produced = produced.wrapping_add(1);
}

/// Receives that wait in the CQ are polled; QP, slot and length are used.
#[derive(Debug)]
pub struct Poll {
    cq: Cq,
    mem: Arc<HeapMem>,
    batch: u32,
    produced: u32,
}

const CQ_ENTRIES: u32 = 1024;

impl Poll {
    fn new(batch: u32) -> Self {
        let (layout, mem) = CqLayout::on_heap(CQ_ENTRIES, 64).expect("a valid queue");
        Self { cq: Cq::new(layout), mem, batch, produced: 0 }
    }
}

impl Case for Poll {
    fn key(&self) -> Key {
        key("poll_receive", self.batch, 32, CQ_ENTRIES)
    }
    fn calls(&self) -> u32 {
        32 / self.batch
    }
    fn prepare(&mut self) {
        for n in 0..32 {
            deliver(&self.mem, &mut self.produced, n);
        }
    }
    fn run(&mut self) {
        for _ in 0..32 / self.batch {
            let each = |c| {
                if let Completion::Recv(c) = c {
                    black_box(c.qpn);
                    black_box(c.slot.0);
                    black_box(c.byte_count);
                }
            };
            black_box(self.cq.poll_each(self.batch, each).is_ok());
        }
    }
}

/// Nothing waits in the CQ.
#[derive(Debug)]
pub struct PollEmpty {
    cq: Cq,
    _mem: Arc<HeapMem>,
}

impl PollEmpty {
    fn new() -> Self {
        let (layout, mem) = CqLayout::on_heap(CQ_ENTRIES, 64).expect("a valid queue");
        Self { cq: Cq::new(layout), _mem: mem }
    }
}

impl Case for PollEmpty {
    fn key(&self) -> Key {
        key("poll_empty", 1, 32, CQ_ENTRIES)
    }
    fn calls(&self) -> u32 {
        32
    }
    fn prepare(&mut self) {}
    fn run(&mut self) {
        for _ in 0..32 {
            black_box(matches!(self.cq.poll(), Ok(None)));
        }
    }
}
