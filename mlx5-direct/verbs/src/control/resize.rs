#![expect(unsafe_code, reason = "libibverbs' function for drivers")]
//! `ibv_resize_cq` of a CQ that was taken over.
//!
//! libmlx5's own function would copy entries that were polled already: it does not know the
//! consumer index. So the library makes the buffer and the command, as libmlx5 does. libmlx5 keeps
//! the old buffer until the CQ is destroyed. Its part of the CQ is stale, so a CQ that was resized
//! here does not go back.

use core::ffi::c_int;

use doorbell_sys::ibv_cq;
use libc::{EINVAL, EIO, ENOMEM, EOPNOTSUPP};
use mlx5_direct::CqBuffer;

use crate::{
    cq_buffer::Buffer,
    fork,
    objects::{CqState, find},
    real::{self, ResizeAnswer, ResizeCommand},
    report,
};

/// Resizes a CQ; `resize` is libmlx5's way.
///
/// # Safety
///
/// A live CQ.
pub(crate) unsafe fn resize_cq(raw: *mut ibv_cq, cqe: c_int, resize: impl FnOnce() -> c_int) -> c_int {
    let _control = fork::control();
    // SAFETY: a live CQ by contract.
    let (Some(cq), before) = (unsafe { (find(raw), (*raw).cqe) }) else { return real::call(resize) };
    let mut state = cq.state.lock();
    if state.direct.is_some() {
        // SAFETY: passed on to the caller.
        return unsafe { resize_direct(raw, cqe, &mut state) };
    }
    let result = real::call(resize);
    // SAFETY: a live CQ by contract.
    if result == 0 && unsafe { (*raw).cqe } != before {
        state.marks += 1;
    }
    result
}

/// # Safety
///
/// A live CQ, which was taken over.
unsafe fn resize_direct(raw: *mut ibv_cq, cqe: c_int, state: &mut CqState) -> c_int {
    let Some(direct) = &mut state.direct else { return EINVAL };
    let Some(count) = u32::try_from(cqe).ok().filter(|cqe| i32::try_from(u64::from(*cqe) * 64).is_ok())
    else {
        real::set_errno(EINVAL);
        return EINVAL;
    };
    let count = (count + 1).next_power_of_two();
    if count == direct.cqe_count() {
        return 0;
    }
    let Some(command) = real::ibv_cmd_resize_cq() else {
        report::refused("ibv_resize_cq", &"libibverbs does not export ibv_cmd_resize_cq");
        return EOPNOTSUPP;
    };
    let Some(buffer) = Buffer::new(count as usize * direct.cqe_bytes() as usize) else {
        real::set_errno(ENOMEM);
        return ENOMEM;
    };
    // SAFETY: the buffer has that size. The state keeps it until it has another one, or until the
    // CQ is destroyed.
    let new = match unsafe { CqBuffer::from_raw_parts(buffer.as_ptr().cast(), count, direct.cqe_bytes()) } {
        Ok(new) => new,
        Err(_) => return EINVAL,
    };
    // The device counts what was not returned.
    direct.release();
    let mut request = ResizeCommand::new(buffer.as_ptr() as u64, direct.cqe_bytes() as u16);
    let mut answer = ResizeAnswer::default();
    // SAFETY: a live CQ by contract; request and answer of mlx5 with their sizes.
    let result = real::call(|| unsafe {
        let (request_bytes, answer_bytes) = (size_of::<ResizeCommand>(), size_of::<ResizeAnswer>());
        command(raw, count as c_int - 1, &raw mut request, request_bytes, &raw mut answer, answer_bytes)
    });
    if result != 0 {
        return result;
    }
    if let Err(error) = direct.continue_in(new) {
        report::refused("ibv_resize_cq", &error);
        // The device writes to the new buffer. Nothing can be polled any more.
        std::mem::forget(buffer);
        return EIO;
    }
    state.polled = true;
    // The device does not use the old buffer any more.
    state.buffer = Some(buffer);
    0
}
