//! A prepared WQE: its units outside the ring.

use crate::{
    memory::{Target, Unit, Units},
    wqe::{
        SEGMENT_BYTES,
        send::{BLOCK_UNITS, INLINE_HEADER_BYTES, MAX_UNITS},
    },
};

/// A WQE of up to four blocks outside the ring, without QP number and block number.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
pub(crate) struct WqeImage {
    units: [[u64; 2]; WqeImage::UNITS],
    /// Where the inline bytes are, and how many: inside `units`.
    inline_at: usize,
    inline_len: usize,
}

/// The offset of `N` bytes that are inside every image.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place<const N: usize>(usize);

impl WqeImage {
    /// Maximum number of units.
    pub(crate) const UNITS: usize = 4 * BLOCK_UNITS;

    pub(crate) fn new() -> Self {
        Self { units: [[0; 2]; Self::UNITS], inline_at: 0, inline_len: 0 }
    }

    /// Calls the writer of the WQE, which has `inline_len` inline bytes behind `head` units.
    pub(crate) fn write(
        &mut self,
        units: usize,
        (head, inline_len): (usize, usize),
        body: impl FnOnce(&mut Units<'_>),
    ) {
        let left = units.min(Self::UNITS);
        // SAFETY: the units of the image; nobody else uses them.
        body(&mut unsafe { Units::new(self.units.as_mut_ptr().cast(), left) });
        self.set_inline_place(head, inline_len);
    }

    fn set_inline_place(&mut self, head: usize, inline_len: usize) {
        let inline_at = head * SEGMENT_BYTES + INLINE_HEADER_BYTES;
        assert!(inline_len == 0 || inline_at + inline_len <= size_of_val(&self.units));
        (self.inline_at, self.inline_len) = if inline_len > 0 { (inline_at, inline_len) } else { (0, 0) };
    }

    /// The units of the first block.
    #[inline(always)]
    pub(crate) fn first_block(&self) -> [Unit; BLOCK_UNITS] {
        // SAFETY: the first units of the image, which is 64-byte aligned; any bytes are valid.
        unsafe { self.units.as_ptr().cast::<[Unit; BLOCK_UNITS]>().read() }
    }

    /// The control segment, without QP number, block number, and flags of the queue.
    pub(crate) fn ctrl_words(&self) -> [u64; 2] {
        self.units[0]
    }

    /// Words of the units `first..end`.
    pub(crate) fn words(&self, first: usize, end: usize) -> &[u64] {
        self.units[first..end].as_flattened()
    }

    /// Changes a unit behind the control segment.
    pub(crate) fn set_unit(&mut self, unit: usize, words: [u64; 2]) {
        self.units[unit] = words;
    }

    /// The inline bytes; none if the WQE has segments.
    #[inline(always)]
    pub(crate) fn inline_bytes(&mut self) -> &mut [u8] {
        // SAFETY: inside `units`, as `set_inline_place` has checked; any bytes are valid integers;
        // exclusive through `&mut self`.
        unsafe {
            let first = self.units.as_mut_ptr().cast::<u8>().add(self.inline_at);
            core::slice::from_raw_parts_mut(first, self.inline_len)
        }
    }

    /// The place of `N` inline bytes, `offset` bytes behind the first; `None` if the WQE has fewer.
    pub(crate) fn place<const N: usize>(&self, offset: usize) -> Option<Place<N>> {
        let end = offset.checked_add(N)?;
        (end <= self.inline_len).then_some(Place(self.inline_at + offset))
    }

    /// Replaces the bytes at a place, of this image or of another.
    #[inline(always)]
    pub(crate) fn set<const N: usize>(&mut self, place: Place<N>, bytes: [u8; N]) {
        // SAFETY: `place` has checked that the bytes are inside the units of its image, and all
        // images have the same size; any bytes are valid integers; exclusive through `&mut self`.
        unsafe { self.units.as_mut_ptr().cast::<u8>().add(place.0).cast::<[u8; N]>().write(bytes) };
    }

    /// Whether the WQE has inline bytes.
    pub(crate) fn is_inline(&self) -> bool {
        self.inline_len > 0
    }

    /// Replaces the inline segment at `unit`, and sets the size of the WQE to `units`.
    pub(crate) fn set_inline(&mut self, unit: usize, bytes: &[u8], units: usize) {
        self.set_inline_place(unit, bytes.len());
        let left = Self::UNITS - unit;
        let at = self.units[unit..].as_mut_ptr().cast();
        // SAFETY: the units of the image from there on; nobody else uses them.
        unsafe { Units::new(at, left) }.push_inline(bytes);
        let size = MAX_UNITS as u64;
        let first = &mut self.units[0][0];
        *first = (u64::from_be(*first) & !size | units as u64 & size).to_be();
    }
}
