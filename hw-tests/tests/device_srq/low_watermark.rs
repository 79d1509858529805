//! The low watermark: replaced while it fires, and its event in Rust (section I).

use doorbell::{AsyncEvent, AsyncKind, AsyncObject, Event, Srq, reason};
use doorbell_hw_tests::dat;
use doorbell_hw_tests::rig::*;
use doorbell_hw_tests::{Pair, Rig, Test, tests};

pub(crate) const TESTS: &[Test] = tests![
    r114_srq_lw_replace_before_fire_or_while_firing,
    r120_srq_lw_event_target,
    a_dropped_srq_stays_while_an_ep_uses_it,
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

    fn set(&mut self, value: u32) {
        self.srq.set_low_watermark(value).unwrap();
    }

    /// Delivers messages and reaps them.
    fn take(&mut self, n: usize) {
        for _ in 0..n {
            self.rig.deliver(&mut self.pair, 24);
        }
    }
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
            s.pair.client.send(&[triplet]).post().unwrap();
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

/// The event is on the IA's asynchronous EVD, names the SRQ with its context and the reason, and
/// its number is that of [`AsyncKind::Notice`]. Also R121.
fn r120_srq_lw_event_target() {
    let mut s = Setup::posted(2);
    s.srq.set_context(0xfeed_beef_0000_0001);
    s.set(2);
    s.take(1);
    let event = next(s.rig.server.ia.async_evd());
    assert_eq!(event.number(), dat::ASYNC_ERROR_PROVIDER_INTERNAL_ERROR);
    let Event::Async(event) = event else { panic!("{event:?}") };
    let expected = AsyncEvent {
        kind: AsyncKind::Notice,
        object: AsyncObject::Srq(s.srq.id()),
        context: 0xfeed_beef_0000_0001,
        reason: 2,
    };
    assert_eq!(event, expected);
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
