//! Handle slots: the memory to which handles point.
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

use super::code::Code;
use super::handle::Handle;
use super::held::{self, Held};
use super::objects::Object;
use super::table::Table;
use biased_lock::{BiasedLock, is_u32};
use provider::inside::sync::{Door, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard, rank};
use provider::inside::{ByNumber, EvdInner, Queue, QueuePair, Receives, Requests, table};
use provider::{ReturnType, Srq, Subtype};
use std::collections::{TryReserveError, VecDeque};
use std::mem::offset_of;
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
pub(super) struct Pages<T>(pub(super) T);

/// The memory to which a handle points. It holds one object or none.
#[repr(C, align(128))]
pub(super) struct HandleSlot {
    /// The provider table, for libdat2.
    pub(super) provider: [AtomicPtr<Table>; GENERATIONS],
    /// The low half of the address in a handle of the present generation; 0 before the first
    /// generation.
    pub(super) present: AtomicU32,
    /// [`FORKS`] when the object was created.
    pub(super) forks: AtomicU32,
    /// Leads the owner of the lock of an EVD to its queue.
    pub(super) evd: Door<{ rank::QUEUE }, Queue>,
    /// Leads the owner of the lock of an EP's requests to them.
    pub(super) ep: Door<{ rank::REQUESTS }, Requests>,
    /// Leads the owner of the lock of an EP's receives to them. Closed for an EP on an SRQ.
    pub(super) receives: Door<{ rank::RECEIVES }, Receives>,
    /// The part of the object that posts and dequeues use.
    pub(super) hot: BiasedLock<Hot>,
    /// The consumer's context (`dat_set_consumer_context`).
    pub(super) context: AtomicU64,
    /// The handle of the object's IA.
    pub(super) ia: AtomicUsize,
    pub(super) object: RwLock<{ rank::HANDLE }, Option<Box<Object>>>,
}

pub(super) static FIRST: Pages<[HandleSlot; FIRST_CHUNK]> = Pages([const { HandleSlot::new() }; FIRST_CHUNK]);
pub(super) static LATER: [OnceLock<Box<[HandleSlot]>>; LATER_CHUNKS] =
    [const { OnceLock::new() }; LATER_CHUNKS];
/// The number of forks that led from the process that loaded this library to this one, as far as
/// their handlers ran.
pub(super) static FORKS: AtomicU32 = AtomicU32::new(0);
static FREE: Mutex<{ rank::TABLE }, Free> = Mutex::new(Free { used: 0, dead: VecDeque::new() });
/// The handles by the numbers that events carry.
static BY_ID: OnceLock<Mutex<{ rank::TABLE }, ById>> = OnceLock::new();

#[derive(Default)]
pub(super) struct ById {
    pub(super) handles: ByNumber<u64, Handle>,
    /// Insertions that are under way and for which memory is reserved.
    pub(super) expected: usize,
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
    pub(super) fn of(&self, handle: Handle) -> Option<&Self> {
        is_u32::<{ offset_of!(Self, present) }>(&self.present, handle.0 as u32).then_some(self)
    }

    pub(super) fn handle(&self) -> Handle {
        Handle(std::ptr::from_ref(self) as usize + self.present.load(Ordering::Relaxed) as usize % SLOT_SIZE)
    }

    /// Makes handles point to this offset, in bytes, from the start of the slot.
    pub(super) fn set_generation(&self, offset: usize) {
        self.present.store((std::ptr::from_ref(self) as usize + offset) as u32, Ordering::Relaxed);
    }

    pub(super) fn next_generation(&self) {
        let offset = self.present.load(Ordering::Relaxed) as usize % SLOT_SIZE;
        self.set_generation((offset + WORD) % (GENERATIONS * WORD));
    }
}

/// The slot of this chunk that contains the address.
pub(super) fn at(chunk: &'static [HandleSlot], address: usize) -> Option<&'static HandleSlot> {
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

fn free() -> MutexGuard<'static, Free> {
    FREE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// All slots that were ever used.
pub(super) fn slots() -> impl Iterator<Item = &'static HandleSlot> {
    let used = free().used;
    FIRST.0.iter().chain(LATER.iter().map_while(OnceLock::get).flatten()).take(used)
}

pub(super) fn by_id() -> MutexGuard<'static, ById> {
    BY_ID.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner)
}

type Place = Option<Box<Object>>;

impl HandleSlot {
    #[inline]
    pub(super) fn read(&'static self) -> Result<(RwLockReadGuard<'static, Place>, Held), Code> {
        held::read(&self.object, self.ia.load(Ordering::Relaxed))
    }

    pub(super) fn write(&'static self) -> Result<(RwLockWriteGuard<'static, Place>, Held), Code> {
        held::write(&self.object, self.ia.load(Ordering::Relaxed))
    }

    /// Whether the object belongs to the process from which this one was forked.
    pub(super) fn is_inherited(&self) -> bool {
        self.forks.load(Ordering::Relaxed) != FORKS.load(Ordering::Relaxed)
    }

    /// Forgets an inherited object: nothing is freed.
    pub(super) fn forget<T>(&self, object: T) {
        std::mem::forget(object);
        self.hot.forget();
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
pub(super) fn retire(slot: &'static HandleSlot, number: Option<u64>, inherited: bool) {
    if let Some(number) = number {
        by_id().handles.remove(&number);
    }
    slot.next_generation();
    if !inherited {
        free().dead.push_back(slot);
    }
}

pub(super) fn no_memory() -> Code {
    tracing::error!("no memory for another handle: free objects that are not needed, or raise the limit");
    Code::new(ReturnType::InsufficientResources, Subtype::ResourceMemory)
}

pub(super) fn fresh() -> Result<&'static HandleSlot, TryReserveError> {
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
