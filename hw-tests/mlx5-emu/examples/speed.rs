//! Measures the cost of a small SEND through an SRQ in one process on one core, split into the part
//! of libmlx5 and the part of the device.
//!
//! Run `cargo run --release -p mlx5-emu --example speed [REPEATS]`.
#![expect(unsafe_code, reason = "raw verbs calls")]

#[path = "../tests/common/mod.rs"]
mod common;

use common::*;
use std::mem::zeroed;
use std::ptr::null_mut;
use std::time::Instant;

const ROUNDS: usize = 20_000;
const BATCH: usize = 16;

fn one_run(a: *mut ibv_qp, srq: *mut ibv_srq, cq: *mut ibv_cq, memory: Memory) -> f64 {
    // SAFETY: live objects; requests and lists live through the calls.
    unsafe {
        let mut recv_sge = memory.sge(1024, 64);
        let mut send_sge = memory.sge(0, 48);
        let mut recv: ibv_recv_wr = zeroed();
        (recv.sg_list, recv.num_sge) = (&raw mut recv_sge, 1);
        let mut send: ibv_send_wr = zeroed();
        (send.sg_list, send.num_sge, send.opcode) = (&raw mut send_sge, 1, ibv_wr_opcode::IBV_WR_SEND);
        let mut wcs: [ibv_wc; 2 * BATCH] = zeroed();
        let start = Instant::now();
        for _ in 0..ROUNDS / BATCH {
            for i in 0..BATCH {
                assert_eq!(ibv_post_srq_recv(srq, &raw mut recv, &mut null_mut()), 0);
                send.send_flags = if i == BATCH - 1 { SIGNALED } else { 0 };
                assert_eq!(ibv_post_send(a, &raw mut send, &mut null_mut()), 0);
            }
            let mut seen = 0;
            while seen < BATCH + 1 {
                let n = ibv_poll_cq(cq, wcs.len() as i32, wcs.as_mut_ptr());
                assert!(n >= 0);
                seen += n as usize;
            }
        }
        start.elapsed().as_nanos() as f64 / ROUNDS as f64
    }
}

fn measure(idle: usize, repeats: usize) {
    let mut rig = Rig::new();
    let (cq, srq) = (rig.cq(4096), rig.srq(1000, 1));
    for _ in 0..idle / 2 {
        let other = rig.srq(16, 1);
        let _ = rig.pair(cq, if rig_turn(idle) { other } else { srq });
    }
    let (a, _) = rig.pair(cq, srq);
    let memory = rig.memory(4096);
    let mut runs: Vec<f64> = (0..repeats).map(|_| one_run(a, srq, cq, memory)).collect();
    runs.sort_by(f64::total_cmp);
    println!(
        "{:>5} idle QPs: post_srq_recv + post_send + engine + poll: median {:.0} ns, best {:.0} ns, worst {:.0} ns per message",
        idle,
        runs[runs.len() / 2],
        runs[0],
        runs[runs.len() - 1]
    );
}

fn rig_turn(idle: usize) -> bool {
    idle > 100
}

fn main() {
    let repeats = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(21);
    for idle in [0, 100, 1000] {
        measure(idle, repeats);
    }
}
