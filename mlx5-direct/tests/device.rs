//! On an mlx5 device, real or software: queues that libmlx5 created, driven by this crate.
//!
//! Without a device these tests are reported as ignored. With the software device:
//! `hw-tests/with-emu 'cargo test -p mlx5-direct --test device'`.
#![expect(unsafe_code, reason = "queues are taken over from verbs")]

mod common;
#[path = "../examples/echo.rs"]
mod echo;
#[path = "common/ends.rs"]
mod ends;
#[path = "../examples/receive.rs"]
mod example;
#[cfg(feature = "tracing")]
#[path = "common/log.rs"]
mod log;
#[path = "common/opcodes.rs"]
mod opcodes;
#[path = "common/send_queues.rs"]
mod send_queues;
#[path = "common/sends.rs"]
mod sends;
#[path = "common/twins.rs"]
mod twins;

use std::{
    collections::HashMap,
    mem::zeroed,
    os::fd::AsRawFd,
    time::{Duration, Instant},
};

use common::Rng;
use doorbell_sys::{ibv_event_type, ibv_recv_wr, ibv_sge, ibv_srq};
use example::rig::{self, Rig};
use libtest_mimic::{Arguments, Failed, Trial};
use mlx5_direct::{
    ArmFor, Completion, Cq, DataSeg, DvError, EventChannel, LayoutError, RecvWrs, Srq, Syndrome, dv,
    teardown::{QpTeardown, TeardownStep},
};

fn main() {
    let mut args = Arguments::from_args();
    // One device context at a time: async events belong to a context.
    args.test_threads = Some(1);
    let device = Rig::open().is_some();
    let trial = |name: &str, test: fn(&Rig)| {
        let name = if device { name.to_owned() } else { format!("{name} (ignored: no mlx5 device)") };
        let run = move || -> Result<(), Failed> {
            let rig = Rig::open().ok_or("the device went away")?;
            test(&rig);
            match rig.complaints() {
                0 => Ok(()),
                n => Err(format!("the device complained {n} times").into()),
            }
        };
        Trial::test(name, run).with_ignored_flag(!device)
    };
    let trials = vec![
        trial("a_fresh_srq_is_taken_over_with_its_real_ring", ring_sizes),
        trial("an_srq_that_verbs_posted_to_is_refused", used_srq_is_refused),
        trial("wqes_and_record_equal_those_of_ibv_post_srq_recv", same_bytes_as_verbs),
        trial("what_the_device_executes_equals_what_libmlx5_posts", same_execution),
        trial("completed_in_order_the_bytes_are_those_of_libmlx5_as_well", same_bytes_in_order),
        trial("messages_arrive_in_the_posted_buffers_from_many_qps", traffic),
        trial("an_armed_cq_raises_one_event_per_request", events),
        trial("a_solicited_request_waits_for_a_solicited_message", solicited),
        trial("a_qp_torn_down_gives_its_slots_back", teardown),
        trial("random_posts_errors_and_teardowns_lose_no_slot", random_session),
        trial("the_example_receives_from_raw_pointers", |rig| {
            let expected = (0..3000u64).map(|n| 1 + n % 1000).sum();
            assert_eq!(example::run(rig, 3000), expected);
        }),
        trial("the_example_answers_each_message", |_| {
            let rig = echo::rig::Rig::open().expect("the device");
            let expected = (0..3000u64).map(|n| 1 + n * 7 % 1000).sum();
            assert_eq!(echo::run(&rig, 3000), expected);
        }),
        trial("bound_buffers_come_around_again_and_again", bound),
        trial("queues_have_the_limits_that_verbs_granted", sends::caps),
        trial("queues_that_cannot_be_taken_over_are_refused_with_the_reason", sends::refused_queues),
        trial("send_wqes_completions_and_memory_equal_those_of_ibv_post_send", sends::twins),
        trial("refused_work_requests_are_those_that_ibv_post_send_refuses", sends::refusals),
        trial("datagrams_equal_those_of_libmlx5_and_arrive_behind_40_bytes", sends::datagrams),
        trial("one_cq_serves_sends_and_receives_of_two_qps", send_queues::both_ways),
        trial("results_of_reads_and_atomics_come_out_of_their_entries", send_queues::scattered_results),
        trial("an_error_releases_and_flushes_in_order_and_reset_starts_over", send_queues::errors_and_reset),
        trial("windows_are_bound_and_invalidated_with_the_wqes_of_libmlx5", send_queues::windows),
        trial("uc_requests_have_the_wqes_of_libmlx5_and_arrive", opcodes::unreliable),
        trial("xrc_requests_reach_the_srq_that_they_name", opcodes::xrc),
        trial("masked_atomics_and_nops_are_executed", opcodes::masked_atomics_and_nops),
        trial("a_send_invalidates_a_window_of_the_receiver", opcodes::invalidating_sends),
        trial("a_refused_work_request_leaves_those_before_it_and_the_fence_alone", opcodes::lists_cut_short),
        trial("a_queue_of_one_block_a_request_refuses_longer_ones", opcodes::one_block_queues),
        trial("entries_of_128_bytes_are_polled", opcodes::wide_entries),
        trial("a_qp_that_is_reset_or_destroyed_leaves_no_completion_behind", ends::cleaned),
        trial("queues_that_share_a_register_ring_doorbells", send_queues::shared_registers),
        #[cfg(feature = "tracing")]
        trial("queues_taken_over_and_refused_are_logged", log::takeovers),
    ];
    libtest_mimic::run(&args, trials).exit();
}

/// SAFETY for all uses: the queues outlive the value, verbs no longer touches them, and the buffer
/// is registered as long as the rig lives.
fn take_srq(srq: *mut ibv_srq) -> Srq {
    // SAFETY: see above.
    unsafe { Srq::from_verbs(srq, None) }.expect("a fresh SRQ")
}

fn take_cq(cq: *mut doorbell_sys::ibv_cq) -> Cq {
    // SAFETY: as for `take_srq`.
    unsafe { Cq::from_verbs(cq) }.expect("a fresh CQ")
}

/// Polls until a completion comes; the device may need a moment.
fn next(cq: &mut Cq) -> Completion {
    let start = Instant::now();
    loop {
        if let Some(c) = cq.poll().expect("a known entry") {
            return c;
        }
        assert!(start.elapsed() < Duration::from_secs(20), "no completion");
        std::thread::yield_now();
    }
}

fn ring_sizes(rig: &Rig) {
    for (max_wr, max_sge, depth, segments) in
        [(1, 1, 1, 1), (8, 1, 15, 1), (15, 2, 15, 3), (16, 3, 31, 3), (1000, 4, 1023, 7), (4095, 1, 4095, 1)]
    {
        let raw = rig.srq(max_wr, max_sge);
        let srq = take_srq(raw);
        assert_eq!(
            (srq.max_depth(), srq.depth(), srq.max_segments()),
            (depth, depth, segments),
            "for {max_wr} WRs of {max_sge} segments"
        );
        assert_ne!(srq.srqn(), 0);
        rig.destroy(&[], &[raw], &[]);
    }
    // SAFETY: an open context.
    let version = unsafe { dv::cqe_version(rig.context) }.expect("a device that answers");
    println!("CQE version: {version:?}");
}

fn recv_wr(sges: &mut [ibv_sge], wr_id: u64) -> ibv_recv_wr {
    // SAFETY: integers and pointers only.
    let mut wr: ibv_recv_wr = unsafe { zeroed() };
    (wr.wr_id, wr.sg_list, wr.num_sge) = (wr_id, sges.as_mut_ptr(), sges.len() as i32);
    wr
}

fn used_srq_is_refused(rig: &Rig) {
    let raw = rig.srq(8, 1);
    let mut sges = [ibv_sge { addr: rig.addr(0), length: 64, lkey: rig.lkey() }];
    assert_eq!(rig.verbs_post(raw, &mut [recv_wr(&mut sges, 1)]), 1);
    // SAFETY: a live SRQ. The call is refused, so nothing is taken over.
    let refused = unsafe { Srq::from_verbs(raw, None) };
    assert!(
        matches!(refused, Err(DvError::Layout(LayoutError::HeadNotZero { head: 1 }))),
        "{:?}",
        refused.err()
    );
    rig.destroy(&[], &[raw], &[]);
}

/// The address of the ring, as libmlx5 reports it.
fn describe(srq: *mut ibv_srq) -> dv::abi::DvSrq {
    // SAFETY: the function and structs of mlx5dv.h; a live SRQ.
    unsafe {
        let lib = libloading::Library::new("libmlx5.so.1").expect("libmlx5");
        let init: libloading::Symbol<'_, unsafe extern "C" fn(*mut dv::abi::DvObj, u64) -> i32> =
            lib.get(b"mlx5dv_init_obj\0").expect("mlx5dv_init_obj");
        let (mut obj, mut out): (dv::abi::DvObj, dv::abi::DvSrq) = (zeroed(), zeroed());
        obj.srq = dv::abi::DvPair { object: srq.cast(), out: (&raw mut out).cast() };
        assert_eq!(init(&mut obj, dv::abi::OBJ_SRQ), 0);
        out
    }
}

/// The record, and the bytes of each of the first `slots` slots that the device would read.
fn snapshot(at: &dv::abi::DvSrq, slots: usize) -> (u32, Vec<Vec<u8>>) {
    // SAFETY: inside the ring that libmlx5 described.
    unsafe {
        let slot = |n: usize| {
            let bytes = core::slice::from_raw_parts(
                at.buf.cast::<u8>().add(n * at.stride as usize),
                at.stride as usize,
            );
            let mut seen = bytes[2..4].to_vec();
            for seg in bytes[16..].chunks(16) {
                seen.extend_from_slice(seg);
                // The device reads up to the terminator.
                if seg[4..8] == [0, 0, 1, 0] {
                    break;
                }
            }
            seen
        };
        (u32::from_be(at.dbrec.read_volatile()), (0..slots).map(slot).collect())
    }
}

fn same_bytes_as_verbs(rig: &Rig) {
    for max_sge in [1, 3, 6] {
        let (theirs, ours) = (rig.srq(100, max_sge), rig.srq(100, max_sge));
        let (at_theirs, at_ours) = (describe(theirs), describe(ours));
        let mut srq = take_srq(ours);
        assert_eq!(srq.max_depth(), at_theirs.tail, "same ring");
        let mut rng = Rng(max_sge.into());
        let mut sges: Vec<Vec<ibv_sge>> = (0..150u64)
            .map(|n| {
                (0..rng.below(u64::from(srq.max_segments()) + 1))
                    .map(|k| ibv_sge {
                        addr: rig.addr(((n * 64 + k) % 4096) as usize),
                        length: (n + k) as u32,
                        lkey: rig.lkey(),
                    })
                    .collect()
            })
            .collect();
        // Posts batches of 20 until both are full, once with each way of posting.
        for (n, chunk) in sges.chunks_mut(20).enumerate() {
            let mut wrs: Vec<_> = chunk.iter_mut().enumerate().map(|(k, s)| recv_wr(s, k as u64)).collect();
            let accepted = rig.verbs_post(theirs, &mut wrs);
            let posted = if n % 2 == 0 {
                // SAFETY: the chain was linked by `verbs_post` and outlives the call.
                match srq.post_recv_wrs(unsafe { RecvWrs::new(wrs.as_ptr()) }) {
                    Ok(n) => n as usize,
                    Err(e) => e.posted as usize,
                }
            } else {
                let one = |s: &Vec<ibv_sge>| {
                    s.iter().map(|g| DataSeg::new(g.addr, g.length, g.lkey)).collect::<Vec<_>>()
                };
                chunk.iter().map_while(|s| srq.post(&one(s), 0).ok()).count()
            };
            assert_eq!(accepted, posted);
            let slots = at_theirs.tail as usize;
            let ((record, theirs), (our_record, ours)) =
                (snapshot(&at_theirs, slots), snapshot(&at_ours, slots));
            assert_eq!(record, our_record);
            assert_eq!(theirs[..record as usize], ours[..record as usize]);
        }
        assert_eq!(srq.free(), 0, "all of the ring was used");
        rig.destroy(&[], &[theirs, ours], &[]);
    }
}

/// Every number of segments with another stride, every size of ring, and enough posts to wrap the
/// record at 65,536.
fn same_execution(rig: &Rig) {
    for (max_wr, max_sge) in [
        (1, 1),
        (3, 2),
        (8, 3),
        (15, 1),
        (31, 7),
        (100, 4),
        (255, 1),
        (1000, 3),
        (4095, 2),
        (32_767, 1),
        (32_767, 3),
    ] {
        let outcome = twins::run(rig, max_wr, max_sge, 70_000, false);
        println!("{max_wr} receives of {max_sge}, random: {outcome:?}");
    }
}

fn same_bytes_in_order(rig: &Rig) {
    for (max_wr, max_sge) in [(1, 1), (8, 3), (100, 7), (1000, 1), (32_767, 3)] {
        let outcome = twins::run(rig, max_wr, max_sge, 70_000, true);
        println!("{max_wr} receives of {max_sge}, in order: {outcome:?}");
        assert_eq!(outcome.same_bytes, outcome.executed, "{outcome:?}");
        assert!(outcome.executed > 65_536, "{outcome:?}");
    }
}

const SLOT_BYTES: usize = 2048;

fn traffic(rig: &Rig) {
    const PAIRS: usize = 4;
    const MESSAGES: usize = 20_000;
    const BUFFERS: usize = 200;
    let (recv, send) = (rig.cq(511, false), rig.cq(511, false));
    let raw = rig.srq(255, 1);
    let (mut srq, mut cq) = (take_srq(raw), take_cq(recv));
    let mut qps = vec![];
    for _ in 0..PAIRS {
        let (a, b) = (rig.qp(send, recv, raw), rig.qp(send, recv, raw));
        rig.connect(a, b);
        qps.extend([a, b]);
    }
    let from_to: HashMap<u32, usize> =
        // SAFETY: live QPs.
        qps.iter().enumerate().map(|(n, q)| (unsafe { (**q).qp_num }, n)).collect();
    let buffer = |n: usize| DataSeg::new(rig.addr(n * SLOT_BYTES), SLOT_BYTES as u32, rig.lkey());
    assert_eq!(srq.post_batch((0..BUFFERS).map(|n| (buffer(n), n as u64))), BUFFERS as u32);

    let mut rng = Rng(2024);
    // Messages under way by receiving QP, oldest first.
    let mut under_way: Vec<std::collections::VecDeque<(Vec<u8>, Option<u32>)>> =
        vec![Default::default(); 2 * PAIRS];
    let (mut sent, mut finished, mut received) = (0, 0, 0);
    // Receives that the program is still using.
    let mut busy: Vec<Completion> = vec![];
    let mut in_cqe = 0;
    while received < MESSAGES {
        if sent < MESSAGES && sent - finished < 16 {
            let n = rng.below(2 * PAIRS as u64) as usize;
            let len = if rng.below(3) == 0 { rng.below(40) } else { rng.below(1800) } as usize + 1;
            let imm = (rng.below(2) == 0).then_some(sent as u32);
            let text: Vec<u8> = (0..len).map(|k| (k * 7 + sent) as u8).collect();
            // Each send that may be under way has a place of its own.
            let from = BUFFERS * SLOT_BYTES + (sent % 32) * SLOT_BYTES;
            rig.write(from, &text);
            rig.send(qps[n], from, len, imm, false);
            under_way[n ^ 1].push_back((text, imm));
            sent += 1;
        }
        let (good, bad) = rig.poll_sends(send);
        assert_eq!(bad, 0, "a send failed");
        finished += good;
        while let Some(c) = cq.poll().expect("a known entry") {
            let r = match c {
                Completion::Recv(r) => r,
                Completion::RecvScattered(scattered) => scattered.receive,
                other => panic!("{other:?}"),
            };
            let (text, imm) = under_way[from_to[&r.qpn]].pop_front().expect("a message nobody sent");
            let cookie = srq.cookie(r.slot).expect("in use");
            let mut got = vec![0; text.len()];
            if let Completion::RecvScattered(scattered) = c {
                in_cqe += 1;
                assert_eq!(cq.copy_scattered(&scattered, &mut got), text.len());
            } else {
                got = rig.read(cookie as usize * SLOT_BYTES, text.len());
            }
            assert_eq!((r.byte_count as usize, &got), (text.len(), &text));
            assert_eq!(r.immediate(), imm);
            busy.push(c);
            received += 1;
        }
        while busy.len() > 100 || (!busy.is_empty() && (rng.below(4) == 0 || received == MESSAGES)) {
            let c = busy.swap_remove(rng.below(busy.len() as u64) as usize);
            let cookie = srq.complete(c.slot().expect("a receive")).expect("in use");
            assert_eq!(srq.post_batch([(buffer(cookie as usize), cookie)]), 1);
        }
    }
    println!("{received} messages, {in_cqe} of them in their completion entry");
    assert_eq!((srq.posted(), cq.waiting_receives()), (BUFFERS as u32, 0));
    assert!(
        srq.in_use().map(|(_, cookie)| cookie).collect::<std::collections::HashSet<_>>().len() == BUFFERS
    );
    srq.check();
    rig.destroy(&qps, &[raw], &[recv, send]);
}

fn readable(channel: &EventChannel, millis: i32) -> bool {
    let mut fd = libc::pollfd { fd: channel.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one valid entry.
    unsafe { libc::poll(&mut fd, 1, millis) == 1 }
}

/// One pair of QPs whose receives raise events.
struct Pair {
    cqs: [*mut doorbell_sys::ibv_cq; 2],
    raw: *mut ibv_srq,
    qps: [*mut doorbell_sys::ibv_qp; 2],
    srq: Srq,
    cq: Cq,
    channel: EventChannel,
}

fn pair(rig: &Rig) -> Pair {
    let (recv, send) = (rig.cq(127, true), rig.cq(127, false));
    let raw = rig.srq(31, 1);
    let (mut srq, cq) = (take_srq(raw), take_cq(recv));
    let qps = [rig.qp(send, recv, raw), rig.qp(send, recv, raw)];
    rig.connect(qps[0], qps[1]);
    let bufs = (0..20).map(|n| (DataSeg::new(rig.addr(n * 2048), 2048, rig.lkey()), n as u64));
    assert_eq!(srq.post_batch(bufs), 20);
    // SAFETY: the channel lives as long as the rig.
    let channel = unsafe { EventChannel::from_verbs(rig.channel) };
    Pair { cqs: [recv, send], raw, qps, srq, cq, channel }
}

fn events(rig: &Rig) {
    let mut p = pair(rig);
    for round in 0..8 {
        assert!(p.cq.arm_unless_ready(ArmFor::Any), "nothing is waiting");
        assert!(!readable(&p.channel, 0), "no event before a message");
        rig.send(p.qps[0], 100_000, 500, None, false);
        assert!(readable(&p.channel, 10_000), "round {round}: no event");
        p.channel.read_event().expect("an event");
        p.cq.event_received();
        let slot = next(&mut p.cq).slot().expect("a receive");
        p.srq.complete(slot).expect("in use");
        assert_eq!(rig.poll_sends(p.cqs[1]).1, 0);
        // The CQ is not armed: no second event.
        rig.send(p.qps[0], 100_000, 500, None, false);
        let slot = next(&mut p.cq).slot().expect("a receive");
        p.srq.complete(slot).expect("in use");
        assert!(!readable(&p.channel, 0), "an event without a request");
        while rig.poll_sends(p.cqs[1]).0 > 0 {}
    }
    rig.destroy(&p.qps, &[p.raw], &p.cqs);
}

fn solicited(rig: &Rig) {
    let mut p = pair(rig);
    assert!(p.cq.arm_unless_ready(ArmFor::Solicited));
    rig.send(p.qps[0], 100_000, 500, None, false);
    assert!(matches!(next(&mut p.cq), Completion::Recv(c) if !c.solicited));
    assert!(!readable(&p.channel, 0), "the message was not solicited");
    rig.send(p.qps[0], 100_000, 500, None, true);
    assert!(readable(&p.channel, 10_000));
    p.channel.read_event().expect("an event");
    p.cq.event_received();
    assert!(matches!(next(&mut p.cq), Completion::Recv(c) if c.solicited));
    rig.destroy(&p.qps, &[p.raw], &p.cqs);
}

fn teardown(rig: &Rig) {
    let mut p = pair(rig);
    for _ in 0..5 {
        rig.send(p.qps[0], 100_000, 500, None, false);
    }
    // SAFETY: live QPs.
    let qpn = unsafe {
        dv::qp_to_error(p.qps[1]).expect("to error");
        (*p.qps[1]).qp_num
    };
    let bound = Duration::from_secs(20);
    let mut teardown = QpTeardown::begin(qpn, Instant::now(), bound);
    if rig.async_event() == ibv_event_type::IBV_EVENT_QP_LAST_WQE_REACHED {
        teardown.last_wqe_reached();
    }
    let mut returned = 0;
    let srq = &mut p.srq;
    let step = teardown.advance(&mut p.cq, Instant::now(), |c| {
        if let Completion::RecvError(e) = c {
            assert_eq!(e.syndrome, Syndrome::Flushed);
        }
        srq.complete(c.slot().expect("a receive")).expect("in use");
        returned += 1;
    });
    assert_eq!(step, Ok(TeardownStep::Destroy { event_seen: true }));
    assert_eq!(p.srq.posted(), 20 - returned);
    // The SRQ continues with another pair.
    rig.destroy(&[p.qps[1]], &[], &[]);
    let others = [rig.qp(p.cqs[1], p.cqs[0], p.raw), rig.qp(p.cqs[1], p.cqs[0], p.raw)];
    rig.connect(others[0], others[1]);
    for _ in 0..20 - returned {
        rig.send(others[0], 100_000, 500, None, false);
        p.srq.complete(next(&mut p.cq).slot().expect("a receive")).expect("in use");
    }
    assert_eq!(p.srq.posted(), 0, "every slot was found again");
    rig.destroy(&[p.qps[0], others[0], others[1]], &[p.raw], &p.cqs);
}

/// Random posts, messages that fit and messages that do not, and QPs torn down in any state. Each
/// cookie comes back exactly once, and the cookies that did not come back are still posted.
fn random_session(rig: &Rig) {
    const PAIRS: usize = 5;
    const BUFFERS: u64 = 60;
    const BUFFER_BYTES: u32 = 1024;
    let (recv, send) = (rig.cq(511, false), rig.cq(511, false));
    let raw = rig.srq(63, 1);
    let (mut srq, mut cq) = (take_srq(raw), take_cq(recv));
    let buffer =
        |n: u64| (DataSeg::new(rig.addr(n as usize * BUFFER_BYTES as usize), BUFFER_BYTES, rig.lkey()), n);
    let new_pair = || {
        let pair = [rig.qp(send, recv, raw), rig.qp(send, recv, raw)];
        rig.connect(pair[0], pair[1]);
        pair
    };
    let mut pairs: Vec<_> = (0..PAIRS).map(|_| new_pair()).collect();
    let mut rng = Rng(77);
    // Whether each buffer is posted, or free.
    let mut posted = vec![false; BUFFERS as usize];
    let (mut received, mut failed, mut torn_down) = (0, 0, 0);
    let mut reap = |srq: &mut Srq, posted: &mut [bool], c: Completion| {
        let cookie = srq.complete(c.slot().expect("a receive")).expect("a slot in use");
        assert!(std::mem::replace(&mut posted[cookie as usize], false), "buffer {cookie} came back twice");
        match c {
            Completion::RecvError(_) => failed += 1,
            _ => received += 1,
        }
    };
    for _ in 0..4000 {
        match rng.below(20) {
            0..6 => {
                let most = rng.below(20) as usize;
                let free: Vec<u64> = (0..BUFFERS).filter(|n| !posted[*n as usize]).take(most).collect();
                let n = srq.post_batch(free.iter().map(|n| buffer(*n))) as usize;
                assert_eq!(n, free.len());
                free.iter().for_each(|n| posted[*n as usize] = true);
            }
            6..13 => {
                // The remaining sends of a broken pair can only complete as flushed, so they are
                // not counted on.
                let [a, b] = pairs[rng.below(PAIRS as u64) as usize];
                let from = if rng.below(2) == 0 { a } else { b };
                let len = if rng.below(60) == 0 { 2000 } else { 100 + rng.below(900) as usize };
                // There must be room in the send queue, and a receive for each message.
                if posted.iter().filter(|p| **p).count() > 20 {
                    rig.send(from, 200_000, len, None, false);
                    let start = Instant::now();
                    while rig.poll_sends(send) == (0, 0) && start.elapsed() < Duration::from_secs(20) {}
                }
            }
            13 => {
                let n = rng.below(PAIRS as u64) as usize;
                for qp in pairs[n] {
                    // SAFETY: a live QP.
                    let qpn = unsafe {
                        dv::qp_to_error(qp).expect("to error");
                        (*qp).qp_num
                    };
                    let start = Instant::now();
                    let bound = Duration::from_millis(200);
                    let mut teardown = QpTeardown::begin(qpn, start, bound);
                    if rig.last_wqe_of(qp, bound) {
                        teardown.last_wqe_reached();
                    }
                    let step = teardown.advance(&mut cq, start + bound, |c| reap(&mut srq, &mut posted, c));
                    assert!(matches!(step, Ok(TeardownStep::Destroy { .. })));
                    while rig.poll_sends(send) != (0, 0) {}
                    torn_down += 1;
                }
                rig.destroy(&pairs[n], &[], &[]);
                pairs[n] = new_pair();
            }
            _ => {
                for _ in 0..rng.below(30) {
                    let Some(c) = cq.poll().expect("a known entry") else { break };
                    reap(&mut srq, &mut posted, c);
                }
            }
        }
    }
    cq.poll_each(u32::MAX, |c| reap(&mut srq, &mut posted, c)).expect("known entries");
    srq.check();
    let mut left: Vec<u64> = srq.in_use().map(|(_, cookie)| cookie).collect();
    left.sort_unstable();
    let expected: Vec<u64> = (0..BUFFERS).filter(|n| posted[*n as usize]).collect();
    assert_eq!(left, expected, "what did not come back is still posted");
    println!("{received} received, {failed} failed, {torn_down} QPs torn down, {} still posted", left.len());
    assert!(received > 300 && failed > 5 && torn_down > 100, "the session did too little");
    rig.destroy(&pairs.concat(), &[raw], &[recv, send]);
}

fn bound(rig: &Rig) {
    let (recv, send) = (rig.cq(127, false), rig.cq(127, false));
    let raw = rig.srq(63, 1);
    let mut cq = take_cq(recv);
    let mut srq = take_srq(raw)
        .bind(|s| {
            let offset = usize::from(s.0) * 2048;
            (DataSeg::new(rig.addr(offset), 2048, rig.lkey()), offset as u64)
        })
        .expect("idle");
    let qps = [rig.qp(send, recv, raw), rig.qp(send, recv, raw)];
    rig.connect(qps[0], qps[1]);
    let mut rng = Rng(3);
    let mut held = vec![];
    assert_eq!(srq.repost(40), 40);
    for n in 0..3000usize {
        let text = (n as u64).to_le_bytes().repeat(20);
        rig.write(500_000, &text);
        rig.send(qps[n % 2], 500_000, text.len(), None, false);
        let slot = next(&mut cq).slot().expect("a receive");
        assert_eq!(rig.read(usize::from(slot.0) * 2048, text.len()), text, "the slot's own buffer");
        while rig.poll_sends(send).0 == 0 {}
        held.push(slot);
        if held.len() > 15 {
            let slot = held.swap_remove(rng.below(held.len() as u64) as usize);
            assert_eq!(srq.complete(slot), Ok(u64::from(slot.0) * 2048));
            assert_eq!(srq.repost(1), 1);
        }
    }
    rig.destroy(&qps, &[raw], &[recv, send]);
}
