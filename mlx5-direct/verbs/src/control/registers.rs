#![expect(unsafe_code, reason = "takes QPs of libmlx5")]
//! Send registers that QPs of libmlx5 use.
//!
//! A context has few send registers, so QPs share them. libmlx5 locks a shared register while it
//! copies a WQE to it (BlueFlame), and the library does not have that lock. So QPs of the library
//! ring such a register by 8-byte doorbells only, from before the program has libmlx5's QP.
//!
//! The control lock is held during all of this.

use doorbell_sys::{ibv_qp, ibv_qp_type};
use mlx5_direct::Sq;

use crate::{
    objects::{Context, Qp},
    register::Register,
};

/// The register of a new QP that stays with libmlx5; `None` if the QP sends nothing.
///
/// # Safety
///
/// A live QP of this type. `distributes`: it has a table of WQs.
pub(super) unsafe fn of_left(
    raw: *mut ibv_qp,
    qp_type: ibv_qp_type::Type,
    distributes: bool,
) -> Option<Register> {
    use ibv_qp_type::*;
    match qp_type {
        _ if distributes => None,
        IBV_QPT_XRC_RECV => None,
        IBV_QPT_RC | IBV_QPT_UC | IBV_QPT_UD | IBV_QPT_XRC_SEND | IBV_QPT_RAW_PACKET => {
            // SAFETY: a live QP with a send queue.
            Some(unsafe { Register::of(raw) })
        }
        _ => Some(Register::Any),
    }
}

/// A QP that rings this register is libmlx5's from now on. On return, no BlueFlame copy of the
/// library is under way there, and none follows.
pub(super) fn leave(context: &Context, raw: *mut ibv_qp, register: Register) {
    context.left_registers.add(raw, register);
    for qp in context.qps.all().filter(|qp| qp.register.may_be(register)) {
        stop_blueflame(qp);
    }
}

fn stop_blueflame(qp: &Qp) {
    // The lock waits for the post that is under way.
    if let Some(sq) = &mut *qp.send.lock() {
        sq.stop_blueflame();
    }
}

/// Before the first post of a new QP of the library.
pub(super) fn take(context: &Context, register: Register, sq: &mut Option<Sq>) {
    let is_shared = context.left_registers.may_use(register);
    if is_shared && let Some(sq) = sq {
        sq.stop_blueflame();
    }
}
