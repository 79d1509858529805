//! Requests that are built outside the queue: the ring, the record and the register have the same
//! bytes as after posts of the same requests, and a batch with an error leaves no trace.
#![allow(unsafe_code)] // Queues in memory of the test.

use std::mem::ManuallyDrop;

use mlx5_direct::{
    Chain, DataSeg, NotPosted, Sq, SqLayout,
    queue_mem::{SqCaps, SqParts, Transport},
    sq::{Staged, WrError},
    wr::{AddressVector, Bind, Data, Inline, Remote, Wr},
};

const BLOCKS: usize = 64;
const REQUESTS: u32 = 16;
const THERE: Remote = Remote { addr: 0x1122_3344_5566_7788, rkey: 0x99aa };
const SIGNALLED: u32 = 1 << 1;
const SOLICITED: u32 = 1 << 2;
const FENCE: u32 = 1;

#[repr(C, align(1024))]
struct Memory {
    ring: [[u64; 8]; BLOCKS],
    register: [[u64; 32]; 2],
    record: [u32; 16],
}

struct Queue {
    sq: ManuallyDrop<Sq>,
    memory: *mut Memory,
}

impl Drop for Queue {
    fn drop(&mut self) {
        // SAFETY: dropped once; made from a box, which the queue does not use any more.
        unsafe {
            ManuallyDrop::drop(&mut self.sq);
            drop(Box::from_raw(self.memory));
        }
    }
}

impl Queue {
    fn new(transport: Transport) -> Self {
        Self::with(transport, 256, false)
    }

    fn with(transport: Transport, register_bytes: u32, signal_all: bool) -> Self {
        let memory = Box::into_raw(Box::new(Memory {
            ring: [[0; 8]; BLOCKS],
            register: [[0; 32]; 2],
            record: [0; 16],
        }));
        // SAFETY: live memory, aligned as the queue needs, which nobody else uses.
        let sq = unsafe {
            Sq::new(
                SqLayout::from_raw_parts(SqParts {
                    buf: (&raw mut (*memory).ring).cast(),
                    dbrec: (&raw mut (*memory).record).cast(),
                    block_count: BLOCKS as u32,
                    register: (&raw mut (*memory).register).cast(),
                    register_bytes,
                    blueflame: true,
                    qpn: 0x1234,
                    caps: SqCaps { max_requests: REQUESTS, max_segments: 4, max_inline: 150, signal_all },
                    transport,
                })
                .unwrap(),
            )
        };
        Self { sq: ManuallyDrop::new(sq), memory }
    }

    /// The ring, the record, and the register.
    fn contents(&self) -> (Vec<[u64; 8]>, u32, Vec<u64>) {
        // SAFETY: live memory, which the queue does not write now.
        unsafe {
            let register = (&raw const (*self.memory).register).read();
            ((&raw const (*self.memory).ring).read().to_vec(), (*self.memory).record[0], register.concat())
        }
    }

    /// The WQE of each outstanding request, without the bytes behind inline data.
    fn wqes(&self) -> Vec<(u16, u64, Vec<u64>)> {
        let ring = self.contents().0.concat();
        let wqe = |(first, cookie): (u16, u64)| {
            let word = |n: usize| ring[(usize::from(first) * 8 + n) % ring.len()];
            let units = word(0).to_be() as usize & 63;
            let mut words: Vec<u64> = (0..2 * units).map(word).collect();
            let head = match (word(0).to_be() >> 32) as u8 {
                0x08..=0x09 | 0x10 => 2,
                0x11..=0x12 => 3,
                0x25 => units,
                _ => 1,
            };
            let header = words.get(2 * head).map_or(0, |word| (word.to_be() >> 32) as u32);
            if header & 1 << 31 != 0 {
                let from = 16 * head + 4 + (header & !(1 << 31)) as usize;
                let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
                bytes[from..].fill(0);
                words = bytes.chunks(8).map(|word| u64::from_ne_bytes(word.try_into().unwrap())).collect();
            }
            (first, cookie, words)
        };
        self.sq.outstanding().map(wqe).collect()
    }
}

/// What a request has beyond its operation.
#[derive(Clone, Debug)]
enum What {
    Nothing,
    Segments(Vec<DataSeg>),
    Inline(Vec<u8>),
    /// In pieces of this length.
    Parts(Vec<u8>, usize),
}

fn stage(staged: &mut Staged, wr: Wr<()>, what: &What, flags: u32, cookie: u64) {
    staged.begin(wr, flags, cookie);
    match what {
        What::Nothing => {}
        What::Segments(segments) if segments.len() == 1 => staged.set_segment(segments[0]),
        What::Segments(segments) => staged.set_segments(segments.iter().copied()),
        What::Inline(bytes) => staged.set_inline(bytes),
        What::Parts(bytes, len) => staged.set_inline_parts(bytes.chunks(*len)),
    }
}

fn flagged<D: Data>(mut wr: Wr<D>, flags: u32) -> Wr<D> {
    if flags & SIGNALLED != 0 {
        wr = wr.signalled();
    }
    if flags & SOLICITED != 0 {
        wr = wr.solicited();
    }
    if flags & FENCE != 0 {
        wr = wr.fenced();
    }
    wr
}

/// Operations that can have any data, segments but no inline data, one segment, and no data.
const ANY: u32 = 5;
const WITH_SEGMENTS: u32 = 6;
const WITH_ONE: u32 = 8;
const ALL: u32 = 11;

fn sending<D: Data>(op: u32, data: D) -> Wr<D> {
    match op {
        0 => Wr::send(data),
        1 => Wr::send_imm(0x0102_0304, data),
        2 => Wr::send_inval(0x0506_0708, data),
        3 => Wr::write(THERE, data),
        _ => Wr::write_imm(THERE, 0x0102_0304, data),
    }
}

fn bind(len: u64) -> Bind {
    Bind { rkey: 0x1234, new_rkey: 0x1235, type2: true, lkey: 0x4321, addr: 0x8000, len, access: 0xe }
}

fn bare(op: u32) -> Wr<()> {
    match op {
        0..ANY => sending(op, ()),
        5 => Wr::read(THERE, ()),
        6 => Wr::compare_swap_bare(THERE, 11, 12),
        7 => Wr::fetch_add_bare(THERE, 13),
        8 => Wr::local_inval(0x0506_0708),
        9 => Wr::bind(bind(4096)),
        _ => Wr::bind(bind(0)),
    }
}

/// Pushes the request that [`stage`] stages.
fn push(chain: &mut Chain<'_>, op: u32, what: &What, flags: u32, cookie: u64) {
    let pushed = match what {
        What::Nothing => chain.push(flagged(bare(op), flags), cookie),
        What::Inline(bytes) | What::Parts(bytes, _) => {
            chain.push(flagged(sending(op, Inline(bytes)), flags), cookie)
        }
        What::Segments(segments) => match op {
            0..ANY => chain.push(flagged(sending(op, &segments[..]), flags), cookie),
            5 => chain.push(flagged(Wr::read(THERE, &segments[..]), flags), cookie),
            6 => chain.push(flagged(Wr::compare_swap(THERE, 11, 12, segments[0]), flags), cookie),
            _ => chain.push(flagged(Wr::fetch_add(THERE, 13, segments[0]), flags), cookie),
        },
    };
    pushed.unwrap();
}

fn segment(n: u32, length: u32) -> DataSeg {
    DataSeg::new(0x1000 + u64::from(n), length, 0x77)
}

/// Every kind of data that the operation can have.
fn all_data(op: u32) -> Vec<What> {
    let mut all = vec![What::Nothing];
    if op < ANY {
        for len in [0, 1, 12, 13, 28, 29, 44, 45, 48, 49, 60, 61, 150] {
            let bytes: Vec<u8> = (1..=len).collect();
            all.extend([What::Inline(bytes.clone()), What::Parts(bytes, 7)]);
        }
    }
    if op < WITH_SEGMENTS {
        all.extend((1..=4).map(|most| What::Segments((0..most).map(|n| segment(n, n + 1)).collect())));
        all.push(What::Segments(vec![segment(0, 0)]));
        all.push(What::Segments(vec![segment(0, 0), segment(1, 9), segment(2, 0)]));
    } else if op < WITH_ONE {
        all.push(What::Segments(vec![segment(0, 8)]));
    }
    all
}

#[test]
fn each_request_has_the_same_bytes_as_one_that_is_posted() {
    for (register_bytes, signal_all) in [(256, false), (0, true)] {
        for op in 0..ALL {
            for what in all_data(op) {
                for flags in [0, SIGNALLED, SOLICITED, FENCE, SIGNALLED | SOLICITED | FENCE] {
                    let queue = || Queue::with(Transport::Connected, register_bytes, signal_all);
                    let (mut ours, mut theirs) = (queue(), queue());
                    let mut staged = Staged::new(&ours.sq).unwrap();
                    stage(&mut staged, bare(op), &what, flags, 0xc00c);
                    assert_eq!(ours.sq.post_staged(&staged), Ok(1));
                    let mut chain = theirs.sq.chain();
                    push(&mut chain, op, &what, flags, 0xc00c);
                    assert_eq!(chain.ring(), 1);
                    assert_eq!(ours.contents(), theirs.contents(), "{op} {what:?} {flags}");
                    assert!(ours.sq.outstanding().eq(theirs.sq.outstanding()));
                }
            }
        }
    }
}

/// Random batches, around the ring many times: longer than the room, with errors, given up.
/// Posts these segments as an array to one queue and as a slice to another.
fn as_array_and_slice<const N: usize>(queues: &mut [Queue; 2], segments: [DataSeg; N]) {
    for n in 0..3 {
        let [by_array, by_slice] = queues.each_mut();
        let released = [
            match n {
                0 => by_array.sq.post(Wr::send(segments).signalled(), n),
                1 => by_array.sq.post(Wr::write(THERE, segments).solicited(), n),
                _ => by_array.sq.post(Wr::send(segments).fenced().signalled(), n),
            },
            match n {
                0 => by_slice.sq.post(Wr::send(&segments[..]).signalled(), n),
                1 => by_slice.sq.post(Wr::write(THERE, &segments[..]).solicited(), n),
                _ => by_slice.sq.post(Wr::send(&segments[..]).fenced().signalled(), n),
            },
        ];
        assert_eq!(released, [Ok(()), Ok(())]);
        assert_eq!(queues[0].wqes(), queues[1].wqes(), "{segments:?}");
        let rung = queues.each_ref().map(|queue| {
            let (_, record, register) = queue.contents();
            let wqe = |half: &[u64]| half[..2 * (half[0].to_be() as usize & 63)].to_vec();
            (record, register.chunks(32).map(wqe).collect::<Vec<_>>())
        });
        assert_eq!(rung[0], rung[1], "{segments:?}");
        for queue in &mut *queues {
            let (first, _) = queue.sq.outstanding().next().unwrap();
            assert_eq!(queue.sq.complete(first).unwrap().cookie, n);
        }
    }
}

/// Also with empty segments, which the device must not see, and with more segments than a block has
/// room for.
#[test]
fn an_array_of_segments_is_posted_as_a_slice_of_them() {
    let mut queues = [(), ()].map(|()| Queue::new(Transport::Connected));
    let [a, b, c] = [1, 2, 3].map(|n| DataSeg::new(n << 40, n as u32 * 100, n as u32));
    let empty = DataSeg::new(1, 0, 1);
    // The ring ends several times.
    for _ in 0..8 {
        as_array_and_slice(&mut queues, [a]);
        as_array_and_slice(&mut queues, [a, b]);
        as_array_and_slice(&mut queues, [a, b, c]);
        as_array_and_slice(&mut queues, [a, b, c, a]);
        as_array_and_slice(&mut queues, [a, empty]);
        as_array_and_slice(&mut queues, [a, empty, c, b]);
        as_array_and_slice(&mut queues, [empty, empty]);
        as_array_and_slice(&mut queues, []);
    }
}

/// A chain that was rung goes on as a new one: what is pushed then is rung or taken back alone,
/// with the fence that the last rung request left to the next one.
#[test]
fn a_chain_that_goes_on_leaves_the_queue_as_two_chains_do() {
    let [mut ours, mut theirs] = [(), ()].map(|()| Queue::new(Transport::Connected));
    // The ring ends several times.
    for round in 0..100 {
        // The first request of every third round changes a key.
        let first = if round % 3 == 0 { Wr::local_inval(9) } else { Wr::nop() };
        let mut chain = ours.sq.chain();
        chain.push(first, 1).unwrap();
        assert_eq!(chain.ring_now(), 1);
        assert_eq!((chain.len(), chain.ring_now()), (0, 0));
        let mut other = theirs.sq.chain();
        other.push(first, 1).unwrap();
        assert_eq!(other.ring(), 1);
        let mut other = theirs.sq.chain();
        for chain in [&mut chain, &mut other] {
            chain.push(Wr::send(Inline(b"two")), 2).unwrap();
            chain.push(Wr::send(Inline(b"three")), 3).unwrap();
        }
        if round % 4 == 0 {
            assert_eq!((chain.ring(), other.ring()), (2, 2));
        } else {
            drop((chain, other));
        }
        assert_eq!(ours.contents(), theirs.contents(), "round {round}");
        for queue in [&mut ours, &mut theirs] {
            queue.sq.post(Wr::send(Inline(b"next")).signalled(), 4).unwrap();
            let last = queue.sq.outstanding().last().unwrap().0;
            assert_eq!(queue.sq.complete(last).unwrap().cookie, 4);
        }
        assert_eq!(ours.contents(), theirs.contents(), "round {round}");
    }
}

#[test]
fn random_batches_leave_the_queue_as_chains_do() {
    let mut seed = 7_u64;
    let mut below = |n: u32| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((seed >> 33) % u64::from(n)) as u32
    };
    let rounds = if cfg!(miri) { 60 } else { 6000 };
    let (mut ours, mut theirs) = (Queue::new(Transport::Connected), Queue::new(Transport::Connected));
    let mut staged = Staged::new(&ours.sq).unwrap();
    let mut seen = [0; 4];
    for round in 0..rounds {
        let count = [0, 1, 1, 2, 5, 16, 20][below(7) as usize];
        let mut batch = vec![];
        for n in 0..count {
            let op = if below(2) == 0 { 0 } else { below(ALL) };
            let data = all_data(op);
            let what = data[below(data.len() as u32) as usize].clone();
            let flags = if below(4) == 0 { FENCE } else { 0 } | if below(2) == 0 { SIGNALLED } else { 0 };
            batch.push((op, what, flags, u64::from(round * 100 + n)));
        }
        let bad = (below(5) == 0 && count > 0).then(|| below(count));
        staged.clear();
        for (n, (op, what, flags, cookie)) in (0..).zip(&batch) {
            stage(&mut staged, bare(*op), what, *flags, *cookie);
            if bad == Some(n) {
                match below(3) {
                    0 => staged.set_inline(&[1; 151]),
                    1 => staged.set_inline_parts([[1; 151].as_slice()].into_iter()),
                    _ => staged.set_segments([segment(1, 1); 5].into_iter()),
                }
            }
        }
        if below(6) == 0 {
            // Given up: nothing is to be seen of the batch.
            seen[0] += 1;
            continue;
        }
        // A post in another way, while the batch waits.
        if below(3) == 0 && theirs.sq.free() > 0 {
            for queue in [&mut ours, &mut theirs] {
                queue.sq.post(Wr::send(Inline(b"before")), 6).unwrap();
            }
        }
        let before = ours.contents();
        let outcome = ours.sq.post_staged(&staged);
        if count > theirs.sq.free() || bad.is_some() {
            assert!(
                matches!(outcome, Err(WrError::Full | WrError::InlineTooLong | WrError::TooManySegments)),
                "{outcome:?}"
            );
            assert_eq!(ours.contents(), before);
            seen[1] += 1;
        } else {
            assert_eq!(outcome, Ok(count));
            let mut chain = theirs.sq.chain();
            batch.iter().for_each(|(op, what, flags, cookie)| push(&mut chain, *op, what, *flags, *cookie));
            assert_eq!(chain.ring(), count);
            seen[if count == 1 { 2 } else { 3 }] += 1;
        }
        assert_eq!(ours.wqes(), theirs.wqes(), "round {round}");
        let (ring, theirs_now) = (ours.contents(), theirs.contents());
        assert_eq!(ring.1, theirs_now.1);
        // The first words of both halves: each ring is a doorbell or a copy.
        assert_eq!((ring.2[0], ring.2[32]), (theirs_now.2[0], theirs_now.2[32]), "round {round}");
        let complete = below(ours.sq.posted() + 1) as usize;
        if complete > 0 {
            let (first, _) = ours.sq.outstanding().nth(complete - 1).unwrap();
            assert_eq!(ours.sq.complete(first), theirs.sq.complete(first));
        }
    }
    assert!(cfg!(miri) || seen.iter().all(|n| *n > 100), "{seen:?}");
}

#[test]
fn errors_are_kept_until_the_batch_is_forgotten() {
    let mut queue = Queue::new(Transport::Connected);
    let mut staged = Staged::new(&queue.sq).unwrap();
    let before = queue.contents();
    // Data without a request is nobody's.
    staged.set_inline(b"nobody's");
    staged.set_segment(segment(0, 1));
    assert_eq!(queue.sq.post_staged(&staged), Ok(0));
    for (bad, error) in [(0, WrError::TooManySegments), (1, WrError::InlineTooLong), (2, WrError::NoAddress)]
    {
        staged.clear();
        staged.begin(Wr::send(()), 0, 1);
        match bad {
            0 => staged.set_segments([segment(0, 1); 5].into_iter()),
            1 => staged.set_inline(&[0; 151]),
            _ => staged.refuse(WrError::NoAddress),
        }
        staged.set_inline(b"good");
        (0..30).for_each(|n| staged.begin(Wr::send(()), 0, n));
        assert_eq!((staged.error(), queue.sq.post_staged(&staged)), (Some(error), Err(error)));
    }
    staged.clear();
    (0..=u64::from(REQUESTS)).for_each(|n| staged.begin(Wr::send(()), 0, n));
    assert_eq!(queue.sq.post_staged(&staged), Err(WrError::Full));
    assert_eq!(queue.contents(), before);
    staged.clear();
    (0..u64::from(REQUESTS)).for_each(|n| staged.begin(Wr::send(()), 0, n));
    assert_eq!(queue.sq.post_staged(&staged), Ok(REQUESTS));
    assert_eq!(queue.sq.post_staged(&staged), Err(WrError::Full));
    assert_eq!(queue.sq.complete(BLOCKS as u16 - 1), Err(NotPosted(BLOCKS as u16 - 1)));
    let mut none = Staged::without_queue().unwrap();
    none.begin(Wr::send(()), 0, 1);
    none.set_inline(b"one");
    assert_eq!(none.error(), Some(WrError::Full));
}

/// Data and peer in either order.
#[test]
fn datagrams_and_xrc_requests_name_their_peer() {
    let path = AddressVector::from_words([1, 2, 3, 4, 5, 6]);
    let data = segment(0, 64);
    for peer_first in [true, false] {
        for imm in [false, true] {
            let (mut ours, mut theirs) = (Queue::new(Transport::Datagram), Queue::new(Transport::Datagram));
            let mut staged = Staged::new(&ours.sq).unwrap();
            let wr = if imm { Wr::send_imm(9, ()) } else { Wr::send(()) };
            staged.begin(wr, SIGNALLED, 1);
            if peer_first {
                staged.set_peer(&path, 0x77, 0x88);
            }
            staged.set_segment(data);
            staged.begin(wr, 0, 2);
            staged.set_inline(&[5; 50]);
            staged.set_peer(&path, 0x78, 0x89);
            let before = ours.contents();
            if !peer_first {
                // Only the second datagram has a peer.
                assert_eq!(ours.sq.post_staged(&staged), Err(WrError::NoAddress));
                assert_eq!(ours.contents(), before);
                continue;
            }
            staged.set_srq(1);
            assert_eq!(ours.sq.post_staged(&staged), Ok(2));
            let mut chain = theirs.sq.chain();
            let one = if imm { Wr::send_imm(9, data) } else { Wr::send(data) };
            chain.push(one.signalled().to(&path, 0x77, 0x88), 1).unwrap();
            let two = Inline(&[5; 50]);
            let two = if imm { Wr::send_imm(9, two) } else { Wr::send(two) };
            chain.push(two.to(&path, 0x78, 0x89), 2).unwrap();
            assert_eq!(chain.ring(), 2);
            assert_eq!(ours.contents(), theirs.contents());
        }
        let (mut ours, mut theirs) = (Queue::new(Transport::Xrc), Queue::new(Transport::Xrc));
        let mut staged = Staged::new(&ours.sq).unwrap();
        for (n, op) in (0..).zip([0, 3, 5, 6]) {
            staged.begin(bare(op), 0, n);
            if peer_first {
                staged.set_srq(0x99);
            }
            staged.set_segment(segment(0, 8));
            if !peer_first {
                staged.set_srq(0x99);
            }
        }
        staged.begin(Wr::local_inval(3), 0, 4);
        staged.set_srq(0x99);
        staged.begin(Wr::send(()), 0, 5);
        staged.set_peer(&path, 1, 2);
        assert_eq!(ours.sq.post_staged(&staged), Ok(6));
        let mut chain = theirs.sq.chain();
        let data = segment(0, 8);
        chain.push(Wr::send(data).to_srq(0x99), 0).unwrap();
        chain.push(Wr::write(THERE, data).to_srq(0x99), 1).unwrap();
        chain.push(Wr::read(THERE, data).to_srq(0x99), 2).unwrap();
        chain.push(Wr::compare_swap(THERE, 11, 12, data).to_srq(0x99), 3).unwrap();
        chain.push(Wr::local_inval(3), 4).unwrap();
        chain.push(Wr::send(()).to_srq(0), 5).unwrap();
        assert_eq!(chain.ring(), 6);
        assert_eq!(ours.contents(), theirs.contents());
    }
}
