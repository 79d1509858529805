//! Sizes and offsets of the structs that cross into libibverbs and librdmacm, as this machine's C
//! compiler sees them, against those of the Rust types.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::mem::offset_of;
use std::process::Command;

use rxe_fallback::{Sge, sys};

/// What is compared: the C expression, and its value in Rust.
#[derive(Default)]
struct Checks(Vec<(String, usize)>);

macro_rules! layout {
    ($checks:ident, $c:literal, $rust:ty $(, $c_field:literal = $($field:ident).+)* $(,)?) => {
        $checks.0.push((format!("sizeof({})", $c), size_of::<$rust>()));
        $checks.0.push((format!("_Alignof({})", $c), align_of::<$rust>()));
        $($checks.0.push((format!("offsetof({}, {})", $c, $c_field), offset_of!($rust, $($field).+)));)*
    };
}

#[rustfmt::skip]
fn checks() -> Checks {
    let mut checks = Checks::default();
    layout!(checks, "struct ibv_sge", Sge, "addr" = addr, "length" = len, "lkey" = lkey);
    layout!(checks, "struct ibv_sge", sys::ibv_sge, "addr" = addr, "length" = length, "lkey" = lkey);
    layout!(checks, "union ibv_gid", sys::ibv_gid);
    layout!(checks, "struct ibv_gid_entry", sys::ibv_gid_entry,
        "gid" = gid, "gid_index" = gid_index, "port_num" = port_num, "gid_type" = gid_type, "ndev_ifindex" = ndev_ifindex);
    layout!(checks, "struct ibv_grh", sys::ibv_grh, "sgid" = sgid, "dgid" = dgid);
    layout!(checks, "struct ibv_wc", sys::ibv_wc,
        "wr_id" = wr_id, "status" = status, "opcode" = opcode, "vendor_err" = vendor_err, "byte_len" = byte_len,
        "imm_data" = imm_data_invalidated_rkey_union, "invalidated_rkey" = imm_data_invalidated_rkey_union,
        "qp_num" = qp_num, "src_qp" = src_qp, "wc_flags" = wc_flags, "pkey_index" = pkey_index, "slid" = slid, "sl" = sl,
        "dlid_path_bits" = dlid_path_bits);
    layout!(checks, "struct ibv_recv_wr", sys::ibv_recv_wr,
        "wr_id" = wr_id, "next" = next, "sg_list" = sg_list, "num_sge" = num_sge);
    layout!(checks, "struct ibv_send_wr", sys::ibv_send_wr,
        "wr_id" = wr_id, "next" = next, "sg_list" = sg_list, "num_sge" = num_sge, "opcode" = opcode,
        "send_flags" = send_flags, "imm_data" = imm_data_invalidated_rkey_union,
        "invalidate_rkey" = imm_data_invalidated_rkey_union, "wr" = wr, "qp_type" = qp_type,
        "bind_mw" = bind_mw_tso_union, "tso" = bind_mw_tso_union);
    layout!(checks, "__typeof__(((struct ibv_send_wr *)0)->wr.rdma)", sys::rdma_t,
        "remote_addr" = remote_addr, "rkey" = rkey);
    layout!(checks, "__typeof__(((struct ibv_send_wr *)0)->wr.atomic)", sys::atomic_t,
        "remote_addr" = remote_addr, "compare_add" = compare_add, "swap" = swap, "rkey" = rkey);
    layout!(checks, "__typeof__(((struct ibv_send_wr *)0)->wr.ud)", sys::ud_t,
        "ah" = ah, "remote_qpn" = remote_qpn, "remote_qkey" = remote_qkey);
    layout!(checks, "__typeof__(((struct ibv_send_wr *)0)->bind_mw)", sys::bind_mw_t,
        "mw" = mw, "rkey" = rkey, "bind_info" = bind_info);
    layout!(checks, "__typeof__(((struct ibv_send_wr *)0)->tso)", sys::tso_t, "hdr" = hdr, "hdr_sz" = hdr_sz, "mss" = mss);
    layout!(checks, "struct ibv_mw_bind_info", sys::ibv_mw_bind_info,
        "mr" = mr, "addr" = addr, "length" = length, "mw_access_flags" = mw_access_flags);
    layout!(checks, "struct ibv_mw_bind", sys::ibv_mw_bind,
        "wr_id" = wr_id, "send_flags" = send_flags, "bind_info" = bind_info);
    layout!(checks, "struct ibv_async_event", sys::ibv_async_event, "element" = element, "event_type" = event_type);
    layout!(checks, "struct ibv_global_route", sys::ibv_global_route,
        "dgid" = dgid, "flow_label" = flow_label, "sgid_index" = sgid_index, "hop_limit" = hop_limit,
        "traffic_class" = traffic_class);
    layout!(checks, "struct ibv_ah_attr", sys::ibv_ah_attr,
        "grh" = grh, "dlid" = dlid, "sl" = sl, "src_path_bits" = src_path_bits, "static_rate" = static_rate,
        "is_global" = is_global, "port_num" = port_num);
    layout!(checks, "struct ibv_qp_attr", sys::ibv_qp_attr,
        "qp_state" = qp_state, "path_mtu" = path_mtu, "qkey" = qkey, "rq_psn" = rq_psn, "sq_psn" = sq_psn,
        "dest_qp_num" = dest_qp_num, "qp_access_flags" = qp_access_flags, "cap" = cap, "ah_attr" = ah_attr,
        "alt_ah_attr" = alt_ah_attr, "pkey_index" = pkey_index, "max_rd_atomic" = max_rd_atomic,
        "max_dest_rd_atomic" = max_dest_rd_atomic, "min_rnr_timer" = min_rnr_timer, "port_num" = port_num,
        "timeout" = timeout, "retry_cnt" = retry_cnt, "rnr_retry" = rnr_retry, "rate_limit" = rate_limit);
    layout!(checks, "struct ibv_qp_init_attr", sys::ibv_qp_init_attr,
        "qp_context" = qp_context, "send_cq" = send_cq, "recv_cq" = recv_cq, "srq" = srq, "cap" = cap,
        "qp_type" = qp_type, "sq_sig_all" = sq_sig_all);
    layout!(checks, "struct ibv_srq_init_attr", sys::ibv_srq_init_attr, "srq_context" = srq_context, "attr" = attr);
    layout!(checks, "struct ibv_srq_attr", sys::ibv_srq_attr,
        "max_wr" = max_wr, "max_sge" = max_sge, "srq_limit" = srq_limit);
    layout!(checks, "struct ibv_device_attr", sys::ibv_device_attr,
        "max_mr_size" = max_mr_size, "vendor_id" = vendor_id, "device_cap_flags" = device_cap_flags,
        "atomic_cap" = atomic_cap, "max_srq" = max_srq, "phys_port_cnt" = phys_port_cnt);
    layout!(checks, "struct ibv_port_attr", sys::ibv_port_attr,
        "state" = state, "active_mtu" = active_mtu, "gid_tbl_len" = gid_tbl_len, "lid" = lid, "link_layer" = link_layer);
    layout!(checks, "struct ibv_context", sys::ibv_context, "ops" = ops, "async_fd" = async_fd,
        "num_comp_vectors" = num_comp_vectors);
    layout!(checks, "struct verbs_context", sys::verbs_context, "query_port" = query_port, "sz" = sz, "context" = context);
    layout!(checks, "struct ibv_cq", sys::ibv_cq, "cq_context" = cq_context, "cqe" = cqe);
    layout!(checks, "struct ibv_qp", sys::ibv_qp, "qp_context" = qp_context, "qp_num" = qp_num, "state" = state);
    layout!(checks, "struct ibv_srq", sys::ibv_srq, "srq_context" = srq_context);
    layout!(checks, "struct ibv_mr", sys::ibv_mr, "lkey" = lkey, "rkey" = rkey);
    layout!(checks, "struct ibv_mw", sys::ibv_mw, "rkey" = rkey, "type" = type_);
    layout!(checks, "struct ibv_comp_channel", sys::ibv_comp_channel, "fd" = fd);
    layout!(checks, "struct rdma_ib_addr", sys::rdma_ib_addr, "sgid" = sgid, "dgid" = dgid, "pkey" = pkey);
    layout!(checks, "struct rdma_addr", sys::rdma_addr,
        "src_storage" = src_addr_union, "dst_storage" = dst_addr_union, "addr" = addr);
    layout!(checks, "struct rdma_route", sys::rdma_route, "addr" = addr, "path_rec" = path_rec, "num_paths" = num_paths);
    layout!(checks, "struct rdma_cm_id", sys::rdma_cm_id,
        "verbs" = verbs, "channel" = channel, "context" = context, "qp" = qp, "route" = route, "ps" = ps,
        "port_num" = port_num, "event" = event, "pd" = pd, "qp_type" = qp_type);
    layout!(checks, "struct rdma_event_channel", sys::rdma_event_channel, "fd" = fd);
    layout!(checks, "struct rdma_conn_param", sys::rdma_conn_param,
        "private_data" = private_data, "private_data_len" = private_data_len,
        "responder_resources" = responder_resources, "initiator_depth" = initiator_depth,
        "flow_control" = flow_control, "retry_count" = retry_count, "rnr_retry_count" = rnr_retry_count, "srq" = srq,
        "qp_num" = qp_num);
    layout!(checks, "struct rdma_ud_param", sys::rdma_ud_param,
        "private_data" = private_data, "private_data_len" = private_data_len, "ah_attr" = ah_attr, "qp_num" = qp_num,
        "qkey" = qkey);
    layout!(checks, "struct rdma_cm_event", sys::rdma_cm_event,
        "id" = id, "listen_id" = listen_id, "event" = event, "status" = status, "param" = param);
    checks
}

#[test]
fn structs_have_the_layout_that_the_c_compiler_gives_them() {
    let checks = checks();
    let mut program = String::from(
        "#include <stdio.h>\n#include <stddef.h>\n#include <infiniband/verbs.h>\n#include <rdma/rdma_cma.h>\n\
         int main(void) {\n",
    );
    for (expression, _) in &checks.0 {
        writeln!(program, "printf(\"%s\\t%zu\\n\", \"{expression}\", (size_t)({expression}));").unwrap();
    }
    program.push_str("return 0; }\n");

    let folder = tempfile::tempdir().unwrap();
    let (source, binary) = (folder.path().join("layout.c"), folder.path().join("layout"));
    std::fs::write(&source, program).unwrap();
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    let compiled =
        Command::new(&compiler).arg("-o").arg(&binary).arg(&source).output().expect("a C compiler");
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let output = Command::new(&binary).output().unwrap();
    assert!(output.status.success());

    let in_c: BTreeMap<String, usize> = String::from_utf8(output.stdout)
        .unwrap()
        .lines()
        .map(|line| line.split_once('\t').expect("expression and value"))
        .map(|(expression, value)| (expression.to_owned(), value.parse().unwrap()))
        .collect();
    let different: Vec<String> = checks
        .0
        .iter()
        .filter(|(expression, rust)| in_c[expression] != *rust)
        .map(|(expression, rust)| format!("{expression} is {} in C and {rust} in Rust", in_c[expression]))
        .collect();
    assert!(different.is_empty(), "{}", different.join("\n"));
}
