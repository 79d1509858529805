//! The entry points that libdat2 calls, in the order of `struct dat_provider`.
//!
//! Each data path has a table. libdat2 finds the table by the handle of an object, so the calls
//! that programs make most do not have to look for the path.

use super::table::{Function, Functions};
use super::{cno, context, cr, ep, evd, extension, ia, lmr, post, rmr, service, srq};
use provider::inside::{Direct, Read, Verbs, Write};

macro_rules! functions {
    ($($function:path),* $(,)?) => { [$(Function($function as *const () as usize)),*] };
}

/// All entry points, with those that depend on the data path.
macro_rules! all {
    (
        $evd_dequeue:path, $ep_post_send:path, $ep_post_recv:path, $rdma_read:path, $rdma_write:path,
        $srq_post_recv:path $(,)?
    ) => {
        functions![
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
            $evd_dequeue,
            evd::evd_free,
            ep::ep_create,
            ep::ep_query,
            ep::ep_modify,
            ep::ep_connect,
            ep::ep_dup_connect,
            ep::ep_disconnect,
            $ep_post_send,
            $ep_post_recv,
            $rdma_read,
            $rdma_write,
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
            $srq_post_recv,
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
    };
}

/// The entry points for objects of the direct path, and for opening any IA.
pub(super) fn functions() -> Functions {
    all!(
        evd::evd_dequeue::<Direct>,
        post::ep_post_send::<Direct>,
        post::ep_post_recv::<Direct>,
        post::ep_post_rdma::<Direct, Read>,
        post::ep_post_rdma::<Direct, Write>,
        post::srq_post_recv::<Direct>,
    )
}

/// The entry points for objects of the verbs path. `CALLS`: the driver posts by system calls.
pub(super) fn functions_of_verbs<const CALLS: bool>() -> Functions {
    all!(
        evd::evd_dequeue::<Verbs<CALLS>>,
        post::ep_post_send::<Verbs<CALLS>>,
        post::ep_post_recv::<Verbs<CALLS>>,
        post::ep_post_rdma::<Verbs<CALLS>, Read>,
        post::ep_post_rdma::<Verbs<CALLS>, Write>,
        post::srq_post_recv::<Verbs<CALLS>>,
    )
}
