//! Closing an IA, and the event of a write with immediate (sections S and T of the rules), in Rust.

use doorbell::{
    AsyncObject, CloseFlags, CompletionFlags, ConnectionEventKind, DtoCompletion, DtoOp, DtoStatus, Ep,
    EpAttr, EpChange, Evd, EvdFlags, Event, Ia, Lmr, MemPriv, Psp, Pz, ReturnType, RmrTriplet, Srq,
};
use doorbell_hw_tests::dat;
use doorbell_hw_tests::rig::*;
use doorbell_hw_tests::{Pair, Rig, devices, tests};

fn main() {
    doorbell_hw_tests::run(tests![
        r273_ia_close_graceful_refused_with_srq,
        r275_ia_close_drops_handles,
        r277_write_immed_event_on_srq_ep,
        asynchronous_events_go_where_the_program_wants_them,
        an_evd_of_asynchronous_events_does_not_grow_without_bound,
        an_ia_closes_as_soon_as_its_objects_are_dropped,
    ])
    .exit();
}

const NONE: CompletionFlags = CompletionFlags::empty();

fn open() -> Ia {
    Ia::open(&devices().unwrap().0).unwrap()
}

/// To an EVD of the program, beside its completions, while it exists; then to the IA's own again.
fn asynchronous_events_go_where_the_program_wants_them() {
    let rig = Rig::new();
    let side = &rig.server;
    let refused = side.ia.send_async_events_to(&side.recv).unwrap_err();
    assert_eq!(refused.return_type(), ReturnType::InvalidHandle);
    let events = side.evd(EvdFlags::DTO | EvdFlags::ASYNC);
    side.ia.send_async_events_to(&events).unwrap();
    let srq = side.srq(4);
    let ended = rig.connect_srq(&srq);
    rig.disconnect(&ended);
    let (event, broken) = (next(&events), AsyncObject::Ep(ended.server.id()));
    assert!(matches!(event, Event::Async(event) if event.object == broken), "{event:?}");
    expect_nothing(side.ia.async_evd());
    events.close().unwrap();
    let ended = rig.connect_srq(&srq);
    rig.disconnect(&ended);
    assert_eq!(asynchronous(&side.ia).object, AsyncObject::Ep(ended.server.id()));
}

/// Nobody takes the event that each connection leaves. The newest stay.
fn an_evd_of_asynchronous_events_does_not_grow_without_bound() {
    let rig = Rig::new();
    let side = &rig.server;
    let events = Evd::new(&side.ia, 8, EvdFlags::ASYNC).unwrap();
    side.ia.send_async_events_to(&events).unwrap();
    let depth = events.query().unwrap().depth as usize;
    let srq = side.srq(4);
    let mut ended = Vec::new();
    for _ in 0..depth + 5 {
        let pair = rig.connect_srq(&srq);
        rig.disconnect(&pair);
        ended.push(AsyncObject::Ep(pair.server.id()));
    }
    assert_eq!(events.query().unwrap().queued, depth);
    for ep in &ended[5..] {
        let event = next(&events);
        assert!(matches!(event, Event::Async(event) if event.object == *ep), "{event:?}, not of {ep:?}");
    }
    // One of each EP that lives has room.
    let pairs: Vec<_> = (0..depth + 5).map(|_| rig.connect_srq(&srq)).collect();
    pairs.iter().for_each(|pair| rig.disconnect(pair));
    assert_eq!(events.query().unwrap().queued, pairs.len());
}

/// The progress thread may still be working on an object when the program drops it.
fn an_ia_closes_as_soon_as_its_objects_are_dropped() {
    let rig = Rig::new();
    let side = &rig.server;
    let name = devices().unwrap().1;
    let psp = Psp::builder(&side.ia, &side.cr).build().unwrap();
    for round in 0..300 {
        let ia = Ia::open(&name).unwrap();
        let pz = Pz::new(&ia).unwrap();
        let evd = Evd::new(&ia, 64, EvdFlags::CONNECTION | EvdFlags::DTO).unwrap();
        let client = Ep::builder(&ia, &pz).evd(&evd).connect(psp.address()).unwrap();
        let server = side.ep(&EpAttr::default());
        connection_request(&side.cr).cr.accept(&server, &[]).unwrap();
        assert!(matches!(next(&evd), Event::Connected(_)));
        expect_connection(&side.connect, &server, ConnectionEventKind::Established);
        match round % 3 {
            0 => client.disconnect(CloseFlags::Abrupt).unwrap(),
            1 => client.disconnect(CloseFlags::Graceful).unwrap(),
            _ => {}
        }
        drop((client, evd, pz));
        ia.close().unwrap_or_else(|refused| panic!("round {round}: {refused}"));
        expect_connection(&side.connect, &server, ConnectionEventKind::Disconnected);
    }
}

/// A graceful close is refused while an SRQ lives, and changes nothing: INVALID_STATE (IA_IN_USE).
fn r273_ia_close_graceful_refused_with_srq() {
    let ia = open();
    let pz = Pz::new(&ia).unwrap();
    let mut srq = Srq::builder(&ia, &pz).depth(4).build().unwrap();
    let refused = ia.close().unwrap_err();
    assert_eq!(refused.error.code(), dat::INVALID_STATE_IA_IN_USE);
    assert!(refused.error.to_string().contains("1 SRQs"), "{}", refused.error);
    srq.post_recv(&[], 1).unwrap();
    assert_eq!(counts(&srq), (1, 1));
    srq.close().unwrap();
    let ia = refused.object;
    pz.close().unwrap();
    ia.close().unwrap();
}

/// After the close every object is stale: each call says so, none crashes, and dropping them is
/// harmless.
fn r275_ia_close_drops_handles() {
    let rig = Rig::new();
    let mut srq = rig.server.srq(8);
    let mut pair = rig.connect_srq(&srq);
    let psp = Psp::builder(&rig.server.ia, &rig.server.cr).build().unwrap();
    let Rig { server, client } = rig;
    let (id, segment) = (srq.id(), server.lmr.triplet(0, 8));
    drop(server.ia);

    let stale = |code: u32| assert_eq!(code & 0x7fff_0000, ReturnType::InvalidHandle as u32, "{code:#x}");
    stale(srq.query().unwrap_err().code());
    stale(srq.resize(4).unwrap_err().code());
    stale(srq.set_low_watermark(1).unwrap_err().code());
    stale(srq.post_recv(&[segment], 1).unwrap_err().code());
    assert_eq!(srq.id(), id);
    let ep = &mut pair.server;
    stale(ep.query().unwrap_err().code());
    stale(ep.status().unwrap_err().code());
    stale(ep.recv_query().unwrap_err().code());
    stale(ep.set_watermark(Some(1), Some(1)).unwrap_err().code());
    stale(ep.modify(EpChange::default()).unwrap_err().code());
    stale(ep.disconnect(CloseFlags::Abrupt).unwrap_err().code());
    stale(ep.reset().unwrap_err().code());
    stale(ep.post_recv(&[segment], 1, NONE).unwrap_err().code());
    stale(ep.send(&[segment]).cookie(1).post().unwrap_err().code());
    stale(server.recv.dequeue().unwrap_err().code());
    stale(server.recv.wait_threshold(1, Some(LONG)).unwrap_err().error.code());
    stale(server.recv.query().unwrap_err().code());
    stale(server.recv.resize(100).unwrap_err().code());
    stale(server.recv.close().unwrap_err().error.code());
    stale(server.lmr.read(0, &mut [0]).unwrap_err().code());
    stale(server.lmr.close().unwrap_err().error.code());
    stale(psp.close().unwrap_err().error.code());
    stale(srq.close().unwrap_err().error.code());
    stale(pair.server.close().unwrap_err().error.code());
    stale(server.pz.close().unwrap_err().error.code());

    // The other IA is not touched.
    expect_connection(&client.connect, &pair.client, ConnectionEventKind::Disconnected);
    assert!(Lmr::builder(&client.ia, &client.pz).privileges(MemPriv::LOCAL_WRITE).allocate(64).is_ok());
}

/// A write with immediate from the client's first `len` bytes to the server's memory at `offset`.
fn write_immediate(
    rig: &Rig,
    pair: &mut Pair,
    offset: u64,
    len: u32,
    immediate: u32,
    flags: CompletionFlags,
) -> DtoCompletion {
    let to = RmrTriplet {
        virtual_address: rig.server.lmr.address() + offset,
        segment_length: len,
        rmr_context: rig.server.lmr.rmr_context(),
    };
    let from = [rig.client.lmr.triplet(0, len as usize)];
    pair.client.write(&from).to(to).with_immediate(immediate).cookie(31).flags(flags).post().unwrap();
    let event = next(&rig.client.request);
    // The requester's completion is one of the extension, too.
    assert_eq!(event.number(), 0x4_0000);
    *event.completion().unwrap()
}

const TARGET: u64 = 1 << 16;

/// The target's event: number 0x40000, the immediate value, the buffer's cookie, its EP and
/// context, the bytes written. A write of nothing is one, too.
fn r277_write_immed_event_on_srq_ep() {
    let rig = Rig::new();
    let mut srq = rig.server.srq(4);
    let mut pair = rig.connect_srq(&srq);
    pair.server.set_context(0xabc);
    rig.server.post(&mut srq, 2, 64, 0, u64::MAX - 1);
    for (len, immediate, cookie) in [(100, 0x1234_5678, u64::MAX - 1), (0, u32::MAX, u64::MAX)] {
        write_immediate(&rig, &mut pair, TARGET, len, immediate, NONE);
        let event = next(&rig.server.recv);
        assert_eq!(event.number(), 0x4_0000);
        let got = *event.completion().unwrap();
        assert_eq!((got.op, got.immediate), (DtoOp::ReceiveRdmaWriteImmediate, Some(immediate)));
        assert_eq!((got.ep, got.ep_context, got.cookie), (pair.server.id(), 0xabc, cookie));
        assert_eq!((got.status, got.length), (DtoStatus::Success, len));
    }
    // A Send is an ordinary completion.
    rig.server.post(&mut srq, 1, 64, 0, 1);
    rig.send(&mut pair, 0, 8);
    let event = next(&rig.server.recv);
    assert_eq!((event.number(), event.completion().unwrap().immediate), (1, None));
}
