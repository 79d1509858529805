//! Operations and transports that `sends` does not have: UC, XRC, masked atomics, NOP, send with
//! invalidate; and lists of work requests that are cut short.

use std::mem::zeroed;

use doorbell_sys::*;
use mlx5_direct::{
    Completion, Cq, DataSeg, RecvOp, RequestOp, SendError, SendWrs, Sq, Wr,
    wr::{Bind, Inline, Masked, Remote},
};

use super::{
    next, recv_wr,
    rig::Rig,
    sends::{Request, describe, link, same, take_rq, take_sq, wqes},
    take_cq,
};

fn data_segment(sge: &ibv_sge) -> DataSeg {
    DataSeg::new(sge.addr, sge.length, sge.lkey)
}

/// The next completion of a send-queue operation that succeeded; releases the request.
fn finish(cq: &mut Cq, sq: &mut Sq) -> (RequestOp, u64) {
    let completion = next(cq);
    let op = match completion {
        Completion::Send(send) => send.op,
        Completion::SendScattered(scattered) => scattered.send.op,
        other => panic!("{other:?}"),
    };
    let counter = completion.send_counter().expect("a send");
    (op, sq.complete(counter).expect("posted").cookie)
}

/// A signalled work request of verbs that names one segment.
fn verbs_request(opcode: u32, sge: ibv_sge) -> Request {
    // SAFETY: integers and pointers only.
    let mut wr: ibv_send_wr = unsafe { zeroed() };
    (wr.opcode, wr.send_flags) = (opcode, ibv_send_flags::IBV_SEND_SIGNALED.0);
    Request { wr, sges: vec![sge], receives: false }
}

/// Sends and writes of UC QPs have the WQEs of libmlx5 and arrive, into a receive queue of this
/// crate's.
pub(crate) fn unreliable(rig: &Rig) {
    use ibv_wr_opcode::*;
    let cqs = [0; 3].map(|_| rig.cq(127, false));
    let uc = |cq: *mut ibv_cq| {
        rig.qp_with(cq, cq, std::ptr::null_mut(), |init| {
            (init.qp_type, init.sq_sig_all) = (ibv_qp_type::IBV_QPT_UC, 0);
            (init.cap.max_recv_wr, init.cap.max_recv_sge) = (16, 1);
        })
        .0
    };
    let [theirs, ours, peer] = cqs.map(uc);
    let at = [describe(theirs), describe(ours)];
    let (mut sq, mut cq) = (take_sq(ours), take_cq(cqs[1]));
    let (mut rq, mut peer_cq) = (take_rq(peer), take_cq(cqs[2]));
    // One peer serves both: first the QP that verbs drive, then the QP of this crate.
    let mut sides = vec![];
    for (turn, sender) in [theirs, ours].into_iter().enumerate() {
        rig.connect(sender, peer);
        for n in 0..200u64 {
            let opcode = [IBV_WR_SEND, IBV_WR_SEND_WITH_IMM, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM]
                [n as usize % 4];
            let receives = opcode != IBV_WR_RDMA_WRITE;
            let len = 33 + n as u32;
            rig.write(0, &vec![n as u8; len as usize]);
            rig.write(4096, &[0; 2048]);
            if receives {
                rq.post(&[DataSeg::new(rig.addr(4096), 1024, rig.lkey())], n).expect("room");
            }
            let to = Remote { addr: rig.addr(4096 + 1024), rkey: rig.rkey() };
            let imm = 0x0102_0304 + n as u32;
            let data = DataSeg::new(rig.addr(0), len, rig.lkey());
            if turn == 0 {
                let sge = ibv_sge { addr: data.addr(), length: len, lkey: rig.lkey() };
                let mut request = verbs_request(opcode, sge);
                request.wr.imm_data_invalidated_rkey_union.imm_data = imm.to_be();
                request.wr.wr.rdma = rdma_t { remote_addr: to.addr, rkey: to.rkey };
                assert_eq!(rig.verbs_send(theirs, &mut link(&mut [request])), (0, 1));
                assert_eq!(rig.verbs_poll(cqs[0], 1)[0].status, 0);
            } else {
                let request = match opcode {
                    IBV_WR_SEND => Wr::send(data),
                    IBV_WR_SEND_WITH_IMM => Wr::send_imm(imm, data),
                    IBV_WR_RDMA_WRITE => Wr::write(to, data),
                    _ => Wr::write_imm(to, imm, data),
                };
                sq.post(request.signalled(), n).expect("room");
                assert_eq!(finish(&mut cq, &mut sq).1, n);
            }
            if receives {
                let Completion::Recv(received) = next(&mut peer_cq) else { panic!("a receive") };
                assert_eq!((received.byte_count, rq.complete(received.slot.0)), (len, Ok(n)));
                assert_eq!(received.immediate(), (n % 4 != 0).then_some(imm));
            }
            let written = if opcode < IBV_WR_SEND { 4096 + 1024 } else { 4096 };
            assert_eq!(rig.read(written, len as usize), vec![n as u8; len as usize], "request {n}");
        }
        sides.push(wqes(&at[turn], 0, 200));
        // The peer loses its connection and starts again with the other sender.
        rig.to_reset(peer);
        rq.reset();
        peer_cq.clean(rig.qpn(peer), |c| panic!("{c:?}"));
    }
    let [theirs_seen, ours_seen] = [sides.remove(0), sides.remove(0)];
    same(theirs_seen, ours_seen);
    rig.destroy(&[theirs, ours, peer], &[], &cqs);
}

/// XRC requests name the SRQ; they have the WQEs of libmlx5, and arrive in the SRQ that they name.
/// The WQEs of atomics meet the end of the ring at each of their segments.
pub(crate) fn xrc(rig: &Rig) {
    let table = rig.extended();
    let recv_cq = rig.cq(127, false);
    // SAFETY: verbs calls with live objects; all-zero attributes are valid.
    let (xrcd, srqs) = unsafe {
        let mut attr: ibv_xrcd_init_attr = zeroed();
        (attr.comp_mask, attr.fd, attr.oflags) = (3, -1, libc::O_CREAT);
        let xrcd = table.open_xrcd.expect("open_xrcd")(rig.context, &mut attr);
        assert!(!xrcd.is_null());
        let srqs = [0; 2].map(|_| {
            let mut attr: ibv_srq_init_attr_ex = zeroed();
            (attr.attr.max_wr, attr.attr.max_sge) = (16, 1);
            (attr.comp_mask, attr.srq_type) = (1 | 2 | 4 | 8, ibv_srq_type::IBV_SRQT_XRC);
            (attr.pd, attr.xrcd, attr.cq) = (rig.pd, xrcd, recv_cq);
            let srq = table.create_srq_ex.expect("create_srq_ex")(rig.context, &mut attr);
            assert!(!srq.is_null());
            let mut number = 0;
            assert_eq!(table.get_srq_num.expect("get_srq_num")(srq, &mut number), 0);
            (srq, number)
        });
        (xrcd, srqs)
    };
    let cqs = [0; 2].map(|_| rig.cq(127, false));
    let senders =
        cqs.map(|cq| rig.qp_ex(|init| (init.qp_type, init.send_cq) = (ibv_qp_type::IBV_QPT_XRC_SEND, cq)));
    let targets = senders.map(|sender| {
        let target = rig.qp_ex(|init| {
            (init.qp_type, init.comp_mask, init.xrcd) = (ibv_qp_type::IBV_QPT_XRC_RECV, 2, xrcd);
        });
        rig.connect(sender, target);
        target
    });
    let at = senders.map(describe);
    let (mut sq, mut cq) = (take_sq(senders[1]), take_cq(cqs[1]));
    let mut block = 0;
    for n in 0..300u64 {
        let (srq, number) = srqs[n as usize % 2];
        let data = ibv_sge { addr: rig.addr(0), length: 70, lkey: rig.lkey() };
        let landing = ibv_sge { addr: rig.addr(8192), length: 8, lkey: rig.lkey() };
        let target = Remote { addr: rig.addr(16384), rkey: rig.rkey() };
        let atomic = n % 3 == 1;
        for turn in 0..2 {
            rig.write(0, &[n as u8; 70]);
            rig.write(4096, &[0; 128]);
            rig.write(8192, &[0; 8]);
            rig.write(16384, &n.to_ne_bytes());
            if !atomic {
                let mut sges = [ibv_sge { addr: rig.addr(4096), length: 128, lkey: rig.lkey() }];
                assert_eq!(rig.verbs_post(srq, &mut [recv_wr(&mut sges, n)]), 1);
            }
            if turn == 0 {
                let mut request = if atomic {
                    verbs_request(ibv_wr_opcode::IBV_WR_ATOMIC_CMP_AND_SWP, landing)
                } else {
                    verbs_request(ibv_wr_opcode::IBV_WR_SEND, data)
                };
                request.wr.wr.atomic =
                    atomic_t { remote_addr: target.addr, compare_add: n, swap: 99, rkey: target.rkey };
                request.wr.qp_type.xrc.remote_srqn = number;
                assert_eq!(rig.verbs_send(senders[0], &mut link(&mut [request])), (0, 1));
                assert_eq!(rig.verbs_poll(cqs[0], 1)[0].status, 0);
            } else {
                let posted = if atomic {
                    let result = data_segment(&landing);
                    sq.post(Wr::compare_swap(target, n, 99, result).to_srq(number).signalled(), n)
                } else {
                    sq.post(Wr::send(data_segment(&data)).to_srq(number).signalled(), n)
                };
                posted.expect("room");
                let completion = next(&mut cq);
                let counter = completion.send_counter().expect("a send");
                if let Completion::SendScattered(scattered) = completion {
                    // SAFETY: inside the rig's buffer.
                    unsafe { cq.deliver_result(&scattered, sq.segments(counter)) };
                }
                assert!(!matches!(completion, Completion::SendError(_)), "{completion:?}");
                assert_eq!(sq.complete(counter).expect("posted").cookie, n);
            }
            if atomic {
                assert_eq!((rig.read(8192, 8), rig.read(16384, 1)), (n.to_ne_bytes().to_vec(), vec![99]));
            } else {
                let received = &rig.verbs_poll(recv_cq, 1)[0];
                assert_eq!((received.status, received.wr_id, received.byte_len), (0, n, 70));
                assert_eq!(rig.read(4096, 70), [n as u8; 70]);
            }
        }
        // Control segment, XRC segment, for an atomic the address and the operands, data.
        let end = block + if atomic { 2 } else { 1 };
        same(wqes(&at[0], block, end), wqes(&at[1], block, end));
        block = end;
    }
    rig.destroy(&[senders, targets].concat(), &srqs.map(|s| s.0), &[cqs[0], cqs[1], recv_cq]);
    // SAFETY: a live domain that no object uses any more.
    assert_eq!(unsafe { table.close_xrcd.expect("close_xrcd")(xrcd) }, 0);
}

/// Masked atomics, which no verb of libmlx5 posts, do what their operands say; a NOP completes
/// behind the requests before it. Both meet the end of the ring.
pub(crate) fn masked_atomics_and_nops(rig: &Rig) {
    let cq_raw = rig.cq(127, false);
    let qps = [0; 2].map(|_| rig.qp(cq_raw, cq_raw, std::ptr::null_mut()));
    rig.connect(qps[0], qps[1]);
    let (mut sq, mut cq) = (take_sq(qps[0]), take_cq(cq_raw));
    let at = Remote { addr: rig.addr(4096), rkey: rig.rkey() };
    let result = DataSeg::new(rig.addr(0), 8, rig.lkey());
    let word = |offset: usize| u64::from_ne_bytes(rig.read(offset, 8).try_into().unwrap());
    for n in 0..200u64 {
        let old = 0x1111_2222_3333_00ff + (n << 8);
        let add = Masked::FetchAdd64 { add: 0x0000_0001_0000_0001, boundary: 0x80 };
        let swap = |compare| Masked::CompareSwap64 {
            compare,
            compare_mask: 0xffff_0000_0000_0000,
            swap: 0x5555_5555_5555_5555,
            swap_mask: 0xff00,
        };
        let (masked, op, after) = match n % 3 {
            // The carry of the lowest byte stops at bit 7.
            0 => (add, RequestOp::MaskedFetchAdd, (old & !0xff) + 0x1_0000_0000),
            1 => (swap(0x1111 << 48), RequestOp::MaskedCompareSwap, old & !0xff00 | 0x5500),
            _ => (swap(0x2222 << 48), RequestOp::MaskedCompareSwap, old),
        };
        rig.write(4096, &old.to_ne_bytes());
        rig.write(0, &[0; 8]);
        sq.post(Wr::masked_atomic(at, masked, result), n).expect("room");
        let completion = next(&mut cq);
        let counter = completion.send_counter().expect("a send");
        match completion {
            Completion::Send(send) => assert_eq!(send.op, op),
            Completion::SendScattered(scattered) => {
                assert_eq!(scattered.send.op, op);
                // SAFETY: inside the rig's buffer.
                assert_eq!(unsafe { cq.deliver_result(&scattered, sq.segments(counter)) }, 8);
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(sq.complete(counter).expect("posted").cookie, n);
        assert_eq!((word(0), word(4096)), (old, after), "request {n}");
        sq.post(Wr::nop(), n + 1000).expect("room");
        assert_eq!(finish(&mut cq, &mut sq), (RequestOp::Nop, n + 1000));
    }
    rig.destroy(&qps, &[], &[cq_raw]);
}

/// A message invalidates a window of the receiver, whose completion names the key.
pub(crate) fn invalidating_sends(rig: &Rig) {
    let cqs = [0; 2].map(|_| rig.cq(127, false));
    let [a, b] = cqs.map(|cq| {
        rig.qp_with(cq, cq, std::ptr::null_mut(), |init| {
            (init.cap.max_recv_wr, init.cap.max_recv_sge) = (16, 1);
        })
        .0
    });
    rig.connect(a, b);
    let (mut sq, mut cq) = (take_sq(a), take_cq(cqs[0]));
    let (mut peer_sq, mut rq, mut peer_cq) = (take_sq(b), take_rq(b), take_cq(cqs[1]));
    for n in 0..100u32 {
        // SAFETY: verbs calls with live objects.
        let window =
            unsafe { (*rig.context).ops.alloc_mw.expect("windows")(rig.pd, ibv_mw_type::IBV_MW_TYPE_2) };
        assert!(!window.is_null());
        // SAFETY: a live window.
        let old = unsafe { (*window).rkey };
        let new = old & !0xff | (old + 1) & 0xff;
        let bind = Bind {
            rkey: old,
            new_rkey: new,
            type2: true,
            lkey: rig.lkey(),
            addr: rig.addr(4096),
            len: 512,
            access: ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0,
        };
        peer_sq.post(Wr::bind(bind), 1).expect("room");
        finish(&mut peer_cq, &mut peer_sq);
        sq.post(Wr::write(Remote { addr: rig.addr(4096), rkey: new }, Inline(&[n as u8; 8])), 2)
            .expect("room");
        assert_eq!(finish(&mut cq, &mut sq), (RequestOp::Write, 2));
        rq.post(&[DataSeg::new(rig.addr(8192), 64, rig.lkey())], 3).expect("room");
        sq.post(Wr::send_inval(new, Inline(&[7; 40])), 4).expect("room");
        assert_eq!(finish(&mut cq, &mut sq), (RequestOp::SendInval, 4));
        let Completion::Recv(received) = next(&mut peer_cq) else { panic!("a receive") };
        assert_eq!((received.op, received.invalidated_rkey()), (RecvOp::SendInval, Some(new)));
        assert_eq!(rq.complete(received.slot.0), Ok(3));
        // SAFETY: a live window.
        assert_eq!(unsafe { (*rig.context).ops.dealloc_mw.expect("windows")(window) }, 0);
    }
    rig.destroy(&[a, b], &[], &cqs);
}

/// A list whose second request is refused posts and rings the first, with its own control segment.
/// The refused request does not use up the fence that is due after a key change.
pub(crate) fn lists_cut_short(rig: &Rig) {
    use ibv_wr_opcode::*;
    let cq_raw = rig.cq(127, false);
    let qps = [0; 2].map(|_| {
        let qp = rig.qp_with(cq_raw, cq_raw, std::ptr::null_mut(), |init| init.sq_sig_all = 0);
        qp.0
    });
    rig.connect(qps[0], qps[1]);
    let at = describe(qps[0]);
    let (mut sq, mut cq) = (take_sq(qps[0]), take_cq(cq_raw));
    let sge = |length: u32| ibv_sge { addr: rig.addr(0), length, lkey: rig.lkey() };
    let write = |length: u32, flags: u32| {
        let mut request = verbs_request(IBV_WR_RDMA_WRITE, sge(length));
        request.wr.send_flags |= flags;
        request.wr.wr.rdma = rdma_t { remote_addr: rig.addr(4096), rkey: rig.rkey() };
        request
    };
    let inline = ibv_send_flags::IBV_SEND_INLINE.0;
    let too_long = sq.caps().max_inline + 1;
    let fence_of = |block: u32| {
        let offset = (block % at.sq.wqe_cnt) as usize * 64 + 11;
        // SAFETY: inside the ring that libmlx5 described.
        unsafe { at.sq.buf.cast::<u8>().add(offset).read() & 0xe0 }
    };
    let mut block = 0;
    for n in 1..100u8 {
        rig.write(0, &[n; 8]);
        let mut list = [write(8, inline), write(too_long, inline), write(8, inline)];
        let wrs = link(&mut list);
        // SAFETY: the chain and all memory that it names live through the call.
        let refused = sq.post_send_wrs(unsafe { SendWrs::new(wrs.as_ptr()) }).unwrap_err();
        assert_eq!((refused.posted, refused.error.errno()), (1, libc::ENOMEM));
        assert_eq!(finish(&mut cq, &mut sq).0, RequestOp::Write);
        assert_eq!((rig.read(4096, 8), fence_of(block)), (vec![n; 8], 0));
        block += 1;

        // A key change, alone; a list whose only request is refused; a request of two kinds that is
        // refused; then a request that is posted.
        let mut list = [verbs_request(IBV_WR_LOCAL_INV, sge(0))];
        list[0].wr.send_flags = 0;
        list[0].sges.clear();
        // A key that names nothing would fail, so a window is bound and invalidated.
        // SAFETY: verbs calls with live objects.
        let window =
            unsafe { (*rig.context).ops.alloc_mw.expect("windows")(rig.pd, ibv_mw_type::IBV_MW_TYPE_2) };
        // SAFETY: a live window.
        let old = unsafe { (*window).rkey };
        let new = old & !0xff | (old + 1) & 0xff;
        let (addr, len) = (rig.addr(8192), 64);
        let access = ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0;
        let bind = Bind { rkey: old, new_rkey: new, type2: true, lkey: rig.lkey(), addr, len, access };
        sq.post(Wr::bind(bind), 5).expect("room");
        block += 3;
        list[0].wr.imm_data_invalidated_rkey_union.invalidated_rkey = new;
        let wrs = link(&mut list);
        // SAFETY: as above.
        assert_eq!(sq.post_send_wrs(unsafe { SendWrs::new(wrs.as_ptr()) }), Ok(1));
        assert_eq!(fence_of(block), 0x20, "the request behind the bind");
        block += 2;
        let mut list = [write(too_long, inline)];
        let wrs = link(&mut list);
        // SAFETY: as above.
        let refused = sq.post_send_wrs(unsafe { SendWrs::new(wrs.as_ptr()) }).unwrap_err();
        assert_eq!(refused.posted, 0);
        let to = Remote { addr: rig.addr(4096), rkey: rig.rkey() };
        let bytes = [0; 400];
        assert_eq!(sq.post(Wr::write(to, Inline(&bytes)), 6), Err(SendError::TooLong));
        let mut list = [write(8, 0)];
        let wrs = link(&mut list);
        // SAFETY: as above.
        assert_eq!(sq.post_send_wrs(unsafe { SendWrs::new(wrs.as_ptr()) }), Ok(1));
        assert_eq!(fence_of(block), 0x20, "the request behind the invalidation");
        block += 1;
        assert_eq!(finish(&mut cq, &mut sq).0, RequestOp::Write);
        assert_eq!(sq.posted(), 0);
        // SAFETY: a live window.
        assert_eq!(unsafe { (*rig.context).ops.dealloc_mw.expect("windows")(window) }, 0);
    }
    rig.destroy(&qps, &[], &[cq_raw]);
}

/// A QP made for sends only has WQEs of one block. libmlx5 posts a key change of two blocks to it
/// all the same, which can overwrite a request that is not executed yet. Here it is refused.
pub(crate) fn one_block_queues(rig: &Rig) {
    const SEND_ONLY: u64 = 1 << 3;
    let cq_raw = rig.cq(127, false);
    let qps = [0; 2].map(|_| {
        rig.qp_ex(|init| {
            (init.qp_type, init.comp_mask, init.send_ops_flags) =
                (ibv_qp_type::IBV_QPT_RC, 1 | 64, SEND_ONLY);
            (init.send_cq, init.recv_cq) = (cq_raw, cq_raw);
            (init.cap.max_recv_wr, init.cap.max_recv_sge) = (32, 1);
        })
    });
    rig.connect(qps[0], qps[1]);
    let (mut sq, mut rq, mut cq) = (take_sq(qps[0]), take_rq(qps[1]), take_cq(cq_raw));
    assert_eq!(sq.max_units(), 4);
    let max = sq.max_requests();
    assert_eq!(sq.post(Wr::local_inval(rig.rkey()), 0), Err(SendError::TooLong));
    let buffer = DataSeg::new(rig.addr(4096), 64, rig.lkey());
    for round in 0..20 {
        (0..max).for_each(|n| rq.post(&[buffer], n.into()).expect("room"));
        (0..max - 1).for_each(|n| sq.post(Wr::send(Inline(&[1; 40])), n.into()).expect("room"));
        assert_eq!(sq.post(Wr::local_inval(rig.rkey()), 0), Err(SendError::TooLong));
        sq.post(Wr::send(Inline(&[1; 40])).signalled(), round).expect("room");
        assert_eq!(sq.post(Wr::send(()), 0), Err(SendError::Full));
        let (mut sent, mut received) = (false, 0);
        while !sent || received < max {
            let completion = next(&mut cq);
            match completion.send_counter() {
                Some(counter) => {
                    let released = sq.complete(counter).expect("posted");
                    sent = (released.cookie, released.requests) == (round, max);
                }
                None => {
                    rq.complete(completion.slot().expect("a receive").0).expect("posted");
                    received += 1;
                }
            }
        }
    }
    rig.destroy(&qps, &[], &[cq_raw]);
}

/// CQs of 128-byte entries: the fields are in their second half. The result of a read of up to 64
/// bytes is in the first half, and goes to three segments.
pub(crate) fn wide_entries(rig: &Rig) {
    // SAFETY: the tests of this program run one after the other.
    unsafe { std::env::set_var("MLX5_CQE_SIZE", "128") };
    let cq_raw = rig.cq(63, false);
    // SAFETY: as above.
    unsafe { std::env::remove_var("MLX5_CQE_SIZE") };
    let qps = [0; 2].map(|_| {
        rig.qp_with(cq_raw, cq_raw, std::ptr::null_mut(), |init| {
            (init.cap.max_recv_wr, init.cap.max_recv_sge) = (16, 1);
        })
        .0
    });
    rig.connect(qps[0], qps[1]);
    // SAFETY: a live CQ.
    let layout = unsafe { mlx5_direct::CqLayout::from_verbs(cq_raw) }.expect("a fresh CQ");
    assert_eq!(layout.cqe_bytes(), 128);
    let (mut sq, mut rq, mut cq) = (take_sq(qps[0]), take_rq(qps[1]), Cq::new(layout));
    let mut in_entry = 0;
    for n in 0..300u32 {
        let len = 1 + n % 100;
        let bytes: Vec<u8> = (0..len).map(|k| (k * 3 + n) as u8).collect();
        rig.write(4096, &bytes);
        rig.write(8192, &[0; 128]);
        let into = DataSeg::new(rig.addr(8192), 128, rig.lkey());
        if n % 2 == 0 {
            let from = Remote { addr: rig.addr(4096), rkey: rig.rkey() };
            // Three segments, of which some are empty; a WQE of two blocks, which meets the end of
            // the ring in every place.
            let (first, second) = (len / 3, len / 2);
            let segs = [(0, first), (first, second), (first + second, len - first - second)]
                .map(|(at, len)| DataSeg::new(into.addr() + u64::from(at), len, rig.lkey()));
            sq.post(Wr::read(from, &segs[..]), n.into()).expect("room");
        } else {
            rq.post(&[into], n.into()).expect("room");
            sq.post(Wr::send(DataSeg::new(rig.addr(4096), len, rig.lkey())), n.into()).expect("room");
        }
        for _ in 0..1 + n % 2 {
            let completion = next(&mut cq);
            match completion {
                Completion::Send(_) | Completion::Recv(_) => {}
                Completion::SendScattered(s) => {
                    in_entry += 1;
                    // SAFETY: inside the rig's buffer.
                    unsafe { cq.deliver_result(&s, sq.segments(s.send.wqe_counter)) };
                }
                Completion::RecvScattered(s) => {
                    in_entry += 1;
                    // SAFETY: inside the rig's buffer.
                    unsafe { cq.deliver(&s, rq.segments(s.receive.slot.0)) };
                }
                other => panic!("{other:?}"),
            }
            match completion.send_counter() {
                Some(counter) => assert_eq!(sq.complete(counter).map(|r| r.cookie), Ok(n.into())),
                None => assert_eq!(rq.complete(completion.slot().unwrap().0), Ok(n.into())),
            }
        }
        assert_eq!(rig.read(8192, len as usize), bytes, "request {n}");
    }
    println!("{in_entry} payloads in their entry");
    assert!(in_entry > 150);
    rig.destroy(&qps, &[], &[cq_raw]);
}
