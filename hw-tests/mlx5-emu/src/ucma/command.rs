//! The commands of the program: one function per command, with the kernel's states and errors.
//!
//! # References
//! Kernel drivers/infiniband/core/cma.c (rdma_bind_addr, rdma_resolve_addr, rdma_connect,
//! rdma_accept, ...), ucma.c for the arguments.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::abi::{ConnParam, Ece, Errno, EventParam};
use super::addr::Addr;
use super::net::{NO_LINK, Name};
use super::peer::{is_silent, private_bytes};
use super::state::{
    Cm, CtxId, Cx, EventKind, FileId, Listener, Peer, QPT_RC, QPT_UD, QPT_XRC_SEND, State, port_space,
    reject, sidr,
};
use super::wire::{Message, Response};

/// Ports for programs that do not choose a port: above the ports that programs use by default.
const EPHEMERAL: std::ops::RangeInclusive<u16> = 50_000..=60_999;
/// Longest backlog (the kernel's max_backlog).
const MAX_BACKLOG: i32 = 1024;
/// IB_EVENT_COMM_EST.
const COMM_EST: u32 = 4;

/// SET_OPTION levels and names.
mod option {
    pub(super) const LEVEL_ID: u32 = 0;
    pub(super) const TOS: u32 = 0;
    pub(super) const REUSEADDR: u32 = 1;
    pub(super) const AFONLY: u32 = 2;
    pub(super) const ACK_TIMEOUT: u32 = 3;
    pub(super) const LEVEL_IB: u32 = 1;
    pub(super) const IB_PATH: u32 = 1;
}

impl Cm {
    /// CREATE_ID: the new identifier's number.
    pub(crate) fn create_id(
        &mut self,
        file: FileId,
        uid: u64,
        space: u16,
        qp_type: u8,
    ) -> Result<CtxId, Errno> {
        let qp_type = match space {
            port_space::TCP => QPT_RC,
            port_space::UDP | port_space::IPOIB => QPT_UD,
            port_space::IB => qp_type,
            _ => return Err(libc::EINVAL),
        };
        self.insert(file, uid, space, qp_type)
    }

    /// DESTROY_ID: how many events were taken for it.
    pub(crate) fn destroy_id(&mut self, cx: &mut Cx<'_>, file: FileId, ctx: CtxId) -> Result<u32, Errno> {
        self.id(file, ctx)?;
        let reported = self.destroy(cx, ctx);
        self.pump(cx);
        Ok(reported)
    }

    /// BIND_IP and BIND.
    pub(crate) fn bind(
        &mut self,
        cx: &mut Cx<'_>,
        file: FileId,
        ctx: CtxId,
        addr: Addr,
    ) -> Result<(), Errno> {
        self.id(file, ctx)?;
        self.bind_addr(cx, ctx, addr, true)
    }

    /// Binds; `reserve` takes the port from everybody else, which an active side doesn't need.
    fn bind_addr(&mut self, cx: &mut Cx<'_>, ctx: CtxId, addr: Addr, reserve: bool) -> Result<(), Errno> {
        let id = self.ids.get_mut(&ctx).ok_or(libc::ENOENT)?;
        if id.state != State::Idle {
            return Err(libc::EINVAL);
        }
        let Some(ip) = addr.ip() else {
            // An InfiniBand wildcard binds to no device yet. This port has no GID of that family to
            // bind to.
            if id.port_space != port_space::IB || !addr.is_any() {
                return Err(libc::ENODEV);
            }
            id.src = Some(addr);
            id.state = State::AddrBound;
            return Ok(());
        };
        if !addr.is_any() && !cx.net.is_local(ip.ip()) {
            return Err(libc::EADDRNOTAVAIL);
        }
        let (space, reuse, only_v6) = (id.port_space, id.reuse_addr, id.af_only && ip.is_ipv6());
        let mut name =
            Name { port_space: space, port: ip.port(), ip: ip.ip(), only_v6: only_v6 && addr.is_any() };
        let mut held = false;
        if name.port != 0 {
            if reserve && !reuse {
                cx.net.bind(&name)?;
                held = true;
            }
        } else {
            for _ in 0..64 {
                name.port = self.ephemeral_port();
                if !reserve {
                    break;
                }
                if cx.net.bind(&name).is_ok() {
                    held = true;
                    break;
                }
            }
            if reserve && !held {
                return Err(libc::EADDRNOTAVAIL);
            }
        }
        if let Some(id) = self.ids.get_mut(&ctx) {
            let mut bound = ip;
            bound.set_port(name.port);
            id.src = Some(Addr::Ip(bound));
            id.name = held.then_some(name);
            id.state = State::AddrBound;
        }
        Ok(())
    }

    fn ephemeral_port(&mut self) -> u16 {
        let count = u32::from(EPHEMERAL.end() - EPHEMERAL.start()) + 1;
        EPHEMERAL.start() + u16::try_from(self.random() % count).unwrap_or(0)
    }

    /// LISTEN.
    pub(crate) fn listen(
        &mut self,
        cx: &mut Cx<'_>,
        file: FileId,
        ctx: CtxId,
        backlog: i32,
    ) -> Result<(), Errno> {
        if self.id(file, ctx)?.state == State::Idle {
            self.bind_addr(cx, ctx, Addr::Ip(SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0))), true)?;
        }
        let id = self.id(file, ctx)?;
        let (State::AddrBound, Some(ip)) = (id.state, id.src_ip()) else { return Err(libc::EINVAL) };
        let name = match id.name {
            Some(name) => name,
            // Shared until now (REUSEADDR): only one may listen.
            None => {
                let only_v6 = id.af_only && ip.is_ipv6() && ip.ip().is_unspecified();
                let name = Name { port_space: id.port_space, port: ip.port(), ip: ip.ip(), only_v6 };
                cx.net.bind(&name)?;
                self.id(file, ctx)?.name = Some(name);
                name
            }
        };
        cx.net.listen(&name)?;
        let room = if (1..MAX_BACKLOG).contains(&backlog) { backlog } else { MAX_BACKLOG };
        let id = self.id(file, ctx)?;
        id.state = State::Listen;
        id.listener = Some(Listener { room: usize::try_from(room).unwrap_or(1), ..Listener::default() });
        self.listeners.insert(name, ctx);
        Ok(())
    }

    /// RESOLVE_IP and RESOLVE_ADDR.
    pub(crate) fn resolve_addr(
        &mut self,
        cx: &mut Cx<'_>,
        file: FileId,
        ctx: CtxId,
        src: Option<Addr>,
        dst: Addr,
        timeout_ms: u32,
    ) -> Result<(), Errno> {
        let state = self.id(file, ctx)?.state;
        let Some(mut dst) = dst.ip() else { return Err(libc::ENODEV) };
        if state == State::Idle {
            let any: IpAddr =
                if dst.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
            let src = src.unwrap_or(Addr::Ip(SocketAddr::new(any, 0)));
            self.bind_addr(cx, ctx, src, false)?;
        }
        let id = self.id(file, ctx)?;
        let (State::AddrBound, Some(mut from)) = (id.state, id.src_ip()) else { return Err(libc::EINVAL) };
        if from.is_ipv4() != dst.is_ipv4() {
            return Err(libc::EINVAL);
        }
        if dst.ip().is_unspecified() {
            dst.set_ip(if dst.is_ipv4() { Ipv4Addr::LOCALHOST.into() } else { Ipv6Addr::LOCALHOST.into() });
        }
        if from.ip().is_unspecified() {
            let route = cx.net.route(dst);
            let group_here = dst.is_ipv4() && dst.ip().is_multicast();
            from.set_ip(
                route
                    .or_else(|error| if group_here { Ok(Ipv4Addr::LOCALHOST.into()) } else { Err(error) })?,
            );
        }
        let reachable = dst.ip().is_multicast() || cx.net.answers(dst.ip()) || is_silent(dst);
        id.dst = Some(Addr::Ip(dst));
        if reachable {
            id.src = Some(Addr::Ip(from));
            id.state = State::AddrResolved;
            self.post(ctx, EventKind::AddrResolved, 0, None);
        } else {
            // A neighbour that doesn't answer.
            id.state = State::AddrQuery;
            let at = cx.now + std::time::Duration::from_millis(u64::from(timeout_ms));
            self.arm(ctx, Some(at));
        }
        Ok(())
    }

    /// RESOLVE_ROUTE.
    pub(crate) fn resolve_route(&mut self, file: FileId, ctx: CtxId) -> Result<(), Errno> {
        let id = self.id(file, ctx)?;
        if id.state != State::AddrResolved {
            return Err(libc::EINVAL);
        }
        id.state = State::RouteResolved;
        id.routed = true;
        self.post(ctx, EventKind::RouteResolved, 0, None);
        Ok(())
    }

    /// CONNECT.
    pub(crate) fn connect(
        &mut self,
        cx: &mut Cx<'_>,
        file: FileId,
        ctx: CtxId,
        param: ConnParam,
        ece: Ece,
    ) -> Result<(), Errno> {
        let timing = self.timing;
        let id = self.id(file, ctx)?;
        if id.state != State::RouteResolved
            || param.private.len() > private_bytes::request(id.port_space, id.is_ud())
        {
            return Err(libc::EINVAL);
        }
        id.state = State::Connect;
        id.peer = if id.is_ud() { Peer::SidrReqSent } else { Peer::ReqSent { answered: false } };
        id.qpn = param.qp_num;
        id.srq = param.srq;
        id.responder_resources = param.responder_resources;
        id.initiator_depth = param.initiator_depth;
        id.retry_count = param.retry_count.min(7);
        id.rnr_retry_count = param.rnr_retry_count.min(7);
        id.expires = cx.now + timing.answer;
        id.request = Some((param, ece));
        self.dial(cx, ctx);
        self.pump(cx);
        Ok(())
    }

    /// ACCEPT: with parameters the answer to a request, without the RTU of the side that connected.
    pub(crate) fn accept(
        &mut self,
        cx: &mut Cx<'_>,
        file: FileId,
        ctx: CtxId,
        uid: u64,
        param: Option<ConnParam>,
        ece: Ece,
    ) -> Result<(), Errno> {
        if self.id(file, ctx)?.state != State::Connect {
            return Err(libc::EINVAL);
        }
        let done = match param {
            Some(param) => self.accept_request(cx, ctx, param, ece),
            None => self.accept_response(cx, ctx),
        };
        match done {
            Ok(()) => {
                // `uid` is set only now: until the accept, events of the identifier are dropped. An
                // RTU cannot have arrived yet, because `pump` runs below.
                if uid != 0 {
                    self.id(file, ctx)?.uid = uid;
                }
            }
            // The kernel turns a failed accept into a rejection.
            Err(_) => {
                let _ = self.send_rej(cx, ctx, reject::CONSUMER_DEFINED, Vec::new());
            }
        }
        self.pump(cx);
        done
    }

    fn accept_request(
        &mut self,
        cx: &mut Cx<'_>,
        ctx: CtxId,
        param: ConnParam,
        ece: Ece,
    ) -> Result<(), Errno> {
        let expires = cx.now + self.timing.decision;
        let id = self.ids.get_mut(&ctx).ok_or(libc::ENOENT)?;
        let room = if id.is_ud() { private_bytes::SIDR_REP } else { private_bytes::REP };
        let asked = if id.is_ud() { Peer::SidrReqRcvd } else { Peer::ReqRcvd };
        if id.peer != asked || param.private.len() > room {
            return Err(libc::EINVAL);
        }
        id.qpn = param.qp_num;
        id.srq = param.srq;
        if id.is_ud() {
            id.qkey = super::query::UDP_QKEY;
            id.peer = Peer::Idle;
            let body = Message::SidrRep {
                status: sidr::SUCCESS,
                qpn: param.qp_num,
                qkey: id.qkey,
                private: param.private,
            };
            self.tell(cx, ctx, body);
            if let Some(id) = self.ids.get_mut(&ctx) {
                id.link = NO_LINK;
            }
            return Ok(());
        }
        id.peer = Peer::RepSent;
        id.responder_resources = param.responder_resources;
        id.initiator_depth = param.initiator_depth;
        id.expires = expires;
        let body = Message::Rep(Response {
            qpn: param.qp_num,
            psn: id.rq_psn,
            responder_resources: param.responder_resources,
            initiator_depth: param.initiator_depth,
            flow_control: param.flow_control,
            rnr_retry_count: param.rnr_retry_count.min(7),
            srq: param.srq,
            ece,
            private: param.private,
        });
        self.arm(ctx, Some(expires));
        self.tell(cx, ctx, body);
        Ok(())
    }

    fn accept_response(&mut self, cx: &mut Cx<'_>, ctx: CtxId) -> Result<(), Errno> {
        let id = self.ids.get_mut(&ctx).ok_or(libc::ENOENT)?;
        if id.peer != Peer::RepRcvd {
            return Err(libc::EINVAL);
        }
        id.peer = Peer::Established;
        self.tell(cx, ctx, Message::Rtu);
        Ok(())
    }

    /// Sends a rejection where the state allows one.
    fn send_rej(&mut self, cx: &mut Cx<'_>, ctx: CtxId, reason: u8, private: Vec<u8>) -> Result<(), Errno> {
        let id = self.ids.get_mut(&ctx).ok_or(libc::ENOENT)?;
        let body = match id.peer {
            Peer::ReqSent { .. } | Peer::ReqRcvd | Peer::RepSent | Peer::RepRcvd => {
                if private.len() > private_bytes::REJ {
                    return Err(libc::EINVAL);
                }
                Message::Rej { reason, private }
            }
            Peer::SidrReqRcvd => {
                if private.len() > private_bytes::SIDR_REP {
                    return Err(libc::EINVAL);
                }
                Message::SidrRep { status: sidr::REJECT, qpn: 0, qkey: 0, private }
            }
            _ => return Err(libc::EINVAL),
        };
        id.peer = Peer::Idle;
        self.arm(ctx, None);
        self.tell(cx, ctx, body);
        Ok(())
    }

    /// REJECT.
    pub(crate) fn reject(
        &mut self,
        cx: &mut Cx<'_>,
        file: FileId,
        ctx: CtxId,
        reason: u8,
        private: Vec<u8>,
    ) -> Result<(), Errno> {
        self.id(file, ctx)?;
        let reason = match reason {
            0 => reject::CONSUMER_DEFINED,
            reject::CONSUMER_DEFINED | reject::VENDOR_OPTION_NOT_SUPPORTED => reason,
            _ => return Err(libc::EINVAL),
        };
        let done = self.send_rej(cx, ctx, reason, private);
        self.pump(cx);
        done
    }

    /// DISCONNECT: starts one, or answers the peer's.
    pub(crate) fn disconnect(&mut self, cx: &mut Cx<'_>, file: FileId, ctx: CtxId) -> Result<(), Errno> {
        let expires = cx.now + self.timing.answer;
        let id = self.id(file, ctx)?;
        match id.peer {
            Peer::None => return Err(libc::EINVAL),
            Peer::Established => {
                id.peer = Peer::DreqSent;
                id.expires = expires;
                let alone = id.link == NO_LINK;
                self.arm(ctx, Some(if alone { cx.now } else { expires }));
                self.tell(cx, ctx, Message::Dreq);
            }
            Peer::DreqRcvd => {
                self.tell(cx, ctx, Message::Drep);
                self.enter_timewait(cx, ctx);
            }
            _ => {}
        }
        self.pump(cx);
        Ok(())
    }

    /// NOTIFY: data arrived before the RTU.
    pub(crate) fn notify(&mut self, file: FileId, ctx: CtxId, event: u32) -> Result<(), Errno> {
        let id = self.id(file, ctx)?;
        if id.peer == Peer::None {
            return Err(libc::EINVAL);
        }
        if event == COMM_EST {
            if !matches!(id.peer, Peer::RepSent | Peer::Established) {
                return Err(libc::EINVAL);
            }
            if id.peer == Peer::Established {
                return Err(libc::EISCONN);
            }
            self.on_rtu(ctx);
        }
        Ok(())
    }

    /// SET_OPTION with the option's bytes.
    pub(crate) fn set_option(
        &mut self,
        file: FileId,
        ctx: CtxId,
        level: u32,
        name: u32,
        value: &[u8],
    ) -> Result<(), Errno> {
        let id = self.id(file, ctx)?;
        let byte = || <[u8; 1]>::try_from(value).map(|b| b[0]).map_err(|_| libc::EINVAL);
        let int = || <[u8; 4]>::try_from(value).map(i32::from_ne_bytes).map_err(|_| libc::EINVAL);
        match (level, name) {
            (option::LEVEL_ID, option::TOS) => id.tos = byte()?,
            (option::LEVEL_ID, option::REUSEADDR) => {
                let on = int()? != 0;
                if id.state != State::Idle && on != id.reuse_addr {
                    return Err(libc::EINVAL);
                }
                id.reuse_addr = on;
            }
            (option::LEVEL_ID, option::AFONLY) => {
                let on = int()? != 0;
                if id.state != State::Idle {
                    return Err(libc::EINVAL);
                }
                id.af_only = on;
            }
            (option::LEVEL_ID, option::ACK_TIMEOUT) => {
                let value = byte()?;
                if !matches!(id.qp_type, QPT_RC | QPT_XRC_SEND) {
                    return Err(libc::EINVAL);
                }
                id.ack_timeout = Some(value);
            }
            // Routes come from RESOLVE_ROUTE. An Ethernet port has no subnet manager, so a program
            // cannot set a path.
            (option::LEVEL_IB, option::IB_PATH) => return Err(libc::EINVAL),
            _ => return Err(libc::ENOSYS),
        }
        Ok(())
    }

    /// MIGRATE_ID: moves an identifier and its events from `old` to `new`. Returns the number of
    /// events that the program has taken so far.
    pub(crate) fn migrate(&mut self, old: FileId, new: FileId, ctx: CtxId) -> Result<u32, Errno> {
        self.id(old, ctx)?;
        if old != new {
            let mut moved = VecDeque::new();
            if let Some(events) = self.files.get_mut(&old) {
                let rest;
                (moved, rest) = events.drain(..).partition(|event| event.owner == ctx);
                *events = rest;
            }
            for event in &moved {
                if let Some(id) = self.ids.get_mut(&event.id) {
                    id.file = new;
                }
            }
            self.files.get_mut(&new).ok_or(libc::EBADF)?.extend(moved);
        }
        let id = self.ids.get_mut(&ctx).ok_or(libc::ENOENT)?;
        id.file = new;
        Ok(id.events_reported)
    }

    /// WRITE_CM_EVENT: the program's own event.
    pub(crate) fn write_event(
        &mut self,
        file: FileId,
        ctx: CtxId,
        event: u32,
        status: u32,
        arg: [u8; 8],
    ) -> Result<(), Errno> {
        self.id(file, ctx)?;
        let kind = match event {
            18 => EventKind::User,
            19 => EventKind::Internal,
            _ => return Err(libc::EINVAL),
        };
        self.post(ctx, kind, status.cast_signed(), Some(EventParam::Arg(arg)));
        Ok(())
    }
}
