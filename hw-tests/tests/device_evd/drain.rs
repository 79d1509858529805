//! Drains: several events with one call.

use crate::wait::{software, with_events};
use crate::*;
use doorbell::inside::EpEvds;
use doorbell::{
    CloseFlags, CompletionFlags, ConnectionEventKind, DtoOp, DtoStatus, Ep, EpAttr, Evd, EvdCounter,
    EvdFlags, Event, RmrTriplet, Srq,
};
use doorbell_hw_tests::rig::*;
use doorbell_hw_tests::{Rig, Test, dat, tests};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

pub(crate) const TESTS: &[Test] = tests![
    r251_drain_takes_messages_in_their_order,
    r251_drain_takes_requests_in_their_order,
    r251_drain_takes_all_kinds_of_events,
    r251_drains_of_two_threads_share_the_events,
    r248_drain_beside_a_waiter,
    r251_drain_takes_events_of_several_cqs,
    an_older_cq_does_not_wait_for_the_youngest,
    drains_between_posts_take_each_event_once,
];

/// Takes events by drains of at most `most`, until there are `n`. Without drains if `most` is 0.
fn drained(evd: &Evd, n: usize, most: usize) -> Vec<Event> {
    let mut all = Vec::new();
    until("all events are there", || {
        match most {
            0 => all.extend(evd.dequeue().unwrap()),
            _ => {
                let before = all.len();
                all.extend(evd.drain(most).unwrap());
                assert!(all.len() - before <= most);
            }
        }
        all.len() >= n
    });
    assert_eq!(all.len(), n);
    all
}

/// The number of dequeues, and of those that found an event and none.
fn dequeues(evd: &Evd) -> (u64, u64, u64) {
    let counts = evd.counters().unwrap();
    let found = counts[EvdCounter::DequeueFound] + counts[EvdCounter::DequeuePollFound];
    (counts[EvdCounter::Dequeue], found, counts[EvdCounter::DequeueNotFound])
}

/// A drain takes messages with and without immediate data as dequeues do.
fn r251_drain_takes_messages_in_their_order() {
    let rig = Rig::new();
    let there = &rig.server.lmr;
    let target =
        RmrTriplet { virtual_address: there.address(), segment_length: 64, rmr_context: there.rmr_context() };
    for most in [0, 1, 7, 32, 64] {
        let mut l = listening(&rig, NONE);
        for n in 0..32 {
            let source = [rig.client.lmr.triplet(0, n + 1)];
            match n % 5 {
                3 => l.pair.client.write(&source).to(target).with_immediate(n as u32).post().unwrap(),
                _ => l.pair.client.send(&source).post().unwrap(),
            }
            assert_eq!(dto(&rig.client.request).status, DtoStatus::Success);
        }
        for (n, event) in (0..).zip(drained(&l.recv, 32, most)) {
            let Event::Received(dto) = event else { panic!("{event:?}") };
            let expected = match n % 5 {
                3 => (DtoOp::ReceiveRdmaWriteImmediate, Some(n as u32)),
                _ => (DtoOp::Receive, None),
            };
            assert_eq!((dto.op, dto.immediate), expected);
            assert_eq!((dto.cookie, dto.ep, dto.status), (n, l.pair.server.id(), DtoStatus::Success));
            assert_eq!(dto.length, n as u32 + 1);
        }
        let (all, found, not_found) = dequeues(&l.recv);
        assert_eq!((all, found), (32 + not_found, 32), "drains of {most}");
        // Each message has released its entry.
        assert_eq!(counts(&l.srq), (0, 0));
        rig.disconnect(&l.pair);
    }
}

/// A drain takes the events of requests, also where some are suppressed, and of both streams of an
/// EP on one EVD.
fn r251_drain_takes_requests_in_their_order() {
    let rig = Rig::new();
    let both = rig.client.evd(EvdFlags::DTO);
    for (most, shared) in [(0, false), (1, false), (5, false), (64, false), (0, true), (5, true), (64, true)]
    {
        let evds = match shared {
            true => EpEvds { recv: Some(&both), request: Some(&both), ..rig.client.evds() },
            false => EpEvds { request: Some(&both), ..rig.client.evds() },
        };
        let attr = EpAttr { request_depth: 32, ..EpAttr::default() };
        let client =
            Ep::builder(&rig.client.ia, &rig.client.pz).evds(evds).attributes(&attr).build().unwrap();
        let mut srq = rig.server.srq(32);
        rig.server.post(&mut srq, 32, 64, 0, 0);
        let mut pair = rig.connect(rig.server.srq_ep(&srq, &EpAttr::default()), client);
        let mut expected = Vec::new();
        for n in 0..24 {
            let suppress = n % 3 == 1;
            let flags = if suppress { CompletionFlags::SUPPRESS } else { NONE };
            pair.client
                .send(&[rig.client.lmr.triplet(0, n + 1)])
                .cookie(n as u64)
                .flags(flags)
                .post()
                .unwrap();
            assert_eq!(dto(&rig.server.recv).status, DtoStatus::Success);
            if !suppress {
                expected.push((DtoOp::Send, n as u64));
            }
        }
        if shared {
            let into = [rig.client.lmr.triplet(4096, 64)];
            pair.client.post_recv(&into, 100, NONE).unwrap();
            pair.server.send(&[rig.server.lmr.triplet(0, 8)]).post().unwrap();
            assert_eq!(dto(&rig.server.request).status, DtoStatus::Success);
        }
        let of = |event: Event| event.completion().map(|dto| (dto.op, dto.cookie)).expect("a completion");
        let all = expected.len() + usize::from(shared);
        let taken = drained(&both, all, most).into_iter().map(of);
        // The device need not complete the receive after the last request.
        let (receives, requests): (Vec<_>, Vec<_>) = taken.partition(|(op, _)| *op == DtoOp::Receive);
        assert_eq!(requests, expected, "drains of {most}");
        assert_eq!(receives, vec![(DtoOp::Receive, 100); usize::from(shared)], "drains of {most}");
        assert_eq!(both.drain(4).unwrap().count(), 0);
        // All places of the ring are free again.
        rig.server.post(&mut srq, 24, 64, 0, 0);
        for n in 0..32 {
            pair.client.send(&[rig.client.lmr.triplet(0, 1)]).cookie(n).post().unwrap();
            assert_eq!(dto(&rig.server.recv).status, DtoStatus::Success);
        }
        assert_eq!(drained(&both, 32, most).len(), 32);
        rig.disconnect(&pair);
    }
}

/// Events of all kinds come in the order of dequeues, and count as dequeues do: software events
/// before completions, failed completions, the end of a connection behind them.
fn r251_drain_takes_all_kinds_of_events() {
    let rig = Rig::new();
    let evd = with_events(&rig, 5);
    assert_eq!(evd.drain(3).unwrap().count(), 3);
    assert_eq!(dequeues(&evd), (3, 3, 0));
    let values: Vec<_> = drained(&evd, 2, 8).iter().map(software).collect();
    assert_eq!(values, [3, 4]);
    assert_eq!(dequeues(&evd), (6, 5, 1));
    assert_eq!(evd.drain(0).unwrap().count(), 0);
    assert_eq!(dequeues(&evd), (6, 5, 1));

    let all = rig.server.evd(EvdFlags::DTO | EvdFlags::CONNECTION | EvdFlags::SOFTWARE);
    let evds = EpEvds { recv: Some(&all), connect: Some(&all), ..rig.server.evds() };
    let server = Ep::builder(&rig.server.ia, &rig.server.pz).evds(evds).build().unwrap();
    let mut client = rig.client.ep(&EpAttr::default());
    let (_psp, arrival) = rig.ask(&client);
    arrival.cr.accept(&server, &[]).unwrap();
    expect_connection(&rig.client.connect, &client, ConnectionEventKind::Established);
    let mut server = server;
    for cookie in 0..4 {
        server.post_recv(&[rig.server.lmr.triplet(0, 64)], cookie, NONE).unwrap();
    }
    let [up] = &drained(&all, 1, 8)[..] else { unreachable!() };
    assert!(matches!(up, Event::Connected(_)));
    for _ in 0..2 {
        client.send(&[rig.client.lmr.triplet(0, 8)]).post().unwrap();
        assert_eq!(dto(&rig.client.request).status, DtoStatus::Success);
    }
    until("both messages are queued", || queued(&all) == 2);
    all.post_software_event(7).unwrap();
    client.disconnect(CloseFlags::Abrupt).unwrap();
    let events = drained(&all, 6, 4);
    assert_eq!(software(&events[0]), 7);
    let kind = |event: &Event| match event {
        Event::Received(dto) => (dto.cookie, true),
        Event::Failed(dto) => (dto.cookie, false),
        Event::Disconnected(_) => (100, true),
        other => panic!("{other:?}"),
    };
    let (ends, completions): (Vec<_>, Vec<_>) =
        events[1..].iter().map(kind).partition(|(cookie, _)| *cookie == 100);
    assert_eq!(completions, [(0, true), (1, true), (2, false), (3, false)]);
    assert_eq!(ends, [(100, true)]);
}

/// Two EPs whose requests complete on different CQs of the EVD, the older CQ first, and the SRQ of
/// their peers.
fn pairs_with_two_cqs(rig: &Rig, requests: &Evd) -> (Vec<Pair>, Srq) {
    let mut srq = rig.server.srq(128);
    rig.server.post(&mut srq, 128, 64, 0, 0);
    // The second EP needs more entries than the first CQ has left.
    let pairs = [8, 1000].into_iter().map(|request_depth| {
        let attr = EpAttr { request_depth, ..EpAttr::default() };
        let evds = EpEvds { request: Some(requests), ..rig.client.evds() };
        let client =
            Ep::builder(&rig.client.ia, &rig.client.pz).evds(evds).attributes(&attr).build().unwrap();
        rig.connect(rig.server.srq_ep(&srq, &EpAttr::default()), client)
    });
    (pairs.collect(), srq)
}

/// Dequeues and drains take the requests of two EPs whose requests complete on different CQs of the
/// EVD, each once, and each is counted.
fn r251_drain_takes_events_of_several_cqs() {
    let rig = Rig::new();
    let requests = rig.client.evd(EvdFlags::DTO);
    let (mut pairs, _srq) = pairs_with_two_cqs(&rig, &requests);
    let mut sent = 0;
    for most in [0, 1, 5, 64] {
        let mut expected = Vec::new();
        for n in 0..6 {
            for (pair, cookie) in pairs.iter_mut().zip([n, 100 + n]) {
                pair.client.send(&[rig.client.lmr.triplet(0, 8)]).cookie(cookie).post().unwrap();
                assert_eq!(dto(&rig.server.recv).status, DtoStatus::Success);
                expected.push((pair.client.id(), cookie));
            }
        }
        let of = |event: Event| event.completion().map(|dto| (dto.ep, dto.cookie)).expect("a completion");
        let mut taken: Vec<_> = drained(&requests, 12, most).into_iter().map(of).collect();
        // In the order of each EP.
        for list in [&mut taken, &mut expected] {
            list.sort_by_key(|(ep, _)| *ep == pairs[1].client.id());
        }
        assert_eq!(taken, expected, "drains of {most}");
        sent += 12;
        let (all, found, not_found) = dequeues(&requests);
        assert_eq!((all, found), (sent + not_found, sent));
    }
}

/// A completion on the older of two CQs is dequeued although the younger one always has some.
fn an_older_cq_does_not_wait_for_the_youngest() {
    let rig = Rig::new();
    let requests = rig.client.evd(EvdFlags::DTO);
    let (mut pairs, _srq) = pairs_with_two_cqs(&rig, &requests);
    let (older, youngest) = pairs.split_at_mut(1);
    let send = |pair: &mut Pair, cookie| {
        pair.client.send(&[rig.client.lmr.triplet(0, 8)]).cookie(cookie).post().unwrap();
        assert_eq!(dto(&rig.server.recv).status, DtoStatus::Success);
    };
    for cookie in 0..16 {
        send(&mut youngest[0], cookie);
    }
    // The first dequeue prepares the fast path for the next ones.
    drained(&requests, 8, 0);
    send(&mut older[0], 1000);
    let until_found = (16..100).take_while(|&cookie| {
        send(&mut youngest[0], cookie);
        drained(&requests, 1, 0)[0].completion().expect("a completion").cookie != 1000
    });
    assert!(until_found.count() < 64, "it waits as long as the youngest CQ has completions");
}

/// Drains take each event once, in order, while buffers are posted anew: messages, and requests on
/// an EVD of both streams.
fn drains_between_posts_take_each_event_once() {
    let rig = Rig::new();
    let (recv, both) = (rig.server.evd(EvdFlags::DTO), rig.client.evd(EvdFlags::DTO));
    let mut srq = rig.server.srq(16);
    rig.server.post(&mut srq, 16, 64, 0, 0);
    let evds = EpEvds { recv: Some(&both), request: Some(&both), ..rig.client.evds() };
    let client = Ep::builder(&rig.client.ia, &rig.client.pz).evds(evds).build().unwrap();
    let mut pair = rig.connect(srq_ep(&rig.server, &srq, &recv, &EpAttr::default()), client);
    let cookie = |event: &Event| event.completion().expect("a completion").cookie;
    let (mut posted, mut sent, mut expected) = (16, 0, 0..);
    for most in [1, 3, 4, 5, 8, 16, 16] {
        let n = most.min(12) as u64;
        let before = (dequeues(&recv), dequeues(&both));
        for _ in 0..n {
            pair.client.send(&[rig.client.lmr.triplet(0, 8)]).cookie(sent).post().unwrap();
            sent += 1;
        }
        // No call that harvests: each drain finds the completions where the device has put them.
        let requests: Vec<_> = drained(&both, n as usize, most).iter().map(cookie).collect();
        assert_eq!(requests, (sent - n..sent).collect::<Vec<_>>(), "drains of {most}");
        let messages: Vec<_> = drained(&recv, n as usize, most).iter().map(cookie).collect();
        let next: Vec<_> = expected.by_ref().take(n as usize).collect();
        assert_eq!(messages, next, "drains of {most}");
        for _ in 0..n {
            srq.post_recv(&[rig.server.lmr.triplet(0, 64)], posted).unwrap();
            posted += 1;
        }
        for (evd, before) in [(&recv, before.0), (&both, before.1)] {
            assert_eq!(evd.drain(4).unwrap().count(), 0);
            let (all, found, not_found) = dequeues(evd);
            assert_eq!((found - before.1, all - found), (n, not_found));
        }
        assert_eq!(counts(&srq), (16, 16));
    }
}

/// Sets the flag when it is dropped.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Two threads drain one EVD while messages arrive: each message goes to one of them, in order.
fn r251_drains_of_two_threads_share_the_events() {
    const MESSAGES: usize = 400;
    let rig = Rig::patient();
    let mut l = listening(&rig, NONE);
    let taken = AtomicUsize::new(0);
    let over = AtomicBool::new(false);
    let drains = || {
        let mut mine = Vec::new();
        while !over.load(Ordering::Relaxed) {
            let before = mine.len();
            mine.extend(l.recv.drain(5).unwrap().map(|event| event.completion().unwrap().cookie));
            taken.fetch_add(mine.len() - before, Ordering::Relaxed);
            if mine.len() == before {
                std::thread::yield_now();
            }
        }
        mine
    };
    let (one, two) = std::thread::scope(|scope| {
        // Also after a panic, so that the threads end.
        let _over = Over(&over);
        let threads = [scope.spawn(drains), scope.spawn(drains)];
        for n in 32..MESSAGES as u64 + 32 {
            l.pair.client.send(&[rig.client.lmr.triplet(0, 8)]).post().unwrap();
            assert_eq!(dto(&rig.client.request).status, DtoStatus::Success);
            let posted = || l.srq.post_recv(&[rig.server.lmr.triplet(0, 64)], n).is_ok();
            until("an entry is free", posted);
        }
        until("all messages are taken", || taken.load(Ordering::Relaxed) >= MESSAGES);
        over.store(true, Ordering::Relaxed);
        let [one, two] = threads.map(|thread| thread.join().unwrap());
        (one, two)
    });
    assert!(one.is_sorted() && two.is_sorted());
    let mut all = [one, two].concat();
    all.sort_unstable();
    assert_eq!(all, (0..MESSAGES as u64).collect::<Vec<_>>());
}

/// A drain beside a waiter is refused as a dequeue is, and so is one of an EVD that was freed.
fn r248_drain_beside_a_waiter() {
    let rig = Rig::new();
    let evd = with_events(&rig, 0);
    let waiting = waiter(&evd, Some(LONG), 1);
    assert_eq!(code(evd.drain(4)), dat::INVALID_STATE_EVD_WAITER);
    evd.post_software_event(1).unwrap();
    assert_eq!(software(&waiting.join().unwrap().unwrap().event), 1);
    assert_eq!(evd.drain(4).unwrap().count(), 0);
    evd.clone().close().unwrap();
    assert_eq!(code(evd.drain(4)), code(evd.dequeue()));
}
