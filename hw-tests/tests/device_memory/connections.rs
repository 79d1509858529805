//! Receives before a connection; binds, pools and datagrams.

use crate::allocator::HELD;
use crate::*;
use doorbell::{
    ConnectOptions, ConnectionEventKind, DatagramEventKind, DtoStatus, Ep, EpAttr, Event, Psp, Received,
    RecvPool, Rmr, RmrBind, RmrScope, SendPool, ServiceType, VaType,
};
use doorbell_hw_tests::rig::*;
use doorbell_hw_tests::{Rig, Test, tests};
use std::sync::atomic::Ordering::SeqCst;

pub(crate) const TESTS: &[Test] = tests![
    posting_before_a_connection,
    a_connection_releases_what_posts_before_it_needed,
    binds,
    pools,
    datagrams,
];

/// The provider keeps the segments of receives posted before a connection, in case the QP is
/// replaced. This needs memory.
fn posting_before_a_connection() {
    const MANY: usize = 200;
    let surroundings = || {
        let side = one_side();
        let mut ep = side.ep(&long(500));
        for i in 0..MANY {
            ep.post_recv(&[side.lmr.triplet(0, 64)], i as u64, NONE).unwrap();
        }
        (ep, side)
    };
    with_each_failure(
        "receives",
        surroundings,
        |(ep, side)| (0..200).try_for_each(|_| ep.post_recv(&[side.lmr.triplet(64, 64)], 0, NONE)),
        |_, ()| {},
    );
}

/// Once a connection begins, on either side, the QP is not replaced any more: the segments are
/// dropped.
fn a_connection_releases_what_posts_before_it_needed() {
    const RECEIVES: usize = 1000;
    /// Of one segment.
    const BYTES: usize = 16;
    let rig = Rig::new();
    let [server, client] = [&rig.server, &rig.client].map(|side| {
        let mut ep = side.ep(&long(RECEIVES as u32));
        for i in 0..RECEIVES {
            ep.post_recv(&[side.lmr.triplet(0, 64)], i as u64, NONE).unwrap();
        }
        ep
    });
    let psp = Psp::builder(&rig.server.ia, &rig.server.cr).build().unwrap();
    let port = psp.port();
    let before = HELD.load(SeqCst);
    client
        .connect_with(
            (rig.server.ia.address(), port).into(),
            ConnectOptions::new().timeout(LONG).private_data(b""),
        )
        .unwrap();
    let arrival = connection_request(&rig.server.cr);
    let asked = HELD.load(SeqCst);
    assert!(asked + RECEIVES * BYTES <= before, "{before} bytes, then {asked}");
    arrival.cr.accept(&server, b"").unwrap();
    let accepted = HELD.load(SeqCst);
    assert!(accepted + RECEIVES * BYTES <= asked, "{asked} bytes, then {accepted}");
    expect_connection(&rig.client.connect, &client, ConnectionEventKind::Established);
    expect_connection(&rig.server.connect, &server, ConnectionEventKind::Established);
}

fn binds() {
    let surroundings = || {
        let rig = Rig::new();
        let pair = rig.connect_plain(&EpAttr::default());
        let rmr = Rmr::new(&rig.server.pz, RmrScope::Pz).unwrap();
        // Enough other contexts to fill the table.
        let others: Vec<_> = (0..111).map(|_| remote(&rig.server)).collect();
        (rmr, pair, others, rig)
    };
    with_each_failure(
        "a bind",
        surroundings,
        |(rmr, pair, _, rig)| {
            let lmr = &rig.server.lmr;
            let to = RmrBind {
                lmr,
                segment: lmr.triplet(0, 64),
                privileges: all_privileges(),
                va_type: VaType::Virtual,
            };
            rmr.bind(&mut pair.server, to, 3, NONE)
        },
        |(rmr, _, _, rig), context| {
            match next(&rig.server.request) {
                Event::Bound(bind) => assert_eq!(bind.status, DtoStatus::Success),
                other => panic!("not a bind: {other:?}"),
            }
            assert_eq!(rmr.query().unwrap().rmr_context, context);
        },
    );
}

fn pools() {
    let surroundings = || {
        let rig = Rig::new();
        let srq = rig.server.srq(400);
        (srq, rig)
    };
    with_each_failure(
        "a pool of receive buffers",
        surroundings,
        |(_, rig)| RecvPool::new(&rig.server.ia, &rig.server.pz, 300, 64),
        |(srq, rig), mut pool| {
            assert_eq!(pool.refill(srq).unwrap(), 300);
            let mut pair = rig.connect_srq(srq);
            rig.client.lmr.write(0, b"hello").unwrap();
            assert_eq!(rig.send(&mut pair, 0, 5).status, DtoStatus::Success);
            match pool.next_for(srq, &rig.server.recv, LONG).unwrap().expect("an event") {
                Received::Message(message) => assert_eq!(message[..], *b"hello"),
                other => panic!("no message: {other:?}"),
            }
        },
    );
    with_each_failure(
        "a pool of send buffers",
        one_side,
        |side| SendPool::new(&side.ia, &side.pz, 300, 64),
        |_, mut pool| drop(pool.take().unwrap()),
    );
}

fn datagrams() {
    let ud = || EpAttr { service_type: ServiceType::Ud, ..long(500) };
    with_each_failure(
        "an EP for datagrams",
        || {
            let side = one_side();
            drop(side.ep(&ud()));
            side
        },
        |side| Ep::builder(&side.ia, &side.pz).evds(side.evds()).attributes(&ud()).build(),
        |_, ep| ep.close().unwrap(),
    );
    let surroundings = || {
        let rig = Rig::new();
        let (mut server, client) = (rig.server.ep(&ud()), rig.client.ep(&ud()));
        server.post_recv(&[rig.server.lmr.triplet(0, 256)], 4, NONE).unwrap();
        let psp = Psp::builder(&rig.server.ia, &rig.server.cr).build().unwrap();
        let port = psp.port();
        (server, client, psp, port, rig)
    };
    with_each_failure(
        "a question for an address handle",
        surroundings,
        |(_, client, _, port, rig)| {
            client.connect_with(
                (rig.server.ia.address(), *port).into(),
                ConnectOptions::new().timeout(LONG).private_data(b""),
            )
        },
        |(server, client, _, _, rig), ()| {
            connection_request(&rig.server.cr).cr.accept(server, b"").unwrap();
            let to = match next(&rig.client.connect) {
                Event::Datagram(event) => match event.kind {
                    DatagramEventKind::Established { peer, .. } => peer,
                    other => panic!("no address handle: {other:?}"),
                },
                other => panic!("no address handle: {other:?}"),
            };
            client.send(&[rig.client.lmr.triplet(0, 64)]).datagram_to(&to).post().unwrap();
            assert_eq!(dto(&rig.client.request).status, DtoStatus::Success);
            let received = dto(&rig.server.recv);
            assert_eq!((received.cookie, received.status), (4, DtoStatus::Success));
            client.free_address_handle(&to).unwrap();
        },
    );
}
