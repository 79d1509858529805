//! Dequeues: how a consumer takes the oldest event without waiting.
//!
//! Three functions, from the common case to the rest. [`EvdInner::dequeue_fast`] passes a plain
//! success of the direct path straight from its CQ to the consumer: a message from an SRQ, on an
//! EVD that takes nothing else, or a message of an EP without an SRQ, or a request. [`EvdInner::dequeue_rest`] does the same for all EVDs
//! of the direct path, takes queued completions, and polls other completions a batch at a time.
//! These two functions run no code of the consumer, except the function that builds the consumer's
//! representation of the event, and wait for no thread that runs code of the consumer.
//! [`EvdInner::dequeue_slow`] takes events of all kinds. `dat_evd_dequeue` begins with
//! [`Queue::dequeue_message`], [`Queue::dequeue_request`] or [`Queue::dequeue_receive`], in which the
//! lock is already held. If these find no event, [`Queue::dequeue_idle`] looks whether there is none.
//! Otherwise [`Queue::prepare_message`] and [`Queue::prepare_shared`] let the first three try again, or
//! [`Queue::dequeue_completion`] takes the completion. [`EvdInner::drain_fast`] takes several events
//! of the common cases under one lock.

mod by_verbs;

use super::harvest::Ready;
use super::queue::{BATCH, Deferred, Queue, Queued, SlowPath, Take, TakeMany};
use super::{EvdInner, Polled, empty};
use crate::datapath::{Completion, CqPath, Direct, DirectCqs, WrId};
use crate::event_data::{Dequeued, DtoCompletion, Success};
use crate::queue_pair::{Completed, QueuePair, Reaped, Request};
use crate::types::{DtoOp, DtoStatus};
use crate::{Error, Result, Subtype};
use mlx5_direct::PlainKind;
use std::sync::atomic::Ordering;

impl QueuePair {
    /// The event of a message that a Send without immediate data has brought.
    #[inline(always)]
    fn message(&self, (cookie, pool): (u64, u32), length: u32) -> Success {
        self.received.add_plain(length);
        Success { ep: self.ep, ep_context: self.context(), cookie, pool, length, op: DtoOp::Receive }
    }

    /// The event of a request.
    #[inline(always)]
    pub(super) fn success(&self, request: &Request) -> Success {
        let Request { cookie, pool, length, op, .. } = *request;
        Success { ep: self.ep, ep_context: self.context(), cookie, pool, length, op }
    }
}

/// Why a fast function took nothing. Then nothing has changed.
pub enum NotTaken {
    /// Nothing has completed, or another function has to look at it.
    NotFound,
    /// There is a completion, which another function has to take.
    Found,
}

impl Queue {
    /// Takes a plain message straight off the CQ of the EVD's only SRQ, unless another kind of
    /// completion is next, or nothing. Without `POOLS`, also leaves a buffer of a pool.
    #[inline(always)]
    fn next_message<const POOLS: bool>(&mut self) -> Result<Success, NotTaken> {
        let cqs = self.cq.as_mut().and_then(CqPath::direct).ok_or(NotTaken::NotFound)?;
        let cq = cqs.only_of_srqs().ok_or(NotTaken::NotFound)?;
        let mut next = cq.peek_only(PlainKind::Received).ok_or(NotTaken::NotFound)?;
        let pair = self.pairs.get_near(next.entry().qpn()).ok_or(NotTaken::Found)?;
        if pair.watches_receives() {
            return Err(NotTaken::Found);
        }
        let buffer = next.reap_fast::<POOLS>().ok_or(NotTaken::Found)?;
        let success = pair.message(buffer, next.entry().byte_count());
        next.take_event();
        Ok(success)
    }

    /// Does the work of [`Queue::next_message`] until there is no such message or no place is left.
    /// Returns how many were taken.
    #[inline(always)]
    fn drain_messages<T: TakeMany>(&mut self, take: T, into: &mut [Option<T::Event>]) -> usize {
        let Self { cq: Some(CqPath::Direct(cqs)), pairs, .. } = self else { return 0 };
        let Some(cq) = cqs.only_of_srqs() else { return 0 };
        let mut n = 0;
        for place in into {
            if !T::is_free(place) {
                break;
            }
            let Some(mut next) = cq.peek_only(PlainKind::Received) else { break };
            let Some(pair) = pairs.get_near(next.entry().qpn()).filter(|pair| !pair.watches_receives())
            else {
                break;
            };
            let Some(buffer) = next.reap_fast::<true>() else { break };
            put(place, take.success(pair.message(buffer, next.entry().byte_count())));
            next.take_event();
            n += 1;
        }
        n
    }

    /// Takes a request that succeeded straight off the CQ, on an EVD with one shared CQ and no CQs
    /// of SRQs, and builds its event. `None` if another kind of completion is next, or nothing: then
    /// nothing has changed.
    #[inline(always)]
    pub fn dequeue_request<T: Take>(&mut self, take: T) -> Option<T::Event> {
        let cq = self.cq.as_mut()?.direct()?.youngest_shared();
        let next = cq.peek_only(PlainKind::Request)?;
        let pair = &**self.pairs.get_near(next.entry().qpn())?;
        let event = pair
            .reap_plain_request_fast::<Direct, _>(next.entry().wqe_counter().into(), |request| {
                take.request(pair, request)
            })?;
        next.take_event();
        Some(event)
    }

    /// Takes a message of an EP without an SRQ straight off the CQ, on an EVD with one shared CQ and no
    /// CQs of SRQs, and builds its event.
    ///
    /// # Errors
    /// Why no event was taken.
    #[inline(always)]
    pub fn dequeue_receive<T: Take>(&mut self, take: T) -> Result<T::Event, NotTaken> {
        let cqs = self.cq.as_mut().and_then(CqPath::direct).ok_or(NotTaken::NotFound)?;
        let cq = cqs.youngest_shared();
        let next = cq.peek_only(PlainKind::Received).ok_or(NotTaken::NotFound)?;
        let pair = self.pairs.get_near(next.entry().qpn()).ok_or(NotTaken::Found)?;
        if pair.watches_receives() {
            return Err(NotTaken::Found);
        }
        let buffer = pair.reap_receive_fast(next.entry().wqe_counter()).ok_or(NotTaken::Found)?;
        let success = pair.message(buffer, next.entry().byte_count());
        next.take_event();
        Ok(take.plain(success))
    }

    /// Takes the next completion of the polled batch, if it is a success without an effect. `None`
    /// if it is another, or if the batch is empty: then nothing has changed.
    fn next_of_batch(&mut self) -> Option<Success> {
        let completion = self.batch.front()?;
        let Completion { wr_id, qpn, status, op, length, immediate, invalidated, .. } = *completion;
        if status != DtoStatus::Success || immediate.is_some() || invalidated.is_some() {
            return None;
        }
        let pair = self.pairs.get(qpn)?;
        let success = match wr_id {
            WrId::Request(named) => pair.success(&pair.reap_plain_request(named)?),
            _ if op != DtoOp::Receive || pair.watches_receives() => return None,
            WrId::Recv(slot) => pair.message(pair.reap_receive(slot)?, length),
            WrId::Srq { entry, .. } => {
                pair.message(pair.srq.as_ref()?.path.reap(entry, &pair.completed_up_to)?, length)
            }
        };
        self.batch.skip();
        self.counts.dequeued(true, true);
        Some(success)
    }

    /// Takes the next completion straight off its CQ, if it is a plain success of the direct path.
    /// `None` if there is none, if a batch has to be polled, or if a completion was queued.
    fn next_success(&mut self) -> Option<Success> {
        let shared = self.slow_path.intersects(SlowPath::SHARED);
        let cqs = self.cq.as_mut().and_then(CqPath::direct)?;
        loop {
            let mut next = cqs.peek(shared)?;
            let pair = self.pairs.get(next.entry().qpn())?;
            let success = match next.entry().kind() {
                PlainKind::Received => {
                    if pair.watches_receives() {
                        return None;
                    }
                    let buffer = if next.is_shared() {
                        pair.reap_receive(next.entry().wqe_counter())?
                    } else {
                        next.reap()?
                    };
                    pair.message(buffer, next.entry().byte_count())
                }
                PlainKind::Request => match pair.reap_request(next.entry().wqe_counter().into()) {
                    Reaped::Event(request) => pair.success(&request),
                    Reaped::Nothing => {
                        next.take();
                        continue;
                    }
                    Reaped::Bind(completed) => {
                        next.take();
                        self.keep(completed);
                        return None;
                    }
                },
            };
            next.take_event();
            return Some(success);
        }
    }

    /// Takes the next completion straight off its CQ, if it is a success without an effect, on either
    /// path.
    #[inline(always)]
    fn next_of_path(&mut self) -> Option<Success> {
        match self.cq.as_mut()? {
            CqPath::Direct(_) => self.next_success(),
            CqPath::Verbs(cq) => cq.find()?.then(|| self.next_by_verbs::<false>())?,
        }
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

    /// The number of events of the completions that wait on the CQs. `None` if they have to be polled
    /// to know it.
    #[inline(always)]
    fn count_completed(&mut self) -> Option<usize> {
        match self.cq.as_mut()? {
            CqPath::Direct(cqs) => cqs.waiting_messages(),
            CqPath::Verbs(cq) => (cq.find() == Some(false)).then_some(0),
        }
    }

    /// Queues a completion that was taken off its CQ. The queue is empty, so it has room.
    #[cold]
    fn keep(&mut self, completed: Completed) {
        let Completed { dto, credit, notify, .. } = completed;
        self.push_dto(Queued { dto, credit });
        self.notified |= notify;
        self.counts.polling = true;
    }
}

impl Queue {
    /// Whether the next event may be taken by [`Queue::dequeue_message`].
    #[inline(always)]
    pub fn has_messages_only(&self) -> bool {
        self.slow_path == SlowPath::MESSAGES
    }

    /// Whether the next event may be taken by [`Queue::dequeue_request`].
    #[inline(always)]
    pub fn has_requests_only(&self) -> bool {
        self.slow_path == SlowPath::REQUESTS
    }

    /// Whether the next event may be taken by [`Queue::dequeue_receive`], and a request by
    /// [`Queue::dequeue_request`].
    #[inline(always)]
    pub fn has_receives(&self) -> bool {
        self.slow_path - SlowPath::REQUESTS == SlowPath::RECEIVES
    }

    /// Whether requests complete on this EVD.
    #[inline(always)]
    pub fn has_requests(&self) -> bool {
        self.slow_path.contains(SlowPath::REQUESTS)
    }

    /// Takes the next event, if it is a message that is next on the CQ of the EVD's only SRQ.
    ///
    /// # Errors
    /// Why no event was taken.
    #[inline(always)]
    pub fn dequeue_message<const POOLS: bool, T: Take>(&mut self, take: T) -> Result<T::Event, NotTaken> {
        Ok(take.plain(self.next_message::<POOLS>()?))
    }

    /// Whether [`Queue::dequeue_message`], which has taken nothing, may take a message now.
    #[inline]
    pub fn prepare_message(&mut self) -> bool {
        let cqs = self.cq.as_mut().and_then(CqPath::direct);
        self.slow_path == SlowPath::MESSAGES && cqs.is_some_and(DirectCqs::prepare_message)
    }

    /// Whether [`Queue::dequeue_request`] and [`Queue::dequeue_receive`], which have taken nothing, may
    /// take a completion now.
    #[inline]
    pub fn prepare_shared(&mut self) -> bool {
        let cqs = self.cq.as_mut().and_then(CqPath::direct);
        SlowPath::SHARED.contains(self.slow_path) && cqs.is_some_and(DirectCqs::prepare_shared)
    }

    /// Takes the next event of an EVD of the direct path that has no queued events, if it is a
    /// completion without an effect. `None` otherwise; a completed bind is then queued.
    #[inline]
    pub fn dequeue_completion<T: Take>(&mut self, take: T) -> Option<T::Event> {
        if !SlowPath::COMPLETIONS.contains(self.slow_path) {
            return None;
        }
        Some(take.success(self.next_success()?))
    }

    /// As [`Queue::dequeue_nothing`], by a quick look: false also in rarer cases.
    #[inline(always)]
    pub fn dequeue_idle(&mut self) -> bool {
        self.counts_nothing(|cqs| cqs.are_idle())
    }

    /// Whether the direct path has no event: none is queued, and no completion waits. Then counts a
    /// dequeue that found nothing. False also if only [`EvdInner::dequeue_rest`] can decide.
    #[inline]
    pub fn dequeue_nothing(&mut self) -> bool {
        self.counts_nothing(DirectCqs::are_empty)
    }

    /// Whether no event is queued, and `look` finds no completion. Then counts a dequeue that found
    /// nothing.
    #[inline(always)]
    fn counts_nothing(&mut self, look: impl FnOnce(&mut DirectCqs) -> bool) -> bool {
        let nothing = SlowPath::COMPLETIONS.contains(self.slow_path)
            && self.cq.as_mut().and_then(CqPath::direct).is_some_and(look);
        if nothing {
            self.counts.dequeued(false, true);
        }
        nothing
    }

    /// Does the work of a wait with a threshold of 1 that finds its event at once: takes the oldest
    /// event, if that is a completion without an effect, and returns it with the number of events that
    /// are left. Instead of that number `None`, if completions have to be harvested to count them.
    ///
    /// `None` where [`EvdInner::wait`] has to wait, or gives the error.
    #[inline]
    pub fn wait_at_once<T: Take>(&mut self, take: T) -> Option<(T::Event, Option<usize>)> {
        let waits_plainly = !self.slow_path.intersects(SlowPath::ALWAYS)
            && self.waitable
            && self.cno.is_none()
            && self.others.is_empty()
            && self.batch.len() == 0;
        if !waits_plainly {
            return None;
        }
        let (event, left) = if self.dtos.is_empty() {
            let event = take.success(self.next_of_path()?);
            self.slow_path -= SlowPath::QUEUED;
            self.counts.not_dequeued += 1;
            (event, self.count_completed())
        } else {
            let completed = self.count_completed()?;
            let dto = self.pop_plain()?;
            (take.any(dto), Some(self.dtos.len() + completed))
        };
        // As for a wait that has looked at the queue.
        self.notified = false;
        self.counts.polling = false;
        self.counts.waits += 1;
        Some((event, left.map(|left| left.min(self.qlen))))
    }

    /// Takes the next event in the common cases. `None` without a change otherwise.
    #[inline(always)]
    fn dequeue_plain<T: Take>(&mut self, take: T) -> Option<T::Event> {
        // Each case builds the event where it has the fields in registers.
        if self.has_messages_only() {
            self.dequeue_message::<true, _>(take).ok()
        } else if self.has_requests_only() {
            self.dequeue_request(take)
        } else if self.has_receives() {
            self.dequeue_receive(take).ok()
        } else {
            None
        }
    }
}

impl EvdInner {
    /// Dequeues in the common cases: the next event is a completion without a side effect.
    #[inline(always)]
    pub fn dequeue_fast<T: Take>(&self, take: T) -> Polled<T::Event> {
        if let Some(mut queue) = self.queue.try_lock_fast() {
            if let Some(event) = queue.dequeue_plain(take) {
                return Polled::Dto(event);
            }
            if queue.has_batch_only()
                && let Some(success) = queue.next_of_batch()
            {
                return Polled::Dto(take.success(success));
            }
        }
        self.dequeue_rest(take)
    }

    /// Dequeues several events in the common cases, under one lock. Returns how many; the caller
    /// dequeues one by one what comes next. Stops before a place whose old event has something to
    /// drop, because dropping it may take any lock.
    #[inline]
    pub(crate) fn drain_fast<T: TakeMany>(&self, take: T, into: &mut [Option<T::Event>]) -> usize {
        let mut locked = self.queue();
        let queue = &mut *locked;
        if queue.has_messages_only() {
            let taken = queue.drain_messages(take, into);
            if taken > 0 {
                return taken;
            }
        } else if queue.has_requests_only() {
            let taken = fill_with::<T>(into, || queue.dequeue_request(take));
            if taken > 0 {
                return taken;
            }
        } else if queue.has_receives() {
            let taken = fill_with::<T>(into, || queue.dequeue_receive(take).ok());
            if taken > 0 {
                return taken;
            }
        } else if queue.has_batch_only() && queue.batch.len() > 0 {
            return fill(into, take, || queue.next_of_batch());
        } else if !SlowPath::COMPLETIONS.contains(queue.slow_path) {
            // Events may be queued, or a dequeue has to be slow.
            return 0;
        }
        // Several CQs of one kind, requests and messages on one EVD, or the verbs path.
        fill(into, take, || queue.next_success().or_else(|| queue.next_by_verbs::<false>()))
    }

    /// Does the work of [`EvdInner::dequeue_fast`] for all completions, and for queued ones. Leaves
    /// completions of a polled batch that this dequeue does not take for the next ones.
    #[inline(never)]
    pub fn dequeue_rest<T: Take>(&self, take: T) -> Polled<T::Event> {
        let mut locked = self.queue();
        let queue = &mut *locked;
        if queue.slow_path.intersects(SlowPath::ALWAYS) || !queue.others.is_empty() {
            return Polled::Slow;
        }
        if queue.dtos.is_empty() {
            let success = if queue.batch.len() > 0 {
                queue.next_of_batch()
            } else {
                // The next dequeue may be fast again.
                queue.slow_path -= SlowPath::QUEUED;
                queue.next_success().or_else(|| queue.next_by_verbs::<false>())
            };
            let polled = match success {
                Some(success) => return Polled::Dto(take.success(success)),
                None if queue.dequeue_nothing() => Polled::Empty,
                None if queue.dtos.is_empty() => self.dequeue_polled(queue),
                None => Polled::Slow,
            };
            drop(locked);
            return match polled {
                Polled::Dto(dto) => Polled::Dto(take.any(dto)),
                Polled::Empty => Polled::Empty,
                Polled::Slow => Polled::Slow,
            };
        }
        let Some(dto) = queue.pop_plain() else { return Polled::Slow };
        queue.counts.dequeued(true, false);
        drop(locked);
        Polled::Dto(take.any(dto))
    }

    /// Takes the next completion of the polled batch; polls a batch if none is left. On the verbs
    /// path a batch is one completion: the CQ keeps the others that were polled.
    #[inline(never)]
    fn dequeue_polled(&self, queue: &mut Queue) -> Polled<DtoCompletion> {
        let by_verbs = queue.cq.as_mut().and_then(CqPath::by_verbs).is_some();
        let most = if by_verbs { 1 } else { BATCH };
        if queue.batch.len() == 0 {
            match self.poll_batch(queue, most) {
                Ok(0) => {
                    queue.counts.dequeued(false, true);
                    return Polled::Empty;
                }
                Ok(_) => {}
                Err(_) => return Polled::Slow,
            }
            if let Some(success) = queue.next_of_batch() {
                return Polled::Dto(success.into());
            }
        }
        let mut deferred = Deferred::default();
        loop {
            let Some(completion) = queue.batch.pop() else {
                if by_verbs && deferred.is_nothing() && self.poll_batch(queue, most).is_ok_and(|n| n > 0) {
                    continue;
                }
                break;
            };
            let Some(Ready { dto, credit, notify }) = self.take(queue, &completion, &mut deferred) else {
                // Suppressed, or of an EP that is gone.
                continue;
            };
            if deferred.is_nothing() && !self.discards && is_plain(&dto) {
                credit.release(|number| queue.srqs.get(&number));
                queue.counts.dequeued(true, true);
                return Polled::Dto(dto);
            }
            self.put(queue, dto, credit, notify, &mut deferred);
            break;
        }
        // Tells later dequeues that polling found the queued completion.
        queue.counts.polling = !queue.dtos.is_empty();
        queue.defer(deferred);
        Polled::Slow
    }

    /// Takes the oldest event of any kind.
    ///
    /// # Errors
    /// As [`Evd::dequeue`](crate::Evd::dequeue).
    pub fn dequeue_slow(&self) -> Result<Dequeued> {
        self.check()?;
        if self.waiting.load(Ordering::Acquire) {
            return Err(Error::state(Subtype::InvalidStateEvdWaiter, "another thread waits on this EVD"));
        }
        let mut queue = self.queue();
        let was_empty = queue.len() == 0;
        let deferred = if !queue.others.is_empty() {
            self.harvest(&mut queue)?
        } else if queue.dtos.is_empty() {
            // One batch is enough: the batch contains the oldest event.
            self.harvest_batch(&mut queue)?
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
        match event {
            Some(event) => {
                self.on_dequeued(&event);
                Ok(event)
            }
            None => Err(empty()),
        }
    }

    /// Applies the effects of an event that the consumer has dequeued: a finished RMR bind takes
    /// effect, and an RMR that a peer has invalidated is no longer bound.
    #[inline]
    pub(super) fn on_dequeued(&self, event: &Dequeued) {
        let Dequeued::Dto(dto) = event else { return };
        if let Some(bind) = dto.as_bind() {
            if let Some(window) = self.device.rkeys.window(bind.rmr.0) {
                window.bind_done(bind.status == DtoStatus::Success);
            }
        } else if let Some(rkey) = dto.invalidated {
            self.device.rkeys.invalidated(rkey);
        }
    }
}

/// Takes events by `next` until it gives none or no place is left. Returns how many.
#[inline(always)]
fn fill<T: TakeMany>(
    into: &mut [Option<T::Event>],
    take: T,
    mut next: impl FnMut() -> Option<Success>,
) -> usize {
    fill_with::<T>(into, || Some(take.success(next()?)))
}

/// As [`fill`], with a `next` that builds the event.
#[inline(always)]
fn fill_with<T: TakeMany>(
    into: &mut [Option<T::Event>],
    mut next: impl FnMut() -> Option<T::Event>,
) -> usize {
    let mut n = 0;
    for place in into {
        if !T::is_free(place) {
            break;
        }
        let Some(event) = next() else { break };
        put(place, event);
        n += 1;
    }
    n
}

/// Puts an event into a place that is free.
#[inline(always)]
fn put<E>(place: &mut Option<E>, event: E) {
    // The old event has nothing to drop.
    std::mem::forget(place.replace(event));
}

/// Whether the event has no effect when the consumer takes it.
#[inline]
fn is_plain(dto: &DtoCompletion) -> bool {
    dto.invalidated.is_none() && dto.op != DtoOp::RmrBind
}
