//! Dequeues: how a consumer takes the oldest event without waiting.
//!
//! Three functions, from the common case to the rest. [`EvdInner::dequeue_fast`] passes a plain
//! success straight from a CQ of the direct path to the consumer. What it does not take, it leaves
//! to [`EvdInner::dequeue_batch`], which takes queued completions, and polls completions a batch at
//! a time. Neither runs code of the consumer but the function that builds the consumer's
//! representation of the event, and neither waits for a thread that runs such code.
//! [`EvdInner::dequeue_slow`] takes events of all kinds.

use super::harvest::Ready;
use super::queue::{Deferred, Queue, Queued, SlowPath};
use super::{EvdInner, Polled, empty};
use crate::datapath::CqPath;
use crate::event_data::{Dequeued, DtoCompletion, Success};
use crate::queue_pair::{Completed, Reaped};
use crate::sync::BiasedMutexGuard;
use crate::types::{DtoOp, DtoStatus};
use crate::{Error, Result, Subtype};
use mlx5_direct::PlainKind;
use std::sync::atomic::Ordering;

impl Queue {
    /// Takes the next completion straight off its CQ, if it is a plain success of the direct path.
    /// `None` if there is none, or if a batch has to be polled.
    #[inline(always)]
    fn next_success(&mut self) -> Option<Success> {
        let shared = self.slow_path.contains(SlowPath::REQUESTS);
        let cqs = self.cq.as_mut().and_then(CqPath::direct)?;
        loop {
            let (cq, plain) = cqs.peek(shared)?;
            let pair = self.pairs.get(plain.qpn)?;
            let (cookie, pool, length, op) = match plain.kind {
                PlainKind::Received => {
                    if pair.watches_receives() {
                        return None;
                    }
                    let (cookie, pool) = if cq.is_shared() {
                        pair.reap_receive(plain.wqe_counter)?
                    } else {
                        cq.reap(plain.wqe_counter)?
                    };
                    pair.received.add_plain(plain.byte_count);
                    (cookie, pool, plain.byte_count, DtoOp::Receive)
                }
                PlainKind::Request => match pair.reap_request(plain.wqe_counter.into()) {
                    Reaped::Event { cookie, pool, op, length } => (cookie, pool, length, op),
                    Reaped::Nothing => {
                        cq.take_peeked();
                        continue;
                    }
                    Reaped::Bind(completed) => {
                        cq.take_peeked();
                        self.keep(completed);
                        return None;
                    }
                },
            };
            cq.take_peeked();
            self.counts.polled += 1;
            return Some(Success { ep: pair.ep, ep_context: pair.context(), cookie, pool, length, op });
        }
    }
}

impl Queue {
    /// Queues a completion that [`Queue::next_success`] has taken off its CQ. The queue is empty,
    /// so it has room.
    #[cold]
    fn keep(&mut self, completed: Completed) {
        let Completed { dto, credit, notify, .. } = completed;
        self.dtos.push_back(Queued { dto, credit });
        self.notified |= notify;
        self.counts.polling = true;
    }
}

impl EvdInner {
    /// Dequeues in the common cases: the next event is a completion without a side effect.
    /// `success` and `any` build the consumer's representation of the completion.
    #[inline(always)]
    pub(crate) fn dequeue_fast<T>(
        &self,
        success: impl FnOnce(Success) -> T,
        any: impl FnOnce(DtoCompletion) -> T,
    ) -> Polled<T> {
        let mut queue = self.queue();
        if queue.is_straight()
            && let Some(next) = queue.next_success()
        {
            return Polled::Dto(success(next));
        }
        self.dequeue_batch(queue, any)
    }

    /// Does the work of [`EvdInner::dequeue_fast`] for all completions, and for queued ones. Polls
    /// a batch, and leaves what this dequeue does not take for the next ones.
    #[inline(never)]
    fn dequeue_batch<T>(
        &self,
        mut locked: BiasedMutexGuard<'_, Queue>,
        make: impl FnOnce(DtoCompletion) -> T,
    ) -> Polled<T> {
        let queue = &mut *locked;
        if queue.slow_path.intersects(SlowPath::ALWAYS) || !queue.others.is_empty() {
            return Polled::Slow;
        }
        if queue.dtos.is_empty() {
            let polled = self.dequeue_polled(queue);
            drop(locked);
            return match polled {
                Polled::Dto(dto) => Polled::Dto(make(dto)),
                Polled::Empty => Polled::Empty,
                Polled::Slow => Polled::Slow,
            };
        }
        if !queue.dtos.front().is_some_and(|queued| is_plain(&queued.dto)) {
            return Polled::Slow;
        }
        let Some(Queued { dto, credit }) = queue.dtos.pop_front() else { return Polled::Slow };
        credit.release(|number| queue.srqs.get(&number));
        queue.counts.dequeued(true, false);
        drop(locked);
        Polled::Dto(make(dto))
    }

    /// Takes the next completion of the polled batch; polls a batch if none is left.
    #[inline(never)]
    fn dequeue_polled(&self, queue: &mut Queue) -> Polled<DtoCompletion> {
        if queue.batch.len() == 0 {
            match self.poll_batch(queue) {
                Ok(0) => {
                    queue.counts.dequeued(false, true);
                    return Polled::Empty;
                }
                Ok(_) => {}
                Err(_) => return Polled::Slow,
            }
        }
        let mut deferred = Deferred::default();
        while let Some(completion) = queue.batch.pop() {
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
    pub(crate) fn dequeue_slow(&self) -> Result<Dequeued> {
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

/// Whether the event has no effect when the consumer takes it.
#[inline]
fn is_plain(dto: &DtoCompletion) -> bool {
    dto.invalidated.is_none() && dto.op != DtoOp::RmrBind
}
