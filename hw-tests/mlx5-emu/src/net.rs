//! Messages between processes: one stream socket per direction and pair, at abstract addresses that name a session and a slot.
//!
//! The slot is the upper part of every QP number, so a number says which process to send to. Binding the address claims the slot;
//! it is free again when the process ends, whatever ends it, and nothing is left in the file system.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::fd::{AsRawFd as _, RawFd};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};

use crate::device::{Device, QPN_INDEX_BITS};
use crate::engine::responder::{Datagram, Op, Payload, Reply, Request};
use crate::mem;
use crate::qp_state::QpType;

/// Slots 1 to this.
const SLOTS: u32 = (1 << (24 - QPN_INDEX_BITS)) - 1;
/// Bytes waiting for a peer beyond which requests wait too.
const CONGESTED: usize = 4 << 20;

/// Bytes read at a time.
const CHUNK: usize = 64 << 10;

const FRAME_REQUEST: u8 = 1;
const FRAME_REPLY: u8 = 2;

/// A connection that a peer made to us.
struct Incoming {
    stream: UnixStream,
    buffer: Vec<u8>,
    /// Bytes of `buffer` that were dealt with.
    done: usize,
    open: bool,
}

/// A connection that we made to a peer.
struct Outgoing {
    stream: UnixStream,
    queue: Vec<u8>,
    /// Bytes of `queue` that were written.
    done: usize,
}

impl Outgoing {
    fn waiting(&self) -> usize {
        self.queue.len() - self.done
    }
}

/// The process's place among the others.
pub(crate) struct Net {
    slot: u32,
    listener: Option<UnixListener>,
    incoming: Vec<Incoming>,
    outgoing: HashMap<u32, Outgoing>,
    calls: u32,
    /// Scratch space for reading.
    chunk: Vec<u8>,
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
            calls: 0,
            chunk: Vec::new(),
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

    /// What QP and SRQ numbers start from.
    pub(crate) fn number_base(&self) -> u32 {
        self.slot << QPN_INDEX_BITS
    }

    /// True when there may be something to read or write.
    #[inline]
    pub(crate) fn active(&mut self) -> bool {
        if self.has_peers() {
            return true;
        }
        // A first connection is otherwise noticed by the helper thread; without one, look now and then.
        self.calls = self.calls.wrapping_add(1);
        self.calls.is_multiple_of(256)
    }

    /// Connected with other processes.
    pub(crate) fn has_peers(&self) -> bool {
        !self.incoming.is_empty() || !self.outgoing.is_empty()
    }

    /// Too much waits for this peer already.
    pub(crate) fn congested(&self, slot: u32) -> bool {
        self.outgoing.get(&slot).is_some_and(|peer| peer.waiting() > CONGESTED)
    }

    fn peer(&mut self, slot: u32) -> Option<&mut Outgoing> {
        match self.outgoing.entry(slot) {
            Entry::Occupied(known) => Some(known.into_mut()),
            Entry::Vacant(place) => {
                let stream = UnixStream::connect_addr(&address(slot).ok()?).ok()?;
                stream.set_nonblocking(true).ok()?;
                crate::helper::wake();
                Some(place.insert(Outgoing { stream, queue: Vec::new(), done: 0 }))
            }
        }
    }

    /// Sends a frame; false when the peer is not there.
    fn send(&mut self, slot: u32, frame: &[u8]) -> bool {
        let Some(peer) = self.peer(slot) else { return false };
        let mut at = 0;
        if peer.queue.is_empty() {
            match peer.stream.write(frame) {
                Ok(written) => at = written,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(_) => {
                    self.outgoing.remove(&slot);
                    return false;
                }
            }
        }
        if at < frame.len() {
            peer.queue.extend_from_slice(&frame[at..]);
            crate::helper::wake();
        }
        true
    }

    /// Sends a request with its payload; false when the peer is not there.
    pub(crate) fn send_request(
        &mut self,
        slot: u32,
        request: &Request,
        payload: &[crate::objects::Seg],
    ) -> bool {
        let mut frame = Vec::with_capacity(192 + request.len as usize);
        frame.extend_from_slice(&[0; 4]);
        frame.push(FRAME_REQUEST);
        frame.push(request.op as u8);
        frame.push(request.kind as u8);
        frame.push(u8::from(request.solicited));
        for word in
            [request.source_qpn, request.dest_qpn, request.sn, request.len, request.rkey, request.srqn]
        {
            frame.extend_from_slice(&word.to_le_bytes());
        }
        frame.extend_from_slice(&request.imm);
        frame.extend_from_slice(&request.raddr.to_le_bytes());
        for word in request.operands {
            frame.extend_from_slice(&word.to_le_bytes());
        }
        frame.push(u8::from(request.datagram.is_some()));
        let datagram = request.datagram.unwrap_or_default();
        frame.extend_from_slice(&datagram.qkey.to_le_bytes());
        frame.extend_from_slice(&datagram.source_gid);
        frame.extend_from_slice(&datagram.dest_gid);
        frame.push(datagram.traffic_class);
        frame.push(datagram.hop_limit);
        frame.extend_from_slice(&datagram.flow_label.to_le_bytes());
        let head = frame.len();
        let total: usize = payload.iter().map(|seg| seg.len as usize).sum();
        frame.resize(head + total, 0);
        Payload::Segments(payload).gather(&mut frame[head..]);
        let len = frame.len() as u32;
        frame[..4].copy_from_slice(&len.to_le_bytes());
        self.send(slot, &frame)
    }

    fn send_reply(&mut self, request: &Request, reply: Reply) {
        let (code, value) = match reply {
            Reply::Ack => (0, 0),
            Reply::Data(_) => (1, 0),
            Reply::Old(_) => (2, 0),
            Reply::NotReady(timer) => (3, timer),
            Reply::Nak(syndrome) | Reply::NakCompleted(syndrome) => (4, syndrome),
            Reply::Silence => (5, 0),
        };
        let mut frame = vec![0; 4];
        frame.extend_from_slice(&[FRAME_REPLY, code, value, 0]);
        frame.extend_from_slice(&request.source_qpn.to_le_bytes());
        frame.extend_from_slice(&request.sn.to_le_bytes());
        match reply {
            Reply::Data(from) => {
                let head = frame.len();
                frame.resize(head + request.len as usize, 0);
                if request.len > 0 {
                    mem::read_region(from, &mut frame[head..]);
                }
            }
            Reply::Old(value) => frame.extend_from_slice(&value.to_ne_bytes()),
            _ => {}
        }
        let len = frame.len() as u32;
        frame[..4].copy_from_slice(&len.to_le_bytes());
        self.send(Device::process_of(request.source_qpn), &frame);
    }

    /// Descriptors to wait for, with whether they wait for room to write.
    pub(crate) fn descriptors(&self) -> Vec<(RawFd, bool)> {
        let mut list: Vec<(RawFd, bool)> = self.listener.iter().map(|l| (l.as_raw_fd(), false)).collect();
        list.extend(self.incoming.iter().map(|peer| (peer.stream.as_raw_fd(), false)));
        list.extend(self.outgoing.values().map(|peer| (peer.stream.as_raw_fd(), !peer.queue.is_empty())));
        list
    }

    /// Writes what waits before the process goes away: on hardware, an answer was on the wire long ago.
    pub(crate) fn linger(&mut self) {
        for peer in self.outgoing.values_mut() {
            if peer.waiting() == 0 || peer.stream.set_nonblocking(false).is_err() {
                continue;
            }
            let _ = peer.stream.set_write_timeout(Some(std::time::Duration::from_millis(500)));
            let _ = peer.stream.write_all(&peer.queue[peer.done..]);
            peer.queue.clear();
            peer.done = 0;
            let _ = peer.stream.set_nonblocking(true);
        }
    }

    /// Takes connections that peers made. The kernel makes a socket before it says that there is none to take, so this is not
    /// for every look.
    pub(crate) fn accept(&mut self) {
        let Some(listener) = &self.listener else { return };
        while let Ok((stream, _)) = listener.accept() {
            if stream.set_nonblocking(true).is_ok() {
                self.incoming.push(Incoming { stream, buffer: Vec::new(), done: 0, open: true });
            }
        }
    }
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
    /// Reads what peers sent, answers it, and writes what waits.
    pub(crate) fn run_net(&mut self) {
        if self.net.incoming.is_empty() || self.net.calls.is_multiple_of(64) {
            self.net.accept();
        }
        let mut incoming = std::mem::take(&mut self.net.incoming);
        if !incoming.is_empty() {
            // On the heap: the engine runs in the program's threads, whose stacks may be small.
            let mut chunk = std::mem::take(&mut self.net.chunk);
            chunk.resize(CHUNK, 0);
            for peer in &mut incoming {
                self.serve(peer, &mut chunk);
            }
            self.net.chunk = chunk;
        }
        incoming.retain(|peer| peer.open);
        self.net.incoming.append(&mut incoming);
        self.write_waiting();
    }

    fn serve(&mut self, peer: &mut Incoming, chunk: &mut [u8]) {
        for _ in 0..16 {
            match peer.stream.read(chunk) {
                Ok(0) => {
                    peer.open = false;
                    break;
                }
                Ok(n) => {
                    peer.buffer.extend_from_slice(&chunk[..n]);
                    self.frames(peer);
                    if n < chunk.len() {
                        break;
                    }
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => {
                    peer.open = error.kind() == ErrorKind::WouldBlock;
                    break;
                }
            }
        }
    }

    fn frames(&mut self, peer: &mut Incoming) {
        while let Some(&head) = peer.buffer[peer.done..].first_chunk::<4>() {
            let len = u32::from_le_bytes(head) as usize;
            if len < 8 {
                peer.open = false;
                return;
            }
            let Some(frame) = peer.buffer.get(peer.done..peer.done + len) else { break };
            self.frame(&frame[4..]);
            peer.done += len;
        }
        if peer.done == peer.buffer.len() {
            peer.buffer.clear();
            peer.done = 0;
        } else if peer.done > 1 << 20 {
            peer.buffer.drain(..peer.done);
            peer.done = 0;
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
            Some(FRAME_REPLY) => {
                let (Some(code), Some(value), Some(_)) = (cursor.u8(), cursor.u8(), cursor.u8()) else {
                    return;
                };
                let (Some(qpn), Some(sn)) = (cursor.u32(), cursor.u32()) else { return };
                let reply = match code {
                    0 => Reply::Ack,
                    1 => Reply::Data(0),
                    2 => Reply::Old(0),
                    3 => Reply::NotReady(value),
                    4 => Reply::Nak(value),
                    _ => Reply::Silence,
                };
                self.answered(qpn, sn, reply, cursor.0);
            }
            _ => {}
        }
    }

    fn write_waiting(&mut self) {
        let mut lost = Vec::new();
        let mut freed = false;
        self.net.calls = self.net.calls.wrapping_add(1);
        let check = self.net.calls.is_multiple_of(64);
        for (&slot, peer) in &mut self.net.outgoing {
            if check && matches!(peer.stream.read(&mut [0; 1]), Ok(0)) {
                lost.push(slot);
                continue;
            }
            if peer.queue.is_empty() {
                continue;
            }
            while peer.waiting() > 0 {
                match peer.stream.write(&peer.queue[peer.done..]) {
                    Ok(written) => {
                        let before = peer.waiting();
                        peer.done += written;
                        freed |= before > CONGESTED && peer.waiting() <= CONGESTED;
                    }
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    Err(_) => {
                        lost.push(slot);
                        break;
                    }
                }
            }
            if peer.waiting() == 0 {
                peer.queue.clear();
                peer.done = 0;
            } else if peer.done > peer.queue.len() / 2 {
                peer.queue.drain(..peer.done);
                peer.done = 0;
            }
        }
        for slot in lost {
            self.net.outgoing.remove(&slot);
            self.peer_lost(slot);
        }
        if freed {
            self.unblock_all();
        }
    }
}
