//! The life of receive EVDs.

use crate::*;
use doorbell::{
    AsyncKind, AsyncObject, CloseFlags, DtoStatus, Ep, EpAttr, EpEvds, Evd, EvdFlags, EventData, ReturnType,
    reason,
};
use doorbell_hw_tests::rig::*;
use doorbell_hw_tests::{Rig, Test, dat, tests};

pub(crate) const TESTS: &[Test] = tests![
    r252_recv_evd_overflow_async,
    flushed_requests_overflow_their_evd,
    r254_recv_evd_free_refused,
    r255_recv_evd_free_releases_entries,
    r256_recv_evd_resize_keeps_events,
    r257_recv_evd_small_queue_accepted,
    r258_recv_evd_close_aborts_waiter,
    evds_of_a_closed_ia_are_freed,
];

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

/// Requests of a disconnected EP are flushed without the device. Those for which the EVD has no
/// room are an overflow, too.
fn flushed_requests_overflow_their_evd() {
    let rig = Rig::new();
    let server = &rig.server;
    let requests = Evd::create(&server.ia, 1, None, EvdFlags::DTO).unwrap();
    let qlen = requests.query().unwrap().qlen;
    let evds = EpEvds { request: Some(&requests), ..server.evds() };
    let attr = EpAttr { max_request_dtos: qlen + 4, ..EpAttr::default() };
    let ep = Ep::create(&server.ia, &server.pz, evds, Some(&attr)).unwrap();
    let mut pair = rig.connect(ep, rig.client.ep(&EpAttr::default()));
    rig.disconnect(&pair);
    for cookie in 0..=qlen as u64 {
        pair.server.post_send(&[], cookie, NONE).unwrap();
    }
    let event = asynchronous(&server.ia);
    assert_eq!((event.kind, event.object), (AsyncKind::EvdOverflow, AsyncObject::Evd(requests.id())));
    for cookie in 0..qlen as u64 {
        let flushed = dto(&requests);
        assert_eq!((flushed.status, flushed.cookie), (DtoStatus::Flushed, cookie));
    }
    expect_nothing(&requests);
    expect_nothing(server.ia.async_evd());
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

/// After the IA was closed, every call on its EVDs finds a freed object.
fn evds_of_a_closed_ia_are_freed() {
    let side = one_side();
    let evd = Evd::create(&side.ia, 16, None, EvdFlags::DTO | EvdFlags::SOFTWARE).unwrap();
    side.ia.close(CloseFlags::Abrupt).unwrap();
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
