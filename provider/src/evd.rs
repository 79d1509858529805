//! EVDs: event queues. A device's CQ, the progress thread and the consumer put events into them.
//!
//! A completion stays in the CQ until a thread *harvests* it: moves it into the EVD's own queue. A
//! consumer's wait or dequeue harvests, and so does a query that needs the exact place of every
//! buffer. The progress thread waits for descriptors and wakes waiters. It harvests an EVD only
//! after the device has raised an event for that EVD (see [`alert`]).
//!
//! ARCHITECTURE.md (Locks) has the order of the locks. A harvest may find work that needs an EP's
//! control lock: a broken connection, an exceeded watermark. An EP's control lock must be taken
//! before the queue's lock, so the harvest puts this work into a [`Deferred`], and the caller does
//! it after releasing the queue's lock.

mod alert;
mod arming;
mod deferred;
mod dequeue;
mod harvest;
mod pairs;
mod patience;
mod queue;
mod streams;
mod wait;

use self::arming::Alert;
use self::deferred::{BATCH, Deferred};
pub use self::dequeue::Take;
use self::pairs::Pairs;
use self::patience::Patience;
pub use self::queue::Queue;
use self::queue::{State, is_dto};
pub(crate) use self::queue::{Stream, StreamKind};
pub(crate) use self::wait::Wait;
use crate::counters::{Counters, EvdCounter, EvdCounts};
use crate::datapath::CqPath;
use crate::device::{AsyncSink, Class, Device, Member, ReservedTimers, Signal, Source, Timer};
use crate::event_data::{AsyncEvent, Notice};
use crate::memory::{headroom, headroom_of_notices, list, queue};
use crate::sync::{BiasedMutex, BiasedMutexGuard, rank};
use crate::types::{CompletionFlags, EvdFlags, EvdId, next_id};
use crate::{Cno, Error, IaCounter, Refused, Result, ReturnType, Subtype};
use rxe_fallback::{CompChannel, Cq};
use std::collections::HashMap;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The most events other than completions for which an EVD allocates memory when it is created.
const OTHERS: usize = 4096;

/// An event queue (`DAT_EVD_HANDLE`). Clones refer to the same EVD; dropping the last clone frees
/// the EVD.
#[derive(Clone, Debug)]
pub struct Evd {
    #[doc(hidden)]
    pub inner: Arc<EvdInner>,
}

/// Why a wait returned no event.
#[derive(Debug)]
pub struct WaitError {
    /// The reason. TIMEOUT_EXPIRED removes no event (R244).
    pub error: Error,
    /// The number of events in the queue (`nmore`); valid after a timeout.
    pub more: usize,
}

impl std::fmt::Display for WaitError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(&self.error, f)
    }
}

impl std::error::Error for WaitError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.error.source()
    }
}

impl From<WaitError> for Error {
    fn from(failed: WaitError) -> Self {
        failed.error
    }
}

/// The answer to a query (`DAT_EVD_PARAM`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EvdParam {
    /// The number of events that the queue can hold.
    pub depth: u32,
    /// Whether an arriving event may trigger the CNO.
    pub enabled: bool,
    /// Whether a thread may wait on the EVD.
    pub waitable: bool,
    /// The streams for which the EVD was created.
    pub flags: EvdFlags,
    /// The union of the completion flags of the DTO streams that feed the EVD.
    pub modes: CompletionFlags,
    /// The number of events in the queue now, including harvested completions.
    pub queued: usize,
}

/// The object behind an [`Evd`].
pub struct EvdInner {
    pub(crate) id: EvdId,
    pub(crate) device: Arc<Device>,
    /// The streams that it takes.
    pub flags: EvdFlags,
    pub(crate) context: AtomicU64,
    channel: Option<CompChannel>,
    /// The consumer gave no EVD for this stream: completions are harvested and discarded (R87).
    pub(crate) discards: bool,
    live: AtomicBool,
    /// A thread is in `wait` (R248).
    waiting: AtomicBool,
    /// The waiting thread has armed the CQ for itself.
    interrupted: AtomicBool,
    wake: Signal,
    patience: Patience,
    /// The events, and the CQs from which completions come.
    pub queue: BiasedMutex<{ rank::QUEUE }, Queue>,
    /// Memory reserved for the timers that the EVD sets on the progress thread.
    _timers: Option<ReservedTimers>,
}

impl Evd {
    /// The ID that names the EVD in events.
    pub fn id(&self) -> EvdId {
        self.inner.id
    }

    /// Sets the consumer's context, which asynchronous events carry. The initial value is 0.
    pub fn set_context(&self, context: u64) {
        self.inner.context.store(context, Ordering::Relaxed);
    }

    /// Returns the consumer's context.
    pub fn context(&self) -> u64 {
        self.inner.context.load(Ordering::Relaxed)
    }

    /// Returns the EVD's properties and the number of queued events.
    ///
    /// # Errors
    /// INVALID_HANDLE after the EVD was freed.
    ///
    /// # References
    /// dat_evd_query(3DAT).
    pub fn query(&self) -> Result<EvdParam> {
        self.inner.check()?;
        let mut queue = self.inner.queue();
        let deferred = self.inner.harvest(&mut queue)?;
        let param = EvdParam {
            depth: queue.qlen as u32,
            enabled: queue.enabled,
            waitable: queue.waitable,
            flags: self.inner.flags,
            modes: queue.streams.iter().filter(|s| is_dto(s.kind)).map(|s| s.flags).collect(),
            queued: queue.len(),
        };
        drop(queue);
        self.inner.run_deferred(deferred);
        Ok(param)
    }

    /// Changes the depth of the queue. No event is lost.
    ///
    /// # Errors
    /// INVALID_PARAMETER (ARG2) for a depth out of range. INVALID_STATE when more events are queued
    /// than the new depth holds (R256).
    ///
    /// # References
    /// dat_evd_resize(3DAT).
    pub fn resize(&self, depth: u32) -> Result<()> {
        let inner = &self.inner;
        inner.check()?;
        let depth = check_depth(&inner.device, depth)?;
        let mut queue = inner.queue();
        let deferred = inner.harvest(&mut queue)?;
        let outcome = if queue.len() > depth {
            Err(Error::state(Subtype::None, format!("{} events are queued: reap them first", queue.len())))
        } else {
            queue.resize(round_up(depth, inner.device.attr.max_evd_depth as usize))
        };
        drop(queue);
        inner.run_deferred(deferred);
        outcome
    }

    /// Queues a software event (`dat_evd_post_se`).
    ///
    /// # Errors
    /// INVALID_PARAMETER if the EVD was created without the software flag. QUEUE_FULL when the
    /// queue is full. INSUFFICIENT_RESOURCES when memory is exhausted.
    pub fn post_software_event(&self, value: u64) -> Result<()> {
        self.inner.check()?;
        if !self.inner.flags.contains(EvdFlags::SOFTWARE) {
            return Err(Error::arg(1, "this EVD was created without the software stream"));
        }
        let mut queue = self.inner.queue();
        if queue.len() >= queue.qlen {
            return Err(Error::new(ReturnType::QueueFull, Subtype::None, "the EVD is full"));
        }
        queue.others.try_reserve(1)?;
        drop(queue);
        self.inner.push(Notice::Software(value));
        Ok(())
    }

    /// Lets arriving events trigger the CNO again.
    ///
    /// # Errors
    /// INVALID_HANDLE after the EVD was freed.
    pub fn enable(&self) -> Result<()> {
        self.inner.check()?;
        self.inner.queue().enabled = true;
        self.inner.watch().map(drop)
    }

    /// Stops arriving events from triggering the CNO.
    ///
    /// # Errors
    /// INVALID_HANDLE after the EVD was freed.
    pub fn disable(&self) -> Result<()> {
        self.inner.check()?;
        self.inner.queue().enabled = false;
        Ok(())
    }

    /// Makes waits fail from now on. A wait that is in progress fails immediately (R249).
    ///
    /// # Errors
    /// INVALID_HANDLE after the EVD was freed.
    pub fn set_unwaitable(&self) -> Result<()> {
        self.inner.check()?;
        self.inner.queue().waitable = false;
        self.inner.wake_waiter();
        Ok(())
    }

    /// Allows waits again.
    ///
    /// # Errors
    /// INVALID_HANDLE after the EVD was freed.
    pub fn clear_unwaitable(&self) -> Result<()> {
        self.inner.check()?;
        self.inner.queue().waitable = true;
        Ok(())
    }

    /// Replaces or removes the CNO (`dat_evd_modify_cno`).
    ///
    /// # Errors
    /// INVALID_HANDLE after the EVD or the CNO was freed.
    pub fn set_cno(&self, cno: Option<&Cno>) -> Result<()> {
        self.inner.check()?;
        if let Some(cno) = cno {
            cno.inner.check(&self.inner.device)?;
            cno.inner.enter();
        }
        let mut queue = self.inner.queue();
        let old = std::mem::replace(&mut queue.cno, cno.map(|cno| cno.inner.clone()));
        drop(queue);
        if let Some(old) = old {
            old.leave();
        }
        self.inner.watch().map(drop)
    }

    /// Frees the EVD, also for all clones. A waiting thread returns with ABORT, and queued events
    /// are discarded (R255).
    ///
    /// # Errors
    /// INVALID_STATE (EVD_IN_USE) while an EP, PSP or RSP feeds the EVD (R254). INVALID_HANDLE
    /// after the EVD was freed. The error returns the EVD.
    ///
    /// # References
    /// dat_evd_free(3DAT).
    pub fn close(self) -> Result<(), Refused<Self>> {
        self.inner.free().map_err(|error| Refused { object: self, error })
    }

    /// Returns the EVD's counters.
    ///
    /// # Errors
    /// INVALID_HANDLE after the EVD was freed.
    pub fn counters(&self) -> Result<Counters<EvdCounter>> {
        self.take_counters(&[])
    }

    /// Returns the counters, and resets those in `reset` to 0.
    ///
    /// # Errors
    /// As [`Evd::counters`].
    pub fn take_counters(&self, reset: &[EvdCounter]) -> Result<Counters<EvdCounter>> {
        self.inner.check()?;
        Ok(self.inner.read_counts(reset))
    }
}

pub(crate) type QueueGuard<'a> = BiasedMutexGuard<'a, Queue>;

/// Checks that an EVD of this device can hold this many events, and returns their number.
pub(crate) fn check_depth(device: &Device, depth: u32) -> Result<usize> {
    let most = device.attr.max_evd_depth;
    if depth < 1 || depth > most {
        return Err(Error::arg(2, format!("an EVD has 1 to {most} events, not {depth}")));
    }
    Ok(depth as usize)
}

/// What a dequeue has found.
#[derive(Debug)]
pub enum Polled<T> {
    /// What the fast path has made of a completion.
    Dto(T),
    /// There is no event.
    Empty,
    /// A slower function has to decide, at last [`EvdInner::dequeue_slow`]. Nothing has changed.
    Slow,
}

/// The next power of two, at least 8, but at most the device's limit. One less if that is enough:
/// a CQ of mlx5 holds one entry less than a power of two, and would take twice the memory for one
/// more.
fn round_up(qlen: usize, most: usize) -> usize {
    let rounded = qlen.max(8).next_power_of_two();
    (rounded - usize::from(rounded > qlen)).min(qlen.max(most.max(8)))
}

impl std::fmt::Debug for EvdInner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Evd").field("id", &self.id).field("flags", &self.flags).finish_non_exhaustive()
    }
}

impl EvdInner {
    /// As [`Evd::close`].
    fn free(&self) -> Result<()> {
        self.check()?;
        let feeders = self.queue().streams.len();
        if feeders > 0 {
            let text = format!("{feeders} streams of EPs, PSPs or RSPs feed this EVD: free those first");
            return Err(Error::state(Subtype::InvalidStateEvdInUse, text));
        }
        self.close();
        self.device.finish_telling();
        Ok(())
    }

    pub(crate) fn new(
        device: &Arc<Device>,
        min_qlen: usize,
        flags: EvdFlags,
        discards: bool,
    ) -> Result<Arc<Self>> {
        let with_cq = flags.intersects(EvdFlags::DTO | EvdFlags::RMR_BIND);
        if with_cq { headroom() } else { headroom_of_notices() }?;
        let timers = with_cq.then(|| device.reactor.reserve_timers()).transpose()?;
        let qlen = round_up(min_qlen, device.attr.max_evd_depth as usize);
        let id = EvdId(next_id());
        let no_evd = |e| Error::verb(Subtype::ResourceTevd, e);
        let channel = || device.channels.take(device.path, &device.context);
        let channel = with_cq.then(channel).transpose().map_err(no_evd)?;
        let cq = with_cq
            .then(|| Cq::create(&device.context, qlen as u32, channel.as_ref(), 0, id.0))
            .transpose()
            .map_err(no_evd)?
            .map(|cq| device.path.cq(cq, channel.as_ref()))
            .transpose()?;
        let wake = device.signals.take()?;
        let inner = Arc::new(Self {
            id,
            device: device.clone(),
            flags,
            context: AtomicU64::new(0),
            channel,
            discards,
            live: AtomicBool::new(true),
            waiting: AtomicBool::new(false),
            interrupted: AtomicBool::new(false),
            wake,
            patience: Patience::default(),
            _timers: timers,
            queue: BiasedMutex::new(Queue {
                cq,
                path: device.path,
                state: State::of_new(flags, discards),
                batch: list(if with_cq { 2 * BATCH } else { 0 })?,
                qlen,
                dtos: queue(if with_cq && !discards { qlen } else { 0 })?,
                others: queue(if flags.difference(EvdFlags::DTO | EvdFlags::RMR_BIND).is_empty() {
                    0
                } else {
                    qlen.min(OTHERS)
                })?,
                before_end: None,
                pairs: Pairs::default(),
                srqs: HashMap::default(),
                streams: Vec::new(),
                notified: false,
                waitable: true,
                enabled: true,
                cno: None,
                alert: Alert::new(&device.context),
                stale: false,
                refuses: false,
                demand: 0,
                counts: EvdCounts::default(),
                deferred: Deferred::default(),
            }),
        });
        if let Err(error) = inner.enlist() {
            // A call that fails keeps nothing: with a clone, the channel does not stay for the next EVD.
            let _channel = inner.channel.clone();
            drop(inner);
            return Err(error);
        }
        Ok(inner)
    }

    /// Puts the EVD where its events and calls look for it.
    fn enlist(self: &Arc<Self>) -> Result<()> {
        if self.channel.is_some() {
            self.device.reactor.add_source(self.id.0, self)?;
        }
        if !self.discards {
            self.device.register(Class::Evd, self.id.0, self, &[IaCounter::EvdCreate])?;
        }
        Ok(())
    }

    pub(crate) fn read_counts(&self, reset: &[EvdCounter]) -> Counters<EvdCounter> {
        let mut queue = self.queue();
        let has_cq = queue.cq.is_some();
        let polled = queue.cq.as_mut().map_or(0, CqPath::take_polled);
        let not_dequeued = std::mem::take(&mut queue.counts.not_dequeued);
        queue.counts.polled = queue.counts.polled + polled - not_dequeued;
        queue.counts.read(has_cq, reset)
    }

    #[inline(always)]
    fn queue(&self) -> QueueGuard<'_> {
        self.queue.lock()
    }

    /// The queue, if this thread owns its lock.
    #[inline(always)]
    pub(crate) fn queue_fast(&self) -> Option<QueueGuard<'_>> {
        self.queue.try_lock_fast()
    }

    /// Waits until no other thread harvests the EVD.
    pub(crate) fn synchronize(&self) {
        drop(self.queue());
    }

    pub(crate) fn check(&self) -> Result<()> {
        if self.live.load(Ordering::Acquire) {
            Ok(())
        } else {
            Err(Error::handle(Subtype::InvalidHandleEvdRequest, "EVD"))
        }
    }

    /// Checks that the EVD is live, belongs to this device and takes this stream (R133).
    pub(crate) fn check_for(&self, device: &Arc<Device>, flag: EvdFlags, sub: Subtype) -> Result<()> {
        if !self.live.load(Ordering::Acquire) || !Arc::ptr_eq(&self.device, device) {
            return Err(Error::handle(sub, "EVD"));
        }
        if !self.flags.contains(flag) {
            return Err(Error::new(
                ReturnType::InvalidHandle,
                sub,
                format!("this EVD takes {:?}, the stream needs {flag:?}", self.flags),
            ));
        }
        Ok(())
    }

    /// Closes the EVD, wakes a waiter with ABORT, and releases what queued events hold.
    pub(crate) fn close(&self) {
        if !self.live.swap(false, Ordering::AcqRel) {
            return;
        }
        let mut queue = self.queue();
        // What is on the CQ holds something only of these.
        let holds = queue.pairs.len() + queue.srqs.len() > 0;
        let deferred = if holds { self.harvest(&mut queue).unwrap_or_default() } else { Deferred::default() };
        queue.state |= State::CLOSED;
        let events = std::mem::take(&mut queue.dtos);
        let others = std::mem::take(&mut queue.others);
        let srqs = std::mem::take(&mut queue.srqs);
        let cno = queue.cno.take();
        let watched = std::mem::take(&mut queue.alert.watched);
        drop(queue);
        // A thread that begins to wait now finds the EVD closed when it takes the queue's lock.
        let waiting = self.waiting.load(Ordering::Acquire);
        events.into_iter().for_each(|queued| queued.abandon(&self.device, &srqs));
        self.give_back_lost(deferred);
        // Dropping a connection request rejects that request.
        drop(others);
        if let Some(channel) = &self.channel {
            if watched {
                let _ = self.device.reactor.watch(self.id.0, channel.as_fd(), false);
            }
            self.device.reactor.remove_source(self.id.0);
        }
        if let Some(cno) = cno {
            cno.leave();
        }
        self.device.registry.remove(Class::Evd, self.id.0);
        if waiting {
            self.wake_waiter();
        }
    }
}

impl crate::fork::Inherit for EvdInner {
    fn disown(&self) {
        self.live.store(false, Ordering::Release);
        // A dequeue checks only this flag under the lock, and then finds that the EVD is not live.
        self.queue.lock_anew().state |= State::CLOSED;
    }
}

impl Member for EvdInner {
    fn ia_closed(self: Arc<Self>) {
        self.close();
    }

    /// The device reports that the EVD's CQ has overflowed.
    fn device_event(self: Arc<Self>, _: rxe_fallback::AsyncKind) {
        self.tell_of_overflow();
    }
}

impl Source for EvdInner {
    fn ready(self: Arc<Self>, _: u64) {
        self.channel_ready();
    }

    fn due(self: Arc<Self>, timer: Timer) {
        if matches!(timer, Timer::Rearm) {
            self.rearm();
        }
    }
}

impl AsyncSink for EvdInner {
    fn put_async(&self, event: AsyncEvent) {
        if let Some(event) = self.put_notice(Notice::Async(event)) {
            self.lose(event);
        }
    }

    fn announce_async(&self) {
        self.announce_notice(None);
    }
}

impl Drop for EvdInner {
    fn drop(&mut self) {
        self.close();
        if let Some(channel) = self.channel.take()
            && !self.device.is_inherited()
        {
            // The CQs go first, and their events with them.
            drop(self.queue.get_mut().cq.take());
            self.device.channels.give_back(channel);
        }
    }
}
