//! The low watermark and its event (section I).

use crate::*;
use doorbell::{AsyncEvent, AsyncKind, AsyncObject, CompletionFlags, EpState, EventData, Srq, reason};
use doorbell_hw_tests::dat;
use doorbell_hw_tests::rig::*;
use doorbell_hw_tests::{Pair, Rig, Test, tests};

pub(crate) const TESTS: &[Test] = tests![
    r107_srq_lw_arms,
    r109_srq_lw_not_at_equality,
    r110_srq_lw_fires_during_call,
    r112_srq_lw_one_shot,
    r113_srq_lw_rearm_same_value,
    r114_srq_lw_replace_before_fire,
    r114_srq_lw_replace_before_fire_or_while_firing,
    r115_srq_lw_zero_never_fires,
    r116_srq_lw_equal_to_depth,
    r117_srq_lw_above_depth,
    r119_srq_lw_failed_call_changes_nothing,
    r120_srq_lw_event_target,
    r122_srq_lw_post_does_not_fire,
    r123_srq_lw_event_harms_nothing,
    r124_srq_lw_counts_available_not_outstanding,
    r125_srq_lw_model_not_supported,
];

/// A connection into an SRQ of depth 8 with some buffers.
struct Setup {
    rig: Rig,
    srq: Srq,
    pair: Pair,
}

impl Setup {
    fn posted(n: usize) -> Self {
        let rig = Rig::new();
        let srq = rig.server.srq(8);
        let pair = rig.connect_srq(&srq);
        let mut setup = Self { rig, srq, pair };
        setup.post(n);
        setup
    }

    fn post(&mut self, n: usize) {
        self.rig.server.post(&mut self.srq, n, 64, 0, 0);
    }

    fn set(&mut self, value: i32) {
        self.srq.set_low_watermark(value).unwrap();
    }

    /// Delivers messages and reaps them.
    fn take(&mut self, n: usize) {
        for _ in 0..n {
            self.rig.deliver(&mut self.pair, 24);
        }
    }

    /// Exactly one event is there.
    fn fired(&self) {
        let event = asynchronous(&self.rig.server.ia);
        assert_eq!(
            (event.object, event.reason),
            (AsyncObject::Srq(self.srq.id()), reason::SRQ_LOW_WATERMARK)
        );
        self.silent();
    }

    fn silent(&self) {
        expect_nothing(self.rig.server.ia.async_evd());
    }

    fn available(&self) -> i32 {
        counts(&self.srq).0
    }
}

/// An accepted value is stored, and the first buffer taken that leaves fewer available causes the
/// event. Also R108.
fn r107_srq_lw_arms() {
    let mut s = Setup::posted(5);
    s.set(4);
    assert_eq!(s.srq.query().unwrap().low_watermark, 4);
    s.silent();
    s.take(1);
    s.silent();
    s.take(1);
    assert_eq!(s.available(), 3);
    s.fired();
}

/// Exactly as many available as the value cause no event, neither during the call nor when the
/// count falls to it.
fn r109_srq_lw_not_at_equality() {
    let mut s = Setup::posted(4);
    s.set(3);
    s.take(1);
    assert_eq!(s.available(), 3);
    s.silent();
    s.set(3);
    s.silent();
}

/// With fewer available, the call itself causes the event; with enough it does not. Also R111.
fn r110_srq_lw_fires_during_call() {
    let mut s = Setup::posted(3);
    s.set(4);
    // The event is queued when the call returns.
    assert!(matches!(s.rig.server.ia.async_evd().dequeue().unwrap().data, EventData::Async(_)));
    s.silent();
    s.set(3);
    s.silent();
    s.set(2);
    s.silent();
}

/// One event per setting: further drops, a refill and a new drop cause none.
fn r112_srq_lw_one_shot() {
    let mut s = Setup::posted(4);
    s.set(4);
    s.take(1);
    s.fired();
    s.take(2);
    s.silent();
    s.post(4);
    s.take(3);
    assert_eq!(s.available(), 2);
    s.silent();
}

/// The same value once more arms once more: at once if still below, later if refilled.
fn r113_srq_lw_rearm_same_value() {
    let mut s = Setup::posted(4);
    s.set(4);
    s.take(1);
    s.fired();
    s.set(4);
    s.fired();
    s.post(1);
    s.set(4);
    s.silent();
    s.take(1);
    s.fired();
}

/// A new value replaces one that has not fired; the old value never fires then.
fn r114_srq_lw_replace_before_fire() {
    let mut s = Setup::posted(6);
    s.set(5);
    s.set(2);
    s.take(3);
    assert_eq!(s.available(), 3);
    s.silent();
    s.take(2);
    s.fired();
    // Upwards, too.
    s.post(5);
    s.set(2);
    s.set(6);
    s.take(1);
    s.fired();
    s.take(4);
    s.silent();
}

/// A value that is replaced while it fires may cause its event or not. The new value causes exactly
/// one event once fewer are available.
fn r114_srq_lw_replace_before_fire_or_while_firing() {
    let mut s = Setup::posted(6);
    let mut marker = Marker::new(&s.rig);
    for round in 0..10 {
        s.set(5);
        for _ in 0..2 {
            let triplet = s.rig.client.lmr.triplet(0, 24);
            s.pair.client.post_send(&[triplet], 0, CompletionFlags::empty()).unwrap();
        }
        s.set(2);
        for evd in [&s.rig.client.request, &s.rig.server.recv] {
            assert!(dto(evd).is_success() && dto(evd).is_success());
        }
        // Four are there. If the first value has an event, it comes before the marker's.
        let first = marker.events_before(&s.rig, &s.srq);
        assert!(first <= 1, "round {round}: {first} events of the first value");
        s.take(3);
        let second = marker.events_before(&s.rig, &s.srq);
        assert_eq!(second, 1, "round {round}: events of the new value, after {first} of the first");
        s.post(5);
    }
    assert_eq!(marker.events_before(&s.rig, &s.srq), 0);
}

/// Another SRQ, whose event shows that all earlier events of the device have arrived: the device
/// and the progress thread keep their order.
struct Marker {
    srq: Srq,
    pair: Pair,
}

impl Marker {
    fn new(rig: &Rig) -> Self {
        let srq = rig.server.srq(1);
        let pair = rig.connect_srq(&srq);
        Self { srq, pair }
    }

    /// The number of events of `of` on the asynchronous EVD before the marker's next event.
    fn events_before(&mut self, rig: &Rig, of: &Srq) -> usize {
        rig.server.post(&mut self.srq, 1, 64, 1 << 20, 0);
        self.srq.set_low_watermark(1).unwrap();
        rig.deliver(&mut self.pair, 24);
        let mut events = 0;
        loop {
            match asynchronous(&rig.server.ia).object {
                object if object == AsyncObject::Srq(self.srq.id()) => return events,
                object => assert_eq!(object, AsyncObject::Srq(of.id())),
            }
            events += 1;
        }
    }
}

/// 0 means off: it is the initial value, setting it disarms, and the last buffer can be taken
/// without an event.
fn r115_srq_lw_zero_never_fires() {
    let mut s = Setup::posted(3);
    s.take(1);
    s.set(2);
    s.set(0);
    s.take(2);
    assert_eq!(s.available(), 0);
    s.silent();
    s.set(0);
    s.silent();
}

/// The depth itself is a legal value: a full SRQ causes no event, the first message does.
fn r116_srq_lw_equal_to_depth() {
    let mut s = Setup::posted(8);
    assert_eq!(s.srq.query().unwrap().max_recv_dtos, 8);
    s.set(8);
    s.silent();
    s.take(1);
    s.fired();
}

/// A value above the present depth is refused, and so is a negative one. Also R118.
fn r117_srq_lw_above_depth() {
    let side = server();
    let mut srq = side.srq(8);
    let depth = srq.query().unwrap().max_recv_dtos;
    for value in [depth + 1, i32::MAX, -1, i32::MIN] {
        assert_eq!(refused(srq.set_low_watermark(value)), dat::INVALID_ARG2);
    }
    srq.resize(depth + 4).unwrap();
    srq.set_low_watermark(depth + 1).unwrap();
    expect_nothing_but_one(&side);
}

fn expect_nothing_but_one(side: &Side) {
    asynchronous(&side.ia);
    expect_nothing(side.ia.async_evd());
}

/// A refused call leaves the value and what is armed as they were.
fn r119_srq_lw_failed_call_changes_nothing() {
    let mut s = Setup::posted(4);
    s.set(3);
    for value in [9, -1] {
        assert_eq!(refused(s.srq.set_low_watermark(value)), dat::INVALID_ARG2);
        assert_eq!(s.srq.query().unwrap().low_watermark, 3);
    }
    s.silent();
    s.take(2);
    s.fired();
    assert_eq!(refused(s.srq.set_low_watermark(9)), dat::INVALID_ARG2);
    s.take(1);
    s.silent();
}

/// The event is on the IA's asynchronous EVD, names the SRQ with its context and the reason, and
/// its number is that of [`AsyncKind::Notice`]. Also R121.
fn r120_srq_lw_event_target() {
    let mut s = Setup::posted(2);
    s.srq.set_context(0xfeed_beef_0000_0001);
    s.set(2);
    s.take(1);
    let event = next(s.rig.server.ia.async_evd());
    assert_eq!(event.evd, s.rig.server.ia.async_evd().id());
    assert_eq!(event.data.number(), dat::ASYNC_ERROR_PROVIDER_INTERNAL_ERROR);
    let EventData::Async(event) = event.data else { panic!("{event:?}") };
    let expected = AsyncEvent {
        kind: AsyncKind::Notice,
        object: AsyncObject::Srq(s.srq.id()),
        context: 0xfeed_beef_0000_0001,
        reason: 2,
    };
    assert_eq!(event, expected);
}

/// No post causes an event, with a value armed or fired, with fewer, as many or more available.
fn r122_srq_lw_post_does_not_fire() {
    let mut s = Setup::posted(3);
    s.set(3);
    s.post(1);
    s.silent();
    s.take(2);
    s.fired();
    // Fired, with 2 of 3 there.
    for _ in 0..4 {
        s.post(1);
    }
    s.silent();
}

/// The event is advisory: the connection keeps working, down to the last buffer and after a refill.
fn r123_srq_lw_event_harms_nothing() {
    let mut s = Setup::posted(3);
    s.set(3);
    s.take(1);
    s.fired();
    s.take(2);
    assert_eq!(s.available(), 0);
    s.post(4);
    s.take(4);
    assert_eq!((s.pair.server.state(), s.pair.client.state()), (EpState::Connected, EpState::Connected));
    assert_eq!(s.srq.query().unwrap().state, doorbell::SrqState::Operational);
    expect_nothing(&s.rig.server.connect);
}

/// Only available buffers count: unreaped completions do not delay the event, and reaping does not
/// cause one.
fn r124_srq_lw_counts_available_not_outstanding() {
    let mut s = Setup::posted(4);
    s.set(3);
    for n in 1..=2 {
        s.rig.send(&mut s.pair, 0, 24);
        until("the message is complete", || counts(&s.srq) == (4 - n, 4));
    }
    s.fired();
    s.set(2);
    for _ in 0..2 {
        dto(&s.rig.server.recv);
    }
    assert_eq!(counts(&s.srq), (2, 2));
    s.silent();
    s.take(1);
    s.fired();
}

/// Low watermarks are advertised, and setting one works.
fn r125_srq_lw_model_not_supported() {
    let side = server();
    assert_eq!(side.ia.provider_attributes().srq_watermarks_supported & 0x001, 0x001);
    side.srq(4).set_low_watermark(1).unwrap();
}
