//! Address handles, and EPs that are freed with them.

use crate::*;
use doorbell::{DtoStatus, Ep, EpState, Lmr, Psp, Pz};
use doorbell_hw_tests::rig::*;
use doorbell_hw_tests::{Rig, Test, dat, tests};

pub(crate) const TESTS: &[Test] = tests![
    address_handles_are_freed_once,
    address_handles_that_nobody_handed_out_are_refused,
    address_handles_are_good_in_their_pz,
    a_freed_handle_does_not_affect_posted_sends,
    datagrams_are_sent_before_their_ep_goes,
    datagrams_are_sent_before_their_memory_goes,
    an_ep_goes_with_its_address_handles,
    an_ep_goes_while_answers_are_awaited,
];

fn address_handles_are_freed_once() {
    let rig = Rig::new();
    let (server, mut client) = (receiver(&rig.server, 4, 0), rig.client.ep(&ud()));
    let other = rig.client.ep(&ud());
    let first = introduce(&rig, &server, &client).to_server;
    let second = introduce(&rig, &server, &client).to_server;
    assert_ne!(first, second);
    // An address handle resolved by another EP can be used here, but not freed.
    assert_eq!(code(other.free_address_handle(&first)), dat::INVALID_ARG2);
    client.free_address_handle(&first).unwrap();
    assert_eq!(code(client.free_address_handle(&first)), dat::INVALID_ARG2);
    let message = [rig.client.lmr.triplet(0, 8)];
    assert_eq!(code(client.send(&message).datagram_to(&first).post()), dat::INVALID_ARG4);
    // The other handle has the same destination and stays.
    send(&rig.client, &mut client, &second, b"second");
    assert_eq!(received(&rig.server, 0).1, b"second");
}

fn address_handles_that_nobody_handed_out_are_refused() {
    let rig = Rig::new();
    let (server, mut client) = (rig.server.ep(&ud()), rig.client.ep(&ud()));
    let known = introduce(&rig, &server, &client);
    let message = [rig.client.lmr.triplet(0, 8)];
    // A handle of another IA, although its destination is on the same side.
    assert_eq!(code(client.send(&message).datagram_to(&known.to_client).post()), dat::INVALID_ARG4);
    let wide = known.to_server.with_qpn(1 << 24);
    assert_eq!(code(client.send(&message).datagram_to(&wide).post()), dat::INVALID_ARG4);
    assert_eq!(code(client.free_address_handle(&known.to_client)), dat::INVALID_ARG2);
    assert!(client.status().unwrap().requests == 0);
}

fn address_handles_are_good_in_their_pz() {
    let rig = Rig::new();
    let (server, client) = (receiver(&rig.server, 2, 0), rig.client.ep(&ud()));
    let to = introduce(&rig, &server, &client).to_server;
    let mut sibling = rig.client.ep(&ud());
    send(&rig.client, &mut sibling, &to, b"from a sibling");
    assert_eq!(received(&rig.server, 0).1, b"from a sibling");
    let pz = Pz::new(&rig.client.ia).unwrap();
    let mut stranger =
        Ep::builder(&rig.client.ia, &pz).evds(rig.client.evds()).attributes(&ud()).build().unwrap();
    assert_eq!(code(stranger.send(&[]).datagram_to(&to).post()), dat::INVALID_ARG4);
}

/// A device may need the address handle until the send has completed.
fn a_freed_handle_does_not_affect_posted_sends() {
    const MANY: u64 = 16;
    let rig = Rig::new();
    let (server, mut client) = (receiver(&rig.server, 16, 0), rig.client.ep(&ud()));
    for _ in 0..4 {
        let to = introduce(&rig, &server, &client).to_server;
        for cookie in 0..MANY {
            client.send(&[rig.client.lmr.triplet(0, 32)]).datagram_to(&to).cookie(cookie).post().unwrap();
        }
        client.free_address_handle(&to).unwrap();
        for cookie in 0..MANY {
            let sent = dto(&rig.client.request);
            assert_eq!((sent.status, sent.cookie), (DtoStatus::Success, cookie));
        }
    }
    assert_eq!(client.state(), EpState::Unconnected);
}

/// No thread waits for their completions.
fn datagrams_are_sent_before_their_ep_goes() {
    const MANY: u64 = 16;
    let rig = Rig::new();
    let (server, mut client) = (receiver(&rig.server, MANY as usize, 0), rig.client.ep(&ud()));
    let to = introduce(&rig, &server, &client).to_server;
    for cookie in 0..MANY {
        let message = [rig.client.lmr.triplet(0, 200)];
        client.send(&message).datagram_to(&to).cookie(cookie).suppress().post().unwrap();
    }
    client.close().unwrap();
    for cookie in 0..MANY {
        assert_eq!(received(&rig.server, 0).0.cookie, cookie);
    }
}

/// The sends are done before their memory is freed.
fn datagrams_are_sent_before_their_memory_goes() {
    const MANY: u64 = 16;
    let rig = Rig::new();
    let (server, mut client) = (receiver(&rig.server, MANY as usize, 0), rig.client.ep(&ud()));
    let to = introduce(&rig, &server, &client).to_server;
    let memory =
        Lmr::builder(&rig.client.ia, &rig.client.pz).privileges(all_privileges()).allocate(4096).unwrap();
    for cookie in 0..MANY {
        client.send(&[memory.triplet(0, 200)]).datagram_to(&to).cookie(cookie).suppress().post().unwrap();
    }
    memory.close().unwrap();
    for cookie in 0..MANY {
        assert_eq!(received(&rig.server, 0).0.cookie, cookie);
    }
    assert_eq!(client.state(), EpState::Unconnected);
}

fn an_ep_goes_with_its_address_handles() {
    let rig = Rig::new();
    let (server, client) = (rig.server.ep(&ud()), rig.client.ep(&ud()));
    let mut sibling = rig.client.ep(&ud());
    let to = introduce(&rig, &server, &client).to_server;
    client.close().unwrap();
    assert_eq!(code(sibling.send(&[]).datagram_to(&to).post()), dat::INVALID_ARG4);
    assert_eq!(code(sibling.free_address_handle(&to)), dat::INVALID_ARG2);
}

fn an_ep_goes_while_answers_are_awaited() {
    let rig = Rig::new();
    let psp = Psp::builder(&rig.server.ia, &rig.server.cr).build().unwrap();
    let port = psp.port();
    let (server, client) = (rig.server.ep(&ud()), rig.client.ep(&ud()));
    let first = ask(&rig, &client, port, b"1");
    let second = ask(&rig, &client, port, b"2");
    client.close().unwrap();
    // No thread waits any more; the server cannot know that.
    first.cr.accept(&server, &[]).unwrap();
    server.close().unwrap();
    drop(second);
    psp.close().unwrap();
    expect_nothing(&rig.client.connect);
}
