//! Taking slots and filling them: the next slot of a run, a whole run, or a slot found by a search.

use super::{Full, PostError, Srq};
use crate::{
    queue_mem::{Fill, Words, WqeMem},
    ring::Step,
    wqe::{DataSeg, WqeIndex},
};

/// A value that stands for "no slot".
const NO_SLOT: u32 = u32::MAX;

impl<M> Srq<M> {
    /// How many receives can be posted now, by the counts of posted and returned receives.
    #[inline(always)]
    pub(super) fn room(&self) -> u32 {
        self.ring.room(self.wqes.count())
    }

    /// Posts one WQE. There are two copies, so that the common case is straight-line code.
    #[inline(always)]
    pub(super) fn post_body<T: Words>(&mut self, body: T, cookie: u64) -> Result<WqeIndex, Full> {
        let Some((index, mut slot)) = self.wqes.take_fast() else {
            let [first, second] = body.to_words();
            return match self.post_body_elsewhere::<T>(first, second, cookie) {
                NO_SLOT => Err(Full),
                index => Ok(WqeIndex(index as u16)),
            };
        };
        (body, cookie).fill(&mut slot, true);
        self.dbrec.publish(self.wqes.count_with(index) as u16);
        Ok(WqeIndex(index as u16))
    }

    /// Returns a number instead of a `Result`: a caller that checks only for success then has
    /// nothing to check in the common case.
    #[inline(never)]
    fn post_body_elsewhere<T: Words>(&mut self, a: u64, b: u64, cookie: u64) -> u32 {
        self.post_next((T::from_words([a, b]), cookie)).map_or(NO_SLOT, |index| u32::from(index.0))
    }

    /// Posts several segments as one WQE.
    #[inline(always)]
    pub(super) fn post_segments(&mut self, segs: &[DataSeg], cookie: u64) -> Result<WqeIndex, PostError> {
        if segs.len() > self.wqes.max_segments() as usize {
            return Err(PostError::TooManySegments);
        }
        if segs.len() != 1 {
            self.lay_out_for_any();
        }
        if self.wqes.run() == 0 {
            return self.post_segments_elsewhere(segs, cookie).map_err(PostError::from);
        }
        let slot = self.wqes.tail();
        (segs, cookie).fill(&mut self.wqes.slot(slot), false);
        self.wqes.pass(1);
        self.publish();
        Ok(WqeIndex(slot as u16))
    }

    #[inline(never)]
    fn post_segments_elsewhere(&mut self, segs: &[DataSeg], cookie: u64) -> Result<WqeIndex, Full> {
        self.post_next((segs, cookie))
    }

    /// From now on, a post of one segment writes its terminator, as some slots no longer have one.
    #[inline(always)]
    pub(super) fn lay_out_for_any(&mut self) {
        if self.wqes.is_plain() && self.wqes.max_segments() > 1 {
            self.wqes.set_plain(false);
        }
    }

    #[cold]
    #[inline(never)]
    pub(super) fn lay_out_now(&mut self) {
        self.lay_out_for_any();
    }

    #[inline(always)]
    fn post_next(&mut self, buf: impl Fill) -> Result<WqeIndex, Full> {
        let (plain, slot) = (self.wqes.is_plain(), self.wqes.tail());
        if self.wqes.run() > 0 {
            buf.fill(&mut self.wqes.slot(slot), plain);
            self.wqes.pass(1);
        } else {
            let room = self.room();
            if room == 0 {
                return Err(Full);
            }
            let walk = self.ring.walk(slot);
            let step = self.ring.step(walk, slot, room - 1);
            fill_and_link(&mut self.wqes, slot, step, buf, plain);
            self.wqes.jump(1, step.next, step.run);
        }
        self.publish();
        Ok(WqeIndex(slot as u16))
    }

    /// Posts the buffers of the iterator while there is room. Calls the iterator only if there is a
    /// slot for its buffer. If the iterator panics, buffers that it returned since the last run may
    /// be lost, but no slot is lost. Returns how many buffers were posted, and the iterator.
    #[inline(always)]
    pub(super) fn batch<I: Iterator<Item: Fill>>(&mut self, mut bufs: I) -> (u32, I) {
        let offered = self.room();
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
        (self.publish_posted(offered - room), bufs)
    }

    /// As [`batch`](Self::batch), from a slice.
    #[inline(always)]
    pub(super) fn slice<T: Fill>(&mut self, bufs: &[T]) -> u32 {
        let offered = bufs.len().min(self.room() as usize);
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
        self.publish_posted(offered as u32)
    }

    #[inline(always)]
    pub(super) fn publish_posted(&mut self, posted: u32) -> u32 {
        if posted > 0 {
            self.publish();
        }
        posted
    }

    /// Posts slot after slot while there is no run. Ends when a run worth reserving is found (and
    /// reserved), when `most` are posted, or when the iterator ends. There is room for `most`. Not
    /// inlined, to keep the code for a run short.
    #[inline(never)]
    pub(super) fn fill_after_search<I: Iterator<Item: Fill>>(&mut self, mut bufs: I, most: u32) -> (u32, I) {
        let (plain, room) = (self.wqes.is_plain(), self.room());
        let Self { ring, wqes, .. } = self;
        let mut so_far = SoFar { tail: wqes.tail(), filled: 0, run: 0, wqes };
        let mut walk = ring.walk(so_far.tail);
        while !walk.has_runs() {
            let mut singles = ring.singles(walk, so_far.tail);
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
            walk = ring.next_word(walk);
        }
        if let Some(buf) = bufs.next() {
            so_far.filled += 1;
            let step = ring.step(walk, so_far.tail, room - so_far.filled);
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
