#![expect(unsafe_code, reason = "asks libmlx5 for the registers of QPs")]
//! Send registers that QPs of libmlx5 use.
//!
//! A context has few send registers, so QPs share them. libmlx5 locks a shared register while it
//! copies a WQE to it (BlueFlame), and the library does not have that lock. So QPs of the library
//! ring such a register by 8-byte doorbells only, from before the program has libmlx5's QP.
//!
//! The control lock is held during all of this.

use core::mem::zeroed;
use std::sync::Mutex;

use doorbell_sys::{ibv_qp, ibv_qp_type};
use mlx5_direct::{
    Sq,
    dv::abi::{DvObj, DvPair, DvQp, OBJ_QP},
};

use crate::{context::Context, fork::lock, objects::Qp, real};

/// A send register, by its address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Register {
    At(usize),
    /// The QP may use any register of its context.
    Any,
}

impl Register {
    /// The register of a QP.
    ///
    /// # Safety
    ///
    /// A live QP of a type that has a send queue, and that does not distribute packets to WQs:
    /// libmlx5 crashes on others.
    pub(crate) unsafe fn of(raw: *mut ibv_qp) -> Self {
        let Some(init) = real::mlx5dv_init_obj() else { return Self::Any };
        // SAFETY: integers and pointers only, for which zero is a value.
        let (mut object, mut out): (DvObj, DvQp) = unsafe { (zeroed(), zeroed()) };
        object.qp = DvPair { object: raw.cast(), out: (&raw mut out).cast() };
        // SAFETY: a live QP by contract, and structs at least as large as libmlx5's.
        if real::call(|| unsafe { init(&raw mut object, OBJ_QP) }) != 0 || out.bf.reg.is_null() {
            return Self::Any;
        }
        Self::At(out.bf.reg.addr())
    }

    fn may_be(self, other: Self) -> bool {
        self == other || self == Self::Any || other == Self::Any
    }
}

/// The registers of a context's QPs that libmlx5 or the program drives, by the QP's address. A QP for
/// which there is no memory stands for ever for a QP that may use any register.
#[derive(Debug, Default)]
pub(crate) struct LeftRegisters(Mutex<Left>);

#[derive(Debug, Default)]
struct Left {
    known: Vec<(usize, Register)>,
    has_unknown: bool,
}

impl LeftRegisters {
    /// Forgets a QP that is about to be destroyed. Its register is that of no other QP any more.
    pub(super) fn remove(&self, raw: *mut ibv_qp) -> Option<Register> {
        let known = &mut lock(&self.0).known;
        let at = known.iter().position(|(qp, _)| *qp == raw.addr())?;
        Some(known.swap_remove(at).1)
    }

    fn add(&self, raw: *mut ibv_qp, register: Register) {
        let mut left = lock(&self.0);
        match left.known.try_reserve(1) {
            Ok(()) => left.known.push((raw.addr(), register)),
            Err(_) => left.has_unknown = true,
        }
    }

    fn may_use(&self, register: Register) -> bool {
        let left = lock(&self.0);
        left.has_unknown || left.known.iter().any(|(_, left)| left.may_be(register))
    }
}

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
