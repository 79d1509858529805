//! Each work request completes exactly once, whatever goes wrong: refusals, timeouts, retries,
//! flushes, QPs that are connected to themselves, errors that cross, full completion queues.
#![expect(unsafe_code, reason = "raw verbs calls")]

mod common;
#[path = "common/end.rs"]
mod end;
#[path = "common/other.rs"]
mod other;

use std::collections::HashMap;
use std::mem::zeroed;
use std::ptr::null_mut;
use std::time::{Duration, Instant};

use common::*;
use end::End;
use ibv_qp_state::{IBV_QPS_ERR, IBV_QPS_RESET};
use ibv_qp_type::*;
use ibv_wr_opcode::*;
use mlx5_emu::{ComplaintKind, Fault, Rule, inject};
use other::{Other, line, say};

const GOOD: u32 = 0;
const LOC_LEN: u32 = 1;
const LOC_PROT: u32 = 4;
const FLUSH: u32 = 5;
const REM_INV_REQ: u32 = 9;
const REM_ACCESS: u32 = 10;
const REM_OP: u32 = 11;

/// A send request that several tests use.
#[derive(Clone, Copy)]
struct Send {
    id: u64,
    opcode: u32,
    signalled: bool,
    sge: ibv_sge,
    remote: u64,
    rkey: u32,
    to: Option<(*mut ibv_ah, u32)>,
}

/// Posts requests in one call; returns how many were accepted.
fn post(qp: *mut ibv_qp, sends: &[Send]) -> usize {
    let mut sges: Vec<ibv_sge> = sends.iter().map(|send| send.sge).collect();
    let mut list: Vec<ibv_send_wr> = Vec::new();
    for (send, sge) in sends.iter().zip(&mut sges) {
        // SAFETY: all-zero is a valid request.
        let mut wr: ibv_send_wr = unsafe { zeroed() };
        (wr.wr_id, wr.opcode, wr.sg_list, wr.num_sge) = (send.id, send.opcode, sge, 1);
        wr.send_flags = if send.signalled { SIGNALED } else { 0 };
        if let Some((ah, qpn)) = send.to {
            (wr.wr.ud.ah, wr.wr.ud.remote_qpn, wr.wr.ud.remote_qkey) = (ah, qpn, 0x1111);
        } else if send.opcode >= IBV_WR_ATOMIC_CMP_AND_SWP {
            wr.wr.atomic.remote_addr = send.remote;
            wr.wr.atomic.rkey = send.rkey;
        } else {
            wr.wr.rdma.remote_addr = send.remote;
            wr.wr.rdma.rkey = send.rkey;
        }
        list.push(wr);
    }
    for i in 1..list.len() {
        list[i - 1].next = &raw mut list[i];
    }
    let mut bad = null_mut();
    // SAFETY: live QP; the requests and their lists live through the call.
    if unsafe { ibv_post_send(qp, list.as_mut_ptr(), &raw mut bad) } == 0 {
        return list.len();
    }
    list.iter_mut().position(|wr| &raw mut *wr == bad).expect("the first request that was refused")
}

fn plain(id: u64, opcode: u32, sge: ibv_sge, remote: u64, rkey: u32) -> Send {
    Send { id, opcode, signalled: true, sge, remote, rkey, to: None }
}

/// Completions of `cq` as (wr_id, status).
fn done(cq: *mut ibv_cq) -> Vec<(u64, u32)> {
    poll_all(cq).iter().map(|wc| (wc.wr_id, wc.status)).collect()
}

/// A QP that is connected to itself learns why its responder refused a request, once, and each
/// later request is flushed once.
#[test]
fn qp_connected_to_itself_learns_the_cause_of_a_refusal_once() {
    /// Its length, and a change of its lkey.
    type Receive = (u32, u32);
    // Opcode, changes of rkey and remote address, the receive, and the status.
    let cases: [(u32, u32, u64, Option<Receive>, u32); 8] = [
        (IBV_WR_RDMA_WRITE, 0x8000, 0, None, REM_ACCESS),
        (IBV_WR_RDMA_READ, 0x8000, 0, None, REM_ACCESS),
        (IBV_WR_ATOMIC_FETCH_AND_ADD, 0x8000, 0, None, REM_ACCESS),
        (IBV_WR_RDMA_WRITE_WITH_IMM, 0x8000, 0, Some((64, 0)), REM_ACCESS),
        (IBV_WR_SEND, 0, 0, Some((4, 0)), REM_INV_REQ),
        (IBV_WR_SEND, 0, 0, Some((64, 0x4000)), REM_OP),
        (IBV_WR_ATOMIC_CMP_AND_SWP, 0, 4, None, REM_INV_REQ),
        (IBV_WR_SEND_WITH_IMM, 0, 0, Some((4, 0)), REM_INV_REQ),
    ];
    for (opcode, key_change, offset, receive, status) in cases {
        let mut rig = Rig::new();
        rig.expect(ComplaintKind::UnknownKey);
        let (send_cq, recv_cq) = (rig.cq(64), rig.cq(64));
        let qp = rig.qp(IBV_QPT_RC, send_cq, recv_cq, null_mut());
        connect(qp, qp);
        let memory = rig.memory(4096);
        if let Some((len, lkey_change)) = receive {
            let mut sge = memory.sge(1024, len);
            sge.lkey ^= lkey_change;
            assert_eq!(post_recv(qp, 100, &[sge]), 0);
        }
        let sends: Vec<Send> = (1..=4)
            .map(|id| plain(id, opcode, memory.sge(0, 8), memory.at(2048) + offset, memory.rkey ^ key_change))
            .collect();
        assert_eq!(post(qp, &sends), 4);
        mlx5_emu::advance_clock(Duration::from_secs(4));
        assert_eq!(done(send_cq), [(1, status), (2, FLUSH), (3, FLUSH), (4, FLUSH)], "opcode {opcode}");
        assert_eq!(done(recv_cq).len(), usize::from(receive.is_some()), "opcode {opcode}");
        assert_eq!(state(qp), IBV_QPS_ERR);
    }
}

/// Unreliable transports have no refusals: the send is done when the message has left.
#[test]
fn unreliable_send_to_itself_completes_before_its_receive_breaks_the_qp() {
    for kind in [IBV_QPT_UC, IBV_QPT_UD] {
        let mut rig = Rig::new();
        let (send_cq, recv_cq) = (rig.cq(64), rig.cq(64));
        let qp = rig.qp(kind, send_cq, recv_cq, null_mut());
        connect(qp, qp);
        let ah = rig.address_handle(&rtr_attr(0).ah_attr);
        let memory = rig.memory(4096);
        assert_eq!(post_recv(qp, 100, &[memory.sge(1024, 41)]), 0);
        let sends: Vec<Send> = (1..=3)
            .map(|id| Send {
                to: (kind == IBV_QPT_UD).then_some((ah, qpn(qp))),
                ..plain(id, IBV_WR_SEND, memory.sge(0, 64), 0, 0)
            })
            .collect();
        assert_eq!(post(qp, &sends), 3);
        assert_eq!(done(send_cq), [(1, GOOD), (2, FLUSH), (3, FLUSH)], "QP type {kind}");
        assert_eq!(done(recv_cq), [(100, LOC_LEN)], "QP type {kind}");
    }
}

#[test]
fn unreliable_write_without_the_right_to_is_dropped() {
    let mut rig = Rig::new();
    let cq = rig.cq(64);
    let (a, b) = (rig.qp(IBV_QPT_UC, cq, cq, null_mut()), rig.qp(IBV_QPT_UC, cq, cq, null_mut()));
    connect(a, b);
    connect(b, a);
    let mut attr = rtr_attr(0);
    attr.qp_access_flags = 0;
    // SAFETY: live QP.
    unsafe { assert_eq!(ibv_modify_qp(b, &raw mut attr, 8), 0) };
    let memory = rig.memory(4096);
    memory.put(0, &[1]);
    let write = plain(1, IBV_WR_RDMA_WRITE, memory.sge(0, 8), memory.at(64), memory.rkey);
    assert_eq!(post(a, &[write]), 1);
    assert_eq!(done(cq), [(1, GOOD)]);
    assert_eq!(memory.get(64, 1), [0]);
}

/// The receive CQ of a send that is under way overflows: the sender's QP breaks while the device
/// carries out its request.
#[test]
fn send_whose_receive_cq_overflows_completes_once() {
    let mut rig = Rig::new();
    let (send_cq, recv_cq) = (rig.cq(64), rig.cq(1));
    let qp = rig.qp(IBV_QPT_RC, send_cq, recv_cq, null_mut());
    connect(qp, qp);
    let memory = rig.memory(4096);
    for id in 100..103 {
        assert_eq!(post_recv(qp, id, &[memory.sge(1024, 64)]), 0);
    }
    let sends: Vec<Send> = (1..=4).map(|id| plain(id, IBV_WR_SEND, memory.sge(0, 8), 0, 0)).collect();
    assert_eq!(post(qp, &sends), 4);
    let ids: Vec<u64> = done(send_cq).iter().map(|(id, _)| *id).collect();
    assert_eq!(ids, [1, 2, 3, 4]);
    while async_event(rig.ctx).is_some() {}
}

/// A request that the requester itself refuses waits for the answers to the earlier ones.
#[test]
fn local_error_behind_a_request_to_another_process_lets_that_complete() {
    if std::env::var_os("OTHER").is_some() {
        return other_process();
    }
    for reads in [false, true] {
        let mut rig = Rig::new();
        let cq = rig.cq(64);
        let qp = rig.qp(IBV_QPT_RC, cq, cq, null_mut());
        let memory = rig.memory(4096);
        let mut other = Other::start(
            &["--exact", "local_error_behind_a_request_to_another_process_lets_that_complete", "--nocapture"],
            &[("OTHER", "1")],
        );
        let far = End::read(&other.says());
        to_init(qp);
        to_rtr(qp, far.qpn);
        to_rts_with(qp, 14, 7, 7);
        other.tell(&End::line(qp, &memory));
        other.says();
        let good = |id| plain(id, IBV_WR_RDMA_WRITE, memory.sge(0, 8), far.addr, far.rkey);
        let mut sends = [good(1), good(2), good(3), good(4)];
        sends[2].sge.addr = memory.at(memory.len - 4);
        if reads {
            (sends[0].opcode, sends[1].opcode) = (IBV_WR_RDMA_READ, IBV_WR_ATOMIC_FETCH_AND_ADD);
        }
        assert_eq!(post(qp, &sends), 4);
        let (mut found, start) = (Vec::new(), Instant::now());
        while found.last().is_none_or(|(id, _)| *id != 4) && start.elapsed() < Duration::from_secs(20) {
            found.extend(done(cq));
        }
        assert_eq!(found, [(1, GOOD), (2, GOOD), (3, LOC_PROT), (4, FLUSH)]);
        assert_eq!(done(cq), []);
        other.tell("end");
        other.ends_well();
    }
}

/// The other process: connects a QP and answers what comes, until it is told to end.
fn other_process() {
    mlx5_emu::set_mode(mlx5_emu::Mode::Auto);
    let mut rig = Rig::new();
    let cq = rig.cq(64);
    let qp = rig.qp(IBV_QPT_RC, cq, cq, null_mut());
    let memory = rig.memory(4096);
    to_init(qp);
    say(&End::line(qp, &memory));
    let near = End::read(&line());
    to_rtr(qp, near.qpn);
    to_rts_with(qp, 14, 7, 7);
    say("connected");
    line();
    mlx5_emu::set_mode(mlx5_emu::Mode::Stepped);
}

/// Two processes with several requests under way: refusals, lost answers, local errors, few
/// retries.
#[test]
fn every_request_to_another_process_completes_exactly_once() {
    if std::env::var_os("OTHER").is_some() {
        return random_receiver();
    }
    let mut rig = Rig::new();
    rig.expect(ComplaintKind::UnknownKey);
    let mut other = Other::start(
        &["--exact", "every_request_to_another_process_completes_exactly_once", "--nocapture"],
        &[("OTHER", "1")],
    );
    let cq = rig.cq(511);
    let memory = rig.memory(4096);
    let qp = rig.qp(IBV_QPT_RC, cq, cq, null_mut());
    for seed in 0..ROUNDS {
        let mut random = Random::new(seed);
        let far = End::read(&other.says());
        to_init(qp);
        to_rtr(qp, far.qpn);
        to_rts_with(qp, 1, random.below(3) as u8, random.below(4) as u8);
        other.tell(&End::line(qp, &memory));
        other.says();
        let (mut next, mut found, mut trace) = (0, HashMap::<u64, u32>::new(), Vec::new());
        for _ in 0..6 {
            let sends: Vec<Send> = (0..1 + random.below(6))
                .map(|_| {
                    next += 1;
                    let good = random.below(30);
                    let opcodes = [
                        IBV_WR_SEND,
                        IBV_WR_SEND,
                        IBV_WR_RDMA_WRITE,
                        IBV_WR_RDMA_READ,
                        IBV_WR_ATOMIC_FETCH_AND_ADD,
                    ];
                    let rkey = far.rkey ^ if good == 0 { 0x8000 } else { 0 };
                    let sge = memory.sge(if good == 1 { 4092 } else { 0 }, 8);
                    plain(next, opcodes[random.below(5)], sge, far.addr, rkey)
                })
                .collect();
            if random.one_in(4) {
                let fault = if random.one_in(2) { Fault::Drop } else { Fault::Error(0x14) };
                inject(Rule::once(fault).after(random.below(4) as u32).at(qpn(qp)));
            }
            trace.extend(sends.iter().map(|send| (send.id, send.opcode)));
            assert_eq!(post(qp, &sends), sends.len());
            for _ in 0..random.below(200) {
                done(cq).iter().for_each(|(id, _)| *found.entry(*id).or_default() += 1);
            }
            mlx5_emu::advance_clock(Duration::from_micros(random.below(20_000) as u64));
        }
        mlx5_emu::no_faults();
        assert_eq!(set_state(qp, IBV_QPS_ERR), 0);
        done(cq).iter().for_each(|(id, _)| *found.entry(*id).or_default() += 1);
        other.tell("end of round");
        other.says();
        done(cq).iter().for_each(|(id, _)| *found.entry(*id).or_default() += 1);
        for id in 1..=next {
            assert_eq!(found.get(&id), Some(&1), "seed {seed}, request {id} of {trace:?}");
        }
        assert_eq!(set_state(qp, IBV_QPS_RESET), 0);
    }
    other.ends_well();
}

const ROUNDS: u64 = 60;

/// The other process: posts receives, too few, and some too short.
fn random_receiver() {
    let mut rig = Rig::new();
    let cq = rig.cq(511);
    let memory = rig.memory(4096);
    let qp = rig.qp(IBV_QPT_RC, cq, cq, null_mut());
    for seed in 0..ROUNDS {
        let mut random = Random::new(!seed);
        to_init(qp);
        say(&End::line(qp, &memory));
        let near = End::read(&line());
        to_rtr(qp, near.qpn);
        to_rts_with(qp, 14, 7, 7);
        for id in 0..random.below(16) as u64 {
            let len = if random.one_in(12) { 4 } else { 64 };
            assert_eq!(post_recv(qp, id, &[memory.sge(1024, len)]), 0);
        }
        mlx5_emu::set_mode(mlx5_emu::Mode::Auto);
        say("connected");
        line();
        mlx5_emu::set_mode(mlx5_emu::Mode::Stepped);
        assert_eq!(set_state(qp, IBV_QPS_ERR), 0);
        poll_all(cq);
        assert_eq!(set_state(qp, IBV_QPS_RESET), 0);
        say("ended");
    }
}

/// Numbers that look random and depend only on the seed.
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as usize) % limit
    }

    fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }
}

/// The requests of one run, and the completions that came.
#[derive(Default)]
struct Ledger {
    next: u64,
    /// Signalled or not, by wr_id.
    sends: HashMap<u64, bool>,
    receives: HashMap<u64, bool>,
    found: HashMap<u64, u32>,
    trace: Vec<String>,
}

impl Ledger {
    fn take(&mut self, cqs: &[*mut ibv_cq]) {
        for &cq in cqs {
            for (id, status) in done(cq) {
                *self.found.entry(id).or_default() += 1;
                self.trace.push(format!("completion {id}: {status}"));
            }
        }
    }
}

/// Runs a random history on a few QPs and breaks them all at its end.
fn history(seed: u64, mut rig: Rig) {
    const STEPS: usize = 60;
    let mut random = Random::new(seed);
    rig.expect(ComplaintKind::UnknownKey);
    // Words of an earlier post in the register: the check knows the last few WQEs only.
    rig.expect(ComplaintKind::BlueFlameTorn);
    let mut ledger = Ledger::default();
    let kind = [IBV_QPT_RC, IBV_QPT_RC, IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD][random.below(5)];
    // A small CQ overflows; what its overflow loses is not looked for.
    let mut overflows = false;
    let mut size = |random: &mut Random| {
        let small = random.one_in(6);
        overflows |= small;
        if small { 7 } else { 511 }
    };
    let send_cq = rig.cq(size(&mut random));
    let recv_cq = if random.one_in(3) { send_cq } else { rig.cq(size(&mut random)) };
    let srq = if random.one_in(2) { rig.srq(64, 1) } else { null_mut() };
    let count = 1 + random.below(4);
    let qps: Vec<*mut ibv_qp> = (0..count).map(|_| rig.qp(kind, send_cq, recv_cq, srq)).collect();
    // Pairs; the last of an odd number is connected to itself.
    let peer = |i: usize| if i ^ 1 < count { i ^ 1 } else { i };
    let (retry, rnr) = (random.below(8) as u8, random.below(8) as u8);
    let up = |i: usize| {
        to_init(qps[i]);
        to_rtr(qps[i], qpn(qps[peer(i)]));
        to_rts_with(qps[i], 1, retry, rnr);
    };
    (0..count).for_each(&up);
    let memory = rig.memory(4096);
    let ah = rig.address_handle(&rtr_attr(0).ah_attr);
    let mut broken = memory.sge(0, 8);
    broken.addr = memory.at(4092);

    for _ in 0..STEPS {
        let i = random.below(count);
        match random.below(14) {
            0..6 => {
                let sends: Vec<Send> = (0..1 + random.below(4))
                    .map(|_| {
                        let choice = [
                            IBV_WR_SEND,
                            IBV_WR_SEND,
                            IBV_WR_SEND_WITH_IMM,
                            IBV_WR_RDMA_WRITE,
                            IBV_WR_RDMA_WRITE_WITH_IMM,
                            IBV_WR_RDMA_READ,
                            IBV_WR_ATOMIC_FETCH_AND_ADD,
                        ];
                        let allowed = match kind {
                            IBV_QPT_RC => 7,
                            IBV_QPT_UC => 5,
                            _ => 3,
                        };
                        let good = random.below(24);
                        ledger.next += 1;
                        Send {
                            id: ledger.next,
                            opcode: choice[random.below(allowed)],
                            signalled: !random.one_in(4),
                            sge: match good {
                                0 => broken,
                                1 => memory.sge(0, 200),
                                _ => memory.sge(0, 8),
                            },
                            remote: memory.at(1024) + if good == 2 { 4 } else { 0 },
                            rkey: memory.rkey ^ if good == 3 { 0x8000 } else { 0 },
                            to: (kind == IBV_QPT_UD).then_some((ah, qpn(qps[peer(i)]))),
                        }
                    })
                    .collect();
                let posted = post(qps[i], &sends);
                for send in &sends[..posted] {
                    ledger.sends.insert(send.id, send.signalled);
                    ledger.trace.push(format!("QP {i} send {}: opcode {}", send.id, send.opcode));
                }
            }
            6..9 => {
                ledger.next += 1;
                let id = ledger.next;
                let good = random.below(16);
                let sge = if good == 0 { broken } else { memory.sge(2048, if good == 1 { 4 } else { 128 }) };
                let posted = if srq.is_null() {
                    post_recv(qps[i], id, &[sge]) == 0
                } else {
                    post_srq(srq, id, &[sge]) == 0
                };
                if posted {
                    // What is left in an SRQ stays there.
                    ledger.receives.insert(id, srq.is_null());
                    ledger.trace.push(format!("QP {i} receive {id}"));
                }
            }
            9 => mlx5_emu::advance_clock(Duration::from_millis(1 + random.below(20) as u64)),
            10 => {
                let fault = match random.below(4) {
                    0 => Fault::Drop,
                    1 => Fault::NotReady,
                    2 => Fault::Delay(1 + random.below(3000) as u64),
                    _ => Fault::Error(if random.one_in(2) { 0x14 } else { 4 }),
                };
                ledger.trace.push(format!("QP {i} {fault:?}"));
                inject(Rule::once(fault).at(qpn(qps[i])).times(1 + random.below(3) as u32));
            }
            11 if random.one_in(4) => {
                ledger.trace.push(format!("QP {i} to error"));
                assert_eq!(set_state(qps[i], IBV_QPS_ERR), 0);
            }
            12 => {
                let is_up = !random.one_in(3);
                ledger.trace.push(format!("port up: {is_up}"));
                mlx5_emu::set_port(is_up);
            }
            _ => mlx5_emu::step(),
        }
        if random.one_in(3) {
            ledger.take(&[send_cq, recv_cq]);
        }
    }
    mlx5_emu::no_faults();
    mlx5_emu::set_port(true);
    for &qp in &qps {
        assert_eq!(set_state(qp, IBV_QPS_ERR), 0);
    }
    mlx5_emu::step();
    mlx5_emu::advance_clock(Duration::from_secs(10));
    mlx5_emu::step();
    ledger.take(&[send_cq, recv_cq]);
    let overflowed = async_events(rig.ctx).contains(&0);
    assert!(overflows || !overflowed, "seed {seed}: a large CQ overflowed");
    for (id, &must) in ledger.sends.iter().chain(&ledger.receives) {
        let times = ledger.found.get(id).copied().unwrap_or(0);
        let right = times == 1 || times == 0 && (!must || overflowed);
        assert!(right, "seed {seed}: request {id} completed {times} times\n{}", ledger.trace.join("\n"));
    }
    let unknown =
        ledger.found.keys().find(|id| !ledger.sends.contains_key(id) && !ledger.receives.contains_key(id));
    assert_eq!(unknown, None, "seed {seed}: completion of nothing\n{}", ledger.trace.join("\n"));
    // A QP that was reset works again, and completes what is posted to it then and no more.
    let qp = qps[0];
    assert_eq!(set_state(qp, IBV_QPS_RESET), 0);
    if !overflowed {
        up(0);
        assert_eq!(set_state(qp, IBV_QPS_ERR), 0);
        mlx5_emu::step();
        ledger.found.clear();
        ledger.take(&[send_cq, recv_cq]);
        assert!(ledger.found.is_empty(), "seed {seed}: completions after a reset");
    }
}

/// With the engine in explicit steps, several requests are under way together.
#[test]
fn every_request_completes_exactly_once() {
    for seed in 0..600 {
        history(seed, if seed % 2 == 0 { Rig::manual() } else { Rig::new() });
    }
}
