//! Receive counts and high watermarks of EPs (sections M and N of the rules).

use doorbell::{
    AsyncKind, AsyncObject, CloseFlags, CompletionFlags, ConnectionEventKind, Count, DtoOp, DtoStatus, Ep,
    EpAttr, EpEvds, EpState, Ia, Psp, Pz, Qos, RmrTriplet, Srq, VALUE_UNKNOWN, reason,
};
use doorbell_hw_tests::dat;
use doorbell_hw_tests::rig::*;
use doorbell_hw_tests::{Pair, Rig, Side, devices, tests};

fn main() {
    doorbell_hw_tests::run(tests![
        r194_recv_query_plain_ep_counts_at_post,
        r195_recv_query_srq_ep_counts_at_take,
        r196_recv_query_drops_at_completion_not_reap,
        r203_recv_query_single_snapshot,
        r206_recv_query_unknown,
        r207_recv_query_any_state,
        r208_recv_query_sends_only,
        r209_recv_query_invalid_handle,
        r210_recv_query_buffer_always_completes,
        r211_hw_soft_fires_above,
        r211_hw_soft_fires_above_on_srq_ep,
        r213_hw_soft_event_form,
        r214_hw_soft_one_shot,
        r215_hw_hard_breaks_connection,
        r215_hw_hard_breaks_connection_of_srq_ep,
        r217_hw_soft_and_hard_independent,
        r218_hw_fires_during_call,
        r219_hw_replace_before_fire,
        r220_hw_infinite_is_off,
        r221_hw_infinite_does_not_save_from_empty_srq,
        r222_hw_any_ep_state,
        r223_hw_hard_active_from_establishment,
        r225_hw_bad_values,
        r226_hw_null_connect_evd,
        r228_hw_count_is_recv_query_count,
        r229_hw_invalid_handle,
    ])
    .exit();
}

const NONE: CompletionFlags = CompletionFlags::empty();

/// Buffers and span, as the EP reports them.
fn held(ep: &Ep) -> (Count, Count) {
    let counts = ep.recv_query().unwrap();
    (counts.buffers, counts.span)
}

/// Posts `n` receives of 64 bytes to a plain EP, with cookies from `cookie` up.
fn post_plain(side: &Side, ep: &mut Ep, n: usize, cookie: u64) {
    for i in 0..n {
        ep.post_recv(&[side.lmr.triplet(i * 64, 64)], cookie + i as u64, NONE).unwrap();
    }
}

/// A connected pair of plain EPs, the server's with this many receives posted.
fn plain_pair(rig: &Rig, receives: usize) -> Pair {
    let mut pair = rig.connect_plain(&EpAttr::default());
    post_plain(&rig.server, &mut pair.server, receives, 0);
    pair
}

/// The one soft watermark event of this EP.
fn expect_soft(ia: &Ia, ep: &Ep) {
    let event = asynchronous(ia);
    assert_eq!((event.kind, event.object), (AsyncKind::Notice, AsyncObject::Ep(ep.id())));
    assert_eq!(event.reason, reason::EP_SOFT_HIGH_WATERMARK);
}

/// The server's EP has broken its connection: BROKEN at the server, DISCONNECTED at the peer.
fn expect_broken(rig: &Rig, pair: &Pair) {
    expect_connection(&rig.server.connect, &pair.server, ConnectionEventKind::Broken);
    assert_eq!(pair.server.state(), EpState::Disconnected);
    expect_connection(&rig.client.connect, &pair.client, ConnectionEventKind::Disconnected);
}

/// Takes a server EP, on an SRQ or plain, through all lasting states and calls `visit` in each.
fn in_every_state(rig: &Rig, srq: Option<&Srq>, visit: &mut dyn FnMut(&mut Ep, EpState)) {
    let server = &rig.server;
    let attr = EpAttr::default();
    let new = || srq.map_or_else(|| server.ep(&attr), |srq| server.srq_ep(srq, &attr));
    let mut see = |ep: &mut Ep, state| {
        assert_eq!(ep.state(), state);
        visit(ep, state);
        assert_eq!(ep.state(), state, "looking changed the state");
    };

    let mut ep = new();
    see(&mut ep, EpState::Unconnected);
    let (_rsp, qual) = server.reserve(&ep);
    see(&mut ep, EpState::Reserved);
    let client = rig.client.ep(&attr);
    client.connect(server.ia.address(), qual, Some(LONG), &[], Qos::BestEffort).unwrap();
    let request = connection_request(&server.cr);
    see(&mut ep, EpState::PassiveConnectionPending);
    request.cr.accept_reserved(&[]).unwrap();
    expect_connection(&rig.client.connect, &client, ConnectionEventKind::Established);
    expect_connection(&server.connect, &ep, ConnectionEventKind::Established);
    see(&mut ep, EpState::Connected);
    // The peer has no receive posted, so this request stays under way while the device retries.
    ep.post_send(&[server.lmr.triplet(0, 8)], 0, NONE).unwrap();
    ep.disconnect(CloseFlags::Graceful).unwrap();
    see(&mut ep, EpState::DisconnectPending);
    ep.disconnect(CloseFlags::Abrupt).unwrap();
    see(&mut ep, EpState::Disconnected);
    expect_connection(&rig.client.connect, &client, ConnectionEventKind::Disconnected);
    expect_connection(&server.connect, &ep, ConnectionEventKind::Disconnected);
    ep.reset().unwrap();
    see(&mut ep, EpState::Unconnected);

    let mut active = new();
    let (_psp, qual) = Psp::create_any(&rig.client.ia, &rig.client.cr).unwrap();
    active.connect(rig.client.ia.address(), qual, Some(LONG), &[], Qos::BestEffort).unwrap();
    see(&mut active, EpState::ActiveConnectionPending);
    let unanswered = connection_request(&rig.client.cr);
    see(&mut active, EpState::ActiveConnectionPending);
    drop(unanswered);
    expect_connection(&server.connect, &active, ConnectionEventKind::PeerRejected);
    see(&mut active, EpState::Disconnected);
}

/// On an EP without SRQ a buffer counts from its post on, one by one, until its message is
/// complete.
fn r194_recv_query_plain_ep_counts_at_post() {
    let rig = Rig::new();
    let mut ep = rig.server.ep(&EpAttr::default());
    assert_eq!(held(&ep), (0, 0));
    for n in 1..=3 {
        post_plain(&rig.server, &mut ep, 1, n as u64);
        assert_eq!(held(&ep), (n, n));
    }
    let mut pair = rig.connect(ep, rig.client.ep(&EpAttr::default()));
    assert_eq!(held(&pair.server), (3, 3));
    rig.deliver(&mut pair, 8);
    assert_eq!(held(&pair.server), (2, 2));
}

/// An idle SRQ EP holds nothing, however full the SRQ is; for a connected one the count is unknown.
fn r195_recv_query_srq_ep_counts_at_take() {
    let rig = Rig::new();
    let mut srq = rig.server.srq(8);
    rig.server.post(&mut srq, 8, 64, 0, 0);
    let ep = rig.server.srq_ep(&srq, &EpAttr::default());
    assert_eq!(held(&ep), (0, 0));
    let mut pair = rig.connect(ep, rig.client.ep(&EpAttr::default()));
    assert_eq!(held(&pair.server), (VALUE_UNKNOWN, VALUE_UNKNOWN));
    rig.deliver(&mut pair, 8);
    rig.disconnect(&pair);
    until("the EP is drained", || held(&pair.server) == (0, 0));
    assert_eq!(counts(&srq), (7, 7));
}

/// The count falls when the message is complete, although nobody has reaped the completion.
fn r196_recv_query_drops_at_completion_not_reap() {
    let rig = Rig::new();
    let mut pair = plain_pair(&rig, 3);
    rig.send(&mut pair, 0, 8);
    until("the message is complete", || held(&pair.server) == (2, 2));
    assert_eq!(rig.server.recv.query().unwrap().queued, 1);
    dto(&rig.server.recv);
    assert_eq!(held(&pair.server), (2, 2));
}

/// Both numbers are taken at one moment, also while messages arrive: on an in-order device they are
/// always equal, and the count never exceeds the span. Also R202, R204.
fn r203_recv_query_single_snapshot() {
    let rig = Rig::new();
    let mut pair = plain_pair(&rig, 16);
    for _ in 0..16 {
        pair.client.post_send(&[rig.client.lmr.triplet(0, 64)], 0, NONE).unwrap();
    }
    let mut last = 16;
    until("all messages are complete", || {
        let (buffers, span) = held(&pair.server);
        assert_eq!(buffers, span);
        assert!((0..=last).contains(&buffers), "{buffers} after {last}");
        last = buffers;
        buffers == 0
    });
}

/// An unknown number is -2, and then both are; both attribute bits are set since both numbers
/// exist.
fn r206_recv_query_unknown() {
    let rig = Rig::new();
    assert_eq!(rig.server.ia.provider_attributes().ep_recv_info_supported, 0x11);
    let srq = rig.server.srq(4);
    let pair = rig.connect_srq(&srq);
    assert_eq!(held(&pair.server), (VALUE_UNKNOWN, VALUE_UNKNOWN));
    // A plain EP always knows its counts.
    assert_eq!(held(&pair.client), (0, 0));
}

/// The query works in every state; an SRQ EP that is unconnected holds nothing.
fn r207_recv_query_any_state() {
    let rig = Rig::patient();
    let srq = rig.server.srq(4);
    in_every_state(&rig, Some(&srq), &mut |ep, state| match state {
        EpState::Connected | EpState::DisconnectPending => {
            assert_eq!(held(ep), (VALUE_UNKNOWN, VALUE_UNKNOWN), "in {state:?}");
        }
        // Drained a moment after the end.
        EpState::Disconnected => until("the EP is drained", || held(ep) == (0, 0)),
        _ => assert_eq!(held(ep), (0, 0), "in {state:?}"),
    });
    in_every_state(&rig, None, &mut |ep, state| assert_eq!(held(ep), (0, 0), "in {state:?}"));
}

/// RDMA Write and Read by the peer hold no buffer here; a write with immediate takes one.
fn r208_recv_query_sends_only() {
    let rig = Rig::new();
    let mut pair = plain_pair(&rig, 3);
    let target = |len| RmrTriplet {
        virtual_address: rig.server.lmr.address() + 4096,
        segment_length: len,
        rmr_context: rig.server.lmr.rmr_context(),
    };
    let local = [rig.client.lmr.triplet(0, 128)];
    pair.client.post_rdma_write(&local, 1, target(128), NONE).unwrap();
    assert_eq!(dto(&rig.client.request).status, DtoStatus::Success);
    pair.client.post_rdma_read(&local, 2, target(128), NONE).unwrap();
    assert_eq!(dto(&rig.client.request).status, DtoStatus::Success);
    assert_eq!(held(&pair.server), (3, 3));
    pair.client.post_rdma_write_immediate(&local, 3, target(128), 9, NONE).unwrap();
    assert_eq!(dto(&rig.client.request).status, DtoStatus::Success);
    until("the immediate has arrived", || held(&pair.server) == (2, 2));
    assert_eq!(dto(&rig.server.recv).op, DtoOp::ReceiveRdmaWriteImmediate);
}

/// A stale EP is refused: INVALID_HANDLE (EP).
fn r209_recv_query_invalid_handle() {
    let (ia, _pz, ep) = lone_ep();
    ia.close(CloseFlags::Abrupt).unwrap();
    assert_eq!(ep.recv_query().unwrap_err().code(), dat::INVALID_HANDLE_EP);
}

/// An EP on an IA of its own, without EVDs.
fn lone_ep() -> (Ia, Pz, Ep) {
    let ia = Ia::open(&devices().unwrap().0).unwrap();
    let pz = Pz::create(&ia).unwrap();
    let ep = Ep::create(&ia, &pz, EpEvds::default(), None).unwrap();
    (ia, pz, ep)
}

/// Every buffer that was counted comes back on the receive EVD, with its cookie, also when the
/// connection ends.
fn r210_recv_query_buffer_always_completes() {
    let rig = Rig::new();
    let mut pair = plain_pair(&rig, 4);
    let first = rig.deliver(&mut pair, 8);
    assert_eq!((first.cookie, first.status), (0, DtoStatus::Success));
    assert_eq!(held(&pair.server), (3, 3));
    rig.disconnect(&pair);
    for cookie in 1..4 {
        let flushed = dto(&rig.server.recv);
        assert_eq!((flushed.cookie, flushed.status), (cookie, DtoStatus::Flushed));
    }
    assert_eq!(held(&pair.server), (0, 0));
    expect_nothing(&rig.server.recv);
}

/// The soft watermark does not fire while the count equals it and fires once the count exceeds it,
/// on a connected plain EP as well as on an unconnected one. Also R212, R224.
fn r211_hw_soft_fires_above() {
    let rig = Rig::new();
    let mut ep = rig.server.ep(&EpAttr::default());
    ep.set_watermark(2, -1).unwrap();
    post_plain(&rig.server, &mut ep, 2, 0);
    expect_nothing(rig.server.ia.async_evd());
    post_plain(&rig.server, &mut ep, 1, 2);
    expect_soft(&rig.server.ia, &ep);
    assert_eq!(ep.state(), EpState::Unconnected);
}

/// On an SRQ EP the count is what it took off the SRQ: mark 0 fires with the first message, mark 1
/// not with one message after another, since each is complete before the next. Also R212.
fn r211_hw_soft_fires_above_on_srq_ep() {
    let rig = Rig::new();
    let mut srq = rig.server.srq(8);
    let mut pair = rig.connect_srq(&srq);
    rig.server.post(&mut srq, 8, 64, 0, 0);
    pair.server.set_watermark(1, -1).unwrap();
    rig.deliver(&mut pair, 8);
    rig.deliver(&mut pair, 8);
    expect_nothing(rig.server.ia.async_evd());
    pair.server.set_watermark(0, -1).unwrap();
    expect_nothing(rig.server.ia.async_evd());
    rig.deliver(&mut pair, 8);
    expect_soft(&rig.server.ia, &pair.server);
    // The soft watermark is advisory: the connection stays up.
    rig.deliver(&mut pair, 8);
    assert_eq!(pair.server.state(), EpState::Connected);
}

/// The event goes to the asynchronous EVD, names the EP and its context, has reason 2 and a number
/// that does not claim a broken EP.
fn r213_hw_soft_event_form() {
    let rig = Rig::new();
    let mut ep = rig.server.ep(&EpAttr::default());
    ep.set_context(0xfeed_face_cafe);
    ep.set_watermark(0, -1).unwrap();
    post_plain(&rig.server, &mut ep, 1, 0);
    let event = next(rig.server.ia.async_evd());
    assert_eq!(event.evd, rig.server.ia.async_evd().id());
    assert_eq!(event.data.number(), dat::ASYNC_ERROR_PROVIDER_INTERNAL_ERROR);
    let doorbell::EventData::Async(event) = event.data else { panic!("{event:?}") };
    assert_eq!((event.object, event.reason), (AsyncObject::Ep(ep.id()), 2));
    assert_eq!(event.context, 0xfeed_face_cafe);
}

/// One event per setting, however far the count goes; the same value set again is a new setting.
fn r214_hw_soft_one_shot() {
    let rig = Rig::new();
    let mut ep = rig.server.ep(&EpAttr::default());
    ep.set_watermark(1, -1).unwrap();
    post_plain(&rig.server, &mut ep, 4, 0);
    expect_soft(&rig.server.ia, &ep);
    expect_nothing(rig.server.ia.async_evd());
    ep.set_watermark(1, -1).unwrap();
    expect_soft(&rig.server.ia, &ep);
    expect_nothing(rig.server.ia.async_evd());
}

/// At the hard watermark the connection stays up. Above it the connection breaks: BROKEN, state
/// DISCONNECTED, receives flushed. Also R216, R224.
fn r215_hw_hard_breaks_connection() {
    let rig = Rig::new();
    let mut pair = plain_pair(&rig, 2);
    pair.server.set_watermark(-1, 2).unwrap();
    expect_nothing(&rig.server.connect);
    assert_eq!(pair.server.state(), EpState::Connected);
    post_plain(&rig.server, &mut pair.server, 1, 2);
    expect_broken(&rig, &pair);
    for cookie in 0..3 {
        let flushed = dto(&rig.server.recv);
        assert_eq!((flushed.cookie, flushed.status), (cookie, DtoStatus::Flushed));
    }
}

/// An SRQ EP with hard watermark 0 breaks with the first buffer that it takes; with 1 it stays up.
/// The SRQ and its other EP keep working. Also R216.
fn r215_hw_hard_breaks_connection_of_srq_ep() {
    let rig = Rig::new();
    let mut srq = rig.server.srq(8);
    let mut pair = rig.connect_srq(&srq);
    let mut other = rig.connect_srq(&srq);
    rig.server.post(&mut srq, 8, 64, 0, 0);
    pair.server.set_watermark(-1, 1).unwrap();
    rig.deliver(&mut pair, 8);
    rig.deliver(&mut pair, 8);
    assert_eq!(pair.server.state(), EpState::Connected);
    pair.server.set_watermark(-1, 0).unwrap();
    assert_eq!(pair.server.state(), EpState::Connected);
    pair.client.post_send(&[rig.client.lmr.triplet(0, 8)], 0, NONE).unwrap();
    assert_eq!(dto(&rig.server.recv).ep, pair.server.id());
    expect_broken(&rig, &pair);
    // The send was acknowledged, or cut off by the end.
    dto(&rig.client.request);
    assert_eq!(rig.deliver(&mut other, 8).ep, other.server.id());
    assert_eq!(counts(&srq), (4, 4));
}

/// Each watermark works without the other; either may be the larger.
fn r217_hw_soft_and_hard_independent() {
    let rig = Rig::new();
    let mut pair = plain_pair(&rig, 1);
    pair.server.set_watermark(0, 3).unwrap();
    expect_soft(&rig.server.ia, &pair.server);
    expect_nothing(&rig.server.connect);
    pair.server.set_watermark(5, 1).unwrap();
    post_plain(&rig.server, &mut pair.server, 1, 1);
    expect_broken(&rig, &pair);
    expect_nothing(rig.server.ia.async_evd());
}

/// A watermark below the current count fires during the call.
fn r218_hw_fires_during_call() {
    let rig = Rig::new();
    let mut pair = plain_pair(&rig, 3);
    pair.server.set_watermark(2, -1).unwrap();
    assert_eq!(rig.server.ia.async_evd().query().unwrap().queued, 1);
    expect_soft(&rig.server.ia, &pair.server);
    pair.server.set_watermark(-1, 2).unwrap();
    assert_eq!(pair.server.state(), EpState::Disconnected);
    expect_broken(&rig, &pair);
}

/// A watermark that has not fired can be replaced; the new value is armed.
fn r219_hw_replace_before_fire() {
    let rig = Rig::new();
    let mut pair = plain_pair(&rig, 1);
    pair.server.set_watermark(1, 1).unwrap();
    pair.server.set_watermark(3, 4).unwrap();
    post_plain(&rig.server, &mut pair.server, 2, 1);
    expect_nothing(rig.server.ia.async_evd());
    post_plain(&rig.server, &mut pair.server, 1, 3);
    expect_soft(&rig.server.ia, &pair.server);
    assert_eq!(pair.server.state(), EpState::Connected);
    post_plain(&rig.server, &mut pair.server, 1, 4);
    expect_broken(&rig, &pair);
    expect_nothing(rig.server.ia.async_evd());
}

/// -1 means off: both watermarks start with it, and setting it switches a watermark off.
fn r220_hw_infinite_is_off() {
    let rig = Rig::new();
    let mut pair = rig.connect_plain(&EpAttr::default());
    assert_eq!(pair.server.query().unwrap().attr.srq_soft_hw, -1);
    post_plain(&rig.server, &mut pair.server, 8, 0);
    pair.server.set_watermark(12, 12).unwrap();
    pair.server.set_watermark(-1, -1).unwrap();
    post_plain(&rig.server, &mut pair.server, 8, 8);
    expect_nothing(rig.server.ia.async_evd());
    assert_eq!(pair.server.state(), EpState::Connected);
}

/// With both watermarks off, a message that finds the SRQ empty still breaks the connection.
fn r221_hw_infinite_does_not_save_from_empty_srq() {
    let rig = Rig::new();
    let srq = rig.server.srq(4);
    let mut pair = rig.connect_srq(&srq);
    pair.server.set_watermark(-1, -1).unwrap();
    assert_eq!(rig.send(&mut pair, 0, 8).status, DtoStatus::ReceiverNotReady);
    expect_connection(&rig.client.connect, &pair.client, ConnectionEventKind::Broken);
    expect_connection(&rig.server.connect, &pair.server, ConnectionEventKind::Disconnected);
    assert_eq!(counts(&srq), (0, 0));
}

/// Marks can be set in every state.
fn r222_hw_any_ep_state() {
    let rig = Rig::patient();
    let srq = rig.server.srq(4);
    for srq in [Some(&srq), None] {
        in_every_state(&rig, srq, &mut |ep, state| {
            ep.set_watermark(3, 4).unwrap_or_else(|e| panic!("{state:?}: {e}"));
            ep.set_watermark(-1, -1).unwrap_or_else(|e| panic!("{state:?}: {e}"));
        });
    }
}

/// A hard watermark that was exceeded before the connect breaks the connection as soon as it is up.
fn r223_hw_hard_active_from_establishment() {
    let rig = Rig::new();
    let mut ep = rig.server.ep(&EpAttr::default());
    post_plain(&rig.server, &mut ep, 2, 0);
    ep.set_watermark(-1, 1).unwrap();
    assert_eq!(ep.state(), EpState::Unconnected);
    expect_nothing(&rig.server.connect);
    let pair = rig.connect(ep, rig.client.ep(&EpAttr::default()));
    expect_broken(&rig, &pair);
}

/// Below -1 is refused and changes nothing: ARG2 for soft, ARG3 for hard. 0 is legal and trips with
/// any buffer.
fn r225_hw_bad_values() {
    let rig = Rig::new();
    let mut pair = plain_pair(&rig, 1);
    for bad in [-2, Count::MIN] {
        assert_eq!(pair.server.set_watermark(bad, 0).unwrap_err().code(), dat::INVALID_ARG2);
        assert_eq!(pair.server.set_watermark(0, bad).unwrap_err().code(), dat::INVALID_ARG3);
    }
    expect_nothing(rig.server.ia.async_evd());
    assert_eq!(pair.server.state(), EpState::Connected);
    pair.server.set_watermark(0, -1).unwrap();
    expect_soft(&rig.server.ia, &pair.server);
    pair.server.set_watermark(-1, 0).unwrap();
    expect_broken(&rig, &pair);
}

/// Without a connect EVD the hard watermark breaks the connection as well, without a local event.
fn r226_hw_null_connect_evd() {
    let rig = Rig::new();
    let server = &rig.server;
    let evds = EpEvds { connect: None, ..server.evds() };
    let mut ep = Ep::create(&server.ia, &server.pz, evds, None).unwrap();
    post_plain(server, &mut ep, 2, 0);
    let client = rig.client.ep(&EpAttr::default());
    let (_psp, qual) = Psp::create_any(&server.ia, &server.cr).unwrap();
    client.connect(server.ia.address(), qual, Some(LONG), &[], Qos::BestEffort).unwrap();
    connection_request(&server.cr).cr.accept(&ep, &[]).unwrap();
    expect_connection(&rig.client.connect, &client, ConnectionEventKind::Established);
    until("the server's EP is connected", || ep.state() == EpState::Connected);
    ep.set_watermark(-1, 1).unwrap();
    assert_eq!(ep.state(), EpState::Disconnected);
    expect_connection(&rig.client.connect, &client, ConnectionEventKind::Disconnected);
    expect_nothing(&server.connect);
    for cookie in 0..2 {
        let flushed = dto(&server.recv);
        assert_eq!((flushed.cookie, flushed.status), (cookie, DtoStatus::Flushed));
    }
}

/// The watermarks are compared with the number that the query returns: equal to it they do not
/// fire, one below they do.
fn r228_hw_count_is_recv_query_count() {
    let rig = Rig::new();
    let mut pair = plain_pair(&rig, 5);
    // Two messages have completed and were not reaped: neither watermark counts them.
    rig.send(&mut pair, 0, 8);
    rig.send(&mut pair, 0, 8);
    until("both have arrived", || held(&pair.server).0 == 3);
    let (n, _) = held(&pair.server);
    pair.server.set_watermark(n, n).unwrap();
    expect_nothing(rig.server.ia.async_evd());
    pair.server.set_watermark(n - 1, n).unwrap();
    expect_soft(&rig.server.ia, &pair.server);
    assert_eq!(pair.server.state(), EpState::Connected);
    pair.server.set_watermark(-1, n - 1).unwrap();
    expect_broken(&rig, &pair);
}

/// A stale EP is refused: INVALID_HANDLE (EP).
fn r229_hw_invalid_handle() {
    let (ia, _pz, mut ep) = lone_ep();
    ia.close(CloseFlags::Abrupt).unwrap();
    assert_eq!(ep.set_watermark(1, 1).unwrap_err().code(), dat::INVALID_HANDLE_EP);
}
