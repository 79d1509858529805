//! Datagrams: UD EPs, with and without SRQs, how they resolve each other, and what they send.

mod handles;
mod limits;
mod messages;
mod requests;

use doorbell::{
    AddressHandle, CompletionFlags, ConnectOptions, CrArrival, DatagramEventKind, DtoCompletion, DtoOp,
    DtoStatus, Ep, EpAttr, Evd, GRH_LEN, Psp, ServiceType,
};
use doorbell_hw_tests::rig::*;
use doorbell_hw_tests::{Rig, Side};

fn main() {
    doorbell_hw_tests::run(&[messages::TESTS, requests::TESTS, handles::TESTS, limits::TESTS].concat())
        .exit();
}

const NONE: CompletionFlags = CompletionFlags::empty();

fn ud() -> EpAttr {
    EpAttr { service_type: ServiceType::Ud, ..EpAttr::default() }
}

/// The address handle in the next event of this EP.
#[track_caller]
fn established(evd: &Evd, ep: &Ep, asked: bool) -> AddressHandle {
    let event = datagram(evd);
    match event.kind {
        DatagramEventKind::Established { peer, active } => {
            assert_eq!((event.ep, active), (ep.id(), asked));
            peer
        }
        other => panic!("not established: {other:?}"),
    }
}

/// The client asks at a service point of the server. Returns the request, which is not answered.
#[track_caller]
fn ask(rig: &Rig, client: &Ep, port: u16, data: &[u8]) -> CrArrival {
    client
        .connect_with(
            (rig.server.ia.address(), port).into(),
            ConnectOptions::new().timeout(LONG).private_data(data),
        )
        .unwrap();
    let arrival = connection_request(&rig.server.cr);
    assert_eq!(arrival.cr.service_type(), ServiceType::Ud);
    arrival
}

/// Two EPs that have resolved each other: the server's address handle and the client's.
struct Known {
    to_server: AddressHandle,
    to_client: AddressHandle,
}

#[track_caller]
fn introduce(rig: &Rig, server: &Ep, client: &Ep) -> Known {
    let psp = Psp::builder(&rig.server.ia, &rig.server.cr).build().unwrap();
    let port = psp.port();
    ask(rig, client, port, b"").cr.accept(server, b"").unwrap();
    let to_server = established(&rig.client.connect, client, true);
    let to_client = established(&rig.server.connect, server, false);
    Known { to_server, to_client }
}

/// A plain UD EP with posted receives of 256 bytes from `offset` on, with cookies from 0.
fn receiver(side: &Side, receives: usize, offset: usize) -> Ep {
    let mut ep = side.ep(&ud());
    for i in 0..receives {
        ep.post_recv(&[side.lmr.triplet(offset + i * 256, 256)], i as u64, NONE).unwrap();
    }
    ep
}

/// Sends these bytes and waits for the completion of the send.
#[track_caller]
fn send(side: &Side, ep: &mut Ep, to: &AddressHandle, bytes: &[u8]) -> DtoCompletion {
    side.lmr.write(1 << 20, bytes).unwrap();
    ep.send(&[side.lmr.triplet(1 << 20, bytes.len())]).datagram_to(to).cookie(99).post().unwrap();
    let sent = dto(&side.request);
    assert_eq!((sent.ep, sent.cookie, sent.op), (ep.id(), 99, DtoOp::SendUd));
    assert_eq!((sent.status, sent.length as usize), (DtoStatus::Success, bytes.len()));
    sent
}

/// The next receive, whose buffer of 256 bytes is at `offset` plus 256 times its cookie. Returns
/// the completion and the payload.
#[track_caller]
fn received(side: &Side, offset: usize) -> (DtoCompletion, Vec<u8>) {
    let got = dto(&side.recv);
    assert_eq!((got.status, got.op), (DtoStatus::Success, DtoOp::ReceiveUd));
    let mut bytes = vec![0; got.length as usize - GRH_LEN];
    side.lmr.read(offset + got.cookie as usize * 256 + GRH_LEN, &mut bytes).unwrap();
    (got, bytes)
}
