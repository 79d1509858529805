#![expect(unsafe_code, reason = "functions that verbs call with C pointers")]
//! `ibv_poll_cq` and `ibv_req_notify_cq`.

use core::ffi::c_int;

use doorbell_sys::{ibv_cq, ibv_wc, ibv_wc_status};
use mlx5_direct::{ArmFor, Completion, CqeError, ErrorCqe, RecvCqe, ScatteredRecv, WqeIndex};

use crate::{
    context::Context,
    objects::{CQS, Qp, Receives},
    wc,
};

/// `poll_cq` of a context's operations.
///
/// # Safety
///
/// As for `ibv_poll_cq`: a live CQ of the context and an array of `entries` entries.
pub(crate) unsafe extern "C" fn poll_cq(raw: *mut ibv_cq, entries: c_int, into: *mut ibv_wc) -> c_int {
    // SAFETY: a live CQ by contract.
    let Some(cq) = (unsafe { CQS.get(raw) }) else {
        // SAFETY: passed on to the caller.
        return unsafe { left_poll(raw, entries, into) };
    };
    let mut state = cq.state.lock();
    let state = &mut *state;
    // Nothing can complete before a QP is taken over with this CQ.
    let Some(direct) = &mut state.direct else { return 0 };
    let mut polled = 0;
    while polled < entries {
        let completion = match direct.poll() {
            Ok(Some(completion)) => completion,
            Ok(None) => break,
            // Nothing behind such an entry can be polled. No CQ that is taken over has one.
            Err(CqeError::Compressed | CqeError::Resized) => return if polled > 0 { polled } else { -2 },
            // The entry of an unknown opcode was consumed.
            Err(_) => continue,
        };
        // SAFETY: below `entries`, so inside the array. Each bit pattern is a value of the struct.
        let out = unsafe { &mut *into.add(polled as usize) };
        polled += c_int::from(finish(cq.context, direct, &completion, out));
    }
    if polled > 0 {
        state.polled = true;
        // The program may post as much again as it polled, so the CQ needs the room now.
        direct.release();
    }
    polled
}

/// The CQ belongs to libmlx5.
///
/// # Safety
///
/// As `poll_cq`.
#[cold]
unsafe fn left_poll(raw: *mut ibv_cq, entries: c_int, into: *mut ibv_wc) -> c_int {
    // SAFETY: a live CQ of a patched context; libmlx5's function gets the caller's arguments.
    unsafe { (Context::of((*raw).context).poll_cq)(raw, entries, into) }
}

/// Releases what the completion stands for and fills the entry. Returns false if there is nothing
/// to report: the completion is of no QP here.
#[inline(always)]
fn finish(context: &Context, direct: &mlx5_direct::Cq, completion: &Completion, out: &mut ibv_wc) -> bool {
    // SAFETY: a QP is freed only after its entry was removed and the lock of each of its CQs was
    // taken since. The caller holds the lock of this CQ.
    let Some(qp) = (unsafe { context.qps.get(completion.qpn()) }) else { return false };
    match completion {
        Completion::Recv(receive) => received(qp, direct, receive, out),
        Completion::Send(send) => {
            let mut sq = qp.send.lock();
            let Some(sq) = &mut *sq else { return false };
            let Ok(released) = sq.complete(send.wqe_counter) else { return false };
            wc::sent(out, send, released.cookie, || sq.is_bind(send.wqe_counter));
            true
        }
        other => finish_other(qp, direct, other, out),
    }
}

#[inline(always)]
fn received(qp: &Qp, direct: &mlx5_direct::Cq, receive: &RecvCqe, out: &mut ibv_wc) -> bool {
    let Some(wr_id) = released(qp, receive.slot, |_| ()) else { return false };
    wc::received(out, receive, &direct.message(), wr_id);
    true
}

/// Where the payload of a receive belongs.
enum Segments<'a> {
    Shared(&'a mlx5_direct::Srq),
    Own(&'a mlx5_direct::Rq),
}

/// Releases a receive and returns its `wr_id`. First `before` gets the queue, while the receive's
/// segments are still there.
#[inline(always)]
fn released(qp: &Qp, slot: WqeIndex, before: impl FnOnce(Segments<'_>)) -> Option<u64> {
    match &qp.receive {
        Receives::Shared(srq) => {
            let mut srq = srq.direct.lock();
            before(Segments::Shared(&srq));
            srq.complete(slot).ok()
        }
        Receives::Own(rq) => {
            let mut rq = rq.lock();
            let rq = rq.as_mut()?;
            before(Segments::Own(rq));
            rq.complete(slot.0).ok()
        }
    }
}

/// Failures, and completions that carry the data.
#[inline(never)]
fn finish_other(qp: &Qp, direct: &mlx5_direct::Cq, completion: &Completion, out: &mut ibv_wc) -> bool {
    match completion {
        Completion::RecvScattered(scattered) => scattered_receive(qp, direct, scattered, out),
        Completion::SendScattered(scattered) => {
            let mut sq = qp.send.lock();
            let Some(sq) = &mut *sq else { return false };
            // SAFETY: the program gave these addresses for the result of its request, and leaves
            // that memory alone until this call returns the completion.
            let bytes = unsafe { direct.deliver_result(scattered, sq.segments(scattered.send.wqe_counter)) };
            let Ok(released) = sq.complete(scattered.send.wqe_counter) else { return false };
            wc::sent(out, &scattered.send, released.cookie, || false);
            if bytes < scattered.byte_count() as usize {
                out.status = ibv_wc_status::IBV_WC_LOC_LEN_ERR;
            }
            true
        }
        Completion::RecvError(error) => {
            let Some(wr_id) = released(qp, WqeIndex(error.wqe_counter), |_| ()) else { return false };
            wc::failed(out, error, wr_id);
            true
        }
        Completion::SendError(error) => send_failed(qp, error, out),
        Completion::Recv(_) | Completion::Send(_) => false,
    }
}

fn send_failed(qp: &Qp, error: &ErrorCqe, out: &mut ibv_wc) -> bool {
    let mut sq = qp.send.lock();
    let Some(Ok(released)) = sq.as_mut().map(|sq| sq.complete(error.wqe_counter)) else { return false };
    wc::failed(out, error, released.cookie);
    true
}

fn scattered_receive(qp: &Qp, direct: &mlx5_direct::Cq, scattered: &ScatteredRecv, out: &mut ibv_wc) -> bool {
    let (receive, mut bytes) = (&scattered.receive, 0);
    let wr_id = released(qp, receive.slot, |queue| {
        // SAFETY: the program gave these addresses for a message, and leaves that memory alone
        // until this call returns the completion.
        bytes = unsafe {
            match queue {
                Segments::Shared(srq) => direct.deliver(scattered, srq.segments(receive.slot)),
                Segments::Own(rq) => direct.deliver(scattered, rq.segments(receive.slot.0)),
            }
        };
    });
    let Some(wr_id) = wr_id else { return false };
    wc::received(out, receive, &direct.message(), wr_id);
    if bytes < receive.byte_count as usize {
        out.status = ibv_wc_status::IBV_WC_LOC_LEN_ERR;
    }
    true
}

/// `req_notify_cq` of a context's operations.
///
/// # Safety
///
/// As for `ibv_req_notify_cq`: a live CQ of the context.
pub(crate) unsafe extern "C" fn req_notify_cq(raw: *mut ibv_cq, solicited_only: c_int) -> c_int {
    // SAFETY: a live CQ by contract.
    let cq = unsafe { CQS.get(raw) };
    if let Some(cq) = cq
        && let Some(direct) = &mut cq.state.lock().direct
    {
        direct.arm(if solicited_only == 0 { ArmFor::Any } else { ArmFor::Solicited });
        return 0;
    }
    // SAFETY: a live CQ of a patched context. Nothing was polled from a CQ that is not taken
    // over yet, so that the consumer index of libmlx5, 0, is right.
    unsafe { (Context::of((*raw).context).req_notify_cq)(raw, solicited_only) }
}
