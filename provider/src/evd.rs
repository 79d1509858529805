//! EVDs: queues of events, fed by a device's CQ, by the progress thread and by the consumer.
//!
//! Completions stay in the CQ until somebody *harvests* them into the EVD's own queue: the consumer's wait or dequeue, or
//! a query that has to know exactly where every buffer is. The progress thread waits for descriptors and wakes
//! waiters; it does not poll CQs.
//!
//! Lock order: EP control, EVD queue, EP request and receive rings, SRQ ledger. What a harvest finds that needs an EP's
//! control lock (a connection that broke, a watermark) is put into an [`Aftermath`] and done after the queue's lock
//! is gone.

use crate::cno::CnoInner;
use crate::datapath::{Completion, CqPath, SrqPath, Token, verbs::VerbsCq};
use crate::ep::EpInner;
use crate::event::{AsyncEvent, AsyncKind, AsyncObject, Event, EventData, reason};
use crate::ia::IaInner;
use crate::srq::SrqInner;
use crate::types::{CompletionFlags, Count, DtoStatus, EvdFlags, EvdId, next_id};
use crate::{Cno, DtoCompletion, Error, Ia, Result, ReturnType, Subtype};
use nix::poll::{PollFd, PollFlags};
use nix::sys::eventfd::{EfdFlags, EventFd};
use rxe_fallback::{CompChannel, Cq};
use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

const BATCH: usize = 32;

/// An event queue (`DAT_EVD_HANDLE`). Clones are the same EVD; the last one gone frees it.
#[derive(Clone, Debug)]
pub struct Evd {
    pub(crate) inner: Arc<EvdInner>,
}

/// What a successful wait gives.
#[derive(Debug)]
pub struct Waited {
    /// The oldest event.
    pub event: Event,
    /// Events left in the queue (`nmore`, R245).
    pub more: usize,
}

/// Why a wait gave no event.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct WaitError {
    /// The reason; TIMEOUT_EXPIRED removes nothing (R244).
    #[source]
    pub error: Error,
    /// Events in the queue (`nmore`), valid after a timeout.
    pub more: usize,
}

/// What a query tells (`DAT_EVD_PARAM`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EvdParam {
    /// Events that fit.
    pub qlen: Count,
    /// Whether arrivals may trigger the CNO.
    pub enabled: bool,
    /// Whether it can be waited on.
    pub waitable: bool,
    /// Streams that it was made for.
    pub flags: EvdFlags,
    /// Events in the queue now, harvested ones included.
    pub queued: usize,
}

pub(crate) struct EvdInner {
    pub(crate) id: EvdId,
    pub(crate) ia: Arc<IaInner>,
    pub(crate) flags: EvdFlags,
    pub(crate) context: AtomicU64,
    pub(crate) cq: Option<CqPath>,
    channel: Option<CompChannel>,
    /// The consumer gave no EVD for this stream: completions are seen and forgotten (R87).
    discards: bool,
    live: AtomicBool,
    /// A thread is in `wait` (R248).
    waiting: AtomicBool,
    wake: EventFd,
    queue: Mutex<Queue>,
}

#[derive(Debug)]
struct Queue {
    qlen: usize,
    dtos: VecDeque<Queued>,
    /// Everything but completions, in order of arrival.
    others: VecDeque<EventData>,
    /// Completions queued before the connection end at the front of `others` was first looked at: they go first (R185).
    before_end: Option<usize>,
    eps: HashMap<u32, Arc<EpInner>>,
    srqs: HashMap<u32, Arc<SrqInner>>,
    streams: Vec<Stream>,
    /// Something arrived that may wake a waiter, since it last looked.
    notified: bool,
    waitable: bool,
    enabled: bool,
    cno: Option<Arc<CnoInner>>,
    /// CQ entries that everything attached may need at once.
    demand: u32,
}

#[derive(Debug)]
struct Queued {
    dto: DtoCompletion,
    held: Held,
}

/// What reaping this event gives back.
#[derive(Debug)]
enum Held {
    Srq(Arc<SrqInner>, u32),
    Request(Arc<EpInner>),
    Nothing,
}

impl Held {
    fn release(self) {
        match self {
            Held::Srq(srq, entry) => srq.path.release(entry),
            Held::Request(ep) => ep.request_reaped(),
            Held::Nothing => {}
        }
    }
}

/// A stream that feeds this EVD, as the sharing rules see it (R149-R152).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stream {
    pub(crate) ep: crate::EpId,
    pub(crate) kind: StreamKind,
    pub(crate) flags: CompletionFlags,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamKind {
    /// Receives; from an SRQ or not.
    Recv {
        srq: bool,
    },
    Request,
    Connection,
    /// A PSP or RSP.
    Service,
}

/// What a harvest leaves to be done without the queue's lock.
#[derive(Default)]
#[must_use]
pub(crate) struct Aftermath {
    failed: Vec<Arc<EpInner>>,
    received: Vec<Arc<EpInner>>,
    overflowed: bool,
}

impl Aftermath {
    fn merge(&mut self, other: Self) {
        self.failed.extend(other.failed);
        self.received.extend(other.received);
        self.overflowed |= other.overflowed;
    }
}

impl Evd {
    /// Makes an EVD for at least `min_qlen` events of these streams.
    ///
    /// # Errors
    /// INVALID_PARAMETER for a length below 1 or over the IA's limit or for no or unknown flags, INVALID_HANDLE after the IA was
    /// closed or for a freed CNO, INSUFFICIENT_RESOURCES from the device.
    ///
    /// # References
    /// dat_evd_query(3DAT); udat.h, `dat_evd_create`.
    pub fn create(ia: &Ia, min_qlen: Count, cno: Option<&Cno>, flags: EvdFlags) -> Result<Self> {
        ia.inner.check()?;
        if min_qlen < 1 || min_qlen > ia.inner.attr.max_evd_qlen {
            let most = ia.inner.attr.max_evd_qlen;
            return Err(Error::arg(2, format!("an EVD has 1 to {most} events, not {min_qlen}")));
        }
        if flags.is_empty() || EvdFlags::from_bits(flags.bits()).is_none() {
            return Err(Error::arg(4, format!("no or unknown stream flags: {:#x}", flags.bits())));
        }
        if let Some(cno) = cno {
            cno.inner.check(&ia.inner)?;
        }
        let inner = EvdInner::new(&ia.inner, min_qlen as usize, flags, false)?;
        let evd = Self { inner };
        if let Some(cno) = cno {
            evd.set_cno(Some(cno))?;
        }
        Ok(evd)
    }

    /// Names it in events.
    pub fn id(&self) -> EvdId {
        self.inner.id
    }

    /// A number of the consumer's, 0 at first; it comes back in asynchronous events.
    pub fn set_context(&self, context: u64) {
        self.inner.context.store(context, Ordering::Relaxed);
    }

    /// The consumer's number.
    pub fn context(&self) -> u64 {
        self.inner.context.load(Ordering::Relaxed)
    }

    /// What it is like, and how much is queued.
    ///
    /// # Errors
    /// INVALID_HANDLE after it was freed.
    ///
    /// # References
    /// dat_evd_query(3DAT).
    pub fn query(&self) -> Result<EvdParam> {
        self.inner.check()?;
        let mut queue = self.inner.queue();
        let after = self.inner.harvest(&mut queue)?;
        let param = EvdParam {
            qlen: Count::try_from(queue.qlen).unwrap_or(Count::MAX),
            enabled: queue.enabled,
            waitable: queue.waitable,
            flags: self.inner.flags,
            queued: queue.len(),
        };
        drop(queue);
        self.inner.settle(after);
        Ok(param)
    }

    /// Takes the oldest event, whatever the notification mode (R251).
    ///
    /// # Errors
    /// QUEUE_EMPTY; INVALID_STATE (EVD_WAITER) while a thread waits (R248); INVALID_HANDLE after it was freed.
    ///
    /// # References
    /// dat_evd_dequeue(3DAT).
    pub fn dequeue(&self) -> Result<Event> {
        self.inner.check()?;
        if self.inner.waiting.load(Ordering::Acquire) {
            return Err(Error::state(Subtype::InvalidStateEvdWaiter, "another thread waits on this EVD"));
        }
        let mut queue = self.inner.queue();
        let mut after = Aftermath::default();
        if queue.dtos.is_empty() || !queue.others.is_empty() {
            after = self.inner.harvest(&mut queue)?;
        }
        let event = queue.pop();
        drop(queue);
        self.inner.settle(after);
        match event {
            Some(data) => Ok(Event { evd: self.inner.id, data }),
            None => Err(Error::new(ReturnType::QueueEmpty, Subtype::None, "no event")),
        }
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
        self.inner.wait(timeout, threshold)
    }

    /// A longer or shorter queue; events are never lost.
    ///
    /// # Errors
    /// INVALID_PARAMETER (ARG2) for a length out of range, INVALID_STATE when more are queued (R256).
    ///
    /// # References
    /// dat_evd_resize(3DAT).
    pub fn resize(&self, min_qlen: Count) -> Result<()> {
        let inner = &self.inner;
        inner.check()?;
        if min_qlen < 1 || min_qlen > inner.ia.attr.max_evd_qlen {
            return Err(Error::arg(2, format!("an EVD has 1 to {} events", inner.ia.attr.max_evd_qlen)));
        }
        let mut queue = inner.queue();
        let after = inner.harvest(&mut queue)?;
        let outcome = if queue.len() > min_qlen as usize {
            Err(Error::state(Subtype::None, format!("{} events are queued: reap them first", queue.len())))
        } else {
            queue.qlen = round_up(min_qlen as usize);
            let depth = queue.depth();
            inner.cq.as_ref().map_or(Ok(()), |cq| cq.ensure(depth))
        };
        drop(queue);
        inner.settle(after);
        outcome
    }

    /// Puts a software event in (`dat_evd_post_se`).
    ///
    /// # Errors
    /// INVALID_PARAMETER on an EVD made without the software flag, QUEUE_FULL when it is full.
    pub fn post_software_event(&self, value: u64) -> Result<()> {
        self.inner.check()?;
        if !self.inner.flags.contains(EvdFlags::SOFTWARE) {
            return Err(Error::arg(1, "this EVD was made without the software stream"));
        }
        let queue = self.inner.queue();
        if queue.len() >= queue.qlen {
            return Err(Error::new(ReturnType::QueueFull, Subtype::None, "the EVD is full"));
        }
        drop(queue);
        self.inner.push(EventData::Software(value));
        Ok(())
    }

    /// Arrivals trigger the CNO again.
    ///
    /// # Errors
    /// INVALID_HANDLE after it was freed.
    pub fn enable(&self) -> Result<()> {
        self.inner.check()?;
        self.inner.queue().enabled = true;
        self.inner.watch()
    }

    /// Arrivals no longer trigger the CNO.
    ///
    /// # Errors
    /// INVALID_HANDLE after it was freed.
    pub fn disable(&self) -> Result<()> {
        self.inner.check()?;
        self.inner.queue().enabled = false;
        Ok(())
    }

    /// Waits fail from now on, one that is under way at once (R249).
    ///
    /// # Errors
    /// INVALID_HANDLE after it was freed.
    pub fn set_unwaitable(&self) -> Result<()> {
        self.inner.check()?;
        self.inner.queue().waitable = false;
        self.inner.wake_waiter();
        Ok(())
    }

    /// Waits are possible again.
    ///
    /// # Errors
    /// INVALID_HANDLE after it was freed.
    pub fn clear_unwaitable(&self) -> Result<()> {
        self.inner.check()?;
        self.inner.queue().waitable = true;
        Ok(())
    }

    /// Another CNO, or none (`dat_evd_modify_cno`).
    ///
    /// # Errors
    /// INVALID_HANDLE after it or the CNO was freed.
    pub fn set_cno(&self, cno: Option<&Cno>) -> Result<()> {
        self.inner.check()?;
        if let Some(cno) = cno {
            cno.inner.check(&self.inner.ia)?;
            cno.inner.enter();
        }
        let mut queue = self.inner.queue();
        let old = std::mem::replace(&mut queue.cno, cno.map(|cno| cno.inner.clone()));
        drop(queue);
        if let Some(old) = old {
            old.leave();
        }
        self.inner.watch()
    }

    /// Frees it; a waiter returns with ABORT, queued events are gone (R255).
    ///
    /// # Errors
    /// INVALID_STATE (EVD_IN_USE) while an EP, PSP or RSP feeds it (R254); INVALID_HANDLE after it was freed.
    ///
    /// # References
    /// dat_evd_free(3DAT).
    pub fn free(&self) -> Result<()> {
        self.inner.check()?;
        let feeders = self.inner.queue().streams.len();
        if feeders > 0 {
            return Err(Error::state(
                Subtype::InvalidStateEvdInUse,
                format!("{feeders} streams of EPs, PSPs or RSPs feed this EVD: free those first"),
            ));
        }
        self.inner.close();
        Ok(())
    }
}

fn round_up(qlen: usize) -> usize {
    qlen.max(8).next_power_of_two()
}

impl std::fmt::Debug for EvdInner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Evd").field("id", &self.id).field("flags", &self.flags).finish_non_exhaustive()
    }
}

impl Queue {
    fn len(&self) -> usize {
        self.dtos.len() + self.others.len()
    }

    fn depth(&self) -> u32 {
        self.demand.max(self.qlen as u32)
    }

    /// The next event: everything but completions first, in the order it came, except that the end of a connection
    /// waits for the completions that were there before it (R185).
    fn pop(&mut self) -> Option<EventData> {
        let end_next =
            matches!(self.others.front(), Some(EventData::Connection(event)) if event.kind.is_end());
        if end_next {
            let before = *self.before_end.get_or_insert(self.dtos.len());
            if before > 0 && !self.dtos.is_empty() {
                self.before_end = Some(before - 1);
                return self.pop_dto();
            }
            self.before_end = None;
        }
        self.others.pop_front().or_else(|| self.pop_dto())
    }

    fn pop_dto(&mut self) -> Option<EventData> {
        let queued = self.dtos.pop_front()?;
        queued.held.release();
        Some(EventData::Dto(queued.dto))
    }

    fn has(&self, flag: CompletionFlags) -> bool {
        self.streams.iter().any(|s| is_dto(s.kind) && s.flags.contains(flag))
    }
}

fn is_dto(kind: StreamKind) -> bool {
    matches!(kind, StreamKind::Recv { .. } | StreamKind::Request)
}

impl EvdInner {
    pub(crate) fn new(
        ia: &Arc<IaInner>,
        min_qlen: usize,
        flags: EvdFlags,
        discards: bool,
    ) -> Result<Arc<Self>> {
        let qlen = round_up(min_qlen);
        let id = EvdId(next_id());
        let device = |e| Error::verb(Subtype::ResourceTevd, e);
        let with_cq = flags.intersects(EvdFlags::DTO | EvdFlags::RMR_BIND);
        let channel =
            (with_cq && !discards).then(|| CompChannel::create(&ia.context)).transpose().map_err(device)?;
        let cq = with_cq
            .then(|| Cq::create(&ia.context, qlen as u32, channel.as_ref(), 0, id.0))
            .transpose()
            .map_err(device)?
            .map(|cq| CqPath::Verbs(VerbsCq { cq }));
        let wake = EventFd::from_value_and_flags(0, EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)
            .map_err(|e| Error::resources(Subtype::ResourceTevd, format!("eventfd: {e}")))?;
        let inner = Arc::new(Self {
            id,
            ia: ia.clone(),
            flags,
            context: AtomicU64::new(0),
            cq,
            channel,
            discards,
            live: AtomicBool::new(true),
            waiting: AtomicBool::new(false),
            wake,
            queue: Mutex::new(Queue {
                qlen,
                dtos: VecDeque::with_capacity(if discards { 0 } else { qlen.min(1 << 16) }),
                others: VecDeque::new(),
                before_end: None,
                eps: HashMap::new(),
                srqs: HashMap::new(),
                streams: Vec::new(),
                notified: false,
                waitable: true,
                enabled: true,
                cno: None,
                demand: 0,
            }),
        });
        if !discards {
            ia.objects.lock().unwrap().evds.insert(id.0, Arc::downgrade(&inner));
        }
        Ok(inner)
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap()
    }

    pub(crate) fn check(&self) -> Result<()> {
        if self.live.load(Ordering::Acquire) {
            Ok(())
        } else {
            Err(Error::handle(Subtype::InvalidHandleEvdRequest, "EVD"))
        }
    }

    /// Live, of this IA, and with this stream (R133).
    pub(crate) fn check_for(&self, ia: &Arc<IaInner>, flag: EvdFlags, sub: Subtype) -> Result<()> {
        if !self.live.load(Ordering::Acquire) || !Arc::ptr_eq(&self.ia, ia) {
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

    /// Whether this stream may be added to those that feed the EVD (R149-R152).
    pub(crate) fn may_feed(&self, new: Stream, but_not: Option<crate::EpId>, arg: u16) -> Result<()> {
        let queue = self.queue();
        let others: Vec<_> =
            queue.streams.iter().filter(|s| is_dto(s.kind) && Some(s.ep) != but_not).copied().collect();
        drop(queue);
        let unsignalled = |s: &Stream| s.flags.contains(CompletionFlags::UNSIGNALLED);
        let solicited = |s: &Stream| {
            matches!(s.kind, StreamKind::Recv { .. }) && s.flags.contains(CompletionFlags::SOLICITED_WAIT)
        };
        let threshold = |s: &Stream| s.flags.contains(CompletionFlags::EVD_THRESHOLD);
        let threshold_srq = |s: &Stream| matches!(s.kind, StreamKind::Recv { srq: true }) && threshold(s);
        let mixed = self.flags.intersects(!(EvdFlags::DTO | EvdFlags::RMR_BIND));
        let refuse = |text: &str| Err(Error::arg(arg, text));
        if mixed && (unsignalled(&new) || solicited(&new)) {
            return refuse("an EVD with streams other than DTOs takes only completions that always notify");
        }
        if others.iter().any(|s| unsignalled(s) != unsignalled(&new)) {
            return refuse("if one completion stream on an EVD is unsignalled, all have to be");
        }
        if others.iter().any(|s| solicited(s) != solicited(&new)) {
            return refuse("if one receive stream on an EVD is solicited wait, it takes only such streams");
        }
        if (threshold_srq(&new) && others.iter().any(|s| !threshold(s)))
            || (others.iter().any(threshold_srq) && !threshold(&new))
        {
            return refuse(
                "if an SRQ EP's receives use the threshold on an EVD, all its DTO streams have to",
            );
        }
        Ok(())
    }

    /// Adds streams and the CQ room they need.
    pub(crate) fn attach(&self, streams: &[Stream], room: u32) -> Result<()> {
        let mut queue = self.queue();
        let demand = queue.demand.saturating_add(room);
        if let Some(cq) = &self.cq
            && room > 0
        {
            cq.ensure(demand.max(queue.qlen as u32))?;
        }
        queue.demand = demand;
        queue.streams.extend_from_slice(streams);
        Ok(())
    }

    pub(crate) fn detach(&self, ep: crate::EpId, room: u32) {
        let mut queue = self.queue();
        queue.streams.retain(|s| s.ep != ep);
        queue.demand = queue.demand.saturating_sub(room);
    }

    /// The mode of an EP's stream has changed.
    pub(crate) fn change_stream(&self, ep: crate::EpId, recv: bool, flags: CompletionFlags) {
        for stream in &mut self.queue().streams {
            if stream.ep == ep
                && matches!(stream.kind, StreamKind::Recv { .. }) == recv
                && is_dto(stream.kind)
            {
                stream.flags = flags;
            }
        }
    }

    /// The EP has another QP.
    pub(crate) fn rename(&self, from: u32, to: u32) {
        let mut queue = self.queue();
        if let Some(ep) = queue.eps.remove(&from) {
            queue.eps.insert(to, ep);
        }
    }

    /// More CQ room, for an SRQ that has been made deeper.
    pub(crate) fn add_room(&self, room: u32) -> Result<()> {
        self.attach(&[], room)
    }

    /// Completions with this QP number belong to this EP.
    pub(crate) fn register(&self, qpn: u32, ep: &Arc<EpInner>) {
        let mut queue = self.queue();
        queue.eps.insert(qpn, ep.clone());
        if let Some(srq) = &ep.srq {
            queue.srqs.insert(srq.token(), srq.clone());
        }
    }

    /// Forgets the EP and drops its events, which gives back what they hold (R172).
    pub(crate) fn unregister(&self, qpn: u32, ep: &EpInner) {
        let mut queue = self.queue();
        queue.eps.remove(&qpn);
        let mut kept = VecDeque::with_capacity(queue.dtos.capacity());
        let mut dropped = Vec::new();
        for queued in queue.dtos.drain(..) {
            if queued.dto.ep == ep.id {
                dropped.push(queued.held);
            } else {
                kept.push_back(queued);
            }
        }
        queue.dtos = kept;
        if let Some(srq) = &ep.srq
            && !queue.eps.values().any(|e| e.srq.as_ref().is_some_and(|s| Arc::ptr_eq(s, srq)))
        {
            queue.srqs.remove(&srq.token());
        }
        drop(queue);
        dropped.into_iter().for_each(Held::release);
    }

    /// Moves finished completions from the CQ into the queue, so that counts are exact.
    pub(crate) fn harvest_now(&self) -> Result<()> {
        let mut queue = self.queue();
        let after = self.harvest(&mut queue)?;
        let news = queue.notified;
        drop(queue);
        self.settle(after);
        if news && self.waiting.load(Ordering::Acquire) {
            self.wake_waiter();
        }
        Ok(())
    }

    fn harvest(&self, queue: &mut Queue) -> Result<Aftermath> {
        let mut after = Aftermath::default();
        let Some(cq) = &self.cq else { return Ok(after) };
        let mut batch = [None; BATCH];
        loop {
            let n = cq.poll(&mut batch)?;
            for completion in batch[..n].iter().flatten() {
                self.take(queue, completion, &mut after);
            }
            if n < BATCH {
                return Ok(after);
            }
        }
    }

    fn take(&self, queue: &mut Queue, completion: &Completion, after: &mut Aftermath) {
        let Some(ep) = queue.eps.get(&completion.qpn).cloned() else {
            // The EP is gone; what it held goes back.
            if let Token::Srq { srq, entry } = completion.token
                && let Some(srq) = queue.srqs.get(&srq)
            {
                srq.path.complete(entry, 0);
                srq.path.release(entry);
            }
            return;
        };
        if completion.status != DtoStatus::Success {
            after.failed.push(ep.clone());
        }
        match completion.token {
            Token::Srq { entry, .. } => {
                let Some(srq) = ep.srq.clone() else { return };
                let Some(cookie) = srq.path.complete(entry, ep.id.0) else { return };
                after.received.push(ep.clone());
                let notify = completion.status != DtoStatus::Success
                    || !ep.recv_flags().contains(CompletionFlags::SOLICITED_WAIT);
                let dto = received(&ep, completion, cookie);
                self.put(queue, dto, Held::Srq(srq.clone(), entry), notify, after);
                while let Some(lost) = srq.path.next_lost() {
                    self.ia.flush_lost(&srq, lost);
                }
            }
            Token::Recv => {
                let Some(recv) = ep.receive_done() else { return };
                let ep_flags = ep.recv_flags();
                let notify = completion.status != DtoStatus::Success
                    || !(ep_flags.contains(CompletionFlags::SOLICITED_WAIT)
                        || recv.flags.contains(CompletionFlags::UNSIGNALLED));
                let dto = received(&ep, completion, recv.cookie);
                self.put(queue, dto, Held::Nothing, notify, after);
            }
            Token::Request(seq) => {
                let Some(request) = ep.request_done(seq) else { return };
                let failed = completion.status != DtoStatus::Success;
                if !failed && request.flags.contains(CompletionFlags::SUPPRESS) {
                    ep.request_reaped();
                    return;
                }
                let notify = failed || !request.flags.contains(CompletionFlags::UNSIGNALLED);
                let dto = DtoCompletion {
                    ep: ep.id,
                    ep_context: ep.context.load(Ordering::Relaxed),
                    cookie: request.cookie,
                    status: completion.status,
                    length: if failed { 0 } else { request.length },
                    op: request.op,
                    immediate: None,
                    invalidated: None,
                };
                self.put(queue, dto, Held::Request(ep), notify, after);
            }
        }
    }

    fn put(&self, queue: &mut Queue, dto: DtoCompletion, held: Held, notify: bool, after: &mut Aftermath) {
        if self.discards {
            held.release();
        } else if queue.len() >= queue.qlen {
            held.release();
            after.overflowed = true;
        } else {
            queue.dtos.push_back(Queued { dto, held });
            queue.notified |= notify;
        }
    }

    /// A completion that no device will make: a buffer that went down with its EP (R174).
    pub(crate) fn put_flushed(self: &Arc<Self>, ep: &EpInner, srq: &Arc<SrqInner>, entry: u32, cookie: u64) {
        let dto = DtoCompletion {
            ep: ep.id,
            ep_context: ep.context.load(Ordering::Relaxed),
            cookie,
            status: DtoStatus::Flushed,
            length: 0,
            op: crate::DtoOp::Receive,
            immediate: None,
            invalidated: None,
        };
        let mut after = Aftermath::default();
        let mut queue = self.queue();
        self.put(&mut queue, dto, Held::Srq(srq.clone(), entry), true, &mut after);
        let cno = queue.cno_if_enabled();
        drop(queue);
        self.announce(cno);
        self.settle(after);
    }

    /// Does what a harvest found and could not do under the lock.
    pub(crate) fn settle(&self, after: Aftermath) {
        if after.overflowed {
            self.ia.push_async(AsyncEvent {
                kind: AsyncKind::EvdOverflow,
                object: AsyncObject::Evd(self.id),
                context: self.context.load(Ordering::Relaxed),
                reason: reason::EVD_OVERFLOW,
            });
        }
        for ep in &after.received {
            ep.took_one();
        }
        for ep in &after.failed {
            ep.failed();
        }
    }

    /// Queues an event that is no completion, and tells whoever waits for it.
    pub(crate) fn push(&self, event: EventData) {
        let mut queue = self.queue();
        if !self.live.load(Ordering::Acquire) {
            return;
        }
        queue.others.push_back(event);
        queue.notified = true;
        let cno = queue.cno_if_enabled();
        drop(queue);
        self.announce(cno);
    }

    /// A failed or flushed completion may be in the CQ of an EVD that waits for solicited ones only (R238): look again.
    pub(crate) fn poke(&self) {
        if self.waiting.load(Ordering::Acquire) {
            self.wake_waiter();
        }
    }

    fn announce(&self, cno: Option<Arc<CnoInner>>) {
        if self.waiting.load(Ordering::Acquire) {
            self.wake_waiter();
        } else if let Some(cno) = cno {
            cno.trigger(self.id);
        }
    }

    fn wake_waiter(&self) {
        // Full (EAGAIN) means that a wake-up is already there.
        let _ = self.wake.write(1);
    }

    pub(crate) fn channel_fd(&self) -> Option<BorrowedFd<'_>> {
        self.channel.as_ref().map(AsFd::as_fd)
    }

    /// Tells the progress thread to watch the channel, or not, according to CNO and waiter.
    fn watch(&self) -> Result<()> {
        let (Some(channel), Some(cq)) = (&self.channel, &self.cq) else { return Ok(()) };
        let queue = self.queue();
        let on = queue.cno.is_some() && queue.enabled && !self.waiting.load(Ordering::Acquire);
        let solicited = queue.has(CompletionFlags::SOLICITED_WAIT);
        drop(queue);
        self.ia.progress.watch_evd(self.id, channel.as_fd(), on)?;
        if on {
            cq.arm(solicited)?;
        }
        Ok(())
    }

    /// The progress thread saw the channel readable: trigger the CNO, and arm again first so that nothing is missed.
    pub(crate) fn channel_ready(&self) {
        let (Some(channel), Some(cq)) = (&self.channel, &self.cq) else { return };
        while let Ok(Some(_)) = channel.next_event() {}
        let queue = self.queue();
        let solicited = queue.has(CompletionFlags::SOLICITED_WAIT);
        let cno = queue.cno_if_enabled();
        drop(queue);
        if self.waiting.load(Ordering::Acquire) {
            self.wake_waiter();
            return;
        }
        if let Some(cno) = cno {
            if let Err(error) = cq.arm(solicited) {
                tracing::error!(%error, "could not arm a CQ");
            }
            cno.trigger(self.id);
        }
    }

    fn wait(&self, timeout: Option<Duration>, threshold: Count) -> Result<Waited, WaitError> {
        let bare = |error| WaitError { error, more: 0 };
        self.check().map_err(bare)?;
        let threshold = self.check_threshold(threshold).map_err(bare)?;
        if self.waiting.swap(true, Ordering::AcqRel) {
            let error = Error::state(Subtype::InvalidStateEvdWaiter, "another thread waits on this EVD");
            return Err(bare(error));
        }
        let has_cno = self.queue().cno.is_some();
        if has_cno && let Err(error) = self.watch() {
            self.waiting.store(false, Ordering::Release);
            return Err(bare(error));
        }
        let outcome = self.wait_inside(timeout, threshold);
        self.waiting.store(false, Ordering::Release);
        if has_cno && let Err(error) = self.watch() {
            tracing::error!(%error, "could not watch an EVD again");
        }
        outcome
    }

    fn check_threshold(&self, threshold: Count) -> Result<usize> {
        let queue = self.queue();
        if !queue.waitable {
            return Err(Error::state(Subtype::InvalidStateEvdUnwaitable, "this EVD is unwaitable"));
        }
        if threshold < 1 || threshold as usize > queue.qlen {
            return Err(Error::arg(3, format!("the threshold is 1 to {}, not {threshold}", queue.qlen)));
        }
        if threshold > 1 && queue.has(CompletionFlags::UNSIGNALLED) {
            let sub = Subtype::InvalidStateEvdConfigNotify;
            return Err(Error::state(sub, "with unsignalled streams the threshold has to be 1"));
        }
        if threshold > 1 && queue.has(CompletionFlags::SOLICITED_WAIT) {
            let sub = Subtype::InvalidStateEvdConfigSolicited;
            return Err(Error::state(sub, "with solicited wait streams the threshold has to be 1"));
        }
        Ok(threshold as usize)
    }

    fn wait_inside(&self, timeout: Option<Duration>, threshold: usize) -> Result<Waited, WaitError> {
        let bare = |error| WaitError { error, more: 0 };
        // A timeout too far away to be a date is for ever.
        let deadline = timeout.and_then(|t| Instant::now().checked_add(t));
        let solicited = self.queue().has(CompletionFlags::SOLICITED_WAIT);
        let mut after = Aftermath::default();
        // Whatever was there before the call counts, notifying or not (R246); so the first look is one at everything.
        let mut notified = true;
        self.drain_channel();
        let outcome = loop {
            if timeout != Some(Duration::ZERO)
                && let Some(cq) = &self.cq
                && let Err(error) = cq.arm(solicited)
            {
                break Err(bare(error));
            }
            let mut queue = self.queue();
            if !self.live.load(Ordering::Acquire) {
                break Err(bare(Error::new(ReturnType::Abort, Subtype::None, "the EVD was freed")));
            }
            if !queue.waitable {
                let sub = Subtype::InvalidStateEvdUnwaitable;
                break Err(bare(Error::state(sub, "the EVD was made unwaitable")));
            }
            match self.harvest(&mut queue) {
                Ok(found) => after.merge(found),
                Err(error) => break Err(bare(error)),
            }
            notified |= std::mem::take(&mut queue.notified);
            if notified && queue.len() >= threshold {
                let more = queue.len() - 1;
                // The queue is not empty: the threshold is at least 1.
                if let Some(data) = queue.pop() {
                    break Ok(Waited { event: Event { evd: self.id, data }, more });
                }
            }
            // From here on a waiter returns only for something that notifies.
            notified = false;
            let more = queue.len();
            drop(queue);
            self.settle(std::mem::take(&mut after));
            let left = deadline.map(|d| d.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                let error = Error::new(ReturnType::TimeoutExpired, Subtype::None, "the time is over");
                break Err(WaitError { error, more });
            }
            match self.block(left) {
                Ok(device) => notified |= device && solicited,
                Err(error) => break Err(WaitError { error, more }),
            }
        };
        self.settle(after);
        outcome
    }

    fn drain_channel(&self) -> bool {
        let mut any = false;
        if let Some(channel) = &self.channel {
            while let Ok(Some(_)) = channel.next_event() {
                any = true;
            }
        }
        any
    }

    /// Sleeps until the device or somebody of this process has news; true if the device had.
    fn block(&self, left: Option<Duration>) -> Result<bool> {
        let mut fds = vec![PollFd::new(self.wake.as_fd(), PollFlags::POLLIN)];
        if let Some(channel) = &self.channel {
            fds.push(PollFd::new(channel.as_fd(), PollFlags::POLLIN));
        }
        match nix::poll::ppoll(&mut fds, left.map(Into::into), None) {
            Ok(_) => {}
            Err(nix::errno::Errno::EINTR) => {
                return Err(Error::new(ReturnType::InterruptedCall, Subtype::None, "a signal came"));
            }
            Err(errno) => {
                let text = format!("ppoll: {errno}");
                return Err(Error::new(ReturnType::InternalError, Subtype::None, text));
            }
        }
        let _ = self.wake.read();
        Ok(self.drain_channel())
    }

    /// Closes it, wakes a waiter with ABORT and gives back what queued events hold.
    pub(crate) fn close(&self) {
        if !self.live.swap(false, Ordering::AcqRel) {
            return;
        }
        let mut queue = self.queue();
        if let Ok(after) = self.harvest(&mut queue) {
            drop(after);
        }
        let events = std::mem::take(&mut queue.dtos);
        let others = std::mem::take(&mut queue.others);
        queue.eps.clear();
        queue.srqs.clear();
        let cno = queue.cno.take();
        drop(queue);
        events.into_iter().for_each(|queued| queued.held.release());
        // Connection requests are rejected as they go.
        drop(others);
        if let Some(channel) = &self.channel {
            let _ = self.ia.progress.watch_evd(self.id, channel.as_fd(), false);
        }
        if let Some(cno) = cno {
            cno.leave();
        }
        self.ia.objects.lock().unwrap().evds.remove(&self.id.0);
        self.wake_waiter();
    }
}

impl Drop for EvdInner {
    fn drop(&mut self) {
        self.close();
    }
}

impl Queue {
    fn cno_if_enabled(&self) -> Option<Arc<CnoInner>> {
        self.cno.clone().filter(|_| self.enabled)
    }
}

fn received(ep: &EpInner, completion: &Completion, cookie: u64) -> DtoCompletion {
    let success = completion.status == DtoStatus::Success;
    DtoCompletion {
        ep: ep.id,
        ep_context: ep.context.load(Ordering::Relaxed),
        cookie,
        status: completion.status,
        length: if success { completion.length } else { 0 },
        op: if success { completion.op } else { crate::DtoOp::Receive },
        immediate: completion.immediate.filter(|_| success),
        invalidated: completion.invalidated.filter(|_| success),
    }
}

impl SrqPath {
    /// The verbs object that QPs are created on.
    pub(crate) fn verbs(&self) -> &rxe_fallback::Srq {
        match self {
            Self::Verbs(srq) => srq.verbs(),
        }
    }
}
