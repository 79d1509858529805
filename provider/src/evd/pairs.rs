//! The objects of completions, by number.

use crate::memory::table;
use crate::queue_pair::QueuePair;
use crate::types::ByNumber;
use std::collections::TryReserveError;
use std::sync::Arc;

/// Maps the number of a QP or an SRQ to its object. Each completion needs one lookup.
pub(crate) type Numbered<T> = ByNumber<u32, Arc<T>>;

/// Queue pairs by QP number. The devices number QPs in ascending order, so tables by the low bits
/// find most of them without a hash: a small one, and a wide one for those that have no place there.
#[derive(Debug)]
pub(crate) struct Pairs<P = QueuePair> {
    near: [Near<P>; NEAR],
    /// Empty, or a power of two of places.
    wide: Box<[Near<P>]>,
    all: Numbered<P>,
}

impl<P> Default for Pairs<P> {
    fn default() -> Self {
        Self { near: [const { Near::NONE }; NEAR], wide: Box::default(), all: Numbered::default() }
    }
}

/// A place of a table.
#[derive(Debug)]
struct Near<P> {
    /// The number with its bytes swapped, as it is in a completion of the direct path.
    swapped: u32,
    pair: Option<Arc<P>>,
}

impl<P> Near<P> {
    const NONE: Self = Self { swapped: 0, pair: None };

    #[inline(always)]
    fn get(&self, qpn: u32) -> Option<&Arc<P>> {
        self.pair.as_ref().filter(|_| self.swapped == qpn.swap_bytes())
    }

    /// Whether the number now has this place, which is free or was the number's before.
    fn put(&mut self, qpn: u32, pair: &Arc<P>) -> bool {
        let is_free = self.pair.is_none() || self.get(qpn).is_some();
        if is_free {
            *self = Self { swapped: qpn.swap_bytes(), pair: Some(pair.clone()) };
        }
        is_free
    }

    fn remove(&mut self, qpn: u32) {
        if self.get(qpn).is_some() {
            self.pair = None;
        }
    }
}

/// Places of the small table.
const NEAR: usize = 64;

/// The most places of the wide table.
const WIDEST: usize = 8192;

impl<P> Pairs<P> {
    /// The queue pair with this number.
    #[inline(always)]
    pub(crate) fn get(&self, qpn: u32) -> Option<&Arc<P>> {
        self.get_near(qpn).or_else(|| self.get_far(qpn))
    }

    /// The queue pair with this number, if it is in a table by the low bits.
    #[inline(always)]
    pub(crate) fn get_near(&self, qpn: u32) -> Option<&Arc<P>> {
        self.near[qpn as usize % NEAR].get(qpn).or_else(|| self.wide.get(self.place(qpn))?.get(qpn))
    }

    /// The place of a number in the wide table.
    #[inline(always)]
    fn place(&self, qpn: u32) -> usize {
        qpn as usize & self.wide.len().wrapping_sub(1)
    }

    #[inline(never)]
    fn get_far(&self, qpn: u32) -> Option<&Arc<P>> {
        self.all.get(&qpn)
    }

    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    /// Assigns the number to this queue pair.
    ///
    /// # Errors
    /// No memory. A number that is assigned already needs none.
    pub(crate) fn put(&mut self, qpn: u32, pair: &Arc<P>) -> Result<(), TryReserveError> {
        put(&mut self.all, qpn, pair)?;
        self.put_near(qpn, pair);
        if self.all.len() > NEAR.max(self.wide.len()) && self.wide.len() < WIDEST {
            self.widen();
        }
        Ok(())
    }

    fn put_near(&mut self, qpn: u32, pair: &Arc<P>) {
        let place = self.place(qpn);
        let is_near = self.near[qpn as usize % NEAR].put(qpn, pair);
        let Some(place) = self.wide.get_mut(place) else { return };
        if is_near {
            place.remove(qpn);
        } else {
            place.put(qpn, pair);
        }
    }

    /// Makes the wide table larger. Without memory it stays as it is: the other table has all.
    #[cold]
    fn widen(&mut self) {
        let places = (2 * self.all.len()).next_power_of_two().min(WIDEST);
        let Ok(wide) = table(places, |_| Near::NONE) else { return };
        self.wide = wide;
        let all = std::mem::take(&mut self.all);
        all.iter().for_each(|(&qpn, pair)| self.put_near(qpn, pair));
        self.all = all;
    }

    pub(crate) fn remove(&mut self, qpn: u32) {
        self.all.remove(&qpn);
        self.near[qpn as usize % NEAR].remove(qpn);
        let place = self.place(qpn);
        if let Some(place) = self.wide.get_mut(place) {
            place.remove(qpn);
        }
    }
}

/// Puts an object into the table, and allocates memory if the table has no room.
pub(crate) fn put<T>(table: &mut Numbered<T>, number: u32, object: &Arc<T>) -> Result<(), TryReserveError> {
    if let Some(place) = table.get_mut(&number) {
        *place = object.clone();
        return Ok(());
    }
    table.try_reserve(1)?;
    table.insert(number, object.clone());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers in ascending order, as devices assign them, are in the tables by their low bits; others
    /// are found, too.
    #[test]
    fn a_pair_is_found_by_its_number_alone() {
        const FIRST: u32 = 0x1234;
        let mut pairs = Pairs::<u32>::default();
        let numbers = FIRST..FIRST + 3 * NEAR as u32;
        for qpn in numbers.clone() {
            assert!(pairs.get(qpn).is_none());
            pairs.put(qpn, &Arc::new(qpn)).unwrap();
        }
        assert_eq!(pairs.len(), 3 * NEAR);
        for qpn in numbers.clone() {
            assert_eq!(pairs.get(qpn).map(|pair| **pair), Some(qpn));
            assert_eq!(pairs.get_near(qpn).map(|pair| **pair), Some(qpn));
        }
        // No place is left for this number.
        let distant = FIRST + NEAR as u32 + pairs.wide.len() as u32;
        pairs.put(distant, &Arc::new(distant)).unwrap();
        assert_eq!(pairs.get(distant).map(|pair| **pair), Some(distant));
        assert!(pairs.get_near(distant).is_none());
        pairs.remove(distant);
        assert!(pairs.get(distant).is_none());
        // A number that is assigned anew.
        for qpn in [FIRST, FIRST + NEAR as u32] {
            pairs.put(qpn, &Arc::new(1)).unwrap();
            assert_eq!(pairs.get(qpn).map(|pair| **pair), Some(1));
        }
        assert_eq!(pairs.len(), 3 * NEAR);
        // The place of one that is gone goes to the next with the same low bits.
        pairs.remove(FIRST + NEAR as u32);
        assert!(pairs.get(FIRST + NEAR as u32).is_none());
        assert_eq!(pairs.get_near(FIRST).map(|pair| **pair), Some(1));
        pairs.remove(FIRST);
        assert!(pairs.get(FIRST).is_none());
        assert_eq!(pairs.get(FIRST + 2 * NEAR as u32).map(|pair| **pair), Some(FIRST + 2 * NEAR as u32));
        let last = Arc::new(2);
        pairs.put(FIRST + 3 * NEAR as u32, &last).unwrap();
        assert_eq!(pairs.get_near(FIRST + 3 * NEAR as u32).map(|pair| **pair), Some(2));
        assert_eq!(Arc::strong_count(&last), 3);
        for qpn in FIRST..FIRST + 4 * NEAR as u32 {
            pairs.remove(qpn);
            assert!(pairs.get(qpn).is_none());
        }
        assert_eq!((pairs.len(), Arc::strong_count(&last)), (0, 1));
    }
}
