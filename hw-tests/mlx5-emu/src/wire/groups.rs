//! Multicast groups: GIDs to which datagram QPs of any process of the fabric are attached.
//!
//! A process with a member keeps a socket bound to an abstract name that holds the group and the
//! process's slot. A sender tries these names of all slots. (/proc/net/unix would list them, but a
//! list that changes while it is read may lack an entry.)

use std::collections::HashMap;
use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use super::net::SLOTS;
use crate::host::config;

/// The destination of every multicast datagram.
pub(crate) const GROUP_QPN: u32 = 0xff_ffff;
/// Groups that a QP can be attached to, QPs of a group in one process, and groups.
pub(crate) const MAX_GROUPS: u32 = 1 << 12;

pub(crate) type Gid = [u8; 16];

/// The members of one group in this process.
#[derive(Debug)]
struct Group {
    members: Vec<usize>,
    /// Tells senders in other processes that there are members.
    _name: Option<UnixDatagram>,
}

/// The groups that have members in this process.
#[derive(Debug, Default)]
pub(crate) struct Groups(HashMap<Gid, Group>);

/// The address that shows that a process has members of a group.
fn address(gid: &Gid, slot: u32) -> io::Result<SocketAddr> {
    let gid = u128::from_be_bytes(*gid);
    SocketAddr::from_abstract_name(format!("mlx5-emu/{}/group/{gid:032x}/{slot}", config::session()))
}

/// The slots of the processes with members of a group.
pub(crate) fn processes(gid: &Gid) -> Vec<u32> {
    let Ok(probe) = UnixDatagram::unbound() else { return Vec::new() };
    let is_bound = |slot: u32| address(gid, slot).is_ok_and(|address| probe.connect_addr(&address).is_ok());
    (1..=SLOTS).filter(|&slot| is_bound(slot)).collect()
}

pub(crate) fn is_multicast(gid: &Gid) -> bool {
    let address = std::net::Ipv6Addr::from(*gid);
    address.to_ipv4_mapped().map_or(address.is_multicast(), |v4| v4.is_multicast())
}

impl Groups {
    /// The number of groups that a QP is attached to.
    pub(crate) fn of(&self, qp: usize) -> usize {
        self.0.values().filter(|group| group.members.contains(&qp)).count()
    }

    /// Attaches a QP to a group. Attaching it again changes nothing. `slot` is this process's.
    pub(crate) fn add(&mut self, gid: Gid, qp: usize, slot: u32) {
        let group = self.0.entry(gid).or_insert_with(|| {
            let socket = address(&gid, slot).and_then(|address| UnixDatagram::bind_addr(&address));
            Group { members: Vec::new(), _name: socket.ok() }
        });
        if !group.members.contains(&qp) {
            group.members.push(qp);
        }
    }

    /// The QPs of this process that are attached to a group.
    pub(crate) fn members(&self, gid: &Gid) -> Vec<usize> {
        self.0.get(gid).map_or(Vec::new(), |group| group.members.clone())
    }

    /// Detaches a QP from a group; false if it is not attached.
    pub(crate) fn remove(&mut self, gid: &Gid, qp: usize) -> bool {
        let Some(group) = self.0.get_mut(gid) else { return false };
        let before = group.members.len();
        group.members.retain(|&member| member != qp);
        let removed = group.members.len() < before;
        if group.members.is_empty() {
            self.0.remove(gid);
        }
        removed
    }

    /// Detaches a QP from all its groups.
    pub(crate) fn remove_all(&mut self, qp: usize) {
        self.0.retain(|_, group| {
            group.members.retain(|&member| member != qp);
            !group.members.is_empty()
        });
    }
}
