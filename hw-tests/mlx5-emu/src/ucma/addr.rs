//! Socket addresses as rdma_cm knows them: IPv4, IPv6 and the InfiniBand family.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

const AF_INET: u16 = 2;
const AF_INET6: u16 = 10;
/// The InfiniBand address family (sockaddr_ib, 48 bytes).
const AF_IB: u16 = 27;
const SOCKADDR_IB_BYTES: usize = 48;

/// An address given to, or reported by, a communication identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Addr {
    /// IPv4 or IPv6 address and port.
    Ip(SocketAddr),
    /// A raw sockaddr_ib.
    Ib([u8; SOCKADDR_IB_BYTES]),
}

impl Addr {
    /// Reads a sockaddr; `None` when the family is unknown or the bytes are too few.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let family = u16::from_ne_bytes(bytes.get(0..2)?.try_into().ok()?);
        match family {
            AF_INET => {
                let port = u16::from_be_bytes(bytes.get(2..4)?.try_into().ok()?);
                let ip: [u8; 4] = bytes.get(4..8)?.try_into().ok()?;
                Some(Self::Ip(SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::from(ip), port))))
            }
            AF_INET6 => {
                let port = u16::from_be_bytes(bytes.get(2..4)?.try_into().ok()?);
                let flow = u32::from_be_bytes(bytes.get(4..8)?.try_into().ok()?);
                let ip: [u8; 16] = bytes.get(8..24)?.try_into().ok()?;
                let scope = u32::from_ne_bytes(bytes.get(24..28)?.try_into().ok()?);
                Some(Self::Ip(SocketAddr::V6(SocketAddrV6::new(Ipv6Addr::from(ip), port, flow, scope))))
            }
            AF_IB => Some(Self::Ib(bytes.get(0..SOCKADDR_IB_BYTES)?.try_into().ok()?)),
            _ => None,
        }
    }

    /// The sockaddr's bytes; the length is that of the family's structure.
    pub(crate) fn encode(&self) -> Vec<u8> {
        match self {
            Self::Ip(SocketAddr::V4(v4)) => {
                let mut out = vec![0; 16];
                out[0..2].copy_from_slice(&AF_INET.to_ne_bytes());
                out[2..4].copy_from_slice(&v4.port().to_be_bytes());
                out[4..8].copy_from_slice(&v4.ip().octets());
                out
            }
            Self::Ip(SocketAddr::V6(v6)) => {
                let mut out = vec![0; 28];
                out[0..2].copy_from_slice(&AF_INET6.to_ne_bytes());
                out[2..4].copy_from_slice(&v6.port().to_be_bytes());
                out[4..8].copy_from_slice(&v6.flowinfo().to_be_bytes());
                out[8..24].copy_from_slice(&v6.ip().octets());
                out[24..28].copy_from_slice(&v6.scope_id().to_ne_bytes());
                out
            }
            Self::Ib(raw) => raw.to_vec(),
        }
    }

    /// Bytes of the family's sockaddr structure.
    pub(crate) fn size(&self) -> usize {
        match self {
            Self::Ip(SocketAddr::V4(_)) => 16,
            Self::Ip(SocketAddr::V6(_)) => 28,
            Self::Ib(_) => SOCKADDR_IB_BYTES,
        }
    }

    /// True for the wildcard address of the family.
    pub(crate) fn is_any(&self) -> bool {
        match self {
            Self::Ip(ip) => ip.ip().is_unspecified(),
            Self::Ib(raw) => raw[8..24].iter().all(|&b| b == 0),
        }
    }

    /// The IP address and port, if this is one.
    pub(crate) fn ip(&self) -> Option<SocketAddr> {
        match self {
            Self::Ip(ip) => Some(*ip),
            Self::Ib(_) => None,
        }
    }

    /// The port, 0 for other families.
    pub(crate) fn port(&self) -> u16 {
        self.ip().map_or(0, |ip| ip.port())
    }
}

/// The RoCE v2 GID of an IP address: IPv6 as it is, IPv4 mapped.
pub(crate) fn gid_of(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

/// A sockaddr_ib for `gid`, as QUERY(GID) answers it.
pub(crate) fn sockaddr_ib(gid: [u8; 16], pkey: u16, service_id: u64) -> [u8; SOCKADDR_IB_BYTES] {
    let mut out = [0; SOCKADDR_IB_BYTES];
    out[0..2].copy_from_slice(&AF_IB.to_ne_bytes());
    out[2..4].copy_from_slice(&pkey.to_be_bytes());
    out[8..24].copy_from_slice(&gid);
    out[24..32].copy_from_slice(&service_id.to_be_bytes());
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_a_round_trip() {
        for text in ["127.0.0.1:18515", "0.0.0.0:0", "[::1]:7471", "[fe80::1%3]:9"] {
            let ip: SocketAddr = text.parse().expect(text);
            let addr = Addr::Ip(ip);
            let bytes = addr.encode();
            assert_eq!(bytes.len(), addr.size());
            assert_eq!(Addr::decode(&bytes), Some(addr), "{text}");
        }
    }

    #[test]
    fn unknown_family_and_short_addresses_are_refused() {
        assert_eq!(Addr::decode(&[0; 28]), None);
        assert_eq!(Addr::decode(&[2, 0, 1]), None);
        assert_eq!(Addr::decode(&[10, 0, 0, 0, 0, 0, 0, 0]), None);
    }

    #[test]
    fn gid_of_ipv4_is_mapped() {
        let gid = gid_of("10.1.2.3".parse().expect("address"));
        assert_eq!(gid[10..], [0xff, 0xff, 10, 1, 2, 3]);
        assert_eq!(gid[..10], [0; 10]);
    }
}
