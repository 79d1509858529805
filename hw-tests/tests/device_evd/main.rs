//! EVDs: what the C tests of sections O and P of the rules (`c/rules_evd.c`) do not show.

mod drain;
mod flags;
mod recv;
mod wait;

use doorbell::inside::EpEvds;
use doorbell::{Cno, CompletionFlags, DtoStatus, Ep, EpAttr, Evd, EvdFlags, ReturnType, Srq};
use doorbell_hw_tests::rig::*;
use doorbell_hw_tests::{Pair, Rig, Side};

fn main() {
    let tests = [flags::TESTS, wait::TESTS, drain::TESTS, recv::TESTS].concat();
    let rxe = doorbell_hw_tests::on_rxe();
    doorbell_hw_tests::run_unless(&tests, 4, |name| match name {
        "a_dequeue_tells_an_overflow_that_it_finds" if rxe => {
            Some("on rxe the progress thread takes completions, too, and may be first")
        }
        "r257_recv_evd_small_queue_has_room_in_its_cq" if rxe => {
            Some("on rxe the progress thread takes completions, too, for which the EVD is too short")
        }
        "a_connection_takes_nothing_off_the_cqs_of_its_evds" if rxe => {
            Some("on rxe the progress thread takes completions, too, for which the EVD is too short")
        }
        _ => None,
    })
    .exit();
}

const NONE: CompletionFlags = CompletionFlags::empty();

/// A server EP on an SRQ of 32 buffers of 64 bytes, with a receive EVD of its own that triggers a
/// CNO, connected.
struct Listening {
    pair: Pair,
    recv: Evd,
    cno: Cno,
    srq: Srq,
}

fn listening(rig: &Rig, recv_completion_flags: CompletionFlags) -> Listening {
    let server = &rig.server;
    let mut srq = server.srq(32);
    server.post(&mut srq, 32, 64, 0, 0);
    let cno = Cno::new(&server.ia).unwrap();
    let recv = Evd::new(&server.ia, 64, EvdFlags::DTO).unwrap();
    recv.set_cno(Some(&cno)).unwrap();
    let attr = EpAttr { recv_completion_flags, ..EpAttr::default() };
    let ep = srq_ep(server, &srq, &recv, &attr);
    let pair = rig.connect(ep, rig.client.ep(&EpAttr::default()));
    Listening { pair, recv, cno, srq }
}

fn srq_ep(side: &Side, srq: &Srq, recv: &Evd, attr: &EpAttr) -> Ep {
    let evds = EpEvds { recv: Some(recv), ..side.evds() };
    Ep::builder(&side.ia, &side.pz).evds(evds).srq(srq).attributes(attr).build().unwrap()
}

fn queued(evd: &Evd) -> usize {
    evd.query().unwrap().queued
}

/// The CNO is not triggered.
fn expect_quiet(cno: &Cno) {
    match cno.wait(Some(SHORT)) {
        Err(error) if error.return_type() == ReturnType::TimeoutExpired => {}
        other => panic!("expected no trigger: {other:?}"),
    }
}

/// Sends with the given bit and waits until the message is in the receiver's queue, the `n`th
/// there.
fn send_until_queued(rig: &Rig, l: &mut Listening, flags: CompletionFlags, n: usize) {
    assert_eq!(rig.send_with(&mut l.pair, 0, 8, flags).status, DtoStatus::Success);
    until("the message is queued", || queued(&l.recv) == n);
}
