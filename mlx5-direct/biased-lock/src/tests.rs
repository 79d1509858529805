//! The locks on the processor's own atomics, under load.

use super::platform::{FIRST_STREAK, HEAVY_FENCES, LONGEST_STREAK, Spin, visit_only};
use super::raw::{Raw, no_reuse};
use super::{BiasedLock, BiasedMutex, Door, LockError};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};

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

/// Another thread takes the lock once.
fn visit(mutex: &BiasedMutex<u32>) {
    std::thread::scope(|scope| {
        scope.spawn(|| {
            assert!(mutex.try_lock_fast().is_none(), "another thread owns it");
            *mutex.lock() += 1;
        });
    });
}

#[test]
fn shared_lock_has_no_fast_path_and_refuses_reentry() {
    let lock = BiasedLock::new();
    lock.put(Box::new(5));
    drop(lock.lock().unwrap());
    std::thread::scope(|scope| drop(scope.spawn(|| drop(lock.lock().unwrap()))));
    let first = lock.lock().unwrap();
    assert!(lock.is_shared() && lock.try_lock_fast().is_none());
    assert_eq!(lock.lock().err(), Some(LockError::Reentrant));
    assert!(lock.take().is_none(), "taken while it is used");
    drop(first);
    assert!(lock.try_lock_fast().is_none());
    assert_eq!(lock.take().as_deref(), Some(&5));
    // A new object starts anew.
    lock.put(Box::new(1));
    drop(lock.lock().unwrap());
    assert!(lock.try_lock_fast().is_some());
}

#[test]
fn a_visit_does_not_take_the_fast_path_for_ever() {
    let mutex = BiasedMutex::new(0);
    let mut needed = 0;
    let mut expected = FIRST_STREAK;
    for _ in 0..16 {
        drop(mutex.lock());
        assert!(mutex.try_lock_fast().is_some());
        visit(&mutex);
        assert!(mutex.is_shared());
        needed = (1..).find(|_| (drop(mutex.lock()), mutex.try_lock_fast().is_some()).1).unwrap();
        assert_eq!(needed, expected);
        expected = (2 * expected).min(LONGEST_STREAK);
    }
    assert_eq!((needed, *mutex.lock()), (LONGEST_STREAK, 16));
}

#[test]
fn a_thread_that_only_visits_becomes_the_owner_late() {
    let in_visitor = |mutex: &BiasedMutex<u32>, entries: u32| {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                visit_only();
                (0..entries).for_each(|_| drop(mutex.lock()));
            });
        });
    };
    let owner_is_here = |mutex: &BiasedMutex<u32>| mutex.try_lock_fast().is_some();
    // Of a new lock, and of one with a reserve.
    let (plain, mut reserved) = (BiasedMutex::new(0), BiasedMutex::new(0));
    reserved.reserve();
    for mutex in [&plain, &reserved] {
        in_visitor(mutex, 1);
        assert!(mutex.is_shared());
        let fences = HEAVY_FENCES.get();
        drop(mutex.lock());
        assert!(owner_is_here(mutex), "the visitor left no streak to break");
        // It revokes the bias, and does not get it.
        in_visitor(mutex, LONGEST_STREAK - 1);
        assert!(mutex.is_shared());
        (0..FIRST_STREAK).for_each(|_| drop(mutex.lock()));
        assert!(owner_is_here(mutex));
        assert_eq!(HEAVY_FENCES.get(), fences, "this thread had nothing to revoke");
        in_visitor(mutex, LONGEST_STREAK + 1);
        assert!(!mutex.is_shared());
    }
}

#[test]
fn threads_that_take_turns_share_the_lock() {
    let mutex = BiasedMutex::new(0);
    drop(mutex.lock());
    for turn in 0..3 * FIRST_STREAK {
        visit(&mutex);
        drop(mutex.lock());
        assert!(mutex.is_shared(), "turn {turn}");
    }
}

#[test]
fn a_shared_lock_is_tried_without_waiting() {
    let mutex = BiasedMutex::new(0);
    assert!(mutex.try_lock_shared().is_none(), "no thread has entered");
    drop(mutex.lock());
    assert!(mutex.try_lock_shared().is_none(), "this thread is the owner");
    visit(&mutex);
    let held = mutex.try_lock_shared().expect("threads share it");
    assert!(mutex.try_lock_shared().is_none(), "this thread is inside");
    std::thread::scope(|scope| {
        scope.spawn(|| assert!(mutex.try_lock_shared().is_none(), "another thread is inside"));
    });
    drop(held);
    // As many entries in a row as by `lock` make this thread the owner.
    let entries = (1..).find(|_| (drop(mutex.try_lock_shared()), mutex.try_lock_fast().is_some()).1);
    assert_eq!(entries, Some(FIRST_STREAK - 1));
}

#[test]
fn a_parked_thread_is_woken_by_the_one_that_leaves() {
    let mutex = BiasedMutex::new(0);
    visit(&mutex);
    for turn in 1..100 {
        let held = mutex.lock();
        std::thread::scope(|scope| {
            scope.spawn(|| *mutex.lock() += 1);
            while !mutex.has_parked() {
                std::thread::yield_now();
            }
            drop(held);
        });
        assert_eq!(*mutex.lock(), 1 + turn);
    }
}

/// Two threads that use the lock in turn, so many times in a row each, take it from each other only
/// until the lock knows that number: then it stays shared, and nobody pays for a barrier.
#[test]
fn turns_of_the_same_length_soon_need_no_barrier() {
    let turns = |length: u32| {
        let mutex = BiasedMutex::new(0_u32);
        let turn = || {
            let before = HEAVY_FENCES.get();
            (0..length).for_each(|_| *mutex.lock() += 1);
            HEAVY_FENCES.get() - before
        };
        let mut barriers = 0;
        for _ in 0..50 {
            barriers += turn();
            barriers += std::thread::scope(|scope| scope.spawn(turn).join().unwrap());
        }
        assert_eq!(*mutex.lock(), 100 * length);
        barriers
    };
    // The first owner, and the owners after 4, 8, 16, 32 and 64 entries lose it.
    assert_eq!(turns(64), 6);
    // Turns that are longer than the longest number pay for the barrier that ends them.
    assert_eq!(turns(2 * LONGEST_STREAK), 99);
}

#[test]
fn a_wait_begins_on_the_processor_and_goes_on_without_it() {
    let mut spin = Spin::new();
    for _ in 0..2 {
        assert_eq!((0..100).filter(|_| spin.spin()).count(), Spin::ROUNDS as usize);
        spin.reset();
    }
}

#[test]
#[should_panic(expected = "a mutex that it holds")]
fn a_mutex_is_not_locked_twice_by_one_thread() {
    let mutex = BiasedMutex::new(0);
    let _first = mutex.lock();
    drop(mutex.lock());
}

#[test]
fn a_thread_is_told_that_it_holds_the_mutex() {
    let mutex = BiasedMutex::new(0_u32);
    // In biased mode, and in shared mode.
    for _ in 0..2 {
        let guard = mutex.lock_unless_held();
        assert!(guard.is_some() && mutex.lock_unless_held().is_none());
        drop(guard);
        visit(&mutex);
    }
    assert!(mutex.lock_unless_held().is_some());
}

#[test]
fn a_guard_of_the_owner_excludes_its_own_thread() {
    let mutex = BiasedMutex::new(0);
    drop(mutex.lock());
    let first = mutex.try_lock_fast().unwrap();
    assert!(mutex.try_lock_fast().is_none());
    drop(first);
    assert!(mutex.try_lock_fast().is_some());
}

#[test]
fn mutex_with_a_reserve_has_its_first_owner_at_once() {
    let mut mutex = BiasedMutex::new(0);
    mutex.reserve();
    drop(mutex.lock());
    assert!(mutex.try_lock_fast().is_some());
    visit(&mutex);
    (0..FIRST_STREAK).for_each(|_| drop(mutex.lock()));
    assert_eq!(mutex.try_lock_fast().as_deref(), Some(&1));
}

/// A mutex with a door that is open.
fn with_door<T: Send>(value: T) -> (Box<BiasedMutex<T>>, &'static Door<T>) {
    let (mutex, door) = (Box::new(BiasedMutex::with_doors(value)), Box::leak(Box::new(Door::new())));
    assert!(door.try_lock_fast().is_none(), "there is no mutex");
    #[expect(unsafe_code, reason = "the door of a mutex")]
    // SAFETY: the mutex stays in its box until it is dropped.
    unsafe {
        mutex.open_door(door);
    };
    (mutex, door)
}

#[test]
fn owner_enters_by_the_door_and_nobody_else() {
    let (mutex, door) = with_door(0);
    assert!(door.try_lock_fast().is_none(), "there is no owner");
    drop(mutex.lock());
    let inside = door.try_lock_fast().unwrap();
    assert!(door.try_lock_fast().is_none() && mutex.try_lock_fast().is_none());
    drop(inside);
    let inside = mutex.lock();
    assert!(door.try_lock_fast().is_none());
    drop(inside);
    *door.try_lock_fast().unwrap() += 1;
    std::thread::scope(|scope| {
        scope.spawn(|| assert!(door.try_lock_fast().is_none(), "another thread owns it"));
    });
    visit(&mutex);
    assert!(door.try_lock_fast().is_none(), "the lock is shared");
    (0..FIRST_STREAK).for_each(|_| drop(mutex.lock()));
    assert_eq!(door.try_lock_fast().as_deref(), Some(&2));
    mutex.close_door();
    assert!(door.try_lock_fast().is_none() && mutex.try_lock_fast().is_some());
    // Another door, of a mutex that has its owner already.
    let other = Box::leak(Box::new(Door::new()));
    #[expect(unsafe_code, reason = "the door of a mutex")]
    // SAFETY: as in `with_door`.
    unsafe {
        mutex.open_door(other);
    };
    assert_eq!(other.try_lock_fast().as_deref(), Some(&2));
    #[expect(unsafe_code, reason = "the door of a mutex")]
    // SAFETY: as in `with_door`.
    unsafe {
        mutex.open_door(door);
    };
    assert!(other.try_lock_fast().is_none() && door.try_lock_fast().is_some());
    drop(mutex);
    assert!(door.try_lock_fast().is_none(), "the mutex is gone");
}

#[test]
#[should_panic(expected = "a mutex that it holds")]
fn a_door_is_not_closed_from_inside() {
    let (mutex, door) = with_door(0);
    drop(mutex.lock());
    let _inside = door.try_lock_fast().unwrap();
    mutex.close_door();
}

/// One thread enters by the door all the time; another drops the mutex and makes a new one, at least
/// until the first has entered. No thread uses a value that is gone, and no use is lost.
#[test]
fn no_value_is_used_after_its_mutex() {
    const ROUNDS: u64 = 500;
    struct Value(u64, &'static AtomicU64);
    impl Drop for Value {
        fn drop(&mut self) {
            self.1.fetch_add(self.0, Ordering::SeqCst);
            self.0 = u64::MAX / 2;
        }
    }
    static USES: AtomicU64 = AtomicU64::new(0);
    static DOOR: Door<Value> = Door::new();
    let current = std::sync::Mutex::new(None::<Box<BiasedMutex<Value>>>);
    let (was_entered, ended) = (AtomicBool::new(false), AtomicBool::new(false));
    let mut entered = 0_u64;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut rounds = 0;
            while rounds < ROUNDS || !was_entered.load(Ordering::Relaxed) {
                rounds += 1;
                let mutex = Box::new(BiasedMutex::with_doors(Value(0, &USES)));
                #[expect(unsafe_code, reason = "the door of a mutex")]
                // SAFETY: the mutex stays in its box until it is dropped.
                unsafe {
                    mutex.open_door(&DOOR);
                };
                *current.lock().unwrap() = Some(mutex);
                std::thread::yield_now();
                drop(current.lock().unwrap().take());
            }
            ended.store(true, Ordering::Release);
        });
        while !ended.load(Ordering::Acquire) {
            if let Some(mut value) = DOOR.try_lock_fast() {
                assert!(value.0 < u64::MAX / 2, "used after it was dropped");
                value.0 += 1;
                entered += 1;
            } else if let Some(mutex) = &*current.lock().unwrap() {
                // Becomes the owner.
                mutex.lock().0 += 1;
                entered += 1;
            }
            was_entered.store(entered > 0, Ordering::Relaxed);
        }
    });
    assert_eq!(USES.load(Ordering::SeqCst), entered);
}

/// A thread that waits for the owner, or for a thread in shared mode, does not spin: while it
/// waits, its own time on a processor is far below the time that passes.
#[test]
fn a_waiting_thread_sleeps() {
    for shared in [false, true] {
        let mutex = BiasedMutex::new(0);
        drop(mutex.lock());
        if shared {
            visit(&mutex);
        }
        let held = mutex.lock();
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| {
                let before = cpu_time();
                *mutex.lock() += 1;
                cpu_time() - before
            });
            // Not a wait for an event: the time is what the test is about.
            std::thread::sleep(std::time::Duration::from_millis(200));
            drop(held);
            let used = waiter.join().unwrap();
            assert!(used < std::time::Duration::from_millis(100), "used {used:?} of 200 ms");
        });
    }
}

/// The time that this thread has spent on a processor.
fn cpu_time() -> std::time::Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    std::time::Duration::from_nanos(text.split_whitespace().next().unwrap().parse().unwrap())
}

#[test]
fn no_addition_to_a_mutex_is_lost() {
    const THREADS: u64 = 4;
    const EACH: u64 = 50_000;
    let mutex = BiasedMutex::new(0_u64);
    let begin = Barrier::new(THREADS as usize);
    std::thread::scope(|scope| {
        for n in 0..THREADS {
            let (mutex, begin) = (&mutex, &begin);
            scope.spawn(move || {
                begin.wait();
                for i in 0..EACH {
                    let mut value = mutex.lock();
                    let now = std::hint::black_box(*value);
                    *value = now + 1;
                    drop(value);
                    // Some threads pause, so that others become owners between.
                    if i % 997 == n {
                        std::thread::yield_now();
                    }
                }
            });
        }
    });
    assert_eq!(*mutex.lock(), THREADS * EACH);
}

/// The owner is delayed between its first look at the bias and its store of `busy`.
#[test]
fn a_late_owner_stays_out() {
    let lock = BiasedLock::new();
    lock.put(object());
    drop(lock.lock().unwrap());
    let (entered, leave) = (Barrier::new(2), Barrier::new(2));
    std::thread::scope(|scope| {
        let late = lock.try_lock_fast_after::<0>(|| {
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
    assert!(lock.try_lock_fast_after::<0>(|| drop(lock.take().unwrap())).is_none(), "the lock is empty");
}

/// Programs that are out of memory free objects, so this must not allocate.
#[test]
fn taking_the_object_out_makes_no_bias() {
    let raw = Raw::from_parts(AtomicPtr::default(), AtomicUsize::new(0));
    let enter = || drop(raw.enter(raw.hold().unwrap(), no_reuse, None));
    let biases = || {
        let mut count = 0;
        drop(raw.exclude(|unused| count = unused.count()).unwrap());
        count
    };
    assert_eq!(biases(), 0, "an unused lock");
    enter();
    assert_eq!(biases(), 1, "by the owner");
    enter();
    let other = std::thread::scope(|scope| scope.spawn(biases).join().unwrap());
    assert_eq!(other, 1, "by another thread");
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
    let lock = BiasedLock::<Object>::new();
    lock.put(object());
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

/// One thread uses the object all the time; another takes it away and puts a new one in. An object
/// that was taken is never used.
#[test]
fn object_is_not_used_after_take() {
    const ROUNDS: u64 = 20_000;
    let lock = &BiasedLock::new();
    lock.put(object());
    let (mut entered, done) = (0, AtomicU64::new(0));
    let mut uses = 0;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..ROUNDS {
                let old = lock.take().expect("only this thread takes");
                old.taken.store(true, Ordering::SeqCst);
                uses += old.uses;
                lock.put(object());
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
