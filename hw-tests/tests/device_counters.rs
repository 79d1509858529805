//! Counters: a known sequence of operations, and the exact value of every counter afterwards, zeros
//! included.

use doorbell::{
    CloseFlags, Comm, CompletionFlags, ConnectionEventKind, Counter, Counters, Csp, DatagramEventKind,
    DtoStatus, Ep, EpAttr, EpChange, EpCounter as E, EpEvds, Evd, EvdCounter as V, EvdFlags, EventData,
    GRH_LEN, Ia, IaCounter as I, Lmr, PortCounters, Psp, Pz, Qos, Rmr, RmrTriplet, ServiceType, Srq, SrqAttr,
};
use doorbell_hw_tests::dat;
use doorbell_hw_tests::rig::*;
use doorbell_hw_tests::{Pair, Rig, Side, devices, tests};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

fn main() {
    doorbell_hw_tests::run(tests![
        an_ia_counts_what_is_made_and_freed,
        an_ia_counts_objects_that_are_dropped,
        an_ia_counts_eps_that_it_makes_itself,
        both_ends_count_a_connection,
        both_ends_count_a_request_that_the_consumer_rejects,
        both_ends_count_a_request_that_nobody_takes,
        a_request_where_nobody_listens_is_refused,
        a_request_without_an_answer_is_a_timeout,
        a_connection_that_breaks_is_counted_where_it_broke,
        an_ep_counts_posts_and_bytes_by_kind,
        an_ep_counts_what_arrives_by_kind,
        an_srq_ep_counts_taken_buffers_only,
        messages_without_an_evd_are_counted,
        refused_posts_and_flushed_receives_are_not_counted_as_done,
        an_ep_counts_attempts_and_disconnects,
        datagrams_are_counted_apart,
        counts_stay_with_an_ep_that_is_modified,
        an_evd_counts_dequeues,
        an_evd_counts_waits,
        an_evd_counts_connection_events,
        a_reset_takes_what_was_read_and_no_more,
        the_port_counts_from_the_start_to_the_stop,
        retries_of_the_device_are_seen,
        closed_ias_and_freed_evds_have_no_counters,
    ])
    .exit();
}

const NONE: CompletionFlags = CompletionFlags::empty();

/// These counters have these values, and all others are 0.
#[track_caller]
fn are<C: Counter>(now: &Counters<C>, expected: &[(C, u64)]) {
    for (counter, value) in now.iter() {
        let expected = expected.iter().find(|(c, _)| c.index() == counter.index()).map_or(0, |(_, n)| *n);
        assert_eq!(value, expected, "{} in {now:?}", counter.name());
    }
}

#[track_caller]
fn ia_is(ia: &Ia, expected: &[(I, u64)]) {
    are(&ia.counters().unwrap(), expected);
}

#[track_caller]
fn ep_is(ep: &Ep, expected: &[(E, u64)]) {
    are(&ep.counters().unwrap(), expected);
}

#[track_caller]
fn evd_is(evd: &Evd, expected: &[(V, u64)]) {
    are(&evd.counters().unwrap(), expected);
}

fn restart(rig: &Rig) {
    for side in [&rig.server, &rig.client] {
        side.ia.take_counters(I::ALL).unwrap();
    }
}

/// Waits until the IA's counters have these values: the last CM messages are sent after the events.
#[track_caller]
fn ia_becomes(ia: &Ia, expected: &[(I, u64)]) {
    until("the last counter moves", || expected.iter().all(|(c, n)| ia.counters().unwrap()[*c] >= *n));
    ia_is(ia, expected);
}

fn an_ia_counts_what_is_made_and_freed() {
    let device = devices().unwrap().0;
    let ia = Ia::open(&device).unwrap();
    ia_is(&ia, &[]);
    let pz = Pz::create(&ia).unwrap();
    let lmrs = [0; 3].map(|_| Lmr::create(&ia, &pz, 4096, all_privileges()).unwrap());
    let rmr = (ia.attributes().max_rmrs > 0).then(|| Rmr::create(&pz).unwrap());
    let evds = [EvdFlags::DTO, EvdFlags::CR].map(|flags| Evd::create(&ia, 8, None, flags).unwrap());
    let srq = Srq::create(&ia, &pz, SrqAttr::depth(4)).unwrap();
    let ep = Ep::create(&ia, &pz, EpEvds { recv: Some(&evds[0]), ..EpEvds::default() }, None).unwrap();
    let reserved = Ep::create(&ia, &pz, EpEvds::default(), None).unwrap();
    let (any, qual) = Psp::create_any(&ia, &evds[1]).unwrap();
    any.free().unwrap();
    let psp = Psp::create(&ia, qual, &evds[1]).unwrap();
    Psp::create(&ia, qual, &evds[1]).unwrap_err();
    Psp::create(&ia, 0, &evds[1]).unwrap_err();
    let csp = Csp::create(&ia, Comm::of(ia.address()), SocketAddr::new(ia.address(), 0), &evds[1]).unwrap();
    let rmrs = u64::from(rmr.is_some());
    let made = [
        (I::PzCreate, 1),
        (I::LmrCreate, 3),
        (I::RmrCreate, rmrs),
        (I::EvdCreate, 2),
        (I::SrqCreate, 1),
        (I::EpCreate, 2),
        (I::PspCreateAny, 1),
        (I::PspFree, 1),
        (I::PspCreate, 1),
        (I::CmListen, 3),
    ];
    ia_is(&ia, &made);
    psp.free().unwrap();
    csp.free().unwrap();
    // The qualifier at which the PSP listened before.
    let rsp = doorbell::Rsp::create(&ia, qual, &reserved, &evds[1]).unwrap();
    rsp.free().unwrap();
    ep.free().unwrap();
    reserved.free().unwrap();
    srq.free().unwrap();
    rmr.into_iter().for_each(|rmr| rmr.free().unwrap());
    lmrs.into_iter().for_each(|lmr| lmr.free().unwrap());
    evds.iter().for_each(|evd| evd.free().unwrap());
    pz.free().unwrap();
    let freed = [
        (I::PzFree, 1),
        (I::LmrFree, 3),
        (I::RmrFree, rmrs),
        (I::EvdFree, 2),
        (I::SrqFree, 1),
        (I::EpFree, 2),
        (I::PspFree, 2),
        (I::RspCreate, 1),
        (I::RspFree, 1),
        (I::CmListen, 4),
    ];
    let kept = made.iter().filter(|(c, _)| freed.iter().all(|(f, _)| f != c)).copied();
    ia_is(&ia, &kept.chain(freed).collect::<Vec<_>>());
}

fn an_ia_counts_objects_that_are_dropped() {
    let side = one_side();
    side.ia.take_counters(I::ALL).unwrap();
    let pz = Pz::create(&side.ia).unwrap();
    let lmr = Lmr::create(&side.ia, &pz, 4096, all_privileges()).unwrap();
    let ep = Ep::create(&side.ia, &pz, side.evds(), None).unwrap();
    drop((ep, lmr, pz));
    drop(side.evd(EvdFlags::DTO));
    drop(side.srq(4));
    ia_is(
        &side.ia,
        &[
            (I::PzCreate, 1),
            (I::PzFree, 1),
            (I::LmrCreate, 1),
            (I::LmrFree, 1),
            (I::EpCreate, 1),
            (I::EpFree, 1),
            (I::EvdCreate, 1),
            (I::EvdFree, 1),
            (I::SrqCreate, 1),
            (I::SrqFree, 1),
        ],
    );
}

fn an_ia_counts_eps_that_it_makes_itself() {
    let rig = Rig::new();
    let client = rig.client.ep(&EpAttr::default());
    let (psp, qual) = Psp::create_any_providing(&rig.server.ia, &rig.server.cr).unwrap();
    rig.server.ia.take_counters(I::ALL).unwrap();
    client.connect(rig.server.ia.address(), qual, Some(LONG), &[], Qos::BestEffort).unwrap();
    let arrival = connection_request(&rig.server.cr);
    ia_is(&rig.server.ia, &[(I::EpCreate, 1), (I::SpCr, 1), (I::CmReqRx, 1)]);
    arrival.cr.reject(&[]).unwrap();
    drop(arrival.ep);
    let counters = rig.server.ia.counters().unwrap();
    assert_eq!((counters[I::EpFree], counters[I::SpCrRejected]), (1, 1));
    psp.free().unwrap();
}

fn both_ends_count_a_connection() {
    let rig = Rig::new();
    let (server, client) = (rig.server.ep(&EpAttr::default()), rig.client.ep(&EpAttr::default()));
    restart(&rig);
    let pair = rig.connect(server, client);
    let listened = [(I::PspCreateAny, 1), (I::PspFree, 1), (I::CmListen, 1)];
    let accepted = [
        (I::SpCr, 1),
        (I::SpCrAccepted, 1),
        (I::CmReqRx, 1),
        (I::CmRepTx, 1),
        (I::CmRtuRx, 1),
        (I::CmPassiveEst, 1),
    ];
    let connected = [(I::CmReqTx, 1), (I::CmRepRx, 1), (I::CmRtuTx, 1), (I::CmActiveEst, 1)];
    ia_is(&rig.server.ia, &[&listened[..], &accepted].concat());
    ia_is(&rig.client.ia, &connected);
    rig.disconnect(&pair);
    ia_becomes(&rig.server.ia, &[&listened[..], &accepted, &[(I::CmDreqRx, 1), (I::CmDrepTx, 1)]].concat());
    ia_becomes(&rig.client.ia, &[&connected[..], &[(I::CmDreqTx, 1), (I::CmDrepRx, 1)]].concat());
}

fn both_ends_count_a_request_that_the_consumer_rejects() {
    let rig = Rig::new();
    let client = rig.client.ep(&EpAttr::default());
    restart(&rig);
    let (psp, arrival) = rig.ask(&client);
    arrival.cr.reject(b"no").unwrap();
    expect_connection(&rig.client.connect, &client, ConnectionEventKind::PeerRejected);
    drop(psp);
    ia_is(&rig.client.ia, &[(I::CmReqTx, 1), (I::CmUserRejRx, 1)]);
    ia_is(
        &rig.server.ia,
        &[
            (I::PspCreateAny, 1),
            (I::PspFree, 1),
            (I::CmListen, 1),
            (I::SpCr, 1),
            (I::SpCrRejected, 1),
            (I::CmReqRx, 1),
            (I::CmUserRejTx, 1),
        ],
    );
}

fn both_ends_count_a_request_that_nobody_takes() {
    let rig = Rig::new();
    let client = rig.client.ep(&EpAttr::default());
    restart(&rig);
    let (psp, arrival) = rig.ask(&client);
    drop(arrival);
    expect_connection(&rig.client.connect, &client, ConnectionEventKind::PeerRejected);
    ia_is(&rig.client.ia, &[(I::CmReqTx, 1), (I::CmUserRejRx, 1)]);
    ia_is(
        &rig.server.ia,
        &[(I::PspCreateAny, 1), (I::CmListen, 1), (I::SpCr, 1), (I::CmReqRx, 1), (I::CmErrRejTx, 1)],
    );
    drop(psp);
}

fn a_request_where_nobody_listens_is_refused() {
    let rig = Rig::new();
    let client = rig.client.ep(&EpAttr::default());
    let (psp, qual) = Psp::create_any(&rig.server.ia, &rig.server.cr).unwrap();
    psp.free().unwrap();
    restart(&rig);
    client.connect(rig.server.ia.address(), qual, Some(LONG), &[], Qos::BestEffort).unwrap();
    expect_connection(&rig.client.connect, &client, ConnectionEventKind::NonPeerRejected);
    ia_is(&rig.client.ia, &[(I::CmReqTx, 1), (I::CmErrRefused, 1)]);
    ia_is(&rig.server.ia, &[]);
}

fn a_request_without_an_answer_is_a_timeout() {
    let rig = Rig::new();
    let client = rig.client.ep(&EpAttr::default());
    let (_psp, qual) = Psp::create_any(&rig.server.ia, &rig.server.cr).unwrap();
    restart(&rig);
    client.connect(rig.server.ia.address(), qual, Some(SHORT), &[], Qos::BestEffort).unwrap();
    let arrival = connection_request(&rig.server.cr);
    expect_connection(&rig.client.connect, &client, ConnectionEventKind::TimedOut);
    ia_is(&rig.client.ia, &[(I::CmReqTx, 1), (I::CmErrTimeout, 1)]);
    // Whether the server learns that the client has given up depends on the connection manager.
    let server = rig.server.ia.counters().unwrap();
    assert_eq!((server[I::SpCr], server[I::CmReqRx], server[I::CmErrTimeout]), (1, 1, 0));
    drop(arrival);
}

fn a_connection_that_breaks_is_counted_where_it_broke() {
    let rig = Rig::new();
    let srq = rig.server.srq(4);
    let mut pair = rig.connect_srq(&srq);
    restart(&rig);
    // Nothing is posted to the SRQ.
    assert_eq!(rig.send(&mut pair, 0, 8).status, DtoStatus::ReceiverNotReady);
    expect_connection(&rig.client.connect, &pair.client, ConnectionEventKind::Broken);
    let counters = rig.client.ia.counters().unwrap();
    assert_eq!((counters[I::CmErrReset], counters[I::CmDreqTx]), (1, 1), "{counters:?}");
    expect_connection(&rig.server.connect, &pair.server, ConnectionEventKind::Disconnected);
    assert_eq!(rig.server.ia.counters().unwrap()[I::CmDreqRx], 1);
}

fn target(side: &Side, len: u32) -> RmrTriplet {
    RmrTriplet {
        virtual_address: side.lmr.address() + (1 << 20),
        segment_length: len,
        rmr_context: side.lmr.rmr_context(),
    }
}

fn an_ep_counts_posts_and_bytes_by_kind() {
    let rig = Rig::new();
    let mut pair = rig.connect_plain(&EpAttr { max_recv_iov: 2, ..EpAttr::default() });
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
    client.post_send(&[local.triplet(0, 100)], 0, NONE).unwrap();
    client.post_send(&[], 0, NONE).unwrap();
    for len in [7, 8, 9] {
        client.post_rdma_write(&[local.triplet(0, len)], 0, target(remote, 64), NONE).unwrap();
    }
    client.post_rdma_write_immediate(&[local.triplet(0, 33)], 0, target(remote, 64), 1, NONE).unwrap();
    // The requested length counts, not the room.
    client.post_rdma_read(&[local.triplet(0, 200)], 0, target(remote, 150), NONE).unwrap();
    client.post_rdma_write(&[local.triplet(0, 1)], 0, target(remote, 64), CompletionFlags::SUPPRESS).unwrap();
    done(7);
    let atomics = rig.client.ia.attributes().atomics;
    if atomics {
        let side = rig.server.lmr.privileges() | doorbell::MemPriv::REMOTE_ATOMIC;
        let words = Lmr::create(&rig.server.ia, &rig.server.pz, 4096, side).unwrap();
        let at = RmrTriplet {
            virtual_address: words.address(),
            segment_length: 8,
            rmr_context: words.rmr_context(),
        };
        client.post_fetch_and_add(local.triplet(0, 8), 0, at, 1, NONE).unwrap();
        for _ in 0..2 {
            client.post_compare_and_swap(local.triplet(0, 8), 0, at, 1, 2, NONE).unwrap();
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
        pair.client.post_rdma_write_immediate(&local, 0, target(&rig.server, 4096), 5, NONE).unwrap();
        assert_eq!(dto(&rig.client.request).status, DtoStatus::Success);
    };
    send(&mut one, 10);
    send(&mut one, 0);
    write(&mut one, 1000);
    send(&mut other, 20);
    let of_one = [(E::Recv, 2), (E::RecvData, 10), (E::RecvRdmaImm, 1), (E::RecvRdmaImmData, 1000)];
    // Nobody has dequeued anything.
    ep_is(&one.server, &of_one);
    for _ in 0..2 {
        rig.server.recv.dequeue().unwrap();
    }
    dto(&rig.server.recv);
    assert!(rig.server.recv.dequeue().unwrap().data.dto().is_some());
    ep_is(&one.server, &of_one);
    ep_is(&other.server, &[(E::Recv, 1), (E::RecvData, 20)]);
    // By a dequeue directly from the CQ, and by a wait.
    send(&mut other, 30);
    until("it has arrived", || rig.server.recv.dequeue().is_ok());
    write(&mut other, 40);
    until("it has arrived", || rig.server.recv.dequeue().is_ok());
    send(&mut other, 50);
    dto(&rig.server.recv);
    let of_other = [(E::Recv, 3), (E::RecvData, 100), (E::RecvRdmaImm, 1), (E::RecvRdmaImmData, 40)];
    ep_is(&other.server, &of_other);
    ep_is(&one.server, &of_one);
}

fn an_srq_ep_counts_taken_buffers_only() {
    let rig = Rig::new();
    let mut srq = rig.server.srq(4);
    let mut pair = rig.connect_srq(&srq);
    rig.server.post(&mut srq, 4, 64, 0, 0);
    ep_is(&pair.server, &[]);
    rig.deliver(&mut pair, 60);
    ep_is(&pair.server, &[(E::Recv, 1), (E::RecvData, 60)]);
}

fn messages_without_an_evd_are_counted() {
    let rig = Rig::new();
    let mut srq = rig.server.srq(4);
    let evds = EpEvds { recv: None, ..rig.server.evds() };
    let server = Ep::create_with_srq(&rig.server.ia, &rig.server.pz, evds, &srq, &EpAttr::default()).unwrap();
    let mut pair = rig.connect(server, rig.client.ep(&EpAttr::default()));
    rig.server.post(&mut srq, 4, 64, 0, 0);
    for _ in 0..3 {
        assert_eq!(rig.send(&mut pair, 0, 9).status, DtoStatus::Success);
    }
    ep_is(&pair.server, &[(E::Recv, 3), (E::RecvData, 27)]);
}

fn refused_posts_and_flushed_receives_are_not_counted_as_done() {
    let rig = Rig::new();
    let mut pair = rig.connect_plain(&EpAttr::default());
    let inside = [rig.client.lmr.triplet(0, 10)];
    let outside = [rig.client.lmr.triplet((2 << 20) - 5, 10)];
    pair.client.post_send(&outside, 0, NONE).unwrap_err();
    pair.client.post_recv(&outside, 0, NONE).unwrap_err();
    pair.client.post_rdma_write(&inside, 0, target(&rig.server, 9), NONE).unwrap_err();
    ep_is(&pair.client, &[(E::Connect, 1)]);
    pair.client.post_recv(&inside, 0, NONE).unwrap();
    pair.client.disconnect(CloseFlags::Abrupt).unwrap();
    assert_eq!(dto(&rig.client.recv).status, DtoStatus::Flushed);
    // Posted, though to be flushed.
    pair.client.post_send(&inside, 0, NONE).unwrap();
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
    client.connect(rig.server.ia.address(), 1, None, &[], Qos::BestEffort).unwrap_err();
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
    let EventData::Datagram(event) = next(&rig.client.connect).data else { panic!("no datagram event") };
    let DatagramEventKind::Established { peer, .. } = event.kind else { panic!("{event:?}") };
    next(&rig.server.connect);
    for len in [10, 0] {
        client.post_send_ud(&[rig.client.lmr.triplet(0, len)], &peer, 0, NONE).unwrap();
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
    let qual = psp.conn_qual();
    client.connect(rig.server.ia.address(), qual, Some(LONG), &[], Qos::BestEffort).unwrap();
    connection_request(&rig.server.cr).cr.reject(&[]).unwrap();
    next(&rig.client.connect);
    ia_is(&rig.client.ia, &[(I::CmAhReqTx, 1), (I::CmUserRejRx, 1)]);
    ia_is(&rig.server.ia, &[(I::SpCr, 1), (I::CmAhReqRx, 1), (I::SpCrRejected, 1), (I::CmUserRejTx, 1)]);
    psp.free().unwrap();
    restart(&rig);
    client.connect(rig.server.ia.address(), qual, Some(LONG), &[], Qos::BestEffort).unwrap();
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
    let deeper = EpChange { max_request_dtos: Some(200), ..EpChange::default() };
    client.modify(deeper).unwrap();
    let mut server = pair.server;
    server.reset().unwrap();
    server.modify(EpChange { max_recv_dtos: Some(200), ..EpChange::default() }).unwrap();
    ep_is(&client, &[(E::Connect, 1), (E::Disconnect, 1), (E::PostSend, 1), (E::PostSendData, 5)]);
    ep_is(&server, &[(E::PostRecv, 1), (E::PostRecvData, 64), (E::Recv, 1), (E::RecvData, 5)]);
    let counters = rig.server.ia.counters().unwrap();
    assert_eq!((counters[I::EpCreate], counters[I::EpFree]), (1, 0));
}

fn an_evd_counts_dequeues() {
    let rig = Rig::new();
    let mut srq = rig.server.srq(8);
    let mut pair = rig.connect_srq(&srq);
    rig.server.post(&mut srq, 8, 64, 0, 0);
    let evd = &rig.server.recv;
    evd.dequeue().unwrap_err();
    evd.dequeue().unwrap_err();
    evd_is(evd, &[(V::Dequeue, 2), (V::DequeueNotFound, 2), (V::DequeuePoll, 2)]);
    evd.take_counters(V::ALL).unwrap();

    let mut misses = 0;
    assert_eq!(rig.send(&mut pair, 0, 8).status, DtoStatus::Success);
    while evd.dequeue().is_err() {
        misses += 1;
    }
    let polled = [(V::DequeuePoll, misses + 1), (V::DequeuePollFound, 1), (V::DequeueNotFound, misses)];
    evd_is(evd, &[&polled[..], &[(V::Dequeue, misses + 1)]].concat());
    // A query takes the next one out of the CQ.
    assert_eq!(rig.send(&mut pair, 0, 8).status, DtoStatus::Success);
    until("it has arrived", || evd.query().unwrap().queued == 1);
    evd.dequeue().unwrap();
    evd_is(evd, &[&polled[..], &[(V::Dequeue, misses + 2), (V::DequeueFound, 1)]].concat());

    // Without a CQ there is nothing to look into.
    let software = rig.server.evd(EvdFlags::SOFTWARE);
    software.dequeue().unwrap_err();
    software.post_software_event(1).unwrap();
    software.dequeue().unwrap();
    evd_is(&software, &[(V::Dequeue, 2), (V::DequeueFound, 1), (V::DequeueNotFound, 1)]);
}

fn an_evd_counts_waits() {
    let rig = Rig::new();
    let software = rig.server.evd(EvdFlags::SOFTWARE);
    software.post_software_event(1).unwrap();
    next(&software);
    evd_is(&software, &[(V::Wait, 1)]);
    software.wait(Some(Duration::ZERO), 1).unwrap_err();
    evd_is(&software, &[(V::Wait, 2)]);
    expect_nothing(&software);
    evd_is(&software, &[(V::Wait, 3), (V::WaitBlocked, 1)]);
    software.wait(None, 0).unwrap_err();
    software.set_unwaitable().unwrap();
    software.wait(None, 1).unwrap_err();
    evd_is(&software, &[(V::Wait, 3), (V::WaitBlocked, 1)]);

    // With a CQ the device is asked before each sleep.
    let mut srq = rig.server.srq(8);
    let mut pair = rig.connect_srq(&srq);
    rig.server.post(&mut srq, 8, 64, 0, 0);
    let evd = &rig.server.recv;
    evd.wait(Some(Duration::ZERO), 1).unwrap_err();
    evd_is(evd, &[(V::Wait, 1)]);
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| dto(evd));
        until("it sleeps", || evd.counters().unwrap()[V::WaitBlocked] == 1);
        evd_is(evd, &[(V::Wait, 2), (V::WaitNotify, 1), (V::WaitBlocked, 1)]);
        assert_eq!(rig.send(&mut pair, 0, 8).status, DtoStatus::Success);
        waiter.join().unwrap();
    });
    let now = evd.counters().unwrap();
    assert_eq!((now[V::Wait], now[V::DtoCallback], now[V::Dequeue]), (2, 1, 0), "{now:?}");
    // A wait polls before each sleep, and may then not have to sleep.
    assert!((0..2).contains(&(now[V::WaitNotify] - now[V::WaitBlocked])), "{now:?}");
}

fn an_evd_counts_connection_events() {
    let rig = Rig::new();
    let pair = rig.connect_plain(&EpAttr::default());
    rig.disconnect(&pair);
    for side in [&rig.server, &rig.client] {
        assert_eq!(side.connect.counters().unwrap()[V::ConnCallback], 2);
        assert_eq!(side.recv.counters().unwrap()[V::ConnCallback], 0);
    }
    // Connection requests do not count.
    assert_eq!(rig.server.cr.counters().unwrap()[V::ConnCallback], 0);
}

/// Two threads count and reset: in the end each message is in exactly one of the numbers read.
fn a_reset_takes_what_was_read_and_no_more() {
    const MESSAGES: u64 = 400;
    let rig = Rig::patient();
    let mut srq = rig.server.srq(64);
    let mut pair = rig.connect_srq(&srq);
    rig.server.post(&mut srq, 64, 64, 0, 0);
    rig.server.recv.take_counters(V::ALL).unwrap();
    let Pair { server, client } = &mut pair;
    let (mut messages, mut bytes, mut found) = (0, 0, 0);
    std::thread::scope(|scope| {
        let receiver = scope.spawn(|| {
            for n in 0..MESSAGES {
                until("a message", || rig.server.recv.dequeue().is_ok());
                srq.post_recv(&[rig.server.lmr.triplet(0, 64)], n).unwrap();
            }
        });
        scope.spawn(|| {
            for _ in 0..MESSAGES {
                client.post_send(&[rig.client.lmr.triplet(0, 3)], 0, NONE).unwrap();
                assert_eq!(dto(&rig.client.request).status, DtoStatus::Success);
            }
        });
        let mut last = false;
        while !last {
            last = receiver.is_finished();
            let of_ep = server.take_counters(&[E::Recv, E::RecvData]).unwrap();
            messages += of_ep[E::Recv];
            bytes += of_ep[E::RecvData];
            let of_evd = rig.server.recv.take_counters(&[V::DequeueFound, V::DequeuePollFound]).unwrap();
            found += of_evd[V::DequeueFound] + of_evd[V::DequeuePollFound];
        }
    });
    assert_eq!((messages, bytes, found), (MESSAGES, 3 * MESSAGES, MESSAGES));
    let now = rig.server.recv.counters().unwrap();
    assert_eq!(now[V::Dequeue], MESSAGES + now[V::DequeueNotFound], "was not reset");
    assert_eq!(pair.client.counters().unwrap()[E::PostSend], MESSAGES);
}

/// The device's folder in sysfs.
fn sysfs(device: &str) -> PathBuf {
    let name = device.split(' ').next().expect("a word");
    rxe_fallback::Context::open(name).unwrap().sysfs_path()
}

fn put(folder: &Path, file: &str, value: u64) {
    let path = folder.join(file);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, format!("{value}\n")).unwrap();
}

/// On the software device, whose sysfs folder is an ordinary folder; the test cannot set the
/// numbers of another device.
fn the_port_counts_from_the_start_to_the_stop() {
    let device = devices().unwrap().0;
    let ia = Ia::open(&device).unwrap();
    PortCounters::ALL.iter().for_each(|&group| ia.stop_counters(group).unwrap());
    ia_is(&ia, &[]);
    let folder = sysfs(&device);
    if folder.starts_with("/sys") {
        PortCounters::ALL.iter().for_each(|&group| ia.start_counters(group).unwrap());
        PortCounters::ALL.iter().for_each(|&group| ia.stop_counters(group).unwrap());
        return;
    }
    let (wait, errors) = ("ports/1/counters/port_xmit_wait", "ports/1/counters/port_rcv_errors");
    put(&folder, wait, 1000);
    put(&folder, "ports/1/cm_tx_retries/req", 5);
    ia.start_counters(PortCounters::Link).unwrap();
    ia_is(&ia, &[]);
    put(&folder, wait, 1010);
    put(&folder, errors, 2);
    put(&folder, "ports/1/cm_tx_retries/req", 6);
    ia_is(&ia, &[(I::LnkWarnXmtWait, 10), (I::LnkErrRcv, 2)]);
    ia.start_counters(PortCounters::Cm).unwrap();
    ia.take_counters(&[I::LnkWarnXmtWait]).unwrap();
    put(&folder, wait, 1013);
    put(&folder, "ports/1/cm_tx_retries/req", 9);
    ia_is(&ia, &[(I::LnkWarnXmtWait, 3), (I::LnkErrRcv, 2), (I::CmErrReqRetry, 3)]);
    ia.stop_counters(PortCounters::Link).unwrap();
    put(&folder, wait, 2000);
    ia_is(&ia, &[(I::LnkWarnXmtWait, 3), (I::LnkErrRcv, 2), (I::CmErrReqRetry, 3)]);
    ia.start_counters(PortCounters::Link).unwrap();
    put(&folder, wait, 2001);
    ia_is(&ia, &[(I::LnkWarnXmtWait, 1), (I::CmErrReqRetry, 3)]);
    for file in [wait, errors, "ports/1/cm_tx_retries/req"] {
        std::fs::remove_file(folder.join(file)).unwrap();
    }
}

/// A sender that gives up on a peer without receives, as counted by the device, if the device
/// counts it.
fn retries_of_the_device_are_seen() {
    let rig = Rig::new();
    let device = devices().unwrap().1;
    let folder = sysfs(&device).join("ports/1/hw_counters");
    let counted = ["retry_rnr_exceeded_err", "req_rnr_retries_exceeded", "sq_num_rree"]
        .iter()
        .any(|name| folder.join(name).exists());
    let srq = rig.server.srq(4);
    let mut pair = rig.connect_srq(&srq);
    let ia = &rig.client.ia;
    ia.start_counters(PortCounters::Diag).unwrap();
    let before = ia.counters().unwrap()[I::DiagErrSqRree];
    assert_eq!(rig.send(&mut pair, 0, 8).status, DtoStatus::ReceiverNotReady);
    let after = ia.counters().unwrap()[I::DiagErrSqRree];
    // Other tests may use the device, too.
    assert_eq!(after > before, counted, "{before}, then {after}");
}

fn closed_ias_and_freed_evds_have_no_counters() {
    let side = one_side();
    let evd = side.evd(EvdFlags::DTO);
    evd.free().unwrap();
    assert_eq!(code(evd.counters()), dat::INVALID_HANDLE_EVD_REQUEST);
    let ep = side.ep(&EpAttr::default());
    let Side { ia, recv, .. } = side;
    ia.close(CloseFlags::Abrupt).unwrap();
    assert_eq!(code(ep.counters()), dat::INVALID_HANDLE_EP);
    code(recv.counters());
}
