//! The progress thread is late: it handles the end of a connection after a thread of the program
//! has reset and connected the EP again, or has freed it, or an event of a CQ after a thread of the
//! program has begun to wait.

use crate::steps::{Placed, Steps, elsewhere, outcome};
use doorbell::inside::EpEvds;
use doorbell::lock_hook::before_locks;
use doorbell::{
    AsyncKind, AsyncObject, CloseFlags, CompletionFlags, ConnectOptions, ConnectionEventKind, CrArrival,
    DtoStatus, Ep, EpAttr, EpId, EpState, EvdCounter, EvdFlags, MemPriv, Psp, Rmr, RmrBind, RmrScope, Srq,
    VaType, reason,
};
use doorbell_hw_tests::rig::*;
use doorbell_hw_tests::software::order;
use doorbell_hw_tests::{Pair, Rig, dat, devices};
use rxe_fallback::cm::Listener;
use rxe_fallback::{ConnParam, SendFlags, SendOp};
use std::sync::{Arc, OnceLock};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

const NONE: CompletionFlags = CompletionFlags::empty();

/// The server's progress thread, found by a low watermark that fires. The connection stays open
/// while the rest of the test runs.
fn progress_thread(rig: &Rig) -> (ThreadId, Srq, Pair) {
    let me = std::thread::current().id();
    let mut srq = rig.server.srq(1);
    let mut pair = rig.connect_srq(&srq);
    rig.server.post(&mut srq, 1, 64, 0, 0);
    srq.set_low_watermark(1).unwrap();
    let found = Arc::new(OnceLock::new());
    let placed = {
        let found = found.clone();
        before_locks(Some(Arc::new(move |lock| {
            let this = std::thread::current().id();
            if lock == "SrqInner::low" && this != me {
                let _ = found.set(this);
            }
        })));
        Placed
    };
    rig.deliver(&mut pair, 8);
    asynchronous(&rig.server.ia);
    drop(placed);
    (*found.get().expect("the progress thread told of the low watermark"), srq, pair)
}

/// From now on, this thread stops before it takes the last of these locks, if it has taken the
/// others before in this order. It continues when the step "go" is reached. Another thread is at
/// step "reset" where it is about to take the lock that a reset takes.
fn stop(thread: ThreadId, locks: &'static [&'static str]) -> (Arc<Steps>, Placed) {
    let steps = Arc::new(Steps::default());
    let hook = {
        let (steps, taken) = (steps.clone(), std::sync::Mutex::new(0));
        move |lock: &'static str| {
            if std::thread::current().id() != thread {
                if lock == "EpInner::ending" && steps.has_reached("stopped") {
                    steps.reach("reset");
                }
                return;
            }
            let mut taken = taken.lock().unwrap();
            if locks.get(*taken) != Some(&lock) {
                return;
            }
            *taken += 1;
            let last = *taken == locks.len();
            drop(taken);
            if last {
                steps.reach("stopped");
                steps.wait_for("go");
            }
        }
    };
    before_locks(Some(Arc::new(hook)));
    (steps, Placed)
}

/// Waits until the progress thread has handled what was there when it continued: it brings a
/// request, and after that another.
fn let_progress_catch_up(rig: &Rig) {
    for _ in 0..2 {
        let client = rig.client.ep(&EpAttr::default());
        let (_psp, arrival) = rig.ask(&client);
        arrival.cr.reject(&[]).unwrap();
        expect_connection(&rig.client.connect, &client, ConnectionEventKind::PeerRejected);
    }
}

/// Another client asks for a connection, and gets its answer later.
fn next_client(rig: &Rig) -> (Ep, Psp, CrArrival) {
    let client = rig.client.ep(&EpAttr::default());
    let (psp, arrival) = rig.ask(&client);
    (client, psp, arrival)
}

/// The server's end disconnects. The progress thread stops at these locks.
fn end(rig: &Rig, pair: &Pair, thread: ThreadId, locks: &'static [&'static str]) -> (Arc<Steps>, Placed) {
    let (steps, placed) = stop(thread, locks);
    pair.server.disconnect(CloseFlags::Abrupt).unwrap();
    expect_connection(&rig.server.connect, &pair.server, ConnectionEventKind::Disconnected);
    expect_connection(&rig.client.connect, &pair.client, ConnectionEventKind::Disconnected);
    steps.wait_for("stopped");
    (steps, placed)
}

/// The progress thread checks whether an ended EP has its completions. It stops in this check and
/// continues when the EP is part of another connection, after the time that the device has for its
/// last completions: the new connection stays.
pub(crate) fn an_ep_is_connected_again_before_its_end_is_checked() {
    /// The provider waits for the device so long.
    const BOUND: Duration = Duration::from_millis(500);
    let rig = Rig::new();
    let (thread, _srq, _pair) = progress_thread(&rig);
    let mut pair = rig.connect_plain(&EpAttr::default());
    let (client, _psp, arrival) = next_client(&rig);
    let ends = Instant::now();
    // Between the two looks at the EP's state.
    let (steps, placed) = end(&rig, &pair, thread, &["EpInner::control", "EvdInner::queue"]);
    pair.server.reset().unwrap();
    pair.server.post_recv(&[rig.server.lmr.triplet(0, 64)], 5, NONE).unwrap();
    arrival.cr.accept(&pair.server, &[]).unwrap();
    std::thread::sleep((BOUND + SHORT).saturating_sub(ends.elapsed()));
    steps.reach("go");
    expect_connection(&rig.client.connect, &client, ConnectionEventKind::Established);
    let_progress_catch_up(&rig);
    drop(placed);
    let mut pair = Pair { server: pair.server, client };
    expect_connection(&rig.server.connect, &pair.server, ConnectionEventKind::Established);
    let got = rig.deliver(&mut pair, 8);
    assert_eq!((got.status, got.cookie), (DtoStatus::Success, 5));
}

/// The event LAST_WQE_REACHED of an ended connection is handled when the EP is connected again: the
/// new connection stays. The progress thread stops before it takes this lock.
fn the_last_wqe_event_is_late(lock: &'static [&'static str]) {
    let rig = Rig::new();
    let (thread, _srq, _pair) = progress_thread(&rig);
    let mut srq = rig.server.srq(4);
    rig.server.post(&mut srq, 4, 64, 0, 20);
    let mut pair = rig.connect_srq(&srq);
    let (client, _psp, arrival) = next_client(&rig);
    let (steps, placed) = end(&rig, &pair, thread, lock);
    pair.server.reset().unwrap();
    arrival.cr.accept(&pair.server, &[]).unwrap();
    expect_connection(&rig.client.connect, &client, ConnectionEventKind::Established);
    let mut pair = Pair { server: pair.server, client };
    // The message confirms the connection, without the progress thread.
    assert_eq!(rig.deliver(&mut pair, 8).cookie, 20);
    expect_connection(&rig.server.connect, &pair.server, ConnectionEventKind::Established);
    steps.reach("go");
    let_progress_catch_up(&rig);
    drop(placed);
    assert_eq!(pair.server.state(), EpState::Connected);
    assert_eq!(rig.deliver(&mut pair, 8).cookie, 21);
    // The end of the first connection had this event; the second has not ended.
    expect_broken_once(&rig, pair.server.id());
    rig.disconnect(&pair);
}

/// An SRQ EP has one event EP_BROKEN for an end (R192).
fn expect_broken_once(rig: &Rig, ep: EpId) {
    let event = asynchronous(&rig.server.ia);
    assert_eq!((event.kind, event.object), (AsyncKind::EpBroken, AsyncObject::Ep(ep)));
    expect_nothing(rig.server.ia.async_evd());
}

pub(crate) fn an_ep_is_connected_again_before_its_device_event_finds_it() {
    the_last_wqe_event_is_late(&["a table"]);
}

pub(crate) fn an_ep_is_connected_again_before_its_device_event_is_handled() {
    the_last_wqe_event_is_late(&["EpInner::control"]);
}

/// The progress thread is about to flush what the device has not completed of an ended connection.
/// Another thread resets the EP and posts a receive: the receive belongs to the next connection.
pub(crate) fn an_ep_is_reset_while_its_end_is_completed() {
    let rig = Arc::new(Rig::new());
    let (thread, _srq, _pair) = progress_thread(&rig);
    let pair = rig.connect_plain(&EpAttr::default());
    let locks = &[
        "EpInner::ending",
        "EpInner::control",
        "QueuePair::receives",
        "QueuePair::requests",
        "QueuePair::receives",
    ];
    let (steps, placed) = end(&rig, &pair, thread, locks);
    let mut server = pair.server;
    let other = {
        let rig = rig.clone();
        elsewhere(move || {
            server.reset().unwrap();
            server.post_recv(&[rig.server.lmr.triplet(0, 64)], 5, NONE).unwrap();
            drop(rig);
            server
        })
    };
    steps.wait_for("reset");
    // The reset waits for the progress thread, or does without it.
    let early = other.recv_timeout(SHORT);
    steps.reach("go");
    let server = early.unwrap_or_else(|_| outcome(&rig, &other));
    let_progress_catch_up(&rig);
    drop(placed);
    expect_nothing(&rig.server.recv);
    let mut pair = rig.connect(server, rig.client.ep(&EpAttr::default()));
    let got = rig.deliver(&mut pair, 8);
    assert_eq!((got.status, got.cookie), (DtoStatus::Success, 5));
}

/// The progress thread has taken an event off the channel of an EVD, and stops. A thread takes the
/// message of the event and waits for the next one: it gets that one.
pub(crate) fn a_thread_waits_after_the_progress_thread_took_the_event() {
    let rig = Rig::new();
    let (thread, _srq, _pair) = progress_thread(&rig);
    let server = &rig.server;
    let recv = server.evd(EvdFlags::DTO);
    let evds = EpEvds { recv: Some(&recv), ..server.evds() };
    let ep = Ep::builder(&server.ia, &server.pz).evds(evds).build().unwrap();
    let mut pair = rig.connect(ep, rig.client.ep(&EpAttr::default()));
    for cookie in 0..2 {
        pair.server.post_recv(&[server.lmr.triplet(0, 64)], cookie, NONE).unwrap();
    }
    let (steps, placed) = stop(thread, &["EvdInner::queue"]);
    let solicited = CompletionFlags::SOLICITED_WAIT;
    assert_eq!(rig.send_with(&mut pair, 0, 8, solicited).status, DtoStatus::Success);
    steps.wait_for("stopped");
    assert_eq!(dto(&recv).cookie, 0);
    let blocked = || recv.counters().unwrap()[EvdCounter::WaitBlocked];
    let before = blocked();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| dto(&recv));
        until("it sleeps", || blocked() > before);
        assert_eq!(rig.send(&mut pair, 0, 8).status, DtoStatus::Success);
        steps.reach("go");
        assert_eq!(waiter.join().unwrap().cookie, 1);
    });
    drop(placed);
}

/// The device has reported a low watermark, and the progress thread is about to handle the event. A
/// thread of the program sets another value first: the program gets the event of the former one,
/// once.
pub(crate) fn a_low_watermark_is_set_before_its_event_is_handled() {
    let rig = Rig::new();
    let (thread, _srq, _pair) = progress_thread(&rig);
    let mut srq = rig.server.srq(8);
    let mut pair = rig.connect_srq(&srq);
    rig.server.post(&mut srq, 4, 64, 0, 0);
    srq.set_low_watermark(2).unwrap();
    let (steps, placed) = stop(thread, &["SrqInner::low"]);
    for _ in 0..3 {
        rig.deliver(&mut pair, 8);
    }
    steps.wait_for("stopped");
    srq.set_low_watermark(0).unwrap();
    let event = asynchronous(&rig.server.ia);
    assert_eq!((event.object, event.reason), (AsyncObject::Srq(srq.id()), reason::SRQ_LOW_WATERMARK));
    steps.reach("go");
    let_progress_catch_up(&rig);
    expect_nothing(rig.server.ia.async_evd());
    drop(placed);
}

/// The device has not completed a receive in time, so the progress thread is about to reset the QP
/// of the ended EP. Just before, the completion shows: it counts.
pub(crate) fn a_message_that_shows_before_the_reset_counts() {
    /// The provider waits for the device so long.
    const BOUND: Duration = Duration::from_millis(500);
    let rig = Rig::new();
    let (thread, _srq, _pair) = progress_thread(&rig);
    let mut pair = rig.connect_plain(&EpAttr::default());
    pair.server.post_recv(&[rig.server.lmr.triplet(0, 64)], 5, NONE).unwrap();
    assert_eq!(order("fault late"), 0);
    assert_eq!(rig.send(&mut pair, 0, 8).status, DtoStatus::Success);
    let shown = Arc::new(OnceLock::new());
    let ends = Instant::now();
    let hook = {
        // The last lock, and whether it is so late that this check of the EP resets the QP.
        let (shown, last) = (shown.clone(), std::sync::Mutex::new(("", false)));
        move |lock: &'static str| {
            if std::thread::current().id() != thread {
                return;
            }
            let mut last = last.lock().unwrap();
            last.1 &= lock != "EpInner::control";
            if *last == ("EpInner::control", false) && lock == "EvdInner::queue" {
                std::thread::sleep((BOUND + SHORT).saturating_sub(ends.elapsed()));
                last.1 = true;
            }
            if last.1 && lock == "EpInner::ending" && shown.set(()).is_ok() {
                assert_eq!(order("release"), 0);
            }
            last.0 = lock;
        }
    };
    before_locks(Some(Arc::new(hook)));
    let placed = Placed;
    rig.disconnect(&pair);
    until("the completion shows", || shown.get().is_some());
    let_progress_catch_up(&rig);
    drop(placed);
    let got = dto(&rig.server.recv);
    assert_eq!((got.status, got.cookie), (DtoStatus::Success, 5));
    expect_nothing(&rig.server.recv);
}

/// A message comes before the peer has confirmed the connection. A thread has taken it off the CQ,
/// and is about to record that it confirms the connection; another thread has the event already,
/// and uses the EP. Returns it connected.
fn used_before_it_is_confirmed(rig: &Arc<Rig>, use_ep: impl FnOnce(&mut Ep)) -> (Ep, Silent) {
    let mut srq = rig.server.srq(1);
    rig.server.post(&mut srq, 1, 64, 0, 5);
    let mut server = rig.server.srq_ep(&srq, &EpAttr::default());
    let peer = rig.answer_silent(&server);
    let early = server.send(&[rig.server.lmr.triplet(0, 8)]).cookie(4).post();
    assert_eq!(code(early), dat::INVALID_STATE_EP_COMPLPENDING);
    peer.send(8);
    let steps = Arc::new(Steps::default());
    let looking = Arc::new(OnceLock::new());
    let placed = {
        let (steps, looking) = (steps.clone(), looking.clone());
        before_locks(Some(Arc::new(move |lock| {
            let looks = looking.get() == Some(&std::thread::current().id());
            if looks && lock == "EpInner::control" && steps.reach("stopped") {
                steps.wait_for("go");
            }
        })));
        Placed
    };
    // A query of the SRQ looks for completions.
    let looked = {
        let steps = steps.clone();
        elsewhere(move || {
            let _ = looking.set(std::thread::current().id());
            while !steps.has_reached("stopped") {
                srq.query().unwrap();
            }
        })
    };
    steps.wait_for("stopped");
    assert_eq!((dto(&rig.server.recv).cookie, server.state()), (5, EpState::CompletionPending));
    use_ep(&mut server);
    steps.reach("go");
    outcome(rig, &looked);
    drop(placed);
    expect_connection(&rig.server.connect, &server, ConnectionEventKind::Established);
    assert_eq!(server.state(), EpState::Connected);
    (server, peer)
}

pub(crate) fn a_message_is_answered_before_it_confirms_the_connection() {
    let rig = Arc::new(Rig::new());
    let answer = |server: &mut Ep| server.send(&[rig.server.lmr.triplet(0, 8)]).cookie(6).post().unwrap();
    let (server, _peer) = used_before_it_is_confirmed(&rig, answer);
    server.disconnect(CloseFlags::Abrupt).unwrap();
    assert_eq!(dto(&rig.server.request).cookie, 6);
}

/// The second bind comes while the first waits for a Send, for which the peer has no receive. It
/// must not free the window, which the first bind still needs.
pub(crate) fn a_window_is_bound_twice_before_a_message_confirms_the_connection() {
    for scope in [RmrScope::Pz, RmrScope::Ep] {
        let rig = Arc::new(Rig::patient());
        let mut rmr = Rmr::new(&rig.server.pz, scope).unwrap();
        let bind_twice = |server: &mut Ep| {
            server.send(&[rig.server.lmr.triplet(0, 8)]).cookie(6).post().unwrap();
            for cookie in [7, 8] {
                let segment = rig.server.lmr.triplet(0, 64);
                let (privileges, va_type) = (MemPriv::REMOTE_READ, VaType::Virtual);
                let to = RmrBind { lmr: &rig.server.lmr, segment, privileges, va_type };
                rmr.bind(server, to, cookie, NONE).unwrap();
            }
        };
        let (_server, peer) = used_before_it_is_confirmed(&rig, bind_twice);
        peer.receive();
        let sent = dto(&rig.server.request);
        assert_eq!((sent.cookie, sent.status), (6, DtoStatus::Success));
        for cookie in [7, 8] {
            let bind = bound(&rig.server.request);
            assert_eq!((bind.cookie, bind.status), (cookie, DtoStatus::Success));
        }
    }
}

/// The progress thread has confirmed the connection to the peer, and stops before its next lock. The
/// peer, by verbs, sends at once; a thread of the program takes the message and answers.
pub(crate) fn a_message_is_answered_while_the_progress_thread_stands_still() {
    let rig = Rig::new();
    let (device, _) = devices().expect("DOORBELL_TEST_DEVICES names the devices");
    let (peer, memory) = verbs_peer(&device);
    let listener = Listener::bind((rig.server.ia.address(), 0).into(), 1).unwrap();
    let mut client = rig.client.ep(&EpAttr::default());
    client.post_recv(&[rig.client.lmr.triplet(0, 64)], 3, NONE).unwrap();
    let options = ConnectOptions::new().timeout(LONG);
    client.connect_with(listener.local_addr().unwrap(), options).unwrap();
    let incoming = listener.accept_timeout(LONG).unwrap();
    let steps = Arc::new(Steps::default());
    let placed = {
        let (steps, me, progress) = (steps.clone(), std::thread::current().id(), OnceLock::new());
        before_locks(Some(Arc::new(move |lock| {
            let this = std::thread::current().id();
            if this != me && lock == "EpInner::control" {
                let _ = progress.set(this);
            }
            // Whether the peer has the confirmation already shows soon.
            let stops = progress.get() == Some(&this) && !steps.has_reached("stopped");
            if stops && steps.comes_soon("confirmed") && steps.reach("stopped") {
                steps.wait_for("go");
            }
        })));
        Placed
    };
    let connection = incoming.accept_timeout(&peer, &ConnParam::for_qp(&peer), LONG).unwrap();
    steps.reach("confirmed");
    peer.post_recv(0, &[memory.sge(0, 64).unwrap()]).unwrap();
    peer.post_send_few(0, SendOp::Send, &[memory.sge(64, 8).unwrap()], SendFlags::SIGNALLED).unwrap();
    let message = dto(&rig.client.recv);
    assert_eq!((message.cookie, message.status), (3, DtoStatus::Success));
    steps.wait_for("stopped");
    client.send(&rig.client.lmr.triplet(0, 8)).cookie(4).post().unwrap();
    let answer = dto(&rig.client.request);
    assert_eq!((answer.cookie, answer.status), (4, DtoStatus::Success));
    steps.reach("go");
    expect_connection(&rig.client.connect, &client, ConnectionEventKind::Established);
    drop((placed, connection));
}
