//! Complaints: actions of the program under test that violate a rule of real hardware.
//!
//! Complaints are collected per process. A test reads them with [`take_complaints`]. A preloaded
//! program prints each complaint to stderr when it occurs. With `MLX5_EMU_STRICT=1` a preloaded
//! program that caused a complaint exits with status 86.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};

/// The rule that was broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// `next_wqe_index` of a posted SRQ WQE lies outside the ring.
    NextOutsideRing,
    /// `next_wqe_index` of a posted SRQ WQE changed after the doorbell record covered the WQE.
    NextChangedAfterPost,
    /// A WQE was posted again while the device still owned it.
    WqeReusedInFlight,
    /// A doorbell record moved backwards or by more than the queue holds.
    DoorbellRecordJump,
    /// A data segment names a key that does not exist.
    UnknownKey,
    /// A reserved field is not zero.
    ReservedNotZero,
    /// The content of a BlueFlame register differs from the WQE in the ring.
    BlueFlameMismatch,
    /// A BlueFlame copy mixes the WQE with something else, or lacks a part of it.
    BlueFlameTorn,
    /// A BlueFlame copy of a WQE that wraps went on past the ring's end.
    BlueFlamePastEnd,
    /// Two BlueFlame copies in a row went to the same half of the register.
    BlueFlameHalfReused,
    /// A doorbell register announces a WQE that the doorbell record does not cover.
    RecordAfterRegister,
    /// A doorbell does not announce the last WQE that the doorbell record covers.
    DoorbellNotLast,
    /// A send WQE has completion mode 1, which drivers have taken for "unsignalled".
    CompletionMode,
    /// A doorbell names a queue that does not exist, or belongs to another context or UAR page.
    BadDoorbell,
    /// A send WQE is malformed (its size, opcode, index or segments).
    BadSendWqe,
    /// A consumer index is ahead of the CQEs that the device wrote.
    ConsumerIndexAhead,
    /// Memory that was registered is not mapped any more.
    UnmappedMemory,
    /// The emulator itself failed; a bug of this crate.
    Internal,
}

/// One complaint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Complaint {
    /// The rule that was broken.
    pub kind: Kind,
    /// The object and the error.
    pub text: String,
}

static LIST: Mutex<Vec<Complaint>> = Mutex::new(Vec::new());
/// The lock of the list, for a thread that forks.
pub(crate) fn hold() -> MutexGuard<'static, Vec<Complaint>> {
    LIST.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

static COUNT: AtomicUsize = AtomicUsize::new(0);
static PRINT: AtomicBool = AtomicBool::new(false);

/// Most complaints kept and printed; a broken loop must not fill memory.
const KEEP: usize = 1000;

pub(crate) fn print_as_they_come(print: bool) {
    PRINT.store(print, Ordering::Relaxed);
}

#[cold]
pub(crate) fn complain(kind: Kind, text: String) {
    let n = COUNT.fetch_add(1, Ordering::Relaxed);
    if n >= KEEP {
        return;
    }
    if PRINT.load(Ordering::Relaxed) {
        crate::host::sys::say!("mlx5-emu: complaint: {kind:?}: {text}");
    }
    LIST.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(Complaint { kind, text });
}

/// The complaints so far, oldest first (at most the first 1000).
pub fn complaints() -> Vec<Complaint> {
    LIST.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone()
}

/// The complaints so far, forgetting them.
pub fn take_complaints() -> Vec<Complaint> {
    COUNT.store(0, Ordering::Relaxed);
    std::mem::take(&mut LIST.lock().unwrap_or_else(std::sync::PoisonError::into_inner))
}

/// The number of complaints, including complaints that were not kept.
pub fn complaint_count() -> usize {
    COUNT.load(Ordering::Relaxed)
}
