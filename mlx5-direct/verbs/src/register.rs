#![expect(unsafe_code, reason = "asks libmlx5 for the registers of QPs")]
//! The send registers of a context's QPs.

use core::mem::zeroed;
use std::sync::Mutex;

use doorbell_sys::ibv_qp;
use mlx5_direct::dv::abi::{DvObj, DvPair, DvQp, OBJ_QP};

use crate::{fork::lock, real};

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

    /// Whether both may be the same register.
    pub(crate) fn may_be(self, other: Self) -> bool {
        self == other || self == Self::Any || other == Self::Any
    }
}

/// The registers of a context's QPs that libmlx5 or the program drives, by the QP's address. A QP
/// for which there is no memory stands for ever for a QP that may use any register.
#[derive(Debug, Default)]
pub(crate) struct LeftRegisters(Mutex<Left>);

#[derive(Debug, Default)]
struct Left {
    known: Vec<(usize, Register)>,
    has_unknown: bool,
}

impl LeftRegisters {
    /// Forgets a QP that is about to be destroyed. Its register is that of no other QP any more.
    pub(crate) fn remove(&self, raw: *mut ibv_qp) -> Option<Register> {
        let known = &mut lock(&self.0).known;
        let at = known.iter().position(|(qp, _)| *qp == raw.addr())?;
        Some(known.swap_remove(at).1)
    }

    /// A QP that uses this register is libmlx5's or the program's from now on.
    pub(crate) fn add(&self, raw: *mut ibv_qp, register: Register) {
        let mut left = lock(&self.0);
        match left.known.try_reserve(1) {
            Ok(()) => left.known.push((raw.addr(), register)),
            Err(_) => left.has_unknown = true,
        }
    }

    /// Whether one of the QPs may use this register.
    pub(crate) fn may_use(&self, register: Register) -> bool {
        let left = lock(&self.0);
        left.has_unknown || left.known.iter().any(|(_, left)| left.may_be(register))
    }
}
