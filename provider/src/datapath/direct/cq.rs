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

use super::adopt::{self, Adopted};
use super::slots::{Current, RingSlots};
use super::srq::DirectSrq;
use crate::datapath::completion::{Completion, WrId};
use crate::datapath::verbs::status;
use crate::types::{DtoOp, DtoStatus};
use crate::{Error, Result, ReturnType, Subtype};
use mlx5_direct::{ArmFor, CqeError, ErrorCqe, PlainEntry, PlainKind, RecvCqe, RecvOp, Syndrome};
use rxe_fallback::{CompChannel, Context, Cq, WcStatus};
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

/// The operation of a receive.
#[inline]
fn operation(op: RecvOp) -> DtoOp {
    match op {
        RecvOp::Send => DtoOp::Receive,
        RecvOp::SendImm => DtoOp::ReceiveImmediate,
        RecvOp::SendInval => DtoOp::ReceiveWithInvalidate,
        RecvOp::WriteImm => DtoOp::ReceiveRdmaWriteImmediate,
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

    /// The next completion, if it is plain and comes before those of the other CQs. `shared`: QPs
    /// use the shared CQs.
    ///
    /// `None` if nothing has completed. Also `None` if [`DirectCqs::poll`] has to decide: another
    /// kind of completion is next, or shared CQs and those of SRQs have completions.
    #[inline(always)]
    pub(crate) fn peek(&mut self, shared: bool) -> Option<PlainNext<'_>> {
        if !shared {
            return peek_first(self.receives.iter_mut());
        }
        if self.receives.is_empty() {
            return peek_first(self.all_shared());
        }
        self.peek_any()
    }

    /// Whether there is nothing to do on any CQ, as a quick look says that does not know the rarer
    /// cases: see [`mlx5_direct::Cq::is_idle`].
    #[inline(always)]
    pub(crate) fn are_idle(&self) -> bool {
        let received = match self.receives.as_slice() {
            [] => true,
            [only] => only.cq.is_idle(),
            _ => false,
        };
        received && self.older.is_empty() && self.shared.cq.is_idle()
    }

    /// Whether no completion waits on any CQ.
    #[inline]
    pub(crate) fn are_empty(&mut self) -> bool {
        // Not by `all_shared`: each list has a loop of its own then.
        self.receives.iter_mut().all(|cq| cq.cq.is_empty())
            && self.shared.cq.is_empty()
            && self.older.iter_mut().all(|cq| cq.cq.is_empty())
    }

    /// The number of messages that wait on all CQs. `None` if other completions wait as well.
    pub(crate) fn waiting_messages(&mut self) -> Option<usize> {
        let mut waiting = self.shared.cq.waiting_messages()? as usize;
        for of_srq in &mut self.receives {
            waiting += of_srq.cq.waiting_messages()? as usize;
        }
        for older in &mut self.older {
            waiting += older.cq.waiting_messages()? as usize;
        }
        Some(waiting)
    }

    /// The CQ of the EVD's only SRQ. `None` if it has none or several.
    #[inline(always)]
    pub(crate) fn only_of_srqs(&mut self) -> Option<&mut DirectCq<Returns>> {
        match self.receives.as_mut_slice() {
            [only] => Some(only),
            _ => None,
        }
    }

    /// Prepares the CQ of the EVD's only SRQ for a message that [`DirectCq::peek_only`] did not find
    /// or [`PlainNext::reap_fast`] did not take: begins a release interval, or another word of
    /// slots. False if there was nothing to prepare.
    pub(crate) fn prepare_message(&mut self) -> bool {
        let Some(DirectCq { cq, of, .. }) = self.only_of_srqs() else { return false };
        let begun = cq.begin_interval();
        let ready = of.alone
            && cq
                .plain_entry_of(PlainKind::Received)
                .is_some_and(|next| of.slots.make_ready(&mut of.current, next.wqe_counter().into()));
        begun || ready
    }

    /// As [`DirectCqs::prepare_message`], for the youngest shared CQ.
    pub(crate) fn prepare_shared(&mut self) -> bool {
        self.shared.cq.begin_interval()
    }

    /// The youngest shared CQ.
    #[inline(always)]
    pub(crate) fn youngest_shared(&mut self) -> &mut DirectCq<Lent> {
        &mut self.shared
    }

    /// Whether the EVD has several shared CQs.
    pub(crate) fn has_several_shared(&self) -> bool {
        !self.older.is_empty()
    }

    /// Whether the EVD has CQs of SRQs.
    pub(crate) fn has_any_of_srqs(&self) -> bool {
        !self.receives.is_empty()
    }

    /// Does the work of [`DirectCqs::peek`] for an EVD with both kinds of CQs. Completions that
    /// came before a message are found before the message.
    #[inline(never)]
    fn peek_any(&mut self) -> Option<PlainNext<'_>> {
        let message = self.receives.iter().any(|cq| cq.cq.is_ready());
        mlx5_direct::barrier::from_device();
        let other = self.all_shared().any(|cq| cq.cq.is_ready());
        match (message, other) {
            (true, false) => peek_first(self.receives.iter_mut()),
            (false, true) => peek_first(self.all_shared()),
            _ => None,
        }
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

    /// The number of events that dequeues took straight off a CQ ([`PlainNext::take_event`]), since
    /// the last call.
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

/// The completion of the first of these CQs that has one, if it is plain.
#[inline(always)]
fn peek_first<'a, U: CqUse + 'a>(
    mut cqs: impl Iterator<Item = &'a mut DirectCq<U>>,
) -> Option<PlainNext<'a>> {
    let DirectCq { cq, of, other, .. } = cqs.find(|cq| cq.cq.is_ready())?;
    cq.begin_interval();
    Some(PlainNext { entry: cq.plain_entry()?, returns: of.returns(), other })
}

const CLOSE_BATCH: usize = 8;

/// The next completion of a CQ. It is plain, and not consumed yet.
pub(crate) struct PlainNext<'a> {
    entry: PlainEntry<'a>,
    /// `None` on a shared CQ.
    returns: Option<&'a mut Returns>,
    /// That of the CQ.
    other: &'a mut u64,
}

impl PlainNext<'_> {
    #[inline(always)]
    pub(crate) fn entry(&self) -> &PlainEntry<'_> {
        &self.entry
    }

    /// Consumes the completion, whose event the consumer gets. The CQE returns to the device
    /// immediately, so the device may use it again.
    #[inline(always)]
    pub(crate) fn take_event(self) {
        self.entry.take_and_return();
    }

    /// As [`PlainNext::take_event`], for a completion of which the consumer gets no event, or whose
    /// event is counted elsewhere.
    #[inline(always)]
    pub(crate) fn take(self) {
        *self.other += 1;
        self.entry.take_and_return();
    }

    /// Completes and releases the entry of a message from an SRQ in one step. Returns the buffer's
    /// cookie and pool; `None` for an entry that is not posted, and on a shared CQ. The caller
    /// holds the lock of the EVD.
    #[inline(always)]
    pub(crate) fn reap(&mut self) -> Option<(u64, u32)> {
        let entry = self.entry.wqe_counter().into();
        let Returns { slots, alone, current, .. } = self.returns.as_deref_mut()?;
        if *alone { slots.reap_alone(current, entry) } else { slots.reap(entry) }
    }

    /// Does the work of [`PlainNext::reap`] in the common case: the CQ has the map that takes plain
    /// stores, and a slot of the same word has returned last. `None` without a change otherwise.
    /// Without `POOLS`, also `None` for buffers of pools: a program in C has none.
    #[inline(always)]
    pub(crate) fn reap_fast<const POOLS: bool>(&mut self) -> Option<(u64, u32)> {
        let entry = self.entry.wqe_counter().into();
        let Returns { slots, current, .. } = self.returns.as_deref_mut()?;
        if POOLS { slots.reap_in_word(current, entry) } else { Some((slots.reap_ready(current, entry)?, 0)) }
    }

    /// Whether the receives of EPs without an SRQ complete on the CQ.
    #[inline(always)]
    pub(crate) fn is_shared(&self) -> bool {
        self.returns.is_none()
    }
}

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

    /// The next completion, if it is plain and of this kind.
    #[inline(always)]
    pub(crate) fn peek_only(&mut self, kind: PlainKind) -> Option<PlainNext<'_>> {
        Some(PlainNext {
            entry: self.cq.plain_entry_of(kind)?,
            returns: self.of.returns(),
            other: &mut self.other,
        })
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

/// Converts a receive CQE into a completion.
#[inline]
fn received(srq: Option<u32>, cqe: &RecvCqe) -> Completion {
    Completion {
        wr_id: receive(srq, cqe.slot.0),
        qpn: cqe.qpn,
        status: DtoStatus::Success,
        op: operation(cqe.op),
        length: cqe.byte_count,
        immediate: cqe.immediate(),
        invalidated: cqe.invalidated_rkey(),
        source_qpn: 0,
    }
}

/// The receive in this slot of the SRQ, or of the QP's own queue.
#[inline]
fn receive(srq: Option<u32>, slot: u16) -> WrId {
    match srq {
        Some(srq) => WrId::Srq { srq, entry: u32::from(slot) },
        None => WrId::Recv(slot),
    }
}

fn translate(srq: Option<u32>, completion: &mlx5_direct::Completion) -> Option<Completion> {
    // The operation of a request is in its record.
    let plain = |wr_id, qpn, status| Completion {
        wr_id,
        qpn,
        status,
        op: DtoOp::Receive,
        length: 0,
        immediate: None,
        invalidated: None,
        source_qpn: 0,
    };
    let request = |counter: u16| WrId::Request(counter.into());
    let failed = |wr_id, error: &ErrorCqe| {
        Some(plain(wr_id, error.qpn, status(in_verbs_terms(error.syndrome), wr_id)))
    };
    match completion {
        mlx5_direct::Completion::Recv(cqe) => Some(received(srq, cqe)),
        // The QP was created without scatter to CQE. A device that scatters to the CQE nevertheless
        // has not written to the buffer.
        mlx5_direct::Completion::RecvScattered(cqe) => {
            Some(Completion { status: DtoStatus::LocalEp, ..received(srq, &cqe.receive) })
        }
        mlx5_direct::Completion::RecvError(error) => failed(receive(srq, error.wqe_counter), error),
        other if srq.is_some() => {
            tracing::error!(?other, "a request completed on the CQ of an SRQ");
            None
        }
        mlx5_direct::Completion::Send(cqe) => {
            Some(plain(request(cqe.wqe_counter), cqe.qpn, DtoStatus::Success))
        }
        mlx5_direct::Completion::SendScattered(cqe) => {
            Some(plain(request(cqe.send.wqe_counter), cqe.send.qpn, DtoStatus::LocalEp))
        }
        mlx5_direct::Completion::SendError(error) => failed(request(error.wqe_counter), error),
    }
}

/// The status that `ibv_poll_cq` would report.
fn in_verbs_terms(syndrome: Syndrome) -> WcStatus {
    match syndrome {
        Syndrome::LocalLength => WcStatus::LocalLengthError,
        Syndrome::LocalQpOperation => WcStatus::LocalQpOperationError,
        Syndrome::LocalProtection | Syndrome::OdpPageFault => WcStatus::LocalProtectionError,
        Syndrome::Flushed => WcStatus::WorkRequestFlushed,
        Syndrome::MwBind => WcStatus::MwBindError,
        Syndrome::BadResponse => WcStatus::BadResponse,
        Syndrome::LocalAccess => WcStatus::LocalAccessError,
        Syndrome::RemoteInvalidRequest => WcStatus::RemoteInvalidRequest,
        Syndrome::RemoteAccess => WcStatus::RemoteAccessError,
        Syndrome::RemoteOperation => WcStatus::RemoteOperationError,
        Syndrome::TransportRetries => WcStatus::RetryExceeded,
        Syndrome::RnrRetries => WcStatus::RnrRetryExceeded,
        Syndrome::RemoteAborted => WcStatus::RemoteAborted,
        Syndrome::Other(_) => WcStatus::General,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mlx5_direct::cqe;
    use proptest::prelude::*;

    fn received(edit: impl Fn(&mut [u8; 64])) -> Completion {
        let mut bytes = [0; 64];
        bytes[44..48].copy_from_slice(&9_u32.to_be_bytes());
        bytes[36..40].copy_from_slice(&0x0102_0304_u32.to_be_bytes());
        bytes[56..60].copy_from_slice(&0x42_u32.to_be_bytes());
        bytes[60..62].copy_from_slice(&3_u16.to_be_bytes());
        edit(&mut bytes);
        let decoded = cqe::decode(&cqe::RawCqe::from_bytes(&bytes)).unwrap();
        translate(Some(7), &decoded).unwrap()
    }

    #[test]
    fn a_message_names_its_entry_and_says_what_it_carried() {
        for (opcode, op, immediate, invalidated) in [
            (1, DtoOp::ReceiveRdmaWriteImmediate, Some(0x0102_0304), None),
            (2, DtoOp::Receive, None, None),
            (3, DtoOp::ReceiveImmediate, Some(0x0102_0304), None),
            (4, DtoOp::ReceiveWithInvalidate, None, Some(0x0102_0304)),
        ] {
            let got = received(|bytes| bytes[63] = opcode << 4);
            assert_eq!((got.wr_id, got.qpn), (WrId::Srq { srq: 7, entry: 3 }, 0x42));
            assert_eq!((got.status, got.op, got.length), (DtoStatus::Success, op, 9));
            assert_eq!((got.immediate, got.invalidated), (immediate, invalidated));
        }
    }

    #[test]
    fn a_payload_outside_its_buffer_is_no_success() {
        assert_eq!(received(|bytes| bytes[63] = 2 << 4 | 1 << 2).status, DtoStatus::LocalEp);
    }

    #[test]
    fn failed_receives_keep_their_entry_and_the_verbs_status() {
        for (syndrome, expected) in [
            (0x01, DtoStatus::LocalLength),
            (0x04, DtoStatus::LocalProtection),
            (0x05, DtoStatus::Flushed),
            (0x11, DtoStatus::LocalProtection),
            (0x7f, DtoStatus::LocalEp),
        ] {
            let got = received(|bytes| {
                bytes[55] = syndrome;
                bytes[63] = 14 << 4;
            });
            assert_eq!((got.wr_id, got.status), (WrId::Srq { srq: 7, entry: 3 }, expected));
        }
    }

    proptest! {
        /// Cards fill the other bytes of an error entry: byte counts, flags, a hardware syndrome, a
        /// signature, the solicited bit.
        #[test]
        fn an_error_is_told_by_what_drivers_may_rely_on(
            mut bytes: [[u8; 32]; 2],
            syndromes: (u8, u8),
            qpn in 0..1_u32 << 24,
            counter: u16,
            responder: bool,
            low_bits in 0..16_u8,
        ) {
            let fill = |bytes: &mut [u8; 64], low_bits| {
                bytes[54..56].copy_from_slice(&[syndromes.1, syndromes.0]);
                bytes[57..60].copy_from_slice(&qpn.to_be_bytes()[1..]);
                bytes[60..62].copy_from_slice(&counter.to_be_bytes());
                bytes[63] = (if responder { 14 } else { 13 }) << 4 | low_bits;
            };
            let told = |bytes: &[u8; 64]| {
                let decoded = cqe::decode(&cqe::RawCqe::from_bytes(bytes)).unwrap();
                // A request on the CQ of an SRQ is skipped.
                let srq = if responder { translate(Some(7), &decoded) } else { None };
                format!("{:?} {srq:?}", translate(None, &decoded))
            };
            let bare = &mut [0; 64];
            fill(bare, 0);
            let full: &mut [u8; 64] = bytes.as_flattened_mut().try_into().unwrap();
            fill(full, low_bits);
            prop_assert_eq!(told(full), told(bare));
        }
    }

    #[test]
    fn syndromes_are_statuses_of_verbs() {
        for (syndrome, expected) in [
            (Syndrome::LocalLength, WcStatus::LocalLengthError),
            (Syndrome::LocalQpOperation, WcStatus::LocalQpOperationError),
            (Syndrome::LocalProtection, WcStatus::LocalProtectionError),
            (Syndrome::OdpPageFault, WcStatus::LocalProtectionError),
            (Syndrome::Flushed, WcStatus::WorkRequestFlushed),
            (Syndrome::MwBind, WcStatus::MwBindError),
            (Syndrome::BadResponse, WcStatus::BadResponse),
            (Syndrome::LocalAccess, WcStatus::LocalAccessError),
            (Syndrome::RemoteInvalidRequest, WcStatus::RemoteInvalidRequest),
            (Syndrome::RemoteAccess, WcStatus::RemoteAccessError),
            (Syndrome::RemoteOperation, WcStatus::RemoteOperationError),
            (Syndrome::TransportRetries, WcStatus::RetryExceeded),
            (Syndrome::RnrRetries, WcStatus::RnrRetryExceeded),
            (Syndrome::RemoteAborted, WcStatus::RemoteAborted),
            (Syndrome::Other(0x7f), WcStatus::General),
        ] {
            assert_eq!(in_verbs_terms(syndrome), expected, "{syndrome:?}");
        }
    }

    #[test]
    fn shared_cq_names_the_queue_and_the_place_in_it() {
        let error = ErrorCqe {
            syndrome: Syndrome::Flushed,
            vendor_syndrome: 0,
            qpn: 1,
            srqn_or_user_index: 0,
            wqe_counter: 9,
        };
        for (completion, expected) in [
            (mlx5_direct::Completion::SendError(error), WrId::Request(9)),
            (mlx5_direct::Completion::RecvError(error), WrId::Recv(9)),
        ] {
            let got = translate(None, &completion).unwrap();
            assert_eq!((got.wr_id, got.qpn, got.status), (expected, 1, DtoStatus::Flushed));
        }
        // An SRQ has no requests.
        assert!(translate(Some(7), &mlx5_direct::Completion::SendError(error)).is_none());
    }

    #[test]
    fn tokens_of_an_evds_cqs_lead_back_to_it() {
        assert_eq!(evd_of(5), 5);
        assert_eq!(evd_of(5 | 3 << EVD_BITS), 5);
    }
}
