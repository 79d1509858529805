//! Firmware commands that libmlx5 sends by itself: capabilities, indirect keys, blocks of reserved
//! QP numbers, mappings of addresses to QPs, UDP source ports.
//!
//! The device refuses a context for DEVX, so no program sends firmware commands of its own. All
//! other commands return EPROTONOSUPPORT.

use std::io;
use std::os::fd::RawFd;

use super::attr::{Attr, DRIVER, need};
use super::file::Uverbs;
use crate::device::Device;
use crate::host::sys;
use crate::objects::{KeyKind, MAX_QP, Mkey, ObjectKind};

/// Log2 of the size of a block of reserved QP numbers.
const LOG_RESERVED_QPNS: u8 = 6;
/// Blocks of reserved QP numbers of one process, from the end of its numbers.
const RESERVED_BLOCKS: u32 = 16;

/// The first index in a block of reserved QP numbers.
fn reserved_block(block: u32) -> usize {
    MAX_QP - ((block as usize + 1) << LOG_RESERVED_QPNS)
}

/// Types of general objects.
mod general {
    pub(super) const RESERVED_QPN: u32 = 0x2c;
    pub(super) const AV_QP_MAPPING: u32 = 0x3a;
}

/// Most entries of an indirect key.
const MAX_ENTRIES: u32 = 1 << 16;

fn be32(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).map_or(0, |word| u32::from_be_bytes([word[0], word[1], word[2], word[3]]))
}

fn answer(output: &Attr, at: usize, word: u32) -> io::Result<()> {
    let mut bytes = vec![0; output.room().len];
    if let Some(place) = bytes.get_mut(at..at + 4) {
        place.copy_from_slice(&word.to_be_bytes());
    }
    output.answer(&bytes)
}

/// A command without an object: QUERY_HCA_CAP.
pub(super) fn general_command(attrs: &[Attr]) -> io::Result<()> {
    const QUERY_HCA_CAP: u32 = 0x100;
    const GENERAL: u32 = 0;
    const ODP: u32 = 2;
    const GENERAL_2: u32 = 0x20;
    let (input, output) = (need(attrs, DRIVER)?.input()?, need(attrs, DRIVER + 1)?);
    if be32(&input, 0) >> 16 != QUERY_HCA_CAP {
        return Err(sys::errno(libc::EPROTONOSUPPORT));
    }
    let mut bytes = vec![0u8; output.room().len];
    let mut set = |at: usize, bits: u8| {
        if let Some(byte) = bytes.get_mut(at) {
            *byte |= bits;
        }
    };
    // Positions count from the start of the answer, whose header has 16 bytes.
    match (be32(&input, 4) & 0xffff) >> 1 {
        GENERAL => {
            set(20, 0x80); // hca_cap_2
            set(29, crate::engine::LOG_MAX_MEMCPY); // log_dma_mmo_max_size
            set(58, 0x40 | 0x10); // rts2rts_qp_udp_sport, dma_mmo_sq
            for object in [general::RESERVED_QPN, general::AV_QP_MAPPING] {
                set(151 - object as usize / 8, 1 << (object % 8));
            }
        }
        GENERAL_2 => set(34, LOG_RESERVED_QPNS),
        // Send, receive, write, read, atomics, receive through an SRQ, over DC.
        ODP => set(48, 0xfc),
        _ => {}
    }
    output.answer(&bytes)
}

/// Changes a QP. The source port of UDP packets is accepted; there are none to carry it.
pub(super) fn modify_object(file: &Uverbs, fd: RawFd, attrs: &[Attr]) -> io::Result<()> {
    const RTS2RTS_QP: u32 = 0x505;
    let (handle, input, output) = (need(attrs, DRIVER)?, need(attrs, DRIVER + 1)?, need(attrs, DRIVER + 2)?);
    let (device, context) = file.locked(fd)?;
    device.object(context, handle.data as u32, ObjectKind::Qp)?;
    drop(device);
    if be32(&input.input()?, 0) >> 16 != RTS2RTS_QP {
        return Err(sys::errno(libc::EPROTONOSUPPORT));
    }
    answer(output, 0, 0)
}

/// Makes an object by a firmware command.
pub(super) fn create_object(file: &Uverbs, fd: RawFd, attrs: &[Attr]) -> io::Result<()> {
    const CREATE_MKEY: u32 = 0x200;
    let (handle, input, output) = (need(attrs, DRIVER)?, need(attrs, DRIVER + 1)?, need(attrs, DRIVER + 2)?);
    let input = input.input()?;
    const CREATE_GENERAL_OBJECT: u32 = 0xa00;
    let (mut device, context) = file.locked(fd)?;
    match (be32(&input, 0) >> 16, be32(&input, 4) & 0xffff) {
        (CREATE_MKEY, _) => {}
        (CREATE_GENERAL_OBJECT, general::RESERVED_QPN) => {
            let block = device.reserved_qpns.trailing_ones();
            let first = reserved_block(block.min(RESERVED_BLOCKS - 1));
            let mut indices = first..first + (1 << LOG_RESERVED_QPNS);
            if block >= RESERVED_BLOCKS || indices.any(|index| device.card.qps.get(index).is_some()) {
                return Err(sys::errno(libc::ENOMEM));
            }
            device.reserved_qpns |= 1 << block;
            let object = device.add_handle(context, ObjectKind::ReservedQpns, block as usize);
            let first = device.card.net.number_base() | first as u32;
            drop(device);
            answer(output, 8, first)?;
            return handle.answer_handle(object);
        }
        (CREATE_GENERAL_OBJECT, general::AV_QP_MAPPING) => {
            // A hint to the card, of no effect here.
            let object = device.add_handle(context, ObjectKind::AddressMapping, 0);
            drop(device);
            answer(output, 8, object)?;
            return handle.answer_handle(object);
        }
        _ => return Err(sys::errno(libc::EPROTONOSUPPORT)),
    }
    let index = device.create_indirect_key(&input)?;
    let object = device.add_handle(context, ObjectKind::Mkey, index);
    let number = device.card.keys[index].key >> 8;
    drop(device);
    answer(output, 8, number)?;
    handle.answer_handle(object)
}

pub(super) fn destroy_object(file: &Uverbs, fd: RawFd, attrs: &[Attr]) -> io::Result<()> {
    let handle = need(attrs, DRIVER)?.data as u32;
    let (mut device, context) = file.locked(fd)?;
    let (kind, index) = device.any_object(context, handle)?;
    match kind {
        ObjectKind::Mkey => device.remove_key(index),
        ObjectKind::ReservedQpns => device.reserved_qpns &= !(1 << index),
        ObjectKind::AddressMapping => {}
        _ => return Err(sys::errno(libc::EINVAL)),
    }
    device.drop_handle(context, handle);
    Ok(())
}

impl Device {
    /// Whether a QP of this index would have a reserved number.
    pub(super) fn is_reserved(&self, index: usize) -> bool {
        let block = (MAX_QP - 1 - index) >> LOG_RESERVED_QPNS;
        block < RESERVED_BLOCKS as usize && self.reserved_qpns >> block & 1 != 0
    }

    /// CREATE_MKEY: a key without memory, whose layout a work request sets.
    fn create_indirect_key(&mut self, input: &[u8]) -> io::Result<usize> {
        const CONTEXT: usize = 16;
        const ACCESS_MODE_KLMS: u32 = 2;
        const UMR_ENABLED: u32 = 1 << 15;
        const BSF_ENABLED: u32 = 1 << 30;
        const REMOTE_INVALIDATE: u32 = 1 << 24;
        let (flags, pd) = (be32(input, CONTEXT), be32(input, CONTEXT + 12));
        let entries = be32(input, CONTEXT + 52);
        // Neither signatures nor encryption.
        if pd & BSF_ENABLED != 0 || flags >> 8 & 3 != ACCESS_MODE_KLMS || flags & UMR_ENABLED == 0 {
            return Err(sys::errno(libc::EOPNOTSUPP));
        }
        if entries == 0 || entries > MAX_ENTRIES {
            return Err(sys::errno(libc::EINVAL));
        }
        let remote_invalidate = pd & REMOTE_INVALIDATE != 0;
        let pd = (pd & 0xff_ffff).checked_sub(1).map(|pd| pd as usize);
        let pd = pd.filter(|&pd| self.pds.get(pd).is_some()).ok_or_else(|| sys::errno(libc::EINVAL))?;
        let kind = KeyKind::Indirect { entries, free: true, remote_invalidate };
        let index = self.new_key(Mkey::new(pd, kind))?;
        // The command names the low byte of its key, which is zero in libmlx5's.
        self.card.keys[index].key = self.card.keys[index].key & !0xff | be32(input, CONTEXT + 4) & 0xff;
        self.pds[pd].users += 1;
        Ok(index)
    }
}
