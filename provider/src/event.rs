//! Events as the consumer gets them from [`Evd::dequeue`], [`Evd::drain`] and [`Evd::wait`].

use crate::datapath::{Direct, Feed, Path};
use crate::evd::{Polled, QueueGuard, Take, WaitError};
use crate::event_data::{
    AsyncEvent, ConnectionEvent, ConnectionEventKind, DatagramEvent, Dequeued, DtoCompletion, Notice,
    RmrBindCompletion, Success,
};
use crate::queue_pair::{QueuePair, Request};
use crate::types::{ConnQual, ServiceType, SpId, port_of};
use crate::{Cr, Ep, Evd, Result, ReturnType};
use std::iter::FusedIterator;
use std::time::Duration;

/// What has happened.
///
/// ```no_run
/// # use doorbell::*;
/// # fn serve(evd: &Evd) -> Result<()> {
/// for event in evd.drain(64)? {
///     match event {
///         Event::Received(message) => println!("{} bytes on {:?}", message.length, message.ep),
///         Event::Done(request) => println!("request {} is done", request.cookie),
///         Event::Failed(lost) => println!("{:?} on {:?}", lost.status, lost.ep),
///         Event::Disconnected(end) => println!("{:?}: {:?}", end.ep, end.kind),
///         other => println!("{other:?}"),
///     }
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum Event {
    /// A message is in a buffer that was posted, or an RDMA Write with immediate data has used a
    /// buffer up ([`DtoFields::immediate`](crate::DtoFields::immediate)).
    Received(DtoCompletion),
    /// A request (Send, RDMA or atomic operation) is done.
    Done(DtoCompletion),
    /// A receive or a request failed, or was flushed because its connection has ended.
    Failed(DtoCompletion),
    /// An RMR was bound, or the bind failed.
    Bound(RmrBindCompletion),
    /// A peer requests a connection; accept or reject the request. Dropping it rejects it.
    ConnectionRequest(CrArrival),
    /// A connection is up. On the side that has accepted, a message can come first: it confirms the
    /// connection, and can be answered at once.
    Connected(ConnectionEvent),
    /// A connection that was up has ended. On an EVD that also has the EP's completions, this event
    /// follows the last message of the connection.
    Disconnected(ConnectionEvent),
    /// A connection did not come up. After an accept, the peer has gone before it confirmed the
    /// connection: this event comes instead of `Connected` and `Disconnected`.
    /// The kind is [`Disconnected`](ConnectionEventKind::Disconnected) if this side has ended the
    /// set-up with [`Ep::disconnect`].
    NotConnected(ConnectionEvent),
    /// Nothing of a connection that has ended, or that did not come up, is left on the device: the
    /// EP can be closed or reset, and its buffers can be used again. All its completions are in its
    /// EVDs, and those in the EVD of this event have left before. Only of EPs that ask for it:
    /// [`EpBuilder::tell_drained`](crate::EpBuilder::tell_drained).
    Drained(ConnectionEvent),
    /// A UD EP has resolved another EP, or has failed to. Boxed because the event is large and
    /// rare.
    Datagram(Box<DatagramEvent>),
    /// Of the device or of an object, not of an operation or a connection
    /// ([`Ia::async_evd`](crate::Ia::async_evd)).
    Async(AsyncEvent),
    /// Posted by the program with [`Evd::post_software_event`].
    Software(u64),
}

/// A connection request (`DAT_CR_ARRIVAL_EVENT_DATA`).
#[derive(Debug)]
pub struct CrArrival {
    /// The PSP, RSP or CSP at which the request arrived.
    pub sp: SpId,
    /// The connection qualifier on which that service point listens.
    #[doc(hidden)]
    pub conn_qual: ConnQual,
    /// The request.
    pub cr: Cr,
    /// The EP that the provider has created for the request, if the service point asked for one.
    pub ep: Option<Ep>,
}

impl CrArrival {
    /// The port at which that service point listens.
    pub fn port(&self) -> u16 {
        port_of(self.conn_qual)
    }
}

/// The result of [`Evd::wait_threshold`].
#[derive(Debug)]
pub struct Waited {
    /// The oldest event.
    pub event: Event,
    /// The number of events left in the queue (`nmore`, R245).
    pub more: usize,
}

/// Takes completions as [`Event`]s, in the form in which [`Evd::dequeue`] returns them: no copy.
#[derive(Clone, Copy)]
struct Taken;

impl Take for Taken {
    type Event = Result<Option<Event>>;
    const POOLS: bool = true;

    #[inline(always)]
    fn success(self, success: Success) -> Self::Event {
        Ok(Some(Event::Received(success.into())))
    }

    #[inline(always)]
    fn request(self, pair: &QueuePair, request: &Request) -> Self::Event {
        Ok(Some(Event::Done(pair.success(request).into())))
    }

    #[inline(always)]
    fn any(self, dto: DtoCompletion) -> Self::Event {
        Ok(Some(dto.into()))
    }
}

impl Evd {
    /// Takes the oldest event, whatever its notification mode (R251). `None` if there is none.
    ///
    /// # Errors
    /// INVALID_STATE (EVD_WAITER) while a thread waits (R248); INVALID_HANDLE after the EVD was
    /// freed.
    ///
    /// # References
    /// dat_evd_dequeue(3DAT).
    #[inline]
    pub fn dequeue(&self) -> Result<Option<Event>> {
        if let Some(queue) = self.inner.queue_fast() {
            if queue.is_fed_by::<Direct>(Feed::Messages) {
                return self.dequeue_message(queue);
            }
            if queue.is_fed_by::<Direct>(Feed::Requests) {
                return self.dequeue_request(queue);
            }
        }
        self.dequeue_any()
    }

    // A function for each feed, so that each saves only the registers that it uses.

    #[inline(never)]
    fn dequeue_message(&self, queue: QueueGuard<'_>) -> Result<Option<Event>> {
        self.dequeue_from::<Direct>(Feed::Messages, queue)
    }

    #[inline(never)]
    fn dequeue_request(&self, queue: QueueGuard<'_>) -> Result<Option<Event>> {
        self.dequeue_from::<Direct>(Feed::Requests, queue)
    }

    #[inline(always)]
    fn dequeue_from<P: Path>(&self, feed: Feed, mut queue: QueueGuard<'_>) -> Result<Option<Event>> {
        match queue.dequeue_from::<P, _>(feed, true, Taken) {
            Polled::Dto(taken) => return taken,
            Polled::Empty => return Ok(None),
            Polled::Slow => {}
        }
        drop(queue);
        self.dequeue_any()
    }

    #[inline(never)]
    fn dequeue_any(&self) -> Result<Option<Event>> {
        match self.inner.dequeue_fast(Taken) {
            Polled::Dto(taken) => return taken,
            Polled::Empty => return Ok(None),
            Polled::Slow => {}
        }
        Ok(self.inner.dequeue_slow()?.map(Event::from))
    }

    /// Takes the oldest events, in order, until there is none or `most` were taken. Events that
    /// come meanwhile are taken as well.
    ///
    /// What the iterator does not take stays in the queue. Each event is taken as by
    /// [`Evd::dequeue`]; a call that is refused ends the iterator, and the next one has the error.
    ///
    /// ```no_run
    /// # use doorbell::*;
    /// # fn reap(evd: &Evd) -> Result<()> {
    /// for event in evd.drain(32)? {
    ///     println!("{event:?}");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Evd::dequeue`].
    pub fn drain(&self, most: usize) -> Result<Drain<'_>> {
        self.inner.may_dequeue()?;
        Ok(Drain { evd: self, left: most })
    }

    /// Waits for the next event, and takes it.
    ///
    /// A wait for completions polls for a short time before it sleeps
    /// ([`IaBuilder::poll_time`](crate::IaBuilder::poll_time)).
    ///
    /// # Errors
    /// INVALID_STATE for a second waiter (R248) or an unwaitable EVD (R249); ABORT if the EVD is
    /// freed meanwhile (R258); INTERRUPTED_CALL after a signal's handler has run, also with
    /// `SA_RESTART`: wait again.
    ///
    /// # References
    /// dat_evd_wait(3DAT).
    pub fn wait(&self) -> Result<Event> {
        Ok(self.wait_threshold(1, None)?.event)
    }

    /// As [`Evd::wait`], but not longer than `timeout`. `None` if no event has come.
    ///
    /// # Errors
    /// As [`Evd::wait`].
    pub fn wait_for(&self, timeout: Duration) -> Result<Option<Event>> {
        match self.wait_threshold(1, Some(timeout)) {
            Ok(waited) => Ok(Some(waited.event)),
            Err(WaitError { error, .. }) if error.return_type() == ReturnType::TimeoutExpired => Ok(None),
            Err(failed) => Err(failed.error),
        }
    }

    /// The oldest event. Waits if there is none, or gives the error of the wait.
    pub(crate) fn next(&self) -> Result<Event> {
        match self.dequeue() {
            Ok(Some(event)) => Ok(event),
            _ => self.wait(),
        }
    }

    /// As [`Evd::next`], with a time limit.
    pub(crate) fn next_for(&self, timeout: Duration) -> Result<Option<Event>> {
        match self.dequeue() {
            Ok(Some(event)) => Ok(Some(event)),
            _ => self.wait_for(timeout),
        }
    }

    /// Waits until `threshold` events are queued and one of them may wake a waiter. Then takes the
    /// oldest event, and says how many are left.
    ///
    /// `timeout` limits the whole call, however often the thread is woken (R247). `None` waits
    /// without limit, and zero polls once.
    ///
    /// # Errors
    /// TIMEOUT_EXPIRED (R244); INVALID_PARAMETER (ARG3) for a threshold of 0 or over the EVD's
    /// length (R242, R243); INVALID_STATE also for a threshold over 1 with unsignalled or solicited
    /// streams (R232, R236); otherwise as [`Evd::wait`].
    ///
    /// # References
    /// dat_evd_wait(3DAT).
    pub fn wait_threshold(&self, threshold: usize, timeout: Option<Duration>) -> Result<Waited, WaitError> {
        if threshold == 1
            && let Some((Ok(Some(event)), more)) = self.inner.wait_fast(Taken)
        {
            return Ok(Waited { event, more });
        }
        let (taken, more) = self.inner.wait(timeout, threshold)?;
        Ok(Waited { event: taken.into(), more })
    }
}

/// The events that [`Evd::drain`] takes.
#[derive(Debug)]
#[must_use = "the events stay in the queue until the iterator takes them"]
pub struct Drain<'a> {
    evd: &'a Evd,
    left: usize,
}

impl Iterator for Drain<'_> {
    type Item = Event;

    #[inline]
    fn next(&mut self) -> Option<Event> {
        self.left = self.left.checked_sub(1)?;
        match self.evd.dequeue() {
            Ok(Some(event)) => Some(event),
            Ok(None) | Err(_) => {
                self.left = 0;
                None
            }
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (0, Some(self.left))
    }
}

impl FusedIterator for Drain<'_> {}

impl From<DtoCompletion> for Event {
    #[inline]
    fn from(dto: DtoCompletion) -> Self {
        if !dto.is_success() {
            Self::Failed(dto)
        } else if dto.op.is_receive() {
            Self::Received(dto)
        } else {
            Self::Done(dto)
        }
    }
}

impl From<ConnectionEvent> for Event {
    fn from(event: ConnectionEvent) -> Self {
        match event.kind {
            ConnectionEventKind::Established => Self::Connected(event),
            ConnectionEventKind::Drained => Self::Drained(event),
            kind if kind.is_end() && !event.never_up => Self::Disconnected(event),
            _ => Self::NotConnected(event),
        }
    }
}

impl From<Dequeued> for Event {
    fn from(taken: Dequeued) -> Self {
        match taken {
            Dequeued::Dto(dto) => dto.as_bind().map_or_else(|| dto.into(), Self::Bound),
            Dequeued::Notice(Notice::Connection(event)) => event.into(),
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

impl Event {
    /// The event's number (`DAT_EVENT_NUMBER`). Completions of the IB extension have a separate
    /// number, `DAT_IB_DTO_EVENT`.
    pub fn number(&self) -> u32 {
        match self {
            Self::Received(dto) | Self::Done(dto) | Self::Failed(dto) if dto.op.is_extension() => 0x4_0000,
            Self::Received(_) | Self::Done(_) | Self::Failed(_) => 1,
            Self::Bound(_) => 0x1001,
            Self::ConnectionRequest(arrival) if arrival.cr.service_type() == ServiceType::Ud => 0x4_0001,
            Self::ConnectionRequest(_) => 0x2001,
            Self::Datagram(event) => event.kind.number(),
            Self::Connected(event)
            | Self::Disconnected(event)
            | Self::NotConnected(event)
            | Self::Drained(event) => event.kind as u32,
            Self::Async(event) => event.kind as u32,
            Self::Software(_) => 0x1_0001,
        }
    }

    /// What has completed, with success or not, if the event is of a receive or a request.
    pub fn completion(&self) -> Option<&DtoCompletion> {
        match self {
            Self::Received(dto) | Self::Done(dto) | Self::Failed(dto) => Some(dto),
            _ => None,
        }
    }

    /// The change of a connection, if the event is one.
    pub fn connection(&self) -> Option<&ConnectionEvent> {
        match self {
            Self::Connected(event)
            | Self::Disconnected(event)
            | Self::NotConnected(event)
            | Self::Drained(event) => Some(event),
            _ => None,
        }
    }
}
