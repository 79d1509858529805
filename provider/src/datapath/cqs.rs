//! The CQs of an EVD.

use super::completion::Completion;
use super::direct::DirectCqs;
use super::on_path::OnPath;
use super::srq::SrqPath;
use super::verbs::VerbsCq;
use crate::Result;
use rxe_fallback::Cq;

/// The CQs of an EVD on one of the paths.
pub(crate) type CqPath = OnPath<DirectCqs, VerbsCq>;

impl CqPath {
    /// The CQ for a new QP that needs this many entries for its requests, or for its receives
    /// without an SRQ. Returns true with a CQ that was created for this purpose. On the verbs path
    /// the EVD has one CQ, in which [`CqPath::ensure`] makes the room.
    ///
    /// # Errors
    /// The device has no CQ of that size, or there is no memory.
    pub(crate) fn lend(&mut self, entries: u32) -> Result<(Cq, bool)> {
        match self {
            Self::Verbs(cq) => Ok((cq.cq().clone(), false)),
            Self::Direct(cqs) => cqs.lend(entries),
        }
    }

    /// Takes back entries that [`CqPath::lend`] has given to a QP on this CQ.
    pub(crate) fn repay(&mut self, cq: &Cq, entries: u32) {
        if let Self::Direct(cqs) = self {
            cqs.repay(cq, entries);
        }
    }

    /// The verbs CQ of receives from this SRQ, which must feed the EVD.
    pub(crate) fn receives(&self, srq: u32) -> Option<Cq> {
        match self {
            Self::Verbs(cq) => Some(cq.cq().clone()),
            Self::Direct(cqs) => cqs.receives(srq),
        }
    }

    /// Adds up to `most` completions. Fewer than `most` means that no completion is left.
    #[inline]
    pub(crate) fn poll(&mut self, into: &mut Vec<Completion>, most: usize) -> Result<()> {
        match self {
            Self::Verbs(cq) => cq.poll(into, most),
            Self::Direct(cqs) => cqs.poll(into, most),
        }
    }

    /// The number of events that dequeues and waits took straight off a CQ, since the last call.
    pub(crate) fn take_polled(&mut self) -> u64 {
        match self {
            Self::Verbs(cq) => cq.take_polled(),
            Self::Direct(cqs) => cqs.take_polled(),
        }
    }

    /// Removes the completions of this QP, which was reset or destroyed. Calls `removed` for each
    /// that holds an entry of an SRQ, and perhaps for others.
    pub(crate) fn clean(&mut self, qpn: u32, removed: impl FnMut(&Completion)) {
        match self {
            Self::Verbs(cq) => cq.clean(qpn, removed),
            Self::Direct(cqs) => cqs.clean(qpn, removed),
        }
    }

    /// Whether each SRQ has its own CQ on this path. [`CqPath::open_srq`] creates the CQ.
    pub(crate) fn has_cq_of_srqs(&self) -> bool {
        matches!(self, Self::Direct(_))
    }

    /// Whether SRQs have CQs of their own here.
    pub(crate) fn has_any_of_srqs(&self) -> bool {
        matches!(self, Self::Direct(cqs) if cqs.has_any_of_srqs())
    }

    /// Whether the EVD has several CQs beside those of SRQs.
    pub(crate) fn has_several_shared(&self) -> bool {
        matches!(self, Self::Direct(cqs) if cqs.has_several_shared())
    }

    /// Creates the CQ of receives from this SRQ.
    pub(crate) fn open_srq(&mut self, srq: &SrqPath) -> Result<()> {
        match (self, srq) {
            (Self::Direct(cqs), SrqPath::Direct(srq)) => cqs.open(srq),
            _ => Ok(()),
        }
    }

    /// Records the depth of an SRQ that has its own CQ, before the SRQ becomes deeper.
    pub(crate) fn expect_depth(&mut self, srq: u32, depth: u32) {
        if let Self::Direct(cqs) = self {
            cqs.expect_depth(srq, depth);
        }
    }

    /// Closes the CQ of receives from this SRQ, which no QP uses any more. Calls `left` for each
    /// completion that is still in the CQ.
    pub(crate) fn close_srq(&mut self, srq: u32, left: impl FnMut(&Completion)) {
        if let Self::Direct(cqs) = self {
            cqs.close(srq, left);
        }
    }

    /// Records that a UD EP receives from this SRQ on this EVD.
    pub(crate) fn expect_datagrams(&mut self, srq: u32) {
        if let Self::Direct(cqs) = self {
            cqs.expect_datagrams(srq);
        }
    }

    /// Asks each CQ for one event on the channel at the next completion, or at the next solicited
    /// or failed one. Returns the number of CQs.
    pub(crate) fn arm(&mut self, solicited_only: bool) -> Result<usize> {
        match self {
            Self::Verbs(cq) => cq.arm(solicited_only).map(|()| 1),
            Self::Direct(cqs) => Ok(cqs.arm(solicited_only)),
        }
    }

    /// Makes room for at least `depth` completions. On the direct path, [`CqPath::lend`] has made
    /// the room.
    pub(crate) fn ensure(&mut self, depth: u32) -> Result<()> {
        match self {
            Self::Verbs(cq) => cq.ensure(depth),
            Self::Direct(_) => Ok(()),
        }
    }

    /// Handles an event with this CQ token, read from the channel.
    pub(crate) fn event(&mut self, token: u64) {
        if let Self::Direct(cqs) = self {
            cqs.event(token);
        }
    }
}
