//! An SRQ on one of the paths.

use super::completion::{Lost, SrqCounts, WrInfo};
use super::direct::{DirectPoster, DirectSrq};
use super::entries::CompletedUpTo;
use super::on_path::OnPath;
use super::verbs::{VerbsPoster, VerbsSrq};
use crate::error::PostError;
use crate::{Error, Result, Subtype};
use rxe_fallback::{Sge, Srq};
use std::sync::Arc;

/// An SRQ on one of the paths: the part that the poster, the reapers and the progress thread share.
pub(crate) type SrqPath = OnPath<DirectSrq, Arc<VerbsSrq>>;

/// The part of an SRQ that posts; used by one thread at a time.
pub(crate) type SrqPoster = OnPath<DirectPoster, VerbsPoster>;

impl SrqPath {
    /// The verbs SRQ on which QPs are created.
    pub(crate) fn verbs(&self) -> &Srq {
        match self {
            Self::Verbs(srq) => srq.verbs(),
            Self::Direct(srq) => srq.verbs(),
        }
    }

    /// The depth: the largest number of entries.
    pub(crate) fn depth(&self) -> u32 {
        match self {
            Self::Verbs(srq) => srq.depth(),
            Self::Direct(srq) => srq.depth(),
        }
    }

    /// Completes the entry that a completion names and returns its info. `None` for an entry that
    /// is not posted. `ep` is the record of the youngest post that the EP has completed, if the EP
    /// still exists; it serves to find lost buffers (verbs path). The caller holds the lock of the
    /// EP's receive EVD.
    #[inline]
    pub(crate) fn complete(&self, entry: u32, ep: Option<&CompletedUpTo>) -> Option<WrInfo> {
        match self {
            Self::Verbs(srq) => srq.complete(entry, ep),
            Self::Direct(srq) => srq.complete(entry),
        }
    }

    /// Makes this EVD the one whose reaped entries return without an atomic read-modify-write, unless
    /// another EVD is. Returns whether this EVD is. On the direct path the EVD's CQ claims the slots.
    pub(crate) fn claim(&self, evd: u64) -> bool {
        match self {
            Self::Verbs(srq) => srq.claim(evd),
            Self::Direct(_) => false,
        }
    }

    /// Whether the device completes every buffer that it has taken from the SRQ, even when a QP
    /// fails.
    pub(crate) fn completes_all(&self) -> bool {
        matches!(self, Self::Direct(_))
    }

    /// Frees an entry whose completion was reaped or dropped.
    #[inline]
    pub(crate) fn release(&self, entry: u32) {
        match self {
            Self::Verbs(srq) => srq.release(entry),
            Self::Direct(srq) => srq.release(entry),
        }
    }

    /// Records that an EP begins to take buffers.
    ///
    /// # Errors
    /// No memory for the record.
    pub(crate) fn ep_connected(&self, ep: u64, completed: &Arc<CompletedUpTo>) -> Result<()> {
        match self {
            Self::Verbs(srq) => srq.ep_connected(ep, completed),
            Self::Direct(_) => Ok(()),
        }
    }

    /// Records that an EP takes no more buffers and that its completions have been harvested.
    /// Returns true if the device may have lost the buffer that the EP held. [`SrqPath::next_lost`]
    /// then reports that buffer, once every thread that was completing an entry is done.
    pub(crate) fn ep_drained(&self, ep: u64) -> bool {
        match self {
            Self::Verbs(srq) => srq.ep_drained(ep),
            // The device completes every buffer when a QP fails.
            Self::Direct(_) => false,
        }
    }

    /// The next entry that is known to be lost. The entry now counts as completed.
    #[inline]
    pub(crate) fn next_lost(&self) -> Option<Lost> {
        match self {
            Self::Verbs(srq) => srq.next_lost(),
            Self::Direct(_) => None,
        }
    }

    /// Asks the device for one event when fewer than `limit` buffers are available; 0 cancels the
    /// request.
    pub(crate) fn arm_limit(&self, limit: u32) -> Result<()> {
        self.verbs().arm_limit(limit).map_err(|e| Error::verb(Subtype::ResourceSrq, e))
    }

    /// The limit that is armed in the device; 0 once the device has raised the event.
    pub(crate) fn armed_limit(&self) -> Result<u32> {
        self.verbs().query().map(|attr| attr.srq_limit).map_err(|e| Error::verb(Subtype::ResourceSrq, e))
    }
}

impl SrqPoster {
    /// Posts the whole buffer or nothing.
    pub(crate) fn push(&mut self, segments: &[Sge], info: &WrInfo) -> Result<(), PostError> {
        match self {
            Self::Verbs(srq) => srq.push(segments, info),
            Self::Direct(srq) => srq.push(segments, info),
        }
    }

    /// Posts a segment of a pool on the direct path, if that needs no search.
    #[inline(always)]
    pub(crate) fn push_pool_fast(&mut self, segment: Sge, info: &WrInfo) -> bool {
        match self {
            Self::Verbs(_) => false,
            Self::Direct(srq) => srq.push_pool_fast(segment, info),
        }
    }

    /// Returns the number of entries in each state.
    pub(crate) fn counts(&self) -> SrqCounts {
        match self {
            Self::Verbs(srq) => srq.counts(),
            Self::Direct(srq) => srq.counts(),
        }
    }

    /// Sets a depth that is not below the outstanding count.
    pub(crate) fn resize(&mut self, path: &SrqPath, depth: u32) -> Result<()> {
        match (self, path) {
            (Self::Direct(poster), SrqPath::Direct(srq)) => poster.resize(srq, depth),
            (Self::Verbs(srq), _) => srq.resize(depth),
            (Self::Direct(_), SrqPath::Verbs(_)) => unreachable!("both halves are made together"),
        }
    }
}
