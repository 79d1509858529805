//! Changes of EVDs, queues and attributes.

use crate::*;
use doorbell::{
    CompletionFlags, ConnectOptions, ConnectionEventKind, DtoStatus, Ep, EpAttr, EpChange, EpState, Evd,
    EvdFlags, Lmr, ReturnType, RmrTriplet,
};
use doorbell_hw_tests::rig::*;
use doorbell_hw_tests::{Pair, Rig, Test, dat, tests};

pub(crate) const TESTS: &[Test] = tests![
    no_evd_instead_of_one_and_back,
    streams_of_an_ep_move_one_by_one,
    deeper_queues_hold_more,
    more_segments_fit,
    smaller_queues_stay_as_they_are,
    reads_work_once_allowed,
    flags_that_requests_may_always_carry_change_nothing,
    flags_change_for_one_ep_alone,
    attributes_of_an_srq_ep_are_told_back_exactly,
    an_srq_ep_moves_with_its_srq,
    a_reserved_ep_is_changed_and_then_accepts,
    an_ep_with_a_request_is_changed_and_then_accepts,
    watermarks_go_with_a_new_queue,
    the_context_and_the_name_stay,
    sizes_out_of_range_are_refused_and_change_nothing,
    evds_that_cannot_be_are_refused,
];

fn no_evd_instead_of_one_and_back() {
    let rig = Rig::new();
    let side = &rig.server;
    let mut ep = side.ep(&EpAttr::default());
    let none = EpChange { recv: Some(None), request: Some(None), connect: Some(None), ..change() };
    ep.modify(none).unwrap();
    for evd in [&side.recv, &side.request, &side.connect] {
        evd.clone().close().unwrap();
    }
    let (recv, connect_evd) = (evd(side, EvdFlags::DTO), evd(side, EvdFlags::CONNECTION));
    ep.modify(EpChange { recv: Some(Some(&recv)), connect: Some(Some(&connect_evd)), ..change() }).unwrap();
    ep.post_recv(&buffer(side), 5, NONE).unwrap();
    let mut pair = connect(&rig, ep, &connect_evd);
    assert_eq!(rig.send(&mut pair, 0, 8).status, DtoStatus::Success);
    assert_eq!(dto(&recv).cookie, 5);
}

fn streams_of_an_ep_move_one_by_one() {
    let side = one_side();
    let flags = EvdFlags::DTO | EvdFlags::CONNECTION;
    let (one, other) = (evd(&side, flags), evd(&side, flags));
    let evds = doorbell::inside::EpEvds { recv: Some(&one), request: Some(&one), connect: Some(&one) };
    let mut ep = Ep::builder(&side.ia, &side.pz).evds(evds).build().unwrap();
    let in_use = |evd: &Evd| evd.clone().close().is_err();
    ep.modify(EpChange { recv: Some(Some(&other)), ..change() }).unwrap();
    assert!(in_use(&one) && in_use(&other));
    ep.modify(EpChange { request: Some(Some(&other)), ..change() }).unwrap();
    assert!(in_use(&one) && in_use(&other));
    ep.modify(EpChange { connect: Some(Some(&other)), ..change() }).unwrap();
    assert!(!in_use(&one) && in_use(&other));
    ep.close().unwrap();
    assert!(!in_use(&other));
}

fn deeper_queues_hold_more() {
    let rig = Rig::new();
    let side = &rig.server;
    let mut ep = side.ep(&EpAttr { recv_depth: 4, request_depth: 4, ..EpAttr::default() });
    ep.modify(EpChange { recv_depth: Some(150), request_depth: Some(120), ..change() }).unwrap();
    let is = ep.query().unwrap().attr;
    assert!(is.recv_depth >= 150 && is.request_depth >= 120, "{is:?}");
    for i in 0..150 {
        ep.post_recv(&buffer(side), i, NONE).unwrap();
    }
    let mut pair = connect(&rig, ep, &side.connect);
    for i in 0..150 {
        assert_eq!(rig.deliver(&mut pair, 8).cookie, i);
    }
    for i in 0..120 {
        let nowhere = RmrTriplet::default();
        pair.server.write(&[]).to(nowhere).cookie(i).post().unwrap();
    }
    for i in 0..120 {
        let done = dto(&side.request);
        assert_eq!((done.cookie, done.status), (i, DtoStatus::Success));
    }
}

fn more_segments_fit() {
    let rig = Rig::new();
    let side = &rig.server;
    let most = side.ia.attributes().max_segments;
    let mut ep = side.ep(&EpAttr { recv_segments: 1, request_segments: 1, ..EpAttr::default() });
    ep.modify(EpChange { recv_segments: Some(most), request_segments: Some(most), ..change() }).unwrap();
    let is = ep.query().unwrap().attr;
    assert!(is.recv_segments >= most && is.request_segments >= most, "{is:?}");
    let pieces: Vec<_> = (0..most as usize).map(|i| side.lmr.triplet(4096 + 100 * i, 3)).collect();
    ep.post_recv(&pieces, 5, NONE).unwrap();
    let mut pair = connect(&rig, ep, &side.connect);
    let len = 3 * most as usize;
    assert_eq!(rig.deliver(&mut pair, len).length as usize, len);
    pair.client.post_recv(&[rig.client.lmr.triplet(0, 4096)], 0, NONE).unwrap();
    pair.server.send(&pieces).cookie(6).post().unwrap();
    assert_eq!(dto(&rig.client.recv).length as usize, len);
}

fn smaller_queues_stay_as_they_are() {
    let side = one_side();
    let mut ep = side.ep(&EpAttr { recv_depth: 64, request_depth: 64, ..EpAttr::default() });
    let before = ep.query().unwrap().attr;
    ep.modify(EpChange { recv_depth: Some(1), request_depth: Some(0), recv_segments: Some(1), ..change() })
        .unwrap();
    assert_eq!(ep.query().unwrap().attr, before);
    for i in 0..64 {
        ep.post_recv(&buffer(&side), i, NONE).unwrap();
    }
}

fn reads_work_once_allowed() {
    let rig = Rig::new();
    let side = &rig.server;
    let none = EpAttr { rdma_reads_in: 0, rdma_reads_out: 0, ..EpAttr::default() };
    let mut ep = side.ep(&none);
    ep.modify(EpChange { rdma_reads_in: Some(2), rdma_reads_out: Some(3), ..change() }).unwrap();
    let is = ep.query().unwrap().attr;
    assert_eq!((is.rdma_reads_in, is.rdma_reads_out), (2, 3));
    let mut pair = connect(&rig, ep, &side.connect);
    let there = |lmr: &Lmr| RmrTriplet {
        virtual_address: lmr.address(),
        segment_length: 16,
        rmr_context: lmr.rmr_context(),
    };
    pair.server.read(&[side.lmr.triplet(64, 16)]).from(there(&rig.client.lmr)).post().unwrap();
    assert_eq!(dto(&side.request).status, DtoStatus::Success);
    pair.client.read(&[rig.client.lmr.triplet(64, 16)]).from(there(&side.lmr)).post().unwrap();
    assert_eq!(dto(&rig.client.request).status, DtoStatus::Success);
}

/// SUPPRESS, SOLICITED_WAIT and BARRIER_FENCE as attributes of the request stream: stored and read
/// back, without other effect.
fn flags_that_requests_may_always_carry_change_nothing() {
    use CompletionFlags as F;
    let rig = Rig::new();
    let side = &rig.server;
    let always = F::SUPPRESS | F::SOLICITED_WAIT | F::BARRIER_FENCE;
    let with = |flags| EpAttr { request_completion_flags: flags, ..EpAttr::default() };
    let request = |flags| EpChange { request_completion_flags: Some(flags), ..change() };
    let (_neighbour, mut ep) = (side.ep(&EpAttr::default()), side.ep(&EpAttr::default()));
    for flags in [F::SUPPRESS, F::SOLICITED_WAIT, F::BARRIER_FENCE, always, always | F::EVD_THRESHOLD] {
        // It shares an EVD with other EPs' streams, whose mode has to be the same only in how it
        // notifies.
        let told = side.ep(&with(flags)).query().unwrap().attr;
        assert_eq!(told.request_completion_flags, flags);
        ep.modify(request(flags)).unwrap();
        assert_eq!(ep.query().unwrap().attr.request_completion_flags, flags);
        // A wait for more than one event is allowed.
        let wait = side.request.wait_threshold(2, Some(std::time::Duration::ZERO)).unwrap_err();
        assert_eq!(wait.error.return_type(), ReturnType::TimeoutExpired);
    }
    for flags in [F::UNSIGNALLED | F::SUPPRESS, F::UNSIGNALLED] {
        assert_eq!(
            code(Ep::builder(&side.ia, &side.pz).evds(side.evds()).attributes(&with(flags)).build()),
            dat::INVALID_ARG4
        );
        assert_eq!(code(ep.modify(request(flags))), dat::INVALID_ARG2);
    }
    for flags in [F::UNSIGNALLED | F::EVD_THRESHOLD, F::from_bits_retain(0x40) | F::SUPPRESS] {
        assert_eq!(
            code(Ep::builder(&side.ia, &side.pz).evds(side.evds()).attributes(&with(flags)).build()),
            dat::INVALID_ARG6
        );
        assert_eq!(code(ep.modify(request(flags))), dat::INVALID_ARG2);
    }
    // With another queue size, the flags stay.
    ep.modify(EpChange { request_depth: Some(999), ..request(F::SUPPRESS) }).unwrap();
    assert_eq!(ep.query().unwrap().attr.request_completion_flags, F::SUPPRESS);
    let Pair { mut server, mut client } = connect(&rig, ep, &side.connect);
    for flags in [NONE, F::SUPPRESS, NONE] {
        client.post_recv(&buffer(&rig.client), 0, NONE).unwrap();
        server.send(&[side.lmr.triplet(0, 8)]).cookie(u64::from(flags.bits())).flags(flags).post().unwrap();
        assert_eq!(dto(&rig.client.recv).status, DtoStatus::Success);
    }
    // Each request has its own flag SUPPRESS.
    assert_eq!((dto(&side.request).cookie, dto(&side.request).cookie), (0, 0));
    expect_nothing(&side.request);
    assert_eq!(code(server.send(&[]).flags(F::UNSIGNALLED).post()), dat::INVALID_ARG5);
    // And with UNSIGNALLED it may be unsignalled.
    let quiet = evd(side, EvdFlags::DTO);
    let evds = doorbell::inside::EpEvds { request: Some(&quiet), ..side.evds() };
    let unsignalled = with(F::UNSIGNALLED | F::SUPPRESS);
    let ep = Ep::builder(&side.ia, &side.pz).evds(evds).attributes(&unsignalled).build().unwrap();
    let Pair { mut server, mut client } = connect(&rig, ep, &side.connect);
    client.post_recv(&buffer(&rig.client), 0, NONE).unwrap();
    server.send(&[]).cookie(5).flags(F::UNSIGNALLED).post().unwrap();
    assert_eq!(dto(&rig.client.recv).status, DtoStatus::Success);
}

/// New flags are those of one EP's receives: the receives of others on the same EVD keep theirs, so
/// that an SRQ EP whose receives use the threshold is refused until all receives there do.
fn flags_change_for_one_ep_alone() {
    let side = one_side();
    let srq = side.srq(4);
    let shared = evd(&side, EvdFlags::DTO);
    let evds = doorbell::inside::EpEvds { recv: Some(&shared), ..side.evds() };
    let threshold = CompletionFlags::EVD_THRESHOLD;
    let join = || {
        let attr = EpAttr { recv_completion_flags: threshold, ..EpAttr::default() };
        Ep::builder(&side.ia, &side.pz).evds(evds).srq(&srq).attributes(&attr).build()
    };
    let new = || Ep::builder(&side.ia, &side.pz).evds(evds).build().unwrap();
    let (mut one, mut other) = (new(), new());
    for ep in [&mut one, &mut other] {
        assert_eq!(code(join()), dat::INVALID_ARG3);
        ep.modify(EpChange { recv_completion_flags: Some(threshold), ..change() }).unwrap();
    }
    join().unwrap();
}

fn attributes_of_an_srq_ep_are_told_back_exactly() {
    let side = one_side();
    let srq = side.srq(4);
    let mut ep = side.srq_ep(&srq, &EpAttr::default());
    ep.modify(EpChange { recv_depth: Some(100_000), recv_segments: Some(7), ..change() }).unwrap();
    let is = ep.query().unwrap().attr;
    assert_eq!((is.recv_depth, is.recv_segments), (100_000, 7));
}

fn an_srq_ep_moves_with_its_srq() {
    let rig = Rig::new();
    let side = &rig.server;
    let mut srq = side.srq(8);
    let (other, request) = (evd(side, EvdFlags::DTO), evd(side, EvdFlags::DTO));
    let stays = rig.connect_srq(&srq);
    let mut ep = side.srq_ep(&srq, &EpAttr::default());
    let moved = EpChange {
        recv: Some(Some(&other)),
        request: Some(Some(&request)),
        request_depth: Some(99),
        ..change()
    };
    ep.modify(moved).unwrap();
    assert_eq!(ep.query().unwrap().srq, Some(srq.id()));
    let mut pair = connect(&rig, ep, &side.connect);
    side.post(&mut srq, 2, 64, 0, 20);
    assert_eq!(rig.send(&mut pair, 0, 8).status, DtoStatus::Success);
    let received = dto(&other);
    assert_eq!((received.cookie, received.ep), (20, pair.server.id()));
    let mut stays = stays;
    assert_eq!(rig.deliver(&mut stays, 8).cookie, 21);
    assert_eq!(counts(&srq), (0, 0));
    assert!(srq.close().is_err());
    let Pair { server, .. } = pair;
    server.close().unwrap();
    other.close().unwrap();
}

fn a_reserved_ep_is_changed_and_then_accepts() {
    let rig = Rig::new();
    let side = &rig.server;
    let (recv, connect) = (evd(side, EvdFlags::DTO), evd(side, EvdFlags::CONNECTION));
    let mut ep = side.ep(&EpAttr::default());
    let (rsp, port) = side.reserve(&ep);
    ep.modify(EpChange {
        recv: Some(Some(&recv)),
        connect: Some(Some(&connect)),
        recv_depth: Some(100),
        ..change()
    })
    .unwrap();
    assert_eq!(ep.state(), EpState::Reserved);
    for i in 0..100 {
        ep.post_recv(&buffer(side), i, NONE).unwrap();
    }
    let client = rig.client.ep(&EpAttr::default());
    client.connect_with((side.ia.address(), port).into(), ConnectOptions::new().timeout(LONG)).unwrap();
    connection_request(&side.cr).cr.accept_reserved(&[]).unwrap();
    expect_connection(&rig.client.connect, &client, ConnectionEventKind::Established);
    expect_connection(&connect, &ep, ConnectionEventKind::Established);
    assert_eq!(ep.state(), EpState::Connected);
    let mut pair = Pair { server: ep, client };
    rig.send(&mut pair, 0, 8);
    assert_eq!(dto(&recv).cookie, 0);
    rsp.close().unwrap();
}

fn an_ep_with_a_request_is_changed_and_then_accepts() {
    let rig = Rig::new();
    let side = &rig.server;
    let request = evd(side, EvdFlags::DTO);
    for accepts in [true, false] {
        let mut ep = side.ep(&EpAttr::default());
        let (_rsp, port) = side.reserve(&ep);
        let client = rig.client.ep(&EpAttr::default());
        client.connect_with((side.ia.address(), port).into(), ConnectOptions::new().timeout(LONG)).unwrap();
        let arrival = connection_request(&side.cr);
        assert_eq!(ep.state(), EpState::PassiveConnectionPending);
        ep.modify(EpChange { request: Some(Some(&request)), request_depth: Some(100), ..change() }).unwrap();
        assert_eq!(ep.state(), EpState::PassiveConnectionPending);
        if !accepts {
            arrival.cr.reject(&[]).unwrap();
            assert_eq!(ep.state(), EpState::Unconnected);
            expect_connection(&rig.client.connect, &client, ConnectionEventKind::PeerRejected);
            continue;
        }
        arrival.cr.accept_reserved(&[]).unwrap();
        expect_connection(&rig.client.connect, &client, ConnectionEventKind::Established);
        expect_connection(&side.connect, &ep, ConnectionEventKind::Established);
        ep.write(&[]).to(RmrTriplet::default()).cookie(9).post().unwrap();
        assert_eq!(dto(&request).cookie, 9);
    }
}

fn watermarks_go_with_a_new_queue() {
    let side = one_side();
    let mut ep = side.ep(&EpAttr::default());
    ep.set_watermark(Some(1), None).unwrap();
    ep.modify(EpChange { recv_depth: Some(500), ..change() }).unwrap();
    ep.post_recv(&buffer(&side), 0, NONE).unwrap();
    expect_nothing(side.ia.async_evd());
    ep.post_recv(&buffer(&side), 0, NONE).unwrap();
    let event = asynchronous(&side.ia);
    assert_eq!(event.object, doorbell::AsyncObject::Ep(ep.id()));
}

fn the_context_and_the_name_stay() {
    let rig = Rig::new();
    let mut ep = rig.server.ep(&EpAttr::default());
    ep.set_context(4711);
    let id = ep.id();
    ep.modify(EpChange { recv_depth: Some(500), ..change() }).unwrap();
    assert_eq!(ep.id(), id);
    ep.post_recv(&buffer(&rig.server), 0, NONE).unwrap();
    let mut pair = connect(&rig, ep, &rig.server.connect);
    let received = rig.deliver(&mut pair, 8);
    assert_eq!((received.ep, received.ep_context), (id, 4711));
}

fn sizes_out_of_range_are_refused_and_change_nothing() {
    let side = one_side();
    let other = evd(&side, EvdFlags::DTO);
    let mut ep = side.ep(&EpAttr::default());
    let before = ep.query().unwrap().attr;
    let a = side.ia.attributes().clone();
    let with = |f: fn(&mut EpChange<'_>, Option<u32>), value| {
        let mut to = EpChange { recv: Some(Some(&other)), max_message_size: Some(1), ..change() };
        f(&mut to, Some(value));
        to
    };
    type Set = fn(&mut EpChange<'_>, Option<u32>);
    let limits: [(Set, u32); 8] = [
        (|c, v| c.recv_depth = v, a.max_ep_depth),
        (|c, v| c.request_depth = v, a.max_ep_depth),
        (|c, v| c.recv_segments = v, a.max_segments),
        (|c, v| c.request_segments = v, a.max_segments),
        (|c, v| c.rdma_reads_in = v, a.max_rdma_reads_in),
        (|c, v| c.rdma_reads_out = v, a.max_rdma_reads_out),
        (|c, v| c.rdma_read_segments = v, a.max_read_segments),
        (|c, v| c.rdma_write_segments = v, a.max_write_segments),
    ];
    for (set, most) in limits {
        assert_eq!(code(ep.modify(with(set, most + 1))), dat::INVALID_ARG3);
        assert_eq!(code(ep.modify(with(set, u32::MAX))), dat::INVALID_ARG3);
    }
    assert_eq!(ep.query().unwrap().attr, before);
    other.close().unwrap();
    assert_eq!(code(side.recv.close()), dat::INVALID_STATE_EVD_IN_USE);
}

fn evds_that_cannot_be_are_refused() {
    let side = one_side();
    let mut ep = side.ep(&EpAttr::default());
    let freed = evd(&side, EvdFlags::DTO);
    freed.clone().close().unwrap();
    for (wrong, sub) in [(&side.connect, 0x16), (&freed, 0x16)] {
        assert_eq!(
            code(ep.modify(EpChange { recv: Some(Some(wrong)), ..change() })),
            dat::INVALID_HANDLE + sub
        );
    }
    assert_eq!(
        code(ep.modify(EpChange { request: Some(Some(&side.cr)), ..change() })),
        dat::INVALID_HANDLE_EVD_REQUEST
    );
    assert_eq!(
        code(ep.modify(EpChange { connect: Some(Some(&side.recv)), ..change() })),
        dat::INVALID_HANDLE_EVD_CONN
    );
    // An EVD whose other streams have another mode.
    let unsignalled = evd(&side, EvdFlags::DTO);
    let evds = doorbell::inside::EpEvds { recv: Some(&unsignalled), ..Default::default() };
    let attr = EpAttr { recv_completion_flags: CompletionFlags::UNSIGNALLED, ..EpAttr::default() };
    let _other = Ep::builder(&side.ia, &side.pz).evds(evds).attributes(&attr).build().unwrap();
    assert_eq!(code(ep.modify(EpChange { recv: Some(Some(&unsignalled)), ..change() })), dat::INVALID_ARG2);
    // Together with the mode, the change is accepted.
    ep.modify(EpChange {
        recv: Some(Some(&unsignalled)),
        recv_completion_flags: Some(CompletionFlags::UNSIGNALLED),
        ..change()
    })
    .unwrap();
}
