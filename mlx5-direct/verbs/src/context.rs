#![expect(unsafe_code, reason = "function pointers of verbs contexts")]
//! Contexts of mlx5 devices: the function pointers that libmlx5 set, and the library's in their
//! place.
//!
//! A context is patched when it is opened, before the program has it.

use core::{
    ffi::c_uint,
    mem::{offset_of, size_of},
};

use doorbell_sys::{
    ibv_context, ibv_cq_ex, ibv_cq_init_attr_ex, ibv_dm, ibv_mr, ibv_pd, ibv_qp, ibv_qp_init_attr_ex,
    ibv_srq, ibv_srq_init_attr_ex, ibv_wq, ibv_wq_init_attr, verbs_context,
};

use crate::{
    control,
    objects::{Context, Objects, own_place},
    poll, post, real,
    regions::{Place, Regions},
    register::LeftRegisters,
    report,
    table::{ByNumber, NO_MEMORY, leak},
};

/// The extended part of a context, if it has the operation at this offset.
///
/// # Safety
///
/// An open context.
unsafe fn extended(raw: *mut ibv_context, operation: usize) -> Option<*mut verbs_context> {
    // SAFETY: open by contract.
    if unsafe { (*raw).abi_compat }.addr() != usize::MAX {
        return None;
    }
    let whole = raw.wrapping_byte_sub(offset_of!(verbs_context, context)).cast::<verbs_context>();
    // SAFETY: libibverbs marks contexts that are the last field of a `verbs_context`.
    let has = unsafe { (*whole).sz } >= size_of::<verbs_context>() - operation;
    has.then_some(whole)
}

macro_rules! exchange {
    ($raw:expr, $operation:ident, $function:expr) => {{
        // SAFETY: an open context that no other thread knows yet.
        match unsafe { extended($raw, offset_of!(verbs_context, $operation)) } {
            // SAFETY: as above; the context has this operation.
            Some(whole) => unsafe {
                let before = (*whole).$operation;
                if before.is_some() {
                    (*whole).$operation = Some($function);
                }
                before
            },
            None => None,
        }
    }};
}

/// Puts the library's functions into a context that was opened a moment ago. Contexts of other
/// drivers stay as they are.
///
/// # Safety
///
/// `raw` is null or an open context that no other thread knows yet.
pub(crate) unsafe fn patch(raw: *mut ibv_context) {
    if raw.is_null() || real::inside() || report::is_off() {
        return;
    }
    let address = raw.addr();
    let left = |why: &dyn core::fmt::Display| {
        report::left(report::Class::Context, format_args!("context {address:#x}"), why);
    };
    // SAFETY: open by contract.
    if let Err(why) = real::call(|| unsafe { mlx5_direct::dv::supported(raw) }) {
        return left(&why);
    }
    // SAFETY: as above.
    let ops = unsafe { &mut (*raw).ops };
    let (
        Some(post_send),
        Some(post_recv),
        Some(post_srq_recv),
        Some(poll_cq),
        Some(req_notify_cq),
        Some(bind_mw),
    ) = (ops.post_send, ops.post_recv, ops.post_srq_recv, ops.poll_cq, ops.req_notify_cq, ops.bind_mw)
    else {
        return left(&"the driver lacks an operation");
    };
    let (Some(qps), Some(objects)) = (ByNumber::new(), Objects::new()) else { return left(&NO_MEMORY) };
    let context = leak(Context {
        post_send,
        post_recv,
        post_srq_recv,
        poll_cq,
        req_notify_cq,
        bind_mw,
        create_cq_ex: None,
        create_qp_ex: None,
        create_srq_ex: None,
        create_wq: None,
        alloc_null_mr: None,
        reg_dm_mr: None,
        left_registers: LeftRegisters::default(),
        qps,
        objects,
        regions: Regions::default(),
        debug_file: report::debug_file(),
    });
    let Some(context) = context else { return left(&NO_MEMORY) };
    context.create_cq_ex = exchange!(raw, create_cq_ex, create_cq_ex);
    context.create_qp_ex = exchange!(raw, create_qp_ex, create_qp_ex);
    context.create_srq_ex = exchange!(raw, create_srq_ex, create_srq_ex);
    context.create_wq = exchange!(raw, create_wq, create_wq);
    context.alloc_null_mr = exchange!(raw, alloc_null_mr, alloc_null_mr);
    context.reg_dm_mr = exchange!(raw, reg_dm_mr, reg_dm_mr);
    // SAFETY: an open context that no other thread knows yet.
    if !unsafe { control::add_context(raw, context) } {
        // The extended functions find no context then, so they must not stay.
        unpatch_extended(raw, context);
        return left(&"too many contexts are open");
    }
    // SAFETY: inside the context, which no other thread knows yet.
    unsafe { own_place(raw).cast_mut().write(context) };
    ops.post_send = Some(post::post_send);
    ops.post_recv = Some(post::post_recv);
    ops.post_srq_recv = Some(post::post_srq_recv);
    ops.poll_cq = Some(poll::poll_cq);
    ops.req_notify_cq = Some(poll::req_notify_cq);
    ops.bind_mw = Some(post::bind_mw);
    report::taken(report::Class::Context, format_args!("context {address:#x}"));
}

fn unpatch_extended(raw: *mut ibv_context, context: &Context) {
    if let Some(before) = context.create_cq_ex {
        let _ = exchange!(raw, create_cq_ex, before);
    }
    if let Some(before) = context.create_qp_ex {
        let _ = exchange!(raw, create_qp_ex, before);
    }
    if let Some(before) = context.create_srq_ex {
        let _ = exchange!(raw, create_srq_ex, before);
    }
    if let Some(before) = context.create_wq {
        let _ = exchange!(raw, create_wq, before);
    }
    if let Some(before) = context.alloc_null_mr {
        let _ = exchange!(raw, alloc_null_mr, before);
    }
    if let Some(before) = context.reg_dm_mr {
        let _ = exchange!(raw, reg_dm_mr, before);
    }
}

/// `create_qp_ex` of a context.
unsafe extern "C" fn create_qp_ex(raw: *mut ibv_context, attr: *mut ibv_qp_init_attr_ex) -> *mut ibv_qp {
    // SAFETY: a patched context, whose operation this is.
    let context = unsafe { Context::of(raw) };
    let Some(create) = context.create_qp_ex else { return core::ptr::null_mut() };
    // SAFETY: the caller's arguments; valid attributes by the contract of the call.
    unsafe {
        let wanted = control::Wanted::of_extended(&*attr);
        control::create_qp(context, &wanted, || create(raw, attr), || ((*attr).cap, (*attr).sq_sig_all))
    }
}

/// `create_cq_ex` of a context.
unsafe extern "C" fn create_cq_ex(raw: *mut ibv_context, attr: *mut ibv_cq_init_attr_ex) -> *mut ibv_cq_ex {
    // SAFETY: a patched context, whose operation this is.
    let context = unsafe { Context::of(raw) };
    let Some(create) = context.create_cq_ex else { return core::ptr::null_mut() };
    if real::inside() {
        // SAFETY: the caller's arguments.
        return unsafe { create(raw, attr) };
    }
    // SAFETY: the caller's arguments; valid attributes by the contract of the call; the CQ is null
    // or new.
    unsafe {
        let cq = real::call(|| create(raw, attr));
        control::add_extended_cq(cq, &*attr);
        cq
    }
}

/// `create_srq_ex` of a context. Basic SRQs come through `ibv_create_srq`.
unsafe extern "C" fn create_srq_ex(raw: *mut ibv_context, attr: *mut ibv_srq_init_attr_ex) -> *mut ibv_srq {
    // SAFETY: a patched context, whose operation this is.
    let context = unsafe { Context::of(raw) };
    let Some(create) = context.create_srq_ex else { return core::ptr::null_mut() };
    // SAFETY: valid attributes by the contract of the call.
    let (mask, cq) = unsafe { ((*attr).comp_mask, (*attr).cq) };
    let cq = if mask & doorbell_sys::ibv_srq_init_attr_mask::IBV_SRQ_INIT_ATTR_CQ.0 != 0 {
        cq
    } else {
        core::ptr::null_mut()
    };
    // SAFETY: the caller's arguments.
    control::create_on_cq("SRQ with a CQ", cq, || unsafe { create(raw, attr) })
}

/// `create_wq` of a context.
unsafe extern "C" fn create_wq(raw: *mut ibv_context, attr: *mut ibv_wq_init_attr) -> *mut ibv_wq {
    // SAFETY: a patched context, whose operation this is.
    let context = unsafe { Context::of(raw) };
    let Some(create) = context.create_wq else { return core::ptr::null_mut() };
    // SAFETY: the caller's arguments; valid attributes by the contract of the call.
    control::create_on_cq("WQ", unsafe { (*attr).cq }, || unsafe { create(raw, attr) })
}

/// `alloc_null_mr` of a context.
unsafe extern "C" fn alloc_null_mr(pd: *mut ibv_pd) -> *mut ibv_mr {
    // SAFETY: a live PD of a patched context, whose operation this is; the region is null or new.
    unsafe {
        let context = Context::of((*pd).context);
        let Some(alloc) = context.alloc_null_mr else { return core::ptr::null_mut() };
        let mr = alloc(pd);
        noted(&context.regions, mr, Some(Place::Null))
    }
}

/// `reg_dm_mr` of a context.
unsafe extern "C" fn reg_dm_mr(
    pd: *mut ibv_pd,
    dm: *mut ibv_dm,
    offset: u64,
    bytes: usize,
    access: c_uint,
) -> *mut ibv_mr {
    // SAFETY: a live PD of a patched context, whose operation this is; the caller's arguments; the
    // region is null or new.
    unsafe {
        let context = Context::of((*pd).context);
        let Some(register) = context.reg_dm_mr else { return core::ptr::null_mut() };
        let mr = register(pd, dm, offset, bytes, access);
        noted(&context.regions, mr, Some(Place::Unreachable))
    }
}

/// Notes where the memory of a region is, and returns the region; ends the region and returns null
/// if there is no memory for that.
///
/// # Safety
///
/// `mr` is null, or a live region that no other thread knows yet.
pub(crate) unsafe fn noted(regions: &Regions, mr: *mut ibv_mr, place: Option<Place>) -> *mut ibv_mr {
    // SAFETY: null or live by contract; the region is not used any more after its end.
    unsafe {
        if mr.as_ref().is_none_or(|mr| regions.set(mr.lkey, place)) {
            return mr;
        }
        real::ibv_dereg_mr().map(|end| end(mr));
    }
    real::set_errno(libc::ENOMEM);
    core::ptr::null_mut()
}
