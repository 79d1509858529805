//! Random operations on receive queues of QPs, checked by a device that reads ring and record at
//! literal offsets, and by a model of what is posted.

mod common;

use std::{collections::VecDeque, sync::Arc};

use common::{Seg, seen_by_device};
use mlx5_direct::{DataSeg, HeapMem, Rq, RqLayout, srq::PostError};
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Op {
    /// Lengths of the segments; those of length 0 are left out.
    Post(Vec<u32>),
    /// So many segments, by the function for a number that the compiler knows.
    Few(u8),
    /// A receive completes: the oldest, or (a faulty device) a later one.
    Complete(u16),
    /// A completion with this number.
    Bogus(u16),
    Reset,
}

fn ops() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => prop::collection::vec(prop_oneof![Just(0u32), 1..5000u32], 0..10).prop_map(Op::Post),
        3 => (1..=4u8).prop_map(Op::Few),
        6 => prop_oneof![9 => Just(0u16), 1 => 0..9u16].prop_map(Op::Complete),
        1 => any::<u16>().prop_map(Op::Bogus),
        1 => Just(Op::Reset),
    ]
}

struct Session {
    rq: Rq,
    mem: Arc<HeapMem>,
    slots: u16,
    stride: usize,
    next: u16,
    /// Cookie and segments of each outstanding receive, oldest first.
    outstanding: VecDeque<(u64, Vec<Seg>)>,
    next_cookie: u64,
}

impl Session {
    fn segments(&mut self, lengths: &[u32]) -> (u64, Vec<DataSeg>, Vec<Seg>) {
        self.next_cookie += 1;
        let cookie = self.next_cookie;
        let all: Vec<Seg> = lengths
            .iter()
            .zip(0u32..)
            .map(|(len, n)| (cookie << 8 | u64::from(n), *len, 0x700 + n))
            .collect();
        let given = all.iter().map(|s| DataSeg::new(s.0, s.1, s.2)).collect();
        (cookie, given, all.into_iter().filter(|s| s.1 > 0).collect())
    }

    /// The segments that the device finds in a slot.
    fn read(&self, index: u16) -> Vec<Seg> {
        let slot = usize::from(index & (self.slots - 1)) * self.stride;
        let mut segs = vec![];
        for at in (slot..slot + self.stride).step_by(16) {
            let (len, lkey) = (self.mem.load_be32(at), self.mem.load_be32(at + 4));
            let addr = self.mem.load_be64(at + 8);
            if lkey == 0x100 {
                assert_eq!((len, addr), (0, 0), "the terminator");
                break;
            }
            segs.push((addr, len, lkey));
        }
        segs
    }

    fn note(&mut self, cookie: u64, segs: Vec<Seg>) {
        self.outstanding.push_back((cookie, segs));
        self.next = self.next.wrapping_add(1);
    }

    fn apply(&mut self, op: &Op) {
        let room = usize::from(self.slots) - self.outstanding.len();
        match op {
            Op::Post(lengths) => {
                let (cookie, given, expected) = self.segments(lengths);
                let fits = room > 0 && lengths.len() <= self.stride / 16;
                assert_eq!(self.rq.post(&given, cookie).is_ok(), fits);
                if fits {
                    self.note(cookie, expected);
                }
            }
            Op::Few(n) => {
                let (cookie, given, expected) = self.segments(&[64; 4][..usize::from(*n)]);
                let outcome = match *given {
                    [a] => self.rq.post_few([a.into()], cookie),
                    [a, b] => self.rq.post_few([a, b].map(Into::into), cookie),
                    [a, b, c] => self.rq.post_few([a, b, c].map(Into::into), cookie),
                    [a, b, c, d] => self.rq.post_few([a, b, c, d].map(Into::into), cookie),
                    _ => unreachable!("one to four"),
                };
                let expected_error = if room == 0 {
                    Err(PostError::Full)
                } else if given.len() > self.stride / 16 {
                    Err(PostError::TooManySegments)
                } else {
                    Ok(())
                };
                assert_eq!(outcome, expected_error);
                if outcome.is_ok() {
                    self.note(cookie, expected);
                }
            }
            Op::Complete(n) if !self.outstanding.is_empty() => {
                let n = usize::from(*n) % self.outstanding.len();
                let number = self.next.wrapping_sub((self.outstanding.len() - n) as u16);
                let (cookie, segs) = self.outstanding.drain(..=n).next_back().expect("one");
                let seen: Vec<Seg> =
                    self.rq.segments(number).map(|s| (s.addr(), s.byte_count(), s.lkey())).collect();
                assert_eq!(seen, segs, "where a payload in the entry belongs");
                assert_eq!(self.rq.complete(number), Ok(cookie));
            }
            Op::Complete(_) => {}
            Op::Bogus(number) => {
                let ahead = number.wrapping_sub(self.next) & (self.slots - 1);
                if usize::from(ahead) < room {
                    assert!(self.rq.complete(*number).is_err());
                }
            }
            Op::Reset => {
                self.rq.reset();
                self.outstanding.clear();
                self.next = 0;
            }
        }
        assert_eq!(self.mem.load_be32(self.mem.dbrec_offset()), u32::from(self.next), "the record");
        let posted = self.outstanding.len();
        assert_eq!(self.rq.posted() as usize, posted);
        assert_eq!(self.rq.free() as usize, usize::from(self.slots) - posted);
        let cookies: Vec<u64> = self.outstanding.iter().map(|(cookie, _)| *cookie).collect();
        assert_eq!(self.rq.outstanding().collect::<Vec<_>>(), cookies);
        for (n, (_, segs)) in self.outstanding.iter().enumerate() {
            let index = self.next.wrapping_sub((posted - n) as u16);
            assert_eq!(self.read(index), *segs, "the receive in slot {index}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn any_operations_keep_the_promises_to_device_and_program(
        log_slots in 0..8u32,
        log_stride in 4..8u32,
        ops in prop::collection::vec(ops(), 1..200),
    ) {
        let (slots, stride) = (1 << log_slots, 1 << log_stride);
        let (layout, view) = RqLayout::on_heap(slots, stride).expect("layout");
        let mut session = Session {
            rq: Rq::new(layout),
            mem: seen_by_device(view),
            slots: slots as u16,
            stride: stride as usize,
            next: 0,
            outstanding: VecDeque::new(),
            next_cookie: 0,
        };
        for op in &ops {
            session.apply(op);
        }
    }
}
