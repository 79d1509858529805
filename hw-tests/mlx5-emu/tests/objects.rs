//! Objects through the calls of libibverbs: what they tell of themselves, what many of them do, and
//! their end.
#![expect(unsafe_code, reason = "raw verbs calls")]

mod common;

use std::mem::zeroed;
use std::ptr::null_mut;

use common::*;

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
