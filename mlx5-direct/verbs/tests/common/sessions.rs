//! Extended CQs and what their readers return, and random requests that complete on them.

use std::{
    mem::zeroed,
    ptr::null_mut,
    time::{Duration, Instant},
};

use doorbell_sys::*;

use super::rig::Rig;

/// `IBV_CREATE_CQ_ATTR_SINGLE_THREADED`.
pub(crate) const SINGLE_THREADED: u32 = 1;
/// Not a flag of verbs: the CQ has the channel of the rig.
pub(crate) const WITH_CHANNEL: u32 = 1 << 31;

/// A generator of random numbers.
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// A number below `n`.
    pub(crate) fn below(&mut self, n: u32) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((self.0 >> 11) % u64::from(n)) as u32
    }
}

/// Fields that a CQ is asked for: bits of `ibv_create_cq_wc_flags`.
#[derive(Clone, Copy)]
pub(crate) struct Fields(u64);

const TIMESTAMP: u64 = 1 << 7;
const CVLAN: u64 = 1 << 8;
const FLOW_TAG: u64 = 1 << 9;

impl Fields {
    /// All but the real time and those of tag matching.
    pub(crate) fn all() -> Self {
        Self(0x7f | TIMESTAMP | CVLAN | FLOW_TAG)
    }

    fn some(rng: &mut Rng) -> Self {
        Self(u64::from(rng.below(0x400)) & Self::all().0)
    }

    pub(crate) fn bits(self) -> u64 {
        self.0
    }
}

/// An extended CQ with these fields.
pub(crate) fn create(rig: &Rig, entries: u32, fields: Fields, flags: u32) -> *mut ibv_cq_ex {
    // SAFETY: a live context; integers and pointers only, for which zero is a value.
    let cq = unsafe {
        let mut attr: ibv_cq_init_attr_ex = zeroed();
        (attr.cqe, attr.wc_flags) = (entries, fields.0);
        if flags & WITH_CHANNEL != 0 {
            attr.channel = rig.channel;
        }
        if flags & !WITH_CHANNEL != 0 {
            attr.comp_mask = ibv_cq_init_attr_mask::IBV_CQ_INIT_ATTR_MASK_FLAGS.0;
            attr.flags = flags & !WITH_CHANNEL;
        }
        rig.extended().create_cq_ex.expect("ibv_create_cq_ex")(rig.context, &mut attr)
    };
    assert!(!cq.is_null(), "ibv_create_cq_ex: {}", std::io::Error::last_os_error());
    cq
}

/// Starts a session with a completion that comes within 20 seconds.
pub(crate) fn start(cq: *mut ibv_cq_ex) {
    let begin = Instant::now();
    // SAFETY: a live CQ; integers only, for which zero is a value.
    unsafe {
        let mut attr: ibv_poll_cq_attr = zeroed();
        loop {
            match (*cq).start_poll.expect("a function")(cq, &mut attr) {
                0 => return,
                libc::ENOENT => std::thread::yield_now(),
                error => panic!("ibv_start_poll: {error}"),
            }
            assert!(begin.elapsed() < Duration::from_secs(20), "no completion");
        }
    }
}

pub(crate) fn next(cq: *mut ibv_cq_ex) -> i32 {
    // SAFETY: a live CQ in a session.
    unsafe { (*cq).next_poll.expect("a function")(cq) }
}

pub(crate) fn stop(cq: *mut ibv_cq_ex) {
    // SAFETY: a live CQ in a session.
    unsafe { (*cq).end_poll.expect("a function")(cq) }
}

/// What the readers say about the completion of the session, and the number of its QP.
fn describe(cq: *mut ibv_cq_ex, fields: Fields, qps: &[*mut ibv_qp]) -> String {
    // SAFETY: a live CQ in a session, which was asked for these fields.
    unsafe {
        let has = |field: u64| fields.0 & field != 0;
        let (id, status) = ((*cq).wr_id, (*cq).status);
        let good = status == 0;
        let opcode = (*cq).read_opcode.expect("a function")(cq);
        let flags = (*cq).read_wc_flags.expect("a function")(cq);
        let mut text = format!("{id}: status {status}, opcode {opcode}, flags {flags:x}");
        let index = |number: u32| qps.iter().position(|qp| (**qp).qp_num == number);
        if !good {
            text += &format!(", error {:x}", (*cq).read_vendor_err.expect("a function")(cq));
        }
        macro_rules! field {
            ($bit:expr, $reader:ident, $name:literal) => {
                if has($bit) {
                    text += &format!(concat!(", ", $name, " {:x}"), (*cq).$reader.expect("a function")(cq));
                }
            };
        }
        if has(1 << 2) {
            text += &format!(", QP {:?}", index((*cq).read_qp_num.expect("a function")(cq)));
        }
        if !good {
            return text;
        }
        field!(1, read_byte_len, "bytes");
        // Without immediate data or a key, the field has no meaning.
        if flags & 0xa != 0 {
            field!(1 << 1, read_imm_data, "imm");
        }
        if has(1 << 3) {
            text += &format!(", from {:?}", index((*cq).read_src_qp.expect("a function")(cq)));
        }
        field!(1 << 4, read_slid, "slid");
        field!(1 << 5, read_sl, "sl");
        field!(1 << 6, read_dlid_path_bits, "path");
        field!(CVLAN, read_cvlan, "vlan");
        if has(FLOW_TAG) {
            text += &format!(", tag {:?}", index((*cq).read_flow_tag.expect("a function")(cq)));
        }
        if has(TIMESTAMP) {
            text += &format!(", clock {}", (*cq).read_completion_ts.expect("a function")(cq) != 0);
        }
        text
    }
}

/// Polls `n` completions in sessions of random lengths. Those of each QP and direction are in
/// order; those of different ones are sorted.
pub(crate) fn take(
    cq: *mut ibv_cq_ex,
    fields: Fields,
    qps: &[*mut ibv_qp],
    n: usize,
    rng: &mut Rng,
) -> Vec<String> {
    let mut lines = vec![];
    while lines.len() < n {
        start(cq);
        lines.push(describe(cq, fields, qps));
        for _ in 0..rng.below(6) {
            match next(cq) {
                0 => lines.push(describe(cq, fields, qps)),
                libc::ENOENT => break,
                error => panic!("ibv_next_poll: {error}"),
            }
        }
        stop(cq);
    }
    assert_eq!(lines.len(), n, "{lines:?}");
    // A request's ID is the lower one. The sort is stable.
    let number = |line: &String| line.split(':').next().and_then(|id| id.parse::<u64>().ok());
    lines.sort_by_key(|line| number(line).map(|id| id >> 32));
    lines
}

/// Two QPs and the CQs of their completions.
struct Pair<'a> {
    rig: &'a Rig,
    cqs: Vec<(*mut ibv_cq_ex, Fields)>,
    srq: *mut ibv_srq,
    qps: [*mut ibv_qp; 2],
    windows: [*mut ibv_mw; 2],
    /// IDs of the last request of a QP and of the last receive.
    requests: [u64; 2],
    receives: u64,
}

/// The IDs of a QP's requests, and those of receives, begin with different upper halves.
const RECEIVES: u64 = 9 << 32;
const SLOT: u32 = 256;

impl<'a> Pair<'a> {
    fn new(rig: &'a Rig, rng: &mut Rng) -> Self {
        let flags = rng.below(2) * SINGLE_THREADED;
        let cqs: Vec<_> = (0..1 + rng.below(2))
            .map(|_| {
                let fields = Fields::some(rng);
                (create(rig, 255, fields, flags), fields)
            })
            .collect();
        let srq = if rng.below(2) == 0 { rig.srq(64, 2) } else { null_mut() };
        let (send, receive) = (cqs[0].0.cast(), cqs[cqs.len() - 1].0.cast());
        let (all_signalled, inline) = (rng.below(2), rng.below(100));
        let qps = [null_mut(), srq].map(|srq| {
            let change = |init: &mut ibv_qp_init_attr| {
                (init.cap.max_recv_wr, init.cap.max_recv_sge, init.cap.max_send_sge) = (64, 2, 2);
                (init.sq_sig_all, init.cap.max_inline_data) = (all_signalled as i32, inline);
            };
            rig.qp_with(send, receive, srq, change).0
        });
        // SAFETY: a live PD.
        let windows = [0; 2].map(|_| unsafe { ibv_alloc_mw(rig.pd, ibv_mw_type::IBV_MW_TYPE_2) });
        assert!(windows.iter().all(|window| !window.is_null()));
        let pair = Self { rig, cqs, srq, qps, windows, requests: [1 << 32, 2 << 32], receives: RECEIVES };
        pair.rig.connect(pair.qps[0], pair.qps[1]);
        pair
    }

    fn receive(&mut self, n: usize, rng: &mut Rng) {
        let place = |rng: &mut Rng| self.rig.addr((64 + rng.below(64) as usize) * SLOT as usize);
        let lkey = self.rig.lkey();
        let first = [16, 32, 64, SLOT][rng.below(4) as usize];
        let mut sges = [
            ibv_sge { addr: place(rng), length: first, lkey },
            ibv_sge { addr: place(rng), length: SLOT, lkey },
        ];
        self.receives += 1;
        let mut wr =
            ibv_recv_wr { wr_id: self.receives, next: null_mut(), sg_list: &raw mut sges[0], num_sge: 2 };
        // SAFETY: live objects; the request lives through the call.
        let result = unsafe {
            if n == 1 && !self.srq.is_null() {
                ibv_post_srq_recv(self.srq, &mut wr, &mut null_mut())
            } else {
                ibv_post_recv(self.qps[n], &mut wr, &mut null_mut())
            }
        };
        assert_eq!(result, 0);
    }

    /// Posts a request of QP `n`; the number of receives that it consumes.
    fn request(&mut self, n: usize, rng: &mut Rng) -> usize {
        use ibv_wr_opcode::*;
        let opcode = [
            IBV_WR_SEND,
            IBV_WR_SEND_WITH_IMM,
            IBV_WR_RDMA_WRITE,
            IBV_WR_RDMA_WRITE_WITH_IMM,
            IBV_WR_RDMA_READ,
            IBV_WR_ATOMIC_CMP_AND_SWP,
            IBV_WR_ATOMIC_FETCH_AND_ADD,
        ][rng.below(7) as usize];
        let is_atomic = matches!(opcode, IBV_WR_ATOMIC_CMP_AND_SWP | IBV_WR_ATOMIC_FETCH_AND_ADD);
        let length = if is_atomic { 8 } else { [0, 1, 8, 31, 32, 33, 64, 100, 200][rng.below(9) as usize] };
        let receives = matches!(opcode, IBV_WR_SEND | IBV_WR_SEND_WITH_IMM | IBV_WR_RDMA_WRITE_WITH_IMM);
        if receives {
            self.receive(1 - n, rng);
        }
        let addr = self.rig.addr(rng.below(32) as usize * SLOT as usize);
        let mut sge = ibv_sge { addr, length, lkey: self.rig.lkey() };
        let inline = length <= 64 && !is_atomic && opcode != IBV_WR_RDMA_READ && rng.below(3) == 0;
        let target = self.rig.addr((128 + rng.below(32) as usize) * SLOT as usize);
        // SAFETY: integers and pointers only.
        let mut wr: ibv_send_wr = unsafe { zeroed() };
        (wr.sg_list, wr.num_sge, wr.opcode) = (&mut sge, 1, opcode);
        wr.send_flags = if inline { ibv_send_flags::IBV_SEND_INLINE.0 } else { 0 };
        wr.imm_data_invalidated_rkey_union.imm_data = rng.below(u32::MAX);
        let rkey = self.rig.rkey();
        if is_atomic {
            wr.wr.atomic = atomic_t { remote_addr: target, compare_add: 1, swap: 7, rkey };
        } else {
            wr.wr.rdma = rdma_t { remote_addr: target, rkey };
        }
        match self.post(n, &mut wr) {
            // It was too long for inline data, so the receive waits.
            Err(_) if inline && !receives => {
                wr.send_flags = 0;
                self.post(n, &mut wr).expect("a request");
            }
            Err(_) if inline => {
                wr.send_flags = 0;
                self.post(n, &mut wr).expect("a message");
            }
            result => result.expect("a request"),
        }
        usize::from(receives)
    }

    fn post(&mut self, n: usize, wr: &mut ibv_send_wr) -> Result<(), i32> {
        wr.wr_id = self.requests[n] + 1;
        wr.send_flags |= ibv_send_flags::IBV_SEND_SIGNALED.0;
        // SAFETY: a live QP; the request lives through the call.
        match unsafe { ibv_post_send(self.qps[n], wr, &mut null_mut()) } {
            0 => {
                self.requests[n] += 1;
                Ok(())
            }
            error => Err(error),
        }
    }

    /// Binds a window, lets the peer invalidate it by a message or invalidates it here.
    fn change_keys(&mut self, n: usize, rng: &mut Rng) {
        let window = self.windows[n];
        // SAFETY: integers and pointers only; a live window and region.
        unsafe {
            let mut wr: ibv_send_wr = zeroed();
            wr.opcode = ibv_wr_opcode::IBV_WR_BIND_MW;
            let rkey = (*window).rkey & !0xff | ((*window).rkey.wrapping_add(1) & 0xff);
            let mut bind_info: ibv_mw_bind_info = zeroed();
            (bind_info.mr, bind_info.addr, bind_info.length) = (self.rig.mr, self.rig.addr(0), 4096);
            bind_info.mw_access_flags = ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0;
            wr.bind_mw_tso_union.bind_mw = bind_mw_t { mw: window, rkey, bind_info };
            self.post(n, &mut wr).expect("a bind");
            (*window).rkey = rkey;
            self.print(1, 0, rng);
            let mut wr: ibv_send_wr = zeroed();
            wr.imm_data_invalidated_rkey_union.invalidated_rkey = rkey;
            if rng.below(2) == 0 {
                wr.opcode = ibv_wr_opcode::IBV_WR_LOCAL_INV;
                self.post(n, &mut wr).expect("an invalidation");
                self.print(1, 0, rng);
            } else {
                self.receive(n, rng);
                wr.opcode = ibv_wr_opcode::IBV_WR_SEND_WITH_INV;
                self.post(1 - n, &mut wr).expect("a message");
                self.print(1, 1, rng);
            }
        }
    }

    /// A request that fails, requests that are flushed, and both QPs anew.
    fn fail(&mut self, n: usize, rng: &mut Rng) {
        let mut sge = ibv_sge { addr: self.rig.addr(0), length: 8, lkey: self.rig.lkey() };
        // SAFETY: integers and pointers only.
        let mut wr: ibv_send_wr = unsafe { zeroed() };
        (wr.sg_list, wr.num_sge, wr.opcode) = (&mut sge, 1, ibv_wr_opcode::IBV_WR_RDMA_WRITE);
        wr.wr.rdma = rdma_t { remote_addr: self.rig.addr(0), rkey: self.rig.rkey() ^ 0x5500 };
        self.post(n, &mut wr).expect("a request");
        self.print(1, 0, rng);
        let flushed = 1 + rng.below(3) as usize;
        for _ in 0..flushed {
            self.post(n, &mut wr).expect("a request");
        }
        self.print(flushed, 0, rng);
        // The responder fails, too, and its receives are flushed.
        let own = n == 0 || self.srq.is_null();
        if own {
            self.receive(n, rng);
            self.print(0, 1, rng);
        }
        self.qps.iter().for_each(|qp| self.rig.to_reset(*qp));
        self.rig.connect(self.qps[0], self.qps[1]);
    }

    /// Prints the completions of this many requests and receives.
    fn print(&self, requests: usize, receives: usize, rng: &mut Rng) {
        let (cq, fields) = self.cqs[0];
        let lines = if let [_, (receive_cq, receive_fields)] = self.cqs[..] {
            let mut lines = take(cq, fields, &self.qps, requests, rng);
            lines.extend(take(receive_cq, receive_fields, &self.qps, receives, rng));
            lines
        } else {
            take(cq, fields, &self.qps, requests + receives, rng)
        };
        lines.iter().for_each(|line| println!("  {line}"));
        let bytes = self.rig.read(0, 192 * SLOT as usize);
        let sum =
            bytes.iter().fold(0_u64, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3));
        println!("  memory {sum:x}");
    }
}

/// Random requests of two QPs, whose completions are polled in sessions.
pub(crate) fn random(rig: &Rig, seed: u64) {
    let mut rng = Rng::new(seed);
    rig.write(0, &(0..192 * SLOT).map(|n| n as u8).collect::<Vec<_>>());
    let mut pair = Pair::new(rig, &mut rng);
    for step in 0..60 {
        let n = rng.below(2) as usize;
        let what = rng.below(10);
        println!("step {step}: {what} of {n}");
        match what {
            0 => pair.fail(n, &mut rng),
            1 => pair.change_keys(n, &mut rng),
            // Requests of one QP, so that they change the memory in one order.
            _ => {
                let count = 1 + rng.below(12) as usize;
                let receives = (0..count).map(|_| pair.request(n, &mut rng)).sum();
                pair.print(count, receives, &mut rng);
            }
        }
    }
    // SAFETY: live windows, freed once.
    pair.windows.iter().for_each(|window| unsafe { assert_eq!(ibv_dealloc_mw(*window), 0) });
    let srqs: &[_] = if pair.srq.is_null() { &[] } else { &[pair.srq] };
    let cqs: Vec<_> = pair.cqs.iter().map(|(cq, _)| cq.cast()).collect();
    rig.destroy(&pair.qps, srqs, &cqs);
}
