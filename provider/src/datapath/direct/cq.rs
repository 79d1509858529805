//! CQs on the direct path. An EVD has shared CQs, in which requests and receives of EPs without an
//! SRQ complete, and one CQ for each SRQ whose EPs receive on the EVD.
//!
//! In error each posted WQE gets a CQE of its own, so a shared CQ needs an entry for each WQE that
//! its QPs can have posted. It lends these entries to the QPs. A CQ cannot grow, so if the entries
//! that are left are too few for a QP, the EVD gets another CQ of at least twice the size.
//!
//! When an event leaves the EVD, a WQE can be posted in the place of its own, and needs an entry.
//! So a polled entry goes back to the device before, unless as many entries are to spare as are
//! held back ([`mlx5_direct::Cq::hold_back`]): entries that no QP has, or beyond the depth of the
//! SRQ.

mod next;

use super::adopt::{self, Adopted};
use super::cqe::translate;
use super::slots::{Current, RingSlots};
use super::srq::DirectSrq;
use crate::datapath::completion::Completion;
use crate::types::DtoStatus;
use crate::{Error, Result, ReturnType, Subtype};
use mlx5_direct::{ArmFor, CqeError};
use rxe_fallback::{CompChannel, Context, Cq};
use std::sync::Arc;

/// The CQs of one EVD.
#[derive(Debug)]
pub(crate) struct DirectCqs {
    context: Context,
    channel: Option<CompChannel>,
    token: u64,
    /// The youngest CQ of requests, and of receives of EPs without an SRQ.
    shared: DirectCq<Lent>,
    /// The others, the oldest first.
    older: Vec<DirectCq<Lent>>,
    receives: Vec<DirectCq<Returns>>,
    /// The number of CQs created after the first. A token is never used twice.
    made: u64,
    /// [`DirectCq::polled`] of CQs that were dropped.
    polled: u64,
}

/// A CQ: a shared one, of [`Lent`] entries, or the one of an SRQ, which [`Returns`] its slots.
#[derive(Debug)]
pub(crate) struct DirectCq<U> {
    of: U,
    /// UD EPs receive here as well, so each message is checked for its sender.
    datagrams: bool,
    token: u64,
    cq: Adopted<mlx5_direct::Cq, Cq>,
    /// Consumed entries other than the events of [`DirectCq::polled`].
    other: u64,
}

/// The number of entries of a shared CQ that QPs have.
#[derive(Debug)]
pub(crate) struct Lent(u32);

/// How the CQ of an SRQ returns slots.
#[derive(Debug)]
pub(crate) struct Returns {
    srq: u32,
    slots: Arc<RingSlots>,
    /// By [`RingSlots::reap_alone`].
    alone: bool,
    /// Of the CQ that returns slots in this way.
    current: Current,
}

/// The use of a CQ.
pub(crate) trait CqUse {
    /// `None` for a shared CQ.
    fn returns(&mut self) -> Option<&mut Returns>;
}

impl CqUse for Lent {
    #[inline(always)]
    fn returns(&mut self) -> Option<&mut Returns> {
        None
    }
}

impl CqUse for Returns {
    #[inline(always)]
    fn returns(&mut self) -> Option<&mut Returns> {
        Some(self)
    }
}

impl Drop for Returns {
    fn drop(&mut self) {
        if self.alone {
            self.slots.unclaim();
        }
    }
}

/// The tokens of one EVD's CQs differ only above these bits.
const EVD_BITS: u32 = 48;

/// The EVD whose CQ has this token.
pub(crate) fn evd_of(token: u64) -> u64 {
    token & ((1 << EVD_BITS) - 1)
}

impl DirectCqs {
    /// `first` is the EVD's first shared CQ.
    ///
    /// # Errors
    /// No memory.
    pub(crate) fn new(first: Cq, channel: Option<CompChannel>) -> Result<Self> {
        let (context, token) = (first.context().clone(), first.token());
        let cq = adopt::cq(first)?;
        let shared = DirectCq { of: Lent(0), datagrams: true, token, cq, other: 0 };
        let (older, receives) = (Vec::new(), Vec::new());
        Ok(Self { context, channel, token, shared, older, receives, made: 0, polled: 0 })
    }

    /// See [`CqPath::lend`](crate::datapath::CqPath::lend).
    pub(crate) fn lend(&mut self, entries: u32) -> Result<(Cq, bool)> {
        let fits = |cq: &&mut DirectCq<Lent>| cq.cq.cqe_count() - cq.of.0 >= entries;
        if let Some(cq) = self.all_shared().find(fits) {
            cq.set_lent(cq.of.0 + entries);
            return Ok((cq.cq.verbs().clone(), false));
        }
        let largest = self.all_shared().map(|cq| cq.cq.cqe_count()).max().unwrap_or(0);
        let most = self.context.attributes().max_cqe;
        self.older.try_reserve(1)?;
        let entries_made = largest.saturating_mul(2).min(most).max(entries);
        let mut made = self.make(Lent(0), entries_made)?;
        made.set_lent(entries);
        // Drops shared CQs of which no QP has entries. A QP that repaid its entries and still
        // exists keeps the verbs CQ alive.
        let verbs = made.cq.verbs().clone();
        self.older.push(std::mem::replace(&mut self.shared, made));
        self.polled += self.older.extract_if(.., |cq| cq.of.0 == 0).map(|cq| cq.polled()).sum::<u64>();
        Ok((verbs, true))
    }

    /// See [`CqPath::repay`](crate::datapath::CqPath::repay).
    pub(crate) fn repay(&mut self, cq: &Cq, entries: u32) {
        if let Some(cq) = self.all_shared().find(|shared| shared.token == cq.token()) {
            cq.set_lent(cq.of.0.saturating_sub(entries));
        }
    }

    fn make<U: CqUse>(&mut self, mut of: U, entries: u32) -> Result<DirectCq<U>> {
        self.made += 1;
        let token = self.token | self.made << EVD_BITS;
        let cq = Cq::create(&self.context, entries, self.channel.as_ref(), 0, token)
            .map_err(|e| Error::verb(Subtype::ResourceTevd, e))?;
        let cq = adopt::cq(cq)?;
        Ok(DirectCq { datagrams: of.returns().is_none(), of, token, cq, other: 0 })
    }

    /// All shared CQs, the oldest first.
    fn all_shared(&mut self) -> impl Iterator<Item = &mut DirectCq<Lent>> {
        shared(&mut self.older, &mut self.shared)
    }

    fn of_srq(&self, srq: u32) -> Option<usize> {
        self.receives.iter().position(|cq| cq.of.srq == srq)
    }

    /// The CQ of receives from this SRQ, if the CQ exists.
    pub(crate) fn receives(&self, srq: u32) -> Option<Cq> {
        self.of_srq(srq).map(|at| self.receives[at].cq.verbs().clone())
    }

    /// Creates the CQ of receives from this SRQ.
    pub(crate) fn open(&mut self, srq: &DirectSrq) -> Result<()> {
        self.receives.try_reserve(1)?;
        let slots = srq.slots.clone();
        let returns = Returns { srq: srq.id, alone: slots.claim(), slots, current: Current::NONE };
        let made = self.make(returns, srq.room)?;
        self.receives.push(made);
        Ok(())
    }

    /// Records the depth of this SRQ, before it becomes larger.
    pub(crate) fn expect_depth(&mut self, srq: u32, depth: u32) {
        if let Some(at) = self.of_srq(srq) {
            self.receives[at].expect(depth);
        }
    }

    /// Closes the CQ of receives from this SRQ, which no QP uses any more. Calls `left` for each
    /// completion that is still in the CQ.
    pub(crate) fn close(&mut self, srq: u32, mut left: impl FnMut(&Completion)) {
        let Some(at) = self.of_srq(srq) else { return };
        let mut gone = self.receives.swap_remove(at);
        self.polled += gone.polled();
        let mut batch = Vec::new();
        loop {
            let polled = gone.poll(&mut batch, CLOSE_BATCH);
            batch.drain(..).for_each(|completion| left(&completion));
            if !polled.is_ok_and(|n| n == CLOSE_BATCH) {
                return;
            }
        }
    }

    /// Adds up to `most` completions of receives from SRQs, and as many of the shared CQs.
    #[inline]
    pub(crate) fn poll(&mut self, into: &mut Vec<Completion>, most: usize) -> Result<()> {
        let start = into.len();
        let mut room = most;
        for cq in &mut self.receives {
            room -= cq.poll(into, room)?;
        }
        let received = into.len() - start;
        let mut room = most;
        for cq in self.all_shared() {
            room -= cq.poll(into, room)?;
        }
        // A request that completed before a message arrived stands before it, as on a CQ that both
        // share.
        into[start..].rotate_left(received);
        Ok(())
    }

    /// Records that a UD EP receives from this SRQ on this EVD.
    pub(crate) fn expect_datagrams(&mut self, srq: u32) {
        self.receives.iter_mut().filter(|cq| cq.of.srq == srq).for_each(|cq| cq.datagrams = true);
    }

    /// Whether the EVD has several shared CQs.
    pub(crate) fn has_several_shared(&self) -> bool {
        !self.older.is_empty()
    }

    /// Whether the EVD has CQs of SRQs.
    pub(crate) fn has_any_of_srqs(&self) -> bool {
        !self.receives.is_empty()
    }

    /// Removes the completions of this QP, which the device writes no more. Calls `removed` for
    /// each that holds an entry of an SRQ.
    pub(crate) fn clean(&mut self, qpn: u32, mut removed: impl FnMut(&Completion)) {
        self.all_shared().for_each(|cq| cq.other += u64::from(cq.cq.discard(qpn)));
        for cq in &mut self.receives {
            let srq = cq.of.srq;
            let cleaned = cq.cq.clean(qpn, |cqe| {
                if let Some(completion) = translate(Some(srq), &cqe) {
                    removed(&completion);
                }
            });
            cq.other += u64::from(cleaned);
        }
    }

    /// The number of events that were taken straight off a CQ
    /// ([`Next::take`](crate::datapath::Next::take)), since the last call.
    pub(crate) fn take_polled(&mut self) -> u64 {
        let shared = self.all_shared().map(DirectCq::take_polled).sum::<u64>();
        let received = self.receives.iter_mut().map(DirectCq::take_polled).sum::<u64>();
        shared + received + std::mem::take(&mut self.polled)
    }

    /// Asks each CQ for one event on the channel at the next completion, or at the next solicited
    /// or failed one. Returns the number of CQs.
    pub(crate) fn arm(&mut self, solicited_only: bool) -> usize {
        let what = if solicited_only { ArmFor::Solicited } else { ArmFor::Any };
        self.all().map(|(_, cq)| cq.arm(what)).count()
    }

    /// All CQs and their tokens.
    fn all(&mut self) -> impl Iterator<Item = (u64, &mut mlx5_direct::Cq)> {
        let shared = shared(&mut self.older, &mut self.shared).map(|cq| (cq.token, &mut *cq.cq));
        shared.chain(self.receives.iter_mut().map(|cq| (cq.token, &mut *cq.cq)))
    }

    /// Handles an event with this CQ token, read from the channel.
    pub(crate) fn event(&mut self, token: u64) {
        if let Some((_, cq)) = self.all().find(|(of, _)| *of == token) {
            cq.event_received();
        }
    }
}

fn shared<'a>(
    older: &'a mut [DirectCq<Lent>],
    youngest: &'a mut DirectCq<Lent>,
) -> impl Iterator<Item = &'a mut DirectCq<Lent>> {
    older.iter_mut().chain([youngest])
}

const CLOSE_BATCH: usize = 8;

impl DirectCq<Lent> {
    /// QPs have this many entries of the CQ.
    fn set_lent(&mut self, entries: u32) {
        self.of = Lent(entries);
        self.expect(entries);
    }
}

impl<U: CqUse> DirectCq<U> {
    /// Events that dequeues took straight off the CQ, since [`DirectCq::take_polled`].
    fn polled(&self) -> u64 {
        self.cq.consumed() - self.other
    }

    fn take_polled(&mut self) -> u64 {
        let polled = self.polled();
        self.other += polled;
        polled
    }

    /// The device may need this many entries at a time: the others may be polled and not returned.
    fn expect(&mut self, entries: u32) {
        let spare = self.cq.cqe_count().saturating_sub(entries);
        self.cq.hold_back(spare);
    }

    #[inline(always)]
    fn with_source(&self, completion: Completion) -> Completion {
        // An error entry names no source.
        if self.datagrams && completion.status == DtoStatus::Success {
            Completion { source_qpn: self.cq.source_qpn(), ..completion }
        } else {
            completion
        }
    }

    /// Returns the next completion. Skips completions without a meaning for the EVD.
    #[inline]
    fn next(&mut self) -> Result<Option<Completion>> {
        loop {
            match self.cq.poll() {
                // Polling has returned every CQE to the device.
                Ok(None) => return Ok(None),
                Ok(Some(completion)) => {
                    let srq = self.of.returns().map(|returns| returns.srq);
                    if let Some(translated) = translate(srq, &completion) {
                        return Ok(Some(self.with_source(translated)));
                    }
                }
                Err(error @ CqeError::Opcode { .. }) => tracing::error!(%error, "a completion was skipped"),
                Err(error) => {
                    let text = format!("the completion queue is broken: {error}");
                    return Err(Error::new(ReturnType::InternalError, Subtype::None, text));
                }
            }
        }
    }

    /// Adds up to `most` completions and returns their number. Returns an error only if no
    /// completion precedes the error.
    #[inline]
    fn poll(&mut self, into: &mut Vec<Completion>, most: usize) -> Result<usize> {
        let before = self.cq.consumed();
        let polled = self.poll_up_to(into, most);
        self.other += self.cq.consumed() - before;
        polled
    }

    fn poll_up_to(&mut self, into: &mut Vec<Completion>, most: usize) -> Result<usize> {
        let mut n = 0;
        while n < most {
            match self.next() {
                Ok(Some(completion)) => into.push(completion),
                Ok(None) => return Ok(n),
                Err(_) if n > 0 => break,
                Err(error) => return Err(error),
            }
            n += 1;
        }
        // Return the CQEs polled here to the device now: the CQ may never be found empty.
        self.cq.release();
        Ok(n)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_of_an_evds_cqs_lead_back_to_it() {
        assert_eq!(evd_of(5), 5);
        assert_eq!(evd_of(5 | 3 << EVD_BITS), 5);
    }
}
