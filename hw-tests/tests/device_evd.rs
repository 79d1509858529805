//! Completion flags, solicited wait, thresholds, and the life of receive EVDs (sections O and P of
//! the rules).

use doorbell::{
    AsyncKind, AsyncObject, CloseFlags, Cno, CompletionFlags, Count, DtoStatus, Ep, EpAttr, EpEvds, Evd,
    EvdFlags, EventData, PostError, ReturnType, Srq, WaitError, Waited, reason,
};
use doorbell_hw_tests::dat;
use doorbell_hw_tests::rig::*;
use doorbell_hw_tests::{Pair, Rig, Side, tests};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

fn main() {
    doorbell_hw_tests::run(tests![
        r230_flags_default_notifies,
        r231_flags_unsignalled_srq_still_notifies,
        r232_flags_unsignalled_forces_threshold_1,
        r233_flags_solicited_with_sender_bit,
        r234_flags_solicited_without_sender_bit,
        r235_flags_solicited_wakes_to_oldest,
        r236_flags_solicited_forces_threshold_1,
        r237_flags_sender_bit_ignored_elsewhere,
        r238_flags_errors_notify,
        r238_flags_errors_trigger_cno,
        r238_flags_flushed_notify,
        r239_flags_threshold_mode,
        r240_flags_sender_suppress_is_local,
        r241_flags_send_unsignalled_needs_ep_mode,
        r242_wait_threshold_positive,
        r243_wait_threshold_over_qlen,
        r244_wait_timeout_dequeues_nothing,
        r245_wait_success_nmore,
        r246_wait_returns_at_once_if_enough,
        r247_wait_timeout_zero_polls,
        r247_wait_total_time_survives_wakeups,
        r248_wait_single_waiter,
        r249_wait_unwaitable,
        r250_wait_suppresses_cno,
        r251_dequeue_ignores_threshold,
        r252_recv_evd_overflow_async,
        r254_recv_evd_free_refused,
        r255_recv_evd_free_releases_entries,
        r256_recv_evd_resize_keeps_events,
        r257_recv_evd_small_queue_accepted,
        r258_recv_evd_close_aborts_waiter,
    ])
    .exit();
}

const NONE: CompletionFlags = CompletionFlags::empty();

/// A server EP on an SRQ of 32 buffers of 64 bytes, with a receive EVD of its own that triggers a
/// CNO, connected.
struct Listening {
    pair: Pair,
    recv: Evd,
    cno: Cno,
    srq: Srq,
}

fn listening(rig: &Rig, recv_completion_flags: CompletionFlags) -> Listening {
    let server = &rig.server;
    let mut srq = server.srq(32);
    server.post(&mut srq, 32, 64, 0, 0);
    let cno = Cno::create(&server.ia).unwrap();
    let recv = Evd::create(&server.ia, 64, Some(&cno), EvdFlags::DTO).unwrap();
    let attr = EpAttr { recv_completion_flags, ..EpAttr::default() };
    let ep = srq_ep(server, &srq, &recv, &attr);
    let pair = rig.connect(ep, rig.client.ep(&EpAttr::default()));
    Listening { pair, recv, cno, srq }
}

fn srq_ep(side: &Side, srq: &Srq, recv: &Evd, attr: &EpAttr) -> Ep {
    let evds = EpEvds { recv: Some(recv), ..side.evds() };
    Ep::create_with_srq(&side.ia, &side.pz, evds, srq, attr).unwrap()
}

/// Starts a thread that waits on an empty EVD, and returns once that thread sleeps. Later events
/// therefore have to wake it.
fn waiter(evd: &Evd, timeout: Option<Duration>, threshold: Count) -> JoinHandle<Result<Waited, WaitError>> {
    assert_eq!(evd.query().unwrap().queued, 0);
    let (tell, told) = std::sync::mpsc::channel();
    let thread = std::thread::spawn({
        let evd = evd.clone();
        move || {
            tell.send(nix::unistd::gettid()).unwrap();
            evd.wait(timeout, threshold)
        }
    });
    let call = format!("/proc/self/task/{}/syscall", told.recv().unwrap());
    let sleeping = libc::SYS_ppoll.to_string();
    until("the thread sleeps", || {
        std::fs::read_to_string(&call).is_ok_and(|now| now.split(' ').next() == Some(sleeping.as_str()))
            || thread.is_finished()
    });
    assert!(is_waiting(evd));
    thread
}

/// Checks with a dequeue, which takes nothing from an EVD that is empty or has a waiter.
fn is_waiting(evd: &Evd) -> bool {
    match evd.dequeue() {
        Err(error) => error.code() == dat::INVALID_STATE_EVD_WAITER,
        Ok(event) => panic!("the EVD was to be empty: {event:?}"),
    }
}

fn queued(evd: &Evd) -> usize {
    evd.query().unwrap().queued
}

/// The CNO is not triggered.
fn expect_quiet(cno: &Cno) {
    match cno.wait(Some(SHORT)) {
        Err(error) if error.return_type() == ReturnType::TimeoutExpired => {}
        other => panic!("expected no trigger: {other:?}"),
    }
}

/// Sends with the given bit and waits until the message is in the receiver's queue, the `n`th
/// there.
fn send_until_queued(rig: &Rig, l: &mut Listening, flags: CompletionFlags, n: usize) {
    assert_eq!(rig.send_with(&mut l.pair, 0, 8, flags).status, DtoStatus::Success);
    until("the message is queued", || queued(&l.recv) == n);
}

/// With receive flag 0 every message wakes the waiter and triggers the CNO.
fn r230_flags_default_notifies() {
    let rig = Rig::new();
    let mut l = listening(&rig, NONE);
    every_message_notifies(&rig, &mut l);
}

fn every_message_notifies(rig: &Rig, l: &mut Listening) {
    for cookie in 0..3 {
        let waiting = waiter(&l.recv, Some(LONG), 1);
        assert!(is_waiting(&l.recv));
        rig.send(&mut l.pair, 0, 8);
        let got = waiting.join().unwrap().unwrap();
        assert_eq!(got.event.data.dto().map(|dto| dto.cookie), Some(cookie));
    }
    expect_quiet(&l.cno);
    for cookie in 3..6 {
        rig.send(&mut l.pair, 0, 8);
        assert_eq!(l.cno.wait(Some(LONG)).unwrap(), l.recv.id());
        assert_eq!(dto(&l.recv).cookie, cookie);
    }
}

/// UNSIGNALLED on an SRQ EP does not change notification, since buffers of an SRQ carry no flag.
fn r231_flags_unsignalled_srq_still_notifies() {
    let rig = Rig::new();
    let mut l = listening(&rig, CompletionFlags::UNSIGNALLED);
    every_message_notifies(&rig, &mut l);
}

/// With an unsignalled stream on the EVD only threshold 1 is allowed: INVALID_STATE
/// (CONFIG_NOTIFY).
fn r232_flags_unsignalled_forces_threshold_1() {
    let rig = Rig::new();
    let mut l = listening(&rig, CompletionFlags::UNSIGNALLED);
    assert_eq!(l.recv.wait(Some(LONG), 2).unwrap_err().error.code(), dat::INVALID_STATE_EVD_CONFIG_NOTIFY);
    rig.send(&mut l.pair, 0, 8);
    l.recv.wait(Some(LONG), 1).unwrap();
}

/// In solicited mode a Send with the bit wakes the waiter and triggers the CNO.
fn r233_flags_solicited_with_sender_bit() {
    let rig = Rig::new();
    let mut l = listening(&rig, CompletionFlags::SOLICITED_WAIT);
    let waiting = waiter(&l.recv, Some(LONG), 1);
    rig.send_with(&mut l.pair, 0, 8, CompletionFlags::SOLICITED_WAIT);
    assert!(waiting.join().unwrap().unwrap().event.data.dto().unwrap().is_success());
    rig.send_with(&mut l.pair, 0, 8, CompletionFlags::SOLICITED_WAIT);
    assert_eq!(l.cno.wait(Some(LONG)).unwrap(), l.recv.id());
    assert!(l.recv.dequeue().unwrap().data.dto().unwrap().is_success());
}

/// In solicited mode a Send without the bit is queued and wakes nobody: the waiter continues to
/// sleep, the CNO is not triggered, and a dequeue returns the event.
fn r234_flags_solicited_without_sender_bit() {
    let rig = Rig::new();
    let mut l = listening(&rig, CompletionFlags::SOLICITED_WAIT);
    send_until_queued(&rig, &mut l, NONE, 1);
    expect_quiet(&l.cno);
    assert_eq!(l.recv.dequeue().unwrap().data.dto().unwrap().cookie, 0);

    let waiting = waiter(&l.recv, Some(LONG), 1);
    send_until_queued(&rig, &mut l, NONE, 1);
    send_until_queued(&rig, &mut l, NONE, 2);
    expect_quiet(&l.cno);
    assert!(is_waiting(&l.recv) && !waiting.is_finished());
    l.recv.set_unwaitable().unwrap();
    waiting.join().unwrap().unwrap_err();
    assert_eq!(l.recv.dequeue().unwrap().data.dto().unwrap().cookie, 1);
    assert_eq!(l.recv.dequeue().unwrap().data.dto().unwrap().cookie, 2);
}

/// A waiter that a solicited message wakes gets the oldest event; the others, unsolicited ones
/// included, are counted.
fn r235_flags_solicited_wakes_to_oldest() {
    let rig = Rig::new();
    let mut l = listening(&rig, CompletionFlags::SOLICITED_WAIT);
    let waiting = waiter(&l.recv, Some(LONG), 1);
    send_until_queued(&rig, &mut l, NONE, 1);
    send_until_queued(&rig, &mut l, NONE, 2);
    assert!(is_waiting(&l.recv));
    rig.send_with(&mut l.pair, 0, 8, CompletionFlags::SOLICITED_WAIT);
    let got = waiting.join().unwrap().unwrap();
    assert_eq!(got.event.data.dto().unwrap().cookie, 0);
    assert_eq!(got.more, 2);
}

/// With a solicited stream on the EVD only threshold 1 is allowed: INVALID_STATE
/// (CONFIG_SOLICITED).
fn r236_flags_solicited_forces_threshold_1() {
    let rig = Rig::new();
    let l = listening(&rig, CompletionFlags::SOLICITED_WAIT);
    assert_eq!(l.recv.wait(Some(LONG), 2).unwrap_err().error.code(), dat::INVALID_STATE_EVD_CONFIG_SOLICITED);
}

/// In other modes the sender's bit has no effect: it does not wake a waiter before its threshold is
/// reached.
fn r237_flags_sender_bit_ignored_elsewhere() {
    let rig = Rig::new();
    let mut l = listening(&rig, NONE);
    let waiting = waiter(&l.recv, Some(LONG), 2);
    send_until_queued(&rig, &mut l, CompletionFlags::SOLICITED_WAIT, 1);
    expect_quiet(&l.cno);
    assert!(is_waiting(&l.recv) && !waiting.is_finished());
    rig.send(&mut l.pair, 0, 8);
    assert_eq!(waiting.join().unwrap().unwrap().more, 1);
}

/// A failed receive wakes a waiter in solicited mode although its Send did not ask for it.
fn r238_flags_errors_notify() {
    let rig = Rig::new();
    let mut l = listening(&rig, CompletionFlags::SOLICITED_WAIT);
    let waiting = waiter(&l.recv, Some(LONG), 1);
    // The message is longer than the buffers.
    assert_ne!(rig.send(&mut l.pair, 0, 100).status, DtoStatus::Success);
    let got = waiting.join().unwrap().unwrap();
    assert_eq!(got.event.data.dto().unwrap().status, DtoStatus::LocalLength);
}

/// Without a waiter it triggers the CNO.
fn r238_flags_errors_trigger_cno() {
    let rig = Rig::new();
    let mut l = listening(&rig, CompletionFlags::SOLICITED_WAIT);
    rig.send(&mut l.pair, 0, 8);
    expect_quiet(&l.cno);
    assert_ne!(rig.send(&mut l.pair, 0, 100).status, DtoStatus::Success);
    assert_eq!(l.cno.wait(Some(LONG)).unwrap(), l.recv.id());
    assert_eq!(dto(&l.recv).status, DtoStatus::Success);
    assert_eq!(dto(&l.recv).status, DtoStatus::LocalLength);
}

/// Flushed receives, of a plain EP, wake a waiter in solicited mode and one whose posts were
/// unsignalled.
fn r238_flags_flushed_notify() {
    let rig = Rig::new();
    for mode in [CompletionFlags::SOLICITED_WAIT, CompletionFlags::UNSIGNALLED] {
        let recv = Evd::create(&rig.server.ia, 64, None, EvdFlags::DTO).unwrap();
        let evds = EpEvds { recv: Some(&recv), ..rig.server.evds() };
        let attr = EpAttr { recv_completion_flags: mode, ..EpAttr::default() };
        let mut ep = Ep::create(&rig.server.ia, &rig.server.pz, evds, Some(&attr)).unwrap();
        let post = if mode == CompletionFlags::UNSIGNALLED { mode } else { NONE };
        ep.post_recv(&[rig.server.lmr.triplet(0, 64)], 7, post).unwrap();
        let pair = rig.connect(ep, rig.client.ep(&EpAttr::default()));
        let waiting = waiter(&recv, Some(LONG), 1);
        rig.disconnect(&pair);
        let got = waiting.join().unwrap().unwrap();
        let dto = got.event.data.dto().unwrap();
        assert_eq!((dto.cookie, dto.status), (7, DtoStatus::Flushed));
    }
}

/// In threshold mode the waiter returns when as many events are queued, not before.
fn r239_flags_threshold_mode() {
    let rig = Rig::new();
    let mut l = listening(&rig, CompletionFlags::EVD_THRESHOLD);
    let waiting = waiter(&l.recv, Some(LONG), 3);
    send_until_queued(&rig, &mut l, NONE, 1);
    send_until_queued(&rig, &mut l, NONE, 2);
    expect_quiet(&l.cno);
    assert!(is_waiting(&l.recv) && !waiting.is_finished());
    rig.send(&mut l.pair, 0, 8);
    let got = waiting.join().unwrap().unwrap();
    assert_eq!((got.event.data.dto().unwrap().cookie, got.more), (0, 2));
}

/// SUPPRESS on a Send suppresses the sender's event on success. The receiver's event and failures
/// still appear.
fn r240_flags_sender_suppress_is_local() {
    let rig = Rig::new();
    let mut l = listening(&rig, NONE);
    let segment = [rig.client.lmr.triplet(0, 8)];
    l.pair.client.post_send(&segment, 1, CompletionFlags::SUPPRESS).unwrap();
    assert_eq!(dto(&l.recv).length, 8);
    l.pair.client.post_send(&segment, 2, NONE).unwrap();
    assert_eq!(dto(&l.recv).length, 8);
    assert_eq!(dto(&rig.client.request).cookie, 2);
    expect_nothing(&rig.client.request);
    rig.disconnect(&l.pair);
    l.pair.client.post_send(&segment, 3, CompletionFlags::SUPPRESS).unwrap();
    let failed = dto(&rig.client.request);
    assert_eq!((failed.cookie, failed.status), (3, DtoStatus::Flushed));
}

/// UNSIGNALLED on a post is refused unless the EP's stream is in that mode; then the post's event
/// wakes nobody.
fn r241_flags_send_unsignalled_needs_ep_mode() {
    let rig = Rig::new();
    let mut pair = rig.connect_plain(&EpAttr::default());
    let refused = |outcome: Result<(), PostError>| {
        assert_eq!(outcome.unwrap_err().code(), dat::INVALID_ARG5);
    };
    refused(pair.client.post_send(&[rig.client.lmr.triplet(0, 8)], 0, CompletionFlags::UNSIGNALLED));
    refused(pair.server.post_recv(&[rig.server.lmr.triplet(0, 8)], 0, CompletionFlags::UNSIGNALLED));
    assert_eq!(pair.server.recv_query().unwrap().buffers, 0);

    let unsignalled = EpAttr {
        recv_completion_flags: CompletionFlags::UNSIGNALLED,
        request_completion_flags: CompletionFlags::UNSIGNALLED,
        ..EpAttr::default()
    };
    let evd = |side: &Side| Evd::create(&side.ia, 64, None, EvdFlags::DTO).unwrap();
    let (recv, request) = (evd(&rig.server), evd(&rig.client));
    let make = |side: &Side, recv: &Evd, request: &Evd| {
        let evds = EpEvds { recv: Some(recv), request: Some(request), connect: Some(&side.connect) };
        Ep::create(&side.ia, &side.pz, evds, Some(&unsignalled)).unwrap()
    };
    let mut server = make(&rig.server, &recv, &evd(&rig.server));
    for (cookie, flags) in [(0, CompletionFlags::UNSIGNALLED), (1, NONE)] {
        server.post_recv(&[rig.server.lmr.triplet(0, 64)], cookie, flags).unwrap();
    }
    let mut pair = rig.connect(server, make(&rig.client, &evd(&rig.client), &request));
    let (at_server, at_client) = (waiter(&recv, Some(LONG), 1), waiter(&request, Some(LONG), 1));
    let segment = [rig.client.lmr.triplet(0, 8)];
    pair.client.post_send(&segment, 10, CompletionFlags::UNSIGNALLED).unwrap();
    until("both ends are complete", || queued(&recv) == 1 && queued(&request) == 1);
    expect_nothing(&rig.server.recv);
    assert!(!at_server.is_finished() && !at_client.is_finished());
    pair.client.post_send(&segment, 11, NONE).unwrap();
    for (waiting, oldest) in [(at_server, 0), (at_client, 10)] {
        let got = waiting.join().unwrap().unwrap();
        assert_eq!((got.event.data.dto().unwrap().cookie, got.more), (oldest, 1));
    }
}

/// A software EVD with this many events in it.
fn with_events(rig: &Rig, n: u64) -> Evd {
    let evd = Evd::create(&rig.server.ia, 16, None, EvdFlags::SOFTWARE).unwrap();
    for value in 0..n {
        evd.post_software_event(value).unwrap();
    }
    evd
}

fn software(data: &EventData) -> u64 {
    match data {
        EventData::Software(value) => *value,
        other => panic!("not a software event: {other:?}"),
    }
}

/// A threshold below 1 is refused: INVALID_PARAMETER (ARG3), and takes nothing.
fn r242_wait_threshold_positive() {
    let rig = Rig::new();
    let evd = with_events(&rig, 1);
    for threshold in [0, -1, Count::MIN] {
        assert_eq!(evd.wait(Some(LONG), threshold).unwrap_err().error.code(), dat::INVALID_ARG3);
    }
    assert_eq!(queued(&evd), 1);
}

/// A threshold over the length is refused: INVALID_PARAMETER (ARG3); the length itself is legal.
fn r243_wait_threshold_over_qlen() {
    let rig = Rig::new();
    let evd = with_events(&rig, 1);
    let qlen = evd.query().unwrap().qlen;
    assert!(qlen >= 16);
    assert_eq!(evd.wait(Some(LONG), qlen + 1).unwrap_err().error.code(), dat::INVALID_ARG3);
    assert_eq!(evd.wait(Some(SHORT), qlen).unwrap_err().error.code(), dat::TIMEOUT_EXPIRED);
}

/// Too few events by the deadline: TIMEOUT_EXPIRED, their number, and all of them still there.
fn r244_wait_timeout_dequeues_nothing() {
    let rig = Rig::new();
    let mut l = listening(&rig, NONE);
    send_until_queued(&rig, &mut l, NONE, 1);
    send_until_queued(&rig, &mut l, NONE, 2);
    let over = l.recv.wait(Some(SHORT), 3).unwrap_err();
    assert_eq!((over.error.code(), over.more), (dat::TIMEOUT_EXPIRED, 2));
    assert_eq!(counts(&l.srq), (30, 32), "a wait that times out reaps nothing (R43)");
    assert_eq!(l.recv.dequeue().unwrap().data.dto().unwrap().cookie, 0);
    assert_eq!(l.recv.dequeue().unwrap().data.dto().unwrap().cookie, 1);
}

/// On success the number of events left is given: those after the one returned, at least threshold
/// - 1.
fn r245_wait_success_nmore() {
    let rig = Rig::new();
    let evd = with_events(&rig, 3);
    for (threshold, more) in [(2, 2), (2, 1), (1, 0)] {
        let got = evd.wait(Some(LONG), threshold).unwrap();
        assert_eq!(got.more, more);
        assert_eq!(software(&got.event.data), 2 - more as u64);
    }
}

/// Events that are queued already, notifying or not, are enough: the call does not block.
fn r246_wait_returns_at_once_if_enough() {
    let rig = Rig::new();
    let mut l = listening(&rig, CompletionFlags::SOLICITED_WAIT);
    send_until_queued(&rig, &mut l, NONE, 1);
    let got = l.recv.wait(Some(Duration::ZERO), 1).unwrap();
    assert_eq!(got.event.data.dto().unwrap().cookie, 0);
    send_until_queued(&rig, &mut l, NONE, 1);
    assert_eq!(l.recv.wait(None, 1).unwrap().more, 0);
}

/// Timeout zero looks once and never blocks; no timeout waits until something comes.
fn r247_wait_timeout_zero_polls() {
    let rig = Rig::new();
    let mut l = listening(&rig, NONE);
    assert_eq!(l.recv.wait(Some(Duration::ZERO), 1).unwrap_err().error.code(), dat::TIMEOUT_EXPIRED);
    rig.send(&mut l.pair, 0, 8);
    until("polling finds the message", || l.recv.wait(Some(Duration::ZERO), 1).is_ok());
    let waiting = waiter(&l.recv, None, 1);
    expect_nothing(&rig.server.recv);
    assert!(!waiting.is_finished());
    rig.send(&mut l.pair, 0, 8);
    assert!(waiting.join().unwrap().is_ok());
}

/// The timeout covers the whole wait: arrivals below the threshold do not restart it.
fn r247_wait_total_time_survives_wakeups() {
    let rig = Rig::new();
    let evd = Evd::create(&rig.server.ia, 4096, None, EvdFlags::SOFTWARE).unwrap();
    let qlen = evd.query().unwrap().qlen;
    let (over, posted) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) && posted.load(Ordering::Relaxed) + 1 < qlen as usize {
                evd.post_software_event(0).unwrap();
                posted.fetch_add(1, Ordering::Relaxed);
                // The interval of the arrivals, a fraction of the timeout.
                std::thread::sleep(SHORT / 50);
            }
        });
        until("events come", || posted.load(Ordering::Relaxed) > 0);
        let start = Instant::now();
        let end = evd.wait(Some(SHORT), qlen).unwrap_err();
        over.store(true, Ordering::Relaxed);
        assert_eq!(end.error.code(), dat::TIMEOUT_EXPIRED);
        assert!(start.elapsed() >= SHORT);
    });
    // If each arrival restarted the timeout, the wait would end only after the last arrival.
    assert!(posted.load(Ordering::Relaxed) + 1 < qlen as usize, "the wait lasted as long as events came");
}

/// While one thread waits, another wait and a dequeue are refused: INVALID_STATE (EVD_WAITER).
fn r248_wait_single_waiter() {
    let rig = Rig::new();
    let evd = with_events(&rig, 0);
    let waiting = waiter(&evd, Some(LONG), 1);
    assert_eq!(evd.wait(Some(LONG), 1).unwrap_err().error.code(), dat::INVALID_STATE_EVD_WAITER);
    assert_eq!(evd.dequeue().unwrap_err().code(), dat::INVALID_STATE_EVD_WAITER);
    assert!(!waiting.is_finished());
    evd.post_software_event(5).unwrap();
    assert_eq!(software(&waiting.join().unwrap().unwrap().event.data), 5);
    assert_eq!(evd.dequeue().unwrap_err().code(), dat::QUEUE_EMPTY);
}

/// An unwaitable EVD refuses a wait, and one that is made so ends the wait under way: INVALID_STATE
/// (EVD_UNWAITABLE). A dequeue still works, and so does a wait once it is waitable again.
fn r249_wait_unwaitable() {
    let rig = Rig::new();
    let evd = with_events(&rig, 0);
    let waiting = waiter(&evd, Some(LONG), 1);
    evd.set_unwaitable().unwrap();
    assert_eq!(waiting.join().unwrap().unwrap_err().error.code(), dat::INVALID_STATE_EVD_UNWAITABLE);
    evd.post_software_event(1).unwrap();
    evd.post_software_event(2).unwrap();
    assert_eq!(evd.wait(Some(LONG), 1).unwrap_err().error.code(), dat::INVALID_STATE_EVD_UNWAITABLE);
    assert_eq!(software(&evd.dequeue().unwrap().data), 1);
    evd.clear_unwaitable().unwrap();
    assert_eq!(software(&next(&evd).data), 2);
}

/// While a thread waits, arrivals do not trigger the CNO, whether or not they end the wait;
/// afterwards they do again.
fn r250_wait_suppresses_cno() {
    let rig = Rig::new();
    let mut l = listening(&rig, NONE);
    let waiting = waiter(&l.recv, Some(LONG), 2);
    send_until_queued(&rig, &mut l, NONE, 1);
    rig.send(&mut l.pair, 0, 8);
    waiting.join().unwrap().unwrap();
    expect_quiet(&l.cno);
    assert_eq!(l.recv.dequeue().unwrap().data.dto().unwrap().cookie, 1);
    rig.send(&mut l.pair, 0, 8);
    assert_eq!(l.cno.wait(Some(LONG)).unwrap(), l.recv.id());
    assert_eq!(dto(&l.recv).cookie, 2);
}

/// A dequeue takes any event, whatever the mode; from an empty EVD it gives QUEUE_EMPTY.
fn r251_dequeue_ignores_threshold() {
    let rig = Rig::new();
    for mode in
        [NONE, CompletionFlags::UNSIGNALLED, CompletionFlags::SOLICITED_WAIT, CompletionFlags::EVD_THRESHOLD]
    {
        let mut l = listening(&rig, mode);
        assert_eq!(l.recv.dequeue().unwrap_err().code(), dat::QUEUE_EMPTY);
        send_until_queued(&rig, &mut l, NONE, 1);
        assert_eq!(l.recv.dequeue().unwrap().data.dto().unwrap().length, 8);
        assert_eq!(l.recv.dequeue().unwrap_err().code(), dat::QUEUE_EMPTY);
        rig.disconnect(&l.pair);
    }
}

/// A completion that finds the EVD full is dropped, with an event on the asynchronous EVD (0x8001,
/// that EVD, reason 0), and its entry no longer counts as outstanding. Also R253.
fn r252_recv_evd_overflow_async() {
    let rig = Rig::new();
    let server = &rig.server;
    let recv = Evd::create(&server.ia, 1, None, EvdFlags::DTO).unwrap();
    recv.set_context(77);
    let qlen = recv.query().unwrap().qlen;
    let mut srq = server.srq(qlen + 4);
    server.post(&mut srq, qlen as usize + 4, 64, 0, 0);
    let ep = srq_ep(server, &srq, &recv, &EpAttr::default());
    let mut pair = rig.connect(ep, rig.client.ep(&EpAttr::default()));
    for _ in 0..qlen {
        rig.send(&mut pair, 0, 8);
    }
    until("the EVD is full", || counts(&srq) == (4, qlen + 4));
    expect_nothing(server.ia.async_evd());
    rig.send(&mut pair, 0, 8);
    until("one more has come", || counts(&srq).0 == 3);
    assert_eq!(counts(&srq), (3, qlen + 3));
    let event = next(server.ia.async_evd());
    assert_eq!(event.data.number(), dat::ASYNC_ERROR_EVD_OVERFLOW);
    let EventData::Async(event) = event.data else { panic!("{event:?}") };
    assert_eq!((event.kind, event.object), (AsyncKind::EvdOverflow, AsyncObject::Evd(recv.id())));
    assert_eq!((event.reason, event.context), (reason::EVD_OVERFLOW, 77));
    // Those that were queued are untouched, and the EVD works on.
    for cookie in 0..qlen as u64 {
        assert_eq!(dto(&recv).cookie, cookie);
    }
    assert_eq!(counts(&srq), (3, 3));
    rig.send(&mut pair, 0, 8);
    assert_eq!(dto(&recv).cookie, qlen as u64 + 1);
}

/// An EVD that an EP feeds, by whatever stream, cannot be freed: INVALID_STATE (EVD_IN_USE); after
/// the EP it can.
fn r254_recv_evd_free_refused() {
    let rig = Rig::new();
    let server = &rig.server;
    let srq = server.srq(4);
    let ep = server.srq_ep(&srq, &EpAttr::default());
    for evd in [&server.recv, &server.request, &server.connect] {
        assert_eq!(evd.free().unwrap_err().code(), dat::INVALID_STATE_EVD_IN_USE);
    }
    assert_eq!(server.recv.dequeue().unwrap_err().code(), dat::QUEUE_EMPTY);
    ep.free().unwrap();
    for evd in [&server.recv, &server.request, &server.connect] {
        evd.free().unwrap();
        assert_eq!(evd.dequeue().unwrap_err().return_type(), ReturnType::InvalidHandle);
        assert_eq!(evd.free().unwrap_err().return_type(), ReturnType::InvalidHandle);
    }
}

/// Completions that are still queued when the EP and then the EVD are freed give their entries
/// back.
fn r255_recv_evd_free_releases_entries() {
    let rig = Rig::new();
    let Listening { mut pair, recv, mut srq, .. } = listening(&rig, NONE);
    for _ in 0..5 {
        rig.send(&mut pair, 0, 8);
    }
    until("all have arrived", || counts(&srq) == (27, 32));
    rig.disconnect(&pair);
    pair.server.free().unwrap();
    recv.free().unwrap();
    assert_eq!(counts(&srq), (27, 27));
    rig.server.post(&mut srq, 5, 64, 0, 0);
    assert_eq!(counts(&srq), (32, 32));
}

/// A resize keeps every event in order; too small for those queued it is refused and changes
/// nothing.
fn r256_recv_evd_resize_keeps_events() {
    let rig = Rig::new();
    let mut l = listening(&rig, NONE);
    for _ in 0..12 {
        rig.send(&mut l.pair, 0, 8);
    }
    until("all have arrived", || queued(&l.recv) == 12);
    let before = l.recv.query().unwrap();
    assert_eq!(l.recv.resize(11).unwrap_err().return_type(), ReturnType::InvalidState);
    assert_eq!(l.recv.query().unwrap(), before);
    for bad in [0, -1] {
        assert_eq!(l.recv.resize(bad).unwrap_err().code(), dat::INVALID_ARG2);
    }
    l.recv.resize(200).unwrap();
    assert!(l.recv.query().unwrap().qlen >= 200);
    l.recv.resize(12).unwrap();
    for _ in 0..3 {
        rig.send(&mut l.pair, 0, 8);
    }
    for cookie in 0..15 {
        assert_eq!(dto(&l.recv).cookie, cookie);
    }
}

/// EPs with far more receives than their shared EVD has room for can be created, and work.
fn r257_recv_evd_small_queue_accepted() {
    let rig = Rig::new();
    let server = &rig.server;
    let one = Evd::create(&server.ia, 1, None, EvdFlags::DTO | EvdFlags::CONNECTION).unwrap();
    let evds = EpEvds { recv: Some(&one), request: Some(&one), connect: Some(&server.connect) };
    let attr = EpAttr { max_recv_dtos: 64, ..EpAttr::default() };
    let mut eps: Vec<_> =
        (0..32).map(|_| Ep::create(&server.ia, &server.pz, evds, Some(&attr)).unwrap()).collect();
    let mut last = eps.pop().unwrap();
    for cookie in 0..64 {
        last.post_recv(&[server.lmr.triplet(0, 64)], cookie, NONE).unwrap();
    }
    let mut pair = rig.connect(last, rig.client.ep(&EpAttr::default()));
    for cookie in 0..20 {
        rig.send(&mut pair, 0, 8);
        assert_eq!(dto(&one).cookie, cookie);
    }
}

/// A waiter on an EVD that is closed with its IA returns ABORT.
fn r258_recv_evd_close_aborts_waiter() {
    let rig = Rig::new();
    let Rig { server, client } = rig;
    let waiting = waiter(&server.recv, None, 1);
    let other = waiter(&server.connect, None, 1);
    server.ia.close(CloseFlags::Abrupt).unwrap();
    for waiting in [waiting, other] {
        assert_eq!(waiting.join().unwrap().unwrap_err().error.code(), dat::ABORT);
    }
    // The other end is not affected.
    let ep = client.ep(&EpAttr::default());
    expect_nothing(&client.connect);
    ep.free().unwrap();
}
