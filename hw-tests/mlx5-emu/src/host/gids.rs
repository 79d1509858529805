//! The GID table of the port: RoCE v2 over the loopback addresses, then the host's own.

use std::ffi::CStr;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::OnceLock;

/// Node GUID of the software device, the same in every process of a machine.
pub const NODE_GUID: u64 = 0x026d_6cff_fe78_3500;
/// Entries of the GID table; unused ones are zero.
pub const GID_TABLE_LEN: usize = 32;
/// Hardware address behind every GID.
pub const MAC: [u8; 6] = [0x02, 0x6d, 0x6c, 0x78, 0x35, 0x00];

/// One valid entry of the GID table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gid {
    /// The address; an IPv4 address is carried IPv4-mapped (`::ffff:a.b.c.d`).
    pub address: IpAddr,
    /// Network device the address belongs to.
    pub ndev: String,
    /// The index of the network device; 0 if it has none.
    pub ifindex: u32,
}

impl Gid {
    /// The 16 bytes of the GID.
    pub fn bytes(&self) -> [u8; 16] {
        match self.address {
            IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
            IpAddr::V6(v6) => v6.octets(),
        }
    }
}

/// The valid entries, by index: 127.0.0.1, ::1, then the other addresses of the host. The table is
/// read once per process.
pub fn table() -> &'static [Gid] {
    static TABLE: OnceLock<Vec<Gid>> = OnceLock::new();
    TABLE.get_or_init(|| {
        let mut gids: Vec<Gid> = Vec::new();
        let mut add = |ndev: &CStr, address| {
            if gids.len() < GID_TABLE_LEN && !gids.iter().any(|known| known.address == address) {
                let ifindex = crate::host::ifaddrs::index_of(ndev);
                gids.push(Gid { address, ndev: ndev.to_string_lossy().into_owned(), ifindex });
            }
        };
        add(c"lo", IpAddr::V4(Ipv4Addr::LOCALHOST));
        add(c"lo", IpAddr::V6(Ipv6Addr::LOCALHOST));
        crate::host::ifaddrs::host_addresses(add);
        gids
    })
}

/// The 16 bytes at `index` of the table; zero when unused, `None` outside the table.
pub fn bytes_at(index: usize) -> Option<[u8; 16]> {
    (index < GID_TABLE_LEN).then(|| table().get(index).map_or([0; 16], Gid::bytes))
}

/// Index of the entry for `address`.
pub fn index_of(address: IpAddr) -> Option<usize> {
    let address = match address {
        IpAddr::V6(v6) => v6.to_ipv4_mapped().map_or(IpAddr::V6(v6), IpAddr::V4),
        v4 => v4,
    };
    table().iter().position(|gid| gid.address == address)
}
