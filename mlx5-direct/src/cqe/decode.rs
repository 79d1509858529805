//! Decoding: from the fields of an entry that belongs to software to a [`Completion`].
//!
//! The caller has made the ownership test. The common entry, a finished receive whose payload is in
//! its buffer, is recognised by one table look-up and decoded inline; [`decode_other`] handles all
//! other entries.

use super::{
    Completion, CqeError, ErrorCqe, PlainKind, RawCqe, RecvCqe, RecvOp, RequestOp, ScatteredRecv,
    ScatteredSend, SendCqe, Syndrome,
};
use crate::wqe::WqeIndex;

/// Solicited-event bit of `op_own`.
const SOLICITED: u8 = 1 << 1;
/// Format bits of `op_own`: 0 plain, 1 payload in 32 bytes, 2 payload in 64 bytes, 3 compressed.
const FORMAT_SHIFT: u8 = 2;

const QPN_MASK: u32 = 0x00ff_ffff;

/// Whether an entry belongs to a receive.
#[inline(always)]
pub(crate) const fn is_responder(op_own: u8) -> bool {
    matches!(op_own >> 4, 1..=4 | 14)
}

/// Whether an entry belongs to a receive that succeeded, wherever its payload is.
#[inline(always)]
pub(crate) fn is_message(op_own: u8) -> bool {
    matches!(op_own >> 4, 1..=4) && payload(op_own).is_some()
}

/// Decodes an entry that belongs to software; the caller has read its `op_own` for the ownership
/// test.
///
/// # Errors
///
/// A [`CqeError`] for compressed entries, resize marks and unknown opcodes.
pub fn decode(cqe: &RawCqe) -> Result<Completion, CqeError> {
    let op_own = cqe.op_own();
    if is_plain_receive(op_own & !1) {
        Ok(Completion::Recv(decode_receive(cqe, op_own)))
    } else {
        decode_other(cqe, op_own)
    }
}

/// Indexed by `op_own` with the owner bit cleared: whether the entry is a finished receive, not
/// compressed, with its payload in the posted buffer. False for every index that has the owner bit
/// set.
static RECEIVE: [bool; 256] = {
    let mut table = [false; 256];
    let mut op_own = 0x10;
    while op_own < 0x50 {
        table[op_own] = (op_own >> FORMAT_SHIFT) & 3 == 0;
        op_own += 2;
    }
    table
};

/// Whether an entry is a finished receive that belongs to software, is not compressed and has its
/// payload in the posted buffer. The owner bit of `op_own` must be 0 if the entry belongs to
/// software, else 1.
#[inline(always)]
pub(crate) fn is_plain_receive(op_own: u8) -> bool {
    RECEIVE[op_own as usize]
}

/// Decodes the entry of a finished receive; see [`is_plain_receive`].
#[inline(always)]
pub(crate) fn decode_receive(cqe: &RawCqe, op_own: u8) -> RecvCqe {
    let op = match op_own >> 4 {
        1 => RecvOp::WriteImm,
        2 => RecvOp::Send,
        3 => RecvOp::SendImm,
        _ => RecvOp::SendInval,
    };
    RecvCqe {
        op,
        solicited: op_own & SOLICITED != 0,
        qpn: cqe.sop_drop_qpn() & QPN_MASK,
        srqn_or_user_index: cqe.srqn_uidx() & QPN_MASK,
        slot: WqeIndex(cqe.wqe_counter()),
        byte_count: cqe.byte_count(),
        imm_or_rkey: cqe.imm_inval_pkey(),
    }
}

/// Where the payload of an entry is: not in the entry, in its first 32 bytes, or in the first half
/// of a 128-byte entry.
enum Payload {
    Buffer,
    Cqe { wide: bool },
}

/// Where the payload is; `None` for a compressed entry.
#[inline(always)]
fn payload(op_own: u8) -> Option<Payload> {
    match (op_own >> FORMAT_SHIFT) & 3 {
        0 => Some(Payload::Buffer),
        1 => Some(Payload::Cqe { wide: false }),
        2 => Some(Payload::Cqe { wide: true }),
        _ => None,
    }
}

/// The bit that tells the opcode of a Send (2) from that of a request (0).
const RECEIVED: u8 = 0x20;

/// The kind of a plain entry that belongs to software; see [`PlainKind`]. The owner bit of `op_own`
/// must be 0 if the entry belongs to software, else 1.
#[inline(always)]
pub(crate) fn plain_kind(op_own: u8) -> Option<PlainKind> {
    // The solicited bit does not matter. All other bits are 0, those of the format, too.
    if op_own & !(SOLICITED | RECEIVED) != 0 {
        return None;
    }
    Some(if op_own & RECEIVED == 0 { PlainKind::Request } else { PlainKind::Received })
}

/// Whether an entry that belongs to software is a Send without immediate data with its payload in
/// the first 32 bytes of the entry. The owner bit of `op_own` must be 0 if the entry belongs to
/// software, else 1.
#[inline(always)]
pub(crate) fn is_short_send(op_own: u8) -> bool {
    op_own & !SOLICITED == 0x20 | 1 << FORMAT_SHIFT
}

/// Whether [`plain_kind`] is this kind.
#[inline(always)]
pub(crate) fn is_plain_of(op_own: u8, kind: PlainKind) -> bool {
    let opcode = match kind {
        PlainKind::Request => 0,
        PlainKind::Received => 0x20,
    };
    op_own & !SOLICITED == opcode
}

/// Decodes the entry of a send-queue operation that succeeded.
#[inline(always)]
pub(crate) fn decode_send(cqe: &RawCqe, wqe_counter: u16) -> SendCqe {
    let sop_qpn = cqe.sop_drop_qpn();
    SendCqe {
        op: RequestOp::from_opcode((sop_qpn >> 24) as u8),
        qpn: sop_qpn & QPN_MASK,
        srqn_or_user_index: cqe.srqn_uidx() & QPN_MASK,
        wqe_counter,
        byte_count: cqe.byte_count(),
    }
}

/// Whether no entry behind one with this byte can be polled: it is compressed, or the last before a
/// resize.
pub(crate) fn ends_queue(op_own: u8) -> bool {
    match op_own >> 4 {
        0..=4 => payload(op_own).is_none(),
        opcode => opcode == 5,
    }
}

/// Decodes requester entries, receives with their payload in the entry, and errors; refuses the
/// other entries.
#[inline]
pub(crate) fn decode_other(cqe: &RawCqe, op_own: u8) -> Result<Completion, CqeError> {
    let sop_qpn = cqe.sop_drop_qpn();
    let qpn = sop_qpn & QPN_MASK;
    let srqn_or_user_index = cqe.srqn_uidx() & QPN_MASK;
    let error = || {
        let (syndrome, vendor_syndrome) = cqe.error_syndromes();
        ErrorCqe {
            syndrome: Syndrome::from_bytes(syndrome, vendor_syndrome),
            vendor_syndrome,
            qpn,
            srqn_or_user_index,
            wqe_counter: cqe.wqe_counter(),
        }
    };
    match op_own >> 4 {
        0..=4 => {
            let payload = payload(op_own).ok_or(CqeError::Compressed)?;
            if is_responder(op_own) {
                let receive = decode_receive(cqe, op_own);
                // The caller fills in the index.
                return Ok(match payload {
                    Payload::Buffer => Completion::Recv(receive),
                    Payload::Cqe { wide } => {
                        Completion::RecvScattered(ScatteredRecv { receive, wide, index: 0 })
                    }
                });
            }
            let send = decode_send(cqe, cqe.wqe_counter());
            Ok(match payload {
                Payload::Buffer => Completion::Send(send),
                Payload::Cqe { wide } => Completion::SendScattered(ScatteredSend { send, wide, index: 0 }),
            })
        }
        5 => Err(CqeError::Resized),
        13 => Ok(Completion::SendError(error())),
        14 => Ok(Completion::RecvError(error())),
        opcode => Err(CqeError::Opcode { opcode }),
    }
}
