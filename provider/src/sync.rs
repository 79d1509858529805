//! Locks, and the order in which a thread may take them.
//!
//! Every lock has a rank, a constant of [`rank`] in its type. Ranks are also called levels. A
//! thread takes locks in ascending level: while it holds a lock, it may take only locks of higher
//! levels. Two threads that keep this order cannot wait for each other. Debug builds check the
//! order: taking a lock of the same or a lower level than one that the thread holds panics and
//! names both locks. Release builds check nothing, and the types of this module are then plain
//! locks of the standard library and of [`biased_lock`].
//!
//! Several locks of rank [`rank::HANDLE`] may be held together.
//!
//! The table in ARCHITECTURE.md, section Locks, says for each lock what it guards and which levels
//! are taken while it is held.
//!
//! Locks below this crate are taken after all of these: the locks of `rxe_fallback::CmId`, of
//! libibverbs, of librdmacm and of the allocator. The biased lock of a C
//! handle ([`biased_lock::BiasedLock`]) has no rank.

use std::ops::{Deref, DerefMut};
use std::sync::{LockResult, PoisonError, TryLockError};
use std::time::Duration;

mod order;

use self::order::Held;
pub(crate) use self::order::check_none_held;
#[cfg(debug_assertions)]
pub use self::order::hook;
pub use self::order::rank;

/// A [`std::sync::Mutex`] with a rank.
#[derive(Debug, Default)]
pub struct Mutex<const RANK: u8, T>(std::sync::Mutex<T>);

/// Access to the data of a [`Mutex`].
#[derive(Debug)]
pub struct MutexGuard<'a, T> {
    guard: std::sync::MutexGuard<'a, T>,
    held: Held,
}

impl<const RANK: u8, T> Mutex<RANK, T> {
    /// An unlocked mutex.
    pub const fn new(value: T) -> Self {
        Self(std::sync::Mutex::new(value))
    }

    /// Waits for the lock.
    ///
    /// # Errors
    /// A thread has panicked under the lock.
    #[inline(always)]
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn lock(&self) -> LockResult<MutexGuard<'_, T>> {
        let held = Held::checked(RANK);
        match self.0.lock() {
            Ok(guard) => Ok(MutexGuard { guard, held }),
            Err(poisoned) => Err(PoisonError::new(MutexGuard { guard: poisoned.into_inner(), held })),
        }
    }

    pub(crate) fn get_mut(&mut self) -> LockResult<&mut T> {
        self.0.get_mut()
    }

    /// Takes the lock without a check of the order. For a fork: before it, a thread takes all locks
    /// that the process shares, the outermost first.
    pub fn hold(&self) -> MutexGuard<'_, T> {
        let guard = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        MutexGuard { guard, held: Held::unchecked(RANK) }
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

/// A [`std::sync::Condvar`] for a [`Mutex`] with a rank.
#[derive(Debug, Default)]
pub(crate) struct Condvar(std::sync::Condvar);

impl Condvar {
    pub(crate) const fn new() -> Self {
        Self(std::sync::Condvar::new())
    }

    /// Keeps the rank during the wait: a waiting thread takes no other lock.
    pub(crate) fn wait<'a, T>(&self, lock: MutexGuard<'a, T>) -> LockResult<MutexGuard<'a, T>> {
        let MutexGuard { guard, held } = lock;
        match self.0.wait(guard) {
            Ok(guard) => Ok(MutexGuard { guard, held }),
            Err(poisoned) => Err(PoisonError::new(MutexGuard { guard: poisoned.into_inner(), held })),
        }
    }

    /// Waits as [`Condvar::wait`] does, with a time limit.
    pub(crate) fn wait_timeout<'a, T>(
        &self,
        lock: MutexGuard<'a, T>,
        time: Duration,
    ) -> LockResult<MutexGuard<'a, T>> {
        let MutexGuard { guard, held } = lock;
        match self.0.wait_timeout(guard, time) {
            Ok((guard, _)) => Ok(MutexGuard { guard, held }),
            Err(poisoned) => Err(PoisonError::new(MutexGuard { guard: poisoned.into_inner().0, held })),
        }
    }

    pub(crate) fn notify_one(&self) {
        self.0.notify_one();
    }

    pub(crate) fn notify_all(&self) {
        self.0.notify_all();
    }
}

/// A [`biased_lock::BiasedMutex`] with a rank: its owner locks it without an atomic
/// read-modify-write instruction.
#[derive(Debug)]
pub struct BiasedMutex<const RANK: u8, T>(biased_lock::BiasedMutex<T>);

/// Access to the data of a [`BiasedMutex`].
#[derive(Debug)]
pub struct BiasedMutexGuard<'a, T> {
    guard: biased_lock::Guard<'a, T>,
    _held: Held,
}

impl<const RANK: u8, T> BiasedMutex<RANK, T> {
    /// A mutex that can open a [`Door`]. Locks of the first threads allocate nothing: see
    /// [`biased_lock::BiasedMutex::reserve`].
    #[inline(always)]
    pub(crate) fn new(value: T) -> Self {
        Self(biased_lock::BiasedMutex::with_doors(value))
    }

    /// Closes the door, and waits until no other thread is inside that has entered by it.
    pub fn close_door(&self) {
        self.0.close_door();
    }

    /// Waits for the lock.
    #[inline(always)]
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn lock(&self) -> BiasedMutexGuard<'_, T> {
        let _held = Held::checked(RANK);
        BiasedMutexGuard { guard: self.0.lock(), _held }
    }

    /// The value, if this thread is the owner of the lock and holds no guard. Does not wait.
    #[inline(always)]
    #[cfg_attr(debug_assertions, track_caller)]
    pub(crate) fn try_lock_fast(&self) -> Option<BiasedMutexGuard<'_, T>> {
        self.try_lock_fast_in::<0>()
    }

    /// As [`BiasedMutex::try_lock_fast`]. `OFFSET` as in
    /// [`biased_lock::BiasedMutex::try_lock_fast_in`].
    #[inline(always)]
    #[cfg_attr(debug_assertions, track_caller)]
    pub(crate) fn try_lock_fast_in<const OFFSET: usize>(&self) -> Option<BiasedMutexGuard<'_, T>> {
        let guard = self.0.try_lock_fast_in::<OFFSET>()?;
        Some(BiasedMutexGuard { guard, _held: Held::checked(RANK) })
    }

    pub(crate) fn get_mut(&mut self) -> &mut T {
        self.0.get_mut()
    }

    /// The lock behind the rank, for its door.
    pub fn inner(&self) -> &biased_lock::BiasedMutex<T> {
        &self.0
    }

    /// Takes the lock even if it is held. For a child after a fork, in which no other thread
    /// exists.
    pub(crate) fn lock_anew(&self) -> BiasedMutexGuard<'_, T> {
        crate::process::free_in_child(&self.0);
        BiasedMutexGuard { guard: self.0.lock(), _held: Held::unchecked(RANK) }
    }
}

/// A [`biased_lock::Door`] of a mutex with this rank.
#[derive(Debug)]
pub struct Door<const RANK: u8, T>(biased_lock::Door<T>);

impl<const RANK: u8, T> Door<RANK, T> {
    /// The door behind the rank.
    pub fn inner(&'static self) -> &'static biased_lock::Door<T> {
        &self.0
    }

    /// A door that no mutex has opened. All its bytes are zero.
    #[expect(clippy::new_without_default, reason = "a door is made in place of static memory")]
    pub const fn new() -> Self {
        Self(biased_lock::Door::new())
    }

    /// The value of the mutex, if the door is open, this thread is the owner of the mutex and
    /// holds no guard. Does not wait. `OFFSET` as in [`biased_lock::Door::try_lock_fast_in`].
    #[inline(always)]
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn try_lock_fast_in<const OFFSET: usize>(&'static self) -> Option<DoorGuard<T>> {
        let guard = self.0.try_lock_fast_in::<OFFSET>()?;
        Some(DoorGuard { guard, _held: Held::checked(RANK) })
    }
}

/// Access to the data of a [`BiasedMutex`] by its [`Door`]. Two pointers, so that functions pass it
/// on in registers.
#[derive(Debug)]
pub struct DoorGuard<T> {
    guard: biased_lock::OwnerGuard<T>,
    _held: Held,
}

impl<T> Deref for DoorGuard<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T> DerefMut for DoorGuard<T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

impl<T> Deref for BiasedMutexGuard<'_, T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T> DerefMut for BiasedMutexGuard<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

/// A [`std::sync::RwLock`] with a rank.
#[derive(Debug, Default)]
pub struct RwLock<const RANK: u8, T>(std::sync::RwLock<T>);

/// Read access to the data of an [`RwLock`].
#[derive(Debug)]
pub struct RwLockReadGuard<'a, T> {
    guard: std::sync::RwLockReadGuard<'a, T>,
    _held: Held,
}

/// Write access to the data of an [`RwLock`].
#[derive(Debug)]
pub struct RwLockWriteGuard<'a, T> {
    guard: std::sync::RwLockWriteGuard<'a, T>,
    _held: Held,
}

impl<const RANK: u8, T> RwLock<RANK, T> {
    /// An unlocked lock.
    pub const fn new(value: T) -> Self {
        Self(std::sync::RwLock::new(value))
    }

    /// Waits for read access.
    ///
    /// # Errors
    /// A thread has panicked under the lock.
    #[inline(always)]
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn read(&self) -> LockResult<RwLockReadGuard<'_, T>> {
        let _held = Held::checked(RANK);
        match self.0.read() {
            Ok(guard) => Ok(RwLockReadGuard { guard, _held }),
            Err(poisoned) => Err(PoisonError::new(RwLockReadGuard { guard: poisoned.into_inner(), _held })),
        }
    }

    /// `None` if the lock cannot be had at once.
    pub fn try_read(&self) -> Option<RwLockReadGuard<'_, T>> {
        let _held = Held::checked(RANK);
        match self.0.try_read() {
            Ok(guard) => Some(RwLockReadGuard { guard, _held }),
            Err(TryLockError::Poisoned(poisoned)) => {
                Some(RwLockReadGuard { guard: poisoned.into_inner(), _held })
            }
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Waits for write access.
    ///
    /// # Errors
    /// A thread has panicked under the lock.
    #[inline(always)]
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn write(&self) -> LockResult<RwLockWriteGuard<'_, T>> {
        self.write_as(Held::checked(RANK))
    }

    /// Takes the lock of an object that only this thread uses. Other threads hold such a lock only
    /// briefly, and take no other lock meanwhile, so the order is not checked.
    ///
    /// # Errors
    /// A thread has panicked under the lock.
    pub fn write_unshared(&self) -> LockResult<RwLockWriteGuard<'_, T>> {
        self.write_as(Held::unchecked(RANK))
    }

    #[inline(always)]
    fn write_as(&self, _held: Held) -> LockResult<RwLockWriteGuard<'_, T>> {
        match self.0.write() {
            Ok(guard) => Ok(RwLockWriteGuard { guard, _held }),
            Err(poisoned) => Err(PoisonError::new(RwLockWriteGuard { guard: poisoned.into_inner(), _held })),
        }
    }
}

impl<T> Deref for RwLockReadGuard<'_, T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T> Deref for RwLockWriteGuard<'_, T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T> DerefMut for RwLockWriteGuard<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Outer = Mutex<{ rank::OPEN }, u8>;
    type Inner = Mutex<{ rank::CONTROL }, u8>;
    type Table = RwLock<{ rank::TABLE }, u8>;
    type Handle = RwLock<{ rank::HANDLE }, u8>;

    /// Whether `step` passes the check of the order.
    fn allowed(step: impl FnOnce() + std::panic::UnwindSafe) -> bool {
        std::panic::catch_unwind(step).is_ok()
    }

    #[test]
    #[cfg(debug_assertions)]
    fn locks_are_taken_from_the_outermost_in() {
        let (outer, inner, table) = (Outer::default(), Inner::default(), Table::default());
        assert!(allowed(|| drop((outer.lock(), inner.lock(), table.read()))));
        assert!(!allowed(|| drop((inner.lock(), outer.lock()))));
        assert!(!allowed(|| drop((table.write(), inner.lock()))));
        assert!(!allowed(|| drop((outer.lock(), table.read(), inner.lock()))));
        // Locks may be released in any order.
        let (first, second) = (outer.lock(), inner.lock());
        drop(first);
        assert!(!allowed(|| drop(Outer::default().lock())));
        drop(second);
        assert!(allowed(|| drop(Outer::default().lock())));
    }

    #[test]
    #[cfg(debug_assertions)]
    fn code_of_the_program_runs_under_no_lock_but_a_handles() {
        let (inner, table, handle) = (Inner::default(), Table::default(), Handle::default());
        let queue = BiasedMutex::<{ rank::QUEUE }, u8>::new(0);
        let _handle = handle.read();
        assert!(allowed(check_none_held));
        let held = inner.lock();
        assert!(!allowed(check_none_held));
        drop(held);
        let held = queue.lock();
        assert!(!allowed(check_none_held));
        drop(held);
        let held = table.write();
        assert!(!allowed(check_none_held));
        drop(held);
        assert!(allowed(check_none_held));
    }

    #[test]
    #[cfg(debug_assertions)]
    fn only_handle_locks_of_one_rank_are_held_together() {
        let (one, other) = (Inner::default(), Inner::default());
        assert!(!allowed(|| drop((one.lock(), other.lock()))));
        assert!(!allowed(|| drop((Table::default().read(), Table::default().read()))));
        let (one, other, third) = (Handle::default(), Handle::default(), Handle::default());
        let held = (one.read(), other.read());
        drop(held.0);
        assert!(allowed(|| drop(third.write())));
        let inner = Inner::default();
        let control = inner.lock();
        assert!(!allowed(|| drop(third.read())));
        assert!(allowed(|| drop(third.write_unshared())));
        drop(control);
        drop(held.1);
    }

    #[test]
    #[cfg(not(debug_assertions))]
    fn ranks_take_no_room() {
        use std::mem::size_of;
        assert_eq!(size_of::<MutexGuard<'_, u8>>(), size_of::<std::sync::MutexGuard<'_, u8>>());
        assert_eq!(size_of::<BiasedMutexGuard<'_, u8>>(), size_of::<biased_lock::Guard<'_, u8>>());
        assert_eq!(size_of::<RwLockReadGuard<'_, u8>>(), size_of::<std::sync::RwLockReadGuard<'_, u8>>());
        assert_eq!(size_of::<Outer>(), size_of::<std::sync::Mutex<u8>>());
        let (outer, inner) = (Outer::default(), Inner::default());
        assert!(allowed(|| drop((inner.lock(), outer.lock()))));
    }
}
