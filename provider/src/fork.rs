//! What becomes of the objects when the process forks.
//!
//! The queues, the doorbells and the connections stay the parent's, so the child must not touch them. In the child a handler
//! makes every handle of C stale before fork(2) returns there: each call answers INVALID_HANDLE, as for an object that was freed. No
//! path pays for it, since every call looks at the generation of its handle anyway.
//!
//! Other threads may hold locks at that moment, and in the child nobody would give those back. So the thread that forks takes
//! the locks that the whole process shares first, and both processes have them back afterwards. Locks of objects
//! may stay taken in the child, where no call comes to them. Handlers do not run for vfork(2), posix_spawn(3), or a bare clone(2).

use std::any::Any;
use std::cell::RefCell;
use std::sync::Once;

thread_local! {
    /// From before the fork until after it, on the thread that forks.
    static HELD: RefCell<Vec<Box<dyn Any>>> = const { RefCell::new(Vec::new()) };
}

/// From now on forks are looked after.
pub(crate) fn watch() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let code = crate::capi::at_fork(before, in_parent, in_child);
        if code != 0 {
            tracing::warn!(code, "a child of this process must not use its handles: no fork handlers");
        }
    });
}

extern "C" fn before() {
    let mut held = crate::capi::hold_shared_locks();
    held.extend(crate::datagram::ask::hold_shared_locks());
    held.extend(crate::ia::hold_shared_locks());
    HELD.with(|all| all.replace(held));
}

extern "C" fn in_parent() {
    drop(HELD.take());
}

extern "C" fn in_child() {
    drop(HELD.take());
    crate::ia::forget_inherited();
    crate::capi::forget_inherited();
}
