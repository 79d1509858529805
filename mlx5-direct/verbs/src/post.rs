#![expect(unsafe_code, reason = "functions that verbs call with C pointers")]
//! `ibv_post_send`, `ibv_post_recv`, `ibv_post_srq_recv` and `ibv_bind_mw`.

use core::{ffi::c_int, mem::zeroed, ptr};
use std::sync::atomic::Ordering::Relaxed;

use doorbell_sys::{
    ibv_access_flags, ibv_mw, ibv_mw_bind, ibv_qp, ibv_recv_wr, ibv_send_wr, ibv_srq, ibv_wr_opcode,
};
use libc::{EINVAL, ENOMEM};
use mlx5_direct::{RecvWrs, SendWrs, Srq, srq::PostError};

use crate::objects::{Context, Qp, RECEIVES_FROM, Receives, SENDS_FROM, enter, find_here};

/// `post_send` of a context's operations.
///
/// # Safety
///
/// As for `ibv_post_send`: a live QP of the context, a list of valid requests.
pub(crate) unsafe extern "C" fn post_send(
    raw: *mut ibv_qp,
    list: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: a live QP of a patched context by contract.
    if let Some(mut sq) = unsafe { enter(raw) }
        && let Some(sq) = &mut *sq
        // SAFETY: valid requests by contract, during this call.
        && sq.post_send_wr_fast(&unsafe { SendWrs::new(list) })
    {
        return 0;
    }
    // SAFETY: passed on to the caller.
    unsafe { post_send_slow(raw, list, bad) }
}

/// Posts what the straight-line code of `post_send` does not.
///
/// # Safety
///
/// As `post_send`.
#[inline(never)]
unsafe extern "C" fn post_send_slow(
    raw: *mut ibv_qp,
    list: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: a live QP by contract.
    let Some(qp) = (unsafe { find_here(raw) }) else {
        // SAFETY: a live QP of a patched context; libmlx5's function gets the caller's arguments.
        return unsafe { (Context::of((*raw).context).post_send)(raw, list, bad) };
    };
    // SAFETY: passed on to the caller.
    match unsafe { send(qp, list) } {
        Ok(()) => 0,
        Err((posted, error)) => {
            // SAFETY: the first `posted` requests of the list were posted, so the list has one
            // more.
            unsafe { *bad = (0..posted).fold(list, |wr, _| (*wr).next) };
            error
        }
    }
}

/// Posts a list. The error has the number of requests that were posted, and the error number.
///
/// # Safety
///
/// A list of valid requests for this QP.
pub(crate) unsafe fn send(qp: &Qp, list: *const ibv_send_wr) -> Result<(), (u32, c_int)> {
    if qp.state.load(Relaxed) < SENDS_FROM {
        return Err((0, ENOMEM));
    }
    let mut sq = qp.send.lock();
    let Some(sq) = &mut *sq else { return Err((0, ENOMEM)) };
    // SAFETY: valid requests by contract, during this call.
    match sq.post_send_wrs(unsafe { SendWrs::new(list) }) {
        Ok(_) => Ok(()),
        Err(refused) => Err((refused.posted, refused.error.errno())),
    }
}

/// `post_recv` of a context's operations.
///
/// # Safety
///
/// As for `ibv_post_recv`: a live QP of the context, a list of valid requests.
pub(crate) unsafe extern "C" fn post_recv(
    raw: *mut ibv_qp,
    list: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: a live QP by contract.
    let Some(qp) = (unsafe { find_here(raw) }) else {
        // SAFETY: a live QP of a patched context; libmlx5's function gets the caller's arguments.
        return unsafe { (Context::of((*raw).context).post_recv)(raw, list, bad) };
    };
    let refuse = |posted, error| {
        // SAFETY: the first `posted` requests of the list were posted, so the list has one more.
        unsafe { *bad = nth(list, posted) };
        error
    };
    if list.is_null() {
        return 0;
    }
    let Receives::Own(rq) = &qp.receive else { return refuse(0, ENOMEM) };
    let mut rq = rq.lock();
    let Some(rq) = &mut *rq else { return refuse(0, ENOMEM) };
    if qp.state.load(Relaxed) < RECEIVES_FROM {
        return refuse(0, EINVAL);
    }
    // SAFETY: valid requests by contract, during this call.
    match rq.post_recv_wrs(unsafe { RecvWrs::new(list) }) {
        Ok(_) => 0,
        Err(refused) => refuse(
            refused.posted,
            match refused.error {
                PostError::Full => ENOMEM,
                PostError::TooManySegments => EINVAL,
            },
        ),
    }
}

/// The request after `n` others.
///
/// # Safety
///
/// The list has more than `n` requests.
unsafe fn nth(list: *mut ibv_recv_wr, n: u32) -> *mut ibv_recv_wr {
    // SAFETY: requests of the list, by contract.
    unsafe { (0..n).fold(list, |wr, _| (*wr).next) }
}

/// `post_srq_recv` of a context's operations.
///
/// # Safety
///
/// As for `ibv_post_srq_recv`: a live SRQ of the context, a list of valid requests.
pub(crate) unsafe extern "C" fn post_srq_recv(
    raw: *mut ibv_srq,
    list: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: valid requests by contract, during this call.
    if let Some((segment, cookie)) = unsafe { RecvWrs::new(list) }.only_single()
        // SAFETY: a live SRQ of a patched context by contract.
        && let Some(mut direct) = unsafe { enter(raw) }
        && direct.post_one_fast(segment, cookie).is_some()
    {
        return 0;
    }
    // SAFETY: passed on to the caller.
    unsafe { post_srq_recv_other(raw, list, bad) }
}

/// Posts what the straight-line code of `post_srq_recv` does not: several segments, a list, or
/// after a search for a free slot.
///
/// # Safety
///
/// As `post_srq_recv`.
#[inline(never)]
unsafe extern "C" fn post_srq_recv_other(
    raw: *mut ibv_srq,
    list: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: a live SRQ of a patched context by contract.
    if let Some(mut direct) = unsafe { enter(raw) } {
        // SAFETY: passed on to the caller.
        return unsafe { post_to_srq(&mut direct, list, bad) };
    }
    // SAFETY: passed on to the caller.
    unsafe { post_srq_recv_slow(raw, list, bad) }
}

/// Finds the SRQ and waits for its lock.
///
/// # Safety
///
/// As `post_srq_recv`.
#[inline(never)]
unsafe extern "C" fn post_srq_recv_slow(
    raw: *mut ibv_srq,
    list: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: a live SRQ by contract.
    let Some(srq) = (unsafe { find_here(raw) }) else {
        // SAFETY: a live SRQ of a patched context; libmlx5's function gets the caller's arguments.
        return unsafe { (Context::of((*raw).context).post_srq_recv)(raw, list, bad) };
    };
    // SAFETY: passed on to the caller.
    unsafe { post_to_srq(&mut srq.direct.lock(), list, bad) }
}

/// # Safety
///
/// As `post_srq_recv`.
#[inline(always)]
unsafe fn post_to_srq(direct: &mut Srq, list: *mut ibv_recv_wr, bad: *mut *mut ibv_recv_wr) -> c_int {
    // SAFETY: valid requests by contract, during this call.
    let wrs = unsafe { RecvWrs::new(list) };
    if direct.post_recv_wr_fast(&wrs) {
        return 0;
    }
    match direct.post_recv_wrs(wrs) {
        Ok(_) => 0,
        Err(refused) => {
            // SAFETY: the list has one more request than were posted, and `bad` is a place for its
            // address, by contract.
            unsafe { *bad = nth(list, refused.posted) };
            match refused.error {
                PostError::TooManySegments => EINVAL,
                PostError::Full => ENOMEM,
            }
        }
    }
}

/// `bind_mw` of a context's operations.
///
/// # Safety
///
/// As for `ibv_bind_mw`: a live QP of the context, a live window, valid bind parameters.
pub(crate) unsafe extern "C" fn bind_mw(raw: *mut ibv_qp, mw: *mut ibv_mw, bind: *mut ibv_mw_bind) -> c_int {
    // SAFETY: a live QP by contract.
    let Some(qp) = (unsafe { find_here(raw) }) else {
        // SAFETY: a live QP of a patched context; libmlx5's function gets the caller's arguments.
        return unsafe { (Context::of((*raw).context).bind_mw)(raw, mw, bind) };
    };
    // SAFETY: valid by contract.
    let (bind, window) = unsafe { (&*bind, &mut *mw) };
    if bind.bind_info.mw_access_flags & ibv_access_flags::IBV_ACCESS_ZERO_BASED.0 != 0 {
        crate::real::set_errno(EINVAL);
        return EINVAL;
    }
    // The low byte of a key is its variant, which a bind changes.
    let rkey = window.rkey & !0xff | window.rkey.wrapping_add(1) & 0xff;
    // SAFETY: integers and pointers only, for which zero is a value.
    let mut wr: ibv_send_wr = unsafe { zeroed() };
    wr.wr_id = bind.wr_id;
    wr.opcode = ibv_wr_opcode::IBV_WR_BIND_MW;
    wr.send_flags = bind.send_flags;
    wr.bind_mw_tso_union.bind_mw = doorbell_sys::bind_mw_t { mw, rkey, bind_info: bind.bind_info };
    // SAFETY: a valid request, made above.
    match unsafe { send(qp, ptr::from_ref(&wr)) } {
        Ok(()) => {
            window.rkey = rkey;
            0
        }
        Err((_, error)) => error,
    }
}
