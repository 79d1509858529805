//! Send doorbells: none is lost, however many queues share a register. A doorbell from before a
//! RESET has no effect.
#![expect(unsafe_code, reason = "raw verbs calls and raw queue memory")]

mod common;
#[path = "common/direct.rs"]
mod direct;

use common::*;
use direct::*;
use std::ptr::null_mut;

use mlx5_emu::step;

/// More QPs than libmlx5 has doorbell registers for.
const MANY: usize = 40;

/// Pairs whose first QP the test drives directly.
fn many(rig: &mut Rig, cq: *mut ibv_cq) -> Vec<(DirectSq, *mut ibv_qp)> {
    (0..MANY)
        .map(|_| {
            let (a, b) = rig.pair(cq, null_mut());
            (DirectSq::new(a), b)
        })
        .collect()
}

#[test]
fn queues_that_share_a_register_are_all_served() {
    let mut rig = Rig::new();
    let (cq, empty) = (rig.cq(1024), rig.cq(16));
    let memory = rig.memory(4096);
    let mut queues = many(&mut rig, cq);
    let mut cq = DirectCq::new(cq);
    for round in 0..3 {
        for (sq, peer) in &mut queues {
            assert_eq!(post_recv(*peer, 1, &[memory.sge(1024, 64)]), 0);
            let words = sq.write(&memory.sge(0, 48));
            sq.ring_only(words);
        }
        // The hook on polling runs the engine.
        poll(empty, 0);
        assert_eq!(cq.consume(), 2 * MANY, "round {round}");
    }
}

/// A hooked post takes the register's doorbell. The device must later find the doorbell that was
/// overwritten.
#[test]
fn a_doorbell_that_a_hooked_post_overwrites_is_found() {
    let mut rig = Rig::new();
    let (cq, other) = (rig.cq(1024), rig.cq(256));
    let memory = rig.memory(4096);
    let mut queues = many(&mut rig, cq);
    let hooked: Vec<_> = (0..MANY).map(|_| rig.pair(other, null_mut())).collect();
    let mut cq = DirectCq::new(cq);
    for (sq, peer) in &mut queues {
        assert_eq!(post_recv(*peer, 1, &[memory.sge(1024, 64)]), 0);
        let words = sq.write(&memory.sge(0, 48));
        sq.ring_only(words);
    }
    for &(a, b) in &hooked {
        assert_eq!(post_recv(b, 1, &[memory.sge(2048, 64)]), 0);
        send(a, 2, SIGNALED, &[memory.sge(0, 48)]);
    }
    poll(other, 2 * MANY);
    assert_eq!(cq.consume(), 2 * MANY);
}

/// Posts with `ibv_wr_start` and `ibv_wr_complete`, which are not in the tables of `ibv_post_send`.
#[test]
fn queues_posted_to_by_the_extended_calls_are_all_served() {
    const OPS_RDMA_WRITE: u64 = 1;
    let mut rig = Rig::new();
    let (cq, peers) = (rig.cq(1024), rig.cq(16));
    let memory = rig.memory(4096);
    // SAFETY: live objects; all-zero is a valid attribute structure.
    let queues: Vec<*mut ibv_qp> = unsafe {
        (0..MANY)
            .map(|_| {
                let mut attr: ibv_qp_init_attr_ex = std::mem::zeroed();
                (attr.qp_type, attr.send_cq, attr.recv_cq) = (ibv_qp_type::IBV_QPT_RC, cq, cq);
                (attr.comp_mask, attr.pd, attr.send_ops_flags) = (1 | 64, rig.pd, OPS_RDMA_WRITE);
                (attr.cap.max_send_wr, attr.cap.max_send_sge) = (16, 1);
                let qp = (*extended(rig.ctx)).create_qp_ex.unwrap()(rig.ctx, &raw mut attr);
                assert!(!qp.is_null(), "create_qp_ex: {}", std::io::Error::last_os_error());
                rig.later(move || assert_eq!(ibv_destroy_qp(qp), 0));
                let peer = rig.qp(ibv_qp_type::IBV_QPT_RC, peers, peers, null_mut());
                connect(qp, peer);
                connect(peer, qp);
                qp
            })
            .collect()
    };
    for (i, &qp) in queues.iter().enumerate() {
        // SAFETY: the QP was made with the extended form; one request between start and complete.
        unsafe {
            let qp: *mut ibv_qp_ex = qp.cast();
            ((*qp).wr_id, (*qp).wr_flags) = (i as u64, SIGNALED);
            (*qp).wr_start.unwrap()(qp);
            (*qp).wr_rdma_write.unwrap()(qp, memory.rkey, memory.at(1024));
            (*qp).wr_set_sge.unwrap()(qp, memory.lkey, memory.at(0), 64);
            assert_eq!((*qp).wr_complete.unwrap()(qp), 0);
        }
    }
    let mut seen: Vec<u64> = poll(cq, MANY).iter().map(|wc| wc.wr_id).collect();
    seen.sort_unstable();
    assert_eq!(seen, (0..MANY as u64).collect::<Vec<_>>());
}

/// After RESET the record still holds the old counter until the driver clears it.
#[test]
fn the_old_record_of_a_queue_in_reset_is_ignored() {
    const RESET: u32 = 0;
    const INIT: u32 = 1;
    /// A counter that is more than a ring ahead of 0.
    const OLD: u32 = 5000;
    let mut rig = Rig::new();
    let cq = rig.cq(256);
    let memory = rig.memory(4096);
    let (a, b) = rig.pair(cq, null_mut());
    let mut cq = DirectCq::new(cq);
    let mut sq = DirectSq::new(a);
    for _ in 0..3 {
        assert_eq!(post_recv(b, 1, &[memory.sge(1024, 64)]), 0);
        sq.send(&memory.sge(0, 48));
        assert_eq!(cq.consume(), 2);
    }
    assert_eq!((set_state(a, RESET), set_state(b, RESET)), (0, 0));
    // Acts as if the driver had not cleared the record yet, with a late doorbell.
    let late = || {
        // SAFETY: the QP's doorbell record and register.
        unsafe {
            store32(sq.record + 4, OLD);
            (sq.register as *mut u64).write_volatile(u64::from(sq.qpn << 8 | 2).to_be());
        }
        step();
    };
    late();
    assert_eq!(state(a), RESET);
    to_init(a);
    late();
    assert_eq!(state(a), INIT);
    assert_eq!(async_events(rig.ctx), []);
    // SAFETY: the QP's doorbell record.
    unsafe { store32(sq.record + 4, 0) };
    sq.index = 0;
    // The counters start at 0 again.
    to_rtr(a, qpn(b));
    to_rts_with(a, 14, 7, 7);
    connect(b, a);
    assert_eq!(post_recv(b, 1, &[memory.sge(1024, 64)]), 0);
    sq.send(&memory.sge(0, 48));
    assert_eq!(cq.consume(), 2);
}

/// A pending doorbell of a destroyed QP does not count as a doorbell for an unknown QP.
#[test]
fn a_doorbell_of_a_destroyed_queue_is_no_complaint() {
    let mut rig = Rig::new();
    let cq = rig.cq(256);
    let memory = rig.memory(4096);
    // SAFETY: live objects; all-zero is a valid attribute structure; the QP is destroyed once.
    unsafe {
        let mut attr: ibv_qp_init_attr = std::mem::zeroed();
        (attr.send_cq, attr.recv_cq, attr.qp_type) = (cq, cq, ibv_qp_type::IBV_QPT_RC);
        (attr.cap.max_send_wr, attr.cap.max_send_sge) = (16, 1);
        let qp = ibv_create_qp(rig.pd, &raw mut attr);
        assert!(!qp.is_null());
        connect(qp, qp);
        let mut sq = DirectSq::new(qp);
        let words = sq.write(&memory.sge(0, 48));
        sq.ring_only(words);
        assert_eq!(ibv_destroy_qp(qp), 0);
    }
    step();
    assert_eq!(mlx5_emu::complaints(), []);
}

/// The CQE of a QP's own receive queue gives the running counter. Drivers reduce the counter modulo
/// the ring size, or compare it with their own.
#[test]
fn the_receive_counter_runs_past_the_end_of_the_ring() {
    let mut rig = Rig::new();
    let (cq, recv_cq) = (rig.cq(256), rig.cq(256));
    let memory = rig.memory(4096);
    let a = rig.qp(ibv_qp_type::IBV_QPT_RC, cq, cq, null_mut());
    let b = rig.qp(ibv_qp_type::IBV_QPT_RC, recv_cq, recv_cq, null_mut());
    connect(a, b);
    connect(b, a);
    let view = View::of(OBJ_CQ, recv_cq as usize);
    let (buf, count, size) = (view.u64(0), view.u32(16), u64::from(view.u32(20)));
    // More than the ring of 64 holds.
    for n in 0..150 {
        assert_eq!(post_recv(b, 1, &[memory.sge(1024, 64)]), 0);
        send(a, 2, SIGNALED, &[memory.sge(0, 48)]);
        poll(cq, 1);
        // SAFETY: inside the CQ's buffer: counter, signature and owner of the newest CQE.
        let word = unsafe { load32(buf + u64::from(n & (count - 1)) * size + size - 4) };
        assert_eq!(word >> 16, n);
        poll(recv_cq, 1);
    }
}

/// A CQ is armed for any completion, and then for solicited ones. The device takes the first arm
/// word when the second one is in the record and not yet in the register.
#[test]
fn a_cq_is_armed_again_while_the_device_looks() {
    let mut rig = Rig::new();
    let (cq, empty) = (DirectCq::new(rig.cq(16)), rig.cq(16) as usize);
    for _ in 0..100 {
        cq.arm_record(SOLICITED_ONLY);
        cq.arm_register(0);
        std::thread::scope(|scope| {
            // The hook on polling runs the engine.
            scope.spawn(|| poll(empty as *mut ibv_cq, 0));
            while !cq.is_arm_taken() {
                // The engine would wait for this thread.
                yield_past_device();
            }
            cq.arm_register(SOLICITED_ONLY);
        });
        // The device is idle now. The rig fails on complaints.
        step();
        cq.arm_record(0);
        cq.arm_register(0);
        step();
    }
}
