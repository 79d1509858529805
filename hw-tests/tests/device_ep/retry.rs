//! Retries, timeout and RDMA Read depth of each EP.

use crate::*;
use doorbell::{ConnectionEventKind, DtoStatus, Ep, EpAttr, EpChange, RetryAttr, RmrTriplet};
use doorbell_hw_tests::rig::*;
use doorbell_hw_tests::{Rig, Test, dat, tests};

pub(crate) const TESTS: &[Test] = tests![
    retries_are_those_of_the_environment_unless_set,
    retries_out_of_range_are_refused,
    each_ep_has_retries_of_its_own,
    no_retry_breaks_a_connection_at_once,
    read_depths_beyond_the_default_are_agreed_on,
];

/// An EP without values of its own has those of the IAs, as DAT programs do.
fn retries_are_those_of_the_environment_unless_set() {
    // The peer's setting is how often this side repeats.
    let rig = Rig::with(|ia| ia.rnr_retry(3).rnr_timer(14));
    let attr = EpAttr::default();
    assert_eq!(attr.retry, RetryAttr::default());
    let (server, client) = (rig.server.ep(&attr), rig.client.ep(&attr));
    assert_eq!(code(client.connection()), dat::INVALID_STATE_EP_UNCONNECTED);
    let pair = rig.connect(server, client);
    for ep in [&pair.server, &pair.client] {
        let is = ep.connection().unwrap();
        assert_eq!((is.rnr_retry, is.rnr_timer, is.retry_count), (3, 14, 7));
        assert_eq!((is.rdma_reads_in, is.rdma_reads_out), (4, 4));
        assert!(is.mtu >= 256);
        assert_eq!(ep.query().unwrap().attr.retry, RetryAttr::default());
    }
    rig.disconnect(&pair);
    assert_eq!(code(pair.server.connection()), dat::INVALID_STATE_EP_DISCONNECTED);
}

/// Values that no device can have are refused with the name of the attribute, at creation and by a
/// modify, and change nothing.
fn retries_out_of_range_are_refused() {
    let side = one_side();
    let srq = side.srq(4);
    let none = RetryAttr::default();
    let bad = [
        ("rnr_retry", RetryAttr { rnr_retry: Some(8), ..none }),
        ("rnr_timer", RetryAttr { rnr_timer: Some(32), ..none }),
        ("retry_count", RetryAttr { retry_count: Some(8), ..none }),
        ("timeout", RetryAttr { timeout: Some(32), ..none }),
    ];
    let mut ep = side.ep(&EpAttr::default());
    for (name, retry) in bad {
        let attr = EpAttr { retry, ..EpAttr::default() };
        let error = Ep::builder(&side.ia, &side.pz).evds(side.evds()).attributes(&attr).build().unwrap_err();
        assert_eq!(error.code(), dat::INVALID_ARG6);
        assert!(error.to_string().contains(name), "{error}");
        let on_srq = Ep::builder(&side.ia, &side.pz).evds(side.evds()).srq(&srq).attributes(&attr).build();
        assert_eq!(code(on_srq), dat::INVALID_ARG7);
        let change = EpChange { retry: Some(retry), ..EpChange::default() };
        assert_eq!(code(ep.modify(change)), dat::INVALID_ARG3);
        assert_eq!(ep.query().unwrap().attr.retry, none);
    }
    let most = RetryAttr { rnr_retry: Some(7), rnr_timer: Some(31), retry_count: Some(7), timeout: Some(31) };
    side.ep(&EpAttr { retry: most, ..EpAttr::default() });
}

/// The values of an EP hold for its own connection, on the active and on the passive side, set at
/// creation or by a modify, also after a reset. The peer keeps its own.
fn each_ep_has_retries_of_its_own() {
    let rig = Rig::with(|ia| ia.rnr_retry(6).rnr_timer(26));
    let one = RetryAttr { rnr_retry: Some(1), rnr_timer: Some(5), retry_count: Some(2), timeout: Some(17) };
    let two = RetryAttr { rnr_retry: Some(0), rnr_timer: Some(0), ..RetryAttr::default() };
    let of = |ep: &Ep| {
        let is = ep.connection().unwrap();
        (is.rnr_retry, is.rnr_timer, is.retry_count)
    };
    let server = rig.server.ep(&EpAttr { retry: one, ..EpAttr::default() });
    let mut client = rig.client.ep(&EpAttr::default());
    client.modify(EpChange { retry: Some(two), ..EpChange::default() }).unwrap();
    assert_eq!(client.query().unwrap().attr.retry, two);
    let mut pair = rig.connect(server, client);
    for _ in 0..2 {
        assert_eq!((of(&pair.server), of(&pair.client)), ((1, 5, 2), (0, 0, 7)));
        assert_eq!(pair.server.connection().unwrap().timeout, 17);
        rig.disconnect(&pair);
        pair.server.reset().unwrap();
        pair.client.reset().unwrap();
        pair = rig.connect(pair.server, pair.client);
    }
    rig.disconnect(&pair);
    // The values of the other side; beside them, EPs without values.
    let with = |retry| EpAttr { retry, ..EpAttr::default() };
    let pair = rig.connect(rig.server.ep(&with(two)), rig.client.ep(&with(one)));
    assert_eq!((of(&pair.server), of(&pair.client)), ((0, 0, 7), (1, 5, 2)));
    let plain = rig.connect(rig.server.ep(&EpAttr::default()), rig.client.ep(&EpAttr::default()));
    assert_eq!((of(&plain.server), of(&plain.client)), ((6, 26, 7), (6, 26, 7)));
}

/// With `rnr_retry` 0, the first message without a posted receive ends the connection, although the
/// IA's setting is to retry without end. The same EP with the IA's setting waits for a receive.
fn no_retry_breaks_a_connection_at_once() {
    let rig = Rig::patient();
    let retry = RetryAttr { rnr_retry: Some(0), ..RetryAttr::default() };
    let client = rig.client.ep(&EpAttr { retry, ..EpAttr::default() });
    let mut pair = rig.connect(rig.server.ep(&EpAttr::default()), client);
    let sent = rig.send(&mut pair, 0, 8);
    assert_eq!(sent.status, DtoStatus::ReceiverNotReady);
    expect_connection(&rig.client.connect, &pair.client, ConnectionEventKind::Broken);
    expect_connection(&rig.server.connect, &pair.server, ConnectionEventKind::Disconnected);
    pair.client.reset().unwrap();
    pair.server.reset().unwrap();
    pair.client.modify(EpChange { retry: Some(RetryAttr::default()), ..EpChange::default() }).unwrap();
    let mut pair = rig.connect(pair.server, pair.client);
    pair.client.send(&[rig.client.lmr.triplet(0, 8)]).cookie(1).post().unwrap();
    expect_nothing(&rig.client.request);
    pair.server.post_recv(&[rig.server.lmr.triplet(0, 64)], 2, NONE).unwrap();
    assert_eq!(dto(&rig.client.request).status, DtoStatus::Success);
    assert_eq!(dto(&rig.server.recv).cookie, 2);
}

/// Both sides get the smaller of what one requests and the other answers, up to the limits of the
/// device. That many Reads, and more, complete. rxe rounds the numbers up to powers of two.
fn read_depths_beyond_the_default_are_agreed_on() {
    let rig = Rig::new();
    let ia = rig.server.ia.attributes();
    let (most_in, most_out) = (ia.max_rdma_reads_in, ia.max_rdma_reads_out);
    assert!(most_in > 4 && most_out > 4, "{most_in} and {most_out}");
    let reads = |rdma_reads_in, rdma_reads_out| EpAttr {
        rdma_reads_in,
        rdma_reads_out,
        request_depth: 2 * most_out.min(64),
        ..EpAttr::default()
    };
    for (server, client) in
        [((most_in, most_out), (most_in, most_out)), ((8, 2), (4, most_out)), ((0, most_out), (8, 0))]
    {
        let pair =
            rig.connect(rig.server.ep(&reads(server.0, server.1)), rig.client.ep(&reads(client.0, client.1)));
        let of = |ep: &Ep| {
            let is = ep.connection().unwrap();
            (u32::from(is.rdma_reads_in), u32::from(is.rdma_reads_out))
        };
        assert_eq!(of(&pair.server), (server.0.min(client.1), server.1.min(client.0)), "{server:?}");
        assert_eq!(of(&pair.client), (client.0.min(server.1), client.1.min(server.0)), "{client:?}");
        rig.disconnect(&pair);
    }
    let all = reads(most_in, most_out);
    let mut pair = rig.connect(rig.server.ep(&all), rig.client.ep(&all));
    let n = u64::from(pair.client.query().unwrap().attr.request_depth.min(2 * most_out));
    let there = &rig.server.lmr;
    let bytes: Vec<u8> = (0..n * 8).map(|byte| byte as u8).collect();
    there.write(0, &bytes).unwrap();
    for cookie in 0..n {
        let from = RmrTriplet {
            virtual_address: there.address() + 8 * cookie,
            segment_length: 8,
            rmr_context: there.rmr_context(),
        };
        let into = [rig.client.lmr.triplet(8 * cookie as usize, 8)];
        pair.client.read(&into).from(from).cookie(cookie).post().unwrap();
    }
    for cookie in 0..n {
        let done = dto(&rig.client.request);
        assert_eq!((done.cookie, done.status), (cookie, DtoStatus::Success));
    }
    let mut read = vec![0; bytes.len()];
    rig.client.lmr.read(0, &mut read).unwrap();
    assert_eq!(read, bytes);
}
