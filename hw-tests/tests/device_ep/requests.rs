//! Requests and receives that are posted with the LMR of the last one.

use crate::*;
use doorbell::{
    AsyncObject, CompletionFlags, ConnectionEventKind, Direction, DtoStatus, EpAttr, EpChange, EpCounter,
    Lmr, LmrTriplet, MemPriv, PostError, RecvPool, RmrTriplet, Srq, reason,
};
use doorbell_hw_tests::rig::*;
use doorbell_hw_tests::{Pair, Rig, Test, tests};

pub(crate) const TESTS: &[Test] = tests![
    requests_in_the_lmr_of_the_last_are_checked,
    requests_of_several_segments_take_them_in_order,
    requests_of_several_segments_are_checked,
    requests_have_no_more_segments_than_their_ep_takes,
    requests_in_several_lmrs_are_checked,
    the_end_of_a_connection_stops_fast_sends,
    receives_in_the_lmr_of_the_last_are_checked,
    no_segment_has_another_length_or_place_than_was_asked_for,
    receives_of_several_segments_and_lmrs_are_checked,
    watermarks_see_each_receive,
    the_end_of_a_connection_stops_fast_receives,
];

/// Two Sends from this LMR, of which the second does not need the table of LMRs.
#[track_caller]
fn send_twice(rig: &Rig, pair: &mut Pair, from: LmrTriplet) {
    for _ in 0..2 {
        pair.client.send(&[from]).cookie(5).post().unwrap();
        let done = dto(&rig.client.request);
        assert_eq!((done.status, done.cookie, done.length), (DtoStatus::Success, 5, from.segment_length));
        assert_eq!(dto(&rig.server.recv).status, DtoStatus::Success);
    }
}

/// The LMR of the last request is remembered. Requests in it pass the same checks as any other.
fn requests_in_the_lmr_of_the_last_are_checked() {
    let rig = Rig::patient();
    let mut srq = rig.server.srq(8);
    let mut pair = rig.connect_srq(&srq);
    rig.server.post(&mut srq, 4, 64, 0, 0);
    let side = &rig.client;
    let lmr = Lmr::builder(&side.ia, &side.pz).privileges(MemPriv::LOCAL_READ).allocate(4096).unwrap();
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
        assert_eq!(client.send(&[segment]).post(), Err(PostError::OutOfBounds(0)));
        assert_eq!(client.write(&[segment]).to(peer(64)).post(), Err(PostError::OutOfBounds(0)));
    }
    assert_eq!(client.send(&[local]).flags(CompletionFlags::EVD_THRESHOLD).post(), Ok(()));
    assert_eq!(dto(&side.request).status, DtoStatus::Success);
    assert_eq!(client.send(&[local]).unsignalled().post(), Err(PostError::Flags));
    assert_eq!(client.write(&[local]).to(peer(63)).post(), Err(PostError::Length));
    // The LMR does not have LOCAL_WRITE.
    let refused = Err(PostError::Privilege(0, Direction::Write));
    assert_eq!(client.read(&[local]).from(peer(64)).post(), refused);
    let writable = side.lmr.triplet(0, 64);
    for len in [64, 8] {
        rig.server.lmr.write(8192, &[len as u8; 64]).unwrap();
        client.read(&[writable]).from(peer(len)).post().unwrap();
        let read = dto(&side.request);
        assert_eq!((read.status, read.length), (DtoStatus::Success, len));
    }
    let mut bytes = [0; 64];
    side.lmr.read(0, &mut bytes).unwrap();
    assert_eq!((bytes[7], bytes[8]), (8, 64), "8 bytes are read over 64");
    assert_eq!(client.read(&[writable]).from(peer(65)).post(), Err(PostError::Length));
    client.write(&[writable]).to(peer(64)).post().unwrap();
    assert_eq!(dto(&side.request).status, DtoStatus::Success);
    rig.server.lmr.read(8192, &mut bytes).unwrap();
    assert_eq!((bytes[7], bytes[8]), (8, 64));
    // A freed LMR is forgotten.
    client.send(&[local]).post().unwrap();
    assert_eq!(dto(&side.request).status, DtoStatus::Success);
    lmr.close().unwrap();
    assert_eq!(client.send(&[local]).post(), Err(PostError::NoSuchLmr(0, Direction::Read)));
    // As many as the queue holds, and one more.
    let full = (0..).find_map(|_| client.send(&[writable]).suppress().post().err());
    assert_eq!(full, Some(PostError::Full(doorbell::Subtype::ResourceCredits)));
}

/// Two EPs; the requests of the client have up to six segments. The SRQ holds no buffer.
fn pair_for_several_segments(rig: &Rig) -> (Pair, Srq) {
    let srq = rig.server.srq(8);
    let attr = EpAttr { request_segments: 6, rdma_write_segments: 6, ..EpAttr::default() };
    let pair = rig.connect(rig.server.srq_ep(&srq, &EpAttr::default()), rig.client.ep(&attr));
    (pair, srq)
}

/// `n` segments of this LMR, each 32 bytes before the one before it, and of different lengths.
fn backwards(lmr: &Lmr, n: usize) -> Vec<LmrTriplet> {
    (0..n).map(|k| lmr.triplet((n - k) * 32, 10 - k)).collect()
}

/// Sends these segments and writes them to the peer's memory. The peer has to get their bytes, one
/// segment after the other: byte `i` of each LMR of the client is `i`.
#[track_caller]
fn send_and_write(rig: &Rig, pair: &mut Pair, srq: &mut Srq, segments: &[(&Lmr, LmrTriplet)]) {
    let list: Vec<_> = segments.iter().map(|(_, segment)| *segment).collect();
    let bytes = |(lmr, segment): &(&Lmr, LmrTriplet)| {
        let at = (segment.virtual_address - lmr.address()) as u8;
        (0..segment.segment_length as u8).map(move |i| at + i)
    };
    let expected: Vec<u8> = segments.iter().flat_map(bytes).collect();
    let len = expected.len() as u32;
    rig.server.lmr.write(0, &[255; 256]).unwrap();
    srq.post_recv(&[rig.server.lmr.triplet(0, 128)], 1).unwrap();
    pair.client.send(&list).cookie(5).post().unwrap();
    let to = RmrTriplet {
        virtual_address: rig.server.lmr.address() + 128,
        segment_length: len,
        rmr_context: rig.server.lmr.rmr_context(),
    };
    pair.client.write(&list).to(to).cookie(6).post().unwrap();
    for cookie in [5, 6] {
        let done = dto(&rig.client.request);
        assert_eq!((done.status, done.cookie, done.length), (DtoStatus::Success, cookie, len));
    }
    let came = dto(&rig.server.recv);
    assert_eq!((came.status, came.length), (DtoStatus::Success, len));
    let mut got = [0; 256];
    rig.server.lmr.read(0, &mut got).unwrap();
    for half in got.chunks(128) {
        assert_eq!(half[..expected.len()], expected, "{list:?}");
        assert_eq!(half[expected.len()], 255);
    }
}

/// Sends and RDMA Writes of two to six segments, at first with a look at the table of LMRs and then
/// without, in one LMR, in two, and with an empty segment among them.
fn requests_of_several_segments_take_them_in_order() {
    let rig = Rig::patient();
    let (mut pair, mut srq) = pair_for_several_segments(&rig);
    let side = &rig.client;
    let made = || Lmr::builder(&side.ia, &side.pz).privileges(all_privileges()).allocate(256).unwrap();
    let (lmr, other) = (made(), made());
    let content: Vec<u8> = (0..=255).collect();
    for lmr in [&lmr, &other] {
        lmr.write(0, &content).unwrap();
    }
    for n in [2, 3, 4, 5, 6, 3, 2] {
        let mut list: Vec<_> = backwards(&lmr, n).into_iter().map(|segment| (&lmr, segment)).collect();
        for _ in 0..3 {
            send_and_write(&rig, &mut pair, &mut srq, &list);
        }
        for at in 0..n {
            let was = list[at];
            list[at] = (&other, other.triplet(at * 16, 9));
            send_and_write(&rig, &mut pair, &mut srq, &list);
            list[at] = (&lmr, lmr.triplet(at * 16, 0));
            send_and_write(&rig, &mut pair, &mut srq, &list);
            list[at] = was;
            send_and_write(&rig, &mut pair, &mut srq, &list);
        }
    }
}

/// Requests of several segments in the LMR of the last one pass the same checks as any other.
fn requests_of_several_segments_are_checked() {
    let rig = Rig::patient();
    let (mut pair, mut srq) = pair_for_several_segments(&rig);
    let side = &rig.client;
    let content: Vec<u8> = (0..=255).collect();
    for n in 2..=4 {
        let lmr = Lmr::builder(&side.ia, &side.pz).allocate(256).unwrap();
        lmr.write(0, &content).unwrap();
        let list = backwards(&lmr, n);
        let both: Vec<_> = list.iter().map(|segment| (&lmr, *segment)).collect();
        for _ in 0..2 {
            send_and_write(&rig, &mut pair, &mut srq, &both);
        }
        let client = &mut pair.client;
        let len: u32 = list.iter().map(|segment| segment.segment_length).sum();
        let to = |segment_length| RmrTriplet {
            virtual_address: rig.server.lmr.address(),
            segment_length,
            rmr_context: rig.server.lmr.rmr_context(),
        };
        for at in 0..n {
            let mut bad = list.clone();
            for beyond in [lmr.address() - 1, lmr.address() + 256 - 5, u64::MAX - 3] {
                bad[at].virtual_address = beyond;
                let refused = Err(PostError::OutOfBounds(at as u32));
                assert_eq!(client.send(&bad).post(), refused);
                assert_eq!(client.write(&bad).to(to(len)).post(), refused);
            }
        }
        assert_eq!(client.write(&list).to(to(len - 1)).post(), Err(PostError::Length));
        assert_eq!(client.send(&list).unsignalled().post(), Err(PostError::Flags));
        let most = client.query().unwrap().attr.request_segments as usize;
        let too_many = client.send(&vec![list[0]; most + 1]).post();
        assert!(matches!(too_many, Err(PostError::TooManySegments { .. })), "{too_many:?}");
        // A freed LMR is forgotten.
        lmr.close().unwrap();
        let gone = Err(PostError::NoSuchLmr(0, Direction::Read));
        assert_eq!(client.send(&list).post(), gone);
        assert_eq!(client.write(&list).to(to(len)).post(), gone);
        expect_nothing(&side.request);
    }
    // As many as the queue holds, and one more.
    let list = backwards(&side.lmr, 3);
    let full = (0..).find_map(|_| pair.client.send(&list).suppress().post().err());
    assert_eq!(full, Some(PostError::Full(doorbell::Subtype::ResourceCredits)));
}

/// After requests in some LMRs, requests in these and in others pass the same checks as any other.
fn requests_in_several_lmrs_are_checked() {
    let rig = Rig::patient();
    let (mut pair, mut srq) = pair_for_several_segments(&rig);
    let side = &rig.client;
    let content: Vec<u8> = (0..=255).collect();
    let several = SeveralLmrs::new(side);
    let SeveralLmrs { lmrs, read_only, .. } = &several;
    for lmr in lmrs.iter().chain([read_only]) {
        lmr.write(0, &content).unwrap();
    }
    let from = RmrTriplet {
        virtual_address: rig.server.lmr.address(),
        segment_length: 8,
        rmr_context: rig.server.lmr.rmr_context(),
    };
    for n in 1..=4 {
        for first in 0..3 {
            // Segment by segment, and message by message, in another LMR.
            let list: Vec<_> = (0..n)
                .map(|k| (first + k) % 3)
                .map(|at| (&lmrs[at], lmrs[at].triplet(16 * first + 3 * at, 8 + at)))
                .collect();
            send_and_write(&rig, &mut pair, &mut srq, &list);
            let segments: Vec<_> = list.iter().map(|(_, segment)| *segment).collect();
            several.are_refused_among(&segments, Direction::Read, |bad| pair.client.send(bad).post());
            // What the device reads need not be writable; what it writes has to be.
            let one = (read_only, read_only.triplet(5, 8));
            send_and_write(&rig, &mut pair, &mut srq, &[one]);
            send_and_write(&rig, &mut pair, &mut srq, &[one, list[0]]);
            let refused = pair.client.read(&[one.1]).from(from).post();
            assert_eq!(refused, Err(PostError::Privilege(0, Direction::Write)));
            pair.client.read(&[side.lmr.triplet(0, 8)]).from(from).post().unwrap();
            assert_eq!(dto(&side.request).status, DtoStatus::Success);
        }
    }
    expect_nothing(&side.request);
}

/// An EP for two segments refuses three, also after a request of two in the same LMR.
fn requests_have_no_more_segments_than_their_ep_takes() {
    let rig = Rig::patient();
    let attr = EpAttr { request_segments: 2, rdma_write_segments: 2, ..EpAttr::default() };
    let mut pair = rig.connect(rig.server.ep(&EpAttr::default()), rig.client.ep(&attr));
    let most = pair.client.query().unwrap().attr.request_segments as usize;
    let to = RmrTriplet {
        virtual_address: rig.server.lmr.address(),
        segment_length: 256,
        rmr_context: rig.server.lmr.rmr_context(),
    };
    let list = backwards(&rig.client.lmr, most + 1);
    for _ in 0..2 {
        pair.client.write(&list[..2]).to(to).cookie(1).post().unwrap();
        assert_eq!(dto(&rig.client.request).status, DtoStatus::Success);
    }
    for refused in
        [pair.client.send(&list).cookie(2).post(), pair.client.write(&list).to(to).cookie(2).post()]
    {
        assert!(matches!(refused, Err(PostError::TooManySegments { .. })), "{refused:?}");
    }
    expect_nothing(&rig.client.request);
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
    for segments in [&[local][..], &[local, local]] {
        pair.client.send(segments).cookie(6).post().unwrap();
        let flushed = dto(&rig.client.request);
        assert_eq!((flushed.status, flushed.cookie), (DtoStatus::Flushed, 6));
    }
    pair.client.reset().unwrap();
    let refused = pair.client.send(&[local]).cookie(7).post();
    assert!(matches!(refused, Err(PostError::EpState(_))), "{refused:?}");
    expect_nothing(&rig.client.request);
}

/// Posts two receives in this memory; the second needs no look at the table of LMRs. A message
/// comes into each.
#[track_caller]
fn receive_twice(rig: &Rig, pair: &mut Pair, into: LmrTriplet) {
    for cookie in [5, 6] {
        pair.server.post_recv(&[into], cookie, NONE).unwrap();
        let got = rig.deliver(pair, 8);
        assert_eq!((got.status, got.cookie), (DtoStatus::Success, cookie));
    }
}

/// What a segment cannot say is refused when it is made.
fn no_segment_has_another_length_or_place_than_was_asked_for() {
    let rig = Rig::new();
    let lmr = &rig.client.lmr;
    let long = lmr.triplet(0, u32::MAX as usize);
    assert_eq!((long.virtual_address, long.segment_length), (lmr.address(), u32::MAX));
    for (offset, len) in [(0, 1 << 32), (0, 5 << 30), (usize::MAX, 1)] {
        let panics = |make: &dyn Fn()| {
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(make)).expect_err("made a segment");
        };
        panics(&|| _ = lmr.triplet(offset, len));
        panics(&|| _ = lmr.remote(offset, len));
    }
}

/// After receives in one LMR, receives in it and elsewhere are checked as before: bounds, other
/// LMRs, freed LMRs, privileges, flags, and the length of the queue.
fn receives_in_the_lmr_of_the_last_are_checked() {
    let rig = Rig::new();
    let mut pair = rig.connect_plain(&EpAttr { recv_depth: 8, ..EpAttr::default() });
    let side = &rig.server;
    let made = |privileges| Lmr::builder(&side.ia, &side.pz).privileges(privileges).allocate(4096).unwrap();
    let (lmr, other) = (made(all_privileges()), made(all_privileges()));
    let read_only = made(MemPriv::LOCAL_READ);
    receive_twice(&rig, &mut pair, lmr.triplet(0, 64));
    let server = &mut pair.server;
    let before = LmrTriplet { virtual_address: lmr.address() - 1, ..lmr.triplet(0, 8) };
    for bad in [lmr.triplet(4095, 2), lmr.triplet(4096, 1), before] {
        assert_eq!(server.post_recv(&[bad], 1, NONE), Err(PostError::OutOfBounds(0)));
    }
    let refused = server.post_recv(&[read_only.triplet(0, 8)], 1, NONE);
    assert_eq!(refused, Err(PostError::Privilege(0, Direction::Write)));
    let refused = server.post_recv(&[lmr.triplet(0, 8)], 1, CompletionFlags::UNSIGNALLED);
    assert_eq!(refused, Err(PostError::Flags));
    receive_twice(&rig, &mut pair, other.triplet(64, 64));
    receive_twice(&rig, &mut pair, lmr.triplet(64, 64));
    // The whole queue, and one more.
    let room = u64::from(pair.server.query().unwrap().attr.recv_depth);
    for cookie in 0..room {
        pair.server.post_recv(&[lmr.triplet(8 * cookie as usize, 8)], cookie, NONE).unwrap();
    }
    assert_eq!(pair.server.recv_query().unwrap().buffers.map(u64::from), Some(room));
    assert!(matches!(pair.server.post_recv(&[lmr.triplet(0, 8)], 9, NONE), Err(PostError::Full(_))));
    for cookie in 0..room {
        assert_eq!(rig.deliver(&mut pair, 8).cookie, cookie);
    }
    let counted = pair.server.counters().unwrap()[EpCounter::PostRecv];
    assert_eq!(counted, 6 + room);
    // Of a freed LMR nothing is known any more, and of another nothing is mistaken for it.
    receive_twice(&rig, &mut pair, lmr.triplet(0, 64));
    let dead = lmr.triplet(0, 64);
    lmr.close().unwrap();
    let refused = pair.server.post_recv(&[dead], 1, NONE);
    assert_eq!(refused, Err(PostError::NoSuchLmr(0, Direction::Write)));
    receive_twice(&rig, &mut pair, other.triplet(0, 64));
}

/// Receives of one to five segments take a message's bytes one after the other, in one LMR and in
/// three. They pass the same checks as any other, as long as the EP is connected.
fn receives_of_several_segments_and_lmrs_are_checked() {
    let rig = Rig::new();
    let mut pair = rig.connect_plain(&EpAttr { recv_depth: 4, recv_segments: 5, ..EpAttr::default() });
    let side = &rig.server;
    let several = SeveralLmrs::new(side);
    let lmrs = &several.lmrs;
    let content: Vec<u8> = (1..=64).collect();
    rig.client.lmr.write(0, &content).unwrap();
    let mut segments = vec![];
    // In one LMR, then in several.
    for step in [0, 0, 1, 2, 1] {
        for n in 1..=5 {
            let parts: Vec<_> = (0..n).map(|k| (&lmrs[k * step % 3], 40 * k + step, 3 + k)).collect();
            segments = parts.iter().map(|(lmr, at, len)| lmr.triplet(*at, *len)).collect();
            several.are_refused_among(&segments, Direction::Write, |bad| pair.server.post_recv(bad, 1, NONE));
            pair.server.post_recv(&segments, 7, NONE).unwrap();
            let len: usize = parts.iter().map(|(.., len)| len).sum();
            let got = rig.deliver(&mut pair, len);
            assert_eq!((got.status, got.cookie, got.length), (DtoStatus::Success, 7, len as u32));
            assert_eq!(content_of(&parts), content[..len], "{segments:?}");
        }
    }
    let most = pair.server.query().unwrap().attr.recv_segments as usize;
    let too_many = pair.server.post_recv(&vec![segments[0]; most + 1], 1, NONE);
    assert!(matches!(too_many, Err(PostError::TooManySegments { .. })), "{too_many:?}");
    // The whole queue, and one more.
    let full = (0..).find_map(|_| pair.server.post_recv(&segments[..3], 1, NONE).err());
    assert_eq!(full, Some(PostError::Full(doorbell::Subtype::ResourceTep)));
    let posted = pair.server.recv_query().unwrap().buffers.unwrap();
    rig.disconnect(&pair);
    for _ in 0..posted {
        assert_eq!(dto(&side.recv).status, DtoStatus::Flushed);
    }
    // No device gets it.
    pair.server.post_recv(&segments[..2], 8, NONE).unwrap();
    let flushed = dto(&side.recv);
    assert_eq!((flushed.status, flushed.cookie), (DtoStatus::Flushed, 8));
}

/// A watermark that is set after receives were posted sees the next one.
fn watermarks_see_each_receive() {
    let rig = Rig::new();
    let mut pair = rig.connect_plain(&EpAttr { recv_depth: 8, ..EpAttr::default() });
    let memory = rig.server.lmr.triplet(0, 64);
    receive_twice(&rig, &mut pair, memory);
    pair.server.set_watermark(Some(2), None).unwrap();
    for cookie in 0..2 {
        pair.server.post_recv(&[memory], cookie, NONE).unwrap();
    }
    expect_nothing(rig.server.ia.async_evd());
    pair.server.post_recv(&[memory], 2, NONE).unwrap();
    let event = asynchronous(&rig.server.ia);
    assert_eq!(
        (event.object, event.reason),
        (AsyncObject::Ep(pair.server.id()), reason::EP_SOFT_HIGH_WATERMARK)
    );
    pair.server.set_watermark(None, None).unwrap();
    for cookie in 3..5 {
        pair.server.post_recv(&[memory], cookie, NONE).unwrap();
    }
    pair.server.set_watermark(None, Some(5)).unwrap();
    pair.server.post_recv(&[memory], 5, NONE).unwrap();
    expect_connection(&rig.server.connect, &pair.server, ConnectionEventKind::Broken);
}

/// Receives after the end are flushed; after a reset they wait for the next connection, and come in
/// their order.
fn the_end_of_a_connection_stops_fast_receives() {
    let rig = Rig::new();
    let mut pair = rig.connect_plain(&EpAttr { recv_depth: 8, ..EpAttr::default() });
    let memory = rig.server.lmr.triplet(0, 64);
    let mut pool = RecvPool::new(&rig.server.ia, &rig.server.pz, 2, SIZE).unwrap();
    for _ in 0..3 {
        receive_twice(&rig, &mut pair, memory);
        for _ in 0..2 {
            assert_eq!(pool.refill(&mut pair.server).unwrap(), 2);
            for _ in 0..2 {
                rig.send_bytes(&mut pair, b"pooled");
                assert_eq!(*message(&rig.server, &mut pool), *b"pooled");
            }
        }
        pair.server.post_recv(&[memory], 7, NONE).unwrap();
        rig.disconnect(&pair);
        pair.server.post_recv(&[memory], 8, NONE).unwrap();
        assert_eq!(pool.refill(&mut pair.server).unwrap(), 2);
        let flushed: Vec<_> = (0..4).map(|_| dto(&rig.server.recv)).collect();
        assert!(flushed.iter().all(|dto| dto.status == DtoStatus::Flushed));
        assert_eq!((flushed[0].cookie, flushed[1].cookie), (7, 8));
        assert!(flushed[2..].iter().all(|dto| pool.take(dto).is_none()));
        assert_eq!(pool.posted(), 0);
        pair.server.reset().unwrap();
        pair.client.reset().unwrap();
        for cookie in 20..23 {
            pair.server.post_recv(&[memory], cookie, NONE).unwrap();
        }
        // Another queue: the receives are posted to it again, as they were not given to a device.
        let room = pair.server.query().unwrap().attr.recv_depth;
        pair.server.modify(EpChange { recv_depth: Some(2 * room), ..EpChange::default() }).unwrap();
        pair = rig.connect(pair.server, pair.client);
        for cookie in 20..23 {
            assert_eq!(rig.deliver(&mut pair, 8).cookie, cookie);
        }
    }
}
