//! Counters of EPs.

use crate::*;
use doorbell::inside::EpEvds;
use doorbell::{
    CloseFlags, ConnectOptions, ConnectionEventKind, DatagramEventKind, DtoStatus, Ep, EpAttr, EpChange,
    EpCounter as E, EvdCounter as V, Event, GRH_LEN, IaCounter as I, Lmr, RmrTriplet, ServiceType,
};
use doorbell_hw_tests::rig::*;
use doorbell_hw_tests::{Pair, Rig, Side, Test, tests};

pub(crate) const TESTS: &[Test] = tests![
    an_ep_counts_posts_and_bytes_by_kind,
    an_ep_counts_what_arrives_by_kind,
    messages_without_an_evd_are_counted,
    refused_posts_and_flushed_receives_are_not_counted_as_done,
    an_ep_counts_attempts_and_disconnects,
    datagrams_are_counted_apart,
    counts_stay_with_an_ep_that_is_modified,
];

fn target(side: &Side, len: u32) -> RmrTriplet {
    RmrTriplet {
        virtual_address: side.lmr.address() + (1 << 20),
        segment_length: len,
        rmr_context: side.lmr.rmr_context(),
    }
}

fn an_ep_counts_posts_and_bytes_by_kind() {
    let rig = Rig::new();
    let mut pair = rig.connect_plain(&EpAttr { recv_segments: 2, ..EpAttr::default() });
    let (local, remote) = (&rig.client.lmr, &rig.server);
    pair.server.post_recv(&[remote.lmr.triplet(0, 500), remote.lmr.triplet(500, 12)], 0, NONE).unwrap();
    for _ in 0..2 {
        pair.server.post_recv(&[remote.lmr.triplet(0, 512)], 0, NONE).unwrap();
    }
    let done = |count| {
        for _ in 0..count {
            assert_eq!(dto(&rig.client.request).status, DtoStatus::Success);
        }
    };
    let client = &mut pair.client;
    client.send(&[local.triplet(0, 100)]).post().unwrap();
    client.send(&[]).post().unwrap();
    for len in [7, 8, 9] {
        client.write(&[local.triplet(0, len)]).to(target(remote, 64)).post().unwrap();
    }
    client.write(&[local.triplet(0, 33)]).to(target(remote, 64)).with_immediate(1).post().unwrap();
    // The requested length counts, not the room.
    client.read(&[local.triplet(0, 200)]).from(target(remote, 150)).post().unwrap();
    client.write(&[local.triplet(0, 1)]).to(target(remote, 64)).suppress().post().unwrap();
    done(7);
    let atomics = rig.client.ia.attributes().atomics;
    if atomics {
        let side = rig.server.lmr.privileges() | doorbell::MemPriv::REMOTE_ATOMIC;
        let words = Lmr::builder(&rig.server.ia, &rig.server.pz).privileges(side).allocate(4096).unwrap();
        let at = RmrTriplet {
            virtual_address: words.address(),
            segment_length: 8,
            rmr_context: words.rmr_context(),
        };
        client.fetch_add(&local.triplet(0, 8), 1).at(at).post().unwrap();
        for _ in 0..2 {
            client.compare_swap(&local.triplet(0, 8), 1, 2).at(at).post().unwrap();
        }
        done(3);
    }
    ep_is(
        &pair.client,
        &[
            (E::Connect, 1),
            (E::PostSend, 2),
            (E::PostSendData, 100),
            (E::PostWrite, 4),
            (E::PostWriteData, 25),
            (E::PostWriteImm, 1),
            (E::PostWriteImmData, 33),
            (E::PostRead, 1),
            (E::PostReadData, 150),
            (E::PostFetchAdd, u64::from(atomics)),
            (E::PostCmpSwap, 2 * u64::from(atomics)),
        ],
    );
    arrived(&pair.server, E::RecvRdmaImm, 1);
    ep_is(
        &pair.server,
        &[
            (E::PostRecv, 3),
            (E::PostRecvData, 3 * 512),
            (E::Recv, 2),
            (E::RecvData, 100),
            (E::RecvRdmaImm, 1),
            (E::RecvRdmaImmData, 33),
        ],
    );
}

/// What arrives is counted when it arrives, and once, however it is taken.
fn an_ep_counts_what_arrives_by_kind() {
    let rig = Rig::new();
    let mut srq = rig.server.srq(16);
    let (mut one, mut other) = (rig.connect_srq(&srq), rig.connect_srq(&srq));
    rig.server.post(&mut srq, 16, 256, 0, 0);
    let send = |pair: &mut Pair, len| assert_eq!(rig.send(pair, 0, len).status, DtoStatus::Success);
    let write = |pair: &mut Pair, len| {
        let local = [rig.client.lmr.triplet(0, len)];
        pair.client.write(&local).to(target(&rig.server, 4096)).with_immediate(5).post().unwrap();
        assert_eq!(dto(&rig.client.request).status, DtoStatus::Success);
    };
    send(&mut one, 10);
    send(&mut one, 0);
    write(&mut one, 1000);
    send(&mut other, 20);
    let of_one = [(E::Recv, 2), (E::RecvData, 10), (E::RecvRdmaImm, 1), (E::RecvRdmaImmData, 1000)];
    // Nobody has dequeued anything.
    arrived(&one.server, E::RecvRdmaImm, 1);
    arrived(&other.server, E::Recv, 1);
    ep_is(&one.server, &of_one);
    for _ in 0..2 {
        rig.server.recv.dequeue().unwrap().unwrap();
    }
    dto(&rig.server.recv);
    assert!(rig.server.recv.dequeue().unwrap().unwrap().completion().is_some());
    ep_is(&one.server, &of_one);
    ep_is(&other.server, &[(E::Recv, 1), (E::RecvData, 20)]);
    // By a dequeue directly from the CQ, and by a wait.
    send(&mut other, 30);
    until("it has arrived", || rig.server.recv.dequeue().unwrap().is_some());
    write(&mut other, 40);
    until("it has arrived", || rig.server.recv.dequeue().unwrap().is_some());
    send(&mut other, 50);
    dto(&rig.server.recv);
    let of_other = [(E::Recv, 3), (E::RecvData, 100), (E::RecvRdmaImm, 1), (E::RecvRdmaImmData, 40)];
    ep_is(&other.server, &of_other);
    ep_is(&one.server, &of_one);
}

fn messages_without_an_evd_are_counted() {
    let rig = Rig::new();
    let mut srq = rig.server.srq(4);
    let evds = EpEvds { recv: None, ..rig.server.evds() };
    let server = Ep::builder(&rig.server.ia, &rig.server.pz).evds(evds).srq(&srq).build().unwrap();
    let mut pair = rig.connect(server, rig.client.ep(&EpAttr::default()));
    rig.server.post(&mut srq, 4, 64, 0, 0);
    for _ in 0..3 {
        assert_eq!(rig.send(&mut pair, 0, 9).status, DtoStatus::Success);
    }
    arrived(&pair.server, E::Recv, 3);
    ep_is(&pair.server, &[(E::Recv, 3), (E::RecvData, 27)]);
}

fn refused_posts_and_flushed_receives_are_not_counted_as_done() {
    let rig = Rig::new();
    let mut pair = rig.connect_plain(&EpAttr::default());
    let inside = [rig.client.lmr.triplet(0, 10)];
    let outside = [rig.client.lmr.triplet((2 << 20) - 5, 10)];
    pair.client.send(&outside).post().unwrap_err();
    pair.client.post_recv(&outside, 0, NONE).unwrap_err();
    pair.client.write(&inside).to(target(&rig.server, 9)).post().unwrap_err();
    ep_is(&pair.client, &[(E::Connect, 1)]);
    pair.client.post_recv(&inside, 0, NONE).unwrap();
    pair.client.disconnect(CloseFlags::Abrupt).unwrap();
    assert_eq!(dto(&rig.client.recv).status, DtoStatus::Flushed);
    // Posted, though to be flushed.
    pair.client.send(&inside).post().unwrap();
    assert_eq!(dto(&rig.client.request).status, DtoStatus::Flushed);
    ep_is(
        &pair.client,
        &[
            (E::Connect, 1),
            (E::Disconnect, 1),
            (E::PostRecv, 1),
            (E::PostRecvData, 10),
            (E::PostSend, 1),
            (E::PostSendData, 10),
        ],
    );
}

fn an_ep_counts_attempts_and_disconnects() {
    let rig = Rig::new();
    let mut client = rig.client.ep(&EpAttr::default());
    client.disconnect(CloseFlags::Abrupt).unwrap_err();
    ep_is(&client, &[]);
    let (psp, arrival) = rig.ask(&client);
    client.connect((rig.server.ia.address(), 1).into()).unwrap_err();
    arrival.cr.reject(&[]).unwrap();
    expect_connection(&rig.client.connect, &client, ConnectionEventKind::PeerRejected);
    drop(psp);
    ep_is(&client, &[(E::Connect, 1)]);
    client.reset().unwrap();
    let pair = rig.connect(rig.server.ep(&EpAttr::default()), client);
    pair.client.disconnect(CloseFlags::Graceful).unwrap();
    expect_connection(&rig.client.connect, &pair.client, ConnectionEventKind::Disconnected);
    pair.client.disconnect(CloseFlags::Abrupt).unwrap();
    ep_is(&pair.client, &[(E::Connect, 2), (E::Disconnect, 2)]);
    // An accept does not count as a connect, nor a peer's disconnect as one's own.
    expect_connection(&rig.server.connect, &pair.server, ConnectionEventKind::Disconnected);
    ep_is(&pair.server, &[]);
}

fn datagrams_are_counted_apart() {
    let rig = Rig::new();
    let attr = EpAttr { service_type: ServiceType::Ud, ..EpAttr::default() };
    let (mut server, mut client) = (rig.server.ep(&attr), rig.client.ep(&attr));
    for n in 0..3 {
        server.post_recv(&[rig.server.lmr.triplet(n * 256, 256)], 0, NONE).unwrap();
    }
    restart(&rig);
    let (psp, arrival) = rig.ask(&client);
    arrival.cr.accept(&server, &[]).unwrap();
    let Event::Datagram(event) = next(&rig.client.connect) else { panic!("no datagram event") };
    let DatagramEventKind::Established { peer, .. } = event.kind else { panic!("{event:?}") };
    next(&rig.server.connect);
    for len in [10, 0] {
        client.send(&[rig.client.lmr.triplet(0, len)]).datagram_to(&peer).post().unwrap();
        assert_eq!(dto(&rig.client.request).status, DtoStatus::Success);
        assert_eq!(dto(&rig.server.recv).length as usize, GRH_LEN + len);
    }
    let asked = [(I::CmAhReqTx, 1), (I::CmAhResolved, 1)];
    let answered = [
        (I::PspCreateAny, 1),
        (I::CmListen, 1),
        (I::SpCr, 1),
        (I::SpCrAccepted, 1),
        (I::CmAhReqRx, 1),
        (I::CmAhResolved, 1),
    ];
    ia_is(&rig.client.ia, &asked);
    ia_is(&rig.server.ia, &answered);
    ep_is(&client, &[(E::Connect, 1), (E::PostSendUd, 2), (E::PostSendUdData, 10)]);
    let arrived = 10 + 2 * GRH_LEN as u64;
    ep_is(&server, &[(E::PostRecv, 3), (E::PostRecvData, 3 * 256), (E::RecvUd, 2), (E::RecvUdData, arrived)]);
    assert_eq!(rig.client.connect.counters().unwrap()[V::ConnCallback], 1);

    restart(&rig);
    let to = psp.address();
    client.connect_with(to, ConnectOptions::new().timeout(LONG)).unwrap();
    connection_request(&rig.server.cr).cr.reject(&[]).unwrap();
    next(&rig.client.connect);
    ia_is(&rig.client.ia, &[(I::CmAhReqTx, 1), (I::CmUserRejRx, 1)]);
    ia_is(&rig.server.ia, &[(I::SpCr, 1), (I::CmAhReqRx, 1), (I::SpCrRejected, 1), (I::CmUserRejTx, 1)]);
    psp.close().unwrap();
    restart(&rig);
    client.connect_with(to, ConnectOptions::new().timeout(LONG)).unwrap();
    next(&rig.client.connect);
    ia_is(&rig.client.ia, &[(I::CmAhReqTx, 1), (I::CmErrRefused, 1)]);
    ia_is(&rig.server.ia, &[]);
    assert_eq!(client.counters().unwrap()[E::Connect], 3);
}

fn counts_stay_with_an_ep_that_is_modified() {
    let rig = Rig::new();
    let mut pair = rig.connect_plain(&EpAttr::default());
    pair.server.post_recv(&[rig.server.lmr.triplet(0, 64)], 0, NONE).unwrap();
    rig.deliver(&mut pair, 5);
    rig.disconnect(&pair);
    let mut client = pair.client;
    client.reset().unwrap();
    let deeper = EpChange { request_depth: Some(200), ..EpChange::default() };
    client.modify(deeper).unwrap();
    let mut server = pair.server;
    server.reset().unwrap();
    server.modify(EpChange { recv_depth: Some(200), ..EpChange::default() }).unwrap();
    ep_is(&client, &[(E::Connect, 1), (E::Disconnect, 1), (E::PostSend, 1), (E::PostSendData, 5)]);
    ep_is(&server, &[(E::PostRecv, 1), (E::PostRecvData, 64), (E::Recv, 1), (E::RecvData, 5)]);
    let counters = rig.server.ia.counters().unwrap();
    assert_eq!((counters[I::EpCreate], counters[I::EpFree]), (1, 0));
}
