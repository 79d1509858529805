//! Extended CQs (`ibv_create_cq_ex`): a program that polls by sessions prints the same with and
//! without the library, on the software device.
#![allow(missing_docs)]
#![expect(unsafe_code, reason = "calls of verbs")]

use std::{
    mem::zeroed,
    process::ExitCode,
    ptr::null_mut,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use doorbell_sys::*;
use libtest_mimic::{Arguments, Trial};

#[path = "common/both.rs"]
mod both;
use both::{
    Taken,
    rig::Rig,
    same,
    sessions::{self, Fields, Rng, create, next, start, stop, take},
};

/// A program of this test.
type Program = fn(&Rig);

const PROGRAMS: [(&str, Program); 6] = [
    ("datagrams", datagrams),
    ("events", events),
    ("between", between),
    ("threads", threads),
    ("returned", returned),
    ("untouched", untouched),
];

fn main() -> ExitCode {
    if let [_, mode, name] = &std::env::args().collect::<Vec<_>>()[..]
        && mode == "program"
    {
        let rig = Rig::open().expect("a device");
        match name.strip_prefix("random-") {
            Some(seed) => sessions::random(&rig, seed.parse().expect("a number")),
            None => {
                let (_, program) = PROGRAMS.into_iter().find(|(known, _)| known == name).expect("a program");
                program(&rig);
            }
        }
        return ExitCode::SUCCESS;
    }
    let mut arguments = Arguments::from_args();
    arguments.test_threads = arguments.test_threads.or(Some(1));
    let test = |name, program: &'static str, objects| Trial::test(name, move || same(program, objects));
    let mut trials = vec![
        test("datagrams_read_as_with_libmlx5", "datagrams", Taken::All),
        test("events_of_extended_cqs_come_as_with_libmlx5", "events", Taken::All),
        test("calls_between_start_and_end_work_as_with_libmlx5", "between", Taken::All),
        test("threads_take_turns_in_sessions", "threads", Taken::All),
        test("an_extended_cq_that_goes_back_is_libmlx5s", "returned", Taken::None),
        test("a_cq_with_other_fields_is_libmlx5s", "untouched", Taken::None),
    ];
    for seed in 1..=8 {
        let name = format!("random_sessions_read_as_with_libmlx5_{seed}");
        trials.push(Trial::test(name, move || same(&format!("random-{seed}"), Taken::All)));
    }
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// A pair of connected QPs of 64 receives on one CQ.
fn pair(rig: &Rig, cq: *mut ibv_cq_ex) -> [*mut ibv_qp; 2] {
    let qps = [0; 2].map(|_| {
        let change = |init: &mut ibv_qp_init_attr| (init.cap.max_recv_wr, init.cap.max_recv_sge) = (64, 1);
        rig.qp_with(cq.cast(), cq.cast(), null_mut(), change).0
    });
    rig.connect(qps[0], qps[1]);
    qps
}

fn post_receive(rig: &Rig, qp: *mut ibv_qp, offset: usize, wr_id: u64) {
    let mut sge = ibv_sge { addr: rig.addr(offset), length: 256, lkey: rig.lkey() };
    let mut wr = ibv_recv_wr { wr_id, next: null_mut(), sg_list: &mut sge, num_sge: 1 };
    // SAFETY: a live QP; the request lives through the call.
    assert_eq!(unsafe { ibv_post_recv(qp, &mut wr, &mut null_mut()) }, 0);
}

/// Datagrams with all fields of their senders.
fn datagrams(rig: &Rig) {
    let fields = Fields::all();
    let cq = create(rig, 63, fields, 0);
    let qp = rig
        .qp_with(cq.cast(), cq.cast(), null_mut(), |init| {
            init.qp_type = ibv_qp_type::IBV_QPT_UD;
            (init.cap.max_recv_wr, init.cap.max_recv_sge) = (64, 1);
        })
        .0;
    rig.datagrams(qp, 0x1234);
    let address = rig.address_handle();
    for n in 0..40 {
        post_receive(rig, qp, 4096, 1000 + n);
        let length = [1, 8, 40, 200][n as usize % 4];
        let mut sge = ibv_sge { addr: rig.addr(0), length, lkey: rig.lkey() };
        // SAFETY: integers and pointers only; live objects; the request lives through the call.
        unsafe {
            let mut wr: ibv_send_wr = zeroed();
            (wr.wr_id, wr.sg_list, wr.num_sge) = (n, &mut sge, 1);
            wr.opcode = ibv_wr_opcode::IBV_WR_SEND + u32::from(n % 2 == 0);
            wr.imm_data_invalidated_rkey_union.imm_data = n as u32;
            wr.wr.ud = ud_t { ah: address, remote_qpn: rig.qpn(qp), remote_qkey: 0x1234 };
            assert_eq!(ibv_post_send(qp, &mut wr, &mut null_mut()), 0);
        }
        take(cq, fields, &[qp], 2, &mut Rng::new(n)).iter().for_each(|line| println!("{line}"));
    }
    rig.destroy(&[qp], &[], &[cq.cast()]);
    // SAFETY: destroyed once, after its last use.
    assert_eq!(unsafe { ibv_destroy_ah(address) }, 0);
}

/// Arms the CQ before, in and after sessions, and waits for its events.
fn events(rig: &Rig) {
    let fields = Fields::all();
    let cq = create(rig, 63, fields, sessions::WITH_CHANNEL);
    let qps = pair(rig, cq);
    let arm = |solicited| {
        // SAFETY: a live CQ.
        assert_eq!(unsafe { ibv_req_notify_cq(cq.cast(), solicited) }, 0);
    };
    let event = || {
        let (mut of, mut context) = (null_mut(), null_mut());
        // SAFETY: a live channel; the event is acknowledged.
        unsafe {
            assert_eq!(ibv_get_cq_event(rig.channel, &mut of, &mut context), 0);
            ibv_ack_cq_events(of, 1);
        }
        assert_eq!(of, cq.cast());
    };
    let has_event = || {
        // SAFETY: a live channel; one valid entry.
        unsafe {
            let mut fd = libc::pollfd { fd: (*rig.channel).fd, events: libc::POLLIN, revents: 0 };
            libc::poll(&mut fd, 1, 0)
        }
    };
    arm(0);
    for n in 0..30 {
        (0..3).for_each(|m| post_receive(rig, qps[1], 4096, 1000 + m));
        rig.send(qps[0], 0, 16, None, n % 3 == 0);
        event();
        let mut rng = Rng::new(n);
        // The event may be that of the receive, with the completion of the send to come.
        let mut lines = take(cq, fields, &qps, 2, &mut rng);
        rig.send(qps[0], 0, 16, Some(n as u32), false);
        // In a session, the CQ is armed for what comes after it.
        start(cq);
        arm(0);
        stop(cq);
        lines.sort();
        rig.send(qps[0], 0, 16, None, false);
        event();
        // SAFETY: a live CQ.
        let rest = take(cq, fields, &qps, 3, &mut rng).len();
        println!("{n}: {lines:?} {rest} {}", has_event());
        arm(0);
    }
    rig.destroy(&qps, &[], &[cq.cast()]);
}

/// Calls of verbs in a session: polls, creation, changes and the end of QPs. The CQ is for one
/// thread, because libmlx5 waits for ever in some of these calls otherwise.
fn between(rig: &Rig) {
    let fields = Fields::all();
    let cq = create(rig, 63, fields, sessions::SINGLE_THREADED);
    let qps = pair(rig, cq);
    for n in 0..20 {
        (0..4).for_each(|m| post_receive(rig, qps[1], 4096 + 256 * m, 1000 + m as u64));
        (0..4).for_each(|m| {
            rig.write(0, &[m as u8; 16]);
            rig.send(qps[0], 0, 16, Some(100 * n + m), false);
        });
        // Completions that are there before the first session.
        let other = pair(rig, cq);
        start(cq);
        // SAFETY: a live CQ in a session; integers only, for which zero is a value.
        unsafe {
            let first = (*cq).status;
            let reset = pair(rig, cq);
            rig.to_reset(reset[0]);
            rig.destroy(&reset, &[], &[]);
            let mut wc: ibv_wc = zeroed();
            while ibv_poll_cq(cq.cast(), 1, &mut wc) == 0 {
                std::thread::yield_now();
            }
            // To the same size, and to others.
            println!(
                "{n}: {first} {} {}",
                wc.status,
                ibv_resize_cq(cq.cast(), [63, 127, 40][n as usize % 3])
            );
        }
        stop(cq);
        let rest = take(cq, fields, &qps, 6, &mut Rng::new(n.into())).len();
        println!("{rest} {:?}", rig.read(4096, 4 * 256).iter().filter(|byte| **byte > 0).count());
        rig.destroy(&other, &[], &[]);
    }
    // A session that is never ended does not keep the CQ from being destroyed.
    post_receive(rig, qps[1], 4096, 1);
    rig.send(qps[0], 0, 16, None, false);
    start(cq);
    rig.destroy(&qps, &[], &[cq.cast()]);
}

/// Four threads poll one CQ in sessions of several completions. Each completion comes once, and in
/// a session the fields are of one completion.
fn threads(rig: &Rig) {
    const MESSAGES: u64 = 600;
    let fields = Fields::all();
    let cq = create(rig, 255, fields, 0);
    let qps = pair(rig, cq);
    let (requests, receives) = (AtomicU64::new(0), AtomicU64::new(0));
    let (sums, mixed) = ([AtomicU64::new(0), AtomicU64::new(0)], AtomicU64::new(0));
    let done = || requests.load(Relaxed) + receives.load(Relaxed) >= 2 * MESSAGES;
    /// A CQ for all threads.
    struct Shared(*mut ibv_cq_ex);
    // SAFETY: verbs may be called from any thread.
    unsafe impl Sync for Shared {}
    let shared = Shared(cq);
    let poller = || {
        let cq = { &shared }.0;
        // SAFETY: a live CQ, in a session where a completion is read.
        unsafe {
            while !done() {
                let mut attr: ibv_poll_cq_attr = zeroed();
                if (*cq).start_poll.expect("a function")(cq, &mut attr) != 0 {
                    std::thread::yield_now();
                    continue;
                }
                for more in (0..3).rev() {
                    let (id, status) = ((*cq).wr_id, (*cq).status);
                    let opcode = (*cq).read_opcode.expect("a function")(cq);
                    let receive = opcode >= ibv_wc_opcode::IBV_WC_RECV;
                    let imm = (*cq).read_imm_data.expect("a function")(cq);
                    let length = (*cq).read_byte_len.expect("a function")(cq);
                    std::thread::yield_now();
                    let same = (*cq).wr_id == id && (!receive || u64::from(imm) == id && length == 16);
                    if status != 0 || !same {
                        mixed.fetch_add(1, Relaxed);
                    }
                    let n = usize::from(receive);
                    sums[n].fetch_add(id * id, Relaxed);
                    [&requests, &receives][n].fetch_add(1, Relaxed);
                    if more == 0 || next(cq) != 0 {
                        break;
                    }
                }
                (*cq).end_poll.expect("a function")(cq);
            }
        }
    };
    std::thread::scope(|scope| {
        (0..4).for_each(|_| drop(scope.spawn(poller)));
        for n in 0..MESSAGES {
            while n >= requests.load(Relaxed).min(receives.load(Relaxed)) + 32 {
                std::thread::yield_now();
            }
            post_receive(rig, qps[1], 4096, n);
            let mut sge = ibv_sge { addr: rig.addr(0), length: 16, lkey: rig.lkey() };
            // SAFETY: integers and pointers only; a live QP; the request lives through the call.
            unsafe {
                let mut wr: ibv_send_wr = zeroed();
                (wr.wr_id, wr.sg_list, wr.num_sge) = (n, &mut sge, 1);
                wr.opcode = ibv_wr_opcode::IBV_WR_SEND_WITH_IMM;
                wr.imm_data_invalidated_rkey_union.imm_data = n as u32;
                assert_eq!(ibv_post_send(qps[0], &mut wr, &mut null_mut()), 0);
            }
        }
    });
    println!("requests {} {}", requests.load(Relaxed), sums[0].load(Relaxed));
    println!("receives {} {}", receives.load(Relaxed), sums[1].load(Relaxed));
    println!("mixed {}", mixed.load(Relaxed));
    rig.destroy(&qps, &[], &[cq.cast()]);
}

/// The program drives the CQ itself after its QPs are made, so CQ and QPs go back to libmlx5, whose
/// functions poll it.
fn returned(rig: &Rig) {
    let fields = Fields::all();
    let cq = create(rig, 63, fields, 0);
    let qps = [0; 2].map(|_| {
        let change = |init: &mut ibv_qp_init_attr| (init.cap.max_recv_wr, init.cap.max_recv_sge) = (64, 1);
        rig.qp_with(cq.cast(), cq.cast(), null_mut(), change).0
    });
    // An empty session before does not matter.
    // SAFETY: a live CQ.
    unsafe {
        let mut attr: ibv_poll_cq_attr = zeroed();
        println!("empty: {}", (*cq).start_poll.expect("a function")(cq, &mut attr));
        attr.comp_mask = 1;
        println!("unknown: {}", (*cq).start_poll.expect("a function")(cq, &mut attr));
        // SAFETY: a live CQ, which is polled by verbs all the same.
        drop(mlx5_direct::CqLayout::from_verbs(cq).expect("a CQ"));
    }
    rig.connect(qps[0], qps[1]);
    exchange(rig, cq, fields, &qps);
    rig.destroy(&qps, &[], &[cq.cast()]);
}

/// A CQ with the fields of tag matching, and one with the real time.
fn untouched(rig: &Rig) {
    let mut made = 0;
    for extra in [1 << 10, 1 << 11] {
        // SAFETY: a live context; integers and pointers only, for which zero is a value.
        let cq = unsafe {
            let mut attr: ibv_cq_init_attr_ex = zeroed();
            (attr.cqe, attr.wc_flags) = (63, Fields::all().bits() | extra);
            rig.extended().create_cq_ex.expect("ibv_create_cq_ex")(rig.context, &mut attr)
        };
        println!("{extra}: {}", cq.is_null());
        if !cq.is_null() {
            made += 1;
            let qps = pair(rig, cq);
            exchange(rig, cq, Fields::all(), &qps);
            rig.destroy(&qps, &[], &[cq.cast()]);
        }
    }
    println!("{made} CQs");
}

/// Some messages, whose completions are printed.
fn exchange(rig: &Rig, cq: *mut ibv_cq_ex, fields: Fields, qps: &[*mut ibv_qp; 2]) {
    for n in 0..20 {
        post_receive(rig, qps[1], 4096, 1000 + n);
        rig.send(qps[0], 0, 100, Some(n as u32), false);
        take(cq, fields, qps, 2, &mut Rng::new(n)).iter().for_each(|line| println!("{line}"));
    }
}
