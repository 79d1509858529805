//! Multicast groups that identifiers join. A RoCE port needs no subnet manager for it: the group's
//! GID follows from its address. librdmacm attaches the identifier's QP to that GID after the
//! event.
//!
//! # References
//! Kernel drivers/infiniband/core/cma.c (rdma_join_multicast, cma_iboe_join_multicast), ucma.c
//! (ucma_join_multicast, ucma_leave_multicast).

use std::net::IpAddr;

use super::abi::{Ece, Errno, EventParam, UdParam};
use super::addr::{Addr, gid_of};
use super::query::UDP_QKEY;
use super::state::{Cm, CtxId, Event, EventKind, FileId, Group, State};

/// The destination QP of every multicast datagram.
const GROUP_QPN: u32 = 0xff_ffff;

fn ip_of(addr: Addr) -> Option<IpAddr> {
    addr.ip().map(|addr| addr.ip())
}

impl Cm {
    /// JOIN_IP_MCAST and JOIN_MCAST: the number of the joined group.
    pub(crate) fn join(&mut self, file: FileId, ctx: CtxId, uid: u64, addr: Addr) -> Result<u32, Errno> {
        let id = self.id(file, ctx)?;
        let is_bound = matches!(id.state, State::AddrBound | State::AddrResolved) && id.has_device();
        let (true, true, Some(ip)) = (is_bound, id.is_ud(), ip_of(addr)) else { return Err(libc::EINVAL) };
        if ip.is_unspecified() {
            return Err(libc::EINVAL);
        }
        let mut ah = self.ah_attr(&self.ids[&ctx]);
        ah[..16].copy_from_slice(&gid_of(ip));
        let param = UdParam { qp_num: GROUP_QPN, qkey: UDP_QKEY, ah, private: Vec::new() };
        let number = (0..).find(|number| !self.groups.contains_key(number)).ok_or(libc::ENOMEM)?;
        self.groups.insert(number, Group { owner: ctx, events_reported: 0 });
        self.files.entry(file).or_default().push_back(Event {
            owner: ctx,
            id: ctx,
            group: Some(number),
            uid,
            kind: EventKind::MulticastJoin,
            status: 0,
            param: EventParam::Ud(param),
            ece: Ece::default(),
        });
        Ok(number)
    }

    /// LEAVE_MCAST: the number of events about the group that the program has taken.
    pub(crate) fn leave(&mut self, file: FileId, number: u32) -> Result<u32, Errno> {
        let owner = self.groups.get(&number).ok_or(libc::ENOENT)?.owner;
        self.id(file, owner)?;
        if let Some(events) = self.files.get_mut(&file) {
            events.retain(|event| event.group != Some(number));
        }
        Ok(self.groups.remove(&number).map_or(0, |group| group.events_reported))
    }
}
