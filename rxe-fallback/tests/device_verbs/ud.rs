//! Unreliable datagrams.

use rxe_fallback::{
    Ah, AhAttr, Completion, GRH_LEN, Pd, PostError, QpKind, SendOp, SendWr, Srq, SrqInit, UdDest,
    UdRecvBuffer,
};

use crate::support::{Endpoint, Ends, Shape, TestResult, all_good, ensure, same};
use crate::{Suite, suite};

pub(crate) fn suite() -> Suite {
    suite![
        payload_starts_after_the_grh_area,
        answer_finds_its_way_back,
        shared_queue_for_datagrams,
        plain_receives_and_missing_destinations_are_refused,
        address_handle_of_a_port_that_does_not_exist_is_refused,
    ]
}

const QKEY: u32 = 0x1122_3344;

fn endpoint(end: &crate::support::End, srq: Option<&Srq>) -> Result<Endpoint, libtest_mimic::Failed> {
    let endpoint = Endpoint::new(end, &Shape { kind: QpKind::Ud, srq, ..Shape::default() })?;
    endpoint.qp.ud_to_rts(end.port, QKEY)?;
    Ok(endpoint)
}

/// Sends from a to b; b's completion, checked.
fn deliver(
    ends: &Ends,
    a: &Endpoint,
    b: &Endpoint,
    text: &[u8],
) -> Result<Completion, libtest_mimic::Failed> {
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
    b.qp.post_recv_ud(8, &buffer)?;
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
    b.qp.post_recv_ud(0, &buffer)?;
    let got = deliver(ends, &a, &b, b"ping")?;
    let grh = buffer.read_grh(&b.mr, &got)?.ok_or("no header")?;
    same("from", grh.source().ip(), ends.a.ip)?;
    same("to", grh.destination().ip(), ends.b.ip)?;

    let back = UdRecvBuffer::new(&a.mr, 4096, 100)?;
    a.qp.post_recv_ud(0, &back)?;
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
    srq.post_one_ud(3, &buffer)?;
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
    same("datagram on RC", c.qp.post_recv_ud(0, &buffer), Err(PostError::NoGrhArea))
}

fn address_handle_of_a_port_that_does_not_exist_is_refused(ends: &Ends) -> TestResult {
    let pd = Pd::alloc(&ends.a.context)?;
    let attr = AhAttr { port: 99, ..ends.a.path_to(&ends.b) };
    let error = Ah::create(&pd, &attr).err().ok_or("created")?;
    same("verb", error.verb(), "ibv_create_ah")
}
