//! The tests, and the steps at which their threads stop.

use doorbell::lock_hook::before_locks;
use doorbell::{
    CompletionFlags, ConnectOptions, ConnectionEventKind, CrArrival, DatagramEventKind, DtoStatus, Ep,
    EpAttr, EpChange, EpState, Event, Psp, ServiceType,
};
use doorbell_hw_tests::dat;
use doorbell_hw_tests::rig::*;
use doorbell_hw_tests::{Pair, Rig};
use std::sync::{Arc, Condvar, Mutex, OnceLock, mpsc};
use std::thread::ThreadId;

/// Two threads, and the steps that they have reached.
#[derive(Default)]
pub(crate) struct Steps {
    modifier: OnceLock<ThreadId>,
    other: OnceLock<ThreadId>,
    reached: Mutex<Vec<&'static str>>,
    changed: Condvar,
}

impl Steps {
    /// Records a step. True if it is reached for the first time.
    pub(crate) fn reach(&self, step: &'static str) -> bool {
        let mut reached = self.reached.lock().unwrap();
        let first = !reached.contains(&step);
        if first {
            reached.push(step);
            self.changed.notify_all();
        }
        first
    }

    pub(crate) fn has_reached(&self, step: &str) -> bool {
        self.reached.lock().unwrap().contains(&step)
    }

    /// Whether the step is reached now or soon.
    pub(crate) fn comes_soon(&self, step: &'static str) -> bool {
        let reached = self.reached.lock().unwrap();
        let (reached, _) =
            self.changed.wait_timeout_while(reached, SHORT, |reached| !reached.contains(&step)).unwrap();
        reached.contains(&step)
    }

    #[track_caller]
    pub(crate) fn wait_for(&self, step: &'static str) {
        let reached = self.reached.lock().unwrap();
        let (reached, _) =
            self.changed.wait_timeout_while(reached, LONG, |reached| !reached.contains(&step)).unwrap();
        assert!(reached.contains(&step), "nobody came to step {step:?}");
    }

    /// The thread that modifies an EP is stopped where it is about to take the lock `stop` for the
    /// first time. It is then at step "modify", and continues when step `go` is reached. The other
    /// thread is the one that takes the lock `first` after that. It is at step "other" where it is
    /// about to take the EP's `control`.
    fn place(self: &Arc<Self>, stop: &'static str, go: &'static str, first: &'static str) -> Placed {
        let steps = self.clone();
        before_locks(Some(Arc::new(move |lock| {
            let me = std::thread::current().id();
            if steps.modifier.get() == Some(&me) {
                if lock == stop && steps.reach("modify") {
                    steps.wait_for(go);
                }
            } else if lock == first && steps.has_reached("modify") {
                let _ = steps.other.set(me);
            } else if lock == "EpInner::control" && steps.other.get() == Some(&me) {
                steps.reach("other");
            }
        })));
        Placed
    }
}

/// While this value lives, the threads stop at these places.
pub(crate) struct Placed;

impl Drop for Placed {
    fn drop(&mut self) {
        before_locks(None);
    }
}

/// Another thread modifies the EP so that the EP gets another QP. It stops where `steps` says.
fn modify(steps: &Arc<Steps>, rig: &Arc<Rig>, mut ep: Ep) -> mpsc::Receiver<(Ep, Result<(), u32>)> {
    let (steps, rig) = (steps.clone(), rig.clone());
    elsewhere(move || {
        steps.modifier.set(std::thread::current().id()).unwrap();
        let side = &rig.server;
        let result = ep.modify(EpChange {
            recv: Some(Some(&side.recv)),
            request: Some(Some(&side.request)),
            connect: Some(Some(&side.connect)),
            recv_depth: Some(50),
            ..EpChange::default()
        });
        drop(rig);
        (ep, result.map_err(|error| error.code()))
    })
}

/// Runs this on another thread.
pub(crate) fn elsewhere<T: Send + 'static>(what: impl FnOnce() -> T + Send + 'static) -> mpsc::Receiver<T> {
    let (done, outcome) = mpsc::channel();
    std::thread::spawn(move || done.send(what()));
    outcome
}

/// The outcome. If the threads do not end, the IAs cannot be closed and are leaked.
#[track_caller]
pub(crate) fn outcome<T>(rig: &Arc<Rig>, from: &mpsc::Receiver<T>) -> T {
    from.recv_timeout(LONG).unwrap_or_else(|error| {
        std::mem::forget(rig.clone());
        panic!("two threads wait for each other: {error}");
    })
}

#[track_caller]
fn ask_at(rig: &Rig, port: u16) -> (Ep, CrArrival) {
    let client = rig.client.ep(&EpAttr::default());
    client.connect_with((rig.server.ia.address(), port).into(), ConnectOptions::new().timeout(LONG)).unwrap();
    (client, connection_request(&rig.server.cr))
}

/// A thread rejects a request while another replaces the QP of that request's EP: the EP is
/// released with its request.
pub(crate) fn a_request_is_rejected_while_its_ep_is_made_anew() {
    let rig = Arc::new(Rig::new());
    let psp = Psp::builder(&rig.server.ia, &rig.server.cr).provide_eps().build().unwrap();
    let port = psp.port();
    let (client, CrArrival { cr, ep, .. }) = ask_at(&rig, port);
    let steps = Arc::new(Steps::default());
    let placed = steps.place("QueuePair::receives", "other", "CrInner::open");
    let modified = modify(&steps, &rig, ep.unwrap());
    steps.wait_for("modify");
    let rejected = elsewhere(move || cr.reject(&[]).map_err(|error| error.code()));
    let (ep, result) = outcome(&rig, &modified);
    assert_eq!((result, outcome(&rig, &rejected)), (Ok(()), Ok(())));
    drop(placed);
    assert_eq!((ep.state(), code(ep.query())), (EpState::Disconnected, dat::INVALID_HANDLE_EP));
    expect_connection(&rig.client.connect, &client, ConnectionEventKind::PeerRejected);
}

/// The request is rejected before the other thread has the EP, so the EP is gone and cannot be
/// modified.
pub(crate) fn a_request_is_rejected_before_its_ep_is_made_anew() {
    let rig = Arc::new(Rig::new());
    let psp = Psp::builder(&rig.server.ia, &rig.server.cr).provide_eps().build().unwrap();
    let port = psp.port();
    let (client, CrArrival { cr, ep, .. }) = ask_at(&rig, port);
    let steps = Arc::new(Steps::default());
    let placed = steps.place("EpInner::control", "gone", "CrInner::open");
    let modified = modify(&steps, &rig, ep.unwrap());
    steps.wait_for("modify");
    cr.reject(&[]).unwrap();
    steps.reach("gone");
    let (ep, result) = outcome(&rig, &modified);
    drop(placed);
    assert_eq!(result, Err(dat::INVALID_HANDLE_EP));
    assert_eq!((ep.state(), code(ep.query())), (EpState::Disconnected, dat::INVALID_HANDLE_EP));
    expect_connection(&rig.client.connect, &client, ConnectionEventKind::PeerRejected);
}

/// The request for which an EP is reserved arrives while the EP's QP is replaced: the request gets
/// the EP with the new QP.
pub(crate) fn a_request_comes_while_the_reserved_ep_is_made_anew() {
    let rig = Arc::new(Rig::new());
    let ep = rig.server.ep(&EpAttr { recv_depth: 8, ..EpAttr::default() });
    let (_rsp, port) = rig.server.reserve(&ep);
    let steps = Arc::new(Steps::default());
    let placed = steps.place("QueuePair::receives", "other", "ServicePoint::reserved");
    let modified = modify(&steps, &rig, ep);
    steps.wait_for("modify");
    let client = rig.client.ep(&EpAttr::default());
    client.connect_with((rig.server.ia.address(), port).into(), ConnectOptions::new().timeout(LONG)).unwrap();
    let (server, result) = outcome(&rig, &modified);
    drop(placed);
    assert_eq!(result, Ok(()));
    let arrival = connection_request(&rig.server.cr);
    assert_eq!(server.state(), EpState::PassiveConnectionPending);
    arrival.cr.accept_reserved(&[]).unwrap();
    let mut pair = established(&rig, Pair { server, client });
    rig.send_and_read(&mut pair);
}

/// A thread accepts with the EP of the request while another replaces its QP: the connection uses
/// the new QP.
pub(crate) fn a_request_is_accepted_while_its_ep_is_made_anew() {
    let rig = Arc::new(Rig::new());
    let ep = rig.server.ep(&EpAttr { recv_depth: 8, ..EpAttr::default() });
    let (_rsp, port) = rig.server.reserve(&ep);
    let (client, arrival) = ask_at(&rig, port);
    let steps = Arc::new(Steps::default());
    let placed = steps.place("QueuePair::receives", "other", "CrInner::answered");
    let modified = modify(&steps, &rig, ep);
    steps.wait_for("modify");
    let accepted = elsewhere(move || arrival.cr.accept_reserved(&[]).map_err(|refused| refused.error.code()));
    let (server, result) = outcome(&rig, &modified);
    let accepted = outcome(&rig, &accepted);
    drop(placed);
    assert_eq!((result, accepted), (Ok(()), Ok(())));
    let mut pair = established(&rig, Pair { server, client });
    rig.send_and_read(&mut pair);
}

/// The progress thread has harvested the flushed receive of a failed UD EP, and stops before it
/// handles the failure until a thread of the program has reset the EP. The EP is in use again, and
/// stays as it is.
pub(crate) fn an_ep_is_reset_before_its_failure_is_handled() {
    let rig = Arc::new(Rig::new());
    let ud = EpAttr { service_type: ServiceType::Ud, ..EpAttr::default() };
    let (mut server, mut client) = (rig.server.ep(&ud), rig.client.ep(&ud));
    let receive = [rig.server.lmr.triplet(0, 256)];
    let none = CompletionFlags::empty();
    server.post_recv(&receive, 1, none).unwrap();
    let steps = Arc::new(Steps::default());
    let me = std::thread::current().id();
    let placed = {
        let steps = steps.clone();
        before_locks(Some(Arc::new(move |lock| {
            let stops = lock == "EpInner::control" && std::thread::current().id() != me;
            if stops && steps.reach("failure") {
                steps.wait_for("reset");
            }
        })));
        Placed
    };
    // The hard watermark is exceeded, so the EP fails.
    server.set_watermark(None, Some(0)).unwrap();
    assert_eq!(server.state(), EpState::Disconnected);
    steps.wait_for("failure");
    server.set_watermark(None, None).unwrap();
    server.reset().unwrap();
    assert_eq!(dto(&rig.server.recv).status, DtoStatus::Flushed);
    server.post_recv(&receive, 2, none).unwrap();
    steps.reach("reset");
    // The client's question comes through the progress thread, behind the failure.
    let (_psp, arrival) = rig.ask(&client);
    arrival.cr.accept(&server, &[]).unwrap();
    drop(placed);
    let Event::Datagram(event) = next(&rig.client.connect) else { panic!("no datagram event") };
    let DatagramEventKind::Established { peer, .. } = event.kind else { panic!("{event:?}") };
    client.send(&[rig.client.lmr.triplet(0, 8)]).datagram_to(&peer).flags(none).post().unwrap();
    let got = dto(&rig.server.recv);
    assert_eq!((got.cookie, got.status), (2, DtoStatus::Success));
}

#[track_caller]
fn established(rig: &Rig, pair: Pair) -> Pair {
    expect_connection(&rig.client.connect, &pair.client, ConnectionEventKind::Established);
    expect_connection(&rig.server.connect, &pair.server, ConnectionEventKind::Established);
    pair
}
