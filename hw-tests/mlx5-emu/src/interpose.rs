//! Replacements for the C library functions that rdma-core calls.
//!
//! The functions are exported under their C names. In a cdylib they serve LD_PRELOAD. In an
//! executable that links the rlib, the linker exports them to the shared libraries. Each function
//! checks whether the call concerns the software device, and otherwise calls the real function. For
//! other calls the check costs one comparison or one load.

mod answer;
pub mod descriptors;
mod nodes;
pub mod paths;
pub(crate) mod sysfs;
