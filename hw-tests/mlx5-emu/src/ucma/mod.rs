//! The rdma_cm front end: the device node `/dev/infiniband/rdma_cm`.

use std::io;
use std::os::fd::RawFd;

/// Opens the connection manager.
///
/// # Errors
/// ENODEV: not there yet.
pub fn open() -> io::Result<RawFd> {
    Err(crate::sys::errno(libc::ENODEV))
}
