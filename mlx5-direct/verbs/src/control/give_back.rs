#![expect(unsafe_code, reason = "verbs objects go back to libmlx5")]
//! Giving objects back to libmlx5: those that the program wants to drive itself, and those that
//! share a CQ or an SRQ with a queue that cannot be taken over.
//!
//! The control lock is held during all of this.

use core::{fmt, ptr};
use std::sync::atomic::Ordering::Relaxed;

use doorbell_sys::{ibv_cq, ibv_qp, ibv_qp_state, ibv_recv_wr, ibv_sge, ibv_srq};
use libc::c_int;
use mlx5_direct::DataSeg;

use super::end::{forget, leave_cq};
use super::registers;
use crate::{
    extended, fork,
    objects::{Cq, Qp, Receives, SENDS_FROM, Srq, find},
    report,
    report::Class,
    table::NO_MEMORY,
};

fn push<T>(all: &mut Vec<T>, one: T) -> Result<(), &'static str> {
    all.try_reserve(1).map_err(|_| NO_MEMORY)?;
    all.push(one);
    Ok(())
}

/// Gives an SRQ without QPs back to libmlx5. What was posted is posted again: no QP has taken any
/// of it, and libmlx5 uses the same slots in the same order, and its counter gets the same value.
pub(super) fn give_back_srq(srq: &'static Srq) -> Result<(), &'static str> {
    let raw = srq.raw.get();
    let direct = srq.direct.lock();
    // SAFETY: a live SRQ: its destruction removes it under the control lock.
    unsafe { srq.context.objects.give_up::<ibv_srq>(raw) };
    report::given_back(Class::Srq);
    report::left(Class::Srq, format_args!("SRQ {:#x}", direct.srqn()), &"it serves a queue of libmlx5");
    let context = srq.context;
    for (slot, wr_id) in direct.in_use() {
        let sge = |seg: DataSeg| ibv_sge { addr: seg.addr(), length: seg.byte_count(), lkey: seg.lkey() };
        let mut segments = Vec::new();
        for segment in direct.segments(slot) {
            push(&mut segments, sge(segment))?;
        }
        let mut bad = ptr::null_mut();
        let mut wr = ibv_recv_wr {
            wr_id,
            next: ptr::null_mut(),
            sg_list: segments.as_mut_ptr(),
            num_sge: segments.len() as c_int,
        };
        // SAFETY: a live SRQ and a valid request.
        if unsafe { (context.post_srq_recv)(raw, &raw mut wr, &raw mut bad) } != 0 {
            return Err("its SRQ cannot be given back to libmlx5");
        }
    }
    Ok(())
}

/// Gives a QP back that the program wants to drive itself.
///
/// # Safety
///
/// A live QP.
pub(crate) unsafe fn give_back_qp(raw: *mut ibv_qp) -> Result<(), &'static str> {
    let _control = fork::control();
    // SAFETY: a live QP by contract.
    match unsafe { find(raw) } {
        Some(qp) => give_back(qp),
        None => Ok(()),
    }
}

/// Whether a QP cannot have posted or completed anything.
fn is_unused(qp: &Qp) -> bool {
    let posted = match &qp.receive {
        Receives::Own(rq) => rq.lock().as_ref().is_some_and(|rq| rq.posted() > 0),
        Receives::Shared(_) => qp.state.load(Relaxed) > ibv_qp_state::IBV_QPS_INIT,
    };
    qp.state.load(Relaxed) < SENDS_FROM && !posted
}

/// Gives back a QP and everything that shares a CQ or an SRQ with it.
fn give_back(first: &'static Qp) -> Result<(), &'static str> {
    let (mut qps, mut cqs, mut srqs) = (Vec::new(), Vec::<&'static Cq>::new(), Vec::<&'static Srq>::new());
    push(&mut qps, first)?;
    loop {
        let before = qps.len();
        for qp in &qps {
            for cq in qp.cqs() {
                if !cqs.iter().any(|known| ptr::eq(*known, cq)) {
                    push(&mut cqs, cq)?;
                }
            }
            if let Some(srq) = qp.srq().filter(|srq| !srqs.iter().any(|known| ptr::eq(*known, *srq))) {
                push(&mut srqs, srq)?;
            }
        }
        for qp in first.context.qps.all() {
            let shares = qp.cqs().any(|cq| cqs.iter().any(|known| ptr::eq(*known, cq)))
                || qp.srq().is_some_and(|srq| srqs.iter().any(|known| ptr::eq(*known, srq)));
            if shares && !qps.iter().any(|known| ptr::eq(*known, qp)) {
                push(&mut qps, qp)?;
            }
        }
        if qps.len() == before {
            break;
        }
    }
    if !qps.iter().all(|qp| is_unused(qp)) || cqs.iter().any(|cq| cq.state.lock().polled) {
        return Err("queues that share its CQ or SRQ are in use, or the CQ was resized");
    }
    for qp in qps {
        // SAFETY: a live QP: its destruction removes it under the control lock.
        unsafe { qp.context.objects.give_up::<ibv_qp>(qp.raw.get()) };
        report::given_back(Class::Qp);
        report::left(Class::Qp, format_args!("QP {:#x}", qp.number), &"the program drives a queue itself");
        // SAFETY: a live QP.
        unsafe { extended::restore(qp.raw.get(), &qp.batch) };
        registers::leave(qp.context, qp.raw.get(), qp.register);
        forget(qp);
    }
    for cq in cqs {
        report::given_back(Class::Cq);
        leave_cq(cq, &"the program drives a queue itself");
        cq.state.lock().direct = None;
    }
    srqs.into_iter().try_for_each(give_back_srq)
}

/// Gives a CQ back that the program wants to drive itself.
///
/// # Safety
///
/// A live CQ.
pub(crate) unsafe fn give_back_cq(raw: *mut ibv_cq) -> Result<(), &'static str> {
    let _control = fork::control();
    // SAFETY: a live CQ by contract.
    let Some(cq) = (unsafe { find(raw) }) else { return Ok(()) };
    give_back_unused(cq, &"the program drives it itself")
}

/// Gives a CQ back, and everything that shares a QP with it, if all of this is unused.
pub(super) fn give_back_unused(cq: &'static Cq, why: &dyn fmt::Display) -> Result<(), &'static str> {
    let user = cq.context.qps.all().find(|qp| qp.cqs().any(|other| ptr::eq(other, cq)));
    match user {
        Some(qp) => give_back(qp),
        None if cq.state.lock().polled => Err("it was polled or resized by doorbell-verbs"),
        None => {
            if cq.state.lock().direct.take().is_some() {
                report::given_back(Class::Cq);
            }
            leave_cq(cq, why);
            Ok(())
        }
    }
}

/// Gives an SRQ back that the program wants to drive itself.
///
/// # Safety
///
/// A live SRQ.
pub(crate) unsafe fn give_back_shared(raw: *mut ibv_srq) -> Result<(), &'static str> {
    let _control = fork::control();
    // SAFETY: a live SRQ by contract.
    let Some(srq) = (unsafe { find(raw) }) else { return Ok(()) };
    match srq.context.qps.all().find(|qp| qp.srq().is_some_and(|other| ptr::eq(other, srq))) {
        Some(qp) => give_back(qp),
        None => give_back_srq(srq),
    }
}
