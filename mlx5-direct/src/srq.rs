//! Posting to a shared receive queue.
//!
//! One thread posts and returns slots (`&mut self`); [`split`](Srq::split) gives another thread the
//! half that returns slots. The posting thread writes WQEs, links and the doorbell record; the
//! device reads them. The record's publish function executes the barrier between WQEs and record.
//! Every operation here calls that function once, after all of its WQEs.
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
    dbrec::CounterDbRec,
    dv::RecvWrs,
    queue_mem::{Cookies, Fill, SrqLayout, WqeMem},
    ring::Ring,
    wqe::{DataSeg, KeyedSeg, WqeIndex},
};

mod fill;
mod modes;

pub use crate::error::DepthError;
pub use modes::{RebindError, Unbound};

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
    dbrec: CounterDbRec,
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
        // The links are those of `Ring::new`; the terminator ends a list of one segment.
        for index in 0..slots {
            let mut slot = wqes.slot(index);
            slot.write_next(WqeIndex(((index + 1) % slots) as u16));
            slot.write_one(DataSeg::default(), false);
        }
        wqes.set_plain(true);
        let ring = Ring::new(slots, depth).map_err(|_| DepthError::NoMemory)?;
        Ok(Self { ring, wqes, dbrec, srqn, _mode: AnySegments(()) })
    }

    /// Posts one buffer of one data segment.
    ///
    /// # Errors
    ///
    /// [`Full`]; nothing was written.
    #[inline]
    pub fn post_one(&mut self, seg: DataSeg, cookie: u64) -> Result<WqeIndex, Full> {
        self.post_body(seg, cookie)
    }

    /// As [`post_one`](Self::post_one), but only if no search for the next free slot is needed.
    /// Otherwise returns `None`, and nothing was written. For callers that inline this path as
    /// straight-line code and handle the other case elsewhere.
    #[inline(always)]
    pub fn post_one_in_run(&mut self, seg: impl Into<KeyedSeg>, cookie: u64) -> Option<WqeIndex> {
        let (index, mut slot) = self.wqes.take_fast()?;
        (seg.into(), cookie).fill(&mut slot, true);
        self.dbrec.publish(self.wqes.count_with(index) as u16);
        Some(WqeIndex(index as u16))
    }

    /// Posts one buffer with the data segments that `encode` makes of `list`, but only if no search
    /// for the next free slot is needed, the segments fit into a slot, and `encode` accepts all of
    /// them. Otherwise returns `None`, and nothing was posted. For callers that check each segment:
    /// it is read once, and goes straight into the slot.
    #[inline(always)]
    pub fn post_list_in_run<T, S: Into<KeyedSeg>>(
        &mut self,
        list: &[T],
        encode: impl FnMut(&T) -> Option<S>,
        cookie: u64,
    ) -> Option<WqeIndex> {
        // Also if a segment is refused: the slot may have lost its terminator by then.
        if self.wqes.is_plain() {
            self.lay_out_now();
        }
        let (index, mut slot) = self.wqes.first_of_run()?;
        if !slot.write_accepted(list, encode) {
            return None;
        }
        slot.set_cookie(cookie);
        self.wqes.pass_first(index);
        self.dbrec.publish(self.wqes.count_with(index) as u16);
        Some(WqeIndex(index as u16))
    }

    /// Limits [`post_one_in_run`](Self::post_one_in_run) to `n` more receives, until another post
    /// has to search or a slot is returned. Returns how many receives it will post. For callers
    /// with a limit of their own that changes rarely: they need not compare with it at each post.
    #[inline(always)]
    pub fn limit_run(&mut self, n: u32) -> u32 {
        self.wqes.limit_fast(n);
        self.plain_run()
    }

    /// How many receives [`post_one_in_run`](Self::post_one_in_run) will post now, one after the
    /// other.
    #[inline(always)]
    pub fn plain_run(&self) -> u32 {
        self.wqes.plain_run()
    }

    /// Posts one buffer of 0 to [`max_segments`](Srq::max_segments) data segments.
    ///
    /// # Errors
    ///
    /// [`PostError`]; nothing was written.
    #[inline]
    pub fn post(&mut self, segs: &[DataSeg], cookie: u64) -> Result<WqeIndex, PostError> {
        self.post_segments(segs, cookie)
    }

    /// Posts buffers of one data segment each, with one barrier and one record for all. Returns how
    /// many were posted: fewer than offered if the SRQ is full.
    ///
    /// Each buffer takes about 17 instructions, including the construction of its segment and the
    /// checks for the ends of the iterator and of the run. Let closures own what they use (`move`):
    /// a borrowed lkey is loaded and byte-swapped for each buffer.
    #[inline]
    pub fn post_batch(&mut self, bufs: impl IntoIterator<Item = (DataSeg, u64)>) -> u32 {
        self.batch(bufs.into_iter()).0
    }

    /// As [`post_batch`](Self::post_batch), from a slice, at about 10 instructions a buffer. This
    /// is the cheapest way to post many segments that exist already: the length is known, so the
    /// loop checks one end only, at every second buffer.
    #[inline]
    pub fn post_slice(&mut self, bufs: &[(DataSeg, u64)]) -> u32 {
        self.slice(bufs)
    }

    /// Posts a chain of verbs work requests, with one barrier and one record for all.
    ///
    /// # Errors
    ///
    /// [`BatchError`] with the number of receives posted before the one that failed, which is
    /// verbs' `bad_wr`.
    pub fn post_recv_wrs(&mut self, wrs: RecvWrs<'_>) -> Result<u32, BatchError> {
        let (posted, Singles(wrs)) = self.batch(Singles(wrs));
        if wrs.is_empty() { Ok(posted) } else { self.post_other_wrs(wrs, posted) }
    }

    /// Posts a chain of one verbs work request, but only if no search for the next free slot is
    /// needed and its segments fit into a slot. Otherwise returns false, and nothing was posted.
    /// [`post_one_in_run`](Self::post_one_in_run) is shorter for a request with one segment
    /// ([`RecvWrs::only_single`]).
    #[inline(always)]
    pub fn post_recv_wr_in_run(&mut self, wrs: &RecvWrs<'_>) -> bool {
        match wrs.only() {
            Some(wr) => {
                self.post_list_in_run(wr.segments, |sge| Some(DataSeg::from_sge(sge)), wr.wr_id).is_some()
            }
            None => false,
        }
    }

    /// The rest of a chain of which `before` requests were posted, from one on that has not one
    /// segment or finds no room.
    #[inline(never)]
    fn post_other_wrs(&mut self, wrs: RecvWrs<'_>, before: u32) -> Result<u32, BatchError> {
        let most = self.wqes.max_segments() as usize;
        if self.room() > 0 {
            self.lay_out_for_any();
        }
        let (posted, Fitting { wrs, .. }) = self.batch(Fitting { wrs, most });
        let posted = before + posted;
        match wrs.clone().next() {
            None => Ok(posted),
            Some(wr) if wr.segments.len() > most => {
                Err(BatchError { posted, error: PostError::TooManySegments })
            }
            Some(_) => Err(BatchError { posted, error: PostError::Full }),
        }
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
    pub fn bind(mut self, buffer: impl FnMut(WqeIndex) -> (DataSeg, u64)) -> Result<Srq<Bound>, DepthError> {
        self.require_idle()?;
        self.bind_from(0, buffer);
        Ok(self.with_mode(Bound(())))
    }
}

/// The work requests before the first that has not exactly one segment.
struct Singles<'a>(RecvWrs<'a>);

impl Iterator for Singles<'_> {
    type Item = (DataSeg, u64);

    #[inline(always)]
    fn next(&mut self) -> Option<Self::Item> {
        self.0.next_single()
    }
}

/// The work requests before the first that has more segments than a slot holds.
struct Fitting<'a> {
    wrs: RecvWrs<'a>,
    most: usize,
}

impl<'a> Iterator for Fitting<'a> {
    type Item = (&'a [doorbell_sys::ibv_sge], u64);

    #[inline(always)]
    fn next(&mut self) -> Option<Self::Item> {
        let mut rest = self.wrs.clone();
        let wr = rest.next()?;
        if wr.segments.len() > self.most {
            return None;
        }
        self.wrs = rest;
        Some((wr.segments, wr.wr_id))
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
                self.ring.count_returned();
                return Ok(cookie);
            }
            return self.complete_behind_run(index).ok_or(NotInUse(slot));
        }
        if !self.ring.put(index, tail, run_end) {
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
        self.wqes.set_joinable_end(self.ring.joinable_end_from(run_end));
        if let Some(cookie) = self.wqes.join_run(index) {
            self.ring.count_returned();
            return Some(cookie);
        }
        self.ring.put(index, tail, run_end).then(|| self.wqes.cookie(index).load(Relaxed))
    }

    fn is_in_use(&self, index: u32) -> bool {
        self.ring.in_use(index, self.wqes.tail(), self.wqes.run_end())
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
        let outcome = self.ring.put_word(word, slots, tail, run_end);
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
        self.ring.posted(self.wqes.count())
    }

    /// Receives that can be posted now.
    #[inline]
    pub fn free(&self) -> u32 {
        self.room()
    }

    /// How many receives may be posted at a time.
    pub fn depth(&self) -> u32 {
        self.ring.depth()
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
        let slots = 0..self.ring.window();
        slots.filter(|s| self.is_in_use(*s)).map(|s| (WqeIndex(s as u16), self.wqes.cookie(s).load(Relaxed)))
    }

    /// Panics unless every slot is in exactly one state and all counts agree. O(ring): for tests.
    #[doc(hidden)]
    pub fn check(&self) {
        self.ring.check(self.wqes.count(), self.wqes.tail(), self.wqes.run_end());
    }

    /// The cookies of all slots, for a thread that polls while another posts. The cookie of a slot
    /// is stored before the slot is posted, and stays until the slot is posted again.
    pub fn cookies(&self) -> &Cookies {
        self.wqes.cookies()
    }

    #[inline(always)]
    fn publish(&mut self) {
        self.dbrec.publish(self.wqes.count() as u16);
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
            (seg, cookie).fill(&mut self.wqes.slot(slot), false);
        }
    }

    fn change_depth(&mut self, depth: u32) -> Result<(), DepthError> {
        let in_use = self.posted();
        if !(1..=self.max_depth()).contains(&depth) {
            return Err(DepthError::OutOfRange { asked: depth, max: self.max_depth() });
        }
        let run = self.wqes.tail() + 1..=self.wqes.run_end();
        if !self.ring.set_depth(depth, in_use, self.wqes.mask(), run) {
            return Err(DepthError::BelowInUse { asked: depth, in_use });
        }
        self.wqes.drop_run();
        Ok(())
    }

    fn with_mode<N>(self, mode: N) -> Srq<N> {
        let Self { ring, wqes, dbrec, srqn, _mode } = self;
        Srq { ring, wqes, dbrec, srqn, _mode: mode }
    }
}
