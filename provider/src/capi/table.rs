//! The provider table: what libdat2 finds a provider's functions in. The order is that of `struct dat_provider` in
//! dat_redirection.h and udat_redirection.h.

use super::{cno, context, cr, ep, evd, extension, ia, lmr, post, rmr, service, srq};

/// `DAT_PROVIDER`: 81 words.
#[repr(C)]
pub(super) struct Table {
    /// The IA's name; read at close.
    device_name: usize,
    extension: usize,
    slots: [Slot; 79],
}

const _: () = assert!(size_of::<Table>() == 648);

/// Any function with the C calling convention.
#[derive(Clone, Copy)]
#[repr(transparent)]
struct Slot(usize);

impl Table {
    /// A table for this IA; the name lives as long as the table.
    pub(super) fn new(device_name: &'static std::ffi::CStr) -> Self {
        Self { device_name: device_name.as_ptr() as usize, extension: 0, slots: slots() }
    }
}

macro_rules! slots {
    ($($function:path),* $(,)?) => { [$(Slot($function as *const () as usize)),*] };
}

fn slots() -> [Slot; 79] {
    slots![
        ia::ia_open,
        ia::ia_query,
        ia::ia_close,
        context::set_consumer_context,
        context::get_consumer_context,
        context::get_handle_type,
        cno::cno_create,
        cno::cno_modify_agent,
        cno::cno_query,
        cno::cno_free,
        cno::cno_wait,
        cr::cr_query,
        cr::cr_accept,
        cr::cr_reject,
        cr::cr_handoff,
        evd::evd_create,
        evd::evd_query,
        evd::evd_modify_cno,
        evd::evd_enable,
        evd::evd_disable,
        evd::evd_wait,
        evd::evd_resize,
        evd::evd_post_se,
        evd::evd_dequeue,
        evd::evd_free,
        ep::ep_create,
        ep::ep_query,
        ep::ep_modify,
        ep::ep_connect,
        ep::ep_dup_connect,
        ep::ep_disconnect,
        post::ep_post_send,
        post::ep_post_recv,
        post::ep_post_rdma_read,
        post::ep_post_rdma_write,
        ep::ep_get_status,
        ep::ep_free,
        lmr::lmr_create,
        lmr::lmr_query,
        lmr::lmr_free,
        rmr::rmr_create,
        rmr::rmr_query,
        rmr::rmr_bind,
        rmr::rmr_free,
        service::psp_create,
        service::psp_query,
        service::psp_free,
        service::rsp_create,
        service::rsp_query,
        service::rsp_free,
        lmr::pz_create,
        lmr::pz_query,
        lmr::pz_free,
        service::psp_create_any,
        ep::ep_reset,
        evd::evd_set_unwaitable,
        evd::evd_clear_unwaitable,
        lmr::lmr_sync,
        lmr::lmr_sync,
        ep::ep_create_with_srq,
        ep::ep_recv_query,
        ep::ep_set_watermark,
        srq::srq_create,
        srq::srq_free,
        post::srq_post_recv,
        srq::srq_query,
        srq::srq_resize,
        srq::srq_set_lw,
        service::csp_create,
        service::csp_query,
        service::csp_free,
        ep::ep_common_connect,
        rmr::rmr_create_for_ep,
        post::ep_post_send_with_invalidate,
        post::ep_post_rdma_read_to_rmr,
        cno::cno_fd_create,
        cno::cno_trigger,
        ia::ia_ha_related,
        extension::handle_extendedop,
    ]
}
