#![expect(unsafe_code, reason = "raw queue memory shared with a device")]
//! Bounded access to queue memory, and layouts that have been checked once.
//!
//! Memory of WQEs: software writes it, the device reads it. Software reads back only what the
//! device does not write. CQ memory: the device writes it; software reads it after the ownership
//! test and a load barrier, and moves entries that it owns when it removes those of a QP. An index
//! is masked with the queue size (a power of two), so that no index, not even one from the device,
//! reaches outside.

use core::ptr::NonNull;
use std::sync::Arc;

use volatile::VolatilePtr;

use crate::{
    doorbell::Uar,
    doorbell::{CounterDbRec, CqDbRec},
    memory::Keep,
    wqe,
};

mod entries;
mod image;
mod qp;
mod receives;
mod sends;
mod slots;
mod staged;

pub use crate::{
    error::LayoutError,
    memory::{HeapMem, HeapView, Registers, Target, Units},
};
pub(crate) use entries::{CqeMem, CqeRef, MOST_SCATTERED};
pub(crate) use image::{Place, WqeImage};
pub use qp::{RqLayout, RqParts, SqCaps, SqLayout, SqParts, Transport};
pub(crate) use receives::RqMem;
pub use sends::Cookie;
pub(crate) use sends::{Extra, Record, SqMem, opaque};
pub use slots::Cookies;
pub(crate) use slots::{Fill, Words, WqeMem};
pub(crate) use staged::{StagedHead, StagedMem, StagedRequest};

/// A checked SRQ: ring memory and doorbell record, nothing posted yet. Not `Clone`: there is one
/// poster.
#[derive(Debug)]
pub struct SrqLayout {
    pub(crate) wqes: WqeMem,
    pub(crate) dbrec: CounterDbRec,
    pub(crate) srqn: u32,
}

/// The description of a ring for [`SrqLayout::from_raw_parts`].
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
    /// A [`LayoutError`] if the size, the stride or a pointer is not valid for the device, or
    /// something was posted already.
    ///
    /// # Safety
    ///
    /// As long as the layout, or an [`Srq`](crate::Srq) made from it, lives, `buf` is valid for
    /// writes of `wqe_count * stride_bytes` bytes and `dbrec` for reads and writes of one word, and
    /// nobody else writes to them.
    pub unsafe fn from_raw_parts(parts: SrqParts) -> Result<Self, LayoutError> {
        // SAFETY: passed on to the caller.
        unsafe { Self::checked(parts, None) }
    }

    /// A ring on the heap, for tests, measurements and software devices. The second value is the
    /// device's view; its use is `unsafe` ([`HeapView::device`]).
    ///
    /// # Errors
    ///
    /// A [`LayoutError`] if a device does not support the size or the stride.
    pub fn on_heap(wqe_count: u32, stride_bytes: u32) -> Result<(Self, HeapView), LayoutError> {
        check_ring(wqe_count, stride_bytes)?;
        let ring_bytes = wqe_count as usize * stride_bytes as usize;
        let mem = Arc::new(HeapMem::new(ring_bytes)?);
        let parts = SrqParts { buf: mem.ring(), dbrec: mem.record(), wqe_count, stride_bytes, srqn: 0 };
        // SAFETY: both pointers are inside `mem`, which the layout keeps alive. Users of `HeapMem`
        // promised in `HeapView::device` to access it only as a device does.
        let layout = unsafe { Self::checked(parts, Some(Arc::clone(&mem))) }?;
        Ok((layout, HeapView(mem)))
    }

    unsafe fn checked(parts: SrqParts, keep: Keep) -> Result<Self, LayoutError> {
        check_ring(parts.wqe_count, parts.stride_bytes)?;
        let base = aligned(parts.buf, wqe::SEGMENT_BYTES, "SRQ buffer")?;
        let word = aligned(parts.dbrec, 4, "SRQ doorbell record")?;
        // SAFETY: valid and exclusive by the caller's contract; alignment, count and stride checked
        // above.
        let wqes = unsafe { WqeMem::new(base, parts.wqe_count, parts.stride_bytes, keep.clone()) }
            .map_err(|_| LayoutError::NoMemory)?;
        // SAFETY: valid and exclusive by the caller's contract, alignment checked above.
        let dbrec =
            unsafe { CounterDbRec::new(word, keep) }.map_err(|count| LayoutError::AlreadyPosted { count })?;
        Ok(Self { wqes, dbrec, srqn: parts.srqn })
    }

    /// Slots in the ring. One slot fewer can be posted at a time.
    pub fn wqe_count(&self) -> u32 {
        self.wqes.mask() + 1
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

/// A checked CQ: entries, doorbell record and arm register, nothing polled yet. Not `Clone`: there
/// is one poller.
#[derive(Debug)]
pub struct CqLayout {
    pub(crate) cqes: CqeMem,
    pub(crate) dbrec: CqDbRec,
    pub(crate) uar: Uar,
    pub(crate) cqn: u32,
}

/// The description of a CQ for [`CqLayout::from_raw_parts`].
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
    /// A [`LayoutError`] if the size, the entry size or a pointer is not valid for the device.
    ///
    /// # Safety
    ///
    /// As long as the layout, or a [`Cq`](crate::Cq) made from it, lives, `buf` is valid for reads
    /// and writes of `cqe_count * cqe_bytes` bytes, `dbrec` for writes of two words and `uar` for
    /// an 8-byte store at offset 0x20. Nobody else polls or arms the CQ meanwhile, and nothing was
    /// polled from it before.
    pub unsafe fn from_raw_parts(parts: CqParts) -> Result<Self, LayoutError> {
        // SAFETY: passed on to the caller.
        unsafe { Self::checked(parts, None) }
    }

    /// A CQ on the heap, for tests, measurements and software devices. The second value is the
    /// device's view.
    ///
    /// The entries start as a driver initialises them: opcode 15, invalid.
    ///
    /// # Errors
    ///
    /// A [`LayoutError`] if a device does not support the size or the entry size.
    pub fn on_heap(cqe_count: u32, cqe_bytes: u32) -> Result<(Self, HeapView), LayoutError> {
        check_cq(cqe_count, cqe_bytes)?;
        let queue_bytes = cqe_count as usize * cqe_bytes as usize;
        let mem = Arc::new(HeapMem::new(queue_bytes)?);
        for n in 1..=cqe_count as usize {
            mem.store_u8(n * cqe_bytes as usize - 1, 0xf0);
        }
        let parts = CqParts {
            buf: mem.ring(),
            dbrec: mem.record(),
            uar: mem.registers(),
            cqe_count,
            cqe_bytes,
            cqn: 1,
        };
        // SAFETY: as in `SrqLayout::on_heap`; the registers have room for the one at offset 0x20.
        let layout = unsafe { Self::checked(parts, Some(Arc::clone(&mem))) }?;
        Ok((layout, HeapView(mem)))
    }

    unsafe fn checked(parts: CqParts, keep: Keep) -> Result<Self, LayoutError> {
        check_cq(parts.cqe_count, parts.cqe_bytes)?;
        let base = aligned(parts.buf, 64, "CQ buffer")?;
        let words = aligned(parts.dbrec, 4, "CQ doorbell record")?;
        let page = aligned(parts.uar, 8, "CQ register page")?;
        // SAFETY: inside the first entry, which has 64 or 128 bytes.
        let fields = unsafe { base.add(parts.cqe_bytes as usize - 64) };
        // SAFETY: valid by the caller's contract, sizes checked above.
        let cqes = unsafe { CqeMem::new(fields, parts.cqe_count, parts.cqe_bytes, keep.clone()) };
        // SAFETY: valid and exclusive by the caller's contract, alignment checked above.
        let (dbrec, uar) = unsafe { (CqDbRec::new(words.cast(), keep.clone()), Uar::new(page, keep)) };
        Ok(Self { cqes, dbrec, uar, cqn: parts.cqn })
    }

    /// Entries in the CQ.
    pub fn cqe_count(&self) -> u32 {
        self.cqes.mask + 1
    }

    /// Bytes of an entry: 64 or 128.
    pub fn cqe_bytes(&self) -> u32 {
        self.cqes.cqe_bytes
    }
}

/// New entries for a CQ that is resized: see [`Cq::continue_in`](crate::Cq::continue_in).
#[derive(Debug)]
pub struct CqBuffer(pub(crate) CqeMem);

impl CqBuffer {
    /// Entries in this memory, which become invalid (opcode 15), as a driver initialises them.
    ///
    /// # Errors
    ///
    /// A [`LayoutError`] if the size, the entry size or the pointer is not valid for the device.
    ///
    /// # Safety
    ///
    /// As long as the value, or a [`Cq`](crate::Cq) that continues in it, lives, `buf` is valid for
    /// reads and writes of `cqe_count * cqe_bytes` bytes, and used by the CQ's device only.
    pub unsafe fn from_raw_parts(buf: *mut u8, cqe_count: u32, cqe_bytes: u32) -> Result<Self, LayoutError> {
        check_cq(cqe_count, cqe_bytes)?;
        let base = aligned(buf, 64, "CQ buffer")?;
        // SAFETY: the last byte of each entry is inside the buffer; the fields are the last 64
        // bytes of entry 0. Valid by contract, sizes checked above.
        unsafe {
            for n in 1..=cqe_count as usize {
                VolatilePtr::new(base.add(n * cqe_bytes as usize - 1)).write(0xf0);
            }
            let fields = base.add(cqe_bytes as usize - 64);
            Ok(Self(CqeMem::new(fields, cqe_count, cqe_bytes, None)))
        }
    }

    /// Entries on the heap, as [`CqLayout::on_heap`].
    ///
    /// # Errors
    ///
    /// As [`CqLayout::on_heap`].
    pub fn on_heap(cqe_count: u32, cqe_bytes: u32) -> Result<(Self, HeapView), LayoutError> {
        CqLayout::on_heap(cqe_count, cqe_bytes).map(|(layout, view)| (Self(layout.cqes), view))
    }
}

fn check_cq(cqe_count: u32, cqe_bytes: u32) -> Result<(), LayoutError> {
    // The consumer index has 24 bits, and the bit above the entry number is the ownership bit.
    if !cqe_count.is_power_of_two() || cqe_count > 1 << 23 {
        return Err(LayoutError::CqeCount { cqe_count });
    }
    if !matches!(cqe_bytes, 64 | 128) {
        return Err(LayoutError::CqeBytes { cqe_bytes });
    }
    Ok(())
}
