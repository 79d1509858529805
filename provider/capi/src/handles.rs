//! From the handle that C holds to the object, and the lock of the handle.
//!
//! [`slots`](super::slots) has the memory of the slots.
//!
//! A call that uses an object read-locks its slot, so different threads can use one object at once.
//! A call that changes or takes away an object write-locks the slot. No call waits for other
//! threads under these locks: waits clone the EVD or CNO first. A call that may refuse to free an
//! object decides that under the lock. So no other thread sees a stale handle if the free is
//! refused.
//!
//! Calls that programs make often take no lock of the slot, or a [`BiasedLock`](biased_lock::BiasedLock):
//!
//! | call | enters by |
//! |---|---|
//! | a plain dequeue | [`Handle::queue_of_evd`]: a [`Door`](provider::inside::sync::Door) to the lock of the EVD |
//! | a fast Send, RDMA Write or RDMA Read | [`Handle::requests_of_ep`]: a door to the lock of the EP's requests |
//! | a fast receive of an EP without an SRQ | [`Handle::receives_of_ep`]: a door to the lock of the EP's receives |
//! | a fast post to an SRQ; a dequeue without a door | [`Handle::hot_fast`]: the biased lock of the slot, if this thread owns it |
//! | the same after that | [`Handle::hot`], which waits; [`Handle::srq`] |

use super::code::Code;
use super::handle::Handle;
use super::held::Held;
use super::objects::{Object, Stored};
use super::raw::{open_door_of_evd, open_door_of_receives, open_door_of_requests};
use super::slots::{FIRST, FORKS, HandleSlot, Hot, LATER, at, by_id, fresh, no_memory, retire, slots};
use super::table::Table;
use biased_lock::{Guard, LockError};
use provider::inside::sync::{DoorGuard, RwLockReadGuard, RwLockWriteGuard};
use provider::inside::{Queue, Receives, Requests};
use provider::{ReturnType, Srq, Subtype};
use std::marker::PhantomData;
use std::mem::offset_of;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::Ordering;
use std::sync::{OnceLock, PoisonError};

/// An SRQ that this call uses.
pub(super) struct SrqGuard(Guard<'static, Hot>);

impl Deref for SrqGuard {
    type Target = Srq;

    fn deref(&self) -> &Srq {
        match &*self.0 {
            Hot::Srq(srq) => srq,
            _ => unreachable!("the kind was checked, and the lock is held since"),
        }
    }
}

impl DerefMut for SrqGuard {
    fn deref_mut(&mut self) -> &mut Srq {
        match &mut *self.0 {
            Hot::Srq(srq) => srq,
            _ => unreachable!("the kind was checked, and the lock is held since"),
        }
    }
}

/// An object that the call uses, read-locked.
pub(super) struct Ref<K> {
    guard: RwLockReadGuard<'static, Option<Box<Object>>>,
    _held: Held,
    kind: PhantomData<K>,
}

/// An object that the call changes, write-locked.
pub(super) struct RefMut<K> {
    guard: RwLockWriteGuard<'static, Option<Box<Object>>>,
    _held: Held,
    kind: PhantomData<K>,
}

impl<K: Stored> Deref for Ref<K> {
    type Target = K;

    fn deref(&self) -> &K {
        self.guard.as_deref().and_then(K::of).expect("the kind was checked, and the lock is held since")
    }
}

impl<K: Stored> Deref for RefMut<K> {
    type Target = K;

    fn deref(&self) -> &K {
        self.guard.as_deref().and_then(K::of).expect("the kind was checked, and the lock is held since")
    }
}

impl<K: Stored> DerefMut for RefMut<K> {
    fn deref_mut(&mut self) -> &mut K {
        self.guard
            .as_deref_mut()
            .and_then(K::of_mut)
            .expect("the kind was checked, and the lock is held since")
    }
}

impl Handle {
    /// The slot of this handle, if the handle is of the slot's present generation.
    #[inline(always)]
    pub(super) fn slot(self) -> Option<&'static HandleSlot> {
        at(&FIRST.0, self.0).or_else(|| self.later_slot())?.of(self)
    }

    #[cold]
    fn later_slot(self) -> Option<&'static HandleSlot> {
        LATER.iter().map_while(OnceLock::get).find_map(|chunk| at(chunk, self.0))
    }

    /// The queue of this EVD, on the fast path: the slot is in the first chunk, and this thread
    /// owns the lock of the queue. Under the guard, a call runs no code of the consumer.
    #[inline(always)]
    pub(super) fn queue_of_evd(self) -> Option<DoorGuard<Queue>> {
        at(&FIRST.0, self.0)?.of(self)?.evd.try_lock_fast_in::<{ offset_of!(HandleSlot, evd) }>()
    }

    /// As [`Handle::queue_of_evd`], the requests of this EP.
    #[inline(always)]
    pub(super) fn requests_of_ep(self) -> Option<DoorGuard<Requests>> {
        at(&FIRST.0, self.0)?.of(self)?.ep.try_lock_fast_in::<{ offset_of!(HandleSlot, ep) }>()
    }

    /// As [`Handle::queue_of_evd`], the receives of this EP, if it has no SRQ.
    #[inline(always)]
    pub(super) fn receives_of_ep(self) -> Option<DoorGuard<Receives>> {
        at(&FIRST.0, self.0)?.of(self)?.receives.try_lock_fast_in::<{ offset_of!(HandleSlot, receives) }>()
    }

    /// The part of this object that posts and dequeues use, on the fast path: the slot is in the
    /// first chunk, and this thread owns the biased lock of the slot. Under the guard, a call runs
    /// no code of the consumer (an agent of a CNO), which may use the handle again.
    #[inline(always)]
    pub(super) fn hot_fast(self) -> Option<Guard<'static, Hot>> {
        at(&FIRST.0, self.0)?.of(self)?.hot.try_lock_fast_in::<{ offset_of!(HandleSlot, hot) }>()
    }

    /// The same after waiting for other threads that use it. As for [`Handle::hot_fast`], no code
    /// of the consumer runs under the guard, except in calls of [`Handle::srq`] that harvest: these
    /// may run an agent, which gets INVALID_STATE for calls on the same SRQ.
    pub(super) fn hot(self) -> Result<Guard<'static, Hot>, LockError> {
        let guard = self.slot().ok_or(LockError::Empty)?.hot.lock()?;
        // The object may have been freed, and its slot may have another one, while this thread
        // waited.
        self.slot().map(|_| guard).ok_or(LockError::Empty)
    }

    /// The SRQ of this handle, after waiting for other threads that use it. INVALID_HANDLE if there
    /// is none; INVALID_STATE if this thread uses the SRQ already.
    pub(super) fn srq(self) -> Result<SrqGuard, Code> {
        match self.hot() {
            Ok(guard) if matches!(*guard, Hot::Srq(_)) => Ok(SrqGuard(guard)),
            Ok(_) | Err(LockError::Empty) => Err(Code::handle(Subtype::InvalidHandleSrq)),
            Err(LockError::Reentrant) => Err(Code::new(ReturnType::InvalidState, Subtype::None)),
        }
    }

    /// Stores the part that posts and dequeues use in the object's slot, in place of the part that
    /// is there.
    pub(super) fn put_hot(self, hot: Hot) {
        let Some(slot) = self.slot() else { return };
        let (evd, pair) = match &hot {
            Hot::Evd(evd) => (Some(evd.clone()), None),
            Hot::Ep(pair) => (None, Some(pair.clone())),
            Hot::Srq(_) => (None, None),
        };
        // Closes the doors of the part that was there before the new part opens them.
        drop(slot.hot.put(Box::new(hot)));
        // A dequeue by the door writes no trace.
        if let Some(evd) = evd
            && !tracing::enabled!(tracing::Level::TRACE)
        {
            open_door_of_evd(&evd, &slot.evd);
        }
        if let Some(pair) = pair {
            open_door_of_requests(&pair, &slot.ep);
            if pair.srq.is_none() {
                open_door_of_receives(&pair, &slot.receives);
            }
        }
    }

    /// Waits until no call uses the SRQ and takes it out of its slot.
    pub(super) fn take_srq(self) -> Option<Box<Hot>> {
        self.slot()?.hot.take()
    }

    /// The object, or INVALID_HANDLE with the subtype of its type.
    #[inline]
    pub(super) fn get<K: Stored>(self) -> Result<Ref<K>, Code> {
        self.get_as(K::SUBTYPE)
    }

    /// The object, or INVALID_HANDLE with this subtype.
    #[inline]
    pub(super) fn get_as<K: Stored>(self, sub: Subtype) -> Result<Ref<K>, Code> {
        let (guard, _held) = self.slot().ok_or_else(|| Code::handle(sub))?.read()?;
        if guard.as_deref().and_then(K::of).is_none() {
            return Err(Code::handle(sub));
        }
        Ok(Ref { guard, _held, kind: PhantomData })
    }

    /// The object for a change.
    pub(super) fn get_mut<K: Stored>(self) -> Result<RefMut<K>, Code> {
        let (guard, _held) = self.slot().ok_or_else(|| Code::handle(K::SUBTYPE))?.write()?;
        if guard.as_deref().and_then(K::of).is_none() {
            return Err(Code::handle(K::SUBTYPE));
        }
        Ok(RefMut { guard, _held, kind: PhantomData })
    }

    /// The kind of a live object, as `DAT_HANDLE_TYPE`.
    pub(super) fn kind(self) -> Option<u32> {
        self.slot().and_then(|slot| slot.read().ok()?.0.as_deref().map(Object::kind))
    }

    /// Takes the object out and frees it with `end`. If `end` refuses, the object stays, and other
    /// threads have not seen a stale handle. For objects that are freed without waiting for other
    /// threads; other objects use [`Handle::take`].
    pub(super) fn end<K: Stored>(self, end: impl FnOnce(K) -> Result<(), (K, Code)>) -> Result<(), Code> {
        let invalid = || Code::handle(K::SUBTYPE);
        let slot = self.slot().ok_or_else(invalid)?;
        let (mut guard, _held) = slot.write()?;
        let number = guard.as_deref().and_then(Object::number);
        let object = match guard.take().map(|object| K::into(*object)) {
            Some(Ok(object)) => object,
            Some(Err(other)) => {
                *guard = Some(Box::new(other));
                return Err(invalid());
            }
            None => return Err(invalid()),
        };
        let inherited = slot.is_inherited();
        let outcome = if inherited {
            slot.forget(object);
            Ok(())
        } else {
            end(object)
        };
        if let Err((object, code)) = outcome {
            *guard = Some(Box::new(object.wrap()));
            return Err(code);
        }
        drop(guard);
        drop(slot.hot.take());
        retire(slot, number, inherited);
        Ok(())
    }

    /// Takes the object out if `may` allows it. The caller then frees the object without the lock
    /// and must not fail: the free may wait for the progress thread, which may be running an agent
    /// function that uses this handle. An inherited object is forgotten: `None`.
    pub(super) fn take<K: Stored>(self, may: impl FnOnce(&K) -> Result<(), Code>) -> Result<Option<K>, Code> {
        let invalid = || Code::handle(K::SUBTYPE);
        let slot = self.slot().ok_or_else(invalid)?;
        let (mut guard, _held) = slot.write()?;
        let object = guard.as_deref().and_then(K::of).ok_or_else(invalid)?;
        let inherited = slot.is_inherited();
        if !inherited {
            may(object)?;
        }
        let number = guard.as_deref().and_then(Object::number);
        let object = guard.take().and_then(|object| K::into(*object).ok()).ok_or_else(invalid)?;
        drop(guard);
        if !inherited {
            drop(slot.hot.take());
        }
        retire(slot, number, inherited);
        if inherited {
            slot.forget(object);
            return Ok(None);
        }
        Ok(Some(object))
    }

    /// Whether the object belongs to the process from which this one was forked.
    pub(super) fn is_inherited(self) -> bool {
        self.slot().is_some_and(HandleSlot::is_inherited)
    }

    /// The handle of the object's IA.
    pub(super) fn ia(self) -> Self {
        Self(self.slot().map_or(0, |slot| slot.ia.load(Ordering::Relaxed)))
    }

    /// A new handle for an object of the same IA.
    ///
    /// # Errors
    /// INSUFFICIENT_RESOURCES without memory; the object is dropped.
    pub(super) fn sibling(self, object: impl Stored) -> Result<Self, Code> {
        let table = self.slot().map_or(std::ptr::null_mut(), |slot| slot.provider[0].load(Ordering::Relaxed));
        let ia = self.ia();
        Self::new(table, ia, object)
    }

    /// A new handle for an object that events name by this number, which is its
    /// [`Object::number`].
    ///
    /// # Errors
    /// As [`Handle::sibling`].
    pub(super) fn sibling_known_as(self, object: impl Stored, id: u64) -> Result<Self, Code> {
        let mut known = by_id();
        let expected = known.expected + 1;
        known.handles.try_reserve(expected).map_err(|_| no_memory())?;
        known.expected = expected;
        drop(known);
        let sibling = self.sibling(object);
        let mut known = by_id();
        known.expected -= 1;
        let handle = sibling?;
        known.handles.insert(id, handle);
        Ok(handle)
    }

    /// A new handle. `ia` is NULL for an IA, which belongs to itself.
    ///
    /// # Errors
    /// As [`Handle::sibling`].
    pub(super) fn new(table: *mut Table, ia: Self, object: impl Stored) -> Result<Self, Code> {
        let slot = fresh().map_err(|_| no_memory())?;
        if slot.present.load(Ordering::Relaxed) == 0 {
            slot.set_generation(0);
        }
        let handle = slot.handle();
        for word in &slot.provider {
            word.store(table, Ordering::Relaxed);
        }
        slot.context.store(0, Ordering::Relaxed);
        slot.forks.store(FORKS.load(Ordering::Relaxed), Ordering::Relaxed);
        slot.ia.store(ia.given().unwrap_or(handle).0, Ordering::Relaxed);
        *slot.object.write_unshared().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(object.wrap()));
        Ok(handle)
    }

    /// The handle of the object with this number, or NULL.
    pub(super) fn of_id(id: u64) -> Self {
        by_id().handles.get(&id).copied().unwrap_or(Self::NULL)
    }

    /// Retires all slots of this IA except its own and drops their objects.
    pub(super) fn retire_all_of_ia(self) {
        for slot in slots() {
            if slot.ia.load(Ordering::Relaxed) == self.0 && slot.handle() != self {
                // The object is dropped without the lock.
                let object = slot.write().ok().and_then(|(mut guard, _held)| guard.take());
                let Some(object) = object else { continue };
                let number = object.number();
                let inherited = slot.is_inherited();
                if inherited {
                    slot.forget(object);
                } else {
                    drop(object);
                    drop(slot.hot.take());
                }
                retire(slot, number, inherited);
            }
        }
    }
}
