//! [`Net`] over abstract sockets: a name is a bound socket, a link is a connection between two
//! processes.
//!
//! A listener's name is bound when the listener binds its address, so the kernel prevents two
//! processes from holding the same name. Of names that only overlap (a wildcard and an address), a
//! new address finds the wildcard by connecting to the wildcard's second socket, and a new wildcard
//! finds the addresses in /proc/net/unix, which takes longer. One link carries all connections of a
//! pair of processes. End of file on the link means that the other process is gone.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsRawFd as _, OwnedFd};

use super::abi::Errno;
use super::net::{DialError, LinkId, Name, Net};
use super::sock::{self, Poll};
use super::wire::{MAX_BYTES, Packet};
use crate::host::sys;

/// Token of the eventfd that wakes the thread.
pub(super) const WAKE: u64 = 0;
const LISTENER: u64 = 1 << 32;
const LINK: u64 = 2 << 32;
/// Links whose peers have sent nothing yet. A peer sends its first packet as soon as it connects.
const SILENT: usize = 64;

struct Link {
    socket: OwnedFd,
    pid: i32,
    /// Packets that the socket has not taken yet.
    outbox: VecDeque<Vec<u8>>,
    /// The peer connected and has sent nothing yet.
    is_silent: bool,
}

struct Bound {
    socket: OwnedFd,
    token: u64,
    /// Of a wildcard: a datagram socket of the same name, by which others find it.
    _beacon: Option<OwnedFd>,
}

/// Input from a link.
pub(super) enum Arrival {
    Packet(LinkId, Packet),
    Lost(LinkId),
}

/// The sockets of one process.
pub(super) struct Links {
    namespace: String,
    poll: Poll,
    bound: HashMap<Name, Bound>,
    listeners: HashMap<u64, Name>,
    links: HashMap<LinkId, Link>,
    by_pid: HashMap<i32, LinkId>,
    next: u32,
}

fn errno(error: &io::Error) -> Errno {
    error.raw_os_error().unwrap_or(libc::EIO)
}

impl Links {
    pub(super) fn new(namespace: String) -> io::Result<Self> {
        Ok(Self {
            namespace,
            poll: Poll::new()?,
            bound: HashMap::new(),
            listeners: HashMap::new(),
            links: HashMap::new(),
            by_pid: HashMap::new(),
            next: 1,
        })
    }

    /// The descriptor set to wait on.
    pub(super) fn poll(&self) -> &Poll {
        &self.poll
    }

    fn prefix(&self) -> String {
        format!("mlx5-emu/{}/cm/", self.namespace)
    }

    fn socket_name(&self, name: &Name) -> String {
        format!("{}{name}", self.prefix())
    }

    fn add_link(&mut self, socket: OwnedFd, pid: i32) -> io::Result<LinkId> {
        let id = self.next;
        self.next = self.next.wrapping_add(1).clamp(1, LinkId::MAX - 1);
        self.poll.add(socket.as_raw_fd(), LINK | u64::from(id))?;
        self.links.insert(id, Link { socket, pid, outbox: VecDeque::new(), is_silent: false });
        // PID 0 is unknown: such processes cannot be told apart.
        if pid != 0 {
            self.by_pid.entry(pid).or_insert(id);
        }
        Ok(id)
    }

    fn drop_link(&mut self, id: LinkId) -> bool {
        let Some(link) = self.links.remove(&id) else { return false };
        if self.by_pid.get(&link.pid) == Some(&id) {
            self.by_pid.remove(&link.pid);
        }
        true
    }

    /// Names of the same port that others hold. `name` itself may be missing, since the kernel
    /// prevents a second bind, and so may other addresses, if `name` is an address.
    fn taken(&self, name: &Name) -> Vec<Name> {
        if name.ip.is_unspecified() {
            return self.listed(name);
        }
        let Ok(probe) = sock::datagrams() else { return self.listed(name) };
        let held = |other: &Name| sock::connect(&probe, &self.socket_name(other)).is_ok();
        Name::wildcards(name.port_space, name.port).into_iter().filter(held).collect()
    }

    /// The second socket of a wildcard. The error of a wildcard that exists is that of
    /// [`Name::conflict`].
    fn beacon(&self, name: &Name) -> Result<OwnedFd, Errno> {
        let beacon = sock::datagrams().map_err(|e| errno(&e))?;
        match sock::bind(&beacon, &self.socket_name(name)).map_err(|e| errno(&e)) {
            Err(libc::EADDRINUSE) => Err(libc::EADDRNOTAVAIL),
            result => result.map(|()| beacon),
        }
    }

    /// Names of the same port that others hold, from the list of all Unix sockets.
    fn listed(&self, name: &Name) -> Vec<Name> {
        let prefix = format!("@{}", self.prefix());
        let list = std::fs::read_to_string("/proc/net/unix").unwrap_or_default();
        // An accepted connection appears under the listener's name, but does not occupy the name.
        // The second socket of a wildcard is of another type.
        const SEQPACKET: &str = "0005";
        const CONNECTED: &str = "03";
        list.lines()
            .filter(|line| {
                let mut fields = line.split_whitespace().skip(4);
                fields.next() == Some(SEQPACKET) && fields.next() != Some(CONNECTED)
            })
            .filter_map(|line| line.rsplit_once(' ')?.1.strip_prefix(&prefix).and_then(Name::parse))
            .filter(|other| (other.port_space, other.port) == (name.port_space, name.port))
            .collect()
    }

    /// Handles a token that the poll reported.
    pub(super) fn ready(&mut self, token: u64, arrivals: &mut Vec<Arrival>) {
        if token & LISTENER != 0 {
            self.accept_all(token, arrivals);
        } else if token & LINK != 0 {
            let id = (token & 0xffff_ffff) as LinkId;
            self.flush(id);
            self.read_all(id, arrivals);
        }
    }

    fn silent(&self) -> Vec<LinkId> {
        let mut silent: Vec<_> =
            self.links.iter().filter(|(_, link)| link.is_silent).map(|(&id, _)| id).collect();
        silent.sort_unstable();
        silent
    }

    fn accept_all(&mut self, token: u64, arrivals: &mut Vec<Arrival>) {
        loop {
            let Some(bound) = self.listeners.get(&token).and_then(|name| self.bound.get(name)) else {
                return;
            };
            let Ok(socket) = sock::accept(&bound.socket) else { return };
            if !sys::is_own_peer(socket.as_raw_fd()) {
                continue;
            }
            let silent = self.silent();
            if silent.len() >= SILENT {
                // Many may have connected at once, and their packets were not read yet.
                silent.into_iter().for_each(|id| self.read_all(id, arrivals));
                let silent = self.silent();
                if silent.len() >= SILENT {
                    self.drop_link(silent[0]);
                }
            }
            let pid = sock::peer_pid(&socket);
            // A link that can't be watched is dropped; the other side sees its end.
            let added = self.add_link(socket, pid);
            if let Some(link) = added.ok().and_then(|id| self.links.get_mut(&id)) {
                link.is_silent = true;
            }
        }
    }

    fn read_all(&mut self, id: LinkId, arrivals: &mut Vec<Arrival>) {
        let mut buf = [0; MAX_BYTES];
        loop {
            let Some(link) = self.links.get_mut(&id) else { return };
            match sock::receive(link.socket.as_raw_fd(), &mut buf, libc::MSG_DONTWAIT) {
                Ok(0) => break,
                Ok(n) => {
                    link.is_silent = false;
                    if let Some(packet) = Packet::decode(&buf[..n]) {
                        arrivals.push(Arrival::Packet(id, packet));
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
        if self.drop_link(id) {
            arrivals.push(Arrival::Lost(id));
        }
    }

    fn flush(&mut self, id: LinkId) {
        let token = LINK | u64::from(id);
        let Some(link) = self.links.get_mut(&id) else { return };
        if link.outbox.is_empty() {
            return;
        }
        while let Some(packet) = link.outbox.front() {
            match sys::send_packet(link.socket.as_raw_fd(), packet) {
                Ok(()) => drop(link.outbox.pop_front()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                // Reading finds the end.
                Err(_) => link.outbox.clear(),
            }
        }
        let _ = self.poll.set_writable(link.socket.as_raw_fd(), token, false);
    }
}

impl Net for Links {
    fn bind(&mut self, name: &Name) -> Result<(), Errno> {
        let socket = sock::socket().map_err(|e| errno(&e))?;
        let beacon = if name.ip.is_unspecified() { Some(self.beacon(name)?) } else { None };
        if let Some(conflict) = self.taken(name).iter().find_map(|other| name.conflict(other)) {
            return Err(conflict);
        }
        sock::bind(&socket, &self.socket_name(name)).map_err(|e| errno(&e))?;
        let token = LISTENER | u64::from(self.next);
        self.next = self.next.wrapping_add(1).clamp(1, LinkId::MAX - 1);
        self.bound.insert(*name, Bound { socket, token, _beacon: beacon });
        self.listeners.insert(token, *name);
        Ok(())
    }

    fn listen(&mut self, name: &Name) -> Result<(), Errno> {
        let bound = self.bound.get(name).ok_or(libc::EINVAL)?;
        sock::listen(&bound.socket).map_err(|e| errno(&e))?;
        self.poll.add(bound.socket.as_raw_fd(), bound.token).map_err(|e| errno(&e))
    }

    fn unbind(&mut self, name: &Name) {
        if let Some(bound) = self.bound.remove(name) {
            self.listeners.remove(&bound.token);
        }
    }

    fn dial(&mut self, name: &Name) -> Result<LinkId, DialError> {
        let refused = |_| DialError::Refused;
        let socket = sock::socket().map_err(refused)?;
        match sock::connect(&socket, &self.socket_name(name)) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(DialError::Busy),
            Err(_) => return Err(DialError::Refused),
        }
        // The connect call shows which process listens. If a link to this process exists already,
        // the new socket is not needed.
        if !sys::is_own_peer(socket.as_raw_fd()) {
            return Err(DialError::Refused);
        }
        let pid = sock::peer_pid(&socket);
        if pid != 0
            && let Some(&id) = self.by_pid.get(&pid)
        {
            return Ok(id);
        }
        self.add_link(socket, pid).map_err(refused)
    }

    fn send(&mut self, link: LinkId, packet: Vec<u8>) {
        let token = LINK | u64::from(link);
        let Some(entry) = self.links.get_mut(&link) else { return };
        if !entry.outbox.is_empty() {
            entry.outbox.push_back(packet);
            return;
        }
        match sys::send_packet(entry.socket.as_raw_fd(), &packet) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                entry.outbox.push_back(packet);
                let _ = self.poll.set_writable(entry.socket.as_raw_fd(), token, true);
            }
            // The thread reads the last packets of the other side, and then the end of file.
            Err(_) => {}
        }
    }

    fn is_local(&self, ip: IpAddr) -> bool {
        ip.is_loopback() || UdpSocket::bind((ip, 0)).is_ok()
    }

    fn answers(&self, ip: IpAddr) -> bool {
        let deaf = crate::device::exists() && crate::device::lock().card.faults.is_deaf();
        !deaf && self.is_local(ip)
    }

    fn route(&self, dst: SocketAddr) -> Result<IpAddr, Errno> {
        let any: IpAddr = if dst.is_ipv4() { [0u8; 4].into() } else { [0u16; 8].into() };
        let socket = UdpSocket::bind((any, 0)).map_err(|e| errno(&e))?;
        let mut dst = dst;
        if dst.port() == 0 {
            dst.set_port(1);
        }
        socket.connect(dst).and_then(|()| socket.local_addr()).map(|addr| addr.ip()).map_err(|e| errno(&e))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_accepted_connection_does_not_hold_the_port() {
        let namespace = format!("test-{}", std::process::id());
        let mut server = Links::new(namespace.clone()).expect("server");
        let mut client = Links::new(namespace).expect("client");
        let name = Name::parse("0106/7471/0.0.0.0").expect("name");
        server.bind(&name).expect("bind");
        server.listen(&name).expect("listen");
        assert_eq!(client.bind(&name), Err(libc::EADDRNOTAVAIL), "somebody listens");
        client.dial(&name).expect("dial");
        let token = server.bound[&name].token;
        server.ready(token, &mut Vec::new());
        assert_eq!(server.links.len(), 1, "accepted");
        server.unbind(&name);
        client.bind(&name).expect("the port is free");
        assert_eq!(server.links.len(), 1, "and the connection is still there");
    }

    /// A server with its name and the token of its listener.
    fn listening(namespace: &str) -> (Links, Name, u64) {
        let mut server = Links::new(format!("{namespace}-{}", std::process::id())).expect("server");
        let name = Name::parse("0106/7471/0.0.0.0").expect("name");
        server.bind(&name).expect("bind");
        server.listen(&name).expect("listen");
        let token = server.bound[&name].token;
        (server, name, token)
    }

    #[test]
    fn silent_links_are_bounded() {
        let (mut server, name, token) = listening("silent");
        let mut callers = Vec::new();
        for _ in 0..2 * SILENT {
            let caller = sock::socket().expect("socket");
            sock::connect(&caller, &server.socket_name(&name)).expect("connect");
            callers.push(caller);
            server.ready(token, &mut Vec::new());
        }
        assert_eq!(server.links.len(), SILENT);
        let ends = |caller: &OwnedFd| {
            sock::receive(caller.as_raw_fd(), &mut [0; 1], libc::MSG_DONTWAIT).is_ok_and(|len| len == 0)
        };
        assert!(ends(&callers[0]) && !ends(&callers[2 * SILENT - 1]), "the oldest goes");
    }

    #[test]
    fn links_that_were_not_read_yet_are_not_silent() {
        let (mut server, name, token) = listening("burst");
        let mut callers = Vec::new();
        let mut arrivals = Vec::new();
        for _ in 0..2 * SILENT {
            let caller = sock::socket().expect("socket");
            sock::connect(&caller, &server.socket_name(&name)).expect("connect");
            // No packet that the device knows: it is read all the same.
            sys::send_packet(caller.as_raw_fd(), &[0xff]).expect("send");
            callers.push(caller);
            server.ready(token, &mut arrivals);
        }
        assert_eq!(server.links.len(), 2 * SILENT);
    }

    #[test]
    fn a_wildcard_and_an_address_of_other_processes_exclude_each_other() {
        let namespace = format!("overlap-{}", std::process::id());
        let mut first = Links::new(namespace.clone()).expect("first");
        let mut second = Links::new(namespace).expect("second");
        let name = |ip: &str| Name::parse(&format!("0106/7471/{ip}")).expect("name");
        let overlaps = [
            ("0.0.0.0", "127.0.0.1"),
            ("::", "127.0.0.1"),
            ("::", "::1"),
            ("::!", "::1"),
            ("::", "0.0.0.0"),
            ("0.0.0.0", "0.0.0.0"),
        ];
        for (one, other) in overlaps {
            for (held, wanted) in [(one, other), (other, one)] {
                first.bind(&name(held)).expect("bind");
                let refusal = second.bind(&name(wanted));
                assert_eq!(refusal, Err(libc::EADDRNOTAVAIL), "{wanted} while {held} is held");
                first.unbind(&name(held));
                second.bind(&name(wanted)).expect("free again");
                second.unbind(&name(wanted));
            }
        }
        first.bind(&name("127.0.0.1")).expect("bind");
        assert_eq!(second.bind(&name("127.0.0.1")), Err(libc::EADDRINUSE));
        second.bind(&name("127.0.0.2")).expect("another address");
        second.bind(&name("::!")).expect("another family");
    }
}
