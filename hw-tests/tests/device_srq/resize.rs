//! Resizing (section H).

use crate::*;
use doorbell::{CompletionFlags, EpAttr, EpEvds, Srq};
use doorbell_hw_tests::dat;
use doorbell_hw_tests::rig::*;
use doorbell_hw_tests::{Pair, Rig, Side, Test, devices, tests};
use std::collections::HashMap;

pub(crate) const TESTS: &[Test] = tests![
    r94_srq_resize_grow,
    r94_srq_resize_grow_again_and_again,
    r95_srq_resize_shrink,
    r97_srq_resize_below_outstanding,
    r98_srq_resize_outstanding_has_three_parts,
    r98_srq_resize_finds_unwanted_messages,
    r100_srq_resize_below_low_watermark,
    r102_srq_resize_bad_value,
    r103_srq_resize_no_resources,
    r103_srq_resize_beyond_the_room,
    r104_srq_resize_under_traffic,
    r105_srq_resize_leaves_watermark_armed,
];

/// An SRQ that the device lets grow to the largest depth, whether it can resize an SRQ or not.
fn growing(side: &Side) -> Srq {
    side.srq(side.ia.attributes().max_recv_per_srq / 4 + 1)
}

fn depth(srq: &Srq) -> i32 {
    srq.query().unwrap().max_recv_dtos
}

/// The resize that has to be refused changes nothing.
fn resize_refused(srq: &mut Srq, to: i32) -> u32 {
    let before = srq.query().unwrap();
    let code = refused(srq.resize(to));
    assert_eq!(srq.query().unwrap(), before);
    code
}

/// Growing keeps the buffers, which still take their messages, and makes room for as many as the
/// new depth says.
fn r94_srq_resize_grow() {
    let rig = Rig::new();
    let mut srq = rig.server.srq(4);
    let mut pair = rig.connect_srq(&srq);
    rig.server.post(&mut srq, 4, 64, 0, 0);
    for to in [5, 100] {
        let (_, before) = counts(&srq);
        srq.resize(to).unwrap();
        assert!(depth(&srq) >= to);
        assert_eq!(counts(&srq), (before, before));
        let more = (depth(&srq) - before) as usize;
        rig.server.post(&mut srq, more, 64, before as usize * 64, before as u64);
        assert_eq!(post_refused(srq.post_recv(&[], 0)), dat::RESOURCE_SRQ);
    }
    let all = depth(&srq) as u64;
    let mut cookies: Vec<_> = (0..all).map(|_| rig.deliver(&mut pair, 24).cookie).collect();
    cookies.sort_unstable();
    assert!(cookies.into_iter().eq(0..all));
    assert_eq!(counts(&srq), (0, 0));
}

/// An SRQ with an EP that is resized to the largest depth and back many times reserves CQ room
/// once.
fn r94_srq_resize_grow_again_and_again() {
    let rig = Rig::new();
    let limits = rig.server.ia.attributes();
    let most = limits.max_recv_per_srq;
    let mut srq = growing(&rig.server);
    let mut pair = rig.connect_srq(&srq);
    rig.server.post(&mut srq, 2, 64, 0, 1);
    for _ in 0..limits.max_evd_qlen / most + 3 {
        srq.resize(most).unwrap();
        srq.resize(4).unwrap();
    }
    assert_eq!(counts(&srq), (2, 2));
    assert_eq!(rig.deliver(&mut pair, 24).cookie, 1);
}

/// A shrink that fits succeeds; the depth is then between what was asked for and what it was, and
/// holds. Also R96.
fn r95_srq_resize_shrink() {
    let side = server();
    let mut srq = side.srq(64);
    side.post(&mut srq, 8, 64, 0, 0);
    let mut before = depth(&srq);
    for to in [40, 16, 8] {
        srq.resize(to).unwrap();
        let now = depth(&srq);
        assert!((to..=before).contains(&now), "{to} {now} {before}");
        assert_eq!(counts(&srq), (8, 8));
        before = now;
    }
    side.post(&mut srq, (before - 8) as usize, 64, 0, 0);
    assert_eq!(post_refused(srq.post_recv(&[], 0)), dat::RESOURCE_SRQ);
}

/// Fewer than are outstanding is refused, exactly as many is allowed. Also R99.
fn r97_srq_resize_below_outstanding() {
    let side = server();
    let mut srq = side.srq(16);
    side.post(&mut srq, 7, 64, 0, 0);
    for to in [6, 1] {
        assert_eq!(resize_refused(&mut srq, to), dat::INVALID_STATE);
    }
    srq.resize(7).unwrap();
    assert!(depth(&srq) >= 7);
    assert_eq!(counts(&srq), (7, 7));
}

/// Four buffers on the SRQ, two being filled and one complete but not reaped: six are too few,
/// seven will do.
fn r98_srq_resize_outstanding_has_three_parts() {
    const LARGE: usize = 1 << 20;
    let rig = Rig::new();
    let mut srq = rig.server.srq(16);
    let mut pairs: Vec<Pair> = (0..2).map(|_| rig.connect_srq(&srq)).collect();
    rig.server.post(&mut srq, 1, 64, 0, 0);
    rig.send(&mut pairs[0], 0, 24);
    until("the message is complete", || counts(&srq) == (0, 1));
    // All buffers share memory: the test does not look at the bytes.
    for _ in 0..6 {
        rig.server.post(&mut srq, 1, LARGE, 0, 0);
    }
    for pair in &mut pairs {
        let triplet = rig.client.lmr.triplet(0, LARGE);
        pair.client.post_send(&[triplet], 0, CompletionFlags::empty()).unwrap();
    }
    // Before, while and after the two arrive it is the same.
    until("both are complete", || {
        assert_eq!(refused(srq.resize(6)), dat::INVALID_STATE);
        counts(&srq).0 == 4
    });
    assert_eq!(resize_refused(&mut srq, 6), dat::INVALID_STATE);
    srq.resize(7).unwrap();
    for _ in 0..3 {
        assert!(dto(&rig.server.recv).is_success());
    }
    assert_eq!(counts(&srq), (4, 4));
}

/// Messages of an EP without a receive EVD occupy no entry. Nothing but the resize looks for them.
fn r98_srq_resize_finds_unwanted_messages() {
    let rig = Rig::new();
    let side = &rig.server;
    let mut srq = side.srq(8);
    let evds = EpEvds { recv: None, ..side.evds() };
    let ep = Ep::create_with_srq(&side.ia, &side.pz, evds, &srq, &EpAttr::default()).unwrap();
    let mut pair = rig.connect(ep, rig.client.ep(&EpAttr::default()));
    side.post(&mut srq, 6, 64, 0, 0);
    for _ in 0..4 {
        assert!(rig.send(&mut pair, 0, 24).is_success());
    }
    until("all messages are found", || srq.resize(2).is_ok());
    assert_eq!(counts(&srq), (2, 2));
}

/// Below the low watermark is refused, exactly at it is allowed. Also R101.
fn r100_srq_resize_below_low_watermark() {
    let side = server();
    let mut srq = side.srq(16);
    side.post(&mut srq, 2, 64, 0, 0);
    // Armed or fired makes no difference: with two posted, 2 is armed and 5 fires during the call.
    for low in [5, 2] {
        srq.set_low_watermark(low).unwrap();
        if low > 2 {
            assert_eq!(resize_refused(&mut srq, low - 1), dat::INVALID_STATE);
        } else {
            assert_eq!(resize_refused(&mut srq, 1), dat::INVALID_STATE);
        }
        srq.resize(low).unwrap();
        assert!(depth(&srq) >= low);
    }
}

/// Zero, negative depths and depths over the IA's limit are refused as parameters before any other
/// check.
fn r102_srq_resize_bad_value() {
    let side = server();
    let mut srq = growing(&side);
    srq.resize(4).unwrap();
    side.post(&mut srq, 4, 64, 0, 0);
    srq.set_low_watermark(4).unwrap();
    let most = side.ia.attributes().max_recv_per_srq;
    for to in [0, -1, i32::MIN, most + 1, i32::MAX] {
        assert_eq!(resize_refused(&mut srq, to), dat::INVALID_ARG2);
    }
    srq.resize(most).unwrap();
    assert!(depth(&srq) >= most);
}

/// Two SRQs whose EPs share a receive EVD cannot both be as deep as the device's longest completion
/// queue; the second resize is refused and changes nothing. If the CQ is long enough for both, both
/// succeed.
fn r103_srq_resize_no_resources() {
    let rig = Rig::new();
    let side = &rig.server;
    let limits = side.ia.attributes();
    let most = limits.max_recv_per_srq;
    let attr = EpAttr::default();
    let recv = dto_evd(side);
    let evds = EpEvds { recv: Some(&recv), ..side.evds() };
    let large = side.srq(most / 2 + 2);
    let mut small = growing(side);
    let on_large = Ep::create_with_srq(&side.ia, &side.pz, evds, &large, &attr).unwrap();
    let on_small = Ep::create_with_srq(&side.ia, &side.pz, evds, &small, &attr).unwrap();
    side.post(&mut small, 3, 64, 0, 0);
    let fits = i64::from(depth(&large)) + i64::from(most) <= i64::from(limits.max_evd_qlen);
    if fits {
        small.resize(most).unwrap();
    } else {
        assert_eq!(resize_refused(&mut small, most), dat::RESOURCE_MEMORY);
    }
    let more = depth(&small) - 3;
    for _ in 0..more {
        small.post_recv(&[side.lmr.triplet(0, 64)], 7).unwrap();
    }
    assert_eq!(post_refused(small.post_recv(&[], 0)), dat::RESOURCE_SRQ);
    let mut pair = rig.connect(on_small, rig.client.ep(&attr));
    assert_eq!(rig.send(&mut pair, 0, 24).status, doorbell::DtoStatus::Success);
    assert_eq!(dto(&recv).cookie, 0);
    // Without the large one there is room.
    on_large.free().unwrap();
    large.free().unwrap();
    small.resize(most).unwrap();
}

/// By verbs, an SRQ that the device cannot resize has room for four times its depth, and for 4,095
/// buffers. A larger depth is refused, and changes nothing.
fn r103_srq_resize_beyond_the_room() {
    let side = server();
    let most = side.ia.attributes().max_recv_per_srq;
    let name = devices().expect("DOORBELL_TEST_DEVICES names the devices").0;
    let resizable = rxe_fallback::Context::open(&name).unwrap().attributes().srq_resize;
    let unlimited = resizable || side.ia.provider_attributes().datapath == "direct";
    for (from, room) in [(4, 4095), (1500, 6000)] {
        let mut srq = side.srq(from);
        side.post(&mut srq, 3, 64, 0, 0);
        srq.resize(room.min(most)).unwrap();
        assert_eq!(counts(&srq), (3, 3));
        for to in [room + 1, most].into_iter().filter(|&to| room < to && to <= most) {
            if unlimited {
                srq.resize(to).unwrap();
            } else {
                assert_eq!(resize_refused(&mut srq, to), dat::RESOURCE_MEMORY);
            }
        }
        let all = depth(&srq);
        for _ in 3..all {
            srq.post_recv(&[side.lmr.triplet(0, 64)], 7).unwrap();
        }
        assert_eq!(post_refused(srq.post_recv(&[], 0)), dat::RESOURCE_SRQ);
        assert_eq!(counts(&srq), (all, all));
    }
}

/// While two connections carry numbered messages the SRQ grows and shrinks after each: all messages
/// arrive, in order and intact.
fn r104_srq_resize_under_traffic() {
    const EACH: u64 = 60;
    const SLOT: usize = 64;
    let rig = Rig::patient();
    let mut srq = rig.server.srq(6);
    let mut servers = Vec::new();
    let mut clients = Vec::new();
    for Pair { server, client } in [rig.connect_srq(&srq), rig.connect_srq(&srq)] {
        servers.push(server);
        clients.push(client);
    }
    rig.server.post(&mut srq, 6, SLOT, 0, 0);
    std::thread::scope(|scope| {
        let side = &rig.client;
        scope.spawn(move || {
            for n in 0..EACH {
                side.lmr.write(0, &n.to_ne_bytes()).unwrap();
                for client in &mut clients {
                    client.post_send(&[side.lmr.triplet(0, 8)], 0, CompletionFlags::empty()).unwrap();
                }
                for _ in 0..2 {
                    assert!(dto(&side.request).is_success());
                }
            }
            clients
        });
        let mut next: HashMap<_, u64> = servers.iter().map(|ep| (ep.id(), 0)).collect();
        for i in 0..2 * EACH {
            let got = dto(&rig.server.recv);
            assert!(got.is_success(), "{got:?}");
            let offset = got.cookie as usize * SLOT;
            let mut number = [0; 8];
            rig.server.lmr.read(offset, &mut number).unwrap();
            let expected = next.get_mut(&got.ep).unwrap();
            assert_eq!(u64::from_ne_bytes(number), *expected);
            *expected += 1;
            srq.post_recv(&[rig.server.lmr.triplet(offset, SLOT)], got.cookie).unwrap();
            // Each new depth is larger than all before it, so that the device has to resize.
            srq.resize(if i % 2 == 0 { 7 + i as i32 } else { 6 }).unwrap();
        }
    });
    assert_eq!(counts(&srq), (6, 6));
}

/// A resize, up or down, fires no watermark event and leaves the one that is armed to fire later,
/// once; the number of segments stays.
fn r105_srq_resize_leaves_watermark_armed() {
    let rig = Rig::new();
    let mut srq = rig.server.srq(8);
    let mut pair = rig.connect_srq(&srq);
    let iov = srq.query().unwrap().max_recv_iov;
    rig.server.post(&mut srq, 4, 64, 0, 0);
    srq.set_low_watermark(3).unwrap();
    for to in [200, 4, 16] {
        srq.resize(to).unwrap();
        let param = srq.query().unwrap();
        assert_eq!((param.low_watermark, param.max_recv_iov), (3, iov));
    }
    rig.deliver(&mut pair, 24);
    expect_nothing(rig.server.ia.async_evd());
    rig.deliver(&mut pair, 24);
    assert_eq!(asynchronous(&rig.server.ia).reason, doorbell::reason::SRQ_LOW_WATERMARK);
    // It has fired: no resize arms it again.
    srq.resize(300).unwrap();
    rig.deliver(&mut pair, 24);
    expect_nothing(rig.server.ia.async_evd());
}
