//! Writing completions: the 64-byte CQE at literal offsets, ownership, events, overrun, resize.

use std::io;

use super::card::Card;
use crate::host::clock;
use crate::host::complaints::{Kind, complain};
use crate::host::mem::Area;
use crate::host::sys;
use crate::objects::{Armed, QpState, Stamps, event, syndrome};

/// CQE opcodes (high nibble of byte 63).
pub(crate) mod opcode {
    pub(crate) const REQ: u8 = 0;
    pub(crate) const RESP_WR_IMM: u8 = 1;
    pub(crate) const RESP_SEND: u8 = 2;
    pub(crate) const RESP_SEND_IMM: u8 = 3;
    pub(crate) const RESP_SEND_INV: u8 = 4;
    pub(crate) const RESIZE: u8 = 5;
    pub(crate) const REQ_ERR: u8 = 13;
    pub(crate) const RESP_ERR: u8 = 14;
}

/// The content of a CQE.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cqe<'a> {
    pub(crate) opcode: u8,
    pub(crate) srqn_uidx: u32,
    /// Source QP and flags.
    pub(crate) flags_rqpn: u32,
    /// Immediate data or invalidated key, in wire format.
    pub(crate) imm: [u8; 4],
    pub(crate) byte_cnt: u32,
    /// QP number; the top byte is the requester's opcode.
    pub(crate) sop_qpn: u32,
    pub(crate) wqe_counter: u16,
    /// Payload carried in the CQE itself.
    pub(crate) inline: Option<&'a [u8]>,
    /// Syndromes of an error completion; 0 for others.
    pub(crate) syndrome: u16,
    pub(crate) solicited: bool,
}

/// Fills in what a card writes into an error completion although no driver may rely on it: its own
/// code for the cause of a local error, and a signature.
#[cold]
fn fill_error(bytes: &mut [u8; 64], cqe: &Cqe<'_>, op_own: u8) {
    const CAUSES: [u16; 8] = [0x9300, 0x9d00, 0x0400, 0xa900, 0x9208, 0x6010, 0x0f00, 0x8600];
    if syndrome::is_local(cqe.syndrome) {
        let cause = CAUSES[usize::from(cqe.wqe_counter) % CAUSES.len()];
        bytes[52..54].copy_from_slice(&cause.to_be_bytes());
    }
    let sum = bytes.iter().fold(op_own & !1, |sum, byte| sum ^ byte);
    bytes[62] = if sum == 0xff { 0x5a } else { !sum };
}

/// The present time in the form that a CQ's completions carry.
#[cold]
fn stamp(stamps: Stamps) -> u64 {
    match stamps {
        Stamps::RealTime => {
            let time = clock::real_time();
            time.as_secs() << 32 | u64::from(time.subsec_nanos())
        }
        _ => clock::now_ns(),
    }
}

impl Card {
    /// Writes a completion; errors are always solicited.
    #[inline]
    pub(super) fn complete(&mut self, index: usize, cqe: &Cqe<'_>) {
        let Some(cq) = self.cqs.get_mut(index) else { return };
        if cq.overrun {
            return;
        }
        let count = 1u32 << cq.log_count;
        if cq.pi.wrapping_sub(cq.ci) >= count && !cq.ignore_overrun {
            let behind = cq.pi.wrapping_sub(cq.record.be32_acquire(0)) & 0xff_ffff;
            if behind > count {
                complain(
                    Kind::ConsumerIndexAhead,
                    format!(
                        "CQ {}: consumer index {:#x} with {} CQEs written",
                        cq.cqn,
                        cq.record.be32(0),
                        cq.pi
                    ),
                );
            }
            cq.ci = cq.pi.wrapping_sub(behind.min(count));
            if behind >= count {
                self.overrun(index);
                return;
            }
        }
        let mut bytes = [0u8; 64];
        let mut flags = 0;
        let size = cq.cqe_size as usize;
        let slot = (cq.pi & (count - 1)) as usize * size;
        let at = slot + size - 64;
        if let Some(data) = cqe.inline {
            if size == 128 {
                cq.buf.write(slot, data);
                flags = 8;
            } else {
                bytes[..data.len()].copy_from_slice(data);
                flags = 4;
            }
        }
        if cqe.inline.is_none_or(|data| size == 128 || data.len() <= 24) {
            bytes[24..28].copy_from_slice(&cqe.flags_rqpn.to_be_bytes());
        }
        bytes[32..36].copy_from_slice(&cqe.srqn_uidx.to_be_bytes());
        bytes[44..48].copy_from_slice(&cqe.byte_cnt.to_be_bytes());
        if cqe.syndrome == 0 {
            bytes[36..40].copy_from_slice(&cqe.imm);
            if cq.stamps != Stamps::No {
                bytes[48..56].copy_from_slice(&stamp(cq.stamps).to_be_bytes());
            }
        } else {
            bytes[54..56].copy_from_slice(&cqe.syndrome.to_be_bytes());
        }
        bytes[56..60].copy_from_slice(&cqe.sop_qpn.to_be_bytes());
        bytes[60..62].copy_from_slice(&cqe.wqe_counter.to_be_bytes());
        let solicited = cqe.solicited || cqe.syndrome != 0;
        let owner = ((cq.pi >> cq.log_count) & 1) as u8;
        let mut op_own = cqe.opcode << 4 | flags | if solicited { 2 } else { 0 } | owner;
        if cqe.syndrome != 0 {
            fill_error(&mut bytes, cqe, op_own);
        }
        if self.faults.active
            && let Some((wrong, byte)) = self.faults.forged(cqe.opcode)
        {
            bytes[wrong] = byte;
            if wrong == 63 {
                op_own = byte & !1 | owner;
            }
        }
        cq.buf.write(at, &bytes[..63]);
        if !self.faults.active || !self.faults.keep_owner_stale(index, cq.buf, at + 63, op_own) {
            cq.buf.publish_byte(at + 63, op_own);
        }
        cq.pi = cq.pi.wrapping_add(1);
        self.completions = self.completions.wrapping_add(1);
        if solicited {
            cq.solicited_pi = cq.pi;
        }
        match cq.armed {
            Armed::No => {}
            Armed::Solicited if !solicited => {}
            _ => self.fire(index),
        }
    }

    /// A completion has become visible after its event.
    pub(super) fn fire_if_armed(&mut self, index: usize) {
        if self.cqs.get(index).is_some_and(|cq| !matches!(cq.armed, Armed::No)) {
            self.fire(index);
        }
    }

    fn fire(&mut self, index: usize) {
        let cq = &mut self.cqs[index];
        cq.armed = Armed::No;
        cq.arm_sn = cq.arm_sn.wrapping_add(1);
        cq.notified_pi = cq.pi;
        self.completion_event(index);
    }

    /// Acts on a CQ's arm word. Generates an event at once if the CQ holds completions that no
    /// event has announced yet. Returns false when the device has already acted on this word.
    pub(super) fn arm(&mut self, index: usize) -> bool {
        const SOLICITED_ONLY: u32 = 1 << 24;
        let cq = &mut self.cqs[index];
        let word = cq.record.be32_acquire(4);
        if word == cq.arm_seen || word == u32::MAX {
            return false;
        }
        cq.arm_seen = word;
        if (word >> 28) & 3 != cq.arm_sn & 3 {
            // Carries the number of an event that was generated already.
            return true;
        }
        let ci = word & 0xff_ffff;
        let waiting = |pi: u32| pi.wrapping_sub(ci) & 0xff_ffff;
        let ahead = |pi: u32| {
            (1..1 << 23).contains(&waiting(pi)) && pi.wrapping_sub(cq.notified_pi).cast_signed() > 0
        };
        let fire;
        // A pending request for the next completion outlives one for solicited completions.
        (cq.armed, fire) = if word & SOLICITED_ONLY != 0 && cq.armed != Armed::Any {
            (Armed::Solicited, ahead(cq.solicited_pi))
        } else {
            (Armed::Any, ahead(cq.pi))
        };
        if waiting(cq.pi) >= 1 << 23 {
            complain(
                Kind::ConsumerIndexAhead,
                format!("CQ {}: armed with consumer index {ci:#x}, {:#x} CQEs written", cq.cqn, cq.pi),
            );
            return true;
        }
        if fire {
            self.fire(index);
        }
        true
    }

    /// Breaks all CQs of QPs, as if they were full. For the others, see [`Card::break_srqs`].
    pub(crate) fn break_cqs(&mut self) {
        let used = self.cqs.iter().filter(|(_, cq)| cq.users > 0);
        let all: Vec<usize> = used.map(|(index, _)| index).collect();
        for index in all {
            self.overrun(index);
        }
    }

    /// The CQ is full: an event, and its QPs go to the error state. A QP in RESET uses no CQ.
    fn overrun(&mut self, index: usize) {
        let cq = &mut self.cqs[index];
        cq.overrun = true;
        cq.async_events += 1;
        let (context, element) = (cq.context, cq.user_handle);
        self.async_event(context, element, event::CQ_ERR);
        let users: Vec<usize> = self
            .qps
            .iter()
            .filter(|(_, qp)| qp.state != QpState::Reset)
            .filter(|(_, qp)| qp.send_cq == Some(index) || qp.recv_cq == Some(index))
            .map(|(qp, _)| qp)
            .collect();
        for qp in users {
            self.qp_event(qp, event::QP_FATAL);
            self.qp_to_error(qp);
        }
    }

    /// Switches to a new buffer. libmlx5 copies the remaining CQEs of the old buffer, up to the
    /// resize CQE in it.
    pub(crate) fn resize_cq(&mut self, index: usize, buf: Area, count: u32, cqe_size: u32) -> io::Result<()> {
        let cq = &mut self.cqs[index];
        let behind = cq.pi.wrapping_sub(cq.record.be32_acquire(0)) & 0xff_ffff;
        if behind >= count {
            return Err(sys::errno(libc::EINVAL));
        }
        if behind >= 1 << cq.log_count {
            // No room for the mark.
            return Err(sys::errno(libc::EBUSY));
        }
        let size = cq.cqe_size as usize;
        let at = (cq.pi & ((1 << cq.log_count) - 1)) as usize * size + size - 64;
        let owner = ((cq.pi >> cq.log_count) & 1) as u8;
        cq.buf.write(at, &[0; 63]);
        cq.buf.publish_byte(at + 63, opcode::RESIZE << 4 | owner);
        cq.ci = cq.pi.wrapping_sub(behind);
        // The mark uses up an index.
        cq.pi = cq.pi.wrapping_add(1);
        cq.buf = buf;
        cq.log_count = count.trailing_zeros();
        cq.cqe_size = cqe_size;
        Ok(())
    }
}
