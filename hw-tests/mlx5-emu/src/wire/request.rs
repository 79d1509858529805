//! Requests and answers, in transit between two QPs.

use crate::host::mem;
use crate::objects::{QpType, Seg};

/// Addressing of a datagram.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Datagram {
    pub(crate) qkey: u32,
    pub(crate) source_gid: [u8; 16],
    pub(crate) dest_gid: [u8; 16],
    pub(crate) traffic_class: u8,
    pub(crate) hop_limit: u8,
    pub(crate) flow_label: u32,
}

/// The operation of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Op {
    Send = 0,
    SendImm = 1,
    SendInv = 2,
    Write = 3,
    WriteImm = 4,
    Read = 5,
    CompareSwap = 6,
    FetchAdd = 7,
    MaskedCompareSwap = 8,
    MaskedFetchAdd = 9,
}

impl Op {
    pub(crate) fn from_raw(raw: u8) -> Option<Self> {
        Some(match raw {
            0 => Self::Send,
            1 => Self::SendImm,
            2 => Self::SendInv,
            3 => Self::Write,
            4 => Self::WriteImm,
            5 => Self::Read,
            6 => Self::CompareSwap,
            7 => Self::FetchAdd,
            8 => Self::MaskedCompareSwap,
            9 => Self::MaskedFetchAdd,
            _ => return None,
        })
    }

    pub(crate) fn is_atomic(self) -> bool {
        self as u8 >= Self::CompareSwap as u8
    }

    /// The answer carries data.
    pub(crate) fn reads(self) -> bool {
        self as u8 >= Self::Read as u8
    }
}

/// A request in transit, without its payload.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) op: Op,
    pub(crate) kind: QpType,
    pub(crate) source_qpn: u32,
    pub(crate) dest_qpn: u32,
    /// Sequence number in the lower 24 bits; above it a number that the answer only repeats.
    pub(crate) number: u32,
    /// Immediate data or key to invalidate, as on the wire.
    pub(crate) imm: [u8; 4],
    pub(crate) solicited: bool,
    pub(crate) len: u32,
    pub(crate) rkey: u32,
    pub(crate) raddr: u64,
    /// Operands: swap or add, compare, and their masks.
    pub(crate) operands: [u64; 4],
    /// The SRQ that an XRC request names; of a DC request the access key, folded.
    pub(crate) srqn: u32,
    pub(crate) datagram: Option<Datagram>,
}

/// Payload of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Payload<'a> {
    /// Checked places in this process's memory.
    Segments(&'a [Seg]),
    /// Bytes from another process or from a buffer.
    Bytes(&'a [u8]),
}

/// The answer to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    Ack,
    /// Data of a READ: a checked address in this process.
    Data(u64),
    /// Old value of an atomic.
    Old(u64),
    /// Receiver not ready; timer code.
    NotReady(u8),
    /// Refused with this syndrome at the requester.
    Nak(u16),
    /// As `Nak`, for a responder whose own completion already reports the reason. 0 when nothing is
    /// sent back.
    NakCompleted(u16),
    /// No answer: the QP does not exist, or its state does not allow an answer.
    Silence,
}

impl Payload<'_> {
    /// Copies the payload into checked places.
    #[inline]
    pub(crate) fn scatter(self, into: &[Seg], len: u32) {
        match self {
            Payload::Segments(from) => copy_segments(from, into, len),
            Payload::Bytes(bytes) => {
                let mut done = 0;
                for seg in into {
                    let end = done + seg.len as usize;
                    mem::write_region(seg.addr, &bytes[done..end]);
                    done = end;
                }
            }
        }
    }

    /// Copies the payload into a buffer of its size.
    #[inline]
    pub(crate) fn gather(self, out: &mut [u8]) {
        match self {
            Payload::Segments(from) => {
                let mut done = 0;
                for seg in from {
                    let end = done + seg.len as usize;
                    mem::read_region(seg.addr, &mut out[done..end]);
                    done = end;
                }
            }
            Payload::Bytes(bytes) => out.copy_from_slice(bytes),
        }
    }
}

/// Copies `len` bytes from one list of places to another; both lists hold at least that much.
#[inline]
pub(crate) fn copy_segments(from: &[Seg], into: &[Seg], len: u32) {
    if let ([a], [b]) = (from, into) {
        mem::copy(a.addr, b.addr, len.min(a.len).min(b.len) as usize);
        return;
    }
    let (mut i, mut j, mut left) = (0, 0, len);
    let (mut from_done, mut into_done) = (0, 0);
    while left > 0 && i < from.len() && j < into.len() {
        let n = (from[i].len - from_done).min(into[j].len - into_done).min(left);
        mem::copy(from[i].addr + u64::from(from_done), into[j].addr + u64::from(into_done), n as usize);
        left -= n;
        from_done += n;
        into_done += n;
        if from_done == from[i].len {
            (i, from_done) = (i + 1, 0);
        }
        if into_done == into[j].len {
            (j, into_done) = (j + 1, 0);
        }
    }
}
