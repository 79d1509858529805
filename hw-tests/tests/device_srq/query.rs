//! What a query tells (section D).

use crate::*;
use doorbell::{CompletionFlags, EventData, Srq, SrqAttr, VALUE_UNKNOWN};
use doorbell_hw_tests::dat;
use doorbell_hw_tests::rig::*;
use doorbell_hw_tests::{Rig, Test, tests};

pub(crate) const TESTS: &[Test] = tests![
    r36_srq_query_available_meaning,
    r37_srq_query_outstanding_meaning,
    r38_srq_query_count_invariant,
    r39_srq_query_example_10_after_post,
    r43_srq_query_reap_by_wait_or_dequeue,
    r44_srq_query_actual_sizes,
    r45_srq_query_low_watermark_last_set,
];

/// With nothing available the next message finds no buffer, although an entry is occupied. The
/// message arrives once a buffer is posted.
fn r36_srq_query_available_meaning() {
    let rig = Rig::patient();
    let mut srq = rig.server.srq(4);
    let mut pair = rig.connect_srq(&srq);
    rig.server.post(&mut srq, 1, 64, 0, 1);
    rig.send(&mut pair, 0, 24);
    until("the message is complete", || counts(&srq) == (0, 1));
    pair.client.post_send(&[rig.client.lmr.triplet(0, 25)], 0, CompletionFlags::empty()).unwrap();
    expect_nothing(&rig.client.request);
    assert_eq!(counts(&srq), (0, 1));
    rig.server.post(&mut srq, 1, 64, 64, 2);
    let got = [dto(&rig.server.recv), dto(&rig.server.recv)].map(|dto| (dto.cookie, dto.length));
    assert_eq!(got, [(1, 24), (2, 25)]);
    assert!(dto(&rig.client.request).is_success());
}

/// An entry is outstanding on the SRQ, while a large message fills its buffer, and when complete
/// until it is reaped.
fn r37_srq_query_outstanding_meaning() {
    const LARGE: usize = 1 << 20;
    let rig = Rig::new();
    let mut srq = rig.server.srq(4);
    let mut pair = rig.connect_srq(&srq);
    rig.server.post(&mut srq, 1, LARGE, 0, 1);
    rig.server.post(&mut srq, 2, 64, LARGE, 2);
    pair.client.post_send(&[rig.client.lmr.triplet(0, LARGE)], 0, CompletionFlags::empty()).unwrap();
    until("the message is complete", || {
        let (available, outstanding) = counts(&srq);
        assert!(outstanding == 3 && (available == 2 || available == 3), "{available} {outstanding}");
        available == 2
    });
    assert_eq!(dto(&rig.server.recv).length as usize, LARGE);
    assert_eq!(counts(&srq), (2, 2));
}

/// At any time, also while another thread reaps, 0 <= available <= outstanding <= depth, and no
/// count is unknown, as the provider promises. Also R46.
fn r38_srq_query_count_invariant() {
    const DEPTH: i32 = 8;
    const MESSAGES: u64 = 120;
    let rig = Rig::patient();
    assert_eq!(rig.server.ia.provider_attributes().srq_info_supported, 0x11);
    let mut srq = rig.server.srq(DEPTH);
    let mut pair = rig.connect_srq(&srq);
    let look = |srq: &Srq| {
        let param = srq.query().unwrap();
        let (depth, available, outstanding) = (param.max_recv_dtos, param.available, param.outstanding);
        assert!(available != VALUE_UNKNOWN && outstanding != VALUE_UNKNOWN);
        assert!(0 <= available && available <= outstanding && outstanding <= depth, "{param:?}");
        outstanding < depth
    };
    std::thread::scope(|scope| {
        let recv = &rig.server.recv;
        let reaper = scope.spawn(move || (0..MESSAGES).map(|_| dto(recv).cookie).sum::<u64>());
        let (mut posted, mut sent, mut done) = (0, 0, 0);
        until("all messages are sent", || {
            if look(&srq) && posted < MESSAGES {
                srq.post_recv(&[rig.server.lmr.triplet(posted as usize * 64, 64)], posted).unwrap();
                posted += 1;
            }
            if sent < MESSAGES && sent - done < 4 {
                let triplet = rig.client.lmr.triplet(0, (sent % 65) as usize);
                pair.client.post_send(&[triplet], 0, CompletionFlags::empty()).unwrap();
                sent += 1;
            }
            while let Ok(event) = rig.client.request.dequeue() {
                assert!(matches!(event.data, EventData::Dto(dto) if dto.is_success()), "{event:?}");
                done += 1;
            }
            done == MESSAGES
        });
        assert_eq!(reaper.join().unwrap(), (0..MESSAGES).sum());
    });
    assert_eq!(counts(&srq), (0, 0));
}

/// The worked example of dat_srq_query, all four lines (R39 to R42).
fn r39_srq_query_example_10_after_post() {
    let rig = Rig::new();
    let mut srq = rig.server.srq(10);
    let mut pair = rig.connect_srq(&srq);
    assert_eq!(srq.query().unwrap().max_recv_dtos, 10);
    rig.server.post(&mut srq, 3, 64, 0, 100);
    assert_eq!(counts(&srq), (3, 3));
    rig.send(&mut pair, 0, 24);
    until("the message is complete", || counts(&srq) == (2, 3));
    let got = dto(&rig.server.recv);
    assert_eq!((got.cookie, got.length, got.ep), (100, 24, pair.server.id()));
    assert_eq!(counts(&srq), (2, 2));
    rig.server.post(&mut srq, 1, 64, 0, 100);
    assert_eq!(counts(&srq), (3, 3));
}

/// Both a dequeue and a successful wait give an entry back; a wait that times out gives nothing
/// back.
fn r43_srq_query_reap_by_wait_or_dequeue() {
    let rig = Rig::new();
    let mut srq = rig.server.srq(4);
    let mut pair = rig.connect_srq(&srq);
    rig.server.post(&mut srq, 3, 64, 0, 0);
    for n in 1..=2 {
        rig.send(&mut pair, 0, 24);
        until("the message is complete", || counts(&srq) == (3 - n, 3));
    }
    let timed_out = rig.server.recv.wait(Some(SHORT), 3).unwrap_err();
    assert_eq!((timed_out.error.code(), timed_out.more), (dat::TIMEOUT_EXPIRED, 2));
    assert_eq!(counts(&srq), (1, 3));
    rig.server.recv.dequeue().unwrap();
    assert_eq!(counts(&srq), (1, 2));
    rig.server.recv.wait(Some(LONG), 1).unwrap();
    assert_eq!(counts(&srq), (1, 1));
}

/// The query gives the real sizes: that many entries and segments fit and no more, before and after
/// a resize.
fn r44_srq_query_actual_sizes() {
    let side = server();
    let attr = SrqAttr { max_recv_iov: 3, ..SrqAttr::depth(5) };
    let mut srq = Srq::create(&side.ia, &side.pz, attr).unwrap();
    for depth in [None, Some(9), Some(40)] {
        if let Some(depth) = depth {
            srq.resize(depth).unwrap();
        }
        let param = srq.query().unwrap();
        let segment = side.lmr.triplet(0, 16);
        let too_many = vec![segment; param.max_recv_iov as usize + 1];
        assert_eq!(post_refused(srq.post_recv(&too_many, 0)), dat::INVALID_ARG2);
        for _ in param.outstanding..param.max_recv_dtos {
            srq.post_recv(&too_many[1..], 0).unwrap();
        }
        assert_eq!(post_refused(srq.post_recv(&too_many[1..], 0)), dat::RESOURCE_SRQ);
        assert!(param.max_recv_dtos >= depth.unwrap_or(5) && param.max_recv_iov >= 3);
    }
}

/// The low watermark of a query is the value last accepted, whether its event has fired, will fire
/// or never can.
fn r45_srq_query_low_watermark_last_set() {
    let side = server();
    let mut srq = side.srq(8);
    let low = |srq: &Srq| srq.query().unwrap().low_watermark;
    assert_eq!(low(&srq), 0);
    // Nothing is posted: this one fires at once.
    srq.set_low_watermark(3).unwrap();
    asynchronous(&side.ia);
    assert_eq!(low(&srq), 3);
    side.post(&mut srq, 6, 64, 0, 0);
    srq.set_low_watermark(5).unwrap();
    assert_eq!(low(&srq), 5);
    srq.set_low_watermark(0).unwrap();
    assert_eq!(low(&srq), 0);
}
