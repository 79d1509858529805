//! Commands that the connection manager or the device refuses while a connection is set up or ends,
//! requests that libmlx5 refuses, and work requests that the device forgets when an EP is freed. The
//! tests run one at a time, since faults of the software device belong to the process.

use doorbell::{
    ChainError, ChainRequest, CloseFlags, CompletionFlags, ConnectOptions, ConnectionEventKind, Counter,
    DatagramEventKind, DtoOp, DtoStatus, Ep, EpAttr, EpCounter, EpState, Event, Ia, IaCounter, Lmr,
    PostError, Psp, RecvPool, Refused, Request, ReturnType, RmrTriplet, SendPool, ServiceType,
};
use doorbell_hw_tests::rig::*;
use doorbell_hw_tests::software::order;
use doorbell_hw_tests::{Pair, Rig, dat, devices, tests};
use doorbell_nvmf::backend::{Backend, Faults};
use doorbell_nvmf::host::{Connection, Error, Host, Queue};
use doorbell_nvmf::limits::Limits;
use doorbell_nvmf::proto::{Sqe, fabrics, io};
use doorbell_nvmf::rdma::{Engine, Options};
use doorbell_nvmf::subsystem::{Namespace, Subsystem, derived_uuid};
use doorbell_nvmf::target::Target;
use rxe_fallback::cm::Resolved;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

fn main() {
    let tests = tests![
        a_connect_without_a_route_ends_in_an_event,
        a_connect_that_fails_on_its_way_ends_in_an_event,
        a_connect_asks_again_for_a_host_that_does_not_answer,
        a_blocking_call_asks_again_for_a_host_that_does_not_answer,
        an_ep_whose_accept_fails_is_as_before,
        an_ep_that_cannot_start_over_does_so_later,
        an_ep_on_an_srq_starts_over_later,
        an_accept_without_a_request_is_aborted,
        a_disconnect_that_nobody_hears_ends_the_connection,
        a_setup_ends_with_each_event_of_a_failure,
        a_connection_whose_device_goes_away_is_broken,
        a_freed_ep_gives_back_the_buffers_that_the_device_forgets,
        places_come_back_when_verbs_refuses_a_request_of_a_chain,
        a_pool_keeps_the_buffer_that_was_posted_before_a_refused_request,
        a_storage_target_keeps_buffers_of_refused_responses,
    ];
    let software = order("count mr") >= 0;
    let direct = std::env::var("DOORBELL_DATAPATH").as_deref() != Ok("verbs");
    doorbell_hw_tests::run_unless(tests, 1, |name| match name {
        _ if !software => Some("needs the software device, which can be told to refuse commands"),
        "places_come_back_when_verbs_refuses_a_request_of_a_chain"
        | "a_pool_keeps_the_buffer_that_was_posted_before_a_refused_request"
        | "a_storage_target_keeps_buffers_of_refused_responses"
            if direct =>
        {
            Some("by the direct path no library refuses a request")
        }
        _ => None,
    })
    .exit();
}

const NONE: CompletionFlags = CompletionFlags::empty();

/// The next command of this name fails with this errno.
#[track_caller]
fn refuse(command: &str, errno: i32) {
    assert_eq!(order(&format!("fault cmd.{command}={errno}")), 0);
}

/// What has been counted since the last call.
fn counted(ia: &Ia, counter: IaCounter) -> u64 {
    ia.take_counters(IaCounter::ALL).unwrap()[counter]
}

/// Connects both EPs and sends one message.
#[track_caller]
fn connect_and_deliver(rig: &Rig, server: Ep, client: Ep) -> Pair {
    let mut pair = rig.connect(server, client);
    pair.server.post_recv(&[rig.server.lmr.triplet(0, 64)], 3, NONE).unwrap();
    let got = rig.deliver(&mut pair, 8);
    assert_eq!((got.status, got.cookie), (DtoStatus::Success, 3));
    pair
}

/// The call succeeds, and the event tells the failure. The EP can connect again after a reset.
fn a_connect_without_a_route_ends_in_an_event() {
    let rig = Rig::new();
    let mut client = rig.client.ep(&EpAttr::default());
    rig.client.ia.take_counters(IaCounter::ALL).unwrap();
    for connects in 1..=3 {
        refuse("resolve_addr", libc::EHOSTUNREACH);
        client
            .connect_with((rig.server.ia.address(), 1).into(), ConnectOptions::new().timeout(LONG))
            .unwrap();
        expect_connection(&rig.client.connect, &client, ConnectionEventKind::Unreachable);
        assert_eq!(client.state(), EpState::Disconnected);
        assert_eq!(counted(&rig.client.ia, IaCounter::CmErr), 1);
        assert_eq!(client.counters().unwrap()[EpCounter::Connect], connects);
        client.reset().unwrap();
    }
    let pair = connect_and_deliver(&rig, rig.server.ep(&EpAttr::default()), client);
    assert_eq!(pair.client.counters().unwrap()[EpCounter::Connect], 4);
    assert_eq!(counted(&rig.client.ia, IaCounter::CmErr), 0);
    expect_nothing(&rig.client.connect);
}

/// The connection manager refuses a later step, when the call has returned already.
fn a_connect_that_fails_on_its_way_ends_in_an_event() {
    let rig = Rig::new();
    let mut client = rig.client.ep(&EpAttr::default());
    let psp = Psp::builder(&rig.server.ia, &rig.server.cr).build().unwrap();
    let port = psp.port();
    rig.client.ia.take_counters(IaCounter::ALL).unwrap();
    for (step, sent) in [("resolve_route", 0), ("connect", 0), ("establish", 1)] {
        refuse(step, libc::EIO);
        client
            .connect_with((rig.server.ia.address(), port).into(), ConnectOptions::new().timeout(LONG))
            .unwrap();
        let mut server = rig.server.ep(&EpAttr::default());
        if sent == 1 {
            connection_request(&rig.server.cr).cr.accept(&server, &[]).unwrap();
        }
        expect_connection(&rig.client.connect, &client, ConnectionEventKind::NonPeerRejected);
        assert_eq!(client.state(), EpState::Disconnected);
        let counters = rig.client.ia.take_counters(IaCounter::ALL).unwrap();
        assert_eq!((counters[IaCounter::CmErr], counters[IaCounter::CmReqTx]), (1, sent), "{step}");
        assert_eq!((counters[IaCounter::CmRtuTx], counters[IaCounter::CmActiveEst]), (0, 0), "{step}");
        if sent == 1 {
            expect_connection(&rig.server.connect, &server, ConnectionEventKind::AcceptCompletionError);
            server.reset().unwrap();
        }
        client.reset().unwrap();
    }
    let _pair = connect_and_deliver(&rig, rig.server.ep(&EpAttr::default()), client);
    expect_nothing(&rig.client.connect);
}

/// A host that does not answer at first is asked again, for a connection as for datagrams. After the
/// seventh time, the attempt ends in an event.
fn a_connect_asks_again_for_a_host_that_does_not_answer() {
    let rig = Rig::new();
    let mut client = rig.client.ep(&EpAttr::default());
    let ud = EpAttr { service_type: ServiceType::Ud, ..EpAttr::default() };
    let (server_ud, client_ud) = (rig.server.ep(&ud), rig.client.ep(&ud));
    let psp = Psp::builder(&rig.server.ia, &rig.server.cr).build().unwrap();
    let port = psp.port();
    rig.client.ia.take_counters(IaCounter::ALL).unwrap();

    assert_eq!(order("fault deaf*14"), 0);
    client.connect_with((rig.server.ia.address(), port).into(), ConnectOptions::new().timeout(LONG)).unwrap();
    client_ud
        .connect_with((rig.server.ia.address(), port).into(), ConnectOptions::new().timeout(LONG))
        .unwrap();
    let mut events = [(); 2].map(|()| next(&rig.client.connect));
    events.sort_by_key(|event| matches!(event, Event::Datagram(_)));
    let [Event::NotConnected(connection), Event::Datagram(datagrams)] = events else {
        panic!("not one event for each: {events:?}");
    };
    assert_eq!((connection.ep, connection.kind), (client.id(), ConnectionEventKind::Unreachable));
    let failed = DatagramEventKind::Failed(ConnectionEventKind::Unreachable);
    assert_eq!((datagrams.ep, datagrams.kind), (client_ud.id(), failed));
    assert_eq!(counted(&rig.client.ia, IaCounter::CmErrTimeout), 1);
    client.reset().unwrap();

    assert_eq!(order("fault deaf*3"), 0);
    let _pair = connect_and_deliver(&rig, rig.server.ep(&EpAttr::default()), client);
    assert_eq!(counted(&rig.client.ia, IaCounter::CmErrTimeout), 0);

    assert_eq!(order("fault deaf*3"), 0);
    client_ud
        .connect_with((rig.server.ia.address(), port).into(), ConnectOptions::new().timeout(LONG))
        .unwrap();
    connection_request(&rig.server.cr).cr.accept(&server_ud, &[]).unwrap();
    let event = datagram(&rig.client.connect);
    assert!(matches!(event.kind, DatagramEventKind::Established { active: true, .. }), "{event:?}");
    assert_eq!(datagram(&rig.server.connect).ep, server_ud.id());
    expect_nothing(&rig.client.connect);
}

/// The blocking call of `rxe-fallback` asks again as well.
fn a_blocking_call_asks_again_for_a_host_that_does_not_answer() {
    let rig = Rig::new();
    let from = SocketAddr::new(rig.client.ia.address(), 0);
    let to = SocketAddr::new(rig.server.ia.address(), 1);
    assert_eq!(order("fault deaf*3"), 0);
    Resolved::resolve_timeout(Some(from), to, LONG).unwrap();
}

/// The device or the connection manager refuses an accept for want of memory. The EP and the
/// receives that it has are as before: it can accept the next request.
fn an_ep_whose_accept_fails_is_as_before() {
    for (step, errno, counts) in
        [("accept", libc::ENOMEM, 1), ("init_qp_attr", libc::ENOMEM, 0), ("modify_qp", libc::EINVAL, 0)]
    {
        let rig = Rig::new();
        let mut server = rig.server.ep(&EpAttr::default());
        server.post_recv(&[rig.server.lmr.triplet(0, 64)], 5, NONE).unwrap();
        let refused = rig.client.ep(&EpAttr::default());
        let (_psp, arrival) = rig.ask(&refused);
        rig.server.ia.take_counters(IaCounter::ALL).unwrap();
        refuse(step, errno);
        let error = arrival.cr.accept(&server, &[]).unwrap_err();
        assert_eq!(error.error.return_type(), ReturnType::InsufficientResources, "{step}: {error:?}");
        let counters = rig.server.ia.counters().unwrap();
        let of = |counter| counters[counter];
        assert_eq!((of(IaCounter::CmErr), of(IaCounter::CmRepTx)), (counts, 0), "{step}");
        assert_eq!((server.state(), server.query().unwrap().remote), (EpState::Unconnected, None));
        drop(error);
        expect_connection(&rig.client.connect, &refused, ConnectionEventKind::PeerRejected);
        let mut pair = rig.connect(server, rig.client.ep(&EpAttr::default()));
        let got = rig.deliver(&mut pair, 8);
        assert_eq!((got.status, got.cookie), (DtoStatus::Success, 5), "{step}");
        expect_nothing(&rig.server.recv);
        expect_nothing(&rig.server.connect);
    }
}

/// A request of `client`, which this EP accepts in vain: the device refuses the first command to its
/// QP, and then, from the command `refused` on, to return the QP to its state before. The reset is
/// the second command; the way to INIT begins with the third. Rejects the request after `meanwhile`,
/// which ends the faults.
fn accept_that_fails_twice(rig: &Rig, server: &mut Ep, refused: u32, meanwhile: impl FnOnce(&mut Ep)) {
    let client = rig.client.ep(&EpAttr::default());
    let (_psp, arrival) = rig.ask(&client);
    refuse("modify_qp", libc::ENOMEM);
    assert_eq!(order(&format!("fault cmd.modify_qp=12*0@{}", refused - 2)), 0);
    let error = arrival.cr.accept(server, &[]).unwrap_err();
    assert_eq!(error.error.return_type(), ReturnType::InsufficientResources, "{error:?}");
    assert_eq!(server.state(), EpState::Unconnected);
    meanwhile(server);
    drop(error);
    expect_connection(&rig.client.connect, &client, ConnectionEventKind::PeerRejected);
}

/// The next call that needs the QP of such an EP starts over.
fn an_ep_that_cannot_start_over_does_so_later() {
    for refused in [2, 3] {
        for posts in [true, false] {
            let rig = Rig::new();
            let mut server = rig.server.ep(&EpAttr::default());
            server.post_recv(&[rig.server.lmr.triplet(0, 64)], 5, NONE).unwrap();
            accept_that_fails_twice(&rig, &mut server, refused, |server| {
                let second = [rig.server.lmr.triplet(64, 64)];
                if posts {
                    let error = server.post_recv(&second, 6, NONE).unwrap_err();
                    assert_eq!(error.code(), dat::RESOURCE_MEMORY);
                }
                assert_eq!(order("no faults"), 0);
                if posts {
                    server.post_recv(&second, 6, NONE).unwrap();
                }
            });
            let mut pair = rig.connect(server, rig.client.ep(&EpAttr::default()));
            for cookie in if posts { 5..7 } else { 5..6 } {
                let got = rig.deliver(&mut pair, 8);
                assert_eq!((got.status, got.cookie), (DtoStatus::Success, cookie), "{refused}");
            }
            expect_nothing(&rig.server.recv);
        }
    }
}

/// The same of an EP on an SRQ, which has no receive queue. Its buffers stay with the SRQ.
fn an_ep_on_an_srq_starts_over_later() {
    for refused in [2, 3] {
        let rig = Rig::new();
        let mut srq = rig.server.srq(8);
        rig.server.post(&mut srq, 2, 64, 0, 5);
        let mut server = rig.server.srq_ep(&srq, &EpAttr::default());
        accept_that_fails_twice(&rig, &mut server, refused, |_| assert_eq!(order("no faults"), 0));
        assert_eq!(srq.query().unwrap().available, 2);
        let mut pair = rig.connect(server, rig.client.ep(&EpAttr::default()));
        for cookie in 5..7 {
            let got = rig.deliver(&mut pair, 8);
            assert_eq!((got.status, got.cookie), (DtoStatus::Success, cookie), "{refused}");
        }
        pair.server.close().unwrap();
        srq.close().unwrap();
    }
}

/// The connection manager no longer knows the request.
fn an_accept_without_a_request_is_aborted() {
    let rig = Rig::new();
    let server = rig.server.ep(&EpAttr::default());
    let client = rig.client.ep(&EpAttr::default());
    let (_psp, arrival) = rig.ask(&client);
    refuse("init_qp_attr", libc::EINVAL);
    assert_eq!(code(arrival.cr.accept(&server, &[])), dat::ABORT);
    assert_eq!(server.state(), EpState::Unconnected);
}

/// The peer is gone: nothing was sent that counts.
fn a_disconnect_that_nobody_hears_ends_the_connection() {
    let rig = Rig::new();
    let pair = rig.connect_plain(&EpAttr::default());
    rig.server.ia.take_counters(IaCounter::ALL).unwrap();
    refuse("disconnect", libc::EINVAL);
    pair.server.disconnect(CloseFlags::Abrupt).unwrap();
    expect_connection(&rig.server.connect, &pair.server, ConnectionEventKind::Disconnected);
    assert_eq!(counted(&rig.server.ia, IaCounter::CmDreqTx), 0);
    assert_eq!(pair.client.state(), EpState::Connected);
}

/// The connection manager tells that the setup has failed: no address, no route, no connection.
fn a_setup_ends_with_each_event_of_a_failure() {
    use ConnectionEventKind::{NonPeerRejected, Unreachable};
    let rig = Rig::new();
    let mut client = rig.client.ep(&EpAttr::default());
    let psp = Psp::builder(&rig.server.ia, &rig.server.cr).build().unwrap();
    let port = psp.port();
    // ADDR_RESOLVED, ROUTE_RESOLVED and CONNECT_RESPONSE come as ADDR_ERROR, ROUTE_ERROR and
    // CONNECT_ERROR.
    for (fault, kind) in [(0x0001, Unreachable), (0x0203, Unreachable), (0x0506, NonPeerRejected)] {
        assert_eq!(order(&format!("fault event={fault}")), 0);
        client
            .connect_with((rig.server.ia.address(), port).into(), ConnectOptions::new().timeout(LONG))
            .unwrap();
        let server = rig.server.ep(&EpAttr::default());
        if kind == NonPeerRejected {
            connection_request(&rig.server.cr).cr.accept(&server, &[]).unwrap();
        }
        expect_connection(&rig.client.connect, &client, kind);
        assert_eq!(client.state(), EpState::Disconnected);
        if kind == NonPeerRejected {
            expect_connection(&rig.server.connect, &server, ConnectionEventKind::AcceptCompletionError);
        }
        client.reset().unwrap();
    }
    let _pair = connect_and_deliver(&rig, rig.server.ep(&EpAttr::default()), client);
    expect_nothing(&rig.client.connect);
}

/// DISCONNECTED comes as DEVICE_REMOVAL.
fn a_connection_whose_device_goes_away_is_broken() {
    let rig = Rig::new();
    let pair = rig.connect_plain(&EpAttr::default());
    assert_eq!(order("fault event=0x0a0b"), 0);
    pair.server.disconnect(CloseFlags::Abrupt).unwrap();
    expect_connection(&rig.client.connect, &pair.client, ConnectionEventKind::Broken);
    assert_eq!(pair.client.state(), EpState::Disconnected);
}

/// The device does not complete a receive of an EP that is freed. The EP takes its buffer back.
fn a_freed_ep_gives_back_the_buffers_that_the_device_forgets() {
    let rig = Rig::new();
    let mut pool = RecvPool::new(&rig.server.ia, &rig.server.pz, 4, SIZE).unwrap();
    let mut pair = rig.connect_plain(&EpAttr::default());
    assert_eq!((pool.refill(&mut pair.server).unwrap(), pool.posted()), (4, 4));
    assert_eq!(order("fault stale"), 0);
    pair.server.close().unwrap();
    assert_eq!(pool.posted(), 0);
    assert_eq!(order("step"), 0);
    // The fault is left if the device had no time to complete a receive.
    assert_eq!(order("no faults"), 0);
}

fn remote(lmr: &Lmr, offset: u64, segment_length: u32) -> RmrTriplet {
    RmrTriplet { virtual_address: lmr.address() + offset, segment_length, rmr_context: lmr.rmr_context() }
}

fn bytes(lmr: &Lmr, offset: usize, n: usize) -> Vec<u8> {
    let mut read = vec![0; n];
    lmr.read(offset, &mut read).unwrap();
    read
}

/// libmlx5 refuses the second request of a chain, by verbs. The first one is posted, and suppressed. Its
/// place comes back, so that further chains find room, however often that happens.
fn places_come_back_when_verbs_refuses_a_request_of_a_chain() {
    let rig = Rig::new();
    let mut srq = rig.server.srq(16);
    rig.server.post(&mut srq, 16, 64, 1 << 20, 0);
    let attr = EpAttr { request_depth: 2, ..EpAttr::default() };
    let mut pair = rig.connect(rig.server.srq_ep(&srq, &EpAttr::default()), rig.client.ep(&attr));
    let (data, there) = ([rig.client.lmr.triplet(0, 8)], &rig.server.lmr);
    let chain = |n: u64| -> [ChainRequest<'_>; 2] {
        let write = Request::write(&data).to(remote(there, n * 8, 8)).suppress();
        [write.into(), Request::send(&data).cookie(n).into()]
    };
    for n in 0..5_u8 {
        rig.client.lmr.write(0, &[n + 1; 8]).unwrap();
        assert_eq!(order("fault post=12@1"), 0);
        let refused = pair.client.chain(&chain(n.into()));
        assert_eq!(refused, Err(ChainError { request: 1, error: PostError::Device(12) }));
        // The write was posted.
        until("the write has arrived", || bytes(there, usize::from(n) * 8, 8) == [n + 1; 8]);
        until("both places are free", || pair.client.chain(&chain(n.into())).is_ok());
        let sent = dto(&rig.client.request);
        assert_eq!((sent.status, sent.op, sent.cookie), (DtoStatus::Success, DtoOp::Send, n.into()));
    }
    // What ended the chains has no events, also if it fails.
    assert_eq!(order("fault post=12@1"), 0);
    assert_eq!(order("fault error=4@1"), 0);
    assert_eq!(pair.client.chain(&chain(9)).unwrap_err().request, 1);
    expect_connection(&rig.client.connect, &pair.client, ConnectionEventKind::Broken);
    expect_nothing(&rig.client.request);
}

/// libmlx5 refuses the request behind one of a pool. The EP has the pool's buffer until its completion.
fn a_pool_keeps_the_buffer_that_was_posted_before_a_refused_request() {
    let rig = Rig::new();
    let (_srq, mut received, mut pair) = rig.pooled(2);
    let mut pool = SendPool::new(&rig.client.ia, &rig.client.pz, 1, SIZE).unwrap();
    let data = [rig.client.lmr.triplet(0, 8)];
    let write = || Request::write(&data).to(remote(&rig.server.lmr, 0, 8)).cookie(1).into();
    let mut buf = pool.take().unwrap();
    buf[..4].copy_from_slice(b"sent");
    assert_eq!(order("fault post=12@1"), 0);
    let Refused { object, error } =
        pool.send(buf).len(4).post_between(&mut pair.client, &[], &[write()]).unwrap_err();
    assert_eq!((error, object.is_none()), (ChainError { request: 1, error: PostError::Device(12) }, true));
    assert_eq!((pool.posted(), pool.take().is_none()), (1, true));
    assert_eq!(*message(&rig.server, &mut received), *b"sent");
    assert!(pool.completed(&dto(&rig.client.request)));
    let buf = pool.take().unwrap();
    // The request of the pool itself is refused: its buffer comes back.
    assert_eq!(order("fault post=12@1"), 0);
    let Refused { object, error } =
        pool.send(buf).len(4).post_between(&mut pair.client, &[write()], &[write()]).unwrap_err();
    assert_eq!((error.request, object.is_some(), pool.posted()), (1, true, 0));
    assert_eq!(dto(&rig.client.request).cookie, 1);
}

/// libmlx5 refuses the third response of a batch of four, whose Write is posted. The connection ends, but
/// no buffer is free before it is drained: the device may still read the one of that Write.
fn a_storage_target_keeps_buffers_of_refused_responses() {
    const NQN: &str = "nqn.2026-11.example:disk";
    let target = Arc::new(Target::new(Limits::default()));
    // Reads of this backend go through buffers.
    let backend = Backend::faulty(Backend::ram(1 << 20), Arc::<Faults>::default());
    let namespace = Namespace::new(1, 12, derived_uuid(NQN, 1), backend);
    target.put(Subsystem::new(NQN, "S1", "M", None, [Arc::new(namespace)]));
    let (device, host) = devices().expect("a device");
    let mut engine =
        Engine::open(&target, &Options { device, port: 0, ..Options::default() }).unwrap().remove(0);
    let handle = engine.handle();
    let get = |gauge: &AtomicU64| gauge.load(Ordering::Relaxed);
    let address = handle.address;
    let connecting = std::thread::spawn(move || connect(&host, address, NQN));
    while !connecting.is_finished() {
        engine.turn().unwrap();
    }
    let (host, admin, mut queue) = connecting.join().expect("it does not panic").unwrap();
    let read = || target.hosts().iter().map(|(_, host)| get(&host.reads)).sum::<u64>();
    let mut pass = || {
        engine.turn().unwrap();
        engine.publish_gauges();
    };
    let stats = handle.stats();
    until("the controller is enabled and no command is left", || {
        pass();
        get(&stats.commands) == 0
    });
    let (free, posted) = (get(&stats.buffers_free), 4);
    for n in 0..posted {
        let mut sqe = Sqe { opcode: io::READ, nsid: 1.into(), ..Sqe::default() };
        queue.keyed(&mut sqe, n * 4096, 4096);
        queue.submit(sqe).unwrap();
    }
    queue.arrived().unwrap();
    assert_eq!(order("fault post=12@5"), 0);
    until("the responses were posted", || {
        pass();
        read() == posted as u64
    });
    // The third and the fourth get no completion. The others may have theirs.
    let (commands, held) = (get(&stats.commands), free - get(&stats.buffers_free));
    assert!((2..=4).contains(&commands) && held == commands, "{commands} commands hold {held} buffers");
    until("the connection is drained", || {
        pass();
        get(&stats.commands) == 0
    });
    assert_eq!(get(&stats.buffers_free), free);
    queue.end().unwrap();
    drop((admin, host));
    until("no connection is left", || {
        pass();
        get(&stats.connections) == 0
    });
}

/// An enabled controller of this subsystem, and its first I/O queue.
fn connect(device: &str, to: SocketAddr, subsystem: &str) -> Result<(Host, Connection, Connection), Error> {
    let host = Host::open(device)?;
    let name = "nqn.2026-11.example:host";
    let queue =
        |number, controller| Queue { number, entries: 32, controller, subsystem, host: name, keep_alive: 0 };
    let (mut admin, connected) = host.connect(to, queue(0, 0xffff))?;
    admin.execute(Sqe {
        opcode: fabrics::OPCODE,
        cdw11: fabrics::CC.into(),
        cdw12: (1 | 6 << 16 | 4 << 20).into(),
        ..Sqe::default()
    })?;
    let (io, _) = host.connect(to, queue(1, connected.result.get() as u16))?;
    Ok((host, admin, io))
}
