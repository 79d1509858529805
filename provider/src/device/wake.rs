//! A pipe that wakes the progress thread.

use crate::descriptor::Descriptor;
use nix::Result;
use nix::fcntl::OFlag;
use nix::sys::stat::fstat;
use nix::unistd::{pipe2, write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// A pipe that wakes the progress thread: by a byte, or because its other end is closed.
#[derive(Debug)]
pub(super) struct Wake {
    read: Descriptor<OwnedFd>,
    write: Descriptor<OwnedFd>,
    /// The device and inode numbers of the pipe.
    is: (u64, u64),
}

fn identity(fd: BorrowedFd<'_>) -> Result<(u64, u64)> {
    fstat(fd).map(|stat| (stat.st_dev, stat.st_ino))
}

impl Wake {
    pub(super) fn new() -> Result<Self> {
        let (read, write) = pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK)?;
        let (read, write) = (Descriptor::new(read), Descriptor::new(write));
        let is = identity(write.as_fd())?;
        Ok(Self { read, write, is })
    }

    /// Wakes the thread, now or when it next sleeps. False if the program has closed the descriptor,
    /// which may be that of another file by now.
    pub(super) fn send(&self) -> bool {
        // EAGAIN: the pipe is full.
        let sent = || write(&*self.write, &[0]);
        identity(self.write.as_fd()) == Ok(self.is) && !matches!(sent(), Err(nix::errno::Errno::EBADF))
    }
}

impl AsFd for Wake {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.read.as_fd()
    }
}
