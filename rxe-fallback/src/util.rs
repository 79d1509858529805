//! Small things that several objects need.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use nix::fcntl::{FcntlArg, OFlag, fcntl};

use crate::error::{Error, Result};

const _: () =
    assert!(size_of::<usize>() == size_of::<u64>(), "tokens travel as pointers: 64-bit targets only");

/// A token as a verbs context pointer, which nobody dereferences.
pub(crate) fn token_into(token: u64) -> *mut libc::c_void {
    std::ptr::without_provenance_mut(token as usize)
}

/// The token in a context pointer.
pub(crate) fn token_from(context: *mut libc::c_void) -> u64 {
    context.addr() as u64
}

/// Makes reads of `fd` answer EAGAIN instead of blocking.
pub(crate) fn set_nonblocking(fd: BorrowedFd<'_>) -> Result<()> {
    let failed = |errno: nix::errno::Errno| Error::new("fcntl", errno as i32);
    let flags = OFlag::from_bits_retain(fcntl(fd, FcntlArg::F_GETFL).map_err(failed)?);
    fcntl(fd, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK)).map_err(failed)?;
    Ok(())
}

/// Whether there is more than one reference to this object. If not, what the others did with it has
/// happened before.
pub(crate) fn is_shared<T>(object: &Arc<T>) -> bool {
    let shared = Arc::strong_count(object) > 1;
    fence(Ordering::Acquire);
    shared
}

/// A drop cannot return an error; the log gets it.
pub(crate) fn log_failed_drop(verb: &'static str, returned: i32) {
    if returned != 0 {
        let error = match returned {
            -1 => Error::last(verb),
            errno => Error::new(verb, errno.saturating_abs()),
        };
        tracing::warn!(%error, "an object could not be destroyed");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_survive_the_trip_through_a_pointer() {
        for token in [0, 1, u64::MAX, 0x1234_5678_9abc_def0] {
            assert_eq!(token_from(token_into(token)), token);
        }
    }
}
