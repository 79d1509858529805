//! The contract of verbs at its edges: a program prints the same with and without the library, on
//! the software device. Only what the library does on purpose in another way is compared with
//! what it promises.
#![allow(missing_docs)]
#![expect(unsafe_code, reason = "calls of verbs")]

use std::{mem::zeroed, process::ExitCode, ptr::null_mut};

use doorbell_sys::*;
use libtest_mimic::{Arguments, Trial};

#[path = "common/both.rs"]
mod both;
use both::{Taken, rig::Rig, same};

/// A program of this test.
type Program = fn(&Rig);

const PROGRAMS: [(&str, Program); 6] = [
    ("states", states),
    ("errors", errors),
    ("dumps", dumps),
    ("extended", extended),
    ("operations", operations),
    ("resized", resized),
];

fn main() -> ExitCode {
    if let [_, mode, name] = &std::env::args().collect::<Vec<_>>()[..]
        && mode == "program"
    {
        let (_, program) = PROGRAMS.into_iter().find(|(known, _)| known == name).expect("a program");
        if name == "dumps" {
            // SAFETY: the only thread; libmlx5 reads the variable when a device is opened.
            unsafe { std::env::set_var("MLX5_DEBUG_FILE", debug_file()) };
        }
        program(&Rig::open().expect("a device"));
        if name == "dumps" {
            print_debug_file();
        }
        return ExitCode::SUCCESS;
    }
    let mut arguments = Arguments::from_args();
    arguments.test_threads = arguments.test_threads.or(Some(1));
    let trials = vec![
        Trial::test("posts_in_each_state_end_as_with_libmlx5", || same("states", Taken::All)),
        Trial::test("failed_requests_are_reported_as_by_libmlx5", || same("errors", Taken::All)),
        Trial::test("failed_requests_are_in_the_debug_file_as_of_libmlx5", || same("dumps", Taken::All)),
        Trial::test("extended_posts_that_fail_or_are_given_up_end_as_with_libmlx5", || {
            same("extended", Taken::All)
        }),
        Trial::test("extended_operations_have_the_effects_of_libmlx5s", || same("operations", Taken::All)),
        Trial::test("a_resized_cq_gives_the_completions_of_libmlx5s", || same("resized", Taken::All)),
    ];
    libtest_mimic::run(&arguments, trials).exit_code()
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

fn debug_file() -> std::path::PathBuf {
    std::env::temp_dir().join(format!("doorbell-debug-{}", std::process::id()))
}

/// Requests that fail for each reason, with `MLX5_DEBUG_FILE`.
fn dumps(rig: &Rig) {
    errors(rig);
    println!("a peer that does not answer");
    let cq = rig.cq(255, false);
    let qps = pair(rig, [cq; 2]);
    // SAFETY: a live QP.
    unsafe { rig.to_rts(qps[0], 0x00ab_cdef) };
    assert_eq!(post(rig, qps[0], ibv_wr_opcode::IBV_WR_SEND, 8, 0, 1), 0);
    print_completions(cq, 1);
    rig.destroy(&qps, &[], &[cq]);
}

/// Prints the debug file without the numbers of the QPs and the signatures. libmlx5 writes it when
/// the device is closed.
fn print_debug_file() {
    let dumps = std::fs::read_to_string(debug_file()).expect("a debug file");
    std::fs::remove_file(debug_file()).expect("a debug file");
    assert!(dumps.lines().count() >= 20, "{dumps}");
    for (n, line) in dumps.lines().enumerate() {
        match line.split(' ').collect::<Vec<_>>()[..] {
            // The sender of a refused message: flags and QP number.
            [a, b, c, d] if n % 5 == 2 => println!("{a} {b} {} {d}", &c[..2]),
            // The last words of an entry: the opcode is the first byte of the third, the signature
            // the third of the last.
            [a, b, c, d] if n % 5 == 4 => println!("{a} {b} {} {}..{}", &c[..2], &d[..4], &d[6..]),
            _ => println!("{line}"),
        }
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

/// Batches of each extended operation with each kind of data, around the ring several times.
fn operations(rig: &Rig) {
    /// Writes, sends, with and without immediate data, reads and atomics.
    const ALL: u64 = 0x7f;
    let (cq, received) = (rig.cq(255, false), rig.cq(255, false));
    let qps = [0; 2].map(|_| {
        rig.qp_ex(|init| {
            (init.qp_type, init.comp_mask, init.send_ops_flags) = (ibv_qp_type::IBV_QPT_RC, 1 | 64, ALL);
            (init.send_cq, init.recv_cq) = (cq, received);
            (init.cap.max_recv_wr, init.cap.max_recv_sge) = (64, 1);
            (init.cap.max_send_wr, init.cap.max_send_sge, init.cap.max_inline_data) = (30, 3, 100);
        })
    });
    rig.connect(qps[0], qps[1]);
    let qp = qps[0].cast::<ibv_qp_ex>();
    let bytes: Vec<u8> = (0..4096_u32).map(|n| ((n * 7) >> 2) as u8).collect();
    rig.write(0, &bytes);
    let (lkey, rkey) = (rig.lkey(), rig.rkey());
    let sge = |offset: usize, length: u32| ibv_sge { addr: rig.addr(offset), length, lkey };
    let mut seed = 3_u64;
    let mut below = |n: u32| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((seed >> 33) % u64::from(n)) as u32
    };
    let print_effects = |(requests, messages)| {
        print_completions(cq, requests);
        print_completions(received, messages);
        let sum = |at: usize| {
            rig.read(at, 1024)
                .iter()
                .fold(0_u64, |sum, byte| sum.wrapping_mul(31).wrapping_add((*byte).into()))
        };
        println!("  {:x} {:x} {:x}", sum(2048), sum(4096), sum(8192));
    };
    let mut waiting = (0, 0);
    for round in 0..60_u32 {
        let count = [1_u32, 1, 2, 7][below(4) as usize];
        let mut messages = 0;
        // SAFETY: a live QP that was made for these operations; setters follow their operations;
        // all memory that requests name lives.
        unsafe {
            call!(qp, wr_start());
            for n in 0..count {
                (*qp).wr_id = u64::from(round * 100 + n);
                (*qp).wr_flags = ibv_send_flags::IBV_SEND_SIGNALED.0
                    | if below(4) == 0 { ibv_send_flags::IBV_SEND_FENCE.0 } else { 0 };
                let there = rig.addr(8192 + 128 * n as usize);
                let operation = below(7);
                match operation {
                    0 => call!(qp, wr_send()),
                    1 => call!(qp, wr_send_imm((round + n).to_be())),
                    2 => call!(qp, wr_rdma_write(rkey, there)),
                    3 => call!(qp, wr_rdma_write_imm(rkey, there, (round + n).to_be())),
                    4 => call!(qp, wr_rdma_read(rkey, there)),
                    5 => call!(qp, wr_atomic_cmp_swp(rkey, there, u64::from(below(2)), u64::from(round))),
                    _ => call!(qp, wr_atomic_fetch_add(rkey, there, u64::from(round))),
                }
                if [0, 1, 3].contains(&operation) {
                    messages += 1;
                    assert_eq!(post_receive(rig, qps[1], 4096 + 64 * n as usize, 1000 + u64::from(n)), 0);
                }
                let most = if [0, 1].contains(&operation) { 64 } else { 100 };
                let here = 2048 + 128 * n as usize;
                match (operation, below(4)) {
                    (5.., _) => call!(qp, wr_set_sge(lkey, rig.addr(here), 8)),
                    (4, kind @ 0..2) | (_, kind @ 2) => {
                        let list = [sge(here, 1 + below(30)), sge(0, 0), sge(here + 40, 1 + below(30))];
                        let list = &list[..if kind == 0 { 1 } else { 3 }];
                        call!(qp, wr_set_sge_list(list.len(), list.as_ptr()));
                    }
                    (4, _) | (_, 3) => call!(qp, wr_set_sge(lkey, rig.addr(here), below(most + 1))),
                    (_, 0) => {
                        let text = &bytes[below(100) as usize..];
                        call!(
                            qp,
                            wr_set_inline_data(text.as_ptr().cast_mut().cast(), below(most + 1) as usize)
                        );
                    }
                    _ => {
                        let part = |at: usize, length: u32| ibv_data_buf {
                            addr: bytes[at..].as_ptr().cast_mut().cast(),
                            length: length as usize,
                        };
                        let list = [part(3, below(20)), part(200, 0), part(50, below(44))];
                        call!(qp, wr_set_inline_data_list(3, list.as_ptr()));
                    }
                }
            }
            // Between start and complete a thread may poll.
            print_effects(waiting);
            println!("round {round}: {}", call!(qp, wr_complete()));
        }
        waiting = (count as usize, messages);
    }
    print_effects(waiting);
    rig.destroy(&qps, &[], &[cq, received]);
}

/// Messages before and after a CQ is resized, before its first QP and with completions that wait.
fn resized(rig: &Rig) {
    // SAFETY: a live CQ.
    let resize = |cq: *mut ibv_cq, entries| unsafe {
        println!("to {entries}: {} {}", ibv_resize_cq(cq, entries), (*cq).cqe);
    };
    let cq = rig.cq(63, false);
    [100, 100, 31, 63].into_iter().for_each(|entries| resize(cq, entries));
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
    let sizes = [31, 31, 255, 500, -1, 0, 8_000_000, 7, 19, 20, 32, 31, 63];
    for (round, entries) in sizes.into_iter().enumerate() {
        let first = 1000 * (1 + round as u64);
        (first..first + 10).for_each(send);
        // Half of the completions wait while the CQ is resized. Some sizes are too small for them.
        let mut seen = rig.verbs_poll(cq, 10);
        resize(cq, entries);
        resize(cq, entries);
        seen.extend(rig.verbs_poll(cq, 10));
        let mut seen: Vec<_> = seen.iter().map(|wc| (wc.wr_id, wc.status, wc.byte_len)).collect();
        seen.sort_unstable();
        println!("{seen:?}");
        messages(first + 100);
    }
    rig.destroy(&qps, &[], &[cq]);
}
