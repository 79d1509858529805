#![expect(unsafe_code, reason = "functions of libraries that come later in the search order")]
//! The functions of libibverbs and libmlx5 that the exported ones stand before.

use core::ffi::{CStr, c_int, c_uint, c_void};
use std::{
    cell::Cell,
    ptr,
    sync::atomic::{AtomicPtr, Ordering::Relaxed},
};

use doorbell_sys::{
    ibv_comp_channel, ibv_context, ibv_cq, ibv_device, ibv_mr, ibv_pd, ibv_qp, ibv_qp_attr, ibv_qp_ex,
    ibv_qp_init_attr, ibv_qp_init_attr_ex, ibv_srq, ibv_srq_init_attr, ibv_wq, ibv_wq_init_attr,
};
use mlx5_direct::dv::abi::{DvObj, DvQpInit};

use crate::linker;

/// The next function with this name in the search order of the dynamic linker. A program may have
/// loaded the libraries outside the global scope, as plug-ins do, and libibverbs loads libmlx5 so:
/// then the function of the loaded library.
pub(crate) fn find(name: &CStr) -> *mut c_void {
    // SAFETY: a C string.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    // The handle keeps the library loaded, also if the function was found before.
    match library_of(name) {
        // SAFETY: a handle, and a C string.
        Some(library) if found.is_null() => unsafe { linker::find_in(library, name.as_ptr()) },
        _ => found,
    }
}

/// libmlx5 for its functions, libibverbs for all others; `None` if it is not loaded.
pub(crate) fn library_of(name: &CStr) -> Option<*mut c_void> {
    static LIBIBVERBS: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
    static LIBMLX5: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
    let (library, file) = match name.to_bytes().starts_with(b"mlx5dv_") {
        true => (&LIBMLX5, c"libmlx5.so.1"),
        false => (&LIBIBVERBS, c"libibverbs.so.1"),
    };
    let mut handle = library.load(Relaxed);
    if handle.is_null() {
        // SAFETY: a C string; a library that is loaded already.
        handle = unsafe { libc::dlopen(file.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
        library.store(handle, Relaxed);
    }
    (!handle.is_null()).then_some(handle)
}

/// `struct mlx5_resize_cq` of libmlx5: RESIZE_CQ with the part of mlx5. libibverbs writes the first
/// three fields and `cq_handle`.
#[derive(Default)]
#[repr(C)]
pub(crate) struct ResizeCommand {
    header: u64,
    response: u64,
    cq_handle: u32,
    cqe: u32,
    buf_addr: u64,
    cqe_size: u16,
    reserved: [u16; 3],
}

impl ResizeCommand {
    /// For these entries.
    pub(crate) fn new(buf_addr: u64, cqe_bytes: u16) -> Self {
        Self { buf_addr, cqe_size: cqe_bytes, ..Self::default() }
    }
}

/// `struct ib_uverbs_resize_cq_resp`.
#[derive(Default)]
#[repr(C)]
pub(crate) struct ResizeAnswer {
    cqe: u32,
    reserved: u32,
}

/// `struct mlx5dv_mkey_init_attr`, as far as it is read here.
#[repr(C)]
pub struct MkeyInit {
    pub(crate) pd: *mut ibv_pd,
}

/// `struct mlx5dv_mkey`.
#[repr(C)]
pub struct Mkey {
    pub(crate) lkey: u32,
    rkey: u32,
}

macro_rules! functions {
    ($($name:ident($($arg:ty),*) -> $result:ty;)*) => {$(
        /// The function of this name, if its library has it.
        pub(crate) fn $name() -> Option<unsafe extern "C" fn($($arg),*) -> $result> {
            static FOUND: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
            let mut found = FOUND.load(Relaxed);
            if found.is_null() {
                let name = concat!(stringify!($name), "\0").as_bytes();
                found = find(CStr::from_bytes_with_nul(name).ok()?);
                FOUND.store(found, Relaxed);
            }
            // SAFETY: null is `None`; otherwise a function with the prototype of verbs.h, mlx5dv.h
            // or libibverbs' driver.h.
            unsafe { core::mem::transmute(found) }
        }
    )*};
}

functions! {
    ibv_open_device(*mut ibv_device) -> *mut ibv_context;
    ibv_import_device(c_int) -> *mut ibv_context;
    ibv_close_device(*mut ibv_context) -> c_int;
    ibv_create_cq(*mut ibv_context, c_int, *mut c_void, *mut ibv_comp_channel, c_int) -> *mut ibv_cq;
    ibv_resize_cq(*mut ibv_cq, c_int) -> c_int;
    ibv_destroy_cq(*mut ibv_cq) -> c_int;
    ibv_get_cq_event(*mut ibv_comp_channel, *mut *mut ibv_cq, *mut *mut c_void) -> c_int;
    ibv_create_srq(*mut ibv_pd, *mut ibv_srq_init_attr) -> *mut ibv_srq;
    ibv_destroy_srq(*mut ibv_srq) -> c_int;
    ibv_create_qp(*mut ibv_pd, *mut ibv_qp_init_attr) -> *mut ibv_qp;
    ibv_modify_qp(*mut ibv_qp, *mut ibv_qp_attr, c_int) -> c_int;
    ibv_destroy_qp(*mut ibv_qp) -> c_int;
    ibv_qp_to_qp_ex(*mut ibv_qp) -> *mut ibv_qp_ex;
    mlx5dv_open_device(*mut ibv_device, *mut c_void) -> *mut ibv_context;
    mlx5dv_init_obj(*mut DvObj, u64) -> c_int;
    mlx5dv_create_qp(*mut ibv_context, *mut ibv_qp_init_attr_ex, *mut DvQpInit) -> *mut ibv_qp;
    ibv_cmd_resize_cq(*mut ibv_cq, c_int, *mut ResizeCommand, usize, *mut ResizeAnswer, usize) -> c_int;
    ibv_dontfork_range(*mut c_void, usize) -> c_int;
    ibv_dofork_range(*mut c_void, usize) -> c_int;
    mlx5dv_create_wq(*mut ibv_context, *mut ibv_wq_init_attr, *mut c_void) -> *mut ibv_wq;
    ibv_reg_mr(*mut ibv_pd, *mut c_void, usize, c_int) -> *mut ibv_mr;
    ibv_reg_mr_iova(*mut ibv_pd, *mut c_void, usize, u64, c_int) -> *mut ibv_mr;
    ibv_reg_mr_iova2(*mut ibv_pd, *mut c_void, usize, u64, c_uint) -> *mut ibv_mr;
    ibv_reg_dmabuf_mr(*mut ibv_pd, u64, usize, u64, c_int, c_int) -> *mut ibv_mr;
    mlx5dv_reg_dmabuf_mr(*mut ibv_pd, u64, usize, u64, c_int, c_int, c_int) -> *mut ibv_mr;
    ibv_import_mr(*mut ibv_pd, u32) -> *mut ibv_mr;
    ibv_rereg_mr(*mut ibv_mr, c_int, *mut ibv_pd, *mut c_void, usize, c_int) -> c_int;
    ibv_dereg_mr(*mut ibv_mr) -> c_int;
    mlx5dv_create_mkey(*mut MkeyInit) -> *mut Mkey;
    mlx5dv_destroy_mkey(*mut Mkey) -> c_int;
}

thread_local! {
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread is inside a call that the library makes. The exported functions then only
/// pass the call on.
pub(crate) fn inside() -> bool {
    INSIDE.get()
}

/// Runs calls of verbs that the exported functions pass on.
pub(crate) fn call<T>(calls: impl FnOnce() -> T) -> T {
    struct Restore(bool);
    impl Drop for Restore {
        fn drop(&mut self) {
            INSIDE.set(self.0);
        }
    }
    let _restore = Restore(INSIDE.replace(true));
    calls()
}

/// Sets the `errno` of this thread.
pub(crate) fn set_errno(number: c_int) {
    // SAFETY: the location of this thread's `errno`.
    unsafe { *libc::__errno_location() = number };
}
