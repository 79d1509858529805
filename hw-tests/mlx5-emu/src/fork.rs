//! The locks of the crate around fork(2). The thread that forks holds all of them: in the child no
//! other thread can have had one, and what they protect is whole.
//!
//! The lock of the device is not among them: a child gets a device of its own ([`crate::device`]).
#![expect(unsafe_code, reason = "fork handlers")]

use std::any::Any;
use std::cell::UnsafeCell;

use crate::host::{complaints, pin, vfile};
use crate::interpose::sysfs;
use crate::program::ucx;
use crate::ucma;

/// The locks that a thread holds while it forks, innermost first.
struct Held(UnsafeCell<Vec<Box<dyn Any>>>);

// SAFETY: only a thread that holds the locks uses the list.
unsafe impl Sync for Held {}

static HELD: Held = Held(UnsafeCell::new(Vec::new()));

/// Registers the handlers. They come before all others of this crate, so that they run last before
/// a fork and first after a fork.
pub(crate) fn start() {
    // SAFETY: functions without arguments that live as long as this code, which is never unloaded.
    unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
}

extern "C" fn before() {
    // A thread that holds one of them takes only later ones.
    let mut held: Vec<Box<dyn Any>> = vec![
        Box::new(ucma::hold()),
        Box::new(sysfs::hold()),
        Box::new(ucx::hold()),
        Box::new(pin::hold()),
        Box::new(vfile::hold()),
        Box::new(complaints::hold()),
    ];
    held.reverse();
    // SAFETY: this thread holds the locks.
    unsafe { *HELD.0.get() = held };
}

extern "C" fn in_parent() {
    // SAFETY: this thread holds the locks, and gives them back after it has taken the list.
    drop(std::mem::take(unsafe { &mut *HELD.0.get() }));
}

extern "C" fn in_child() {
    // SAFETY: as in the parent: this thread is a copy of the one that holds the locks.
    let mut held = std::mem::take(unsafe { &mut *HELD.0.get() });
    let manager = held.pop();
    // The manager closes descriptors, which looks into the registry.
    drop(held);
    if let Some(Ok(mut manager)) = manager.map(|lock| lock.downcast::<ucma::Held>()) {
        manager.forget_in_child();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
    use std::sync::mpsc;

    use crate::host::threads::tests::is_asleep;

    static FORKER: AtomicU32 = AtomicU32::new(0);
    static FORKED: AtomicBool = AtomicBool::new(false);

    fn thread_id() -> u32 {
        // SAFETY: no arguments.
        unsafe { libc::gettid() }.cast_unsigned()
    }

    /// Runs before the handler of this module, which was registered first.
    extern "C" fn begins() {
        FORKER.store(thread_id(), Ordering::SeqCst);
    }

    extern "C" fn over() {
        FORKED.store(true, Ordering::SeqCst);
    }

    /// Forks; the child runs `f`. True if the child ended well.
    fn fork(f: impl FnOnce()) -> bool {
        // SAFETY: the child runs `f` and ends; a child that hangs is ended by its alarm.
        unsafe {
            let child = libc::fork();
            assert!(child >= 0);
            if child == 0 {
                libc::alarm(10);
                f();
                libc::_exit(0);
            }
            let mut status = 0;
            assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
            status == 0
        }
    }

    /// Another thread holds a lock when this thread forks, and gives it back once this thread waits
    /// for it, or has forked.
    #[test]
    fn child_of_a_fork_can_take_every_lock() {
        type Hold = fn() -> Box<dyn Any>;
        let locks: [(&str, Hold); 6] = [
            ("connection manager", || Box::new(ucma::hold())),
            ("tree", || Box::new(sysfs::hold())),
            ("UCX", || Box::new(ucx::hold())),
            ("pins", || Box::new(pin::hold())),
            ("files", || Box::new(vfile::hold())),
            ("complaints", || Box::new(complaints::hold())),
        ];
        // SAFETY: functions that live as long as the program.
        unsafe { libc::pthread_atfork(Some(begins), Some(over), None) };
        for (name, hold) in locks {
            FORKER.store(0, Ordering::SeqCst);
            FORKED.store(false, Ordering::SeqCst);
            let (held, is_held) = mpsc::channel();
            let other = std::thread::spawn(move || {
                let lock = hold();
                held.send(()).unwrap();
                while !FORKED.load(Ordering::SeqCst) {
                    let forker = FORKER.load(Ordering::SeqCst);
                    if forker != 0 && is_asleep(forker) {
                        break;
                    }
                    crate::host::sys::yield_now();
                }
                drop(lock);
            });
            is_held.recv().unwrap();
            assert!(fork(|| drop(hold())), "the child hangs on the lock of: {name}");
            other.join().unwrap();
        }
    }

    /// A thread that has forked before forks in a destructor of its thread-local values.
    #[test]
    fn thread_can_fork_at_its_end() {
        struct Forks;
        impl Drop for Forks {
            fn drop(&mut self) {
                assert!(fork(|| ()));
            }
        }
        thread_local! {
            static AT_END: Forks = const { Forks };
        }
        std::thread::spawn(|| {
            // Destroyed after everything that comes later.
            AT_END.with(|_| ());
            assert!(fork(|| ()));
        })
        .join()
        .unwrap();
    }
}
