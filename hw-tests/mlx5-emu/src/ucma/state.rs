//! The communication identifiers of a process and their events. This module uses no sockets, no
//! clock and no threads.
//!
//! Three sides drive [`Cm`]: commands of the program (`command.rs`), messages of peers and the
//! passing of time (`peer.rs`), and queries that change nothing (`query.rs`). [`Cm`] reaches the
//! outside only through [`Net`], so tests can connect two [`Cm`] directly.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;

use super::abi::{ConnParam, Ece, Errno, EventParam, UdParam};
use super::addr::Addr;
use super::net::{LOCAL, LinkId, NO_LINK, Name, Net};
use super::wire::{Message, Packet, Request};

/// One open of the device.
pub(crate) type FileId = u64;
/// The identifier number that the program sees: the smallest free number, because librdmacm keeps
/// identifiers in a table of 65,536 entries.
pub(crate) type CtxId = u32;

/// Port spaces of rdma_user_cm.h.
pub(crate) mod port_space {
    pub(crate) const IPOIB: u16 = 0x0002;
    pub(crate) const TCP: u16 = 0x0106;
    pub(crate) const UDP: u16 = 0x0111;
    pub(crate) const IB: u16 = 0x013f;
}

/// Types of QPs, as in `enum ibv_qp_type`.
pub(crate) const QPT_RC: u8 = 2;
pub(crate) const QPT_UD: u8 = 4;
pub(crate) const QPT_XRC_SEND: u8 = 9;
pub(crate) const QPT_XRC_RECV: u8 = 10;

/// rdma_cm_event_type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum EventKind {
    AddrResolved = 0,
    AddrError = 1,
    RouteResolved = 2,
    ConnectRequest = 4,
    ConnectResponse = 5,
    Unreachable = 7,
    Rejected = 8,
    Established = 9,
    Disconnected = 10,
    MulticastJoin = 12,
    TimewaitExit = 15,
    User = 18,
    Internal = 19,
}

/// Reasons of a REJ message.
pub(crate) mod reject {
    /// The requester gave up.
    pub(crate) const TIMEOUT: u8 = 4;
    /// No listener has this service ID.
    pub(crate) const INVALID_SERVICE_ID: u8 = 8;
    /// The program refused, or has exited.
    pub(crate) const CONSUMER_DEFINED: u8 = 28;
    /// The program doesn't want these vendor options.
    pub(crate) const VENDOR_OPTION_NOT_SUPPORTED: u8 = 35;
}

/// Status of a SIDR answer.
pub(crate) mod sidr {
    pub(crate) const SUCCESS: u8 = 0;
    pub(crate) const UNSUPPORTED: u8 = 1;
    pub(crate) const REJECT: u8 = 2;
}

/// Where an identifier stands for the program (the kernel's rdma_cm state).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Idle,
    AddrBound,
    AddrQuery,
    AddrResolved,
    RouteResolved,
    Connect,
    Disconnect,
    Listen,
}

/// Where it stands with its peer (the kernel's ib_cm state).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Peer {
    /// There never was one.
    None,
    Idle,
    ReqSent {
        /// The other side has seen the request.
        answered: bool,
    },
    ReqRcvd,
    RepSent,
    RepRcvd,
    Established,
    DreqSent,
    DreqRcvd,
    Timewait,
    SidrReqSent,
    SidrReqRcvd,
}

/// How long things may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timing {
    /// Until an unanswered request is UNREACHABLE, and an unanswered disconnect done.
    pub(crate) answer: Duration,
    /// As `answer`, after the peer has confirmed that it received the request.
    pub(crate) decision: Duration,
    /// From the end of a connection to TIMEWAIT_EXIT.
    pub(crate) timewait: Duration,
    /// Between two tries to reach a busy listener.
    pub(crate) redial: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            answer: Duration::from_secs(10),
            decision: Duration::from_secs(70),
            timewait: Duration::from_millis(512),
            redial: Duration::from_millis(5),
        }
    }
}

/// Properties of the device that the CM reports.
#[derive(Clone, Copy)]
pub(crate) struct Device {
    /// Node GUID in host order.
    pub(crate) node_guid: u64,
    /// Physical port.
    pub(crate) port: u8,
    /// ibv_mtu of every path.
    pub(crate) mtu: u8,
    /// ibv_rate of every path.
    pub(crate) rate: u8,
    /// Index of a GID in the port's table.
    pub(crate) gid_index: fn(&[u8; 16]) -> u8,
}

/// A listener's own part.
#[derive(Debug, Default)]
pub(crate) struct Listener {
    /// Requests that may still be queued before the program takes one.
    pub(crate) room: usize,
    /// Requests that found no room.
    pub(crate) parked: VecDeque<(LinkId, u32, Request, bool)>,
}

/// One communication identifier.
#[derive(Debug)]
pub(crate) struct Id {
    pub(crate) file: FileId,
    pub(crate) uid: u64,
    pub(crate) events_reported: u32,
    pub(crate) port_space: u16,
    pub(crate) qp_type: u8,
    pub(crate) state: State,
    pub(crate) peer: Peer,
    pub(crate) src: Option<Addr>,
    pub(crate) dst: Option<Addr>,
    /// The name held in the network.
    pub(crate) name: Option<Name>,
    pub(crate) reuse_addr: bool,
    pub(crate) af_only: bool,
    pub(crate) tos: u8,
    pub(crate) ack_timeout: Option<u8>,
    pub(crate) listener: Option<Listener>,
    /// Paths are known.
    pub(crate) routed: bool,
    pub(crate) comm: u32,
    pub(crate) link: LinkId,
    pub(crate) remote_comm: u32,
    pub(crate) qpn: u32,
    pub(crate) srq: u8,
    pub(crate) qkey: u32,
    pub(crate) remote_qpn: u32,
    /// The peer's first send PSN.
    pub(crate) rq_psn: u32,
    /// The first send PSN of this side.
    pub(crate) sq_psn: u32,
    pub(crate) responder_resources: u8,
    pub(crate) initiator_depth: u8,
    pub(crate) retry_count: u8,
    pub(crate) rnr_retry_count: u8,
    /// The request, until it could be sent.
    pub(crate) request: Option<(ConnParam, Ece)>,
    /// When giving up, while `deadline` may be an earlier wake-up.
    pub(crate) expires: Duration,
    pub(crate) deadline: Option<Duration>,
}

impl Id {
    /// Datagram service: no connection, an address is exchanged.
    pub(crate) fn is_ud(&self) -> bool {
        self.qp_type == QPT_UD
    }
    /// True when the identifier is bound to the device.
    pub(crate) fn has_device(&self) -> bool {
        self.src.is_some_and(|src| !src.is_any())
    }
    pub(crate) fn src_ip(&self) -> Option<SocketAddr> {
        self.src.and_then(|addr| addr.ip())
    }
    pub(crate) fn dst_ip(&self) -> Option<SocketAddr> {
        self.dst.and_then(|addr| addr.ip())
    }
}

/// An event waiting to be taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Event {
    /// The identifier whose `events_reported` counts this event.
    pub(crate) owner: CtxId,
    /// The identifier it is about: for a connection request the new one.
    pub(crate) id: CtxId,
    /// The joined group that it is about.
    pub(crate) group: Option<u32>,
    pub(crate) uid: u64,
    pub(crate) kind: EventKind,
    pub(crate) status: i32,
    pub(crate) param: EventParam,
    pub(crate) ece: Ece,
}

/// A multicast group that an identifier has joined.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) owner: CtxId,
    pub(crate) events_reported: u32,
}

/// The outside world during one call.
pub(crate) struct Cx<'a> {
    pub(crate) net: &'a mut dyn Net,
    /// Time since some start.
    pub(crate) now: Duration,
}

/// All communication identifiers of a process.
pub(crate) struct Cm {
    pub(crate) device: Device,
    pub(crate) timing: Timing,
    pub(crate) files: HashMap<FileId, VecDeque<Event>>,
    pub(crate) ids: BTreeMap<CtxId, Id>,
    pub(crate) by_comm: HashMap<u32, CtxId>,
    pub(crate) listeners: HashMap<Name, CtxId>,
    /// Joined groups by the number that the program sees.
    pub(crate) groups: BTreeMap<u32, Group>,
    timers: BTreeSet<(Duration, u32)>,
    local: VecDeque<Packet>,
    next_comm: u32,
    random: u64,
}

impl Cm {
    /// An empty manager; `seed` starts PSNs and ports.
    pub(crate) fn new(device: Device, timing: Timing, seed: u64) -> Self {
        Self {
            device,
            timing,
            files: HashMap::new(),
            ids: BTreeMap::new(),
            by_comm: HashMap::new(),
            listeners: HashMap::new(),
            groups: BTreeMap::new(),
            timers: BTreeSet::new(),
            local: VecDeque::new(),
            next_comm: 1,
            random: seed | 1,
        }
    }

    /// The device was opened; `file` is a number never used before.
    pub(crate) fn open(&mut self, file: FileId) {
        self.files.insert(file, VecDeque::new());
    }

    /// Removes every identifier of `file` after its last descriptor was closed.
    pub(crate) fn close(&mut self, cx: &mut Cx<'_>, file: FileId) {
        let of_file: Vec<CtxId> =
            self.ids.iter().filter(|(_, id)| id.file == file).map(|(&ctx, _)| ctx).collect();
        for ctx in of_file {
            if self.ids.contains_key(&ctx) {
                self.destroy(cx, ctx);
            }
        }
        self.files.remove(&file);
        self.pump(cx);
    }

    /// Events that `file` has waiting.
    pub(crate) fn pending(&self, file: FileId) -> usize {
        self.files.get(&file).map_or(0, VecDeque::len)
    }

    /// A pseudo-random number (xorshift64*).
    pub(crate) fn random(&mut self) -> u32 {
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        (self.random.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32) as u32
    }

    /// The identifier `ctx` of `file`.
    pub(crate) fn id(&mut self, file: FileId, ctx: CtxId) -> Result<&mut Id, Errno> {
        match self.ids.get_mut(&ctx) {
            None => Err(libc::ENOENT),
            Some(id) if id.file != file => Err(libc::EINVAL),
            Some(id) => Ok(id),
        }
    }

    /// A new identifier under the smallest free number.
    pub(crate) fn insert(
        &mut self,
        file: FileId,
        uid: u64,
        port_space: u16,
        qp_type: u8,
    ) -> Result<CtxId, Errno> {
        if !self.files.contains_key(&file) {
            return Err(libc::EBADF);
        }
        let mut ctx = 0;
        for &used in self.ids.keys() {
            if used != ctx {
                break;
            }
            ctx += 1;
        }
        let comm = self.next_comm;
        self.next_comm = self.next_comm.wrapping_add(1).max(1);
        let rq_psn = self.random() & 0xff_ffff;
        let id = Id {
            file,
            uid,
            events_reported: 0,
            port_space,
            qp_type,
            state: State::Idle,
            peer: Peer::None,
            src: None,
            dst: None,
            name: None,
            reuse_addr: false,
            af_only: false,
            tos: 0,
            ack_timeout: None,
            listener: None,
            routed: false,
            comm,
            link: NO_LINK,
            remote_comm: 0,
            qpn: 0,
            srq: 0,
            qkey: 0,
            remote_qpn: 0,
            rq_psn,
            sq_psn: 0,
            responder_resources: 0,
            initiator_depth: 0,
            retry_count: 0,
            rnr_retry_count: 0,
            request: None,
            expires: Duration::ZERO,
            deadline: None,
        };
        self.ids.insert(ctx, id);
        self.by_comm.insert(comm, ctx);
        Ok(ctx)
    }

    /// Removes an identifier, sends its peer the message that the kernel would send, and drops its
    /// events. Returns how many events the program has taken for the identifier.
    pub(crate) fn destroy(&mut self, cx: &mut Cx<'_>, ctx: CtxId) -> u32 {
        self.arm(ctx, None);
        let Some(id) = self.ids.remove(&ctx) else { return 0 };
        self.by_comm.remove(&id.comm);
        self.groups.retain(|_, group| group.owner != ctx);
        if let Some(name) = id.name {
            if self.listeners.get(&name) == Some(&ctx) {
                self.listeners.remove(&name);
            }
            cx.net.unbind(&name);
        }
        for (link, from, _, ud) in id.listener.into_iter().flat_map(|listener| listener.parked) {
            let body = if ud {
                Message::SidrRep { status: sidr::UNSUPPORTED, qpn: 0, qkey: 0, private: Vec::new() }
            } else {
                Message::Rej { reason: reject::INVALID_SERVICE_ID, private: Vec::new() }
            };
            self.send(cx, link, Packet { to: from, from: 0, body });
        }
        let rej = |reason| Some(Message::Rej { reason, private: Vec::new() });
        let farewell = match id.peer {
            Peer::ReqSent { .. } => rej(reject::TIMEOUT),
            Peer::ReqRcvd | Peer::RepSent | Peer::RepRcvd => rej(reject::CONSUMER_DEFINED),
            Peer::Established => Some(Message::Dreq),
            Peer::DreqRcvd => Some(Message::Drep),
            Peer::SidrReqRcvd => {
                Some(Message::SidrRep { status: sidr::REJECT, qpn: 0, qkey: 0, private: Vec::new() })
            }
            Peer::None | Peer::Idle | Peer::DreqSent | Peer::Timewait | Peer::SidrReqSent => None,
        };
        if let Some(body) = farewell {
            self.send(cx, id.link, Packet { to: id.remote_comm, from: id.comm, body });
        }
        // Requests that the program has not taken are destroyed with their listener.
        let mut orphans = Vec::new();
        if let Some(events) = self.files.get_mut(&id.file) {
            events.retain(|event| {
                let mine = event.owner == ctx;
                if mine && event.id != ctx {
                    orphans.push(event.id);
                }
                !mine && event.id != ctx
            });
        }
        for orphan in orphans {
            self.destroy(cx, orphan);
        }
        id.events_reported
    }

    /// Queues an event about `ctx` itself. Drops the event while the program has not yet set its
    /// user ID for the identifier, as the kernel does for connections that are not accepted yet.
    pub(crate) fn post(&mut self, ctx: CtxId, kind: EventKind, status: i32, param: Option<EventParam>) {
        self.post_with_ece(ctx, kind, status, param, Ece::default());
    }

    /// As [`Self::post`], with the peer's ECE options.
    pub(crate) fn post_with_ece(
        &mut self,
        ctx: CtxId,
        kind: EventKind,
        status: i32,
        param: Option<EventParam>,
        ece: Ece,
    ) {
        let Some(id) = self.ids.get(&ctx) else { return };
        if id.uid == 0 {
            return;
        }
        let param = param.unwrap_or_else(|| {
            if id.is_ud() {
                EventParam::Ud(UdParam::default())
            } else {
                EventParam::Conn(ConnParam::default())
            }
        });
        let event = Event { owner: ctx, id: ctx, group: None, uid: id.uid, kind, status, param, ece };
        let file = id.file;
        self.files.entry(file).or_default().push_back(event);
    }

    /// Takes the oldest event of `file`.
    pub(crate) fn take_event(&mut self, cx: &mut Cx<'_>, file: FileId) -> Option<Event> {
        let event = self.files.get_mut(&file)?.pop_front()?;
        if let Some(group) = event.group.and_then(|number| self.groups.get_mut(&number)) {
            group.events_reported += 1;
        }
        if let Some(owner) = self.ids.get_mut(&event.owner) {
            owner.events_reported += 1;
            if event.kind == EventKind::ConnectRequest {
                let parked = owner.listener.as_mut().and_then(|listener| {
                    listener.room += 1;
                    listener.parked.pop_front()
                });
                if let Some(new) = self.ids.get_mut(&event.id) {
                    new.file = file;
                }
                if let Some((link, from, request, ud)) = parked {
                    self.request(cx, link, from, request, ud);
                    self.pump(cx);
                }
            }
        }
        Some(event)
    }

    /// Sets or clears the identifier's timer.
    pub(crate) fn arm(&mut self, ctx: CtxId, deadline: Option<Duration>) {
        let Some(id) = self.ids.get_mut(&ctx) else { return };
        if let Some(old) = id.deadline {
            self.timers.remove(&(old, id.comm));
        }
        id.deadline = deadline;
        if let Some(new) = deadline {
            self.timers.insert((new, id.comm));
        }
    }

    /// When [`Self::tick`] has something to do.
    pub(crate) fn next_deadline(&self) -> Option<Duration> {
        self.timers.first().map(|&(at, _)| at)
    }

    /// The next identifier with an expired timer. The timer is cleared.
    pub(crate) fn expired(&mut self, now: Duration) -> Option<CtxId> {
        let &(at, comm) = self.timers.first()?;
        if at > now {
            return None;
        }
        self.timers.remove(&(at, comm));
        let ctx = *self.by_comm.get(&comm)?;
        if let Some(id) = self.ids.get_mut(&ctx) {
            id.deadline = None;
        }
        Some(ctx)
    }

    /// Sends a message; to this process it is queued until [`Self::pump`].
    pub(crate) fn send(&mut self, cx: &mut Cx<'_>, link: LinkId, packet: Packet) {
        match link {
            LOCAL => self.local.push_back(packet),
            NO_LINK => {}
            _ => cx.net.send(link, packet.encode()),
        }
    }

    /// Sends a message to the peer of `ctx`.
    pub(crate) fn tell(&mut self, cx: &mut Cx<'_>, ctx: CtxId, body: Message) {
        if let Some(id) = self.ids.get(&ctx) {
            let (link, packet) = (id.link, Packet { to: id.remote_comm, from: id.comm, body });
            self.send(cx, link, packet);
        }
    }

    /// Delivers the messages that this process sent to itself.
    pub(crate) fn pump(&mut self, cx: &mut Cx<'_>) {
        while let Some(packet) = self.local.pop_front() {
            self.receive(cx, LOCAL, packet);
        }
    }
}
