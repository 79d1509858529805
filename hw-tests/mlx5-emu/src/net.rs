//! Messages between processes: a ring in shared memory ([`crate::ring`]) per direction and pair of
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

use crate::device::Device;
use crate::engine::datagram::Datagram;
use crate::engine::responder::{Op, Payload, Reply, Request};
use crate::mem;
use crate::objects::{QPN_INDEX_BITS, QpType, syndrome};
use crate::ring::{CAPACITY, Ring};
use crate::sys;

/// Slots 1 to this.
pub(crate) const SLOTS: u32 = (1 << (24 - QPN_INDEX_BITS)) - 1;
/// The longest frame that travels whole; longer ones are cut into parts.
const WHOLE: usize = CAPACITY / 4 * 3;
/// Data in a part of a frame.
const PART: usize = CAPACITY / 4;
/// Frames start at multiples of this, so that counters are aligned.
const ALIGN: usize = 8;
/// The longest frame in parts: a request with the most payload that a card sends.
const LONGEST: usize = (1 << 30) + REQUEST_HEAD;
/// Connections whose peers have offered no ring yet. A peer offers its ring as soon as it connects.
const IDLE: usize = 64;
/// The sockets are checked for lost peers once per this number of calls.
const CALLS: u32 = 64;

const FRAME_REQUEST: u8 = 1;
const FRAME_REPLY: u8 = 2;
/// A part of a frame that is continued.
const FRAME_PART: u8 = 3;
/// The last part of a frame.
const FRAME_LAST_PART: u8 = 4;
/// Bytes of a request before its payload, and of a part before its data.
const REQUEST_HEAD: usize = 119;
const PART_HEAD: usize = 8;

/// A connection that a peer made to us.
struct Incoming {
    stream: UnixStream,
    ring: Option<Ring>,
    /// The part of a frame that has arrived so far.
    parts: Vec<u8>,
    open: bool,
}

impl Incoming {
    /// Takes the ring that the peer offers, if it has none yet.
    fn take_ring(&mut self) {
        if self.ring.is_none() {
            match Ring::accept(self.stream.as_raw_fd()) {
                Ok(ring) => self.ring = ring,
                Err(_) => self.open = false,
            }
        }
    }
}

/// A connection that we made to a peer.
struct Outgoing {
    stream: UnixStream,
    ring: Ring,
    /// Frames that the ring had no room for.
    queue: Vec<u8>,
    /// Bytes of `queue` that are in the ring.
    done: usize,
    /// A request waits for this many free bytes.
    wanted: usize,
}

impl Outgoing {
    /// True when there is room for the waiting data.
    fn can_go_on(&self) -> bool {
        let free = self.ring.free();
        free >= if self.queue.is_empty() { self.wanted } else { ALIGN }
    }

    fn wake(&mut self, asleep: bool) {
        if asleep {
            wake(&self.stream);
        }
    }

    /// Moves waiting data into the ring as far as there is room.
    fn advance(&mut self) {
        while self.done < self.queue.len() {
            let len = self.ring.free().min(self.queue.len() - self.done);
            let Some(room) = self.ring.room(len).filter(|room| !room.is_empty()) else { break };
            room.copy_from_slice(&self.queue[self.done..][..len]);
            self.done += len;
            let asleep = self.ring.publish(len);
            self.wake(asleep);
        }
        if self.done == self.queue.len() {
            self.queue.clear();
            self.done = 0;
        } else if self.done > self.queue.len() / 2 {
            self.queue.drain(..self.done);
            self.done = 0;
        }
    }

    /// Sends a frame of `len` bytes that `write` fills in.
    fn frame(&mut self, len: usize, write: impl FnOnce(&mut [u8])) {
        let padded = len.next_multiple_of(ALIGN);
        if self.queue.is_empty()
            && padded <= WHOLE
            && let Some(room) = self.ring.room(padded)
        {
            write(&mut room[..len]);
            let asleep = self.ring.publish(padded);
            self.wake(asleep);
            return;
        }
        if padded <= WHOLE {
            let at = self.queue.len();
            self.queue.resize(at + padded, 0);
            write(&mut self.queue[at..at + len]);
        } else {
            let mut whole = vec![0; len];
            write(&mut whole);
            let count = len.div_ceil(PART);
            for (i, part) in whole.chunks(PART).enumerate() {
                let kind = if i + 1 == count { FRAME_LAST_PART } else { FRAME_PART };
                self.queue.extend_from_slice(&((PART_HEAD + part.len()) as u32).to_le_bytes());
                self.queue.extend_from_slice(&[kind, 0, 0, 0]);
                self.queue.extend_from_slice(part);
                self.queue.resize(self.queue.len().next_multiple_of(ALIGN), 0);
            }
        }
        self.advance();
        if !self.queue.is_empty() {
            crate::wake::wake();
        }
    }
}

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
    /// The thread of the program that serves the device while it sleeps ([`crate::waits`]): the
    /// generation when it fell asleep.
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
    SocketAddr::from_abstract_name(format!("mlx5-emu/{}/{slot}", crate::config::session()))
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
            crate::wake::wake();
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
                crate::wake::wake();
                Some(place.insert(Outgoing { stream, ring, queue: Vec::new(), done: 0, wanted: 0 }))
            }
        }
    }

    /// Sends a request with its payload; false when the peer is not there.
    pub(crate) fn send_request(
        &mut self,
        slot: u32,
        request: &Request,
        payload: &[crate::objects::Seg],
    ) -> bool {
        let Some(peer) = self.peer(slot) else { return false };
        let total: usize = payload.iter().map(|seg| seg.len as usize).sum();
        peer.frame(REQUEST_HEAD + total, |frame| {
            let (head, body) = frame.split_at_mut(REQUEST_HEAD);
            write_head(head, request, total);
            Payload::Segments(payload).gather(body);
        });
        let waits_for_room = !peer.queue.is_empty();
        self.generation += u64::from(waits_for_room);
        true
    }

    fn send_reply(&mut self, request: &Request, reply: Reply) {
        let (code, value) = match reply {
            Reply::Ack => (0, 0),
            Reply::Data(_) => (1, 0),
            Reply::Old(_) => (2, 0),
            Reply::NotReady(timer) => (3, timer),
            Reply::Nak(syndrome) | Reply::NakCompleted(syndrome) => (4, syndrome as u8),
            Reply::Silence => (5, 0),
        };
        let data = match reply {
            Reply::Data(_) => request.len as usize,
            Reply::Old(_) => 8,
            _ => 0,
        };
        let Some(peer) = self.peer(Device::process_of(request.source_qpn)) else { return };
        peer.frame(16 + data, |frame| {
            let (head, body) = frame.split_at_mut(16);
            head[..4].copy_from_slice(&((16 + data) as u32).to_le_bytes());
            head[4..8].copy_from_slice(&[FRAME_REPLY, code, value, 0]);
            head[8..12].copy_from_slice(&request.source_qpn.to_le_bytes());
            head[12..].copy_from_slice(&request.sn.to_le_bytes());
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
            crate::wake::wake();
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
        crate::wake::wake();
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
                self.incoming.push(Incoming { stream, ring: None, parts: Vec::new(), open: true });
                self.look_at_sockets = true;
                self.generation += 1;
                crate::wake::wake();
            }
        }
    }
}

/// Whether parts that have arrived can be continued with so many bytes.
fn is_room(parts: &[u8], more: usize, longest: usize) -> bool {
    parts.len() + more <= longest + PART_HEAD
}

/// Writes the header of a request, in front of its payload.
fn write_head(head: &mut [u8], request: &Request, payload: usize) {
    let mut rest = head;
    let mut put = |bytes: &[u8]| {
        let (place, after) = std::mem::take(&mut rest).split_at_mut(bytes.len());
        place.copy_from_slice(bytes);
        rest = after;
    };
    put(&((REQUEST_HEAD + payload) as u32).to_le_bytes());
    put(&[FRAME_REQUEST, request.op as u8, request.kind as u8, u8::from(request.solicited)]);
    for word in [request.source_qpn, request.dest_qpn, request.sn, request.len, request.rkey, request.srqn] {
        put(&word.to_le_bytes());
    }
    put(&request.imm);
    put(&request.raddr.to_le_bytes());
    for word in request.operands {
        put(&word.to_le_bytes());
    }
    put(&[u8::from(request.datagram.is_some())]);
    let datagram = request.datagram.unwrap_or_default();
    put(&datagram.qkey.to_le_bytes());
    put(&datagram.source_gid);
    put(&datagram.dest_gid);
    put(&[datagram.traffic_class, datagram.hop_limit]);
    put(&datagram.flow_label.to_le_bytes());
    debug_assert!(rest.is_empty(), "REQUEST_HEAD");
}

/// Takes a frame apart.
struct Cursor<'a>(&'a [u8]);

impl Cursor<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*head)
    }

    fn u8(&mut self) -> Option<u8> {
        self.take::<1>().map(|[byte]| byte)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }
}

fn parse_request(cursor: &mut Cursor<'_>) -> Option<Request> {
    let op = Op::from_raw(cursor.u8()?)?;
    let kind = QpType::from_raw(cursor.u8()?)?;
    let solicited = cursor.u8()? != 0;
    let (source_qpn, dest_qpn, sn, len, rkey, srqn) =
        (cursor.u32()?, cursor.u32()?, cursor.u32()?, cursor.u32()?, cursor.u32()?, cursor.u32()?);
    let imm = cursor.take()?;
    let raddr = cursor.u64()?;
    let operands = [cursor.u64()?, cursor.u64()?, cursor.u64()?, cursor.u64()?];
    let has_datagram = cursor.u8()? != 0;
    let datagram = Datagram {
        qkey: cursor.u32()?,
        source_gid: cursor.take()?,
        dest_gid: cursor.take()?,
        traffic_class: cursor.u8()?,
        hop_limit: cursor.u8()?,
        flow_label: cursor.u32()?,
    };
    if !op.reads() && cursor.0.len() != len as usize {
        return None;
    }
    Some(Request {
        op,
        kind,
        source_qpn,
        dest_qpn,
        sn,
        imm,
        solicited,
        len,
        rkey,
        raddr,
        operands,
        srqn,
        datagram: has_datagram.then_some(datagram),
    })
}

impl Device {
    /// Reads the frames of peers, answers them, and writes waiting data.
    pub(crate) fn run_net(&mut self) {
        self.net.calls = self.net.calls.wrapping_add(1);
        let due = self.net.calls.is_multiple_of(CALLS);
        if due || self.net.incoming.is_empty() {
            self.net.accept();
        }
        let look = std::mem::take(&mut self.net.look_at_sockets) || due;
        let lost = if look { self.look_at_sockets() } else { Vec::new() };
        let mut incoming = std::mem::take(&mut self.net.incoming);
        for peer in &mut incoming {
            self.serve(peer);
        }
        for peer in incoming {
            if peer.open {
                self.net.incoming.push(peer);
            } else {
                self.net.leave(peer);
            }
        }
        // What a lost peer has answered before its end counts.
        for slot in lost {
            self.peer_lost(slot);
        }
        self.write_waiting();
    }

    /// Takes the bytes that wake us, rings that are offered, and notice of peers that are gone. Returns
    /// the peers that are lost to those who send to them.
    fn look_at_sockets(&mut self) -> Vec<u32> {
        let mut lost = Vec::new();
        for (&slot, peer) in &mut self.net.outgoing {
            if !is_there(&mut peer.stream) {
                lost.push(slot);
            }
        }
        for slot in &lost {
            if let Some(peer) = self.net.outgoing.remove(slot) {
                self.net.leave(peer);
            }
        }
        if !lost.is_empty() {
            self.net.accept();
        }
        // A lost peer is served once more: it may have written before its end.
        for peer in &mut self.net.incoming {
            if peer.ring.is_none() {
                peer.take_ring();
            } else {
                peer.open = is_there(&mut peer.stream);
            }
        }
        if self.net.sleepers > 0 {
            // Another thread still sleeps, and this byte may have been for that thread.
            self.net.note_sleep();
        }
        lost
    }

    fn serve(&mut self, peer: &mut Incoming) {
        let Some(ring) = &mut peer.ring else { return };
        if ring.filled() == 0 {
            return;
        }
        let mut done = 0;
        let written = ring.written();
        while let Some(&head) = written[done..].first_chunk::<4>() {
            let len = u32::from_le_bytes(head) as usize;
            let padded = len.next_multiple_of(ALIGN);
            if !(8..=WHOLE).contains(&len) {
                peer.open = false;
                return;
            }
            if written.len() - done < padded {
                break;
            }
            let frame = &written[done + 4..done + len];
            match frame[0] {
                FRAME_PART | FRAME_LAST_PART if !is_room(&peer.parts, frame.len(), LONGEST) => {
                    peer.open = false;
                    return;
                }
                FRAME_PART => peer.parts.extend_from_slice(&frame[PART_HEAD - 4..]),
                FRAME_LAST_PART => {
                    peer.parts.extend_from_slice(&frame[PART_HEAD - 4..]);
                    let whole = std::mem::take(&mut peer.parts);
                    self.frame(whole.get(4..).unwrap_or(&[]));
                    peer.parts = whole;
                    peer.parts.clear();
                }
                _ => self.frame(frame),
            }
            done += padded;
        }
        if ring.consumed(done) {
            wake(&peer.stream);
        }
    }

    fn frame(&mut self, frame: &[u8]) {
        let mut cursor = Cursor(frame);
        match cursor.u8() {
            Some(FRAME_REQUEST) => {
                let Some(request) = parse_request(&mut cursor) else { return };
                let reply = self.respond(&request, Payload::Bytes(cursor.0));
                if request.kind.is_reliable() {
                    self.net.send_reply(&request, reply);
                }
            }
            Some(FRAME_REPLY) if !self.dead => {
                let (Some(code), Some(value), Some(_)) = (cursor.u8(), cursor.u8(), cursor.u8()) else {
                    return;
                };
                let (Some(qpn), Some(sn)) = (cursor.u32(), cursor.u32()) else { return };
                let reply = match code {
                    0 => Reply::Ack,
                    1 => Reply::Data(0),
                    2 => Reply::Old(0),
                    3 => Reply::NotReady(value),
                    4 => Reply::Nak(syndrome::usual(value)),
                    _ => Reply::Silence,
                };
                self.answered(qpn, sn, reply, cursor.0);
            }
            _ => {}
        }
    }

    fn write_waiting(&mut self) {
        let mut freed = false;
        for peer in self.net.outgoing.values_mut() {
            if !peer.queue.is_empty() {
                peer.advance();
            }
            if peer.wanted > 0 && peer.queue.is_empty() && peer.can_go_on() {
                peer.wanted = 0;
                freed = true;
            }
        }
        if freed {
            self.unblock_all();
        }
    }
}

/// Wakes a sleeper at the other end. A socket that is full of such bytes wakes the sleeper anyway.
fn wake(stream: &UnixStream) {
    let _ = sys::send_packet(stream.as_raw_fd(), &[0]);
}

/// Reads the bytes of a socket that only wakes; false when the peer is gone.
fn is_there(stream: &mut UnixStream) -> bool {
    loop {
        match stream.read(&mut [0; 64]) {
            Ok(0) => return false,
            Ok(64) => {}
            Ok(_) => return true,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return error.kind() == ErrorKind::WouldBlock,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The longest request of a card fits into its parts; endless parts do not.
    #[test]
    fn parts_are_bounded() {
        let part = PART_HEAD - 4 + PART;
        let before_last = vec![0; LONGEST / PART * PART];
        assert!(is_room(&before_last, PART_HEAD - 4 + LONGEST % PART, LONGEST));
        assert!(!is_room(&before_last, part, LONGEST));
    }
}
