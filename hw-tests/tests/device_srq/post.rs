//! Posting: arguments, errors, what a buffer may be (section E).

use crate::*;
use doorbell::{
    CompletionFlags, Count, Direction, DtoStatus, EpAttr, EpEvds, Lmr, LmrTriplet, MemPriv, Pz, Srq, SrqAttr,
    Subtype,
};
use doorbell_hw_tests::dat;
use doorbell_hw_tests::rig::*;
use doorbell_hw_tests::{Pair, Rig, Test, tests};

pub(crate) const TESTS: &[Test] = tests![
    r48_srq_post_adds_one_entry,
    r49_srq_post_visible_to_any_ep,
    r50_srq_post_nonblocking,
    r51_srq_post_zero_segments,
    r52_srq_post_zero_length_segment_ignores_rest,
    r54_srq_post_too_many_segments,
    r56_srq_post_segment_outside_lmr,
    r57_srq_post_pz_mismatch,
    r58_srq_post_invalid_lmr,
    r59_srq_post_lmr_without_local_write,
    r60_srq_post_any_bad_segment_fails_all,
    r60_srq_post_checks_each_segment_in_any_lmr,
    r61_srq_post_full,
    r62_srq_post_full_counts_unreaped,
    r61_srq_post_full_for_one_and_for_several_segments,
    r62_srq_post_finds_each_entry_that_came_back,
    r63_srq_post_cookie_opaque,
    r65_srq_post_no_flags_means_signalled,
    r68_srq_post_iov_array_ownership,
    r69_srq_post_memory_owned_until_completion,
    r71_srq_post_thread_rule,
];

/// The bytes of an LMR from `offset` on.
fn bytes<const N: usize>(lmr: &Lmr, offset: usize) -> [u8; N] {
    let mut to = [0; N];
    lmr.read(offset, &mut to).unwrap();
    to
}

/// An SRQ with buffers of up to `iov` segments.
fn srq_with_iov(side: &Side, depth: i32, iov: i32) -> Srq {
    Srq::create(&side.ia, &side.pz, SrqAttr { max_recv_iov: iov, ..SrqAttr::depth(depth) }).unwrap()
}

/// Starts a send without waiting for it.
fn start(rig: &Rig, pair: &mut Pair, offset: usize, len: usize) {
    let triplet = rig.client.lmr.triplet(offset, len);
    pair.client.post_send(&[triplet], 0, CompletionFlags::empty()).unwrap();
}

/// Each post adds one to both counts.
fn r48_srq_post_adds_one_entry() {
    let side = server();
    let mut srq = side.srq(8);
    for n in 1..=8 {
        side.post(&mut srq, 1, 64, 0, 0);
        assert_eq!(counts(&srq), (n, n));
    }
}

/// Buffers that were posted before any EP existed are taken by whichever EP receives a message,
/// also by an EP created later and while others are not connected. Also R67.
fn r49_srq_post_visible_to_any_ep() {
    let rig = Rig::new();
    let mut srq = rig.server.srq(4);
    rig.server.post(&mut srq, 2, 64, 0, 5);
    let idle = rig.server.srq_ep(&srq, &EpAttr::default());
    let mut first = rig.connect_srq(&srq);
    let got = rig.deliver(&mut first, 24);
    assert_eq!((got.cookie, got.ep), (5, first.server.id()));
    let mut second = rig.connect_srq(&srq);
    let got = rig.deliver(&mut second, 24);
    assert_eq!((got.cookie, got.ep), (6, second.server.id()));
    rig.disconnect(&first);
    rig.disconnect(&second);
    rig.server.post(&mut srq, 2, 64, 0, 7);
    let mut late = rig.connect(idle, rig.client.ep(&EpAttr::default()));
    assert_eq!(rig.deliver(&mut late, 24).cookie, 7);
}

/// Posting allocates nothing, neither to a fresh SRQ nor round after round, and on a full one it
/// comes back at once.
fn r50_srq_post_nonblocking() {
    const DEPTH: u64 = 16;
    let rig = Rig::new();
    let mut srq = rig.server.srq(DEPTH as i32);
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

/// A buffer without segments takes an empty message, and no other.
fn r51_srq_post_zero_segments() {
    let rig = Rig::new();
    let mut srq = rig.server.srq(4);
    let mut pair = rig.connect_srq(&srq);
    srq.post_recv(&[], 1).unwrap();
    srq.post_recv(&[], 2).unwrap();
    assert_eq!(counts(&srq), (2, 2));
    pair.client.post_send(&[], 0, CompletionFlags::empty()).unwrap();
    assert!(dto(&rig.client.request).is_success());
    let got = dto(&rig.server.recv);
    assert_eq!((got.status, got.cookie, got.length), (DtoStatus::Success, 1, 0));
    assert!(!rig.send(&mut pair, 0, 1).is_success());
    let got = dto(&rig.server.recv);
    assert_eq!((got.status, got.cookie), (DtoStatus::LocalLength, 2));
}

/// The other fields of a segment of length 0 are ignored, wherever it stands in the list.
fn r52_srq_post_zero_length_segment_ignores_rest() {
    let rig = Rig::new();
    let mut srq = srq_with_iov(&rig.server, 4, 4);
    let mut pair = rig.connect_srq(&srq);
    let garbage = LmrTriplet { virtual_address: u64::MAX - 3, segment_length: 0, lmr_context: 0xdead_beef };
    let lmr = &rig.server.lmr;
    srq.post_recv(&[garbage, lmr.triplet(0, 8), garbage, lmr.triplet(64, 8)], 1).unwrap();
    srq.post_recv(&[garbage], 2).unwrap();
    rig.client.lmr.write(0, b"0123456789abcdef").unwrap();
    let got = rig.deliver(&mut pair, 16);
    assert_eq!((got.cookie, got.length), (1, 16));
    assert_eq!((&bytes(lmr, 0), &bytes(lmr, 64)), (b"01234567", b"89abcdef"));
    let got = rig.deliver(&mut pair, 0);
    assert_eq!((got.cookie, got.length), (2, 0));
}

/// One segment more than the SRQ was made for is refused, whatever else is wrong with the segments,
/// and when nothing is wrong with them.
fn r54_srq_post_too_many_segments() {
    let side = server();
    let most = side.ia.attributes().max_iov_segments_per_dto;
    for of in [2, most] {
        let mut srq = srq_with_iov(&side, 4, of);
        let iov = srq.query().unwrap().max_recv_iov as usize;
        for segment in [side.lmr.triplet(0, 8), LmrTriplet::default(), side.lmr.triplet(side.lmr.len(), 8)] {
            for more in [1, 100] {
                let segments = vec![segment; iov + more];
                assert_eq!(post_refused(srq.post_recv(&segments, 0)), dat::INVALID_ARG2);
            }
        }
        assert_eq!(counts(&srq), (0, 0));
        let good = vec![side.lmr.triplet(0, 8); iov + 1];
        srq.post_recv(&good[..iov], 0).unwrap();
        // Now the LMR is that of the last post.
        assert_eq!(post_refused(srq.post_recv(&good, 0)), dat::INVALID_ARG2);
        assert_eq!(counts(&srq), (1, 1));
    }
}

/// A segment may reach from the first to the last byte of its LMR, not beyond, nor around the
/// address space.
fn r56_srq_post_segment_outside_lmr() {
    let side = server();
    let mut srq = side.srq(4);
    let (lmr, len) = (&side.lmr, side.lmr.len());
    let before = LmrTriplet { virtual_address: lmr.address() - 1, ..lmr.triplet(0, 8) };
    let around = LmrTriplet { virtual_address: u64::MAX - 3, ..lmr.triplet(0, 8) };
    let huge = LmrTriplet { segment_length: u32::MAX, ..lmr.triplet(0, 8) };
    for bad in [before, around, huge, lmr.triplet(0, len + 1), lmr.triplet(len - 7, 8), lmr.triplet(len, 1)] {
        assert_eq!(post_refused(srq.post_recv(&[bad], 0)), dat::INVALID_ARG3, "{bad:?}");
    }
    assert_eq!(counts(&srq), (0, 0));
    for good in [lmr.triplet(0, len), lmr.triplet(len - 1, 1)] {
        srq.post_recv(&[good], 0).unwrap();
    }
}

/// Memory has to be in the PZ of the SRQ. The PZ of the EP does not count, if the device allows it
/// to differ.
fn r57_srq_post_pz_mismatch() {
    let side = server();
    let pz = Pz::create(&side.ia).unwrap();
    let elsewhere = Lmr::create(&side.ia, &pz, 4096, all_privileges()).unwrap();
    let mut srq = side.srq(4);
    let refused_there = |srq: &mut Srq| {
        assert_eq!(post_refused(srq.post_recv(&[elsewhere.triplet(0, 64)], 0)), dat::PROTECTION_WRITE);
    };
    refused_there(&mut srq);
    let ep = Ep::create_with_srq(&side.ia, &pz, side.evds(), &srq, &EpAttr::default());
    assert_eq!(ep.is_ok(), side.ia.provider_attributes().srq_ep_pz_difference_supported);
    refused_there(&mut srq);
    assert_eq!(counts(&srq), (0, 0));
    side.post(&mut srq, 1, 64, 0, 0);
}

/// A context that names no LMR, or none any more, is refused, also when it is that of the last
/// post.
fn r58_srq_post_invalid_lmr() {
    let side = server();
    let mut srq = srq_with_iov(&side, 4, 2);
    for segments in 1..=2 {
        let other = Lmr::create(&side.ia, &side.pz, 4096, all_privileges()).unwrap();
        let was_good = other.triplet(0, 64);
        srq.post_recv(&[was_good; 2][..segments], 0).unwrap();
        other.free().unwrap();
        // Entries of the LMR table are used again; contexts are not.
        let next = Lmr::create(&side.ia, &side.pz, 4096, all_privileges()).unwrap();
        let beyond = LmrTriplet { lmr_context: next.context() + 1000, ..was_good };
        let none = LmrTriplet { lmr_context: 0, ..side.lmr.triplet(0, 64) };
        let all_ones = LmrTriplet { lmr_context: u32::MAX, ..side.lmr.triplet(0, 64) };
        for bad in [was_good, beyond, none, all_ones] {
            let outcome = srq.post_recv(&[bad; 2][..segments], 0);
            assert_eq!(post_refused(outcome), dat::PRIVILEGES_WRITE, "{segments} of {bad:?}");
        }
        let posted = segments as Count;
        assert_eq!(counts(&srq), (posted, posted));
    }
}

/// A buffer needs the privilege local write; no other privilege replaces it.
fn r59_srq_post_lmr_without_local_write() {
    let side = server();
    let mut srq = side.srq(4);
    for privileges in [
        MemPriv::LOCAL_READ,
        MemPriv::LOCAL_READ | MemPriv::REMOTE_READ,
        MemPriv::LOCAL_READ | MemPriv::REMOTE_WRITE,
    ] {
        let lmr = Lmr::create(&side.ia, &side.pz, 4096, privileges).unwrap();
        assert_eq!(post_refused(srq.post_recv(&[lmr.triplet(0, 64)], 0)), dat::PRIVILEGES_WRITE);
    }
    assert_eq!(counts(&srq), (0, 0));
    let lmr = Lmr::create(&side.ia, &side.pz, 4096, MemPriv::LOCAL_WRITE).unwrap();
    srq.post_recv(&[lmr.triplet(0, 64)], 0).unwrap();
}

/// One bad segment refuses the whole post wherever it stands, the first bad one gives the reason,
/// and the good ones next to it stay untouched.
fn r60_srq_post_any_bad_segment_fails_all() {
    let rig = Rig::new();
    let lmr = &rig.server.lmr;
    let mut srq = srq_with_iov(&rig.server, 4, 3);
    let mut pair = rig.connect_srq(&srq);
    let good = |i: usize| lmr.triplet(i * 64, 64);
    let dead = LmrTriplet { lmr_context: 0, ..good(0) };
    let outside = lmr.triplet(lmr.len(), 64);
    // On a fresh SRQ, and again when the provider has seen good posts in this LMR.
    for posted in [0, 2] {
        for n in 0..posted {
            srq.post_recv(&[good(10), good(11), good(12)], n as u64).unwrap();
        }
        for (segments, code) in [
            ([dead, good(1), good(2)], dat::PRIVILEGES_WRITE),
            ([good(0), dead, good(2)], dat::PRIVILEGES_WRITE),
            ([good(0), good(1), dead], dat::PRIVILEGES_WRITE),
            ([good(0), outside, dead], dat::INVALID_ARG3),
            ([good(0), dead, outside], dat::PRIVILEGES_WRITE),
        ] {
            assert_eq!(post_refused(srq.post_recv(&segments, 13)), code);
            assert_eq!(counts(&srq), (posted, posted));
        }
    }
    for n in 0..2 {
        assert_eq!(rig.deliver(&mut pair, 192).cookie, n);
    }
    lmr.write(0, &[0x55; 192]).unwrap();
    srq.post_recv(&[lmr.triplet(4096, 192)], 1).unwrap();
    assert_eq!(rig.deliver(&mut pair, 192).cookie, 1);
    assert_eq!(bytes(lmr, 0), [0x55; 192]);
    expect_nothing(&rig.server.recv);
}

/// An SRQ takes as many buffers as it is deep and refuses the next, again and again.
fn r61_srq_post_full() {
    let side = server();
    let mut srq = side.srq(4);
    let depth = srq.query().unwrap().max_recv_dtos;
    side.post(&mut srq, depth as usize, 64, 0, 0);
    for _ in 0..3 {
        assert_eq!(post_refused(srq.post_recv(&[side.lmr.triplet(0, 64)], 0)), dat::RESOURCE_SRQ);
        assert_eq!(counts(&srq), (depth, depth));
    }
}

/// A delivered buffer still occupies its entry: only reaping its completion makes room, for exactly
/// one buffer.
fn r62_srq_post_full_counts_unreaped() {
    let rig = Rig::new();
    let mut srq = rig.server.srq(3);
    let mut pair = rig.connect_srq(&srq);
    rig.server.post(&mut srq, 3, 64, 0, 0);
    for n in 1..=3 {
        rig.send(&mut pair, 0, 24);
        until("the message is complete", || counts(&srq) == (3 - n, 3));
    }
    let triplet = rig.server.lmr.triplet(0, 64);
    assert_eq!(post_refused(srq.post_recv(&[triplet], 0)), dat::RESOURCE_SRQ);
    for n in 1..=3 {
        dto(&rig.server.recv);
        srq.post_recv(&[triplet], 0).unwrap();
        assert_eq!(post_refused(srq.post_recv(&[triplet], 0)), dat::RESOURCE_SRQ);
        assert_eq!(counts(&srq), (n, 3));
    }
}

/// After posts in some LMRs, each segment in these and in others is checked, and a message's bytes
/// go into the segments in their order.
fn r60_srq_post_checks_each_segment_in_any_lmr() {
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
    let depth = srq.query().unwrap().max_recv_dtos;
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
fn r62_srq_post_finds_each_entry_that_came_back() {
    let rig = Rig::new();
    let mut srq = rig.server.srq(2);
    let mut pair = rig.connect_srq(&srq);
    for cookie in 0..1300 {
        srq.post_recv(&[], cookie).unwrap();
        assert_eq!(rig.deliver(&mut pair, 0).cookie, cookie);
    }
    assert_eq!(counts(&srq), (0, 0));
}

/// Cookies come back bit for bit, and two buffers with the same one both complete. Also R64.
fn r63_srq_post_cookie_opaque() {
    const COOKIES: [u64; 7] =
        [0, u64::MAX, 1 << 63, 1 << 62, 0x0123_4567_89ab_cdef, 0xffff_ffff_0000_0000, 0];
    let rig = Rig::new();
    let mut srq = rig.server.srq(8);
    let mut pair = rig.connect_srq(&srq);
    for cookie in COOKIES {
        srq.post_recv(&[rig.server.lmr.triplet(0, 64)], cookie).unwrap();
    }
    let mut back = COOKIES.map(|_| rig.deliver(&mut pair, 24).cookie);
    back.sort_unstable();
    let mut sorted = COOKIES;
    sorted.sort_unstable();
    assert_eq!(back, sorted);
}

/// A buffer of an SRQ completes with a notification, also on an EP whose receives are unsignalled:
/// a thread that waits already wakes up.
fn r65_srq_post_no_flags_means_signalled() {
    let rig = Rig::new();
    let mut srq = rig.server.srq(4);
    let recv = dto_evd(&rig.server);
    let attr = EpAttr { recv_completion_flags: CompletionFlags::UNSIGNALLED, ..EpAttr::default() };
    let evds = EpEvds { recv: Some(&recv), ..rig.server.evds() };
    let ep = Ep::create_with_srq(&rig.server.ia, &rig.server.pz, evds, &srq, &attr).unwrap();
    let mut pair = rig.connect(ep, rig.client.ep(&EpAttr::default()));
    rig.server.post(&mut srq, 1, 64, 0, 3);
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| dto(&recv));
        until("the thread waits", || {
            recv.dequeue().is_err_and(|e| e.subtype() == Subtype::InvalidStateEvdWaiter)
        });
        rig.send(&mut pair, 0, 24);
        assert_eq!(waiter.join().unwrap().cookie, 3);
    });
}

/// The array of triplets belongs to the program again after the call, as the provider advertises:
/// later changes have no effect.
fn r68_srq_post_iov_array_ownership() {
    let rig = Rig::new();
    assert_eq!(rig.server.ia.provider_attributes().iov_ownership_on_return, 0);
    let mut srq = srq_with_iov(&rig.server, 4, 2);
    let mut pair = rig.connect_srq(&srq);
    let lmr = &rig.server.lmr;
    lmr.write(0, &[0; 256]).unwrap();
    let mut segments = [lmr.triplet(0, 8), lmr.triplet(64, 8)];
    srq.post_recv(&segments, 0).unwrap();
    segments = [lmr.triplet(128, 8), LmrTriplet::default()];
    rig.client.lmr.write(0, b"0123456789abcdef").unwrap();
    rig.deliver(&mut pair, 16);
    assert_eq!((&bytes(lmr, 0), &bytes(lmr, 64), bytes(lmr, 128)), (b"01234567", b"89abcdef", [0; 8]));
    // The changed array takes effect with this post only.
    srq.post_recv(&segments[..1], 0).unwrap();
    rig.deliver(&mut pair, 8);
    assert_eq!(&bytes(lmr, 128), b"01234567");
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

/// One thread posts while another reaps and the progress thread reports watermarks and ends
/// connections: every message arrives once, and the final counts are right.
fn r71_srq_post_thread_rule() {
    const MESSAGES: u64 = 200;
    let rig = Rig::patient();
    let mut srq = rig.server.srq(8);
    let mut pair = rig.connect_srq(&srq);
    let passing: Vec<_> = (0..4).map(|_| rig.connect_srq(&srq)).collect();
    rig.server.post(&mut srq, 4, 64, 0, 0);
    std::thread::scope(|scope| {
        let recv = &rig.server.recv;
        let reaper = scope.spawn(move || (0..MESSAGES).map(|_| dto(recv).cookie).collect::<Vec<_>>());
        let mut passing = passing.into_iter();
        let (mut posted, mut sent, mut done) = (4, 0, 0);
        until("all messages are sent", || {
            if posted < MESSAGES {
                match srq.post_recv(&[rig.server.lmr.triplet(0, 64)], posted) {
                    Ok(()) => posted += 1,
                    full => assert_eq!(post_refused(full), dat::RESOURCE_SRQ),
                }
            }
            if sent < MESSAGES && sent - done < 4 {
                start(&rig, &mut pair, 0, 24);
                sent += 1;
                if sent % 16 == 0 {
                    srq.set_low_watermark(1 + (sent / 16 % 4) as i32).unwrap();
                    drop(passing.next());
                }
            }
            while let Ok(event) = rig.client.request.dequeue() {
                assert!(event.data.dto().is_some_and(|dto| dto.is_success()), "{event:?}");
                done += 1;
            }
            done == MESSAGES
        });
        let mut cookies = reaper.join().unwrap();
        cookies.sort_unstable();
        assert!(cookies.into_iter().eq(0..MESSAGES));
    });
    assert_eq!(counts(&srq), (0, 0));
}
