//! How UD EPs resolve each other: requests, answers, and requests of other programs.

use crate::*;
use doorbell::{
    ConnectionEventKind, DatagramEventKind, EpAttr, EpChange, EpState, EvdFlags, Event, Psp, ServiceType,
};
use doorbell_hw_tests::rig::*;
use doorbell_hw_tests::{Rig, Side, Test, dat, tests};
use rxe_fallback::{CmEventKind, CmId, ConnParam, EventChannel, PortSpace};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

pub(crate) const TESTS: &[Test] = tests![
    both_services_are_asked_for_at_one_service_point,
    a_request_that_is_dropped_is_a_rejection,
    nobody_answers_in_time,
    an_address_that_nobody_has_cannot_be_reached,
    an_ep_of_the_other_kind_cannot_accept,
    a_reserved_ep_gets_its_request,
    a_provided_ep_is_for_what_was_asked,
    a_request_is_handed_on,
    a_request_is_handed_on_to_another_ia,
    a_request_that_comes_again_is_answered_again,
    requests_of_others_are_rejected,
];

fn both_services_are_asked_for_at_one_service_point() {
    let rig = Rig::new();
    let psp = Psp::builder(&rig.server.ia, &rig.server.cr).build().unwrap();
    let port = psp.port();
    let (datagrams, connection) = (rig.client.ep(&ud()), rig.client.ep(&EpAttr::default()));
    let first = ask(&rig, &datagrams, port, b"");
    connection
        .connect_with((rig.server.ia.address(), port).into(), ConnectOptions::new().timeout(LONG))
        .unwrap();
    let second = connection_request(&rig.server.cr);
    assert_eq!(second.cr.service_type(), ServiceType::Rc);
    assert_eq!((first.sp, second.sp), (psp.id(), psp.id()));
    assert_eq!(Event::ConnectionRequest(first).number(), 0x4_0001);
    assert_eq!(Event::ConnectionRequest(second).number(), 0x2001);
    // A second service point at the qualifier is refused, of either kind.
    assert_eq!(code(Psp::builder(&rig.server.ia, &rig.server.cr).port(port).build()), dat::CONN_QUAL_IN_USE);
    psp.close().unwrap();
    let again = Psp::builder(&rig.server.ia, &rig.server.cr).port(port).build().unwrap();
    drop(again);
}

fn a_request_that_is_dropped_is_a_rejection() {
    let rig = Rig::new();
    let psp = Psp::builder(&rig.server.ia, &rig.server.cr).build().unwrap();
    let port = psp.port();
    let client = rig.client.ep(&ud());
    drop(ask(&rig, &client, port, b""));
    assert_eq!(datagram(&rig.client.connect).kind, DatagramEventKind::Rejected);
}

fn nobody_answers_in_time() {
    let rig = Rig::new();
    let psp = Psp::builder(&rig.server.ia, &rig.server.cr).build().unwrap();
    let port = psp.port();
    let (client, server) = (rig.client.ep(&ud()), rig.server.ep(&ud()));
    client
        .connect_with((rig.server.ia.address(), port).into(), ConnectOptions::new().timeout(BRIEF))
        .unwrap();
    let unanswered = connection_request(&rig.server.cr);
    let event = datagram(&rig.client.connect);
    assert_eq!(event.kind, DatagramEventKind::Failed(ConnectionEventKind::TimedOut));
    // The answer comes too late, and the server is not told.
    unanswered.cr.accept(&server, &[]).unwrap();
    established(&rig.server.connect, &server, false);
    expect_nothing(&rig.client.connect);
    introduce(&rig, &server, &client);
}

fn an_address_that_nobody_has_cannot_be_reached() {
    let rig = Rig::new();
    let client = rig.client.ep(&ud());
    // An address of the client's network. The software device has a network of its own where nobody
    // answers.
    let (nobody, outcome) = match rig.client.ia.address() {
        IpAddr::V4(v4) if !v4.is_loopback() => {
            let [a, b, c, _] = v4.octets();
            (IpAddr::from([a, b, c, 253]), ConnectionEventKind::Unreachable)
        }
        _ => (IpAddr::from([192, 0, 2, 1]), ConnectionEventKind::TimedOut),
    };
    let patience = if outcome == ConnectionEventKind::TimedOut { Duration::from_millis(100) } else { LONG };
    client.connect_with((nobody, 1000).into(), ConnectOptions::new().timeout(patience)).unwrap();
    assert_eq!(datagram(&rig.client.connect).kind, DatagramEventKind::Failed(outcome));
}

fn an_ep_of_the_other_kind_cannot_accept() {
    let rig = Rig::new();
    let psp = Psp::builder(&rig.server.ia, &rig.server.cr).build().unwrap();
    let port = psp.port();
    let (datagrams, connected) = (rig.server.ep(&ud()), rig.server.ep(&EpAttr::default()));
    let client = rig.client.ep(&ud());
    let refused = ask(&rig, &client, port, b"").cr.accept(&connected, &[]).unwrap_err();
    assert_eq!((refused.error.code(), connected.state()), (dat::INVALID_ARG2, EpState::Unconnected));
    // The service point is still there.
    refused.object.accept(&datagrams, &[]).unwrap();
    established(&rig.client.connect, &client, true);
    established(&rig.server.connect, &datagrams, false);

    let client = rig.client.ep(&EpAttr::default());
    client.connect_with((rig.server.ia.address(), port).into(), ConnectOptions::new().timeout(LONG)).unwrap();
    let refused = connection_request(&rig.server.cr).cr.accept(&datagrams, &[]).unwrap_err();
    assert_eq!(refused.error.code(), dat::INVALID_ARG2);
    refused.object.accept(&connected, &[]).unwrap();
    expect_connection(&rig.client.connect, &client, ConnectionEventKind::Established);
}

fn a_reserved_ep_gets_its_request() {
    let rig = Rig::new();
    let mut reserved = receiver(&rig.server, 2, 0);
    let (rsp, port) = rig.server.reserve(&reserved);
    assert_eq!(reserved.state(), EpState::Reserved);
    // This service point listens for datagrams only.
    let connected = rig.client.ep(&EpAttr::default());
    connected
        .connect_with((rig.server.ia.address(), port).into(), ConnectOptions::new().timeout(LONG))
        .unwrap();
    expect_connection(&rig.client.connect, &connected, ConnectionEventKind::NonPeerRejected);
    let mut client = rig.client.ep(&ud());
    let arrival = ask(&rig, &client, port, b"");
    assert_eq!((arrival.sp, reserved.state()), (rsp.id(), EpState::PassiveConnectionPending));
    // An RSP takes one request; the next one is refused.
    let other = rig.client.ep(&ud());
    other.connect_with((rig.server.ia.address(), port).into(), ConnectOptions::new().timeout(LONG)).unwrap();
    assert_eq!(datagram(&rig.client.connect).kind, DatagramEventKind::Rejected);
    arrival.cr.accept_reserved(&[]).unwrap();
    assert_eq!(reserved.state(), EpState::Unconnected);
    let to = established(&rig.client.connect, &client, true);
    let back = established(&rig.server.connect, &reserved, false);
    send(&rig.client, &mut client, &to, b"ping");
    assert_eq!(received(&rig.server, 0).1, b"ping");
    client.post_recv(&[rig.client.lmr.triplet(0, 256)], 0, NONE).unwrap();
    send(&rig.server, &mut reserved, &back, b"pong");
    assert_eq!(received(&rig.client, 0).1, b"pong");
    rsp.close().unwrap();
    assert_eq!(reserved.state(), EpState::Unconnected);
}

fn a_provided_ep_is_for_what_was_asked() {
    let rig = Rig::new();
    let psp = Psp::builder(&rig.server.ia, &rig.server.cr).provide_eps().build().unwrap();
    let port = psp.port();
    let mut client = rig.client.ep(&ud());
    let mut arrival = ask(&rig, &client, port, b"");
    let mut server = arrival.ep.take().unwrap();
    assert_eq!(
        (server.service_type(), server.state()),
        (ServiceType::Ud, EpState::TentativeConnectionPending)
    );
    let side = &rig.server;
    let change = EpChange {
        pz: Some(&side.pz),
        recv: Some(Some(&side.recv)),
        request: Some(Some(&side.request)),
        connect: Some(Some(&side.connect)),
        ..EpChange::default()
    };
    server.modify(change).unwrap();
    server.post_recv(&[side.lmr.triplet(0, 256)], 0, NONE).unwrap();
    arrival.cr.accept_reserved(&[]).unwrap();
    let to = established(&rig.client.connect, &client, true);
    established(&side.connect, &server, false);
    assert_eq!(server.state(), EpState::Unconnected);
    send(&rig.client, &mut client, &to, b"made for you");
    assert_eq!(received(side, 0).1, b"made for you");
}

fn a_request_is_handed_on() {
    let rig = Rig::new();
    let other = rig.server.evd(EvdFlags::CR);
    let here = Psp::builder(&rig.server.ia, &rig.server.cr).build().unwrap();
    let port = here.port();
    let there = Psp::builder(&rig.server.ia, &other).build().unwrap();
    let to = there.port();
    let (client, server) = (rig.client.ep(&ud()), rig.server.ep(&ud()));
    ask(&rig, &client, port, b"on").cr.hand_off(to).unwrap();
    let arrival = connection_request(&other);
    assert_eq!((arrival.sp, arrival.cr.private_data()), (there.id(), &b"on"[..]));
    // A datagram request to a service point for connections is refused.
    let connected = rig.server.ep(&EpAttr::default());
    let (_rsp, reserved) = rig.server.reserve(&connected);
    let refused = arrival.cr.hand_off(reserved).unwrap_err();
    assert_eq!((refused.error.code(), connected.state()), (dat::INVALID_ARG2, EpState::Reserved));
    refused.object.accept(&server, &[]).unwrap();
    established(&rig.client.connect, &client, true);
    established(&rig.server.connect, &server, false);
}

fn a_request_is_handed_on_to_another_ia() {
    let rig = Rig::new();
    let (server, _) = doorbell_hw_tests::devices().expect("DOORBELL_TEST_DEVICES names the devices");
    let other = Side::open(&server);
    let here = Psp::builder(&rig.server.ia, &rig.server.cr).build().unwrap();
    let port = here.port();
    let there = Psp::builder(&other.ia, &other.cr).build().unwrap();
    let to = there.port();
    let (mut client, mut server) = (rig.client.ep(&ud()), other.ep(&ud()));
    server.post_recv(&[other.lmr.triplet(0, 256)], 0, NONE).unwrap();
    ask(&rig, &client, port, b"on").cr.hand_off(to).unwrap();
    let arrival = connection_request(&other.cr);
    assert_eq!((arrival.sp, arrival.cr.private_data()), (there.id(), &b"on"[..]));
    arrival.cr.accept(&server, &[]).unwrap();
    let to = established(&rig.client.connect, &client, true);
    established(&other.connect, &server, false);
    send(&rig.client, &mut client, &to, b"over there");
    assert_eq!(received(&other, 0).1, b"over there");
}

/// Asks as a peer that is not Doorbell, or did not get its answer. Returns the private data of the
/// answer to these bytes, `None` for a rejection.
#[track_caller]
fn ask_in_bytes(rig: &Rig, port: u16, bytes: &[u8], answer: impl FnOnce()) -> Option<(u32, Vec<u8>)> {
    let channel = EventChannel::create().unwrap();
    let expect = |kind| match channel.next_event_timeout(LONG).unwrap() {
        Some(event) if event.kind == kind => {}
        other => panic!("{kind:?} expected, got {other:?}"),
    };
    let id = CmId::create_in(PortSpace::Udp, &channel, 0).unwrap();
    let from = SocketAddr::new(rig.client.ia.address(), 0);
    id.resolve_addr(Some(from), SocketAddr::new(rig.server.ia.address(), port), LONG).unwrap();
    expect(CmEventKind::AddrResolved);
    id.resolve_route(LONG).unwrap();
    expect(CmEventKind::RouteResolved);
    id.connect(&ConnParam { private_data: bytes, ..ConnParam::default() }).unwrap();
    answer();
    let event = channel.next_event_timeout(LONG).unwrap().expect("an answer");
    if event.rejected_by_consumer() {
        return None;
    }
    Some((event.datagrams.unwrap_or_else(|| panic!("{event:?}")).qp_num, event.private_data))
}

/// A request in the layout of provider/src/ud/sidr.rs.
fn request(qpn: u32, number: u64, data: &[u8]) -> Vec<u8> {
    let header = [&b"DBUD"[..], &[1, data.len() as u8, 0, 0], &qpn.to_be_bytes(), &number.to_be_bytes()];
    [&header.concat(), data].concat()
}

/// A peer repeats its request when the answer was lost. It gets the same answer, and the program
/// sees one request.
fn a_request_that_comes_again_is_answered_again() {
    let rig = Rig::new();
    let psp = Psp::builder(&rig.server.ia, &rig.server.cr).build().unwrap();
    let port = psp.port();
    let server = rig.server.ep(&ud());
    let bytes = request(77, 1, b"hello");
    let first = ask_in_bytes(&rig, port, &bytes, || {
        let arrival = connection_request(&rig.server.cr);
        assert_eq!(arrival.cr.private_data(), b"hello");
        arrival.cr.accept(&server, b"welcome").unwrap();
    });
    assert_eq!(first.as_ref().unwrap().1[..7], b"welcome"[..]);
    assert_eq!(established(&rig.server.connect, &server, false).qpn, 77);
    assert_eq!(ask_in_bytes(&rig, port, &bytes, || {}), first);
    assert_eq!(ask_in_bytes(&rig, port, &bytes, || {}), first);
    expect_nothing(&rig.server.cr);
    expect_nothing(&rig.server.connect);
    // Another request of the same QP is another request.
    let other = request(77, 2, b"hello");
    let no = |data: &'static [u8]| {
        let cr = &rig.server.cr;
        move || connection_request(cr).cr.reject(data).unwrap()
    };
    assert_eq!(ask_in_bytes(&rig, port, &other, no(b"no")), None);
    assert_eq!(ask_in_bytes(&rig, port, &other, || {}), None);
    expect_nothing(&rig.server.cr);
    // A freed EP does not answer any more.
    server.close().unwrap();
    assert_eq!(ask_in_bytes(&rig, port, &bytes, || {}), None);
}

fn requests_of_others_are_rejected() {
    let rig = Rig::new();
    let psp = Psp::builder(&rig.server.ia, &rig.server.cr).build().unwrap();
    let port = psp.port();
    for bytes in [&b""[..], b"udaddy", &[0xff; 180]] {
        assert_eq!(ask_in_bytes(&rig, port, bytes, || {}), None);
    }
    expect_nothing(&rig.server.cr);
}
