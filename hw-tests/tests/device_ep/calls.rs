//! Calls on an EP of an SRQ: connecting, posting, modifying, resetting and freeing it.

use crate::*;
use doorbell::{
    CloseFlags, CompletionFlags, ConnectionEventKind, DtoStatus, Ep, EpAttr, EpChange, EpState, Evd,
    EvdFlags, LmrTriplet, Psp, Pz, Qos, RecvCounts, ReturnType,
};
use doorbell_hw_tests::rig::*;
use doorbell_hw_tests::{Pair, Rig, Test, dat, tests};
use std::time::Duration;

pub(crate) const TESTS: &[Test] = tests![
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
    connects_to_nowhere_leave_no_memory_behind,
    a_query_tells_both_ends_of_a_connection,
    an_ended_connection_is_followed_by_none,
    an_ep_that_accepts_has_no_service_of_its_life_before,
];

/// An EP has connected, and then accepts: there is no service for another EP to connect to.
fn an_ep_that_accepts_has_no_service_of_its_life_before() {
    let rig = Rig::new();
    let mut first = rig.connect_plain(&EpAttr::default());
    rig.disconnect(&first);
    first.client.reset().unwrap();
    let (_psp, qual) = Psp::create_any(&rig.client.ia, &rig.client.cr).unwrap();
    let active = rig.server.ep(&EpAttr::default());
    active.connect(rig.client.ia.address(), qual, Some(LONG), &[], Qos::BestEffort).unwrap();
    connection_request(&rig.client.cr).cr.accept(&first.client, &[]).unwrap();
    expect_connection(&rig.server.connect, &active, ConnectionEventKind::Established);
    expect_connection(&rig.client.connect, &first.client, ConnectionEventKind::Established);
    let other = rig.client.ep(&EpAttr::default());
    let refused = other.dup_connect(&first.client, Some(LONG), &[]).unwrap_err();
    assert_eq!(refused.return_type(), ReturnType::InvalidState);
    assert_eq!(other.state(), EpState::Unconnected);
}

/// An EP can be connected like another one only while that one is connected.
fn an_ended_connection_is_followed_by_none() {
    let rig = Rig::new();
    let pair = rig.connect_plain(&EpAttr::default());
    rig.disconnect(&pair);
    let other = rig.client.ep(&EpAttr::default());
    for ended in [&pair.client, &pair.server, &other] {
        let refused = other.dup_connect(ended, Some(LONG), &[]).unwrap_err();
        assert_eq!(refused.return_type(), ReturnType::InvalidState);
        assert_eq!(other.state(), EpState::Unconnected);
    }
}

/// Address and port of an end are the same at both sides, and the port of the service is that of
/// the passive side.
fn a_query_tells_both_ends_of_a_connection() {
    let rig = Rig::new();
    let (server, client) = (rig.server.ep(&EpAttr::default()), rig.client.ep(&EpAttr::default()));
    let param = client.query().unwrap();
    assert_eq!((param.local, param.remote), (None, None));
    let (psp, qual) = Psp::create_any(&rig.server.ia, &rig.server.cr).unwrap();
    client.connect(rig.server.ia.address(), qual, Some(LONG), &[], Qos::BestEffort).unwrap();
    connection_request(&rig.server.cr).cr.accept(&server, &[]).unwrap();
    expect_connection(&rig.client.connect, &client, ConnectionEventKind::Established);
    expect_connection(&rig.server.connect, &server, ConnectionEventKind::Established);
    let (at_server, at_client) = (server.query().unwrap(), client.query().unwrap());
    assert_eq!((at_client.local, at_client.remote), (at_server.remote, at_server.local));
    let (here, there) = (at_client.local.unwrap(), at_client.remote.unwrap());
    assert_eq!((here.ip(), there.ip()), (rig.client.ia.address(), rig.server.ia.address()));
    assert_ne!(here.port(), 0);
    assert_eq!(u64::from(there.port()), qual);
    drop(psp);
}

/// An address of the other family: by the device, the call or its event says so.
fn connects_to_nowhere_leave_no_memory_behind() {
    const CONNECTS: i64 = 1000;
    let side = one_side();
    let elsewhere = if side.ia.address().is_ipv4() { "::1" } else { "127.0.0.1" }.parse().unwrap();
    let mut ep = side.ep(&EpAttr::default());
    let mut connect = || match ep.connect(elsewhere, 1, None, &[], Qos::BestEffort) {
        Err(error) => assert_eq!(error.return_type(), ReturnType::InvalidAddress, "{error}"),
        Ok(()) => {
            assert_eq!(connection(&side.connect).kind, ConnectionEventKind::Unreachable);
            ep.reset().unwrap();
        }
    };
    connect();
    let left = allocation_counter::measure(|| (0..CONNECTS).for_each(|_| connect())).bytes_current;
    assert!(left < CONNECTS, "{left} bytes left after {CONNECTS} connects");
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
