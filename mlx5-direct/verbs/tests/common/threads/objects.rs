//! The queues of the threads, and their memory.

use std::{
    mem::zeroed,
    ptr::null_mut,
    sync::atomic::{AtomicU64, Ordering::SeqCst},
};

use doorbell_sys::*;

use super::Rng;
use crate::rig::Rig;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Rc,
    Uc,
    Ud,
}

/// Requests and messages that one thread may post to a QP in a round.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    pub(super) requests: u32,
    pub(super) messages: u32,
}

/// A QP, which sends to itself in the end: to its peer in this process.
pub(super) struct End {
    pub(super) qp: *mut ibv_qp,
    pub(super) kind: Kind,
    pub(super) peer: usize,
    /// The thread that changes its state.
    pub(super) owner: usize,
    /// Where it receives.
    pub(super) queue: usize,
    pub(super) max_segments: u32,
    pub(super) max_inline: u32,
    pub(super) signals_all: bool,
    /// Made for `ibv_wr_start`.
    pub(super) extended: bool,
    /// Each thread's.
    pub(super) share: Room,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    /// The receive queue of this end.
    Own(usize),
    Srq,
}

/// A queue of receives.
pub(super) struct Queue {
    pub(super) target: Target,
    pub(super) srq: *mut ibv_srq,
    pub(super) max_segments: u32,
    /// Receives that have to be posted before a round.
    pub(super) level: u32,
}

pub(super) struct Objects {
    pub(super) rig: Rig,
    pub(super) cqs: Vec<*mut ibv_cq>,
    pub(super) queues: Vec<Queue>,
    pub(super) ends: Vec<End>,
    pub(super) ah: *mut ibv_ah,
}

// SAFETY: any thread may call verbs with these objects, which live until all threads have ended.
unsafe impl Sync for Objects {}

pub(super) const QKEY: u32 = 0x1111_1111;
const CQ_ENTRIES: i32 = 8191;
/// Messages of each thread to a QP that receives from the SRQ.
const TO_SRQ: u32 = 5;
const SRQ_RECEIVES: u32 = 2000;

impl Objects {
    pub(super) fn new(rng: &mut Rng, threads: usize) -> Self {
        let rig = Rig::open().expect("an mlx5 device");
        let cqs: Vec<_> = (0..1 + rng.below(3)).map(|_| rig.cq(CQ_ENTRIES, false)).collect();
        let max_segments = 1 + rng.below(3);
        let srq = rig.srq(SRQ_RECEIVES, max_segments);
        let queues = vec![Queue { target: Target::Srq, srq, max_segments, level: 0 }];
        let mut objects = Self { ah: rig.address_handle(), rig, cqs, queues, ends: vec![] };
        for thread in 0..threads {
            for number in 0..2 {
                let kind = match rng.below(5) {
                    0 if number > 0 => Kind::Uc,
                    1 if number > 0 => Kind::Ud,
                    _ => Kind::Rc,
                };
                objects.pair(rng, kind, thread, threads as u32);
            }
        }
        objects
    }

    fn pair(&mut self, rng: &mut Rng, kind: Kind, owner: usize, threads: u32) {
        let first = self.ends.len();
        for n in 0..2 {
            let cq = |rng: &mut Rng| self.cqs[rng.below(self.cqs.len() as u32) as usize];
            let (send_cq, recv_cq) = (cq(rng), cq(rng));
            let shares = kind == Kind::Rc && rng.once_in(2);
            let mut cap: ibv_qp_cap = ibv_qp_cap {
                max_send_wr: 40 + rng.below(60),
                max_recv_wr: if shares { 0 } else { 20 + rng.below(40) },
                max_send_sge: 1 + rng.below(3),
                max_recv_sge: if shares { 0 } else { 1 + rng.below(3) },
                max_inline_data: rng.below(100),
            };
            let wanted = (cap.max_send_wr, cap.max_recv_wr);
            let receives = cap.max_recv_sge;
            let signals_all = rng.once_in(3);
            let extended = rng.once_in(3);
            let srq = if shares { self.queues[0].srq } else { null_mut() };
            let qp_type = match kind {
                Kind::Rc => ibv_qp_type::IBV_QPT_RC,
                Kind::Uc => ibv_qp_type::IBV_QPT_UC,
                Kind::Ud => ibv_qp_type::IBV_QPT_UD,
            };
            let max_segments = cap.max_send_sge;
            let qp = if extended {
                // SEND and SEND_WITH_IMM, WRITE, WRITE_WITH_IMM, READ and atomics.
                let operations = match kind {
                    Kind::Rc => 0b111_1111,
                    Kind::Uc => 0b000_1111,
                    Kind::Ud => 0b000_1100,
                };
                let mut granted = cap;
                let qp = self.rig.qp_ex(|init| {
                    (init.qp_type, init.comp_mask, init.send_ops_flags) = (qp_type, 1 | 64, operations);
                    (init.send_cq, init.recv_cq, init.srq) = (send_cq, recv_cq, srq);
                    (init.cap, init.sq_sig_all) = (cap, signals_all.into());
                });
                // SAFETY: whole structs and a live QP.
                unsafe {
                    let (mut attr, mut init): (ibv_qp_attr, ibv_qp_init_attr) = (zeroed(), zeroed());
                    let mask = ibv_qp_attr_mask::IBV_QP_CAP.0 as i32;
                    assert_eq!(ibv_query_qp(qp, &mut attr, mask, &mut init), 0);
                    granted.max_inline_data = attr.cap.max_inline_data;
                }
                cap.max_inline_data = granted.max_inline_data;
                qp
            } else {
                let (qp, granted) = self.rig.qp_with(send_cq, recv_cq, srq, |init| {
                    (init.qp_type, init.cap, init.sq_sig_all) = (qp_type, cap, signals_all.into());
                });
                cap = granted;
                qp
            };
            println!(
                "QP {}: {kind:?}, {wanted:?}, inline {}, signals all: {signals_all}, extended: {extended}, SRQ: {shares}",
                self.ends.len(),
                cap.max_inline_data
            );
            let queue = if shares { 0 } else { self.queues.len() };
            if !shares {
                let target = Target::Own(self.ends.len());
                self.queues.push(Queue { target, srq, max_segments: receives, level: 0 });
            }
            // Of the peer's receives; set below.
            let share =
                Room { requests: wanted.0 / threads - 2, messages: wanted.1 / threads - u32::from(!shares) };
            self.ends.push(End {
                qp,
                kind,
                peer: first + 1 - n,
                owner,
                queue,
                max_segments,
                max_inline: cap.max_inline_data,
                signals_all,
                extended,
                share,
            });
        }
        let own = [0, 1].map(|n| self.ends[first + n].share.messages);
        for n in 0..2 {
            let queue = self.ends[first + 1 - n].queue;
            let to_srq = self.queues[queue].target == Target::Srq;
            let messages = if to_srq { TO_SRQ } else { own[1 - n] };
            self.ends[first + n].share.messages = messages;
            // One more for the request that closes a round.
            self.queues[queue].level += messages * threads + u32::from(!to_srq);
        }
        self.connect(first, first + 1);
    }

    /// Brings two QPs from RESET to RTS.
    pub(super) fn connect(&self, a: usize, b: usize) {
        let (a, b) = (&self.ends[a], &self.ends[b]);
        if a.kind == Kind::Ud {
            [a, b].iter().for_each(|end| self.rig.datagrams(end.qp, QKEY));
        } else {
            self.rig.connect(a.qp, b.qp);
        }
    }

    /// Moves a QP to RESET or ERR.
    pub(super) fn to(&self, end: usize, state: ibv_qp_state::Type) {
        // SAFETY: a live QP and whole attributes.
        unsafe {
            let mut attr: ibv_qp_attr = zeroed();
            attr.qp_state = state;
            let mask = ibv_qp_attr_mask::IBV_QP_STATE.0 as i32;
            assert_eq!(ibv_modify_qp(self.ends[end].qp, &mut attr, mask), 0);
        }
    }

    /// The end with this QP number.
    pub(super) fn by_number(&self, number: u32) -> usize {
        self.ends.iter().position(|end| self.rig.qpn(end.qp) == number).expect("a QP of this process")
    }

    /// Destroys all. No completion is left.
    pub(super) fn end(&self) {
        // SAFETY: live objects, which are destroyed once, and room for one completion.
        unsafe {
            for cq in &self.cqs {
                let mut wc: ibv_wc = zeroed();
                println!("left in a CQ: {}", ibv_poll_cq(*cq, 1, &mut wc));
            }
            let qps: Vec<_> = self.ends.iter().map(|end| end.qp).collect();
            self.rig.destroy(&qps, &[self.queues[0].srq], &self.cqs);
            assert_eq!(ibv_destroy_ah(self.ah), 0);
        }
    }
}

/// Requests of one thread whose memory is told apart.
const SLOTS: u64 = 1 << 11;
const SLOT_BYTES: u64 = 512;
/// Receives of one thread that are posted at a time, at most.
const RECEIVES: u64 = 1 << 12;
/// A receive has up to three segments, each in a part of its own.
const PARTS: u64 = 3;
const PATTERN_BYTES: u64 = 4096;

/// What the requests name: for each thread the memory of its requests, their remote memory, that of
/// requests whose outcome is not known, counters, and the buffers of receives.
pub(super) struct Memory {
    mr: *mut ibv_mr,
    words: Vec<AtomicU64>,
    threads: u64,
    /// By thread and place: the receive that is posted there, and the lengths of its segments.
    receives: Vec<Vec<AtomicU64>>,
}

// SAFETY: the region is only read. The memory is made of atomic words.
unsafe impl Sync for Memory {}

const fn requests_bytes() -> u64 {
    2 * SLOTS * SLOT_BYTES + 64 * 8
}

/// A receive that was posted.
pub(super) struct Posted {
    pub(super) lengths: [u32; 3],
    address: u64,
}

impl Memory {
    pub(super) fn new(objects: &Objects, threads: usize) -> Self {
        let threads = threads as u64;
        let bytes = PATTERN_BYTES
            + threads * requests_bytes()
            + SLOTS * SLOT_BYTES
            + threads * RECEIVES * PARTS * SLOT_BYTES;
        let words: Vec<_> = (0..bytes / 8)
            .map(|n| {
                let pattern = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
                AtomicU64::new(if n < PATTERN_BYTES / 8 { pattern } else { 0 })
            })
            .collect();
        type A = ibv_access_flags;
        let access = A::IBV_ACCESS_LOCAL_WRITE
            | A::IBV_ACCESS_REMOTE_WRITE
            | A::IBV_ACCESS_REMOTE_READ
            | A::IBV_ACCESS_REMOTE_ATOMIC;
        // SAFETY: a live PD; the memory lives until the region is gone.
        let mr = unsafe {
            ibv_reg_mr(objects.rig.pd, words.as_ptr().cast_mut().cast(), bytes as usize, access.0 as i32)
        };
        assert!(!mr.is_null(), "ibv_reg_mr: {}", std::io::Error::last_os_error());
        let receives = (0..threads).map(|_| (0..RECEIVES).map(|_| AtomicU64::new(0)).collect()).collect();
        Self { mr, words, threads, receives }
    }

    pub(super) fn keys(&self) -> (u32, u32) {
        // SAFETY: a live region.
        unsafe { ((*self.mr).lkey, (*self.mr).rkey) }
    }

    fn base(&self) -> u64 {
        self.words.as_ptr().addr() as u64
    }

    /// Memory for reads, which stays as it is.
    pub(super) fn pattern(&self, offset: u64) -> u64 {
        self.base() + offset % (PATTERN_BYTES - SLOT_BYTES)
    }

    /// The memory of a thread's request.
    pub(super) fn local(&self, thread: usize, number: u32) -> u64 {
        let own = self.base() + PATTERN_BYTES + thread as u64 * requests_bytes();
        own + u64::from(number) % SLOTS * SLOT_BYTES
    }

    /// The remote memory of a thread's request.
    pub(super) fn remote(&self, thread: usize, number: u32) -> u64 {
        self.local(thread, number) + SLOTS * SLOT_BYTES
    }

    /// A thread's counter for the atomics of a QP.
    pub(super) fn counter(&self, thread: usize, end: usize) -> u64 {
        self.local(thread, 0) + 2 * SLOTS * SLOT_BYTES + end as u64 % 64 * 8
    }

    /// Memory whose content is not compared.
    pub(super) fn scrap(&self, number: u32) -> u64 {
        let at = self.base() + PATTERN_BYTES + self.threads * requests_bytes();
        at + u64::from(number) % SLOTS * SLOT_BYTES
    }

    pub(super) fn bytes(&self, address: u64, length: u32) -> Vec<u8> {
        let at = address - self.base();
        assert!(at + u64::from(length) <= self.words.len() as u64 * 8);
        (0..length)
            .map(|n| {
                // SAFETY: inside the memory. The device writes it from other threads.
                unsafe { ((address + u64::from(n)) as *const u8).read_volatile() }
            })
            .collect()
    }

    pub(super) fn fill(&self, address: u64, bytes: impl Iterator<Item = u8>) {
        for (n, byte) in bytes.enumerate() {
            assert!(address - self.base() + (n as u64) < self.words.len() as u64 * 8);
            // SAFETY: inside the memory.
            unsafe { ((address + n as u64) as *mut u8).write_volatile(byte) };
        }
    }

    /// The segments of a receive that a thread is about to post.
    pub(super) fn receive(&self, thread: usize, number: u32, lengths: [u32; 3]) -> Vec<ibv_sge> {
        let place = u64::from(number) % RECEIVES;
        let packed = lengths.iter().fold(0, |packed, length| packed << 10 | u64::from(*length));
        self.receives[thread][place as usize].store(1 << 62 | u64::from(number) << 30 | packed, SeqCst);
        let address = self.receive_address(thread, place);
        let segments = lengths.iter().enumerate().map(|(n, length)| {
            let addr = address + n as u64 * SLOT_BYTES;
            // What the device must leave alone stays as it is.
            self.fill(addr, std::iter::repeat_n(0xee, *length as usize + 1));
            ibv_sge { addr, length: *length, lkey: self.keys().0 }
        });
        segments.collect()
    }

    fn receive_address(&self, thread: usize, place: u64) -> u64 {
        let receives = PATTERN_BYTES + self.threads * requests_bytes() + SLOTS * SLOT_BYTES;
        self.base() + receives + (thread as u64 * RECEIVES + place) * PARTS * SLOT_BYTES
    }

    /// The receive completed: it was posted, and did not complete before.
    pub(super) fn received(&self, thread: usize, number: u32) -> Posted {
        let place = u64::from(number) % RECEIVES;
        let packed = self.receives[thread][place as usize].swap(0, SeqCst);
        assert_eq!(
            packed >> 30,
            1 << 32 | u64::from(number),
            "receive {number} of thread {thread} is not posted"
        );
        let lengths = [20, 10, 0].map(|shift| (packed >> shift & 0x3ff) as u32);
        Posted { lengths, address: self.receive_address(thread, place) }
    }

    /// The first bytes of a message in its buffer. The bytes behind the message are as they were.
    pub(super) fn message(&self, posted: &Posted, length: u32) -> Vec<u8> {
        let mut message = vec![];
        for (n, room) in posted.lengths.into_iter().enumerate() {
            let part = room.min(length - message.len() as u32);
            let mut bytes = self.bytes(posted.address + n as u64 * SLOT_BYTES, room + u32::from(room > 0));
            let behind = bytes.split_off(part as usize);
            assert!(
                behind.iter().all(|byte| *byte == 0xee),
                "{posted_lengths:?}: {behind:?}",
                posted_lengths = posted.lengths
            );
            message.extend(bytes);
        }
        assert_eq!(message.len() as u32, length, "the message is longer than its buffer");
        message
    }

    /// A sum of the memory of all requests.
    pub(super) fn sum(&self) -> u64 {
        let words = PATTERN_BYTES / 8 + self.threads * requests_bytes() / 8;
        let sum = |sum: u64, word: &AtomicU64| sum.rotate_left(5) ^ word.load(SeqCst);
        self.words[..words as usize].iter().fold(0, sum)
    }

    pub(super) fn end(&self) {
        // SAFETY: a live region, which nothing uses any more.
        assert_eq!(unsafe { ibv_dereg_mr(self.mr) }, 0);
    }
}
