//! How connections of SRQ EPs end: disconnect, break, flush (section L of the rules).

use doorbell::{
    AsyncKind, AsyncObject, CloseFlags, CompletionFlags, ConnectionEventKind, DtoStatus, Ep, EpAttr, EpEvds,
    EpState, Evd, EvdFlags, EventData, IaCounter, RmrTriplet, Srq, SrqAttr, SrqState, reason,
};
use doorbell_hw_tests::dat;
use doorbell_hw_tests::rig::*;
use doorbell_hw_tests::{Pair, Rig, tests};
use std::time::{Duration, Instant};

fn main() {
    let tests = tests![
        r174_flush_reports_every_taken_buffer,
        r174_flush_needs_no_further_message,
        r174_finished_receives_keep_their_result,
        r175_flush_spares_buffers_on_srq,
        r178_fail_once_fail_after,
        r180_graceful_still_receives,
        r183_abrupt_overrides_graceful,
        r184_disconnected_event_once,
        r185_disconnected_event_after_successes,
        r185_disconnected_event_before_later_messages,
        r187_disconnect_forbidden_states,
        r189_disconnect_aborts_setup,
        r190_broken_flushes_like_disconnect,
        r192_dtestsrq_ep_broken_quirk,
        r193_dtestsrq_async_queue_depth,
        ends_come_in_the_order_of_the_peers_disconnects,
        a_peer_that_disconnects_leaves_requests_flushed,
        a_connection_to_a_silent_peer_breaks_with_a_message_too_long,
        a_connection_to_a_silent_peer_breaks_with_a_forbidden_write,
        a_message_that_was_taken_confirms_the_connection,
        an_accept_that_is_never_confirmed_fails_with_its_peer,
        a_reset_waits_only_until_the_device_has_taken_the_last_buffer,
    ];
    let rxe = doorbell_hw_tests::on_rxe();
    doorbell_hw_tests::run_unless(tests, 4, |name| match name {
        "ends_come_in_the_order_of_the_peers_disconnects" if rxe => {
            Some("on rxe the end waits for acknowledgements, which come late there")
        }
        "a_connection_to_a_silent_peer_breaks_with_a_forbidden_write" if rxe => {
            Some("rxe raises no event for it")
        }
        _ => None,
    })
    .exit();
}

const NONE: CompletionFlags = CompletionFlags::empty();

/// A half-filled buffer at the end of a connection is reported on the EP's recv EVD, once and with
/// its cookie, whether the message still succeeds or not; the buffer is outstanding until the event
/// is reaped. Messages that had not started never arrive, and a buffer posted afterwards goes to
/// another EP. Also R177, R179, R191.
fn r174_flush_reports_every_taken_buffer() {
    const LONG_MESSAGE: usize = 1 << 20;
    let rig = Rig::patient();
    let mut srq = rig.server.srq(4);
    let mut ended = rig.connect_srq(&srq);
    let mut other = rig.connect_srq(&srq);
    rig.client.lmr.write(0, &vec![0xA5; LONG_MESSAGE]).unwrap();
    rig.server.post(&mut srq, 1, LONG_MESSAGE, 0, 40);
    for len in [LONG_MESSAGE, 8, 8] {
        ended.client.post_send(&[rig.client.lmr.triplet(0, len)], 0, NONE).unwrap();
    }
    until("the message has begun to arrive", || {
        let mut byte = [0];
        rig.server.lmr.read(0, &mut byte).unwrap();
        byte == [0xA5]
    });
    rig.disconnect(&ended);
    // The client's requests are all reported, none twice.
    for _ in 0..3 {
        dto(&rig.client.request);
    }
    expect_nothing(&rig.client.request);
    // How much of the long message arrived depends on timing.
    rig.server.post(&mut srq, 1, 64, LONG_MESSAGE, 41);
    assert_eq!(rig.send(&mut other, 0, 8).status, DtoStatus::Success);
    until("both buffers are accounted for", || counts(&srq) == (0, 2));
    let mut reports = [dto(&rig.server.recv), dto(&rig.server.recv)];
    reports.sort_by_key(|report| report.cookie);
    let [of_ended, of_other] = reports;
    assert_eq!((of_ended.ep, of_ended.cookie), (ended.server.id(), 40));
    assert_eq!((of_other.ep, of_other.cookie, of_other.status), (other.server.id(), 41, DtoStatus::Success));
    assert!(matches!(of_ended.status, DtoStatus::Success | DtoStatus::Flushed), "{of_ended:?}");
    assert_eq!(counts(&srq), (0, 0));
    expect_nothing(&rig.server.recv);
    assert_eq!(srq.query().unwrap().state, SrqState::Operational);
    assert_eq!(other.server.state(), EpState::Connected);
}

/// The same if the next buffer was used before the end: the half-filled buffer is reported without
/// another message.
fn r174_flush_needs_no_further_message() {
    const SEGMENTS: usize = 8;
    const SEGMENT: usize = 1 << 20;
    let rig = Rig::new();
    let attr = SrqAttr { max_recv_dtos: 4, max_recv_iov: SEGMENTS as i32, low_watermark: 0 };
    let mut srq = Srq::create(&rig.server.ia, &rig.server.pz, attr).unwrap();
    let sender = rig.client.ep(&EpAttr { max_request_iov: SEGMENTS as i32, ..EpAttr::default() });
    let mut ended = rig.connect(rig.server.srq_ep(&srq, &EpAttr::default()), sender);
    let mut other = rig.connect_srq(&srq);
    rig.client.lmr.write(0, &[0xA5]).unwrap();
    // Long enough for another message to overtake it. The content does not matter, so the memory is
    // used repeatedly.
    srq.post_recv(&[rig.server.lmr.triplet(0, SEGMENT); SEGMENTS], 40).unwrap();
    rig.server.post(&mut srq, 1, 64, SEGMENT, 41);
    ended.client.post_send(&[rig.client.lmr.triplet(0, SEGMENT); SEGMENTS], 0, NONE).unwrap();
    until("the message has begun to arrive", || {
        let mut byte = [0];
        rig.server.lmr.read(0, &mut byte).unwrap();
        byte == [0xA5]
    });
    other.client.post_send(&[rig.client.lmr.triplet(0, 8)], 0, NONE).unwrap();
    let first = dto(&rig.server.recv);
    rig.disconnect(&ended);
    let second = dto(&rig.server.recv);
    let mut reports = [first, second].map(|got| (got.ep, got.cookie));
    reports.sort_by_key(|report| report.1);
    assert_eq!(reports, [(ended.server.id(), 40), (other.server.id(), 41)]);
    assert_eq!(counts(&srq), (0, 0));
    expect_nothing(&rig.server.recv);
}

/// Receives that finished before the end are reaped after it with their results, and are
/// outstanding until then. Also R177.
fn r174_finished_receives_keep_their_result() {
    let rig = Rig::new();
    let mut srq = rig.server.srq(4);
    let mut pair = rig.connect_srq(&srq);
    rig.server.post(&mut srq, 4, 64, 0, 0);
    for len in [8, 9] {
        assert_eq!(rig.send(&mut pair, 0, len).status, DtoStatus::Success);
    }
    rig.disconnect(&pair);
    assert_eq!(counts(&srq), (2, 4));
    for cookie in [0, 1] {
        let got = dto(&rig.server.recv);
        assert_eq!((got.status, got.cookie, got.length), (DtoStatus::Success, cookie, 8 + cookie as u32));
        assert_eq!(counts(&srq), (2, 3 - cookie as i32));
    }
    expect_nothing(&rig.server.recv);
}

/// An SRQ EP that holds no buffer reports nothing when it ends, and what is on the SRQ stays there
/// for its other EPs; an ordinary EP reports each preposted receive as flushed. Also R176, R191.
fn r175_flush_spares_buffers_on_srq() {
    let rig = Rig::new();
    let mut srq = rig.server.srq(4);
    rig.server.post(&mut srq, 3, 64, 0, 0);
    let ended = rig.connect_srq(&srq);
    let mut other = rig.connect_srq(&srq);
    rig.disconnect(&ended);
    expect_nothing(&rig.server.recv);
    let param = srq.query().unwrap();
    assert_eq!((param.available, param.outstanding, param.state), (3, 3, SrqState::Operational));
    assert_eq!(other.server.state(), EpState::Connected);
    for cookie in 0..3 {
        let got = rig.deliver(&mut other, 8);
        assert_eq!((got.status, got.cookie, got.ep), (DtoStatus::Success, cookie, other.server.id()));
    }

    let mut plain = rig.connect_plain(&EpAttr::default());
    for cookie in 20..23 {
        plain.server.post_recv(&[rig.server.lmr.triplet(0, 64)], cookie, NONE).unwrap();
    }
    rig.disconnect(&plain);
    for cookie in 20..23 {
        let got = dto(&rig.server.recv);
        assert_eq!((got.status, got.status as u32), (DtoStatus::Flushed, 1));
        assert_eq!((got.cookie, got.ep), (cookie, plain.server.id()));
    }
    expect_nothing(&rig.server.recv);
}

/// Once a receive of an EP has failed no later one of it succeeds: those of an ordinary EP are
/// flushed, and an SRQ EP takes no more buffers.
fn r178_fail_once_fail_after() {
    let rig = Rig::new();
    let mut srq = rig.server.srq(4);
    rig.server.post(&mut srq, 4, 64, 0, 0);
    let on_srq = rig.connect_srq(&srq);
    let mut plain = rig.connect_plain(&EpAttr::default());
    for cookie in 0..4 {
        plain.server.post_recv(&[rig.server.lmr.triplet(4096, 64)], cookie, NONE).unwrap();
    }
    for (mut pair, expected) in [(on_srq, 2), (plain, 4)] {
        for (cookie, len) in [8, 65, 8, 8].into_iter().enumerate() {
            let message = [rig.client.lmr.triplet(0, len)];
            pair.client.post_send(&message, cookie as u64, NONE).unwrap();
        }
        let mut receives = Vec::new();
        for cookie in 0..expected {
            let got = dto(&rig.server.recv);
            assert_eq!((got.ep, got.cookie), (pair.server.id(), cookie));
            receives.push(got.status);
        }
        assert_eq!(receives[..2], [DtoStatus::Success, DtoStatus::LocalLength]);
        assert!(receives[2..].iter().all(|&status| status == DtoStatus::Flushed), "{receives:?}");
        expect_nothing(&rig.server.recv);
        for cookie in 0..4 {
            let sent = dto(&rig.client.request);
            assert_eq!(sent.cookie, cookie);
            assert!(cookie == 0 || sent.status != DtoStatus::Success, "{sent:?}");
        }
        assert_eq!(counts(&srq), (2, 2));
    }
}

/// A graceful disconnect waits for the EP's own requests; until they are done it goes on receiving
/// through the SRQ, refuses new requests, and a second graceful disconnect succeeds without effect.
/// Also R181, R182.
fn r180_graceful_still_receives() {
    let rig = Rig::patient();
    let mut srq = rig.server.srq(4);
    let mut pair = rig.connect_srq(&srq);
    rig.begin_graceful(&mut pair);
    rig.server.post(&mut srq, 3, 64, 0, 0);
    for cookie in [0, 1] {
        let got = rig.deliver(&mut pair, 8);
        assert_eq!((got.status, got.cookie, got.ep), (DtoStatus::Success, cookie, pair.server.id()));
        assert_eq!(pair.server.state(), EpState::DisconnectPending);
    }
    assert_eq!(counts(&srq), (1, 1));

    let iov = [rig.server.lmr.triplet(0, 8)];
    let remote = RmrTriplet {
        virtual_address: rig.client.lmr.address(),
        segment_length: 8,
        rmr_context: rig.client.lmr.rmr_context(),
    };
    assert_eq!(code(pair.server.post_send(&iov, 0, NONE)), dat::INVALID_STATE_EP_DISCPENDING);
    assert_eq!(code(pair.server.post_rdma_write(&iov, 0, remote, NONE)), dat::INVALID_STATE_EP_DISCPENDING);
    assert_eq!(code(pair.server.post_rdma_read(&iov, 0, remote, NONE)), dat::INVALID_STATE_EP_DISCPENDING);
    assert_eq!(
        code(pair.server.post_rdma_write_immediate(&iov, 0, remote, 1, NONE)),
        dat::INVALID_STATE_EP_DISCPENDING
    );

    pair.server.disconnect(CloseFlags::Graceful).unwrap();
    assert_eq!(pair.server.state(), EpState::DisconnectPending);
    expect_nothing(&rig.server.connect);
    rig.let_graceful_finish(&mut pair);
    let sent = dto(&rig.server.request);
    assert_eq!((sent.status, sent.cookie), (DtoStatus::Success, 77));
    assert_eq!(dto(&rig.client.recv).cookie, 78);
    expect_connection(&rig.server.connect, &pair.server, ConnectionEventKind::Disconnected);
    expect_connection(&rig.client.connect, &pair.client, ConnectionEventKind::Disconnected);
    expect_nothing(&rig.server.connect);
    expect_nothing(&rig.client.connect);
    assert_eq!(counts(&srq), (1, 1));
}

/// An abrupt disconnect ends a graceful one at once; the request that it waited for is flushed,
/// before one that is posted after the end.
fn r183_abrupt_overrides_graceful() {
    let rig = Rig::patient();
    let srq = rig.server.srq(4);
    let mut pair = rig.connect_srq(&srq);
    rig.begin_graceful(&mut pair);
    pair.server.disconnect(CloseFlags::Abrupt).unwrap();
    assert_eq!(pair.server.state(), EpState::Disconnected);
    pair.server.post_send(&[rig.server.lmr.triplet(0, 8)], 79, NONE).unwrap();
    for cookie in [77, 79] {
        let sent = dto(&rig.server.request);
        assert_eq!((sent.status, sent.cookie), (DtoStatus::Flushed, cookie));
    }
    expect_connection(&rig.server.connect, &pair.server, ConnectionEventKind::Disconnected);
    expect_connection(&rig.client.connect, &pair.client, ConnectionEventKind::Disconnected);
    expect_nothing(&rig.server.connect);
}

/// Each side gets exactly one DISCONNECTED event, also when both disconnect and do so again and
/// again; on a DISCONNECTED EP the call succeeds and does nothing. Also R186.
fn r184_disconnected_event_once() {
    let rig = Rig::new();
    let srq = rig.server.srq(4);
    for how in [CloseFlags::Abrupt, CloseFlags::Graceful] {
        let pair = rig.connect_srq(&srq);
        std::thread::scope(|scope| {
            for ep in [&pair.server, &pair.client] {
                scope.spawn(move || {
                    for _ in 0..3 {
                        ep.disconnect(how).unwrap();
                    }
                });
            }
        });
        expect_connection(&rig.server.connect, &pair.server, ConnectionEventKind::Disconnected);
        expect_connection(&rig.client.connect, &pair.client, ConnectionEventKind::Disconnected);
        for flags in [CloseFlags::Abrupt, CloseFlags::Graceful] {
            pair.server.disconnect(flags).unwrap();
            pair.client.disconnect(flags).unwrap();
        }
        expect_nothing(&rig.server.connect);
        expect_nothing(&rig.client.connect);
        assert_eq!(
            (pair.server.state(), pair.client.state()),
            (EpState::Disconnected, EpState::Disconnected)
        );
    }
}

/// A connected pair whose server has this EVD for receives and connection events.
fn on_one_evd(rig: &Rig, srq: &Srq, evd: &Evd) -> Pair {
    let evds = EpEvds { recv: Some(evd), request: Some(&rig.server.request), connect: Some(evd) };
    let attr = EpAttr::default();
    let server = Ep::create_with_srq(&rig.server.ia, &rig.server.pz, evds, srq, &attr).unwrap();
    let client = rig.client.ep(&attr);
    let (_psp, arrival) = rig.ask(&client);
    arrival.cr.accept(&server, &[]).unwrap();
    expect_connection(&rig.client.connect, &client, ConnectionEventKind::Established);
    expect_connection(evd, &server, ConnectionEventKind::Established);
    Pair { server, client }
}

/// Where receives and connection events share an EVD, the successful receives leave it before the
/// DISCONNECTED event.
fn r185_disconnected_event_after_successes() {
    let rig = Rig::new();
    let mut srq = rig.server.srq(8);
    for by_wait in [true, false] {
        let evd = rig.server.evd(EvdFlags::DTO | EvdFlags::CONNECTION);
        let mut pair = on_one_evd(&rig, &srq, &evd);
        rig.server.post(&mut srq, 4, 64, 0, 0);
        for _ in 0..4 {
            assert_eq!(rig.send(&mut pair, 0, 8).status, DtoStatus::Success);
        }
        pair.client.disconnect(CloseFlags::Abrupt).unwrap();
        until("the server knows", || pair.server.state() == EpState::Disconnected);
        until("the event is there", || evd.query().unwrap().queued == 5);
        for cookie in 0..4 {
            let event = if by_wait { next(&evd) } else { evd.dequeue().unwrap() };
            let got = event.data.dto().copied().expect("a receive before the end");
            assert_eq!((got.status, got.cookie), (DtoStatus::Success, cookie));
        }
        expect_connection(&evd, &pair.server, ConnectionEventKind::Disconnected);
        expect_connection(&rig.client.connect, &pair.client, ConnectionEventKind::Disconnected);
    }
}

/// The event waits for no message that another EP receives after it.
fn r185_disconnected_event_before_later_messages() {
    let rig = Rig::new();
    let mut srq = rig.server.srq(8);
    let evd = rig.server.evd(EvdFlags::DTO | EvdFlags::CONNECTION);
    let mut ended = on_one_evd(&rig, &srq, &evd);
    let mut other = on_one_evd(&rig, &srq, &evd);
    rig.server.post(&mut srq, 4, 64, 0, 0);
    for pair in [&mut ended, &mut other] {
        assert_eq!(rig.send(pair, 0, 8).status, DtoStatus::Success);
    }
    ended.client.disconnect(CloseFlags::Abrupt).unwrap();
    until("the event is there", || evd.query().unwrap().queued == 3);
    for cookie in 0..2 {
        assert_eq!(dto(&evd).cookie, cookie);
        assert_eq!(rig.send(&mut other, 0, 8).status, DtoStatus::Success);
        until("the later message is there", || evd.query().unwrap().queued == 3);
    }
    expect_connection(&evd, &ended.server, ConnectionEventKind::Disconnected);
    for cookie in 2..4 {
        assert_eq!(dto(&evd).cookie, cookie);
    }
}

/// Without a connection, or one being set up, a disconnect is refused, abrupt or graceful.
fn r187_disconnect_forbidden_states() {
    let rig = Rig::new();
    let srq = rig.server.srq(4);
    let ep = rig.server.srq_ep(&srq, &EpAttr::default());
    let refused = |expected| {
        for how in [CloseFlags::Abrupt, CloseFlags::Graceful] {
            let state = ep.state();
            assert_eq!(code(ep.disconnect(how)), expected, "{state:?}");
            assert_eq!(ep.state(), state);
        }
    };
    refused(dat::INVALID_STATE_EP_UNCONNECTED);
    let (rsp, qual) = rig.server.reserve(&ep);
    refused(dat::INVALID_STATE_EP_RESERVED);
    let client = rig.client.ep(&EpAttr::default());
    client.connect(rig.server.ia.address(), qual, Some(LONG), &[], doorbell::Qos::BestEffort).unwrap();
    let arrival = connection_request(&rig.server.cr);
    refused(dat::INVALID_STATE_EP_PASSCONNPENDING);
    // The request is not affected.
    arrival.cr.accept_reserved(&[]).unwrap();
    expect_connection(&rig.client.connect, &client, ConnectionEventKind::Established);
    expect_connection(&rig.server.connect, &ep, ConnectionEventKind::Established);
    drop(rsp);
}

/// While a connection is being set up, on either side, both flags abort it: DISCONNECTED, one
/// event, and nothing to flush on an SRQ EP, in contrast to the preposted receives of an ordinary
/// one. After a reset the EP can connect.
fn r189_disconnect_aborts_setup() {
    let rig = Rig::new();
    let mut srq = rig.server.srq(4);
    rig.server.post(&mut srq, 2, 64, 0, 0);
    let mut server = rig.server.srq_ep(&srq, &EpAttr::default());
    let mut client = rig.client.ep(&EpAttr::default());
    for how in [CloseFlags::Abrupt, CloseFlags::Graceful] {
        for cookie in [5, 6] {
            client.post_recv(&[rig.client.lmr.triplet(4096, 64)], cookie, NONE).unwrap();
        }
        let (psp, arrival) = rig.ask(&client);
        assert_eq!(client.state(), EpState::ActiveConnectionPending);
        client.disconnect(how).unwrap();
        assert_eq!(client.state(), EpState::Disconnected);
        // One that is posted after the end is flushed behind them.
        client.post_recv(&[rig.client.lmr.triplet(4096, 64)], 7, NONE).unwrap();
        expect_connection(&rig.client.connect, &client, ConnectionEventKind::Disconnected);
        for cookie in [5, 6, 7] {
            let got = dto(&rig.client.recv);
            assert_eq!((got.status, got.cookie, got.ep), (DtoStatus::Flushed, cookie, client.id()));
        }
        drop((arrival, psp));

        let (raw, arrival) = rig.ask_and_never_confirm();
        arrival.cr.accept(&server, &[]).unwrap();
        assert_eq!(server.state(), EpState::CompletionPending);
        server.disconnect(how).unwrap();
        assert_eq!(server.state(), EpState::Disconnected);
        expect_connection(&rig.server.connect, &server, ConnectionEventKind::Disconnected);
        drop(raw);

        expect_nothing(&rig.server.recv);
        expect_nothing(&rig.client.connect);
        expect_nothing(&rig.server.connect);
        assert_eq!(counts(&srq), (2, 2));
        server.reset().unwrap();
        client.reset().unwrap();
    }
    let mut pair = rig.connect(server, client);
    assert_eq!(rig.deliver(&mut pair, 8).cookie, 0);
}

/// A connection that breaks follows the rules of one that is disconnected: BROKEN once, the taken
/// buffer reported and outstanding until reaped, the SRQ's other buffers and EPs untouched. Also
/// R177, R191.
fn r190_broken_flushes_like_disconnect() {
    let rig = Rig::new();
    let mut srq = rig.server.srq(4);
    let mut broken = rig.connect_srq(&srq);
    let mut other = rig.connect_srq(&srq);
    rig.server.post(&mut srq, 4, 64, 0, 0);
    assert_eq!(rig.send(&mut broken, 0, 8).status, DtoStatus::Success);
    assert_ne!(rig.send(&mut broken, 0, 100).status, DtoStatus::Success);
    expect_connection(&rig.server.connect, &broken.server, ConnectionEventKind::Broken);
    until("both messages are accounted for", || counts(&srq) == (2, 4));
    for (cookie, status) in [(0, DtoStatus::Success), (1, DtoStatus::LocalLength)] {
        let got = dto(&rig.server.recv);
        assert_eq!((got.cookie, got.status, got.ep), (cookie, status, broken.server.id()));
        assert_eq!(counts(&srq), (2, 3 - cookie as i32));
    }
    assert_eq!(broken.server.state(), EpState::Disconnected);
    broken.server.disconnect(CloseFlags::Graceful).unwrap();
    expect_nothing(&rig.server.connect);
    expect_nothing(&rig.server.recv);
    for cookie in [2, 3] {
        let got = rig.deliver(&mut other, 8);
        assert_eq!((got.status, got.cookie, got.ep), (DtoStatus::Success, cookie, other.server.id()));
    }
}

/// After an SRQ EP has disconnected its side queues EP_BROKEN for it as well, on both sides and in
/// the order of the DISCONNECTED events, as stock programs wait for; an ordinary EP makes no such
/// event.
fn r192_dtestsrq_ep_broken_quirk() {
    let rig = Rig::new();
    let (srq, client_srq) = (rig.server.srq(4), rig.client.srq(4));
    let attr = EpAttr::default();
    let pairs = [0, 1, 2, 3].map(|i| {
        let client = rig.client.srq_ep(&client_srq, &attr);
        client.set_context(100 + i);
        rig.connect(rig.server.srq_ep(&srq, &attr), client)
    });
    for pair in &pairs {
        pair.client.disconnect(CloseFlags::Abrupt).unwrap();
    }
    for side in [&rig.server, &rig.client] {
        for _ in &pairs {
            let end = connection(&side.connect);
            let broken = asynchronous(&side.ia);
            assert_eq!(end.kind, ConnectionEventKind::Disconnected);
            assert_eq!((broken.kind, broken.kind as u32), (AsyncKind::EpBroken, dat::ASYNC_ERROR_EP_BROKEN));
            assert_eq!((broken.object, broken.context), (AsyncObject::Ep(end.ep), end.ep_context));
            assert_eq!(broken.reason, reason::EP_TRANSFER_TO_ERROR);
        }
        expect_nothing(side.ia.async_evd());
    }
    let plain = rig.connect_plain(&attr);
    rig.disconnect(&plain);
    expect_nothing(rig.server.ia.async_evd());
}

/// The asynchronous EVD, asked for 8 events, holds one for each of more SRQ EPs than that.
fn r193_dtestsrq_async_queue_depth() {
    const EPS: usize = 12;
    let rig = Rig::new();
    assert!(rig.server.ia.async_evd().query().unwrap().qlen >= 100);
    let srq = rig.server.srq(4);
    let pairs: Vec<_> = (0..EPS).map(|_| rig.connect_srq(&srq)).collect();
    for pair in &pairs {
        pair.client.disconnect(CloseFlags::Abrupt).unwrap();
    }
    until("all events are queued", || rig.server.ia.async_evd().query().unwrap().queued == EPS);
    let mut broken = Vec::new();
    while let Ok(event) = rig.server.ia.async_evd().dequeue() {
        match event.data {
            EventData::Async(event) if event.kind == AsyncKind::EpBroken => broken.push(event.object),
            other => panic!("{other:?}"),
        }
    }
    assert!(pairs.iter().all(|pair| broken.contains(&AsyncObject::Ep(pair.server.id()))));
    assert_eq!(broken.len(), EPS);
}

/// A request that waits for a receive of the peer does not delay the end: nobody will answer it.
fn ends_come_in_the_order_of_the_peers_disconnects() {
    let rig = Rig::patient();
    for _ in 0..5 {
        let mut first = rig.connect_plain(&EpAttr::default());
        let second = rig.connect_plain(&EpAttr::default());
        first.client.post_send(&[], 7, NONE).unwrap();
        for pair in [&first, &second] {
            pair.server.disconnect(CloseFlags::Abrupt).unwrap();
            expect_connection(&rig.server.connect, &pair.server, ConnectionEventKind::Disconnected);
        }
        for pair in [&first, &second] {
            expect_connection(&rig.client.connect, &pair.client, ConnectionEventKind::Disconnected);
        }
        let sent = dto(&rig.client.request);
        assert_eq!((sent.status, sent.cookie), (DtoStatus::Flushed, 7));
    }
}

/// The peer never answers a request and disconnects: that is no broken connection.
fn a_peer_that_disconnects_leaves_requests_flushed() {
    let rig = Rig::patient();
    let mut pair = rig.connect_plain(&EpAttr::default());
    for cookie in [7, 8] {
        pair.client.post_send(&[], cookie, NONE).unwrap();
    }
    pair.server.disconnect(CloseFlags::Abrupt).unwrap();
    expect_connection(&rig.client.connect, &pair.client, ConnectionEventKind::Disconnected);
    for cookie in [7, 8] {
        let sent = dto(&rig.client.request);
        assert_eq!((sent.status, sent.cookie), (DtoStatus::Flushed, cookie));
    }
    assert_eq!(pair.client.state(), EpState::Disconnected);
    pair.client.reset().unwrap();
}

/// The program does not look at the receive EVD, and the peer does not end the connection. The
/// device's event for an SRQ EP that takes no more buffers is all that tells the failure.
fn a_connection_to_a_silent_peer_breaks_with_a_message_too_long() {
    let rig = Rig::new();
    let mut srq = rig.server.srq(4);
    rig.server.post(&mut srq, 4, 64, 0, 0);
    let mut server = rig.server.srq_ep(&srq, &EpAttr::default());
    let peer = rig.connect_silent(&server);
    peer.send(65);
    expect_connection(&rig.server.connect, &server, ConnectionEventKind::Broken);
    let broken = asynchronous(&rig.server.ia);
    assert_eq!((broken.kind, broken.object), (AsyncKind::EpBroken, AsyncObject::Ep(server.id())));
    let got = dto(&rig.server.recv);
    assert_eq!((got.status, got.cookie), (DtoStatus::LocalLength, 0));
    assert_eq!(counts(&srq), (3, 3));
    server.reset().unwrap();
}

/// Nothing completes at an EP without posted receives. Only an event of the device tells the
/// failure.
fn a_connection_to_a_silent_peer_breaks_with_a_forbidden_write() {
    let rig = Rig::new();
    let srq = rig.server.srq(4);
    let attr = EpAttr::default();
    for mut server in [rig.server.ep(&attr), rig.server.srq_ep(&srq, &attr)] {
        let peer = rig.connect_silent(&server);
        peer.write_where_it_may_not();
        expect_connection(&rig.server.connect, &server, ConnectionEventKind::Broken);
        server.reset().unwrap();
    }
    expect_nothing(&rig.server.recv);
}

/// The peer sends a message and does not confirm the connection. A program that has taken the
/// message may answer it: the connection is up.
fn a_message_that_was_taken_confirms_the_connection() {
    let rig = Rig::new();
    let mut srq = rig.server.srq(4);
    let attr = EpAttr::default();
    for (confirmed, (on_srq, by_wait)) in
        (1..).zip([(false, false), (true, false), (false, true), (true, true)])
    {
        let mut server = if on_srq { rig.server.srq_ep(&srq, &attr) } else { rig.server.ep(&attr) };
        let buffer = [rig.server.lmr.triplet(0, 64)];
        if on_srq {
            srq.post_recv(&buffer, 5).unwrap();
        } else {
            server.post_recv(&buffer, 5, NONE).unwrap();
        }
        let peer = rig.answer_silent(&server);
        assert_eq!(server.state(), EpState::CompletionPending);
        peer.send(8);
        let mut taken = None;
        until("the message is there", || {
            taken = if by_wait { Some(next(&rig.server.recv)) } else { rig.server.recv.dequeue().ok() };
            taken.is_some()
        });
        assert_eq!(taken.unwrap().data.dto().unwrap().cookie, 5);
        if doorbell_hw_tests::on_rxe() {
            // There the progress thread may take the message off the CQ, and confirm it just after.
            until("the connection is up", || server.state() == EpState::Connected);
        }
        assert_eq!(server.state(), EpState::Connected);
        expect_connection(&rig.server.connect, &server, ConnectionEventKind::Established);
        // The connection manager is told, and confirms in place of the peer.
        let confirmations = || rig.server.ia.counters().unwrap()[IaCounter::CmRtuRx];
        until("a confirmation", || confirmations() == confirmed);
        server.disconnect(CloseFlags::Abrupt).unwrap();
        expect_connection(&rig.server.connect, &server, ConnectionEventKind::Disconnected);
        expect_nothing(&rig.server.connect);
    }
}

/// The peer goes away before it has confirmed the connection.
fn an_accept_that_is_never_confirmed_fails_with_its_peer() {
    let rig = Rig::new();
    let srq = rig.server.srq(4);
    let attr = EpAttr::default();
    for mut server in [rig.server.ep(&attr), rig.server.srq_ep(&srq, &attr)] {
        let (raw, arrival) = rig.ask_and_never_confirm();
        arrival.cr.accept(&server, &[]).unwrap();
        assert_eq!(server.state(), EpState::CompletionPending);
        drop(raw);
        expect_connection(&rig.server.connect, &server, ConnectionEventKind::AcceptCompletionError);
        assert_eq!(server.state(), EpState::Disconnected);
        server.reset().unwrap();
    }
    expect_nothing(&rig.server.connect);
}

/// The device tells when an SRQ EP takes no more buffers. A reset need not wait longer for them.
///
/// On a machine that is so loaded that the time has passed, the test begins again.
fn a_reset_waits_only_until_the_device_has_taken_the_last_buffer() {
    /// Without the device's word, the provider waits at least twice as long.
    const BOUND: Duration = Duration::from_millis(250);
    let rig = Rig::new();
    let srq = rig.server.srq(4);
    until("a reset that waits for nothing", || {
        let mut pair = rig.connect_srq(&srq);
        let ends = Instant::now();
        rig.disconnect(&pair);
        pair.server.reset().unwrap();
        ends.elapsed() < BOUND
    });
}
