//! Connections, reliable and unreliable.

use rxe_fallback::{
    AsyncKind, AtomicCap, PostError, QpKind, QpState, RecvWr, SendFlags, SendOp, SendWr, Srq, SrqInit,
    WcOpcode, WcStatus,
};

use crate::support::{Endpoint, Ends, Shape, TestResult, all_good, ensure, same};
use crate::{Suite, suite};

pub(crate) fn suite() -> Suite {
    suite![
        echo_with_a_receive_queue_of_its_own,
        message_spans_segments_on_both_sides,
        immediate_data_arrives_in_host_order,
        inline_data_can_be_reused_at_once,
        unreliable_connection_delivers,
        inline_data_is_refused_where_it_does_not_belong,
        write_lands_and_write_with_immediate_takes_a_receive,
        read_fetches,
        atomics_return_the_old_value,
        wrong_key_fails_at_the_requester,
        unsignalled_sends_do_not_complete,
        full_send_queue_is_reported_where_it_is_full,
        long_lists_of_sends_and_receives_arrive_in_order,
        too_many_segments_are_refused_with_the_index,
        error_state_flushes_receives,
        receive_on_a_qp_with_an_srq_is_refused,
        states_follow_the_calls,
        sizes_the_device_cannot_are_refused_by_name,
        message_longer_than_the_receive_fails_on_both_sides,
    ]
}

fn echo_with_a_receive_queue_of_its_own(ends: &Ends) -> TestResult {
    let (a, b) = Endpoint::pair(ends)?;
    for len in [0, 1, 1024, 1025, 30_000] {
        let message: Vec<u8> = (0..len).map(|i| (i * 7) as u8).collect();
        a.mr.write_at(0, &message)?;
        b.qp.post_recv(11, &[b.sge(0, 32_000)])?;
        a.qp.post_recv(12, &[a.sge(32_000, 32_000)])?;
        a.qp.post_send(&SendWr::send(13, &[a.sge(0, len)]))?;
        let got = b.received(1)?[0];
        all_good(&[got])?;
        same("at b", (got.wr_id, got.byte_len, got.opcode), (11, len as u32, Some(WcOpcode::Recv)))?;
        same("QP", got.qp_num, b.qp.num())?;
        b.qp.post_send(&SendWr::send(14, &[b.sge(0, len)]))?;
        let back = a.received(1)?[0];
        same("at a", (back.wr_id, back.byte_len), (12, len as u32))?;
        same("bytes", a.bytes(32_000, len), message)?;
        let (sent_a, sent_b) = (a.sent(1)?[0], b.sent(1)?[0]);
        same("sent", (sent_a.wr_id, sent_a.opcode), (13, Some(WcOpcode::Send)))?;
        same("sent back", (sent_b.wr_id, sent_b.opcode), (14, Some(WcOpcode::Send)))?;
    }
    Ok(())
}

fn message_spans_segments_on_both_sides(ends: &Ends) -> TestResult {
    let (a, b) = Endpoint::pair(ends)?;
    a.mr.write_at(0, b"hello ")?;
    a.mr.write_at(500, b"world")?;
    b.qp.post_recv(0, &[b.sge(0, 3), b.sge(100, 50)])?;
    a.qp.post_send(&SendWr::send(0, &[a.sge(0, 6), a.sge(500, 5)]))?;
    same("length", b.received(1)?[0].byte_len, 11)?;
    same("first", b.bytes(0, 3), b"hel".to_vec())?;
    same("second", b.bytes(100, 8), b"lo world".to_vec())
}

fn immediate_data_arrives_in_host_order(ends: &Ends) -> TestResult {
    let (a, b) = Endpoint::pair(ends)?;
    b.qp.post_recv(0, &[b.sge(0, 16)])?;
    b.qp.post_recv(1, &[b.sge(0, 16)])?;
    a.qp.post_send(&SendWr::new(0, SendOp::SendImm(0x0102_0304), &[a.sge(0, 16)]))?;
    a.qp.post_send(&SendWr::send(1, &[a.sge(0, 16)]))?;
    let got = b.received(2)?;
    same("immediate", (got[0].imm, got[1].imm), (Some(0x0102_0304), None))
}

fn inline_data_can_be_reused_at_once(ends: &Ends) -> TestResult {
    let (a, b) = Endpoint::pair(ends)?;
    b.qp.post_recv(0, &[b.sge(0, 64)])?;
    let mut bytes = *b"taken along";
    a.qp.post_send(&SendWr { inline: Some(&bytes), ..SendWr::send(0, &[]) })?;
    bytes.fill(0);
    all_good(&b.received(1)?)?;
    same("bytes", b.bytes(0, 11), b"taken along".to_vec())
}

fn unreliable_connection_delivers(ends: &Ends) -> TestResult {
    let shape = Shape { kind: QpKind::Uc, ..Shape::default() };
    let (a, b) = (Endpoint::new(&ends.a, &shape)?, Endpoint::new(&ends.b, &shape)?);
    Endpoint::connect(ends, &a, &b)?;
    // Any message may get lost, so several go out, but the send always finishes.
    for wr_id in 0..10 {
        b.qp.post_recv(wr_id, &[b.sge(0, 64)])?;
    }
    a.mr.write_at(0, b"perhaps")?;
    for wr_id in 0..10 {
        a.qp.post_send(&SendWr::send(wr_id, &[a.sge(0, 7)]))?;
    }
    all_good(&a.sent(10)?)?;
    let got = b.received(1)?[0];
    same("length", (got.status, got.byte_len), (WcStatus::Success, 7))?;
    same("bytes", b.bytes(0, 7), b"perhaps".to_vec())
}

fn inline_data_is_refused_where_it_does_not_belong(ends: &Ends) -> TestResult {
    let (a, _b) = Endpoint::pair(ends)?;
    let max = a.qp.caps().max_inline as usize;
    let long = vec![0; max + 1];
    let too_long = a.qp.post_send(&SendWr { inline: Some(&long), ..SendWr::send(0, &[]) });
    same("too long", too_long, Err(PostError::InlineTooLong { given: max + 1, max }))?;
    let both = a.qp.post_send(&SendWr { inline: Some(b"x"), ..SendWr::send(0, &[a.sge(0, 1)]) });
    same("with segments", both, Err(PostError::InlineMisplaced))?;
    let read = SendOp::Read { remote_addr: 0, rkey: 0 };
    let on_read = a.qp.post_send(&SendWr { inline: Some(b"x"), ..SendWr::new(0, read, &[]) });
    same("on a read", on_read, Err(PostError::InlineMisplaced))
}

fn write_lands_and_write_with_immediate_takes_a_receive(ends: &Ends) -> TestResult {
    let (a, b) = Endpoint::pair(ends)?;
    a.mr.write_at(0, b"written from afar")?;
    let (remote_addr, rkey) = (b.mr.addr() + 1000, b.mr.rkey());
    a.qp.post_send(&SendWr::new(1, SendOp::Write { remote_addr, rkey }, &[a.sge(0, 17)]))?;
    let done = a.sent(1)?[0];
    same("kind", (done.status, done.opcode), (WcStatus::Success, Some(WcOpcode::RdmaWrite)))?;
    same("bytes", b.bytes(1000, 17), b"written from afar".to_vec())?;

    b.qp.post_recv(9, &[])?;
    let op = SendOp::WriteImm { remote_addr: remote_addr + 100, rkey, imm: 77 };
    a.qp.post_send(&SendWr::new(2, op, &[a.sge(0, 17)]))?;
    let got = b.received(1)?[0];
    same("receive", (got.wr_id, got.opcode, got.imm), (9, Some(WcOpcode::RecvRdmaWithImm), Some(77)))?;
    same("length", got.byte_len, 17)?;
    same("bytes", b.bytes(1100, 17), b"written from afar".to_vec())
}

fn read_fetches(ends: &Ends) -> TestResult {
    let (a, b) = Endpoint::pair(ends)?;
    let data: Vec<u8> = (0..5000).map(|i| (i / 3) as u8).collect();
    b.mr.write_at(200, &data)?;
    let op = SendOp::Read { remote_addr: b.mr.addr() + 200, rkey: b.mr.rkey() };
    a.qp.post_send(&SendWr::new(1, op, &[a.sge(0, 5000)]))?;
    let done = a.sent(1)?[0];
    same("kind", (done.status, done.opcode), (WcStatus::Success, Some(WcOpcode::RdmaRead)))?;
    same("bytes", a.bytes(0, 5000), data)
}

fn atomics_return_the_old_value(ends: &Ends) -> TestResult {
    let (a, b) = Endpoint::pair(ends)?;
    let there = |value: &mut [u8; 8]| b.mr.read_at(64, value);
    b.mr.write_at(64, &40_u64.to_ne_bytes())?;
    let (remote_addr, rkey) = (b.mr.addr() + 64, b.mr.rkey());
    let mut value = [0; 8];
    let mut old = |wr_id, op| -> Result<(u64, WcStatus, Option<WcOpcode>), libtest_mimic::Failed> {
        a.qp.post_send(&SendWr::new(wr_id, op, &[a.sge(0, 8)]))?;
        let done = a.sent(1)?[0];
        a.mr.read_at(0, &mut value)?;
        Ok((u64::from_ne_bytes(value), done.status, done.opcode))
    };
    let add = SendOp::FetchAdd { remote_addr, rkey, add: 2 };
    let hit = SendOp::CmpSwap { remote_addr, rkey, compare: 42, swap: 7 };
    let miss = SendOp::CmpSwap { remote_addr, rkey, compare: 42, swap: 8 };
    if ends.b.context.attributes().atomic_cap == AtomicCap::None {
        return ensure(old(0, add)?.1 != WcStatus::Success, || "an atomic on a device without".to_owned());
    }
    same("fetch and add", old(1, add)?, (40, WcStatus::Success, Some(WcOpcode::FetchAdd)))?;
    same("swap that hits", old(2, hit)?, (42, WcStatus::Success, Some(WcOpcode::CompareSwap)))?;
    same("swap that misses", old(3, miss)?, (7, WcStatus::Success, Some(WcOpcode::CompareSwap)))?;
    let mut now = [0; 8];
    there(&mut now)?;
    same("value", u64::from_ne_bytes(now), 7)
}

fn wrong_key_fails_at_the_requester(ends: &Ends) -> TestResult {
    let (a, b) = Endpoint::pair(ends)?;
    let op = SendOp::Write { remote_addr: b.mr.addr(), rkey: b.mr.rkey() ^ 0xff };
    a.qp.post_send(&SendWr::new(5, op, &[a.sge(0, 8)]))?;
    let done = a.sent(1)?[0];
    same("completion", (done.wr_id, done.status, done.opcode), (5, WcStatus::RemoteAccessError, None))?;
    same("QP", a.qp.state()?, QpState::Error)
}

fn unsignalled_sends_do_not_complete(ends: &Ends) -> TestResult {
    let (a, b) = Endpoint::pair(ends)?;
    for wr_id in 0..3 {
        b.qp.post_recv(wr_id, &[b.sge(0, 8)])?;
    }
    for wr_id in 0..3 {
        let flags = if wr_id == 2 { SendFlags::SIGNALLED } else { SendFlags::empty() };
        a.qp.post_send(&SendWr { flags, ..SendWr::send(wr_id, &[a.sge(0, 8)]) })?;
    }
    same("only the third", a.sent(1)?[0].wr_id, 2)?;
    same("all received", b.received(3)?.len(), 3)
}

fn full_send_queue_is_reported_where_it_is_full(ends: &Ends) -> TestResult {
    let a = Endpoint::new(&ends.a, &Shape::default())?;
    let b = Endpoint::new(&ends.b, &Shape::default())?;
    Endpoint::connect(ends, &a, &b)?;
    // No receives at the peer: nothing finishes, so that the queue stays full.
    let data = [a.sge(0, 8)];
    let list: Vec<_> = (0..1000).map(|wr_id| SendWr::send(wr_id, &data)).collect();
    let stopped = a.qp.post_send_list(&list).err().ok_or("posted more than there is room for")?;
    same("reason", stopped.reason, PostError::Full)?;
    ensure(stopped.index >= 16 && stopped.index < 1000, || format!("{}", stopped.index))?;
    same("one more", a.qp.post_send(&list[0]), Err(PostError::Full))?;
    a.qp.to_error()?;
    let flushed = a.sent(stopped.index)?;
    same(
        "flushed in order",
        flushed.iter().map(|c| c.wr_id).collect(),
        (0..stopped.index as u64).collect::<Vec<_>>(),
    )
}

fn long_lists_of_sends_and_receives_arrive_in_order(ends: &Ends) -> TestResult {
    let shape = Shape { depth: 150, ..Shape::default() };
    let (a, b) = (Endpoint::new(&ends.a, &shape)?, Endpoint::new(&ends.b, &shape)?);
    Endpoint::connect(ends, &a, &b)?;
    let buffers: Vec<_> = (0..150).map(|i| b.sge(i * 8, 8)).collect();
    let receives: Vec<_> = buffers
        .iter()
        .zip(0..)
        .map(|(sge, wr_id)| RecvWr { wr_id, sges: std::slice::from_ref(sge) })
        .collect();
    b.qp.post_recv_list(&receives)?;
    let texts: Vec<_> = (0..150_u64).map(u64::to_ne_bytes).collect();
    let sends: Vec<_> = texts
        .iter()
        .zip(0..)
        .map(|(text, id)| SendWr { inline: Some(text), ..SendWr::send(id, &[]) })
        .collect();
    a.qp.post_send_list(&sends)?;
    let received = b.received(150)?;
    all_good(&received)?;
    same("order", received.iter().map(|c| c.wr_id).collect(), (0..150).collect::<Vec<_>>())?;
    same("bytes", b.bytes(0, 150 * 8), texts.concat())
}

fn too_many_segments_are_refused_with_the_index(ends: &Ends) -> TestResult {
    let (a, _b) = Endpoint::pair(ends)?;
    let max = a.qp.caps().max_recv_sge as usize;
    let segments = vec![a.sge(0, 8); max + 1];
    let list = [RecvWr { wr_id: 0, sges: &segments[..1] }, RecvWr { wr_id: 1, sges: &segments }];
    let stopped = a.qp.post_recv_list(&list).err().ok_or("posted")?;
    same(
        "receive",
        (stopped.index, stopped.reason),
        (1, PostError::TooManySegments { given: max + 1, max }),
    )?;
    let max = a.qp.caps().max_send_sge as usize;
    let segments = vec![a.sge(0, 8); max + 1];
    let reason = a.qp.post_send(&SendWr::send(0, &segments));
    same("send", reason, Err(PostError::TooManySegments { given: max + 1, max }))
}

fn error_state_flushes_receives(ends: &Ends) -> TestResult {
    let (a, _b) = Endpoint::pair(ends)?;
    for wr_id in 0..3 {
        a.qp.post_recv(wr_id, &[a.sge(0, 8)])?;
    }
    a.qp.to_error()?;
    for (i, completion) in a.received(3)?.iter().enumerate() {
        same("flushed", (completion.wr_id, completion.status), (i as u64, WcStatus::WorkRequestFlushed))?;
        ensure(!completion.is_receive(), || "a flushed request counts as a receive".to_owned())?;
    }
    Ok(())
}

fn receive_on_a_qp_with_an_srq_is_refused(ends: &Ends) -> TestResult {
    let pd = rxe_fallback::Pd::alloc(&ends.a.context)?;
    let srq = Srq::create(&pd, SrqInit { max_wr: 4, max_sge: 1, token: 0 })?;
    let a = Endpoint::new(&ends.a, &Shape { srq: Some(&srq), ..Shape::default() })?;
    a.qp.to_init(ends.a.port, ends.a.context.full_remote_access())?;
    same("receive", a.qp.post_recv(0, &[a.sge(0, 8)]), Err(PostError::HasSrq))
}

fn states_follow_the_calls(ends: &Ends) -> TestResult {
    let (a, _b) = Endpoint::pair(ends)?;
    same("connected", a.qp.state()?, QpState::Rts)?;
    a.qp.to_error()?;
    same("error", a.qp.state()?, QpState::Error)?;
    a.qp.to_reset()?;
    same("reset", a.qp.state()?, QpState::Reset)?;
    a.qp.to_init(ends.a.port, ends.a.context.full_remote_access())?;
    same("init", a.qp.state()?, QpState::Init)?;
    let error = a.qp.to_rts(&rxe_fallback::RtsAttr::default()).err().ok_or("init to ready-to-send")?;
    same("verb", (error.verb(), error.errno()), ("ibv_modify_qp", libc::EINVAL))?;
    ensure(error.to_string().contains("Rts"), || error.to_string())?;
    let none = ends.a.context.next_async_event()?;
    ensure(none.is_none_or(|event| event.kind != AsyncKind::QpFatal), || format!("{none:?}"))
}

fn sizes_the_device_cannot_are_refused_by_name(ends: &Ends) -> TestResult {
    let depth = ends.a.context.attributes().max_qp_wr + 1;
    let pd = rxe_fallback::Pd::alloc(&ends.a.context)?;
    let cq = rxe_fallback::Cq::create(&ends.a.context, 4, None, 0, 0)?;
    let error = rxe_fallback::Qp::create(
        &pd,
        &rxe_fallback::QpInit {
            kind: rxe_fallback::QpKind::Rc,
            send_cq: &cq,
            recv_cq: &cq,
            srq: None,
            max_send_wr: depth,
            max_send_sge: 1,
            max_recv_wr: 1,
            max_recv_sge: 1,
            max_inline: 0,
            signal_all: true,
            token: 0,
        },
    )
    .err()
    .ok_or("created")?;
    same("errno", error.errno(), libc::EINVAL)?;
    ensure(error.to_string().contains("max_send_wr"), || error.to_string())
}

fn message_longer_than_the_receive_fails_on_both_sides(ends: &Ends) -> TestResult {
    let (a, b) = Endpoint::pair(ends)?;
    b.qp.post_recv(3, &[b.sge(0, 10)])?;
    a.qp.post_send(&SendWr::send(4, &[a.sge(0, 100)]))?;
    let sent = a.sent(1)?[0];
    ensure(sent.wr_id == 4 && !sent.is_success(), || format!("{sent:?}"))?;
    let got = b.received(1)?[0];
    ensure(got.wr_id == 3 && !got.is_success() && got.byte_len == 0, || format!("{got:?}"))
}
