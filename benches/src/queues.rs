#![expect(unsafe_code, reason = "verbs, and queue memory in the place of a device")]
//! Queues that unmodified libibverbs and libmlx5 created on the software device, and a stand-in for
//! that device.
//!
//! On a real device ([`crate::device`]) there is no stand-in: [`Queues::deliver`] sends the
//! messages through a pair of connected QPs and waits until their entries are in the CQ.
//!
//! The software device delivers one real message and then does nothing more. The completion entries
//! that cases poll are copies of that message's entry with another slot; [`Queues::deliver`] writes
//! them outside the timed part. The stand-in finds the slots that the device takes by following the
//! list in the ring, as a device does.

use std::{
    ffi::{CStr, c_char, c_int, c_void},
    mem::zeroed,
    ptr::null_mut,
};

use crate::{cold::elsewhere, device, plan::CaseName};

use doorbell_sys::*;
use mlx5_direct::dv::abi;

/// Entries of the receive CQ.
pub const CQ_ENTRIES: usize = 1024;

/// An SRQ, the CQ of a QP on the SRQ, and the addresses of their memory. Never destroyed: a case
/// lives as long as its process.
#[derive(Debug)]
pub struct Queues {
    srq: *mut ibv_srq,
    cq: *mut ibv_cq,
    ring: *mut u8,
    stride: usize,
    entries: *mut u8,
    /// The entry of a real message.
    template: [u8; 64],
    produced: usize,
    /// The device's position in the list.
    position: u16,
    lkey: u32,
    buffer: u64,
    /// The sender of messages, on a real device.
    sender: Option<Sender>,
}

/// A QP that sends to a QP on the SRQ.
#[derive(Clone, Copy, Debug)]
struct Sender {
    qp: *mut ibv_qp,
    cq: *mut ibv_cq,
}

/// A QP for cases that send, and its send CQ.
#[derive(Clone, Copy, Debug)]
pub struct Ends {
    /// Nothing was posted to it.
    pub from: *mut ibv_qp,
    /// Nothing was polled from it.
    pub cq: *mut ibv_cq,
}

/// Maximum number of messages that a sender has outstanding.
const SENDS: u32 = 128;
/// Buffers of the SRQ for their messages. All are posted before a message arrives.
pub const RECEIVES: u32 = 128;

/// A message length that does not fit into a completion entry.
const MESSAGE: u32 = 1000;

fn some<T>(ptr: *mut T, call: &str) -> *mut T {
    assert!(!ptr.is_null(), "{call}: {}", std::io::Error::last_os_error());
    ptr
}

fn ok(rc: c_int, call: &str) {
    assert_eq!(rc, 0, "{call}: {}", std::io::Error::from_raw_os_error(rc.abs()));
}

impl Queues {
    /// Queues that libmlx5 will post to and poll.
    pub fn for_libmlx5(depth: u32, segments: u32) -> Self {
        Self::used_once(depth, segments)
    }

    /// Queues that nobody has posted to or polled.
    pub fn untouched(depth: u32, segments: u32) -> Self {
        if device::named().is_some() {
            return Self::used_once(depth, segments);
        }
        let template = Self::used_once(15, 1).template;
        let mut queues = Self::create(depth, segments).0;
        queues.template = template;
        queues
    }

    /// Queues for a case of sends, with `receives` buffers posted through verbs, and a QP that
    /// sends to them.
    pub fn for_sends(receives: u32, case: CaseName) -> (Self, Ends) {
        let in_buffer = matches!(case, CaseName::MessageInBuffer | CaseName::MessageLarge);
        if in_buffer {
            // SAFETY: a case is made before its process has other threads than the device's, which
            // read no variable.
            unsafe { std::env::set_var("MLX5_SCATTER_TO_CQE", "0") };
        }
        let (mut queues, context, pd) = Self::create(RECEIVES, 1);
        // SAFETY: the queues were made a moment ago.
        let Sender { qp, cq } = unsafe { queues.sender(context, pd, case == CaseName::SendWr) };
        if in_buffer {
            // SAFETY: as above.
            unsafe { std::env::remove_var("MLX5_SCATTER_TO_CQE") };
        }
        queues.post_receives(receives);
        (queues, Ends { from: qp, cq })
    }

    /// Lets the device work until `n` more messages arrived, and posts their buffers again.
    pub fn settle(&mut self, n: u32) {
        elsewhere(|| self.settle_here(n));
    }

    fn settle_here(&mut self, n: u32) {
        for _ in 0..n {
            // SAFETY: a live CQ and room for one completion.
            unsafe {
                let mut wc: ibv_wc = zeroed();
                while ibv_poll_cq(self.cq, 1, &mut wc) == 0 {
                    device::step();
                }
                assert_eq!(wc.status, ibv_wc_status::IBV_WC_SUCCESS, "a receive");
            }
        }
        // The acknowledgements.
        (0..4).for_each(|_| device::step());
        self.post_receives(n);
    }

    /// Lets the software device carry `n` messages and their acknowledgements. A real device works
    /// by itself.
    pub fn carry(&mut self, n: u32) {
        elsewhere(|| (0..4 * n).for_each(|_| device::step()));
    }

    fn post_receives(&mut self, n: u32) {
        for k in 0..n {
            // SAFETY: a live SRQ; request and list live through the call.
            unsafe {
                let mut sge = self.sge(k);
                let mut wr: ibv_recv_wr = zeroed();
                (wr.wr_id, wr.sg_list, wr.num_sge) = (u64::from(k), &mut sge, 1);
                ok(ibv_post_srq_recv(self.srq, &mut wr, &mut null_mut()), "ibv_post_srq_recv");
            }
        }
    }

    fn used_once(depth: u32, segments: u32) -> Self {
        let (mut queues, context, pd) = Self::create(depth, segments);
        // SAFETY: the queues were made a moment ago.
        unsafe {
            let sender = queues.sender(context, pd, false);
            if device::named().is_some() {
                queues.sender = Some(sender);
            } else {
                queues.learn(sender);
            }
        }
        queues
    }

    fn create(depth: u32, segments: u32) -> (Self, *mut ibv_context, *mut ibv_pd) {
        device::start();
        // SAFETY: verbs calls with live objects that the calls before returned.
        unsafe {
            let list = some(ibv_get_device_list(null_mut()), "ibv_get_device_list");
            let mut at = list;
            while !(*at).is_null() && CStr::from_ptr(ibv_get_device_name(*at)).to_str() != Ok(device::name())
            {
                at = at.add(1);
            }
            assert!(!(*at).is_null(), "there is no device {}", device::name());
            let context = some(ibv_open_device(*at), "ibv_open_device");
            ibv_free_device_list(list);
            let pd = some(ibv_alloc_pd(context), "ibv_alloc_pd");
            let memory = vec![0u8; 1 << 20].leak();
            let access = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0 as c_int;
            let mr = some(ibv_reg_mr(pd, memory.as_mut_ptr().cast(), memory.len(), access), "ibv_reg_mr");
            let entries = CQ_ENTRIES as c_int - 1;
            let cq = some(ibv_create_cq(context, entries, null_mut(), null_mut(), 0), "ibv_create_cq");
            let mut init: ibv_srq_init_attr = zeroed();
            (init.attr.max_wr, init.attr.max_sge) = (depth, segments);
            let srq = some(ibv_create_srq(pd, &mut init), "ibv_create_srq");
            let (ring, stride, entries) = describe(srq, cq);
            let queues = Self {
                srq,
                cq,
                ring,
                stride,
                entries,
                template: [0; 64],
                produced: 0,
                position: 0,
                lkey: (*mr).lkey,
                buffer: memory.as_ptr() as u64,
                sender: None,
            };
            (queues, context, pd)
        }
    }

    /// Two QPs on the SRQ, connected to each other.
    ///
    /// # Safety
    ///
    /// The arguments are live objects of the queues.
    unsafe fn sender(&self, context: *mut ibv_context, pd: *mut ibv_pd, extended: bool) -> Sender {
        // SAFETY: live objects by contract; attributes that each call reads are set.
        unsafe {
            let cq = some(ibv_create_cq(context, SENDS as c_int, null_mut(), null_mut(), 0), "ibv_create_cq");
            let [from, to] = [(); 2].map(|()| {
                let mut init: ibv_qp_init_attr = zeroed();
                (init.send_cq, init.recv_cq, init.srq) = (cq, self.cq, self.srq);
                (init.cap.max_send_wr, init.cap.max_send_sge) = (SENDS, 1);
                init.cap.max_inline_data = 32;
                init.qp_type = ibv_qp_type::IBV_QPT_RC;
                if extended {
                    some(create_extended(context, pd, &init), "ibv_create_qp_ex")
                } else {
                    some(ibv_create_qp(pd, &mut init), "ibv_create_qp")
                }
            });
            let path = LocalPath::find(context);
            path.connect(from, (*to).qp_num);
            path.connect(to, (*from).qp_num);
            Sender { qp: from, cq }
        }
    }

    /// Makes the software device deliver one message and keeps its entry.
    ///
    /// # Safety
    ///
    /// `sender` belongs to these queues.
    unsafe fn learn(&mut self, sender: Sender) {
        // SAFETY: live objects by contract; requests and lists live through the calls.
        unsafe {
            let mut sge = self.sge(0);
            let mut wr: ibv_recv_wr = zeroed();
            (wr.sg_list, wr.num_sge) = (&mut sge, 1);
            ok(ibv_post_srq_recv(self.srq, &mut wr, &mut null_mut()), "ibv_post_srq_recv");
            self.send(sender, 1);
            self.template.copy_from_slice(core::slice::from_raw_parts(self.entries, 64));
            assert_eq!(self.template[63] >> 4, 2, "the entry of a send");
            let mut wc: ibv_wc = zeroed();
            assert_eq!(ibv_poll_cq(self.cq, 1, &mut wc), 1, "ibv_poll_cq");
        }
        self.position = self.next_of(0);
    }

    /// Sends messages and waits until their entries are in the CQ.
    ///
    /// # Safety
    ///
    /// `sender` belongs to these queues.
    unsafe fn send(&mut self, sender: Sender, n: usize) {
        assert!(n <= SENDS as usize && n <= CQ_ENTRIES);
        // SAFETY: live objects by contract; request and list live through the calls; the entries
        // are inside the CQ.
        unsafe {
            let mut sge = ibv_sge { length: MESSAGE, ..self.sge(0) };
            for k in 0..n {
                let mut wr: ibv_send_wr = zeroed();
                (wr.sg_list, wr.num_sge, wr.opcode) = (&mut sge, 1, ibv_wr_opcode::IBV_WR_SEND);
                wr.send_flags = if k + 1 == n { ibv_send_flags::IBV_SEND_SIGNALED.0 } else { 0 };
                ok(ibv_post_send(sender.qp, &mut wr, &mut null_mut()), "ibv_post_send");
            }
            let mut wc: ibv_wc = zeroed();
            while ibv_poll_cq(sender.cq, 1, &mut wc) == 0 {
                device::step();
            }
            assert_eq!(wc.status, ibv_wc_status::IBV_WC_SUCCESS, "a send");
            let last = self.produced + n - 1;
            let owner = self.entries.add(last % CQ_ENTRIES * 64 + 63);
            loop {
                // An entry that was never written has opcode 15. The lowest bit says in which round
                // the entry was written.
                let byte = owner.read_volatile();
                if byte >> 4 != 15 && usize::from(byte & 1) == last / CQ_ENTRIES % 2 {
                    break;
                }
                device::step();
            }
        }
        self.produced += n;
    }

    /// The SRQ.
    pub fn srq(&self) -> *mut ibv_srq {
        self.srq
    }

    /// The receive CQ of QPs on the SRQ.
    pub fn cq(&self) -> *mut ibv_cq {
        self.cq
    }

    /// Start of the n-th buffer, of 4096 bytes. Buffers repeat.
    pub fn address(&self, n: u32) -> u64 {
        self.buffer + u64::from(n % 256) * 4096
    }

    /// Local key of all buffers.
    pub fn lkey(&self) -> u32 {
        self.lkey
    }

    /// The n-th buffer as a scatter/gather entry of verbs.
    pub fn sge(&self, n: u32) -> ibv_sge {
        ibv_sge { addr: self.address(n), length: 4096, lkey: self.lkey }
    }

    /// The slot that follows `slot` in the list.
    fn next_of(&self, slot: u16) -> u16 {
        // SAFETY: inside the ring, since slots come from the list that the poster maintains.
        u16::from_be(unsafe { self.ring.add(slot as usize * self.stride + 2).cast::<u16>().read_volatile() })
    }

    /// The device takes `n` slots.
    pub fn take(&mut self, n: usize, into: &mut Vec<u16>) {
        elsewhere(|| {
            for _ in 0..n {
                into.push(self.position);
                self.position = self.next_of(self.position);
            }
        });
    }

    /// The device finishes receives in these slots.
    pub fn deliver(&mut self, slots: &[u16]) {
        elsewhere(|| self.deliver_here(slots));
    }

    fn deliver_here(&mut self, slots: &[u16]) {
        if let Some(sender) = self.sender {
            for slots in slots.chunks(SENDS as usize) {
                // SAFETY: the sender belongs to these queues; neither is ever destroyed.
                unsafe { self.send(sender, slots.len()) };
            }
            return;
        }
        for slot in slots {
            let mut entry = self.template;
            entry[60..62].copy_from_slice(&slot.to_be_bytes());
            entry[63] = entry[63] & 0xfe | (self.produced / CQ_ENTRIES % 2) as u8;
            // SAFETY: inside the CQ, whose entries are 64 bytes. Cases deliver no more entries than
            // they poll.
            unsafe {
                let at = self.entries.add(self.produced % CQ_ENTRIES * 64);
                at.copy_from(entry.as_ptr(), 63);
                at.add(63).write_volatile(entry[63]);
            }
            self.produced += 1;
        }
    }
}

/// A chain of verbs work requests with their scatter lists, or separate requests.
pub struct Requests {
    wrs: Vec<ibv_recv_wr>,
    chained: bool,
    _sges: Vec<ibv_sge>,
}

impl Requests {
    /// `n` requests of `segments` segments each: one list if `chained`, else separate requests.
    pub fn new(queues: &Queues, n: u32, segments: u32, chained: bool) -> Self {
        let mut sges: Vec<_> = (0..n * segments).map(|k| queues.sge(k)).collect();
        // SAFETY: integers and pointers only, for which zero is a value.
        let mut wrs: Vec<ibv_recv_wr> = (0..n).map(|_| unsafe { zeroed() }).collect();
        let first = wrs.as_mut_ptr();
        for (k, wr) in wrs.iter_mut().enumerate() {
            let list = sges[k * segments as usize..].as_mut_ptr();
            (wr.wr_id, wr.sg_list, wr.num_sge) = (k as u64, list, segments as c_int);
            wr.next = if chained && k + 1 < n as usize { first.wrapping_add(k + 1) } else { null_mut() };
        }
        Self { wrs, chained, _sges: sges }
    }

    /// The n-th request, or the head of the chain. Valid as long as `self` lives.
    #[inline(always)]
    pub fn get(&mut self, n: u32) -> *mut ibv_recv_wr {
        let n = if self.chained { 0 } else { n };
        &mut self.wrs[n as usize]
    }
}

/// A QP that takes sends by `ibv_wr_send`, by `ibv_create_qp_ex`.
///
/// # Safety
///
/// Live objects.
unsafe fn create_extended(
    context: *mut ibv_context,
    pd: *mut ibv_pd,
    init: &ibv_qp_init_attr,
) -> *mut ibv_qp {
    const PD: u32 = 1;
    const SEND_OPS_FLAGS: u32 = 1 << 6;
    const WITH_SEND: u64 = 1 << 3;
    // SAFETY: every context that libibverbs opens is the last field of a verbs_context, which has
    // this function in front of the context; plain attributes, for which zero is a value.
    unsafe {
        let table = context.byte_sub(std::mem::offset_of!(verbs_context, context)).cast::<verbs_context>();
        let mut attr: ibv_qp_init_attr_ex = zeroed();
        (attr.send_cq, attr.recv_cq, attr.srq, attr.cap) = (init.send_cq, init.recv_cq, init.srq, init.cap);
        (attr.qp_type, attr.pd) = (init.qp_type, pd);
        (attr.comp_mask, attr.send_ops_flags) = (PD | SEND_OPS_FLAGS, WITH_SEND);
        (*table).create_qp_ex.expect("ibv_create_qp_ex")(context, &mut attr)
    }
}

/// Ring, stride and CQ entries, from libmlx5.
///
/// # Safety
///
/// Live objects of libmlx5.
unsafe fn describe(srq: *mut ibv_srq, cq: *mut ibv_cq) -> (*mut u8, usize, *mut u8) {
    type InitObj = unsafe extern "C" fn(*mut abi::DvObj, u64) -> c_int;
    type Next = unsafe extern "C" fn(*const c_char) -> *mut c_void;
    // SAFETY: the function and structs of mlx5dv.h; live objects by contract.
    unsafe {
        let name = b"mlx5dv_init_obj\0";
        let lib = libloading::Library::new("libmlx5.so.1").expect("libmlx5");
        // Under the library of doorbell-run, a look-up finds the library's function, which gives the
        // queues back.
        let init: InitObj = match libloading::os::unix::Library::this().get::<Next>(b"doorbell_verbs_next\0")
        {
            Ok(next) => std::mem::transmute::<*mut c_void, InitObj>(next(name.as_ptr().cast())),
            Err(_) => *lib.get::<InitObj>(name).expect("mlx5dv_init_obj"),
        };
        let (mut obj, mut ring, mut queue): (abi::DvObj, abi::DvSrq, abi::DvCq) =
            (zeroed(), zeroed(), zeroed());
        obj.srq = abi::DvPair { object: srq.cast(), out: (&raw mut ring).cast() };
        obj.cq = abi::DvPair { object: cq.cast(), out: (&raw mut queue).cast() };
        ok(init(&mut obj, abi::OBJ_SRQ | abi::OBJ_CQ), "mlx5dv_init_obj");
        assert_eq!((queue.cqe_cnt as usize, queue.cqe_size), (CQ_ENTRIES, 64));
        (ring.buf.cast(), ring.stride as usize, queue.buf.cast())
    }
}

/// The path from a QP of port 1 to another QP of the same port.
struct LocalPath {
    lid: u16,
    /// Index and value of the GID, if the link is Ethernet.
    gid: Option<(u8, ibv_gid)>,
}

impl LocalPath {
    /// # Safety
    ///
    /// A live context.
    unsafe fn find(context: *mut ibv_context) -> Self {
        // SAFETY: a live context by contract, and room for the answers.
        unsafe {
            let mut port: ibv_port_attr = zeroed();
            ok(___ibv_query_port(context, 1, &mut port), "ibv_query_port");
            const ETHERNET: u8 = 2;
            if port.link_layer != ETHERNET {
                return Self { lid: port.lid, gid: None };
            }
            let mut gid: ibv_gid = zeroed();
            // An IPv4 address has the form ::ffff:a.b.c.d. The table has it first for RoCE v1 and
            // then for RoCE v2, so the last entry is used.
            let is_v4 = |gid: &ibv_gid| gid.raw[..12] == [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];
            let mut indexes = 0..port.gid_tbl_len.clamp(0, 255) as u8;
            let index = indexes
                .rfind(|index| ibv_query_gid(context, 1, c_int::from(*index), &mut gid) == 0 && is_v4(&gid))
                .expect("a GID with an IPv4 address: give the device's network interface one");
            Self { lid: 0, gid: Some((index, gid)) }
        }
    }

    /// Brings a QP to the ready-to-send state, connected to `dest`.
    ///
    /// # Safety
    ///
    /// Live objects.
    unsafe fn connect(&self, qp: *mut ibv_qp, dest: u32) {
        type M = ibv_qp_attr_mask;
        // SAFETY: a live QP by contract; the attributes that each mask names are set, the rest is
        // zero.
        unsafe {
            let mut attr: ibv_qp_attr = zeroed();
            (attr.qp_state, attr.port_num) = (ibv_qp_state::IBV_QPS_INIT, 1);
            let mask = M::IBV_QP_STATE | M::IBV_QP_PKEY_INDEX | M::IBV_QP_PORT | M::IBV_QP_ACCESS_FLAGS;
            ok(ibv_modify_qp(qp, &mut attr, mask.0 as c_int), "to INIT");

            attr = zeroed();
            (attr.qp_state, attr.path_mtu) = (ibv_qp_state::IBV_QPS_RTR, ibv_mtu::IBV_MTU_1024);
            (attr.dest_qp_num, attr.max_dest_rd_atomic, attr.min_rnr_timer) = (dest, 1, 1);
            (attr.ah_attr.port_num, attr.ah_attr.dlid) = (1, self.lid);
            if let Some((index, gid)) = self.gid {
                (attr.ah_attr.is_global, attr.ah_attr.grh.hop_limit) = (1, 64);
                (attr.ah_attr.grh.sgid_index, attr.ah_attr.grh.dgid) = (index, gid);
            }
            let mask = M::IBV_QP_STATE
                | M::IBV_QP_AV
                | M::IBV_QP_PATH_MTU
                | M::IBV_QP_DEST_QPN
                | M::IBV_QP_RQ_PSN
                | M::IBV_QP_MAX_DEST_RD_ATOMIC
                | M::IBV_QP_MIN_RNR_TIMER;
            ok(ibv_modify_qp(qp, &mut attr, mask.0 as c_int), "to RTR");

            attr = zeroed();
            (attr.qp_state, attr.timeout, attr.retry_cnt, attr.rnr_retry) =
                (ibv_qp_state::IBV_QPS_RTS, 14, 7, 7);
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
}
