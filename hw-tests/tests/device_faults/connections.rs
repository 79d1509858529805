//! Connections that end: long messages, an empty SRQ, a killed peer.

use crate::*;
use doorbell::{ConnectOptions, ConnectionEventKind, EpAttr, EpState, Lmr, MemPriv, Psp, Srq};
use doorbell_hw_tests::rig::*;
use doorbell_hw_tests::{Rig, Side, Test, devices, tests};
use std::net::{IpAddr, SocketAddr};

pub(crate) const TESTS: &[Test] = tests![killed_peer_ends_its_endpoint_only,];

/// The peer process: connects and sends messages of 1 MiB until it is killed.
pub(crate) fn send_for_ever() {
    let place = std::env::var(SERVER).unwrap();
    let (address, port) = place.split_once(' ').unwrap();
    let side = Side::open(&devices().unwrap().1);
    let mut ep = side.ep(&EpAttr::default());
    let address: IpAddr = address.parse().unwrap();
    ep.connect_with(SocketAddr::new(address, port.parse().unwrap()), ConnectOptions::new().timeout(LONG))
        .unwrap();
    expect_connection(&side.connect, &ep, ConnectionEventKind::Established);
    for _ in 0..8 {
        ep.send(&[side.lmr.triplet(0, LARGE)]).post().unwrap();
    }
    while dto(&side.request).is_success() {
        ep.send(&[side.lmr.triplet(0, LARGE)]).post().unwrap();
    }
}

/// A peer is killed in the middle of a message. Its endpoint gets the event of its end, the other
/// endpoints of the SRQ are served before and after, and every entry of the SRQ comes back, the
/// half-filled one as flushed at the latest.
fn killed_peer_ends_its_endpoint_only() {
    leaks_nothing(|| {
        const DEPTH: usize = 8;
        let rig = Rig::new();
        let server = &rig.server;
        let memory = Lmr::builder(&server.ia, &server.pz)
            .privileges(MemPriv::LOCAL_WRITE)
            .allocate(DEPTH * LARGE)
            .unwrap();
        let mut srq = server.srq(DEPTH as u32);
        let post = |srq: &mut Srq, i: u64| {
            srq.post_recv(&[memory.triplet(i as usize * LARGE, LARGE)], i).unwrap();
        };
        (0..DEPTH as u64).for_each(|i| post(&mut srq, i));
        let mut others: Vec<_> = (0..3).map(|_| rig.connect_srq(&srq)).collect();

        let doomed = server.srq_ep(&srq, &EpAttr::default());
        let psp = Psp::builder(&server.ia, &server.cr).build().unwrap();
        let port = psp.port();
        let place = format!("{} {port}", server.ia.address());
        let mut peer = Process(Process::start("sender", &place).spawn().unwrap());
        connection_request(&server.cr).cr.accept(&doomed, &[]).unwrap();
        expect_connection(&server.connect, &doomed, ConnectionEventKind::Established);
        // Some complete messages, while the other clients are served as well.
        let (mut large, mut small, mut sent) = (0, 0, 0);
        while large < 4 || small < 3 {
            if small < 3 && sent == small {
                sent += 1;
                let client = &mut others[small].client;
                client.send(&[rig.client.lmr.triplet(0, 16)]).post().unwrap();
            }
            let got = dto(&server.recv);
            assert!(got.is_success(), "{got:?}");
            if got.ep == doomed.id() {
                assert_eq!(got.length as usize, LARGE);
                large += 1;
            } else {
                assert!(dto(&rig.client.request).is_success());
                small += 1;
            }
            post(&mut srq, got.cookie);
        }
        peer.kill();

        // No more posts from here on: what was posted has to come back.
        let mut cookies = Vec::new();
        until("the endpoint ends", || {
            while let Ok(Some(event)) = server.recv.dequeue() {
                cookies.push(event.completion().unwrap().cookie);
            }
            doomed.state() == EpState::Disconnected
        });
        expect_connection(&server.connect, &doomed, ConnectionEventKind::Disconnected);
        until("it is drained", || doomed.recv_query().unwrap().buffers == Some(0));
        let mut served = 0;
        while counts(&srq).0 > 0 {
            let pair = &mut others[served % 3];
            assert_eq!(pair.server.state(), EpState::Connected);
            assert!(rig.send(pair, 0, 16).is_success());
            served += 1;
            while let Ok(Some(event)) = server.recv.dequeue() {
                let got = *event.completion().unwrap();
                assert!(got.is_success() || got.ep == doomed.id(), "{got:?}");
                cookies.push(got.cookie);
            }
        }
        until("everything is reaped", || {
            while let Ok(Some(event)) = server.recv.dequeue() {
                cookies.push(event.completion().unwrap().cookie);
            }
            counts(&srq) == (0, 0)
        });
        cookies.sort_unstable();
        assert_eq!(cookies, (0..DEPTH as u64).collect::<Vec<_>>());
        // And all of the SRQ can be used again.
        (0..DEPTH as u64).for_each(|i| post(&mut srq, i));
        assert_eq!(counts(&srq), (DEPTH as u32, DEPTH as u32));
        for pair in &mut others {
            assert_eq!(rig.deliver(pair, 16).ep, pair.server.id());
        }
    });
}
