//! Events as the consumer gets them from [`Evd::dequeue`] and [`Evd::wait`].

use crate::evd::{Polled, Take, TakeMany, WaitError, empty};
use crate::event_data::{
    AsyncEvent, ConnectionEvent, DatagramEvent, Dequeued, DtoCompletion, Notice, RmrBindCompletion, Success,
};
use crate::types::{ConnQual, Count, EvdId, ServiceType, SpId};
use crate::{Cr, Ep, Evd, Result, ReturnType};
use std::time::Duration;

/// One event (`DAT_EVENT`).
#[derive(Debug)]
pub struct Event {
    /// The EVD from which the event was taken.
    pub evd: EvdId,
    /// The contents of the event.
    pub data: EventData,
}

/// The contents of an event.
#[derive(Debug)]
pub enum EventData {
    /// A DTO completed.
    Dto(DtoCompletion),
    /// An RMR was bound, or the bind failed.
    RmrBind(RmrBindCompletion),
    /// A peer requests a connection; accept or reject the request. Dropping it rejects it.
    ConnectionRequest(CrArrival),
    /// A connection came up, failed or ended.
    Connection(ConnectionEvent),
    /// A UD EP has resolved another EP, or has failed to. Boxed because the event is large and
    /// rare.
    Datagram(Box<DatagramEvent>),
    /// An event that does not belong to a single operation.
    Async(AsyncEvent),
    /// Posted by the consumer with [`crate::Evd::post_software_event`].
    Software(u64),
}

/// A connection request (`DAT_CR_ARRIVAL_EVENT_DATA`).
#[derive(Debug)]
pub struct CrArrival {
    /// The PSP, RSP or CSP at which the request arrived.
    pub sp: SpId,
    /// The connection qualifier on which that service point listens.
    pub conn_qual: ConnQual,
    /// The request.
    pub cr: Cr,
    /// The EP that the provider has created for the request, if the service point asked for one.
    pub ep: Option<Ep>,
}

/// The result of a successful wait.
#[derive(Debug)]
pub struct Waited {
    /// The oldest event.
    pub event: Event,
    /// The number of events left in the queue (`nmore`, R245).
    pub more: usize,
}

/// Takes completions of this EVD as [`Event`]s.
#[derive(Clone, Copy)]
struct OfEvd(EvdId);

impl Take for OfEvd {
    type Event = Event;
    const POOLS: bool = true;

    #[inline(always)]
    fn success(self, success: Success) -> Event {
        self.any(success.into())
    }

    #[inline(always)]
    fn any(self, dto: DtoCompletion) -> Event {
        Event { evd: self.0, data: EventData::Dto(dto) }
    }
}

impl TakeMany for OfEvd {
    #[inline(always)]
    fn is_free(place: &Option<Event>) -> bool {
        matches!(place, None | Some(Event { data: EventData::Dto(_), .. }))
    }
}

impl Evd {
    /// Takes the oldest event, whatever its notification mode (R251).
    ///
    /// # Errors
    /// QUEUE_EMPTY; INVALID_STATE (EVD_WAITER) while a thread waits (R248); INVALID_HANDLE after
    /// the EVD was freed.
    ///
    /// # References
    /// dat_evd_dequeue(3DAT).
    pub fn dequeue(&self) -> Result<Event> {
        match self.inner.dequeue_fast(OfEvd(self.inner.id)) {
            Polled::Dto(event) => return Ok(event),
            Polled::Empty => return Err(empty()),
            Polled::Slow => {}
        }
        Ok(Event { evd: self.inner.id, data: EventData::from(self.inner.dequeue_slow()?) })
    }

    /// Takes the oldest events, in order, until `into` is full or no event is left. Returns how
    /// many were taken: they are in the first places of `into`, and all other places are `None`.
    ///
    /// The effect is that of as many calls of [`Evd::dequeue`]: the same events in the same order,
    /// with the same effects and counters. A drain locks the EVD once for many events, so that each
    /// costs less. Other threads that use the EVD wait meanwhile.
    ///
    /// ```no_run
    /// # use doorbell::*;
    /// # fn reap(evd: &Evd) -> Result<()> {
    /// let mut events = [const { None }; 32];
    /// let n = evd.drain(&mut events)?;
    /// for event in events[..n].iter_mut().filter_map(Option::take) {
    ///     println!("{:?}", event.data);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Evd::dequeue`], if no event was taken; but no event is no error. After an error behind
    /// other events, the next call has the error.
    ///
    /// # References
    /// dat_evd_dequeue(3DAT), R248, R251.
    pub fn drain(&self, into: &mut [Option<Event>]) -> Result<usize> {
        let take = OfEvd(self.inner.id);
        let (mut taken, mut outcome) = (0, Ok(()));
        while taken < into.len() {
            let (n, end) = self.inner.drain(take, &mut into[taken..]);
            taken += n;
            if let Polled::Empty = end {
                break;
            }
            let Some(place) = into.get_mut(taken) else { break };
            // Here and not under the lock of the EVD: what an old event holds may need other locks.
            *place = None;
            if let Polled::Dto(()) = end {
                continue;
            }
            match self.inner.dequeue_slow() {
                Ok(event) => *place = Some(Event { evd: self.inner.id, data: EventData::from(event) }),
                Err(error) => {
                    outcome = Err(error);
                    break;
                }
            }
            taken += 1;
        }
        into.iter_mut().skip(taken).for_each(|place| *place = None);
        match outcome {
            Err(error) if taken == 0 && error.return_type() != ReturnType::QueueEmpty => Err(error),
            _ => Ok(taken),
        }
    }

    /// Waits until `threshold` events are queued and one of them may wake a waiter. Then takes the
    /// oldest event.
    ///
    /// `timeout` limits the whole call, however often the thread is woken (R247). `None` waits
    /// without limit, and zero polls once. A wait for completions polls for a short time before it
    /// sleeps ([`IaSettings::poll_time`](crate::IaSettings::poll_time)).
    ///
    /// # Errors
    /// TIMEOUT_EXPIRED (R244); INVALID_PARAMETER (ARG3) for a threshold below 1 or over the EVD's
    /// length (R242, R243); INVALID_STATE for a second waiter (R248), an unwaitable EVD (R249), or
    /// a threshold over 1 with unsignalled or solicited streams (R232, R236); ABORT if the EVD is
    /// freed meanwhile (R258); INTERRUPTED_CALL after a signal.
    ///
    /// # References
    /// dat_evd_wait(3DAT).
    pub fn wait(&self, timeout: Option<Duration>, threshold: Count) -> Result<Waited, WaitError> {
        if threshold == 1
            && let Some((event, more)) = self.inner.wait_fast(OfEvd(self.inner.id))
        {
            return Ok(Waited { event, more });
        }
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
    /// The event's number (`DAT_EVENT_NUMBER`). Completions of the IB extension have a separate
    /// number, `DAT_IB_DTO_EVENT`.
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

    /// The completion, if the event is a completion.
    pub fn dto(&self) -> Option<&DtoCompletion> {
        match self {
            Self::Dto(dto) => Some(dto),
            _ => None,
        }
    }
}
