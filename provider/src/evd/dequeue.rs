//! Dequeues: how a consumer takes the oldest event without waiting.
//!
//! One body, [`Queue::take_from`], passes a success straight from its CQ to the consumer. It is
//! compiled for each data path and each [`Feed`]. A *fast* dequeue ([`Queue::dequeue_fast`]) is
//! that body for an EVD with one feed, by the thread that owns all locks. A *slow* dequeue does
//! everything else: [`Queue::dequeue_slow`] what can be done under the lock of the EVD without code
//! of the consumer, and [`EvdInner::dequeue_slow`] the rest: it harvests, tells EPs, and gives
//! events of any kind and all errors.
//!
//! `dat_evd_dequeue`, [`Evd::dequeue`](crate::Evd::dequeue) and waits all take completions by these
//! functions.

use super::pairs::Pairs;
use super::queue::{Queue, Queued, State};
use super::{EvdInner, Polled};
use crate::datapath::{Direct, Feed, Next, NextOnCq, Path, WrId, with_path};
use crate::event_data::{Dequeued, DtoCompletion, Success};
use crate::queue_pair::{QueuePair, Request};
use crate::types::{DtoOp, DtoStatus};
use crate::{Error, Result, Subtype};
use std::sync::atomic::Ordering;

/// What a consumer makes of a completion.
pub trait Take: Copy {
    /// The consumer's representation of an event.
    type Event;
    /// Whether the consumer has pools of buffers.
    const POOLS: bool;
    /// Builds the event of a success of an operation that is not of the extension.
    fn success(self, success: Success) -> Self::Event;
    /// Builds the event of a request that succeeded, with the restriction of [`Take::success`].
    #[inline(always)]
    fn request(self, pair: &QueuePair, request: &Request) -> Self::Event {
        self.success(pair.success(request))
    }
    /// Builds the event of any completion.
    fn any(self, dto: DtoCompletion) -> Self::Event;
}

/// Takes completions as they are.
#[derive(Clone, Copy)]
struct AsDto;

impl Take for AsDto {
    type Event = DtoCompletion;
    const POOLS: bool = true;

    #[inline(always)]
    fn success(self, success: Success) -> DtoCompletion {
        success.into()
    }

    #[inline(always)]
    fn any(self, dto: DtoCompletion) -> DtoCompletion {
        dto
    }
}

impl Queue {
    /// Takes the next completion straight off its CQ, if it is a success without an effect.
    #[inline(always)]
    fn take_from<P: Path, T: Take>(&mut self, feed: Feed, fast: bool, take: T) -> Polled<T::Event> {
        let Self { cq, pairs, .. } = self;
        let Some(cqs) = cq.as_mut().and_then(P::cq) else { return Polled::Slow };
        let Some(next) = cqs.next(feed, fast) else {
            return if cqs.is_empty(feed, fast) { Polled::Empty } else { Polled::Slow };
        };
        match reap::<P, T>(next, pairs, fast, take) {
            Some(event) => Polled::Dto(event),
            None => Polled::Slow,
        }
    }

    /// Whether this feed is the one of the next event, so that [`Queue::dequeue_from`] may take it.
    #[inline(always)]
    pub fn is_fed_by<P: Path>(&self, feed: Feed) -> bool {
        if P::Cq::ONE {
            return feed == Feed::Shared && State::COMPLETIONS.contains(self.state);
        }
        match feed {
            Feed::Messages => self.state == State::MESSAGES,
            Feed::Requests => self.state == State::REQUESTS,
            Feed::Shared => self.state - State::REQUESTS == State::RECEIVES,
            Feed::Receives | Feed::Any => false,
        }
    }

    /// The feed of the next event, if that is a completion.
    #[inline(always)]
    fn feed<P: Path>(&self) -> Feed {
        let feeds = [Feed::Messages, Feed::Requests, Feed::Shared];
        feeds.into_iter().find(|&feed| self.is_fed_by::<P>(feed)).unwrap_or(Feed::Any)
    }

    /// Takes the next event off this feed, which is the only one. `fast`: for the owner of all
    /// locks, in the common case.
    #[inline(always)]
    pub fn dequeue_from<P: Path, T: Take>(&mut self, feed: Feed, fast: bool, take: T) -> Polled<T::Event> {
        let polled = self.take_from::<P, T>(feed, fast, take);
        if let Polled::Empty = polled {
            self.counts.not_found += 1;
        }
        polled
    }

    /// The fast dequeue.
    #[inline(always)]
    pub(crate) fn dequeue_fast<P: Path, T: Take>(&mut self, take: T) -> Polled<T::Event> {
        for feed in [Feed::Messages, Feed::Requests, Feed::Shared] {
            if self.is_fed_by::<P>(feed) {
                return self.dequeue_from::<P, T>(feed, true, take);
            }
        }
        Polled::Slow
    }

    /// The part of the slow dequeue that runs no code of the consumer, except for what builds the
    /// event: takes a completion off any CQ, or a queued one without an effect.
    #[inline(always)]
    pub fn dequeue_slow<T: Take>(&mut self, take: T) -> Polled<T::Event> {
        if self.state.intersects(State::ALWAYS_SLOW) {
            return Polled::Slow;
        }
        if self.state.contains(State::QUEUED) {
            if !self.others.is_empty() {
                return Polled::Slow;
            }
            if !self.dtos.is_empty() {
                let Some(dto) = self.pop_plain() else { return Polled::Slow };
                self.counts.found += 1;
                return Polled::Dto(take.any(dto));
            }
            // The next dequeue may be fast again.
            self.state -= State::QUEUED;
        }
        with_path!(self.path, P => loop {
            let feed = self.feed::<P>();
            match self.dequeue_from::<P, T>(feed, false, take) {
                Polled::Slow if self.pass_suppressed::<P>(feed) => {}
                polled => return polled,
            }
        })
    }

    /// Takes successes of suppressed requests off this feed, up to the first completion of another
    /// kind: they have no events. Returns whether there were any.
    #[inline(never)]
    fn pass_suppressed<P: Path>(&mut self, feed: Feed) -> bool {
        let Self { cq, pairs, .. } = self;
        let Some(cqs) = cq.as_mut().and_then(P::cq) else { return false };
        let mut any = false;
        while let Some(next) = cqs.next(feed, false)
            && let WrId::Request(named) = next.wr_id()
            && pairs.get(next.qpn()).is_some_and(|pair| pair.pass_suppressed::<P>(named))
        {
            next.take();
            any = true;
        }
        any
    }

    /// Takes the oldest queued completion, if it has no effect, and releases what it holds.
    #[inline]
    fn pop_plain(&mut self) -> Option<DtoCompletion> {
        if !is_plain(&self.dtos.front()?.dto) {
            return None;
        }
        let Queued { dto, credit } = self.dtos.pop_front()?;
        credit.release(|number| self.srqs.get(&number));
        Some(dto)
    }

    /// Does the work of a wait with a threshold of 1 that finds its event at once: takes the oldest
    /// event, if that is a completion without an effect, and returns it with the number of events
    /// that are left. Instead of that number `None`, if completions have to be harvested to count
    /// them.
    ///
    /// `None` where `EvdInner::wait` has to wait, or gives the error.
    #[inline]
    pub fn wait_fast<T: Take>(&mut self, take: T) -> Option<(T::Event, Option<usize>)> {
        let waits_plainly = !self.state.intersects(State::ALWAYS_SLOW)
            && self.waitable
            && self.cno.is_none()
            && self.others.is_empty();
        if !waits_plainly {
            return None;
        }
        let (event, left) = if self.dtos.is_empty() {
            let (event, left) = with_path!(self.path, P => {
                let feed = self.feed::<P>();
                let Polled::Dto(event) = self.take_from::<P, T>(feed, false, take) else { return None };
                (event, self.count_waiting::<P>())
            });
            self.state -= State::QUEUED;
            self.counts.not_dequeued += 1;
            (event, left)
        } else {
            let waiting = with_path!(self.path, P => self.count_waiting::<P>())?;
            let dto = self.pop_plain()?;
            (take.any(dto), Some(self.dtos.len() + waiting))
        };
        // As for a wait that has looked at the queue.
        self.notified = false;
        self.counts.waits += 1;
        Some((event, left.map(|left| left.min(self.qlen))))
    }

    /// The number of events of the completions that wait on the CQs. `None` if they have to be
    /// polled to know it.
    #[inline(always)]
    fn count_waiting<P: Path>(&mut self) -> Option<usize> {
        P::cq(self.cq.as_mut()?)?.count_waiting()
    }
}

impl EvdInner {
    /// [`Queue::dequeue_fast`], if this thread owns the lock of the queue.
    #[inline(always)]
    pub(crate) fn dequeue_fast<T: Take>(&self, take: T) -> Polled<T::Event> {
        match self.queue.try_lock_fast() {
            Some(mut queue) => with_path!(self.device.path, P => queue.dequeue_fast::<P, T>(take)),
            None => Polled::Slow,
        }
    }

    /// The next event, if that is a message for an SRQ on the direct path, which the fast dequeue
    /// takes.
    #[inline(always)]
    pub(crate) fn message_fast(&self) -> Option<DtoCompletion> {
        let mut queue = self.queue.try_lock_fast()?;
        if !queue.is_fed_by::<Direct>(Feed::Messages) {
            return None;
        }
        match queue.take_from::<Direct, _>(Feed::Messages, true, AsDto) {
            Polled::Dto(dto) => Some(dto),
            Polled::Empty | Polled::Slow => None,
        }
    }

    /// Whether a dequeue is refused.
    ///
    /// # Errors
    /// As [`Evd::dequeue`](crate::Evd::dequeue).
    pub(crate) fn may_dequeue(&self) -> Result<()> {
        self.check()?;
        if self.waiting.load(Ordering::Acquire) {
            return Err(Error::state(Subtype::InvalidStateEvdWaiter, "another thread waits on this EVD"));
        }
        Ok(())
    }

    /// The slow dequeue: takes the oldest event of any kind. An agent of the consumer may run, so
    /// the caller holds no lock.
    ///
    /// # Errors
    /// As [`Evd::dequeue`](crate::Evd::dequeue).
    pub fn dequeue_slow(&self) -> Result<Option<Dequeued>> {
        self.may_dequeue()?;
        let mut queue = self.queue();
        match queue.dequeue_slow(AsDto) {
            Polled::Dto(dto) => return Ok(Some(Dequeued::Dto(dto))),
            Polled::Empty => return Ok(None),
            Polled::Slow => {}
        }
        let was_empty = queue.len() == 0;
        let deferred = if !queue.others.is_empty() {
            self.harvest(&mut queue)?
        } else if queue.dtos.is_empty() {
            self.harvest_some(&mut queue)?
        } else {
            queue.take_deferred()
        };
        if !deferred.is_nothing() {
            drop(queue);
            self.run_deferred(deferred);
            queue = self.queue();
        }
        let event = queue.pop();
        queue.counts.dequeued(event.is_some(), was_empty);
        drop(queue);
        if let Some(event) = &event {
            self.on_dequeued(event);
        }
        Ok(event)
    }

    /// Applies the effects of an event that the consumer has dequeued: a finished RMR bind takes
    /// effect, and an RMR that a peer has invalidated is no longer bound.
    #[inline]
    pub(super) fn on_dequeued(&self, event: &Dequeued) {
        let Dequeued::Dto(dto) = event else { return };
        if let Some(bind) = dto.as_bind() {
            if let Some(window) = self.device.rkeys.window(bind.rmr.0) {
                window.bind_done(bind.status == DtoStatus::Success, dto.length);
            }
        } else if let Some(rkey) = dto.invalidated {
            self.device.rkeys.invalidated(rkey);
        }
    }
}

/// The event of this completion, if the completion has no effect beyond its event. Otherwise
/// `None`, and nothing has changed. `fast`: also `None` if this thread does not own the locks that
/// it takes.
#[inline(always)]
fn reap<P: Path, T: Take>(
    mut next: <P::Cq as NextOnCq>::Next<'_>,
    pairs: &Pairs,
    fast: bool,
    take: T,
) -> Option<T::Event> {
    let pair = &**if fast { pairs.get_near(next.qpn()) } else { pairs.get(next.qpn()) }?;
    let buffer = match next.wr_id() {
        WrId::Request(named) => {
            // The event is built where the request is, without a copy.
            let event = pair.reap_request::<P, _>(fast, named, |request| take.request(pair, request))?;
            next.take();
            return Some(event);
        }
        _ if pair.watches_receives() => return None,
        WrId::Recv(slot) => pair.reap_receive(fast, slot)?,
        WrId::Srq { .. } => {
            let srq = pair.srq.as_ref().and_then(|srq| P::srq_shared(&srq.path));
            next.reap(T::POOLS, srq, &pair.completed_up_to)?
        }
    };
    // The event first: then less is in registers when the entry is taken.
    let event = take.success(pair.message(buffer, next.length()));
    next.take();
    Some(event)
}

/// Whether the event has no effect when the consumer takes it.
#[inline]
fn is_plain(dto: &DtoCompletion) -> bool {
    dto.invalidated.is_none() && dto.op != DtoOp::RmrBind
}
