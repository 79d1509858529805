//! `DAT_RETURN`, and the guard in which every entry point runs.

use provider::inside::Uncancelled;
use provider::{Error, PostError, Refused, ReturnType, Subtype, WaitError};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A `DAT_RETURN` other than success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Code(pub(super) u32);

/// `DAT_SUCCESS`.
pub(super) const SUCCESS: u32 = 0;

impl Code {
    pub(super) fn new(ty: ReturnType, sub: Subtype) -> Self {
        Self(provider::inside::code(ty, sub))
    }

    pub(super) fn handle(sub: Subtype) -> Self {
        Self::new(ReturnType::InvalidHandle, sub)
    }

    pub(super) fn arg(n: u16) -> Self {
        tracing::debug!(argument = n, "an argument is out of range");
        Self::new(ReturnType::InvalidParameter, Subtype::arg(n))
    }

    pub(super) fn null(n: u16) -> Self {
        tracing::debug!(argument = n, "a pointer argument is NULL or misaligned");
        Self::new(ReturnType::InvalidParameter, Subtype::arg(n))
    }

    pub(super) fn not_supported() -> Self {
        Self::new(ReturnType::ModelNotSupported, Subtype::None)
    }

    /// The code of a failed post whose flags are argument `n`.
    pub(super) fn refused(error: PostError, n: u16) -> Self {
        tracing::debug!(%error, "a post was refused");
        if error == PostError::Flags {
            return Self::new(ReturnType::InvalidParameter, Subtype::arg(n));
        }
        Self(error.code())
    }
}

impl From<Error> for Code {
    fn from(error: Error) -> Self {
        match error.return_type() {
            ReturnType::QueueEmpty | ReturnType::TimeoutExpired => {}
            // A full queue is an ordinary answer.
            ReturnType::InsufficientResources if error.subtype() == Subtype::ResourceCredits => {
                tracing::debug!("{error}");
            }
            // A defect, or a limit of the machine or the process that somebody has to raise.
            ReturnType::InternalError | ReturnType::InsufficientResources => tracing::error!("{error}"),
            _ => tracing::debug!("{error}"),
        }
        Self(error.code())
    }
}

impl<T> From<Refused<T>> for Code {
    fn from(refused: Refused<T>) -> Self {
        refused.error.into()
    }
}

impl From<WaitError> for Code {
    fn from(wait: WaitError) -> Self {
        wait.error.into()
    }
}

/// Runs an entry point and returns its outcome as a number. A panic becomes INTERNAL_ERROR and a
/// line in the log. The thread is not cancelled meanwhile.
pub(super) fn guard(slot: &'static str, run: impl FnOnce() -> Result<(), Code>) -> u32 {
    let _uncancelled = Uncancelled::begin();
    guard_panics(slot, run)
}

/// As [`guard`], but the caller sees to it that the thread is not cancelled.
pub(super) fn guard_panics(slot: &'static str, run: impl FnOnce() -> Result<(), Code>) -> u32 {
    let outcome = catch_unwind(AssertUnwindSafe(|| match run() {
        Ok(()) => SUCCESS,
        Err(code) => {
            tracing::trace!(slot, "{:#010x}", code.0);
            code.0
        }
    }));
    outcome.unwrap_or_else(|panic| defect(slot, panic))
}

/// The code for a panic, which is logged. No panic leaves this function either: it would end the
/// program.
#[cold]
fn defect(slot: &'static str, panic: Box<dyn Any + Send>) -> u32 {
    let _ = catch_unwind(AssertUnwindSafe(|| {
        let text = panic
            .downcast_ref::<String>()
            .map(String::as_str)
            .or_else(|| panic.downcast_ref::<&str>().copied())
            .unwrap_or("no message");
        tracing::error!(slot, "a defect of Doorbell: {text}");
        drop(panic);
    }));
    Code::new(ReturnType::InternalError, Subtype::None).0
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::sync::{Arc, Mutex};

    #[derive(Clone, Default)]
    struct Kept(Arc<Mutex<Vec<u8>>>);

    impl Write for Kept {
        fn write(&mut self, text: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().write(text)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    /// What a log of all levels writes while `body` runs on this thread.
    fn logged(body: impl FnOnce()) -> String {
        let kept = Kept::default();
        let to = kept.clone();
        let log = tracing_subscriber::fmt().with_max_level(tracing::Level::TRACE);
        let log = log.with_ansi(false).with_writer(move || to.clone()).finish();
        tracing::subscriber::with_default(log, body);
        String::from_utf8(kept.0.lock().unwrap().clone()).unwrap()
    }

    #[test]
    fn a_panic_becomes_an_internal_error_and_is_logged() {
        let log = logged(|| assert_eq!(guard("dat_test", || panic!("on purpose")), 0x8004_0000));
        assert_eq!(log.lines().count(), 1, "{log}");
        assert!(log.contains("ERROR") && log.contains("dat_test") && log.contains("on purpose"), "{log}");
        let log = logged(|| assert_eq!(guard("dat_test", || panic!("{} of {}", 1, 2)), 0x8004_0000));
        assert!(log.contains("1 of 2"), "{log}");
    }

    #[test]
    fn reached_limits_are_logged_but_not_wrong_arguments() {
        let log = logged(|| {
            let error =
                Error::new(ReturnType::InsufficientResources, Subtype::ResourceMemoryRegion, "raise it");
            assert_eq!(Code::from(error), Code(0x8003_0007));
        });
        assert!(log.contains("ERROR") && log.contains("raise it"), "{log}");
        assert_eq!(
            logged(|| {
                let over = Error::new(ReturnType::TimeoutExpired, Subtype::None, "");
                assert_eq!(Code::from(over), Code(0x800F_0000));
            }),
            ""
        );
    }

    #[test]
    fn refused_flags_name_the_argument_of_the_call() {
        assert_eq!(Code::refused(PostError::Flags, 6), Code(0x8006_002A));
        assert_eq!(Code::refused(PostError::UsesSrq, 6), Code(0x8007_0057));
    }
}
