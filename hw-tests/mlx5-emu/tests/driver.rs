//! What only mlx5 has, through libmlx5's own interface (mlx5dv): DC, indirect keys, copies within
//! memory, reserved QP numbers; and masked atomics, which libmlx5 offers no call for.
#![expect(unsafe_code, reason = "raw verbs calls")]

mod common;
#[path = "common/direct.rs"]
mod direct;

use common::*;
use direct::{DirectSq, store32};
use std::mem::zeroed;
use std::ptr::null_mut;

const DRIVER_QP: u32 = 0xff;
const EX_SEND: u64 = 1 << 2;
const EX_WRITE: u64 = 1 << 0;
const EX_READ: u64 = 1 << 4;
const DV_WITH_DC: u64 = 1 << 1;
const DV_WITH_SEND_OPS: u64 = 1 << 2;
const DV_MR_INTERLEAVED: u64 = 1 << 0;
const DV_MR_LIST: u64 = 1 << 1;
const DV_MEMCPY: u64 = 1 << 4;
const INDIRECT: u32 = 1;
const INLINE: u32 = 8;
const DCT: u32 = 1;
const DCI: u32 = 2;
/// Local write, remote write, remote read.
const ACCESS: u32 = 1 | 2 | 4;

/// mlx5dv_qp_init_attr.
#[repr(C)]
#[derive(Default)]
struct DvInit {
    comp_mask: u64,
    create_flags: u32,
    /// In front of the part that is aligned to 8 bytes.
    gap: u32,
    dc_type: u32,
    access_key: u64,
    send_ops: u64,
}

/// mlx5dv_mkey_init_attr.
#[repr(C)]
struct MkeyInit {
    pd: *mut ibv_pd,
    create_flags: u32,
    max_entries: u16,
}

/// mlx5dv_mkey.
#[repr(C)]
struct DvMkey {
    lkey: u32,
    rkey: u32,
}

/// mlx5dv_mr_interleaved.
#[repr(C)]
struct Interleaved {
    addr: u64,
    count: u32,
    skip: u32,
    lkey: u32,
}

/// The start of mlx5dv_qp_ex.
#[repr(C)]
struct DvQp {
    comp_mask: u64,
    set_dc_addr: unsafe extern "C" fn(*mut DvQp, *mut ibv_ah, u32, u64),
    mr_interleaved: unsafe extern "C" fn(*mut DvQp, *mut DvMkey, u32, u32, u16, *const Interleaved),
    mr_list: unsafe extern "C" fn(*mut DvQp, *mut DvMkey, u32, u16, *const ibv_sge),
    between: [usize; 7],
    memcpy: unsafe extern "C" fn(*mut DvQp, u32, u64, u32, u64, usize),
}

#[link(name = "ibverbs")]
unsafe extern "C" {
    fn ibv_qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex;
    fn ibv_query_ece(qp: *mut ibv_qp, ece: *mut Ece) -> i32;
    fn ibv_set_ece(qp: *mut ibv_qp, ece: *mut Ece) -> i32;
}

/// ibv_ece.
#[derive(Default)]
#[repr(C)]
struct Ece {
    vendor: u32,
    options: u32,
    comp_mask: u32,
}

#[link(name = "mlx5")]
unsafe extern "C" {
    fn mlx5dv_create_qp(
        ctx: *mut ibv_context,
        attr: *mut ibv_qp_init_attr_ex,
        dv: *mut DvInit,
    ) -> *mut ibv_qp;
    fn mlx5dv_qp_ex_from_ibv_qp_ex(qp: *mut ibv_qp_ex) -> *mut DvQp;
    fn mlx5dv_create_mkey(attr: *mut MkeyInit) -> *mut DvMkey;
    fn mlx5dv_destroy_mkey(mkey: *mut DvMkey) -> i32;
    fn mlx5dv_reserved_qpn_alloc(ctx: *mut ibv_context, qpn: *mut u32) -> i32;
    fn mlx5dv_reserved_qpn_dealloc(ctx: *mut ibv_context, qpn: u32) -> i32;
}

/// A QP of the extended interface, with the operations of `dv` and of `send_ops`.
fn create(
    rig: &mut Rig,
    kind: u32,
    cq: *mut ibv_cq,
    srq: *mut ibv_srq,
    send_ops: u64,
    mut dv: DvInit,
) -> *mut ibv_qp {
    // SAFETY: live objects; all-zero is a valid attribute structure.
    let qp = unsafe {
        let mut attr: ibv_qp_init_attr_ex = zeroed();
        (attr.send_cq, attr.recv_cq, attr.srq, attr.pd) = (cq, cq, srq, rig.pd);
        attr.comp_mask = 1 | if send_ops == 0 { 0 } else { 1 << 6 };
        attr.send_ops_flags = send_ops;
        (attr.qp_type, attr.sq_sig_all) = (kind, 1);
        if dv.dc_type != DCT {
            (attr.cap.max_send_wr, attr.cap.max_send_sge, attr.cap.max_inline_data) = (64, 4, 512);
        }
        mlx5dv_create_qp(rig.ctx, &raw mut attr, &raw mut dv)
    };
    assert!(!qp.is_null(), "create_qp: {}", std::io::Error::last_os_error());
    // SAFETY: destroyed once.
    rig.later(move || unsafe { assert_eq!(ibv_destroy_qp(qp), 0, "destroy_qp") });
    qp
}

/// Posts one request with `write` between wr_start and wr_complete. Returns what wr_complete does.
fn post(qp: *mut ibv_qp, id: u64, flags: u32, write: impl FnOnce(*mut ibv_qp_ex, *mut DvQp)) -> i32 {
    // SAFETY: a QP of the extended interface; the calls belong together.
    unsafe {
        let ex = ibv_qp_to_qp_ex(qp);
        (*ex).wr_start.unwrap()(ex);
        ((*ex).wr_id, (*ex).wr_flags) = (id, flags);
        write(ex, mlx5dv_qp_ex_from_ibv_qp_ex(ex));
        (*ex).wr_complete.unwrap()(ex)
    }
}

/// A DC target on `srq`.
fn target(rig: &mut Rig, cq: *mut ibv_cq, srq: *mut ibv_srq, key: u64) -> *mut ibv_qp {
    let dv = DvInit { comp_mask: DV_WITH_DC, dc_type: DCT, access_key: key, ..DvInit::default() };
    let qp = create(rig, DRIVER_QP, cq, srq, 0, dv);
    to_init(qp);
    let mut attr = rtr_attr(0);
    attr.qp_state = ibv_qp_state::IBV_QPS_RTR;
    let mask = 1 | 1 << 7 | 1 << 8 | 1 << 15;
    // SAFETY: live QP: state, address vector, MTU, RNR timer.
    assert_eq!(unsafe { ibv_modify_qp(qp, &raw mut attr, mask) }, 0, "target to RTR");
    qp
}

/// A DC initiator.
fn initiator(rig: &mut Rig, cq: *mut ibv_cq) -> *mut ibv_qp {
    let dv = DvInit { comp_mask: DV_WITH_DC, dc_type: DCI, ..DvInit::default() };
    let qp = create(rig, DRIVER_QP, cq, null_mut(), EX_SEND | EX_WRITE | EX_READ, dv);
    let mut attr = rtr_attr(0);
    (attr.qp_state, attr.port_num, attr.timeout, attr.retry_cnt, attr.rnr_retry) = (1, 1, 8, 2, 0);
    for (state, mask) in [
        (1, 1 | 1 << 4 | 1 << 5),
        (2, 1 | 1 << 7 | 1 << 8),
        (3, 1 | 1 << 9 | 1 << 10 | 1 << 11 | 1 << 16 | 1 << 13),
    ] {
        attr.qp_state = state;
        // SAFETY: live QP: the attributes that each transition of an initiator needs.
        assert_eq!(unsafe { ibv_modify_qp(qp, &raw mut attr, mask) }, 0, "initiator to state {state}");
    }
    qp
}

#[test]
fn an_initiator_reaches_every_target_whose_key_it_knows() {
    let mut rig = Rig::new();
    let (sent, received) = (rig.cq(64), rig.cq(64));
    let srq = rig.srq(16, 1);
    let memory = rig.memory(4096);
    memory.put(0, &[6; 100]);
    let targets = [0x1234_5678_9abc, 7].map(|key| (target(&mut rig, received, srq, key), key));
    let from = initiator(&mut rig, sent);
    let ah = rig.address_handle(&rtr_attr(0).ah_attr);
    let send = |to: *mut ibv_qp, key: u64| {
        // SAFETY: a QP with this operation, between wr_start and wr_complete; live objects.
        post(from, key, SIGNALED, |ex, dv| unsafe {
            (*ex).wr_send.unwrap()(ex);
            ((*dv).set_dc_addr)(dv, ah, qpn(to), key);
            (*ex).wr_set_sge.unwrap()(ex, memory.lkey, memory.at(0), 100);
        })
    };
    for (i, (to, key)) in targets.into_iter().enumerate() {
        let at = 1024 * (i + 1);
        assert_eq!(post_srq(srq, i as u64, &[memory.sge(at, 200)]), 0);
        assert_eq!(send(to, key), 0);
        assert_eq!(poll(sent, 1).iter().map(|wc| (wc.wr_id, wc.status)).collect::<Vec<_>>(), [(key, 0)]);
        let recv = &poll(received, 1)[0];
        assert_eq!((recv.wr_id, recv.status, recv.byte_len, recv.qp_num), (i as u64, 0, 100, qpn(to)));
        assert_eq!(memory.get(at, 100), [6; 100]);
    }
    // SAFETY: a QP with this operation, between wr_start and wr_complete; live objects.
    let written = post(from, 5, SIGNALED, |ex, dv| unsafe {
        (*ex).wr_rdma_write.unwrap()(ex, memory.rkey, memory.at(3500));
        ((*dv).set_dc_addr)(dv, ah, qpn(targets[1].0), targets[1].1);
        (*ex).wr_set_sge.unwrap()(ex, memory.lkey, memory.at(0), 50);
    });
    assert_eq!((written, poll(sent, 1)[0].status), (0, 0));
    assert_eq!(memory.get(3500, 51), [[6; 50].as_slice(), &[0]].concat());
    // An initiator that asked for no reads may have one at a time.
    // SAFETY: a QP with this operation, between wr_start and wr_complete; live objects.
    let read = post(from, 6, SIGNALED, |ex, dv| unsafe {
        (*ex).wr_rdma_read.unwrap()(ex, memory.rkey, memory.at(3500));
        ((*dv).set_dc_addr)(dv, ah, qpn(targets[0].0), targets[0].1);
        (*ex).wr_set_sge.unwrap()(ex, memory.lkey, memory.at(3700), 50);
    });
    assert_eq!((read, poll(sent, 1)[0].status), (0, 0));
    assert_eq!(memory.get(3700, 50), [6; 50]);
    // A wrong key reaches nobody: the retries run out.
    assert_eq!(post_srq(srq, 9, &[memory.sge(1024, 200)]), 0);
    assert_eq!(send(targets[0].0, 8), 0);
    let failed = (0..100).find_map(|_| {
        mlx5_emu::advance_clock(std::time::Duration::from_secs(1));
        mlx5_emu::step();
        poll_all(sent).first().map(|wc| wc.status)
    });
    assert_eq!(failed, Some(ibv_wc_status::IBV_WC_RETRY_EXC_ERR));
    assert_eq!(poll_all(received).len(), 0);
}

/// A pair of RC QPs; the first has the operations of `dv_ops`.
fn pair_with(rig: &mut Rig, cq: *mut ibv_cq, dv_ops: u64) -> (*mut ibv_qp, *mut ibv_qp) {
    let dv = DvInit { comp_mask: DV_WITH_SEND_OPS, send_ops: dv_ops, ..DvInit::default() };
    let a = create(rig, ibv_qp_type::IBV_QPT_RC, cq, null_mut(), EX_SEND | EX_WRITE, dv);
    let b = rig.qp(ibv_qp_type::IBV_QPT_RC, cq, cq, null_mut());
    connect(a, b);
    connect(b, a);
    (a, b)
}

/// An indirect key with room for four entries.
fn indirect_key(rig: &mut Rig) -> *mut DvMkey {
    let mut attr = MkeyInit { pd: rig.pd, create_flags: INDIRECT, max_entries: 4 };
    // SAFETY: live PD.
    let key = unsafe { mlx5dv_create_mkey(&raw mut attr) };
    assert!(!key.is_null(), "create_mkey: {}", std::io::Error::last_os_error());
    // SAFETY: destroyed once.
    rig.later(move || unsafe { assert_eq!(mlx5dv_destroy_mkey(key), 0) });
    key
}

#[test]
fn an_indirect_key_joins_pieces_of_regions() {
    let mut rig = Rig::new();
    let cq = rig.cq(64);
    let (a, b) = pair_with(&mut rig, cq, DV_MR_LIST | DV_MR_INTERLEAVED);
    let (first, second) = (rig.memory(4096), rig.memory(4096));
    let bytes: Vec<u8> = (0..=255).collect();
    first.put(0, &bytes);
    second.put(0, &bytes);
    let key = indirect_key(&mut rig);
    let list = [first.sge(10, 20), second.sge(100, 30), first.sge(200, 5)];
    // SAFETY: a QP with this operation, between wr_start and wr_complete; live objects.
    let made = post(a, 1, INLINE, |_, dv| unsafe { ((*dv).mr_list)(dv, key, ACCESS, 3, list.as_ptr()) });
    assert_eq!((made, poll(cq, 1)[0].status), (0, 0));
    // SAFETY: live key.
    let lkey = unsafe { (*key).lkey };
    let all = [&bytes[10..30], &bytes[100..130], &bytes[200..205]].concat();
    // A list of pieces starts at address 0.
    let sge = |addr, length| ibv_sge { addr, length, lkey };
    assert_eq!(post_recv(b, 2, &[first.sge(1024, 100)]), 0);
    send(a, 3, SIGNALED, &[sge(0, 55)]);
    assert!(poll(cq, 2).iter().all(|wc| wc.status == 0));
    assert_eq!(first.get(1024, 55), all);
    // A receive from the middle of the first piece to the end of the last. It is longer than a
    // payload in a CQE, which libmlx5 copies to the address itself.
    second.put(2048, &[0xee; 40]);
    assert_eq!(post_recv(b, 4, &[sge(15, 40)]), 0);
    send(a, 5, SIGNALED, &[second.sge(2048, 40)]);
    assert!(poll(cq, 2).iter().all(|wc| wc.status == 0));
    for (memory, start, end) in [(&first, 25, 30), (&second, 100, 130), (&first, 200, 205)] {
        let want: Vec<u8> =
            (start - 1..=end).map(|i| if (start..end).contains(&i) { 0xee } else { i }).collect();
        assert_eq!(memory.get(usize::from(start) - 1, want.len()), want);
    }
    // Blocks of two regions in turn, three times.
    let blocks = [
        Interleaved { addr: first.at(512), count: 4, skip: 2, lkey: first.lkey },
        Interleaved { addr: second.at(512), count: 3, skip: 0, lkey: second.lkey },
    ];
    first.put(512, &bytes[..18]);
    second.put(512, &bytes[100..109]);
    let turns = indirect_key(&mut rig);
    // SAFETY: a QP with this operation, between wr_start and wr_complete; live objects.
    let made = post(a, 5, INLINE, |_, dv| unsafe {
        ((*dv).mr_interleaved)(dv, turns, ACCESS, 3, 2, blocks.as_ptr());
    });
    assert_eq!((made, poll(cq, 1)[0].status), (0, 0));
    assert_eq!(post_recv(b, 6, &[first.sge(1024, 100)]), 0);
    // SAFETY: live key.
    send(a, 7, SIGNALED, &[ibv_sge { addr: 0, length: 21, lkey: unsafe { (*turns).lkey } }]);
    assert!(poll(cq, 2).iter().all(|wc| wc.status == 0));
    let want = [0, 1, 2, 3, 100, 101, 102, 6, 7, 8, 9, 103, 104, 105, 12, 13, 14, 15, 106, 107, 108];
    assert_eq!(first.get(1024, 21), want);
    // One byte more than the pieces have.
    send(a, 8, SIGNALED, &[sge(0, 56)]);
    assert_eq!(poll(cq, 1)[0].status, ibv_wc_status::IBV_WC_LOC_PROT_ERR);
}

#[test]
fn a_copy_within_memory_needs_keys_and_bounds() {
    let mut rig = Rig::new();
    let cq = rig.cq(16);
    let (a, _) = pair_with(&mut rig, cq, DV_MEMCPY);
    let (from, to) = (rig.memory(4096), rig.memory_with(4096, 0));
    let writable = rig.memory(4096);
    let bytes: Vec<u8> = (0..3000).map(|i| i as u8).collect();
    from.put(10, &bytes);
    let copy = |dest: &Memory, offset: usize, len: usize| {
        // SAFETY: a QP with this operation, between wr_start and wr_complete; live objects.
        let rc = post(a, 1, SIGNALED, |_, dv| unsafe {
            ((*dv).memcpy)(dv, dest.lkey, dest.at(offset), from.lkey, from.at(10), len);
        });
        assert_eq!(rc, 0);
        poll(cq, 1)[0].status
    };
    assert_eq!(copy(&writable, 5, 3000), 0);
    assert_eq!(writable.get(4, 3002), [&[0], &bytes[..], &[0]].concat());
    assert_eq!(copy(&to, 0, 8), ibv_wc_status::IBV_WC_LOC_PROT_ERR, "no local write");
    assert_eq!(to.get(0, 8), [0; 8]);
}

#[test]
fn reserved_numbers_are_no_qps_and_come_back() {
    let mut rig = Rig::new();
    let allocate = || {
        let mut qpn = 0;
        // SAFETY: live context, place for the number.
        assert_eq!(unsafe { mlx5dv_reserved_qpn_alloc(rig.ctx, &raw mut qpn) }, 0);
        qpn
    };
    // SAFETY: live context.
    let free = |qpn| unsafe { mlx5dv_reserved_qpn_dealloc(rig.ctx, qpn) };
    // More than a block.
    let mut numbers: Vec<u32> = (0..100).map(|_| allocate()).collect();
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), 100);
    assert!(numbers.iter().all(|number| mlx5_emu::qp_info(*number).is_none()));
    assert_ne!(free(numbers[99] + 1000), 0, "not reserved");
    assert!(numbers.iter().all(|&number| free(number) == 0));
    assert_ne!(free(numbers[0]), 0, "given back already");
    let again = allocate();
    assert!(numbers.iter().any(|number| number / 64 == again / 64), "a number of the same blocks");
    assert_eq!(free(again), 0);
    let cq = rig.cq(16);
    let qp = rig.qp(ibv_qp_type::IBV_QPT_RC, cq, cq, null_mut());
    assert!(!numbers.contains(&qpn(qp)));
}

/// Programs that negotiate connection options find none, and the errno for it.
#[test]
fn no_enhanced_connection_establishment() {
    const MELLANOX: u32 = 0x15b3;
    let mut rig = Rig::new();
    let cq = rig.cq(16);
    let qp = rig.qp(ibv_qp_type::IBV_QPT_RC, cq, cq, null_mut());
    let mut ece = Ece { options: 1, ..Ece::default() };
    // SAFETY: live QP, place for the answer.
    unsafe {
        assert_eq!(ibv_query_ece(qp, &raw mut ece), 0);
        assert_eq!((ece.vendor, ece.options), (MELLANOX, 0));
        ece.options = 1 << 28;
        assert_eq!(ibv_set_ece(qp, &raw mut ece), libc::EOPNOTSUPP);
    }
}

/// A QP of another process, or one that is no XRC target, cannot be opened.
#[test]
fn qps_that_are_no_xrc_targets_here_cannot_be_opened() {
    let mut rig = Rig::new();
    let cq = rig.cq(16);
    let other = rig.qp(ibv_qp_type::IBV_QPT_RC, cq, cq, null_mut());
    // SAFETY: live objects; all-zero is a valid attribute structure. The domain and the QPs are
    // closed once, in reverse order.
    unsafe {
        let ops = extended(rig.ctx);
        let mut attr: ibv_xrcd_init_attr = zeroed();
        (attr.comp_mask, attr.fd, attr.oflags) = (3, -1, libc::O_CREAT);
        let xrcd = (*ops).open_xrcd.unwrap()(rig.ctx, &raw mut attr);
        assert!(!xrcd.is_null());
        rig.later(move || assert_eq!((*ops).close_xrcd.unwrap()(xrcd), 0));
        let mut attr: ibv_qp_init_attr_ex = zeroed();
        (attr.qp_type, attr.comp_mask, attr.xrcd) = (ibv_qp_type::IBV_QPT_XRC_RECV, 2, xrcd);
        let target = (*ops).create_qp_ex.unwrap()(rig.ctx, &raw mut attr);
        assert!(!target.is_null());
        rig.later(move || assert_eq!(ibv_destroy_qp(target), 0));
        let open = |number| {
            let mut attr: ibv_qp_open_attr = zeroed();
            (attr.comp_mask, attr.qp_num, attr.xrcd) = (1 | 2 | 8, number, xrcd);
            attr.qp_type = ibv_qp_type::IBV_QPT_XRC_RECV;
            let opened = (*ops).open_qp.unwrap()(rig.ctx, &raw mut attr);
            assert!(opened.is_null(), "QP {number:#x} was opened");
            std::io::Error::last_os_error().raw_os_error()
        };
        assert_eq!(open(qpn(other)), Some(libc::EINVAL));
        let elsewhere = qpn(target) ^ 1 << 15;
        assert_eq!(open(elsewhere), Some(libc::EINVAL));
    }
}

/// Posts a masked atomic with these operands on the word at `to`. Returns the old value.
fn masked(
    sq: &mut DirectSq,
    cq: *mut ibv_cq,
    opcode: u32,
    memory: &Memory,
    to: usize,
    operands: &[u64],
) -> u64 {
    const EIGHT_BYTES: u32 = 9 << 24;
    let at = sq.buf + u64::from(u32::from(sq.index) & (sq.count - 1)) * 64;
    let units = 3 + operands.len() as u32 / 2;
    let halves = |word: u64| [(word >> 32) as u32, word as u32];
    let words = (EIGHT_BYTES | u32::from(sq.index) << 8 | opcode, sq.qpn << 8 | units);
    let mut wqe = vec![words.0, words.1, 8, 0];
    wqe.extend(halves(memory.at(to)));
    wqe.extend([memory.rkey, 0]);
    operands.iter().for_each(|&operand| wqe.extend(halves(operand)));
    wqe.extend([8, memory.lkey]);
    wqe.extend(halves(memory.at(2048)));
    for (i, word) in wqe.iter().enumerate() {
        // SAFETY: the WQE's blocks, inside the ring: it is not at the end.
        unsafe { store32(at + i as u64 * 4, *word) };
    }
    // A WQE of more than 64 bytes takes two blocks.
    sq.index += (units as u16).div_ceil(4) - 1;
    sq.ring(words);
    assert_eq!(poll(cq, 1)[0].status, 0);
    u64::from_ne_bytes(memory.get(2048, 8).try_into().unwrap())
}

#[test]
fn masked_atomics_compare_swap_and_add_in_fields() {
    const MASKED_CS: u32 = 0x14;
    const MASKED_FA: u32 = 0x15;
    let mut rig = Rig::new();
    let cq = rig.cq(16);
    let (a, _) = rig.pair(cq, null_mut());
    let mut sq = DirectSq::new(a);
    let memory = rig.memory(4096);
    let set = |value: u64| memory.put(512, &value.to_ne_bytes());
    let value = || u64::from_ne_bytes(memory.get(512, 8).try_into().unwrap());
    let start = 0x1111_2222_3333_4444;
    set(start);
    // Operands: swap, compare, swap mask, compare mask.
    let swap = [0xaaaa_bbbb_cccc_dddd, 0x9999_9999_3333_9999, 0xffff_0000_0000_ffff, 0xffff_0000];
    assert_eq!(masked(&mut sq, cq, MASKED_CS, &memory, 512, &swap), start);
    assert_eq!(value(), 0xaaaa_2222_3333_dddd);
    let differs = [0, 0x9999_9999_3334_9999, u64::MAX, 0xffff_0000];
    assert_eq!(masked(&mut sq, cq, MASKED_CS, &memory, 512, &differs), 0xaaaa_2222_3333_dddd);
    assert_eq!(value(), 0xaaaa_2222_3333_dddd);
    // Operands: add, and the last bits of the fields. No carry leaves a field.
    set(0x0000_00ff_0000_ffff);
    let add = [0x0000_0001_0000_0001, 0x0000_0080_0000_8000];
    assert_eq!(masked(&mut sq, cq, MASKED_FA, &memory, 512, &add), 0x0000_00ff_0000_ffff);
    assert_eq!(value(), 0);
    assert_eq!(masked(&mut sq, cq, MASKED_FA, &memory, 512, &[1 << 40, 0]), 0);
    assert_eq!(value(), 1 << 40);
}
