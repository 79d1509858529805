//! How messages of peers, lost links and timeouts change an identifier.
//!
//! # References
//! Kernel drivers/infiniband/core/cm.c for the states, cma.c (cma_ib_handler, cma_sidr_rep_handler)
//! for the events and for the padded lengths of private data.

use super::abi::{ConnParam, EventParam, UdParam};
use super::addr::Addr;
use super::net::{DialError, LOCAL, LinkId, NO_LINK, Name};
use super::state::{Cm, CtxId, Cx, Event, EventKind, Listener, Peer, State, port_space, reject, sidr};
use super::wire::{Message, Packet, Request, Response};

/// Lengths of a message's private data in bytes, as the kernel reports them. They do not depend on
/// the length that the sender gave.
pub(crate) mod private_bytes {
    /// Size of the rdma_cm header in requests of the IP port spaces.
    const IP_HEADER: usize = 36;
    pub(crate) const REP: usize = 196;
    pub(crate) const REJ: usize = 148;
    pub(crate) const SIDR_REP: usize = 136;

    /// A request's, in the given port space.
    pub(crate) fn request(port_space: u16, ud: bool) -> usize {
        let whole = if ud { 216 } else { 92 };
        if port_space == super::port_space::IB { whole } else { whole - IP_HEADER }
    }
}

fn padded(mut private: Vec<u8>, len: usize) -> Vec<u8> {
    private.resize(len, 0);
    private
}

impl Cm {
    /// A packet arrived on `link`.
    pub(crate) fn receive(&mut self, cx: &mut Cx<'_>, link: LinkId, packet: Packet) {
        let Packet { to, from, body } = packet;
        let body = match body {
            Message::Req(request) => return self.request(cx, link, from, request, false),
            Message::SidrReq(request) => return self.request(cx, link, from, request, true),
            body => body,
        };
        // The link and the remote identifier must match: a late message for a destroyed identifier
        // must not reach another identifier.
        let known = self.by_comm.get(&to).copied().filter(|ctx| {
            self.ids
                .get(ctx)
                .is_some_and(|id| id.link == link && (id.remote_comm == 0 || id.remote_comm == from))
        });
        let Some(ctx) = known else {
            match body {
                // The requester is gone. The other side must not wait for an RTU, so it gets a REJ.
                Message::Rep(_) => {
                    let body = Message::Rej { reason: reject::CONSUMER_DEFINED, private: Vec::new() };
                    self.send(cx, link, Packet { to: from, from: to, body });
                }
                Message::Dreq => self.send(cx, link, Packet { to: from, from: to, body: Message::Drep }),
                _ => {}
            }
            return;
        };
        if let Some(id) = self.ids.get_mut(&ctx)
            && from != 0
        {
            id.remote_comm = from;
        }
        match body {
            Message::Mra => self.on_mra(cx, ctx),
            Message::Rep(response) => self.on_rep(ctx, response),
            Message::Rtu => self.on_rtu(ctx),
            Message::Rej { reason, private } => self.on_rej(ctx, reason, private),
            Message::Dreq => self.on_dreq(cx, ctx),
            Message::Drep => self.on_drep(cx, ctx),
            Message::SidrRep { status, qpn, qkey, private } => {
                self.on_sidr_rep(ctx, status, qpn, qkey, private);
            }
            Message::Req(_) | Message::SidrReq(_) => {}
        }
    }

    /// Handles a request for a connection (or, if `ud`, for a datagram address) from the identifier
    /// `from` behind `link`.
    pub(crate) fn request(&mut self, cx: &mut Cx<'_>, link: LinkId, from: u32, request: Request, ud: bool) {
        let found = self.listeners.get(&request.listener).copied();
        let taken = found.and_then(|ctx| self.ids.get_mut(&ctx)).and_then(|id| {
            let fits = id.is_ud() == ud;
            let (file, uid, space, qp_type) = (id.file, id.uid, id.port_space, id.qp_type);
            id.listener.as_mut().filter(|_| fits).map(|l| (l, file, uid, space, qp_type))
        });
        let Some((listener, file, uid, space, qp_type)) = taken else {
            let body = if ud {
                Message::SidrRep { status: sidr::UNSUPPORTED, qpn: 0, qkey: 0, private: Vec::new() }
            } else {
                Message::Rej { reason: reject::INVALID_SERVICE_ID, private: Vec::new() }
            };
            self.send(cx, link, Packet { to: from, from: 0, body });
            return;
        };
        if listener.room == 0 {
            listener.parked.push_back((link, from, request, ud));
            return;
        }
        let Ok(ctx) = self.insert(file, 0, space, qp_type) else { return };
        if let Some(Listener { room, .. }) =
            found.and_then(|l| self.ids.get_mut(&l)).and_then(|id| id.listener.as_mut())
        {
            *room -= 1;
        }
        let len = private_bytes::request(space, ud);
        let private = padded(request.private, len);
        let param = if ud {
            EventParam::Ud(UdParam { private, ..UdParam::default() })
        } else {
            // The two depths change places: the peer's initiator depth is the number of requests
            // that this side must be able to answer.
            EventParam::Conn(ConnParam {
                qp_num: request.qpn,
                qkey: 0,
                private,
                srq: request.srq,
                responder_resources: request.initiator_depth,
                initiator_depth: request.responder_resources,
                flow_control: request.flow_control,
                retry_count: request.retry_count,
                rnr_retry_count: request.rnr_retry_count,
            })
        };
        if let Some(id) = self.ids.get_mut(&ctx) {
            id.state = State::Connect;
            id.peer = if ud { Peer::SidrReqRcvd } else { Peer::ReqRcvd };
            id.src = Some(Addr::Ip(request.dst));
            id.dst = Some(Addr::Ip(request.src));
            id.routed = true;
            id.link = link;
            id.remote_comm = from;
            id.remote_qpn = request.qpn;
            id.sq_psn = request.psn;
            id.responder_resources = request.initiator_depth;
            id.initiator_depth = request.responder_resources;
            id.retry_count = request.retry_count;
            id.rnr_retry_count = request.rnr_retry_count;
        }
        if !ud {
            self.tell(cx, ctx, Message::Mra);
        }
        let event = Event {
            owner: found.unwrap_or(ctx),
            id: ctx,
            group: None,
            uid,
            kind: EventKind::ConnectRequest,
            status: 0,
            param,
            ece: request.ece,
        };
        self.files.entry(file).or_default().push_back(event);
    }

    /// Finds the listener and sends the request of an identifier that connects.
    pub(crate) fn dial(&mut self, cx: &mut Cx<'_>, ctx: CtxId) {
        let Some(id) = self.ids.get(&ctx) else { return };
        let (Some(src), Some(dst), Some((param, ece))) = (id.src_ip(), id.dst_ip(), id.request.clone())
        else {
            return;
        };
        let (ud, space, comm, psn, expires) = (id.is_ud(), id.port_space, id.comm, id.rq_psn, id.expires);
        if is_silent(dst) && !cx.net.is_local(dst.ip()) {
            return self.arm(ctx, Some(expires));
        }
        let mut busy = false;
        for listener in Name::candidates(space, dst) {
            let reached =
                if self.listeners.contains_key(&listener) { Ok(LOCAL) } else { cx.net.dial(&listener) };
            let link = match reached {
                Ok(link) => link,
                Err(DialError::Refused) => continue,
                Err(DialError::Busy) => {
                    busy = true;
                    continue;
                }
            };
            if let Some(id) = self.ids.get_mut(&ctx) {
                id.link = link;
                id.request = None;
            }
            self.arm(ctx, Some(expires));
            let request = Request {
                listener,
                src,
                dst,
                qpn: param.qp_num,
                psn,
                responder_resources: param.responder_resources,
                initiator_depth: param.initiator_depth,
                flow_control: param.flow_control,
                retry_count: param.retry_count.min(7),
                rnr_retry_count: param.rnr_retry_count.min(7),
                srq: param.srq,
                ece,
                private: param.private,
            };
            let body = if ud { Message::SidrReq(request) } else { Message::Req(request) };
            self.send(cx, link, Packet { to: 0, from: comm, body });
            return;
        }
        if busy {
            let again = (cx.now + self.timing.redial).min(expires);
            return self.arm(ctx, Some(again));
        }
        if ud {
            self.on_sidr_rep(ctx, sidr::UNSUPPORTED, 0, 0, Vec::new());
        } else {
            self.on_rej(ctx, reject::INVALID_SERVICE_ID, Vec::new());
        }
    }

    fn on_mra(&mut self, cx: &mut Cx<'_>, ctx: CtxId) {
        let Some(id) = self.ids.get_mut(&ctx) else { return };
        if matches!(id.peer, Peer::ReqSent { .. }) {
            id.peer = Peer::ReqSent { answered: true };
            let until = cx.now + self.timing.decision;
            id.expires = until;
            self.arm(ctx, Some(until));
        }
    }

    fn on_rep(&mut self, ctx: CtxId, response: Response) {
        let Some(id) = self.ids.get_mut(&ctx) else { return };
        if !matches!(id.peer, Peer::ReqSent { .. }) {
            return;
        }
        id.peer = Peer::RepRcvd;
        id.remote_qpn = response.qpn;
        id.sq_psn = response.psn;
        id.initiator_depth = response.responder_resources;
        id.responder_resources = response.initiator_depth;
        id.rnr_retry_count = response.rnr_retry_count;
        let param = EventParam::Conn(ConnParam {
            qp_num: response.qpn,
            qkey: 0,
            private: padded(response.private, private_bytes::REP),
            srq: response.srq,
            responder_resources: response.initiator_depth,
            initiator_depth: response.responder_resources,
            flow_control: response.flow_control,
            retry_count: 0,
            rnr_retry_count: response.rnr_retry_count,
        });
        self.arm(ctx, None);
        self.post_with_ece(ctx, EventKind::ConnectResponse, 0, Some(param), response.ece);
    }

    /// The other side is ready: RTU, or data that overtook it.
    pub(crate) fn on_rtu(&mut self, ctx: CtxId) {
        let Some(id) = self.ids.get_mut(&ctx) else { return };
        if id.peer != Peer::RepSent {
            return;
        }
        id.peer = Peer::Established;
        self.arm(ctx, None);
        self.post(ctx, EventKind::Established, 0, None);
    }

    fn on_rej(&mut self, ctx: CtxId, reason: u8, private: Vec<u8>) {
        let Some(id) = self.ids.get_mut(&ctx) else { return };
        let waiting = matches!(id.peer, Peer::ReqSent { .. } | Peer::ReqRcvd | Peer::RepSent | Peer::RepRcvd);
        if !waiting {
            return;
        }
        id.peer = Peer::Idle;
        let connecting = id.state == State::Connect;
        self.arm(ctx, None);
        if connecting {
            let private = padded(private, private_bytes::REJ);
            let param = EventParam::Conn(ConnParam { private, ..ConnParam::default() });
            self.post(ctx, EventKind::Rejected, i32::from(reason), Some(param));
        }
    }

    /// CONNECT becomes DISCONNECT once, with one event.
    fn disconnected(&mut self, ctx: CtxId, status: i32) {
        if let Some(id) = self.ids.get_mut(&ctx)
            && id.state == State::Connect
        {
            id.state = State::Disconnect;
            self.post(ctx, EventKind::Disconnected, status, None);
        }
    }

    /// The connection is over for both; TIMEWAIT_EXIT follows.
    pub(crate) fn enter_timewait(&mut self, cx: &mut Cx<'_>, ctx: CtxId) {
        if let Some(id) = self.ids.get_mut(&ctx) {
            id.peer = Peer::Timewait;
            let at = cx.now + self.timing.timewait;
            self.arm(ctx, Some(at));
        }
    }

    fn on_dreq(&mut self, cx: &mut Cx<'_>, ctx: CtxId) {
        let Some(id) = self.ids.get_mut(&ctx) else { return };
        match id.peer {
            Peer::Established | Peer::RepSent | Peer::DreqSent => {
                id.peer = Peer::DreqRcvd;
                self.arm(ctx, None);
                self.disconnected(ctx, 0);
            }
            Peer::Timewait => self.tell(cx, ctx, Message::Drep),
            _ => {}
        }
    }

    fn on_drep(&mut self, cx: &mut Cx<'_>, ctx: CtxId) {
        let Some(id) = self.ids.get_mut(&ctx) else { return };
        if matches!(id.peer, Peer::DreqSent | Peer::DreqRcvd) {
            self.enter_timewait(cx, ctx);
            self.disconnected(ctx, 0);
        }
    }

    fn on_sidr_rep(&mut self, ctx: CtxId, status: u8, qpn: u32, qkey: u32, private: Vec<u8>) {
        let Some(id) = self.ids.get_mut(&ctx) else { return };
        if id.peer != Peer::SidrReqSent {
            return;
        }
        id.peer = Peer::Idle;
        id.link = NO_LINK;
        let private = padded(private, private_bytes::SIDR_REP);
        let mut param = UdParam { private, ..UdParam::default() };
        let kind = if status == sidr::SUCCESS {
            id.qkey = qkey;
            id.remote_qpn = qpn;
            param.qp_num = qpn;
            param.qkey = qkey;
            EventKind::Established
        } else {
            EventKind::Unreachable
        };
        if kind == EventKind::Established
            && let Some(id) = self.ids.get(&ctx)
        {
            param.ah = self.ah_attr(id);
        }
        self.arm(ctx, None);
        self.post(ctx, kind, i32::from(status), Some(EventParam::Ud(param)));
    }

    /// Handles the end of the process behind `link`, as if that process had sent its farewell
    /// messages.
    pub(crate) fn link_lost(&mut self, cx: &mut Cx<'_>, link: LinkId) {
        for id in self.ids.values_mut() {
            if let Some(listener) = &mut id.listener {
                listener.parked.retain(|(from, ..)| *from != link);
            }
        }
        let hit: Vec<CtxId> =
            self.ids.iter().filter(|(_, id)| id.link == link).map(|(&ctx, _)| ctx).collect();
        for ctx in hit {
            let Some(id) = self.ids.get_mut(&ctx) else { continue };
            id.link = NO_LINK;
            match id.peer {
                Peer::ReqSent { answered: false } => {
                    self.on_rej(ctx, reject::INVALID_SERVICE_ID, Vec::new());
                }
                Peer::ReqSent { answered: true } | Peer::RepRcvd => {
                    self.on_rej(ctx, reject::CONSUMER_DEFINED, Vec::new());
                }
                Peer::ReqRcvd => self.on_rej(ctx, reject::TIMEOUT, Vec::new()),
                Peer::RepSent => {
                    self.on_rej(ctx, reject::CONSUMER_DEFINED, Vec::new());
                }
                Peer::Established => {
                    self.on_dreq(cx, ctx);
                }
                Peer::DreqSent => {
                    self.on_drep(cx, ctx);
                }
                Peer::SidrReqSent => self.on_sidr_rep(ctx, sidr::UNSUPPORTED, 0, 0, Vec::new()),
                Peer::None | Peer::Idle | Peer::DreqRcvd | Peer::Timewait | Peer::SidrReqRcvd => {}
            }
        }
        self.pump(cx);
    }

    /// Handles expired timers.
    pub(crate) fn tick(&mut self, cx: &mut Cx<'_>) {
        while let Some(ctx) = self.expired(cx.now) {
            self.on_timer(cx, ctx);
        }
        self.pump(cx);
    }

    fn on_timer(&mut self, cx: &mut Cx<'_>, ctx: CtxId) {
        let Some(id) = self.ids.get_mut(&ctx) else { return };
        let late = cx.now >= id.expires;
        match id.peer {
            _ if id.state == State::AddrQuery => {
                id.state = State::AddrBound;
                self.post(ctx, EventKind::AddrError, -libc::ETIMEDOUT, None);
            }
            Peer::ReqSent { .. } | Peer::SidrReqSent if !late => self.dial(cx, ctx),
            Peer::ReqSent { .. } | Peer::RepSent | Peer::SidrReqSent => {
                if matches!(id.peer, Peer::ReqSent { .. }) {
                    // A late answer must not find an identifier.
                    let body = Message::Rej { reason: reject::TIMEOUT, private: Vec::new() };
                    self.tell(cx, ctx, body);
                }
                if let Some(id) = self.ids.get_mut(&ctx) {
                    id.peer = Peer::Idle;
                }
                self.post(ctx, EventKind::Unreachable, -libc::ETIMEDOUT, None);
            }
            Peer::DreqSent => {
                self.enter_timewait(cx, ctx);
                self.disconnected(ctx, -libc::ETIMEDOUT);
            }
            Peer::Timewait => {
                id.peer = Peer::Idle;
                if id.state == State::Disconnect {
                    self.post(ctx, EventKind::TimewaitExit, 0, None);
                }
            }
            _ => {}
        }
    }
}

/// True for addresses of 192.0.2.0/24 that are not addresses of the host. These addresses resolve
/// but never answer, as if the machine were switched off. A connect to such an address ends in
/// UNREACHABLE.
pub(crate) fn is_silent(dst: std::net::SocketAddr) -> bool {
    matches!(dst.ip(), std::net::IpAddr::V4(v4) if v4.octets()[..3] == [192, 0, 2])
}
