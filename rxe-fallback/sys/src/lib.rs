//! Bindings to the parts of libibverbs and librdmacm that Doorbell uses.
//!
//! The bindings were made in advance from the headers of rdma-core 44 (Debian 12), the oldest
//! version that is supported. Building this crate needs no libclang, and no headers either: only
//! linking a program needs libibverbs and librdmacm. `tests/bindings.rs` compares every size,
//! offset and constant with the installed headers.
//!
//! The layouts hold for 64-bit Linux. They are the same on x86-64 and aarch64 except for
//! `pthread_mutex_t`, which has 40 bytes on the one and 48 on the other; its type comes from the
//! crate `libc`. So offsets behind a mutex (`ibv_context::abi_compat`, `ibv_qp::events_completed`,
//! most fields of `ibv_qp_ex` and `ibv_cq_ex`) differ.
//!
//! Names are those of C, and those of the crate `rdma-sys` where C has no name. Constants of an
//! enum are in a module of the enum's name, or of the enum's type where they are or'ed. Pointers
//! convert from and to the types of other bindings: [`conversions!`], and for `rdma-sys` 0.3.0 the
//! feature `rdma-sys`, which needs libclang (see the README for libclang 16 and newer).
#![expect(unsafe_code, reason = "declarations of C functions, and the inline functions of verbs.h")]

#[cfg(not(all(target_os = "linux", target_pointer_width = "64", target_endian = "little")))]
compile_error!("the bindings are for 64-bit little-endian Linux");

#[allow(
    missing_docs,
    non_camel_case_types,
    non_snake_case,
    unreachable_pub,
    clippy::missing_safety_doc,
    clippy::useless_transmute,
    clippy::unnecessary_cast,
    clippy::ptr_offset_with_cast,
    reason = "made by bindgen; the manual pages of rdma-core are the documentation"
)]
mod bindings {
    use libc::*;

    use crate::verbs::*;

    include!("bindings.rs");
}
#[cfg(feature = "rdma-sys")]
mod compat;
mod conversions;
mod verbs;

pub use bindings::*;
#[cfg(feature = "rdma-sys")]
pub use compat::{Compatible, from_rdma_sys, to_rdma_sys};
pub use verbs::*;
