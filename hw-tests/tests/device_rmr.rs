//! RMRs: remote keys for part of an LMR, bound and unbound; Sends that invalidate them; RDMA Reads
//! into them.

use doorbell::inside::EpEvds;
use doorbell::{
    CloseFlags, CompletionFlags, ConnectionEventKind, DtoOp, DtoStatus, Ep, EpAttr, Evd, EvdCounter,
    EvdFlags, Event, Lmr, LmrTriplet, MemPriv, Pz, Request, ReturnType, Rmr, RmrBind, RmrBindCompletion,
    RmrScope, RmrTriplet, VaType,
};
use doorbell_hw_tests::dat;
use doorbell_hw_tests::rig::*;
use doorbell_hw_tests::{Pair, Rig, devices, tests};

fn main() {
    let rxe = devices().is_some_and(|(server, _)| !server.starts_with("mlx5"));
    doorbell_hw_tests::run_unless(
        tests![
            a_peer_gets_nothing_outside_the_window,
            a_window_for_reading_is_not_written,
            binding_again_moves_the_window,
            binding_to_nothing_takes_the_context_back,
            freeing_takes_the_context_back,
            a_send_with_invalidate_takes_the_context_back,
            an_rmr_that_the_peer_invalidated_is_bound_again,
            invalidating_a_foreign_key_breaks_the_connection,
            a_zero_based_rmr_counts_from_its_start,
            an_rmr_moves_to_another_connection,
            binds_that_cannot_be_are_refused,
            an_lmr_under_a_window_stays,
            a_pz_with_an_rmr_stays,
            binds_complete_in_their_turn,
            the_first_dequeue_finds_a_finished_bind,
            a_finished_bind_leaves_later_requests_in_the_cq,
            a_suppressed_bind_makes_no_event,
            a_bind_on_a_disconnected_ep_is_flushed,
            a_window_survives_a_flushed_bind,
            a_read_lands_in_an_rmr,
            a_read_lands_where_an_lmrs_rmr_context_says,
            reads_into_what_peers_may_not_write_are_refused,
            an_ia_with_an_rmr_does_not_close_gracefully,
            what_is_advertised_can_be_made,
        ],
        4,
        move |name| match name {
            "a_finished_bind_leaves_later_requests_in_the_cq" if rxe => {
                Some("on rxe the progress thread is told of each completion, and takes it off the CQ")
            }
            "a_peer_gets_nothing_outside_the_window" if rxe => {
                Some("rxe does not look at the bounds of windows")
            }
            "invalidating_a_foreign_key_breaks_the_connection" if rxe => {
                Some("rxe acknowledges a Send before it looks at the key")
            }
            _ => None,
        },
    )
    .exit();
}

const NONE: CompletionFlags = CompletionFlags::empty();

fn rw() -> MemPriv {
    MemPriv::REMOTE_READ | MemPriv::REMOTE_WRITE
}

/// A pair, and an LMR of the server without remote privileges: the client can access it through an
/// RMR only.
fn pair() -> (Rig, Pair, Lmr) {
    let rig = Rig::new();
    let pair = rig.connect_plain(&EpAttr::default());
    let lmr = Lmr::builder(&rig.server.ia, &rig.server.pz).allocate(8192).unwrap();
    (rig, pair, lmr)
}

fn to(lmr: &Lmr, offset: usize, len: usize) -> RmrBind<'_> {
    RmrBind { lmr, segment: lmr.triplet(offset, len), privileges: rw(), va_type: VaType::Virtual }
}

fn nothing(lmr: &Lmr) -> RmrBind<'_> {
    to(lmr, 0, 0)
}

/// Binds through the server's EP and waits for the completion.
#[track_caller]
fn bind(rig: &Rig, pair: &mut Pair, rmr: &mut Rmr, to: RmrBind<'_>) -> u32 {
    let context = rmr.bind(&mut pair.server, to, 7, NONE).unwrap();
    let event = bound(&rig.server.request);
    assert_eq!(
        event,
        RmrBindCompletion { rmr: rmr.id(), ep: pair.server.id(), cookie: 7, status: DtoStatus::Success }
    );
    context
}

fn remote(at: u64, len: u32, rmr_context: u32) -> RmrTriplet {
    RmrTriplet { virtual_address: at, segment_length: len, rmr_context }
}

/// The client writes these bytes. Returns the status.
#[track_caller]
fn write(rig: &Rig, pair: &mut Pair, bytes: &[u8], to: RmrTriplet) -> DtoStatus {
    rig.client.lmr.write(0, bytes).unwrap();
    pair.client.write(&[rig.client.lmr.triplet(0, bytes.len())]).to(to).post().unwrap();
    dto(&rig.client.request).status
}

/// The client reads. Returns the status.
#[track_caller]
fn read(rig: &Rig, pair: &mut Pair, from: RmrTriplet) -> DtoStatus {
    let into = rig.client.lmr.triplet(4096, from.segment_length as usize);
    pair.client.read(&[into]).from(from).post().unwrap();
    dto(&rig.client.request).status
}

fn bytes(lmr: &Lmr, offset: usize, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    lmr.read(offset, &mut bytes).unwrap();
    bytes
}

fn a_peer_gets_nothing_outside_the_window() {
    for scope in [RmrScope::Pz, RmrScope::Ep] {
        for outside in [-1_i64, 1] {
            let (rig, mut pair, lmr) = pair();
            let mut rmr = Rmr::new(&rig.server.pz, scope).unwrap();
            let context = bind(&rig, &mut pair, &mut rmr, to(&lmr, 100, 50));
            let target = remote(lmr.address().wrapping_add_signed(100 + outside), 50, context);
            assert_eq!(write(&rig, &mut pair, &[1; 50], target), DtoStatus::RemoteAccess);
            assert_eq!(bytes(&lmr, 0, 8192), vec![0; 8192]);
            expect_connection(&rig.client.connect, &pair.client, ConnectionEventKind::Broken);
        }
    }
}

fn a_window_for_reading_is_not_written() {
    for scope in [RmrScope::Pz, RmrScope::Ep] {
        let (rig, mut pair, lmr) = pair();
        let mut rmr = Rmr::new(&rig.server.pz, scope).unwrap();
        let only_read = RmrBind { privileges: MemPriv::REMOTE_READ, ..to(&lmr, 0, 64) };
        let context = bind(&rig, &mut pair, &mut rmr, only_read);
        let target = remote(lmr.address(), 8, context);
        assert_eq!(read(&rig, &mut pair, target), DtoStatus::Success);
        assert_eq!(write(&rig, &mut pair, &[1; 8], target), DtoStatus::RemoteAccess);
        assert_eq!(bytes(&lmr, 0, 8), [0; 8]);
    }
}

fn binding_again_moves_the_window() {
    for scope in [RmrScope::Pz, RmrScope::Ep] {
        let (rig, mut pair, lmr) = pair();
        let mut rmr = Rmr::new(&rig.server.pz, scope).unwrap();
        let first = bind(&rig, &mut pair, &mut rmr, to(&lmr, 0, 64));
        let mut last = first;
        for i in 1..6 {
            let context = bind(&rig, &mut pair, &mut rmr, to(&lmr, 64 * i, 64));
            assert_ne!(context, last);
            let target = remote(lmr.address() + 64 * i as u64, 4, context);
            assert_eq!(write(&rig, &mut pair, b"here", target), DtoStatus::Success);
            assert_eq!(bytes(&lmr, 64 * i, 4), b"here");
            last = context;
        }
        assert_eq!(write(&rig, &mut pair, b"gone", remote(lmr.address(), 4, first)), DtoStatus::RemoteAccess);
        assert_eq!(bytes(&lmr, 0, 4), [0; 4]);
    }
}

fn binding_to_nothing_takes_the_context_back() {
    for scope in [RmrScope::Pz, RmrScope::Ep] {
        let (rig, mut pair, lmr) = pair();
        let mut rmr = Rmr::new(&rig.server.pz, scope).unwrap();
        // Unbinding an RMR that is not bound is no error.
        bind(&rig, &mut pair, &mut rmr, nothing(&lmr));
        let context = bind(&rig, &mut pair, &mut rmr, to(&lmr, 0, 64));
        bind(&rig, &mut pair, &mut rmr, nothing(&lmr));
        assert_eq!(rmr.query().unwrap().segment, LmrTriplet::default());
        let again = bind(&rig, &mut pair, &mut rmr, to(&lmr, 0, 64));
        assert_eq!(write(&rig, &mut pair, b"good", remote(lmr.address(), 4, again)), DtoStatus::Success);
        bind(&rig, &mut pair, &mut rmr, nothing(&lmr));
        assert_ne!(context, again);
        assert_eq!(write(&rig, &mut pair, b"dead", remote(lmr.address(), 4, again)), DtoStatus::RemoteAccess);
        assert_eq!(bytes(&lmr, 0, 4), b"good");
    }
}

fn freeing_takes_the_context_back() {
    for scope in [RmrScope::Pz, RmrScope::Ep] {
        let (rig, mut pair, lmr) = pair();
        let mut rmr = Rmr::new(&rig.server.pz, scope).unwrap();
        let context = bind(&rig, &mut pair, &mut rmr, to(&lmr, 0, 64));
        rmr.close().unwrap();
        assert_eq!(
            write(&rig, &mut pair, b"dead", remote(lmr.address(), 4, context)),
            DtoStatus::RemoteAccess
        );
        assert_eq!(bytes(&lmr, 0, 4), [0; 4]);
        lmr.close().unwrap();
    }
}

fn a_send_with_invalidate_takes_the_context_back() {
    let rig = Rig::new();
    let mut srq = rig.server.srq(8);
    let ways = [(false, true), (true, true), (true, false)].map(|way| [(false, way), (true, way)]);
    for (on_srq, (queued, by_wait)) in ways.into_iter().flatten() {
        let attr = EpAttr::default();
        let server = if on_srq { rig.server.srq_ep(&srq, &attr) } else { rig.server.ep(&attr) };
        let mut pair = rig.connect(server, rig.client.ep(&attr));
        let lmr = Lmr::builder(&rig.server.ia, &rig.server.pz)
            .privileges(MemPriv::LOCAL_WRITE)
            .allocate(4096)
            .unwrap();
        let mut rmr = Rmr::new(&rig.server.pz, RmrScope::Ep).unwrap();
        assert_eq!(rmr.query().unwrap().scope, RmrScope::Ep);
        let context = bind(&rig, &mut pair, &mut rmr, to(&lmr, 0, 64));
        assert_eq!(write(&rig, &mut pair, b"mine", remote(lmr.address(), 4, context)), DtoStatus::Success);
        let buffer = [rig.server.lmr.triplet(0, 64)];
        if on_srq {
            srq.post_recv(&buffer, 3).unwrap();
        } else {
            pair.server.post_recv(&buffer, 3, NONE).unwrap();
        }
        let message = [rig.client.lmr.triplet(0, 4)];
        if by_wait {
            pair.client.send(&message).with_invalidate(context).cookie(4).post().unwrap();
        } else {
            let send = Request::send(&message).with_invalidate(context).cookie(4);
            pair.client.chain(&[send.into()]).unwrap();
        }
        let sent = dto(&rig.client.request);
        assert_eq!((sent.status, sent.op, sent.cookie, sent.length), (DtoStatus::Success, DtoOp::Send, 4, 4));
        if queued {
            until("the message is queued", || rig.server.recv.query().unwrap().queued == 1);
        }
        let received = if by_wait {
            dto(&rig.server.recv)
        } else {
            *rig.server.recv.dequeue().unwrap().unwrap().completion().unwrap()
        };
        assert_eq!(
            (received.status, received.op, received.invalidated, received.length),
            (DtoStatus::Success, DtoOp::ReceiveWithInvalidate, Some(context), 4)
        );
        // After the event, the RMR is unbound, and the program can free the memory or bind again.
        assert_eq!(rmr.query().unwrap().segment, LmrTriplet::default());
        let again = bind(&rig, &mut pair, &mut rmr, to(&lmr, 64, 64));
        assert_eq!(write(&rig, &mut pair, b"next", remote(lmr.address() + 64, 4, again)), DtoStatus::Success);
        assert_eq!(
            write(&rig, &mut pair, b"dead", remote(lmr.address(), 4, context)),
            DtoStatus::RemoteAccess
        );
        assert_eq!(bytes(&lmr, 0, 4), b"mine");
        expect_connection(&rig.client.connect, &pair.client, ConnectionEventKind::Broken);
        expect_connection(&rig.server.connect, &pair.server, ConnectionEventKind::Broken);
    }
}

/// The event of the invalidating message has not been reaped yet.
fn an_rmr_that_the_peer_invalidated_is_bound_again() {
    let (rig, mut pair, lmr) = pair();
    let mut rmr = Rmr::new(&rig.server.pz, RmrScope::Ep).unwrap();
    let context = bind(&rig, &mut pair, &mut rmr, to(&lmr, 0, 64));
    pair.server.post_recv(&[rig.server.lmr.triplet(0, 64)], 3, NONE).unwrap();
    pair.client.send(&[rig.client.lmr.triplet(0, 4)]).with_invalidate(context).cookie(4).post().unwrap();
    assert_eq!(dto(&rig.client.request).status, DtoStatus::Success);
    let again = bind(&rig, &mut pair, &mut rmr, to(&lmr, 64, 64));
    assert_eq!(dto(&rig.server.recv).invalidated, Some(context));
    // The event is about the earlier binding: the new binding stays.
    assert_eq!(rmr.query().unwrap().segment, lmr.triplet(64, 64));
    assert_eq!(write(&rig, &mut pair, b"new", remote(lmr.address() + 64, 3, again)), DtoStatus::Success);
}

fn invalidating_a_foreign_key_breaks_the_connection() {
    let (rig, mut pair, lmr) = pair();
    let mut rmr = Rmr::new(&rig.server.pz, RmrScope::Ep).unwrap();
    let context = bind(&rig, &mut pair, &mut rmr, to(&lmr, 0, 64));
    pair.server.post_recv(&[rig.server.lmr.triplet(0, 64)], 3, NONE).unwrap();
    let wrong = context ^ 0x0010_0000;
    pair.client.send(&[rig.client.lmr.triplet(0, 4)]).with_invalidate(wrong).cookie(4).post().unwrap();
    assert_ne!(dto(&rig.client.request).status, DtoStatus::Success);
    expect_connection(&rig.client.connect, &pair.client, ConnectionEventKind::Broken);
    assert_eq!(rmr.query().unwrap().segment, lmr.triplet(0, 64));
}

fn a_zero_based_rmr_counts_from_its_start() {
    let (rig, mut pair, lmr) = pair();
    let mut rmr = Rmr::new(&rig.server.pz, RmrScope::Ep).unwrap();
    let zero_based = RmrBind { va_type: VaType::ZeroBased, ..to(&lmr, 256, 64) };
    let context = bind(&rig, &mut pair, &mut rmr, zero_based);
    assert_eq!(rmr.query().unwrap().va_type, VaType::ZeroBased);
    assert_eq!(write(&rig, &mut pair, b"at 10", remote(10, 5, context)), DtoStatus::Success);
    assert_eq!(bytes(&lmr, 266, 5), b"at 10");
    if rmr.query().unwrap().scope == RmrScope::Ep {
        let mut of_pz = Rmr::new(&rig.server.pz, RmrScope::Pz).unwrap();
        if of_pz.query().unwrap().scope == RmrScope::Pz {
            let refused = of_pz.bind(&mut pair.server, zero_based, 0, NONE);
            assert_eq!(refused.unwrap_err().return_type(), ReturnType::ModelNotSupported);
        }
    }
}

fn an_rmr_moves_to_another_connection() {
    for scope in [RmrScope::Pz, RmrScope::Ep] {
        let (rig, mut first, lmr) = pair();
        let mut second = rig.connect_plain(&EpAttr::default());
        let mut rmr = Rmr::new(&rig.server.pz, scope).unwrap();
        bind(&rig, &mut first, &mut rmr, to(&lmr, 0, 64));
        let context = bind(&rig, &mut second, &mut rmr, to(&lmr, 64, 64));
        assert_eq!(
            write(&rig, &mut second, b"second", remote(lmr.address() + 64, 6, context)),
            DtoStatus::Success
        );
        // Freeing the EP unbinds the window; the RMR stays.
        let Pair { server, client } = second;
        server.close().unwrap();
        drop(client);
        let context = bind(&rig, &mut first, &mut rmr, to(&lmr, 128, 64));
        assert_eq!(
            write(&rig, &mut first, b"first", remote(lmr.address() + 128, 5, context)),
            DtoStatus::Success
        );
        assert_eq!(bytes(&lmr, 128, 5), b"first");
    }
}

fn binds_that_cannot_be_are_refused() {
    let (rig, mut pair, lmr) = pair();
    let server = &rig.server;
    let mut rmr = Rmr::new(&server.pz, RmrScope::Pz).unwrap();
    let mut refused = |ep: &mut Ep, to: RmrBind<'_>, flags| code(rmr.bind(ep, to, 0, flags));
    let ep = &mut pair.server;
    // INVALID_PARAMETER (ARG3): memory outside of the LMR, or the context of another LMR.
    assert_eq!(refused(ep, to(&lmr, 8000, 193), NONE), dat::INVALID_ARG3);
    let other = RmrBind { segment: server.lmr.triplet(0, 8), ..to(&lmr, 0, 8) };
    assert_eq!(refused(ep, other, NONE), dat::INVALID_ARG3);
    // INVALID_PARAMETER (ARG8): flags.
    assert_eq!(refused(ep, to(&lmr, 0, 8), CompletionFlags::UNSIGNALLED), dat::INVALID_ARG8);
    assert_eq!(refused(ep, to(&lmr, 0, 8), CompletionFlags::SOLICITED_WAIT), dat::INVALID_ARG8);
    // PRIVILEGES_VIOLATION: peers could write memory that this side may not write.
    let for_reading =
        Lmr::builder(&server.ia, &server.pz).privileges(MemPriv::LOCAL_READ).allocate(64).unwrap();
    assert_eq!(refused(ep, to(&for_reading, 0, 8), NONE), dat::PRIVILEGES_RDMA_WRITE);
    let read_only = RmrBind { privileges: MemPriv::REMOTE_READ, ..to(&for_reading, 0, 8) };
    // PROTECTION_VIOLATION: the PZ of the LMR or of the EP differs.
    let pz = Pz::new(&server.ia).unwrap();
    let elsewhere = Lmr::builder(&server.ia, &pz).privileges(all_privileges()).allocate(64).unwrap();
    assert_eq!(refused(ep, to(&elsewhere, 0, 8), NONE), dat::PROTECTION_RDMA_WRITE);
    let mut stranger = Ep::builder(&server.ia, &pz).evds(server.evds()).build().unwrap();
    assert_eq!(refused(&mut stranger, to(&lmr, 0, 8), NONE), dat::PROTECTION_RDMA_WRITE);
    // INVALID_STATE (EP_UNCONNECTED).
    let mut idle = server.ep(&EpAttr::default());
    assert_eq!(refused(&mut idle, to(&lmr, 0, 8), NONE), dat::INVALID_STATE_EP_UNCONNECTED);
    // None of these calls has an effect.
    bind(&rig, &mut pair, &mut rmr, read_only);
    // INVALID_HANDLE (EP): an EP of another IA.
    assert_eq!(code(rmr.bind(&mut pair.client, to(&lmr, 0, 8), 0, NONE)), dat::INVALID_HANDLE_EP);
}

fn an_lmr_under_a_window_stays() {
    for scope in [RmrScope::Pz, RmrScope::Ep] {
        let (rig, mut pair, lmr) = pair();
        let mut rmr = Rmr::new(&rig.server.pz, scope).unwrap();
        let context = bind(&rig, &mut pair, &mut rmr, to(&lmr, 0, 64));
        let refused = lmr.close().unwrap_err();
        assert_eq!(refused.error.code(), dat::INVALID_STATE_LMR_IN_USE);
        let lmr = refused.object;
        assert_eq!(write(&rig, &mut pair, b"stays", remote(lmr.address(), 5, context)), DtoStatus::Success);
        bind(&rig, &mut pair, &mut rmr, nothing(&lmr));
        lmr.close().unwrap();
    }
}

fn a_pz_with_an_rmr_stays() {
    let side = one_side();
    let pz = Pz::new(&side.ia).unwrap();
    let rmr = Rmr::new(&pz, RmrScope::Pz).unwrap();
    let refused = pz.close().unwrap_err();
    assert_eq!(refused.error.code(), dat::INVALID_STATE_PZ_IN_USE);
    rmr.close().unwrap();
    refused.object.close().unwrap();
}

fn binds_complete_in_their_turn() {
    let (rig, mut pair, lmr) = pair();
    let mut rmrs: Vec<_> = (0..3).map(|_| Rmr::new(&rig.server.pz, RmrScope::Pz).unwrap()).collect();
    pair.client.post_recv(&[rig.client.lmr.triplet(0, 64)], 0, NONE).unwrap();
    let mut contexts = Vec::new();
    for (i, rmr) in rmrs.iter_mut().enumerate() {
        contexts.push(rmr.bind(&mut pair.server, to(&lmr, 64 * i, 64), i as u64, NONE).unwrap());
    }
    // The context goes to the peer in a Send that follows the bind, so the bind has been done by
    // then.
    rig.server.lmr.write(0, &contexts[2].to_ne_bytes()).unwrap();
    pair.server.send(&[rig.server.lmr.triplet(0, 4)]).cookie(99).post().unwrap();
    assert_eq!(dto(&rig.client.recv).length, 4);
    assert_eq!(bytes(&rig.client.lmr, 0, 4), contexts[2].to_ne_bytes());
    let target = remote(lmr.address() + 128, 4, contexts[2]);
    assert_eq!(write(&rig, &mut pair, b"done", target), DtoStatus::Success);
    for (i, rmr) in rmrs.iter().enumerate() {
        let event = bound(&rig.server.request);
        assert_eq!((event.rmr, event.cookie), (rmr.id(), i as u64));
    }
    assert_eq!(dto(&rig.server.request).cookie, 99);
}

/// How many dequeues have found their event by a poll.
fn found_by_polls(evd: &Evd) -> u64 {
    evd.counters().unwrap()[EvdCounter::DequeuePollFound]
}

/// A bind that has completed comes from the first dequeue, although the dequeue has to look at the
/// completion before it knows that an RMR is concerned. A request behind it comes after it.
fn the_first_dequeue_finds_a_finished_bind() {
    let (rig, mut pair, lmr) = pair();
    let mut rmr = Rmr::new(&rig.server.pz, RmrScope::Pz).unwrap();
    for request in [CompletionFlags::SUPPRESS, NONE] {
        pair.client.post_recv(&[rig.client.lmr.triplet(0, 64)], 0, NONE).unwrap();
        rmr.bind(&mut pair.server, to(&lmr, 0, 64), 7, NONE).unwrap();
        pair.server.send(&[rig.server.lmr.triplet(0, 4)]).cookie(99).flags(request).post().unwrap();
        // The Send follows the bind.
        dto(&rig.client.recv);
        let before = found_by_polls(&rig.server.request);
        match rig.server.request.dequeue().unwrap().unwrap() {
            Event::Bound(bind) => assert_eq!((bind.cookie, bind.status), (7, DtoStatus::Success)),
            other => panic!("not a bind: {other:?}"),
        }
        // On rxe the progress thread is told of each completion, and may take it off the CQ before.
        let polled = found_by_polls(&rig.server.request) - before;
        assert!(polled == 1 || polled == 0 && doorbell_hw_tests::on_rxe(), "{polled}");
    }
    assert_eq!(dto(&rig.server.request).cookie, 99);
}

/// The dequeue of a bind does not move requests behind it into the EVD, which has no room for them.
fn a_finished_bind_leaves_later_requests_in_the_cq() {
    let rig = Rig::new();
    let server = &rig.server;
    let requests = Evd::new(&server.ia, 1, EvdFlags::DTO).unwrap();
    let more = 3 * u64::from(requests.query().unwrap().depth);
    let evds = EpEvds { request: Some(&requests), ..server.evds() };
    let attr = EpAttr { request_depth: more as u32 + 1, ..EpAttr::default() };
    let ep = Ep::builder(&server.ia, &server.pz).evds(evds).attributes(&attr).build().unwrap();
    let mut pair = rig.connect(ep, rig.client.ep(&EpAttr::default()));
    let lmr = Lmr::builder(&server.ia, &server.pz).allocate(4096).unwrap();
    let mut rmr = Rmr::new(&server.pz, RmrScope::Pz).unwrap();
    // Receives are posted first: their EVD is another one.
    pair.server.post_recv(&[server.lmr.triplet(0, 64)], 0, NONE).unwrap();
    pair.client.post_recv(&[rig.client.lmr.triplet(0, 64)], 0, NONE).unwrap();
    rmr.bind(&mut pair.server, to(&lmr, 0, 64), 99, NONE).unwrap();
    let target = remote(rig.client.lmr.address(), 8, rig.client.lmr.rmr_context());
    for cookie in 1..more {
        pair.server.write(&[server.lmr.triplet(0, 8)]).to(target).cookie(cookie).post().unwrap();
    }
    pair.server.send(&[server.lmr.triplet(0, 8)]).cookie(more).post().unwrap();
    assert_eq!(dto(&rig.client.recv).status, DtoStatus::Success);
    // The answer follows the acknowledgement of the Send, and so of all before it.
    assert_eq!(rig.deliver(&mut pair, 8).status, DtoStatus::Success);
    // A wait would move all of them.
    match requests.dequeue().unwrap().unwrap() {
        Event::Bound(bind) => assert_eq!((bind.cookie, bind.status), (99, DtoStatus::Success)),
        other => panic!("not a bind: {other:?}"),
    }
    for cookie in 1..=more {
        let mut event = None;
        until("the request has completed", || {
            event = requests.dequeue().unwrap();
            event.is_some()
        });
        let done = *event.as_ref().and_then(|event| event.completion()).unwrap();
        assert_eq!((done.cookie, done.status), (cookie, DtoStatus::Success));
    }
    expect_nothing(server.ia.async_evd());
}

fn a_suppressed_bind_makes_no_event() {
    for scope in [RmrScope::Pz, RmrScope::Ep] {
        let (rig, mut pair, lmr) = pair();
        let mut rmr = Rmr::new(&rig.server.pz, scope).unwrap();
        for i in 0..40 {
            // More binds than the queue holds: completed binds release their entries.
            let suppress = CompletionFlags::SUPPRESS;
            until("room for a bind", || {
                match rmr.bind(&mut pair.server, to(&lmr, 64 * (i % 8), 64), 0, suppress) {
                    Ok(_) => true,
                    Err(error) => {
                        assert_eq!(error.return_type(), ReturnType::InsufficientResources, "{error}");
                        false
                    }
                }
            });
        }
        until("all binds are done", || pair.server.status().unwrap().requests == 0);
        let context = bind(&rig, &mut pair, &mut rmr, to(&lmr, 0, 64));
        expect_nothing(&rig.server.request);
        assert_eq!(write(&rig, &mut pair, b"last", remote(lmr.address(), 4, context)), DtoStatus::Success);
    }
}

fn a_bind_on_a_disconnected_ep_is_flushed() {
    let (rig, mut pair, lmr) = pair();
    let mut rmr = Rmr::new(&rig.server.pz, RmrScope::Pz).unwrap();
    rig.disconnect(&pair);
    rmr.bind(&mut pair.server, to(&lmr, 0, 64), 5, NONE).unwrap();
    let event = bound(&rig.server.request);
    assert_eq!((event.rmr, event.cookie, event.status), (rmr.id(), 5, DtoStatus::Flushed));
    assert_eq!(rmr.query().unwrap().segment, LmrTriplet::default());
    lmr.close().unwrap();
}

/// A bind under way at the end of its connection may or may not take effect; the RMR can be bound
/// on the next connection in either case.
fn a_window_survives_a_flushed_bind() {
    for scope in [RmrScope::Pz, RmrScope::Ep] {
        let (rig, mut pair, lmr) = pair();
        let mut rmr = Rmr::new(&rig.server.pz, scope).unwrap();
        bind(&rig, &mut pair, &mut rmr, to(&lmr, 0, 64));
        pair.client.disconnect(CloseFlags::Abrupt).unwrap();
        // Until the server's EP is notified, binds go to a QP without a peer.
        let mut posted = 0;
        while pair.server.state() == doorbell::EpState::Connected && posted < 4 {
            if rmr.bind(&mut pair.server, to(&lmr, 64, 64), 0, NONE).is_ok() {
                posted += 1;
            }
        }
        expect_connection(&rig.server.connect, &pair.server, ConnectionEventKind::Disconnected);
        expect_connection(&rig.client.connect, &pair.client, ConnectionEventKind::Disconnected);
        let mut again = rig.connect_plain(&EpAttr::default());
        // Events of the old connection may still come.
        let context = rmr.bind(&mut again.server, to(&lmr, 128, 64), 7, NONE).unwrap();
        loop {
            let event = bound(&rig.server.request);
            if event.ep == again.server.id() {
                assert_eq!(event.status, DtoStatus::Success);
                break;
            }
        }
        assert_eq!(
            write(&rig, &mut again, b"next", remote(lmr.address() + 128, 4, context)),
            DtoStatus::Success
        );
        assert_eq!(bytes(&lmr, 128, 4), b"next");
    }
}

fn a_read_lands_in_an_rmr() {
    let (rig, mut pair, lmr) = pair();
    let mut rmr = Rmr::new(&rig.server.pz, RmrScope::Ep).unwrap();
    let zero_based = RmrBind { va_type: VaType::ZeroBased, ..to(&lmr, 512, 64) };
    let context = bind(&rig, &mut pair, &mut rmr, zero_based);
    rig.client.lmr.write(0, b"from the peer").unwrap();
    let from = remote(rig.client.lmr.address(), 13, rig.client.lmr.rmr_context());
    pair.server.read_to_rmr(remote(20, 13, context)).from(from).cookie(8).post().unwrap();
    let done = dto(&rig.server.request);
    assert_eq!(
        (done.status, done.op, done.cookie, done.length),
        (DtoStatus::Success, DtoOp::RdmaRead, 8, 13)
    );
    assert_eq!(bytes(&lmr, 532, 13), b"from the peer");
}

fn a_read_lands_where_an_lmrs_rmr_context_says() {
    let (rig, mut pair, _lmr) = pair();
    rig.client.lmr.write(0, b"from the peer").unwrap();
    let from = remote(rig.client.lmr.address(), 13, rig.client.lmr.rmr_context());
    let into = &rig.server.lmr;
    let local = remote(into.address() + 77, 13, into.rmr_context());
    pair.server.read_to_rmr(local).from(from).cookie(8).post().unwrap();
    assert_eq!(dto(&rig.server.request).status, DtoStatus::Success);
    assert_eq!(bytes(into, 77, 13), b"from the peer");
}

fn reads_into_what_peers_may_not_write_are_refused() {
    let (rig, mut pair, lmr) = pair();
    let mut rmr = Rmr::new(&rig.server.pz, RmrScope::Pz).unwrap();
    let from = remote(rig.client.lmr.address(), 16, rig.client.lmr.rmr_context());
    let refused = |pair: &mut Pair, local| code(pair.server.read_to_rmr(local).from(from).post());
    let unbound = remote(lmr.address(), 16, rmr.query().unwrap().rmr_context);
    // PRIVILEGES_VIOLATION: a context that names nothing, an LMR without remote privileges, a
    // read-only RMR.
    assert_eq!(refused(&mut pair, unbound), dat::PRIVILEGES_WRITE);
    assert_eq!(refused(&mut pair, remote(lmr.address(), 16, lmr.rmr_context())), dat::PRIVILEGES_WRITE);
    let only_read = RmrBind { privileges: MemPriv::REMOTE_READ, ..to(&lmr, 0, 64) };
    let context = bind(&rig, &mut pair, &mut rmr, only_read);
    assert_eq!(refused(&mut pair, remote(lmr.address(), 16, context)), dat::PRIVILEGES_WRITE);
    // Memory outside of the window.
    let context = bind(&rig, &mut pair, &mut rmr, to(&lmr, 0, 64));
    assert_eq!(refused(&mut pair, remote(lmr.address() + 49, 16, context)), dat::INVALID_ARG3);
    // LENGTH_ERROR: the local memory is shorter than the data.
    assert_eq!(refused(&mut pair, remote(lmr.address(), 15, context)), dat::LENGTH_ERROR);
    pair.server.read_to_rmr(remote(lmr.address() + 48, 16, context)).from(from).post().unwrap();
    assert_eq!(dto(&rig.server.request).status, DtoStatus::Success);
}

fn an_ia_with_an_rmr_does_not_close_gracefully() {
    let ia = doorbell::Ia::open(&devices().unwrap().0).unwrap();
    let pz = Pz::new(&ia).unwrap();
    let rmr = Rmr::new(&pz, RmrScope::Pz).unwrap();
    let refused = ia.close().unwrap_err();
    assert_eq!(refused.error.code(), dat::INVALID_STATE_IA_IN_USE);
    assert!(refused.error.to_string().contains("RMR"));
    drop(refused.object);
    assert_eq!(code(rmr.query()), dat::INVALID_HANDLE_RMR);
    assert_eq!(code(rmr.close()), dat::INVALID_HANDLE_RMR);
}

fn what_is_advertised_can_be_made() {
    let side = one_side();
    let attr = side.ia.attributes();
    assert_eq!(Rmr::new(&side.pz, RmrScope::Pz).is_ok(), attr.max_rmrs > 0);
    if !attr.remote_invalidate {
        let mut ep = side.ep(&EpAttr::default());
        assert_eq!(code(ep.send(&[]).with_invalidate(1).post()), dat::INVALID_STATE_EP_UNCONNECTED);
    }
}
