//! Posted receives, which go over to the new queue.

use crate::*;
use doorbell::{
    CompletionFlags, ConnectOptions, ConnectionEventKind, DtoStatus, Ep, EpAttr, EpChange, EpState, Evd,
    EvdFlags, Lmr, LmrTriplet, Pz,
};
use doorbell_hw_tests::rig::*;
use doorbell_hw_tests::{Pair, Rig, Side, Test, dat, tests};

pub(crate) const TESTS: &[Test] = tests![
    posted_receives_go_over_to_another_queue,
    receives_of_several_segments_and_of_none_go_over,
    receives_of_another_pz_fail_when_taken,
    a_queue_too_small_for_posted_receives_is_refused,
    a_reserved_ep_takes_its_receives_along,
    receives_outlive_a_request_whose_peer_gave_up,
];

/// Posts one receive for each cookie of `cookies`, to a place of its own.
#[track_caller]
fn post_at_cookies(side: &Side, ep: &mut Ep, cookies: std::ops::Range<u64>) {
    for cookie in cookies {
        ep.post_recv(&[side.lmr.triplet(cookie as usize * 64, 64)], cookie, NONE).unwrap();
    }
}

/// Sends as many messages as there are cookies: each arrives in the receive that was posted next,
/// and nowhere else.
#[track_caller]
fn arrive_in_order(rig: &Rig, pair: &mut Pair, recv: &Evd, cookies: std::ops::Range<u64>) {
    let side = &rig.server;
    for cookie in cookies {
        let text = (cookie + 1).to_be_bytes();
        rig.client.lmr.write(0, &text).unwrap();
        assert_eq!(rig.send(pair, 0, 8).status, DtoStatus::Success);
        let got = dto(recv);
        assert_eq!((got.cookie, got.status, got.ep), (cookie, DtoStatus::Success, pair.server.id()));
        let mut there = [0; 8];
        side.lmr.read(cookie as usize * 64, &mut there).unwrap();
        assert_eq!(there, text);
        assert_eq!(pair.server.recv_query().unwrap().buffers, Some(5 - 1 - cookie as u32));
    }
}

fn posted_receives_go_over_to_another_queue() {
    let rig = Rig::new();
    let side = &rig.server;
    let (recv, request) = (evd(side, EvdFlags::DTO), evd(side, EvdFlags::DTO));
    let room = side.ep(&EpAttr::default()).query().unwrap().attr;
    let more_segments = (room.recv_segments + 1).min(side.ia.attributes().max_segments);
    let changes = [
        (EpChange { recv: Some(Some(&recv)), ..change() }, &recv),
        (EpChange { request: Some(Some(&request)), ..change() }, &side.recv),
        (EpChange { recv_depth: Some(room.recv_depth + 1), ..change() }, &side.recv),
        (EpChange { recv_segments: Some(more_segments), ..change() }, &side.recv),
        (EpChange { request_depth: Some(room.request_depth + 1), ..change() }, &side.recv),
        // Smaller queues that hold the posted receives.
        (
            EpChange { recv: Some(Some(&recv)), recv_depth: Some(3), recv_segments: Some(1), ..change() },
            &recv,
        ),
        (EpChange { recv_depth: Some(3), max_rdma_size: Some(1), ..change() }, &side.recv),
    ];
    for (to, recv) in changes {
        let mut ep = side.ep(&EpAttr::default());
        post_at_cookies(side, &mut ep, 0..3);
        ep.modify(to).unwrap();
        assert_eq!(ep.recv_query().unwrap().buffers, Some(3));
        // The same again, starting from the changed EP.
        ep.modify(EpChange { request_depth: Some(2000), ..change() }).unwrap();
        ep.modify(EpChange { recv_depth: Some(1000), ..change() }).unwrap();
        post_at_cookies(side, &mut ep, 3..5);
        let mut pair = connect(&rig, ep, &side.connect);
        arrive_in_order(&rig, &mut pair, recv, 0..5);
        assert!(recv.dequeue().unwrap().is_none());
        rig.disconnect(&pair);
    }
}

fn receives_of_several_segments_and_of_none_go_over() {
    let rig = Rig::new();
    let side = &rig.server;
    let mut ep = side.ep(&EpAttr { recv_segments: 3, ..EpAttr::default() });
    let piece = |at| side.lmr.triplet(at, 4);
    ep.post_recv(&[piece(0), piece(64), piece(128)], 0, NONE).unwrap();
    ep.post_recv(&[], 1, NONE).unwrap();
    ep.post_recv(&[piece(192), LmrTriplet::default(), piece(256)], 2, NONE).unwrap();
    ep.modify(EpChange { recv_depth: Some(1000), ..change() }).unwrap();
    let mut pair = connect(&rig, ep, &side.connect);
    rig.client.lmr.write(0, b"abcdefghijkl").unwrap();
    for (cookie, len, places) in [
        (0, 12, vec![(0, *b"abcd"), (64, *b"efgh"), (128, *b"ijkl")]),
        (1, 0, vec![]),
        (2, 8, vec![(256, *b"efgh")]),
    ] {
        let got = rig.deliver(&mut pair, len);
        assert_eq!((got.cookie, got.length as usize), (cookie, len));
        for (at, text) in places {
            let mut there = [0; 4];
            side.lmr.read(at, &mut there).unwrap();
            assert_eq!(there, text);
        }
    }
}

/// A receive posted in the old PZ fails when a message takes it; a receive without segments does
/// not.
fn receives_of_another_pz_fail_when_taken() {
    let rig = Rig::new();
    let side = &rig.server;
    let pz = Pz::new(&side.ia).unwrap();
    let lmr = Lmr::builder(&side.ia, &pz).privileges(all_privileges()).allocate(4096).unwrap();
    let mut ep = side.ep(&EpAttr::default());
    ep.post_recv(&[], 0, NONE).unwrap();
    ep.post_recv(&buffer(side), 1, NONE).unwrap();
    ep.modify(EpChange { pz: Some(&pz), ..change() }).unwrap();
    ep.post_recv(&[lmr.triplet(0, 64)], 2, NONE).unwrap();
    assert_eq!(code(ep.post_recv(&buffer(side), 3, NONE)), dat::PROTECTION_WRITE);
    let mut pair = connect(&rig, ep, &side.connect);
    assert_eq!(rig.deliver(&mut pair, 0).cookie, 0);
    pair.client.send(&[rig.client.lmr.triplet(0, 8)]).post().unwrap();
    let failed = dto(&side.recv);
    assert_eq!((failed.cookie, failed.status), (1, DtoStatus::LocalProtection));
    let flushed = dto(&side.recv);
    assert_eq!((flushed.cookie, flushed.status), (2, DtoStatus::Flushed));
    // Back in the PZ that it was posted in, it works.
    let mut ep = side.ep(&EpAttr::default());
    ep.post_recv(&buffer(side), 4, NONE).unwrap();
    ep.modify(EpChange { pz: Some(&pz), ..change() }).unwrap();
    ep.modify(EpChange { pz: Some(&side.pz), ..change() }).unwrap();
    expect_connection(&side.connect, &pair.server, ConnectionEventKind::Broken);
    expect_connection(&rig.client.connect, &pair.client, ConnectionEventKind::Broken);
    dto(&rig.client.request);
    let mut pair = connect(&rig, ep, &side.connect);
    assert_eq!(rig.deliver(&mut pair, 8).cookie, 4);
}

fn a_queue_too_small_for_posted_receives_is_refused() {
    let rig = Rig::new();
    let side = &rig.server;
    let other = evd(side, EvdFlags::DTO);
    let mut ep = side.ep(&EpAttr { recv_segments: 2, ..EpAttr::default() });
    let before = ep.query().unwrap().attr;
    post_at_cookies(side, &mut ep, 0..5);
    for to in [
        EpChange { recv_depth: Some(4), ..change() },
        EpChange { recv_depth: Some(0), recv: Some(Some(&other)), ..change() },
        EpChange { recv_segments: Some(0), recv_depth: Some(1000), ..change() },
        EpChange { recv_completion_flags: Some(CompletionFlags::EVD_THRESHOLD), ..change() },
    ] {
        assert_eq!(code(ep.modify(to)), dat::INVALID_STATE_EP_UNCONNECTED);
    }
    assert_eq!(ep.query().unwrap().attr, before);
    other.close().unwrap();
    // Setting a value that the EP has already is no change.
    ep.modify(EpChange {
        recv_completion_flags: Some(NONE),
        recv_depth: Some(5),
        recv_segments: Some(1),
        ..change()
    })
    .unwrap();
    let mut pair = connect(&rig, ep, &side.connect);
    arrive_in_order(&rig, &mut pair, &side.recv, 0..5);
}

fn a_reserved_ep_takes_its_receives_along() {
    let rig = Rig::new();
    let side = &rig.server;
    let recv = evd(side, EvdFlags::DTO);
    let mut ep = side.ep(&EpAttr::default());
    post_at_cookies(side, &mut ep, 0..1);
    let (_rsp, port) = side.reserve(&ep);
    post_at_cookies(side, &mut ep, 1..2);
    ep.modify(EpChange { recv: Some(Some(&recv)), ..change() }).unwrap();
    post_at_cookies(side, &mut ep, 2..3);
    let client = rig.client.ep(&EpAttr::default());
    client.connect_with((side.ia.address(), port).into(), ConnectOptions::new().timeout(LONG)).unwrap();
    let arrival = connection_request(&side.cr);
    post_at_cookies(side, &mut ep, 3..4);
    ep.modify(EpChange { recv_depth: Some(1000), ..change() }).unwrap();
    post_at_cookies(side, &mut ep, 4..5);
    arrival.cr.accept_reserved(&[]).unwrap();
    expect_connection(&rig.client.connect, &client, ConnectionEventKind::Established);
    expect_connection(&side.connect, &ep, ConnectionEventKind::Established);
    arrive_in_order(&rig, &mut Pair { server: ep, client }, &recv, 0..5);
}

/// The accept finds that the request has been withdrawn, after the EP's QP was moved.
fn receives_outlive_a_request_whose_peer_gave_up() {
    let rig = Rig::new();
    let side = &rig.server;
    let mut ep = side.ep(&EpAttr::default());
    post_at_cookies(side, &mut ep, 0..3);
    let psp = doorbell::Psp::builder(&side.ia, &side.cr).build().unwrap();
    let port = psp.port();
    let ask = |client: &Ep| {
        client.connect_with((side.ia.address(), port).into(), ConnectOptions::new().timeout(LONG)).unwrap();
        connection_request(&side.cr).cr
    };
    for _ in 0..2 {
        let client = rig.client.ep(&EpAttr::default());
        let cr = ask(&client);
        client.close().unwrap();
        // A request that arrives after the disconnect.
        let later = rig.client.ep(&EpAttr::default());
        ask(&later).reject(&[]).unwrap();
        expect_connection(&rig.client.connect, &later, ConnectionEventKind::PeerRejected);
        assert_eq!(code(cr.accept(&ep, &[])), dat::ABORT);
        assert_eq!((ep.state(), ep.recv_query().unwrap().buffers), (EpState::Unconnected, Some(3)));
    }
    post_at_cookies(side, &mut ep, 3..5);
    let client = rig.client.ep(&EpAttr::default());
    ask(&client).accept(&ep, &[]).unwrap();
    expect_connection(&rig.client.connect, &client, ConnectionEventKind::Established);
    expect_connection(&side.connect, &ep, ConnectionEventKind::Established);
    arrive_in_order(&rig, &mut Pair { server: ep, client }, &side.recv, 0..5);
}
