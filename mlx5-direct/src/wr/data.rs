//! The data of work requests: what a request sends inline or by segments, or where it reads to.

use doorbell_sys::ibv_sge;

use crate::{
    memory::{Registers, Target},
    wqe::{DataSeg, KeyedSeg, SEGMENT_BYTES, send::INLINE_HEADER_BYTES},
};

/// The data that a request sends, or the memory that it reads into: [`Inline`], [`InlineParts`],
/// [`DataSeg`], `[DataSeg; N]`, `&[DataSeg]`, `[KeyedSeg; N]`, or `()` for none.
pub trait Data: Copy + sealed::Sealed {
    /// 16-byte units of the data.
    #[doc(hidden)]
    fn units(&self) -> usize;
    /// Writes these units.
    #[doc(hidden)]
    fn write(self, out: &mut impl Target);
    /// Whether registers of the processor can hold the units.
    #[doc(hidden)]
    #[inline(always)]
    fn in_registers(&self) -> bool {
        false
    }
    /// Inline bytes among them.
    #[doc(hidden)]
    #[inline(always)]
    fn inline_bytes(&self) -> usize {
        0
    }
}

pub(crate) mod sealed {
    pub trait Sealed {}
    impl Sealed for () {}
    impl Sealed for super::Inline<'_> {}
    impl Sealed for super::InlineParts<'_> {}
    impl Sealed for super::ShortInline<'_> {}
    impl Sealed for super::LongInline<'_> {}
    impl Sealed for super::DataSeg {}
    impl Sealed for &[super::DataSeg] {}
    impl<const N: usize> Sealed for [super::DataSeg; N] {}
    impl<const N: usize> Sealed for [super::KeyedSeg; N] {}
    impl Sealed for super::Sges<'_> {}
    impl Sealed for super::EightBytes<'_> {}
}

/// Bytes that are copied into the WQE: the slice may change as soon as the request is posted. A
/// reference to an array, whose length the compiler knows, gives the shortest code.
#[derive(Clone, Copy, Debug)]
pub struct Inline<'a>(pub &'a [u8]);

/// Several pieces that are copied into the WQE one after the other.
#[derive(Clone, Copy, Debug)]
pub struct InlineParts<'a>(pub &'a [&'a [u8]]);

/// 1 to 48 bytes of a length that the compiler does not know, which are copied without a call.
#[derive(Clone, Copy)]
pub(crate) struct ShortInline<'a>(pub(crate) &'a [u8]);

/// 16 bytes or more, which are copied by units of the WQE and without a call.
#[derive(Clone, Copy)]
pub(crate) struct LongInline<'a>(pub(crate) &'a [u8]);

/// A gather list of verbs.
#[derive(Clone, Copy)]
pub(crate) struct Sges<'a>(pub(crate) &'a [ibv_sge]);

/// A scatter list of verbs for the result of an atomic: each entry counts as 8 bytes, whatever its
/// length field says.
#[derive(Clone, Copy)]
pub(crate) struct EightBytes<'a>(pub(super) &'a [ibv_sge]);

impl Data for EightBytes<'_> {
    fn units(&self) -> usize {
        Sges(self.0).units()
    }

    fn write(self, out: &mut impl Target) {
        let used = self.0.iter().filter(|sge| sge.length != 0);
        used.for_each(|sge| out.push(DataSeg::new(sge.addr, 8, sge.lkey).to_words()));
    }
}

/// Units of an inline segment.
#[inline(always)]
pub(crate) fn inline_units(bytes: usize) -> usize {
    // Zero bytes make no segment. A sum that overflows is too long as well.
    if bytes == 0 { 0 } else { bytes.saturating_add(INLINE_HEADER_BYTES).div_ceil(SEGMENT_BYTES) }
}

impl Data for () {
    #[inline(always)]
    fn units(&self) -> usize {
        0
    }

    #[inline(always)]
    fn write(self, _: &mut impl Target) {}

    #[inline(always)]
    fn in_registers(&self) -> bool {
        true
    }
}

impl Data for Inline<'_> {
    #[inline(always)]
    fn units(&self) -> usize {
        inline_units(self.0.len())
    }

    #[inline(always)]
    fn write(self, out: &mut impl Target) {
        out.push_inline(self.0);
    }

    #[inline(always)]
    fn in_registers(&self) -> bool {
        Registers::holds_inline(self.0.len())
    }

    #[inline(always)]
    fn inline_bytes(&self) -> usize {
        self.0.len()
    }
}

impl Data for ShortInline<'_> {
    #[inline(always)]
    fn units(&self) -> usize {
        inline_units(self.0.len())
    }

    #[inline(always)]
    fn write(self, out: &mut impl Target) {
        out.push_short_inline(self.0);
    }

    #[inline(always)]
    fn in_registers(&self) -> bool {
        Registers::holds_inline(self.0.len())
    }
}

impl Data for LongInline<'_> {
    #[inline(always)]
    fn units(&self) -> usize {
        inline_units(self.0.len())
    }

    #[inline(always)]
    fn write(self, out: &mut impl Target) {
        out.push_long_inline(self.0);
    }
}

impl Data for InlineParts<'_> {
    #[inline(always)]
    fn units(&self) -> usize {
        inline_units(self.0.iter().fold(0, |n: usize, part| n.saturating_add(part.len())))
    }

    #[inline(always)]
    fn write(self, out: &mut impl Target) {
        out.push_inline_parts(self.0.iter().copied());
    }

    #[inline(always)]
    fn inline_bytes(&self) -> usize {
        self.0.iter().map(|part| part.len()).sum()
    }
}

impl Data for DataSeg {
    #[inline(always)]
    fn units(&self) -> usize {
        usize::from(self.byte_count() != 0)
    }

    #[inline(always)]
    fn write(self, out: &mut impl Target) {
        // The device reads a length of 0 as 2 GiB.
        if self.byte_count() != 0 {
            out.push(self.to_words());
        }
    }

    #[inline(always)]
    fn in_registers(&self) -> bool {
        true
    }
}

impl Data for &[DataSeg] {
    #[inline(always)]
    fn units(&self) -> usize {
        self.iter().filter(|seg| seg.byte_count() != 0).count()
    }

    #[inline(always)]
    fn write(self, out: &mut impl Target) {
        self.iter().for_each(|seg| seg.write(out));
    }
}

/// A few segments, whose number the compiler knows: shorter code than for a slice.
impl<const N: usize> Data for [DataSeg; N] {
    #[inline(always)]
    fn units(&self) -> usize {
        self.as_slice().units()
    }

    #[inline(always)]
    fn write(self, out: &mut impl Target) {
        self.as_slice().write(out);
    }

    #[inline(always)]
    fn in_registers(&self) -> bool {
        self.iter().all(|seg| seg.byte_count() != 0)
    }
}

/// Segments of one byte or more each: the lengths are not compared with 0.
impl<const N: usize> Data for [KeyedSeg; N] {
    #[inline(always)]
    fn units(&self) -> usize {
        N
    }

    #[inline(always)]
    fn write(self, out: &mut impl Target) {
        self.iter().for_each(|seg| out.push(seg.to_words()));
    }

    #[inline(always)]
    fn in_registers(&self) -> bool {
        true
    }
}

impl Data for Sges<'_> {
    #[inline(always)]
    fn units(&self) -> usize {
        self.0.iter().filter(|sge| sge.length != 0).count()
    }

    #[inline(always)]
    fn write(self, out: &mut impl Target) {
        self.0
            .iter()
            .filter(|sge| sge.length != 0)
            .for_each(|sge| out.push(DataSeg::from_sge(sge).to_words()));
    }
}
