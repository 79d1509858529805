//! Messages between processes: a ring in shared memory ([`super::ring`]) per direction and pair of
//! processes, and a stream socket that passes the ring to the peer.
//!
//! Frames travel through the ring. The socket is bound to an abstract address that names a session
//! and a slot. It wakes a sleeping peer, and its end of file reports that the peer has gone.
//!
//! The slot is the upper part of every QP number, so a QP number identifies the process that owns
//! the QP. Binding the address claims the slot. The slot becomes free when the process ends, for
//! any reason, and the file system keeps no trace of it.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io::{ErrorKind, Read as _};
use std::os::fd::{AsRawFd as _, RawFd};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::{Duration, Instant};

use super::frame::{ALIGN, REPLY_HEAD, REQUEST_HEAD, write_reply, write_request};
use super::peer::{Incoming, Outgoing, WHOLE, is_there};
use super::request::{Payload, Reply, Request};
use super::ring::Ring;
use crate::host::{mem, sys, wake};
use crate::objects::{QPN_INDEX_BITS, Seg, process_of};

/// Slots 1 to this.
pub(crate) const SLOTS: u32 = (1 << (24 - QPN_INDEX_BITS)) - 1;
/// Connections whose peers have offered no ring yet. A peer offers its ring as soon as it connects.
const IDLE: usize = 64;
/// The sockets are checked for lost peers once per this number of calls.
const CALLS: u32 = 64;

/// Connections to lost peers are dropped with the device locked if the helper has left this number.
const GONE: usize = 16;

/// The process's place among the others.
pub(crate) struct Net {
    slot: u32,
    listener: Option<UnixListener>,
    incoming: Vec<Incoming>,
    outgoing: HashMap<u32, Outgoing>,
    /// Connections to lost peers, to be dropped. That unmaps rings, which takes as long as some
    /// commands of a program.
    gone: Vec<Box<dyn Send>>,
    calls: u32,
    /// Threads that sleep until a descriptor can be read.
    sleepers: u32,
    /// A byte may have come through a socket.
    look_at_sockets: bool,
    /// Counts changes of what [`Net::fall_asleep`] returns and announces.
    generation: u64,
    /// The thread of the program that serves the device while it sleeps
    /// ([`crate::program::waits`]): the generation when it fell asleep.
    waiting: Option<u64>,
    /// Sleeps of such threads.
    pub(crate) waits: u64,
    /// Threads that sleep on a completion channel, and rely on another thread to be served.
    pub(crate) bystanders: u32,
    /// The helper sleeps without the peers until the thread that serves them tells it.
    handed_over: bool,
}

/// What [`Net::start_waiting`] finds.
pub(crate) enum Waiting {
    /// There is work already.
    Work,
    /// Sleep on these descriptors, then call [`Net::stop_waiting`].
    Sleep(Vec<RawFd>),
    /// Another thread serves the device.
    Taken,
}

fn address(slot: u32) -> std::io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("mlx5-emu/{}/{slot}", crate::host::config::session()))
}

impl Net {
    /// Claims a slot.
    pub(crate) fn new() -> Self {
        let mut net = Self {
            slot: 0,
            listener: None,
            incoming: Vec::new(),
            outgoing: HashMap::new(),
            gone: Vec::new(),
            calls: 0,
            sleepers: 0,
            look_at_sockets: false,
            generation: 0,
            waiting: None,
            waits: 0,
            bystanders: 0,
            handed_over: false,
        };
        let first = std::process::id() % SLOTS;
        for step in 0..SLOTS {
            let slot = (first + step) % SLOTS + 1;
            let bound = address(slot).and_then(|address| UnixListener::bind_addr(&address));
            match bound {
                Ok(listener) => {
                    if listener.set_nonblocking(true).is_ok() {
                        net.listener = Some(listener);
                    }
                    net.slot = slot;
                    return net;
                }
                Err(error) if error.kind() == ErrorKind::AddrInUse => {}
                Err(_) => break,
            }
        }
        // Alone: no sockets here, or 2047 processes already. Connections inside the process work.
        net.slot = first + 1;
        net
    }

    /// The process part of our QP numbers.
    #[inline(always)]
    pub(crate) fn slot(&self) -> u32 {
        self.slot
    }

    /// The first QP and SRQ number of this process.
    pub(crate) fn number_base(&self) -> u32 {
        self.slot << QPN_INDEX_BITS
    }

    /// True when there may be something to read or write.
    #[inline]
    pub(crate) fn active(&mut self) -> bool {
        if self.has_peers() {
            return true;
        }
        // The helper thread notices a first connection. There may be no helper thread, so every
        // 256th call looks for one.
        self.calls = self.calls.wrapping_add(1);
        self.calls.is_multiple_of(256)
    }

    /// Connected with other processes.
    pub(crate) fn has_peers(&self) -> bool {
        !self.incoming.is_empty() || !self.outgoing.is_empty()
    }

    /// True when the data queued for this peer leaves no room for a request with this much payload.
    /// The waiting QPs are then notified when there is room.
    pub(crate) fn congested(&mut self, slot: u32, payload: u32) -> bool {
        let Some(peer) = self.outgoing.get_mut(&slot) else { return false };
        let need = (REQUEST_HEAD + payload as usize + ALIGN).min(WHOLE);
        if peer.queue.is_empty() && peer.ring.free() >= need {
            return false;
        }
        if peer.wanted == 0 {
            self.generation += 1;
            wake::wake();
        }
        peer.wanted = peer.wanted.max(need);
        true
    }

    fn peer(&mut self, slot: u32) -> Option<&mut Outgoing> {
        match self.outgoing.entry(slot) {
            Entry::Occupied(known) => Some(known.into_mut()),
            Entry::Vacant(place) => {
                let stream = UnixStream::connect_addr(&address(slot).ok()?).ok()?;
                if !sys::is_own_peer(stream.as_raw_fd()) {
                    return None;
                }
                stream.set_nonblocking(true).ok()?;
                let ring = Ring::offer(stream.as_raw_fd()).ok()?;
                self.generation += 1;
                wake::wake();
                Some(place.insert(Outgoing::new(stream, ring)))
            }
        }
    }

    /// Sends a request with its payload; false when the peer is not there.
    pub(crate) fn send_request(&mut self, slot: u32, request: &Request, payload: &[Seg]) -> bool {
        let Some(peer) = self.peer(slot) else { return false };
        let total: usize = payload.iter().map(|seg| seg.len as usize).sum();
        peer.frame(REQUEST_HEAD + total, |frame| {
            let (head, body) = frame.split_at_mut(REQUEST_HEAD);
            write_request(head, request, total);
            Payload::Segments(payload).gather(body);
        });
        let waits_for_room = !peer.queue.is_empty();
        self.generation += u64::from(waits_for_room);
        true
    }

    /// Sends the answer to a request.
    pub(crate) fn send_reply(&mut self, request: &Request, reply: Reply) {
        let data = match reply {
            Reply::Data(_) => request.len as usize,
            Reply::Old(_) => 8,
            _ => 0,
        };
        let Some(peer) = self.peer(process_of(request.source_qpn)) else { return };
        peer.frame(REPLY_HEAD + data, |frame| {
            let (head, body) = frame.split_at_mut(REPLY_HEAD);
            write_reply(head, request, reply, data);
            match reply {
                Reply::Data(from) if data > 0 => mem::read_region(from, body),
                Reply::Old(value) => body.copy_from_slice(&value.to_ne_bytes()),
                _ => {}
            }
        });
        let waits_for_room = !peer.queue.is_empty();
        self.generation += u64::from(waits_for_room);
    }

    /// Prepares for a sleep of the caller. Returns the descriptors that end the sleep, or `None`
    /// when there is work already. After the sleep the caller calls [`Net::awake`].
    pub(crate) fn fall_asleep(&mut self) -> Option<Vec<RawFd>> {
        self.sleepers += 1;
        if self.note_sleep() {
            self.awake();
            return None;
        }
        let mut list: Vec<RawFd> = self.listener.iter().map(|l| l.as_raw_fd()).collect();
        list.extend(self.incoming.iter().map(|peer| peer.stream.as_raw_fd()));
        list.extend(self.outgoing.values().map(|peer| peer.stream.as_raw_fd()));
        Some(list)
    }

    /// A sleep is over.
    pub(crate) fn awake(&mut self) {
        self.sleepers -= 1;
        self.look_at_sockets = true;
        if self.sleepers == 0 {
            self.incoming.iter().filter_map(|peer| peer.ring.as_ref()).for_each(Ring::awake);
            self.outgoing.values().for_each(|peer| peer.ring.awake());
        }
    }

    /// As [`Net::fall_asleep`], for a thread of the program that serves the device while it sleeps.
    pub(crate) fn start_waiting(&mut self) -> Waiting {
        if self.waiting.is_some() {
            return Waiting::Taken;
        }
        let Some(list) = self.fall_asleep() else { return Waiting::Work };
        self.waiting = Some(self.generation);
        self.waits += 1;
        Waiting::Sleep(list)
    }

    /// The sleep after [`Net::start_waiting`] is over.
    pub(crate) fn stop_waiting(&mut self) {
        // In a forked child no thread waits.
        if self.waiting.take().is_none() {
            return;
        }
        self.awake();
        if std::mem::take(&mut self.handed_over) || self.bystanders > 0 {
            wake::wake();
        }
    }

    /// A thread of the program is asleep that serves every peer.
    pub(crate) fn is_served(&self) -> bool {
        self.waiting == Some(self.generation)
    }

    /// A thread of the program serves the peers, or does so again soon.
    pub(crate) fn will_be_served(&self, waits_before: u64) -> bool {
        self.is_served() || self.waiting.is_none() && self.bystanders == 0 && self.waits != waits_before
    }

    /// The helper is about to sleep until the thread that serves the peers stops. Returns false if
    /// there is no such thread.
    pub(crate) fn hand_over(&mut self) -> bool {
        self.handed_over = self.is_served();
        self.handed_over
    }

    /// Tells the peers that a thread of this process sleeps. Returns true when there is work
    /// already.
    fn note_sleep(&self) -> bool {
        let mut work = false;
        for ring in self.incoming.iter().filter_map(|peer| peer.ring.as_ref()) {
            ring.sleep();
            work |= ring.filled() > 0;
        }
        for peer in self.outgoing.values().filter(|peer| peer.wanted > 0 || !peer.queue.is_empty()) {
            peer.ring.sleep();
            work |= peer.can_go_on();
        }
        work
    }

    /// Waits until the frames queued for each peer are in its ring, for at most half a second in
    /// total. Called before the process ends: on hardware these answers would already be on the
    /// wire.
    pub(crate) fn linger(&mut self) {
        let until = Instant::now() + Duration::from_millis(500);
        for peer in self.outgoing.values_mut() {
            while !peer.queue.is_empty() && Instant::now() < until {
                peer.advance();
                if matches!(peer.stream.read(&mut [0; 64]), Ok(0)) {
                    break;
                }
                std::thread::sleep(Duration::from_micros(100));
            }
        }
    }

    /// Leaves the connection to a lost peer to the helper, which drops it without the lock of the
    /// device.
    fn leave(&mut self, peer: impl Send + 'static) {
        if self.gone.len() >= GONE {
            // There may be no helper.
            self.gone.clear();
        }
        self.gone.push(Box::new(peer));
        wake::wake();
    }

    /// Connections to lost peers, to be dropped without the lock of the device.
    pub(crate) fn take_gone(&mut self) -> Vec<Box<dyn Send>> {
        std::mem::take(&mut self.gone)
    }

    /// Accepts the connections of peers. The kernel allocates a socket even for an accept that
    /// finds no connection, so this asks first whether there is one.
    pub(crate) fn accept(&mut self) {
        let Some(listener) = &self.listener else { return };
        let is_there = || sys::wait_for(&[listener.as_raw_fd()], Duration::ZERO);
        while is_there()
            && let Ok((stream, _)) = listener.accept()
        {
            if sys::is_own_peer(stream.as_raw_fd()) && stream.set_nonblocking(true).is_ok() {
                let idle = |incoming: &[Incoming]| incoming.iter().filter(|peer| peer.ring.is_none()).count();
                if idle(&self.incoming) >= IDLE {
                    // Many may have connected at once, and their rings were not taken yet.
                    self.incoming.iter_mut().for_each(Incoming::take_ring);
                }
                if idle(&self.incoming) >= IDLE {
                    // The oldest.
                    let oldest = self.incoming.iter().position(|peer| peer.ring.is_none());
                    oldest.map(|oldest| self.incoming.remove(oldest));
                }
                self.incoming.push(Incoming::new(stream));
                self.look_at_sockets = true;
                self.generation += 1;
                wake::wake();
            }
        }
    }

    /// Accepts connections and looks at the sockets, as often as they need it. Returns the peers
    /// that are lost to those who send to them.
    pub(crate) fn look(&mut self) -> Vec<u32> {
        self.calls = self.calls.wrapping_add(1);
        let due = self.calls.is_multiple_of(CALLS);
        if due || self.incoming.is_empty() {
            self.accept();
        }
        let look = std::mem::take(&mut self.look_at_sockets) || due;
        if look { self.look_at_sockets() } else { Vec::new() }
    }

    /// The connections of peers, to be served. [`Net::put_back`] takes them back.
    pub(crate) fn take_incoming(&mut self) -> Vec<Incoming> {
        std::mem::take(&mut self.incoming)
    }

    pub(crate) fn put_back(&mut self, incoming: Vec<Incoming>) {
        for peer in incoming {
            if peer.open {
                self.incoming.push(peer);
            } else {
                self.leave(peer);
            }
        }
    }

    /// Takes the bytes that wake us, rings that are offered, and notice of peers that are gone.
    /// Returns the peers that are lost to those who send to them.
    fn look_at_sockets(&mut self) -> Vec<u32> {
        let mut lost = Vec::new();
        for (&slot, peer) in &mut self.outgoing {
            if !is_there(&mut peer.stream) {
                lost.push(slot);
            }
        }
        for slot in &lost {
            if let Some(peer) = self.outgoing.remove(slot) {
                self.leave(peer);
            }
        }
        if !lost.is_empty() {
            self.accept();
        }
        // A lost peer is served once more: it may have written before its end.
        for peer in &mut self.incoming {
            if peer.ring.is_none() {
                peer.take_ring();
            } else {
                peer.open = is_there(&mut peer.stream);
            }
        }
        if self.sleepers > 0 {
            // Another thread still sleeps, and this byte may have been for that thread.
            self.note_sleep();
        }
        lost
    }

    /// Writes waiting data. Returns true if there is room for a request that waited for it.
    pub(crate) fn write_waiting(&mut self) -> bool {
        let mut freed = false;
        for peer in self.outgoing.values_mut() {
            if !peer.queue.is_empty() {
                peer.advance();
            }
            if peer.wanted > 0 && peer.queue.is_empty() && peer.can_go_on() {
                peer.wanted = 0;
                freed = true;
            }
        }
        freed
    }
}
