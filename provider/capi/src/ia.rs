//! IAs.

use super::abi::{IaAttr, ProviderAttr, name};
use super::code::{Code, guard};
use super::convert::{close_flags, optional_evd, to_count};
use super::dat_conf;
use super::handle::Handle;
use super::held::check_ia;
use super::objects::{EvdObject, IaObject, NamedAttrs};
use super::raw::{In, Out};
use super::sockaddr::SockAddr;
use provider::{CloseFlags, Ia, ReturnType, Subtype};
use std::ffi::c_char;
use std::net::SocketAddr;

/// `DAT_IA_FIELD_ALL`.
const IA_FIELDS: u64 = 0x3f_ffff_ffff;
/// `DAT_PROVIDER_FIELD_ALL`.
const PROVIDER_FIELDS: u64 = 0x7fff_ffff;
/// `DAT_EVD_ASYNC_EXISTS`: the program uses the asynchronous EVD of another open of the IA.
const EVD_ASYNC_EXISTS: Handle = Handle(1);
/// `DAT_EVD_OUT_OF_SCOPE`: the answer of a query in that case.
const EVD_OUT_OF_SCOPE: Handle = Handle(2);
/// `DAT_IB_EXTENSION_VERSION`.
const EXTENSION_VERSION: i32 = 209;

pub(super) extern "C" fn ia_open(
    name: In<c_char>,
    async_qlen: i32,
    async_evd: Out<Handle>,
    ia: Out<Handle>,
) -> u32 {
    guard("dat_ia_open", || {
        let name = name.text().ok_or_else(|| Code::null(1))?;
        async_evd.need(3)?;
        ia.need(4)?;
        let wanted = async_evd.get().unwrap_or(Handle::NULL);
        let events = match wanted {
            Handle::NULL => AsyncEvents::New,
            EVD_ASYNC_EXISTS => AsyncEvents::Elsewhere,
            evd => AsyncEvents::To(evd),
        };
        let handle = open(&name, async_qlen, events)?;
        if wanted.is_null() {
            async_evd.set(handle.get::<IaObject>()?.async_evd);
        }
        ia.set(handle);
        Ok(())
    })
}

/// Where asynchronous events go.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum AsyncEvents {
    /// To an EVD that the provider creates.
    New,
    /// To an EVD that has no handle: the program looks at the asynchronous EVD of another open.
    Elsewhere,
    /// To this EVD.
    To(Handle),
}

/// Opens the device that dat.conf names for this IA.
pub(super) fn open(name: &str, async_qlen: i32, events: AsyncEvents) -> Result<Handle, Code> {
    let entry = dat_conf::entry(name).ok_or_else(|| {
        tracing::error!("IA {name} is not registered");
        Code::new(ReturnType::ProviderNotFound, Subtype::NameNotRegistered)
    })?;
    let device = if entry.parameters.trim().is_empty() { name } else { entry.parameters.trim() };
    let shared = match events {
        AsyncEvents::To(evd) => optional_evd(evd, Subtype::InvalidHandleEvdAsync)?,
        _ => None,
    };
    let builder = Ia::builder(device);
    let builder = match &shared {
        Some(evd) => builder.async_evd(evd),
        None => builder.async_depth(u32::try_from(async_qlen).map_err(|_| Code::arg(2))?),
    };
    let ia = builder.open().map_err(|error| {
        tracing::error!("cannot open IA {name} ({device:?} in dat.conf): {error}");
        Code(error.code())
    })?;
    let address = SockAddr::kept(SocketAddr::new(ia.address(), 0));
    let named = named_attrs(&ia);
    let evd = ia.async_evd().clone();
    let async_evd = if let AsyncEvents::To(evd) = events { evd } else { Handle::NULL };
    // All objects of the IA get the table of the IA.
    let table = match ia.device.context.driver() {
        _ if ia.device.path.is_direct() => entry.table,
        "mlx5_core" => entry.by_verbs,
        _ => entry.by_calls,
    };
    let object = IaObject { ia, async_evd, address, named };
    let handle = Handle::new(std::ptr::from_ref(table).cast_mut(), Handle::NULL, object)?;
    handle.get::<IaObject>()?.ia.set_context(handle.0 as u64);
    if events == AsyncEvents::New {
        let object = EvdObject { evd: evd.clone(), cno: Handle::NULL };
        let evd_handle = handle.sibling_known_as(object, evd.id().0).inspect_err(|_| {
            let _ = close(handle, CloseFlags::Abrupt);
        })?;
        evd.set_context(evd_handle.0 as u64);
        handle.get_mut::<IaObject>()?.async_evd = evd_handle;
    }
    Ok(handle)
}

fn named_attrs(ia: &Ia) -> NamedAttrs {
    let yes = |on: bool| if on { "TRUE" } else { "FALSE" }.to_owned();
    let attr = ia.attributes();
    NamedAttrs::new(&[
        ("DAT_EXTENSION_INTERFACE", yes(true)),
        ("DAT_IB_TRANSPORT_MTU", attr.mtu.to_string()),
        ("DAT_IB_RDMA_READ", yes(true)),
        ("DAT_IB_IMMED_DATA", yes(true)),
        ("DAT_IB_FETCH_AND_ADD", yes(attr.atomics)),
        ("DAT_IB_CMP_AND_SWAP", yes(attr.atomics)),
        ("DAT_IB_UD", yes(attr.datagrams)),
        ("DAT_COUNTERS", yes(true)),
        ("DOORBELL_DATAPATH", ia.provider_attributes().datapath.to_owned()),
    ])
}

pub(super) extern "C" fn ia_query(
    ia: Handle,
    async_evd: Out<Handle>,
    ia_mask: u64,
    ia_attr: Out<IaAttr>,
    provider_mask: u64,
    provider_attr: Out<ProviderAttr>,
) -> u32 {
    guard("dat_ia_query", || query(ia, async_evd, ia_mask, ia_attr, provider_mask, provider_attr))
}

pub(super) fn query(
    ia: Handle,
    async_evd: Out<Handle>,
    ia_mask: u64,
    ia_attr: Out<IaAttr>,
    provider_mask: u64,
    provider_attr: Out<ProviderAttr>,
) -> Result<(), Code> {
    let object = ia.get::<IaObject>()?;
    if ia_mask & !IA_FIELDS != 0 {
        return Err(Code::arg(3));
    }
    if ia_mask != 0 {
        ia_attr.need(4)?;
    }
    if provider_mask & !PROVIDER_FIELDS != 0 {
        return Err(Code::arg(5));
    }
    if provider_mask != 0 {
        provider_attr.need(6)?;
    }
    if ia_mask != 0 {
        ia_attr.set(ia_attributes(&object));
    }
    if provider_mask != 0 {
        provider_attr.set(provider_attributes(&object));
    }
    async_evd.set(object.async_evd.given().unwrap_or(EVD_OUT_OF_SCOPE));
    Ok(())
}

fn ia_attributes(object: &IaObject) -> IaAttr {
    let a = object.ia.attributes();
    let block = u32::try_from(a.max_lmr_size).unwrap_or(u32::MAX);
    let mut version = a.firmware_version.split('.').map(|part| part.parse().unwrap_or(0));
    let firmware_version = [version.next().unwrap_or(0), version.next().unwrap_or(0)];
    IaAttr {
        adapter_name: name(&a.device_name),
        vendor_name: name(&a.vendor_name),
        hardware_version: [a.hardware_version, 0],
        firmware_version,
        ia_address_ptr: object.address.address(),
        max_eps: to_count(a.max_eps),
        max_dto_per_ep: to_count(a.max_ep_depth),
        max_rdma_read_per_ep_in: to_count(a.max_rdma_reads_in),
        max_rdma_read_per_ep_out: to_count(a.max_rdma_reads_out),
        max_evds: to_count(a.max_evds),
        max_evd_qlen: to_count(a.max_evd_depth),
        max_iov_segments_per_dto: to_count(a.max_segments),
        max_lmrs: to_count(a.max_lmrs),
        max_lmr_block_size: block,
        pad: 0,
        max_lmr_virtual_address: u64::MAX,
        max_pzs: to_count(a.max_pzs),
        max_message_size: a.max_message_size,
        max_rdma_size: a.max_rdma_size,
        max_rmrs: to_count(a.max_rmrs),
        max_rmr_target_address: u64::MAX,
        max_srqs: to_count(a.max_srqs),
        max_ep_per_srq: to_count(a.max_eps_per_srq),
        max_recv_per_srq: to_count(a.max_srq_depth),
        max_iov_segments_per_rdma_read: to_count(a.max_read_segments),
        max_iov_segments_per_rdma_write: to_count(a.max_write_segments),
        max_rdma_read_in: to_count(a.total_rdma_reads_in),
        max_rdma_read_out: to_count(a.total_rdma_reads_out),
        max_rdma_read_per_ep_in_guaranteed: u32::from(a.rdma_reads_guaranteed),
        max_rdma_read_per_ep_out_guaranteed: 1,
        zb_supported: u32::from(a.zero_based),
        extension_supported: 1,
        extension_version: EXTENSION_VERSION,
        num_transport_attr: 0,
        pad_transport: 0,
        transport_attr: 0,
        num_vendor_attr: 0,
        pad_vendor: 0,
        vendor_attr: 0,
    }
}

fn provider_attributes(object: &IaObject) -> ProviderAttr {
    let a = object.ia.provider_attributes();
    // Order: software, CR, DTO, connection, RMR bind, asynchronous. The asynchronous EVD belongs to
    // the IA and takes no other stream.
    let mut merging = [[1; 6]; 6];
    merging[5] = [0, 0, 0, 0, 0, 1];
    for row in &mut merging[..5] {
        row[5] = 0;
    }
    ProviderAttr {
        provider_name: name(a.provider_name),
        provider_version: [0, 1],
        // libdat2 uses these fields as the key of its registry: version 2.0, not thread safe.
        dapl_version: [2, 0],
        is_thread_safe: 0,
        // All values of the enumeration. DAT_MEM_TYPE_VIRTUAL is 0.
        lmr_mem_types_supported: 3,
        iov_ownership_on_return: a.iov_ownership_on_return,
        dat_qos_supported: 0,
        completion_flags_supported: a.completion_flags_supported.bits(),
        max_private_data_size: to_count(a.max_private_data_size),
        supports_multipath: 0,
        ep_creator: a.ep_creator,
        pz_support: 0,
        optimal_buffer_alignment: 256,
        evd_stream_merging_supported: merging,
        srq_supported: u32::from(a.srq_supported),
        srq_watermarks_supported: to_count(a.srq_watermarks_supported),
        srq_ep_pz_difference_supported: u32::from(a.srq_ep_pz_difference_supported),
        srq_info_supported: to_count(a.srq_info_supported),
        ep_recv_info_supported: to_count(a.ep_recv_info_supported),
        lmr_sync_req: u32::from(a.lmr_sync_req),
        dto_async_return_guaranteed: 0,
        rdma_write_for_rdma_read_req: 0,
        rdma_read_lmr_rmr_context_exposure: 0,
        rmr_scope_supported: a.rmr_scopes,
        is_signal_safe: 0,
        ha_supported: 0,
        ha_loadbalancing: 0,
        num_provider_specific_attr: object.named.len(),
        provider_specific_attr: object.named.address(),
    }
}

pub(super) extern "C" fn ia_close(ia: Handle, flags: u32) -> u32 {
    guard("dat_ia_close", || {
        ia.get::<IaObject>()?;
        let how = close_flags(flags)?;
        close(ia, how)
    })
}

pub(super) fn close(ia: Handle, how: CloseFlags) -> Result<(), Code> {
    check_ia(ia.0)?;
    if let Some(object) = ia.take::<IaObject>(|object| Ok(object.ia.can_close(how)?))? {
        // The decision is still valid, because nothing could be created on the IA since.
        drop(object);
    }
    ia.retire_all_of_ia();
    Ok(())
}

pub(super) extern "C" fn ia_ha_related(ia: Handle, _provider: In<c_char>, answer: Out<u32>) -> u32 {
    guard("dat_ia_ha_related", || {
        ia.get::<IaObject>()?;
        answer.need(3)?;
        // No provider can replace another one for high availability.
        answer.set(0);
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_cut_and_end_with_nul() {
        let long = name(&"x".repeat(300));
        assert_eq!(long[254], b'x');
        assert_eq!(long[255], 0);
    }
}
