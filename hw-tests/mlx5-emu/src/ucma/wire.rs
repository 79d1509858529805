//! The messages between two connection managers: one message per packet.
//!
//! The messages are those of the InfiniBand CM (REQ, MRA, REP, RTU, REJ, DREQ, DREP and the SIDR
//! pair) with the fields that software needs. The other side is not trusted: bytes that do not
//! decode are dropped.

use std::net::{IpAddr, SocketAddr, SocketAddrV4, SocketAddrV6};

use super::abi::Ece;
use super::net::Name;

/// First byte of every message. It changes with the format, so that processes of different builds
/// ignore each other.
const VERSION: u8 = 1;
/// Longest message in bytes, with room to spare.
pub(crate) const MAX_BYTES: usize = 512;

/// A message with the communication identifiers of both ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Packet {
    /// The receiver's identifier; 0 while the sender doesn't know it.
    pub(crate) to: u32,
    /// The sender's identifier.
    pub(crate) from: u32,
    pub(crate) body: Message,
}

/// A request for a connection or, without QP numbers, for a datagram address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    /// The listener that was found.
    pub(crate) listener: Name,
    /// The requester's address and port.
    pub(crate) src: SocketAddr,
    /// The address and port it asked for.
    pub(crate) dst: SocketAddr,
    pub(crate) qpn: u32,
    /// The number the receiver of this message starts sending with.
    pub(crate) psn: u32,
    pub(crate) responder_resources: u8,
    pub(crate) initiator_depth: u8,
    pub(crate) flow_control: u8,
    pub(crate) retry_count: u8,
    pub(crate) rnr_retry_count: u8,
    pub(crate) srq: u8,
    pub(crate) ece: Ece,
    pub(crate) private: Vec<u8>,
}

/// The answer that accepts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Response {
    pub(crate) qpn: u32,
    pub(crate) psn: u32,
    pub(crate) responder_resources: u8,
    pub(crate) initiator_depth: u8,
    pub(crate) flow_control: u8,
    pub(crate) rnr_retry_count: u8,
    pub(crate) srq: u8,
    pub(crate) ece: Ece,
    pub(crate) private: Vec<u8>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Message {
    Req(Request),
    /// The request has arrived; the answer may take long.
    Mra,
    Rep(Response),
    Rtu,
    Rej {
        reason: u8,
        private: Vec<u8>,
    },
    Dreq,
    Drep,
    SidrReq(Request),
    SidrRep {
        status: u8,
        qpn: u32,
        qkey: u32,
        private: Vec<u8>,
    },
}

struct Writer(Vec<u8>);

impl Writer {
    fn u8(&mut self, value: u8) {
        self.0.push(value);
    }
    fn u16(&mut self, value: u16) {
        self.0.extend(value.to_le_bytes());
    }
    fn u32(&mut self, value: u32) {
        self.0.extend(value.to_le_bytes());
    }
    fn private(&mut self, bytes: &[u8]) {
        self.u8(u8::try_from(bytes.len()).unwrap_or(u8::MAX));
        self.0.extend(&bytes[..bytes.len().min(255)]);
    }
    fn ip(&mut self, ip: IpAddr) {
        match ip {
            IpAddr::V4(v4) => {
                self.u8(4);
                self.0.extend(v4.octets());
            }
            IpAddr::V6(v6) => {
                self.u8(6);
                self.0.extend(v6.octets());
            }
        }
    }
    fn socket(&mut self, addr: SocketAddr) {
        self.ip(addr.ip());
        self.u16(addr.port());
        self.u32(match addr {
            SocketAddr::V4(_) => 0,
            SocketAddr::V6(v6) => v6.scope_id(),
        });
    }
    fn ece(&mut self, ece: Ece) {
        self.u32(ece.vendor_id);
        self.u32(ece.attr_mod);
    }
    fn request(&mut self, r: &Request) {
        self.u16(r.listener.port_space);
        self.u16(r.listener.port);
        self.u8(u8::from(r.listener.only_v6));
        self.ip(r.listener.ip);
        self.socket(r.src);
        self.socket(r.dst);
        self.u32(r.qpn);
        self.u32(r.psn);
        for value in [
            r.responder_resources,
            r.initiator_depth,
            r.flow_control,
            r.retry_count,
            r.rnr_retry_count,
            r.srq,
        ] {
            self.u8(value);
        }
        self.ece(r.ece);
        self.private(&r.private);
    }
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, tail) = self.0.split_first_chunk::<N>()?;
        self.0 = tail;
        Some(*head)
    }
    fn u8(&mut self) -> Option<u8> {
        self.take::<1>().map(|b| b[0])
    }
    fn u16(&mut self) -> Option<u16> {
        self.take().map(u16::from_le_bytes)
    }
    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }
    fn private(&mut self) -> Option<Vec<u8>> {
        let len = usize::from(self.u8()?);
        let (head, tail) = self.0.split_at_checked(len)?;
        self.0 = tail;
        Some(head.to_vec())
    }
    fn ip(&mut self) -> Option<IpAddr> {
        match self.u8()? {
            4 => self.take::<4>().map(IpAddr::from),
            6 => self.take::<16>().map(IpAddr::from),
            _ => None,
        }
    }
    fn socket(&mut self) -> Option<SocketAddr> {
        let (ip, port, scope) = (self.ip()?, self.u16()?, self.u32()?);
        Some(match ip {
            IpAddr::V4(v4) => SocketAddr::V4(SocketAddrV4::new(v4, port)),
            IpAddr::V6(v6) => SocketAddr::V6(SocketAddrV6::new(v6, port, 0, scope)),
        })
    }
    fn ece(&mut self) -> Option<Ece> {
        Some(Ece { vendor_id: self.u32()?, attr_mod: self.u32()? })
    }
    fn request(&mut self) -> Option<Request> {
        let (port_space, port, only_v6) = (self.u16()?, self.u16()?, self.u8()? != 0);
        Some(Request {
            listener: Name { port_space, port, only_v6, ip: self.ip()? },
            src: self.socket()?,
            dst: self.socket()?,
            qpn: self.u32()?,
            psn: self.u32()?,
            responder_resources: self.u8()?,
            initiator_depth: self.u8()?,
            flow_control: self.u8()?,
            retry_count: self.u8()?,
            rnr_retry_count: self.u8()?,
            srq: self.u8()?,
            ece: self.ece()?,
            private: self.private()?,
        })
    }
}

impl Packet {
    /// The packet's bytes.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut w = Writer(vec![VERSION]);
        w.u8(match self.body {
            Message::Req(_) => 0,
            Message::Mra => 1,
            Message::Rep(_) => 2,
            Message::Rtu => 3,
            Message::Rej { .. } => 4,
            Message::Dreq => 5,
            Message::Drep => 6,
            Message::SidrReq(_) => 7,
            Message::SidrRep { .. } => 8,
        });
        w.u32(self.to);
        w.u32(self.from);
        match &self.body {
            Message::Req(request) | Message::SidrReq(request) => w.request(request),
            Message::Rep(r) => {
                w.u32(r.qpn);
                w.u32(r.psn);
                for value in
                    [r.responder_resources, r.initiator_depth, r.flow_control, r.rnr_retry_count, r.srq]
                {
                    w.u8(value);
                }
                w.ece(r.ece);
                w.private(&r.private);
            }
            Message::Rej { reason, private } => {
                w.u8(*reason);
                w.private(private);
            }
            Message::SidrRep { status, qpn, qkey, private } => {
                w.u8(*status);
                w.u32(*qpn);
                w.u32(*qkey);
                w.private(private);
            }
            Message::Mra | Message::Rtu | Message::Dreq | Message::Drep => {}
        }
        w.0
    }

    /// Reads a packet; `None` for anything that is not one.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut r = Reader(bytes);
        if r.u8()? != VERSION {
            return None;
        }
        let (kind, to, from) = (r.u8()?, r.u32()?, r.u32()?);
        let body = match kind {
            0 => Message::Req(r.request()?),
            1 => Message::Mra,
            2 => Message::Rep(Response {
                qpn: r.u32()?,
                psn: r.u32()?,
                responder_resources: r.u8()?,
                initiator_depth: r.u8()?,
                flow_control: r.u8()?,
                rnr_retry_count: r.u8()?,
                srq: r.u8()?,
                ece: r.ece()?,
                private: r.private()?,
            }),
            3 => Message::Rtu,
            4 => Message::Rej { reason: r.u8()?, private: r.private()? },
            5 => Message::Dreq,
            6 => Message::Drep,
            7 => Message::SidrReq(r.request()?),
            8 => Message::SidrRep { status: r.u8()?, qpn: r.u32()?, qkey: r.u32()?, private: r.private()? },
            _ => return None,
        };
        r.0.is_empty().then_some(Self { to, from, body })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request() -> Request {
        Request {
            listener: Name {
                port_space: 0x106,
                port: 7471,
                ip: "0.0.0.0".parse().expect("address"),
                only_v6: false,
            },
            src: "127.0.0.1:50001".parse().expect("address"),
            dst: "[::1]:7471".parse().expect("address"),
            qpn: 0x12_3456,
            psn: 0x65_4321,
            responder_resources: 1,
            initiator_depth: 2,
            flow_control: 3,
            retry_count: 4,
            rnr_retry_count: 5,
            srq: 1,
            ece: Ece { vendor_id: 6, attr_mod: 7 },
            private: vec![9; 56],
        }
    }

    fn all() -> Vec<Message> {
        vec![
            Message::Req(request()),
            Message::Mra,
            Message::Rep(Response {
                qpn: 1,
                psn: 2,
                responder_resources: 3,
                initiator_depth: 4,
                flow_control: 5,
                rnr_retry_count: 6,
                srq: 0,
                ece: Ece::default(),
                private: vec![1; 196],
            }),
            Message::Rtu,
            Message::Rej { reason: 28, private: vec![2; 148] },
            Message::Dreq,
            Message::Drep,
            Message::SidrReq(request()),
            Message::SidrRep { status: 0, qpn: 5, qkey: 0x0123_4567, private: vec![3; 136] },
        ]
    }

    #[test]
    fn every_message_survives_a_round_trip_within_the_limit() {
        for body in all() {
            let packet = Packet { to: 1, from: 2, body };
            let bytes = packet.encode();
            assert!(bytes.len() <= MAX_BYTES, "{} bytes", bytes.len());
            assert_eq!(Packet::decode(&bytes), Some(packet));
        }
    }

    #[test]
    fn cut_and_lengthened_messages_are_not_accepted() {
        for body in all() {
            let bytes = Packet { to: 1, from: 2, body }.encode();
            for len in 0..bytes.len() {
                assert_eq!(Packet::decode(&bytes[..len]), None, "cut to {len}");
            }
            let mut longer = bytes.clone();
            longer.push(0);
            assert_eq!(Packet::decode(&longer), None);
        }
    }
}
