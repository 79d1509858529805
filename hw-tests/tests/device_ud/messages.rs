//! Datagrams that are sent and received, also with an SRQ.

use crate::*;
use doorbell::{
    AddressHandle, ConnectOptions, DatagramEventKind, DtoOp, DtoStatus, Ep, EpAttr, EpState, GRH_LEN, Psp,
};
use doorbell_hw_tests::rig::*;
use doorbell_hw_tests::{Rig, Test, tests};
use std::collections::HashMap;

pub(crate) const TESTS: &[Test] = tests![
    datagrams_go_both_ways,
    a_datagram_has_its_header_area_in_front,
    many_find_out_about_one,
    one_finds_out_about_many_at_once,
    an_srq_serves_connections_and_datagrams,
    datagrams_that_find_no_buffer_are_lost_and_nothing_else,
];

fn datagrams_go_both_ways() {
    let rig = Rig::new();
    assert!(rig.server.ia.attributes().datagrams);
    let (mut server, mut client) = (receiver(&rig.server, 4, 0), receiver(&rig.client, 4, 0));
    server.set_context(0x51);
    let psp = Psp::builder(&rig.server.ia, &rig.server.cr).build().unwrap();
    let port = psp.port();
    let arrival = ask(&rig, &client, port, b"who");
    assert_eq!((arrival.port(), arrival.cr.private_data()), (port, &b"who"[..]));
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
    let mut server = rig.server.ep(&EpAttr { recv_depth: 64, request_depth: 64, ..ud() });
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
    let psp = Psp::builder(&rig.server.ia, &rig.server.cr).build().unwrap();
    let port = psp.port();
    for i in 0..MANY {
        client
            .connect_with(
                (rig.server.ia.address(), port).into(),
                ConnectOptions::new().timeout(LONG).private_data(&[i]),
            )
            .unwrap();
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
    assert_eq!(servers[0].recv_query().unwrap().buffers, None);
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
    first.close().unwrap();
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
