//! The protocol. The crate's documentation has its description and its proof.

#![expect(unsafe_code, reason = "a value that a protocol of atomics protects")]

// tests/model.rs includes this file with a platform of its own.
use super::platform::{
    AtomicPtr, AtomicU32, AtomicUsize, FIRST_STREAK, LONGEST_STREAK, Spin, has_heavy_fence, heavy_fence, is,
    is_still, light_fence, park, parked, parking_fence, pause, release_fence, thread_id, unpark_one,
    visits_only,
};
use std::alloc::Layout;
use std::mem::offset_of;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::Ordering;

/// One thread's ownership of one lock, or, without a thread, the record of a lock's shared mode.
/// Not freed before its lock, and it belongs to one thread for ever.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct Bias {
    /// The owner's thread ID; 0 for the record of the shared mode; [`SPARE`] before the first use.
    thread: AtomicUsize,
    /// The owner's thread ID; 0 while the owner is inside. Always 0 without an owner.
    open: AtomicUsize,
    /// The biases of one lock form a ring.
    next: AtomicPtr<Bias>,
    /// The address of the lock.
    lock: AtomicUsize,
    /// For the record of the shared mode, under `slow`: the thread that entered last, the number of
    /// its entries in a row, and the number that makes it the owner.
    last: AtomicUsize,
    streak: AtomicU32,
    needed: AtomicU32,
    /// The value of a mutex with a [`Door`](super::door::Door).
    value: AtomicPtr<()>,
}

/// No thread's ID: those are even.
const SPARE: usize = 1;

/// Gives an unused bias of this thread, if there is one and the lock may use it.
pub(super) type Reuse = fn(usize) -> Option<&'static Bias>;

/// For a lock that frees its biases.
pub(super) fn no_reuse(_: usize) -> Option<&'static Bias> {
    None
}

impl Bias {
    /// A new bias of this thread, in no lock; `None` without memory. Freed as a box.
    pub(super) fn allocate(thread: usize) -> Option<&'static Self> {
        // SAFETY: the size is not zero. The memory is new, and has room and alignment for the
        // value.
        unsafe {
            let bias = std::alloc::alloc(Layout::new::<Self>()).cast::<Self>();
            if bias.is_null() {
                return None;
            }
            bias.write(Self {
                thread: AtomicUsize::new(thread),
                open: AtomicUsize::new(0),
                next: AtomicPtr::new(std::ptr::null_mut()),
                lock: AtomicUsize::new(0),
                last: AtomicUsize::new(0),
                streak: AtomicU32::new(0),
                needed: AtomicU32::new(0),
                value: AtomicPtr::new(std::ptr::null_mut()),
            });
            Some(&*bias)
        }
    }

    /// The owner's thread ID, or 0.
    #[inline(always)]
    pub(super) fn thread(&self) -> usize {
        self.thread.load(Ordering::Relaxed)
    }

    /// The value of the mutex, if the bias was found in a door.
    #[inline(always)]
    pub(super) fn value(&self) -> *mut () {
        self.value.load(Ordering::Relaxed)
    }

    pub(super) fn address(&self) -> *mut Self {
        std::ptr::from_ref(self).cast_mut()
    }

    /// This bias and the others of its ring. Ends early if the ring changes meanwhile.
    pub(super) fn ring(&'static self) -> impl Iterator<Item = &'static Self> {
        std::iter::successors(Some(self), |bias| {
            deref(bias.next.load(Ordering::Acquire)).filter(|next| !std::ptr::eq(*next, self))
        })
        .take(1 << 16)
    }

    /// Counts an entry in shared mode. True if the thread has entered so often in a row that it
    /// becomes the owner.
    #[inline(always)]
    fn makes_owner(&self, thread: usize) -> bool {
        let before = if self.last.load(Ordering::Relaxed) == thread {
            self.streak.load(Ordering::Relaxed)
        } else {
            self.last.store(thread, Ordering::Relaxed);
            0
        };
        self.streak.store(before.saturating_add(1), Ordering::Relaxed);
        before + 1 >= self.needed.load(Ordering::Relaxed) && Self::may_own(before + 1)
    }

    /// Whether this thread, after so many entries in a row, may become the owner.
    #[cold]
    #[inline(never)]
    fn may_own(streak: u32) -> bool {
        has_heavy_fence() && (streak >= LONGEST_STREAK || !visits_only())
    }

    /// Begins the shared mode after a revocation.
    fn begin_sharing(&self) {
        let longer = self.needed.load(Ordering::Relaxed).saturating_mul(2);
        self.needed.store(longer.clamp(FIRST_STREAK, LONGEST_STREAK), Ordering::Relaxed);
        self.last.store(0, Ordering::Relaxed);
    }

    /// Returns when the owner of this bias, which the lock no longer has, is out and stays out.
    fn wait_until_left(&self) {
        heavy_fence();
        let mut spin = Spin::new();
        let mut rounds = 0;
        while self.open.load(Ordering::Acquire) == 0 {
            if !spin.spin() {
                pause(rounds);
                rounds += 1;
            }
        }
    }
}

#[inline(always)]
pub(super) fn deref(bias: *mut Bias) -> Option<&'static Bias> {
    // SAFETY: NULL or the address of a bias. A bias is not freed before its lock, whose methods are
    // the only callers, and only its atomics change.
    unsafe { bias.as_ref() }
}

/// A lock without a value.
#[derive(Debug)]
pub(super) struct Raw {
    /// The bias in force: an owner's, or the record of the shared mode. NULL before the first
    /// entry.
    bias: AtomicPtr<Bias>,
    /// The ordinary lock: the ID of the thread that holds it, or 0.
    slow: AtomicUsize,
}

/// This thread is inside already.
#[derive(Debug)]
pub(super) struct Reentrant;

/// A word outside of the lock where the owner, and nobody else, finds its bias as well.
#[derive(Clone, Copy)]
pub(super) struct SecondWord {
    pub(super) word: &'static AtomicPtr<Bias>,
    /// The value that the lock protects.
    pub(super) value: *mut (),
}

impl SecondWord {
    /// Puts the owner's bias there. Under `slow`.
    fn show(self, own: &Bias) {
        own.value.store(self.value, Ordering::Relaxed);
        self.word.store(own.address(), Ordering::SeqCst);
    }

    /// Removes the owner's bias, if it is there. Under `slow`.
    pub(super) fn hide(self) {
        self.word.store(std::ptr::null_mut(), Ordering::SeqCst);
    }
}

/// Enters the lock whose bias is in this word, if this thread is the owner and outside. Tests run
/// `between` after the first look at the word and before the store of `open`. `OFFSET` as for
/// [`is`].
#[inline(always)]
pub(super) fn try_enter_by<const OFFSET: usize>(
    word: &AtomicPtr<Bias>,
    between: impl FnOnce(),
) -> Option<Owner> {
    let bias = word.load(Ordering::Acquire);
    let own = deref(bias)?;
    let thread = thread_id();
    if !is::<{ offset_of!(Bias, open) }>(&own.open, thread) {
        return None;
    }
    between();
    own.open.store(0, Ordering::Relaxed);
    light_fence();
    let entered = Owner(own);
    is_still::<OFFSET, _>(word, bias).then_some(entered)
}

impl Raw {
    /// A lock in this state; the initial one is NULL and 0.
    pub(super) const fn from_parts(bias: AtomicPtr<Bias>, slow: AtomicUsize) -> Self {
        Self { bias, slow }
    }

    /// Enters if this thread is the owner and outside; see [`try_enter_by`].
    #[inline(always)]
    pub(super) fn try_enter<const OFFSET: usize>(&self, between: impl FnOnce()) -> Option<Entered<'_>> {
        try_enter_by::<OFFSET>(&self.bias, between).map(Entered::Owner)
    }

    /// Enters if the lock is in shared mode and no thread is inside or enters. `second` is called
    /// under `slow`.
    #[inline(always)]
    pub(super) fn try_enter_shared(
        &self,
        reuse: Reuse,
        second: impl FnOnce() -> Option<SecondWord>,
    ) -> Option<Entered<'_>> {
        // Acquire, because the record may be new.
        let shared = deref(self.bias.load(Ordering::Acquire)).filter(|bias| bias.thread() == 0)?;
        let thread = thread_id();
        self.slow.compare_exchange(0, thread, Ordering::Acquire, Ordering::Relaxed).ok()?;
        let slow = SlowGuard(self);
        // Under `slow` the record of the shared mode is that of the first look, unless another
        // thread has changed the mode meanwhile.
        if self.bias.load(Ordering::Relaxed) != shared.address() {
            return None;
        }
        if shared.makes_owner(thread) {
            return Some(self.enter_rest(slow, reuse, second()));
        }
        Some(Entered::Shared(slow))
    }

    /// Waits until no other thread is inside, and enters.
    #[inline(always)]
    pub(super) fn enter<'a>(
        &'a self,
        slow: SlowGuard<'a>,
        reuse: Reuse,
        second: Option<SecondWord>,
    ) -> Entered<'a> {
        match deref(self.bias.load(Ordering::Relaxed)) {
            Some(shared) if shared.thread() == 0 && !shared.makes_owner(thread_id()) => Entered::Shared(slow),
            _ => self.enter_rest(slow, reuse, second),
        }
    }

    /// Enters a lock that is not shared, or whose owner this thread becomes.
    #[inline(never)]
    fn enter_rest<'a>(
        &'a self,
        slow: SlowGuard<'a>,
        reuse: Reuse,
        second: Option<SecondWord>,
    ) -> Entered<'a> {
        let thread = thread_id();
        match deref(self.bias.load(Ordering::Relaxed)) {
            Some(own) if own.thread() == thread => {
                own.open.store(0, Ordering::Relaxed);
                return Entered::Owner(Owner(own));
            }
            Some(shared) if shared.thread() == 0 => {}
            Some(_) => {
                self.revoke(reuse, second);
                return Entered::Shared(slow);
            }
            None if has_heavy_fence() && !visits_only() => {}
            None => {
                if let Some(shared) = self.bias_of(0, reuse) {
                    self.bias.store(shared.address(), Ordering::SeqCst);
                }
                return Entered::Shared(slow);
            }
        }
        // This thread becomes the owner. It is inside before others see its bias.
        let Some(own) = self.bias_of(thread, reuse) else { return Entered::Shared(slow) };
        own.open.store(0, Ordering::Relaxed);
        self.bias.store(own.address(), Ordering::SeqCst);
        if let Some(second) = second {
            second.show(own);
        }
        Entered::Owner(Owner(own))
    }

    /// The bias of this thread in this lock's ring; a new one if there is none; `None` without
    /// memory. Under `slow`.
    fn bias_of(&self, thread: usize, reuse: Reuse) -> Option<&'static Bias> {
        let current = deref(self.bias.load(Ordering::Relaxed));
        let of = |thread| current.and_then(|bias| bias.ring().find(|bias| bias.thread() == thread));
        if let Some(bias) = of(thread) {
            return Some(bias);
        }
        if let Some(unused) = reuse(thread) {
            self.link(unused, current);
            return Some(unused);
        }
        if let Some(spare) = of(SPARE) {
            spare.thread.store(thread, Ordering::Relaxed);
            return Some(spare);
        }
        let bias = Bias::allocate(thread)?;
        self.link(bias, current);
        Some(bias)
    }

    /// Makes the biases for the first owners, of which `owners` can follow each other, as far as
    /// there is memory. Then their entries allocate nothing. For a new lock, which no other thread
    /// uses.
    pub(super) fn reserve(&self, owners: usize, reuse: Reuse) {
        let Some(shared) = self.bias_of(0, reuse) else { return };
        self.bias.store(shared.address(), Ordering::Release);
        let spare = || reuse(SPARE).or_else(|| Bias::allocate(SPARE));
        (0..owners).map_while(|_| spare()).for_each(|spare| self.link(spare, Some(shared)));
    }

    /// Puts a new bias into the ring behind `current`.
    fn link(&self, bias: &'static Bias, current: Option<&'static Bias>) {
        bias.open.store(0, Ordering::Relaxed);
        bias.last.store(0, Ordering::Relaxed);
        bias.needed.store(0, Ordering::Relaxed);
        bias.lock.store(std::ptr::from_ref(self) as usize, Ordering::Relaxed);
        let after = current.map_or(bias.address(), |current| current.next.load(Ordering::Relaxed));
        bias.next.store(after, Ordering::Relaxed);
        if let Some(current) = current {
            current.next.store(bias.address(), Ordering::Release);
        }
    }

    /// Takes the bias from its owner and waits until the owner is outside. Under `slow`, and not
    /// from inside.
    fn revoke(&self, reuse: Reuse, second: Option<SecondWord>) {
        let Some(last) = deref(self.bias.load(Ordering::Relaxed)) else { return };
        if last.thread() != 0 {
            if let Some(shared) = self.bias_of(0, reuse) {
                shared.begin_sharing();
                self.bias.store(shared.address(), Ordering::SeqCst);
            } else {
                // Without memory, the lock begins anew, and its biases are leaked.
                self.bias.store(std::ptr::null_mut(), Ordering::SeqCst);
            }
            if let Some(second) = second {
                second.hide();
            }
            if last.thread() != thread_id() {
                last.wait_until_left();
            }
        }
    }

    /// From now on, the owner finds its bias in this word as well. Under `slow`.
    pub(super) fn show_in(&self, second: SecondWord) {
        if let Some(own) = deref(self.bias.load(Ordering::Relaxed)).filter(|bias| bias.thread() != 0) {
            second.show(own);
        }
    }

    /// From now on, the owner does not find its bias in this word. Waits until no other thread is
    /// inside that has found it there. Under `slow`, and not from inside.
    pub(super) fn hide_in(&self, reuse: Reuse, second: SecondWord) {
        match deref(self.bias.load(Ordering::Relaxed)) {
            Some(own) if own.thread() == thread_id() => second.hide(),
            _ => self.revoke(reuse, Some(second)),
        }
    }

    /// Waits until no thread is inside, and keeps all threads out. `unused` gets the biases of the
    /// lock, which then begins anew.
    pub(super) fn exclude(
        &self,
        unused: impl FnOnce(&mut dyn Iterator<Item = &'static Bias>),
    ) -> Result<SlowGuard<'_>, Reentrant> {
        let slow = self.hold()?;
        if let Some(last) = deref(self.bias.load(Ordering::Relaxed)) {
            self.bias.store(std::ptr::null_mut(), Ordering::SeqCst);
            if last.thread() != 0 && last.thread() != thread_id() {
                last.wait_until_left();
            }
            unused(&mut last.ring());
        }
        Ok(slow)
    }

    /// Makes the lock new, whoever is inside.
    pub(super) fn forget(&self) {
        self.bias.store(std::ptr::null_mut(), Ordering::SeqCst);
        self.slow.store(0, Ordering::SeqCst);
    }

    /// The biases of the lock.
    pub(super) fn biases(&self) -> impl Iterator<Item = &'static Bias> {
        deref(self.bias.load(Ordering::Relaxed)).into_iter().flat_map(Bias::ring)
    }

    /// Takes the biases out of the lock, which nobody else uses, and calls `free` with each.
    pub(super) fn empty(&mut self, mut free: impl FnMut(*mut Bias)) {
        let first = self.bias.swap(std::ptr::null_mut(), Ordering::Relaxed);
        let mut at = first;
        while let Some(bias) = deref(at) {
            let next = bias.next.load(Ordering::Relaxed);
            free(at);
            // The ring ends at its first bias, which is freed already.
            at = if next == first { std::ptr::null_mut() } else { next };
        }
    }

    /// Takes the ordinary lock.
    pub(super) fn hold(&self) -> Result<SlowGuard<'_>, Reentrant> {
        let thread = thread_id();
        let free = self.slow.compare_exchange(0, thread, Ordering::Acquire, Ordering::Relaxed).is_ok();
        if !free {
            self.hold_contended(thread)?;
        }
        let guard = SlowGuard(self);
        let own = deref(self.bias.load(Ordering::Relaxed)).filter(|bias| bias.thread() == thread);
        match own {
            Some(own) if own.open.load(Ordering::Relaxed) == 0 => Err(Reentrant),
            _ => Ok(guard),
        }
    }

    #[cold]
    fn hold_contended(&self, thread: usize) -> Result<(), Reentrant> {
        // The thread that holds it may be waiting for this one to leave.
        if self.is_used_by(thread) {
            return Err(Reentrant);
        }
        let mut spin = Spin::new();
        // From the first sleep until this thread has the lock.
        let mut counted = None;
        loop {
            if self.slow.load(Ordering::Relaxed) == 0 {
                let taken = self.slow.compare_exchange(0, thread, Ordering::Acquire, Ordering::Relaxed);
                if taken.is_ok() {
                    return Ok(());
                }
            }
            if spin.spin() {
                continue;
            }
            counted.get_or_insert_with(|| Parked::new(self.slow_address()));
            park(&self.slow);
            spin.reset();
        }
    }

    fn slow_address(&self) -> usize {
        std::ptr::from_ref(&self.slow) as usize
    }

    /// Whether this thread is inside.
    fn is_used_by(&self, thread: usize) -> bool {
        let lock = std::ptr::from_ref(self) as usize;
        let used = |bias: &Bias| {
            bias.thread() == thread
                && bias.lock.load(Ordering::Relaxed) == lock
                && bias.open.load(Ordering::Relaxed) == 0
        };
        self.slow.load(Ordering::Relaxed) == thread
            || deref(self.bias.load(Ordering::Acquire)).is_some_and(|bias| bias.ring().any(used))
    }

    /// Whether a thread is parked, or about to be, for this lock or one that shares its count.
    #[cfg(test)]
    pub(super) fn has_parked(&self) -> bool {
        parked(self.slow_address()).load(Ordering::Relaxed) != 0
    }

    /// Whether the lock is in shared mode.
    #[cfg(test)]
    pub(super) fn is_shared(&self) -> bool {
        deref(self.bias.load(Ordering::Acquire)).is_some_and(|bias| bias.thread() == 0)
    }
}

/// The ordinary lock, held until this is dropped.
#[derive(Debug)]
pub(super) struct SlowGuard<'a>(&'a Raw);

impl Drop for SlowGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.slow.store(0, Ordering::Release);
        release_fence();
        let key = self.0.slow_address();
        if parked(key).load(Ordering::Relaxed) != 0 {
            unpark_one(key);
        }
    }
}

/// A thread that waits for a lock and is parked, or about to be. While this lives, a thread that
/// releases the lock wakes one that is parked.
struct Parked(&'static AtomicU32);

impl Parked {
    /// `key` is the address of the word of [`park`].
    fn new(key: usize) -> Self {
        let count = parked(key);
        count.fetch_add(1, Ordering::Relaxed);
        parking_fence();
        Self(count)
    }
}

impl Drop for Parked {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The owner's right to use the value, until this is dropped.
#[derive(Debug)]
pub(super) struct Owner(&'static Bias);

impl Drop for Owner {
    #[inline(always)]
    fn drop(&mut self) {
        self.0.open.store(self.0.thread(), Ordering::Release);
    }
}

/// The right to use the value, until this is dropped.
#[derive(Debug)]
pub(super) enum Entered<'a> {
    Owner(#[expect(dead_code, reason = "for its drop")] Owner),
    Shared(#[expect(dead_code, reason = "for its drop")] SlowGuard<'a>),
}

/// Exclusive access to the value of a mutex for its owner, which came through a
/// [`Door`](super::Door), until the guard is dropped. Stays on its thread.
#[derive(Debug)]
pub struct OwnerGuard<T> {
    /// The value of the mutex.
    value: *mut T,
    _owner: Owner,
}

impl<T> OwnerGuard<T> {
    /// `owner` was found in a door of a mutex with such a value.
    #[inline(always)]
    pub(super) fn new(owner: Owner) -> Self {
        Self { value: owner.0.value().cast(), _owner: owner }
    }
}

impl<T> Deref for OwnerGuard<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: as in `deref_mut`.
        unsafe { &*self.value }
    }
}

impl<T> DerefMut for OwnerGuard<T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the value of the mutex, which is not dropped and not moved while its owner is
        // inside: `BiasedMutex::open_door` demands that, and the drop of a mutex closes its door.
        // Exclusive as in `Guard::deref_mut`.
        unsafe { &mut *self.value }
    }
}

/// Exclusive access to the value until the guard is dropped. Stays on its thread.
#[derive(Debug)]
pub struct Guard<'a, T> {
    value: *mut T,
    _entered: Entered<'a>,
}

impl<'a, T> Guard<'a, T> {
    /// `value` is valid, and no other thread uses it, while `entered` lives.
    #[inline(always)]
    pub(super) fn new(value: *mut T, entered: Entered<'a>) -> Self {
        Self { value, _entered: entered }
    }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: as in `deref_mut`.
        unsafe { &*self.value }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: valid while the guard lives, as `Guard::new` requires. Exclusive: no other thread
        // is inside, by the crate's proof, and a second entry of this thread is refused while the
        // owner's `open` is 0 or while this thread holds `slow`.
        unsafe { &mut *self.value }
    }
}
