//! Measures message rate and bandwidth between two processes on the software device, in both
//! directions at once.
//!
//! The example also gives the processor time per received message, which covers sending one message
//! and receiving one. On a shared machine this time says more than the rate.
//!
//! Run `cargo run --release -p mlx5-emu --example throughput [SECONDS]`.
#![expect(unsafe_code, reason = "raw verbs calls")]

#[path = "../tests/common/mod.rs"]
mod common;
#[path = "../tests/common/other.rs"]
mod other;

use common::*;
use other::{Other, line, say};
use std::mem::zeroed;
use std::ptr::null_mut;
use std::time::{Duration, Instant};

/// Sends in flight.
const WINDOW: usize = 64;
/// Every send with a multiple of this number is signalled.
const SIGNAL_EVERY: usize = 16;
const RECEIVES: usize = 512;

/// Processor time of this process in seconds.
fn cpu() -> f64 {
    // SAFETY: all-zero is a valid structure, which clock_gettime fills in.
    let mut time: libc::timespec = unsafe { zeroed() };
    // SAFETY: a valid place for the answer.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) };
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// One of the two processes. It sends to the other process and receives from it during `time`.
fn end(size: usize, time: Duration) {
    let mut rig = Rig::new();
    let (cq, srq) = (rig.cq(4096), rig.srq(RECEIVES as u32, 1));
    let qp = rig.qp(ibv_qp_type::IBV_QPT_RC, cq, cq, srq);
    let memory = rig.memory(2 * size.max(64));
    to_init(qp);
    say(&qpn(qp).to_string());
    to_rtr(qp, line().parse().unwrap());
    to_rts_with(qp, 14, 7, 7);
    let half = memory.len / 2;
    // SAFETY: live objects; requests and lists live through the calls.
    unsafe {
        let mut recv_sge = memory.sge(half, size as u32);
        let mut send_sge = memory.sge(0, size as u32);
        let mut recv: ibv_recv_wr = zeroed();
        (recv.sg_list, recv.num_sge) = (&raw mut recv_sge, 1);
        let mut send: ibv_send_wr = zeroed();
        (send.sg_list, send.num_sge, send.opcode) = (&raw mut send_sge, 1, ibv_wr_opcode::IBV_WR_SEND);
        for _ in 0..RECEIVES {
            assert_eq!(ibv_post_srq_recv(srq, &raw mut recv, &mut null_mut()), 0);
        }
        say("ready");
        line();
        let mut wcs: [ibv_wc; 64] = zeroed();
        let (mut sent, mut flying, mut received) = (0usize, 0usize, 0usize);
        let (start, cpu_before) = (Instant::now(), cpu());
        let mut stop = false;
        let mut quiet_since = start;
        loop {
            while !stop && flying < WINDOW.min(60) {
                sent += 1;
                flying += 1;
                send.send_flags = if sent.is_multiple_of(SIGNAL_EVERY) { SIGNALED } else { 0 };
                assert_eq!(ibv_post_send(qp, &raw mut send, &mut null_mut()), 0);
            }
            let n = ibv_poll_cq(cq, wcs.len() as i32, wcs.as_mut_ptr());
            let now = Instant::now();
            for wc in &wcs[..n as usize] {
                assert_eq!(wc.status, 0, "completion");
                if wc.opcode & 128 == 0 {
                    flying -= SIGNAL_EVERY;
                } else {
                    received += 1;
                    assert_eq!(ibv_post_srq_recv(srq, &raw mut recv, &mut null_mut()), 0);
                }
            }
            if !stop && now - start > time {
                stop = true;
                say(&format!("{sent} {received} {} {}", (now - start).as_secs_f64(), cpu() - cpu_before));
            }
            if n > 0 {
                quiet_since = now;
            }
            if stop && now - quiet_since > Duration::from_millis(500) {
                break;
            }
        }
    }
}

/// Starts the process of one end.
fn start(session: &str, size: usize, time: Duration) -> Other {
    let arguments = ["end", &size.to_string(), &time.as_secs_f64().to_string()];
    Other::start(&arguments, &[("MLX5_EMU_SESSION", session), ("MLX5_EMU_MODE", "auto")])
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    if let [_, word, size, time] = args.as_slice()
        && word == "end"
    {
        end(size.parse().unwrap(), Duration::from_secs_f64(time.parse().unwrap()));
        return;
    }
    let time = Duration::from_secs_f64(args.get(1).and_then(|text| text.parse().ok()).unwrap_or(2.0));
    for size in [48, 4096, 65_536, 1 << 20] {
        let session = format!("throughput-{}-{size}", std::process::id());
        let mut ends = [0, 1].map(|_| start(&session, size, time));
        let numbers = ends.each_mut().map(Other::says);
        ends[0].tell(&numbers[1]);
        ends[1].tell(&numbers[0]);
        for end in &mut ends {
            assert_eq!(end.says(), "ready");
        }
        for end in &mut ends {
            end.tell("go");
        }
        for (name, end) in ["one way", "the other"].iter().zip(&mut ends) {
            let said = end.says();
            let words: Vec<f64> = said.split(' ').map(|word| word.parse().unwrap()).collect();
            let rate = words[1] / words[2];
            println!(
                "{size:>8} bytes, {name:>9}: {rate:>9.0} messages/s, {:>7.1} MB/s, {:>8.2} us of processor time each",
                rate * size as f64 / 1e6,
                words[3] / words[1] * 1e6
            );
        }
        ends.into_iter().for_each(Other::ends_well);
    }
}
