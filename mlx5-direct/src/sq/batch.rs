//! Many requests with one barrier, one record and one doorbell.

use super::{REQUEST, REQUEST_SHIFT, SendBatchError, SendError, Sq, block};
use crate::{
    queue_mem::Posted,
    wqe::send::BLOCK_UNITS,
    wr::{Data, Wr},
};

/// Why a run of one-block requests ended.
enum End<D> {
    /// The end of the ring, or no more room in the queue.
    Span,
    /// No more requests.
    Requests,
    /// A request that takes more than one block, or carries or causes a fence.
    Other(Wr<D>, u64),
}

impl Sq {
    /// Posts requests with one barrier, one record and one doorbell for all; returns how many.
    ///
    /// Requests of one block (up to four units) are the cheapest: the loop advances a pointer from
    /// block to block, up to the end of the ring. Each takes about 20 instructions if the compiler
    /// knows its shape.
    ///
    /// # Errors
    ///
    /// [`SendBatchError`] with the number of requests posted before the one that failed.
    #[inline]
    pub fn post_batch<D: Data>(
        &mut self,
        wrs: impl IntoIterator<Item = (Wr<D>, u64)>,
    ) -> Result<u32, SendBatchError> {
        let mut wrs = wrs.into_iter();
        let first = self.at;
        let mut last = block(first);
        let error = loop {
            let (written, end);
            (written, end, wrs) = self.write_span(wrs);
            if written {
                last = block(self.at.wrapping_sub(1));
            }
            let other = match end {
                End::Requests => break None,
                End::Other(wr, cookie) => Some((wr, cookie)),
                // At the end of the ring, in a full queue or before a fence: post one request the
                // general way, if there is one.
                End::Span => wrs.next(),
            };
            let Some((wr, cookie)) = other else { break None };
            let start = block(self.at);
            if let Err(error) = self.write(wr, cookie) {
                break Some(error);
            }
            last = start;
        };
        let posted = (self.at.wrapping_sub(first) >> REQUEST_SHIFT) as u32;
        if posted > 0 {
            self.publish(first, last);
            // The next single request finds its place.
            self.ring.forget_next();
        }
        match error {
            None => Ok(posted),
            Some(error) => Err(SendBatchError { posted, error }),
        }
    }

    /// Writes one-block requests into neighbouring blocks, while there are such blocks and such
    /// requests.
    #[inline(always)]
    fn write_span<D: Data, I: Iterator<Item = (Wr<D>, u64)>>(&mut self, mut wrs: I) -> (bool, End<D>, I) {
        /// Adds one block to the first word of a control segment. The sum does not carry within a
        /// span: the block number wraps at the end of the ring at the earliest.
        const NEXT_BLOCK: u64 = 1 << 40;
        let (flags, qpn, mut after) = (self.base_flags, self.qpn(), self.at);
        let most = self.free() & self.open;
        let mut word = self.qpn_word | u64::from(block(self.at)) << 40;
        let mut end = End::Span;
        for (mut out, posted) in self.ring.span(block(self.at), most) {
            let Some((wr, cookie)) = wrs.next() else {
                end = End::Requests;
                break;
            };
            let units = wr.units();
            if units > BLOCK_UNITS || wr.is_fenced() || wr.changes_key() {
                end = End::Other(wr, cookie);
                break;
            }
            let [first, second] = wr.ctrl(units).words(word, 0);
            out.push([first, second | flags]);
            wr.write_body(&mut out, qpn);
            after = after.wrapping_add(REQUEST + 1);
            *posted = Posted { cookie, after };
            word = word.wrapping_add(NEXT_BLOCK);
        }
        // Hidden from the compiler, which would count requests and blocks in further registers to
        // compute what follows.
        let after = core::hint::black_box(after);
        let written = after != self.at;
        self.at = after;
        (written, end, wrs)
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
        wrs: impl IntoIterator<Item = (Wr<D>, u64)>,
    ) -> Result<u32, SendBatchError> {
        let room = self.free() as usize;
        match self.post_batch(wrs.into_iter().take(room)) {
            Err(SendBatchError { posted, error: SendError::Full }) => Ok(posted),
            outcome => outcome,
        }
    }
}
