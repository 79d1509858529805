//! The device's clock: completions with timestamps, and the page through which a program reads the
//! clock.
#![expect(unsafe_code, reason = "raw verbs calls")]

mod common;

use std::mem::zeroed;
use std::ptr::null_mut;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use common::*;

const CYCLES: u64 = 1 << 7;
const REAL_TIME: u64 = 1 << 11;

/// A CQ whose completions carry timestamps.
fn stamped_cq(rig: &mut Rig, flags: u64) -> *mut ibv_cq_ex {
    // SAFETY: live context; all-zero is a valid attribute structure.
    let cq = unsafe {
        let mut attr: ibv_cq_init_attr_ex = zeroed();
        (attr.cqe, attr.wc_flags) = (16, flags);
        (*extended(rig.ctx)).create_cq_ex.unwrap()(rig.ctx, &raw mut attr)
    };
    assert!(!cq.is_null(), "create_cq_ex: {}", std::io::Error::last_os_error());
    // SAFETY: destroyed once.
    rig.later(move || unsafe { assert_eq!(ibv_destroy_cq(cq.cast()), 0) });
    cq
}

/// Sends one message from a QP to itself. Returns the value that `read` finds in its send
/// completion.
fn send_one(rig: &mut Rig, cq: *mut ibv_cq_ex, read: impl Fn(*mut ibv_cq_ex) -> u64) -> u64 {
    let plain = rig.cq(16);
    let (a, b) = (
        rig.qp(ibv_qp_type::IBV_QPT_RC, cq.cast(), plain, null_mut()),
        rig.qp(ibv_qp_type::IBV_QPT_RC, plain, plain, null_mut()),
    );
    connect(a, b);
    connect(b, a);
    let memory = rig.memory(4096);
    assert_eq!(post_recv(b, 1, &[memory.sge(0, 64)]), 0);
    send(a, 2, SIGNALED, &[memory.sge(64, 64)]);
    // SAFETY: live CQ, polled as the manual says.
    unsafe {
        let mut attr: ibv_poll_cq_attr = zeroed();
        assert_eq!((*cq).start_poll.unwrap()(cq, &raw mut attr), 0);
        let value = read(cq);
        (*cq).end_poll.unwrap()(cq);
        value
    }
}

fn read_clock(rig: &Rig) -> u64 {
    // SAFETY: live context; all-zero is valid.
    unsafe {
        let mut values: ibv_values_ex = zeroed();
        values.comp_mask = 1;
        assert_eq!((*extended(rig.ctx)).query_rt_values.unwrap()(rig.ctx, &raw mut values), 0);
        values.raw_clock.tv_nsec as u64
    }
}

#[test]
fn a_completion_carries_the_clock_that_a_program_reads() {
    let mut rig = Rig::new();
    let cq = stamped_cq(&mut rig, CYCLES);
    let before = read_clock(&rig);
    // SAFETY: between start_poll and end_poll.
    let stamp = send_one(&mut rig, cq, |cq| unsafe { (*cq).read_completion_ts.unwrap()(cq) });
    let after = read_clock(&rig);
    assert!(before < stamp && stamp < after, "{before} {stamp} {after}");
    mlx5_emu::advance_clock(Duration::from_secs(5));
    assert!(read_clock(&rig) >= after + 5_000_000_000);
}

#[test]
fn a_completion_carries_the_real_time_when_asked_for() {
    let mut rig = Rig::new();
    let cq = stamped_cq(&mut rig, REAL_TIME);
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let before = now();
    // SAFETY: between start_poll and end_poll.
    let stamp = send_one(&mut rig, cq, |cq| unsafe { (*cq).read_completion_wallclock_ns.unwrap()(cq) });
    // The card writes seconds and nanoseconds, and libmlx5 passes both on unchanged.
    let stamp = Duration::new(stamp >> 32, stamp as u32);
    // Other tests advance the device's time.
    assert!(before <= stamp && stamp <= now() + Duration::from_secs(10), "{before:?} {stamp:?}");
}
