//! What concerns the whole process or a whole thread and needs `unsafe`: fork handlers, locks whose
//! holders exist in the parent only, cancellation, and privileges.

#![expect(unsafe_code, reason = "fork handlers, a lock that is written over in a child, and calls of libc")]

use std::any::Any;
use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// What a forking thread holds from before the fork until after it.
pub(crate) type Held = Vec<Box<dyn Any>>;

/// Functions around a fork.
#[derive(Clone, Copy)]
pub(crate) struct Handlers {
    /// Runs before the fork.
    pub(crate) before: fn() -> Held,
    /// Run after it, in the parent and in the child, with what `before` has returned.
    pub(crate) in_parent: fn(Held),
    pub(crate) in_child: fn(Held),
}

static HANDLERS: OnceLock<Handlers> = OnceLock::new();
/// Held by the thread that forks. Outside of all other locks.
static FORKING: Mutex<()> = Mutex::new(());
static HELD: HeldByFork = HeldByFork(UnsafeCell::new(None));

/// The lock of [`FORKING`], and what [`Handlers::before`] has returned. Not a thread-local variable:
/// an exit handler, or the destructor of a thread's key, may fork, and such a thread has no
/// variables with destructors any more.
struct HeldByFork(UnsafeCell<Option<(MutexGuard<'static, ()>, Held)>>);

// SAFETY: only a thread that holds the lock of `FORKING` uses the value, and in a child the copy of
// that thread, which is the only thread. So a guard is also dropped by the thread that took it.
unsafe impl Sync for HeldByFork {}

extern "C" fn before() {
    let forking = FORKING.lock().unwrap_or_else(PoisonError::into_inner);
    let held = HANDLERS.get().map_or_else(Vec::new, |handlers| (handlers.before)());
    // SAFETY: this thread holds the lock of `FORKING`.
    unsafe { *HELD.0.get() = Some((forking, held)) };
}

/// What `before` has put aside on this thread.
fn after(handler: fn(&Handlers) -> fn(Held)) {
    // SAFETY: this thread holds the lock of `FORKING` since `before`.
    let kept = unsafe { (*HELD.0.get()).take() };
    if let (Some((forking, held)), Some(handlers)) = (kept, HANDLERS.get()) {
        handler(handlers)(held);
        drop(forking);
    }
}

extern "C" fn in_parent() {
    after(|handlers| handlers.in_parent);
}

extern "C" fn in_child() {
    after(|handlers| handlers.in_child);
}

/// Registers functions for fork(2), once. Returns 0, or an errno.
pub(crate) fn at_fork(handlers: Handlers) -> i32 {
    if HANDLERS.set(handlers).is_err() {
        return 0;
    }
    let call = |handler: extern "C" fn()| -> Option<unsafe extern "C" fn()> { Some(handler) };
    // SAFETY: three functions without arguments, which can be called at any time. libc removes them
    // when the library that contains them is unloaded.
    unsafe { libc::pthread_atfork(call(before), call(in_parent), call(in_child)) }
}

/// For the child of a fork, before the fork returns there: frees this lock, which no thread of the
/// child holds or waits for. Data that a thread of the parent was changing under the lock may be
/// half changed.
pub(crate) fn free_in_child<T>(lock: &biased_lock::BiasedMutex<T>) {
    // SAFETY: the holders of the lock were threads of the parent, which this process does not have,
    // and no other thread uses the lock.
    unsafe { lock.force_unlock() }
}

/// A variable of the environment. Whoever starts a program with privileges (setuid, setgid, file
/// capabilities) chooses its environment, so such a program has no variables.
pub(crate) fn variable(name: &str) -> Option<String> {
    // SAFETY: getauxval(3) takes any number and changes nothing.
    let privileged = unsafe { libc::getauxval(libc::AT_SECURE) } != 0;
    let value = if privileged { None } else { std::env::var_os(name) };
    value.map(|value| value.to_string_lossy().into_owned())
}

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
}

/// `PTHREAD_CANCEL_DISABLE` of glibc and musl.
const CANCEL_DISABLE: c_int = 1;

/// While this value lives, pthread_cancel(3) does not end the thread. It would unwind functions of
/// Rust, which ends the process.
pub struct Uncancelled(c_int);

impl Uncancelled {
    /// The state before this call returns when the value is dropped.
    pub fn begin() -> Self {
        let mut old = 0;
        // SAFETY: a known state, and a variable for the former one.
        unsafe { pthread_setcancelstate(CANCEL_DISABLE, &raw mut old) };
        Self(old)
    }
}

impl Drop for Uncancelled {
    fn drop(&mut self) {
        let mut old = 0;
        // SAFETY: the state that this thread had before. A thread that is to be cancelled ends at
        // its next cancellation point, and this is none.
        unsafe { pthread_setcancelstate(self.0, &raw mut old) };
    }
}
