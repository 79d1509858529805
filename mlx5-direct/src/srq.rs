//! Posting to a shared receive queue.
//!
//! One thread posts and returns slots (`&mut self`); [`split`](Srq::split) gives the returning half to another thread.
//! We write WQEs, links and the doorbell record; the device reads them. The barrier between WQEs and record is inside
//! the record's publish function, which every operation here calls once, after all of its WQEs.
//!
//! The mode says what a slot's data segments hold and therefore what a post has to write:
//!
//! | mode | a post writes | for |
//! |---|---|---|
//! | [`AnySegments`] | all data segments | buffers of any shape |
//! | [`AddressOnly`] | 8 bytes | buffers of one size in one memory region |
//! | [`Bound`] | nothing | a buffer per slot, handed back before its slot is posted again |

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use crate::{
    dbrec::SrqDbRec,
    dv::RecvWrs,
    queue_mem::{SrqLayout, WqeMem},
    ring::{Gather, Many, Ring},
    wqe::{DataSeg, WqeIndex},
};

mod fill;

/// Every usable slot is in use: return completed ones, or raise the depth.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the SRQ is full")]
pub struct Full;

/// Why a receive was not posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PostError {
    /// As [`Full`].
    #[error("the SRQ is full")]
    Full,
    /// More data segments than a slot holds ([`Srq::max_segments`]).
    #[error("more data segments than a slot of this SRQ holds")]
    TooManySegments,
}

impl From<Full> for PostError {
    fn from(Full: Full) -> Self {
        Self::Full
    }
}

/// The slot is not in use: it was returned already, never posted, or is not in the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("slot {} is not in use", .0.0)]
pub struct NotInUse(pub WqeIndex);

/// The depth asked for cannot be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DepthError {
    /// More than the ring holds; one slot always stays unposted.
    #[error("depth {asked} is outside 1 to {max}, the ring's limit")]
    OutOfRange {
        /// What was asked for.
        asked: u32,
        /// Slots in the ring, less one.
        max: u32,
    },
    /// Fewer than are in use.
    #[error("depth {asked} is below the {in_use} slots in use")]
    BelowInUse {
        /// What was asked for.
        asked: u32,
        /// Slots in use.
        in_use: u32,
    },
    /// The mode can only be chosen while nothing is posted.
    #[error("{in_use} slots are in use: choose the mode before posting")]
    NotIdle {
        /// Slots in use.
        in_use: u32,
    },
}

/// A batch that was cut short. What was posted before is posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{posted} posted, then: {error}")]
pub struct BatchError {
    /// Receives that were posted.
    pub posted: u32,
    /// What stopped the next one.
    pub error: PostError,
}

/// Mode: a post writes all data segments.
#[derive(Debug)]
pub struct AnySegments(());

/// Mode: length and lkey are in place, a post writes the address.
#[derive(Debug)]
pub struct AddressOnly(());

/// Mode: each slot has its buffer, a post writes nothing.
#[derive(Debug)]
pub struct Bound(());

/// A shared receive queue that is posted to without libmlx5.
///
/// ```
/// use mlx5_direct::{DataSeg, Srq, SrqLayout};
///
/// let (layout, _device) = SrqLayout::on_heap(8, 32)?;
/// let mut srq = Srq::new(layout, 7)?;
/// let slot = srq.post_one(DataSeg::new(0x1000, 256, 0x77), 42)?;
/// assert_eq!((srq.posted(), srq.free()), (1, 6));
/// // ... the device receives a message; its completion carries the slot ...
/// assert_eq!(srq.complete(slot)?, 42);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Srq<M = AnySegments> {
    ring: Ring,
    wqes: WqeMem,
    dbrec: SrqDbRec,
    srqn: u32,
    _mode: M,
}

impl Srq {
    /// Takes over a checked ring; at most `depth` receives will be posted at a time.
    ///
    /// A depth below the ring's limit keeps to the first `depth + 1` slots, and can be raised later: that is how to
    /// resize an SRQ whose device refuses `ibv_modify_srq` with `IBV_SRQ_MAX_WR`.
    ///
    /// # Errors
    ///
    /// [`DepthError::OutOfRange`] unless 1 <= `depth` < slots in the ring.
    pub fn new(layout: SrqLayout, depth: u32) -> Result<Self, DepthError> {
        let SrqLayout { mut wqes, dbrec, srqn } = layout;
        let slots = wqes.mask() + 1;
        if !(1..slots).contains(&depth) {
            return Err(DepthError::OutOfRange { asked: depth, max: slots - 1 });
        }
        let ring = Ring::new(slots, depth);
        for (slot, next) in ring.links() {
            wqes.slot(slot).write_next(WqeIndex(next));
        }
        Ok(Self { ring, wqes, dbrec, srqn, _mode: AnySegments(()) })
    }

    /// Posts one buffer of one data segment.
    ///
    /// # Errors
    ///
    /// [`Full`], and nothing was written.
    #[inline]
    pub fn post_one(&mut self, seg: DataSeg, cookie: u64) -> Result<WqeIndex, Full> {
        self.post_body(seg, cookie)
    }

    /// Posts one buffer of 0 to [`max_segments`](Srq::max_segments) data segments.
    ///
    /// # Errors
    ///
    /// [`PostError`], and nothing was written.
    #[inline]
    pub fn post(&mut self, segs: &[DataSeg], cookie: u64) -> Result<WqeIndex, PostError> {
        let slot = self.write(segs.iter().copied(), cookie)?;
        self.publish();
        Ok(WqeIndex(slot as u16))
    }

    /// Posts buffers of one data segment each, with one barrier and one record for all. Returns how many were posted:
    /// fewer than offered when the SRQ is full.
    #[inline]
    pub fn post_batch(&mut self, bufs: impl IntoIterator<Item = (DataSeg, u64)>) -> u32 {
        self.batch(bufs)
    }

    /// As [`post_batch`](Self::post_batch), from a slice: the cheapest way to post many.
    #[inline]
    pub fn post_slice(&mut self, bufs: &[(DataSeg, u64)]) -> u32 {
        self.slice(bufs)
    }

    /// Posts a chain of verbs work requests, with one barrier and one record for all.
    ///
    /// # Errors
    ///
    /// [`BatchError`] with the number posted before the first that could not be: that one is verbs' `bad_wr`.
    pub fn post_recv_wrs(&mut self, wrs: RecvWrs<'_>) -> Result<u32, BatchError> {
        let mut posted = 0;
        let mut outcome = Ok(());
        for wr in wrs {
            let segs = wr.segments.iter().map(|sge| DataSeg::new(sge.addr, sge.length, sge.lkey));
            if let Err(error) = self.write(segs, wr.wr_id) {
                outcome = Err(error);
                break;
            }
            posted += 1;
        }
        if posted > 0 {
            self.publish();
        }
        outcome.map(|()| posted).map_err(|error| BatchError { posted, error })
    }

    /// Fixes length and lkey of every buffer, so that posting writes an address only.
    ///
    /// # Errors
    ///
    /// [`DepthError::NotIdle`] while something is posted.
    pub fn address_only(mut self, byte_count: u32, lkey: u32) -> Result<Srq<AddressOnly>, DepthError> {
        self.require_idle()?;
        for slot in 0..=self.wqes.mask() {
            self.wqes.slot(slot).write_one(DataSeg::new(0, byte_count, lkey));
        }
        Ok(self.with_mode(AddressOnly(())))
    }

    /// Gives every usable slot its buffer and cookie for good, so that posting writes no WQE.
    ///
    /// # Errors
    ///
    /// [`DepthError::NotIdle`] while something is posted.
    pub fn bind(mut self, buffer: impl FnMut(WqeIndex) -> (DataSeg, u64)) -> Result<Srq<Bound>, DepthError> {
        self.require_idle()?;
        self.bind_from(0, buffer);
        Ok(self.with_mode(Bound(())))
    }

    #[inline(always)]
    fn write(&mut self, segs: impl ExactSizeIterator<Item = DataSeg>, cookie: u64) -> Result<u32, PostError> {
        if segs.len() > self.wqes.max_segments() as usize {
            return Err(PostError::TooManySegments);
        }
        let (slot, mut wqe) = self.take()?;
        wqe.write_all(segs);
        wqe.set_cookie(cookie);
        Ok(slot)
    }
}

impl Srq<AddressOnly> {
    /// Posts the buffer at `addr`; length and lkey are those of [`address_only`](Srq::address_only).
    ///
    /// # Errors
    ///
    /// [`Full`], and nothing was written.
    #[inline]
    pub fn post(&mut self, addr: u64, cookie: u64) -> Result<WqeIndex, Full> {
        self.post_body(addr, cookie)
    }

    /// Posts buffers by address, with one barrier and one record for all. Returns how many were posted: fewer than
    /// offered when the SRQ is full.
    #[inline]
    pub fn post_batch(&mut self, bufs: impl IntoIterator<Item = (u64, u64)>) -> u32 {
        self.batch(bufs)
    }

    /// As [`post_batch`](Self::post_batch), from a slice: the cheapest way to post many.
    #[inline]
    pub fn post_slice(&mut self, bufs: &[(u64, u64)]) -> u32 {
        self.slice(bufs)
    }
}

impl Srq<Bound> {
    /// Posts up to `n` free slots with the buffers they are bound to; returns how many. Which ones is the ring's choice:
    /// the next free ones in ring order.
    #[inline]
    pub fn repost(&mut self, n: u32) -> u32 {
        // As many as there is room for, so that the ring has a slot for each.
        let n = n.min(self.ring.free());
        let mut left = n;
        while left > 0 {
            let run = self.ring.run().min(left);
            self.ring.take_run(run);
            left -= run;
            if left == 0 {
                break;
            }
            match self.ring.take_many() {
                Some(Many::Run(advance)) => {
                    Self::link(&mut self.wqes, &advance);
                    left -= 1;
                }
                Some(Many::Scattered(gather)) => left -= self.repost_scattered(gather, left),
                None => break,
            }
        }
        let posted = n - left;
        if posted > 0 {
            self.publish();
        }
        posted
    }

    /// Posts up to `n` of scattered slots. Out of line, to keep the way of a run short.
    #[inline(never)]
    fn repost_scattered(&mut self, mut gather: Gather, n: u32) -> u32 {
        let mut posted = 0;
        while posted < n
            && let Some(advance) = self.ring.gather(&mut gather)
        {
            Self::link(&mut self.wqes, &advance);
            posted += 1;
        }
        self.ring.finish_gather(gather);
        posted
    }

    /// Binds another buffer and cookie to a slot that is not in use.
    ///
    /// # Errors
    ///
    /// [`NotInUse`] with the slot when it is outside the usable ones, or in use (the device may be writing its buffer).
    pub fn rebind(&mut self, slot: WqeIndex, seg: DataSeg, cookie: u64) -> Result<(), RebindError> {
        let index = u32::from(slot.0);
        if index >= self.ring.window() || self.ring.in_use(index) {
            return Err(RebindError(slot));
        }
        self.wqes.slot(index).fill(seg, cookie);
        Ok(())
    }

    /// As [`Srq::set_depth`]; `buffer` is asked for each slot that becomes usable.
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
        self.bind_from(before, buffer);
        Ok(())
    }
}

/// The slot is in use or outside the usable ones, so its buffer cannot be changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("slot {} is in use or outside the usable slots", .0.0)]
pub struct RebindError(pub WqeIndex);

/// Modes in which a slot needs no buffer before it is posted.
pub trait Unbound {}
impl Unbound for AnySegments {}
impl Unbound for AddressOnly {}

impl<M: Unbound> Srq<M> {
    /// Changes how many receives may be posted at a time. O(new slots), on the control path.
    ///
    /// # Errors
    ///
    /// [`DepthError`] beyond the ring, or below what is posted; nothing changes then.
    pub fn set_depth(&mut self, depth: u32) -> Result<(), DepthError> {
        self.change_depth(depth)
    }
}

impl<M> Srq<M> {
    /// Takes a completed slot back and returns its cookie. The slot may be posted again at once.
    ///
    /// # Errors
    ///
    /// [`NotInUse`], and nothing changes: a slot that was not posted, or was returned already. A device that works as it
    /// should never causes it.
    #[inline]
    pub fn complete(&mut self, slot: WqeIndex) -> Result<u64, NotInUse> {
        let index = u32::from(slot.0);
        if !self.ring.put(index) {
            return Err(NotInUse(slot));
        }
        Ok(self.wqes.cookie(index).load(Relaxed))
    }

    /// The cookie of a slot in use.
    ///
    /// # Errors
    ///
    /// [`NotInUse`] as for [`complete`](Self::complete).
    pub fn cookie(&self, slot: WqeIndex) -> Result<u64, NotInUse> {
        let index = u32::from(slot.0);
        if !self.ring.in_use(index) {
            return Err(NotInUse(slot));
        }
        Ok(self.wqes.cookie(index).load(Relaxed))
    }

    /// Receives in use: posted and not yet returned by [`complete`](Self::complete).
    #[inline]
    pub fn posted(&self) -> u32 {
        self.ring.posted()
    }

    /// Receives that can be posted now.
    #[inline]
    pub fn free(&self) -> u32 {
        self.ring.free()
    }

    /// How many receives may be posted at a time.
    pub fn depth(&self) -> u32 {
        self.ring.depth()
    }

    /// The most that [`depth`](Self::depth) can be raised to: slots in the ring, less the one that stays unposted.
    pub fn max_depth(&self) -> u32 {
        self.wqes.mask()
    }

    /// Data segments that fit into a slot.
    pub fn max_segments(&self) -> u32 {
        self.wqes.max_segments()
    }

    /// SRQ number, or 0 where the library did not say.
    pub fn srqn(&self) -> u32 {
        self.srqn
    }

    /// Slots in use and their cookies, in slot order. O(ring): for teardown, when buffers go back to their owners.
    pub fn in_use(&self) -> impl Iterator<Item = (WqeIndex, u64)> + '_ {
        let slots = 0..self.ring.window();
        slots
            .filter(|s| self.ring.in_use(*s))
            .map(|s| (WqeIndex(s as u16), self.wqes.cookie(s).load(Relaxed)))
    }

    /// Panics unless every slot is in exactly one state and all counts agree. O(ring): for tests.
    #[doc(hidden)]
    pub fn check(&self) {
        self.ring.check();
    }

    pub(crate) fn cookies(&self) -> &Arc<[AtomicU64]> {
        self.wqes.cookies()
    }

    #[inline(always)]
    fn publish(&mut self) {
        self.dbrec.publish(self.ring.count());
    }

    fn require_idle(&self) -> Result<(), DepthError> {
        match self.posted() {
            0 => Ok(()),
            in_use => Err(DepthError::NotIdle { in_use }),
        }
    }

    fn bind_from(&mut self, first: u32, mut buffer: impl FnMut(WqeIndex) -> (DataSeg, u64)) {
        for slot in first..self.ring.window() {
            let (seg, cookie) = buffer(WqeIndex(slot as u16));
            self.wqes.slot(slot).fill(seg, cookie);
        }
    }

    fn change_depth(&mut self, depth: u32) -> Result<(), DepthError> {
        let in_use = self.posted();
        if !(1..=self.max_depth()).contains(&depth) {
            return Err(DepthError::OutOfRange { asked: depth, max: self.max_depth() });
        }
        if !self.ring.set_depth(depth) {
            return Err(DepthError::BelowInUse { asked: depth, in_use });
        }
        Ok(())
    }

    fn with_mode<N>(self, mode: N) -> Srq<N> {
        let Self { ring, wqes, dbrec, srqn, _mode } = self;
        Srq { ring, wqes, dbrec, srqn, _mode: mode }
    }
}
