//! Resources held for an EP are released with the EP: room in its receive EVD, buffers whose
//! completion comes late. Also completions that the device has written wrongly, and memory that it
//! does not give back. The tests run one at a time, since faults and counters of the software
//! device belong to the process.

use doorbell::inside::EpEvds;
use doorbell::{
    AsyncKind, AsyncObject, CloseFlags, Cno, CompletionFlags, ConnectionEventKind, DtoStatus, Ep, EpAttr,
    EpState, Evd, EvdCounter, EvdFlags, Event, Gauges, Lmr, MemPriv, RecvPool, ReturnType, Rmr, RmrBind,
    RmrScope, Srq, VaType,
};
use doorbell_hw_tests::rig::*;
use doorbell_hw_tests::software::order;
use doorbell_hw_tests::{Pair, Rig, dat, tests};
use std::time::{Duration, Instant};

fn main() {
    let tests = tests![
        room_for_an_srq_goes_with_its_last_ep,
        eps_share_the_cqs_of_their_evd,
        a_freed_srq_goes_while_its_evd_stays,
        an_srq_whose_cq_cannot_grow_keeps_its_depth,
        late_completion_returns_the_buffer_of_a_freed_ep,
        late_completion_before_the_last_wqe_event_is_no_flush,
        a_late_completion_counts_though_its_qp_cannot_be_reset,
        an_lmr_that_the_device_keeps_is_used_on,
        messages_before_a_broken_completion_are_taken,
        an_overflow_before_a_broken_completion_is_told,
        a_completion_of_a_slot_that_was_not_posted_frees_none,
        a_reset_waits_for_late_completions,
        requests_that_the_device_forgets_trigger_the_cno,
        requests_that_the_device_forgets_overflow_their_evd,
        completions_of_an_earlier_qp_of_the_same_number_are_dropped,
        a_buffer_that_the_library_refuses_is_not_posted,
        a_query_of_an_srq_wakes_the_waiter_for_what_it_finds,
        a_cq_that_the_device_breaks_is_an_overflow,
        a_window_that_was_bound_is_bound_again,
    ];
    let software = order("count mr") >= 0;
    let direct = std::env::var("DOORBELL_DATAPATH").as_deref() != Ok("verbs");
    doorbell_hw_tests::run_unless(tests, 1, |name| match name {
        "room_for_an_srq_goes_with_its_last_ep" => None,
        _ if !software => Some("needs the software device, which can be told to be late"),
        "late_completion_returns_the_buffer_of_a_freed_ep" if !direct => {
            Some("libmlx5 takes no completion of a QP that is gone")
        }
        "eps_share_the_cqs_of_their_evd" if !direct => Some("by verbs an EVD has one CQ"),
        "an_srq_whose_cq_cannot_grow_keeps_its_depth" if direct => {
            Some("by the direct path the CQ has room for every depth from the beginning")
        }
        "a_completion_of_a_slot_that_was_not_posted_frees_none" if !direct => {
            Some("libmlx5 believes the device which slot is free")
        }
        "completions_of_an_earlier_qp_of_the_same_number_are_dropped" if !direct => {
            Some("libmlx5 takes no completion of a QP that is gone")
        }
        "an_overflow_before_a_broken_completion_is_told" if !direct => {
            Some("libmlx5 skips a completion that it cannot read")
        }
        "a_buffer_that_the_library_refuses_is_not_posted" if direct => {
            Some("by the direct path no library refuses a buffer")
        }
        _ => None,
    })
    .exit();
}

const NONE: CompletionFlags = CompletionFlags::empty();

/// An EVD reserves CQ room for each SRQ whose EPs receive there. EPs that are created and freed on
/// one SRQ, one at a time, need that room once. The test makes more EPs than the longest CQ could
/// hold if each kept its room; in the end no CQ is left on the device.
fn room_for_an_srq_goes_with_its_last_ep() {
    let side = one_side();
    let attr = side.ia.attributes();
    let (depth, longest) = (attr.max_srq_depth, attr.max_evd_depth);
    let srq = side.srq(depth);
    side.srq_ep(&srq, &EpAttr::default()).close().unwrap();
    let cqs = order("count cq");
    for _ in 0..=longest / depth {
        side.srq_ep(&srq, &EpAttr::default()).close().unwrap();
    }
    assert_eq!(order("count cq"), cqs);
}

/// EPs share a CQ of their EVD while the CQ has room for one more, and leave their room to later ones.
fn eps_share_the_cqs_of_their_evd() {
    let side = one_side();
    let evd = Evd::new(&side.ia, 1, EvdFlags::DTO).unwrap();
    let attr = EpAttr { recv_depth: 64, ..EpAttr::default() };
    let ep = || {
        let evds = EpEvds { recv: Some(&evd), ..side.evds() };
        Ep::builder(&side.ia, &side.pz).evds(evds).attributes(&attr).build().unwrap()
    };
    let first = ep();
    let cqs = order("count cq");
    // The CQ that was made for the first EP has room for four of them. While an EP is created, it
    // takes twice the room that it keeps.
    let _shared = [ep(), ep()];
    assert_eq!(order("count cq"), cqs);
    let _last = ep();
    assert_eq!(order("count cq"), cqs + 1);
    first.close().unwrap();
    for _ in 0..20 {
        ep().close().unwrap();
        assert_eq!(order("count cq"), cqs + 1);
    }
}

/// A resize of an SRQ needs room in the CQ of its receive EVD first. Without it, nothing changes.
fn an_srq_whose_cq_cannot_grow_keeps_its_depth() {
    let side = one_side();
    let mut srq = side.srq(4);
    let _ep = side.srq_ep(&srq, &EpAttr::default());
    let before = srq.query().unwrap();
    assert_eq!(order("fault cmd.resize_cq=12"), 0);
    assert_eq!(srq.resize(4000).unwrap_err().return_type(), ReturnType::InsufficientResources);
    order("no faults");
    assert_eq!(srq.query().unwrap(), before);
    srq.resize(4000).unwrap();
}

/// The device has not completed the receives of an ended EP when the EP is reset. They are reported
/// nevertheless, each once.
fn a_reset_waits_for_late_completions() {
    let rig = Rig::new();
    let mut pair = rig.connect_plain(&EpAttr::default());
    for cookie in 0..3 {
        pair.server.post_recv(&[rig.server.lmr.triplet(0, 64)], cookie, NONE).unwrap();
    }
    assert_eq!(order("fault stale"), 0);
    pair.server.disconnect(CloseFlags::Abrupt).unwrap();
    pair.server.reset().unwrap();
    assert_eq!(pair.server.state(), EpState::Unconnected);
    for cookie in 0..3 {
        let got = dto(&rig.server.recv);
        assert_eq!((got.status, got.cookie, got.ep), (DtoStatus::Flushed, cookie, pair.server.id()));
    }
    assert_eq!(order("step"), 0);
    expect_nothing(&rig.server.recv);
}

/// A pair whose server has posted a request that waits for a receive. Once the connection ends, the
/// device does not complete that request.
fn with_a_forgotten_request(rig: &Rig, requests: &Evd) -> Pair {
    let evds = EpEvds { request: Some(requests), ..rig.server.evds() };
    let server = Ep::builder(&rig.server.ia, &rig.server.pz).evds(evds).build().unwrap();
    let mut pair = rig.connect(server, rig.client.ep(&EpAttr::default()));
    pair.server.send(&[]).cookie(77).post().unwrap();
    assert_eq!(order("fault stale"), 0);
    pair
}

/// The provider reports the request, and no event of the device announces it.
fn requests_that_the_device_forgets_trigger_the_cno() {
    let rig = Rig::patient();
    let cno = Cno::new(&rig.server.ia).unwrap();
    let requests = Evd::new(&rig.server.ia, 8, EvdFlags::DTO).unwrap();
    requests.set_cno(Some(&cno)).unwrap();
    let pair = with_a_forgotten_request(&rig, &requests);
    pair.server.disconnect(CloseFlags::Abrupt).unwrap();
    assert_eq!(cno.wait(Some(LONG)).unwrap(), requests.id());
    let got = *requests.dequeue().unwrap().unwrap().completion().unwrap();
    assert_eq!((got.status, got.cookie), (DtoStatus::Flushed, 77));
    assert_eq!(order("step"), 0);
}

/// There is no room for it, and no call looks at the EVD.
fn requests_that_the_device_forgets_overflow_their_evd() {
    let rig = Rig::patient();
    let requests = Evd::new(&rig.server.ia, 1, EvdFlags::DTO | EvdFlags::SOFTWARE).unwrap();
    let pair = with_a_forgotten_request(&rig, &requests);
    while requests.post_software_event(1).is_ok() {}
    pair.server.disconnect(CloseFlags::Abrupt).unwrap();
    let event = asynchronous(&rig.server.ia);
    assert_eq!((event.kind, event.object), (AsyncKind::EvdOverflow, AsyncObject::Evd(requests.id())));
    assert_eq!(order("step"), 0);
}

/// An EVD refers to an SRQ only while an EP of the SRQ receives on the EVD: an SRQ is destroyed when
/// it is freed, though its EVD lives on.
fn a_freed_srq_goes_while_its_evd_stays() {
    let rig = Rig::new();
    let srqs = order("count srq");
    let mut srq = rig.server.srq(4);
    assert_eq!(order("count srq"), srqs + 1);
    let mut pair = rig.connect_srq(&srq);
    rig.server.post(&mut srq, 2, 64, 0, 0);
    assert_eq!(rig.deliver(&mut pair, 8).status, DtoStatus::Success);
    pair.server.close().unwrap();
    srq.close().unwrap();
    assert_eq!(order("count srq"), srqs);
    rig.server.recv.query().unwrap();
}

/// A message has arrived at an EP, and its completion becomes visible only after the EP was freed:
/// no event comes, and the buffer returns to the pool.
fn late_completion_returns_the_buffer_of_a_freed_ep() {
    let rig = Rig::new();
    let mut srq = rig.server.srq(4);
    let mut pool = RecvPool::new(&rig.server.ia, &rig.server.pz, 4, 256).unwrap();
    assert_eq!(pool.refill(&mut srq).unwrap(), 4);
    let mut freed = rig.connect_srq(&srq);
    // The SRQ stays in use on this EVD.
    let _other = rig.connect_srq(&srq);
    assert_eq!(order("fault late"), 0);
    freed.client.send(&[rig.client.lmr.triplet(0, 8)]).post().unwrap();
    assert_eq!(dto(&rig.client.request).status, DtoStatus::Success);
    freed.server.close().unwrap();
    let all_posted = Gauges { posted: 4, out: 0, free: 0, available: 4, unreaped: 0 };
    assert_eq!(pool.gauges(&srq).unwrap(), all_posted);
    assert_eq!(order("release"), 0);
    let one_back = Gauges { posted: 3, out: 0, free: 1, available: 3, unreaped: 0 };
    assert_eq!(pool.gauges(&srq).unwrap(), one_back, "after the completion");
    assert_eq!(pool.refill(&mut srq).unwrap(), 1);
    expect_nothing(&rig.server.recv);
}

/// A device reports when an SRQ EP has taken its last buffer. Until then, for a bounded time, a
/// buffer that an ended EP may have taken is not declared lost: its completion may still come.
///
/// On a machine that is so loaded that the time has passed, the test begins again.
fn late_completion_before_the_last_wqe_event_is_no_flush() {
    for lives in [1, 2] {
        until("a completion that comes in time", || completion_in_time_is_no_flush(lives));
    }
}

/// Connects an EP that receives from the SRQ on an EVD of its own, since completions of one CQ do not
/// overtake each other.
fn connect_apart(rig: &Rig, srq: &Srq) -> (Evd, Pair) {
    let recv = rig.server.evd(EvdFlags::DTO);
    let evds = EpEvds { recv: Some(&recv), ..rig.server.evds() };
    let attr = EpAttr::default();
    let ep =
        Ep::builder(&rig.server.ia, &rig.server.pz).evds(evds).srq(srq).attributes(&attr).build().unwrap();
    let pair = rig.connect(ep, rig.client.ep(&attr));
    (recv, pair)
}

/// The EP ends in this life of its QP. Returns false if the completion came too late.
fn completion_in_time_is_no_flush(lives: u32) -> bool {
    /// Much longer than an EP takes to end once its last completion has come, and shorter than the
    /// provider waits for the device.
    const PART: Duration = Duration::from_millis(100);
    /// The provider waits for the device at least so long.
    const BOUND: Duration = Duration::from_millis(500);
    let rig = Rig::new();
    let mut srq = rig.server.srq(4);
    let (recv, mut ended) = connect_apart(&rig, &srq);
    for _ in 1..lives {
        rig.disconnect(&ended);
        ended.server.reset().unwrap();
        ended.client.reset().unwrap();
        ended = rig.connect(ended.server, ended.client);
    }
    let mut other = rig.connect_srq(&srq);
    rig.server.post(&mut srq, 3, 64, 0, 40);
    assert_eq!(order("fault late"), 0);
    assert_eq!(rig.send(&mut ended, 0, 8).status, DtoStatus::Success);
    // A younger buffer completes, so that the older one is known to be taken.
    assert_eq!(rig.deliver(&mut other, 8).cookie, 41);
    let ends = Instant::now();
    rig.disconnect(&ended);
    let waited = recv.wait_threshold(1, Some(PART));
    assert_eq!(order("release"), 0);
    if ends.elapsed() >= BOUND {
        return false;
    }
    match waited {
        Err(e) => assert_eq!(e.error.return_type(), ReturnType::TimeoutExpired),
        Ok(got) => panic!("before the last WQE: {got:?}"),
    }
    let got = dto(&recv);
    assert_eq!((got.status, got.cookie, got.ep), (DtoStatus::Success, 40, ended.server.id()));
    assert_eq!(counts(&srq), (1, 1));
    true
}

/// An ended EP may have taken a buffer whose completion comes late, and its QP cannot be reset. The
/// device may still use the buffer, so it is not declared lost: its completion counts.
fn a_late_completion_counts_though_its_qp_cannot_be_reset() {
    let rig = Rig::new();
    let mut srq = rig.server.srq(4);
    let (recv, mut ended) = connect_apart(&rig, &srq);
    let mut other = rig.connect_srq(&srq);
    rig.server.post(&mut srq, 3, 64, 0, 40);
    assert_eq!(order("fault late"), 0);
    assert_eq!(rig.send(&mut ended, 0, 8).status, DtoStatus::Success);
    // A younger buffer completes, so that the older one is known to be taken.
    assert_eq!(rig.deliver(&mut other, 8).cookie, 41);
    rig.disconnect(&ended);
    assert_eq!(order("fault cmd.modify_qp=5*0"), 0);
    // Waits as long as the device may take for its last completions.
    ended.server.reset().unwrap_err();
    assert_eq!(ended.server.state(), EpState::Disconnected);
    order("no faults");
    assert_eq!(order("release"), 0);
    let got = dto(&recv);
    assert_eq!((got.status, got.cookie, got.ep), (DtoStatus::Success, 40, ended.server.id()));
    expect_nothing(&recv);
}

/// The device refuses to deregister the memory of an LMR: the LMR stays, and can be freed later.
fn an_lmr_that_the_device_keeps_is_used_on() {
    let rig = Rig::new();
    let mut pair = rig.connect_plain(&EpAttr::default());
    let side = &rig.server;
    let lmr = Lmr::builder(&side.ia, &side.pz).privileges(all_privileges()).allocate(4096).unwrap();
    let mrs = order("count mr");
    assert_eq!(order("fault cmd.dereg_mr=16"), 0);
    let refused = lmr.close().unwrap_err();
    assert_eq!(refused.error.code(), dat::INVALID_STATE_LMR_IN_USE);
    let lmr = refused.object;
    pair.server.post_recv(&[lmr.triplet(0, 64)], 3, CompletionFlags::empty()).unwrap();
    assert_eq!((rig.deliver(&mut pair, 8).cookie, order("count mr")), (3, mrs));
    lmr.close().unwrap();
    assert_eq!(order("count mr"), mrs - 1);
}

/// A completion that cannot be read is an error, but the messages before it are events. By the
/// direct path, the error stays. libmlx5 skips that completion, and forgets those of the same poll.
fn messages_before_a_broken_completion_are_taken() {
    let direct = one_side().ia.provider_attributes().datapath == "direct";
    // An opcode of no message, or a QP that does not exist.
    let (broken, rounds) = match direct {
        true => ("fault forge=0x3f50", &[0, 1, 5, 16, 20][..]),
        false => ("fault forge=0x21ff", &[0, 1, 5, 16][..]),
    };
    for &messages in rounds {
        let rig = Rig::new();
        let recv = &rig.server.recv;
        let mut srq = rig.server.srq(32);
        rig.server.post(&mut srq, 32, 64, 0, 0);
        let mut pair = rig.connect_srq(&srq);
        let mut cookies = 0..messages;
        let take = || recv.dequeue().unwrap().unwrap().completion().unwrap().cookie;
        for _ in cookies.clone() {
            assert_eq!(rig.send(&mut pair, 0, 8).status, DtoStatus::Success);
        }
        // By verbs, this polls all of them.
        if let Some(cookie) = cookies.next() {
            assert_eq!(take(), cookie);
        }
        assert_eq!(order(broken), 0);
        assert_eq!(rig.send(&mut pair, 0, 8).status, DtoStatus::Success);
        let found = recv.query();
        match cookies.clone().count() {
            0 => assert_eq!(found.unwrap_err().return_type(), ReturnType::InternalError),
            left => assert_eq!(found.unwrap().queued, left),
        }
        for cookie in cookies {
            assert_eq!(take(), cookie);
        }
        if direct {
            assert_eq!(recv.dequeue().unwrap_err().return_type(), ReturnType::InternalError);
        }
    }
}

/// The device names a slot that was not posted. The program gets an event, but the slot of the
/// message stays occupied: no buffer is posted into it.
fn a_completion_of_a_slot_that_was_not_posted_frees_none() {
    const DEPTH: usize = 80;
    let rig = Rig::new();
    let mut srq = rig.server.srq(DEPTH as u32);
    rig.server.post(&mut srq, DEPTH, 64, 0, 1);
    let mut pair = rig.connect_srq(&srq);
    for message in 1..=70 {
        let wrong = message == 67;
        if wrong {
            // In the second word of 64 slots, where others return as well.
            assert_eq!(order("fault forge=0x3d7d"), 0);
        }
        let received = rig.deliver(&mut pair, 8);
        let cookie = if wrong { 0 } else { message };
        assert_eq!((received.status, received.cookie), (DtoStatus::Success, cookie));
    }
    // The resize takes back what has returned.
    srq.resize(DEPTH as u32 + 1).unwrap();
    assert_eq!(counts(&srq), (11, 11));
    for cookie in 0..70 {
        srq.post_recv(&[rig.server.lmr.triplet(0, 64)], cookie).unwrap();
    }
    assert_eq!(counts(&srq), (81, 81));
    assert_eq!(code(srq.post_recv(&[rig.server.lmr.triplet(0, 64)], 0)), dat::RESOURCE_SRQ);
    assert_eq!(rig.deliver(&mut pair, 8).cookie, 71);
}

/// The device gives a QP the number of one that is gone. Completions of the earlier QP are none of
/// the new one, whether they are in the CQ or were polled: no event comes, and their buffers return
/// to the pool.
fn completions_of_an_earlier_qp_of_the_same_number_are_dropped() {
    for polled in [false, true] {
        let rig = Rig::new();
        let (srq, mut pool, mut stays) = rig.pooled(4);
        let mut freed = rig.connect_srq(&srq);
        assert_eq!(order("fault late*3"), 0);
        for old in [true, false, true] {
            let pair = if old { &mut freed } else { &mut stays };
            assert_eq!(rig.send(pair, 0, 8).status, DtoStatus::Success);
        }
        freed.server.close().unwrap();
        expect_connection(&rig.client.connect, &freed.client, ConnectionEventKind::Disconnected);
        assert_eq!(order("release"), 0);
        // Polls all three, and takes the second: the first is of no EP.
        let mut first = polled.then(|| *rig.server.recv.dequeue().unwrap().unwrap().completion().unwrap());
        assert_eq!(order("reuse qpn"), 0);
        let mut new = rig.connect_srq(&srq);
        let got = first.take().unwrap_or_else(|| dto(&rig.server.recv));
        assert_eq!((got.status, got.ep), (DtoStatus::Success, stays.server.id()));
        let buffer = pool.take(&got).unwrap();
        let left = Gauges { posted: 1, out: 1, free: 2, available: 1, unreaped: 0 };
        assert_eq!(pool.gauges(&srq).unwrap(), left, "polled: {polled}");
        drop(buffer);
        let got = rig.deliver(&mut new, 8);
        assert_eq!((got.status, got.ep), (DtoStatus::Success, new.server.id()));
        expect_nothing(&rig.server.recv);
    }
}

/// libmlx5 refuses a buffer although the SRQ has room: the device has named one place twice, and
/// libmlx5 believes it. The buffer counts as not posted.
fn a_buffer_that_the_library_refuses_is_not_posted() {
    let rig = Rig::new();
    let depth = rig.server.ia.attributes().max_srq_depth;
    let mut srq = rig.server.srq(depth);
    let buffer = [rig.server.lmr.triplet(0, 64)];
    for cookie in 0..u64::from(depth) {
        srq.post_recv(&buffer, cookie).unwrap();
    }
    let mut pair = rig.connect_srq(&srq);
    for cookie in [0, 1] {
        assert_eq!(rig.deliver(&mut pair, 8).cookie, cookie);
    }
    // The third message comes with the place of the first, and completes no buffer.
    assert_eq!(order("fault forge=0x3d00"), 0);
    assert_eq!(rig.send(&mut pair, 0, 8).status, DtoStatus::Success);
    expect_nothing(&rig.server.recv);
    assert_eq!(counts(&srq), (depth - 2, depth - 2));
    srq.post_recv(&buffer, 0).unwrap();
    for _ in 0..3 {
        assert_eq!(code(srq.post_recv(&buffer, 0)), dat::RESOURCE_MEMORY);
        assert_eq!(counts(&srq), (depth - 1, depth - 1));
    }
}

/// A message becomes visible only after its event. The call that finds it wakes the thread that
/// waits for it.
fn a_query_of_an_srq_wakes_the_waiter_for_what_it_finds() {
    let rig = Rig::new();
    let recv = &rig.server.recv;
    let mut srq = rig.server.srq(4);
    rig.server.post(&mut srq, 1, 64, 0, 5);
    let mut pair = rig.connect_srq(&srq);
    let blocked = || recv.counters().unwrap()[EvdCounter::WaitBlocked];
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| dto(recv));
        until("it sleeps", || blocked() == 1);
        assert_eq!(order("fault stale"), 0);
        assert_eq!(rig.send(&mut pair, 0, 8).status, DtoStatus::Success);
        until("it was woken in vain", || blocked() == 2);
        assert_eq!(order("step"), 0);
        srq.query().unwrap();
        assert_eq!(waiter.join().unwrap().cookie, 5);
    });
}

/// The device reports that a CQ is broken: an overflow of its EVD, with the context of the EVD.
fn a_cq_that_the_device_breaks_is_an_overflow() {
    let side = one_side();
    // The device breaks only CQs that have a QP.
    let _ep = side.ep(&EpAttr::default());
    assert_eq!(side.recv.context(), 0);
    side.recv.set_context(77);
    side.request.set_context(78);
    assert_eq!([side.recv.context(), side.request.context()], [77, 78]);
    assert_eq!(order("cq error"), 0);
    let mut told = [(); 2].map(|()| {
        let event = asynchronous(&side.ia);
        assert_eq!(event.kind, AsyncKind::EvdOverflow);
        (event.context, event.object)
    });
    told.sort_by_key(|(context, _)| *context);
    assert_eq!(told, [(77, AsyncObject::Evd(side.recv.id())), (78, AsyncObject::Evd(side.request.id()))]);
}

/// A harvest finds an overflow, and then a completion that cannot be read. The overflow is told.
fn an_overflow_before_a_broken_completion_is_told() {
    /// A harvest polls so many at a time.
    const BATCH: usize = 32;
    let rig = Rig::new();
    let server = &rig.server;
    let evd = Evd::new(&server.ia, 1, EvdFlags::DTO).unwrap();
    let mut srq = server.srq(BATCH as u32 + 1);
    server.post(&mut srq, BATCH + 1, 64, 0, 0);
    let attr = EpAttr::default();
    let evds = EpEvds { recv: Some(&evd), ..server.evds() };
    let ep = Ep::builder(&server.ia, &server.pz).evds(evds).srq(&srq).attributes(&attr).build().unwrap();
    let mut pair = rig.connect(ep, rig.client.ep(&attr));
    for message in 0..=BATCH {
        if message == BATCH {
            assert_eq!(order("fault forge=0x3f50"), 0);
        }
        assert_eq!(rig.send(&mut pair, 0, 8).status, DtoStatus::Success);
    }
    assert_eq!(evd.query().unwrap_err().return_type(), ReturnType::InternalError);
    assert_eq!(evd.dequeue().unwrap().unwrap().completion().unwrap().cookie, 0);
    let event = asynchronous(&server.ia);
    assert_eq!((event.kind, event.object), (AsyncKind::EvdOverflow, AsyncObject::Evd(evd.id())));
}

/// After the event of its bind a window is certain: the next bind needs no other window of the
/// device.
fn a_window_that_was_bound_is_bound_again() {
    for scope in [RmrScope::Pz, RmrScope::Ep] {
        let rig = Rig::new();
        let side = &rig.server;
        let mut pair = rig.connect_plain(&EpAttr::default());
        let mut rmr = Rmr::new(&side.pz, scope).unwrap();
        for cookie in 0..3 {
            let to = RmrBind {
                lmr: &side.lmr,
                segment: side.lmr.triplet(0, 64),
                privileges: MemPriv::REMOTE_WRITE,
                va_type: VaType::Virtual,
            };
            rmr.bind(&mut pair.server, to, cookie, NONE).unwrap();
            match next(&side.request) {
                Event::Bound(bind) => {
                    assert_eq!((bind.cookie, bind.status), (cookie, DtoStatus::Success));
                }
                other => panic!("not a bind: {other:?}"),
            }
            assert_eq!(order("fault cmd.alloc_mw=12*0"), 0);
        }
        order("no faults");
    }
}
