//! The pages of the provider's code.

#![expect(unsafe_code, reason = "the loader's list of libraries, madvise(2)")]

use std::ffi::{c_int, c_void};
use std::ptr::NonNull;

/// Maps the code and the constants of the library that this function is in, so that no later call
/// has a page fault for them. Linux before 5.14 cannot do this: there, pages are mapped when they are first
/// used.
pub(super) fn map() {
    // SAFETY: the callback has the type that dl_iterate_phdr(3) wants, and does not unwind.
    unsafe { libc::dl_iterate_phdr(Some(map_if_own), std::ptr::null_mut()) };
}

/// Looks at one library. 1 ends the search.
unsafe extern "C" fn map_if_own(library: *mut libc::dl_phdr_info, _: usize, _: *mut c_void) -> c_int {
    // SAFETY: dl_iterate_phdr gives a valid record, and its segments, for the time of this call.
    let (base, segments) = unsafe {
        let library = &*library;
        let segments = NonNull::new(library.dlpi_phdr.cast_mut()).map_or(&[][..], |first| {
            std::slice::from_raw_parts(first.as_ptr(), usize::from(library.dlpi_phnum))
        });
        (library.dlpi_addr as usize, segments)
    };
    let loaded = segments.iter().filter(|segment| segment.p_type == libc::PT_LOAD).map(|segment| {
        let start = base + segment.p_vaddr as usize;
        (segment, start..start + segment.p_memsz as usize)
    });
    let own = map as fn() as usize;
    if !loaded.clone().any(|(_, range)| range.contains(&own)) {
        return 0;
    }
    for (segment, range) in loaded {
        if segment.p_flags & libc::PF_W == 0 {
            populate(range);
        }
    }
    1
}

fn populate(range: std::ops::Range<usize>) {
    // The linker puts segments on pages of 4 KiB at least. Larger pages: madvise refuses.
    let start = range.start & !4095;
    // SAFETY: the call changes no memory, and only reads into mapped pages.
    let code = unsafe { libc::madvise(start as *mut c_void, range.end - start, libc::MADV_POPULATE_READ) };
    if code != 0 {
        tracing::debug!(error = %std::io::Error::last_os_error(), "cannot map all code ahead");
    }
}
