//! A lane: how one thread uses an object without a lock, while others may take it over or away.
//!
//! Nearly always one thread uses an SRQ, so the lane belongs to that thread: it is that thread's *turn*. The owner says in its
//! turn that it is using the object, with plain stores. Another thread that comes makes the lane its own first: it puts its turn
//! in place of the old one, makes every running thread of the process pass a memory barrier (membarrier(2)), and waits for
//! the old turn's use to end. All the cost is with the newcomer. Where threads keep taking it from each other, the lane
//! becomes a spin lock ([`MOST_TURNS`]); also where the kernel has no such barrier, or a sandbox forbids it.
//!
//! Proof, with U: `busy = 1; is it still my turn?`, and T: `another turn; barrier in U's thread; is U busy?`. The barrier comes
//! either after U's store, which T then sees and waits for, or before it, and then U looks at the turn after the barrier, finds
//! another, and stays out. On a compiler both orders are kept by the fences. U may have looked whose turn it was long before it
//! stores: so a turn is marked as busy by one thread only, for ever, and no other thread takes what U writes for its own. (A signal
//! handler that comes in between, and uses SRQs, would be the same thread; like all of DAT these calls are not for signal handlers.)

#![expect(unsafe_code, reason = "an object shared by agreement instead of a lock")]

use crate::sync::{Mutex, MutexGuard, rank};
use std::collections::HashMap;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering, compiler_fence};
use std::sync::{LazyLock, OnceLock, PoisonError};

/// So many threads may have had the lane, one after the other, before it becomes a lock.
const MOST_TURNS: u32 = 16;

const MEMBARRIER_PRIVATE_EXPEDITED: libc::c_long = 1 << 3;
const MEMBARRIER_REGISTER_PRIVATE_EXPEDITED: libc::c_long = 1 << 4;

/// Whether the kernel did it.
fn membarrier(command: libc::c_long) -> bool {
    // SAFETY: three integers, and no memory of ours.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}

/// Whether there is a barrier for all threads at all.
fn has_barriers() -> bool {
    static BARRIERS: OnceLock<bool> = OnceLock::new();
    *BARRIERS.get_or_init(|| membarrier(MEMBARRIER_REGISTER_PRIVATE_EXPEDITED))
}

/// Every thread of this process that runs passes a memory barrier before this returns.
fn barrier_for_all() {
    if !membarrier(MEMBARRIER_PRIVATE_EXPEDITED) {
        // It was there when the lane was made, so a sandbox put up since is in the way. Stores leave a processor's buffer
        // within far less than this.
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}

/// A number that this thread has for itself among those that live; never 0.
#[inline(always)]
fn this_thread() -> usize {
    #[cfg(target_arch = "x86_64")]
    {
        let thread: usize;
        // SAFETY: a load from where the ABI has the thread pointer's own value (System V, x86-64, variant II of TLS).
        unsafe {
            std::arch::asm!("mov {}, fs:[0]", out(reg) thread, options(pure, readonly, nostack, preserves_flags));
        }
        thread
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        thread_local!(static HERE: u8 = const { 0 });
        HERE.with(|here| std::ptr::from_ref(here) as usize)
    }
}

/// A thread's ownership of a lane. Turns are never freed, and belong to one thread for ever; a thread that has the number of one that
/// has ended takes its turns over.
#[derive(Debug)]
#[repr(align(64))]
struct Turn {
    /// Whose it is; 0 for nobody's, which makes the lane a lock.
    thread: usize,
    /// `thread` while that may enter by the quick way, which is not where it uses the object already.
    open: AtomicUsize,
    /// 1 while that thread uses the object.
    busy: AtomicUsize,
    /// Turns that the lane had before, and the last of them.
    nth: AtomicU32,
    before: AtomicPtr<Turn>,
}

/// Turns that are on no lane, by thread.
static SPARE: LazyLock<Mutex<{ rank::TABLE }, HashMap<usize, Vec<&'static Turn>>>> =
    LazyLock::new(Mutex::default);

fn spare() -> MutexGuard<'static, HashMap<usize, Vec<&'static Turn>>> {
    SPARE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// For a fork.
pub(super) fn hold_shared_locks() -> Vec<Box<dyn std::any::Any>> {
    vec![Box::new(SPARE.hold())]
}

impl Turn {
    /// In use by its thread from the start.
    fn of(thread: usize, before: Option<&'static Turn>) -> &'static Self {
        let turn = spare().get_mut(&thread).and_then(Vec::pop).unwrap_or_else(|| {
            let (open, busy) = (AtomicUsize::new(0), AtomicUsize::new(0));
            let (nth, before) = (AtomicU32::new(0), AtomicPtr::default());
            Box::leak(Box::new(Self { thread, open, busy, nth, before }))
        });
        turn.open.store(0, Ordering::Relaxed);
        turn.busy.store((thread != 0).into(), Ordering::Relaxed);
        turn.nth.store(before.map_or(0, |turn| turn.nth.load(Ordering::Relaxed) + 1), Ordering::Relaxed);
        turn.before.store(before.map_or(std::ptr::null_mut(), Turn::address), Ordering::Relaxed);
        turn
    }

    fn address(&self) -> *mut Self {
        std::ptr::from_ref(self).cast_mut()
    }

    /// This one and those before it.
    fn chain(&'static self) -> impl Iterator<Item = &'static Self> {
        std::iter::successors(Some(self), |turn| found(turn.before.load(Ordering::Relaxed)))
            .take(MOST_TURNS as usize + 2)
    }

    /// It has been replaced: when this returns, its thread is out, and stays out.
    fn end(&self) {
        barrier_for_all();
        while self.busy.load(Ordering::Acquire) != 0 {
            std::thread::yield_now();
        }
    }

    /// For this turn's thread, whatever it does meanwhile.
    fn use_thoroughly<T>(&self, at: *mut T) -> InUse<'_, T> {
        self.open.store(0, Ordering::Relaxed);
        self.busy.store(1, Ordering::Relaxed);
        InUse { busy: &self.busy, at, reopen: Some(self) }
    }
}

#[inline(always)]
fn found(turn: *mut Turn) -> Option<&'static Turn> {
    // SAFETY: NULL or a turn, which is never freed, and of which only atomics change.
    unsafe { turn.as_ref() }
}

/// Holds an object or nothing.
#[derive(Debug)]
pub(super) struct Lane<T> {
    /// NULL before the first.
    turn: AtomicPtr<Turn>,
    at: AtomicPtr<T>,
    /// The thread that changes the two, or, where the lane is a lock, uses the object; 0 for none.
    holder: AtomicUsize,
}

/// The object, for as long as this lives.
#[derive(Debug)]
pub(super) struct InUse<'a, T> {
    /// Becomes 0 then.
    busy: &'a AtomicUsize,
    at: *mut T,
    /// Whose turn it is, where the quick way is closed meanwhile.
    reopen: Option<&'a Turn>,
}

/// Why an object can't be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unusable {
    /// There is none.
    Gone,
    /// This thread is using it already, further up its stack.
    Busy,
}

impl<T: Send> Lane<T> {
    pub(super) const fn new() -> Self {
        Self {
            turn: AtomicPtr::new(std::ptr::null_mut()),
            at: AtomicPtr::new(std::ptr::null_mut()),
            holder: AtomicUsize::new(0),
        }
    }

    /// Puts an object in; what was there before comes out.
    pub(super) fn put(&self, object: Box<T>) -> Option<Box<T>> {
        let before = self.take();
        self.at.store(Box::into_raw(object), Ordering::SeqCst);
        before
    }

    /// Takes the object out, once nobody uses it any more; leaves it to itself if that is this very thread.
    pub(super) fn take(&self) -> Option<Box<T>> {
        let _lock = self.lock(this_thread()).ok()?;
        if let Some(last) = found(self.turn.load(Ordering::Relaxed)) {
            // Nobody's turn, but whoever is in finds himself among those before.
            let nobodys = if last.thread == 0 { last } else { Turn::of(0, Some(last)) };
            self.turn.store(nobodys.address(), Ordering::SeqCst);
            last.end();
            self.turn.store(std::ptr::null_mut(), Ordering::SeqCst);
            let mut spare = spare();
            nobodys.chain().for_each(|turn| spare.entry(turn.thread).or_default().push(turn));
        }
        let at = self.at.swap(std::ptr::null_mut(), Ordering::SeqCst);
        // SAFETY: `put` made it from a box. The swap gave it to this call alone; by the proof above nobody uses it by his turn,
        // nor, since this call has the lock, by that.
        (!at.is_null()).then(|| unsafe { Box::from_raw(at) })
    }

    /// Lets go of the object without dropping it, whoever uses it: in a forked child that is a thread of the parent's.
    pub(super) fn forget(&self) {
        self.turn.store(std::ptr::null_mut(), Ordering::SeqCst);
        self.at.store(std::ptr::null_mut(), Ordering::SeqCst);
        self.holder.store(0, Ordering::SeqCst);
    }

    /// The object, if it is this thread's turn: the quick way, for those who call nobody while they use it.
    #[inline(always)]
    pub(super) fn enter(&self) -> Option<InUse<'_, T>> {
        self.enter_after(|| ())
    }

    /// [`Lane::enter`]; this may happen between its look at whose turn it is and its saying that it enters.
    #[inline(always)]
    fn enter_after(&self, meanwhile: impl FnOnce()) -> Option<InUse<'_, T>> {
        let turn = self.turn.load(Ordering::Acquire);
        let mine = found(turn)?;
        if mine.open.load(Ordering::Relaxed) != this_thread() {
            return None;
        }
        meanwhile();
        mine.busy.store(1, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        let still = self.turn.load(Ordering::SeqCst) == turn;
        // As long as there is a turn, there is an object.
        let in_use = InUse { busy: &mine.busy, at: self.at.load(Ordering::Relaxed), reopen: None };
        still.then_some(in_use)
    }

    /// The object, once no other thread is using it.
    pub(super) fn enter_patiently(&self) -> Result<InUse<'_, T>, Unusable> {
        let me = this_thread();
        let lock = self.lock(me)?;
        let at = self.at.load(Ordering::Relaxed);
        if at.is_null() {
            return Err(Unusable::Gone);
        }
        let last = found(self.turn.load(Ordering::Relaxed));
        match last {
            Some(last) if last.thread == 0 => return Ok(lock.keep(at)),
            Some(last) if last.thread == me => return Ok(last.use_thoroughly(at)),
            _ => {}
        }
        let nth = last.map_or(0, |last| last.nth.load(Ordering::Relaxed) + 1);
        let is_lock = nth >= MOST_TURNS || !has_barriers();
        // In use from the start: who comes next waits for this one, who waits for the last.
        let next = Turn::of(if is_lock { 0 } else { me }, last);
        self.turn.store(next.address(), Ordering::SeqCst);
        if let Some(last) = last {
            last.end();
        }
        Ok(if is_lock { lock.keep(at) } else { next.use_thoroughly(at) })
    }

    /// The right to change whose turn it is, or that there is an object.
    fn lock(&self, me: usize) -> Result<Locked<'_>, Unusable> {
        loop {
            let taken = self.holder.compare_exchange(0, me, Ordering::Acquire, Ordering::Relaxed);
            // Whoever has the lock may be waiting for this thread.
            if taken == Err(me) || self.is_used_by(me) {
                if taken.is_ok() {
                    self.holder.store(0, Ordering::Release);
                }
                return Err(Unusable::Busy);
            }
            if taken.is_ok() {
                return Ok(Locked { holder: &self.holder });
            }
            std::thread::yield_now();
        }
    }

    fn is_used_by(&self, thread: usize) -> bool {
        let used = |turn: &Turn| turn.thread == thread && turn.busy.load(Ordering::Relaxed) != 0;
        found(self.turn.load(Ordering::Acquire)).is_some_and(|last| last.chain().any(used))
    }
}

/// A lane's `holder` is this thread, for as long as this lives.
struct Locked<'a> {
    holder: &'a AtomicUsize,
}

impl<'a> Locked<'a> {
    /// Until the object is not used any more.
    fn keep<T>(self, at: *mut T) -> InUse<'a, T> {
        let busy = self.holder;
        std::mem::forget(self);
        InUse { busy, at, reopen: None }
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        self.holder.store(0, Ordering::Release);
    }
}

impl<T> Drop for InUse<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        self.busy.store(0, Ordering::Release);
        if let Some(turn) = self.reopen {
            turn.open.store(turn.thread, Ordering::Relaxed);
        }
    }
}

impl<T> Deref for InUse<'_, T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: as in `deref_mut`.
        unsafe { &*self.at }
    }
}

impl<T> DerefMut for InUse<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: not NULL, and not taken away while `busy` says so. Exclusive: no other thread has entered by the proof above, or since
        // this one has the lock; and a second call in this thread finds `busy`.
        unsafe { &mut *self.at }
    }
}

impl<T> Drop for Lane<T> {
    fn drop(&mut self) {
        let at = *self.at.get_mut();
        if !at.is_null() {
            // SAFETY: `put` made it from a box, and nobody else has this lane any more.
            drop(unsafe { Box::from_raw(at) });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicBool, AtomicU64};

    struct Object {
        taken: AtomicBool,
        uses: u64,
    }

    fn object() -> Box<Object> {
        Box::new(Object { taken: AtomicBool::new(false), uses: 0 })
    }

    fn is_lock<T>(lane: &Lane<T>) -> bool {
        found(lane.turn.load(Ordering::Acquire)).is_some_and(|turn| turn.thread == 0)
    }

    /// As where the kernel has no barrier.
    fn put_in_lock<T: Send>(lane: &Lane<T>, object: Box<T>) {
        assert!(lane.take().is_none());
        let _lock = lane.lock(this_thread()).unwrap();
        lane.turn.store(Turn::of(0, None).address(), Ordering::SeqCst);
        lane.at.store(Box::into_raw(object), Ordering::SeqCst);
    }

    #[test]
    fn one_use_at_a_time() {
        let lane = Lane::new();
        assert!(lane.enter().is_none());
        assert_eq!(lane.enter_patiently().err(), Some(Unusable::Gone));
        assert!(lane.put(Box::new(5)).is_none());
        let mut first = lane.enter_patiently().unwrap();
        *first += 1;
        assert!(lane.enter().is_none());
        assert_eq!(lane.enter_patiently().err(), Some(Unusable::Busy));
        assert!(lane.take().is_none(), "taken while it is used");
        drop(first);
        assert_eq!(lane.enter().as_deref(), Some(&6));
        assert_eq!(lane.put(Box::new(7)).as_deref(), Some(&6));
        assert_eq!(lane.take().as_deref(), Some(&7));
        assert!(lane.take().is_none());
        assert!(lane.enter().is_none());
        assert_eq!(lane.enter_patiently().err(), Some(Unusable::Gone));
    }

    #[test]
    fn a_lane_that_is_a_lock_has_no_quick_way_and_knows_its_thread() {
        let lane = Lane::new();
        put_in_lock(&lane, Box::new(5));
        let first = lane.enter_patiently().unwrap();
        assert!(lane.enter().is_none());
        assert_eq!(lane.enter_patiently().err(), Some(Unusable::Busy));
        assert!(lane.take().is_none(), "taken while it is used");
        drop(first);
        assert!(lane.enter().is_none());
        assert_eq!(lane.take().as_deref(), Some(&5));
    }

    #[test]
    fn the_next_thread_takes_it_over_and_many_make_it_a_lock() {
        let lane = Lane::new();
        lane.put(Box::new(0_u32));
        while !is_lock(&lane) {
            *lane.enter_patiently().unwrap() += 1;
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    assert!(lane.enter().is_none(), "another's turn");
                    *lane.enter_patiently().unwrap() += 1;
                    assert_eq!(lane.enter().is_none(), is_lock(&lane));
                });
            });
        }
        let uses = *lane.enter_patiently().unwrap();
        assert!((MOST_TURNS..MOST_TURNS + 4).contains(&uses), "{uses}");
        // A new object starts anew.
        assert_eq!(lane.put(Box::new(1)).as_deref(), Some(&uses));
        assert!(!is_lock(&lane));
        drop(lane.enter_patiently().unwrap());
        assert!(lane.enter().is_some());
    }

    /// A thread that is held up for long just after it has seen that it is its turn.
    #[test]
    fn a_late_owner_stays_out() {
        let lane = Lane::new();
        lane.put(object());
        drop(lane.enter_patiently().unwrap());
        let (entered, leave) = (Barrier::new(2), Barrier::new(2));
        std::thread::scope(|scope| {
            let late = lane.enter_after(|| {
                scope.spawn(|| {
                    let other = lane.enter_patiently().unwrap();
                    entered.wait();
                    leave.wait();
                    drop(other);
                });
                entered.wait();
            });
            let both = late.is_some() || lane.enter().is_some();
            drop(late);
            leave.wait();
            assert!(!both, "two are in");
        });
        drop(lane.enter_patiently().unwrap());
        assert!(lane.enter_after(|| drop(lane.take().unwrap())).is_none(), "there is nothing any more");
    }

    /// Uses the object as a post does, by the quick way where that is open; false if there is none.
    fn uses_it(lane: &Lane<Object>) -> bool {
        let Some(mut object) = lane.enter().or_else(|| lane.enter_patiently().ok()) else { return false };
        assert!(!object.taken.load(Ordering::SeqCst), "used after it was taken");
        // Lost if another thread is in.
        let uses = std::hint::black_box(object.uses);
        object.uses = uses + 1;
        true
    }

    #[test]
    fn threads_that_use_it_at_once_take_turns() {
        const THREADS: u64 = 4;
        const EACH: u64 = 50_000;
        for locked in [false, true] {
            let lane = Lane::<Object>::new();
            if locked {
                put_in_lock(&lane, object());
            } else {
                lane.put(object());
            }
            let together = Barrier::new(THREADS as usize);
            std::thread::scope(|scope| {
                for _ in 0..THREADS {
                    scope.spawn(|| {
                        together.wait();
                        (0..EACH).for_each(|_| assert!(uses_it(&lane)));
                    });
                }
            });
            assert_eq!(lane.take().unwrap().uses, THREADS * EACH);
        }
    }

    /// The same without the lock that a lane becomes: each round a new object, so that it is taken over again and again.
    #[test]
    fn nothing_is_lost_while_it_is_taken_over() {
        const THREADS: u64 = 3;
        const ROUNDS: u64 = 2_000;
        const EACH: u64 = 40;
        let lane = Lane::<Object>::new();
        let (begin, end) = (Barrier::new(THREADS as usize + 1), Barrier::new(THREADS as usize + 1));
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    for _ in 0..ROUNDS {
                        begin.wait();
                        (0..EACH).for_each(|_| assert!(uses_it(&lane)));
                        end.wait();
                    }
                });
            }
            for round in 0..ROUNDS {
                assert!(lane.put(object()).is_none());
                begin.wait();
                end.wait();
                assert_eq!(lane.take().unwrap().uses, THREADS * EACH, "round {round}");
            }
        });
    }

    #[test]
    fn nothing_is_used_after_it_was_taken() {
        takes_and_uses(&Lane::new(), false);
    }

    #[test]
    fn nothing_is_used_after_it_was_taken_where_lanes_are_locks() {
        takes_and_uses(&Lane::new(), true);
    }

    /// One thread uses the object all the time, another takes it away and puts a new one in: what was taken is never used.
    fn takes_and_uses(lane: &Lane<Object>, locked: bool) {
        const ROUNDS: u64 = 20_000;
        lane.put(object());
        let (mut entered, done) = (0, AtomicU64::new(0));
        let mut uses = 0;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 0..ROUNDS {
                    let old = lane.take().expect("only this thread takes");
                    old.taken.store(true, Ordering::SeqCst);
                    uses += old.uses;
                    if locked {
                        put_in_lock(lane, object());
                    } else {
                        lane.put(object());
                    }
                    done.store(round + 1, Ordering::Release);
                }
            });
            while done.load(Ordering::Acquire) < ROUNDS || entered == 0 {
                entered += u64::from(uses_it(lane));
            }
        });
        uses += lane.take().unwrap().uses;
        assert_eq!(uses, entered, "a use went to an object that was gone");
    }
}
