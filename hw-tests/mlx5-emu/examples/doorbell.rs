//! Measures how long a driver that rings its own doorbells waits in mode `auto`, and how much
//! processor time an idle device uses.
//!
//! Run `cargo run --release -p mlx5-emu --example doorbell`. MLX5_EMU_WATCH=0 measures the device
//! without userfaultfd.
#![expect(unsafe_code, reason = "raw verbs calls")]

#[path = "../tests/common/mod.rs"]
mod common;
#[path = "../tests/common/direct.rs"]
mod direct;

use common::*;
use direct::*;
use std::ptr::null_mut;
use std::time::{Duration, Instant};

/// Processor time of this process.
fn cpu() -> Duration {
    // SAFETY: all-zero is a valid structure, which clock_gettime fills in.
    let mut time: libc::timespec = unsafe { std::mem::zeroed() };
    // SAFETY: a valid place for the answer.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) };
    Duration::new(time.tv_sec.cast_unsigned(), time.tv_nsec as u32)
}

fn main() {
    mlx5_emu::set_mode(mlx5_emu::Mode::Auto);
    let mut rig = Rig::new();
    let memory = rig.memory(4096);
    let cq = rig.cq(1024);
    let mut sq = DirectSq::new(rig.pair(cq, null_mut()).0);
    let mut cq = DirectCq::new(cq);
    let mut one = || {
        let words = sq.write_rdma(&memory.sge(0, 8), memory.at(1024), memory.rkey);
        let start = Instant::now();
        sq.ring_only(words);
        while cq.consume() == 0 {
            std::hint::spin_loop();
        }
        start.elapsed()
    };
    for (pause, rounds) in
        [(Duration::ZERO, 20_000), (Duration::from_micros(200), 2_000), (Duration::from_millis(20), 100)]
    {
        let mut times: Vec<Duration> = (0..rounds)
            .map(|_| {
                if !pause.is_zero() {
                    std::thread::sleep(pause);
                }
                one()
            })
            .collect();
        times.sort();
        println!(
            "doorbell to completion, {pause:?} between: median {:?}, 99 % {:?}, worst {:?}",
            times[rounds / 2],
            times[rounds * 99 / 100],
            times[rounds - 1]
        );
    }
    std::thread::sleep(Duration::from_millis(100));
    let before = cpu();
    std::thread::sleep(Duration::from_secs(1));
    println!("processor time of a quiet second: {:?}", cpu() - before);
}
