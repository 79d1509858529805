#![expect(unsafe_code, reason = "addresses of verbs objects lead to ours")]
//! From a verbs object, or the number of a QP, to the library's own object.
//!
//! The kernel gives each object of a context a small number, its handle. Each context has a table
//! for each class of objects, with a place for each value of the handle's low 16 bits. If the place
//! is taken, one of the next seven is used. An object that finds no place is left to libmlx5. A
//! place has the address of its verbs object, and a look-up compares the address, so that it never
//! finds another object.
//!
//! Posts and polls come to the queue of an object by a [`Shortcut`], which has a place for each value
//! of a hash of the address.

use std::{
    alloc::{Layout, alloc, alloc_zeroed},
    marker::PhantomData,
    ptr,
    sync::atomic::{
        AtomicPtr, AtomicUsize,
        Ordering::{Acquire, Relaxed, Release},
    },
};

use biased_lock::{BiasedMutex, Door, OwnerGuard};
use doorbell_sys::{ibv_context, ibv_cq, ibv_qp, ibv_srq};

/// Places that an object may have.
const WINDOW: usize = 8;
const PLACES: usize = (1 << 16) + WINDOW;

/// A verbs object that has a small number, which does not change while the object lives.
pub(crate) trait Numbered {
    /// The low bits of the number.
    ///
    /// # Safety
    ///
    /// `raw` is a live object.
    unsafe fn number(raw: *const Self) -> u16;
}

macro_rules! numbered {
    ($($object:ty, $field:ident;)*) => {$(
        impl Numbered for $object {
            #[inline(always)]
            unsafe fn number(raw: *const Self) -> u16 {
                // SAFETY: live by contract; set at creation, and not changed.
                unsafe { (&raw const (*raw).$field).read() as u16 }
            }
        }
    )*};
}

numbered! {
    ibv_context, cmd_fd;
    ibv_cq, handle;
    ibv_qp, handle;
    ibv_srq, handle;
}

struct Place<T> {
    /// The address of the verbs object; 0 if the place is free.
    key: AtomicUsize,
    /// Not null while `key` is set.
    value: AtomicPtr<T>,
}

/// Objects by their verbs object.
pub(crate) struct Table<T: 'static> {
    places: [Place<T>; PLACES],
    _values: PhantomData<&'static T>,
}

impl<T> Table<T> {
    pub(crate) const fn new() -> Self {
        let places =
            [const { Place { key: AtomicUsize::new(0), value: AtomicPtr::new(ptr::null_mut()) } }; PLACES];
        Self { places, _values: PhantomData }
    }

    /// A table on the heap, of zeros that take no memory until they are used; `None` without
    /// memory.
    pub(crate) fn on_heap() -> Option<Box<Self>> {
        // SAFETY: zeros are a table without objects: integers and null pointers.
        unsafe { zeroed() }
    }

    /// The object of a verbs object.
    ///
    /// # Safety
    ///
    /// `raw` is a live verbs object, which is not null. The reference is not used after the object
    /// was removed and freed.
    pub(crate) unsafe fn get<K: Numbered>(&self, raw: *const K) -> Option<&'static T> {
        // SAFETY: live by contract.
        let at = usize::from(unsafe { K::number(raw) });
        let place = self.window(at).iter().find(|place| place.key.load(Acquire) == raw.addr())?;
        // SAFETY: `insert` stores the value before the key. The verbs object is alive, so that
        // neither its removal nor another object with this address is under way, and the value is
        // the object that `insert` was given.
        Some(unsafe { &*place.value.load(Relaxed) })
    }

    fn window(&self, at: usize) -> &[Place<T>] {
        &self.places[at..at + WINDOW]
    }

    /// Adds an object; returns false if there is no place. Calls are serialised by the control
    /// lock.
    ///
    /// # Safety
    ///
    /// `raw` is a live verbs object that is not in the table.
    pub(crate) unsafe fn insert<K: Numbered>(&self, raw: *const K, value: &'static T) -> bool {
        // SAFETY: live by contract.
        let at = usize::from(unsafe { K::number(raw) });
        let Some(place) = self.window(at).iter().find(|place| place.key.load(Relaxed) == 0) else {
            return false;
        };
        place.value.store(ptr::from_ref(value).cast_mut(), Relaxed);
        place.key.store(raw.addr(), Release);
        true
    }

    /// Removes an object, so that nobody finds it any more. Calls are serialised as for `insert`.
    ///
    /// # Safety
    ///
    /// `raw` is a live verbs object.
    pub(crate) unsafe fn remove<K: Numbered>(&self, raw: *const K) {
        // SAFETY: live by contract.
        let at = usize::from(unsafe { K::number(raw) });
        if let Some(place) = self.window(at).iter().find(|place| place.key.load(Relaxed) == raw.addr()) {
            place.key.store(0, Release);
        }
    }
}

/// The doors of the mutexes of one class of objects, of all contexts, by the address of the verbs
/// object: so the thread that uses an object most comes to the value `V` of its mutex without a look
/// at other cache lines. An object whose place is taken has no door.
pub(crate) struct Shortcut<V: 'static> {
    places: [Entrance<V>; 1 << SHORTCUT_BITS],
}

const SHORTCUT_BITS: u32 = 16;

#[repr(align(32))]
struct Entrance<V> {
    /// The address of the verbs object; 0 if the place is free.
    key: AtomicUsize,
    /// The door of its mutex.
    door: Door<V>,
    /// The value of its mutex, to ask for the line before the door leads there.
    value: AtomicPtr<V>,
}

/// The key of a place that stays empty: no object has this address.
const CLOSED: usize = 1;

impl<V: Send> Shortcut<V> {
    pub(crate) const fn new() -> Self {
        let places = [const {
            let value = AtomicPtr::new(ptr::null_mut());
            Entrance { key: AtomicUsize::new(0), door: Door::new(), value }
        }; 1 << SHORTCUT_BITS];
        Self { places }
    }

    #[inline(always)]
    fn place<K>(&self, raw: *const K) -> &Entrance<V> {
        // Objects are on the heap, at multiples of 16 bytes.
        const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
        &self.places[((raw.addr() as u64 >> 4).wrapping_mul(GOLDEN) >> (64 - SHORTCUT_BITS)) as usize]
    }

    /// The value of the object's mutex, if the object has a place and its door is open, and this
    /// thread is the owner of the mutex and does not hold it.
    ///
    /// # Safety
    ///
    /// `raw` is a live verbs object, which is not null and is not removed while the guard lives.
    #[inline(always)]
    pub(crate) unsafe fn enter<K>(&'static self, raw: *const K) -> Option<OwnerGuard<V>> {
        let entrance = self.place_of(raw)?;
        prefetch(entrance.value.load(Relaxed));
        entrance.door.try_lock_fast()
    }

    #[inline(always)]
    fn place_of<K>(&self, raw: *const K) -> Option<&Entrance<V>> {
        Some(self.place(raw)).filter(|entrance| entrance.key.load(Acquire) == raw.addr())
    }

    /// The door of an object that has a place. No other object gets the place while the verbs object
    /// is alive and is not removed.
    pub(crate) fn door<K>(&'static self, raw: *const K) -> Option<&'static Door<V>> {
        self.place_of(raw).map(|entrance| &entrance.door)
    }

    /// Gives an object its place, if that is free. Calls are serialised by the control lock.
    pub(crate) fn insert<K>(&self, raw: *const K, mutex: &BiasedMutex<V>) {
        let Entrance { key, value, .. } = self.place(raw);
        if key.load(Relaxed) == 0 {
            value.store(mutex.as_ptr(), Relaxed);
            key.store(raw.addr(), Release);
        }
    }

    /// Removes an object that nobody uses any more and whose door is closed. Calls are serialised as
    /// for `insert`.
    pub(crate) fn remove<K>(&self, raw: *const K) {
        self.replace(raw, 0);
    }

    /// Removes an object that another thread may be looking up: no other object gets its place.
    /// Calls are serialised as for `insert`.
    pub(crate) fn give_up<K>(&self, raw: *const K) {
        self.replace(raw, CLOSED);
    }

    fn replace<K>(&self, raw: *const K, by: usize) {
        let key = &self.place(raw).key;
        if key.load(Relaxed) == raw.addr() {
            key.store(by, Release);
        }
    }
}

/// Asks for the cache line at an address.
#[inline(always)]
fn prefetch<T>(at: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch reads and writes nothing, whatever the address.
    unsafe {
        use core::arch::x86_64::{_MM_HINT_ET0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_ET0>(at.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// Zeros on the heap; `None` without memory.
///
/// # Safety
///
/// The type has a size, and zeros are a value of it.
unsafe fn zeroed<T>() -> Option<Box<T>> {
    // SAFETY: the size is not zero, and zeros are a value, by contract. A box frees its memory with
    // this layout.
    unsafe {
        let zeros = alloc_zeroed(Layout::new::<T>()).cast::<T>();
        if zeros.is_null() { None } else { Some(Box::from_raw(zeros)) }
    }
}

/// Why a context or an object is left, if memory is short.
pub(crate) const NO_MEMORY: &str = "no memory for it";

/// Puts a value on the heap, to be freed as a box; drops it and returns `None` without memory.
pub(crate) fn leak<T>(value: T) -> Option<&'static mut T> {
    const { assert!(size_of::<T>() > 0) };
    // SAFETY: the size is not zero; the memory is new, and has room and alignment for the value.
    unsafe {
        let place = alloc(Layout::new::<T>()).cast::<T>();
        if place.is_null() {
            return None;
        }
        place.write(value);
        Some(&mut *place)
    }
}

const PAGE: usize = 1 << 12;
type Page<T> = [AtomicPtr<T>; PAGE];

/// Objects by QP number, 24 bits: two loads. Pages are made as numbers come up, and are freed with
/// the table.
pub(crate) struct ByNumber<T: 'static> {
    pages: Box<[AtomicPtr<Page<T>>; PAGE]>,
}

impl<T> ByNumber<T> {
    /// `None` without memory.
    pub(crate) fn new() -> Option<Self> {
        // SAFETY: zeros are null pointers.
        unsafe { zeroed().map(|pages| Self { pages }) }
    }

    /// The object of a QP.
    ///
    /// # Safety
    ///
    /// The caller excludes that the object is freed while it uses the reference.
    #[inline(always)]
    pub(crate) unsafe fn get(&self, number: u32) -> Option<&'static T> {
        let page = self.pages[(number >> 12) as usize % PAGE].load(Acquire);
        // SAFETY: null or a page, which lives as long as the table.
        let page = unsafe { page.as_ref() }?;
        // SAFETY: null or an object that is alive by contract.
        unsafe { page[number as usize % PAGE].load(Acquire).as_ref() }
    }

    /// All objects. The caller holds the control lock, under which objects are freed.
    pub(crate) fn all(&self) -> impl Iterator<Item = &'static T> {
        // SAFETY: null or a page, which lives as long as the table.
        let pages = self.pages.iter().filter_map(|page| unsafe { page.load(Acquire).as_ref() });
        // SAFETY: null or an object that is alive, by the requirement above.
        pages.flatten().filter_map(|object| unsafe { object.load(Acquire).as_ref() })
    }

    /// Sets or removes the object of a QP. Returns false without memory: then nothing was set.
    /// Calls are serialised by the control lock.
    pub(crate) fn set(&self, number: u32, object: Option<&'static T>) -> bool {
        let slot = &self.pages[(number >> 12) as usize % PAGE];
        let mut page = slot.load(Acquire);
        if page.is_null() {
            // SAFETY: zeros are null pointers.
            let Some(new) = (unsafe { zeroed::<Page<T>>() }) else { return false };
            page = Box::into_raw(new);
            slot.store(page, Release);
        }
        let object = object.map_or(ptr::null_mut(), |object| ptr::from_ref(object).cast_mut());
        // SAFETY: a page, which lives as long as the table.
        let page = unsafe { &*page };
        page[number as usize % PAGE].store(object, Release);
        true
    }
}

impl<T> Drop for ByNumber<T> {
    fn drop(&mut self) {
        for page in self.pages.iter() {
            let page = page.load(Relaxed);
            if !page.is_null() {
                // SAFETY: made by `Box::into_raw` in `set`; nobody uses the table any more.
                drop(unsafe { Box::from_raw(page) });
            }
        }
    }
}
