//! Waits and thresholds.

use crate::*;
use doorbell::inside::EpEvds;
use doorbell::{DtoStatus, Ep, EpAttr, Evd, EvdCounter, EvdFlags, Event};
use doorbell_hw_tests::rig::*;
use doorbell_hw_tests::{Rig, Test, dat, tests};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

pub(crate) const TESTS: &[Test] = tests![
    r245_wait_counts_what_the_cqs_hold,
    r247_wait_total_time_survives_wakeups,
    a_wait_polls_before_it_sleeps,
    a_wait_that_polled_in_vain_sleeps,
    a_wait_that_polls_ends_in_time_and_with_its_evd,
];

/// Waits with this poll time for a message that is sent once `ready` says so of the counters of
/// waits, and of those that slept. Returns both counters.
fn wait_for_a_message(poll_time: Duration, ready: impl Fn(u64, u64) -> bool) -> (u64, u64) {
    let rig = Rig::with(|ia| ia.poll_time(poll_time));
    let server = &rig.server;
    let recv = server.evd(EvdFlags::DTO);
    let evds = EpEvds { recv: Some(&recv), ..server.evds() };
    let ep = Ep::builder(&server.ia, &server.pz).evds(evds).build().unwrap();
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
    let Rig { server, .. } = Rig::with(|ia| ia.poll_time(LONG));
    let recv = &server.recv;
    let sleeps = || recv.counters().unwrap()[EvdCounter::WaitBlocked];
    // The third is long, so that its time is not over before it sleeps.
    for (millis, expected) in [(5, 0), (5, 0), (1000, 1)] {
        let timeout = Some(Duration::from_millis(millis));
        assert_eq!(recv.wait_threshold(1, timeout).unwrap_err().error.code(), dat::TIMEOUT_EXPIRED);
        assert_eq!(sleeps(), expected);
    }
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| recv.wait_threshold(1, None).unwrap_err().error.code());
        until("it waits", || recv.counters().unwrap()[EvdCounter::Wait] == 4);
        assert_eq!(sleeps(), 1);
        drop(server.ia);
        assert_eq!(waiter.join().unwrap(), dat::ABORT);
    });
}

/// A software EVD with this many events in it.
pub(crate) fn with_events(rig: &Rig, n: u64) -> Evd {
    let evd = Evd::new(&rig.server.ia, 16, EvdFlags::SOFTWARE).unwrap();
    for value in 0..n {
        evd.post_software_event(value).unwrap();
    }
    evd
}

pub(crate) fn software(event: &Event) -> u64 {
    match event {
        Event::Software(value) => *value,
        other => panic!("not a software event: {other:?}"),
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
    let ep = Ep::builder(&server.ia, &server.pz).evds(evds).build().unwrap();
    let mut plain = rig.connect(ep, rig.client.ep(&EpAttr::default()));
    for cookie in 20..29 {
        plain.server.post_recv(&[server.lmr.triplet(0, 64)], cookie, NONE).unwrap();
    }
    let got = || {
        let got = recv.wait_threshold(1, Some(LONG)).unwrap();
        (got.event.completion().map_or(0, |dto| dto.cookie), got.more)
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
    assert_eq!(recv.dequeue().unwrap().unwrap().completion().unwrap().cookie, 14);
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

/// The timeout covers the whole wait: arrivals below the threshold do not restart it.
fn r247_wait_total_time_survives_wakeups() {
    let rig = Rig::new();
    let evd = Evd::new(&rig.server.ia, 4096, EvdFlags::SOFTWARE).unwrap();
    let qlen = evd.query().unwrap().depth as usize;
    let (over, posted) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) && posted.load(Ordering::Relaxed) + 1 < qlen {
                evd.post_software_event(0).unwrap();
                posted.fetch_add(1, Ordering::Relaxed);
                // The interval of the arrivals, a fraction of the timeout.
                std::thread::sleep(SHORT / 50);
            }
        });
        until("events come", || posted.load(Ordering::Relaxed) > 0);
        let start = Instant::now();
        let end = evd.wait_threshold(qlen, Some(SHORT)).unwrap_err();
        over.store(true, Ordering::Relaxed);
        assert_eq!(end.error.code(), dat::TIMEOUT_EXPIRED);
        assert!(start.elapsed() >= SHORT);
    });
    // If each arrival restarted the timeout, the wait would end only after the last arrival.
    assert!(posted.load(Ordering::Relaxed) + 1 < qlen, "the wait lasted as long as events came");
}
