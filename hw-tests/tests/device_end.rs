//! How connections of SRQ EPs end: disconnect, break, flush (section L of the rules), beyond what
//! `c/rules_end.c` shows.

use doorbell::inside::EpEvds;
use doorbell::{
    AsyncKind, AsyncObject, CloseFlags, CompletionFlags, ConnectionEventKind, DtoOp, DtoStatus, Ep, EpAttr,
    EpState, Evd, EvdFlags, Event, IaCounter, Received, RecvPool, Srq, SrqState, reason,
};
use doorbell_hw_tests::rig::*;
use doorbell_hw_tests::{Pair, Rig, tests};
use std::time::{Duration, Instant};

fn main() {
    let tests = tests![
        r174_flush_reports_every_taken_buffer,
        r174_flush_needs_no_further_message,
        r185_disconnected_event_before_later_messages,
        r189_disconnect_aborts_setup,
        a_set_up_that_this_side_has_ended_did_not_connect,
        what_a_connection_prints_is_short,
        ends_come_in_the_order_of_the_peers_disconnects,
        a_peer_that_disconnects_leaves_requests_flushed,
        a_connection_to_a_silent_peer_breaks_with_a_message_too_long,
        a_connection_to_a_silent_peer_breaks_with_a_forbidden_write,
        a_message_that_was_taken_confirms_the_connection,
        an_accept_that_is_never_confirmed_fails_with_its_peer,
        a_reset_waits_only_until_the_device_has_taken_the_last_buffer,
        a_message_before_the_connection_is_confirmed_is_answered,
        an_ended_ep_tells_when_it_is_drained,
        an_ep_that_never_was_connected_tells_when_it_is_drained,
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

/// The program has a message before `Connected`. It answers from its pool at once.
fn a_message_before_the_connection_is_confirmed_is_answered() {
    let rig = Rig::new();
    let side = &rig.server;
    let mut srq = side.srq(4);
    let mut pool = RecvPool::new(&side.ia, &side.pz, 4, SIZE).unwrap();
    pool.refill(&mut srq).unwrap();
    let mut server = side.srq_ep(&srq, &EpAttr::default());
    let peer = rig.answer_silent(&server);
    peer.receive();
    peer.send(8);
    let next = pool.next_for(&mut srq, &side.recv, LONG).unwrap();
    let Some(Received::Message(message)) = next else { panic!("{next:?}") };
    pool.send(message).post(&mut server).unwrap();
    let sent = dto(&side.request);
    assert_eq!((sent.op, sent.status), (DtoOp::Send, DtoStatus::Success));
    assert!(pool.take(&sent).is_none());
    expect_connection(&side.connect, &server, ConnectionEventKind::Established);
}

/// All events of the EP come on one EVD: what the connection has left, then its end, then that it is
/// drained. All buffers are accounted for by then, and the EP can be used again.
fn an_ended_ep_tells_when_it_is_drained() {
    let rig = Rig::new();
    let side = &rig.server;
    let all = side.evd(EvdFlags::DTO | EvdFlags::CONNECTION);
    let mut srq = side.srq(4);
    for on_srq in [true, false] {
        let builder = Ep::builder(&side.ia, &side.pz).evd(&all).context(7).tell_drained();
        let builder = if on_srq { builder.srq(&srq) } else { builder };
        let mut server = builder.build().unwrap();
        for _ in 0..2 {
            if on_srq {
                side.post(&mut srq, 1, 64, 0, 1);
            } else {
                server.post_recv(&[side.lmr.triplet(0, 64)], 2, NONE).unwrap();
                server.post_recv(&[side.lmr.triplet(0, 64)], 3, NONE).unwrap();
            }
            let client = rig.client.ep(&EpAttr::default());
            let (_psp, arrival) = rig.ask(&client);
            arrival.cr.accept(&server, &[]).unwrap();
            expect_connection(&rig.client.connect, &client, ConnectionEventKind::Established);
            expect_connection(&all, &server, ConnectionEventKind::Established);
            let mut pair = Pair { server, client };
            assert_eq!(rig.send(&mut pair, 0, 8).status, DtoStatus::Success);
            pair.client.disconnect(CloseFlags::Abrupt).unwrap();
            expect_connection(&rig.client.connect, &pair.client, ConnectionEventKind::Disconnected);
            let (mut completions, mut ended) = (vec![], false);
            let drained = loop {
                match next(&all) {
                    Event::Received(dto) | Event::Failed(dto) => completions.push((dto.cookie, dto.status)),
                    Event::Disconnected(end) => {
                        assert!(!ended, "{end:?}");
                        ended = true;
                    }
                    Event::Drained(event) => break event,
                    other => panic!("{other:?}"),
                }
            };
            assert!(ended);
            assert_eq!((drained.ep, drained.ep_context), (pair.server.id(), 7));
            if on_srq {
                assert_eq!(completions, [(1, DtoStatus::Success)]);
                assert_eq!(pair.server.recv_query().unwrap().buffers, Some(0));
            } else {
                assert_eq!(completions, [(2, DtoStatus::Success), (3, DtoStatus::Flushed)]);
            }
            expect_nothing(&all);
            server = pair.server;
            server.reset().unwrap();
        }
    }
}

/// A connect that fails, and one that is given up.
fn an_ep_that_never_was_connected_tells_when_it_is_drained() {
    let rig = Rig::new();
    let side = &rig.client;
    let all = side.evd(EvdFlags::DTO | EvdFlags::CONNECTION);
    let mut srq = side.srq(4);
    side.post(&mut srq, 1, 64, 0, 1);
    for on_srq in [true, false] {
        let builder = Ep::builder(&side.ia, &side.pz).evd(&all).tell_drained();
        let builder = if on_srq { builder.srq(&srq) } else { builder };
        let mut ep = builder.build().unwrap();
        let (_psp, arrival) = rig.ask(&ep);
        arrival.cr.reject(&[]).unwrap();
        expect_connection(&all, &ep, ConnectionEventKind::PeerRejected);
        expect_connection(&all, &ep, ConnectionEventKind::Drained);
        ep.reset().unwrap();
        let (_psp, _arrival) = rig.ask(&ep);
        ep.disconnect(CloseFlags::Abrupt).unwrap();
        expect_connection(&all, &ep, ConnectionEventKind::Disconnected);
        expect_connection(&all, &ep, ConnectionEventKind::Drained);
        expect_nothing(&all);
    }
}

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
        ended.client.send(&[rig.client.lmr.triplet(0, len)]).post().unwrap();
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
    let srq = Srq::builder(&rig.server.ia, &rig.server.pz).depth(4).segments(SEGMENTS as u32);
    let mut srq = srq.build().unwrap();
    let sender = rig.client.ep(&EpAttr { request_segments: SEGMENTS as u32, ..EpAttr::default() });
    let mut ended = rig.connect(rig.server.srq_ep(&srq, &EpAttr::default()), sender);
    let mut other = rig.connect_srq(&srq);
    rig.client.lmr.write(0, &[0xA5]).unwrap();
    // Long enough for another message to overtake it. The content does not matter, so the memory is
    // used repeatedly.
    srq.post_recv(&[rig.server.lmr.triplet(0, SEGMENT); SEGMENTS], 40).unwrap();
    rig.server.post(&mut srq, 1, 64, SEGMENT, 41);
    ended.client.send(&[rig.client.lmr.triplet(0, SEGMENT); SEGMENTS]).post().unwrap();
    until("the message has begun to arrive", || {
        let mut byte = [0];
        rig.server.lmr.read(0, &mut byte).unwrap();
        byte == [0xA5]
    });
    other.client.send(&[rig.client.lmr.triplet(0, 8)]).post().unwrap();
    let first = dto(&rig.server.recv);
    rig.disconnect(&ended);
    let second = dto(&rig.server.recv);
    let mut reports = [first, second].map(|got| (got.ep, got.cookie));
    reports.sort_by_key(|report| report.1);
    assert_eq!(reports, [(ended.server.id(), 40), (other.server.id(), 41)]);
    assert_eq!(counts(&srq), (0, 0));
    expect_nothing(&rig.server.recv);
}

/// A connected pair whose server has this EVD for receives and connection events.
fn on_one_evd(rig: &Rig, srq: &Srq, evd: &Evd) -> Pair {
    let evds = EpEvds { recv: Some(evd), request: Some(&rig.server.request), connect: Some(evd) };
    let attr = EpAttr::default();
    let server =
        Ep::builder(&rig.server.ia, &rig.server.pz).evds(evds).srq(srq).attributes(&attr).build().unwrap();
    let client = rig.client.ep(&attr);
    let (_psp, arrival) = rig.ask(&client);
    arrival.cr.accept(&server, &[]).unwrap();
    expect_connection(&rig.client.connect, &client, ConnectionEventKind::Established);
    expect_connection(evd, &server, ConnectionEventKind::Established);
    Pair { server, client }
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

/// In DAT it is DISCONNECTED (R189); to a Rust program, a connection that did not come up.
fn a_set_up_that_this_side_has_ended_did_not_connect() {
    let rig = Rig::new();
    let is_of = |event: &Event, ep: &Ep| match event {
        Event::NotConnected(event) => (event.ep, event.kind) == (ep.id(), ConnectionEventKind::Disconnected),
        _ => false,
    };
    let (mut client, server) = (rig.client.ep(&EpAttr::default()), rig.server.ep(&EpAttr::default()));
    let (psp, arrival) = rig.ask(&client);
    client.disconnect(CloseFlags::Graceful).unwrap();
    let event = next(&rig.client.connect);
    assert!(is_of(&event, &client), "{event:?}");
    drop((arrival, psp));

    let (raw, arrival) = rig.ask_and_never_confirm();
    arrival.cr.accept(&server, &[]).unwrap();
    server.disconnect(CloseFlags::Graceful).unwrap();
    let event = next(&rig.server.connect);
    assert!(is_of(&event, &server), "{event:?}");
    drop(raw);

    client.reset().unwrap();
    let pair = rig.connect(rig.server.ep(&EpAttr::default()), client);
    pair.client.disconnect(CloseFlags::Abrupt).unwrap();
    let event = next(&rig.client.connect);
    assert!(matches!(event, Event::Disconnected(_)), "{event:?}");
}

/// Events, EPs and errors are printed by programs; zeros that pad private data, and the inside of
/// objects, are of no use to them. An error says its reason once.
fn what_a_connection_prints_is_short() {
    let rig = Rig::new();
    let client = rig.client.ep(&EpAttr::default());
    let printed = format!("{client:?}");
    assert!(printed.contains("Unconnected") && printed.len() < 100, "{printed}");
    let (_psp, arrival) = rig.ask(&client);
    let server = rig.server.ep(&EpAttr::default());
    let event = Event::ConnectionRequest(arrival);
    let printed = format!("{event:?}");
    assert!(printed.contains(&rig.client.ia.address().to_string()) && printed.len() < 300, "{printed}");
    let Event::ConnectionRequest(arrival) = event else { unreachable!() };
    arrival.cr.accept(&server, b"he\0llo").unwrap();
    let printed = format!("{:?}", next(&rig.client.connect));
    assert!(printed.contains("b\"he\\x00llo\"") && printed.len() < 200, "{printed}");

    let (_psp, arrival) = rig.ask(&rig.client.ep(&EpAttr::default()));
    let refused = arrival.cr.accept(&server, &[]).unwrap_err();
    let printed = format!("{refused:?}");
    assert!(printed.contains("unconnected EP") && printed.len() < 250, "{printed}");
    let said = refused.to_string();
    let mut below = std::error::Error::source(&refused);
    while let Some(error) = below {
        assert_ne!(error.to_string(), said);
        below = error.source();
    }
}

/// A request that waits for a receive of the peer does not delay the end: nobody will answer it.
fn ends_come_in_the_order_of_the_peers_disconnects() {
    let rig = Rig::patient();
    for _ in 0..5 {
        let mut first = rig.connect_plain(&EpAttr::default());
        let second = rig.connect_plain(&EpAttr::default());
        first.client.send(&[]).cookie(7).post().unwrap();
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
        pair.client.send(&[]).cookie(cookie).post().unwrap();
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
    server.set_context(31);
    let peer = rig.connect_silent(&server);
    peer.send(65);
    expect_connection(&rig.server.connect, &server, ConnectionEventKind::Broken);
    let broken = asynchronous(&rig.server.ia);
    assert_eq!((broken.kind, broken.object), (AsyncKind::EpBroken, AsyncObject::Ep(server.id())));
    assert_eq!((broken.reason, broken.context), (reason::EP_TRANSFER_TO_ERROR, 31));
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
            taken = if by_wait { Some(next(&rig.server.recv)) } else { rig.server.recv.dequeue().unwrap() };
            taken.is_some()
        });
        assert_eq!(taken.unwrap().completion().unwrap().cookie, 5);
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
