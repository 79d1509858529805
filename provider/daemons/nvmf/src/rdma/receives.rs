//! The shared receive queue and its buffers. A buffer is posted again as soon as its command is
//! copied out, so that a few serve many connections. Capsules with data may keep their buffers for
//! a while; when few are posted, the pool grows, up to one buffer for each command that may be
//! under way. Then every host that keeps to its credit finds one.

use doorbell::{DtoCompletion, Ia, Pz, RecvBuf, RecvPool, Srq};

/// The smallest pool.
const FIRST: usize = 256;

/// Buffers are posted again when this many were taken.
const BATCH: usize = 32;

/// The SRQ and its pools.
#[derive(Debug)]
pub(super) struct Receives {
    srq: Srq,
    pools: Vec<RecvPool>,
    total: usize,
    most: usize,
    size: usize,
    /// Buffers that were given out since the last refill.
    taken: usize,
}

impl Receives {
    /// At most `most` buffers of this size.
    pub(super) fn new(ia: &Ia, pz: &Pz, most: usize, size: usize) -> doorbell::Result<Self> {
        let depth = u32::try_from(most).unwrap_or(u32::MAX);
        let srq = Srq::builder(ia, pz).depth(depth).build()?;
        let mut receives = Self { srq, pools: Vec::new(), total: 0, most, size, taken: 0 };
        receives.grow(ia, pz, FIRST)?;
        Ok(receives)
    }

    pub(super) fn srq(&self) -> &Srq {
        &self.srq
    }

    fn grow(&mut self, ia: &Ia, pz: &Pz, by: usize) -> doorbell::Result<()> {
        let by = by.min(self.most - self.total);
        if by == 0 {
            return Ok(());
        }
        let mut pool = RecvPool::new(ia, pz, by as u32, self.size)?;
        pool.refill(&mut self.srq)?;
        self.pools.push(pool);
        self.total += by;
        Ok(())
    }

    /// The capsule of this receive; `None` if the receive failed, or another queue's it is.
    pub(super) fn take(&mut self, dto: &DtoCompletion) -> Option<RecvBuf> {
        self.taken += 1;
        self.pools.iter_mut().find_map(|pool| pool.take(dto))
    }

    /// Posts the buffers that came back, if they are many or the engine is `idle`. Doubles the pool
    /// when less than a quarter is posted.
    pub(super) fn refill(&mut self, ia: &Ia, pz: &Pz, idle: bool) -> doorbell::Result<()> {
        if self.taken < BATCH && !(idle && self.posted() < self.total) {
            return Ok(());
        }
        self.taken = 0;
        for pool in &mut self.pools {
            pool.refill(&mut self.srq)?;
        }
        if self.posted() < self.total / 4 && self.total < self.most {
            tracing::info!(buffers = self.total, "few receive buffers are left: doubling their number");
            self.grow(ia, pz, self.total)?;
        }
        Ok(())
    }

    /// The number of posted buffers.
    pub(super) fn posted(&self) -> usize {
        self.pools.iter().map(RecvPool::posted).sum()
    }

    /// The number of all buffers.
    pub(super) fn total(&self) -> usize {
        self.total
    }
}
