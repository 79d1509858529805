//! Events as consumers get them: [`Evd::dequeue`] and [`Evd::wait`], on top of what EVDs queue.

use crate::evd::{Polled, WaitError, empty};
use crate::event_data::{
    AsyncEvent, ConnectionEvent, DatagramEvent, Dequeued, DtoCompletion, Notice, RmrBindCompletion,
};
use crate::types::{ConnQual, Count, EvdId, ServiceType, SpId};
use crate::{Cr, Ep, Evd, Result};
use std::time::Duration;

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

/// What a successful wait gives.
#[derive(Debug)]
pub struct Waited {
    /// The oldest event.
    pub event: Event,
    /// Events left in the queue (`nmore`, R245).
    pub more: usize,
}

impl Evd {
    /// Takes the oldest event, whatever the notification mode (R251).
    ///
    /// # Errors
    /// QUEUE_EMPTY; INVALID_STATE (EVD_WAITER) while a thread waits (R248); INVALID_HANDLE after it was freed.
    ///
    /// # References
    /// dat_evd_dequeue(3DAT).
    pub fn dequeue(&self) -> Result<Event> {
        match self.inner.dequeue_fast(|dto| Event { evd: self.inner.id, data: EventData::Dto(dto) }) {
            Polled::Dto(event) => return Ok(event),
            Polled::Empty => return Err(empty()),
            Polled::Slow => {}
        }
        Ok(Event { evd: self.inner.id, data: EventData::from(self.inner.dequeue_slow()?) })
    }

    /// Waits until `threshold` events are queued and one of them may wake a waiter, then takes the oldest.
    ///
    /// `timeout` is for the whole call, however often it is woken (R247); `None` waits for ever, zero polls.
    ///
    /// # Errors
    /// TIMEOUT_EXPIRED (R244); INVALID_PARAMETER (ARG3) for a threshold below 1 or over the length (R242, R243);
    /// INVALID_STATE for a second waiter (R248), an unwaitable EVD (R249), or a threshold over 1 with unsignalled or
    /// solicited streams (R232, R236); ABORT when it is freed meanwhile (R258); INTERRUPTED_CALL after a signal.
    ///
    /// # References
    /// dat_evd_wait(3DAT).
    pub fn wait(&self, timeout: Option<Duration>, threshold: Count) -> Result<Waited, WaitError> {
        let (taken, more) = self.inner.wait(timeout, threshold)?;
        Ok(Waited { event: Event { evd: self.inner.id, data: EventData::from(taken) }, more })
    }
}

impl From<Dequeued> for EventData {
    fn from(taken: Dequeued) -> Self {
        match taken {
            Dequeued::Dto(dto) => dto.as_bind().map_or(Self::Dto(dto), Self::RmrBind),
            Dequeued::Notice(Notice::Connection(event)) => Self::Connection(event),
            Dequeued::Notice(Notice::Datagram(event)) => Self::Datagram(event),
            Dequeued::Notice(Notice::Async(event)) => Self::Async(event),
            Dequeued::Notice(Notice::Software(value)) => Self::Software(value),
            Dequeued::Notice(Notice::Arrival(arrival)) => {
                let arrival = arrival.downcast::<CrArrival>();
                Self::ConnectionRequest(
                    *arrival.expect("service points queue requests, and nobody else does"),
                )
            }
        }
    }
}

impl From<CrArrival> for Notice {
    fn from(arrival: CrArrival) -> Self {
        Self::Arrival(Box::new(arrival))
    }
}

impl EventData {
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
