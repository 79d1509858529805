//! Posted receives of an EP without an SRQ.

use super::{LastPool, Ring};
use crate::datapath::{RecvQueue, WrInfo};
use crate::device::QueueLmrs;
use crate::types::CompletionFlags;
use rxe_fallback::Sge;
use std::collections::TryReserveError;
use zerocopy::FromZeros;

/// A receive posted to an EP without an SRQ.
#[derive(Clone, Copy, Debug, FromZeros)]
pub(crate) struct Receive {
    pub(crate) info: WrInfo,
    /// The completion flags, and [`NOT_ON_DEVICE`].
    state: u32,
}

/// A bit of no completion flag: the device does not have the receive.
const NOT_ON_DEVICE: u32 = 1 << 31;

impl Receive {
    /// A receive for the device.
    #[inline(always)]
    pub(crate) fn new(info: WrInfo, flags: CompletionFlags) -> Self {
        Self { info, state: flags.bits() }
    }

    /// A receive that the device does not get. It waits behind receives that the device has, and is
    /// flushed after them.
    pub(crate) fn off_device(info: WrInfo, flags: CompletionFlags) -> Self {
        Self { info, state: flags.bits() | NOT_ON_DEVICE }
    }

    pub(crate) fn flags(&self) -> CompletionFlags {
        CompletionFlags::from_bits_truncate(self.state)
    }

    pub(crate) fn is_on_device(&self) -> bool {
        self.state & NOT_ON_DEVICE == 0
    }
}

/// The ring of posted receives of an EP without an SRQ.
#[derive(Debug)]
pub struct Receives {
    pub(crate) queue: RecvQueue,
    pub(crate) ring: Ring<Receive>,
    pub(crate) max_iov: usize,
    /// Closed unless the EP is connected and has no high watermark.
    pub(crate) lmrs: QueueLmrs,
    /// The pool of the last receive from one. None while `lmrs` is closed.
    pub(crate) last_pool: LastPool,
    /// The number of receives posted so far. `bytes` is the sum of their lengths.
    pub(crate) posts: u64,
    pub(crate) bytes: u64,
    /// The segments of the receives in the ring, until a connection begins.
    pub(crate) preposted: PrePosted,
}

/// The segments of receives of which the device has used none, in the order of their posts. They
/// can be posted to another queue.
#[derive(Debug, Default)]
pub(crate) struct PrePosted {
    counts: Vec<u8>,
    sges: Vec<Sge>,
}

impl PrePosted {
    /// Reserves memory for one more receive.
    pub(crate) fn reserve(&mut self, sges: &[Sge]) -> Result<(), TryReserveError> {
        self.counts.try_reserve(1)?;
        self.sges.try_reserve(sges.len())
    }

    pub(crate) fn push(&mut self, sges: &[Sge]) {
        self.counts.push(sges.len() as u8);
        self.sges.extend_from_slice(sges);
    }

    fn segments(&self) -> impl Iterator<Item = &[Sge]> {
        let mut rest = &self.sges[..];
        self.counts.iter().map(move |&count| {
            let (these, others) = rest.split_at(count.into());
            rest = others;
            these
        })
    }

    /// The number of segments of the receive that has the most.
    pub(crate) fn most(&self) -> usize {
        self.counts.iter().copied().max().unwrap_or(0).into()
    }
}

impl Receives {
    /// Posts the pre-posted receives that have not completed to an empty queue. The buffers of
    /// completed receives may be out with the consumer.
    pub(crate) fn repeat_on(&self, queue: &mut RecvQueue) -> Result<(), rxe_fallback::PostError> {
        self.preposted.segments().skip(self.completed()).try_for_each(|sges| queue.push(sges))
    }

    /// Posts the pre-posted receives that have not completed again, after the QP was reset.
    pub(crate) fn repeat(&mut self) -> Result<(), rxe_fallback::PostError> {
        self.queue.reset();
        let completed = self.completed();
        let Self { preposted, queue, .. } = self;
        preposted.segments().skip(completed).try_for_each(|sges| queue.push(sges))
    }

    /// The number of pre-posted receives that have completed.
    fn completed(&self) -> usize {
        self.preposted.counts.len().saturating_sub(self.ring.len())
    }

    /// Completes the oldest receive, whose slot a completion names.
    #[inline(always)]
    pub(crate) fn complete(&mut self, slot: u16) -> Option<Receive> {
        if !self.queue.complete(slot) || !self.ring.front()?.is_on_device() {
            return None;
        }
        self.ring.take_first()
    }

    /// Posts take the slow function from now on.
    pub(crate) fn close(&mut self) {
        self.lmrs.close();
        self.last_pool = LastPool::default();
    }

    pub(crate) fn count(&mut self, sges: &[Sge]) {
        self.posts += 1;
        self.bytes += sges.iter().map(|sge| u64::from(sge.len)).sum::<u64>();
    }
}
