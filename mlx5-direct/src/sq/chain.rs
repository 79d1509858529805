//! Several requests of any types with one doorbell.

use super::{SendError, Sq};
use crate::{
    position::{REQUEST_SHIFT, block},
    queue_mem::Cookie,
    wqe::send::BLOCK_UNITS,
    wr::{Data, Inline, Wr},
};

/// Requests that are written but not rung. [`Sq::chain`] makes a chain. A chain that is dropped
/// without [`ring`](Self::ring) takes its requests back.
///
/// ```
/// use mlx5_direct::{DataSeg, Sq, SqLayout, wr::{Inline, Remote, Wr}};
///
/// let (layout, _device) = SqLayout::on_heap(64, 16)?;
/// let mut sq = Sq::new(layout);
/// // What a storage target answers with: the data, then the status.
/// let mut chain = sq.chain();
/// chain.push(Wr::write(Remote { addr: 0x9000, rkey: 7 }, DataSeg::new(0x1000, 4096, 0x77)), 1)?;
/// chain.push(Wr::send(Inline(b"done")).signalled(), 2)?;
/// assert_eq!(chain.ring(), 2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Chain<'a, C: Cookie = u64> {
    sq: &'a mut Sq<C>,
    first: u64,
    /// Position of the last request.
    last: u64,
    fence_due: u8,
}

impl<C: Cookie> Sq<C> {
    /// Starts a chain: requests of any types that are rung with one doorbell.
    #[inline(always)]
    pub fn chain(&mut self) -> Chain<'_, C> {
        self.stay_near();
        let (at, fence_due) = (self.at(), self.fence_due);
        Chain { sq: self, first: at, last: at, fence_due }
    }

    /// Writes a request of one block, if this needs no other check. Otherwise changes nothing. The
    /// device does not know of the request yet.
    #[inline(always)]
    pub(super) fn write_one_block<D: Data>(&mut self, wr: &Wr<D>, cookie: C) -> bool {
        let units = wr.units();
        if units > BLOCK_UNITS || wr.is_fenced() || wr.changes_key() {
            return false;
        }
        let (ctrl, qpn) = (wr.ctrl(units).words(0, 0), self.qpn());
        let Some(mut place) = self.wqes.next_block_of_chain(cookie) else { return false };
        wr.write_body(&mut place.body(), qpn);
        let ctrl = place.ctrl(ctrl);
        place.keep(ctrl);
        true
    }

    /// The rest of [`Chain::push`]: several blocks, fences, a full queue, the end of the ring.
    #[cold]
    #[inline(never)]
    fn write_any<D: Data>(&mut self, wr: Wr<D>, cookie: C) -> Result<(), SendError> {
        self.find_blocks();
        if self.write_one_block(&wr, cookie) {
            return Ok(());
        }
        let outcome = self.write(wr, cookie);
        self.find_blocks();
        outcome
    }
}

impl<C: Cookie> Chain<'_, C> {
    /// Writes a request behind the requests of the chain.
    ///
    /// # Errors
    ///
    /// [`SendError`]; the chain does not change.
    #[inline(always)]
    pub fn push<D: Data>(&mut self, wr: Wr<D>, cookie: C) -> Result<(), SendError> {
        let at = self.sq.at();
        if !self.sq.write_one_block(&wr, cookie) {
            self.sq.write_any(wr, cookie)?;
        }
        self.last = at;
        Ok(())
    }

    /// As [`push`](Self::push), in the most common case, as [`Sq::post_fast`]. Otherwise returns
    /// false, and the chain does not change. Straight-line code without a call, so that `wr` and
    /// `cookie` need no memory.
    #[inline(always)]
    pub fn push_fast<D: Data>(&mut self, wr: &Wr<D>, cookie: C) -> bool {
        let at = self.sq.at();
        let pushed = self.sq.write_one_block(wr, cookie);
        if pushed {
            self.last = at;
        }
        pushed
    }

    /// As [`push_fast`](Self::push_fast), for inline bytes whose number the compiler does not know.
    /// They are copied without a call.
    #[inline(always)]
    pub fn push_inline_fast(&mut self, wr: &Wr<Inline<'_>>, cookie: C) -> bool {
        wr.short_inline().is_some_and(|wr| self.push_fast(&wr, cookie))
    }

    /// The number of requests in the chain.
    #[inline(always)]
    pub fn len(&self) -> u32 {
        (self.sq.at().wrapping_sub(self.first) >> REQUEST_SHIFT) as u32
    }

    /// Whether the chain has no requests.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Hands all requests to the device; returns how many. A single request goes by BlueFlame.
    #[inline(always)]
    pub fn ring(mut self) -> u32 {
        self.ring_now()
    }

    /// As [`ring`](Self::ring). The chain is then empty, and takes further requests. Faster than
    /// `ring` where the compiler would copy the chain for it.
    ///
    /// ```
    /// # use mlx5_direct::{Sq, SqLayout, wr::{Inline, Wr}};
    /// # let (layout, _device) = SqLayout::on_heap(64, 16)?;
    /// # let mut sq = Sq::new(layout);
    /// let mut chain = sq.chain();
    /// chain.push(Wr::send(Inline(b"one")), 1)?;
    /// assert_eq!(chain.ring_now(), 1);
    /// chain.push(Wr::send(Inline(b"two")), 2)?;
    /// // Takes back the second request only.
    /// drop(chain);
    /// assert_eq!(sq.posted(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline(always)]
    pub fn ring_now(&mut self) -> u32 {
        let n = self.len();
        if n > 0 {
            self.sq.publish(self.first, block(self.last));
            (self.first, self.fence_due) = (self.sq.at(), self.sq.fence_due);
        }
        n
    }
}

impl<C: Cookie> Drop for Chain<'_, C> {
    #[inline(always)]
    fn drop(&mut self) {
        if !self.is_empty() {
            self.sq.take_back(self.first, self.fence_due);
        }
    }
}
