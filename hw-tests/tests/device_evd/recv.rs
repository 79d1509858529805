//! The life of receive EVDs.

use crate::*;
use doorbell::inside::EpEvds;
use doorbell::{
    AsyncKind, AsyncObject, Cno, ConnectionEventKind, DtoStatus, Ep, EpAttr, Evd, EvdFlags, Event,
    ReturnType, RmrTriplet,
};
use doorbell_hw_tests::rig::*;
use doorbell_hw_tests::{Pair, Rig, Test, dat, tests};

pub(crate) const TESTS: &[Test] = tests![
    flushed_requests_overflow_their_evd,
    a_resize_or_query_tells_an_overflow_that_it_finds,
    a_dequeue_tells_an_overflow_that_it_finds,
    a_dequeue_that_finds_a_failure_ends_the_connection,
    a_query_counts_more_messages_than_one_poll_finds,
    a_connection_takes_nothing_off_the_cqs_of_its_evds,
    notices_leave_before_the_rest_of_a_batch,
    an_ep_joins_its_evd_beside_a_waiter,
    a_cno_is_not_triggered_for_what_was_taken,
    a_request_flushed_at_once_is_announced,
    a_dequeue_passes_suppressed_requests,
    a_buffer_posted_again_gets_no_message_twice,
    buffers_posted_again_behind_a_batch_get_their_messages,
    an_evd_is_resized_up_to_the_limits,
    r257_recv_evd_small_queue_has_room_in_its_cq,
    evds_of_a_closed_ia_are_freed,
];

/// Requests of a disconnected EP are flushed without the device. Those for which the EVD has no
/// room are an overflow, too.
fn flushed_requests_overflow_their_evd() {
    let rig = Rig::new();
    let server = &rig.server;
    let requests = Evd::new(&server.ia, 1, EvdFlags::DTO).unwrap();
    let qlen = requests.query().unwrap().depth;
    let evds = EpEvds { request: Some(&requests), ..server.evds() };
    let attr = EpAttr { request_depth: qlen + 4, ..EpAttr::default() };
    let ep = Ep::builder(&server.ia, &server.pz).evds(evds).attributes(&attr).build().unwrap();
    let mut pair = rig.connect(ep, rig.client.ep(&EpAttr::default()));
    rig.disconnect(&pair);
    for cookie in 0..=u64::from(qlen) {
        pair.server.send(&[]).cookie(cookie).post().unwrap();
    }
    let event = asynchronous(&server.ia);
    assert_eq!((event.kind, event.object), (AsyncKind::EvdOverflow, AsyncObject::Evd(requests.id())));
    for cookie in 0..u64::from(qlen) {
        let flushed = dto(&requests);
        assert_eq!((flushed.status, flushed.cookie), (DtoStatus::Flushed, cookie));
    }
    expect_nothing(&requests);
    expect_nothing(server.ia.async_evd());
}

/// A server EP with more room for requests than its own request EVD has, connected to an EP with
/// receives for all of them. Returns the EVD's length, too.
fn narrow(rig: &Rig, flags: EvdFlags) -> (Pair, Evd, u32) {
    let server = &rig.server;
    let requests = Evd::new(&server.ia, 1, flags).unwrap();
    let qlen = requests.query().unwrap().depth;
    let evds = EpEvds { request: Some(&requests), ..server.evds() };
    let attr = EpAttr { request_depth: qlen + 4, ..EpAttr::default() };
    let ep = Ep::builder(&server.ia, &server.pz).evds(evds).attributes(&attr).build().unwrap();
    let client = rig.client.ep(&EpAttr { recv_depth: qlen + 4, ..EpAttr::default() });
    let mut pair = rig.connect(ep, client);
    for cookie in 0..u64::from(qlen) + 4 {
        pair.client.post_recv(&[], cookie, NONE).unwrap();
    }
    (pair, requests, qlen)
}

/// The only event on the asynchronous EVD says that this EVD has overflowed.
fn expect_overflow(rig: &Rig, evd: &Evd) {
    let event = asynchronous(&rig.server.ia);
    assert_eq!((event.kind, event.object), (AsyncKind::EvdOverflow, AsyncObject::Evd(evd.id())));
    expect_nothing(rig.server.ia.async_evd());
}

/// No other call harvests the completions.
fn a_resize_or_query_tells_an_overflow_that_it_finds() {
    let looks: [fn(&Evd, u32); 2] =
        [|evd, qlen| evd.resize(qlen).unwrap(), |evd, _| assert!(evd.query().is_ok())];
    for look in looks {
        // A rig for each, because the end of a connection raises events at the other side.
        let rig = Rig::new();
        let (mut pair, requests, qlen) = narrow(&rig, EvdFlags::DTO);
        for cookie in 0..=u64::from(qlen) {
            pair.server.send(&[]).cookie(cookie).post().unwrap();
        }
        until("it has found them all", || {
            look(&requests, qlen);
            rig.server.ia.async_evd().query().unwrap().queued > 0
        });
        expect_overflow(&rig, &requests);
        (0..u64::from(qlen)).for_each(|cookie| assert_eq!(dto(&requests).cookie, cookie));
        expect_nothing(&requests);
    }
}

/// The EVD is full of software events before each dequeue, so the completion never has room.
fn a_dequeue_tells_an_overflow_that_it_finds() {
    let rig = Rig::new();
    let (mut pair, requests, _) = narrow(&rig, EvdFlags::DTO | EvdFlags::SOFTWARE);
    pair.server.send(&[]).post().unwrap();
    until("a dequeue has found it", || {
        while requests.post_software_event(1).is_ok() {}
        assert!(matches!(requests.dequeue().unwrap(), Some(Event::Software(1))));
        rig.server.ia.async_evd().query().unwrap().queued > 0
    });
    expect_overflow(&rig, &requests);
}

/// No message finds a receive. The device reports this at the sender alone, by the completion.
fn a_dequeue_that_finds_a_failure_ends_the_connection() {
    let rig = Rig::with(|ia| ia.rnr_retry(1).rnr_timer(1));
    for _ in 0..20 {
        let mut pair = rig.connect_plain(&EpAttr::default());
        pair.client.send(&[]).cookie(7).post().unwrap();
        let mut found = None;
        until("the failure is there", || {
            found = rig.client.request.dequeue().unwrap();
            found.is_some()
        });
        let failed = *found.unwrap().completion().unwrap();
        assert_eq!((failed.status, failed.cookie), (DtoStatus::ReceiverNotReady, 7));
        expect_connection(&rig.client.connect, &pair.client, ConnectionEventKind::Broken);
        expect_connection(&rig.server.connect, &pair.server, ConnectionEventKind::Disconnected);
    }
}

/// One query is enough, however many messages wait.
fn a_query_counts_more_messages_than_one_poll_finds() {
    let rig = Rig::new();
    let mut srq = rig.server.srq(100);
    let mut pair = rig.connect_srq(&srq);
    for n in [31, 32, 33, 64, 100] {
        rig.server.post(&mut srq, n, 64, 0, 0);
        for _ in 0..n {
            assert_eq!(rig.send(&mut pair, 0, 8).status, DtoStatus::Success);
        }
        assert_eq!(queued(&rig.server.recv), n);
        assert_eq!(counts(&srq), (0, n as u32));
        (0..n as u64).for_each(|cookie| assert_eq!(dto(&rig.server.recv).cookie, cookie));
    }
}

/// More requests have finished than their EVD has room for. The consumer can still dequeue them one
/// by one, since another EP of the EVD that connects harvests nothing.
fn a_connection_takes_nothing_off_the_cqs_of_its_evds() {
    let rig = Rig::new();
    let (mut pair, requests, qlen) = narrow(&rig, EvdFlags::DTO);
    let all = u64::from(qlen) + 4;
    for cookie in 0..all {
        pair.server.send(&[]).cookie(cookie).post().unwrap();
        assert_eq!(dto(&rig.client.recv).cookie, cookie);
    }
    let evds = EpEvds { request: Some(&requests), ..rig.server.evds() };
    // They stay until the end: a disconnect harvests.
    let _others = [(); 2].map(|()| {
        let other = Ep::builder(&rig.server.ia, &rig.server.pz).evds(evds).build().unwrap();
        rig.connect(other, rig.client.ep(&EpAttr::default()))
    });
    for cookie in 0..all {
        let mut found = None;
        until("the request is there", || {
            found = requests.dequeue().unwrap();
            found.is_some()
        });
        assert_eq!(found.unwrap().completion().unwrap().cookie, cookie);
    }
    assert_eq!(queued(rig.server.ia.async_evd()), 0);
}

/// A message with immediate data is polled together with those behind it. A software event that
/// comes then is older than none of them, but notices leave first.
fn notices_leave_before_the_rest_of_a_batch() {
    let rig = Rig::new();
    let server = &rig.server;
    for by_drain in [false, true] {
        let evd = server.evd(EvdFlags::DTO | EvdFlags::SOFTWARE);
        let mut srq = server.srq(4);
        server.post(&mut srq, 4, 64, 0, 0);
        let mut pair =
            rig.connect(srq_ep(server, &srq, &evd, &EpAttr::default()), rig.client.ep(&EpAttr::default()));
        pair.client.write(&[]).to(RmrTriplet::default()).with_immediate(1).post().unwrap();
        assert_eq!(dto(&rig.client.request).status, DtoStatus::Success);
        for _ in 0..3 {
            assert_eq!(rig.send(&mut pair, 0, 8).status, DtoStatus::Success);
        }
        let take = || {
            let event = if by_drain { evd.drain(1).unwrap().next() } else { evd.dequeue().unwrap() };
            match event.unwrap() {
                Event::Software(value) => value,
                Event::Received(dto) => dto.cookie,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(take(), 0);
        evd.post_software_event(70).unwrap();
        assert_eq!(take(), 70);
        assert_eq!(take(), 1);
        evd.post_software_event(71).unwrap();
        evd.post_software_event(72).unwrap();
        assert_eq!([take(), take(), take(), take()], [71, 72, 2, 3]);
        assert_eq!(counts(&srq), (0, 0));
        rig.disconnect(&pair);
    }
}

/// The thread that waits stays the only one that may take events, and is woken by the next.
fn an_ep_joins_its_evd_beside_a_waiter() {
    let rig = Rig::new();
    let server = &rig.server;
    let evd = server.evd(EvdFlags::DTO | EvdFlags::SOFTWARE);
    let waiting = waiter(&evd, Some(LONG), 1);
    let evds = EpEvds { recv: Some(&evd), request: Some(&evd), ..server.evds() };
    let mut srq = server.srq(4);
    let attr = EpAttr::default();
    let on_srq = Ep::builder(&server.ia, &server.pz).evds(evds).srq(&srq).attributes(&attr).build().unwrap();
    assert!(is_waiting(&evd));
    let plain = Ep::builder(&server.ia, &server.pz).evds(evds).attributes(&attr).build().unwrap();
    assert!(is_waiting(&evd));
    let mut pair = rig.connect(on_srq, rig.client.ep(&attr));
    let _other = rig.connect(plain, rig.client.ep(&attr));
    assert!(is_waiting(&evd));
    server.post(&mut srq, 1, 64, 0, 5);
    assert_eq!(rig.send(&mut pair, 0, 8).status, DtoStatus::Success);
    assert_eq!(waiting.join().unwrap().unwrap().event.completion().unwrap().cookie, 5);
}

/// The consumer has taken every event. When the connection ends and the EP is freed, nothing is
/// left for which the CNO of the EVD could be triggered.
fn a_cno_is_not_triggered_for_what_was_taken() {
    let rig = Rig::new();
    let mut l = listening(&rig, NONE);
    assert_eq!(rig.send(&mut l.pair, 0, 8).status, DtoStatus::Success);
    assert_eq!(l.cno.wait(Some(LONG)).unwrap(), l.recv.id());
    assert_eq!(l.recv.dequeue().unwrap().unwrap().completion().unwrap().cookie, 0);
    expect_quiet(&l.cno);
    rig.disconnect(&l.pair);
    l.pair.server.close().unwrap();
    expect_quiet(&l.cno);
}

/// A request of a disconnected EP, and a receive, are flushed without the device: nothing else
/// wakes who waits for them, on the EVD or on its CNO.
fn a_request_flushed_at_once_is_announced() {
    let rig = Rig::new();
    let server = &rig.server;
    let mut pair = rig.connect_plain(&EpAttr::default());
    rig.disconnect(&pair);
    let waiting = waiter(&server.request, Some(LONG), 1);
    pair.server.send(&[]).cookie(7).post().unwrap();
    let sent = *waiting.join().unwrap().unwrap().event.completion().expect("a completion");
    assert_eq!((sent.status, sent.cookie), (DtoStatus::Flushed, 7));

    let cno = Cno::new(&server.ia).unwrap();
    server.recv.set_cno(Some(&cno)).unwrap();
    expect_quiet(&cno);
    pair.server.post_recv(&[], 8, NONE).unwrap();
    assert_eq!(cno.wait(Some(LONG)).unwrap(), server.recv.id());
    let received = dto(&server.recv);
    assert_eq!((received.status, received.cookie), (DtoStatus::Flushed, 8));
}

/// A dequeue takes requests that make no event off the CQ, and ends when nothing is behind them.
fn a_dequeue_passes_suppressed_requests() {
    let rig = Rig::new();
    let mut pair = rig.connect_plain(&EpAttr::default());
    for suppressed in [1, 3, 7] {
        for event in [true, false] {
            for _ in 1..suppressed {
                let nothing = RmrTriplet::default();
                pair.server.write(&[]).to(nothing).suppress().post().unwrap();
            }
            pair.client.post_recv(&[], 0, NONE).unwrap();
            pair.server.send(&[]).suppress().post().unwrap();
            if event {
                pair.client.post_recv(&[], 0, NONE).unwrap();
                pair.server.send(&[]).cookie(7).post().unwrap();
                assert_eq!(dto(&rig.client.recv).status, DtoStatus::Success);
            }
            assert_eq!(dto(&rig.client.recv).status, DtoStatus::Success);
            // The answer follows the acknowledgement of them all, which rxe may handle after it.
            pair.server.post_recv(&[], 0, NONE).unwrap();
            assert_eq!(rig.deliver(&mut pair, 0).status, DtoStatus::Success);
            if event {
                let mut found = None;
                until("the request has completed", || {
                    found = rig.server.request.dequeue().unwrap();
                    found.is_some()
                });
                assert_eq!(found.unwrap().completion().unwrap().cookie, 7);
            }
            assert!(rig.server.request.dequeue().unwrap().is_none());
        }
    }
}

/// Two messages are polled together, and buffers are posted anew before the next dequeue. That
/// dequeue may not take a completion of an entry's last buffer for one of the new buffer. On the
/// verbs path, an EVD that is not the first of its SRQ returns entries as a stack: now and then the
/// new buffer gets the entry that was reaped last.
fn a_buffer_posted_again_gets_no_message_twice() {
    let rig = Rig::new();
    let server = &rig.server;
    let mut srq = server.srq(2);
    server.post(&mut srq, 2, 64, 0, 0);
    let first = server.evd(EvdFlags::DTO);
    let _first = srq_ep(server, &srq, &first, &EpAttr::default());
    let mut pair = rig.connect_srq(&srq);
    for round in 0..300 {
        rig.send(&mut pair, 0, 8);
        rig.send(&mut pair, 0, 8);
        for cookie in [2 * round, 2 * round + 1] {
            // No wait: that takes all completions off the CQ.
            let mut found = None;
            until("the message is there", || {
                found = server.recv.dequeue().unwrap();
                found.is_some()
            });
            assert!(matches!(found.unwrap(), Event::Received(received) if received.cookie == cookie));
        }
        server.post(&mut srq, 2, 64, 0, 2 * round + 2);
        assert!(server.recv.dequeue().unwrap().is_none());
    }
    assert_eq!(counts(&srq), (2, 2));
}

/// The program takes some of many messages and posts their buffers again, so that each buffer waits
/// for a message, or its message for the program. Messages with immediate data are polled in
/// batches. The EPs have nearly all places of their completion queue, which is never found empty.
fn buffers_posted_again_behind_a_batch_get_their_messages() {
    const DEPTHS: [usize; 5] = [64, 32, 16, 8, 4];
    const TAKEN: usize = 32;
    let rig = Rig::new();
    let server = &rig.server;
    let recv = Evd::new(&server.ia, 127, EvdFlags::DTO).unwrap();
    let mut pairs = DEPTHS.map(|depth| {
        let evds = EpEvds { recv: Some(&recv), ..server.evds() };
        let attr = EpAttr { recv_depth: depth as u32, ..EpAttr::default() };
        let ep = Ep::builder(&server.ia, &server.pz).evds(evds).attributes(&attr).build().unwrap();
        rig.connect(ep, rig.client.ep(&EpAttr::default()))
    });
    let mut sent = 0..;
    let mut send = |pair: &mut Pair, n: usize| {
        for immediate in sent.by_ref().take(n) {
            pair.server.post_recv(&[server.lmr.triplet(0, 64)], 0, NONE).unwrap();
            pair.client.write(&[]).to(RmrTriplet::default()).with_immediate(immediate).post().unwrap();
            assert_eq!(dto(&rig.client.request).status, DtoStatus::Success);
        }
    };
    let mut arrived = 0..;
    let mut take = |n: usize| {
        for immediate in arrived.by_ref().take(n) {
            // A wait would poll all completions.
            let mut event = None;
            until("the message is there", || {
                event = recv.dequeue().unwrap();
                event.is_some()
            });
            let message = *event.as_ref().and_then(|event| event.completion()).unwrap();
            assert_eq!((message.status, message.immediate), (DtoStatus::Success, Some(immediate)));
        }
    };
    for (pair, depth) in pairs.iter_mut().zip(DEPTHS) {
        send(pair, depth);
    }
    for _ in 0..2 {
        // Those of the first EP.
        take(TAKEN);
        send(&mut pairs[0], TAKEN);
    }
    take(DEPTHS.iter().sum());
    expect_nothing(server.ia.async_evd());
}

/// The smallest and the greatest length are legal, and no other.
fn an_evd_is_resized_up_to_the_limits() {
    let side = one_side();
    let evd = side.evd(EvdFlags::SOFTWARE);
    let most = side.ia.attributes().max_evd_depth;
    for qlen in [1, most] {
        evd.resize(qlen).unwrap();
        assert!(evd.query().unwrap().depth >= qlen);
    }
    let before = evd.query().unwrap();
    for qlen in [0, most + 1] {
        assert_eq!(code(evd.resize(qlen)), dat::INVALID_ARG2);
    }
    assert_eq!(evd.query().unwrap(), before);
}

/// Messages for all receives of several EPs wait in the CQ of an EVD that is shorter than that.
fn r257_recv_evd_small_queue_has_room_in_its_cq() {
    const RECEIVES: u64 = 64;
    /// So many that the CQ that the EVD gets for the first is too short for all.
    const EPS: usize = 12;
    let rig = Rig::new();
    let server = &rig.server;
    let one = Evd::new(&server.ia, 1, EvdFlags::DTO).unwrap();
    let evds = EpEvds { recv: Some(&one), ..server.evds() };
    let attr = EpAttr { recv_depth: RECEIVES as u32, ..EpAttr::default() };
    let mut pairs = [(); EPS].map(|()| {
        let ep = Ep::builder(&server.ia, &server.pz).evds(evds).attributes(&attr).build().unwrap();
        rig.connect(ep, rig.client.ep(&EpAttr::default()))
    });
    for (pair, first) in pairs.iter_mut().zip((0..).step_by(RECEIVES as usize)) {
        for cookie in first..first + RECEIVES {
            pair.server.post_recv(&[server.lmr.triplet(0, 64)], cookie, NONE).unwrap();
            assert_eq!(rig.send(pair, 0, 8).status, DtoStatus::Success);
        }
    }
    for cookie in 0..EPS as u64 * RECEIVES {
        let message = *one.dequeue().unwrap().unwrap().completion().unwrap();
        assert_eq!((message.status, message.cookie), (DtoStatus::Success, cookie));
    }
}

/// After the IA was closed, every call on its EVDs finds a freed object.
fn evds_of_a_closed_ia_are_freed() {
    let side = one_side();
    let evd = Evd::new(&side.ia, 16, EvdFlags::DTO | EvdFlags::SOFTWARE).unwrap();
    drop(side.ia);
    let outcomes = [
        evd.query().map(drop),
        evd.set_cno(None),
        evd.enable(),
        evd.disable(),
        evd.set_unwaitable(),
        evd.clear_unwaitable(),
        evd.resize(32),
        evd.post_software_event(1),
        evd.dequeue().map(drop),
    ];
    for (call, outcome) in outcomes.into_iter().enumerate() {
        assert_eq!(outcome.unwrap_err().return_type(), ReturnType::InvalidHandle, "call {call}");
    }
}
