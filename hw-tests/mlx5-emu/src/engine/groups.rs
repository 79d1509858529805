//! Multicast groups: GIDs to which datagram QPs of any process of the fabric are attached.
//!
//! A process with a member keeps a socket bound to an abstract name that holds the group and the
//! process's slot. A sender tries these names of all slots. (/proc/net/unix would list them, but a
//! list that changes while it is read may lack an entry.) It sends one copy to each other process
//! with members, and delivers to the members in its own process itself.

use std::collections::HashMap;
use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use super::requester::{Outcome, done};
use super::responder::{Payload, Reply, Request};
use crate::config;
use crate::device::Device;
use crate::net::SLOTS;
use crate::objects::{Blocked, QpType, Seg};
use crate::sys;

/// The destination of every multicast datagram.
pub(super) const GROUP_QPN: u32 = 0xff_ffff;
/// Groups that a QP can be attached to, QPs of a group in one process, and groups.
pub(crate) const MAX_GROUPS: u32 = 1 << 12;

type Gid = [u8; 16];

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
fn processes(gid: &Gid) -> Vec<u32> {
    let Ok(probe) = UnixDatagram::unbound() else { return Vec::new() };
    let is_bound = |slot: u32| address(gid, slot).is_ok_and(|address| probe.connect_addr(&address).is_ok());
    (1..=SLOTS).filter(|&slot| is_bound(slot)).collect()
}

fn is_multicast(gid: &Gid) -> bool {
    let address = std::net::Ipv6Addr::from(*gid);
    address.to_ipv4_mapped().map_or(address.is_multicast(), |v4| v4.is_multicast())
}

impl Groups {
    /// The number of groups that a QP is attached to.
    pub(crate) fn of(&self, qp: usize) -> usize {
        self.0.values().filter(|group| group.members.contains(&qp)).count()
    }

    fn remove(&mut self, gid: &Gid, qp: usize) -> bool {
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

impl Device {
    /// Attaches a QP to a group. Attaching it again changes nothing.
    pub(crate) fn join_group(&mut self, index: usize, gid: Gid) -> io::Result<()> {
        if self.qps[index].kind != QpType::Ud || !is_multicast(&gid) {
            return Err(sys::errno(libc::EINVAL));
        }
        let slot = self.net.slot();
        let group = self.groups.0.entry(gid).or_insert_with(|| {
            let socket = address(&gid, slot).and_then(|address| UnixDatagram::bind_addr(&address));
            Group { members: Vec::new(), _name: socket.ok() }
        });
        if !group.members.contains(&index) {
            group.members.push(index);
        }
        Ok(())
    }

    /// Detaches a QP from a group; EINVAL if it is not attached.
    pub(crate) fn leave_group(&mut self, index: usize, gid: &Gid) -> io::Result<()> {
        if self.groups.remove(gid, index) { Ok(()) } else { Err(sys::errno(libc::EINVAL)) }
    }

    /// Sends a datagram to a group.
    #[cold]
    pub(super) fn send_to_group(&mut self, index: usize, request: &Request, list: &[Seg]) -> Outcome {
        let Some(datagram) = &request.datagram else { return done(request.len) };
        let own = self.net.slot();
        let others: Vec<u32> =
            processes(&datagram.dest_gid).into_iter().filter(|&slot| slot != own).collect();
        if others.iter().any(|&slot| self.net.congested(slot, request.len)) {
            self.qps[index].blocked = Blocked::Peer;
            return Outcome::Stalled;
        }
        for slot in others {
            self.net.send_request(slot, request, list);
        }
        self.deliver_to_group(request, Payload::Segments(list));
        done(request.len)
    }

    /// Delivers a datagram to the members of its group in this process: also to its sender, unless
    /// that was created with IBV_QP_CREATE_BLOCK_SELF_MCAST_LB.
    #[cold]
    pub(super) fn deliver_to_group(&mut self, request: &Request, payload: Payload<'_>) -> Reply {
        if request.dest_qpn == GROUP_QPN
            && let Some(datagram) = &request.datagram
            && let Some(group) = self.groups.0.get(&datagram.dest_gid)
        {
            for index in group.members.clone() {
                let Some(qp) = self.qps.get(index) else { continue };
                let dest_qpn = qp.qpn;
                if dest_qpn != request.source_qpn || !qp.block_own_multicast {
                    self.respond(&Request { dest_qpn, ..*request }, payload);
                }
            }
        }
        Reply::Silence
    }
}
