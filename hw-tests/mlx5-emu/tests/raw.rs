//! Raw packet QPs: flow rules deliver Ethernet frames, also to work queues (RSS).
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

const HASH_SOURCE_IPV4: u64 = 1;
const HASH_SOURCE_IPV6: u64 = 4;
const EBUSY: i32 = 16;
const EINVAL: i32 = 22;

/// Work queues in a table. The first half of them completes to the first CQ.
struct Queues {
    cqs: [*mut ibv_cq; 2],
    queues: Vec<*mut ibv_wq>,
    table: *mut ibv_rwq_ind_table,
}

impl Queues {
    /// Four work queues, ready to receive.
    fn new(rig: &mut Rig) -> Self {
        let cqs = [rig.cq(256), rig.cq(256)];
        let ops = extended(rig.ctx);
        let mut queues: Vec<_> = (0..4)
            .map(|i| {
                // SAFETY: live objects; all-zero is a valid attribute structure. The queue is
                // destroyed once, after the table.
                unsafe {
                    let mut attr: ibv_wq_init_attr = zeroed();
                    (attr.max_wr, attr.max_sge, attr.pd, attr.cq) = (64, 1, rig.pd, cqs[i / 2]);
                    let queue = (*ops).create_wq.unwrap()(rig.ctx, &raw mut attr);
                    assert!(!queue.is_null(), "create_wq: {}", std::io::Error::last_os_error());
                    rig.later(move || assert_eq!((*ops).destroy_wq.unwrap()(queue), 0));
                    queue
                }
            })
            .collect();
        let mut attr =
            ibv_rwq_ind_table_init_attr { log_ind_tbl_size: 2, ind_tbl: queues.as_mut_ptr(), comp_mask: 0 };
        // SAFETY: live queues, as many as the size says. The table is destroyed once.
        let table = unsafe {
            let table = (*ops).create_rwq_ind_table.unwrap()(rig.ctx, &raw mut attr);
            assert!(!table.is_null(), "create_rwq_ind_table: {}", std::io::Error::last_os_error());
            rig.later(move || assert_eq!((*ops).destroy_rwq_ind_table.unwrap()(table), 0));
            table
        };
        let made = Self { cqs, queues, table };
        for &queue in &made.queues {
            assert_eq!(made.modify(rig, queue, ibv_wq_state::IBV_WQS_RDY), 0);
        }
        made
    }

    fn modify(&self, rig: &Rig, queue: *mut ibv_wq, state: u32) -> i32 {
        let mut attr =
            ibv_wq_attr { attr_mask: 1, wq_state: state, curr_wq_state: 0, flags: 0, flags_mask: 0 };
        // SAFETY: live queue.
        unsafe { (*extended(rig.ctx)).modify_wq.unwrap()(queue, &raw mut attr) }
    }

    /// A raw packet QP that hashes these fields; 0 and an errno if it is refused.
    fn spread(&self, rig: &mut Rig, fields: u64) -> Result<*mut ibv_qp, i32> {
        const MASK: u32 = 1 | 1 << 4 | 1 << 5;
        let mut key: Vec<u8> = (0..40u8).map(|i| i.wrapping_mul(73) ^ 0x5a).collect();
        // SAFETY: live objects; all-zero is a valid attribute structure. The QP is destroyed once,
        // before the table.
        unsafe {
            let mut attr: ibv_qp_init_attr_ex = zeroed();
            (attr.qp_type, attr.pd, attr.comp_mask) = (RAW_PACKET, rig.pd, MASK);
            attr.rwq_ind_tbl = self.table;
            attr.rx_hash_conf = ibv_rx_hash_conf {
                rx_hash_function: 1,
                rx_hash_key_len: 40,
                rx_hash_key: key.as_mut_ptr(),
                rx_hash_fields_mask: fields,
            };
            let qp = (*extended(rig.ctx)).create_qp_ex.unwrap()(rig.ctx, &raw mut attr);
            if qp.is_null() {
                return Err(std::io::Error::last_os_error().raw_os_error().unwrap());
            }
            rig.later(move || assert_eq!(ibv_destroy_qp(qp), 0));
            Ok(qp)
        }
    }

    /// Posts a receive to a work queue, with the queue's number as ID.
    fn post(&self, number: usize, memory: &Memory) {
        let mut sge = memory.sge(4096 + 64 * number, 64);
        let mut bad = null_mut();
        // SAFETY: live queue; the request lives through the call.
        unsafe {
            let mut wr: ibv_recv_wr = zeroed();
            (wr.wr_id, wr.sg_list, wr.num_sge) = (number as u64, &raw mut sge, 1);
            let queue = self.queues[number];
            assert_eq!((*queue).post_recv.unwrap()(queue, &raw mut wr, &raw mut bad), 0);
        }
    }

    /// The numbers and the statuses of the queues that completed a receive, and the CQ.
    fn received(&self) -> Vec<(u64, u32, usize)> {
        let of = |at: usize| poll_all(self.cqs[at]).into_iter().map(move |wc| (wc.wr_id, wc.status, at));
        of(0).chain(of(1)).collect()
    }
}

/// An IPv4 frame of 60 bytes to [`ONE`] from an address that ends with this byte.
fn ipv4_frame(from: u8) -> Vec<u8> {
    let mut bytes = vec![0; 60];
    bytes[..6].copy_from_slice(&ONE);
    bytes[12..15].copy_from_slice(&[8, 0, 0x45]);
    bytes[26..34].copy_from_slice(&[10, 0, 0, from, 10, 0, 1, 1]);
    bytes
}

#[test]
fn work_queues_have_states_and_users() {
    let mut rig = Rig::new();
    let sent = rig.cq(64);
    let sender = raw_qp(&mut rig, sent);
    let queues = Queues::new(&mut rig);
    // The hash covers no header that the frame has: every frame goes to the first queue.
    let spread = queues.spread(&mut rig, HASH_SOURCE_IPV6).unwrap();
    steer(&mut rig, spread, ONE, ALL, 0);
    let memory = rig.memory(8192);
    memory.put(0, &ipv4_frame(1));
    let frame_received = || {
        send(sender, 9, SIGNALED, &[memory.sge(0, 60)]);
        poll(sent, 1);
        queues.received()
    };
    queues.post(0, &memory);
    assert_eq!(frame_received(), [(0, 0, 0)]);
    assert_eq!(frame_received(), [], "without a receive the frame is dropped");
    let ops = extended(rig.ctx);
    // SAFETY: live objects; the calls are refused.
    unsafe {
        assert_eq!((*ops).destroy_wq.unwrap()(queues.queues[3]), EBUSY);
        assert_eq!((*ops).destroy_rwq_ind_table.unwrap()(queues.table), EBUSY);
    }
    assert_eq!(queues.spread(&mut rig, HASH_SOURCE_IPV4 | HASH_SOURCE_IPV6), Err(EINVAL));
    // In the error state receives are flushed; only RESET leads out of it.
    const FLUSHED: u32 = 5;
    queues.post(0, &memory);
    assert_eq!(queues.modify(&rig, queues.queues[0], ibv_wq_state::IBV_WQS_ERR), 0);
    assert_eq!(frame_received(), [(0, FLUSHED, 0)]);
    assert_eq!(queues.modify(&rig, queues.queues[0], ibv_wq_state::IBV_WQS_RDY), EINVAL);
    assert_eq!(queues.modify(&rig, queues.queues[0], ibv_wq_state::IBV_WQS_RESET), 0);
    assert_eq!(frame_received(), [], "a queue in RESET receives nothing");
    assert_eq!(queues.modify(&rig, queues.queues[0], ibv_wq_state::IBV_WQS_RDY), 0);
    queues.post(0, &memory);
    assert_eq!(frame_received(), [(0, 0, 0)]);
}
