//! Attributes of a device and of the provider, in DAT's terms.

use crate::datapath::DataPath;
use crate::types::{CompletionFlags, MAX_IOV, MAX_PRIVATE_DATA};
use crate::{IaAttr, ProviderAttr};
use rxe_fallback::{AtomicCap, Context, Transport};
use std::net::IpAddr;

pub(super) fn ia_attr(context: &Context, port: u8, address: IpAddr, path: DataPath) -> IaAttr {
    let a = context.attributes();
    // DAT has one number for all DTOs. A receive of an SRQ may take fewer segments than one of a
    // QP.
    let sge = a.max_sge.min(a.max_srq_sge).min(MAX_IOV as u32);
    let port = context.port(port).ok();
    let max_message = port.as_ref().map_or(1 << 30, |port| port.max_msg_sz.min(1 << 30));
    IaAttr {
        device_name: context.name().to_owned(),
        vendor_name: format!("{:#x} part {}", a.vendor_id, a.vendor_part_id),
        firmware_version: a.fw_ver.clone(),
        hardware_version: a.hw_ver,
        address,
        max_eps: a.max_qp,
        max_ep_depth: a.max_qp_wr,
        max_rdma_reads_in: a.max_qp_rd_atom.min(255),
        max_rdma_reads_out: a.max_qp_init_rd_atom.min(255),
        // 0: the device has no limit for their sum.
        total_rdma_reads_in: if a.max_res_rd_atom == 0 {
            a.max_qp_rd_atom.min(255).saturating_mul(a.max_qp)
        } else {
            a.max_res_rd_atom
        },
        total_rdma_reads_out: a.max_qp_init_rd_atom.min(255).saturating_mul(a.max_qp),
        rdma_reads_guaranteed: a.max_res_rd_atom == 0
            || a.max_res_rd_atom / a.max_qp.max(1) >= a.max_qp_rd_atom.min(255),
        max_evds: a.max_cq,
        max_evd_depth: a.max_cqe,
        max_segments: sge,
        max_read_segments: if a.max_sge_rd == 0 { sge } else { sge.min(a.max_sge_rd) },
        max_write_segments: sge,
        max_lmrs: a.max_mr,
        max_lmr_size: a.max_mr_size,
        max_pzs: a.max_pd,
        max_message_size: max_message,
        max_rdma_size: max_message,
        mtu: port.map_or(0, |port| port.active_mtu),
        atomics: a.atomic_cap != AtomicCap::None,
        datagrams: context.transport() == Transport::Ib,
        max_rmrs: if a.memory_windows || a.memory_windows_type2 { a.max_mw } else { 0 },
        // The registration sets the first address of an LMR, and every device supports this.
        zero_based: true,
        remote_invalidate: a.memory_windows_type2 || a.memory_management,
        max_srqs: a.max_srq,
        max_eps_per_srq: a.max_qp,
        max_srq_depth: a.max_srq_wr.min(a.max_cqe).min(path.max_depth()),
    }
}

pub(super) fn provider_attr(context: &Context, path: DataPath, why: String) -> ProviderAttr {
    ProviderAttr {
        provider_name: "doorbell",
        completion_flags_supported: CompletionFlags::all(),
        max_private_data_size: MAX_PRIVATE_DATA,
        ep_creator: 1,
        srq_supported: true,
        srq_watermarks_supported: 0x111,
        // mlx5 looks an SRQ's buffers up in the SRQ's PD; rxe looks them up in the QP's PD.
        srq_ep_pz_difference_supported: context.driver().starts_with("mlx5"),
        srq_info_supported: 0x11,
        ep_recv_info_supported: 0x11,
        lmr_sync_req: false,
        iov_ownership_on_return: 0,
        rmr_scopes: match (context.attributes().memory_windows, context.attributes().memory_windows_type2) {
            (true, true) => 2,
            (true, false) => 1,
            (false, _) => 0,
        },
        datapath: path.name(),
        datapath_reason: why,
    }
}
