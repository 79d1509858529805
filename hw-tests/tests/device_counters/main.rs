//! Counters: a known sequence of operations, and the exact value of every counter afterwards, zeros
//! included.

mod ep;
mod evd;
mod ia;
mod port;

use doorbell::{
    CompletionFlags, Counter, Counters, DtoStatus, Ep, EpAttr, EpCounter as E, Evd, EvdCounter as V,
    EvdFlags, Ia, IaCounter as I,
};
use doorbell_hw_tests::rig::*;
use doorbell_hw_tests::{Pair, Rig, Side, dat, tests};

fn main() {
    doorbell_hw_tests::run(
        &[
            ia::TESTS,
            ep::TESTS,
            evd::TESTS,
            port::TESTS,
            tests![a_reset_takes_what_was_read_and_no_more, closed_ias_and_freed_evds_have_no_counters],
        ]
        .concat(),
    )
    .exit();
}

const NONE: CompletionFlags = CompletionFlags::empty();

/// These counters have these values, and all others are 0.
#[track_caller]
fn are<C: Counter>(now: &Counters<C>, expected: &[(C, u64)]) {
    for (counter, value) in now.iter() {
        let expected = expected.iter().find(|(c, _)| c.index() == counter.index()).map_or(0, |(_, n)| *n);
        assert_eq!(value, expected, "{} in {now:?}", counter.name());
    }
}

#[track_caller]
fn ia_is(ia: &Ia, expected: &[(I, u64)]) {
    are(&ia.counters().unwrap(), expected);
}

#[track_caller]
fn ep_is(ep: &Ep, expected: &[(E, u64)]) {
    are(&ep.counters().unwrap(), expected);
}

/// Waits until this counter has this value: a message can be acknowledged before its completion is
/// there.
#[track_caller]
fn arrived(ep: &Ep, counter: E, n: u64) {
    until("the messages have arrived", || ep.counters().unwrap()[counter] >= n);
}

#[track_caller]
fn evd_is(evd: &Evd, expected: &[(V, u64)]) {
    are(&evd.counters().unwrap(), expected);
}

fn restart(rig: &Rig) {
    for side in [&rig.server, &rig.client] {
        side.ia.take_counters(I::ALL).unwrap();
    }
}

/// Waits until the IA's counters have these values: the last CM messages are sent after the events.
#[track_caller]
fn ia_becomes(ia: &Ia, expected: &[(I, u64)]) {
    until("the last counter moves", || expected.iter().all(|(c, n)| ia.counters().unwrap()[*c] >= *n));
    ia_is(ia, expected);
}

/// Two threads count and reset: in the end each message is in exactly one of the numbers read.
fn a_reset_takes_what_was_read_and_no_more() {
    const MESSAGES: u64 = 400;
    let rig = Rig::patient();
    let mut srq = rig.server.srq(64);
    let mut pair = rig.connect_srq(&srq);
    rig.server.post(&mut srq, 64, 64, 0, 0);
    rig.server.recv.take_counters(V::ALL).unwrap();
    let Pair { server, client } = &mut pair;
    let (mut messages, mut bytes, mut found) = (0, 0, 0);
    std::thread::scope(|scope| {
        let receiver = scope.spawn(|| {
            for n in 0..MESSAGES {
                until("a message", || rig.server.recv.dequeue().unwrap().is_some());
                srq.post_recv(&[rig.server.lmr.triplet(0, 64)], n).unwrap();
            }
        });
        scope.spawn(|| {
            for _ in 0..MESSAGES {
                client.send(&[rig.client.lmr.triplet(0, 3)]).post().unwrap();
                assert_eq!(dto(&rig.client.request).status, DtoStatus::Success);
            }
        });
        let mut last = false;
        while !last {
            last = receiver.is_finished();
            let of_ep = server.take_counters(&[E::Recv, E::RecvData]).unwrap();
            messages += of_ep[E::Recv];
            bytes += of_ep[E::RecvData];
            let of_evd = rig.server.recv.take_counters(&[V::DequeueFound, V::DequeuePollFound]).unwrap();
            found += of_evd[V::DequeueFound] + of_evd[V::DequeuePollFound];
        }
    });
    assert_eq!((messages, bytes, found), (MESSAGES, 3 * MESSAGES, MESSAGES));
    let now = rig.server.recv.counters().unwrap();
    assert_eq!(now[V::Dequeue], MESSAGES + now[V::DequeueNotFound], "was not reset");
    assert_eq!(pair.client.counters().unwrap()[E::PostSend], MESSAGES);
}

fn closed_ias_and_freed_evds_have_no_counters() {
    let side = one_side();
    let evd = side.evd(EvdFlags::DTO);
    evd.clone().close().unwrap();
    assert_eq!(code(evd.counters()), dat::INVALID_HANDLE_EVD_REQUEST);
    let ep = side.ep(&EpAttr::default());
    let Side { ia, recv, .. } = side;
    drop(ia);
    assert_eq!(code(ep.counters()), dat::INVALID_HANDLE_EP);
    code(recv.counters());
}
