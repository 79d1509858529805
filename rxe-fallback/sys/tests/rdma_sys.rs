//! Types that cross between this crate and `rdma-sys`: the offsets of their members are the same.

use std::mem::offset_of;

use doorbell_sys as ours;

macro_rules! same {
    ($($name:ident { $($field:ident),* $(,)? })*) => {$(
        $(assert_eq!(
            offset_of!(ours::$name, $field),
            offset_of!(rdma_sys::$name, $field),
            concat!(stringify!($name), "::", stringify!($field)),
        );)*
    )*};
}

#[test]
fn members_have_the_same_offsets() {
    same! {
        ibv_context { device, ops, cmd_fd, async_fd, num_comp_vectors, abi_compat }
        ibv_pd { context, handle }
        ibv_mr { context, pd, addr, length, handle, lkey, rkey }
        ibv_mw { context, pd, rkey, handle, type_ }
        ibv_cq { context, channel, cq_context, handle, cqe, mutex, cond, comp_events_completed }
        ibv_srq { context, srq_context, pd, handle, mutex, cond, events_completed }
        ibv_qp { context, qp_context, pd, send_cq, recv_cq, srq, handle, qp_num, state, qp_type, events_completed }
        ibv_qp_ex { qp_base, comp_mask, wr_id, wr_flags, wr_send, wr_start, wr_complete, wr_abort }
        ibv_comp_channel { context, fd, refcnt }
        ibv_sge { addr, length, lkey }
        ibv_recv_wr { wr_id, next, sg_list, num_sge }
        ibv_send_wr { wr_id, next, sg_list, num_sge, opcode, send_flags, wr, qp_type, bind_mw_tso_union }
        ibv_wc { wr_id, status, opcode, vendor_err, byte_len, qp_num, src_qp, wc_flags, pkey_index, slid, sl }
        ibv_async_event { element, event_type }
        ibv_qp_init_attr { qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all }
        ibv_qp_attr { qp_state, path_mtu, dest_qp_num, cap, ah_attr, alt_ah_attr, timeout, rate_limit }
        ibv_srq_init_attr { srq_context, attr }
        ibv_port_attr { state, max_mtu, active_mtu, gid_tbl_len, port_cap_flags, lid, link_layer, flags }
        rdma_cm_id { verbs, channel, context, qp, route, ps, port_num, event, srq, pd, qp_type }
        rdma_cm_event { id, listen_id, event, status, param }
        rdma_conn_param { private_data, private_data_len, responder_resources, srq, qp_num }
    }
}

#[test]
fn pointers_come_back_as_they_went() {
    let mut segment = ours::ibv_sge { addr: 1, length: 2, lkey: 3 };
    let pointer = &raw mut segment;
    assert_eq!(ours::from_rdma_sys::<ours::ibv_sge>(ours::to_rdma_sys(pointer)), pointer);
}

doorbell_sys::conversions! { mod rdma = rdma_sys }

#[test]
fn conversions_of_all_types_compile_for_rdma_sys() {
    let mut segment = ours::ibv_sge { addr: 1, length: 2, lkey: 3 };
    let theirs: *mut rdma_sys::ibv_sge = rdma::to(&raw mut segment);
    assert_eq!(rdma::from::<ours::ibv_sge>(theirs), &raw mut segment);
}
