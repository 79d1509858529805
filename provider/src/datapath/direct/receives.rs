//! Receive queues of EPs without an SRQ, on the direct path.
//!
//! Only the holder of the lock of the EP's receives uses the queue.

use super::adopt::{self, Adopted};
use super::segments::{NO_SEGMENT, encode};
use crate::Result;
use crate::datapath::fast::PostReceives;
use crate::types::MAX_IOV;
use mlx5_direct::srq::PostError;
use mlx5_direct::wqe::KeyedSeg;
use rxe_fallback::{PostError as Refusal, Qp, Sge};

/// The receive queue of a QP.
#[derive(Debug)]
pub(crate) struct DirectReceives {
    queue: Adopted<mlx5_direct::Rq, Qp>,
}

impl PostReceives for DirectReceives {
    type Segment = KeyedSeg;

    #[inline(always)]
    fn push_fast<const N: usize>(&mut self, segments: [KeyedSeg; N]) -> bool {
        self.queue.post_few(segments, 0).is_ok()
    }
}

impl DirectReceives {
    /// Takes over the receive queue of a new QP.
    ///
    /// # Errors
    /// No memory for the queue's table.
    pub(crate) fn new(qp: &Qp) -> Result<Self> {
        Ok(Self { queue: adopt::receive_queue(qp.clone())? })
    }

    pub(crate) fn push(&mut self, sges: &[Sge]) -> Result<(), Refusal> {
        let mut segments = [NO_SEGMENT; MAX_IOV];
        let data = encode(sges, &mut segments)?;
        self.queue.post(data, 0).map_err(|error| match error {
            PostError::Full => Refusal::Full,
            PostError::TooManySegments => {
                Refusal::TooManySegments { given: sges.len(), max: self.queue.max_segments() as usize }
            }
        })
    }

    /// Releases the receive that a completion names. False if it is not posted.
    #[inline(always)]
    pub(crate) fn complete(&mut self, slot: u16) -> bool {
        self.queue.complete(slot).is_ok()
    }

    /// Starts again after the QP was reset.
    pub(crate) fn reset(&mut self) {
        self.queue.reset();
    }
}
