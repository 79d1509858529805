#![expect(unsafe_code, reason = "functions that C programs call")]
//! The functions of `include/doorbell/direct.h`.
//!
//! # Safety
//!
//! The contract of each function is that of the header: objects that an open function returned and
//! that are not closed, used by one thread at a time, valid pointers, and the contract of the
//! function of `mlx5-direct` that does the work.

use core::{
    ffi::{c_int, c_void},
    ptr, slice,
};

use libc::{EINVAL, EIO, ENOMEM, EOPNOTSUPP};
use mlx5_direct::{
    ArmFor, Completion, Cq, DataSeg, ScatteredRecv, ScatteredSend, SendError, Sq, Srq, WqeIndex, Wr,
    wr::{Inline, Remote},
};

/// `struct doorbell_buffer`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Buffer {
    addr: u64,
    length: u32,
    lkey: u32,
    cookie: u64,
}

impl Buffer {
    #[inline(always)]
    fn segment(&self) -> DataSeg {
        DataSeg::new(self.addr, self.length, self.lkey)
    }
}

/// Gives an object to the program.
///
/// # Safety
///
/// `out` is valid for a write.
unsafe fn opened<T, E>(object: Result<T, E>, out: *mut *mut T) -> c_int {
    let (object, result) = match object {
        Ok(object) => (Box::into_raw(Box::new(object)), 0),
        Err(_) => (ptr::null_mut(), EOPNOTSUPP),
    };
    // SAFETY: valid by contract.
    unsafe { out.write(object) };
    result
}

/// Frees an object, or does nothing for NULL.
///
/// # Safety
///
/// As for the module.
unsafe fn closed<T>(object: *mut T) {
    if !object.is_null() {
        // SAFETY: an open function made it with `Box::into_raw`.
        drop(unsafe { Box::from_raw(object) });
    }
}

/// # Safety
///
/// See the crate.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn doorbell_srq_open(verbs: *mut c_void, depth: u32, out: *mut *mut Srq) -> c_int {
    // SAFETY: a live SRQ that was not used, by contract.
    unsafe { opened(Srq::from_verbs(verbs, (depth > 0).then_some(depth)), out) }
}

/// # Safety
///
/// See the crate.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn doorbell_srq_close(srq: *mut Srq) {
    // SAFETY: passed on to the caller.
    unsafe { closed(srq) }
}

/// # Safety
///
/// See the crate.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn doorbell_srq_post(srq: &mut Srq, buffer: &Buffer) -> c_int {
    srq.post_one(buffer.segment(), buffer.cookie).map_or(ENOMEM, |_| 0)
}

/// # Safety
///
/// See the crate.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn doorbell_srq_post_many(srq: &mut Srq, buffers: *const Buffer, count: u32) -> u32 {
    if count == 0 {
        return 0;
    }
    // SAFETY: an array of `count` entries by contract.
    let buffers = unsafe { slice::from_raw_parts(buffers, count as usize) };
    srq.post_batch(buffers.iter().map(|buffer| (buffer.segment(), buffer.cookie)))
}

/// # Safety
///
/// See the crate.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn doorbell_srq_complete(srq: &mut Srq, slot: u16, cookie: *mut u64) -> c_int {
    let Ok(found) = srq.complete(WqeIndex(slot)) else { return EINVAL };
    if !cookie.is_null() {
        // SAFETY: valid for a write by contract.
        unsafe { cookie.write(found) };
    }
    0
}

/// # Safety
///
/// See the crate.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn doorbell_srq_posted(srq: &Srq) -> u32 {
    srq.posted()
}

/// What `doorbell_cq_copy` copies.
#[derive(Debug)]
enum InEntry {
    Nothing,
    Received(ScatteredRecv),
    Read(ScatteredSend),
}

/// `struct doorbell_cq`.
#[derive(Debug)]
pub struct DirectCq {
    cq: Cq,
    last: InEntry,
}

/// `struct doorbell_completion`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct CCompletion {
    kind: u8,
    with_imm: u8,
    index: u16,
    qpn: u32,
    byte_count: u32,
    imm: u32,
    vendor_error: u32,
    reserved: u32,
}

impl CCompletion {
    fn of(completion: &Completion) -> Self {
        let qpn = completion.qpn();
        let index = completion.slot().map(|slot| slot.0).or(completion.send_counter()).unwrap_or(0);
        let (kind, byte_count, imm, vendor_error) = match completion {
            Completion::Recv(c) => (0, c.byte_count, c.immediate(), 0),
            Completion::RecvScattered(c) => (1, c.receive.byte_count, c.receive.immediate(), 0),
            Completion::Send(c) => (2, c.byte_count, None, 0),
            Completion::SendScattered(c) => (3, c.byte_count(), None, 0),
            Completion::RecvError(e) => (4, 0, None, e.vendor_syndrome),
            Completion::SendError(e) => (5, 0, None, e.vendor_syndrome),
        };
        Self {
            kind,
            with_imm: imm.is_some().into(),
            index,
            qpn,
            byte_count,
            imm: imm.unwrap_or(0),
            vendor_error: vendor_error.into(),
            reserved: 0,
        }
    }
}

/// # Safety
///
/// See the crate.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn doorbell_cq_open(verbs: *mut c_void, out: *mut *mut DirectCq) -> c_int {
    // SAFETY: a live CQ that was not used, by contract.
    unsafe { opened(Cq::from_verbs(verbs).map(|cq| DirectCq { cq, last: InEntry::Nothing }), out) }
}

/// # Safety
///
/// See the crate.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn doorbell_cq_close(cq: *mut DirectCq) {
    // SAFETY: passed on to the caller.
    unsafe { closed(cq) }
}

/// # Safety
///
/// See the crate.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn doorbell_cq_poll(cq: &mut DirectCq, into: *mut CCompletion, count: u32) -> c_int {
    let DirectCq { cq, last } = cq;
    let mut polled = 0;
    let outcome = cq.poll_each(count, |completion| {
        // SAFETY: `poll_each` passes at most `count` completions; the array has as many entries.
        unsafe { into.add(polled).write(CCompletion::of(&completion)) };
        polled += 1;
        *last = match completion {
            Completion::RecvScattered(scattered) => InEntry::Received(scattered),
            Completion::SendScattered(scattered) => InEntry::Read(scattered),
            _ => InEntry::Nothing,
        };
    });
    match (outcome, polled) {
        (Err(_), 0) => -EIO,
        (_, polled) => polled as c_int,
    }
}

/// # Safety
///
/// See the crate.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn doorbell_cq_copy(cq: &mut DirectCq, to: *mut u8, size: usize) -> usize {
    if size == 0 {
        return 0;
    }
    // SAFETY: `size` bytes that the program gives for this, by contract. They are written before
    // they are read.
    let into = unsafe {
        to.write_bytes(0, size);
        slice::from_raw_parts_mut(to, size)
    };
    match &cq.last {
        InEntry::Nothing => 0,
        InEntry::Received(scattered) => cq.cq.copy_scattered(scattered, into),
        InEntry::Read(scattered) => cq.cq.copy_result(scattered, into),
    }
}

/// # Safety
///
/// See the crate.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn doorbell_cq_arm(cq: &mut DirectCq, solicited_only: c_int) {
    cq.cq.arm(if solicited_only == 0 { ArmFor::Any } else { ArmFor::Solicited });
}

/// # Safety
///
/// See the crate.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn doorbell_cq_event_received(cq: &mut DirectCq) {
    cq.cq.event_received();
}

/// # Safety
///
/// See the crate.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn doorbell_sq_open(verbs: *mut c_void, out: *mut *mut Sq) -> c_int {
    // SAFETY: a live QP to which nothing was posted, by contract.
    unsafe { opened(Sq::from_verbs(verbs), out) }
}

/// # Safety
///
/// See the crate.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn doorbell_sq_close(sq: *mut Sq) {
    // SAFETY: passed on to the caller.
    unsafe { closed(sq) }
}

/// Posts a request with the flags of the header.
#[inline(always)]
fn post<D: mlx5_direct::wr::Data>(sq: &mut Sq, mut wr: Wr<D>, cookie: u64, flags: u32) -> c_int {
    if flags & 1 != 0 {
        wr = wr.signalled();
    }
    if flags & 2 != 0 {
        wr = wr.solicited();
    }
    if flags & 4 != 0 {
        wr = wr.fenced();
    }
    match sq.post(wr, cookie) {
        Ok(()) => 0,
        Err(SendError::Full) => ENOMEM,
        Err(SendError::TooLong) => EINVAL,
    }
}

/// # Safety
///
/// See the crate.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn doorbell_sq_send(sq: &mut Sq, from: &Buffer, flags: u32) -> c_int {
    post(sq, Wr::send(from.segment()), from.cookie, flags)
}

/// # Safety
///
/// See the crate.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn doorbell_sq_send_inline(
    sq: &mut Sq,
    bytes: *const u8,
    length: usize,
    cookie: u64,
    flags: u32,
) -> c_int {
    // SAFETY: valid bytes by contract.
    let bytes = if length == 0 { &[] } else { unsafe { slice::from_raw_parts(bytes, length) } };
    post(sq, Wr::send(Inline(bytes)), cookie, flags)
}

/// # Safety
///
/// See the crate.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn doorbell_sq_write(
    sq: &mut Sq,
    from: &Buffer,
    remote_addr: u64,
    rkey: u32,
    flags: u32,
) -> c_int {
    post(sq, Wr::write(Remote { addr: remote_addr, rkey }, from.segment()), from.cookie, flags)
}

/// # Safety
///
/// See the crate.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn doorbell_sq_read(
    sq: &mut Sq,
    into: &Buffer,
    remote_addr: u64,
    rkey: u32,
    flags: u32,
) -> c_int {
    post(sq, Wr::read(Remote { addr: remote_addr, rkey }, into.segment()), into.cookie, flags)
}

/// # Safety
///
/// See the crate.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn doorbell_sq_complete(
    sq: &mut Sq,
    index: u16,
    cookie: *mut u64,
    requests: *mut u32,
) -> c_int {
    let Ok(released) = sq.complete(index) else { return EINVAL };
    // SAFETY: each is NULL or valid for a write, by contract.
    unsafe {
        if let Some(cookie) = cookie.as_mut() {
            *cookie = released.cookie;
        }
        if let Some(requests) = requests.as_mut() {
            *requests = released.requests;
        }
    }
    0
}

/// # Safety
///
/// See the crate.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn doorbell_sq_reset(sq: &mut Sq) {
    sq.reset();
}
