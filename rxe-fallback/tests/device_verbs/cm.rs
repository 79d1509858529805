//! Connections through rdma_cm.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use libtest_mimic::Failed;
use rxe_fallback::cm::{Connection, Incoming, Listener, Resolved};
use rxe_fallback::{CmEvent, CmEventKind, CmId, ConnParam, EventChannel, QpState, SendOp, SendWr};

use crate::support::{Endpoint, Ends, LIMIT, Shape, TestResult, all_good, cm_event, ensure, open_fds, same};
use crate::{Suite, suite};

pub(crate) fn suite() -> Suite {
    suite![
        connection_carries_private_data_and_messages,
        connection_allows_reads_of_queue_pairs_that_were_in_init,
        event_by_event_without_the_blocking_helpers,
        rejection_carries_private_data,
        nobody_listening_is_refused_in_bounded_time,
        address_where_nobody_is_fails_in_bounded_time,
        address_that_no_device_has_is_refused,
        port_in_use_is_named,
        too_much_private_data_is_refused,
        calls_out_of_order_are_errors_and_nothing_worse,
        dropped_request_is_a_rejection,
        dropped_listener_and_channel_with_events_pending,
        accept_timeout_ends_in_time,
        connections_leave_no_descriptor_behind,
        ids_move_between_channels_with_their_tokens,
        event_and_dropping_threads_do_not_deadlock,
    ]
}

/// A connected pair: (active, passive).
struct Pair {
    a: (Endpoint, Connection),
    b: (Endpoint, Connection),
}

fn listen(ends: &Ends) -> Result<(Listener, SocketAddr), Failed> {
    let listener = Listener::bind(ends.b.addr(0), 16)?;
    let address = listener.local_addr().ok_or("no address")?;
    Ok((listener, address))
}

fn resolve(ends: &Ends, to: SocketAddr) -> Result<Resolved, rxe_fallback::Error> {
    Resolved::resolve_timeout(Some(ends.a.addr(0)), to, LIMIT)
}

fn accept(ends: &Ends, incoming: Incoming, data: &[u8]) -> Result<(Endpoint, Connection), Failed> {
    let b = Endpoint::new(&ends.b, &Shape::default())?;
    incoming.id().qp_to_init(&b.qp)?;
    b.qp.post_recv(0, &[b.sge(0, 1024)])?;
    let param = ConnParam { private_data: data, ..ConnParam::for_qp(&b.qp) };
    let connection = incoming.accept_timeout(&b.qp, &param, LIMIT)?;
    Ok((b, connection))
}

fn pair(ends: &Ends) -> Result<Pair, Failed> {
    let (listener, address) = listen(ends)?;
    std::thread::scope(|scope| {
        let passive = scope.spawn(|| {
            let incoming = listener.accept_timeout(LIMIT)?;
            ensure(incoming.private_data.starts_with(b"from a"), || format!("{:?}", incoming.private_data))?;
            accept(ends, incoming, b"from b")
        });
        let active = (|| {
            let resolved = resolve(ends, address)?;
            let a = Endpoint::new(&ends.a, &Shape::default())?;
            resolved.id().qp_to_init(&a.qp)?;
            a.qp.post_recv(0, &[a.sge(0, 1024)])?;
            let param = ConnParam { private_data: b"from a", ..ConnParam::for_qp(&a.qp) };
            let connection = resolved.connect_timeout(&a.qp, &param, LIMIT)?;
            Ok::<_, Failed>((a, connection))
        })();
        let passive = passive.join().map_err(|_| "the passive side panicked")?;
        Ok(Pair { a: active?, b: passive? })
    })
}

fn connection_carries_private_data_and_messages(ends: &Ends) -> TestResult {
    let Pair { a: (a, at_a), b: (b, at_b) } = pair(ends)?;
    ensure(at_a.private_data.starts_with(b"from b"), || format!("{:?}", at_a.private_data))?;
    same("peer's QP", (at_a.conn.qp_num, at_b.conn.qp_num), (b.qp.num(), a.qp.num()))?;
    same("device", at_a.id().device_name().as_deref(), Some(ends.a.context.name()))?;
    same("port", at_a.id().port_num(), ends.a.port)?;
    same("addresses", at_a.id().local_addr(), at_b.id().peer_addr())?;
    same("addresses back", at_a.id().peer_addr(), at_b.id().local_addr())?;

    a.mr.write_at(2048, b"over the connection")?;
    a.qp.post_send(&SendWr::send(1, &[a.sge(2048, 19)]))?;
    all_good(&a.sent(1)?)?;
    all_good(&b.received(1)?)?;
    same("bytes", b.bytes(0, 19), b"over the connection".to_vec())?;
    b.qp.post_send(&SendWr::send(1, &[b.sge(0, 19)]))?;
    all_good(&a.received(1)?)?;

    at_a.disconnect()?;
    at_b.wait_disconnected_timeout(LIMIT)?;
    at_a.wait_disconnected_timeout(LIMIT)?;
    a.qp.to_error()?;
    same("QP", a.qp.state()?, QpState::Error)
}

/// rdma_cm learns from the connection that the peer reads. The QPs of both sides were moved to INIT
/// before, without the right to be read from.
fn connection_allows_reads_of_queue_pairs_that_were_in_init(ends: &Ends) -> TestResult {
    let Pair { a: (a, _at_a), b: (b, _at_b) } = pair(ends)?;
    for (reader, peer) in [(&a, &b), (&b, &a)] {
        peer.mr.write_at(512, b"to be read")?;
        let read = SendOp::Read { remote_addr: peer.sge(512, 10).addr, rkey: peer.mr.rkey() };
        reader.qp.post_send(&SendWr::new(1, read, &[reader.sge(3072, 10)]))?;
        all_good(&reader.sent(1)?)?;
        same("bytes", reader.bytes(3072, 10), b"to be read".to_vec())?;
    }
    Ok(())
}

fn expect(channel: &EventChannel, kind: CmEventKind, token: u64) -> Result<CmEvent, Failed> {
    let event = cm_event(channel)?;
    same("event", (event.kind, event.token, event.status), (kind, token, 0))?;
    Ok(event)
}

fn event_by_event_without_the_blocking_helpers(ends: &Ends) -> TestResult {
    let (active, passive) = (EventChannel::create()?, EventChannel::create()?);
    let listener = CmId::create(&passive, 100)?;
    listener.bind(ends.b.addr(0))?;
    listener.listen(4)?;
    let address = listener.local_addr().ok_or("no address")?;

    let id = CmId::create(&active, 1)?;
    same("no event yet", active.next_event()?.is_none(), true)?;
    id.resolve_addr(Some(ends.a.addr(0)), address, LIMIT)?;
    expect(&active, CmEventKind::AddrResolved, 1)?;
    id.resolve_route(LIMIT)?;
    expect(&active, CmEventKind::RouteResolved, 1)?;
    let a = Endpoint::new(&ends.a, &Shape::default())?;
    id.qp_to_init(&a.qp)?;
    id.set_token(2);
    let offer = ConnParam { responder_resources: 3, initiator_depth: 2, ..ConnParam::for_qp(&a.qp) };
    id.connect(&offer)?;

    let request = expect(&passive, CmEventKind::ConnectRequest, 100)?;
    same("listener", request.listener_token, Some(100))?;
    same("peer's QP", request.conn.qp_num, a.qp.num())?;
    // Seen from here: what the peer has under way is what this side may have to serve.
    same("reads", (request.conn.responder_resources, request.conn.initiator_depth), (2, 3))?;
    let other = request.new_id.ok_or("no id")?;
    other.set_token(200);
    let b = Endpoint::new(&ends.b, &Shape::default())?;
    let answer = ConnParam { responder_resources: 2, initiator_depth: 3, ..ConnParam::for_qp(&b.qp) };
    other.qp_to_rts(&b.qp, Some(2), Some(3))?;
    other.accept(&answer)?;

    let response = expect(&active, CmEventKind::ConnectResponse, 2)?;
    same("peer's QP", response.conn.qp_num, b.qp.num())?;
    id.qp_to_rts(&a.qp, None, None)?;
    id.establish()?;
    expect(&passive, CmEventKind::Established, 200)?;
    same("states", (a.qp.state()?, b.qp.state()?), (QpState::Rts, QpState::Rts))?;

    other.disconnect()?;
    expect(&active, CmEventKind::Disconnected, 2)?;
    // The side that disconnected gets its event once this side has answered.
    same("before the answer", passive.next_event()?.is_none(), true)?;
    id.disconnect()?;
    expect(&passive, CmEventKind::Disconnected, 200)?;
    Ok(())
}

/// The client's event after the request was handled by `answer`. A rejection that gets lost on the
/// wire is not sent again: the request is, and arrives as a new one.
fn answered(
    listener: &Listener,
    resolved: &Resolved,
    answer: impl Fn(Incoming) -> rxe_fallback::Result<()>,
) -> Result<CmEvent, Failed> {
    let deadline = Instant::now() + LIMIT;
    while Instant::now() < deadline {
        match listener.accept_timeout(Duration::from_secs(1)) {
            Ok(incoming) => answer(incoming)?,
            Err(error) => same("while waiting for a request", error.errno(), libc::ETIMEDOUT)?,
        }
        if let Some(event) = resolved.id().channel().next_event_timeout(Duration::from_secs(1))? {
            return Ok(event);
        }
    }
    Err("no answer in time".into())
}

fn rejection_carries_private_data(ends: &Ends) -> TestResult {
    let (listener, address) = listen(ends)?;
    let resolved = resolve(ends, address)?;
    let a = Endpoint::new(&ends.a, &Shape::default())?;
    resolved.id().connect(&ConnParam::for_qp(&a.qp))?;
    let event = answered(&listener, &resolved, |incoming| incoming.reject(b"not today"))?;
    same("kind", event.kind, CmEventKind::Rejected)?;
    ensure(event.rejected_by_consumer() && !event.nobody_listens(), || format!("status {}", event.status))?;
    ensure(event.private_data.starts_with(b"not today"), || format!("{:?}", event.private_data))?;
    same("errno", event.errno(), libc::ECONNREFUSED)
}

fn nobody_listening_is_refused_in_bounded_time(ends: &Ends) -> TestResult {
    // A port that was free before.
    let (listener, address) = listen(ends)?;
    drop(listener);
    let resolved = resolve(ends, address)?;
    let a = Endpoint::new(&ends.a, &Shape::default())?;
    let error = resolved.connect_timeout(&a.qp, &ConnParam::for_qp(&a.qp), LIMIT).err().ok_or("connected")?;
    same("error", (error.verb(), error.errno()), ("rdma_connect", libc::ECONNREFUSED))?;
    ensure(error.to_string().contains("does not listen"), || error.to_string())
}

fn address_where_nobody_is_fails_in_bounded_time(ends: &Ends) -> TestResult {
    let start = Instant::now();
    let limit = Duration::from_secs(3);
    let error = Resolved::resolve_timeout(Some(ends.a.addr(0)), "203.0.113.77:7777".parse()?, limit)
        .err()
        .ok_or("resolved")?;
    ensure(start.elapsed() < limit + LIMIT, || format!("{:?}", start.elapsed()))?;
    same("verb", error.verb(), "rdma_resolve_addr")
}

fn address_that_no_device_has_is_refused(_: &Ends) -> TestResult {
    let error = Listener::bind("192.0.2.77:0".parse()?, 1).err().ok_or("bound")?;
    same("verb", error.verb(), "rdma_bind_addr")?;
    ensure(error.to_string().contains("192.0.2.77"), || error.to_string())
}

fn port_in_use_is_named(ends: &Ends) -> TestResult {
    let (_listener, address) = listen(ends)?;
    let error = Listener::bind(address, 1).err().ok_or("bound twice")?;
    same("errno", error.errno(), libc::EADDRINUSE)?;
    ensure(error.verb() != "rdma_bind_addr" || error.to_string().contains(&address.to_string()), || {
        error.to_string()
    })
}

fn too_much_private_data_is_refused(ends: &Ends) -> TestResult {
    let (_listener, address) = listen(ends)?;
    let resolved = resolve(ends, address)?;
    for len in [rxe_fallback::cm::MAX_CONNECT_DATA + 1, 255, 256, 1000] {
        let data = vec![1; len];
        let param = ConnParam { private_data: &data, ..ConnParam::default() };
        let error = resolved.id().connect(&param).err().ok_or("connected")?;
        same("errno", (error.verb(), error.errno()), ("rdma_connect", libc::EINVAL))?;
        ensure(error.to_string().contains(&len.to_string()), || error.to_string())?;
    }
    let most = vec![1; rxe_fallback::cm::MAX_CONNECT_DATA];
    resolved.id().connect(&ConnParam { private_data: &most, ..ConnParam::default() })?;
    Ok(())
}

fn calls_out_of_order_are_errors_and_nothing_worse(ends: &Ends) -> TestResult {
    let channel = EventChannel::create()?;
    let param = ConnParam::default();
    let id = CmId::create(&channel, 0)?;
    let calls: [(&str, rxe_fallback::Result<()>); 8] = [
        ("resolve_route", id.resolve_route(LIMIT)),
        ("connect", id.connect(&param)),
        ("accept", id.accept(&param)),
        ("reject", id.reject(b"")),
        ("disconnect", id.disconnect()),
        ("establish", id.establish()),
        ("notify", id.notify_comm_established()),
        ("init_qp_attr", id.init_qp_attr(QpState::Rtr).map(|_| ())),
    ];
    for (name, result) in calls {
        ensure(result.is_err(), || format!("{name} on a fresh id worked"))?;
    }
    same("device", id.device_name(), None)?;
    same("addresses", (id.local_addr(), id.peer_addr()), (None, None))?;
    id.bind(ends.b.addr(0))?;
    ensure(id.bind(ends.b.addr(0)).is_err(), || "bound twice".to_owned())?;
    id.listen(1)?;
    for (name, result) in [("connect", id.connect(&param)), ("accept", id.accept(&param))] {
        ensure(result.is_err(), || format!("{name} on a listener worked"))?;
    }
    Ok(())
}

fn dropped_request_is_a_rejection(ends: &Ends) -> TestResult {
    let (listener, address) = listen(ends)?;
    let resolved = resolve(ends, address)?;
    let a = Endpoint::new(&ends.a, &Shape::default())?;
    resolved.id().connect(&ConnParam::for_qp(&a.qp))?;
    let event = answered(&listener, &resolved, |incoming| {
        drop(incoming);
        Ok(())
    })?;
    same("event", event.kind, CmEventKind::Rejected)
}

fn dropped_listener_and_channel_with_events_pending(ends: &Ends) -> TestResult {
    let (listener, address) = listen(ends)?;
    let resolved = resolve(ends, address)?;
    let a = Endpoint::new(&ends.a, &Shape::default())?;
    resolved.id().connect(&ConnParam::for_qp(&a.qp))?;
    // Nobody reads the request: dropping the listener must neither hang nor leave the other side
    // waiting for ever.
    drop(listener);
    let event = cm_event(resolved.id().channel())?;
    ensure(event.errno() != 0, || format!("{event:?}"))
}

fn accept_timeout_ends_in_time(ends: &Ends) -> TestResult {
    let (listener, _) = listen(ends)?;
    let error = listener.accept_timeout(Duration::from_millis(50)).err().ok_or("accepted")?;
    same("errno", error.errno(), libc::ETIMEDOUT)
}

fn connections_leave_no_descriptor_behind(ends: &Ends) -> TestResult {
    // The first one opens what librdmacm keeps open.
    drop(pair(ends)?);
    let before = open_fds()?;
    for round in 0..3 {
        let pair = pair(ends)?;
        if round == 1 {
            pair.a.1.disconnect()?;
        }
    }
    same("descriptors", open_fds()?, before)
}

fn ids_move_between_channels_with_their_tokens(ends: &Ends) -> TestResult {
    let (first, second) = (EventChannel::create()?, EventChannel::create()?);
    let mut id = CmId::create(&first, 5)?;
    id.migrate(&second)?;
    same("token", id.token(), 5)?;
    drop(first);
    id.resolve_addr(Some(ends.a.addr(0)), ends.b.addr(9), LIMIT)?;
    expect(&second, CmEventKind::AddrResolved, 5)?;
    Ok(())
}

fn event_and_dropping_threads_do_not_deadlock(ends: &Ends) -> TestResult {
    let channel = EventChannel::create()?;
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut count = 0;
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                count += usize::from(channel.next_event_timeout(Duration::from_millis(20))?.is_some());
            }
            Ok::<_, rxe_fallback::Error>(count)
        });
        let result = (|| {
            for token in 0..50 {
                let id = CmId::create(&channel, token)?;
                id.resolve_addr(Some(ends.a.addr(0)), ends.b.addr(9), LIMIT)?;
            }
            Ok::<_, rxe_fallback::Error>(())
        })();
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        let count = reader.join().map_err(|_| "the reader panicked")??;
        result?;
        ensure(count <= 50, || format!("{count} events of 50 ids"))
    })
}
