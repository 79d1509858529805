//! Replacements for the C library functions that rdma-core calls.
//!
//! The functions are exported under their C names. In a cdylib they serve LD_PRELOAD. In an
//! executable that links the rlib, the linker exports them to the shared libraries. Each function
//! checks whether the call concerns the software device, and otherwise calls the real function. For
//! other calls the check costs one comparison or one load.

/// Defines a C entry point.
macro_rules! entry {
    ($doc:literal, $name:ident, ($($arg:ident : $ty:ty),*), $ret:ty, $call:expr) => {
        #[doc = $doc]
        ///
        /// # Safety
        /// As the C function.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $ty),*) -> $ret {
            // SAFETY: as promised by the caller.
            unsafe { $call }
        }
    };
}

/// Defines C entry points that do the same.
macro_rules! entries {
    ($doc:literal, $($name:ident)+, $args:tt -> $ret:ty, $call:expr) => {
        $(entry!($doc, $name, $args, $ret, $call);)+
    };
}

mod answer;
pub mod descriptors;
mod nodes;
pub mod paths;
pub(crate) mod sysfs;
