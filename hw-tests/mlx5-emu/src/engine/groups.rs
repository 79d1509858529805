//! Datagrams to multicast groups ([`crate::wire::groups`]). A sender sends one copy to each other
//! process with members, and delivers to the members in its own process itself.

use std::io;

use super::card::Card;
use super::requester::{Outcome, done};
use crate::host::sys;
use crate::objects::{Blocked, QpType, Seg};
use crate::wire::groups::{GROUP_QPN, Gid, is_multicast, processes};
use crate::wire::{Payload, Reply, Request};

impl Card {
    /// Attaches a QP to a group. Attaching it again changes nothing.
    pub(crate) fn join_group(&mut self, index: usize, gid: Gid) -> io::Result<()> {
        if self.qps[index].kind != QpType::Ud || !is_multicast(&gid) {
            return Err(sys::errno(libc::EINVAL));
        }
        let slot = self.net.slot();
        self.groups.add(gid, index, slot);
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
        {
            for index in self.groups.members(&datagram.dest_gid) {
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
