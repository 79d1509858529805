//! Where requests arrive: service points that create EPs, requests that are handed off, common
//! service points.

use doorbell::inside::{Comm, Csp};
use doorbell::{
    AsyncKind, AsyncObject, CloseFlags, ConnectOptions, ConnectionEventKind, CrArrival, Ep, EpAttr, EpChange,
    EpState, Evd, EvdFlags, Psp, Rsp,
};
use doorbell_hw_tests::dat;
use doorbell_hw_tests::rig::*;
use doorbell_hw_tests::{Pair, Rig, Side, devices, tests};
use std::net::{Ipv4Addr, SocketAddr};

fn main() {
    let tests = tests![
        a_provided_ep_is_changed_and_accepts,
        a_provided_ep_does_nothing_else,
        a_request_that_nobody_looked_at_takes_its_ep_along,
        an_ep_answers_only_its_own_request,
        a_request_is_handed_on_to_a_reserved_ep,
        a_reserved_ep_is_free_after_its_request_went_on,
        a_request_is_handed_on_to_anothers_reserved_ep,
        a_request_is_handed_on_and_back,
        a_request_outlives_the_ia_that_handed_it_on,
        a_request_does_not_leave_its_device,
        a_common_service_point_takes_requests,
        a_common_service_point_listens_where_it_says,
        other_communicators_and_addresses_are_refused,
        a_reserved_ep_that_another_replaces_is_free,
        an_ep_follows_another_to_its_service,
        requests_that_an_evd_has_no_room_for_are_rejected,
    ];
    let (server, client) = devices().unwrap_or_default();
    let one_device = |name: &str| {
        (name == "a_request_does_not_leave_its_device" && server == client)
            .then_some("needs two devices in DOORBELL_TEST_DEVICES")
    };
    doorbell_hw_tests::run_unless(tests, 4, one_device).exit();
}

/// A client connects to a PSP that creates EPs.
#[track_caller]
fn ask(rig: &Rig) -> (Psp, Ep, CrArrival) {
    let psp = Psp::builder(&rig.server.ia, &rig.server.cr).provide_eps().build().unwrap();
    let port = psp.port();
    assert!(psp.provides_eps());
    let client = rig.client.ep(&EpAttr::default());
    let arrival = ask_at(rig, &client, port);
    (psp, client, arrival)
}

#[track_caller]
fn ask_at(rig: &Rig, client: &Ep, port: u16) -> CrArrival {
    client
        .connect_with(
            (rig.server.ia.address(), port).into(),
            ConnectOptions::new().timeout(LONG).private_data(b"who"),
        )
        .unwrap();
    connection_request(&rig.server.cr)
}

#[track_caller]
fn established(rig: &Rig, pair: Pair) -> Pair {
    expect_connection(&rig.client.connect, &pair.client, ConnectionEventKind::Established);
    expect_connection(&rig.server.connect, &pair.server, ConnectionEventKind::Established);
    pair
}

/// The attributes that a program sets on an EP that the PSP created.
fn configure(rig: &Rig, ep: &mut Ep) {
    let side = &rig.server;
    ep.modify(EpChange {
        pz: Some(&side.pz),
        recv: Some(Some(&side.recv)),
        request: Some(Some(&side.request)),
        connect: Some(Some(&side.connect)),
        recv_depth: Some(50),
        ..EpChange::default()
    })
    .unwrap();
}

fn a_provided_ep_is_changed_and_accepts() {
    let rig = Rig::new();
    let (_psp, client, arrival) = ask(&rig);
    let mut server = arrival.ep.unwrap();
    assert_eq!(server.state(), EpState::TentativeConnectionPending);
    configure(&rig, &mut server);
    assert_eq!(server.state(), EpState::TentativeConnectionPending);
    assert!(server.query().unwrap().attr.recv_depth >= 50);
    arrival.cr.accept(&server, &[]).unwrap();
    let mut pair = established(&rig, Pair { server, client });
    rig.send_and_read(&mut pair);
    rig.disconnect(&pair);
    // From here on it behaves like any other EP.
    pair.server.reset().unwrap();
    assert_eq!(pair.server.state(), EpState::Unconnected);
    pair.server.close().unwrap();
}

fn a_provided_ep_does_nothing_else() {
    let rig = Rig::new();
    let (psp, _client, arrival) = ask(&rig);
    let mut ep = arrival.ep.unwrap();
    assert_eq!(code(ep.disconnect(CloseFlags::Abrupt)), dat::INVALID_STATE_EP_TENTCONNPENDING);
    assert_eq!(code(ep.reset()), dat::INVALID_STATE_EP_TENTCONNPENDING);
    assert_eq!(code(ep.send(&[]).post()), dat::INVALID_STATE_EP_TENTCONNPENDING);
    let again = ep.connect((rig.server.ia.address(), psp.port()).into());
    assert_eq!(code(again), dat::INVALID_STATE_EP_TENTCONNPENDING);
    let refused = ep.close().unwrap_err();
    assert_eq!(refused.error.code(), dat::INVALID_STATE_EP_TENTCONNPENDING);
    arrival.cr.reject(&[]).unwrap();
    drop(refused.object);
}

fn a_request_that_nobody_looked_at_takes_its_ep_along() {
    let rig = Rig::new();
    let cr = rig.server.evd(EvdFlags::CR);
    let psp = Psp::builder(&rig.server.ia, &cr).provide_eps().build().unwrap();
    let port = psp.port();
    let client = rig.client.ep(&EpAttr::default());
    client.connect_with((rig.server.ia.address(), port).into(), ConnectOptions::new().timeout(LONG)).unwrap();
    until("the request is there", || cr.query().unwrap().queued == 1);
    psp.close().unwrap();
    cr.close().unwrap();
    assert_eq!(connection(&rig.client.connect).kind, ConnectionEventKind::PeerRejected);
}

fn an_ep_answers_only_its_own_request() {
    let rig = Rig::new();
    let (_first_psp, _first_client, first) = ask(&rig);
    let (_second_psp, _second_client, second) = ask(&rig);
    let ep = first.ep.as_ref().unwrap();
    let refused = second.cr.accept(ep, &[]).unwrap_err();
    assert_eq!(refused.error.code(), dat::INVALID_STATE_EP_TENTCONNPENDING);
    assert_eq!(ep.state(), EpState::TentativeConnectionPending);
}

fn a_request_is_handed_on_to_a_reserved_ep() {
    let rig = Rig::new();
    let here = Psp::builder(&rig.server.ia, &rig.server.cr).build().unwrap();
    let port = here.port();
    let server = rig.server.ep(&EpAttr::default());
    let (rsp, to) = rig.server.reserve(&server);
    let client = rig.client.ep(&EpAttr::default());
    ask_at(&rig, &client, port).cr.hand_off(to).unwrap();
    let arrival = connection_request(&rig.server.cr);
    assert_eq!(arrival.sp, rsp.id());
    assert_eq!(server.state(), EpState::PassiveConnectionPending);
    // An RSP takes one request.
    let second = rig.client.ep(&EpAttr::default());
    let refused = ask_at(&rig, &second, port).cr.hand_off(to).unwrap_err();
    assert_eq!(refused.error.code(), dat::INVALID_ARG2);
    arrival.cr.accept_reserved(&[]).unwrap();
    established(&rig, Pair { server, client });
}

fn a_reserved_ep_is_free_after_its_request_went_on() {
    let rig = Rig::new();
    let psp = Psp::builder(&rig.server.ia, &rig.server.cr).build().unwrap();
    let to = psp.port();
    let server = rig.server.ep(&EpAttr::default());
    let (_rsp, port) = rig.server.reserve(&server);
    let client = rig.client.ep(&EpAttr::default());
    ask_at(&rig, &client, port).cr.hand_off(to).unwrap();
    assert_eq!(server.state(), EpState::Unconnected);
    connection_request(&rig.server.cr).cr.accept(&server, &[]).unwrap();
    established(&rig, Pair { server, client });
}

/// Opens the server's device once more under this name.
fn again(rig: &Rig, name: &str) -> Side {
    let again = Side::open(name);
    assert_eq!(again.ia.address(), rig.server.ia.address());
    again
}

fn server_device() -> String {
    devices().expect("DOORBELL_TEST_DEVICES names the devices").0
}

/// A request that was handed to an EP that an RSP of another IA has reserved.
struct HandedOff {
    other: Side,
    server: Ep,
    client: Ep,
    /// The service point at which the request arrived.
    from: Psp,
    to: (Rsp, u16),
}

fn hand_to_reserved(rig: &Rig) -> HandedOff {
    let other = again(rig, &server_device());
    let from = Psp::builder(&rig.server.ia, &rig.server.cr).build().unwrap();
    let server = other.ep(&EpAttr::default());
    let to = other.reserve(&server);
    let client = rig.client.ep(&EpAttr::default());
    ask_at(rig, &client, from.port()).cr.hand_off(to.1).unwrap();
    HandedOff { other, server, client, from, to }
}

fn a_request_is_handed_on_to_anothers_reserved_ep() {
    let mut rig = Rig::new();
    let HandedOff { other, server, client, from, to: (_rsp, to) } = hand_to_reserved(&rig);
    assert_eq!(server.state(), EpState::PassiveConnectionPending);
    // An RSP takes one request; the second request stays unchanged where it was.
    let second = rig.client.ep(&EpAttr::default());
    let refused = ask_at(&rig, &second, from.port()).cr.hand_off(to).unwrap_err();
    assert_eq!(refused.error.code(), dat::INVALID_ARG2);
    refused.object.reject(b"no").unwrap();
    expect_connection(&rig.client.connect, &second, ConnectionEventKind::PeerRejected);
    connection_request(&other.cr).cr.accept_reserved(&[]).unwrap();
    rig.server = other;
    let mut pair = established(&rig, Pair { server, client });
    rig.send_and_read(&mut pair);
}

fn a_request_is_handed_on_and_back() {
    let rig = Rig::new();
    let other = again(&rig, &rig.server.ia.address().to_string());
    let here = Psp::builder(&rig.server.ia, &rig.server.cr).build().unwrap();
    let port = here.port();
    let there = Psp::builder(&other.ia, &other.cr).provide_eps().build().unwrap();
    let to = there.port();
    let client = rig.client.ep(&EpAttr::default());
    ask_at(&rig, &client, port).cr.hand_off(to).unwrap();
    let arrival = connection_request(&other.cr);
    assert_eq!(arrival.sp, there.id());
    let provided = arrival.ep.unwrap();
    assert_eq!(provided.state(), EpState::TentativeConnectionPending);
    arrival.cr.hand_off(port).unwrap();
    assert_eq!(code(provided.query()), dat::INVALID_HANDLE_EP);
    let server = rig.server.ep(&EpAttr::default());
    connection_request(&rig.server.cr).cr.accept(&server, &[]).unwrap();
    let mut pair = established(&rig, Pair { server, client });
    rig.send_and_read(&mut pair);
}

fn a_request_outlives_the_ia_that_handed_it_on() {
    let mut rig = Rig::new();
    let HandedOff { other, server, client, from: _psp, to: _rsp } = hand_to_reserved(&rig);
    drop(std::mem::replace(&mut rig.server, other).ia);
    assert_eq!(server.state(), EpState::PassiveConnectionPending);
    connection_request(&rig.server.cr).cr.accept_reserved(&[]).unwrap();
    let mut pair = established(&rig, Pair { server, client });
    rig.send_and_read(&mut pair);
}

fn a_request_does_not_leave_its_device() {
    let rig = Rig::new();
    let here = Psp::builder(&rig.server.ia, &rig.server.cr).build().unwrap();
    let port = here.port();
    let there = Psp::builder(&rig.client.ia, &rig.client.cr).build().unwrap();
    let to = there.port();
    let client = rig.client.ep(&EpAttr::default());
    let refused = ask_at(&rig, &client, port).cr.hand_off(to).unwrap_err();
    assert_eq!(refused.error.code(), dat::INVALID_ARG2);
    let text = refused.error.to_string();
    assert!(text.contains("cannot change its device"), "{text}");
    expect_nothing(&rig.client.cr);
    let server = rig.server.ep(&EpAttr::default());
    refused.object.accept(&server, &[]).unwrap();
    established(&rig, Pair { server, client });
}

fn a_common_service_point_takes_requests() {
    let rig = Rig::new();
    let side = &rig.server;
    let own = side.ia.address();
    let csp = Csp::new(&side.ia, Comm::of(own), SocketAddr::new(own, 0), &side.cr).unwrap();
    let at = csp.address();
    assert_eq!(at.ip(), own);
    let client = rig.client.ep(&EpAttr::default());
    assert_eq!(code(client.inner.common_connect(SocketAddr::new(own, 0), None, &[])), dat::INVALID_ARG2);
    client.inner.common_connect(at, Some(LONG), b"who").unwrap();
    let arrival = connection_request(&side.cr);
    assert_eq!((arrival.sp, arrival.conn_qual), (csp.id(), at.port().into()));
    assert_eq!(&arrival.cr.private_data()[..3], b"who");
    let server = side.ep(&EpAttr::default());
    arrival.cr.accept(&server, &[]).unwrap();
    let mut pair = established(&rig, Pair { server, client });
    rig.send_and_read(&mut pair);
    csp.close().unwrap();
    let late = rig.client.ep(&EpAttr::default());
    late.inner.common_connect(at, Some(LONG), &[]).unwrap();
    assert_eq!(connection(&rig.client.connect).kind, ConnectionEventKind::NonPeerRejected);
}

fn a_common_service_point_listens_where_it_says() {
    let rig = Rig::new();
    let side = &rig.server;
    let own = side.ia.address();
    let any = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0);
    let csp = Csp::new(&side.ia, Comm { protocol: 0, ..Comm::of(own) }, any, &side.cr).unwrap();
    let refused = Csp::new(&side.ia, csp.comm(), csp.address(), &side.cr);
    assert_eq!(code(refused), dat::PORT_IN_USE);
    // PSPs and common service points listen at the same ports.
    let refused = Psp::builder(&side.ia, &side.cr).port(csp.address().port()).build();
    assert_eq!(code(refused), dat::CONN_QUAL_IN_USE);
    let psp = Psp::builder(&side.ia, &side.cr).build().unwrap();
    let at = psp.address();
    assert_eq!(code(Csp::new(&side.ia, csp.comm(), at, &side.cr)), dat::PORT_IN_USE);
    let client = rig.client.ep(&EpAttr::default());
    client.inner.common_connect(at, Some(LONG), &[]).unwrap();
    assert_eq!(connection_request(&side.cr).sp, psp.id());
}

fn other_communicators_and_addresses_are_refused() {
    let side = one_side();
    let own = side.ia.address();
    let can = Comm::of(own);
    let at = SocketAddr::new(own, 0);
    for comm in [Comm { kind: can.kind + 1, ..can }, Comm { domain: 1, ..can }, Comm { protocol: 17, ..can }]
    {
        assert_eq!(code(Csp::new(&side.ia, comm, at, &side.cr)), dat::COMM_NOT_SUPPORTED);
    }
    let elsewhere = SocketAddr::new(Ipv4Addr::new(203, 0, 113, 1).into(), 0);
    assert_eq!(code(Csp::new(&side.ia, can, elsewhere, &side.cr)), dat::INVALID_ADDRESS_UNSUPPORTED);
    assert_eq!(code(Csp::new(&side.ia, can, at, &side.connect)), dat::INVALID_HANDLE_EVD_CR);
}

fn a_reserved_ep_that_another_replaces_is_free() {
    let rig = Rig::new();
    let reserved = rig.server.ep(&EpAttr::default());
    let (_rsp, port) = rig.server.reserve(&reserved);
    let client = rig.client.ep(&EpAttr::default());
    let arrival = ask_at(&rig, &client, port);
    let server = rig.server.ep(&EpAttr::default());
    arrival.cr.accept(&server, &[]).unwrap();
    established(&rig, Pair { server, client });
    assert_eq!(reserved.state(), EpState::Unconnected);
}

fn an_ep_follows_another_to_its_service() {
    let rig = Rig::new();
    let side = &rig.server;
    let csp =
        Csp::new(&side.ia, Comm::of(side.ia.address()), SocketAddr::new(side.ia.address(), 0), &side.cr);
    let csp = csp.unwrap();
    let first = rig.client.ep(&EpAttr::default());
    let second = rig.client.ep(&EpAttr::default());
    assert_eq!(code(second.inner.dup_connect(&first.inner, None, &[])), dat::INVALID_STATE_EP_UNCONNECTED);
    first.inner.common_connect(csp.address(), Some(LONG), &[]).unwrap();
    let server = side.ep(&EpAttr::default());
    connection_request(&side.cr).cr.accept(&server, &[]).unwrap();
    let _first = established(&rig, Pair { server, client: first });
    second.inner.dup_connect(&_first.client.inner, Some(LONG), &[]).unwrap();
    let server = side.ep(&EpAttr::default());
    let arrival = connection_request(&side.cr);
    assert_eq!(arrival.sp, csp.id());
    arrival.cr.accept(&server, &[]).unwrap();
    established(&rig, Pair { server, client: second });
}

/// Peers cannot fill the memory of a program that does not look at its requests. The program gets one
/// event, and another when the EVD is full again.
fn requests_that_an_evd_has_no_room_for_are_rejected() {
    const ROOM: usize = 8;
    let rig = Rig::new();
    let cr = Evd::new(&rig.server.ia, 8, EvdFlags::CR).unwrap();
    assert_eq!(cr.query().unwrap().depth as usize, ROOM);
    let psp = Psp::builder(&rig.server.ia, &cr).build().unwrap();
    let port = psp.port();
    let flood = |n: usize, rejected: usize| {
        let clients: Vec<_> = (0..n).map(|_| rig.client.ep(&EpAttr::default())).collect();
        for client in &clients {
            client
                .connect_with((rig.server.ia.address(), port).into(), ConnectOptions::new().timeout(LONG))
                .unwrap();
        }
        for _ in 0..rejected {
            let kind = connection(&rig.client.connect).kind;
            assert!(
                matches!(kind, ConnectionEventKind::NonPeerRejected | ConnectionEventKind::PeerRejected),
                "{kind:?}"
            );
        }
        let event = asynchronous(&rig.server.ia);
        assert_eq!((event.kind, event.object), (AsyncKind::EvdOverflow, AsyncObject::Evd(cr.id())));
        expect_nothing(rig.server.ia.async_evd());
        clients
    };
    let clients = flood(ROOM + 4, 4);
    let (first, second) = (connection_request(&cr), connection_request(&cr));
    let more = flood(3, 1);
    for _ in 0..ROOM {
        connection_request(&cr).cr.reject(&[]).unwrap();
    }
    expect_nothing(&cr);
    drop((first, second, clients, more));
}
