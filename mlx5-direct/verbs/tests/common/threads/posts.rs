//! Random requests and receives.

use std::{
    collections::BTreeMap,
    mem::zeroed,
    ptr::{self, null_mut},
    sync::atomic::Ordering::SeqCst,
};

use doorbell_sys::*;

use super::{
    Worker,
    objects::{End, Kind, QKEY, Room},
};

/// What a `wr_id` says.
#[derive(Clone, Copy, Debug)]
pub(super) struct Id {
    pub(super) receive: bool,
    /// How often the QP was reset before the call.
    pub(super) life: u8,
    /// The thread that called.
    pub(super) thread: usize,
    /// The QP, or the owner of the receive queue; not for an SRQ.
    pub(super) end: usize,
    /// The number of the request among those of the thread.
    pub(super) number: u32,
}

impl From<u64> for Id {
    fn from(id: u64) -> Self {
        let byte = |shift: u32| (id >> shift) as u8;
        Self {
            receive: byte(56) & 0x80 != 0,
            life: byte(48),
            thread: usize::from(byte(56) & 0x7f),
            end: usize::from(byte(40)),
            number: id as u32,
        }
    }
}

impl Id {
    fn pack(self) -> u64 {
        let kind = u64::from(self.receive) << 63 | (self.thread as u64) << 56;
        kind | u64::from(self.life) << 48 | (self.end as u64) << 40 | u64::from(self.number)
    }
}

/// The bytes of a message with this number; the first four are the number.
pub(super) fn content(number: u32) -> impl Iterator<Item = u8> {
    let rest = (4_u32..).map(move |n| (number.wrapping_mul(31).wrapping_add(n.wrapping_mul(7)) >> 2) as u8);
    number.to_le_bytes().into_iter().chain(rest)
}

/// How many requests a thread has made.
#[derive(Default)]
pub(super) struct Poster {
    requests: u32,
    receives: u32,
    /// By sending end.
    messages: BTreeMap<usize, u32>,
}

struct Request {
    wr: ibv_send_wr,
    segments: Vec<ibv_sge>,
    /// It takes a receive of the peer.
    message: bool,
    /// It is refused.
    bad: bool,
}

const SIGNALED: u32 = ibv_send_flags::IBV_SEND_SIGNALED.0;
const INLINE: u32 = ibv_send_flags::IBV_SEND_INLINE.0;
/// More than any queue takes.
const TOO_MANY: usize = 60;
const TOO_LONG: u32 = 450;

impl Worker<'_> {
    fn end(&self, end: usize) -> &'static End {
        // SAFETY: the objects live until all threads have ended.
        unsafe { &*ptr::from_ref(&self.shared.objects.ends[end]) }
    }

    /// A random request to a QP. `None` if there is no room for one of those that the QP can post.
    fn request(&mut self, at: usize, room: &mut Room, scrap: bool) -> Option<Request> {
        use ibv_wr_opcode::*;
        if room.requests == 0 {
            return None;
        }
        let end = self.end(at);
        let messages = [IBV_WR_SEND, IBV_WR_SEND_WITH_IMM, IBV_WR_RDMA_WRITE_WITH_IMM];
        let others = match (end.kind, scrap) {
            (Kind::Rc, false) => {
                &[IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ, IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD]
                    [..]
            }
            (Kind::Rc, true) => &[IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ][..],
            (Kind::Uc, _) => &[IBV_WR_RDMA_WRITE][..],
            (Kind::Ud, _) => &[][..],
        };
        let may_send = room.messages > 0;
        let message = may_send && (others.is_empty() || self.rng.once_in(2));
        if !message && others.is_empty() {
            return None;
        }
        let opcode = if message {
            let kinds = if end.kind == Kind::Ud { 2 } else { 3 };
            messages[self.rng.below(kinds) as usize]
        } else {
            others[self.rng.below(others.len() as u32) as usize]
        };
        let length = [0, 1, 4, 8, 17, 32, 33, 64, 100, 200, 256][self.rng.below(11) as usize];
        let mut request = self.build(at, opcode, length, scrap);
        room.requests -= 1;
        room.messages -= u32::from(request.message);
        let flags = self.rng.below(16);
        let wr = &mut request.wr;
        // The queue never fills with requests that do not say when they are done.
        if flags & 1 != 0 || self.poster.requests.is_multiple_of(4) {
            wr.send_flags |= SIGNALED;
        }
        if flags & 6 == 6 && end.kind == Kind::Rc {
            wr.send_flags |= ibv_send_flags::IBV_SEND_FENCE.0;
        }
        let data = matches!(
            opcode,
            IBV_WR_SEND | IBV_WR_SEND_WITH_IMM | IBV_WR_RDMA_WRITE | IBV_WR_RDMA_WRITE_WITH_IMM
        );
        let length: u32 = request.segments.iter().map(|segment| segment.length).sum();
        if flags & 8 != 0 && data && length <= end.max_inline {
            wr.send_flags |= INLINE;
        }
        if self.rng.once_in(15) {
            request.bad = true;
            if data && !end.extended && length > end.max_inline && self.rng.once_in(2) {
                wr.send_flags |= INLINE;
            } else if !end.extended && self.rng.once_in(2) {
                wr.opcode = IBV_WR_LOCAL_INV + 90;
            } else {
                wr.send_flags &= !INLINE;
                let one = ibv_sge {
                    addr: self.shared.memory.scrap(0),
                    length: 1,
                    lkey: self.shared.memory.keys().0,
                };
                request.segments = vec![one; TOO_MANY];
            }
        }
        Some(request)
    }

    /// A request of this kind, with the memory that belongs to it.
    fn build(&mut self, at: usize, opcode: u32, length: u32, scrap: bool) -> Request {
        use ibv_wr_opcode::*;
        let (memory, end) = (self.shared.memory, self.end(at));
        let (lkey, rkey) = memory.keys();
        self.poster.requests += 1;
        let number = self.poster.requests;
        // SAFETY: integers and pointers only, for which zero is a value.
        let mut wr: ibv_send_wr = unsafe { zeroed() };
        let life = self.shared.lives[at].load(SeqCst) as u8;
        wr.wr_id = Id { receive: false, life, thread: self.thread, end: at, number }.pack();
        wr.opcode = opcode;
        // It is not known whether a request that is reset was done.
        let unknown = scrap && opcode == IBV_WR_RDMA_READ;
        let local = if unknown { memory.scrap(number) } else { memory.local(self.thread, number) };
        let mut length = length;
        let mut message = false;
        let mut remote_addr = if scrap { memory.scrap(number) } else { memory.remote(self.thread, number) };
        match opcode {
            IBV_WR_SEND | IBV_WR_SEND_WITH_IMM | IBV_WR_RDMA_WRITE_WITH_IMM => {
                let sent = self.poster.messages.entry(at).or_default();
                *sent += 1;
                let id = (self.thread as u32) << 24 | *sent;
                wr.imm_data_invalidated_rkey_union.imm_data = id;
                message = true;
                if opcode == IBV_WR_SEND {
                    length = length.max(4);
                }
                memory.fill(local, content(id).take(length as usize));
            }
            IBV_WR_RDMA_WRITE => memory.fill(local, content(number).take(length as usize)),
            IBV_WR_RDMA_READ => remote_addr = memory.pattern(u64::from(self.rng.below(4000))),
            _ => {
                length = 8;
                remote_addr = memory.counter(self.thread, at);
            }
        }
        if end.kind == Kind::Ud {
            let peer = &self.shared.objects.ends[end.peer];
            let remote_qpn = self.shared.objects.rig.qpn(peer.qp);
            wr.wr.ud = ud_t { ah: self.shared.objects.ah, remote_qpn, remote_qkey: QKEY };
        } else if matches!(opcode, IBV_WR_ATOMIC_CMP_AND_SWP | IBV_WR_ATOMIC_FETCH_AND_ADD) {
            wr.wr.atomic = atomic_t { remote_addr, compare_add: 3, swap: number.into(), rkey };
        } else {
            wr.wr.rdma = rdma_t { remote_addr, rkey };
        }
        let parts = if length == 8 { 1 } else { 1 + self.rng.below(end.max_segments) };
        let mut segments = vec![];
        let mut offset = 0;
        for part in 1..=parts {
            let rest = length - offset;
            let length = if part == parts { rest } else { self.rng.below(rest + 1) };
            segments.push(ibv_sge { addr: local + u64::from(offset), length, lkey });
            offset += length;
        }
        if length == 0 && self.rng.once_in(2) {
            segments.clear();
        }
        Request { wr, segments, message, bad: false }
    }

    /// Posts requests. Returns the error number, and how many were posted.
    fn post(&mut self, at: usize, requests: &mut [Request]) -> (i32, usize) {
        let end = self.end(at);
        for n in (0..requests.len()).rev() {
            let next = requests.get_mut(n + 1).map_or(null_mut(), |next| &raw mut next.wr);
            let request = &mut requests[n];
            request.wr.next = next;
            request.wr.sg_list = request.segments.as_mut_ptr();
            request.wr.num_sge = request.segments.len() as i32;
        }
        let (result, posted) = if end.extended
            && !self.fills
            && self.rng.once_in(2)
            && requests.iter().all(|r| r.wr.opcode < 64)
        {
            let result = post_extended(end, requests);
            (result, if result == 0 { requests.len() } else { 0 })
        } else {
            let mut bad = null_mut();
            // SAFETY: a live QP, and a list of whole requests with their segments.
            let result = unsafe { ibv_post_send(end.qp, &mut requests[0].wr, &mut bad) };
            let bad = requests.iter().position(|request| ptr::eq(&request.wr, bad));
            (result, if result == 0 { requests.len() } else { bad.expect("bad_wr is of the list") })
        };
        let kinds: Vec<_> = requests.iter().map(|request| request.wr.opcode).collect();
        self.log.calls.push(format!("thread {}: QP {at}: {kinds:?}: {result}, {posted} posted", self.thread));
        (result, posted)
    }

    /// Counts what has to complete of requests that were posted.
    fn count(&self, at: usize, posted: &[Request]) {
        let end = self.end(at);
        let signalled = |request: &&Request| end.signals_all || request.wr.send_flags & SIGNALED != 0;
        let due = posted.iter().filter(signalled).count() as i32;
        let messages = posted.iter().filter(|request| request.message).count() as i32;
        self.shared.requests_due[at].fetch_add(due, SeqCst);
        self.shared.messages_due[end.peer].fetch_add(messages, SeqCst);
    }

    /// Posts a random list. Returns false if there was nothing to post, or no room in the queue.
    pub(super) fn post_sends(&mut self, at: usize, room: &mut Room) -> bool {
        let wanted = 1 + self.rng.below(5);
        let mut requests: Vec<_> = (0..wanted).map_while(|_| self.request(at, room, false)).collect();
        // Only the first of a list is refused for what it asks. In the middle of a list, libmlx5
        // rings with the WQE of such a request, and the requests before it may fail.
        if let Some(bad) = requests.iter().skip(1).position(|request| request.bad) {
            requests.truncate(bad + 1);
        }
        if requests.is_empty() {
            return false;
        }
        let (result, posted) = self.post(at, &mut requests);
        self.count(at, &requests[..posted]);
        result == 0 || requests.iter().any(|request| request.bad)
    }

    /// Posts requests to a QP that is reset next. Returns the number of messages.
    pub(super) fn post_uncounted(&mut self, at: usize) -> i32 {
        let mut room = self.end(at).share;
        let wanted = 1 + self.rng.below(8);
        let mut requests: Vec<_> = (0..wanted).map_while(|_| self.request(at, &mut room, true)).collect();
        requests.retain(|request| !request.bad);
        if requests.is_empty() {
            return 0;
        }
        let (_, posted) = self.post(at, &mut requests);
        requests[..posted].iter().filter(|request| request.message).count() as i32
    }

    /// Posts requests to a connected QP of which one fails.
    pub(super) fn post_failing(&mut self, at: usize) {
        use ibv_wr_opcode::*;
        let mut room = self.end(at).share;
        let mut good = |worker: &mut Self| {
            let wanted = worker.rng.below(4);
            let some = (0..wanted).map_while(|_| worker.request(at, &mut room, false));
            some.filter(|request| !request.bad).collect::<Vec<_>>()
        };
        let mut requests = good(self);
        let failing = requests.len();
        let mut request = match self.rng.below(4) {
            0 => {
                let mut write = self.build(at, IBV_WR_RDMA_WRITE, 64, false);
                write.segments[0].lkey ^= 0x5500;
                write
            }
            1 => self.build(at, IBV_WR_SEND, TOO_LONG, false),
            n => {
                let opcode = if n == 2 { IBV_WR_RDMA_WRITE } else { IBV_WR_RDMA_READ };
                let mut request = self.build(at, opcode, 64, false);
                request.wr.wr.rdma = rdma_t {
                    remote_addr: self.shared.memory.scrap(0),
                    rkey: self.shared.memory.keys().1 ^ 0x5500,
                };
                request
            }
        };
        // A segment without bytes needs no key.
        if request.segments[0].length == 0 {
            request.segments[0].length = 1;
            let rest: u32 = request.segments.iter().skip(1).map(|segment| segment.length).sum();
            if rest > 0 {
                request
                    .segments
                    .iter_mut()
                    .skip(1)
                    .find(|segment| segment.length > 0)
                    .expect("a byte")
                    .length -= 1;
            }
        }
        let too_long = i32::from(request.wr.opcode == IBV_WR_SEND);
        requests.push(request);
        requests.extend(good(self));
        let split = self.rng.below(requests.len() as u32 + 1) as usize;
        let (first, second) = requests.split_at_mut(split);
        for part in [first, second] {
            if !part.is_empty() {
                assert_eq!(self.post(at, part), (0, part.len()));
            }
        }
        self.count(at, &requests[..failing]);
        // All behind the failing request complete, too, whether they ask for it or not.
        self.shared.requests_due[at].fetch_add((requests.len() - failing) as i32, SeqCst);
        self.shared.messages_due[self.end(at).peer].fetch_add(too_long, SeqCst);
    }

    /// Posts a request that asks for its completion. What UC and UD sent before has arrived when
    /// its message has.
    pub(super) fn post_closing(&mut self, at: usize) {
        use ibv_wr_opcode::*;
        let opcode = match self.end(at).kind {
            Kind::Rc => IBV_WR_RDMA_WRITE,
            Kind::Uc => IBV_WR_RDMA_WRITE_WITH_IMM,
            Kind::Ud => IBV_WR_SEND_WITH_IMM,
        };
        let mut request = self.build(at, opcode, 8, false);
        request.wr.send_flags = SIGNALED;
        let mut requests = [request];
        assert_eq!(self.post(at, &mut requests), (0, 1));
        self.count(at, &requests);
    }

    /// Posts receives to a queue until this many are there, or one is refused for want of room.
    /// Returns how many were posted.
    pub(super) fn post_receives(&mut self, at: usize, wanted: u32) -> i32 {
        let (shared, queue) = (self.shared, &self.shared.objects.queues[at]);
        let mut done = 0;
        while done < wanted {
            let number = (1 + self.rng.below(6)).min(wanted - done);
            let bad_one = if self.rng.once_in(20) { Some(self.rng.below(number)) } else { None };
            let mut segments = vec![];
            let mut list = vec![];
            for n in 0..number {
                self.poster.receives += 1;
                let parts =
                    if bad_one == Some(n) { TOO_MANY as u32 } else { 1 + self.rng.below(queue.max_segments) };
                let (end, life) = match queue.target {
                    super::Target::Own(end) => (end, shared.lives[end].load(SeqCst) as u8),
                    super::Target::Srq => (0, 0),
                };
                let id = Id { receive: true, life, thread: self.thread, end, number: self.poster.receives };
                // 300 to 330 bytes in all: room for the longest message and the header of a
                // datagram, not for a message that is too long.
                let all = 300 + self.rng.below(31);
                let first = if parts == 1 { all } else { self.rng.below(all) };
                let second = if parts == 3 { self.rng.below(all - first) } else { all - first };
                let mut of =
                    shared.memory.receive(self.thread, id.number, [first, second, all - first - second]);
                of.resize(parts as usize, of[0]);
                segments.push(of);
                let wr = ibv_recv_wr {
                    wr_id: id.pack(),
                    next: null_mut(),
                    sg_list: null_mut(),
                    num_sge: parts as i32,
                };
                list.push(wr);
            }
            for n in (0..list.len()).rev() {
                list[n].sg_list = segments[n].as_mut_ptr();
                list[n].next = list.get_mut(n + 1).map_or(null_mut(), ptr::from_mut);
            }
            let mut bad = null_mut();
            // SAFETY: live queues, and a list of whole requests with their segments.
            let result = unsafe {
                match queue.target {
                    super::Target::Own(end) => {
                        ibv_post_recv(shared.objects.ends[end].qp, &mut list[0], &mut bad)
                    }
                    super::Target::Srq => ibv_post_srq_recv(queue.srq, &mut list[0], &mut bad),
                }
            };
            let bad = list.iter().position(|wr| ptr::eq(wr, bad));
            let posted = if result == 0 { list.len() } else { bad.expect("bad_wr is of the list") };
            let target = queue.target;
            self.log.calls.push(format!(
                "thread {}: {target:?}: {number} receives: {result}, {posted} posted",
                self.thread
            ));
            done += posted as u32;
            if result != 0 && bad_one.is_none() {
                break;
            }
        }
        done as i32
    }
}

/// Calls a function of an extended QP.
macro_rules! call {
    ($qp:expr, $function:ident($($argument:expr),*)) => {
        (*$qp).$function.expect("a function of the QP")($qp, $($argument),*)
    };
}

/// Posts requests by `ibv_wr_start` and what follows. Returns the error number.
fn post_extended(end: &End, requests: &[Request]) -> i32 {
    use ibv_wr_opcode::*;
    let qp = end.qp.cast::<ibv_qp_ex>();
    // SAFETY: a live QP that was made for these operations; setters follow their operations; the
    // segments live through the call. The unions hold what the opcode says.
    unsafe {
        call!(qp, wr_start());
        for Request { wr, segments, .. } in requests {
            ((*qp).wr_id, (*qp).wr_flags) = (wr.wr_id, wr.send_flags & !INLINE);
            let imm = wr.imm_data_invalidated_rkey_union.imm_data;
            let (rdma, atomic) = (wr.wr.rdma, wr.wr.atomic);
            match wr.opcode {
                IBV_WR_SEND => call!(qp, wr_send()),
                IBV_WR_SEND_WITH_IMM => call!(qp, wr_send_imm(imm)),
                IBV_WR_RDMA_WRITE => call!(qp, wr_rdma_write(rdma.rkey, rdma.remote_addr)),
                IBV_WR_RDMA_WRITE_WITH_IMM => call!(qp, wr_rdma_write_imm(rdma.rkey, rdma.remote_addr, imm)),
                IBV_WR_RDMA_READ => call!(qp, wr_rdma_read(rdma.rkey, rdma.remote_addr)),
                IBV_WR_ATOMIC_CMP_AND_SWP => {
                    let atomic_t { remote_addr, compare_add, swap, rkey } = atomic;
                    call!(qp, wr_atomic_cmp_swp(rkey, remote_addr, compare_add, swap));
                }
                _ => {
                    let atomic_t { remote_addr, compare_add, rkey, .. } = atomic;
                    call!(qp, wr_atomic_fetch_add(rkey, remote_addr, compare_add));
                }
            }
            if end.kind == Kind::Ud {
                let ud = wr.wr.ud;
                call!(qp, wr_set_ud_addr(ud.ah, ud.remote_qpn, ud.remote_qkey));
            }
            if wr.send_flags & INLINE != 0 {
                let pieces: Vec<_> = segments
                    .iter()
                    .map(|segment| ibv_data_buf {
                        addr: segment.addr as *mut _,
                        length: segment.length as usize,
                    })
                    .collect();
                call!(qp, wr_set_inline_data_list(pieces.len(), pieces.as_ptr()));
            } else {
                call!(qp, wr_set_sge_list(segments.len(), segments.as_ptr()));
            }
        }
        call!(qp, wr_complete())
    }
}
