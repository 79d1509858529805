//! One error type for every verb: the call, its errno, and a hint.

use std::fmt;
use std::io;

use nix::errno::Errno;

/// `Result` with the error of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A verb that failed: its name, its errno and, if there is one, a hint.
///
/// `Display` reads `ibv_reg_mr: Cannot allocate memory (ENOMEM): the memlock limit is 64 KiB; ...`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    verb: &'static str,
    errno: i32,
    detail: Option<String>,
}

impl Error {
    /// An error of `verb` with `errno`, without a hint.
    #[must_use]
    pub fn new(verb: &'static str, errno: i32) -> Self {
        Self { verb, errno, detail: None }
    }

    /// The error that a verb has just stored in the thread's `errno`.
    #[must_use]
    pub fn last(verb: &'static str) -> Self {
        Self::new(verb, Errno::last_raw())
    }

    /// An operation that the device or its driver does not support: `EOPNOTSUPP` with a reason.
    #[must_use]
    pub fn unsupported(verb: &'static str, detail: impl Into<String>) -> Self {
        Self::new(verb, libc::EOPNOTSUPP).with_detail(detail)
    }

    /// An argument that was refused before the verb was called: `EINVAL` with a reason.
    #[must_use]
    pub fn invalid(verb: &'static str, detail: impl Into<String>) -> Self {
        Self::new(verb, libc::EINVAL).with_detail(detail)
    }

    /// The same error with `detail` as its hint.
    #[must_use]
    pub fn with_detail(mut self, detail: impl Into<String>) -> Self {
        self.detail = Some(detail.into());
        self
    }

    /// The verb (C function) that failed.
    #[must_use]
    pub fn verb(&self) -> &'static str {
        self.verb
    }

    /// The errno it failed with, always positive.
    #[must_use]
    pub fn errno(&self) -> i32 {
        self.errno
    }

    /// The cause or a remedy, if known.
    #[must_use]
    pub fn detail(&self) -> Option<&str> {
        self.detail.as_deref()
    }

    /// Whether the device or its driver does not support the operation.
    #[must_use]
    pub fn is_unsupported(&self) -> bool {
        matches!(self.errno, libc::EOPNOTSUPP | libc::ENOSYS)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = io::Error::from_raw_os_error(self.errno).to_string();
        let text = text.split(" (os error").next().unwrap_or_default();
        write!(f, "{}: {text} ", self.verb)?;
        match Errno::from_raw(self.errno) {
            Errno::UnknownErrno => write!(f, "(errno {})", self.errno)?,
            known => write!(f, "({known:?})")?,
        }
        match &self.detail {
            Some(detail) => write!(f, ": {detail}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Error {}

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        let kind = io::Error::from_raw_os_error(error.errno).kind();
        io::Error::new(kind, error)
    }
}

/// `Ok` for 0, otherwise the returned value as errno: for verbs that return it (`ibv_post_*`,
/// `ibv_modify_*`).
///
/// Some providers return it negated; both signs are accepted.
pub(crate) fn check(verb: &'static str, returned: i32) -> Result<()> {
    match returned {
        0 => Ok(()),
        errno => Err(Error::new(verb, errno.saturating_abs())),
    }
}

/// `Ok` for 0, otherwise the thread's `errno`: for calls that return -1 and set `errno`
/// (librdmacm).
pub(crate) fn check_errno(verb: &'static str, returned: i32) -> Result<()> {
    if returned == 0 { Ok(()) } else { Err(Error::last(verb)) }
}

/// The hint for memory that could not be pinned, if this errno may say so.
///
/// `bytes` is the size of the memory, if known.
pub(crate) fn memlock_hint(errno: i32, bytes: Option<usize>) -> Option<String> {
    use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};
    let (soft, _hard) = getrlimit(Resource::RLIMIT_MEMLOCK).ok()?;
    let fits = match errno {
        libc::ENOMEM | libc::EAGAIN => soft != RLIM_INFINITY,
        // What the kernel says if the limit is 0.
        libc::EPERM => soft == 0,
        _ => false,
    };
    fits.then(|| memlock_text(soft, bytes))
}

fn memlock_text(limit: u64, bytes: Option<usize>) -> String {
    let wanted = bytes.map(|b| format!(" ({b} bytes were to be pinned)")).unwrap_or_default();
    format!(
        "the memlock limit is {} KiB{wanted}; raise it with \"ulimit -l unlimited\" or in \
         /etc/security/limits.conf",
        limit / 1024
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_names_the_verb_the_errno_and_the_hint() {
        let error = Error::new("ibv_reg_mr", libc::ENOMEM).with_detail(memlock_text(64 << 10, None));
        assert_eq!(
            error.to_string(),
            "ibv_reg_mr: Cannot allocate memory (ENOMEM): the memlock limit is 64 KiB; raise it with \
             \"ulimit -l unlimited\" or in /etc/security/limits.conf"
        );
        assert_eq!((error.verb(), error.errno()), ("ibv_reg_mr", libc::ENOMEM));
    }

    #[test]
    fn text_without_a_hint_ends_after_the_errno() {
        assert_eq!(
            Error::new("ibv_create_cq", libc::EINVAL).to_string(),
            "ibv_create_cq: Invalid argument (EINVAL)"
        );
    }

    #[test]
    fn unknown_errno_is_shown_as_a_number() {
        assert!(Error::new("ibv_create_qp", 4242).to_string().contains("(errno 4242)"));
    }

    #[test]
    fn io_error_keeps_kind_and_text() {
        let io: io::Error = Error::new("rdma_bind_addr", libc::EADDRINUSE).into();
        assert_eq!(io.kind(), io::ErrorKind::AddrInUse);
        assert!(io.to_string().starts_with("rdma_bind_addr: "));
    }

    #[test]
    fn returned_errno_may_have_either_sign() {
        assert_eq!(check("ibv_modify_qp", 0), Ok(()));
        assert_eq!(check("ibv_modify_qp", 22).unwrap_err().errno(), libc::EINVAL);
        assert_eq!(check("ibv_modify_qp", -22).unwrap_err().errno(), libc::EINVAL);
    }

    #[test]
    fn memlock_hint_says_how_much_was_wanted() {
        assert!(memlock_text(65_536, Some(1 << 20)).contains("64 KiB (1048576 bytes were to be pinned)"));
    }
}
