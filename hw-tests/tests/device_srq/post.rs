//! Posting (section E), and the entries that messages occupy (section F and G).

use crate::*;
use doorbell::inside::EpEvds;
use doorbell::{Direction, DtoStatus, EpAttr, EpState, Lmr, LmrTriplet, Srq};
use doorbell_hw_tests::dat;
use doorbell_hw_tests::rig::*;
use doorbell_hw_tests::{Pair, Rig, Test, tests};

pub(crate) const TESTS: &[Test] = tests![
    r50_srq_post_nonblocking,
    r58_srq_post_invalid_lmr,
    posts_check_each_segment_in_any_lmr,
    r61_srq_post_full_for_one_and_for_several_segments,
    posts_find_each_entry_that_came_back,
    r69_srq_post_memory_owned_until_completion,
    r87_srq_null_recv_evd_discards_completion,
    r93_srq_bookkeeping_survives_any_order,
];

/// The bytes of an LMR from `offset` on.
fn bytes<const N: usize>(lmr: &Lmr, offset: usize) -> [u8; N] {
    let mut to = [0; N];
    lmr.read(offset, &mut to).unwrap();
    to
}

/// An SRQ with buffers of up to `iov` segments.
fn srq_with_iov(side: &Side, depth: u32, iov: u32) -> Srq {
    Srq::builder(&side.ia, &side.pz).depth(depth).segments(iov).build().unwrap()
}

/// Posting allocates nothing, neither to a fresh SRQ nor round after round, and on a full one it
/// comes back at once.
fn r50_srq_post_nonblocking() {
    const DEPTH: u64 = 16;
    let rig = Rig::new();
    let mut srq = rig.server.srq(DEPTH as u32);
    let mut pair = rig.connect_srq(&srq);
    let triplet = rig.server.lmr.triplet(0, 64);
    let allocations = allocation_counter::measure(|| {
        for cookie in 0..DEPTH {
            srq.post_recv(&[triplet], cookie).unwrap();
        }
        assert_eq!(post_refused(srq.post_recv(&[triplet], 0)), dat::RESOURCE_SRQ);
    });
    assert_eq!(allocations.count_total, 0);
    for _ in 0..3 * DEPTH {
        rig.deliver(&mut pair, 24);
        let allocations = allocation_counter::measure(|| srq.post_recv(&[triplet], 0).unwrap());
        assert_eq!(allocations.count_total, 0);
    }
}

/// A context that names no LMR, or none any more, is refused, also when it is that of the last
/// post.
fn r58_srq_post_invalid_lmr() {
    let side = server();
    let mut srq = srq_with_iov(&side, 4, 2);
    for segments in 1..=2 {
        let other = Lmr::builder(&side.ia, &side.pz).privileges(all_privileges()).allocate(4096).unwrap();
        let was_good = other.triplet(0, 64);
        srq.post_recv(&[was_good; 2][..segments], 0).unwrap();
        other.close().unwrap();
        // Entries of the LMR table are used again; contexts are not.
        let next = Lmr::builder(&side.ia, &side.pz).privileges(all_privileges()).allocate(4096).unwrap();
        let beyond = LmrTriplet { lmr_context: next.context() + 1000, ..was_good };
        let none = LmrTriplet { lmr_context: 0, ..side.lmr.triplet(0, 64) };
        let all_ones = LmrTriplet { lmr_context: u32::MAX, ..side.lmr.triplet(0, 64) };
        for bad in [was_good, beyond, none, all_ones] {
            let outcome = srq.post_recv(&[bad; 2][..segments], 0);
            assert_eq!(post_refused(outcome), dat::PRIVILEGES_WRITE, "{segments} of {bad:?}");
        }
        let posted = segments as u32;
        assert_eq!(counts(&srq), (posted, posted));
    }
}

/// After posts in some LMRs, each segment in these and in others is checked, and a message's bytes
/// go into the segments in their order.
fn posts_check_each_segment_in_any_lmr() {
    let rig = Rig::new();
    let side = &rig.server;
    let mut srq = srq_with_iov(side, 8, 5);
    let mut pair = rig.connect_srq(&srq);
    let several = SeveralLmrs::new(side);
    let lmrs = &several.lmrs;
    let content: Vec<u8> = (1..=64).collect();
    rig.client.lmr.write(0, &content).unwrap();
    // In one LMR, then in several; each buffer twice, so that more than one post finds its LMRs.
    for step in [0, 1, 2, 1] {
        for n in [1, 2, 3, 4, 5, 1, 1] {
            for round in 0..2 {
                let part = |k: usize| (&lmrs[(k + round) * step % 3], 40 * k + step, 3 + k);
                let parts: Vec<(&Lmr, usize, usize)> = (0..n).map(part).collect();
                let segments: Vec<_> = parts.iter().map(|(lmr, at, len)| lmr.triplet(*at, *len)).collect();
                several.are_refused_among(&segments, Direction::Write, |bad| srq.post_recv(bad, 1));
                assert_eq!(counts(&srq), (0, 0));
                srq.post_recv(&segments, 7).unwrap();
                let len: usize = parts.iter().map(|(.., len)| len).sum();
                let got = rig.deliver(&mut pair, len);
                assert_eq!((got.status, got.cookie, got.length), (DtoStatus::Success, 7, len as u32));
                assert_eq!(content_of(&parts), content[..len], "{segments:?}");
            }
        }
    }
}

/// Buffers of one and of several segments share the depth, in whatever order they are posted.
fn r61_srq_post_full_for_one_and_for_several_segments() {
    let rig = Rig::new();
    let mut srq = srq_with_iov(&rig.server, 4, 2);
    let depth = srq.query().unwrap().depth;
    let mut pair = rig.connect_srq(&srq);
    let one = [rig.server.lmr.triplet(0, 64)];
    let two = [rig.server.lmr.triplet(0, 64), rig.server.lmr.triplet(64, 64)];
    srq.post_recv(&two, 0).unwrap();
    rig.server.post(&mut srq, depth as usize - 1, 64, 0, 0);
    for round in 0..12 {
        for buffer in [&one[..], &two] {
            assert_eq!(post_refused(srq.post_recv(buffer, 0)), dat::RESOURCE_SRQ, "round {round}");
        }
        assert_eq!(counts(&srq), (depth, depth));
        for _ in 0..2 {
            rig.deliver(&mut pair, 24);
        }
        // Several rounds of one segment pass what the last post of two segments knew of the room.
        let next = if round % 4 == 3 { &two[..] } else { &one };
        srq.post_recv(next, 0).unwrap();
        srq.post_recv(&one, 0).unwrap();
    }
}

/// No post is refused while an entry is free, for several rounds of all slots. Buffers without
/// segments lie in no LMR, and so are all posted by the function for all cases.
fn posts_find_each_entry_that_came_back() {
    let rig = Rig::new();
    let mut srq = rig.server.srq(2);
    let mut pair = rig.connect_srq(&srq);
    for cookie in 0..1300 {
        srq.post_recv(&[], cookie).unwrap();
        assert_eq!(rig.deliver(&mut pair, 0).cookie, cookie);
    }
    assert_eq!(counts(&srq), (0, 0));
}

/// A buffer's memory is written between post and completion and at no other time: what the consumer
/// writes there afterwards stays, whatever arrives.
fn r69_srq_post_memory_owned_until_completion() {
    let rig = Rig::new();
    let mut srq = rig.server.srq(4);
    let mut pair = rig.connect_srq(&srq);
    let lmr = &rig.server.lmr;
    lmr.write(0, &[1; 128]).unwrap();
    rig.server.post(&mut srq, 2, 64, 0, 0);
    // Posted, not written to.
    assert_eq!(bytes(lmr, 0), [1; 128]);
    rig.client.lmr.write(0, &[2; 64]).unwrap();
    assert_eq!(rig.deliver(&mut pair, 64).cookie, 0);
    assert_eq!(bytes(lmr, 0), [2; 64]);
    lmr.write(0, &[3; 64]).unwrap();
    assert_eq!(rig.deliver(&mut pair, 64).cookie, 1);
    assert_eq!((bytes(lmr, 0), bytes(lmr, 64)), ([3; 64], [2; 64]));
}

/// A connection whose server EP reports receives to an EVD of its own.
fn connect_with_recv_evd(rig: &Rig, srq: &Srq, recv: Option<&Evd>) -> Pair {
    let attr = EpAttr::default();
    let evds = EpEvds { recv, ..rig.server.evds() };
    let server =
        Ep::builder(&rig.server.ia, &rig.server.pz).evds(evds).srq(srq).attributes(&attr).build().unwrap();
    rig.connect(server, rig.client.ep(&attr))
}

/// Without a recv EVD messages arrive, make no event, and their entries are free at once: more
/// messages than entries get through.
fn r87_srq_null_recv_evd_discards_completion() {
    let rig = Rig::new();
    let mut srq = rig.server.srq(2);
    let mut pair = connect_with_recv_evd(&rig, &srq, None);
    for round in 0..6_u8 {
        // Longer than a payload that a device may put into the completion (scatter to CQE).
        let (offset, message) = (256 * usize::from(round), [round + 1; 200]);
        rig.client.lmr.write(0, &message).unwrap();
        // The program neither reaps nor queries: the post itself finds the room.
        let buffer = [rig.server.lmr.triplet(offset, 256)];
        until("an entry is free", || srq.post_recv(&buffer, 0).is_ok());
        assert_eq!(rig.send(&mut pair, 0, message.len()).status, DtoStatus::Success);
        assert_eq!(bytes(&rig.server.lmr, offset), message);
    }
    until("all entries are free", || counts(&srq) == (0, 0));
    expect_nothing(&rig.server.recv);
    assert_eq!(pair.server.state(), EpState::Connected);
}

/// Reaping in another order than posting loses no capacity and mixes up no cookies.
fn r93_srq_bookkeeping_survives_any_order() {
    let rig = Rig::new();
    let mut srq = rig.server.srq(4);
    let evds = [dto_evd(&rig.server), dto_evd(&rig.server)];
    let mut pairs = [0, 1].map(|i| connect_with_recv_evd(&rig, &srq, Some(&evds[i])));
    let mut cookie = 0;
    let mut serial = 0_u8;
    for round in 0..5 {
        // A cookie tells the place of its buffer, so a mixed-up cookie shows in the bytes.
        while counts(&srq).1 < 4 {
            rig.server.post(&mut srq, 1, 16, (cookie % 64) as usize * 16, cookie);
            cookie += 1;
        }
        assert_eq!(post_refused(srq.post_recv(&[rig.server.lmr.triplet(0, 16)], 0)), dat::RESOURCE_SRQ);
        // The one that sends first is reaped last, and in one of the rounds only half.
        let first = round % 2;
        for sender in [first, 1 - first, first, 1 - first] {
            serial += 1;
            rig.client.lmr.write(0, &[sender as u8, serial]).unwrap();
            assert_eq!(rig.send(&mut pairs[sender], 0, 2).status, DtoStatus::Success);
        }
        let mut last_serial = [0; 2];
        for reaped in [1 - first, 1 - first, first, first] {
            let got = dto(&evds[reaped]);
            assert_eq!((got.status, got.ep), (DtoStatus::Success, pairs[reaped].server.id()));
            let memory: [u8; 2] = bytes(&rig.server.lmr, (got.cookie % 64) as usize * 16);
            assert_eq!(memory[0] as usize, reaped);
            assert!(memory[1] > last_serial[reaped]);
            last_serial[reaped] = memory[1];
            if round == 2 {
                // Filled up again one by one, between the reaps.
                rig.server.post(&mut srq, 1, 16, (cookie % 64) as usize * 16, cookie);
                cookie += 1;
            }
        }
        assert_eq!(counts(&srq), if round == 2 { (4, 4) } else { (0, 0) });
    }
}
