//! Delivery into SRQ buffers, and its order (sections F and G of the rules).

use doorbell::{
    CompletionFlags, ConnectionEventKind, DtoOp, DtoStatus, Ep, EpAttr, EpEvds, EpId, EpState, Evd, EvdFlags,
    IaSettings, RmrTriplet, Srq, SrqAttr, SrqState,
};
use doorbell_hw_tests::dat;
use doorbell_hw_tests::rig::*;
use doorbell_hw_tests::{Pair, Rig, tests};
use std::collections::HashMap;

fn main() {
    doorbell_hw_tests::run(tests![
        r72_srq_dequeue_only_connected_or_disconnect_pending,
        r75_srq_completion_on_taking_ep_evd,
        r74_srq_fill_in_iov_order,
        r78_srq_recv_short_message,
        r80_srq_recv_too_long,
        r83_srq_empty_acts_like_empty_rq,
        r85_srq_empty_late_post_saves_connection,
        r87_srq_null_recv_evd_discards_completion,
        r88_srq_rdma_uses_no_entry,
        r89_srq_order_per_connection,
        r93_srq_bookkeeping_survives_any_order,
    ])
    .exit();
}

const NONE: CompletionFlags = CompletionFlags::empty();

/// A connection whose server EP reports receives to an EVD of its own.
fn connect_with_recv_evd(rig: &Rig, srq: &Srq, recv: Option<&Evd>) -> Pair {
    let attr = EpAttr::default();
    let evds = EpEvds { recv, ..rig.server.evds() };
    let server = Ep::create_with_srq(&rig.server.ia, &rig.server.pz, evds, srq, &attr).unwrap();
    rig.connect(server, rig.client.ep(&attr))
}

/// Fills the server's memory with a pattern, so that a write can be detected.
fn paint(rig: &Rig, len: usize) {
    rig.server.lmr.write(0, &vec![0xEE; len]).unwrap();
}

fn server_memory(rig: &Rig, offset: usize, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    rig.server.lmr.read(offset, &mut bytes).unwrap();
    bytes
}

/// Bytes that differ from their neighbours, from the pattern and from zero.
fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| 1 + (i % 199) as u8).collect()
}

/// An EP that was never connected gets no buffer while its neighbour receives, and after the end of
/// a connection nothing leaves the SRQ any more. (DISCONNECT_PENDING still takes buffers: r180.)
fn r72_srq_dequeue_only_connected_or_disconnect_pending() {
    let rig = Rig::new();
    let mut srq = rig.server.srq(8);
    let idle_evd = rig.server.evd(EvdFlags::DTO);
    let evds = EpEvds { recv: Some(&idle_evd), ..rig.server.evds() };
    let idle = Ep::create_with_srq(&rig.server.ia, &rig.server.pz, evds, &srq, &EpAttr::default()).unwrap();
    let mut pair = rig.connect_srq(&srq);
    rig.server.post(&mut srq, 4, 64, 0, 0);
    let got = rig.deliver(&mut pair, 8);
    assert_eq!(got.ep, pair.server.id());
    assert_eq!(counts(&srq), (3, 3));
    rig.disconnect(&pair);
    assert_eq!(pair.server.state(), EpState::Disconnected);
    assert_ne!(rig.send(&mut pair, 0, 8).status, DtoStatus::Success);
    expect_nothing(&rig.server.recv);
    expect_nothing(&idle_evd);
    assert_eq!(counts(&srq), (3, 3));
    assert_eq!(idle.state(), EpState::Unconnected);
}

/// The completion comes on the recv EVD of the EP that took the buffer, names that EP, and has
/// every field. Taking lowers available alone (R75 to R77). Also R73.
fn r75_srq_completion_on_taking_ep_evd() {
    let rig = Rig::new();
    let mut srq = rig.server.srq(4);
    let own = rig.server.evd(EvdFlags::DTO);
    let mut shared_evd = rig.connect_srq(&srq);
    let mut own_evd = connect_with_recv_evd(&rig, &srq, Some(&own));
    own_evd.server.set_context(0x1122);
    for cookie in [0xFEDC_BA98_7654_3210, 0] {
        srq.post_recv(&[rig.server.lmr.triplet(0, 64)], cookie).unwrap();
    }
    assert_eq!(counts(&srq), (2, 2));
    assert_eq!(rig.send(&mut own_evd, 0, 24).status, DtoStatus::Success);
    until("the message is complete", || counts(&srq) == (1, 2));
    let event = next(&own);
    assert_eq!((event.evd, event.data.number()), (own.id(), 1));
    let got = *event.data.dto().expect("a completion");
    assert_eq!((got.ep, got.ep_context), (own_evd.server.id(), 0x1122));
    assert_eq!(
        (got.cookie, got.status, got.length, got.op, got.immediate),
        (0xFEDC_BA98_7654_3210, DtoStatus::Success, 24, DtoOp::Receive, None)
    );
    assert_eq!(DtoOp::Receive as u32, 3);
    expect_nothing(&rig.server.recv);
    let got = rig.deliver(&mut shared_evd, 5);
    assert_eq!((got.ep, got.cookie, got.length), (shared_evd.server.id(), 0, 5));
    expect_nothing(&own);
}

/// Of three segments the first is full, the second partly, the third untouched.
fn r74_srq_fill_in_iov_order() {
    let rig = Rig::new();
    let attr = SrqAttr { max_recv_dtos: 2, max_recv_iov: 3, low_watermark: 0 };
    let mut srq = Srq::create(&rig.server.ia, &rig.server.pz, attr).unwrap();
    let mut pair = rig.connect_srq(&srq);
    paint(&rig, 512);
    let message = pattern(48);
    rig.client.lmr.write(0, &message).unwrap();
    // The second segment lies in front of the first in memory: the order is that of the list.
    let lmr = &rig.server.lmr;
    srq.post_recv(&[lmr.triplet(256, 32), lmr.triplet(0, 32), lmr.triplet(128, 32)], 1).unwrap();
    assert_eq!(rig.deliver(&mut pair, 48).length, 48);
    let memory = server_memory(&rig, 0, 512);
    assert_eq!(memory[256..288], message[..32]);
    assert_eq!(memory[..16], message[32..]);
    assert!(memory[16..256].iter().chain(&memory[288..]).all(|&byte| byte == 0xEE));
}

/// A short message succeeds with its own length and leaves the rest of the buffer; one of no bytes
/// uses a whole entry (R78, R79).
fn r78_srq_recv_short_message() {
    let rig = Rig::new();
    let mut srq = rig.server.srq(4);
    let mut pair = rig.connect_srq(&srq);
    paint(&rig, 256);
    let message = pattern(20);
    rig.client.lmr.write(0, &message).unwrap();
    rig.server.post(&mut srq, 2, 128, 0, 10);
    let got = rig.deliver(&mut pair, 20);
    assert_eq!((got.status, got.length, got.cookie), (DtoStatus::Success, 20, 10));
    let memory = server_memory(&rig, 0, 128);
    assert_eq!(memory[..20], message);
    assert!(memory[20..].iter().all(|&byte| byte == 0xEE));

    pair.client.post_send(&[], 3, NONE).unwrap();
    assert_eq!(dto(&rig.client.request).status, DtoStatus::Success);
    until("the empty message is complete", || counts(&srq) == (0, 1));
    let got = dto(&rig.server.recv);
    assert_eq!((got.status, got.length, got.cookie), (DtoStatus::Success, 0, 11));
    assert_eq!(counts(&srq), (0, 0));
    assert!(server_memory(&rig, 128, 128).iter().all(|&byte| byte == 0xEE));
}

/// A message that is longer than its buffer completes with LOCAL_LENGTH and breaks that connection;
/// the SRQ and its other EPs carry on. Also R81.
fn r80_srq_recv_too_long() {
    let rig = Rig::new();
    let mut srq = rig.server.srq(4);
    let mut long = rig.connect_srq(&srq);
    let mut other = rig.connect_srq(&srq);
    rig.server.post(&mut srq, 3, 64, 0, 0);
    assert_ne!(rig.send(&mut long, 0, 65).status, DtoStatus::Success);
    let got = dto(&rig.server.recv);
    assert_eq!((got.status, got.status as u32), (DtoStatus::LocalLength, 2));
    assert_eq!((got.ep, got.cookie), (long.server.id(), 0));
    expect_connection(&rig.server.connect, &long.server, ConnectionEventKind::Broken);
    expect_connection(&rig.client.connect, &long.client, ConnectionEventKind::Broken);
    assert_eq!((long.server.state(), long.client.state()), (EpState::Disconnected, EpState::Disconnected));

    assert_eq!(srq.query().unwrap().state, SrqState::Operational);
    assert_eq!(counts(&srq), (2, 2));
    assert_eq!(other.server.state(), EpState::Connected);
    for cookie in [1, 2] {
        let got = rig.deliver(&mut other, 64);
        assert_eq!((got.status, got.cookie, got.ep), (DtoStatus::Success, cookie, other.server.id()));
    }
    expect_nothing(&rig.server.connect);
    expect_nothing(&rig.client.connect);
}

/// A message that finds the SRQ empty breaks the connection after the transport's retries, as on an
/// EP without posted receives; the sender's DTO ends with status 9 and its end is BROKEN. Also R84.
///
/// R84 wants BROKEN at the receiver, too, which is not met: the receiver gets DISCONNECTED. Its
/// device stays in RTS, and the sender's DREQ is that of a disconnect: it carries no reason.
fn r83_srq_empty_acts_like_empty_rq() {
    let rig = Rig::with(IaSettings { rnr_retry: 1, rnr_timer: 12, ..IaSettings::default() });
    let mut srq = rig.server.srq(4);
    let on_srq = rig.connect_srq(&srq);
    let plain = rig.connect_plain(&EpAttr::default());
    for mut pair in [on_srq, plain] {
        let sent = rig.send(&mut pair, 0, 8);
        assert_eq!((sent.status, sent.status as u32), (DtoStatus::ReceiverNotReady, 9));
        expect_connection(&rig.client.connect, &pair.client, ConnectionEventKind::Broken);
        expect_connection(&rig.server.connect, &pair.server, ConnectionEventKind::Disconnected);
    }
    expect_nothing(&rig.server.recv);
    // The SRQ is not affected.
    rig.server.post(&mut srq, 1, 64, 0, 5);
    assert_eq!(counts(&srq), (1, 1));
    let mut pair = rig.connect_srq(&srq);
    assert_eq!(rig.deliver(&mut pair, 8).cookie, 5);
}

/// A buffer posted while the sender still retries takes the message, and nothing breaks.
fn r85_srq_empty_late_post_saves_connection() {
    let rig = Rig::patient();
    let mut srq = rig.server.srq(4);
    let mut pair = rig.connect_srq(&srq);
    pair.client.post_send(&[rig.client.lmr.triplet(0, 8)], 1, NONE).unwrap();
    expect_nothing(&rig.client.request);
    rig.server.post(&mut srq, 1, 64, 0, 9);
    assert_eq!(dto(&rig.client.request).status, DtoStatus::Success);
    let got = dto(&rig.server.recv);
    assert_eq!((got.status, got.cookie, got.length), (DtoStatus::Success, 9, 8));
    expect_nothing(&rig.server.connect);
    assert_eq!((pair.server.state(), pair.client.state()), (EpState::Connected, EpState::Connected));
    rig.server.post(&mut srq, 1, 64, 0, 10);
    assert_eq!(rig.deliver(&mut pair, 8).cookie, 10);
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
        assert_eq!(server_memory(&rig, offset, message.len()), message);
    }
    until("all entries are free", || counts(&srq) == (0, 0));
    expect_nothing(&rig.server.recv);
    assert_eq!(pair.server.state(), EpState::Connected);
}

/// The peer's RDMA Writes and Reads move data and take nothing from the SRQ.
fn r88_srq_rdma_uses_no_entry() {
    let rig = Rig::new();
    let mut srq = rig.server.srq(4);
    let mut pair = rig.connect_srq(&srq);
    rig.server.post(&mut srq, 3, 64, 0, 0);
    let message = pattern(64);
    rig.client.lmr.write(0, &message).unwrap();
    let there = RmrTriplet {
        virtual_address: rig.server.lmr.address() + 4096,
        segment_length: 64,
        rmr_context: rig.server.lmr.rmr_context(),
    };
    pair.client.post_rdma_write(&[rig.client.lmr.triplet(0, 64)], 1, there, NONE).unwrap();
    let written = dto(&rig.client.request);
    assert_eq!((written.status, written.op), (DtoStatus::Success, DtoOp::RdmaWrite));
    pair.client.post_rdma_read(&[rig.client.lmr.triplet(256, 64)], 2, there, NONE).unwrap();
    let read = dto(&rig.client.request);
    assert_eq!((read.status, read.op), (DtoStatus::Success, DtoOp::RdmaRead));
    let mut back = [0; 64];
    rig.client.lmr.read(256, &mut back).unwrap();
    assert_eq!((&back[..], server_memory(&rig, 4096, 64)), (&message[..], message.clone()));
    assert_eq!(counts(&srq), (3, 3));
    expect_nothing(&rig.server.recv);
    assert_eq!(rig.deliver(&mut pair, 8).cookie, 0);
    assert_eq!(counts(&srq), (2, 2));
}

/// On each of two connections that share SRQ and EVD receives complete, and leave the EVD, in the
/// order of the Sends; their buffers hold what was sent. Also R92.
fn r89_srq_order_per_connection() {
    const EACH: usize = 24;
    let rig = Rig::patient();
    let attr = EpAttr { max_request_dtos: EACH as i32, ..EpAttr::default() };
    let mut srq = rig.server.srq(10);
    let mut pairs = [0, 1].map(|_| rig.connect(rig.server.srq_ep(&srq, &attr), rig.client.ep(&attr)));
    rig.server.post(&mut srq, 10, 64, 0, 0);
    // Message n of connection c is c, n and n more bytes.
    for n in 0..EACH {
        for (c, pair) in pairs.iter_mut().enumerate() {
            let at = (n * 2 + c) * 64;
            rig.client.lmr.write(at, &[c as u8, n as u8]).unwrap();
            let message = [rig.client.lmr.triplet(at, 2 + n)];
            pair.client.post_send(&message, n as u64, CompletionFlags::SUPPRESS).unwrap();
        }
    }
    let mut expected: HashMap<EpId, (u8, usize)> =
        pairs.iter().enumerate().map(|(c, pair)| (pair.server.id(), (c as u8, 0))).collect();
    for _ in 0..2 * EACH {
        let got = dto(&rig.server.recv);
        assert_eq!(got.status, DtoStatus::Success);
        let (c, n) = expected.get_mut(&got.ep).expect("one of the two");
        let at = got.cookie as usize * 64;
        assert_eq!((got.length as usize, server_memory(&rig, at, 2)), (2 + *n, vec![*c, *n as u8]));
        *n += 1;
        rig.server.post(&mut srq, 1, 64, at, got.cookie);
    }
    assert!(expected.values().all(|&(_, n)| n == EACH));
    assert_eq!(counts(&srq), (10, 10));
}

/// Reaping in another order than posting loses no capacity and mixes up no cookies.
fn r93_srq_bookkeeping_survives_any_order() {
    let rig = Rig::new();
    let mut srq = rig.server.srq(4);
    let evds = [rig.server.evd(EvdFlags::DTO), rig.server.evd(EvdFlags::DTO)];
    let mut pairs = [0, 1].map(|i| connect_with_recv_evd(&rig, &srq, Some(&evds[i])));
    let mut cookie = 0;
    let mut serial = 0_u8;
    for round in 0..5 {
        // A cookie tells the place of its buffer, so a mixed-up cookie shows in the bytes.
        while counts(&srq).1 < 4 {
            rig.server.post(&mut srq, 1, 16, (cookie % 64) as usize * 16, cookie);
            cookie += 1;
        }
        assert_eq!(
            code(srq.post_recv(&[rig.server.lmr.triplet(0, 16)], 0)),
            dat::RESOURCE_SRQ,
            "INSUFFICIENT_RESOURCES when full"
        );
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
            let memory = server_memory(&rig, (got.cookie % 64) as usize * 16, 2);
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
