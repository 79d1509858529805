//! Threads with queues of their own on one device.
#![expect(unsafe_code, reason = "raw verbs calls")]

mod common;

use common::*;
use std::ptr::null_mut;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use ibv_wr_opcode::*;

/// QPs with their CQ, used by one thread.
struct Lane {
    qps: Vec<*mut ibv_qp>,
    cq: *mut ibv_cq,
}

// SAFETY: verbs objects may be used from any thread.
unsafe impl Send for Lane {}

/// QPs share doorbell registers, and a register keeps only the last doorbell. The device has to see
/// all doorbells.
#[test]
fn doorbells_of_threads_that_share_a_register_are_all_heard() {
    const ROUNDS: usize = 40_000;
    const THREADS: usize = 8;
    // More QPs than libmlx5 has registers for.
    const QPS: usize = 40;
    let mut rig = Rig::new();
    let memory = rig.memory(4096);
    let lanes: Vec<Lane> = (0..THREADS)
        .map(|_| {
            let cq = rig.cq(16);
            Lane { qps: (0..QPS).map(|_| rig.pair(cq, null_mut()).0).collect(), cq }
        })
        .collect();
    let (sge, at, rkey) = (memory.sge(0, 8), memory.at(2048), memory.rkey);
    let started = Barrier::new(THREADS);
    std::thread::scope(|scope| {
        for lane in lanes {
            let started = &started;
            scope.spawn(move || {
                let Lane { qps, cq } = { lane };
                for round in 0..ROUNDS {
                    // All threads ring at the same time. No thread rings again before its write is
                    // done, so no later doorbell reveals a lost one.
                    started.wait();
                    post_send(qps[round % QPS], round as u64, IBV_WR_RDMA_WRITE, SIGNALED, &[sge], |wr| {
                        wr.wr.rdma.remote_addr = at;
                        wr.wr.rdma.rkey = rkey;
                    });
                    let since = Instant::now();
                    while poll_all(cq).is_empty() {
                        if since.elapsed() > Duration::from_secs(5) {
                            eprintln!("write {round} was never done");
                            std::process::exit(1);
                        }
                    }
                }
            });
        }
    });
}
