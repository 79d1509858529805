//! Multicast groups within a process: who receives what, and what the commands refuse.
//! `programs_cm.rs` (mckey) has two processes.
#![expect(unsafe_code, reason = "raw verbs calls")]

mod common;

use common::*;
use std::ptr::null_mut;

const GROUP_QPN: u32 = 0xff_ffff;
const QKEY: u32 = 0x1111;

fn group(address: [u8; 4]) -> ibv_gid {
    let mut raw = [0; 16];
    raw[10..12].fill(0xff);
    raw[12..].copy_from_slice(&address);
    ibv_gid { raw }
}

const HERE: [u8; 4] = [239, 1, 2, 3];
const ELSEWHERE: [u8; 4] = [239, 1, 2, 4];

#[link(name = "ibverbs")]
unsafe extern "C" {
    fn ibv_attach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, lid: u16) -> i32;
    fn ibv_detach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, lid: u16) -> i32;
}

fn attach(qp: *mut ibv_qp, address: [u8; 4]) -> i32 {
    // SAFETY: live QP.
    unsafe { ibv_attach_mcast(qp, &group(address), 0) }
}

fn detach(qp: *mut ibv_qp, address: [u8; 4]) -> i32 {
    // SAFETY: live QP.
    unsafe { ibv_detach_mcast(qp, &group(address), 0) }
}

/// A sender and three receivers, each with 8 receives whose number is ten times its own.
struct Players {
    rig: Rig,
    sent: *mut ibv_cq,
    received: *mut ibv_cq,
    qps: Vec<*mut ibv_qp>,
    memory: Memory,
}

impl Players {
    fn new() -> Self {
        let mut rig = Rig::new();
        let (sent, received) = (rig.cq(64), rig.cq(64));
        let memory = rig.memory(4096);
        let qps: Vec<_> =
            (0..4).map(|_| rig.qp(ibv_qp_type::IBV_QPT_UD, sent, received, null_mut())).collect();
        for (number, &qp) in qps.iter().enumerate() {
            to_init(qp);
            to_rtr(qp, 0);
            to_rts_with(qp, 0, 0, 0);
            for i in 0..8 {
                assert_eq!(post_recv(qp, number as u64 * 10 + i, &[memory.sge(1024 + 256 * number, 200)]), 0);
            }
        }
        Self { rig, sent, received, qps, memory }
    }

    /// Sends a datagram from the first QP. Returns the QPs that have received it.
    fn send(&mut self, to: [u8; 4], key: u32) -> Vec<u64> {
        let mut attr = rtr_attr(0).ah_attr;
        attr.grh.dgid = group(to);
        let ah = self.rig.address_handle(&attr);
        post_send(self.qps[0], 99, ibv_wr_opcode::IBV_WR_SEND, SIGNALED, &[self.memory.sge(0, 100)], |wr| {
            wr.wr.ud.ah = ah;
            wr.wr.ud.remote_qpn = GROUP_QPN;
            wr.wr.ud.remote_qkey = key;
        });
        assert_eq!(poll(self.sent, 1)[0].wr_id, 99);
        let mut receivers: Vec<_> = poll_all(self.received).iter().map(|wc| wc.wr_id / 10).collect();
        receivers.sort_unstable();
        receivers
    }
}

#[test]
fn every_member_receives_and_nobody_else() {
    let mut players = Players::new();
    let [a, b, c, d] = [0, 1, 2, 3].map(|i| players.qps[i]);
    assert_eq!(players.send(HERE, QKEY), []);
    assert_eq!((attach(b, HERE), attach(c, HERE), attach(d, ELSEWHERE)), (0, 0, 0));
    players.memory.put(0, &[7; 100]);
    assert_eq!(players.send(HERE, QKEY), [1, 2]);
    for number in [1, 2] {
        let at = 1024 + 256 * number;
        assert_eq!(players.memory.get(at + 40, 100), [7; 100]);
        assert_eq!(players.memory.get(at + 36, 4), HERE, "destination of the IPv4 header");
    }
    assert_eq!(players.send(ELSEWHERE, QKEY), [3]);
    assert_eq!(players.send(HERE, 0x2222), [], "a wrong key");
    assert_eq!(attach(c, HERE), 0, "once more");
    assert_eq!(players.send(HERE, QKEY), [1, 2], "one copy for each QP");
    assert_eq!(attach(a, HERE), 0);
    assert_eq!(players.send(HERE, QKEY), [0, 1, 2], "a member receives what it sends itself");
    assert_eq!(detach(b, HERE), 0);
    assert_eq!(players.send(HERE, QKEY), [0, 2]);
    assert_eq!([(a, HERE), (c, HERE), (d, ELSEWHERE)].map(|(qp, at)| detach(qp, at)), [0; 3]);
    assert_eq!(players.send(HERE, QKEY), []);
}

#[test]
fn a_member_without_a_receive_loses_its_copy_only() {
    let mut players = Players::new();
    let (b, c) = (players.qps[1], players.qps[2]);
    assert_eq!((attach(b, HERE), attach(c, HERE)), (0, 0));
    for _ in 0..8 {
        assert_eq!(players.send(HERE, QKEY), [1, 2]);
    }
    assert_eq!(post_recv(c, 20, &[players.memory.sge(2048, 200)]), 0);
    assert_eq!(players.send(HERE, QKEY), [2]);
    assert_eq!((detach(b, HERE), detach(c, HERE)), (0, 0));
}

#[test]
fn refused_commands_have_the_kernels_errno() {
    let mut rig = Rig::new();
    let cq = rig.cq(16);
    let rc = rig.qp(ibv_qp_type::IBV_QPT_RC, cq, cq, null_mut());
    assert_eq!(attach(rc, HERE), libc::EINVAL, "not a datagram QP");
    let ud = rig.qp(ibv_qp_type::IBV_QPT_UD, cq, cq, null_mut());
    assert_eq!(attach(ud, [127, 0, 0, 1]), libc::EINVAL, "not a multicast address");
    assert_eq!(detach(ud, HERE), libc::EINVAL, "not attached");
    assert_eq!(attach(ud, HERE), 0);
    // SAFETY: live QP; it stays, and the rig destroys it.
    assert_eq!(unsafe { ibv_destroy_qp(ud) }, libc::EBUSY, "attached");
    assert_eq!(detach(ud, HERE), 0);
}
