//! The LMR table, in which posts look up their segments.
//!
//! An LMR context is an index and a generation, not an lkey. A post therefore finds bounds, PZ,
//! privileges and lkey with one array access and no lock, and recognises a stale context. Entries
//! are written under the lock of `free` and read without a lock. A post that races with the free of
//! its own LMR may see the entry before or after it, as the device might.
//!
//! The process has one table, so that the first entries are in static memory: they take no physical
//! memory before they are used, and posts find them in one step. A context is valid in one IA only,
//! because no other IA has the LMR's PZ.

use crate::error::{Direction, PostError};
use crate::fork;
use crate::memory::table;
use crate::sync::{Mutex, rank};
use crate::types::{LmrTriplet, MemPriv};
use crate::{Error, Result, Subtype};
use mlx5_direct::wqe::SegmentKey;
use rxe_fallback::{Mr, Sge};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

const INDEX_BITS: u32 = 20;
/// The number of entries of the first chunk, in which posts look without a search. Each further chunk
/// has twice as many as the one before.
pub(super) const FIRST: usize = 1 << 14;
const CHUNKS: usize = ((1 << INDEX_BITS) / FIRST).ilog2() as usize;
/// The number of entries of all chunks.
const ENTRIES: usize = (FIRST << CHUNKS) - FIRST;

/// The properties of one LMR that a post checks. All bytes of an entry that was never used are zero.
#[derive(Debug)]
// One cache line.
#[repr(C, align(64))]
pub(super) struct LmrEntry {
    /// What a segment whose bytes the device reads has to name, as [`name`] makes it: 0 if no LMR is
    /// here.
    readable: AtomicU64,
    /// The same for a segment that the device writes: 0 also if it may not write to the LMR.
    writable: AtomicU64,
    pub(super) start: AtomicU64,
    /// The address behind the last byte.
    pub(super) end: AtomicU64,
    /// `lkey`, as a word of [`SegmentKey`].
    pub(super) key_word: AtomicU64,
    pub(super) lkey: AtomicU32,
    /// The number of the pool memory that occupies the entry; 0 for none. Then no post finds the
    /// entry, and of the other fields only `pool_pz` is set.
    pool_memory: AtomicU32,
    pool_pz: AtomicU32,
}

/// An LMR context with the number of a PZ.
#[inline(always)]
pub(super) const fn name(context: u32, pz: u32) -> u64 {
    context as u64 | (pz as u64) << 32
}

impl LmrEntry {
    const fn unused() -> Self {
        Self {
            readable: AtomicU64::new(0),
            writable: AtomicU64::new(0),
            start: AtomicU64::new(0),
            end: AtomicU64::new(0),
            key_word: AtomicU64::new(0),
            lkey: AtomicU32::new(0),
            pool_memory: AtomicU32::new(0),
            pool_pz: AtomicU32::new(0),
        }
    }

    /// The name under which posts of this direction find the LMR: see [`name`].
    #[inline(always)]
    pub(super) fn name(&self, direction: Direction) -> u64 {
        match direction {
            Direction::Read => self.readable.load(Ordering::Acquire),
            Direction::Write => self.writable.load(Ordering::Acquire),
        }
    }

    /// The context of the LMR; 0 for none.
    fn context(&self) -> u32 {
        self.readable.load(Ordering::Acquire) as u32
    }

    /// The PZ of the LMR.
    fn pz(&self) -> u32 {
        (self.readable.load(Ordering::Acquire) >> 32) as u32
    }

    /// Holds this LMR from now on. The name is written last.
    fn set(&self, context: u32, pz: u32, lkey: u32, (start, len): (u64, u64), privileges: MemPriv) {
        self.lkey.store(lkey, Ordering::Relaxed);
        self.key_word.store(SegmentKey::new(lkey).to_word(), Ordering::Relaxed);
        self.start.store(start, Ordering::Relaxed);
        self.end.store(start + len, Ordering::Relaxed);
        let name = name(context, pz);
        let writable = if privileges.contains(MemPriv::LOCAL_WRITE) { name } else { 0 };
        self.writable.store(writable, Ordering::Release);
        self.readable.store(name, Ordering::Release);
    }

    /// Makes contexts of this entry stale.
    fn clear(&self) {
        self.readable.store(0, Ordering::Release);
        self.writable.store(0, Ordering::Release);
        self.pool_memory.store(0, Ordering::Release);
    }
}

/// The first chunk.
pub(super) type First = [LmrEntry; FIRST];

/// LMRs by context.
pub(crate) struct LmrTable {
    pub(super) first: &'static First,
    /// The chunks behind the first.
    later: [OnceLock<Box<[LmrEntry]>>; CHUNKS - 1],
    free: Mutex<{ rank::TABLE }, FreeEntries>,
}

/// All LMRs of the process.
static LMRS: LmrTable = LmrTable::over(&ENTRIES_OF_FIRST);
static ENTRIES_OF_FIRST: First = [const { LmrEntry::unused() }; FIRST];

#[derive(Debug)]
struct FreeEntries {
    /// Freed entries, by index, with the generation that the next LMR gets.
    list: std::collections::VecDeque<(u32, u32)>,
    next: u32,
}

/// The chunk of entry `index`, and the entry's place in it.
#[inline(always)]
const fn place(index: usize) -> (usize, usize) {
    // Chunk n begins at index (FIRST << n) - FIRST.
    let from_first = index + FIRST;
    let highest = from_first.ilog2();
    ((highest - FIRST.ilog2()) as usize, from_first ^ 1 << highest)
}

/// The queue and the direction that a segment is checked for.
#[derive(Clone, Copy)]
pub(crate) struct Use {
    pub(crate) pz: u32,
    pub(crate) direction: Direction,
}

impl LmrTable {
    const fn over(first: &'static First) -> Self {
        Self {
            first,
            later: [const { OnceLock::new() }; CHUNKS - 1],
            free: Mutex::new(FreeEntries { list: std::collections::VecDeque::new(), next: 0 }),
        }
    }

    /// The table of the process. Registers its lock for forks. Called before the first LMR is created.
    pub(super) fn of_process() -> &'static Self {
        fork::share(fork::Part::Lmrs, || vec![Box::new(LMRS.free.hold())], || LMRS.forget());
        &LMRS
    }

    /// Creates the chunk of entry `index` if necessary. The caller holds the lock of `free`, so no
    /// other thread creates it.
    fn make_chunk_of(&self, index: usize) -> Result<()> {
        let (n, _) = place(index);
        if let Some(later) = n.checked_sub(1).map(|n| &self.later[n])
            && later.get().is_none()
        {
            let made = table(FIRST << n, |_| LmrEntry::unused())?;
            later.get_or_init(|| made);
        }
        Ok(())
    }

    /// The entry to which this context belongs, whether or not it names the entry's LMR. `None` if
    /// there is no such entry.
    fn entry(&self, context: u32) -> Option<&LmrEntry> {
        let (n, at) = place((context & ((1 << INDEX_BITS) - 1)) as usize);
        match n.checked_sub(1) {
            None => self.first.get(at),
            Some(n) => self.later.get(n)?.get()?.get(at),
        }
    }

    /// Checks one segment in the order of the rules (alive, privilege, PZ, bounds) and returns it
    /// with its lkey. A segment of length 0 is not checked and gives `None` (R52).
    #[inline]
    pub(crate) fn check(&self, n: u32, segment: &LmrTriplet, using: Use) -> Result<Option<Sge>, PostError> {
        if segment.segment_length == 0 {
            return Ok(None);
        }
        let direction = using.direction;
        let entry = self.entry(segment.lmr_context).ok_or(PostError::NoSuchLmr(n, direction))?;
        if segment.lmr_context == 0 || entry.context() != segment.lmr_context {
            return Err(PostError::NoSuchLmr(n, direction));
        }
        if entry.name(direction) == 0 {
            return Err(PostError::Privilege(n, direction));
        }
        if entry.pz() != using.pz {
            return Err(PostError::ProtectionZone(n, direction));
        }
        let end = segment
            .virtual_address
            .checked_add(u64::from(segment.segment_length))
            .ok_or(PostError::OutOfBounds(n))?;
        if segment.virtual_address < entry.start.load(Ordering::Relaxed)
            || end > entry.end.load(Ordering::Relaxed)
        {
            return Err(PostError::OutOfBounds(n));
        }
        Ok(Some(Sge {
            addr: segment.virtual_address,
            len: segment.segment_length,
            lkey: entry.lkey.load(Ordering::Relaxed),
        }))
    }

    /// Checks all segments of a post, writes those that are not empty to `sges`, and returns their
    /// number. `sges` is at least as long as `iov`.
    #[inline]
    pub(crate) fn check_all(
        &self,
        iov: &[LmrTriplet],
        using: Use,
        sges: &mut [Sge],
    ) -> Result<usize, PostError> {
        let mut n = 0;
        for (i, segment) in iov.iter().enumerate() {
            if let Some(sge) = self.check(i as u32, segment, using)? {
                sges[n] = sge;
                n += 1;
            }
        }
        Ok(n)
    }

    /// Whether the segment names a live LMR and lies within its bounds.
    pub(crate) fn covers(&self, segment: &LmrTriplet) -> bool {
        let Some(entry) = self.entry(segment.lmr_context) else { return false };
        let live = segment.lmr_context != 0 && entry.context() == segment.lmr_context;
        let end = u128::from(segment.virtual_address) + u128::from(segment.segment_length);
        live && segment.virtual_address >= entry.start.load(Ordering::Relaxed)
            && end <= u128::from(entry.end.load(Ordering::Relaxed))
    }

    /// Whether all these contexts name live LMRs or pool memory, in this PZ if one is given. A
    /// context of 0 is ignored.
    pub(crate) fn are_live(&self, contexts: &[u32], pz: Option<u32>) -> bool {
        let fits = |of: u32| pz.is_none_or(|pz| of == pz);
        let holds = |entry: &LmrEntry, context: u32| {
            entry.context() == context && fits(entry.pz())
                || entry.pool_memory.load(Ordering::Acquire) == context
                    && fits(entry.pool_pz.load(Ordering::Relaxed))
        };
        contexts
            .iter()
            .filter(|&&context| context != 0)
            .all(|&context| self.entry(context).is_some_and(|entry| holds(entry, context)))
    }

    /// Adds an LMR and returns its context. `base` is the address of the LMR's first byte in
    /// segments.
    pub(crate) fn insert(&self, mr: &Mr, base: u64, pz: u32, privileges: MemPriv) -> Result<u32> {
        self.insert_bytes(mr.lkey(), (base, mr.len() as u64), pz, privileges)
    }

    pub(super) fn insert_bytes(
        &self,
        lkey: u32,
        bytes: (u64, u64),
        pz: u32,
        privileges: MemPriv,
    ) -> Result<u32> {
        let (context, entry) = self.take_entry(&mut self.free.lock().unwrap())?;
        entry.set(context, pz, lkey, bytes, privileges);
        Ok(context)
    }

    /// Adds the memory of a pool, which no post finds. The lkey and the bounds are not written: a
    /// post that races with the free of the entry's former LMR must not find those of the pool.
    pub(crate) fn insert_pool_memory(&self, pz: u32) -> Result<u32> {
        let (number, entry) = self.take_entry(&mut self.free.lock().unwrap())?;
        entry.pool_pz.store(pz, Ordering::Relaxed);
        entry.pool_memory.store(number, Ordering::Release);
        Ok(number)
    }

    fn take_entry(&self, free: &mut FreeEntries) -> Result<(u32, &LmrEntry)> {
        // Room for every entry, so that freeing an LMR needs no memory.
        let all = free.next as usize + 1;
        let given_back = free.list.len();
        free.list.try_reserve(all - given_back)?;
        // An entry is used again only when 64 others are free, so that a stale context is
        // recognised for longer.
        let (index, generation) = if free.list.len() > 64 || free.next as usize == ENTRIES {
            free.list.pop_front().ok_or_else(|| {
                Error::resources(
                    Subtype::ResourceMemoryRegion,
                    "all LMR contexts of this process are in use: free LMRs that are not needed",
                )
            })?
        } else {
            self.make_chunk_of(free.next as usize)?;
            free.next += 1;
            (free.next - 1, 1)
        };
        let context = generation << INDEX_BITS | index;
        let entry = self.entry(context).unwrap_or_else(|| unreachable!("the chunk was created"));
        Ok((context, entry))
    }

    /// In a forked child: no post finds an LMR of the parent any more.
    pub(super) fn forget(&self) {
        let later = self.later.iter().filter_map(OnceLock::get).flatten();
        for entry in self.first.iter().chain(later) {
            // Memory that was not touched stays so.
            if entry.context() != 0 {
                entry.clear();
            }
        }
    }

    pub(crate) fn remove(&self, context: u32) {
        let mut free = self.free.lock().unwrap();
        if let Some(entry) = self.entry(context) {
            entry.clear();
        }
        let generation = (context >> INDEX_BITS) % ((1 << (32 - INDEX_BITS)) - 1) + 1;
        free.list.push_back((context & ((1 << INDEX_BITS) - 1), generation));
    }
}

#[cfg(test)]
impl LmrTable {
    /// A table of its own.
    pub(super) fn for_test() -> &'static Self {
        let first = Box::leak(table(FIRST, |_| LmrEntry::unused()).unwrap());
        Box::leak(Box::new(Self::over((&*first).try_into().unwrap())))
    }
}

impl std::fmt::Debug for LmrTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LmrTable").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A post that races with the free of the entry's former LMR does not find the pool memory
    /// either.
    #[test]
    fn no_context_finds_the_memory_of_a_pool() {
        let table = LmrTable::for_test();
        let number = table.insert_pool_memory(7).unwrap();
        let segment = LmrTriplet { virtual_address: 0, segment_length: 1, lmr_context: number };
        for direction in [Direction::Read, Direction::Write] {
            assert_eq!(
                table.check(0, &segment, Use { pz: 7, direction }),
                Err(PostError::NoSuchLmr(0, direction))
            );
        }
        assert!(!table.covers(&segment));
        for direction in [Direction::Read, Direction::Write] {
            assert_ne!(table.entry(number).unwrap().name(direction), name(number, 7));
        }
        assert!(table.are_live(&[number, 0], Some(7)) && !table.are_live(&[number], Some(8)));
        table.remove(number);
        assert!(!table.are_live(&[number], None));
    }

    /// No entry has two indices, and all lie within the chunks.
    #[test]
    fn the_chunks_follow_each_other() {
        let mut expected = (0..CHUNKS).flat_map(|chunk| (0..FIRST << chunk).map(move |at| (chunk, at)));
        for index in 0..ENTRIES {
            assert_eq!(Some(place(index)), expected.next());
        }
        assert_eq!(expected.next(), None);
        assert_eq!(place((1 << INDEX_BITS) - 1).0, CHUNKS, "a context without an entry has no chunk");
    }

    /// LMRs of several chunks are found by their contexts, and no others.
    #[test]
    fn each_context_has_its_entry() {
        let table = LmrTable::for_test();
        let numbers: Vec<u32> =
            (0..FIRST as u32 * 5).map(|pz| table.insert_pool_memory(pz).unwrap()).collect();
        for (pz, &number) in (0..).zip(&numbers) {
            assert!(table.are_live(&[number], Some(pz)) && !table.are_live(&[number], Some(pz + 1)));
        }
        let beyond = numbers.last().unwrap() + 1;
        assert!(!table.are_live(&[beyond], None) && !table.are_live(&[u32::MAX], None));
    }
}
