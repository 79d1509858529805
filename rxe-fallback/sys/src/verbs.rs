//! Types that hold unions without a name in C, and the inline functions of `infiniband/verbs.h`.
#![allow(
    missing_docs,
    non_camel_case_types,
    missing_debug_implementations,
    clippy::missing_safety_doc,
    reason = "the manual pages of rdma-core are the documentation"
)]

use std::mem::offset_of;
use std::ptr::null_mut;

use libc::{c_int, c_uint, c_void, sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage};

use crate::bindings::*;

/// Of a completion and of a send request: which member counts, says the opcode or `wc_flags`.
#[repr(C)]
#[derive(Clone, Copy)]
pub union imm_data_invalidated_rkey_union_t {
    /// In network byte order.
    pub imm_data: __be32,
    pub invalidated_rkey: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_wc {
    pub wr_id: u64,
    pub status: ibv_wc_status::Type,
    pub opcode: ibv_wc_opcode::Type,
    pub vendor_err: u32,
    pub byte_len: u32,
    pub imm_data_invalidated_rkey_union: imm_data_invalidated_rkey_union_t,
    pub qp_num: u32,
    pub src_qp: u32,
    pub wc_flags: c_uint,
    pub pkey_index: u16,
    pub slid: u16,
    pub sl: u8,
    pub dlid_path_bits: u8,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct rdma_t {
    pub remote_addr: u64,
    pub rkey: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct atomic_t {
    pub remote_addr: u64,
    pub compare_add: u64,
    pub swap: u64,
    pub rkey: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct ud_t {
    pub ah: *mut ibv_ah,
    pub remote_qpn: u32,
    pub remote_qkey: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub union wr_t {
    pub rdma: rdma_t,
    pub atomic: atomic_t,
    pub ud: ud_t,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct xrc_t {
    pub remote_srqn: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub union qp_type_t {
    pub xrc: xrc_t,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct bind_mw_t {
    pub mw: *mut ibv_mw,
    pub rkey: u32,
    pub bind_info: ibv_mw_bind_info,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct tso_t {
    pub hdr: *mut c_void,
    pub hdr_sz: u16,
    pub mss: u16,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub union bind_mw_tso_union_t {
    pub bind_mw: bind_mw_t,
    pub tso: tso_t,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_send_wr {
    pub wr_id: u64,
    pub next: *mut Self,
    pub sg_list: *mut ibv_sge,
    pub num_sge: c_int,
    pub opcode: ibv_wr_opcode::Type,
    pub send_flags: c_uint,
    pub imm_data_invalidated_rkey_union: imm_data_invalidated_rkey_union_t,
    pub wr: wr_t,
    pub qp_type: qp_type_t,
    pub bind_mw_tso_union: bind_mw_tso_union_t,
}

/// Tag matching is not used: known by pointer only.
#[repr(C)]
pub struct ibv_ops_wr {
    _opaque: [u8; 0],
}

#[repr(C)]
#[derive(Clone, Copy)]
pub union ibv_async_event_element_t {
    pub cq: *mut ibv_cq,
    pub qp: *mut ibv_qp,
    pub srq: *mut ibv_srq,
    pub wq: *mut ibv_wq,
    pub port_num: c_int,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_async_event {
    pub element: ibv_async_event_element_t,
    pub event_type: ibv_event_type,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub union src_addr_union_t {
    pub src_addr: sockaddr,
    pub src_sin: sockaddr_in,
    pub src_sin6: sockaddr_in6,
    pub src_storage: sockaddr_storage,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub union dst_addr_union_t {
    pub dst_addr: sockaddr,
    pub dst_sin: sockaddr_in,
    pub dst_sin6: sockaddr_in6,
    pub dst_storage: sockaddr_storage,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub union addr_union_t {
    pub ibaddr: rdma_ib_addr,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct rdma_addr {
    pub src_addr_union: src_addr_union_t,
    pub dst_addr_union: dst_addr_union_t,
    pub addr: addr_union_t,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub union param_t {
    pub conn: rdma_conn_param,
    pub ud: rdma_ud_param,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct rdma_cm_event {
    pub id: *mut rdma_cm_id,
    pub listen_id: *mut rdma_cm_id,
    pub event: rdma_cm_event_type::Type,
    pub status: c_int,
    pub param: param_t,
}

/// The table of extended operations in front of a context; `None` of a library without one.
///
/// # Safety
///
/// `context` is open.
#[inline]
pub unsafe fn verbs_get_ctx(context: *mut ibv_context) -> Option<*mut verbs_context> {
    // SAFETY: an open context by contract.
    if unsafe { (*context).abi_compat } as usize != usize::MAX {
        return None;
    }
    // SAFETY: libibverbs marks so a context that is the member `context` of a `verbs_context`.
    Some(unsafe { context.byte_sub(offset_of!(verbs_context, context)) }.cast())
}

/// `ibv_query_port` as C programs get it: with the fields that came after the first version.
///
/// # Safety
///
/// `context` is open and `attr` valid for writes.
#[inline]
pub unsafe fn ___ibv_query_port(context: *mut ibv_context, port: u8, attr: *mut ibv_port_attr) -> c_int {
    // SAFETY: the caller keeps this function's contract; the field is read only if the table, which
    // ends with the context and begins `sz` bytes before that end, is long enough to have it.
    unsafe {
        let table = verbs_get_ctx(context).filter(|table| {
            (**table).sz >= size_of::<verbs_context>() - offset_of!(verbs_context, query_port)
        });
        match table.and_then(|table| (*table).query_port) {
            Some(query) => query(context, port, attr, size_of::<ibv_port_attr>()),
            None => {
                attr.write_bytes(0, 1);
                ibv_query_port(context, port, attr.cast())
            }
        }
    }
}

/// Fails with EOPNOTSUPP, as C does, where the device has no memory windows.
///
/// # Safety
///
/// A live PD.
#[inline]
pub unsafe fn ibv_alloc_mw(pd: *mut ibv_pd, kind: ibv_mw_type::Type) -> *mut ibv_mw {
    // SAFETY: a live PD by contract, which points to its context; errno is this thread's.
    unsafe {
        match (*(*pd).context).ops.alloc_mw {
            Some(alloc) => alloc(pd, kind),
            None => {
                *libc::__errno_location() = libc::EOPNOTSUPP;
                null_mut()
            }
        }
    }
}

/// # Safety
///
/// A window of [`ibv_alloc_mw`], not used any more.
#[inline]
pub unsafe fn ibv_dealloc_mw(mw: *mut ibv_mw) -> c_int {
    // SAFETY: a live window by contract; a context that allocates windows frees them.
    unsafe { (*(*mw).context).ops.dealloc_mw.map_or(libc::EOPNOTSUPP, |dealloc| dealloc(mw)) }
}

/// Windows of type 1 only; EINVAL for others.
///
/// # Safety
///
/// A live QP, window and binding.
#[inline]
pub unsafe fn ibv_bind_mw(qp: *mut ibv_qp, mw: *mut ibv_mw, bind: *mut ibv_mw_bind) -> c_int {
    // SAFETY: live by contract; a context that allocates windows binds them.
    unsafe {
        if (*mw).type_ != ibv_mw_type::IBV_MW_TYPE_1 {
            return libc::EINVAL;
        }
        (*(*mw).context).ops.bind_mw.map_or(libc::EOPNOTSUPP, |call| call(qp, mw, bind))
    }
}

/// Inline functions that call an operation which every context has.
macro_rules! operation {
    ($(#[$doc:meta])* $name:ident($object:ident: *mut $of:ty $(, $arg:ident: $ty:ty)*) = $op:ident) => {
        $(#[$doc])*
        ///
        /// # Safety
        ///
        /// As for the C function: live objects, valid arrays and out parameters.
        #[inline(always)]
        pub unsafe fn $name($object: *mut $of $(, $arg: $ty)*) -> c_int {
            // SAFETY: a live object by contract, which points to its context.
            unsafe { (*(*$object).context).ops.$op.unwrap()($object $(, $arg)*) }
        }
    };
}

operation! {
    /// Number of completions, or negative.
    ibv_poll_cq(cq: *mut ibv_cq, num_entries: c_int, wc: *mut ibv_wc) = poll_cq
}
operation! {
    /// Arms the CQ.
    ibv_req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) = req_notify_cq
}
operation! {
    /// Posts a chain to a send queue.
    ibv_post_send(qp: *mut ibv_qp, wr: *mut ibv_send_wr, bad_wr: *mut *mut ibv_send_wr) = post_send
}
operation! {
    /// Posts a chain to a receive queue.
    ibv_post_recv(qp: *mut ibv_qp, wr: *mut ibv_recv_wr, bad_wr: *mut *mut ibv_recv_wr) = post_recv
}
operation! {
    /// Posts a chain to an SRQ.
    ibv_post_srq_recv(srq: *mut ibv_srq, wr: *mut ibv_recv_wr, bad_wr: *mut *mut ibv_recv_wr) = post_srq_recv
}
