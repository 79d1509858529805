//! Completion flags and solicited wait.

use crate::*;
use doorbell::{CompletionFlags, DtoStatus, Ep, EpAttr, EpEvds, Evd, EvdFlags, PostError};
use doorbell_hw_tests::rig::*;
use doorbell_hw_tests::{Rig, Side, Test, dat, tests};

pub(crate) const TESTS: &[Test] = tests![
    r230_flags_default_notifies,
    r231_flags_unsignalled_srq_still_notifies,
    r232_flags_unsignalled_forces_threshold_1,
    r233_flags_solicited_with_sender_bit,
    r234_flags_solicited_without_sender_bit,
    r235_flags_solicited_wakes_to_oldest,
    r236_flags_solicited_forces_threshold_1,
    r237_flags_sender_bit_ignored_elsewhere,
    r238_flags_errors_notify,
    r238_flags_errors_trigger_cno,
    a_disabled_evd_triggers_no_cno,
    r238_flags_flushed_notify,
    r239_flags_threshold_mode,
    r240_flags_sender_suppress_is_local,
    r241_flags_send_unsignalled_needs_ep_mode,
];

/// With receive flag 0 every message wakes the waiter and triggers the CNO.
fn r230_flags_default_notifies() {
    let rig = Rig::new();
    let mut l = listening(&rig, NONE);
    every_message_notifies(&rig, &mut l);
}

fn every_message_notifies(rig: &Rig, l: &mut Listening) {
    for cookie in 0..3 {
        let waiting = waiter(&l.recv, Some(LONG), 1);
        assert!(is_waiting(&l.recv));
        rig.send(&mut l.pair, 0, 8);
        let got = waiting.join().unwrap().unwrap();
        assert_eq!(got.event.data.dto().map(|dto| dto.cookie), Some(cookie));
    }
    expect_quiet(&l.cno);
    for cookie in 3..6 {
        rig.send(&mut l.pair, 0, 8);
        assert_eq!(l.cno.wait(Some(LONG)).unwrap(), l.recv.id());
        assert_eq!(dto(&l.recv).cookie, cookie);
    }
}

/// UNSIGNALLED on an SRQ EP does not change notification, since buffers of an SRQ carry no flag.
fn r231_flags_unsignalled_srq_still_notifies() {
    let rig = Rig::new();
    let mut l = listening(&rig, CompletionFlags::UNSIGNALLED);
    every_message_notifies(&rig, &mut l);
}

/// With an unsignalled stream on the EVD only threshold 1 is allowed: INVALID_STATE
/// (CONFIG_NOTIFY).
fn r232_flags_unsignalled_forces_threshold_1() {
    let rig = Rig::new();
    let mut l = listening(&rig, CompletionFlags::UNSIGNALLED);
    assert_eq!(l.recv.wait(Some(LONG), 2).unwrap_err().error.code(), dat::INVALID_STATE_EVD_CONFIG_NOTIFY);
    rig.send(&mut l.pair, 0, 8);
    l.recv.wait(Some(LONG), 1).unwrap();
}

/// In solicited mode a Send with the bit wakes the waiter and triggers the CNO.
fn r233_flags_solicited_with_sender_bit() {
    let rig = Rig::new();
    let mut l = listening(&rig, CompletionFlags::SOLICITED_WAIT);
    let waiting = waiter(&l.recv, Some(LONG), 1);
    rig.send_with(&mut l.pair, 0, 8, CompletionFlags::SOLICITED_WAIT);
    assert!(waiting.join().unwrap().unwrap().event.data.dto().unwrap().is_success());
    rig.send_with(&mut l.pair, 0, 8, CompletionFlags::SOLICITED_WAIT);
    assert_eq!(l.cno.wait(Some(LONG)).unwrap(), l.recv.id());
    assert!(l.recv.dequeue().unwrap().data.dto().unwrap().is_success());
}

/// In solicited mode a Send without the bit is queued and wakes nobody: the waiter continues to
/// sleep, the CNO is not triggered, and a dequeue returns the event.
fn r234_flags_solicited_without_sender_bit() {
    let rig = Rig::new();
    let mut l = listening(&rig, CompletionFlags::SOLICITED_WAIT);
    send_until_queued(&rig, &mut l, NONE, 1);
    expect_quiet(&l.cno);
    assert_eq!(l.recv.dequeue().unwrap().data.dto().unwrap().cookie, 0);

    let waiting = waiter(&l.recv, Some(LONG), 1);
    send_until_queued(&rig, &mut l, NONE, 1);
    send_until_queued(&rig, &mut l, NONE, 2);
    expect_quiet(&l.cno);
    assert!(is_waiting(&l.recv) && !waiting.is_finished());
    l.recv.set_unwaitable().unwrap();
    waiting.join().unwrap().unwrap_err();
    assert_eq!(l.recv.dequeue().unwrap().data.dto().unwrap().cookie, 1);
    assert_eq!(l.recv.dequeue().unwrap().data.dto().unwrap().cookie, 2);
}

/// A waiter that a solicited message wakes gets the oldest event; the others, unsolicited ones
/// included, are counted.
fn r235_flags_solicited_wakes_to_oldest() {
    let rig = Rig::new();
    let mut l = listening(&rig, CompletionFlags::SOLICITED_WAIT);
    let waiting = waiter(&l.recv, Some(LONG), 1);
    send_until_queued(&rig, &mut l, NONE, 1);
    send_until_queued(&rig, &mut l, NONE, 2);
    assert!(is_waiting(&l.recv));
    rig.send_with(&mut l.pair, 0, 8, CompletionFlags::SOLICITED_WAIT);
    let got = waiting.join().unwrap().unwrap();
    assert_eq!(got.event.data.dto().unwrap().cookie, 0);
    assert_eq!(got.more, 2);
}

/// With a solicited stream on the EVD only threshold 1 is allowed: INVALID_STATE
/// (CONFIG_SOLICITED).
fn r236_flags_solicited_forces_threshold_1() {
    let rig = Rig::new();
    let l = listening(&rig, CompletionFlags::SOLICITED_WAIT);
    assert_eq!(l.recv.wait(Some(LONG), 2).unwrap_err().error.code(), dat::INVALID_STATE_EVD_CONFIG_SOLICITED);
}

/// In other modes the sender's bit has no effect: it does not wake a waiter before its threshold is
/// reached.
fn r237_flags_sender_bit_ignored_elsewhere() {
    let rig = Rig::new();
    let mut l = listening(&rig, NONE);
    let waiting = waiter(&l.recv, Some(LONG), 2);
    send_until_queued(&rig, &mut l, CompletionFlags::SOLICITED_WAIT, 1);
    expect_quiet(&l.cno);
    assert!(is_waiting(&l.recv) && !waiting.is_finished());
    rig.send(&mut l.pair, 0, 8);
    assert_eq!(waiting.join().unwrap().unwrap().more, 1);
}

/// A failed receive wakes a waiter in solicited mode although its Send did not ask for it.
fn r238_flags_errors_notify() {
    let rig = Rig::new();
    let mut l = listening(&rig, CompletionFlags::SOLICITED_WAIT);
    let waiting = waiter(&l.recv, Some(LONG), 1);
    // The message is longer than the buffers.
    assert_ne!(rig.send(&mut l.pair, 0, 100).status, DtoStatus::Success);
    let got = waiting.join().unwrap().unwrap();
    assert_eq!(got.event.data.dto().unwrap().status, DtoStatus::LocalLength);
}

/// Without a waiter it triggers the CNO.
fn r238_flags_errors_trigger_cno() {
    let rig = Rig::new();
    let mut l = listening(&rig, CompletionFlags::SOLICITED_WAIT);
    rig.send(&mut l.pair, 0, 8);
    expect_quiet(&l.cno);
    assert_ne!(rig.send(&mut l.pair, 0, 100).status, DtoStatus::Success);
    assert_eq!(l.cno.wait(Some(LONG)).unwrap(), l.recv.id());
    assert_eq!(dto(&l.recv).status, DtoStatus::Success);
    assert_eq!(dto(&l.recv).status, DtoStatus::LocalLength);
}

/// Flushed receives, of a plain EP, wake a waiter in solicited mode and one whose posts were
/// unsignalled.
fn r238_flags_flushed_notify() {
    let rig = Rig::new();
    for mode in [CompletionFlags::SOLICITED_WAIT, CompletionFlags::UNSIGNALLED] {
        let recv = Evd::create(&rig.server.ia, 64, None, EvdFlags::DTO).unwrap();
        let evds = EpEvds { recv: Some(&recv), ..rig.server.evds() };
        let attr = EpAttr { recv_completion_flags: mode, ..EpAttr::default() };
        let mut ep = Ep::create(&rig.server.ia, &rig.server.pz, evds, Some(&attr)).unwrap();
        let post = if mode == CompletionFlags::UNSIGNALLED { mode } else { NONE };
        ep.post_recv(&[rig.server.lmr.triplet(0, 64)], 7, post).unwrap();
        let pair = rig.connect(ep, rig.client.ep(&EpAttr::default()));
        let waiting = waiter(&recv, Some(LONG), 1);
        rig.disconnect(&pair);
        let got = waiting.join().unwrap().unwrap();
        let dto = got.event.data.dto().unwrap();
        assert_eq!((dto.cookie, dto.status), (7, DtoStatus::Flushed));
    }
}

/// In threshold mode the waiter returns when as many events are queued, not before.
fn r239_flags_threshold_mode() {
    let rig = Rig::new();
    let mut l = listening(&rig, CompletionFlags::EVD_THRESHOLD);
    let waiting = waiter(&l.recv, Some(LONG), 3);
    send_until_queued(&rig, &mut l, NONE, 1);
    send_until_queued(&rig, &mut l, NONE, 2);
    expect_quiet(&l.cno);
    assert!(is_waiting(&l.recv) && !waiting.is_finished());
    rig.send(&mut l.pair, 0, 8);
    let got = waiting.join().unwrap().unwrap();
    assert_eq!((got.event.data.dto().unwrap().cookie, got.more), (0, 2));
}

/// SUPPRESS on a Send suppresses the sender's event on success. The receiver's event and failures
/// still appear.
fn r240_flags_sender_suppress_is_local() {
    let rig = Rig::new();
    let mut l = listening(&rig, NONE);
    let segment = [rig.client.lmr.triplet(0, 8)];
    l.pair.client.post_send(&segment, 1, CompletionFlags::SUPPRESS).unwrap();
    assert_eq!(dto(&l.recv).length, 8);
    l.pair.client.post_send(&segment, 2, NONE).unwrap();
    assert_eq!(dto(&l.recv).length, 8);
    assert_eq!(dto(&rig.client.request).cookie, 2);
    expect_nothing(&rig.client.request);
    rig.disconnect(&l.pair);
    l.pair.client.post_send(&segment, 3, CompletionFlags::SUPPRESS).unwrap();
    let failed = dto(&rig.client.request);
    assert_eq!((failed.cookie, failed.status), (3, DtoStatus::Flushed));
}

/// UNSIGNALLED on a post is refused unless the EP's stream is in that mode; then the post's event
/// wakes nobody.
fn r241_flags_send_unsignalled_needs_ep_mode() {
    let rig = Rig::new();
    let mut pair = rig.connect_plain(&EpAttr::default());
    let refused = |outcome: Result<(), PostError>| {
        assert_eq!(outcome.unwrap_err().code(), dat::INVALID_ARG5);
    };
    refused(pair.client.post_send(&[rig.client.lmr.triplet(0, 8)], 0, CompletionFlags::UNSIGNALLED));
    refused(pair.server.post_recv(&[rig.server.lmr.triplet(0, 8)], 0, CompletionFlags::UNSIGNALLED));
    assert_eq!(pair.server.recv_query().unwrap().buffers, 0);

    let unsignalled = EpAttr {
        recv_completion_flags: CompletionFlags::UNSIGNALLED,
        request_completion_flags: CompletionFlags::UNSIGNALLED,
        ..EpAttr::default()
    };
    let evd = |side: &Side| Evd::create(&side.ia, 64, None, EvdFlags::DTO).unwrap();
    let (recv, request) = (evd(&rig.server), evd(&rig.client));
    let make = |side: &Side, recv: &Evd, request: &Evd| {
        let evds = EpEvds { recv: Some(recv), request: Some(request), connect: Some(&side.connect) };
        Ep::create(&side.ia, &side.pz, evds, Some(&unsignalled)).unwrap()
    };
    let mut server = make(&rig.server, &recv, &evd(&rig.server));
    for (cookie, flags) in [(0, CompletionFlags::UNSIGNALLED), (1, NONE)] {
        server.post_recv(&[rig.server.lmr.triplet(0, 64)], cookie, flags).unwrap();
    }
    let mut pair = rig.connect(server, make(&rig.client, &evd(&rig.client), &request));
    let (at_server, at_client) = (waiter(&recv, Some(LONG), 1), waiter(&request, Some(LONG), 1));
    let segment = [rig.client.lmr.triplet(0, 8)];
    pair.client.post_send(&segment, 10, CompletionFlags::UNSIGNALLED).unwrap();
    until("both ends are complete", || queued(&recv) == 1 && queued(&request) == 1);
    expect_nothing(&rig.server.recv);
    assert!(!at_server.is_finished() && !at_client.is_finished());
    pair.client.post_send(&segment, 11, NONE).unwrap();
    for (waiting, oldest) in [(at_server, 0), (at_client, 10)] {
        let got = waiting.join().unwrap().unwrap();
        assert_eq!((got.event.data.dto().unwrap().cookie, got.more), (oldest, 1));
    }
}

/// Disabled, the EVD triggers its CNO by no event; enabled again, by the next one.
fn a_disabled_evd_triggers_no_cno() {
    let rig = Rig::new();
    let mut l = listening(&rig, NONE);
    for n in 0..2 {
        l.recv.disable().unwrap();
        assert!(!l.recv.query().unwrap().enabled);
        send_until_queued(&rig, &mut l, NONE, 1);
        expect_quiet(&l.cno);
        assert_eq!(l.recv.dequeue().unwrap().data.dto().unwrap().cookie, 2 * n);
        l.recv.enable().unwrap();
        assert!(l.recv.query().unwrap().enabled);
        assert_eq!(rig.send(&mut l.pair, 0, 8).status, DtoStatus::Success);
        assert_eq!(l.cno.wait(Some(LONG)).unwrap(), l.recv.id());
        assert_eq!(l.recv.dequeue().unwrap().data.dto().unwrap().cookie, 2 * n + 1);
    }
}
