//! Errors, faults on demand, and how each side learns of them. `error_cqes.rs` has what the
//! completions hold.
#![expect(unsafe_code, reason = "raw verbs calls")]

mod common;

use std::mem::zeroed;
use std::ptr::null_mut;
use std::time::Duration;

use common::*;
use ibv_qp_state::{IBV_QPS_ERR, IBV_QPS_RESET, IBV_QPS_SQE};
use ibv_wr_opcode::*;
use mlx5_emu::ComplaintKind;

const LOC_PROT: u32 = 4;
const REM_ACCESS: u32 = 10;
const REM_OP: u32 = 11;
const RETRY_EXC: u32 = 12;

/// `IBV_EVENT_QP_ACCESS_ERR`.
const QP_ACCESS_ERR: u32 = 3;

fn status(cq: *mut ibv_cq, id: u64) -> u32 {
    let wcs = poll_all(cq);
    wcs.iter().find(|wc| wc.wr_id == id).map_or_else(|| panic!("no completion {id}"), |wc| wc.status)
}

#[test]
fn different_packet_sequence_numbers_do_not_connect() {
    let mut rig = Rig::new();
    let cq = rig.cq(64);
    let a = rig.qp(ibv_qp_type::IBV_QPT_RC, cq, cq, null_mut());
    let b = rig.qp(ibv_qp_type::IBV_QPT_RC, cq, cq, null_mut());
    connect(a, b);
    to_init(b);
    let mut attr = rtr_attr(qpn(a));
    attr.rq_psn = 0xff_ff00;
    let mask = 1 | 128 | 256 | (1 << 20) | 4096 | (1 << 17) | (1 << 15);
    // SAFETY: live QP.
    assert_eq!(unsafe { ibv_modify_qp(b, &raw mut attr, mask) }, 0);
    let memory = rig.memory(4096);
    post_recv(b, 2, &[memory.sge(1024, 64)]);
    send(a, 1, SIGNALED, &[memory.sge(0, 64)]);
    for _ in 0..7 {
        assert_eq!(poll_all(cq).len(), 0);
        mlx5_emu::advance_clock(Duration::from_millis(70));
    }
    assert_eq!(status(cq, 1), RETRY_EXC);
}

#[test]
fn receive_buffers_obey_the_pd_of_the_srq() {
    let mut rig = Rig::new();
    let (cq, srq) = (rig.cq(64), rig.srq(16, 1));
    // SAFETY: live context; another PD, given back below.
    let other = unsafe { ibv_alloc_pd(rig.ctx) };
    // SAFETY: freed once, after what is in it.
    rig.later(move || unsafe { assert_eq!(ibv_dealloc_pd(other), 0) });
    let own = std::mem::replace(&mut rig.pd, other);
    let (a, _) = rig.pair(cq, srq);
    let theirs = rig.memory(4096);
    rig.pd = own;
    let ours = rig.memory(4096);
    post_srq(srq, 1, &[ours.sge(0, 64)]);
    send(a, 2, SIGNALED, &[theirs.sge(0, 64)]);
    assert!(poll(cq, 2).iter().all(|wc| wc.status == 0));
    post_srq(srq, 3, &[theirs.sge(0, 64)]);
    send(a, 4, SIGNALED, &[theirs.sge(0, 64)]);
    let wcs = poll(cq, 2);
    assert_eq!(wcs.iter().find(|wc| wc.wr_id == 3).unwrap().status, LOC_PROT);
    assert_eq!(wcs.iter().find(|wc| wc.wr_id == 4).unwrap().status, REM_OP);
}

#[test]
fn remote_rights_bounds_and_keys_are_enforced() {
    let refused = |access: u32, opcode: u32, offset: i64, key_change: u32| {
        let mut rig = Rig::new();
        let cq = rig.cq(64);
        let (a, b) = rig.pair(cq, null_mut());
        let local = rig.memory(64);
        let remote = rig.memory_with(4096, access);
        post_send(a, 1, opcode, SIGNALED, &[local.sge(0, 8)], |wr| {
            wr.wr.rdma.remote_addr = remote.at(0).wrapping_add_signed(offset);
            wr.wr.rdma.rkey = remote.rkey ^ key_change;
            if opcode >= IBV_WR_ATOMIC_CMP_AND_SWP {
                wr.wr.atomic.rkey = remote.rkey ^ key_change;
            }
        });
        let status = status(cq, 1);
        if status != 0 {
            assert_eq!((state(a), state(b)), (IBV_QPS_ERR, IBV_QPS_ERR));
            assert!(async_events(rig.ctx).contains(&QP_ACCESS_ERR));
        }
        status
    };
    assert_eq!(refused(1 | 2, IBV_WR_RDMA_WRITE, 4088, 0), 0);
    assert_eq!(refused(1 | 2, IBV_WR_RDMA_WRITE, 4089, 0), REM_ACCESS);
    assert_eq!(refused(1 | 2, IBV_WR_RDMA_WRITE, -1, 0), REM_ACCESS);
    assert_eq!(refused(1 | 4, IBV_WR_RDMA_WRITE, 0, 0), REM_ACCESS);
    assert_eq!(refused(1 | 2, IBV_WR_RDMA_READ, 0, 0), REM_ACCESS);
    assert_eq!(refused(1 | 2, IBV_WR_RDMA_WRITE, 0, 0x8000), REM_ACCESS);
    assert_eq!(refused(1 | 2 | 4, IBV_WR_ATOMIC_FETCH_AND_ADD, 0, 0), REM_ACCESS);
    assert_eq!(refused(1 | 8, IBV_WR_ATOMIC_FETCH_AND_ADD, 8, 0), 0);
}

#[test]
fn datagram_send_errors_stop_the_queue_until_restart() {
    let mut rig = Rig::new();
    let cq = rig.cq(64);
    let a = rig.qp(ibv_qp_type::IBV_QPT_UC, cq, cq, null_mut());
    let b = rig.qp(ibv_qp_type::IBV_QPT_UC, cq, cq, null_mut());
    connect(a, b);
    connect(b, a);
    let memory = rig.memory(4096);
    send(a, 1, SIGNALED, &[memory.sge(4090, 8)]);
    assert_eq!(status(cq, 1), LOC_PROT);
    assert_eq!(state(a), IBV_QPS_SQE);
    assert_eq!(set_state(a, ibv_qp_state::IBV_QPS_RTS), 0);
    post_recv(b, 2, &[memory.sge(1024, 8)]);
    send(a, 3, SIGNALED, &[memory.sge(0, 8)]);
    assert!(poll(cq, 2).iter().all(|wc| wc.status == 0));
}

/// IBTA C11-31: a pending request for the next completion outlives one for solicited completions.
#[test]
fn request_for_solicited_completions_does_not_weaken_an_earlier_one() {
    let mut rig = Rig::new();
    let channel = rig.channel();
    let (cq, rcq, srq) = (rig.cq(64), rig.cq_on(64, channel), rig.srq(16, 1));
    let a = rig.qp(ibv_qp_type::IBV_QPT_RC, cq, rcq, srq);
    let b = rig.qp(ibv_qp_type::IBV_QPT_RC, cq, rcq, srq);
    connect(a, b);
    connect(b, a);
    let memory = rig.memory(4096);
    let deliver = || {
        post_srq(srq, 1, &[memory.sge(1024, 64)]);
        send(a, 2, SIGNALED, &[memory.sge(0, 64)]);
        poll(cq, 1);
    };
    // SAFETY: live CQ.
    let arm = |solicited| unsafe { assert_eq!(ibv_req_notify_cq(rcq, solicited), 0) };
    for polled in [false, true] {
        arm(0);
        arm(1);
        deliver();
        assert!(comp_event(channel), "polled: {polled}");
        if polled {
            assert_eq!(poll_all(rcq).len(), 3);
        }
        arm(1);
        deliver();
        assert!(!comp_event(channel), "the event has used up the request for the next completion");
        arm(0);
        assert!(comp_event(channel), "armed for the next completion with one waiting");
    }
    assert_eq!(poll_all(rcq).len(), 1);
}

/// A QP that was reset completes nothing any more. Completions that a fault held back are dropped.
#[test]
fn completion_held_back_goes_with_a_reset() {
    use mlx5_emu::{Fault, Rule, inject};
    let mut rig = Rig::new();
    let (cq, srq) = (rig.cq(64), rig.srq(32, 1));
    let (a, _) = rig.pair(cq, srq);
    let (c, _) = rig.pair(cq, srq);
    let memory = rig.memory(4096);
    for i in 0..4 {
        post_srq(srq, 100 + i, &[memory.sge(1024, 64)]);
    }
    inject(Rule::once(Fault::Hold).at(qpn(a)));
    send(a, 4, SIGNALED, &[memory.sge(0, 64)]);
    poll(cq, 1);
    assert_eq!(set_state(a, IBV_QPS_RESET), 0);
    send(c, 5, SIGNALED, &[memory.sge(0, 64)]);
    let sends: Vec<u64> = poll_all(cq).iter().filter(|wc| wc.wr_id < 100).map(|wc| wc.wr_id).collect();
    assert_eq!(sends, [5]);
}

#[test]
fn faults_strike_as_told() {
    use mlx5_emu::{Fault, Rule, inject};
    let mut rig = Rig::new();
    let (cq, srq) = (rig.cq(64), rig.srq(32, 1));
    let (a, _) = rig.pair(cq, srq);
    let (c, _) = rig.pair(cq, srq);
    let memory = rig.memory(4096);
    for i in 0..16 {
        post_srq(srq, 100 + i, &[memory.sge(1024, 64)]);
    }
    inject(Rule::once(Fault::Drop));
    send(a, 1, SIGNALED, &[memory.sge(0, 64)]);
    assert_eq!(poll_all(cq).len(), 0, "lost, to be sent again");
    mlx5_emu::advance_clock(Duration::from_millis(70));
    poll(cq, 2);

    inject(Rule::once(Fault::NotReady).times(3));
    send(a, 2, SIGNALED, &[memory.sge(0, 64)]);
    for _ in 0..3 {
        assert_eq!(poll_all(cq).len(), 0);
        mlx5_emu::advance_clock(Duration::from_millis(1));
    }
    poll(cq, 2);

    inject(Rule::once(Fault::Delay(5000)));
    send(a, 3, SIGNALED, &[memory.sge(0, 64)]);
    assert_eq!(poll_all(cq).len(), 0);
    mlx5_emu::advance_clock(Duration::from_millis(5));
    poll(cq, 2);

    inject(Rule::once(Fault::Hold).at(qpn(a)));
    send(a, 4, SIGNALED, &[memory.sge(0, 64)]);
    send(c, 5, SIGNALED, &[memory.sge(0, 64)]);
    let sends: Vec<u64> = poll(cq, 4).iter().filter(|wc| wc.wr_id < 100).map(|wc| wc.wr_id).collect();
    assert_eq!(sends, [5, 4], "the later QP's completion passed the earlier one's");

    inject(Rule::once(Fault::StaleOwner));
    send(a, 7, 0, &[memory.sge(0, 64)]);
    assert_eq!(poll_all(cq).len(), 0, "written, but not handed over");
    mlx5_emu::step();
    poll(cq, 1);

    inject(Rule::once(Fault::Error(0x14)));
    send(a, 6, SIGNALED, &[memory.sge(0, 64)]);
    assert_eq!(status(cq, 6), REM_OP);

    inject(Rule::once(Fault::Command("create_srq", libc::ENOMEM)));
    // SAFETY: live PD; the call fails.
    let none = unsafe {
        let mut attr: ibv_srq_init_attr = zeroed();
        (attr.attr.max_wr, attr.attr.max_sge) = (8, 1);
        ibv_create_srq(rig.pd, &raw mut attr)
    };
    assert!(none.is_null());
    assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::ENOMEM));
}

/// libmlx5 posts a receive of an SRQ again that has met a page fault. The sender comes again.
#[test]
fn page_fault_of_a_shared_receive_breaks_no_qp() {
    use mlx5_emu::{Fault, Rule, inject};
    let mut rig = Rig::new();
    let (cq, srq) = (rig.cq(64), rig.srq(4, 1));
    let (a, b) = rig.pair(cq, srq);
    let memory = rig.memory(4096);
    let (mut next, mut received) = (0, Vec::new());
    for round in 0..20 {
        while post_srq(srq, next, &[memory.sge(1024, 64)]) == 0 {
            next += 1;
        }
        inject(Rule::once(Fault::Abort).at(qpn(b)));
        memory.put(0, &[round]);
        send(a, 1000, SIGNALED, &[memory.sge(0, 64)]);
        assert_eq!(poll_all(cq).len(), 0, "round {round}: libmlx5 keeps the page fault to itself");
        mlx5_emu::advance_clock(Duration::from_millis(1));
        let found = poll(cq, 2);
        assert!(found.iter().all(|wc| wc.status == 0));
        assert_eq!(memory.get(1024, 1), [round]);
        received.push(found[0].wr_id);
    }
    assert!(received.contains(&0), "a receive that met a page fault takes a later message");
    received.sort_unstable();
    received.dedup();
    assert_eq!(received.len(), 20, "each receive once");
}

#[test]
fn checked_copies_report_memory_that_was_unmapped() {
    let mut rig = Rig::new();
    rig.expect(ComplaintKind::UnmappedMemory);
    let cq = rig.cq(64);
    let (a, _) = rig.pair(cq, null_mut());
    let memory = rig.memory(4096);
    // SAFETY: pages of our own, registered, then unmapped.
    let (addr, lkey) = unsafe {
        let addr = libc::mmap(null_mut(), 8192, 3, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0);
        let mr = ___reg(rig.pd, addr, 8192, 1);
        assert!(!mr.is_null());
        rig.later(move || assert_eq!(ibv_dereg_mr(mr), 0));
        libc::munmap(addr, 8192);
        (addr as u64, (*mr).lkey)
    };
    mlx5_emu::set_checked_memory(true);
    post_send(a, 1, IBV_WR_RDMA_WRITE, SIGNALED, &[ibv_sge { addr, length: 100, lkey }], |wr| {
        wr.wr.rdma.remote_addr = memory.at(0);
        wr.wr.rdma.rkey = memory.rkey;
    });
    mlx5_emu::set_checked_memory(false);
    poll(cq, 1);
    assert!(mlx5_emu::complaints().iter().any(|c| c.kind == ComplaintKind::UnmappedMemory));
}
