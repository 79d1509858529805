//! Rules of send doorbells. Each rule about register, record and WQE is broken once and draws one
//! complaint. Legal sequences draw none.
//!
//! The driver in this test writes ring, record and register itself, at literal offsets.
#![expect(unsafe_code, reason = "raw verbs calls and raw queue memory")]

mod common;
#[path = "common/direct.rs"]
mod direct;

use common::*;
use direct::*;
use std::ptr::null_mut;

use mlx5_emu::{ComplaintKind, complaints, step};

const SEND: u32 = 0x0a;
const NOP: u32 = 0x00;
const SIGNALLED_MODE: u32 = 8;
/// Bytes of a basic block.
const BLOCK: u32 = 64;

/// A QP whose sends this test writes. The peer has receives.
struct Setup {
    sq: DirectSq,
    cq: DirectCq,
    memory: Memory,
    peer: *mut ibv_qp,
    peer_cq: *mut ibv_cq,
    rig: Rig,
}

fn setup(expected: Option<ComplaintKind>) -> Setup {
    let mut rig = Rig::new();
    if let Some(kind) = expected {
        rig.expect(kind);
    }
    let (cq, peer_cq) = (rig.cq(1024), rig.cq(1024));
    let a = rig.qp(ibv_qp_type::IBV_QPT_RC, cq, cq, null_mut());
    let peer = rig.qp(ibv_qp_type::IBV_QPT_RC, peer_cq, peer_cq, null_mut());
    connect(a, peer);
    connect(peer, a);
    let memory = rig.memory(4096);
    Setup { sq: DirectSq::new(a), cq: DirectCq::new(cq), memory, peer, peer_cq, rig }
}

/// A WQE as 32-bit words, in host order.
type Wqe = Vec<u32>;

impl Setup {
    /// Fills the peer's receive queue.
    fn receives(&self) {
        poll_all(self.peer_cq);
        while post_recv(self.peer, 1, &[self.memory.sge(1024, 1024)]) == 0 {}
    }

    /// An inline SEND of `len` bytes for this index. A long SEND takes a WQE of several basic
    /// blocks.
    fn inline(&self, index: u16, len: u32) -> Wqe {
        inline(&self.sq, index, len, SIGNALLED_MODE)
    }
}

fn inline(sq: &DirectSq, index: u16, len: u32, mode: u32) -> Wqe {
    let units = 1 + (4 + len).div_ceil(16);
    let mut words = vec![u32::from(index) << 8 | SEND, sq.qpn << 8 | units, mode, 0, 1 << 31 | len];
    // Data that differs from word to word and from WQE to WQE.
    words.extend((0..len / 4).map(|i| (u32::from(index) + 1) << 16 | sq.qpn << 8 | (i + 1)));
    words.resize(units as usize * 4, 0);
    words
}

fn blocks(wqe: &Wqe) -> u16 {
    (wqe.len() as u32 * 4).div_ceil(BLOCK) as u16
}

/// Writes a WQE to its place in the ring.
fn to_ring(sq: &DirectSq, index: u16, wqe: &Wqe) {
    let ring = u64::from(sq.count * BLOCK);
    let start = u64::from(u32::from(index) & (sq.count - 1)) * u64::from(BLOCK);
    for (i, &word) in wqe.iter().enumerate() {
        // SAFETY: inside the ring.
        unsafe { store32(sq.buf + (start + i as u64 * 4) % ring, word) };
    }
}

/// Writes the doorbell record.
fn to_record(sq: &DirectSq, count: u16) {
    // SAFETY: the QP's doorbell record.
    unsafe { store32(sq.record + 4, u32::from(count)) };
}

/// Copies words of a WQE into a half of the register, the first eight bytes first.
fn to_register(sq: &DirectSq, half: u64, words: &[u32]) {
    for (i, pair) in words.chunks(2).enumerate() {
        let word = u64::from(pair[0]) << 32 | u64::from(pair[1]);
        // SAFETY: inside the half of the register.
        unsafe {
            ((sq.register + half * sq.half + i as u64 * 8) as *mut u64).write_volatile(word.to_be());
        }
    }
}

/// Posts a WQE as the hardware requires, by BlueFlame: ring, record, copy in whole basic blocks.
fn post(sq: &mut DirectSq, half: u64, wqe: &Wqe) {
    to_ring(sq, sq.index, wqe);
    sq.index = sq.index.wrapping_add(blocks(wqe));
    to_record(sq, sq.index);
    let mut copy = wqe.clone();
    // A copy consists of whole basic blocks, so it includes the bytes behind the WQE.
    copy.resize(usize::from(blocks(wqe)) * 16, 0x5555_5555);
    to_register(sq, half, &copy);
}

/// Posts a WQE with an eight-byte doorbell.
fn post_plain(sq: &mut DirectSq, half: u64, wqe: &Wqe) {
    to_ring(sq, sq.index, wqe);
    sq.index = sq.index.wrapping_add(blocks(wqe));
    to_record(sq, sq.index);
    to_register(sq, half, &wqe[..2]);
}

/// The only complaint.
#[track_caller]
fn only(kind: ComplaintKind) {
    let found = complaints();
    assert_eq!(found.iter().map(|complaint| complaint.kind).collect::<Vec<_>>(), [kind], "{found:?}");
}

#[test]
fn legal_sequences_draw_no_complaint() {
    let mut s = setup(None);
    // Sizes of one to four blocks, many times around the ring. The device looks after each post or
    // after several posts.
    for looks in [1, 2, 3, 5] {
        s.receives();
        for n in 0..200u32 {
            let wqe = s.inline(s.sq.index, [12, 28, 44, 100, 124, 200][n as usize % 6]);
            post(&mut s.sq, u64::from(n % 2), &wqe);
            if n % looks == looks - 1 {
                step();
                s.receives();
                s.cq.consume();
            }
        }
        step();
        s.cq.consume();
        s.receives();
        // A BlueFlame copy in the first half was the last but one.
        let wqe = s.inline(s.sq.index, 28);
        post(&mut s.sq, 0, &wqe);
        step();
        // Eight-byte doorbells over old copies, with and without alternation; then a copy again.
        for half in [1, 1, 0, 1, 0, 0] {
            let wqe = s.inline(s.sq.index, 44);
            post_plain(&mut s.sq, half, &wqe);
            if half == 0 {
                step();
            }
        }
        s.cq.consume();
        let wqe = s.inline(s.sq.index, 28);
        post(&mut s.sq, 0, &wqe);
        let wqe = s.inline(s.sq.index, 44);
        post_plain(&mut s.sq, 0, &wqe);
        step();
        let wqe = s.inline(s.sq.index, 28);
        post(&mut s.sq, 1, &wqe);
        step();
        s.cq.consume();
    }
    // A batch whose last WQE has the doorbell.
    for _ in 0..5 {
        let wqe = s.inline(s.sq.index, 28);
        to_ring(&s.sq, s.sq.index, &wqe);
        s.sq.index = s.sq.index.wrapping_add(1);
    }
    let wqe = s.inline(s.sq.index, 28);
    post_plain(&mut s.sq, 0, &wqe);
    step();
    assert_eq!(complaints(), []);
    drop(s.rig);
}

/// Runs `posts` on a WQE of 60 bytes of inline data at index 0 and looks twice.
fn provoke(kind: ComplaintKind, posts: impl FnOnce(&mut Setup)) {
    let mut s = setup(Some(kind));
    s.receives();
    posts(&mut s);
    step();
    step();
    only(kind);
}

#[test]
fn a_copy_that_another_queue_mixes_into() {
    provoke(ComplaintKind::BlueFlameTorn, |s| {
        let wqe = s.inline(0, 44);
        post(&mut s.sq, 0, &wqe);
        // Another QP that uses the same register overwrites the second half of the copy.
        let other = DirectSq { qpn: s.sq.qpn + 1, ..s.sq };
        let theirs = inline(&other, 7, 44, SIGNALLED_MODE);
        for (i, pair) in theirs.chunks(2).enumerate().skip(4) {
            let word = u64::from(pair[0]) << 32 | u64::from(pair[1]);
            // SAFETY: inside the register.
            unsafe { ((s.sq.register + i as u64 * 8) as *mut u64).write_volatile(word.to_be()) };
        }
    });
}

#[test]
fn a_copy_that_lacks_its_end() {
    provoke(ComplaintKind::BlueFlameTorn, |s| {
        let wqe = s.inline(0, 100);
        to_ring(&s.sq, 0, &wqe);
        to_record(&s.sq, 2);
        to_register(&s.sq, 0, &wqe[..16]);
    });
}

#[test]
fn a_copy_past_the_end_of_the_ring() {
    provoke(ComplaintKind::BlueFlamePastEnd, |s| {
        // NOPs up to the last block, in one doorbell.
        let last = (s.sq.count - 1) as u16;
        while s.sq.index < last {
            let nop = vec![u32::from(s.sq.index) << 8 | NOP, s.sq.qpn << 8 | 1, 0, 0];
            post_plain(&mut s.sq, 0, &nop);
        }
        step();
        let wqe = s.inline(last, 100);
        to_ring(&s.sq, last, &wqe);
        to_record(&s.sq, last + 2);
        let mut linear = wqe[..16].to_vec();
        linear.resize(32, 0x0123_4567);
        to_register(&s.sq, 1, &linear);
    });
}

#[test]
fn the_same_half_twice_in_a_row() {
    provoke(ComplaintKind::BlueFlameHalfReused, |s| {
        for _ in 0..2 {
            let wqe = s.inline(s.sq.index, 28);
            post(&mut s.sq, 1, &wqe);
            step();
        }
    });
}

#[test]
fn the_record_after_the_register() {
    provoke(ComplaintKind::RecordAfterRegister, |s| {
        let wqe = s.inline(0, 28);
        to_ring(&s.sq, 0, &wqe);
        to_register(&s.sq, 0, &wqe[..2]);
        step();
        to_record(&s.sq, 1);
    });
}

#[test]
fn a_batch_announced_by_its_first_wqe() {
    provoke(ComplaintKind::DoorbellNotLast, |s| {
        for index in 0..3 {
            let wqe = s.inline(index, 28);
            to_ring(&s.sq, index, &wqe);
        }
        to_record(&s.sq, 3);
        let first = s.inline(0, 28);
        to_register(&s.sq, 0, &first[..2]);
    });
}

#[test]
fn a_doorbell_of_four_bytes() {
    // The position of the four bytes decides which part is missing: the QP number, or index and
    // opcode.
    for (offset, kind) in [(0, ComplaintKind::BadDoorbell), (4, ComplaintKind::BlueFlameMismatch)] {
        provoke(kind, |s| {
            let wqe = s.inline(0, 28);
            to_ring(&s.sq, 0, &wqe);
            to_record(&s.sq, 1);
            // SAFETY: inside the register.
            unsafe { store32(s.sq.register + offset, wqe[offset as usize / 4]) };
        });
    }
}

#[test]
fn completion_mode_one() {
    provoke(ComplaintKind::CompletionMode, |s| {
        let wqe = inline(&s.sq, 0, 28, 4);
        post(&mut s.sq, 0, &wqe);
    });
}

#[test]
fn sizes_that_a_wqe_cannot_have() {
    for units in [0, 64] {
        provoke(ComplaintKind::BadSendWqe, |s| {
            let mut wqe = s.inline(0, 28);
            wqe[1] = s.sq.qpn << 8 | units;
            post_plain(&mut s.sq, 0, &wqe);
        });
    }
}

#[test]
fn reserved_bits_of_the_control_segment() {
    for bits in [1 << 4, 1] {
        provoke(ComplaintKind::ReservedNotZero, |s| {
            let mut wqe = s.inline(0, 28);
            wqe[2] |= bits;
            post(&mut s.sq, 0, &wqe);
        });
    }
}
