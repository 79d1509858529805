//! The form of requests and answers in a ring.

use super::request::{Datagram, Op, Reply, Request};
use crate::objects::{QpType, syndrome};

/// Frames start at multiples of this, so that counters are aligned.
pub(super) const ALIGN: usize = 8;
const FRAME_REQUEST: u8 = 1;
const FRAME_REPLY: u8 = 2;
/// A part of a frame that is continued.
pub(super) const FRAME_PART: u8 = 3;
/// The last part of a frame.
pub(super) const FRAME_LAST_PART: u8 = 4;
/// Bytes of a request before its payload, of an answer before its data, and of a part before its
/// data.
pub(super) const REQUEST_HEAD: usize = 119;
pub(super) const REPLY_HEAD: usize = 16;
pub(super) const PART_HEAD: usize = 8;

/// A frame without its length.
pub(crate) enum Frame<'a> {
    /// A request and its payload.
    Request(Request, &'a [u8]),
    /// An answer to the request of this QP with this sequence number, and its data.
    Reply { qpn: u32, number: u32, reply: Reply, data: &'a [u8] },
}

/// Writes the header of a request, in front of its payload.
pub(super) fn write_request(head: &mut [u8], request: &Request, payload: usize) {
    let mut rest = head;
    let mut put = |bytes: &[u8]| {
        let (place, after) = std::mem::take(&mut rest).split_at_mut(bytes.len());
        place.copy_from_slice(bytes);
        rest = after;
    };
    put(&((REQUEST_HEAD + payload) as u32).to_le_bytes());
    put(&[FRAME_REQUEST, request.op as u8, request.kind as u8, u8::from(request.solicited)]);
    for word in
        [request.source_qpn, request.dest_qpn, request.number, request.len, request.rkey, request.srqn]
    {
        put(&word.to_le_bytes());
    }
    put(&request.imm);
    put(&request.raddr.to_le_bytes());
    for word in request.operands {
        put(&word.to_le_bytes());
    }
    put(&[u8::from(request.datagram.is_some())]);
    let datagram = request.datagram.unwrap_or_default();
    put(&datagram.qkey.to_le_bytes());
    put(&datagram.source_gid);
    put(&datagram.dest_gid);
    put(&[datagram.traffic_class, datagram.hop_limit]);
    put(&datagram.flow_label.to_le_bytes());
    debug_assert!(rest.is_empty(), "REQUEST_HEAD");
}

/// Takes a frame apart.
struct Cursor<'a>(&'a [u8]);

impl Cursor<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*head)
    }

    fn u8(&mut self) -> Option<u8> {
        self.take::<1>().map(|[byte]| byte)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }
}

fn parse_request(cursor: &mut Cursor<'_>) -> Option<Request> {
    let op = Op::from_raw(cursor.u8()?)?;
    let kind = QpType::from_raw(cursor.u8()?)?;
    let solicited = cursor.u8()? != 0;
    let (source_qpn, dest_qpn, number, len, rkey, srqn) =
        (cursor.u32()?, cursor.u32()?, cursor.u32()?, cursor.u32()?, cursor.u32()?, cursor.u32()?);
    let imm = cursor.take()?;
    let raddr = cursor.u64()?;
    let operands = [cursor.u64()?, cursor.u64()?, cursor.u64()?, cursor.u64()?];
    let has_datagram = cursor.u8()? != 0;
    let datagram = Datagram {
        qkey: cursor.u32()?,
        source_gid: cursor.take()?,
        dest_gid: cursor.take()?,
        traffic_class: cursor.u8()?,
        hop_limit: cursor.u8()?,
        flow_label: cursor.u32()?,
    };
    if !op.reads() && cursor.0.len() != len as usize {
        return None;
    }
    Some(Request {
        op,
        kind,
        source_qpn,
        dest_qpn,
        number,
        imm,
        solicited,
        len,
        rkey,
        raddr,
        operands,
        srqn,
        datagram: has_datagram.then_some(datagram),
    })
}

/// Writes the header of an answer, in front of its data.
pub(super) fn write_reply(head: &mut [u8], request: &Request, reply: Reply, data: usize) {
    let (code, value) = match reply {
        Reply::Ack => (0, 0),
        Reply::Data(_) => (1, 0),
        Reply::Old(_) => (2, 0),
        Reply::NotReady(timer) => (3, timer),
        Reply::Nak(syndrome) | Reply::NakCompleted(syndrome) => (4, syndrome as u8),
        Reply::Silence => (5, 0),
    };
    head[..4].copy_from_slice(&((REPLY_HEAD + data) as u32).to_le_bytes());
    head[4..8].copy_from_slice(&[FRAME_REPLY, code, value, 0]);
    head[8..12].copy_from_slice(&request.source_qpn.to_le_bytes());
    head[12..].copy_from_slice(&request.number.to_le_bytes());
}

/// Takes a frame apart. `None` if it is none; the values of [`Reply::Data`] and [`Reply::Old`] are
/// in the data.
pub(crate) fn parse(frame: &[u8]) -> Option<Frame<'_>> {
    let mut cursor = Cursor(frame);
    match cursor.u8()? {
        FRAME_REQUEST => {
            let request = parse_request(&mut cursor)?;
            Some(Frame::Request(request, cursor.0))
        }
        FRAME_REPLY => {
            let [code, value, _] = cursor.take()?;
            let (qpn, number) = (cursor.u32()?, cursor.u32()?);
            let reply = match code {
                0 => Reply::Ack,
                1 => Reply::Data(0),
                2 => Reply::Old(0),
                3 => Reply::NotReady(value),
                4 => Reply::Nak(syndrome::usual(value)),
                _ => Reply::Silence,
            };
            Some(Frame::Reply { qpn, number, reply, data: cursor.0 })
        }
        _ => None,
    }
}
