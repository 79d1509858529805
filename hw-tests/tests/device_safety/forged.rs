//! Forged and kept values: contexts, keys, completions, and pools of another IA or PZ.

use crate::*;
use doorbell::{
    Direction, DtoCompletion, EpAttr, Lmr, LmrTriplet, MemPriv, PostError, Pz, RecvPool, Refused, Rmr,
    RmrBind, RmrScope, RmrTriplet, SendPool, VaType,
};
use doorbell_hw_tests::rig::*;
use doorbell_hw_tests::{Rig, Side, Test, tests};
use std::mem;

pub(crate) const TESTS: &[Test] = tests![
    forged_triplets_reach_no_buffer,
    guessed_keys_reach_no_buffer,
    kept_completions_are_good_once,
    an_lmr_of_another_ia_is_refused,
    a_pool_is_refused_by_another_ia_and_another_pz,
    a_stale_work_request_reaches_no_later_pool,
];

/// An LMR context is an index and a generation: these are all contexts that a new process can have
/// assigned.
fn contexts() -> impl Iterator<Item = u32> {
    (0..4u32).flat_map(|generation| (0..256).map(move |index| generation << 20 | index))
}

/// Addresses of guards are known, and contexts can be guessed. Every call that takes segments must
/// refuse such segments.
fn forged_triplets_reach_no_buffer() {
    let rig = Rig::new();
    let (mut srq, mut pool, mut pair) = rig.pooled(2);
    rig.send_bytes(&mut pair, b"lent out");
    let guard = message(&rig.server, &mut pool);
    let mut sends = SendPool::new(&rig.server.ia, &rig.server.pz, 1, SIZE).unwrap();
    let mut buf = sends.take().unwrap();
    buf.fill(7);
    let mut plain = rig.server.ep(&EpAttr::default());
    let mut rmr = Rmr::new(&rig.server.pz, RmrScope::Pz).unwrap();
    let from = remote(&rig.client.lmr, 8);
    let refused = |call: &str, outcome: Result<(), PostError>| {
        use PostError::{NoSuchLmr, OutOfBounds, ProtectionZone};
        // Some contexts name LMRs of the other IA, which are in another PZ.
        let unknown = matches!(outcome, Err(NoSuchLmr(..) | OutOfBounds(_) | ProtectionZone(..)));
        assert!(unknown, "{call} of a forged triplet: {outcome:?}");
    };
    // The last address is where the device addresses of pools begin.
    for address in [guard.as_ptr().addr() as u64, buf.as_ptr().addr() as u64, 1 << 62] {
        for lmr_context in contexts() {
            let forged = LmrTriplet { virtual_address: address, segment_length: 8, lmr_context };
            let server = &mut pair.server;
            refused("SRQ receive", srq.post_recv(&[forged], 1));
            refused("receive", plain.post_recv(&[forged], 1, NONE));
            refused("send", server.send(&[forged]).cookie(1).post());
            refused("invalidating send", server.send(&[forged]).with_invalidate(9).cookie(1).post());
            refused("write", server.write(&[forged]).to(from).cookie(1).post());
            refused("immediate write", server.write(&[forged]).to(from).with_immediate(1).cookie(1).post());
            refused("read", server.read(&[forged]).from(from).cookie(1).post());
            refused("add", server.fetch_add(&forged, 1).at(from).cookie(1).post());
            refused("swap", server.compare_swap(&forged, 1, 1).at(from).cookie(1).post());
            let bind = RmrBind {
                lmr: &rig.server.lmr,
                segment: forged,
                privileges: MemPriv::REMOTE_WRITE,
                va_type: VaType::Virtual,
            };
            assert!(rmr.bind(server, bind, 1, NONE).is_err());
            assert!(rig.server.ia.sync_rdma_read(&[forged]).is_err());
        }
        // RMR contexts are keys of the device, near those that it gave before.
        let own = rig.server.lmr.rmr_context();
        for rmr_context in (0..4096).map(|n| own.wrapping_add(n)) {
            let local = RmrTriplet { virtual_address: address, segment_length: 8, rmr_context };
            refused("read to RMR", pair.server.read_to_rmr(local).from(from).cookie(1).post());
        }
    }
    assert_eq!(*guard, *b"lent out");
    assert_eq!(*buf, [7; SIZE]);
}

/// Contexts of two IAs differ, so that one never names an LMR of the other.
fn an_lmr_of_another_ia_is_refused() {
    let rig = Rig::new();
    let mut srq = rig.server.srq(4);
    let mut pair = rig.connect_srq(&srq);
    let mut plain = rig.server.ep(&EpAttr::default());
    // The first post makes all checks, the second one finds the LMR fast.
    for _ in 0..2 {
        let foreign = rig.client.lmr.triplet(0, 8);
        let write = Err(PostError::ProtectionZone(0, Direction::Write));
        assert_eq!(srq.post_recv(&[foreign], 1), write);
        assert_eq!(plain.post_recv(&[foreign], 1, NONE), write);
        let read = Err(PostError::ProtectionZone(0, Direction::Read));
        assert_eq!(pair.server.send(&[foreign]).cookie(1).post(), read);
        let own = rig.server.lmr.triplet(0, 8);
        srq.post_recv(&[own], 2).unwrap();
        pair.client.send(&[foreign]).cookie(3).post().unwrap();
        assert!(dto(&rig.client.request).is_success());
        assert!(dto(&rig.server.recv).is_success());
        pair.client.post_recv(&[foreign], 4, NONE).unwrap();
        pair.server.send(&[own]).cookie(5).post().unwrap();
        assert!(dto(&rig.server.request).is_success());
        assert!(dto(&rig.client.recv).is_success());
    }
}

/// A peer cannot access a pool's memory with its key or with any other key that the peer may guess.
fn guessed_keys_reach_no_buffer() {
    let rig = Rig::new();
    // Keys are assigned in sequence, and this key is the last before those of the pools.
    let last = Lmr::builder(&rig.server.ia, &rig.server.pz)
        .privileges(all_privileges())
        .allocate(64)
        .unwrap()
        .rmr_context();
    let mut sends = SendPool::new(&rig.server.ia, &rig.server.pz, 1, SIZE).unwrap();
    let mut buf = sends.take().unwrap();
    let (mut srq, mut pool, mut pair) = rig.pooled(4);
    rig.send_bytes(&mut pair, b"lent out");
    let guard = message(&rig.server, &mut pool);
    rig.disconnect(&pair);
    buf.fill(7);
    for key in [1, 0x100, 0x101, 0x102, 0x201, 0x202].map(|step| last.wrapping_add(step)) {
        for address in [guard.as_ptr().addr() as u64, 1 << 62] {
            pool.refill(&mut srq).unwrap();
            let mut pair = rig.connect_srq(&srq);
            let target = RmrTriplet { virtual_address: address, segment_length: 8, rmr_context: key };
            let local = [rig.client.lmr.triplet(512, 8)];
            pair.client.write(&local).to(target).cookie(1).post().unwrap();
            assert!(!dto(&rig.client.request).is_success(), "a write with the guessed key {key:#x}");
            while !connection(&rig.server.connect).kind.is_end() {}
            while !connection(&rig.client.connect).kind.is_end() {}
        }
    }
    assert_eq!(*guard, *b"lent out");
    assert_eq!(*buf, [7; SIZE]);
}

/// Completions can be copied and kept. Each gives one guard of one pool, once.
fn kept_completions_are_good_once() {
    let rig = Rig::new();
    let (mut srq, mut pool, mut pair) = rig.pooled(2);
    let mut sends = SendPool::new(&rig.client.ia, &rig.client.pz, 2, SIZE).unwrap();
    let mut kept: Vec<DtoCompletion> = Vec::new();
    for round in 0..20u8 {
        let mut buf = sends.take().unwrap();
        buf.fill(round);
        sends.send(buf).len(SIZE).post(&mut pair.client).unwrap();
        kept.extend([dto(&rig.client.request), dto(&rig.server.recv)]);
        let [.., sent, received] = kept[..] else { unreachable!() };
        assert!(!sends.completed(&received) && pool.take(&sent).is_none());
        assert!(sends.completed(&sent));
        let guard = pool.take(&received).unwrap();
        let mut others = RecvPool::new(&rig.server.ia, &rig.server.pz, 2, SIZE).unwrap();
        let mut other_sends = SendPool::new(&rig.client.ia, &rig.client.pz, 2, SIZE).unwrap();
        let _posted = others.refill(&mut srq);
        let mut unsent = sends.take().unwrap();
        unsent.fill(0xee);
        for old in &kept {
            assert!(pool.take(old).is_none() && others.take(old).is_none());
            assert!(!sends.completed(old) && !other_sends.completed(old));
        }
        assert_eq!(*guard, [round; SIZE]);
        drop(guard);
        // The next but one would be a buffer of the other pool.
        drop((mem::replace(&mut srq, rig.server.srq(2)), others));
        pair = {
            rig.disconnect(&pair);
            pool = RecvPool::new(&rig.server.ia, &rig.server.pz, 2, SIZE).unwrap();
            pool.refill(&mut srq).unwrap();
            rig.connect_srq(&srq)
        };
        for old in &kept {
            assert!(pool.take(old).is_none());
        }
    }
}

/// Memory is registered with one device and in one PZ. The queue of another device could mistake
/// its key for another region's.
fn a_pool_is_refused_by_another_ia_and_another_pz() {
    let rig = Rig::new();
    let elsewhere = Pz::new(&rig.server.ia).unwrap();
    let (ia, pz) = (&rig.server.ia, &rig.server.pz);
    let mut srq = rig.server.srq(4);
    let mut pair = rig.connect_plain(&EpAttr::default());
    let mut foreign = RecvPool::new(&rig.client.ia, &rig.client.pz, 2, SIZE).unwrap();
    assert!(matches!(foreign.refill(&mut srq), Err(PostError::NoSuchLmr(..))));
    assert!(matches!(foreign.refill(&mut pair.server), Err(PostError::NoSuchLmr(..))));
    let mut outside = RecvPool::new(ia, &elsewhere, 2, SIZE).unwrap();
    assert!(matches!(outside.refill(&mut srq), Err(PostError::ProtectionZone(..))));
    assert!(matches!(outside.refill(&mut pair.server), Err(PostError::ProtectionZone(..))));
    assert_eq!((foreign.posted(), outside.posted()), (0, 0));
    assert!(RecvPool::new(ia, &rig.client.pz, 2, SIZE).is_err());

    let mut foreign = SendPool::new(&rig.client.ia, &rig.client.pz, 1, SIZE).unwrap();
    let buf = foreign.take().unwrap();
    let Refused { object: buf, error } = foreign.send(buf).len(8).post(&mut pair.server).unwrap_err();
    assert!(matches!(error, PostError::NoSuchLmr(..)), "{error}");
    foreign.send(buf).len(0).post(&mut pair.client).unwrap();
    let mut outside = SendPool::new(ia, &elsewhere, 1, SIZE).unwrap();
    let buf = outside.take().unwrap();
    let Refused { object: _buf, error } = outside.send(buf).len(8).post(&mut pair.server).unwrap_err();
    assert!(matches!(error, PostError::ProtectionZone(..)), "{error}");
    drop(RecvPool::new(ia, pz, 1, SIZE).unwrap());
}

/// Devices reuse keys, and the system reuses addresses. A receive that outlives its LMR may
/// therefore name the key and the address of a buffer of a later pool while that buffer is lent
/// out.
fn a_stale_work_request_reaches_no_later_pool() {
    let rig = Rig::new();
    let Side { ia, pz, .. } = &rig.server;
    let lmr = || Lmr::builder(ia, pz).privileges(all_privileges()).allocate(SIZE).unwrap();
    let mut victims = rig.server.srq(1);
    let mut victim = rig.connect_srq(&victims);
    let mut srq = rig.server.srq(1);
    let mut pair = rig.connect_srq(&srq);
    let first = lmr();
    let key = first.rmr_context();
    srq.post_recv(&[first.triplet(0, SIZE)], 1).unwrap();
    drop(first);
    // Registers memory until its key is the one before the key of the freed LMR. Where a device
    // gives keys in sequence, the key after it is that of the freed LMR again.
    let before = |key: u32| key & !0xff | (key.wrapping_sub(1) & 0xff);
    let found = (0..512).any(|_| lmr().rmr_context() == before(key));
    let mut pool = RecvPool::new(ia, pz, 1, SIZE).unwrap();
    pool.refill(&mut victims).unwrap();
    rig.send_bytes(&mut victim, b"lent out");
    let guard = message(&rig.server, &mut pool);
    // The stale receive takes this message.
    pair.client.send(&[rig.client.lmr.triplet(4096, SIZE)]).post().unwrap();
    let arrived = dto(&rig.server.recv);
    assert!(!arrived.is_success(), "a dead LMR has received; its key has come again: {found}");
    assert_eq!(*guard, *b"lent out");
}
