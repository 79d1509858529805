//! Calls on an EP: creating, connecting, resetting and freeing it.

use crate::*;
use doorbell::{
    AsyncKind, AsyncObject, ConnectOptions, ConnectionEventKind, DtoStatus, EpAttr, EpState, Evd, Psp,
    ReturnType, reason,
};
use doorbell_hw_tests::rig::*;
use doorbell_hw_tests::{Rig, Test, dat, tests};

pub(crate) const TESTS: &[Test] = tests![
    r147_epsrq_srq_soft_hw_initial,
    r168_ep_reset_states_without_confirmation,
    reset_leaves_nothing_of_the_life_before,
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
    let psp = Psp::builder(&rig.client.ia, &rig.client.cr).build().unwrap();
    let port = psp.port();
    let active = rig.server.ep(&EpAttr::default());
    active.connect_with((rig.client.ia.address(), port).into(), ConnectOptions::new().timeout(LONG)).unwrap();
    connection_request(&rig.client.cr).cr.accept(&first.client, &[]).unwrap();
    expect_connection(&rig.server.connect, &active, ConnectionEventKind::Established);
    expect_connection(&rig.client.connect, &first.client, ConnectionEventKind::Established);
    let other = rig.client.ep(&EpAttr::default());
    let refused = other.inner.dup_connect(&first.client.inner, Some(LONG), &[]).unwrap_err();
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
        let refused = other.inner.dup_connect(&ended.inner, Some(LONG), &[]).unwrap_err();
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
    let psp = Psp::builder(&rig.server.ia, &rig.server.cr).build().unwrap();
    let port = psp.port();
    client.connect_with((rig.server.ia.address(), port).into(), ConnectOptions::new().timeout(LONG)).unwrap();
    connection_request(&rig.server.cr).cr.accept(&server, &[]).unwrap();
    expect_connection(&rig.client.connect, &client, ConnectionEventKind::Established);
    expect_connection(&rig.server.connect, &server, ConnectionEventKind::Established);
    let (at_server, at_client) = (server.query().unwrap(), client.query().unwrap());
    assert_eq!((at_client.local, at_client.remote), (at_server.remote, at_server.local));
    let (here, there) = (at_client.local.unwrap(), at_client.remote.unwrap());
    assert_eq!((here.ip(), there.ip()), (rig.client.ia.address(), rig.server.ia.address()));
    assert_ne!(here.port(), 0);
    assert_eq!(there.port(), port);
    drop(psp);
}

/// An address of the other family: by the device, the call or its event says so.
fn connects_to_nowhere_leave_no_memory_behind() {
    const CONNECTS: i64 = 1000;
    let side = one_side();
    let elsewhere: std::net::IpAddr =
        if side.ia.address().is_ipv4() { "::1" } else { "127.0.0.1" }.parse().unwrap();
    let mut ep = side.ep(&EpAttr::default());
    let mut connect = || match ep.connect((elsewhere, 1).into()) {
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

/// While the peer has not confirmed the connection, an EP cannot be reset, but freed. Also R171.
fn r168_ep_reset_states_without_confirmation() {
    let rig = Rig::new();
    let srq = rig.server.srq(4);
    let mut ep = rig.server.srq_ep(&srq, &EpAttr::default());
    let (raw, arrival) = rig.ask_and_never_confirm();
    arrival.cr.accept(&ep, &[]).unwrap();
    assert_eq!(ep.state(), EpState::CompletionPending);
    assert_eq!(code(ep.reset()), dat::INVALID_STATE_EP_COMPLPENDING);
    ep.close().unwrap();
    drop(raw);
    srq.close().unwrap();
}

/// Two EPs connect and are reset again and again, each time with requests and receives under way,
/// and with completions that nobody has looked at. Each work request completes once, in its own
/// life: no completion of an earlier life is taken for it.
fn reset_leaves_nothing_of_the_life_before() {
    const BUFFERS: u64 = 3;
    const TAKEN: u64 = 2;
    let rig = Rig::patient();
    // A small queue, so that its positions come round.
    let attr = EpAttr { request_depth: 8, recv_depth: 8, ..EpAttr::default() };
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
            pair.client.send(&[rig.client.lmr.triplet(0, 8)]).cookie(from + 100 + n).post().unwrap();
        }
        // The first completions are dequeued; those behind them may be polled already.
        for n in 0..TAKEN {
            let (receive, send) = (dto(&rig.server.recv), dto(&rig.client.request));
            assert_eq!((receive.cookie, receive.status), (from + n, DtoStatus::Success));
            assert_eq!((send.cookie, send.status), (from + 100 + n, DtoStatus::Success));
        }
        // Only what the server has no buffer for is under way at the end.
        until("all buffers are used", || pair.server.recv_query().unwrap().buffers == Some(0));
        rig.disconnect(&pair);
        (server, client) = (pair.server, pair.client);
        client.reset().unwrap();
        server.reset().unwrap();
        let rest = |evd: &Evd| -> Vec<_> {
            std::iter::from_fn(|| evd.dequeue().unwrap())
                .map(|event| event.completion().map(|dto| (dto.cookie, dto.status)).unwrap())
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

/// `soft_high_watermark` starts armed: one event at the first buffer over it, none after that; -1 is off.
fn r147_epsrq_srq_soft_hw_initial() {
    let rig = Rig::new();
    let mut srq = rig.server.srq(8);
    rig.server.post(&mut srq, 6, 64, 0, 0);
    let armed = EpAttr { soft_high_watermark: Some(0), ..EpAttr::default() };
    let high = EpAttr { soft_high_watermark: Some(1), ..EpAttr::default() };
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
