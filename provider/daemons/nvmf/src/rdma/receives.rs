//! The shared receive queue and its buffers. A buffer is posted again as soon as its command is
//! copied out, so that a few serve many connections. Capsules with data may keep their buffers for
//! a while; when few are posted, the pool grows, up to one buffer for each command that may be
//! under way. Then every host that keeps to its credit finds one.

use doorbell::{DtoCompletion, Evd, Ia, Pz, Received, RecvBuf, RecvPool, Srq};

/// The smallest pool.
const FIRST: u32 = 256;

/// Buffers are posted again when this many were taken.
const BATCH: usize = 32;

/// The SRQ and its pool.
#[derive(Debug)]
pub(super) struct Receives {
    srq: Srq,
    pool: RecvPool,
    most: u32,
    /// Buffers that were given out since the last refill.
    taken: usize,
}

impl Receives {
    /// At most `most` buffers of this size.
    pub(super) fn new(ia: &Ia, pz: &Pz, most: usize, size: usize) -> doorbell::Result<Self> {
        let most = u32::try_from(most).unwrap_or(u32::MAX);
        let mut srq = Srq::builder(ia, pz).depth(most).build()?;
        let mut pool = RecvPool::new(ia, pz, FIRST.min(most), size)?;
        pool.refill(&mut srq)?;
        Ok(Self { srq, pool, most, taken: 0 })
    }

    pub(super) fn srq(&self) -> &Srq {
        &self.srq
    }

    /// What is there, without waiting.
    #[inline]
    pub(super) fn dequeue(&mut self, evd: &Evd) -> doorbell::Result<Option<Received>> {
        let received = self.pool.dequeue(evd);
        self.taken += usize::from(matches!(received, Ok(Some(_))));
        received
    }

    /// The capsule of this receive; `None` if the receive failed, or another queue's it is.
    pub(super) fn take(&mut self, dto: &DtoCompletion) -> Option<RecvBuf> {
        self.taken += 1;
        self.pool.take(dto)
    }

    /// Posts the buffers that came back, if they are many or the engine is `idle`. Doubles the pool
    /// when less than a quarter is posted.
    pub(super) fn refill(&mut self, idle: bool) -> doorbell::Result<()> {
        if self.taken < BATCH && !(idle && self.posted() < self.total()) {
            return Ok(());
        }
        self.taken = 0;
        self.pool.refill(&mut self.srq)?;
        let buffers = self.pool.buffers();
        if self.posted() < self.total() / 4 && buffers < self.most {
            tracing::info!(buffers, "few receive buffers are left: doubling their number");
            self.pool.grow(&mut self.srq, buffers.min(self.most - buffers))?;
            self.pool.refill(&mut self.srq)?;
        }
        Ok(())
    }

    /// The number of posted buffers.
    pub(super) fn posted(&self) -> usize {
        self.pool.posted()
    }

    /// The number of all buffers.
    pub(super) fn total(&self) -> usize {
        self.pool.buffers() as usize
    }
}
