//! The lock on the processor's own atomics, under load.

use super::platform::MAX_BIASES;
use super::{BiasedLock, LockError};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

struct Object {
    taken: AtomicBool,
    uses: u64,
}

fn object() -> Box<Object> {
    Box::new(Object { taken: AtomicBool::new(false), uses: 0 })
}

#[test]
fn one_use_at_a_time() {
    let lock = BiasedLock::new();
    assert!(lock.try_lock_fast().is_none());
    assert_eq!(lock.lock().err(), Some(LockError::Empty));
    assert!(lock.put(Box::new(5)).is_none());
    let mut first = lock.lock().unwrap();
    *first += 1;
    assert!(lock.try_lock_fast().is_none());
    assert_eq!(lock.lock().err(), Some(LockError::Reentrant));
    assert!(lock.take().is_none(), "taken while it is used");
    drop(first);
    assert_eq!(lock.try_lock_fast().as_deref(), Some(&6));
    assert_eq!(lock.put(Box::new(7)).as_deref(), Some(&6));
    assert_eq!(lock.take().as_deref(), Some(&7));
    assert!(lock.take().is_none());
    assert!(lock.try_lock_fast().is_none());
    assert_eq!(lock.lock().err(), Some(LockError::Empty));
}

#[test]
fn spin_lock_has_no_fast_path_and_refuses_reentry() {
    let lock = BiasedLock::new();
    lock.put_as_spin_lock(Box::new(5));
    let first = lock.lock().unwrap();
    assert!(lock.try_lock_fast().is_none());
    assert_eq!(lock.lock().err(), Some(LockError::Reentrant));
    assert!(lock.take().is_none(), "taken while it is used");
    drop(first);
    assert!(lock.try_lock_fast().is_none());
    assert_eq!(lock.take().as_deref(), Some(&5));
}

#[test]
fn many_changes_of_owner_make_it_a_spin_lock() {
    let lock = BiasedLock::new();
    lock.put(Box::new(0_u32));
    while !lock.is_spin_lock() {
        *lock.lock().unwrap() += 1;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                assert!(lock.try_lock_fast().is_none(), "another thread owns it");
                *lock.lock().unwrap() += 1;
                assert_eq!(lock.try_lock_fast().is_none(), lock.is_spin_lock());
            });
        });
    }
    let uses = *lock.lock().unwrap();
    assert!((MAX_BIASES..MAX_BIASES + 4).contains(&uses), "{uses}");
    // A new object starts anew.
    assert_eq!(lock.put(Box::new(1)).as_deref(), Some(&uses));
    assert!(!lock.is_spin_lock());
    drop(lock.lock().unwrap());
    assert!(lock.try_lock_fast().is_some());
}

/// The owner is delayed between its first look at the bias and its store of `busy`.
#[test]
fn a_late_owner_stays_out() {
    let lock = BiasedLock::new();
    lock.put(object());
    drop(lock.lock().unwrap());
    let (entered, leave) = (Barrier::new(2), Barrier::new(2));
    std::thread::scope(|scope| {
        let late = lock.try_lock_fast_after(|| {
            scope.spawn(|| {
                let other = lock.lock().unwrap();
                entered.wait();
                leave.wait();
                drop(other);
            });
            entered.wait();
        });
        let both = late.is_some() || lock.try_lock_fast().is_some();
        drop(late);
        leave.wait();
        assert!(!both, "two threads are inside");
    });
    drop(lock.lock().unwrap());
    assert!(lock.try_lock_fast_after(|| drop(lock.take().unwrap())).is_none(), "the lock is empty");
}

/// Uses the object as a post does: by the fast path if it is open. False if there is no object.
fn uses_it(lock: &BiasedLock<Object>) -> bool {
    let Some(mut object) = lock.try_lock_fast().or_else(|| lock.lock().ok()) else { return false };
    assert!(!object.taken.load(Ordering::SeqCst), "used after it was taken");
    // Lost if another thread is in.
    let uses = std::hint::black_box(object.uses);
    object.uses = uses + 1;
    true
}

#[test]
fn concurrent_users_exclude_each_other() {
    const THREADS: u64 = 4;
    const EACH: u64 = 50_000;
    for spinning in [false, true] {
        let lock = BiasedLock::<Object>::new();
        if spinning {
            lock.put_as_spin_lock(object());
        } else {
            lock.put(object());
        }
        let begin = Barrier::new(THREADS as usize);
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    begin.wait();
                    (0..EACH).for_each(|_| assert!(uses_it(&lock)));
                });
            }
        });
        assert_eq!(lock.take().unwrap().uses, THREADS * EACH);
    }
}

/// The same while the lock stays biased: each round has a new object, so the owner changes again
/// and again.
#[test]
fn no_use_is_lost_while_owners_change() {
    const THREADS: u64 = 3;
    const ROUNDS: u64 = 2_000;
    const EACH: u64 = 40;
    let lock = BiasedLock::<Object>::new();
    let (begin, end) = (Barrier::new(THREADS as usize + 1), Barrier::new(THREADS as usize + 1));
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                for _ in 0..ROUNDS {
                    begin.wait();
                    (0..EACH).for_each(|_| assert!(uses_it(&lock)));
                    end.wait();
                }
            });
        }
        for round in 0..ROUNDS {
            assert!(lock.put(object()).is_none());
            begin.wait();
            end.wait();
            assert_eq!(lock.take().unwrap().uses, THREADS * EACH, "round {round}");
        }
    });
}

#[test]
fn object_is_not_used_after_take() {
    takes_and_uses(&BiasedLock::new(), false);
}

#[test]
fn object_is_not_used_after_take_from_spin_lock() {
    takes_and_uses(&BiasedLock::new(), true);
}

/// One thread uses the object all the time; another takes it away and puts a new one in. An object
/// that was taken is never used.
fn takes_and_uses(lock: &BiasedLock<Object>, spinning: bool) {
    const ROUNDS: u64 = 20_000;
    lock.put(object());
    let (mut entered, done) = (0, AtomicU64::new(0));
    let mut uses = 0;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..ROUNDS {
                let old = lock.take().expect("only this thread takes");
                old.taken.store(true, Ordering::SeqCst);
                uses += old.uses;
                if spinning {
                    lock.put_as_spin_lock(object());
                } else {
                    lock.put(object());
                }
                done.store(round + 1, Ordering::Release);
            }
        });
        while done.load(Ordering::Acquire) < ROUNDS || entered == 0 {
            entered += u64::from(uses_it(lock));
        }
    });
    uses += lock.take().unwrap().uses;
    assert_eq!(uses, entered, "a use went to an object that had been taken");
}
