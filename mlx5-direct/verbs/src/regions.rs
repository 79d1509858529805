//! Memory regions that are not addressed by the program's addresses.
//!
//! The device puts a short payload into its completion entry, and the program's processor copies it
//! to the segments of the request. In most regions, the address in a segment is the program's own.
//! The others are kept here by their key, from their registration on, so that the copy goes where
//! the device would have written, or nowhere.

use std::sync::{
    Mutex,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

use mlx5_direct::DataSeg;

use crate::fork::lock;

/// Where the memory of a region is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// The device drops what it is to write to this region: that of `ibv_alloc_null_mr`.
    Null,
    /// The byte at the address `iova` of the region is at the program's address `at`.
    Moved { iova: u64, at: u64 },
    /// Addresses count from the page of the first byte on, or are the program's: devices differ in
    /// whether they look at `IBV_ACCESS_ZERO_BASED`.
    ZeroBased { at: u64, bytes: u64 },
    /// Not at addresses of the program that are known.
    Unreachable,
}

/// The regions of a context that are not addressed by the program's addresses, by their keys.
#[derive(Debug, Default)]
pub(crate) struct Regions {
    count: AtomicUsize,
    /// In the order of the keys.
    places: Mutex<Vec<(u32, Place)>>,
}

impl Regions {
    /// A region has this place from now on; `None`: where the program's addresses say. Called
    /// before the program has the key. Returns false without memory: then nothing was noted.
    #[must_use]
    pub(crate) fn set(&self, lkey: u32, place: Option<Place>) -> bool {
        if place.is_none() && self.count.load(Relaxed) == 0 {
            return true;
        }
        let mut places = lock(&self.places);
        match (places.binary_search_by_key(&lkey, |(key, _)| *key), place) {
            (Ok(at), Some(place)) => places[at].1 = place,
            (Ok(at), None) => drop(places.remove(at)),
            (Err(_), None) => {}
            (Err(at), Some(place)) => {
                if places.try_reserve(1).is_err() {
                    return false;
                }
                places.insert(at, (lkey, place));
            }
        }
        self.count.store(places.len(), Relaxed);
        true
    }

    /// Removes a region that is about to end; returns its place. All null MRs have one key, which
    /// stays.
    pub(crate) fn remove(&self, lkey: u32) -> Option<Place> {
        let place = self.place(lkey).filter(|place| *place != Place::Null)?;
        // Removing needs no memory.
        let _ = self.set(lkey, None);
        Some(place)
    }

    fn place(&self, lkey: u32) -> Option<Place> {
        if self.count.load(Relaxed) == 0 {
            return None;
        }
        let places = lock(&self.places);
        let at = places.binary_search_by_key(&lkey, |(key, _)| *key).ok()?;
        Some(places[at].1)
    }

    /// Whether the address of a segment is the program's. A few instructions, unless the context
    /// has regions where this is not so.
    #[inline(always)]
    pub(crate) fn is_ordinary(&self, segment: &DataSeg) -> bool {
        self.count.load(Relaxed) == 0 || self.place(segment.lkey()).is_none()
    }

    /// A segment with its address in the program; at address 0 if its bytes are to be dropped;
    /// `None` if the program cannot write there.
    pub(crate) fn locate(&self, segment: DataSeg) -> Option<DataSeg> {
        let address = segment.addr();
        let at = match self.place(segment.lkey()) {
            None => address,
            Some(Place::Null) => 0,
            Some(Place::Moved { iova, at }) => address.wrapping_sub(iova).wrapping_add(at),
            Some(Place::ZeroBased { at, bytes }) if address.wrapping_sub(at) < bytes => address,
            Some(Place::ZeroBased { at, .. }) => address.wrapping_add(at & !0xfff),
            Some(Place::Unreachable) => return None,
        };
        Some(DataSeg::new(at, segment.byte_count(), segment.lkey()))
    }
}
