//! Which pool a queue has checked last.

/// The pool of the last post to a queue, which was checked for the queue's PZ.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LastPool {
    /// The number of the pool, which no other pool has.
    pub(crate) number: u32,
    /// The length of the longest segment; 0 if there is no pool.
    pub(crate) longest: u32,
}
