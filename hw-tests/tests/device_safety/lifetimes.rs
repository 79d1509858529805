//! Objects that are dropped, forgotten or modified too early, and pools that end.

use crate::*;
use doorbell::{
    ConnectOptions, Ep, EpAttr, EvdFlags, MemPriv, PostError, RecvBuf, RecvPool, Refused, Rmr, RmrBind,
    RmrScope, SendPool, VaType,
};
use doorbell_hw_tests::rig::*;
use doorbell_hw_tests::{Pair, Rig, Side, Test, tests};
use std::any::Any;
use std::process::Command;
use std::{fs, mem};

pub(crate) const TESTS: &[Test] = tests![
    a_bind_that_nobody_hears_of_frees_no_buffer,
    memory_goes_with_the_last_guard,
    memory_that_the_device_keeps_stays_mapped,
    guards_outlive_everything_in_any_order,
    forgotten_objects_take_no_buffer_of_others_along,
    a_panicking_reader_gives_its_buffer_back,
    a_plain_ep_that_is_modified_keeps_buffers_apart,
    an_evd_that_overflows_gives_no_buffer_back_twice,
    pieces_from_elsewhere_are_refused,
];

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
pub(crate) fn memory_of_a_pool_stays_or_goes(stays: bool) {
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

/// Calls [`memory_of_a_pool_stays_or_goes`] in a process of its own. In this process, other tests may
/// map new memory at the address of the freed pool.
fn in_a_process(stays: bool, faults: &str) {
    let mut alone = Command::new(std::env::current_exe().unwrap());
    let output = alone.env(POOL_STAYS, stays.to_string()).env("MLX5_EMU_FAULTS", faults).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn memory_goes_with_the_last_guard() {
    in_a_process(false, "");
}

/// A device that refuses to deregister memory may still write it: the pages must not be reused.
fn memory_that_the_device_keeps_stays_mapped() {
    in_a_process(true, "cmd.dereg_mr=16*0");
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
            let _sent = sender.send(&[client.lmr.triplet(4096, SIZE)]).post();
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
        sends.send(buf).len(1).post(&mut pair.client).unwrap();
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
    let mut srq = rig.server.srq(POOLS as u32 + 1);
    let rmrs: Vec<_> = (0..POOLS / 4).map(|_| Rmr::new(&rig.server.pz, RmrScope::Pz).unwrap()).collect();
    let mut pools: Vec<_> =
        (0..POOLS).map(|_| RecvPool::new(&rig.server.ia, &rig.server.pz, 1, 64).unwrap()).collect();
    for pool in &mut pools {
        assert_eq!(pool.refill(&mut srq).unwrap(), 1);
    }
    for mut rmr in rmrs {
        let evds = doorbell::inside::EpEvds {
            request: Some(&doorbell::Evd::new(&rig.server.ia, 8, EvdFlags::DTO).unwrap()),
            ..rig.server.evds()
        };
        let attr = EpAttr::default();
        let ep = Ep::builder(&rig.server.ia, &rig.server.pz)
            .evds(evds)
            .srq(&srq)
            .attributes(&attr)
            .build()
            .unwrap();
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
        pair.server.close().unwrap();
        while !connection(&rig.client.connect).kind.is_end() {}
    }
    assert!(pools.iter().all(|pool| pool.posted() == 1));
}

/// A plain EP identifies its receives by their order. Whatever happens to the EP before and after
/// connections, no buffer has two owners, and each message is in its own guard.
fn a_plain_ep_that_is_modified_keeps_buffers_apart() {
    const BUFFERS: u32 = 4;
    let rig = Rig::new();
    let attr = EpAttr { recv_depth: 8, ..EpAttr::default() };
    let mut ep = rig.server.ep(&attr);
    let mut pool = RecvPool::new(&rig.server.ia, &rig.server.pz, BUFFERS, SIZE).unwrap();
    let mut guards: Vec<(RecvBuf, u8)> = vec![];
    let mut kept = vec![];
    for round in 0..6u8 {
        assert_eq!(pool.refill(&mut ep).unwrap() + guards.len(), BUFFERS as usize);
        // Nothing listens there, so that all posted receives are flushed; then the EP is reset.
        let psp = doorbell::Psp::builder(&rig.server.ia, &rig.server.cr).build().unwrap();
        let nowhere = psp.port();
        drop(psp);
        ep.connect_with((rig.server.ia.address(), nowhere).into(), ConnectOptions::new().timeout(LONG))
            .unwrap();
        assert_eq!(connection(&rig.server.connect).ep, ep.id());
        ep.reset().unwrap();
        while let Ok(Some(event)) = rig.server.recv.dequeue() {
            let flushed = *event.completion().unwrap();
            assert!(pool.take(&flushed).is_none(), "a flushed receive is no message");
            kept.push(flushed);
        }
        assert_eq!(pool.posted(), 0);
        // The receives are posted before the EP gets another QP, one more in each round.
        assert_eq!(pool.refill(&mut ep).unwrap() + guards.len(), BUFFERS as usize);
        let change = doorbell::EpChange { recv_depth: Some(64 << round), ..doorbell::EpChange::default() };
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
        while let Ok(Some(event)) = rig.server.recv.dequeue() {
            kept.extend(event.completion().inspect(|dto| assert!(pool.take(dto).is_none())));
        }
        while rig.client.request.dequeue().unwrap().is_some() || rig.client.recv.dequeue().unwrap().is_some()
        {
        }
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
    let small = doorbell::Evd::new(&rig.server.ia, 1, EvdFlags::DTO).unwrap();
    let room = small.query().unwrap().depth as usize;
    let buffers = room + 4;
    let mut srq = rig.server.srq(buffers as u32);
    let mut pool = RecvPool::new(&rig.server.ia, &rig.server.pz, buffers as u32, SIZE).unwrap();
    assert_eq!(pool.refill(&mut srq).unwrap(), buffers);
    let evds = doorbell::inside::EpEvds { recv: Some(&small), ..rig.server.evds() };
    let ep = Ep::builder(&rig.server.ia, &rig.server.pz).evds(evds).srq(&srq).build().unwrap();
    let mut pair = rig.connect(ep, rig.client.ep(&EpAttr::default()));
    for i in 0..buffers {
        rig.send_bytes(&mut pair, &[i as u8; SIZE]);
    }
    let mut guards = vec![];
    let mut kept = vec![];
    // All completions are harvested at once, and only a part of them fits into the EVD.
    until("all messages are here", || srq.query().unwrap().available == 0);
    assert!(small.query().unwrap().queued <= room);
    while let Ok(Some(event)) = small.dequeue() {
        let dto = *event.completion().unwrap();
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
        let _taken = small.dequeue().unwrap().and_then(|event| pool.take(event.completion()?));
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
            let Refused { object: back, error } = refused.expect_err("a piece from elsewhere was sent");
            assert!(matches!(error, PostError::OutOfBounds(_)), "{pieces:?}: {error:?}");
            buf = back;
        }
    }
    for len in [SIZE + 1, 1 << 32, (1 << 32) + 4, usize::MAX] {
        let Refused { object: back, error } =
            pool.send(buf).len(len).post(&mut pair.client).expect_err("too long");
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
