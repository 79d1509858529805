//! The uverbs front end.
pub(crate) fn open() -> std::io::Result<std::os::fd::RawFd> {
    Err(crate::sys::errno(libc::ENODEV))
}
