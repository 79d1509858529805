//! `DAT_PROVIDER`: the table in which libdat2 finds the functions of a provider.
//!
//! # References
//! dat_redirection.h and udat_redirection.h.

use std::ffi::CStr;

/// Functions of a provider, in the order of `struct dat_provider`.
pub(super) type Functions = [Function; 79];

/// A function with the C calling convention.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct Function(pub(super) usize);

/// `DAT_PROVIDER`: 81 words. Nothing in this library reads the functions.
#[repr(C)]
pub(super) struct Table {
    /// The IA's name; libdat2 reads it at close.
    device_name: usize,
    extension: usize,
    functions: Functions,
}

const _: () = assert!(size_of::<Table>() == 648);

impl Table {
    /// The table for this IA name.
    pub(super) fn new(device_name: &'static CStr, functions: Functions) -> Self {
        Self { device_name: device_name.as_ptr() as usize, extension: 0, functions }
    }
}
