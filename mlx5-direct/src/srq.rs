//! Posting to a shared receive queue.
//!
//! One thread posts and returns slots (`&mut self`); [`split`](Srq::split) gives another thread the
//! half that returns slots. The posting thread writes WQEs, links and the doorbell record; the
//! device reads them. The record's publish function executes the barrier between WQEs and record.
//! Every post calls that function once, after all of its WQEs.
//!
//! The mode says what the data segments of a slot hold, and therefore what a post has to write:
//!
//! | mode | a post writes | for |
//! |---|---|---|
//! | [`AnySegments`] | all data segments | buffers of any shape |
//! | [`AddressOnly`] | 8 bytes | buffers of one size in one memory region |
//! | [`Bound`] | nothing | one buffer per slot, free again before its slot is posted again |

use std::sync::atomic::Ordering::Relaxed;

use crate::{
    doorbell::CounterDbRec,
    queue_mem::{Cookies, Fill, SrqLayout, Words, WqeMem},
    slot_map::SlotMap,
    wqe::{DataSeg, WqeIndex},
};

mod post;

pub use crate::error::DepthError;

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

/// The slot is not in use: it was returned already, was never posted, or is not in the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("slot {} is not in use", .0.0)]
pub struct NotInUse(pub WqeIndex);

/// A batch that was cut short. The receives before the failed one are posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{posted} posted, then: {error}")]
pub struct BatchError {
    /// Receives that were posted.
    pub posted: u32,
    /// Why the next receive was not posted.
    pub error: PostError,
}

/// Mode: a post writes all data segments.
#[derive(Debug)]
pub struct AnySegments(());

/// Mode: length and lkey are in place; a post writes the address.
#[derive(Debug)]
pub struct AddressOnly(());

/// Mode: each slot has its buffer; a post writes nothing.
#[derive(Debug)]
pub struct Bound(());

/// Modes in which a slot needs no buffer before it is posted.
#[expect(private_bounds, reason = "no other crate has a mode of its own")]
pub trait Unbound {
    /// What is posted: a data segment or, in mode [`AddressOnly`], an address.
    type Buffer: Words;
}

impl Unbound for AnySegments {
    type Buffer = DataSeg;
}

impl Unbound for AddressOnly {
    type Buffer = u64;
}

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
// In this order, so that the first cache line has all that a post needs.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Srq<M = AnySegments> {
    dbrec: CounterDbRec,
    wqes: WqeMem,
    slots: SlotMap,
    srqn: u32,
    _mode: M,
}

impl Srq {
    /// Takes over a checked ring; at most `depth` receives will be posted at a time.
    ///
    /// A depth below the ring's limit uses only the first `depth + 1` slots. It can be raised
    /// later: this is the way to enlarge an SRQ whose device refuses `ibv_modify_srq` with
    /// `IBV_SRQ_MAX_WR`.
    ///
    /// # Errors
    ///
    /// [`DepthError::OutOfRange`] unless 1 <= `depth` < slots in the ring;
    /// [`DepthError::NoMemory`].
    pub fn new(layout: SrqLayout, depth: u32) -> Result<Self, DepthError> {
        let SrqLayout { mut wqes, dbrec, srqn } = layout;
        let slots = wqes.mask() + 1;
        if !(1..slots).contains(&depth) {
            return Err(DepthError::OutOfRange { asked: depth, max: slots - 1 });
        }
        // The links are those of `SlotMap::new`; the terminator ends a list of one segment.
        for index in 0..slots {
            let mut slot = wqes.slot(index);
            slot.write_next(WqeIndex(((index + 1) % slots) as u16));
            slot.write_one(DataSeg::default(), false);
        }
        wqes.set_plain(true);
        let slots = SlotMap::new(slots, depth).map_err(|_| DepthError::NoMemory)?;
        Ok(Self { slots, wqes, dbrec, srqn, _mode: AnySegments(()) })
    }

    /// Fixes length and lkey of every buffer, so that a post writes only an address.
    ///
    /// # Errors
    ///
    /// [`DepthError::NotIdle`] while something is posted.
    pub fn address_only(mut self, byte_count: u32, lkey: u32) -> Result<Srq<AddressOnly>, DepthError> {
        self.require_idle()?;
        for slot in 0..=self.wqes.mask() {
            self.wqes.slot(slot).write_one(DataSeg::new(0, byte_count, lkey), false);
        }
        self.wqes.set_plain(true);
        Ok(self.with_mode(AddressOnly(())))
    }

    /// Gives every usable slot its buffer and cookie permanently, so that a post writes no WQE.
    ///
    /// # Errors
    ///
    /// [`DepthError::NotIdle`] while something is posted.
    pub fn bind(
        mut self,
        mut buffer: impl FnMut(WqeIndex) -> (DataSeg, u64),
    ) -> Result<Srq<Bound>, DepthError> {
        self.require_idle()?;
        for slot in 0..self.slots.window() {
            buffer(WqeIndex(slot as u16)).fill(&mut self.wqes.slot(slot), false);
        }
        Ok(self.with_mode(Bound(())))
    }
}

impl<M: Unbound> Srq<M> {
    /// Changes how many receives may be posted at a time. O(new slots); for the control path.
    ///
    /// # Errors
    ///
    /// [`DepthError`] if the depth is beyond the ring or below the slots in use; nothing changes
    /// then.
    pub fn set_depth(&mut self, depth: u32) -> Result<(), DepthError> {
        let in_use = self.posted();
        if !(1..=self.max_depth()).contains(&depth) {
            return Err(DepthError::OutOfRange { asked: depth, max: self.max_depth() });
        }
        let run = self.wqes.tail() + 1..=self.wqes.run_end();
        if !self.slots.set_depth(depth, in_use, self.wqes.mask(), run) {
            return Err(DepthError::BelowInUse { asked: depth, in_use });
        }
        self.wqes.drop_run();
        Ok(())
    }
}

impl<M> Srq<M> {
    /// Returns a completed slot to the ring and returns its cookie. The slot may be posted again at
    /// once.
    ///
    /// # Errors
    ///
    /// [`NotInUse`] for a slot that was not posted, or was returned already; nothing changes. Only
    /// a faulty device causes this error.
    #[inline]
    pub fn complete(&mut self, slot: WqeIndex) -> Result<u64, NotInUse> {
        let index = u32::from(slot.0);
        let (tail, run_end) = (self.wqes.tail(), self.wqes.run_end());
        if index == run_end + 1 {
            if let Some(cookie) = self.wqes.join_run(index) {
                self.slots.count_returned();
                return Ok(cookie);
            }
            return self.complete_behind_run(index).ok_or(NotInUse(slot));
        }
        if !self.slots.put(index, tail, run_end) {
            return Err(NotInUse(slot));
        }
        self.wqes.end_joinable_before(index);
        Ok(self.wqes.cookie(index).load(Relaxed))
    }

    /// Returns the slot right behind the run. Nobody has checked yet whether this slot and those
    /// after it may join the run.
    #[inline(never)]
    fn complete_behind_run(&mut self, index: u32) -> Option<u64> {
        let (tail, run_end) = (self.wqes.tail(), self.wqes.run_end());
        self.wqes.set_joinable_end(self.slots.joinable_end_from(run_end));
        if let Some(cookie) = self.wqes.join_run(index) {
            self.slots.count_returned();
            return Some(cookie);
        }
        self.slots.put(index, tail, run_end).then(|| self.wqes.cookie(index).load(Relaxed))
    }

    fn is_in_use(&self, index: u32) -> bool {
        self.slots.in_use(index, self.wqes.tail(), self.wqes.run_end())
    }

    /// Returns up to 64 completed slots at once: bit `n` of `slots` stands for slot `64 * word +
    /// n`. Returns how many.
    ///
    /// # Errors
    ///
    /// [`NotInUse`] with the first slot that is not in use; nothing changes.
    #[inline]
    pub fn complete_word(&mut self, word: u32, slots: u64) -> Result<u32, NotInUse> {
        let (tail, run_end) = (self.wqes.tail(), self.wqes.run_end());
        let outcome = self.slots.put_word(word, slots, tail, run_end);
        // From now on, no slot joins the run without a new check.
        self.wqes.set_joinable_end(run_end);
        outcome.map_err(|slot| NotInUse(WqeIndex(slot as u16)))
    }

    /// The slot that the next post will fill.
    #[inline(always)]
    pub fn next_slot(&self) -> WqeIndex {
        WqeIndex(self.wqes.tail() as u16)
    }

    /// The slots that the next posts will fill, in order, as far as they are known: the next slot,
    /// and the reserved slots after it. Posts to all but the last of them need no search.
    #[inline(always)]
    pub fn next_slots(&self) -> core::ops::RangeInclusive<u32> {
        self.wqes.tail()..=self.wqes.run_end()
    }

    /// Receives posted so far, modulo 2^32.
    #[inline(always)]
    pub fn count(&self) -> u32 {
        self.wqes.count()
    }

    /// The cookie of a slot in use.
    ///
    /// # Errors
    ///
    /// [`NotInUse`], as for [`complete`](Self::complete).
    pub fn cookie(&self, slot: WqeIndex) -> Result<u64, NotInUse> {
        let index = u32::from(slot.0);
        if !self.is_in_use(index) {
            return Err(NotInUse(slot));
        }
        Ok(self.wqes.cookie(index).load(Relaxed))
    }

    /// The data segments of a slot in use, in order. The payload of a
    /// [`ScatteredRecv`](crate::ScatteredRecv) belongs in them. Read them before the slot is
    /// returned. Empty for a slot that is not in use.
    pub fn segments(&self, slot: WqeIndex) -> impl Iterator<Item = DataSeg> + '_ {
        let index = u32::from(slot.0);
        let most = if self.is_in_use(index) { self.max_segments() } else { 0 };
        (0..most).map_while(move |n| self.wqes.segment(index, n))
    }

    /// The first data segment that was last posted to a slot, also if the slot was returned since:
    /// read it before the next post. `None` if there was none. For callers that return the slot as
    /// well, and so learn whether it was in use.
    #[inline(always)]
    pub fn first_segment(&self, slot: WqeIndex) -> Option<DataSeg> {
        self.wqes.segment(slot.0.into(), 0)
    }

    /// Prefetches the queue memory and cookies of later posts into the processor's cache, `0..n`
    /// for the next `n` posts (on x86-64; elsewhere this does nothing).
    ///
    /// Use it in idle moments, such as after a poll that found nothing, and with rings that are
    /// larger than the processor's level 2 cache. A device that reads WQEs takes their cache lines
    /// away, and a post waits for the lines once the store buffer is full. Measured with a second
    /// core in place of the device: single posts took 8.7 ns, and 6.7 ns with the lines 16 slots
    /// ahead prefetched. A post does not prefetch by itself: with the lines in the cache, the
    /// prefetch makes a post more than a tenth slower (1.33 ns instead of 1.17 ns).
    #[inline]
    pub fn prefetch(&self, ahead: core::ops::Range<u32>) {
        self.wqes.prefetch(ahead);
    }

    /// Receives in use: posted and not yet returned by [`complete`](Self::complete).
    #[inline]
    pub fn posted(&self) -> u32 {
        self.slots.posted(self.wqes.count())
    }

    /// Receives that can be posted now.
    #[inline]
    pub fn free(&self) -> u32 {
        self.slots.room(self.wqes.count())
    }

    /// How many receives may be posted at a time.
    pub fn depth(&self) -> u32 {
        self.slots.depth()
    }

    /// The limit for [`depth`](Self::depth): slots in the ring, less the one that stays unposted.
    pub fn max_depth(&self) -> u32 {
        self.wqes.mask()
    }

    /// Data segments that fit into a slot.
    pub fn max_segments(&self) -> u32 {
        self.wqes.max_segments()
    }

    /// SRQ number, or 0 if the library did not report it.
    pub fn srqn(&self) -> u32 {
        self.srqn
    }

    /// Slots in use and their cookies, in slot order. O(ring). For teardown, when buffers go back
    /// to their owners.
    pub fn in_use(&self) -> impl Iterator<Item = (WqeIndex, u64)> + '_ {
        let slots = 0..self.slots.window();
        slots.filter(|s| self.is_in_use(*s)).map(|s| (WqeIndex(s as u16), self.wqes.cookie(s).load(Relaxed)))
    }

    /// Panics unless every slot is in exactly one state and all counts agree. O(ring): for tests.
    #[doc(hidden)]
    pub fn check(&self) {
        self.slots.check(self.wqes.count(), self.wqes.tail(), self.wqes.run_end());
    }

    /// The cookies of all slots, for a thread that polls while another posts. The cookie of a slot
    /// is stored before the slot is posted, and stays until the slot is posted again.
    pub fn cookies(&self) -> &Cookies {
        self.wqes.cookies()
    }

    fn require_idle(&self) -> Result<(), DepthError> {
        match self.posted() {
            0 => Ok(()),
            in_use => Err(DepthError::NotIdle { in_use }),
        }
    }

    fn with_mode<N>(self, mode: N) -> Srq<N> {
        let Self { slots, wqes, dbrec, srqn, _mode } = self;
        Srq { slots, wqes, dbrec, srqn, _mode: mode }
    }
}
