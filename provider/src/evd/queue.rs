//! The data under the lock of an EVD: its CQ, its queued events, the streams that feed it, and the
//! tables that map completions to queue pairs.
//!
//! Completions and notices have separate queues. Notices leave first, except the end of a
//! connection: it waits until the completions queued before it have left (R185).

use super::arming::{Alert, Armed};
use super::deferred::Deferred;
use super::pairs::{Numbered, Pairs};
use crate::Result;
use crate::cno::CnoInner;
use crate::counters::EvdCounts;
use crate::datapath::{Completion, CqPath, DataPath};
use crate::device::Device;
use crate::event_data::{Dequeued, DtoCompletion, Notice};
use crate::queue_pair::Credit;
use crate::shared_recv::SharedRecv;
use crate::types::{CompletionFlags, EpId, EvdFlags};
use std::collections::VecDeque;
use std::sync::Arc;

/// The events of an EVD, and the CQs from which completions come.
#[derive(Debug)]
pub struct Queue {
    /// `Some` if the EVD takes completions.
    pub(crate) cq: Option<CqPath>,
    pub(super) path: DataPath,
    pub(crate) state: State,
    /// Where a harvest puts the completions of a poll; empty otherwise, with memory for one poll.
    pub(super) batch: Vec<Completion>,
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

bitflags::bitflags! {
    /// What completes on an EVD, and what keeps a dequeue from being fast.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct State: u32 {
        /// Completions of requests arrive on this EVD.
        const REQUESTS = 1;
        /// A thread is in `wait`.
        const WAITED = 2;
        const CLOSED = 4;
        /// The EVD takes no completions, so its events are never plain.
        const NO_DTOS = 8;
        /// `Queue::deferred` holds work.
        const DEFERRED = 16;
        /// Events may be queued.
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
        /// What only the slow dequeue of the EVD handles.
        const ALWAYS_SLOW =
            Self::WAITED.bits() | Self::CLOSED.bits() | Self::NO_DTOS.bits() | Self::DEFERRED.bits();
    }
}

impl State {
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
        ia.pools.return_unseen(self.dto.owner, self.dto.cookie);
        self.credit.release(|number| srqs.get(&number));
    }
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
        self.state.set(State::DEFERRED, !work.is_nothing());
        self.deferred = work;
    }

    /// The work that dequeues on the fast path have found.
    #[inline]
    pub(crate) fn take_deferred(&mut self) -> Deferred {
        self.state.remove(State::DEFERRED);
        std::mem::take(&mut self.deferred)
    }

    pub(crate) fn len(&self) -> usize {
        self.dtos.len() + self.others.len()
    }

    /// Adds a completion to the queue, which has room for it.
    pub(super) fn push_dto(&mut self, queued: Queued) {
        self.dtos.push_back(queued);
        self.state |= State::QUEUED;
    }

    /// Adds an event other than a completion. The caller has reserved memory for it.
    pub(super) fn push_notice(&mut self, event: Notice) {
        self.others.push_back(event);
        self.state |= State::QUEUED;
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
        let end_next = matches!(
            self.others.front(),
            Some(Notice::Connection(event)) if event.kind.follows_completions()
        );
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

impl Queue {
    /// The completions for which the CQ has to be armed while no thread waits and no CNO is set.
    pub(crate) fn wanted(&self) -> Armed {
        let Alert { failures, ref marked, failures_are_solicited, .. } = self.alert;
        let marked = !marked.is_empty();
        if self.state.contains(State::CLOSED) || !(marked || failures) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::datapath::{Direct, Feed, Verbs};
    use crate::types::EpId;

    /// A queue without events and without a CQ.
    fn queue() -> Queue {
        Queue {
            cq: None,
            state: State::empty(),
            batch: Vec::new(),
            path: DataPath::Verbs,
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
            queue.state |= State::CLOSED;
            assert_eq!(queue.wanted(), Armed::Nothing);
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

    /// A dequeue by the direct path is fast if all completions come on one CQ, and by verbs always,
    /// unless something else may have to be done first.
    #[test]
    fn a_dequeue_is_fast_off_one_cq() {
        let none = State::empty();
        for (state, feed) in [
            (State::MESSAGES, Some(Feed::Messages)),
            (State::REQUESTS, Some(Feed::Requests)),
            (State::RECEIVES, Some(Feed::Shared)),
            (State::RECEIVES | State::REQUESTS, Some(Feed::Shared)),
            (State::MESSAGES | State::REQUESTS, None),
            (State::MESSAGES | State::RECEIVES, None),
            (State::REQUESTS | State::SEVERAL, None),
            (none, None),
        ] {
            let waited = State::WAITED | State::CLOSED;
            for more in [none, waited, State::NO_DTOS, State::DEFERRED, State::QUEUED] {
                let queue = Queue { state: state | more, ..queue() };
                let fast = more == none;
                for asked in [Feed::Messages, Feed::Requests, Feed::Shared, Feed::Any] {
                    assert_eq!(
                        queue.is_fed_by::<Direct>(asked),
                        fast && feed == Some(asked),
                        "{state:?} {more:?}"
                    );
                    assert_eq!(queue.is_fed_by::<Verbs>(asked), fast && asked == Feed::Shared);
                }
            }
        }
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
        assert_eq!(queue.state, State::empty());
        assert!(!Deferred::overflow().is_nothing());
        queue.defer(Deferred::overflow());
        assert_eq!(queue.state, State::DEFERRED);
        assert!(queue.take_deferred().overflowed);
        assert_eq!(queue.state, State::empty());
        assert!(queue.take_deferred().is_nothing());
    }
}
