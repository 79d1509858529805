//! The verbs path: standard verbs on any device.
//!
//! A [`SrqEntries`] keeps the state of each buffer. The ID of a work request names the SRQ and
//! the entry, so completions may come in any order (R93). Posting takes no lock of this crate; the
//! driver takes its own lock.

mod queues;

pub(crate) use self::queues::{VerbsReceives, VerbsSends};
use super::entries::{CompletedUpTo, EntryCounts, EntryPoster, SrqEntries};
use super::fast::{Fast, PostSrq};
use super::losses::LostEntries;
use super::next::{Feed, Next, NextOnCq};
use super::{Completion, Lost, SrqCounts, WrId, WrInfo};
use crate::error::PostError;
use crate::types::{DtoOp, DtoStatus, LmrTriplet};
use crate::{Error, Result, ReturnType, Subtype};
use rxe_fallback::{Cq, Plain, Polled, PostError as Refusal, Sge, Srq, StagedRecv, WcOpcode, WcStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// An SRQ of the device, with its entries: the part that all threads share.
#[derive(Debug)]
pub(crate) struct VerbsSrq {
    srq: Srq,
    entries: SrqEntries,
    losses: LostEntries,
    depth: AtomicU32,
}

/// The part that posts.
#[derive(Debug)]
pub(crate) struct VerbsPoster {
    shared: Arc<VerbsSrq>,
    poster: EntryPoster,
    /// The ID of a work request without the entry.
    wr_ids: u64,
    /// The work request of [`VerbsPoster::push_fast`].
    staged: StagedRecv,
    /// The number of buffers that the device's queue holds.
    room: u32,
    /// Whether the device can resize the SRQ. If not, the SRQ was created with room to grow.
    resizable: bool,
}

impl VerbsSrq {
    pub(crate) fn new(
        srq: Srq,
        id: u32,
        depth: u32,
        room: u32,
        resizable: bool,
    ) -> Result<(Arc<Self>, VerbsPoster)> {
        let (entries, poster) = SrqEntries::new(depth)?;
        let staged = StagedRecv::new(&srq);
        let shared = Arc::new(Self { srq, entries, losses: LostEntries::default(), depth: depth.into() });
        let wr_ids = WrId::Srq { srq: id, entry: 0 }.pack();
        Ok((shared.clone(), VerbsPoster { shared, poster, wr_ids, staged, room, resizable }))
    }

    pub(crate) fn verbs(&self) -> &Srq {
        &self.srq
    }

    pub(crate) fn depth(&self) -> u32 {
        self.depth.load(Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn complete(&self, entry: u32, ep: Option<&CompletedUpTo>) -> Option<WrInfo> {
        self.entries.complete(entry, ep)
    }

    /// Completes and releases an entry in one step. Returns the buffer's cookie and pool. `None`
    /// for an entry that is not posted, and while [`VerbsSrq::next_lost`] has to be called after
    /// each completion.
    #[inline(always)]
    fn reap(&self, entry: u32, ep: &CompletedUpTo) -> Option<(u64, u32)> {
        if self.has_suspects() { None } else { self.entries.reap(entry, ep) }
    }

    /// Makes this EVD the one whose reaped entries return without an atomic read-modify-write,
    /// unless another EVD is. Returns whether this EVD is.
    pub(crate) fn claim(&self, evd: u64) -> bool {
        self.entries.claim(evd)
    }

    #[inline]
    pub(crate) fn release(&self, entry: u32) {
        self.entries.release(entry);
    }

    pub(crate) fn ep_connected(&self, ep: u64, completed: &Arc<CompletedUpTo>) -> Result<()> {
        Ok(self.losses.ep_connected(ep, completed)?)
    }

    pub(crate) fn ep_drained(&self, ep: u64) -> bool {
        self.losses.ep_drained(&self.entries, ep)
    }

    #[inline]
    pub(crate) fn has_suspects(&self) -> bool {
        self.losses.has_suspects()
    }

    #[inline]
    pub(crate) fn next_lost(&self) -> Option<Lost> {
        self.losses.next(&self.entries)
    }
}

impl PostSrq for VerbsPoster {
    type Segment = Sge;

    /// Posts if an entry is found at once ([`EntryPoster::take_at_hand`]).
    #[inline(always)]
    fn push_fast(
        &mut self,
        iov: &[LmrTriplet],
        mut encode: impl FnMut(&LmrTriplet) -> Option<Sge>,
        cookie: u64,
    ) -> Fast {
        for (to, from) in self.staged.segments().iter_mut().zip(iov) {
            let Some(sge) = encode(from) else { return Fast::Nothing };
            *to = sge;
        }
        let mut lmrs = [0; 4];
        lmrs.iter_mut().zip(iov).for_each(|(lmr, segment)| *lmr = segment.lmr_context);
        let info = WrInfo { cookie, pool: 0, lmrs };
        let Some(entry) = self.poster.take_at_hand(&self.shared.entries, &info) else { return Fast::Nothing };
        match self.staged.post(self.wr_ids | u64::from(entry), iov.len()) {
            Ok(()) => Fast::Posted,
            Err(errno) => Fast::Refused(self.take_back(errno)),
        }
    }
}

impl VerbsPoster {
    pub(crate) fn push(&mut self, segments: &[Sge], info: &WrInfo) -> Result<(), PostError> {
        let entry = self.poster.take(&self.shared.entries, info);
        let entry = entry.ok_or(PostError::Full(Subtype::ResourceSrq))?;
        self.shared.srq.post_raw(self.wr_ids | u64::from(entry), segments).map_err(|reason| {
            self.poster.take_back(&self.shared.entries, entry);
            refused(reason)
        })
    }

    /// Frees the entry of a fast post that the device library has refused. Returns the error.
    #[cold]
    #[inline(never)]
    fn take_back(&mut self, errno: i32) -> PostError {
        // Read from the work request, so that a post keeps nothing in registers for it.
        let entry = self.staged.wr_id() as u32;
        self.poster.take_back(&self.shared.entries, entry);
        refused(StagedRecv::refusal(errno))
    }

    pub(crate) fn counts(&self) -> SrqCounts {
        let EntryCounts { available, outstanding } = self.shared.entries.counts();
        SrqCounts { depth: self.poster.limit(), available, outstanding }
    }

    pub(crate) fn resize(&mut self, depth: u32) -> Result<()> {
        if depth > self.room && !self.resizable {
            return Err(Error::resources(
                Subtype::ResourceMemory,
                format!("this device cannot deepen an SRQ, and this one has room for {}", self.room),
            ));
        }
        let before = self.poster.limit();
        self.poster.set_limit(&self.shared.entries, depth)?;
        if depth > self.room {
            if let Err(error) = self.shared.srq.resize(depth) {
                // Entries that were allocated for a larger depth stay for the next resize.
                self.poster.limit_to(&self.shared.entries, before);
                return Err(Error::new(
                    ReturnType::InsufficientResources,
                    Subtype::ResourceMemory,
                    format!("the device could not make the SRQ {depth} deep"),
                )
                .because(error));
            }
            self.room = depth;
        }
        self.shared.depth.store(depth, Ordering::Relaxed);
        Ok(())
    }
}

/// A CQ of the device. Its completions are polled many at a time. Those that were not taken count
/// as if they were in the CQ.
#[derive(Debug)]
pub(crate) struct VerbsCq {
    polled: Polled,
    /// The last look found an empty CQ.
    empty: bool,
    /// Completions of [`VerbsNext::take`], since [`VerbsCq::take_polled`].
    taken: u64,
}

/// The oldest completion that was polled and not taken.
pub(crate) struct VerbsNext<'a> {
    cq: &'a mut VerbsCq,
    plain: Plain,
}

impl NextOnCq for VerbsCq {
    const ONE: bool = true;
    type Srq = Arc<VerbsSrq>;
    type Next<'a> = VerbsNext<'a>;

    /// Polls the CQ, for up to 32 completions, if none is left of the last poll.
    #[inline(always)]
    fn next(&mut self, _: Feed, _: bool) -> Option<VerbsNext<'_>> {
        let found = self.polled.find();
        self.empty = found == Ok(false);
        let plain = if found == Ok(true) { self.polled.plain() } else { None }?;
        Some(VerbsNext { cq: self, plain })
    }

    #[inline(always)]
    fn is_empty(&mut self, _: Feed, _: bool) -> bool {
        self.empty
    }

    #[inline(always)]
    fn count_waiting(&mut self) -> Option<usize> {
        (self.polled.find() == Ok(false)).then_some(0)
    }
}

impl Next for VerbsNext<'_> {
    type Srq = Arc<VerbsSrq>;

    #[inline(always)]
    fn qpn(&self) -> u32 {
        self.plain.qp_num
    }

    #[inline(always)]
    fn wr_id(&self) -> WrId {
        WrId::unpack(self.plain.wr_id)
    }

    #[inline(always)]
    fn length(&self) -> u32 {
        self.plain.byte_len
    }

    #[inline(always)]
    fn reap(&mut self, _: bool, srq: Option<&Self::Srq>, ep: &CompletedUpTo) -> Option<(u64, u32)> {
        let WrId::Srq { entry, .. } = self.wr_id() else { return None };
        srq?.reap(entry, ep)
    }

    #[inline(always)]
    fn take(self) {
        self.cq.polled.skip();
        self.cq.taken += 1;
    }
}

impl VerbsCq {
    pub(crate) fn new(cq: Cq) -> Result<Self> {
        Ok(Self { polled: Polled::new(cq)?, empty: false, taken: 0 })
    }

    pub(crate) fn cq(&self) -> &Cq {
        self.polled.cq()
    }

    /// Adds up to `most` completions. Fewer than `most` means that no completion is left.
    pub(crate) fn poll(&mut self, into: &mut Vec<Completion>, most: usize) -> Result<()> {
        let before = into.len();
        let mut last = false;
        while into.len() - before < most {
            if let Some(completion) = self.polled.pop() {
                into.push(translate(&completion));
            } else if last {
                break;
            } else {
                match self.fill() {
                    Ok(n) => last = n < self.polled.capacity(),
                    // The next call reports the error again.
                    Err(_) if into.len() > before => break,
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(())
    }

    #[inline(never)]
    fn fill(&mut self) -> Result<usize> {
        self.polled.fill().map_err(|e| Error::verb(Subtype::ResourceTevd, e))
    }

    /// See [`CqPath::take_polled`](super::CqPath::take_polled).
    pub(crate) fn take_polled(&mut self) -> u64 {
        std::mem::take(&mut self.taken)
    }

    /// Removes the polled completions of this QP, which was reset or destroyed; the library has
    /// removed the others. Calls `removed` for each.
    pub(crate) fn clean(&mut self, qpn: u32, mut removed: impl FnMut(&Completion)) {
        self.polled.remove(qpn, |completion| removed(&translate(completion)));
    }

    pub(crate) fn arm(&self, solicited_only: bool) -> Result<()> {
        self.cq().arm(solicited_only).map_err(|e| Error::verb(Subtype::ResourceTevd, e))
    }

    pub(crate) fn ensure(&self, depth: u32) -> Result<()> {
        if depth <= self.cq().depth() {
            return Ok(());
        }
        self.cq().resize(depth).map_err(|e| {
            Error::new(
                ReturnType::InsufficientResources,
                Subtype::ResourceTevd,
                format!("the device could not make the completion queue {depth} deep"),
            )
            .because(e)
        })
    }
}

/// Converts the device's refusal of a work request that had passed all earlier checks.
pub(crate) fn refused(reason: Refusal) -> PostError {
    match reason {
        Refusal::TooManySegments { given, max } => {
            PostError::TooManySegments { given: given as u32, most: max as u32 }
        }
        other => PostError::Device(other.errno()),
    }
}

#[inline(always)]
fn translate(raw: &rxe_fallback::Completion) -> Completion {
    let wr_id = WrId::unpack(raw.wr_id);
    Completion {
        wr_id,
        qpn: raw.qp_num,
        status: status(raw.status, wr_id),
        op: match raw.opcode {
            Some(WcOpcode::RecvRdmaWithImm) => DtoOp::ReceiveRdmaWriteImmediate,
            _ if raw.invalidated_rkey.is_some() => DtoOp::ReceiveWithInvalidate,
            _ if raw.imm.is_some() => DtoOp::ReceiveImmediate,
            _ => DtoOp::Receive,
        },
        length: raw.byte_len,
        immediate: raw.imm,
        invalidated: raw.invalidated_rkey,
        source_qpn: raw.src_qp,
    }
}

/// The DAT status for a verbs status. A receive whose message is too long ends as a length error on
/// some devices, and as an invalid request or a local operation error on others (R80). rxe also
/// reports a local operation error for a dead MR. A caller that knows the LMRs can tell the two
/// cases apart.
pub(crate) fn status(raw: WcStatus, wr_id: WrId) -> DtoStatus {
    let receive = !matches!(wr_id, WrId::Request(_));
    match raw {
        WcStatus::Success => DtoStatus::Success,
        WcStatus::WorkRequestFlushed => DtoStatus::Flushed,
        WcStatus::LocalLengthError => DtoStatus::LocalLength,
        WcStatus::RemoteInvalidRequest | WcStatus::LocalQpOperationError if receive => DtoStatus::LocalLength,
        WcStatus::LocalQpOperationError | WcStatus::LocalEecOperationError => DtoStatus::LocalEp,
        WcStatus::LocalProtectionError | WcStatus::LocalAccessError => DtoStatus::LocalProtection,
        WcStatus::MwBindError => DtoStatus::RmrOperationFailed,
        WcStatus::BadResponse => DtoStatus::BadResponse,
        WcStatus::RemoteAccessError => DtoStatus::RemoteAccess,
        WcStatus::RemoteInvalidRequest | WcStatus::RemoteOperationError => DtoStatus::RemoteResponder,
        WcStatus::RnrRetryExceeded => DtoStatus::ReceiverNotReady,
        WcStatus::RetryExceeded | WcStatus::ResponseTimeout => DtoStatus::Transport,
        _ => DtoStatus::LocalEp,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Immediate data makes a Send another operation, as a key that it has invalidated does. A
    /// failure has no operation.
    #[test]
    fn a_message_names_its_entry_and_says_what_it_carried() {
        use DtoOp::{Receive, ReceiveImmediate, ReceiveRdmaWriteImmediate, ReceiveWithInvalidate};
        let wr_id = WrId::Srq { srq: 7, entry: 3 };
        for (opcode, immediate, invalidated, op) in [
            (Some(WcOpcode::Recv), None, None, Receive),
            (Some(WcOpcode::Recv), Some(9), None, ReceiveImmediate),
            (Some(WcOpcode::Recv), None, Some(8), ReceiveWithInvalidate),
            (Some(WcOpcode::RecvRdmaWithImm), Some(9), None, ReceiveRdmaWriteImmediate),
            (None, None, None, Receive),
        ] {
            let status = if opcode.is_some() { WcStatus::Success } else { WcStatus::WorkRequestFlushed };
            let got = translate(&rxe_fallback::Completion {
                wr_id: wr_id.pack(),
                status,
                opcode,
                byte_len: 64,
                imm: immediate,
                invalidated_rkey: invalidated,
                qp_num: 5,
                src_qp: 6,
                ..rxe_fallback::Completion::default()
            });
            assert_eq!((got.wr_id, got.qpn, got.source_qpn, got.length), (wr_id, 5, 6, 64));
            assert_eq!((got.op, got.immediate, got.invalidated), (op, immediate, invalidated));
            assert_eq!(got.status == DtoStatus::Success, opcode.is_some());
        }
    }

    /// Each status of a request, as verbs have it.
    #[test]
    fn failures_of_requests_keep_their_reasons() {
        for (raw, expected) in [
            (WcStatus::Success, DtoStatus::Success),
            (WcStatus::WorkRequestFlushed, DtoStatus::Flushed),
            (WcStatus::LocalEecOperationError, DtoStatus::LocalEp),
            (WcStatus::LocalProtectionError, DtoStatus::LocalProtection),
            (WcStatus::LocalAccessError, DtoStatus::LocalProtection),
            (WcStatus::MwBindError, DtoStatus::RmrOperationFailed),
            (WcStatus::BadResponse, DtoStatus::BadResponse),
            (WcStatus::RemoteAccessError, DtoStatus::RemoteAccess),
            (WcStatus::RemoteOperationError, DtoStatus::RemoteResponder),
            (WcStatus::RnrRetryExceeded, DtoStatus::ReceiverNotReady),
            (WcStatus::RetryExceeded, DtoStatus::Transport),
            (WcStatus::ResponseTimeout, DtoStatus::Transport),
            (WcStatus::General, DtoStatus::LocalEp),
        ] {
            assert_eq!(status(raw, WrId::Request(0)), expected, "{raw:?}");
        }
    }

    /// Devices say in different ways that a message was too long for its buffer. The same statuses
    /// of a request are failures of the EP and of the peer.
    #[test]
    fn statuses_of_too_long_messages_mean_others_for_requests() {
        use DtoStatus::{LocalEp, LocalLength, RemoteResponder};
        for (raw, of_request) in [
            (WcStatus::LocalLengthError, LocalLength),
            (WcStatus::LocalQpOperationError, LocalEp),
            (WcStatus::RemoteInvalidRequest, RemoteResponder),
        ] {
            assert_eq!(status(raw, WrId::Request(0)), of_request, "{raw:?}");
            assert_eq!(status(raw, WrId::Recv(0)), LocalLength, "{raw:?}");
            assert_eq!(status(raw, WrId::Srq { srq: 1, entry: 0 }), LocalLength, "{raw:?}");
        }
    }
}
