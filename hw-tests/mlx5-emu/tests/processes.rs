//! Two processes: a ring in shared memory must not lose messages, mix them up or block.
#![expect(unsafe_code, reason = "processor affinity")]

mod common;
#[path = "common/end.rs"]
mod end;
#[path = "common/other.rs"]
mod other;

use common::*;
use end::End;
use other::{Other, line, say};
use std::ptr::null_mut;

use ibv_wr_opcode::*;

/// More than a ring holds.
const LONG: usize = 5 << 20;
/// Several messages of this size fill a ring.
const PIECE: usize = 64 << 10;
const PIECES: usize = 60;

/// Messages to and fro in a batch, and batches.
const BATCH: usize = 50;
const BATCHES: usize = 100;

/// A completion's status: the peer did not answer.
const RETRY_EXC: u32 = 12;

/// One end of a connection: a QP, its CQ, and memory of two messages.
struct Side {
    cq: *mut ibv_cq,
    qp: *mut ibv_qp,
    memory: Memory,
    _rig: Rig,
}

impl Side {
    fn new() -> Self {
        let mut rig = Rig::new();
        let cq = rig.cq(256);
        let qp = rig.qp(ibv_qp_type::IBV_QPT_RC, cq, cq, null_mut());
        let memory = rig.memory(2 * LONG);
        to_init(qp);
        Self { cq, qp, memory, _rig: rig }
    }

    /// The data that the other side needs.
    fn words(&self) -> String {
        End::line(self.qp, &self.memory)
    }

    /// Connects; returns the other side's rkey and address.
    fn connect(&self, words: &str) -> (u32, u64) {
        let other = End::read(words);
        to_rtr(self.qp, other.qpn);
        to_rts_with(self.qp, 8, 2, 7);
        (other.rkey, other.addr)
    }

    /// Polls until `count` completions have arrived.
    fn wait(&self, count: usize) -> Vec<ibv_wc> {
        let mut found = Vec::new();
        while found.len() < count {
            found.extend(poll_all(self.cq));
        }
        found
    }

    /// Polls until a message has arrived; returns the number of polls that found nothing.
    fn catch(&self) -> u32 {
        for vain in 0.. {
            if poll_all(self.cq).iter().any(|wc| wc.wr_id == 1) {
                return vain;
            }
        }
        unreachable!()
    }

    fn fill(&self, offset: usize, len: usize, seed: usize) {
        let bytes: Vec<u8> = (0..len).map(|i| pattern(i, seed)).collect();
        self.memory.put(offset, &bytes);
    }

    #[track_caller]
    fn check(&self, offset: usize, len: usize, seed: usize) {
        let bytes = self.memory.get(offset, len);
        let wrong = bytes.iter().enumerate().find(|&(i, &byte)| byte != pattern(i, seed));
        assert_eq!(wrong, None, "message {seed}");
    }
}

fn pattern(i: usize, seed: usize) -> u8 {
    (i.wrapping_mul(31) ^ i >> 9 ^ seed.wrapping_mul(77)) as u8
}

/// Binds this thread to the first processor that it may use.
fn stay_on_one_processor() {
    const SIZE: usize = size_of::<libc::cpu_set_t>();
    // SAFETY: the sets are plain bits, and the calls get their size. The numbers are within it.
    unsafe {
        let (mut allowed, mut one): (libc::cpu_set_t, libc::cpu_set_t) = std::mem::zeroed();
        assert_eq!(libc::sched_getaffinity(0, SIZE, &raw mut allowed), 0);
        let first = (0..8 * SIZE).find(|&cpu| libc::CPU_ISSET(cpu, &allowed)).expect("a processor");
        libc::CPU_SET(first, &mut one);
        assert_eq!(libc::sched_setaffinity(0, SIZE, &raw const one), 0);
    }
}

/// Starts a process that runs this part of [`other_process`].
fn start(part: &str) -> Other {
    Other::start(&["--exact", "other_process", "--ignored", "--nocapture"], &[("PROCESSES_PART", part)])
}

/// Connects with the other process.
fn meet(other: &mut Other) -> (Side, (u32, u64)) {
    let side = Side::new();
    other.tell(&side.words());
    let remote = side.connect(&other.says());
    (side, remote)
}

#[test]
#[ignore = "the second process of the other tests"]
fn other_process() {
    let part = std::env::var("PROCESSES_PART").expect("started by the other tests only");
    let side = Side::new();
    let words = line();
    match part.as_str() {
        "echo" => {
            assert_eq!(post_recv(side.qp, 1, &[side.memory.sge(0, LONG as u32)]), 0);
            side.fill(LONG, LONG, 3);
            side.connect(&words);
            say(&side.words());
            side.wait(1);
            side.check(0, LONG, 1);
            side.fill(0, LONG, 2);
            send(side.qp, 2, SIGNALED, &[side.memory.sge(0, LONG as u32)]);
            // First wait for the completion of the send. The peer's READ then needs polls of this
            // process.
            side.wait(1);
            say("sent");
            let reader = std::thread::spawn(line);
            while !reader.is_finished() {
                poll_all(side.cq);
            }
        }
        "sleep" => {
            for i in 0..PIECES {
                let piece = side.memory.sge(i * PIECE, PIECE as u32);
                assert_eq!(post_recv(side.qp, i as u64, &[piece]), 0);
            }
            side.connect(&words);
            say(&side.words());
            line();
            side.wait(PIECES);
            for i in 0..PIECES {
                side.check(i * PIECE, PIECE, i);
            }
        }
        "ball" => {
            stay_on_one_processor();
            side.connect(&words);
            say(&side.words());
            assert_eq!(post_recv(side.qp, 1, &[side.memory.sge(0, 8)]), 0);
            say("ready");
            for _ in 0..BATCHES * BATCH {
                side.catch();
                assert_eq!(post_recv(side.qp, 1, &[side.memory.sge(0, 8)]), 0);
                send(side.qp, 2, SIGNALED, &[side.memory.sge(8, 8)]);
            }
            let reader = std::thread::spawn(line);
            while !reader.is_finished() {
                poll_all(side.cq);
            }
        }
        "leave" => {
            assert_eq!(post_recv(side.qp, 1, &[side.memory.sge(0, 8)]), 0);
            side.connect(&words);
            say(&side.words());
            side.wait(1);
        }
        "die" => {
            side.connect(&words);
            say(&side.words());
            line();
        }
        "break" => {
            side.connect(&words);
            assert_eq!(post_recv(side.qp, 1, &[side.memory.sge(0, 8)]), 0);
            mlx5_emu::fatal_error();
            say(&side.words());
            let reader = std::thread::spawn(line);
            while !reader.is_finished() {
                assert_eq!(poll_all(side.cq).len(), 0, "a broken device delivers nothing");
            }
        }
        "ask" => {
            side.connect(&words);
            say(&side.words());
            send(side.qp, 1, SIGNALED, &[side.memory.sge(0, 8)]);
            assert_eq!(poll_all(side.cq).len(), 0);
            mlx5_emu::fatal_error();
            say("broken");
            line();
            for _ in 0..100 {
                assert_eq!(poll_all(side.cq).len(), 0, "a broken device completes nothing");
            }
        }
        other => panic!("no part {other}"),
    }
}

#[test]
fn messages_longer_than_a_ring_arrive_whole() {
    let mut other = start("echo");
    let (side, (rkey, addr)) = meet(&mut other);
    side.fill(0, LONG, 1);
    assert_eq!(post_recv(side.qp, 1, &[side.memory.sge(LONG, LONG as u32)]), 0);
    send(side.qp, 2, SIGNALED, &[side.memory.sge(0, LONG as u32)]);
    assert!(side.wait(2).iter().all(|wc| wc.status == 0));
    side.check(LONG, LONG, 2);
    assert_eq!(other.says(), "sent");
    let into = side.memory.sge(0, LONG as u32);
    let read = |wr: &mut ibv_send_wr| (wr.wr.rdma.remote_addr, wr.wr.rdma.rkey) = (addr + LONG as u64, rkey);
    assert_eq!(post_send(side.qp, 3, IBV_WR_RDMA_READ, SIGNALED, &[into], read), 0);
    assert_eq!(side.wait(1)[0].status, 0);
    side.check(0, LONG, 3);
    other.tell("done");
    other.ends_well();
}

#[test]
fn a_reader_that_looks_late_gets_everything_in_order() {
    let mut other = start("sleep");
    let (side, _) = meet(&mut other);
    for i in 0..PIECES {
        side.fill(i * PIECE, PIECE, i);
        send(side.qp, i as u64, SIGNALED, &[side.memory.sge(i * PIECE, PIECE as u32)]);
    }
    // The ring is full, and requests wait: nothing may complete.
    assert_eq!(poll_all(side.cq).len(), 0);
    other.tell("look");
    let done = side.wait(PIECES);
    assert!(done.iter().enumerate().all(|(i, wc)| (wc.status, wc.wr_id) == (0, i as u64)));
    other.ends_well();
}

/// Two processes that poll on one processor can only take turns. Other programs may disturb a
/// batch.
#[test]
fn peers_on_one_processor_soon_let_each_other_run() {
    stay_on_one_processor();
    let mut other = start("ball");
    let (side, _) = meet(&mut other);
    assert_eq!(other.says(), "ready");
    let mut polls: Vec<u32> = (0..BATCHES)
        .map(|_| {
            let throw = |_| {
                assert_eq!(post_recv(side.qp, 1, &[side.memory.sge(0, 8)]), 0);
                send(side.qp, 2, SIGNALED, &[side.memory.sge(8, 8)]);
                side.catch()
            };
            (0..BATCH).map(throw).sum()
        })
        .collect();
    polls.sort_unstable();
    assert!(polls[BATCHES / 2] < 30 * BATCH as u32, "polls in vain for {BATCH} messages each: {polls:?}");
    other.tell("done");
    other.ends_well();
}

#[test]
fn a_broken_device_does_not_answer() {
    let mut other = start("break");
    let (side, _) = meet(&mut other);
    send(side.qp, 1, SIGNALED, &[side.memory.sge(0, 8)]);
    assert_eq!(side.wait(1)[0].status, RETRY_EXC);
    other.tell("done");
    other.ends_well();
}

#[test]
fn a_broken_device_takes_no_answer() {
    let mut other = start("ask");
    let (side, _) = meet(&mut other);
    assert_eq!(other.says(), "broken");
    assert_eq!(post_recv(side.qp, 1, &[side.memory.sge(0, 8)]), 0);
    assert_eq!(side.wait(1)[0].status, 0);
    other.tell("answered");
    other.ends_well();
}

#[test]
fn a_peer_that_is_killed_fails_what_waits_for_it() {
    const FLUSHED: u32 = 5;
    let mut other = start("die");
    let (side, _) = meet(&mut other);
    for i in 0..PIECES {
        send(side.qp, i as u64, SIGNALED, &[side.memory.sge(0, PIECE as u32)]);
    }
    assert_eq!(poll_all(side.cq).len(), 0);
    drop(other);
    let done = side.wait(PIECES);
    assert_eq!((done[0].status, done[0].wr_id), (RETRY_EXC, 0));
    assert!(done[1..].iter().all(|wc| wc.status == FLUSHED), "the rest is flushed");
}

/// The sockets are looked at once in 64 steps. In one of the rounds that look is the first after
/// the end, and must not come before the answer is read.
#[test]
fn what_a_process_answers_before_it_ends_counts() {
    for steps in 0..64 {
        let mut other = start("leave");
        let (side, _) = meet(&mut other);
        for _ in 0..steps {
            assert_eq!(poll_all(side.cq).len(), 0);
        }
        send(side.qp, 1, SIGNALED, &[side.memory.sge(0, 8)]);
        other.ends_well();
        assert_eq!(side.wait(1)[0].status, 0, "after {steps} steps");
    }
}
