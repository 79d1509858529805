//! The structures of the DAT 2.0 headers with their C layout. Handles and pointers that are only
//! passed on are integers.
//!
//! A field's comment gives the header's name where the name here differs. Sizes are asserted here;
//! the C programs in hw-tests/c check the offsets, which follow from `repr(C)`. Structures that are
//! written to C have named padding fields, which are written as well. [`IntoBytes`] excludes types
//! with other padding, so C gets no uninitialised byte.

use super::sockaddr::SockAddr;
use provider::inside::Destination;
use provider::{AddressHandle, LmrTriplet, RmrTriplet};
use std::net::SocketAddr;
use zerocopy::IntoBytes;

/// `DAT_NAME_MAX_LENGTH`.
pub(super) const NAME_LEN: usize = 256;

/// A name in a fixed-length array. It always ends with NUL; a longer name is truncated.
pub(super) fn name(text: &str) -> [u8; NAME_LEN] {
    let mut bytes = [0; NAME_LEN];
    let n = text.len().min(NAME_LEN - 1);
    bytes[..n].copy_from_slice(&text.as_bytes()[..n]);
    bytes
}

/// Two consecutive 32-bit fields.
pub(super) fn two(first: u32, second: u32) -> u64 {
    let mut bytes = [0; 8];
    bytes[..4].copy_from_slice(&first.to_ne_bytes());
    bytes[4..].copy_from_slice(&second.to_ne_bytes());
    u64::from_ne_bytes(bytes)
}

macro_rules! sized {
    ($($name:ident $size:literal),* $(,)?) => {$(
        const _: () = assert!(size_of::<$name>() == $size);
    )*};
}

sized! {
    ProviderInfo 268, IaAttr 688, ProviderAttr 520, EpAttr 88, EpParam 184, SrqAttr 12, SrqParam 48, Event 120, EvdParam 32,
    LmrParam 80, RmrParam 48, CnoParam 32, PspParam 32, RspParam 32, CspParam 32, Comm 12, PzParam 8, CrParam 40, Agent 16, Region 16, NamedAttr 16,
    LmrTriplet 16, RmrTriplet 16, AddrHandle 40,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct ProviderInfo {
    pub(super) ia_name: [u8; NAME_LEN],
    pub(super) major: u32,
    pub(super) minor: u32,
    pub(super) thread_safe: u32,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct NamedAttr {
    pub(super) name: usize,
    pub(super) value: usize,
}

#[derive(Clone, Copy, IntoBytes)]
#[repr(C)]
pub(super) struct IaAttr {
    pub(super) adapter_name: [u8; NAME_LEN],
    pub(super) vendor_name: [u8; NAME_LEN],
    pub(super) hardware_version: [u32; 2],
    pub(super) firmware_version: [u32; 2],
    pub(super) ia_address_ptr: usize,
    pub(super) max_eps: i32,
    pub(super) max_dto_per_ep: i32,
    pub(super) max_rdma_read_per_ep_in: i32,
    pub(super) max_rdma_read_per_ep_out: i32,
    pub(super) max_evds: i32,
    pub(super) max_evd_qlen: i32,
    pub(super) max_iov_segments_per_dto: i32,
    pub(super) max_lmrs: i32,
    pub(super) max_lmr_block_size: u32,
    pub(super) pad: u32,
    pub(super) max_lmr_virtual_address: u64,
    pub(super) max_pzs: i32,
    pub(super) max_message_size: u32,
    pub(super) max_rdma_size: u32,
    pub(super) max_rmrs: i32,
    pub(super) max_rmr_target_address: u64,
    pub(super) max_srqs: i32,
    pub(super) max_ep_per_srq: i32,
    pub(super) max_recv_per_srq: i32,
    pub(super) max_iov_segments_per_rdma_read: i32,
    pub(super) max_iov_segments_per_rdma_write: i32,
    pub(super) max_rdma_read_in: i32,
    pub(super) max_rdma_read_out: i32,
    pub(super) max_rdma_read_per_ep_in_guaranteed: u32,
    pub(super) max_rdma_read_per_ep_out_guaranteed: u32,
    pub(super) zb_supported: u32,
    pub(super) extension_supported: u32,
    pub(super) extension_version: i32,
    pub(super) num_transport_attr: i32,
    pub(super) pad_transport: u32,
    pub(super) transport_attr: usize,
    pub(super) num_vendor_attr: i32,
    pub(super) pad_vendor: u32,
    pub(super) vendor_attr: usize,
}

#[derive(Clone, Copy, IntoBytes)]
#[repr(C)]
pub(super) struct ProviderAttr {
    pub(super) provider_name: [u8; NAME_LEN],
    pub(super) provider_version: [u32; 2],
    pub(super) dapl_version: [u32; 2],
    pub(super) lmr_mem_types_supported: u32,
    pub(super) iov_ownership_on_return: u32,
    pub(super) dat_qos_supported: u32,
    pub(super) completion_flags_supported: u32,
    pub(super) is_thread_safe: u32,
    pub(super) max_private_data_size: i32,
    pub(super) supports_multipath: u32,
    pub(super) ep_creator: u32,
    pub(super) pz_support: u32,
    pub(super) optimal_buffer_alignment: u32,
    pub(super) evd_stream_merging_supported: [[u32; 6]; 6],
    pub(super) srq_supported: u32,
    pub(super) srq_watermarks_supported: i32,
    pub(super) srq_ep_pz_difference_supported: u32,
    pub(super) srq_info_supported: i32,
    pub(super) ep_recv_info_supported: i32,
    pub(super) lmr_sync_req: u32,
    pub(super) dto_async_return_guaranteed: u32,
    pub(super) rdma_write_for_rdma_read_req: u32,
    pub(super) rdma_read_lmr_rmr_context_exposure: u32,
    pub(super) rmr_scope_supported: u32,
    pub(super) is_signal_safe: u32,
    pub(super) ha_supported: u32,
    pub(super) ha_loadbalancing: u32,
    pub(super) num_provider_specific_attr: i32,
    pub(super) provider_specific_attr: usize,
}

#[derive(Clone, Copy, IntoBytes)]
#[repr(C)]
pub(super) struct EpAttr {
    pub(super) service_type: u32,
    pub(super) max_message_size: u32,
    pub(super) max_rdma_size: u32,
    pub(super) qos: u32,
    pub(super) recv_completion_flags: u32,
    pub(super) request_completion_flags: u32,
    pub(super) max_recv_dtos: i32,
    pub(super) max_request_dtos: i32,
    pub(super) max_recv_iov: i32,
    pub(super) max_request_iov: i32,
    pub(super) max_rdma_read_in: i32,
    pub(super) max_rdma_read_out: i32,
    pub(super) srq_soft_hw: i32,
    pub(super) max_rdma_read_iov: i32,
    pub(super) max_rdma_write_iov: i32,
    pub(super) ep_transport_specific_count: i32,
    pub(super) ep_transport_specific: usize,
    pub(super) ep_provider_specific_count: i32,
    pub(super) pad: u32,
    pub(super) ep_provider_specific: usize,
}

#[derive(Clone, Copy, IntoBytes)]
#[repr(C)]
pub(super) struct EpParam {
    pub(super) ia_handle: usize,
    pub(super) ep_state: u32,
    pub(super) comm: Comm,
    pub(super) local_ia_address_ptr: usize,
    pub(super) local_port_qual: u64,
    pub(super) remote_ia_address_ptr: usize,
    pub(super) remote_port_qual: u64,
    pub(super) pz_handle: usize,
    pub(super) recv_evd_handle: usize,
    pub(super) request_evd_handle: usize,
    pub(super) connect_evd_handle: usize,
    pub(super) srq_handle: usize,
    pub(super) ep_attr: EpAttr,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct SrqAttr {
    pub(super) max_recv_dtos: i32,
    pub(super) max_recv_iov: i32,
    pub(super) low_watermark: i32,
}

#[derive(Clone, Copy, IntoBytes)]
#[repr(C)]
pub(super) struct SrqParam {
    pub(super) ia_handle: usize,
    pub(super) srq_state: u32,
    pub(super) pad: u32,
    pub(super) pz_handle: usize,
    pub(super) max_recv_dtos: i32,
    pub(super) max_recv_iov: i32,
    pub(super) low_watermark: i32,
    pub(super) available_dto_count: i32,
    pub(super) outstanding_dto_count: i32,
    pub(super) pad_end: u32,
}

/// An event; `data` is a union of structures, `extension` is filled for events of the IB extension.
#[derive(Clone, Copy, IntoBytes)]
#[repr(C)]
pub(super) struct Event {
    pub(super) number: u32,
    pub(super) pad: u32,
    pub(super) evd: usize,
    pub(super) data: [u64; 5],
    pub(super) extension: [u64; 8],
}

#[derive(Clone, Copy, IntoBytes)]
#[repr(C)]
pub(super) struct EvdParam {
    pub(super) ia_handle: usize,
    pub(super) evd_qlen: i32,
    pub(super) evd_state: u32,
    pub(super) cno_handle: usize,
    pub(super) evd_flags: u32,
    pub(super) pad: u32,
}

/// `DAT_REGION_DESCRIPTION`: an address, an LMR handle, or an address and a cookie.
#[derive(Clone, Copy, IntoBytes)]
#[repr(C)]
pub(super) struct Region {
    pub(super) first: usize,
    pub(super) second: usize,
}

/// `DAT_LMR_COOKIE`.
pub(super) type LmrCookie = [u8; 40];

#[derive(Clone, Copy, IntoBytes)]
#[repr(C)]
pub(super) struct LmrParam {
    pub(super) ia_handle: usize,
    pub(super) mem_type: u32,
    pub(super) pad: u32,
    pub(super) region: Region,
    pub(super) length: u64,
    pub(super) pz_handle: usize,
    pub(super) mem_priv: u32,
    pub(super) va_type: u32,
    pub(super) lmr_context: u32,
    pub(super) rmr_context: u32,
    pub(super) registered_size: u64,
    pub(super) registered_address: u64,
}

#[derive(Clone, Copy, IntoBytes)]
#[repr(C)]
pub(super) struct RmrParam {
    pub(super) ia_handle: usize,
    pub(super) pz_handle: usize,
    /// A `DAT_LMR_TRIPLET`.
    pub(super) lmr_triplet: [u64; 2],
    pub(super) mem_priv: u32,
    pub(super) rmr_context: u32,
    pub(super) rmr_scope: u32,
    pub(super) va_type: u32,
}

/// `DAT_OS_WAIT_PROXY_AGENT`: a function of the program and its argument.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Agent {
    pub(super) instance_data: usize,
    pub(super) function: Option<unsafe extern "C" fn(usize, usize)>,
}

#[derive(Clone, Copy, IntoBytes)]
#[repr(C)]
pub(super) struct CnoParam {
    pub(super) ia_handle: usize,
    pub(super) proxy_type: u32,
    pub(super) pad: u32,
    /// A union: agent, descriptor, or nothing.
    pub(super) proxy: [u64; 2],
}

#[derive(Clone, Copy, IntoBytes)]
#[repr(C)]
pub(super) struct PspParam {
    pub(super) ia_handle: usize,
    pub(super) conn_qual: u64,
    pub(super) evd_handle: usize,
    pub(super) psp_flags: u32,
    pub(super) pad: u32,
}

#[derive(Clone, Copy, IntoBytes)]
#[repr(C)]
pub(super) struct RspParam {
    pub(super) ia_handle: usize,
    pub(super) conn_qual: u64,
    pub(super) evd_handle: usize,
    pub(super) ep_handle: usize,
}

/// `DAT_COMM`.
#[derive(Clone, Copy, Debug, IntoBytes)]
#[repr(C)]
pub(super) struct Comm {
    pub(super) domain: i32,
    pub(super) kind: i32,
    pub(super) protocol: i32,
}

impl Comm {
    pub(super) fn new(comm: provider::inside::Comm) -> Self {
        Self { domain: comm.domain, kind: comm.kind, protocol: comm.protocol }
    }
}

#[derive(Clone, Copy, IntoBytes)]
#[repr(C)]
pub(super) struct CspParam {
    pub(super) ia_handle: usize,
    pub(super) comm: usize,
    pub(super) address_ptr: usize,
    pub(super) evd_handle: usize,
}

#[derive(Clone, Copy, IntoBytes)]
#[repr(C)]
pub(super) struct PzParam {
    pub(super) ia_handle: usize,
}

#[derive(Clone, Copy, IntoBytes)]
#[repr(C)]
pub(super) struct CrParam {
    pub(super) remote_ia_address_ptr: usize,
    pub(super) remote_port_qual: u64,
    pub(super) private_data_size: i32,
    pub(super) pad: u32,
    pub(super) private_data: usize,
    pub(super) local_ep_handle: usize,
}

/// `DAT_IB_ADDR_HANDLE`. The header's pointer `ah` is a number here and is never dereferenced.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct AddrHandle {
    ah: u64,
    qpn: u32,
    /// A sockaddr_in or sockaddr_in6.
    ia_addr: [u8; 28],
}

impl AddrHandle {
    pub(super) fn new(handle: &AddressHandle) -> Self {
        Self {
            ah: handle.token,
            qpn: handle.qpn,
            ia_addr: SockAddr::new(SocketAddr::new(handle.address, 0)).short(),
        }
    }

    /// The value as the data of an event.
    pub(super) fn words(&self) -> [u64; 5] {
        let mut bytes = [0; 40];
        bytes[..8].copy_from_slice(&self.ah.to_ne_bytes());
        bytes[8..12].copy_from_slice(&self.qpn.to_ne_bytes());
        bytes[12..].copy_from_slice(&self.ia_addr);
        let mut words = [0; 5];
        for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(8)) {
            *word = u64::from_ne_bytes(bytes.try_into().expect("chunks of eight"));
        }
        words
    }

    pub(super) fn destination(&self) -> Destination {
        Destination { token: self.ah, qpn: self.qpn }
    }
}
