//! Random operations on send queues, checked by a device that reads ring, record and register at
//! literal offsets, and by a model of what is posted.

mod common;

use std::{collections::VecDeque, sync::Arc};

use common::seen_by_device;
use mlx5_direct::{
    DataSeg, HeapMem, Released, SendBatchError, SendError, Sq, SqLayout, Wr,
    queue_mem::SqCaps,
    wr::{Bind, Inline, InlineParts, Masked, Remote},
};
use proptest::prelude::*;

const QPN: u32 = 0x42;
const TO: Remote = Remote { addr: 0x1122_3344_5566_7788, rkey: 0x99aa_bbcc };

/// What a request is, apart from its flags.
#[derive(Clone, Debug)]
enum Kind {
    Send(usize),
    SendParts(usize, usize),
    /// Lengths of the segments; those of length 0 are left out.
    SendSegments(Vec<u32>),
    WriteImm(usize),
    Read(Vec<u32>),
    FetchAdd,
    Nop,
    LocalInval,
    Bind,
}

#[derive(Clone, Debug)]
struct Request {
    kind: Kind,
    signalled: bool,
    fenced: bool,
}

#[derive(Clone, Debug)]
enum Op {
    Post(Request),
    /// Messages of these lengths, of which every third carries a fence.
    Batch(Vec<usize>),
    /// Requests, and whether the chain is rung.
    Chain(Vec<Request>, bool),
    /// A prepared message, with another payload of this length.
    Prepared(usize, bool),
    /// A template of this length, with other bytes at one of some places.
    Template(usize, usize, bool),
    /// The n-th outstanding request completes (modulo their number).
    Complete(usize),
    /// A completion that names this block.
    Bogus(u16),
    Reset,
}

fn kinds() -> impl Strategy<Value = Kind> {
    let segments = || prop::collection::vec(prop_oneof![Just(0u32), 1..5000u32], 0..9);
    prop_oneof![
        6 => (0..260usize).prop_map(Kind::Send),
        2 => (0..70usize, 0..70usize).prop_map(|(a, b)| Kind::SendParts(a, b)),
        3 => segments().prop_map(Kind::SendSegments),
        2 => (0..120usize).prop_map(Kind::WriteImm),
        2 => segments().prop_map(Kind::Read),
        1 => Just(Kind::FetchAdd),
        2 => Just(Kind::Nop),
        1 => Just(Kind::LocalInval),
        1 => Just(Kind::Bind),
    ]
}

fn requests() -> impl Strategy<Value = Request> {
    (kinds(), any::<bool>(), prop::bool::weighted(0.2)).prop_map(|(kind, signalled, fenced)| Request {
        kind,
        signalled,
        fenced,
    })
}

fn ops() -> impl Strategy<Value = Op> {
    prop_oneof![
        8 => requests().prop_map(Op::Post),
        4 => prop::collection::vec(0..90usize, 0..20).prop_map(Op::Batch),
        3 => (prop::collection::vec(requests(), 0..6), prop::bool::weighted(0.7))
            .prop_map(|(list, ring)| Op::Chain(list, ring)),
        2 => (1..200usize, prop::bool::weighted(0.2)).prop_map(|(len, fenced)| Op::Prepared(len, fenced)),
        2 => (1..60usize, 0..PLACES.len(), prop::bool::weighted(0.2))
            .prop_map(|(len, place, fenced)| Op::Template(len, place, fenced)),
        10 => (0..40usize).prop_map(Op::Complete),
        1 => any::<u16>().prop_map(Op::Bogus),
        1 => Just(Op::Reset),
    ]
}

/// Where templates have their bytes.
const PLACES: [usize; 8] = [0, 1, 4, 8, 12, 19, 24, 36];

/// Bytes of a payload that differ from cookie to cookie.
fn payload(cookie: u64, len: usize) -> Vec<u8> {
    (0..len).map(|k| (k as u64 * 7 + cookie) as u8 | 1).collect()
}

fn segments(cookie: u64, lengths: &[u32]) -> Vec<DataSeg> {
    lengths.iter().zip(0..).map(|(len, n)| DataSeg::new(cookie << 16 | n, *len, 0x700 + n as u32)).collect()
}

const BIND: Bind = Bind { rkey: 5, new_rkey: 6, type2: true, lkey: 7, addr: 0x8000, len: 64, access: 2 };

/// Calls `$use` with the request as a `Wr`, whatever its type.
macro_rules! with_wr {
    ($request:expr, $cookie:expr, |$wr:ident| $use:expr) => {{
        let Request { kind, signalled, fenced } = $request;
        let cookie = $cookie;
        macro_rules! flagged {
            ($made:expr) => {{
                let mut $wr = $made;
                if *signalled {
                    $wr = $wr.signalled();
                }
                if *fenced {
                    $wr = $wr.fenced();
                }
                $use
            }};
        }
        let text = payload(cookie, kind.inline_bytes());
        let segs = segments(cookie, kind.lengths());
        match kind {
            Kind::Send(_) => flagged!(Wr::send(Inline(&text))),
            Kind::SendParts(first, _) => {
                let (first, second) = text.split_at(*first);
                let parts = [first, second];
                flagged!(Wr::send(InlineParts(&parts)))
            }
            Kind::SendSegments(_) => match segs[..] {
                [one] => flagged!(Wr::send(one)),
                _ => flagged!(Wr::send(&segs[..])),
            },
            Kind::WriteImm(_) => flagged!(Wr::write_imm(TO, 0x0102_0304, Inline(&text))),
            Kind::Read(_) => flagged!(Wr::read(TO, &segs[..])),
            Kind::FetchAdd => flagged!(Wr::fetch_add(TO, 3, DataSeg::new(cookie, 16, 8))),
            Kind::Nop => flagged!(Wr::nop()),
            Kind::LocalInval => flagged!(Wr::local_inval(0x0a0b_0c0d)),
            Kind::Bind => flagged!(Wr::bind(BIND)),
        }
    }};
}

impl Kind {
    fn inline_bytes(&self) -> usize {
        match self {
            Self::Send(len) | Self::WriteImm(len) => *len,
            Self::SendParts(a, b) => a + b,
            _ => 0,
        }
    }

    fn lengths(&self) -> &[u32] {
        match self {
            Self::SendSegments(lengths) | Self::Read(lengths) => lengths,
            _ => &[],
        }
    }
}

impl Request {
    fn send(len: usize, signalled: bool, fenced: bool) -> Self {
        Self { kind: Kind::Send(len), signalled, fenced }
    }

    /// Opcode, immediate field, and the bytes behind the control segment. Key changes have their
    /// bytes compared with libmlx5 elsewhere; here they have zeros only.
    fn body(&self, cookie: u64) -> (u8, u32, Vec<u8>) {
        let inline = |len: usize| {
            let mut bytes = vec![];
            if len > 0 {
                bytes.extend((0x8000_0000 | len as u32).to_be_bytes());
                bytes.extend(payload(cookie, len));
            }
            bytes
        };
        let raddr = [&TO.addr.to_be_bytes()[..], &TO.rkey.to_be_bytes(), &[0; 4]].concat();
        let list = |lengths: &[u32]| {
            let mut bytes = vec![];
            for (len, n) in lengths.iter().zip(0u32..).filter(|(len, _)| **len > 0) {
                bytes.extend(len.to_be_bytes());
                bytes.extend((0x700 + n).to_be_bytes());
                bytes.extend((cookie << 16 | u64::from(n)).to_be_bytes());
            }
            bytes
        };
        match &self.kind {
            Kind::Send(len) => (0x0a, 0, inline(*len)),
            Kind::SendParts(a, b) => (0x0a, 0, inline(a + b)),
            Kind::SendSegments(lengths) => (0x0a, 0, list(lengths)),
            Kind::WriteImm(len) => (0x09, 0x0102_0304, [raddr, inline(*len)].concat()),
            Kind::Read(lengths) => (0x10, 0, [raddr, list(lengths)].concat()),
            Kind::FetchAdd => {
                let mut bytes = raddr;
                bytes.extend([3u64.to_be_bytes(), [0; 8]].concat());
                bytes.extend([&8u32.to_be_bytes()[..], &8u32.to_be_bytes(), &cookie.to_be_bytes()].concat());
                (0x12, 0, bytes)
            }
            Kind::Nop => (0x00, 0, vec![]),
            Kind::LocalInval => (0x25, 0x0a0b_0c0d, vec![0; 7 * 16]),
            Kind::Bind => (0x25, BIND.rkey, vec![0; 11 * 16]),
        }
    }

    fn units(&self) -> usize {
        1 + self.body(0).2.len().div_ceil(16)
    }

    fn changes_key(&self) -> bool {
        matches!(self.kind, Kind::LocalInval | Kind::Bind)
    }
}

/// A posted request.
struct Posted {
    block: u16,
    cookie: u64,
}

/// The queue, the device, and what the program expects.
struct Session {
    sq: Sq,
    mem: Arc<HeapMem>,
    ring_blocks: u32,
    register_bytes: u32,
    caps: SqCaps,
    outstanding: VecDeque<Posted>,
    /// Blocks posted so far, in 16 bits.
    next: u16,
    fence_due: u8,
    half: usize,
    next_cookie: u64,
}

impl Session {
    fn new(ring_blocks: u32, max_requests: u32, register_bytes: u32, signal_all: bool) -> Self {
        let caps = SqCaps { max_requests, max_segments: 4, max_inline: 44, signal_all };
        let (layout, view) = SqLayout::on_heap_with(ring_blocks, register_bytes, caps).expect("layout");
        let mem = seen_by_device(view);
        Self {
            sq: Sq::new(layout),
            mem,
            ring_blocks,
            register_bytes,
            caps,
            outstanding: VecDeque::new(),
            next: 0,
            fence_due: 0,
            half: 0,
            next_cookie: 0,
        }
    }

    fn max_blocks(&self) -> usize {
        (self.ring_blocks / self.caps.max_requests) as usize
    }

    /// Byte `n` of the WQE at a block, around the end of the ring.
    fn ring_byte(&self, block: u16, n: usize) -> u8 {
        let ring_bytes = self.ring_blocks as usize * 64;
        self.mem.load_u8((usize::from(block) * 64 + n) % ring_bytes)
    }

    /// The refusal that a request meets now, if any.
    fn refusal(&self, request: &Request) -> Option<SendError> {
        let units = request.units();
        if units > 63 || units.div_ceil(4) > self.max_blocks() {
            Some(SendError::TooLong)
        } else if self.outstanding.len() == self.caps.max_requests as usize {
            Some(SendError::Full)
        } else {
            None
        }
    }

    /// The model's side of a post that was accepted: checks the WQE.
    fn note(&mut self, request: &Request, cookie: u64) {
        let (opcode, imm, body) = request.body(cookie);
        let (units, block) = (request.units(), self.next);
        let fence = if request.fenced { 0x80 } else { self.fence_due };
        self.fence_due = if request.changes_key() { 0x20 } else { 0 };
        let update = if request.signalled || self.caps.signal_all { 8 } else { 0 };
        let mut expected = vec![0, (block >> 8) as u8, block as u8, opcode];
        expected.extend((QPN << 8 | units as u32).to_be_bytes());
        expected.extend([0, 0, 0, fence | update]);
        expected.extend(imm.to_be_bytes());
        if !request.changes_key() {
            expected.extend(body);
        }
        let seen: Vec<u8> = (0..expected.len()).map(|n| self.ring_byte(block, n)).collect();
        assert_eq!(seen, expected, "the WQE at block {block} of {request:?}");
        self.outstanding.push_back(Posted { block, cookie });
        self.next = block.wrapping_add(units.div_ceil(4) as u16);
    }

    /// Checks record and register after `posted` requests, of which the last has `units` units and
    /// starts at `last`. Clears the register.
    fn check_ring(&mut self, posted: usize, last: u16, units: usize) {
        assert_eq!(self.mem.load_be32(self.mem.dbrec_offset()), u32::from(self.next), "the record");
        let register = self.mem.register_offset();
        let halves: Vec<Vec<u8>> = (0..2)
            .map(|half| (0..256).map(|n| self.mem.load_u8(register + half * 256 + n)).collect())
            .collect();
        let mut expected = [vec![0; 256], vec![0; 256]];
        if posted > 0 {
            let copies = posted == 1 && units > 1 && units <= 16 && self.register_bytes > 0;
            let bytes = if copies { units * 16 } else { 8 };
            let image: Vec<u8> = (0..bytes).map(|n| self.ring_byte(last, n)).collect();
            expected[self.half][..bytes].copy_from_slice(&image);
            // Whole blocks are copied. The bytes behind the WQE mean nothing.
            let copied = if copies { units.div_ceil(4) * 64 } else { bytes };
            expected[self.half][bytes..copied].copy_from_slice(&halves[self.half][bytes..copied]);
            self.half ^= usize::from(self.register_bytes > 0);
        }
        assert!(halves == expected, "the register: {halves:02x?}, expected {expected:02x?}");
        (0..512).for_each(|n| self.mem.store_u8(register + n, 0));
    }

    fn cookie(&mut self) -> u64 {
        self.next_cookie += 1;
        self.next_cookie
    }

    fn apply_template<const AT: usize>(&mut self, len: usize, fenced: bool) {
        let (cookie, block) = (self.cookie(), self.next);
        let request = Request::send(len, true, fenced);
        let mut text = payload(cookie, len);
        let fits = AT + 8 <= len && request.units() <= 4;
        if AT + 8 <= len {
            // What the program had there before is not sent.
            text[AT..AT + 8].fill(0xff);
        }
        let wr = Wr::send(Inline(&text)).signalled();
        let Ok(prepared) = self.sq.prepare(if fenced { wr.fenced() } else { wr }) else { return };
        let template = prepared.template::<AT>();
        assert_eq!(template.is_ok(), fits);
        let Ok(template) = template else { return };
        let bytes: [u8; 8] = payload(cookie, len)[AT..AT + 8].try_into().expect("eight bytes");
        let refusal = self.refusal(&request);
        assert_eq!(self.sq.post_template(&template, bytes, cookie), refusal.map_or(Ok(()), Err));
        if refusal.is_none() {
            self.note(&request, cookie);
        }
        self.check_ring(refusal.is_none().into(), block, request.units());
    }

    fn apply(&mut self, op: &Op) {
        match op {
            Op::Post(request) => {
                let (cookie, block) = (self.cookie(), self.next);
                let refusal = self.refusal(request);
                // What the fast functions for long inline bytes post must be what `post` would.
                let text = payload(cookie, request.kind.inline_bytes());
                let long = match request.kind {
                    Kind::Send(_) if cookie.is_multiple_of(2) => Some(Wr::send(Inline(&text))),
                    Kind::WriteImm(_) if cookie.is_multiple_of(2) => {
                        Some(Wr::write_imm(TO, 0x0102_0304, Inline(&text)))
                    }
                    _ => None,
                };
                let flagged = |wr: Wr<_>| if request.signalled { wr.signalled() } else { wr };
                let posted_fast = match long {
                    Some(wr) if !request.fenced => {
                        let wr = flagged(wr);
                        self.sq.post_long_fast(&wr, cookie) || self.sq.post_long_by_doorbell(&wr, cookie)
                    }
                    _ => false,
                };
                let outcome = with_wr!(request, cookie, |wr| {
                    assert_eq!(wr.units(), request.units());
                    if posted_fast { Ok(()) } else { self.sq.post(wr, cookie) }
                });
                assert_eq!(outcome, refusal.map_or(Ok(()), Err), "{request:?}");
                if refusal.is_none() {
                    self.note(request, cookie);
                }
                self.check_ring(refusal.is_none().into(), block, request.units());
            }
            Op::Batch(lengths) => {
                let first = self.next_cookie + 1;
                self.next_cookie += lengths.len() as u64;
                let texts: Vec<_> =
                    lengths.iter().zip(first..).map(|(len, c)| (payload(c, *len), c)).collect();
                let wrs = texts.iter().map(|(text, cookie)| {
                    let wr = Wr::send(Inline(text)).signalled();
                    (if cookie % 3 == 0 { wr.fenced() } else { wr }, *cookie)
                });
                let outcome = self.sq.post_batch(wrs);
                let (mut posted, mut last, mut units) = (0, 0, 0);
                let mut refusal = None;
                for (len, cookie) in lengths.iter().zip(first..) {
                    let request = Request::send(*len, true, cookie % 3 == 0);
                    refusal = self.refusal(&request);
                    if refusal.is_some() {
                        break;
                    }
                    (posted, last, units) = (posted + 1, self.next, request.units());
                    self.note(&request, cookie);
                }
                let expected = match refusal {
                    None => Ok(posted),
                    Some(error) => Err(SendBatchError { posted, error }),
                };
                assert_eq!(outcome, expected);
                self.check_ring(posted as usize, last, units);
            }
            Op::Chain(requests, ring) => {
                let (first, fence_due, before) = (self.next, self.fence_due, self.outstanding.len());
                let cookies: Vec<u64> = requests.iter().map(|_| self.cookie()).collect();
                // What is refused depends on the requests before it in the chain only by number.
                let mut room = self.caps.max_requests as usize - before;
                let mut accepted = vec![];
                let limit = self.max_blocks();
                let mut chain = self.sq.chain();
                for (request, cookie) in requests.iter().zip(&cookies) {
                    let units = request.units();
                    let refusal = if units > 63 || units.div_ceil(4) > limit {
                        Some(SendError::TooLong)
                    } else {
                        (room == 0).then_some(SendError::Full)
                    };
                    let outcome = with_wr!(request, *cookie, |wr| chain.push(wr, *cookie));
                    assert_eq!(outcome, refusal.map_or(Ok(()), Err));
                    if refusal.is_none() {
                        room -= 1;
                        accepted.push((request, *cookie));
                    }
                    assert_eq!(chain.len() as usize, accepted.len());
                }
                if *ring {
                    assert_eq!(chain.ring() as usize, accepted.len());
                } else {
                    drop(chain);
                }
                let (mut last, mut units) = (first, 0);
                for (request, cookie) in &accepted {
                    (last, units) = (self.next, request.units());
                    self.note(request, *cookie);
                }
                if !*ring {
                    self.outstanding.truncate(before);
                    (self.next, self.fence_due) = (first, fence_due);
                    assert_eq!(self.sq.posted() as usize, before);
                }
                self.check_ring(if *ring { accepted.len() } else { 0 }, last, units);
            }
            Op::Prepared(len, fenced) => {
                let (cookie, block) = (self.cookie(), self.next);
                let request = Request::send(*len, true, *fenced);
                let text = payload(0, *len);
                let wr = Wr::send(Inline(&text)).signalled();
                let prepared = self.sq.prepare(if *fenced { wr.fenced() } else { wr });
                let units = request.units();
                if units > 16 || units.div_ceil(4) > self.max_blocks() {
                    assert_eq!(prepared.err(), Some(SendError::TooLong));
                    return;
                }
                let mut prepared = prepared.expect("short enough");
                prepared.payload().copy_from_slice(&payload(cookie, *len));
                let refusal = self.refusal(&request);
                assert_eq!(self.sq.post_prepared(&prepared, cookie), refusal.map_or(Ok(()), Err));
                if refusal.is_none() {
                    self.note(&request, cookie);
                }
                self.check_ring(refusal.is_none().into(), block, units);
            }
            Op::Template(len, place, fenced) => match PLACES[*place] {
                0 => self.apply_template::<0>(*len, *fenced),
                1 => self.apply_template::<1>(*len, *fenced),
                4 => self.apply_template::<4>(*len, *fenced),
                8 => self.apply_template::<8>(*len, *fenced),
                12 => self.apply_template::<12>(*len, *fenced),
                19 => self.apply_template::<19>(*len, *fenced),
                24 => self.apply_template::<24>(*len, *fenced),
                _ => self.apply_template::<36>(*len, *fenced),
            },
            Op::Complete(n) if !self.outstanding.is_empty() => {
                let n = n % self.outstanding.len();
                let block = self.outstanding[n].block;
                let released: Vec<u64> = self.outstanding.drain(..=n).map(|posted| posted.cookie).collect();
                let expected = Released { cookie: released[n], requests: n as u32 + 1 };
                assert_eq!(self.sq.complete(block), Ok(expected));
            }
            Op::Complete(_) => {}
            Op::Bogus(block) => {
                let mask = self.ring_blocks as u16 - 1;
                if !self.outstanding.iter().any(|p| (p.block ^ block) & mask == 0) {
                    assert!(self.sq.complete(*block).is_err(), "block {block}");
                }
            }
            Op::Reset => {
                self.sq.reset();
                self.outstanding.clear();
                (self.next, self.fence_due) = (0, 0);
                self.check_ring(0, 0, 0);
            }
        }
        let posted = self.outstanding.len() as u32;
        assert_eq!((self.sq.posted(), self.sq.free()), (posted, self.caps.max_requests - posted));
        let outstanding: Vec<_> = self.outstanding.iter().map(|p| (p.block, p.cookie)).collect();
        assert_eq!(self.sq.outstanding().collect::<Vec<_>>(), outstanding);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn any_operations_keep_the_promises_to_device_and_program(
        log_blocks in 0..9u32,
        requests in 1..300u32,
        doorbells_only in prop::bool::weighted(0.2),
        signal_all in any::<bool>(),
        ops in prop::collection::vec(ops(), 1..150),
    ) {
        let blocks = 1 << log_blocks;
        let register_bytes = if doorbells_only { 0 } else { 256 };
        let mut session = Session::new(blocks, requests.min(blocks), register_bytes, signal_all);
        for op in &ops {
            session.apply(op);
        }
    }
}

/// A queue of 48 requests of four blocks: enough posts to pass 65,536 blocks twice, most of them
/// unsignalled.
#[test]
fn the_count_of_blocks_passes_16_bits() {
    let mut session = Session::new(256, 48, 256, false);
    let mut rng = common::Rng(5);
    let mut blocks = 0u64;
    while blocks < 140_000 {
        let before = session.next;
        let request = Request::send(rng.below(250) as usize, false, false);
        let ops = [Op::Post(request.clone()), Op::Chain(vec![request; 4], true), Op::Batch(vec![30; 20])];
        session.apply(&ops[rng.below(3) as usize]);
        if rng.below(3) == 0 {
            session.apply(&Op::Complete(rng.below(48) as usize));
        }
        blocks += u64::from(session.next.wrapping_sub(before));
    }
}

/// Batches that are long enough to change the high byte of the block number, up to 65,536 blocks
/// and beyond.
#[test]
fn block_numbers_of_a_long_batch_count_on_in_both_bytes() {
    let mut session = Session::new(1024, 1024, 256, true);
    for batch in 0..100 {
        session.apply(&Op::Batch(vec![30; 700]));
        assert_eq!(session.outstanding.len(), 700, "batch {batch}");
        session.apply(&Op::Complete(699));
    }
    assert_eq!(session.next, 70_000u32 as u16);
}

/// Two pieces of inline data whose seam is at each byte around the end of the ring.
#[test]
fn pieces_of_inline_data_meet_the_end_of_the_ring_at_each_byte() {
    let (blocks, len) = (8, 150);
    for seam in 0..=len {
        // Three blocks, of which one, two or all are in front of the end.
        for first in blocks - 3..blocks {
            let mut session = Session::new(blocks, blocks / 4, 256, true);
            for _ in 0..first {
                session.apply(&Op::Post(Request { kind: Kind::Nop, signalled: true, fenced: false }));
                session.apply(&Op::Complete(0));
            }
            let kind = Kind::SendParts(seam, len - seam);
            session.apply(&Op::Post(Request { kind, signalled: true, fenced: false }));
            assert_eq!(session.outstanding.len(), 1);
        }
    }
}

/// The size field of a WQE has six bits.
#[test]
fn a_wqe_has_63_units_at_most() {
    let mut session = Session::new(64, 4, 256, false);
    let request =
        |segments| Request { kind: Kind::SendSegments(vec![9; segments]), signalled: true, fenced: false };
    session.apply(&Op::Post(request(62)));
    session.apply(&Op::Post(request(63)));
    session.apply(&Op::Post(Request::send(62 * 16 - 4, true, false)));
    session.apply(&Op::Post(Request::send(62 * 16 - 3, true, false)));
    assert_eq!(session.outstanding.len(), 2);
}

#[test]
fn masked_atomics_of_four_bytes_have_their_operands_in_one_unit() {
    let (layout, view) = SqLayout::on_heap(16, 4).expect("layout");
    // SAFETY: there is one thread.
    #[expect(unsafe_code, reason = "this stands in for a device")]
    let mem = unsafe { view.device() };
    let mut sq = Sq::new(layout);
    let result = DataSeg::new(0x5000, 4, 0x77);
    let swap = Masked::CompareSwap32 { compare: 1, compare_mask: 2, swap: 3, swap_mask: 4 };
    sq.post(Wr::masked_atomic(TO, swap, result), 1).expect("room");
    sq.post(Wr::masked_atomic(TO, Masked::FetchAdd32 { add: 5, boundary: 6 }, result), 2).expect("room");
    let words = |block: usize| -> Vec<u32> { (0..16).map(|n| mem.load_be32(block * 64 + n * 4)).collect() };
    let tail = [4, 0x77, 0, 0x5000];
    let head = |first: u32| [first, QPN << 8 | 4, 0, 0, 0x1122_3344, 0x5566_7788, 0x99aa_bbcc, 0];
    assert_eq!(words(0), [&head(0x0800_0014)[..], &[3, 1, 4, 2], &tail].concat());
    assert_eq!(words(1), [&head(0x0800_0115)[..], &[5, 6, 0, 0], &tail].concat());
}

#[test]
fn masked_atomics_of_eight_bytes_have_an_operand_and_a_mask_in_each_unit() {
    let (layout, view) = SqLayout::on_heap(16, 4).expect("layout");
    // SAFETY: there is one thread.
    #[expect(unsafe_code, reason = "this stands in for a device")]
    let mem = unsafe { view.device() };
    let mut sq = Sq::new(layout);
    let result = DataSeg::new(0x5000, 8, 0x77);
    let swap = Masked::CompareSwap64 { compare: 1, compare_mask: 2, swap: 3, swap_mask: 4 };
    sq.post(Wr::masked_atomic(TO, swap, result), 1).expect("room");
    sq.post(Wr::masked_atomic(TO, Masked::FetchAdd64 { add: 5, boundary: 6 }, result), 2).expect("room");
    let words = |from: usize, to: usize| -> Vec<u32> { (from..to).map(|n| mem.load_be32(n * 4)).collect() };
    let to = [0x1122_3344, 0x5566_7788, 0x99aa_bbcc, 0];
    let tail = [8, 0x77, 0, 0x5000];
    let swapped = [&[0x0900_0014, QPN << 8 | 5, 0, 0][..], &to, &[0, 3, 0, 1], &[0, 4, 0, 2], &tail].concat();
    assert_eq!(words(0, 20), swapped);
    let added = [&[0x0900_0215, QPN << 8 | 4, 0, 0][..], &to, &[0, 5, 0, 6], &tail].concat();
    assert_eq!(words(32, 48), added);
}

#[test]
fn a_queue_told_to_stop_uses_no_blueflame() {
    let (layout, _view) = SqLayout::on_heap(16, 4).expect("layout");
    let mut sq = Sq::new(layout);
    assert!(sq.uses_blueflame());
    sq.stop_blueflame();
    assert!(!sq.uses_blueflame());
    let caps = SqCaps { max_requests: 4, max_segments: 4, max_inline: 44, signal_all: false };
    let (layout, _view) = SqLayout::on_heap_with(16, 0, caps).expect("layout");
    assert!(!Sq::new(layout).uses_blueflame(), "the register has none");
}
