//! Inline data: bytes that are copied during the post.

use crate::*;
use doorbell::{
    ConnectionEventKind, DtoOp, DtoStatus, Ep, EpAttr, EpChange, Lmr, PostError, RmrTriplet, SendPool,
    Subtype,
};
use doorbell_hw_tests::rig::*;
use doorbell_hw_tests::{Rig, Test, dat, tests};

pub(crate) const TESTS: &[Test] = tests![
    inline_bytes_may_change_after_the_post,
    inline_requests_have_the_rules_of_others,
    an_ep_has_at_least_the_inline_length_asked_for,
    a_small_send_of_a_pool_goes_with_its_request,
];

fn remote(lmr: &Lmr, segment_length: u32) -> RmrTriplet {
    RmrTriplet { virtual_address: lmr.address(), segment_length, rmr_context: lmr.rmr_context() }
}

/// Messages of every length wait until the peer posts receives. What the program writes into its
/// bytes meanwhile does not arrive.
fn inline_bytes_may_change_after_the_post() {
    let rig = Rig::patient();
    // More than fast functions copy.
    const LONGEST: u8 = 240;
    let attr = EpAttr { max_inline: LONGEST.into(), request_depth: 256, ..EpAttr::default() };
    let mut pair = rig.connect(rig.server.ep(&EpAttr::default()), rig.client.ep(&attr));
    let content = |len: u8| -> Vec<u8> { (0..len).map(|n| n.wrapping_mul(7) ^ len).collect() };
    // The ring ends several times, at requests of any length.
    for round in 0..5_u8 {
        for len in round..=LONGEST {
            let mut bytes = content(len);
            pair.client.send_inline(&bytes).cookie(len.into()).post().unwrap();
            bytes.fill(0xee);
        }
        for len in round..=LONGEST {
            pair.server.post_recv(&[rig.server.lmr.triplet(0, LONGEST.into())], 0, NONE).unwrap();
            let got = dto(&rig.server.recv);
            assert_eq!((got.status, got.length), (DtoStatus::Success, len.into()));
            let mut arrived = vec![0; len.into()];
            rig.server.lmr.read(0, &mut arrived).unwrap();
            assert_eq!(arrived, content(len));
            let sent = dto(&rig.client.request);
            assert_eq!((sent.cookie, sent.length, sent.op), (len.into(), len.into(), DtoOp::Send));
        }
    }
}

/// Lengths, flags and states are checked as for other requests; an RDMA Write goes inline, too.
fn inline_requests_have_the_rules_of_others() {
    let rig = Rig::new();
    let mut client = rig.client.ep(&EpAttr { max_inline: 32, ..EpAttr::default() });
    let most = client.query().unwrap().attr.max_inline as usize;
    assert!(most >= 32);
    let error = client.send_inline(b"early").cookie(1).post();
    assert_eq!(error, Err(PostError::EpState(Subtype::InvalidStateEpUnconnected)));
    let mut pair = rig.connect(rig.server.ep(&EpAttr::default()), client);
    let long = vec![7; most + 1];
    let target = remote(&rig.server.lmr, 8);
    let there = |n| {
        let mut bytes = vec![0; n];
        rig.server.lmr.read(0, &mut bytes).unwrap();
        bytes
    };
    let client = &mut pair.client;
    let refused = client.send_inline(&long).cookie(1).post().unwrap_err();
    assert_eq!(refused, PostError::TooLongInline { given: most + 1, most: most as u32 });
    assert!(refused.to_string().contains(&most.to_string()), "{refused}");
    assert_eq!(client.write_inline(&long[..9]).to(target).cookie(1).post(), Err(PostError::Length));
    let unsignalled = CompletionFlags::UNSIGNALLED;
    assert_eq!(client.send_inline(b"flags").cookie(1).flags(unsignalled).post(), Err(PostError::Flags));
    expect_nothing(&rig.client.request);
    client.write_inline(b"written").to(target).cookie(2).suppress().post().unwrap();
    client.write_inline(b"W").to(target).cookie(3).fence().post().unwrap();
    let written = dto(&rig.client.request);
    assert_eq!((written.op, written.cookie, written.length), (DtoOp::RdmaWrite, 3, 1));
    assert_eq!(there(7), b"Written");
    let wide = remote(&rig.server.lmr, 4096);
    client.write_inline(&long[..most]).to(wide).cookie(4).post().unwrap();
    assert_eq!(dto(&rig.client.request).length as usize, most);
    assert_eq!(there(most), long[..most]);
    // Many, so that requests of several blocks go around the ring.
    for n in 0..200 {
        let bytes = vec![n as u8; n % (most + 1)];
        client.write_inline(&bytes).to(wide).cookie(n as u64).post().unwrap();
        assert_eq!(dto(&rig.client.request).cookie, n as u64);
        assert_eq!(there(bytes.len()), bytes);
    }
    rig.disconnect(&pair);
    pair.client.send_inline(b"late").cookie(5).post().unwrap();
    let flushed = dto(&rig.client.request);
    assert_eq!((flushed.cookie, flushed.status), (5, DtoStatus::Flushed));
}

/// A query gives the real length. A longer one can be had before the connection; one that no device
/// has is refused.
fn an_ep_has_at_least_the_inline_length_asked_for() {
    let rig = Rig::new();
    let side = &rig.client;
    let with = |max_inline| EpAttr { max_inline, ..EpAttr::default() };
    for bad in [1025, u32::MAX] {
        let refused = Ep::builder(&side.ia, &side.pz).evds(side.evds()).attributes(&with(bad)).build();
        assert_eq!(code(refused), dat::INVALID_ARG6);
    }
    let mut client = side.ep(&with(0));
    client.modify(EpChange { max_inline: Some(200), ..EpChange::default() }).unwrap();
    assert!(client.query().unwrap().attr.max_inline >= 200);
    let mut pair = rig.connect(rig.server.ep(&EpAttr::default()), client);
    pair.client.write_inline(&[9; 200]).to(remote(&rig.server.lmr, 200)).cookie(1).post().unwrap();
    assert_eq!(dto(&rig.client.request).status, DtoStatus::Success);
    let mut arrived = [0; 200];
    rig.server.lmr.read(0, &mut arrived).unwrap();
    assert_eq!(arrived, [9; 200]);
}

/// On the direct path, a posted message of up to 44 bytes does not need the pool's memory: it
/// arrives although the pool is gone. A longer one is read from the memory, and fails.
fn a_small_send_of_a_pool_goes_with_its_request() {
    for (len, inline) in [(1, true), (44, true), (45, false), (SIZE, false)] {
        let rig = Rig::patient();
        let mut pair = rig.connect_plain(&EpAttr::default());
        let mut pool = SendPool::new(&rig.client.ia, &rig.client.pz, 2, SIZE).unwrap();
        let receive = [rig.server.lmr.triplet(0, SIZE)];
        pair.server.post_recv(&receive, 0, NONE).unwrap();
        let first = pool.take().unwrap();
        pool.send(first).len(SIZE).post(&mut pair.client).unwrap();
        assert!(pool.completed(&dto(&rig.client.request)));
        assert_eq!(dto(&rig.server.recv).cookie, 0);
        let mut second = pool.take().unwrap();
        second.fill(len as u8);
        pool.send(second).len(len).post(&mut pair.client).unwrap();
        drop(pool);
        // rxe sends the message again and again, each time from its memory, and fails without a
        // receive. With one, the first copy might arrive late, and still be taken.
        if !doorbell_hw_tests::on_rxe() {
            pair.server.post_recv(&receive, 1, NONE).unwrap();
        }
        let sent = dto(&rig.client.request);
        if inline && rig.client.ia.provider_attributes().datapath == "direct" {
            assert_eq!(sent.status, DtoStatus::Success, "{len} bytes");
            assert_eq!(dto(&rig.server.recv).length as usize, len);
            let mut arrived = vec![0; len];
            rig.server.lmr.read(0, &mut arrived).unwrap();
            assert_eq!(arrived, vec![len as u8; len]);
        } else {
            // LOCAL_PROTECTION on mlx5; rxe flushes the request.
            assert_ne!(sent.status, DtoStatus::Success, "{len} bytes");
            expect_connection(&rig.client.connect, &pair.client, ConnectionEventKind::Broken);
        }
    }
}
