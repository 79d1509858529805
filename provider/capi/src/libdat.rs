//! The registry functions of libdat2. They are looked up at run time, so that the Rust API works
//! without libdat2.

#![expect(unsafe_code, reason = "functions of a C library found by name")]

use super::abi::ProviderInfo;
use super::handle::Handle;
use super::table::Table;
use std::ffi::{CStr, c_void};
use std::sync::OnceLock;

type Register = unsafe extern "C" fn(*const Table, *const ProviderInfo) -> u32;
type GetIaHandle = unsafe extern "C" fn(usize, *mut usize) -> u32;

struct LibDat {
    add_provider: Register,
    remove_provider: Register,
    get_ia_handle: GetIaHandle,
}

fn symbol(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: the name ends with NUL; dlsym has no other requirement.
    let global = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    if !global.is_null() {
        return Some(global);
    }
    // libdat2 may be loaded without its symbols in the global scope. SAFETY: both strings end with
    // NUL; RTLD_NOLOAD runs no code of the library.
    let local = unsafe {
        let library = libc::dlopen(c"libdat2.so.2".as_ptr(), libc::RTLD_NOLOAD | libc::RTLD_LAZY);
        if library.is_null() { library } else { libc::dlsym(library, name.as_ptr()) }
    };
    (!local.is_null()).then_some(local)
}

fn libdat() -> Option<&'static LibDat> {
    static LIBDAT: OnceLock<Option<LibDat>> = OnceLock::new();
    LIBDAT
        .get_or_init(|| {
            let add = symbol(c"dat_registry_add_provider")?;
            let remove = symbol(c"dat_registry_remove_provider")?;
            let get = symbol(c"dats_get_ia_handle")?;
            // SAFETY: functions of these names have these types (dat_registry.h). libdat2 stays
            // loaded, because it loaded this library.
            Some(unsafe {
                LibDat {
                    add_provider: std::mem::transmute::<*mut c_void, Register>(add),
                    remove_provider: std::mem::transmute::<*mut c_void, Register>(remove),
                    get_ia_handle: std::mem::transmute::<*mut c_void, GetIaHandle>(get),
                }
            })
        })
        .as_ref()
}

/// Waits for a thread that looks libdat2 up: a child would wait for ever.
pub(super) fn wait_for() {
    let _ = libdat();
}

/// Adds a table to the registry. Returns the registry's code; `None` without libdat2.
pub(super) fn add_provider(table: &'static Table, info: &ProviderInfo) -> Option<u32> {
    // SAFETY: the table lives for ever, and the registry copies the information.
    libdat().map(|libdat| unsafe { (libdat.add_provider)(table, info) })
}

/// Removes a table from the registry.
pub(super) fn remove_provider(table: &'static Table, info: &ProviderInfo) -> Option<u32> {
    // SAFETY: as above.
    libdat().map(|libdat| unsafe { (libdat.remove_provider)(table, info) })
}

/// The IA handle as C gets it: the registry's number, or the address itself if the registry has no
/// number for it.
pub(super) fn consumer_ia(ia: Handle) -> usize {
    let mut number = 0;
    // SAFETY: takes any value and writes at most one word to where the second argument points.
    let code = libdat().map(|libdat| unsafe { (libdat.get_ia_handle)(ia.0, &mut number) });
    if code == Some(0) { number } else { ia.0 }
}
