//! The contract of verbs at its edges: a program prints the same with and without the library, on
//! the software device. Only what the library does on purpose in another way is compared with
//! what it promises.
#![allow(missing_docs)]
#![expect(unsafe_code, reason = "calls of verbs")]

use std::{mem::zeroed, process::ExitCode, ptr::null_mut};

use doorbell_sys::*;
use libtest_mimic::{Arguments, Failed, Trial};

#[path = "common/both.rs"]
mod both;
#[path = "../../../hw-tests/mlx5-emu/tests/common/pairs.rs"]
#[allow(dead_code, reason = "pairs of programs are tested elsewhere")]
mod pairs;
#[path = "../../../hw-tests/mlx5-emu/tests/common/programs.rs"]
mod programs;
#[path = "../../tests/common/rig.rs"]
mod rig;
use both::{Taken, outputs, same};
use rig::Rig;

/// From this package's folder.
const WITH_EMU: &str = "../../hw-tests/with-emu";
const RUN: &str = env!("CARGO_BIN_EXE_doorbell-run");

/// A program of this test.
type Program = fn(&Rig);

const PROGRAMS: [(&str, Program); 4] =
    [("states", states), ("errors", errors), ("extended", extended), ("resized", resized)];

fn main() -> ExitCode {
    if let [_, mode, name] = &std::env::args().collect::<Vec<_>>()[..]
        && mode == "program"
    {
        let (_, program) = PROGRAMS.into_iter().find(|(known, _)| known == name).expect("a program");
        program(&Rig::open().expect("a device"));
        return ExitCode::SUCCESS;
    }
    let mut arguments = Arguments::from_args();
    arguments.test_threads = arguments.test_threads.or(Some(1));
    let trials = vec![
        Trial::test("posts_in_each_state_end_as_with_libmlx5", || same("states", Taken::All)),
        Trial::test("failed_requests_are_reported_as_by_libmlx5", || same("errors", Taken::All)),
        Trial::test("extended_posts_that_fail_or_are_given_up_end_as_with_libmlx5", || {
            same("extended", Taken::All)
        }),
        Trial::test("a_cq_that_was_taken_over_keeps_its_size", keeps_its_size),
    ];
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// libmlx5 resizes the CQ. The library says that it cannot, unless the size is enough; in both
/// cases no completion is lost.
fn keeps_its_size() -> Result<(), Failed> {
    let [without, with] = outputs("resized", Taken::All)?;
    let larger =
        |lines: &[String]| lines.iter().filter(|line| line.starts_with("larger: ")).cloned().collect();
    let (theirs, ours): (Vec<String>, Vec<String>) = (larger(&without), larger(&with));
    assert_eq!(theirs, ["larger: 0"; 2]);
    assert_eq!(ours, vec![format!("larger: {}", libc::EOPNOTSUPP); 2]);
    let others = |lines: Vec<String>| -> Vec<String> {
        lines.into_iter().filter(|line| !line.starts_with("larger: ")).collect()
    };
    assert_eq!(others(without), others(with));
    Ok(())
}

/// A pair of QPs with receive queues of their own, in RESET.
fn pair(rig: &Rig, cqs: [*mut ibv_cq; 2]) -> [*mut ibv_qp; 2] {
    cqs.map(|cq| {
        let change = |init: &mut ibv_qp_init_attr| {
            (init.cap.max_recv_wr, init.cap.max_recv_sge, init.cap.max_send_wr) = (32, 1, 16);
        };
        rig.qp_with(cq, cq, null_mut(), change).0
    })
}

fn modify(qp: *mut ibv_qp, state: ibv_qp_state::Type) {
    // SAFETY: plain attributes and a live QP.
    unsafe {
        let mut attr: ibv_qp_attr = zeroed();
        attr.qp_state = state;
        assert_eq!(ibv_modify_qp(qp, &mut attr, ibv_qp_attr_mask::IBV_QP_STATE.0 as i32), 0);
    }
}

/// Posts a receive of 64 bytes at an offset; the error number.
fn post_receive(rig: &Rig, qp: *mut ibv_qp, offset: usize, wr_id: u64) -> i32 {
    let mut sge = ibv_sge { addr: rig.addr(offset), length: 64, lkey: rig.lkey() };
    let mut wr = ibv_recv_wr { wr_id, next: null_mut(), sg_list: &mut sge, num_sge: 1 };
    // SAFETY: a live QP; the request lives through the call.
    unsafe { ibv_post_recv(qp, &mut wr, &mut null_mut()) }
}

/// Posts a signalled request of `length` bytes; the error number.
fn post(rig: &Rig, qp: *mut ibv_qp, opcode: u32, length: u32, rkey: u32, wr_id: u64) -> i32 {
    let mut sge = ibv_sge { addr: rig.addr(0), length, lkey: rig.lkey() };
    // SAFETY: integers and pointers only; a live QP; the request lives through the call.
    unsafe {
        let mut wr: ibv_send_wr = zeroed();
        (wr.wr_id, wr.sg_list, wr.num_sge, wr.opcode) = (wr_id, &mut sge, 1, opcode);
        wr.send_flags = ibv_send_flags::IBV_SEND_SIGNALED.0;
        wr.wr.rdma = rdma_t { remote_addr: rig.addr(8192), rkey };
        ibv_post_send(qp, &mut wr, &mut null_mut())
    }
}

/// Polls `n` completions into entries whose bytes were set, and prints what was written.
/// Completions of one QP and direction are in order; `wr_id` sorts those of different ones.
fn print_completions(cq: *mut ibv_cq, n: usize) {
    const SET: u8 = 0x5a;
    let mut lines = vec![];
    while lines.len() < n {
        // SAFETY: integers only; a live CQ and room for one completion.
        unsafe {
            let mut wc: ibv_wc = zeroed();
            (&raw mut wc).cast::<u8>().write_bytes(SET, size_of::<ibv_wc>());
            match ibv_poll_cq(cq, 1, &mut wc) {
                0 => std::thread::yield_now(),
                1 => lines.push(format!(
                    "  {}: status {}, error {:x}, opcode {:x}, {:x} bytes",
                    wc.wr_id,
                    wc.status,
                    if wc.status == 0 { 0 } else { wc.vendor_err },
                    wc.opcode,
                    wc.byte_len,
                )),
                error => panic!("ibv_poll_cq: {error}"),
            }
        }
    }
    lines.sort();
    lines.iter().for_each(|line| println!("{line}"));
}

/// Sends, receives and extended sends in each state of a QP.
fn states(rig: &Rig) {
    let cq = rig.cq(255, false);
    let qps = pair(rig, [cq; 2]);
    let mut next = 0;
    let mut both = |what: &str, accepted: usize| {
        let sent = post(rig, qps[0], ibv_wr_opcode::IBV_WR_SEND, 8, 0, next);
        let received = post_receive(rig, qps[0], 4096, 1000 + next);
        println!("{what}: send {sent}, receive {received}");
        print_completions(cq, accepted);
        next += 1;
    };
    both("RESET", 0);
    // SAFETY: a live QP and whole attributes.
    unsafe {
        let mut attr: ibv_qp_attr = zeroed();
        (attr.qp_state, attr.port_num) = (ibv_qp_state::IBV_QPS_INIT, 1);
        use ibv_qp_attr_mask as m;
        let mask = m::IBV_QP_STATE | m::IBV_QP_PKEY_INDEX | m::IBV_QP_PORT | m::IBV_QP_ACCESS_FLAGS;
        assert_eq!(ibv_modify_qp(qps[0], &mut attr, mask.0 as i32), 0);
    }
    both("INIT", 0);
    modify(qps[0], ibv_qp_state::IBV_QPS_RESET);
    both("RESET again", 0);
    rig.connect(qps[0], qps[1]);
    assert_eq!(post_receive(rig, qps[1], 8192, 500), 0);
    // The send and the peer's receive.
    both("RTS", 2);
    modify(qps[0], ibv_qp_state::IBV_QPS_ERR);
    // The receive of before, the send and the receive.
    both("ERR", 3);
    modify(qps[0], ibv_qp_state::IBV_QPS_RESET);
    both("RESET at the end", 0);
    rig.destroy(&qps, &[], &[cq]);
}

/// Failures of each kind that a device can be brought to, with a request behind that is flushed.
fn errors(rig: &Rig) {
    use ibv_wr_opcode::*;
    for (what, opcode, length, rkey) in [
        ("a wrong remote key", IBV_WR_RDMA_WRITE, 8, rig.rkey() ^ 0x5500),
        ("a wrong remote key of a read", IBV_WR_RDMA_READ, 8, rig.rkey() ^ 0x5500),
        ("a misaligned atomic", IBV_WR_ATOMIC_FETCH_AND_ADD, 8, rig.rkey()),
        ("a message that is too long", IBV_WR_SEND, 65, 0),
    ] {
        let cqs = [0; 2].map(|_| rig.cq(255, false));
        let qps = pair(rig, cqs);
        rig.connect(qps[0], qps[1]);
        println!("{what}");
        assert_eq!(post_receive(rig, qps[1], 4096, 100), 0);
        assert_eq!(post(rig, qps[0], IBV_WR_RDMA_WRITE, 16, rig.rkey(), 1), 0);
        let failing = if opcode == IBV_WR_ATOMIC_FETCH_AND_ADD {
            let mut sge = ibv_sge { addr: rig.addr(0), length: 8, lkey: rig.lkey() };
            // SAFETY: integers and pointers only; a live QP; the request lives through the call.
            unsafe {
                let mut wr: ibv_send_wr = zeroed();
                (wr.wr_id, wr.sg_list, wr.num_sge, wr.opcode) = (2, &mut sge, 1, opcode);
                wr.send_flags = ibv_send_flags::IBV_SEND_SIGNALED.0;
                wr.wr.atomic = atomic_t { remote_addr: rig.addr(8193), compare_add: 1, swap: 0, rkey };
                ibv_post_send(qps[0], &mut wr, &mut null_mut())
            }
        } else {
            post(rig, qps[0], opcode, length, rkey, 2)
        };
        assert_eq!(failing, 0);
        assert_eq!(post(rig, qps[0], IBV_WR_SEND, 8, 0, 3), 0);
        print_completions(cqs[0], 3);
        // The peer's receive is flushed, or failed already.
        modify(qps[1], ibv_qp_state::IBV_QPS_ERR);
        print_completions(cqs[1], 1);
        rig.destroy(&qps, &[], &cqs);
    }
}

/// Calls a function of an extended QP.
macro_rules! call {
    ($qp:expr, $function:ident($($argument:expr),*)) => {
        (*$qp).$function.expect("a function of the QP")($qp, $($argument),*)
    };
}

/// Extended sends: given up, with data that is too long, more than fit, after RESET.
fn extended(rig: &Rig) {
    const SEND: u64 = 1 << 3;
    let cq = rig.cq(255, false);
    let qps = [0; 2].map(|_| {
        rig.qp_ex(|init| {
            (init.qp_type, init.comp_mask, init.send_ops_flags) = (ibv_qp_type::IBV_QPT_RC, 1 | 64, SEND);
            (init.send_cq, init.recv_cq) = (cq, cq);
            (init.cap.max_recv_wr, init.cap.max_recv_sge, init.cap.max_inline_data) = (64, 1, 32);
        })
    });
    let qp = qps[0].cast::<ibv_qp_ex>();
    let text = [7_u8; 400];
    // SAFETY: a live QP that was made for sends; setters follow their operations; the text lives.
    let begin = |id: u64, len: usize| unsafe {
        ((*qp).wr_id, (*qp).wr_flags) = (id, ibv_send_flags::IBV_SEND_SIGNALED.0);
        call!(qp, wr_send());
        call!(qp, wr_set_inline_data(text.as_ptr().cast_mut().cast(), len));
    };
    for round in 0..3 {
        rig.connect(qps[0], qps[1]);
        for n in 0..40 {
            assert_eq!(post_receive(rig, qps[1], 4096, 1000 + n), 0);
        }
        // SAFETY: as above; each start ends with a completion or with giving up.
        unsafe {
            call!(qp, wr_start());
            begin(1, 20);
            begin(2, 20);
            call!(qp, wr_abort());
            call!(qp, wr_start());
            begin(3, 20);
            begin(4, 400);
            println!("too long in round {round}: {}", call!(qp, wr_complete()));
            call!(qp, wr_start());
            begin(5, 20);
            begin(6, 20);
            println!("good: {}", call!(qp, wr_complete()));
        }
        print_completions(cq, 4);
        // SAFETY: as above.
        unsafe {
            call!(qp, wr_start());
            (0..300).for_each(|n| begin(100 + n, 20));
            println!("more than fit: {}", call!(qp, wr_complete()));
            call!(qp, wr_start());
            begin(7, 20);
            println!("one: {}", call!(qp, wr_complete()));
        }
        print_completions(cq, 2);
        for qp in qps {
            modify(qp, ibv_qp_state::IBV_QPS_RESET);
        }
        // SAFETY: as above.
        unsafe {
            call!(qp, wr_start());
            begin(8, 20);
            println!("in RESET: {}", call!(qp, wr_complete()));
        }
    }
    rig.destroy(&qps, &[], &[cq]);
}

/// Messages before and after a CQ is resized, with completions that wait meanwhile.
fn resized(rig: &Rig) {
    let cq = rig.cq(63, false);
    let qps = pair(rig, [cq; 2]);
    rig.connect(qps[0], qps[1]);
    let send = |n: u64| {
        rig.write(0, &[n as u8; 8]);
        assert_eq!(post_receive(rig, qps[1], 4096, 1000 + n), 0);
        assert_eq!(post(rig, qps[0], ibv_wr_opcode::IBV_WR_SEND, 8, 0, n), 0);
    };
    // More messages than the CQ has entries, so that the marks of old entries are wrong.
    let messages = |first: u64| {
        for n in first..first + 200 {
            send(n);
            print_completions(cq, 2);
            assert_eq!(rig.read(4096, 8), [n as u8; 8]);
        }
    };
    messages(0);
    for (round, (what, entries)) in
        [("smaller", 31), ("larger", 255), ("larger", 500)].into_iter().enumerate()
    {
        let first = 1000 * (1 + round as u64);
        (first..first + 10).for_each(send);
        // Half of the completions wait, or come, while the CQ is resized.
        let mut seen = rig.verbs_poll(cq, 10);
        // SAFETY: a live CQ.
        println!("{what}: {}", unsafe { ibv_resize_cq(cq, entries) });
        seen.extend(rig.verbs_poll(cq, 10));
        let mut seen: Vec<_> = seen.iter().map(|wc| (wc.wr_id, wc.status)).collect();
        seen.sort_unstable();
        println!("{seen:?}");
        messages(first + 100);
    }
    rig.destroy(&qps, &[], &[cq]);
}
