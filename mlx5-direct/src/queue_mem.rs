#![expect(unsafe_code, reason = "raw queue memory shared with a device")]
//! Bounded access to queue memory, and layouts that have been checked once.
//!
//! SRQ memory: written by us, read by the device, never read back. CQ memory: written by the device, read by us after
//! the ownership test and a load barrier, both inside `CqeMem::ready`. An index is masked with the (power of two)
//! queue size, so that no index, not even one that came from the device, reaches outside.

use core::{marker::PhantomData, mem::offset_of, ptr::NonNull};
use std::{
    alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use crate::{
    barrier,
    be::{Be16, Be32},
    cqe::{CqeFields, RawCqe},
    dbrec::{CqDbRec, SrqDbRec},
    uar::{CQ_DOORBELL_OFFSET, Uar},
    wqe::{self, DataSeg, WqeIndex},
};

/// Keeps heap-backed queues alive; `None` when the memory belongs to a verbs object.
pub(crate) type Keep = Option<Arc<HeapMem>>;

/// Why a queue was refused before anything was written to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LayoutError {
    /// The first unposted slot is not slot 0: something was posted through verbs.
    #[error("SRQ head is {head}, not 0: hand the SRQ over before anything is posted to it")]
    HeadNotZero {
        /// What the library reported.
        head: u32,
    },
    /// The doorbell record is not 0: something was posted through verbs.
    #[error("SRQ doorbell record is {count}, not 0: hand the SRQ over before anything is posted to it")]
    AlreadyPosted {
        /// What the record holds.
        count: u32,
    },
    /// Ring sizes are powers of two from 2 to 32,768.
    #[error("SRQ ring of {wqe_count} slots: need a power of two from 2 to 32768")]
    WqeCount {
        /// Slots in the ring.
        wqe_count: u32,
    },
    /// Slots are a power of two of bytes, at least 32.
    #[error("SRQ slot of {stride_bytes} bytes: need a power of two from 32 to 4096")]
    WqeStride {
        /// Bytes from one slot to the next.
        stride_bytes: u32,
    },
    /// SRQ signatures need a checksum in every WQE, which this crate does not write.
    #[error("SRQ signature mode is on: unset MLX5_SRQ_SIGNATURE and create the SRQ again")]
    Signature,
    /// CQ sizes are powers of two up to 2^23.
    #[error("CQ of {cqe_count} entries: need a power of two up to 8388608")]
    CqeCount {
        /// Entries in the CQ.
        cqe_count: u32,
    },
    /// CQ entries are 64 or 128 bytes.
    #[error("CQ entry of {cqe_bytes} bytes: only 64 and 128 are known")]
    CqeBytes {
        /// Bytes of an entry.
        cqe_bytes: u32,
    },
    /// A pointer is null or not aligned as the device needs it.
    #[error("the {what} is null or misaligned")]
    Pointer {
        /// Which pointer.
        what: &'static str,
    },
}

/// A checked SRQ: ring memory and doorbell record, nothing posted yet. Not `Clone`: there is one poster.
#[derive(Debug)]
pub struct SrqLayout {
    pub(crate) wqes: WqeMem,
    pub(crate) dbrec: SrqDbRec,
    /// SRQ number, or 0 where the library did not say.
    pub srqn: u32,
}

/// What [`SrqLayout::from_raw_parts`] needs to know about a ring.
#[derive(Clone, Copy, Debug)]
pub struct SrqParts {
    /// Slot 0.
    pub buf: *mut u8,
    /// Doorbell record, one word.
    pub dbrec: *mut u32,
    /// Slots, a power of two.
    pub wqe_count: u32,
    /// Bytes from one slot to the next.
    pub stride_bytes: u32,
    /// SRQ number, or 0.
    pub srqn: u32,
}

impl SrqLayout {
    /// Checks a ring that is described by raw parts.
    ///
    /// # Errors
    ///
    /// A [`LayoutError`] where size, stride or a pointer is not what the device uses, or something was posted already.
    ///
    /// # Safety
    ///
    /// `buf` is valid for writes of `wqe_count * stride_bytes` bytes and `dbrec` for reads and writes of one word for as
    /// long as the layout, or an [`Srq`](crate::Srq) made from it, lives; nobody else writes to them meanwhile.
    pub unsafe fn from_raw_parts(parts: SrqParts) -> Result<Self, LayoutError> {
        // SAFETY: passed on to the caller.
        unsafe { Self::checked(parts, None) }
    }

    /// A ring on the heap: for tests, measurements and software devices. The second value is the device's view.
    ///
    /// # Errors
    ///
    /// A [`LayoutError`] where the size or the stride is not what a device uses.
    pub fn on_heap(wqe_count: u32, stride_bytes: u32) -> Result<(Self, Arc<HeapMem>), LayoutError> {
        check_ring(wqe_count, stride_bytes)?;
        let ring_bytes = wqe_count as usize * stride_bytes as usize;
        let mem = Arc::new(HeapMem::new(ring_bytes, 64));
        let parts =
            SrqParts { buf: mem.base.as_ptr(), dbrec: mem.tail(0).cast(), wqe_count, stride_bytes, srqn: 0 };
        // SAFETY: both pointers are inside `mem`, which the layout keeps alive; `HeapMem` hands out volatile accesses
        // only, as a device would make them.
        let layout = unsafe { Self::checked(parts, Some(Arc::clone(&mem))) }?;
        Ok((layout, mem))
    }

    unsafe fn checked(parts: SrqParts, keep: Keep) -> Result<Self, LayoutError> {
        check_ring(parts.wqe_count, parts.stride_bytes)?;
        let base = aligned(parts.buf, wqe::SEGMENT_BYTES, "SRQ buffer")?;
        let word = aligned(parts.dbrec, 4, "SRQ doorbell record")?;
        let wqes = WqeMem {
            base,
            mask: parts.wqe_count - 1,
            stride_bytes: parts.stride_bytes,
            cookies: (0..parts.wqe_count).map(|_| AtomicU64::new(0)).collect(),
            _keep: keep.clone(),
        };
        // SAFETY: valid and exclusive by the caller's contract, alignment checked above.
        let dbrec = unsafe { SrqDbRec::new(word, keep) };
        match dbrec.load() {
            0 => Ok(Self { wqes, dbrec, srqn: parts.srqn }),
            count => Err(LayoutError::AlreadyPosted { count }),
        }
    }

    /// Slots in the ring; one fewer can be posted at a time.
    pub fn wqe_count(&self) -> u32 {
        self.wqes.mask + 1
    }
}

fn check_ring(wqe_count: u32, stride_bytes: u32) -> Result<(), LayoutError> {
    if !wqe_count.is_power_of_two() || !(2..=wqe::MAX_WQE_COUNT).contains(&wqe_count) {
        return Err(LayoutError::WqeCount { wqe_count });
    }
    if !stride_bytes.is_power_of_two() || !(wqe::MIN_STRIDE_BYTES..=4096).contains(&stride_bytes) {
        return Err(LayoutError::WqeStride { stride_bytes });
    }
    Ok(())
}

fn aligned<T>(ptr: *mut T, align: usize, what: &'static str) -> Result<NonNull<T>, LayoutError> {
    NonNull::new(ptr).filter(|p| p.addr().get().is_multiple_of(align)).ok_or(LayoutError::Pointer { what })
}

/// The SRQ's ring of slots, write-only, and beside it one cookie per slot.
#[derive(Debug)]
pub(crate) struct WqeMem {
    base: NonNull<u8>,
    mask: u32,
    stride_bytes: u32,
    /// `mask + 1` of them.
    cookies: Arc<[AtomicU64]>,
    _keep: Keep,
}

// SAFETY: plain memory without thread affinity; every write to the ring goes through `&mut self`.
unsafe impl Send for WqeMem {}

impl WqeMem {
    pub(crate) fn mask(&self) -> u32 {
        self.mask
    }

    pub(crate) fn max_segments(&self) -> u32 {
        wqe::max_segments(self.stride_bytes)
    }

    /// All cookies, by slot.
    pub(crate) fn cookies(&self) -> &Arc<[AtomicU64]> {
        &self.cookies
    }

    /// The cookie of a slot; the index is masked into the ring.
    #[inline(always)]
    pub(crate) fn cookie(&self, index: u32) -> &AtomicU64 {
        // SAFETY: the masked index is below `mask + 1`, the number of cookies.
        unsafe { self.cookies.get_unchecked((index & self.mask) as usize) }
    }

    /// A slot, to write it; the index is masked into the ring.
    #[inline(always)]
    pub(crate) fn slot(&mut self, index: u32) -> SlotMut<'_> {
        let masked = index & self.mask;
        // SAFETY: in bounds because the masked index is below `mask + 1`: the ring has that many strides, and there are
        // that many cookies.
        unsafe {
            let wqe = self.base.as_ptr().add(masked as usize * self.stride_bytes as usize);
            let cookie = self.cookies.get_unchecked(masked as usize);
            SlotMut { wqe, stride_bytes: self.stride_bytes, cookie }
        }
    }

    /// Up to `n` neighbouring slots from `first` on, cut at the end of the ring.
    #[inline(always)]
    pub(crate) fn run(&mut self, first: u32, n: u32) -> RunMut<'_> {
        let first = first & self.mask;
        let n = n.min(self.mask + 1 - first) as usize;
        // SAFETY: first + n is at most `mask + 1`, as in `slot`.
        unsafe {
            let wqe = self.base.as_ptr().add(first as usize * self.stride_bytes as usize);
            let cookies = self.cookies.get_unchecked(first as usize..first as usize + n);
            RunMut { wqe, stride_bytes: self.stride_bytes, cookies }
        }
    }
}

/// Neighbouring slots that are not posted: a stride of queue memory for each of `cookies`, from `wqe` on.
pub(crate) struct RunMut<'a> {
    wqe: *mut u8,
    stride_bytes: u32,
    cookies: &'a [AtomicU64],
}

impl RunMut<'_> {
    /// Fills slots from the iterator until either ends; returns how many.
    #[inline(always)]
    pub(crate) fn fill<T: Body>(self, bufs: impl Iterator<Item = (T, u64)>) -> u32 {
        let (mut filled, mut wqe) = (0, self.wqe);
        for (cookie, (body, value)) in self.cookies.iter().zip(bufs) {
            SlotMut { wqe, stride_bytes: self.stride_bytes, cookie }.fill(body, value);
            // Wrapping, since it ends one stride past the last slot.
            wqe = wqe.wrapping_add(self.stride_bytes as usize);
            filled += 1;
        }
        filled
    }
}

/// One slot that is not posted: `stride_bytes` of queue memory from `wqe` on, and its cookie.
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

    #[inline(always)]
    pub(crate) fn fill(mut self, body: impl Body, cookie: u64) {
        body.write(&mut self);
        self.set_cookie(cookie);
    }

    /// Sets where the device goes after this slot.
    #[inline(always)]
    pub(crate) fn write_next(&mut self, next: WqeIndex) {
        let field = self.wqe.wrapping_add(wqe::NEXT_INDEX_OFFSET).cast::<Be16>();
        // SAFETY: inside the slot's first 16 bytes, 2-byte aligned; exclusive through `&mut WqeMem`.
        unsafe { field.write(Be16::new(next.0)) };
    }

    /// Writes the only data segment, and the terminator where the slot has room for more than one.
    #[inline(always)]
    pub(crate) fn write_one(&mut self, seg: DataSeg) {
        // SAFETY: the stride is at least 32 bytes, so one segment always fits.
        unsafe { self.write_segment(0, seg) };
        if self.stride_bytes > wqe::MIN_STRIDE_BYTES {
            // SAFETY: strides are powers of two, so this one is at least 64 bytes and a second segment fits.
            unsafe { self.write_segment(1, DataSeg::TERMINATOR) };
        }
    }

    /// Writes all data segments, and the terminator where they are fewer than fit. Extra segments are left out.
    #[inline(always)]
    pub(crate) fn write_all(&mut self, segs: impl Iterator<Item = DataSeg>) {
        let room = wqe::max_segments(self.stride_bytes) as usize;
        let mut used = 0;
        for seg in segs.take(room) {
            // SAFETY: used < room segments fit after the next segment.
            unsafe { self.write_segment(used, seg) };
            used += 1;
        }
        if used < room {
            // SAFETY: used < room, so one more segment fits.
            unsafe { self.write_segment(used, DataSeg::TERMINATOR) };
        }
    }

    /// # Safety
    ///
    /// `n` is below the number of data segments that fit into the stride.
    #[inline(always)]
    unsafe fn write_segment(&mut self, n: usize, seg: DataSeg) {
        let at = self.wqe.wrapping_add(wqe::FIRST_SEG_OFFSET + n * wqe::SEGMENT_BYTES).cast::<u64>();
        let [first, second] = seg.to_words();
        // SAFETY: 16 bytes inside the slot by contract, 16-byte aligned since ring and stride are; exclusive through
        // `&mut WqeMem`.
        unsafe {
            at.write(first);
            at.add(1).write(second);
        }
    }

    /// Writes the address of the first data segment and nothing else.
    #[inline(always)]
    pub(crate) fn write_address(&mut self, addr: u64) {
        let field = self.wqe.wrapping_add(wqe::FIRST_ADDR_OFFSET).cast::<u64>();
        // SAFETY: bytes 24..32 of a slot of at least 32 bytes, 8-byte aligned; exclusive through `&mut WqeMem`.
        unsafe { field.write(addr.to_be()) };
    }
}

/// What a post writes into a slot.
pub(crate) trait Body: Copy {
    fn write(self, slot: &mut SlotMut<'_>);

    /// As two words, which a call passes in registers; a struct it would pass through the stack.
    fn to_words(self) -> [u64; 2];
    fn from_words(words: [u64; 2]) -> Self;
}

impl Body for DataSeg {
    #[inline(always)]
    fn write(self, slot: &mut SlotMut<'_>) {
        slot.write_one(self);
    }

    #[inline(always)]
    fn to_words(self) -> [u64; 2] {
        DataSeg::to_words(self)
    }

    #[inline(always)]
    fn from_words(words: [u64; 2]) -> Self {
        DataSeg::from_words(words)
    }
}

/// An address, where length and lkey are in place.
impl Body for u64 {
    #[inline(always)]
    fn write(self, slot: &mut SlotMut<'_>) {
        slot.write_address(self);
    }

    #[inline(always)]
    fn to_words(self) -> [u64; 2] {
        [self, 0]
    }

    #[inline(always)]
    fn from_words(words: [u64; 2]) -> Self {
        words[0]
    }
}

/// A checked CQ: entries, doorbell record and arm register, nothing polled yet. Not `Clone`: there is one poller.
#[derive(Debug)]
pub struct CqLayout {
    pub(crate) cqes: CqeMem,
    pub(crate) dbrec: CqDbRec,
    pub(crate) uar: Uar,
    /// CQ number.
    pub cqn: u32,
}

/// What [`CqLayout::from_raw_parts`] needs to know about a CQ.
#[derive(Clone, Copy, Debug)]
pub struct CqParts {
    /// Entry 0.
    pub buf: *mut u8,
    /// Doorbell record, two words.
    pub dbrec: *mut u32,
    /// Register page.
    pub uar: *mut u8,
    /// Entries, a power of two.
    pub cqe_count: u32,
    /// Bytes of an entry: 64 or 128.
    pub cqe_bytes: u32,
    /// CQ number.
    pub cqn: u32,
}

impl CqLayout {
    /// Checks a CQ that is described by raw parts.
    ///
    /// # Errors
    ///
    /// A [`LayoutError`] where size, entry size or a pointer is not what the device uses.
    ///
    /// # Safety
    ///
    /// `buf` is valid for reads of `cqe_count * cqe_bytes` bytes, `dbrec` for writes of two words and `uar` for an 8-byte
    /// store at offset 0x20, for as long as the layout, or a [`Cq`](crate::Cq) made from it, lives; nobody else polls or
    /// arms the CQ meanwhile, and nothing was polled from it before.
    pub unsafe fn from_raw_parts(parts: CqParts) -> Result<Self, LayoutError> {
        // SAFETY: passed on to the caller.
        unsafe { Self::checked(parts, None) }
    }

    /// A CQ on the heap: for tests, measurements and software devices. The second value is the device's view.
    ///
    /// Entries start as a driver leaves them: opcode 15, invalid.
    ///
    /// # Errors
    ///
    /// A [`LayoutError`] where the size or the entry size is not what a device uses.
    pub fn on_heap(cqe_count: u32, cqe_bytes: u32) -> Result<(Self, Arc<HeapMem>), LayoutError> {
        check_cq(cqe_count, cqe_bytes)?;
        let queue_bytes = cqe_count as usize * cqe_bytes as usize;
        let mem = Arc::new(HeapMem::new(queue_bytes, 192));
        for n in 1..=cqe_count as usize {
            mem.store_u8(n * cqe_bytes as usize - 1, 0xf0);
        }
        let parts = CqParts {
            buf: mem.base.as_ptr(),
            dbrec: mem.tail(0).cast(),
            uar: mem.tail(64),
            cqe_count,
            cqe_bytes,
            cqn: 1,
        };
        // SAFETY: as in `SrqLayout::on_heap`; record and register page are the 192 bytes behind the entries.
        let layout = unsafe { Self::checked(parts, Some(Arc::clone(&mem))) }?;
        Ok((layout, mem))
    }

    unsafe fn checked(parts: CqParts, keep: Keep) -> Result<Self, LayoutError> {
        check_cq(parts.cqe_count, parts.cqe_bytes)?;
        let base = aligned(parts.buf, 64, "CQ buffer")?;
        let words = aligned(parts.dbrec, 4, "CQ doorbell record")?;
        let page = aligned(parts.uar, 8, "CQ register page")?;
        let cqes =
            CqeMem { base, mask: parts.cqe_count - 1, cqe_bytes: parts.cqe_bytes, _keep: keep.clone() };
        // SAFETY: valid and exclusive by the caller's contract, alignment checked above.
        let (dbrec, uar) = unsafe { (CqDbRec::new(words.cast(), keep.clone()), Uar::new(page, keep)) };
        Ok(Self { cqes, dbrec, uar, cqn: parts.cqn })
    }

    /// Entries in the CQ.
    pub fn cqe_count(&self) -> u32 {
        self.cqes.mask + 1
    }
}

fn check_cq(cqe_count: u32, cqe_bytes: u32) -> Result<(), LayoutError> {
    // The consumer index has 24 bits and its next bit is the ownership bit.
    if !cqe_count.is_power_of_two() || cqe_count > 1 << 23 {
        return Err(LayoutError::CqeCount { cqe_count });
    }
    if !matches!(cqe_bytes, 64 | 128) {
        return Err(LayoutError::CqeBytes { cqe_bytes });
    }
    Ok(())
}

/// The CQ's ring of entries. Read-only.
#[derive(Debug)]
pub(crate) struct CqeMem {
    base: NonNull<u8>,
    mask: u32,
    cqe_bytes: u32,
    _keep: Keep,
}

// SAFETY: plain memory without thread affinity, only read from here.
unsafe impl Send for CqeMem {}

impl CqeMem {
    pub(crate) fn mask(&self) -> u32 {
        self.mask
    }

    /// Which value of the owner bit says "yours" on this lap.
    #[inline(always)]
    pub(crate) fn lap(&self, consumer_index: u32) -> u8 {
        u8::from(consumer_index & (self.mask + 1) != 0)
    }

    /// The entry at `consumer_index` and its `op_own`, if the device has handed it over on this lap. Holds the ownership
    /// test and the load barrier.
    #[inline(always)]
    pub(crate) fn ready(&self, consumer_index: u32, lap: u8) -> Option<(CqeRef<'_>, u8)> {
        let cqe = self.entry(consumer_index);
        let op_own = cqe.op_own();
        if (op_own ^ lap) & 1 != 0 || op_own >= 0xf0 {
            return None;
        }
        barrier::from_device();
        Some((cqe, op_own))
    }

    /// The entry at `index` without a test.
    #[inline(always)]
    pub(crate) fn entry(&self, index: u32) -> CqeRef<'_> {
        let end = ((index & self.mask) as usize + 1) * self.cqe_bytes as usize;
        // SAFETY: in bounds because the masked index is below the entry count; an entry ends with the 64 bytes that carry
        // the fields, so `end - 64` is inside it.
        CqeRef { fields: unsafe { self.base.as_ptr().add(end - 64) }, _mem: PhantomData }
    }

    /// Copies payload that the device scattered into the entry at `index`: its first 32 bytes, or the 64 bytes before
    /// the fields of a 128-byte entry. Returns the bytes copied; 0 where a 64-byte entry claims the latter.
    pub(crate) fn copy_scattered(&self, index: u32, wide: bool, out: &mut [u8]) -> usize {
        let fields = self.entry(index).fields;
        let (from, room) = match (wide, self.cqe_bytes) {
            (false, _) => (fields, 32),
            (true, 128) => (fields.wrapping_sub(64), 64),
            (true, _) => return 0,
        };
        let len = out.len().min(room);
        for (n, byte) in out[..len].iter_mut().enumerate() {
            // SAFETY: n < room, and `room` bytes from `from` are inside the entry in each of the cases above.
            *byte = unsafe { from.add(n).read_volatile() };
        }
        len
    }
}

/// One completion queue entry in place.
#[derive(Clone, Copy)]
pub(crate) struct CqeRef<'a> {
    fields: *const u8,
    _mem: PhantomData<&'a CqeMem>,
}

macro_rules! cqe_field {
    ($name:ident, $field:ident, $raw:ty => $host:ty, $get:expr) => {
        #[inline(always)]
        fn $name(&self) -> $host {
            let field = self.fields.wrapping_add(offset_of!(RawCqe, $field)).cast::<$raw>();
            // SAFETY: a field of the 64 bytes that `entry` checked, aligned since those are 64-byte aligned; volatile
            // because the device writes here.
            $get(unsafe { field.read_volatile() })
        }
    };
}

impl CqeFields for CqeRef<'_> {
    cqe_field!(op_own, op_own, u8 => u8, core::convert::identity);
    cqe_field!(wqe_counter, wqe_counter, u16 => u16, u16::from_be);
    cqe_field!(sop_drop_qpn, sop_drop_qpn, u32 => u32, u32::from_be);
    cqe_field!(byte_count, byte_cnt, u32 => u32, u32::from_be);
    cqe_field!(imm_inval_pkey, imm_inval_pkey, u32 => u32, u32::from_be);
    cqe_field!(srqn_uidx, srqn_uidx, u32 => u32, u32::from_be);
    cqe_field!(timestamp, timestamp, u64 => u64, u64::from_be);

    #[inline(always)]
    fn error_syndromes(&self) -> (u8, u8) {
        let at = self.fields.wrapping_add(crate::cqe::VENDOR_SYNDROME_OFFSET);
        // SAFETY: bytes 54 and 55 of the 64 that `entry` checked.
        unsafe { (at.add(1).read_volatile(), at.read_volatile()) }
    }
}

/// Zeroed heap memory that plays the part of queue memory: a ring, then doorbell records, then a register page.
///
/// Its methods are the device's side: volatile, bounds-checked accesses at byte offsets.
#[derive(Debug)]
pub struct HeapMem {
    base: NonNull<u8>,
    layout: Layout,
    ring_bytes: usize,
}

// SAFETY: the memory is only reached through volatile accesses and raw pointers; what is read may be stale, as it may be
// with a real device, but every value is valid for its type.
unsafe impl Send for HeapMem {}
// SAFETY: as above.
unsafe impl Sync for HeapMem {}

macro_rules! heap_access {
    ($load:ident, $store:ident, $int:ty, $what:literal) => {
        #[doc = concat!("Reads ", $what, " at a byte offset; panics outside the memory or when misaligned.")]
        pub fn $load(&self, offset: usize) -> $int {
            // SAFETY: bounds and alignment checked by `at`.
            <$int>::from_be(unsafe { self.at(offset, size_of::<$int>()).cast::<$int>().read_volatile() })
        }

        #[doc = concat!("Writes ", $what, " at a byte offset; panics outside the memory or when misaligned.")]
        pub fn $store(&self, offset: usize, value: $int) {
            // SAFETY: bounds and alignment checked by `at`.
            unsafe { self.at(offset, size_of::<$int>()).cast::<$int>().write_volatile(value.to_be()) };
        }
    };
}

impl HeapMem {
    fn new(ring_bytes: usize, tail_bytes: usize) -> Self {
        let ring_bytes = ring_bytes.next_multiple_of(64);
        let layout = Layout::from_size_align(ring_bytes + tail_bytes, 4096).expect("queue sizes are bounded");
        // SAFETY: the size is not zero.
        let base =
            NonNull::new(unsafe { alloc_zeroed(layout) }).unwrap_or_else(|| handle_alloc_error(layout));
        Self { base, layout, ring_bytes }
    }

    fn tail(&self, offset: usize) -> *mut u8 {
        self.base.as_ptr().wrapping_add(self.ring_bytes + offset)
    }

    fn at(&self, offset: usize, bytes: usize) -> *mut u8 {
        assert!(
            offset.is_multiple_of(bytes)
                && offset.checked_add(bytes).is_some_and(|end| end <= self.layout.size()),
            "{bytes} bytes at offset {offset} are misaligned or outside {} bytes of queue memory",
            self.layout.size()
        );
        self.base.as_ptr().wrapping_add(offset)
    }

    heap_access!(load_u8, store_u8, u8, "a byte");
    heap_access!(load_be16, store_be16, u16, "a big-endian 16-bit field");
    heap_access!(load_be32, store_be32, u32, "a big-endian 32-bit field");
    heap_access!(load_be64, store_be64, u64, "a big-endian 64-bit field");

    /// Byte offset of the first doorbell record word: the SRQ's count, or the CQ's consumer index (arm word 4 further).
    pub fn dbrec_offset(&self) -> usize {
        self.ring_bytes
    }

    /// Byte offset of a CQ's doorbell register.
    pub fn cq_doorbell_offset(&self) -> usize {
        self.ring_bytes + 64 + CQ_DOORBELL_OFFSET
    }
}

impl Drop for HeapMem {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout and freed once.
        unsafe { dealloc(self.base.as_ptr(), self.layout) };
    }
}

const _: () = {
    // The register must fit into the page part that `CqLayout::on_heap` sets aside.
    assert!(CQ_DOORBELL_OFFSET + 8 <= 128);
    assert!(size_of::<Be32>() == 4);
};
