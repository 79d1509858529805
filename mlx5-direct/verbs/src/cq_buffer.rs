#![expect(unsafe_code, reason = "mappings of memory")]
//! Memory for the entries of a CQ that the library has resized.

use core::{
    ffi::c_void,
    ptr::{self, NonNull},
};

use crate::real;

/// Whole pages of memory for the entries of a CQ. A child process does not have them, if the
/// program has called `ibv_fork_init`.
pub(crate) struct Buffer {
    at: NonNull<c_void>,
    bytes: usize,
}

// SAFETY: memory without thread affinity.
unsafe impl Send for Buffer {}

impl Buffer {
    /// `None` without memory.
    pub(crate) fn new(bytes: usize) -> Option<Self> {
        let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping.
        let at = unsafe { libc::mmap(ptr::null_mut(), bytes, prot, flags, -1, 0) };
        let at = NonNull::new(at).filter(|at| at.as_ptr() != libc::MAP_FAILED)?;
        let buffer = Self { at, bytes };
        // SAFETY: whole pages of the mapping.
        match real::ibv_dontfork_range().map_or(0, |dontfork| unsafe { dontfork(at.as_ptr(), bytes) }) {
            0 => Some(buffer),
            _ => None,
        }
    }

    /// The first byte.
    pub(crate) fn as_ptr(&self) -> *mut c_void {
        self.at.as_ptr()
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: the mapping of `new`, which nobody uses any more.
        unsafe {
            if let Some(dofork) = real::ibv_dofork_range() {
                dofork(self.at.as_ptr(), self.bytes);
            }
            libc::munmap(self.at.as_ptr(), self.bytes);
        }
    }
}
