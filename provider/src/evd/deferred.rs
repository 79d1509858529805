//! Work that a harvest finds.

use crate::datapath::Lost;
use crate::queue_pair::QueuePair;
use crate::shared_recv::SharedRecv;
use std::collections::TryReserveError;
use std::sync::Arc;

/// The most completions of one kind that a harvest polls together.
pub(crate) const BATCH: usize = 32;

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
