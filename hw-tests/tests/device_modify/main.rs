//! Modifying EPs before they connect: each change reads back and takes effect, and a refused call
//! changes nothing.

mod change;
mod receives;

use doorbell::{
    CompletionFlags, ConnectionEventKind, DtoStatus, Ep, EpAttr, EpChange, Evd, EvdFlags, LmrTriplet,
};
use doorbell_hw_tests::rig::*;
use doorbell_hw_tests::{Pair, Rig, Side, dat, tests};

fn main() {
    doorbell_hw_tests::run(
        &[
            change::TESTS,
            receives::TESTS,
            tests![nothing_changes_once_connected, an_ep_that_was_reset_can_be_changed],
        ]
        .concat(),
    )
    .exit();
}

const NONE: CompletionFlags = CompletionFlags::empty();

fn change<'a>() -> EpChange<'a> {
    EpChange::default()
}

fn evd(side: &Side, flags: EvdFlags) -> Evd {
    side.evd(flags)
}

/// Connects an EP of the server's, changed or not, to a plain client.
#[track_caller]
fn connect(rig: &Rig, server: Ep, established: &Evd) -> Pair {
    let client = rig.client.ep(&EpAttr::default());
    let (_psp, arrival) = rig.ask(&client);
    arrival.cr.accept(&server, &[]).unwrap();
    expect_connection(&rig.client.connect, &client, ConnectionEventKind::Established);
    expect_connection(established, &server, ConnectionEventKind::Established);
    Pair { server, client }
}

fn buffer(side: &Side) -> [LmrTriplet; 1] {
    [side.lmr.triplet(0, 64)]
}

fn nothing_changes_once_connected() {
    let rig = Rig::new();
    let other = evd(&rig.server, EvdFlags::CONNECTION);
    let mut pair = rig.connect_plain(&EpAttr::default());
    for to in [
        EpChange { connect: Some(Some(&other)), ..change() },
        EpChange { max_message_size: Some(1), ..change() },
        EpChange { recv_depth: Some(1), ..change() },
    ] {
        assert_eq!(code(pair.server.modify(to)), dat::INVALID_STATE_EP_CONNECTED);
    }
    rig.disconnect(&pair);
    assert_eq!(
        code(pair.server.modify(EpChange { recv_depth: Some(1), ..change() })),
        dat::INVALID_STATE_EP_DISCONNECTED
    );
}

fn an_ep_that_was_reset_can_be_changed() {
    let rig = Rig::new();
    let other = evd(&rig.server, EvdFlags::DTO);
    let mut pair = rig.connect_plain(&EpAttr::default());
    // A receive that the end flushes: its event is still in the old EVD.
    pair.server.post_recv(&buffer(&rig.server), 1, NONE).unwrap();
    rig.disconnect(&pair);
    pair.server.reset().unwrap();
    pair.server.post_recv(&buffer(&rig.server), 2, NONE).unwrap();
    pair.server.modify(EpChange { recv: Some(Some(&other)), recv_depth: Some(100), ..change() }).unwrap();
    let mut pair = connect(&rig, pair.server, &rig.server.connect);
    assert_eq!(rig.send(&mut pair, 0, 8).status, DtoStatus::Success);
    assert_eq!(dto(&other).cookie, 2);
}
