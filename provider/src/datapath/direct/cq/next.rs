//! Dequeues: the next completion of the CQs of an EVD.

use super::{CqUse, DirectCq, DirectCqs, Returns};
use crate::datapath::completion::WrId;
use crate::datapath::direct::cqe::receive;
use crate::datapath::direct::srq::DirectSrq;
use crate::datapath::entries::CompletedUpTo;
use crate::datapath::next::{Feed, Next, NextOnCq};
use mlx5_direct::{PlainEntry, PlainKind};

impl NextOnCq for DirectCqs {
    const ONE: bool = false;
    type Srq = DirectSrq;
    type Next<'a> = DirectNext<'a>;

    #[inline(always)]
    fn next(&mut self, feed: Feed, fast: bool) -> Option<DirectNext<'_>> {
        match feed {
            Feed::Messages => match self.receives.as_mut_slice() {
                [only] => only.next_of(PlainKind::Received, fast),
                _ => None,
            },
            Feed::Requests => self.shared.next_of(PlainKind::Request, fast),
            Feed::Receives => self.shared.next_of(PlainKind::Received, fast),
            Feed::Shared => self.shared.next_plain(fast),
            Feed::Any => self.next_of_any(),
        }
    }

    #[inline(always)]
    fn is_empty(&mut self, feed: Feed, fast: bool) -> bool {
        match feed {
            Feed::Messages => match self.receives.as_mut_slice() {
                [only] => only.is_empty(fast),
                _ => false,
            },
            Feed::Requests | Feed::Receives | Feed::Shared => self.shared.is_empty(fast),
            Feed::Any => self.are_empty(),
        }
    }

    fn count_waiting(&mut self) -> Option<usize> {
        let mut waiting = self.shared.cq.waiting_messages()? as usize;
        for of_srq in &mut self.receives {
            waiting += of_srq.cq.waiting_messages()? as usize;
        }
        for older in &mut self.older {
            waiting += older.cq.waiting_messages()? as usize;
        }
        Some(waiting)
    }
}

impl DirectCqs {
    /// The next completion of any CQ. `None` also if shared CQs and those of SRQs have completions:
    /// [`DirectCqs::poll`] knows their order.
    #[inline(never)]
    fn next_of_any(&mut self) -> Option<DirectNext<'_>> {
        // Messages first: what completed before a message arrived is then seen beside the message.
        let message = self.receives.iter().any(|cq| cq.cq.is_ready());
        mlx5_direct::barrier::from_device();
        let shared = self.all_shared().any(|cq| cq.cq.is_ready());
        match (message, shared) {
            (true, false) => next_of_first(self.receives.iter_mut()),
            (false, true) => next_of_first(self.all_shared()),
            _ => None,
        }
    }

    /// Whether no completion waits on any CQ.
    #[inline(never)]
    fn are_empty(&mut self) -> bool {
        // Not by `all_shared`: each list has a loop of its own then.
        self.receives.iter_mut().all(|cq| cq.cq.is_empty())
            && self.shared.cq.is_empty()
            && self.older.iter_mut().all(|cq| cq.cq.is_empty())
    }
}

/// The next completion of the first of these CQs that has one.
#[inline(always)]
fn next_of_first<'a, U: CqUse + 'a>(
    mut cqs: impl Iterator<Item = &'a mut DirectCq<U>>,
) -> Option<DirectNext<'a>> {
    cqs.find(|cq| cq.cq.is_ready())?.next_plain(false)
}

/// The next completion of a CQ.
pub(crate) struct DirectNext<'a> {
    entry: PlainEntry<'a>,
    /// `None` on a shared CQ.
    returns: Option<&'a mut Returns>,
    /// Whether only slots of the current word are reaped.
    fast: bool,
}

impl Next for DirectNext<'_> {
    type Srq = DirectSrq;

    #[inline(always)]
    fn qpn(&self) -> u32 {
        self.entry.qpn()
    }

    #[inline(always)]
    fn wr_id(&self) -> WrId {
        match self.entry.kind() {
            PlainKind::Request => WrId::Request(self.entry.wqe_counter().into()),
            PlainKind::Received => {
                receive(self.returns.as_ref().map(|returns| returns.srq), self.entry.wqe_counter())
            }
        }
    }

    #[inline(always)]
    fn length(&self) -> u32 {
        self.entry.byte_count()
    }

    #[inline(always)]
    fn reap(&mut self, pools: bool, _: Option<&DirectSrq>, _: &CompletedUpTo) -> Option<(u64, u32)> {
        let slot = self.entry.wqe_counter().into();
        let Returns { slots, alone, current, .. } = self.returns.as_deref_mut()?;
        match (self.fast, pools) {
            (true, false) => Some((slots.reap_ready(current, slot)?, 0)),
            (true, true) => slots.reap_in_word(current, slot),
            (false, _) if *alone => slots.reap_alone(current, slot),
            (false, _) => slots.reap(slot),
        }
    }

    #[inline(always)]
    fn take(self) {
        self.entry.take_and_return();
    }
}

impl<U: CqUse> DirectCq<U> {
    /// The next completion, if it is plain and of this kind.
    #[inline(always)]
    fn next_of(&mut self, kind: PlainKind, fast: bool) -> Option<DirectNext<'_>> {
        if !fast {
            self.cq.begin_interval();
        }
        Some(DirectNext { entry: self.cq.plain_entry_of(kind)?, returns: self.of.returns(), fast })
    }

    /// The next completion, if it is plain.
    #[inline(always)]
    fn next_plain(&mut self, fast: bool) -> Option<DirectNext<'_>> {
        if !fast {
            self.cq.begin_interval();
        }
        Some(DirectNext { entry: self.cq.plain_entry()?, returns: self.of.returns(), fast })
    }

    /// Whether no completion waits. `fast`: false also where polled entries have to be returned.
    #[inline(always)]
    fn is_empty(&mut self, fast: bool) -> bool {
        if fast { self.cq.is_idle() } else { self.cq.is_empty() }
    }
}
