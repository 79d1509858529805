//! Creating an EP on an SRQ: arguments, attributes, and the EVDs that it may share.

use crate::*;
use doorbell::{
    AsyncKind, AsyncObject, CloseFlags, CompletionFlags, ConnectionEventKind, Count, DtoStatus, Ep, EpAttr,
    EpChange, EpEvds, EpState, EvdFlags, Pz, Qos, RetryAttr, ServiceType, Srq, SrqAttr, reason,
};
use doorbell_hw_tests::rig::*;
use doorbell_hw_tests::{Pair, Rig, Test, dat, tests};

pub(crate) const TESTS: &[Test] = tests![
    r127_epsrq_starts_unconnected,
    r130_epsrq_null_or_bad_srq,
    r134_epsrq_null_evds_allowed,
    r135_epsrq_pz_differs_supported_or_not,
    r139_epsrq_request_limits_at_least,
    r141_epsrq_max_recv_iov_ignored,
    r143_epsrq_unsatisfiable_attribute,
    r146_epsrq_failure_does_not_attach,
    r147_epsrq_srq_soft_hw_initial,
    r148_epsrq_recv_flags_allowed,
    r149_epsrq_share_unsignalled,
    r150_epsrq_share_solicited,
    r151_epsrq_share_threshold,
    r152_epsrq_mixed_evd_needs_threshold,
];

/// A new EP is unconnected and names its SRQ; one without SRQ names none. A query works before the
/// EP was connected. Also R159.
fn r127_epsrq_starts_unconnected() {
    let side = one_side();
    let (srq, other) = (side.srq(4), side.srq(4));
    let ep = side.srq_ep(&srq, &EpAttr::default());
    let param = ep.query().unwrap();
    assert_eq!((param.state, param.srq), (EpState::Unconnected, Some(srq.id())));
    assert_eq!(ep.state(), EpState::Unconnected);
    assert_eq!(side.srq_ep(&other, &EpAttr::default()).query().unwrap().srq, Some(other.id()));
    let plain = side.ep(&EpAttr::default()).query().unwrap();
    assert_eq!((plain.state, plain.srq), (EpState::Unconnected, None));
}

/// An SRQ or PZ of another IA, and an EVD that is freed, of another IA or without the stream, are
/// bad handles, each with the subtype of its place (R130, R132, R133).
fn r130_epsrq_null_or_bad_srq() {
    let Rig { server, client } = Rig::new();
    let (srq, foreign) = (server.srq(4), client.srq(4));
    let attr = EpAttr::default();
    let create = |pz: &Pz, evds: EpEvds<'_>, srq: &Srq| {
        let created = Ep::create_with_srq(&server.ia, pz, evds, srq, &attr);
        code(created)
    };
    assert_eq!(create(&server.pz, server.evds(), &foreign), dat::INVALID_HANDLE_SRQ, "SRQ");
    assert_eq!(create(&client.pz, server.evds(), &srq), dat::INVALID_HANDLE_PZ, "PZ");
    let freed = server.evd(EvdFlags::DTO | EvdFlags::CONNECTION);
    freed.free().unwrap();
    let bad = [&client.recv, &freed];
    for evd in bad.into_iter().chain([&server.connect]) {
        assert_eq!(
            create(&server.pz, EpEvds { recv: Some(evd), ..server.evds() }, &srq),
            dat::INVALID_HANDLE_EVD_RECV,
            "EVD_RECV"
        );
        assert_eq!(
            create(&server.pz, EpEvds { request: Some(evd), ..server.evds() }, &srq),
            dat::INVALID_HANDLE_EVD_REQUEST,
            "EVD_REQUEST"
        );
    }
    for evd in [&client.connect, &freed, &server.recv] {
        assert_eq!(
            create(&server.pz, EpEvds { connect: Some(evd), ..server.evds() }, &srq),
            dat::INVALID_HANDLE_EVD_CONN,
            "EVD_CONN"
        );
    }
    srq.free().unwrap();
}

/// Each of the three EVDs may be missing, and all of them: connecting, messages both ways and the
/// end work without events.
fn r134_epsrq_null_evds_allowed() {
    let rig = Rig::new();
    let mut srq = rig.server.srq(4);
    let (ia, pz, attr) = (&rig.server.ia, &rig.server.pz, EpAttr::default());
    for evds in [
        EpEvds { recv: None, ..rig.server.evds() },
        EpEvds { request: None, ..rig.server.evds() },
        EpEvds { connect: None, ..rig.server.evds() },
    ] {
        assert_eq!(Ep::create_with_srq(ia, pz, evds, &srq, &attr).unwrap().state(), EpState::Unconnected);
    }
    let server = Ep::create_with_srq(ia, pz, EpEvds::default(), &srq, &attr).unwrap();
    let client = rig.client.ep(&attr);
    let (_psp, arrival) = rig.ask(&client);
    arrival.cr.accept(&server, &[]).unwrap();
    expect_connection(&rig.client.connect, &client, ConnectionEventKind::Established);
    until("the server's end is up", || server.state() == EpState::Connected);
    let mut pair = Pair { server, client };
    rig.server.post(&mut srq, 1, 64, 0, 0);
    assert_eq!(rig.send(&mut pair, 0, 8).status, DtoStatus::Success);
    let receive = [rig.client.lmr.triplet(4096, 64)];
    pair.client.post_recv(&receive, 5, NONE).unwrap();
    pair.server.post_send(&[rig.server.lmr.triplet(0, 8)], 6, NONE).unwrap();
    assert_eq!(dto(&rig.client.recv).cookie, 5);
    pair.client.disconnect(CloseFlags::Abrupt).unwrap();
    until("the server's end is down", || pair.server.state() == EpState::Disconnected);
    for evd in [&rig.server.recv, &rig.server.request, &rig.server.connect] {
        expect_nothing(evd);
    }
}

/// Where the device keeps the PZs of EP and SRQ apart, receive buffers are checked against the
/// SRQ's alone and requests against the EP's; where it cannot, an EP of another PZ than its SRQ is
/// refused, by creation and by modify (R135 to R138). Also R164.
fn r135_epsrq_pz_differs_supported_or_not() {
    let rig = Rig::new();
    let (side, attr) = (&rig.server, EpAttr::default());
    let other = Pz::create(&side.ia).unwrap();
    let mut srq = side.srq(4);
    let created = Ep::create_with_srq(&side.ia, &other, side.evds(), &srq, &attr);
    if !side.ia.provider_attributes().srq_ep_pz_difference_supported {
        assert_eq!(code(created), dat::INVALID_ARG2);
        let mut ep = side.srq_ep(&srq, &attr);
        assert_eq!(code(ep.modify(EpChange { pz: Some(&other), ..EpChange::default() })), dat::INVALID_ARG2);
        // Setting the same PZ is allowed and changes nothing.
        ep.modify(EpChange { pz: Some(&side.pz), ..EpChange::default() }).unwrap();
        other.free().unwrap();
        let mut pair = rig.connect(ep, rig.client.ep(&attr));
        side.post(&mut srq, 1, 64, 0, 3);
        assert_eq!(rig.deliver(&mut pair, 8).cookie, 3);
        return;
    }
    let mut pair = rig.connect(created.unwrap(), rig.client.ep(&attr));
    side.post(&mut srq, 1, 64, 0, 3);
    assert_eq!(rig.deliver(&mut pair, 8).cookie, 3);
    let of_srq = [side.lmr.triplet(0, 8)];
    assert_eq!(code(pair.server.post_send(&of_srq, 0, NONE)), dat::PROTECTION_READ);
    let own = doorbell::Lmr::create(&side.ia, &other, 4096, all_privileges()).unwrap();
    pair.client.post_recv(&[rig.client.lmr.triplet(4096, 64)], 0, NONE).unwrap();
    pair.server.post_send(&[own.triplet(0, 8)], 0, NONE).unwrap();
    assert_eq!(dto(&side.request).status, DtoStatus::Success);
}

/// Request sizes are at least what was asked and the query shows the real ones, which hold; all
/// other attributes read back as asked, before and after connecting. Also R140, R155.
fn r139_epsrq_request_limits_at_least() {
    let rig = Rig::new();
    let srq = rig.server.srq(4);
    let asked = EpAttr {
        service_type: ServiceType::Rc,
        max_message_size: 12_345,
        max_rdma_size: 54_321,
        qos: Qos::LowLatency,
        recv_completion_flags: NONE,
        request_completion_flags: CompletionFlags::EVD_THRESHOLD,
        max_recv_dtos: 7,
        max_request_dtos: 5,
        max_recv_iov: 3,
        max_request_iov: 2,
        max_rdma_read_in: 3,
        max_rdma_read_out: 2,
        srq_soft_hw: 9,
        max_rdma_read_iov: 1,
        max_rdma_write_iov: 2,
        retry: RetryAttr { retry_count: Some(3), ..RetryAttr::default() },
        max_inline: 20,
    };
    let ep = rig.server.srq_ep(&srq, &asked);
    let real = ep.query().unwrap().attr;
    assert!(real.max_request_dtos >= 5 && real.max_request_iov >= 2, "{real:?}");
    let but_sizes = EpAttr {
        max_request_dtos: real.max_request_dtos,
        max_request_iov: real.max_request_iov,
        max_inline: real.max_inline,
        ..asked.clone()
    };
    assert_eq!(real, but_sizes);
    let mut pair = rig.connect(ep, rig.client.ep(&EpAttr::default()));
    assert_eq!(pair.server.query().unwrap().attr, real);
    // The real sizes hold: so many requests, and no more.
    for cookie in 0..real.max_request_dtos {
        pair.client.post_recv(&[rig.client.lmr.triplet(0, 64)], 0, NONE).unwrap();
        pair.server.post_send(&[rig.server.lmr.triplet(0, 8)], cookie as u64, NONE).unwrap();
    }
    assert_eq!(code(pair.server.post_send(&[rig.server.lmr.triplet(0, 8)], 99, NONE)), dat::RESOURCE_CREDITS);
    let segments = vec![rig.server.lmr.triplet(0, 1); real.max_request_iov as usize + 1];
    for cookie in 0..real.max_request_dtos {
        assert_eq!(dto(&rig.server.request).cookie, cookie as u64);
    }
    pair.client.post_recv(&[rig.client.lmr.triplet(0, 64)], 0, NONE).unwrap();
    assert_eq!(code(pair.server.post_send(&segments, 0, NONE)), dat::INVALID_ARG2);
    pair.server.post_send(&segments[1..], 0, NONE).unwrap();
    assert_eq!(dto(&rig.server.request).status, DtoStatus::Success);
    rig.disconnect(&pair);
    assert_eq!(pair.server.query().unwrap().attr, real);
}

/// An SRQ EP stores and ignores the sizes of a receive queue: no segments or far too many, no
/// receives with a recv EVD and some without. Also R142.
fn r141_epsrq_max_recv_iov_ignored() {
    let rig = Rig::new();
    let attr = SrqAttr { max_recv_dtos: 4, max_recv_iov: 2, low_watermark: 0 };
    let mut srq = Srq::create(&rig.server.ia, &rig.server.pz, attr).unwrap();
    for max_recv_iov in [0, -1, Count::MAX] {
        let attr = EpAttr { max_recv_iov, ..EpAttr::default() };
        assert_eq!(rig.server.srq_ep(&srq, &attr).query().unwrap().attr.max_recv_iov, max_recv_iov);
    }
    let none = EpAttr { max_recv_dtos: 0, max_recv_iov: 0, ..EpAttr::default() };
    let some = EpAttr { max_recv_dtos: 1_000_000_000, ..EpAttr::default() };
    let without = ep_on(&rig.server, &srq, None, Some(&rig.server.request), &some).unwrap();
    assert_eq!(without.query().unwrap().attr.max_recv_dtos, 1_000_000_000);
    // The EP that was created with zero segments receives into buffers of two segments.
    let lmr = &rig.server.lmr;
    srq.post_recv(&[lmr.triplet(0, 4), lmr.triplet(64, 4)], 8).unwrap();
    let mut pair = rig.connect(rig.server.srq_ep(&srq, &none), rig.client.ep(&EpAttr::default()));
    let got = rig.deliver(&mut pair, 8);
    assert_eq!((got.status, got.cookie, got.length), (DtoStatus::Success, 8, 8));
}

/// An attribute that cannot be met fails the call. RDMA Read segments without outgoing Reads are
/// allowed (R143, R144).
fn r143_epsrq_unsatisfiable_attribute() {
    let side = one_side();
    let srq = side.srq(4);
    let ia = side.ia.attributes();
    let ok = EpAttr::default();
    for attr in [
        EpAttr { max_rdma_read_iov: ia.max_iov_segments_per_rdma_read + 1, ..ok.clone() },
        EpAttr { max_rdma_write_iov: ia.max_iov_segments_per_rdma_write + 1, ..ok.clone() },
        EpAttr { max_request_iov: ia.max_iov_segments_per_dto + 1, ..ok.clone() },
        EpAttr { max_request_dtos: ia.max_dto_per_ep + 1, ..ok.clone() },
        EpAttr { max_rdma_read_in: ia.max_rdma_read_per_ep_in + 1, ..ok.clone() },
        EpAttr { max_rdma_read_out: ia.max_rdma_read_per_ep_out + 1, ..ok.clone() },
        EpAttr { max_request_dtos: -1, ..ok.clone() },
        EpAttr { max_rdma_read_out: -1, ..ok.clone() },
        EpAttr { srq_soft_hw: -2, ..ok.clone() },
    ] {
        assert_eq!(
            code(Ep::create_with_srq(&side.ia, &side.pz, side.evds(), &srq, &attr)),
            dat::INVALID_ARG7,
            "{attr:?}"
        );
    }
    let mismatch = EpAttr { max_rdma_read_iov: 1, max_rdma_read_out: 0, ..ok };
    assert_eq!(side.srq_ep(&srq, &mismatch).query().unwrap().attr.max_rdma_read_out, 0);
}

/// After refused creations SRQ, EVDs and PZ can be freed as if nothing had been asked.
fn r146_epsrq_failure_does_not_attach() {
    let side = one_side();
    let pz = Pz::create(&side.ia).unwrap();
    let srq = Srq::create(&side.ia, &pz, SrqAttr::depth(4)).unwrap();
    let evd = side.evd(EvdFlags::DTO | EvdFlags::CONNECTION);
    let no_dtos = side.evd(EvdFlags::CONNECTION);
    let evds = EpEvds { recv: Some(&evd), request: Some(&evd), connect: Some(&evd) };
    let ok = EpAttr::default();
    let create = |evds, attr: &EpAttr| {
        let created = Ep::create_with_srq(&side.ia, &pz, evds, &srq, attr);
        code(created)
    };
    assert_eq!(create(evds, &EpAttr { max_rdma_read_in: -1, ..ok.clone() }), dat::INVALID_ARG7);
    assert_eq!(create(evds, &recv_mode(CompletionFlags::SUPPRESS)), dat::INVALID_ARG7);
    assert_eq!(create(evds, &recv_mode(CompletionFlags::UNSIGNALLED)), dat::INVALID_ARG3);
    assert_eq!(create(EpEvds { connect: Some(&side.recv), ..evds }, &ok), dat::INVALID_HANDLE_EVD_CONN);
    assert_eq!(create(EpEvds { request: Some(&no_dtos), ..evds }, &ok), dat::INVALID_HANDLE_EVD_REQUEST);
    if !side.ia.provider_attributes().srq_ep_pz_difference_supported {
        let created = Ep::create_with_srq(&side.ia, &side.pz, evds, &srq, &ok);
        assert_eq!(code(created), dat::INVALID_ARG2);
    }
    srq.free().unwrap();
    pz.free().unwrap();
    evd.free().unwrap();
    no_dtos.free().unwrap();
}

/// `srq_soft_hw` starts armed: one event at the first buffer over it, none after that; -1 is off.
fn r147_epsrq_srq_soft_hw_initial() {
    let rig = Rig::new();
    let mut srq = rig.server.srq(8);
    rig.server.post(&mut srq, 6, 64, 0, 0);
    let armed = EpAttr { srq_soft_hw: 0, ..EpAttr::default() };
    let high = EpAttr { srq_soft_hw: 1, ..EpAttr::default() };
    for attr in [EpAttr::default(), high] {
        let mut quiet = rig.connect(rig.server.srq_ep(&srq, &attr), rig.client.ep(&EpAttr::default()));
        rig.deliver(&mut quiet, 8);
        rig.deliver(&mut quiet, 8);
        expect_nothing(rig.server.ia.async_evd());
        rig.disconnect(&quiet);
        let end = asynchronous(&rig.server.ia);
        assert_eq!((end.kind, end.object), (AsyncKind::EpBroken, AsyncObject::Ep(quiet.server.id())));
    }
    let mut pair = rig.connect(rig.server.srq_ep(&srq, &armed), rig.client.ep(&EpAttr::default()));
    pair.server.set_context(31);
    rig.deliver(&mut pair, 8);
    let event = asynchronous(&rig.server.ia);
    assert_eq!((event.kind, event.object), (AsyncKind::Notice, AsyncObject::Ep(pair.server.id())));
    assert_eq!((event.reason, event.context), (reason::EP_SOFT_HIGH_WATERMARK, 31));
    assert_eq!(pair.server.state(), EpState::Connected);
    rig.deliver(&mut pair, 8);
    expect_nothing(rig.server.ia.async_evd());
}

/// The receive stream may be in one of four modes; anything else is refused.
fn r148_epsrq_recv_flags_allowed() {
    let side = one_side();
    let srq = side.srq(4);
    for flags in
        [NONE, CompletionFlags::UNSIGNALLED, CompletionFlags::SOLICITED_WAIT, CompletionFlags::EVD_THRESHOLD]
    {
        // An EVD of its own, so that the sharing rules do not apply.
        let evd = side.evd(EvdFlags::DTO);
        let ep = ep_on(&side, &srq, Some(&evd), None, &recv_mode(flags)).unwrap();
        assert_eq!(ep.query().unwrap().attr.recv_completion_flags, flags);
    }
    for flags in [
        CompletionFlags::SUPPRESS,
        CompletionFlags::BARRIER_FENCE,
        CompletionFlags::UNSIGNALLED | CompletionFlags::SOLICITED_WAIT,
        CompletionFlags::SOLICITED_WAIT | CompletionFlags::SUPPRESS,
        CompletionFlags::from_bits_retain(0x40),
        CompletionFlags::from_bits_retain(0x8000_0002),
    ] {
        let evd = side.evd(EvdFlags::DTO);
        assert_eq!(
            code(ep_on(&side, &srq, Some(&evd), None, &recv_mode(flags))),
            dat::INVALID_ARG7,
            "{flags:?}"
        );
    }
}

/// If one completion stream on an EVD is unsignalled, all have to be, of one EP or of several; the
/// EVD at fault is named.
fn r149_epsrq_share_unsignalled() {
    use CompletionFlags as F;
    let side = one_side();
    let srq = side.srq(4);
    let evd = side.evd(EvdFlags::DTO);
    let both = modes(F::UNSIGNALLED, F::UNSIGNALLED);
    // Both streams of one EP.
    assert_eq!(
        code(ep_on(&side, &srq, Some(&evd), Some(&evd), &modes(F::UNSIGNALLED, NONE))),
        dat::INVALID_ARG3
    );
    assert_eq!(
        code(ep_on(&side, &srq, Some(&evd), Some(&evd), &modes(NONE, F::UNSIGNALLED))),
        dat::INVALID_ARG3
    );
    let first = ep_on(&side, &srq, Some(&evd), Some(&evd), &both).unwrap();
    // Another EP's receives, and its requests.
    assert_eq!(code(ep_on(&side, &srq, Some(&evd), None, &modes(NONE, NONE))), dat::INVALID_ARG3);
    assert_eq!(code(ep_on(&side, &srq, Some(&evd), None, &recv_mode(F::EVD_THRESHOLD))), dat::INVALID_ARG3);
    assert_eq!(code(ep_on(&side, &srq, None, Some(&evd), &modes(NONE, NONE))), dat::INVALID_ARG4);
    let second = ep_on(&side, &srq, Some(&evd), None, &modes(F::UNSIGNALLED, NONE)).unwrap();
    // Once these EPs are freed, the EVD takes any stream again.
    first.free().unwrap();
    assert_eq!(code(ep_on(&side, &srq, Some(&evd), None, &modes(NONE, NONE))), dat::INVALID_ARG3);
    second.free().unwrap();
    ep_on(&side, &srq, Some(&evd), Some(&evd), &modes(NONE, NONE)).unwrap();
}

/// If one receive stream on an EVD is solicited wait, all have to be, and no other stream may feed
/// it.
fn r150_epsrq_share_solicited() {
    use CompletionFlags as F;
    let side = one_side();
    let srq = side.srq(4);
    let evd = side.evd(EvdFlags::DTO);
    let solicited = recv_mode(F::SOLICITED_WAIT);
    assert_eq!(code(ep_on(&side, &srq, Some(&evd), Some(&evd), &solicited)), dat::INVALID_ARG3);
    let _first = ep_on(&side, &srq, Some(&evd), Some(&side.request), &solicited).unwrap();
    let _second = ep_on(&side, &srq, Some(&evd), Some(&side.request), &solicited).unwrap();
    for flags in [NONE, F::EVD_THRESHOLD] {
        assert_eq!(code(ep_on(&side, &srq, Some(&evd), None, &recv_mode(flags))), dat::INVALID_ARG3);
    }
    assert_eq!(code(ep_on(&side, &srq, None, Some(&evd), &recv_mode(NONE))), dat::INVALID_ARG4);
    // The other way round: an EVD that has another stream takes no solicited one.
    let _third = ep_on(&side, &srq, Some(&side.recv), None, &recv_mode(NONE)).unwrap();
    assert_eq!(code(ep_on(&side, &srq, Some(&side.recv), None, &solicited)), dat::INVALID_ARG3);
    assert_eq!(code(ep_on(&side, &srq, Some(&side.request), None, &solicited)), dat::INVALID_ARG3);
    let with_connections = side.evd(EvdFlags::DTO | EvdFlags::CONNECTION);
    assert_eq!(code(ep_on(&side, &srq, Some(&with_connections), None, &solicited)), dat::INVALID_ARG3);
}

/// If an SRQ EP's receives use the threshold, all DTO streams on that EVD have to; streams of other
/// kinds may share it.
fn r151_epsrq_share_threshold() {
    use CompletionFlags as F;
    let side = one_side();
    let srq = side.srq(4);
    let evd = side.evd(EvdFlags::DTO | EvdFlags::CONNECTION | EvdFlags::CR);
    let threshold = recv_mode(F::EVD_THRESHOLD);
    assert_eq!(code(ep_on(&side, &srq, Some(&evd), Some(&evd), &threshold)), dat::INVALID_ARG3);
    let both = modes(F::EVD_THRESHOLD, F::EVD_THRESHOLD);
    let evds = EpEvds { recv: Some(&evd), request: Some(&evd), connect: Some(&evd) };
    let _first = Ep::create_with_srq(&side.ia, &side.pz, evds, &srq, &both).unwrap();
    let _psp = doorbell::Psp::create_any(&side.ia, &evd).unwrap();
    assert_eq!(code(ep_on(&side, &srq, Some(&evd), None, &recv_mode(NONE))), dat::INVALID_ARG3);
    assert_eq!(code(ep_on(&side, &srq, None, Some(&evd), &recv_mode(NONE))), dat::INVALID_ARG4);
    let _second = ep_on(&side, &srq, Some(&evd), None, &threshold).unwrap();
    // The other way round.
    let other = side.evd(EvdFlags::DTO);
    let _third = ep_on(&side, &srq, None, Some(&other), &recv_mode(NONE)).unwrap();
    assert_eq!(code(ep_on(&side, &srq, Some(&other), None, &threshold)), dat::INVALID_ARG3);
}

/// An EVD made for other streams as well takes only completions that always notify: threshold mode,
/// or the default.
fn r152_epsrq_mixed_evd_needs_threshold() {
    use CompletionFlags as F;
    let side = one_side();
    let srq = side.srq(4);
    for also in [EvdFlags::CONNECTION, EvdFlags::CR, EvdFlags::SOFTWARE] {
        let evd = side.evd(EvdFlags::DTO | also);
        for flags in [F::UNSIGNALLED, F::SOLICITED_WAIT] {
            assert_eq!(code(ep_on(&side, &srq, Some(&evd), None, &recv_mode(flags))), dat::INVALID_ARG3);
        }
        let unsignalled = modes(NONE, F::UNSIGNALLED);
        assert_eq!(code(ep_on(&side, &srq, None, Some(&evd), &unsignalled)), dat::INVALID_ARG4);
        for flags in [NONE, F::EVD_THRESHOLD] {
            ep_on(&side, &srq, Some(&evd), None, &recv_mode(flags)).unwrap();
        }
    }
}
