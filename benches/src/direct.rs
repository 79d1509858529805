#![expect(unsafe_code, reason = "taking verbs queues over, and chains of work requests")]
//! mlx5-direct on queues that libmlx5 made.

use std::hint::black_box;

use mlx5_direct::{AddressOnly, AnySegments, Bound, Completion, Cq, DataSeg, RecvWrs, Srq, WqeIndex};

use crate::{
    case::GROUP,
    path::Path,
    plan::{CaseName, Spec},
    queues::{Queues, Requests},
};

/// mlx5-direct with one way to post.
pub struct Direct<M, P> {
    queues: Queues,
    srq: Srq<M>,
    cq: Cq,
    poster: P,
}

/// How a sample's calls put buffers into the SRQ.
pub trait Poster<M> {
    /// One batch, the `call`-th of the sample.
    fn post(&mut self, srq: &mut Srq<M>, call: u32);
    /// Posts a group of single buffers.
    #[inline(always)]
    fn post_group(&mut self, srq: &mut Srq<M>) {
        for call in 0..GROUP {
            self.post(srq, call);
        }
    }
    /// Posts until the SRQ is full.
    fn fill(&mut self, srq: &mut Srq<M>);
}

fn take_over(spec: &Spec) -> (Queues, Srq, Cq) {
    let queues = Queues::untouched(spec.depth, spec.segments);
    // SAFETY: the queues live as long as the process, nobody else posts to or polls them, and the
    // buffers are leaked and never accessed.
    let (srq, cq) = unsafe { (Srq::from_verbs(queues.srq(), Some(spec.depth)), Cq::from_verbs(queues.cq())) };
    (queues, srq.expect("an SRQ"), cq.expect("a CQ"))
}

fn addresses(queues: &Queues, spec: &Spec) -> Vec<(u64, u64)> {
    (0..if spec.batch == 1 { GROUP } else { spec.batch }).map(|n| (queues.address(n), u64::from(n))).collect()
}

/// The path for a case. The case decides how the path posts.
pub fn path(spec: &Spec) -> Box<dyn crate::case::Case> {
    use crate::cases::on;
    let (queues, srq, cq) = take_over(spec);
    let (lkey, bufs) = (queues.lkey(), addresses(&queues, spec));
    match (spec.case, spec.segments) {
        (CaseName::PostAddress, _) => {
            let srq = srq.address_only(4096, lkey).expect("idle");
            on(*spec, Direct { queues, srq, cq, poster: Address { bufs, batch: spec.batch } })
        }
        (CaseName::Repost, _) => {
            let own = |slot: WqeIndex| {
                (DataSeg::new(queues.address(u32::from(slot.0)), 4096, lkey), u64::from(slot.0))
            };
            let srq = srq.bind(own).expect("idle");
            on(*spec, Direct { queues, srq, cq, poster: InPlace { batch: spec.batch } })
        }
        (CaseName::PostEncoded, _) => {
            let encoded = |(addr, cookie)| (DataSeg::new(addr, 4096, lkey), cookie);
            let bufs = bufs.into_iter().map(encoded).collect();
            on(*spec, Direct { queues, srq, cq, poster: Encoded { bufs, batch: spec.batch } })
        }
        (_, 1) => on(*spec, Direct { queues, srq, cq, poster: New { bufs, lkey, batch: spec.batch } }),
        (_, segments) if spec.batch == 1 => {
            let segs =
                |n: u32| (0..segments).map(|k| DataSeg::new(queues.address(n + k), 4096, lkey)).collect();
            let poster = Several { bufs: (0..GROUP).map(segs).collect() };
            on(*spec, Direct { queues, srq, cq, poster })
        }
        (_, segments) => {
            let requests = Requests::new(&queues, spec.batch, segments, true);
            on(*spec, Direct { queues, srq, cq, poster: Chain { requests } })
        }
    }
}

impl<M, P: Poster<M>> Path for Direct<M, P> {
    fn queues(&mut self) -> &mut Queues {
        &mut self.queues
    }

    #[inline(always)]
    fn post(&mut self, call: u32) {
        self.poster.post(&mut self.srq, call);
    }

    #[inline(always)]
    fn post_group(&mut self) {
        self.poster.post_group(&mut self.srq);
    }

    #[inline(always)]
    fn poll(&mut self, n: u32) {
        let each = |c| {
            if let Completion::Recv(c) = c {
                black_box(c.qpn);
                black_box(c.slot.0);
                black_box(c.byte_count);
            }
        };
        assert_eq!(self.cq.poll_each(n, each), Ok(n));
    }

    #[inline(always)]
    fn poll_and_free(&mut self, n: u32) {
        let srq = &mut self.srq;
        let each = |c| {
            if let Completion::Recv(c) = c {
                black_box(c.qpn);
                black_box(srq.complete(c.slot).is_ok());
                black_box(c.byte_count);
            }
        };
        assert_eq!(self.cq.poll_each(n, each), Ok(n));
    }

    #[inline(always)]
    fn poll_one(&mut self) {
        let Ok(Some(Completion::Recv(c))) = self.cq.poll() else { panic!("nothing waits") };
        black_box(c.qpn);
        black_box(c.slot.0);
        black_box(c.byte_count);
    }

    #[inline(always)]
    fn poll_and_free_one(&mut self) {
        let Ok(Some(Completion::Recv(c))) = self.cq.poll() else { panic!("nothing waits") };
        black_box(c.qpn);
        black_box(self.srq.complete(c.slot).is_ok());
        black_box(c.byte_count);
    }

    #[inline(always)]
    fn poll_empty(&mut self) {
        black_box(matches!(self.cq.poll(), Ok(None)));
    }

    fn free(&mut self, slots: &[u16]) {
        for slot in slots {
            self.srq.complete(WqeIndex(*slot)).expect("in use");
        }
    }

    fn fill(&mut self) {
        self.poster.fill(&mut self.srq);
    }
}

/// Each post has a new address, length, lkey and cookie; one segment.
struct New {
    bufs: Vec<(u64, u64)>,
    lkey: u32,
    batch: u32,
}

impl Poster<AnySegments> for New {
    #[inline(always)]
    fn post(&mut self, srq: &mut Srq, call: u32) {
        let lkey = self.lkey;
        if self.batch == 1 {
            let (addr, cookie) = self.bufs[call as usize];
            assert!(srq.post_one(DataSeg::new(addr, 4096, lkey), cookie).is_ok(), "the SRQ is full");
        } else {
            let bufs = &self.bufs[..self.batch as usize];
            let posted =
                srq.post_batch(bufs.iter().map(move |&(addr, c)| (DataSeg::new(addr, 4096, lkey), c)));
            assert_eq!(posted, self.batch, "the SRQ is full");
        }
    }

    #[inline(always)]
    fn post_group(&mut self, srq: &mut Srq) {
        for &(addr, cookie) in &self.bufs {
            assert!(srq.post_one(DataSeg::new(addr, 4096, self.lkey), cookie).is_ok(), "the SRQ is full");
        }
    }

    fn fill(&mut self, srq: &mut Srq) {
        while srq.post_one(DataSeg::new(self.bufs[0].0, 4096, self.lkey), 0).is_ok() {}
    }
}

/// Posts segments that were built beforehand.
struct Encoded {
    bufs: Vec<(DataSeg, u64)>,
    batch: u32,
}

impl Poster<AnySegments> for Encoded {
    #[inline(always)]
    fn post(&mut self, srq: &mut Srq, call: u32) {
        if self.batch == 1 {
            let (seg, cookie) = self.bufs[call as usize];
            assert!(srq.post_one(seg, cookie).is_ok(), "the SRQ is full");
        } else {
            let posted = srq.post_slice(&self.bufs[..self.batch as usize]);
            assert_eq!(posted, self.batch, "the SRQ is full");
        }
    }

    #[inline(always)]
    fn post_group(&mut self, srq: &mut Srq) {
        for &(seg, cookie) in &self.bufs {
            assert!(srq.post_one(seg, cookie).is_ok(), "the SRQ is full");
        }
    }

    fn fill(&mut self, srq: &mut Srq) {
        while srq.post_one(self.bufs[0].0, 0).is_ok() {}
    }
}

/// Posts several new segments, one buffer per call.
struct Several {
    bufs: Vec<Vec<DataSeg>>,
}

impl Poster<AnySegments> for Several {
    #[inline(always)]
    fn post(&mut self, srq: &mut Srq, call: u32) {
        let posted = srq.post(&self.bufs[call as usize], u64::from(call));
        assert!(posted.is_ok(), "the SRQ is full");
    }

    #[inline(always)]
    fn post_group(&mut self, srq: &mut Srq) {
        for (n, segs) in self.bufs.iter().enumerate() {
            assert!(srq.post(segs, n as u64).is_ok(), "the SRQ is full");
        }
    }

    fn fill(&mut self, srq: &mut Srq) {
        while srq.post(&self.bufs[0], 0).is_ok() {}
    }
}

/// Posts several new segments, a batch as a chain of verbs work requests, as libmlx5 takes them.
struct Chain {
    requests: Requests,
}

impl Poster<AnySegments> for Chain {
    #[inline(always)]
    fn post(&mut self, srq: &mut Srq, _: u32) {
        // SAFETY: requests and scatter lists live in `requests`, chained to a null end.
        let wrs = unsafe { RecvWrs::new(self.requests.get(0)) };
        assert!(srq.post_recv_wrs(wrs).is_ok(), "the SRQ is full");
    }

    fn fill(&mut self, srq: &mut Srq) {
        while srq.post(&[], 0).is_ok() {}
    }
}

/// Length and lkey are in place; each post has a new address.
struct Address {
    bufs: Vec<(u64, u64)>,
    batch: u32,
}

impl Poster<AddressOnly> for Address {
    #[inline(always)]
    fn post(&mut self, srq: &mut Srq<AddressOnly>, call: u32) {
        if self.batch == 1 {
            let (addr, cookie) = self.bufs[call as usize];
            assert!(srq.post_one(addr, cookie).is_ok(), "the SRQ is full");
        } else {
            let posted = srq.post_slice(&self.bufs[..self.batch as usize]);
            assert_eq!(posted, self.batch, "the SRQ is full");
        }
    }

    #[inline(always)]
    fn post_group(&mut self, srq: &mut Srq<AddressOnly>) {
        for &(addr, cookie) in &self.bufs {
            assert!(srq.post_one(addr, cookie).is_ok(), "the SRQ is full");
        }
    }

    fn fill(&mut self, srq: &mut Srq<AddressOnly>) {
        while srq.post_one(self.bufs[0].0, 0).is_ok() {}
    }
}

/// Each slot keeps its buffer.
struct InPlace {
    batch: u32,
}

impl Poster<Bound> for InPlace {
    #[inline(always)]
    fn post(&mut self, srq: &mut Srq<Bound>, _: u32) {
        assert_eq!(srq.repost(black_box(self.batch)), self.batch, "the SRQ is full");
    }

    fn fill(&mut self, srq: &mut Srq<Bound>) {
        while srq.repost(1) == 1 {}
    }
}
