//! The LMR table, in which posts look up their segments.
//!
//! An LMR context is an index and a generation, not an lkey. A post therefore finds bounds, PZ,
//! privileges and lkey with one array access and no lock, and recognises a stale context. Entries
//! are written under the lock of `free` and read without a lock. A post that races with the free of
//! its own LMR may see the entry before or after it, as the device might.

use crate::error::{Direction, PostError};
use crate::memory::table;
use crate::sync::{Mutex, rank};
use crate::types::{LmrTriplet, MemPriv};
use crate::{Error, Result, Subtype};
use mlx5_direct::wqe::{KeyedSeg, SegmentKey};
use rxe_fallback::{Mr, Sge};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

const INDEX_BITS: u32 = 20;
/// The number of entries of the first chunk. Each further chunk has twice as many as the one before.
const FIRST: usize = 64;
const CHUNKS: usize = ((1 << INDEX_BITS) / FIRST).ilog2() as usize;
/// The number of entries of all chunks.
const ENTRIES: usize = (FIRST << CHUNKS) - FIRST;

/// The properties of one LMR that a post checks. A dead entry has context 0.
#[derive(Debug, Default)]
struct LmrEntry {
    context: AtomicU32,
    /// The number of the pool memory that occupies the entry; 0 for none. Then `context` is 0, so
    /// that no post finds it, and of the fields below only `pz` is set.
    pool_memory: AtomicU32,
    lkey: AtomicU32,
    pz: AtomicU32,
    privileges: AtomicU32,
    start: AtomicU64,
    end: AtomicU64,
}

type Chunk = [LmrEntry];

/// All LMRs of an IA, by context.
pub(crate) struct LmrTable {
    chunks: [OnceLock<Box<Chunk>>; CHUNKS],
    free: Mutex<{ rank::TABLE }, FreeEntries>,
    /// Incremented after each LMR that is freed.
    gone: AtomicU64,
}

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
    pub(crate) fn new() -> Result<Self> {
        let table = Self {
            chunks: [const { OnceLock::new() }; CHUNKS],
            free: Mutex::new(FreeEntries { list: std::collections::VecDeque::new(), next: 0 }),
            gone: AtomicU64::new(0),
        };
        // Here rather than in the program's first registration.
        table.chunk(0)?;
        Ok(table)
    }

    /// Chunk `n`, created if necessary. The caller holds the lock of `free`, or nobody else has the
    /// table yet, so no other thread creates the chunk.
    fn chunk(&self, n: usize) -> Result<&Chunk> {
        if let Some(chunk) = self.chunks[n].get() {
            return Ok(chunk);
        }
        let made = table(FIRST << n, |_| LmrEntry::default())?;
        Ok(self.chunks[n].get_or_init(|| made))
    }

    fn entry(&self, context: u32) -> Option<&LmrEntry> {
        let (chunk, at) = place((context & ((1 << INDEX_BITS) - 1)) as usize);
        self.chunks.get(chunk)?.get().map(|chunk| &chunk[at])
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
        if segment.lmr_context == 0 || entry.context.load(Ordering::Acquire) != segment.lmr_context {
            return Err(PostError::NoSuchLmr(n, direction));
        }
        if direction == Direction::Write
            && entry.privileges.load(Ordering::Relaxed) & MemPriv::LOCAL_WRITE.bits() == 0
        {
            return Err(PostError::Privilege(n, direction));
        }
        if entry.pz.load(Ordering::Relaxed) != using.pz {
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
        let live = segment.lmr_context != 0 && entry.context.load(Ordering::Acquire) == segment.lmr_context;
        let end = u128::from(segment.virtual_address) + u128::from(segment.segment_length);
        live && segment.virtual_address >= entry.start.load(Ordering::Relaxed)
            && end <= u128::from(entry.end.load(Ordering::Relaxed))
    }

    /// Whether all these contexts name live LMRs or pool memory, in this PZ if one is given. A
    /// context of 0 is ignored.
    pub(crate) fn are_live(&self, contexts: &[u32], pz: Option<u32>) -> bool {
        let live = |entry: &LmrEntry, context| {
            [&entry.context, &entry.pool_memory].iter().any(|c| c.load(Ordering::Acquire) == context)
        };
        let fits = |entry: &LmrEntry| pz.is_none_or(|pz| entry.pz.load(Ordering::Relaxed) == pz);
        contexts
            .iter()
            .filter(|&&context| context != 0)
            .all(|&context| self.entry(context).is_some_and(|entry| live(entry, context) && fits(entry)))
    }

    /// Adds an LMR and returns its context. `base` is the address of the LMR's first byte in
    /// segments.
    pub(crate) fn insert(&self, mr: &Mr, base: u64, pz: u32, privileges: MemPriv) -> Result<u32> {
        let (context, entry) = self.take_entry(&mut self.free.lock().unwrap())?;
        entry.lkey.store(mr.lkey(), Ordering::Relaxed);
        entry.pz.store(pz, Ordering::Relaxed);
        entry.privileges.store(privileges.bits(), Ordering::Relaxed);
        entry.start.store(base, Ordering::Relaxed);
        entry.end.store(base + mr.len() as u64, Ordering::Relaxed);
        entry.context.store(context, Ordering::Release);
        Ok(context)
    }

    /// Adds the memory of a pool, which no post finds. The lkey and the bounds are not written: a
    /// post that races with the free of the entry's former LMR must not find those of the pool.
    pub(crate) fn insert_pool_memory(&self, pz: u32) -> Result<u32> {
        let (number, entry) = self.take_entry(&mut self.free.lock().unwrap())?;
        entry.pz.store(pz, Ordering::Relaxed);
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
                Error::resources(Subtype::ResourceMemoryRegion, "all LMR contexts of this IA are in use")
            })?
        } else {
            self.chunk(place(free.next as usize).0)?;
            free.next += 1;
            (free.next - 1, 1)
        };
        let (chunk, at) = place(index as usize);
        Ok((generation << INDEX_BITS | index, &self.chunk(chunk)?[at]))
    }

    /// In a forked child: makes every [`LkeyCache`] out of date.
    pub(crate) fn disown(&self) {
        self.gone.fetch_add(1, Ordering::Release);
    }

    pub(crate) fn remove(&self, context: u32) {
        let mut free = self.free.lock().unwrap();
        if let Some(entry) = self.entry(context) {
            entry.context.store(0, Ordering::Release);
            entry.pool_memory.store(0, Ordering::Release);
        }
        // Incremented after the entry is dead: `LkeyCache::remember` relies on this order.
        self.gone.fetch_add(1, Ordering::Release);
        let generation = (context >> INDEX_BITS) % ((1 << (32 - INDEX_BITS)) - 1) + 1;
        free.list.push_back((context & ((1 << INDEX_BITS) - 1), generation));
    }
}

/// The LMRs of a queue's last posts, for a queue with one PZ: that of the last one, and the last one
/// before it that was another. Most buffers lie in these, and need no lookup in the table. The cache
/// is out of date as soon as any LMR of the device is freed.
///
/// A cache that holds an LMR and is not out of date also shows that the queue takes posts: only a
/// post that made all checks fills it, and the queue's owner empties it when the queue takes no more
/// ([`LkeyCache::forget`]). So a segment in a third LMR needs no further checks than those of
/// [`LmrTable::check`]. Where the cache cannot tell, the post makes all checks: the long way.
#[derive(Debug)]
pub(crate) struct LkeyCache {
    table: Arc<LmrTable>,
    /// The table's `gone` while these LMRs were alive.
    gone_then: u64,
    lmr: CachedLmr,
    other: CachedLmr,
    /// The PZ of the queue.
    pz: u32,
    /// The most bytes of a post. 0: no LMR is held.
    longest: u32,
}

/// The bounds and the lkey of an LMR that passed the checks of a post.
#[derive(Debug)]
pub(crate) struct CachedLmr {
    context: u32,
    lkey: u32,
    /// `lkey`, for [`CachedLmr::segment`].
    in_segments: SegmentKey,
    start: u64,
    len: u64,
    /// The length of the longest segment: `len`, or less.
    longest: u32,
    privileges: MemPriv,
    /// `start + len`.
    end: u64,
}

impl CachedLmr {
    /// Contains no segment: none fits into length 0.
    fn none() -> Self {
        Self {
            context: 0,
            lkey: 0,
            in_segments: SegmentKey::new(0),
            start: 0,
            len: 0,
            longest: 0,
            privileges: MemPriv::empty(),
            end: 0,
        }
    }

    /// The lkey for a segment of one byte or more in this LMR; `None` for any other segment, or if
    /// the LMR is not `alive`.
    #[inline(always)]
    fn key(&self, segment: &LmrTriplet, alive: bool) -> Option<u32> {
        let len = u64::from(segment.segment_length);
        let offset = segment.virtual_address.wrapping_sub(self.start);
        // True for 1 to self.longest.
        let fits = segment.segment_length.wrapping_sub(1) < self.longest;
        (segment.lmr_context == self.context && alive && fits && offset <= self.len - len)
            .then_some(self.lkey)
    }

    /// Whether this LMR contains the segment, which has one byte or more. `longest` is not
    /// compared.
    #[inline(always)]
    pub(crate) fn contains(&self, segment: &LmrTriplet) -> bool {
        let from = segment.virtual_address;
        let to = from.wrapping_add(segment.segment_length.into());
        // `to` is not behind `from` if the segment is empty, or if the sum overflows.
        from >= self.start && to > from && to <= self.end && segment.lmr_context == self.context
    }

    pub(crate) fn lkey(&self) -> u32 {
        self.lkey
    }

    /// The segment for the direct path, if this LMR contains it and it has one byte or more.
    /// `longest` is not compared.
    #[inline(always)]
    pub(crate) fn segment(&self, segment: &LmrTriplet) -> Option<KeyedSeg> {
        let LmrTriplet { virtual_address, segment_length, .. } = *segment;
        self.contains(segment).then(|| KeyedSeg::new(virtual_address, segment_length, self.in_segments))
    }
}

impl LkeyCache {
    /// A cache that holds no LMR.
    pub(crate) fn none(table: &Arc<LmrTable>) -> Self {
        let (lmr, other) = (CachedLmr::none(), CachedLmr::none());
        Self { table: table.clone(), gone_then: 0, lmr, other, pz: 0, longest: 0 }
    }

    /// The lkey for a segment of one byte or more that [`LmrTable::check`] would accept, if the last
    /// post was in its LMR. `None` if the cache cannot tell; then [`LkeyCache::turn_to`] may know the
    /// LMR, or the long way has to check the segment. Whether the device may write to the LMR is not
    /// checked.
    #[inline(always)]
    pub(crate) fn key(&self, segment: &LmrTriplet) -> Option<u32> {
        self.lmr.key(segment, self.is_alive())
    }

    /// As [`LkeyCache::key`], for a queue that takes segments of any length on the direct path: the
    /// segment for the device.
    #[inline(always)]
    pub(crate) fn segment(&self, segment: &LmrTriplet) -> Option<KeyedSeg> {
        self.live()?.segment(segment)
    }

    /// The LMR of the last post. `None` if the cache is out of date.
    #[inline(always)]
    pub(crate) fn live(&self) -> Option<&CachedLmr> {
        self.is_alive().then_some(&self.lmr)
    }

    /// As [`LkeyCache::segment`], for the segments of one post in the two LMRs that are held.
    #[inline(always)]
    pub(crate) fn segments(&self) -> Option<impl Fn(&LmrTriplet) -> Option<KeyedSeg>> {
        self.is_alive().then_some(|segment: &LmrTriplet| self.one_of_two(segment).segment(segment))
    }

    /// As [`LkeyCache::segments`], their lkeys.
    #[inline(always)]
    fn keys(&self) -> Option<impl Fn(&LmrTriplet) -> Option<u32>> {
        self.is_alive().then_some(|segment: &LmrTriplet| self.key_of_two(segment))
    }

    /// The one of the two LMRs in which the segment is, if it is in one of them.
    #[inline(always)]
    fn one_of_two(&self, segment: &LmrTriplet) -> &CachedLmr {
        if segment.lmr_context == self.lmr.context { &self.lmr } else { &self.other }
    }

    /// Whether no LMR was freed since these were remembered.
    #[inline(always)]
    fn is_alive(&self) -> bool {
        self.table.gone.load(Ordering::Acquire) == self.gone_then
    }

    /// Whether the device may write to the LMR of the last post.
    pub(crate) fn is_writable(&self) -> bool {
        self.lmr.privileges.contains(MemPriv::LOCAL_WRITE)
    }

    /// The lkey of a segment in one of the two LMRs, for a cache that is not out of date. The length of
    /// the segment is not compared with the most bytes of a post.
    #[inline(always)]
    fn key_of_two(&self, segment: &LmrTriplet) -> Option<u32> {
        let lmr = self.one_of_two(segment);
        lmr.contains(segment).then_some(lmr.lkey)
    }

    /// As [`LkeyCache::key`], for the segments of one post in any LMRs; those in the two LMRs that are
    /// held are found fastest. `direction` is that of the posts that fill the cache. The length of the post is
    /// not compared.
    #[inline(always)]
    pub(crate) fn keys_in_any(&self, direction: Direction) -> Option<impl Fn(&LmrTriplet) -> Option<u32>> {
        let key =
            move |segment: &LmrTriplet| self.key_of_two(segment).or_else(|| self.look_up(segment, direction));
        self.is_alive().then_some(key)
    }

    /// The lkey of a segment in any LMR, for a cache that is not out of date.
    #[inline(never)]
    fn look_up(&self, segment: &LmrTriplet, direction: Direction) -> Option<u32> {
        if self.longest == 0 {
            return None;
        }
        let checked = self.table.check(0, segment, Use { pz: self.pz, direction });
        checked.ok()?.map(|segment| segment.lkey)
    }

    /// Makes the LMR of this segment that of the last post, if [`LmrTable::check`] accepts the
    /// segment. Returns false if the cache cannot tell; then nothing has changed.
    #[inline(never)]
    pub(crate) fn turn_to(&mut self, segment: &LmrTriplet, direction: Direction) -> bool {
        if !self.is_alive() {
            return false;
        }
        if self.other.contains(segment) {
            std::mem::swap(&mut self.lmr, &mut self.other);
            return true;
        }
        if self.look_up(segment, direction).is_none() {
            return false;
        }
        // Alive after `gone` was compared with `gone_then`.
        let Some(entry) = self.table.entry(segment.lmr_context) else { return false };
        let found = entry.cached(segment.lmr_context, self.longest);
        self.put(found);
        true
    }

    /// As [`LkeyCache::turn_to`], for the first of these segments that lies in neither of the two LMRs.
    pub(crate) fn turn_to_new(&mut self, segments: &[LmrTriplet], direction: Direction) {
        if let Some(new) = segments.iter().find(|segment| self.key_of_two(segment).is_none()) {
            self.turn_to(new, direction);
        }
    }

    /// Puts an LMR in the first place.
    fn put(&mut self, lmr: CachedLmr) {
        let last = std::mem::replace(&mut self.lmr, lmr);
        if last.context != self.lmr.context {
            self.other = last;
        }
    }

    /// As [`LkeyCache::key`], for all segments of a post in the two LMRs that are held, with the sum
    /// of their lengths, which is not above the most bytes of a post either.
    #[inline(always)]
    pub(crate) fn sges<const N: usize>(&self, segments: &[LmrTriplet; N]) -> Option<([Sge; N], u32)> {
        self.sges_by(segments, self.keys()?)
    }

    /// As [`LkeyCache::sges`], for segments in any LMRs. `direction` as in [`LkeyCache::keys_in_any`].
    #[inline(never)]
    pub(crate) fn sges_in_any<const N: usize>(
        &mut self,
        segments: &[LmrTriplet; N],
        direction: Direction,
    ) -> Option<([Sge; N], u32)> {
        self.turn_to_new(segments, direction);
        self.sges_by(segments, self.keys_in_any(direction)?)
    }

    #[inline(always)]
    fn sges_by<const N: usize>(
        &self,
        segments: &[LmrTriplet; N],
        key: impl Fn(&LmrTriplet) -> Option<u32>,
    ) -> Option<([Sge; N], u32)> {
        let mut sges = [Sge::default(); N];
        let mut length = 0;
        for (sge, segment) in sges.iter_mut().zip(segments) {
            let &LmrTriplet { virtual_address: addr, segment_length: len, .. } = segment;
            *sge = Sge { addr, len, lkey: key(segment)? };
            length += u64::from(len);
        }
        Some((sges, u32::try_from(length).ok().filter(|length| *length <= self.longest)?))
    }

    /// Holds no LMR from now on.
    pub(crate) fn forget(&mut self) {
        (self.lmr, self.other) = (CachedLmr::none(), CachedLmr::none());
        self.longest = 0;
    }

    /// Remembers an LMR that has just passed [`LmrTable::check`] for the queue's PZ, for posts of up
    /// to `longest` bytes.
    pub(crate) fn remember(&mut self, context: u32, longest: u32) {
        let gone = self.table.gone.load(Ordering::Acquire);
        let Some(entry) = self.table.entry(context) else { return };
        // The LMR is alive after `gone` was read, so a later free increments `gone` beyond this
        // value.
        if entry.context.load(Ordering::Acquire) != context {
            return;
        }
        let (lmr, pz) = (entry.cached(context, longest), entry.pz.load(Ordering::Relaxed));
        if gone != self.gone_then {
            // The LMR that was held may be the one that was freed.
            self.forget();
        }
        self.put(lmr);
        (self.gone_then, self.longest, self.pz) = (gone, longest, pz);
    }
}

impl LmrEntry {
    /// The LMR with this context, for segments of up to `longest` bytes.
    #[inline(always)]
    fn cached(&self, context: u32, longest: u32) -> CachedLmr {
        let start = self.start.load(Ordering::Relaxed);
        let end = self.end.load(Ordering::Relaxed);
        let len = end - start;
        let lkey = self.lkey.load(Ordering::Relaxed);
        CachedLmr {
            context,
            lkey,
            in_segments: SegmentKey::new(lkey),
            start,
            len,
            longest: len.min(longest.into()) as u32,
            privileges: MemPriv::from_bits_truncate(self.privileges.load(Ordering::Relaxed)),
            end,
        }
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
    use mlx5_direct::DataSeg;

    /// A post that races with the free of the entry's former LMR does not find the pool memory
    /// either.
    #[test]
    fn no_context_finds_the_memory_of_a_pool() {
        let table = Arc::new(LmrTable::new().unwrap());
        let number = table.insert_pool_memory(7).unwrap();
        let segment = LmrTriplet { virtual_address: 0, segment_length: 1, lmr_context: number };
        for direction in [Direction::Read, Direction::Write] {
            assert_eq!(
                table.check(0, &segment, Use { pz: 7, direction }),
                Err(PostError::NoSuchLmr(0, direction))
            );
        }
        assert!(!table.covers(&segment));
        let mut last = LkeyCache::none(&table);
        last.remember(number, u32::MAX);
        assert_eq!(last.key(&segment), None);
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
        let table = LmrTable::new().unwrap();
        let numbers: Vec<u32> =
            (0..FIRST as u32 * 5).map(|pz| table.insert_pool_memory(pz).unwrap()).collect();
        for (pz, &number) in (0..).zip(&numbers) {
            assert!(table.are_live(&[number], Some(pz)) && !table.are_live(&[number], Some(pz + 1)));
        }
        let beyond = numbers.last().unwrap() + 1;
        assert!(!table.are_live(&[beyond], None) && !table.are_live(&[u32::MAX], None));
    }

    /// A cache knows two LMRs, finds others in the table, and knows nothing after one was freed.
    #[test]
    fn a_cache_turns_to_other_lmrs() {
        let table = Arc::new(LmrTable::new().unwrap());
        let lmr = |lkey: u32, pz: u32, privileges: MemPriv| {
            let (context, entry) = table.take_entry(&mut table.free.lock().unwrap()).unwrap();
            entry.lkey.store(lkey, Ordering::Relaxed);
            entry.pz.store(pz, Ordering::Relaxed);
            entry.privileges.store(privileges.bits(), Ordering::Relaxed);
            entry.start.store(4096, Ordering::Relaxed);
            entry.end.store(8192, Ordering::Relaxed);
            entry.context.store(context, Ordering::Release);
            LmrTriplet { virtual_address: 4096, segment_length: 8, lmr_context: context }
        };
        let [a, b, c] = [1, 2, 3].map(|lkey| lmr(lkey, 7, MemPriv::LOCAL_WRITE));
        let (foreign, read_only) = (lmr(4, 8, MemPriv::LOCAL_WRITE), lmr(5, 7, MemPriv::LOCAL_READ));
        let mut cache = LkeyCache::none(&table);
        assert!(!cache.turn_to(&a, Direction::Write), "no post has shown that the queue takes posts");
        assert_eq!(cache.sges_in_any(&[a, b], Direction::Write), None);
        cache.remember(a.lmr_context, 20);
        for segment in [b, c, a, b, a] {
            assert_eq!(cache.key(&segment), None);
            assert!(cache.turn_to(&segment, Direction::Write));
            assert!(cache.key(&segment).is_some());
        }
        assert_eq!(
            (cache.key_of_two(&b), cache.key_of_two(&a), cache.key_of_two(&c)),
            (Some(2), Some(1), None)
        );
        let lkeys = |found: Option<([Sge; 3], u32)>| found.map(|(sges, _)| sges.map(|sge| sge.lkey));
        assert_eq!(lkeys(cache.sges(&[a, b, c])), None);
        assert_eq!(lkeys(cache.sges_in_any(&[a, b, c], Direction::Write)), None, "24 of 20 bytes");
        let short = [a, b, c].map(|segment| LmrTriplet { segment_length: 5, ..segment });
        assert_eq!(lkeys(cache.sges_in_any(&short, Direction::Write)), Some([1, 2, 3]));
        for bad in [foreign, read_only, LmrTriplet { segment_length: 4097, ..b }] {
            assert!(!cache.turn_to(&bad, Direction::Write));
            assert_eq!(cache.sges_in_any(&[a, bad], Direction::Write), None);
        }
        assert!(cache.turn_to(&read_only, Direction::Read) && !cache.is_writable());
        table.remove(c.lmr_context);
        assert_eq!((cache.key(&read_only), cache.sges(&[a])), (None, None));
        assert!(!cache.turn_to(&a, Direction::Read));
        // The LMRs of before are not found again.
        cache.remember(b.lmr_context, 20);
        assert_eq!((cache.key(&b), cache.key_of_two(&read_only)), (Some(2), None));
        cache.forget();
        assert!(!cache.turn_to(&b, Direction::Read));
    }

    /// At both ends, without a byte, at the end of the address space, and with another context.
    #[test]
    fn an_lmr_contains_what_the_key_is_for() {
        let (start, end) = (0x1000, 0x2000);
        let len = end - start;
        let (in_segments, privileges) = (SegmentKey::new(9), MemPriv::LOCAL_WRITE);
        let lmr =
            CachedLmr { context: 5, lkey: 9, in_segments, start, len, longest: len as u32, privileges, end };
        let table = Arc::new(LmrTable::new().unwrap());
        let mut cache = LkeyCache::none(&table);
        (cache.lmr, cache.longest) = (lmr, u32::MAX);
        let addresses = [0, start - 1, start, start + 1, end - 1, end, end + 1, u64::MAX - 1, u64::MAX];
        let lengths = [0, 1, 2, 0xfff, 0x1000, 0x1001, u32::MAX];
        for virtual_address in addresses {
            for segment_length in lengths {
                for lmr_context in [0, 4, 5, 6] {
                    let segment = LmrTriplet { virtual_address, segment_length, lmr_context };
                    let inside = u128::from(virtual_address) >= start.into()
                        && u128::from(virtual_address) + u128::from(segment_length) <= end.into();
                    let expected = inside && segment_length > 0 && lmr_context == 5;
                    let key = expected.then_some(9);
                    assert_eq!(cache.key(&segment), key, "{segment:?}");
                    assert_eq!(cache.key_of_two(&segment), key, "{segment:?}");
                    let for_device = cache.segment(&segment).map(DataSeg::from);
                    let same = DataSeg::new(virtual_address, segment_length, 9);
                    assert_eq!(for_device, expected.then_some(same), "{segment:?}");
                }
            }
        }
        // A cache without an LMR.
        let mut none = LkeyCache::none(&table);
        for segment_length in [0, 1] {
            let segment = LmrTriplet { virtual_address: 0, segment_length, lmr_context: 0 };
            assert_eq!((none.key(&segment), none.key_of_two(&segment)), (None, None));
            assert_eq!(none.segment(&segment), None);
            assert!(!none.turn_to(&segment, Direction::Read));
        }
    }
}
