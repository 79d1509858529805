//! Writing the 16-byte units of a WQE.

use core::marker::PhantomData;

use crate::wqe::{
    SEGMENT_BYTES,
    send::{BLOCK_UNITS, INLINE_HEADER_BYTES, InlineHeader},
};

/// A unit of a WQE in one register of the processor, in memory order.
#[cfg(all(target_arch = "x86_64", not(miri)))]
pub(crate) type Unit = core::arch::x86_64::__m128i;
/// A unit of a WQE in one register of the processor, in memory order.
#[cfg(any(not(target_arch = "x86_64"), miri))]
pub(crate) type Unit = u128;

/// A unit of two words in memory order.
#[inline(always)]
pub(crate) const fn unit(words: [u64; 2]) -> Unit {
    // SAFETY: both types have 16 bytes, and all values of them are valid.
    unsafe { core::mem::transmute(words) }
}

/// The bits of both units.
#[inline(always)]
pub(crate) fn or_units(a: Unit, b: Unit) -> Unit {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: every x86-64 processor has SSE2.
    return unsafe { core::arch::x86_64::_mm_or_si128(a, b) };
    #[cfg(any(not(target_arch = "x86_64"), miri))]
    return a | b;
}

/// The sum of both units by words of 64 bits. Where no two bits meet, that is [`or_units`], but the
/// compiler does not take constants of other operations into the sum.
#[inline(always)]
pub(crate) fn add_units(a: Unit, b: Unit) -> Unit {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: every x86-64 processor has SSE2.
    return unsafe { core::arch::x86_64::_mm_add_epi64(a, b) };
    #[cfg(any(not(target_arch = "x86_64"), miri))]
    return a + b;
}

/// Inline bytes of a Send that the first block of its WQE has.
pub(crate) const INLINE_OF_SEND: usize = BODY_UNITS * SEGMENT_BYTES - INLINE_HEADER_BYTES;

/// A block with eight bytes at their place if they are the inline bytes of a Send from `AT` on, and
/// zeros in all other bytes.
#[inline(always)]
pub(crate) fn inline_at<const AT: usize>(bytes: [u8; 8]) -> [Unit; BLOCK_UNITS] {
    const { assert!(AT + 8 <= INLINE_OF_SEND, "the bytes are not in the first block") };
    let at = SEGMENT_BYTES + INLINE_HEADER_BYTES + AT;
    let (word, shift) = (at / 8, at % 8 * 8);
    let value = u64::from_le_bytes(bytes);
    let mut words = [0; BLOCK_UNITS * SEGMENT_BYTES / 8];
    words[word] = (value << shift).to_le();
    if shift != 0 {
        words[word + 1] = (value >> (64 - shift)).to_le();
    }
    [0, 1, 2, 3].map(|n| unit([words[2 * n], words[2 * n + 1]]))
}

/// Where the units of a WQE go: to memory ([`Units`]) or to registers of the processor
/// ([`Registers`]).
pub trait Target {
    /// Appends a unit, in memory order.
    #[doc(hidden)]
    fn push(&mut self, words: [u64; 2]);

    /// Appends several units, in memory order.
    #[doc(hidden)]
    fn push_all(&mut self, words: &[u64]) {
        for pair in words.chunks_exact(2) {
            self.push([pair[0], pair[1]]);
        }
    }

    /// Appends an inline segment, or nothing if there are no bytes.
    #[doc(hidden)]
    fn push_inline(&mut self, bytes: &[u8]);

    /// As [`push_inline`](Self::push_inline), for 1 to 48 bytes: straight-line code without a call.
    /// Leaves out other lengths.
    #[doc(hidden)]
    fn push_short_inline(&mut self, bytes: &[u8]);

    /// As [`push_inline`](Self::push_inline), for 16 bytes or more: without a call. Leaves out fewer.
    #[doc(hidden)]
    fn push_long_inline(&mut self, bytes: &[u8]);

    /// Appends an inline segment of several pieces, one after the other.
    #[doc(hidden)]
    fn push_inline_parts<'a>(&mut self, parts: impl Iterator<Item = &'a [u8]>);
}

/// Units of a WQE of one block, in registers of the processor. Units beyond the block are left out.
#[derive(Debug)]
pub struct Registers {
    block: [Unit; BLOCK_UNITS],
    len: usize,
}

impl Registers {
    /// The first unit.
    #[inline(always)]
    pub(crate) fn new(first: Unit) -> Self {
        let none = unit([0; 2]);
        Self { block: [first, none, none, none], len: 1 }
    }

    /// Whether [`push_inline`](Self::push_inline) takes this many bytes.
    #[inline(always)]
    pub(crate) const fn holds_inline(len: usize) -> bool {
        len.is_multiple_of(4) && SEGMENT_BYTES <= len && len <= INLINE_OF_SEND
    }

    #[inline(always)]
    fn push_unit(&mut self, unit: Unit) {
        if self.len < BLOCK_UNITS {
            self.block[self.len] = unit;
            self.len += 1;
        }
    }

    /// The units so far.
    #[inline(always)]
    pub(crate) fn units(&self) -> &[Unit] {
        &self.block[..self.len]
    }

    /// The whole block.
    #[inline(always)]
    pub(crate) fn block(&self) -> &[Unit; BLOCK_UNITS] {
        &self.block
    }
}

impl Target for Registers {
    #[inline(always)]
    fn push(&mut self, words: [u64; 2]) {
        self.push_unit(unit(words));
    }

    /// Leaves out lengths other than those of [`holds_inline`](Self::holds_inline). Fills the block
    /// with zeros.
    #[inline(always)]
    fn push_inline(&mut self, bytes: &[u8]) {
        let Some(units) = inline_in_units(bytes) else { return };
        units.iter().for_each(|unit| self.push_unit(*unit));
    }

    #[inline(always)]
    fn push_short_inline(&mut self, bytes: &[u8]) {
        self.push_inline(bytes);
    }

    /// Leaves all out: a long segment is put together in memory only.
    #[inline(always)]
    fn push_long_inline(&mut self, _: &[u8]) {}

    /// Leaves all out: pieces are put together in memory only.
    #[inline(always)]
    fn push_inline_parts<'a>(&mut self, _: impl Iterator<Item = &'a [u8]>) {}
}

/// Units of a WQE that is being written, from front to back. Writes beyond them are left out.
#[derive(Debug)]
pub struct Units<'a> {
    at: *mut u8,
    /// Units that are valid for writes from `at` on.
    left: usize,
    _memory: PhantomData<&'a mut [u64; 2]>,
}

impl Target for Units<'_> {
    #[inline(always)]
    fn push(&mut self, [first, second]: [u64; 2]) {
        if self.left == 0 {
            return;
        }
        let at = self.at.cast::<u64>();
        // SAFETY: one more unit is valid for writes, aligned as blocks and the buffer outside the
        // ring are.
        unsafe {
            at.write(first);
            at.add(1).write(second);
        }
        self.skip(1);
    }

    /// The padding keeps the ring's old bytes.
    #[inline(always)]
    fn push_inline(&mut self, bytes: &[u8]) {
        let units = (INLINE_HEADER_BYTES + bytes.len()).div_ceil(SEGMENT_BYTES);
        if bytes.is_empty() || units > self.left {
            return;
        }
        // SAFETY: `units` units are valid for writes, and hold header and bytes.
        unsafe {
            self.at.cast::<u32>().write(InlineHeader::new(bytes.len() as u32).raw());
            self.at.add(INLINE_HEADER_BYTES).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
        }
        self.skip(units);
    }

    #[inline(always)]
    fn push_short_inline(&mut self, bytes: &[u8]) {
        let units = (INLINE_HEADER_BYTES + bytes.len()).div_ceil(SEGMENT_BYTES);
        if !(1..=48).contains(&bytes.len()) || units > self.left {
            return;
        }
        if self.left >= BODY_UNITS
            && let Some(whole) = inline_in_units(bytes)
        {
            // One store for each unit, since some callers load the units again at once. The third
            // may be behind the segment: nothing is there yet. SAFETY: `left` units are valid for
            // writes, and there are three at least.
            unsafe { self.at.cast::<[Unit; BODY_UNITS]>().write_unaligned(whole) };
        } else {
            // SAFETY: `units` units are valid for writes, and hold header and bytes. The bytes have
            // one of the lengths that `copy_short` takes.
            unsafe {
                self.at.cast::<u32>().write(InlineHeader::new(bytes.len() as u32).raw());
                copy_short(bytes.as_ptr(), self.at.add(INLINE_HEADER_BYTES), bytes.len());
            }
        }
        self.skip(units);
    }

    /// One store for each unit, since some callers load the units again at once.
    #[inline(always)]
    fn push_long_inline(&mut self, bytes: &[u8]) {
        let units = (INLINE_HEADER_BYTES + bytes.len()).div_ceil(SEGMENT_BYTES);
        let (Some(first), Some(last)) = (bytes.first_chunk::<SEGMENT_BYTES>(), bytes.last_chunk()) else {
            return;
        };
        if units > self.left {
            return;
        }
        let mut at = self.at.cast::<Unit>();
        let mut store = |unit: Unit| {
            // SAFETY: there are as many stores as units of header and bytes, which are valid for
            // writes, aligned as blocks and the buffer outside the ring are.
            unsafe { at.write(unit) };
            at = at.wrapping_add(1);
        };
        store(header_unit(InlineHeader::new(bytes.len() as u32), whole_unit(first, 0)));
        let (whole, rest) = bytes[SEGMENT_BYTES - INLINE_HEADER_BYTES..].as_chunks::<SEGMENT_BYTES>();
        whole.iter().for_each(|bytes| store(whole_unit(bytes, 0)));
        if !rest.is_empty() {
            // Those of the last 16 bytes that are in units before are shifted out.
            let shifted = u128::from_le_bytes(*last) >> (8 * (SEGMENT_BYTES - rest.len()));
            store(unit([(shifted as u64).to_le(), ((shifted >> 64) as u64).to_le()]));
        }
        self.skip(units);
    }

    #[inline(always)]
    fn push_inline_parts<'a>(&mut self, parts: impl Iterator<Item = &'a [u8]>) {
        let room = (self.left * SEGMENT_BYTES).saturating_sub(INLINE_HEADER_BYTES);
        let mut total = 0;
        for part in parts {
            if part.len() > room - total {
                return;
            }
            // SAFETY: that many bytes are left behind the header and the earlier pieces.
            unsafe {
                let to = self.at.add(INLINE_HEADER_BYTES + total);
                to.copy_from_nonoverlapping(part.as_ptr(), part.len());
            }
            total += part.len();
        }
        if total == 0 {
            return;
        }
        // SAFETY: there was room for a piece, so there is room for the header before it.
        unsafe { self.at.cast::<u32>().write(InlineHeader::new(total as u32).raw()) };
        self.skip((INLINE_HEADER_BYTES + total).div_ceil(SEGMENT_BYTES));
    }
}

/// Units of a block behind the control segment.
const BODY_UNITS: usize = BLOCK_UNITS - 1;

/// An inline segment whose length is a multiple of 4 from 16 to 44, with zeros behind it; `None`
/// for other lengths.
///
/// A segment that is copied to memory by pieces cannot be loaded from there by units until the
/// pieces have left the processor. So each unit is put together in a register of the processor. The
/// code is straight if the compiler knows the length.
#[inline(always)]
fn inline_in_units(bytes: &[u8]) -> Option<[Unit; BODY_UNITS]> {
    match bytes.len() {
        16 => bytes.first_chunk().map(units_of::<16>),
        20 => bytes.first_chunk().map(units_of::<20>),
        24 => bytes.first_chunk().map(units_of::<24>),
        28 => bytes.first_chunk().map(units_of::<28>),
        32 => bytes.first_chunk().map(units_of::<32>),
        36 => bytes.first_chunk().map(units_of::<36>),
        40 => bytes.first_chunk().map(units_of::<40>),
        44 => bytes.first_chunk().map(units_of::<44>),
        _ => None,
    }
}

/// As [`inline_in_units`], for one of its lengths.
#[inline(always)]
fn units_of<const N: usize>(bytes: &[u8; N]) -> [Unit; BODY_UNITS] {
    const SECOND: usize = SEGMENT_BYTES - INLINE_HEADER_BYTES;
    const THIRD: usize = SECOND + SEGMENT_BYTES;
    let first = header_unit(InlineHeader::new(N as u32), whole_unit(bytes, 0));
    if N > THIRD {
        [first, whole_unit(bytes, SECOND), last_unit(bytes, THIRD)]
    } else {
        [first, last_unit(bytes, SECOND), unit([0; 2])]
    }
}

/// `M` bytes from `at` on.
#[inline(always)]
fn piece<const M: usize, const N: usize>(bytes: &[u8; N], at: usize) -> [u8; M] {
    bytes[at..].first_chunk().copied().unwrap_or([0; M])
}

#[inline(always)]
fn whole_unit<const N: usize>(bytes: &[u8; N], at: usize) -> Unit {
    // SAFETY: both types have 16 bytes, and all values of them are valid.
    unsafe { core::mem::transmute::<[u8; SEGMENT_BYTES], Unit>(piece(bytes, at)) }
}

/// A unit of the bytes from `at` on: 4, 8, 12 or 16, and zeros behind them.
#[inline(always)]
fn last_unit<const N: usize>(bytes: &[u8; N], at: usize) -> Unit {
    let four = |at| {
        let [a, b, c, d] = piece(bytes, at);
        u64::from_ne_bytes([a, b, c, d, 0, 0, 0, 0])
    };
    let eight = |at| u64::from_ne_bytes(piece(bytes, at));
    match N - at {
        4 => unit([four(at), 0]),
        8 => unit([eight(at), 0]),
        12 => unit([eight(at), four(at + 8)]),
        _ => whole_unit(bytes, at),
    }
}

/// The first unit of an inline segment, from its header and the first unit of the bytes.
#[inline(always)]
fn header_unit(header: InlineHeader, bytes: Unit) -> Unit {
    let [a, b, c, d] = header.raw().to_ne_bytes();
    let header = unit([u64::from_ne_bytes([a, b, c, d, 0, 0, 0, 0]), 0]);
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: every x86-64 processor has SSE2.
    let moved = unsafe { core::arch::x86_64::_mm_slli_si128::<{ INLINE_HEADER_BYTES as i32 }>(bytes) };
    #[cfg(any(not(target_arch = "x86_64"), miri))]
    let moved = (Unit::from_le(bytes) << (8 * INLINE_HEADER_BYTES)).to_le();
    or_units(moved, header)
}

/// Copies 1 to 48 bytes by pieces that may overlap.
///
/// # Safety
///
/// `from` is valid for reads and `to` for writes of `len` bytes, which do not overlap.
#[inline(always)]
unsafe fn copy_short(from: *const u8, to: *mut u8, len: usize) {
    /// # Safety
    ///
    /// As for `copy_short`; `len` is at least the size of `T`.
    #[inline(always)]
    unsafe fn ends<T>(from: *const u8, to: *mut u8, len: usize) {
        let last = len - size_of::<T>();
        // SAFETY: the first and the last piece of the bytes, by contract.
        unsafe {
            let (a, b) = (from.cast::<T>().read_unaligned(), from.add(last).cast::<T>().read_unaligned());
            to.cast::<T>().write_unaligned(a);
            to.add(last).cast::<T>().write_unaligned(b);
        }
    }
    // SAFETY: passed on to the caller; the middle piece is inside the bytes if there are more than
    // two pieces of 16.
    unsafe {
        match len {
            33.. => {
                let middle = from.add(16).cast::<Unit>().read_unaligned();
                to.add(16).cast::<Unit>().write_unaligned(middle);
                ends::<Unit>(from, to, len);
            }
            16..=32 => ends::<Unit>(from, to, len),
            8..=15 => ends::<u64>(from, to, len),
            4..=7 => ends::<u32>(from, to, len),
            2..=3 => ends::<u16>(from, to, len),
            _ => to.write(from.read()),
        }
    }
}

impl Units<'_> {
    /// # Safety
    ///
    /// `left` units from `at` on are valid for writes, and used by nobody else, while the value
    /// lives. `at` is 8-byte aligned.
    #[inline(always)]
    pub(crate) unsafe fn new(at: *mut u8, left: usize) -> Self {
        Self { at, left, _memory: PhantomData }
    }

    /// Units that can be written.
    #[inline(always)]
    pub(crate) fn left(&self) -> usize {
        self.left
    }

    #[inline(always)]
    fn skip(&mut self, units: usize) {
        // The addition wraps, since the address behind the last unit is computed as well.
        self.at = self.at.wrapping_add(units * SEGMENT_BYTES);
        self.left -= units;
    }
}
