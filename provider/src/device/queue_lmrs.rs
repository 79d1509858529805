//! The LMRs of a queue.

use super::lmr_table::{FIRST, First, LmrEntry, LmrTable, name};
use crate::datapath::Segment;
use crate::error::Direction;
use crate::hint::likely;
use crate::types::LmrTriplet;
use std::sync::atomic::Ordering;

/// The LMRs that the posts of a queue may name: the LMR table as the queue's posts look it up,
/// without a lock.
///
/// `None` as an answer says only that the slow function has to make all checks. It is the answer
/// while the queue is closed, for an LMR outside the table's first chunk, and for a segment that is
/// empty.
#[derive(Debug)]
pub(crate) struct QueueLmrs {
    /// The first chunk of the table.
    first: &'static First,
    /// The name of context 0 in the queue's PZ.
    pz: u64,
    /// The most bytes of a post; 0 while the queue is closed.
    longest: u32,
}

impl QueueLmrs {
    /// The LMRs of this PZ, for a queue that is closed.
    pub(crate) fn closed(table: &LmrTable, pz: u32) -> Self {
        Self { first: table.first, pz: name(0, pz), longest: 0 }
    }

    /// From now on, a post of up to `longest` bytes whose segments are found here needs no other
    /// check.
    pub(crate) fn open(&mut self, longest: u32) {
        self.longest = longest;
    }

    /// From now on, no post finds its LMRs.
    pub(crate) fn close(&mut self) {
        self.longest = 0;
    }

    /// The LMR of this context, if it is in the PZ and has the privilege.
    #[inline(always)]
    fn lmr(&self, context: u32, direction: Direction) -> Option<&LmrEntry> {
        // The entry of an LMR in another chunk has another name here.
        let entry = &self.first[context as usize % FIRST];
        likely(entry.name(direction) == self.pz | u64::from(context)).then_some(entry)
    }

    /// Finds the LMRs of the segments of one post, one after the other.
    #[inline(always)]
    pub(crate) fn finder(&self, direction: Direction) -> Finder<'_> {
        Finder { lmrs: self, direction, last: None }
    }

    /// The segments of a post, in the form of a data path, with the sum of their lengths, which is
    /// not above the longest post.
    #[inline(always)]
    pub(crate) fn segments<S: Segment, const N: usize>(
        &self,
        segments: &[LmrTriplet; N],
        direction: Direction,
    ) -> Option<([S; N], u32)> {
        let mut finder = self.finder(direction);
        let mut found = [S::NONE; N];
        let mut length = 0;
        for (to, segment) in found.iter_mut().zip(segments) {
            let len;
            (*to, len) = segment_in(finder.lmr(segment)?, segment)?;
            length += u64::from(len);
        }
        likely(length <= self.longest.into()).then_some((found, length as u32))
    }
}

/// See [`QueueLmrs::finder`]. An LMR that the segment before named is not looked up again.
pub(crate) struct Finder<'a> {
    lmrs: &'a QueueLmrs,
    direction: Direction,
    last: Option<(u32, &'a LmrEntry)>,
}

impl<'a> Finder<'a> {
    #[inline(always)]
    fn lmr(&mut self, segment: &LmrTriplet) -> Option<&'a LmrEntry> {
        let context = segment.lmr_context;
        match self.last {
            Some((last, lmr)) if likely(last == context) => Some(lmr),
            _ => {
                let lmr = self.lmrs.lmr(context, self.direction)?;
                self.last = Some((context, lmr));
                Some(lmr)
            }
        }
    }

    /// The segment, in the form of a data path. The longest post is not compared.
    #[inline(always)]
    pub(crate) fn segment<S: Segment>(&mut self, segment: &LmrTriplet) -> Option<S> {
        Some(segment_in(self.lmr(segment)?, segment)?.0)
    }
}

/// Address and length of a segment that names this LMR, if it lies inside and has one byte or more.
///
/// They are read here, once: read before the LMR was found, they would occupy registers, and read
/// by the caller, they would be read again.
#[inline(always)]
fn bytes_in(lmr: &LmrEntry, segment: &LmrTriplet) -> Option<(u64, u32)> {
    let LmrTriplet { virtual_address: from, segment_length: len, .. } = *segment;
    let to = from.wrapping_add(len.into());
    // Plain branches. `to` is not behind `from` if the segment is empty, or if the sum overflows.
    let inside = likely(to > from)
        && likely(from >= lmr.start.load(Ordering::Relaxed))
        && likely(to <= lmr.end.load(Ordering::Relaxed));
    inside.then_some((from, len))
}

/// The segment, with its length.
#[inline(always)]
fn segment_in<S: Segment>(lmr: &LmrEntry, segment: &LmrTriplet) -> Option<(S, u32)> {
    let (addr, len) = bytes_in(lmr, segment)?;
    let (lkey, key_word) = (|| lmr.lkey.load(Ordering::Relaxed), || lmr.key_word.load(Ordering::Relaxed));
    Some((S::new(addr, len, lkey, key_word), len))
}

#[cfg(test)]
mod tests {
    use super::super::lmr_table::Use;
    use super::*;
    use crate::types::MemPriv;
    use mlx5_direct::DataSeg;
    use mlx5_direct::wqe::KeyedSeg;
    use rxe_fallback::Sge;

    const PZ: u32 = 7;
    const START: u64 = 0x1000;
    const LEN: u64 = 0x1000;

    fn lmr(table: &LmrTable, lkey: u32, pz: u32, privileges: MemPriv) -> LmrTriplet {
        let lmr_context = table.insert_bytes(lkey, (START, LEN), pz, privileges).unwrap();
        LmrTriplet { virtual_address: START, segment_length: 8, lmr_context }
    }

    fn table() -> &'static LmrTable {
        LmrTable::for_test()
    }

    fn lkey(lmrs: &QueueLmrs, segment: &LmrTriplet, direction: Direction) -> Option<u32> {
        lmrs.segments::<Sge, 1>(&[*segment], direction).map(|([sge], _)| sge.lkey)
    }

    /// Whether a post of these segments finds them on neither path.
    fn finds_none<const N: usize>(lmrs: &QueueLmrs, segments: &[LmrTriplet; N]) -> bool {
        let read = Direction::Read;
        lmrs.segments::<Sge, N>(segments, read).is_none()
            && lmrs.segments::<KeyedSeg, N>(segments, read).is_none()
    }

    /// Each of many LMRs, until it is freed; none of another PZ, and none without the privilege.
    #[test]
    fn a_queue_finds_the_lmrs_of_its_pz() {
        let table = table();
        let mut lmrs = QueueLmrs::closed(table, PZ);
        lmrs.open(20);
        let all: Vec<_> = (1..100).map(|lkey| lmr(table, lkey, PZ, MemPriv::LOCAL_WRITE)).collect();
        for direction in [Direction::Read, Direction::Write] {
            for (expected, segment) in (1..).zip(&all) {
                assert_eq!(lkey(&lmrs, segment, direction), Some(expected));
            }
            let foreign = lmr(table, 200, PZ + 1, MemPriv::LOCAL_WRITE);
            assert_eq!(lkey(&lmrs, &foreign, direction), None);
        }
        let read_only = lmr(table, 201, PZ, MemPriv::LOCAL_READ);
        assert_eq!(lkey(&lmrs, &read_only, Direction::Read), Some(201));
        assert_eq!(lkey(&lmrs, &read_only, Direction::Write), None);
        table.remove(all[5].lmr_context);
        assert_eq!(lkey(&lmrs, &all[5], Direction::Read), None);
        assert_eq!(lkey(&lmrs, &all[6], Direction::Read), Some(7));
        // 65 others are freed: the entry is used again, with another context.
        all[10..75].iter().for_each(|segment| table.remove(segment.lmr_context));
        let next = lmr(table, 300, PZ, MemPriv::LOCAL_WRITE);
        assert_eq!(next.lmr_context as usize % FIRST, all[5].lmr_context as usize % FIRST);
        assert_eq!(lkey(&lmrs, &next, Direction::Write), Some(300));
        assert_eq!(lkey(&lmrs, &all[5], Direction::Write), None);
    }

    /// The lengths of the segments, and their sum.
    #[test]
    fn no_post_is_longer_than_the_longest() {
        let table = table();
        let [a, b, c] = [1, 2, 3].map(|lkey| lmr(table, lkey, PZ, MemPriv::LOCAL_WRITE));
        let mut lmrs = QueueLmrs::closed(table, PZ);
        let read = Direction::Read;
        assert!(finds_none(&lmrs, &[a]), "closed");
        lmrs.open(20);
        let lkeys = |found: Option<([Sge; 3], u32)>| found.map(|(sges, n)| (sges.map(|sge| sge.lkey), n));
        assert!(finds_none(&lmrs, &[a, b, c]), "24");
        let short = [a, b, c].map(|segment| LmrTriplet { segment_length: 5, ..segment });
        assert_eq!(lkeys(lmrs.segments(&short, read)), Some(([1, 2, 3], 15)));
        let (segments, length) = lmrs.segments::<KeyedSeg, 3>(&short, read).unwrap();
        let expected = [1, 2, 3].map(|lkey| DataSeg::new(START, 5, lkey));
        assert_eq!((segments.map(DataSeg::from), length), (expected, 15));
        let long = LmrTriplet { segment_length: 21, ..a };
        assert!(finds_none(&lmrs, &[long]));
        let empty = LmrTriplet { segment_length: 0, ..b };
        assert!(finds_none(&lmrs, &[a, empty]));
        lmrs.close();
        assert!(finds_none(&lmrs, &[a]), "closed again");
    }

    /// At both ends, without a byte, at the end of the address space, and with another context.
    #[test]
    fn a_segment_lies_inside_its_lmr() {
        let table = table();
        let context = lmr(table, 9, PZ, MemPriv::LOCAL_WRITE).lmr_context;
        let mut lmrs = QueueLmrs::closed(table, PZ);
        lmrs.open(u32::MAX);
        let end = START + LEN;
        let addresses = [0, START - 1, START, START + 1, end - 1, end, end + 1, u64::MAX - 1, u64::MAX];
        let lengths = [0, 1, 2, 0xfff, 0x1000, 0x1001, u32::MAX];
        for virtual_address in addresses {
            for segment_length in lengths {
                for lmr_context in [0, context - 1, context, context + 1, context + (1 << 20)] {
                    let segment = LmrTriplet { virtual_address, segment_length, lmr_context };
                    let inside = u128::from(virtual_address) >= START.into()
                        && u128::from(virtual_address) + u128::from(segment_length) <= end.into();
                    let expected = inside && segment_length > 0 && lmr_context == context;
                    for direction in [Direction::Read, Direction::Write] {
                        let key = expected.then_some(9);
                        assert_eq!(lkey(&lmrs, &segment, direction), key, "{segment:?}");
                        let found = lmrs.finder(direction).segment::<KeyedSeg>(&segment);
                        let for_device = found.map(DataSeg::from);
                        let same = DataSeg::new(virtual_address, segment_length, 9);
                        assert_eq!(for_device, expected.then_some(same), "{segment:?}");
                    }
                }
            }
        }
    }

    /// An LMR that is not in the first chunk is left to the slow function.
    #[test]
    fn lmrs_of_later_chunks_are_not_confused_with_those_of_the_first() {
        let table = table();
        let all: Vec<_> = (0..FIRST as u32 + 2).map(|n| lmr(table, n, PZ, MemPriv::LOCAL_WRITE)).collect();
        let mut lmrs = QueueLmrs::closed(table, PZ);
        lmrs.open(20);
        let write = Direction::Write;
        for (n, segment) in (0..).zip(&all) {
            let expected = (n < FIRST as u32).then_some(n);
            assert_eq!(lkey(&lmrs, segment, write), expected);
            let checked = table.check(0, segment, Use { pz: PZ, direction: write }).unwrap().unwrap();
            assert_eq!(checked.lkey, n);
        }
    }

    /// In a forked child.
    #[test]
    fn a_child_finds_no_lmr_of_its_parent() {
        let table = table();
        let all: Vec<_> = (0..FIRST as u32 + 2).map(|n| lmr(table, n, PZ, MemPriv::LOCAL_WRITE)).collect();
        let mut lmrs = QueueLmrs::closed(table, PZ);
        lmrs.open(20);
        table.forget();
        for segment in &all {
            assert_eq!(lkey(&lmrs, segment, Direction::Read), None);
            assert!(!table.covers(segment));
        }
    }
}
