//! Descriptors that the program may have closed, as closefrom(3) does.

use nix::sys::epoll::Epoll;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::os::fd::{AsFd, AsRawFd, RawFd};

/// A descriptor of the library. Where the standard library checks that a descriptor is open when it
/// closes it, it ends a process that has closed the descriptor before. This type does not.
#[derive(Debug)]
pub(crate) struct Descriptor<T> {
    fd: ManuallyDrop<T>,
    number: RawFd,
}

impl<T: AsFd> Descriptor<T> {
    /// `fd` closes one descriptor when it is dropped, and does nothing else.
    pub(crate) fn new(fd: T) -> Self {
        let number = fd.as_fd().as_raw_fd();
        Self { fd: ManuallyDrop::new(fd), number }
    }
}

impl Descriptor<Epoll> {
    pub(crate) fn epoll(fd: Epoll) -> Self {
        let number = fd.0.as_raw_fd();
        Self { fd: ManuallyDrop::new(fd), number }
    }
}

impl<T> Deref for Descriptor<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.fd
    }
}

impl<T> Drop for Descriptor<T> {
    fn drop(&mut self) {
        let _ = nix::unistd::close(self.number);
    }
}
