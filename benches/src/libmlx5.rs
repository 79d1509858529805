#![expect(unsafe_code, reason = "verbs, and queue memory in the place of a device")]
//! libmlx5's own data path on its own queues, with a stand-in for the device.
//!
//! The software device makes libmlx5 work on any machine, delivers one real message, and then does nothing more: the
//! completion entries that are polled here are copies of that message's entry with another slot, written into the CQ by
//! `Queues::deliver` outside the timed part. The device's engine never runs while a case does.

use std::{ffi::c_int, hint::black_box, mem::zeroed, ptr::null_mut, sync::Once};

use mlx5_direct::dv::abi;
use rdma_sys::*;

use crate::case::{Case, Key, Rng};

/// All cases of libmlx5. `subject` says how it was started: with its locks or without.
pub fn cases(subject: &'static str) -> Vec<Box<dyn Case>> {
    let mut cases: Vec<Box<dyn Case>> = vec![];
    for batch in [1, 16, 32, 64] {
        cases.push(Box::new(Post::new(subject, 1023, batch)));
    }
    for batch in [16, 32, 64] {
        cases.push(Box::new(PollAndPost::new(subject, "poll_and_post_in_order", 1023, batch)));
    }
    for depth in [255, 1023, 4095, 32_767] {
        cases.push(Box::new(PollAndPost::new(subject, "post_out_of_order", depth, 32)));
        cases.push(Box::new(PollAndPost::new(subject, "poll_and_post_out_of_order", depth, 32)));
    }
    for batch in [1, 16, 32] {
        cases.push(Box::new(Poll::new(subject, batch)));
    }
    cases.push(Box::new(PollEmpty::new(subject)));
    cases
}

const CQ_ENTRIES: usize = 1024;

fn some<T>(ptr: *mut T, call: &str) -> *mut T {
    assert!(!ptr.is_null(), "{call}: {}", std::io::Error::last_os_error());
    ptr
}

fn ok(rc: c_int, call: &str) {
    assert_eq!(rc, 0, "{call}: {}", std::io::Error::from_raw_os_error(rc.abs()));
}

/// An SRQ and a CQ of libmlx5, and where their memory is. Never destroyed: a case lives as long as the program.
struct Queues {
    srq: *mut ibv_srq,
    cq: *mut ibv_cq,
    ring: *mut u8,
    stride: usize,
    entries: *mut u8,
    /// The entry of a real message.
    template: [u8; 64],
    produced: usize,
    /// Where the device is in the list.
    position: u16,
    lkey: u32,
    buffer: u64,
}

impl Queues {
    fn new(depth: u32) -> Self {
        static DEVICE: Once = Once::new();
        DEVICE.call_once(|| {
            mlx5_emu::set_mode(mlx5_emu::Mode::Manual);
            mlx5_emu::init();
        });
        // SAFETY: verbs calls with live objects that the calls before returned.
        unsafe {
            let list = some(ibv_get_device_list(null_mut()), "ibv_get_device_list");
            let context = some(ibv_open_device(some(*list, "an mlx5 device")), "ibv_open_device");
            ibv_free_device_list(list);
            let pd = some(ibv_alloc_pd(context), "ibv_alloc_pd");
            let memory = vec![0u8; 4096].leak();
            let access = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0 as c_int;
            let mr = some(ibv_reg_mr(pd, memory.as_mut_ptr().cast(), 4096, access), "ibv_reg_mr");
            let cq = |n| some(ibv_create_cq(context, n, null_mut(), null_mut(), 0), "ibv_create_cq");
            let (recv, send) = (cq(CQ_ENTRIES as c_int - 1), cq(15));
            let mut init: ibv_srq_init_attr = zeroed();
            (init.attr.max_wr, init.attr.max_sge) = (depth, 1);
            let srq = some(ibv_create_srq(pd, &mut init), "ibv_create_srq");
            let (ring, stride, entries) = describe(srq, recv);

            let mut this = Self {
                srq,
                cq: recv,
                ring,
                stride,
                entries,
                template: [0; 64],
                produced: 0,
                position: 0,
                lkey: (*mr).lkey,
                buffer: memory.as_ptr() as u64,
            };
            this.learn(context, pd, send);
            this
        }
    }

    /// Has the software device deliver one message and keeps its entry.
    ///
    /// # Safety
    ///
    /// Live objects.
    unsafe fn learn(&mut self, context: *mut ibv_context, pd: *mut ibv_pd, send: *mut ibv_cq) {
        assert_eq!(self.post(&mut self.chain(1)), 1);
        // SAFETY: live objects by contract; attributes that each call reads are set.
        unsafe {
            let qps: Vec<_> = (0..2)
                .map(|_| {
                    let mut init: ibv_qp_init_attr = zeroed();
                    (init.send_cq, init.recv_cq, init.srq) = (send, self.cq, self.srq);
                    (init.cap.max_send_wr, init.cap.max_send_sge) = (1, 1);
                    (init.qp_type, init.sq_sig_all) = (ibv_qp_type::IBV_QPT_RC, 1);
                    some(ibv_create_qp(pd, &mut init), "ibv_create_qp")
                })
                .collect();
            connect(context, qps[0], (*qps[1]).qp_num);
            connect(context, qps[1], (*qps[0]).qp_num);
            // Longer than what fits into an entry.
            let mut sge = ibv_sge { addr: self.buffer, length: 1000, lkey: self.lkey };
            let mut wr: ibv_send_wr = zeroed();
            (wr.sg_list, wr.num_sge, wr.opcode) = (&mut sge, 1, ibv_wr_opcode::IBV_WR_SEND);
            ok(ibv_post_send(qps[0], &mut wr, &mut null_mut()), "ibv_post_send");
            while self.entries.add(63).read_volatile() >= 0xf0 {
                mlx5_emu::step();
            }
            self.template.copy_from_slice(core::slice::from_raw_parts(self.entries, 64));
        }
        assert_eq!(self.template[63] >> 4, 2, "the entry of a send");
        assert_eq!(self.poll(1), 1);
        (self.position, self.produced) = (self.next_of(0), 1);
    }

    /// Where the list leads after a slot.
    fn next_of(&self, slot: u16) -> u16 {
        // SAFETY: inside the ring: slots come from the list that libmlx5 keeps.
        u16::from_be(unsafe { self.ring.add(slot as usize * self.stride + 2).cast::<u16>().read_volatile() })
    }

    /// The device takes `n` slots.
    fn take(&mut self, n: usize, into: &mut Vec<u16>) {
        for _ in 0..n {
            into.push(self.position);
            self.position = self.next_of(self.position);
        }
    }

    /// The device finishes receives in these slots.
    fn deliver(&mut self, slots: &[u16]) {
        for slot in slots {
            let mut entry = self.template;
            entry[60..62].copy_from_slice(&slot.to_be_bytes());
            entry[63] = entry[63] & 0xfe | (self.produced / CQ_ENTRIES % 2) as u8;
            // SAFETY: inside the CQ, whose entries are 64 bytes; cases deliver no more than they poll.
            unsafe {
                let at = self.entries.add(self.produced % CQ_ENTRIES * 64);
                at.copy_from(entry.as_ptr(), 63);
                at.add(63).write_volatile(entry[63]);
            }
            self.produced += 1;
        }
    }

    /// A chain of work requests for `n` buffers. The vectors must not move afterwards.
    fn chain(&self, n: usize) -> Chain {
        let mut sges: Vec<_> =
            (0..n).map(|_| ibv_sge { addr: self.buffer, length: 4096, lkey: self.lkey }).collect();
        // SAFETY: integers and pointers only, for which zero is a value.
        let mut wrs: Vec<ibv_recv_wr> = (0..n).map(|_| unsafe { zeroed() }).collect();
        let first = wrs.as_mut_ptr();
        for (k, (wr, sge)) in wrs.iter_mut().zip(&mut sges).enumerate() {
            (wr.wr_id, wr.sg_list, wr.num_sge) = (k as u64, sge, 1);
            wr.next = if k + 1 < n { first.wrapping_add(k + 1) } else { null_mut() };
        }
        Chain { wrs, _sges: sges }
    }

    /// Posts a chain; returns how many were accepted.
    #[inline]
    fn post(&self, chain: &mut Chain) -> usize {
        let mut bad = null_mut();
        // SAFETY: a live SRQ; the chain and its scatter lists live in `chain`.
        let rc = unsafe { ibv_post_srq_recv(self.srq, chain.wrs.as_mut_ptr(), &mut bad) };
        if rc == 0 { chain.wrs.len() } else { 0 }
    }

    /// Polls once for up to `n` completions; uses what a receiver needs.
    #[inline]
    fn poll(&self, n: usize) -> usize {
        // SAFETY: integers only.
        let mut wc: [ibv_wc; 32] = unsafe { zeroed() };
        self.poll_into(&mut wc[..n.min(32)])
    }

    #[inline]
    fn poll_into(&self, wc: &mut [ibv_wc]) -> usize {
        // SAFETY: a live CQ and room for that many completions.
        let got = unsafe { ibv_poll_cq(self.cq, wc.len() as c_int, wc.as_mut_ptr()) } as usize;
        for c in &wc[..got] {
            black_box(c.qp_num);
            black_box(c.wr_id);
            black_box(c.byte_len);
        }
        got
    }
}

struct Chain {
    wrs: Vec<ibv_recv_wr>,
    _sges: Vec<ibv_sge>,
}

/// Ring, stride and CQ entries, from libmlx5.
///
/// # Safety
///
/// Live objects of libmlx5.
unsafe fn describe(srq: *mut ibv_srq, cq: *mut ibv_cq) -> (*mut u8, usize, *mut u8) {
    type InitObj = unsafe extern "C" fn(*mut abi::DvObj, u64) -> c_int;
    // SAFETY: the function and structs of mlx5dv.h; live objects by contract.
    unsafe {
        let lib = libloading::Library::new("libmlx5.so.1").expect("libmlx5");
        let init: libloading::Symbol<'_, InitObj> = lib.get(b"mlx5dv_init_obj\0").expect("mlx5dv_init_obj");
        let (mut obj, mut ring, mut queue): (abi::DvObj, abi::DvSrq, abi::DvCq) =
            (zeroed(), zeroed(), zeroed());
        obj.srq = abi::DvPair { object: srq.cast(), out: (&raw mut ring).cast() };
        obj.cq = abi::DvPair { object: cq.cast(), out: (&raw mut queue).cast() };
        ok(init(&mut obj, abi::OBJ_SRQ | abi::OBJ_CQ), "mlx5dv_init_obj");
        assert_eq!((queue.cqe_cnt as usize, queue.cqe_size), (CQ_ENTRIES, 64));
        (ring.buf.cast(), ring.stride as usize, queue.buf.cast())
    }
}

/// Brings a QP to the ready-to-send state, connected to `dest`.
///
/// # Safety
///
/// Live objects.
unsafe fn connect(context: *mut ibv_context, qp: *mut ibv_qp, dest: u32) {
    type M = ibv_qp_attr_mask;
    // SAFETY: a live QP by contract; the attributes named by each mask are set, the rest is zero.
    unsafe {
        let mut attr: ibv_qp_attr = zeroed();
        (attr.qp_state, attr.port_num) = (ibv_qp_state::IBV_QPS_INIT, 1);
        let mask = M::IBV_QP_STATE | M::IBV_QP_PKEY_INDEX | M::IBV_QP_PORT | M::IBV_QP_ACCESS_FLAGS;
        ok(ibv_modify_qp(qp, &mut attr, mask.0 as c_int), "to INIT");

        attr = zeroed();
        (attr.qp_state, attr.path_mtu) = (ibv_qp_state::IBV_QPS_RTR, ibv_mtu::IBV_MTU_1024);
        (attr.dest_qp_num, attr.max_dest_rd_atomic, attr.min_rnr_timer) = (dest, 1, 1);
        (attr.ah_attr.port_num, attr.ah_attr.is_global, attr.ah_attr.grh.hop_limit) = (1, 1, 64);
        let mut gid: ibv_gid = zeroed();
        ok(ibv_query_gid(context, 1, 0, &mut gid), "ibv_query_gid");
        attr.ah_attr.grh.dgid = gid;
        let mask = M::IBV_QP_STATE
            | M::IBV_QP_AV
            | M::IBV_QP_PATH_MTU
            | M::IBV_QP_DEST_QPN
            | M::IBV_QP_RQ_PSN
            | M::IBV_QP_MAX_DEST_RD_ATOMIC
            | M::IBV_QP_MIN_RNR_TIMER;
        ok(ibv_modify_qp(qp, &mut attr, mask.0 as c_int), "to RTR");

        attr = zeroed();
        (attr.qp_state, attr.timeout, attr.retry_cnt, attr.rnr_retry) = (ibv_qp_state::IBV_QPS_RTS, 14, 7, 7);
        attr.max_rd_atomic = 1;
        let mask = M::IBV_QP_STATE
            | M::IBV_QP_TIMEOUT
            | M::IBV_QP_RETRY_CNT
            | M::IBV_QP_RNR_RETRY
            | M::IBV_QP_SQ_PSN
            | M::IBV_QP_MAX_QP_RD_ATOMIC;
        ok(ibv_modify_qp(qp, &mut attr, mask.0 as c_int), "to RTS");
    }
}

/// New buffers into an SRQ with room.
struct Post {
    queues: Queues,
    key: Key,
    chain: Chain,
    slots: Vec<u16>,
    posted: usize,
}

impl Post {
    fn new(subject: &'static str, depth: u32, batch: u32) -> Self {
        let queues = Queues::new(depth);
        let chain = queues.chain(batch as usize);
        let key = Key { case: "post_new", subject, batch, segments: 1, depth };
        Self { queues, key, chain, slots: vec![], posted: 0 }
    }
}

impl Case for Post {
    fn key(&self) -> Key {
        self.key.clone()
    }
    fn calls(&self) -> u32 {
        if self.key.batch == 1 { 32 } else { 1 }
    }
    fn prepare(&mut self) {
        while self.posted > 0 {
            let n = self.posted.min(32);
            self.slots.clear();
            self.queues.take(n, &mut self.slots);
            self.queues.deliver(&self.slots);
            assert_eq!(self.queues.poll(n), n);
            self.posted -= n;
        }
    }
    fn run(&mut self) {
        for _ in 0..self.calls() {
            self.posted += black_box(self.queues.post(&mut self.chain));
        }
    }
}

/// A full SRQ: completions are polled, in order or at random, and as many buffers are posted.
struct PollAndPost {
    queues: Queues,
    key: Key,
    chain: Chain,
    held: Vec<u16>,
    slots: Vec<u16>,
    rng: Rng,
}

impl PollAndPost {
    fn new(subject: &'static str, case: &'static str, depth: u32, batch: u32) -> Self {
        let queues = Queues::new(depth);
        let chain = queues.chain(batch as usize);
        let mut single = queues.chain(1);
        while queues.post(&mut single) == 1 {}
        let key = Key { case, subject, batch, segments: 1, depth };
        let rng = Rng::new(0x1234_5678_9abc_def1);
        let mut this = Self { queues, key, chain, held: vec![], slots: vec![], rng };
        if this.at_random() {
            this.queues.take(256.min(depth as usize / 2), &mut this.held);
            for _ in 0..depth * 4 / batch {
                this.prepare();
                this.run();
            }
        }
        this
    }

    fn at_random(&self) -> bool {
        self.key.case.ends_with("out_of_order")
    }

    fn poll_is_timed(&self) -> bool {
        self.key.case.starts_with("poll")
    }

    fn poll_all(&mut self) {
        let mut left = self.key.batch as usize;
        while left > 0 {
            left -= self.queues.poll(left);
        }
    }
}

impl Case for PollAndPost {
    fn key(&self) -> Key {
        self.key.clone()
    }
    fn calls(&self) -> u32 {
        1
    }
    fn prepare(&mut self) {
        let batch = self.key.batch as usize;
        self.slots.clear();
        if self.at_random() {
            for _ in 0..batch {
                let n = self.rng.below(self.held.len());
                self.slots.push(self.held.swap_remove(n));
            }
            self.queues.take(batch, &mut self.held);
        } else {
            self.queues.take(batch, &mut self.slots);
        }
        self.queues.deliver(&self.slots);
        if !self.poll_is_timed() {
            self.poll_all();
        }
    }
    fn run(&mut self) {
        if self.poll_is_timed() {
            self.poll_all();
        }
        assert_eq!(self.queues.post(&mut self.chain), self.key.batch as usize);
    }
}

/// Receives that wait in the CQ are polled.
struct Poll {
    queues: Queues,
    key: Key,
    chain: Chain,
    slots: Vec<u16>,
}

impl Poll {
    fn new(subject: &'static str, batch: u32) -> Self {
        let queues = Queues::new(1023);
        let chain = queues.chain(32);
        let key = Key { case: "poll_receive", subject, batch, segments: 1, depth: CQ_ENTRIES as u32 };
        Self { queues, key, chain, slots: vec![] }
    }
}

impl Case for Poll {
    fn key(&self) -> Key {
        self.key.clone()
    }
    fn calls(&self) -> u32 {
        32 / self.key.batch
    }
    fn prepare(&mut self) {
        assert_eq!(self.queues.post(&mut self.chain), 32);
        self.slots.clear();
        self.queues.take(32, &mut self.slots);
        self.queues.deliver(&self.slots);
    }
    fn run(&mut self) {
        // SAFETY: integers only. Outside the loop, as a program would keep it.
        let mut wc: [ibv_wc; 32] = unsafe { zeroed() };
        for _ in 0..self.calls() {
            assert_eq!(self.queues.poll_into(&mut wc[..self.key.batch as usize]), self.key.batch as usize);
        }
    }
}

/// Nothing waits in the CQ.
struct PollEmpty {
    queues: Queues,
    key: Key,
}

impl PollEmpty {
    fn new(subject: &'static str) -> Self {
        let key = Key { case: "poll_empty", subject, batch: 1, segments: 1, depth: CQ_ENTRIES as u32 };
        Self { queues: Queues::new(15), key }
    }
}

impl Case for PollEmpty {
    fn key(&self) -> Key {
        self.key.clone()
    }
    fn calls(&self) -> u32 {
        32
    }
    fn prepare(&mut self) {}
    fn run(&mut self) {
        // SAFETY: integers only.
        let mut wc: [ibv_wc; 1] = unsafe { zeroed() };
        for _ in 0..32 {
            black_box(self.queues.poll_into(&mut wc));
        }
    }
}
