//! The same posts and completions on two SRQs, one driven by libmlx5 and one by this crate, and a
//! device that executes both.
//!
//! The device is a stand-in on queues that libmlx5 created. It follows the list in the ring as far
//! as the record allows, and completes the slots that it holds in any order with copies of the
//! entry of a real message. It decodes at literal offsets.

use std::{mem::zeroed, ptr::null_mut};

use doorbell_sys::{ibv_cq, ibv_recv_wr, ibv_sge, ibv_srq};
use mlx5_direct::{Cq, DataSeg, RecvWrs, Srq, WqeIndex, dv::abi};

use super::{common::Rng, rig::Rig};

/// A WQE as the device executes it.
#[derive(Debug, PartialEq, Eq)]
struct Executed {
    slot: u16,
    next: u16,
    /// The bytes up to the terminator, with it.
    bytes: Vec<u8>,
}

/// The device's side of an SRQ and its CQ.
struct Queues {
    ring: abi::DvSrq,
    entries: abi::DvCq,
    /// Entry of a real message.
    template: [u8; 64],
    position: u16,
    taken: u16,
    produced: u32,
}

impl Queues {
    /// Call this before anything is posted.
    fn new(srq: *mut ibv_srq, cq: *mut ibv_cq) -> Self {
        // SAFETY: the function and structs of mlx5dv.h; live objects.
        unsafe {
            let lib = libloading::Library::new("libmlx5.so.1").expect("libmlx5");
            let init: libloading::Symbol<'_, unsafe extern "C" fn(*mut abi::DvObj, u64) -> i32> =
                lib.get(b"mlx5dv_init_obj\0").expect("mlx5dv_init_obj");
            let (mut obj, mut ring, mut entries): (abi::DvObj, abi::DvSrq, abi::DvCq) =
                (zeroed(), zeroed(), zeroed());
            obj.srq = abi::DvPair { object: srq.cast(), out: (&raw mut ring).cast() };
            obj.cq = abi::DvPair { object: cq.cast(), out: (&raw mut entries).cast() };
            assert_eq!(init(&mut obj, abi::OBJ_SRQ | abi::OBJ_CQ), 0);
            Self { ring, entries, template: [0; 64], position: 0, taken: 0, produced: 0 }
        }
    }

    fn fields(&self, n: u32) -> *mut u8 {
        let at = (n % self.entries.cqe_cnt + 1) * self.entries.cqe_size - 64;
        self.entries.buf.cast::<u8>().wrapping_add(at as usize)
    }

    /// Keeps the entry of the first message, which was a real message.
    fn learn(&mut self) {
        let entry = self.fields(0);
        // SAFETY: the fields of entry 0; the device no longer writes them once their last byte is
        // written.
        unsafe {
            while entry.add(63).read_volatile() >= 0xf0 {
                std::thread::yield_now();
            }
            self.template.copy_from_slice(core::slice::from_raw_parts(entry, 64));
        }
        assert_eq!(self.template[63] & 0xfe, 0x20, "the entry of a message that went to its buffer");
        self.position = self.execute(0).next;
        (self.taken, self.produced) = (1, 1);
    }

    fn record(&self) -> u32 {
        // SAFETY: a live SRQ's record.
        u32::from_be(unsafe { self.ring.dbrec.read_volatile() })
    }

    fn execute(&self, slot: u16) -> Executed {
        let (stride, slot_at) = (self.ring.stride as usize, slot as usize * self.ring.stride as usize);
        assert!(u32::from(slot) <= self.ring.tail, "the list leads to slot {slot}, outside the ring");
        // SAFETY: inside the ring, by the line above; nobody writes meanwhile.
        let wqe = unsafe { core::slice::from_raw_parts(self.ring.buf.cast::<u8>().add(slot_at), stride) };
        let mut bytes = vec![];
        for seg in wqe[16..].chunks(16) {
            bytes.extend_from_slice(seg);
            if seg[4..8] == [0, 0, 1, 0] {
                break;
            }
        }
        Executed { slot, next: u16::from_be_bytes([wqe[2], wqe[3]]), bytes }
    }

    fn take(&mut self) -> Option<Executed> {
        if self.record() as u16 == self.taken {
            return None;
        }
        let wqe = self.execute(self.position);
        (self.position, self.taken) = (wqe.next, self.taken.wrapping_add(1));
        Some(wqe)
    }

    fn complete(&mut self, slot: u16) {
        let mut entry = self.template;
        entry[60..62].copy_from_slice(&slot.to_be_bytes());
        entry[63] = entry[63] & 0xfe | (self.produced / self.entries.cqe_cnt % 2) as u8;
        // SAFETY: fields of an entry that was polled and released: at most as many entries wait as
        // the SRQ has slots, and the queue is half as large again.
        unsafe {
            let at = self.fields(self.produced);
            at.copy_from(entry.as_ptr(), 63);
            std::sync::atomic::fence(std::sync::atomic::Ordering::Release);
            at.add(63).write_volatile(entry[63]);
        }
        self.produced += 1;
    }
}

/// The results of one run.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) posted: u64,
    pub(crate) executed: u64,
    pub(crate) same_slot: u64,
    pub(crate) same_bytes: u64,
}

/// Posts at least `messages` buffers of 0 to `max_sge` segments to both SRQs; panics at the first
/// difference. With `in_order`, the device completes slots in the order in which it took them.
pub(crate) fn run(rig: &Rig, max_wr: u32, max_sge: u32, messages: u64, in_order: bool) -> Outcome {
    let mut rng = Rng(u64::from(max_wr) << 8 | u64::from(max_sge) << 1 | u64::from(in_order));
    // One receive queue and SRQ each; sends on a queue that both share.
    let send = rig.cq(15, false);
    let cqs = [0; 2].map(|_| rig.cq((max_wr.next_power_of_two() * 3 / 2 + 8) as i32, false));
    let srqs = [0; 2].map(|_| rig.srq(max_wr, max_sge));
    let mut queues = [0, 1].map(|n| Queues::new(srqs[n], cqs[n]));
    // SAFETY: only this crate drives the second pair; its buffers are registered and never
    // accessed.
    let (mut srq, mut cq) =
        unsafe { (Srq::from_verbs(srqs[1], None).unwrap(), Cq::from_verbs(cqs[1]).unwrap()) };

    // Each SRQ gets one real message.
    let mut qps = vec![];
    for n in 0..2 {
        let pair = [rig.qp(send, cqs[n], srqs[n]), rig.qp(send, cqs[n], srqs[n])];
        rig.connect(pair[0], pair[1]);
        qps.extend(pair);
        let mut sges = [ibv_sge { addr: rig.addr(0), length: 512, lkey: rig.lkey() }];
        match n {
            0 => assert_eq!(rig.verbs_post(srqs[0], &mut [recv_wr(&mut sges, 7)]), 1),
            _ => drop(srq.post_one(DataSeg::new(rig.addr(0), 512, rig.lkey()), 7).unwrap()),
        }
        rig.send(pair[0], 4096, 300, None, false);
        queues[n].learn();
        while rig.poll_sends(send).0 == 0 {}
    }
    assert_eq!(rig.poll_receives(cqs[0]), [7]);
    assert_eq!(srq.complete(cq.poll().unwrap().unwrap().slot().unwrap()), Ok(7));

    let mut outcome = Outcome::default();
    // Slots that the device has taken, on both sides.
    let mut held: Vec<[u16; 2]> = vec![];
    let most = u64::from(srq.max_segments());
    while outcome.posted < messages {
        // Posts the same batch to both, in one of this crate's ways to post.
        let batch = 1 + rng.below(u64::from(max_wr.min(300))) as usize;
        let way = rng.below(3);
        let mut sges: Vec<Vec<ibv_sge>> = (0..batch)
            .map(|_| {
                let n = if way == 0 { 1 } else { rng.below(most + 1) };
                let sge = |_| ibv_sge { addr: rng.next(), length: rng.next() as u32 >> 1, lkey: rig.lkey() };
                (0..n).map(sge).collect()
            })
            .collect();
        let first = outcome.posted << 8;
        let segs: Vec<Vec<DataSeg>> = sges
            .iter()
            .map(|list| list.iter().map(|s| DataSeg::new(s.addr, s.length, s.lkey)).collect())
            .collect();
        let mut wrs: Vec<_> = sges.iter_mut().zip(first..).map(|(s, n)| recv_wr(s, n)).collect();
        let accepted = rig.verbs_post(srqs[0], &mut wrs) as u32;
        let posted = match way {
            0 => srq.post_slice(&segs.iter().zip(first..).map(|(s, n)| (s[0], n)).collect::<Vec<_>>()),
            1 => segs.iter().zip(first..).map_while(|(s, n)| srq.post(s, n).ok()).count() as u32,
            // SAFETY: the chain was linked by `verbs_post` and outlives the call.
            _ => srq.post_recv_wrs(unsafe { RecvWrs::new(wrs.as_ptr()) }).unwrap_or_else(|e| e.posted),
        };
        assert_eq!(accepted, posted, "as many fit into both");
        assert_eq!(queues[0].record(), queues[1].record(), "the records");
        outcome.posted += u64::from(posted);

        for _ in 0..rng.below(u64::from(max_wr) + 1) {
            let (theirs, ours) = (queues[0].take(), queues[1].take());
            let (Some(theirs), Some(ours)) = (theirs, ours) else { break };
            assert_eq!(theirs.bytes, ours.bytes, "the segments that the device executes");
            outcome.executed += 1;
            outcome.same_slot += u64::from(theirs.slot == ours.slot);
            outcome.same_bytes += u64::from(theirs == ours);
            held.push([theirs.slot, ours.slot]);
        }
        // Some slots stay with the device for long.
        let keep = if in_order { 0 } else { rng.below(u64::from(max_wr) / 4 + 1) as usize };
        while held.len() > keep {
            let n = if in_order { 0 } else { rng.below(held.len() as u64) as usize };
            let slots = if in_order { held.remove(0) } else { held.swap_remove(n) };
            (0..2).for_each(|n| queues[n].complete(slots[n]));
            let theirs = rig.poll_receives(cqs[0]);
            let slot = cq.poll().unwrap().unwrap().slot().unwrap();
            assert_eq!(slot, WqeIndex(slots[1]));
            assert_eq!(theirs, [srq.complete(slot).unwrap()], "the cookies");
        }
    }
    srq.check();
    rig.destroy(&qps, &srqs, &[cqs[0], cqs[1], send]);
    outcome
}

fn recv_wr(sges: &mut [ibv_sge], wr_id: u64) -> ibv_recv_wr {
    ibv_recv_wr { wr_id, next: null_mut(), sg_list: sges.as_mut_ptr(), num_sge: sges.len() as i32 }
}
