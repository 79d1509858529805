//! Buffers of pools that peers use through memory windows: no peer changes the bytes of a buffer
//! that the program has.

use doorbell::{
    CloseFlags, CompletionFlags, ConnectionEventKind, DtoOp, DtoStatus, Ep, EpAttr, Ia, MemPriv, PostError,
    Pz, Rmr, RmrScope, RmrTriplet, SendBuf, SendPool, WindowBuf,
};
use doorbell_hw_tests::dat;
use doorbell_hw_tests::rig::*;
use doorbell_hw_tests::{Pair, Rig, Test, tests};

pub(crate) const TESTS: &[Test] = tests![
    a_peer_reads_and_writes_a_buffer_until_the_unbind,
    atomics_reach_a_buffer,
    a_message_that_invalidates_a_window_ends_it,
    an_old_invalidation_does_not_end_a_later_window,
    a_closed_window_is_over_at_once,
    a_dropped_window_returns_its_buffer,
    nothing_beside_an_open_buffer_is_reached,
    a_bind_that_waits_keeps_the_buffer,
    the_end_of_an_ep_takes_a_waiting_bind_back,
    a_dropped_bind_that_waits_loses_the_buffer,
    windows_end_with_their_ep_or_by_close,
    windows_of_a_closed_ia_return_their_buffers,
    a_refused_window_gives_both_back,
    reads_into_a_pool_by_the_key_of_a_window_are_refused,
];

/// A pair, and a pool of the server.
fn lender(rig: &Rig, buffers: u32) -> (Pair, SendPool) {
    let pair = rig.connect_plain(&EpAttr::default());
    (pair, SendPool::new(&rig.server.ia, &rig.server.pz, buffers, SIZE).unwrap())
}

fn rw() -> MemPriv {
    MemPriv::REMOTE_READ | MemPriv::REMOTE_WRITE
}

fn rmr(rig: &Rig, scope: RmrScope) -> Rmr {
    Rmr::new(&rig.server.pz, scope).unwrap()
}

/// Opens all of a buffer of the server, and waits for the event of the bind.
#[track_caller]
fn open(rig: &Rig, pair: &mut Pair, rmr: Rmr, buf: SendBuf) -> WindowBuf {
    let window = rmr.open(buf).privileges(rw()).cookie(11).post(&mut pair.server).unwrap();
    let event = bound(&rig.server.request);
    assert_eq!((event.rmr, event.cookie, event.status), (window.rmr(), 11, DtoStatus::Success));
    window
}

/// `len` bytes of this memory of the peer from `offset` on.
fn part(of: RmrTriplet, offset: i64, len: u32) -> RmrTriplet {
    RmrTriplet { virtual_address: of.virtual_address.wrapping_add_signed(offset), segment_length: len, ..of }
}

#[track_caller]
fn write(rig: &Rig, pair: &mut Pair, bytes: &[u8], to: RmrTriplet) -> DtoStatus {
    rig.client.lmr.write(0, bytes).unwrap();
    pair.client.write(&rig.client.lmr.triplet(0, bytes.len())).to(to).post().unwrap();
    dto(&rig.client.request).status
}

/// The client reads; `None` if that fails.
#[track_caller]
fn read(rig: &Rig, pair: &mut Pair, from: RmrTriplet) -> Option<Vec<u8>> {
    let len = from.segment_length as usize;
    pair.client.read(&rig.client.lmr.triplet(4096, len)).from(from).post().unwrap();
    if !dto(&rig.client.request).is_success() {
        return None;
    }
    let mut bytes = vec![0; len];
    rig.client.lmr.read(4096, &mut bytes).unwrap();
    Some(bytes)
}

#[track_caller]
fn not_over(window: WindowBuf) -> WindowBuf {
    let refused = window.finish().unwrap_err();
    assert_eq!(refused.error.code(), dat::INVALID_STATE);
    refused.object
}

fn a_peer_reads_and_writes_a_buffer_until_the_unbind() {
    for scope in [RmrScope::Pz, RmrScope::Ep] {
        let rig = Rig::new();
        let (mut pair, mut pool) = lender(&rig, 2);
        let mut rmr = rmr(&rig, scope);
        // The RMR and the region of the buffer serve several windows.
        for round in 1..4_u8 {
            let mut buf = pool.take().unwrap();
            buf.fill(round);
            let window = rmr.open(buf).bytes(8..108).privileges(rw()).suppress();
            let mut window = window.post(&mut pair.server).unwrap();
            // A message behind the bind would tell the peer.
            let remote = window.remote();
            assert_eq!(remote.segment_length, 100);
            until("the bind is done", || pair.server.status().unwrap().requests == 0);
            assert_eq!(read(&rig, &mut pair, remote).unwrap(), [round; 100]);
            assert_eq!(write(&rig, &mut pair, b"from the peer", part(remote, 50, 13)), DtoStatus::Success);
            window.write(8, b"from here").unwrap();
            assert_eq!(read(&rig, &mut pair, part(remote, 0, 9)).unwrap(), *b"from here");
            let mut bytes = [0; 13];
            window.read(58, &mut bytes).unwrap();
            assert_eq!(bytes, *b"from the peer");
            window = not_over(window);
            let quiet = window.unbind().suppress().post(&mut pair.server);
            assert_eq!(code(quiet), dat::INVALID_ARG8);
            window.unbind().cookie(12).post(&mut pair.server).unwrap();
            window = not_over(window);
            let event = bound(&rig.server.request);
            assert_eq!((event.cookie, event.status), (12, DtoStatus::Success));
            let (buf, unbound) = window.finish().unwrap();
            assert_eq!(
                (&buf[..8], &buf[8..17], &buf[58..71]),
                (&[round; 8][..], &b"from here"[..], &bytes[..])
            );
            rmr = unbound;
            if round == 3 {
                assert_eq!(write(&rig, &mut pair, b"late", part(remote, 0, 4)), DtoStatus::RemoteAccess);
            }
            assert_eq!(buf[8..17], *b"from here");
        }
    }
}

fn atomics_reach_a_buffer() {
    let rig = Rig::new();
    let (mut pair, mut pool) = lender(&rig, 1);
    let mut buf = pool.take().unwrap();
    buf[..8].copy_from_slice(&40_u64.to_ne_bytes());
    let rmr = rmr(&rig, RmrScope::Ep);
    let window = rmr.open(buf).privileges(MemPriv::REMOTE_ATOMIC).post(&mut pair.server).unwrap();
    assert_eq!(bound(&rig.server.request).status, DtoStatus::Success);
    let old = rig.client.lmr.triplet(0, 8);
    pair.client.fetch_add(&old, 2).at(part(window.remote(), 0, 8)).post().unwrap();
    assert_eq!(dto(&rig.client.request).status, DtoStatus::Success);
    let buf = window.close().unwrap();
    assert_eq!(buf[..8], 42_u64.to_ne_bytes());
}

/// The client sends a message that invalidates this window, and the server takes its event.
#[track_caller]
fn invalidate(rig: &Rig, pair: &mut Pair, remote: RmrTriplet) {
    post_invalidation(rig, pair, remote);
    let message = dto(&rig.server.recv);
    assert_eq!((message.op, message.invalidated), (DtoOp::ReceiveWithInvalidate, Some(remote.rmr_context)));
}

#[track_caller]
fn post_invalidation(rig: &Rig, pair: &mut Pair, remote: RmrTriplet) {
    pair.server.post_recv(&[rig.server.lmr.triplet(0, 64)], 3, CompletionFlags::empty()).unwrap();
    let message = rig.client.lmr.triplet(0, 4);
    pair.client.send(&message).with_invalidate(remote.rmr_context).post().unwrap();
    assert_eq!(dto(&rig.client.request).status, DtoStatus::Success);
}

fn a_message_that_invalidates_a_window_ends_it() {
    let rig = Rig::new();
    let (mut pair, mut pool) = lender(&rig, 1);
    let mut rmr = rmr(&rig, RmrScope::Ep);
    for round in 0..3_u8 {
        let window = open(&rig, &mut pair, rmr, pool.take().unwrap());
        let remote = window.remote();
        assert_eq!(write(&rig, &mut pair, &[round; SIZE], remote), DtoStatus::Success);
        let window = not_over(window);
        invalidate(&rig, &mut pair, remote);
        let (buf, unbound) = window.finish().unwrap();
        assert_eq!(*buf, [round; SIZE]);
        rmr = unbound;
        if round == 2 {
            assert_eq!(write(&rig, &mut pair, &[9; SIZE], remote), DtoStatus::RemoteAccess);
            assert_eq!(*buf, [round; SIZE]);
        }
    }
}

/// The keys of a window repeat after 256 binds. The event of an invalidation that the program takes
/// only then does not concern the new window of this key.
fn an_old_invalidation_does_not_end_a_later_window() {
    let rig = Rig::new();
    let (mut pair, mut pool) = lender(&rig, 1);
    let window = open(&rig, &mut pair, rmr(&rig, RmrScope::Ep), pool.take().unwrap());
    let old = window.remote().rmr_context;
    post_invalidation(&rig, &mut pair, window.remote());
    // The event waits in the EVD.
    until("the message is queued", || rig.server.recv.query().unwrap().queued == 1);
    let (mut buf, mut rmr) = window.finish().unwrap();
    let last = loop {
        let mut window = open(&rig, &mut pair, rmr, buf);
        if window.remote().rmr_context == old {
            break window;
        }
        window.unbind().post(&mut pair.server).unwrap();
        assert_eq!(bound(&rig.server.request).status, DtoStatus::Success);
        (buf, rmr) = window.finish().unwrap();
    };
    assert_eq!(dto(&rig.server.recv).invalidated, Some(old));
    let last = not_over(last);
    assert_eq!(write(&rig, &mut pair, b"open", part(last.remote(), 0, 4)), DtoStatus::Success);
    assert_eq!(last.close().unwrap()[..4], *b"open");
}

fn a_closed_window_is_over_at_once() {
    for scope in [RmrScope::Pz, RmrScope::Ep] {
        let rig = Rig::new();
        let (mut pair, mut pool) = lender(&rig, 1);
        let window = open(&rig, &mut pair, rmr(&rig, scope), pool.take().unwrap());
        let remote = window.remote();
        assert_eq!(write(&rig, &mut pair, b"good", part(remote, 0, 4)), DtoStatus::Success);
        let buf = window.close().unwrap();
        assert_eq!(write(&rig, &mut pair, b"dead", part(remote, 0, 4)), DtoStatus::RemoteAccess);
        assert_eq!(buf[..4], *b"good");
    }
}

fn a_dropped_window_returns_its_buffer() {
    let rig = Rig::new();
    let (mut pair, mut pool) = lender(&rig, 1);
    for scope in [RmrScope::Pz, RmrScope::Ep] {
        let window = open(&rig, &mut pair, rmr(&rig, scope), pool.take().unwrap());
        assert!(pool.take().is_none());
        drop(window);
        assert!(pool.take().is_some());
    }
    // A pool may go before its window.
    let window = open(&rig, &mut pair, rmr(&rig, RmrScope::Pz), pool.take().unwrap());
    drop(pool);
    assert_eq!(write(&rig, &mut pair, b"last", part(window.remote(), 0, 4)), DtoStatus::Success);
    assert_eq!(window.close().unwrap()[..4], *b"last");
}

/// A peer gets nothing of the buffers before and behind, although they are in the same page.
fn nothing_beside_an_open_buffer_is_reached() {
    for scope in [RmrScope::Pz, RmrScope::Ep] {
        for outside in [-1, SIZE as i64] {
            let rig = Rig::new();
            let (mut pair, mut pool) = lender(&rig, 3);
            let mut bufs: Vec<_> = std::iter::from_fn(|| pool.take()).collect();
            bufs.iter_mut().for_each(|buf| buf.fill(1));
            let window = open(&rig, &mut pair, rmr(&rig, scope), bufs.remove(1));
            let target = part(window.remote(), outside, 1);
            assert_eq!(write(&rig, &mut pair, b"x", target), DtoStatus::RemoteAccess);
            assert!(bufs.iter().all(|buf| **buf == [1; SIZE]));
            assert_eq!(*window.close().unwrap(), [1; SIZE]);
        }
    }
}

/// A server whose Send waits for a receive of its peer, and whose bind waits for the Send.
fn with_waiting_bind() -> (Rig, Pair, SendPool, WindowBuf) {
    let rig = Rig::patient();
    let (mut pair, mut pool) = lender(&rig, 1);
    pair.server.send(&rig.server.lmr.triplet(0, 8)).post().unwrap();
    let rmr = rmr(&rig, RmrScope::Ep);
    let window = rmr.open(pool.take().unwrap()).privileges(rw()).suppress();
    let window = window.post(&mut pair.server).unwrap();
    (rig, pair, pool, window)
}

fn a_bind_that_waits_keeps_the_buffer() {
    let (rig, mut pair, _pool, window) = with_waiting_bind();
    let refused = window.close().unwrap_err();
    assert_eq!(refused.error.code(), dat::INVALID_STATE);
    let window = not_over(refused.object);
    // A receive lets the Send and the bind be executed.
    pair.client.post_recv(&[rig.client.lmr.triplet(0, 64)], 0, CompletionFlags::empty()).unwrap();
    assert!(dto(&rig.server.request).is_success());
    until("the bind is done", || pair.server.status().unwrap().requests == 0);
    assert_eq!(write(&rig, &mut pair, b"open", part(window.remote(), 0, 4)), DtoStatus::Success);
    assert_eq!(window.close().unwrap()[..4], *b"open");
}

fn the_end_of_an_ep_takes_a_waiting_bind_back() {
    let (_rig, pair, mut pool, window) = with_waiting_bind();
    drop(pair.server);
    drop(window.close().unwrap());
    assert!(pool.take().is_some());
}

fn a_dropped_bind_that_waits_loses_the_buffer() {
    let (rig, mut pair, mut pool, window) = with_waiting_bind();
    drop(window);
    assert!(pool.take().is_none());
    pair.client.post_recv(&[rig.client.lmr.triplet(0, 64)], 0, CompletionFlags::empty()).unwrap();
    drop(pair);
    assert!(pool.take().is_none());
}

fn windows_end_with_their_ep_or_by_close() {
    let rig = Rig::new();
    let (mut pair, mut pool) = lender(&rig, 2);
    let of_ep = open(&rig, &mut pair, rmr(&rig, RmrScope::Ep), pool.take().unwrap());
    let mut of_pz = open(&rig, &mut pair, rmr(&rig, RmrScope::Pz), pool.take().unwrap());
    let mut other = rig.connect_plain(&EpAttr::default());
    assert_eq!(code(of_pz.unbind().post(&mut other.server)), dat::INVALID_ARG2);
    pair.client.disconnect(CloseFlags::Abrupt).unwrap();
    expect_connection(&rig.server.connect, &pair.server, ConnectionEventKind::Disconnected);
    expect_connection(&rig.client.connect, &pair.client, ConnectionEventKind::Disconnected);
    // A flushed unbind unbinds nothing.
    of_pz.unbind().post(&mut pair.server).unwrap();
    assert_eq!(bound(&rig.server.request).status, DtoStatus::Flushed);
    let of_pz = not_over(of_pz);
    let remote = of_pz.remote();
    assert_eq!(write(&rig, &mut other, b"open", part(remote, 0, 4)), DtoStatus::Success);
    let of_ep = not_over(of_ep);
    drop(pair.server);
    let (_buf, _rmr) = of_ep.finish().unwrap();
    let of_pz = not_over(of_pz);
    assert_eq!(write(&rig, &mut other, b"more", part(remote, 0, 4)), DtoStatus::Success);
    let buf = of_pz.close().unwrap();
    assert_eq!(write(&rig, &mut other, b"dead", part(remote, 0, 4)), DtoStatus::RemoteAccess);
    assert_eq!(buf[..4], *b"more");
}

fn windows_of_a_closed_ia_return_their_buffers() {
    let rig = Rig::new();
    let (mut pair, mut pool) = lender(&rig, 3);
    let mut windows: Vec<_> = [RmrScope::Pz, RmrScope::Ep, RmrScope::Ep]
        .map(|scope| open(&rig, &mut pair, rmr(&rig, scope), pool.take().unwrap()))
        .into();
    let Rig { server, client } = rig;
    drop(server.ia);
    assert!(windows.pop().unwrap().finish().is_ok());
    assert!(windows.pop().unwrap().close().is_ok());
    drop(windows);
    drop((pool, pair, client));
}

fn a_refused_window_gives_both_back() {
    let rig = Rig::new();
    let (mut pair, mut pool) = lender(&rig, 1);
    let mut both = (rmr(&rig, RmrScope::Ep), pool.take().unwrap());
    both.1[..4].copy_from_slice(b"kept");
    let post = |(rmr, buf): (Rmr, SendBuf), bytes, ep: &mut Ep| {
        let refused = rmr.open(buf).bytes(bytes).post(ep).unwrap_err();
        (refused.error.code(), refused.object)
    };
    for bytes in [0..0, 0..SIZE + 1, SIZE + 1..SIZE + 2, 0..usize::MAX] {
        let (code, back) = post(both, bytes, &mut pair.server);
        assert_eq!(code, dat::INVALID_ARG3);
        both = back;
    }
    let mut idle = rig.server.ep(&EpAttr::default());
    let (code, back) = post(both, 0..8, &mut idle);
    assert_eq!(code, dat::INVALID_STATE_EP_UNCONNECTED);
    let (code, (rmr, buf)) = post(back, 0..8, &mut pair.client);
    assert_eq!(code, dat::INVALID_HANDLE_EP);
    let elsewhere = Pz::new(&rig.server.ia).unwrap();
    let (code, (_rmr, buf)) =
        post((Rmr::new(&elsewhere, RmrScope::Ep).unwrap(), buf), 0..8, &mut pair.server);
    assert_eq!(code, dat::PROTECTION_RDMA_READ);
    let unknown = MemPriv::from_bits_retain(1 << 20);
    let refused = rmr.open(buf).privileges(unknown).post(&mut pair.server).unwrap_err();
    assert_eq!(refused.error.code(), dat::INVALID_ARG4);
    assert_eq!(refused.object.1[..4], *b"kept");
    // A buffer of another device.
    let ia = Ia::open(&doorbell_hw_tests::devices().unwrap().1).unwrap();
    let pz = Pz::new(&ia).unwrap();
    let mut foreign = SendPool::new(&ia, &pz, 1, SIZE).unwrap();
    let (code, _both) = post((refused.object.0, foreign.take().unwrap()), 0..8, &mut pair.server);
    assert_eq!(code, dat::INVALID_HANDLE_LMR);
}

/// The key of a window names memory for peers only.
fn reads_into_a_pool_by_the_key_of_a_window_are_refused() {
    let rig = Rig::new();
    let (mut pair, mut pool) = lender(&rig, 1);
    let window = open(&rig, &mut pair, rmr(&rig, RmrScope::Ep), pool.take().unwrap());
    let there = RmrTriplet {
        virtual_address: rig.client.lmr.address(),
        segment_length: 8,
        rmr_context: rig.client.lmr.rmr_context(),
    };
    let refused = pair.server.read_to_rmr(part(window.remote(), 0, 8)).from(there).post();
    assert!(matches!(refused, Err(PostError::NoSuchLmr(0, _))), "{refused:?}");
    let buf = window.close().unwrap();
    assert_eq!(buf[..8], [0; 8]);
}
