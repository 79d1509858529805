//! The parts of fork handling that need `unsafe`: handlers around fork(2), and locks whose holders
//! exist in the parent only.

#![expect(unsafe_code, reason = "fork handlers, and a lock that is written over in a child")]

/// Registers functions for fork(2): one runs before it, and one each after it in the parent and in
/// the child. Returns 0, or an errno.
pub(crate) fn at_fork(before: extern "C" fn(), in_parent: extern "C" fn(), in_child: extern "C" fn()) -> i32 {
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
