//! What becomes of the objects when the process forks.
//!
//! The queues, the doorbells and the connections stay the parent's, so the child must not touch
//! them. In the child a handler makes every object stale before fork(2) returns there:
//!
//! - Every handle of C moves to its next generation: each call answers INVALID_HANDLE, as for an
//!   object that was freed.
//! - Every object of the Rust API is no longer live: each call refuses it before it takes a lock
//!   or looks at a queue. Posts to an SRQ notice by the count of LMRs that are gone, and dequeues
//!   by the mark of a closed EVD. Both are looked at in any case, so no path has an instruction
//!   more.
//! - One owner of each object is kept for good, so nothing that the child drops frees anything at
//!   the device.
//!
//! Other threads may hold locks at that moment, and in the child nobody would give those back. So
//! the thread that forks takes the locks that the whole process shares first, and both processes
//! have them back afterwards. Locks of objects may stay taken in the child, where no call comes to
//! them, except for the lock of an EVD, which the handler makes anew. Handlers do not run for
//! vfork(2), posix_spawn(3), or a bare clone(2).

use crate::sync::{Mutex, MutexGuard, rank};
use std::any::Any;
use std::cell::RefCell;
use std::collections::TryReserveError;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Once, PoisonError, Weak};

thread_local! {
    /// From before the fork until after it, on the thread that forks.
    static HELD: RefCell<Vec<Box<dyn Any>>> = const { RefCell::new(Vec::new()) };
}

/// An object that belongs to the process that made it.
pub(crate) trait Inherit: Send + Sync {
    /// In a child: every call refuses it from now on. There is no other thread, and locks of the
    /// object may be held for ever.
    fn disown(&self);
}

/// Objects that may still be there.
#[derive(Default)]
struct Known {
    all: Vec<Weak<dyn Inherit>>,
    /// Length at which those that are gone are taken out.
    sweep: usize,
}

/// A part of the crate that shares locks between all threads of the process. A fork takes them in
/// this order, which is that of the ranks.
#[derive(Clone, Copy)]
pub(crate) enum Part {
    /// Handles of C.
    Handles,
    /// Answers to requests for datagrams.
    ReplyCache,
    /// Service points of the process.
    ServicePoints,
}

/// What a fork does with a [`Part`].
#[derive(Clone, Copy)]
struct Shared {
    /// Takes the locks, the outermost first.
    hold: fn() -> Vec<Box<dyn Any>>,
    /// In a child: what the part knows is the parent's.
    forget: fn(),
}

/// By [`Part`].
static SHARED: Mutex<{ rank::TABLE }, [Option<Shared>; 3]> = Mutex::new([None; 3]);

static KNOWN: Mutex<{ rank::TABLE }, Known> = Mutex::new(Known { all: Vec::new(), sweep: 0 });

/// This process was forked from one that had objects.
static IS_CHILD: AtomicBool = AtomicBool::new(false);

fn known() -> MutexGuard<'static, Known> {
    KNOWN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// From now on forks look after the shared locks of `part`: `hold` takes them before a fork, and
/// `forget` runs in the child. To be called before one of them is taken for the first time. A fork
/// that is under way ends first.
pub(crate) fn share(part: Part, hold: fn() -> Vec<Box<dyn Any>>, forget: fn()) {
    let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    shared[part as usize] = Some(Shared { hold, forget });
}

/// In children of this process the object will be stale.
///
/// # Errors
/// No memory for the list.
pub(crate) fn know<T: Inherit + 'static>(object: &Arc<T>) -> Result<(), TryReserveError> {
    let mut known = known();
    if known.all.len() >= known.sweep {
        known.all.retain(|object| object.strong_count() > 0);
        known.sweep = 2 * known.all.len() + 64;
    }
    known.all.try_reserve(1)?;
    let object: Weak<T> = Arc::downgrade(object);
    known.all.push(object);
    Ok(())
}

/// Whether a stale object may be one of the parent process.
pub(crate) fn is_child() -> bool {
    IS_CHILD.load(Ordering::Relaxed)
}

/// From now on forks are looked after.
pub(crate) fn watch() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let code = crate::process::at_fork(before, in_parent, in_child);
        if code != 0 {
            tracing::warn!(code, "a child of this process must not use its objects: no fork handlers");
        }
    });
}

extern "C" fn before() {
    let shared = SHARED.hold();
    let mut held: Vec<Box<dyn Any>> = shared.iter().flatten().flat_map(|part| (part.hold)()).collect();
    held.push(Box::new(KNOWN.hold()));
    held.push(Box::new(shared));
    HELD.with(|all| all.replace(held));
}

extern "C" fn in_parent() {
    drop(HELD.take());
}

extern "C" fn in_child() {
    drop(HELD.take());
    let inherited = std::mem::take(&mut known().all);
    for object in inherited.iter().filter_map(Weak::upgrade) {
        IS_CHILD.store(true, Ordering::Relaxed);
        object.disown();
        // For good: whatever the child still drops of it, its last owner stays, and nothing is told
        // to the device.
        std::mem::forget(object);
    }
    let shared = *SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    shared.iter().rev().flatten().for_each(|part| (part.forget)());
}
