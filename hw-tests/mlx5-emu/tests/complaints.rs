//! A deliberately broken driver: each rule of real hardware is broken once and draws a complaint.
//!
//! The driver in this test writes queue memory itself, at literal offsets from the addresses of
//! `mlx5dv_init_obj`.
#![expect(unsafe_code, reason = "raw verbs calls and raw queue memory")]

mod common;
#[path = "common/direct.rs"]
mod direct;

use common::*;
use direct::*;
use mlx5_emu::{ComplaintKind, complaints, step};

/// # Safety
/// `at` is a mapped, aligned half word of queue memory.
unsafe fn store16(at: u64, value: u16) {
    // SAFETY: by contract.
    unsafe { (at as *mut u16).write_volatile(value.to_be()) };
}

/// An SRQ that the test writes directly.
struct Direct {
    buf: u64,
    record: u64,
    stride: u64,
    count: u32,
    posted: u32,
}

impl Direct {
    fn new(srq: *mut ibv_srq) -> Self {
        let view = View::of(OBJ_SRQ, srq as usize);
        assert_eq!(view.u32(20), 0, "head");
        Self {
            buf: view.u64(0),
            record: view.u64(8),
            stride: u64::from(view.u32(16)),
            count: view.u32(24) + 1,
            posted: 0,
        }
    }

    fn wqe(&self, index: u32) -> u64 {
        self.buf + u64::from(index) * self.stride
    }

    fn fill(&self, index: u32, sge: &ibv_sge) {
        // SAFETY: inside the ring.
        unsafe {
            store32(self.wqe(index) + 16, sge.length);
            store32(self.wqe(index) + 20, sge.lkey);
            store32(self.wqe(index) + 24, (sge.addr >> 32) as u32);
            store32(self.wqe(index) + 28, sge.addr as u32);
        }
    }

    fn link(&self, index: u32, next: u16) {
        // SAFETY: inside the ring.
        unsafe { store16(self.wqe(index) + 2, next) };
    }

    fn ring(&mut self, count: u32) {
        self.posted += count;
        // SAFETY: the doorbell record.
        unsafe { store32(self.record, self.posted) };
    }
}

struct Setup {
    rig: Rig,
    cq: *mut ibv_cq,
    a: *mut ibv_qp,
    direct: Direct,
    memory: Memory,
}

fn setup(kind: ComplaintKind) -> Setup {
    let mut rig = Rig::new();
    rig.expect(kind);
    let (cq, srq) = (rig.cq(256), rig.srq(8, 1));
    let (a, _) = rig.pair(cq, srq);
    let memory = rig.memory(4096);
    let direct = Direct::new(srq);
    for i in 0..direct.count {
        direct.fill(i, &memory.sge(1024, 64));
    }
    Setup { rig, cq, a, direct, memory }
}

fn seen(kind: ComplaintKind) -> bool {
    complaints().iter().any(|complaint| complaint.kind == kind)
}

/// Counts and consumes CQEs without libmlx5, so that it does not touch the SRQ's links.
///
/// # Safety
/// A live CQ that is polled no other way.
unsafe fn poll_raw(cq: *mut ibv_cq) -> u32 {
    // One CQ at a time: a new one starts over.
    thread_local!(static CI: std::cell::Cell<(usize, u32)> = const { std::cell::Cell::new((0, 0)) });
    let view = View::of(OBJ_CQ, cq as usize);
    let (buf, record, count, size) = (view.u64(0), view.u64(8), view.u32(16), view.u32(20));
    step();
    let (known, mut ci) = CI.get();
    if known != buf as usize {
        ci = 0;
    }
    let mut found = 0;
    loop {
        let at = buf + u64::from(ci & (count - 1)) * u64::from(size) + u64::from(size) - 1;
        // SAFETY: inside the CQ's buffer.
        let own = unsafe { (at as *const u8).read_volatile() };
        if own >> 4 == 15 || u32::from(own & 1) != (ci >> count.trailing_zeros()) & 1 {
            break;
        }
        ci += 1;
        found += 1;
        // SAFETY: the CQ's doorbell record.
        unsafe { store32(record, ci & 0xff_ffff) };
    }
    CI.set((buf as usize, ci));
    found
}

#[test]
fn next_outside_the_ring() {
    let mut s = setup(ComplaintKind::NextOutsideRing);
    s.direct.link(0, 999);
    s.direct.ring(1);
    send(s.a, 1, SIGNALED, &[s.memory.sge(0, 64)]);
    assert!(seen(ComplaintKind::NextOutsideRing));
    assert_eq!(async_events(s.rig.ctx), [14], "the SRQ is in error");
}

#[test]
fn next_changed_after_posting() {
    let mut s = setup(ComplaintKind::NextChangedAfterPost);
    s.direct.ring(3);
    send(s.a, 1, SIGNALED, &[s.memory.sge(0, 64)]);
    assert!(!seen(ComplaintKind::NextChangedAfterPost));
    s.direct.link(1, 5);
    send(s.a, 2, SIGNALED, &[s.memory.sge(0, 64)]);
    assert!(seen(ComplaintKind::NextChangedAfterPost));
}

#[test]
fn wqe_posted_while_in_flight() {
    let mut s = setup(ComplaintKind::WqeReusedInFlight);
    s.direct.link(2, 0);
    s.direct.ring(4);
    send(s.a, 1, SIGNALED, &[s.memory.sge(0, 64)]);
    assert!(seen(ComplaintKind::WqeReusedInFlight));
}

#[test]
fn srq_record_that_jumps() {
    for jump in [64, 0xffff] {
        let mut s = setup(ComplaintKind::DoorbellRecordJump);
        s.direct.ring(jump);
        send(s.a, 1, SIGNALED, &[s.memory.sge(0, 64)]);
        assert!(seen(ComplaintKind::DoorbellRecordJump), "{jump}");
    }
}

#[test]
fn srq_record_with_bits_above_the_counter() {
    let mut s = setup(ComplaintKind::ReservedNotZero);
    s.direct.posted = 0x10000;
    s.direct.ring(1);
    send(s.a, 1, SIGNALED, &[s.memory.sge(0, 64)]);
    assert!(seen(ComplaintKind::ReservedNotZero));
}

#[test]
fn unknown_key_in_a_receive() {
    let mut s = setup(ComplaintKind::UnknownKey);
    let mut sge = s.memory.sge(1024, 64);
    sge.lkey ^= 0x10_0000;
    s.direct.fill(0, &sge);
    s.direct.ring(1);
    send(s.a, 1, SIGNALED, &[s.memory.sge(0, 64)]);
    assert!(seen(ComplaintKind::UnknownKey));
}

#[test]
fn consumer_index_ahead_of_the_device() {
    let mut s = setup(ComplaintKind::ConsumerIndexAhead);
    let view = View::of(OBJ_CQ, s.cq as usize);
    let (record, count) = (view.u64(8), view.u32(16));
    // SAFETY: the CQ's doorbell record.
    unsafe { store32(record, count * 4) };
    let mut sq = DirectSq::new(s.a);
    for _ in 0..count {
        s.direct.ring(1);
        sq.send(&s.memory.sge(0, 64));
        if s.direct.posted % 16 == 15 {
            s.direct.link(15, 0);
        }
    }
    assert!(seen(ComplaintKind::ConsumerIndexAhead));
}

#[test]
fn register_that_does_not_match_the_ring() {
    let mut s = setup(ComplaintKind::BlueFlameMismatch);
    let mut sq = DirectSq::new(s.a);
    s.direct.ring(4);
    let words = sq.write(&s.memory.sge(0, 48));
    sq.ring((words.0, words.1 + 1));
    assert!(seen(ComplaintKind::BlueFlameMismatch));
}

#[test]
fn doorbell_for_a_queue_that_is_not_there() {
    let s = setup(ComplaintKind::BadDoorbell);
    let mut sq = DirectSq::new(s.a);
    let words = sq.write(&s.memory.sge(0, 48));
    sq.qpn += 100;
    sq.ring((words.0, sq.qpn << 8 | 2));
    assert!(seen(ComplaintKind::BadDoorbell));
}

#[test]
fn arm_register_that_contradicts_the_record() {
    let s = setup(ComplaintKind::BadDoorbell);
    let cq = DirectCq::new(s.cq);
    cq.arm_record(SOLICITED_ONLY);
    cq.arm_register(0);
    step();
    assert!(seen(ComplaintKind::BadDoorbell));
}

#[test]
fn send_wqe_with_the_wrong_index() {
    let mut s = setup(ComplaintKind::BadSendWqe);
    s.rig.expect(ComplaintKind::BlueFlameMismatch);
    let mut sq = DirectSq::new(s.a);
    s.direct.ring(4);
    sq.write(&s.memory.sge(0, 48));
    // SAFETY: the control segment of WQE 0.
    unsafe { store32(sq.buf, 7 << 8 | 0x0a) };
    sq.ring((7 << 8 | 0x0a, sq.qpn << 8 | 2));
    assert!(seen(ComplaintKind::BadSendWqe));
}

#[test]
fn send_record_that_jumps() {
    let s = setup(ComplaintKind::DoorbellRecordJump);
    let mut sq = DirectSq::new(s.a);
    let words = sq.write(&s.memory.sge(0, 48));
    sq.index = 5000;
    sq.ring(words);
    assert!(seen(ComplaintKind::DoorbellRecordJump));
}

#[test]
fn send_segment_of_length_zero() {
    let s = setup(ComplaintKind::BadSendWqe);
    let mut sq = DirectSq::new(s.a);
    let words = sq.write(&s.memory.sge(0, 0));
    sq.ring(words);
    assert!(seen(ComplaintKind::BadSendWqe));
}

#[test]
fn an_ignored_owner_bit_shows_as_stale_completions() {
    // The device cannot see this error: a driver that misreads the ownership bit reads old CQEs.
    // The device writes a different ownership bit in each lap.
    let mut s = setup(ComplaintKind::Internal);
    let view = View::of(OBJ_CQ, s.cq as usize);
    let (buf, count, size) = (view.u64(0), view.u32(16), u64::from(view.u32(20)));
    let own = |slot: u32| {
        // SAFETY: inside the CQ's buffer.
        (unsafe { load32(buf + u64::from(slot + 1) * size - 4) } & 1) as u8
    };
    let mut written = 0;
    let mut sq = DirectSq::new(s.a);
    while written < count + 2 {
        s.direct.ring(1);
        sq.send(&s.memory.sge(0, 64));
        // SAFETY: live CQ, polled only here.
        written += unsafe { poll_raw(s.cq) };
        if s.direct.posted % 16 == 15 {
            s.direct.link(15, 0);
        }
    }
    assert_eq!((own(0), own(1), own(count - 1)), (1, 1, 0), "second lap has the bit set, the first has not");
}
