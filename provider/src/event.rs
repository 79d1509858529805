//! Events, as they leave an EVD.

use crate::event_data::{
    AsyncEvent, ConnectionEvent, DatagramEvent, DtoCompletion, DtoFields, RmrBindCompletion,
};
use crate::types::{ConnQual, ServiceType};
use crate::{Cr, DtoOp, Ep, EvdId, RmrId, SpId};

/// One event (`DAT_EVENT`).
#[derive(Debug)]
pub struct Event {
    /// The EVD that it was taken from.
    pub evd: EvdId,
    /// What happened.
    pub data: EventData,
}

/// What happened.
#[derive(Debug)]
pub enum EventData {
    /// A DTO completed.
    Dto(DtoCompletion),
    /// An RMR was bound, or could not be.
    RmrBind(RmrBindCompletion),
    /// Somebody wants to connect; accept or reject it. Dropping it rejects.
    ConnectionRequest(CrArrival),
    /// A connection came up, failed or ended.
    Connection(ConnectionEvent),
    /// A UD EP has found out about another, or could not. In a box, since it is large and rare.
    Datagram(Box<DatagramEvent>),
    /// Something outside any one operation.
    Async(AsyncEvent),
    /// Posted by the consumer with [`crate::Evd::post_software_event`].
    Software(u64),
}

/// A connection request (`DAT_CR_ARRIVAL_EVENT_DATA`).
#[derive(Debug)]
pub struct CrArrival {
    /// The PSP, RSP or CSP it arrived at.
    pub sp: SpId,
    /// Where that listens.
    pub conn_qual: ConnQual,
    /// The request.
    pub cr: Cr,
    /// The EP that the provider has made for it, if the service point asked for that.
    pub ep: Option<Ep>,
}

impl EventData {
    /// The event of a completed request or receive. Binds travel as DTOs with the RMR's number in the pool's place.
    pub(crate) fn completed(dto: DtoCompletion) -> Self {
        if dto.op == DtoOp::RmrBind {
            let DtoFields { ep, cookie, status, pool, .. } = *dto;
            return Self::RmrBind(RmrBindCompletion { rmr: RmrId(pool.into()), ep, cookie, status });
        }
        Self::Dto(dto)
    }

    /// The event's number (`DAT_EVENT_NUMBER`); completions of the IB extension have one of their own, `DAT_IB_DTO_EVENT`.
    pub fn number(&self) -> u32 {
        match self {
            Self::Dto(dto) if dto.op.is_extension() => 0x4_0000,
            Self::Dto(_) => 1,
            Self::RmrBind(_) => 0x1001,
            Self::ConnectionRequest(arrival) if arrival.cr.service_type() == ServiceType::Ud => 0x4_0001,
            Self::ConnectionRequest(_) => 0x2001,
            Self::Datagram(event) => event.kind.number(),
            Self::Connection(event) => event.kind as u32,
            Self::Async(event) => event.kind as u32,
            Self::Software(_) => 0x1_0001,
        }
    }

    /// The completion, if it is one.
    pub fn dto(&self) -> Option<&DtoCompletion> {
        match self {
            Self::Dto(dto) => Some(dto),
            _ => None,
        }
    }
}
