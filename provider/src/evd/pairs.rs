//! The objects of completions, by number.

use crate::queue_pair::QueuePair;
use crate::types::ByNumber;
use std::collections::TryReserveError;
use std::sync::Arc;

/// Maps the number of a QP or an SRQ to its object. Each completion needs one lookup.
pub(crate) type Numbered<T> = ByNumber<u32, Arc<T>>;

/// Queue pairs by QP number. The devices number QPs in ascending order, so a small table by the low
/// bits finds most of them without a hash.
#[derive(Debug)]
pub(crate) struct Pairs<P = QueuePair> {
    near: [Near<P>; NEAR],
    all: Numbered<P>,
}

impl<P> Default for Pairs<P> {
    fn default() -> Self {
        Self { near: [const { Near { swapped: 0, pair: None } }; NEAR], all: Numbered::default() }
    }
}

/// A place of the small table.
#[derive(Debug)]
struct Near<P> {
    /// The number with its bytes swapped, as it is in a completion of the direct path.
    swapped: u32,
    pair: Option<Arc<P>>,
}

/// Places of the small table.
const NEAR: usize = 64;

impl<P> Pairs<P> {
    /// The queue pair with this number.
    #[inline(always)]
    pub(crate) fn get(&self, qpn: u32) -> Option<&Arc<P>> {
        self.get_near(qpn).or_else(|| self.get_far(qpn))
    }

    /// The queue pair with this number, if it is in the small table.
    #[inline(always)]
    pub(crate) fn get_near(&self, qpn: u32) -> Option<&Arc<P>> {
        let place = &self.near[qpn as usize % NEAR];
        place.pair.as_ref().filter(|_| place.swapped == qpn.swap_bytes())
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
        let place = &mut self.near[qpn as usize % NEAR];
        let swapped = qpn.swap_bytes();
        if place.pair.is_none() || place.swapped == swapped {
            *place = Near { swapped, pair: Some(pair.clone()) };
        }
        Ok(())
    }

    pub(crate) fn remove(&mut self, qpn: u32) {
        self.all.remove(&qpn);
        let place = &mut self.near[qpn as usize % NEAR];
        if place.swapped == qpn.swap_bytes() {
            place.pair = None;
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

    /// Numbers in ascending order, as devices assign them, are in the small table; further ones are
    /// found, too.
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
            let near = qpn - FIRST < NEAR as u32;
            assert_eq!(pairs.get_near(qpn).map(|pair| **pair), near.then_some(qpn));
        }
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
