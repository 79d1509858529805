#![expect(unsafe_code, reason = "addresses of verbs objects lead to ours")]
//! From the address of a verbs object, or the number of a QP, to the library's own object.
//!
//! A table holds addresses in a fixed array. The place of an address follows from its bits; if the
//! place is taken, one of the next seven is used. An object that finds no place is left to libmlx5.
//! A look-up compares the address, so that it never finds another object.

use std::{
    marker::PhantomData,
    ptr,
    sync::atomic::{
        AtomicPtr, AtomicUsize,
        Ordering::{Acquire, Relaxed, Release},
    },
};

const BITS: u32 = 14;
/// Places that an address may have.
const WINDOW: usize = 8;

struct Place<T> {
    key: AtomicUsize,
    value: AtomicPtr<T>,
}

/// Objects by the address of their verbs object.
pub(crate) struct Table<T: 'static> {
    places: [Place<T>; (1 << BITS) + WINDOW],
    _values: PhantomData<&'static T>,
}

impl<T> Table<T> {
    pub(crate) const fn new() -> Self {
        let places = [const { Place { key: AtomicUsize::new(0), value: AtomicPtr::new(ptr::null_mut()) } };
            (1 << BITS) + WINDOW];
        Self { places, _values: PhantomData }
    }

    /// Addresses of the heap differ in their middle bits; the multiplication spreads these.
    #[inline(always)]
    fn place(key: usize) -> usize {
        (key as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) as usize >> (usize::BITS - BITS)
    }

    /// The object of the verbs object at `key`.
    ///
    /// # Safety
    ///
    /// The verbs object is alive, or `key` is null. The reference is not used after the object was
    /// removed and freed.
    #[inline(always)]
    pub(crate) unsafe fn get<K>(&self, key: *const K) -> Option<&'static T> {
        let at = Self::place(key.addr());
        // SAFETY: in bounds, since `place` has `BITS` bits and the array is longer by a window.
        let first = unsafe { self.places.get_unchecked(at) };
        if first.key.load(Acquire) == key.addr() {
            // SAFETY: a place with this key leads to the live object that `insert` was given, or,
            // for the key 0, holds null.
            return unsafe { first.value.load(Relaxed).as_ref() };
        }
        self.get_elsewhere(at, key.addr())
    }

    #[inline(never)]
    fn get_elsewhere(&self, at: usize, key: usize) -> Option<&'static T> {
        let place = self.places[at..at + WINDOW].iter().find(|place| place.key.load(Acquire) == key)?;
        // SAFETY: as in `get`, whose contract the caller keeps.
        unsafe { place.value.load(Relaxed).as_ref() }
    }

    /// Adds an object; returns false if there is no place. Calls are serialised by the control
    /// lock.
    pub(crate) fn insert<K>(&self, key: *const K, value: &'static T) -> bool {
        let at = Self::place(key.addr());
        let Some(place) = self.places[at..at + WINDOW].iter().find(|place| place.key.load(Relaxed) == 0)
        else {
            return false;
        };
        place.value.store(ptr::from_ref(value).cast_mut(), Relaxed);
        place.key.store(key.addr(), Release);
        true
    }

    /// Removes an object, so that nobody finds it any more. Calls are serialised as for `insert`.
    pub(crate) fn remove<K>(&self, key: *const K) {
        let at = Self::place(key.addr());
        if let Some(place) = self.places[at..at + WINDOW].iter().find(|p| p.key.load(Relaxed) == key.addr()) {
            place.key.store(0, Release);
            place.value.store(ptr::null_mut(), Relaxed);
        }
    }
}

const PAGE: usize = 1 << 12;
type Page<T> = [AtomicPtr<T>; PAGE];

/// Objects by QP number, 24 bits: two loads. Pages are made as numbers come up, and are freed with
/// the table.
pub(crate) struct ByNumber<T: 'static> {
    pages: Box<[AtomicPtr<Page<T>>]>,
}

impl<T> ByNumber<T> {
    pub(crate) fn new() -> Self {
        Self { pages: (0..PAGE).map(|_| AtomicPtr::new(ptr::null_mut())).collect() }
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
    pub(crate) fn all(&self) -> Vec<&'static T> {
        // SAFETY: null or a page, which lives as long as the table.
        let pages = self.pages.iter().filter_map(|page| unsafe { page.load(Acquire).as_ref() });
        // SAFETY: null or an object that is alive, by the requirement above.
        pages.flatten().filter_map(|object| unsafe { object.load(Acquire).as_ref() }).collect()
    }

    /// Sets or removes the object of a QP. Calls are serialised by the control lock.
    pub(crate) fn set(&self, number: u32, object: Option<&'static T>) {
        let slot = &self.pages[(number >> 12) as usize % PAGE];
        let mut page = slot.load(Acquire);
        if page.is_null() {
            page = Box::into_raw(Box::new([const { AtomicPtr::new(ptr::null_mut()) }; PAGE]));
            slot.store(page, Release);
        }
        let object = object.map_or(ptr::null_mut(), |object| ptr::from_ref(object).cast_mut());
        // SAFETY: a page, which lives as long as the table.
        let page = unsafe { &*page };
        page[number as usize % PAGE].store(object, Release);
    }
}

impl<T> Drop for ByNumber<T> {
    fn drop(&mut self) {
        for page in &self.pages {
            let page = page.load(Relaxed);
            if !page.is_null() {
                // SAFETY: made by `Box::into_raw` in `set`; nobody uses the table any more.
                drop(unsafe { Box::from_raw(page) });
            }
        }
    }
}
