//! How a dequeue takes the next completion straight off the CQs of an EVD, on either path.

use super::completion::WrId;
use super::entries::CompletedUpTo;

/// Where a dequeue looks for the next completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Feed {
    /// The CQ of the EVD's only SRQ. Nothing else completes on the EVD.
    Messages,
    /// The only shared CQ, where only requests complete.
    Requests,
    /// Receives of EPs without an SRQ, on the only shared CQ. Requests may be there, too.
    Receives,
    /// All of the only shared CQ; by verbs, of the only CQ.
    Shared,
    /// All CQs.
    Any,
}

/// The CQs of an EVD on one path.
pub(crate) trait NextOnCq {
    /// Whether everything completes on one CQ.
    const ONE: bool;
    /// An SRQ.
    type Srq;
    /// A completion.
    type Next<'a>: Next<Srq = Self::Srq>
    where
        Self: 'a;

    /// The next completion, if it is a success without an effect, as far as its entry shows. `None`
    /// also where only a poll can decide. `fast`: straight-line code for the owner of the locks,
    /// which may leave a completion to the same call without `fast`.
    fn next(&mut self, feed: Feed, fast: bool) -> Option<Self::Next<'_>>;

    /// Whether nothing has completed, after [`NextOnCq::next`] has found nothing. False also where
    /// only a poll can decide. `fast` as there.
    fn is_empty(&mut self, feed: Feed, fast: bool) -> bool;

    /// The number of events of all completions that wait. `None` if they have to be polled to know
    /// it.
    fn count_waiting(&mut self) -> Option<usize>;
}

/// The next completion of an EVD, a success. Nothing has changed until [`Next::take`].
pub(crate) trait Next {
    type Srq;

    /// The QP number.
    fn qpn(&self) -> u32;

    /// Names the work request.
    fn wr_id(&self) -> WrId;

    /// The bytes of a message.
    fn length(&self) -> u32;

    /// Completes and releases the buffer of a message from an SRQ in one step, and returns its
    /// cookie and pool. `None` without a change for a buffer that is not posted, or that has to be
    /// released by other means. `pools`: the buffer may be of a pool. `srq`, `ep`: of the queue
    /// pair. The caller holds the lock of the EVD.
    fn reap(&mut self, pools: bool, srq: Option<&Self::Srq>, ep: &CompletedUpTo) -> Option<(u64, u32)>;

    /// Consumes the completion, whose event the consumer gets. By the direct path, its CQE returns
    /// to the device, at once or with those after it ([`mlx5_direct::Cq::hold_back`]).
    fn take(self);
}
