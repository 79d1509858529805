//! A device that consumes an SRQ exactly as the hardware does, and checks every guarantee that
//! posting gives to a device.
//!
//! The device decodes queue memory at literal offsets and shares no layout with the crate, so that
//! the tests detect a wrong layout.
#![allow(dead_code, reason = "each test binary uses a part")]

use std::{collections::VecDeque, sync::Arc};

use mlx5_direct::{
    AnySegments, Completion, Cq, CqLayout, DataSeg, HeapMem, HeapView, NotPosted, PostError, Sq, SqLayout,
    Srq, SrqLayout, Wr, wr::Inline,
};

pub(crate) mod threads;

/// Queue memory as the devices here see it.
#[expect(unsafe_code, reason = "the tests stand in for a device")]
pub(crate) fn seen_by_device(view: HeapView) -> Arc<HeapMem> {
    // SAFETY: a device here runs on the queue's thread, or it reads only WQEs that the record
    // covers and hands each entry over by its last byte, after a fence.
    unsafe { view.device() }
}

/// Address, length, lkey.
pub(crate) type Seg = (u64, u32, u32);

/// A WQE as the device reads it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SeenWqe {
    pub(crate) slot: u16,
    pub(crate) next: u16,
    /// The segments before the terminator.
    pub(crate) segs: Vec<Seg>,
}

/// The SRQ half of the device.
pub(crate) struct Device {
    mem: Arc<HeapMem>,
    stride: usize,
    wqe_count: u32,
    position: u16,
    taken: u16,
    /// WQEs that the record covered at the last check: the device may have fetched them.
    fetched: VecDeque<SeenWqe>,
    /// Slots taken and not yet completed.
    holding: Vec<bool>,
}

impl Device {
    pub(crate) fn new(mem: HeapView, wqe_count: u32, stride: u32) -> Self {
        Self {
            mem: seen_by_device(mem),
            stride: stride as usize,
            wqe_count,
            position: 0,
            taken: 0,
            fetched: VecDeque::new(),
            holding: vec![false; wqe_count as usize],
        }
    }

    pub(crate) fn record(&self) -> u32 {
        self.mem.load_be32(self.mem.dbrec_offset())
    }

    pub(crate) fn read(&self, slot: u16) -> SeenWqe {
        assert!(u32::from(slot) < self.wqe_count, "the list leads to slot {slot}, outside the ring");
        let at = slot as usize * self.stride;
        let mut segs = vec![];
        for n in 0..self.stride / 16 - 1 {
            let seg = at + 16 + 16 * n;
            let (len, lkey, addr) =
                (self.mem.load_be32(seg), self.mem.load_be32(seg + 4), self.mem.load_be64(seg + 8));
            if lkey == 0x100 {
                assert_eq!((len, addr), (0, 0), "terminator of slot {slot}");
                break;
            }
            segs.push((addr, len, lkey));
        }
        SeenWqe { slot, next: self.mem.load_be16(at + 2), segs }
    }

    /// How many WQEs the device may take, by the record.
    pub(crate) fn available(&self) -> u16 {
        (self.record() as u16).wrapping_sub(self.taken)
    }

    /// Follows the list as far as the record allows and compares with the earlier checks.
    pub(crate) fn look(&mut self) -> &VecDeque<SeenWqe> {
        assert!(self.record() <= 0xffff, "the record counts in 16 bits");
        let available = self.available();
        assert!(u32::from(available) < self.wqe_count, "{available} posted in a ring of {}", self.wqe_count);
        let mut at = self.position;
        let mut on_list = vec![false; self.wqe_count as usize];
        for n in 0..available as usize {
            let wqe = self.read(at);
            assert!(!std::mem::replace(&mut on_list[at as usize], true), "slot {at} is on the list twice");
            assert!(
                !self.holding[at as usize],
                "slot {at} is posted again while its receive is not completed"
            );
            match self.fetched.get(n) {
                Some(before) => assert_eq!(*before, wqe, "a posted WQE changed"),
                None => self.fetched.push_back(wqe.clone()),
            }
            at = wqe.next;
        }
        // The slot after the last posted slot is linked already: it is not on the list, and nobody
        // holds it.
        assert!(u32::from(at) < self.wqe_count && !on_list[at as usize] && !self.holding[at as usize]);
        &self.fetched
    }

    /// Takes the next WQE, if the record covers one.
    pub(crate) fn take(&mut self) -> Option<SeenWqe> {
        if self.available() == 0 {
            return None;
        }
        let wqe = self.read(self.position);
        if let Some(before) = self.fetched.pop_front() {
            assert_eq!(before, wqe, "a posted WQE changed");
        }
        assert!(
            !std::mem::replace(&mut self.holding[wqe.slot as usize], true),
            "slot {} reused early",
            wqe.slot
        );
        self.position = wqe.next;
        self.taken = self.taken.wrapping_add(1);
        Some(wqe)
    }

    /// The device has finished with a slot: its completion is in the CQ.
    pub(crate) fn done(&mut self, slot: u16) {
        assert!(std::mem::replace(&mut self.holding[slot as usize], false));
    }
}

/// The CQ half of the device.
pub(crate) struct CqDevice {
    mem: Arc<HeapMem>,
    cqe_count: u32,
    cqe_bytes: usize,
    produced: u32,
    /// The memory that has the doorbell record, after a resize.
    record: Option<Arc<HeapMem>>,
}

/// Fields of an entry to write.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Entry {
    pub(crate) opcode: u8,
    pub(crate) low_bits: u8,
    pub(crate) qpn: u32,
    pub(crate) sop: u8,
    pub(crate) srqn_uidx: u32,
    pub(crate) counter: u16,
    pub(crate) bytes: u32,
    pub(crate) imm: u32,
    pub(crate) syndrome: u8,
    pub(crate) vendor: u8,
}

/// A CQ without completions, and the device that writes its entries.
pub(crate) fn cq_queue(entries: u32, bytes: u32) -> (Cq, CqDevice) {
    let (layout, mem) = CqLayout::on_heap(entries, bytes).unwrap();
    (Cq::new(layout), CqDevice::new(mem, entries, bytes))
}

/// The next completion, which is there.
pub(crate) fn poll(cq: &mut Cq) -> Completion {
    cq.poll().expect("a known entry").expect("an entry")
}

impl CqDevice {
    pub(crate) fn new(mem: HeapView, cqe_count: u32, cqe_bytes: u32) -> Self {
        Self { mem: seen_by_device(mem), cqe_count, cqe_bytes: cqe_bytes as usize, produced: 0, record: None }
    }

    pub(crate) fn consumer_index(&self) -> u32 {
        let record = self.record.as_ref().unwrap_or(&self.mem);
        record.load_be32(record.dbrec_offset())
    }

    pub(crate) fn arm_record(&self) -> u32 {
        self.mem.load_be32(self.mem.dbrec_offset() + 4)
    }

    pub(crate) fn doorbell(&self) -> u64 {
        self.mem.load_be64(self.mem.register_offset() + 0x20)
    }

    /// Entries that the device may write before software returns entries.
    pub(crate) fn room(&self) -> u32 {
        self.cqe_count - (self.produced.wrapping_sub(self.consumer_index()) & 0x00ff_ffff)
    }

    pub(crate) fn mem(&self) -> &HeapMem {
        &self.mem
    }

    /// Writes the resize mark and changes over to this buffer. The record stays where it was.
    pub(crate) fn change_over(&mut self, buffer: HeapView, cqe_count: u32) {
        self.push(Entry { opcode: 5, ..Entry::default() });
        self.record.get_or_insert_with(|| Arc::clone(&self.mem));
        (self.mem, self.cqe_count) = (seen_by_device(buffer), cqe_count);
    }

    /// Byte offset of the 64 bytes with the fields of the next entry.
    pub(crate) fn next_fields(&self) -> usize {
        (self.produced % self.cqe_count) as usize * self.cqe_bytes + self.cqe_bytes - 64
    }

    pub(crate) fn push(&mut self, e: Entry) {
        assert!(self.room() > 0, "the device overruns the CQ");
        let at = self.next_fields();
        self.mem.store_be32(at + 32, e.srqn_uidx);
        self.mem.store_be32(at + 36, e.imm);
        self.mem.store_be32(at + 44, e.bytes);
        self.mem.store_u8(at + 54, e.vendor);
        self.mem.store_u8(at + 55, e.syndrome);
        self.mem.store_be32(at + 56, u32::from(e.sop) << 24 | e.qpn);
        self.mem.store_be16(at + 60, e.counter);
        let lap = (self.produced / self.cqe_count) as u8 & 1;
        self.mem.store_u8(at + 63, e.opcode << 4 | e.low_bits & 0x0e | lap);
        self.produced = self.produced.wrapping_add(1);
    }
}

/// One step of a session.
#[derive(Clone, Debug)]
pub(crate) enum Op {
    /// Post one buffer of this many segments (cut to what fits).
    Post(u8),
    /// Post this many buffers at once.
    Batch(u16),
    /// A message arrives for this QP: the device takes a slot.
    Arrive(u8),
    /// The device finishes the n-th of the slots it holds (modulo their number).
    Finish(u16),
    /// As `Finish`, with an error.
    Fail(u16),
    /// The QP goes to the error state: all its slots fail, and the QP is destroyed when they came
    /// back.
    Destroy(u8),
    /// The program polls this many completions and returns their slots.
    Poll(u16),
    /// The program changes the depth.
    Depth(u16),
    /// The device completes a slot that it does not hold.
    Bogus(u16),
}

/// A ring, a CQ, the device behind both, and the state that the program expects.
pub(crate) struct Session {
    pub(crate) srq: Srq<AnySegments>,
    pub(crate) cq: Cq,
    pub(crate) device: Device,
    pub(crate) cq_device: CqDevice,
    /// Posted and not yet taken, oldest first: cookie and segments.
    posted: VecDeque<(u64, Vec<Seg>)>,
    /// Taken and not yet finished: slot, QP, cookie.
    at_qp: Vec<(u16, u8, u64)>,
    /// Finished and not yet polled: slot, QP, cookie, failed.
    in_cq: VecDeque<(u16, u8, u64, bool)>,
    next_cookie: u64,
    pub(crate) total_posted: u64,
}

impl Session {
    pub(crate) fn new(wqe_count: u32, stride: u32, depth: u32) -> Self {
        let (layout, mem) = SrqLayout::on_heap(wqe_count, stride).expect("layout");
        // The ring has contents from libmlx5 or an earlier owner: the crate must not rely on its
        // links and segments.
        let left_behind = seen_by_device(mem.clone());
        for slot in 0..wqe_count as usize {
            left_behind.store_be16(slot * stride as usize + 2, 0x5a5a);
        }
        let cqe_bytes = if wqe_count % 3 == 1 { 128 } else { 64 };
        let (cq_layout, cq_mem) = CqLayout::on_heap(wqe_count.max(2), cqe_bytes).expect("layout");
        let srq = Srq::new(layout, depth).expect("depth");
        Self {
            srq,
            cq: Cq::new(cq_layout),
            device: Device::new(mem, wqe_count, stride),
            cq_device: CqDevice::new(cq_mem, wqe_count.max(2), cqe_bytes),
            posted: VecDeque::new(),
            at_qp: vec![],
            in_cq: VecDeque::new(),
            next_cookie: 0x1_0000_0000,
            total_posted: 0,
        }
    }

    fn buffer(&mut self, segs: usize) -> (u64, Vec<Seg>) {
        self.next_cookie += 1;
        let c = self.next_cookie;
        let segs =
            (0..segs as u64).map(|n| (c << 16 | n, (c as u32) << 8 | n as u32, 0x200 + n as u32)).collect();
        (c, segs)
    }

    pub(crate) fn apply(&mut self, op: &Op) {
        match *op {
            Op::Post(n) => {
                let n = n as usize % (self.srq.max_segments() as usize + 2);
                let (cookie, segs) = self.buffer(n);
                let dsegs: Vec<_> = segs.iter().map(|s| DataSeg::new(s.0, s.1, s.2)).collect();
                let record = self.device.record();
                // Alternates between the two ways to post one segment.
                let posted = match dsegs[..] {
                    [one] if cookie % 2 == 0 => self.srq.post_one(one, cookie).map_err(PostError::from),
                    _ => self.srq.post(&dsegs, cookie),
                };
                match posted {
                    Ok(_) => self.note_posted(cookie, segs),
                    Err(e) => {
                        let full = self.outstanding() == self.srq.depth();
                        assert!(full || n > self.srq.max_segments() as usize, "refused without need: {e}");
                        assert_eq!(self.device.record(), record, "a refused post changed the record");
                    }
                }
            }
            Op::Batch(n) => {
                let bufs: Vec<_> = (0..n).map(|_| self.buffer(1)).collect();
                let offered: Vec<_> =
                    bufs.iter().map(|(c, s)| (DataSeg::new(s[0].0, s[0].1, s[0].2), *c)).collect();
                let room = self.srq.depth() - self.outstanding();
                // Alternates between the two other ways to post a batch.
                let posted =
                    if n % 2 == 0 { self.srq.post_batch(offered) } else { self.srq.post_slice(&offered) };
                assert_eq!(posted, room.min(u32::from(n)), "a batch fills what is free, no more and no less");
                for (cookie, segs) in bufs.into_iter().take(posted as usize) {
                    self.note_posted(cookie, segs);
                }
            }
            Op::Arrive(qp) => {
                if let Some(wqe) = self.device.take() {
                    let (cookie, segs) =
                        self.posted.pop_front().expect("the device took what was not posted");
                    assert_eq!(wqe.segs, segs, "buffers are taken in the order they were posted");
                    assert_eq!(self.srq.cookie(mlx5_direct::WqeIndex(wqe.slot)), Ok(cookie));
                    self.at_qp.push((wqe.slot, qp, cookie));
                } else {
                    assert!(self.posted.is_empty(), "the device sees nothing although something is posted");
                }
            }
            Op::Finish(n) if !self.at_qp.is_empty() => self.finish(n as usize % self.at_qp.len(), false),
            Op::Fail(n) if !self.at_qp.is_empty() => self.finish(n as usize % self.at_qp.len(), true),
            Op::Finish(_) | Op::Fail(_) => {}
            Op::Destroy(qp) => {
                while let Some(n) = self.at_qp.iter().position(|(_, q, _)| *q == qp) {
                    self.finish(n, true);
                }
                self.poll(u32::MAX);
            }
            Op::Poll(n) => self.poll(u32::from(n)),
            Op::Depth(d) => {
                let asked = u32::from(d) % (self.srq.max_depth() + 2);
                let possible = asked >= self.outstanding().max(1) && asked <= self.srq.max_depth();
                let before = self.srq.depth();
                assert_eq!(self.srq.set_depth(asked).is_ok(), possible);
                assert_eq!(self.srq.depth(), if possible { asked } else { before });
            }
            Op::Bogus(slot) => {
                // Mostly inside the ring, where the slot may be next to a slot in use.
                let slot = slot % (2 * self.srq.max_depth() as u16 + 3);
                let taken = self.at_qp.iter().map(|e| e.0).chain(self.in_cq.iter().map(|e| e.0));
                let in_use =
                    taken.chain(self.device.look().clone().iter().map(|w| w.slot)).any(|s| s == slot);
                if !in_use {
                    let before = (self.srq.posted(), self.srq.free());
                    assert!(self.srq.complete(mlx5_direct::WqeIndex(slot)).is_err());
                    assert_eq!((self.srq.posted(), self.srq.free()), before);
                }
            }
        }
        assert_eq!(self.srq.posted(), self.outstanding(), "exact posted count");
        assert_eq!(self.srq.free(), self.srq.depth() - self.outstanding(), "exact free count");
        assert_eq!(self.cq.waiting_receives() as usize, self.in_cq.len());
    }

    /// The slow checks: the whole list, and the state of every slot.
    pub(crate) fn check(&mut self) {
        let on_list = self.device.look().len();
        assert_eq!(on_list, self.posted.len());
        self.srq.check();
        let mut held: Vec<u16> =
            self.at_qp.iter().map(|e| e.0).chain(self.in_cq.iter().map(|e| e.0)).collect();
        held.extend(self.device.look().iter().map(|w| w.slot));
        held.sort_unstable();
        let known: Vec<u16> = self.srq.in_use().map(|(s, _)| s.0).collect();
        assert_eq!(held, known, "slots in use");
    }

    /// Finishes and polls everything; afterwards every slot must be free.
    pub(crate) fn wind_down(&mut self) {
        while self.device.available() > 0 {
            self.apply(&Op::Arrive(0));
            self.apply(&Op::Finish(0));
            self.apply(&Op::Poll(1));
        }
        while !self.at_qp.is_empty() {
            self.apply(&Op::Fail(0));
            self.apply(&Op::Poll(1));
        }
        self.apply(&Op::Poll(u16::MAX));
        self.check();
        assert_eq!((self.srq.posted(), self.srq.free()), (0, self.srq.depth()));
    }

    fn outstanding(&self) -> u32 {
        (self.posted.len() + self.at_qp.len() + self.in_cq.len()) as u32
    }

    fn note_posted(&mut self, cookie: u64, segs: Vec<Seg>) {
        self.posted.push_back((cookie, segs));
        self.total_posted += 1;
    }

    fn finish(&mut self, n: usize, fail: bool) {
        if self.cq_device.room() == 0 {
            self.poll(u32::MAX);
        }
        let (slot, qp, cookie) = self.at_qp.swap_remove(n);
        let ok =
            Entry { opcode: 2, qpn: u32::from(qp), counter: slot, bytes: slot.into(), ..Entry::default() };
        let failed = Entry { opcode: 14, syndrome: 5, ..ok };
        self.cq_device.push(if fail { failed } else { ok });
        self.in_cq.push_back((slot, qp, cookie, fail));
    }

    fn poll(&mut self, n: u32) {
        for _ in 0..n {
            let Some(got) = self.cq.poll().expect("valid entries") else {
                assert!(self.in_cq.is_empty(), "an entry was missed");
                return;
            };
            let (slot, qp, cookie, failed) = self.in_cq.pop_front().expect("an entry out of nowhere");
            assert_eq!(matches!(got, Completion::RecvError(_)), failed);
            assert_eq!((got.qpn(), got.slot().map(|s| s.0)), (u32::from(qp), Some(slot)));
            self.device.done(slot);
            assert_eq!(self.srq.complete(got.slot().expect("a receive")), Ok(cookie));
        }
    }
}

/// Turns arbitrary bytes into steps, for fuzzing.
pub(crate) fn ops_from_bytes(bytes: &[u8]) -> Vec<Op> {
    let ops = bytes.chunks_exact(3).map(|c| {
        let n = u16::from_le_bytes([c[1], c[2]]);
        match c[0] % 16 {
            0 | 1 => Op::Post(c[1]),
            2 | 3 => Op::Batch(n % 130),
            4..=7 => Op::Arrive(c[1] % 7),
            8..=10 => Op::Finish(n),
            11 => Op::Fail(n),
            12 => Op::Destroy(c[1] % 7),
            13 => Op::Poll(n % 40),
            14 => Op::Depth(n),
            _ => Op::Bogus(n),
        }
    });
    ops.collect()
}

/// Polls a queue whose memory holds these bytes until it has no more completions, and returns the
/// slots of the completions. Polling ends, and no slot is freed that was not in use.
pub(crate) fn poll_arbitrary_entries(bytes: &[u8]) {
    let [kind, bytes @ ..] = bytes else { return };
    let (layout, _ring) = SrqLayout::on_heap(64, 32).expect("layout");
    let mut srq = Srq::new(layout, 63).expect("depth");
    let entry_bytes = if kind & 1 == 0 { 64 } else { 128 };
    let (layout, mem) = CqLayout::on_heap(8 << (kind >> 1 & 3), entry_bytes).expect("layout");
    let mem = seen_by_device(mem);
    let mut cq = Cq::new(layout);
    let (mut posted, mut returned) = (0, 0);
    for part in bytes.chunks(mem.dbrec_offset()) {
        posted += srq.post_batch((0..u64::from(part[0] % 20)).map(|n| (DataSeg::new(n, 1, 1), n)));
        for (offset, byte) in part.iter().enumerate() {
            mem.store_u8(offset, *byte);
        }
        let mut last = None;
        let mut give_back = |c: Completion| {
            last = Some(c);
            let slot = c.slot().filter(|s| srq.complete(*s).is_ok());
            returned += u32::from(slot.is_some());
            cq_fields_are_bounded(&c);
        };
        // A queue full of entries of the right lap is empty after two laps. After an error the
        // queue may stay where it is.
        for _ in 0..2 * cq.cqe_count() {
            match kind & 8 {
                0 => drop(cq.poll_each(3, &mut give_back)),
                _ => drop(cq.poll().map(|c| c.map(&mut give_back))),
            }
        }
        if let Some(Completion::RecvScattered(scattered)) = last {
            assert!(cq.copy_scattered(&scattered, &mut [0; 80]) <= 64);
        }
        assert!(cq.waiting_receives() <= cq.cqe_count());
        assert!(cq.waiting_messages() <= Some(cq.cqe_count()));
        srq.check();
        assert_eq!(srq.posted(), posted - returned);
    }
}

/// A faulty device: entries of arbitrary bytes on a CQ of send queues. Each request is released
/// once and in order, or stays outstanding; a queue never holds more than it may.
pub(crate) fn complete_arbitrary_sends(bytes: &[u8]) {
    let [kind, bytes @ ..] = bytes else { return };
    let (blocks, requests) = [(64, 64), (64, 16), (128, 21), (1, 1)][usize::from(kind & 3)];
    let (layout, _ring) = SqLayout::on_heap(blocks, requests).expect("layout");
    let mut sq = Sq::new(layout);
    let entry_bytes = if kind & 4 == 0 { 64 } else { 128 };
    let (layout, mem) = CqLayout::on_heap(8, entry_bytes).expect("layout");
    let mem = seen_by_device(mem);
    let mut cq = Cq::new(layout);
    let (mut posted, mut released) = (0, 0);
    for part in bytes.chunks(mem.dbrec_offset()) {
        for n in 0..part[0] % 20 {
            let text = [n; 60];
            let wr = Wr::send(Inline(&text[..usize::from(n) * 3]));
            let outcome = match n % 3 {
                0 => sq.post(wr, posted),
                1 => {
                    // A chain that is taken back leaves nothing behind that could complete.
                    let mut chain = sq.chain();
                    let _ = chain.push(wr, u64::MAX);
                    drop(chain);
                    continue;
                }
                _ => sq.post_batch([(wr, posted)]).map(|_| ()).map_err(|e| e.error),
            };
            posted += u64::from(outcome.is_ok());
        }
        for (offset, byte) in part.iter().enumerate() {
            mem.store_u8(offset, *byte);
        }
        for _ in 0..2 * cq.cqe_count() {
            let Ok(Some(completion)) = cq.poll() else { break };
            cq_fields_are_bounded(&completion);
            if let Completion::SendScattered(scattered) = &completion {
                let (mut result, counter) = ([0; 80], scattered.send.wqe_counter);
                assert!(cq.copy_result(scattered, &mut result) <= 64);
                assert!(sq.segments(counter).count() < 64);
            }
            if let Some(counter) = completion.send_counter() {
                let each = |cookie| {
                    assert_eq!(cookie, released, "released once, and in order");
                    released += 1;
                };
                let _ = complete_each(&mut sq, counter, each);
            }
            assert_eq!(u64::from(sq.posted()), posted - released);
            assert!(sq.posted() <= sq.max_requests());
        }
        cq.clean(u32::from(part[0]), |c| cq_fields_are_bounded(&c));
    }
}

/// Completes a request, and passes the cookies of all requests that this releases to `each`, oldest
/// first. Returns how many.
pub(crate) fn complete_each(sq: &mut Sq, counter: u16, each: impl FnMut(u64)) -> Result<u32, NotPosted> {
    let outstanding: Vec<u64> = sq.outstanding().map(|(_, cookie)| cookie).collect();
    let released = sq.complete(counter)?;
    outstanding.into_iter().take(released.requests as usize).for_each(each);
    Ok(released.requests)
}

fn cq_fields_are_bounded(c: &Completion) {
    assert!(c.qpn() < 1 << 24);
}

/// A small deterministic random source (xorshift64*).
pub(crate) struct Rng(pub(crate) u64);

impl Rng {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub(crate) fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(n)) >> 64) as u64
    }
}
