//! Queue memory on the heap, for tests, measurements and software devices.

use core::ptr::NonNull;
use std::{
    alloc::{Layout, alloc_zeroed, dealloc},
    sync::Arc,
};

use volatile::VolatilePtr;

use crate::error::LayoutError;

/// Bytes of the registers: both halves of a send register.
const REGISTER_BYTES: usize = 512;

/// Zeroed heap memory in the role of queue memory: a ring, then its doorbell record, then
/// registers.
///
/// Its methods are the device's side: volatile, bounds-checked accesses at byte offsets.
/// [`HeapView::device`] gives access to them.
#[derive(Debug)]
pub struct HeapMem {
    base: NonNull<u8>,
    layout: Layout,
    /// Offset of the doorbell record.
    record: usize,
    /// Offset of the registers.
    registers: usize,
}

// SAFETY: a heap block belongs to no thread.
unsafe impl Send for HeapMem {}
// SAFETY: callers of the methods promised in `HeapView::device` that no access of another thread
// conflicts. Every bit pattern is valid for the integers that the methods read.
unsafe impl Sync for HeapMem {}

/// The device's side of queue memory on the heap, before a caller promises to use it as a device
/// does.
///
/// Without that promise, safe code could race with the queue, whose own accesses are not atomic:
///
/// ```
/// # use mlx5_direct::{DataSeg, Srq, SrqLayout};
/// let (layout, view) = SrqLayout::on_heap(8, 32)?;
/// let mut srq = Srq::new(layout, 7)?;
/// srq.post_one(DataSeg::new(1, 2, 3), 4)?;
/// // SAFETY: there is one thread.
/// let mem = unsafe { view.device() };
/// assert_eq!(mem.load_be64(24), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// ```compile_fail,E0133
/// # use mlx5_direct::{DataSeg, Srq, SrqLayout};
/// let (layout, view) = SrqLayout::on_heap(8, 32)?;
/// let mut srq = Srq::new(layout, 7)?;
/// let mem = view.device();
/// std::thread::scope(|scope| {
///     scope.spawn(|| mem.store_be64(24, 9));
///     srq.post_one(DataSeg::new(1, 2, 3), 4)
/// })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct HeapView(pub(crate) Arc<HeapMem>);

impl HeapView {
    /// The memory as the device sees it.
    ///
    /// # Safety
    ///
    /// The queue reads and writes its memory with ordinary accesses. A single thread may call the
    /// methods in any order. If one thread uses the queue while another calls methods of the
    /// memory, the other thread must act as a device: it reads a slot only after the record has
    /// published the slot, writes an entry only before it hands the entry over, hands the entry
    /// over by its last byte, and executes a processor barrier between the two steps.
    pub unsafe fn device(self) -> Arc<HeapMem> {
        self.0
    }
}

macro_rules! heap_access {
    ($load:ident, $store:ident, $int:ty, $what:literal) => {
        #[doc = concat!("Reads ", $what, " at a byte offset; panics outside the memory or when misaligned.")]
        pub fn $load(&self, offset: usize) -> $int {
            <$int>::from_be(self.at::<$int>(offset).read())
        }

        #[doc = concat!("Writes ", $what, " at a byte offset; panics outside the memory or when misaligned.")]
        pub fn $store(&self, offset: usize, value: $int) {
            self.at::<$int>(offset).write(value.to_be());
        }
    };
}

impl HeapMem {
    pub(crate) fn new(ring_bytes: usize) -> Result<Self, LayoutError> {
        let record = ring_bytes.next_multiple_of(64);
        let registers = (record + 64).next_multiple_of(REGISTER_BYTES);
        let layout =
            Layout::from_size_align(registers + REGISTER_BYTES, 4096).expect("queue sizes are bounded");
        // SAFETY: the size is not zero.
        let base = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or(LayoutError::NoMemory)?;
        Ok(Self { base, layout, record, registers })
    }

    /// The start of the ring.
    pub(crate) fn ring(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// The doorbell record.
    pub(crate) fn record(&self) -> *mut u32 {
        self.base.as_ptr().wrapping_add(self.record).cast()
    }

    /// The registers, aligned to their size.
    pub(crate) fn registers(&self) -> *mut u8 {
        self.base.as_ptr().wrapping_add(self.registers)
    }

    fn at<T>(&self, offset: usize) -> VolatilePtr<'_, T> {
        let bytes = size_of::<T>();
        assert!(
            offset.is_multiple_of(bytes)
                && offset.checked_add(bytes).is_some_and(|end| end <= self.layout.size()),
            "{bytes} bytes at offset {offset} are misaligned or outside {} bytes of queue memory",
            self.layout.size()
        );
        // SAFETY: inside the block and aligned, as checked.
        unsafe { VolatilePtr::new(self.base.add(offset).cast()) }
    }

    heap_access!(load_u8, store_u8, u8, "a byte");
    heap_access!(load_be16, store_be16, u16, "a big-endian 16-bit field");
    heap_access!(load_be32, store_be32, u32, "a big-endian 32-bit field");
    heap_access!(load_be64, store_be64, u64, "a big-endian 64-bit field");

    /// Byte offset of the first doorbell record word: the count of an SRQ, a send queue or a
    /// receive queue, or the consumer index of a CQ (its arm word is 4 bytes further).
    pub fn dbrec_offset(&self) -> usize {
        self.record
    }

    /// Byte offset of the registers: of a send queue, its first half, which the second half follows
    /// 256 bytes further; of a CQ, its register page.
    pub fn register_offset(&self) -> usize {
        self.registers
    }
}

impl Drop for HeapMem {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout and freed once.
        unsafe { dealloc(self.base.as_ptr(), self.layout) };
    }
}
