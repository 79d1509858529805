//! The ucma commands: decoding and encoding at literal offsets.
//!
//! This module shares no structure with the library under test. A wrong offset on one side
//! therefore cannot cancel a wrong offset on the other side.
//!
//! # References
//! rdma-core kernel-headers/rdma/rdma_user_cm.h, kernel drivers/infiniband/core/ucma.c.

use super::addr::Addr;

/// An errno value, as the kernel returns it (positive here).
pub(crate) type Errno = i32;

/// Longest private data a parameter block carries, in bytes.
const PRIVATE_BYTES: usize = 256;
/// rdma_ucm_conn_param.
pub(crate) const CONN_PARAM_BYTES: usize = 272;
/// rdma_ucm_event_resp, from the version with ECE.
pub(crate) const EVENT_BYTES: usize = 336;
/// rdma_ucm_event_resp before `reserved` and `ece` were added.
const EVENT_BYTES_WITHOUT_ECE: usize = 324;
/// rdma_ucm_query_route_resp.
pub(crate) const QUERY_ROUTE_BYTES: usize = 208;
/// The first version of it, without the device index.
const QUERY_ROUTE_BYTES_WITHOUT_INDEX: usize = 200;
/// rdma_ucm_query_addr_resp.
pub(crate) const QUERY_ADDR_BYTES: usize = 280;
/// The first version of it, without the device index.
const QUERY_ADDR_BYTES_WITHOUT_INDEX: usize = 272;
/// ib_uverbs_qp_attr.
pub(crate) const QP_ATTR_BYTES: usize = 144;
/// ib_path_rec_data.
pub(crate) const PATH_REC_DATA_BYTES: usize = 72;

/// Enhanced connection establishment data, carried through untouched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ece {
    pub(crate) vendor_id: u32,
    pub(crate) attr_mod: u32,
}

/// rdma_ucm_conn_param.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ConnParam {
    pub(crate) qp_num: u32,
    pub(crate) qkey: u32,
    pub(crate) private: Vec<u8>,
    pub(crate) srq: u8,
    pub(crate) responder_resources: u8,
    pub(crate) initiator_depth: u8,
    pub(crate) flow_control: u8,
    pub(crate) retry_count: u8,
    pub(crate) rnr_retry_count: u8,
}

/// rdma_ucm_ud_param.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct UdParam {
    pub(crate) qp_num: u32,
    pub(crate) qkey: u32,
    /// ib_uverbs_ah_attr.
    pub(crate) ah: [u8; 32],
    pub(crate) private: Vec<u8>,
}

/// The parameters of an event, besides its kind and status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum EventParam {
    Conn(ConnParam),
    Ud(UdParam),
    /// A user's own word (WRITE_CM_EVENT).
    Arg([u8; 8]),
}

/// One command, arguments checked for length and family only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Command {
    CreateId { response: u64, uid: u64, port_space: u16, qp_type: u8 },
    DestroyId { response: u64, id: u32 },
    Bind { id: u32, addr: Addr },
    ResolveAddr { id: u32, timeout_ms: u32, src: Option<Addr>, dst: Addr },
    ResolveRoute { id: u32 },
    QueryRoute { response: u64, id: u32, room: usize },
    QueryAddr { response: u64, id: u32, room: usize },
    QueryPath { response: u64, id: u32, room: usize },
    QueryGid { response: u64, id: u32, room: usize },
    Connect { id: u32, param: ConnParam, ece: Ece },
    Listen { id: u32, backlog: i32 },
    Accept { id: u32, uid: u64, param: Option<ConnParam>, ece: Ece },
    Reject { id: u32, reason: u8, private: Vec<u8> },
    Disconnect { id: u32 },
    InitQpAttr { response: u64, id: u32, qp_state: u32 },
    GetEvent { response: u64, room: usize },
    SetOption { id: u32, level: u32, name: u32, value: u64, len: u32 },
    Notify { id: u32, event: u32 },
    MigrateId { response: u64, id: u32, fd: i32 },
    Join { response: u64, uid: u64, id: u32, addr: Addr },
    Leave { response: u64, group: u32 },
    WriteEvent { id: u32, event: u32, status: u32, arg: [u8; 8] },
}

/// Reads fields from a command's bytes. Fields beyond the end read as zero: the kernel treats short
/// versions of extended structures the same way.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn bytes<const N: usize>(&self, at: usize) -> [u8; N] {
        let mut out = [0; N];
        if let Some(tail) = self.0.get(at..) {
            let n = tail.len().min(N);
            out[..n].copy_from_slice(&tail[..n]);
        }
        out
    }
    fn u8(&self, at: usize) -> u8 {
        self.bytes::<1>(at)[0]
    }
    fn u16(&self, at: usize) -> u16 {
        u16::from_ne_bytes(self.bytes(at))
    }
    fn u32(&self, at: usize) -> u32 {
        u32::from_ne_bytes(self.bytes(at))
    }
    fn u64(&self, at: usize) -> u64 {
        u64::from_ne_bytes(self.bytes(at))
    }
    fn addr(&self, at: usize) -> Option<Addr> {
        Addr::decode(self.0.get(at..)?)
    }
    fn ece(&self, at: usize) -> Ece {
        Ece { vendor_id: self.u32(at), attr_mod: self.u32(at + 4) }
    }
    /// The parameter block, `None` when it is not marked valid.
    fn conn_param(&self, at: usize) -> Option<ConnParam> {
        if self.u8(at + 271) == 0 {
            return None;
        }
        let len = usize::from(self.u8(at + 264));
        let private: [u8; PRIVATE_BYTES] = self.bytes(at + 8);
        Some(ConnParam {
            qp_num: self.u32(at),
            qkey: self.u32(at + 4),
            private: private[..len].to_vec(),
            srq: self.u8(at + 265),
            responder_resources: self.u8(at + 266),
            initiator_depth: self.u8(at + 267),
            flow_control: self.u8(at + 268),
            retry_count: self.u8(at + 269),
            rnr_retry_count: self.u8(at + 270),
        })
    }
    /// An address with an explicit length, which must be the length of its family.
    fn sized_addr(&self, at: usize, len: u16) -> Result<Addr, Errno> {
        self.addr(at).filter(|addr| addr.size() == usize::from(len)).ok_or(libc::EINVAL)
    }
}

fn room_for(need: usize, room: usize) -> Result<(), Errno> {
    if room < need { Err(libc::ENOSPC) } else { Ok(()) }
}

/// Reads one write(2) to the device: header and payload.
pub(crate) fn parse(input: &[u8]) -> Result<Command, Errno> {
    let head = Fields(input);
    if input.len() < 8 {
        return Err(libc::EINVAL);
    }
    let number = head.u32(0);
    let in_len = usize::from(head.u16(4));
    let room = usize::from(head.u16(6));
    let payload = input.get(8..8 + in_len).ok_or(libc::EINVAL)?;
    let f = Fields(payload);
    let at_least = |bytes: usize| if payload.len() < bytes { Err(libc::EINVAL) } else { Ok(()) };
    Ok(match number {
        0 => {
            room_for(4, room)?;
            at_least(24)?;
            Command::CreateId { uid: f.u64(0), response: f.u64(8), port_space: f.u16(16), qp_type: f.u8(18) }
        }
        1 => {
            room_for(4, room)?;
            at_least(12)?;
            Command::DestroyId { response: f.u64(0), id: f.u32(8) }
        }
        2 => {
            at_least(40)?;
            let addr = f.addr(8).filter(|a| matches!(a, Addr::Ip(_))).ok_or(libc::EINVAL)?;
            Command::Bind { id: f.u32(36), addr }
        }
        3 => {
            at_least(64)?;
            let dst = f.addr(28).filter(|a| matches!(a, Addr::Ip(_))).ok_or(libc::EINVAL)?;
            let src = f.addr(0).filter(|a| matches!(a, Addr::Ip(_)));
            if src.is_none() && f.u16(0) != 0 {
                return Err(libc::EINVAL);
            }
            Command::ResolveAddr { id: f.u32(56), timeout_ms: f.u32(60), src, dst }
        }
        4 => {
            at_least(8)?;
            Command::ResolveRoute { id: f.u32(0) }
        }
        5 => {
            room_for(QUERY_ROUTE_BYTES_WITHOUT_INDEX, room)?;
            at_least(12)?;
            Command::QueryRoute { response: f.u64(0), id: f.u32(8), room }
        }
        6 => {
            at_least(CONN_PARAM_BYTES + 4)?;
            let param = f.conn_param(0).ok_or(libc::EINVAL)?;
            Command::Connect { id: f.u32(272), param, ece: f.ece(280) }
        }
        7 => {
            at_least(8)?;
            Command::Listen { id: f.u32(0), backlog: f.u32(4).cast_signed() }
        }
        8 => {
            at_least(8 + CONN_PARAM_BYTES + 4)?;
            Command::Accept { uid: f.u64(0), param: f.conn_param(8), id: f.u32(280), ece: f.ece(288) }
        }
        9 => {
            at_least(264)?;
            let private: [u8; PRIVATE_BYTES] = f.bytes(8);
            let len = usize::from(f.u8(4));
            Command::Reject { id: f.u32(0), reason: f.u8(5), private: private[..len].to_vec() }
        }
        10 => {
            at_least(4)?;
            Command::Disconnect { id: f.u32(0) }
        }
        11 => {
            room_for(QP_ATTR_BYTES, room)?;
            at_least(16)?;
            Command::InitQpAttr { response: f.u64(0), id: f.u32(8), qp_state: f.u32(12) }
        }
        12 => {
            room_for(EVENT_BYTES_WITHOUT_ECE, room)?;
            at_least(8)?;
            Command::GetEvent { response: f.u64(0), room }
        }
        14 => {
            at_least(24)?;
            Command::SetOption {
                value: f.u64(0),
                id: f.u32(8),
                level: f.u32(12),
                name: f.u32(16),
                len: f.u32(20),
            }
        }
        15 => {
            at_least(8)?;
            Command::Notify { id: f.u32(0), event: f.u32(4) }
        }
        16 => {
            room_for(4, room)?;
            at_least(48)?;
            let addr = f.addr(16).filter(|a| matches!(a, Addr::Ip(_))).ok_or(libc::EINVAL)?;
            Command::Join { response: f.u64(0), uid: f.u64(8), id: f.u32(44), addr }
        }
        17 => {
            room_for(4, room)?;
            at_least(12)?;
            Command::Leave { response: f.u64(0), group: f.u32(8) }
        }
        18 => {
            room_for(4, room)?;
            at_least(16)?;
            Command::MigrateId { response: f.u64(0), id: f.u32(8), fd: f.u32(12).cast_signed() }
        }
        19 => {
            at_least(16)?;
            let (response, id) = (f.u64(0), f.u32(8));
            match f.u32(12) {
                0 => {
                    room_for(QUERY_ADDR_BYTES_WITHOUT_INDEX, room)?;
                    Command::QueryAddr { response, id, room }
                }
                1 => {
                    room_for(8, room)?;
                    Command::QueryPath { response, id, room }
                }
                2 => {
                    room_for(QUERY_ADDR_BYTES_WITHOUT_INDEX, room)?;
                    Command::QueryGid { response, id, room }
                }
                _ => return Err(libc::ENOSYS),
            }
        }
        20 => {
            at_least(136)?;
            if f.u16(6) != 0 {
                return Err(libc::EINVAL);
            }
            Command::Bind { id: f.u32(0), addr: f.sized_addr(8, f.u16(4))? }
        }
        21 => {
            at_least(272)?;
            if f.u32(12) != 0 {
                return Err(libc::EINVAL);
            }
            let src = match f.u16(8) {
                0 => None,
                len => Some(f.sized_addr(16, len)?),
            };
            let dst = f.sized_addr(144, f.u16(10))?;
            Command::ResolveAddr { id: f.u32(0), timeout_ms: f.u32(4), src, dst }
        }
        22 => {
            room_for(4, room)?;
            at_least(152)?;
            // RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER: librdmacm then attaches no QP.
            if f.u16(22) > 1 {
                return Err(libc::EINVAL);
            }
            let addr = f.sized_addr(24, f.u16(20))?;
            Command::Join { response: f.u64(0), uid: f.u64(8), id: f.u32(16), addr }
        }
        24 => {
            at_least(24)?;
            Command::WriteEvent { id: f.u32(0), event: f.u32(8), status: f.u32(12), arg: f.bytes(16) }
        }
        // GET_OPTION has no function in the kernel. The device does not implement service records.
        13 | 23 => return Err(libc::ENOSYS),
        _ => return Err(libc::EINVAL),
    })
}

/// A response under construction; grows to a fixed size and is cut to the caller's room.
pub(crate) struct Reply(Vec<u8>);

impl Reply {
    pub(crate) fn new(bytes: usize) -> Self {
        Self(vec![0; bytes])
    }
    pub(crate) fn put(mut self, at: usize, bytes: &[u8]) -> Self {
        self.0[at..at + bytes.len()].copy_from_slice(bytes);
        self
    }
    pub(crate) fn u8(self, at: usize, value: u8) -> Self {
        self.put(at, &[value])
    }
    pub(crate) fn u16(self, at: usize, value: u16) -> Self {
        self.put(at, &value.to_ne_bytes())
    }
    pub(crate) fn u32(self, at: usize, value: u32) -> Self {
        self.put(at, &value.to_ne_bytes())
    }
    pub(crate) fn u64(self, at: usize, value: u64) -> Self {
        self.put(at, &value.to_ne_bytes())
    }
    pub(crate) fn cut(mut self, room: usize) -> Vec<u8> {
        self.0.truncate(room);
        self.0
    }
}

/// rdma_ucm_event_resp.
pub(crate) fn event(uid: u64, id: u32, kind: u32, status: i32, param: &EventParam, ece: Ece) -> Reply {
    let reply = Reply::new(EVENT_BYTES)
        .u64(0, uid)
        .u32(8, id)
        .u32(12, kind)
        .u32(16, status.cast_unsigned())
        .u32(328, ece.vendor_id)
        .u32(332, ece.attr_mod);
    let len = |private: &[u8]| u8::try_from(private.len()).unwrap_or(u8::MAX);
    match param {
        EventParam::Conn(p) => reply
            .u32(20, p.qp_num)
            .u32(24, p.qkey)
            .put(28, &p.private)
            .u8(284, len(&p.private))
            .u8(285, p.srq)
            .u8(286, p.responder_resources)
            .u8(287, p.initiator_depth)
            .u8(288, p.flow_control)
            .u8(289, p.retry_count)
            .u8(290, p.rnr_retry_count),
        EventParam::Ud(p) => reply
            .u32(20, p.qp_num)
            .u32(24, p.qkey)
            .put(28, &p.ah)
            .put(60, &p.private)
            .u8(316, len(&p.private)),
        EventParam::Arg(word) => reply.put(20, word),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command(number: u32, room: u16, payload: &[u8]) -> Vec<u8> {
        let mut out = number.to_ne_bytes().to_vec();
        out.extend(u16::try_from(payload.len()).expect("short").to_ne_bytes());
        out.extend(room.to_ne_bytes());
        out.extend(payload);
        out
    }

    #[test]
    fn create_id_is_read_at_the_header_offsets() {
        let payload = Reply::new(24).u64(0, 7).u64(8, 9).u16(16, 0x106).u8(18, 2).cut(24);
        assert_eq!(
            parse(&command(0, 4, &payload)),
            Ok(Command::CreateId { uid: 7, response: 9, port_space: 0x106, qp_type: 2 })
        );
    }

    #[test]
    fn a_header_that_promises_more_than_was_written_is_refused() {
        let mut bytes = command(7, 0, &[0; 8]);
        bytes[4] = 200;
        assert_eq!(parse(&bytes), Err(libc::EINVAL));
        assert_eq!(parse(&bytes[..6]), Err(libc::EINVAL));
    }

    #[test]
    fn a_response_that_does_not_fit_is_enospc() {
        assert_eq!(parse(&command(12, 323, &[0; 8])), Err(libc::ENOSPC));
        assert_eq!(parse(&command(12, 324, &[0; 8])), Ok(Command::GetEvent { response: 0, room: 324 }));
    }

    #[test]
    fn connect_without_valid_parameters_is_refused() {
        let mut payload = vec![0; 288];
        assert_eq!(parse(&command(6, 0, &payload)), Err(libc::EINVAL));
        payload[271] = 1;
        payload[264] = 3;
        payload[8..11].copy_from_slice(b"abc");
        let Ok(Command::Connect { param, .. }) = parse(&command(6, 0, &payload)) else {
            panic!("a valid connect")
        };
        assert_eq!(param.private, b"abc");
    }

    #[test]
    fn bind_wants_the_length_of_the_family() {
        let addr = Addr::Ip("127.0.0.1:5".parse().expect("address")).encode();
        let payload = |len| Reply::new(136).u32(0, 3).u16(4, len).put(8, &addr).cut(136);
        assert!(parse(&command(20, 0, &payload(16))).is_ok());
        assert_eq!(parse(&command(20, 0, &payload(28))), Err(libc::EINVAL));
    }

    #[test]
    fn a_join_names_its_address_in_either_form() {
        let addr = Addr::Ip("239.1.2.3:0".parse().expect("address"));
        let want = Command::Join { response: 7, uid: 8, id: 9, addr };
        let old = Reply::new(48).u64(0, 7).u64(8, 8).put(16, &addr.encode()).u32(44, 9).cut(48);
        assert_eq!(parse(&command(16, 4, &old)), Ok(want.clone()));
        let new = |flags| {
            let size = addr.encode().len() as u16;
            let join = Reply::new(152).u64(0, 7).u64(8, 8).u32(16, 9).u16(20, size).u16(22, flags);
            join.put(24, &addr.encode()).cut(152)
        };
        assert_eq!(parse(&command(22, 4, &new(0))), Ok(want.clone()));
        assert_eq!(parse(&command(22, 4, &new(1))), Ok(want));
        assert_eq!(parse(&command(22, 4, &new(2))), Err(libc::EINVAL));
    }

    #[test]
    fn service_records_are_not_there_and_unknown_commands_are_invalid() {
        assert_eq!(parse(&command(23, 4, &[0; 152])), Err(libc::ENOSYS));
        assert_eq!(parse(&command(99, 4, &[0; 152])), Err(libc::EINVAL));
    }
}
