//! Tables of objects by small index.

/// A table that reuses an index as late as possible, so that a stale number rarely names a new
/// object.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    entries: Vec<Option<T>>,
    free: std::collections::VecDeque<usize>,
    limit: usize,
    len: usize,
    eager: bool,
    again: bool,
}

impl<T> Slab<T> {
    /// A table with indices below `limit`.
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            entries: Vec::new(),
            free: std::collections::VecDeque::new(),
            limit,
            len: 0,
            eager: false,
            again: false,
        }
    }

    /// A table that reuses free indices at once, so that the table stays small.
    pub(crate) fn compact(limit: usize) -> Self {
        Self { eager: true, ..Self::new(limit) }
    }

    /// The next object gets the index that became free last.
    pub(crate) fn use_again(&mut self) {
        self.again = true;
    }

    /// Puts an object in and returns its index; `None` when the table is full.
    pub(crate) fn insert(&mut self, value: T) -> Option<usize> {
        let reuse = self.eager && !self.free.is_empty();
        let last = if std::mem::take(&mut self.again) { self.free.pop_back() } else { None };
        let index = if let Some(last) = last {
            last
        } else if self.entries.len() < self.limit && !reuse {
            self.entries.push(None);
            self.entries.len() - 1
        } else {
            self.free.pop_front()?
        };
        self.entries[index] = Some(value);
        self.len += 1;
        Some(index)
    }

    /// Takes an object out.
    pub(crate) fn remove(&mut self, index: usize) -> Option<T> {
        let value = self.entries.get_mut(index)?.take()?;
        self.free.push_back(index);
        self.len -= 1;
        Some(value)
    }

    #[inline(always)]
    pub(crate) fn get(&self, index: usize) -> Option<&T> {
        self.entries.get(index)?.as_ref()
    }

    #[inline(always)]
    pub(crate) fn get_mut(&mut self, index: usize) -> Option<&mut T> {
        self.entries.get_mut(index)?.as_mut()
    }

    /// One past the highest index in use.
    pub(crate) fn capacity(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (usize, &T)> {
        self.entries.iter().enumerate().filter_map(|(i, e)| e.as_ref().map(|e| (i, e)))
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (usize, &mut T)> {
        self.entries.iter_mut().enumerate().filter_map(|(i, e)| e.as_mut().map(|e| (i, e)))
    }
}

impl<T> std::ops::Index<usize> for Slab<T> {
    type Output = T;
    #[inline(always)]
    fn index(&self, index: usize) -> &T {
        self.entries[index].as_ref().expect("a live object's index")
    }
}

impl<T> std::ops::IndexMut<usize> for Slab<T> {
    #[inline(always)]
    fn index_mut(&mut self, index: usize) -> &mut T {
        self.entries[index].as_mut().expect("a live object's index")
    }
}
