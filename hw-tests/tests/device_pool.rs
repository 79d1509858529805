//! Pools of receive and send buffers: every buffer comes back to its pool exactly once.

use doorbell::{
    CompletionFlags, ConnectionEventKind, DtoCompletion, DtoOp, DtoStatus, EpAttr, Event, Gauges, Lmr,
    MemPriv, PostError, Pz, Received, RecvPool, Refused, Request, RmrTriplet, SendPool, Srq,
};
use doorbell_hw_tests::dat;
use doorbell_hw_tests::rig::*;
use doorbell_hw_tests::{Rig, tests};
use std::time::Duration;

fn main() {
    doorbell_hw_tests::run(tests![
        a_dropped_message_gives_its_buffer_back,
        a_message_is_read_and_dropped_on_another_thread,
        gauges_add_up_wherever_the_buffers_are,
        a_full_queue_keeps_the_rest_of_the_pool_free,
        a_failed_receive_frees_its_buffer,
        flushed_receives_free_their_buffers,
        buffers_come_back_from_a_freed_ep,
        messages_outlive_their_pool,
        messages_outlive_their_ia,
        a_plain_ep_receives_from_a_pool,
        a_write_with_immediate_takes_a_buffer_and_no_bytes,
        an_old_event_gives_no_buffer,
        an_event_of_another_pool_gives_no_buffer,
        send_buffers_come_back,
        send_buffers_come_back_from_a_freed_ep,
        a_refused_send_gives_the_buffer_back,
        pieces_are_sent_in_their_order,
        sends_of_all_sizes_arrive_whole,
        each_send_of_a_pool_is_checked,
        every_operation_works_with_a_pool,
        a_message_is_sent_back_without_a_copy,
        dropped_pools_leave_no_memory_behind,
        a_pool_closes_when_no_buffer_is_out,
        a_wait_for_the_next_message_ends_in_time,
        a_dequeue_takes_what_is_there_and_posts_nothing,
        a_pool_of_nothing_is_refused,
        a_pool_grows_while_its_buffers_are_in_use,
        a_pool_that_cannot_grow_stays_as_it_is,
    ])
    .exit();
}

const NONE: CompletionFlags = CompletionFlags::empty();

fn gauges(pool: &RecvPool, srq: &Srq) -> (usize, usize, usize) {
    let Gauges { posted, out, free, .. } = pool.gauges(srq).unwrap();
    (posted, out, free)
}

/// Four buffers carry many more than four messages, byte for byte, and the program never returns a
/// buffer explicitly.
fn a_dropped_message_gives_its_buffer_back() {
    let rig = Rig::new();
    let (mut srq, mut pool, mut pair) = rig.pooled(4);
    assert_eq!(pool.buffer_size(), SIZE);
    for i in 0..40u8 {
        let bytes: Vec<u8> = (0..usize::from(i) * 6).map(|byte| byte as u8 ^ i).collect();
        rig.send_bytes(&mut pair, &bytes);
        match pool.next_for(&mut srq, &rig.server.recv, LONG).unwrap().expect("an event") {
            Received::Message(message) => {
                assert_eq!(*message, *bytes);
                assert_eq!(message.ep(), pair.server.id());
            }
            other => panic!("{other:?}"),
        }
    }
    pool.refill(&mut srq).unwrap();
    assert_eq!(gauges(&pool, &srq), (4, 0, 0));
}

/// A guard may go to another thread; its buffer comes back from there.
fn a_message_is_read_and_dropped_on_another_thread() {
    let rig = Rig::new();
    let (mut srq, mut pool, mut pair) = rig.pooled(2);
    for round in 0..6u8 {
        rig.send_bytes(&mut pair, &[round; 100]);
        let message = message(&rig.server, &mut pool);
        assert_eq!(gauges(&pool, &srq), (1, 1, 0));
        let sum = std::thread::spawn(move || message.iter().map(|byte| usize::from(*byte)).sum::<usize>());
        assert_eq!(sum.join().unwrap(), 100 * usize::from(round));
        assert_eq!(gauges(&pool, &srq), (1, 0, 1));
        assert_eq!(pool.refill(&mut srq).unwrap(), 1);
    }
    assert_eq!(gauges(&pool, &srq), (2, 0, 0));
}

/// The counts posted, out and free always add up to the whole pool; available and unreaped are
/// those of the SRQ.
fn gauges_add_up_wherever_the_buffers_are() {
    let rig = Rig::new();
    let (mut srq, mut pool, mut pair) = rig.pooled(4);
    for i in 0..3 {
        rig.send_bytes(&mut pair, &[i; 8]);
    }
    until("three messages have arrived", || pool.gauges(&srq).unwrap().unreaped == 3);
    let expected = Gauges { posted: 4, out: 0, free: 0, available: 1, unreaped: 3 };
    assert_eq!(pool.gauges(&srq).unwrap(), expected);
    let first = message(&rig.server, &mut pool);
    let second = message(&rig.server, &mut pool);
    let expected = Gauges { posted: 2, out: 2, free: 0, available: 1, unreaped: 1 };
    assert_eq!(pool.gauges(&srq).unwrap(), expected);
    drop(first);
    let expected = Gauges { posted: 2, out: 1, free: 1, available: 1, unreaped: 1 };
    assert_eq!(pool.gauges(&srq).unwrap(), expected);
    assert_eq!(pool.refill(&mut srq).unwrap(), 1);
    let expected = Gauges { posted: 3, out: 1, free: 0, available: 2, unreaped: 1 };
    assert_eq!(pool.gauges(&srq).unwrap(), expected);
    assert_eq!(*second, [1; 8]);
}

/// A pool may have more buffers than the SRQ has entries: the rest is posted as soon as an event is
/// reaped.
fn a_full_queue_keeps_the_rest_of_the_pool_free() {
    let rig = Rig::new();
    let mut srq = rig.server.srq(2);
    let mut pool = RecvPool::new(&rig.server.ia, &rig.server.pz, 5, SIZE).unwrap();
    assert_eq!(pool.refill(&mut srq).unwrap(), 2);
    assert_eq!(gauges(&pool, &srq), (2, 0, 3));
    let mut pair = rig.connect_srq(&srq);
    rig.send_bytes(&mut pair, b"held");
    let held = message(&rig.server, &mut pool);
    assert_eq!(pool.refill(&mut srq).unwrap(), 1);
    assert_eq!(gauges(&pool, &srq), (2, 1, 2));
    assert_eq!(*held, *b"held");
}

/// A message that is too long fails, and its buffer is free again.
fn a_failed_receive_frees_its_buffer() {
    let rig = Rig::new();
    let (mut srq, mut pool, mut pair) = rig.pooled(2);
    pair.client.send(&[rig.client.lmr.triplet(0, SIZE + 1)]).post().unwrap();
    match pool.next_for(&mut srq, &rig.server.recv, LONG).unwrap().expect("an event") {
        Received::Failed(dto) => assert_eq!((dto.status, dto.ep), (DtoStatus::LocalLength, pair.server.id())),
        other => panic!("{other:?}"),
    }
    assert_eq!(gauges(&pool, &srq), (1, 0, 1));
    assert_eq!(pool.refill(&mut srq).unwrap(), 1);
    // The connection has ended; the SRQ still works.
    assert!(!dto(&rig.client.request).is_success());
    expect_connection(&rig.client.connect, &pair.client, ConnectionEventKind::Broken);
    expect_connection(&rig.server.connect, &pair.server, ConnectionEventKind::Broken);
    drop(pair);
    let mut again = rig.connect_srq(&srq);
    rig.send_bytes(&mut again, b"and on");
    assert_eq!(*message(&rig.server, &mut pool), *b"and on");
}

/// When the connection of a plain EP ends, all its receives are flushed and the pool has them back.
fn flushed_receives_free_their_buffers() {
    let rig = Rig::new();
    let mut ep = rig.server.ep(&EpAttr::default());
    let mut pool = RecvPool::new(&rig.server.ia, &rig.server.pz, 3, SIZE).unwrap();
    assert_eq!(pool.refill(&mut ep).unwrap(), 3);
    let mut pair = rig.connect(ep, rig.client.ep(&EpAttr::default()));
    rig.disconnect(&pair);
    for _ in 0..3 {
        let flushed = dto(&rig.server.recv);
        assert_eq!(flushed.status, DtoStatus::Flushed);
        assert!(pool.take(&flushed).is_none());
    }
    assert_eq!(pool.posted(), 0);
    pair.server.reset().unwrap();
    assert_eq!(pool.refill(&mut pair.server).unwrap(), 3);
}

/// Freeing an EP drops the events of its unreaped messages. The buffers return to the pool, and so
/// do the receives of a plain EP.
fn buffers_come_back_from_a_freed_ep() {
    let rig = Rig::new();
    let (mut srq, mut pool, mut pair) = rig.pooled(4);
    for _ in 0..3 {
        rig.send_bytes(&mut pair, b"never seen");
    }
    until("three messages have arrived", || pool.gauges(&srq).unwrap().unreaped == 3);
    pair.server.close().unwrap();
    assert_eq!(gauges(&pool, &srq), (1, 0, 3));
    assert_eq!(pool.refill(&mut srq).unwrap(), 3);
    assert_eq!(counts(&srq), (4, 4));
    expect_nothing(&rig.server.recv);

    let mut plain = rig.server.ep(&EpAttr::default());
    let mut pool = RecvPool::new(&rig.server.ia, &rig.server.pz, 3, SIZE).unwrap();
    assert_eq!(pool.refill(&mut plain).unwrap(), 3);
    plain.close().unwrap();
    assert_eq!(pool.posted(), 0);
    let mut other = rig.server.ep(&EpAttr::default());
    assert_eq!(pool.refill(&mut other).unwrap(), 3);
}

/// A guard keeps its bytes when the pool is dropped, and when the SRQ goes too.
fn messages_outlive_their_pool() {
    let rig = Rig::new();
    let (srq, mut pool, mut pair) = rig.pooled(2);
    rig.send_bytes(&mut pair, b"still here");
    let message = message(&rig.server, &mut pool);
    drop(pool);
    assert_eq!(*message, *b"still here");
    rig.disconnect(&pair);
    drop((pair, srq));
    assert_eq!(*message, *b"still here");
}

/// A guard keeps its bytes when the IA is closed abruptly; the pool's posts are refused from then
/// on.
fn messages_outlive_their_ia() {
    let rig = Rig::new();
    let (mut srq, mut pool, mut pair) = rig.pooled(2);
    rig.send_bytes(&mut pair, b"still here");
    let message = message(&rig.server, &mut pool);
    let Rig { server, client } = rig;
    drop(server.ia);
    assert_eq!(*message, *b"still here");
    drop(message);
    assert!(matches!(pool.refill(&mut srq), Err(PostError::Stale(_))));
    assert_eq!(pool.gauges(&srq).unwrap_err().code(), dat::INVALID_HANDLE_SRQ);
    drop((pool, srq, pair, client));
}

/// A pool posts to an EP with a receive queue of its own as it does to an SRQ.
fn a_plain_ep_receives_from_a_pool() {
    let rig = Rig::new();
    let mut ep = rig.server.ep(&EpAttr::default());
    let mut pool = RecvPool::new(&rig.server.ia, &rig.server.pz, 2, SIZE).unwrap();
    assert_eq!(pool.refill(&mut ep).unwrap(), 2);
    let mut pair = rig.connect(ep, rig.client.ep(&EpAttr::default()));
    for i in 0..10u8 {
        rig.send_bytes(&mut pair, &[i; 33]);
        match pool.next_for(&mut pair.server, &rig.server.recv, LONG).unwrap().expect("an event") {
            Received::Message(message) => assert_eq!(*message, [i; 33]),
            other => panic!("{other:?}"),
        }
    }
}

/// A write with immediate puts no bytes into the buffer: the message is empty, whatever the length
/// of the write, and has the immediate value.
fn a_write_with_immediate_takes_a_buffer_and_no_bytes() {
    let rig = Rig::new();
    let (srq, mut pool, mut pair) = rig.pooled(2);
    let target = RmrTriplet {
        virtual_address: rig.server.lmr.address(),
        segment_length: 64,
        rmr_context: rig.server.lmr.rmr_context(),
    };
    let local = [rig.client.lmr.triplet(0, 64)];
    pair.client.write(&local).to(target).with_immediate(77).post().unwrap();
    let arrived = dto(&rig.server.recv);
    assert_eq!((arrived.op, arrived.immediate), (DtoOp::ReceiveRdmaWriteImmediate, Some(77)));
    let message = pool.take(&arrived).unwrap();
    assert!(message.is_empty());
    assert_eq!(message.completion().immediate, Some(77));
    assert_eq!(gauges(&pool, &srq), (1, 1, 0));
}

/// An event gives its buffer once: not again while the message is out, nor after the buffer was
/// posted again.
fn an_old_event_gives_no_buffer() {
    let rig = Rig::new();
    let (mut srq, mut pool, mut pair) = rig.pooled(1);
    rig.send_bytes(&mut pair, b"first");
    let old: DtoCompletion = dto(&rig.server.recv);
    let first = pool.take(&old).unwrap();
    assert!(pool.take(&old).is_none());
    drop(first);
    assert!(pool.take(&old).is_none());
    assert_eq!(pool.refill(&mut srq).unwrap(), 1);
    assert!(pool.take(&old).is_none());
    rig.send_bytes(&mut pair, b"second");
    let second = message(&rig.server, &mut pool);
    assert!(pool.take(&old).is_none());
    assert_eq!(*second, *b"second");
    assert_eq!(gauges(&pool, &srq), (0, 1, 0));
}

/// A pool passes on completions that are not its own: another pool's messages, and receives that
/// the program posted itself.
fn an_event_of_another_pool_gives_no_buffer() {
    let rig = Rig::new();
    let (mut srq, mut pool, mut pair) = rig.pooled(1);
    let mut stranger = RecvPool::new(&rig.server.ia, &rig.server.pz, 1, SIZE).unwrap();
    rig.send_bytes(&mut pair, b"mine");
    let event = dto(&rig.server.recv);
    assert!(stranger.take(&event).is_none());
    drop(pool.take(&event).unwrap());

    // The cookie that the pool would use next.
    srq.post_recv(&[rig.server.lmr.triplet(0, 64)], event.cookie + (1 << 32)).unwrap();
    rig.send_bytes(&mut pair, b"the consumer's");
    // The pool's refill posts nothing, as the SRQ is full.
    match pool.next_for(&mut srq, &rig.server.recv, LONG).unwrap().expect("an event") {
        Received::Other(Event::Received(dto)) => assert_eq!(dto.length, 14),
        other => panic!("{other:?}"),
    }
}

/// A sent buffer returns to the pool at its completion. A buffer that is not sent returns when it
/// is dropped.
fn send_buffers_come_back() {
    let rig = Rig::new();
    let (_srq, mut received, mut pair) = rig.pooled(2);
    let mut pool = SendPool::new(&rig.client.ia, &rig.client.pz, 2, SIZE).unwrap();
    assert_eq!(pool.buffer_size(), SIZE);
    let mut one = pool.take().unwrap();
    let two = pool.take().unwrap();
    assert!(pool.take().is_none());
    drop(two);
    one[..3].copy_from_slice(b"one");
    pool.send(one).len(3).post(&mut pair.client).unwrap();
    assert_eq!(pool.posted(), 1);
    let _two = pool.take().unwrap();
    assert!(pool.take().is_none());
    let done = dto(&rig.client.request);
    assert!(done.is_success() && pool.completed(&done));
    assert!(!pool.completed(&done), "an event is good once");
    assert_eq!(pool.posted(), 0);
    assert!(pool.take().is_some());
    assert_eq!(*message(&rig.server, &mut received), *b"one");
}

/// Freeing an EP returns the buffers of its sends, whether under way or completed and not reaped.
fn send_buffers_come_back_from_a_freed_ep() {
    let rig = Rig::patient();
    let (_srq, _received, mut pair) = rig.pooled(1);
    let mut pool = SendPool::new(&rig.client.ia, &rig.client.pz, 3, SIZE).unwrap();
    // One send finds a receive buffer; the others are retried.
    for _ in 0..3 {
        let buf = pool.take().unwrap();
        pool.send(buf).len(8).post(&mut pair.client).unwrap();
    }
    until("one is done", || rig.client.request.query().unwrap().queued >= 1);
    pair.client.close().unwrap();
    expect_nothing(&rig.client.request);
    assert_eq!(pool.posted(), 0);
    let all: Vec<_> = std::iter::from_fn(|| pool.take()).collect();
    assert_eq!(all.len(), 3);
}

/// A post that is refused leaves the buffer, with its bytes, to the caller.
fn a_refused_send_gives_the_buffer_back() {
    let rig = Rig::new();
    let mut pool = SendPool::new(&rig.client.ia, &rig.client.pz, 1, SIZE).unwrap();
    let mut other = SendPool::new(&rig.client.ia, &rig.client.pz, 1, SIZE).unwrap();
    let mut idle = rig.client.ep(&EpAttr::default());
    let mut buf = pool.take().unwrap();
    buf[..4].copy_from_slice(b"kept");
    let Refused { object: buf, error } = pool.send(buf).len(4).post(&mut idle).unwrap_err();
    assert!(matches!(error, PostError::EpState(_)), "{error}");
    let Refused { object: buf, error } = pool.send(buf).len(SIZE + 1).post(&mut idle).unwrap_err();
    assert!(matches!(error, PostError::OutOfBounds(0)), "{error}");
    let Refused { object: buf, error } = pool.send(buf).len(4).suppress().post(&mut idle).unwrap_err();
    assert!(matches!(error, PostError::Flags), "{error}");
    let Refused { object: buf, error } = other.send(buf).len(4).post(&mut idle).unwrap_err();
    assert!(matches!(error, PostError::OutOfBounds(0)), "{error}");
    assert_eq!(buf[..4], *b"kept");
    assert!(pool.take().is_none());
    drop(buf);
    assert!(pool.take().is_some());
    assert!(other.take().is_some());
}

/// The segments of a message may lie anywhere in the buffer; an empty piece is allowed.
fn pieces_are_sent_in_their_order() {
    let rig = Rig::new();
    let (_srq, mut received, mut pair) = rig.pooled(2);
    let mut pool = SendPool::new(&rig.client.ia, &rig.client.pz, 1, SIZE).unwrap();
    let mut buf = pool.take().unwrap();
    buf[..9].copy_from_slice(b"worlds__ ");
    buf[20..25].copy_from_slice(b"hello");
    pool.send_pieces(&mut pair.client, buf, &[20..25, 8..9, 4..4, 0..5], NONE).unwrap();
    assert_eq!(*message(&rig.server, &mut received), *b"hello world");
    assert!(pool.completed(&dto(&rig.client.request)));
}

/// Hundreds of messages of every size, from two pools in turn, with and without flags.
fn sends_of_all_sizes_arrive_whole() {
    let rig = Rig::new();
    let (mut srq, mut received, mut pair) = rig.pooled(4);
    let mut pools = [0; 2].map(|_| SendPool::new(&rig.client.ia, &rig.client.pz, 2, SIZE).unwrap());
    for n in 0..2 * SIZE {
        let (pool, len) = (&mut pools[n / 50 % 2], n % (SIZE + 1));
        let mut buf = pool.take().unwrap();
        let bytes: Vec<u8> = (0..len).map(|byte| (byte + n) as u8).collect();
        buf[..len].copy_from_slice(&bytes);
        let flags = if n % 7 == 3 { CompletionFlags::SOLICITED_WAIT } else { NONE };
        pool.send(buf).len(len).flags(flags).post(&mut pair.client).unwrap();
        assert_eq!(*message(&rig.server, &mut received), *bytes, "message {n}");
        let sent = dto(&rig.client.request);
        assert_eq!((sent.status, sent.length as usize), (DtoStatus::Success, len));
        assert!(pool.completed(&sent) && !pool.completed(&sent));
        received.refill(&mut srq).unwrap();
    }
}

/// After a Send from a pool, later ones are still checked: from a pool in another PZ or of another
/// IA, with flags that the EP does not take, after the end of the connection, and of the IA.
fn each_send_of_a_pool_is_checked() {
    let rig = Rig::new();
    let elsewhere = doorbell::Pz::new(&rig.client.ia).unwrap();
    let (mut srq, mut received, mut pair) = rig.pooled(8);
    let mut pool = SendPool::new(&rig.client.ia, &rig.client.pz, 2, SIZE).unwrap();
    let mut outside = SendPool::new(&rig.client.ia, &elsewhere, 1, SIZE).unwrap();
    let mut foreign = SendPool::new(&rig.server.ia, &rig.server.pz, 1, SIZE).unwrap();
    let send = |pool: &mut SendPool, ep: &mut doorbell::Ep, len, flags| {
        let buf = pool.take().unwrap();
        pool.send(buf).len(len).flags(flags).post(ep).map_err(|refused| refused.error)
    };
    let client = &mut pair.client;
    for _ in 0..3 {
        send(&mut pool, client, 8, NONE).unwrap();
        assert!(pool.completed(&dto(&rig.client.request)));
        drop(message(&rig.server, &mut received));
        let refused = send(&mut outside, client, 8, NONE);
        assert!(matches!(refused, Err(PostError::ProtectionZone(..))), "{refused:?}");
        let refused = send(&mut foreign, client, 8, NONE);
        assert!(matches!(refused, Err(PostError::NoSuchLmr(..))), "{refused:?}");
        assert_eq!(send(&mut pool, client, 8, CompletionFlags::UNSIGNALLED), Err(PostError::Flags));
        assert_eq!(send(&mut pool, client, SIZE + 1, NONE), Err(PostError::OutOfBounds(0)));
    }
    received.refill(&mut srq).unwrap();
    rig.disconnect(&pair);
    send(&mut pool, &mut pair.client, 8, NONE).unwrap();
    let flushed = dto(&rig.client.request);
    assert_eq!(flushed.status, DtoStatus::Flushed);
    assert!(pool.completed(&flushed));
    pair.client.reset().unwrap();
    let refused = send(&mut pool, &mut pair.client, 8, NONE);
    assert!(matches!(refused, Err(PostError::EpState(_))), "{refused:?}");
    let mut pair = rig.connect_srq(&srq);
    for _ in 0..2 {
        send(&mut pool, &mut pair.client, 8, NONE).unwrap();
        assert!(pool.completed(&dto(&rig.client.request)));
    }
    let buf = pool.take().unwrap();
    let Rig { server, client } = rig;
    drop(client.ia);
    let Refused { object: _buf, error } = pool.send(buf).len(8).post(&mut pair.client).unwrap_err();
    assert!(matches!(error, PostError::Stale(_)), "{error}");
    drop((server, pair, received));
}

/// The IA has a table of its pools. Everything of a pool that is dropped leaves it.
fn dropped_pools_leave_no_memory_behind() {
    const POOLS: i64 = 600;
    let side = one_side();
    let make = || (0..POOLS).for_each(|_| drop(RecvPool::new(&side.ia, &side.pz, 1, 64).unwrap()));
    // Tables grow once. The process's list of what a child of a fork disowns is tidied now and then
    // only, so it keeps some pools for a while: as many as all tests have at that time.
    make();
    let left = allocation_counter::measure(make).count_current;
    assert!(left < POOLS / 2, "{left} allocations left after {POOLS} pools");
}

/// A pool has a buffer at least, and its buffers have a byte at least and less than 4 GiB: else
/// INVALID_PARAMETER (ARG3).
fn a_pool_of_nothing_is_refused() {
    let side = one_side();
    for (buffers, size) in [(0, 64), (1, 0), (0, 0), (1, 1 << 32)] {
        let receives = RecvPool::new(&side.ia, &side.pz, buffers, size).map(drop);
        let sends = SendPool::new(&side.ia, &side.pz, buffers, size).map(drop);
        assert_eq!(
            (code(receives), code(sends)),
            (dat::INVALID_ARG3, dat::INVALID_ARG3),
            "{buffers}, {size}"
        );
    }
}

/// RDMA Writes, Reads and atomics, single and behind a chain, from and into buffers of a pool: the
/// bytes move, and each completion gives its buffer back. A Read of more than the buffer holds is
/// refused.
fn every_operation_works_with_a_pool() {
    let rig = Rig::new();
    let (_srq, mut received, mut pair) = rig.pooled(4);
    let atomic = all_privileges() | MemPriv::REMOTE_ATOMIC;
    let there = Lmr::builder(&rig.server.ia, &rig.server.pz).privileges(atomic).allocate(4096).unwrap();
    let remote = |offset: usize, len: u32| RmrTriplet {
        virtual_address: there.address() + offset as u64,
        segment_length: len,
        rmr_context: there.rmr_context(),
    };
    let mut pool = SendPool::new(&rig.client.ia, &rig.client.pz, 2, SIZE).unwrap();
    let ep = &mut pair.client;
    let done = |pool: &mut SendPool, op: DtoOp| {
        let dto = dto(&rig.client.request);
        assert_eq!((dto.op, dto.status), (op, DtoStatus::Success));
        pool.take_done(&dto).expect("the buffer")
    };
    // Twice: the first request of a pool makes all checks, the next ones are fast.
    for round in 0..3_u8 {
        let mut buf = pool.take().unwrap();
        buf.fill(round + 1);
        pool.write(buf).len(100).to(remote(8, 100)).post(ep).unwrap();
        drop(done(&mut pool, DtoOp::RdmaWrite));
        let buf = pool.take().unwrap();
        pool.read(buf).len(102).from(remote(7, 102)).post(ep).unwrap();
        assert_eq!(pool.posted(), 1);
        let buf = done(&mut pool, DtoOp::RdmaRead);
        assert_eq!(buf[1..101], [round + 1; 100]);
        assert_eq!((buf[101], pool.posted()), (0, 0));
        let refused = pool.read(buf).len(10).from(remote(0, 11)).post(ep).unwrap_err();
        assert_eq!(refused.error, PostError::Length);
        let refused = pool.write(refused.object).len(12).to(remote(0, 11)).post(ep).unwrap_err();
        assert_eq!(refused.error, PostError::Length);
        let buf = refused.object;
        if rig.client.ia.attributes().atomics {
            pool.fetch_add(buf, 5).at(remote(1024, 8)).post(ep).unwrap();
            let buf = done(&mut pool, DtoOp::FetchAndAdd);
            assert_eq!(buf[..8], (5 * u64::from(round)).to_ne_bytes());
            let (now, next) = (5 * u64::from(round + 1), 5 * u64::from(round + 1));
            pool.compare_swap(buf, now, next).at(remote(1024, 8)).post(ep).unwrap();
            let buf = done(&mut pool, DtoOp::CompareAndSwap);
            assert_eq!(buf[..8], now.to_ne_bytes());
        }
        // A Write with immediate data behind another request of a chain.
        let mut buf = pool.take().unwrap();
        buf[..4].copy_from_slice(b"last");
        let first = rig.client.lmr.triplet(0, 8);
        let first = Request::write(&first).to(remote(2048, 8)).suppress().into();
        pool.write(buf).len(4).to(remote(3000, 4)).with_immediate(9).post_after(ep, &[first]).unwrap();
        drop(done(&mut pool, DtoOp::RdmaWriteImmediate));
        let notification = message(&rig.server, &mut received);
        assert_eq!((notification.completion().immediate, notification.len()), (Some(9), 0));
        let mut written = [0; 4];
        there.read(3000, &mut written).unwrap();
        assert_eq!(written, *b"last");
    }
}

/// A pool is closed when no buffer of it is out; its PZ is free then.
fn a_pool_closes_when_no_buffer_is_out() {
    let rig = Rig::new();
    let pz = Pz::new(&rig.server.ia).unwrap();
    let mut srq = Srq::builder(&rig.server.ia, &pz).depth(4).build().unwrap();
    let mut pool = RecvPool::new(&rig.server.ia, &pz, 4, SIZE).unwrap();
    pool.refill(&mut srq).unwrap();
    srq.close().unwrap();
    pool.close().unwrap();
    let (_srq, mut pool, mut pair) = rig.pooled(2);
    rig.send_bytes(&mut pair, b"out");
    let out = message(&rig.server, &mut pool);
    let refused = pool.close().unwrap_err();
    assert_eq!(code(Err::<(), _>(refused.error)), dat::INVALID_STATE);
    drop(out);
    refused.object.close().unwrap();
    let mut sends = SendPool::new(&rig.server.ia, &pz, 1, SIZE).unwrap();
    let buffer = sends.take().unwrap();
    let refused = sends.close().unwrap_err();
    assert_eq!(code(Err::<(), _>(refused.error)), dat::INVALID_STATE);
    drop(buffer);
    refused.object.close().unwrap();
    pz.close().unwrap();
}

fn a_wait_for_the_next_message_ends_in_time() {
    let rig = Rig::new();
    let (mut srq, mut pool, mut pair) = rig.pooled(4);
    let mut next = |time| pool.next_for(&mut srq, &rig.server.recv, time).unwrap();
    assert!(next(SHORT).is_none());
    rig.send_bytes(&mut pair, b"late");
    assert!(matches!(next(LONG), Some(Received::Message(message)) if *message == *b"late"));
    assert!(next(Duration::ZERO).is_none());
}

/// All messages are taken, also when their buffers are free again and few are posted.
fn a_dequeue_takes_what_is_there_and_posts_nothing() {
    let rig = Rig::new();
    let (mut srq, mut pool, mut pair) = rig.pooled(4);
    assert!(pool.dequeue(&rig.server.recv).unwrap().is_none());
    for round in 0..6_u8 {
        (0..4).for_each(|n| rig.send_bytes(&mut pair, &[round, n]));
        let mut taken = 0;
        until("four messages", || {
            if let Some(received) = pool.dequeue(&rig.server.recv).unwrap() {
                assert!(matches!(received, Received::Message(message) if *message == [round, taken]));
                taken += 1;
            }
            taken == 4
        });
        assert_eq!(gauges(&pool, &srq), (0, 0, 4));
        assert_eq!(pool.refill(&mut srq).unwrap(), 4);
    }
    rig.disconnect(&pair);
}

/// The server sends each message back from the buffer in which it has come. Its buffers and those
/// of the echoes are all posted again at the end.
fn a_message_is_sent_back_without_a_copy() {
    let rig = Rig::new();
    let (mut srq, mut pool, mut pair) = rig.pooled(4);
    let mut echoes = RecvPool::new(&rig.client.ia, &rig.client.pz, 4, SIZE).unwrap();
    echoes.refill(&mut pair.client).unwrap();
    for round in 0..20_u8 {
        let bytes = vec![round; 7 * usize::from(round)];
        rig.send_bytes(&mut pair, &bytes);
        let got = message(&rig.server, &mut pool);
        pool.send(got).post(&mut pair.server).unwrap();
        let event = pool.next_for(&mut srq, &rig.server.request, LONG).unwrap().expect("an event");
        assert!(matches!(event, Received::Other(Event::Done(_))), "{event:?}");
        assert_eq!(*message(&rig.client, &mut echoes), *bytes);
        echoes.refill(&mut pair.client).unwrap();
    }
    rig.send_bytes(&mut pair, b"to another pool");
    let got = message(&rig.server, &mut pool);
    let refused = echoes.send(got).post(&mut pair.server).unwrap_err();
    assert_eq!((refused.error, &*refused.object), (PostError::OutOfBounds(0), &b"to another pool"[..]));
    drop(refused);
    pool.refill(&mut srq).unwrap();
    assert_eq!(gauges(&pool, &srq), (4, 0, 0));
}

/// A pool of two grows to four, with a deeper SRQ, and to seven. All buffers take messages, those
/// that were out or posted before as well, and messages are sent back from old and new ones.
fn a_pool_grows_while_its_buffers_are_in_use() {
    let rig = Rig::new();
    let (mut srq, mut pool, mut pair) = rig.pooled(2);
    rig.send_bytes(&mut pair, b"before");
    let before = message(&rig.server, &mut pool);
    pool.grow(&mut srq, 2).unwrap();
    assert_eq!((pool.buffers(), srq.query().unwrap().depth), (4, 4));
    assert_eq!(gauges(&pool, &srq), (1, 1, 2));
    assert_eq!(pool.refill(&mut srq).unwrap(), 2);
    pool.grow(&mut srq, 3).unwrap();
    assert_eq!(pool.refill(&mut srq).unwrap(), 3);
    assert_eq!(gauges(&pool, &srq), (6, 1, 0));
    let mut out: Vec<_> = (0..6_u8)
        .map(|n| {
            rig.send_bytes(&mut pair, &[n; 40]);
            message(&rig.server, &mut pool)
        })
        .collect();
    assert_eq!(gauges(&pool, &srq), (0, 7, 0));
    assert!(out.iter().zip(0..).all(|(message, n)| **message == [n; 40]));
    let refused = pool.close().unwrap_err();
    assert_eq!(refused.error.code(), dat::INVALID_STATE);
    pool = refused.object;
    assert_eq!(*before, *b"before");
    out.push(before);
    let mut echoes = RecvPool::new(&rig.client.ia, &rig.client.pz, 7, SIZE).unwrap();
    echoes.refill(&mut pair.client).unwrap();
    for message in out.drain(..) {
        pool.send(message).post(&mut pair.server).unwrap();
    }
    for n in 0..6_u8 {
        assert_eq!(*self::message(&rig.client, &mut echoes), [n; 40]);
        assert!(pool.take(&dto(&rig.server.request)).is_none());
    }
    assert_eq!(*self::message(&rig.client, &mut echoes), *b"before");
    assert!(pool.take(&dto(&rig.server.request)).is_none());
    assert_eq!(gauges(&pool, &srq), (0, 0, 7));
    // `next` refills all of it.
    let mut next = || pool.next_for(&mut srq, &rig.server.recv, SHORT).unwrap();
    assert!(next().is_none());
    for n in 0..30_u8 {
        rig.send_bytes(&mut pair, &[n; 8]);
        assert!(matches!(next(), Some(Received::Message(message)) if *message == [n; 8]));
    }
    drop(pair);
    drop(srq);
    pool.close().unwrap();
}

fn a_pool_that_cannot_grow_stays_as_it_is() {
    let rig = Rig::new();
    let (mut srq, mut pool, mut pair) = rig.pooled(2);
    let most = rig.server.ia.attributes().max_srq_depth;
    for (more, expected) in [(0, dat::INVALID_ARG3), (most, dat::INVALID_ARG2), (u32::MAX, dat::INVALID_ARG2)]
    {
        assert_eq!(code(pool.grow(&mut srq, more)), expected, "{more}");
        assert_eq!((pool.buffers(), srq.query().unwrap().depth), (2, 2));
        assert_eq!(gauges(&pool, &srq), (2, 0, 0));
    }
    rig.send_bytes(&mut pair, b"still");
    assert_eq!(*message(&rig.server, &mut pool), *b"still");
}
