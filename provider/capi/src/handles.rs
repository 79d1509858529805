//! Handle slots: from the handle that C holds to the object.
//!
//! A handle is the address of one of the first words of a [`HandleSlot`]. All these words hold the
//! provider table, because libdat2 reads the table there without calling the provider. Which word
//! the address names is the slot's generation, so a handle of a freed object differs from one of
//! the slot's present object. Slots are never given back to the allocator. A slot whose object was
//! freed answers INVALID_HANDLE and is used again only after [`QUARANTINE`] other objects were
//! freed. A handle from C is first looked up among the slots and never dereferenced before that, so
//! any number that C passes is safe.
//!
//! After a fork all handles of the parent are stale in the child (`fork.rs` of the crate doorbell).
//! If no fork handler has run, a free or close in the child only forgets the object, because the
//! resources of the kernel and the device belong to the parent.
//!
//! A call that uses an object read-locks its slot, so different threads can use one object at once.
//! A call that changes or takes away an object write-locks the slot. No call waits for other
//! threads under these locks: waits clone the EVD or CNO first. A call that may refuse to free an
//! object decides that under the lock. So no other thread sees a stale handle if the free is
//! refused.
//!
//! Calls that programs make often take no lock of the slot, or a [`BiasedLock`]:
//!
//! | call | enters by |
//! |---|---|
//! | a plain dequeue | [`Handle::queue_of_evd`]: a [`Door`] to the lock of the EVD |
//! | a fast Send, RDMA Write or RDMA Read | [`Handle::requests_of_ep`]: a door to the lock of the EP's requests |
//! | a fast receive of an EP without an SRQ | [`Handle::receives_of_ep`]: a door to the lock of the EP's receives |
//! | a fast post to an SRQ; a dequeue without a door | [`Handle::hot_fast`]: the biased lock of the slot, if this thread owns it |
//! | the same after that | [`Handle::hot`], which waits; [`Handle::srq`] |

use super::code::Code;
use super::handle::Handle;
use super::held::{self, Held};
use super::objects::{Object, Stored};
use super::raw::{open_door_of_evd, open_door_of_receives, open_door_of_requests};
use super::table::Table;
use biased_lock::{BiasedLock, Guard, LockError, is_u32};
use provider::inside::ByNumber;
use provider::inside::sync::{
    Door, DoorGuard, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard, rank,
};
use provider::inside::table;
use provider::inside::{EvdInner, Queue};
use provider::inside::{QueuePair, Receives, Requests};
use provider::{ReturnType, Srq, Subtype};
use std::collections::{TryReserveError, VecDeque};
use std::marker::PhantomData;
use std::mem::offset_of;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, PoisonError};

/// The number of other objects that are freed before a slot is used again.
const QUARANTINE: usize = 1 << 16;

/// Slots in static memory, which take no physical memory before they are used.
const FIRST_CHUNK: usize = 1 << 15;
/// Later chunk `k` has `FIRST_CHUNK << k` slots.
const LATER_CHUNKS: usize = 15;

/// The number of words to which a handle may point. Each word stands for a generation.
const GENERATIONS: usize = 4;
const WORD: usize = size_of::<usize>();
const SLOT_SIZE: usize = size_of::<HandleSlot>();
const _: () = assert!(SLOT_SIZE.is_power_of_two() && align_of::<HandleSlot>() == SLOT_SIZE);

/// Data that begins with a page of memory, so that the first slots are in one.
#[repr(align(4096))]
struct Pages<T>(T);

/// The memory to which a handle points. It holds one object or none.
#[repr(C, align(128))]
pub(super) struct HandleSlot {
    /// The provider table, for libdat2.
    provider: [AtomicPtr<Table>; GENERATIONS],
    /// The low half of the address in a handle of the present generation; 0 before the first
    /// generation.
    present: AtomicU32,
    /// [`FORKS`] when the object was created.
    forks: AtomicU32,
    /// Leads the owner of the lock of an EVD to its queue.
    evd: Door<{ rank::QUEUE }, Queue>,
    /// Leads the owner of the lock of an EP's requests to them.
    ep: Door<{ rank::REQUESTS }, Requests>,
    /// Leads the owner of the lock of an EP's receives to them. Closed for an EP on an SRQ.
    receives: Door<{ rank::RECEIVES }, Receives>,
    /// The part of the object that posts and dequeues use.
    hot: BiasedLock<Hot>,
    /// The consumer's context (`dat_set_consumer_context`).
    pub(super) context: AtomicU64,
    /// The handle of the object's IA.
    ia: AtomicUsize,
    object: RwLock<{ rank::HANDLE }, Option<Box<Object>>>,
}

static FIRST: Pages<[HandleSlot; FIRST_CHUNK]> = Pages([const { HandleSlot::new() }; FIRST_CHUNK]);
static LATER: [OnceLock<Box<[HandleSlot]>>; LATER_CHUNKS] = [const { OnceLock::new() }; LATER_CHUNKS];
/// The number of forks that led from the process that loaded this library to this one, as far as
/// their handlers ran.
static FORKS: AtomicU32 = AtomicU32::new(0);
static FREE: Mutex<{ rank::TABLE }, Free> = Mutex::new(Free { used: 0, dead: VecDeque::new() });
/// The handles by the numbers that events carry.
static BY_ID: OnceLock<Mutex<{ rank::TABLE }, ById>> = OnceLock::new();

#[derive(Default)]
struct ById {
    handles: ByNumber<u64, Handle>,
    /// Insertions that are under way and for which memory is reserved.
    expected: usize,
}

struct Free {
    /// The number of slots that were ever used.
    used: usize,
    dead: VecDeque<&'static HandleSlot>,
}

impl HandleSlot {
    /// All bytes are zero, so that unused slots take no room in the file or in memory.
    const fn new() -> Self {
        Self {
            provider: [const { AtomicPtr::new(std::ptr::null_mut()) }; GENERATIONS],
            present: AtomicU32::new(0),
            forks: AtomicU32::new(0),
            evd: Door::new(),
            ep: Door::new(),
            receives: Door::new(),
            hot: BiasedLock::new(),
            context: AtomicU64::new(0),
            ia: AtomicUsize::new(0),
            object: RwLock::new(None),
        }
    }

    /// This slot, if the handle is of the present generation. The handle points to this slot.
    #[inline(always)]
    fn of(&self, handle: Handle) -> Option<&Self> {
        is_u32::<{ offset_of!(Self, present) }>(&self.present, handle.0 as u32).then_some(self)
    }

    fn handle(&self) -> Handle {
        Handle(std::ptr::from_ref(self) as usize + self.present.load(Ordering::Relaxed) as usize % SLOT_SIZE)
    }

    /// Makes handles point to this offset, in bytes, from the start of the slot.
    fn set_generation(&self, offset: usize) {
        self.present.store((std::ptr::from_ref(self) as usize + offset) as u32, Ordering::Relaxed);
    }

    fn next_generation(&self) {
        let offset = self.present.load(Ordering::Relaxed) as usize % SLOT_SIZE;
        self.set_generation((offset + WORD) % (GENERATIONS * WORD));
    }
}

/// The slot of this chunk that contains the address.
fn at(chunk: &'static [HandleSlot], address: usize) -> Option<&'static HandleSlot> {
    chunk.get(address.wrapping_sub(chunk.as_ptr() as usize) / SLOT_SIZE)
}

/// The part of an object that posts and dequeues use, under the biased lock of the slot.
#[expect(clippy::large_enum_variant, reason = "always boxed; another box would cost posts a load")]
pub(super) enum Hot {
    Srq(Srq),
    Evd(Arc<EvdInner>),
    Ep(Arc<QueuePair>),
}

impl Drop for Hot {
    /// Closes the doors of the slot.
    fn drop(&mut self) {
        match self {
            Self::Evd(evd) => evd.queue.close_door(),
            Self::Ep(pair) => {
                pair.requests.close_door();
                pair.receives.close_door();
            }
            Self::Srq(_) => {}
        }
    }
}

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

fn free() -> MutexGuard<'static, Free> {
    FREE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// All slots that were ever used.
fn slots() -> impl Iterator<Item = &'static HandleSlot> {
    let used = free().used;
    FIRST.0.iter().chain(LATER.iter().map_while(OnceLock::get).flatten()).take(used)
}

fn by_id() -> MutexGuard<'static, ById> {
    BY_ID.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner)
}

type Place = Option<Box<Object>>;

impl HandleSlot {
    #[inline]
    fn read(&'static self) -> Result<(RwLockReadGuard<'static, Place>, Held), Code> {
        held::read(&self.object, self.ia.load(Ordering::Relaxed))
    }

    fn write(&'static self) -> Result<(RwLockWriteGuard<'static, Place>, Held), Code> {
        held::write(&self.object, self.ia.load(Ordering::Relaxed))
    }

    /// Whether the object belongs to the process from which this one was forked.
    fn is_inherited(&self) -> bool {
        self.forks.load(Ordering::Relaxed) != FORKS.load(Ordering::Relaxed)
    }

    /// Forgets an inherited object: nothing is freed.
    fn forget<T>(&self, object: T) {
        std::mem::forget(object);
        self.hot.forget();
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

/// Locks the tables for a fork.
pub(super) fn hold_shared_locks() -> Vec<Box<dyn std::any::Any>> {
    vec![Box::new(FREE.hold()), Box::new(BY_ID.get_or_init(Mutex::default).hold())]
}

/// In a forked child: makes all handles of the parent stale. Their objects are not touched, and
/// their slots are not used again.
pub(super) fn forget_inherited() {
    FORKS.fetch_add(1, Ordering::Relaxed);
    for slot in slots() {
        slot.next_generation();
    }
    by_id().handles.clear();
}

/// Makes the handles of this slot, whose object had this number, stale and puts it into quarantine.
/// The slot of an inherited object is not used again: its doors may still be open.
fn retire(slot: &'static HandleSlot, number: Option<u64>, inherited: bool) {
    if let Some(number) = number {
        by_id().handles.remove(&number);
    }
    slot.next_generation();
    if !inherited {
        free().dead.push_back(slot);
    }
}

fn no_memory() -> Code {
    tracing::error!("no memory for another handle: free objects that are not needed, or raise the limit");
    Code::new(ReturnType::InsufficientResources, Subtype::ResourceMemory)
}

fn fresh() -> Result<&'static HandleSlot, TryReserveError> {
    let mut free = free();
    if free.dead.len() > QUARANTINE
        && let Some(slot) = free.dead.pop_front()
    {
        return Ok(slot);
    }
    // Room for every slot, so that freeing an object needs no memory.
    let all = free.used + 1;
    let dead = free.dead.len();
    free.dead.try_reserve(all - dead)?;
    let mut index = free.used;
    if let Some(slot) = FIRST.0.get(index) {
        free.used += 1;
        return Ok(slot);
    }
    index -= FIRST_CHUNK;
    for (k, chunk) in LATER.iter().enumerate() {
        let len = FIRST_CHUNK << k;
        if index < len {
            if chunk.get().is_none() {
                let slots = table(len, |_| HandleSlot::new())?;
                // No other thread creates this chunk, because that takes the lock of `FREE`.
                let _ = chunk.set(slots);
            }
            let Some(slot) = chunk.get().and_then(|chunk| chunk.get(index)) else { break };
            free.used += 1;
            return Ok(slot);
        }
        index -= len;
    }
    panic!("a billion handles are in use");
}
