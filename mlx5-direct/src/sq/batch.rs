//! Many requests with one barrier, one record and one doorbell.

use super::{SendBatchError, SendError, Sq};
use crate::{
    memory::Target,
    position::{REQUEST, REQUEST_SHIFT, block},
    queue_mem::{Cookie, Record, opaque},
    wqe::send::BLOCK_UNITS,
    wr::{Data, Wr},
};

/// Why no more requests of one block were written.
enum Run<D, C> {
    /// There are no more requests.
    Done,
    /// There is no further block next to the last one.
    Full,
    /// The next request is of another kind.
    Other(Wr<D>, C),
}

impl<C: Cookie> Sq<C> {
    /// Posts requests with one barrier, one record and one doorbell for all; returns how many.
    ///
    /// Requests of one block (up to four units) are the cheapest: the loop advances a pointer from
    /// block to block, up to the end of the ring. Each takes about 17 instructions if the compiler
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
        let mut wrs = wrs.into_iter();
        self.stay_near();
        let first = self.at();
        let mut last = first;
        let error = loop {
            // At the end of the ring, after 256 blocks, in a full queue or before a fence: post one
            // request the general way.
            let next = match self.write_run(&mut wrs, &mut last) {
                Run::Done => None,
                Run::Full => wrs.next(),
                Run::Other(wr, cookie) => Some((wr, cookie)),
            };
            let Some((wr, cookie)) = next else { break None };
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
    /// requests. Sets `last` to the block of the last one.
    #[inline(always)]
    fn write_run<D: Data>(
        &mut self,
        wrs: &mut impl Iterator<Item = (Wr<D>, C)>,
        last: &mut u64,
    ) -> Run<D, C> {
        /// A block number at its place in the first word of a control segment, big-endian.
        const fn in_word(block: u32) -> u64 {
            ((block as u64) << 40).to_be()
        }
        /// A sum of big-endian numbers does not carry from the low byte to the high one, so the
        /// numbers of a run have the same high byte.
        const SAME_HIGH_BYTE: u32 = 1 << 8;
        let (flags, qpn, qpn_word, first) = (self.base_flags, self.qpn(), self.qpn_word, self.at());
        let mut after = first;
        let mut other = None;
        let mut number = in_word(block(first));
        let most = SAME_HIGH_BYTE - block(first) % SAME_HIGH_BYTE;
        let mut blocks = self.wqes.run((self.free() & self.open).min(most));
        let room = blocks.left();
        while blocks.left() > 0 {
            let Some((wr, cookie)) = wrs.next() else { break };
            let units = wr.units();
            if units > BLOCK_UNITS || wr.is_fenced() || wr.changes_key() {
                other = Some((wr, cookie));
                break;
            }
            let Some((mut out, record)) = blocks.next() else { break };
            let [start, second] = wr.ctrl(units).words(qpn_word, 0);
            out.push([start.wrapping_add(number), second | flags]);
            wr.write_body(&mut out, qpn);
            after = after.wrapping_add(REQUEST + 1);
            *record = Record { cookie, after };
            number = number.wrapping_add(in_word(1));
        }
        // Hidden, so that the loop keeps neither a flag nor a second counter for it.
        let left = opaque(blocks.left());
        if left < room {
            *last = after.wrapping_sub(1);
            self.wqes.set_position(after);
        }
        match other {
            Some((wr, cookie)) => Run::Other(wr, cookie),
            None if left == 0 => Run::Full,
            None => Run::Done,
        }
    }
}
