//! The SRQ's slots: software writes them, the device reads them. Software reads back the segments
//! of a receive whose payload is in its completion entry.

use core::{
    ops::{Deref, Range},
    ptr::NonNull,
};
use std::{
    collections::TryReserveError,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use doorbell_sys::ibv_sge;

use crate::{
    be::Be16,
    memory::Keep,
    table::table,
    wqe::{self, DataSeg, KeyedSeg, WqeIndex},
};

/// The cookies of a ring, one per slot, shared between threads. Clones share the same cookies.
///
/// An `Arc<[AtomicU64]>` would do the same, but its creation cannot report that there is no memory.
#[derive(Clone, Debug)]
#[repr(C)]
pub struct Cookies {
    first: NonNull<AtomicU64>,
    len: usize,
    _memory: Arc<Box<[AtomicU64]>>,
}

// SAFETY: a reference to atomics in memory that an `Arc` shares; all of these may be used from any
// thread.
unsafe impl Send for Cookies {}
// SAFETY: as above.
unsafe impl Sync for Cookies {}

impl From<Box<[AtomicU64]>> for Cookies {
    fn from(memory: Box<[AtomicU64]>) -> Self {
        let memory = Arc::new(memory);
        Self { first: NonNull::from(&memory[..]).cast(), len: memory.len(), _memory: memory }
    }
}

impl Deref for Cookies {
    type Target = [AtomicU64];

    #[inline(always)]
    fn deref(&self) -> &[AtomicU64] {
        // SAFETY: the start and the length of the boxed slice, which `_memory` keeps alive and in
        // place; nobody has a mutable reference to it.
        unsafe { std::slice::from_raw_parts(self.first.as_ptr(), self.len) }
    }
}

/// The SRQ's ring of slots, one cookie per slot, and the place of posting: the tail, and
/// the run of slots behind it that are to be posted next.
///
/// `tail <= run_end <= mask`, `fast_end <= run_end` and `joinable_end <= mask` hold whatever a
/// caller asks for. So a comparison with one of them is a bounds check.
///
/// In this order, so that what a post needs is in 48 bytes: see [`Srq`](crate::Srq).
#[derive(Debug)]
#[repr(C)]
pub(crate) struct WqeMem {
    tail: u32,
    /// While all slots are laid out for one data segment: `run_end`, or the limit if that is
    /// before. Otherwise 0.
    fast_end: u32,
    /// Running posted count after the tail is posted, minus `tail`. Constant while a run lasts.
    count_base: u32,
    stride_bytes: u32,
    run_end: u32,
    /// Slots behind the run up to this slot join the run when they are returned in order.
    joinable_end: u32,
    /// All ones while every slot has its terminator behind the first segment, else 0.
    plain_mask: u32,
    mask: u32,
    base: NonNull<u8>,
    /// `mask + 1` entries.
    cookies: Cookies,
    /// Up to this slot a caller lets the run be posted.
    limit: u32,
    _keep: Keep,
}

// SAFETY: plain memory without thread affinity; every write to the ring goes through `&mut self`.
unsafe impl Send for WqeMem {}
// SAFETY: a shared reference only reaches the sizes and the cookies, which are atomics.
unsafe impl Sync for WqeMem {}

impl WqeMem {
    /// # Safety
    ///
    /// `base` is 16-byte aligned and valid for writes of `wqe_count * stride_bytes` bytes while the
    /// value lives, and only this value writes there. Both numbers are powers of two, the stride at
    /// least 32.
    pub(super) unsafe fn new(
        base: NonNull<u8>,
        wqe_count: u32,
        stride_bytes: u32,
        keep: Keep,
    ) -> Result<Self, TryReserveError> {
        Ok(Self {
            tail: 0,
            run_end: 0,
            limit: u32::MAX,
            fast_end: 0,
            joinable_end: 0,
            count_base: 1,
            mask: wqe_count - 1,
            stride_bytes,
            plain_mask: 0,
            base,
            cookies: table(wqe_count as usize, |_| AtomicU64::new(0))?.into(),
            _keep: keep,
        })
    }

    pub(crate) fn mask(&self) -> u32 {
        self.mask
    }

    #[inline(always)]
    pub(crate) fn max_segments(&self) -> u32 {
        wqe::max_segments(self.stride_bytes)
    }

    /// All cookies, by slot.
    pub(crate) fn cookies(&self) -> &Cookies {
        &self.cookies
    }

    /// The slot that the next post fills.
    #[inline(always)]
    pub(crate) fn tail(&self) -> u32 {
        self.tail
    }

    /// The last slot of the run, or the tail if there is no run.
    #[inline(always)]
    pub(crate) fn run_end(&self) -> u32 {
        self.run_end
    }

    /// How many of the next posts need no link and no search.
    #[inline(always)]
    pub(crate) fn run(&self) -> u32 {
        self.run_end - self.tail
    }

    /// Running count of posted slots.
    #[inline(always)]
    pub(crate) fn count(&self) -> u32 {
        self.tail.wrapping_add(self.count_base).wrapping_sub(1)
    }

    /// The running posted count at which `slot` was the last posted slot of this run.
    #[inline(always)]
    pub(crate) fn count_with(&self, slot: u32) -> u32 {
        slot.wrapping_add(self.count_base)
    }

    /// Posts the first `n` slots of the run, or the whole run if it has fewer.
    #[inline(always)]
    pub(crate) fn pass(&mut self, n: u32) {
        self.tail += n.min(self.run());
    }

    /// Records that `posted` slots are posted: the old tail and the slots that follow it. `tail` is
    /// the next tail, and `run` slots after it are reserved.
    #[inline(always)]
    pub(crate) fn jump(&mut self, posted: u32, tail: u32, run: u32) {
        let count_after = self.tail.wrapping_add(self.count_base).wrapping_add(posted);
        self.tail = tail & self.mask;
        self.count_base = count_after.wrapping_sub(self.tail);
        self.set_run_end((self.tail + run).min(self.mask));
        self.joinable_end = self.run_end;
        self.limit = u32::MAX;
    }

    #[inline(always)]
    fn set_run_end(&mut self, end: u32) {
        self.run_end = end;
        self.fast_end = end & self.plain_mask;
    }

    /// Limits [`WqeMem::take_fast`] and [`WqeMem::first_of_run`] to `n` slots, until the next
    /// search; `take_fast` only until a slot joins the run.
    #[inline(always)]
    pub(crate) fn limit(&mut self, n: u32) {
        self.limit = self.tail.saturating_add(n);
        self.fast_end = self.limit.min(self.run_end) & self.plain_mask;
    }

    /// How many slots [`WqeMem::take_fast`] can still give.
    #[inline(always)]
    pub(crate) fn plain_run(&self) -> u32 {
        self.fast_end.saturating_sub(self.tail)
    }

    /// Gives up the run.
    pub(crate) fn drop_run(&mut self) {
        self.set_run_end(self.tail);
        self.joinable_end = self.run_end;
    }

    /// Adds `slot` to the run if it is right behind the run and may join; returns its cookie then.
    #[inline(always)]
    pub(crate) fn join_run(&mut self, slot: u32) -> Option<u64> {
        if slot != self.run_end + 1 || slot > self.joinable_end {
            return None;
        }
        self.set_run_end(slot);
        // SAFETY: slot <= joinable_end <= mask, and there are `mask + 1` cookies.
        Some(unsafe { self.cookies.get_unchecked(slot as usize) }.load(Relaxed))
    }

    /// Sets the last slot behind the run that may join it.
    pub(crate) fn set_joinable_end(&mut self, end: u32) {
        self.joinable_end = end & self.mask;
    }

    /// Records that `slot` was returned to the map: it cannot join the run any more, nor can the
    /// slots behind it.
    #[inline(always)]
    pub(crate) fn end_joinable_before(&mut self, slot: u32) {
        if slot > self.run_end && slot <= self.joinable_end {
            self.joinable_end = slot - 1;
        }
    }

    /// Whether every slot has the terminator behind its first data segment.
    #[inline(always)]
    pub(crate) fn is_plain(&self) -> bool {
        self.plain_mask != 0
    }

    /// Sets whether a post of one segment may leave out the terminator.
    #[inline(always)]
    pub(crate) fn set_plain(&mut self, plain: bool) {
        self.plain_mask = if plain { u32::MAX } else { 0 };
        self.fast_end = self.limit.min(self.run_end) & self.plain_mask;
    }

    /// The cookie of a slot; the index is masked into the ring.
    #[inline(always)]
    pub(crate) fn cookie(&self, index: u32) -> &AtomicU64 {
        // SAFETY: the masked index is below `mask + 1`, the number of cookies.
        unsafe { self.cookies.get_unchecked((index & self.mask) as usize) }
    }

    /// The n-th data segment of a slot, `None` at the terminator and behind the last. For payloads
    /// that are not in the buffer; no other code reads a slot.
    pub(crate) fn segment(&self, index: u32, n: u32) -> Option<DataSeg> {
        if n >= self.max_segments() {
            return None;
        }
        let at =
            (index & self.mask) as usize * self.stride_bytes as usize + (1 + n as usize) * wqe::SEGMENT_BYTES;
        // SAFETY: a segment of a slot, since the masked index is below the number of slots and `n`
        // below that of segments; the next segment comes first. Only this value writes the slots.
        let seg = DataSeg::from_words(unsafe { self.base.as_ptr().add(at).cast::<[u64; 2]>().read() });
        (seg.lkey() != DataSeg::TERMINATOR.lkey()).then_some(seg)
    }

    /// A slot, for writing; the index is masked into the ring.
    #[inline(always)]
    pub(crate) fn slot(&mut self, index: u32) -> SlotMut<'_> {
        // SAFETY: the masked index is below `mask + 1`.
        unsafe { self.slot_unchecked(index & self.mask) }
    }

    /// # Safety
    ///
    /// `index <= mask`.
    #[inline(always)]
    unsafe fn slot_unchecked(&mut self, index: u32) -> SlotMut<'_> {
        // SAFETY: the ring has `mask + 1` strides, and there are that many cookies.
        unsafe {
            let wqe = self.base.as_ptr().add(index as usize * self.stride_bytes as usize);
            let cookie = self.cookies.get_unchecked(index as usize);
            SlotMut { wqe, stride_bytes: self.stride_bytes, cookie }
        }
    }

    /// Prefetches the lines of slots and their cookies for writing; the range counts slots behind
    /// the tail. The slots need not be free: a prefetch is a hint and changes nothing.
    #[inline]
    pub(crate) fn prefetch(&self, ahead: Range<u32>) {
        let slot = |ahead: u32| self.tail.saturating_add(ahead).min(self.mask + 1) as usize;
        let (first, end) = (slot(ahead.start), slot(ahead.end));
        let stride = self.stride_bytes as usize;
        let fetch = |base: *const u8, bytes: usize| {
            for at in (first * bytes..end * bytes).step_by(LINE) {
                prefetch_for_write::<0>(base.wrapping_add(at));
            }
        };
        fetch(self.base.as_ptr(), stride);
        fetch(self.cookies.as_ptr().cast(), size_of::<AtomicU64>());
    }

    /// Posts the tail if a run follows it and all slots are laid out for one data segment (the
    /// cheap case). Returns the slot and its index.
    #[inline(always)]
    pub(crate) fn take_fast(&mut self) -> Option<(u32, SlotMut<'_>)> {
        let slot = self.tail;
        if slot >= self.fast_end {
            return None;
        }
        self.tail = slot + 1;
        // SAFETY: slot < fast_end <= run_end <= mask.
        Some((slot, unsafe { self.slot_unchecked(slot) }))
    }

    /// The tail and its slot, if the run goes on behind it. [`WqeMem::pass_first`] posts it.
    #[inline(always)]
    pub(crate) fn first_of_run(&mut self) -> Option<(u32, SlotMut<'_>)> {
        let slot = self.tail;
        // SAFETY: slot < run_end <= mask.
        (slot < self.run_end && slot < self.limit).then(|| (slot, unsafe { self.slot_unchecked(slot) }))
    }

    /// Posts the tail, which is this slot.
    #[inline(always)]
    pub(crate) fn pass_first(&mut self, slot: u32) {
        self.tail = (slot + 1).min(self.run_end);
    }

    /// Fills and posts up to `n` slots of the run, until the run or the iterator ends. Returns how
    /// many, and the iterator: passed by value, the iterator stays in registers. If the iterator
    /// panics, no slot is posted.
    #[inline(always)]
    pub(crate) fn fill_run<I: Iterator<Item: Fill>>(&mut self, n: u32, mut bufs: I) -> (u32, I) {
        let run = self.run_slots(n);
        let (mut filled, mut wqe) = (0, run.wqe);
        if bufs.size_hint().0.min(run.cookies.len()) >= AT_ONCE {
            // The fourth line to the thirteenth of sixteen: the first stores ask for theirs
            // themselves, and more would not pay while the lines are here.
            prefetch_for_write::<192>(run.wqe);
            prefetch_for_write::<256>(run.wqe);
            prefetch_for_write::<320>(run.wqe);
            prefetch_for_write::<384>(run.wqe);
            prefetch_for_write::<448>(run.wqe);
            prefetch_for_write::<512>(run.wqe);
            prefetch_for_write::<576>(run.wqe);
            prefetch_for_write::<640>(run.wqe);
            prefetch_for_write::<704>(run.wqe);
            prefetch_for_write::<768>(run.wqe);
        }
        for cookie in run.cookies {
            let Some(buf) = bufs.next() else { break };
            buf.fill(&mut SlotMut { wqe, stride_bytes: run.stride_bytes, cookie }, run.plain);
            // The addition wraps, since the address ends one stride behind the last slot.
            wqe = wqe.wrapping_add(run.stride_bytes as usize);
            filled += 1;
        }
        self.tail += filled;
        (filled, bufs)
    }

    /// Fills and posts one slot of the run for each buffer. There are no more buffers than slots in
    /// the run.
    #[inline(always)]
    pub(crate) fn fill_run_from<T: Fill>(&mut self, bufs: &[T]) {
        let run = self.run_slots(bufs.len() as u32);
        let mut wqe = run.wqe;
        for (cookie, buf) in run.cookies.iter().zip(bufs) {
            buf.fill(&mut SlotMut { wqe, stride_bytes: run.stride_bytes, cookie }, run.plain);
            wqe = wqe.wrapping_add(run.stride_bytes as usize);
        }
        self.tail += run.cookies.len() as u32;
    }

    /// The first `n` slots of the run, or the whole run if it has fewer. Posting all of them keeps
    /// `tail <= run_end`.
    #[inline(always)]
    fn run_slots(&self, n: u32) -> RunMut<'_> {
        let (first, n) = (self.tail as usize, n.min(self.run()) as usize);
        // SAFETY: first + n <= run_end <= mask.
        unsafe {
            let wqe = self.base.as_ptr().add(first * self.stride_bytes as usize);
            let cookies = self.cookies.get_unchecked(first..first + n);
            RunMut { wqe, stride_bytes: self.stride_bytes, plain: self.is_plain(), cookies }
        }
    }
}

/// Asks for a cache line, so that a store finds it. PREFETCHW by its name: without a flag of the
/// target, which x86-64 does not imply, the compiler makes the intrinsic a prefetch for reading, and
/// the store has to ask the other cores again. Processors that do not know it do nothing. `OFFSET`, in
/// bytes, is added by the instruction itself.
#[inline(always)]
fn prefetch_for_write<const OFFSET: usize>(line: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a prefetch reads and writes nothing, whatever the address.
    unsafe {
        core::arch::asm!(
            "prefetchw [{} + {}]",
            in(reg) line,
            const OFFSET,
            options(nostack, preserves_flags, readonly)
        );
    }
    #[cfg(any(not(target_arch = "x86_64"), miri))]
    let _ = line;
}

/// Bytes of a cache line.
const LINE: usize = 64;

/// The smallest number of slots of a run that are asked for before the first is filled, so that the
/// other cores give their lines up side by side. For fewer, the prefetches would take more time than
/// they save while the lines are here.
const AT_ONCE: usize = 32;

/// Neighbouring slots that are not posted: one stride of queue memory for each of `cookies`, from
/// `wqe` on.
struct RunMut<'a> {
    wqe: *mut u8,
    stride_bytes: u32,
    plain: bool,
    cookies: &'a [AtomicU64],
}

/// A slot that is not posted: `stride_bytes` of queue memory from `wqe` on, and its cookie.
pub(crate) struct SlotMut<'a> {
    wqe: *mut u8,
    stride_bytes: u32,
    cookie: &'a AtomicU64,
}

impl SlotMut<'_> {
    #[inline(always)]
    pub(crate) fn set_cookie(&self, cookie: u64) {
        self.cookie.store(cookie, Relaxed);
    }

    /// Sets the slot that the device uses after this slot.
    #[inline(always)]
    pub(crate) fn write_next(&mut self, next: WqeIndex) {
        let field = self.wqe.wrapping_add(wqe::NEXT_INDEX_OFFSET).cast::<Be16>();
        // SAFETY: inside the slot's first 16 bytes, 2-byte aligned; exclusive through `&mut
        // WqeMem`.
        unsafe { field.write(Be16::new(next.0)) };
    }

    /// Writes the only data segment. If the slot has room for more, also writes the terminator,
    /// unless the slot is `plain` and has it already.
    #[inline(always)]
    pub(crate) fn write_one(&mut self, seg: impl Into<KeyedSeg>, plain: bool) {
        // SAFETY: the stride is at least 32 bytes, so one segment always fits.
        unsafe { self.write_segment(0, seg) };
        if !plain && self.stride_bytes > wqe::MIN_STRIDE_BYTES {
            // SAFETY: strides are powers of two, so this stride is at least 64 bytes and a second
            // segment fits.
            unsafe { self.write_segment(1, DataSeg::TERMINATOR) };
        }
    }

    /// Writes all data segments, and the terminator if there are fewer than fit. Extra segments are
    /// left out.
    #[inline(always)]
    pub(crate) fn write_all(&mut self, segs: impl ExactSizeIterator<Item = DataSeg>) {
        let room = wqe::max_segments(self.stride_bytes) as usize;
        let used = segs.len().min(room);
        for (n, seg) in (0..used).zip(segs) {
            // SAFETY: n < used <= room segments fit after the next segment.
            unsafe { self.write_segment(n, seg) };
        }
        if used < room {
            // SAFETY: used < room, so one more segment fits.
            unsafe { self.write_segment(used, DataSeg::TERMINATOR) };
        }
    }

    /// Writes the data segments that `encode` makes of `list`, and the terminator if there are
    /// fewer than fit. Returns false if `encode` refuses one, or if they do not fit; then the slot
    /// may hold some of them.
    #[inline(always)]
    pub(crate) fn write_accepted<T, S: Into<KeyedSeg>>(
        &mut self,
        list: &[T],
        mut encode: impl FnMut(&T) -> Option<S>,
    ) -> bool {
        let room = wqe::max_segments(self.stride_bytes) as usize;
        let used = list.len();
        if used > room {
            return false;
        }
        // By index: an iterator would have a counter of its own, in addition to that of the slot.
        #[expect(clippy::needless_range_loop, reason = "see above")]
        for n in 0..used {
            let Some(seg) = encode(&list[n]) else { return false };
            // SAFETY: n < used <= room segments fit after the next segment.
            unsafe { self.write_segment(n, seg) };
        }
        if used < room {
            // SAFETY: used < room, so one more segment fits.
            unsafe { self.write_segment(used, DataSeg::TERMINATOR) };
        }
        true
    }

    /// # Safety
    ///
    /// `n` is below the number of data segments that fit into the stride.
    #[inline(always)]
    unsafe fn write_segment(&mut self, n: usize, seg: impl Into<KeyedSeg>) {
        let at = self.wqe.wrapping_add(wqe::FIRST_SEG_OFFSET + n * wqe::SEGMENT_BYTES).cast::<u64>();
        let [first, second] = seg.into().to_words();
        // SAFETY: 16 bytes inside the slot by contract, 16-byte aligned since ring and stride are;
        // exclusive through `&mut WqeMem`.
        unsafe {
            at.write(first);
            at.add(1).write(second);
        }
    }

    /// Writes the address of the first data segment and nothing else.
    #[inline(always)]
    pub(crate) fn write_address(&mut self, addr: u64) {
        let field = self.wqe.wrapping_add(wqe::FIRST_ADDR_OFFSET).cast::<u64>();
        // SAFETY: bytes 24..32 of a slot of at least 32 bytes, 8-byte aligned; exclusive through
        // `&mut WqeMem`.
        unsafe { field.write(addr.to_be()) };
    }
}

/// What a post writes into a slot: data segments, cookie, or nothing.
pub(crate) trait Fill: Copy {
    /// Fills the slot. `plain` is [`WqeMem::is_plain`].
    fn fill(self, slot: &mut SlotMut<'_>, plain: bool);
}

impl<T: Body> Fill for (T, u64) {
    #[inline(always)]
    fn fill(self, slot: &mut SlotMut<'_>, plain: bool) {
        self.0.write(slot, plain);
        slot.set_cookie(self.1);
    }
}

/// Changes nothing in the slot.
impl Fill for () {
    #[inline(always)]
    fn fill(self, _: &mut SlotMut<'_>, _: bool) {}
}

/// What a post writes into a slot in addition to the cookie.
pub(crate) trait Body: Copy {
    fn write(self, slot: &mut SlotMut<'_>, plain: bool);
}

impl Body for DataSeg {
    #[inline(always)]
    fn write(self, slot: &mut SlotMut<'_>, plain: bool) {
        slot.write_one(self, plain);
    }
}

impl Body for KeyedSeg {
    #[inline(always)]
    fn write(self, slot: &mut SlotMut<'_>, plain: bool) {
        slot.write_one(self, plain);
    }
}

/// An address; length and lkey are in place.
impl Body for u64 {
    #[inline(always)]
    fn write(self, slot: &mut SlotMut<'_>, _: bool) {
        slot.write_address(self);
    }
}

/// All segments of the slice. The caller has checked that they fit.
impl Body for &[DataSeg] {
    #[inline(always)]
    fn write(self, slot: &mut SlotMut<'_>, _: bool) {
        slot.write_all(self.iter().copied());
    }
}

/// A scatter list of verbs.
impl Body for &[ibv_sge] {
    #[inline(always)]
    fn write(self, slot: &mut SlotMut<'_>, _: bool) {
        slot.write_all(self.iter().map(DataSeg::from_sge));
    }
}

/// A body of two words, which a call passes in registers. A struct would be passed through the
/// stack.
pub(crate) trait Words: Body {
    fn to_words(self) -> [u64; 2];
    fn from_words(words: [u64; 2]) -> Self;
}

impl Words for DataSeg {
    #[inline(always)]
    fn to_words(self) -> [u64; 2] {
        DataSeg::to_words(self)
    }

    #[inline(always)]
    fn from_words(words: [u64; 2]) -> Self {
        DataSeg::from_words(words)
    }
}

impl Words for u64 {
    #[inline(always)]
    fn to_words(self) -> [u64; 2] {
        [self, 0]
    }

    #[inline(always)]
    fn from_words(words: [u64; 2]) -> Self {
        words[0]
    }
}
