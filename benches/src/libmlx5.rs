#![expect(unsafe_code, reason = "verbs calls")]
//! libmlx5's own data path: `ibv_post_srq_recv` and `ibv_poll_cq`.

use std::{ffi::c_int, hint::black_box, mem::zeroed, ptr::null_mut};

use doorbell_sys::{ibv_poll_cq, ibv_post_srq_recv, ibv_recv_wr, ibv_wc};

use crate::{
    case::GROUP,
    path::Path,
    plan::Spec,
    queues::{Queues, Requests},
};

/// Maximum number of completions per poll.
const MOST: usize = 64;

/// libmlx5 on its own queues, with prepared work requests.
pub struct Libmlx5 {
    queues: Queues,
    /// The batch as one chain; for single posts, a group of separate requests.
    requests: Requests,
    wc: Box<[ibv_wc; MOST]>,
}

impl Libmlx5 {
    /// The path for a case.
    pub fn new(spec: &Spec) -> Self {
        let queues = Queues::for_libmlx5(spec.depth, spec.segments);
        let requests = if spec.batch == 1 {
            Requests::new(&queues, GROUP, spec.segments, false)
        } else {
            Requests::new(&queues, spec.batch, spec.segments, true)
        };
        // SAFETY: integers only.
        let wc = Box::new(unsafe { zeroed::<[ibv_wc; MOST]>() });
        Self { queues, requests, wc }
    }

    #[inline(always)]
    fn post_requests(&mut self, first: *mut ibv_recv_wr) -> bool {
        let mut bad = null_mut();
        // SAFETY: a live SRQ; the chain and its scatter lists live in `requests`.
        unsafe { ibv_post_srq_recv(self.queues.srq(), first, &mut bad) == 0 }
    }

    #[inline(always)]
    fn poll_once(&mut self, n: u32) -> u32 {
        let n = n.min(MOST as u32);
        // SAFETY: a live CQ and room for that many completions.
        let got = unsafe { ibv_poll_cq(self.queues.cq(), n as c_int, self.wc.as_mut_ptr()) };
        let got = u32::try_from(got).expect("ibv_poll_cq");
        for c in &self.wc[..got as usize] {
            black_box(c.qp_num);
            black_box(c.wr_id);
            black_box(c.byte_len);
        }
        got
    }
}

impl Path for Libmlx5 {
    fn queues(&mut self) -> &mut Queues {
        &mut self.queues
    }

    #[inline(always)]
    fn post(&mut self, call: u32) {
        let first = self.requests.get(call);
        assert!(self.post_requests(first), "the SRQ is full");
    }

    #[inline(always)]
    fn post_group(&mut self) {
        for call in 0..GROUP {
            self.post(call);
        }
    }

    #[inline(always)]
    fn poll(&mut self, n: u32) {
        let mut left = n;
        while left > 0 {
            left -= self.poll_once(left);
        }
    }

    #[inline(always)]
    fn poll_and_free(&mut self, n: u32) {
        self.poll(n);
    }

    #[inline(always)]
    fn poll_one(&mut self) {
        assert_eq!(self.poll_once(1), 1, "nothing waits");
    }

    #[inline(always)]
    fn poll_and_free_one(&mut self) {
        self.poll_one();
    }

    #[inline(always)]
    fn poll_empty(&mut self) {
        black_box(self.poll_once(1));
    }

    fn free(&mut self, _: &[u16]) {}

    fn fill(&mut self) {
        let mut one = Requests::new(&self.queues, 1, 1, false);
        while self.post_requests(one.get(0)) {}
    }
}

/// The version of rdma-core that libmlx5's file name carries (libmlx5.so.1.24.44.0: 44).
pub fn version() -> Option<u32> {
    // SAFETY: libmlx5's initialisers only register a verbs driver.
    let _lib = unsafe { libloading::Library::new("libmlx5.so.1") }.ok()?;
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let name = maps.lines().find_map(|line| line.split("/libmlx5.so.1.").nth(1))?;
    name.split('.').nth(1)?.parse().ok()
}
