//! Send and receive queues of QPs on a device, compared with libmlx5 on a second QP: which queues
//! are taken over, WQEs, refused work requests, datagrams.

use super::{common::Rng, next, rig::Rig, take_cq};
use doorbell_sys::*;
use mlx5_direct::{
    Completion, DataSeg, DvError, LayoutError, Rq, SendWrs, Sq, Wr,
    dv::abi,
    wr::{AddressVector, Inline, Remote},
};
use std::mem::zeroed;

/// SAFETY for all uses: the queue outlives the value, verbs no longer touches it, and the rig's
/// buffer stays registered.
pub(crate) fn take_sq(qp: *mut ibv_qp) -> Sq {
    // SAFETY: see above.
    unsafe { Sq::from_verbs(qp) }.expect("a fresh QP")
}

pub(crate) fn take_rq(qp: *mut ibv_qp) -> Rq {
    // SAFETY: as for `take_sq`.
    unsafe { Rq::from_verbs(qp) }.expect("a fresh QP")
}

/// The address of the send queue, as libmlx5 reports it.
pub(crate) fn describe(qp: *mut ibv_qp) -> abi::DvQp {
    // SAFETY: the function and structs of mlx5dv.h; a live QP.
    unsafe {
        let lib = libloading::Library::new("libmlx5.so.1").expect("libmlx5");
        let init: libloading::Symbol<'_, unsafe extern "C" fn(*mut abi::DvObj, u64) -> i32> =
            lib.get(b"mlx5dv_init_obj\0").expect("mlx5dv_init_obj");
        let (mut obj, mut out): (abi::DvObj, abi::DvQp) = (zeroed(), zeroed());
        obj.qp = abi::DvPair { object: qp.cast(), out: (&raw mut out).cast() };
        assert_eq!(init(&mut obj, abi::OBJ_QP), 0);
        out
    }
}

/// The send record, and the bytes that the device reads of the WQEs in blocks `first..end`, without
/// QP number and padding.
pub(crate) fn wqes(at: &abi::DvQp, mut first: u32, end: u32) -> (u32, Vec<Vec<u8>>) {
    let count = at.sq.wqe_cnt;
    let byte = |block: u32, n: usize| {
        let offset = ((block % count) as usize * 64 + n) % (count as usize * 64);
        // SAFETY: inside the ring that libmlx5 described.
        unsafe { at.sq.buf.cast::<u8>().add(offset).read_volatile() }
    };
    let mut found = vec![];
    while first != end {
        let units = usize::from(byte(first, 7) & 0x3f);
        let mut wqe: Vec<u8> = (0..units * 16).map(|n| byte(first, n)).collect();
        wqe[4..7].fill(0);
        // An inline segment is the last: header, bytes, and padding that the device does not read.
        for unit in 1..units {
            let header = u32::from_be_bytes(wqe[unit * 16..unit * 16 + 4].try_into().unwrap());
            let len = (header & 0x3ff) as usize;
            let is_inline = header & !0x3ff == 0x8000_0000 && (unit * 16 + 4 + len).div_ceil(16) == units;
            if is_inline && len > 0 {
                wqe.truncate(unit * 16 + 4 + len);
                break;
            }
        }
        // Fields that the device does not read, and that libmlx5 leaves as an earlier WQE had them:
        // the second operand of fetch-and-add, the reserved fields of key changes, and the rights
        // and the range of key changes that bind nothing.
        match wqe[3] {
            0x12 => wqe[40..48].fill(0),
            0x25 => {
                let unread = [(65, 66), (67, 68), (72, 80), (96, 128), (144, 192)];
                let unbound = if units == 8 { [(66, 67), (80, 96)] } else { [(0, 0); 2] };
                for (from, to) in unread.into_iter().chain(unbound) {
                    let len = wqe.len();
                    wqe[from.min(len)..to.min(len)].fill(0);
                }
            }
            _ => {}
        }
        first = first.wrapping_add(units.div_ceil(4) as u32);
        found.push(wqe);
    }
    // SAFETY: the second word of a live QP's record.
    (u32::from_be(unsafe { at.dbrec.add(1).read_volatile() }), found)
}

/// Panics with the first WQE that differs, in hexadecimal.
pub(crate) fn same(theirs: (u32, Vec<Vec<u8>>), ours: (u32, Vec<Vec<u8>>)) {
    assert_eq!((theirs.0, theirs.1.len()), (ours.0, ours.1.len()), "records and WQEs");
    for (theirs, ours) in theirs.1.iter().zip(&ours.1) {
        assert!(theirs == ours, "libmlx5: {theirs:02x?}\n here:   {ours:02x?}");
    }
}

/// A request for both queues.
pub(crate) struct Request {
    pub(crate) wr: ibv_send_wr,
    pub(crate) sges: Vec<ibv_sge>,
    pub(crate) receives: bool,
}

/// Requests read from one area, the peer's memory is a second area, and results go to a third. The
/// areas are separate because inline data is read when a request is posted, which may be before or
/// after an earlier request has its result. Each result has a place of its own, because results
/// that come in their entries are written late.
const AREA: usize = 28 << 10;

const REMOTE: usize = 4 << 10;

const LANDING: usize = 8 << 10;

/// Any request that an RC QP takes, on the first `AREA` bytes of the buffer.
fn random_request(rig: &Rig, rng: &mut Rng, cap: &ibv_qp_cap, k: usize) -> Request {
    use ibv_wr_opcode::*;
    // SAFETY: integers and pointers only.
    let mut wr: ibv_send_wr = unsafe { zeroed() };
    wr.opcode = [
        IBV_WR_SEND,
        IBV_WR_SEND_WITH_IMM,
        IBV_WR_RDMA_WRITE,
        IBV_WR_RDMA_WRITE_WITH_IMM,
        IBV_WR_RDMA_READ,
        IBV_WR_ATOMIC_CMP_AND_SWP,
        IBV_WR_ATOMIC_FETCH_AND_ADD,
    ][rng.below(7) as usize];
    let atomic = matches!(wr.opcode, IBV_WR_ATOMIC_CMP_AND_SWP | IBV_WR_ATOMIC_FETCH_AND_ADD);
    let reads = wr.opcode == IBV_WR_RDMA_READ || atomic;
    let flag = |flag: ibv_send_flags, yes: bool| if yes { flag.0 } else { 0 };
    let inline = !reads && rng.below(2) == 0;
    wr.send_flags = flag(ibv_send_flags::IBV_SEND_SIGNALED, rng.below(3) == 0)
        | flag(ibv_send_flags::IBV_SEND_SOLICITED, rng.below(4) == 0)
        | flag(ibv_send_flags::IBV_SEND_FENCE, rng.below(5) == 0)
        | flag(ibv_send_flags::IBV_SEND_INLINE, inline);
    let segments = if atomic { 1 } else { rng.below(u64::from(cap.max_send_sge) + 1) };
    let mut landed = 0;
    let mut left = if inline { u64::from(cap.max_inline_data) } else { 900 };
    let sges = (0..segments)
        .map(|_| {
            // A few segments have length 0.
            let most = if rng.below(4) == 0 { 0 } else { left };
            let length = if atomic { 8 + 8 * rng.below(2) } else { rng.below(most + 1) };
            left -= length.min(left);
            let offset = match reads {
                true => (LANDING + k * 1024) as u64 + landed,
                false => 8 * rng.below((REMOTE as u64 - 1024) / 8),
            };
            landed += length;
            ibv_sge { addr: rig.addr(offset as usize), length: length as u32, lkey: rig.lkey() }
        })
        .collect();
    let remote = rig.addr(REMOTE + 8 * rng.below((LANDING - REMOTE - 1024) as u64 / 8) as usize);
    wr.imm_data_invalidated_rkey_union.imm_data = rng.next() as u32;
    if atomic {
        // The comparison succeeds sometimes: the area starts as zeros.
        let (compare_add, swap) = (rng.below(2), rng.next());
        wr.wr.atomic = atomic_t { remote_addr: remote, compare_add, swap, rkey: rig.rkey() };
    } else {
        wr.wr.rdma = rdma_t { remote_addr: remote, rkey: rig.rkey() };
    }
    let receives = matches!(wr.opcode, IBV_WR_SEND | IBV_WR_SEND_WITH_IMM | IBV_WR_RDMA_WRITE_WITH_IMM);
    Request { wr, sges, receives }
}

pub(crate) fn link(requests: &mut [Request]) -> Vec<ibv_send_wr> {
    let mut wrs: Vec<ibv_send_wr> = requests
        .iter_mut()
        .map(|r| {
            // SAFETY: a copy of integers and pointers.
            let mut wr = unsafe { std::ptr::read(&r.wr) };
            (wr.sg_list, wr.num_sge) = (r.sges.as_mut_ptr(), r.sges.len() as i32);
            wr
        })
        .collect();
    for n in 1..wrs.len() {
        wrs[n - 1].next = &raw mut wrs[n];
    }
    wrs
}

/// Posts the same request by the methods of this crate, if they have it in this form.
fn post_natively(sq: &mut Sq, request: &Request) -> bool {
    use ibv_wr_opcode::*;
    let Request { wr, sges, .. } = request;
    let has = |flag: ibv_send_flags| wr.send_flags & flag.0 != 0;
    let segs: Vec<_> = sges.iter().map(|s| DataSeg::new(s.addr, s.length, s.lkey)).collect();
    let bytes: Vec<u8> = if has(ibv_send_flags::IBV_SEND_INLINE) {
        // SAFETY: inside the rig's buffer.
        let piece =
            |s: &ibv_sge| unsafe { std::slice::from_raw_parts(s.addr as *const u8, s.length as usize) };
        sges.iter().flat_map(piece).copied().collect()
    } else {
        vec![]
    };
    // SAFETY: integers, whichever union member was set.
    let (rdma, atomic, imm) =
        unsafe { (wr.wr.rdma, wr.wr.atomic, u32::from_be(wr.imm_data_invalidated_rkey_union.imm_data)) };
    let to = Remote { addr: rdma.remote_addr, rkey: rdma.rkey };
    let at = Remote { addr: atomic.remote_addr, rkey: atomic.rkey };
    macro_rules! post {
        ($request:expr) => {{
            let mut request = $request;
            if has(ibv_send_flags::IBV_SEND_SIGNALED) {
                request = request.signalled();
            }
            if has(ibv_send_flags::IBV_SEND_SOLICITED) {
                request = request.solicited();
            }
            if has(ibv_send_flags::IBV_SEND_FENCE) {
                request = request.fenced();
            }
            sq.post(request, wr.wr_id).expect("room")
        }};
    }
    macro_rules! with_data {
        ($make:expr) => {
            if has(ibv_send_flags::IBV_SEND_INLINE) {
                let make = $make;
                post!(make(Inline(&bytes)))
            } else if segs.len() == 1 {
                let make = $make;
                post!(make(segs[0]))
            } else {
                let make = $make;
                post!(make(&segs[..]))
            }
        };
    }
    match wr.opcode {
        IBV_WR_SEND => with_data!(|d| Wr::send(d)),
        IBV_WR_SEND_WITH_IMM => with_data!(|d| Wr::send_imm(imm, d)),
        IBV_WR_RDMA_WRITE => with_data!(|d| Wr::write(to, d)),
        IBV_WR_RDMA_WRITE_WITH_IMM => with_data!(|d| Wr::write_imm(to, imm, d)),
        IBV_WR_RDMA_READ => post!(Wr::read(to, &segs[..])),
        IBV_WR_ATOMIC_CMP_AND_SWP => {
            post!(Wr::compare_swap(at, atomic.compare_add, atomic.swap, segs[0]));
        }
        _ => post!(Wr::fetch_add(at, atomic.compare_add, segs[0])),
    }
    true
}

/// Two QPs get the same requests, one through `ibv_post_send` and one through this crate. WQEs,
/// records, completions and memory are the same.
pub(crate) fn twins(rig: &Rig) {
    for (sge, inline, requests, sig_all) in [(1, 0, 64, 0), (4, 100, 33, 0), (9, 300, 128, 1), (2, 220, 7, 0)]
    {
        let mut rng = Rng(u64::from(sge * 7 + inline + requests));
        let peer_cq = rig.cq(511, false);
        let srq = rig.srq(255, 1);
        let cqs = [0; 2].map(|_| rig.cq(511, false));
        let mut cap: ibv_qp_cap = ibv_qp_cap {
            max_send_wr: requests,
            max_recv_wr: 0,
            max_send_sge: sge,
            max_recv_sge: 0,
            max_inline_data: inline,
        };
        let mut granted = vec![];
        let senders = cqs.map(|cq| {
            let (qp, got) = rig.qp_with(cq, peer_cq, srq, |init| {
                (init.cap, init.sq_sig_all) = (cap, sig_all);
            });
            granted.push(got);
            qp
        });
        cap = granted[0];
        let peers = [0; 2].map(|_| rig.qp(peer_cq, peer_cq, srq));
        (0..2).for_each(|n| rig.connect(senders[n], peers[n]));
        let at = senders.map(describe);
        let mut sq = take_sq(senders[1]);
        let mut cq = take_cq(cqs[1]);
        assert_eq!(sq.caps().max_requests, cap.max_send_wr);
        assert_eq!((sq.caps().max_inline, sq.caps().max_segments), (cap.max_inline_data, cap.max_send_sge));
        let (mut blocks, mut executed) = (0u32, 0);
        // Enough requests to wrap the record at 65,536 in one case, and to go around the ring often
        // in the others.
        let enough = if requests == 128 { 70_000 } else { 9000 };
        while blocks < enough {
            let n = 1 + rng.below(u64::from(cap.max_send_wr.min(20))) as usize;
            let mut batch: Vec<_> = (0..n).map(|k| random_request(rig, &mut rng, &cap, k)).collect();
            for (k, r) in batch.iter_mut().enumerate() {
                r.wr.wr_id = u64::from(blocks) << 8 | k as u64;
            }
            // The last request is signalled, so that all are released.
            batch[n - 1].wr.send_flags |= ibv_send_flags::IBV_SEND_SIGNALED.0;
            let signalled: Vec<u64> = batch
                .iter()
                .filter(|r| sig_all == 1 || r.wr.send_flags & ibv_send_flags::IBV_SEND_SIGNALED.0 != 0)
                .map(|r| r.wr.wr_id)
                .collect();
            let receives = batch.iter().filter(|r| r.receives).count();
            let mut outcomes = vec![];
            let native = rng.below(2) == 0;
            for twin in 0..2 {
                rig.write(0, &vec![0; AREA]);
                for k in 0..receives {
                    let mut sges =
                        [ibv_sge { addr: rig.addr(2 * AREA + k * 1024), length: 1024, lkey: rig.lkey() }];
                    assert_eq!(rig.verbs_post(srq, &mut [super::recv_wr(&mut sges, k as u64)]), 1);
                }
                rig.write(2 * AREA, &vec![0; receives * 1024]);
                let mut wrs = link(&mut batch);
                let completed: Vec<(u64, u32)> = if twin == 0 {
                    assert_eq!(rig.verbs_send(senders[0], &mut wrs), (0, n));
                    let wcs = rig.verbs_poll(cqs[0], signalled.len());
                    wcs.iter().map(|w| (w.wr_id, w.status)).collect()
                } else {
                    if native {
                        batch.iter().for_each(|r| assert!(post_natively(&mut sq, r)));
                    } else {
                        // SAFETY: the chain and all memory that it names live through the call.
                        let list = unsafe { SendWrs::new(wrs.as_ptr()) };
                        assert_eq!(sq.post_send_wrs(list), Ok(n as u32));
                    }
                    let mut done = vec![];
                    for _ in 0..signalled.len() {
                        let completion = next(&mut cq);
                        let counter = completion.send_counter().expect("a send");
                        if let Completion::SendScattered(scattered) = completion {
                            // SAFETY: inside the rig's buffer.
                            unsafe { cq.deliver_result(&scattered, sq.segments(counter)) };
                        }
                        let failed = u32::from(matches!(completion, Completion::SendError(_)));
                        done.push((sq.complete(counter).expect("posted").cookie, failed));
                    }
                    assert_eq!(sq.posted(), 0);
                    done
                };
                rig.verbs_poll(peer_cq, receives);
                outcomes.push((completed, rig.read(0, AREA), rig.read(2 * AREA, receives * 1024)));
            }
            assert_eq!(outcomes[0].0.iter().map(|c| c.0).collect::<Vec<_>>(), signalled);
            assert!(
                outcomes[0] == outcomes[1],
                "completions or memory differ in the batch from block {blocks}"
            );
            // SAFETY: the second word of a live QP's record.
            let record = u32::from_be(unsafe { at[0].dbrec.add(1).read_volatile() });
            let end = blocks + u32::from((record as u16).wrapping_sub(blocks as u16));
            same(wqes(&at[0], blocks, end), wqes(&at[1], blocks, end));
            (blocks, executed) = (end, executed + n);
        }
        println!(
            "{sge} segments, {inline} inline, {requests} requests: {executed} in {blocks} blocks, granted {} {}",
            cap.max_send_wr, cap.max_inline_data
        );
        rig.destroy(&[senders, peers].concat(), &[srq], &[cqs[0], cqs[1], peer_cq]);
    }
}

/// Both queues are full at the same request, and refuse the same requests with the same error
/// numbers.
pub(crate) fn refusals(rig: &Rig) {
    let cqs = [0; 2].map(|_| rig.cq(127, false));
    let qps = cqs.map(|cq| rig.qp_with(cq, cq, std::ptr::null_mut(), |init| init.cap.max_send_wr = 10).0);
    let peers = [0; 2].map(|_| rig.qp(cqs[0], cqs[0], rig.srq(8, 1)));
    (0..2).for_each(|n| rig.connect(qps[n], peers[n]));
    let mut sq = take_sq(qps[1]);
    let request = |opcode: u32, sges: usize| {
        // SAFETY: integers and pointers only.
        let mut wr: ibv_send_wr = unsafe { zeroed() };
        wr.opcode = opcode;
        wr.wr.rdma = rdma_t { remote_addr: rig.addr(0), rkey: rig.rkey() };
        let sge = ibv_sge { addr: rig.addr(4096), length: 8, lkey: rig.lkey() };
        Request { wr, sges: vec![sge; sges], receives: false }
    };
    let max = sq.max_requests();
    let lists: [Vec<Request>; 4] = [
        vec![request(0, 1), request(12, 1), request(0, 1)],
        vec![request(0, 1), request(0, 1 + sq.caps().max_segments as usize)],
        vec![request(99, 1)],
        (0..max + 3).map(|_| request(0, 1)).collect(),
    ];
    for mut list in lists {
        let mut wrs = link(&mut list);
        let theirs = rig.verbs_send(qps[0], &mut wrs);
        // SAFETY: the chain and all memory that it names live through the call.
        let ours = sq.post_send_wrs(unsafe { SendWrs::new(wrs.as_ptr()) });
        let ours = match ours {
            Ok(n) => (0, n as usize),
            Err(e) => (e.error.errno(), e.posted as usize),
        };
        assert_eq!(theirs, ours, "error number and requests accepted");
    }
    assert_eq!(sq.free(), 0);
    // SAFETY: live QPs.
    let srqs = peers.map(|qp| unsafe { (*qp).srq });
    rig.destroy(&[qps, peers].concat(), &srqs, &cqs);
}

/// Over a grid of capacities, `caps` equals the values that libmlx5 returns, and as many requests
/// fit.
pub(crate) fn caps(rig: &Rig) {
    for qp_type in [ibv_qp_type::IBV_QPT_RC, ibv_qp_type::IBV_QPT_UC, ibv_qp_type::IBV_QPT_UD] {
        for (wr, sge, inline) in [(1, 1, 0), (10, 1, 1), (17, 4, 64), (100, 2, 400), (64, 30, 0)] {
            let cq = rig.cq(255, false);
            let (qp, cap) = rig.qp_with(cq, cq, std::ptr::null_mut(), |init| {
                (init.qp_type, init.sq_sig_all) = (qp_type, 0);
                (init.cap.max_send_wr, init.cap.max_send_sge, init.cap.max_inline_data) = (wr, sge, inline);
                (init.cap.max_recv_wr, init.cap.max_recv_sge) = (wr, sge);
            });
            let sq = take_sq(qp);
            let caps = sq.caps();
            assert_eq!(
                (caps.max_requests, caps.max_segments, caps.max_inline, caps.signal_all),
                (cap.max_send_wr, cap.max_send_sge, cap.max_inline_data, false),
                "type {qp_type}, {wr} requests of {sge} segments or {inline} bytes"
            );
            let units = sq.max_units();
            let bytes = vec![0; cap.max_inline_data as usize];
            let remote = Remote { addr: 0, rkey: 0 };
            let segs = vec![DataSeg::new(1, 1, 1); sge as usize];
            assert!(Wr::write(remote, Inline(&bytes)).units() <= sq.max_units());
            assert!(Wr::write(remote, &segs[..]).units() <= sq.max_units());
            // As the creation gave them: without a query, the queues are the same.
            drop(sq);
            // SAFETY: as for `take_sq`.
            let with = unsafe { Sq::from_verbs_with(qp, caps) }.expect("a fresh QP");
            assert_eq!((with.caps(), with.max_units()), (caps, units));
            let rq = take_rq(qp);
            let found = (rq.max_requests(), rq.max_segments());
            drop(rq);
            // SAFETY: as for `take_sq`.
            let with = unsafe { Rq::from_verbs_with(qp, cap.max_recv_wr) }.expect("a fresh QP");
            assert_eq!((with.max_requests(), with.max_segments()), found);
            rig.destroy(&[qp], &[], &[cq]);
        }
    }
}

/// Queues that cannot be taken over are refused with the reason.
pub(crate) fn refused_queues(rig: &Rig) {
    let cq = rig.cq(127, false);
    let srq = rig.srq(8, 1);
    let used = rig.qp(cq, cq, srq);
    let peer = rig.qp(cq, cq, srq);
    rig.connect(used, peer);
    rig.send(used, 0, 8, None, false);
    // SAFETY: live QPs; each call is refused, so nothing is taken over.
    unsafe {
        let refused = Sq::from_verbs(used).unwrap_err();
        assert!(matches!(refused, DvError::Layout(LayoutError::SendQueueUsed { count: 1 })), "{refused}");
        let refused = Rq::from_verbs(used).unwrap_err();
        assert!(matches!(refused, DvError::Layout(LayoutError::NoQueue { what: "receive" })), "{refused}");
        let refused = Sq::from_verbs(std::ptr::null_mut::<ibv_qp>()).unwrap_err();
        assert!(matches!(refused, DvError::Layout(LayoutError::Pointer { .. })), "{refused}");
    }
    rig.destroy(&[used, peer], &[srq], &[cq]);
}

/// Datagrams to an address handle: the WQE equals libmlx5's, and the message arrives behind 40
/// bytes.
pub(crate) fn datagrams(rig: &Rig) {
    const QKEY: u32 = 0x1122_3344;
    let cqs = [0; 3].map(|_| rig.cq(127, false));
    let ud = |cq: *mut ibv_cq| {
        let qp = rig
            .qp_with(cq, cq, std::ptr::null_mut(), |init| {
                (init.qp_type, init.sq_sig_all) = (ibv_qp_type::IBV_QPT_UD, 0);
                (init.cap.max_recv_wr, init.cap.max_recv_sge) = (16, 2);
            })
            .0;
        rig.datagrams(qp, QKEY);
        qp
    };
    let qps = cqs.map(ud);
    let (theirs, ours, receiver) = (qps[0], qps[1], qps[2]);
    let at = [describe(theirs), describe(ours)];
    let (mut sq, mut cq) = (take_sq(ours), take_cq(cqs[1]));
    let (mut rq, mut recv_cq) = (take_rq(receiver), take_cq(cqs[2]));
    let ah = rig.address_handle();
    // SAFETY: a live handle.
    let path = unsafe { AddressVector::from_verbs(ah) }.expect("an mlx5 handle");
    let mut block = 0;
    for n in 0..400u64 {
        let text: Vec<u8> = (0..1 + n as usize % 60).map(|k| (k as u64 + n) as u8).collect();
        for (turn, sender) in [theirs, ours].into_iter().enumerate() {
            let buffer = DataSeg::new(rig.addr(8192), 2048, rig.lkey());
            rq.post(&[buffer], n).expect("room");
            rig.write(8192, &[0; 256]);
            rig.write(0, &text);
            if turn == 0 {
                let sge = ibv_sge { addr: rig.addr(0), length: text.len() as u32, lkey: rig.lkey() };
                // SAFETY: integers and pointers only.
                let mut wr: ibv_send_wr = unsafe { zeroed() };
                (wr.opcode, wr.wr_id) = (ibv_wr_opcode::IBV_WR_SEND, n);
                wr.send_flags = ibv_send_flags::IBV_SEND_SIGNALED.0 | ibv_send_flags::IBV_SEND_INLINE.0;
                wr.wr.ud = ud_t { ah, remote_qpn: rig.qpn(receiver), remote_qkey: QKEY };
                let mut requests = [Request { wr, sges: vec![sge], receives: true }];
                let mut wrs = link(&mut requests);
                assert_eq!(rig.verbs_send(theirs, &mut wrs), (0, 1));
                assert_eq!(rig.verbs_poll(cqs[0], 1)[0].status, 0);
            } else {
                let request = Wr::send(Inline(&text)).to(&path, rig.qpn(receiver), QKEY).signalled();
                sq.post(request, n).expect("room");
                let counter = next(&mut cq).send_counter().expect("a send");
                assert_eq!(sq.complete(counter).expect("posted").cookie, n);
            }
            let completion = next(&mut recv_cq);
            let Completion::Recv(received) = completion else { panic!("{completion:?}") };
            assert_eq!(received.byte_count as usize, 40 + text.len());
            assert_eq!(rig.read(8192 + 40, text.len()), text);
            assert_eq!(recv_cq.source_qpn(), rig.qpn(sender));
            assert_eq!(rq.complete(received.slot.0), Ok(n));
        }
        let end = block + (4 + (text.len() as u32 + 4).div_ceil(16)).div_ceil(4);
        same(wqes(&at[0], block, end), wqes(&at[1], block, end));
        block = end;
    }
    // SAFETY: a live handle that no request names any more.
    unsafe { assert_eq!(ibv_destroy_ah(ah), 0) };
    rig.destroy(&qps, &[], &cqs);
}
