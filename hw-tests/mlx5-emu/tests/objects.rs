//! Objects through the calls of libibverbs: what they tell of themselves, what many of them do, and
//! their end.
#![expect(unsafe_code, reason = "raw verbs calls")]

mod common;

use std::mem::zeroed;
use std::ptr::null_mut;

use common::*;
use ibv_wr_opcode::*;

#[test]
fn resized_completion_queues_keep_their_completions() {
    let mut rig = Rig::new();
    let (cq, srq) = (rig.cq(15), rig.srq(64, 1));
    let (a, _) = rig.pair(cq, srq);
    let memory = rig.memory(4096);
    let deliver = |id| {
        post_srq(srq, 1000 + id, &[memory.sge(1024, 64)]);
        send(a, id, 0, &[memory.sge(0, 64)]);
    };
    for round in 0..5u64 {
        for i in 0..10 {
            deliver(round * 100 + i);
        }
        let size = if round % 2 == 0 { 255 } else { 15 };
        // SAFETY: live CQ.
        assert_eq!(unsafe { ibv_resize_cq(cq, size) }, 0);
        deliver(round * 100 + 10);
        let ids: Vec<u64> = poll(cq, 11).iter().map(|wc| wc.wr_id).collect();
        assert_eq!(ids, (0..11).map(|i| 1000 + round * 100 + i).collect::<Vec<_>>());
    }
    for i in 0..10 {
        deliver(i);
    }
    // SAFETY: live CQ.
    assert_ne!(unsafe { ibv_resize_cq(cq, 3) }, 0, "smaller than what waits in it");
    poll(cq, 10);
}

#[test]
fn memory_windows_bind_restrict_and_are_invalidated() {
    let mut rig = Rig::new();
    let cq = rig.cq(64);
    let (a, b) = rig.pair(cq, null_mut());
    let memory = rig.memory(4096);
    // SAFETY: live context and PD; the window is freed by the rig.
    let mw = unsafe { (*rig.ctx).ops.alloc_mw.unwrap()(rig.pd, 2) };
    assert!(!mw.is_null());
    // SAFETY: freed once.
    rig.later(move || unsafe { assert_eq!((*(*mw).context).ops.dealloc_mw.unwrap()(mw), 0) });
    // SAFETY: live window.
    let rkey = unsafe { ((*mw).rkey & !0xff) | (((*mw).rkey + 1) & 0xff) };
    assert_eq!(
        post_send(b, 1, IBV_WR_BIND_MW, SIGNALED, &[], |wr| {
            // SAFETY: the binding is the part of the union that this opcode uses.
            let info = unsafe { &mut wr.bind_mw_tso_union.bind_mw };
            info.mw = mw;
            info.rkey = rkey;
            info.bind_info.mr = memory.mr;
            info.bind_info.addr = memory.at(1024);
            info.bind_info.length = 100;
            info.bind_info.mw_access_flags = 2;
        }),
        0
    );
    assert_eq!(poll(cq, 1)[0].status, 0);
    let write = |offset: usize| {
        post_send(a, 2, IBV_WR_RDMA_WRITE, SIGNALED, &[memory.sge(0, 10)], |wr| {
            wr.wr.rdma.remote_addr = memory.at(offset);
            wr.wr.rdma.rkey = rkey;
        });
        poll(cq, 1)[0].status
    };
    memory.put(0, &[8; 10]);
    assert_eq!(write(1024), 0);
    assert_eq!(memory.get(1024, 10), [8; 10]);
    post_recv(b, 3, &[memory.sge(2048, 64)]);
    post_send(a, 4, IBV_WR_SEND_WITH_INV, SIGNALED, &[memory.sge(0, 10)], |wr| {
        wr.imm_data_invalidated_rkey_union.invalidated_rkey = rkey;
    });
    let wcs = poll(cq, 2);
    let recv = wcs.iter().find(|wc| wc.wr_id == 3).unwrap();
    assert_eq!((recv.status, recv.wc_flags & 8), (0, 8), "received with invalidate");
    assert_eq!(write(1024), 10, "the window is gone");
}

#[test]
fn addresses_and_limits_are_those_of_the_host() {
    let rig = Rig::new();
    // SAFETY: live context; all-zero is valid for the structures.
    unsafe {
        let mut gid: ibv_gid = zeroed();
        assert_eq!(ibv_query_gid(rig.ctx, 1, 0, &raw mut gid), 0);
        assert_eq!(gid.raw, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1]);
        assert_eq!(ibv_query_gid(rig.ctx, 1, 1, &raw mut gid), 0);
        assert_eq!(gid.raw[15], 1, "::1");
        let mut key = 0;
        assert_eq!(ibv_query_pkey(rig.ctx, 1, 0, &raw mut key), 0);
        assert_eq!(key, 0xffff);
        let mut attr: ibv_device_attr = zeroed();
        assert_eq!(ibv_query_device(rig.ctx, &raw mut attr), 0);
        assert_eq!((attr.vendor_part_id, attr.max_srq_wr), (4125, 32767));
    }
}

#[test]
fn a_thousand_qps_on_a_hundred_deep_srqs() {
    let mut rig = Rig::new();
    let cq = rig.cq(8191);
    let deep = rig.srq(32767, 1);
    let memory = rig.memory(4096);
    for i in 0..32767 {
        assert_eq!(post_srq(deep, i, &[memory.sge(1024, 64)]), 0);
    }
    assert_ne!(post_srq(deep, 0, &[memory.sge(1024, 64)]), 0, "full");
    let mut pairs = Vec::new();
    for i in 0..100 {
        let srq = if i == 0 { deep } else { rig.srq(15, 1) };
        for _ in 0..5 {
            pairs.push((srq, rig.pair(cq, srq)));
        }
        if i > 0 {
            for id in 0..15 {
                post_srq(srq, id, &[memory.sge(1024, 64)]);
            }
        }
    }
    for &(_, (a, b)) in &pairs {
        send(a, 1, SIGNALED, &[memory.sge(0, 64)]);
        send(b, 1, SIGNALED, &[memory.sge(0, 64)]);
        assert!(poll(cq, 4).iter().all(|wc| wc.status == 0));
    }
}

#[test]
fn closing_a_device_destroys_everything() {
    let rig = Rig::new();
    // SAFETY: a second context whose objects are left to the close.
    unsafe {
        let mut count = 0;
        let list = ibv_get_device_list(&raw mut count);
        let ctx = ibv_open_device(*list);
        ibv_free_device_list(list);
        let pd = ibv_alloc_pd(ctx);
        let cq = ibv_create_cq(ctx, 8, null_mut(), null_mut(), 0);
        let mut attr: ibv_srq_init_attr = zeroed();
        (attr.attr.max_wr, attr.attr.max_sge) = (8, 1);
        let srq = ibv_create_srq(pd, &raw mut attr);
        let mut init: ibv_qp_init_attr = zeroed();
        (init.send_cq, init.recv_cq, init.srq, init.qp_type) = (cq, cq, srq, ibv_qp_type::IBV_QPT_RC);
        (init.cap.max_send_wr, init.cap.max_send_sge) = (4, 1);
        let qp = ibv_create_qp(pd, &raw mut init);
        assert!(!qp.is_null());
        let number = qpn(qp);
        assert!(mlx5_emu::qp_info(number).is_some());
        libc::close((*ctx).cmd_fd);
        assert!(mlx5_emu::qp_info(number).is_none());
    }
    drop(rig);
}

#[test]
fn query_qp_tells_what_the_receive_ring_has() {
    let mut rig = Rig::new();
    let cq = rig.cq(8);
    // SAFETY: live objects; all-zero is valid for the attribute structures.
    unsafe {
        let mut init: ibv_qp_init_attr = zeroed();
        (init.send_cq, init.recv_cq) = (cq, cq);
        (init.cap.max_send_wr, init.cap.max_recv_wr) = (100, 100);
        (init.cap.max_send_sge, init.cap.max_recv_sge) = (3, 3);
        init.qp_type = ibv_qp_type::IBV_QPT_RC;
        let qp = ibv_create_qp(rig.pd, &raw mut init);
        assert!(!qp.is_null());
        let (mut attr, mut found): (ibv_qp_attr, ibv_qp_init_attr) = (zeroed(), zeroed());
        assert_eq!(ibv_query_qp(qp, &raw mut attr, 1, &raw mut found), 0);
        // 3 entries of 16 bytes need a stride of 64, which has room for 4.
        assert_eq!((attr.cap.max_recv_wr, attr.cap.max_recv_sge), (128, 4));
        assert_eq!(
            (attr.cap.max_send_wr, attr.cap.max_send_sge),
            (init.cap.max_send_wr, init.cap.max_send_sge)
        );
        assert_eq!(ibv_destroy_qp(qp), 0);
    }
    // A QP without a receive queue of its own has neither.
    let srq = rig.srq(16, 1);
    let qp = rig.qp(ibv_qp_type::IBV_QPT_RC, cq, cq, srq);
    // SAFETY: as above.
    unsafe {
        let (mut attr, mut found): (ibv_qp_attr, ibv_qp_init_attr) = (zeroed(), zeroed());
        assert_eq!(ibv_query_qp(qp, &raw mut attr, 1, &raw mut found), 0);
        assert_eq!((attr.cap.max_recv_wr, attr.cap.max_recv_sge), (0, 0));
    }
}
