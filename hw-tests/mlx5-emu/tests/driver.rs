//! Masked atomics, which libmlx5 offers no call for, and what the device refuses: connection options,
//! and QPs that are no XRC targets.
#![expect(unsafe_code, reason = "raw verbs calls")]

mod common;
#[path = "common/direct.rs"]
mod direct;

use common::*;
use direct::{DirectSq, store32};
use std::mem::zeroed;
use std::ptr::null_mut;

#[link(name = "ibverbs")]
unsafe extern "C" {
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
