#![expect(unsafe_code, reason = "functions that verbs call with C pointers")]
//! The extended way to post (`ibv_wr_start` to `ibv_wr_complete`).
//!
//! Between start and complete a thread is in a *batch*, and no other thread can start one of the
//! QP. The requests are built outside the queue ([`Staged`]); complete posts all of them, or none.
//! So a batch that is aborted or that has an error leaves no trace in the queue. The lock of the
//! queue is held only in complete, so that the program can make any call in between.
//!
//! A QP leads to its object by the pointer `wr_send_tso`. Only queues of raw packets have that
//! function, and such QPs are left to libmlx5.

use core::{ffi::c_int, ffi::c_void, ptr};
use std::sync::atomic::Ordering::Relaxed;

use biased_lock::Guard;
use doorbell_sys::{ibv_ah, ibv_data_buf, ibv_mw, ibv_mw_bind_info, ibv_qp, ibv_qp_ex, ibv_sge};
use libc::EINVAL;
use mlx5_direct::{
    DataSeg,
    sq::{Staged, WrError},
    wr::{AddressVector, Bind, MAX_BIND_BYTES, Remote, Wr},
};

use crate::{
    batch::{Batch, Functions, extended},
    objects::{Qp, SENDS_FROM, find},
};

/// The QP of an extended QP that was taken over.
///
/// # Safety
///
/// A live QP whose functions are those of this module.
#[inline(always)]
unsafe fn qp_of(raw: *mut ibv_qp_ex) -> &'static Qp {
    // SAFETY: live by contract; `patch` has stored the address of the object, which lives as long
    // as the QP.
    unsafe { &*(&raw const (*raw).wr_send_tso).cast::<*const Qp>().read() }
}

/// The requests of this thread's batch.
///
/// # Safety
///
/// As for `qp_of`; this thread is in a batch. One reference at a time.
#[inline(always)]
unsafe fn staged(raw: *mut ibv_qp_ex) -> &'static mut Staged {
    // SAFETY: passed on to the caller; a QP whose functions are those of this module has extended
    // operations.
    unsafe { qp_of(raw).batch.staged() }
}

/// Begins a request.
///
/// # Safety
///
/// As `staged`.
#[inline(always)]
unsafe fn begin(raw: *mut ibv_qp_ex, wr: Wr<()>) {
    // SAFETY: passed on to the caller; the QP is live, and only this thread uses its fields now.
    unsafe {
        let (flags, wr_id) = ((*raw).wr_flags, (*raw).wr_id);
        staged(raw).begin(wr, flags, wr_id);
    }
}

unsafe extern "C" fn start(raw: *mut ibv_qp_ex) {
    // SAFETY: a live QP by the contract of `ibv_wr_start`.
    let qp = unsafe { qp_of(raw) };
    match qp.batch.lock.try_lock_fast() {
        // SAFETY: a live QP; the guard is that of its batch.
        Some(guard) => unsafe { start_with(raw, guard) },
        // SAFETY: as above.
        None => unsafe { start_slow(raw) },
    }
}

/// `start` of a QP with which another thread was in a batch last.
///
/// # Safety
///
/// As `start`.
#[inline(never)]
unsafe extern "C" fn start_slow(raw: *mut ibv_qp_ex) {
    // SAFETY: a live QP by contract, the guard is that of its batch.
    unsafe { start_with(raw, qp_of(raw).batch.lock.lock()) }
}

/// # Safety
///
/// A live QP, with the guard of its batch.
#[inline(always)]
unsafe fn start_with(raw: *mut ibv_qp_ex, guard: Guard<'static, ()>) {
    // SAFETY: passed on to the caller; a QP whose functions are those of this module has extended
    // operations.
    unsafe { qp_of(raw).batch.begin(guard) };
}

unsafe extern "C" fn complete(raw: *mut ibv_qp_ex) -> c_int {
    // SAFETY: a live QP by the contract of `ibv_wr_complete`; this thread is in a batch.
    let (qp, staged) = unsafe { (qp_of(raw), &*staged(raw)) };
    if qp.state.load(Relaxed) >= SENDS_FROM
        && let Some(mut sq) = qp.send.try_lock_fast()
        && let Some(sq) = &mut *sq
        && sq.post_staged(staged).is_ok()
    {
        // SAFETY: as above.
        unsafe { qp.batch.end() };
        return 0;
    }
    // SAFETY: as above.
    unsafe { complete_slow(qp, staged) }
}

/// `complete` of a batch with an error, and of a queue that another thread used last.
///
/// # Safety
///
/// This thread is in the batch of the QP, and these are its requests.
#[inline(never)]
unsafe fn complete_slow(qp: &Qp, staged: &Staged) -> c_int {
    let result = match (qp.state.load(Relaxed) >= SENDS_FROM, staged.error()) {
        (false, _) => EINVAL,
        (true, Some(error)) => error.errno(),
        // Without a send queue every request is an error.
        (true, None) => match qp.send.lock().as_mut().map(|sq| sq.post_staged(staged)) {
            None | Some(Ok(_)) => 0,
            Some(Err(error)) => error.errno(),
        },
    };
    // SAFETY: passed on to the caller.
    unsafe { qp.batch.end() };
    result
}

unsafe extern "C" fn abort(raw: *mut ibv_qp_ex) {
    // SAFETY: a live QP; this thread is in a batch, by the contract of `ibv_wr_abort`.
    unsafe { qp_of(raw).batch.end() };
}

unsafe extern "C" fn send(raw: *mut ibv_qp_ex) {
    // SAFETY: the contract of `ibv_wr_send` is that of `begin`.
    unsafe { begin(raw, Wr::send(())) };
}

unsafe extern "C" fn send_imm(raw: *mut ibv_qp_ex, imm: u32) {
    // SAFETY: as in `send`.
    unsafe { begin(raw, Wr::send_imm(u32::from_be(imm), ())) };
}

unsafe extern "C" fn send_inv(raw: *mut ibv_qp_ex, rkey: u32) {
    // SAFETY: as in `send`.
    unsafe { begin(raw, Wr::send_inval(rkey, ())) };
}

unsafe extern "C" fn read(raw: *mut ibv_qp_ex, rkey: u32, addr: u64) {
    // SAFETY: as in `send`.
    unsafe { begin(raw, Wr::read(Remote { addr, rkey }, ())) };
}

unsafe extern "C" fn write(raw: *mut ibv_qp_ex, rkey: u32, addr: u64) {
    // SAFETY: as in `send`.
    unsafe { begin(raw, Wr::write(Remote { addr, rkey }, ())) };
}

unsafe extern "C" fn write_imm(raw: *mut ibv_qp_ex, rkey: u32, addr: u64, imm: u32) {
    // SAFETY: as in `send`.
    unsafe { begin(raw, Wr::write_imm(Remote { addr, rkey }, u32::from_be(imm), ())) };
}

unsafe extern "C" fn compare_swap(raw: *mut ibv_qp_ex, rkey: u32, addr: u64, compare: u64, swap: u64) {
    // SAFETY: as in `send`.
    unsafe { begin(raw, Wr::compare_swap_bare(Remote { addr, rkey }, compare, swap)) };
}

unsafe extern "C" fn fetch_add(raw: *mut ibv_qp_ex, rkey: u32, addr: u64, add: u64) {
    // SAFETY: as in `send`.
    unsafe { begin(raw, Wr::fetch_add_bare(Remote { addr, rkey }, add)) };
}

unsafe extern "C" fn local_inv(raw: *mut ibv_qp_ex, rkey: u32) {
    // SAFETY: as in `send`.
    unsafe { begin(raw, Wr::local_inval(rkey)) };
}

unsafe extern "C" fn bind(raw: *mut ibv_qp_ex, mw: *mut ibv_mw, rkey: u32, info: *const ibv_mw_bind_info) {
    // SAFETY: as in `send`; valid bind parameters by the contract of `ibv_wr_bind_mw`.
    unsafe {
        if (*info).length > MAX_BIND_BYTES {
            staged(raw).refuse(WrError::WindowTooLong);
        }
        begin(raw, Wr::bind(Bind::from_verbs(mw, rkey, info)));
    }
}

unsafe extern "C" fn set_ud_addr(raw: *mut ibv_qp_ex, ah: *mut ibv_ah, qpn: u32, qkey: u32) {
    // SAFETY: the contract of the setters is that of `staged`; null or a live address handle.
    unsafe {
        match AddressVector::from_verbs(ah) {
            Ok(path) => staged(raw).set_peer(&path, qpn, qkey),
            Err(_) => staged(raw).refuse(WrError::NoAddress),
        }
    }
}

unsafe extern "C" fn set_xrc_srqn(raw: *mut ibv_qp_ex, srqn: u32) {
    // SAFETY: as in `set_ud_addr`.
    unsafe { staged(raw).set_srq(srqn) };
}

unsafe extern "C" fn set_sge(raw: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    // SAFETY: as in `set_ud_addr`.
    unsafe { staged(raw).set_segment(DataSeg::new(addr, length, lkey)) };
}

unsafe extern "C" fn set_sge_list(raw: *mut ibv_qp_ex, count: usize, list: *const ibv_sge) {
    // SAFETY: as in `set_ud_addr`; `count` valid entries by the contract of the call.
    let list = if count == 0 { &[] } else { unsafe { core::slice::from_raw_parts(list, count) } };
    let segments = list.iter().map(|sge| DataSeg::new(sge.addr, sge.length, sge.lkey));
    // SAFETY: as above.
    unsafe { staged(raw).set_segments(segments) };
}

/// `length` bytes at `addr`.
///
/// # Safety
///
/// Valid for reads during `'a`, unless `length` is 0.
unsafe fn bytes<'a>(addr: *const c_void, length: usize) -> &'a [u8] {
    // SAFETY: passed on to the caller.
    if length == 0 { &[] } else { unsafe { core::slice::from_raw_parts(addr.cast(), length) } }
}

unsafe extern "C" fn set_inline(raw: *mut ibv_qp_ex, addr: *mut c_void, length: usize) {
    // SAFETY: as in `set_ud_addr`; valid bytes by the contract of the call.
    unsafe { staged(raw).set_inline(bytes(addr, length)) };
}

unsafe extern "C" fn set_inline_list(raw: *mut ibv_qp_ex, count: usize, list: *const ibv_data_buf) {
    // SAFETY: as in `set_ud_addr`; `count` valid entries by the contract of the call.
    let list = if count == 0 { &[] } else { unsafe { core::slice::from_raw_parts(list, count) } };
    // SAFETY: valid bytes by the contract of the call.
    let parts = list.iter().map(|part| unsafe { bytes(part.addr, part.length) });
    // SAFETY: as above.
    unsafe { staged(raw).set_inline_parts(parts) };
}

/// The functions of this module.
const OURS: Functions = Functions {
    wr_start: Some(start),
    wr_complete: Some(complete),
    wr_abort: Some(abort),
    wr_send: Some(send),
    wr_send_imm: Some(send_imm),
    wr_send_inv: Some(send_inv),
    wr_rdma_read: Some(read),
    wr_rdma_write: Some(write),
    wr_rdma_write_imm: Some(write_imm),
    wr_atomic_cmp_swp: Some(compare_swap),
    wr_atomic_fetch_add: Some(fetch_add),
    wr_local_inv: Some(local_inv),
    wr_bind_mw: Some(bind),
    wr_set_ud_addr: Some(set_ud_addr),
    wr_set_xrc_srqn: Some(set_xrc_srqn),
    wr_set_sge: Some(set_sge),
    wr_set_sge_list: Some(set_sge_list),
    wr_set_inline_data: Some(set_inline),
    wr_set_inline_data_list: Some(set_inline_list),
};

/// Puts the functions of this module into a QP that was taken over. Call this again after each
/// change of the QP's state, with which libmlx5 sets some of its functions again.
///
/// # Safety
///
/// A live QP; nobody posts to it meanwhile.
pub(crate) unsafe fn patch(raw: *mut ibv_qp) {
    // SAFETY: passed on to the caller.
    let (Some(qp), Some(ours)) = (unsafe { extended(raw) }, unsafe { find(raw) }) else { return };
    ours.batch.original.get_or_init(|| Functions::of(qp));
    // SAFETY: the place of a function that the QP does not have.
    unsafe { (&raw mut qp.wr_send_tso).cast::<*const Qp>().write(ptr::from_ref(ours)) };
    OURS.replace(qp);
}

/// Puts libmlx5's functions back.
///
/// # Safety
///
/// As [`patch`].
pub(crate) unsafe fn restore(raw: *mut ibv_qp, batch: &Batch) {
    // SAFETY: passed on to the caller.
    if let (Some(qp), Some(original)) = (unsafe { extended(raw) }, batch.original.get()) {
        original.restore(qp);
        qp.wr_send_tso = None;
    }
}
