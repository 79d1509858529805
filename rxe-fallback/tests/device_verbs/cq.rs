//! Completion queues and their channels.

use std::os::fd::AsFd;
use std::time::Instant;

use rxe_fallback::{CompChannel, Completion, Cq, Plain, Polled, RecvWr, SendFlags, SendOp, SendWr};

use crate::support::{Endpoint, Ends, LIMIT, TestResult, all_good, ensure, readable, same};
use crate::{Suite, suite};

pub(crate) fn suite() -> Suite {
    suite![
        sizes_and_vectors_that_do_not_exist_are_refused,
        depth_is_at_least_the_requested_and_can_grow,
        empty_cq_polls_nothing_and_an_empty_slice_takes_nothing,
        armed_cq_wakes_its_channel_once_with_its_token,
        solicited_arming_sleeps_through_other_messages,
        polling_in_small_steps_loses_nothing,
        polled_completions_leave_in_order_or_with_their_qp,
        channel_of_another_opening_is_refused,
        cq_goes_away_with_an_event_unread,
    ]
}

fn sizes_and_vectors_that_do_not_exist_are_refused(ends: &Ends) -> TestResult {
    let context = &ends.a.context;
    let max = context.attributes().max_cqe;
    for depth in [0, max + 1] {
        let error = Cq::create(context, depth, None, 0, 0).err().ok_or("created")?;
        same("errno", error.errno(), libc::EINVAL)?;
        ensure(error.to_string().contains(&max.to_string()), || error.to_string())?;
    }
    let error = Cq::create(context, 1, None, context.comp_vectors(), 0).err().ok_or("created")?;
    same("errno", error.errno(), libc::EINVAL)
}

fn depth_is_at_least_the_requested_and_can_grow(ends: &Ends) -> TestResult {
    let cq = Cq::create(&ends.a.context, 10, None, 0, 7)?;
    ensure(cq.depth() >= 10, || format!("depth {}", cq.depth()))?;
    same("token", cq.token(), 7)?;
    cq.resize(500)?;
    ensure(cq.depth() >= 500, || format!("depth {}", cq.depth()))?;
    same("resize to nothing", cq.resize(0).map_err(|e| e.errno()), Err(libc::EINVAL))
}

fn empty_cq_polls_nothing_and_an_empty_slice_takes_nothing(ends: &Ends) -> TestResult {
    let cq = Cq::create(&ends.a.context, 10, None, 0, 0)?;
    same("empty CQ", cq.poll(&mut [Completion::default(); 4])?, 0)?;
    same("empty slice", cq.poll(&mut [])?, 0)
}

fn armed_cq_wakes_its_channel_once_with_its_token(ends: &Ends) -> TestResult {
    let (a, b) = Endpoint::pair(ends)?;
    for wr_id in 0..2 {
        b.qp.post_recv(wr_id, &[b.sge(0, 64)])?;
    }
    b.recv_cq.arm(false)?;
    same("before any message", b.recv_events.next_event()?, None)?;
    for wr_id in 0..2 {
        a.qp.post_send(&SendWr::send(wr_id, &[a.sge(0, 64)]))?;
        all_good(&a.sent(1)?)?;
    }
    ensure(readable(b.recv_events.as_fd(), Instant::now() + LIMIT)?, || "no event".to_owned())?;
    same("token", b.recv_events.next_event()?, Some(b.recv_cq.token()))?;
    same("second message", b.recv_events.next_event()?, None)
}

fn solicited_arming_sleeps_through_other_messages(ends: &Ends) -> TestResult {
    let (a, b) = Endpoint::pair(ends)?;
    for wr_id in 0..3 {
        b.qp.post_recv(wr_id, &[b.sge(0, 64)])?;
    }
    b.recv_cq.arm(true)?;
    // A second message that has been acknowledged has passed the first one's completion and
    // whatever it wakes.
    for wr_id in 0..2 {
        a.qp.post_send(&SendWr::send(wr_id, &[a.sge(0, 64)]))?;
        all_good(&a.sent(1)?)?;
    }
    same("messages that are not solicited", b.recv_events.next_event()?, None)?;
    a.qp.post_send(&SendWr {
        flags: SendFlags::SIGNALLED | SendFlags::SOLICITED,
        ..SendWr::send(2, &[a.sge(0, 64)])
    })?;
    ensure(readable(b.recv_events.as_fd(), Instant::now() + LIMIT)?, || "no event".to_owned())?;
    same("solicited message", b.recv_events.next_event()?, Some(b.recv_cq.token()))?;
    same("completions", b.recv_cq.poll(&mut [Completion::default(); 8])?, 3)
}

fn polling_in_small_steps_loses_nothing(ends: &Ends) -> TestResult {
    let (a, b) = Endpoint::pair(ends)?;
    let sges = [b.sge(0, 8)];
    let list: Vec<_> = (0..16).map(|wr_id| RecvWr { wr_id, sges: &sges }).collect();
    b.qp.post_recv_list(&list)?;
    let data = [a.sge(0, 8)];
    let sends: Vec<_> = (0..16).map(|wr_id| SendWr::send(wr_id, &data)).collect();
    a.qp.post_send_list(&sends)?;
    all_good(&a.sent(16)?)?;
    let mut ids = Vec::new();
    for step in [1, 2, 5, 7, 20] {
        let mut some = vec![Completion::default(); step];
        let n = b.recv_cq.poll(&mut some)?;
        ids.extend(some[..n].iter().map(|c| c.wr_id));
    }
    same("ids", ids, (0..16).collect())
}

fn polled_completions_leave_in_order_or_with_their_qp(ends: &Ends) -> TestResult {
    let (a, b) = Endpoint::pair(ends)?;
    let mut polled = Polled::new(b.recv_cq.clone()).map_err(|error| error.to_string())?;
    same("an empty CQ", polled.fill()?, 0)?;
    same("nothing is left", (polled.plain(), polled.pop(), polled.len()), (None, None, 0))?;
    for wr_id in 0..6 {
        b.qp.post_recv(wr_id, &[b.sge(0, 64)])?;
    }
    for wr_id in 0..6 {
        let op = if wr_id == 2 { SendOp::SendImm(7) } else { SendOp::Send };
        a.qp.post_send(&SendWr::new(wr_id, op, &[a.sge(0, 10 + wr_id as usize)]))?;
        all_good(&a.sent(1)?)?;
    }
    same("first poll", polled.fill()?, 6)?;
    same("no second poll", polled.fill()?, 6)?;
    let (qp_num, plain) = (b.qp.num(), |wr_id, byte_len| Plain { wr_id, qp_num: b.qp.num(), byte_len });
    same("the oldest", polled.plain(), Some(plain(0, 10)))?;
    polled.skip();
    let second = polled.pop().ok_or("no completion")?;
    same("the second", (second.wr_id, second.byte_len, second.is_receive()), (1, 11, true))?;
    same("immediate data is not plain", polled.plain(), None)?;
    same("immediate data", polled.pop().and_then(|c| c.imm), Some(7))?;
    polled.remove(qp_num + 1, |_| panic!("of another QP"));
    same("the fourth", polled.plain(), Some(plain(3, 13)))?;
    let mut removed = Vec::new();
    polled.remove(qp_num, |completion| removed.push(completion.wr_id));
    same("removed", removed, vec![3, 4, 5])?;
    same("nothing is left", (polled.is_empty(), polled.plain()), (true, None))?;
    same("the CQ is empty", polled.fill()?, 0)
}

fn channel_of_another_opening_is_refused(ends: &Ends) -> TestResult {
    let other = rxe_fallback::Context::open(ends.a.context.name())?;
    let channel = CompChannel::create(&other)?;
    let error = Cq::create(&ends.a.context, 4, Some(&channel), 0, 0).err().ok_or("created")?;
    same("errno", error.errno(), libc::EINVAL)
}

fn cq_goes_away_with_an_event_unread(ends: &Ends) -> TestResult {
    let (a, b) = Endpoint::pair(ends)?;
    b.qp.post_recv(0, &[b.sge(0, 64)])?;
    b.recv_cq.arm(false)?;
    a.qp.post_send(&SendWr::send(0, &[a.sge(0, 64)]))?;
    let Endpoint { recv_events, recv_cq, qp, .. } = b;
    ensure(readable(recv_events.as_fd(), Instant::now() + LIMIT)?, || "no event".to_owned())?;
    drop((qp, recv_cq));
    // The kernel takes the events of a CQ away with it.
    same("event of a CQ that is gone", recv_events.next_event()?, None)
}
