//! Many requests with one barrier, one record and one doorbell.

use super::{REQUEST_SHIFT, SendBatchError, SendError, Sq, block};
use crate::{
    queue_mem::{Cookie, Posted, REQUEST, Target},
    wqe::send::BLOCK_UNITS,
    wr::{Data, Wr},
};

impl<C: Cookie> Sq<C> {
    /// Posts requests with one barrier, one record and one doorbell for all; returns how many.
    ///
    /// Requests of one block (up to four units) are the cheapest: the loop advances a pointer from
    /// block to block, up to the end of the ring. Each takes about 20 instructions if the compiler
    /// knows its shape.
    ///
    /// If the iterator panics, requests that it gave may count as posted
    /// ([`outstanding`](Self::outstanding) names them). The next post hands them to the device.
    ///
    /// # Errors
    ///
    /// [`SendBatchError`] with the number of requests posted before the one that failed.
    #[inline]
    pub fn post_batch<D: Data>(
        &mut self,
        wrs: impl IntoIterator<Item = (Wr<D>, C)>,
    ) -> Result<u32, SendBatchError> {
        let mut wrs = wrs.into_iter().fuse();
        self.stay_near();
        let first = self.at();
        let mut last = first;
        let error = loop {
            // At the end of the ring, in a full queue or before a fence: post one request the
            // general way.
            let other = self.write_span(&mut wrs, &mut last);
            let Some((wr, cookie)) = other.or_else(|| wrs.next()) else { break None };
            let start = self.at();
            if let Err(error) = self.write_apart(wr, cookie) {
                break Some(error);
            }
            last = start;
        };
        let posted = (self.at().wrapping_sub(first) >> REQUEST_SHIFT) as u32;
        if posted > 0 {
            self.publish(first, block(last));
        }
        match error {
            None => Ok(posted),
            Some(error) => Err(SendBatchError { posted, error }),
        }
    }

    /// As [`write`](Self::write), outside the loop over requests of one block.
    #[inline(never)]
    fn write_apart<D: Data>(&mut self, wr: Wr<D>, cookie: C) -> Result<(), SendError> {
        self.write(wr, cookie)
    }

    /// Writes one-block requests into neighbouring blocks, while there are such blocks and such
    /// requests. Sets `last` to the block of the last one. Returns the next request, if there is
    /// one.
    #[inline(always)]
    fn write_span<D: Data>(
        &mut self,
        wrs: &mut impl Iterator<Item = (Wr<D>, C)>,
        last: &mut u64,
    ) -> Option<(Wr<D>, C)> {
        /// Adds one block to the first word of a control segment. The sum does not carry within a
        /// span: the block number wraps at the end of the ring at the earliest.
        const NEXT_BLOCK: u64 = 1 << 40;
        let (flags, qpn, first) = (self.base_flags, self.qpn(), self.at());
        let mut after = first;
        let mut other = None;
        let mut word = self.qpn_word | u64::from(block(first)) << 40;
        for (mut out, posted) in self.ring.span(self.free() & self.open) {
            let Some((wr, cookie)) = wrs.next() else { break };
            let units = wr.units();
            if units > BLOCK_UNITS || wr.is_fenced() || wr.changes_key() {
                other = Some((wr, cookie));
                break;
            }
            let [start, second] = wr.ctrl(units).words(word, 0);
            out.push([start, second | flags]);
            wr.write_body(&mut out, qpn);
            after = after.wrapping_add(REQUEST + 1);
            *posted = Posted { cookie, after };
            word = word.wrapping_add(NEXT_BLOCK);
        }
        if after != first {
            *last = after.wrapping_sub(1);
            self.ring.set_position(after);
        }
        other
    }

    /// As [`post_batch`](Self::post_batch), but a full queue is no error: posts as many requests as
    /// there is room for.
    ///
    /// # Errors
    ///
    /// [`SendBatchError`] with [`SendError::TooLong`].
    #[inline]
    pub fn post_as_many<D: Data>(
        &mut self,
        wrs: impl IntoIterator<Item = (Wr<D>, C)>,
    ) -> Result<u32, SendBatchError> {
        let room = self.free() as usize;
        match self.post_batch(wrs.into_iter().take(room)) {
            Err(SendBatchError { posted, error: SendError::Full }) => Ok(posted),
            outcome => outcome,
        }
    }
}
