//! Handles: what C holds instead of objects.
//!
//! A handle is the address of a [`Shell`], whose first word is the provider table: libdat2 loads it without asking.
//! Shells are never given back to the allocator; one whose object is gone answers INVALID_HANDLE and is used
//! again only after [`QUARANTINE`] others have died. A handle that comes in is looked for among the shells before anything
//! of it is touched, so any number that C passes is safe.
//!
//! After a fork the child has copies of its parent's handles. What it ends or closes through them ends for itself alone: the objects
//! are forgotten, since what the kernel and the device hold for them is the parent's.
//!
//! Calls read-lock a shell, so different threads use one object at once; what takes an object away, or changes it, write-locks.
//! Nothing that waits for other threads happens under these locks: waits clone their EVD or CNO out first.

use super::code::Code;
use super::objects::Object;
use super::table::Table;
use crate::Subtype;
use std::collections::{HashMap, VecDeque};
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// As many shells die before one is used again.
const QUARANTINE: usize = 1 << 16;

/// Chunk `k` has this many shells, shifted by `k`.
const FIRST_CHUNK: usize = 1024;
const CHUNKS: usize = 20;

/// What a handle points to.
#[repr(C)]
pub(super) struct Shell {
    /// Read by libdat2.
    provider: AtomicPtr<Table>,
    /// The consumer's number (`dat_set_consumer_context`).
    pub(super) context: AtomicU64,
    /// The IA it belongs to.
    ia: AtomicUsize,
    /// The core's number for it, 0 for none.
    id: AtomicU64,
    /// The process that made the object.
    process: AtomicU32,
    object: RwLock<Option<Object>>,
}

static SHELLS: [OnceLock<Box<[Shell]>>; CHUNKS] = [const { OnceLock::new() }; CHUNKS];
static FREE: Mutex<Free> = Mutex::new(Free { used: 0, dead: VecDeque::new() });
/// EVDs and service points by the number that the core names them by.
static BY_ID: OnceLock<Mutex<HashMap<u64, Handle>>> = OnceLock::new();

struct Free {
    /// Shells that were ever used.
    used: usize,
    dead: VecDeque<Handle>,
}

/// A handle as C passes it: an address of ours, or anything at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub(super) struct Handle(pub(super) usize);

/// A kind of object that handles stand for.
pub(super) trait Kind: Sized + 'static {
    /// Of the INVALID_HANDLE that a wrong or stale handle gets.
    const SUBTYPE: Subtype;
    /// The object, if it is one of this kind.
    fn of(object: &Object) -> Option<&Self>;
    /// The same, to change.
    fn of_mut(object: &mut Object) -> Option<&mut Self>;
    /// The same, to keep.
    fn into(object: Object) -> Result<Self, Object>;
    /// Back again.
    fn wrap(self) -> Object;
}

/// An object in use by this call.
pub(super) struct Ref<K> {
    guard: RwLockReadGuard<'static, Option<Object>>,
    kind: PhantomData<K>,
}

/// An object that this call changes.
pub(super) struct RefMut<K> {
    guard: RwLockWriteGuard<'static, Option<Object>>,
    kind: PhantomData<K>,
}

impl<K: Kind> Deref for Ref<K> {
    type Target = K;

    fn deref(&self) -> &K {
        self.guard.as_ref().and_then(K::of).expect("the kind was checked, and the lock is held since")
    }
}

impl<K: Kind> Deref for RefMut<K> {
    type Target = K;

    fn deref(&self) -> &K {
        self.guard.as_ref().and_then(K::of).expect("the kind was checked, and the lock is held since")
    }
}

impl<K: Kind> DerefMut for RefMut<K> {
    fn deref_mut(&mut self) -> &mut K {
        self.guard.as_mut().and_then(K::of_mut).expect("the kind was checked, and the lock is held since")
    }
}

fn free() -> MutexGuard<'static, Free> {
    FREE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn by_id() -> MutexGuard<'static, HashMap<u64, Handle>> {
    BY_ID.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner)
}

fn read(shell: &Shell) -> RwLockReadGuard<'_, Option<Object>> {
    shell.object.read().unwrap_or_else(PoisonError::into_inner)
}

fn write(shell: &Shell) -> RwLockWriteGuard<'_, Option<Object>> {
    shell.object.write().unwrap_or_else(PoisonError::into_inner)
}

impl Shell {
    /// Whether the object is a copy of one of the process that this one was forked from.
    fn is_inherited(&self) -> bool {
        self.process.load(Ordering::Relaxed) != std::process::id()
    }
}

impl Handle {
    /// `DAT_HANDLE_NULL`.
    pub(super) const NULL: Self = Self(0);

    pub(super) fn is_null(self) -> bool {
        self.0 == 0
    }

    /// The handle unless it is NULL.
    pub(super) fn given(self) -> Option<Self> {
        (!self.is_null()).then_some(self)
    }

    /// The shell at this address, if there is one.
    pub(super) fn shell(self) -> Option<&'static Shell> {
        SHELLS.iter().map_while(OnceLock::get).find_map(|chunk| {
            let offset = self.0.checked_sub(chunk.as_ptr() as usize)?;
            (offset % size_of::<Shell>() == 0).then(|| chunk.get(offset / size_of::<Shell>()))?
        })
    }

    /// The object, or INVALID_HANDLE with the subtype of its kind.
    #[inline]
    pub(super) fn get<K: Kind>(self) -> Result<Ref<K>, Code> {
        self.get_as(K::SUBTYPE)
    }

    /// The object, or INVALID_HANDLE with this subtype.
    #[inline]
    pub(super) fn get_as<K: Kind>(self, sub: Subtype) -> Result<Ref<K>, Code> {
        let guard = self.shell().map(read).ok_or_else(|| Code::handle(sub))?;
        if guard.as_ref().and_then(K::of).is_none() {
            return Err(Code::handle(sub));
        }
        Ok(Ref { guard, kind: PhantomData })
    }

    /// The object, to change.
    pub(super) fn get_mut<K: Kind>(self) -> Result<RefMut<K>, Code> {
        let guard = self.shell().map(write).ok_or_else(|| Code::handle(K::SUBTYPE))?;
        if guard.as_ref().and_then(K::of).is_none() {
            return Err(Code::handle(K::SUBTYPE));
        }
        Ok(RefMut { guard, kind: PhantomData })
    }

    /// The kind of a live object, as `DAT_HANDLE_TYPE`.
    pub(super) fn kind(self) -> Option<u32> {
        self.shell().and_then(|shell| read(shell).as_ref().map(Object::kind))
    }

    /// Takes the object away and ends it; one that refuses to end comes back. Other threads see nothing of a refusal, but
    /// for objects whose end waits for others: those end without the lock.
    pub(super) fn end<K: Kind>(self, end: impl FnOnce(K) -> Result<(), (K, Code)>) -> Result<(), Code> {
        let invalid = || Code::handle(K::SUBTYPE);
        let shell = self.shell().ok_or_else(invalid)?;
        let mut guard = write(shell);
        let waits = guard.as_ref().is_some_and(Object::end_waits);
        let object = match guard.take().map(K::into) {
            Some(Ok(object)) => object,
            Some(Err(other)) => {
                *guard = Some(other);
                return Err(invalid());
            }
            None => return Err(invalid()),
        };
        if shell.is_inherited() {
            std::mem::forget(object);
            drop(guard);
            self.bury();
            return Ok(());
        }
        let held = (!waits).then_some(guard);
        match end(object) {
            Ok(()) => {
                drop(held);
                self.bury();
                Ok(())
            }
            Err((object, code)) => {
                *held.unwrap_or_else(|| write(shell)) = Some(object.wrap());
                Err(code)
            }
        }
    }

    /// The IA that it belongs to.
    pub(super) fn ia(self) -> Self {
        Self(self.shell().map_or(0, |shell| shell.ia.load(Ordering::Relaxed)))
    }

    /// A new handle of the same provider.
    pub(super) fn sibling(self, object: impl Kind) -> Self {
        let table = self.shell().map_or(std::ptr::null_mut(), |shell| shell.provider.load(Ordering::Relaxed));
        let ia = self.ia();
        Self::new(table, ia, object)
    }

    /// A new handle. An IA is its own owner: `ia` is NULL then.
    pub(super) fn new(table: *mut Table, ia: Self, object: impl Kind) -> Self {
        let handle = fresh();
        let shell = handle.shell().expect("fresh handles are ours");
        shell.provider.store(table, Ordering::Relaxed);
        shell.context.store(0, Ordering::Relaxed);
        shell.process.store(std::process::id(), Ordering::Relaxed);
        shell.ia.store(ia.given().unwrap_or(handle).0, Ordering::Relaxed);
        *write(shell) = Some(object.wrap());
        handle
    }

    /// Events name it by this number.
    pub(super) fn known_as(self, id: u64) {
        if let Some(shell) = self.shell() {
            shell.id.store(id, Ordering::Relaxed);
            by_id().insert(id, self);
        }
    }

    /// The handle of an object that the core names by this number, NULL for none.
    pub(super) fn of_id(id: u64) -> Self {
        by_id().get(&id).copied().unwrap_or(Self::NULL)
    }

    fn bury(self) {
        let id = self.shell().map_or(0, |shell| shell.id.swap(0, Ordering::Relaxed));
        if id != 0 {
            by_id().remove(&id);
        }
        free().dead.push_back(self);
    }

    /// Empties all shells of this IA but its own, and drops what was in them.
    pub(super) fn end_all_of_ia(self) {
        let used = free().used;
        let mut gone = Vec::new();
        for shell in SHELLS.iter().map_while(OnceLock::get).flatten().take(used) {
            let handle = Self(std::ptr::from_ref(shell) as usize);
            if handle != self
                && shell.ia.load(Ordering::Relaxed) == self.0
                && let Some(object) = write(shell).take()
            {
                if shell.is_inherited() {
                    std::mem::forget(object);
                } else {
                    gone.push(object);
                }
                handle.bury();
            }
        }
        drop(gone);
    }
}

fn fresh() -> Handle {
    let mut free = free();
    if free.dead.len() > QUARANTINE
        && let Some(handle) = free.dead.pop_front()
    {
        return handle;
    }
    let mut index = free.used;
    free.used += 1;
    for (k, chunk) in SHELLS.iter().enumerate() {
        let len = FIRST_CHUNK << k;
        if index < len {
            let chunk = chunk.get_or_init(|| {
                (0..len)
                    .map(|_| Shell {
                        provider: AtomicPtr::default(),
                        context: AtomicU64::new(0),
                        ia: AtomicUsize::new(0),
                        id: AtomicU64::new(0),
                        process: AtomicU32::new(0),
                        object: RwLock::new(None),
                    })
                    .collect()
            });
            return Handle(std::ptr::from_ref(&chunk[index]) as usize);
        }
        index -= len;
    }
    panic!("a billion handles are in use");
}
