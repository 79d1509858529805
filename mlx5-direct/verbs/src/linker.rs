#![expect(unsafe_code, reason = "reads the tables of loaded libraries")]
//! Functions of libc that the library stands before: `dlsym` and `dlvsym` cannot find themselves.

use core::{
    ffi::{CStr, c_char, c_void},
    ptr, slice,
};
use std::sync::atomic::{AtomicPtr, Ordering::Relaxed};

type Dlsym = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;

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

pub(crate) static DLSYM: Next = Next::new(c"dlsym");
pub(crate) static DLVSYM: Next = Next::new(c"dlvsym");

/// A function of libc that this library stands before. It cannot be looked up by `dlsym`.
pub(crate) struct Next {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
}

impl Next {
    const fn new(name: &'static CStr) -> Self {
        Self { name, found: AtomicPtr::new(ptr::null_mut()) }
    }

    /// The address of the function.
    pub(crate) fn get(&self) -> *mut c_void {
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
    // SAFETY: the value of `Next::get`, and an object's description, which is valid during the
    // call.
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
