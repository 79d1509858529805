//! Chains: several requests with one doorbell ([`Ep::chain`], [`Request::post_after`],
//! [`Request::post_between`]).

use doorbell::{
    ChainError, ChainRequest, CloseFlags, CompletionFlags, ConnectionEventKind, Direction, DtoOp, DtoStatus,
    Ep, EpAttr, EpCounter, Lmr, LmrTriplet, MemPriv, PostError, Refused, Request, RmrTriplet, SendPool,
    Subtype,
};
use doorbell_hw_tests::rig::*;
use doorbell_hw_tests::{Pair, Rig, tests};

fn main() {
    doorbell_hw_tests::run(tests![
        a_chain_has_the_effects_of_its_requests_in_order,
        chains_of_any_length_go_around_the_ring,
        chains_of_write_and_send_go_around_the_ring,
        a_refused_chain_posts_nothing,
        the_refused_request_is_named,
        flags_of_each_request_count,
        r233_a_solicited_send_at_the_end_of_a_chain,
        a_full_queue_refuses_the_whole_chain,
        a_chain_counts_as_its_requests,
        a_chain_on_a_disconnected_ep_is_flushed_in_order,
        requests_behind_a_failed_one_are_flushed,
        the_longest_chain,
        a_send_of_a_pool_ends_a_chain,
        a_refused_chain_gives_the_buffer_back,
        inline_requests_of_a_chain,
        inline_bytes_of_a_chain_may_change_after_the_post,
        inline_requests_that_are_refused_post_nothing,
        a_pool_request_in_the_middle_of_a_chain,
    ])
    .exit();
}

const NONE: CompletionFlags = CompletionFlags::empty();

/// A connected pair whose client has room for this many requests of up to four segments, and has posted
/// one; the server has an SRQ with 64 buffers of 256 bytes, from offset 1 MiB of its memory on.
fn pair(rig: &Rig, requests: u32) -> (doorbell::Srq, Pair) {
    let mut srq = rig.server.srq(64);
    rig.server.post(&mut srq, 64, 256, 1 << 20, 0);
    let attr = EpAttr {
        request_depth: requests,
        rdma_write_segments: 4,
        rdma_read_segments: 4,
        ..EpAttr::default()
    };
    let mut pair = rig.connect(rig.server.srq_ep(&srq, &EpAttr::default()), rig.client.ep(&attr));
    post_first(rig, &mut pair);
    (srq, pair)
}

/// Posts the client's first request: a write of bytes that no test uses. From then on, chains whose
/// requests have one segment each can be posted without `add_checked`. Other requests, and those
/// that are refused, still go through it.
fn post_first(rig: &Rig, pair: &mut Pair) {
    let (from, to) = (rig.client.lmr.triplet(1 << 19, 8), remote(&rig.server.lmr, 1 << 19, 8));
    pair.client.write(&[from]).to(to).cookie(77).post().unwrap();
    assert_eq!(done(rig, 1), [(DtoOp::RdmaWrite, 77, 8)]);
}

fn remote(lmr: &Lmr, offset: u64, segment_length: u32) -> RmrTriplet {
    RmrTriplet { virtual_address: lmr.address() + offset, segment_length, rmr_context: lmr.rmr_context() }
}

/// The next completions of the client's requests, all successes: operation, cookie and length.
fn done(rig: &Rig, n: usize) -> Vec<(DtoOp, u64, u32)> {
    let next = |_| {
        let dto = dto(&rig.client.request);
        assert_eq!(dto.status, DtoStatus::Success, "{dto:?}");
        (dto.op, dto.cookie, dto.length)
    };
    (0..n).map(next).collect()
}

fn bytes(lmr: &Lmr, offset: usize, n: usize) -> Vec<u8> {
    let mut read = vec![0; n];
    lmr.read(offset, &mut read).unwrap();
    read
}

/// Every operation, with one, several and empty segments: the effects and the completions are those
/// of single posts in this order. When the message arrives, the data written before it is there.
fn a_chain_has_the_effects_of_its_requests_in_order() {
    let rig = Rig::new();
    let (_srq, mut pair) = pair(&rig, 16);
    let (here, there) = (&rig.client.lmr, &rig.server.lmr);
    here.write(0, b"the data and the status").unwrap();
    let atomic = all_privileges() | MemPriv::REMOTE_ATOMIC;
    let counter = Lmr::builder(&rig.server.ia, &rig.server.pz).privileges(atomic).allocate(8).unwrap();
    counter.write(0, &41_u64.to_ne_bytes()).unwrap();
    let data = [here.triplet(0, 8)];
    let status = [here.triplet(17, 6), here.triplet(0, 0), here.triplet(13, 3)];
    let (read, old) = ([here.triplet(256, 4), here.triplet(300, 4)], here.triplet(512, 8));
    let swapped = here.triplet(520, 8);
    let requests = [
        Request::write(&data).to(remote(there, 0, 8)).cookie(1).into(),
        Request::send(&status).cookie(2).into(),
        Request::write(&data[..0]).to(remote(there, 64, 8)).with_immediate(77).cookie(3).into(),
        Request::read(&read).from(remote(there, 0, 8)).cookie(4).into(),
        Request::fetch_add(&old, 1).at(remote(&counter, 0, 8)).cookie(5).into(),
        Request::compare_swap(&swapped, 42, 7).at(remote(&counter, 0, 8)).cookie(6).into(),
    ];
    pair.client.chain(&requests).unwrap();
    let message = dto(&rig.server.recv);
    assert_eq!((message.cookie, message.length, message.op), (0, 9, DtoOp::Receive));
    assert_eq!(bytes(there, 0, 8), *b"the data");
    assert_eq!(bytes(there, 1 << 20, 9), *b"statusthe");
    assert_eq!(dto(&rig.server.recv).immediate, Some(77));
    let expected = [
        (DtoOp::RdmaWrite, 1, 8),
        (DtoOp::Send, 2, 9),
        (DtoOp::RdmaWriteImmediate, 3, 0),
        (DtoOp::RdmaRead, 4, 8),
        (DtoOp::FetchAndAdd, 5, 8),
        (DtoOp::CompareAndSwap, 6, 8),
    ];
    assert_eq!(done(&rig, 6), expected);
    assert_eq!((bytes(here, 256, 4), bytes(here, 300, 4)), (b"the ".to_vec(), b"data".to_vec()));
    assert_eq!(
        (bytes(here, 512, 8), bytes(here, 520, 8)),
        (41_u64.to_ne_bytes().into(), 42_u64.to_ne_bytes().into())
    );
    assert_eq!(bytes(&counter, 0, 8), 7_u64.to_ne_bytes());
    pair.client.chain(&[]).unwrap();
    expect_nothing(&rig.client.request);
}

/// Chains of one to six requests of one to four segments, between single posts, many times around
/// a small ring: each message arrives whole, in order, and each completion comes once.
fn chains_of_any_length_go_around_the_ring() {
    let rig = Rig::patient();
    let (mut srq, mut pair) = pair(&rig, 8);
    let (here, there) = (&rig.client.lmr, &rig.server.lmr);
    let pattern: Vec<u8> = (0..4096_u32).map(|n| (n * 7 + n / 256) as u8).collect();
    here.write(0, &pattern).unwrap();
    let (mut cookie, mut arrived) = (0, 0);
    for round in 0..300_usize {
        let n = round % 6 + 1;
        let segments = |k: usize| -> Vec<LmrTriplet> {
            (0..(round + k) % 4 + 1).map(|s| here.triplet((round * 5 + k * 31 + s * 64) % 3000, 16)).collect()
        };
        let iovs: Vec<_> = (0..n).map(segments).collect();
        let target = remote(there, 0, 256);
        let requests: Vec<_> = (iovs.iter().zip(cookie..))
            .map(|(iov, cookie)| match cookie % 3 {
                0 => Request::write(iov).to(target).cookie(cookie).into(),
                _ => Request::send(iov).cookie(cookie).into(),
            })
            .collect();
        pair.client.chain(&requests).unwrap();
        let first = cookie;
        cookie += n as u64;
        if round % 4 == 0 {
            pair.client.send(&iovs[0]).cookie(cookie).post().unwrap();
            cookie += 1;
        }
        let cookies: Vec<_> = done(&rig, (cookie - first) as usize).iter().map(|done| done.1).collect();
        assert_eq!(cookies, (first..cookie).collect::<Vec<_>>());
        for (k, iov) in iovs.iter().enumerate().chain((round % 4 == 0).then_some((n, &iovs[0]))) {
            if k < n && (first + k as u64).is_multiple_of(3) {
                continue;
            }
            let message = dto(&rig.server.recv);
            assert_eq!((message.cookie, message.length as usize), (arrived, iov.len() * 16));
            let sent: Vec<u8> = (iov.iter())
                .flat_map(|segment| {
                    let at = (segment.virtual_address - here.address()) as usize;
                    pattern[at..at + 16].to_vec()
                })
                .collect();
            let at = (1 << 20) + arrived as usize % 64 * 256;
            assert_eq!(bytes(there, at, sent.len()), sent, "round {round}, request {k}");
            srq.post_recv(&[there.triplet(at, 256)], arrived + 64).unwrap();
            arrived += 1;
        }
    }
}

/// A write and a Send, from two LMRs in turn, many times around a small ring. Between them, chains
/// whose Send is refused: the write before it is taken back.
fn chains_of_write_and_send_go_around_the_ring() {
    let rig = Rig::new();
    let (mut srq, mut pair) = pair(&rig, 8);
    let there = &rig.server.lmr;
    let lmr =
        || Lmr::builder(&rig.client.ia, &rig.client.pz).privileges(all_privileges()).allocate(4096).unwrap();
    let lmrs = [lmr(), lmr()];
    for n in 0..400_u64 {
        let (data, status) = (&lmrs[n as usize % 2], &lmrs[n as usize / 2 % 2]);
        let at = n as usize % 100 * 8;
        data.write(at, &n.to_ne_bytes()).unwrap();
        status.write(2048 + at, &(!n).to_ne_bytes()).unwrap();
        let iovs = [[data.triplet(at, 8)], [status.triplet(2048 + at, 8)], [status.triplet(4089, 8)]];
        let target = remote(there, 8 * (n % 16), 8);
        if n % 3 == 1 {
            let elsewhere = remote(there, 4096, 8);
            let refused = pair.client.chain(&[
                Request::write(&iovs[1]).to(elsewhere).cookie(7).into(),
                Request::send(&iovs[2]).cookie(8).into(),
            ]);
            assert_eq!(refused, Err(ChainError { request: 1, error: PostError::OutOfBounds(0) }));
        }
        let suppress = if n % 2 == 0 { NONE } else { CompletionFlags::SUPPRESS };
        pair.client
            .chain(&[
                Request::write(&iovs[0]).to(target).cookie(n).flags(suppress).into(),
                Request::send(&iovs[1]).cookie(n).fence().into(),
            ])
            .unwrap();
        let message = dto(&rig.server.recv);
        assert_eq!((message.cookie, message.length), (n, 8));
        let buffer = (1 << 20) + n as usize % 64 * 256;
        assert_eq!(bytes(there, buffer, 8), (!n).to_ne_bytes());
        assert_eq!(bytes(there, 8 * (n as usize % 16), 8), n.to_ne_bytes());
        assert_eq!(bytes(there, 4096, 8), [0; 8]);
        srq.post_recv(&[there.triplet(buffer, 256)], n + 64).unwrap();
        if n % 2 == 0 {
            assert_eq!(done(&rig, 1), [(DtoOp::RdmaWrite, n, 8)]);
        }
        assert_eq!(done(&rig, 1), [(DtoOp::Send, n, 8)]);
    }
    expect_nothing(&rig.client.request);
    let [one, two] = lmrs;
    let dead = [one.triplet(0, 8)];
    one.close().unwrap();
    let refused = pair.client.chain(&[
        Request::send(&[two.triplet(0, 8)]).cookie(1).into(),
        Request::send(&dead).cookie(2).into(),
    ]);
    assert_eq!(refused, Err(ChainError { request: 1, error: PostError::NoSuchLmr(0, Direction::Read) }));
}

/// A bad request anywhere in a chain: nothing of the chain is posted, nothing arrives, and the next
/// posts are not affected.
fn a_refused_chain_posts_nothing() {
    let rig = Rig::new();
    let (_srq, mut pair) = pair(&rig, 8);
    let (here, there) = (&rig.client.lmr, &rig.server.lmr);
    let (good, outside) = ([here.triplet(0, 8)], [here.triplet(2 << 20, 8)]);
    let before = bytes(there, 0, 8);
    let sent = pair.client.counters().unwrap();
    for bad in 0..5 {
        for n in [bad + 1, 5] {
            let request = |k: usize| {
                let iov = if k == bad { &outside } else { &good };
                match k % 2 {
                    0 => Request::write(iov).to(remote(there, 0, 8)).cookie(k as u64).into(),
                    _ => Request::send(iov).cookie(k as u64).into(),
                }
            };
            let requests: Vec<_> = (0..n).map(request).collect();
            let error = PostError::OutOfBounds(0);
            assert_eq!(pair.client.chain(&requests), Err(ChainError { request: bad, error }));
        }
    }
    expect_nothing(&rig.client.request);
    expect_nothing(&rig.server.recv);
    assert_eq!(bytes(there, 0, 8), before);
    assert_eq!(pair.client.counters().unwrap(), sent);
    assert!(pair.client.status().unwrap().requests == 0);
    // The whole queue is free, and completions are those of its own requests.
    for round in 0..4 {
        let requests: Vec<_> = (0..8).map(|k| Request::send(&good).cookie(100 * round + k).into()).collect();
        pair.client.chain(&requests).unwrap();
        let cookies: Vec<_> = done(&rig, 8).iter().map(|done| done.1).collect();
        assert_eq!(cookies, (100 * round..100 * round + 8).collect::<Vec<_>>());
    }
}

/// Every check of a single post is made for each request, with the error of the single post and the
/// number of the request.
fn the_refused_request_is_named() {
    let rig = Rig::new();
    let (_srq, mut pair) = pair(&rig, 8);
    let (here, there) = (&rig.client.lmr, &rig.server.lmr);
    let good = [here.triplet(0, 8)];
    let freed =
        Lmr::builder(&rig.client.ia, &rig.client.pz).privileges(all_privileges()).allocate(64).unwrap();
    let dead = [freed.triplet(0, 8)];
    freed.close().unwrap();
    let five = [here.triplet(0, 1); 5];
    let nine = here.triplet(0, 9);
    let bad = [
        (Request::send(&dead).cookie(1).into(), pair.client.send(&dead).cookie(1).post()),
        (Request::send(&five).cookie(1).into(), pair.client.send(&five).cookie(1).post()),
        (
            Request::send(&good).cookie(1).unsignalled().into(),
            pair.client.send(&good).cookie(1).unsignalled().post(),
        ),
        (
            Request::write(&good).to(remote(there, 0, 7)).cookie(1).into(),
            pair.client.write(&good).to(remote(there, 0, 7)).cookie(1).post(),
        ),
        (
            Request::read(&good).from(remote(there, 0, 9)).cookie(1).into(),
            pair.client.read(&good).from(remote(there, 0, 9)).cookie(1).post(),
        ),
        (
            Request::fetch_add(&nine, 1).at(remote(there, 0, 8)).cookie(1).into(),
            pair.client.fetch_add(&nine, 1).at(remote(there, 0, 8)).cookie(1).post(),
        ),
        (
            Request::compare_swap(&good[0], 1, 1).at(remote(there, 4, 8)).cookie(1).into(),
            pair.client.compare_swap(&good[0], 1, 1).at(remote(there, 4, 8)).cookie(1).post(),
        ),
    ];
    let send = Request::send(&good).into();
    for (n, (request, single)) in bad.into_iter().enumerate() {
        let error = single.expect_err("refused alone as well");
        for at in 0..3 {
            let mut requests = [send; 3];
            requests[at] = request;
            assert_eq!(pair.client.chain(&requests), Err(ChainError { request: at, error }), "{n}");
        }
    }
    let refused = pair.client.chain(&[send, bad_flags(&good)]).unwrap_err();
    let error = doorbell::Error::from(refused);
    assert_eq!(error.code(), refused.error.code());
    assert!(error.to_string().contains("request 1 of the chain"), "{error}");
    let mut unconnected = rig.client.ep(&EpAttr::default());
    let error = unconnected.send(&good).cookie(1).post().unwrap_err();
    assert_eq!(unconnected.chain(&[send, send]), Err(ChainError { request: 0, error }));
    expect_nothing(&rig.client.request);
}

fn bad_flags(iov: &[LmrTriplet]) -> ChainRequest<'_> {
    Request::send(iov).cookie(1).unsignalled().into()
}

/// Suppressed requests have no event; a fenced write waits for the read before it.
fn flags_of_each_request_count() {
    let rig = Rig::new();
    let (_srq, mut pair) = pair(&rig, 8);
    let (here, there) = (&rig.client.lmr, &rig.server.lmr);
    let suppress = CompletionFlags::SUPPRESS;
    for round in 0..20_u64 {
        there.write(0, &round.to_ne_bytes()).unwrap();
        let (into, from) = ([here.triplet(0, 8)], [here.triplet(0, 8)]);
        // The value that was read is written elsewhere.
        pair.client
            .chain(&[
                Request::read(&into).from(remote(there, 0, 8)).cookie(1).flags(suppress).into(),
                Request::write(&from).to(remote(there, 64, 8)).cookie(2).fence().into(),
                Request::send(&from).cookie(3).flags(suppress).into(),
                Request::send(&from).cookie(4).into(),
            ])
            .unwrap();
        assert_eq!(done(&rig, 2), [(DtoOp::RdmaWrite, 2, 8), (DtoOp::Send, 4, 8)]);
        assert_eq!(bytes(there, 64, 8), round.to_ne_bytes());
        for _ in 0..2 {
            assert_eq!(dto(&rig.server.recv).length, 8);
        }
    }
    expect_nothing(&rig.client.request);
}

/// The receiver in solicited mode wakes at the Send with the bit, behind a Send without it.
fn r233_a_solicited_send_at_the_end_of_a_chain() {
    let rig = Rig::new();
    let solicited = EpAttr { recv_completion_flags: CompletionFlags::SOLICITED_WAIT, ..EpAttr::default() };
    let mut pair = rig.connect_plain(&solicited);
    post_first(&rig, &mut pair);
    for cookie in 0..3 {
        pair.server.post_recv(&[rig.server.lmr.triplet(0, 64)], cookie, NONE).unwrap();
    }
    let data = [rig.client.lmr.triplet(0, 8)];
    let waiting = waiter(&rig.server.recv, Some(LONG), 1);
    pair.client
        .chain(&[Request::send(&data).cookie(1).into(), Request::send(&data).cookie(2).solicited().into()])
        .unwrap();
    let woken = waiting.join().unwrap().unwrap();
    assert_eq!(woken.event.completion().unwrap().cookie, 0);
    assert_eq!(dto(&rig.server.recv).cookie, 1);
    assert_eq!(done(&rig, 2).len(), 2);
}

/// A chain needs a place for each request. The error names the first without one, and the requests
/// before it are not posted. Finished suppressed requests make room.
fn a_full_queue_refuses_the_whole_chain() {
    let rig = Rig::patient();
    let srq = rig.server.srq(4);
    let attr = EpAttr { request_depth: 8, ..EpAttr::default() };
    let mut pair = rig.connect(rig.server.srq_ep(&srq, &EpAttr::default()), rig.client.ep(&attr));
    let room = pair.client.query().unwrap().attr.request_depth as usize;
    let data = [rig.client.lmr.triplet(0, 8)];
    let suppressed = Request::write(&data).to(remote(&rig.server.lmr, 0, 8)).cookie(9).suppress().into();
    // These complete, unseen.
    pair.client.chain(&vec![suppressed; room]).unwrap();
    until("the writes are done", || pair.client.status().unwrap().requests == 0);
    // These wait for a receive.
    let send = |cookie| Request::send(&data).cookie(cookie).into();
    pair.client.chain(&[send(0), send(1), send(2)]).unwrap();
    let more: Vec<_> = (3..room as u64 + 1).map(send).collect();
    let error = PostError::Full(Subtype::ResourceCredits);
    assert_eq!(pair.client.chain(&more), Err(ChainError { request: room - 3, error }));
    pair.client.chain(&more[..room - 3]).unwrap();
    assert_eq!(pair.client.chain(&more[..1]), Err(ChainError { request: 0, error }));
    assert_eq!(pair.client.send(&data).cookie(1).post(), Err(error));
    let mut srq = srq;
    for cookie in 0..room as u64 {
        until("an entry is free", || srq.post_recv(&[rig.server.lmr.triplet(0, 64)], cookie).is_ok());
        assert_eq!(dto(&rig.client.request).cookie, cookie);
        assert_eq!(dto(&rig.server.recv).cookie, cookie);
    }
    expect_nothing(&rig.client.request);
}

/// The EP's counters do not tell chains from single posts.
fn a_chain_counts_as_its_requests() {
    let rig = Rig::new();
    let (_srq, mut pair) = pair(&rig, 8);
    let data = [rig.client.lmr.triplet(0, 10)];
    use EpCounter as C;
    let counted = |ep: &Ep| {
        let counts = ep.counters().unwrap();
        [C::PostWrite, C::PostWriteData, C::PostSend, C::PostSendData].map(|counter| counts[counter])
    };
    let before = counted(&pair.client);
    pair.client
        .chain(&[
            Request::write(&data).to(remote(&rig.server.lmr, 0, 16)).cookie(1).into(),
            Request::send(&data).cookie(2).into(),
            Request::send(&data).cookie(3).into(),
        ])
        .unwrap();
    done(&rig, 3);
    let after = counted(&pair.client);
    let [writes, written, sends, sent] = std::array::from_fn(|n| after[n] - before[n]);
    assert_eq!([writes, written, sends, sent], [1, 10, 2, 20]);
}

/// After the end of a connection the requests of a chain are flushed, in order, without the device.
fn a_chain_on_a_disconnected_ep_is_flushed_in_order() {
    let rig = Rig::new();
    let (_srq, mut pair) = pair(&rig, 8);
    rig.disconnect(&pair);
    let data = [rig.client.lmr.triplet(0, 8)];
    let send = |cookie| Request::send(&data).cookie(cookie).into();
    pair.client.chain(&[send(1), send(2), send(3)]).unwrap();
    for cookie in 1..4 {
        let flushed = dto(&rig.client.request);
        assert_eq!((flushed.cookie, flushed.status), (cookie, DtoStatus::Flushed));
    }
    let outside = [rig.client.lmr.triplet(2 << 20, 8)];
    let error = PostError::OutOfBounds(0);
    let refused = pair.client.chain(&[send(1), Request::send(&outside).cookie(2).into()]);
    assert_eq!(refused, Err(ChainError { request: 1, error }));
    expect_nothing(&rig.client.request);
    pair.client.reset().unwrap();
    let error = PostError::EpState(Subtype::InvalidStateEpUnconnected);
    assert_eq!(pair.client.chain(&[send(4)]), Err(ChainError { request: 0, error }));
}

/// The peer refuses a write in the middle of a chain: the requests before it succeed, those behind
/// it are flushed, and the connection ends. Suppressed requests that fail have events.
fn requests_behind_a_failed_one_are_flushed() {
    let rig = Rig::new();
    let (_srq, mut pair) = pair(&rig, 8);
    let data = [rig.client.lmr.triplet(0, 8)];
    let beyond = RmrTriplet { segment_length: 64, ..remote(&rig.server.lmr, (2 << 20) - 4, 8) };
    pair.client
        .chain(&[
            Request::write(&data).to(remote(&rig.server.lmr, 0, 8)).cookie(9).suppress().into(),
            Request::send(&data).cookie(1).into(),
            Request::write(&data).to(beyond).cookie(2).suppress().into(),
            Request::write(&data).to(remote(&rig.server.lmr, 0, 8)).cookie(3).suppress().into(),
            Request::send(&data).cookie(4).suppress().into(),
        ])
        .unwrap();
    let ends: Vec<_> = (0..4).map(|_| dto(&rig.client.request)).map(|dto| (dto.cookie, dto.status)).collect();
    let expected = [
        (1, DtoStatus::Success),
        (2, DtoStatus::RemoteAccess),
        (3, DtoStatus::Flushed),
        (4, DtoStatus::Flushed),
    ];
    assert_eq!(ends, expected);
    expect_connection(&rig.client.connect, &pair.client, ConnectionEventKind::Broken);
    assert_eq!(dto(&rig.server.recv).status, DtoStatus::Success);
}

/// Up to 32 requests and 128 segments; one more is named.
fn the_longest_chain() {
    let rig = Rig::new();
    let (_srq, mut pair) = pair(&rig, 64);
    let segments = [rig.client.lmr.triplet(0, 8); 4];
    let send = |cookie| Request::send(&segments).cookie(cookie).into();
    let longest: Vec<_> = (0..Ep::MAX_CHAIN as u64).map(send).collect();
    assert_eq!(Ep::MAX_CHAIN * segments.len(), Ep::MAX_CHAIN_SEGMENTS);
    pair.client.chain(&longest).unwrap();
    let cookies: Vec<_> = done(&rig, Ep::MAX_CHAIN).iter().map(|done| done.1).collect();
    assert_eq!(cookies, (0..32).collect::<Vec<_>>());
    for _ in 0..Ep::MAX_CHAIN {
        assert_eq!(dto(&rig.server.recv).length, 32);
    }
    let error = PostError::Full(Subtype::ResourceCredits);
    let longer: Vec<_> = (0..33).map(send).collect();
    assert_eq!(pair.client.chain(&longer), Err(ChainError { request: 32, error }));
    expect_nothing(&rig.client.request);
}

/// An RDMA Write and then a Send from a pool: the buffer belongs to the EP until its completion,
/// which alone returns it.
fn a_send_of_a_pool_ends_a_chain() {
    let rig = Rig::new();
    let (mut srq, mut received, mut pair) = rig.pooled(4);
    let mut pool = SendPool::new(&rig.client.ia, &rig.client.pz, 1, SIZE).unwrap();
    let there = &rig.server.lmr;
    for round in 0..10_u8 {
        rig.client.lmr.write(0, &[round; 64]).unwrap();
        let data = [rig.client.lmr.triplet(0, 64)];
        let mut buf = pool.take().unwrap();
        buf[..4].copy_from_slice(b"done");
        let write = Request::write(&data).to(remote(there, 0, 64)).cookie(5).into();
        pool.send(buf).len(4).post_after(&mut pair.client, &[write]).unwrap();
        assert!(pool.take().is_none());
        let guard = message(&rig.server, &mut received);
        assert_eq!(*guard, *b"done");
        assert_eq!(bytes(there, 0, 64), [round; 64]);
        let written = dto(&rig.client.request);
        assert_eq!((written.op, written.cookie), (DtoOp::RdmaWrite, 5));
        assert!(!pool.completed(&written) && pool.take().is_none());
        let sent = dto(&rig.client.request);
        assert!(pool.completed(&sent) && !pool.completed(&sent));
        drop(guard);
        assert_eq!(received.refill(&mut srq).unwrap(), 1);
    }
}

/// A chain that is refused, for whatever request, gives the buffer back with its bytes.
fn a_refused_chain_gives_the_buffer_back() {
    let rig = Rig::new();
    let (_srq, received, mut pair) = rig.pooled(2);
    let mut pool = SendPool::new(&rig.client.ia, &rig.client.pz, 1, SIZE).unwrap();
    let mut elsewhere = SendPool::new(&rig.server.ia, &rig.server.pz, 1, SIZE).unwrap();
    let (good, outside) = ([rig.client.lmr.triplet(0, 8)], [rig.client.lmr.triplet(2 << 20, 8)]);
    let write = |iov| Request::write(iov).to(remote(&rig.server.lmr, 0, 8)).cookie(1).into();
    let mut buf = pool.take().unwrap();
    buf[..4].copy_from_slice(b"kept");
    let client = &mut pair.client;
    let Refused { object: buf, error: refused } =
        pool.send(buf).len(4).post_after(client, &[write(&good), write(&outside)]).unwrap_err();
    assert_eq!(refused, ChainError { request: 1, error: PostError::OutOfBounds(0) });
    let Refused { object: buf, error: refused } =
        pool.send(buf).len(4).suppress().post_after(client, &[write(&good)]).unwrap_err();
    assert_eq!(refused, ChainError { request: 1, error: PostError::Flags });
    let Refused { object: buf, error: refused } =
        pool.send(buf).len(SIZE + 1).post_after(client, &[write(&good)]).unwrap_err();
    assert_eq!(refused, ChainError { request: 1, error: PostError::OutOfBounds(0) });
    let Refused { object: buf, error: refused } =
        elsewhere.send(buf).len(4).post_after(client, &[write(&good)]).unwrap_err();
    assert_eq!(refused, ChainError { request: 1, error: PostError::OutOfBounds(0) });
    let foreign = elsewhere.take().unwrap();
    let Refused { object: foreign, error: refused } =
        elsewhere.send(foreign).len(4).post_after(client, &[write(&good)]).unwrap_err();
    assert!(matches!(refused, ChainError { request: 1, error: PostError::NoSuchLmr(..) }), "{refused}");
    assert_eq!((&buf[..4], pool.posted(), elsewhere.posted()), (&b"kept"[..], 0, 0));
    drop((buf, foreign));
    assert!(pool.take().is_some() && elsewhere.take().is_some());
    expect_nothing(&rig.client.request);
    expect_nothing(&rig.server.recv);
    assert_eq!(received.posted(), 2);
    pair.client.disconnect(CloseFlags::Abrupt).unwrap();
}

/// Inline Sends, with and without other requests, and inline RDMA Writes: what arrives, in which order,
/// and the completions. Lengths on both sides of those that fast functions copy.
fn inline_requests_of_a_chain() {
    const LONGEST: usize = 200;
    let rig = Rig::new();
    let mut srq = rig.server.srq(64);
    rig.server.post(&mut srq, 64, 256, 1 << 20, 0);
    let attr = EpAttr { max_inline: LONGEST as u32, request_depth: 16, ..EpAttr::default() };
    let mut pair = rig.connect(rig.server.srq_ep(&srq, &EpAttr::default()), rig.client.ep(&attr));
    let (here, there) = (&rig.client.lmr, &rig.server.lmr);
    let content = |n: usize| -> Vec<u8> { (0..n).map(|at| (at * 7 + n) as u8).collect() };
    // The first chain goes through all checks, the others do not.
    for n in [16, 0, 1, 3, 7, 12, 16, 17, 28, 29, 44, 45, 48, 49, 64, LONGEST] {
        let (sent, written) = (content(n), content(n / 2));
        here.write(0, &content(8)).unwrap();
        let data = [here.triplet(0, 8)];
        let requests = [
            Request::write(&data).to(remote(there, 0, 8)).cookie(1).suppress().into(),
            Request::write_inline(&written).to(remote(there, 64, 256)).cookie(2).into(),
            Request::send_inline(&sent).cookie(3).into(),
        ];
        pair.client.chain(&requests).unwrap();
        let message = dto(&rig.server.recv);
        assert_eq!((message.status, message.length as usize), (DtoStatus::Success, n));
        let at = (1 << 20) + message.cookie as usize * 256;
        assert_eq!(bytes(there, at, n), sent, "{n} bytes");
        assert_eq!((bytes(there, 0, 8), bytes(there, 64, n / 2)), (content(8), written));
        let lengths = (n as u32 / 2, n as u32);
        assert_eq!(done(&rig, 2), [(DtoOp::RdmaWrite, 2, lengths.0), (DtoOp::Send, 3, lengths.1)]);
        srq.post_recv(&[there.triplet(at, 256)], message.cookie).unwrap();
    }
    let with_immediate = Request::write_inline(b"with").to(remote(there, 0, 8)).with_immediate(5).cookie(9);
    pair.client.chain(&[with_immediate.into()]).unwrap();
    assert_eq!(dto(&rig.server.recv).immediate, Some(5));
    assert_eq!(done(&rig, 1), [(DtoOp::RdmaWriteImmediate, 9, 4)]);
    expect_nothing(&rig.client.request);
}

/// The peer has no receive yet. What the program writes into its bytes meanwhile does not arrive.
fn inline_bytes_of_a_chain_may_change_after_the_post() {
    let rig = Rig::patient();
    let attr = EpAttr { max_inline: 64, ..EpAttr::default() };
    let mut pair = rig.connect(rig.server.ep(&EpAttr::default()), rig.client.ep(&attr));
    for n in [16_u8, 64] {
        let mut texts = [vec![n; n.into()], vec![n + 1; n.into()]];
        let [first, second] = texts.each_ref().map(|text| Request::send_inline(text).into());
        pair.client.chain(&[first, second]).unwrap();
        texts.iter_mut().for_each(|text| text.fill(0xee));
        for expected in [n, n + 1] {
            pair.server.post_recv(&[rig.server.lmr.triplet(0, 64)], 0, NONE).unwrap();
            assert_eq!(dto(&rig.server.recv).length, n.into());
            assert_eq!(bytes(&rig.server.lmr, 0, n.into()), vec![expected; n.into()]);
        }
        done(&rig, 2);
    }
}

/// The rules are those of single inline requests. A refused one is named, and nothing is posted.
fn inline_requests_that_are_refused_post_nothing() {
    let rig = Rig::new();
    let (_srq, mut pair) = pair(&rig, 8);
    let most = pair.client.query().unwrap().attr.max_inline as usize;
    let (data, long) = ([rig.client.lmr.triplet(0, 8)], vec![0x55; most + 1]);
    let there = remote(&rig.server.lmr, 0, 8);
    rig.client.lmr.write(0, &[0xaa; 8]).unwrap();
    let write: ChainRequest<'_> = Request::write(&data).to(there).suppress().into();
    let short = Request::write_inline(&[0; 9]).to(there);
    let refused: [(ChainRequest<'_>, _); 3] = [
        (Request::send_inline(&long).into(), PostError::TooLongInline { given: most + 1, most: most as u32 }),
        (short.into(), PostError::Length),
        (Request::send_inline(b"flags").unsignalled().into(), PostError::Flags),
    ];
    for (request, error) in refused {
        let refused = pair.client.chain(&[write, request]);
        assert_eq!(refused, Err(ChainError { request: 1, error }));
        let refused = pair.client.chain(&[write, write, request, write]);
        assert_eq!(refused, Err(ChainError { request: 2, error }));
    }
    // All places are free, and nothing was written.
    let eight: [ChainRequest<'_>; 8] = std::array::from_fn(|n| Request::send(&data).cookie(n as u64).into());
    assert_eq!(bytes(&rig.server.lmr, 0, 8), [0; 8]);
    pair.client.chain(&eight).unwrap();
    assert_eq!(done(&rig, 8).len(), 8);
    expect_nothing(&rig.client.request);
    rig.disconnect(&pair);
    let flushed = [Request::send_inline(&[]).cookie(5).into(), Request::send(&data).cookie(6).into()];
    pair.client.chain(&flushed).unwrap();
    for cookie in [5, 6] {
        let ended = dto(&rig.client.request);
        assert_eq!((ended.cookie, ended.status), (cookie, DtoStatus::Flushed));
    }
}

/// A Send and a Write of a pool between others: all take effect in this order, and the buffer comes
/// back with its own completion. A refused request behind it gives the buffer back.
fn a_pool_request_in_the_middle_of_a_chain() {
    let rig = Rig::new();
    let (mut srq, mut received, mut pair) = rig.pooled(4);
    let mut pool = SendPool::new(&rig.client.ia, &rig.client.pz, 1, SIZE).unwrap();
    let (here, there) = (&rig.client.lmr, &rig.server.lmr);
    let outside = [here.triplet(2 << 20, 8)];
    for round in 0..10_u8 {
        here.write(0, &[round; 64]).unwrap();
        let [first, last] = [[here.triplet(0, 8)], [here.triplet(8, 8)]];
        let mut buf = pool.take().unwrap();
        buf[..4].copy_from_slice(b"done");
        let write = |from, at, cookie| -> ChainRequest<'_> {
            Request::write(from).to(remote(there, at, 8)).cookie(cookie).into()
        };
        let bad = Request::send(&outside).into();
        let Refused { object, error } = pool
            .send(buf)
            .len(4)
            .post_between(&mut pair.client, &[write(&first, 0, 1)], &[write(&last, 8, 2), bad])
            .unwrap_err();
        assert_eq!(error, ChainError { request: 3, error: PostError::OutOfBounds(0) });
        let buf = object.unwrap();
        let behind = [write(&last, 8, 2), write(&last, 16, 3)];
        if round % 2 == 0 {
            pool.send(buf).len(4).post_between(&mut pair.client, &[write(&first, 0, 1)], &behind).unwrap();
            let guard = message(&rig.server, &mut received);
            assert_eq!(*guard, *b"done");
            drop(guard);
            assert_eq!(received.refill(&mut srq).unwrap(), 1);
        } else {
            let request = pool.write(buf).len(4).to(remote(there, 32, 4));
            request.post_between(&mut pair.client, &[write(&first, 0, 1)], &behind).unwrap();
        }
        assert!(pool.take().is_none());
        assert_eq!(dto(&rig.client.request).cookie, 1);
        let of_pool = dto(&rig.client.request);
        assert!(pool.completed(&of_pool), "{of_pool:?}");
        assert_eq!(dto(&rig.client.request).cookie, 2);
        assert_eq!(dto(&rig.client.request).cookie, 3);
        assert_eq!(bytes(there, 0, 24), [round; 24]);
    }
    assert_eq!(bytes(there, 32, 4), b"done");
    expect_nothing(&rig.client.request);
}
