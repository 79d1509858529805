#![expect(unsafe_code, reason = "stands before functions of the dynamic linker")]
#![cfg_attr(
    not(any(target_arch = "x86_64", target_arch = "aarch64")),
    allow(dead_code, reason = "the two functions are in assembly")
)]
//! `dlsym` and `dlvsym`, for programs that get the functions of libibverbs by hand.
//!
//! A look-up in a library by its handle passes the exported functions of `exports` by. So these two
//! stand before those of libc: who asks for a function of libibverbs or libmlx5 that the library
//! stands before gets the library's. All other look-ups go on to libc by a jump, which leaves the
//! caller's return address in place: `RTLD_NEXT` means the library behind the caller's.
//!
//! A look-up of a name that does not begin as those of libibverbs and libmlx5 do costs a few
//! nanoseconds here. A program may look up names before its memory allocator works, so nothing is
//! allocated for these.

use core::{
    ffi::{CStr, c_char, c_void},
    mem::{offset_of, size_of},
    ptr,
};
use std::sync::atomic::{AtomicPtr, Ordering::Relaxed};

use crate::{
    linker::{DLSYM, DLVSYM, find_in},
    real,
};

type Dlvsym = unsafe extern "C" fn(*mut c_void, *const c_char, *const c_char) -> *mut c_void;

/// What a look-up returns, if the library answers it, and otherwise who answers it.
#[repr(C)]
struct Answer {
    /// Null: `next` answers.
    found: *mut c_void,
    next: *mut c_void,
}

macro_rules! stands_before {
    ($name:ident, $answer:ident($($arg:ident: $type:ty),*)) => {
        /// Stands before libc's function of this name.
        ///
        /// # Safety
        ///
        /// See the manual page.
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(handle: *mut c_void, $($arg: $type),*) -> *mut c_void {
            // The arguments are kept for `next`. The stack is aligned to 16 bytes for the call.
            #[cfg(target_arch = "x86_64")]
            core::arch::naked_asm!(
                ".cfi_startproc",
                "push rdi",
                "push rsi",
                "push rdx",
                ".cfi_adjust_cfa_offset 24",
                "call {answer}",
                "mov r11, rdx",
                "pop rdx",
                "pop rsi",
                "pop rdi",
                ".cfi_adjust_cfa_offset -24",
                "test rax, rax",
                "jz 2f",
                "ret",
                "2: jmp r11",
                ".cfi_endproc",
                answer = sym $answer,
            );
            #[cfg(target_arch = "aarch64")]
            core::arch::naked_asm!(
                ".cfi_startproc",
                "stp x29, x30, [sp, #-48]!",
                ".cfi_adjust_cfa_offset 48",
                ".cfi_rel_offset x30, 8",
                "stp x0, x1, [sp, #16]",
                "str x2, [sp, #32]",
                "bl {answer}",
                "mov x17, x0",
                "mov x16, x1",
                "ldp x0, x1, [sp, #16]",
                "ldr x2, [sp, #32]",
                "ldp x29, x30, [sp], #48",
                ".cfi_adjust_cfa_offset -48",
                ".cfi_restore x30",
                "cbz x17, 2f",
                "mov x0, x17",
                "ret",
                "2: br x16",
                ".cfi_endproc",
                answer = sym $answer,
            );
        }
    };
}

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
stands_before!(dlsym, answer(name: *const c_char));
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
stands_before!(dlvsym, answer_versioned(name: *const c_char, version: *const c_char));

unsafe extern "C" fn answer(handle: *mut c_void, name: *const c_char) -> Answer {
    // SAFETY: the caller's arguments; the version is not used.
    unsafe {
        let found = ours(handle, name, None, |handle| find_in(handle, name));
        Answer { found, next: DLSYM.get() }
    }
}

unsafe extern "C" fn answer_versioned(
    handle: *mut c_void,
    name: *const c_char,
    version: *const c_char,
) -> Answer {
    // SAFETY: the caller's arguments; a function of this type.
    unsafe {
        let next = DLVSYM.get();
        let find = |handle| match core::mem::transmute::<*mut c_void, Option<Dlvsym>>(next) {
            Some(dlvsym) => dlvsym(handle, name, version),
            None => ptr::null_mut(),
        };
        Answer { found: ours(handle, name, Some(version), find), next }
    }
}

/// The library's function, if the look-up is one of the function that it stands before.
///
/// # Safety
///
/// Arguments of `dlsym` or `dlvsym`; `find` looks the same up by another handle.
#[inline(always)]
unsafe fn ours(
    handle: *mut c_void,
    name: *const c_char,
    version: Option<*const c_char>,
    find: impl Fn(*mut c_void) -> *mut c_void,
) -> *mut c_void {
    let is_handle = handle != libc::RTLD_DEFAULT && handle != libc::RTLD_NEXT;
    // SAFETY: null or a C string by contract.
    if is_handle && !name.is_null() && unsafe { is_of_verbs(name) } && !real::inside() {
        // SAFETY: passed on to the caller; a C string.
        return unsafe { ours_in(handle, CStr::from_ptr(name), version, find) };
    }
    ptr::null_mut()
}

/// Whether a name may be one of libibverbs or libmlx5.
///
/// # Safety
///
/// A C string.
#[inline(always)]
unsafe fn is_of_verbs(name: *const c_char) -> bool {
    // SAFETY: bytes of the string: each is read after those before it were not 0.
    let begins =
        |with: &[u8]| with.iter().enumerate().all(|(n, byte)| unsafe { *name.add(n).cast::<u8>() } == *byte);
    begins(b"ibv_") || begins(b"mlx5dv_")
}

/// # Safety
///
/// As for [`ours`]; a handle of a library.
#[inline(never)]
unsafe fn ours_in(
    handle: *mut c_void,
    name: &CStr,
    version: Option<*const c_char>,
    find: impl Fn(*mut c_void) -> *mut c_void,
) -> *mut c_void {
    let version = version.filter(|version| !version.is_null());
    // SAFETY: a C string.
    let version = version.map(|version| unsafe { CStr::from_ptr(version) });
    // The functions of this version have structs of their own.
    if version == Some(c"IBVERBS_1.0") {
        return ptr::null_mut();
    }
    let found = find(handle);
    let (Some(library), Some(this)) = (real::library_of(name), this_library()) else {
        return ptr::null_mut();
    };
    // A library that wraps libibverbs under the same names keeps its own functions.
    if found.is_null() || found != find(library) {
        return ptr::null_mut();
    }
    // SAFETY: a handle, and a C string.
    unsafe { find_in(this, name.as_ptr()) }
}

/// The handle of this library.
fn this_library() -> Option<*mut c_void> {
    static HANDLE: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
    let mut handle = HANDLE.load(Relaxed);
    if handle.is_null() {
        // SAFETY: integers and pointers only, for which zero is a value; an address of this
        // library, whose name is the dynamic linker's.
        unsafe {
            let mut info: libc::Dl_info = core::mem::zeroed();
            if libc::dladdr(this_library as *const c_void, &raw mut info) == 0 {
                return None;
            }
            handle = libc::dlopen(info.dli_fname, libc::RTLD_LAZY | libc::RTLD_NOLOAD);
        }
        HANDLE.store(handle, Relaxed);
    }
    (!handle.is_null()).then_some(handle)
}

const _: () = assert!(size_of::<Answer>() == 16 && offset_of!(Answer, next) == 8);
