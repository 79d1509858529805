//! Full tables, and events for which there is no memory.

use crate::allocator::EXHAUSTED;
use crate::*;
use doorbell::{
    AsyncKind, AsyncObject, CloseFlags, Cno, ConnectionEventKind, Ep, EpAttr, EpChange, Evd, EvdFlags, Event,
    Lmr, Pz, Rmr, RmrScope,
};
use doorbell_hw_tests::rig::*;
use doorbell_hw_tests::{Rig, Side, Test, tests};
use std::sync::atomic::Ordering::SeqCst;

pub(crate) const TESTS: &[Test] =
    tests![tables_that_are_full, a_software_event, an_event_that_nobody_can_queue_is_an_overflow,];

/// One more object of a kind whose table has to grow for it.
fn tables_that_are_full() {
    fn full<T>(side: Side, of: impl Fn(&Side) -> T, n: usize) -> (Vec<T>, Side) {
        let others = (0..n).map(|_| of(&side)).collect();
        (others, side)
    }
    // Tables have room for 7/8 of a power of two, and the side has some objects already.
    for n in [111, 112] {
        let pz = |side: &Side| Pz::new(&side.ia).unwrap();
        with_each_failure(
            "one more PZ",
            || full(one_side(), pz, n - 1),
            |(_, side)| Pz::new(&side.ia),
            |_, pz| pz.close().unwrap(),
        );
        with_each_failure(
            "one more LMR",
            || full(one_side(), remote, n - 1),
            |(_, side)| Lmr::builder(&side.ia, &side.pz).privileges(all_privileges()).allocate(64),
            |_, lmr| lmr.close().unwrap(),
        );
    }
    with_each_failure(
        "one more CNO",
        || full(one_side(), |side| Cno::new(&side.ia).unwrap(), 112),
        |(_, side)| Cno::new(&side.ia),
        |_, cno| cno.close().unwrap(),
    );
    with_each_failure(
        "one more RMR",
        || full(one_side(), |side| Rmr::new(&side.pz, RmrScope::Pz).unwrap(), 112),
        |(_, side)| Rmr::new(&side.pz, RmrScope::Pz),
        |_, rmr| rmr.close().unwrap(),
    );
    let small = |side: &Side| side.ep(&long(1));
    with_each_failure(
        "one more EP",
        || full(one_side(), small, 112),
        |(_, side)| Ep::builder(&side.ia, &side.pz).evds(side.evds()).attributes(&long(1)).build(),
        |_, ep| ep.close().unwrap(),
    );
}

/// Memory for 4,096 events other than completions is allocated in advance.
const IN_ADVANCE: u64 = 4096;

fn a_software_event() {
    let surroundings = || {
        let side = one_side();
        let evd = Evd::new(&side.ia, 2 * IN_ADVANCE as u32, EvdFlags::SOFTWARE).unwrap();
        (0..IN_ADVANCE).for_each(|n| evd.post_software_event(n).unwrap());
        (evd, side)
    };
    with_each_failure(
        "a software event",
        surroundings,
        |(evd, _)| evd.post_software_event(IN_ADVANCE),
        |(evd, _), ()| {
            for n in 0..=IN_ADVANCE {
                assert!(matches!(next(evd), Event::Software(m) if m == n));
            }
        },
    );
}

/// The event is the end of a connection, which the progress thread reports.
fn an_event_that_nobody_can_queue_is_an_overflow() {
    let rig = Rig::new();
    let side = &rig.server;
    let evd = Evd::new(&side.ia, 2 * IN_ADVANCE as u32, EvdFlags::SOFTWARE | EvdFlags::CONNECTION);
    let evd = evd.unwrap();
    let mut server = side.ep(&EpAttr::default());
    server.modify(EpChange { connect: Some(Some(&evd)), ..EpChange::default() }).unwrap();
    let client = rig.client.ep(&EpAttr::default());
    let (_psp, arrival) = rig.ask(&client);
    arrival.cr.accept(&server, &[]).unwrap();
    expect_connection(&rig.client.connect, &client, ConnectionEventKind::Established);
    expect_connection(&evd, &server, ConnectionEventKind::Established);
    (0..IN_ADVANCE).for_each(|n| evd.post_software_event(n).unwrap());
    EXHAUSTED.store(true, SeqCst);
    client.disconnect(CloseFlags::Abrupt).unwrap();
    let overflow = side.ia.async_evd().wait_threshold(1, Some(LONG));
    EXHAUSTED.store(false, SeqCst);
    match overflow.unwrap().event {
        Event::Async(event) => {
            assert_eq!((event.kind, event.object), (AsyncKind::EvdOverflow, AsyncObject::Evd(evd.id())));
        }
        other => panic!("not an asynchronous event: {other:?}"),
    }
    for n in 0..IN_ADVANCE {
        assert!(matches!(next(&evd), Event::Software(m) if m == n));
    }
    expect_connection(&rig.client.connect, &client, ConnectionEventKind::Disconnected);
    // The EP has reached the state all the same and continues from there.
    until("the EP is disconnected", || server.state() == doorbell::EpState::Disconnected);
    server.reset().unwrap();
    server.modify(EpChange { connect: Some(Some(&side.connect)), ..EpChange::default() }).unwrap();
    rig.connect(server, rig.client.ep(&EpAttr::default()));
}
