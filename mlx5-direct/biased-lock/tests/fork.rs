//! A child of a fork uses locks, whatever the other threads of its parent were doing to theirs.

#![expect(unsafe_code, reason = "fork, and what is allowed in its child alone")]

use biased_lock::BiasedMutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const FORKS: usize = 2_000;

/// Runs `body` in a child. False if it does not end: the child's alarm ends it then.
fn ends_in_a_child(body: impl FnOnce()) -> bool {
    let held = biased_lock::hold_shared_locks();
    // SAFETY: the child leaves by _exit or by the signal of the alarm. It allocates, which glibc
    // allows in the child of a process with threads.
    unsafe {
        let child = libc::fork();
        assert!(child >= 0, "fork: {}", std::io::Error::last_os_error());
        drop(held);
        if child == 0 {
            libc::alarm(30);
            biased_lock::forget_parked();
            body();
            libc::_exit(0);
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
        libc::WIFEXITED(status)
    }
}

/// Forks, while other threads run `work` again and again, until a child does not end.
fn children_that_end(threads: usize, work: impl Fn() + Sync, child: impl Fn()) -> usize {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    work();
                }
            });
        }
        let ended = (0..FORKS).take_while(|_| ends_in_a_child(&child)).count();
        stop.store(true, Ordering::Relaxed);
        ended
    })
}

/// Three threads hold the mutex for so long that the others park and are woken.
#[test]
fn a_child_waits_for_no_thread_that_parks_or_wakes_another() {
    let mutex = BiasedMutex::with_doors(0_u32);
    let hold_for_long = || {
        let mut held = mutex.lock();
        *held += 1;
        let start = Instant::now();
        while start.elapsed() < Duration::from_micros(30) {}
    };
    let child = || {
        // SAFETY: the other threads exist in the parent only.
        unsafe { mutex.force_unlock() };
        (0..3).for_each(|_| *mutex.lock() += 1);
    };
    assert_eq!(children_that_end(3, hold_for_long, child), FORKS);
}

/// Two threads make and drop mutexes, whose biases are kept in a list for later mutexes.
#[test]
fn a_child_waits_for_no_thread_that_makes_or_drops_a_lock() {
    let use_one = || *BiasedMutex::with_doors(0_u32).lock() += 1;
    assert_eq!(children_that_end(2, use_one, use_one), FORKS);
}
