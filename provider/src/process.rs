//! What forks need of the process below safe Rust: handlers around fork(2), and locks whose holders
//! exist in the parent only.

#![expect(unsafe_code, reason = "fork handlers, and a lock that is written over in a child")]

/// Has these called around each fork(2): before it, and after it in the parent and in the child.
/// Gives 0, or an errno.
pub(crate) fn at_fork(before: extern "C" fn(), in_parent: extern "C" fn(), in_child: extern "C" fn()) -> i32 {
    let call = |handler: extern "C" fn()| -> Option<unsafe extern "C" fn()> { Some(handler) };
    // SAFETY: three functions that take nothing and can be called at any time. libc takes them off
    // its list when the library that they are in is unloaded.
    unsafe { libc::pthread_atfork(call(before), call(in_parent), call(in_child)) }
}

/// In the child of a fork, before the fork returns there: nobody holds this lock any more, nor
/// waits for it. What a thread of the parent was changing under it may be half changed.
pub(crate) fn free_in_child<T>(lock: &biased_lock::BiasedMutex<T>) {
    // SAFETY: the holders of the lock were threads that this process does not have, and no other
    // thread uses it.
    unsafe { lock.force_unlock() }
}
