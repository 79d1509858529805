//! What happens to the objects when the process forks.
//!
//! The queues, the doorbells and the connections belong to the parent, and the child must not use
//! them. A handler therefore makes every object stale in the child before fork(2) returns there:
//!
//! - Every handle of C moves to its next generation: each call answers INVALID_HANDLE, as for an
//!   object that was freed.
//! - Every object of the Rust API is no longer live: each call refuses it before it takes a lock or
//!   looks at a queue. A post to an SRQ finds no LMR, and a dequeue finds the mark
//!   of a closed EVD. Both are checked in any case, so forks cost no instruction.
//! - One reference to each object is kept for ever, so nothing that the child drops is freed at the
//!   device.
//!
//! Other threads may hold locks at the time of the fork, and no thread of the child would release
//! them. So the thread that forks first takes the locks that the whole process shares, and releases
//! them in both processes afterwards. Locks of objects may stay locked in the child, where no call
//! reaches them. The exception is the lock of an EVD, which the handler replaces. Handlers do not
//! run for vfork(2), posix_spawn(3), or a bare clone(2).

use crate::process::{self, Handlers, Held};
use crate::sync::{Mutex, MutexGuard, rank};
use std::any::Any;
use std::collections::TryReserveError;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, Weak};

/// An object that belongs to the process that created it.
pub(crate) trait Inherit: Send + Sync {
    /// In a child: makes every later call refuse the object. There is no other thread, and locks of
    /// the object may be held for ever.
    fn disown(&self);
}

/// The objects of this process, including some that are gone.
#[derive(Default)]
struct Known {
    all: Vec<Weak<dyn Inherit>>,
    /// The length at which objects that are gone are removed.
    sweep: usize,
}

/// A part of the crate with locks that all threads of the process share. A fork takes them in this
/// order.
#[derive(Clone, Copy)]
pub enum Part {
    /// The handles of C programs.
    Handles,
    /// The send registers that the direct path rings.
    SendRegisters,
    /// The LMRs by their contexts.
    Lmrs,
    /// The replies to datagram requests.
    ReplyCache,
    /// The service points of the process.
    ServicePoints,
}

/// How a fork handles a [`Part`].
#[derive(Clone, Copy)]
struct Shared {
    /// Takes the locks, the outermost first.
    hold: fn() -> Vec<Box<dyn Any>>,
    /// In a child: forgets what belongs to the parent.
    forget: fn(),
}

/// The handlers, by [`Part`].
static SHARED: Mutex<{ rank::TABLE }, [Option<Shared>; 5]> = Mutex::new([None; 5]);

static KNOWN: Mutex<{ rank::TABLE }, Known> = Mutex::new(Known { all: Vec::new(), sweep: 0 });

/// Whether this process was forked from one that had objects.
static IS_CHILD: AtomicBool = AtomicBool::new(false);

fn known() -> MutexGuard<'static, Known> {
    KNOWN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Registers the shared locks of `part`: `hold` takes them before a fork, and `forget` runs in the
/// child. To be called before one of the locks is taken for the first time. Waits for a fork that
/// is under way.
pub fn share(part: Part, hold: fn() -> Vec<Box<dyn Any>>, forget: fn()) {
    let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    shared[part as usize] = Some(Shared { hold, forget });
}

/// Adds an object, which will be stale in children of this process.
///
/// # Errors
/// No memory for the list.
pub(crate) fn know<T: Inherit + 'static>(object: &Arc<T>) -> Result<(), TryReserveError> {
    let mut known = known();
    // There is room up to this length.
    if known.all.len() >= known.sweep {
        known.all.retain(|object| object.strong_count() > 0);
        let until_sweep = known.all.len() + 64;
        known.all.try_reserve(until_sweep)?;
        known.sweep = known.all.len() + until_sweep;
    }
    let object: Weak<T> = Arc::downgrade(object);
    known.all.push(object);
    Ok(())
}

/// Whether a stale object may belong to the parent process.
pub(crate) fn is_child() -> bool {
    IS_CHILD.load(Ordering::Relaxed)
}

/// Registers the fork handlers, once.
pub fn watch() {
    static WATCHED: AtomicBool = AtomicBool::new(false);
    // No `Once`: a child would wait for a thread of the parent that was in it.
    if !WATCHED.swap(true, Ordering::Relaxed) {
        let code = process::at_fork(Handlers { before, in_parent: drop, in_child });
        if code != 0 {
            tracing::warn!(
                code,
                "cannot register fork handlers: children of this process must not use its objects"
            );
        }
    }
}

fn before() -> Held {
    let shared = SHARED.hold();
    let mut held: Held = shared.iter().flatten().flat_map(|part| (part.hold)()).collect();
    held.push(Box::new(KNOWN.hold()));
    held.push(Box::new(shared));
    // The innermost: a thread that locks a biased lock may hold any other lock.
    held.push(Box::new(biased_lock::hold_shared_locks()));
    held
}

fn in_child(held: Held) {
    drop(held);
    biased_lock::forget_parked();
    let inherited = std::mem::take(&mut *known()).all;
    for object in inherited.iter().filter_map(Weak::upgrade) {
        IS_CHILD.store(true, Ordering::Relaxed);
        object.disown();
        // Kept for ever: the child may drop its references, but the object is never freed, and the
        // device is not told.
        std::mem::forget(object);
    }
    let shared = *SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    shared.iter().rev().flatten().for_each(|part| (part.forget)());
}
