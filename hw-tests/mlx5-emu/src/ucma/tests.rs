//! Tests of the state machine alone: two managers are connected by queues, and the test sets the
//! time.

mod sim;

use super::abi::EventParam;
use super::addr::Addr;
use super::state::{EventKind, port_space};
use sim::*;
use std::time::Duration;

#[test]
fn private_data_arrives_padded_to_the_kernels_lengths() {
    let mut sim = Sim::new();
    let (_, request) = sim.requested(b"hello");
    assert_eq!(request.kind, EventKind::ConnectRequest);
    assert_eq!((private(&request).len(), &private(&request)[..6]), (56, &b"hello\0"[..]));
    sim.accept(B, request.id, b"welcome").expect("accept");
    let response = sim.events(A).pop().expect("a response");
    assert_eq!(response.kind, EventKind::ConnectResponse);
    assert_eq!((private(&response).len(), &private(&response)[..8]), (196, &b"welcome\0"[..]));
}

#[test]
fn private_data_longer_than_the_message_is_refused() {
    let mut sim = Sim::new();
    sim.listener(B, port_space::TCP);
    let active = sim.resolved_to(A, port_space::TCP, "127.0.0.1:7471");
    assert_eq!(sim.connect(A, active, &[1; 57]), Err(libc::EINVAL));
    sim.connect(A, active, &[1; 56]).expect("exactly as long as allowed");
    let request = sim.events(B).pop().expect("a request");
    assert_eq!(sim.accept(B, request.id, &[1; 197]), Err(libc::EINVAL));
    // The kernel rejects on the program's behalf then.
    let rejected = sim.events(A).pop().expect("a rejection");
    assert_eq!((rejected.kind, rejected.status), (EventKind::Rejected, 28));
}

#[test]
fn each_side_sees_the_others_depth_as_its_resources() {
    let mut sim = Sim::new();
    let (_, request) = sim.requested(b"");
    let EventParam::Conn(param) = request.param else { panic!("connection parameters") };
    assert_eq!((param.responder_resources, param.initiator_depth, param.qp_num), (2, 3, 0x111));
    assert_eq!((param.retry_count, param.rnr_retry_count), (6, 7));
}

#[test]
fn disconnect_is_reported_once_on_both_sides_then_timewait_ends() {
    let mut sim = Sim::new();
    let (a, b) = sim.connected();
    sim.disconnect(A, a);
    assert_eq!(kinds(&sim.events(B)), [EventKind::Disconnected]);
    // The answer is the other program's own disconnect.
    assert_eq!(kinds(&sim.events(A)), []);
    sim.disconnect(B, b);
    assert_eq!(kinds(&sim.events(A)), [EventKind::Disconnected]);
    sim.disconnect(A, a);
    sim.disconnect(B, b);
    assert_eq!(kinds(&sim.events(B)), []);
    sim.pass(Duration::from_secs(1));
    assert_eq!(kinds(&sim.events(A)), [EventKind::TimewaitExit]);
    assert_eq!(kinds(&sim.events(B)), [EventKind::TimewaitExit]);
    sim.pass(Duration::from_secs(100));
    assert_eq!(kinds(&sim.events(A)), []);
}

#[test]
fn disconnects_that_cross_are_reported_once() {
    let mut sim = Sim::new();
    let (a, b) = sim.connected();
    sim.disconnect(A, a);
    sim.disconnect(B, b);
    assert_eq!(kinds(&sim.events(A)), [EventKind::Disconnected]);
    assert_eq!(kinds(&sim.events(B)), [EventKind::Disconnected]);
    sim.pass(Duration::from_secs(100));
    assert_eq!(kinds(&sim.events(A)), []);
}

#[test]
fn destroying_one_end_disconnects_the_other() {
    let mut sim = Sim::new();
    let (a, b) = sim.connected();
    sim.destroy(A, a);
    assert_eq!(kinds(&sim.events(B)), [EventKind::Disconnected]);
    sim.disconnect(B, b);
    sim.pass(Duration::from_secs(1));
    assert_eq!(kinds(&sim.events(B)), [EventKind::TimewaitExit]);
}

#[test]
fn an_unanswered_disconnect_ends_by_itself() {
    let mut sim = Sim::new();
    let (a, _) = sim.connected();
    sim.world.borrow_mut().mute = true;
    sim.disconnect(A, a);
    sim.pass(Duration::from_secs(11));
    let events = sim.events(A);
    assert_eq!(kinds(&events), [EventKind::Disconnected]);
    assert_eq!(events[0].status, -libc::ETIMEDOUT);
}

#[test]
fn death_of_the_peer_disconnects() {
    for dead in [A, B] {
        let mut sim = Sim::new();
        let (a, b) = sim.connected();
        sim.kill(dead);
        let (side, id) = if dead == A { (B, b) } else { (A, a) };
        assert_eq!(kinds(&sim.events(side)), [EventKind::Disconnected]);
        sim.disconnect(side, id);
        sim.pass(Duration::from_secs(1));
        assert_eq!(kinds(&sim.events(side)), [EventKind::TimewaitExit]);
    }
}

#[test]
fn death_of_the_peer_while_connecting_rejects() {
    let mut sim = Sim::new();
    sim.listener(B, port_space::TCP);
    let active = sim.resolved_to(A, port_space::TCP, "127.0.0.1:7471");
    sim.connect(A, active, b"").expect("connect");
    sim.kill(B);
    let events = sim.events(A);
    assert_eq!(kinds(&events), [EventKind::Rejected]);
    assert_eq!(events[0].status, 28);
}

#[test]
fn the_active_side_may_still_reject_the_answer() {
    let mut sim = Sim::new();
    let (active, request) = sim.requested(b"");
    sim.accept(B, request.id, b"").expect("accept");
    assert_eq!(kinds(&sim.events(A)), [EventKind::ConnectResponse]);
    sim.at(A, |cm, cx| cm.reject(cx, FILE, active, 0, Vec::new())).expect("reject");
    assert_eq!(kinds(&sim.events(B)), [EventKind::Rejected]);
}

#[test]
fn a_request_that_was_withdrawn_can_no_longer_be_accepted() {
    let mut sim = Sim::new();
    let (active, request) = sim.requested(b"");
    sim.destroy(A, active);
    // Nobody told the program's name for the new identifier yet: no event, but accept fails.
    assert_eq!(kinds(&sim.events(B)), []);
    assert_eq!(sim.accept(B, request.id, b""), Err(libc::EINVAL));
}

#[test]
fn a_silent_peer_is_unreachable_after_the_timeout() {
    let mut sim = Sim::new();
    let active = sim.resolved_to(A, port_space::TCP, "192.0.2.7:7471");
    sim.connect(A, active, b"").expect("connect");
    sim.pass(Duration::from_secs(9));
    assert_eq!(kinds(&sim.events(A)), []);
    sim.pass(Duration::from_secs(2));
    let events = sim.events(A);
    assert_eq!(kinds(&events), [EventKind::Unreachable]);
    assert_eq!(events[0].status, -libc::ETIMEDOUT);
}

#[test]
fn own_address_in_the_silent_network_answers() {
    let mut sim = Sim::new();
    sim.listener(B, port_space::TCP);
    let active = sim.resolved_to(A, port_space::TCP, "192.0.2.1:7471");
    sim.connect(A, active, b"").expect("connect");
    assert_eq!(kinds(&sim.events(B)), [EventKind::ConnectRequest]);
}

#[test]
fn a_peer_that_got_the_request_has_longer_to_decide() {
    let mut sim = Sim::new();
    let (_, request) = sim.requested(b"");
    sim.pass(Duration::from_secs(60));
    assert_eq!(kinds(&sim.events(A)), []);
    sim.pass(Duration::from_secs(20));
    assert_eq!(kinds(&sim.events(A)), [EventKind::Unreachable]);
    assert_eq!(sim.accept(B, request.id, b""), Err(libc::EINVAL));
}

#[test]
fn a_foreign_address_times_out_and_can_be_retried() {
    let mut sim = Sim::new();
    let id = sim.create(A, port_space::TCP);
    let resolve =
        |sim: &mut Sim, dst: &str| sim.at(A, |cm, cx| cm.resolve_addr(cx, FILE, id, None, ip(dst), 2000));
    assert_eq!(resolve(&mut sim, "240.1.1.1:1"), Err(libc::ENETUNREACH));
    resolve(&mut sim, "10.9.9.9:1").expect("asked");
    sim.pass(Duration::from_secs(1));
    assert_eq!(kinds(&sim.events(A)), []);
    sim.pass(Duration::from_secs(1));
    let events = sim.events(A);
    assert_eq!(kinds(&events), [EventKind::AddrError]);
    assert_eq!(events[0].status, -libc::ETIMEDOUT);
    resolve(&mut sim, "127.0.0.1:1").expect("again");
    assert_eq!(kinds(&sim.events(A)), [EventKind::AddrResolved]);
}

#[test]
fn steps_out_of_order_are_invalid() {
    let mut sim = Sim::new();
    let id = sim.create(A, port_space::TCP);
    assert_eq!(sim.at(A, |cm, _| cm.resolve_route(FILE, id)), Err(libc::EINVAL));
    assert_eq!(sim.connect(A, id, b""), Err(libc::EINVAL));
    assert_eq!(sim.accept(A, id, b""), Err(libc::EINVAL));
    assert_eq!(sim.at(A, |cm, cx| cm.disconnect(cx, FILE, id)), Err(libc::EINVAL));
    assert_eq!(sim.at(A, |cm, cx| cm.reject(cx, FILE, id, 0, Vec::new())), Err(libc::EINVAL));
    sim.at(A, |cm, cx| cm.bind(cx, FILE, id, ip("127.0.0.1:0"))).expect("bind");
    assert_eq!(sim.at(A, |cm, cx| cm.bind(cx, FILE, id, ip("127.0.0.1:0"))), Err(libc::EINVAL));
    assert_eq!(sim.at(A, |cm, cx| cm.bind(cx, FILE, 99, ip("127.0.0.1:0"))), Err(libc::ENOENT));
    assert_eq!(sim.at(A, |cm, cx| cm.bind(cx, 2, id, ip("127.0.0.1:0"))), Err(libc::EINVAL));
}

#[test]
fn a_taken_port_and_a_foreign_address_cannot_be_bound() {
    let mut sim = Sim::new();
    sim.listener_with(B, port_space::TCP, "127.0.0.1:7471", 1);
    let id = sim.create(A, port_space::TCP);
    let bind = |sim: &mut Sim, addr: &str| sim.at(A, |cm, cx| cm.bind(cx, FILE, id, ip(addr)));
    assert_eq!(bind(&mut sim, "127.0.0.1:7471"), Err(libc::EADDRINUSE));
    assert_eq!(bind(&mut sim, "0.0.0.0:7471"), Err(libc::EADDRNOTAVAIL));
    assert_eq!(bind(&mut sim, "10.0.0.1:7471"), Err(libc::EADDRNOTAVAIL));
    bind(&mut sim, "127.0.0.2:7471").expect("another address");
    // Another port space is another world.
    let udp = sim.create(A, port_space::UDP);
    sim.at(A, |cm, cx| cm.bind(cx, FILE, udp, ip("127.0.0.1:7471"))).expect("another port space");
}

#[test]
fn with_reuseaddr_two_may_bind_and_one_may_listen() {
    let mut sim = Sim::new();
    let ids = [A, B].map(|side| {
        let id = sim.create(side, port_space::TCP);
        let on = 1i32.to_ne_bytes();
        sim.at(side, |cm, _| cm.set_option(FILE, id, 0, 1, &on)).expect("option");
        sim.at(side, |cm, cx| cm.bind(cx, FILE, id, ip("127.0.0.1:7471"))).expect("bind");
        id
    });
    sim.at(A, |cm, cx| cm.listen(cx, FILE, ids[0], 1)).expect("listen");
    assert_eq!(sim.at(B, |cm, cx| cm.listen(cx, FILE, ids[1], 1)), Err(libc::EADDRINUSE));
}

#[test]
fn requests_beyond_the_backlog_wait_for_room() {
    let mut sim = Sim::new();
    sim.listener_with(B, port_space::TCP, "0.0.0.0:7471", 2);
    let active: Vec<_> = (0..5)
        .map(|_| {
            let id = sim.resolved_to(A, port_space::TCP, "127.0.0.1:7471");
            sim.connect(A, id, b"").expect("connect");
            id
        })
        .collect();
    sim.deliver();
    assert_eq!(sim.cms[B].pending(FILE), 2);
    let requests = sim.events(B);
    assert_eq!(requests.len(), 5);
    for request in requests {
        sim.accept(B, request.id, b"").expect("accept");
    }
    assert_eq!(sim.events(A).len(), active.len());
}

#[test]
fn a_busy_listener_is_dialled_again() {
    let mut sim = Sim::new();
    sim.listener(B, port_space::TCP);
    let active = sim.resolved_to(A, port_space::TCP, "127.0.0.1:7471");
    sim.world.borrow_mut().busy = true;
    sim.connect(A, active, b"").expect("connect");
    sim.pass(Duration::from_millis(10));
    assert_eq!(kinds(&sim.events(B)), []);
    sim.world.borrow_mut().busy = false;
    sim.pass(Duration::from_millis(10));
    assert_eq!(kinds(&sim.events(B)), [EventKind::ConnectRequest]);
}

#[test]
fn a_listener_that_goes_rejects_what_nobody_took() {
    let mut sim = Sim::new();
    let listener = sim.listener_with(B, port_space::TCP, "0.0.0.0:7471", 1);
    for _ in 0..2 {
        let active = sim.resolved_to(A, port_space::TCP, "127.0.0.1:7471");
        sim.connect(A, active, b"").expect("connect");
    }
    sim.deliver();
    assert_eq!(sim.destroy(B, listener), 0);
    let mut reasons: Vec<_> = sim.events(A).iter().map(|event| event.status).collect();
    reasons.sort_unstable();
    // One had an identifier already, one was still waiting for room.
    assert_eq!(reasons, [8, 28]);
    assert_eq!(sim.cms[B].ids.len(), 0);
}

#[test]
fn destroy_returns_how_many_events_were_taken() {
    let mut sim = Sim::new();
    let (a, b) = sim.connected();
    sim.disconnect(B, b);
    sim.deliver();
    // Address, route, response; the disconnect was not taken and goes with the identifier.
    assert_eq!(sim.destroy(A, a), 3);
    assert_eq!(kinds(&sim.events(A)), []);
    // Established on the passive side; the request counts for its listener.
    assert_eq!(sim.destroy(B, b), 1);
}

#[test]
fn identifiers_reuse_the_smallest_free_number() {
    let mut sim = Sim::new();
    let ids: Vec<_> = (0..4).map(|_| sim.create(A, port_space::TCP)).collect();
    assert_eq!(ids, [0, 1, 2, 3]);
    sim.destroy(A, 1);
    assert_eq!(sim.create(A, port_space::TCP), 1);
    assert_eq!(sim.create(A, port_space::TCP), 4);
}

#[test]
fn migration_moves_the_waiting_events() {
    let mut sim = Sim::new();
    let (a, b) = sim.connected();
    sim.at(A, |cm, _| cm.open(2));
    sim.disconnect(B, b);
    sim.deliver();
    assert_eq!(sim.at(A, |cm, _| cm.migrate(FILE, 2, a)), Ok(3));
    assert_eq!(kinds(&sim.events_of(A, FILE)), []);
    assert_eq!(kinds(&sim.events_of(A, 2)), [EventKind::Disconnected]);
    assert_eq!(sim.at(A, |cm, cx| cm.disconnect(cx, FILE, a)), Err(libc::EINVAL));
    assert_eq!(sim.at(A, |cm, _| cm.migrate(FILE, 2, a)), Err(libc::EINVAL));
}

#[test]
fn closing_a_file_destroys_what_is_in_it() {
    let mut sim = Sim::new();
    sim.connected();
    sim.at(A, |cm, cx| cm.close(cx, FILE));
    assert_eq!(kinds(&sim.events(B)), [EventKind::Disconnected]);
    assert!(sim.cms[A].ids.is_empty());
}

#[test]
fn early_data_establishes_and_the_rtu_adds_nothing() {
    let mut sim = Sim::new();
    let (active, request) = sim.requested(b"");
    sim.accept(B, request.id, b"").expect("accept");
    sim.at(B, |cm, _| cm.notify(FILE, request.id, 4)).expect("notify");
    assert_eq!(kinds(&sim.events(B)), [EventKind::Established]);
    sim.events(A);
    sim.rtu(A, active).expect("rtu");
    assert_eq!(kinds(&sim.events(B)), []);
}

#[test]
fn a_refused_datagram_request_is_unreachable_with_the_status() {
    let mut sim = Sim::new();
    let nobody = sim.resolved_to(A, port_space::UDP, "127.0.0.1:7471");
    sim.connect(A, nobody, b"").expect("connect");
    assert_eq!(sim.events(A).pop().map(|e| (e.kind, e.status)), Some((EventKind::Unreachable, 1)));
    sim.listener(B, port_space::UDP);
    let active = sim.resolved_to(A, port_space::UDP, "127.0.0.1:7471");
    sim.connect(A, active, b"").expect("connect");
    let request = sim.events(B).pop().expect("a request");
    sim.at(B, |cm, cx| cm.reject(cx, FILE, request.id, 0, Vec::new())).expect("reject");
    assert_eq!(sim.events(A).pop().map(|e| (e.kind, e.status)), Some((EventKind::Unreachable, 2)));
}

#[test]
fn join_gives_the_address_and_leave_the_count_of_events() {
    let mut sim = Sim::new();
    let group = ip("239.1.2.3:0");
    let join = |sim: &mut Sim, id| sim.at(A, |cm, _| cm.join(FILE, id, 0xabc, group));
    let stream = sim.resolved_to(A, port_space::TCP, "127.0.0.1:7471");
    assert_eq!(join(&mut sim, stream), Err(libc::EINVAL), "not a datagram identifier");
    let id = sim.create(A, port_space::UDP);
    assert_eq!(join(&mut sim, id), Err(libc::EINVAL), "not bound");
    sim.at(A, |cm, cx| cm.resolve_addr(cx, FILE, id, None, ip("239.1.2.3:0"), 100)).expect("resolve_addr");
    assert_eq!(kinds(&sim.events(A)), [EventKind::AddrResolved]);
    let number = join(&mut sim, id).expect("join");
    let event = sim.events(A).pop().expect("an event");
    assert_eq!((event.kind, event.uid, event.group), (EventKind::MulticastJoin, 0xabc, Some(number)));
    let EventParam::Ud(param) = &event.param else { panic!("datagram parameters") };
    assert_eq!((param.qp_num, param.qkey), (0xff_ffff, 0x0123_4567));
    assert_eq!(param.ah[10..16], [0xff, 0xff, 239, 1, 2, 3]);
    let second = join(&mut sim, id).expect("join");
    let leave = |sim: &mut Sim, number| sim.at(A, |cm, _| cm.leave(FILE, number));
    assert_eq!(leave(&mut sim, number), Ok(1));
    assert_eq!(leave(&mut sim, number), Err(libc::ENOENT));
    assert_eq!(leave(&mut sim, second), Ok(0), "its event was not taken");
    assert_eq!(kinds(&sim.events(A)), [], "and goes with it");
    let last = join(&mut sim, id).expect("join");
    sim.destroy(A, id);
    assert_eq!(leave(&mut sim, last), Err(libc::ENOENT), "it goes with its identifier");
}

#[test]
fn queue_pair_attributes_pair_both_ends() {
    let mut sim = Sim::new();
    let (a, b) = sim.connected();
    let [rtr_a, rts_a] = [2, 3].map(|state| sim.qp_attr(A, a, state).expect("attributes"));
    let [rtr_b, rts_b] = [2, 3].map(|state| sim.qp_attr(B, b, state).expect("attributes"));
    // STATE AV PATH_MTU RQ_PSN MIN_RNR_TIMER MAX_DEST_RD_ATOMIC DEST_QPN
    assert_eq!(rtr_a.u32(0), 1 | 1 << 7 | 1 << 8 | 1 << 12 | 1 << 15 | 1 << 17 | 1 << 20);
    // STATE TIMEOUT RETRY_CNT RNR_RETRY MAX_QP_RD_ATOMIC SQ_PSN
    assert_eq!(rts_a.u32(0), 1 | 1 << 9 | 1 << 10 | 1 << 11 | 1 << 13 | 1 << 16);
    assert_eq!((rtr_a.u32(32), rtr_b.u32(32)), (0x222, 0x111), "destination QPNs");
    assert_eq!(rtr_a.u32(24), rts_b.u32(28), "what B sends first is what A expects");
    assert_eq!(rtr_b.u32(24), rts_a.u32(28), "what A sends first is what B expects");
    assert_eq!(rtr_a.u32(12), 5, "path MTU");
    assert_eq!(rtr_a.0[50..56], [0xff, 0xff, 127, 0, 0, 1], "destination GID");
    assert_eq!((rtr_a.0[60], rtr_a.0[69], rtr_a.0[70]), (7, 1, 1), "sgid index, is_global, port");
    // B accepted with resources 3 and depth 2: A may start 3 reads and must answer 2.
    assert_eq!((rtr_a.0[131], rts_a.0[130]), (2, 3));
    assert_eq!((rtr_b.0[131], rts_b.0[130]), (3, 2));
    assert_eq!((rts_a.0[134], rts_a.0[135], rts_a.0[136]), (17, 6, 7), "timeout, retries, RNR retries");
}

#[test]
fn attributes_for_init_are_there_before_a_peer_is() {
    let mut sim = Sim::new();
    let unbound = sim.create(A, port_space::TCP);
    assert_eq!(sim.qp_attr(A, unbound, 1).err(), Some(libc::EINVAL));
    let tcp = sim.resolved_to(A, port_space::TCP, "127.0.0.1:7471");
    let init = sim.qp_attr(A, tcp, 1).expect("attributes");
    assert_eq!((init.u32(0), init.u32(36), init.0[133]), (1 | 1 << 3 | 1 << 4 | 1 << 5, 0, 1));
    let udp = sim.resolved_to(A, port_space::UDP, "127.0.0.1:7471");
    let init = sim.qp_attr(A, udp, 1).expect("attributes");
    assert_eq!((init.u32(0), init.u32(20)), (1 | 1 << 4 | 1 << 5 | 1 << 6, 0x0123_4567));
    assert_eq!(sim.qp_attr(A, tcp, 7).err(), Some(libc::EINVAL));
}

#[test]
fn address_queries_name_the_device_once_bound_to_one() {
    let mut sim = Sim::new();
    let id = sim.create(A, port_space::TCP);
    sim.at(A, |cm, cx| cm.bind(cx, FILE, id, ip("0.0.0.0:0"))).expect("bind");
    let reply = sim.at(A, |cm, _| cm.query_addr(FILE, id, 280)).expect("addresses");
    assert_eq!(reply[0..8], [0; 8], "a wildcard is no device's");
    assert_ne!(reply[18..20], [0, 0], "a port was chosen");
    let id = sim.resolved_to(A, port_space::TCP, "127.0.0.1:7471");
    let reply = sim.at(A, |cm, _| cm.query_addr(FILE, id, 280)).expect("addresses");
    assert_eq!(reply[0..8], 0x1122_3344_5566_7788u64.to_be_bytes());
    assert_eq!(reply[20..24], [127, 0, 0, 1], "source");
    assert_eq!(reply[144 + 2..144 + 8], [0x1d, 0x2f, 127, 0, 0, 1], "destination and port");
    let reply = sim.at(A, |cm, _| cm.query_addr(FILE, id, 272)).expect("addresses");
    assert_eq!(reply.len(), 272, "older callers have less room");
    let path = sim.at(A, |cm, _| cm.query_path(FILE, id, 600)).expect("a path");
    assert_eq!((path.len(), path[0], path[70] & 0x3f), (80, 1, 5));
    let route = sim.at(A, |cm, _| cm.query_route(FILE, id, 208)).expect("a route");
    assert_eq!((route[192], route[196], route[62]), (1, 1, 64));
    let gid = sim.at(A, |cm, _| cm.query_gid(FILE, id, 280)).expect("GIDs");
    assert_eq!(gid[144 + 18..144 + 24], [0xff, 0xff, 127, 0, 0, 1]);
}

#[test]
fn the_library_can_tell_that_infiniband_addresses_are_known() {
    let mut sim = Sim::new();
    let id = sim.create(A, port_space::IB);
    let mut raw = [0; 48];
    raw[0] = 27;
    sim.at(A, |cm, cx| cm.bind(cx, FILE, id, Addr::Ib(raw))).expect("the wildcard");
    raw[8] = 0xfe;
    let id = sim.create(A, port_space::IB);
    assert_eq!(sim.at(A, |cm, cx| cm.bind(cx, FILE, id, Addr::Ib(raw))), Err(libc::ENODEV));
}

#[test]
fn a_users_event_comes_back_with_its_word() {
    let mut sim = Sim::new();
    let id = sim.create(A, port_space::TCP);
    sim.at(A, |cm, _| cm.write_event(FILE, id, 18, 5, [9; 8])).expect("written");
    assert_eq!(sim.at(A, |cm, _| cm.write_event(FILE, id, 9, 0, [0; 8])), Err(libc::EINVAL));
    let event = sim.events(A).pop().expect("the event");
    assert_eq!((event.kind, event.status, event.param), (EventKind::User, 5, EventParam::Arg([9; 8])));
}
