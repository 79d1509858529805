//! Datagrams: UD EPs, with and without SRQs, how they resolve each other, and what they send.

use doorbell::{
    AddressHandle, AsyncKind, AsyncObject, CloseFlags, Cno, CompletionFlags, ConnQual, ConnectionEventKind,
    CrArrival, DatagramEvent, DatagramEventKind, DtoCompletion, DtoOp, DtoStatus, Ep, EpAttr, EpChange,
    EpState, Evd, EvdFlags, EventData, GRH_LEN, Lmr, LmrTriplet, Psp, Pz, Qos, RmrTriplet, ServiceType,
    VALUE_UNKNOWN,
};
use doorbell_hw_tests::dat;
use doorbell_hw_tests::rig::*;
use doorbell_hw_tests::{Rig, Side, tests};
use rxe_fallback::{CmEventKind, CmId, ConnParam, EventChannel, PortSpace};
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

fn main() {
    doorbell_hw_tests::run(tests![
        datagrams_go_both_ways,
        a_datagram_has_its_header_area_in_front,
        many_find_out_about_one,
        one_finds_out_about_many_at_once,
        an_srq_serves_connections_and_datagrams,
        datagrams_that_find_no_buffer_are_lost_and_nothing_else,
        both_services_are_asked_for_at_one_service_point,
        a_rejection_tells_why,
        a_request_that_is_dropped_is_a_rejection,
        nobody_listens_for_datagrams,
        nobody_answers_in_time,
        an_address_that_nobody_has_cannot_be_reached,
        an_ep_of_the_other_kind_cannot_accept,
        a_reserved_ep_gets_its_request,
        a_provided_ep_is_for_what_was_asked,
        a_request_is_handed_on,
        a_request_is_handed_on_to_another_ia,
        a_request_that_comes_again_is_answered_again,
        requests_of_others_are_rejected,
        address_handles_are_freed_once,
        address_handles_that_nobody_handed_out_are_refused,
        address_handles_are_good_in_their_pz,
        a_freed_handle_does_not_affect_posted_sends,
        datagrams_are_sent_before_their_ep_goes,
        datagrams_are_sent_before_their_memory_goes,
        an_ep_goes_with_its_address_handles,
        an_ep_goes_while_answers_are_awaited,
        datagrams_longer_than_a_packet_are_refused,
        connections_work_is_refused,
        an_ep_stays_unconnected,
        completion_flags_are_those_of_sends,
        a_failed_ep_is_good_again_after_a_reset,
        attributes_are_told_back,
        what_cannot_be_changed_later,
    ])
    .exit();
}

const NONE: CompletionFlags = CompletionFlags::empty();

fn ud() -> EpAttr {
    EpAttr { service_type: ServiceType::Ud, ..EpAttr::default() }
}

/// The next event, which has to be about datagrams.
#[track_caller]
fn datagram(evd: &Evd) -> DatagramEvent {
    match next(evd).data {
        EventData::Datagram(event) => *event,
        other => panic!("nothing about datagrams: {other:?}"),
    }
}

/// The address handle in the next event of this EP.
#[track_caller]
fn established(evd: &Evd, ep: &Ep, asked: bool) -> AddressHandle {
    let event = datagram(evd);
    match event.kind {
        DatagramEventKind::Established { peer, active } => {
            assert_eq!((event.ep, active), (ep.id(), asked));
            peer
        }
        other => panic!("not established: {other:?}"),
    }
}

/// The client asks at a service point of the server. Returns the request, which is not answered.
#[track_caller]
fn ask(rig: &Rig, client: &Ep, qual: ConnQual, data: &[u8]) -> CrArrival {
    client.connect(rig.server.ia.address(), qual, Some(LONG), data, Qos::BestEffort).unwrap();
    let arrival = connection_request(&rig.server.cr);
    assert_eq!(arrival.cr.service_type(), ServiceType::Ud);
    arrival
}

/// Two EPs that have resolved each other: the server's address handle and the client's.
struct Known {
    to_server: AddressHandle,
    to_client: AddressHandle,
}

#[track_caller]
fn introduce(rig: &Rig, server: &Ep, client: &Ep) -> Known {
    let (_psp, qual) = Psp::create_any(&rig.server.ia, &rig.server.cr).unwrap();
    ask(rig, client, qual, b"").cr.accept(server, b"").unwrap();
    let to_server = established(&rig.client.connect, client, true);
    let to_client = established(&rig.server.connect, server, false);
    Known { to_server, to_client }
}

/// A plain UD EP with posted receives of 256 bytes from `offset` on, with cookies from 0.
fn receiver(side: &Side, receives: usize, offset: usize) -> Ep {
    let mut ep = side.ep(&ud());
    for i in 0..receives {
        ep.post_recv(&[side.lmr.triplet(offset + i * 256, 256)], i as u64, NONE).unwrap();
    }
    ep
}

/// Sends these bytes and waits for the completion of the send.
#[track_caller]
fn send(side: &Side, ep: &mut Ep, to: &AddressHandle, bytes: &[u8]) -> DtoCompletion {
    side.lmr.write(1 << 20, bytes).unwrap();
    ep.post_send_ud(&[side.lmr.triplet(1 << 20, bytes.len())], to, 99, NONE).unwrap();
    let sent = dto(&side.request);
    assert_eq!((sent.ep, sent.cookie, sent.op), (ep.id(), 99, DtoOp::SendUd));
    assert_eq!((sent.status, sent.length as usize), (DtoStatus::Success, bytes.len()));
    sent
}

/// The next receive, whose buffer of 256 bytes is at `offset` plus 256 times its cookie. Returns
/// the completion and the payload.
#[track_caller]
fn received(side: &Side, offset: usize) -> (DtoCompletion, Vec<u8>) {
    let got = dto(&side.recv);
    assert_eq!((got.status, got.op), (DtoStatus::Success, DtoOp::ReceiveUd));
    let mut bytes = vec![0; got.length as usize - GRH_LEN];
    side.lmr.read(offset + got.cookie as usize * 256 + GRH_LEN, &mut bytes).unwrap();
    (got, bytes)
}

fn datagrams_go_both_ways() {
    let rig = Rig::new();
    assert!(rig.server.ia.attributes().datagrams);
    let (mut server, mut client) = (receiver(&rig.server, 4, 0), receiver(&rig.client, 4, 0));
    server.set_context(0x51);
    let (_psp, qual) = Psp::create_any(&rig.server.ia, &rig.server.cr).unwrap();
    let arrival = ask(&rig, &client, qual, b"who");
    assert_eq!((arrival.conn_qual, arrival.cr.private_data()), (qual, &b"who"[..]));
    assert_eq!(arrival.cr.remote().unwrap().ip(), rig.client.ia.address());
    arrival.cr.accept(&server, b"me").unwrap();

    let event = datagram(&rig.client.connect);
    assert_eq!(event.ep, client.id());
    assert_eq!(event.private_data[..3], b"me\0"[..]);
    let DatagramEventKind::Established { peer: to_server, active: true } = event.kind else {
        panic!("{event:?}")
    };
    assert_eq!(to_server.address, rig.server.ia.address());
    let event = datagram(&rig.server.connect);
    assert_eq!((event.ep, event.ep_context, &event.private_data[..]), (server.id(), 0x51, &b"who"[..]));
    let DatagramEventKind::Established { peer: to_client, active: false } = event.kind else {
        panic!("{event:?}")
    };
    assert_eq!(to_client.address, rig.client.ia.address());

    for round in 0..3_u8 {
        send(&rig.client, &mut client, &to_server, &[round; 100]);
        let (got, bytes) = received(&rig.server, 0);
        assert_eq!((got.ep, got.ep_context, bytes), (server.id(), 0x51, vec![round; 100]));
        assert_eq!(got.source_qpn(), Some(to_client.qpn));
        send(&rig.server, &mut server, &to_client, &[!round; 7]);
        let (got, bytes) = received(&rig.client, 0);
        assert_eq!((got.ep, got.source_qpn(), bytes), (client.id(), Some(to_server.qpn), vec![!round; 7]));
    }
    // An empty datagram still has the header.
    send(&rig.client, &mut client, &to_server, b"");
    assert_eq!(received(&rig.server, 0).0.length as usize, GRH_LEN);
}

fn a_datagram_has_its_header_area_in_front() {
    let rig = Rig::new();
    let (mut server, mut client) = (rig.server.ep(&ud()), rig.client.ep(&ud()));
    let known = introduce(&rig, &server, &client);
    rig.server.lmr.write(0, &[0xEE; 1024]).unwrap();
    // The header area may be a segment of its own in other memory.
    let lmr = &rig.server.lmr;
    server.post_recv(&[lmr.triplet(512, GRH_LEN), lmr.triplet(64, 16)], 5, NONE).unwrap();
    send(&rig.client, &mut client, &known.to_server, b"sixteen letters!");
    let got = dto(&rig.server.recv);
    assert_eq!((got.status, got.cookie, got.length as usize), (DtoStatus::Success, 5, GRH_LEN + 16));
    let mut memory = [0; 1024];
    lmr.read(0, &mut memory).unwrap();
    assert_eq!(&memory[64..80], b"sixteen letters!");
    assert!(memory[..64].iter().chain(&memory[80..512]).chain(&memory[552..]).all(|&byte| byte == 0xEE));
}

/// Many EPs, as of a parallel program, send to one EP, which answers each.
fn many_find_out_about_one() {
    const MANY: usize = 12;
    let rig = Rig::new();
    let mut server = rig.server.ep(&EpAttr { max_recv_dtos: 64, max_request_dtos: 64, ..ud() });
    for i in 0..MANY {
        server.post_recv(&[rig.server.lmr.triplet(i * 256, 256)], i as u64, NONE).unwrap();
    }
    let mut clients: Vec<Ep> = (0..MANY).map(|_| receiver(&rig.client, 1, 0)).collect();
    let mut to_clients = HashMap::new();
    for client in &mut clients {
        let known = introduce(&rig, &server, client);
        assert!(to_clients.insert(known.to_client.qpn, known.to_client).is_none(), "two clients are one");
        send(&rig.client, client, &known.to_server, &known.to_client.qpn.to_ne_bytes());
    }
    for _ in 0..MANY {
        let (got, bytes) = received(&rig.server, 0);
        assert_eq!(got.source_qpn().map(u32::to_ne_bytes).as_ref().map(|qpn| &qpn[..]), Some(&bytes[..]));
        let back = to_clients[&got.source_qpn().unwrap()];
        send(&rig.server, &mut server, &back, b"heard");
    }
    let mut heard: Vec<_> = (0..MANY).map(|_| received(&rig.client, 0)).map(|(got, _)| got.ep).collect();
    let mut all: Vec<_> = clients.iter().map(Ep::id).collect();
    heard.sort();
    all.sort();
    assert_eq!(heard, all);
}

/// Several resolutions can be under way at once, and one address handle can be used for other EPs
/// behind the same port.
fn one_finds_out_about_many_at_once() {
    const MANY: u8 = 8;
    let rig = Rig::new();
    let mut client = rig.client.ep(&ud());
    let servers: Vec<Ep> = (0..MANY).map(|i| receiver(&rig.server, 2, usize::from(i) * 512)).collect();
    let (_psp, qual) = Psp::create_any(&rig.server.ia, &rig.server.cr).unwrap();
    for i in 0..MANY {
        client.connect(rig.server.ia.address(), qual, Some(LONG), &[i], Qos::BestEffort).unwrap();
        assert_eq!(client.state(), EpState::Unconnected);
    }
    for _ in 0..MANY {
        let arrival = connection_request(&rig.server.cr);
        let i = arrival.cr.private_data()[0];
        arrival.cr.accept(&servers[usize::from(i)], &[i]).unwrap();
    }
    let mut peers: Vec<Option<AddressHandle>> = vec![None; MANY.into()];
    for _ in 0..MANY {
        let event = datagram(&rig.client.connect);
        let DatagramEventKind::Established { peer, active: true } = event.kind else { panic!("{event:?}") };
        assert!(peers[usize::from(event.private_data[0])].replace(peer).is_none());
        datagram(&rig.server.connect);
    }
    let first = peers[0].unwrap();
    for (i, peer) in peers.iter().enumerate() {
        let peer = peer.unwrap();
        for to in [peer, first.with_qpn(peer.qpn)] {
            send(&rig.client, &mut client, &to, &[i as u8]);
            let (got, bytes) = received(&rig.server, i * 512);
            assert_eq!((got.ep, bytes), (servers[i].id(), vec![i as u8]));
        }
    }
}

/// One SRQ serves two UD EPs and a connection: each message is in the next buffer, and datagrams
/// are behind their header area.
fn an_srq_serves_connections_and_datagrams() {
    let rig = Rig::new();
    let mut srq = rig.server.srq(16);
    let servers: [Ep; 2] = [0, 1].map(|_| rig.server.srq_ep(&srq, &ud()));
    let mut pair = rig.connect_srq(&srq);
    let mut client = rig.client.ep(&ud());
    let to = [0, 1].map(|i| introduce(&rig, &servers[i], &client).to_server);
    rig.server.post(&mut srq, 12, 256, 0, 0);
    assert_eq!(servers[0].recv_query().unwrap().buffers, VALUE_UNKNOWN);
    for round in 0..4_u8 {
        send(&rig.client, &mut client, &to[usize::from(round % 2)], &[round; 20]);
        let (got, bytes) = received(&rig.server, 0);
        assert_eq!((got.ep, bytes), (servers[usize::from(round % 2)].id(), vec![round; 20]));
        let got = rig.deliver(&mut pair, 30);
        assert_eq!((got.ep, got.op, got.length), (pair.server.id(), DtoOp::Receive, 30));
        assert_eq!(got.source_qpn(), None);
    }
    assert_eq!(counts(&srq), (4, 4));
    rig.disconnect(&pair);
    // The end of the connection does not affect the UD EPs.
    send(&rig.client, &mut client, &to[0], b"still here");
    assert_eq!(received(&rig.server, 0).1, b"still here");
    let [first, second] = servers;
    first.free().unwrap();
    send(&rig.client, &mut client, &to[1], b"the other");
    assert_eq!(received(&rig.server, 0).0.ep, second.id());
    assert_eq!(counts(&srq), (2, 2));
    drop((second, pair));
    assert_eq!(counts(&srq), (2, 2));
}

fn datagrams_that_find_no_buffer_are_lost_and_nothing_else() {
    let rig = Rig::new();
    let mut srq = rig.server.srq(4);
    let server = rig.server.srq_ep(&srq, &ud());
    let mut client = rig.client.ep(&ud());
    let to = introduce(&rig, &server, &client).to_server;
    for _ in 0..3 {
        send(&rig.client, &mut client, &to, b"lost");
    }
    expect_nothing(&rig.server.recv);
    rig.server.post(&mut srq, 1, 256, 0, 0);
    send(&rig.client, &mut client, &to, b"found");
    assert_eq!(received(&rig.server, 0).1, b"found");
    assert_eq!((server.state(), client.state()), (EpState::Unconnected, EpState::Unconnected));
    // Also to a QP number that does not exist.
    send(&rig.client, &mut client, &to.with_qpn(0xff_fffe), b"nobody");
    expect_nothing(&rig.server.recv);
}

fn both_services_are_asked_for_at_one_service_point() {
    let rig = Rig::new();
    let (psp, qual) = Psp::create_any(&rig.server.ia, &rig.server.cr).unwrap();
    let (datagrams, connection) = (rig.client.ep(&ud()), rig.client.ep(&EpAttr::default()));
    let first = ask(&rig, &datagrams, qual, b"");
    connection.connect(rig.server.ia.address(), qual, Some(LONG), &[], Qos::BestEffort).unwrap();
    let second = connection_request(&rig.server.cr);
    assert_eq!(second.cr.service_type(), ServiceType::Rc);
    assert_eq!((first.sp, second.sp), (psp.id(), psp.id()));
    assert_eq!(EventData::ConnectionRequest(first).number(), 0x4_0001);
    assert_eq!(EventData::ConnectionRequest(second).number(), 0x2001);
    // A second service point at the qualifier is refused, of either kind.
    assert_eq!(code(Psp::create(&rig.server.ia, qual, &rig.server.cr)), dat::CONN_QUAL_IN_USE);
    psp.free().unwrap();
    let again = Psp::create(&rig.server.ia, qual, &rig.server.cr).unwrap();
    drop(again);
}

fn a_rejection_tells_why() {
    let rig = Rig::new();
    let (_psp, qual) = Psp::create_any(&rig.server.ia, &rig.server.cr).unwrap();
    let client = rig.client.ep(&ud());
    let arrival = ask(&rig, &client, qual, b"please");
    arrival.cr.reject(b"no").unwrap();
    let event = datagram(&rig.client.connect);
    assert_eq!((event.ep, event.kind), (client.id(), DatagramEventKind::Rejected));
    assert_eq!(event.private_data[..3], b"no\0"[..]);
    assert_eq!(EventData::Datagram(Box::new(event)).number(), 0x4_0003);
    assert_eq!(client.state(), EpState::Unconnected);
    // More private data than an answer can carry.
    let arrival = ask(&rig, &client, qual, b"");
    assert_eq!(code(arrival.cr.reject(&[1; 137])), dat::INVALID_ARG2);
}

fn a_request_that_is_dropped_is_a_rejection() {
    let rig = Rig::new();
    let (_psp, qual) = Psp::create_any(&rig.server.ia, &rig.server.cr).unwrap();
    let client = rig.client.ep(&ud());
    drop(ask(&rig, &client, qual, b""));
    assert_eq!(datagram(&rig.client.connect).kind, DatagramEventKind::Rejected);
}

fn nobody_listens_for_datagrams() {
    let rig = Rig::new();
    let (psp, qual) = Psp::create_any(&rig.server.ia, &rig.server.cr).unwrap();
    psp.free().unwrap();
    let client = rig.client.ep(&ud());
    client.connect(rig.server.ia.address(), qual, Some(LONG), &[], Qos::BestEffort).unwrap();
    let event = datagram(&rig.client.connect);
    assert_eq!(event.kind, DatagramEventKind::Failed(ConnectionEventKind::NonPeerRejected));
    assert_eq!((event.ep, client.state()), (client.id(), EpState::Unconnected));
    assert_eq!(EventData::Datagram(Box::new(event)).number(), 0x4_0004);
}

fn nobody_answers_in_time() {
    let rig = Rig::new();
    let (_psp, qual) = Psp::create_any(&rig.server.ia, &rig.server.cr).unwrap();
    let (client, server) = (rig.client.ep(&ud()), rig.server.ep(&ud()));
    let brief = Some(Duration::from_millis(100));
    client.connect(rig.server.ia.address(), qual, brief, &[], Qos::BestEffort).unwrap();
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
    client.connect(nobody, 1000, Some(patience), &[], Qos::BestEffort).unwrap();
    assert_eq!(datagram(&rig.client.connect).kind, DatagramEventKind::Failed(outcome));
}

fn an_ep_of_the_other_kind_cannot_accept() {
    let rig = Rig::new();
    let (_psp, qual) = Psp::create_any(&rig.server.ia, &rig.server.cr).unwrap();
    let (datagrams, connected) = (rig.server.ep(&ud()), rig.server.ep(&EpAttr::default()));
    let client = rig.client.ep(&ud());
    let refused = ask(&rig, &client, qual, b"").cr.accept(&connected, &[]).unwrap_err();
    assert_eq!((refused.error.code(), connected.state()), (dat::INVALID_ARG2, EpState::Unconnected));
    // The service point is still there.
    refused.object.accept(&datagrams, &[]).unwrap();
    established(&rig.client.connect, &client, true);
    established(&rig.server.connect, &datagrams, false);

    let client = rig.client.ep(&EpAttr::default());
    client.connect(rig.server.ia.address(), qual, Some(LONG), &[], Qos::BestEffort).unwrap();
    let refused = connection_request(&rig.server.cr).cr.accept(&datagrams, &[]).unwrap_err();
    assert_eq!(refused.error.code(), dat::INVALID_ARG2);
    refused.object.accept(&connected, &[]).unwrap();
    expect_connection(&rig.client.connect, &client, ConnectionEventKind::Established);
}

fn a_reserved_ep_gets_its_request() {
    let rig = Rig::new();
    let mut reserved = receiver(&rig.server, 2, 0);
    let (rsp, qual) = rig.server.reserve(&reserved);
    assert_eq!(reserved.state(), EpState::Reserved);
    // This service point listens for datagrams only.
    let connected = rig.client.ep(&EpAttr::default());
    connected.connect(rig.server.ia.address(), qual, Some(LONG), &[], Qos::BestEffort).unwrap();
    expect_connection(&rig.client.connect, &connected, ConnectionEventKind::NonPeerRejected);
    let mut client = rig.client.ep(&ud());
    let arrival = ask(&rig, &client, qual, b"");
    assert_eq!((arrival.sp, reserved.state()), (rsp.id(), EpState::PassiveConnectionPending));
    // An RSP takes one request; the next one is refused.
    let other = rig.client.ep(&ud());
    other.connect(rig.server.ia.address(), qual, Some(LONG), &[], Qos::BestEffort).unwrap();
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
    rsp.free().unwrap();
    assert_eq!(reserved.state(), EpState::Unconnected);
}

fn a_provided_ep_is_for_what_was_asked() {
    let rig = Rig::new();
    let (_psp, qual) = Psp::create_any_providing(&rig.server.ia, &rig.server.cr).unwrap();
    let mut client = rig.client.ep(&ud());
    let mut arrival = ask(&rig, &client, qual, b"");
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
    let (_here, qual) = Psp::create_any(&rig.server.ia, &rig.server.cr).unwrap();
    let (there, to) = Psp::create_any(&rig.server.ia, &other).unwrap();
    let (client, server) = (rig.client.ep(&ud()), rig.server.ep(&ud()));
    ask(&rig, &client, qual, b"on").cr.hand_off(to).unwrap();
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
    let (_here, qual) = Psp::create_any(&rig.server.ia, &rig.server.cr).unwrap();
    let (there, to) = Psp::create_any(&other.ia, &other.cr).unwrap();
    let (mut client, mut server) = (rig.client.ep(&ud()), other.ep(&ud()));
    server.post_recv(&[other.lmr.triplet(0, 256)], 0, NONE).unwrap();
    ask(&rig, &client, qual, b"on").cr.hand_off(to).unwrap();
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
fn ask_in_bytes(rig: &Rig, qual: ConnQual, bytes: &[u8], answer: impl FnOnce()) -> Option<(u32, Vec<u8>)> {
    let channel = EventChannel::create().unwrap();
    let expect = |kind| match channel.next_event_timeout(LONG).unwrap() {
        Some(event) if event.kind == kind => {}
        other => panic!("{kind:?} expected, got {other:?}"),
    };
    let id = CmId::create_in(PortSpace::Udp, &channel, 0).unwrap();
    let port = u16::try_from(qual).expect("a qualifier that create_any gives is a port");
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
    let (_psp, qual) = Psp::create_any(&rig.server.ia, &rig.server.cr).unwrap();
    let server = rig.server.ep(&ud());
    let bytes = request(77, 1, b"hello");
    let first = ask_in_bytes(&rig, qual, &bytes, || {
        let arrival = connection_request(&rig.server.cr);
        assert_eq!(arrival.cr.private_data(), b"hello");
        arrival.cr.accept(&server, b"welcome").unwrap();
    });
    assert_eq!(first.as_ref().unwrap().1[..7], b"welcome"[..]);
    assert_eq!(established(&rig.server.connect, &server, false).qpn, 77);
    assert_eq!(ask_in_bytes(&rig, qual, &bytes, || {}), first);
    assert_eq!(ask_in_bytes(&rig, qual, &bytes, || {}), first);
    expect_nothing(&rig.server.cr);
    expect_nothing(&rig.server.connect);
    // Another request of the same QP is another request.
    let other = request(77, 2, b"hello");
    let no = |data: &'static [u8]| {
        let cr = &rig.server.cr;
        move || connection_request(cr).cr.reject(data).unwrap()
    };
    assert_eq!(ask_in_bytes(&rig, qual, &other, no(b"no")), None);
    assert_eq!(ask_in_bytes(&rig, qual, &other, || {}), None);
    expect_nothing(&rig.server.cr);
    // A freed EP does not answer any more.
    server.free().unwrap();
    assert_eq!(ask_in_bytes(&rig, qual, &bytes, || {}), None);
}

fn requests_of_others_are_rejected() {
    let rig = Rig::new();
    let (_psp, qual) = Psp::create_any(&rig.server.ia, &rig.server.cr).unwrap();
    for bytes in [&b""[..], b"udaddy", &[0xff; 180]] {
        assert_eq!(ask_in_bytes(&rig, qual, bytes, || {}), None);
    }
    expect_nothing(&rig.server.cr);
}

fn address_handles_are_freed_once() {
    let rig = Rig::new();
    let (server, mut client) = (receiver(&rig.server, 4, 0), rig.client.ep(&ud()));
    let other = rig.client.ep(&ud());
    let first = introduce(&rig, &server, &client).to_server;
    let second = introduce(&rig, &server, &client).to_server;
    assert_ne!(first, second);
    // An address handle resolved by another EP can be used here, but not freed.
    assert_eq!(code(other.free_address_handle(&first)), dat::INVALID_ARG2);
    client.free_address_handle(&first).unwrap();
    assert_eq!(code(client.free_address_handle(&first)), dat::INVALID_ARG2);
    let message = [rig.client.lmr.triplet(0, 8)];
    assert_eq!(code(client.post_send_ud(&message, &first, 0, NONE)), dat::INVALID_ARG4);
    // The other handle has the same destination and stays.
    send(&rig.client, &mut client, &second, b"second");
    assert_eq!(received(&rig.server, 0).1, b"second");
}

fn address_handles_that_nobody_handed_out_are_refused() {
    let rig = Rig::new();
    let (server, mut client) = (rig.server.ep(&ud()), rig.client.ep(&ud()));
    let known = introduce(&rig, &server, &client);
    let message = [rig.client.lmr.triplet(0, 8)];
    // A handle of another IA, although its destination is on the same side.
    assert_eq!(code(client.post_send_ud(&message, &known.to_client, 0, NONE)), dat::INVALID_ARG4);
    let wide = known.to_server.with_qpn(1 << 24);
    assert_eq!(code(client.post_send_ud(&message, &wide, 0, NONE)), dat::INVALID_ARG4);
    assert_eq!(code(client.free_address_handle(&known.to_client)), dat::INVALID_ARG2);
    assert!(client.status().unwrap().request_idle);
}

fn address_handles_are_good_in_their_pz() {
    let rig = Rig::new();
    let (server, client) = (receiver(&rig.server, 2, 0), rig.client.ep(&ud()));
    let to = introduce(&rig, &server, &client).to_server;
    let mut sibling = rig.client.ep(&ud());
    send(&rig.client, &mut sibling, &to, b"from a sibling");
    assert_eq!(received(&rig.server, 0).1, b"from a sibling");
    let pz = Pz::create(&rig.client.ia).unwrap();
    let mut stranger = Ep::create(&rig.client.ia, &pz, rig.client.evds(), Some(&ud())).unwrap();
    assert_eq!(code(stranger.post_send_ud(&[], &to, 0, NONE)), dat::INVALID_ARG4);
}

/// A device may need the address handle until the send has completed.
fn a_freed_handle_does_not_affect_posted_sends() {
    const MANY: u64 = 16;
    let rig = Rig::new();
    let (server, mut client) = (receiver(&rig.server, 16, 0), rig.client.ep(&ud()));
    for _ in 0..4 {
        let to = introduce(&rig, &server, &client).to_server;
        for cookie in 0..MANY {
            client.post_send_ud(&[rig.client.lmr.triplet(0, 32)], &to, cookie, NONE).unwrap();
        }
        client.free_address_handle(&to).unwrap();
        for cookie in 0..MANY {
            let sent = dto(&rig.client.request);
            assert_eq!((sent.status, sent.cookie), (DtoStatus::Success, cookie));
        }
    }
    assert_eq!(client.state(), EpState::Unconnected);
}

/// No thread waits for their completions.
fn datagrams_are_sent_before_their_ep_goes() {
    const MANY: u64 = 16;
    let rig = Rig::new();
    let (server, mut client) = (receiver(&rig.server, MANY as usize, 0), rig.client.ep(&ud()));
    let to = introduce(&rig, &server, &client).to_server;
    for cookie in 0..MANY {
        let message = [rig.client.lmr.triplet(0, 200)];
        client.post_send_ud(&message, &to, cookie, CompletionFlags::SUPPRESS).unwrap();
    }
    client.free().unwrap();
    for cookie in 0..MANY {
        assert_eq!(received(&rig.server, 0).0.cookie, cookie);
    }
}

/// The sends are done before their memory is freed.
fn datagrams_are_sent_before_their_memory_goes() {
    const MANY: u64 = 16;
    let rig = Rig::new();
    let (server, mut client) = (receiver(&rig.server, MANY as usize, 0), rig.client.ep(&ud()));
    let to = introduce(&rig, &server, &client).to_server;
    let memory = Lmr::create(&rig.client.ia, &rig.client.pz, 4096, all_privileges()).unwrap();
    for cookie in 0..MANY {
        client.post_send_ud(&[memory.triplet(0, 200)], &to, cookie, CompletionFlags::SUPPRESS).unwrap();
    }
    memory.free().unwrap();
    for cookie in 0..MANY {
        assert_eq!(received(&rig.server, 0).0.cookie, cookie);
    }
    assert_eq!(client.state(), EpState::Unconnected);
}

fn an_ep_goes_with_its_address_handles() {
    let rig = Rig::new();
    let (server, client) = (rig.server.ep(&ud()), rig.client.ep(&ud()));
    let mut sibling = rig.client.ep(&ud());
    let to = introduce(&rig, &server, &client).to_server;
    client.free().unwrap();
    assert_eq!(code(sibling.post_send_ud(&[], &to, 0, NONE)), dat::INVALID_ARG4);
    assert_eq!(code(sibling.free_address_handle(&to)), dat::INVALID_ARG2);
}

fn an_ep_goes_while_answers_are_awaited() {
    let rig = Rig::new();
    let (psp, qual) = Psp::create_any(&rig.server.ia, &rig.server.cr).unwrap();
    let (server, client) = (rig.server.ep(&ud()), rig.client.ep(&ud()));
    let first = ask(&rig, &client, qual, b"1");
    let second = ask(&rig, &client, qual, b"2");
    client.free().unwrap();
    // No thread waits any more; the server cannot know that.
    first.cr.accept(&server, &[]).unwrap();
    server.free().unwrap();
    drop(second);
    psp.free().unwrap();
    expect_nothing(&rig.client.connect);
}

fn datagrams_longer_than_a_packet_are_refused() {
    let rig = Rig::new();
    let mtu = rig.client.ia.attributes().mtu as usize;
    let (mut server, mut client) = (rig.server.ep(&ud()), rig.client.ep(&ud()));
    let known = introduce(&rig, &server, &client);
    server.post_recv(&[rig.server.lmr.triplet(0, mtu + GRH_LEN)], 0, NONE).unwrap();
    let long = [rig.client.lmr.triplet(0, mtu + 1)];
    assert_eq!(code(client.post_send_ud(&long, &known.to_server, 0, NONE)), dat::LENGTH_ERROR);
    let split = [rig.client.lmr.triplet(0, mtu), rig.client.lmr.triplet(0, 1)];
    assert_eq!(code(client.post_send_ud(&split, &known.to_server, 0, NONE)), dat::LENGTH_ERROR);
    let message: Vec<u8> = (0..mtu).map(|i| i as u8).collect();
    send(&rig.client, &mut client, &known.to_server, &message);
    assert_eq!(received(&rig.server, 0).1, message);
    let beyond = EpAttr { max_message_size: mtu as u32 + 1, ..ud() };
    assert_eq!(
        code(Ep::create(&rig.client.ia, &rig.client.pz, rig.client.evds(), Some(&beyond))),
        dat::INVALID_ARG6
    );
    rig.client.ep(&EpAttr { max_message_size: mtu as u32, ..ud() });
}

fn connections_work_is_refused() {
    let rig = Rig::new();
    let (server, mut client) = (rig.server.ep(&ud()), rig.client.ep(&ud()));
    let known = introduce(&rig, &server, &client);
    let message = [rig.client.lmr.triplet(0, 8)];
    let there = RmrTriplet { virtual_address: 0, segment_length: 8, rmr_context: 1 };
    assert_eq!(code(client.post_send(&message, 0, NONE)), dat::INVALID_STATE_EP_UNCONNECTED);
    assert_eq!(code(client.post_rdma_write(&message, 0, there, NONE)), dat::INVALID_STATE_EP_UNCONNECTED);
    assert_eq!(code(client.post_rdma_read(&message, 0, there, NONE)), dat::INVALID_STATE_EP_UNCONNECTED);
    assert_eq!(code(client.disconnect(CloseFlags::Abrupt)), dat::INVALID_STATE_EP_UNCONNECTED);
    assert_eq!(code(client.dup_connect(&server, None, &[])), dat::INVALID_STATE_EP_UNCONNECTED);
    let common = std::net::SocketAddr::new(rig.server.ia.address(), 1000);
    assert_eq!(code(client.common_connect(common, None, &[])), dat::MODEL_NOT_SUPPORTED);
    assert_eq!(
        code(client.connect(rig.server.ia.address(), 1, None, &[0; 57], Qos::BestEffort)),
        dat::INVALID_ARG5
    );
    // And for datagram calls on EPs for connections.
    let mut connected = rig.client.ep(&EpAttr::default());
    assert_eq!(
        code(connected.post_send_ud(&message, &known.to_server, 0, NONE)),
        dat::INVALID_STATE_EP_UNCONNECTED
    );
}

fn an_ep_stays_unconnected() {
    let rig = Rig::new();
    let (server, client) = (rig.server.ep(&ud()), rig.client.ep(&ud()));
    introduce(&rig, &server, &client);
    for ep in [&server, &client] {
        let status = ep.status().unwrap();
        assert!(status.state == EpState::Unconnected && status.recv_idle && status.request_idle);
        let param = ep.query().unwrap();
        assert_eq!((param.state, param.remote), (EpState::Unconnected, None));
    }
}

fn completion_flags_are_those_of_sends() {
    let rig = Rig::new();
    let side = &rig.server;
    let solicited = EpAttr { recv_completion_flags: CompletionFlags::SOLICITED_WAIT, ..ud() };
    let cno = Cno::create(&side.ia).unwrap();
    let quiet = Evd::create(&side.ia, 64, Some(&cno), EvdFlags::DTO).unwrap();
    let evds = doorbell::EpEvds { recv: Some(&quiet), ..side.evds() };
    let mut server = Ep::create(&side.ia, &side.pz, evds, Some(&solicited)).unwrap();
    let mut client = rig.client.ep(&ud());
    let to = introduce(&rig, &server, &client).to_server;
    for cookie in 0..3 {
        server.post_recv(&[side.lmr.triplet(0, 256)], cookie, NONE).unwrap();
    }
    let message = [rig.client.lmr.triplet(0, 8)];
    client.post_send_ud(&message, &to, 1, CompletionFlags::SUPPRESS).unwrap();
    client.post_send_ud(&message, &to, 2, NONE).unwrap();
    // The first send caused no event.
    assert_eq!(dto(&rig.client.request).cookie, 2);
    until("two have come", || quiet.query().unwrap().queued == 2);
    assert_eq!(code(cno.wait(Some(SHORT))), dat::TIMEOUT_EXPIRED);
    client.post_send_ud(&message, &to, 3, CompletionFlags::SOLICITED_WAIT).unwrap();
    assert_eq!(cno.wait(Some(LONG)).unwrap(), quiet.id());
    for cookie in 0..3 {
        assert_eq!(dto(&quiet).cookie, cookie);
    }
    assert_eq!(code(client.post_send_ud(&message, &to, 4, CompletionFlags::UNSIGNALLED)), dat::INVALID_ARG5);
}

/// If memory is freed between post and send, the device detects it: the QP fails.
fn a_failed_ep_is_good_again_after_a_reset() {
    let rig = Rig::new();
    let (mut server, client) = (receiver(&rig.server, 3, 0), rig.client.ep(&ud()));
    let back = introduce(&rig, &server, &client).to_client;
    // A datagram that is too long for its buffer.
    let mut small = rig.server.srq(2);
    let mut failing = rig.server.srq_ep(&small, &ud());
    let mut sender = receiver(&rig.client, 0, 0);
    let to = introduce(&rig, &failing, &sender).to_server;
    rig.server.post(&mut small, 1, GRH_LEN + 8, 4096, 7);
    send(&rig.client, &mut sender, &to, &[1; 100]);
    let got = dto(&rig.server.recv);
    assert!(got.status != DtoStatus::Success && got.op == DtoOp::ReceiveUd, "{got:?}");
    assert_eq!((got.ep, got.cookie), (failing.id(), 7));
    let event = asynchronous(&rig.server.ia);
    assert_eq!((event.kind, event.object), (AsyncKind::EpBroken, AsyncObject::Ep(failing.id())));
    assert_eq!(failing.state(), EpState::Disconnected);
    // The other EPs are not affected.
    assert_eq!(server.state(), EpState::Unconnected);
    send(&rig.server, &mut server, &back, b"lost, but sent");
    // Posts are flushed from now on.
    failing.post_send_ud(&[], &back, 8, NONE).unwrap();
    let flushed = dto(&rig.server.request);
    assert_eq!((flushed.status, flushed.op, flushed.cookie), (DtoStatus::Flushed, DtoOp::SendUd, 8));
    assert_eq!(code(failing.post_send(&[], 0, NONE)), dat::INVALID_STATE_EP_DISCONNECTED);
    let again = failing.connect(rig.client.ia.address(), 1, None, &[], Qos::BestEffort);
    assert_eq!(code(again), dat::INVALID_STATE_EP_DISCONNECTED);

    failing.reset().unwrap();
    assert_eq!(failing.state(), EpState::Unconnected);
    rig.server.post(&mut small, 1, 256, 0, 0);
    send(&rig.client, &mut sender, &to, b"back again");
    let (got, bytes) = received(&rig.server, 0);
    assert_eq!((got.ep, bytes), (failing.id(), b"back again".to_vec()));
    assert_eq!(counts(&small), (0, 0));

    // Receives of a plain EP are flushed.
    let marks = server.set_watermark(doorbell::WATERMARK_INFINITE, 1);
    marks.unwrap();
    assert_eq!(asynchronous(&rig.server.ia).object, AsyncObject::Ep(server.id()));
    for cookie in 0..3 {
        let flushed = dto(&rig.server.recv);
        assert_eq!(
            (flushed.status, flushed.op, flushed.cookie),
            (DtoStatus::Flushed, DtoOp::ReceiveUd, cookie)
        );
    }
    server.set_watermark(doorbell::WATERMARK_INFINITE, doorbell::WATERMARK_INFINITE).unwrap();
    server.reset().unwrap();
    server.post_recv(&[rig.server.lmr.triplet(0, 256)], 0, NONE).unwrap();
    let mut client = client;
    let to = introduce(&rig, &server, &client).to_server;
    send(&rig.client, &mut client, &to, b"and this one");
    assert_eq!(received(&rig.server, 0).1, b"and this one");
}

fn attributes_are_told_back() {
    let rig = Rig::new();
    let side = &rig.server;
    // Attributes of RDMA are ignored.
    let attr = EpAttr { max_rdma_read_in: -1, max_rdma_write_iov: 1 << 20, max_recv_dtos: 9, ..ud() };
    let ep = side.ep(&attr);
    let is = ep.query().unwrap().attr;
    assert_eq!((is.service_type, ep.service_type()), (ServiceType::Ud, ServiceType::Ud));
    assert!(is.max_recv_dtos >= 9);
    assert_eq!(side.ep(&EpAttr::default()).service_type(), ServiceType::Rc);
}

fn what_cannot_be_changed_later() {
    let rig = Rig::new();
    let (server, mut client) = (rig.server.ep(&ud()), rig.client.ep(&ud()));
    let service = |service_type| EpChange { service_type: Some(service_type), ..EpChange::default() };
    client.modify(service(ServiceType::Ud)).unwrap();
    assert_eq!(code(client.modify(service(ServiceType::Rc))), dat::INVALID_ARG3);
    let mut connected = rig.client.ep(&EpAttr::default());
    assert_eq!(code(connected.modify(service(ServiceType::Ud))), dat::INVALID_ARG3);
    // The QP can be replaced only until a peer has resolved it.
    let more = EpChange { max_recv_dtos: Some(200), ..EpChange::default() };
    client.modify(more).unwrap();
    assert!(client.query().unwrap().attr.max_recv_dtos >= 200);
    let to = introduce(&rig, &server, &client).to_client;
    assert_eq!(
        code(client.modify(EpChange { max_recv_dtos: Some(2000), ..EpChange::default() })),
        dat::INVALID_STATE_EP_UNCONNECTED
    );
    let other = rig.client.evd(EvdFlags::CONNECTION);
    client.modify(EpChange { connect: Some(Some(&other)), ..EpChange::default() }).unwrap();
    let (_psp, qual) = Psp::create_any(&rig.server.ia, &rig.server.cr).unwrap();
    drop(ask(&rig, &client, qual, b""));
    assert_eq!(datagram(&other).kind, DatagramEventKind::Rejected);
    let mut server = server;
    let triplet: LmrTriplet = rig.client.lmr.triplet(0, 256);
    client.post_recv(&[triplet], 0, NONE).unwrap();
    send(&rig.server, &mut server, &to, b"the same QP");
    assert_eq!(received(&rig.client, 0).1, b"the same QP");
}
