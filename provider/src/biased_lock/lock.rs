//! The protocol of the biased lock. The parent module has its description and its proof.

#![expect(unsafe_code, reason = "an object that a protocol of atomics protects")]

// tests/biased_lock_model.rs includes this file with a platform of its own.
use super::platform::{
    AtomicPtr, AtomicU32, AtomicUsize, MAX_BIASES, has_heavy_fence, heavy_fence, keep_biases, light_fence,
    reuse_bias, thread_id, yield_now,
};
use std::ops::{Deref, DerefMut};
use std::sync::atomic::Ordering;

/// One thread's ownership of one lock. Biases are never freed, and a bias belongs to one thread for
/// ever.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct Bias {
    /// The owner's thread ID; 0 if the lock has no owner, which makes it a spin lock.
    thread: usize,
    /// The owner's thread ID while the fast path is open; otherwise 0. The fast path is closed
    /// while the owner uses the object through [`BiasedLock::lock`].
    open: AtomicUsize,
    /// 1 while the owner uses the object. Only the owner stores here once the bias is on a lock.
    busy: AtomicUsize,
    /// The number of predecessors, and the last of them.
    nth: AtomicU32,
    predecessor: AtomicPtr<Bias>,
}

impl Bias {
    /// A bias for this thread that is marked busy from the start.
    fn new(thread: usize, predecessor: Option<&'static Bias>) -> &'static Self {
        let unused = reuse_bias(thread).and_then(|bias| bias.downcast_ref());
        let bias: &'static Self = unused.unwrap_or_else(|| {
            let (open, busy) = (AtomicUsize::new(0), AtomicUsize::new(0));
            let (nth, predecessor) = (AtomicU32::new(0), AtomicPtr::new(std::ptr::null_mut()));
            Box::leak(Box::new(Self { thread, open, busy, nth, predecessor }))
        });
        let nth = predecessor.map_or(0, |bias| bias.nth.load(Ordering::Relaxed) + 1);
        let predecessor = predecessor.map_or(std::ptr::null_mut(), Bias::address);
        bias.open.store(0, Ordering::Relaxed);
        bias.busy.store((thread != 0).into(), Ordering::Relaxed);
        bias.nth.store(nth, Ordering::Relaxed);
        bias.predecessor.store(predecessor, Ordering::Relaxed);
        bias
    }

    fn address(&self) -> *mut Self {
        std::ptr::from_ref(self).cast_mut()
    }

    /// This bias and its predecessors.
    fn chain(&'static self) -> impl Iterator<Item = &'static Self> {
        std::iter::successors(Some(self), |bias| deref(bias.predecessor.load(Ordering::Relaxed)))
            .take(MAX_BIASES as usize + 2)
    }

    /// Returns when the owner of this bias, which the lock no longer has, is out and stays out.
    fn wait_until_left(&self) {
        heavy_fence();
        while self.busy.load(Ordering::Acquire) != 0 {
            yield_now();
        }
    }

    /// Lets the owner in and closes its fast path meanwhile.
    fn enter<T>(&self, object: *mut T) -> Guard<'_, T> {
        self.open.store(0, Ordering::Relaxed);
        self.busy.store(1, Ordering::Relaxed);
        Guard { busy: &self.busy, object, reopen: Some(self) }
    }
}

#[inline(always)]
fn deref(bias: *mut Bias) -> Option<&'static Bias> {
    // SAFETY: NULL or the address of a bias. Biases are never freed, and only their atomics change.
    unsafe { bias.as_ref() }
}

/// A biased lock around an object, or around nothing.
#[derive(Debug)]
pub(crate) struct BiasedLock<T> {
    /// NULL before the first owner.
    bias: AtomicPtr<Bias>,
    object: AtomicPtr<T>,
    /// The thread that changes `bias` or `object`, or that uses the object of a spin lock; 0 for
    /// none.
    slow_holder: AtomicUsize,
}

/// Exclusive access to the object until it is dropped.
#[derive(Debug)]
pub(crate) struct Guard<'a, T> {
    /// Set to 0 when the guard is dropped.
    busy: &'a AtomicUsize,
    object: *mut T,
    /// The bias whose fast path this guard keeps closed.
    reopen: Option<&'a Bias>,
}

/// Why [`BiasedLock::lock`] gives no access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LockError {
    /// There is no object.
    Empty,
    /// This thread holds a guard already.
    Reentrant,
}

impl<T: Send> BiasedLock<T> {
    /// A lock in this state; the initial one is NULL, NULL and 0.
    pub(super) const fn from_parts(
        bias: AtomicPtr<Bias>,
        object: AtomicPtr<T>,
        slow_holder: AtomicUsize,
    ) -> Self {
        Self { bias, object, slow_holder }
    }

    /// Puts an object in and returns the previous one.
    pub(crate) fn put(&self, object: Box<T>) -> Option<Box<T>> {
        let previous = self.take();
        self.object.store(Box::into_raw(object), Ordering::SeqCst);
        previous
    }

    /// Waits until no other thread uses the object and takes it out. Returns `None`, and leaves the
    /// object where it is, if this thread holds a guard.
    pub(crate) fn take(&self) -> Option<Box<T>> {
        let _slow = self.lock_slow(thread_id()).ok()?;
        if let Some(last) = deref(self.bias.load(Ordering::Relaxed)) {
            // Without an owner nobody enters. A thread still inside is found through the
            // predecessor chain.
            let ownerless = if last.thread == 0 { last } else { Bias::new(0, Some(last)) };
            self.bias.store(ownerless.address(), Ordering::SeqCst);
            last.wait_until_left();
            self.bias.store(std::ptr::null_mut(), Ordering::SeqCst);
            keep_biases(ownerless.chain().map(|bias| (bias.thread, bias as _)));
        }
        let object = self.object.swap(std::ptr::null_mut(), Ordering::SeqCst);
        // SAFETY: `put` made the pointer from a box. The swap gave it to this call alone. No owner
        // uses the object by the proof in the parent module; no thread uses it as a spin lock's
        // object, because this call holds `slow_holder`.
        (!object.is_null()).then(|| unsafe { Box::from_raw(object) })
    }

    /// Empties the lock without dropping the object or waiting. For a forked child, where the
    /// users of the object are threads of the parent.
    pub(crate) fn forget(&self) {
        self.bias.store(std::ptr::null_mut(), Ordering::SeqCst);
        self.object.store(std::ptr::null_mut(), Ordering::SeqCst);
        self.slow_holder.store(0, Ordering::SeqCst);
    }

    /// The object, if this thread is the owner and the fast path is open. The caller makes no call
    /// that may lead back to this lock while it holds the guard.
    #[inline(always)]
    pub(crate) fn try_lock_fast(&self) -> Option<Guard<'_, T>> {
        self.try_lock_fast_after(|| ())
    }

    /// [`BiasedLock::try_lock_fast`]; tests run `between` after the first look at the bias and
    /// before the store of `busy`.
    #[inline(always)]
    pub(super) fn try_lock_fast_after(&self, between: impl FnOnce()) -> Option<Guard<'_, T>> {
        let bias = self.bias.load(Ordering::Acquire);
        let own = deref(bias)?;
        if own.open.load(Ordering::Relaxed) != thread_id() {
            return None;
        }
        between();
        own.busy.store(1, Ordering::Relaxed);
        light_fence();
        let still_owner = self.bias.load(Ordering::SeqCst) == bias;
        // A lock with an owner has an object.
        let guard = Guard { busy: &own.busy, object: self.object.load(Ordering::Relaxed), reopen: None };
        still_owner.then_some(guard)
    }

    /// Waits until no other thread uses the object, and makes this thread the owner.
    pub(crate) fn lock(&self) -> Result<Guard<'_, T>, LockError> {
        let thread = thread_id();
        let slow = self.lock_slow(thread)?;
        let object = self.object.load(Ordering::Relaxed);
        if object.is_null() {
            return Err(LockError::Empty);
        }
        let last = deref(self.bias.load(Ordering::Relaxed));
        match last {
            Some(last) if last.thread == 0 => return Ok(slow.keep(object)),
            Some(last) if last.thread == thread => return Ok(last.enter(object)),
            _ => {}
        }
        let nth = last.map_or(0, |last| last.nth.load(Ordering::Relaxed) + 1);
        let becomes_spin_lock = nth >= MAX_BIASES || !has_heavy_fence();
        // The new bias is busy from the start: whoever replaces it waits for this thread, which
        // waits for the last owner.
        let next = Bias::new(if becomes_spin_lock { 0 } else { thread }, last);
        self.bias.store(next.address(), Ordering::SeqCst);
        if let Some(last) = last {
            last.wait_until_left();
        }
        Ok(if becomes_spin_lock { slow.keep(object) } else { next.enter(object) })
    }

    /// The right to change the bias or the object.
    fn lock_slow(&self, thread: usize) -> Result<SlowGuard<'_>, LockError> {
        loop {
            let taken = self.slow_holder.compare_exchange(0, thread, Ordering::Acquire, Ordering::Relaxed);
            // The thread that holds it may be waiting for this one to leave the object.
            if taken == Err(thread) || self.is_used_by(thread) {
                if taken.is_ok() {
                    self.slow_holder.store(0, Ordering::Release);
                }
                return Err(LockError::Reentrant);
            }
            if taken.is_ok() {
                return Ok(SlowGuard { slow_holder: &self.slow_holder });
            }
            yield_now();
        }
    }

    fn is_used_by(&self, thread: usize) -> bool {
        let used = |bias: &Bias| bias.thread == thread && bias.busy.load(Ordering::Relaxed) != 0;
        deref(self.bias.load(Ordering::Acquire)).is_some_and(|last| last.chain().any(used))
    }

    /// Whether the lock is a spin lock.
    #[cfg(test)]
    pub(super) fn is_spin_lock(&self) -> bool {
        deref(self.bias.load(Ordering::Acquire)).is_some_and(|bias| bias.thread == 0)
    }

    /// Puts an object in as if there were no heavy fence.
    #[cfg(test)]
    pub(super) fn put_as_spin_lock(&self, object: Box<T>) {
        assert!(self.take().is_none());
        let _slow = self.lock_slow(thread_id()).unwrap();
        self.bias.store(Bias::new(0, None).address(), Ordering::SeqCst);
        self.object.store(Box::into_raw(object), Ordering::SeqCst);
    }
}

/// Holds `slow_holder` until it is dropped.
struct SlowGuard<'a> {
    slow_holder: &'a AtomicUsize,
}

impl<'a> SlowGuard<'a> {
    /// Holds it until the guard of the object is dropped.
    fn keep<T>(self, object: *mut T) -> Guard<'a, T> {
        let busy = self.slow_holder;
        std::mem::forget(self);
        Guard { busy, object, reopen: None }
    }
}

impl Drop for SlowGuard<'_> {
    fn drop(&mut self) {
        self.slow_holder.store(0, Ordering::Release);
    }
}

impl<T> Drop for Guard<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        self.busy.store(0, Ordering::Release);
        if let Some(bias) = self.reopen {
            bias.open.store(bias.thread, Ordering::Relaxed);
        }
    }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: as in `deref_mut`.
        unsafe { &*self.object }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: not NULL; `take` waits while `busy` is not 0. Exclusive: no other thread is
        // inside, by the proof in the parent module or because this guard holds `slow_holder`; a
        // second call of this thread finds `busy` set and gets no guard.
        unsafe { &mut *self.object }
    }
}

impl<T> Drop for BiasedLock<T> {
    fn drop(&mut self) {
        let object = self.object.swap(std::ptr::null_mut(), Ordering::Relaxed);
        if !object.is_null() {
            // SAFETY: `put` made the pointer from a box, and nobody else has this lock any more.
            drop(unsafe { Box::from_raw(object) });
        }
    }
}
