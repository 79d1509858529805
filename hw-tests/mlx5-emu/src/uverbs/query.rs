//! The attributes of the device and of its port.

use std::io;

use super::command::{Answer, Command};
use super::limits::*;
use crate::device::Device;
use crate::host::{clock, gids, sys};
use crate::objects::rss;
use crate::objects::{MAX_CQ, MAX_KEYS, MAX_PD, MAX_QP, MAX_SRQ, MAX_TABLES, QpType};
use crate::wire::groups::MAX_GROUPS;

/// Most CQEs in a compressed one.
const MAX_COMPRESSED_CQES: u32 = 64;

fn device_attributes() -> Answer {
    const BAD_PKEY_CNTR: u32 = 1 << 1;
    const BAD_QKEY_CNTR: u32 = 1 << 2;
    const CURR_QP_STATE_MOD: u32 = 1 << 7;
    const PORT_ACTIVE_EVENT: u32 = 1 << 10;
    const SYS_IMAGE_GUID: u32 = 1 << 11;
    const RC_RNR_NAK_GEN: u32 = 1 << 12;
    const MEM_WINDOW: u32 = 1 << 17;
    const XRC: u32 = 1 << 20;
    const MEM_MGT_EXTENSIONS: u32 = 1 << 21;
    const MEM_WINDOW_TYPE_2B: u32 = 1 << 24;
    let flags = BAD_PKEY_CNTR
        | BAD_QKEY_CNTR
        | CURR_QP_STATE_MOD
        | PORT_ACTIVE_EVENT
        | SYS_IMAGE_GUID
        | RC_RNR_NAK_GEN
        | MEM_WINDOW
        | XRC
        | MEM_MGT_EXTENSIONS
        | MEM_WINDOW_TYPE_2B;
    let guid = gids::NODE_GUID.to_be_bytes();
    let mut out = Answer::default();
    out.u64(0) // fw_ver 0.0.0000
        .bytes(&guid)
        .bytes(&guid)
        .u64(u64::MAX) // max_mr_size
        .u64(0xffff_ffff_ffff_f000) // page_size_cap
        .u32(0x02c9) // vendor_id
        .u32(4125) // vendor_part_id: ConnectX-6 Dx
        .u32(0) // hw_ver
        .u32(MAX_QP as u32)
        .u32(MAX_QP_WR)
        .u32(flags)
        .u32(MAX_SGE)
        .u32(MAX_SGE) // max_sge_rd
        .u32(MAX_CQ as u32)
        .u32(MAX_CQE)
        .u32(MAX_KEYS as u32)
        .u32(MAX_PD as u32)
        .u32(16) // max_qp_rd_atom
        .u32(0)
        .u32(16 * MAX_QP as u32) // max_res_rd_atom
        .u32(16) // max_qp_init_rd_atom
        .u32(0)
        .u32(1) // atomic_cap: HCA
        .u32(0)
        .u32(0)
        .u32(MAX_KEYS as u32) // max_mw
        .u32(0)
        .u32(0)
        .u32(MAX_GROUPS) // max_mcast_grp
        .u32(MAX_QP as u32) // max_mcast_qp_attach
        .u32(i32::MAX as u32) // max_total_mcast_qp_attach
        .u32(i32::MAX as u32) // max_ah
        .u32(0)
        .u32(0)
        .u32(MAX_SRQ as u32)
        .u32(MAX_SRQ_WR)
        .u32(31) // max_srq_sge
        .u16(1) // max_pkeys
        .u8(16) // local_ca_ack_delay
        .u8(1) // phys_port_cnt
        .zeros(4);
    out
}

impl Device {
    pub(super) fn cmd_query_device(&mut self, command: &Command) -> io::Result<()> {
        let out = device_attributes();
        command.need(8, out.0.len())?;
        command.answer(&out.0)
    }

    pub(super) fn cmd_query_device_ex(&mut self, command: &Command) -> io::Result<()> {
        command.need(8, 0)?;
        if command.core().u32(0) != 0 {
            return Err(sys::errno(libc::EINVAL));
        }
        const ODP: u64 = 1;
        const ODP_IMPLICIT: u64 = 2;
        const ODP_SEND: u32 = 1;
        // Send, receive, write, read, atomics, receive through an SRQ.
        const ODP_RC: u32 = 0x3f;
        let mut out = device_attributes();
        let length_at = out.0.len() + 4;
        out.u32(0) // comp_mask
            .u32(0) // response_length
            .u64(ODP | ODP_IMPLICIT)
            .u32(ODP_RC)
            .u32(0)
            .u32(ODP_SEND) // UD
            .u32(0)
            .u64(u64::MAX) // timestamp_mask
            .u64(clock::KHZ)
            .u64(0) // device_cap_flags_ex
            .u32(1 << QpType::RawPacket as u32) // rss_caps: QP types, tables, their size
            .u32(MAX_TABLES as u32)
            .u32(1 << MAX_LOG_TABLE)
            .u32(0)
            .u32(MAX_QP as u32) // max_wq_type_rq
            .u32(0) // raw_packet_caps
            .zeros(24) // tm_caps
            .zeros(8) // cq_moderation_caps
            .u64(MAX_DM_SIZE)
            .u32(ODP_RC) // XRC
            .u32(0);
        let length = out.0.len().min(command.core_out.len) as u32;
        out.0[length_at..length_at + 4].copy_from_slice(&length.to_ne_bytes());
        command.answer(&out.0)?;
        if command.uhw_out.len >= 8 {
            // No offloads of any kind: everything but CQE formats is zero.
            const CQE_128B_COMPRESSION: u32 = 1;
            const CQE_128B_PAD: u32 = 2;
            let mut uhw = Answer::default();
            uhw.u32(0) // comp_mask
                .u32(command.uhw_out.len as u32)
                .zeros(8) // tso_caps
                .u64(rss::covers::ALL) // rss_caps
                .u64(rss::TOEPLITZ.into())
                .u32(MAX_COMPRESSED_CQES)
                .u32(MINI_CQE_FORMATS)
                .zeros(16) // packet_pacing_caps
                .u32(0) // multi-packet send WQEs: none
                .u32(CQE_128B_COMPRESSION | CQE_128B_PAD);
            uhw.zeros(command.uhw_out.len.saturating_sub(uhw.0.len()));
            command.answer_uhw(&uhw.0)?;
        }
        Ok(())
    }

    pub(super) fn cmd_query_port(&mut self, command: &Command) -> io::Result<()> {
        command.need(16, 40)?;
        if command.core().u8(8) != 1 {
            return Err(sys::errno(libc::EINVAL));
        }
        const CM_SUP: u32 = 1 << 16;
        const IP_BASED_GIDS: u32 = 1 << 26;
        let mut out = Answer::default();
        out.u32(CM_SUP | IP_BASED_GIDS)
            .u32(MAX_MESSAGE)
            .u32(0)
            .u32(0)
            .u32(gids::GID_TABLE_LEN as u32)
            .u16(1) // pkey_tbl_len
            .u16(0) // lid
            .u16(0)
            .u8(if self.card.port_up { 4 } else { 1 }) // ACTIVE, DOWN
            .u8(5) // max_mtu 4096
            .u8(5) // active_mtu 4096
            .u8(0)
            .u8(0)
            .u8(0)
            .u8(0)
            .u8(0)
            .u8(2) // active_width 4X
            .u8(32) // active_speed EDR
            .u8(if self.card.port_up { 5 } else { 3 }) // LINK_UP, DISABLED
            .u8(2) // link_layer Ethernet
            .u8(1) // flags: GRH required
            .u8(0);
        command.answer(&out.0)
    }
}
