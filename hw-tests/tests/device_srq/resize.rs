//! Resizing (section H).

use crate::*;
use doorbell::inside::EpEvds;
use doorbell::{EpAttr, Srq};
use doorbell_hw_tests::dat;
use doorbell_hw_tests::rig::*;
use doorbell_hw_tests::{Pair, Rig, Side, Test, devices, tests};

pub(crate) const TESTS: &[Test] = tests![
    r94_srq_resize_grow_again_and_again,
    r98_srq_resize_outstanding_has_three_parts,
    r98_srq_resize_finds_unwanted_messages,
    r103_srq_resize_no_resources,
    r103_srq_resize_beyond_the_room,
];

/// An SRQ that the device lets grow to the largest depth, whether it can resize an SRQ or not.
fn growing(side: &Side) -> Srq {
    side.srq(side.ia.attributes().max_srq_depth / 4 + 1)
}

fn depth(srq: &Srq) -> u32 {
    srq.query().unwrap().depth
}

/// The resize that has to be refused changes nothing.
fn resize_refused(srq: &mut Srq, to: u32) -> u32 {
    let before = srq.query().unwrap();
    let code = refused(srq.resize(to));
    assert_eq!(srq.query().unwrap(), before);
    code
}

/// An SRQ with an EP that is resized to the largest depth and back many times reserves CQ room
/// once.
fn r94_srq_resize_grow_again_and_again() {
    let rig = Rig::new();
    let limits = rig.server.ia.attributes();
    let most = limits.max_srq_depth;
    let mut srq = growing(&rig.server);
    let mut pair = rig.connect_srq(&srq);
    rig.server.post(&mut srq, 2, 64, 0, 1);
    for _ in 0..limits.max_evd_depth / most + 3 {
        srq.resize(most).unwrap();
        srq.resize(4).unwrap();
    }
    assert_eq!(counts(&srq), (2, 2));
    assert_eq!(rig.deliver(&mut pair, 24).cookie, 1);
}

/// Four buffers on the SRQ, two being filled and one complete but not reaped: six are too few,
/// seven will do. Also R37.
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
        pair.client.send(&[triplet]).post().unwrap();
    }
    // Before, while and after the two arrive it is the same.
    until("both are complete", || {
        assert_eq!(refused(srq.resize(6)), dat::INVALID_STATE);
        let (available, outstanding) = counts(&srq);
        assert_eq!(outstanding, 7);
        available == 4
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
    let ep = Ep::builder(&side.ia, &side.pz).evds(evds).srq(&srq).build().unwrap();
    let mut pair = rig.connect(ep, rig.client.ep(&EpAttr::default()));
    side.post(&mut srq, 6, 64, 0, 0);
    for _ in 0..4 {
        assert!(rig.send(&mut pair, 0, 24).is_success());
    }
    until("all messages are found", || srq.resize(2).is_ok());
    assert_eq!(counts(&srq), (2, 2));
}

/// Two SRQs whose EPs share a receive EVD cannot both be as deep as the device's longest completion
/// queue; the second resize is refused and changes nothing. If the CQ is long enough for both, both
/// succeed.
fn r103_srq_resize_no_resources() {
    let rig = Rig::new();
    let side = &rig.server;
    let limits = side.ia.attributes();
    let most = limits.max_srq_depth;
    let attr = EpAttr::default();
    let recv = dto_evd(side);
    let evds = EpEvds { recv: Some(&recv), ..side.evds() };
    let large = side.srq(most / 2 + 2);
    let mut small = growing(side);
    let on_large = Ep::builder(&side.ia, &side.pz).evds(evds).srq(&large).attributes(&attr).build().unwrap();
    let on_small = Ep::builder(&side.ia, &side.pz).evds(evds).srq(&small).attributes(&attr).build().unwrap();
    side.post(&mut small, 3, 64, 0, 0);
    let fits = depth(&large) + most <= limits.max_evd_depth;
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
    on_large.close().unwrap();
    large.close().unwrap();
    small.resize(most).unwrap();
}

/// By verbs, an SRQ that the device cannot resize has room for four times its depth, and for 4,095
/// buffers. A larger depth is refused, and changes nothing.
fn r103_srq_resize_beyond_the_room() {
    let side = server();
    let most = side.ia.attributes().max_srq_depth;
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
