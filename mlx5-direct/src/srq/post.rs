//! Posting: to the next slot of the run, to the whole run, or to slots that a search finds.
//!
//! The *run* is the slots that can be posted one after the other without a search.

use super::{AnySegments, BatchError, Bound, Full, PostError, Srq, Unbound};
use crate::{
    dv::RecvWrs,
    queue_mem::{Fill, Words, WqeMem},
    slot_map::Step,
    wqe::{DataSeg, KeyedSeg, WqeIndex},
};

/// A value that stands for "no slot".
const NO_SLOT: u32 = u32::MAX;

impl<M: Unbound> Srq<M> {
    /// Posts one buffer: a data segment or, in mode [`AddressOnly`](super::AddressOnly), an
    /// address.
    ///
    /// # Errors
    ///
    /// [`Full`]; nothing was written.
    #[inline(always)]
    pub fn post_one(&mut self, buffer: M::Buffer, cookie: u64) -> Result<WqeIndex, Full> {
        let Some((index, mut slot)) = self.wqes.take_fast() else {
            let [first, second] = buffer.to_words();
            return match self.fill_any::<M::Buffer>(first, second, cookie) {
                NO_SLOT => Err(Full),
                index => Ok(WqeIndex(index as u16)),
            };
        };
        (buffer, cookie).fill(&mut slot, true);
        self.dbrec.publish(self.wqes.count_with(index) as u16);
        Ok(WqeIndex(index as u16))
    }

    /// The rest of [`post_one`](Self::post_one). Returns a number instead of a `Result`: a caller
    /// that checks only for success then has nothing to check in the common case.
    #[inline(never)]
    fn fill_any<T: Words>(&mut self, a: u64, b: u64, cookie: u64) -> u32 {
        self.fill_next((T::from_words([a, b]), cookie)).map_or(NO_SLOT, |index| u32::from(index.0))
    }

    /// Posts buffers with one barrier and one record for all. Returns how many were posted: fewer
    /// than offered if the SRQ is full.
    ///
    /// Each buffer takes about 17 instructions, including the construction of its segment and the
    /// checks for the ends of the iterator and of the run. Let closures own what they use (`move`):
    /// a borrowed lkey is loaded and byte-swapped for each buffer.
    #[inline]
    pub fn post_batch(&mut self, bufs: impl IntoIterator<Item = (M::Buffer, u64)>) -> u32 {
        let (posted, _) = self.fill_batch(bufs.into_iter());
        self.publish_some(posted)
    }

    /// As [`post_batch`](Self::post_batch), from a slice, at about 10 instructions a buffer. This
    /// is the cheapest way to post many buffers that exist already: the length is known, so the
    /// loop checks one end only, at every second buffer.
    #[inline]
    pub fn post_slice(&mut self, bufs: &[(M::Buffer, u64)]) -> u32 {
        let offered = bufs.len().min(self.free() as usize);
        let mut rest = &bufs[..offered];
        while !rest.is_empty() {
            let (now, later) = rest.split_at((self.wqes.run() as usize).min(rest.len()));
            self.wqes.fill_run_from(now);
            rest = later;
            if rest.is_empty() {
                break;
            }
            let filled = self.fill_after_search(rest.iter().copied(), rest.len() as u32).0;
            rest = &rest[filled as usize..];
        }
        self.publish_some(offered as u32)
    }
}

impl Srq<AnySegments> {
    /// As [`post_one`](Self::post_one), but only if no search for the next free slot is needed.
    /// Otherwise returns `None`, and nothing was written. For callers that inline this path as
    /// straight-line code and handle the other case elsewhere.
    #[inline(always)]
    pub fn post_one_fast(&mut self, seg: impl Into<KeyedSeg>, cookie: u64) -> Option<WqeIndex> {
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
    pub fn post_list_fast<T, S: Into<KeyedSeg>>(
        &mut self,
        list: &[T],
        encode: impl FnMut(&T) -> Option<S>,
        cookie: u64,
    ) -> Option<WqeIndex> {
        // Also if a segment is refused: the slot may have lost its terminator by then.
        if self.wqes.is_plain() {
            self.lay_out_for_any();
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

    /// Limits [`post_one_fast`](Self::post_one_fast) and
    /// [`post_list_fast`](Self::post_list_fast) to `n` more receives, until another post has to
    /// search; `post_one_fast` only until a slot is returned. Returns how many receives
    /// `post_one_fast` will post. For callers with a limit of their own that changes rarely: they
    /// need not compare with it at each post.
    #[inline(always)]
    pub fn limit_run(&mut self, n: u32) -> u32 {
        self.wqes.limit(n);
        self.plain_run()
    }

    /// How many receives [`post_one_fast`](Self::post_one_fast) will post now, one after the
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
        if segs.len() > self.wqes.max_segments() as usize {
            return Err(PostError::TooManySegments);
        }
        if segs.len() != 1 {
            self.lay_out_for_any();
        }
        Ok(self.fill_next((segs, cookie))?)
    }

    /// Posts a chain of verbs work requests, with one barrier and one record for all.
    ///
    /// # Errors
    ///
    /// [`BatchError`] with the number of receives posted before the one that failed, which is
    /// verbs' `bad_wr`.
    pub fn post_recv_wrs(&mut self, wrs: RecvWrs<'_>) -> Result<u32, BatchError> {
        let (posted, Singles(wrs)) = self.fill_batch(Singles(wrs));
        if wrs.is_empty() {
            return Ok(self.publish_some(posted));
        }
        let (more, error) = self.fill_other_wrs(wrs);
        let posted = self.publish_some(posted + more);
        error.map_or(Ok(posted), |error| Err(BatchError { posted, error }))
    }

    /// Posts a chain of one verbs work request, but only if no search for the next free slot is
    /// needed and its segments fit into a slot. Otherwise returns false, and nothing was posted.
    /// [`post_one_fast`](Self::post_one_fast) is shorter for a request with one segment
    /// ([`RecvWrs::only_single`]).
    #[inline(always)]
    pub fn post_recv_wr_fast(&mut self, wrs: &RecvWrs<'_>) -> bool {
        match wrs.only() {
            Some(wr) => {
                self.post_list_fast(wr.segments, |sge| Some(DataSeg::from_sge(sge)), wr.wr_id).is_some()
            }
            None => false,
        }
    }

    /// Fills slots from a chain, from a request on that has not one segment or finds no room.
    /// Returns how many, and why the next request is refused.
    #[inline(never)]
    fn fill_other_wrs(&mut self, wrs: RecvWrs<'_>) -> (u32, Option<PostError>) {
        let most = self.wqes.max_segments() as usize;
        if self.free() > 0 {
            self.lay_out_for_any();
        }
        let (filled, Fitting { wrs, .. }) = self.fill_batch(Fitting { wrs, most });
        let refused = wrs.clone().next().map(|wr| match wr.segments.len() > most {
            true => PostError::TooManySegments,
            false => PostError::Full,
        });
        (filled, refused)
    }

    /// From now on, a post of one segment writes its terminator, as some slots no longer have one.
    #[cold]
    #[inline(never)]
    fn lay_out_for_any(&mut self) {
        if self.wqes.is_plain() && self.wqes.max_segments() > 1 {
            self.wqes.set_plain(false);
        }
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
            return self.publish_some(n);
        }
        self.pass_beyond_run(n)
    }

    #[inline(never)]
    fn pass_beyond_run(&mut self, n: u32) -> u32 {
        let offered = n.min(self.free());
        let mut left = offered;
        while left > 0 {
            let run = self.wqes.run().min(left);
            self.wqes.pass(run);
            left -= run;
            if left > 0 {
                left -= self.fill_after_search(core::iter::repeat(()), left).0;
            }
        }
        self.publish_some(offered)
    }
}

impl<M> Srq<M> {
    #[inline(always)]
    fn publish(&mut self) {
        self.dbrec.publish(self.wqes.count() as u16);
    }

    /// Publishes the count if slots were filled. Returns their number.
    #[inline(always)]
    fn publish_some(&mut self, filled: u32) -> u32 {
        if filled > 0 {
            self.publish();
        }
        filled
    }

    /// Fills and publishes the next slot, wherever it is.
    #[inline(always)]
    fn fill_next(&mut self, buf: impl Fill) -> Result<WqeIndex, Full> {
        let (plain, slot) = (self.wqes.is_plain(), self.wqes.tail());
        if self.wqes.run() > 0 {
            buf.fill(&mut self.wqes.slot(slot), plain);
            self.wqes.pass(1);
        } else {
            let room = self.free();
            if room == 0 {
                return Err(Full);
            }
            let walk = self.slots.walk(slot);
            let step = self.slots.step(walk, slot, room - 1);
            fill_and_link(&mut self.wqes, slot, step, buf, plain);
            self.wqes.jump(1, step.next, step.run);
        }
        self.publish();
        Ok(WqeIndex(slot as u16))
    }

    /// Fills slots with the buffers of the iterator while there is room. Calls the iterator only if
    /// there is a slot for its buffer. If the iterator panics, buffers that it returned since the
    /// last run may be lost, but no slot is lost. Returns how many slots were filled, and the
    /// iterator.
    #[inline(always)]
    fn fill_batch<I: Iterator<Item: Fill>>(&mut self, mut bufs: I) -> (u32, I) {
        let offered = self.free();
        let mut room = offered;
        while room > 0 {
            let run = self.wqes.run().min(room);
            let filled;
            (filled, bufs) = self.wqes.fill_run(run, bufs);
            room -= filled;
            if filled < run || room == 0 {
                break;
            }
            let filled;
            (filled, bufs) = self.fill_after_search(bufs, room);
            if filled == 0 {
                break;
            }
            room -= filled;
        }
        (offered - room, bufs)
    }

    /// Posts slot after slot while there is no run. Ends when a run worth reserving is found (and
    /// reserved), when `most` are posted, or when the iterator ends. There is room for `most`. Not
    /// inlined, to keep the code for a run short.
    #[inline(never)]
    fn fill_after_search<I: Iterator<Item: Fill>>(&mut self, mut bufs: I, most: u32) -> (u32, I) {
        let (plain, room) = (self.wqes.is_plain(), self.free());
        let Self { slots, wqes, .. } = self;
        let mut so_far = SoFar { tail: wqes.tail(), filled: 0, run: 0, wqes };
        let mut walk = slots.walk(so_far.tail);
        while !walk.has_runs() {
            let mut singles = slots.singles(walk, so_far.tail);
            while let Some(next) = singles.next() {
                let Some(buf) = bufs.next() else { return (so_far.filled, bufs) };
                singles.take_next();
                let mut slot = so_far.wqes.slot(so_far.tail);
                buf.fill(&mut slot, plain);
                slot.write_next(WqeIndex(next as u16));
                so_far.tail = next;
                so_far.filled += 1;
                if so_far.filled == most {
                    return (most, bufs);
                }
            }
            drop(singles);
            walk = slots.next_word(walk);
        }
        if let Some(buf) = bufs.next() {
            so_far.filled += 1;
            let step = slots.step(walk, so_far.tail, room - so_far.filled);
            fill_and_link(so_far.wqes, so_far.tail, step, buf, plain);
            (so_far.tail, so_far.run) = (step.next, step.run);
        }
        (so_far.filled, bufs)
    }
}

/// The drop of this value posts the slots that were filled, linked and taken out of the map. It
/// also runs if the source of buffers panics.
struct SoFar<'a> {
    wqes: &'a mut WqeMem,
    filled: u32,
    tail: u32,
    run: u32,
}

impl Drop for SoFar<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.wqes.jump(self.filled, self.tail, self.run);
    }
}

#[inline(always)]
fn fill_and_link(wqes: &mut WqeMem, slot: u32, step: Step, buf: impl Fill, plain: bool) {
    let mut slot = wqes.slot(slot);
    buf.fill(&mut slot, plain);
    if step.relink {
        slot.write_next(WqeIndex(step.next as u16));
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
