//! EPs on an SRQ: creation and every other call on them (sections J and K of the rules).

use doorbell::{
    AsyncKind, AsyncObject, CloseFlags, CompletionFlags, ConnectionEventKind, Count, Direction, DtoStatus,
    Ep, EpAttr, EpChange, EpEvds, EpState, Evd, EvdFlags, Lmr, LmrTriplet, MemPriv, PostError, Pz, Qos,
    RecvCounts, RmrTriplet, ServiceType, Srq, SrqAttr, reason,
};
use doorbell_hw_tests::dat;
use doorbell_hw_tests::rig::*;
use doorbell_hw_tests::{Pair, Rig, Side, tests};
use std::time::Duration;

fn main() {
    doorbell_hw_tests::run(tests![
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
        r153_epsrq_association_permanent,
        r154_epsrq_usable_for_connect_and_accept,
        r156_epsrq_thread_safe,
        r157_epsrq_post_recv_refused,
        r162_ep_modify_cannot_touch_srq,
        r163_ep_modify_pz_states,
        r165_ep_modify_recv_flags,
        r168_ep_reset_states,
        r169_ep_reset_releases_entries,
        reset_leaves_nothing_of_the_life_before,
        r170_ep_free_detaches,
        r171_ep_free_states,
        r173_ep_get_status_recv_idle,
        requests_in_the_lmr_of_the_last_are_checked,
        the_end_of_a_connection_stops_fast_sends,
    ])
    .exit();
}

const NONE: CompletionFlags = CompletionFlags::empty();

fn recv_mode(flags: CompletionFlags) -> EpAttr {
    EpAttr { recv_completion_flags: flags, ..EpAttr::default() }
}

fn modes(recv: CompletionFlags, request: CompletionFlags) -> EpAttr {
    EpAttr { recv_completion_flags: recv, request_completion_flags: request, ..EpAttr::default() }
}

/// An EP on the SRQ with these EVDs for receives and requests.
fn ep_on(
    side: &Side,
    srq: &Srq,
    recv: Option<&Evd>,
    request: Option<&Evd>,
    attr: &EpAttr,
) -> Result<Ep, doorbell::Error> {
    let evds = EpEvds { recv, request, connect: Some(&side.connect) };
    Ep::create_with_srq(&side.ia, &side.pz, evds, srq, attr)
}

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
    };
    let ep = rig.server.srq_ep(&srq, &asked);
    let real = ep.query().unwrap().attr;
    assert!(real.max_request_dtos >= 5 && real.max_request_iov >= 2, "{real:?}");
    let but_sizes = EpAttr {
        max_request_dtos: real.max_request_dtos,
        max_request_iov: real.max_request_iov,
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

/// Neither modify nor connect, disconnect and reset detach an EP from its SRQ: after reconnecting,
/// it receives from the SRQ. Also R167.
fn r153_epsrq_association_permanent() {
    let rig = Rig::new();
    let mut srq = rig.server.srq(8);
    let other = rig.server.srq(8);
    rig.server.post(&mut srq, 4, 64, 0, 0);
    let mut server = rig.server.srq_ep(&srq, &EpAttr::default());
    let mut client = rig.client.ep(&EpAttr::default());
    for cookie in 0..3 {
        let change = EpChange { srq: Some(other.id()), ..EpChange::default() };
        assert_eq!(code(server.modify(change)), dat::INVALID_ARG2);
        let mut pair = rig.connect(server, client);
        let got = rig.deliver(&mut pair, 8);
        assert_eq!((got.cookie, got.ep), (cookie, pair.server.id()));
        rig.disconnect(&pair);
        (server, client) = (pair.server, pair.client);
        server.reset().unwrap();
        client.reset().unwrap();
        assert_eq!((server.state(), client.state()), (EpState::Unconnected, EpState::Unconnected));
        assert_eq!(server.query().unwrap().srq, Some(srq.id()));
    }
    assert_eq!((counts(&srq), counts(&other)), ((1, 1), (0, 0)));
}

/// SRQ EPs connect, dup-connect, accept a PSP's request and serve an RSP; each receives through its
/// SRQ.
fn r154_epsrq_usable_for_connect_and_accept() {
    let rig = Rig::new();
    let attr = EpAttr::default();
    let mut srqs = [rig.server.srq(8), rig.client.srq(8)];
    let server_ep = || rig.server.srq_ep(&srqs[0], &attr);
    let client_ep = || rig.client.srq_ep(&srqs[1], &attr);

    let (psp, qual) = doorbell::Psp::create_any(&rig.server.ia, &rig.server.cr).unwrap();
    let (first, accepted) = (client_ep(), server_ep());
    first.connect(rig.server.ia.address(), qual, Some(LONG), b"hello", Qos::BestEffort).unwrap();
    let arrival = connection_request(&rig.server.cr);
    assert!(arrival.cr.private_data().starts_with(b"hello"));
    arrival.cr.accept(&accepted, &[]).unwrap();
    expect_connection(&rig.client.connect, &first, ConnectionEventKind::Established);
    expect_connection(&rig.server.connect, &accepted, ConnectionEventKind::Established);

    let (second, also_accepted) = (client_ep(), server_ep());
    second.dup_connect(&first, Some(LONG), &[]).unwrap();
    let arrival = connection_request(&rig.server.cr);
    assert_eq!(arrival.sp, psp.id());
    arrival.cr.accept(&also_accepted, &[]).unwrap();
    expect_connection(&rig.client.connect, &second, ConnectionEventKind::Established);
    expect_connection(&rig.server.connect, &also_accepted, ConnectionEventKind::Established);

    let (third, reserved) = (client_ep(), server_ep());
    let (rsp, qual) = rig.server.reserve(&reserved);
    assert_eq!(reserved.state(), EpState::Reserved);
    third.connect(rig.server.ia.address(), qual, Some(LONG), &[], Qos::BestEffort).unwrap();
    let arrival = connection_request(&rig.server.cr);
    assert_eq!((arrival.sp, reserved.state()), (rsp.id(), EpState::PassiveConnectionPending));
    arrival.cr.accept_reserved(&[]).unwrap();
    expect_connection(&rig.client.connect, &third, ConnectionEventKind::Established);
    expect_connection(&rig.server.connect, &reserved, ConnectionEventKind::Established);

    rig.server.post(&mut srqs[0], 3, 64, 0, 0);
    rig.client.post(&mut srqs[1], 3, 64, 0, 0);
    for (client, server) in [(first, accepted), (second, also_accepted), (third, reserved)] {
        let mut pair = Pair { server, client };
        assert_eq!(rig.deliver(&mut pair, 8).ep, pair.server.id());
        pair.server.post_send(&[rig.server.lmr.triplet(4096, 8)], 0, NONE).unwrap();
        let got = dto(&rig.client.recv);
        assert_eq!((got.status, got.ep), (DtoStatus::Success, pair.client.id()));
    }
    assert_eq!((counts(&srqs[0]), counts(&srqs[1])), ((0, 0), (0, 0)));
}

/// Several threads create and free EPs on one SRQ and its EVDs at once, and nothing is left over.
fn r156_epsrq_thread_safe() {
    let side = one_side();
    let srq = side.srq(4);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..4 {
                    let eps = [0; 3].map(|_| side.srq_ep(&srq, &EpAttr::default()));
                    for ep in eps {
                        assert_eq!(ep.query().unwrap().srq, Some(srq.id()));
                        ep.free().unwrap();
                    }
                }
            });
        }
    });
    for evd in [&side.recv, &side.request, &side.connect] {
        evd.free().unwrap();
    }
    srq.free().unwrap();
}

/// A receive posted to an SRQ EP is refused in every state, before the segments are checked, and
/// has no effect on SRQ, EP or EVDs. A query works in every state, too. Also R158, R161.
fn r157_epsrq_post_recv_refused() {
    let rig = Rig::patient();
    let mut srq = rig.server.srq(4);
    rig.server.post(&mut srq, 2, 64, 0, 0);
    let refused = |ep: &mut Ep, state| {
        assert_eq!(ep.state(), state);
        let good = rig.server.lmr.triplet(0, 64);
        let garbage = LmrTriplet { virtual_address: u64::MAX, segment_length: 64, lmr_context: 0xdead };
        for iov in [&[good][..], &[garbage], &[garbage; 64], &[]] {
            for flags in [NONE, CompletionFlags::from_bits_retain(0x8000_0000)] {
                assert_eq!(code(ep.post_recv(iov, 1, flags)), dat::INVALID_STATE_SRQ_IN_USE, "{state:?}");
            }
        }
        let param = ep.query().unwrap();
        assert_eq!((param.state, param.srq), (state, Some(srq.id())));
        assert_eq!(counts(&srq), (2, 2));
    };
    let mut ep = rig.server.srq_ep(&srq, &EpAttr::default());
    refused(&mut ep, EpState::Unconnected);
    let (rsp, _) = rig.server.reserve(&ep);
    refused(&mut ep, EpState::Reserved);
    rsp.free().unwrap();
    let mut pair = rig.connect(ep, rig.client.ep(&EpAttr::default()));
    refused(&mut pair.server, EpState::Connected);
    rig.begin_graceful(&mut pair);
    refused(&mut pair.server, EpState::DisconnectPending);
    pair.server.disconnect(CloseFlags::Abrupt).unwrap();
    refused(&mut pair.server, EpState::Disconnected);
    expect_nothing(&rig.server.recv);
}

/// Neither the SRQ nor the soft high watermark can be changed by modify; a change that is refused
/// in part is refused whole. Also R166.
fn r162_ep_modify_cannot_touch_srq() {
    let side = one_side();
    let srq = side.srq(4);
    let mut ep = side.srq_ep(&srq, &EpAttr::default());
    let before = ep.query().unwrap();
    for change in [
        EpChange { srq: Some(srq.id()), ..EpChange::default() },
        EpChange { srq_soft_hw: Some(1), ..EpChange::default() },
        EpChange {
            srq_soft_hw: Some(-1),
            recv_completion_flags: Some(CompletionFlags::UNSIGNALLED),
            ..EpChange::default()
        },
    ] {
        assert_eq!(code(ep.modify(change)), dat::INVALID_ARG2);
    }
    let after = ep.query().unwrap();
    assert_eq!((after.srq, after.attr), (before.srq, before.attr));
}

/// The PZ can change while unconnected, and governs what is posted then; in other states the change
/// is refused.
fn r163_ep_modify_pz_states() {
    let rig = Rig::new();
    let side = &rig.server;
    let other = Pz::create(&side.ia).unwrap();
    let in_other = doorbell::Lmr::create(&side.ia, &other, 4096, all_privileges()).unwrap();
    let to_other = EpChange { pz: Some(&other), ..EpChange::default() };
    let mut ep = side.ep(&EpAttr::default());
    let (rsp, _) = side.reserve(&ep);
    assert_eq!(code(ep.modify(to_other)), dat::INVALID_STATE_EP_RESERVED);
    rsp.free().unwrap();
    ep.modify(to_other).unwrap();
    let mut pair = rig.connect(ep, rig.client.ep(&EpAttr::default()));
    assert_eq!(code(pair.server.modify(to_other)), dat::INVALID_STATE_EP_CONNECTED);
    assert_eq!(code(pair.server.post_recv(&[side.lmr.triplet(0, 64)], 0, NONE)), dat::PROTECTION_WRITE);
    assert_eq!(code(pair.server.post_send(&[side.lmr.triplet(0, 64)], 0, NONE)), dat::PROTECTION_READ);
    pair.server.post_recv(&[in_other.triplet(0, 64)], 4, NONE).unwrap();
    let got = rig.deliver(&mut pair, 8);
    assert_eq!((got.status, got.cookie), (DtoStatus::Success, 4));
    rig.disconnect(&pair);
    assert_eq!(code(pair.server.modify(to_other)), dat::INVALID_STATE_EP_DISCONNECTED);
    // The EP counts as the new PZ's user and not the old one's.
    drop(in_other);
    assert_eq!(code(other.free()), dat::INVALID_STATE_PZ_IN_USE);
}

/// Receive flags can change before a connection, to allowed values that fit their EVD, and take
/// effect; not once a receive is posted or the EP is connected.
fn r165_ep_modify_recv_flags() {
    use CompletionFlags as F;
    let rig = Rig::new();
    let side = &rig.server;
    let srq = side.srq(4);
    let evd = side.evd(EvdFlags::DTO);
    let to = |flags| EpChange { recv_completion_flags: Some(flags), ..EpChange::default() };
    let mut ep = ep_on(side, &srq, Some(&evd), Some(&side.request), &EpAttr::default()).unwrap();
    for flags in [F::UNSIGNALLED, F::EVD_THRESHOLD, NONE, F::SOLICITED_WAIT] {
        ep.modify(to(flags)).unwrap();
        assert_eq!(ep.query().unwrap().attr.recv_completion_flags, flags);
    }
    for flags in [F::SUPPRESS, F::BARRIER_FENCE, F::UNSIGNALLED | F::SOLICITED_WAIT] {
        assert_eq!(code(ep.modify(to(flags))), dat::INVALID_ARG2);
        assert_eq!(ep.query().unwrap().attr.recv_completion_flags, F::SOLICITED_WAIT);
    }
    // The change took effect: this EVD has a solicited stream now (R236), and takes no other kind.
    assert_eq!(code(evd.wait(Some(Duration::ZERO), 2)), dat::INVALID_STATE_EVD_CONFIG_SOLICITED);
    assert_eq!(code(ep_on(side, &srq, Some(&evd), None, &EpAttr::default())), dat::INVALID_ARG3);
    // With another solicited stream on the EVD, this stream cannot change its mode.
    let second = ep_on(side, &srq, Some(&evd), None, &recv_mode(F::SOLICITED_WAIT)).unwrap();
    assert_eq!(code(ep.modify(to(NONE))), dat::INVALID_ARG2);
    second.free().unwrap();
    // RESERVED is a state before a connection as well.
    let (rsp, _) = side.reserve(&ep);
    ep.modify(to(NONE)).unwrap();
    rsp.free().unwrap();
    let mut pair = rig.connect(ep, rig.client.ep(&EpAttr::default()));
    assert_eq!(code(pair.server.modify(to(NONE))), dat::INVALID_STATE_EP_CONNECTED);

    let mut plain = side.ep(&EpAttr::default());
    plain.post_recv(&[side.lmr.triplet(0, 64)], 0, NONE).unwrap();
    assert_eq!(code(plain.modify(to(F::EVD_THRESHOLD))), dat::INVALID_STATE_EP_UNCONNECTED);
}

/// Reset is for DISCONNECTED, does nothing in UNCONNECTED, and is refused elsewhere.
fn r168_ep_reset_states() {
    let rig = Rig::patient();
    let srq = rig.server.srq(4);
    let mut ep = rig.server.srq_ep(&srq, &EpAttr::default());
    ep.reset().unwrap();
    assert_eq!(ep.state(), EpState::Unconnected);
    let (rsp, _) = rig.server.reserve(&ep);
    assert_eq!(code(ep.reset()), dat::INVALID_STATE_EP_RESERVED);
    rsp.free().unwrap();

    let mut client = rig.client.ep(&EpAttr::default());
    let (psp, arrival) = rig.ask(&client);
    assert_eq!(code(client.reset()), dat::INVALID_STATE_EP_ACTCONNPENDING);
    arrival.cr.accept(&ep, &[]).unwrap();
    expect_connection(&rig.client.connect, &client, ConnectionEventKind::Established);
    expect_connection(&rig.server.connect, &ep, ConnectionEventKind::Established);
    drop(psp);
    let mut pair = Pair { server: ep, client };
    assert_eq!(code(pair.server.reset()), dat::INVALID_STATE_EP_CONNECTED);
    rig.begin_graceful(&mut pair);
    assert_eq!(code(pair.server.reset()), dat::INVALID_STATE_EP_DISCPENDING);
    pair.server.disconnect(CloseFlags::Abrupt).unwrap();
    pair.server.reset().unwrap();
    assert_eq!(pair.server.state(), EpState::Unconnected);

    let (raw, arrival) = rig.ask_and_never_confirm();
    arrival.cr.accept(&pair.server, &[]).unwrap();
    assert_eq!(pair.server.state(), EpState::CompletionPending);
    assert_eq!(code(pair.server.reset()), dat::INVALID_STATE_EP_COMPLPENDING);
    drop(raw);
}

/// After a reset the SRQ's outstanding entries are exactly the completions that can still be
/// reaped, and then none.
fn r169_ep_reset_releases_entries() {
    let rig = Rig::new();
    let mut srq = rig.server.srq(4);
    let mut pair = rig.connect_srq(&srq);
    rig.server.post(&mut srq, 4, 64, 0, 0);
    for _ in 0..3 {
        assert_eq!(rig.send(&mut pair, 0, 8).status, DtoStatus::Success);
    }
    until("the messages are complete", || counts(&srq) == (1, 4));
    rig.disconnect(&pair);
    pair.server.reset().unwrap();
    let (available, outstanding) = counts(&srq);
    assert_eq!(available, 1);
    for left in (available..outstanding).rev() {
        assert_eq!(rig.server.recv.dequeue().unwrap().data.dto().unwrap().status, DtoStatus::Success);
        assert_eq!(counts(&srq), (1, left));
    }
    assert_eq!(counts(&srq), (1, 1));
    assert_eq!(code(rig.server.recv.dequeue()), dat::QUEUE_EMPTY);
    rig.server.post(&mut srq, 3, 64, 64, 1);
    assert_eq!(counts(&srq), (4, 4));
}

/// Two EPs connect and are reset again and again, each time with requests and receives under way,
/// and with completions that nobody has looked at. Each work request completes once, in its own
/// life: no completion of an earlier life is taken for it.
fn reset_leaves_nothing_of_the_life_before() {
    const BUFFERS: u64 = 3;
    const TAKEN: u64 = 2;
    let rig = Rig::patient();
    // A small queue, so that its positions come round.
    let attr = EpAttr { max_request_dtos: 8, max_recv_dtos: 8, ..EpAttr::default() };
    let (mut server, mut client) = (rig.server.ep(&attr), rig.client.ep(&attr));
    for life in 0..12 {
        let (from, sends) = (1000 * life, BUFFERS + 1 + life % 4);
        for n in 0..BUFFERS {
            let buffer = rig.server.lmr.triplet(64 * n as usize, 64);
            server.post_recv(&[buffer], from + n, NONE).unwrap();
        }
        let unused = rig.client.lmr.triplet(4096, 64);
        client.post_recv(&[unused], from, NONE).unwrap();
        let mut pair = rig.connect(server, client);
        for n in 0..sends {
            pair.client.post_send(&[rig.client.lmr.triplet(0, 8)], from + 100 + n, NONE).unwrap();
        }
        // The first completions are dequeued; those behind them may be polled already.
        for n in 0..TAKEN {
            let (receive, send) = (dto(&rig.server.recv), dto(&rig.client.request));
            assert_eq!((receive.cookie, receive.status), (from + n, DtoStatus::Success));
            assert_eq!((send.cookie, send.status), (from + 100 + n, DtoStatus::Success));
        }
        // Only what the server has no buffer for is under way at the end.
        until("all buffers are used", || pair.server.recv_query().unwrap().buffers == 0);
        rig.disconnect(&pair);
        (server, client) = (pair.server, pair.client);
        client.reset().unwrap();
        server.reset().unwrap();
        let rest = |evd: &Evd| -> Vec<_> {
            std::iter::from_fn(|| evd.dequeue().ok())
                .map(|event| event.data.dto().map(|dto| (dto.cookie, dto.status)).unwrap())
                .collect()
        };
        let received: Vec<_> = (TAKEN..BUFFERS).map(|n| (from + n, DtoStatus::Success)).collect();
        assert_eq!(rest(&rig.server.recv), received, "life {life}");
        assert_eq!(rest(&rig.client.recv), [(from, DtoStatus::Flushed)], "life {life}");
        let sent = rest(&rig.client.request);
        let cookies: Vec<_> = sent.iter().map(|(cookie, _)| *cookie).collect();
        assert_eq!(cookies, (from + 100 + TAKEN..from + 100 + sends).collect::<Vec<_>>(), "life {life}");
        // The acknowledgement of the last message that found a buffer may come too late.
        let without_buffer = &sent[(BUFFERS - TAKEN) as usize..];
        assert!(without_buffer.iter().all(|(_, status)| *status == DtoStatus::Flushed), "{sent:?}");
    }
}

/// Freeing the EP detaches it from the SRQ, and its unreaped completions release their entries.
/// Also R172.
fn r170_ep_free_detaches() {
    let rig = Rig::new();
    let mut srq = rig.server.srq(4);
    let mut pair = rig.connect_srq(&srq);
    rig.server.post(&mut srq, 4, 64, 0, 0);
    for _ in 0..3 {
        assert_eq!(rig.send(&mut pair, 0, 8).status, DtoStatus::Success);
    }
    until("the messages are complete", || counts(&srq) == (1, 4));
    let refused = srq.free().unwrap_err();
    assert_eq!(refused.error.code(), dat::INVALID_STATE_SRQ_IN_USE);
    srq = refused.object;
    pair.server.free().unwrap();
    expect_connection(&rig.client.connect, &pair.client, ConnectionEventKind::Disconnected);
    assert_eq!(counts(&srq), (1, 1));
    assert_eq!(code(rig.server.recv.dequeue()), dat::QUEUE_EMPTY);
    // The whole depth is there again.
    rig.server.post(&mut srq, 3, 64, 64, 10);
    assert_eq!(code(srq.post_recv(&[], 0)), dat::RESOURCE_SRQ);
    let mut again = rig.connect_srq(&srq);
    for cookie in [3, 10, 11, 12] {
        assert_eq!(rig.deliver(&mut again, 8).cookie, cookie);
    }
    drop(again);
    srq.free().unwrap();
}

/// An EP can be freed in every state but RESERVED and PASSIVE_CONNECTION_PENDING, where the call is
/// refused; an open connection ends for the peer as well.
fn r171_ep_free_states() {
    let rig = Rig::patient();
    let srq = rig.server.srq(4);
    let attr = EpAttr::default();
    let new = || rig.server.srq_ep(&srq, &attr);
    new().free().unwrap();

    let ep = new();
    let (rsp, qual) = rig.server.reserve(&ep);
    let refused = ep.free().unwrap_err();
    assert_eq!(refused.error.code(), dat::INVALID_STATE_EP_RESERVED);
    let ep = refused.object;
    let client = rig.client.ep(&attr);
    client.connect(rig.server.ia.address(), qual, Some(LONG), &[], Qos::BestEffort).unwrap();
    let arrival = connection_request(&rig.server.cr);
    let refused = ep.free().unwrap_err();
    assert_eq!(refused.error.code(), dat::INVALID_STATE_EP_PASSCONNPENDING);
    let ep = refused.object;
    arrival.cr.reject(&[]).unwrap();
    expect_connection(&rig.client.connect, &client, ConnectionEventKind::PeerRejected);
    drop(rsp);
    assert_eq!(ep.state(), EpState::Unconnected);
    ep.free().unwrap();

    let connecting = rig.client.ep(&attr);
    let (_psp, arrival) = rig.ask(&connecting);
    assert_eq!(connecting.state(), EpState::ActiveConnectionPending);
    connecting.free().unwrap();
    drop(arrival);

    let (raw, arrival) = rig.ask_and_never_confirm();
    let ep = new();
    arrival.cr.accept(&ep, &[]).unwrap();
    assert_eq!(ep.state(), EpState::CompletionPending);
    ep.free().unwrap();
    drop(raw);

    let mut pair = rig.connect_srq(&srq);
    pair.server.free().unwrap();
    expect_connection(&rig.client.connect, &pair.client, ConnectionEventKind::Disconnected);

    pair = rig.connect_srq(&srq);
    rig.begin_graceful(&mut pair);
    pair.server.free().unwrap();
    expect_connection(&rig.client.connect, &pair.client, ConnectionEventKind::Disconnected);

    pair = rig.connect_srq(&srq);
    rig.disconnect(&pair);
    assert_eq!(pair.server.state(), EpState::Disconnected);
    pair.server.free().unwrap();
    srq.free().unwrap();
}

/// An SRQ EP without a receive under way is idle however full the SRQ is; a plain EP is busy while
/// a receive is posted.
fn r173_ep_get_status_recv_idle() {
    let rig = Rig::new();
    let mut srq = rig.server.srq(4);
    rig.server.post(&mut srq, 4, 64, 0, 0);
    let mut on_srq = rig.connect_srq(&srq);
    let status = on_srq.server.status().unwrap();
    assert_eq!((status.state, status.recv_idle, status.request_idle), (EpState::Connected, true, true));
    rig.deliver(&mut on_srq, 8);
    assert!(on_srq.server.status().unwrap().recv_idle);

    let mut plain = rig.connect_plain(&EpAttr::default());
    assert!(plain.server.status().unwrap().recv_idle);
    plain.server.post_recv(&[rig.server.lmr.triplet(4096, 64)], 0, NONE).unwrap();
    assert!(!plain.server.status().unwrap().recv_idle);
    assert_eq!(plain.server.recv_query().unwrap(), RecvCounts { buffers: 1, span: 1 });
    rig.deliver(&mut plain, 8);
    assert!(plain.server.status().unwrap().recv_idle);
}

/// Two Sends from this LMR, of which the second does not need the table of LMRs.
#[track_caller]
fn send_twice(rig: &Rig, pair: &mut Pair, from: LmrTriplet) {
    for _ in 0..2 {
        pair.client.post_send(&[from], 5, NONE).unwrap();
        let done = dto(&rig.client.request);
        assert_eq!((done.status, done.cookie, done.length), (DtoStatus::Success, 5, from.segment_length));
        assert_eq!(dto(&rig.server.recv).status, DtoStatus::Success);
    }
}

/// The LMR of the last request is remembered. Requests in it pass the same checks as any other.
fn requests_in_the_lmr_of_the_last_are_checked() {
    let rig = Rig::new();
    let mut srq = rig.server.srq(8);
    let mut pair = rig.connect_srq(&srq);
    rig.server.post(&mut srq, 4, 64, 0, 0);
    let side = &rig.client;
    let lmr = Lmr::create(&side.ia, &side.pz, 4096, MemPriv::LOCAL_READ).unwrap();
    let local = lmr.triplet(0, 64);
    send_twice(&rig, &mut pair, local);
    let peer = |len| RmrTriplet {
        virtual_address: rig.server.lmr.address() + 8192,
        segment_length: len,
        rmr_context: rig.server.lmr.rmr_context(),
    };
    let client = &mut pair.client;
    for beyond in [lmr.address() - 1, lmr.address() + 4096 - 63, u64::MAX - 8] {
        let segment = LmrTriplet { virtual_address: beyond, ..local };
        assert_eq!(client.post_send(&[segment], 0, NONE), Err(PostError::OutOfBounds(0)));
        assert_eq!(client.post_rdma_write(&[segment], 0, peer(64), NONE), Err(PostError::OutOfBounds(0)));
    }
    assert_eq!(client.post_send(&[local], 0, CompletionFlags::EVD_THRESHOLD), Ok(()));
    assert_eq!(dto(&side.request).status, DtoStatus::Success);
    assert_eq!(client.post_send(&[local], 0, CompletionFlags::UNSIGNALLED), Err(PostError::Flags));
    assert_eq!(client.post_rdma_write(&[local], 0, peer(63), NONE), Err(PostError::Length));
    // The LMR does not have LOCAL_WRITE.
    let refused = Err(PostError::Privilege(0, Direction::Write));
    assert_eq!(client.post_rdma_read(&[local], 0, peer(64), NONE), refused);
    let writable = side.lmr.triplet(0, 64);
    for len in [64, 8] {
        rig.server.lmr.write(8192, &[len as u8; 64]).unwrap();
        client.post_rdma_read(&[writable], 0, peer(len), NONE).unwrap();
        let read = dto(&side.request);
        assert_eq!((read.status, read.length), (DtoStatus::Success, len));
    }
    let mut bytes = [0; 64];
    side.lmr.read(0, &mut bytes).unwrap();
    assert_eq!((bytes[7], bytes[8]), (8, 64), "8 bytes are read over 64");
    assert_eq!(client.post_rdma_read(&[writable], 0, peer(65), NONE), Err(PostError::Length));
    client.post_rdma_write(&[writable], 0, peer(64), NONE).unwrap();
    assert_eq!(dto(&side.request).status, DtoStatus::Success);
    rig.server.lmr.read(8192, &mut bytes).unwrap();
    assert_eq!((bytes[7], bytes[8]), (8, 64));
    // A freed LMR is forgotten.
    client.post_send(&[local], 0, NONE).unwrap();
    assert_eq!(dto(&side.request).status, DtoStatus::Success);
    lmr.free().unwrap();
    assert_eq!(client.post_send(&[local], 0, NONE), Err(PostError::NoSuchLmr(0, Direction::Read)));
    // As many as the queue holds, and one more.
    let full = (0..).find_map(|_| client.post_send(&[writable], 0, CompletionFlags::SUPPRESS).err());
    assert_eq!(full, Some(PostError::Full(doorbell::Subtype::ResourceCredits)));
}

/// After the end of its connection an EP flushes Sends, and does not give them to the device.
fn the_end_of_a_connection_stops_fast_sends() {
    let rig = Rig::new();
    let mut srq = rig.server.srq(8);
    let mut pair = rig.connect_srq(&srq);
    rig.server.post(&mut srq, 4, 64, 0, 0);
    let local = rig.client.lmr.triplet(0, 64);
    send_twice(&rig, &mut pair, local);
    rig.disconnect(&pair);
    pair.client.post_send(&[local], 6, NONE).unwrap();
    let flushed = dto(&rig.client.request);
    assert_eq!((flushed.status, flushed.cookie), (DtoStatus::Flushed, 6));
    pair.client.reset().unwrap();
    let refused = pair.client.post_send(&[local], 7, NONE);
    assert!(matches!(refused, Err(PostError::EpState(_))), "{refused:?}");
    expect_nothing(&rig.client.request);
}
