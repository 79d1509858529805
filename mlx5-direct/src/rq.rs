//! Posting to the receive queue of a QP that has no SRQ.
//!
//! One thread posts and takes completions (`&mut self`). Slots are used in ring order and complete
//! in that order: the queue is a ring of segments with two counters. A post writes a slot and
//! publishes the count in the doorbell record; it rings no register.
//!
//! Take a queue over before anything was posted to it. Receives can be posted from INIT on, and in
//! ERR, where each completes as flushed. After the QP went to RESET, remove its entries from the CQ
//! ([`Cq::clean`](crate::Cq::clean)), and call [`Rq::reset`].

use crate::{
    doorbell::CounterDbRec,
    dv::RecvWrs,
    queue_mem::{RqLayout, RqMem},
    srq::{BatchError, PostError},
    wqe::{DataSeg, KeyedSeg},
};

/// No posted receive that is still outstanding has this number. Only a faulty device causes this
/// error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no receive is outstanding in slot {0}")]
pub struct NotReceiving(pub u16);

/// A QP's receive queue that is posted to without libmlx5.
///
/// ```
/// use mlx5_direct::{DataSeg, Rq, RqLayout};
///
/// let (layout, _device) = RqLayout::on_heap(16, 32)?;
/// let mut rq = Rq::new(layout);
/// rq.post(&[DataSeg::new(0x1000, 256, 0x77)], 42)?;
/// assert_eq!((rq.posted(), rq.free()), (1, 15));
/// // ... the device receives a message; its completion carries the number of the receive ...
/// assert_eq!(rq.complete(0)?, 42);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Rq {
    /// Receives posted so far.
    at: u32,
    /// Receives completed so far.
    done: u32,
    max_requests: u32,
    wqes: RqMem,
    dbrec: CounterDbRec,
    qpn: u32,
}

impl Rq {
    /// Takes over a checked receive queue.
    pub fn new(layout: RqLayout) -> Self {
        let RqLayout { ring: wqes, dbrec, qpn, max_requests } = layout;
        Self { at: 0, done: 0, max_requests, wqes, dbrec, qpn }
    }

    /// Posts one buffer of 0 to [`max_segments`](Self::max_segments) data segments; empty segments
    /// are left out.
    ///
    /// # Errors
    ///
    /// [`PostError`]; nothing was written.
    #[inline(always)]
    pub fn post(&mut self, segs: &[DataSeg], cookie: u64) -> Result<(), PostError> {
        if self.free() == 0 {
            return Err(PostError::Full);
        }
        if segs.len() > self.wqes.max_segments() as usize {
            return Err(PostError::TooManySegments);
        }
        self.wqes.write(self.at, segs.iter().copied(), cookie);
        self.advance();
        self.dbrec.publish(self.at as u16);
        Ok(())
    }

    /// As [`post`](Self::post), for a number of segments that the compiler knows, of one byte or
    /// more each. Straight-line code without a call.
    ///
    /// # Errors
    ///
    /// [`PostError`]; nothing was written.
    #[inline(always)]
    pub fn post_few<const N: usize>(&mut self, segs: [KeyedSeg; N], cookie: u64) -> Result<(), PostError> {
        if self.free() == 0 {
            return Err(PostError::Full);
        }
        if N > 1 && N > self.wqes.max_segments() as usize {
            return Err(PostError::TooManySegments);
        }
        self.wqes.write_few(self.at, segs, cookie);
        self.advance();
        self.dbrec.publish(self.at as u16);
        Ok(())
    }

    /// Posts a chain of verbs work requests, with one barrier and one record for all.
    ///
    /// # Errors
    ///
    /// [`BatchError`] with the number of receives posted before the one that failed, which is
    /// verbs' `bad_wr`. Verbs return `ENOMEM` for a full queue and `EINVAL` for too many segments.
    pub fn post_recv_wrs(&mut self, wrs: RecvWrs<'_>) -> Result<u32, BatchError> {
        let first = self.at;
        let mut refused = None;
        for wr in wrs {
            if self.free() == 0 {
                refused = Some(PostError::Full);
                break;
            }
            if wr.segments.len() > self.wqes.max_segments() as usize {
                refused = Some(PostError::TooManySegments);
                break;
            }
            self.wqes.write(self.at, wr.segments.iter().map(DataSeg::from_sge), wr.wr_id);
            self.advance();
        }
        let posted = self.at.wrapping_sub(first);
        if posted > 0 {
            self.dbrec.publish(self.at as u16);
        }
        refused.map_or(Ok(posted), |error| Err(BatchError { posted, error }))
    }

    fn advance(&mut self) {
        self.at = self.at.wrapping_add(1);
    }

    /// Releases the receive with this completion, and returns its cookie. `number` is the
    /// [`slot`](crate::Completion::slot) of the completion. Releases earlier receives that have not
    /// completed as well; with a device that works there are none.
    ///
    /// # Errors
    ///
    /// [`NotReceiving`]; nothing changes.
    #[inline]
    pub fn complete(&mut self, number: u16) -> Result<u64, NotReceiving> {
        let ahead = u32::from(number).wrapping_sub(self.done) & self.wqes.mask();
        if ahead >= self.posted() {
            return Err(NotReceiving(number));
        }
        let cookie = self.wqes.cookie(number.into());
        self.done = self.done.wrapping_add(ahead + 1);
        Ok(cookie)
    }

    /// The segments of a posted receive, in order. The payload of a
    /// [`ScatteredRecv`](crate::ScatteredRecv) belongs in them. Read them before the slot is
    /// posted again.
    pub fn segments(&self, number: u16) -> impl Iterator<Item = DataSeg> + '_ {
        (0..).map_while(move |n| self.wqes.segment(number.into(), n))
    }

    /// Cookies of the receives that are posted and not completed, oldest first.
    pub fn outstanding(&self) -> impl Iterator<Item = u64> + '_ {
        (0..self.posted()).map(|n| self.wqes.cookie(self.done.wrapping_add(n)))
    }

    /// Receives posted and not completed.
    pub fn posted(&self) -> u32 {
        self.at.wrapping_sub(self.done)
    }

    /// Receives that can be posted now.
    pub fn free(&self) -> u32 {
        self.max_requests - self.posted()
    }

    /// Receives that can be posted at a time.
    pub fn max_requests(&self) -> u32 {
        self.max_requests
    }

    /// Data segments that fit into a slot.
    pub fn max_segments(&self) -> u32 {
        self.wqes.max_segments()
    }

    /// QP number, 24 bits.
    pub fn qpn(&self) -> u32 {
        self.qpn
    }

    /// Starts again after the QP went to RESET. The queue forgets outstanding receives.
    pub fn reset(&mut self) {
        (self.at, self.done) = (0, 0);
        self.dbrec.publish(0);
    }
}
