//! Random calls of verbs to a pair of connected QPs in this process, and what each call returned:
//! the list of calls depends on the seed only, so two runs with one seed print the same, with and
//! without `libdoorbell-verbs.so`. `tests/programs.rs` compares them.
#![expect(unsafe_code, reason = "calls of verbs")]

use std::{ffi::CStr, mem::zeroed, ptr, time::Instant};

use doorbell_sys::*;

/// A generator of random numbers; the seed decides all.
struct Rng(u64);

impl Rng {
    fn below(&mut self, n: u32) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) % u64::from(n)) as u32
    }
}

const BYTES: usize = 1 << 16;
const SLOT: u32 = 256;

/// Two QPs that are connected with each other. QP 1 receives from an SRQ if there is one.
struct Rig {
    context: *mut ibv_context,
    pd: *mut ibv_pd,
    mr: *mut ibv_mr,
    memory: Vec<u8>,
    cqs: [*mut ibv_cq; 2],
    srq: *mut ibv_srq,
    qps: [*mut ibv_qp; 2],
}

fn must<T>(what: &str, object: *mut T) -> *mut T {
    assert!(!object.is_null(), "{what}: {}", std::io::Error::last_os_error());
    object
}

impl Rig {
    /// # Safety
    ///
    /// Nothing is required; the calls of verbs get what they need.
    unsafe fn new(device: &str, rng: &mut Rng) -> Self {
        // SAFETY: calls of verbs with live objects and whole structs.
        unsafe {
            let mut count = 0;
            let list = ibv_get_device_list(&mut count);
            let found = (0..count as usize)
                .map(|n| *list.add(n))
                .find(|d| CStr::from_ptr(ibv_get_device_name(*d)).to_string_lossy() == device);
            let context = must("ibv_open_device", ibv_open_device(found.expect("no such device")));
            let pd = must("ibv_alloc_pd", ibv_alloc_pd(context));
            let mut memory = vec![0_u8; BYTES];
            let access = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0
                | ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0
                | ibv_access_flags::IBV_ACCESS_REMOTE_READ.0
                | ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC.0;
            let mr = must("ibv_reg_mr", ibv_reg_mr(pd, memory.as_mut_ptr().cast(), BYTES, access as i32));
            let first =
                must("ibv_create_cq", ibv_create_cq(context, 300, ptr::null_mut(), ptr::null_mut(), 0));
            let second = match rng.below(2) {
                0 => first,
                _ => must("ibv_create_cq", ibv_create_cq(context, 300, ptr::null_mut(), ptr::null_mut(), 0)),
            };
            let mut srq = ptr::null_mut();
            if rng.below(2) == 0 {
                let mut attr: ibv_srq_init_attr = zeroed();
                attr.attr.max_wr = 30;
                attr.attr.max_sge = 1 + rng.below(3);
                srq = must("ibv_create_srq", ibv_create_srq(pd, &mut attr));
            }
            let mut rig =
                Self { context, pd, mr, memory, cqs: [first, second], srq, qps: [ptr::null_mut(); 2] };
            let inline = rng.below(100);
            for n in 0..2 {
                let mut attr: ibv_qp_init_attr = zeroed();
                attr.qp_type = ibv_qp_type::IBV_QPT_RC;
                (attr.send_cq, attr.recv_cq) = (first, second);
                attr.srq = if n == 1 { srq } else { ptr::null_mut() };
                attr.sq_sig_all = rng.below(2) as i32;
                attr.cap.max_send_wr = 10 + rng.below(30);
                attr.cap.max_recv_wr = 10 + rng.below(30);
                attr.cap.max_send_sge = 1 + rng.below(3);
                attr.cap.max_recv_sge = 1 + rng.below(3);
                attr.cap.max_inline_data = inline;
                rig.qps[n] = must("ibv_create_qp", ibv_create_qp(pd, &mut attr));
                println!(
                    "QP {n}: {} {} {}",
                    attr.cap.max_send_wr, attr.cap.max_recv_wr, attr.cap.max_inline_data
                );
            }
            rig
        }
    }

    /// Moves both QPs from RESET to this state.
    unsafe fn connect(&self) {
        // SAFETY: live QPs and whole attributes.
        unsafe {
            let mut gid: ibv_gid = zeroed();
            assert_eq!(ibv_query_gid(self.context, 1, 0, &mut gid), 0);
            for n in 0..2 {
                let mut attr: ibv_qp_attr = zeroed();
                attr.qp_state = ibv_qp_state::IBV_QPS_INIT;
                attr.port_num = 1;
                attr.qp_access_flags = 0xf;
                use ibv_qp_attr_mask as m;
                let mask =
                    m::IBV_QP_STATE.0 | m::IBV_QP_PKEY_INDEX.0 | m::IBV_QP_PORT.0 | m::IBV_QP_ACCESS_FLAGS.0;
                assert_eq!(ibv_modify_qp(self.qps[n], &mut attr, mask as i32), 0);
                attr = zeroed();
                attr.qp_state = ibv_qp_state::IBV_QPS_RTR;
                attr.path_mtu = ibv_mtu::IBV_MTU_1024;
                attr.dest_qp_num = (*self.qps[1 - n]).qp_num;
                attr.max_dest_rd_atomic = 4;
                attr.min_rnr_timer = 1;
                attr.ah_attr.is_global = 1;
                attr.ah_attr.port_num = 1;
                attr.ah_attr.grh.dgid = gid;
                attr.ah_attr.grh.hop_limit = 1;
                let mask = m::IBV_QP_STATE.0
                    | m::IBV_QP_AV.0
                    | m::IBV_QP_PATH_MTU.0
                    | m::IBV_QP_DEST_QPN.0
                    | m::IBV_QP_RQ_PSN.0
                    | m::IBV_QP_MAX_DEST_RD_ATOMIC.0
                    | m::IBV_QP_MIN_RNR_TIMER.0;
                assert_eq!(ibv_modify_qp(self.qps[n], &mut attr, mask as i32), 0);
            }
            for n in 0..2 {
                let mut attr: ibv_qp_attr = zeroed();
                attr.qp_state = ibv_qp_state::IBV_QPS_RTS;
                attr.timeout = 14;
                attr.retry_cnt = 7;
                // No retry without a receive, so that the outcome does not depend on time.
                attr.rnr_retry = 0;
                attr.max_rd_atomic = 4;
                use ibv_qp_attr_mask as m;
                let mask = m::IBV_QP_STATE.0
                    | m::IBV_QP_TIMEOUT.0
                    | m::IBV_QP_RETRY_CNT.0
                    | m::IBV_QP_RNR_RETRY.0
                    | m::IBV_QP_SQ_PSN.0
                    | m::IBV_QP_MAX_QP_RD_ATOMIC.0;
                assert_eq!(ibv_modify_qp(self.qps[n], &mut attr, mask as i32), 0);
            }
        }
    }

    unsafe fn to(&self, n: usize, state: ibv_qp_state::Type) {
        // SAFETY: a live QP and whole attributes.
        unsafe {
            let mut attr: ibv_qp_attr = zeroed();
            attr.qp_state = state;
            let result = ibv_modify_qp(self.qps[n], &mut attr, ibv_qp_attr_mask::IBV_QP_STATE.0 as i32);
            println!("QP {n} to {state}: {result}");
        }
    }

    /// Up to `most` segments, each in a slot of the memory; some are empty.
    fn segments(&self, rng: &mut Rng, most: u32) -> Vec<ibv_sge> {
        // SAFETY: a live region.
        let lkey = unsafe { (*self.mr).lkey };
        (0..rng.below(most + 1))
            .map(|_| {
                let length = [0, 1, 8, 17, 32, 33, 64, 100, SLOT][rng.below(9) as usize];
                let addr =
                    self.memory.as_ptr().addr() as u64 + u64::from(rng.below(BYTES as u32 / SLOT) * SLOT);
                ibv_sge { addr, length, lkey }
            })
            .collect()
    }

    /// A list of receives to a QP, or to the SRQ.
    unsafe fn post_receives(&self, rng: &mut Rng, n: usize, next: &mut u64) {
        let most = if rng.below(40) == 0 { 9 } else { 1 };
        let mut segments: Vec<_> = (0..1 + rng.below(6)).map(|_| self.segments(rng, most)).collect();
        let mut list: Vec<ibv_recv_wr> = segments
            .iter_mut()
            .map(|segments| {
                *next += 1;
                ibv_recv_wr {
                    wr_id: *next,
                    next: ptr::null_mut(),
                    sg_list: segments.as_mut_ptr(),
                    num_sge: segments.len() as i32,
                }
            })
            .collect();
        for at in 1..list.len() {
            list[at - 1].next = &raw mut list[at];
        }
        let mut bad = ptr::null_mut();
        // SAFETY: live objects and a list of whole requests.
        let (result, what) = unsafe {
            if n == 1 && !self.srq.is_null() {
                (ibv_post_srq_recv(self.srq, &mut list[0], &mut bad), "SRQ")
            } else {
                (ibv_post_recv(self.qps[n], &mut list[0], &mut bad), "receive")
            }
        };
        let bad = list.iter().position(|wr| ptr::eq(wr, bad));
        println!("{what} {n}, {}: {result} {bad:?}", list.len());
    }

    /// A list of requests.
    unsafe fn post_sends(&self, rng: &mut Rng, n: usize, next: &mut u64) {
        use ibv_wr_opcode::*;
        let opcodes = [
            IBV_WR_SEND,
            IBV_WR_SEND_WITH_IMM,
            IBV_WR_RDMA_WRITE,
            IBV_WR_RDMA_WRITE_WITH_IMM,
            IBV_WR_RDMA_READ,
            IBV_WR_ATOMIC_CMP_AND_SWP,
            IBV_WR_ATOMIC_FETCH_AND_ADD,
            IBV_WR_LOCAL_INV + 90,
        ];
        // SAFETY: a live region.
        let rkey = unsafe { (*self.mr).rkey };
        let count = 1 + rng.below(5);
        let mut segments = Vec::new();
        let mut kinds = Vec::new();
        for _ in 0..count {
            let last = if rng.below(30) == 0 { 8 } else { 7 };
            let opcode = opcodes[rng.below(last) as usize];
            let most = if rng.below(40) == 0 { 9 } else { 1 };
            kinds.push(opcode);
            segments.push(match opcode {
                IBV_WR_ATOMIC_CMP_AND_SWP | IBV_WR_ATOMIC_FETCH_AND_ADD => {
                    let mut one = self.segments(rng, 1);
                    one.iter_mut().for_each(|segment| segment.length = 8);
                    one
                }
                _ => self.segments(rng, most),
            });
        }
        let mut list: Vec<ibv_send_wr> = Vec::new();
        for (opcode, segments) in kinds.iter().zip(&mut segments) {
            // SAFETY: integers and pointers only, for which zero is a value.
            let mut wr: ibv_send_wr = unsafe { zeroed() };
            *next += 1;
            wr.wr_id = *next;
            wr.opcode = *opcode;
            wr.sg_list = segments.as_mut_ptr();
            wr.num_sge = segments.len() as i32;
            let flags = rng.below(16);
            wr.send_flags = if flags & 1 != 0 { ibv_send_flags::IBV_SEND_SIGNALED.0 } else { 0 };
            if flags & 6 == 6 {
                wr.send_flags |= ibv_send_flags::IBV_SEND_FENCE.0;
            }
            if flags & 8 != 0 && *opcode < IBV_WR_RDMA_READ {
                wr.send_flags |= ibv_send_flags::IBV_SEND_INLINE.0;
            }
            wr.imm_data_invalidated_rkey_union.imm_data = rng.below(u32::MAX);
            let remote_addr =
                self.memory.as_ptr().addr() as u64 + u64::from(rng.below(BYTES as u32 / 4096) * 4096);
            if matches!(*opcode, IBV_WR_ATOMIC_CMP_AND_SWP | IBV_WR_ATOMIC_FETCH_AND_ADD) {
                wr.wr.atomic = atomic_t { remote_addr, compare_add: 1, swap: 7, rkey };
            } else {
                wr.wr.rdma = rdma_t { remote_addr, rkey };
            }
            list.push(wr);
        }
        for at in 1..list.len() {
            list[at - 1].next = &raw mut list[at];
        }
        let mut bad = ptr::null_mut();
        // SAFETY: a live QP and a list of whole requests.
        let result = unsafe { ibv_post_send(self.qps[n], &mut list[0], &mut bad) };
        let bad = list.iter().position(|wr| ptr::eq(wr, bad));
        println!("send {n}, {kinds:?}: {result} {bad:?}");
    }

    /// Polls until nothing has come for a while. The completions of each QP and direction are in
    /// order; those of different ones are sorted, as their order depends on time.
    unsafe fn settle(&self) {
        let mut all: Vec<(u32, bool, String)> = Vec::new();
        let mut last = Instant::now();
        while last.elapsed().as_millis() < 15 {
            for cq in if self.cqs[0] == self.cqs[1] { &self.cqs[..1] } else { &self.cqs[..] } {
                // SAFETY: integers only; a live CQ and room for three entries.
                let mut wcs: [ibv_wc; 3] = unsafe { zeroed() };
                // SAFETY: as above.
                let polled = unsafe { ibv_poll_cq(*cq, 3, wcs.as_mut_ptr()) };
                assert!(polled >= 0, "poll: {polled}");
                for wc in &wcs[..polled as usize] {
                    last = Instant::now();
                    // SAFETY: live QPs; an integer.
                    let (qp, imm) = unsafe {
                        let qp = self.qps.iter().position(|qp| (**qp).qp_num == wc.qp_num);
                        (qp, wc.imm_data_invalidated_rkey_union.imm_data)
                    };
                    let good = wc.status == 0;
                    let text = format!(
                        "{} {} {} {} {}",
                        wc.wr_id,
                        wc.status,
                        if good { wc.opcode } else { 0 },
                        if good && wc.opcode >= ibv_wc_opcode::IBV_WC_RDMA_READ { wc.byte_len } else { 0 },
                        if good && wc.wc_flags & 2 != 0 && wc.opcode >= 128 { imm } else { wc.wc_flags },
                    );
                    all.push((qp.map_or(9, |qp| qp as u32), wc.wr_id >> 40 != 0, text));
                }
            }
        }
        all.sort_by_key(|(qp, receive, _)| (*qp, *receive));
        for (qp, receive, text) in all {
            println!("  {} of QP {qp}: {text}", if receive { "receive" } else { "request" });
        }
        let sum = self.memory.iter().fold(0_u64, |sum, byte| sum.rotate_left(5) ^ u64::from(*byte));
        println!("  memory {sum:x}");
    }
}

/// Makes `count` steps with the calls of this seed.
pub(crate) fn run(device: &str, seed: u64, count: u32) {
    let mut rng = Rng(seed);
    // SAFETY: calls of verbs with live objects.
    unsafe {
        let mut rig = Rig::new(device, &mut rng);
        rig.memory.iter_mut().enumerate().for_each(|(n, byte)| *byte = n as u8);
        let (mut sends, mut receives) = (0, 1 << 40);
        for n in 0..2 {
            // In RESET, nothing may be posted.
            rig.post_sends(&mut rng, n, &mut sends);
            rig.post_receives(&mut rng, n, &mut receives);
        }
        rig.connect();
        for _ in 0..count {
            let n = rng.below(2) as usize;
            match rng.below(20) {
                0 => {
                    rig.to(n, ibv_qp_state::IBV_QPS_ERR);
                    rig.settle();
                }
                1..=2 => {
                    // Completions of before the reset may be polled or not, as they arrive: so
                    // wait, and leave the last ones in the CQ half of the time.
                    rig.settle();
                    rig.post_receives(&mut rng, n, &mut receives);
                    rig.to(0, ibv_qp_state::IBV_QPS_ERR);
                    rig.to(1, ibv_qp_state::IBV_QPS_ERR);
                    std::thread::sleep(std::time::Duration::from_millis(15));
                    if rng.below(2) == 0 {
                        rig.settle();
                    }
                    rig.to(0, ibv_qp_state::IBV_QPS_RESET);
                    rig.to(1, ibv_qp_state::IBV_QPS_RESET);
                    rig.connect();
                }
                3..=9 => rig.post_receives(&mut rng, n, &mut receives),
                _ => {
                    rig.post_sends(&mut rng, n, &mut sends);
                    // Requests of both directions at a time would change the memory in any order.
                    rig.settle();
                }
            }
        }
        rig.settle();
        for qp in rig.qps {
            assert_eq!(ibv_destroy_qp(qp), 0);
        }
        if !rig.srq.is_null() {
            assert_eq!(ibv_destroy_srq(rig.srq), 0);
        }
        assert_eq!(ibv_destroy_cq(rig.cqs[0]), 0);
        if rig.cqs[0] != rig.cqs[1] {
            assert_eq!(ibv_destroy_cq(rig.cqs[1]), 0);
        }
        assert_eq!(ibv_dereg_mr(rig.mr), 0);
        assert_eq!(ibv_dealloc_pd(rig.pd), 0);
        assert_eq!(ibv_close_device(rig.context), 0);
    }
}
