//! Buffers of sends that wait, are reset, or end with their EP.

use doorbell::{DtoCompletion, Ep, EpAttr, EvdFlags, RecvPool, SendBuf, SendPool, Srq};
use doorbell_hw_tests::rig::*;
use doorbell_hw_tests::{Pair, Rig, Test, tests};
use std::mem;

pub(crate) const TESTS: &[Test] = tests![
    a_send_that_waits_keeps_its_bytes_whatever_becomes_of_its_ep,
    sends_before_a_reset_free_no_later_buffer,
    sends_that_nobody_hears_of_free_each_buffer_once,
    a_dropped_send_pool_leaves_its_bytes_to_the_device,
    buffers_of_a_dropped_plain_ep_are_not_written_by_its_peer,
];

/// A sender whose peer has no receive yet, and two sends of `[1; SIZE]` and `[2; SIZE]` that wait.
fn with_waiting_sends() -> (Rig, Srq, Pair, SendPool) {
    let rig = Rig::patient();
    let srq = rig.server.srq(4);
    let mut pair = rig.connect_srq(&srq);
    let mut sends = SendPool::new(&rig.client.ia, &rig.client.pz, 2, SIZE).unwrap();
    for byte in [1, 2] {
        let mut buf = sends.take().unwrap();
        buf.fill(byte);
        sends.send(buf).len(SIZE).post(&mut pair.client).unwrap();
    }
    assert!(sends.take().is_none());
    (rig, srq, pair, sends)
}

/// Overwrites all buffers that can be taken.
fn overwrite(sends: &mut SendPool) -> Vec<SendBuf> {
    let mut taken: Vec<_> = std::iter::from_fn(|| sends.take()).collect();
    taken.iter_mut().for_each(|buf| buf.fill(0xee));
    taken
}

/// Passes the completions of the client's requests to the pool; returns them.
fn reap_sends(rig: &Rig, sends: &mut SendPool) -> Vec<DtoCompletion> {
    let events = std::iter::from_fn(|| rig.client.request.dequeue().unwrap());
    let dtos: Vec<_> = events.filter_map(|event| event.completion().copied()).collect();
    for dto in &dtos {
        sends.completed(dto);
    }
    dtos
}

/// Posts receives; no message that comes has bytes of later users of its buffer.
fn check_late_messages(rig: &Rig, srq: &mut Srq, at_least: usize) {
    let mut pool = RecvPool::new(&rig.server.ia, &rig.server.pz, 4, SIZE).unwrap();
    pool.refill(srq).unwrap();
    let mut messages = 0;
    let mut look = || {
        while let Ok(Some(event)) = rig.server.recv.dequeue() {
            let Some(guard) = event.completion().and_then(|dto| pool.take(dto)) else { continue };
            messages += 1;
            assert_eq!(*guard, [messages as u8; SIZE], "a message has bytes from after its send");
        }
        messages >= at_least
    };
    until("the messages have come", &mut look);
    // The device has had time for two retries.
    std::thread::sleep(std::time::Duration::from_millis(20));
    look();
}

/// While sends wait for a receive of the peer, their EP is left alone, dropped, freed, forgotten,
/// or disconnected and reset. Buffers that come back are overwritten at once.
fn a_send_that_waits_keeps_its_bytes_whatever_becomes_of_its_ep() {
    for way in 0..5 {
        let (rig, mut srq, Pair { server, mut client }, mut sends) = with_waiting_sends();
        let mut left = None;
        match way {
            0 => left = Some(client),
            1 => drop(client),
            2 => client.close().unwrap(),
            3 => mem::forget(client),
            _ => {
                client.disconnect(doorbell::CloseFlags::Abrupt).unwrap();
                while !connection(&rig.client.connect).kind.is_end() {}
                client.reset().unwrap();
                left = Some(client);
            }
        }
        let mut taken = overwrite(&mut sends);
        reap_sends(&rig, &mut sends);
        taken.extend(overwrite(&mut sends));
        let waits = matches!(way, 0 | 3);
        assert_eq!(taken.len(), if waits { 0 } else { 2 }, "way {way}");
        check_late_messages(&rig, &mut srq, if waits { 2 } else { 0 });
        drop((left, server));
    }
}

/// An EP is disconnected with sends under way, reset and connected again, several times. The
/// program keeps completions of the earlier connections and passes them to the pool again.
fn sends_before_a_reset_free_no_later_buffer() {
    let (rig, mut srq, Pair { server, mut client }, mut sends) = with_waiting_sends();
    let mut last = server;
    let mut kept: Vec<DtoCompletion> = vec![];
    for round in 10..15u8 {
        client.disconnect(doorbell::CloseFlags::Abrupt).unwrap();
        while !connection(&rig.client.connect).kind.is_end() {}
        while !connection(&rig.server.connect).kind.is_end() {}
        client.reset().unwrap();
        kept.extend(reap_sends(&rig, &mut sends));
        assert_eq!(sends.posted(), 0, "the reset has left a send under way");
        drop(last);
        let mut pool = RecvPool::new(&rig.server.ia, &rig.server.pz, 1, SIZE).unwrap();
        let mut pair = rig.connect(rig.server.srq_ep(&srq, &EpAttr::default()), client);
        for byte in [round, 0xdd] {
            let mut buf = sends.take().unwrap();
            buf.fill(byte);
            sends.send(buf).len(SIZE).post(&mut pair.client).unwrap();
        }
        assert!(kept.iter().all(|old| !sends.completed(old)), "a completion was good twice");
        assert!(overwrite(&mut sends).is_empty());
        pool.refill(&mut srq).unwrap();
        assert_eq!(*message(&rig.server, &mut pool), [round; SIZE]);
        let sent = dto(&rig.client.request);
        assert!(sent.is_success() && sends.completed(&sent));
        kept.push(sent);
        assert!(kept.iter().all(|old| !sends.completed(old)), "a completion was good twice");
        // The other send waits for a receive until the next reset.
        assert_eq!(sends.posted(), 1);
        (last, client) = (pair.server, pair.client);
        let mut buf = sends.take().unwrap();
        buf.fill(0xcc);
        sends.send(buf).len(SIZE).post(&mut client).unwrap();
    }
}

/// The EVD of the requests is too small, so that some sends complete without an event.
fn sends_that_nobody_hears_of_free_each_buffer_once() {
    let rig = Rig::new();
    let small = doorbell::Evd::new(&rig.client.ia, 1, EvdFlags::DTO).unwrap();
    let room = small.query().unwrap().depth as usize;
    let buffers = room + 4;
    let mut srq = rig.server.srq(2 * buffers as u32);
    let mut pool = RecvPool::new(&rig.server.ia, &rig.server.pz, 2 * buffers as u32, SIZE).unwrap();
    pool.refill(&mut srq).unwrap();
    let attr = EpAttr { request_depth: 2 * buffers as u32, ..EpAttr::default() };
    let evds = doorbell::inside::EpEvds { request: Some(&small), ..rig.client.evds() };
    let client = Ep::builder(&rig.client.ia, &rig.client.pz).evds(evds).attributes(&attr).build().unwrap();
    let mut pair = rig.connect(rig.server.srq_ep(&srq, &EpAttr::default()), client);
    let mut sends = SendPool::new(&rig.client.ia, &rig.client.pz, buffers as u32, SIZE).unwrap();
    let mut kept = vec![];
    for round in 0..3u8 {
        let held: Vec<_> = std::iter::from_fn(|| sends.take()).collect();
        let starts: std::collections::HashSet<_> = held.iter().map(|buf| buf.as_ptr()).collect();
        assert_eq!((held.len(), starts.len()), (buffers, buffers), "a buffer has two owners");
        for mut buf in held {
            buf.fill(round);
            sends.send(buf).len(SIZE).post(&mut pair.client).unwrap();
        }
        assert!(kept.iter().all(|old| !sends.completed(old)), "a completion was good twice");
        for _ in 0..buffers {
            assert_eq!(*message(&rig.server, &mut pool), [round; SIZE]);
        }
        pool.refill(&mut srq).unwrap();
        until("all buffers are back", || {
            let query = small.query().unwrap();
            assert!(query.queued <= room);
            while let Ok(Some(event)) = small.dequeue() {
                kept.extend(event.completion().inspect(|dto| assert!(sends.completed(dto))));
            }
            sends.posted() == 0
        });
    }
    assert!(overwrite(&mut sends).len() == buffers && kept.len() <= 3 * buffers);
}

/// A pool is dropped while its sends wait. Later pools do not get their bytes onto the wire.
fn a_dropped_send_pool_leaves_its_bytes_to_the_device() {
    let (rig, mut srq, pair, sends) = with_waiting_sends();
    drop(sends);
    let later: Vec<_> = (0..8)
        .map(|_| {
            let mut pool = SendPool::new(&rig.client.ia, &rig.client.pz, 2, SIZE).unwrap();
            (overwrite(&mut pool), pool)
        })
        .collect();
    check_late_messages(&rig, &mut srq, 0);
    assert!(later.iter().all(|(bufs, _)| bufs.iter().all(|buf| **buf == [0xee; SIZE])));
    drop(pair);
}

/// A plain EP is dropped while its peer sends into the receives that a pool has posted. The buffers
/// come back and are posted to another EP.
fn buffers_of_a_dropped_plain_ep_are_not_written_by_its_peer() {
    for round in 0..8u8 {
        let rig = Rig::new();
        let mut pool = RecvPool::new(&rig.server.ia, &rig.server.pz, 4, SIZE).unwrap();
        let [mut first, mut second] = [0; 2].map(|_| rig.connect_plain(&EpAttr::default()));
        assert_eq!(pool.refill(&mut first.server).unwrap(), 4);
        rig.client.lmr.write(SIZE, &[0xee; SIZE]).unwrap();
        for _ in 0..round {
            let _full = first.client.send(&[rig.client.lmr.triplet(SIZE, SIZE)]).cookie(9).post();
        }
        drop(first.server);
        while rig.server.recv.dequeue().unwrap().is_some() {}
        let back = pool.refill(&mut second.server).unwrap();
        assert_eq!(back, 4, "in round {round}");
        for _ in 0..3 {
            let _ended = first.client.send(&[rig.client.lmr.triplet(SIZE, SIZE)]).cookie(9).post();
        }
        rig.client.lmr.write(0, b"lent out").unwrap();
        second.client.send(&[rig.client.lmr.triplet(0, 8)]).cookie(1).post().unwrap();
        let guard = message(&rig.server, &mut pool);
        assert_eq!(*guard, *b"lent out");
        while !connection(&rig.client.connect).kind.is_end() {}
        until("the sends have ended", || {
            while rig.client.request.dequeue().unwrap().is_some() {}
            assert_eq!(*guard, *b"lent out");
            first.client.status().unwrap().requests == 0
        });
    }
}
