//! EPs: everything but posting.

use super::abi::{Comm, EpAttr, EpParam};
use super::code::{Code, guard};
use super::convert::{
    close_flags, completion_flags, count, high_watermark, ia_of, optional_evd, qos, service_type, timeout,
    to_count,
};
use super::handle::Handle;
use super::objects::{EpObject, IaObject, SrqObject};
use super::raw::{In, Out, SockAddrHead};
use super::slots::Hot;
use super::sockaddr::SockAddr;
use provider::inside::{EpEvds, Qos};
use provider::{Ep, EpChange, Pz, Subtype};
use std::net::SocketAddr;

/// `DAT_WATERMARK_INFINITE`.
const WATERMARK_INFINITE: i32 = -1;
/// `DAT_VALUE_UNKNOWN`.
const VALUE_UNKNOWN: i32 = -2;

/// `DAT_EP_FIELD_ALL`.
const FIELDS: u64 = 0x7fff_ffff;

/// `DAT_EP_FIELD_*`.
mod field {
    pub(super) const PZ: u64 = 0x80;
    pub(super) const RECV_EVD: u64 = 0x100;
    pub(super) const REQUEST_EVD: u64 = 0x200;
    pub(super) const CONNECT_EVD: u64 = 0x400;
    pub(super) const SERVICE_TYPE: u64 = 0x1000;
    pub(super) const MAX_MESSAGE_SIZE: u64 = 0x2000;
    pub(super) const MAX_RDMA_SIZE: u64 = 0x4000;
    pub(super) const QOS: u64 = 0x8000;
    pub(super) const RECV_FLAGS: u64 = 0x1_0000;
    pub(super) const REQUEST_FLAGS: u64 = 0x2_0000;
    pub(super) const MAX_RECV_DTOS: u64 = 0x4_0000;
    pub(super) const MAX_REQUEST_DTOS: u64 = 0x8_0000;
    pub(super) const MAX_RECV_IOV: u64 = 0x10_0000;
    pub(super) const MAX_REQUEST_IOV: u64 = 0x20_0000;
    pub(super) const MAX_RDMA_READ_IN: u64 = 0x40_0000;
    pub(super) const MAX_RDMA_READ_OUT: u64 = 0x80_0000;
    pub(super) const MAX_RDMA_READ_IOV: u64 = 0x200_0000;
    pub(super) const MAX_RDMA_WRITE_IOV: u64 = 0x400_0000;
    pub(super) const NUM_TRANSPORT_ATTR: u64 = 0x800_0000;
    pub(super) const TRANSPORT_ATTR: u64 = 0x1000_0000;
    pub(super) const NUM_PROVIDER_ATTR: u64 = 0x2000_0000;
    pub(super) const PROVIDER_ATTR: u64 = 0x4000_0000;
    /// All fields but the IA, the state, the communicator, the addresses, the SRQ and its
    /// watermark.
    pub(super) const MODIFIABLE: u64 = PZ
        | RECV_EVD
        | REQUEST_EVD
        | CONNECT_EVD
        | SERVICE_TYPE
        | MAX_MESSAGE_SIZE
        | MAX_RDMA_SIZE
        | QOS
        | RECV_FLAGS
        | REQUEST_FLAGS
        | MAX_RECV_DTOS
        | MAX_REQUEST_DTOS
        | MAX_RECV_IOV
        | MAX_REQUEST_IOV
        | MAX_RDMA_READ_IN
        | MAX_RDMA_READ_OUT
        | MAX_RDMA_READ_IOV
        | MAX_RDMA_WRITE_IOV
        | NUM_TRANSPORT_ATTR
        | TRANSPORT_ATTR
        | NUM_PROVIDER_ATTR
        | PROVIDER_ATTR;
}

fn attr_from(c: &EpAttr, arg: u16, on_srq: bool) -> Result<provider::EpAttr, Code> {
    let flags = |bits| completion_flags(bits, arg);
    let number = |value| count(value, arg);
    Ok(provider::EpAttr {
        service_type: service_type(c.service_type, arg)?,
        max_message_size: c.max_message_size,
        max_rdma_size: c.max_rdma_size,
        qos: qos(c.qos, arg)?,
        recv_completion_flags: flags(c.recv_completion_flags)?,
        request_completion_flags: flags(c.request_completion_flags)?,
        recv_depth: recv_number(c.max_recv_dtos, on_srq, arg)?,
        request_depth: number(c.max_request_dtos)?,
        recv_segments: recv_number(c.max_recv_iov, on_srq, arg)?,
        request_segments: number(c.max_request_iov)?,
        rdma_reads_in: number(c.max_rdma_read_in)?,
        rdma_reads_out: number(c.max_rdma_read_out)?,
        soft_high_watermark: soft_mark(c.srq_soft_hw, arg)?,
        rdma_read_segments: number(c.max_rdma_read_iov)?,
        rdma_write_segments: number(c.max_rdma_write_iov)?,
        retry: provider::RetryAttr::default(),
        max_inline: 0,
        tells_drained: false,
    })
}

/// A number of the receive queue. An EP on an SRQ has none: any number is kept and ignored (R141,
/// R142), also a negative one, which [`attr_to`] gives back.
fn recv_number(number: i32, on_srq: bool, arg: u16) -> Result<u32, Code> {
    if on_srq { Ok(number.cast_unsigned()) } else { count(number, arg) }
}

/// The initial soft high watermark. 0 means off here, like -1, although by R147 a watermark of 0
/// fires at the first receive. The reason: programs clear the structure without intending a
/// watermark. dtestsrq does, and treats every event except EP_BROKEN as a failure.
/// `dat_ep_set_watermark` accepts 0 as a watermark.
fn soft_mark(srq_soft_hw: i32, arg: u16) -> Result<Option<u32>, Code> {
    if srq_soft_hw == 0 { Ok(None) } else { high_watermark(srq_soft_hw, arg) }
}

fn attr_to(attr: &provider::EpAttr) -> EpAttr {
    EpAttr {
        service_type: attr.service_type as u32,
        max_message_size: attr.max_message_size,
        max_rdma_size: attr.max_rdma_size,
        qos: attr.qos as u32,
        recv_completion_flags: attr.recv_completion_flags.bits(),
        request_completion_flags: attr.request_completion_flags.bits(),
        max_recv_dtos: attr.recv_depth.cast_signed(),
        max_request_dtos: to_count(attr.request_depth),
        max_recv_iov: attr.recv_segments.cast_signed(),
        max_request_iov: to_count(attr.request_segments),
        max_rdma_read_in: to_count(attr.rdma_reads_in),
        max_rdma_read_out: to_count(attr.rdma_reads_out),
        srq_soft_hw: attr.soft_high_watermark.map_or(WATERMARK_INFINITE, to_count),
        max_rdma_read_iov: to_count(attr.rdma_read_segments),
        max_rdma_write_iov: to_count(attr.rdma_write_segments),
        ep_transport_specific_count: 0,
        ep_transport_specific: 0,
        ep_provider_specific_count: 0,
        pad: 0,
        ep_provider_specific: 0,
    }
}

/// The handles with which an EP is created.
struct Parts {
    ia: Handle,
    pz: Handle,
    recv: Handle,
    request: Handle,
    connect: Handle,
    srq: Option<Handle>,
}

fn create(parts: &Parts, attr: In<EpAttr>, attr_arg: u16, out: Out<Handle>) -> Result<(), Code> {
    let ia = parts.ia.get::<IaObject>()?;
    let pz = parts.pz.get::<Pz>()?;
    let recv = optional_evd(parts.recv, Subtype::InvalidHandleEvdRecv)?;
    let request = optional_evd(parts.request, Subtype::InvalidHandleEvdRequest)?;
    let connect = optional_evd(parts.connect, Subtype::InvalidHandleEvdConn)?;
    let srq = parts.srq.map(|srq| srq.get::<SrqObject>()).transpose()?;
    let evds = EpEvds { recv: recv.as_ref(), request: request.as_ref(), connect: connect.as_ref() };
    let attr = if srq.is_some() { Some(attr.need(attr_arg)?) } else { attr.get() };
    out.need(attr_arg + 1)?;
    let attr = match attr {
        Some(attr) => attr_from(&attr, attr_arg, srq.is_some())?,
        None => {
            let a = ia.ia.attributes();
            provider::EpAttr {
                max_message_size: a.max_message_size,
                max_rdma_size: a.max_rdma_size,
                ..provider::EpAttr::default()
            }
        }
    };
    let builder = Ep::builder(&ia.ia, &pz).evds(evds).attributes(&attr);
    let ep = match &srq {
        Some(srq) => builder.on_srq(&srq.srq).build()?,
        None => builder.build()?,
    };
    let evds = [parts.recv, parts.request, parts.connect];
    out.set(handle_of(parts.ia, ep, parts.pz, evds, parts.srq.unwrap_or(Handle::NULL))?);
    Ok(())
}

/// Creates the handle of an EP. `sibling` is another handle of the same IA.
pub(super) fn handle_of(
    sibling: Handle,
    ep: Ep,
    pz: Handle,
    evds: [Handle; 3],
    srq: Handle,
) -> Result<Handle, Code> {
    let (inner, hot) = (ep.inner.clone(), Hot::Ep(ep.inner.pair.clone()));
    let handle = sibling.sibling(EpObject::new(ep, pz, evds, srq))?;
    // Events of the core carry the EP's context, which is the handle.
    inner.pair.context.store(handle.0 as u64, std::sync::atomic::Ordering::Relaxed);
    handle.put_hot(hot);
    Ok(handle)
}

pub(super) extern "C" fn ep_create(
    ia: Handle,
    pz: Handle,
    recv: Handle,
    request: Handle,
    connect: Handle,
    attr: In<EpAttr>,
    out: Out<Handle>,
) -> u32 {
    guard("dat_ep_create", || create(&Parts { ia, pz, recv, request, connect, srq: None }, attr, 6, out))
}

pub(super) extern "C" fn ep_create_with_srq(
    ia: Handle,
    pz: Handle,
    recv: Handle,
    request: Handle,
    connect: Handle,
    srq: Handle,
    attr: In<EpAttr>,
    out: Out<Handle>,
) -> u32 {
    let parts = Parts { ia, pz, recv, request, connect, srq: Some(srq) };
    guard("dat_ep_create_with_srq", || create(&parts, attr, 7, out))
}

pub(super) extern "C" fn ep_query(ep: Handle, mask: u64, param: Out<EpParam>) -> u32 {
    guard("dat_ep_query", || {
        let object = ep.get::<EpObject>()?;
        if mask & !FIELDS != 0 {
            return Err(Code::arg(2));
        }
        param.need(3)?;
        let is = object.ep.query()?;
        let mut addresses = object.addresses.lock().unwrap();
        let mut keep = |i: usize, addr: Option<SocketAddr>| {
            let Some(addr) = addr else { return (0, 0) };
            let new = SockAddr::new(addr);
            let kept = addresses[i].get_or_insert_with(|| Box::new(new));
            **kept = new;
            (kept.address(), addr.port().into())
        };
        let (local_ia_address_ptr, local_port_qual) = keep(0, is.local);
        let (remote_ia_address_ptr, remote_port_qual) = keep(1, is.remote);
        param.set(EpParam {
            ia_handle: ia_of(ep),
            ep_state: is.state as u32,
            comm: Comm::new(provider::inside::Comm::of(object.ep.inner.device.attr.address)),
            local_ia_address_ptr,
            local_port_qual,
            remote_ia_address_ptr,
            remote_port_qual,
            pz_handle: object.pz.0,
            recv_evd_handle: object.recv_evd.0,
            request_evd_handle: object.request_evd.0,
            connect_evd_handle: object.connect_evd.0,
            srq_handle: object.srq.0,
            ep_attr: attr_to(&is.attr),
        });
        Ok(())
    })
}

pub(super) extern "C" fn ep_modify(ep: Handle, mask: u64, param: In<EpParam>) -> u32 {
    guard("dat_ep_modify", || {
        let on_srq = ep.get::<EpObject>()?.ep.inner.srq.is_some();
        if mask & !field::MODIFIABLE != 0 {
            // These fields cannot be changed: the IA, state, addresses, SRQ and its watermark
            // (R162, R166).
            tracing::debug!(fields = mask & !field::MODIFIABLE, "these fields of an EP cannot be changed");
            return Err(Code::arg(2));
        }
        let param = param.need(3)?;
        let attr = &param.ep_attr;
        let has = |bit| mask & bit != 0;
        // Looked up before the EP is write-locked, because C may pass the EP's handle here as well.
        let pz = has(field::PZ).then(|| Handle(param.pz_handle).get::<Pz>()).transpose()?;
        let evd = |bit, handle, sub| has(bit).then(|| optional_evd(Handle(handle), sub)).transpose();
        let recv = evd(field::RECV_EVD, param.recv_evd_handle, Subtype::InvalidHandleEvdRecv)?;
        let request = evd(field::REQUEST_EVD, param.request_evd_handle, Subtype::InvalidHandleEvdRequest)?;
        let connect = evd(field::CONNECT_EVD, param.connect_evd_handle, Subtype::InvalidHandleEvdConn)?;
        let counts = [
            (field::NUM_TRANSPORT_ATTR, attr.ep_transport_specific_count),
            (field::NUM_PROVIDER_ATTR, attr.ep_provider_specific_count),
        ];
        if counts.iter().any(|&(bit, count)| has(bit) && count != 0) {
            tracing::debug!("transport-specific and provider-specific attributes are not supported");
            return Err(Code::arg(3));
        }
        let flags = |bit, bits| has(bit).then(|| completion_flags(bits, 3)).transpose();
        let number = |bit, value| has(bit).then(|| count(value, 3)).transpose();
        let recv_number = |bit, value| has(bit).then(|| recv_number(value, on_srq, 3)).transpose();
        let change = EpChange {
            pz: pz.as_deref(),
            recv: recv.as_ref().map(Option::as_ref),
            request: request.as_ref().map(Option::as_ref),
            connect: connect.as_ref().map(Option::as_ref),
            service_type: has(field::SERVICE_TYPE).then(|| service_type(attr.service_type, 3)).transpose()?,
            max_message_size: has(field::MAX_MESSAGE_SIZE).then_some(attr.max_message_size),
            max_rdma_size: has(field::MAX_RDMA_SIZE).then_some(attr.max_rdma_size),
            qos: has(field::QOS).then(|| qos(attr.qos, 3)).transpose()?,
            recv_completion_flags: flags(field::RECV_FLAGS, attr.recv_completion_flags)?,
            request_completion_flags: flags(field::REQUEST_FLAGS, attr.request_completion_flags)?,
            recv_depth: recv_number(field::MAX_RECV_DTOS, attr.max_recv_dtos)?,
            request_depth: number(field::MAX_REQUEST_DTOS, attr.max_request_dtos)?,
            recv_segments: recv_number(field::MAX_RECV_IOV, attr.max_recv_iov)?,
            request_segments: number(field::MAX_REQUEST_IOV, attr.max_request_iov)?,
            rdma_reads_in: number(field::MAX_RDMA_READ_IN, attr.max_rdma_read_in)?,
            rdma_reads_out: number(field::MAX_RDMA_READ_OUT, attr.max_rdma_read_out)?,
            rdma_read_segments: number(field::MAX_RDMA_READ_IOV, attr.max_rdma_read_iov)?,
            rdma_write_segments: number(field::MAX_RDMA_WRITE_IOV, attr.max_rdma_write_iov)?,
            retry: None,
            max_inline: None,
        };
        let mut object = ep.get_mut::<EpObject>()?;
        object.ep.modify(change)?;
        // The change may have recreated the queue pair.
        ep.put_hot(Hot::Ep(object.ep.inner.pair.clone()));
        let put = |bit, now: &mut Handle, new| *now = if has(bit) { Handle(new) } else { *now };
        put(field::PZ, &mut object.pz, param.pz_handle);
        put(field::RECV_EVD, &mut object.recv_evd, param.recv_evd_handle);
        put(field::REQUEST_EVD, &mut object.request_evd, param.request_evd_handle);
        put(field::CONNECT_EVD, &mut object.connect_evd, param.connect_evd_handle);
        Ok(())
    })
}

pub(super) extern "C" fn ep_connect(
    ep: Handle,
    remote: In<SockAddrHead>,
    conn_qual: u64,
    micros: u32,
    size: i32,
    private_data: In<u8>,
    service: u32,
    flags: u32,
) -> u32 {
    guard("dat_ep_connect", || {
        let object = ep.get::<EpObject>()?;
        let remote = remote.ip(2)?;
        let private_data = private_data.bytes(size, 5, 6)?;
        let service = qos(service, 7)?;
        match flags {
            0 => {}
            // Multipath flags.
            1 | 2 => return Err(Code::not_supported()),
            _ => return Err(Code::arg(8)),
        }
        if service != Qos::BestEffort {
            return Err(Code::not_supported());
        }
        Ok(object.ep.inner.connect(remote, conn_qual, timeout(micros), &private_data)?)
    })
}

pub(super) extern "C" fn ep_common_connect(
    ep: Handle,
    remote: In<SockAddrHead>,
    micros: u32,
    size: i32,
    private_data: In<u8>,
) -> u32 {
    guard("dat_ep_common_connect", || {
        let object = ep.get::<EpObject>()?;
        let remote = remote.socket(2)?;
        let private_data = private_data.bytes(size, 4, 5)?;
        Ok(object.ep.inner.common_connect(remote, timeout(micros), &private_data)?)
    })
}

pub(super) extern "C" fn ep_dup_connect(
    ep: Handle,
    other: Handle,
    micros: u32,
    size: i32,
    private_data: In<u8>,
    service: u32,
) -> u32 {
    guard("dat_ep_dup_connect", || {
        let object = ep.get::<EpObject>()?;
        if ep == other {
            return Err(Code::handle(Subtype::InvalidHandleEp));
        }
        let other = other.get::<EpObject>()?;
        let private_data = private_data.bytes(size, 4, 5)?;
        if qos(service, 6)? != Qos::BestEffort {
            return Err(Code::not_supported());
        }
        Ok(object.ep.inner.dup_connect(&other.ep.inner, timeout(micros), &private_data)?)
    })
}

pub(super) extern "C" fn ep_disconnect(ep: Handle, flags: u32) -> u32 {
    guard("dat_ep_disconnect", || {
        let object = ep.get::<EpObject>()?;
        Ok(object.ep.disconnect(close_flags(flags)?)?)
    })
}

pub(super) extern "C" fn ep_get_status(
    ep: Handle,
    state: Out<u32>,
    recv_idle: Out<u32>,
    request_idle: Out<u32>,
) -> u32 {
    guard("dat_ep_get_status", || {
        let is = ep.get::<EpObject>()?.ep.status()?;
        state.set(is.state as u32);
        recv_idle.set(u32::from(is.receives == 0));
        request_idle.set(u32::from(is.requests == 0));
        Ok(())
    })
}

pub(super) extern "C" fn ep_reset(ep: Handle) -> u32 {
    guard("dat_ep_reset", || Ok(ep.get_mut::<EpObject>()?.ep.reset()?))
}

pub(super) extern "C" fn ep_free(ep: Handle) -> u32 {
    guard("dat_ep_free", || match ep.take::<EpObject>(|object| Ok(object.ep.can_close()?))? {
        Some(object) => Ok(object.ep.close()?),
        None => Ok(()),
    })
}

pub(super) extern "C" fn ep_recv_query(ep: Handle, buffers: Out<i32>, span: Out<i32>) -> u32 {
    guard("dat_ep_recv_query", || {
        let counts = ep.get::<EpObject>()?.ep.recv_query()?;
        buffers.set(counts.buffers.map_or(VALUE_UNKNOWN, to_count));
        span.set(counts.span.map_or(VALUE_UNKNOWN, to_count));
        Ok(())
    })
}

pub(super) extern "C" fn ep_set_watermark(ep: Handle, soft: i32, hard: i32) -> u32 {
    guard("dat_ep_set_watermark", || {
        let mut object = ep.get_mut::<EpObject>()?;
        Ok(object.ep.set_watermark(high_watermark(soft, 2)?, high_watermark(hard, 3)?)?)
    })
}
