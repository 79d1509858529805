//! Slots of features that this provider does not have: memory windows, common service points, handing a request on.
//!
//! Handles of these kinds cannot exist, so the functions that take one say INVALID_HANDLE.

use super::code::{Code, guard};
use super::handle::Handle;
use super::objects::{CrObject, EpObject, IaObject};
use crate::Subtype;

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
