//! The uverbs front end: the command descriptor `/dev/infiniband/uverbs0`.
//!
//! Commands arrive by ioctl (`RDMA_VERBS_IOCTL`, mostly its method "invoke write") or by write(2),
//! as the program prefers. Both forms become a [`Command`] and are dispatched. Answers are limited
//! to the size of the caller's buffer. Errors are the kernel's errno values.

mod attr;
mod command;
mod context;
mod cq;
mod devx;
mod dispatch;
mod dm;
mod file;
mod flow;
mod handles;
mod import;
mod limits;
mod memory;
mod modify_qp;
mod native;
mod qp;
mod query;
mod rss;
mod srq;

use std::io;
use std::os::fd::{AsRawFd as _, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use command::Command;
use file::Uverbs;

use crate::host::sys;
use crate::host::vfile::{self, VirtualFile};
use crate::objects::UAR_AREA;

/// `_IOWR(0x1b, 1, struct ib_uverbs_ioctl_hdr)`.
const RDMA_VERBS_IOCTL: u64 = 0xc018_1b01;

/// Opens the verbs device.
///
/// # Errors
/// ENODEV when the device was removed; the errors of memfd_create(2).
pub(crate) fn open() -> io::Result<RawFd> {
    let memory = sys::memfd(c"mlx5-emu-uar", UAR_AREA as u64)?;
    let program = sys::dup_cloexec(memory.as_raw_fd())?;
    let mut device = crate::device::lock();
    if device.card.dead {
        return Err(sys::errno(libc::EIO));
    }
    let context = device.new_context(memory.as_raw_fd())?;
    let generation = AtomicU32::new(crate::device::generation());
    drop(device);
    crate::device::tell(|observer| observer.opened());
    vfile::open(program, Arc::new(Uverbs { context: AtomicUsize::new(context), generation }))
}

impl VirtualFile for Uverbs {
    fn write(&self, fd: RawFd, buf: &[u8]) -> io::Result<usize> {
        let command = Command::from_write(buf)?;
        self.run(fd, command)?;
        Ok(buf.len())
    }

    fn ioctl(&self, fd: RawFd, request: u64, arg: usize) -> io::Result<i32> {
        if request != RDMA_VERBS_IOCTL {
            return Err(sys::errno(libc::ENOTTY));
        }
        native::ioctl(self, fd, arg as u64)?;
        Ok(0)
    }

    fn device_number(&self) -> Option<(u32, u32)> {
        Some(crate::host::devices::UVERBS)
    }

    fn released(&self) {
        let mut device = crate::device::lock();
        if self.generation.load(Ordering::Relaxed) == crate::device::generation() {
            device.close_context(self.context.load(Ordering::Relaxed));
        }
    }
}
