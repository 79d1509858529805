//! One interface for posting and polling, compiled separately for each subject.

use crate::queues::Queues;

/// A data path on queues of its own.
pub trait Path {
    /// The queues, for the stand-in of the device.
    fn queues(&mut self) -> &mut Queues;

    /// Posts one batch, the `call`-th of a sample. Timed.
    fn post(&mut self, call: u32);

    /// Posts a group of single buffers, one per call. Timed.
    fn post_group(&mut self);

    /// Polls until `n` completions came; uses QP, slot or `wr_id`, and length. Timed.
    fn poll(&mut self, n: u32);

    /// As [`poll`](Self::poll), and every slot is free afterwards. Timed.
    fn poll_and_free(&mut self, n: u32);

    /// As [`poll`](Self::poll) for one completion, by the shortest way. Timed.
    fn poll_one(&mut self);

    /// As [`poll_and_free`](Self::poll_and_free) for one completion, by the shortest way. Timed.
    fn poll_and_free_one(&mut self);

    /// One poll of an empty queue. Timed.
    fn poll_empty(&mut self);

    /// Frees slots that [`poll`](Self::poll) left in use.
    fn free(&mut self, slots: &[u16]);

    /// Posts until the SRQ is full.
    fn fill(&mut self);
}
