//! Every operation on every transport, between QPs of one process.
#![expect(unsafe_code, reason = "raw verbs calls")]

mod common;

use common::*;
use std::ptr::null_mut;

use ibv_wr_opcode::*;

#[test]
fn send_through_a_shared_receive_queue_arrives_in_its_buffer() {
    let mut rig = Rig::new();
    let (cq, srq) = (rig.cq(64), rig.srq(16, 1));
    let (a, b) = rig.pair(cq, srq);
    let memory = rig.memory(4096);
    memory.put(0, b"hello, shared receive queue: longer than what fits into a completion");
    assert_eq!(post_srq(srq, 77, &[memory.sge(1024, 1024)]), 0);
    send(a, 5, SIGNALED, &[memory.sge(0, 68)]);
    let wcs = poll(cq, 2);
    let recv = wcs.iter().find(|wc| wc.wr_id == 77).expect("receive completion");
    assert_eq!(
        (recv.status, recv.opcode, recv.byte_len, recv.qp_num),
        (0, ibv_wc_opcode::IBV_WC_RECV, 68, qpn(b))
    );
    let sent = wcs.iter().find(|wc| wc.wr_id == 5).expect("send completion");
    assert_eq!((sent.status, sent.opcode, sent.qp_num), (0, ibv_wc_opcode::IBV_WC_SEND, qpn(a)));
    assert_eq!(memory.get(1024, 68), memory.get(0, 68));
}

#[test]
fn small_payloads_arrive_with_and_without_scatter_to_cqe() {
    let mut rig = Rig::new();
    let (cq, srq) = (rig.cq(64), rig.srq(16, 3));
    let (a, b) = rig.pair(cq, null_mut());
    let (c, _d) = rig.pair(cq, srq);
    let memory = rig.memory(4096);
    let data: Vec<u8> = (0..200).map(|i| i as u8 ^ 0x5a).collect();
    memory.put(0, &data);
    for len in 0..=130u32 {
        for (from, flags) in [(a, SIGNALED), (a, SIGNALED | INLINE), (c, SIGNALED)] {
            memory.put(1024, &[0; 256]);
            let flags = if len > 120 { flags & !INLINE } else { flags };
            let sges = [memory.sge(1024, 10), memory.sge(1040, 200)];
            let posted = if from == a { post_recv(b, 1, &sges) } else { post_srq(srq, 1, &sges) };
            assert_eq!(posted, 0);
            send(from, 2, flags, &[memory.sge(0, len)]);
            let wcs = poll(cq, 2);
            let recv = wcs.iter().find(|wc| wc.wr_id == 1).unwrap();
            assert_eq!((recv.status, recv.byte_len), (0, len), "len {len}");
            let mut got = memory.get(1024, 10);
            got.extend(memory.get(1040, 200));
            assert_eq!(got[..len as usize], data[..len as usize], "len {len} flags {flags}");
            assert!(got[len as usize..].iter().all(|&byte| byte == 0), "len {len}: wrote beyond the message");
        }
    }
}

#[test]
fn immediate_data_travels_with_send_and_write() {
    let mut rig = Rig::new();
    let (cq, srq) = (rig.cq(64), rig.srq(16, 1));
    let (a, _) = rig.pair(cq, srq);
    let memory = rig.memory(4096);
    memory.put(0, &[7; 100]);
    post_srq(srq, 1, &[memory.sge(1024, 200)]);
    post_send(a, 2, IBV_WR_SEND_WITH_IMM, SIGNALED, &[memory.sge(0, 100)], |wr| {
        wr.imm_data_invalidated_rkey_union.imm_data = 0x1234_5678u32.to_be();
    });
    let wcs = poll(cq, 2);
    let recv = wcs.iter().find(|wc| wc.wr_id == 1).unwrap();
    // SAFETY: the completion says that it carries immediate data.
    let imm = unsafe { recv.imm_data_invalidated_rkey_union.imm_data };
    assert_eq!((recv.wc_flags & 2, u32::from_be(imm), recv.byte_len), (2, 0x1234_5678, 100));

    post_srq(srq, 3, &[memory.sge(3000, 8)]);
    post_send(a, 4, IBV_WR_RDMA_WRITE_WITH_IMM, SIGNALED, &[memory.sge(0, 100)], |wr| {
        wr.imm_data_invalidated_rkey_union.imm_data = 9;
        wr.wr.rdma.remote_addr = memory.at(2000);
        wr.wr.rdma.rkey = memory.rkey;
    });
    let wcs = poll(cq, 2);
    let recv = wcs.iter().find(|wc| wc.wr_id == 3).unwrap();
    assert_eq!(recv.opcode, ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM);
    assert_eq!(recv.byte_len, 100);
    assert_eq!(memory.get(2000, 100), [7; 100]);
}

#[test]
fn write_read_and_atomics_reach_remote_memory() {
    let mut rig = Rig::new();
    let cq = rig.cq(64);
    for sig_all in [false, true] {
        // If all requests are signalled, answers may be written into the CQE.
        let a = rig.qp_with(ibv_qp_type::IBV_QPT_RC, cq, cq, null_mut(), sig_all);
        let b = rig.qp_with(ibv_qp_type::IBV_QPT_RC, cq, cq, null_mut(), sig_all);
        connect(a, b);
        connect(b, a);
        let memory = rig.memory(8192);
        memory.put(0, &[3; 500]);
        let remote = |wr: &mut ibv_send_wr, offset| {
            wr.wr.rdma.remote_addr = memory.at(offset);
            wr.wr.rdma.rkey = memory.rkey;
        };
        post_send(a, 1, IBV_WR_RDMA_WRITE, SIGNALED, &[memory.sge(0, 500)], |wr| remote(wr, 4096));
        assert_eq!(poll(cq, 1)[0].opcode, ibv_wc_opcode::IBV_WC_RDMA_WRITE);
        assert_eq!(memory.get(4096, 500), [3; 500]);

        for len in [1u32, 32, 33, 300] {
            memory.put(2048, &[0; 400]);
            let sges = [memory.sge(2048, 1.min(len)), memory.sge(2100, len)];
            let sges = if len > 1 { vec![sges[0], memory.sge(2100, len - 1)] } else { vec![sges[0]] };
            post_send(a, 2, IBV_WR_RDMA_READ, SIGNALED, &sges, |wr| remote(wr, 4096));
            let wc = &poll(cq, 1)[0];
            assert_eq!((wc.status, wc.opcode, wc.byte_len), (0, ibv_wc_opcode::IBV_WC_RDMA_READ, len));
            assert_eq!(memory.get(2048, 1), [3]);
            assert_eq!(memory.get(2100, len as usize - 1), vec![3; len as usize - 1]);
        }

        memory.put(4096, &40u64.to_ne_bytes());
        let atomic = |wr: &mut ibv_send_wr, add: u64, swap: u64| {
            wr.wr.atomic.remote_addr = memory.at(4096);
            wr.wr.atomic.rkey = memory.rkey;
            wr.wr.atomic.compare_add = add;
            wr.wr.atomic.swap = swap;
        };
        post_send(a, 3, IBV_WR_ATOMIC_FETCH_AND_ADD, SIGNALED, &[memory.sge(64, 8)], |wr| atomic(wr, 2, 0));
        assert_eq!(poll(cq, 1)[0].opcode, ibv_wc_opcode::IBV_WC_FETCH_ADD);
        assert_eq!(
            (memory.get(64, 8), memory.get(4096, 8)),
            (40u64.to_ne_bytes().to_vec(), 42u64.to_ne_bytes().to_vec())
        );
        post_send(a, 4, IBV_WR_ATOMIC_CMP_AND_SWP, SIGNALED, &[memory.sge(64, 8)], |wr| atomic(wr, 42, 1000));
        post_send(a, 5, IBV_WR_ATOMIC_CMP_AND_SWP, SIGNALED, &[memory.sge(72, 8)], |wr| atomic(wr, 42, 2000));
        assert!(poll(cq, 2).iter().all(|wc| wc.opcode == ibv_wc_opcode::IBV_WC_COMP_SWAP));
        assert_eq!(memory.get(4096, 8), 1000u64.to_ne_bytes());
        assert_eq!(
            (memory.get(64, 8), memory.get(72, 8)),
            (42u64.to_ne_bytes().to_vec(), 1000u64.to_ne_bytes().to_vec())
        );
    }
}

#[test]
fn unsignalled_sends_complete_with_the_next_signalled_one() {
    let mut rig = Rig::new();
    let (cq, srq) = (rig.cq(256), rig.srq(64, 1));
    let (a, _) = rig.pair(cq, srq);
    let memory = rig.memory(4096);
    for round in 0..100 {
        for i in 0..4 {
            post_srq(srq, 100 + i, &[memory.sge(1024, 64)]);
        }
        for i in 0..3 {
            send(a, i, 0, &[memory.sge(0, 60)]);
        }
        send(a, 3, SIGNALED, &[memory.sge(0, 60)]);
        let wcs = poll(cq, 5);
        let sends: Vec<u64> = wcs.iter().filter(|wc| wc.wr_id < 100).map(|wc| wc.wr_id).collect();
        assert_eq!(sends, [3], "round {round}");
    }
}

#[test]
fn receives_of_one_connection_complete_in_the_order_sent() {
    let mut rig = Rig::new();
    let (cq, rcq, srq) = (rig.cq(256), rig.cq(256), rig.srq(100, 1));
    let a = rig.qp(ibv_qp_type::IBV_QPT_RC, cq, rcq, srq);
    let b = rig.qp(ibv_qp_type::IBV_QPT_RC, cq, rcq, srq);
    connect(a, b);
    connect(b, a);
    let memory = rig.memory(4096);
    for i in 0..50 {
        post_srq(srq, i, &[memory.sge(1024 + i as usize * 8, 8)]);
    }
    for i in 0..50u64 {
        memory.put(0, &i.to_ne_bytes());
        send(a, i, SIGNALED, &[memory.sge(0, 8)]);
    }
    for (i, wc) in poll(rcq, 50).iter().enumerate() {
        assert_eq!(wc.status, 0);
        assert_eq!(memory.get(1024 + wc.wr_id as usize * 8, 8), (i as u64).to_ne_bytes());
    }
    poll(cq, 50);
}

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

#[test]
fn xrc_delivers_to_the_queue_that_the_request_names() {
    let mut rig = Rig::new();
    let cq = rig.cq(64);
    let memory = rig.memory(4096);
    memory.put(0, &[5; 80]);
    // SAFETY: a chain of checked verbs calls on live objects. The rig undoes them in reverse order.
    unsafe {
        let mut xattr: ibv_xrcd_init_attr = std::mem::zeroed();
        (xattr.comp_mask, xattr.fd, xattr.oflags) = (3, -1, libc::O_CREAT);
        let xrcd = (*extended(rig.ctx)).open_xrcd.unwrap()(rig.ctx, &raw mut xattr);
        assert!(!xrcd.is_null());
        rig.later(move || assert_eq!((*extended((*xrcd).context)).close_xrcd.unwrap()(xrcd), 0));
        let mut srqs = Vec::new();
        for _ in 0..2 {
            let mut attr: ibv_srq_init_attr_ex = std::mem::zeroed();
            (attr.attr.max_wr, attr.attr.max_sge) = (16, 1);
            attr.comp_mask = 1 | 2 | 4 | 8;
            attr.srq_type = 1;
            (attr.pd, attr.xrcd, attr.cq) = (rig.pd, xrcd, cq);
            let srq = (*extended(rig.ctx)).create_srq_ex.unwrap()(rig.ctx, &raw mut attr);
            assert!(!srq.is_null());
            rig.later(move || assert_eq!(ibv_destroy_srq(srq), 0));
            let mut number = 0;
            assert_eq!((*extended(rig.ctx)).get_srq_num.unwrap()(srq, &raw mut number), 0);
            srqs.push((srq, number));
        }
        let mut attr: ibv_qp_init_attr_ex = std::mem::zeroed();
        attr.qp_type = ibv_qp_type::IBV_QPT_XRC_RECV;
        (attr.comp_mask, attr.xrcd) = (2, xrcd);
        let target = (*extended(rig.ctx)).create_qp_ex.unwrap()(rig.ctx, &raw mut attr);
        assert!(!target.is_null());
        rig.later(move || assert_eq!(ibv_destroy_qp(target), 0));
        let mut attr: ibv_qp_init_attr_ex = std::mem::zeroed();
        attr.qp_type = ibv_qp_type::IBV_QPT_XRC_SEND;
        (attr.comp_mask, attr.pd, attr.send_cq) = (1, rig.pd, cq);
        (attr.cap.max_send_wr, attr.cap.max_send_sge) = (16, 1);
        let initiator = (*extended(rig.ctx)).create_qp_ex.unwrap()(rig.ctx, &raw mut attr);
        assert!(!initiator.is_null());
        rig.later(move || assert_eq!(ibv_destroy_qp(initiator), 0));
        connect(target, initiator);
        connect(initiator, target);
        for (i, &(srq, number)) in srqs.iter().enumerate() {
            post_srq(srq, 10 + i as u64, &[memory.sge(1024 * (i + 1), 100)]);
            post_send(initiator, 1, IBV_WR_SEND, SIGNALED, &[memory.sge(0, 80)], |wr| {
                wr.qp_type.xrc.remote_srqn = number;
            });
            let wcs = poll(cq, 2);
            let recv = wcs.iter().find(|wc| wc.wr_id == 10 + i as u64).expect("receive from the named queue");
            assert_eq!((recv.status, recv.byte_len), (0, 80));
            assert_eq!(memory.get(1024 * (i + 1), 80), [5; 80]);
        }
    }
}

#[test]
fn threads_on_different_queues_do_not_disturb_each_other() {
    const MESSAGES: u64 = 5_000;
    /// The objects of one thread.
    struct Part(*mut ibv_cq, *mut ibv_srq, *mut ibv_qp, Memory);
    // SAFETY: each part is used by one thread; verbs objects may move between threads.
    unsafe impl Send for Part {}

    let mut rig = Rig::new();
    let parts: Vec<Part> = (0..4)
        .map(|_| {
            let (cq, srq) = (rig.cq(256), rig.srq(16, 1));
            let (a, _) = rig.pair(cq, srq);
            Part(cq, srq, a, rig.memory(4096))
        })
        .collect();
    std::thread::scope(|scope| {
        for part in parts {
            scope.spawn(move || {
                let Part(cq, srq, qp, memory) = { part };
                for i in 0..MESSAGES {
                    memory.put(0, &i.to_ne_bytes());
                    assert_eq!(post_srq(srq, i, &[memory.sge(1024, 64)]), 0);
                    send(qp, i, SIGNALED, &[memory.sge(0, 40)]);
                    let mut seen = 0;
                    while seen < 2 {
                        for wc in poll_all(cq) {
                            assert_eq!((wc.status, wc.wr_id), (0, i));
                            seen += 1;
                        }
                    }
                    assert_eq!(memory.get(1024, 8), i.to_ne_bytes());
                }
            });
        }
    });
}
