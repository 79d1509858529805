#![expect(unsafe_code, reason = "functions that verbs call with C pointers")]
//! The extended way to poll (`ibv_start_poll` to `ibv_end_poll`) and the readers of a completion.
//!
//! From start to end a thread is in a *session*, and no other thread can start one. The session has
//! a copy of the completion's entry, which the readers read, as those of libmlx5 read the entry.
//! The lock of the CQ is held only during the calls, so that the program can make any call in
//! between.
//!
//! A CQ leads to its object by the pointer `read_tm_info`. A program calls that function only if it
//! asked for it when it created the CQ, and such CQs are left to libmlx5.

use core::{ffi::c_int, mem::zeroed, ptr};
use std::sync::atomic::Ordering::Relaxed;

use biased_lock::Guard;
use doorbell_sys::{
    ibv_cq, ibv_cq_ex, ibv_cq_init_attr_ex, ibv_cq_init_attr_mask, ibv_create_cq_wc_flags, ibv_poll_cq_attr,
    ibv_wc, ibv_wc_flags, ibv_wc_opcode, ibv_wc_status,
};
use libc::{EINVAL, ENOENT};
use mlx5_direct::{RequestOp, cqe::RawCqe};

use crate::{
    objects::{Cq, CqState},
    poll,
    session::{Current, Functions, Open, Session},
};

/// Why an extended CQ with these attributes is left to libmlx5.
pub(crate) fn obstacle(attr: &ibv_cq_init_attr_ex) -> Option<&'static str> {
    use ibv_create_cq_wc_flags as fields;
    /// `IBV_CREATE_CQ_ATTR_SINGLE_THREADED` and `IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN`.
    const FLAGS: u32 = 1 | 1 << 1;
    const FIELDS: u64 = (fields::IBV_WC_EX_WITH_BYTE_LEN.0
        | fields::IBV_WC_EX_WITH_IMM.0
        | fields::IBV_WC_EX_WITH_QP_NUM.0
        | fields::IBV_WC_EX_WITH_SRC_QP.0
        | fields::IBV_WC_EX_WITH_SLID.0
        | fields::IBV_WC_EX_WITH_SL.0
        | fields::IBV_WC_EX_WITH_DLID_PATH_BITS.0
        | fields::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP.0
        | fields::IBV_WC_EX_WITH_CVLAN.0
        | fields::IBV_WC_EX_WITH_FLOW_TAG.0) as u64;
    const KNOWN: u32 = ibv_cq_init_attr_mask::IBV_CQ_INIT_ATTR_MASK_FLAGS.0
        | ibv_cq_init_attr_mask::IBV_CQ_INIT_ATTR_MASK_PD.0;
    let flags = match attr.comp_mask & ibv_cq_init_attr_mask::IBV_CQ_INIT_ATTR_MASK_FLAGS.0 {
        0 => 0,
        _ => attr.flags,
    };
    if attr.wc_flags & !FIELDS != 0 {
        Some("its completions have fields that only libmlx5 reads")
    } else if attr.comp_mask & !KNOWN != 0 || flags & !FLAGS != 0 {
        Some("it has attributes that only libmlx5 handles")
    } else {
        None
    }
}

/// The object of an extended CQ that was taken over or may be.
///
/// # Safety
///
/// A live CQ whose functions are those of this module.
#[inline(always)]
unsafe fn cq_of(raw: *mut ibv_cq_ex) -> &'static Cq {
    // SAFETY: live by contract; `patch` has stored the address of the object, which lives as long
    // as the CQ.
    unsafe { &*(&raw const (*raw).read_tm_info).cast::<*const Cq>().read() }
}

/// The session of an extended CQ.
///
/// # Safety
///
/// As `cq_of`.
#[inline(always)]
unsafe fn session_of(raw: *mut ibv_cq_ex) -> &'static Session {
    // SAFETY: a CQ whose functions are those of this module has a session.
    unsafe { cq_of(raw).session.as_ref().unwrap_unchecked() }
}

/// The session of this thread.
///
/// # Safety
///
/// As `cq_of`; between start and end of this thread. One reference at a time.
#[inline(always)]
unsafe fn open(raw: *mut ibv_cq_ex) -> &'static mut Open {
    // SAFETY: this thread holds the lock of the session, by contract.
    unsafe { session_of(raw).open() }
}

unsafe extern "C" fn start_poll(raw: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int {
    // SAFETY: a live CQ and valid attributes by the contract of `ibv_start_poll`.
    let (session, is_plain) = unsafe { (session_of(raw), (*attr).comp_mask == 0) };
    if is_plain && let Some(guard) = session.lock.try_lock_fast() {
        // SAFETY: a live CQ; the guard is that of its session.
        return unsafe { start(raw, attr, guard) };
    }
    // SAFETY: passed on to the caller.
    unsafe { start_poll_slow(raw, attr) }
}

/// `start_poll` of a CQ that another thread polled last, or that this thread polls already.
///
/// # Safety
///
/// As `start_poll`.
#[inline(never)]
unsafe extern "C" fn start_poll_slow(raw: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int {
    // SAFETY: valid attributes, and a live CQ by contract.
    let (session, is_plain) = unsafe { (session_of(raw), (*attr).comp_mask == 0) };
    if !is_plain {
        return EINVAL;
    }
    match session.lock.lock_unless_held() {
        // SAFETY: passed on to the caller; the guard is that of the session.
        Some(guard) => unsafe { start(raw, attr, guard) },
        // A thread that is in a session goes on with it. libmlx5 does so if the CQ is for one
        // thread.
        // SAFETY: passed on to the caller.
        None => unsafe { next_poll(raw) },
    }
}

/// Starts a session if there is a completion.
///
/// # Safety
///
/// As `start_poll`; the guard is that of the CQ's session.
#[inline(always)]
unsafe fn start(raw: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr, guard: Guard<'static, ()>) -> c_int {
    // SAFETY: a live CQ by contract; this thread holds the lock of the session.
    let open = unsafe { open(raw) };
    // SAFETY: as above.
    let result = unsafe { advance(raw, &mut open.current) };
    if result == 0 {
        open.guard = Some(guard);
        return 0;
    }
    drop(guard);
    // SAFETY: a live CQ by contract.
    let (cq, session) = unsafe { (cq_of(raw), session_of(raw)) };
    match session.original.start_poll {
        // The CQ was left to libmlx5 while this call was under way.
        // SAFETY: libmlx5's function gets the caller's arguments.
        Some(start) if cq.left.load(Relaxed) => unsafe { start(raw, attr) },
        _ => result,
    }
}

unsafe extern "C" fn next_poll(raw: *mut ibv_cq_ex) -> c_int {
    // SAFETY: a live CQ by the contract of `ibv_next_poll`; this thread is in a session.
    unsafe { advance(raw, &mut open(raw).current) }
}

unsafe extern "C" fn end_poll(raw: *mut ibv_cq_ex) {
    // SAFETY: a live CQ by the contract of `ibv_end_poll`; this thread is in a session.
    let (cq, open) = unsafe { (cq_of(raw), open(raw)) };
    // The program may post as much again as it polled, so the CQ needs the room now.
    if let Some(direct) = &mut cq.state.lock().direct {
        direct.publish_index();
    }
    // The guard is dropped after the last use of `open`.
    drop(open.guard.take());
}

/// Goes to the next completion. Returns 0, ENOENT if there is none, or -2 if nothing more can be
/// polled, as libmlx5.
///
/// # Safety
///
/// A live CQ, the lock of whose session this thread holds.
#[inline(always)]
unsafe fn advance(raw: *mut ibv_cq_ex, current: &mut Current) -> c_int {
    // SAFETY: a live CQ by contract.
    let cq = unsafe { cq_of(raw) };
    if let Some(mut state) = cq.state.try_lock_fast()
        && let CqState { direct: Some(direct), qps, .. } = &mut *state
    {
        if let Some(wr_id) = poll::take_plain(qps, direct, &mut current.entry) {
            state.polled = true;
            // SAFETY: live by contract; only this thread uses the fields of the completion.
            unsafe {
                (*raw).wr_id = wr_id;
                (*raw).status = ibv_wc_status::IBV_WC_SUCCESS;
            }
            return 0;
        }
        if !direct.is_next_ready() {
            return ENOENT;
        }
    }
    // SAFETY: passed on to the caller.
    unsafe { advance_slow(raw, current) }
}

/// `advance` for all other completions, or none, and for a CQ that another thread used last.
///
/// # Safety
///
/// As `advance`.
#[inline(never)]
unsafe fn advance_slow(raw: *mut ibv_cq_ex, current: &mut Current) -> c_int {
    // SAFETY: a live CQ by contract.
    let cq = unsafe { cq_of(raw) };
    let mut state = cq.state.lock();
    // Nothing can complete before a QP is taken over with this CQ.
    let CqState { direct: Some(direct), qps, .. } = &mut *state else { return ENOENT };
    // SAFETY: integers only, for which zero is a value.
    let mut wc: ibv_wc = unsafe { zeroed() };
    loop {
        if let Some(wr_id) = poll::take_plain(qps, direct, &mut current.entry) {
            (wc.wr_id, wc.status) = (wr_id, ibv_wc_status::IBV_WC_SUCCESS);
            break;
        }
        if !direct.is_next_ready() {
            return ENOENT;
        }
        match poll::take_any(qps, direct, &mut wc) {
            Ok(Some(entry)) => {
                (current.entry, current.change) = (entry, wc.opcode);
                break;
            }
            // The entry was of no queue of the library.
            Ok(None) => direct.publish_index(),
            Err(poll::Stuck) => return -2,
        }
    }
    state.polled = true;
    // SAFETY: live by contract; only this thread uses the fields of the completion.
    unsafe { ((*raw).wr_id, (*raw).status) = (wc.wr_id, wc.status) };
    0
}

/// The entry of the completion.
///
/// # Safety
///
/// A live CQ whose functions are those of this module, in a session of this thread.
#[inline(always)]
unsafe fn entry(raw: *mut ibv_cq_ex) -> &'static RawCqe {
    // SAFETY: passed on to the caller.
    unsafe { &open(raw).current.entry }
}

const REQUEST: u8 = 0;
const WRITE_IMM: u8 = 1;
const SEND: u8 = 2;
const SEND_IMM: u8 = 3;
const SEND_INVAL: u8 = 4;

unsafe extern "C" fn read_opcode(raw: *mut ibv_cq_ex) -> ibv_wc_opcode::Type {
    use ibv_wc_opcode::*;
    // SAFETY: the contract of the readers is that of `entry`.
    let entry = unsafe { entry(raw) };
    match entry.op_own() >> 4 {
        WRITE_IMM => IBV_WC_RECV_RDMA_WITH_IMM,
        SEND | SEND_IMM | SEND_INVAL => IBV_WC_RECV,
        REQUEST => match RequestOp::from_opcode((entry.sop_drop_qpn() >> 24) as u8) {
            RequestOp::Write | RequestOp::WriteImm => IBV_WC_RDMA_WRITE,
            RequestOp::Send | RequestOp::SendImm | RequestOp::SendInval => IBV_WC_SEND,
            RequestOp::Read => IBV_WC_RDMA_READ,
            RequestOp::CompareSwap => IBV_WC_COMP_SWAP,
            RequestOp::FetchAdd => IBV_WC_FETCH_ADD,
            // SAFETY: as above.
            RequestOp::Umr => unsafe { open(raw).current.change },
            _ => 0,
        },
        _ => 0,
    }
}

unsafe extern "C" fn read_wc_flags(raw: *mut ibv_cq_ex) -> u32 {
    // SAFETY: as in `read_opcode`.
    let entry = unsafe { entry(raw) };
    let flags = match entry.op_own() >> 4 {
        WRITE_IMM | SEND_IMM => ibv_wc_flags::IBV_WC_WITH_IMM.0,
        SEND_INVAL => ibv_wc_flags::IBV_WC_WITH_INV.0,
        _ => 0,
    };
    let grh = if entry.flags_rqpn() >> 28 & 3 == 0 { 0 } else { ibv_wc_flags::IBV_WC_GRH.0 };
    flags | grh
}

unsafe extern "C" fn read_imm_data(raw: *mut ibv_cq_ex) -> u32 {
    // SAFETY: as in `read_opcode`.
    let entry = unsafe { entry(raw) };
    let value = entry.imm_inval_pkey();
    // A key is in host order.
    if entry.op_own() >> 4 == SEND_INVAL { value } else { value.to_be() }
}

macro_rules! readers {
    ($($name:ident -> $result:ty, $entry:ident => $value:expr;)*) => {$(
        unsafe extern "C" fn $name(raw: *mut ibv_cq_ex) -> $result {
            // SAFETY: as in `read_opcode`.
            let $entry = unsafe { entry(raw) };
            $value
        }
    )*};
}

readers! {
    read_vendor_err -> u32, entry => entry.error_syndromes().1.into();
    read_byte_len -> u32, entry => entry.byte_count();
    read_qp_num -> u32, entry => entry.sop_drop_qpn() & 0x00ff_ffff;
    read_src_qp -> u32, entry => entry.flags_rqpn() & 0x00ff_ffff;
    read_slid -> u32, entry => entry.slid().into();
    read_sl -> u8, entry => (entry.flags_rqpn() >> 24 & 0xf) as u8;
    read_dlid_path_bits -> u8, entry => entry.ml_path() & 0x7f;
    read_completion_ts -> u64, entry => entry.timestamp();
    read_cvlan -> u16, entry => entry.vlan_info.get();
    read_flow_tag -> u32, entry => entry.sop_drop_qpn() & 0x00ff_ffff;
}

/// The functions of this module.
const OURS: Functions = Functions {
    start_poll: Some(start_poll),
    next_poll: Some(next_poll),
    end_poll: Some(end_poll),
    read_opcode: Some(read_opcode),
    read_vendor_err: Some(read_vendor_err),
    read_byte_len: Some(read_byte_len),
    read_imm_data: Some(read_imm_data),
    read_qp_num: Some(read_qp_num),
    read_src_qp: Some(read_src_qp),
    read_wc_flags: Some(read_wc_flags),
    read_slid: Some(read_slid),
    read_sl: Some(read_sl),
    read_dlid_path_bits: Some(read_dlid_path_bits),
    read_completion_ts: Some(read_completion_ts),
    read_cvlan: Some(read_cvlan),
    read_flow_tag: Some(read_flow_tag),
};

/// Puts the functions of this module into a CQ.
///
/// # Safety
///
/// `raw` is the live CQ of this object, which has a session, and no other thread knows it yet.
pub(crate) unsafe fn patch(raw: *mut ibv_cq_ex, cq: &'static Cq) {
    // SAFETY: a live CQ that no other thread knows yet.
    unsafe {
        (&raw mut (*raw).read_tm_info).cast::<*const Cq>().write(ptr::from_ref(cq));
        OURS.replace(&mut *raw);
    }
}

/// Puts libmlx5's functions back. The address of the object stays, for threads that are about to
/// poll.
///
/// # Safety
///
/// `raw` is the live CQ of this object.
pub(crate) unsafe fn restore(raw: *mut ibv_cq, cq: &Cq) {
    if let Some(session) = &cq.session {
        // SAFETY: the CQ is an extended one, as it has a session.
        unsafe { session.original.restore(&mut *raw.cast::<ibv_cq_ex>()) };
    }
}
