//! Continuing in another buffer after a resize.

use super::{Cq, quarter};
use crate::{cqe::CqeError, queue_mem::CqBuffer};

/// Opcode of the entry that the device writes last into the old buffer (`MLX5_CQE_RESIZE_CQ`).
const RESIZE_MARK: u8 = 5;

impl Cq {
    /// Continues in a buffer to which the device has changed over: copies the entries that were not
    /// polled yet, up to the resize mark behind them. The mark uses up a number, so an entry stands
    /// one place further than its old number says.
    ///
    /// Before the device is asked to change over, call [`release`](Self::release): the device
    /// refuses a buffer that is too small for the entries that were not returned.
    /// The old buffer is not used any more.
    ///
    /// # Errors
    ///
    /// [`CqeError::NoResizeMark`]; the CQ is as before.
    ///
    /// # Panics
    ///
    /// The entries of the new buffer have another size.
    ///
    /// # References
    ///
    /// `mlx5_cq_resize_copy_cqes` in rdma-core's providers/mlx5/cq.c.
    pub fn continue_in(&mut self, new: CqBuffer) -> Result<(), CqeError> {
        let CqBuffer(mut new) = new;
        let first = self.cqes.index();
        let mark = (0..=self.cqes.mask())
            .map(|n| first.wrapping_add(n))
            .map_while(|at| self.cqes.ready(at, self.cqes.lap(at)).map(|(_, op_own)| (at, op_own >> 4)))
            .find_map(|(at, opcode)| (opcode == RESIZE_MARK).then_some(at))
            .filter(|mark| mark.wrapping_sub(first) <= new.mask() + 1)
            .ok_or(CqeError::NoResizeMark)?;
        for from in (0..mark.wrapping_sub(first)).map(|n| first.wrapping_add(n)) {
            new.copy_entry_of(&self.cqes, from, from.wrapping_add(1));
        }
        self.cqes = new;
        let quarter = quarter(self.cqe_count());
        self.interval = if self.returns_each { quarter } else { self.interval.min(quarter) };
        self.release_to(first.wrapping_add(1));
        Ok(())
    }

    /// Skips the numbers of resize marks: libmlx5 resized the CQ so often before it was taken over.
    /// Nothing was polled.
    pub fn skip_resize_marks(&mut self, marks: u32) {
        self.release_to(self.cqes.index().wrapping_add(marks));
    }
}
