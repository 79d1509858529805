//! The shared-receive-queue WQE: one next segment, then data segments. For send WQEs see [`send`].
//!
//! Software writes WQEs; the device reads them. All fields are big-endian.
//!
//! ```text
//! byte 0      2                4           5          16          20     24       32
//!      | rsvd | next_wqe_index | signature | reserved | byte_count | lkey | addr   | next segment
//! ```
//!
//! # References
//!
//! rdma-core `providers/mlx5/mlx5dv.h`: `mlx5_wqe_srq_next_seg`, `mlx5_wqe_data_seg`,
//! `MLX5_INVALID_LKEY`.

use core::mem::{align_of, offset_of, size_of};

use doorbell_sys::ibv_sge;

use crate::be::{Be16, Be32, Be64};

pub mod send;

/// The index of a slot in the SRQ's ring. The receive CQE of an SRQ that verbs created has this
/// index in `wqe_counter`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(transparent)]
pub struct WqeIndex(pub u16);

/// Bytes of a segment: the next segment and each data segment have the same size.
pub const SEGMENT_BYTES: usize = 16;

/// The lkey that ends a list of data segments with fewer segments than fit into the WQE.
pub const TERMINATOR_LKEY: u32 = 0x100;

/// Smallest stride libmlx5 uses, in bytes: a next segment and one data segment.
pub const MIN_STRIDE_BYTES: u32 = 32;

/// Size limit of a ring: slot indices and the posted count are 16 bits wide, and the device allows
/// 32,767 posted WQEs.
pub const MAX_WQE_COUNT: u32 = 32_768;

/// The first segment of every slot: it names the slot that the device uses next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C, align(16))]
pub struct NextSeg {
    rsvd0: [u8; 2],
    /// Slot that follows this one in the list.
    pub next_wqe_index: Be16,
    signature: u8,
    rsvd1: [u8; 11],
}

/// One piece of a receive buffer, already in the device's byte order.
///
/// A segment that is built once and posted often saves the byte swaps: see [`DataSeg::new`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct DataSeg {
    byte_count: Be32,
    lkey: Be32,
    addr: Be64,
}

/// An lkey as it stands in a data segment, for a [`KeyedSeg`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentKey(u64);

impl SegmentKey {
    /// The key of the memory region that `lkey` names.
    pub const fn new(lkey: u32) -> Self {
        Self(DataSeg::new(0, 0, lkey).to_words()[0])
    }

    /// The key as a word, to keep it in an atomic.
    #[inline(always)]
    pub const fn to_word(self) -> u64 {
        self.0
    }

    /// The key of a word of [`to_word`](Self::to_word).
    #[inline(always)]
    pub const fn from_word(word: u64) -> Self {
        Self(word)
    }
}

/// A [`DataSeg`] for a caller that makes many of one memory region: two instructions less, because
/// the key is in the device's byte order already.
///
/// ```
/// use mlx5_direct::wqe::{DataSeg, KeyedSeg, SegmentKey};
///
/// let segment = KeyedSeg::new(4096, 64, SegmentKey::new(7));
/// assert_eq!(DataSeg::from(segment), DataSeg::new(4096, 64, 7));
/// assert_eq!(KeyedSeg::from(DataSeg::new(4096, 64, 7)), segment);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyedSeg {
    words: [u64; 2],
}

impl KeyedSeg {
    /// A segment of `byte_count` bytes, one or more, at virtual address `addr`, inside the memory
    /// region of the key. The device takes 0 bytes for 2 GiB.
    #[inline(always)]
    pub const fn new(addr: u64, byte_count: u32, key: SegmentKey) -> Self {
        let [first, addr] = DataSeg::new(addr, byte_count, 0).to_words();
        Self { words: [key.0 | first, addr] }
    }

    #[inline(always)]
    pub(crate) const fn to_words(self) -> [u64; 2] {
        self.words
    }
}

impl From<DataSeg> for KeyedSeg {
    #[inline(always)]
    fn from(segment: DataSeg) -> Self {
        Self { words: segment.to_words() }
    }
}

impl From<KeyedSeg> for DataSeg {
    #[inline(always)]
    fn from(segment: KeyedSeg) -> Self {
        Self::from_words(segment.words)
    }
}

const _: () = {
    assert!(size_of::<NextSeg>() == SEGMENT_BYTES && align_of::<NextSeg>() == 16);
    assert!(offset_of!(NextSeg, next_wqe_index) == 2);
    assert!(offset_of!(NextSeg, signature) == 4);
    assert!(size_of::<DataSeg>() == SEGMENT_BYTES && align_of::<DataSeg>() == 8);
    assert!(offset_of!(DataSeg, byte_count) == 0);
    assert!(offset_of!(DataSeg, lkey) == 4);
    assert!(offset_of!(DataSeg, addr) == 8);
    assert!(MIN_STRIDE_BYTES as usize == 2 * SEGMENT_BYTES);
};

/// Byte offset of `next_wqe_index` within a slot.
pub const NEXT_INDEX_OFFSET: usize = offset_of!(NextSeg, next_wqe_index);
/// Byte offset of the first data segment within a slot.
pub const FIRST_SEG_OFFSET: usize = size_of::<NextSeg>();
/// Byte offset of the first data segment's address within a slot.
pub const FIRST_ADDR_OFFSET: usize = FIRST_SEG_OFFSET + offset_of!(DataSeg, addr);

impl DataSeg {
    /// The segment that ends a list with fewer segments than fit into the WQE.
    pub const TERMINATOR: Self = Self::new(0, 0, TERMINATOR_LKEY);

    /// A segment of `byte_count` bytes at virtual address `addr`, inside the memory region that
    /// `lkey` names.
    #[inline(always)]
    pub const fn new(addr: u64, byte_count: u32, lkey: u32) -> Self {
        Self { byte_count: Be32::new(byte_count), lkey: Be32::new(lkey), addr: Be64::new(addr) }
    }

    /// The same piece, from a scatter/gather entry of verbs.
    #[inline(always)]
    pub(crate) fn from_sge(sge: &ibv_sge) -> Self {
        // Length and lkey are adjacent in both structs: one load, one byte swap of both, and a
        // rotation that puts the halves back into place.
        let both = (u64::from(sge.lkey) << 32 | u64::from(sge.length)).swap_bytes().rotate_left(32);
        let words = if cfg!(target_endian = "little") {
            [both, sge.addr.to_be()]
        } else {
            Self::new(sge.addr, sge.length, sge.lkey).to_words()
        };
        Self::from_words(words)
    }

    /// Virtual address of the first byte.
    pub const fn addr(&self) -> u64 {
        self.addr.get()
    }

    /// Length in bytes.
    pub const fn byte_count(&self) -> u32 {
        self.byte_count.get()
    }

    /// Local key of the memory region.
    pub const fn lkey(&self) -> u32 {
        self.lkey.get()
    }

    /// The segment as two words for two 8-byte stores. A copy of the struct may become two stores
    /// to the stack and one load of both, which waits until the stores have left the store buffer.
    #[inline(always)]
    pub(crate) const fn to_words(self) -> [u64; 2] {
        let (byte_count, lkey) = (self.byte_count.raw() as u64, self.lkey.raw() as u64);
        let first =
            if cfg!(target_endian = "little") { lkey << 32 | byte_count } else { byte_count << 32 | lkey };
        [first, self.addr.raw()]
    }

    /// The inverse of [`to_words`](Self::to_words).
    #[inline(always)]
    pub(crate) const fn from_words([first, addr]: [u64; 2]) -> Self {
        let (low, high) = (first as u32, (first >> 32) as u32);
        let (byte_count, lkey) = if cfg!(target_endian = "little") { (low, high) } else { (high, low) };
        Self {
            byte_count: Be32::from_raw(byte_count),
            lkey: Be32::from_raw(lkey),
            addr: Be64::from_raw(addr),
        }
    }

    /// The bytes in the order of queue memory.
    pub const fn to_bytes(self) -> [u8; SEGMENT_BYTES] {
        let (b, l, a) = (
            self.byte_count.raw().to_ne_bytes(),
            self.lkey.raw().to_ne_bytes(),
            self.addr.raw().to_ne_bytes(),
        );
        [b[0], b[1], b[2], b[3], l[0], l[1], l[2], l[3], a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7]]
    }
}

/// Data segments that fit into a slot of `stride_bytes`.
///
/// ```
/// assert_eq!([32, 64, 128].map(mlx5_direct::wqe::max_segments), [1, 3, 7]);
/// ```
pub const fn max_segments(stride_bytes: u32) -> u32 {
    stride_bytes / SEGMENT_BYTES as u32 - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_data_segment_is_big_endian_in_memory() {
        let seg = DataSeg::new(0x0102_0304_0506_0708, 0x0a0b_0c0d, 0x1122_3344);
        assert_eq!(seg.to_bytes(), [0x0a, 0x0b, 0x0c, 0x0d, 0x11, 0x22, 0x33, 0x44, 1, 2, 3, 4, 5, 6, 7, 8]);
    }

    #[test]
    fn a_scatter_entry_of_verbs_becomes_the_same_segment() {
        let sge = ibv_sge { addr: 0x0102_0304_0506_0708, length: 0x0a0b_0c0d, lkey: 0x1122_3344 };
        assert_eq!(DataSeg::from_sge(&sge), DataSeg::new(0x0102_0304_0506_0708, 0x0a0b_0c0d, 0x1122_3344));
    }

    #[test]
    fn words_keep_every_bit() {
        let seg = DataSeg::new(0x0102_0304_0506_0708, 0x0a0b_0c0d, 0x1122_3344);
        assert_eq!(DataSeg::from_words(seg.to_words()), seg);
        assert_eq!(seg.to_words().map(u64::to_ne_bytes).concat(), seg.to_bytes());
    }

    #[test]
    fn the_terminator_has_no_length_and_the_invalid_lkey() {
        assert_eq!(DataSeg::TERMINATOR.to_bytes(), [0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    }
}
