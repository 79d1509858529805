//! What send and receive queues do on a device: one CQ for both, results inside of CQEs, errors and
//! resets, memory windows, registers that several queues share.

use super::sends::{describe, same, take_rq, take_sq, wqes};
use super::{
    common::{Rng, complete_each},
    next,
    rig::Rig,
    take_cq,
};
use doorbell_sys::*;
use mlx5_direct::{
    Completion, Cq, DataSeg, Rq, Sq, Syndrome, Wr,
    wr::{Bind, Inline, Remote},
};
use std::{
    mem::zeroed,
    time::{Duration, Instant},
};

/// Two connected QPs with one CQ for all their completions, all driven by this crate.
struct Both {
    cq_raw: *mut ibv_cq,
    qps: [*mut ibv_qp; 2],
    cq: Cq,
    sqs: [Sq; 2],
    rqs: [Rq; 2],
}

fn both(rig: &Rig, sig_all: i32) -> Both {
    let cq_raw = rig.cq(511, false);
    let qps = [0; 2].map(|_| {
        rig.qp_with(cq_raw, cq_raw, std::ptr::null_mut(), |init| {
            (init.cap.max_recv_wr, init.cap.max_recv_sge, init.sq_sig_all) = (64, 3, sig_all);
        })
        .0
    });
    let (sqs, rqs) = (qps.map(take_sq), qps.map(take_rq));
    let cq = take_cq(cq_raw);
    rig.connect(qps[0], qps[1]);
    Both { cq_raw, qps, cq, sqs, rqs }
}

/// Messages of every size in both directions, through receive queues of the QPs and one CQ, into
/// lists of segments. The payload of small messages comes in the entry and is delivered from there.
pub(crate) fn both_ways(rig: &Rig) {
    let Both { cq_raw, qps, mut cq, mut sqs, mut rqs } = both(rig, 0);
    let mut rng = Rng(99);
    let place = |side: usize, n: u64| (1 + side) * (128 << 10) + n as usize % 64 * 1024;
    let mut posted = [0u64; 2];
    let mut sent = [0u64; 2];
    let mut released = [0u64; 2];
    let mut received = [0u64; 2];
    let (mut scattered, mut unsignalled) = (0, 0);
    let text = |side: usize, n: u64| -> Vec<u8> {
        let len = 1 + (n * 37 + side as u64) % if n.is_multiple_of(3) { 900 } else { 60 };
        (0..len).map(|k| (k * 5 + n + side as u64) as u8).collect()
    };
    const MESSAGES: u64 = 6000;
    while received != [MESSAGES; 2] {
        for side in 0..2 {
            while posted[side] < MESSAGES && rqs[side].free() > 0 {
                let addr = rig.addr(place(side, posted[side]));
                // One, two or three segments. An empty segment among them is left out.
                let cut = 1 + rng.below(40) as u32;
                let segs = [
                    DataSeg::new(addr, cut, rig.lkey()),
                    DataSeg::new(addr, 0, rig.lkey()),
                    DataSeg::new(addr + u64::from(cut), 1024 - cut, rig.lkey()),
                ];
                rqs[side].post(&segs, posted[side]).expect("room");
                posted[side] += 1;
            }
            let to = 1 - side;
            if sent[side] < MESSAGES.min(posted[to]) && sqs[side].free() > 1 {
                let n = sent[side];
                let bytes = text(side, n);
                let signalled = n % 4 == 3 || n + 1 == MESSAGES || rng.below(3) == 0;
                unsignalled += u64::from(!signalled);
                if bytes.len() <= 60 && n % 2 == 0 {
                    let request = Wr::send(Inline(&bytes));
                    let request = if signalled { request.signalled() } else { request };
                    sqs[side].post(request, n).expect("room");
                } else {
                    let from = (3 + side) * (128 << 10) + (n % 64) as usize * 1024;
                    rig.write(from, &bytes);
                    let seg = DataSeg::new(rig.addr(from), bytes.len() as u32, rig.lkey());
                    let request = Wr::send(seg);
                    let request = if signalled { request.signalled() } else { request };
                    sqs[side].post(request, n).expect("room");
                }
                sent[side] += 1;
            }
        }
        while let Some(completion) = cq.poll().expect("known entries") {
            let side = usize::from(completion.qpn() == rig.qpn(qps[1]));
            if let Some(counter) = completion.send_counter() {
                assert!(matches!(completion, Completion::Send(_)), "{completion:?}");
                complete_each(&mut sqs[side], counter, |cookie| {
                    assert_eq!(cookie, released[side], "released in order");
                    released[side] += 1;
                })
                .expect("posted");
                continue;
            }
            let number = completion.slot().expect("a receive").0;
            let len = match completion {
                Completion::Recv(r) => r.byte_count,
                Completion::RecvScattered(s) => {
                    scattered += 1;
                    // SAFETY: inside the rig's buffer.
                    unsafe { cq.deliver(&s, rqs[side].segments(number)) as u32 }
                }
                other => panic!("{other:?}"),
            };
            let n = received[side];
            assert_eq!(rqs[side].complete(number), Ok(n));
            let expected = text(1 - side, n);
            assert_eq!(rig.read(place(side, n), len as usize), expected, "message {n} to side {side}");
            received[side] += 1;
        }
    }
    println!("{scattered} messages in their entry, {unsignalled} sends unsignalled");
    assert!(scattered > 1000 && unsignalled > 1000);
    rig.destroy(&qps, &[], &[cq_raw]);
}

/// Results of reads and atomics that come in their entries are written to the segments, also if the
/// WQE wraps.
pub(crate) fn scattered_results(rig: &Rig) {
    let Both { cq_raw, qps, mut cq, mut sqs, .. } = both(rig, 1);
    let sq = &mut sqs[0];
    let mut in_entry = 0;
    for n in 0..3000u64 {
        let len = 1 + n % 50;
        let bytes: Vec<u8> = (0..len).map(|k| (k * 3 + n) as u8).collect();
        rig.write(4096, &bytes);
        rig.write(8192, &[0; 256]);
        let cut = (n % 7).min(len - 1) as u32;
        let segs = [
            DataSeg::new(rig.addr(8192), cut, rig.lkey()),
            DataSeg::new(rig.addr(8192 + cut as usize), len as u32 - cut, rig.lkey()),
        ];
        let remote = Remote { addr: rig.addr(4096), rkey: rig.rkey() };
        if n % 5 == 4 {
            rig.write(4096, &n.to_ne_bytes());
            sq.post(Wr::fetch_add(remote, 3, DataSeg::new(rig.addr(8192), 16, rig.lkey())), n).expect("room");
        } else {
            // A QP that was made for one segment takes one segment only.
            let whole = DataSeg::new(rig.addr(8192), len as u32, rig.lkey());
            if n % 2 == 0 {
                sq.post(Wr::read(remote, whole), n).expect("room");
            } else {
                sq.post(Wr::read(remote, &segs[..]), n).expect("room");
            }
        }
        let completion = next(&mut cq);
        let counter = completion.send_counter().expect("a send");
        if let Completion::SendScattered(result) = completion {
            in_entry += 1;
            // SAFETY: inside the rig's buffer.
            unsafe { cq.deliver_result(&result, sq.segments(counter)) };
        }
        if n % 5 == 4 {
            assert_eq!(rig.read(8192, 8), n.to_ne_bytes());
            assert_eq!(rig.read(4096, 8), (n + 3).to_ne_bytes());
            assert_eq!(rig.read(8200, 8), [0; 8], "an atomic returns 8 bytes");
        } else {
            assert_eq!(rig.read(8192, len as usize), bytes, "read {n}");
        }
        assert_eq!(sq.complete(counter).expect("posted").cookie, n);
    }
    println!("{in_entry} results in their entry");
    assert!(in_entry > 500);
    rig.destroy(&qps, &[], &[cq_raw]);
}

/// An error in the middle of unsignalled requests: the failed request releases those before it, and
/// those after it are flushed one by one. After RESET the queues start again.
pub(crate) fn errors_and_reset(rig: &Rig) {
    let Both { cq_raw, qps, mut cq, mut sqs, mut rqs } = both(rig, 0);
    for round in 0..3 {
        let remote = Remote { addr: rig.addr(0), rkey: rig.rkey() };
        let data = DataSeg::new(rig.addr(4096), 64, rig.lkey());
        let wrong = Remote { addr: rig.addr(0), rkey: rig.rkey() ^ 0x5500 };
        let mut chain = sqs[0].chain();
        (0..5).for_each(|n| chain.push(Wr::write(remote, data), n).expect("room"));
        chain.push(Wr::write(wrong, data), 5).expect("room");
        (6..10).for_each(|n| chain.push(Wr::write(remote, data), n).expect("room"));
        assert_eq!(chain.ring(), 10);
        let Completion::SendError(error) = next(&mut cq) else { panic!("an error") };
        assert_eq!(error.syndrome, Syndrome::RemoteAccess);
        let mut cookies = vec![];
        assert_eq!(complete_each(&mut sqs[0], error.wqe_counter, |c| cookies.push(c)), Ok(6));
        assert_eq!(cookies, [0, 1, 2, 3, 4, 5]);
        for n in 6..10 {
            let Completion::SendError(error) = next(&mut cq) else { panic!("a flush") };
            assert_eq!(error.syndrome, Syndrome::Flushed);
            assert_eq!(sqs[0].complete(error.wqe_counter).map(|r| (r.cookie, r.requests)), Ok((n, 1)));
        }
        // In the error state a request is flushed.
        sqs[0].post(Wr::send(Inline(&[1; 8])), 77).expect("room");
        let Completion::SendError(error) = next(&mut cq) else { panic!("a flush") };
        assert_eq!(sqs[0].complete(error.wqe_counter).expect("posted").cookie, 77);
        // A key change requires a fence for the next request; RESET clears the requirement.
        sqs[0].post(Wr::local_inval(rig.rkey() ^ 0x11), 78).expect("room");
        let Completion::SendError(error) = next(&mut cq) else { panic!("a flush") };
        assert_eq!(sqs[0].complete(error.wqe_counter).expect("posted").cookie, 78);
        for (n, qp) in qps.into_iter().enumerate() {
            rig.to_reset(qp);
            sqs[n].reset();
            rqs[n].reset();
        }
        let start = Instant::now();
        while cq.poll().expect("known entries").is_some() {
            assert!(start.elapsed() < Duration::from_secs(20));
        }
        rig.connect(qps[0], qps[1]);
        rqs[1].post(&[DataSeg::new(rig.addr(8192), 64, rig.lkey())], round).expect("room");
        sqs[0].post(Wr::send(Inline(&[7; 40])).signalled(), round).expect("room");
        let (mut sent, mut got) = (false, false);
        while !(sent && got) {
            let completion = next(&mut cq);
            match completion.send_counter() {
                Some(counter) => sent = sqs[0].complete(counter).map(|r| r.cookie) == Ok(round),
                None => got = rqs[1].complete(completion.slot().expect("a receive").0) == Ok(round),
            }
        }
        assert_eq!(rig.read(8192, 40), [7; 40]);
    }
    rig.destroy(&qps, &[], &[cq_raw]);
}

/// A window is bound, written through, and invalidated; the WQEs equal those of libmlx5.
pub(crate) fn windows(rig: &Rig) {
    let cqs = [0; 2].map(|_| rig.cq(127, false));
    let qps = cqs.map(|cq| rig.qp_with(cq, cq, std::ptr::null_mut(), |init| init.cap.max_send_wr = 9).0);
    let srq = rig.srq(8, 1);
    let peers = [0, 1].map(|n| rig.qp(cqs[n], cqs[n], srq));
    (0..2).for_each(|n| rig.connect(qps[n], peers[n]));
    let at = qps.map(describe);
    let (mut sq, mut cq) = (take_sq(qps[1]), take_cq(cqs[1]));
    let mut peer = take_sq(peers[1]);
    let access = ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0 | ibv_access_flags::IBV_ACCESS_REMOTE_READ.0;
    let mut block = 0;
    // Each round takes an odd number of blocks and the rings are powers of two, so each part of a
    // key change meets the end of the ring.
    for round in 0..80u32 {
        let mut seen = vec![];
        for (twin, at) in at.iter().enumerate() {
            // SAFETY: verbs calls with live objects; requests and the memory that they name live
            // through the calls.
            unsafe {
                let alloc = (*rig.context).ops.alloc_mw.expect("windows");
                let window = alloc(rig.pd, ibv_mw_type::IBV_MW_TYPE_2);
                assert!(!window.is_null());
                let (old, new) = ((*window).rkey, (*window).rkey & !0xff | (round + 1) & 0xff);
                let (addr, len) = (rig.addr(4096), 512 + u64::from(round));
                if twin == 0 {
                    let mut wr: ibv_send_wr = zeroed();
                    (wr.opcode, wr.send_flags) =
                        (ibv_wr_opcode::IBV_WR_BIND_MW, ibv_send_flags::IBV_SEND_SIGNALED.0);
                    let bind_info =
                        ibv_mw_bind_info { mr: rig.mr, addr, length: len, mw_access_flags: access };
                    wr.bind_mw_tso_union.bind_mw = bind_mw_t { mw: window, rkey: new, bind_info };
                    assert_eq!(rig.verbs_send(qps[0], &mut [wr]), (0, 1));
                    assert_eq!(rig.verbs_poll(cqs[0], 1)[0].status, 0);
                    let mut wr: ibv_send_wr = zeroed();
                    (wr.opcode, wr.send_flags) =
                        (ibv_wr_opcode::IBV_WR_LOCAL_INV, ibv_send_flags::IBV_SEND_SIGNALED.0);
                    wr.imm_data_invalidated_rkey_union.invalidated_rkey = new;
                    // The next request carries the small fence.
                    let mut nothing: ibv_send_wr = zeroed();
                    (nothing.opcode, nothing.send_flags) =
                        (ibv_wr_opcode::IBV_WR_RDMA_WRITE, ibv_send_flags::IBV_SEND_SIGNALED.0);
                    nothing.wr.rdma = rdma_t { remote_addr: rig.addr(0), rkey: rig.rkey() };
                    assert_eq!(rig.verbs_send(qps[0], &mut [wr, nothing]), (0, 2));
                    assert!(rig.verbs_poll(cqs[0], 2).iter().all(|w| w.status == 0));
                } else {
                    let bind =
                        Bind { rkey: old, new_rkey: new, type2: true, lkey: rig.lkey(), addr, len, access };
                    sq.post(Wr::bind(bind).signalled(), 1).expect("room");
                    let Completion::Send(done) = next(&mut cq) else { panic!("bound") };
                    assert_eq!(sq.complete(done.wqe_counter).expect("posted").cookie, 1);
                    rig.write(4096, &[0; 16]);
                    let target = Remote { addr: addr + 4, rkey: new };
                    peer.post(Wr::write(target, Inline(&[9; 8])).signalled(), 5).expect("room");
                    let completion = next(&mut cq);
                    assert!(matches!(completion, Completion::Send(_)), "{completion:?}");
                    peer.complete(completion.send_counter().expect("a send")).expect("posted");
                    assert_eq!(rig.read(4100, 8), [9; 8]);
                    sq.post(Wr::local_inval(new).signalled(), 2).expect("room");
                    let nothing = Remote { addr: rig.addr(0), rkey: rig.rkey() };
                    sq.post(Wr::write(nothing, ()).signalled(), 3).expect("room");
                    for cookie in [2, 3] {
                        let Completion::Send(done) = next(&mut cq) else { panic!("done") };
                        assert_eq!(sq.complete(done.wqe_counter).expect("posted").cookie, cookie);
                    }
                }
                assert_eq!(((*rig.context).ops.dealloc_mw.expect("windows"))(window), 0);
            }
            let mut written = wqes(at, block, block + 6).1;
            // Window keys and QP numbers differ.
            for wqe in &mut written {
                if wqe[3] == 0x25 {
                    wqe[12..16].fill(0);
                    wqe[68..71].fill(0);
                }
            }
            seen.push(written);
        }
        let [theirs, ours] = [0, 1].map(|n| (block, std::mem::take(&mut seen[n])));
        same(theirs, ours);
        block += 6;
    }
    rig.destroy(&[qps, peers].concat(), &[srq], &cqs);
}

/// More QPs than a context has separate registers, posted to by four threads: QPs that share a
/// register ring it by doorbells only, and all requests of two blocks arrive whole.
pub(crate) fn shared_registers(rig: &Rig) {
    const QPS: usize = 20;
    let cq_raw = rig.cq(511, false);
    let pairs: Vec<_> = (0..QPS)
        .map(|_| {
            let pair = [0; 2].map(|_| {
                rig.qp_with(cq_raw, cq_raw, std::ptr::null_mut(), |init| init.cap.max_inline_data = 120).0
            });
            rig.connect(pair[0], pair[1]);
            pair
        })
        .collect();
    let mut cq = take_cq(cq_raw);
    let mut sqs: Vec<_> = pairs.iter().flat_map(|pair| pair.map(take_sq)).collect();
    let qps: Vec<_> = pairs.concat();
    let registers: Vec<usize> = qps.iter().map(|qp| describe(*qp).bf.reg as usize).collect();
    for (n, sq) in sqs.iter().enumerate() {
        let alone = registers.iter().filter(|r| **r == registers[n]).count() == 1;
        let takes_it = describe(qps[n]).bf.size > 0 && std::env::var_os("MLX5_SHUT_UP_BF").is_none();
        assert_eq!(sq.uses_blueflame(), alone && takes_it, "queue {n}");
    }
    // One block and several.
    const BYTES: [usize; 4] = [4, 60, 16, 100];
    let bytes_of = |n: usize, k: usize, round: u64| -> Vec<u8> {
        (0..BYTES[k]).map(|byte| (byte + k + round as usize + n) as u8).collect()
    };
    for round in 0..200u64 {
        // Four threads post at the same time; queues of one register are with different threads.
        let (addr, rkey) = (rig.addr(0), rig.rkey());
        let mut of_threads = [(); 4].map(|()| vec![]);
        for (n, sq) in sqs.iter_mut().enumerate() {
            of_threads[n * 4 / (2 * QPS)].push((n, sq));
        }
        std::thread::scope(|scope| {
            for queues in of_threads {
                scope.spawn(move || {
                    for (n, sq) in queues {
                        for (k, at) in (0..4).zip((addr + n as u64 * 512..).step_by(128)) {
                            let bytes = bytes_of(n, k, round);
                            let wr = Wr::write(Remote { addr: at, rkey }, Inline(&bytes)).signalled();
                            let cookie = round * 4 + k as u64;
                            let fast = k % 2 == 1
                                && (sq.post_long_fast(&wr, cookie) || sq.post_long_by_doorbell(&wr, cookie));
                            assert!(fast || sq.post(wr, cookie).is_ok(), "room");
                        }
                    }
                });
            }
        });
        let mut completed = [0; 2 * QPS];
        for _ in 0..4 * sqs.len() {
            let completion = next(&mut cq);
            assert!(matches!(completion, Completion::Send(_)), "{completion:?}");
            let n = qps.iter().position(|qp| rig.qpn(*qp) == completion.qpn()).expect("one of ours");
            let released = sqs[n].complete(completion.send_counter().expect("a send")).expect("posted");
            let k = completed[n];
            assert_eq!((released.cookie, released.requests), (round * 4 + k as u64, 1), "in order");
            assert_eq!(rig.read(n * 512 + k * 128, BYTES[k]), bytes_of(n, k, round));
            completed[n] += 1;
        }
    }
    drop(sqs);
    rig.destroy(&qps, &[], &[cq_raw]);
}
