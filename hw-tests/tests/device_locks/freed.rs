//! The progress thread is about to queue an event that names an object, and a thread of the program
//! frees the object first. After the free, no event names the object.

use crate::steps::{Placed, Steps};
use doorbell::inside::EpEvds;
use doorbell::lock_hook::before_locks;
use doorbell::{
    CloseFlags, Cno, ConnectOptions, ConnectionEventKind, EpAttr, EvdFlags, Psp, ReturnType, ServiceType,
};
use doorbell_hw_tests::Rig;
use doorbell_hw_tests::rig::*;
use std::sync::Arc;

/// Stands for every lock.
const ANY: &str = "";

/// From now on, the first other thread that is about to take these locks in this order stops before
/// the last of them, until the step "go".
fn stop_others(locks: &'static [&'static str]) -> (Arc<Steps>, Placed) {
    let me = std::thread::current().id();
    let steps = Arc::new(Steps::default());
    let hook = {
        let (steps, reached) = (steps.clone(), std::sync::Mutex::new((None, 0)));
        move |lock: &'static str| {
            let this = std::thread::current().id();
            let mut reached = reached.lock().unwrap();
            let (thread, taken) = *reached;
            let next = locks.get(taken).copied();
            if this == me
                || thread.is_some_and(|one| one != this)
                || (next != Some(lock) && next != Some(ANY))
            {
                return;
            }
            *reached = (Some(this), taken + 1);
            drop(reached);
            if taken + 1 == locks.len() {
                steps.reach("stopped");
                steps.wait_for("go");
            }
        }
    };
    before_locks(Some(Arc::new(hook)));
    (steps, Placed)
}

/// Waits until both progress threads have handled what was there when they continued: each brings a
/// request or an answer, and after that another.
fn let_both_catch_up(rig: &Rig) {
    for _ in 0..2 {
        let client = rig.client.ep(&EpAttr::default());
        let (_psp, arrival) = rig.ask(&client);
        arrival.cr.reject(&[]).unwrap();
        expect_connection(&rig.client.connect, &client, ConnectionEventKind::PeerRejected);
    }
}

/// A port at which nobody listens.
fn deserted(rig: &Rig) -> u16 {
    let psp = Psp::builder(&rig.server.ia, &rig.server.cr).build().unwrap();
    let port = psp.port();
    psp.close().unwrap();
    port
}

fn refused_and_freed(attr: &EpAttr) {
    let rig = Rig::new();
    let client = rig.client.ep(attr);
    let port = deserted(&rig);
    let (steps, placed) = stop_others(&["EpInner::connect_evd"]);
    client.connect_with((rig.server.ia.address(), port).into(), ConnectOptions::new().timeout(LONG)).unwrap();
    steps.wait_for("stopped");
    client.close().unwrap();
    steps.reach("go");
    // The next events of this EVD are those of other EPs.
    let_both_catch_up(&rig);
    drop(placed);
    expect_nothing(&rig.client.connect);
}

pub(crate) fn an_ep_is_freed_before_its_refusal_is_queued() {
    refused_and_freed(&EpAttr::default());
}

pub(crate) fn a_datagram_ep_is_freed_before_its_refusal_is_queued() {
    refused_and_freed(&EpAttr { service_type: ServiceType::Ud, ..EpAttr::default() });
}

/// The peer disconnects. Neither the connect EVD nor the asynchronous EVD gets an event.
pub(crate) fn an_ep_is_dropped_before_its_end_is_queued() {
    let rig = Rig::new();
    let srq = rig.server.srq(4);
    let pair = rig.connect_srq(&srq);
    let (steps, placed) = stop_others(&["EpInner::connect_evd"]);
    pair.client.disconnect(CloseFlags::Abrupt).unwrap();
    steps.wait_for("stopped");
    drop(pair.server);
    steps.reach("go");
    expect_connection(&rig.client.connect, &pair.client, ConnectionEventKind::Disconnected);
    let_both_catch_up(&rig);
    drop(placed);
    expect_nothing(&rig.server.connect);
    expect_nothing(rig.server.ia.async_evd());
}

pub(crate) fn an_srq_is_freed_before_its_low_watermark_is_queued() {
    let rig = Rig::new();
    let mut srq = rig.server.srq(4);
    let mut pair = rig.connect_srq(&srq);
    rig.server.post(&mut srq, 2, 64, 0, 0);
    srq.set_low_watermark(2).unwrap();
    let (steps, placed) = stop_others(&["SrqInner::low"]);
    rig.deliver(&mut pair, 8);
    steps.wait_for("stopped");
    pair.server.close().unwrap();
    srq.close().unwrap();
    steps.reach("go");
    expect_connection(&rig.client.connect, &pair.client, ConnectionEventKind::Disconnected);
    let_both_catch_up(&rig);
    drop(placed);
    expect_nothing(rig.server.ia.async_evd());
}

/// A request that has arrived for a PSP which is freed then is rejected.
pub(crate) fn a_psp_is_freed_before_its_request_is_queued() {
    let rig = Rig::new();
    let client = rig.client.ep(&EpAttr::default());
    let psp = Psp::builder(&rig.server.ia, &rig.server.cr).build().unwrap();
    let port = psp.port();
    let (steps, placed) = stop_others(&["ServicePoint::reserved"]);
    client.connect_with((rig.server.ia.address(), port).into(), ConnectOptions::new().timeout(LONG)).unwrap();
    steps.wait_for("stopped");
    psp.close().unwrap();
    steps.reach("go");
    let event = connection(&rig.client.connect);
    assert_eq!(event.ep, client.id());
    assert!(
        matches!(event.kind, ConnectionEventKind::NonPeerRejected | ConnectionEventKind::PeerRejected),
        "{event:?}"
    );
    let_both_catch_up(&rig);
    drop(placed);
    expect_nothing(&rig.server.cr);
}

/// The same of the trigger of a CNO, which names an EVD.
pub(crate) fn an_evd_is_freed_before_its_cno_is_triggered() {
    let rig = Rig::new();
    let side = &rig.client;
    let cno = Cno::new(&side.ia).unwrap();
    let connect = side.evd(EvdFlags::CONNECTION);
    connect.set_cno(Some(&cno)).unwrap();
    let evds = EpEvds { connect: Some(&connect), ..side.evds() };
    let client = doorbell::Ep::builder(&side.ia, &side.pz).evds(evds).build().unwrap();
    let port = deserted(&rig);
    // The EVD gives its event and its CNO, then the CNO is triggered.
    let (steps, placed) = stop_others(&["EpInner::connect_evd", "EvdInner::queue", "EvdInner::queue", ANY]);
    client.connect_with((rig.server.ia.address(), port).into(), ConnectOptions::new().timeout(LONG)).unwrap();
    steps.wait_for("stopped");
    client.close().unwrap();
    connect.close().unwrap();
    steps.reach("go");
    let_both_catch_up(&rig);
    drop(placed);
    assert_eq!(cno.take().unwrap_err().return_type(), ReturnType::QueueEmpty);
}

/// An event that was queued before the free stays, and the free waits for the thread that queues it.
pub(crate) fn an_ep_is_freed_while_its_refusal_is_queued() {
    let rig = Arc::new(Rig::new());
    let client = rig.client.ep(&EpAttr::default());
    let id = client.id();
    let port = deserted(&rig);
    let (steps, placed) = stop_others(&["EpInner::connect_evd", "EvdInner::queue"]);
    client.connect_with((rig.server.ia.address(), port).into(), ConnectOptions::new().timeout(LONG)).unwrap();
    steps.wait_for("stopped");
    let freed = crate::steps::elsewhere(move || client.close().map_err(|refused| refused.error.code()));
    // It cannot be seen that a thread waits for a lock, only that it has not ended.
    assert!(freed.recv_timeout(SHORT).is_err(), "the free did not wait");
    steps.reach("go");
    assert_eq!(crate::steps::outcome(&rig, &freed), Ok(()));
    assert_eq!(connection(&rig.client.connect).ep, id);
    drop(placed);
    expect_nothing(&rig.client.connect);
}
