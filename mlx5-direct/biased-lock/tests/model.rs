//! The biased locks (src/raw.rs, src/lock.rs, src/mutex.rs and src/door.rs, the files themselves),
//! explored by loom.
//!
//! Modelled: every interleaving of two threads, up to [`PREEMPTIONS`] preemptions an execution, and
//! every outcome of the atomic accesses that the C11 memory model allows; a data race on the object
//! fails the model. Covered: the owner against a thread that revokes its bias, against a thread
//! that takes the object out, two threads that enter a new lock, shared mode, and the way back from
//! it: a thread that becomes the owner by its next entry while the former owner enters. The owner
//! that enters by a door, against a thread that locks the mutex, and against one that drops it. A
//! thread that is parked, against one that releases the lock.
//!
//! membarrier(2) is modelled as a request to all other threads: each executes a SeqCst fence at one
//! of its fence points and acknowledges, and the caller waits for all acknowledgements. The owner's
//! fence points are where the position of the fence matters: before the first look at the bias,
//! between that look and the store of `open`, between the store and the second look, during the
//! use, after it, and whenever it waits. A thread that has ended needs no fence, as in the kernel.
//!
//! Not covered: more than two threads in the lock at once, and the sleep that replaces a refused
//! membarrier. loom treats SeqCst accesses as acquire-release ones, so the model is weaker than the
//! hardware's promise.

use loom::sync::atomic::Ordering;
use loom::thread::{self, JoinHandle};
use std::sync::Arc;

#[allow(dead_code, unreachable_pub, reason = "the model does not use all of it")]
#[path = "../src/door.rs"]
mod door;
#[allow(dead_code, unreachable_pub, reason = "the model does not use all of it")]
#[path = "../src/lock.rs"]
mod lock;
#[allow(dead_code, unreachable_pub, reason = "the model does not use all of it")]
#[path = "../src/mutex.rs"]
mod mutex;
#[allow(dead_code, unreachable_pub, reason = "the model does not use all of it")]
#[path = "../src/raw.rs"]
mod raw;
use door::Door;
use lock::{BiasedLock, LockError};
use mutex::BiasedMutex;
use platform::{AtomicPtr, AtomicUsize, FENCES, FENCES_OF, HAS_FENCES, ID, light_fence};

const PREEMPTIONS: usize = 3;

/// Threads of a model.
const THREADS: usize = 2;

/// Stands for src/platform.rs.
mod platform {
    use loom::sync::atomic::{AtomicBool, Ordering, fence};
    pub(crate) use loom::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize};
    use loom::thread;
    use std::any::Any;
    use std::cell::Cell;

    pub(crate) const FIRST_STREAK: u32 = 1;
    pub(crate) const LONGEST_STREAK: u32 = 1;

    type AnyBias = &'static (dyn Any + Send + Sync);

    std::thread_local! {
        /// Whether `heavy_fence` does anything. loom runs all threads of a model on one OS thread.
        pub(crate) static FENCES: Cell<bool> = const { Cell::new(true) };
        /// Whether the lock may rely on `heavy_fence`.
        pub(crate) static HAS_FENCES: Cell<bool> = const { Cell::new(true) };
    }

    /// What one thread has been asked for, and what it has done.
    #[derive(Default)]
    pub(crate) struct Fences {
        requested: AtomicUsize,
        executed: AtomicUsize,
        pub(crate) ended: AtomicBool,
    }

    loom::lazy_static! {
        pub(crate) static ref FENCES_OF: [Fences; super::THREADS] = Default::default();
        static ref UNUSED: loom::sync::Mutex<Vec<(usize, AnyBias)>> = loom::sync::Mutex::new(Vec::new());
        /// Whether the other thread sleeps. Threads go to sleep and wake under this lock.
        static ref ASLEEP: loom::sync::Mutex<bool> = loom::sync::Mutex::new(false);
        static ref PARKED: AtomicU32 = AtomicU32::new(0);
    }

    loom::thread_local! {
        /// This thread's number: 1 for the first thread of the model, then 2.
        pub(crate) static ID: Cell<usize> = Cell::new(1);
    }

    fn number() -> usize {
        ID.with(Cell::get)
    }

    /// Thread IDs are even.
    pub(crate) fn thread_id() -> usize {
        2 * number()
    }

    pub(crate) fn has_heavy_fence() -> bool {
        HAS_FENCES.get()
    }

    /// Decides only how soon a thread becomes the owner.
    pub(crate) fn visits_only() -> bool {
        false
    }

    /// A fence point: executes the fence that another thread waits for.
    pub(crate) fn light_fence() {
        let own = &FENCES_OF[number() - 1];
        let requested = own.requested.load(Ordering::Acquire);
        if requested != own.executed.load(Ordering::Relaxed) {
            fence(Ordering::SeqCst);
            own.executed.store(requested, Ordering::Release);
        }
    }

    pub(crate) fn is<const OFFSET: usize>(word: &AtomicUsize, value: usize) -> bool {
        word.load(Ordering::Relaxed) == value
    }

    pub(crate) fn is_still<const OFFSET: usize, T>(pointer: &AtomicPtr<T>, value: *mut T) -> bool {
        pointer.load(Ordering::SeqCst) == value
    }

    pub(crate) fn pause(_: u32) {
        light_fence();
        thread::yield_now();
    }

    pub(crate) struct Spin;

    impl Spin {
        pub(crate) fn new() -> Self {
            Self
        }

        pub(crate) fn reset(&mut self) {}

        pub(crate) fn spin(&mut self) -> bool {
            false
        }
    }

    /// A thread that waits for the lock can execute fences, as one that is not running.
    fn asleep() -> loom::sync::MutexGuard<'static, bool> {
        loop {
            if let Ok(asleep) = ASLEEP.try_lock() {
                return asleep;
            }
            pause(0);
        }
    }

    pub(crate) fn park(word: &AtomicUsize) {
        let mut asleep = self::asleep();
        if word.load(Ordering::Relaxed) == 0 {
            return;
        }
        *asleep = true;
        drop(asleep);
        // Without the wake-up, the model ends with an error: too many steps.
        while *self::asleep() {
            pause(0);
        }
    }

    pub(crate) fn unpark_one(_: usize) {
        *asleep() = false;
    }

    pub(crate) fn parked(_: usize) -> &'static AtomicU32 {
        &PARKED
    }

    pub(crate) fn release_fence() {
        if HAS_FENCES.get() { light_fence() } else { fence(Ordering::SeqCst) }
    }

    pub(crate) fn parking_fence() {
        if HAS_FENCES.get() { heavy_fence() } else { fence(Ordering::SeqCst) }
    }

    pub(crate) fn heavy_fence() {
        if !FENCES.get() {
            return;
        }
        fence(Ordering::SeqCst);
        let own = number() - 1;
        for other in FENCES_OF.iter().enumerate().filter_map(|(n, other)| (n != own).then_some(other)) {
            let request = other.requested.fetch_add(1, Ordering::AcqRel) + 1;
            while other.executed.load(Ordering::Acquire) < request && !other.ended.load(Ordering::Acquire) {
                pause(0);
            }
        }
        fence(Ordering::SeqCst);
    }

    pub(crate) fn reuse_bias(thread: usize) -> Option<AnyBias> {
        let mut unused = UNUSED.lock().unwrap();
        let at = unused.iter().position(|(of, _)| *of == thread)?;
        Some(unused.swap_remove(at).1)
    }

    pub(crate) fn keep_biases(biases: &mut dyn Iterator<Item = (usize, AnyBias)>) {
        let biases: Vec<_> = biases.collect();
        UNUSED.lock().unwrap().extend(biases);
    }
}

/// An object whose accesses loom checks for data races.
struct Object(loom::cell::UnsafeCell<u32>);

// SAFETY: the lock under test gives exclusive access; loom fails the model where it does not.
#[allow(unsafe_code, reason = "the object that the lock protects")]
unsafe impl Send for Object {}

type Lock = BiasedLock<Object>;

fn new_lock() -> raw::Raw {
    raw::Raw::from_parts(AtomicPtr::new(std::ptr::null_mut()), AtomicUsize::new(0))
}

fn object() -> Object {
    Object(loom::cell::UnsafeCell::new(0))
}

fn lock_with_object() -> Arc<Lock> {
    let lock = Lock::from_parts(new_lock(), AtomicPtr::new(std::ptr::null_mut()));
    assert!(lock.put(Box::new(object())).is_none());
    Arc::new(lock)
}

/// Adds 1 to the object in two accesses with a fence point between them.
fn add_one(object: &mut Object) {
    #[allow(unsafe_code, reason = "loom checks the access")]
    // SAFETY: loom fails the model if another thread accesses the cell meanwhile.
    let value = object.0.with(|value| unsafe { *value });
    light_fence();
    #[allow(unsafe_code, reason = "loom checks the access")]
    // SAFETY: as above.
    object.0.with_mut(|to| unsafe { *to = value + 1 });
}

fn value(object: &Object) -> u32 {
    #[allow(unsafe_code, reason = "loom checks the access")]
    // SAFETY: as in `add_one`.
    object.0.with(|value| unsafe { *value })
}

/// Uses the object as a post does. False if there is none.
fn use_object(lock: &Lock) -> bool {
    light_fence();
    let used = match lock.try_lock_fast_after::<0>(light_fence) {
        Some(mut object) => {
            add_one(&mut object);
            true
        }
        None => match lock.try_lock_shared().map_or_else(|| lock.lock(), Ok) {
            Ok(mut object) => {
                add_one(&mut object);
                true
            }
            Err(LockError::Empty) => false,
            Err(LockError::Reentrant) => unreachable!("this thread holds no guard"),
        },
    };
    light_fence();
    used
}

/// The second thread of the model.
fn spawn<T: 'static>(run: impl FnOnce() -> T + 'static) -> JoinHandle<T> {
    thread::spawn(|| {
        ID.with(|id| id.set(2));
        let outcome = run();
        FENCES_OF[1].ended.store(true, Ordering::Release);
        outcome
    })
}

/// The first thread is at its end.
fn ended() {
    FENCES_OF[0].ended.store(true, Ordering::Release);
}

fn model(run: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(PREEMPTIONS);
    builder.check(run);
}

/// The first thread is the owner and uses the object again; the second takes over.
fn owner_and_successor() {
    model(|| {
        let lock = lock_with_object();
        assert!(use_object(&lock));
        let other = {
            let lock = Arc::clone(&lock);
            spawn(move || assert!(use_object(&lock)))
        };
        assert!(use_object(&lock));
        ended();
        other.join().unwrap();
        assert_eq!(value(&lock.take().unwrap()), 3);
    });
}

/// The first thread is the owner and uses the object again; the second takes the object out,
/// changes it, and puts it in again.
fn owner_and_taker() {
    model(|| {
        let lock = lock_with_object();
        assert!(use_object(&lock));
        let other = {
            let lock = Arc::clone(&lock);
            spawn(move || {
                let mut object = lock.take().expect("nobody else takes it");
                add_one(&mut object);
                object
            })
        };
        let used = use_object(&lock);
        ended();
        let object = other.join().unwrap();
        assert_eq!(value(&object), 2 + u32::from(used));
        assert!(lock.take().is_none());
    });
}

/// Neither thread is the owner at first.
fn two_successors() {
    model(|| {
        let lock = lock_with_object();
        let other = {
            let lock = Arc::clone(&lock);
            spawn(move || assert!(use_object(&lock)))
        };
        assert!(use_object(&lock));
        ended();
        other.join().unwrap();
        assert_eq!(value(&lock.take().unwrap()), 2);
    });
}

/// Locks the mutex as a dequeue does.
fn use_mutex(mutex: &BiasedMutex<Object>) {
    light_fence();
    match mutex.try_lock_fast_after::<0>(light_fence) {
        Some(mut object) => add_one(&mut object),
        None => add_one(&mut mutex.try_lock_shared().unwrap_or_else(|| mutex.lock())),
    }
    light_fence();
}

/// The first thread is the owner and enters again; the second enters twice, which can make it the
/// owner.
fn way_back() {
    model(|| {
        let mutex = Arc::new(BiasedMutex::from_parts(new_lock(), no_word(), false, object()));
        use_mutex(&mutex);
        let other = {
            let mutex = Arc::clone(&mutex);
            spawn(move || (0..2).for_each(|_| use_mutex(&mutex)))
        };
        use_mutex(&mutex);
        ended();
        other.join().unwrap();
        assert_eq!(value(&mutex.lock()), 4);
    });
}

fn no_word<T>() -> AtomicPtr<T> {
    AtomicPtr::new(std::ptr::null_mut())
}

/// A mutex that this thread owns, and its door.
fn mutex_with_door() -> (Box<BiasedMutex<Object>>, &'static Door<Object>) {
    let mutex = Box::new(BiasedMutex::from_parts(new_lock(), no_word(), true, object()));
    let door = Box::leak(Box::new(Door::from_parts(no_word())));
    #[allow(unsafe_code, reason = "the door of a mutex")]
    // SAFETY: the mutex stays in its box, which drops it.
    unsafe {
        mutex.open_door(door);
    };
    add_one(&mut mutex.lock());
    (mutex, door)
}

/// Enters by the door as a dequeue does. False if the door is closed.
fn use_door(door: &'static Door<Object>) -> bool {
    light_fence();
    let used = match door.try_lock_fast_after::<0>(light_fence) {
        Some(mut object) => {
            add_one(&mut object);
            true
        }
        None => false,
    };
    light_fence();
    used
}

/// The first thread is the owner and enters by the door; the second locks the mutex.
fn door_and_successor() {
    model(|| {
        let (mutex, door) = mutex_with_door();
        let mutex = Arc::new(mutex);
        let other = {
            let mutex = Arc::clone(&mutex);
            spawn(move || use_mutex(&mutex))
        };
        let used = use_door(door);
        ended();
        other.join().unwrap();
        assert_eq!(value(&mutex.lock()), 2 + u32::from(used));
    });
}

/// The first thread is the owner and enters by the door, and has no other reference to the mutex;
/// the second closes the door, uses the value without the lock, and drops the mutex.
fn door_and_dropper() {
    model(|| {
        let (mut mutex, door) = mutex_with_door();
        let other = spawn(move || {
            let used = value(mutex.get_mut());
            drop(mutex);
            used
        });
        let used = use_door(door);
        ended();
        assert_eq!(other.join().unwrap(), 1 + u32::from(used));
        assert!(!use_door(door), "the mutex is gone");
    });
}

/// Both threads take the ordinary lock. If one is parked, the other wakes it.
fn holder_and_waiter() {
    model(|| {
        fn hold(raw: &raw::Raw) {
            light_fence();
            let held = raw.hold().expect("no thread holds it twice");
            light_fence();
            drop(held);
            light_fence();
        }
        let raw = Arc::new(new_lock());
        let other = {
            let raw = Arc::clone(&raw);
            spawn(move || hold(&raw))
        };
        hold(&raw);
        ended();
        other.join().unwrap();
    });
}

/// Whether this fails with the fences of the model switched off.
fn fails_without_fences(test: fn()) -> bool {
    FENCES.set(false);
    let failed = std::panic::catch_unwind(test).is_err();
    FENCES.set(true);
    failed
}

#[test]
fn owner_and_successor_exclude_each_other() {
    owner_and_successor();
}

#[test]
fn object_is_taken_out_after_its_last_use() {
    owner_and_taker();
}

#[test]
fn two_successors_exclude_each_other() {
    two_successors();
}

#[test]
fn a_thread_that_owns_again_excludes_the_former_owner() {
    way_back();
}

#[test]
fn an_owner_in_the_door_excludes_its_successor() {
    door_and_successor();
}

#[test]
fn a_mutex_is_dropped_after_its_owner_has_left_the_door() {
    door_and_dropper();
}

#[test]
fn without_the_heavy_fence_two_threads_enter_by_door_and_mutex() {
    assert!(fails_without_fences(door_and_successor), "the model is too weak to prove anything");
}

#[test]
fn without_the_heavy_fence_a_dropped_mutex_is_used() {
    assert!(fails_without_fences(door_and_dropper), "the model is too weak to prove anything");
}

#[test]
fn users_of_a_shared_lock_exclude_each_other() {
    HAS_FENCES.set(false);
    two_successors();
}

#[test]
fn a_parked_thread_is_woken() {
    holder_and_waiter();
}

#[test]
fn a_parked_thread_is_woken_where_there_is_no_heavy_fence() {
    HAS_FENCES.set(false);
    holder_and_waiter();
}

#[test]
fn without_the_heavy_fence_a_parked_thread_sleeps_on() {
    assert!(fails_without_fences(holder_and_waiter), "the model is too weak to prove anything");
}

#[test]
fn without_the_heavy_fence_two_threads_enter() {
    assert!(fails_without_fences(owner_and_successor), "the model is too weak to prove anything");
}

#[test]
fn without_heavy_fence_the_way_back_admits_two_threads() {
    assert!(fails_without_fences(way_back), "the model is too weak to prove anything");
}

#[test]
fn without_the_heavy_fence_a_taken_object_is_used() {
    assert!(fails_without_fences(owner_and_taker), "the model is too weak to prove anything");
}
