//! Counters of IAs.

use crate::*;
use doorbell::inside::{Comm, Csp, EpEvds};
use doorbell::{
    ConnectOptions, ConnectionEventKind, DtoStatus, Ep, EpAttr, Evd, EvdFlags, Ia, IaCounter as I, Lmr, Psp,
    Pz, Rmr, RmrScope, Srq,
};
use doorbell_hw_tests::rig::*;
use doorbell_hw_tests::{Rig, Test, devices, tests};
use std::net::SocketAddr;

pub(crate) const TESTS: &[Test] = tests![
    an_ia_counts_what_is_made_and_freed,
    an_ia_counts_objects_that_are_dropped,
    an_ia_counts_eps_that_it_makes_itself,
    both_ends_count_a_connection,
    both_ends_count_a_request_that_the_consumer_rejects,
    both_ends_count_a_request_that_nobody_takes,
    a_request_where_nobody_listens_is_refused,
    a_request_without_an_answer_is_a_timeout,
    a_connection_that_breaks_is_counted_where_it_broke,
    a_free_that_ends_a_connection_is_a_request,
];

/// The peer answers the request.
fn a_free_that_ends_a_connection_is_a_request() {
    let rig = Rig::new();
    let pair = rig.connect_plain(&EpAttr::default());
    restart(&rig);
    pair.server.close().unwrap();
    expect_connection(&rig.client.connect, &pair.client, ConnectionEventKind::Disconnected);
    ia_becomes(&rig.server.ia, &[(I::EpFree, 1), (I::CmDreqTx, 1), (I::CmDrepRx, 1)]);
    ia_becomes(&rig.client.ia, &[(I::CmDreqRx, 1), (I::CmDrepTx, 1)]);
}

fn an_ia_counts_what_is_made_and_freed() {
    let device = devices().unwrap().0;
    let ia = Ia::open(&device).unwrap();
    ia_is(&ia, &[]);
    let pz = Pz::new(&ia).unwrap();
    let lmrs = [0; 3].map(|_| Lmr::builder(&ia, &pz).privileges(all_privileges()).allocate(4096).unwrap());
    let rmr = (ia.attributes().max_rmrs > 0).then(|| Rmr::new(&pz, RmrScope::Pz).unwrap());
    let evds = [EvdFlags::DTO, EvdFlags::CR].map(|flags| Evd::new(&ia, 8, flags).unwrap());
    let srq = Srq::builder(&ia, &pz).depth(4).build().unwrap();
    let ep =
        Ep::builder(&ia, &pz).evds(EpEvds { recv: Some(&evds[0]), ..EpEvds::default() }).build().unwrap();
    let reserved = Ep::builder(&ia, &pz).build().unwrap();
    let any = Psp::builder(&ia, &evds[1]).build().unwrap();
    let port = any.port();
    any.close().unwrap();
    let psp = Psp::builder(&ia, &evds[1]).port(port).build().unwrap();
    Psp::builder(&ia, &evds[1]).port(port).build().unwrap_err();
    let csp = Csp::new(&ia, Comm::of(ia.address()), SocketAddr::new(ia.address(), 0), &evds[1]).unwrap();
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
    psp.close().unwrap();
    csp.close().unwrap();
    // The qualifier at which the PSP listened before.
    let rsp = doorbell::Rsp::new(&ia, port, &reserved, &evds[1]).unwrap();
    rsp.close().unwrap();
    ep.close().unwrap();
    reserved.close().unwrap();
    srq.close().unwrap();
    rmr.into_iter().for_each(|rmr| rmr.close().unwrap());
    lmrs.into_iter().for_each(|lmr| lmr.close().unwrap());
    evds.into_iter().for_each(|evd| evd.close().unwrap());
    pz.close().unwrap();
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
    let pz = Pz::new(&side.ia).unwrap();
    let lmr = Lmr::builder(&side.ia, &pz).privileges(all_privileges()).allocate(4096).unwrap();
    let ep = Ep::builder(&side.ia, &pz).evds(side.evds()).build().unwrap();
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
    let psp = Psp::builder(&rig.server.ia, &rig.server.cr).provide_eps().build().unwrap();
    let port = psp.port();
    rig.server.ia.take_counters(I::ALL).unwrap();
    client.connect_with((rig.server.ia.address(), port).into(), ConnectOptions::new().timeout(LONG)).unwrap();
    let arrival = connection_request(&rig.server.cr);
    ia_is(&rig.server.ia, &[(I::EpCreate, 1), (I::SpCr, 1), (I::CmReqRx, 1)]);
    arrival.cr.reject(&[]).unwrap();
    drop(arrival.ep);
    let counters = rig.server.ia.counters().unwrap();
    assert_eq!((counters[I::EpFree], counters[I::SpCrRejected]), (1, 1));
    psp.close().unwrap();
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
    let psp = Psp::builder(&rig.server.ia, &rig.server.cr).build().unwrap();
    let port = psp.port();
    psp.close().unwrap();
    restart(&rig);
    client.connect_with((rig.server.ia.address(), port).into(), ConnectOptions::new().timeout(LONG)).unwrap();
    expect_connection(&rig.client.connect, &client, ConnectionEventKind::NonPeerRejected);
    ia_is(&rig.client.ia, &[(I::CmReqTx, 1), (I::CmErrRefused, 1)]);
    ia_is(&rig.server.ia, &[]);
}

fn a_request_without_an_answer_is_a_timeout() {
    let rig = Rig::new();
    let client = rig.client.ep(&EpAttr::default());
    let psp = Psp::builder(&rig.server.ia, &rig.server.cr).build().unwrap();
    let port = psp.port();
    restart(&rig);
    client
        .connect_with((rig.server.ia.address(), port).into(), ConnectOptions::new().timeout(BRIEF))
        .unwrap();
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
