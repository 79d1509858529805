//! The data under the lock of an EVD: its CQ, its queued events, the streams that feed it, and the
//! tables that map completions to queue pairs.
//!
//! Completions and notices have separate queues. Notices leave first, except the end of a
//! connection: it waits until the completions queued before it have left (R185).

use crate::Result;
use crate::cno::CnoInner;
use crate::counters::EvdCounts;
use crate::datapath::{Completion, CqPath, Lost};
use crate::device::Device;
use crate::event_data::{Dequeued, DtoCompletion, Notice, Success};
use crate::memory::list;
use crate::queue_pair::{Credit, QueuePair, Request};
use crate::shared_recv::SharedRecv;
use crate::types::{ByNumber, CompletionFlags, DtoOp, EpId, EvdFlags, Numbers};
use rxe_fallback::Context;
use std::collections::{TryReserveError, VecDeque};
use std::sync::Arc;

pub(crate) const BATCH: usize = 32;

/// The events of an EVD, and the CQs from which completions come.
#[derive(Debug)]
pub struct Queue {
    /// `Some` if the EVD takes completions.
    pub(crate) cq: Option<CqPath>,
    pub(crate) slow_path: SlowPath,
    /// Completions that were polled together.
    pub(crate) batch: Batch,
    pub(crate) qlen: usize,
    /// At most `qlen` completions. Memory for all of them is reserved.
    pub(crate) dtos: VecDeque<Queued>,
    /// All events other than completions, in order of arrival.
    pub(crate) others: VecDeque<Notice>,
    /// The number of completions that leave before the connection end at the front of `others`
    /// (R185). Set when the connection end is first considered for a dequeue.
    pub(crate) before_end: Option<usize>,
    pub(crate) pairs: Pairs,
    pub(crate) srqs: Numbered<SharedRecv>,
    pub(crate) streams: Vec<Stream>,
    /// An event that may wake a waiter has arrived since the waiter last looked.
    pub(crate) notified: bool,
    pub(crate) waitable: bool,
    pub(crate) enabled: bool,
    pub(crate) cno: Option<Arc<CnoInner>>,
    pub(crate) alert: Alert,
    /// Completions of QPs that are gone may take room on the CQ.
    pub(crate) stale: bool,
    /// There was no room for a connection request, and the program knows it.
    pub(crate) refuses: bool,
    /// The number of CQ entries that all attached streams together may need.
    pub(crate) demand: u32,
    pub(crate) counts: EvdCounts,
    /// Work that a dequeue on the fast path has found.
    pub(super) deferred: Deferred,
}

/// What a consumer makes of a completion.
pub trait Take: Copy {
    /// The consumer's representation of an event.
    type Event;
    /// Builds the event of a success.
    fn success(self, success: Success) -> Self::Event;
    /// As [`Take::success`], if the operation is not of the extension.
    #[inline(always)]
    fn plain(self, success: Success) -> Self::Event {
        self.success(success)
    }
    /// Builds the event of a request that succeeded, if the request is plain.
    #[inline(always)]
    fn request(self, pair: &QueuePair, request: &Request) -> Self::Event {
        self.plain(pair.success(request))
    }
    /// Builds the event of any completion.
    fn any(self, dto: DtoCompletion) -> Self::Event;
}

/// A [`Take`] that can take many events at once.
pub(crate) trait TakeMany: Take {
    /// Whether the place holds nothing that has to be dropped.
    fn is_free(place: &Option<Self::Event>) -> bool;
}

bitflags::bitflags! {
    /// Why a dequeue may need more than the fast path.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct SlowPath: u32 {
        /// Completions of requests arrive on this EVD.
        const REQUESTS = 1;
        /// A thread is in `wait`.
        const WAITED = 2;
        const CLOSED = 4;
        /// The EVD takes no completions, so its events are never plain.
        const NO_DTOS = 8;
        /// `Queue::deferred` holds work.
        const DEFERRED = 16;
        /// Events may be queued, or completions be left of a polled batch.
        const QUEUED = 32;
        /// The EVD has CQs of SRQs: on the direct path, receives from SRQs arrive on it.
        const MESSAGES = 64;
        /// The EVD has several shared CQs.
        const SEVERAL = 128;
        /// Receives of EPs without an SRQ arrive on this EVD.
        const RECEIVES = 256;
        /// What arrives on shared CQs.
        const SHARED = Self::REQUESTS.bits() | Self::RECEIVES.bits();
        /// What arrives on an EVD that takes completions.
        const COMPLETIONS = Self::SHARED.bits() | Self::MESSAGES.bits() | Self::SEVERAL.bits();
        /// What rules out the fast path.
        const ALWAYS =
            Self::WAITED.bits() | Self::CLOSED.bits() | Self::NO_DTOS.bits() | Self::DEFERRED.bits();
    }
}

impl SlowPath {
    /// Of a new EVD that takes these streams.
    pub(crate) fn of_new(flags: EvdFlags, discards: bool) -> Self {
        let mut path = Self::empty();
        path.set(Self::REQUESTS, discards);
        path.set(Self::NO_DTOS, !flags.contains(EvdFlags::DTO));
        path
    }
}

#[derive(Debug)]
pub(crate) struct Queued {
    pub(crate) dto: DtoCompletion,
    pub(crate) credit: Credit,
}

impl Queued {
    /// Drops a completion that no consumer will see: releases what it holds, and returns a pool's
    /// buffer.
    pub(crate) fn abandon(self, ia: &Device, srqs: &Numbered<SharedRecv>) {
        // A bind carries the number of its RMR in place of the pool, and the consumer's cookie.
        if self.dto.op != DtoOp::RmrBind {
            ia.pools.return_unseen(self.dto.pool, self.dto.cookie);
        }
        self.credit.release(|number| srqs.get(&number));
    }
}

/// Maps the number of a QP or an SRQ to its object. Each completion needs one lookup.
pub(crate) type Numbered<T> = ByNumber<u32, Arc<T>>;

/// Completions that were polled together and are taken one by one. Those that no dequeue has taken
/// count as if they were still in the CQ: a harvest takes them first.
#[derive(Debug)]
pub(crate) struct Batch {
    polled: Vec<Completion>,
    next: usize,
}

impl Batch {
    /// Reserves memory for a poll of both CQs of an EVD, if the EVD has any.
    pub(crate) fn new(with_cq: bool) -> Result<Self> {
        Ok(Self { polled: list(if with_cq { 2 * BATCH } else { 0 })?, next: 0 })
    }

    /// The number of completions that were not taken.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.polled.len() - self.next
    }

    /// The list for the next poll; empty. Call only if none is left.
    #[inline]
    pub(crate) fn for_poll(&mut self) -> &mut Vec<Completion> {
        self.polled.clear();
        self.next = 0;
        &mut self.polled
    }

    /// Removes the completions of this QP. Calls `removed` for each.
    pub(crate) fn clean(&mut self, qpn: u32, removed: impl Fn(&Completion)) {
        self.polled.drain(..self.next);
        self.next = 0;
        self.polled.retain(|completion| {
            let stays = completion.qpn != qpn;
            if !stays {
                removed(completion);
            }
            stays
        });
    }

    /// The oldest completion.
    #[inline]
    pub(crate) fn front(&self) -> Option<&Completion> {
        self.polled.get(self.next)
    }

    /// Takes the completion of [`Batch::front`].
    #[inline]
    pub(crate) fn skip(&mut self) {
        self.next += 1;
    }

    /// Takes the oldest completion.
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<Completion> {
        let completion = *self.polled.get(self.next)?;
        self.next += 1;
        Some(completion)
    }
}

/// Queue pairs by QP number. The devices number QPs in ascending order, so a small table by the low
/// bits finds most of them without a hash.
#[derive(Debug)]
pub(crate) struct Pairs<P = QueuePair> {
    near: [Near<P>; NEAR],
    all: Numbered<P>,
}

impl<P> Default for Pairs<P> {
    fn default() -> Self {
        Self { near: [const { Near { swapped: 0, pair: None } }; NEAR], all: Numbered::default() }
    }
}

/// A place of the small table.
#[derive(Debug)]
struct Near<P> {
    /// The number with its bytes swapped, as it is in a completion of the direct path.
    swapped: u32,
    pair: Option<Arc<P>>,
}

/// Places of the small table.
const NEAR: usize = 64;

impl<P> Pairs<P> {
    /// The queue pair with this number.
    #[inline(always)]
    pub(crate) fn get(&self, qpn: u32) -> Option<&Arc<P>> {
        self.get_near(qpn).or_else(|| self.get_far(qpn))
    }

    /// The queue pair with this number, if it is in the small table.
    #[inline(always)]
    pub(crate) fn get_near(&self, qpn: u32) -> Option<&Arc<P>> {
        let place = &self.near[qpn as usize % NEAR];
        place.pair.as_ref().filter(|_| place.swapped == qpn.swap_bytes())
    }

    #[inline(never)]
    fn get_far(&self, qpn: u32) -> Option<&Arc<P>> {
        self.all.get(&qpn)
    }

    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    /// Assigns the number to this queue pair.
    ///
    /// # Errors
    /// No memory. A number that is assigned already needs none.
    pub(crate) fn put(&mut self, qpn: u32, pair: &Arc<P>) -> Result<(), TryReserveError> {
        put(&mut self.all, qpn, pair)?;
        let place = &mut self.near[qpn as usize % NEAR];
        let swapped = qpn.swap_bytes();
        if place.pair.is_none() || place.swapped == swapped {
            *place = Near { swapped, pair: Some(pair.clone()) };
        }
        Ok(())
    }

    pub(crate) fn remove(&mut self, qpn: u32) {
        self.all.remove(&qpn);
        let place = &mut self.near[qpn as usize % NEAR];
        if place.swapped == qpn.swap_bytes() {
            place.pair = None;
        }
    }
}

/// Puts an object into the table, and allocates memory if the table has no room.
pub(crate) fn put<T>(table: &mut Numbered<T>, number: u32, object: &Arc<T>) -> Result<(), TryReserveError> {
    if let Some(place) = table.get_mut(&number) {
        *place = object.clone();
        return Ok(());
    }
    table.try_reserve(1)?;
    table.insert(number, object.clone());
    Ok(())
}

/// A stream that feeds this EVD, with the properties that the sharing rules check (R149-R152).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stream {
    pub(crate) ep: EpId,
    pub(crate) kind: StreamKind,
    pub(crate) flags: CompletionFlags,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamKind {
    /// Receives. `srq`: the buffers come from an SRQ.
    Recv {
        srq: bool,
    },
    Request,
    Connection,
    /// A PSP or RSP.
    Service,
}

impl Queue {
    /// Keeps work for the next caller of [`Queue::take_deferred`]. Until then no dequeue takes the
    /// fast path.
    pub(crate) fn defer(&mut self, work: Deferred) {
        self.slow_path.set(SlowPath::DEFERRED, !work.is_nothing());
        self.deferred = work;
    }

    /// The work that dequeues on the fast path have found.
    #[inline]
    pub(crate) fn take_deferred(&mut self) -> Deferred {
        self.slow_path.remove(SlowPath::DEFERRED);
        std::mem::take(&mut self.deferred)
    }

    pub(crate) fn len(&self) -> usize {
        self.dtos.len() + self.others.len()
    }

    /// Whether completions may be left of a polled batch, and nothing else comes before them.
    #[inline(always)]
    pub(super) fn has_batch_only(&self) -> bool {
        SlowPath::COMPLETIONS.union(SlowPath::QUEUED).contains(self.slow_path)
            && self.others.is_empty()
            && self.dtos.is_empty()
    }

    /// Adds a completion to the queue, which has room for it.
    pub(super) fn push_dto(&mut self, queued: Queued) {
        self.dtos.push_back(queued);
        self.slow_path |= SlowPath::QUEUED;
    }

    /// Adds an event other than a completion. The caller has reserved memory for it.
    pub(super) fn push_notice(&mut self, event: Notice) {
        self.others.push_back(event);
        self.slow_path |= SlowPath::QUEUED;
    }

    /// Changes the length of the queue. On failure the length stays unchanged.
    pub(crate) fn resize(&mut self, qlen: usize) -> Result<()> {
        if let Some(cq) = &mut self.cq {
            self.dtos.try_reserve(qlen.saturating_sub(self.dtos.len()))?;
            cq.ensure(self.demand.max(qlen as u32))?;
        }
        self.qlen = qlen;
        Ok(())
    }

    /// Takes the next event: notices before completions, in order of arrival. The end of a
    /// connection waits until the completions queued before it have left (R185).
    pub(crate) fn pop(&mut self) -> Option<Dequeued> {
        let end_next = matches!(self.others.front(), Some(Notice::Connection(event)) if event.kind.is_end());
        if end_next {
            let before = *self.before_end.get_or_insert(self.dtos.len());
            if before > 0 && !self.dtos.is_empty() {
                self.before_end = Some(before - 1);
                return self.pop_dto();
            }
            self.before_end = None;
        }
        self.others.pop_front().map(Dequeued::Notice).or_else(|| self.pop_dto())
    }

    #[inline]
    pub(crate) fn pop_dto(&mut self) -> Option<Dequeued> {
        let queued = self.dtos.pop_front()?;
        queued.credit.release(|number| self.srqs.get(&number));
        Some(Dequeued::Dto(queued.dto))
    }

    pub(crate) fn has_dtos(&self) -> bool {
        self.streams.iter().any(|s| is_dto(s.kind))
    }

    pub(crate) fn has(&self, flag: CompletionFlags) -> bool {
        self.streams.iter().any(|s| is_dto(s.kind) && s.flags.contains(flag))
    }
}

pub(crate) fn is_dto(kind: StreamKind) -> bool {
    matches!(kind, StreamKind::Recv { .. } | StreamKind::Request)
}

impl Queue {
    pub(crate) fn cno_if_enabled(&self) -> Option<Arc<CnoInner>> {
        self.cno.clone().filter(|_| self.enabled)
    }
}

/// The completions for which a CQ is armed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Armed {
    #[default]
    Nothing,
    /// Failed or solicited completions.
    Failures,
    All,
}

impl Armed {
    /// The completions for which a consumer's wait or a CNO arms the CQ.
    pub(crate) fn to_notify(solicited: bool) -> Self {
        if solicited { Self::Failures } else { Self::All }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Alert {
    /// The completions that raise the next event. Every CQ of the EVD is armed for at least these.
    pub(crate) armed: Armed,
    /// How many events the channel holds or will get without another arming: one for each CQ that
    /// was armed since its last event. A CQ that was armed again just when it raised an event may
    /// raise a second one, which is not counted: it ends the next sleep in vain.
    expected: usize,
    /// The progress thread watches the channel.
    pub(crate) watched: bool,
    /// An EP is connected whose failures only its completions on this EVD report.
    pub(crate) failures: bool,
    /// `Timer::Rearm` is set.
    pub(crate) scheduled: bool,
    /// QP numbers of EPs whose next receive exceeds a high watermark.
    pub(crate) marked: Numbers<u32>,
    /// A failed request raises a solicited event, as the verbs specification requires.
    pub(crate) failures_are_solicited: bool,
}

impl Alert {
    pub(crate) fn new(device: &Context) -> Self {
        Self { failures_are_solicited: device.driver() != "rdma_rxe", ..Self::default() }
    }

    /// Records that all CQs have to be armed again.
    pub(crate) fn disarmed(&mut self) {
        self.armed = Armed::Nothing;
    }

    /// Whether the channel is expected to hold an event now or later. To read it in vain costs a
    /// system call.
    pub(crate) fn expects_event(&self) -> bool {
        self.expected > 0
    }

    /// Records that an event was read.
    pub(crate) fn event_read(&mut self) {
        self.disarmed();
        self.expected = self.expected.saturating_sub(1);
    }

    /// Records that all of the EVD's CQs, of which there are so many, were armed.
    fn cqs_armed(&mut self, cqs: usize) {
        self.expected = cqs;
    }

    pub(crate) fn expect_failures(&mut self) {
        self.failures = true;
    }

    /// Reserves memory for the marks of `eps` EPs.
    pub(crate) fn reserve(&mut self, eps: usize) -> Result<(), TryReserveError> {
        self.marked.try_reserve(eps.saturating_sub(self.marked.len()))
    }

    /// Records whether the next receive of the EP with this QP exceeds one of its high watermarks.
    pub(crate) fn mark(&mut self, qpn: u32, on: bool) {
        if on {
            self.marked.insert(qpn);
        } else {
            self.marked.remove(&qpn);
        }
    }
}

impl Queue {
    /// The completions for which the CQ has to be armed while no thread waits and no CNO is set.
    pub(crate) fn wanted(&self) -> Armed {
        let Alert { failures, ref marked, failures_are_solicited, .. } = self.alert;
        let marked = !marked.is_empty();
        if self.slow_path.contains(SlowPath::CLOSED) || !(marked || failures) {
            Armed::Nothing
        } else if (marked || !failures_are_solicited) && !self.has(CompletionFlags::SOLICITED_WAIT) {
            Armed::All
        } else {
            Armed::Failures
        }
    }

    pub(crate) fn arm(&mut self, to: Armed) -> Result<()> {
        if let Some(cq) = &mut self.cq {
            let cqs = cq.arm(to == Armed::Failures)?;
            self.alert.cqs_armed(cqs);
        }
        self.alert.armed = to;
        Ok(())
    }
}

/// Work that a harvest finds, to be done without the queue's lock.
#[derive(Debug, Default)]
#[must_use]
pub(crate) struct Deferred {
    /// Each with the number of its life.
    pub(crate) failed: Vec<(Arc<QueuePair>, u64)>,
    pub(crate) received: Vec<Arc<QueuePair>>,
    pub(crate) lost: Vec<(Arc<SharedRecv>, Lost)>,
    pub(crate) overflowed: bool,
}

impl Deferred {
    /// The work for an event that was lost.
    pub(crate) fn overflow() -> Self {
        Self { overflowed: true, ..Self::default() }
    }

    #[inline]
    pub(crate) fn is_nothing(&self) -> bool {
        self.failed.is_empty() && self.received.is_empty() && self.lost.is_empty() && !self.overflowed
    }

    /// Reserves memory for the work of one more batch of completions. A list that is empty needs
    /// none.
    pub(crate) fn reserve_batch(&mut self) -> Result<(), TryReserveError> {
        let Self { failed, received, lost, overflowed: _ } = self;
        let more = |len: usize| if len == 0 { 0 } else { BATCH };
        failed.try_reserve(more(failed.len()))?;
        received.try_reserve(more(received.len()))?;
        lost.try_reserve(more(lost.len()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::datapath::WrId;
    use crate::types::{DtoStatus, EpId};

    /// A queue without events and without a CQ.
    fn queue() -> Queue {
        Queue {
            cq: None,
            slow_path: SlowPath::empty(),
            batch: Batch::new(true).unwrap(),
            qlen: 8,
            dtos: VecDeque::new(),
            others: VecDeque::new(),
            before_end: None,
            pairs: Pairs::default(),
            srqs: Numbered::default(),
            streams: Vec::new(),
            notified: false,
            waitable: true,
            enabled: true,
            cno: None,
            alert: Alert::default(),
            stale: false,
            refuses: false,
            demand: 0,
            counts: EvdCounts::default(),
            deferred: Deferred::default(),
        }
    }

    fn completion(qpn: u32, slot: u16) -> Completion {
        Completion {
            wr_id: WrId::Recv(slot),
            qpn,
            status: DtoStatus::Success,
            op: DtoOp::Receive,
            length: 0,
            immediate: None,
            invalidated: None,
            source_qpn: 0,
        }
    }

    fn named(completion: &Completion) -> (u32, u16) {
        let WrId::Recv(slot) = completion.wr_id else { panic!("{completion:?}") };
        (completion.qpn, slot)
    }

    #[test]
    fn a_batch_gives_its_completions_in_order_and_without_those_of_a_reset_qp() {
        let mut batch = Batch::new(true).unwrap();
        assert!(batch.front().is_none() && batch.pop().is_none());
        batch
            .for_poll()
            .extend([(7, 0), (8, 1), (7, 2), (8, 3), (9, 4), (7, 5)].map(|(qpn, n)| completion(qpn, n)));
        assert_eq!(batch.len(), 6);
        assert_eq!(batch.front().map(named), Some((7, 0)));
        batch.skip();
        assert_eq!(batch.pop().as_ref().map(named), Some((8, 1)));
        let removed = std::cell::RefCell::new(Vec::new());
        batch.clean(7, |gone| removed.borrow_mut().push(named(gone)));
        // The first one of that QP was taken before.
        assert_eq!(removed.into_inner(), [(7, 2), (7, 5)]);
        assert_eq!(batch.len(), 2);
        assert_eq!(batch.front().map(named), Some((8, 3)));
        assert_eq!(batch.pop().as_ref().map(named), Some((8, 3)));
        assert_eq!(batch.pop().as_ref().map(named), Some((9, 4)));
        assert!(batch.front().is_none() && batch.pop().is_none());
        assert!(batch.for_poll().is_empty());
        assert_eq!(batch.len(), 0);
    }

    /// Numbers in ascending order, as devices assign them, are in the small table; further ones are
    /// found, too.
    #[test]
    fn a_pair_is_found_by_its_number_alone() {
        const FIRST: u32 = 0x1234;
        let mut pairs = Pairs::<u32>::default();
        let numbers = FIRST..FIRST + 3 * NEAR as u32;
        for qpn in numbers.clone() {
            assert!(pairs.get(qpn).is_none());
            pairs.put(qpn, &Arc::new(qpn)).unwrap();
        }
        assert_eq!(pairs.len(), 3 * NEAR);
        for qpn in numbers.clone() {
            assert_eq!(pairs.get(qpn).map(|pair| **pair), Some(qpn));
            let near = qpn - FIRST < NEAR as u32;
            assert_eq!(pairs.get_near(qpn).map(|pair| **pair), near.then_some(qpn));
        }
        // A number that is assigned anew.
        for qpn in [FIRST, FIRST + NEAR as u32] {
            pairs.put(qpn, &Arc::new(1)).unwrap();
            assert_eq!(pairs.get(qpn).map(|pair| **pair), Some(1));
        }
        assert_eq!(pairs.len(), 3 * NEAR);
        // The place of one that is gone goes to the next with the same low bits.
        pairs.remove(FIRST + NEAR as u32);
        assert!(pairs.get(FIRST + NEAR as u32).is_none());
        assert_eq!(pairs.get_near(FIRST).map(|pair| **pair), Some(1));
        pairs.remove(FIRST);
        assert!(pairs.get(FIRST).is_none());
        assert_eq!(pairs.get(FIRST + 2 * NEAR as u32).map(|pair| **pair), Some(FIRST + 2 * NEAR as u32));
        let last = Arc::new(2);
        pairs.put(FIRST + 3 * NEAR as u32, &last).unwrap();
        assert_eq!(pairs.get_near(FIRST + 3 * NEAR as u32).map(|pair| **pair), Some(2));
        assert_eq!(Arc::strong_count(&last), 3);
        for qpn in FIRST..FIRST + 4 * NEAR as u32 {
            pairs.remove(qpn);
            assert!(pairs.get(qpn).is_none());
        }
        assert_eq!((pairs.len(), Arc::strong_count(&last)), (0, 1));
    }

    fn stream(kind: StreamKind, flags: CompletionFlags) -> Stream {
        Stream { ep: EpId(1), kind, flags }
    }

    /// A closed EVD wants no events; one with a mark, or whose completions alone report failures,
    /// wants what shows them.
    #[test]
    fn a_cq_is_armed_for_what_its_eps_need() {
        let none = CompletionFlags::empty();
        for failures_are_solicited in [false, true] {
            let mut queue = queue();
            queue.alert.failures_are_solicited = failures_are_solicited;
            queue.streams.push(stream(StreamKind::Recv { srq: true }, none));
            assert_eq!(queue.wanted(), Armed::Nothing);
            queue.alert.mark(3, true);
            queue.alert.mark(4, true);
            assert_eq!(queue.wanted(), Armed::All);
            queue.alert.mark(3, false);
            assert_eq!(queue.wanted(), Armed::All);
            queue.streams[0].flags = CompletionFlags::SOLICITED_WAIT;
            assert_eq!(queue.wanted(), Armed::Failures);
            queue.streams[0].flags = none;
            queue.alert.mark(4, false);
            assert_eq!(queue.wanted(), Armed::Nothing);
            queue.alert.expect_failures();
            let failures = if failures_are_solicited { Armed::Failures } else { Armed::All };
            assert_eq!(queue.wanted(), failures);
            queue.alert.mark(4, true);
            assert_eq!(queue.wanted(), Armed::All);
            queue.slow_path |= SlowPath::CLOSED;
            assert_eq!(queue.wanted(), Armed::Nothing);
        }
    }

    /// The marks of as many EPs as the table was told of need no memory.
    #[test]
    fn marks_have_the_memory_that_was_reserved() {
        let mut alert = Alert::default();
        alert.reserve(1).unwrap();
        for eps in [1, 40, 41, 500] {
            alert.reserve(eps).unwrap();
            let room = alert.marked.capacity();
            assert!(room >= eps);
            for qpn in 0..eps as u32 {
                alert.mark(qpn, true);
            }
            assert_eq!((alert.marked.len(), alert.marked.capacity()), (eps, room));
        }
        // As many as there are marks already.
        let room = alert.marked.capacity();
        for eps in [0, 500] {
            alert.reserve(eps).unwrap();
            assert_eq!(alert.marked.capacity(), room);
        }
    }

    #[test]
    fn an_armed_cq_stays_armed_until_its_event() {
        let mut queue = queue();
        for armed in [Armed::All, Armed::Failures] {
            queue.arm(armed).unwrap();
            assert_eq!(queue.alert.armed, armed);
        }
        queue.alert.disarmed();
        assert_eq!(queue.alert.armed, Armed::Nothing);
    }

    #[test]
    fn each_armed_cq_is_expected_to_raise_one_event() {
        let mut alert = Alert::default();
        assert!(!alert.expects_event());
        // Armed again before the event: a CQ that is armed stays armed.
        for _ in 0..3 {
            alert.cqs_armed(2);
        }
        for _ in 0..2 {
            assert!(alert.expects_event());
            alert.event_read();
        }
        assert!(!alert.expects_event());
        // An event that nobody expected.
        alert.event_read();
        assert!(!alert.expects_event());
    }

    #[test]
    fn streams_of_completions_have_flags() {
        let mut queue = queue();
        let solicited = CompletionFlags::SOLICITED_WAIT;
        for kind in [StreamKind::Connection, StreamKind::Service] {
            queue.streams.push(stream(kind, solicited));
        }
        assert!(!queue.has_dtos() && !queue.has(solicited));
        queue.streams.push(stream(StreamKind::Request, CompletionFlags::empty()));
        assert!(queue.has_dtos() && !queue.has(solicited));
        queue.streams.push(stream(StreamKind::Recv { srq: false }, solicited));
        assert!(queue.has(solicited) && !queue.has(CompletionFlags::UNSIGNALLED));
    }

    #[test]
    fn deferred_work_keeps_dequeues_from_the_fast_path() {
        let mut queue = queue();
        assert!(Deferred::default().is_nothing());
        queue.defer(Deferred::default());
        assert_eq!(queue.slow_path, SlowPath::empty());
        assert!(!Deferred::overflow().is_nothing());
        queue.defer(Deferred::overflow());
        assert_eq!(queue.slow_path, SlowPath::DEFERRED);
        assert!(queue.take_deferred().overflowed);
        assert_eq!(queue.slow_path, SlowPath::empty());
        assert!(queue.take_deferred().is_nothing());
    }

    /// Whether the rest of a polled batch is next.
    #[test]
    fn a_batch_waits_for_all_that_comes_before_it() {
        let mut queue = queue();
        for plain in [SlowPath::SHARED, SlowPath::MESSAGES, SlowPath::COMPLETIONS | SlowPath::QUEUED] {
            queue.slow_path = plain;
            assert!(queue.has_batch_only());
            for more in [SlowPath::WAITED, SlowPath::CLOSED, SlowPath::NO_DTOS, SlowPath::DEFERRED] {
                queue.slow_path = plain | more;
                assert!(!queue.has_batch_only(), "{more:?}");
            }
            queue.slow_path = plain;
            queue.push_notice(Notice::Software(1));
            assert!(!queue.has_batch_only());
            assert!(queue.slow_path.contains(SlowPath::QUEUED));
            assert!(matches!(queue.pop(), Some(Dequeued::Notice(Notice::Software(1)))));
            assert!(queue.has_batch_only());
        }
    }
}
