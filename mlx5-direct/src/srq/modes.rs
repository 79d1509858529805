//! The modes in which a slot keeps part of its WQE: length and lkey ([`AddressOnly`]), or the whole
//! buffer ([`Bound`]).

use super::{AddressOnly, AnySegments, Bound, DepthError, Full, Srq};
use crate::{
    queue_mem::Fill,
    wqe::{DataSeg, WqeIndex},
};

impl Srq<AddressOnly> {
    /// Posts the buffer at `addr`; [`address_only`](Srq::address_only) has set length and lkey.
    ///
    /// # Errors
    ///
    /// [`Full`]; nothing was written.
    #[inline]
    pub fn post(&mut self, addr: u64, cookie: u64) -> Result<WqeIndex, Full> {
        self.post_body(addr, cookie)
    }

    /// Posts buffers by address, with one barrier and one record for all. Returns how many were
    /// posted: fewer than offered if the SRQ is full.
    #[inline]
    pub fn post_batch(&mut self, bufs: impl IntoIterator<Item = (u64, u64)>) -> u32 {
        self.batch(bufs.into_iter()).0
    }

    /// As [`post_batch`](Self::post_batch), from a slice: the cheapest way to post many.
    #[inline]
    pub fn post_slice(&mut self, bufs: &[(u64, u64)]) -> u32 {
        self.slice(bufs)
    }
}

impl Srq<Bound> {
    /// Posts up to `n` free slots with their bound buffers; returns how many. The ring chooses the
    /// slots: the next free slots in ring order.
    #[inline]
    pub fn repost(&mut self, n: u32) -> u32 {
        // The run is never longer than the number of receives that can be posted.
        if n <= self.wqes.run() {
            self.wqes.pass(n);
            return self.publish_posted(n);
        }
        self.repost_beyond_run(n)
    }

    #[inline(never)]
    fn repost_beyond_run(&mut self, n: u32) -> u32 {
        let offered = n.min(self.room());
        let mut left = offered;
        while left > 0 {
            let run = self.wqes.run().min(left);
            self.wqes.pass(run);
            left -= run;
            if left > 0 {
                left -= self.fill_after_search(core::iter::repeat(()), left).0;
            }
        }
        self.publish_posted(offered)
    }

    /// Binds another buffer and cookie to a slot that is not in use.
    ///
    /// # Errors
    ///
    /// The slot is not usable, or is in use (the device may be writing its buffer).
    pub fn rebind(&mut self, slot: WqeIndex, seg: DataSeg, cookie: u64) -> Result<(), RebindError> {
        let index = u32::from(slot.0);
        if index >= self.ring.window() || self.is_in_use(index) {
            return Err(RebindError(slot));
        }
        (seg, cookie).fill(&mut self.wqes.slot(index), false);
        Ok(())
    }

    /// As [`Srq::set_depth`]; `buffer` is called for each slot that becomes usable.
    ///
    /// # Errors
    ///
    /// As [`Srq::set_depth`].
    pub fn set_depth_with(
        &mut self,
        depth: u32,
        buffer: impl FnMut(WqeIndex) -> (DataSeg, u64),
    ) -> Result<(), DepthError> {
        let before = self.ring.window();
        self.change_depth(depth)?;
        // If `buffer` panics, the remaining slots have no buffer.
        for slot in before..self.ring.window() {
            let none: &[DataSeg] = &[];
            (none, 0).fill(&mut self.wqes.slot(slot), false);
        }
        self.bind_from(before, buffer);
        Ok(())
    }
}

/// The slot is in use or not usable, so its buffer cannot be changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("slot {} is in use or outside the usable slots", .0.0)]
pub struct RebindError(pub WqeIndex);

/// Modes in which a slot needs no buffer before it is posted.
pub trait Unbound {}
impl Unbound for AnySegments {}
impl Unbound for AddressOnly {}

impl<M: Unbound> Srq<M> {
    /// Changes how many receives may be posted at a time. O(new slots); for the control path.
    ///
    /// # Errors
    ///
    /// [`DepthError`] if the depth is beyond the ring or below the slots in use; nothing changes
    /// then.
    pub fn set_depth(&mut self, depth: u32) -> Result<(), DepthError> {
        self.change_depth(depth)
    }
}
