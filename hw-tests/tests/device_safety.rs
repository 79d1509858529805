//! Attacks by a program without `unsafe` on the memory of pools. Whatever values the program keeps,
//! forges, forgets or drops too early: nothing else may change the bytes of a guard.
//! provider/SOUNDNESS.md has the argument.
#![forbid(unsafe_code)]

use doorbell::{
    CompletionFlags, DtoCompletion, Ep, EpAttr, EvdFlags, Lmr, LmrTriplet, MemPriv, PostError, Pz, RecvBuf,
    RecvPool, Rmr, RmrBind, RmrTriplet, SendBuf, SendPool, Srq, VaType,
};
use doorbell_hw_tests::rig::*;
use doorbell_hw_tests::{Pair, Rig, Side, tests};
use std::any::Any;
use std::fs;
use std::mem;
use std::process::{Command, ExitCode};

/// Set in a process in which no memory can be deregistered.
const STUCK: &str = "DOORBELL_SAFETY_STUCK";

fn main() -> ExitCode {
    if std::env::var_os(STUCK).is_some() {
        memory_of_a_pool_stays_or_goes(true);
        return ExitCode::SUCCESS;
    }
    let emulated = std::env::var("LD_PRELOAD").is_ok_and(|libraries| libraries.contains("mlx5_emu"));
    let tests = tests![
        a_bind_that_nobody_hears_of_frees_no_buffer,
        forged_triplets_reach_no_buffer,
        guessed_keys_reach_no_buffer,
        kept_completions_are_good_once,
        a_pool_is_refused_by_another_ia_and_another_pz,
        a_stale_work_request_reaches_no_later_pool,
        memory_goes_with_the_last_guard,
        memory_that_the_device_keeps_stays_mapped,
        guards_outlive_everything_in_any_order,
        forgotten_objects_take_no_buffer_of_others_along,
        a_panicking_reader_gives_its_buffer_back,
        a_plain_ep_that_is_modified_keeps_buffers_apart,
        an_evd_that_overflows_gives_no_buffer_back_twice,
        pieces_from_elsewhere_are_refused,
        a_send_that_waits_keeps_its_bytes_whatever_becomes_of_its_ep,
        sends_before_a_reset_free_no_later_buffer,
        sends_that_nobody_hears_of_free_each_buffer_once,
        a_dropped_send_pool_leaves_its_bytes_to_the_device,
        buffers_of_a_dropped_plain_ep_are_not_written_by_its_peer,
        guards_keep_their_bytes_in_random_programs,
    ];
    let reason = |name: &str| {
        (name == "memory_that_the_device_keeps_stays_mapped" && !emulated)
            .then_some("only the software device refuses to deregister")
    };
    doorbell_hw_tests::run_unless(tests, 4, reason).exit_code()
}

const NONE: CompletionFlags = CompletionFlags::empty();

fn remote(lmr: &Lmr, segment_length: u32) -> RmrTriplet {
    RmrTriplet { virtual_address: lmr.address(), segment_length, rmr_context: lmr.rmr_context() }
}

/// An LMR context is an index and a generation: these are all contexts that a new IA can have
/// assigned.
fn contexts() -> impl Iterator<Item = u32> {
    (0..4u32).flat_map(|generation| (0..64).map(move |index| generation << 20 | index))
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
    let mut rmr = Rmr::create(&rig.server.pz).unwrap();
    let from = remote(&rig.client.lmr, 8);
    let refused = |call: &str, outcome: Result<(), PostError>| {
        let unknown = matches!(outcome, Err(PostError::NoSuchLmr(..) | PostError::OutOfBounds(_)));
        assert!(unknown, "{call} of a forged triplet: {outcome:?}");
    };
    // The last address is where the device addresses of pools begin.
    for address in [guard.as_ptr().addr() as u64, buf.as_ptr().addr() as u64, 1 << 62] {
        for lmr_context in contexts() {
            let forged = LmrTriplet { virtual_address: address, segment_length: 8, lmr_context };
            let server = &mut pair.server;
            refused("SRQ receive", srq.post_recv(&[forged], 1));
            refused("receive", plain.post_recv(&[forged], 1, NONE));
            refused("send", server.post_send(&[forged], 1, NONE));
            refused("invalidating send", server.post_send_with_invalidate(&[forged], 1, 9, NONE));
            refused("write", server.post_rdma_write(&[forged], 1, from, NONE));
            refused("immediate write", server.post_rdma_write_immediate(&[forged], 1, from, 1, NONE));
            refused("read", server.post_rdma_read(&[forged], 1, from, NONE));
            refused("add", server.post_fetch_and_add(forged, 1, from, 1, NONE));
            refused("swap", server.post_compare_and_swap(forged, 1, from, 1, 1, NONE));
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
            refused("read to RMR", pair.server.post_rdma_read_to_rmr(local, 1, from, NONE));
        }
    }
    assert_eq!(*guard, *b"lent out");
    assert_eq!(*buf, [7; SIZE]);
}

/// A peer cannot access a pool's memory with its key or with any other key that the peer may guess.
fn guessed_keys_reach_no_buffer() {
    let rig = Rig::new();
    // Keys are assigned in sequence, and this key is the last before those of the pools.
    let last = Lmr::create(&rig.server.ia, &rig.server.pz, 64, all_privileges()).unwrap().rmr_context();
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
            pair.client.post_rdma_write(&local, 1, target, NONE).unwrap();
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
        sends.send(&mut pair.client, buf, SIZE, NONE).unwrap();
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
    let elsewhere = Pz::create(&rig.server.ia).unwrap();
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
    let (buf, error) = foreign.send(&mut pair.server, buf, 8, NONE).unwrap_err();
    assert!(matches!(error, PostError::NoSuchLmr(..)), "{error}");
    foreign.send(&mut pair.client, buf, 0, NONE).unwrap();
    let mut outside = SendPool::new(ia, &elsewhere, 1, SIZE).unwrap();
    let buf = outside.take().unwrap();
    let (_buf, error) = outside.send(&mut pair.server, buf, 8, NONE).unwrap_err();
    assert!(matches!(error, PostError::ProtectionZone(..)), "{error}");
    drop(RecvPool::new(ia, pz, 1, SIZE).unwrap());
}

/// Devices reuse keys, and the system reuses addresses. A receive that outlives its LMR may
/// therefore name the key and the address of a buffer of a later pool while that buffer is lent
/// out.
fn a_stale_work_request_reaches_no_later_pool() {
    let rig = Rig::new();
    let Side { ia, pz, .. } = &rig.server;
    let lmr = || Lmr::create(ia, pz, SIZE, all_privileges()).unwrap();
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
    pair.client.post_send(&[rig.client.lmr.triplet(4096, SIZE)], 0, NONE).unwrap();
    let arrived = dto(&rig.server.recv);
    assert!(!arrived.is_success(), "a dead LMR has received; its key has come again: {found}");
    assert_eq!(*guard, *b"lent out");
}

/// Whether this memory is mapped, as one mapping.
fn is_mapped(start: usize, len: usize) -> bool {
    let hex = |text| usize::from_str_radix(text, 16).unwrap();
    fs::read_to_string("/proc/self/maps").unwrap().lines().any(|line| {
        let (from, to) = line.split_whitespace().next().unwrap().split_once('-').unwrap();
        hex(from) <= start && start + len <= hex(to)
    })
}

/// Drops a pool of 64 MiB and a guard. The SRQ, which has the other buffers, stays. Checks whether
/// the memory is still mapped.
fn memory_of_a_pool_stays_or_goes(stays: bool) {
    const LEN: usize = 64 << 20;
    let rig = Rig::new();
    let mut srq = rig.server.srq(4);
    let mut pool = RecvPool::new(&rig.server.ia, &rig.server.pz, 4, LEN / 4).unwrap();
    pool.refill(&mut srq).unwrap();
    let mut pair = rig.connect_srq(&srq);
    rig.send_bytes(&mut pair, b"lent out");
    // The guard has the first buffer of the pool.
    let guard = message(&rig.server, &mut pool);
    let start = guard.as_ptr().addr();
    drop(pool);
    assert!(is_mapped(start, LEN));
    assert_eq!(*guard, *b"lent out");
    drop(guard);
    assert_eq!(is_mapped(start, LEN), stays);
    drop((srq, pair, rig));
    assert_eq!(is_mapped(start, LEN), stays);
}

fn memory_goes_with_the_last_guard() {
    memory_of_a_pool_stays_or_goes(false);
}

/// A device that refuses to deregister memory may still write it: the pages must not be reused.
fn memory_that_the_device_keeps_stays_mapped() {
    let mut stuck = Command::new(std::env::current_exe().unwrap());
    stuck.env(STUCK, "1").env("MLX5_EMU_FAULTS", "cmd.dereg_mr=16*0");
    let output = stuck.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// While messages arrive, pool, SRQ, EP and IA are dropped one by one, in each order in which one
/// of them is first or last.
fn guards_outlive_everything_in_any_order() {
    for order in [[0, 1, 2, 3], [1, 2, 3, 0], [2, 3, 0, 1], [3, 0, 1, 2], [3, 2, 1, 0], [1, 0, 3, 2]] {
        let rig = Rig::new();
        let (srq, mut pool, mut pair) = rig.pooled(8);
        rig.send_bytes(&mut pair, b"lent out");
        let guard = message(&rig.server, &mut pool);
        let Rig { server, client } = rig;
        let Side { ia, lmr, recv, request, connect, cr, pz } = server;
        let Pair { server: ep, client: mut sender } = pair;
        let mut objects: Vec<Option<Box<dyn Any>>> =
            vec![Some(Box::new(pool)), Some(Box::new(srq)), Some(Box::new(ep)), Some(Box::new(ia))];
        for next in order {
            // Refused once the connection is known to have ended.
            let _sent = sender.post_send(&[client.lmr.triplet(4096, SIZE)], 0, NONE);
            drop(objects[next].take());
            assert_eq!(*guard, *b"lent out", "in the order {order:?}, at {next}");
        }
        drop((lmr, recv, request, connect, cr, pz));
        assert_eq!(*guard, *b"lent out");
    }
}

/// A forgotten object is never dropped: nobody gets its buffers, and other buffers are not
/// affected.
fn forgotten_objects_take_no_buffer_of_others_along() {
    let rig = Rig::new();
    let (mut srq, mut pool, mut pair) = rig.pooled(2);
    rig.send_bytes(&mut pair, b"lent out");
    let guard = message(&rig.server, &mut pool);
    mem::forget(pool);
    let mut second = RecvPool::new(&rig.server.ia, &rig.server.pz, 2, SIZE).unwrap();
    assert_eq!(second.refill(&mut srq).unwrap(), 1);
    // The forgotten pool's other buffer comes first, and no pool accepts its completion.
    rig.send_bytes(&mut pair, b"one");
    assert!(second.take(&dto(&rig.server.recv)).is_none());
    rig.send_bytes(&mut pair, b"two");
    let two = message(&rig.server, &mut second);
    assert_eq!((&*guard, &*two), (&b"lent out"[..], &b"two"[..]));
    // A forgotten guard's buffer is never posted again.
    mem::forget(two);
    assert_eq!(second.refill(&mut srq).unwrap(), 1);
    assert_eq!(second.refill(&mut srq).unwrap(), 0);
    let mut sends = SendPool::new(&rig.client.ia, &rig.client.pz, 1, SIZE).unwrap();
    mem::forget(sends.take().unwrap());
    assert!(sends.take().is_none());
    rig.disconnect(&pair);
    mem::forget((srq, pair, second));
    let Rig { server, client } = rig;
    mem::forget(server.ia);
    drop(client);
    assert_eq!(*guard, *b"lent out");
}

/// A guard that is dropped during a panic returns its buffer as any other.
fn a_panicking_reader_gives_its_buffer_back() {
    let rig = Rig::new();
    let (mut srq, mut pool, mut pair) = rig.pooled(1);
    let mut sends = SendPool::new(&rig.client.ia, &rig.client.pz, 1, SIZE).unwrap();
    for round in 0..3u8 {
        let mut buf = sends.take().unwrap();
        buf[0] = round;
        sends.send(&mut pair.client, buf, 1, NONE).unwrap();
        assert!(sends.completed(&dto(&rig.client.request)));
        let guard = message(&rig.server, &mut pool);
        let unsent = sends.take().unwrap();
        let reader = std::thread::spawn(move || {
            assert_eq!((guard[0], unsent[0]), (round, round));
            // A panic without its message.
            std::panic::resume_unwind(Box::new(()));
        });
        assert!(reader.join().is_err());
        assert_eq!(pool.refill(&mut srq).unwrap(), 1);
    }
}

/// The completion of a bind has the RMR's number where a receive has that of its pool, and a cookie
/// of the consumer. A bind whose completion is not reaped must not release the pool's buffer with
/// the same number and cookie.
fn a_bind_that_nobody_hears_of_frees_no_buffer() {
    const POOLS: usize = 128;
    let rig = Rig::new();
    let mut srq = rig.server.srq(POOLS as i32 + 1);
    let rmrs: Vec<_> = (0..POOLS / 4).map(|_| Rmr::create(&rig.server.pz).unwrap()).collect();
    let mut pools: Vec<_> =
        (0..POOLS).map(|_| RecvPool::new(&rig.server.ia, &rig.server.pz, 1, 64).unwrap()).collect();
    for pool in &mut pools {
        assert_eq!(pool.refill(&mut srq).unwrap(), 1);
    }
    for mut rmr in rmrs {
        let evds = doorbell::EpEvds {
            request: Some(&doorbell::Evd::create(&rig.server.ia, 8, None, EvdFlags::DTO).unwrap()),
            ..rig.server.evds()
        };
        let attr = EpAttr::default();
        let ep = Ep::create_with_srq(&rig.server.ia, &rig.server.pz, evds, &srq, &attr).unwrap();
        let mut pair = rig.connect(ep, rig.client.ep(&attr));
        let bind = RmrBind {
            lmr: &rig.server.lmr,
            segment: rig.server.lmr.triplet(0, 64),
            privileges: MemPriv::REMOTE_READ,
            va_type: VaType::Virtual,
        };
        // The cookie of the first post of the only buffer.
        rmr.bind(&mut pair.server, bind, 1, NONE).unwrap();
        until("the bind is done", || evds.request.unwrap().query().unwrap().queued == 1);
        pair.server.free().unwrap();
        while !connection(&rig.client.connect).kind.is_end() {}
    }
    assert!(pools.iter().all(|pool| pool.posted() == 1));
}

/// A plain EP identifies its receives by their order. Whatever happens to the EP before and after
/// connections, no buffer has two owners, and each message is in its own guard.
fn a_plain_ep_that_is_modified_keeps_buffers_apart() {
    const BUFFERS: u32 = 4;
    let rig = Rig::new();
    let attr = EpAttr { max_recv_dtos: 8, ..EpAttr::default() };
    let mut ep = rig.server.ep(&attr);
    let mut pool = RecvPool::new(&rig.server.ia, &rig.server.pz, BUFFERS, SIZE).unwrap();
    let mut guards: Vec<(RecvBuf, u8)> = vec![];
    let mut kept = vec![];
    for round in 0..6u8 {
        assert_eq!(pool.refill(&mut ep).unwrap() + guards.len(), BUFFERS as usize);
        // Nothing listens there, so that all posted receives are flushed; then the EP is reset.
        let (psp, nowhere) = doorbell::Psp::create_any(&rig.server.ia, &rig.server.cr).unwrap();
        drop(psp);
        ep.connect(rig.server.ia.address(), nowhere, Some(LONG), &[], doorbell::Qos::BestEffort).unwrap();
        assert_eq!(connection(&rig.server.connect).ep, ep.id());
        ep.reset().unwrap();
        while let Ok(event) = rig.server.recv.dequeue() {
            let flushed = *event.data.dto().unwrap();
            assert!(pool.take(&flushed).is_none(), "a flushed receive is no message");
            kept.push(flushed);
        }
        assert_eq!(pool.posted(), 0);
        // The receives are posted before the EP gets another QP, one more in each round.
        assert_eq!(pool.refill(&mut ep).unwrap() + guards.len(), BUFFERS as usize);
        let change = doorbell::EpChange { max_recv_dtos: Some(64 << round), ..doorbell::EpChange::default() };
        ep.modify(change).unwrap();
        let mut pair = rig.connect(ep, rig.client.ep(&EpAttr::default()));
        for i in 0..2 {
            let byte = round * 2 + i;
            rig.send_bytes(&mut pair, &[byte; SIZE]);
            let dto = dto(&rig.server.recv);
            kept.push(dto);
            guards.push((pool.take(&dto).unwrap(), byte));
        }
        // One guard is dropped, and one is kept for some rounds.
        guards.remove(0);
        if guards.len() > 2 {
            guards.remove(0);
        }
        rig.disconnect(&pair);
        ep = pair.server;
        ep.reset().unwrap();
        while let Ok(event) = rig.server.recv.dequeue() {
            kept.extend(event.data.dto().inspect(|dto| assert!(pool.take(dto).is_none())));
        }
        while rig.client.request.dequeue().is_ok() || rig.client.recv.dequeue().is_ok() {}
        assert!(kept.iter().all(|old| pool.take(old).is_none()), "a completion was good twice");
        assert!(
            guards.iter().all(|(guard, byte)| **guard == [*byte; SIZE]),
            "bytes have changed under a guard"
        );
    }
}

/// An EVD that is too small loses completions. Their buffers return to the pool in another way,
/// once.
fn an_evd_that_overflows_gives_no_buffer_back_twice() {
    let rig = Rig::new();
    let small = doorbell::Evd::create(&rig.server.ia, 1, None, EvdFlags::DTO).unwrap();
    let room = small.query().unwrap().qlen as usize;
    let buffers = room + 4;
    let mut srq = rig.server.srq(buffers as i32);
    let mut pool = RecvPool::new(&rig.server.ia, &rig.server.pz, buffers as u32, SIZE).unwrap();
    assert_eq!(pool.refill(&mut srq).unwrap(), buffers);
    let evds = doorbell::EpEvds { recv: Some(&small), ..rig.server.evds() };
    let ep = Ep::create_with_srq(&rig.server.ia, &rig.server.pz, evds, &srq, &EpAttr::default()).unwrap();
    let mut pair = rig.connect(ep, rig.client.ep(&EpAttr::default()));
    for i in 0..buffers {
        rig.send_bytes(&mut pair, &[i as u8; SIZE]);
    }
    let mut guards = vec![];
    let mut kept = vec![];
    // All completions are harvested at once, and only a part of them fits into the EVD.
    until("all messages are here", || srq.query().unwrap().available == 0);
    assert!(small.query().unwrap().queued <= room);
    while let Ok(event) = small.dequeue() {
        let dto = *event.data.dto().unwrap();
        kept.push(dto);
        guards.push((pool.take(&dto).unwrap(), dto.length as usize));
    }
    assert!(!guards.is_empty() && guards.len() < buffers, "{} of {buffers} were not lost", guards.len());
    assert_eq!(guards.len() + pool.refill(&mut srq).unwrap(), buffers);
    let starts: std::collections::HashSet<_> = guards.iter().map(|(guard, _)| guard.as_ptr()).collect();
    assert_eq!(starts.len(), guards.len());
    let before: Vec<_> = guards.iter().map(|(guard, _)| guard.to_vec()).collect();
    for _ in guards.len()..buffers {
        rig.send_bytes(&mut pair, &[0xee; SIZE]);
        assert!(kept.iter().all(|old| pool.take(old).is_none()), "a completion was good twice");
        let _taken = small.dequeue().ok().and_then(|event| pool.take(event.data.dto()?));
    }
    assert!(guards.iter().zip(&before).all(|((guard, _), bytes)| **guard == **bytes));
}

/// Pieces that are not inside the buffer are refused, and the buffer comes back unchanged.
fn pieces_from_elsewhere_are_refused() {
    let rig = Rig::new();
    let (_srq, mut received, mut pair) = rig.pooled(2);
    let mut pool = SendPool::new(&rig.client.ia, &rig.client.pz, 2, SIZE).unwrap();
    let mut neighbour = pool.take().unwrap();
    neighbour.fill(0xbb);
    let mut buf = pool.take().unwrap();
    buf.fill(0xaa);
    let reversed = std::ops::Range { start: 8, end: 4 };
    for wrong in [0..SIZE + 1, SIZE..SIZE + 8, usize::MAX - 4..usize::MAX, 1..usize::MAX, reversed] {
        for pieces in [vec![wrong.clone()], vec![0..4, wrong.clone()]] {
            let refused = pool.send_pieces(&mut pair.client, buf, &pieces, NONE);
            let (back, error) = refused.expect_err("a piece from elsewhere was sent");
            assert!(matches!(error, PostError::OutOfBounds(_)), "{pieces:?}: {error:?}");
            buf = back;
        }
    }
    for len in [SIZE + 1, 1 << 32, (1 << 32) + 4, usize::MAX] {
        let (back, error) = pool.send(&mut pair.client, buf, len, NONE).expect_err("too long");
        assert!(matches!(error, PostError::OutOfBounds(0)), "{len}: {error:?}");
        buf = back;
    }
    assert_eq!(*buf, [0xaa; SIZE]);
    // Pieces of length 0 anywhere inside the buffer, and one piece twice.
    pool.send_pieces(&mut pair.client, buf, &[SIZE..SIZE, 0..1, 0..0, 0..1], NONE).unwrap();
    assert!(pool.completed(&dto(&rig.client.request)));
    assert_eq!(*message(&rig.server, &mut received), [0xaa; 2]);
    assert_eq!(*neighbour, [0xbb; SIZE]);
}

/// A sender whose peer has no receive yet, and two sends of `[1; SIZE]` and `[2; SIZE]` that wait.
fn with_waiting_sends() -> (Rig, Srq, Pair, SendPool) {
    let rig = Rig::patient();
    let srq = rig.server.srq(4);
    let mut pair = rig.connect_srq(&srq);
    let mut sends = SendPool::new(&rig.client.ia, &rig.client.pz, 2, SIZE).unwrap();
    for byte in [1, 2] {
        let mut buf = sends.take().unwrap();
        buf.fill(byte);
        sends.send(&mut pair.client, buf, SIZE, NONE).unwrap();
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
    let events = std::iter::from_fn(|| rig.client.request.dequeue().ok());
    let dtos: Vec<_> = events.filter_map(|event| event.data.dto().copied()).collect();
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
        while let Ok(event) = rig.server.recv.dequeue() {
            let Some(guard) = event.data.dto().and_then(|dto| pool.take(dto)) else { continue };
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
            2 => client.free().unwrap(),
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
            sends.send(&mut pair.client, buf, SIZE, NONE).unwrap();
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
        sends.send(&mut client, buf, SIZE, NONE).unwrap();
    }
}

/// The EVD of the requests is too small, so that some sends complete without an event.
fn sends_that_nobody_hears_of_free_each_buffer_once() {
    let rig = Rig::new();
    let small = doorbell::Evd::create(&rig.client.ia, 1, None, EvdFlags::DTO).unwrap();
    let room = small.query().unwrap().qlen as usize;
    let buffers = room + 4;
    let mut srq = rig.server.srq(2 * buffers as i32);
    let mut pool = RecvPool::new(&rig.server.ia, &rig.server.pz, 2 * buffers as u32, SIZE).unwrap();
    pool.refill(&mut srq).unwrap();
    let attr = EpAttr { max_request_dtos: 2 * buffers as i32, ..EpAttr::default() };
    let evds = doorbell::EpEvds { request: Some(&small), ..rig.client.evds() };
    let client = Ep::create(&rig.client.ia, &rig.client.pz, evds, Some(&attr)).unwrap();
    let mut pair = rig.connect(rig.server.srq_ep(&srq, &EpAttr::default()), client);
    let mut sends = SendPool::new(&rig.client.ia, &rig.client.pz, buffers as u32, SIZE).unwrap();
    let mut kept = vec![];
    for round in 0..3u8 {
        let mut starts = std::collections::HashSet::new();
        for _ in 0..buffers {
            let mut buf = sends.take().expect("all buffers are back");
            assert!(starts.insert(buf.as_ptr()), "a buffer has two owners");
            buf.fill(round);
            sends.send(&mut pair.client, buf, SIZE, NONE).unwrap();
        }
        assert!(kept.iter().all(|old| !sends.completed(old)), "a completion was good twice");
        for _ in 0..buffers {
            assert_eq!(*message(&rig.server, &mut pool), [round; SIZE]);
        }
        pool.refill(&mut srq).unwrap();
        until("all buffers are back", || {
            let query = small.query().unwrap();
            assert!(query.queued <= room);
            while let Ok(event) = small.dequeue() {
                kept.extend(event.data.dto().inspect(|dto| assert!(sends.completed(dto))));
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
            let _full = first.client.post_send(&[rig.client.lmr.triplet(SIZE, SIZE)], 9, NONE);
        }
        drop(first.server);
        while rig.server.recv.dequeue().is_ok() {}
        let back = pool.refill(&mut second.server).unwrap();
        assert_eq!(back, 4, "in round {round}");
        for _ in 0..3 {
            let _ended = first.client.post_send(&[rig.client.lmr.triplet(SIZE, SIZE)], 9, NONE);
        }
        rig.client.lmr.write(0, b"lent out").unwrap();
        second.client.post_send(&[rig.client.lmr.triplet(0, 8)], 1, NONE).unwrap();
        let guard = message(&rig.server, &mut pool);
        assert_eq!(*guard, *b"lent out");
        while !connection(&rig.client.connect).kind.is_end() {}
        until("the sends have ended", || {
            while rig.client.request.dequeue().is_ok() {}
            assert_eq!(*guard, *b"lent out");
            first.client.status().unwrap().request_idle
        });
    }
}

/// Pseudo-random numbers (xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % n as u64) as usize
    }
}

/// A program that sends, receives, keeps completions and offers them again, forgets guards and
/// pools, and loses its connections, in random order.
struct Program {
    random: Random,
    rig: Rig,
    srq: Srq,
    pools: Vec<RecvPool>,
    sends: SendPool,
    pair: Pair,
    /// Guards, and the bytes that they had when they came.
    guards: Vec<(RecvBuf, Vec<u8>)>,
    unsent: Option<SendBuf>,
    kept: Vec<DtoCompletion>,
    number: u8,
    received: usize,
}

/// The contents of the message with this number.
fn contents(number: u8) -> Vec<u8> {
    (0..=usize::from(number)).map(|i| number.wrapping_mul(31).wrapping_add(i as u8)).collect()
}

impl Program {
    const DEPTH: u32 = 8;

    fn new(seed: u64) -> Self {
        let rig = Rig::new();
        let (srq, pool, pair) = rig.pooled(Self::DEPTH);
        let sends = SendPool::new(&rig.client.ia, &rig.client.pz, 3, SIZE).unwrap();
        Self {
            random: Random(seed),
            srq,
            pools: vec![pool],
            sends,
            pair,
            guards: vec![],
            unsent: None,
            kept: vec![],
            number: 0,
            received: 0,
            rig,
        }
    }

    fn new_pool(&self) -> RecvPool {
        RecvPool::new(&self.rig.server.ia, &self.rig.server.pz, 4, SIZE).unwrap()
    }

    /// Sends a message. The next buffer from the send pool is overwritten at once; the message may
    /// still be under way.
    fn send(&mut self) {
        let Some(mut buf) = self.unsent.take().or_else(|| self.sends.take()) else { return };
        self.number = (self.number + 1) % 100;
        let bytes = contents(self.number);
        buf[..bytes.len()].copy_from_slice(&bytes);
        match self.sends.send(&mut self.pair.client, buf, bytes.len(), NONE) {
            Ok(()) => self.unsent = self.sends.take(),
            Err((buf, _)) => self.unsent = Some(buf),
        }
        if let Some(next) = &mut self.unsent {
            next.fill(0xee);
        }
    }

    /// Passes the completions in the EVD to every pool.
    fn reap(&mut self) {
        for evd in [&self.rig.client.request, &self.rig.server.recv] {
            let Ok(event) = evd.dequeue() else { continue };
            let Some(dto) = event.data.dto().copied() else { continue };
            self.kept.push(dto);
            self.sends.completed(&dto);
            let mut taken = self.pools.iter_mut().filter_map(|pool| pool.take(&dto));
            let Some(guard) = taken.next() else { continue };
            assert!(taken.next().is_none(), "two pools have taken one completion");
            drop(taken);
            assert_eq!(*guard, *contents(guard.len() as u8 - 1), "a message is not what was sent");
            self.received += 1;
            let bytes = guard.to_vec();
            self.guards.push((guard, bytes));
        }
    }

    fn offer_again(&mut self) {
        if self.kept.is_empty() {
            return;
        }
        let old = self.kept[self.random.below(self.kept.len())];
        assert!(!self.sends.completed(&old));
        assert!(self.pools.iter_mut().all(|pool| pool.take(&old).is_none()));
    }

    fn connect_again(&mut self) {
        let rig = &self.rig;
        let _ended = self.pair.client.disconnect(doorbell::CloseFlags::Abrupt);
        let srq = rig.server.srq(Self::DEPTH as i32);
        let pair = mem::replace(&mut self.pair, {
            let attr = EpAttr::default();
            let (server, client) = (rig.server.srq_ep(&srq, &attr), rig.client.ep(&attr));
            while rig.server.connect.dequeue().is_ok() || rig.client.connect.dequeue().is_ok() {}
            let (psp, qual) = doorbell::Psp::create_any(&rig.server.ia, &rig.server.cr).unwrap();
            client
                .connect(rig.server.ia.address(), qual, Some(LONG), &[], doorbell::Qos::BestEffort)
                .unwrap();
            connection_request(&rig.server.cr).cr.accept(&server, &[]).unwrap();
            for (side, ep) in [(&rig.server, &server), (&rig.client, &client)] {
                // Ends of earlier connections may still come.
                while connection(&side.connect).ep != ep.id() {}
                until("connected", || ep.state() == doorbell::EpState::Connected);
            }
            drop(psp);
            Pair { server, client }
        });
        drop((pair, mem::replace(&mut self.srq, srq)));
        // Buffers on the old SRQ do not come back, so the pools that posted them are replaced.
        let mut new = self.new_pool();
        new.refill(&mut self.srq).unwrap();
        self.pools.push(new);
        self.pools.drain(..self.pools.len().saturating_sub(3));
    }

    fn step(&mut self) {
        match self.random.below(16) {
            0..=4 => self.send(),
            5..=8 => self.reap(),
            9 | 10 => self.offer_again(),
            11 | 12 => {
                for pool in &mut self.pools {
                    let _full = pool.refill(&mut self.srq);
                }
            }
            13 if !self.guards.is_empty() => {
                let at = self.random.below(self.guards.len());
                let (guard, _) = self.guards.swap_remove(at);
                match self.random.below(8) {
                    0 => mem::forget(guard),
                    1 => drop(std::thread::spawn(move || drop(guard)).join()),
                    _ => drop(guard),
                }
            }
            14 if self.random.below(3) == 0 => {
                let new = self.new_pool();
                self.pools.push(new);
                if self.pools.len() > 2 {
                    let at = self.random.below(self.pools.len());
                    let old = self.pools.swap_remove(at);
                    if self.random.below(4) == 0 { mem::forget(old) } else { drop(old) }
                }
            }
            15 => match self.random.below(6) {
                0 => self.connect_again(),
                1 => drop(self.srq.resize(8 + self.random.below(8) as i32)),
                _ => self.reap(),
            },
            _ => {}
        }
        for (guard, bytes) in &self.guards {
            assert_eq!(**guard, **bytes, "bytes have changed under a guard");
        }
        if let Some(unsent) = &self.unsent {
            assert!(
                unsent[SIZE - 100..].iter().all(|&byte| byte == 0xee),
                "a buffer has changed before it was sent"
            );
        }
        let broken = self.pair.client.state() != doorbell::EpState::Connected;
        if broken || self.pair.server.state() != doorbell::EpState::Connected {
            self.connect_again();
        }
    }
}

fn guards_keep_their_bytes_in_random_programs() {
    for seed in [1, 0x9e37_79b9_7f4a_7c15, 0x2545_f491_4f6c_dd1d] {
        let mut program = Program::new(seed);
        // A slow device needs more steps until as many messages have come.
        for step in 0.. {
            if step >= 600 && program.received > 20 {
                break;
            }
            assert!(step < 60_000, "seed {seed:#x}: only {} messages", program.received);
            program.step();
        }
        let Program { guards, .. } = program;
        assert!(guards.iter().all(|(guard, bytes)| **guard == **bytes));
    }
}
