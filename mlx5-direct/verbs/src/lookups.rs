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
    ptr, slice,
};
use std::sync::atomic::{AtomicPtr, Ordering::Relaxed};

use crate::real;

type Dlsym = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;
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

/// `dlsym` of libc, for a handle of a library.
///
/// # Safety
///
/// A handle of a library, and a C string.
pub(crate) unsafe fn find_in(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    // SAFETY: null is `None`; otherwise a function of this type, with its arguments by contract.
    unsafe {
        match core::mem::transmute::<*mut c_void, Option<Dlsym>>(DLSYM.get()) {
            Some(dlsym) => dlsym(handle, name),
            None => ptr::null_mut(),
        }
    }
}

/// The handle of this library.
fn this_library() -> Option<*mut c_void> {
    static HANDLE: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
    let mut handle = HANDLE.load(Relaxed);
    if handle.is_null() {
        // SAFETY: integers and pointers only, for which zero is a value; an address of this library,
        // whose name is the dynamic linker's.
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

static DLSYM: Next = Next::new(c"dlsym");
static DLVSYM: Next = Next::new(c"dlvsym");

/// A function of libc that this library stands before. It cannot be looked up by `dlsym`.
struct Next {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
}

impl Next {
    const fn new(name: &'static CStr) -> Self {
        Self { name, found: AtomicPtr::new(ptr::null_mut()) }
    }

    fn get(&self) -> *mut c_void {
        let found = self.found.load(Relaxed);
        if !found.is_null() {
            return found;
        }
        let mut search = Search { name: self.name, is_behind: false, found: ptr::null_mut() };
        // SAFETY: calls the function for each object with this value.
        unsafe { libc::dl_iterate_phdr(Some(look_in), (&raw mut search).cast()) };
        if search.found.is_null() {
            // Only an object that the dynamic linker does not describe as others. Nothing is found.
            return nothing as *mut c_void;
        }
        self.found.store(search.found, Relaxed);
        search.found
    }
}

/// Answers a look-up for want of libc's function.
extern "C" fn nothing(_handle: *mut c_void, _name: *const c_char, _version: *const c_char) -> *mut c_void {
    ptr::null_mut()
}

struct Search {
    name: &'static CStr,
    /// Whether the objects from here on are behind this library in the order of the search.
    is_behind: bool,
    found: *mut c_void,
}

/// Looks for the function in an object; returns 1 at the end of the search.
unsafe extern "C" fn look_in(
    info: *mut libc::dl_phdr_info,
    _size: libc::size_t,
    search: *mut c_void,
) -> libc::c_int {
    // SAFETY: the value of `Next::get`, and an object's description, which is valid during the call.
    let (search, info) = unsafe { (&mut *search.cast::<Search>(), &*info) };
    // SAFETY: a loaded object.
    let headers = unsafe { headers(info) };
    let this = (look_in as *const c_void).addr();
    let has_this = |header: &libc::Elf64_Phdr| {
        let begin = info.dlpi_addr as usize + header.p_vaddr as usize;
        header.p_type == libc::PT_LOAD && this.wrapping_sub(begin) < header.p_memsz as usize
    };
    if search.is_behind {
        // SAFETY: a loaded object.
        search.found = unsafe { defined(info, search.name) }.unwrap_or(ptr::null_mut());
    } else if headers.iter().any(has_this) {
        search.is_behind = true;
    }
    (!search.found.is_null()).into()
}

/// # Safety
///
/// The description of a loaded object.
unsafe fn headers(info: &libc::dl_phdr_info) -> &[libc::Elf64_Phdr] {
    // SAFETY: the program headers of a loaded object.
    unsafe { slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) }
}

/// An entry of a dynamic section.
#[repr(C)]
struct Dynamic {
    tag: i64,
    value: usize,
}

/// The address of a function that an object defines.
///
/// # Safety
///
/// The description of a loaded object.
///
/// # References
///
/// elf(5); `DT_GNU_HASH` in binutils and glibc: `elf/dl-lookup.c`.
unsafe fn defined(info: &libc::dl_phdr_info, name: &CStr) -> Option<*mut c_void> {
    const DT_STRTAB: i64 = 5;
    const DT_SYMTAB: i64 = 6;
    const DT_GNU_HASH: i64 = 0x6fff_fef5;
    let base = info.dlpi_addr as usize;
    // SAFETY: a loaded object.
    let dynamic = unsafe { headers(info) }.iter().find(|header| header.p_type == libc::PT_DYNAMIC)?;
    let mut entry = ptr::with_exposed_provenance::<Dynamic>(base + dynamic.p_vaddr as usize);
    let (mut strings, mut symbols, mut hash) = (0, 0, 0);
    // SAFETY: the dynamic section, which ends with an entry of tag 0.
    unsafe {
        while (*entry).tag != 0 {
            // glibc has added the base, except for the kernel's object.
            let value = (*entry).value;
            let address = if value < base { base + value } else { value };
            match (*entry).tag {
                DT_STRTAB => strings = address,
                DT_SYMTAB => symbols = address,
                DT_GNU_HASH => hash = address,
                _ => {}
            }
            entry = entry.add(1);
        }
    }
    if strings == 0 || symbols == 0 || hash == 0 {
        return None;
    }
    let header = ptr::with_exposed_provenance::<u32>(hash);
    let symbols = ptr::with_exposed_provenance::<libc::Elf64_Sym>(symbols);
    let strings = ptr::with_exposed_provenance::<c_char>(strings);
    let wanted = name
        .to_bytes()
        .iter()
        .fold(5381_u32, |hash, byte| hash.wrapping_mul(33).wrapping_add(u32::from(*byte)));
    // SAFETY: a table of hashes is four words, the filter's words of 8 bytes, the buckets, and a
    // word for each symbol from the first on that is in the table; a chain ends with an odd word.
    unsafe {
        let (buckets, first, filter) = (*header, *header.add(1), *header.add(2));
        if buckets == 0 {
            return None;
        }
        let bucket = header.add(4 + 2 * filter as usize);
        let chain = bucket.add(buckets as usize);
        let mut number = *bucket.add((wanted % buckets) as usize);
        while number >= first {
            let hash = *chain.add((number - first) as usize);
            let symbol = &*symbols.add(number as usize);
            if hash | 1 == wanted | 1
                && symbol.st_shndx != 0
                && CStr::from_ptr(strings.add(symbol.st_name as usize)) == name
            {
                return Some(ptr::with_exposed_provenance_mut(base + symbol.st_value as usize));
            }
            if hash & 1 != 0 {
                break;
            }
            number += 1;
        }
    }
    None
}

const _: () = assert!(size_of::<Answer>() == 16 && offset_of!(Answer, next) == 8);
