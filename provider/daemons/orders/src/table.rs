//! A table from 64-bit keys to numbers. It never allocates after its creation, and its order does not
//! depend on a random seed.

/// Open addressing with linear search; a removal moves later entries back, so that nothing is left
/// behind. At most half of the places are in use.
#[derive(Debug)]
pub struct Table {
    places: Vec<(u64, u32)>,
    /// One less than the number of places, which is a power of two.
    mask: usize,
    used: usize,
}

/// No entry has this number.
const NONE: u32 = u32::MAX;

impl Table {
    /// A table for this many keys.
    pub fn new(most: usize) -> Self {
        let places = (2 * most).next_power_of_two().max(2);
        Self { places: vec![(0, NONE); places], mask: places - 1, used: 0 }
    }

    /// The place where a key is looked for first.
    #[inline]
    fn home(&self, key: u64) -> usize {
        // Fibonacci hashing: the upper bits depend on all bits of the key.
        (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize & self.mask
    }

    /// The place of a key, or the free place where it would be.
    #[inline]
    fn find(&self, key: u64) -> usize {
        let mut at = self.home(key);
        while self.places[at].1 != NONE && self.places[at].0 != key {
            at = (at + 1) & self.mask;
        }
        at
    }

    /// The number of a key.
    #[inline]
    pub fn get(&self, key: u64) -> Option<u32> {
        let number = self.places[self.find(key)].1;
        (number != NONE).then_some(number)
    }

    /// Adds a key. Returns false, and changes nothing, if the key is there or the table is full.
    #[inline]
    pub fn insert(&mut self, key: u64, number: u32) -> bool {
        let at = self.find(key);
        if self.places[at].1 != NONE || number == NONE || self.used > self.mask / 2 {
            return false;
        }
        self.places[at] = (key, number);
        self.used += 1;
        true
    }

    /// Removes a key.
    #[inline]
    pub fn remove(&mut self, key: u64) {
        let mut hole = self.find(key);
        if self.places[hole].1 == NONE {
            return;
        }
        self.used -= 1;
        let mut at = hole;
        loop {
            at = (at + 1) & self.mask;
            let (key, number) = self.places[at];
            if number == NONE {
                break;
            }
            // An entry may move to the hole unless its home lies behind the hole.
            let (from_home, from_hole) = (at.wrapping_sub(self.home(key)), at.wrapping_sub(hole));
            if from_home & self.mask >= from_hole & self.mask {
                self.places[hole] = self.places[at];
                hole = at;
            }
        }
        self.places[hole].1 = NONE;
    }

    /// The number of keys.
    pub fn len(&self) -> usize {
        self.used
    }

    /// Whether there is no key.
    pub fn is_empty(&self) -> bool {
        self.used == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        /// As a map, with keys that share homes.
        #[test]
        fn a_table_is_a_map(steps in proptest::collection::vec((0u8..3, 0u64..40), 1..400)) {
            let mut table = Table::new(16);
            let mut map = BTreeMap::new();
            for (n, (what, key)) in (0..).zip(steps) {
                match what {
                    0 => {
                        let fits = !map.contains_key(&key) && map.len() < 16;
                        prop_assert_eq!(table.insert(key, n), fits);
                        if fits {
                            map.insert(key, n);
                        }
                    }
                    1 => {
                        table.remove(key);
                        map.remove(&key);
                    }
                    _ => prop_assert_eq!(table.get(key), map.get(&key).copied()),
                }
                prop_assert_eq!(table.len(), map.len());
            }
            for key in 0..40 {
                prop_assert_eq!(table.get(key), map.get(&key).copied());
            }
        }
    }
}
