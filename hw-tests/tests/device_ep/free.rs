//! EPs that are freed with completions that nobody has taken (R172), and what a freed object leaves
//! for the next one.

use crate::*;
use doorbell::inside::EpEvds;
use doorbell::{
    ConnectionEventKind, DtoOp, DtoStatus, EpAttr, EvdFlags, Lmr, MemPriv, Pz, RecvPool, RmrTriplet,
};
use doorbell_hw_tests::rig::*;
use doorbell_hw_tests::{Rig, Test, tests};

pub(crate) const TESTS: &[Test] = tests![
    unread_completions_of_freed_eps_take_no_room,
    a_freed_ep_takes_its_completions_from_between_those_of_others,
    a_freed_connected_ep_returns_the_buffers_of_pools,
    a_new_evd_has_no_event_of_a_freed_one,
    memory_of_a_dropped_pz_stays_out_of_the_next,
];

/// Programs that suppress completions never look at their request EVD. EPs come and go on it, with
/// more completions together than its CQ has room for.
fn unread_completions_of_freed_eps_take_no_room() {
    const EPS: usize = 40;
    const REQUESTS: u32 = 16;
    let rig = Rig::patient();
    // Room for all requests of one EP, in case a disconnect comes before their acknowledgements.
    let requests = Evd::new(&rig.client.ia, REQUESTS, EvdFlags::DTO).unwrap();
    let attr = EpAttr { request_depth: REQUESTS, ..EpAttr::default() };
    for n in 0..EPS {
        let evds = EpEvds { request: Some(&requests), ..rig.client.evds() };
        let client =
            Ep::builder(&rig.client.ia, &rig.client.pz).evds(evds).attributes(&attr).build().unwrap();
        let mut pair = rig.connect(rig.server.ep(&EpAttr::default()), client);
        let to = rig.server.lmr.address();
        let to = |len| RmrTriplet {
            virtual_address: to,
            segment_length: len,
            rmr_context: rig.server.lmr.rmr_context(),
        };
        for _ in 1..REQUESTS {
            let from = rig.client.lmr.triplet(0, 8);
            pair.client.write(&[from]).to(to(8)).cookie(1).suppress().post().unwrap();
        }
        let last = rig.client.lmr.triplet(16, 16);
        rig.client.lmr.write(16, &[n as u8 + 1]).unwrap();
        if n + 1 == EPS {
            // The EVD is not full, and its CQ has not overflowed.
            pair.client.write(&[last]).to(to(16)).cookie(7).post().unwrap();
            let done = dto(&requests);
            assert_eq!((done.status, done.cookie, done.length), (DtoStatus::Success, 7, 16));
        } else {
            pair.client.write(&[last]).to(to(16)).cookie(7).suppress().post().unwrap();
        }
        // The last of the requests is done, and so are all before it.
        let arrived = || {
            let mut first = [0];
            rig.server.lmr.read(0, &mut first).unwrap();
            usize::from(first[0]) == n + 1
        };
        until("the last write has arrived", arrived);
        rig.disconnect(&pair);
        pair.client.close().unwrap();
        pair.server.close().unwrap();
    }
    expect_nothing(&requests);
    expect_nothing(rig.client.ia.async_evd());
}

/// Two EPs have requests on one EVD. Only those of the one that is not freed are seen, in their
/// order.
fn a_freed_ep_takes_its_completions_from_between_those_of_others() {
    let rig = Rig::patient();
    let mut srq = rig.server.srq(32);
    rig.server.post(&mut srq, 20, 64, 0, 0);
    let (mut stays, mut goes) = (rig.connect_srq(&srq), rig.connect_srq(&srq));
    for cookie in 0..10 {
        for pair in [&mut stays, &mut goes] {
            pair.client.send(&[rig.client.lmr.triplet(0, 32)]).cookie(cookie).post().unwrap();
            assert_eq!(dto(&rig.server.recv).op, DtoOp::Receive);
        }
    }
    rig.disconnect(&goes);
    let id = stays.client.id();
    goes.client.close().unwrap();
    for cookie in 0..10 {
        let done = dto(&rig.client.request);
        assert_eq!((done.ep, done.cookie, done.status), (id, cookie, DtoStatus::Success));
    }
    expect_nothing(&rig.client.request);
}

/// The buffers of an EP that is freed while it is connected are free at once.
fn a_freed_connected_ep_returns_the_buffers_of_pools() {
    let rig = Rig::patient();
    let mut pool = RecvPool::new(&rig.server.ia, &rig.server.pz, 4, 64).unwrap();
    for _ in 0..3 {
        let mut pair = rig.connect_plain(&EpAttr::default());
        assert_eq!(pool.refill(&mut pair.server), Ok(4));
        assert_eq!(pool.posted(), 4);
        // One message that nobody takes.
        pair.client.send(&[rig.client.lmr.triplet(0, 8)]).cookie(1).post().unwrap();
        assert_eq!(dto(&rig.client.request).status, DtoStatus::Success);
        pair.server.close().unwrap();
        assert_eq!(pool.posted(), 0);
        expect_connection(&rig.client.connect, &pair.client, ConnectionEventKind::Disconnected);
        pair.client.close().unwrap();
    }
}

/// An EVD is freed with a completion for which its CQ is armed. A new EVD does not wake from it.
fn a_new_evd_has_no_event_of_a_freed_one() {
    let rig = Rig::patient();
    for _ in 0..3 {
        let requests = Evd::new(&rig.client.ia, 16, EvdFlags::DTO).unwrap();
        let evds = EpEvds { request: Some(&requests), ..rig.client.evds() };
        let client = Ep::builder(&rig.client.ia, &rig.client.pz).evds(evds).build().unwrap();
        let mut pair = rig.connect(rig.server.ep(&EpAttr::default()), client);
        // Arms the CQ.
        assert!(requests.wait_threshold(1, Some(std::time::Duration::ZERO)).is_err());
        pair.server.post_recv(&[rig.server.lmr.triplet(0, 64)], 1, NONE).unwrap();
        pair.client.send(&[rig.client.lmr.triplet(0, 8)]).cookie(1).post().unwrap();
        assert_eq!(dto(&rig.server.recv).status, DtoStatus::Success);
        rig.disconnect(&pair);
        pair.client.close().unwrap();
        requests.close().unwrap();
        let next = Evd::new(&rig.client.ia, 16, EvdFlags::DTO).unwrap();
        expect_nothing(&next);
    }
}

/// A PZ is dropped while an LMR of it is left. An EP in the next PZ gives no access to that LMR.
fn memory_of_a_dropped_pz_stays_out_of_the_next() {
    let rig = Rig::patient();
    let lmr = {
        let pz = Pz::new(&rig.server.ia).unwrap();
        Lmr::builder(&rig.server.ia, &pz).privileges(MemPriv::all()).allocate(4096).unwrap()
    };
    for _ in 0..2 {
        let pz = Pz::new(&rig.server.ia).unwrap();
        let server = Ep::builder(&rig.server.ia, &pz).evds(rig.server.evds()).build().unwrap();
        let mut pair = rig.connect(server, rig.client.ep(&EpAttr::default()));
        let to =
            RmrTriplet { virtual_address: lmr.address(), segment_length: 64, rmr_context: lmr.rmr_context() };
        pair.client.write(&[rig.client.lmr.triplet(0, 64)]).to(to).cookie(9).post().unwrap();
        let done = dto(&rig.client.request);
        assert_eq!((done.status, done.cookie), (DtoStatus::RemoteAccess, 9));
        for (side, ep) in [(&rig.client, &pair.client), (&rig.server, &pair.server)] {
            expect_connection(&side.connect, ep, ConnectionEventKind::Broken);
        }
        pair.client.close().unwrap();
        pair.server.close().unwrap();
        // Freed without objects in it: its domain may be used again.
        pz.close().unwrap();
    }
}
