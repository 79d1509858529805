//! Queries that change nothing: addresses, paths, GIDs, and the attributes for QP transitions.
//!
//! # References
//! Kernel drivers/infiniband/core/cm.c (cm_init_qp_init_attr, cm_init_qp_rtr_attr,
//! cm_init_qp_rts_attr), cma.c (cma_ib_init_qp_attr), uverbs_marshall.c; rdma-core libibverbs/sa.h
//! for the path record.

use std::net::IpAddr;

use super::abi::{Errno, PATH_REC_DATA_BYTES, QP_ATTR_BYTES, QUERY_ADDR_BYTES, QUERY_ROUTE_BYTES, Reply};
use super::addr::{Addr, gid_of, sockaddr_ib};
use super::state::{Cm, CtxId, FileId, Id, Peer, QPT_RC, QPT_XRC_RECV, QPT_XRC_SEND};

/// The Q_Key of datagram identifiers in the IP port spaces.
pub(crate) const UDP_QKEY: u32 = 0x0123_4567;
const PKEY: u16 = 0xffff;
const HOP_LIMIT: u8 = 64;
/// Local ACK timeout exponent: packet lifetime 16 and one more.
const ACK_TIMEOUT: u8 = 17;
const PACKET_LIFE_TIME: u8 = 16;
/// Index numbers are not reported: the library then matches by GUID.
const NO_INDEX: u32 = u32::MAX;
/// "exactly" in the selector fields of a path record.
const EXACTLY: u8 = 2;
/// GMP, primary, outbound and inbound reverse.
const PATH_FLAGS: u32 = 1 | 2 | 8 | 32;

/// Bits of ibv_qp_attr_mask.
mod mask {
    pub(super) const STATE: u32 = 1 << 0;
    pub(super) const ACCESS_FLAGS: u32 = 1 << 3;
    pub(super) const PKEY_INDEX: u32 = 1 << 4;
    pub(super) const PORT: u32 = 1 << 5;
    pub(super) const QKEY: u32 = 1 << 6;
    pub(super) const AV: u32 = 1 << 7;
    pub(super) const PATH_MTU: u32 = 1 << 8;
    pub(super) const TIMEOUT: u32 = 1 << 9;
    pub(super) const RETRY_CNT: u32 = 1 << 10;
    pub(super) const RNR_RETRY: u32 = 1 << 11;
    pub(super) const RQ_PSN: u32 = 1 << 12;
    pub(super) const MAX_QP_RD_ATOMIC: u32 = 1 << 13;
    pub(super) const MIN_RNR_TIMER: u32 = 1 << 15;
    pub(super) const SQ_PSN: u32 = 1 << 16;
    pub(super) const MAX_DEST_RD_ATOMIC: u32 = 1 << 17;
    pub(super) const DEST_QPN: u32 = 1 << 20;
}

/// Queue pair states a program may ask for.
mod qp_state {
    pub(super) const INIT: u32 = 1;
    pub(super) const RTR: u32 = 2;
    pub(super) const RTS: u32 = 3;
    pub(super) const ERR: u32 = 6;
}

/// IB_ACCESS_*.
const REMOTE_WRITE: u32 = 2;
const REMOTE_READ: u32 = 4;
const REMOTE_ATOMIC: u32 = 8;

fn ip_of(addr: Option<Addr>) -> Option<IpAddr> {
    addr.and_then(|addr| addr.ip()).map(|ip| ip.ip())
}

fn gid(addr: Option<Addr>) -> [u8; 16] {
    ip_of(addr).map(gid_of).unwrap_or_default()
}

fn service_id(id: &Id, addr: Option<Addr>) -> u64 {
    u64::from(id.port_space) << 16 | u64::from(addr.map_or(0, |addr| addr.port()))
}

impl Cm {
    /// ib_uverbs_ah_attr of the way to the peer.
    pub(crate) fn ah_attr(&self, id: &Id) -> [u8; 32] {
        let mut ah = [0; 32];
        ah[0..16].copy_from_slice(&gid(id.dst));
        ah[20] = (self.device.gid_index)(&gid(id.src));
        ah[21] = HOP_LIMIT;
        ah[22] = id.tos;
        ah[26] = id.tos >> 5;
        ah[28] = self.device.rate;
        ah[29] = 1;
        ah[30] = self.device.port;
        ah
    }

    /// QUERY(ADDR).
    pub(crate) fn query_addr(&mut self, file: FileId, ctx: CtxId, room: usize) -> Result<Vec<u8>, Errno> {
        let device = self.device;
        let id = self.id(file, ctx)?;
        let src = id.src.map(|a| a.encode()).unwrap_or_default();
        let dst = id.dst.map(|a| a.encode()).unwrap_or_default();
        let size = |bytes: &[u8]| u16::try_from(bytes.len()).unwrap_or(0);
        let mut reply = Reply::new(QUERY_ADDR_BYTES)
            .u16(12, size(&src))
            .u16(14, size(&dst))
            .put(16, &src)
            .put(144, &dst)
            .u32(272, NO_INDEX);
        if id.has_device() {
            reply =
                reply.put(0, &device.node_guid.to_be_bytes()).u8(8, device.port).put(10, &PKEY.to_be_bytes());
        }
        Ok(reply.cut(room))
    }

    /// QUERY(GID).
    pub(crate) fn query_gid(&mut self, file: FileId, ctx: CtxId, room: usize) -> Result<Vec<u8>, Errno> {
        let device = self.device;
        let id = self.id(file, ctx)?;
        let as_ib = |addr: Option<Addr>| match addr {
            Some(Addr::Ib(raw)) => raw,
            other => sockaddr_ib(gid(other), PKEY, service_id(id, other)),
        };
        let mut reply = Reply::new(QUERY_ADDR_BYTES)
            .u16(12, 48)
            .u16(14, 48)
            .put(16, &as_ib(id.src))
            .put(144, &as_ib(id.dst))
            .u32(272, NO_INDEX);
        if id.has_device() {
            reply =
                reply.put(0, &device.node_guid.to_be_bytes()).u8(8, device.port).put(10, &PKEY.to_be_bytes());
        }
        Ok(reply.cut(room))
    }

    /// QUERY(PATH).
    pub(crate) fn query_path(&mut self, file: FileId, ctx: CtxId, room: usize) -> Result<Vec<u8>, Errno> {
        let device = self.device;
        let id = self.id(file, ctx)?;
        let count = u32::from(id.routed);
        if count == 0 || room <= 8 + PATH_REC_DATA_BYTES {
            return Ok(Reply::new(8).u32(0, count).cut(room));
        }
        let selected = |value: u8| EXACTLY << 6 | value;
        Ok(Reply::new(8 + PATH_REC_DATA_BYTES)
            .u32(0, count)
            .u32(8, PATH_FLAGS)
            .put(16, &service_id(id, id.dst).to_be_bytes())
            .put(24, &gid(id.dst))
            .put(40, &gid(id.src))
            .put(60, &u32::from(HOP_LIMIT).to_be_bytes())
            .u8(64, id.tos)
            .u8(65, 0x81)
            .put(66, &PKEY.to_be_bytes())
            .put(68, &u16::from(id.tos >> 5).to_be_bytes())
            .u8(70, selected(device.mtu))
            .u8(71, selected(device.rate))
            .u8(72, selected(PACKET_LIFE_TIME))
            .cut(room))
    }

    /// QUERY_ROUTE.
    pub(crate) fn query_route(&mut self, file: FileId, ctx: CtxId, room: usize) -> Result<Vec<u8>, Errno> {
        let device = self.device;
        let id = self.id(file, ctx)?;
        // Room for a sockaddr_in6 only: the larger family is not reported here.
        let fits =
            |addr: Option<Addr>| addr.filter(|a| a.ip().is_some()).map(|a| a.encode()).unwrap_or_default();
        let mut reply =
            Reply::new(QUERY_ROUTE_BYTES).put(136, &fits(id.src)).put(164, &fits(id.dst)).u32(200, NO_INDEX);
        if id.has_device() {
            reply = reply
                .put(0, &device.node_guid.to_be_bytes())
                .put(8, &gid(id.dst))
                .put(24, &gid(id.src))
                .put(60, &PKEY.to_be_bytes())
                .u32(192, u32::from(id.routed))
                .u8(196, device.port);
        }
        if id.has_device() && id.routed {
            reply = reply
                .u32(52, 1)
                .u32(56, u32::from(device.mtu))
                .u8(62, HOP_LIMIT)
                .u8(63, id.tos)
                .u8(64, 1)
                .u8(65, id.tos >> 5)
                .u8(66, EXACTLY)
                .u8(67, EXACTLY)
                .u8(68, device.rate)
                .u8(69, EXACTLY)
                .u8(70, PACKET_LIFE_TIME);
        }
        Ok(reply.cut(room))
    }

    /// INIT_QP_ATTR: ib_uverbs_qp_attr for the next step of the identifier's queue pair.
    pub(crate) fn init_qp_attr(&mut self, file: FileId, ctx: CtxId, state: u32) -> Result<Vec<u8>, Errno> {
        self.id(file, ctx)?;
        let id = self.ids.get(&ctx).ok_or(libc::ENOENT)?;
        if state > qp_state::ERR || !id.has_device() {
            return Err(libc::EINVAL);
        }
        let reply = Reply::new(QP_ATTR_BYTES).u32(4, state);
        let reply = if id.peer == Peer::None || id.is_ud() {
            self.first_attr(id, state, reply)
        } else {
            if matches!(id.peer, Peer::Idle | Peer::DreqSent | Peer::DreqRcvd | Peer::Timewait) {
                return Err(libc::EINVAL);
            }
            match state {
                qp_state::INIT => self.init_attr(id, reply),
                qp_state::RTR => self.rtr_attr(id, reply)?,
                qp_state::RTS => self.rts_attr(id, reply)?,
                _ => return Err(libc::EINVAL),
            }
        };
        Ok(reply.cut(QP_ATTR_BYTES))
    }

    /// The attributes before a peer is known: enough for INIT.
    fn first_attr(&self, id: &Id, state: u32, reply: Reply) -> Reply {
        let common = mask::STATE | mask::PKEY_INDEX | mask::PORT;
        let reply = reply.u8(133, self.device.port);
        let reply = if state == qp_state::RTR { reply.u32(24, id.rq_psn) } else { reply };
        if id.is_ud() {
            reply.u32(0, common | mask::QKEY).u32(20, if id.qkey == 0 { UDP_QKEY } else { id.qkey })
        } else {
            reply.u32(0, common | mask::ACCESS_FLAGS)
        }
    }

    fn init_attr(&self, id: &Id, reply: Reply) -> Reply {
        let access = REMOTE_WRITE | if id.responder_resources > 0 { REMOTE_READ | REMOTE_ATOMIC } else { 0 };
        reply
            .u32(0, mask::STATE | mask::ACCESS_FLAGS | mask::PKEY_INDEX | mask::PORT)
            .u32(36, access)
            .u8(133, self.device.port)
    }

    fn rtr_attr(&self, id: &Id, reply: Reply) -> Result<Reply, Errno> {
        if matches!(id.peer, Peer::ReqSent { .. }) {
            return Err(libc::EINVAL);
        }
        let bits = mask::STATE | mask::AV | mask::PATH_MTU | mask::DEST_QPN | mask::RQ_PSN;
        let reply = reply
            .u32(12, u32::from(self.device.mtu))
            .u32(24, id.rq_psn)
            .u32(32, id.remote_qpn)
            .put(40, &self.ah_attr(id))
            .u8(133, self.device.port);
        // Those whose responder half answers requests.
        if !matches!(id.qp_type, QPT_RC | QPT_XRC_RECV) {
            return Ok(reply.u32(0, bits));
        }
        Ok(reply
            .u32(0, bits | mask::MAX_DEST_RD_ATOMIC | mask::MIN_RNR_TIMER)
            .u8(131, id.responder_resources))
    }

    fn rts_attr(&self, id: &Id, reply: Reply) -> Result<Reply, Errno> {
        if matches!(id.peer, Peer::ReqSent { .. }) {
            return Err(libc::EINVAL);
        }
        let bits = mask::STATE | mask::SQ_PSN;
        let reply = reply.u32(28, id.sq_psn);
        if !matches!(id.qp_type, QPT_RC | QPT_XRC_SEND | QPT_XRC_RECV) {
            return Ok(reply.u32(0, bits));
        }
        let bits = bits | mask::TIMEOUT;
        let reply = reply.u8(134, id.ack_timeout.unwrap_or(ACK_TIMEOUT));
        // An XRC target sends no requests of its own.
        if id.qp_type == QPT_XRC_RECV {
            return Ok(reply.u32(0, bits));
        }
        Ok(reply
            .u32(0, bits | mask::RETRY_CNT | mask::RNR_RETRY | mask::MAX_QP_RD_ATOMIC)
            .u8(130, id.initiator_depth)
            .u8(135, id.retry_count)
            .u8(136, id.rnr_retry_count))
    }
}
