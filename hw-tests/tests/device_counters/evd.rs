//! Counters of EVDs.

use crate::*;
use doorbell::inside::EpEvds;
use doorbell::{CompletionFlags, DtoStatus, Ep, EpAttr, EvdCounter as V, EvdFlags};
use doorbell_hw_tests::rig::*;
use doorbell_hw_tests::{Rig, Test, tests};
use std::time::Duration;

pub(crate) const TESTS: &[Test] = tests![
    an_evd_counts_dequeues,
    an_evd_counts_dequeues_from_each_of_its_cqs,
    an_evd_counts_waits,
    an_evd_counts_connection_events,
];

fn an_evd_counts_dequeues() {
    let rig = Rig::new();
    let mut srq = rig.server.srq(8);
    let mut pair = rig.connect_srq(&srq);
    rig.server.post(&mut srq, 8, 64, 0, 0);
    let evd = &rig.server.recv;
    assert!(evd.dequeue().unwrap().is_none());
    assert!(evd.dequeue().unwrap().is_none());
    evd_is(evd, &[(V::Dequeue, 2), (V::DequeueNotFound, 2), (V::DequeuePoll, 2)]);
    evd.take_counters(V::ALL).unwrap();

    let mut misses = 0;
    assert_eq!(rig.send(&mut pair, 0, 8).status, DtoStatus::Success);
    while evd.dequeue().unwrap().is_none() {
        misses += 1;
    }
    let polled = [(V::DequeuePoll, misses + 1), (V::DequeuePollFound, 1), (V::DequeueNotFound, misses)];
    evd_is(evd, &[&polled[..], &[(V::Dequeue, misses + 1)]].concat());
    // A query takes the next one out of the CQ.
    assert_eq!(rig.send(&mut pair, 0, 8).status, DtoStatus::Success);
    until("it has arrived", || evd.query().unwrap().queued == 1);
    evd.dequeue().unwrap().unwrap();
    evd_is(evd, &[&polled[..], &[(V::Dequeue, misses + 2), (V::DequeueFound, 1)]].concat());

    // Without a CQ there is nothing to look into.
    let software = rig.server.evd(EvdFlags::SOFTWARE);
    assert!(software.dequeue().unwrap().is_none());
    software.post_software_event(1).unwrap();
    software.dequeue().unwrap().unwrap();
    evd_is(&software, &[(V::Dequeue, 2), (V::DequeueFound, 1), (V::DequeueNotFound, 1)]);
}

/// A dequeue counts although the EVD has got a longer CQ since, for an EP that needs more room.
fn an_evd_counts_dequeues_from_each_of_its_cqs() {
    let rig = Rig::new();
    let server = &rig.server;
    let evd = rig.server.evd(EvdFlags::DTO);
    let evds = EpEvds { recv: Some(&evd), ..server.evds() };
    let new = |recv_depth| {
        let attr = EpAttr { recv_depth, ..EpAttr::default() };
        Ep::builder(&server.ia, &server.pz).evds(evds).attributes(&attr).build().unwrap()
    };
    let mut pair = rig.connect(new(8), rig.client.ep(&EpAttr::default()));
    pair.server.post_recv(&[server.lmr.triplet(0, 64)], 0, CompletionFlags::empty()).unwrap();
    assert_eq!(rig.send(&mut pair, 0, 8).status, DtoStatus::Success);
    let mut misses = 0;
    while evd.dequeue().unwrap().is_none() {
        misses += 1;
    }
    drop(pair);
    let _longer = new(1000);
    // On rxe the device tells the progress thread of each completion, so that thread may have taken
    // this one off the CQ before.
    let queued = evd.counters().unwrap()[V::DequeueFound];
    evd_is(
        &evd,
        &[
            (V::Dequeue, misses + 1),
            (V::DequeueFound, queued),
            (V::DequeuePoll, misses + 1 - queued),
            (V::DequeuePollFound, 1 - queued),
            (V::DequeueNotFound, misses),
        ],
    );
}

fn an_evd_counts_waits() {
    let rig = Rig::new();
    let software = rig.server.evd(EvdFlags::SOFTWARE);
    software.post_software_event(1).unwrap();
    next(&software);
    evd_is(&software, &[(V::Wait, 1)]);
    software.wait_threshold(1, Some(Duration::ZERO)).unwrap_err();
    evd_is(&software, &[(V::Wait, 2)]);
    expect_nothing(&software);
    evd_is(&software, &[(V::Wait, 3), (V::WaitBlocked, 1)]);
    software.wait_threshold(0, None).unwrap_err();
    software.set_unwaitable().unwrap();
    software.wait_threshold(1, None).unwrap_err();
    evd_is(&software, &[(V::Wait, 3), (V::WaitBlocked, 1)]);

    // With a CQ the device is asked before each sleep.
    let mut srq = rig.server.srq(8);
    let mut pair = rig.connect_srq(&srq);
    rig.server.post(&mut srq, 8, 64, 0, 0);
    let evd = &rig.server.recv;
    evd.wait_threshold(1, Some(Duration::ZERO)).unwrap_err();
    evd_is(evd, &[(V::Wait, 1)]);
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| dto(evd));
        until("it sleeps", || evd.counters().unwrap()[V::WaitBlocked] == 1);
        evd_is(evd, &[(V::Wait, 2), (V::WaitNotify, 1), (V::WaitBlocked, 1)]);
        assert_eq!(rig.send(&mut pair, 0, 8).status, DtoStatus::Success);
        waiter.join().unwrap();
    });
    let now = evd.counters().unwrap();
    assert_eq!((now[V::Wait], now[V::DtoCallback], now[V::Dequeue]), (2, 1, 0), "{now:?}");
    // A wait polls before each sleep, and may then not have to sleep.
    assert!((0..2).contains(&(now[V::WaitNotify] - now[V::WaitBlocked])), "{now:?}");
}

fn an_evd_counts_connection_events() {
    let rig = Rig::new();
    let pair = rig.connect_plain(&EpAttr::default());
    rig.disconnect(&pair);
    for side in [&rig.server, &rig.client] {
        assert_eq!(side.connect.counters().unwrap()[V::ConnCallback], 2);
        assert_eq!(side.recv.counters().unwrap()[V::ConnCallback], 0);
    }
    // Connection requests do not count.
    assert_eq!(rig.server.cr.counters().unwrap()[V::ConnCallback], 0);
}
