//! Waits and thresholds.

use crate::*;
use doorbell::{
    CloseFlags, CompletionFlags, Count, DtoStatus, Ep, EpAttr, EpEvds, Evd, EvdCounter, EvdFlags, EventData,
    IaSettings,
};
use doorbell_hw_tests::rig::*;
use doorbell_hw_tests::{Rig, Test, dat, tests};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

pub(crate) const TESTS: &[Test] = tests![
    r242_wait_threshold_positive,
    r243_wait_threshold_over_qlen,
    r244_wait_timeout_dequeues_nothing,
    r245_wait_success_nmore,
    r245_wait_counts_what_the_cqs_hold,
    r246_wait_returns_at_once_if_enough,
    r247_wait_timeout_zero_polls,
    r247_wait_total_time_survives_wakeups,
    r248_wait_single_waiter,
    r249_wait_unwaitable,
    r250_wait_suppresses_cno,
    r251_dequeue_ignores_threshold,
    a_wait_polls_before_it_sleeps,
    a_wait_that_polled_in_vain_sleeps,
    a_wait_that_polls_ends_in_time_and_with_its_evd,
];

/// Waits with this poll time for a message that is sent once `ready` says so of the counters of
/// waits, and of those that slept. Returns both counters.
fn wait_for_a_message(poll_time: Duration, ready: impl Fn(u64, u64) -> bool) -> (u64, u64) {
    let rig = Rig::with(IaSettings { poll_time, ..IaSettings::default() });
    let server = &rig.server;
    let recv = server.evd(EvdFlags::DTO);
    let evds = EpEvds { recv: Some(&recv), ..server.evds() };
    let ep = Ep::create(&server.ia, &server.pz, evds, None).unwrap();
    let mut pair = rig.connect(ep, rig.client.ep(&EpAttr::default()));
    pair.server.post_recv(&[server.lmr.triplet(0, 64)], 5, NONE).unwrap();
    let counters = || {
        let all = recv.counters().unwrap();
        (all[EvdCounter::Wait], all[EvdCounter::WaitBlocked])
    };
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| dto(&recv));
        until("it waits", || ready(counters().0, counters().1));
        assert_eq!(rig.send(&mut pair, 0, 8).status, DtoStatus::Success);
        assert_eq!(waiter.join().unwrap().cookie, 5);
    });
    counters()
}

/// A message that comes within the poll time is found without a sleep.
fn a_wait_polls_before_it_sleeps() {
    assert_eq!(wait_for_a_message(LONG, |waits, _| waits == 1), (1, 0));
}

/// After the poll time, or without one, the wait sleeps, and the message wakes it.
fn a_wait_that_polled_in_vain_sleeps() {
    for poll_time in [Duration::from_millis(1), Duration::ZERO] {
        assert_eq!(wait_for_a_message(poll_time, |_, sleeps| sleeps == 1), (1, 1));
    }
}

/// A timeout ends the polling, and so does the end of the EVD (R258). After two waits in vain, the
/// next one sleeps.
fn a_wait_that_polls_ends_in_time_and_with_its_evd() {
    let Rig { server, .. } = Rig::with(IaSettings { poll_time: LONG, ..IaSettings::default() });
    let recv = &server.recv;
    let sleeps = || recv.counters().unwrap()[EvdCounter::WaitBlocked];
    // The third is long, so that its time is not over before it sleeps.
    for (millis, expected) in [(5, 0), (5, 0), (1000, 1)] {
        let timeout = Some(Duration::from_millis(millis));
        assert_eq!(recv.wait(timeout, 1).unwrap_err().error.code(), dat::TIMEOUT_EXPIRED);
        assert_eq!(sleeps(), expected);
    }
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| recv.wait(None, 1).unwrap_err().error.code());
        until("it waits", || recv.counters().unwrap()[EvdCounter::Wait] == 4);
        assert_eq!(sleeps(), 1);
        server.ia.close(CloseFlags::Abrupt).unwrap();
        assert_eq!(waiter.join().unwrap(), dat::ABORT);
    });
}

/// A software EVD with this many events in it.
pub(crate) fn with_events(rig: &Rig, n: u64) -> Evd {
    let evd = Evd::create(&rig.server.ia, 16, None, EvdFlags::SOFTWARE).unwrap();
    for value in 0..n {
        evd.post_software_event(value).unwrap();
    }
    evd
}

pub(crate) fn software(data: &EventData) -> u64 {
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

/// Messages that are still on the CQs count as events that are left. A wait is not counted as a
/// dequeue, and it does not sleep if an event is there.
fn r245_wait_counts_what_the_cqs_hold() {
    let rig = Rig::new();
    let server = &rig.server;
    let recv = server.evd(EvdFlags::DTO | EvdFlags::SOFTWARE);
    let mut srq = server.srq(8);
    server.post(&mut srq, 8, 64, 0, 10);
    let mut shared =
        rig.connect(srq_ep(server, &srq, &recv, &EpAttr::default()), rig.client.ep(&EpAttr::default()));
    let evds = EpEvds { recv: Some(&recv), ..server.evds() };
    let ep = Ep::create(&server.ia, &server.pz, evds, None).unwrap();
    let mut plain = rig.connect(ep, rig.client.ep(&EpAttr::default()));
    for cookie in 20..29 {
        plain.server.post_recv(&[server.lmr.triplet(0, 64)], cookie, NONE).unwrap();
    }
    let got = || {
        let got = recv.wait(Some(LONG), 1).unwrap();
        (got.event.data.dto().map_or(0, |dto| dto.cookie), got.more)
    };
    let send = |pair: &mut Pair, n: usize| {
        for _ in 0..n {
            assert_eq!(rig.send(pair, 0, 8).status, DtoStatus::Success);
        }
    };

    send(&mut shared, 3);
    assert_eq!([got(), got(), got()], [(10, 2), (11, 1), (12, 0)]);
    send(&mut plain, 2);
    assert_eq!([got(), got()], [(20, 1), (21, 0)]);
    // More messages come between the waits.
    send(&mut shared, 2);
    assert_eq!(got(), (13, 1));
    send(&mut shared, 2);
    assert_eq!(recv.dequeue().unwrap().data.dto().unwrap().cookie, 14);
    assert_eq!([got(), got()], [(15, 1), (16, 0)]);
    let now = recv.counters().unwrap();
    let of = [EvdCounter::Wait, EvdCounter::WaitBlocked, EvdCounter::Dequeue];
    assert_eq!(of.map(|counter| now[counter]), [8, 0, 1]);

    // Two CQs have completions, in whichever order.
    send(&mut shared, 1);
    send(&mut plain, 1);
    let mut cookies = [got(), got()];
    assert_eq!(cookies.map(|(_, more)| more), [1, 0]);
    cookies.sort_unstable();
    assert_eq!(cookies.map(|(cookie, _)| cookie), [17, 22]);
    // A message and a software event.
    send(&mut plain, 1);
    recv.post_software_event(1).unwrap();
    let mut both = [got(), got()];
    assert_eq!(both.map(|(_, more)| more), [1, 0]);
    both.sort_unstable();
    assert_eq!(both.map(|(cookie, _)| cookie), [0, 23]);
    // Events in the queue, and a message on a CQ.
    send(&mut plain, 2);
    until("both are queued", || queued(&recv) == 2);
    send(&mut plain, 1);
    assert_eq!([got(), got(), got()], [(24, 2), (25, 1), (26, 0)]);
    // A message and a receive that is flushed.
    send(&mut plain, 1);
    rig.disconnect(&plain);
    assert_eq!((got().0, got()), (27, (28, 0)));
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
    let start = Instant::now();
    let waiting = waiter(&evd, Some(LONG), 1);
    evd.set_unwaitable().unwrap();
    assert_eq!(waiting.join().unwrap().unwrap_err().error.code(), dat::INVALID_STATE_EVD_UNWAITABLE);
    // At the end of its time the wait would find out by itself.
    assert!(start.elapsed() < LONG, "nothing has woken the waiter");
    evd.post_software_event(1).unwrap();
    evd.post_software_event(2).unwrap();
    assert_eq!(evd.wait(Some(LONG), 1).unwrap_err().error.code(), dat::INVALID_STATE_EVD_UNWAITABLE);
    assert_eq!(software(&evd.dequeue().unwrap().data), 1);
    evd.clear_unwaitable().unwrap();
    assert_eq!(software(&next(&evd).data), 2);

    // So does an EVD whose message has already arrived.
    let mut pair = rig.connect_plain(&EpAttr::default());
    pair.server.post_recv(&[rig.server.lmr.triplet(0, 64)], 3, NONE).unwrap();
    assert_eq!(rig.send(&mut pair, 0, 8).status, DtoStatus::Success);
    let recv = &rig.server.recv;
    recv.set_unwaitable().unwrap();
    assert_eq!(recv.wait(Some(LONG), 1).unwrap_err().error.code(), dat::INVALID_STATE_EVD_UNWAITABLE);
    recv.clear_unwaitable().unwrap();
    assert_eq!(dto(recv).cookie, 3);
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
