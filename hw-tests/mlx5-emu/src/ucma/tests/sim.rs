//! Two connection managers with a network between them that the test delivers by hand.

use super::super::abi::{ConnParam, Ece, Errno, EventParam};
use super::super::addr::Addr;
use super::super::net::{DialError, LinkId, Name, Net};
use super::super::state::{Cm, CtxId, Cx, Device, Event, EventKind, FileId, Timing, port_space};
use super::super::wire::Packet;
use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

pub(super) const FILE: FileId = 1;

#[derive(Default)]
pub(super) struct World {
    pub(super) bound: HashMap<Name, (usize, bool)>,
    /// (from, to, packet)
    pub(super) flying: VecDeque<(usize, usize, Vec<u8>)>,
    pub(super) busy: bool,
    pub(super) mute: bool,
}

pub(super) struct FakeNet {
    me: usize,
    world: Rc<RefCell<World>>,
}

impl Net for FakeNet {
    fn bind(&mut self, name: &Name) -> Result<(), Errno> {
        let mut world = self.world.borrow_mut();
        if let Some(conflict) = world.bound.keys().find_map(|other| name.conflict(other)) {
            return Err(conflict);
        }
        world.bound.insert(*name, (self.me, false));
        Ok(())
    }
    fn listen(&mut self, name: &Name) -> Result<(), Errno> {
        self.world.borrow_mut().bound.get_mut(name).ok_or(libc::EINVAL)?.1 = true;
        Ok(())
    }
    fn unbind(&mut self, name: &Name) {
        self.world.borrow_mut().bound.remove(name);
    }
    fn dial(&mut self, name: &Name) -> Result<LinkId, DialError> {
        let world = self.world.borrow();
        match world.bound.get(name) {
            Some(_) if world.busy => Err(DialError::Busy),
            Some(&(owner, true)) => Ok(owner as LinkId + 1),
            _ => Err(DialError::Refused),
        }
    }
    fn send(&mut self, link: LinkId, packet: Vec<u8>) {
        let mut world = self.world.borrow_mut();
        if !world.mute {
            world.flying.push_back((self.me, link as usize - 1, packet));
        }
    }
    fn is_local(&self, ip: IpAddr) -> bool {
        // One address of the silent network is this host's own.
        ip.is_loopback() || ip == IpAddr::from([192, 0, 2, 1])
    }
    fn route(&self, dst: SocketAddr) -> Result<IpAddr, Errno> {
        match dst.ip() {
            ip if ip.is_loopback() => Ok(ip),
            IpAddr::V4(v4) if v4.octets()[0] == 240 => Err(libc::ENETUNREACH),
            _ => Ok([127, 0, 0, 1].into()),
        }
    }
}

/// Two processes.
pub(super) struct Sim {
    pub(super) cms: [Cm; 2],
    pub(super) world: Rc<RefCell<World>>,
    pub(super) now: Duration,
}

pub(super) const A: usize = 0;

pub(super) const B: usize = 1;

pub(super) fn ip(text: &str) -> Addr {
    Addr::Ip(text.parse().expect("address"))
}

pub(super) fn params(qp_num: u32, private: &[u8]) -> ConnParam {
    ConnParam {
        qp_num,
        private: private.to_vec(),
        responder_resources: 3,
        initiator_depth: 2,
        retry_count: 6,
        rnr_retry_count: 7,
        ..ConnParam::default()
    }
}

pub(super) fn kinds(events: &[Event]) -> Vec<EventKind> {
    events.iter().map(|event| event.kind).collect()
}

pub(super) fn private(event: &Event) -> &[u8] {
    match &event.param {
        EventParam::Conn(param) => &param.private,
        EventParam::Ud(param) => &param.private,
        EventParam::Arg(_) => panic!("no private data in a user's event"),
    }
}

impl Sim {
    pub(super) fn new() -> Self {
        let device = Device { node_guid: 0x1122_3344_5566_7788, port: 1, mtu: 5, rate: 16, gid_index: |_| 7 };
        let mut cms = [1, 2].map(|seed| Cm::new(device, Timing::default(), seed));
        cms.iter_mut().for_each(|cm| cm.open(FILE));
        Self { cms, world: Rc::default(), now: Duration::ZERO }
    }

    pub(super) fn at<R>(&mut self, side: usize, f: impl FnOnce(&mut Cm, &mut Cx<'_>) -> R) -> R {
        let mut net = FakeNet { me: side, world: self.world.clone() };
        let mut cx = Cx { net: &mut net, now: self.now };
        f(&mut self.cms[side], &mut cx)
    }

    pub(super) fn deliver(&mut self) {
        loop {
            let next = self.world.borrow_mut().flying.pop_front();
            let Some((from, to, bytes)) = next else { return };
            let packet = Packet::decode(&bytes).expect("a packet");
            self.at(to, |cm, cx| {
                cm.receive(cx, from as LinkId + 1, packet);
                cm.pump(cx);
            });
        }
    }

    pub(super) fn events_of(&mut self, side: usize, file: FileId) -> Vec<Event> {
        self.deliver();
        self.at(side, |cm, cx| std::iter::from_fn(|| cm.take_event(cx, file)).collect())
    }

    pub(super) fn events(&mut self, side: usize) -> Vec<Event> {
        self.events_of(side, FILE)
    }

    pub(super) fn pass(&mut self, time: Duration) {
        self.now += time;
        for side in [A, B] {
            self.at(side, |cm, cx| cm.tick(cx));
        }
        self.deliver();
    }

    /// A process dies: the other loses its link.
    pub(super) fn kill(&mut self, side: usize) {
        self.deliver();
        self.at(1 - side, |cm, cx| cm.link_lost(cx, side as LinkId + 1));
    }

    pub(super) fn create(&mut self, side: usize, space: u16) -> CtxId {
        self.at(side, |cm, _| cm.create_id(FILE, 0xabc, space, 2)).expect("an identifier")
    }

    pub(super) fn listener_with(&mut self, side: usize, space: u16, addr: &str, backlog: i32) -> CtxId {
        let id = self.create(side, space);
        self.at(side, |cm, cx| cm.bind(cx, FILE, id, ip(addr))).expect("bind");
        self.at(side, |cm, cx| cm.listen(cx, FILE, id, backlog)).expect("listen");
        id
    }

    pub(super) fn listener(&mut self, side: usize, space: u16) -> CtxId {
        self.listener_with(side, space, "0.0.0.0:7471", 10)
    }

    /// An identifier that is ready to connect to the listener's port.
    pub(super) fn resolved_to(&mut self, side: usize, space: u16, dst: &str) -> CtxId {
        let id = self.create(side, space);
        self.at(side, |cm, cx| cm.resolve_addr(cx, FILE, id, None, ip(dst), 100)).expect("resolve_addr");
        self.at(side, |cm, _| cm.resolve_route(FILE, id)).expect("resolve_route");
        let events = self.events(side);
        assert_eq!(kinds(&events), [EventKind::AddrResolved, EventKind::RouteResolved]);
        id
    }

    pub(super) fn connect(&mut self, side: usize, id: CtxId, private: &[u8]) -> Result<(), Errno> {
        self.at(side, |cm, cx| cm.connect(cx, FILE, id, params(0x111, private), Ece::default()))
    }

    pub(super) fn accept(&mut self, side: usize, id: CtxId, private: &[u8]) -> Result<(), Errno> {
        let param = Some(params(0x222, private));
        self.at(side, |cm, cx| cm.accept(cx, FILE, id, 0xdef, param, Ece::default()))
    }

    pub(super) fn rtu(&mut self, side: usize, id: CtxId) -> Result<(), Errno> {
        self.at(side, |cm, cx| cm.accept(cx, FILE, id, 0, None, Ece::default()))
    }

    pub(super) fn disconnect(&mut self, side: usize, id: CtxId) {
        self.at(side, |cm, cx| cm.disconnect(cx, FILE, id)).expect("disconnect");
    }

    pub(super) fn destroy(&mut self, side: usize, id: CtxId) -> u32 {
        self.at(side, |cm, cx| cm.destroy_id(cx, FILE, id)).expect("destroy")
    }

    /// A asks a listener at B: A's identifier, and B's event.
    pub(super) fn requested(&mut self, private: &[u8]) -> (CtxId, Event) {
        self.listener(B, port_space::TCP);
        let active = self.resolved_to(A, port_space::TCP, "127.0.0.1:7471");
        self.connect(A, active, private).expect("connect");
        (active, self.events(B).pop().expect("a request"))
    }

    /// A connects to B: (A's identifier, B's).
    pub(super) fn connected(&mut self) -> (CtxId, CtxId) {
        let (active, request) = self.requested(b"hello");
        self.accept(B, request.id, b"welcome").expect("accept");
        assert_eq!(kinds(&self.events(A)), [EventKind::ConnectResponse]);
        self.rtu(A, active).expect("rtu");
        assert_eq!(kinds(&self.events(B)), [EventKind::Established]);
        (active, request.id)
    }

    pub(super) fn qp_attr(&mut self, side: usize, id: CtxId, state: u32) -> Result<Attr, Errno> {
        self.at(side, |cm, _| cm.init_qp_attr(FILE, id, state)).map(Attr)
    }
}

/// ib_uverbs_qp_attr, read at its offsets.
pub(super) struct Attr(pub(super) Vec<u8>);

impl Attr {
    pub(super) fn u32(&self, at: usize) -> u32 {
        u32::from_ne_bytes(self.0[at..at + 4].try_into().expect("four bytes"))
    }
}
