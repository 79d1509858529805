//! Transports that lose messages: UC and datagrams, between QPs of one process.

mod common;

use common::*;
use std::ptr::null_mut;

use ibv_wr_opcode::*;

#[test]
fn uc_delivers_and_drops_without_a_receive() {
    let mut rig = Rig::new();
    let cq = rig.cq(64);
    let a = rig.qp(ibv_qp_type::IBV_QPT_UC, cq, cq, null_mut());
    let b = rig.qp(ibv_qp_type::IBV_QPT_UC, cq, cq, null_mut());
    connect(a, b);
    connect(b, a);
    let memory = rig.memory(4096);
    memory.put(0, &[1; 64]);
    send(a, 1, SIGNALED, &[memory.sge(0, 64)]);
    assert_eq!(poll(cq, 1)[0].status, 0, "sent although nobody took it");
    post_recv(b, 2, &[memory.sge(512, 64)]);
    send(a, 3, SIGNALED, &[memory.sge(0, 64)]);
    poll(cq, 2);
    assert_eq!(memory.get(512, 64), [1; 64]);
}

#[test]
fn datagrams_arrive_with_a_header_and_the_right_key() {
    let mut rig = Rig::new();
    let cq = rig.cq(64);
    let a = rig.qp(ibv_qp_type::IBV_QPT_UD, cq, cq, null_mut());
    let b = rig.qp(ibv_qp_type::IBV_QPT_UD, cq, cq, null_mut());
    for qp in [a, b] {
        to_init(qp);
        to_rtr(qp, 0);
        to_rts_with(qp, 0, 0, 0);
    }
    let memory = rig.memory(4096);
    memory.put(0, &[9; 100]);
    let ah = rig.address_handle(&rtr_attr(0).ah_attr);
    let to = |key: u32| {
        move |wr: &mut ibv_send_wr| {
            wr.wr.ud.ah = ah;
            wr.wr.ud.remote_qpn = qpn(b);
            wr.wr.ud.remote_qkey = key;
        }
    };
    post_recv(b, 1, &[memory.sge(1024, 200)]);
    post_send(a, 2, IBV_WR_SEND, SIGNALED, &[memory.sge(0, 100)], to(0x2222));
    assert_eq!(poll(cq, 1)[0].wr_id, 2, "a wrong key is dropped in silence");
    post_send(a, 3, IBV_WR_SEND, SIGNALED, &[memory.sge(0, 100)], to(0x1111));
    let wcs = poll(cq, 2);
    let recv = wcs.iter().find(|wc| wc.wr_id == 1).unwrap();
    assert_eq!((recv.byte_len, recv.src_qp, recv.wc_flags & 1), (140, qpn(a), 1));
    assert_eq!(recv.sl, 8 | 2, "over UDP, an IPv4 header: what this field says on RoCE");
    assert_eq!(memory.get(1024 + 40, 100), [9; 100]);
    assert_eq!(memory.get(1024 + 36, 4), [127, 0, 0, 1], "destination of the IPv4 header");
}

#[test]
fn datagrams_take_no_more_than_their_srq_holds() {
    const QPS: usize = 17;
    let mut rig = Rig::new();
    let (sent, received) = (rig.cq(256), rig.cq(256));
    let srq = rig.srq(64, 1);
    let sender = rig.qp(ibv_qp_type::IBV_QPT_UD, sent, sent, null_mut());
    let receivers: Vec<_> =
        (0..QPS).map(|_| rig.qp(ibv_qp_type::IBV_QPT_UD, received, received, srq)).collect();
    for qp in receivers.iter().copied().chain([sender]) {
        to_init(qp);
        to_rtr(qp, 0);
        to_rts_with(qp, 0, 0, 0);
    }
    let memory = rig.memory(4096);
    let ah = rig.address_handle(&rtr_attr(0).ah_attr);
    let mut next = 0;
    let mut send = |count: usize| {
        for i in 0..count {
            post_send(sender, i as u64, IBV_WR_SEND, SIGNALED, &[memory.sge(0, 100)], |wr| {
                wr.wr.ud.ah = ah;
                wr.wr.ud.remote_qpn = qpn(receivers[next % QPS]);
                wr.wr.ud.remote_qkey = 0x1111;
            });
            poll(sent, 1);
            next += 1;
        }
    };
    let ids = || poll_all(received).iter().map(|wc| wc.wr_id).collect::<Vec<_>>();
    for id in 0..40 {
        assert_eq!(post_srq(srq, id, &[memory.sge(1024, 200)]), 0);
    }
    send(60);
    assert_eq!(ids(), (0..40).collect::<Vec<_>>(), "20 of 60 datagrams find the SRQ empty");
    for id in 40..60 {
        assert_eq!(post_srq(srq, id, &[memory.sge(1024, 200)]), 0);
    }
    send(20);
    assert_eq!(ids(), (40..60).collect::<Vec<_>>(), "a lost datagram has taken nothing");
}
