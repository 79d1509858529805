//! Completion flags and solicited wait.

use crate::*;
use doorbell::inside::EpEvds;
use doorbell::{CompletionFlags, DtoStatus, Ep, EpAttr, Evd, EvdFlags, PostError};
use doorbell_hw_tests::rig::*;
use doorbell_hw_tests::{Rig, Side, Test, dat, tests};

pub(crate) const TESTS: &[Test] = tests![
    a_disabled_evd_triggers_no_cno,
    r238_flags_flushed_notify,
    r241_flags_send_unsignalled_needs_ep_mode,
];

/// Flushed receives, of a plain EP, wake a waiter in solicited mode and one whose posts were
/// unsignalled.
fn r238_flags_flushed_notify() {
    let rig = Rig::new();
    for mode in [CompletionFlags::SOLICITED_WAIT, CompletionFlags::UNSIGNALLED] {
        let recv = Evd::new(&rig.server.ia, 64, EvdFlags::DTO).unwrap();
        let evds = EpEvds { recv: Some(&recv), ..rig.server.evds() };
        let attr = EpAttr { recv_completion_flags: mode, ..EpAttr::default() };
        let mut ep =
            Ep::builder(&rig.server.ia, &rig.server.pz).evds(evds).attributes(&attr).build().unwrap();
        let post = if mode == CompletionFlags::UNSIGNALLED { mode } else { NONE };
        ep.post_recv(&[rig.server.lmr.triplet(0, 64)], 7, post).unwrap();
        let pair = rig.connect(ep, rig.client.ep(&EpAttr::default()));
        let waiting = waiter(&recv, Some(LONG), 1);
        rig.disconnect(&pair);
        let got = waiting.join().unwrap().unwrap();
        let dto = got.event.completion().unwrap();
        assert_eq!((dto.cookie, dto.status), (7, DtoStatus::Flushed));
    }
}

/// UNSIGNALLED on a post is refused unless the EP's stream is in that mode; then the post's event
/// wakes nobody.
fn r241_flags_send_unsignalled_needs_ep_mode() {
    let rig = Rig::new();
    let mut pair = rig.connect_plain(&EpAttr::default());
    let refused = |outcome: Result<(), PostError>| {
        assert_eq!(outcome.unwrap_err().code(), dat::INVALID_ARG5);
    };
    refused(pair.client.send(&[rig.client.lmr.triplet(0, 8)]).unsignalled().post());
    refused(pair.server.post_recv(&[rig.server.lmr.triplet(0, 8)], 0, CompletionFlags::UNSIGNALLED));
    assert_eq!(pair.server.recv_query().unwrap().buffers, Some(0));

    let unsignalled = EpAttr {
        recv_completion_flags: CompletionFlags::UNSIGNALLED,
        request_completion_flags: CompletionFlags::UNSIGNALLED,
        ..EpAttr::default()
    };
    let evd = |side: &Side| Evd::new(&side.ia, 64, EvdFlags::DTO).unwrap();
    let (recv, request) = (evd(&rig.server), evd(&rig.client));
    let make = |side: &Side, recv: &Evd, request: &Evd| {
        let evds = EpEvds { recv: Some(recv), request: Some(request), connect: Some(&side.connect) };
        Ep::builder(&side.ia, &side.pz).evds(evds).attributes(&unsignalled).build().unwrap()
    };
    let mut server = make(&rig.server, &recv, &evd(&rig.server));
    for (cookie, flags) in [(0, CompletionFlags::UNSIGNALLED), (1, NONE)] {
        server.post_recv(&[rig.server.lmr.triplet(0, 64)], cookie, flags).unwrap();
    }
    let mut pair = rig.connect(server, make(&rig.client, &evd(&rig.client), &request));
    let (at_server, at_client) = (waiter(&recv, Some(LONG), 1), waiter(&request, Some(LONG), 1));
    let segment = [rig.client.lmr.triplet(0, 8)];
    pair.client.send(&segment).cookie(10).unsignalled().post().unwrap();
    until("both ends are complete", || queued(&recv) == 1 && queued(&request) == 1);
    expect_nothing(&rig.server.recv);
    assert!(!at_server.is_finished() && !at_client.is_finished());
    pair.client.send(&segment).cookie(11).post().unwrap();
    for (waiting, oldest) in [(at_server, 0), (at_client, 10)] {
        let got = waiting.join().unwrap().unwrap();
        assert_eq!((got.event.completion().unwrap().cookie, got.more), (oldest, 1));
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
        assert_eq!(l.recv.dequeue().unwrap().unwrap().completion().unwrap().cookie, 2 * n);
        l.recv.enable().unwrap();
        assert!(l.recv.query().unwrap().enabled);
        assert_eq!(rig.send(&mut l.pair, 0, 8).status, DtoStatus::Success);
        assert_eq!(l.cno.wait(Some(LONG)).unwrap(), l.recv.id());
        assert_eq!(l.recv.dequeue().unwrap().unwrap().completion().unwrap().cookie, 2 * n + 1);
    }
}
