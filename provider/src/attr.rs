//! Attributes: the limits of an IA, and the parameters with which an EP or SRQ is created.

use crate::types::{CompletionFlags, Qos, ServiceType};
use std::net::IpAddr;

/// The limits and features of an IA (`DAT_IA_ATTR`), from the device.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct IaAttr {
    /// The verbs device's name.
    pub device_name: String,
    /// Vendor id and part id of the device.
    pub vendor_name: String,
    /// Firmware version, as the device reports it.
    pub firmware_version: String,
    /// Hardware version, as the device reports it.
    pub hardware_version: u32,
    /// The address that peers connect to.
    pub address: IpAddr,
    /// The largest number of EPs.
    pub max_eps: u32,
    /// The largest depth of an EP: of its requests, or of its receives.
    pub max_ep_depth: u32,
    /// The largest number of concurrent RDMA Reads that one EP can answer.
    pub max_rdma_reads_in: u32,
    /// The largest number of concurrent RDMA Reads that one EP can request.
    pub max_rdma_reads_out: u32,
    /// The largest number of concurrent RDMA Reads that all EPs together can answer.
    pub total_rdma_reads_in: u32,
    /// The largest number of concurrent RDMA Reads that all EPs together can request.
    pub total_rdma_reads_out: u32,
    /// Whether each EP can always answer its maximum, independently of the other EPs.
    pub rdma_reads_guaranteed: bool,
    /// The largest number of EVDs.
    pub max_evds: u32,
    /// The largest depth of an EVD.
    pub max_evd_depth: u32,
    /// The largest number of segments of a Send or receive.
    pub max_segments: u32,
    /// The largest number of segments of an RDMA Read.
    pub max_read_segments: u32,
    /// The largest number of segments of an RDMA Write.
    pub max_write_segments: u32,
    /// The largest number of LMRs.
    pub max_lmrs: u32,
    /// The largest size of an LMR, in bytes.
    pub max_lmr_size: u64,
    /// The largest number of PZs.
    pub max_pzs: u32,
    /// The largest size of a message, in bytes.
    pub max_message_size: u32,
    /// The largest size of an RDMA operation, in bytes.
    pub max_rdma_size: u32,
    /// The largest payload of a packet on the IA's port, in bytes.
    pub mtu: u32,
    /// Whether the device supports atomic operations on peers' memory (IB extension).
    pub atomics: bool,
    /// Whether EPs can be of service type UD (IB extension).
    pub datagrams: bool,
    /// The largest number of RMRs; 0 if the device has no memory windows.
    pub max_rmrs: u32,
    /// Whether the addresses of LMRs, and of RMRs for an EP, can be zero-based.
    pub zero_based: bool,
    /// Whether a Send can invalidate an RMR context of the peer.
    pub remote_invalidate: bool,
    /// The largest number of SRQs (R264).
    pub max_srqs: u32,
    /// The largest number of EPs on one SRQ (R264).
    pub max_eps_per_srq: u32,
    /// The largest depth of an SRQ (R264).
    pub max_srq_depth: u32,
}

/// The features of the provider (`DAT_PROVIDER_ATTR`). Those that only the C interface asks for are
/// hidden.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ProviderAttr {
    /// "doorbell".
    pub provider_name: &'static str,
    /// The completion flags that the provider supports (R267).
    pub completion_flags_supported: CompletionFlags,
    /// The largest private data of a connect, in bytes.
    pub max_private_data_size: usize,
    /// Whether the provider creates EPs for requests (`DAT_EP_CREATOR_FOR_PSP`): 1, if a PSP asks
    /// for EPs.
    #[doc(hidden)]
    pub ep_creator: u32,
    /// TRUE (R259).
    #[doc(hidden)]
    pub srq_supported: bool,
    /// Bit set: 0x001 low, 0x010 soft high, 0x100 hard high (R260).
    #[doc(hidden)]
    pub srq_watermarks_supported: u32,
    /// Whether an EP may use an SRQ of another PZ (R135, R136). Depends on the device.
    pub srq_ep_pz_difference_supported: bool,
    /// Bit set: 0x01 available, 0x10 outstanding (R262).
    #[doc(hidden)]
    pub srq_info_supported: u32,
    /// Bit set: 0x01 buffer count, 0x10 span (R263).
    #[doc(hidden)]
    pub ep_recv_info_supported: u32,
    /// FALSE: received data is visible once its completion is reaped (R272).
    #[doc(hidden)]
    pub lmr_sync_req: bool,
    /// `DAT_IOV_CONSUMER`, 0: triplets are copied during the post (R268).
    #[doc(hidden)]
    pub iov_ownership_on_return: u32,
    /// The scope of RMRs (`DAT_RMR_SCOPE`): 0 one EP's connection, 1 the connections of a PZ, 2
    /// either, as requested.
    #[doc(hidden)]
    pub rmr_scopes: u32,
    /// The data path of this IA: of its posts and of their completions.
    pub datapath: &'static str,
    /// Why that data path was chosen.
    pub datapath_reason: String,
}

/// The parameters with which an EP is created (`DAT_EP_ATTR`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EpAttr {
    /// Reliable connection or datagrams. For datagrams, the RDMA attributes are ignored.
    pub service_type: ServiceType,
    /// Not enforced, and kept for the C interface; 0 means the IA's limit.
    #[doc(hidden)]
    pub max_message_size: u32,
    /// Not enforced, and kept for the C interface.
    #[doc(hidden)]
    pub max_rdma_size: u32,
    /// Kept for the C interface: connections are best effort.
    #[doc(hidden)]
    pub qos: Qos,
    /// How receive completions notify (the table in section O of the rules).
    pub recv_completion_flags: CompletionFlags,
    /// How request completions notify: UNSIGNALLED, EVD_THRESHOLD, or neither. SUPPRESS,
    /// SOLICITED_WAIT and BARRIER_FENCE are allowed and have no effect here: each request may carry
    /// them anyway.
    pub request_completion_flags: CompletionFlags,
    /// The number of receives posted at once. An SRQ EP stores the value and ignores it (R142).
    pub recv_depth: u32,
    /// The smallest number of requests in progress at once that the EP must support.
    pub request_depth: u32,
    /// The number of segments of a receive. An SRQ EP ignores it (R141).
    pub recv_segments: u32,
    /// The smallest number of segments of a request that the EP must support.
    pub request_segments: u32,
    /// The number of concurrent RDMA Reads that this EP answers, up to
    /// [`IaAttr::max_rdma_reads_in`]. A connection has the smaller number of both sides.
    pub rdma_reads_in: u32,
    /// The number of concurrent RDMA Reads that this EP requests, up to
    /// [`IaAttr::max_rdma_reads_out`]. Further Reads wait in the device.
    pub rdma_reads_out: u32,
    /// Initial soft high watermark; `None` is off (R147).
    pub soft_high_watermark: Option<u32>,
    /// The number of segments of an RDMA Read.
    pub rdma_read_segments: u32,
    /// The number of segments of an RDMA Write.
    pub rdma_write_segments: u32,
    /// How the EP's connection retries. DAT has no such attribute.
    pub retry: RetryAttr,
    /// The largest length of inline data that the EP must support, in bytes:
    /// [`Ep::send_inline`](crate::Ep::send_inline). Larger entries in the send queue may
    /// take more memory. DAT has no such attribute.
    pub max_inline: u32,
    /// An event says that nothing of an ended connection is left on the device:
    /// [`Event::Drained`](crate::Event::Drained). DAT has no such attribute.
    pub tells_drained: bool,
}

/// How a connection deals with a peer that does not answer, or that has no receive posted. Each EP
/// may have values of its own; `None` stands for the value that it would have without them.
///
/// ```
/// use doorbell::{EpAttr, RetryAttr};
///
/// // A message that finds no receive posted breaks the connection at once.
/// let retry = RetryAttr { rnr_retry: Some(0), ..RetryAttr::default() };
/// let attr = EpAttr { retry, ..EpAttr::default() };
/// # assert_eq!(attr.retry.timeout, None);
/// ```
///
/// # References
/// ibv_modify_qp(3): `rnr_retry`, `min_rnr_timer`, `retry_cnt` and `timeout`. rdma_connect(3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RetryAttr {
    /// How often this EP repeats a request if the peer has no receive posted: 0 to 6 times; 7
    /// repeats without end. `None`: as often as the peer asked for when the connection was set up,
    /// which is [`IaBuilder::rnr_retry`](crate::IaBuilder::rnr_retry) of a peer with this
    /// provider.
    pub rnr_retry: Option<u8>,
    /// How long the peer waits before it repeats a request for which this EP had no receive posted:
    /// a code, 0 to 31. 1 is 0.01 ms, 12 is 0.64 ms, 26 is 81.92 ms, 31 is 491.52 ms, and 0 is
    /// 655.36 ms. `None`: [`IaBuilder::rnr_timer`](crate::IaBuilder::rnr_timer).
    pub rnr_timer: Option<u8>,
    /// How often this EP repeats a request that the peer has not acknowledged: 0 to 7 times.
    /// `None`: as often as the connecting side asked for, which is 7 times with this provider.
    pub retry_count: Option<u8>,
    /// How long this EP waits for an acknowledgement: 4.096 microseconds times 2 to this power, 1
    /// to 31; 0 waits without end. Devices may wait longer. `None`: what rdma_cm computes for the
    /// route.
    pub timeout: Option<u8>,
}

/// How the device treats a connection at this moment ([`Ep::connection`](crate::Ep::connection)).
/// [`RetryAttr`] explains the values. Devices may round numbers of RDMA Reads up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConnectionAttr {
    /// As [`RetryAttr::rnr_retry`].
    pub rnr_retry: u8,
    /// As [`RetryAttr::rnr_timer`].
    pub rnr_timer: u8,
    /// As [`RetryAttr::retry_count`].
    pub retry_count: u8,
    /// As [`RetryAttr::timeout`].
    pub timeout: u8,
    /// The number of concurrent RDMA Reads that the EP answers: the smaller of its own
    /// [`EpAttr::rdma_reads_in`] and the number that the peer requests at most.
    pub rdma_reads_in: u8,
    /// The number of concurrent RDMA Reads that the EP requests: the smaller of its own
    /// [`EpAttr::rdma_reads_out`] and the number that the peer answers.
    pub rdma_reads_out: u8,
    /// The largest payload of a packet, in bytes.
    pub mtu: u32,
}

impl Default for EpAttr {
    /// Defaults for a control connection: 16 receives, 16 requests, 4 segments, 4 RDMA Reads each
    /// way.
    fn default() -> Self {
        Self {
            service_type: ServiceType::Rc,
            max_message_size: 0,
            max_rdma_size: 0,
            qos: Qos::BestEffort,
            recv_completion_flags: CompletionFlags::empty(),
            request_completion_flags: CompletionFlags::empty(),
            recv_depth: 16,
            request_depth: 16,
            recv_segments: 4,
            request_segments: 4,
            rdma_reads_in: 4,
            rdma_reads_out: 4,
            soft_high_watermark: None,
            rdma_read_segments: 1,
            rdma_write_segments: 1,
            retry: RetryAttr::default(),
            max_inline: 0,
            tells_drained: false,
        }
    }
}
