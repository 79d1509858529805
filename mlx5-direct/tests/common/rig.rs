//! Verbs objects on the first mlx5 device: a PD, one registered buffer, CQs, an SRQ, and RC QPs
//! connected in loopback.
#![allow(dead_code, reason = "a test and an example use a part each")]
#![expect(unsafe_code, reason = "verbs")]

use std::{ffi::c_int, mem::zeroed, ptr::null_mut};

use doorbell_sys::*;

pub(crate) const BUFFER_BYTES: usize = 1 << 20;

pub(crate) struct Rig {
    pub(crate) context: *mut ibv_context,
    pub(crate) pd: *mut ibv_pd,
    pub(crate) channel: *mut ibv_comp_channel,
    pub(crate) mr: *mut ibv_mr,
    pub(crate) buffer: *mut u8,
}

fn some<T>(ptr: *mut T, call: &str) -> *mut T {
    assert!(!ptr.is_null(), "{call}: {}", std::io::Error::last_os_error());
    ptr
}

fn ok(rc: c_int, call: &str) {
    assert_eq!(rc, 0, "{call}: {}", std::io::Error::from_raw_os_error(rc.abs()));
}

impl Rig {
    /// Returns `None` if there is no mlx5 device.
    pub(crate) fn open() -> Option<Self> {
        // SAFETY: verbs calls with the objects that the calls before returned.
        unsafe {
            let mut n = 0;
            let list = ibv_get_device_list(&mut n);
            if list.is_null() {
                return None;
            }
            let mut found = null_mut();
            for at in 0..n as usize {
                let context = ibv_open_device(*list.add(at));
                if context.is_null() {
                    continue;
                }
                if mlx5_direct::dv::supported(context).is_ok() {
                    found = context;
                    break;
                }
                ibv_close_device(context);
            }
            ibv_free_device_list(list);
            if found.is_null() {
                return None;
            }
            let pd = some(ibv_alloc_pd(found), "ibv_alloc_pd");
            let channel = some(ibv_create_comp_channel(found), "ibv_create_comp_channel");
            let buffer = vec![0u8; BUFFER_BYTES].leak().as_mut_ptr();
            let access = (ibv_access_flags::IBV_ACCESS_LOCAL_WRITE
                | ibv_access_flags::IBV_ACCESS_REMOTE_READ
                | ibv_access_flags::IBV_ACCESS_REMOTE_WRITE
                | ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC
                | ibv_access_flags::IBV_ACCESS_MW_BIND)
                .0 as c_int;
            let mr = some(ibv_reg_mr(pd, buffer.cast(), BUFFER_BYTES, access), "ibv_reg_mr");
            Some(Self { context: found, pd, channel, mr, buffer })
        }
    }

    pub(crate) fn lkey(&self) -> u32 {
        // SAFETY: a live MR.
        unsafe { (*self.mr).lkey }
    }

    pub(crate) fn rkey(&self) -> u32 {
        // SAFETY: a live MR.
        unsafe { (*self.mr).rkey }
    }

    pub(crate) fn addr(&self, offset: usize) -> u64 {
        assert!(offset < BUFFER_BYTES);
        self.buffer.wrapping_add(offset) as u64
    }

    pub(crate) fn write(&self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= BUFFER_BYTES);
        // SAFETY: inside the buffer, which is never freed.
        unsafe { self.buffer.add(offset).copy_from(bytes.as_ptr(), bytes.len()) };
    }

    pub(crate) fn read(&self, offset: usize, len: usize) -> Vec<u8> {
        assert!(offset + len <= BUFFER_BYTES);
        // SAFETY: as in `write`.
        (0..len).map(|n| unsafe { self.buffer.add(offset + n).read_volatile() }).collect()
    }

    pub(crate) fn cq(&self, entries: i32, with_channel: bool) -> *mut ibv_cq {
        let channel = if with_channel { self.channel } else { null_mut() };
        // SAFETY: live objects.
        some(unsafe { ibv_create_cq(self.context, entries, null_mut(), channel, 0) }, "ibv_create_cq")
    }

    pub(crate) fn srq(&self, max_wr: u32, max_sge: u32) -> *mut ibv_srq {
        // SAFETY: live PD; plain attributes.
        unsafe {
            let mut init: ibv_srq_init_attr = zeroed();
            init.attr.max_wr = max_wr;
            init.attr.max_sge = max_sge;
            some(ibv_create_srq(self.pd, &mut init), "ibv_create_srq")
        }
    }

    pub(crate) fn qp(&self, send: *mut ibv_cq, recv: *mut ibv_cq, srq: *mut ibv_srq) -> *mut ibv_qp {
        self.qp_with(send, recv, srq, |_| ()).0
    }

    /// A QP with other attributes than those of `qp`, and the capacities that were granted.
    pub(crate) fn qp_with(
        &self,
        send: *mut ibv_cq,
        recv: *mut ibv_cq,
        srq: *mut ibv_srq,
        change: impl FnOnce(&mut ibv_qp_init_attr),
    ) -> (*mut ibv_qp, ibv_qp_cap) {
        // SAFETY: live objects.
        unsafe {
            let mut init: ibv_qp_init_attr = zeroed();
            (init.send_cq, init.recv_cq, init.srq) = (send, recv, srq);
            init.cap.max_send_wr = 64;
            init.cap.max_send_sge = 1;
            init.qp_type = ibv_qp_type::IBV_QPT_RC;
            init.sq_sig_all = 1;
            change(&mut init);
            (some(ibv_create_qp(self.pd, &mut init), "ibv_create_qp"), init.cap)
        }
    }

    pub(crate) fn qpn(&self, qp: *mut ibv_qp) -> u32 {
        // SAFETY: a live QP.
        unsafe { (*qp).qp_num }
    }

    /// Brings a UD QP to RTS.
    pub(crate) fn datagrams(&self, qp: *mut ibv_qp, qkey: u32) {
        type M = ibv_qp_attr_mask;
        let steps = [
            (ibv_qp_state::IBV_QPS_INIT, M::IBV_QP_PKEY_INDEX | M::IBV_QP_PORT | M::IBV_QP_QKEY),
            (ibv_qp_state::IBV_QPS_RTR, M::IBV_QP_STATE),
            (ibv_qp_state::IBV_QPS_RTS, M::IBV_QP_SQ_PSN),
        ];
        for (state, mask) in steps {
            // SAFETY: plain attributes and a live QP.
            unsafe {
                let mut attr: ibv_qp_attr = zeroed();
                (attr.qp_state, attr.port_num, attr.qkey) = (state, 1, qkey);
                let mask = (mask | M::IBV_QP_STATE).0 as c_int;
                ok(ibv_modify_qp(qp, &mut attr, mask), "ibv_modify_qp");
            }
        }
    }

    /// Moves a QP to RESET.
    pub(crate) fn to_reset(&self, qp: *mut ibv_qp) {
        // SAFETY: plain attributes and a live QP.
        unsafe {
            let mut attr: ibv_qp_attr = zeroed();
            attr.qp_state = ibv_qp_state::IBV_QPS_RESET;
            ok(ibv_modify_qp(qp, &mut attr, ibv_qp_attr_mask::IBV_QP_STATE.0 as c_int), "ibv_modify_qp");
        }
    }

    /// An address handle for the device's own address.
    pub(crate) fn address_handle(&self) -> *mut ibv_ah {
        // SAFETY: plain attributes and live objects.
        unsafe {
            let mut attr: ibv_ah_attr = zeroed();
            (attr.port_num, attr.is_global) = (1, 1);
            attr.grh.hop_limit = 64;
            let mut gid: ibv_gid = zeroed();
            ok(ibv_query_gid(self.context, 1, 0, &mut gid), "ibv_query_gid");
            attr.grh.dgid = gid;
            some(ibv_create_ah(self.pd, &mut attr), "ibv_create_ah")
        }
    }

    /// Posts through verbs. Returns the error number and how many requests were accepted.
    pub(crate) fn verbs_send(&self, qp: *mut ibv_qp, wrs: &mut [ibv_send_wr]) -> (c_int, usize) {
        for n in 1..wrs.len() {
            wrs[n - 1].next = &raw mut wrs[n];
        }
        // SAFETY: a live QP and a chain inside the slice, whose last `next` is null.
        unsafe {
            let mut bad = null_mut();
            let rc = ibv_post_send(qp, wrs.as_mut_ptr(), &mut bad);
            let accepted = if rc == 0 { wrs.len() } else { bad.offset_from(wrs.as_ptr()) as usize };
            (rc, accepted)
        }
    }

    /// Polls through verbs until `n` completions came. Returns the completions.
    pub(crate) fn verbs_poll(&self, cq: *mut ibv_cq, n: usize) -> Vec<ibv_wc> {
        let mut all = vec![];
        let start = std::time::Instant::now();
        while all.len() < n {
            // SAFETY: a live CQ and room for one completion.
            unsafe {
                let mut wc: ibv_wc = zeroed();
                match ibv_poll_cq(cq, 1, &mut wc) {
                    0 => std::thread::yield_now(),
                    1 => all.push(wc),
                    n => panic!("ibv_poll_cq: {n}"),
                }
            }
            assert!(start.elapsed().as_secs() < 20, "{} of {n} completions", all.len());
        }
        all
    }

    /// Connects two QPs to each other.
    pub(crate) fn connect(&self, a: *mut ibv_qp, b: *mut ibv_qp) {
        // SAFETY: live QPs.
        unsafe {
            self.to_rts(a, (*b).qp_num);
            self.to_rts(b, (*a).qp_num);
        }
    }

    /// Brings a QP to RTS, with the peer's QP number. Each type takes attributes of its own.
    pub(crate) unsafe fn to_rts(&self, qp: *mut ibv_qp, dest: u32) {
        type M = ibv_qp_attr_mask;
        let modify = |attr: &mut ibv_qp_attr, mask: M| {
            // SAFETY: a live QP; the attributes named by the mask are set.
            ok(unsafe { ibv_modify_qp(qp, attr, mask.0 as c_int) }, "ibv_modify_qp");
        };
        // SAFETY: plain attributes, a live QP and a live context.
        unsafe {
            let mut attr: ibv_qp_attr = zeroed();
            attr.qp_state = ibv_qp_state::IBV_QPS_INIT;
            attr.port_num = 1;
            attr.qp_access_flags = (ibv_access_flags::IBV_ACCESS_REMOTE_WRITE
                | ibv_access_flags::IBV_ACCESS_REMOTE_READ
                | ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC)
                .0;
            modify(
                &mut attr,
                M::IBV_QP_STATE | M::IBV_QP_PKEY_INDEX | M::IBV_QP_PORT | M::IBV_QP_ACCESS_FLAGS,
            );

            let qp_type = (*qp).qp_type;
            let is = |types: &[ibv_qp_type::Type]| types.contains(&qp_type);
            let none = ibv_qp_attr_mask(0);
            let mut attr: ibv_qp_attr = zeroed();
            attr.qp_state = ibv_qp_state::IBV_QPS_RTR;
            attr.path_mtu = ibv_mtu::IBV_MTU_1024;
            attr.dest_qp_num = dest;
            attr.max_dest_rd_atomic = 4;
            attr.min_rnr_timer = 1;
            attr.ah_attr.port_num = 1;
            attr.ah_attr.is_global = 1;
            attr.ah_attr.grh.hop_limit = 64;
            let mut gid: ibv_gid = zeroed();
            ok(ibv_query_gid(self.context, 1, 0, &mut gid), "ibv_query_gid");
            attr.ah_attr.grh.dgid = gid;
            let answers = is(&[ibv_qp_type::IBV_QPT_RC, ibv_qp_type::IBV_QPT_XRC_RECV]);
            modify(
                &mut attr,
                M::IBV_QP_STATE
                    | M::IBV_QP_AV
                    | M::IBV_QP_PATH_MTU
                    | M::IBV_QP_DEST_QPN
                    | M::IBV_QP_RQ_PSN
                    | if answers { M::IBV_QP_MAX_DEST_RD_ATOMIC | M::IBV_QP_MIN_RNR_TIMER } else { none },
            );

            let mut attr: ibv_qp_attr = zeroed();
            attr.qp_state = ibv_qp_state::IBV_QPS_RTS;
            attr.timeout = 14;
            attr.retry_cnt = 7;
            attr.rnr_retry = 7;
            attr.max_rd_atomic = 4;
            let asks = is(&[ibv_qp_type::IBV_QPT_RC, ibv_qp_type::IBV_QPT_XRC_SEND]);
            modify(
                &mut attr,
                M::IBV_QP_STATE
                    | M::IBV_QP_SQ_PSN
                    | if is(&[ibv_qp_type::IBV_QPT_UC]) { none } else { M::IBV_QP_TIMEOUT }
                    | if asks {
                        M::IBV_QP_RETRY_CNT | M::IBV_QP_RNR_RETRY | M::IBV_QP_MAX_QP_RD_ATOMIC
                    } else {
                        none
                    },
            );
        }
    }

    /// The table of extended operations in front of the context. (The wrappers of rdma-sys do not
    /// find it on 64-bit machines.)
    pub(crate) fn extended(&self) -> &verbs_context {
        let offset = std::mem::offset_of!(verbs_context, context);
        // SAFETY: every context that libibverbs opens is the last field of a verbs_context.
        unsafe { &*self.context.byte_sub(offset).cast::<verbs_context>() }
    }

    /// A QP by `ibv_create_qp_ex`.
    pub(crate) fn qp_ex(&self, change: impl FnOnce(&mut ibv_qp_init_attr_ex)) -> *mut ibv_qp {
        // SAFETY: plain attributes and live objects.
        unsafe {
            let mut init: ibv_qp_init_attr_ex = zeroed();
            (init.comp_mask, init.pd) = (1, self.pd);
            (init.cap.max_send_wr, init.cap.max_send_sge) = (16, 1);
            change(&mut init);
            let create = self.extended().create_qp_ex.expect("ibv_create_qp_ex");
            some(create(self.context, &mut init), "ibv_create_qp_ex")
        }
    }

    /// Sends `len` bytes from `offset` of the buffer, with immediate data if `imm` is given,
    /// solicited if `solicited`.
    pub(crate) fn send(&self, qp: *mut ibv_qp, offset: usize, len: usize, imm: Option<u32>, solicited: bool) {
        // SAFETY: a live QP; the segment is inside the registered buffer.
        unsafe {
            let mut sge = ibv_sge { addr: self.addr(offset), length: len as u32, lkey: self.lkey() };
            let mut wr: ibv_send_wr = zeroed();
            wr.sg_list = &mut sge;
            wr.num_sge = 1;
            wr.opcode = ibv_wr_opcode::IBV_WR_SEND;
            if let Some(imm) = imm {
                wr.opcode = ibv_wr_opcode::IBV_WR_SEND_WITH_IMM;
                wr.imm_data_invalidated_rkey_union.imm_data = imm.to_be();
            }
            if solicited {
                wr.send_flags = ibv_send_flags::IBV_SEND_SOLICITED.0;
            }
            let mut bad = null_mut();
            ok(ibv_post_send(qp, &mut wr, &mut bad), "ibv_post_send");
        }
    }

    /// Polls the send CQ through verbs. Returns how many sends succeeded, and how many failed.
    pub(crate) fn poll_sends(&self, cq: *mut ibv_cq) -> (usize, usize) {
        // SAFETY: a live CQ and room for 16 completions.
        unsafe {
            let mut wc: [ibv_wc; 16] = zeroed();
            let n = ibv_poll_cq(cq, 16, wc.as_mut_ptr());
            assert!(n >= 0, "ibv_poll_cq");
            let good = wc[..n as usize].iter().filter(|w| w.status == ibv_wc_status::IBV_WC_SUCCESS).count();
            (good, n as usize - good)
        }
    }

    /// Polls through verbs. Returns the `wr_id` of each receive that succeeded.
    pub(crate) fn poll_receives(&self, cq: *mut ibv_cq) -> Vec<u64> {
        // SAFETY: a live CQ and room for 16 completions.
        unsafe {
            let mut wc: [ibv_wc; 16] = zeroed();
            let n = ibv_poll_cq(cq, 16, wc.as_mut_ptr());
            assert!(n >= 0, "ibv_poll_cq");
            let wc = &wc[..n as usize];
            assert!(wc.iter().all(|w| w.status == ibv_wc_status::IBV_WC_SUCCESS));
            wc.iter().map(|w| w.wr_id).collect()
        }
    }

    /// Posts through verbs. Returns how many requests were accepted.
    pub(crate) fn verbs_post(&self, srq: *mut ibv_srq, wrs: &mut [ibv_recv_wr]) -> usize {
        for n in 1..wrs.len() {
            wrs[n - 1].next = &raw mut wrs[n];
        }
        // SAFETY: a live SRQ and a chain inside the slice, whose last `next` is null.
        unsafe {
            let mut bad = null_mut();
            let rc = ibv_post_srq_recv(srq, wrs.as_mut_ptr(), &mut bad);
            if rc == 0 { wrs.len() } else { bad.offset_from(wrs.as_mut_ptr()) as usize }
        }
    }

    /// Waits for an async event and returns its type.
    pub(crate) fn async_event(&self) -> ibv_event_type {
        // SAFETY: a live context; the event is acknowledged before it goes out of scope.
        unsafe {
            let mut event: ibv_async_event = zeroed();
            ok(ibv_get_async_event(self.context, &mut event), "ibv_get_async_event");
            let kind = event.event_type;
            ibv_ack_async_event(&mut event);
            kind
        }
    }

    /// The number of complaints of the software device in this process; 0 on other devices.
    pub(crate) fn complaints(&self) -> i64 {
        type Control = unsafe extern "C" fn(*const core::ffi::c_char) -> i64;
        // SAFETY: a lookup by name. The software device's function takes a string and returns a
        // number.
        unsafe {
            let found = libc::dlsym(libc::RTLD_DEFAULT, c"mlx5_emu_control".as_ptr());
            if found.is_null() {
                return 0;
            }
            let control = core::mem::transmute::<*mut core::ffi::c_void, Control>(found);
            control(c"count complaint".as_ptr())
        }
    }

    /// Waits for the last-WQE event of this QP, or until no event has come for `bound`. Returns
    /// whether the last-WQE event came. Acknowledges and ignores other events.
    pub(crate) fn last_wqe_of(&self, qp: *mut ibv_qp, bound: core::time::Duration) -> bool {
        loop {
            // SAFETY: one valid entry, and a live context; the event is acknowledged before it goes
            // out of scope.
            unsafe {
                let mut fd = libc::pollfd { fd: (*self.context).async_fd, events: libc::POLLIN, revents: 0 };
                if libc::poll(&mut fd, 1, bound.as_millis() as c_int) != 1 {
                    return false;
                }
                let mut event: ibv_async_event = zeroed();
                ok(ibv_get_async_event(self.context, &mut event), "ibv_get_async_event");
                let last = event.event_type == ibv_event_type::IBV_EVENT_QP_LAST_WQE_REACHED
                    && event.element.qp == qp;
                ibv_ack_async_event(&mut event);
                if last {
                    return true;
                }
            }
        }
    }

    pub(crate) fn destroy(&self, qps: &[*mut ibv_qp], srqs: &[*mut ibv_srq], cqs: &[*mut ibv_cq]) {
        // SAFETY: live objects, destroyed once, users before used.
        unsafe {
            qps.iter().for_each(|q| ok(ibv_destroy_qp(*q), "ibv_destroy_qp"));
            srqs.iter().for_each(|s| ok(ibv_destroy_srq(*s), "ibv_destroy_srq"));
            cqs.iter().for_each(|c| ok(ibv_destroy_cq(*c), "ibv_destroy_cq"));
        }
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        // SAFETY: live objects, destroyed once; the tests destroyed what depends on them.
        unsafe {
            ok(ibv_dereg_mr(self.mr), "ibv_dereg_mr");
            ok(ibv_destroy_comp_channel(self.channel), "ibv_destroy_comp_channel");
            ok(ibv_dealloc_pd(self.pd), "ibv_dealloc_pd");
            ibv_close_device(self.context);
        }
    }
}
