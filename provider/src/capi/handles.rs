//! Handles: what C holds instead of objects.
//!
//! A handle is an address in a [`HandleSlot`]: of one of its first words, which all hold the provider table, so that libdat2
//! finds that without asking. Which of them is the slot's generation, so a handle of a former object is told from one of the
//! present. HandleSlots are never given back to the allocator; one whose object is gone answers INVALID_HANDLE and is used
//! again only after [`QUARANTINE`] others have died. A handle that comes in is looked for among the slots before anything
//! of it is touched, so any number that C passes is safe.
//!
//! After a fork the child has copies of its parent's handles, all of them stale ([`crate::fork`]). Where no fork handler has
//! run, what the child ends or closes through them ends for itself alone: the objects
//! are forgotten, since what the kernel and the device hold for them is the parent's.
//!
//! Calls read-lock a slot, so different threads use one object at once; what takes an object away, or changes it, write-locks.
//! Nothing that waits for other threads happens under these locks: waits clone their EVD or CNO out first. What may refuse to go
//! says so under the lock, so that no other thread finds a handle stale that is not going to be. Posting to an SRQ
//! takes a [`BiasedLock`] only.

use super::code::Code;
use super::handle::Handle;
use super::objects::{Object, Stored};
use super::table::Table;
use crate::biased_lock::{BiasedLock, Guard, LockError};
use crate::memory::table;
use crate::sync::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard, rank};
use crate::{ReturnType, Srq, Subtype};
use std::collections::{HashMap, TryReserveError, VecDeque};
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{OnceLock, PoisonError};

/// As many slots die before one is used again.
const QUARANTINE: usize = 1 << 16;

/// HandleSlots that are always there, without memory behind them before they are used.
const FIRST_CHUNK: usize = 1 << 15;
/// Later chunk `k` has as many, shifted by `k`.
const LATER_CHUNKS: usize = 15;

/// Words that a handle may point to, each a generation.
const GENERATIONS: usize = 6;
const WORD: usize = size_of::<usize>();
const SLOT_SIZE: usize = size_of::<HandleSlot>();
const _: () = assert!(SLOT_SIZE.is_power_of_two() && align_of::<HandleSlot>() == SLOT_SIZE);

/// What a handle points into.
#[repr(C, align(128))]
pub(super) struct HandleSlot {
    /// Read by libdat2.
    provider: [AtomicPtr<Table>; GENERATIONS],
    /// Where handles of the present generation point: the low half of that address. 0 before there is one.
    present: AtomicU32,
    /// The process that made the object.
    process: AtomicU32,
    /// The SRQ, where this is an SRQ's.
    srq: BiasedLock<Srq>,
    /// The consumer's number (`dat_set_consumer_context`).
    pub(super) context: AtomicU64,
    /// The IA it belongs to.
    ia: AtomicUsize,
    /// The core's number for it, 0 for none.
    id: AtomicU64,
    object: RwLock<{ rank::HANDLE }, Option<Box<Object>>>,
}

static FIRST: [HandleSlot; FIRST_CHUNK] = [const { HandleSlot::new() }; FIRST_CHUNK];
static LATER: [OnceLock<Box<[HandleSlot]>>; LATER_CHUNKS] = [const { OnceLock::new() }; LATER_CHUNKS];
static FREE: Mutex<{ rank::TABLE }, Free> = Mutex::new(Free { used: 0, dead: VecDeque::new() });
/// EVDs and service points by the number that the core names them by.
static BY_ID: OnceLock<Mutex<{ rank::TABLE }, ById>> = OnceLock::new();

#[derive(Default)]
struct ById {
    handles: HashMap<u64, Handle>,
    /// How many more there is memory for in any case.
    expected: usize,
}

struct Free {
    /// HandleSlots that were ever used.
    used: usize,
    dead: VecDeque<&'static HandleSlot>,
}

impl HandleSlot {
    /// All zeroes, so that slots that were never used take no room in a file or in memory.
    const fn new() -> Self {
        Self {
            provider: [const { AtomicPtr::new(std::ptr::null_mut()) }; GENERATIONS],
            present: AtomicU32::new(0),
            process: AtomicU32::new(0),
            srq: BiasedLock::new(),
            context: AtomicU64::new(0),
            ia: AtomicUsize::new(0),
            id: AtomicU64::new(0),
            object: RwLock::new(None),
        }
    }

    /// This slot, if the handle, which leads here, is of the present generation.
    #[inline(always)]
    fn of(&self, handle: Handle) -> Option<&Self> {
        (handle.0 as u32 == self.present.load(Ordering::Relaxed)).then_some(self)
    }

    fn handle(&self) -> Handle {
        Handle(std::ptr::from_ref(self) as usize + self.present.load(Ordering::Relaxed) as usize % SLOT_SIZE)
    }

    /// From now on handles point there, in bytes from the start of the slot.
    fn set_generation(&self, offset: usize) {
        self.present.store((std::ptr::from_ref(self) as usize + offset) as u32, Ordering::Relaxed);
    }

    fn next_generation(&self) {
        let offset = self.present.load(Ordering::Relaxed) as usize % SLOT_SIZE;
        self.set_generation((offset + WORD) % (GENERATIONS * WORD));
    }
}

/// The slot at this place of a chunk's memory.
fn at(chunk: &'static [HandleSlot], address: usize) -> Option<&'static HandleSlot> {
    chunk.get(address.wrapping_sub(chunk.as_ptr() as usize) / SLOT_SIZE)
}

/// An object in use by this call.
pub(super) struct Ref<K> {
    guard: RwLockReadGuard<'static, Option<Box<Object>>>,
    kind: PhantomData<K>,
}

/// An object that this call changes.
pub(super) struct RefMut<K> {
    guard: RwLockWriteGuard<'static, Option<Box<Object>>>,
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

fn by_id() -> MutexGuard<'static, ById> {
    BY_ID.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner)
}

fn read(slot: &HandleSlot) -> RwLockReadGuard<'_, Option<Box<Object>>> {
    slot.object.read().unwrap_or_else(PoisonError::into_inner)
}

fn write(slot: &HandleSlot) -> RwLockWriteGuard<'_, Option<Box<Object>>> {
    slot.object.write().unwrap_or_else(PoisonError::into_inner)
}

impl HandleSlot {
    /// Whether the object is a copy of one of the process that this one was forked from.
    fn is_inherited(&self) -> bool {
        self.process.load(Ordering::Relaxed) != std::process::id()
    }

    /// Lets go of an inherited object without ending anything.
    fn forget<T>(&self, object: T) {
        std::mem::forget(object);
        self.srq.forget();
    }
}

impl Handle {
    /// The slot that this is a handle of: its own address, and its generation.
    #[inline(always)]
    pub(super) fn slot(self) -> Option<&'static HandleSlot> {
        at(&FIRST, self.0).or_else(|| self.later_slot())?.of(self)
    }

    #[cold]
    fn later_slot(self) -> Option<&'static HandleSlot> {
        LATER.iter().map_while(OnceLock::get).find_map(|chunk| at(chunk, self.0))
    }

    /// The SRQ behind this handle, if it is one of the first and this thread used it last: the quick way, without a lock.
    #[inline(always)]
    pub(super) fn srq_fast(self) -> Option<Guard<'static, Srq>> {
        at(&FIRST, self.0)?.of(self)?.srq.try_lock_fast()
    }

    /// The SRQ behind this handle, once no other thread uses it; or INVALID_HANDLE, or INVALID_STATE where this thread does already,
    /// further up its stack.
    pub(super) fn srq(self) -> Result<Guard<'static, Srq>, Code> {
        let why = |error| match error {
            LockError::Empty => Code::handle(Subtype::InvalidHandleSrq),
            LockError::Reentrant => Code::new(ReturnType::InvalidState, Subtype::None),
        };
        self.slot().ok_or(LockError::Empty).and_then(|slot| slot.srq.lock()).map_err(why)
    }

    /// Puts the SRQ behind its handle.
    pub(super) fn put_srq(self, srq: Srq) {
        if let Some(slot) = self.slot() {
            slot.srq.put(Box::new(srq));
        }
    }

    /// Takes the SRQ away, once no call uses it any more.
    pub(super) fn take_srq(self) -> Option<Box<Srq>> {
        self.slot()?.srq.take()
    }

    /// The object, if it is of this kind, one of the first, and not about to be changed.
    #[inline(always)]
    pub(super) fn get_fast<K: Stored>(self) -> Option<Ref<K>> {
        let guard = at(&FIRST, self.0)?.of(self)?.object.try_read().ok()?;
        guard.as_deref().and_then(K::of)?;
        Some(Ref { guard, kind: PhantomData })
    }

    /// The object, or INVALID_HANDLE with the subtype of its kind.
    #[inline]
    pub(super) fn get<K: Stored>(self) -> Result<Ref<K>, Code> {
        self.get_as(K::SUBTYPE)
    }

    /// The object, or INVALID_HANDLE with this subtype.
    #[inline]
    pub(super) fn get_as<K: Stored>(self, sub: Subtype) -> Result<Ref<K>, Code> {
        let guard = self.slot().map(read).ok_or_else(|| Code::handle(sub))?;
        if guard.as_deref().and_then(K::of).is_none() {
            return Err(Code::handle(sub));
        }
        Ok(Ref { guard, kind: PhantomData })
    }

    /// The object, to change.
    pub(super) fn get_mut<K: Stored>(self) -> Result<RefMut<K>, Code> {
        let guard = self.slot().map(write).ok_or_else(|| Code::handle(K::SUBTYPE))?;
        if guard.as_deref().and_then(K::of).is_none() {
            return Err(Code::handle(K::SUBTYPE));
        }
        Ok(RefMut { guard, kind: PhantomData })
    }

    /// The kind of a live object, as `DAT_HANDLE_TYPE`.
    pub(super) fn kind(self) -> Option<u32> {
        self.slot().and_then(|slot| read(slot).as_deref().map(Object::kind))
    }

    /// Takes the object away and ends it; one that refuses to end comes back, and other threads see nothing of it. For objects
    /// whose end waits for nobody; the others are decided on and taken first ([`Handle::take`]).
    pub(super) fn end<K: Stored>(self, end: impl FnOnce(K) -> Result<(), (K, Code)>) -> Result<(), Code> {
        let invalid = || Code::handle(K::SUBTYPE);
        let slot = self.slot().ok_or_else(invalid)?;
        let mut guard = write(slot);
        let object = match guard.take().map(|object| K::into(*object)) {
            Some(Ok(object)) => object,
            Some(Err(other)) => {
                *guard = Some(Box::new(other));
                return Err(invalid());
            }
            None => return Err(invalid()),
        };
        let outcome = if slot.is_inherited() {
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
        retire(slot);
        Ok(())
    }

    /// Takes the object away if `may` has nothing against it, which is to be certain then. What is left to be done is done
    /// without the lock: it may wait for the progress thread, which may be in an agent of the consumer's that asks
    /// for the object. Nothing comes of an object of the process that this one was forked from.
    pub(super) fn take<K: Stored>(self, may: impl FnOnce(&K) -> Result<(), Code>) -> Result<Option<K>, Code> {
        let invalid = || Code::handle(K::SUBTYPE);
        let slot = self.slot().ok_or_else(invalid)?;
        let mut guard = write(slot);
        let object = guard.as_deref().and_then(K::of).ok_or_else(invalid)?;
        let inherited = slot.is_inherited();
        if !inherited {
            may(object)?;
        }
        let object = guard.take().and_then(|object| K::into(*object).ok()).ok_or_else(invalid)?;
        drop(guard);
        retire(slot);
        if inherited {
            slot.forget(object);
            return Ok(None);
        }
        Ok(Some(object))
    }

    /// Whether the object is of the process that this one was forked from.
    pub(super) fn is_inherited(self) -> bool {
        self.slot().is_some_and(HandleSlot::is_inherited)
    }

    /// The IA that it belongs to.
    pub(super) fn ia(self) -> Self {
        Self(self.slot().map_or(0, |slot| slot.ia.load(Ordering::Relaxed)))
    }

    /// A new handle of the same provider.
    ///
    /// # Errors
    /// INSUFFICIENT_RESOURCES without memory; the object is gone then.
    pub(super) fn sibling(self, object: impl Stored) -> Result<Self, Code> {
        let table = self.slot().map_or(std::ptr::null_mut(), |slot| slot.provider[0].load(Ordering::Relaxed));
        let ia = self.ia();
        Self::new(table, ia, object)
    }

    /// The same for an object that events name by this number.
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
        if let Some(slot) = handle.slot() {
            slot.id.store(id, Ordering::Relaxed);
            known.handles.insert(id, handle);
        }
        Ok(handle)
    }

    /// A new handle. An IA is its own owner: `ia` is NULL then.
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
        slot.process.store(std::process::id(), Ordering::Relaxed);
        slot.ia.store(ia.given().unwrap_or(handle).0, Ordering::Relaxed);
        *slot.object.write_unshared().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(object.wrap()));
        Ok(handle)
    }

    /// The handle of an object that the core names by this number, NULL for none.
    pub(super) fn of_id(id: u64) -> Self {
        by_id().handles.get(&id).copied().unwrap_or(Self::NULL)
    }

    /// Empties all slots of this IA but its own, and drops what was in them.
    pub(super) fn retire_all_of_ia(self) {
        let used = free().used;
        for slot in FIRST.iter().chain(LATER.iter().map_while(OnceLock::get).flatten()).take(used) {
            if slot.ia.load(Ordering::Relaxed) == self.0 && slot.handle() != self {
                // Dropped without the lock.
                let object = write(slot).take();
                let Some(object) = object else { continue };
                if slot.is_inherited() {
                    slot.forget(object);
                } else {
                    drop(object);
                    drop(slot.srq.take());
                }
                retire(slot);
            }
        }
    }
}

/// For a fork.
pub(super) fn hold_shared_locks() -> Vec<Box<dyn std::any::Any>> {
    vec![Box::new(FREE.hold()), Box::new(BY_ID.get_or_init(Mutex::default).hold())]
}

/// In a child: no handle that the parent had leads anywhere any more. What is behind them is not touched, nor used again.
pub(super) fn forget_inherited() {
    let used = free().used;
    for slot in FIRST.iter().chain(LATER.iter().map_while(OnceLock::get).flatten()).take(used) {
        slot.next_generation();
    }
    by_id().handles.clear();
}

/// No handle leads to this slot any more.
fn retire(slot: &'static HandleSlot) {
    let id = slot.id.swap(0, Ordering::Relaxed);
    if id != 0 {
        by_id().handles.remove(&id);
    }
    slot.next_generation();
    free().dead.push_back(slot);
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
    // For the day when all are dead: so that no end of an object needs memory.
    let all = free.used + 1;
    let dead = free.dead.len();
    free.dead.try_reserve(all - dead)?;
    let mut index = free.used;
    if let Some(slot) = FIRST.get(index) {
        free.used += 1;
        return Ok(slot);
    }
    index -= FIRST_CHUNK;
    for (k, chunk) in LATER.iter().enumerate() {
        let len = FIRST_CHUNK << k;
        if index < len {
            if chunk.get().is_none() {
                let slots = table(len, |_| HandleSlot::new())?;
                // Nobody else makes one, since that takes the lock of `FREE`.
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
