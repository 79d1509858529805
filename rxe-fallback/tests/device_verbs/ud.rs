//! Unreliable datagrams.

use std::net::SocketAddr;

use libtest_mimic::Failed;
use rxe_fallback::cm::{DATAGRAM_QKEY, MAX_RESOLVE_DATA};
use rxe_fallback::{
    Ah, AhAttr, CmEvent, CmEventKind, CmId, Completion, ConnParam, EventChannel, GRH_LEN, Pd, PortSpace,
    PostError, PostListError, QpKind, SendOp, SendWr, Srq, SrqInit, UdDest, UdRecvBuffer, UdRecvWr,
};

use crate::support::{End, Endpoint, Ends, LIMIT, Shape, TestResult, all_good, cm_event, ensure, same};
use crate::{Suite, suite};

pub(crate) fn suite() -> Suite {
    suite![
        payload_starts_after_the_grh_area,
        answer_finds_its_way_back,
        shared_queue_for_datagrams,
        plain_receives_and_missing_destinations_are_refused,
        address_handle_of_an_unknown_port_is_refused,
        one_shared_queue_for_datagrams_and_connections,
        addresses_are_found_out_both_ways,
        asking_where_nobody_answers_is_told_apart_from_a_rejection,
    ]
}

const QKEY: u32 = 0x1122_3344;

fn endpoint(end: &End, srq: Option<&Srq>) -> Result<Endpoint, Failed> {
    let endpoint = Endpoint::new(end, &Shape { kind: QpKind::Ud, srq, ..Shape::default() })?;
    endpoint.qp.ud_to_rts(end.port, QKEY)?;
    Ok(endpoint)
}

/// Sends from a to b; b's completion, checked.
fn deliver(ends: &Ends, a: &Endpoint, b: &Endpoint, text: &[u8]) -> Result<Completion, Failed> {
    let ah = Ah::create(&a.pd, &ends.a.path_to(&ends.b))?;
    a.mr.write_at(0, text)?;
    let ud = Some(UdDest { ah: &ah, qpn: b.qp.num(), qkey: QKEY });
    a.qp.post_send(&SendWr { ud, ..SendWr::new(1, SendOp::SendImm(5), &[a.sge(0, text.len())]) })?;
    all_good(&a.sent(1)?)?;
    let got = b.received(1)?[0];
    all_good(&[got])?;
    same("length with the GRH area", got.byte_len as usize, text.len() + GRH_LEN)?;
    same("sender and immediate", (got.src_qp, got.imm), (a.qp.num(), Some(5)))?;
    Ok(got)
}

fn payload_starts_after_the_grh_area(ends: &Ends) -> TestResult {
    let (a, b) = (endpoint(&ends.a, None)?, endpoint(&ends.b, None)?);
    let buffer = UdRecvBuffer::new(&b.mr, 1000, 200)?;
    b.qp.post_recv_list(&[UdRecvWr { wr_id: 8, buffer }])?;
    let got = deliver(ends, &a, &b, b"a datagram")?;
    same("id", got.wr_id, 8)?;
    same("place", buffer.payload(&got)?, (1000 + GRH_LEN, 10))?;
    let mut text = [0; 50];
    same("length", buffer.read_payload(&b.mr, &got, &mut text)?, 10)?;
    same("text", &text[..10], &b"a datagram"[..])?;
    same("whole buffer", rxe_fallback::ud::payload(&b.bytes(1000, 240), &got)?, b"a datagram")?;
    let short = buffer.read_payload(&b.mr, &got, &mut text[..9]);
    same("short buffer", short.map_err(|e| e.errno()), Err(libc::EINVAL))
}

fn answer_finds_its_way_back(ends: &Ends) -> TestResult {
    let (a, b) = (endpoint(&ends.a, None)?, endpoint(&ends.b, None)?);
    let buffer = UdRecvBuffer::new(&b.mr, 0, 200)?;
    b.qp.post_recv_list(&[UdRecvWr { wr_id: 0, buffer }])?;
    let got = deliver(ends, &a, &b, b"ping")?;
    let grh = buffer.read_grh(&b.mr, &got)?.ok_or("no header")?;
    same("from", grh.source().ip(), ends.a.ip)?;
    same("to", grh.destination().ip(), ends.b.ip)?;

    let back = UdRecvBuffer::new(&a.mr, 4096, 100)?;
    a.qp.post_recv_list(&[UdRecvWr { wr_id: 0, buffer: back }])?;
    let ah = Ah::from_completion(&b.pd, ends.b.port, &got, Some(&grh))?;
    let ud = Some(UdDest { ah: &ah, qpn: got.src_qp, qkey: QKEY });
    b.qp.post_send(&SendWr { ud, inline: Some(b"pong"), ..SendWr::send(2, &[]) })?;
    let answer = a.received(1)?[0];
    let mut text = [0; 4];
    back.read_payload(&a.mr, &answer, &mut text)?;
    same("text", &text, b"pong")?;
    let without = Ah::from_completion(&b.pd, ends.b.port, &got, None);
    same("without the header", without.map(|_| ()).map_err(|e| e.errno()), Err(libc::EINVAL))
}

fn shared_queue_for_datagrams(ends: &Ends) -> TestResult {
    let srq = Srq::create_ud(&Pd::alloc(&ends.b.context)?, SrqInit { max_wr: 8, max_sge: 1, token: 0 })?;
    let a = endpoint(&ends.a, None)?;
    let b = endpoint(&ends.b, Some(&srq))?;
    let buffer = UdRecvBuffer::new(&b.mr, 0, 100)?;
    srq.post_list(&[UdRecvWr { wr_id: 3, buffer }])?;
    let got = deliver(ends, &a, &b, b"shared")?;
    same("id", got.wr_id, 3)?;
    let mut text = [0; 6];
    buffer.read_payload(&b.mr, &got, &mut text)?;
    same("text", &text, b"shared")?;
    same("plain receive", srq.post_one(0, &[b.sge(0, 100)]), Err(PostError::NeedsGrhArea))?;
    let connected = Endpoint::new(&ends.b, &Shape { srq: Some(&srq), ..Shape::default() });
    ensure(connected.is_err(), || "an RC QP on an SRQ for datagrams".to_owned())
}

fn plain_receives_and_missing_destinations_are_refused(ends: &Ends) -> TestResult {
    let a = endpoint(&ends.a, None)?;
    same("plain receive", a.qp.post_recv(0, &[a.sge(0, 100)]), Err(PostError::NeedsGrhArea))?;
    same("no destination", a.qp.post_send(&SendWr::send(0, &[a.sge(0, 8)])), Err(PostError::Destination))?;
    let (c, _d) = Endpoint::pair(ends)?;
    let ah = Ah::create(&c.pd, &ends.a.path_to(&ends.b))?;
    let ud = Some(UdDest { ah: &ah, qpn: 1, qkey: 1 });
    let on_rc = c.qp.post_send(&SendWr { ud, ..SendWr::send(0, &[c.sge(0, 8)]) });
    same("destination on RC", on_rc, Err(PostError::Destination))?;
    let buffer = UdRecvBuffer::new(&c.mr, 0, 100)?;
    let refused = Err(PostListError { index: 0, reason: PostError::NoGrhArea });
    same("datagram on RC", c.qp.post_recv_list(&[UdRecvWr { wr_id: 0, buffer }]), refused)
}

fn address_handle_of_an_unknown_port_is_refused(ends: &Ends) -> TestResult {
    let pd = Pd::alloc(&ends.a.context)?;
    let attr = AhAttr { port: 99, ..ends.a.path_to(&ends.b) };
    let error = Ah::create(&pd, &attr).err().ok_or("created")?;
    same("verb", error.verb(), "ibv_create_ah")
}

fn one_shared_queue_for_datagrams_and_connections(ends: &Ends) -> TestResult {
    let pd = Pd::alloc(&ends.b.context)?;
    let srq = Srq::create_for_any(&pd, SrqInit { max_wr: 8, max_sge: 1, token: 0 })?;
    let (a, b) = (endpoint(&ends.a, None)?, endpoint(&ends.b, Some(&srq))?);
    let c = Endpoint::new(&ends.a, &Shape::default())?;
    let d = Endpoint::new(&ends.b, &Shape { srq: Some(&srq), ..Shape::default() })?;
    Endpoint::connect(ends, &c, &d)?;
    // The first QP served takes the first buffer: both buffers share memory.
    for wr_id in [1, 2] {
        srq.post_one(wr_id, &[b.sge(0, 200)])?;
    }
    let got = deliver(ends, &a, &b, b"by datagram")?;
    same("place", (got.wr_id, b.bytes(GRH_LEN, 11)), (1, b"by datagram".to_vec()))?;
    let plain = Endpoint::new(&ends.b, &Shape { kind: QpKind::Ud, ..Shape::default() })?;
    plain.qp.ud_to_rts(ends.b.port, QKEY)?;
    plain.qp.post_recv_raw(7, &[plain.sge(100, 200)])?;
    let got = deliver(ends, &a, &plain, b"without a type")?;
    same("plain", (got.wr_id, plain.bytes(100 + GRH_LEN, 14)), (7, b"without a type".to_vec()))?;
    c.mr.write_at(0, b"by connection")?;
    c.qp.post_send(&SendWr::send(3, &[c.sge(0, 13)]))?;
    all_good(&c.sent(1)?)?;
    let got = d.received(1)?[0];
    all_good(&[got])?;
    same("connected", (got.wr_id, got.byte_len), (2, 13))
}

fn expect(channel: &EventChannel, kind: CmEventKind) -> Result<CmEvent, Failed> {
    let event = cm_event(channel)?;
    ensure(event.kind == kind, || format!("{kind:?} expected, got {event:?}"))?;
    Ok(event)
}

/// An id at a, on a channel of its own, that knows the way to this service.
fn resolved(ends: &Ends, from: &End, to: SocketAddr) -> Result<(EventChannel, CmId), Failed> {
    let channel = EventChannel::create()?;
    let id = CmId::create_in(PortSpace::Udp, &channel, 1)?;
    same("no path yet", id.path(&ends.a.context).map(|_| ()).map_err(|e| e.errno()), Err(libc::EINVAL))?;
    id.resolve_addr(Some(from.addr(0)), to, LIMIT)?;
    expect(&channel, CmEventKind::AddrResolved)?;
    id.resolve_route(LIMIT)?;
    expect(&channel, CmEventKind::RouteResolved)?;
    Ok((channel, id))
}

fn listen(ends: &Ends) -> Result<(EventChannel, CmId, SocketAddr), Failed> {
    let channel = EventChannel::create()?;
    let id = CmId::create_in(PortSpace::Udp, &channel, 100)?;
    id.bind(ends.b.addr(0))?;
    id.listen(4)?;
    let address = id.local_addr().ok_or("no address")?;
    Ok((channel, id, address))
}

fn addresses_are_found_out_both_ways(ends: &Ends) -> TestResult {
    let datagrams = |end: &End| -> Result<Endpoint, Failed> {
        let endpoint = Endpoint::new(end, &Shape { kind: QpKind::Ud, ..Shape::default() })?;
        endpoint.qp.ud_to_rts(end.port, DATAGRAM_QKEY)?;
        Ok(endpoint)
    };
    let (a, b) = (datagrams(&ends.a)?, datagrams(&ends.b)?);
    let (passive, listener, address) = listen(ends)?;
    // The port of the other space is another one.
    let other = CmId::create(&passive, 101)?;
    other.bind(address)?;
    other.listen(4)?;

    let (active, id) = resolved(ends, &ends.a, address)?;
    same("space", id.port_space(), PortSpace::Udp)?;
    let data = [7; MAX_RESOLVE_DATA];
    id.connect(&ConnParam { private_data: &data, ..ConnParam::for_qp(&a.qp) })?;
    let request = expect(&passive, CmEventKind::ConnectRequest)?;
    same("listener", request.listener_token, Some(100))?;
    same("what came along", &request.private_data[..], &data[..])?;
    let asked = request.new_id.ok_or("no id")?;
    same("space of the request", asked.port_space(), PortSpace::Udp)?;
    let peer = asked.peer_addr().ok_or("no address of the peer")?;
    same("who asks", peer.ip(), ends.a.ip)?;
    asked.accept(&ConnParam { private_data: b"here", ..ConnParam::for_qp(&b.qp) })?;

    let answer = expect(&active, CmEventKind::Established)?;
    ensure(answer.private_data.starts_with(b"here"), || format!("{:?}", answer.private_data))?;
    let to_b = answer.datagrams.ok_or("no address")?;
    same("QP and key", (to_b.qp_num, to_b.qkey), (b.qp.num(), DATAGRAM_QKEY))?;
    // The path back, which no message contains.
    let (_channel, back) = resolved(ends, &ends.b, peer)?;
    let to_a = back.path(&ends.b.context)?;

    for (from, to, path) in [(&a, &b, to_b.path), (&b, &a, to_a)] {
        let buffer = UdRecvBuffer::new(&to.mr, 0, 200)?;
        to.qp.post_recv_list(&[UdRecvWr { wr_id: 0, buffer }])?;
        let ah = Ah::create(&from.pd, &path)?;
        let ud = Some(UdDest { ah: &ah, qpn: to.qp.num(), qkey: DATAGRAM_QKEY });
        from.qp.post_send(&SendWr { ud, ..SendWr::send(1, &[from.sge(0, 50)]) })?;
        all_good(&from.sent(1)?)?;
        let got = to.received(1)?[0];
        same("length and sender", (got.byte_len as usize, got.src_qp), (50 + GRH_LEN, from.qp.num()))?;
    }
    drop(listener);
    Ok(())
}

fn asking_where_nobody_answers_is_told_apart_from_a_rejection(ends: &Ends) -> TestResult {
    let (passive, listener, address) = listen(ends)?;
    for by_consumer in [true, false] {
        let (active, id) = resolved(ends, &ends.a, address)?;
        id.connect(&ConnParam::default())?;
        let request = expect(&passive, CmEventKind::ConnectRequest)?;
        let asked = request.new_id.ok_or("no id")?;
        // What is dropped is rejected, too.
        if by_consumer {
            asked.reject(b"go away")?;
        }
        drop(asked);
        let answer = expect(&active, CmEventKind::Unreachable)?;
        same("by the consumer", answer.rejected_by_consumer(), true)?;
        same("what it says", answer.private_data.starts_with(b"go away"), by_consumer)?;
        same("no address", answer.datagrams, None)?;
    }
    drop(listener);
    let (active, id) = resolved(ends, &ends.a, address)?;
    id.connect(&ConnParam::default())?;
    let answer = expect(&active, CmEventKind::Unreachable)?;
    same("by the consumer", answer.rejected_by_consumer(), false)
}
