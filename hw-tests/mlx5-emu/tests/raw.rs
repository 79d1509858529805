//! Raw packet QPs: flow rules deliver Ethernet frames.
#![expect(unsafe_code, reason = "raw verbs calls")]

mod common;

use std::mem::zeroed;
use std::ptr::null_mut;

use common::*;

const RAW_PACKET: u32 = 8;

fn raw_qp(rig: &mut Rig, cq: *mut ibv_cq) -> *mut ibv_qp {
    let qp = rig.qp(RAW_PACKET, cq, cq, null_mut());
    // SAFETY: live QP; all-zero is a valid attribute structure.
    unsafe {
        let mut attr: ibv_qp_attr = zeroed();
        (attr.qp_state, attr.port_num) = (1, 1);
        assert_eq!(ibv_modify_qp(qp, &raw mut attr, 1 | 1 << 5), 0);
    }
    assert_eq!((set_state(qp, 2), set_state(qp, 3)), (0, 0));
    qp
}

/// A rule with one Ethernet specification: `ibv_flow_attr` followed by `ibv_flow_spec_eth`.
#[repr(C)]
struct Rule {
    comp_mask: u32,
    kind: u32,
    size: u16,
    priority: u16,
    specs: u8,
    port: u8,
    flags: u32,
    spec_kind: u32,
    spec_size: u16,
    value: [u8; 16],
    mask: [u8; 16],
}

/// Frames to this MAC go to the QP, until the rig ends.
fn steer(rig: &mut Rig, qp: *mut ibv_qp, mac: [u8; 6], mask: [u8; 6], priority: u16) {
    let mut rule = Rule {
        comp_mask: 0,
        kind: 0,
        size: 64,
        priority,
        specs: 1,
        port: 1,
        flags: 0,
        spec_kind: 0x20,
        spec_size: 40,
        value: [0; 16],
        mask: [0; 16],
    };
    rule.value[..6].copy_from_slice(&mac);
    rule.mask[..6].copy_from_slice(&mask);
    // SAFETY: live QP; the rule lives through the call and has the layout that its counts say.
    let flow = unsafe { (*extended(rig.ctx)).ibv_create_flow.unwrap()(qp, (&raw mut rule).cast()) };
    assert!(!flow.is_null(), "create_flow: {}", std::io::Error::last_os_error());
    let destroy = extended(rig.ctx);
    // SAFETY: destroyed once, before its QP and context.
    rig.later(move || unsafe { assert_eq!((*destroy).ibv_destroy_flow.unwrap()(flow), 0) });
}

fn frame(to: [u8; 6], len: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..len).map(|at| at as u8).collect();
    bytes[..6].copy_from_slice(&to);
    bytes
}

const ONE: [u8; 6] = [0x02, 0, 0, 0, 0, 1];
const TWO: [u8; 6] = [0x02, 0, 0, 0, 0, 2];
const ALL: [u8; 6] = [0xff; 6];

#[test]
fn frames_follow_the_closest_rule_of_first_priority() {
    let mut rig = Rig::new();
    let cq = rig.cq(64);
    let [sender, one, rest] = [(); 3].map(|()| raw_qp(&mut rig, cq));
    steer(&mut rig, one, ONE, ALL, 1);
    steer(&mut rig, rest, [2, 0, 0, 0, 0, 0], [0xff, 0, 0, 0, 0, 0], 1);
    let memory = rig.memory(8192);
    let (to_one, to_two) = (frame(ONE, 300), frame(TWO, 200));
    memory.put(0, &to_one);
    memory.put(1024, &to_two);
    assert_eq!(post_recv(one, 1, &[memory.sge(2048, 100), memory.sge(3000, 400)]), 0);
    assert_eq!(post_recv(rest, 2, &[memory.sge(4096, 400)]), 0);
    send(sender, 3, SIGNALED, &[memory.sge(0, 14), memory.sge(14, 286)]);
    send(sender, 4, SIGNALED | INLINE, &[memory.sge(1024, 100)]);
    let done = poll(cq, 4);
    let received = |id| done.iter().find(|wc| wc.wr_id == id).map(|wc| (wc.status, wc.byte_len));
    assert_eq!((received(1), received(2)), (Some((0, 300)), Some((0, 100))));
    assert_eq!([memory.get(2048, 100), memory.get(3000, 200)].concat(), to_one);
    assert_eq!(memory.get(4096, 100), to_two[..100]);
    // A rule with an earlier priority takes over.
    let first = raw_qp(&mut rig, cq);
    steer(&mut rig, first, [2, 0, 0, 0, 0, 0], [0xff, 0, 0, 0, 0, 0], 0);
    assert_eq!(post_recv(first, 5, &[memory.sge(4096, 400)]), 0);
    send(sender, 6, SIGNALED, &[memory.sge(0, 300)]);
    assert_eq!(poll(cq, 2).iter().filter(|wc| wc.wr_id == 5).count(), 1);
}

#[test]
fn frames_without_a_rule_or_a_buffer_are_dropped() {
    let mut rig = Rig::new();
    let cq = rig.cq(16);
    let [sender, one] = [(); 2].map(|()| raw_qp(&mut rig, cq));
    steer(&mut rig, one, ONE, ALL, 0);
    let memory = rig.memory(4096);
    memory.put(0, &frame(TWO, 100));
    memory.put(1024, &frame(ONE, 100));
    send(sender, 1, SIGNALED, &[memory.sge(1024, 100)]);
    assert_eq!(post_recv(one, 2, &[memory.sge(2048, 100)]), 0);
    send(sender, 3, SIGNALED, &[memory.sge(0, 100)]);
    let ids: Vec<u64> = poll(cq, 2).iter().map(|wc| wc.wr_id).collect();
    assert_eq!(ids, [1, 3]);
    assert_eq!((state(sender), state(one)), (3, 3));
}
