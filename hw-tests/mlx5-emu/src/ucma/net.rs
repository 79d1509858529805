//! The connection manager's interface to the outside: the names of listeners, links to peers, and
//! addresses.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use super::abi::Errno;

/// Identifies a connection between two processes; [`LOCAL`] is the process itself.
pub(crate) type LinkId = u32;
/// Both ends are in this process.
pub(crate) const LOCAL: LinkId = 0;
/// No way to the peer (yet, or any more).
pub(crate) const NO_LINK: LinkId = LinkId::MAX;

/// Where a listener can be found: port space, port, address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Name {
    pub(crate) port_space: u16,
    pub(crate) port: u16,
    pub(crate) ip: IpAddr,
    /// An IPv6 wildcard that doesn't take IPv4 requests.
    pub(crate) only_v6: bool,
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mark = if self.only_v6 { "!" } else { "" };
        write!(f, "{:04x}/{}/{}{mark}", self.port_space, self.port, self.ip)
    }
}

impl Name {
    /// Parses the output of `Display`.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('/');
        let port_space = u16::from_str_radix(parts.next()?, 16).ok()?;
        let port = parts.next()?.parse().ok()?;
        let ip = parts.next()?;
        if parts.next().is_some() {
            return None;
        }
        let (ip, only_v6) = ip.strip_suffix('!').map_or((ip, false), |ip| (ip, true));
        Some(Self { port_space, port, ip: ip.parse().ok()?, only_v6 })
    }

    /// The error of binding `self` while `taken` is in use; `None` when both can exist.
    ///
    /// # References
    /// Kernel drivers/infiniband/core/cma.c, cma_check_port: a wildcard on either side is
    /// EADDRNOTAVAIL.
    pub(crate) fn conflict(&self, taken: &Self) -> Option<Errno> {
        if (self.port_space, self.port) != (taken.port_space, taken.port) {
            return None;
        }
        let family_only = |name: &Self| name.ip.is_ipv4() || name.only_v6;
        if self.ip.is_ipv4() != taken.ip.is_ipv4() && family_only(self) && family_only(taken) {
            return None;
        }
        if self.ip.is_unspecified() || taken.ip.is_unspecified() {
            return Some(libc::EADDRNOTAVAIL);
        }
        (self.ip == taken.ip).then_some(libc::EADDRINUSE)
    }

    /// The wildcards of this port.
    pub(crate) fn wildcards(port_space: u16, port: u16) -> [Self; 3] {
        let v6 = IpAddr::from([0u16; 8]);
        [(IpAddr::from([0u8; 4]), false), (v6, false), (v6, true)].map(|(ip, only_v6)| Self {
            port_space,
            port,
            ip,
            only_v6,
        })
    }

    /// The names under which a listener for `dst` may be found, best first.
    pub(crate) fn candidates(port_space: u16, dst: SocketAddr) -> Vec<Self> {
        let name = |ip, only_v6| Self { port_space, port: dst.port(), ip, only_v6 };
        let v6_any = IpAddr::from([0u16; 8]);
        match dst.ip() {
            ip @ IpAddr::V4(_) => {
                vec![name(ip, false), name(IpAddr::from([0u8; 4]), false), name(v6_any, false)]
            }
            ip @ IpAddr::V6(_) => vec![name(ip, false), name(v6_any, false), name(v6_any, true)],
        }
    }
}

/// Why a listener could not be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DialError {
    /// No listener has this name.
    Refused,
    /// The listener has too many unanswered calls; worth another try.
    Busy,
}

/// The outside world of one process's connection manager.
pub(crate) trait Net {
    /// Takes a name, without listening yet.
    fn bind(&mut self, name: &Name) -> Result<(), Errno>;
    /// Lets others dial a name taken before.
    fn listen(&mut self, name: &Name) -> Result<(), Errno>;
    /// Releases a name.
    fn unbind(&mut self, name: &Name);
    /// A link to the process that listens under `name`.
    fn dial(&mut self, name: &Name) -> Result<LinkId, DialError>;
    /// Sends a packet. A packet that can no longer be sent is dropped; the loss of the link is
    /// reported separately.
    fn send(&mut self, link: LinkId, packet: Vec<u8>);
    /// True for addresses of this machine.
    fn is_local(&self, ip: IpAddr) -> bool;
    /// True if the host of the address answers when the address is resolved.
    fn answers(&self, ip: IpAddr) -> bool {
        self.is_local(ip)
    }
    /// The source address the routing table chooses for `dst`.
    fn route(&self, dst: SocketAddr) -> Result<IpAddr, Errno>;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(ip: &str) -> Name {
        let (ip, only_v6) = ip.strip_suffix('!').map_or((ip, false), |ip| (ip, true));
        Name { port_space: 0x106, port: 7471, ip: ip.parse().expect("address"), only_v6 }
    }

    #[test]
    fn names_survive_a_round_trip() {
        for text in ["127.0.0.1", "0.0.0.0", "::", "::!", "fe80::1"] {
            let name = name(text);
            assert_eq!(Name::parse(&name.to_string()), Some(name));
        }
        assert_eq!(Name::parse("0106/7471"), None);
        assert_eq!(Name::parse("0106/7471/127.0.0.1/more"), None);
    }

    #[test]
    fn same_address_is_in_use_and_a_wildcard_not_available() {
        let conflict = |a: &str, b: &str| name(a).conflict(&name(b));
        assert_eq!(conflict("127.0.0.1", "127.0.0.1"), Some(libc::EADDRINUSE));
        assert_eq!(conflict("127.0.0.1", "127.0.0.2"), None);
        assert_eq!(conflict("0.0.0.0", "127.0.0.2"), Some(libc::EADDRNOTAVAIL));
        assert_eq!(conflict("127.0.0.2", "0.0.0.0"), Some(libc::EADDRNOTAVAIL));
        assert_eq!(conflict("::", "0.0.0.0"), Some(libc::EADDRNOTAVAIL));
        assert_eq!(conflict("::!", "0.0.0.0"), None);
        let other_port = Name { port: 1, ..name("0.0.0.0") };
        assert_eq!(other_port.conflict(&name("0.0.0.0")), None);
    }

    #[test]
    fn a_wildcard_listener_is_found_from_any_address() {
        let found = Name::candidates(0x106, "127.0.0.9:7471".parse().expect("address"));
        assert_eq!(found, [name("127.0.0.9"), name("0.0.0.0"), name("::")]);
        let found = Name::candidates(0x106, "[::1]:7471".parse().expect("address"));
        assert_eq!(found, [name("::1"), name("::"), name("::!")]);
    }
}
