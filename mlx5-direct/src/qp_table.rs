//! A lookup from QP number to the caller's context: two loads, for any number of QPs.
//!
//! QP numbers have 24 bits, and a device assigns them in clusters. The table is a directory of
//! 4,096 pages of 4,096 entries; only the pages in use are allocated.

use std::collections::TryReserveError;

use crate::table::table;

/// Entries of a page, and pages of the directory.
const PAGE: usize = 1 << 12;

#[derive(Debug)]
struct Page<T> {
    entries: Box<[Option<T>]>,
    used: usize,
}

/// A map from QP number (or user index), 24 bits, to a context.
///
/// ```
/// let mut table = mlx5_direct::QpTable::new();
/// table.insert(0x00_1234, "endpoint")?;
/// assert_eq!(table.get(0x00_1234), Some(&"endpoint"));
/// assert_eq!(table.get(0x00_1235), None);
/// # Ok::<(), std::collections::TryReserveError>(())
/// ```
#[derive(Debug)]
pub struct QpTable<T> {
    /// None before the first QP.
    pages: Box<[Option<Page<T>>]>,
    len: usize,
}

impl<T> Default for QpTable<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> QpTable<T> {
    /// An empty table. The first insertion allocates its directory of 96 KiB.
    pub fn new() -> Self {
        Self { pages: Box::default(), len: 0 }
    }

    /// The context of a QP.
    #[inline]
    pub fn get(&self, qpn: u32) -> Option<&T> {
        let (page, entry) = split(qpn);
        self.pages.get(page)?.as_ref()?.entries.get(entry)?.as_ref()
    }

    /// The context of a QP, for changes.
    #[inline]
    pub fn get_mut(&mut self, qpn: u32) -> Option<&mut T> {
        let (page, entry) = split(qpn);
        self.pages.get_mut(page)?.as_mut()?.entries.get_mut(entry)?.as_mut()
    }

    /// Sets the context of a QP and returns the previous one. Numbers beyond 24 bits are cut to 24.
    ///
    /// # Errors
    ///
    /// There is no memory for the directory or for the QP's page; the table does not change.
    pub fn insert(&mut self, qpn: u32, context: T) -> Result<Option<T>, TryReserveError> {
        let (page, entry) = split(qpn & 0x00ff_ffff);
        if self.pages.is_empty() {
            self.pages = table(PAGE, |_| None)?;
        }
        let page = match &mut self.pages[page] {
            Some(page) => page,
            none => none.insert(Page { entries: table(PAGE, |_| None)?, used: 0 }),
        };
        let before = page.entries[entry].replace(context);
        if before.is_none() {
            page.used += 1;
            self.len += 1;
        }
        Ok(before)
    }

    /// Removes the context of a QP.
    pub fn remove(&mut self, qpn: u32) -> Option<T> {
        let (index, entry) = split(qpn);
        let page = self.pages.get_mut(index)?.as_mut()?;
        let before = page.entries.get_mut(entry)?.take()?;
        page.used -= 1;
        self.len -= 1;
        if page.used == 0 {
            self.pages[index] = None;
        }
        Some(before)
    }

    /// QPs in the table.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the table has no QP.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

fn split(qpn: u32) -> (usize, usize) {
    (qpn as usize / PAGE, qpn as usize % PAGE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_of_qps_keep_their_contexts_until_removed() {
        let mut table = QpTable::new();
        let qpns: Vec<u32> = (0..20_000).map(|n| (n * 823 + 7) & 0x00ff_ffff).collect();
        for &q in &qpns {
            assert_eq!(table.insert(q, q * 2), Ok(None));
        }
        assert_eq!(table.len(), qpns.len());
        for &q in qpns.iter().step_by(2) {
            assert_eq!(table.remove(q), Some(q * 2));
            assert_eq!(table.remove(q), None);
        }
        for (n, q) in qpns.iter().enumerate() {
            assert_eq!(table.get(*q).copied(), (n % 2 == 1).then_some(q * 2));
        }
        assert_eq!(table.get(0x0100_0000), None);
    }
    #[test]
    fn a_page_goes_with_the_last_of_its_qps() {
        let mut table = QpTable::new();
        assert!(table.is_empty());
        for qpn in [4, 5] {
            table.insert(qpn, qpn).unwrap();
        }
        assert!(!table.is_empty());
        assert_eq!(table.remove(4), Some(4));
        assert_eq!((table.get(5), table.pages[0].is_some()), (Some(&5), true));
        assert_eq!(table.remove(5), Some(5));
        assert!(table.is_empty() && table.pages[0].is_none());
    }
}
