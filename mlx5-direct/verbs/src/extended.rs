#![expect(unsafe_code, reason = "functions that verbs call with C pointers")]
//! The extended way to post (`ibv_wr_start` to `ibv_wr_complete`).
//!
//! Between start and complete, the requests are collected as work requests of `ibv_post_send`;
//! complete posts them as one list. So a batch that is aborted or that has an error leaves no trace
//! in the queue.

use core::{cell::UnsafeCell, ffi::c_int, ffi::c_void, mem::zeroed, ptr};
use std::sync::{OnceLock, atomic::Ordering::Relaxed};

use doorbell_sys::{
    ibv_ah, ibv_data_buf, ibv_mw, ibv_mw_bind_info, ibv_qp, ibv_qp_ex, ibv_send_flags, ibv_send_wr, ibv_sge,
    ibv_wr_opcode,
};
use libc::{EINVAL, ENOMEM, EOPNOTSUPP};
use mlx5_direct::wr::MAX_BIND_BYTES;
use parking_lot::{RawMutex, lock_api::RawMutex as _};

use crate::{
    objects::{Qp, SENDS_FROM, find},
    post, real,
};

/// The requests of a QP between start and complete.
pub(crate) struct Batch {
    /// Held from start to complete or abort.
    lock: RawMutex,
    requests: UnsafeCell<Requests>,
    /// libmlx5's functions, if the QP has extended operations.
    original: OnceLock<Functions>,
}

// SAFETY: `requests` is used only by the thread that holds `lock`.
unsafe impl Sync for Batch {}
// SAFETY: the pointers inside `requests` lead into its own vectors or are values of the program.
unsafe impl Send for Batch {}

impl Default for Batch {
    fn default() -> Self {
        Self { lock: RawMutex::INIT, requests: UnsafeCell::default(), original: OnceLock::new() }
    }
}

#[derive(Default)]
struct Requests {
    /// Their `sg_list` is set when the list is posted.
    list: Vec<ibv_send_wr>,
    /// Segments of all requests, one request after the other. The address of an inline segment is
    /// an offset in `inline`.
    segments: Vec<ibv_sge>,
    inline: Vec<u8>,
    /// The first error, or 0.
    error: c_int,
    /// Whether the request that is being built was refused or does not exist.
    refused: bool,
    max_segments: usize,
    max_inline: usize,
    max_units: usize,
}

impl Requests {
    fn clear(&mut self) {
        self.list.clear();
        self.segments.clear();
        self.inline.clear();
        self.error = 0;
        self.refused = true;
    }

    fn refuse(&mut self, error: c_int) {
        if self.error == 0 {
            self.error = error;
        }
    }

    fn last(&mut self) -> Option<&mut ibv_send_wr> {
        self.list.last_mut().filter(|_| !self.refused)
    }

    fn begin(&mut self, qp: &ibv_qp_ex, opcode: ibv_wr_opcode::Type) -> &mut ibv_send_wr {
        // SAFETY: integers and pointers only, for which zero is a value.
        let mut wr: ibv_send_wr = unsafe { zeroed() };
        wr.wr_id = qp.wr_id;
        wr.opcode = opcode;
        wr.send_flags = qp.wr_flags & !ibv_send_flags::IBV_SEND_INLINE.0;
        self.refused = false;
        self.list.push(wr);
        let last = self.list.len() - 1;
        &mut self.list[last]
    }

    fn set_segments(&mut self, segments: &[ibv_sge]) {
        if segments.len() > self.max_segments {
            return self.refuse(ENOMEM);
        }
        if let Some(wr) = self.last() {
            wr.num_sge = segments.len() as c_int;
            self.segments.extend_from_slice(segments);
        }
    }

    fn set_inline<'a>(&mut self, parts: impl Iterator<Item = &'a [u8]> + Clone) {
        let bytes = parts.clone().fold(0, |n: usize, part| n.saturating_add(part.len()));
        if bytes > self.max_inline {
            return self.refuse(ENOMEM);
        }
        let offset = self.inline.len();
        let Some(wr) = self.last() else { return };
        wr.num_sge = 1;
        wr.send_flags |= ibv_send_flags::IBV_SEND_INLINE.0;
        parts.for_each(|part| self.inline.extend_from_slice(part));
        self.segments.push(ibv_sge { addr: offset as u64, length: bytes as u32, lkey: 0 });
    }

    /// Links the requests and sets their segment lists; returns the first request.
    fn link(&mut self) -> *const ibv_send_wr {
        let (mut used, inline) = (0, self.inline.as_ptr().addr() as u64);
        let first = self.list.as_mut_ptr();
        let count = self.list.len();
        for (n, wr) in self.list.iter_mut().enumerate() {
            let segments = &mut self.segments[used..used + wr.num_sge as usize];
            if wr.send_flags & ibv_send_flags::IBV_SEND_INLINE.0 != 0 {
                segments.iter_mut().for_each(|segment| segment.addr += inline);
            }
            used += segments.len();
            wr.sg_list = segments.as_mut_ptr();
            wr.next = if n + 1 < count { first.wrapping_add(n + 1) } else { ptr::null_mut() };
        }
        if count == 0 { ptr::null() } else { first }
    }
}

/// The QP of an extended QP that was taken over.
///
/// # Safety
///
/// A live QP whose functions are those of this module.
unsafe fn qp_of(raw: *mut ibv_qp_ex) -> &'static Qp {
    // SAFETY: live by contract; both structs begin at the same address.
    unsafe { find(raw.cast::<ibv_qp>()) }.unwrap_or_else(|| unreachable!("a patched QP is in the table"))
}

/// The requests of a QP whose batch this thread has started.
///
/// # Safety
///
/// As for `qp_of`; between `ibv_wr_start` and `ibv_wr_complete` of this thread. One reference at a
/// time.
unsafe fn requests(raw: *mut ibv_qp_ex) -> &'static mut Requests {
    // SAFETY: this thread holds the lock since `wr_start`, by contract.
    unsafe { &mut *qp_of(raw).batch.requests.get() }
}

/// Starts a request; `set` sets what depends on the opcode.
///
/// # Safety
///
/// As `requests`.
unsafe fn begin(raw: *mut ibv_qp_ex, opcode: ibv_wr_opcode::Type, set: impl FnOnce(&mut ibv_send_wr)) {
    // SAFETY: passed on to the caller; the QP is live.
    unsafe { set(requests(raw).begin(&*raw, opcode)) }
}

unsafe extern "C" fn start(raw: *mut ibv_qp_ex) {
    // SAFETY: a live QP by the contract of `ibv_wr_start`.
    let qp = unsafe { qp_of(raw) };
    qp.batch.lock.lock();
    // SAFETY: this thread holds the lock.
    let requests = unsafe { &mut *qp.batch.requests.get() };
    if requests.max_units == 0
        && let Some(sq) = &*qp.send.lock()
    {
        requests.max_units = sq.max_units();
        (requests.max_segments, requests.max_inline) =
            (sq.caps().max_segments as usize, sq.caps().max_inline as usize);
    }
    requests.clear();
}

unsafe extern "C" fn complete(raw: *mut ibv_qp_ex) -> c_int {
    // SAFETY: a live QP by the contract of `ibv_wr_complete`.
    let qp = unsafe { qp_of(raw) };
    // SAFETY: this thread holds the lock since `ibv_wr_start`, by contract.
    let requests = unsafe { &mut *qp.batch.requests.get() };
    let result = post_all(qp, requests);
    // SAFETY: as above.
    unsafe { qp.batch.lock.unlock() };
    result
}

fn post_all(qp: &Qp, requests: &mut Requests) -> c_int {
    if qp.state.load(Relaxed) < SENDS_FROM {
        return EINVAL;
    }
    if requests.error != 0 || requests.list.is_empty() {
        return requests.error;
    }
    // Only complete calls post to a QP that posts in the extended way, and completions only make
    // room: so there is still as much room when the list is posted.
    if qp.send.lock().as_ref().is_none_or(|sq| (sq.free() as usize) < requests.list.len()) {
        return ENOMEM;
    }
    let first = requests.link();
    // SAFETY: a list whose requests name segments in the same value, and memory of the program.
    match unsafe { post::send(qp, first) } {
        Ok(()) => 0,
        Err((_, error)) => error,
    }
}

unsafe extern "C" fn abort(raw: *mut ibv_qp_ex) {
    // SAFETY: a live QP; this thread holds the lock since `ibv_wr_start`, by contract.
    unsafe { qp_of(raw).batch.lock.unlock() };
}

unsafe extern "C" fn send(raw: *mut ibv_qp_ex) {
    // SAFETY: the contract of `ibv_wr_send` is that of `begin`.
    unsafe { begin(raw, ibv_wr_opcode::IBV_WR_SEND, |_| ()) };
}

unsafe extern "C" fn send_imm(raw: *mut ibv_qp_ex, imm: u32) {
    // SAFETY: as in `send`.
    unsafe {
        begin(raw, ibv_wr_opcode::IBV_WR_SEND_WITH_IMM, |wr| {
            wr.imm_data_invalidated_rkey_union.imm_data = imm;
        });
    }
}

unsafe extern "C" fn send_inv(raw: *mut ibv_qp_ex, rkey: u32) {
    // SAFETY: as in `send`.
    unsafe {
        begin(raw, ibv_wr_opcode::IBV_WR_SEND_WITH_INV, |wr| {
            wr.imm_data_invalidated_rkey_union.invalidated_rkey = rkey;
        });
    }
}

unsafe extern "C" fn read(raw: *mut ibv_qp_ex, rkey: u32, remote_addr: u64) {
    // SAFETY: as in `send`.
    unsafe {
        begin(raw, ibv_wr_opcode::IBV_WR_RDMA_READ, |wr| {
            wr.wr.rdma = doorbell_sys::rdma_t { remote_addr, rkey }
        });
    }
}

unsafe extern "C" fn write(raw: *mut ibv_qp_ex, rkey: u32, remote_addr: u64) {
    // SAFETY: as in `send`.
    unsafe {
        begin(raw, ibv_wr_opcode::IBV_WR_RDMA_WRITE, |wr| {
            wr.wr.rdma = doorbell_sys::rdma_t { remote_addr, rkey }
        });
    }
}

unsafe extern "C" fn write_imm(raw: *mut ibv_qp_ex, rkey: u32, remote_addr: u64, imm: u32) {
    // SAFETY: as in `send`.
    unsafe {
        begin(raw, ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM, |wr| {
            wr.wr.rdma = doorbell_sys::rdma_t { remote_addr, rkey };
            wr.imm_data_invalidated_rkey_union.imm_data = imm;
        });
    }
}

unsafe extern "C" fn compare_swap(
    raw: *mut ibv_qp_ex,
    rkey: u32,
    remote_addr: u64,
    compare_add: u64,
    swap: u64,
) {
    // SAFETY: as in `send`.
    unsafe {
        begin(raw, ibv_wr_opcode::IBV_WR_ATOMIC_CMP_AND_SWP, |wr| {
            wr.wr.atomic = doorbell_sys::atomic_t { remote_addr, compare_add, swap, rkey };
        });
    }
}

unsafe extern "C" fn fetch_add(raw: *mut ibv_qp_ex, rkey: u32, remote_addr: u64, compare_add: u64) {
    // SAFETY: as in `send`.
    unsafe {
        begin(raw, ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD, |wr| {
            wr.wr.atomic = doorbell_sys::atomic_t { remote_addr, compare_add, swap: 0, rkey };
        });
    }
}

/// Units of the longest change of a key: a bind. An invalidation has 8.
const BIND_UNITS: usize = 12;

unsafe extern "C" fn local_inv(raw: *mut ibv_qp_ex, rkey: u32) {
    // SAFETY: as in `send`.
    unsafe {
        begin(raw, ibv_wr_opcode::IBV_WR_LOCAL_INV, |wr| {
            wr.imm_data_invalidated_rkey_union.invalidated_rkey = rkey;
        });
        if requests(raw).max_units < 8 {
            requests(raw).refuse(ENOMEM);
        }
    }
}

unsafe extern "C" fn bind(raw: *mut ibv_qp_ex, mw: *mut ibv_mw, rkey: u32, info: *const ibv_mw_bind_info) {
    // SAFETY: as in `send`; valid bind parameters by the contract of `ibv_wr_bind_mw`.
    unsafe {
        let bind_info = *info;
        begin(raw, ibv_wr_opcode::IBV_WR_BIND_MW, |wr| {
            wr.bind_mw_tso_union.bind_mw = doorbell_sys::bind_mw_t { mw, rkey, bind_info };
        });
        if bind_info.length > MAX_BIND_BYTES {
            requests(raw).refuse(EOPNOTSUPP);
        }
        if requests(raw).max_units < BIND_UNITS {
            requests(raw).refuse(ENOMEM);
        }
    }
}

unsafe extern "C" fn set_ud_addr(raw: *mut ibv_qp_ex, ah: *mut ibv_ah, remote_qpn: u32, remote_qkey: u32) {
    // SAFETY: the contract of the setters is that of `requests`.
    if let Some(wr) = unsafe { requests(raw) }.last() {
        wr.wr.ud = doorbell_sys::ud_t { ah, remote_qpn, remote_qkey };
    }
}

unsafe extern "C" fn set_xrc_srqn(raw: *mut ibv_qp_ex, remote_srqn: u32) {
    // SAFETY: as in `set_ud_addr`.
    if let Some(wr) = unsafe { requests(raw) }.last() {
        wr.qp_type.xrc = doorbell_sys::xrc_t { remote_srqn };
    }
}

unsafe extern "C" fn set_sge(raw: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    // SAFETY: as in `set_ud_addr`.
    unsafe { requests(raw) }.set_segments(&[ibv_sge { addr, length, lkey }]);
}

unsafe extern "C" fn set_sge_list(raw: *mut ibv_qp_ex, count: usize, list: *const ibv_sge) {
    // SAFETY: as in `set_ud_addr`; `count` valid entries by the contract of the call.
    let segments = if count == 0 { &[] } else { unsafe { core::slice::from_raw_parts(list, count) } };
    // SAFETY: as above.
    unsafe { requests(raw) }.set_segments(segments);
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
    unsafe { requests(raw).set_inline(core::iter::once(bytes(addr, length))) };
}

unsafe extern "C" fn set_inline_list(raw: *mut ibv_qp_ex, count: usize, list: *const ibv_data_buf) {
    // SAFETY: as in `set_ud_addr`; `count` valid entries by the contract of the call.
    let list = if count == 0 { &[] } else { unsafe { core::slice::from_raw_parts(list, count) } };
    // SAFETY: valid bytes by the contract of the call.
    let parts = list.iter().map(|part| unsafe { bytes(part.addr, part.length) });
    // SAFETY: as above.
    unsafe { requests(raw) }.set_inline(parts);
}

macro_rules! functions {
    ($($field:ident = $function:ident: fn($($arg:ty),*) $(-> $result:ty)?;)*) => {
        /// The function pointers of an extended QP, as libmlx5 set them.
        #[derive(Clone, Copy, Debug)]
        struct Functions {
            $($field: Option<unsafe extern "C" fn(*mut ibv_qp_ex $(, $arg)*) $(-> $result)?>,)*
        }

        impl Functions {
            fn of(qp: &ibv_qp_ex) -> Self {
                Self { $($field: qp.$field,)* }
            }

            fn restore(&self, qp: &mut ibv_qp_ex) {
                $(qp.$field = self.$field;)*
            }
        }

        /// Replaces the functions that libmlx5 has set.
        fn replace(qp: &mut ibv_qp_ex) {
            $(if qp.$field.is_some() {
                qp.$field = Some($function);
            })*
        }
    };
}

functions! {
    wr_start = start: fn();
    wr_complete = complete: fn() -> c_int;
    wr_abort = abort: fn();
    wr_send = send: fn();
    wr_send_imm = send_imm: fn(u32);
    wr_send_inv = send_inv: fn(u32);
    wr_rdma_read = read: fn(u32, u64);
    wr_rdma_write = write: fn(u32, u64);
    wr_rdma_write_imm = write_imm: fn(u32, u64, u32);
    wr_atomic_cmp_swp = compare_swap: fn(u32, u64, u64, u64);
    wr_atomic_fetch_add = fetch_add: fn(u32, u64, u64);
    wr_local_inv = local_inv: fn(u32);
    wr_bind_mw = bind: fn(*mut ibv_mw, u32, *const ibv_mw_bind_info);
    wr_set_ud_addr = set_ud_addr: fn(*mut ibv_ah, u32, u32);
    wr_set_xrc_srqn = set_xrc_srqn: fn(u32);
    wr_set_sge = set_sge: fn(u32, u64, u32);
    wr_set_sge_list = set_sge_list: fn(usize, *const ibv_sge);
    wr_set_inline_data = set_inline: fn(*mut c_void, usize);
    wr_set_inline_data_list = set_inline_list: fn(usize, *const ibv_data_buf);
}

/// The extended part of a QP, if it was created with one.
///
/// # Safety
///
/// A live QP.
unsafe fn extended<'a>(raw: *mut ibv_qp) -> Option<&'a mut ibv_qp_ex> {
    let convert = real::ibv_qp_to_qp_ex()?;
    // SAFETY: live by contract; null if the QP has no extended part.
    unsafe { convert(raw).as_mut() }
}

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
    replace(qp);
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
    }
}
