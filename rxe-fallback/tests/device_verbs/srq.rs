//! Shared receive queues.

use rxe_fallback::{
    AsyncKind, AsyncObject, Mr, Pd, PostError, PostListError, QpKind, RecvWr, SendWr, Sge, Srq, SrqInit,
    UdRecvBuffer, UdRecvWr,
};

use crate::support::{ALL, Endpoint, Ends, Shape, TestResult, all_good, async_event, ensure, same};
use crate::{Suite, suite};

pub(crate) fn suite() -> Suite {
    suite![
        sizes_are_at_least_what_was_asked_for,
        sizes_the_device_cannot_are_refused_by_name,
        list_stops_at_the_request_with_too_many_segments,
        list_longer_than_the_queue_stops_where_it_is_full,
        messages_take_receives_in_the_order_of_posting,
        two_endpoints_share_one_queue,
        limit_event_comes_once_with_the_token,
        limit_above_the_size_is_refused,
        resize_makes_room_and_keeps_what_is_posted,
        resize_below_what_is_posted_is_refused,
        last_wqe_event_names_the_endpoint,
        receives_for_datagrams_are_refused,
        two_threads_post_without_losing_a_receive,
    ]
}

fn create(ends: &Ends, max_wr: u32, max_sge: u32) -> Result<(Srq, Mr), rxe_fallback::Error> {
    let pd = Pd::alloc(&ends.b.context)?;
    let srq = Srq::create(&pd, SrqInit { max_wr, max_sge, token: 0x5151 })?;
    Ok((srq, Mr::register_owned(&pd, 64 << 10, ALL, false)?))
}

fn fill(srq: &Srq, sge: Sge, from: u64) -> u64 {
    (from..).find(|&wr_id| srq.post_one(wr_id, &[sge]).is_err()).expect("a queue that gets full") - from
}

fn sizes_are_at_least_what_was_asked_for(ends: &Ends) -> TestResult {
    let (srq, _) = create(ends, 100, 2)?;
    ensure(srq.max_wr() >= 100 && srq.max_sge() >= 2, || format!("{} and {}", srq.max_wr(), srq.max_sge()))?;
    let attr = srq.query()?;
    same("sizes by query", (attr.max_wr, attr.max_sge, attr.srq_limit), (srq.max_wr(), srq.max_sge(), 0))?;
    same("token", srq.token(), 0x5151)
}

fn sizes_the_device_cannot_are_refused_by_name(ends: &Ends) -> TestResult {
    let device = ends.b.context.attributes();
    for (max_wr, max_sge, name) in [
        (0, 1, "max_wr"),
        (device.max_srq_wr + 1, 1, "max_wr"),
        (1, 0, "max_sge"),
        (1, device.max_srq_sge + 1, "max_sge"),
    ] {
        let error = create(ends, max_wr, max_sge).err().ok_or("created")?;
        same("errno", (error.verb(), error.errno()), ("ibv_create_srq", libc::EINVAL))?;
        ensure(error.to_string().contains(name), || error.to_string())?;
    }
    Ok(())
}

fn list_stops_at_the_request_with_too_many_segments(ends: &Ends) -> TestResult {
    let (srq, mr) = create(ends, 200, 1)?;
    let room = fill(&create(ends, 200, 1)?.0, mr.sge(0, 8)?, 0);
    for bad in [0, 2, 64, 70] {
        let max = srq.max_sge() as usize;
        let segments = vec![mr.sge(0, 8)?; max + 1];
        let mut list = vec![RecvWr { wr_id: 0, sges: &segments[..1] }; 80];
        list[bad].sges = &segments;
        let (srq, _) = create(ends, 200, 1)?;
        let stopped = srq.post_list(&list).err().ok_or("posted")?;
        let reason = PostError::TooManySegments { given: max + 1, max };
        same("where and why", stopped, PostListError { index: bad, reason })?;
        same("room left", fill(&srq, mr.sge(0, 8)?, 0), room - bad as u64)?;
    }
    Ok(())
}

fn list_longer_than_the_queue_stops_where_it_is_full(ends: &Ends) -> TestResult {
    for max_wr in [4, 64, 100] {
        let (srq, mr) = create(ends, max_wr, 1)?;
        let sges = [mr.sge(0, 8)?];
        let list: Vec<_> = (0..1000).map(|wr_id| RecvWr { wr_id, sges: &sges }).collect();
        let stopped = srq.post_list(&list).err().ok_or("posted more than there is room for")?;
        same("reason", stopped.reason, PostError::Full)?;
        ensure(stopped.index >= max_wr as usize, || format!("{} posted", stopped.index))?;
        same("errno", stopped.reason.errno(), libc::ENOMEM)?;
        same("one more", srq.post_one(0, &sges), Err(PostError::Full))?;
    }
    Ok(())
}

/// Checks that exactly the receives before the reported one are posted, by using all of them.
fn messages_take_receives_in_the_order_of_posting(ends: &Ends) -> TestResult {
    let (srq, mr) = create(ends, 5, 1)?;
    let a = Endpoint::new(&ends.a, &Shape::default())?;
    let b = Endpoint::new(&ends.b, &Shape { srq: Some(&srq), ..Shape::default() })?;
    Endpoint::connect(ends, &a, &b)?;
    let sges: Vec<_> = (0..100).map(|i| mr.sge(i * 16, 16)).collect::<Result<_, _>>()?;
    let list: Vec<_> =
        sges.iter().zip(0..).map(|(sge, wr_id)| RecvWr { wr_id, sges: std::slice::from_ref(sge) }).collect();
    let posted = srq.post_list(&list).err().ok_or("posted")?.index;
    for i in 0..posted {
        a.mr.write_at(0, &[i as u8; 16])?;
        a.qp.post_send(&SendWr::send(i as u64, &[a.sge(0, 16)]))?;
        all_good(&a.sent(1)?)?;
    }
    let received = b.received(posted)?;
    all_good(&received)?;
    for (i, completion) in received.iter().enumerate() {
        same("order", (completion.wr_id, completion.byte_len), (i as u64, 16))?;
        let mut bytes = [0; 16];
        mr.read_at(i * 16, &mut bytes)?;
        same("bytes", bytes, [i as u8; 16])?;
    }
    same("room", fill(&srq, mr.sge(0, 8)?, 0), posted as u64)
}

fn two_endpoints_share_one_queue(ends: &Ends) -> TestResult {
    let (srq, mr) = create(ends, 8, 1)?;
    let mut clients = Vec::new();
    let mut servers = Vec::new();
    for _ in 0..2 {
        let a = Endpoint::new(&ends.a, &Shape::default())?;
        let b = Endpoint::new(&ends.b, &Shape { srq: Some(&srq), ..Shape::default() })?;
        Endpoint::connect(ends, &a, &b)?;
        clients.push(a);
        servers.push(b);
    }
    for wr_id in 0..4 {
        srq.post_one(wr_id, &[mr.sge(wr_id as usize * 64, 64)?])?;
    }
    // One message each way in turn, so that the order of the shared queue is known.
    for round in 0..4 {
        let (a, b) = (&clients[round % 2], &servers[round % 2]);
        a.mr.write_at(0, format!("message {round}").as_bytes())?;
        a.qp.post_send(&SendWr::send(0, &[a.sge(0, 9)]))?;
        let got = b.received(1)?[0];
        all_good(&[got])?;
        same("receive", (got.wr_id, got.qp_num, got.byte_len), (round as u64, b.qp.num(), 9))?;
        // Echo from the buffer it arrived in.
        a.qp.post_recv(0, &[a.sge(1024, 64)])?;
        b.qp.post_send(&SendWr::send(0, &[mr.sge(round * 64, 9)?]))?;
        all_good(&b.sent(1)?)?;
        all_good(&a.received(1)?)?;
        all_good(&a.sent(1)?)?;
        same("echo", a.bytes(1024, 9), format!("message {round}").into_bytes())?;
    }
    Ok(())
}

fn limit_event_comes_once_with_the_token(ends: &Ends) -> TestResult {
    let (srq, mr) = create(ends, 16, 1)?;
    let a = Endpoint::new(&ends.a, &Shape::default())?;
    let b = Endpoint::new(&ends.b, &Shape { srq: Some(&srq), ..Shape::default() })?;
    Endpoint::connect(ends, &a, &b)?;
    for wr_id in 0..8 {
        srq.post_one(wr_id, &[mr.sge(0, 64)?])?;
    }
    srq.arm_limit(6)?;
    same("limit by query", srq.query()?.srq_limit, 6)?;
    same("before", ends.b.context.next_async_event()?, None)?;
    for _ in 0..5 {
        a.qp.post_send(&SendWr::send(0, &[a.sge(0, 8)]))?;
        all_good(&a.sent(1)?)?;
        b.received(1)?;
    }
    let event = async_event(&ends.b.context, |_| true)?;
    same("event", (event.kind, event.object), (AsyncKind::SrqLimitReached, AsyncObject::Srq(0x5151)))?;
    same("a second one", ends.b.context.next_async_event()?, None)?;
    same("limit afterwards", srq.query()?.srq_limit, 0)
}

fn limit_above_the_size_is_refused(ends: &Ends) -> TestResult {
    let (srq, _) = create(ends, 16, 1)?;
    let error = srq.arm_limit(srq.max_wr() + 1).err().ok_or("armed")?;
    same("errno", error.errno(), libc::EINVAL)
}

fn resize_makes_room_and_keeps_what_is_posted(ends: &Ends) -> TestResult {
    let (srq, mr) = create(ends, 4, 1)?;
    if !ends.b.context.attributes().srq_resize {
        let error = srq.resize(64).err().ok_or("resized")?;
        return ensure(error.is_unsupported(), || error.to_string());
    }
    let a = Endpoint::new(&ends.a, &Shape::default())?;
    let b = Endpoint::new(&ends.b, &Shape { srq: Some(&srq), ..Shape::default() })?;
    Endpoint::connect(ends, &a, &b)?;
    let before = fill(&srq, mr.sge(0, 64)?, 0);
    srq.resize(64)?;
    ensure(srq.max_wr() >= 64, || format!("{}", srq.max_wr()))?;
    let more = fill(&srq, mr.sge(0, 64)?, before);
    ensure(before + more >= 64, || format!("{before} and {more}"))?;
    for expected in 0..before + 1 {
        a.qp.post_send(&SendWr::send(0, &[a.sge(0, 8)]))?;
        all_good(&a.sent(1)?)?;
        same("order", b.received(1)?[0].wr_id, expected)?;
    }
    Ok(())
}

fn resize_below_what_is_posted_is_refused(ends: &Ends) -> TestResult {
    let (srq, mr) = create(ends, 64, 1)?;
    for wr_id in 0..40 {
        srq.post_one(wr_id, &[mr.sge(0, 64)?])?;
    }
    let error = srq.resize(8).err().ok_or("resized")?;
    ensure(matches!(error.errno(), libc::EINVAL | libc::EOPNOTSUPP), || error.to_string())?;
    same("beyond the device", srq.resize(u32::MAX).map_err(|e| e.verb()), Err("ibv_modify_srq"))
}

fn last_wqe_event_names_the_endpoint(ends: &Ends) -> TestResult {
    let (srq, _mr) = create(ends, 8, 1)?;
    let a = Endpoint::new(&ends.a, &Shape::default())?;
    let b = Endpoint::new(&ends.b, &Shape { srq: Some(&srq), token: 0xbb, ..Shape::default() })?;
    Endpoint::connect(ends, &a, &b)?;
    b.qp.to_error()?;
    let event = async_event(&ends.b.context, |event| event.kind == AsyncKind::QpLastWqeReached)?;
    same("object", event.object, AsyncObject::Qp(b.qp.num(), 0xbb))
}

fn receives_for_datagrams_are_refused(ends: &Ends) -> TestResult {
    let (srq, mr) = create(ends, 8, 1)?;
    let buffer = UdRecvBuffer::new(&mr, 0, 100)?;
    let refused = Err(PostListError { index: 0, reason: PostError::NoGrhArea });
    same("datagram", srq.post_list(&[UdRecvWr { wr_id: 0, buffer }]), refused)?;
    let shape = Shape { kind: QpKind::Ud, srq: Some(&srq), ..Shape::default() };
    ensure(Endpoint::new(&ends.b, &shape).is_err(), || "a UD QP on a connected SRQ".to_owned())
}

fn two_threads_post_without_losing_a_receive(ends: &Ends) -> TestResult {
    let (srq, mr) = create(ends, 200, 1)?;
    let room = fill(&create(ends, 200, 1)?.0, mr.sge(0, 8)?, 0);
    let sges = [mr.sge(0, 8)?];
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for wr_id in 0..90 {
                    srq.post_one(wr_id, &sges).expect("room");
                }
            });
        }
    });
    same("room left", fill(&srq, sges[0], 0), room - 180)
}
