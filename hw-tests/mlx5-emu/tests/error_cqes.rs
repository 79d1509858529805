//! Error CQEs hold what real cards were seen to write, also where no driver may rely on it: the
//! vendor's syndrome, the cause of a local error, the solicited bit, a signature.
#![expect(unsafe_code, reason = "raw queue memory")]

mod common;
#[path = "common/direct.rs"]
mod direct;

use std::ptr::null_mut;
use std::time::Duration;

use common::*;
use direct::DirectCq;
use ibv_qp_type::IBV_QPT_RC;
use ibv_wr_opcode::*;
use mlx5_emu::{ComplaintKind, Fault, Rule, inject};

/// A connected pair with a CQ for each kind of completion.
struct Bench {
    rig: Rig,
    a: *mut ibv_qp,
    b: *mut ibv_qp,
    memory: Memory,
    sent: DirectCq,
    received: DirectCq,
}

impl Bench {
    fn new() -> Self {
        let mut rig = Rig::new();
        rig.expect(ComplaintKind::UnknownKey);
        rig.expect(ComplaintKind::BadSendWqe);
        let (send_cq, recv_cq) = (rig.cq(16), rig.cq(16));
        let [a, b] = [(); 2].map(|()| rig.qp(IBV_QPT_RC, send_cq, recv_cq, null_mut()));
        for (qp, peer) in [(a, b), (b, a)] {
            to_init(qp);
            to_rtr(qp, qpn(peer));
            to_rts_with(qp, 1, 0, 0);
        }
        let memory = rig.memory(4096);
        let (sent, received) = (DirectCq::new(send_cq), DirectCq::new(recv_cq));
        Self { rig, a, b, memory, sent, received }
    }

    fn post(&self, opcode: u32, sge: ibv_sge, remote: u64, rkey: u32) {
        post_send(self.a, 1, opcode, SIGNALED, &[sge], |wr| {
            if opcode >= IBV_WR_ATOMIC_CMP_AND_SWP {
                (wr.wr.atomic.remote_addr, wr.wr.atomic.rkey) = (remote, rkey);
            } else {
                (wr.wr.rdma.remote_addr, wr.wr.rdma.rkey) = (remote, rkey);
            }
        });
        mlx5_emu::advance_clock(Duration::from_secs(1));
        mlx5_emu::step();
    }
}

/// Checks an error CQE. `causes` is the syndrome and the vendor's.
fn check(what: &str, cqe: &[u8; 64], opcode: u8, (syndrome, vendor): (u8, u8), is_local: bool) {
    assert_eq!((cqe[55], cqe[54]), (syndrome, vendor), "{what}: syndrome and the vendor's");
    assert_eq!(cqe[63] & 0xfe, opcode << 4 | 2, "{what}: opcode and the solicited bit");
    assert_eq!(cqe[52..54] != [0, 0], is_local, "{what}: the device's own cause");
    assert_ne!(cqe[62], 0, "{what}: signature");
}

#[test]
fn requester_errors_hold_what_cards_write() {
    const REQ_ERR: u8 = 13;
    type Act = fn(&mut Bench);
    let cases: [(&str, Act, (u8, u8), bool); 13] = [
        (
            "SEND with an unknown lkey",
            |x| {
                let mut sge = x.memory.sge(0, 8);
                sge.lkey ^= 0x4000;
                x.post(IBV_WR_SEND, sge, 0, 0);
            },
            (0x04, 0x52),
            true,
        ),
        (
            "SEND from outside a region",
            |x| x.post(IBV_WR_SEND, x.memory.sge(4092, 8), 0, 0),
            (0x04, 0x53),
            true,
        ),
        (
            "READ into memory without local write",
            |x| {
                let fixed = x.rig.memory_with(64, 0);
                x.post(IBV_WR_RDMA_READ, fixed.sge(0, 8), x.memory.at(0), x.memory.rkey);
            },
            (0x04, 0x33),
            true,
        ),
        (
            "READ into an unknown lkey",
            |x| {
                let mut sge = x.memory.sge(0, 8);
                sge.lkey ^= 0x4000;
                x.post(IBV_WR_RDMA_READ, sge, x.memory.at(0), x.memory.rkey);
            },
            (0x04, 0x32),
            true,
        ),
        (
            "WRITE with an unknown rkey",
            |x| x.post(IBV_WR_RDMA_WRITE, x.memory.sge(0, 8), x.memory.at(0), x.memory.rkey ^ 0x4000),
            (0x13, 0x88),
            false,
        ),
        (
            "misaligned atomic",
            |x| x.post(IBV_WR_ATOMIC_FETCH_AND_ADD, x.memory.sge(0, 8), x.memory.at(4), x.memory.rkey),
            (0x12, 0x8a),
            false,
        ),
        (
            "SEND longer than the receive",
            |x| {
                post_recv(x.b, 2, &[x.memory.sge(0, 4)]);
                x.post(IBV_WR_SEND, x.memory.sge(0, 8), 0, 0);
            },
            (0x12, 0x8a),
            false,
        ),
        (
            "SEND to a receive with an unknown lkey",
            |x| {
                let mut sge = x.memory.sge(0, 64);
                sge.lkey ^= 0x4000;
                post_recv(x.b, 2, &[sge]);
                x.post(IBV_WR_SEND, x.memory.sge(0, 8), 0, 0);
            },
            (0x14, 0x89),
            false,
        ),
        ("no receive", |x| x.post(IBV_WR_SEND, x.memory.sge(0, 8), 0, 0), (0x16, 0x87), false),
        (
            "no answer",
            |x| {
                inject(Rule::once(Fault::Drop).times(0));
                x.post(IBV_WR_SEND, x.memory.sge(0, 8), 0, 0);
            },
            (0x15, 0x81),
            false,
        ),
        (
            "a segment of length 0",
            |x| {
                let mut queue = direct::DirectSq::new(x.a);
                queue.send(&x.memory.sge(0, 0));
            },
            (0x01, 0x68),
            true,
        ),
        (
            "a queue in error",
            |x| {
                set_state(x.a, ibv_qp_state::IBV_QPS_ERR);
                x.post(IBV_WR_SEND, x.memory.sge(0, 8), 0, 0);
            },
            (0x05, 0xf9),
            false,
        ),
        (
            "an operation that the QP does not have",
            |x| {
                let mut queue = direct::DirectSq::new(x.a);
                let words = queue.write(&x.memory.sge(0, 8));
                // SAFETY: the first word of the WQE just written.
                unsafe { direct::store32(queue.buf, words.0 | 0x40) };
                queue.ring((words.0 | 0x40, words.1));
            },
            (0x02, 0x68),
            true,
        ),
    ];
    for (what, act, causes, is_local) in cases {
        let mut bench = Bench::new();
        act(&mut bench);
        check(what, &bench.sent.bytes_before(0), REQ_ERR, causes, is_local);
    }
}

#[test]
fn responder_errors_hold_what_cards_write() {
    const RESP_ERR: u8 = 14;
    type Receive = fn(&Memory) -> ibv_sge;
    let cases: [(&str, Receive, (u8, u8)); 3] = [
        ("message longer than the receive", |memory| memory.sge(0, 4), (0x01, 0xd4)),
        (
            "receive with an unknown lkey",
            |memory| {
                let mut sge = memory.sge(0, 64);
                sge.lkey ^= 0x4000;
                sge
            },
            (0x04, 0x32),
        ),
        ("receive outside its region", |memory| memory.sge(4092, 64), (0x04, 0x33)),
    ];
    for (what, receive, causes) in cases {
        let bench = Bench::new();
        post_recv(bench.b, 2, &[receive(&bench.memory)]);
        post_recv(bench.b, 3, &[bench.memory.sge(0, 64)]);
        bench.post(IBV_WR_SEND, bench.memory.sge(0, 8), 0, 0);
        let cqe = bench.received.bytes_before(0);
        check(what, &cqe, RESP_ERR, causes, true);
        assert_eq!(u32::from_be_bytes(cqe[44..48].try_into().unwrap()), 8, "{what}: byte count");
        assert_eq!(u32::from_be_bytes(cqe[24..28].try_into().unwrap()), qpn(bench.a), "{what}: sender");
        let flushed = bench.received.bytes_before(1u32.wrapping_neg());
        check("flushed", &flushed, RESP_ERR, (0x05, 0xf9), false);
    }
}
