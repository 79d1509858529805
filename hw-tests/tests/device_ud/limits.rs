//! What UD EPs refuse, their attributes, and how they recover.

use crate::*;
use doorbell::{
    AsyncKind, AsyncObject, CloseFlags, Cno, CompletionFlags, ConnectOptions, DatagramEventKind, DtoOp,
    DtoStatus, Ep, EpAttr, EpChange, EpState, Evd, EvdFlags, GRH_LEN, LmrTriplet, Psp, RmrTriplet,
    ServiceType,
};
use doorbell_hw_tests::rig::*;
use doorbell_hw_tests::{Rig, Test, dat, tests};

pub(crate) const TESTS: &[Test] = tests![
    datagrams_longer_than_a_packet_are_refused,
    connections_work_is_refused,
    completion_flags_are_those_of_sends,
    a_failed_ep_is_good_again_after_a_reset,
    attributes_are_told_back,
    what_cannot_be_changed_later,
];

fn datagrams_longer_than_a_packet_are_refused() {
    let rig = Rig::new();
    let mtu = rig.client.ia.attributes().mtu as usize;
    let (mut server, mut client) = (rig.server.ep(&ud()), rig.client.ep(&ud()));
    let known = introduce(&rig, &server, &client);
    server.post_recv(&[rig.server.lmr.triplet(0, mtu + GRH_LEN)], 0, NONE).unwrap();
    let long = [rig.client.lmr.triplet(0, mtu + 1)];
    assert_eq!(code(client.send(&long).datagram_to(&known.to_server).post()), dat::LENGTH_ERROR);
    let split = [rig.client.lmr.triplet(0, mtu), rig.client.lmr.triplet(0, 1)];
    assert_eq!(code(client.send(&split).datagram_to(&known.to_server).post()), dat::LENGTH_ERROR);
    let message: Vec<u8> = (0..mtu).map(|i| i as u8).collect();
    send(&rig.client, &mut client, &known.to_server, &message);
    assert_eq!(received(&rig.server, 0).1, message);
    let beyond = EpAttr { max_message_size: mtu as u32 + 1, ..ud() };
    assert_eq!(
        code(Ep::builder(&rig.client.ia, &rig.client.pz).evds(rig.client.evds()).attributes(&beyond).build()),
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
    assert_eq!(code(client.send(&message).post()), dat::INVALID_STATE_EP_UNCONNECTED);
    assert_eq!(code(client.write(&message).to(there).post()), dat::INVALID_STATE_EP_UNCONNECTED);
    assert_eq!(code(client.read(&message).from(there).post()), dat::INVALID_STATE_EP_UNCONNECTED);
    assert_eq!(code(client.disconnect(CloseFlags::Abrupt)), dat::INVALID_STATE_EP_UNCONNECTED);
    assert_eq!(code(client.inner.dup_connect(&server.inner, None, &[])), dat::INVALID_STATE_EP_UNCONNECTED);
    let common = std::net::SocketAddr::new(rig.server.ia.address(), 1000);
    assert_eq!(code(client.inner.common_connect(common, None, &[])), dat::MODEL_NOT_SUPPORTED);
    assert_eq!(
        code(
            client.connect_with(
                (rig.server.ia.address(), 1).into(),
                ConnectOptions::new().private_data(&[0; 57])
            )
        ),
        dat::INVALID_ARG5
    );
    // And for datagram calls on EPs for connections.
    let mut connected = rig.client.ep(&EpAttr::default());
    assert_eq!(
        code(connected.send(&message).datagram_to(&known.to_server).post()),
        dat::INVALID_STATE_EP_UNCONNECTED
    );
}

fn completion_flags_are_those_of_sends() {
    let rig = Rig::new();
    let side = &rig.server;
    let solicited = EpAttr { recv_completion_flags: CompletionFlags::SOLICITED_WAIT, ..ud() };
    let cno = Cno::new(&side.ia).unwrap();
    let quiet = Evd::new(&side.ia, 64, EvdFlags::DTO).unwrap();
    quiet.set_cno(Some(&cno)).unwrap();
    let evds = doorbell::inside::EpEvds { recv: Some(&quiet), ..side.evds() };
    let mut server = Ep::builder(&side.ia, &side.pz).evds(evds).attributes(&solicited).build().unwrap();
    let mut client = rig.client.ep(&ud());
    let to = introduce(&rig, &server, &client).to_server;
    for cookie in 0..3 {
        server.post_recv(&[side.lmr.triplet(0, 256)], cookie, NONE).unwrap();
    }
    let message = [rig.client.lmr.triplet(0, 8)];
    client.send(&message).datagram_to(&to).cookie(1).suppress().post().unwrap();
    client.send(&message).datagram_to(&to).cookie(2).post().unwrap();
    // The first send caused no event.
    assert_eq!(dto(&rig.client.request).cookie, 2);
    until("two have come", || quiet.query().unwrap().queued == 2);
    assert_eq!(code(cno.wait(Some(SHORT))), dat::TIMEOUT_EXPIRED);
    client.send(&message).datagram_to(&to).cookie(3).solicited().post().unwrap();
    assert_eq!(cno.wait(Some(LONG)).unwrap(), quiet.id());
    for cookie in 0..3 {
        assert_eq!(dto(&quiet).cookie, cookie);
    }
    assert_eq!(
        code(client.send(&message).datagram_to(&to).cookie(4).unsignalled().post()),
        dat::INVALID_ARG5
    );
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
    failing.send(&[]).datagram_to(&back).cookie(8).post().unwrap();
    let flushed = dto(&rig.server.request);
    assert_eq!((flushed.status, flushed.op, flushed.cookie), (DtoStatus::Flushed, DtoOp::SendUd, 8));
    assert_eq!(code(failing.send(&[]).post()), dat::INVALID_STATE_EP_DISCONNECTED);
    let again = failing.connect((rig.client.ia.address(), 1).into());
    assert_eq!(code(again), dat::INVALID_STATE_EP_DISCONNECTED);

    failing.reset().unwrap();
    assert_eq!(failing.state(), EpState::Unconnected);
    rig.server.post(&mut small, 1, 256, 0, 0);
    send(&rig.client, &mut sender, &to, b"back again");
    let (got, bytes) = received(&rig.server, 0);
    assert_eq!((got.ep, bytes), (failing.id(), b"back again".to_vec()));
    assert_eq!(counts(&small), (0, 0));

    // Receives of a plain EP are flushed.
    let marks = server.set_watermark(None, Some(1));
    marks.unwrap();
    assert_eq!(asynchronous(&rig.server.ia).object, AsyncObject::Ep(server.id()));
    for cookie in 0..3 {
        let flushed = dto(&rig.server.recv);
        assert_eq!(
            (flushed.status, flushed.op, flushed.cookie),
            (DtoStatus::Flushed, DtoOp::ReceiveUd, cookie)
        );
    }
    server.set_watermark(None, None).unwrap();
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
    let attr = EpAttr { rdma_reads_in: u32::MAX, rdma_write_segments: 1 << 20, recv_depth: 9, ..ud() };
    let ep = side.ep(&attr);
    let is = ep.query().unwrap().attr;
    assert_eq!((is.service_type, ep.service_type()), (ServiceType::Ud, ServiceType::Ud));
    assert!(is.recv_depth >= 9);
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
    let more = EpChange { recv_depth: Some(200), ..EpChange::default() };
    client.modify(more).unwrap();
    assert!(client.query().unwrap().attr.recv_depth >= 200);
    let to = introduce(&rig, &server, &client).to_client;
    assert_eq!(
        code(client.modify(EpChange { recv_depth: Some(2000), ..EpChange::default() })),
        dat::INVALID_STATE_EP_UNCONNECTED
    );
    let other = rig.client.evd(EvdFlags::CONNECTION);
    client.modify(EpChange { connect: Some(Some(&other)), ..EpChange::default() }).unwrap();
    let psp = Psp::builder(&rig.server.ia, &rig.server.cr).build().unwrap();
    let port = psp.port();
    drop(ask(&rig, &client, port, b""));
    assert_eq!(datagram(&other).kind, DatagramEventKind::Rejected);
    let mut server = server;
    let triplet: LmrTriplet = rig.client.lmr.triplet(0, 256);
    client.post_recv(&[triplet], 0, NONE).unwrap();
    send(&rig.server, &mut server, &to, b"the same QP");
    assert_eq!(received(&rig.client, 0).1, b"the same QP");
}
