//! Reading send WQEs: segments of 16 bytes in a ring of 64-byte basic blocks, at literal offsets.

use super::card::Card;
use crate::host::complaints::{Kind, complain};
use crate::host::mem::Area;
use crate::objects::syndrome::Protection;
use crate::objects::{Seg, access};

/// Opcodes of send WQEs.
pub(crate) mod opcode {
    pub(crate) const NOP: u8 = 0x00;
    pub(crate) const SEND_INVAL: u8 = 0x01;
    pub(crate) const RDMA_WRITE: u8 = 0x08;
    pub(crate) const RDMA_WRITE_IMM: u8 = 0x09;
    pub(crate) const SEND: u8 = 0x0a;
    pub(crate) const SEND_IMM: u8 = 0x0b;
    pub(crate) const RDMA_READ: u8 = 0x10;
    pub(crate) const ATOMIC_CS: u8 = 0x11;
    pub(crate) const ATOMIC_FA: u8 = 0x12;
    pub(crate) const ATOMIC_MASKED_CS: u8 = 0x14;
    pub(crate) const ATOMIC_MASKED_FA: u8 = 0x15;
    pub(crate) const UMR: u8 = 0x25;
    pub(crate) const MMO: u8 = 0x2f;
}

const INLINE: u32 = 0x8000_0000;

/// The control segment of a send WQE.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Control {
    pub(crate) opcode: u8,
    pub(crate) opmod: u8,
    pub(crate) index: u16,
    pub(crate) qpn: u32,
    /// Size in 16-byte units.
    pub(crate) units: u16,
    /// Bits above the size that have to be 0: a size of more than 63 ends up there.
    pub(crate) beyond_size: u8,
    /// Reserved bits beside the flags. The two bytes after the signature are not checked: UCX
    /// leaves the bytes of the previous WQE there, and ConnectX cards accept that.
    pub(crate) reserved: u8,
    /// When to write a completion: 0 on errors, 1 on the first error, 2 always, 3 always with an
    /// event.
    pub(crate) completion: u8,
    pub(crate) signalled: bool,
    pub(crate) solicited: bool,
    pub(crate) fence: bool,
    pub(crate) imm: [u8; 4],
}

impl Control {
    /// Basic blocks the WQE takes.
    pub(super) fn blocks(&self) -> u16 {
        self.units.div_ceil(4)
    }
}

/// A send WQE in its ring.
#[derive(Clone, Copy, Debug)]
pub(super) struct SendWqe {
    ring: Area,
    start: usize,
    pub(crate) control: Control,
}

impl SendWqe {
    /// Reads the control segment at `index`.
    #[inline(always)]
    pub(super) fn read(ring: Area, count: u16, index: u16) -> Self {
        let start = usize::from(index & (count - 1)) * 64;
        let first = ring.be32(start);
        let second = ring.be32(start + 4);
        let tail: [u8; 8] = ring.bytes(start + 8);
        let control = Control {
            opcode: first as u8,
            opmod: (first >> 24) as u8,
            index: (first >> 8) as u16,
            qpn: second >> 8,
            units: (second & 0x3f) as u16,
            beyond_size: second as u8 & 0xc0,
            reserved: tail[3] & 0x11,
            completion: tail[3] >> 2 & 3,
            signalled: tail[3] & 0x08 != 0,
            solicited: tail[3] & 2 != 0,
            fence: tail[3] >> 5 != 0,
            imm: [tail[4], tail[5], tail[6], tail[7]],
        };
        Self { ring, start, control }
    }

    /// True when a unit lies at the ring's start, because the WQE wraps around.
    pub(super) fn is_past_end(&self, unit: usize) -> bool {
        self.start + unit * 16 >= self.ring.len()
    }

    /// Offset of a 16-byte unit, wrapping at the ring's end.
    #[inline(always)]
    fn unit(&self, unit: usize) -> usize {
        let offset = self.start + unit * 16;
        if offset >= self.ring.len() { offset - self.ring.len() } else { offset }
    }

    #[inline(always)]
    pub(super) fn be32(&self, unit: usize, offset: usize) -> u32 {
        self.ring.be32(self.unit(unit) + offset)
    }

    #[inline(always)]
    pub(super) fn be64(&self, unit: usize, offset: usize) -> u64 {
        self.ring.be64(self.unit(unit) + offset)
    }

    #[inline(always)]
    pub(super) fn bytes16(&self, unit: usize) -> [u8; 16] {
        self.ring.bytes(self.unit(unit))
    }

    /// Address of a byte of the WQE and how many follow before the ring's end.
    fn place(&self, unit: usize, offset: usize) -> (u64, usize) {
        let at = self.unit(unit) + offset;
        (self.ring.address() + at as u64, self.ring.len() - at)
    }
}

/// Why a gather list cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GatherError {
    Malformed,
    Protection(Protection),
}

impl Card {
    /// Translates the data segments from `unit` on into `out`; returns the total length.
    #[inline]
    pub(super) fn gather_list(
        &self,
        wqe: &SendWqe,
        mut unit: usize,
        pd: usize,
        need: u32,
        out: &mut Vec<Seg>,
    ) -> Result<u32, GatherError> {
        out.clear();
        let units = usize::from(wqe.control.units);
        let mut total = 0u64;
        while unit < units {
            let count = wqe.be32(unit, 0);
            if count & INLINE != 0 {
                let len = (count & 0x3ff) as usize;
                let taken = (4 + len).div_ceil(16);
                if unit + taken > units {
                    complain(
                        Kind::BadSendWqe,
                        format!("QP {:#x}: inline data of {len} bytes leaves its WQE", wqe.control.qpn),
                    );
                    return Err(GatherError::Malformed);
                }
                let (addr, room) = wqe.place(unit, 4);
                let first = len.min(room);
                if first > 0 {
                    out.push(Seg { addr, len: first as u32 });
                }
                if len > first {
                    out.push(Seg { addr: wqe.ring.address(), len: (len - first) as u32 });
                }
                total += len as u64;
                unit += taken;
                continue;
            }
            let (key, addr) = (wqe.be32(unit, 4), wqe.be64(unit, 8));
            unit += 1;
            if count == 0 {
                complain(
                    Kind::BadSendWqe,
                    format!(
                        "QP {:#x}: a data segment of length 0, which the hardware reads as 2 GiB",
                        wqe.control.qpn
                    ),
                );
                return Err(GatherError::Malformed);
            }
            match self.local_address(key, pd, addr, count, need) {
                Some(addr) => out.push(Seg { addr, len: count }),
                None if self.indirect_list(key, pd, addr, count, need, out) => {}
                None => return Err(GatherError::Protection(self.refusal(key, pd))),
            }
            total += u64::from(count);
        }
        u32::try_from(total).map_err(|_| GatherError::Malformed)
    }

    /// As [`Card::gather_list`] for places that are written.
    pub(super) fn landing_list(
        &self,
        wqe: &SendWqe,
        unit: usize,
        pd: usize,
        out: &mut Vec<Seg>,
    ) -> Result<u32, GatherError> {
        self.gather_list(wqe, unit, pd, access::LOCAL_WRITE, out)
    }
}
