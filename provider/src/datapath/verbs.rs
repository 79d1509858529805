//! The verbs path: standard verbs on any device.
//!
//! A [`SrqEntries`] keeps the state of each buffer. The ID of a work request names the SRQ and
//! the entry, so completions may come in any order (R93). Posting takes no lock of this crate; the
//! driver takes its own lock.

use super::entries::{CompletedUpTo, EntryCounts, EntryPoster, SrqEntries};
use super::losses::LostEntries;
use super::{Completion, Lost, SrqCounts, WrId, WrInfo};
use crate::error::PostError;
use crate::types::{DtoOp, DtoStatus};
use crate::{Error, Result, ReturnType, Subtype};
use rxe_fallback::{Cq, PostError as Refusal, Sge, Srq, WcOpcode, WcStatus};
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
    id: u32,
    /// The number of buffers that the device's queue holds.
    room: u32,
    /// Whether the device can resize the SRQ. If not, the SRQ was created at the device's largest
    /// depth.
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
        let shared = Arc::new(Self { srq, entries, losses: LostEntries::default(), depth: depth.into() });
        Ok((shared.clone(), VerbsPoster { shared, poster, id, room, resizable }))
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

    #[inline]
    pub(crate) fn reap(&self, entry: u32, ep: &CompletedUpTo) -> Option<(u64, u32)> {
        self.entries.reap(entry, ep)
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

impl VerbsPoster {
    #[inline(always)]
    pub(crate) fn post(&mut self, segments: &[Sge], info: WrInfo) -> Result<(), PostError> {
        let Self { shared, poster, id, .. } = self;
        let entry = poster.post(&shared.entries, info).ok_or(PostError::Full(Subtype::ResourceSrq))?;
        let wr_id = WrId::Srq { srq: *id, entry }.pack();
        shared.srq.post_one(wr_id, segments).map_err(|reason| {
            poster.unpost(&shared.entries, entry);
            refused(reason)
        })
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
                self.poster.limit_to(before);
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

/// A CQ of the device.
#[derive(Debug)]
pub(crate) struct VerbsCq {
    pub(crate) cq: Cq,
}

impl VerbsCq {
    /// Adds up to `most` completions.
    pub(crate) fn poll(&self, into: &mut Vec<Completion>, most: usize) -> Result<()> {
        self.cq
            .poll_each(most, |completion| into.push(translate(&completion)))
            .map_err(|e| Error::verb(Subtype::ResourceTevd, e))?;
        Ok(())
    }

    pub(crate) fn arm(&self, solicited_only: bool) -> Result<()> {
        self.cq.arm(solicited_only).map_err(|e| Error::verb(Subtype::ResourceTevd, e))
    }

    pub(crate) fn ensure(&self, depth: u32) -> Result<()> {
        if depth <= self.cq.depth() {
            return Ok(());
        }
        self.cq.resize(depth).map_err(|e| {
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
