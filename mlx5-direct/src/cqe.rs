//! The completion queue entry: its layout, and the typed values that decoding (`cqe/decode.rs`)
//! returns.
//!
//! The device writes entries; this crate reads them. Nothing in an entry is trusted: every bit
//! pattern decodes to a value or to an error, and [`Srq::complete`](crate::Srq::complete) checks
//! the slot index of an entry against the ring.
//!
//! # References
//!
//! rdma-core `providers/mlx5/mlx5dv.h`: `mlx5_cqe64`, `mlx5_err_cqe`; `providers/mlx5/mlx5.h` for
//! the syndromes.

mod decode;

pub use decode::decode;
pub(crate) use decode::{
    decode_other, decode_receive, decode_send, ends_queue, is_message, is_plain_of, is_plain_receive,
    is_responder, is_short_send, plain_kind,
};

use core::mem::{offset_of, size_of};

use crate::{
    be::{Be16, Be32, Be64},
    wqe::WqeIndex,
};

/// The 64 bytes that carry the fields: a whole entry, or the second half of a 128-byte entry.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub struct RawCqe {
    head: [u8; 17],
    /// In a receive: path bits of the destination LID, low 7 bits.
    pub ml_path: u8,
    reserved: [u8; 4],
    /// In a receive: the sender's LID.
    pub slid: Be16,
    /// In a receive: the sender's QP number in the low 24 bits; for datagrams, the bits above say
    /// whether the message has a GRH.
    pub flags_rqpn: Be32,
    tail: [u8; 2],
    /// In a receive of a raw packet: its VLAN tag.
    pub vlan_info: Be16,
    /// SRQ number (CQE version 0) or user index (version 1), low 24 bits.
    pub srqn_uidx: Be32,
    /// Immediate data, invalidated rkey or pkey.
    pub imm_inval_pkey: Be32,
    app: [u8; 4],
    /// Bytes received.
    pub byte_cnt: Be32,
    /// Device clock; bytes 6 and 7 are the syndromes in an error entry.
    pub timestamp: Be64,
    /// QP number in the low 24 bits; the send opcode in the top byte of a requester entry.
    pub sop_drop_qpn: Be32,
    /// SRQ slot, or index of the send WQE's first 64-byte block.
    pub wqe_counter: Be16,
    signature: u8,
    /// Opcode (high nibble), format (bits 2 and 3), solicited (bit 1), owner (bit 0).
    pub op_own: u8,
}

/// Byte offset of the vendor syndrome in an error entry; the syndrome is the byte after it.
pub const VENDOR_SYNDROME_OFFSET: usize = 54;

const _: () = {
    assert!(size_of::<RawCqe>() == 64);
    assert!(offset_of!(RawCqe, ml_path) == 17);
    assert!(offset_of!(RawCqe, slid) == 22);
    assert!(offset_of!(RawCqe, flags_rqpn) == 24);
    assert!(offset_of!(RawCqe, vlan_info) == 30);
    assert!(offset_of!(RawCqe, srqn_uidx) == 32);
    assert!(offset_of!(RawCqe, imm_inval_pkey) == 36);
    assert!(offset_of!(RawCqe, byte_cnt) == 44);
    assert!(offset_of!(RawCqe, timestamp) == 48);
    assert!(offset_of!(RawCqe, sop_drop_qpn) == 56);
    assert!(offset_of!(RawCqe, wqe_counter) == 60);
    assert!(offset_of!(RawCqe, signature) == 62);
    assert!(offset_of!(RawCqe, op_own) == 63);
    assert!(VENDOR_SYNDROME_OFFSET == offset_of!(RawCqe, timestamp) + 6);
};

/// The fields in host order.
impl RawCqe {
    /// Opcode, format, solicited and owner bits.
    #[inline(always)]
    pub fn op_own(&self) -> u8 {
        self.op_own
    }
    /// SRQ slot or send WQE index.
    #[inline(always)]
    pub fn wqe_counter(&self) -> u16 {
        self.wqe_counter.get()
    }
    /// QP number and send opcode.
    #[inline(always)]
    pub fn sop_drop_qpn(&self) -> u32 {
        self.sop_drop_qpn.get()
    }
    /// Bytes received.
    #[inline(always)]
    pub fn byte_count(&self) -> u32 {
        self.byte_cnt.get()
    }
    /// Immediate data or invalidated rkey.
    #[inline(always)]
    pub fn imm_inval_pkey(&self) -> u32 {
        self.imm_inval_pkey.get()
    }
    /// The sender's QP number and flags.
    #[inline(always)]
    pub fn flags_rqpn(&self) -> u32 {
        self.flags_rqpn.get()
    }
    /// SRQ number or user index.
    #[inline(always)]
    pub fn srqn_uidx(&self) -> u32 {
        self.srqn_uidx.get()
    }
    /// Device clock.
    #[inline(always)]
    pub fn timestamp(&self) -> u64 {
        self.timestamp.get()
    }
    /// Path bits of the destination LID.
    #[inline(always)]
    pub fn ml_path(&self) -> u8 {
        self.ml_path
    }
    /// The sender's LID.
    #[inline(always)]
    pub fn slid(&self) -> u16 {
        self.slid.get()
    }
    /// Syndrome and vendor syndrome of an error entry.
    #[inline(always)]
    pub fn error_syndromes(&self) -> (u8, u8) {
        let ts = self.timestamp.get().to_be_bytes();
        (ts[7], ts[6])
    }
}

/// What an entry says about the message of a receive, beyond [`RecvCqe`]. Connected QPs rarely need
/// these fields; `ibv_poll_cq` reports all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// The sender's QP number, 24 bits.
    pub source_qpn: u32,
    /// The message has a GRH.
    pub grh: bool,
    /// Service level, 4 bits.
    pub service_level: u8,
    /// LID of the sender.
    pub source_lid: u16,
    /// Low bits of the LID that the sender used, 7 bits.
    pub path_bits: u8,
    /// Immediate data, invalidated rkey, or in the low half the index of the partition key.
    pub imm_inval_pkey: u32,
}

impl Message {
    #[inline(always)]
    pub(crate) fn decode(cqe: &RawCqe) -> Self {
        let flags = cqe.flags_rqpn();
        Self {
            source_qpn: flags & 0x00ff_ffff,
            grh: flags >> 28 & 3 != 0,
            service_level: (flags >> 24 & 0xf) as u8,
            source_lid: cqe.slid(),
            path_bits: cqe.ml_path() & 0x7f,
            imm_inval_pkey: cqe.imm_inval_pkey(),
        }
    }
}

/// What kind of message consumed the receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecvOp {
    /// RDMA write with immediate data.
    WriteImm,
    /// Send.
    Send,
    /// Send with immediate data.
    SendImm,
    /// Send that invalidated an rkey.
    SendInval,
}

/// A finished receive, whose payload is in the posted buffer unless it is in a [`ScatteredRecv`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecvCqe {
    /// Kind of message.
    pub op: RecvOp,
    /// The message asked for a solicited event.
    pub solicited: bool,
    /// QP number, 24 bits.
    pub qpn: u32,
    /// SRQ number (CQE version 0) or user index (version 1), 24 bits.
    pub srqn_or_user_index: u32,
    /// Slot in the SRQ.
    pub slot: WqeIndex,
    /// Bytes received; for [`RecvOp::WriteImm`] the bytes the peer wrote to its target.
    pub byte_count: u32,
    imm_or_rkey: u32,
}

impl RecvCqe {
    /// Immediate data in host order (verbs' `imm_data` is the same value big-endian).
    #[inline]
    pub fn immediate(&self) -> Option<u32> {
        matches!(self.op, RecvOp::WriteImm | RecvOp::SendImm).then_some(self.imm_or_rkey)
    }

    /// The rkey that the message invalidated.
    #[inline]
    pub fn invalidated_rkey(&self) -> Option<u32> {
        (self.op == RecvOp::SendInval).then_some(self.imm_or_rkey)
    }
}

/// A finished receive whose payload the device put into the completion entry (scatter to CQE). The
/// posted buffer was **not written**: take the payload with
/// [`Cq::copy_scattered`](crate::Cq::copy_scattered) before the next poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScatteredRecv {
    /// All fields except the payload.
    pub receive: RecvCqe,
    /// The payload is in the first half of a 128-byte entry, not in the first 32 bytes of the
    /// fields.
    pub(crate) wide: bool,
    /// Index of the entry in the queue.
    pub(crate) index: u32,
}

/// A finished send-queue operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendCqe {
    /// Opcode of the send WQE.
    pub op: RequestOp,
    /// QP number, 24 bits.
    pub qpn: u32,
    /// SRQ number (CQE version 0) or user index (version 1), 24 bits.
    pub srqn_or_user_index: u32,
    /// Index of the WQE's first 64-byte block, as posted: a running 16-bit count.
    pub wqe_counter: u16,
    /// Bytes read by an RDMA read.
    pub byte_count: u32,
}

/// A finished read or atomic whose result the device put into the completion entry (scatter to
/// CQE). The memory that the request named was **not written**. Before the next poll, take the
/// result with [`Cq::copy_result`](crate::Cq::copy_result), or let
/// [`Cq::deliver_result`](crate::Cq::deliver_result) write it to that memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScatteredSend {
    /// All fields except the result.
    pub send: SendCqe,
    pub(crate) wide: bool,
    pub(crate) index: u32,
}

impl ScatteredSend {
    /// Bytes of the result.
    pub fn byte_count(&self) -> u32 {
        // The entry's byte count is not reliable for an atomic. libmlx5 takes 8 as well.
        if self.send.op == RequestOp::Read { self.send.byte_count } else { 8 }
    }
}

/// The opcode that a requester entry repeats from its WQE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestOp {
    /// RDMA write.
    Write,
    /// RDMA write with immediate data.
    WriteImm,
    /// Send.
    Send,
    /// Send with immediate data.
    SendImm,
    /// Send that invalidates an rkey at the peer.
    SendInval,
    /// RDMA read.
    Read,
    /// Compare and swap.
    CompareSwap,
    /// Fetch and add.
    FetchAdd,
    /// Masked compare and swap.
    MaskedCompareSwap,
    /// Masked fetch and add.
    MaskedFetchAdd,
    /// Memory key update: bind or invalidate of a window or fast registration.
    Umr,
    /// Invalidation of a local rkey.
    LocalInval,
    /// No operation.
    Nop,
    /// Anything else, by number (`MLX5_OPCODE_*`).
    Other(u8),
}

impl RequestOp {
    /// From the number in the WQE and in the entry's top `sop_drop_qpn` byte.
    pub const fn from_opcode(opcode: u8) -> Self {
        match opcode {
            0x00 => Self::Nop,
            0x01 => Self::SendInval,
            0x08 => Self::Write,
            0x09 => Self::WriteImm,
            0x0a => Self::Send,
            0x0b => Self::SendImm,
            0x10 => Self::Read,
            0x11 => Self::CompareSwap,
            0x12 => Self::FetchAdd,
            0x14 => Self::MaskedCompareSwap,
            0x15 => Self::MaskedFetchAdd,
            0x1b => Self::LocalInval,
            0x25 => Self::Umr,
            other => Self::Other(other),
        }
    }
}

/// Why an operation failed, as the device reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Syndrome {
    /// 0x01: a message was longer than its receive buffer.
    #[error("local length error")]
    LocalLength,
    /// 0x02: the WQE or the QP is inconsistent.
    #[error("local QP operation error")]
    LocalQpOperation,
    /// 0x04: an lkey does not cover its segment.
    #[error("local protection error")]
    LocalProtection,
    /// 0x05: the QP went to the error state before the operation was done.
    #[error("flushed: the QP is in the error state")]
    Flushed,
    /// 0x06: a memory window could not be bound.
    #[error("memory window bind error")]
    MwBind,
    /// 0x10: the responder sent something unexpected.
    #[error("bad response")]
    BadResponse,
    /// 0x11: a remote operation had no access to local memory.
    #[error("local access error")]
    LocalAccess,
    /// 0x12: the responder refused the request as malformed.
    #[error("remote invalid request")]
    RemoteInvalidRequest,
    /// 0x13: the responder refused access to its memory.
    #[error("remote access error")]
    RemoteAccess,
    /// 0x14: the responder could not carry the request out.
    #[error("remote operation error")]
    RemoteOperation,
    /// 0x15: no acknowledgement after all retries.
    #[error("transport retries exceeded")]
    TransportRetries,
    /// 0x16: the responder had no receive posted after all retries.
    #[error("receiver-not-ready retries exceeded")]
    RnrRetries,
    /// 0x22 with vendor syndrome 0x93: a page of on-demand-paging memory was not present. The
    /// kernel resolves the fault, and libmlx5 would post the WQE again. This crate does not support
    /// ODP memory.
    #[error("on-demand paging fault: post memory that was registered without IBV_ACCESS_ON_DEMAND")]
    OdpPageFault,
    /// 0x22: aborted by the remote side.
    #[error("remote aborted")]
    RemoteAborted,
    /// Anything else, by number.
    #[error("syndrome {0:#04x}")]
    Other(u8),
}

impl Syndrome {
    /// From the syndrome and vendor syndrome bytes.
    pub const fn from_bytes(syndrome: u8, vendor: u8) -> Self {
        match syndrome {
            0x01 => Self::LocalLength,
            0x02 => Self::LocalQpOperation,
            0x04 => Self::LocalProtection,
            0x05 => Self::Flushed,
            0x06 => Self::MwBind,
            0x10 => Self::BadResponse,
            0x11 => Self::LocalAccess,
            0x12 => Self::RemoteInvalidRequest,
            0x13 => Self::RemoteAccess,
            0x14 => Self::RemoteOperation,
            0x15 => Self::TransportRetries,
            0x16 => Self::RnrRetries,
            0x22 if vendor == 0x93 => Self::OdpPageFault,
            0x22 => Self::RemoteAborted,
            other => Self::Other(other),
        }
    }
}

/// An operation that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErrorCqe {
    /// The reason.
    pub syndrome: Syndrome,
    /// The device maker's detail code.
    pub vendor_syndrome: u8,
    /// QP number, 24 bits.
    pub qpn: u32,
    /// SRQ number (CQE version 0) or user index (version 1), 24 bits.
    pub srqn_or_user_index: u32,
    /// SRQ slot of a failed receive (return it like any other slot), or index of the send WQE.
    pub wqe_counter: u16,
}

/// One completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Completion {
    /// A receive finished, and its payload is in the posted buffer.
    Recv(RecvCqe),
    /// A receive finished, and its payload is in the completion entry. The posted buffer was not
    /// written. See [`Cq::copy_scattered`](crate::Cq::copy_scattered).
    RecvScattered(ScatteredRecv),
    /// A receive failed. Its slot, [`ErrorCqe::wqe_counter`], can be returned.
    RecvError(ErrorCqe),
    /// A send-queue operation finished.
    Send(SendCqe),
    /// A read or an atomic finished, and its result is in the completion entry. The memory that the
    /// request named was not written. See [`Cq::copy_result`](crate::Cq::copy_result).
    SendScattered(ScatteredSend),
    /// A send-queue operation failed.
    SendError(ErrorCqe),
}

impl Completion {
    /// QP number, 24 bits.
    #[inline]
    pub fn qpn(&self) -> u32 {
        match self {
            Self::Recv(c) => c.qpn,
            Self::RecvScattered(c) => c.receive.qpn,
            Self::Send(c) => c.qpn,
            Self::SendScattered(c) => c.send.qpn,
            Self::RecvError(e) | Self::SendError(e) => e.qpn,
        }
    }

    /// For a receive from an SRQ: the slot that this completion frees.
    #[inline]
    pub fn slot(&self) -> Option<WqeIndex> {
        match self {
            Self::Recv(c) => Some(c.slot),
            Self::RecvScattered(c) => Some(c.receive.slot),
            Self::RecvError(e) => Some(WqeIndex(e.wqe_counter)),
            Self::Send(_) | Self::SendScattered(_) | Self::SendError(_) => None,
        }
    }

    /// For a send-queue operation: the number that [`Sq::complete`](crate::Sq::complete) takes.
    #[inline]
    pub fn send_counter(&self) -> Option<u16> {
        match self {
            Self::Send(c) => Some(c.wqe_counter),
            Self::SendScattered(c) => Some(c.send.wqe_counter),
            Self::SendError(e) => Some(e.wqe_counter),
            Self::Recv(_) | Self::RecvScattered(_) | Self::RecvError(_) => None,
        }
    }
}

/// The kinds of completions with the fewest fields. See [`Cq::plain_entry`](crate::Cq::plain_entry).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlainKind {
    /// A request succeeded and left no result in the entry.
    Request,
    /// A Send without immediate data arrived, with its payload in the posted buffer.
    Received,
}

/// An entry that this crate does not handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CqeError {
    /// The CQ was created with CQE compression.
    #[error("compressed completion: create the CQ without MLX5DV_CQ_INIT_ATTR_MASK_COMPRESSED_CQE")]
    Compressed,
    /// The CQ was resized while it was polled here.
    #[error("the CQ was resized: a directly polled CQ keeps its size, or goes on by Cq::continue_in")]
    Resized,
    /// The CQ was not resized.
    #[error("no resize mark in the CQ: its device has not changed over to another buffer")]
    NoResizeMark,
    /// An opcode that does not belong on a CQ of plain RC, UC or UD queues.
    #[error("unknown completion opcode {opcode}")]
    Opcode {
        /// High nibble of `op_own`.
        opcode: u8,
    },
}
