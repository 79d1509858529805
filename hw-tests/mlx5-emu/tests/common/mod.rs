//! A small rig over raw verbs for the in-process tests: it destroys its objects itself, and runs
//! one test at a time.
#![expect(unsafe_code, reason = "raw verbs calls")]
#![allow(dead_code, unreachable_pub, missing_docs, reason = "each test file uses a part")]

use std::ffi::CStr;
use std::mem::zeroed;
use std::ptr::null_mut;
use std::sync::{Mutex, MutexGuard, PoisonError};

pub use doorbell_sys::*;
use mlx5_emu::{Complaint, ComplaintKind};

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// An open device with a PD. Everything made through it is destroyed with it, newest first.
pub struct Rig {
    pub ctx: *mut ibv_context,
    pub pd: *mut ibv_pd,
    undo: Vec<Box<dyn FnOnce()>>,
    expected: Vec<ComplaintKind>,
    _one: MutexGuard<'static, ()>,
}

impl Rig {
    pub fn new() -> Self {
        Self::open(|| ())
    }

    /// A rig whose engine runs only in [`mlx5_emu::step`].
    pub fn manual() -> Self {
        let mut rig = Self::open(|| mlx5_emu::set_mode(mlx5_emu::Mode::Manual));
        rig.later(|| mlx5_emu::set_mode(mlx5_emu::Mode::Stepped));
        rig
    }

    fn open(prepare: impl FnOnce()) -> Self {
        let one = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        mlx5_emu::init();
        prepare();
        mlx5_emu::no_faults();
        mlx5_emu::set_port(true);
        let _ = mlx5_emu::take_complaints();
        // SAFETY: plain verbs calls; every pointer is checked before it is used.
        let (ctx, pd) = unsafe {
            let mut count = 0;
            let list = ibv_get_device_list(&raw mut count);
            assert!(count >= 1, "the software device is not found");
            assert_eq!(CStr::from_ptr(ibv_get_device_name(*list)).to_str(), Ok("mlx5_0"));
            let ctx = ibv_open_device(*list);
            assert!(!ctx.is_null(), "open: {}", std::io::Error::last_os_error());
            ibv_free_device_list(list);
            let pd = ibv_alloc_pd(ctx);
            assert!(!pd.is_null());
            (ctx, pd)
        };
        Self { ctx, pd, undo: Vec::new(), expected: Vec::new(), _one: one }
    }

    /// Accepts this kind of complaint: it is the subject of the test.
    pub fn expect(&mut self, kind: ComplaintKind) {
        self.expected.push(kind);
    }

    pub fn later(&mut self, undo: impl FnOnce() + 'static) {
        self.undo.push(Box::new(undo));
    }

    pub fn cq(&mut self, cqe: i32) -> *mut ibv_cq {
        self.cq_on(cqe, null_mut())
    }

    pub fn cq_on(&mut self, cqe: i32, channel: *mut ibv_comp_channel) -> *mut ibv_cq {
        // SAFETY: live context; the CQ is destroyed once, before the context.
        let cq = unsafe { ibv_create_cq(self.ctx, cqe, null_mut(), channel, 0) };
        assert!(!cq.is_null(), "create_cq: {}", std::io::Error::last_os_error());
        // SAFETY: as above.
        self.later(move || unsafe { assert_eq!(ibv_destroy_cq(cq), 0, "destroy_cq") });
        cq
    }

    pub fn channel(&mut self) -> *mut ibv_comp_channel {
        // SAFETY: live context.
        let channel = unsafe { ibv_create_comp_channel(self.ctx) };
        assert!(!channel.is_null());
        // SAFETY: destroyed once, after its CQs.
        self.later(move || unsafe { assert_eq!(ibv_destroy_comp_channel(channel), 0) });
        channel
    }

    pub fn srq(&mut self, max_wr: u32, max_sge: u32) -> *mut ibv_srq {
        // SAFETY: live PD; all-zero is a valid attribute structure.
        let srq = unsafe {
            let mut attr: ibv_srq_init_attr = zeroed();
            attr.attr.max_wr = max_wr;
            attr.attr.max_sge = max_sge;
            ibv_create_srq(self.pd, &raw mut attr)
        };
        assert!(!srq.is_null(), "create_srq: {}", std::io::Error::last_os_error());
        // SAFETY: destroyed once, after its QPs.
        self.later(move || unsafe { assert_eq!(ibv_destroy_srq(srq), 0, "destroy_srq") });
        srq
    }

    pub fn qp(&mut self, kind: u32, scq: *mut ibv_cq, rcq: *mut ibv_cq, srq: *mut ibv_srq) -> *mut ibv_qp {
        self.qp_with(kind, scq, rcq, srq, false)
    }

    pub fn qp_with(
        &mut self,
        kind: u32,
        scq: *mut ibv_cq,
        rcq: *mut ibv_cq,
        srq: *mut ibv_srq,
        sig_all: bool,
    ) -> *mut ibv_qp {
        // SAFETY: live objects; all-zero is a valid attribute structure.
        let qp = unsafe {
            let mut attr: ibv_qp_init_attr = zeroed();
            (attr.send_cq, attr.recv_cq, attr.srq) = (scq, rcq, srq);
            attr.cap.max_send_wr = 64;
            attr.cap.max_recv_wr = if srq.is_null() { 64 } else { 0 };
            (attr.cap.max_send_sge, attr.cap.max_recv_sge) = (4, 4);
            attr.cap.max_inline_data = 128;
            attr.qp_type = kind;
            attr.sq_sig_all = i32::from(sig_all);
            ibv_create_qp(self.pd, &raw mut attr)
        };
        assert!(!qp.is_null(), "create_qp: {}", std::io::Error::last_os_error());
        // SAFETY: destroyed once.
        self.later(move || unsafe { assert_eq!(ibv_destroy_qp(qp), 0, "destroy_qp") });
        qp
    }

    /// A connected RC pair, both on `srq` when that is not null.
    pub fn pair(&mut self, cq: *mut ibv_cq, srq: *mut ibv_srq) -> (*mut ibv_qp, *mut ibv_qp) {
        let a = self.qp(ibv_qp_type::IBV_QPT_RC, cq, cq, srq);
        let b = self.qp(ibv_qp_type::IBV_QPT_RC, cq, cq, srq);
        connect(a, b);
        connect(b, a);
        (a, b)
    }

    pub fn address_handle(&mut self, attr: &ibv_ah_attr) -> *mut ibv_ah {
        let mut attr = *attr;
        // SAFETY: live PD.
        let ah = unsafe { ibv_create_ah(self.pd, &raw mut attr) };
        assert!(!ah.is_null(), "create_ah: {}", std::io::Error::last_os_error());
        // SAFETY: destroyed once.
        self.later(move || unsafe { assert_eq!(ibv_destroy_ah(ah), 0, "destroy_ah") });
        ah
    }

    pub fn memory(&mut self, len: usize) -> Memory {
        const ALL: u32 = 1 | 2 | 4 | 8 | 16;
        self.memory_with(len, ALL)
    }

    pub fn memory_with(&mut self, len: usize, access: u32) -> Memory {
        let bytes: &'static mut [u64] = Box::leak(vec![0u64; len.div_ceil(8)].into_boxed_slice());
        let addr = bytes.as_mut_ptr().cast::<u8>();
        // SAFETY: the memory is leaked, so it outlives the region.
        let mr = unsafe { ___reg(self.pd, addr.cast(), len, access as i32) };
        assert!(!mr.is_null(), "reg_mr: {}", std::io::Error::last_os_error());
        // SAFETY: deregistered once.
        self.later(move || unsafe { assert_eq!(ibv_dereg_mr(mr), 0, "dereg_mr") });
        // SAFETY: live MR.
        let (lkey, rkey) = unsafe { ((*mr).lkey, (*mr).rkey) };
        Memory { addr, len, lkey, rkey, mr }
    }
}

/// ibv_reg_mr the function, not the macro that C programs see.
///
/// # Safety
/// As ibv_reg_mr.
pub unsafe fn ___reg(pd: *mut ibv_pd, addr: *mut libc::c_void, len: usize, access: i32) -> *mut ibv_mr {
    unsafe extern "C" {
        fn ibv_reg_mr(pd: *mut ibv_pd, addr: *mut libc::c_void, len: usize, access: i32) -> *mut ibv_mr;
    }
    // SAFETY: passed on.
    unsafe { ibv_reg_mr(pd, addr, len, access) }
}

impl Drop for Rig {
    fn drop(&mut self) {
        while let Some(undo) = self.undo.pop() {
            undo();
        }
        // SAFETY: nothing made from them is left.
        unsafe {
            assert_eq!(ibv_dealloc_pd(self.pd), 0, "dealloc_pd");
            assert_eq!(ibv_close_device(self.ctx), 0, "close_device");
        }
        if !std::thread::panicking() {
            let unexpected: Vec<Complaint> = mlx5_emu::take_complaints()
                .into_iter()
                .filter(|complaint| !self.expected.contains(&complaint.kind))
                .collect();
            assert!(unexpected.is_empty(), "complaints: {unexpected:#?}");
        }
    }
}

/// Registered memory.
#[derive(Clone, Copy)]
pub struct Memory {
    pub addr: *mut u8,
    pub len: usize,
    pub lkey: u32,
    pub rkey: u32,
    pub mr: *mut ibv_mr,
}

impl Memory {
    pub fn at(&self, offset: usize) -> u64 {
        self.addr as u64 + offset as u64
    }

    pub fn put(&self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= self.len);
        // SAFETY: in bounds of leaked memory.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.addr.add(offset), bytes.len()) };
    }

    pub fn get(&self, offset: usize, len: usize) -> Vec<u8> {
        assert!(offset + len <= self.len);
        // SAFETY: in bounds of leaked memory.
        unsafe { std::slice::from_raw_parts(self.addr.add(offset), len) }.to_vec()
    }

    pub fn sge(&self, offset: usize, len: u32) -> ibv_sge {
        ibv_sge { addr: self.at(offset), length: len, lkey: self.lkey }
    }
}

/// Lets other threads run. `sched_yield` would run the engine.
pub fn yield_past_device() {
    // SAFETY: no arguments.
    unsafe { libc::syscall(libc::SYS_sched_yield) };
}

/// Takes a QP to INIT with all rights.
pub fn to_init(qp: *mut ibv_qp) {
    // SAFETY: live QP; all-zero is a valid attribute structure.
    unsafe {
        let mut attr: ibv_qp_attr = zeroed();
        attr.qp_state = ibv_qp_state::IBV_QPS_INIT;
        attr.port_num = 1;
        attr.qp_access_flags = 15;
        attr.qkey = 0x1111;
        let ud = (*qp).qp_type == ibv_qp_type::IBV_QPT_UD;
        let mask = 1 | 16 | 32 | if ud { 64 } else { 8 };
        assert_eq!(ibv_modify_qp(qp, &raw mut attr, mask), 0, "INIT");
    }
}

/// Attributes of RTR towards a QP number.
pub fn rtr_attr(dest: u32) -> ibv_qp_attr {
    // SAFETY: all-zero is a valid attribute structure.
    let mut attr: ibv_qp_attr = unsafe { zeroed() };
    attr.qp_state = ibv_qp_state::IBV_QPS_RTR;
    attr.path_mtu = 5;
    attr.dest_qp_num = dest;
    attr.max_dest_rd_atomic = 16;
    attr.min_rnr_timer = 12;
    attr.ah_attr.is_global = 1;
    attr.ah_attr.port_num = 1;
    attr.ah_attr.grh.hop_limit = 64;
    attr.ah_attr.grh.dgid.raw = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1];
    attr
}

pub fn to_rtr(qp: *mut ibv_qp, dest: u32) {
    let mut attr = rtr_attr(dest);
    // SAFETY: live QP.
    unsafe {
        let mut mask = 1 | 128 | 256 | (1 << 20) | 4096;
        if (*qp).qp_type != ibv_qp_type::IBV_QPT_UC {
            mask |= (1 << 17) | (1 << 15);
        }
        if (*qp).qp_type == ibv_qp_type::IBV_QPT_UD {
            mask = 1;
        }
        assert_eq!(ibv_modify_qp(qp, &raw mut attr, mask), 0, "RTR");
    }
}

pub fn to_rts_with(qp: *mut ibv_qp, timeout: u8, retry: u8, rnr: u8) {
    // SAFETY: live QP.
    unsafe {
        let mut attr: ibv_qp_attr = zeroed();
        attr.qp_state = ibv_qp_state::IBV_QPS_RTS;
        (attr.timeout, attr.retry_cnt, attr.rnr_retry, attr.max_rd_atomic) = (timeout, retry, rnr, 16);
        let mut mask = 1 | (1 << 16);
        if matches!((*qp).qp_type, ibv_qp_type::IBV_QPT_RC | ibv_qp_type::IBV_QPT_XRC_SEND) {
            mask |= 512 | 1024 | 2048 | 8192;
        }
        if (*qp).qp_type == ibv_qp_type::IBV_QPT_XRC_RECV {
            mask |= 512;
        }
        assert_eq!(ibv_modify_qp(qp, &raw mut attr, mask), 0, "RTS");
    }
}

/// Takes a QP to RTS towards another.
pub fn connect(qp: *mut ibv_qp, peer: *mut ibv_qp) {
    to_init(qp);
    // SAFETY: live QP.
    to_rtr(qp, unsafe { (*peer).qp_num });
    to_rts_with(qp, 14, 7, 7);
}

pub fn post_srq(srq: *mut ibv_srq, id: u64, sges: &[ibv_sge]) -> i32 {
    let mut list = sges.to_vec();
    // SAFETY: live SRQ; the request and its list live through the call.
    unsafe {
        let mut wr: ibv_recv_wr = zeroed();
        (wr.wr_id, wr.sg_list, wr.num_sge) = (id, list.as_mut_ptr(), list.len() as i32);
        let mut bad = null_mut();
        ibv_post_srq_recv(srq, &raw mut wr, &raw mut bad)
    }
}

pub fn post_recv(qp: *mut ibv_qp, id: u64, sges: &[ibv_sge]) -> i32 {
    let mut list = sges.to_vec();
    // SAFETY: live QP; the request and its list live through the call.
    unsafe {
        let mut wr: ibv_recv_wr = zeroed();
        (wr.wr_id, wr.sg_list, wr.num_sge) = (id, list.as_mut_ptr(), list.len() as i32);
        let mut bad = null_mut();
        ibv_post_recv(qp, &raw mut wr, &raw mut bad)
    }
}

pub const SIGNALED: u32 = 2;
pub const SOLICITED: u32 = 4;
pub const INLINE: u32 = 8;
pub const FENCE: u32 = 1;

/// A send request; `change` fills in what the opcode needs.
pub fn post_send(
    qp: *mut ibv_qp,
    id: u64,
    opcode: u32,
    flags: u32,
    sges: &[ibv_sge],
    change: impl FnOnce(&mut ibv_send_wr),
) -> i32 {
    let mut list = sges.to_vec();
    // SAFETY: live QP; the request and its list live through the call.
    unsafe {
        let mut wr: ibv_send_wr = zeroed();
        (wr.wr_id, wr.sg_list, wr.num_sge) = (id, list.as_mut_ptr(), list.len() as i32);
        wr.opcode = opcode;
        wr.send_flags = flags;
        change(&mut wr);
        let mut bad = null_mut();
        ibv_post_send(qp, &raw mut wr, &raw mut bad)
    }
}

pub fn send(qp: *mut ibv_qp, id: u64, flags: u32, sges: &[ibv_sge]) {
    assert_eq!(post_send(qp, id, ibv_wr_opcode::IBV_WR_SEND, flags, sges, |_| ()), 0);
}

/// Polls until there are no more completions.
pub fn poll_all(cq: *mut ibv_cq) -> Vec<ibv_wc> {
    let mut found = Vec::new();
    loop {
        // SAFETY: live CQ, room for one.
        let (n, wc) = unsafe {
            let mut wc: ibv_wc = zeroed();
            (ibv_poll_cq(cq, 1, &raw mut wc), wc)
        };
        assert!(n >= 0, "poll_cq: {n}");
        if n == 0 {
            return found;
        }
        found.push(wc);
    }
}

/// Polls exactly `count` completions.
pub fn poll(cq: *mut ibv_cq, count: usize) -> Vec<ibv_wc> {
    let found = poll_all(cq);
    let ids: Vec<(u64, u32)> = found.iter().map(|wc| (wc.wr_id, wc.status)).collect();
    assert_eq!(found.len(), count, "completions (wr_id, status): {ids:?}");
    found
}

pub fn qpn(qp: *mut ibv_qp) -> u32 {
    // SAFETY: live QP.
    unsafe { (*qp).qp_num }
}

pub fn state(qp: *mut ibv_qp) -> u32 {
    // SAFETY: live QP; all-zero is valid for both structures.
    unsafe {
        let (mut attr, mut init): (ibv_qp_attr, ibv_qp_init_attr) = (zeroed(), zeroed());
        assert_eq!(ibv_query_qp(qp, &raw mut attr, 1, &raw mut init), 0);
        attr.qp_state
    }
}

pub fn set_state(qp: *mut ibv_qp, state: u32) -> i32 {
    // SAFETY: live QP.
    unsafe {
        let mut attr: ibv_qp_attr = zeroed();
        attr.qp_state = state;
        ibv_modify_qp(qp, &raw mut attr, 1)
    }
}

/// The next asynchronous event, acknowledged; `None` when there is none.
pub fn async_event(ctx: *mut ibv_context) -> Option<u32> {
    // SAFETY: live context.
    unsafe {
        let fd = (*ctx).async_fd;
        let flags = libc::fcntl(fd, libc::F_GETFL);
        libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK);
        let mut event: ibv_async_event = zeroed();
        if ibv_get_async_event(ctx, &raw mut event) != 0 {
            return None;
        }
        ibv_ack_async_event(&raw mut event);
        Some(event.event_type as u32)
    }
}

pub fn async_events(ctx: *mut ibv_context) -> Vec<u32> {
    std::iter::from_fn(|| async_event(ctx)).collect()
}

/// Takes one completion event off a channel and acknowledges it. False when there is none.
pub fn comp_event(channel: *mut ibv_comp_channel) -> bool {
    // SAFETY: live channel.
    unsafe {
        let fd = (*channel).fd;
        let flags = libc::fcntl(fd, libc::F_GETFL);
        libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK);
        let (mut cq, mut context) = (null_mut(), null_mut());
        if ibv_get_cq_event(channel, &raw mut cq, &raw mut context) != 0 {
            return false;
        }
        ibv_ack_cq_events(cq, 1);
        true
    }
}

/// The table of extended operations in front of a context. (rdma-sys's own wrappers compare the
/// marker with 32 bits and therefore never find the table on 64-bit machines.)
pub fn extended(ctx: *mut ibv_context) -> *mut verbs_context {
    // SAFETY: every context that libibverbs hands out is the last field of a verbs_context.
    unsafe { ctx.byte_sub(std::mem::offset_of!(verbs_context, context)).cast() }
}
