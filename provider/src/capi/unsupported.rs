//! Slots of features that this provider does not have: memory windows, common service points, handing a request on.
//!
//! Handles of these kinds cannot exist, so the functions that take one say INVALID_HANDLE.

use super::code::{Code, guard};
use super::handle::Handle;
use super::objects::{CrObject, EpObject, IaObject};
use crate::{Pz, Subtype};

/// Says that the model is not supported, unless the handle is wrong to begin with.
fn decline<K: super::handle::Kind>(slot: &'static str, handle: Handle) -> u32 {
    guard(slot, || {
        handle.get::<K>()?;
        Err(Code::not_supported())
    })
}

fn none(sub: Subtype) -> u32 {
    Code::handle(sub).0
}

pub(super) extern "C" fn cr_handoff(cr: Handle, _conn_qual: u64) -> u32 {
    decline::<CrObject>("dat_cr_handoff", cr)
}

pub(super) extern "C" fn rmr_create(pz: Handle, _rmr: usize) -> u32 {
    decline::<Pz>("dat_rmr_create", pz)
}

pub(super) extern "C" fn rmr_query(_rmr: Handle, _mask: u32, _param: usize) -> u32 {
    none(Subtype::InvalidHandleRmr)
}

pub(super) extern "C" fn rmr_bind(_rmr: Handle) -> u32 {
    none(Subtype::InvalidHandleRmr)
}

pub(super) extern "C" fn rmr_free(_rmr: Handle) -> u32 {
    none(Subtype::InvalidHandleRmr)
}

pub(super) extern "C" fn csp_create(ia: Handle) -> u32 {
    decline::<IaObject>("dat_csp_create", ia)
}

pub(super) extern "C" fn csp_query(_csp: Handle) -> u32 {
    none(Subtype::InvalidHandleCsp)
}

pub(super) extern "C" fn csp_free(_csp: Handle) -> u32 {
    none(Subtype::InvalidHandleCsp)
}

pub(super) extern "C" fn ep_common_connect(ep: Handle) -> u32 {
    decline::<EpObject>("dat_ep_common_connect", ep)
}

pub(super) extern "C" fn rmr_create_for_ep(pz: Handle) -> u32 {
    decline::<Pz>("dat_rmr_create_for_ep", pz)
}

pub(super) extern "C" fn ep_post_rdma_read_to_rmr(ep: Handle) -> u32 {
    decline::<EpObject>("dat_ep_post_rdma_read_to_rmr", ep)
}
