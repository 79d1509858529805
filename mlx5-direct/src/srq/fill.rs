//! Taking slots and filling them: one at a time, in runs, or scattered.

use super::{Full, Srq};
use crate::{
    queue_mem::{Body, SlotMut, WqeMem},
    ring::{Advance, Gather, Many},
    wqe::WqeIndex,
};

impl<M> Srq<M> {
    /// The next slot, linked to its successor and ready to be filled.
    #[inline(always)]
    pub(super) fn take(&mut self) -> Result<(u32, SlotMut<'_>), Full> {
        match self.ring.take_in_run() {
            Some(slot) => Ok((slot, self.wqes.slot(slot))),
            None => self.take_search(),
        }
    }

    #[inline(always)]
    pub(super) fn take_search(&mut self) -> Result<(u32, SlotMut<'_>), Full> {
        let advance = self.ring.take_search().ok_or(Full)?;
        Ok((advance.slot, Self::link(&mut self.wqes, &advance)))
    }

    /// The slot that was taken, with its link written if need be.
    #[inline(always)]
    pub(super) fn link<'a>(wqes: &'a mut WqeMem, advance: &Advance) -> SlotMut<'a> {
        let mut wqe = wqes.slot(advance.slot);
        if advance.relink {
            wqe.write_next(WqeIndex(advance.next));
        }
        wqe
    }

    /// Posts one WQE. Two copies, so that the common one is straight-line code.
    #[inline(always)]
    pub(super) fn post_body<T: Body>(&mut self, body: T, cookie: u64) -> Result<WqeIndex, Full> {
        let Some(slot) = self.ring.take_in_run() else {
            let [first, second] = body.to_words();
            return self.post_after_search::<T>(first, second, cookie);
        };
        self.wqes.slot(slot).fill(body, cookie);
        self.publish();
        Ok(WqeIndex(slot as u16))
    }

    #[inline(never)]
    fn post_after_search<T: Body>(&mut self, first: u64, second: u64, cookie: u64) -> Result<WqeIndex, Full> {
        let (slot, wqe) = self.take_search()?;
        wqe.fill(T::from_words([first, second]), cookie);
        self.publish();
        Ok(WqeIndex(slot as u16))
    }

    #[inline(always)]
    pub(super) fn batch<T: Body>(&mut self, bufs: impl IntoIterator<Item = (T, u64)>) -> u32 {
        // Nothing is returned meanwhile, so the room is known; the source is not asked for a buffer that has no slot.
        let room = self.ring.free();
        let mut posted = 0;
        let mut bufs = bufs.into_iter();
        while posted < room {
            let run = self.ring.run().min(room - posted);
            let filled = self.wqes.run(self.ring.tail(), run).fill(&mut bufs);
            self.ring.take_run(filled);
            posted += filled;
            if filled < run || posted == room {
                break;
            }
            let Some(first) = bufs.next() else { break };
            let filled = self.fill_after_search(first, &mut (&mut bufs).take((room - posted - 1) as usize));
            if filled == 0 {
                break;
            }
            posted += filled;
        }
        if posted > 0 {
            self.publish();
        }
        posted
    }

    #[inline(always)]
    pub(super) fn slice<T: Body>(&mut self, bufs: &[(T, u64)]) -> u32 {
        let offered = bufs.len().min(self.ring.free() as usize);
        let mut rest = bufs[..offered].iter();
        while !rest.as_slice().is_empty() {
            let run = (self.ring.run() as usize).min(rest.len());
            if run > 0 {
                let (now, later) = rest.as_slice().split_at(run);
                let filled = self.wqes.run(self.ring.tail(), run as u32).fill(now.iter().map(|b| (b.0, b.1)));
                self.ring.take_run(filled);
                rest = later.iter();
                continue;
            }
            let Some(first) = rest.next() else { break };
            if self.fill_after_search((first.0, first.1), &mut rest.by_ref().map(|b| (b.0, b.1))) == 0 {
                break;
            }
        }
        let posted = (offered - rest.len()) as u32;
        if posted > 0 {
            self.publish();
        }
        posted
    }

    /// Fills the slot after a search with `first` and, if the free slots lie scattered, those of the same word from
    /// `others`, which has no more than there is room for. Returns how many; 0 when full.
    #[inline(always)]
    fn fill_after_search<T: Body>(
        &mut self,
        first: (T, u64),
        others: &mut impl Iterator<Item = (T, u64)>,
    ) -> u32 {
        match self.ring.take_many() {
            Some(Many::Run(advance)) => {
                Self::link(&mut self.wqes, &advance).fill(first.0, first.1);
                1
            }
            Some(Many::Scattered(gather)) => {
                let [a, b] = first.0.to_words();
                self.fill_scattered::<T>(gather, a, b, first.1, others)
            }
            None => 0,
        }
    }

    /// The scattered case of [`fill_after_search`](Self::fill_after_search). Out of line, to keep the way of a run short.
    #[inline(never)]
    fn fill_scattered<T: Body>(
        &mut self,
        mut gather: Gather,
        first: u64,
        second: u64,
        cookie: u64,
        others: &mut impl Iterator<Item = (T, u64)>,
    ) -> u32 {
        let (mut filled, mut buf) = (0, (T::from_words([first, second]), cookie));
        while let Some(advance) = self.ring.gather(&mut gather) {
            Self::link(&mut self.wqes, &advance).fill(buf.0, buf.1);
            filled += 1;
            if gather.is_done() {
                break;
            }
            let Some(next) = others.next() else { break };
            buf = next;
        }
        self.ring.finish_gather(gather);
        filled
    }
}
