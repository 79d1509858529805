//! Attributes: what an IA offers, what an EP or SRQ is made with.

use crate::types::{CompletionFlags, Count, Qos, ServiceType, WATERMARK_INFINITE};
use std::net::IpAddr;

/// What an IA offers (`DAT_IA_ATTR`), from the device.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct IaAttr {
    /// The verbs device's name.
    pub adapter_name: String,
    /// Vendor id and part id of the device.
    pub vendor_name: String,
    /// Firmware version, as the device says it.
    pub firmware_version: String,
    /// Hardware version, as the device says it.
    pub hardware_version: u32,
    /// The address that peers connect to.
    pub ia_address: IpAddr,
    /// EPs at most.
    pub max_eps: Count,
    /// DTOs of one EP and direction at most.
    pub max_dto_per_ep: Count,
    /// RDMA Reads under way at once that one EP can answer.
    pub max_rdma_read_per_ep_in: Count,
    /// RDMA Reads under way at once that one EP can ask.
    pub max_rdma_read_per_ep_out: Count,
    /// RDMA Reads under way at once that all EPs together can answer.
    pub max_rdma_read_in: Count,
    /// RDMA Reads under way at once that all EPs together can ask.
    pub max_rdma_read_out: Count,
    /// Whether each EP can answer its maximum, whatever the others do.
    pub rdma_reads_guaranteed: bool,
    /// EVDs at most.
    pub max_evds: Count,
    /// Longest EVD.
    pub max_evd_qlen: Count,
    /// Segments of one Send or receive at most.
    pub max_iov_segments_per_dto: Count,
    /// Segments of one RDMA Read at most.
    pub max_iov_segments_per_rdma_read: Count,
    /// Segments of one RDMA Write at most.
    pub max_iov_segments_per_rdma_write: Count,
    /// LMRs at most.
    pub max_lmrs: Count,
    /// Longest LMR in bytes.
    pub max_lmr_block_size: u64,
    /// PZs at most.
    pub max_pzs: Count,
    /// Longest message in bytes.
    pub max_message_size: u32,
    /// Longest RDMA in bytes.
    pub max_rdma_size: u32,
    /// Bytes in a packet of its port at most.
    pub mtu: u32,
    /// Whether there are atomic operations on peers' memory (IB extension).
    pub atomics: bool,
    /// Whether EPs can be of service type UD (IB extension).
    pub datagrams: bool,
    /// RMRs at most; 0 where the device has no memory windows.
    pub max_rmrs: Count,
    /// Whether the addresses of LMRs, and of RMRs for an EP, can count from 0.
    pub zero_based: bool,
    /// Whether a Send can invalidate an RMR context of the peer.
    pub remote_invalidate: bool,
    /// SRQs at most (R264).
    pub max_srqs: Count,
    /// EPs on one SRQ at most (R264).
    pub max_ep_per_srq: Count,
    /// Deepest SRQ (R264).
    pub max_recv_per_srq: Count,
}

/// What the provider does (`DAT_PROVIDER_ATTR`).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ProviderAttr {
    /// "doorbell".
    pub provider_name: &'static str,
    /// Flags that work (R267).
    pub completion_flags_supported: CompletionFlags,
    /// Bytes of private data in a connect at most.
    pub max_private_data_size: Count,
    /// Whether the provider makes EPs for requests (`DAT_EP_CREATOR_FOR_PSP`): 1, where it is asked to.
    pub ep_creator: u32,
    /// TRUE (R259).
    pub srq_supported: bool,
    /// Bit set: 0x001 low, 0x010 soft high, 0x100 hard high (R260).
    pub srq_watermarks_supported: Count,
    /// Whether an EP may use an SRQ of another PZ (R135, R136): a matter of the device.
    pub srq_ep_pz_difference_supported: bool,
    /// Bit set: 0x01 available, 0x10 outstanding (R262).
    pub srq_info_supported: Count,
    /// Bit set: 0x01 buffer count, 0x10 span (R263).
    pub ep_recv_info_supported: Count,
    /// FALSE: reaping is enough to see received data (R272).
    pub lmr_sync_req: bool,
    /// `DAT_IOV_CONSUMER`, 0: triplets are copied during the post (R268).
    pub iov_ownership_on_return: u32,
    /// Where RMRs can be good (`DAT_RMR_SCOPE`): 0 on one EP's connection, 1 on those of a PZ, 2 either, as asked.
    pub rmr_scopes: u32,
    /// Which data path carries this IA's receives.
    pub datapath: &'static str,
    /// Why that one.
    pub datapath_reason: String,
}

/// What an EP is made with (`DAT_EP_ATTR`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EpAttr {
    /// Reliable connection or datagrams. For datagrams nothing about RDMA is looked at.
    pub service_type: ServiceType,
    /// Not enforced; 0 means whatever the IA carries. A datagram is no longer than [`IaAttr::mtu`].
    pub max_message_size: u32,
    /// Not enforced.
    pub max_rdma_size: u32,
    /// Kept and told back; connections are best effort.
    pub qos: Qos,
    /// How receive completions notify (the table in section O of the rules).
    pub recv_completion_flags: CompletionFlags,
    /// How request completions notify: UNSIGNALLED or EVD_THRESHOLD, or neither. SUPPRESS, SOLICITED_WAIT and BARRIER_FENCE may be
    /// there as well and have no effect: each request may carry them anyway.
    pub request_completion_flags: CompletionFlags,
    /// Receives posted at once; an SRQ EP stores it and ignores it (R142).
    pub max_recv_dtos: Count,
    /// Requests under way at once, at least.
    pub max_request_dtos: Count,
    /// Segments of a receive; an SRQ EP ignores it (R141).
    pub max_recv_iov: Count,
    /// Segments of a request, at least.
    pub max_request_iov: Count,
    /// RDMA Reads under way at once that this EP answers.
    pub max_rdma_read_in: Count,
    /// RDMA Reads under way at once that this EP asks.
    pub max_rdma_read_out: Count,
    /// Initial soft high watermark; -1 is off (R147).
    pub srq_soft_hw: Count,
    /// Segments of an RDMA Read.
    pub max_rdma_read_iov: Count,
    /// Segments of an RDMA Write.
    pub max_rdma_write_iov: Count,
}

impl Default for EpAttr {
    /// Enough for a control connection: 16 receives, 16 requests, 4 segments, 4 RDMA Reads each way.
    fn default() -> Self {
        Self {
            service_type: ServiceType::Rc,
            max_message_size: 0,
            max_rdma_size: 0,
            qos: Qos::BestEffort,
            recv_completion_flags: CompletionFlags::empty(),
            request_completion_flags: CompletionFlags::empty(),
            max_recv_dtos: 16,
            max_request_dtos: 16,
            max_recv_iov: 4,
            max_request_iov: 4,
            max_rdma_read_in: 4,
            max_rdma_read_out: 4,
            srq_soft_hw: WATERMARK_INFINITE,
            max_rdma_read_iov: 1,
            max_rdma_write_iov: 1,
        }
    }
}

/// What an SRQ is made with (`DAT_SRQ_ATTR`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SrqAttr {
    /// Depth: entries posted, taken or completed and not reaped, all together (R37).
    pub max_recv_dtos: Count,
    /// Segments of one buffer.
    pub max_recv_iov: Count,
    /// Has to be 0 at creation (R12); set it with [`crate::Srq::set_low_watermark`].
    pub low_watermark: Count,
}

impl SrqAttr {
    /// An SRQ of this depth whose buffers have one segment.
    pub fn depth(max_recv_dtos: Count) -> Self {
        Self { max_recv_dtos, max_recv_iov: 1, low_watermark: 0 }
    }
}
