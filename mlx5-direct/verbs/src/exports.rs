#![expect(unsafe_code, reason = "functions that C programs call in place of libibverbs' and libmlx5's")]
//! The exported functions. Their names are those of libibverbs and libmlx5; in a process that
//! preloads this library, the dynamic linker finds these first. Each calls the function that it
//! stands before.
//!
//! # Safety
//!
//! The contract of each function is that of its manual page: live objects, valid arguments.

use core::{
    ffi::{CStr, c_char, c_int, c_uint, c_void},
    ptr,
};

use doorbell_sys::{
    ibv_access_flags, ibv_comp_channel, ibv_context, ibv_cq, ibv_device, ibv_mr, ibv_pd, ibv_qp, ibv_qp_attr,
    ibv_qp_attr_mask, ibv_qp_init_attr, ibv_qp_init_attr_ex, ibv_srq, ibv_srq_init_attr, ibv_wq,
    ibv_wq_init_attr,
};
use libc::{ENOSYS, EOPNOTSUPP};
use mlx5_direct::dv::abi::{DvObj, DvQpInit, OBJ_CQ, OBJ_QP, OBJ_SRQ, QP_INIT_MASK_CREATE_FLAGS};

use crate::{
    context,
    control::{self, Wanted},
    objects::{CONTEXTS, find},
    real::{self, Mkey, MkeyInit},
    regions::Place,
    report,
};

/// The library that has the function is missing.
fn missing<T>() -> *mut T {
    real::set_errno(ENOSYS);
    ptr::null_mut()
}

/// Prints the counts that are printed at exit, for a program that ends without exit handlers.
#[unsafe(no_mangle)]
pub extern "C" fn doorbell_verbs_print_counts() {
    report::print_at_exit();
}

/// The function of libibverbs or libmlx5 that one of the library stands before, for tests and
/// measurements that look at queues which the library drives.
///
/// # Safety
///
/// A C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn doorbell_verbs_next(name: *const c_char) -> *mut c_void {
    // SAFETY: a C string by contract.
    real::find(unsafe { CStr::from_ptr(name) })
}

/// Stands before `ibv_open_device`.
///
/// # Safety
///
/// See [the module](self).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context {
    let Some(open) = real::ibv_open_device() else { return missing() };
    // SAFETY: the caller's argument; the context is null or new.
    unsafe {
        let context = open(device);
        context::patch(context);
        context
    }
}

/// Stands before `mlx5dv_open_device`.
///
/// # Safety
///
/// See [the module](self).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlx5dv_open_device(device: *mut ibv_device, attr: *mut c_void) -> *mut ibv_context {
    let Some(open) = real::mlx5dv_open_device() else { return missing() };
    // SAFETY: the caller's arguments; the context is null or new.
    unsafe {
        let context = open(device, attr);
        context::patch(context);
        context
    }
}

/// Stands before `ibv_import_device`.
///
/// # Safety
///
/// See [the module](self).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_import_device(cmd_fd: c_int) -> *mut ibv_context {
    let Some(import) = real::ibv_import_device() else { return missing() };
    // SAFETY: the caller's argument; the context is null or new.
    unsafe {
        let context = import(cmd_fd);
        context::patch(context);
        context
    }
}

/// Stands before `ibv_close_device`.
///
/// # Safety
///
/// See [the module](self).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_close_device(context: *mut ibv_context) -> c_int {
    let Some(close) = real::ibv_close_device() else { return -1 };
    // SAFETY: the caller's argument.
    unsafe { control::close_context(context, || close(context)) }
}

/// Stands before `ibv_create_cq`.
///
/// # Safety
///
/// See [the module](self).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_cq(
    context: *mut ibv_context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    comp_vector: c_int,
) -> *mut ibv_cq {
    let Some(create) = real::ibv_create_cq() else { return missing() };
    // SAFETY: the caller's arguments; the CQ is null or new.
    unsafe {
        let cq = create(context, cqe, cq_context, channel, comp_vector);
        if !real::inside() {
            control::add_cq(cq, None);
        }
        cq
    }
}

/// Stands before `ibv_resize_cq`.
///
/// # Safety
///
/// See [the module](self).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_resize_cq(raw: *mut ibv_cq, cqe: c_int) -> c_int {
    let Some(resize) = real::ibv_resize_cq() else { return ENOSYS };
    // SAFETY: the caller's arguments, a live CQ among them.
    unsafe { control::resize_cq(raw, cqe, || resize(raw, cqe)) }
}

/// Stands before `ibv_destroy_cq`.
///
/// # Safety
///
/// See [the module](self).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_cq(raw: *mut ibv_cq) -> c_int {
    let Some(destroy) = real::ibv_destroy_cq() else { return ENOSYS };
    // SAFETY: the caller's argument.
    control::destroy(raw, || unsafe { destroy(raw) })
}

/// Stands before `ibv_get_cq_event`.
///
/// # Safety
///
/// See [the module](self).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    let Some(get) = real::ibv_get_cq_event() else { return -1 };
    // SAFETY: the caller's arguments.
    let result = unsafe { get(channel, cq, cq_context) };
    if result == 0
        // SAFETY: the call has set the live CQ of the event.
        && let Some(cq) = unsafe { find(*cq) }
    {
        let mut state = cq.state.lock();
        match &mut state.direct {
            Some(direct) => direct.event_received(),
            None => state.events = state.events.wrapping_add(1),
        }
    }
    result
}

/// Stands before `ibv_create_srq`.
///
/// # Safety
///
/// See [the module](self).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_srq(pd: *mut ibv_pd, attr: *mut ibv_srq_init_attr) -> *mut ibv_srq {
    let Some(create) = real::ibv_create_srq() else { return missing() };
    // SAFETY: the caller's arguments; the SRQ is null or new.
    unsafe {
        let srq = create(pd, attr);
        if !real::inside() {
            control::add_srq(srq);
        }
        srq
    }
}

/// Stands before `ibv_destroy_srq`.
///
/// # Safety
///
/// See [the module](self).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_srq(raw: *mut ibv_srq) -> c_int {
    let Some(destroy) = real::ibv_destroy_srq() else { return ENOSYS };
    // SAFETY: the caller's argument.
    control::destroy(raw, || unsafe { destroy(raw) })
}

/// Stands before `ibv_create_qp`.
///
/// # Safety
///
/// See [the module](self).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_qp(pd: *mut ibv_pd, attr: *mut ibv_qp_init_attr) -> *mut ibv_qp {
    let Some(create) = real::ibv_create_qp() else { return missing() };
    // SAFETY: the caller's arguments; the PD has an open context.
    unsafe {
        match CONTEXTS.get((*pd).context) {
            Some(context) => {
                let made = || ((*attr).cap, (*attr).sq_sig_all);
                control::create_qp(context, &Wanted::of(&*attr), || create(pd, attr), made)
            }
            None => create(pd, attr),
        }
    }
}

/// Stands before `mlx5dv_create_qp`.
///
/// # Safety
///
/// See [the module](self).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlx5dv_create_qp(
    raw: *mut ibv_context,
    attr: *mut ibv_qp_init_attr_ex,
    dv: *mut DvQpInit,
) -> *mut ibv_qp {
    let Some(create) = real::mlx5dv_create_qp() else { return missing() };
    /// `MLX5DV_QP_CREATE_DISABLE_SCATTER_TO_CQE` and `MLX5DV_QP_CREATE_ALLOW_SCATTER_TO_CQE`.
    const SCATTER_FLAGS: u32 = 1 << 3 | 1 << 4;
    // SAFETY: the caller's arguments.
    unsafe {
        let Some(context) = CONTEXTS.get(raw) else { return create(raw, attr, dv) };
        let mut wanted = Wanted::of_extended(&*attr);
        // Only the first two fields are read: the program's struct may be shorter than ours.
        let plain = dv.is_null()
            || (*dv).comp_mask == 0
            || (*dv).comp_mask == QP_INIT_MASK_CREATE_FLAGS && (*dv).create_flags & !SCATTER_FLAGS == 0;
        if !plain {
            wanted = wanted.special("it has attributes of mlx5dv_create_qp");
        }
        control::create_qp(context, &wanted, || create(raw, attr, dv), || ((*attr).cap, (*attr).sq_sig_all))
    }
}

/// Stands before `mlx5dv_create_wq`.
///
/// # Safety
///
/// See [the module](self).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlx5dv_create_wq(
    context: *mut ibv_context,
    attr: *mut ibv_wq_init_attr,
    dv: *mut c_void,
) -> *mut ibv_wq {
    let Some(create) = real::mlx5dv_create_wq() else { return missing() };
    // SAFETY: the caller's arguments.
    unsafe { control::create_on_cq("WQ", (*attr).cq, || create(context, attr, dv)) }
}

/// Stands before `ibv_modify_qp`.
///
/// # Safety
///
/// See [the module](self).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_modify_qp(raw: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int {
    let Some(modify) = real::ibv_modify_qp() else { return ENOSYS };
    let changes_state = mask & ibv_qp_attr_mask::IBV_QP_STATE.0 as c_int != 0;
    // SAFETY: the caller's arguments.
    unsafe { control::modify_qp(raw, changes_state.then(|| (*attr).qp_state), || modify(raw, attr, mask)) }
}

/// Stands before `ibv_destroy_qp`.
///
/// # Safety
///
/// See [the module](self).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_qp(raw: *mut ibv_qp) -> c_int {
    let Some(destroy) = real::ibv_destroy_qp() else { return ENOSYS };
    // SAFETY: the caller's argument.
    control::destroy_qp(raw, || unsafe { destroy(raw) })
}

/// Stands before `mlx5dv_init_obj`: the program is about to drive the queue itself, so the queue
/// goes back to libmlx5.
///
/// # Safety
///
/// See [the module](self).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlx5dv_init_obj(object: *mut DvObj, kinds: u64) -> c_int {
    let Some(init) = real::mlx5dv_init_obj() else { return ENOSYS };
    if !real::inside() {
        // SAFETY: live objects of these kinds by contract. Only the fields of these kinds are read:
        // the program's struct may be shorter than ours.
        let result = unsafe {
            let mut result = Ok(());
            if kinds & OBJ_QP != 0 {
                result = result.and(control::give_back_qp((*object).qp.object.cast()));
            }
            if kinds & OBJ_CQ != 0 {
                result = result.and(control::give_back_cq((*object).cq.object.cast()));
            }
            if kinds & OBJ_SRQ != 0 {
                result = result.and(control::give_back_shared((*object).srq.object.cast()));
            }
            result
        };
        if let Err(why) = result {
            report::refused("mlx5dv_init_obj", &why);
            return EOPNOTSUPP;
        }
    }
    // SAFETY: the caller's arguments.
    unsafe { init(object, kinds) }
}

/// As [`context::noted`], for any context.
///
/// # Safety
///
/// `pd` is a live PD; `mr` is null, or a live region that no other thread knows yet.
unsafe fn note(pd: *const ibv_pd, mr: *mut ibv_mr, place: Option<Place>) -> *mut ibv_mr {
    // SAFETY: live by contract, with its open context.
    unsafe {
        match CONTEXTS.get((*pd).context) {
            Some(context) => context::noted(&context.regions, mr, place),
            None => mr,
        }
    }
}

/// The place of a region of the program's memory.
fn place(at: *mut c_void, bytes: usize, iova: u64, access: c_uint) -> Option<Place> {
    let (at, bytes) = (at as u64, bytes as u64);
    if iova != at {
        return Some(Place::Moved { iova, at });
    }
    (access & ibv_access_flags::IBV_ACCESS_ZERO_BASED.0 != 0).then_some(Place::ZeroBased { at, bytes })
}

/// Stands before `ibv_reg_mr`.
///
/// # Safety
///
/// See [the module](self).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_mr(
    pd: *mut ibv_pd,
    at: *mut c_void,
    bytes: usize,
    access: c_int,
) -> *mut ibv_mr {
    let Some(register) = real::ibv_reg_mr() else { return missing() };
    // SAFETY: the caller's arguments; the region is null or new.
    unsafe {
        let mr = register(pd, at, bytes, access);
        note(pd, mr, place(at, bytes, at as u64, access.cast_unsigned()))
    }
}

/// Stands before `ibv_reg_mr_iova`.
///
/// # Safety
///
/// See [the module](self).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_mr_iova(
    pd: *mut ibv_pd,
    at: *mut c_void,
    bytes: usize,
    iova: u64,
    access: c_int,
) -> *mut ibv_mr {
    let Some(register) = real::ibv_reg_mr_iova() else { return missing() };
    // SAFETY: the caller's arguments; the region is null or new.
    unsafe {
        let mr = register(pd, at, bytes, iova, access);
        note(pd, mr, place(at, bytes, iova, access.cast_unsigned()))
    }
}

/// Stands before `ibv_reg_mr_iova2`, which the macro `ibv_reg_mr` calls, too.
///
/// # Safety
///
/// See [the module](self).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_mr_iova2(
    pd: *mut ibv_pd,
    at: *mut c_void,
    bytes: usize,
    iova: u64,
    access: c_uint,
) -> *mut ibv_mr {
    let Some(register) = real::ibv_reg_mr_iova2() else { return missing() };
    // SAFETY: the caller's arguments; the region is null or new.
    unsafe {
        let mr = register(pd, at, bytes, iova, access);
        note(pd, mr, place(at, bytes, iova, access))
    }
}

/// Stands before `ibv_reg_dmabuf_mr`.
///
/// # Safety
///
/// See [the module](self).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_dmabuf_mr(
    pd: *mut ibv_pd,
    offset: u64,
    bytes: usize,
    iova: u64,
    fd: c_int,
    access: c_int,
) -> *mut ibv_mr {
    let Some(register) = real::ibv_reg_dmabuf_mr() else { return missing() };
    // SAFETY: the caller's arguments; the region is null or new.
    unsafe {
        let mr = register(pd, offset, bytes, iova, fd, access);
        note(pd, mr, Some(Place::Unreachable))
    }
}

/// Stands before `mlx5dv_reg_dmabuf_mr`.
///
/// # Safety
///
/// See [the module](self).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlx5dv_reg_dmabuf_mr(
    pd: *mut ibv_pd,
    offset: u64,
    bytes: usize,
    iova: u64,
    fd: c_int,
    access: c_int,
    mlx5_access: c_int,
) -> *mut ibv_mr {
    let Some(register) = real::mlx5dv_reg_dmabuf_mr() else { return missing() };
    // SAFETY: the caller's arguments; the region is null or new.
    unsafe {
        let mr = register(pd, offset, bytes, iova, fd, access, mlx5_access);
        note(pd, mr, Some(Place::Unreachable))
    }
}

/// Stands before `ibv_import_mr`.
///
/// # Safety
///
/// See [the module](self).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_import_mr(pd: *mut ibv_pd, handle: u32) -> *mut ibv_mr {
    let Some(import) = real::ibv_import_mr() else { return missing() };
    // SAFETY: the caller's arguments; the region is null or new.
    unsafe {
        let mr = import(pd, handle);
        note(pd, mr, Some(Place::Unreachable))
    }
}

/// Stands before `mlx5dv_create_mkey`.
///
/// # Safety
///
/// See [the module](self).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlx5dv_create_mkey(attr: *mut MkeyInit) -> *mut Mkey {
    let Some(create) = real::mlx5dv_create_mkey() else { return missing() };
    // SAFETY: the caller's arguments, a live PD among them; the key is null or new. A key that ends
    // stays noted until a region gets its number.
    unsafe {
        let mkey = create(attr);
        if let Some(key) = mkey.as_ref()
            && let Some(context) = CONTEXTS.get((*(*attr).pd).context)
            && !context.regions.set(key.lkey, Some(Place::Unreachable))
        {
            real::mlx5dv_destroy_mkey().map(|end| end(mkey));
            real::set_errno(libc::ENOMEM);
            return ptr::null_mut();
        }
        mkey
    }
}

/// Stands before `ibv_rereg_mr`.
///
/// # Safety
///
/// See [the module](self).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_rereg_mr(
    mr: *mut ibv_mr,
    flags: c_int,
    pd: *mut ibv_pd,
    at: *mut c_void,
    bytes: usize,
    access: c_int,
) -> c_int {
    /// `IBV_REREG_MR_CHANGE_TRANSLATION` and `IBV_REREG_MR_CHANGE_ACCESS`.
    const TRANSLATION: c_int = 1;
    const ACCESS: c_int = 1 << 2;
    let Some(change) = real::ibv_rereg_mr() else { return -1 };
    // SAFETY: the caller's arguments, a live region among them, with its open context. No payload
    // arrives in the region while it changes.
    unsafe {
        let context = CONTEXTS.get((*mr).context);
        let before = context.and_then(|context| context.regions.remove((*mr).lkey));
        let result = change(mr, flags, pd, at, bytes, access);
        let access = if flags & ACCESS != 0 { access.cast_unsigned() } else { 0 };
        let changed = if flags & TRANSLATION != 0 { place(at, bytes, at as u64, access) } else { before };
        let now = if result == 0 { changed } else { before };
        // Only a zero-based region that was not before needs memory here.
        if context.is_some_and(|context| !context.regions.set((*mr).lkey, now)) {
            real::set_errno(libc::ENOMEM);
            return -1;
        }
        result
    }
}

/// Stands before `ibv_dereg_mr`.
///
/// # Safety
///
/// See [the module](self).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int {
    let Some(end) = real::ibv_dereg_mr() else { return ENOSYS };
    // SAFETY: the caller's argument, a live region.
    unsafe {
        let context = CONTEXTS.get((*mr).context);
        let (lkey, before) = ((*mr).lkey, context.and_then(|context| context.regions.remove((*mr).lkey)));
        let result = end(mr);
        if result != 0
            && let Some(context) = context
        {
            // The region is still there, and so is its place in the list.
            let _ = context.regions.set(lkey, before);
        }
        result
    }
}
