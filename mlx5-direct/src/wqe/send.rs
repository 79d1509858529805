//! Segments of send WQEs.
//!
//! Software writes send WQEs; the device reads them. All fields are big-endian. A send WQE is a
//! sequence of 16-byte units in a ring of 64-byte blocks. It starts at a block and may wrap around
//! the end of the ring at any unit.
//!
//! ```text
//! operation                      units
//! SEND, immediate, invalidate    control, [address vector (3) | XRC (1)], data ...
//! RDMA WRITE, immediate, READ    control, [XRC], remote address, data ...
//! compare-swap, fetch-add        control, [XRC], remote address, atomic, data
//! masked atomics                 control, remote address, masked atomic (1 or 2), data
//! bind, invalidate               control, UMR control (3), memory key (4), [translation (4)]
//! NOP                            control
//! ```
//!
//! Data is a list of data segments, or one inline segment: a 4-byte header and the bytes, padded to
//! 16.
//!
//! # References
//!
//! rdma-core `providers/mlx5/mlx5dv.h`: `mlx5_wqe_ctrl_seg`, `mlx5_wqe_raddr_seg`,
//! `mlx5_wqe_atomic_seg`, `mlx5_wqe_av`, `mlx5_wqe_umr_ctrl_seg`, `mlx5_wqe_mkey_context_seg`,
//! `mlx5_wqe_umr_klm_seg`, `MLX5_OPCODE_*`.

use core::mem::{offset_of, size_of};

use super::SEGMENT_BYTES;
use crate::be::{Be16, Be32, Be64};

/// Bytes of a block. A send queue counts in blocks.
pub const BLOCK_BYTES: usize = 64;
/// 16-byte units of a block.
pub const BLOCK_UNITS: usize = BLOCK_BYTES / SEGMENT_BYTES;
/// Maximum number of units of a WQE: the size field has six bits.
pub const MAX_UNITS: usize = 63;
/// Size limit of a ring, in blocks: block numbers and the posted count are 16 bits wide.
pub const MAX_BLOCKS: u32 = 32_768;
/// Bit in the header of an inline segment that distinguishes it from a data segment; the other bits
/// are the length.
pub const INLINE: u32 = 0x8000_0000;
/// Bytes of an inline segment's header.
pub const INLINE_HEADER_BYTES: usize = size_of::<InlineHeader>();

/// Opcodes of send WQEs (`MLX5_OPCODE_*`).
pub mod opcode {
    #![allow(missing_docs)]
    pub const NOP: u8 = 0x00;
    pub const SEND_INVAL: u8 = 0x01;
    pub const RDMA_WRITE: u8 = 0x08;
    pub const RDMA_WRITE_IMM: u8 = 0x09;
    pub const SEND: u8 = 0x0a;
    pub const SEND_IMM: u8 = 0x0b;
    pub const RDMA_READ: u8 = 0x10;
    pub const ATOMIC_CS: u8 = 0x11;
    pub const ATOMIC_FA: u8 = 0x12;
    pub const ATOMIC_MASKED_CS: u8 = 0x14;
    pub const ATOMIC_MASKED_FA: u8 = 0x15;
    pub const UMR: u8 = 0x25;
}

/// Bits of the control segment's `fm_ce_se` byte.
pub mod flag {
    /// Raise a solicited event at the receiver.
    pub const SOLICITED: u8 = 0x02;
    /// Write a completion on success as well (`MLX5_WQE_CTRL_CQ_UPDATE`).
    pub const CQ_UPDATE: u8 = 0x08;
    /// Wait for earlier memory key changes (`MLX5_WQE_CTRL_INITIATOR_SMALL_FENCE`).
    pub const SMALL_FENCE: u8 = 0x20;
    /// Wait for earlier reads, atomics and memory key changes (kernel:
    /// `MLX5_FENCE_MODE_SMALL_AND_FENCE`).
    pub const FENCE: u8 = 0x80;
}

/// The first unit of every send WQE.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C, align(4))]
pub struct CtrlSeg {
    opmod_idx_opcode: Be32,
    qpn_ds: Be32,
    signature: u8,
    stream: [u8; 2],
    fm_ce_se: u8,
    imm: Be32,
}

/// The contents of a control segment, without QP number and position.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ctrl {
    /// Opcode, from [`opcode`].
    pub opcode: u8,
    /// Opcode modifier: the operand size of masked atomics.
    pub opmod: u8,
    /// Size of the WQE in 16-byte units.
    pub units: u8,
    /// Bits of [`flag`].
    pub flags: u8,
    /// Immediate data or memory key, in host order.
    pub imm: u32,
}

impl Ctrl {
    /// The segment as two words in memory order. `qpn_word` is the QP number shifted left by 8.
    #[inline(always)]
    pub(crate) const fn words(self, qpn_word: u64, block: u16) -> [u64; 2] {
        let constant = (self.opmod as u64) << 56 | (self.opcode as u64) << 32 | self.units as u64;
        let first = ((block as u64) << 40 | qpn_word) + constant;
        [first.to_be(), ((self.flags as u64) << 32 | self.imm as u64).to_be()]
    }
}

/// Flags at their place in the second word of a control segment, in memory order.
#[inline(always)]
pub(crate) const fn flags_word(flags: u8) -> u64 {
    ((flags as u64) << 32).to_be()
}

/// The peer's memory of a write, read or atomic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct RaddrSeg {
    raddr: Be64,
    rkey: Be32,
    reserved: Be32,
}

impl RaddrSeg {
    /// Address and rkey.
    pub const fn new(raddr: u64, rkey: u32) -> Self {
        Self { raddr: Be64::new(raddr), rkey: Be32::new(rkey), reserved: Be32::new(0) }
    }

    #[inline(always)]
    pub(crate) const fn words(self) -> [u64; 2] {
        [self.raddr.raw(), two(self.rkey, self.reserved)]
    }
}

/// The operands of an atomic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct AtomicSeg {
    swap_add: Be64,
    compare: Be64,
}

impl AtomicSeg {
    /// Swap or add, and compare (0 for fetch-and-add).
    pub const fn new(swap_add: u64, compare: u64) -> Self {
        Self { swap_add: Be64::new(swap_add), compare: Be64::new(compare) }
    }

    #[inline(always)]
    pub(crate) const fn words(self) -> [u64; 2] {
        [self.swap_add.raw(), self.compare.raw()]
    }
}

/// The operands of a 4-byte masked atomic: swap, compare, swap mask, compare mask; or add, field
/// boundary, 0, 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct MaskedAtomicSeg32(pub [Be32; 4]);

impl MaskedAtomicSeg32 {
    #[inline(always)]
    pub(crate) const fn words(self) -> [u64; 2] {
        let [a, b, c, d] = self.0;
        [two(a, b), two(c, d)]
    }
}

/// The destination of a datagram: address and QP of the peer. This struct declares the layout. The
/// value is an [`AddressVector`](crate::wr::AddressVector), which holds the bytes that
/// `ibv_create_ah` made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C, align(8))]
pub struct AvSeg {
    qkey: Be32,
    reserved: Be32,
    dqp_dct: Be32,
    stat_rate_sl: u8,
    fl_mlid: u8,
    rlid: Be16,
    reserved0: [u8; 4],
    rmac: [u8; 6],
    tclass: u8,
    hop_limit: u8,
    grh_gid_fl: Be32,
    rgid: [u8; 16],
}

/// Bit of the QP number in an address vector: the vector has the long form (`MLX5_EXTENDED_UD_AV`).
pub const EXTENDED_AV: u32 = 0x8000_0000;

/// The peer's SRQ for an XRC request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct XrcSeg {
    srqn: Be32,
    reserved: [Be32; 3],
}

impl XrcSeg {
    /// The SRQ number.
    pub const fn new(srqn: u32) -> Self {
        Self { srqn: Be32::new(srqn), reserved: [Be32::new(0); 3] }
    }

    #[inline(always)]
    pub(crate) const fn words(self) -> [u64; 2] {
        [two(self.srqn, self.reserved[0]), two(self.reserved[1], self.reserved[2])]
    }
}

/// The header of inline data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct InlineHeader {
    byte_count: Be32,
}

impl InlineHeader {
    /// A header for this number of bytes.
    #[inline(always)]
    pub const fn new(bytes: u32) -> Self {
        Self { byte_count: Be32::new(bytes | INLINE) }
    }

    #[inline(always)]
    pub(crate) const fn raw(self) -> u32 {
        self.byte_count.raw()
    }
}

/// First part of a memory key change: which fields of the key change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct UmrCtrlSeg {
    flags: u8,
    reserved: [u8; 3],
    klm_octowords: Be16,
    offset: Be16,
    mkey_mask: Be64,
    reserved1: [u64; 4],
}

impl UmrCtrlSeg {
    /// Flags, length of the translation in 16-byte units, and the mask of fields.
    pub const fn new(flags: u8, klm_octowords: u16, mkey_mask: u64) -> Self {
        Self {
            flags,
            reserved: [0; 3],
            klm_octowords: Be16::new(klm_octowords),
            offset: Be16::new(0),
            mkey_mask: Be64::new(mkey_mask),
            reserved1: [0; 4],
        }
    }

    pub(crate) const fn words(self) -> [u64; 6] {
        let flags = Be32::new((self.flags as u32) << 24);
        let octowords = Be32::new((self.klm_octowords.get() as u32) << 16);
        [two(flags, octowords), self.mkey_mask.raw(), 0, 0, 0, 0]
    }
}

/// Second part of a memory key change: the new values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct MkeySeg {
    free: u8,
    reserved1: u8,
    access_flags: u8,
    sf: u8,
    qpn_mkey: Be32,
    reserved2: [Be32; 2],
    start_addr: Be64,
    len: Be64,
    reserved3: [u64; 4],
}

impl MkeySeg {
    /// Whether the key becomes free; rights; QP and key variant; first address; bytes.
    pub const fn new(free: u8, access_flags: u8, qpn_mkey: u32, start_addr: u64, len: u64) -> Self {
        Self {
            free,
            reserved1: 0,
            access_flags,
            sf: 0,
            qpn_mkey: Be32::new(qpn_mkey),
            reserved2: [Be32::new(0); 2],
            start_addr: Be64::new(start_addr),
            len: Be64::new(len),
            reserved3: [0; 4],
        }
    }

    pub(crate) const fn words(self) -> [u64; 8] {
        let first = Be32::new((self.free as u32) << 24 | (self.access_flags as u32) << 8);
        [two(first, self.qpn_mkey), 0, self.start_addr.raw(), self.len.raw(), 0, 0, 0, 0]
    }
}

/// Third part of a memory key change: the memory behind the key. Padded to a block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct KlmSeg {
    byte_count: Be32,
    mkey: Be32,
    address: Be64,
}

impl KlmSeg {
    /// `byte_count` bytes from `address` on, in the region of `mkey`.
    pub const fn new(byte_count: u32, mkey: u32, address: u64) -> Self {
        Self { byte_count: Be32::new(byte_count), mkey: Be32::new(mkey), address: Be64::new(address) }
    }

    pub(crate) const fn words(self) -> [u64; 2] {
        [two(self.byte_count, self.mkey), self.address.raw()]
    }
}

/// Two neighbouring fields as one word in memory order.
#[inline(always)]
pub(crate) const fn two(first: Be32, second: Be32) -> u64 {
    let (first, second) = (first.raw() as u64, second.raw() as u64);
    if cfg!(target_endian = "little") { second << 32 | first } else { first << 32 | second }
}

const _: () = {
    assert!(size_of::<CtrlSeg>() == 16);
    assert!(offset_of!(CtrlSeg, opmod_idx_opcode) == 0);
    assert!(offset_of!(CtrlSeg, qpn_ds) == 4);
    assert!(offset_of!(CtrlSeg, signature) == 8);
    assert!(offset_of!(CtrlSeg, stream) == 9);
    assert!(offset_of!(CtrlSeg, fm_ce_se) == 11);
    assert!(offset_of!(CtrlSeg, imm) == 12);
    assert!(size_of::<RaddrSeg>() == 16);
    assert!(offset_of!(RaddrSeg, raddr) == 0);
    assert!(offset_of!(RaddrSeg, rkey) == 8);
    assert!(size_of::<AtomicSeg>() == 16);
    assert!(offset_of!(AtomicSeg, swap_add) == 0);
    assert!(offset_of!(AtomicSeg, compare) == 8);
    assert!(size_of::<MaskedAtomicSeg32>() == 16);
    assert!(size_of::<AvSeg>() == 48);
    assert!(offset_of!(AvSeg, qkey) == 0);
    assert!(offset_of!(AvSeg, dqp_dct) == 8);
    assert!(offset_of!(AvSeg, stat_rate_sl) == 12);
    assert!(offset_of!(AvSeg, fl_mlid) == 13);
    assert!(offset_of!(AvSeg, rlid) == 14);
    assert!(offset_of!(AvSeg, rmac) == 20);
    assert!(offset_of!(AvSeg, tclass) == 26);
    assert!(offset_of!(AvSeg, hop_limit) == 27);
    assert!(offset_of!(AvSeg, grh_gid_fl) == 28);
    assert!(offset_of!(AvSeg, rgid) == 32);
    assert!(size_of::<XrcSeg>() == 16 && offset_of!(XrcSeg, srqn) == 0);
    assert!(INLINE_HEADER_BYTES == 4);
    assert!(size_of::<UmrCtrlSeg>() == 48);
    assert!(offset_of!(UmrCtrlSeg, flags) == 0);
    assert!(offset_of!(UmrCtrlSeg, klm_octowords) == 4);
    assert!(offset_of!(UmrCtrlSeg, mkey_mask) == 8);
    assert!(size_of::<MkeySeg>() == 64);
    assert!(offset_of!(MkeySeg, free) == 0);
    assert!(offset_of!(MkeySeg, access_flags) == 2);
    assert!(offset_of!(MkeySeg, qpn_mkey) == 4);
    assert!(offset_of!(MkeySeg, start_addr) == 16);
    assert!(offset_of!(MkeySeg, len) == 24);
    assert!(size_of::<KlmSeg>() == 16);
    assert!(offset_of!(KlmSeg, byte_count) == 0);
    assert!(offset_of!(KlmSeg, mkey) == 4);
    assert!(offset_of!(KlmSeg, address) == 8);
};

/// Byte offsets of fields, to compare with the installed header: name of the C struct, name of its
/// field, offset here.
#[doc(hidden)]
pub const OFFSETS: &[(&str, &str, usize)] = &[
    ("mlx5_wqe_ctrl_seg", "opmod_idx_opcode", offset_of!(CtrlSeg, opmod_idx_opcode)),
    ("mlx5_wqe_ctrl_seg", "qpn_ds", offset_of!(CtrlSeg, qpn_ds)),
    ("mlx5_wqe_ctrl_seg", "signature", offset_of!(CtrlSeg, signature)),
    ("mlx5_wqe_ctrl_seg", "fm_ce_se", offset_of!(CtrlSeg, fm_ce_se)),
    ("mlx5_wqe_ctrl_seg", "imm", offset_of!(CtrlSeg, imm)),
    ("mlx5_wqe_raddr_seg", "raddr", offset_of!(RaddrSeg, raddr)),
    ("mlx5_wqe_raddr_seg", "rkey", offset_of!(RaddrSeg, rkey)),
    ("mlx5_wqe_atomic_seg", "swap_add", offset_of!(AtomicSeg, swap_add)),
    ("mlx5_wqe_atomic_seg", "compare", offset_of!(AtomicSeg, compare)),
    ("mlx5_wqe_av", "key.qkey.qkey", offset_of!(AvSeg, qkey)),
    ("mlx5_wqe_av", "dqp_dct", offset_of!(AvSeg, dqp_dct)),
    ("mlx5_wqe_av", "rmac", offset_of!(AvSeg, rmac)),
    ("mlx5_wqe_av", "grh_gid_fl", offset_of!(AvSeg, grh_gid_fl)),
    ("mlx5_wqe_av", "rgid", offset_of!(AvSeg, rgid)),
    ("mlx5_wqe_umr_ctrl_seg", "klm_octowords", offset_of!(UmrCtrlSeg, klm_octowords)),
    ("mlx5_wqe_umr_ctrl_seg", "mkey_mask", offset_of!(UmrCtrlSeg, mkey_mask)),
    ("mlx5_wqe_mkey_context_seg", "access_flags", offset_of!(MkeySeg, access_flags)),
    ("mlx5_wqe_mkey_context_seg", "qpn_mkey", offset_of!(MkeySeg, qpn_mkey)),
    ("mlx5_wqe_mkey_context_seg", "start_addr", offset_of!(MkeySeg, start_addr)),
    ("mlx5_wqe_mkey_context_seg", "len", offset_of!(MkeySeg, len)),
    ("mlx5_wqe_umr_klm_seg", "mkey", offset_of!(KlmSeg, mkey)),
    ("mlx5_wqe_umr_klm_seg", "address", offset_of!(KlmSeg, address)),
];

/// Sizes of structs, to compare with the installed header.
#[doc(hidden)]
pub const SIZES: &[(&str, usize)] = &[
    ("mlx5_wqe_ctrl_seg", size_of::<CtrlSeg>()),
    ("mlx5_wqe_raddr_seg", size_of::<RaddrSeg>()),
    ("mlx5_wqe_atomic_seg", size_of::<AtomicSeg>()),
    ("mlx5_wqe_av", size_of::<AvSeg>()),
    ("mlx5_wqe_inl_data_seg", INLINE_HEADER_BYTES),
    ("mlx5_wqe_umr_ctrl_seg", size_of::<UmrCtrlSeg>()),
    ("mlx5_wqe_mkey_context_seg", size_of::<MkeySeg>()),
    ("mlx5_wqe_umr_klm_seg", size_of::<KlmSeg>()),
];

/// Values of constants, to compare with the installed header.
#[doc(hidden)]
pub const VALUES: &[(&str, u64)] = &[
    ("MLX5_OPCODE_NOP", opcode::NOP as u64),
    ("MLX5_OPCODE_SEND_INVAL", opcode::SEND_INVAL as u64),
    ("MLX5_OPCODE_RDMA_WRITE", opcode::RDMA_WRITE as u64),
    ("MLX5_OPCODE_RDMA_WRITE_IMM", opcode::RDMA_WRITE_IMM as u64),
    ("MLX5_OPCODE_SEND", opcode::SEND as u64),
    ("MLX5_OPCODE_SEND_IMM", opcode::SEND_IMM as u64),
    ("MLX5_OPCODE_RDMA_READ", opcode::RDMA_READ as u64),
    ("MLX5_OPCODE_ATOMIC_CS", opcode::ATOMIC_CS as u64),
    ("MLX5_OPCODE_ATOMIC_FA", opcode::ATOMIC_FA as u64),
    ("MLX5_OPCODE_ATOMIC_MASKED_CS", opcode::ATOMIC_MASKED_CS as u64),
    ("MLX5_OPCODE_ATOMIC_MASKED_FA", opcode::ATOMIC_MASKED_FA as u64),
    ("MLX5_OPCODE_UMR", opcode::UMR as u64),
    ("MLX5_WQE_CTRL_SOLICITED", flag::SOLICITED as u64),
    ("MLX5_WQE_CTRL_CQ_UPDATE", flag::CQ_UPDATE as u64),
    ("MLX5_WQE_CTRL_INITIATOR_SMALL_FENCE", flag::SMALL_FENCE as u64),
    ("MLX5_INLINE_SEG", INLINE as u64),
    ("MLX5_EXTENDED_UD_AV", EXTENDED_AV as u64),
    ("MLX5_SEND_WQE_BB", BLOCK_BYTES as u64),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes<const N: usize>(words: [u64; N]) -> Vec<u8> {
        words.iter().flat_map(|w| w.to_ne_bytes()).collect()
    }

    #[test]
    fn a_control_segment_has_each_field_at_its_place() {
        let ctrl = Ctrl { opcode: 0x0b, opmod: 9, units: 3, flags: 0x8a, imm: 0x0102_0304 };
        assert_eq!(
            bytes(ctrl.words(0x12_3456 << 8, 0xfedc)),
            [9, 0xfe, 0xdc, 0x0b, 0x12, 0x34, 0x56, 3, 0, 0, 0, 0x8a, 1, 2, 3, 4]
        );
    }

    #[test]
    fn segments_are_big_endian_in_memory() {
        assert_eq!(
            bytes(RaddrSeg::new(0x0102_0304_0506_0708, 0x1122_3344).words()),
            [1, 2, 3, 4, 5, 6, 7, 8, 0x11, 0x22, 0x33, 0x44, 0, 0, 0, 0]
        );
        assert_eq!(
            bytes(KlmSeg::new(0x0a, 0x0b, 0x0c).words()),
            [0, 0, 0, 10, 0, 0, 0, 11, 0, 0, 0, 0, 0, 0, 0, 12]
        );
        assert_eq!(bytes(XrcSeg::new(0x99).words())[..4], [0, 0, 0, 0x99]);
        let umr = bytes(UmrCtrlSeg::new(0xb0, 4, 1 << 13).words());
        assert_eq!(umr[..16], [0xb0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0x20, 0]);
        let mkey = bytes(MkeySeg::new(0x40, 0x38, 0x77, 1, 2).words());
        assert_eq!(mkey[..8], [0x40, 0, 0x38, 0, 0, 0, 0, 0x77]);
        assert_eq!((mkey[23], mkey[31]), (1, 2));
    }
}
