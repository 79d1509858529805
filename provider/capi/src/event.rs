//! Conversion of events to their C layout.

use super::abi::{self, AddrHandle, two};
use super::code::Code;
use super::convert::immediate;
use super::handle::Handle;
use super::libdat::consumer_ia;
use super::objects::{EpObject, IaObject};
use super::raw::Out;
use super::service::sp_handle;
use super::{cr, ep};
use provider::inside::Success;
use provider::inside::{QueuePair, Request};
use provider::{AsyncObject, DatagramEventKind, DtoCompletion, DtoOp, Event, ServiceType};

/// The C form of an event of this EVD: all of its 120 bytes.
///
/// INSUFFICIENT_RESOURCES without memory for the handle of a connection request. The request is
/// rejected then.
pub(super) fn event(evd: Handle, event: Event) -> Result<abi::Event, Code> {
    let number = event.number();
    let mut extension = [0; 8];
    let data = match event {
        Event::Received(dto) | Event::Done(dto) | Event::Failed(dto) => return Ok(completion(evd, &dto)),
        Event::Bound(bind) => {
            [Handle::of_id(bind.rmr.0).0 as u64, bind.cookie, two(bind.status as u32, 0), 0, 0]
        }
        Event::ConnectionRequest(arrival) => {
            let address = evd.ia().get::<IaObject>().map_or(0, |ia| ia.address.address());
            // Created before the handle of the request, whose query returns the EP's handle.
            let null = Handle::NULL;
            let provided = arrival.ep.map(|ep| ep::handle_of(evd, ep, null, [null; 3], null));
            let provided = provided.transpose()?.unwrap_or(null);
            if arrival.cr.service_type() == ServiceType::Ud {
                extension[0] = UD_CONNECT_REQUEST;
            }
            let cr = evd
                .sibling(cr::object(arrival.cr, provided))
                .inspect_err(|_| cr::retire_provided_ep(provided))?;
            [sp_handle(arrival.sp).0 as u64, address as u64, arrival.conn_qual, cr.0 as u64, 0]
        }
        Event::Connected(event) | Event::Disconnected(event) | Event::NotConnected(event) => {
            let (size, at) = keep(Handle(event.ep_context as usize), event.private_data);
            [event.ep_context, two(size, 0), at as u64, 0, 0]
        }
        Event::Datagram(event) => {
            extension = ib_datagram(event.kind, event.cm);
            let (size, at) = keep_for(Handle(event.ep_context as usize), event.cm, event.private_data);
            [event.ep_context, two(size, 0), at as u64, 0, 0]
        }
        Event::Async(event) => {
            let handle = match event.object {
                AsyncObject::Ia => consumer_ia(Handle(event.context as usize)) as u64,
                AsyncObject::Ep(_) | AsyncObject::Evd(_) | AsyncObject::Srq(_) => event.context,
            };
            [handle, two(event.reason, 0), 0, 0, 0]
        }
        Event::Software(pointer) => [pointer, 0, 0, 0, 0],
        other => unreachable!("an event without a number: {other:?}"),
    };
    tracing::trace!(evd = evd.0, "event {number:#x} {data:x?}");
    Ok(abi::Event { number, pad: 0, evd: evd.0, data, extension })
}

/// Writes the event of a success of an operation that is not of the extension, without a trace.
#[inline(always)]
pub(super) fn write_success(evd: Handle, success: &Success, out: Out<abi::Event>) {
    let Success { ep_context, cookie, length, op, .. } = *success;
    let data = [ep_context, cookie, two(0, length), op as u64];
    out.set_dto(DTO, evd.0, |word| data[word]);
}

/// Writes the event of a plain request of this EP.
#[inline(always)]
pub(super) fn write_request(evd: Handle, pair: &QueuePair, request: &Request, out: Out<abi::Event>) {
    out.set_dto(DTO, evd.0, |word| match word {
        0 => pair.context(),
        1 => request.cookie,
        2 => two(0, request.length),
        _ => request.op as u64,
    });
}

/// Writes the event of a DTO for C.
#[inline(never)]
pub(super) fn write_completion(evd: Handle, dto: &DtoCompletion, out: Out<abi::Event>) {
    out.set(completion(evd, dto));
}

/// The event of a DTO.
fn completion(evd: Handle, dto: &DtoCompletion) -> abi::Event {
    if dto.op.is_extension() {
        with_extension(evd, dto, EXTENSION, ib_data(dto))
    } else {
        with_extension(evd, dto, DTO, [0; 8])
    }
}

#[inline(always)]
fn with_extension(evd: Handle, dto: &DtoCompletion, number: u32, extension: [u64; 8]) -> abi::Event {
    let data = [
        dto.ep_context,
        dto.cookie,
        two(dto.status as u32, dto.length),
        two(dto.op as u32, dto.invalidated.unwrap_or(0)),
        0,
    ];
    if tracing::enabled!(tracing::Level::TRACE) {
        trace_completion(evd, number, &data);
    }
    abi::Event { number, pad: 0, evd: evd.0, data, extension }
}

#[cold]
fn trace_completion(evd: Handle, number: u32, data: &[u64; 5]) {
    tracing::trace!(evd = evd.0, "event {number:#x} {data:x?}");
}

/// `DAT_DTO_COMPLETION_EVENT` and `DAT_IB_DTO_EVENT`.
const DTO: u32 = 1;
const EXTENSION: u32 = 0x4_0000;

/// Keeps private data readable until the EP's next event with private data.
fn keep(ep: Handle, data: Vec<u8>) -> (u32, usize) {
    if data.is_empty() {
        return (0, 0);
    }
    let Ok(object) = ep.get::<EpObject>() else { return (0, 0) };
    let mut kept = object.private_data.lock().unwrap();
    kept.last = data;
    (kept.last.len() as u32, kept.last.as_ptr() as usize)
}

/// Keeps private data until the CM handle of the event is freed. Private data of an event without a
/// CM handle is kept until the next such event.
fn keep_for(ep: Handle, cm: u64, data: Vec<u8>) -> (u32, usize) {
    if cm == 0 || data.is_empty() {
        return keep(ep, data);
    }
    let Ok(object) = ep.get::<EpObject>() else { return (0, 0) };
    let mut kept = object.private_data.lock().unwrap();
    if kept.by_cm.try_reserve(1).is_err() {
        tracing::error!(ep = ep.0, "no memory to keep the private data of an event");
        return (0, 0);
    }
    let kept = kept.by_cm.entry(cm).or_insert(data);
    (kept.len() as u32, kept.as_ptr() as usize)
}

/// `DAT_IB_UD_CONNECT_REQUEST`.
const UD_CONNECT_REQUEST: u64 = 5;

/// `DAT_IB_EXTENSION_EVENT_DATA` of the answer to a datagram connect: type, status, address handle
/// and CM handle.
fn ib_datagram(kind: DatagramEventKind, cm: u64) -> [u64; 8] {
    // DAT_OP_SUCCESS and DAT_IB_OP_ERR.
    let (ty, status, peer) = match kind {
        DatagramEventKind::Established { peer, active } => (if active { 6 } else { 7 }, 0, Some(peer)),
        DatagramEventKind::Rejected => (10, 1, None),
        DatagramEventKind::Failed(_) => (11, 1, None),
    };
    let [a, b, c, d, e] = peer.map_or([0; 5], |peer| AddrHandle::new(&peer).words());
    [two(ty, status), 0, a, b, c, d, e, cm]
}

/// `DAT_IB_EXTENSION_EVENT_DATA`: type, status 0, the immediate data, and the sender of a datagram.
fn ib_data(dto: &DtoCompletion) -> [u64; 8] {
    let kind = match dto.op {
        DtoOp::FetchAndAdd => 0,
        DtoOp::CompareAndSwap => 1,
        DtoOp::RdmaWriteImmediate => 2,
        DtoOp::ReceiveRdmaWriteImmediate => 3,
        DtoOp::SendUd => 8,
        DtoOp::ReceiveUd | DtoOp::ReceiveUdImmediate => 9,
        // The only other operation of the extension.
        _ => 4,
    };
    // The status word is that of the extension, where 0 says that the type is valid. The status of
    // the DTO is in the DTO.
    let immediate = immediate(dto.immediate.unwrap_or(0));
    [two(kind, 0), two(immediate, 0), 0, two(dto.source_qpn().unwrap_or(0), 0), 0, 0, 0, 0]
}
