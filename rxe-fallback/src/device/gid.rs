//! The GIDs of ports, and their addresses.
#![expect(unsafe_code, reason = "calls into libibverbs")]

use std::fmt;
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv6Addr};

use doorbell_sys as sys;

use super::{Context, LinkLayer};
use crate::error::{Error, Result};

/// A global identifier, 16 bytes in network order.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// The IP address: IPv4 if the GID is IPv4-mapped, otherwise IPv6.
    #[must_use]
    pub fn ip(self) -> IpAddr {
        Ipv6Addr::from(self.0).to_canonical()
    }

    /// The GID of an address: IPv6 as it is, IPv4 mapped.
    #[must_use]
    pub fn from_ip(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(v4) => Gid(v4.to_ipv6_mapped().octets()),
            IpAddr::V6(v6) => Gid(v6.octets()),
        }
    }

    pub(crate) fn to_sys(self) -> sys::ibv_gid {
        sys::ibv_gid { raw: self.0 }
    }

    pub(crate) fn from_sys(gid: &sys::ibv_gid) -> Self {
        // SAFETY: both views of the union are 16 plain bytes.
        Gid(unsafe { gid.raw })
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Ipv6Addr::from(self.0).fmt(f)
    }
}

/// The packet format of a GID.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum GidKind {
    /// InfiniBand.
    Ib,
    /// RoCE v1: Ethernet frames of their own type.
    RoceV1,
    /// RoCE v2: UDP.
    RoceV2,
    /// A value this crate does not know.
    Other(u32),
}

/// One entry of a port's GID table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GidEntry {
    /// The index in the table, for `sgid_index`.
    pub index: u32,
    /// The GID.
    pub gid: Gid,
    /// Its packet format.
    pub kind: GidKind,
    /// The network interface of the GID, if it has one.
    pub netdev: Option<String>,
    /// Its IP address; `None` on InfiniBand, whose GIDs are no IP addresses.
    pub ip: Option<IpAddr>,
}

unsafe extern "C" {
    // What the inline functions ibv_query_gid_table and ibv_query_gid_ex call.
    fn _ibv_query_gid_table(
        context: *mut sys::ibv_context,
        entries: *mut sys::ibv_gid_entry,
        max_entries: usize,
        flags: u32,
        entry_size: usize,
    ) -> isize;
    fn _ibv_query_gid_ex(
        context: *mut sys::ibv_context,
        port: u32,
        index: u32,
        entry: *mut sys::ibv_gid_entry,
        flags: u32,
        entry_size: usize,
    ) -> libc::c_int;
}

impl Context {
    /// The GIDs of port `port`.
    ///
    /// # Errors
    /// EINVAL when the device has no such port.
    ///
    /// # References
    /// ibv_query_gid_table(3)
    pub fn gids(&self, port: u8) -> Result<Vec<GidEntry>> {
        table(self, port)
    }

    /// The index of the GID with this address on `port`; RoCE v2 is preferred to RoCE v1.
    ///
    /// # Errors
    /// ENOMEM; a table that cannot be read has no GID.
    pub fn find_gid(&self, port: u8, address: IpAddr) -> Result<Option<u8>> {
        Ok(self.readable_gids(port)?.and_then(|entries| find(&entries, address)))
    }

    pub(super) fn readable_gids(&self, port: u8) -> Result<Option<Vec<GidEntry>>> {
        match self.gids(port) {
            Err(error) if error.errno() == libc::ENOMEM => Err(error),
            entries => Ok(entries.ok()),
        }
    }

    /// The address of `port`: that of its first IPv4 RoCE v2 GID, otherwise of its first routable
    /// IPv6 GID, otherwise of any GID.
    ///
    /// # Errors
    /// ENOMEM; a table that cannot be read has no GID.
    pub fn address(&self, port: u8) -> Result<Option<IpAddr>> {
        Ok(self.readable_gids(port)?.and_then(|entries| first_address(&entries, None)))
    }

    /// The network interface of `port`, if it has one.
    #[must_use]
    pub fn netdev(&self, port: u8) -> Option<String> {
        self.gids(port).ok()?.into_iter().find_map(|entry| entry.netdev)
    }
}

fn table(context: &Context, port: u8) -> Result<Vec<GidEntry>> {
    let attr = context.port(port)?;
    let ethernet = attr.link_layer == LinkLayer::Ethernet;
    let entries = match whole_table(context, port, attr.gid_tbl_len) {
        Ok(entries) => entries,
        Err(error) if error.errno() == libc::ENOMEM => return Err(error),
        // On a kernel without this call, libibverbs reads sysfs and stops at the first entry that
        // cannot be read.
        Err(_) => one_by_one(context, port, attr.gid_tbl_len)?,
    };
    let of_port = || entries.iter().filter(|e| e.port_num == u32::from(port));
    let mut found: Vec<GidEntry> = list(of_port().count())?;
    let mut before = 0;
    for raw in of_port() {
        // Most entries have the interface of the entry before them, whose name is then known.
        let same = found.last().filter(|_| raw.ndev_ifindex == before);
        let netdev = same.map_or_else(|| interface(raw.ndev_ifindex), |last| last.netdev.clone());
        found.push(entry(raw, ethernet, netdev));
        before = raw.ndev_ifindex;
    }
    Ok(found)
}

/// An empty list with room for `room` entries.
fn list<T>(room: usize) -> Result<Vec<T>> {
    let mut list = Vec::new();
    list.try_reserve_exact(room).map_err(|_| Error::new("ibv_query_gid_table", libc::ENOMEM))?;
    Ok(list)
}

/// The entries of all ports; `port` has `len`.
fn whole_table(context: &Context, port: u8, len: u32) -> Result<Vec<sys::ibv_gid_entry>> {
    let mut room = len as usize;
    for other in (1..=context.attributes().phys_port_cnt).filter(|&other| other != port) {
        room += context.port(other)?.gid_tbl_len as usize;
    }
    let mut entries = list::<sys::ibv_gid_entry>(room)?;
    // SAFETY: the context is open; there is room for `room` entries of the given size.
    let count = unsafe {
        let size = size_of::<sys::ibv_gid_entry>();
        _ibv_query_gid_table(context.raw(), entries.as_mut_ptr(), room, 0, size)
    };
    if count < 0 {
        return Err(Error::new("ibv_query_gid_table", i32::try_from(-count).unwrap_or(libc::EIO)));
    }
    // SAFETY: the call has written `count` entries, at most `room`.
    unsafe { entries.set_len(count.unsigned_abs().min(room)) };
    Ok(entries)
}

fn one_by_one(context: &Context, port: u8, len: u32) -> Result<Vec<sys::ibv_gid_entry>> {
    let one = |index| {
        let mut entry = MaybeUninit::<sys::ibv_gid_entry>::zeroed();
        // SAFETY: the context is open and the entry of the given size; zeroes are valid for it
        // (plain integers).
        let entry = unsafe {
            let size = size_of::<sys::ibv_gid_entry>();
            let returned =
                _ibv_query_gid_ex(context.raw(), u32::from(port), index, entry.as_mut_ptr(), 0, size);
            (returned == 0).then(|| entry.assume_init())
        };
        entry.filter(|entry| Gid::from_sys(&entry.gid) != Gid::default())
    };
    let mut entries = list(len as usize)?;
    entries.extend((0..len).filter_map(one));
    Ok(entries)
}

/// The name of the network interface with this index; 0 is none.
fn interface(index: u32) -> Option<String> {
    let name = (index != 0).then(|| nix::net::if_::if_indextoname(index).ok()).flatten()?;
    Some(name.to_string_lossy().into_owned())
}

fn entry(raw: &sys::ibv_gid_entry, ethernet: bool, netdev: Option<String>) -> GidEntry {
    let gid = Gid::from_sys(&raw.gid);
    GidEntry {
        index: raw.gid_index,
        gid,
        kind: match raw.gid_type {
            0 => GidKind::Ib,
            1 => GidKind::RoceV1,
            2 => GidKind::RoceV2,
            other => GidKind::Other(other),
        },
        netdev,
        ip: ethernet.then(|| gid.ip()),
    }
}

fn find(entries: &[GidEntry], address: IpAddr) -> Option<u8> {
    let matching = || entries.iter().filter(|e| e.ip == Some(address));
    matching()
        .find(|e| e.kind == GidKind::RoceV2)
        .or_else(|| matching().next())
        .and_then(|e| e.index.try_into().ok())
}

/// The preferred address: IPv4 RoCE v2, then IPv6 that is not link-local, then any; of `netdev`, if
/// given.
pub(super) fn first_address(entries: &[GidEntry], netdev: Option<&str>) -> Option<IpAddr> {
    let candidates = || {
        entries
            .iter()
            .filter(|e| netdev.is_none() || e.netdev.as_deref() == netdev)
            .filter_map(|e| Some((e, e.ip?)))
    };
    let link_local = |ip: &IpAddr| matches!(ip, IpAddr::V6(v6) if v6.is_unicast_link_local());
    candidates()
        .find(|(e, ip)| ip.is_ipv4() && e.kind == GidKind::RoceV2)
        .or_else(|| candidates().find(|(_, ip)| !link_local(ip)))
        .or_else(|| candidates().next())
        .map(|(_, ip)| ip)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(index: u32, ip: &str, kind: GidKind, netdev: &str) -> GidEntry {
        let ip: IpAddr = ip.parse().unwrap();
        GidEntry { index, gid: Gid::from_ip(ip), kind, netdev: Some(netdev.to_owned()), ip: Some(ip) }
    }

    #[test]
    fn gid_and_address_go_both_ways() {
        for text in ["10.9.0.1", "fe80::1", "2001:db8::7"] {
            let ip: IpAddr = text.parse().unwrap();
            assert_eq!(Gid::from_ip(ip).ip(), ip);
        }
        assert_eq!(Gid::from_ip("10.9.0.1".parse().unwrap()).to_string(), "::ffff:10.9.0.1");
    }

    #[test]
    fn roce_v2_is_found_before_v1() {
        let table =
            [entry(2, "10.9.0.1", GidKind::RoceV1, "vA"), entry(3, "10.9.0.1", GidKind::RoceV2, "vA")];
        assert_eq!(find(&table, "10.9.0.1".parse().unwrap()), Some(3));
        assert_eq!(find(&table[..1], "10.9.0.1".parse().unwrap()), Some(2));
        assert_eq!(find(&table, "10.9.0.2".parse().unwrap()), None);
    }

    #[test]
    fn ipv4_is_the_address_although_link_local_comes_first() {
        let table = [entry(0, "fe80::1", GidKind::RoceV2, "vA"), entry(1, "10.9.0.1", GidKind::RoceV2, "vA")];
        assert_eq!(first_address(&table, None), Some("10.9.0.1".parse().unwrap()));
        assert_eq!(first_address(&table[..1], None), Some("fe80::1".parse().unwrap()));
    }

    #[test]
    fn address_of_an_interface_is_not_that_of_another() {
        let table =
            [entry(0, "10.9.0.1", GidKind::RoceV2, "vA"), entry(1, "10.8.0.1", GidKind::RoceV2, "vA.7")];
        assert_eq!(first_address(&table, Some("vA.7")), Some("10.8.0.1".parse().unwrap()));
        assert_eq!(first_address(&table, Some("eth9")), None);
    }
}
