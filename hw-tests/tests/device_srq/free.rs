//! Freeing SRQs (section C).

use crate::*;
use doorbell::{AsyncObject, ConnectionEventKind, EpAttr, EpState, Pz, Srq, SrqAttr, reason};
use doorbell_hw_tests::dat;
use doorbell_hw_tests::rig::*;
use doorbell_hw_tests::{Rig, Test, tests};

pub(crate) const TESTS: &[Test] = tests![
    r24_srq_free_refused_while_ep_attached,
    r25_srq_free_ok_after_last_ep_free,
    r26_srq_free_with_posted_buffers,
    r27_srq_free_with_unreaped_completions,
    r29_srq_free_releases_buffers,
    r30_srq_free_after_lmr_free,
    a_dropped_srq_stays_while_an_ep_uses_it,
];

/// The free that has to be refused; gives the SRQ back.
fn in_use(srq: Srq) -> Srq {
    let refused = srq.free().unwrap_err();
    assert_eq!(refused.error.code(), dat::INVALID_STATE_SRQ_IN_USE);
    refused.object
}

/// While an EP uses the SRQ it is not freed, and the refused call has changed nothing: messages
/// arrive as before.
fn r24_srq_free_refused_while_ep_attached() {
    let rig = Rig::new();
    let mut srq = rig.server.srq(4);
    let mut pair = rig.connect_srq(&srq);
    rig.server.post(&mut srq, 2, 64, 0, 7);
    let before = srq.query().unwrap();
    srq = in_use(srq);
    assert_eq!(srq.query().unwrap(), before);
    assert_eq!(rig.deliver(&mut pair, 24).cookie, 7);
    srq = in_use(srq);
    rig.server.post(&mut srq, 1, 64, 256, 9);
    assert_eq!(counts(&srq), (2, 2));
}

/// An EP keeps the SRQ in use in every state, before, during and after a connection and when reset,
/// until the EP is freed.
fn r25_srq_free_ok_after_last_ep_free() {
    let rig = Rig::new();
    let mut srq = rig.server.srq(4);
    let idle = rig.server.srq_ep(&srq, &EpAttr::default());
    srq = in_use(srq);
    let mut pair = rig.connect_srq(&srq);
    srq = in_use(srq);
    rig.disconnect(&pair);
    assert_eq!(pair.server.state(), EpState::Disconnected);
    srq = in_use(srq);
    pair.server.reset().unwrap();
    assert_eq!(pair.server.state(), EpState::Unconnected);
    srq = in_use(srq);
    pair.server.free().unwrap();
    srq = in_use(srq);
    idle.free().unwrap();
    srq.free().unwrap();
}

/// Posted buffers do not prevent the free, and never complete.
fn r26_srq_free_with_posted_buffers() {
    let rig = Rig::new();
    let mut srq = rig.server.srq(4);
    let pair = rig.connect_srq(&srq);
    rig.server.post(&mut srq, 4, 64, 0, 0);
    pair.server.free().unwrap();
    assert_eq!(counts(&srq), (4, 4));
    srq.free().unwrap();
    expect_nothing(&rig.server.recv);
}

/// Completions of a freed EP do not prevent the free; the EVD keeps working for others.
fn r27_srq_free_with_unreaped_completions() {
    let rig = Rig::new();
    let mut srq = rig.server.srq(4);
    let mut pair = rig.connect_srq(&srq);
    rig.server.post(&mut srq, 3, 64, 0, 1);
    for i in 1..=2 {
        rig.send(&mut pair, 0, 24);
        until("it has arrived", || counts(&srq) == (3 - i, 3));
    }
    pair.server.free().unwrap();
    srq.free().unwrap();
    expect_connection(&rig.client.connect, &pair.client, ConnectionEventKind::Disconnected);
    // The remaining events may come or not.
    while let Ok(event) = rig.server.recv.dequeue() {
        assert!(matches!(event.data.dto(), Some(dto) if dto.cookie == 1 || dto.cookie == 2), "{event:?}");
    }
    let mut srq = rig.server.srq(4);
    let mut pair = rig.connect_srq(&srq);
    rig.server.post(&mut srq, 1, 64, 0, 77);
    assert_eq!(rig.deliver(&mut pair, 24).cookie, 77);
}

/// Once the SRQ is freed its buffers are the consumer's: messages that the peer still sends do not
/// land there.
fn r29_srq_free_releases_buffers() {
    let rig = Rig::new();
    let mut srq = rig.server.srq(4);
    let mut pair = rig.connect_srq(&srq);
    rig.client.lmr.write(0, &[0xAA; 64]).unwrap();
    rig.server.post(&mut srq, 4, 64, 0, 0);
    assert_eq!(rig.deliver(&mut pair, 64).cookie, 0);
    pair.server.free().unwrap();
    srq.free().unwrap();
    rig.server.lmr.write(0, &[0x55; 256]).unwrap();
    // The peer may or may not know yet that the connection is over; the send cannot succeed in any
    // case.
    let triplet = rig.client.lmr.triplet(0, 64);
    if pair.client.post_send(&[triplet], 0, doorbell::CompletionFlags::empty()).is_ok() {
        assert!(!dto(&rig.client.request).is_success());
    }
    let mut now = [0; 256];
    rig.server.lmr.read(0, &mut now).unwrap();
    assert_eq!(now, [0x55; 256]);
}

/// The LMR under posted buffers can be freed, the SRQ after it, and then the PZ of both.
fn r30_srq_free_after_lmr_free() {
    let side = server();
    let pz = Pz::create(&side.ia).unwrap();
    let lmr = doorbell::Lmr::create(&side.ia, &pz, 4096, all_privileges()).unwrap();
    let mut srq = Srq::create(&side.ia, &pz, SrqAttr::depth(4)).unwrap();
    for i in 0..4 {
        srq.post_recv(&[lmr.triplet(i * 64, 64)], 0).unwrap();
    }
    lmr.free().unwrap();
    assert_eq!(counts(&srq), (4, 4));
    srq.free().unwrap();
    pz.free().unwrap();
}

/// A drop is no free: the EP goes on taking buffers, and the low watermark is told.
fn a_dropped_srq_stays_while_an_ep_uses_it() {
    let rig = Rig::new();
    let mut srq = rig.server.srq(4);
    rig.server.post(&mut srq, 4, 64, 0, 0);
    let mut pair = rig.connect_srq(&srq);
    srq.set_low_watermark(3).unwrap();
    let id = srq.id();
    drop(srq);
    assert_eq!(rig.deliver(&mut pair, 24).cookie, 0);
    expect_nothing(rig.server.ia.async_evd());
    assert_eq!(rig.deliver(&mut pair, 24).cookie, 1);
    let event = asynchronous(&rig.server.ia);
    assert_eq!((event.object, event.reason), (AsyncObject::Srq(id), reason::SRQ_LOW_WATERMARK));
    rig.disconnect(&pair);
}
